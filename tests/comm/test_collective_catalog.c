/* Every algorithm of the catalog costs what its formula says: counted message by message over ranks that move nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "comm/algo/catalog.h"
#include "comm/comm_null.h"
#include "lab/collectives/formula.h"

enum { MAX_RANKS = 33, ELEMENT_BYTES = 4 };

/* ---- Counting */

static CommOperation operation_of(int kind, int64_t n, int n_ranks, int rank, const int64_t *border,
                                  int64_t *in) {
    int64_t own = border[rank + 1] - border[rank];
    for (int r = 0; r <= n_ranks; r++) in[r] = r * own;
    bool has_own = kind == COMM_SCATTER || kind == COMM_GATHER;
    return (CommOperation){.kind = (CommKind)kind,
                           .type = COMM_F32,
                           .n = has_own ? own : n,
                           .border = border,
                           .other_border = in};
}

static CollectiveCost counted(const CollectiveAlgorithm *algorithm, int n_ranks, int64_t n) {
    int64_t border[MAX_RANKS + 1], in[MAX_RANKS + 1];
    NullGroup *group;
    Error error = {0};
    CollectiveCost cost;
    comm_even_borders(n, n_ranks, 1, border);
    assert_int_equal(comm_null_open(&group, n_ranks, &error), STATUS_OK);
    for (int rank = 0; rank < n_ranks; rank++) {
        Comm comm = comm_null_rank(group, rank);
        CommOperation operation = operation_of(algorithm->kind, n, n_ranks, rank, border, in);
        if (collective_algorithm_run(&comm, algorithm, &operation, &error) != STATUS_OK)
            fail_msg("%s: %s", algorithm->name, error.text);
        comm_close(&comm);
    }
    if (comm_null_count_steps(group, &cost.cost, &cost.step_bytes, &error) != STATUS_OK)
        fail_msg("%s %s, %d ranks, %lld elements: %s", collective_kind_name(algorithm->kind), algorithm->name,
                 n_ranks, (long long)n, error.text);
    comm_null_close(group);
    return cost;
}

static CollectiveCost formula(const CollectiveAlgorithm *algorithm, int n_ranks, int64_t n) {
    CollectiveCost cost;
    Error error = {0};
    assert_int_equal(collective_algorithm_cost(algorithm, n_ranks, n, ELEMENT_BYTES, &cost, &error),
                     STATUS_OK);
    return cost;
}

typedef struct {
    const char *what;
    int64_t counted, formula;
} Pair;

static void check(const CollectiveAlgorithm *algorithm, int n_ranks, int64_t n) {
    CollectiveCost is = counted(algorithm, n_ranks, n), wanted = formula(algorithm, n_ranks, n);
    const Pair pairs[] = {{"total bytes", is.cost.total_bytes, wanted.cost.total_bytes},
                          {"steps", is.cost.n_steps, wanted.cost.n_steps},
                          {"bytes of the busiest rank", is.cost.peak_bytes, wanted.cost.peak_bytes},
                          {"bytes of a step", is.step_bytes, wanted.step_bytes}};
    bool is_exact = n == 0 || n >= n_ranks;
    for (int i = 0; i < 4; i++) {
        bool holds =
            i == 0 || is_exact ? pairs[i].counted == pairs[i].formula : pairs[i].counted <= pairs[i].formula;
        if (!holds)
            fail_msg("%s %s, %d ranks, %lld elements: %lld %s, by formula %lld",
                     collective_kind_name(algorithm->kind), algorithm->name, n_ranks, (long long)n,
                     (long long)pairs[i].counted, pairs[i].what, (long long)pairs[i].formula);
    }
}

static void test_formulas(void **state) {
    (void)state;
    static const int64_t LENGTHS[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 720720, 1000003};
    const CollectiveAlgorithm *all[COLLECTIVE_MAX_ALGORITHMS];
    for (int kind = 0; kind < COLLECTIVE_N_KINDS; kind++) {
        int n_algorithms = collective_algorithms(kind, all);
        for (int i = 0; i < n_algorithms; i++)
            for (int n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++)
                for (size_t k = 0; k < sizeof LENGTHS / sizeof LENGTHS[0]; k++)
                    check(all[i], n_ranks, LENGTHS[k]);
    }
}

/* ---- By hand */

static const CollectiveAlgorithm *find(int kind, const char *name) {
    const CollectiveAlgorithm *all[COLLECTIVE_MAX_ALGORITHMS];
    int n = collective_algorithms(kind, all);
    for (int i = 0; i < n; i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    fail_msg("there is no %s %s", collective_kind_name(kind), name);
    return NULL;
}

/* 8 ranks, 80 elements of 4 bytes: n = 320 bytes, n/N = 40. */
static void test_formulas_by_hand(void **state) {
    (void)state;
    static const struct {
        int kind;
        const char *name;
        int64_t steps, peak, total, step;
    } KNOWN[] = {
        {COLLECTIVE_SEND_RECEIVE, "one-way", 1, 320, 320, 320},
        {COLLECTIVE_SEND_RECEIVE, "shift", 1, 640, 2560, 640},
        {COMM_BROADCAST, "flat", 7, 2240, 2240, 320},
        {COMM_BROADCAST, "binomial", 3, 960, 2240, 320},
        {COMM_BROADCAST, "chain", 7, 640, 2240, 320},
        {COMM_BROADCAST, "scatter+all-gather", 10, 840, 2720, 160},
        {COMM_REDUCE, "flat", 7, 2240, 2240, 320},
        {COMM_REDUCE, "binomial", 3, 960, 2240, 320},
        {COMM_REDUCE, "chain", 7, 640, 2240, 320},
        {COMM_REDUCE, "halving+gather", 6, 840, 2720, 320},
        {COMM_SCATTER, "flat", 7, 280, 280, 40},
        {COMM_SCATTER, "binomial", 3, 280, 480, 160},
        {COMM_GATHER, "flat", 7, 280, 280, 40},
        {COMM_GATHER, "binomial", 3, 280, 480, 160},
        {COMM_ALL_GATHER, "direct", 7, 560, 2240, 80},
        {COMM_ALL_GATHER, "ring", 7, 560, 2240, 80},
        {COMM_ALL_GATHER, "bruck", 3, 560, 2240, 320},
        {COMM_ALL_GATHER, "gather+broadcast", 6, 1240, 2720, 320},
        {COMM_REDUCE_SCATTER, "direct", 7, 560, 2240, 80},
        {COMM_REDUCE_SCATTER, "ring", 7, 560, 2240, 80},
        {COMM_REDUCE_SCATTER, "halving", 3, 560, 2240, 320},
        {COMM_REDUCE_SCATTER, "reduce+scatter", 6, 1240, 2720, 320},
        {COMM_ALL_TO_ALL, "pairwise", 7, 560, 2240, 80},
        {COMM_ALL_TO_ALL, "bruck", 3, 960, 3840, 320},
        {COMM_ALL_REDUCE, "naive", 7, 4480, 17920, 640},
        {COMM_ALL_REDUCE, "server", 14, 4480, 4480, 320},
        {COMM_ALL_REDUCE, "tree", 8, 1920, 4480, 320},
        {COMM_ALL_REDUCE, "ring", 14, 1120, 4480, 80},
        {COMM_ALL_REDUCE, "halving", 6, 1120, 4480, 320},
        {COMM_ALL_REDUCE, "doubling", 3, 1920, 7680, 640},
    };
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++) {
        CollectiveCost cost = formula(find(KNOWN[i].kind, KNOWN[i].name), 8, 80);
        if (cost.cost.n_steps != KNOWN[i].steps || cost.cost.peak_bytes != KNOWN[i].peak ||
            cost.cost.total_bytes != KNOWN[i].total || cost.step_bytes != KNOWN[i].step)
            fail_msg("%s %s: %lld steps, peak %lld, total %lld, step %lld",
                     collective_kind_name(KNOWN[i].kind), KNOWN[i].name, (long long)cost.cost.n_steps,
                     (long long)cost.cost.peak_bytes, (long long)cost.cost.total_bytes,
                     (long long)cost.step_bytes);
    }
}

/* The formulas in words are those of the numbers. */
static void test_words(void **state) {
    (void)state;
    const CollectiveAlgorithm *all[COLLECTIVE_MAX_ALGORITHMS];
    int n_all = 0;
    for (int kind = 0; kind < COLLECTIVE_N_KINDS; kind++) {
        int n_algorithms = collective_algorithms(kind, all);
        for (int i = 0; i < n_algorithms; i++, n_all++) {
            CollectiveCost cost = formula(all[i], 8, 80);
            const char *words[] = {all[i]->steps, all[i]->peak, all[i]->total, all[i]->step};
            int64_t numbers[] = {cost.cost.n_steps, cost.cost.peak_bytes, cost.cost.total_bytes,
                                 cost.step_bytes};
            for (int k = 0; k < 4; k++) {
                double value = collective_formula(words[k], 320, 8);
                if (value != (double)numbers[k])
                    fail_msg("%s %s: '%s' is %g, not %lld", collective_kind_name(kind), all[i]->name,
                             words[k], value, (long long)numbers[k]);
            }
            assert_int_equal(all[i]->kind, kind);
            assert_true(strlen(all[i]->summary) > 10);
        }
    }
    assert_true(collective_formula("2(n - n/N)", 100, 4) == 150);
    assert_true(collective_formula("(N-1)n + n/2 log2 N", 10, 5) == 55);
    assert_false(collective_formula("2(n", 100, 4) == 200);
    assert_false(collective_formula("x", 100, 4) == 100);
    assert_int_equal(n_all, 30);
    assert_int_equal(collective_algorithms(-1, all), 0);
    assert_int_equal(collective_algorithms(COMM_BARRIER, all), 0);
    assert_int_equal(collective_algorithms(COLLECTIVE_N_KINDS, all), 0);
}

/* Bruck's sizes are everybody's. */
static void test_an_irregular_all_to_all_is_refused(void **state) {
    (void)state;
    NullGroup *group;
    Error error = {0};
    assert_int_equal(comm_null_open(&group, 2, &error), STATUS_OK);
    Comm comm = comm_null_rank(group, 0);
    CommOperation operation = {.kind = COMM_ALL_TO_ALL,
                               .type = COMM_F32,
                               .border = (int64_t[]){0, 3, 5},
                               .other_border = (int64_t[]){0, 3, 7}};
    assert_int_equal(collective_algorithm_run(&comm, find(COMM_ALL_TO_ALL, "bruck"), &operation, &error),
                     STATUS_USER);
    assert_non_null(strstr(error.text, "use pairwise"));
    comm_null_close(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_formulas_by_hand),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_an_irregular_all_to_all_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
