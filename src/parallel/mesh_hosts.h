/* The ranks that sum gradients (those of dp, cp and ep), as they lie on hosts: who is on the same host, and
 * who has the same place on the others. For sums that go within hosts first.
 *
 *     const int hosts[] = {0, 0, 1, 1};                       // of each rank of the mesh, from 0 on
 *     TRY(mesh_check_hosts(&shape, hosts, error));
 *     TRY(mesh_open_hosts(&mesh, hosts, error));              // collective, after mesh_open */
#ifndef PGPT_PARALLEL_MESH_HOSTS_H
#define PGPT_PARALLEL_MESH_HOSTS_H

#include "parallel/mesh.h"

/* Numbers of hosts are below that of the ranks. */

/* Of a rank among those that sum gradients with it. */
typedef struct {
    int n_hosts, host; /* that they are on; this one's, in the order of their first ranks */
    int n_lanes, lane; /* of them on this host; which of them this is */
} HostPlace;

HostPlace mesh_host_place(const MeshShape *shape, int rank, const int *hosts);

/* Numbers of the ranks: on this one's host, and of its lane on every host. */
void mesh_host_ranks(const MeshShape *shape, int rank, const int *hosts, int *inside /* (n_lanes) */,
                     int *across /* (n_hosts) */);

/* Are there several hosts, with as many ranks of every sum on each? A user's error says what is not so. */
Status mesh_check_hosts(const MeshShape *shape, const int *hosts, Error *error);

Status mesh_open_hosts(Mesh *mesh, const int *hosts, Error *error);

/* By what reaches the memory that tensors are in, as mesh_comm. The first is NULL where a host has one. */
static inline Comm *mesh_inside(const Mesh *mesh) {
    const MeshHosts *hosts = &mesh->hosts;
    if (!hosts->inside.table) return NULL;
    return (Comm *)(hosts->device_inside.table ? &hosts->device_inside : &hosts->inside);
}

static inline Comm *mesh_across(const Mesh *mesh) {
    const MeshHosts *hosts = &mesh->hosts;
    return (Comm *)(hosts->device_across.table ? &hosts->device_across : &hosts->across);
}

#endif
