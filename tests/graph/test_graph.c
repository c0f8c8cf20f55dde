/* The passes on small graphs: what autograd shares and copies, what the planner may overlap, what moves where. */
#include "backend/null/null.h"
#include "graph/executor.h"
#include "graph/passes/eager.h"
#include "graph/passes/lazy.h"
#include "graph/passes/recompute.h"
#include "graph/passes/sums.h"
#include "harness.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const AutogradOptions autograd_options = {.copy = &OP_COPY, .gradient_place = PLACE_GRADIENT};

static void run_autograd(Graph *graph) {
    Error error = {0};
    if (autograd_run(graph, &autograd_options, &error) != STATUS_OK) fail_msg("%s", error.text);
}

static int count_nodes(const Graph *graph, const Op *op) {
    int count = 0;
    for (int i = 0; i < graph->n_nodes; i++) count += graph->node[i]->op == op;
    return count;
}

/* A loss of x (N,C): logits by a weight, then cross-entropy. */
static void record_loss(Graph *graph, Tensor *x, Tensor *targets) {
    Tensor *head = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(5, shape_columns(x->shape)), "head");
    op_cross_entropy(graph, op_linear(graph, x, head, NULL, NULL, ACTIVATION_NONE), targets, 0.5f);
}

static void shapes_are_counted_and_printed(void **state) {
    (void)state;
    char text[64];
    assert_int_equal(shape_count(SHAPE(2, 3, 4)), 24);
    assert_int_equal(shape_count(SHAPE_SCALAR), 1);
    assert_int_equal(shape_count(SHAPE(INT64_MAX, 2)), -1);
    assert_int_equal(shape_count(SHAPE(-1, 2)), -1);
    assert_int_equal(shape_rows(SHAPE(2, 3, 4)), 6);
    assert_string_equal(shape_format(SHAPE(2, 3), text, sizeof text), "(2,3)");
    assert_int_equal(dtype_info(DTYPE_BF16)->n_bytes, 2);
}

static void the_first_mistake_is_kept(void **state) {
    (void)state;
    Error error = {0};
    Graph *graph = graph_new();
    Tensor *x = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(3, 4), "x");
    Tensor *wrong = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(5, 6), "wrong");
    Tensor *y = op_linear(graph, x, wrong, NULL, NULL, ACTIVATION_NONE);
    y = op_gelu(graph, y, ACTIVATION_GELU_TANH); /* must not crash */
    y = op_linear(graph, y, wrong, NULL, NULL, ACTIVATION_NONE);
    assert_ptr_equal(y, graph->nothing);
    assert_int_equal(graph_status(graph, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "wrong"));
    graph_free(graph);
}

/* x + f(x): the gradient of the sum goes to both sides without a copy, and f's share is added into it. */
static void residual_gradients_are_shared(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Tensor *w = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(3, 4), "x");
    Tensor *targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(3), "targets");
    Tensor *x = op_copy(graph, w);
    Tensor *y = op_add(graph, x, op_gelu(graph, x, ACTIVATION_GELU_TANH));
    record_loss(graph, y, targets);
    int n_copies = count_nodes(graph, &OP_COPY);
    run_autograd(graph);
    assert_ptr_equal(x->gradient, y->gradient);
    assert_int_equal(count_nodes(graph, &OP_COPY), n_copies + 1); /* the gradient of the first copy itself */
    graph_free(graph);
}

/* a = u + v with u read again later by a node that comes before v's producer is visited: here the shared gradient
 * would be changed for u while v has not read it yet, so u gets a copy. */
static void a_shared_gradient_is_copied_before_it_changes(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Tensor *p = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(3, 4), "p");
    Tensor *q = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(3, 4), "q");
    Tensor *targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(3), "targets");
    Tensor *v = op_gelu(graph, q, ACTIVATION_GELU_ERF);
    Tensor *u = op_gelu(graph, p, ACTIVATION_GELU_ERF);
    Tensor *z = op_gelu(graph, u, ACTIVATION_GELU_TANH);
    Tensor *sum = op_add(graph, u, v);
    record_loss(graph, op_add(graph, sum, z), targets);
    run_autograd(graph);
    assert_ptr_not_equal(u->gradient, v->gradient);
    assert_int_equal(count_nodes(graph, &OP_COPY), 1);
    graph_free(graph);
}

/* Random chains with residuals: after planning, no two tensors that are alive together may share a byte, except where
 * an op works in place. Checked by brute force over nodes and tensors. */
static bool overlap(const Tensor *a, const Tensor *b) {
    return a->offset < b->offset + tensor_bytes(b) && b->offset < a->offset + tensor_bytes(a);
}

static void find_life(const Graph *graph, const Tensor *tensor, int *first, int *last) {
    *first = *last = -1;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        bool touched = node->scratch == tensor;
        for (int k = 0; k < node->n_inputs; k++)
            touched |= node->input[k] && tensor_root(node->input[k]) == tensor;
        for (int k = 0; k < node->n_outputs; k++)
            touched |= node->output[k] && tensor_root(node->output[k]) == tensor;
        if (!touched) continue;
        if (*first < 0) *first = i;
        *last = i;
    }
}

static bool takes_over(const Graph *graph, const Tensor *dying, const Tensor *born, int at) {
    const Node *node = graph->node[at];
    for (int k = 0; k < node->n_outputs && node->op->in_place; k++) {
        int source = node->op->in_place(node, k);
        if (source >= 0 && node->output[k] == born && node->input[source] == dying) return true;
    }
    return false;
}

static void check_plan(const Graph *graph) {
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *a = graph->tensor[i];
        int first_a, last_a, first_b, last_b;
        if (a->base || a->place != PLACE_ACTIVATION) continue;
        find_life(graph, a, &first_a, &last_a);
        for (int k = 0; k < i && first_a >= 0; k++) {
            Tensor *b = graph->tensor[k];
            if (b->base || b->place != PLACE_ACTIVATION || !overlap(a, b)) continue;
            find_life(graph, b, &first_b, &last_b);
            if (first_b < 0 || first_a > last_b || first_b > last_a) continue;
            bool in_place = (first_a == last_b && takes_over(graph, b, a, first_a)) ||
                            (first_b == last_a && takes_over(graph, a, b, first_b));
            if (!in_place) fail_msg("%s and %s are alive together on the same bytes", a->name, b->name);
        }
    }
}

static Graph *record_chain(int n_blocks, bool with_chunks) {
    Graph *graph = graph_new();
    Tensor *w = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(24, 24), "w");
    Tensor *start = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(10, 24), "start");
    Tensor *targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(5), "targets");
    Tensor *x = op_copy(graph, start);
    for (int block = 0; block < n_blocks; block++) {
        graph->block = block;
        Tensor *h = op_layernorm(graph, x, graph_view(graph, w, SHAPE(24), 0, "scale"), NULL, 1e-5f);
        h = op_linear(graph, h, w, NULL, NULL, ACTIVATION_GELU_TANH);
        x = block % 2 ? op_add(graph, x, h) : op_linear(graph, h, w, NULL, x, ACTIVATION_NONE);
    }
    graph->block = NO_BLOCK;
    for (int chunk = 0; chunk < 2; chunk++) {
        Tensor *rows = graph_view(graph, x, SHAPE(5, 24), chunk * 5 * 24, "rows");
        Tensor *logits = op_linear(graph, rows, w, NULL, NULL, ACTIVATION_NONE);
        op_cross_entropy(graph, logits, targets, 1.0f);
    }
    run_autograd(graph);
    if (with_chunks) assert_int_equal(eager_gradients(graph), 4);
    return graph;
}

static void live_tensors_never_overlap(void **state) {
    (void)state;
    Error error = {0};
    Backend null;
    assert_int_equal(backend_null_open(&null, &error), STATUS_OK);
    for (int blocks = 1; blocks < 7; blocks++) {
        for (int recompute = 0; recompute < 4; recompute++) {
            Graph *graph = record_chain(blocks, blocks % 2);
            recompute_run(graph, recompute);
            Program program;
            assert_int_equal(program_build(&program, "test", graph, &null, 1, &error), STATUS_OK);
            check_plan(graph);
            assert_true(program.plan.bytes[PLACE_ACTIVATION] >= program.plan.live_bytes);
            assert_true(program.plan.bytes[PLACE_ACTIVATION] < program.plan.unshared_bytes);
            graph_free(graph);
        }
    }
    null.close(null.context);
}

/* Eager gradients: the first writer in the new order overwrites, the other adds, and the section is forward. */
static void eager_gradients_keep_write_modes(void **state) {
    (void)state;
    Graph *graph = record_chain(1, true);
    bool is_written = false;
    int n_eager = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        n_eager += node->section == SECTION_FORWARD && node->phase == PHASE_BACKWARD;
        if (node->op != &OP_LINEAR_WEIGHT_GRADIENT) continue;
        assert_int_equal(node->write[0], is_written ? WRITE_ADD : WRITE_ADD_AFTER_FIRST);
        is_written = true;
    }
    assert_int_equal(n_eager, 4);
    graph_free(graph);
}

/* A table that is used at both ends of the graph: with few rows its early gradient waits for the late one. */
static void lazy_gradients_wait_when_that_is_smaller(void **state) {
    (void)state;
    for (int64_t n_rows = 4; n_rows <= 400; n_rows *= 10) {
        Error error = {0};
        Graph *graph = graph_new();
        Tensor *table = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(50, 40), "table");
        Tensor *tokens = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(1, n_rows), "tokens");
        Tensor *targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(n_rows), "targets");
        Tensor *x = op_gelu(graph, op_embedding(graph, tokens, table, NULL, NULL), ACTIVATION_GELU_TANH);
        op_cross_entropy(graph, op_linear(graph, x, table, NULL, NULL, ACTIVATION_NONE), targets, 1.0f);
        AutogradOptions options = {.copy = &OP_COPY, .gradient_place = PLACE_ACTIVATION};
        assert_int_equal(autograd_run(graph, &options, &error), STATUS_OK);
        assert_int_equal(eager_gradients(graph), 2);
        assert_int_equal(lazy_gradients(graph), n_rows < 40 ? 1 : 0);
        const Node *last = graph->node[graph->n_nodes - 1], *before = graph->node[graph->n_nodes - 2];
        assert_ptr_equal(last->op, &OP_EMBEDDING_TOKEN_GRADIENT);
        assert_int_equal(last->write[0], WRITE_ADD);
        assert_int_equal(before->op == &OP_LINEAR_WEIGHT_GRADIENT, n_rows < 40);
        if (n_rows < 40) assert_int_equal(before->section, SECTION_BACKWARD);
        graph_free(graph);
    }
}

static void recompute_repeats_all_segments_but_the_last(void **state) {
    (void)state;
    Graph *graph = record_chain(6, false);
    assert_int_equal(recompute_run(graph, 0), 0);
    int n_again = recompute_run(graph, 2);
    bool repeats[6] = {false};
    int counted = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (!graph->node[i]->is_recomputed) continue;
        counted++;
        repeats[graph->node[i]->block] = true;
        assert_int_equal(graph->node[i]->section, SECTION_BACKWARD);
    }
    assert_int_equal(counted, n_again);
    for (int block = 0; block < 6; block++) assert_int_equal(repeats[block], block < 4);
    graph_free(graph);
}

/* A layer with a bias whose output is read by `n_readers` layers; each reads it through the layer's own activation, a gelu of
 * its own, or attention. */
typedef enum { BY_ACTIVATION, BY_GELU, BY_ATTENTION } Between;

static Graph *record_layer(Between between, int n_readers, Tensor **bias) {
    Graph *graph = graph_new();
    Tensor *start = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(2, 5, 8), "start");
    Tensor *w = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(24, 8), "w");
    Tensor *down =
        graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(5, between == BY_ATTENTION ? 8 : 24), "down");
    Tensor *targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(10), "targets");
    AttentionAttributes heads = {.n_heads = 2, .n_kv_heads = 2, .head_size = 4, .scale = 0.5f};
    *bias = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(24), "bias");
    Tensor *x = op_copy(graph, start), *logits = NULL;
    Tensor *y = op_linear(graph, x, w, *bias, NULL,
                          between == BY_ACTIVATION ? ACTIVATION_GELU_TANH : ACTIVATION_NONE);
    for (int i = 0; i < n_readers; i++) {
        Tensor *read = between == BY_GELU        ? op_gelu(graph, y, ACTIVATION_GELU_TANH)
                       : between == BY_ATTENTION ? op_attention(graph, y, NULL, &heads)
                                                 : y;
        Tensor *more = op_linear(graph, read, down, NULL, NULL, ACTIVATION_NONE);
        logits = logits ? op_add(graph, logits, more) : more;
    }
    op_cross_entropy(graph, logits, targets, 0.5f);
    run_autograd(graph);
    return graph;
}

/* The node that writes the tensor, and where among its outputs; fails unless there is one. */
static Node *writer_of(const Graph *graph, const Tensor *tensor, int *output) {
    Node *writer = NULL;
    for (int i = 0; i < graph->n_nodes; i++) {
        for (int k = 0; k < graph->node[i]->n_outputs; k++) {
            if (graph->node[i]->output[k] != tensor) continue;
            assert_null(writer);
            writer = graph->node[i];
            *output = k;
        }
    }
    assert_non_null(writer);
    return writer;
}

/* Sums of columns move where the columns are made at one go by somebody who can sum, and nowhere else. */
static void column_sums_move_to_the_writer(void **state) {
    (void)state;
    static const struct {
        Between between;
        int n_readers;
        const Op *op; /* that writes the gradient of the bias afterwards */
    } cases[] = {
        {BY_ACTIVATION, 1, &OP_LINEAR_INPUT_GRADIENT},  {BY_ATTENTION, 1, &OP_ATTENTION_BACKWARD},
        {BY_GELU, 1, &OP_LINEAR_WEIGHT_GRADIENT},       /* made by an operation that does not sum */
        {BY_ACTIVATION, 2, &OP_LINEAR_WEIGHT_GRADIENT}, /* by one of its own, of what two others have added up */
        {BY_ATTENTION, 2, &OP_LINEAR_WEIGHT_GRADIENT}, /* by two, one of which adds */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Tensor *bias;
        Graph *graph = record_layer(cases[i].between, cases[i].n_readers, &bias);
        bool moves = cases[i].op != &OP_LINEAR_WEIGHT_GRADIENT;
        int before = -1, after = -1;
        Node *reader = writer_of(graph, bias->gradient, &before);
        assert_ptr_equal(reader->op, &OP_LINEAR_WEIGHT_GRADIENT);
        reader->write[before] = WRITE_ADD; /* goes along */
        assert_int_equal(move_column_sums(graph, NULL), moves);
        Node *writer = writer_of(graph, bias->gradient, &after);
        assert_ptr_equal(writer->op, cases[i].op);
        assert_int_equal(writer->write[after], WRITE_ADD);
        assert_ptr_equal(bias->gradient->producer, writer);
        assert_int_equal(reader->output[1] == NULL, moves);
        assert_non_null(reader->output[0]);
        if (moves) assert_ptr_equal(writer->output[0], reader->input[0]);
        assert_int_equal(move_column_sums(graph, NULL), 0);
        graph_free(graph);
    }
}

static bool sums_nothing(const BackendTraits *traits, const Node *node) {
    (void)traits, (void)node;
    return false;
}

/* Nor do they move past somebody who touches them, into another section, away from a node that makes nothing else, or where
 * the backend would gain nothing. */
static void column_sums_stay_where_they_must(void **state) {
    (void)state;
    for (int variant = 0; variant < 6; variant++) {
        Tensor *bias;
        Graph *graph = record_layer(BY_ATTENTION, 1, &bias);
        int output = -1, n_nodes = graph->n_nodes;
        Node *reader = writer_of(graph, bias->gradient, &output);
        Node *writer = writer_of(graph, reader->input[0], &output);
        assert_int_equal(output, 0);
        assert_ptr_equal(graph->node[n_nodes - 4],
                         writer); /* then the reader, the gradient of x, and its copy */
        if (variant == 1) writer->write[0] = WRITE_ADD;
        if (variant == 2) reader->section = SECTION_UPDATE;
        if (variant == 3) reader->output[0] = NULL;
        if (variant == 4) { /* between the two */
            Node *clear = graph_record(graph, &OP_ZERO, NULL, 0, 0, NULL, 1, TENSORS(bias->gradient));
            for (int i = n_nodes; i > n_nodes - 3; i--) graph->node[i] = graph->node[i - 1];
            graph->node[n_nodes - 3] = clear;
        }
        Backend backend = {.traits.sums_columns = variant == 5 ? sums_nothing : NULL};
        assert_int_equal(move_column_sums(graph, &backend), variant == 0);
        graph_free(graph);
    }
}

/* The null backend runs the real program and counts what the formulas say. */
static void the_null_backend_counts_the_program(void **state) {
    (void)state;
    Error error = {0};
    Backend null;
    assert_int_equal(backend_null_open(&null, &error), STATUS_OK);
    Graph *graph = record_chain(3, true);
    Program program;
    DeviceMemory memory = {0};
    Executor executor;
    assert_int_equal(program_build(&program, "test", graph, &null, 2, &error), STATUS_OK);
    device_require(&memory, &program.plan);
    assert_int_equal(device_open(&memory, &null, &error), STATUS_OK);
    assert_int_equal(memory.allocated_bytes, plan_total_bytes(&program.plan));
    assert_int_equal(executor_open(&executor, &program, &memory, &error), STATUS_OK);
    for (int micro = 0; micro < 2; micro++) {
        assert_int_equal(executor_run(&executor, SECTION_FORWARD, micro_batch(micro, 2), &error), STATUS_OK);
        assert_int_equal(executor_run(&executor, SECTION_BACKWARD, micro_batch(micro, 2), &error), STATUS_OK);
    }
    NullCounts counts = backend_null_counts(&null);
    Cost cost = program_cost(&program);
    assert_true(counts.flops > 0.0 && counts.flops == cost.flops);
    assert_true(counts.bytes > 0.0 && counts.bytes == cost.bytes);
    assert_int_equal(counts.n_instructions, 2 * graph->n_nodes);
    executor_close(&executor);
    device_close(&memory);
    graph_free(graph);
    null.close(null.context);
}

static void the_printed_program_names_everything(void **state) {
    (void)state;
    Error error = {0};
    Backend null;
    assert_int_equal(backend_null_open(&null, &error), STATUS_OK);
    Graph *graph = record_chain(2, true);
    Program program;
    assert_int_equal(program_build(&program, "test", graph, &null, 1, &error), STATUS_OK);
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    program_print(&program, stream);
    fclose(stream);
    char total[64];
    snprintf(total, sizeof total, "%zu bytes", plan_total_bytes(&program.plan));
    assert_non_null(strstr(text, total));
    assert_non_null(strstr(text, "linear_weight_gradient"));
    assert_non_null(strstr(text, "(10,24)"));
    int n_lines = 0;
    for (const char *at = text; (at = strstr(at, "  <- ")); at++) n_lines++;
    assert_int_equal(n_lines, graph->n_nodes);
    free(text);
    graph_free(graph);
    null.close(null.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_counted_and_printed),
        cmocka_unit_test(the_first_mistake_is_kept),
        cmocka_unit_test(residual_gradients_are_shared),
        cmocka_unit_test(a_shared_gradient_is_copied_before_it_changes),
        cmocka_unit_test(live_tensors_never_overlap),
        cmocka_unit_test(eager_gradients_keep_write_modes),
        cmocka_unit_test(lazy_gradients_wait_when_that_is_smaller),
        cmocka_unit_test(recompute_repeats_all_segments_but_the_last),
        cmocka_unit_test(column_sums_move_to_the_writer),
        cmocka_unit_test(column_sums_stay_where_they_must),
        cmocka_unit_test(the_null_backend_counts_the_program),
        cmocka_unit_test(the_printed_program_names_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
