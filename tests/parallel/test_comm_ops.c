/* Communication on a device that is told what to do and does it later (NCCL): a communicator that only enqueues is
 * played here by a table that counts. What is asked for ahead, and when; sums of numbers that have the same bits in
 * every group of ranks. */
#include "parallel/comm_ops.h"

#include "backend/cpu/cpu.h"
#include "graph/wiring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { RANK = 1, N_RANKS = 4 };

static const float numbers[N_RANKS] = {1.0F, 2.0F, 4.0F, 8.0F};

typedef struct {
    int n_posted, n_waited;
} Counts;

static Status post_receive(void *context, void *data, size_t n_bytes, int from, int tag, CommRequest *request,
                           Error *error) {
    (void)data, (void)n_bytes, (void)from, (void)tag, (void)request, (void)error;
    ((Counts *)context)->n_posted++;
    return STATUS_OK;
}

static Status wait_all(void *context, CommRequest *requests, int n_requests, Error *error) {
    (void)requests, (void)error;
    ((Counts *)context)->n_waited += n_requests;
    return STATUS_OK;
}

/* The others' numbers come in beside this rank's. */
static Status start(void *context, const CommOperation *operation, CommTicket *ticket, Error *error) {
    (void)context, (void)error;
    float *data = operation->data;
    ticket->number = 1;
    assert_int_equal(operation->kind, COMM_ALL_GATHER);
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(operation->border[r], r);
        if (r != RANK) data[r] = numbers[r];
    }
    return STATUS_OK;
}

static Status finish(void *context, const CommTicket *ticket, Error *error) {
    (void)context, (void)ticket, (void)error;
    return STATUS_OK;
}

static const CommTable enqueues = {.name = "enqueues",
                                   .only_enqueues = true,
                                   .start_receive = post_receive,
                                   .wait = wait_all,
                                   .start = start,
                                   .finish = finish};
static const CommTable proceeds = {.name = "proceeds", .start_receive = post_receive, .wait = wait_all};

static void open(Wiring *wiring, Backend *cpu) {
    Error error = {0};
    assert_int_equal(wiring_plan_alone(wiring, "test", cpu, &error), STATUS_OK);
    assert_int_equal(wiring_open_alone(wiring, cpu, &error), STATUS_OK);
}

static void run_part(Wiring *wiring, bool is_last) {
    Error error = {0};
    MicroBatch micro = {.is_first = !is_last, .is_last = is_last};
    assert_int_equal(executor_run(&wiring->executor, SECTION_FORWARD, micro, &error), STATUS_OK);
}

/* Posted after each of three micro-batches; only a program that was rehearsed asks a device ahead. */
static void check_ahead(const CommTable *table, bool is_allowed, const int *wanted) {
    Backend cpu;
    Error error = {0};
    Counts counts = {0};
    Wiring wiring = {.graph = graph_new()};
    Comm comm = {.table = table, .context = &counts, .rank = RANK, .size = 2};
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    Tensor *buffer = graph_tensor(wiring.graph, PLACE_STATE, DTYPE_F32, SHAPE(4), "buffer");
    op_channel_receive_ahead(wiring.graph, op_channel_receive(wiring.graph, &comm, buffer));
    open(&wiring, &cpu);
    if (is_allowed) comm_allow_ahead(&wiring.program);
    for (int step = 0; step < 2; step++) { /* from the first step on */
        for (int i = 0; i < 3; i++) {
            run_part(&wiring, i == 2);
            assert_int_equal(counts.n_posted, 3 * step + wanted[i]);
            assert_int_equal(counts.n_waited, 3 * step + i + 1);
        }
    }
    wiring_close_alone(&wiring);
    cpu.close(cpu.context);
}

static void test_ahead(void **state) {
    (void)state;
    const int ahead[3] = {2, 3, 3}, in_time[3] = {1, 2, 3};
    check_ahead(&proceeds, false, ahead);
    check_ahead(&enqueues, false, in_time);
    check_ahead(&enqueues, true, ahead);
}

static void test_sum_in_order(void **state) {
    (void)state;
    Backend cpu;
    Error error = {0};
    Wiring wiring = {.graph = graph_new()};
    Comm comm = {.table = &enqueues, .rank = RANK, .size = N_RANKS};
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    Tensor *scalar = graph_tensor(wiring.graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "number");
    op_scalar_sum(wiring.graph, &comm, scalar);
    for (int i = 0; i < wiring.graph->n_nodes; i++)
        assert_ptr_not_equal(wiring.graph->node[i]->op, &OP_SCALAR_SUM);
    open(&wiring, &cpu);
    float wanted = 0.0F;
    float sum;
    for (int r = 0; r < N_RANKS; r++) wanted += numbers[r];
    for (int i = 0; i < 2; i++) { /* it adds to nothing that was there */
        assert_int_equal(executor_upload(&wiring.executor, scalar, &numbers[RANK], &error), STATUS_OK);
        run_part(&wiring, i == 1);
        assert_int_equal(executor_download(&wiring.executor, scalar, &sum, &error), STATUS_OK);
        assert_float_equal(sum, wanted, 0.0);
    }
    wiring_close_alone(&wiring);
    cpu.close(cpu.context);
}

/* Two numbers have one sum, whoever takes it. */
static void test_sum_of_two(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Comm comm = {.table = &enqueues, .rank = RANK, .size = 2};
    op_scalar_sum(graph, &comm, graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "number"));
    assert_int_equal(graph->n_nodes, 1);
    assert_ptr_equal(graph->node[0]->op, &OP_SCALAR_SUM);
    graph_free(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ahead), cmocka_unit_test(test_sum_in_order),
                                       cmocka_unit_test(test_sum_of_two)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
