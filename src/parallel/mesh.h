/* The mesh: every rank's place on the axes along which work is split.
 *
 * A mesh is a value. Its sizes multiply to the number of ranks; a rank's coordinates follow from its number,
 * tp running fastest, pp slowest, so that ranks which talk most lie next to each other:
 *
 *     rank = (((pp·DP + dp)·CP + cp)·EP + ep)·TP + tp
 *
 * Along each axis a rank has a communicator with those that differ from it in that coordinate alone. */
#ifndef PGPT_PARALLEL_MESH_H
#define PGPT_PARALLEL_MESH_H

#include "comm/comm.h"

#include <stdio.h>

typedef enum {
    AXIS_PP, /* pipeline: layers */
    AXIS_DP, /* data: sequences */
    AXIS_CP, /* context: positions */
    AXIS_EP, /* experts */
    AXIS_TP, /* tensors: heads and channels */
    N_AXES,
} Axis;

const char *axis_name(Axis axis); /* "dp" */

typedef struct {
    int size[N_AXES];
} MeshShape;

int mesh_n_ranks(const MeshShape *shape);
void mesh_coordinates(const MeshShape *shape, int rank, int *coordinate /* (N_AXES) */);
int mesh_rank(const MeshShape *shape, const int *coordinate);

/* Sizes as options give them; 0 for dp means whatever is left. Fails, saying what would fit, when they do not
 * multiply to n_ranks or ask for an axis that is not available. */
Status mesh_shape(const int64_t *sizes /* (N_AXES) */, int n_ranks, MeshShape *shape, Error *error);

/* The same where nothing above `most` can be along an axis (0: anything can), so that none of that is
 * proposed. */
Status mesh_shape_within(const int64_t *sizes /* (N_AXES) */, const int64_t *most /* (N_AXES) */, int n_ranks,
                         MeshShape *shape, Error *error);

/* The mesh that sizes multiply to by themselves, for whoever plans a job without its ranks: 0 for dp means 1.
 * Fails where these are more than `most`. */
Status mesh_shape_planned(const int64_t *sizes, int most, MeshShape *shape, Error *error);

/* Of those that sum gradients: the ranks of this host, and those with the same place on every host
 * (mesh_hosts.h); of the host's memory and of the device's. {0} where nobody asks, and where there is one. */
typedef struct {
    Comm inside, device_inside;
    Comm across, device_across;
} MeshHosts;

typedef struct {
    MeshShape shape;
    int coordinate[N_AXES];
    Comm *world;       /* of all ranks, for numbers of the host; not owned */
    Comm axis[N_AXES]; /* of the host's memory; of size 1 where the axis is */
    /* Those of tp that hold the same key/value heads, of the host's memory and of the device's; {0} where
     * each has its own. */
    Comm heads, device_heads;
    /* The first and the last of pp, which hold a tied token table both, likewise; {0} on those between them
     * and where nothing is tied. */
    Comm ends, device_ends;
    /* Those of dp, cp and ep together, who hold the same parameters and sum their gradients, likewise; {0}
     * where cp and ep are 1: then those of dp. */
    Comm sums, device_sums;
    /* Those of dp and cp together, who hold the same experts, likewise; {0} where cp or ep is 1: then those
     * of dp, or all that hold the same parameters. */
    Comm expert_sums, device_expert_sums;
    MeshHosts hosts;
    Comm device[N_AXES]; /* of a device's memory (NCCL, or through the host); {0} where that is the host's */
} Mesh;

/* Collective over the world, whose size is the shape's. The device's communicators are opened by whoever
 * opens the device (device_comm_open), and closed before the mesh. */
Status mesh_open(Mesh *mesh, const MeshShape *shape, Comm *world, Error *error);
void mesh_close(Mesh *mesh); /* safe on {0} */

/* The ranks along an axis, by what reaches the memory that tensors are in. Values of a mesh are passed as
 * const; what a communicator counts is not. */
static inline Comm *mesh_comm(const Mesh *mesh, Axis axis) {
    return (Comm *)(mesh->device[axis].table ? &mesh->device[axis] : &mesh->axis[axis]);
}

/* The ranks that hold the same parameters, but for experts: those of dp, cp and ep together, dp by dp, then
 * cp by cp. The first by what reaches the memory that tensors are in, as mesh_comm; the second the host's. */
static inline Comm *mesh_sums(const Mesh *mesh) {
    if (!mesh->sums.table) return mesh_comm(mesh, AXIS_DP);
    return (Comm *)(mesh->device_sums.table ? &mesh->device_sums : &mesh->sums);
}

static inline Comm *mesh_host_sums(const Mesh *mesh) {
    return (Comm *)(mesh->sums.table ? &mesh->sums : &mesh->axis[AXIS_DP]);
}

/* The ranks that hold the same experts: those of dp and cp together. Likewise. */
static inline Comm *mesh_expert_sums(const Mesh *mesh) {
    if (mesh->shape.size[AXIS_EP] == 1) return mesh_sums(mesh);
    if (!mesh->expert_sums.table) return mesh_comm(mesh, AXIS_DP);
    return (Comm *)(mesh->device_expert_sums.table ? &mesh->device_expert_sums : &mesh->expert_sums);
}

static inline Comm *mesh_host_expert_sums(const Mesh *mesh) {
    if (mesh->shape.size[AXIS_EP] == 1) return mesh_host_sums(mesh);
    return (Comm *)(mesh->expert_sums.table ? &mesh->expert_sums : &mesh->axis[AXIS_DP]);
}

/* Among the ranks of tp: those with the same `group`. Collective over them, after mesh_open. */
Status mesh_open_heads(Mesh *mesh, int group, Error *error);

/* By what reaches the memory that tensors are in, as mesh_comm. Those of tp where nothing is shared. */
static inline Comm *mesh_heads(const Mesh *mesh) {
    if (!mesh->heads.table) return mesh_comm(mesh, AXIS_TP);
    return (Comm *)(mesh->device_heads.table ? &mesh->device_heads : &mesh->heads);
}

/* The first and the last rank along pp; nothing where there is one. Collective over them all, after
 * mesh_open. */
Status mesh_open_ends(Mesh *mesh, Error *error);

/* By what reaches the memory that tensors are in, as mesh_comm. NULL: this rank is no end. */
static inline Comm *mesh_ends(const Mesh *mesh) {
    if (!mesh->ends.table) return NULL;
    return (Comm *)(mesh->device_ends.table ? &mesh->device_ends : &mesh->ends);
}

/* A table: one line a rank with its coordinates and, if given, its host; then the groups of every axis. */
void mesh_print(const MeshShape *shape, const char *const *hosts, FILE *stream);

#endif
