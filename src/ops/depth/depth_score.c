/* depth_score: what router and predictor say of every row, in one pass over the stream. */
#include "ops/depth/depth.h"
#include "ops/reference.h"

/* All dims of x but the last. */
static Shape rows_shape(Shape x) {
    x.n_dims--;
    return x;
}

DepthScores op_depth_score(Graph *graph, Tensor *x, Tensor *router, Tensor *predictor, Tensor *bias) {
    DepthScores scores = {graph->nothing, graph->nothing};
    int64_t C = shape_columns(x->shape);
    if (!graph_check(graph, x->shape.n_dims >= 2, "depth_score: %s has no rows", x->name) ||
        !graph_check(graph, tensor_count(router) == C && tensor_count(predictor) == C,
                     "depth_score: %s and %s want a number a channel of %s", router->name, predictor->name,
                     x->name) ||
        !graph_check(graph, tensor_count(bias) == 1, "depth_score: %s wants one number", bias->name))
        return scores;
    Shape shape = rows_shape(x->shape);
    scores.score = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, shape, "%s.score", x->name);
    scores.guess = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, shape, "%s.guess", x->name);
    graph_record(graph, &OP_DEPTH_SCORE, NULL, 0, 4, TENSORS(x, router, predictor, bias), 2,
                 TENSORS(scores.score, scores.guess));
    scores.score->needs_gradient = scores.guess->needs_gradient = false;
    return scores;
}

/* Two products of a channel. */
static double score_flops(const Node *node) {
    return 4.0 * (double)tensor_count(node->input[0]);
}

static Status score_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0], *router = call->in[1], *predictor = call->in[2], *bias = call->in[3];
    float *score = call->out[0], *guess = call->out[1]; /* (N) each */
    int64_t N = shape_rows(call->node->input[0]->shape), C = shape_columns(call->node->input[0]->shape);
    for (int64_t n = 0; n < N; n++) {
        double r = 0.0, g = 0.0;
        for (int64_t c = 0; c < C; c++) {
            r += (double)x[n * C + c] * (double)router[c];
            g += (double)x[n * C + c] * (double)predictor[c];
        }
        reference_write(&score[n], (float)r, call->add[0]);
        reference_write(&guess[n], (float)(g + (double)*bias), call->add[1]);
    }
    return STATUS_OK;
}

const Op OP_DEPTH_SCORE = {
    .name = "depth_score",
    .flops = score_flops,
    .reference = score_reference,
};
