/* Depths as cases: rows are chosen, something is made of them, and it is added; the predictor of the choice. */
#include "op_case_inputs.h"

#include "ops/depth/depth.h"

/* Of rows that are split among ranks, those of a rank in the middle. */
static int64_t depth_first_row(const OpCase *test) {
    return test->spec->flags & CASE_SPLIT ? test->spec->size[0] * test->spec->size[1] / 3 : 0;
}

static Tensor *depth_stream(OpCase *test) {
    const int64_t *size = test->spec->size;
    int64_t n_rows = size[0] * size[1], first = depth_first_row(test);
    if (!(test->spec->flags & CASE_SPLIT))
        return case_activation(test, SHAPE(size[0], size[1], size[2]), "x");
    return case_activation(test, SHAPE(2 * n_rows / 3 - first, size[2]), "x");
}

void build_depth(OpCase *test) {
    const int64_t *size = test->spec->size;
    Graph *graph = test->graph;
    Tensor *x = depth_stream(test), *router = case_parameter(test, SHAPE(size[2]), "router", 0.0f);
    Tensor *predictor = case_floats(test, PLACE_INPUT, SHAPE(size[2]), "predictor", 1.0f, 0.0f);
    Tensor *bias = case_floats(test, PLACE_INPUT, SHAPE(1), "bias", 1.0f, 0.0f);
    DepthScores scores = op_depth_score(graph, x, router, predictor, bias);
    Tensor *score = scores.score;
    float scale = test->spec->flags & CASE_SAME ? 0.0f : 1.0f;
    if (test->spec->flags & (CASE_SPLIT | CASE_SAME)) /* that of all rows; or of none better than another */
        score = case_floats(test, PLACE_INPUT, SHAPE(size[0], size[1]), "score", scale, 0.25f);
    DepthRows rows = op_depth_select(graph, score, size[3]);
    DepthChosen chosen = op_depth_gather(graph, x, score, &rows, router, depth_first_row(test));
    Tensor *made = op_gelu(graph, chosen.chosen, ACTIVATION_GELU_TANH);
    case_result(test, "gate", chosen.gate);
    case_result(test, "guess", scores.guess);
    case_finish(test, op_depth_scatter(graph, x, made, chosen.gate, &rows, depth_first_row(test)));
}

void build_depth_admit(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *guess = case_floats(test, PLACE_INPUT, SHAPE(size[0], size[1]), "guess", 1.0f, 0.2f);
    Tensor *start = NULL, *counts = NULL;
    if (test->spec->flags & CASE_START) {
        start = case_integers(test, SHAPE(size[0]), "start", size[2] - size[1] + 1);
        CaseFill *fill = case_add_fill(test, PLACE_STATE, DTYPE_I32, SHAPE(size[0], size[2] + 1), "counts");
        fill->below = 5;
        counts = fill->tensor;
    }
    op_depth_admit(test->graph, guess, start, counts);
}

void build_depth_predict(OpCase *test) {
    const int64_t *size = test->spec->size;
    Graph *graph = test->graph;
    const float factor = 0.375f;
    int32_t words[N_RANDOM_WORDS] = {0};
    words[RANDOM_N_SEQUENCES] = (int32_t)(size[0] > 1 ? size[0] - 1 : 1);
    bool is_scaled = test->spec->flags & CASE_FACTOR;
    Tensor *x = depth_stream(test),
           *router = case_floats(test, PLACE_INPUT, SHAPE(size[2]), "router", 1.0f, 0.0f);
    Tensor *score = case_floats(test, PLACE_INPUT, SHAPE(size[0], size[1]), "score", 1.0f, 0.0f);
    Tensor *predictor = case_parameter(test, SHAPE(size[2]), "predictor", 0.0f),
           *bias = case_parameter(test, SHAPE(1), "bias", 0.0f);
    DepthRows rows = op_depth_select(graph, score, size[3]);
    DepthPredictAttributes attributes = {
        .first_row = depth_first_row(test), .gradient_scale = 0.25f, .report_scale = 0.25f};
    DepthPredictTensors tensors = {
        .guess = op_depth_score(graph, x, router, predictor, bias).guess,
        .x = x,
        .slot = rows.slot,
        .random = case_literal(test, DTYPE_I32, N_RANDOM_WORDS, "random", words),
        .scale = is_scaled ? case_literal(test, DTYPE_F32, 1, "loss scale", &factor) : NULL,
        .predictor = predictor,
        .bias = bias,
        .loss = case_state(test, SHAPE(1), "loss"),
        .hits = case_state(test, SHAPE(1), "hits")};
    op_depth_predict(graph, &tensors, WRITE_FRESH, &attributes);
    case_result(test, "hits", tensors.hits);
    test->y = tensors.loss;
    test->loss_scale = is_scaled ? 0.375 : 1.0;
}
