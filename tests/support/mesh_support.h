/* A mesh of one axis for tests that have a communicator of their own. */
#ifndef PGPT_TESTS_MESH_SUPPORT_H
#define PGPT_TESTS_MESH_SUPPORT_H

#include "parallel/mesh.h"

/* Along dp; the communicator is copied, and closed by whoever opened it. */
static inline Mesh mesh_of(const Comm *data, Comm *world) {
    Mesh mesh = {.world = world};
    for (int axis = 0; axis < N_AXES; axis++) mesh.shape.size[axis] = 1;
    mesh.shape.size[AXIS_DP] = data->size;
    mesh.coordinate[AXIS_DP] = data->rank;
    mesh.axis[AXIS_DP] = *data;
    return mesh;
}

#endif
