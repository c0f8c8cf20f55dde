/* Everybody knows where all ranks are, so nobody has to be asked. */
#include "parallel/mesh_hosts.h"

#include "base/arena.h"

/* The ranks that sum with one, in the order of their communicator. */
typedef struct {
    int coordinate[N_AXES];
    const MeshShape *shape;
    int at, n;
} SumRanks;

static const Axis along[] = {AXIS_DP, AXIS_CP, AXIS_EP};

static SumRanks sum_ranks(const MeshShape *shape, int rank) {
    SumRanks ranks = {.shape = shape, .n = 1};
    mesh_coordinates(shape, rank, ranks.coordinate);
    for (int i = 0; i < 3; i++) ranks.n *= shape->size[along[i]];
    return ranks;
}

static bool next_rank(SumRanks *ranks, int *rank) {
    if (ranks->at == ranks->n) return false;
    for (int i = 2, rest = ranks->at++; i >= 0; i--) {
        ranks->coordinate[along[i]] = rest % ranks->shape->size[along[i]];
        rest /= ranks->shape->size[along[i]];
    }
    *rank = mesh_rank(ranks->shape, ranks->coordinate);
    return true;
}

/* Of each host that was met: its number in their order, from 1 on, and its ranks so far. */
typedef struct {
    Arena arena;
    int *order, *n_ranks;
    int n_hosts;
} Met;

static Met meet(const MeshShape *shape) {
    Met met = {0};
    met.order = ARENA_ARRAY(&met.arena, int, mesh_n_ranks(shape));
    met.n_ranks = ARENA_ARRAY(&met.arena, int, mesh_n_ranks(shape));
    return met;
}

static HostPlace next_place(Met *met, int host) {
    if (!met->order[host]) met->order[host] = ++met->n_hosts;
    return (HostPlace){.host = met->order[host] - 1, .lane = met->n_ranks[host]++};
}

HostPlace mesh_host_place(const MeshShape *shape, int rank, const int *hosts) {
    HostPlace place = {0};
    SumRanks ranks = sum_ranks(shape, rank);
    Met met = meet(shape);
    for (int other; next_rank(&ranks, &other);) {
        HostPlace its = next_place(&met, hosts[other]);
        if (other == rank) place = its;
    }
    place.n_hosts = met.n_hosts;
    place.n_lanes = met.n_ranks[hosts[rank]];
    arena_free(&met.arena);
    return place;
}

void mesh_host_ranks(const MeshShape *shape, int rank, const int *hosts, int *inside, int *across) {
    HostPlace mine = mesh_host_place(shape, rank, hosts);
    SumRanks ranks = sum_ranks(shape, rank);
    Met met = meet(shape);
    for (int other; next_rank(&ranks, &other);) {
        HostPlace place = next_place(&met, hosts[other]);
        if (place.host == mine.host) inside[place.lane] = other;
        if (place.lane == mine.lane) across[place.host] = other;
    }
    arena_free(&met.arena);
}

Status mesh_check_hosts(const MeshShape *shape, const int *hosts, Error *error) {
    HostPlace first = mesh_host_place(shape, 0, hosts);
    for (int rank = 0; rank < mesh_n_ranks(shape); rank++) {
        HostPlace place = mesh_host_place(shape, rank, hosts);
        if (place.n_hosts == 1)
            return error_user(error,
                              "--compress-across hosts is exact within a host, and all ranks that share a "
                              "batch with rank %d are on one; leave it out, or --compress",
                              rank);
        if (place.n_lanes != first.n_lanes || place.n_hosts != first.n_hosts)
            return error_user(error,
                              "--compress-across hosts wants as many ranks that share a batch on every host; "
                              "with rank 0 there are %d on %d hosts, with rank %d %d on %d; start as many "
                              "everywhere, or leave it out",
                              first.n_lanes, first.n_hosts, rank, place.n_lanes, place.n_hosts);
    }
    return STATUS_OK;
}

Status mesh_open_hosts(Mesh *mesh, const int *hosts, Error *error) {
    HostPlace place = mesh_host_place(&mesh->shape, mesh->world->rank, hosts);
    Comm *sums = mesh_host_sums(mesh);
    TRY(comm_split(sums, place.host, place.lane, &mesh->hosts.inside, error));
    if (place.n_lanes == 1) comm_close(&mesh->hosts.inside);
    return comm_split(sums, place.lane, place.host, &mesh->hosts.across, error);
}
