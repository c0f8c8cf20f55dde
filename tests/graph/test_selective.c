/* Selective recomputation on small graphs: what is made again, of what, and where. */
#include "graph/passes/selective.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { N = 6, C = 8 };

static Tensor *parameter(Graph *graph, int64_t rows, int64_t columns, const char *name) {
    return graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, rows ? SHAPE(rows, columns) : SHAPE(columns), "%s",
                        name);
}

static Tensor *layer(Graph *graph, Tensor *x, int64_t outputs, Tensor *residual, Activation activation) {
    return op_linear(graph, x, parameter(graph, outputs, shape_columns(x->shape), "w"), NULL, residual,
                     activation);
}

static Tensor *norm(Graph *graph, Tensor *x) {
    return op_layernorm(graph, x, parameter(graph, 0, C, "norm.weight"), parameter(graph, 0, C, "norm.bias"),
                        1e-5f);
}

static Tensor *begin(Graph **graph) {
    *graph = graph_new();
    return layer(*graph, graph_tensor(*graph, PLACE_INPUT, DTYPE_F32, SHAPE(N, C), "x"), C, NULL,
                 ACTIVATION_NONE);
}

/* The loss of x, its backward, and the pass; returns how many nodes were added. */
static int end(Graph *graph, Tensor *x) {
    Error error = {0};
    AutogradOptions options = {.copy = &OP_COPY, .gradient_place = PLACE_GRADIENT};
    op_cross_entropy(graph, layer(graph, x, 5, NULL, ACTIVATION_NONE),
                     graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(N), "targets"), 0.5f);
    if (autograd_run(graph, &options, &error) != STATUS_OK) fail_msg("%s", error.text);
    int n_before = graph->n_nodes, n = selective_run(graph);
    assert_int_equal(graph->n_nodes, n_before + n);
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    return n;
}

/* The i-th node that was added. */
static int added(const Graph *graph, int i) {
    for (int k = 0; k < graph->n_nodes; k++)
        if (graph->node[k]->is_recomputed && i-- == 0) return k;
    fail_msg("no such node");
    return -1;
}

static bool reads(const Node *node, const Tensor *tensor) {
    for (int k = 0; k < node->n_inputs; k++)
        if (node->input[k] && tensor_root(node->input[k]) == tensor) return true;
    return false;
}

static bool is_read_in_backward(const Graph *graph, const Tensor *tensor) {
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->section == SECTION_BACKWARD && reads(graph->node[i], tensor)) return true;
    return false;
}

/* In front of its first reader, and of what is kept. */
static void a_norm_and_an_activation_are_made_again(void **state) {
    (void)state;
    Graph *graph;
    Tensor *x = begin(&graph), *normed = norm(graph, x);
    Tensor *h = layer(graph, normed, 4 * C, NULL, ACTIVATION_GELU_TANH);
    const Node *first = h->producer;
    Tensor *before = first->output[1];
    assert_int_equal(end(graph, layer(graph, h, C, x, ACTIVATION_NONE)), 2);
    int gelu = added(graph, 0), again = added(graph, 1);
    assert_ptr_equal(graph->node[gelu]->op, &OP_GELU);
    assert_ptr_equal(graph->node[gelu]->input[0], before);
    assert_ptr_equal(graph->node[again]->op, &OP_LAYERNORM);
    assert_ptr_equal(graph->node[again]->input[0], x);
    for (int i = 0; i < 2; i++) {
        int at = added(graph, i);
        assert_int_equal(graph->node[at]->section, SECTION_BACKWARD);
        assert_true(reads(graph->node[at + 1], graph->node[at]->output[0]));
        assert_ptr_equal(graph->node[at + 1]->op, &OP_LINEAR_WEIGHT_GRADIENT);
    }
    assert_false(is_read_in_backward(graph, h));
    assert_false(is_read_in_backward(graph, normed));
    assert_true(is_read_in_backward(graph, before));
    assert_true(is_read_in_backward(graph, x));
    assert_true(first->is_from_stored); /* its activation, as it is done again */
    assert_false(normed->producer->is_from_stored);
    /* The statistics that the norm's backward reads are the repeated ones, too. */
    assert_false(is_read_in_backward(graph, normed->producer->output[1]));
    assert_true(is_read_in_backward(graph, graph->node[again]->output[1]));
    graph_free(graph);
}

/* What GEMMs make stays, and so does a sum of two that nobody else keeps. */
static void what_would_take_as_much_is_kept(void **state) {
    (void)state;
    Graph *graph;
    Tensor *x = begin(&graph);
    Tensor *sum =
        op_add(graph, layer(graph, x, C, NULL, ACTIVATION_NONE), layer(graph, x, C, NULL, ACTIVATION_NONE));
    assert_int_equal(end(graph, norm(graph, sum)), 1); /* the norm alone, for the head's weight */
    assert_ptr_equal(graph->node[added(graph, 0)]->op, &OP_LAYERNORM);
    assert_true(is_read_in_backward(graph, sum));
    graph_free(graph);
}

/* The norm alone of a fused one, of the sum, which is not summed again. */
static void a_fused_norm_is_made_again_of_its_sum(void **state) {
    (void)state;
    for (int has_mean = 0; has_mean < 2; has_mean++) {
        Graph *graph;
        Tensor *x = begin(&graph);
        ResidualNormAttributes attributes = {.epsilon = 1e-5f, .has_mean = has_mean};
        ResidualNorm both = op_residual_norm(graph, x, layer(graph, x, C, NULL, ACTIVATION_NONE),
                                             parameter(graph, 0, C, "norm.weight"), NULL, NULL, &attributes);
        assert_int_equal(end(graph, layer(graph, both.normed, C, both.sum, ACTIVATION_NONE)), 1);
        const Node *again = graph->node[added(graph, 0)];
        assert_ptr_equal(again->op, has_mean ? &OP_LAYERNORM : &OP_RMSNORM);
        assert_ptr_equal(again->input[0], both.sum);
        assert_false(is_read_in_backward(graph, both.normed));
        graph_free(graph);
    }
}

/* Dropout reads what swiglu made, which nobody keeps: both are repeated, one behind the other. */
static void a_few_in_a_row(void **state) {
    (void)state;
    Graph *graph;
    Tensor *x = begin(&graph);
    Tensor *random = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(N_RANDOM_WORDS), "random");
    Tensor *wide = layer(graph, x, 4 * C, NULL, ACTIVATION_NONE), *gated = op_swiglu(graph, wide);
    Tensor *dropped = op_dropout(graph, gated, random, 0.5f, 3);
    assert_int_equal(end(graph, layer(graph, dropped, C, NULL, ACTIVATION_NONE)), 2);
    int first = added(graph, 0);
    assert_ptr_equal(graph->node[first]->op, &OP_SWIGLU);
    assert_ptr_equal(graph->node[first]->input[0], wide);
    assert_ptr_equal(graph->node[first + 1]->op, &OP_DROPOUT);
    assert_ptr_equal(graph->node[first + 1]->input[0], graph->node[first]->output[0]);
    assert_ptr_equal(graph->node[first + 1]->input[1], random);
    assert_true(reads(graph->node[first + 2], graph->node[first + 1]->output[0]));
    assert_false(is_read_in_backward(graph, dropped));
    graph_free(graph);
}

/* No longer than a few: five in a row are kept at their end. */
static void but_not_many(void **state) {
    (void)state;
    Graph *graph;
    Tensor *x = begin(&graph);
    Tensor *random = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(N_RANDOM_WORDS), "random"), *y = x;
    for (int i = 0; i < 8; i++) y = op_dropout(graph, y, random, 0.5f, i);
    assert_int_equal(end(graph, layer(graph, y, C, NULL, ACTIVATION_NONE)), 0);
    assert_true(is_read_in_backward(graph, y));
    graph_free(graph);
}

/* A view of it is read: so is a view of what is made again. */
static void views_follow(void **state) {
    (void)state;
    Graph *graph;
    Tensor *x = begin(&graph), *normed = norm(graph, x);
    Tensor *rows = graph_view(graph, normed, SHAPE(N / 2, 2 * C), 0, "rows");
    Tensor *y = layer(graph, rows, 2 * C, NULL, ACTIVATION_NONE);
    assert_int_equal(end(graph, graph_view(graph, y, SHAPE(N, C), 0, "all")), 1);
    const Node *again = graph->node[added(graph, 0)], *reader = graph->node[added(graph, 0) + 1];
    assert_ptr_equal(tensor_root(reader->input[1]), again->output[0]);
    assert_true(shape_equal(reader->input[1]->shape, rows->shape));
    graph_free(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_norm_and_an_activation_are_made_again),
        cmocka_unit_test(what_would_take_as_much_is_kept),
        cmocka_unit_test(a_fused_norm_is_made_again_of_its_sum),
        cmocka_unit_test(a_few_in_a_row),
        cmocka_unit_test(but_not_many),
        cmocka_unit_test(views_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
