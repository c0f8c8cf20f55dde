/* expert_gather and expert_scatter: tokens' rows to where their experts read them, and what comes of them
 * back, weighted. A row of x may be read by several experts, and each row of an expert belongs to one choice
 * of one token; so both directions are sums over a token's own choices, in their order, and no two of them
 * write to the same place. */
#include "ops/experts/experts.h"

#include "ops/reference.h"

Tensor *op_expert_gather(Graph *graph, Tensor *x, const ExpertOrder *order) {
    int64_t n_rows = tensor_count(order->source);
    if (!graph_check(graph, shape_rows(order->slot->shape) == shape_rows(x->shape),
                     "expert_gather: %s has choices for another number of rows", x->name))
        return graph->nothing;
    Tensor *rows = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, SHAPE(n_rows, shape_columns(x->shape)),
                                "%s.by expert", x->name);
    graph_record(graph, &OP_EXPERT_GATHER, NULL, 0, 4, TENSORS(x, order->slot, order->source, order->offsets),
                 1, TENSORS(rows));
    return rows;
}

static void gather_gradient(Autograd *autograd, const Node *node) {
    Tensor *drows = autograd_gradient(autograd, node->output[0]);
    if (!drows) return;
    autograd_record(autograd, &OP_EXPERT_GATHER_BACKWARD, NULL, 0, 2, TENSORS(drows, node->input[1]), 1,
                    TENSORS(node->input[0]));
}

static Status gather_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0];                                          /* (N,C) */
    const int32_t *source = call->in[2] /* (M) */, *offsets = call->in[3]; /* (E+1) */
    int64_t C = shape_columns(call->node->input[0]->shape), S = shape_columns(call->node->input[1]->shape);
    int64_t n_there = offsets[tensor_count(call->node->input[3]) - 1];
    float *rows = call->out[0]; /* (M,C) */
    for (int64_t m = 0; m < n_there; m++)
        for (int64_t c = 0; c < C; c++)
            reference_write(&rows[m * C + c], x[source[m] / S * C + c], call->add[0]);
    return STATUS_OK;
}

const Op OP_EXPERT_GATHER = {
    .name = "expert_gather",
    .gradient = gather_gradient,
    .reference = gather_reference,
    .again = op_repeat,
};

static double gather_backward_flops(const Node *node) {
    return (double)tensor_count(node->input[0]);
}

static Status gather_backward_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *drows = call->in[0];  /* (M,C) */
    const int32_t *slot = call->in[1]; /* (N,S) */
    float *dx = call->out[0];          /* (N,C) */
    int64_t C = shape_columns(call->node->input[0]->shape), S = shape_columns(call->node->input[1]->shape);
    for (int64_t i = 0; i < shape_rows(call->node->input[1]->shape) * C; i++) {
        double sum = 0.0;
        for (int64_t s = 0; s < S; s++) {
            int32_t m = slot[i / C * S + s];
            if (m >= 0) sum += (double)drows[m * C + i % C];
        }
        reference_write(&dx[i], (float)sum, call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_EXPERT_GATHER_BACKWARD = {
    .name = "expert_gather_backward",
    .flops = gather_backward_flops,
    .reference = gather_backward_reference,
};

/* ---- and back ---- */

Tensor *op_expert_scatter(Graph *graph, Tensor *made, Tensor *gates, const ExpertOrder *order, Shape shape) {
    if (!graph_check(graph,
                     gates->dtype == DTYPE_F32 && shape_equal(gates->shape, order->slot->shape) &&
                         shape_rows(made->shape) == tensor_count(order->source) &&
                         shape_rows(shape) == shape_rows(gates->shape) &&
                         shape_columns(shape) == shape_columns(made->shape),
                     "expert_scatter: %s, its gates and its rows do not fit together", made->name))
        return graph->nothing;
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, made->dtype, shape, "%s.weighted", made->name);
    graph_record(graph, &OP_EXPERT_SCATTER, NULL, 0, 5,
                 TENSORS(made, gates, order->slot, order->source, order->offsets), 1, TENSORS(y));
    return y;
}

static void scatter_gradient(Autograd *autograd, const Node *node) {
    Tensor *const *in = node->input, *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_record(autograd, &OP_EXPERT_SCATTER_BACKWARD, NULL, 0, 6,
                    TENSORS(dy, in[0], in[1], in[2], in[3], in[4]), 2, TENSORS(in[0], in[1]));
}

static double scatter_flops(const Node *node) {
    return 2.0 * (double)tensor_count(node->input[0]);
}

static Status scatter_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *made = call->in[0] /* (M,C) */, *gates = call->in[1] /* (N,S) */;
    const int32_t *slot = call->in[2]; /* (N,S) */
    float *y = call->out[0];           /* (N,C) */
    int64_t C = shape_columns(call->node->input[0]->shape), S = shape_columns(call->node->input[1]->shape);
    for (int64_t i = 0; i < shape_rows(call->node->input[1]->shape) * C; i++) {
        double sum = 0.0;
        for (int64_t s = 0; s < S; s++) {
            int32_t m = slot[i / C * S + s];
            if (m >= 0) sum += (double)gates[i / C * S + s] * (double)made[m * C + i % C];
        }
        reference_write(&y[i], (float)sum, call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_EXPERT_SCATTER = {
    .name = "expert_scatter",
    .gradient = scatter_gradient,
    .flops = scatter_flops,
    .reference = scatter_reference,
};

static double scatter_backward_flops(const Node *node) {
    return 3.0 * (double)tensor_count(node->input[1]);
}

static Status scatter_backward_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0] /* (N,C) */, *made = call->in[1] /* (M,C) */, *gates = call->in[2];
    const int32_t *slot = call->in[3];                               /* (N,S) */
    float *dmade = call->out[0] /* (M,C) */, *dgates = call->out[1]; /* (N,S) */
    int64_t C = shape_columns(call->node->input[1]->shape), S = shape_columns(call->node->input[2]->shape);
    for (int64_t i = 0; i < shape_rows(call->node->input[2]->shape) * S; i++) {
        const float *row = dy + i / S * C;
        double dot = 0.0;
        for (int64_t c = 0; c < C && slot[i] >= 0; c++) {
            if (dmade)
                reference_write(&dmade[slot[i] * C + c], (float)((double)gates[i] * (double)row[c]),
                                call->add[0]);
            dot += (double)row[c] * (double)made[slot[i] * C + c];
        }
        if (dgates) reference_write(&dgates[i], (float)dot, call->add[1]);
    }
    return STATUS_OK;
}

const Op OP_EXPERT_SCATTER_BACKWARD = {
    .name = "expert_scatter_backward",
    .flops = scatter_backward_flops,
    .reference = scatter_backward_reference,
};
