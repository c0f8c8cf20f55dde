/* Conjugate operations where there is nothing to move: alone they vanish, and on ranks that only count they
 * are counted, costed and printed. What they compute is tested with real ranks (mpi/test_conjugate.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/null/null.h"
#include "comm/comm_null.h"
#include "comm/comm_self.h"
#include "graph/executor.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/conjugate.h"

enum { N_RANKS = 4, ROWS = 10, COLUMNS = 6, BYTES = ROWS * COLUMNS * 4 };

static Tensor *new_parameter(Graph *graph, Shape shape) {
    return graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, shape, "x");
}

/* ---- alone */

static void check_vanish(Comm *comm) {
    Graph *graph = graph_new();
    Tensor *x = new_parameter(graph, SHAPE(ROWS, COLUMNS));
    assert_ptr_equal(op_parallel_copy(graph, comm, x), x);
    assert_ptr_equal(op_parallel_sum(graph, comm, x), x);
    assert_ptr_equal(op_parallel_all_gather(graph, comm, x, x->shape, NULL), x);
    assert_ptr_equal(op_parallel_join(graph, comm, x, x->shape, NULL), x);
    assert_ptr_equal(op_parallel_reduce_scatter(graph, comm, x, NULL), x);
    assert_ptr_equal(op_parallel_split(graph, comm, x, NULL), x);
    assert_ptr_equal(op_parallel_all_to_all(graph, comm, x, NULL, NULL), x);
    assert_ptr_equal(op_parallel_shift(graph, comm, x, x->shape, 1, 0), x);
    assert_int_equal(graph->n_nodes, 0);
    Tensor *cube =
        new_parameter(graph, SHAPE(2, 5, COLUMNS)); /* the same memory in the shape that is asked for */
    Tensor *rows = op_parallel_reduce_scatter(graph, comm, cube, NULL);
    assert_ptr_equal(rows->base, cube);
    assert_true(shape_equal(rows->shape, SHAPE(ROWS, COLUMNS)));
    assert_true(
        shape_equal(op_parallel_all_gather(graph, comm, rows, cube->shape, NULL)->shape, cube->shape));
    assert_int_equal(graph->n_nodes, 0);
    Error error = {0};
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    op_parallel_send(graph, comm, x, 1, 0); /* which is not to be left out unseen */
    assert_int_equal(graph_status(graph, &error), STATUS_USER);
    graph_free(graph);
}

static void test_alone(void **state) {
    (void)state;
    Comm self = comm_self();
    check_vanish(NULL);
    check_vanish(&self);
    comm_close(&self);
}

/* ---- counted */

typedef struct {
    Comm comm;
    Graph *graph;
    Program program;
} Rank;

static void record_all(Graph *graph, Comm *comm) {
    static const int64_t uneven[N_RANKS + 1] = {0, 5, 5, 7, ROWS};
    int64_t even[N_RANKS + 1] = {0, 2, 4, 6, 8};
    Tensor *x = new_parameter(graph, SHAPE(ROWS, COLUMNS));
    Tensor *y = op_parallel_sum(graph, comm, op_parallel_copy(graph, comm, x));
    y = op_parallel_reduce_scatter(graph, comm, y, uneven);
    y = op_parallel_all_gather(graph, comm, y, SHAPE(2, ROWS / 2, COLUMNS), uneven);
    y = op_parallel_join(graph, comm, op_parallel_split(graph, comm, y, NULL), SHAPE(ROWS, COLUMNS), NULL);
    y = graph_view(graph, y, SHAPE(8, COLUMNS), 0, "first 8");
    y = op_parallel_all_to_all(graph, comm, y, even, NULL);
    y = op_parallel_shift(graph, comm, y, y->shape, 1, 0);
    Tensor *target = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, y->shape, "target");
    op_squared_error(graph, y, target, 1.0f);
}

static void open_rank(Rank *rank, NullGroup *group, int number, const Backend *backend) {
    Error error = {0};
    rank->comm = comm_null_rank(group, number);
    rank->graph = graph_new();
    record_all(rank->graph, &rank->comm);
    assert_int_equal(graph_status(rank->graph, &error), STATUS_OK);
    assert_int_equal(program_build(&rank->program, "counted", rank->graph, backend, 3, &error), STATUS_OK);
}

static void run_rank(Rank *rank, const Backend *backend) {
    Error error = {0};
    DeviceMemory memory = {0};
    Executor executor;
    device_require(&memory, &rank->program.plan);
    assert_int_equal(device_open(&memory, backend, &error), STATUS_OK);
    assert_int_equal(executor_open(&executor, &rank->program, &memory, &error), STATUS_OK);
    for (int run = 0; run < 3; run++) {
        if (executor_run(&executor, SECTION_FORWARD, micro_batch(run, 3), &error) != STATUS_OK)
            fail_msg("%s", error.text);
    }
    executor_close(&executor);
    device_close(&memory);
}

/* What the nodes say is what the communicator has seen: all ranks together, three micro-batches. */
static void test_counted(void **state) {
    (void)state;
    Error error = {0};
    NullGroup *group;
    Backend backend;
    Rank rank[N_RANKS];
    double n_bytes = 0.0;
    assert_int_equal(comm_null_open(&group, N_RANKS, &error), STATUS_OK);
    assert_int_equal(backend_null_open(&backend, &error), STATUS_OK);
    for (int r = 0; r < N_RANKS; r++) {
        open_rank(&rank[r], group, r, &backend);
        CommTraffic traffic = comm_traffic(&rank[r].program, &rank[r].comm), none;
        assert_int_equal(traffic.n_collectives, 3 * 5); /* sum, scatter, gather, join, all-to-all */
        assert_int_equal(traffic.n_messages, 3 * 2);
        n_bytes += traffic.n_bytes;
        none = comm_traffic(&rank[r].program, NULL);
        assert_int_equal(none.n_collectives + none.n_messages, 0);
        run_rank(&rank[r], &backend);
        const CommCounts *counts = &rank[r].comm.counts;
        assert_int_equal(counts->n_operations[COMM_ALL_REDUCE], 3);
        assert_int_equal(counts->n_operations[COMM_REDUCE_SCATTER], 3);
        assert_int_equal(counts->n_operations[COMM_ALL_GATHER], 3 * 2);
        assert_int_equal(counts->n_operations[COMM_ALL_TO_ALL], 3);
        assert_int_equal(counts->n_messages, 3 * 2);
    }
    CommCost cost;
    assert_int_equal(comm_null_count(group, &cost, &error), STATUS_OK);
    /* All-reduce, a half each, all-to-all of 8 rows, and a message of 8 rows. */
    int64_t sent = N_RANKS * 8 * COLUMNS * 4, exchanged = sent * (N_RANKS - 1) / N_RANKS;
    assert_int_equal(cost.total_bytes, 3 * ((N_RANKS - 1) * (2 + 1 + 1 + 1) * BYTES + exchanged + sent));
    assert_true(n_bytes == 2.0 * (double)cost.total_bytes); /* what is sent is received */
    for (int r = 0; r < N_RANKS; r++) {
        comm_close(&rank[r].comm);
        graph_free(rank[r].graph);
    }
    backend.close(backend.context);
    comm_null_close(group);
}

static void test_printed(void **state) {
    (void)state;
    static const char *const words[] = {"parallel_copy",          "all-reduce over 4 ranks in the backward",
                                        "all_reduce_start",       "reduce_scatter_start",
                                        "all_gather_start",       "all_to_all_start",
                                        "to rank 3, from rank 1", "all-gather over 4 ranks in the backward"};
    Error error = {0};
    NullGroup *group;
    Backend backend;
    Rank rank;
    assert_int_equal(comm_null_open(&group, N_RANKS, &error), STATUS_OK);
    assert_int_equal(backend_null_open(&backend, &error), STATUS_OK);
    open_rank(&rank, group, 2, &backend);
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    program_print(&rank.program, stream);
    fclose(stream);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!strstr(text, words[i])) fail_msg("'%s' is not in\n%s", words[i], text);
    }
    free(text);
    graph_free(rank.graph);
    backend.close(backend.context);
    comm_null_close(group);
}

/* ---- refused */

static void check_refused(Graph *graph, const char *words) {
    Error error = {0};
    assert_int_equal(graph_status(graph, &error), STATUS_USER);
    if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
    graph_free(graph);
}

static void test_refused(void **state) {
    (void)state;
    Error error = {0};
    NullGroup *group;
    assert_int_equal(comm_null_open(&group, N_RANKS, &error), STATUS_OK);
    Comm comm = comm_null_rank(group, 1);
    Graph *graph = graph_new();
    Tensor *x = new_parameter(graph, SHAPE(ROWS, COLUMNS));
    op_parallel_split(graph, &comm, x, (int64_t[]){0, 3, 2, 7, ROWS});
    check_refused(graph, "do not ascend from 0 to its 10 rows");
    graph = graph_new();
    x = new_parameter(graph, SHAPE(ROWS, COLUMNS));
    op_parallel_reduce_scatter(graph, &comm, x, (int64_t[]){0, 1, 2, 3, ROWS + 1});
    check_refused(graph, "do not ascend");
    graph = graph_new();
    x = new_parameter(graph, SHAPE(ROWS, COLUMNS));
    op_parallel_all_gather(graph, &comm, x, SHAPE(12, COLUMNS), NULL);
    check_refused(graph, "is not this rank's slice");
    graph = graph_new();
    x = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(4, 4), "tokens");
    op_parallel_sum(graph, &comm, x);
    check_refused(graph, "tokens is not of a float type");
    graph = graph_new();
    op_parallel_send(graph, &comm, new_parameter(graph, SHAPE(4)), 1, 0);
    check_refused(graph, "cannot send to rank 1");
    comm_null_close(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_counted),
        cmocka_unit_test(test_printed),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
