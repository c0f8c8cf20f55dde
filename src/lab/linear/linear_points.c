/* Points, each drawn from its own number: whoever has it, it is the same. */
#include "lab/linear/linear_engine.h"

#include "base/random.h"
#include "base/system/memory.h"
#include "lab/linear/attention.h"

#include <stdlib.h>

/* What the random numbers are for: beside the order of training data, which is RANDOM_DATA itself. */
#define RANDOM_POINTS (RANDOM_DATA + 0x11)
#define RANDOM_NOISE  (RANDOM_DATA + 0x12)

static size_t points_bytes(const LinearPoints *points) {
    return (size_t)points->n_points * (size_t)(points->n_inputs + points->n_targets) * sizeof(double);
}

void linear_points_close(LinearPoints *points) {
    memory_free(points->x, points->x ? points_bytes(points) : 0);
    *points = (LinearPoints){0};
}

static Status draw_points(const LinearProblem *problem, const LinearPoints *points, int64_t first,
                          Error *error) {
    RandomKey key = random_key(problem->seed, RANDOM_POINTS, 0),
              noise = random_key(problem->seed, RANDOM_NOISE, 0);
    uint64_t n_weights = (uint64_t)points->n_weights;
    float *row = malloc(n_weights * sizeof *row);
    if (!row)
        return error_failed(error, "no memory for a point of %llu numbers", (unsigned long long)n_weights);
    for (int64_t i = 0; i < points->n_points; i++) {
        uint64_t index = (uint64_t)(first + i);
        double *x = points->x + (uint64_t)i * n_weights, y = 0.0;
        random_normal_fill(key, index * n_weights, n_weights, 1.0f, row);
        for (uint64_t k = 0; k < n_weights; k++) {
            x[k] = (double)row[k];
            y += problem->truth[k] * x[k];
        }
        points->y[i] = y;
        if (problem->noise > 0.0) points->y[i] += problem->noise * (double)random_normal(noise, index);
    }
    free(row);
    return STATUS_OK;
}

Status linear_points_open(const LinearProblem *problem, int64_t first, int64_t n, int64_t n_all,
                          LinearPoints *points, Error *error) {
    bool is_attention = problem->task == LINEAR_ATTENTION;
    *points = (LinearPoints){.n_weights = problem->n_weights,
                             .n_inputs = is_attention ? ATTENTION_INPUTS : problem->n_weights,
                             .n_targets = is_attention ? ATTENTION_TARGETS : 1,
                             .n_points = n,
                             .n_all = n_all};
    size_t bytes = points_bytes(points);
    void *memory;
    TRY(memory_check(bytes, "the points", "lower --points", error));
    TRY(memory_alloc(&memory, bytes, "the points", error));
    points->x = memory;
    points->y = points->x + (size_t)n * (size_t)points->n_inputs;
    if (!is_attention) return draw_points(problem, points, first, error);
    for (int64_t i = 0; i < n; i++)
        attention_draw(problem->seed, first + i, points->x + i * ATTENTION_INPUTS,
                       points->y + i * ATTENTION_TARGETS);
    return STATUS_OK;
}
