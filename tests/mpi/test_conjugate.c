/* Communication that a model records in its forward: what it brings, and the gradients that autograd makes of
 * it, against the same model on one rank or against values computed here. With passes and without, f32 and
 * bf16, even and uneven slices.
 *
 * Ranks: 1 2 3 4 */
#include "conjugate_support.h"

static Comm messages; /* the same ranks, for what is not a collective */

/* ---- two layers, split by columns and by rows */

enum { N = 13, C = 10, F = 17, N_BLOCKS = 3 };

typedef struct {
    int64_t rows[MAX_RANKS + 1], wide[MAX_RANKS + 1]; /* borders of N rows and of F columns */
    bool is_sequence;                                 /* the stream is split by rows */
    bool is_row_style; /* gelu behind the second sum, as a layer split by rows first */
} Split;

/* Uneven ones leave the first rank nothing where there are three or more. */
static Split split_of(const Comm *comm, bool is_uneven, bool is_sequence, bool is_row_style) {
    Split split = {.is_sequence = is_sequence, .is_row_style = is_row_style};
    int size = comm ? comm->size : 1;
    comm_even_borders(N, size, 1, split.rows);
    comm_even_borders(F, size, 1, split.wide);
    if (is_uneven && size > 1) split.rows[1] = size > 2 ? 0 : 4;
    if (is_uneven && size > 1) split.wide[1] = 3;
    return split;
}

/* Norm, wide layer, narrow layer, residual addition. The norm's weight is whole on every rank: where its rows
 * are split, its gradient is a sum over the ranks. */
static Tensor *record_block(Model *model, const Split *split, Tensor *x, int block) {
    Graph *graph = model->wiring.graph;
    Comm *comm = model->comm;
    int rank = comm ? comm->rank : 0, seed = 10 * (block + 1);
    int64_t first = split->wide[rank], n = split->wide[rank + 1] - first;
    graph->block = block;
    Tensor *scale = whole(model, seed, SHAPE(C));
    Tensor *wide = parameter(model, PLACE_PARAMETER, seed + 1, SHAPE(n, C), first, 0, C);
    Tensor *bias = parameter(model, PLACE_PARAMETER, seed + 2, SHAPE(n), 0, first, F);
    Tensor *narrow = parameter(model, PLACE_PARAMETER, seed + 3, SHAPE(C, n), 0, first, F);
    Tensor *end = rank == 0 ? whole(model, seed + 4, SHAPE(C)) : NULL; /* added once */
    Tensor *h =
        op_rmsnorm(graph, x, split->is_sequence ? op_parallel_copy(graph, comm, scale) : scale, 1e-3f);
    h = split->is_sequence ? op_parallel_all_gather(graph, comm, h, SHAPE(N, C), split->rows)
                           : op_parallel_copy(graph, comm, h);
    h = op_linear(graph, h, wide, bias, NULL, ACTIVATION_GELU_TANH);
    h = op_linear(graph, h, narrow, end, NULL, ACTIVATION_NONE);
    h = split->is_sequence ? op_parallel_reduce_scatter(graph, comm, h, split->rows)
                           : op_parallel_sum(graph, comm, h);
    if (split->is_row_style) h = op_gelu(graph, h, ACTIVATION_GELU_TANH);
    x = op_add(graph, x, h);
    graph->block = NO_BLOCK;
    return x;
}

static void record_layers(Model *model, const Split *split) {
    int rank = model->comm ? model->comm->rank : 0;
    int64_t first = split->is_sequence ? split->rows[rank] : 0;
    int64_t n = split->is_sequence ? split->rows[rank + 1] - first : N;
    Tensor *x = parameter(model, PLACE_PARAMETER, 1, SHAPE(n, C), first, 0, C);
    for (int block = 0; block < N_BLOCKS; block++) x = record_block(model, split, x, block);
    record_loss(model, x, 2, first);
}

static int count_ops(const Graph *graph, const Op *op, Section section) {
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++)
        n += graph->node[i]->op == op && graph->node[i]->section == section;
    return n;
}

static void check_layers(bool is_uneven, bool is_sequence, bool is_row_style, int recompute, DType dtype) {
    Model split, serial;
    snprintf(doing, sizeof doing, "uneven %d, sequence %d, row style %d, recompute %d, %s: ", is_uneven,
             is_sequence, is_row_style, recompute, dtype_info(dtype)->name);
    open_model(&serial, NULL, dtype);
    Split alone = split_of(NULL, false, is_sequence, is_row_style);
    record_layers(&serial, &alone);
    run_model(&serial, -1);
    open_model(&split, &world, dtype);
    Split parts = split_of(&world, is_uneven, is_sequence, is_row_style);
    record_layers(&split, &parts);
    run_model(&split, recompute);
    compare(&split, &serial, is_sequence, dtype == DTYPE_F32 ? 2e-5 : 0.08);
    const Graph *graph = split.wiring.graph;
    int n = world.size > 1 ? N_BLOCKS : 0, n_again = world.size > 1 && recompute == 1 ? N_BLOCKS - 1 : 0;
    if (is_sequence) { /* each way once a block; only what gathers is done again */
        assert_int_equal(count_ops(graph, &OP_ALL_GATHER, SECTION_FORWARD), n);
        assert_int_equal(count_ops(graph, &OP_REDUCE_SCATTER, SECTION_FORWARD), n);
        assert_int_equal(count_ops(graph, &OP_ALL_GATHER, SECTION_BACKWARD), n + n_again);
        assert_int_equal(count_ops(graph, &OP_REDUCE_SCATTER, SECTION_BACKWARD), n);
    } else {
        assert_int_equal(count_ops(graph, &OP_ALL_REDUCE, SECTION_FORWARD), n);
        assert_int_equal(count_ops(graph, &OP_ALL_REDUCE, SECTION_BACKWARD), n);
    }
    if (world.size == 1 && recompute < 1) assert_int_equal(graph->n_nodes, serial.wiring.graph->n_nodes);
    close_model(&split);
    close_model(&serial);
    *doing = 0;
}

static void test_layers(void **state) {
    (void)state;
    for (int is_uneven = 0; is_uneven < 2; is_uneven++) {
        check_layers(is_uneven, false, false, -1, DTYPE_F32);
        check_layers(is_uneven, false, true, 1, DTYPE_F32); /* the backward reads what was summed */
        check_layers(is_uneven, false, false, 0, DTYPE_BF16);
        check_layers(is_uneven, true, false, -1, DTYPE_F32);
        check_layers(is_uneven, true, false, 0, DTYPE_F32);
        check_layers(is_uneven, true, true, 1, DTYPE_F32);
        check_layers(is_uneven, true, false, 1, DTYPE_BF16);
    }
}

/* A copy that nobody else reads takes no memory, and one that somebody does keeps what he reads. */
static void test_copies_cost_nothing(void **state) {
    (void)state;
    if (world.size == 1) return;
    Model model;
    open_model(&model, &world, DTYPE_F32);
    Split split = split_of(&world, false, false, false);
    record_layers(&model, &split);
    run_model(&model, -1);
    for (int i = 0; i < model.wiring.graph->n_nodes; i++) {
        const Node *node = model.wiring.graph->node[i];
        if (node->op != &OP_COPY || !node->is_passed_by) continue;
        if (node->section == SECTION_FORWARD)
            assert_int_equal(node->input[0]->offset, node->output[0]->offset);
    }
    close_model(&model);
}

/* ---- one operation, by numbers */

/* y's gradient is 2 (y - target). */
typedef double (*Element)(int rank, int64_t i);

static double x_of(int rank, int64_t i) {
    return (double)number(50 + rank, i);
}

static double target_of(int rank, int64_t i) {
    return (double)number(70 + rank, i);
}

static Tensor *own_parameter(Model *model, Shape shape) {
    return whole(model, 50 + world.rank, shape);
}

/* Split and join: what goes in comes out, and every rank gets the whole gradient, or its part of it. */
static void test_split_and_join(void **state) {
    (void)state;
    int64_t rows[MAX_RANKS + 1];
    comm_even_borders(5, world.size, 1, rows);
    Model model;
    open_model(&model, &world, DTYPE_F32);
    Tensor *x = whole(&model, 3, SHAPE(5, 4));
    Tensor *part = op_parallel_split(model.wiring.graph, &world, x, rows);
    Tensor *joined = op_parallel_join(model.wiring.graph, &world, part, SHAPE(5, 4), NULL);
    record_loss(&model, joined, 4, 0);
    run_model(&model, -1);
    float *got = values_of(&model, x->gradient);
    for (int64_t i = 0; i < 20; i++)
        check_near((double)got[i], 2.0 * (double)(number(3, i) - number(4, i)), 1e-6, "split and join", i);
    free(got);
    close_model(&model);
}

static int64_t n_between(int from, int to) {
    return (from + 2 * to) % 4; /* rows; 0 for some */
}

/* Rows go to others and their gradients come back. x is read by another, too. */
static void check_all_to_all(DType dtype) {
    enum { COLUMNS = 3 };
    int64_t out[MAX_RANKS + 1] = {0}, in[MAX_RANKS + 1] = {0};
    int size = world.size, rank = world.rank;
    for (int r = 0; r < size; r++) {
        out[r + 1] = out[r] + n_between(rank, r);
        in[r + 1] = in[r] + n_between(r, rank);
    }
    Model model;
    open_model(&model, &world, dtype);
    Tensor *x = own_parameter(&model, SHAPE(out[size], COLUMNS));
    Tensor *y = op_parallel_all_to_all(model.wiring.graph, &world, x, out, in);
    record_loss(&model, y, 70 + rank, 0);
    record_loss(&model, x, 90 + rank, 0); /* a second contribution; the loss is that of the last */
    run_model(&model, -1);
    float *got = values_of(&model, x->gradient);
    for (int r = 0; r < size; r++) {
        int64_t place = 0; /* of this rank's rows among those that come to rank r */
        for (int before = 0; before < rank; before++) place += n_between(before, r);
        for (int64_t i = out[r] * COLUMNS; i < out[r + 1] * COLUMNS; i++) {
            int64_t there = place * COLUMNS + i - out[r] * COLUMNS;
            double want = 2.0 * (x_of(rank, i) - target_of(r, there)) +
                          2.0 * (x_of(rank, i) - (double)number(90 + rank, i));
            check_near((double)got[i], want, dtype == DTYPE_F32 ? 1e-5 : 0.05, "all-to-all", i);
        }
    }
    free(got);
    close_model(&model);
}

static void test_all_to_all(void **state) {
    (void)state;
    check_all_to_all(DTYPE_F32);
    check_all_to_all(DTYPE_BF16);
    check_all_to_all(DTYPE_F16);
}

/* Positions of (B,T,C), which are not its first dimension: gathered, and put in their places. Every rank adds
 * to the gradient. */
static void test_positions(void **state) {
    (void)state;
    enum { B = 2, T = 7, COLUMNS = 3 };
    int size = world.size, rank = world.rank;
    int64_t positions[MAX_RANKS + 1], rows[MAX_RANKS + 1];
    comm_even_borders(T, size, 1, positions);
    if (size > 1) positions[1] = 1;
    for (int r = 0; r <= size; r++) rows[r] = B * positions[r];
    int64_t first = positions[rank], n = positions[rank + 1] - first;
    Model model;
    open_model(&model, &world, DTYPE_F32);
    Tensor *x = own_parameter(&model, SHAPE(B, n, COLUMNS));
    Tensor *y = op_parallel_all_gather(model.wiring.graph, &world, x, SHAPE(B * T, COLUMNS), rows);
    y = op_unpack(model.wiring.graph, y, SHAPE(B, T, COLUMNS), 1, size, positions);
    record_loss(&model, y, 4, 0);
    run_model(&model, 0);
    float *got = values_of(&model, x->gradient);
    for (int64_t i = 0; i < B * n * COLUMNS; i++) {
        int64_t b = i / (n * COLUMNS), rest = i % (n * COLUMNS);
        double target = (double)number(4, (b * T + first) * COLUMNS + rest);
        check_near((double)got[i], size * 2.0 * (x_of(rank, i) - target), 1e-5, "positions", i);
    }
    free(got);
    close_model(&model);
}

/* From all heads of some positions to some heads of all of them: pack, and all-to-all. */
static void test_heads(void **state) {
    (void)state;
    enum { T = 9, HEADS = 5, HEAD = 2 };
    int size = world.size, rank = world.rank;
    int64_t positions[MAX_RANKS + 1], heads[MAX_RANKS + 1], out[MAX_RANKS + 1], in[MAX_RANKS + 1];
    comm_even_borders(T, size, 1, positions);
    comm_even_borders(HEADS, size, 1, heads);
    int64_t first = positions[rank], n = positions[rank + 1] - first;
    int64_t first_head = heads[rank], n_heads = heads[rank + 1] - first_head;
    for (int r = 0; r <= size; r++) out[r] = n * heads[r], in[r] = n_heads * positions[r];
    Model model;
    open_model(&model, &world, DTYPE_F32);
    Tensor *x = parameter(&model, PLACE_PARAMETER, 3, SHAPE(n, HEADS, HEAD), first * HEADS, 0, HEAD);
    Tensor *y = op_pack(model.wiring.graph, x, 1, size, heads);
    y = op_parallel_all_to_all(model.wiring.graph, &world, y, out, in); /* (T, n_heads, HEAD) */
    y = graph_view(model.wiring.graph, y, SHAPE(T, n_heads * HEAD), 0, "heads");
    Tensor *target = parameter(&model, PLACE_INPUT, 4, y->shape, 0, first_head * HEAD, HEADS * HEAD);
    op_squared_error(model.wiring.graph, y, target, 1.0f);
    run_model(&model, 0);
    float *got = values_of(&model, x->gradient);
    for (int64_t i = 0; i < n * HEADS * HEAD; i++) {
        int64_t at = first * HEADS * HEAD + i;
        check_near((double)got[i], 2.0 * (double)(number(3, at) - number(4, at)), 1e-5, "heads", i);
    }
    free(got);
    close_model(&model);
}

/* Round the ring twice over, tensors of another size on each rank, the second message while the first is
 * still needed. */
static void test_ring(void **state) {
    (void)state;
    enum { COLUMNS = 5 };
    int size = world.size, rank = world.rank, before = (rank + size - 1) % size, after = (rank + 1) % size;
    int far_before = (before + size - 1) % size;
    Model model;
    open_model(&model, &messages, DTYPE_F32);
    Tensor *x = own_parameter(&model, SHAPE(2 + rank, COLUMNS));
    Tensor *once = op_parallel_shift(model.wiring.graph, &messages, x, SHAPE(2 + before, COLUMNS), 1, 0);
    Tensor *twice =
        op_parallel_shift(model.wiring.graph, &messages, once, SHAPE(2 + far_before, COLUMNS), 1, 1);
    record_loss(&model, once, 70 + rank, 0);
    record_loss(&model, twice, 80 + rank, 0);
    run_model(&model, 0);
    float *got = values_of(&model, x->gradient);
    for (int64_t i = 0; i < (2 + rank) * COLUMNS; i++) {
        int far_after = (after + 1) % size;
        double want = 2.0 * (x_of(rank, i) - target_of(after, i)) +
                      2.0 * (x_of(rank, i) - (double)number(80 + far_after, i));
        check_near((double)got[i], want, 1e-5, "ring", i);
    }
    free(got);
    close_model(&model);
}

/* A pipeline: the ranks pass on what they make, the last has the loss, and every rank's weight gets its
 * gradient. */
static void record_stages(Model *model, int first, int end, int last) {
    Graph *graph = model->wiring.graph;
    Tensor *x = first == 0
                    ? whole(model, 1, SHAPE(N, C))
                    : op_parallel_receive(graph, model->comm, DTYPE_F32, SHAPE(N, C), true, first - 1, 5);
    for (int stage = first; stage < end; stage++) {
        Tensor *weight = whole(model, 20 + stage, SHAPE(C, C));
        x = op_linear(graph, x, weight, NULL, NULL, ACTIVATION_GELU_TANH);
    }
    if (end == last) record_loss(model, x, 2, 0);
    else op_parallel_send(graph, model->comm, x, end, 5);
}

static void test_pipeline(void **state) {
    (void)state;
    Model split, serial;
    open_model(&serial, NULL, DTYPE_F32);
    record_stages(&serial, 0, world.size, world.size);
    run_model(&serial, -1);
    open_model(&split, &messages, DTYPE_F32);
    record_stages(&split, world.rank, world.rank + 1, world.size);
    run_model(&split, 0);
    compare(&split, &serial, true, 1e-5);
    close_model(&split);
    close_model(&serial);
}

/* What is not needed for the loss sends back a gradient of 0: the sender waits for one. */
static void test_unused_message(void **state) {
    (void)state;
    if (world.size < 2) return;
    Model model;
    open_model(&model, &messages, DTYPE_F32);
    Tensor *x = own_parameter(&model, SHAPE(4, 2));
    op_parallel_shift(model.wiring.graph, &messages, x, x->shape, -1, 3);
    record_loss(&model, x, 90 + world.rank, 0);
    run_model(&model, 0);
    float *got = values_of(&model, x->gradient);
    for (int64_t i = 0; i < 8; i++)
        check_near((double)got[i], 2.0 * (x_of(world.rank, i) - (double)number(90 + world.rank, i)), 1e-6,
                   "unused", i);
    free(got);
    close_model(&model);
}

/* Several runs under way at once are waited for in their order. */
static void test_flights(void **state) {
    (void)state;
    if (world.size < 2) return;
    Error error = {0};
    Graph *graph = graph_new();
    Tensor *data = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "data");
    Node *start = op_all_reduce(graph, &world, data), *wait = op_comm_wait(graph, start);
    float values[40] = {0};
    for (int i = 0; i < 40; i++) values[i] = (float)i;
    for (int i = 0; i < 32; i++)
        OK(start->op->reference(&(KernelCall){.node = start, .in = {&values[i]}, .out = {&values[i]}},
                                &error));
    assert_int_not_equal(
        start->op->reference(&(KernelCall){.node = start, .in = {values}, .out = {values}}, &error),
        STATUS_OK);
    check_failed(&error, "never waited for");
    error = (Error){0};
    for (int i = 0; i < 32; i++) {
        OK(wait->op->reference(&(KernelCall){.node = wait}, &error));
        check_near((double)values[i], (double)(i * world.size), 0.0, "flight", i);
    }
    graph_free(graph);
}

static int open_both(void **state) {
    Error error = {0};
    if (open_world(state) != 0) return -1;
    return comm_split(&world, 0, world.rank, &messages, &error) == STATUS_OK ? 0 : -1;
}

static int close_both(void **state) {
    comm_close(&messages);
    return close_world(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_and_join),
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_unused_message),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_copies_cost_nothing),
        cmocka_unit_test(test_flights),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
