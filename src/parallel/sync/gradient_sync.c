/* What the strategies share: which ranks there are, what each holds, and the order in which a strategy's
 * functions are called while the step is recorded. */
#include "parallel/sync/gradient_sync.h"

#include "base/block8.h"
#include "parallel/comm_ops.h"
#include "parallel/mesh_hosts.h"
#include "parallel/sync/order.h"
#include "parallel/sync/strategy.h"

#include <stdio.h>
#include <string.h>

void sync_share(const GradientSyncOptions *options, int64_t n, int64_t *first, int64_t *end) {
    const Mesh *mesh = options->mesh;
    int size = sync_n_shares(options), share = 0;
    if (mesh) share = mesh->coordinate[AXIS_DP] * mesh->shape.size[AXIS_EP] + mesh->coordinate[AXIS_EP];
    if (options->is_async) share = options->share;
    *first = n / size * share + n % size * share / size;
    *end = n / size * (share + 1) + n % size * (share + 1) / size;
}

/* As the communicators of the mesh count them. */
PartitionPlace sync_place(const GradientSyncOptions *options, FlatGroup group) {
    static const Axis axes[] = {AXIS_DP, AXIS_CP, AXIS_EP};
    PartitionPlace place = {.n_ranks = 1};
    for (int i = 0; i < (group == FLAT_EXPERTS ? 2 : 3) && options->mesh; i++) {
        place.n_ranks *= options->mesh->shape.size[axes[i]];
        place.rank = place.rank * options->mesh->shape.size[axes[i]] + options->mesh->coordinate[axes[i]];
    }
    return place;
}

static void find_places(const GradientSyncOptions *options, PartitionPlace *places) {
    for (int group = 0; group < N_FLAT_GROUPS; group++) places[group] = sync_place(options, (FlatGroup)group);
}

const GradientStrategy *gradient_strategy(int zero) {
#define STRATEGY(NAME) &STRATEGY_##NAME,
    static const GradientStrategy *const strategies[] = {GRADIENT_STRATEGIES(STRATEGY)};
#undef STRATEGY
    return strategies[zero];
}

/* ---- bytes of state */

/* A rank that compresses needs all of its own gradient in one place: it is not sharded. */
static int zero_of(const GradientSyncOptions *options) {
    return options->compression.kind != COMPRESS_NONE && options->zero == 2 ? 1 : options->zero;
}

/* Ranks of a host that share out its errors, where words go between hosts. */
static double error_ranks(const GradientSyncOptions *options) {
    const Compression *compression = &options->compression;
    Comm *inside = compression->is_across_hosts && options->mesh ? mesh_inside(options->mesh) : NULL;
    return inside && !compression_is_lowrank(compression) ? inside->size : 1;
}

/* Beside the rest: this rank's error, and that of its slices; what Adam's update needs of others' slices. The
 * momentum's signs, a sixth of a byte, and columns of matrices in low rank are left out. */
static void add_compression(const GradientSyncOptions *options, Precision precision, double *whole,
                            double *sharded) {
    enum { F32_BYTES = 4 };
    bool is_adam = compression_is_adam(&options->compression);
    bool is_sliced = gradient_strategy(zero_of(options))->shards_optimizer;
    if (options->compression.kind == COMPRESS_NONE || sync_n_ranks(options) == 1) return;
    *whole += F32_BYTES / error_ranks(options);
    if (compression_is_lowrank(&options->compression)) return;
    if (is_adam || !is_sliced || error_ranks(options) > 1) *sharded += F32_BYTES;
    if (is_adam && is_sliced) *whole += precision.has_master ? 2 * F32_BYTES : F32_BYTES;
    if (compression_is_local(&options->compression))
        *whole += F32_BYTES * (1.0 + !precision.has_master + is_sliced);
    Codec codec = compression_codec(&options->compression);
    if (is_adam && is_sliced && codec.kind == CODEC_TOP) *whole += codec_bits(&codec) / 8.0;
    if (compression_is_lamb(&options->compression)) *(is_sliced ? sharded : whole) += F32_BYTES;
}

/* Bytes a parameter that are whole on every rank, and those that are sharded. */
static void split_bytes(const GradientSyncOptions *options, Precision precision, int n_moments, double *whole,
                        double *sharded) {
    const GradientStrategy *strategy = gradient_strategy(options->zero);
    double weight = (double)dtype_info(precision.weight)->n_bytes;
    double gradient = (double)dtype_info(precision.gradient)->n_bytes;
    double moment = (double)dtype_info(precision.moment)->n_bytes;
    if (precision.has_packed_moments) moment = 4.0 * BLOCK8_WORDS / BLOCK8_RECORD;
    double optimizer = n_moments * moment + (precision.has_master ? 4.0 : 0.0);
    *sharded = (strategy->shards_optimizer ? optimizer : 0.0) +
               (strategy->shards_gradients ? gradient : 0.0) + (strategy->shards_weights ? weight : 0.0);
    *whole = weight + gradient + optimizer - *sharded;
    add_compression(options, precision, whole, sharded);
}

double sync_state_bytes(const GradientSyncOptions *options, Precision precision, GroupCounts counts,
                        int n_moments) {
    double n_bytes = 0.0, whole, sharded;
    split_bytes(options, precision, n_moments, &whole, &sharded);
    for (int group = 0; group < N_FLAT_GROUPS; group++) {
        int n_ranks = sync_place(options, (FlatGroup)group).n_ranks;
        n_bytes += (whole + sharded / n_ranks) * (double)counts.n[group];
    }
    return n_bytes;
}

const char *sync_state_formula(const GradientSyncOptions *options, Precision precision, int n_moments,
                               char *text, size_t n_bytes) {
    double whole, sharded;
    split_bytes(options, precision, n_moments, &whole, &sharded);
    if (sharded == 0.0) snprintf(text, n_bytes, "%gΨ", whole);
    else if (whole == 0.0) snprintf(text, n_bytes, "%gΨ/%d", sharded, sync_n_ranks(options));
    else snprintf(text, n_bytes, "%gΨ + %gΨ/%d", whole, sharded, sync_n_ranks(options));
    size_t n = strlen(text);
    int n_experts = sync_place(options, FLAT_EXPERTS).n_ranks;
    if (sharded > 0.0 && n_experts < sync_n_ranks(options))
        snprintf(text + n, n_bytes - n, " (experts: %gΨ/%d)", sharded, n_experts);
    return text;
}

/* ---- the plan */

/* What this rank holds of the flat arrays, and what it saves of them. */
static void plan_maps(GradientSync *sync, const PartitionPlace *places, Arena *arena) {
    const FlatArray *array = &sync->array;
    const GradientStrategy *strategy = sync->strategy;
    ShardMap whole = shard_map_whole(array->n_elements, arena);
    ShardMap share = shard_map_share(array->piece, array->n_pieces, places, arena);
    ShardMap slices = partition_map(&sync->partition, arena);
    bool saves_slices =
        strategy->shards_weights || (strategy->shards_optimizer && sync->precision.has_master);
    sync->parameters = strategy->shards_weights ? slices : whole;
    sync->parameters_saved = saves_slices ? slices : share;
    sync->moments = strategy->shards_optimizer ? slices : whole;
    sync->moments_saved = strategy->shards_optimizer ? slices : share;
    if (!sync->options->root_saves) return;
    ShardMap nothing = {.run = share.run, .n_local = array->n_elements};
    sync->parameters_saved = sync->moments_saved = places[FLAT_SHARED].rank == 0 ? whole : nothing;
}

GradientSync gradient_sync_plan(const GradientSyncOptions *options, Precision precision,
                                const FlatArray *array, Arena *arena) {
    PartitionPlace places[N_FLAT_GROUPS];
    find_places(options, places);
    GradientSync sync = {.options = options,
                         .zero = places[FLAT_SHARED].n_ranks > 1 ? zero_of(options) : 0,
                         .precision = precision,
                         .array = *array};
    if (places[FLAT_SHARED].n_ranks > 1) sync.comm[FLAT_SHARED] = mesh_sums(options->mesh);
    if (places[FLAT_EXPERTS].n_ranks > 1) sync.comm[FLAT_EXPERTS] = mesh_expert_sums(options->mesh);
    sync.strategy = gradient_strategy(sync.zero);
    sync.partition = partition_build(arena, array->piece, array->n_pieces, places, options->bucket_bytes,
                                     sync.strategy->shards_weights);
    plan_maps(&sync, places, arena);
    sync.slices = ARENA_ARRAY(arena, UpdateSlice, sync.partition.n_units + 1);
    sync.slice_unit = ARENA_ARRAY(arena, int, sync.partition.n_units + 1);
    sync.gathers = ARENA_ARRAY(arena, const Node *, sync.partition.n_units + 1);
    return sync;
}

Place gradient_sync_place(const GradientSync *sync, Place wished) {
    return sync->strategy->shards_gradients ? PLACE_ACTIVATION : wished;
}

/* ---- the passes */

bool sync_has_parts(const GradientSync *sync, const Graph *graph) {
    const Mesh *mesh = sync->options->mesh;
    return (mesh && mesh->shape.size[AXIS_PP] > 1) || order_has_parts(graph);
}

/* Ranks that sum together have to leave out the same: what all share is counted first, which they have alike
 * whatever experts they have. */
bool sync_leaves_out(const GradientSync *sync, int unit) {
    const Partition *partition = &sync->partition;
    int n[N_FLAT_GROUPS] = {0}, index = 0, number = sync->options->left_out - 1;
    FlatGroup group = partition->unit[unit].group;
    for (int i = 0; i < partition->n_units; i++) {
        if (i == unit) index = n[group];
        n[partition->unit[i].group]++;
    }
    if (number < 0 || !sync->comm[group]) return false;
    int n_shared = n[FLAT_SHARED], n_experts = sync->comm[FLAT_EXPERTS] ? n[FLAT_EXPERTS] : 0;
    bool is_of_experts = n_experts && number >= n_shared;
    if (is_of_experts != (group == FLAT_EXPERTS)) return false;
    int n_here = is_of_experts ? n_experts : n_shared;
    return n_here && index == (is_of_experts ? number - n_shared : number) % n_here;
}

/* This rank's slices of the weights, where they are not whole. */
static void hold_weights(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    if (sync->held) return;
    sync->held = sync->strategy->shards_weights
                     ? graph_tensor(graph, PLACE_PARAMETER, sync->precision.weight,
                                    SHAPE(sync->partition.n_local), "parameters (slices)")
                     : tensors->flat;
}

void gradient_sync_sum(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    if (!sync->comm[FLAT_SHARED] || sync->options->is_async || !sync->strategy->sum) return;
    sync->strategy->sum(sync, graph, tensors);
}

/* The norm is of all elements of the model: of other slices, experts, layers' parts and stages. Where nothing
 * is sliced, the first rank of ep counts what all of them have (only_experts_count). Stages that update on
 * their own have a norm each; but those that hold a tied table make the same update of it, and so have one
 * together. */
static void sum_near(void *context, Graph *graph, Tensor *scalar) {
    const GradientSync *sync = context;
    const Mesh *mesh = sync->options->mesh;
    if (sync->strategy->begin_update) op_scalar_sum(graph, sync->comm[FLAT_SHARED], scalar);
    else if (mesh->shape.size[AXIS_EP] > 1) op_scalar_sum(graph, mesh_comm(mesh, AXIS_EP), scalar);
    if (mesh->shape.size[AXIS_TP] > 1) op_scalar_sum(graph, mesh_comm(mesh, AXIS_TP), scalar);
    if (sync->options->stages_apart && mesh_ends(mesh)) op_scalar_sum(graph, mesh_ends(mesh), scalar);
}

/* The other stages, which are at other actions; NULL: there are none. */
static Comm *far_comm(const GradientSync *sync) {
    const Mesh *mesh = sync->options->mesh;
    return mesh->shape.size[AXIS_PP] > 1 && !sync->options->stages_apart ? mesh_comm(mesh, AXIS_PP) : NULL;
}

static void sum_norm(void *context, Graph *graph, Tensor *scalar) {
    Comm *far = far_comm(context);
    sum_near(context, graph, scalar);
    if (far) op_scalar_sum(graph, far, scalar);
}

/* A library that only enqueues cannot begin in one part of a program what another waits for: there all of it
 * is done where it is waited for. */
static const Node *begin_far(void *context, Graph *graph, Tensor *scalar) {
    Comm *far = far_comm(context);
    return far && !far->table->only_enqueues ? op_all_reduce(graph, far, scalar) : NULL;
}

static void end_far(void *context, Graph *graph, const Node *sum, Tensor *scalar) {
    Comm *far = far_comm(context);
    if (sum) op_comm_wait(graph, sum);
    else if (far) op_scalar_sum(graph, far, scalar);
}

/* Ranks that hold slices of the same tensors, then those of tp that hold other parts of them; a part that
 * several of those hold is counted by one. Stages have tensors of their own, and both ends of a pipeline sum
 * up a tied table for themselves. */
static void sum_tensors(void *context, Graph *graph, Tensor *sums, int64_t n_shared) {
    const GradientSync *sync = context;
    const Mesh *mesh = sync->options->mesh;
    int64_t n_columns = shape_columns(sums->shape), n_all = sums->shape.dim[0];
    const int64_t first[N_FLAT_GROUPS] = {0, n_shared}, n[N_FLAT_GROUPS] = {n_shared, n_all - n_shared};
    for (int group = 0; group < N_FLAT_GROUPS && sync->strategy->begin_update; group++) {
        if (sync->comm[group] && n[group])
            op_ordered_sum(
                graph, sync->comm[group],
                graph_view(graph, sums, SHAPE(n[group] * n_columns), first[group] * n_columns, sums->name));
    }
    if (mesh->shape.size[AXIS_TP] > 1) op_ordered_sum(graph, mesh_comm(mesh, AXIS_TP), sums);
}

/* A parameter lies in one unit. */
static void gather_array(void *context, Graph *graph, Tensor *array, int64_t flat_first) {
    const GradientSync *sync = context;
    int64_t n = tensor_count(array);
    int index = 0;
    while (index + 1 < sync->partition.n_units && sync->partition.unit[index + 1].first <= flat_first)
        index++;
    const PartitionUnit *unit = &sync->partition.unit[index];
    Comm *comm = sync->comm[unit->group];
    if (!comm) return;
    int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, comm->size + 1);
    for (int r = 0; r <= comm->size; r++) {
        int64_t at = unit->first + unit->border[r] - flat_first;
        border[r] = at < 0 ? 0 : at > n ? n : at;
    }
    op_comm_wait(graph, op_all_gather(graph, comm, array, border));
}

static void join_parts(void *context, Graph *graph, Tensor *whole) {
    const GradientSync *sync = context;
    op_comm_wait(graph, op_all_reduce(graph, mesh_comm(sync->options->mesh, AXIS_TP), whole));
}

/* There will be another update. */
static void end_first(void *context, Graph *graph) {
    GradientSync *sync = context;
    gradient_sync_end_update(sync, graph);
    sync->n_gathers = 0;
}

UpdateSlices gradient_sync_begin_update(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    UpdateSlices slices = {0};
    graph->section = SECTION_UPDATE;
    graph->block = NO_BLOCK;
    graph->chunk = 0;
    hold_weights(sync, graph, tensors);
    int regimes = graph->regimes;
    bool compresses = sync->options->compression.kind != COMPRESS_NONE && sync->comm[FLAT_SHARED];
    if (compresses) graph->regimes = REGIME_EXACT; /* else it is summed before (gradient_sync_pair) */
    sync_sum_pair(sync, graph, tensors, false);
    graph->regimes = regimes;
    if (sync->strategy->begin_update) sync->strategy->begin_update(sync, graph, tensors, &slices);
    if (sync->options->mesh) {
        slices.record_sum = sum_norm;
        slices.record_near_sum = sum_near;
        slices.record_far_sum = begin_far;
        slices.record_far_wait = end_far;
        slices.record_tensor_sums = sum_tensors;
        if (sync->strategy->begin_update) slices.record_gather = gather_array;
        if (sync->options->mesh->shape.size[AXIS_TP] > 1) slices.record_join = join_parts;
        slices.only_experts_count =
            !sync->strategy->begin_update && sync->options->mesh->coordinate[AXIS_EP] > 0;
    }
    slices.record_end = end_first;
    slices.context = sync;
    return slices;
}

void gradient_sync_pair(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    sync_sum_pair(sync, graph, tensors, true);
}

void gradient_sync_scalar(GradientSync *sync, Graph *graph, Tensor *scalar) {
    const Mesh *mesh = sync->options->mesh;
    if (sync->comm[FLAT_SHARED]) op_scalar_sum(graph, sync->comm[FLAT_SHARED], scalar);
    if (mesh->shape.size[AXIS_TP] > 1) op_scalar_sum(graph, mesh_comm(mesh, AXIS_TP), scalar);
    if (mesh->shape.size[AXIS_PP] > 1) op_scalar_sum(graph, mesh_comm(mesh, AXIS_PP), scalar);
}

void gradient_sync_end_update(GradientSync *sync, Graph *graph) {
    if (sync->strategy->end_update) sync->strategy->end_update(sync, graph);
}

void gradient_sync_gather(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    hold_weights(sync, graph, tensors); /* an evaluation has no update */
    if (sync->strategy->gather) sync->strategy->gather(sync, graph, tensors);
}
