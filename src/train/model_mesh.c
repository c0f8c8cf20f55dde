#include "train/model_mesh.h"

#include "device/device.h"
#include "model/parameter_shard.h"

Status model_mesh_open(Mesh *mesh, const MeshShape *shape, const ModelConfig *config, Comm *world,
                       Error *error) {
    int n_ranks = shape->size[AXIS_TP];
    TRY(mesh_open(mesh, shape, world, error));
    if (n_ranks <= config->n_kv_heads) return STATUS_OK;
    return mesh_open_heads(mesh, shard_heads_group(config, n_ranks, mesh->coordinate[AXIS_TP]), error);
}

/* Along dp also where it has one rank: its table says what a device's memory is reached by. */
Status model_mesh_open_device(Mesh *mesh, const Backend *backend, Error *error) {
    for (int axis = 0; axis < N_AXES; axis++) {
        if (axis == AXIS_DP || mesh->shape.size[axis] > 1)
            TRY(device_comm_open(&mesh->device[axis], &mesh->axis[axis], backend, error));
    }
    return mesh->heads.table ? device_comm_open(&mesh->device_heads, &mesh->heads, backend, error)
                             : STATUS_OK;
}

void model_mesh_close(Mesh *mesh, const Backend *backend) {
    for (int axis = 0; axis < N_AXES && backend; axis++) device_comm_close(&mesh->device[axis], backend);
    if (backend) device_comm_close(&mesh->device_heads, backend);
    mesh_close(mesh);
}
