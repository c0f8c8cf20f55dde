/* All-reduce costs what its formula says: counted for every algorithm, message by message, over ranks that move nothing.
 * And whoever counts finds messages that do not fit together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "comm/comm_null.h"

enum { MAX_RANKS = 40, TAG = 7 };

static const int64_t LENGTHS[] = {0, 1, 7, 1000, 1000003};
enum { N_LENGTHS = sizeof LENGTHS / sizeof LENGTHS[0] };

static int64_t travelling_bytes(CommType type) {
    return type == COMM_BF16 || type == COMM_F16 ? 4 : (int64_t)comm_type_bytes(type);
}

/* ---- Help for the tests */

/* All ranks of a group, one after the other in this process. */
typedef struct {
    NullGroup *group;
    int n_ranks;
    Comm comm[MAX_RANKS];
} Ranks;

static void open_ranks(Ranks *ranks, int n_ranks) {
    Error error = {0};
    assert_in_range(n_ranks, 1, MAX_RANKS);
    assert_int_equal(comm_null_open(&ranks->group, n_ranks, &error), STATUS_OK);
    ranks->n_ranks = n_ranks;
    for (int rank = 0; rank < n_ranks; rank++) {
        ranks->comm[rank] = comm_null_rank(ranks->group, rank);
        assert_int_equal(ranks->comm[rank].rank, rank);
        assert_int_equal(ranks->comm[rank].size, n_ranks);
    }
}

static void close_ranks(Ranks *ranks) {
    for (int rank = 0; rank < ranks->n_ranks; rank++) comm_close(&ranks->comm[rank]);
    comm_null_close(ranks->group);
}

/* What `run` does on every rank, counted. */
typedef Status (*Run)(Comm *comm, void *argument, Error *error);

static Status count_run(Ranks *ranks, Run run, void *argument, CommCost *cost, Error *error) {
    Error own = {0};
    for (int rank = 0; rank < ranks->n_ranks; rank++) {
        if (run(&ranks->comm[rank], argument, &own) != STATUS_OK)
            fail_msg("rank %d of %d: %s", rank, ranks->n_ranks, own.text);
    }
    return comm_null_count(ranks->group, cost, error);
}

static Status count(int n_ranks, Run run, void *argument, CommCost *cost, Error *error) {
    Ranks ranks;
    open_ranks(&ranks, n_ranks);
    Status status = count_run(&ranks, run, argument, cost, error);
    close_ranks(&ranks);
    return status;
}

static void assert_cost(CommCost counted, CommCost formula, const char *what) {
    if (counted.n_steps != formula.n_steps || counted.peak_bytes != formula.peak_bytes ||
        counted.total_bytes != formula.total_bytes)
        fail_msg("%s: counted %lld steps, peak %lld, total %lld; by formula %lld, %lld, %lld", what,
                 (long long)counted.n_steps, (long long)counted.peak_bytes, (long long)counted.total_bytes,
                 (long long)formula.n_steps, (long long)formula.peak_bytes, (long long)formula.total_bytes);
}

/* ---- Every algorithm against its formula */

typedef struct {
    const CommAlgorithm *algorithm;
    int64_t n;
    CommType type;
} Case;

static Status all_reduce(Comm *comm, void *argument, Error *error) {
    const Case *one = argument;
    comm->all_reduce = one->algorithm;
    return comm_all_reduce(comm, NULL, one->n, one->type, COMM_SUM, error);
}

static void check_case(Ranks *ranks, Case one) {
    char what[128];
    snprintf(what, sizeof what, "%s, %d ranks, %lld elements of %s", one.algorithm->name, ranks->n_ranks,
             (long long)one.n, comm_type_name(one.type));
    CommCost counted;
    Error error = {0};
    if (count_run(ranks, all_reduce, &one, &counted, &error) != STATUS_OK)
        fail_msg("%s: %s", what, error.text);
    assert_cost(counted, one.algorithm->cost(ranks->n_ranks, one.n, travelling_bytes(one.type)), what);
}

static void test_formulas(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 17; n_ranks++) {
        Ranks ranks;
        open_ranks(&ranks, n_ranks);
        for (int choice = 0; comm_algorithm(choice); choice++) {
            for (int i = 0; i < N_LENGTHS; i++) {
                for (CommType type = 0; type < N_COMM_TYPES; type++)
                    check_case(&ranks, (Case){comm_algorithm(choice), LENGTHS[i], type});
            }
        }
        close_ranks(&ranks);
    }
}

/* Lengths around the number of ranks, where slices are uneven or empty in every way there is; more ranks. */
static void test_formulas_of_short_vectors(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++) {
        Ranks ranks;
        open_ranks(&ranks, n_ranks);
        for (int choice = 0; comm_algorithm(choice); choice++) {
            for (int64_t n = 0; n <= 2 * n_ranks + 1; n++)
                check_case(&ranks, (Case){comm_algorithm(choice), n, COMM_F32});
        }
        close_ranks(&ranks);
    }
}

/* The formulas themselves, worked out by hand. */
static void test_formulas_by_hand(void **state) {
    (void)state;
    static const struct {
        const CommAlgorithm *algorithm;
        int n_ranks;
        int64_t n;
        CommCost cost;
    } KNOWN[] = {
        {&ALGORITHM_NAIVE, 4, 100, {3, 2400, 4800}},   {&ALGORITHM_SERVER, 4, 100, {6, 2400, 2400}},
        {&ALGORITHM_TREE, 2, 100, {2, 800, 800}},      {&ALGORITHM_TREE, 4, 100, {4, 1600, 2400}},
        {&ALGORITHM_TREE, 7, 100, {8, 2400, 4800}},    {&ALGORITHM_TREE, 16, 100, {12, 2400, 12000}},
        {&ALGORITHM_RING, 2, 101, {2, 808, 808}},      {&ALGORITHM_RING, 4, 100, {6, 1200, 2400}},
        {&ALGORITHM_RING, 5, 3, {8, 44, 96}},          {&ALGORITHM_HALVING, 4, 100, {4, 1200, 2400}},
        {&ALGORITHM_HALVING, 8, 101, {6, 1424, 5656}}, {&ALGORITHM_HALVING, 5, 100, {6, 2000, 3200}},
    };
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++)
        assert_cost(KNOWN[i].algorithm->cost(KNOWN[i].n_ranks, KNOWN[i].n, 4), KNOWN[i].cost,
                    KNOWN[i].algorithm->name);
}

static void test_names(void **state) {
    (void)state;
    static const char *const NAMES[] = {"naive", "server", "tree", "ring", "halving", "library"};
    for (int choice = 0; choice < 6; choice++) {
        assert_string_equal(comm_algorithm_names[choice], NAMES[choice]);
        const CommAlgorithm *algorithm = comm_algorithm(choice);
        if (choice < 5) assert_string_equal(algorithm->name, NAMES[choice]);
        if (choice < 5) assert_true(strlen(algorithm->summary) > 10);
    }
    assert_null(comm_algorithm_names[6]);
    assert_null(comm_algorithm(5));
    assert_null(comm_algorithm(-1));
    assert_null(comm_algorithm(6));
}

/* ---- Halves of the ring, by given slices */

static Status reduce_scatter(Comm *comm, void *border, Error *error) {
    return ring_reduce_scatter(comm, NULL, border, COMM_F64, COMM_SUM, error);
}

static Status all_gather(Comm *comm, void *border, Error *error) {
    return ring_all_gather(comm, NULL, border, COMM_F64, error);
}

/* Rank r sends all slices but one and receives all but one. */
static void check_halves(int size, int64_t *border) {
    int64_t n = border[size], peak_added = 0, peak_spread = 0;
    for (int r = 0; r < size; r++) {
        int before = (r + size - 1) % size, after = (r + 1) % size;
        int64_t own = border[r + 1] - border[r];
        int64_t added = 2 * n - own - (border[before + 1] - border[before]);
        int64_t spread = 2 * n - own - (border[after + 1] - border[after]);
        if (peak_added < added) peak_added = added;
        if (peak_spread < spread) peak_spread = spread;
    }
    CommCost counted, formula = {.n_steps = n ? size - 1 : 0, .peak_bytes = 8 * peak_added};
    formula.total_bytes = 8 * (size - 1) * n;
    Error error = {0};
    assert_int_equal(count(size, reduce_scatter, border, &counted, &error), STATUS_OK);
    assert_cost(counted, formula, "reduce-scatter");
    formula.peak_bytes = 8 * peak_spread;
    assert_int_equal(count(size, all_gather, border, &counted, &error), STATUS_OK);
    assert_cost(counted, formula, "all-gather");
}

static void test_halves(void **state) {
    (void)state;
    check_halves(2, (int64_t[]){0, 5, 12});
    check_halves(2, (int64_t[]){0, 0, 12});
    check_halves(4, (int64_t[]){0, 10, 10, 13, 1000000});
    check_halves(5, (int64_t[]){0, 0, 0, 0, 0, 9});
    check_halves(3, (int64_t[]){0, 0, 0, 0});
}

/* ---- All-to-all, with slices of any length */

static Status all_to_all(Comm *comm, void *argument, Error *error) {
    const int64_t *counts = argument;
    int64_t out[MAX_RANKS + 1] = {0}, in[MAX_RANKS + 1] = {0};
    for (int r = 0; r < comm->size; r++) {
        out[r + 1] = out[r] + counts[comm->rank * comm->size + r];
        in[r + 1] = in[r] + counts[r * comm->size + comm->rank];
    }
    return comm_all_to_all(comm, NULL, out, NULL, in, COMM_BF16, error);
}

static void test_all_to_all(void **state) {
    (void)state;
    for (int size = 1; size <= 9; size++) {
        int64_t counts[9 * 9];
        for (int i = 0; i < size * size; i++) counts[i] = i % 3 == 1 ? 0 : 17 * i + 5;
        CommCost counted;
        Error error = {0};
        assert_int_equal(count(size, all_to_all, counts, &counted, &error), STATUS_OK);
        assert_cost(counted, pairwise_cost(size, counts, 2), "all-to-all");
    }
    int64_t even[] = {3, 3, 3, 3, 3, 3, 3, 3, 3};
    assert_cost(pairwise_cost(3, even, 4), (CommCost){2, 48, 72}, "all-to-all of 3 ranks");
}

/* ---- Everything else that is made of messages fits together too */

static Status other_operations(Comm *comm, void *border, Error *error) {
    TRY(comm_barrier(comm, error));
    TRY(comm_broadcast(comm, NULL, 1000, COMM_F32, 1, error));
    TRY(comm_reduce(comm, NULL, 1000, COMM_BF16, COMM_MAX, 2, error));
    TRY(comm_scatter(comm, NULL, border, NULL, 3 + comm->rank, COMM_I64, 3, error));
    TRY(comm_gather(comm, NULL, border, NULL, 3 + comm->rank, COMM_U8, 0, error));
    TRY(comm_all_to_all(comm, NULL, (int64_t[]){0, 2, 4, 6, 8, 10}, NULL, (int64_t[]){0, 2, 4, 6, 8, 10},
                        COMM_F32, error));
    return comm_all_reduce(comm, NULL, 1000, COMM_F32, COMM_SUM, error);
}

static void test_other_operations(void **state) {
    (void)state;
    int64_t border[] = {0, 3, 7, 12, 18, 25};
    CommCost counted;
    Error error = {0};
    Status status = count(5, other_operations, border, &counted, &error);
    if (status != STATUS_OK) fail_msg("%s", error.text);
    int64_t all_reduced = ALGORITHM_RING.cost(5, 1000, 4).total_bytes;
    assert_int_equal(ALGORITHM_HALVING.cost(5, 1000, 4).total_bytes, all_reduced);
    assert_int_equal(counted.total_bytes,
                     4 * 4000 + 4 * 4000 + (25 - 6) * 8 + (25 - 3) + 5 * 4 * 2 * 4 + all_reduced);
}

/* ---- Messages that do not fit together */

static Status send(Comm *comm, size_t n_bytes, int to, Error *error) {
    CommRequest request;
    TRY(comm->table->start_send(comm->context, NULL, n_bytes, to, TAG, &request, error));
    return comm->table->wait(comm->context, &request, 1, error);
}

static Status receive(Comm *comm, size_t n_bytes, int from, Error *error) {
    CommRequest request;
    TRY(comm->table->start_receive(comm->context, NULL, n_bytes, from, TAG, &request, error));
    return comm->table->wait(comm->context, &request, 1, error);
}

static void assert_found(Run run, int n_ranks, const char *words) {
    CommCost cost;
    Error error = {0};
    assert_int_equal(count(n_ranks, run, NULL, &cost, &error), STATUS_FAILED);
    if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
}

static Status all_send_first(Comm *comm, void *argument, Error *error) {
    (void)argument;
    TRY(send(comm, 8, (comm->rank + 1) % comm->size, error));
    return receive(comm, 8, (comm->rank + comm->size - 1) % comm->size, error);
}

static Status not_received(Comm *comm, void *argument, Error *error) {
    (void)argument;
    return comm->rank == 2 ? send(comm, 12, 1, error) : STATUS_OK;
}

static Status not_sent(Comm *comm, void *argument, Error *error) {
    (void)argument;
    if (comm->rank == 1) TRY(send(comm, 4, 0, error));
    if (comm->rank == 0) TRY(receive(comm, 4, 1, error));
    return comm->rank == 0 ? receive(comm, 12, 2, error) : STATUS_OK;
}

static Status of_another_size(Comm *comm, void *argument, Error *error) {
    (void)argument;
    if (comm->rank == 0) return send(comm, 12, 1, error);
    return comm->rank == 1 ? receive(comm, 16, 0, error) : STATUS_OK;
}

static void test_mistakes_are_found(void **state) {
    (void)state;
    assert_found(all_send_first, 3, "rank 0 waits for ever: it cannot send 8 bytes to rank 1");
    assert_found(not_received, 3, "rank 2 sends 12 bytes to rank 1, which does not receive them");
    assert_found(not_sent, 3, "rank 0 waits for 12 bytes from rank 2, which does not send them");
    assert_found(of_another_size, 2, "rank 0 sends 12 bytes to rank 1, which receives 16");
    NullGroup *group;
    Error error = {0};
    assert_int_equal(comm_null_open(&group, 0, &error), STATUS_USER);
    assert_null(group);
    comm_null_close(group);
}

/* A rank has one port for what it sends and one for what it receives; posting does not take time. */
static Status several_at_once(Comm *comm, void *argument, Error *error) {
    (void)argument;
    CommRequest request[3];
    if (comm->rank) return receive(comm, 4, 0, error);
    for (int to = 1; to < comm->size; to++)
        TRY(comm->table->start_send(comm->context, NULL, 4, to, TAG, &request[to - 1], error));
    return comm->table->wait(comm->context, request, comm->size - 1, error);
}

/* Rank 0 asks for the late message first, and the other may still come before it. */
static Status out_of_order(Comm *comm, void *argument, Error *error) {
    (void)argument;
    CommRequest request[2];
    if (comm->rank == 1) {
        TRY(receive(comm, 4, 2, error));
        return send(comm, 4, 0, error);
    }
    if (comm->rank == 2) {
        TRY(send(comm, 4, 0, error));
        return send(comm, 4, 1, error);
    }
    TRY(comm->table->start_receive(comm->context, NULL, 4, 1, TAG, &request[0], error));
    TRY(comm->table->start_receive(comm->context, NULL, 4, 2, TAG, &request[1], error));
    return comm->table->wait(comm->context, request, 2, error);
}

static void test_clock(void **state) {
    (void)state;
    CommCost cost;
    Error error = {0};
    assert_int_equal(count(4, several_at_once, NULL, &cost, &error), STATUS_OK);
    assert_cost(cost, (CommCost){3, 12, 12}, "three sends at once");
    assert_int_equal(count(3, out_of_order, NULL, &cost, &error), STATUS_OK);
    assert_cost(cost, (CommCost){3, 8, 12}, "out of order");
}

/* Counting begins anew each time, also after a mistake. */
static void test_counts_since_the_last(void **state) {
    (void)state;
    Ranks ranks;
    CommCost cost;
    Case one = {&ALGORITHM_RING, 10, COMM_F32};
    open_ranks(&ranks, 3);
    for (int round = 0; round < 2; round++) {
        Error error = {0}, mistake = {0};
        assert_int_equal(count_run(&ranks, all_reduce, &one, &cost, &error), STATUS_OK);
        assert_cost(cost, ALGORITHM_RING.cost(3, 10, 4), "ring");
        assert_int_equal(comm_null_count(ranks.group, &cost, &error), STATUS_OK);
        assert_cost(cost, (CommCost){0, 0, 0}, "nothing");
        assert_int_equal(count_run(&ranks, not_received, NULL, &cost, &mistake), STATUS_FAILED);
    }
    close_ranks(&ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_formulas_of_short_vectors),
        cmocka_unit_test(test_formulas_by_hand),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_other_operations),
        cmocka_unit_test(test_mistakes_are_found),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_counts_since_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
