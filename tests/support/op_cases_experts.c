/* The operations of a mixture of experts as cases: routers of every kind, experts with given choices, and all of it
 * from the tokens to what comes back to them. */
#include "op_case_inputs.h"

#include "ops/experts/expert_ranks.h"
#include "ops/experts/experts.h"

/* Of `there` sequences that there are. */
static Tensor *words(OpCase *test, int64_t there) {
    int32_t random[N_RANDOM_WORDS] = {0x12345678, -0x6543210, 7, 11, (int32_t)there};
    return case_literal(test, DTYPE_I32, N_RANDOM_WORDS, "random", random);
}

/* size: groups T E K capacity kind. */
static RouteAttributes attributes_of(const OpCase *test) {
    const int64_t *size = test->spec->size;
    unsigned flags = test->spec->flags;
    return (RouteAttributes){.kind = (int)size[5],
                             .gate = flags & CASE_ERF ? GATE_SIGMOID : GATE_SOFTMAX,
                             .n_experts = (int)size[2],
                             .n_chosen = (int)size[3],
                             .capacity = size[4],
                             .n_groups = size[0],
                             .is_training = flags & CASE_NESTEROV,
                             .balance_scale = test->spec->number,
                             .z_scale = test->spec->number / 8.0f,
                             .site = 3};
}

void build_route(OpCase *test) {
    const int64_t *size = test->spec->size;
    unsigned flags = test->spec->flags;
    RouteAttributes attributes = attributes_of(test);
    Shape shape = SHAPE(size[0] * size[1], size[2]);
    Tensor *logits = case_activation(test, shape, "logits"), *noise = NULL, *bias = NULL, *scale = NULL;
    if (attributes.kind == ROUTER_NOISY_TOPK) noise = case_activation(test, shape, "noise");
    if (attributes.kind == ROUTER_BALANCE_FREE)
        bias = case_floats(test, PLACE_INPUT, SHAPE(size[2]), "bias", 0.3f, 0.0f);
    if (flags & CASE_FACTOR) scale = case_floats(test, PLACE_INPUT, SHAPE(1), "scale", 0.0f, 2.5f);
    Tensor *random =
        flags & (CASE_SPLIT | CASE_NESTEROV) ? words(test, size[0] - !!(flags & CASE_SPLIT)) : NULL;
    Routes routes = op_route(test->graph, logits, noise, bias, random, scale, &attributes);
    case_result(test, "choice", routes.choice);
    if (flags & CASE_RESIDUAL) {
        Tensor *report = case_state(test, SHAPE(size[2] + N_ROUTE_COUNTS), "report");
        op_route_report(test->graph, logits, noise, bias, random, &routes, report, true, &attributes);
        case_result(test, "report", report);
    }
    case_finish(test, routes.gates);
}

static Activation activation_of(const OpCase *test) {
    unsigned flags = test->spec->flags;
    return flags & CASE_TANH  ? ACTIVATION_GELU_TANH
           : flags & CASE_ERF ? ACTIVATION_GELU_ERF
                              : ACTIVATION_NONE;
}

/* Two layers of experts over rows that `order` says. */
static Tensor *through_experts(OpCase *test, Tensor *x, const ExpertOrder *order, int64_t E, int64_t F) {
    int64_t C = shape_columns(x->shape);
    bool has_bias = test->spec->flags & CASE_BIAS;
    Tensor *fc = case_parameter(test, SHAPE(E, F, C), "fc", 0.0f);
    Tensor *fc_bias = has_bias ? case_parameter(test, SHAPE(E, F), "fc.bias", 0.0f) : NULL;
    Tensor *proj = case_parameter(test, SHAPE(E, C, F), "proj", 0.0f);
    Tensor *rows = op_expert_gather(test->graph, x, order);
    Tensor *hidden = op_grouped_linear(test->graph, rows, fc, fc_bias, order->offsets, activation_of(test));
    return op_grouped_linear(test->graph, hidden, proj, NULL, order->offsets, ACTIVATION_NONE);
}

/* size: N C F E S. Every third choice is none, and one expert has no rows; with CASE_SAME, all are of the last expert.
 * CASE_SHIFT: there is room for more rows than there are, and what those hold is anything. */
void build_grouped(OpCase *test) {
    const int64_t *size = test->spec->size;
    int64_t N = size[0], E = size[3], S = size[4], n_rows = 0;
    int32_t *choice = ARENA_ARRAY(&test->graph->arena, int32_t, N * S + 1);
    for (int64_t i = 0; i < N * S; i++) {
        int32_t expert = (int32_t)(test_hash("choice", (uint64_t)(i / S)) % (uint32_t)E + i % S) % (int32_t)E;
        bool is_none = i % 3 == 1 || (E > 2 && expert == 1);
        if (test->spec->flags & CASE_SAME) expert = (int32_t)E - 1;
        choice[i] = is_none ? -1 : expert;
        n_rows += !is_none;
    }
    Tensor *flat = case_literal(test, DTYPE_I32, N * S, "choice", choice);
    Tensor *choices = graph_view(test->graph, flat, SHAPE(N, S), 0, "choices");
    Tensor *x = case_activation(test, SHAPE(N, size[1]), "x");
    Tensor *gates = case_activation(test, SHAPE(N, S), "gates");
    int64_t n_spare = test->spec->flags & CASE_SHIFT ? 70 : 0;
    ExpertOrder order = op_expert_sort(test->graph, choices, (int)E, n_rows + n_spare);
    Tensor *made = through_experts(test, x, &order, E, size[2]);
    case_finish(test, op_expert_scatter(test->graph, made, gates, &order, x->shape));
}

/* size: N C F E K, of one sequence. */
void build_experts(OpCase *test) {
    const int64_t *size = test->spec->size;
    int64_t N = size[0], C = size[1], E = size[3];
    RouteAttributes attributes = {
        .kind = ROUTER_TOPK, .n_experts = (int)E, .n_chosen = (int)size[4], .n_groups = N > 0};
    Tensor *x = case_activation(test, SHAPE(N, C), "x");
    Tensor *router = case_parameter(test, SHAPE(E, C), "router", 0.0f);
    Tensor *logits = op_router_logits(test->graph, x, router);
    Routes routes = op_route(test->graph, logits, NULL, NULL, NULL, NULL, &attributes);
    ExpertOrder order = op_expert_sort(test->graph, routes.choice, (int)E, route_n_rows(&attributes, N));
    Tensor *made = through_experts(test, x, &order, E, size[2]);
    case_finish(test, op_expert_scatter(test->graph, made, routes.gates, &order, x->shape));
}

/* size: B n T S: placed, or with CASE_SPLIT taken. */
void build_sequence_rows(OpCase *test) {
    const int64_t *size = test->spec->size;
    RowPositions positions = {.start = 1, .head = size[1] / 2, .skip = size[2] - size[1] - 1};
    bool takes = test->spec->flags & CASE_SPLIT;
    Tensor *x = case_activation(test, SHAPE(size[0] * (takes ? size[2] : size[1]), size[3]), "x");
    case_finish(test, takes ? op_take_rows(test->graph, x, size[0], size[1], positions)
                            : op_place_rows(test->graph, x, size[0], size[2], positions));
}

/* size: R E. A step's end: biases are moved, and the summary made; with CASE_FACTOR by a finite factor. */
void build_route_update(OpCase *test) {
    int64_t R = test->spec->size[0], E = test->spec->size[1];
    float *values = ARENA_ARRAY(&test->graph->arena, float, R *(E + N_ROUTE_COUNTS));
    for (int64_t i = 0; i < R * (E + N_ROUTE_COUNTS); i++)
        values[i] = (float)(test_hash("reports", (uint64_t)i) % 5); /* some get nothing, some the mean */
    Tensor *flat = case_literal(test, DTYPE_F32, R * (E + N_ROUTE_COUNTS), "counts", values);
    Tensor *counts = graph_view(test->graph, flat, SHAPE(R, E + N_ROUTE_COUNTS), 0, "counts of blocks");
    Tensor *bias = case_floats(test, PLACE_PARAMETER, SHAPE(R, E), "bias", 0.25f, 0.0f), *factor = NULL;
    if (test->spec->flags & CASE_FACTOR)
        factor = case_floats(test, PLACE_INPUT, SHAPE(1), "factor", 0.0f, test->spec->number);
    Tensor *summary = case_state(test, SHAPE(N_ROUTE_SUMMARY), "summary");
    test->graph->section = SECTION_UPDATE;
    op_route_bias(test->graph, counts, factor, bias, 0.125f);
    op_route_summary(test->graph, counts, summary, (int)E);
    case_result(test, "summary", summary);
}

/* Of experts 1 to half of them. */
void build_expert_ranks(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *arrivals = case_integers(test, SHAPE(size[0], size[1] + 1), "arrivals", 1000);
    Tensor *choice = case_integers(test, SHAPE(size[2], size[3]), "choice", size[1] + 1);
    case_result(test, "here", op_experts_here(test->graph, choice, 1, (int)size[1] / 2));
    case_finish(test, op_expert_arrivals(test->graph, arrivals, 100, 50));
}
