/* The backward in two, on small graphs: what moves and what stays, whatever the operations are; copies where a gradient
 * changes before it is read; sums over micro-batches in the same order, to the bit. A whole model in every order of a pipeline
 * is in tests/model/test_gpt_chunks.c. */
#include "backend/cpu/cpu.h"
#include "graph/op.h"
#include "graph/passes/autograd.h"
#include "graph/passes/split_backward.h"
#include "graph/wiring.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* ---- Operations that nobody knows */

static Status compute_nothing(const KernelCall *call, Error *error) {
    (void)call, (void)error;
    return STATUS_OK;
}

static const Op ANY = {.name = "any", .reference = compute_nothing};

static Tensor *tensor(Graph *graph, Place place, const char *name) {
    return graph_tensor(graph, place, DTYPE_F32, SHAPE(4), "%s", name);
}

static Node *any(Graph *graph, Tensor *in, Tensor *out) {
    return graph_record(graph, &ANY, NULL, 0, 1, TENSORS(in), 1, TENSORS(out));
}

static int n_in(const Graph *graph, Section section) {
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) n += graph->node[i]->section == section;
    return n;
}

static const Node *find_writer(const Graph *graph, const Tensor *tensor) {
    for (int i = 0; i < graph->n_nodes; i++) {
        for (int k = 0; k < graph->node[i]->n_outputs; k++)
            if (graph->node[i]->output[k] == tensor) return graph->node[i];
    }
    fail_msg("nobody writes %s", tensor->name);
    return NULL;
}

/* dy -> dx, wanted; dy -> dw; dw needs something of its own, which waits with it. */
static void what_nobody_waits_for_moves(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Tensor *x = tensor(graph, PLACE_INPUT, "x"), *dx = tensor(graph, PLACE_ACTIVATION, "dx");
    Tensor *dy = tensor(graph, PLACE_ACTIVATION, "dy"), *own = tensor(graph, PLACE_ACTIVATION, "own");
    Tensor *dw = tensor(graph, PLACE_GRADIENT, "dw");
    any(graph, x, tensor(graph, PLACE_ACTIVATION, "y"));
    graph->section = SECTION_BACKWARD;
    any(graph, x, dy);
    Node *prepares = any(graph, dy, own), *weight = any(graph, own, dw), *wanted = any(graph, dy, dx);
    graph->section = SECTION_UPDATE;
    Node *update = any(graph, dw, tensor(graph, PLACE_PARAMETER, "w"));
    assert_int_equal(split_backward(graph, TENSORS(dx), 1, &OP_COPY), 2);
    assert_int_equal(graph_status(graph, &(Error){0}), STATUS_OK);
    assert_int_equal(prepares->section, SECTION_WEIGHT);
    assert_int_equal(weight->section, SECTION_WEIGHT);
    assert_int_equal(wanted->section, SECTION_BACKWARD);
    assert_int_equal(find_writer(graph, dy)->section, SECTION_BACKWARD);
    assert_int_equal(graph->n_nodes, 6);        /* no copy: nobody changes dy */
    assert_ptr_equal(graph->node[3], prepares); /* behind the backward, in their order, before the update */
    assert_ptr_equal(graph->node[4], weight);
    assert_ptr_equal(graph->node[5], update);
    graph_free(graph);
}

/* dy is read by a weight's gradient and added to later: two readers of the same value have one copy, a later value another. */
static void what_changes_is_copied(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Tensor *x = tensor(graph, PLACE_INPUT, "x"), *dy = tensor(graph, PLACE_ACTIVATION, "dy");
    Tensor *dw[4];
    for (int i = 0; i < 4; i++) dw[i] = tensor(graph, PLACE_GRADIENT, "dw");
    graph->section = SECTION_BACKWARD;
    any(graph, x, dy);
    Node *weight[4];
    weight[0] = any(graph, dy, dw[0]);
    weight[1] = any(graph, dy, dw[1]);
    any(graph, x, dy)->write[0] = WRITE_ADD;
    weight[2] = any(graph, dy, dw[2]);
    any(graph, x, dy)->write[0] = WRITE_ADD; /* dy is wanted: this one stays too */
    weight[3] = any(graph, dy, dw[3]);
    assert_int_equal(split_backward(graph, TENSORS(dy), 1, &OP_COPY), 4);
    assert_int_equal(graph->n_nodes, 9);
    assert_ptr_not_equal(weight[0]->input[0], dy);
    assert_ptr_equal(weight[0]->input[0], weight[1]->input[0]);
    assert_ptr_not_equal(weight[2]->input[0], dy);
    assert_ptr_not_equal(weight[2]->input[0], weight[0]->input[0]);
    assert_ptr_equal(weight[3]->input[0], dy); /* nobody changes it any more */
    static const bool is_copy[] = {false, true, false, true, false, false, false, false, false};
    for (int i = 0; i < graph->n_nodes; i++) {
        assert_int_equal(graph->node[i]->op == &OP_COPY, is_copy[i]);
        assert_int_equal(graph->node[i]->section, i < 5 ? SECTION_BACKWARD : SECTION_WEIGHT);
    }
    graph_free(graph);
}

/* Communication, what reads state that changes, and a gradient that somebody who stays writes too. */
static void what_must_stay_stays(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Tensor *x = tensor(graph, PLACE_INPUT, "x"), *dy = tensor(graph, PLACE_ACTIVATION, "dy");
    Tensor *tied = tensor(graph, PLACE_GRADIENT, "tied"), *number = tensor(graph, PLACE_STATE, "number");
    Tensor *sent = tensor(graph, PLACE_ACTIVATION, "sent"), *dx = tensor(graph, PLACE_ACTIVATION, "dx");
    any(graph, x, number);
    graph->section = SECTION_BACKWARD;
    any(graph, x, dy);
    Node *early = any(graph, dy, tied); /* with the last one */
    Node *reads =
        any(graph, number, tensor(graph, PLACE_GRADIENT, "dw")); /* another micro-batch may change it */
    Node *needed = any(graph, dy, sent), *message = any(graph, sent, sent); /* what it sends, too */
    message->phase = PHASE_COMMUNICATION;
    Node *moves = any(graph, dy, tensor(graph, PLACE_GRADIENT, "dv"));
    any(graph, dy, dx);
    Node *both = graph_record(graph, &ANY, NULL, 0, 1, TENSORS(dy), 2, TENSORS(dx, tied));
    both->write[1] = WRITE_ADD;
    assert_int_equal(split_backward(graph, TENSORS(dx), 1, &OP_COPY), 1);
    const Node *staying[] = {early, reads, needed, message, both};
    for (int i = 0; i < 5; i++) assert_int_equal(staying[i]->section, SECTION_BACKWARD);
    assert_int_equal(moves->section, SECTION_WEIGHT);
    graph_free(graph);
}

/* What two chunks write or touch cannot wait: the other one may have done with it. */
static void what_chunks_share_stays(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Tensor *x = tensor(graph, PLACE_INPUT, "x"), *stream = tensor(graph, PLACE_ACTIVATION, "stream");
    Tensor *tied = tensor(graph, PLACE_GRADIENT, "tied"), *dw = tensor(graph, PLACE_GRADIENT, "dw");
    Tensor *other = tensor(graph, PLACE_INPUT, "other"); /* an input of the upper chunk */
    any(graph, x, stream);
    graph->section = SECTION_BACKWARD;
    graph->chunk = 1;
    Node *upper = any(graph, stream, tensor(graph, PLACE_GRADIENT, "du")), *first = any(graph, other, tied);
    graph->chunk = 0;
    Node *second = any(graph, x, tied), *moves = any(graph, x, dw);
    second->write[0] = WRITE_ADD;
    graph->chunk = 0;
    assert_int_equal(split_backward(graph, NULL, 0, &OP_COPY), 1);
    assert_int_equal(upper->section, SECTION_BACKWARD);
    assert_int_equal(first->section, SECTION_BACKWARD);
    assert_int_equal(second->section, SECTION_BACKWARD);
    assert_int_equal(moves->section, SECTION_WEIGHT);
    graph_free(graph);
}

static void it_comes_before_sums_over_ranks(void **state) {
    (void)state;
    Error error = {0};
    Graph *graph = graph_new();
    Tensor *x = tensor(graph, PLACE_INPUT, "x");
    graph->section = SECTION_BACKWARD;
    any(graph, x, tensor(graph, PLACE_GRADIENT, "dw"))->is_last_only = true;
    assert_int_equal(split_backward(graph, NULL, 0, &OP_COPY), 0);
    assert_int_equal(graph_status(graph, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "runs in the last micro-batch only"));
    graph_free(graph);
}

/* ---- Bits: residual branches, whose gradient is shared and added to */

enum { ROWS = 6, WIDE = 8, LAYERS = 3, MICRO = 4 };

typedef struct {
    Wiring wiring;
    Tensor *x, *targets, *weight[LAYERS + 1];
    int n_copies;
} Net;

static void open_net(Net *net, const Backend *backend, bool splits) {
    Error error = {0};
    *net = (Net){.wiring = {.graph = graph_new()}};
    Graph *graph = net->wiring.graph;
    net->x = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(ROWS, WIDE), "x");
    net->targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(ROWS), "targets");
    for (int i = 0; i <= LAYERS; i++)
        net->weight[i] = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(WIDE, WIDE), "w%d", i);
    Tensor *stream = op_linear(graph, net->x, net->weight[LAYERS], NULL, NULL, ACTIVATION_NONE);
    Tensor *embedded = stream;
    for (int i = 0; i < LAYERS; i++) {
        Tensor *branch = op_gelu(graph, stream, ACTIVATION_GELU_TANH);
        stream = op_add(graph, stream, op_linear(graph, branch, net->weight[i], NULL, NULL, ACTIVATION_NONE));
    }
    op_cross_entropy(graph, stream, net->targets, 0.25F);
    AutogradOptions autograd = {.copy = &OP_COPY, .gradient_place = PLACE_GRADIENT};
    assert_int_equal(autograd_run(graph, &autograd, &error), STATUS_OK);
    int n_before = graph->n_nodes;
    if (splits) assert_int_equal(split_backward(graph, TENSORS(embedded->gradient), 1, &OP_COPY), LAYERS + 1);
    net->n_copies = graph->n_nodes - n_before;
    static const int frames[] = {MICRO};
    WiringOptions options = {.name = "net", .n_micro_batches = MICRO, .n_chunks = 1, .chunk_frames = frames};
    if (wiring_plan(&net->wiring.program, graph, backend, &options, &net->wiring.memory, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    assert_int_equal(wiring_open_alone(&net->wiring, backend, &error), STATUS_OK);
    float weight[WIDE * WIDE];
    for (int i = 0; i <= LAYERS; i++) {
        for (int k = 0; k < WIDE * WIDE; k++) weight[k] = (float)((k * 7 + i * 13) % 11 - 5) * 0.11F;
        assert_int_equal(executor_upload(&net->wiring.executor, net->weight[i], weight, &error), STATUS_OK);
    }
}

static void run_part(Net *net, Section section, int micro) {
    Error error = {0};
    MicroBatch position = {.is_first = micro == 0, .is_last = micro == MICRO - 1, .frame = micro};
    if (section == SECTION_FORWARD) {
        float x[ROWS * WIDE];
        int32_t targets[ROWS];
        for (int i = 0; i < ROWS * WIDE; i++) x[i] = (float)((i * 5 + micro * 3) % 17 - 8) * 0.2F;
        for (int i = 0; i < ROWS; i++) targets[i] = (i + micro) % WIDE;
        assert_int_equal(executor_upload_input(&net->wiring.executor, net->x, micro, x, &error), STATUS_OK);
        assert_int_equal(executor_upload_input(&net->wiring.executor, net->targets, micro, targets, &error),
                         STATUS_OK);
    }
    assert_int_equal(executor_run(&net->wiring.executor, section, position, &error), STATUS_OK);
}

static void sums_have_the_same_bits(void **state) {
    (void)state;
    Error error = {0};
    Backend backend;
    Net whole, split;
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    open_net(&whole, &backend, false);
    open_net(&split, &backend, true);
    assert_true(split.n_copies > 0); /* the stream's gradient is added to behind each branch */
    for (int micro = 0; micro < MICRO; micro++) {
        run_part(&whole, SECTION_FORWARD, micro);
        run_part(&whole, SECTION_BACKWARD, micro);
        run_part(&split, SECTION_FORWARD, micro);
    }
    for (int micro = 0; micro < MICRO; micro++) { /* weights are two backwards behind */
        run_part(&split, SECTION_BACKWARD, micro);
        if (micro >= 2) run_part(&split, SECTION_WEIGHT, micro - 2);
    }
    for (int micro = MICRO - 2; micro < MICRO; micro++) run_part(&split, SECTION_WEIGHT, micro);
    for (int i = 0; i <= LAYERS; i++) {
        float expected[WIDE * WIDE], found[WIDE * WIDE];
        const Tensor *a = whole.weight[i]->gradient, *b = split.weight[i]->gradient;
        assert_int_equal(executor_download(&whole.wiring.executor, a, expected, &error), STATUS_OK);
        assert_int_equal(executor_download(&split.wiring.executor, b, found, &error), STATUS_OK);
        assert_memory_equal(expected, found, sizeof found);
    }
    assert_int_equal(n_in(split.wiring.graph, SECTION_WEIGHT), LAYERS + 1);
    wiring_close_alone(&whole.wiring);
    wiring_close_alone(&split.wiring);
    backend.close(backend.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_nobody_waits_for_moves),
        cmocka_unit_test(what_changes_is_copied),
        cmocka_unit_test(what_must_stay_stays),
        cmocka_unit_test(what_chunks_share_stays),
        cmocka_unit_test(it_comes_before_sums_over_ranks),
        cmocka_unit_test(sums_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
