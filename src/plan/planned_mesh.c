/* The groups are those that model_mesh_open and pipeline_open split off, told by coordinates instead of by
 * colors that ranks pass; tests/plan/test_planned_mesh.c compares the two over many shapes. A device's
 * communicators, which would be opened over the host's, are left out: the host's stand for them, with the one
 * property of theirs that programs depend on (only_enqueues). */
#include "plan/planned_mesh.h"

#include "comm/comm_self.h"
#include "model/parameter_shard.h"
#include "parallel/mesh_hosts.h"

#include <stdlib.h>
#include <string.h>

/* ---- Communicators that are only named */

static Status refuse(Error *error) {
    return error_failed(error, "a communicator that was only planned was used");
}

static Status start_send(void *context, const void *data, size_t n_bytes, int to, int tag,
                         CommRequest *request, Error *error) {
    (void)context, (void)data, (void)n_bytes, (void)to, (void)tag, (void)request;
    return refuse(error);
}

static Status start_receive(void *context, void *data, size_t n_bytes, int from, int tag,
                            CommRequest *request, Error *error) {
    (void)context, (void)data, (void)n_bytes, (void)from, (void)tag, (void)request;
    return refuse(error);
}

static Status wait(void *context, CommRequest *requests, int n_requests, Error *error) {
    (void)context, (void)requests, (void)n_requests;
    return refuse(error);
}

static Status split(void *context, int color, int key, Comm *child, Error *error) {
    (void)context, (void)color, (void)key, (void)child;
    return refuse(error);
}

static bool is_threaded(void *context) {
    (void)context;
    return true;
}

static void abort_job(void *context, int exit_code) {
    (void)context, (void)exit_code;
}

static void close_planned(void *context) {
    (void)context; /* of an arena */
}

#define PLANNED_TABLE                                                                                        \
    .name = "planned", .counts_only = true, .start_send = start_send, .start_receive = start_receive,        \
    .wait = wait, .split = split, .is_threaded = is_threaded, .abort = abort_job, .close = close_planned

static const CommTable host_table = {PLANNED_TABLE};
static const CommTable device_table = {PLANNED_TABLE, .only_enqueues = true};

const PlannedGroup *planned_group(const Comm *comm) {
    bool is_planned = comm->table == &host_table || comm->table == &device_table;
    return is_planned ? comm->context : NULL;
}

/* ---- Groups */

typedef struct {
    PlannedRank *planned;
    const PlannedSetup *setup;
    int rank; /* of the job */
} Opening;

static int axes_of(const MeshShape *shape, const int *member, int size) {
    int first[N_AXES], other[N_AXES], axes = 0;
    mesh_coordinates(shape, member[0], first);
    for (int i = 1; i < size; i++) {
        mesh_coordinates(shape, member[i], other);
        for (int axis = 0; axis < N_AXES; axis++) axes |= (first[axis] != other[axis]) << axis;
    }
    return axes;
}

static Comm open_group(const Opening *opening, const int *member, int size) {
    PlannedGroup *group = ARENA_NEW(&opening->planned->arena, PlannedGroup);
    *group = (PlannedGroup){.size = size,
                            .member = member,
                            .axes = axes_of(opening->setup->shape, member, size),
                            .hosts = ARENA_NEW(&opening->planned->arena, PlannedHosts)};
    while (group->rank < size - 1 && member[group->rank] != opening->rank) group->rank++;
    return (Comm){.table = opening->setup->only_enqueues ? &device_table : &host_table,
                  .context = group,
                  .rank = group->rank,
                  .size = size,
                  .all_reduce = opening->setup->all_reduce};
}

/* Those that differ along these axes alone, in the order of the mesh. */
static Comm open_along(const Opening *opening, const Axis *along, int n_axes) {
    const Mesh *mesh = &opening->planned->mesh;
    int n = 1, coordinate[N_AXES];
    for (int i = 0; i < n_axes; i++) n *= mesh->shape.size[along[i]];
    int *member = ARENA_ARRAY(&opening->planned->arena, int, n);
    memcpy(coordinate, mesh->coordinate, sizeof coordinate);
    for (int k = 0; k < n; k++) {
        for (int i = n_axes - 1, rest = k; i >= 0; i--) {
            coordinate[along[i]] = rest % mesh->shape.size[along[i]];
            rest /= mesh->shape.size[along[i]];
        }
        member[k] = mesh_rank(&mesh->shape, coordinate);
    }
    return open_group(opening, member, n);
}

static int at_stage(const Mesh *mesh, int stage) {
    int coordinate[N_AXES];
    memcpy(coordinate, mesh->coordinate, sizeof coordinate);
    coordinate[AXIS_PP] = stage;
    return mesh_rank(&mesh->shape, coordinate);
}

static Comm open_pair(const Opening *opening, int first_stage, int second_stage) {
    const Mesh *mesh = &opening->planned->mesh;
    int *member = ARENA_ARRAY(&opening->planned->arena, int, 2);
    member[0] = at_stage(mesh, first_stage < second_stage ? first_stage : second_stage);
    member[1] = at_stage(mesh, first_stage < second_stage ? second_stage : first_stage);
    return open_group(opening, member, 2);
}

static void open_heads(const Opening *opening) {
    Mesh *mesh = &opening->planned->mesh;
    const ModelConfig *config = opening->setup->config;
    int n_ranks = mesh->shape.size[AXIS_TP], n = 0, coordinate[N_AXES];
    if (n_ranks <= config->n_kv_heads) return;
    int *member = ARENA_ARRAY(&opening->planned->arena, int, n_ranks);
    int mine = shard_heads_group(config, n_ranks, mesh->coordinate[AXIS_TP]);
    memcpy(coordinate, mesh->coordinate, sizeof coordinate);
    for (int i = 0; i < n_ranks; i++) {
        coordinate[AXIS_TP] = i;
        if (shard_heads_group(config, n_ranks, i) == mine) member[n++] = mesh_rank(&mesh->shape, coordinate);
    }
    mesh->heads = open_group(opening, member, n);
}

static void open_hosts(const Opening *opening) {
    const PlannedSetup *setup = opening->setup;
    Mesh *mesh = &opening->planned->mesh;
    if (!setup->hosts) return;
    HostPlace place = mesh_host_place(setup->shape, opening->rank, setup->hosts);
    int *inside = ARENA_ARRAY(&opening->planned->arena, int, place.n_lanes),
        *across = ARENA_ARRAY(&opening->planned->arena, int, place.n_hosts);
    mesh_host_ranks(setup->shape, opening->rank, setup->hosts, inside, across);
    if (place.n_lanes > 1) mesh->hosts.inside = open_group(opening, inside, place.n_lanes);
    mesh->hosts.across = open_group(opening, across, place.n_hosts);
}

static void open_mesh(const Opening *opening) {
    static const Axis sums[] = {AXIS_DP, AXIS_CP, AXIS_EP};
    Mesh *mesh = &opening->planned->mesh;
    const int *size = mesh->shape.size;
    for (int axis = 0; axis < N_AXES; axis++)
        mesh->axis[axis] = size[axis] > 1 ? open_along(opening, &(Axis){(Axis)axis}, 1) : comm_self();
    if (size[AXIS_CP] > 1 || size[AXIS_EP] > 1) mesh->sums = open_along(opening, sums, 3);
    if (size[AXIS_CP] > 1 && size[AXIS_EP] > 1) mesh->expert_sums = open_along(opening, sums, 2);
    int stage = mesh->coordinate[AXIS_PP], last = size[AXIS_PP] - 1;
    if (opening->setup->config->tied && last > 0 && (stage == 0 || stage == last))
        mesh->ends = open_pair(opening, 0, last);
    open_heads(opening);
    open_hosts(opening);
}

static Status open_pipeline(const Opening *opening, Error *error) {
    const PipelineLayout *layout = opening->setup->layout;
    Pipeline *pipeline = &opening->planned->pipeline;
    StagePlacement placement = schedule_info(layout->kind)->placement;
    *pipeline = (Pipeline){.layout = *layout, .stage = opening->planned->mesh.coordinate[AXIS_PP]};
    pipeline->border = calloc((size_t)layout->n_chunks, sizeof *pipeline->border);
    if (!pipeline->border) return error_failed(error, "no memory for the borders of a pipeline");
    ScheduleShape shape = pipeline_shape(pipeline, 1);
    for (int chunk = 0; chunk < layout->n_chunks; chunk++) {
        int here = placement_virtual(placement, &shape, pipeline->stage, chunk);
        for (int side = 0; side < N_BORDERS; side++) {
            int there = side == BORDER_ABOVE ? here + 1 : here - 1;
            if (there < 0 || there >= layout->n_stages * layout->n_chunks) continue;
            PipelineBorder *border = &pipeline->border[chunk][side];
            *border = (PipelineBorder){.exists = true, .other = placement_stage(placement, &shape, there)};
            for (int way = 0; way < N_PIPELINE_WAYS && border->other != pipeline->stage; way++)
                border->comm[way] = open_pair(opening, pipeline->stage, border->other);
        }
    }
    return STATUS_OK;
}

Status planned_rank_open(PlannedRank *planned, const PlannedSetup *setup, int rank, Error *error) {
    *planned = (PlannedRank){.launch = launch_alone(), .mesh = {.shape = *setup->shape}};
    Opening opening = {planned, setup, rank};
    mesh_coordinates(setup->shape, rank, planned->mesh.coordinate);
    int n_ranks = mesh_n_ranks(setup->shape);
    if (n_ranks > 1) {
        int *all = ARENA_ARRAY(&planned->arena, int, n_ranks);
        for (int i = 0; i < n_ranks; i++) all[i] = i;
        planned->launch.world = planned->saving = open_group(&opening, all, n_ranks);
    }
    planned->mesh.world = &planned->launch.world;
    open_mesh(&opening);
    if (setup->layout && open_pipeline(&opening, error) != STATUS_OK) planned_rank_close(planned);
    return error->status;
}

void planned_rank_close(PlannedRank *planned) {
    free(planned->pipeline.border);
    arena_free(&planned->arena);
    *planned = (PlannedRank){0};
}
