/* depth_select and depth_admit: which positions of a sequence pass a block. The first knows all scores of a
 * sequence and takes the best; the second decides token by token, as sampling has to. */
#include "ops/depth/depth.h"
#include "ops/reference.h"

#include <stdio.h>

/* ---- the best of a sequence ---- */

DepthRows op_depth_select(Graph *graph, Tensor *score, int64_t n_chosen) {
    DepthRows made = {.rows = graph->nothing, .slot = graph->nothing};
    if (!graph_check(graph, score->dtype == DTYPE_F32 && score->shape.n_dims == 2,
                     "depth_select: %s must be f32 of shape (B,T)", score->name) ||
        !graph_check(graph, n_chosen >= 1 && n_chosen <= score->shape.dim[1],
                     "depth_select: %lld of %lld positions cannot be chosen", (long long)n_chosen,
                     (long long)score->shape.dim[1]))
        return made;
    int64_t B = score->shape.dim[0];
    made.rows = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(B, n_chosen), "%s.rows", score->name);
    made.slot = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, score->shape, "%s.slot", score->name);
    graph_record(graph, &OP_DEPTH_SELECT, NULL, 0, 1, TENSORS(score), 2, TENSORS(made.rows, made.slot));
    made.rows->needs_gradient = made.slot->needs_gradient = false;
    return made;
}

static void select_describe(const Node *node, char *text, size_t n_bytes) {
    snprintf(text, n_bytes, "%lld of %lld positions", (long long)node->output[0]->shape.dim[1],
             (long long)node->input[0]->shape.dim[1]);
}

/* How many of the T scores come before that of position t? */
static int64_t rank_of(const float *score, int64_t T, int64_t t) {
    int64_t rank = 0;
    uint32_t own = depth_order(score[t]);
    for (int64_t u = 0; u < T; u++) {
        uint32_t other = depth_order(score[u]);
        rank += other > own || (other == own && u < t);
    }
    return rank;
}

static Status select_reference(const KernelCall *call, Error *error) {
    (void)error;
    int64_t B = call->node->input[0]->shape.dim[0], T = call->node->input[0]->shape.dim[1];
    int64_t K = call->node->output[0]->shape.dim[1];
    for (int64_t b = 0; b < B; b++) {
        const float *score = (const float *)call->in[0] + b * T;
        int32_t *rows = (int32_t *)call->out[0] + b * K, *slot = (int32_t *)call->out[1] + b * T, n = 0;
        for (int64_t t = 0; t < T; t++) {
            slot[t] = rank_of(score, T, t) < K ? n : -1;
            if (slot[t] >= 0) rows[n++] = (int32_t)t;
        }
    }
    return STATUS_OK;
}

const Op OP_DEPTH_SELECT = {
    .name = "depth_select",
    .describe = select_describe,
    .reference = select_reference,
};

/* ---- token by token ---- */

DepthRows op_depth_admit(Graph *graph, Tensor *guess, Tensor *start, Tensor *counts) {
    DepthRows made = {.rows = graph->nothing, .slot = graph->nothing, .places = graph->nothing};
    if (!graph_check(graph, guess->dtype == DTYPE_F32 && guess->shape.n_dims == 2,
                     "depth_admit: %s must be f32 of shape (B,T)", guess->name))
        return made;
    int64_t B = guess->shape.dim[0], T = guess->shape.dim[1];
    if (!graph_check(graph, !start || (start->dtype == DTYPE_I32 && tensor_count(start) == B),
                     "depth_admit: start of %s must be i32, one per sequence", guess->name) ||
        !graph_check(graph, !counts || start, "depth_admit: counts of %s want to know the start",
                     guess->name) ||
        !graph_check(graph,
                     !counts || (counts->dtype == DTYPE_I32 && counts->shape.n_dims == 2 &&
                                 counts->shape.dim[0] == B && counts->shape.dim[1] > T),
                     "depth_admit: counts of %s must be i32, one more per sequence than its positions",
                     guess->name))
        return made;
    made.rows = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(B, T), "%s.rows", guess->name);
    made.slot = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(B, T), "%s.slot", guess->name);
    made.places = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(B, T), "%s.places", guess->name);
    if (counts)
        made.first = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(B), "%s.first", guess->name);
    graph_record(graph, &OP_DEPTH_ADMIT, NULL, 0, 3, TENSORS(guess, start, counts), 5,
                 TENSORS(made.rows, made.slot, made.places, made.first, counts));
    return made;
}

/* Counts are read and written a row of T at a time. */
static double admit_bytes(const Node *node) {
    return 20.0 * (double)tensor_count(node->input[0]);
}

static Status admit_reference(const KernelCall *call, Error *error) {
    int64_t B = call->node->input[0]->shape.dim[0], T = call->node->input[0]->shape.dim[1];
    int64_t stride = call->node->output[4] ? call->node->output[4]->shape.dim[1] : 0;
    const int32_t *starts = call->in[1];
    int32_t *firsts = call->out[3];
    for (int64_t b = 0; b < B; b++) {
        const float *guess = (const float *)call->in[0] + b * T;
        int32_t *rows = (int32_t *)call->out[0] + b * T, *slot = (int32_t *)call->out[1] + b * T;
        int32_t *places = (int32_t *)call->out[2] + b * T, start = starts ? starts[b] : 0, n = 0;
        int32_t *counts = stride ? (int32_t *)call->out[4] + b * stride : NULL;
        if (counts && (start < 0 || start + T >= stride))
            return error_failed(error, "depth_admit: positions from %d on do not fit in %lld", start,
                                (long long)stride - 1);
        /* What nobody has written yet is no number to be trusted. */
        int32_t first = counts && start > 0 ? counts[start] : 0;
        first = first < 0 ? 0 : first > start ? start : first;
        for (int64_t t = 0; t < T; t++) {
            slot[t] = guess[t] > 0.0f ? n : -1;
            if (slot[t] >= 0) rows[n++] = (int32_t)t;
            if (counts) counts[start + t + 1] = first + n;
        }
        for (int64_t t = 0; t < T; t++)
            if (slot[t] < 0) rows[n++] = (int32_t)t;
        for (int64_t t = 0; t < T; t++) places[t] = start + rows[t];
        if (firsts) firsts[b] = first;
    }
    return STATUS_OK;
}

const Op OP_DEPTH_ADMIT = {
    .name = "depth_admit",
    .bytes = admit_bytes,
    .reference = admit_reference,
};
