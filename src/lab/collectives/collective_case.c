/* Terms are whole numbers, different on every rank and along the vector, whose sums are exact: below 2^24, so
 * with many ranks they repeat sooner. What has not arrived yet is negative. */
#include "lab/collectives/collective_case.h"

#include "base/system/memory.h"
#include "comm/comm_null.h"

#include <stdlib.h>
#include <string.h>

/* ---- Memory */

Status collective_case_open(CollectiveCase *one, int kind, int64_t n_bytes, int n_ranks, Error *error) {
    int64_t n = n_bytes / 4;
    *one = (CollectiveCase){.kind = kind, .n_ranks = n_ranks, .n = n};
    one->data_bytes = (size_t)n * sizeof(float);
    one->other_bytes = (size_t)(n + n_ranks) * sizeof(float); /* the longest slice, from each */
    one->border = malloc(((size_t)n_ranks + 1) * sizeof *one->border);
    one->in_border = malloc(((size_t)n_ranks + 1) * sizeof *one->in_border);
    if (!one->border || !one->in_border) error_failed(error, "no memory for the slices of %d ranks", n_ranks);
    if (error->status == STATUS_OK) {
        comm_even_borders(n, n_ranks, 1, one->border);
        memory_alloc(&one->data, one->data_bytes, "the vector", error);
    }
    if (error->status == STATUS_OK) memory_alloc(&one->other, one->other_bytes, "the other vector", error);
    if (error->status != STATUS_OK) collective_case_close(one);
    return error->status;
}

void collective_case_close(CollectiveCase *one) {
    free(one->border);
    free(one->in_border);
    memory_free(one->data, one->data_bytes);
    memory_free(one->other, one->other_bytes);
    *one = (CollectiveCase){.kind = 0};
}

CommOperation collective_case_operation(CollectiveCase *one, int rank) {
    int64_t own = one->border[rank + 1] - one->border[rank];
    bool has_own = one->kind == COMM_SCATTER || one->kind == COMM_GATHER;
    for (int r = 0; r <= one->n_ranks; r++) one->in_border[r] = r * own;
    return (CommOperation){.kind = (CommKind)one->kind,
                           .type = COMM_F32,
                           .reduction = COMM_SUM,
                           .data = one->data,
                           .n = has_own ? own : one->n,
                           .border = one->border,
                           .other = one->other,
                           .other_border = one->in_border};
}

/* ---- What goes in and comes out */

/* The sum of 1 to the number of ranks. */
static int64_t all_factors(const CollectiveCase *one) {
    return (int64_t)one->n_ranks * (one->n_ranks + 1) / 2;
}

static float term(const CollectiveCase *one, int64_t i, int64_t factor) {
    int64_t most = (INT64_C(1) << 24) / all_factors(one), period = most > 1021 ? 1021 : most > 1 ? most : 1;
    return (float)((i % period + 1) * factor);
}

/* Elements begin .. end-1 are the terms of the vector from element `first` on. */
static void fill(const CollectiveCase *one, float *data, int64_t begin, int64_t end, int64_t first,
                 int64_t factor) {
    for (int64_t i = begin; i < end; i++) data[i] = term(one, i - begin + first, factor);
}

static void clear(float *data, int64_t n) {
    for (int64_t i = 0; i < n; i++) data[i] = -1.0f;
}

void collective_case_fill(CollectiveCase *one, int rank) {
    float *data = one->data, *other = one->other;
    const int64_t *border = one->border;
    int64_t n = one->n, own = border[rank + 1] - border[rank];
    bool is_one_way = one->kind == COMM_BROADCAST || one->kind == COMM_SCATTER;
    bool collects = one->kind == COMM_GATHER || one->kind == COMM_ALL_GATHER;
    if (collects || (is_one_way && rank != 0)) clear(data, n);
    else fill(one, data, 0, n, 0, rank + 1);
    if (one->kind == COMM_ALL_GATHER) fill(one, data, border[rank], border[rank + 1], border[rank], rank + 1);
    if (one->kind == COMM_GATHER) fill(one, other, 0, own, border[rank], rank + 1);
    if (one->kind == COMM_SCATTER) clear(other, own);
    if (one->kind == COMM_ALL_TO_ALL) clear(other, own * one->n_ranks);
}

typedef struct {
    const CollectiveCase *one;
    const char *name;
    int rank;
} Check;

static Status check_row(const Check *check, const float *data, int64_t begin, int64_t end, int64_t first,
                        int64_t factor, Error *error) {
    for (int64_t i = begin; i < end; i++) {
        float wanted = term(check->one, i - begin + first, factor);
        if (data[i] != wanted)
            return error_failed(error, "%s by %s: element %lld is %g on rank %d, not %g",
                                collective_kind_name(check->one->kind), check->name, (long long)i,
                                (double)data[i], check->rank, (double)wanted);
    }
    return STATUS_OK;
}

/* Rows of every rank side by side: row r begins with element `first` of the vector of that rank. */
static Status check_rows(const Check *check, const float *data, const int64_t *border, int64_t first,
                         Error *error) {
    for (int r = 0; r < check->one->n_ranks; r++)
        TRY(check_row(check, data, border[r], border[r + 1], first < 0 ? border[r] : first, r + 1, error));
    return STATUS_OK;
}

Status collective_case_check(const CollectiveCase *one, int rank, const char *name, Error *error) {
    const float *data = one->data, *other = one->other;
    const int64_t *border = one->border;
    int64_t n = one->n, own = border[rank + 1] - border[rank], all = all_factors(one);
    Check check = {.one = one, .name = name, .rank = rank};
    switch (one->kind) {
    case COMM_BROADCAST: return check_row(&check, data, 0, n, 0, 1, error);
    case COMM_REDUCE: return check_row(&check, data, 0, n, 0, rank ? rank + 1 : all, error);
    case COMM_SCATTER: return check_row(&check, other, 0, own, border[rank], 1, error);
    case COMM_GATHER: return rank ? STATUS_OK : check_rows(&check, data, border, -1, error);
    case COMM_ALL_GATHER: return check_rows(&check, data, border, -1, error);
    case COMM_REDUCE_SCATTER:
        return check_row(&check, data, border[rank], border[rank + 1], border[rank], all, error);
    case COMM_ALL_TO_ALL: return check_rows(&check, other, one->in_border, border[rank], error);
    case COMM_ALL_REDUCE: return check_row(&check, data, 0, n, 0, all, error);
    default: break;
    }
    int before = (rank + one->n_ranks - 1) % one->n_ranks;
    if (strcmp(name, "shift") == 0) return check_row(&check, other, 0, n, 0, before + 1, error);
    return check_row(&check, data, 0, n, 0, rank == 1 ? 1 : rank + 1, error);
}

/* ---- Counting */

Status collective_case_count(const CollectiveAlgorithm *algorithm, int64_t n_bytes, int n_ranks,
                             CollectiveCost *cost, Error *error) {
    CollectiveCase one = {.kind = algorithm->kind, .n_ranks = n_ranks, .n = n_bytes / 4};
    NullGroup *group = NULL;
    one.border = malloc(((size_t)n_ranks + 1) * sizeof *one.border);
    one.in_border = malloc(((size_t)n_ranks + 1) * sizeof *one.in_border);
    if (!one.border || !one.in_border) {
        error_failed(error, "no memory for the slices of %d ranks", n_ranks);
        goto done;
    }
    comm_even_borders(one.n, n_ranks, 1, one.border);
    TRY_GOTO(comm_null_open(&group, n_ranks, error), done);
    for (int rank = 0; rank < n_ranks; rank++) {
        Comm comm = comm_null_rank(group, rank);
        CommOperation operation = collective_case_operation(&one, rank);
        collective_algorithm_run(&comm, algorithm, &operation, error);
        comm_close(&comm);
        if (error->status != STATUS_OK) goto done;
    }
    comm_null_count_steps(group, &cost->cost, &cost->step_bytes, error);
done:
    comm_null_close(group);
    free(one.border);
    free(one.in_border);
    return error->status;
}
