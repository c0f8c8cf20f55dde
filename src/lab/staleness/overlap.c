/* Which ranks are lost is the beginning of a permutation drawn by (seed, draw), so that losing three of a
 * draw means losing two of it and one more; points of a share are drawn by (seed, step, share), so that runs
 * of different overlap see the same points as long as they have them. */
#include "lab/staleness/overlap.h"

#include "base/random.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define RANDOM_LOST  (RANDOM_DATA + 0x31)
#define RANDOM_BATCH (RANDOM_DATA + 0x32)

int overlap_assign(int n_ranks, int overlap, const bool *is_lost, int *owner) {
    int load[OVERLAP_MAX_RANKS] = {0}, n_lost = 0;
    for (int s = 0; s < n_ranks; s++) {
        owner[s] = is_lost[s] ? -1 : s;
        if (!is_lost[s]) load[s] = 1;
    }
    for (int s = 0; s < n_ranks; s++) {
        for (int k = 1; k <= overlap && is_lost[s]; k++) {
            int rank = (s + k) % n_ranks;
            if (!is_lost[rank] && (owner[s] < 0 || load[rank] < load[owner[s]])) owner[s] = rank;
        }
        if (is_lost[s] && owner[s] >= 0) load[owner[s]]++;
        n_lost += owner[s] < 0;
    }
    return n_lost;
}

double overlap_expected(int n_ranks, int overlap, int n_lost) {
    double chance = 1.0; /* that the K + 1 holders of a share are among the lost */
    for (int k = 0; k <= overlap && k < n_ranks; k++) {
        if (n_lost - k <= 0) return 0.0;
        chance *= (double)(n_lost - k) / (double)(n_ranks - k);
    }
    return chance * n_ranks;
}

/* ---- Training */

/* The gradient of a point is added to what the step will change. */
static void add_point(const OverlapRun *run, int64_t point, const float *weights, float *change) {
    const LogisticPoints *points = run->points;
    int64_t n = points->setup.n_nonzeros;
    const uint32_t *index = points->index + point * n;
    const float *value = points->value + point * n;
    float margin = 0.0f;
    for (int64_t k = 0; k < n; k++) margin += weights[index[k]] * value[k];
    float slope = -run->lr * logistic_slope(margin, points->label[point]);
    for (int64_t k = 0; k < n; k++) change[index[k]] += slope * value[k];
}

static void take_step(const OverlapRun *run, int64_t step, const int *owner, float *weights, float *change) {
    uint64_t seed = run->points->setup.seed, n_ranks = (uint64_t)run->n_ranks;
    uint64_t n_points = (uint64_t)run->points->setup.n_points;
    memset(change, 0, (size_t)run->points->setup.n_weights * sizeof *change);
    for (uint64_t share = 0; share < n_ranks; share++) {
        if (owner[share] < 0) continue;
        uint64_t n_own = (n_points - share + n_ranks - 1) / n_ranks; /* points share, share + n_ranks, ... */
        RandomKey key = random_key(seed, RANDOM_BATCH, share);
        for (int64_t b = 0; b < run->batch; b++) {
            uint64_t drawn = (uint64_t)random_block(key, (uint64_t)step, (uint64_t)b).word[0] * n_own >> 32;
            add_point(run, (int64_t)(share + n_ranks * drawn), weights, change);
        }
    }
    for (int64_t i = 0; i < run->points->setup.n_weights; i++) weights[i] += change[i];
}

static void lose_ranks(const OverlapRun *run, bool *is_lost) {
    RandomKey key = random_key(run->points->setup.seed, RANDOM_LOST, run->draw);
    for (int i = 0; i < run->n_lost; i++)
        is_lost[random_permute(key, (uint64_t)i, (uint64_t)run->n_ranks)] = true;
}

static int busiest_of(const int *owner, int n_ranks) {
    int load[OVERLAP_MAX_RANKS] = {0}, most = 0;
    for (int s = 0; s < n_ranks; s++) {
        if (owner[s] < 0) continue;
        load[owner[s]]++;
        if (load[owner[s]] > most) most = load[owner[s]];
    }
    return most;
}

static void train(const OverlapRun *run, float *weights, float *change, OverlapResult *result) {
    bool is_lost[OVERLAP_MAX_RANKS] = {false};
    int owner[OVERLAP_MAX_RANKS], mark = 0;
    overlap_assign(run->n_ranks, run->overlap, is_lost, owner);
    for (int64_t step = 0; step <= run->n_steps; step++) {
        if (step * OVERLAP_MARKS >= mark * run->n_steps && mark <= OVERLAP_MARKS) {
            result->step[mark] = (double)step;
            result->loss[mark++] = logistic_loss(run->points, weights);
        }
        if (step == run->n_steps) break;
        if (step == run->lose_at) {
            lose_ranks(run, is_lost);
            result->n_shares_lost = overlap_assign(run->n_ranks, run->overlap, is_lost, owner);
            result->busiest = busiest_of(owner, run->n_ranks);
        }
        take_step(run, step, owner, weights, change);
    }
}

Status overlap_run(const OverlapRun *run, OverlapResult *result, Error *error) {
    *result = (OverlapResult){.busiest = 1};
    if (run->n_ranks < 2 || run->n_ranks > OVERLAP_MAX_RANKS)
        return error_user(error, "%d nodes; give 2 to %d", run->n_ranks, OVERLAP_MAX_RANKS);
    if (run->overlap < 0 || run->overlap >= run->n_ranks)
        return error_user(error, "an overlap of %d, but a rank has %d others; give 0 to %d", run->overlap,
                          run->n_ranks - 1, run->n_ranks - 1);
    if (run->n_lost < 0 || run->n_lost >= run->n_ranks)
        return error_user(error, "%d of %d ranks cannot be lost; at least one must be left", run->n_lost,
                          run->n_ranks);
    if (run->n_steps < OVERLAP_MARKS)
        return error_user(error, "%" PRId64 " steps are too few to be drawn; take %d or more", run->n_steps,
                          OVERLAP_MARKS);
    size_t n_weights = (size_t)run->points->setup.n_weights;
    float *weights = calloc(n_weights, sizeof *weights), *change = calloc(n_weights, sizeof *change);
    if (weights && change) train(run, weights, change, result);
    else error_failed(error, "no memory for %zu weights", n_weights);
    free(weights);
    free(change);
    return error->status;
}
