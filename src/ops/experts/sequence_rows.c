/* sequence_rows: this rank's rows at their places in whole sequences, and back. Sums over the ranks of cp
 * make whole sequences of what each has placed, since all others have 0 there. */
#include "ops/experts/experts.h"

#include "ops/reference.h"

#include <string.h>

static Tensor *record_rows(Graph *graph, Tensor *x, const SequenceRowsAttributes *a) {
    int64_t from = a->inverse ? a->n_positions : a->n_rows, to = a->inverse ? a->n_rows : a->n_positions;
    if (!graph_check(graph, shape_rows(x->shape) == a->n_sequences * from,
                     "sequence_rows: %s is not %lld rows of %lld sequences", x->name, (long long)from,
                     (long long)a->n_sequences) ||
        !graph_check(graph, x->dtype == DTYPE_F32 || x->dtype == DTYPE_I32,
                     "sequence_rows: %s must be f32 or i32", x->name) ||
        !graph_check(graph, !a->n_rows || row_place(&a->positions, a->n_rows - 1) < a->n_positions,
                     "sequence_rows: rows of %s lie behind the sequence", x->name))
        return graph->nothing;
    Tensor *y =
        graph_tensor(graph, PLACE_ACTIVATION, x->dtype, SHAPE(a->n_sequences * to, shape_columns(x->shape)),
                     "%s.%s", x->name, a->inverse ? "own" : "placed");
    graph_record(graph, &OP_SEQUENCE_ROWS, a, sizeof *a, 1, TENSORS(x), 1, TENSORS(y));
    if (x->dtype == DTYPE_I32) y->needs_gradient = false;
    return y;
}

Tensor *op_place_rows(Graph *graph, Tensor *x, int64_t n_sequences, int64_t n_positions,
                      RowPositions positions) {
    SequenceRowsAttributes attributes = {.n_sequences = n_sequences,
                                         .n_rows = n_sequences ? shape_rows(x->shape) / n_sequences : 0,
                                         .n_positions = n_positions,
                                         .positions = positions};
    return record_rows(graph, x, &attributes);
}

Tensor *op_take_rows(Graph *graph, Tensor *x, int64_t n_sequences, int64_t n_rows, RowPositions positions) {
    SequenceRowsAttributes attributes = {.n_sequences = n_sequences,
                                         .n_rows = n_rows,
                                         .n_positions = n_sequences ? shape_rows(x->shape) / n_sequences : 0,
                                         .positions = positions,
                                         .inverse = true};
    return record_rows(graph, x, &attributes);
}

static void rows_gradient(Autograd *autograd, const Node *node) {
    SequenceRowsAttributes back = *(const SequenceRowsAttributes *)node->attributes;
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    back.inverse = !back.inverse;
    autograd_record(autograd, &OP_SEQUENCE_ROWS, &back, sizeof back, 1, TENSORS(dy), 1,
                    TENSORS(node->input[0]));
}

/* Added, it is of f32: a gradient. */
static void write_row(const KernelCall *call, int64_t to, const void *from, size_t n_bytes) {
    char *row = (char *)call->out[0] + (size_t)to * n_bytes;
    int64_t n = (int64_t)(n_bytes / sizeof(float));
    if (!call->add[0] && from) memcpy(row, from, n_bytes);
    else if (!call->add[0]) memset(row, 0, n_bytes);
    else
        for (int64_t i = 0; from && i < n; i++) ((float *)(void *)row)[i] += ((const float *)from)[i];
}

static Status rows_reference(const KernelCall *call, Error *error) {
    (void)error;
    const SequenceRowsAttributes *a = call->node->attributes;
    const char *x = call->in[0];
    size_t n_bytes = (size_t)shape_columns(call->node->input[0]->shape) * sizeof(float);
    for (int64_t b = 0; b < a->n_sequences; b++) {
        for (int64_t t = 0; a->inverse && t < a->n_rows; t++)
            write_row(call, b * a->n_rows + t,
                      x + (size_t)(b * a->n_positions + row_place(&a->positions, t)) * n_bytes, n_bytes);
        for (int64_t place = 0; !a->inverse && place < a->n_positions; place++) {
            int64_t t = row_at_place(&a->positions, a->n_rows, place);
            write_row(call, b * a->n_positions + place,
                      t < 0 ? NULL : x + (size_t)(b * a->n_rows + t) * n_bytes, n_bytes);
        }
    }
    return STATUS_OK;
}

const Op OP_SEQUENCE_ROWS = {
    .name = "sequence_rows",
    .gradient = rows_gradient,
    .reference = rows_reference,
};
