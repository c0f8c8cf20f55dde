/* gather: y = x[rows]. Inference takes the last row of each prompt with it before the large product with the
 * vocabulary. No gradient flows through. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <string.h>

Tensor *op_gather(Graph *graph, Tensor *x, Tensor *rows) {
    if (!graph_check(graph, x->shape.n_dims >= 1, "gather: %s has no rows", x->name) ||
        !graph_check(graph, rows->dtype == DTYPE_I32 && rows->shape.n_dims == 1,
                     "gather: rows %s must be i32 of shape (M)", rows->name)) {
        return graph->nothing;
    }
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype,
                             SHAPE(tensor_count(rows), shape_columns(x->shape)), "%s.gather", x->name);
    graph_record(graph, &OP_GATHER, NULL, 0, 2, TENSORS(x, rows), 1, TENSORS(y));
    y->needs_gradient = false;
    return y;
}

/* Only the named rows are read. */
static double gather_bytes(const Node *node) {
    return (double)tensor_bytes(node->input[1]) + 2.0 * (double)tensor_bytes(node->output[0]);
}

static Status gather_reference(const KernelCall *call, Error *error) {
    const float *x = call->in[0];      /* (N,C) */
    const int32_t *rows = call->in[1]; /* (M) */
    float *y = call->out[0];           /* (M,C) */
    int64_t n_rows = shape_rows(call->node->input[0]->shape),
            columns = shape_columns(call->node->input[0]->shape);
    int64_t count = tensor_count(call->node->input[1]);
    for (int64_t m = 0; m < count; m++) {
        if (rows[m] < 0 || rows[m] >= n_rows) {
            return error_failed(error, "gather: row %d of a tensor of %lld rows", rows[m], (long long)n_rows);
        }
        memcpy(y + m * columns, x + rows[m] * columns, sizeof(float) * (size_t)columns);
    }
    return STATUS_OK;
}

const Op OP_GATHER = {
    .name = "gather",
    .bytes = gather_bytes,
    .reference = gather_reference,
};
