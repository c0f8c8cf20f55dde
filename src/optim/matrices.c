/* Updates that take the matrices of blocks as a whole. Element by element a rank makes the direction of what
 * it updates; the ranks that share a matrix put theirs together (slices of ZeRO are gathered, parts of tp
 * added up, each with 0 where it has nothing); every one of them transforms the whole, and takes its own part
 * of the step. The work on a matrix is the same on all of its ranks, and so are the bits.
 *
 * Query, key and value weights are three matrices on top of each other and SwiGLU's halves two; every expert
 * is one by itself. */
#include "optim/updates.h"

#include "ops/ops.h"

#include <math.h>

bool matrices_include(const Optimizer *optimizer, const Parameter *parameter) {
    if (!optimizer->matrices) return false;
    switch (parameter->role) {
    case ROLE_QKV_WEIGHT:
    case ROLE_ATTENTION_OUT_WEIGHT:
    case ROLE_FC_WEIGHT:
    case ROLE_PROJ_WEIGHT:
    case ROLE_EXPERT_FC_WEIGHT:
    case ROLE_EXPERT_PROJ_WEIGHT: return true;
    default: return false;
    }
}

/* ---- which matrices a parameter is ---- */

/* The tensor that the ranks of tp hold parts of: with ep, of this rank's experts. */
static Shape whole_of(const Parameter *parameter) {
    Shape whole = parameter->whole;
    if (role_is_of_experts(parameter->role)) whole.dim[0] = parameter->shape.dim[0];
    return whole;
}

/* Rows of each matrix of a parameter, at most three kinds; `n_times` over. */
typedef struct {
    int n;
    int64_t rows[3], columns, n_times;
} Matrices;

static Matrices matrices_of(const ParameterTable *table, const Parameter *parameter) {
    Shape whole = whole_of(parameter);
    int64_t rows = whole.dim[whole.n_dims - 2], columns = shape_columns(whole);
    Matrices matrices = {.n = 1, .rows = {rows}, .columns = columns, .n_times = 1};
    for (int i = 0; i < whole.n_dims - 2; i++) matrices.n_times *= whole.dim[i];
    if (parameter->role == ROLE_QKV_WEIGHT && rows > columns) {
        int64_t keys = (rows - columns) / 2; /* as many queries as channels */
        matrices = (Matrices){3, {rows - 2 * keys, keys, keys}, columns, 1};
    }
    if (parameter->role == ROLE_FC_WEIGHT) {
        const Parameter *proj = parameter_find(table, ROLE_PROJ_WEIGHT, parameter->block);
        if (proj && rows == 2 * shape_columns(proj->whole))
            matrices = (Matrices){2, {rows / 2, rows / 2}, columns, 1};
    }
    return matrices;
}

/* ---- memory ---- */

typedef struct {
    int64_t here, whole, matrix, square;
} MatrixSizes;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static MatrixSizes largest(const ParameterTable *table, const Optimizer *optimizer) {
    MatrixSizes most = {0};
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        if (!matrices_include(optimizer, parameter)) continue;
        Matrices matrices = matrices_of(table, parameter);
        most.here = larger(most.here, shape_count(parameter->shape));
        most.whole = larger(most.whole, shape_count(whole_of(parameter)));
        for (int k = 0; k < matrices.n; k++) {
            int64_t side = matrices.rows[k] < matrices.columns ? matrices.rows[k] : matrices.columns;
            most.matrix = larger(most.matrix, matrices.rows[k] * matrices.columns);
            most.square = larger(most.square, side * side);
        }
    }
    return most;
}

static Tensor *room_of(Graph *graph, DType dtype, int64_t n, const char *name) {
    return graph_tensor(graph, PLACE_STATE, dtype, SHAPE(n), "%s", name);
}

/* Matrix units take bf16 at their full rate, and five steps from 16 bits are near enough. f16 has too few
 * exponents for small numbers. */
MatrixRoom matrices_room(const ParameterTable *table, const Optimizer *optimizer, Precision precision,
                         bool is_joined, Graph *graph) {
    MatrixSizes most = largest(table, optimizer);
    DType dtype = precision.weight == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    return (MatrixRoom){.inner = {.x = room_of(graph, dtype, most.matrix, "matrix 1"),
                                  .y = room_of(graph, dtype, most.matrix, "matrix 2"),
                                  .square1 = room_of(graph, dtype, most.square, "matrix squared 1"),
                                  .square2 = room_of(graph, dtype, most.square, "matrix squared 2"),
                                  .total = room_of(graph, DTYPE_F32, 1, "squares")},
                        .direction = room_of(graph, DTYPE_F32, most.here, "direction"),
                        .whole = is_joined ? room_of(graph, DTYPE_F32, most.whole, "whole direction") : NULL,
                        .step = room_of(graph, dtype, most.whole, "step"),
                        .local = is_joined ? room_of(graph, dtype, most.here, "step here") : NULL};
}

/* ---- recording ---- */

static Tensor *first_of(Graph *graph, Tensor *room, int64_t n) {
    return graph_view(graph, room, SHAPE(n), 0, room->name);
}

/* What slices have of the parameter. */
static void record_elements(const Updates *updates, UpdatePass pass, Tensor *factor,
                            const Parameter *parameter, Tensor *array) {
    const UpdateSlices *slices = updates->slices;
    for (int i = 0; i < slices->n_slices; i++) {
        const UpdateSlice *slice = &slices->slice[i];
        int64_t begin = parameter->flat_offset, first = begin, end = begin + tensor_count(array);
        if (first < slice->flat_first) first = slice->flat_first;
        if (end > slice->flat_first + slice->n) end = slice->flat_first + slice->n;
        if (first >= end) continue;
        updates_record_elements(updates, pass, factor, slice, parameter, first, end, array);
    }
}

/* Between this rank's part of a tensor and the whole: its boxes, one behind the other. Only owners put theirs
 * in, so that nothing is counted twice. */
static void record_boxes(Graph *graph, const Parameter *parameter, Tensor *here, Tensor *whole, bool takes) {
    int64_t at = 0;
    for (int i = 0; i < parameter->shard.n_boxes; i++) {
        const ShardBox *shard = &parameter->shard.box[i];
        BoxAttributes attributes = {.box = shard->box, .whole = whole_of(parameter), .takes = takes};
        int64_t n = shape_count(shard->box.shape);
        if (role_is_of_experts(parameter->role)) attributes.box.offset[0] = 0;
        Tensor *part = graph_view(graph, here, SHAPE(n), at, here->name);
        if (n && takes) op_box(graph, whole, part, &attributes);
        else if (n && shard->is_owner) op_box(graph, part, whole, &attributes);
        at += n;
    }
}

static void record_transform(const Updates *updates, const Parameter *parameter, Tensor *from, Tensor *to) {
    Matrices matrices = matrices_of(updates->table, parameter);
    Graph *graph = updates->graph;
    int64_t at = 0;
    for (int64_t time = 0; time < matrices.n_times; time++) {
        for (int k = 0; k < matrices.n; k++) {
            int64_t n = matrices.rows[k] * matrices.columns;
            Shape shape = SHAPE(matrices.rows[k], matrices.columns);
            if (n)
                updates->optimizer->matrices->transform(
                    updates->options, graph_view(graph, from, shape, at, from->name),
                    graph_view(graph, to, shape, at, to->name), matrices.rows[k], matrices.columns,
                    &updates->room.inner, graph);
            at += n;
        }
    }
}

static void record_matrix(const Updates *updates, Tensor *factor, const Parameter *parameter) {
    const UpdateSlices *slices = updates->slices;
    const MatrixRoom *room = &updates->room;
    Graph *graph = updates->graph;
    int64_t n_here = shape_count(parameter->shape), n_whole = shape_count(whole_of(parameter));
    bool is_cut = parameter->rule != SHARD_NONE && parameter->rule != SHARD_ALIKE;
    bool joins = slices->record_join && is_cut;
    if (!n_whole || (!n_here && !joins)) return;
    Tensor *direction = first_of(graph, room->direction, n_here), *whole = direction;
    Tensor *step = first_of(graph, room->step, n_whole), *local = step;
    record_elements(updates, PASS_DIRECT, factor, parameter, direction);
    if (slices->record_gather && n_here)
        slices->record_gather(slices->context, graph, direction, parameter->flat_offset);
    if (joins) {
        whole = first_of(graph, room->whole, n_whole);
        op_zero(graph, whole);
        record_boxes(graph, parameter, direction, whole, false);
        slices->record_join(slices->context, graph, whole);
    }
    record_transform(updates, parameter, whole, step);
    if (joins) {
        local = first_of(graph, room->local, n_here);
        record_boxes(graph, parameter, local, step, true);
    }
    record_elements(updates, PASS_MOVE, factor, parameter, local);
}

void matrices_record(const Updates *updates, Tensor *factor) {
    for (int i = 0; i < updates->table->n_parameters; i++)
        if (matrices_include(updates->optimizer, &updates->table->parameter[i]))
            record_matrix(updates, factor, &updates->table->parameter[i]);
}
