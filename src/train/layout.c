/* The passes of parallel/ know graphs and flat arrays; this file knows the model's table, and calls them in the order in which
 * the step is recorded. */
#include "train/layout.h"

#include "parallel/comm_ops.h"

#include <stdio.h>

void layout_share(const Layout *layout, int64_t n, int64_t *first, int64_t *end) {
    int rank = layout->data ? layout->data->rank : 0, size = layout_n_shares(layout);
    int share = layout->is_loose ? layout->share : rank;
    *first = n / size * share + n % size * share / size;
    *end = n / size * (share + 1) + n % size * (share + 1) / size;
}

/* Bytes a parameter of each kind. */
typedef struct {
    int weight, gradient, optimizer;
} StateBytes;

static StateBytes state_bytes(Precision precision, int n_moments) {
    int moment = (int)dtype_info(precision.moment)->n_bytes;
    return (StateBytes){.weight = (int)dtype_info(precision.weight)->n_bytes,
                        .gradient = (int)dtype_info(precision.gradient)->n_bytes,
                        .optimizer = n_moments * moment + (precision.has_master ? 4 : 0)};
}

/* What is cut up of those, and what is not. */
static void split_bytes(const Layout *layout, Precision precision, int n_moments, int *whole, int *cut) {
    StateBytes bytes = state_bytes(precision, n_moments);
    *cut = layout->zero >= 1 ? bytes.optimizer : 0;
    if (layout->zero >= 2) *cut += bytes.gradient;
    if (layout->zero >= 3) *cut += bytes.weight;
    *whole = bytes.weight + bytes.gradient + bytes.optimizer - *cut;
}

double layout_formula_bytes(const Layout *layout, Precision precision, int64_t n_parameters, int n_moments) {
    int whole, cut;
    split_bytes(layout, precision, n_moments, &whole, &cut);
    return ((double)whole + (double)cut / layout_n_shares(layout)) * (double)n_parameters;
}

const char *layout_formula(const Layout *layout, Precision precision, int n_moments, char *text,
                           size_t n_bytes) {
    int whole, cut;
    split_bytes(layout, precision, n_moments, &whole, &cut);
    if (!cut) snprintf(text, n_bytes, "%dΨ", whole);
    else if (!whole) snprintf(text, n_bytes, "%dΨ/%d", cut, layout_n_shares(layout));
    else snprintf(text, n_bytes, "%dΨ + %dΨ/%d", whole, cut, layout_n_shares(layout));
    return text;
}

SpreadModel spread_plan(const Layout *layout, Precision precision, const ParameterTable *table,
                        Arena *arena) {
    int n_ranks = layout_n_ranks(layout), rank = n_ranks > 1 ? layout->data->rank : 0;
    SpreadModel spread = {
        .layout = layout, .precision = precision, .zero = n_ranks > 1 ? layout->zero : 0, .table = table};
    spread.pieces = parameters_pieces(table, arena);
    spread.partition = partition_build(arena, spread.pieces, table->n_parameters, rank, n_ranks,
                                       layout->bucket_bytes, spread.zero == 3);
    spread.data =
        (DataParallel){.comm = layout->data, .overlaps = layout->overlaps, .left_out = layout->left_out};
    ShardMap whole = shard_map_whole(table->n_flat_elements, arena);
    ShardMap share = shard_map_share(spread.pieces, table->n_parameters, rank, n_ranks, arena);
    ShardMap slices = partition_map(&spread.partition, arena);
    spread.parameters = spread.zero == 3 ? slices : whole;
    spread.parameters_saved = spread.zero == 3 || (spread.zero && precision.has_master) ? slices : share;
    spread.moments = spread.zero >= 1 ? slices : whole;
    spread.moments_saved = spread.zero >= 1 ? slices : share;
    if (layout->root_saves) {
        ShardMap nothing = {.run = share.run, .n_local = table->n_flat_elements};
        spread.parameters_saved = spread.moments_saved = rank == 0 ? whole : nothing;
    }
    spread.slices = ARENA_ARRAY(arena, UpdateSlice, spread.partition.n_units + 1);
    spread.slice_unit = ARENA_ARRAY(arena, int, spread.partition.n_units + 1);
    spread.gathers = ARENA_ARRAY(arena, const Node *, spread.partition.n_units + 1);
    return spread;
}

Place spread_gradient_place(const SpreadModel *spread, const OptimizerOptions *options) {
    return spread->zero >= 2 ? PLACE_ACTIVATION : optimizer_gradient_place(options);
}

void spread_gradients(SpreadModel *spread, Graph *graph, const ParameterTensors *parameters) {
    if (layout_n_ranks(spread->layout) == 1 || spread->layout->is_loose) return;
    if (spread->zero < 2) {
        data_parallel_sum(graph, &spread->data, &spread->partition, parameters->flat->gradient,
                          spread->zero == 1);
        return;
    }
    int n_pieces = spread->table->n_parameters;
    Tensor **gradients = ARENA_ARRAY(&graph->arena, Tensor *, n_pieces + 1);
    for (int i = 0; i < n_pieces; i++) gradients[i] = parameters->tensor[i]->gradient;
    spread->gradient_shard = graph_tensor(graph, PLACE_GRADIENT, spread->precision.gradient,
                                          SHAPE(spread->partition.n_local), "d parameters (slices)");
    zero_shard_gradients(graph, &spread->data, &spread->partition, spread->pieces, gradients,
                         spread->gradient_shard);
}

/* ---- the update */

/* Elements `first` .. of a unit's slice, in an array that holds the whole or only this rank's slices. */
static Tensor *slice_of(Graph *graph, Tensor *array, bool is_whole, const UpdateSlice *slice) {
    return graph_view(graph, array, SHAPE(slice->n), is_whole ? slice->flat_first : slice->local_first,
                      array->name);
}

static int make_slices(SpreadModel *spread, Graph *graph, Tensor *gradient) {
    int n_slices = 0;
    for (int i = 0; i < spread->partition.n_units; i++) {
        const PartitionUnit *unit = &spread->partition.unit[i];
        UpdateSlice slice = {.n = partition_slice_count(&spread->partition, i),
                             .flat_first = unit->first + partition_slice_first(&spread->partition, i),
                             .local_first = unit->local_first};
        if (!slice.n) continue;
        slice.gradient = slice_of(graph, gradient, spread->zero < 2, &slice);
        slice.parameter = slice_of(graph, spread->held, spread->zero < 3, &slice);
        spread->slice_unit[n_slices] = i;
        spread->slices[n_slices++] = slice;
    }
    return n_slices;
}

static void sum_scalar(void *context, Graph *graph, Tensor *scalar) {
    const SpreadModel *spread = context;
    op_scalar_sum(graph, spread->layout->data, scalar);
}

/* Collect every unit up to `end` that has not been yet: the rank may have no slice of some, but takes part. */
static void gather_up_to(SpreadModel *spread, Graph *graph, int end) {
    while (spread->n_gathers < end) {
        int unit = spread->n_gathers;
        Node *start = zero_gather_updated(graph, &spread->data, &spread->partition, unit, spread->held);
        if (!spread->layout->overlaps) op_comm_wait(graph, start);
        spread->gathers[spread->n_gathers++] = start;
    }
}

static void gather_updated(void *context, Graph *graph, int index) {
    SpreadModel *spread = context;
    gather_up_to(spread, graph, spread->slice_unit[index] + 1);
}

OptimizerTensors spread_update(SpreadModel *spread, const OptimizerOptions *options,
                               const ParameterTensors *parameters, Tensor *loss_scale, Graph *graph) {
    if (!spread->zero) {
        spread->held = parameters->flat;
        return optimizer_record(options, spread->precision, parameters, NULL, loss_scale, graph);
    }
    graph->section = SECTION_UPDATE;
    graph->block = NO_BLOCK;
    bool is_cut = spread->zero == 3;
    spread->held = is_cut ? graph_tensor(graph, PLACE_PARAMETER, spread->precision.weight,
                                         SHAPE(spread->partition.n_local), "parameters (slices)")
                          : parameters->flat;
    Tensor *gradient = spread->zero >= 2 ? spread->gradient_shard : parameters->flat->gradient;
    UpdateShare share = {.n_slices = make_slices(spread, graph, gradient),
                         .slice = spread->slices,
                         .n_local = spread->partition.n_local,
                         .record_sum = sum_scalar,
                         .record_updated = is_cut ? NULL : gather_updated,
                         .context = spread};
    OptimizerTensors tensors =
        optimizer_record(options, spread->precision, parameters, &share, loss_scale, graph);
    if (is_cut) return tensors;
    gather_up_to(spread, graph, spread->partition.n_units);
    for (int i = 0; i < spread->n_gathers && spread->layout->overlaps; i++)
        op_comm_wait(graph, spread->gathers[i]);
    return tensors;
}

void spread_parameters(SpreadModel *spread, Graph *graph, const ParameterTensors *parameters) {
    if (!spread->held) { /* an evaluation has no update */
        spread->held = spread->zero == 3
                           ? graph_tensor(graph, PLACE_PARAMETER, spread->precision.weight,
                                          SHAPE(spread->partition.n_local), "parameters (slices)")
                           : parameters->flat;
    }
    if (spread->zero < 3) return;
    zero_gather_parameters(graph, &spread->data, &spread->partition, parameters->flat, spread->held);
}
