/* What the operations say about themselves: counted costs, memory that may be taken over, which outputs carry
 * gradients, their words in a printed program, and the mistakes that builders must catch. */
#include "op_cases.h"
#include "ops/experts/experts.h"
#include "ops/update/adamw.h"
#include "ops/update/lamb_coefficient.h"
#include "ops/update/sgd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* ---- costs, worked out by hand for small cases ---- */

typedef struct {
    OpSpec spec;
    const Op *op;
    double flops, bytes;
} CostCase;

static const CostCase COSTS[] = {
    /* tokens 24, a row of the table for each of 6 tokens 120, 3 rows of positions 60, y 120 */
    {{"embedding", build_embedding, {2, 3, 5, 7, 4}, CASE_POSITIONS, 0}, &OP_EMBEDDING, 30, 324},
    {{"embedding", build_embedding, {2, 3, 5, 7, 9}, CASE_POSITIONS | CASE_START, 0}, &OP_EMBEDDING, 30, 332},
    {{"embedding", build_embedding, {2, 3, 5, 7}, 0, 0}, &OP_EMBEDDING, 0, 264},
    {{"embedding", build_embedding, {2, 3, 5, 7, 4}, CASE_POSITIONS, 0},
     &OP_EMBEDDING_TOKEN_GRADIENT,
     30,
     284},
    {{"embedding", build_embedding, {2, 3, 5, 7, 4}, CASE_POSITIONS, 0},
     &OP_EMBEDDING_POSITION_GRADIENT,
     30,
     200},
    {{"layernorm", build_layernorm, {5, 7}, CASE_BIAS, 0}, &OP_LAYERNORM, 8 * 35, 376},
    {{"layernorm", build_layernorm, {5, 7}, 0, 0}, &OP_LAYERNORM, 7 * 35, 348},
    {{"layernorm", build_layernorm, {5, 7}, CASE_BIAS, 0}, &OP_LAYERNORM_BACKWARD, 13 * 35, 600},
    {{"layernorm", build_layernorm, {5, 7}, CASE_FIXED_W, 0}, &OP_LAYERNORM_BACKWARD, 10 * 35, 488},
    {{"rmsnorm", build_rmsnorm, {4, 7}, 0, 0}, &OP_RMSNORM, 4 * 28, 268},
    {{"rmsnorm", build_rmsnorm, {4, 7}, 0, 0}, &OP_RMSNORM_BACKWARD, 9 * 28, 436},
    /* x, branch, sum and normed 4·168, weight and bias 56, mean and rstd 48, random 20 */
    {{"residual_norm", build_residual_norm, {2, 3, 7}, CASE_BIAS, 0.5f}, &OP_RESIDUAL_NORM, 10 * 42, 796},
    {{"residual_norm", build_residual_norm, {2, 3, 7}, 0, 0}, &OP_RESIDUAL_NORM, 8 * 42, 748},
    {{"residual_norm", build_residual_norm, {2, 3, 7}, CASE_RMS, 0.5f}, &OP_RESIDUAL_NORM, 6 * 42, 744},
    /* dnormed, sum, dsum and dbranch 4·168; weight 28, dweight and dbias in the first of several 112; 48 and 20 */
    {{"residual_norm", build_residual_norm, {2, 3, 7}, CASE_BIAS, 0.5f},
     &OP_RESIDUAL_NORM_BACKWARD,
     14 * 42,
     880},
    /* dsum is added to what the sum's reader left there */
    {{"residual_norm", build_residual_norm, {2, 3, 7}, CASE_RMS | CASE_FIXED_W | CASE_RESIDUAL, 0.5f},
     &OP_RESIDUAL_NORM_BACKWARD,
     8 * 42,
     912},
    /* and the sums of dbranch's columns */
    {{"residual_norm", build_residual_norm, {2, 3, 7}, CASE_BIAS | CASE_LAYER, 0.5f},
     &OP_RESIDUAL_NORM_BACKWARD,
     15 * 42,
     880 + 56},
    {{"linear", build_linear, {5, 7, 6}, CASE_BIAS, 0}, &OP_LINEAR, 420 + 30, 452},
    {{"linear", build_linear, {4, 5, 6}, CASE_BIAS | CASE_RESIDUAL | CASE_TANH, 0},
     &OP_LINEAR,
     240 + 10 * 24,
     512},
    {{"linear", build_linear, {4, 5, 6}, CASE_ERF, 0}, &OP_LINEAR, 240 + 5 * 24, 392},
    {{"linear", build_linear, {5, 7, 6}, CASE_BIAS, 0}, &OP_LINEAR_INPUT_GRADIENT, 420, 428},
    {{"mlp", build_mlp, {5, 7, 6}, CASE_TANH, 0}, &OP_LINEAR_INPUT_GRADIENT, 420 + 17 * 30, 548 + 48},
    {{"mlp", build_mlp, {5, 7, 6}, CASE_TANH | CASE_RESIDUAL, 0}, &OP_LINEAR_INPUT_GRADIENT, 420, 428},
    {{"linear", build_linear, {5, 7, 6}, CASE_BIAS, 0}, &OP_LINEAR_WEIGHT_GRADIENT, 420 + 30, 644},
    {{"gelu", build_gelu, {3, 5}, CASE_TANH, 0}, &OP_GELU, 8 * 15, 120},
    {{"gelu", build_gelu, {3, 5}, CASE_ERF, 0}, &OP_GELU, 5 * 15, 120},
    {{"gelu", build_gelu, {3, 5}, CASE_TANH, 0}, &OP_GELU_BACKWARD, 16 * 15, 180},
    {{"gelu", build_gelu, {3, 5}, CASE_ERF, 0}, &OP_GELU_BACKWARD, 11 * 15, 180},
    {{"swiglu", build_swiglu, {3, 5}, 0, 0}, &OP_SWIGLU, 6 * 15, 180},
    {{"swiglu", build_swiglu, {3, 5}, 0, 0}, &OP_SWIGLU_BACKWARD, 12 * 15, 300},
    /* 2·2 heads with 15 visible pairs each */
    {{"attention", build_attention, {2, 5, 2, 2, 3}, 0, 0}, &OP_ATTENTION, 60 * 17 + 60, 1040},
    {{"attention", build_attention, {2, 5, 2, 2, 3}, 0, 0}, &OP_ATTENTION_BACKWARD, 60 * 36 + 120, 2000},
    {{"attention", build_attention, {2, 5, 2, 2, 3}, CASE_LAYER, 0},
     &OP_ATTENTION_BACKWARD,
     60 * 36 + 120 + 180,
     2000 + 144},
    {{"attention", build_attention, {2, 5, 2, 2, 3}, 0, 0.5f}, &OP_ATTENTION, 60 * 17 + 60, 1060},
    /* 24 queries against 6 keys; new rows 576 and half of them stored, both caches 864, y 288, start 12 */
    {{"cached", build_attention_cached, {3, 2, 4, 2, 3, 6}, 0, 0},
     &OP_ATTENTION_CACHED,
     24 * (6 * 17 + 3),
     2028},
    {{"rotary", build_rotary, {2, 3, 2, 1, 6}, CASE_START, 0}, &OP_ROTARY, 6 * 9 * 6, 1160},
    /* 12 rows of 4 experts: 2·3·5 and 1 + 8 an output */
    {{"experts", build_experts, {6, 3, 5, 4, 2}, CASE_BIAS | CASE_TANH, 0},
     &OP_GROUPED_LINEAR,
     12 * 5 * (2 * 3 + 1 + 8),
     144 + 240 + 80 + 20 + 2 * 240},
    {{"experts", build_experts, {6, 3, 5, 4, 2}, 0, 0}, &OP_ROUTER_LOGITS, 2 * 6 * 4 * 3, 72 + 48 + 96},
    {{"experts", build_experts, {6, 3, 5, 4, 2}, 0, 0}, &OP_EXPERT_GATHER, 0, 72 + 48 + 48 + 20 + 144},
    {{"add", build_add, {3, 5}, 0, 0}, &OP_ADD, 15, 180},
    {{"copy", build_copy, {3, 5}, 0, 0}, &OP_COPY, 0, 120},
    {{"zero", build_zero, {3, 5}, 0, 0}, &OP_ZERO, 0, 60},
    {{"dropout", build_dropout, {3, 5, 7}, 0, 0.5f}, &OP_DROPOUT, 105, 860},
    {{"gather", build_gather, {6, 5, 4}, 0, 0}, &OP_GATHER, 0, 176},
    {{"pack", build_pack, {2, 5, 3, 3}, 0, 0}, &OP_PACK, 0, 240},
    {{"sum", build_sum, {3, 7}, 0, 0}, &OP_SUM, 21, 92},
    {{"cross_entropy", build_cross_entropy, {4, 9}, 0, 0}, &OP_CROSS_ENTROPY, 6 * 36, 320},
    {{"cross_entropy", build_cross_entropy, {4, 9}, CASE_FIXED_X, 0}, &OP_CROSS_ENTROPY, 4 * 36, 176},
    {{"squared_error", build_squared_error, {4, 9}, 0, 0}, &OP_SQUARED_ERROR, 3 * 36, 4 * 144},
    {{"squared_error", build_squared_error, {4, 9}, CASE_FIXED_X, 0}, &OP_SQUARED_ERROR, 2 * 36, 3 * 144},
    {{"squared_norm", build_squared_norm, {37}, 0, 0}, &OP_SQUARED_NORM, 74, 152},
    {{"squared_norm", build_squared_norm, {37}, CASE_ADD, 0}, &OP_SQUARED_NORM, 74, 156},
    {{"clip", build_clip, {0}, 0, 1.0f}, &OP_CLIP, 0, 12},
    {{"adamw", build_adamw, {37}, 0, 0}, &OP_ADAMW, 15 * 37, 7 * 148 + 20},
    {{"adamw", build_adamw, {37}, CASE_FACTOR, 0}, &OP_ADAMW, 16 * 37, 7 * 148 + 24},
    {{"lamb", build_lamb, {37}, CASE_FACTOR, 0}, &OP_LAMB_MEASURE, 20 * 37, 6 * 148 + 24},
    {{"lamb", build_lamb, {37}, 0, 0}, &OP_LAMB, 10 * 37, 4 * 148 + 44},
    {{"lamb", build_lamb_coefficient, {37}, 0, 0}, &OP_LAMB_FRESHEN, 13 * 37, 5 * 148},
    {{"sgd", build_sgd, {37}, 0, 0}, &OP_SGD, 4 * 37, 3 * 148 + 20},
    {{"sgd", build_sgd, {37}, CASE_MOMENTUM, 0}, &OP_SGD, 6 * 37, 5 * 148 + 20},
    {{"sgd", build_sgd, {37}, CASE_MOMENTUM | CASE_NESTEROV, 0}, &OP_SGD, 8 * 37, 5 * 148 + 20},
};

static Node *find_node(const OpCase *test, const Op *op) {
    for (int i = 0; i < test->graph->n_nodes; i++) {
        if (test->graph->node[i]->op == op) return test->graph->node[i];
    }
    fail_msg("%s: no node of %s", test->spec->label, op->name);
    return NULL;
}

static void test_costs(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof COSTS / sizeof COSTS[0]; i++) {
        OpCase test;
        case_open(&test, &COSTS[i].spec);
        Cost cost = op_cost(find_node(&test, COSTS[i].op));
        if (cost.flops != COSTS[i].flops || cost.bytes != COSTS[i].bytes) {
            fail_msg("%s (entry %zu): %g FLOPs and %g bytes, not %g and %g", COSTS[i].op->name, i, cost.flops,
                     cost.bytes, COSTS[i].flops, COSTS[i].bytes);
        }
        case_close(&test);
    }
}

/* A gradient that is added to a large table touches only the rows that tokens name. */
static void test_cost_of_adding_to_a_table(void **unused) {
    (void)unused;
    static const OpSpec spec = {"embedding", build_embedding, {1, 3, 5, 70}, 0, 0};
    OpCase test;
    case_open(&test, &spec);
    Node *node = find_node(&test, &OP_EMBEDDING_TOKEN_GRADIENT);
    node->write[0] = WRITE_ADD;
    assert_true(op_cost(node).bytes == 60 + 12 + 2 * 60);
    case_close(&test);
}

/* ---- memory that an output may take over ---- */

typedef struct {
    OpSpec spec;
    const Op *op;
    int input[NODE_MAX_OUTPUTS];
} InPlaceCase;

static const InPlaceCase IN_PLACE[] = {
    {{"linear", build_linear, {3, 4, 5}, CASE_RESIDUAL, 0}, &OP_LINEAR, {3, -1, -1}},
    {{"linear", build_linear, {3, 4, 5}, CASE_TANH, 0}, &OP_LINEAR, {-1, -1, -1}},
    {{"layernorm", build_layernorm, {3, 4}, CASE_BIAS, 0}, &OP_LAYERNORM, {0, -1, -1}},
    {{"rmsnorm", build_rmsnorm, {3, 4}, 0, 0}, &OP_RMSNORM, {0, -1, -1}},
    {{"residual_norm", build_residual_norm, {1, 3, 4}, 0, 0.5f}, &OP_RESIDUAL_NORM, {1, 0, -1, -1}},
    {{"residual_norm", build_residual_norm, {1, 3, 4}, 0, 0.5f},
     &OP_RESIDUAL_NORM_BACKWARD,
     {-1, -1, -1, 0, -1}},
    {{"gelu", build_gelu, {3, 4}, CASE_TANH, 0}, &OP_GELU, {0, -1, -1}},
    {{"gelu", build_gelu, {3, 4}, CASE_TANH, 0}, &OP_GELU_BACKWARD, {1, -1, -1}},
    {{"swiglu", build_swiglu, {3, 4}, 0, 0}, &OP_SWIGLU_BACKWARD, {1, -1, -1}},
    {{"rotary", build_rotary, {1, 3, 2, 2, 4}, 0, 0}, &OP_ROTARY, {0, -1, -1}},
    {{"add", build_add, {3, 4}, 0, 0}, &OP_ADD, {0, -1, -1}},
    {{"dropout", build_dropout, {3, 4, 5}, 0, 0.5f}, &OP_DROPOUT, {0, -1, -1}},
    {{"cross_entropy", build_cross_entropy, {3, 4}, 0, 0}, &OP_CROSS_ENTROPY, {-1, 0, -1}},
    {{"squared_error", build_squared_error, {3, 4}, 0, 0}, &OP_SQUARED_ERROR, {-1, 0, -1}},
};

static void test_in_place(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof IN_PLACE / sizeof IN_PLACE[0]; i++) {
        OpCase test;
        case_open(&test, &IN_PLACE[i].spec);
        const Node *node = find_node(&test, IN_PLACE[i].op);
        for (int k = 0; k < node->n_outputs; k++) {
            assert_int_equal(node->op->in_place(node, k), IN_PLACE[i].input[k]);
        }
        case_close(&test);
    }
    assert_null(OP_SWIGLU.in_place); /* half as large */
    assert_null(OP_LAYERNORM_BACKWARD.in_place);
    assert_null(OP_ATTENTION.in_place);
}

/* y = W·x + x must not overwrite x: every row of it is read again for each output. */
static void test_linear_keeps_its_input(void **unused) {
    (void)unused;
    Graph *graph = graph_new();
    Tensor *x = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(3, 4), "x");
    Tensor *weight = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(4, 4), "weight");
    op_linear(graph, x, weight, NULL, x, ACTIVATION_NONE);
    assert_int_equal(OP_LINEAR.in_place(graph->node[0], 0), -1);
    graph_free(graph);
}

/* ---- which outputs carry gradients ---- */

static void test_only_results_need_gradients(void **unused) {
    (void)unused;
    static const OpSpec specs[] = {
        {"layernorm", build_layernorm, {3, 4}, CASE_BIAS, 0},
        {"rmsnorm", build_rmsnorm, {3, 4}, 0, 0},
        {"attention", build_attention, {1, 3, 2, 2, 4}, 0, 0},
    };
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        OpCase test;
        case_open(&test, &specs[i]);
        const Node *node = test.graph->node[0];
        assert_true(node->output[0]->needs_gradient);
        for (int k = 1; k < node->n_outputs; k++) assert_false(node->output[k]->needs_gradient);
        case_close(&test);
    }
    static const OpSpec residual = {"residual_norm", build_residual_norm, {1, 3, 4}, CASE_FIXED_X, 0.5f};
    OpCase norm;
    case_open(&norm, &residual);
    assert_false(norm.graph->node[0]->output[0]->needs_gradient); /* of the sum: only the weights want any */
    assert_true(norm.graph->node[0]->output[1]->needs_gradient);
    for (int k = 2; k < 4; k++) assert_false(norm.graph->node[0]->output[k]->needs_gradient);
    case_close(&norm);
    static const OpSpec loss = {"cross_entropy", build_cross_entropy, {3, 4}, 0, 0};
    OpCase test;
    case_open(&test, &loss);
    const Node *node = test.graph->node[0];
    assert_false(node->output[0]->needs_gradient);
    assert_false(node->output[1]->needs_gradient);
    assert_ptr_equal(node->input[0]->gradient, node->output[1]);
    assert_int_equal(test.graph->n_nodes, 1); /* the gradient is handed on, not computed again */
    case_close(&test);
}

/* ---- words for the printed program ---- */

static void assert_described(const OpSpec *spec, const Op *op, const char *words) {
    OpCase test;
    case_open(&test, spec);
    const Node *node = find_node(&test, op);
    char text[128] = "";
    node->op->describe(node, text, sizeof text);
    assert_string_equal(text, words);
    char shorter[6] = "";
    node->op->describe(node, shorter, sizeof shorter);
    assert_int_equal(strncmp(shorter, words, 5), 0);
    assert_true(strlen(shorter) <= 5);
    case_close(&test);
}

static void test_descriptions(void **unused) {
    (void)unused;
    assert_described(&(OpSpec){"", build_linear, {3, 4, 5}, CASE_TANH, 0}, &OP_LINEAR, "gelu-tanh");
    assert_described(&(OpSpec){"", build_gelu, {3, 4}, CASE_ERF, 0}, &OP_GELU, "erf");
    assert_described(&(OpSpec){"", build_layernorm, {3, 4}, 0, 0}, &OP_LAYERNORM, "epsilon 1e-05");
    assert_described(&(OpSpec){"", build_rmsnorm, {3, 4}, 0, 0}, &OP_RMSNORM, "epsilon 1e-05");
    assert_described(&(OpSpec){"", build_residual_norm, {1, 3, 4}, 0, 0.5f}, &OP_RESIDUAL_NORM,
                     "layernorm, epsilon 1e-05, dropout 0.5");
    assert_described(&(OpSpec){"", build_residual_norm, {1, 3, 4}, CASE_RMS, 0}, &OP_RESIDUAL_NORM_BACKWARD,
                     "rmsnorm, epsilon 1e-05");
    assert_described(&(OpSpec){"", build_attention, {1, 3, 4, 2, 8}, 0, 0.5f}, &OP_ATTENTION_BACKWARD,
                     "4 heads of 8 over 2, dropout 0.5");
    assert_described(&(OpSpec){"", build_attention_cached, {1, 3, 4, 2, 8, 16}, 0, 0}, &OP_ATTENTION_CACHED,
                     "4 heads of 8 over 2, capacity 16");
    assert_described(&(OpSpec){"", build_rotary, {1, 3, 4, 2, 8}, 0, 0}, &OP_ROTARY, "theta 100");
    assert_described(&(OpSpec){"", build_dropout, {1, 3, 4}, 0, 0.5f}, &OP_DROPOUT, "p 0.5, site 5");
    assert_described(&(OpSpec){"", build_sum, {3, 4}, 0, 0}, &OP_SUM, "scale 0.125");
    assert_described(&(OpSpec){"", build_cross_entropy, {3, 4}, 0, 0}, &OP_CROSS_ENTROPY,
                     "gradient scale 0.25");
    assert_described(&(OpSpec){"", build_squared_error, {3, 4}, 0, 0}, &OP_SQUARED_ERROR,
                     "gradient scale 0.25");
    assert_described(&(OpSpec){"", build_clip, {0}, 0, 1.0f}, &OP_CLIP, "to 1");
    assert_described(&(OpSpec){"", build_adamw, {9}, 0, 0}, &OP_ADAMW,
                     "betas 0.9 0.95, epsilon 1e-08, decay 0.25");
    assert_described(&(OpSpec){"", build_lamb, {9}, 0, 0.5f}, &OP_LAMB,
                     "betas 0.9 0.95, epsilon 1e-06, decay 0.25, ratio up to 0.5, 4 spans");
    assert_described(&(OpSpec){"", build_sgd, {9}, CASE_MOMENTUM | CASE_NESTEROV, 0}, &OP_SGD,
                     "momentum 0.75 (nesterov), decay 0.25");
    assert_described(&(OpSpec){"", build_embedding, {1, 2, 3, 4, 9}, CASE_POSITIONS | CASE_SHIFT, 0},
                     &OP_EMBEDDING, "from position 3");
}

/* ---- mistakes ---- */

static Tensor *given(Graph *graph, const char *name, Shape shape) {
    return graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, shape, "%s", name);
}

static Tensor *words(Graph *graph, const char *name, Shape shape) {
    return graph_tensor(graph, PLACE_INPUT, DTYPE_I32, shape, "%s", name);
}

/* The graph refuses with these words, records nothing, and is harmless afterwards. */
static void assert_refused(Graph *graph, const char *expected) {
    Error error = {0};
    assert_int_equal(graph_status(graph, &error), STATUS_USER);
    if (!strstr(error.text, expected)) fail_msg("'%s' does not say '%s'", error.text, expected);
    assert_int_equal(graph->n_nodes, 0);
    Tensor *nothing = op_gelu(graph, graph->nothing, ACTIVATION_GELU_TANH);
    assert_ptr_equal(nothing, graph->nothing);
    assert_ptr_equal(op_layernorm(graph, nothing, nothing, NULL, 1e-5f), graph->nothing);
    Error again = {0};
    graph_status(graph, &again);
    assert_string_equal(again.text, error.text);
    graph_free(graph);
}

#define REFUSED(expected, call)                                                                              \
    do {                                                                                                     \
        Graph *g = graph_new();                                                                              \
        (void)(call);                                                                                        \
        assert_refused(g, expected);                                                                         \
    } while (0)
#define REFUSED_UPDATE(expected, call) REFUSED(expected, ((call), 0))
#define F(name, ...)                   given(g, name, SHAPE(__VA_ARGS__))
#define I(name, ...)                   words(g, name, SHAPE(__VA_ARGS__))

static void test_refused_shapes(void **unused) {
    (void)unused;
    REFUSED("embedding: tokens t", op_embedding(g, F("t", 2, 3), F("w", 7, 5), NULL, NULL));
    REFUSED("embedding: tokens t", op_embedding(g, I("t", 6), F("w", 7, 5), NULL, NULL));
    REFUSED("embedding: table w", op_embedding(g, I("t", 2, 3), F("w", 35), NULL, NULL));
    REFUSED("position table p", op_embedding(g, I("t", 2, 3), F("w", 7, 5), F("p", 4, 6), NULL));
    REFUSED("position table p has 2 rows", op_embedding(g, I("t", 2, 3), F("w", 7, 5), F("p", 2, 5), NULL));
    REFUSED("embedding: start s", op_embedding(g, I("t", 2, 3), F("w", 7, 5), F("p", 4, 5), I("s", 3)));
    REFUSED("layernorm: weight w", op_layernorm(g, F("x", 3, 4), F("w", 3), NULL, 1e-5f));
    REFUSED("layernorm: bias of w", op_layernorm(g, F("x", 3, 4), F("w", 4), F("b", 3), 1e-5f));
    REFUSED("layernorm: epsilon of w", op_layernorm(g, F("x", 3, 4), F("w", 4), NULL, -1.0f));
    REFUSED("layernorm: input x", op_layernorm(g, given(g, "x", SHAPE_SCALAR), F("w", 4), NULL, 1e-5f));
    REFUSED("rmsnorm: weight w", op_rmsnorm(g, F("x", 3, 4), F("w", 5), 1e-5f));
    REFUSED("rmsnorm: epsilon of w", op_rmsnorm(g, F("x", 3, 4), F("w", 4), -1.0f));
    ResidualNormAttributes a = {1e-5f, true, 0.0f, 0, {0}}, rms = a, drops = a, negative = a;
    rms.has_mean = false;
    drops.probability = 0.5f;
    negative.epsilon = -1.0f;
#define RESIDUAL(...) op_residual_norm(g, F("x", 2, 4), __VA_ARGS__)
    REFUSED("residual_norm: x has no rows",
            op_residual_norm(g, F("x", 4), F("b", 4), F("w", 4), NULL, NULL, &a));
    REFUSED("residual_norm: x and b", RESIDUAL(F("b", 4, 2), F("w", 4), NULL, NULL, &a));
    REFUSED("residual_norm: weight w", RESIDUAL(F("b", 2, 4), F("w", 3), NULL, NULL, &a));
    REFUSED("residual_norm: bias of w", RESIDUAL(F("b", 2, 4), F("w", 4), F("c", 3), NULL, &a));
    REFUSED("residual_norm: bias of w", RESIDUAL(F("b", 2, 4), F("w", 4), F("c", 4), NULL, &rms));
    REFUSED("residual_norm: epsilon of w", RESIDUAL(F("b", 2, 4), F("w", 4), NULL, NULL, &negative));
    REFUSED("residual_norm: random input of b", RESIDUAL(F("b", 2, 4), F("w", 4), NULL, NULL, &drops));
    REFUSED("residual_norm: random input of b", RESIDUAL(F("b", 2, 4), F("w", 4), NULL, I("r", 3), &drops));
    drops.probability = 1.0f;
    REFUSED("residual_norm: probability 1 of b", RESIDUAL(F("b", 2, 4), F("w", 4), NULL, NULL, &drops));
    REFUSED("linear: weight w", op_linear(g, F("x", 3, 4), F("w", 5, 3), NULL, NULL, ACTIVATION_NONE));
    REFUSED("linear: weight w", op_linear(g, F("x", 3, 4), F("w", 20), NULL, NULL, ACTIVATION_NONE));
    REFUSED("linear: bias of w", op_linear(g, F("x", 3, 4), F("w", 5, 4), F("b", 4), NULL, ACTIVATION_NONE));
    REFUSED("linear: residual of w",
            op_linear(g, F("x", 3, 4), F("w", 5, 4), NULL, F("r", 3, 4), ACTIVATION_NONE));
    REFUSED("gelu: of x", op_gelu(g, F("x", 3, 4), ACTIVATION_NONE));
    REFUSED("swiglu: columns of x", op_swiglu(g, F("x", 3, 5)));
    REFUSED("add: x and z", op_add(g, F("x", 3, 5), F("z", 5, 3)));
    REFUSED("dropout: probability 1 of x", op_dropout(g, F("x", 3, 5), I("r", N_RANDOM_WORDS), 1.0f, 0));
    REFUSED("dropout: probability -0.5", op_dropout(g, F("x", 3, 5), I("r", N_RANDOM_WORDS), -0.5f, 0));
    REFUSED("dropout: random input of x", op_dropout(g, F("x", 3, 5), NULL, 0.5f, 0));
    REFUSED("dropout: random input of x", op_dropout(g, F("x", 3, 5), I("r", 3), 0.5f, 0));
    REFUSED("gather: rows r", op_gather(g, F("x", 3, 5), F("r", 2)));
    REFUSED("gather: rows r", op_gather(g, F("x", 3, 5), I("r", 2, 1)));
    REFUSED("squared_error: targets t", op_squared_error(g, F("p", 3, 5), F("t", 14), 1.0f));
    REFUSED("squared_error: targets t", op_squared_error(g, F("p", 3, 5), I("t", 15), 1.0f));
    REFUSED("cross_entropy: targets t", op_cross_entropy(g, F("l", 3, 5), I("t", 5), 1.0f));
    REFUSED("cross_entropy: targets t", op_cross_entropy(g, F("l", 3, 5), F("t", 3), 1.0f));
    REFUSED("cross_entropy: logits l", op_cross_entropy(g, F("l", 3, 0), I("t", 3), 1.0f));
    REFUSED("cross_entropy: s must be",
            (op_cross_entropy_into(g, F("l", 3, 5), I("t", 3), F("s", 4), 1.0f), 0));
}

/* Sizes that each are possible, but not their product. */
static void test_refused_size(void **unused) {
    (void)unused;
    Graph *g = graph_new();
    Error error = {0};
    op_linear(g, F("x", 1LL << 31, 1), F("w", 1LL << 31, 1), NULL, NULL, ACTIVATION_NONE);
    assert_int_equal(graph_status(g, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "w.out is too large"));
    graph_free(g);
}

static void test_refused_heads(void **unused) {
    (void)unused;
    const AttentionAttributes good = {.n_heads = 4, .n_kv_heads = 2, .head_size = 6, .scale = 1.0f};
    AttentionAttributes ragged = good, none = good, drops = good, drops_all = good;
    ragged.n_kv_heads = 3;
    none.n_kv_heads = 0;
    drops.dropout = 0.5f;
    drops_all.dropout = 1.0f;
    REFUSED("attention: 4 heads over 3", op_attention(g, F("x", 2, 3, 60), NULL, &ragged));
    REFUSED("attention: 4 heads over 0", op_attention(g, F("x", 2, 3, 24), NULL, &none));
    REFUSED("attention: x must have shape", op_attention(g, F("x", 2, 3, 49), NULL, &good));
    REFUSED("attention: x must have shape", op_attention(g, F("x", 6, 48), NULL, &good));
    REFUSED("attention: x needs a random input", op_attention(g, F("x", 2, 3, 48), NULL, &drops));
    REFUSED("attention: x needs a random input",
            op_attention(g, F("x", 2, 3, 48), I("r", N_RANDOM_WORDS), &good));
    REFUSED("attention: random input of x", op_attention(g, F("x", 2, 3, 48), I("r", 3), &drops));
    REFUSED("attention: dropout 1 of x",
            op_attention(g, F("x", 2, 3, 48), I("r", N_RANDOM_WORDS), &drops_all));

#define CACHED(start, keys, values, a) op_attention_cached(g, F("x", 2, 3, 48), start, keys, values, a)
    REFUSED("attention_cached: start s", CACHED(I("s", 3), F("k", 2, 2, 8, 6), F("v", 2, 2, 8, 6), &good));
    REFUSED("attention_cached: start s", CACHED(F("s", 2), F("k", 2, 2, 8, 6), F("v", 2, 2, 8, 6), &good));
    REFUSED("caches k and v", CACHED(I("s", 2), F("k", 2, 4, 8, 6), F("v", 2, 4, 8, 6), &good));
    REFUSED("caches k and v", CACHED(I("s", 2), F("k", 2, 2, 2, 6), F("v", 2, 2, 2, 6), &good));
    REFUSED("caches k and v", CACHED(I("s", 2), F("k", 2, 2, 8, 6), F("v", 2, 2, 9, 6), &good));
    REFUSED("takes no dropout", CACHED(I("s", 2), F("k", 2, 2, 8, 6), F("v", 2, 2, 8, 6), &drops));
    REFUSED("attention_cached: 4 heads", CACHED(I("s", 2), F("k", 2, 2, 8, 6), F("v", 2, 2, 8, 6), &ragged));

    RotaryAttributes turns = {.n_heads = 4, .n_kv_heads = 2, .head_size = 6, .theta = 100.0f};
    RotaryAttributes odd = turns, flat = turns;
    odd.head_size = 5;
    flat.theta = 0.0f;
    REFUSED("rotary: x must have shape", op_rotary(g, F("x", 2, 3, 47), NULL, &turns));
    REFUSED("rotary: head size 5 of x", op_rotary(g, F("x", 2, 3, 40), NULL, &odd));
    REFUSED("rotary: theta of x", op_rotary(g, F("x", 2, 3, 48), NULL, &flat));
    REFUSED("rotary: start of x", op_rotary(g, F("x", 2, 3, 48), I("s", 3), &turns));
}

static void test_refused_updates(void **unused) {
    (void)unused;
    static const DecayRun runs[] = {{4, true}, {6, false}}, negative[] = {{-1, true}, {11, false}};
    const AdamwAttributes adamw = {.elements = {.n_runs = 2, .runs = runs}},
                          adamw_short = {.elements = {.n_runs = 1, .runs = runs}};
    const LambAttributes lamb = {.elements = {.n_runs = 2, .runs = runs}};
    const AdamwAttributes adamw_negative = {.elements = {.n_runs = 2, .runs = negative}};
    const SgdAttributes sgd = {.elements = {.n_runs = 2, .runs = runs}},
                        sgd_short = {.elements = {.n_runs = 1, .runs = runs}};
    const SgdAttributes heavy = {.elements = {.n_runs = 2, .runs = runs}, .momentum = 0.5f};
    const SgdAttributes nesterov = {.elements = {.n_runs = 2, .runs = runs}, .nesterov = true};
    REFUSED_UPDATE("sum: total t of x", op_sum(g, F("x", 3), F("t", 2), 1.0f));
    REFUSED_UPDATE("squared_norm: total t of x", op_squared_norm(g, F("x", 3), F("t", 2), false));
    REFUSED_UPDATE("clip: t, f and n", op_clip(g, F("t", 1), F("f", 2), F("n", 1), 1.0f));
    REFUSED_UPDATE("clip: the greatest norm of t", op_clip(g, F("t", 1), F("f", 1), F("n", 1), -1.0f));

#define ADAMW(n, n_hyper, scale, attributes)                                                                 \
    op_adamw(g,                                                                                              \
             &(UpdateTensors){.gradient = F("g", n),                                                         \
                              .hyper = F("h", n_hyper),                                                      \
                              .factor = scale,                                                               \
                              .parameter = F("p", 10),                                                       \
                              .moment = {F("m", 10), F("v", 10)}},                                           \
             attributes)
    REFUSED_UPDATE("adamw: gradient and moments of p", ADAMW(9, N_HYPER, NULL, &adamw));
    REFUSED_UPDATE("adamw: hyper input h", ADAMW(10, N_HYPER + 1, NULL, &adamw));
    REFUSED_UPDATE("adamw: factor for p", ADAMW(10, N_HYPER, F("f", 2), &adamw));
    REFUSED_UPDATE("adamw: decay runs of p", ADAMW(10, N_HYPER, NULL, &adamw_short));
    REFUSED_UPDATE("adamw: decay runs of p", ADAMW(10, N_HYPER, NULL, &adamw_negative));

#define SGD(n, n_hyper, scale, velocity, attributes)                                                         \
    op_sgd(g,                                                                                                \
           &(UpdateTensors){.gradient = F("g", n),                                                           \
                            .hyper = F("h", n_hyper),                                                        \
                            .factor = scale,                                                                 \
                            .parameter = F("p", 10),                                                         \
                            .moment = {velocity}},                                                           \
           attributes)
    REFUSED_UPDATE("sgd: gradient and moments of p", SGD(9, N_HYPER, NULL, NULL, &sgd));
    REFUSED_UPDATE("sgd: gradient and moments of p", SGD(10, N_HYPER, NULL, F("u", 9), &heavy));
    REFUSED_UPDATE("sgd: p needs memory for momentum", SGD(10, N_HYPER, NULL, NULL, &heavy));
    REFUSED_UPDATE("sgd: p needs memory for momentum", SGD(10, N_HYPER, NULL, F("u", 10), &sgd));
    REFUSED_UPDATE("sgd: nesterov for p", SGD(10, N_HYPER, NULL, NULL, &nesterov));
    REFUSED_UPDATE("sgd: hyper input h", SGD(10, 2, NULL, NULL, &sgd));
    REFUSED_UPDATE("sgd: factor for p", SGD(10, N_HYPER, F("f", 2), NULL, &sgd));
    REFUSED_UPDATE("sgd: decay runs of p", SGD(10, N_HYPER, NULL, NULL, &sgd_short));

#define LAMB(op, n_hyper, second, given)                                                                     \
    op(g,                                                                                                    \
       &(UpdateTensors){.gradient = F("g", 10),                                                              \
                        .hyper = F("h", n_hyper),                                                            \
                        .parameter = F("p", 10),                                                             \
                        .moment = {F("m", 10), F("v", second)},                                              \
                        .sums = given},                                                                      \
       &lamb)
    REFUSED_UPDATE("lamb_measure: gradient and two moments of p",
                   LAMB(op_lamb_measure, N_HYPER, 9, F("s", 2)));
    REFUSED_UPDATE("lamb: hyper input h", LAMB(op_lamb, 2, 10, F("s", 2)));
    REFUSED_UPDATE("lamb: there are no sums for p", LAMB(op_lamb, N_HYPER, 10, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_cost_of_adding_to_a_table),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_linear_keeps_its_input),
        cmocka_unit_test(test_only_results_need_gradients),
        cmocka_unit_test(test_descriptions),
        cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_refused_size),
        cmocka_unit_test(test_refused_heads),
        cmocka_unit_test(test_refused_updates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
