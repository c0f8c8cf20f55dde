/* depth_predict: how the predictor learns which rows are chosen. Its loss is apart from the model's: it moves
 * the predictor and nothing else, so the gradient is made at once, where the stream is at hand, and what the
 * backward does is to hand it on. */
#include "ops/depth/depth.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

void op_depth_predict(Graph *graph, const DepthPredictTensors *t, WriteMode mode,
                      const DepthPredictAttributes *attributes) {
    int64_t C = shape_columns(t->x->shape), N = shape_rows(t->x->shape);
    if (!graph_check(graph, tensor_count(t->guess) == N && t->slot->shape.n_dims == 2,
                     "depth_predict: %s wants a guess a row of %s", t->guess->name, t->x->name) ||
        !graph_check(graph, tensor_count(t->predictor) == C && tensor_count(t->bias) == 1,
                     "depth_predict: %s wants a number a channel of %s", t->predictor->name, t->x->name) ||
        !graph_check(graph, t->random->dtype == DTYPE_I32 && tensor_count(t->random) == N_RANDOM_WORDS,
                     "depth_predict: %s wants the words of a micro-batch", t->random->name))
        return;
    Tensor *dpredictor =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, t->predictor->shape, "%s.made", t->predictor->name);
    Tensor *dbias =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, t->bias->shape, "%s.made", t->bias->name);
    Node *node = graph_record(graph, &OP_DEPTH_PREDICT, attributes, sizeof *attributes, 7,
                              TENSORS(t->guess, t->x, t->slot, t->random, t->scale, t->predictor, t->bias), 4,
                              TENSORS(dpredictor, dbias, t->loss, t->hits));
    node->write[2] = node->write[3] = mode;
    dpredictor->needs_gradient = dbias->needs_gradient = false;
}

static void predict_gradient(Autograd *autograd, const Node *node) {
    autograd_share(autograd, node->input[5], node->output[0]);
    autograd_share(autograd, node->input[6], node->output[1]);
}

/* A product and a sum of a channel. */
static double predict_flops(const Node *node) {
    return 2.0 * (double)tensor_count(node->input[1]);
}

static Status predict_reference(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const DepthPredictAttributes *a = node->attributes;
    const float *guess = call->in[0], *x = call->in[1], *scale = call->in[4]; /* (N), (N,C), (1) */
    const int32_t *slot = call->in[2], *random = call->in[3];                 /* (B,T), words */
    int64_t N = shape_rows(node->input[1]->shape), C = shape_columns(node->input[1]->shape);
    int64_t T = node->input[2]->shape.dim[1];
    double loss = 0.0, hits = 0.0, dbias = 0.0, *sum = reference_sums(C, error);
    double factor = (double)a->gradient_scale * (scale ? (double)*scale : 1.0);
    if (!sum) return error->status;
    for (int64_t n = 0; n < N; n++) {
        int64_t at = a->first_row + n;
        if (at / T >= random[RANDOM_N_SEQUENCES]) continue;
        double g = (double)guess[n], is_chosen = slot[at] >= 0 ? 1.0 : 0.0;
        double off = 1.0 / (1.0 + exp(-g)) - is_chosen;
        loss += fmax(g, 0.0) - g * is_chosen + log1p(exp(-fabs(g)));
        hits += (guess[n] > 0.0f) == (slot[at] >= 0);
        dbias += off;
        for (int64_t c = 0; c < C; c++) sum[c] += off * (double)x[n * C + c];
    }
    for (int64_t c = 0; c < C; c++)
        reference_write((float *)call->out[0] + c, (float)(sum[c] * factor), call->add[0]);
    free(sum);
    reference_write(call->out[1], (float)(dbias * factor), call->add[1]);
    reference_write(call->out[2], (float)(loss * (double)a->report_scale), call->add[2]);
    reference_write(call->out[3], (float)(hits * (double)a->report_scale), call->add[3]);
    return STATUS_OK;
}

const Op OP_DEPTH_PREDICT = {
    .name = "depth_predict",
    .gradient = predict_gradient,
    .flops = predict_flops,
    .reference = predict_reference,
};
