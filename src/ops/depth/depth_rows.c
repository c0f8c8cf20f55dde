/* depth_gather and depth_scatter: the rows that pass a block are taken out of the stream, and what the block
 * makes of them is added to it, times the gate.
 *
 * The gate is the router's score, x · router, so its gradient goes to both. It is known of chosen rows alone,
 * and so the router's gradient is made of these: nobody has to keep the stream for it. */
#include "ops/depth/depth.h"
#include "ops/reference.h"

static bool check_rows(Graph *graph, const char *op, const Tensor *x, const DepthRows *rows) {
    return graph_check(graph,
                       rows->rows->dtype == DTYPE_I32 && rows->slot->dtype == DTYPE_I32 &&
                           rows->rows->shape.n_dims == 2 && rows->slot->shape.n_dims == 2 &&
                           rows->rows->shape.dim[0] == rows->slot->shape.dim[0],
                       "%s: rows and slots of %s must be i32 of shapes (B,K) and (B,T)", op, x->name);
}

/* Sizes of a call: rows of x that are here, sequences, positions, chosen ones, channels. */
typedef struct {
    int64_t N, B, T, K, C;
} Sizes;

static Sizes sizes_of(const Tensor *x, const Tensor *rows, const Tensor *slot) {
    return (Sizes){.N = shape_rows(x->shape),
                   .B = rows->shape.dim[0],
                   .T = slot->shape.dim[1],
                   .K = rows->shape.dim[1],
                   .C = shape_columns(x->shape)};
}

/* The row of x behind chosen row i of B·K; -1: another rank's. */
static int64_t row_of(const Node *node, const Sizes *s, const int32_t *rows, int64_t i) {
    const DepthRowsAttributes *a = node->attributes;
    return depth_row_here(a->first_row, s->N, s->T, i / s->K, rows[i]);
}

/* ---- gather ---- */

DepthChosen op_depth_gather(Graph *graph, Tensor *x, Tensor *score, const DepthRows *rows, Tensor *router,
                            int64_t first_row) {
    DepthChosen made = {graph->nothing, graph->nothing};
    int64_t C = shape_columns(x->shape);
    if (!check_rows(graph, "depth_gather", x, rows) ||
        !graph_check(graph, shape_count(score->shape) == shape_count(rows->slot->shape),
                     "depth_gather: %s wants a score a position", score->name) ||
        !graph_check(graph, tensor_count(router) == C, "depth_gather: %s wants a number a channel of %s",
                     router->name, x->name))
        return made;
    DepthRowsAttributes attributes = {first_row};
    int64_t B = rows->rows->shape.dim[0], K = rows->rows->shape.dim[1];
    made.chosen = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, SHAPE(B, K, C), "%s.chosen", x->name);
    made.gate = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(B, K), "%s.gate", x->name);
    graph_record(graph, &OP_DEPTH_GATHER, &attributes, sizeof attributes, 5,
                 TENSORS(x, score, rows->rows, rows->slot, router), 2, TENSORS(made.chosen, made.gate));
    return made;
}

static void gather_gradient(Autograd *autograd, const Node *node) {
    Tensor *dchosen = autograd_gradient(autograd, node->output[0]);
    Tensor *dgate = autograd_gradient(autograd, node->output[1]);
    Tensor *x = node->input[0], *rows = node->input[2], *slot = node->input[3], *router = node->input[4];
    if (dchosen || dgate)
        autograd_record(autograd, &OP_DEPTH_GATHER_BACKWARD, node->attributes, node->attributes_bytes, 5,
                        TENSORS(dchosen, dgate, router, rows, slot), 1, TENSORS(x));
    if (dgate)
        autograd_record(autograd, &OP_DEPTH_ROUTER_GRADIENT, NULL, 0, 2, TENSORS(dgate, node->output[0]), 1,
                        TENSORS(router));
}

/* Chosen rows are read and written, and a number of each. */
static double gather_bytes(const Node *node) {
    return 2.0 * (double)tensor_bytes(node->output[0]) + 3.0 * (double)tensor_bytes(node->output[1]);
}

static Status gather_reference(const KernelCall *call, Error *error) {
    (void)error;
    const Node *node = call->node;
    Sizes s = sizes_of(node->input[0], node->input[2], node->input[3]);
    const float *x = call->in[0], *score = call->in[1]; /* (N,C), (B,T) */
    const int32_t *rows = call->in[2];                  /* (B,K) */
    float *chosen = call->out[0], *gate = call->out[1]; /* (B,K,C), (B,K) */
    for (int64_t i = 0; i < s.B * s.K; i++) {
        int64_t row = row_of(node, &s, rows, i);
        for (int64_t c = 0; c < s.C; c++)
            reference_write(&chosen[i * s.C + c], row < 0 ? 0.0f : x[row * s.C + c], call->add[0]);
        reference_write(&gate[i], score[i / s.K * s.T + rows[i]], call->add[1]);
    }
    return STATUS_OK;
}

const Op OP_DEPTH_GATHER = {
    .name = "depth_gather",
    .gradient = gather_gradient,
    .bytes = gather_bytes,
    .reference = gather_reference,
};

/* A product and a sum of a channel. */
static double gather_backward_flops(const Node *node) {
    const Tensor *rows = node->input[3];
    return 3.0 * (double)tensor_count(rows) * (double)shape_columns(node->output[0]->shape);
}

/* Where it adds, rows that went by are not touched. */
static double gather_backward_bytes(const Node *node) {
    double chosen = (double)tensor_count(node->input[3]) * (double)shape_columns(node->output[0]->shape) *
                    (double)dtype_info(node->output[0]->dtype)->n_bytes;
    return node->write[0] == WRITE_FRESH ? chosen + (double)tensor_bytes(node->output[0]) : 3.0 * chosen;
}

static Status gather_backward_reference(const KernelCall *call, Error *error) {
    (void)error;
    const Node *node = call->node;
    const DepthRowsAttributes *a = node->attributes;
    Sizes s = sizes_of(node->output[0], node->input[3], node->input[4]);
    const float *dchosen = call->in[0], *dgate = call->in[1], *router = call->in[2]; /* (B,K,C), (B,K), (C) */
    const int32_t *slot = call->in[4];                                               /* (B,T) */
    float *dx = call->out[0];                                                        /* (N,C) */
    for (int64_t n = 0; n < s.N; n++) {
        int64_t at = a->first_row + n, j = slot[at] < 0 ? -1 : at / s.T * s.K + slot[at];
        for (int64_t c = 0; c < s.C; c++) {
            double sum = j >= 0 && dchosen ? (double)dchosen[j * s.C + c] : 0.0;
            if (j >= 0 && dgate) sum += (double)dgate[j] * (double)router[c];
            reference_write(&dx[n * s.C + c], (float)sum, call->add[0]);
        }
    }
    return STATUS_OK;
}

const Op OP_DEPTH_GATHER_BACKWARD = {
    .name = "depth_gather_backward",
    .flops = gather_backward_flops,
    .bytes = gather_backward_bytes,
    .reference = gather_backward_reference,
};

static double router_gradient_flops(const Node *node) {
    return 2.0 * (double)tensor_count(node->input[1]);
}

static Status router_gradient_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *dgate = call->in[0], *chosen = call->in[1]; /* (N), (N,C) */
    float *drouter = call->out[0];                           /* (C) */
    int64_t N = shape_rows(call->node->input[1]->shape), C = shape_columns(call->node->input[1]->shape);
    for (int64_t c = 0; c < C; c++) {
        double sum = 0.0;
        for (int64_t n = 0; n < N; n++) sum += (double)dgate[n] * (double)chosen[n * C + c];
        reference_write(&drouter[c], (float)sum, call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_DEPTH_ROUTER_GRADIENT = {
    .name = "depth_router_gradient",
    .flops = router_gradient_flops,
    .reference = router_gradient_reference,
};

/* ---- scatter ---- */

Tensor *op_depth_scatter(Graph *graph, Tensor *x, Tensor *made, Tensor *gate, const DepthRows *rows,
                         int64_t first_row) {
    int64_t C = shape_columns(x->shape), count = tensor_count(rows->rows);
    if (!check_rows(graph, "depth_scatter", x, rows) ||
        !graph_check(graph, tensor_count(made) == count * C && made->dtype == x->dtype,
                     "depth_scatter: %s wants a row of %s's for each that was chosen", made->name, x->name) ||
        !graph_check(graph, tensor_count(gate) == count && gate->dtype == DTYPE_F32,
                     "depth_scatter: %s wants a number a chosen row", gate->name))
        return graph->nothing;
    DepthRowsAttributes attributes = {first_row};
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, x->shape, "%s.deeper", x->name);
    graph_record(graph, &OP_DEPTH_SCATTER, &attributes, sizeof attributes, 5,
                 TENSORS(x, made, gate, rows->rows, rows->slot), 1, TENSORS(y));
    return y;
}

static void scatter_gradient(Autograd *autograd, const Node *node) {
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    Tensor *made = node->input[1], *gate = node->input[2];
    if (!dy) return;
    autograd_share(autograd, node->input[0], dy);
    autograd_record(autograd, &OP_DEPTH_SCATTER_BACKWARD, node->attributes, node->attributes_bytes, 5,
                    TENSORS(dy, made, gate, node->input[3], node->input[4]), 2, TENSORS(made, gate));
}

static double scatter_flops(const Node *node) {
    return 2.0 * (double)tensor_count(node->input[1]);
}

/* In place, rows that go by are not touched; else all are copied. */
static double scatter_bytes(const Node *node) {
    return 3.0 * (double)tensor_bytes(node->input[1]) + (double)tensor_bytes(node->input[2]);
}

static int scatter_in_place(const Node *node, int output) {
    (void)node, (void)output;
    return 0;
}

static Status scatter_reference(const KernelCall *call, Error *error) {
    (void)error;
    const Node *node = call->node;
    const DepthRowsAttributes *a = node->attributes;
    Sizes s = sizes_of(node->input[0], node->input[3], node->input[4]);
    const float *x = call->in[0], *made = call->in[1], *gate = call->in[2]; /* (N,C), (B,K,C), (B,K) */
    const int32_t *slot = call->in[4];                                      /* (B,T) */
    float *y = call->out[0];                                                /* (N,C) */
    for (int64_t n = 0; n < s.N; n++) {
        int64_t at = a->first_row + n, j = slot[at] < 0 ? -1 : at / s.T * s.K + slot[at];
        for (int64_t c = 0; c < s.C; c++) {
            double sum = (double)x[n * s.C + c];
            if (j >= 0) sum += (double)gate[j] * (double)made[j * s.C + c];
            reference_write(&y[n * s.C + c], (float)sum, call->add[0]);
        }
    }
    return STATUS_OK;
}

const Op OP_DEPTH_SCATTER = {
    .name = "depth_scatter",
    .gradient = scatter_gradient,
    .flops = scatter_flops,
    .bytes = scatter_bytes,
    .in_place = scatter_in_place,
    .reference = scatter_reference,
};

static double scatter_backward_flops(const Node *node) {
    return 3.0 * (double)tensor_count(node->input[1]);
}

static double scatter_backward_bytes(const Node *node) {
    return 3.0 * (double)tensor_bytes(node->input[1]) + 2.0 * (double)tensor_bytes(node->input[2]);
}

static Status scatter_backward_reference(const KernelCall *call, Error *error) {
    (void)error;
    const Node *node = call->node;
    Sizes s = sizes_of(node->input[0], node->input[3], node->input[4]);
    const float *dy = call->in[0], *made = call->in[1], *gate = call->in[2]; /* (N,C), (B,K,C), (B,K) */
    const int32_t *rows = call->in[3];                                       /* (B,K) */
    float *dmade = call->out[0], *dgate = call->out[1];                      /* (B,K,C), (B,K) */
    for (int64_t i = 0; i < s.B * s.K; i++) {
        int64_t row = row_of(node, &s, rows, i);
        double sum = 0.0;
        for (int64_t c = 0; c < s.C; c++) {
            double d = row < 0 ? 0.0 : (double)dy[row * s.C + c];
            sum += d * (double)made[i * s.C + c];
            if (dmade) reference_write(&dmade[i * s.C + c], (float)(d * (double)gate[i]), call->add[0]);
        }
        if (dgate) reference_write(&dgate[i], (float)sum, call->add[1]);
    }
    return STATUS_OK;
}

const Op OP_DEPTH_SCATTER_BACKWARD = {
    .name = "depth_scatter_backward",
    .flops = scatter_backward_flops,
    .bytes = scatter_backward_bytes,
    .reference = scatter_backward_reference,
};
