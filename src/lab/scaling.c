/* A study of scaling is many runs of the real program. Each writes its metrics as any run does; what is
 * wanted is read from there, so a study cannot measure anything else than what users see. The first steps
 * warm caches and memory up and are left out.
 *
 * A bar is made of parts and has to be as high as the step that it stands for, so its figures come from the
 * same steps: means over those in the middle, half of all, by their time. Medians of each part by itself
 * would belong to different steps and add up to none; and a step that was disturbed says nothing. */
#include "lab/scaling.h"

#include "base/file/file.h"
#include "base/text/json.h"
#include "lab/launch/launch_child.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 10000, METRICS_BYTES = 64 << 20 };

/* ---- Figures, by their names in metrics.jsonl */

typedef struct {
    const char *field;
    size_t offset;
} Figure;

static const Figure FIGURES[] = {
    {"step_ms", offsetof(ScalingPoint, step_ms)},
    {"forward_ms", offsetof(ScalingPoint, forward_ms)},
    {"backward_ms", offsetof(ScalingPoint, backward_ms)},
    {"update_ms", offsetof(ScalingPoint, update_ms)},
    {"comm_ms", offsetof(ScalingPoint, comm_ms)},
    {"comm_wait_ms", offsetof(ScalingPoint, comm_wait_ms)},
    {"tokens_per_s", offsetof(ScalingPoint, tokens_per_s)},
    {"slowest_ms", offsetof(ScalingPoint, slowest_ms)},
    {NULL, offsetof(ScalingPoint, other_ms)}, /* the last: worked out of the first six */
};
enum { N_FIGURES = sizeof FIGURES / sizeof FIGURES[0] };

static double *figure_of(ScalingPoint *point, int figure) {
    return (double *)(void *)((char *)point + FIGURES[figure].offset);
}

/* Of one step. A device times its parts by itself, and they may come to a little more than the host's step;
 * the rest is then below zero, and parts and step still add up. */
static double rest_of(const double *figures) {
    double known = figures[1] + figures[2] + figures[3] + (isnan(figures[5]) ? 0 : figures[5]);
    return figures[0] - known;
}

/* ---- Which steps, and which runs, a point stands for */

typedef struct {
    double step_ms;
    int64_t index;
} Place;

static int compare_places(const void *a, const void *b) {
    const Place *x = a, *y = b;
    if (x->step_ms != y->step_ms) return x->step_ms < y->step_ms ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The mean of each figure over the n_kept in the middle of n, by their time. values: (figure, of n_most). */
static Status take_middle(const double *values, int64_t n_most, int64_t n, int64_t n_kept,
                          ScalingPoint *point, Error *error) {
    Place *order = calloc((size_t)n, sizeof *order);
    if (!order) return error_failed(error, "no memory for %" PRId64 " steps", n);
    for (int64_t i = 0; i < n; i++) order[i] = (Place){values[i], i};
    qsort(order, (size_t)n, sizeof *order, compare_places);
    for (int figure = 0; figure < N_FIGURES; figure++) {
        double sum = 0;
        for (int64_t i = 0; i < n_kept; i++)
            sum += values[figure * n_most + order[(n - n_kept) / 2 + i].index];
        *figure_of(point, figure) = sum / (double)n_kept;
    }
    free(order);
    return STATUS_OK;
}

/* ---- Reading a run */

typedef struct {
    double *values; /* (figure, step) */
    int *slowest;   /* rank of each step, -1: not known */
    int64_t n, most;
} Steps;

static Status read_line(Steps *steps, const char *line, size_t length, int64_t first, ScalingPoint *point,
                        Error *error) {
    json_t *object = NULL;
    TRY(json_parse(line, length, "metrics.jsonl", &object, error));
    const json_t *step = json_object_get(object, "step"),
                 *n_parameters = json_object_get(object, "parameters");
    const json_t *slowest = json_object_get(object, "slowest_rank");
    if (json_is_integer(n_parameters)) point->n_parameters = json_integer_value(n_parameters);
    if (json_is_integer(step) && json_integer_value(step) >= first && steps->n < steps->most) {
        double figures[N_FIGURES];
        for (int i = 0; i < N_FIGURES; i++) {
            const json_t *value = FIGURES[i].field ? json_object_get(object, FIGURES[i].field) : NULL;
            figures[i] = json_is_number(value) ? json_number_value(value) : NAN;
        }
        figures[N_FIGURES - 1] = rest_of(figures);
        for (int i = 0; i < N_FIGURES; i++) steps->values[i * steps->most + steps->n] = figures[i];
        steps->slowest[steps->n++] = json_is_integer(slowest) ? (int)json_integer_value(slowest) : -1;
    }
    json_decref(object);
    return STATUS_OK;
}

/* The rank that most steps name. */
static int most_frequent(const int *ranks, int64_t n) {
    int best = -1, n_best = 0;
    for (int64_t i = 0; i < n; i++) {
        int count = 0;
        for (int64_t k = 0; k < n; k++) count += ranks[k] == ranks[i];
        if (ranks[i] >= 0 && count > n_best) {
            best = ranks[i];
            n_best = count;
        }
    }
    return best;
}

Status scaling_read(const char *run, int64_t first, int64_t n_steps, ScalingPoint *point, Error *error) {
    char path[4096], *text = NULL;
    size_t n_bytes = 0;
    Steps steps = {.values = calloc((size_t)n_steps * N_FIGURES, sizeof(double)),
                   .slowest = calloc((size_t)n_steps, sizeof(int)),
                   .most = n_steps};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    if (!steps.values || !steps.slowest) error_failed(error, "no memory for %" PRId64 " steps", n_steps);
    else file_read(path, METRICS_BYTES, &text, &n_bytes, error);
    for (char *line = text; line && *line && error->status == STATUS_OK;) {
        size_t length = strcspn(line, "\n");
        read_line(&steps, line, length, first, point, error);
        line += length + (line[length] == '\n');
    }
    if (error->status == STATUS_OK && steps.n == 0) error_failed(error, "%s has no steps that count", path);
    if (error->status == STATUS_OK && steps.values && steps.slowest) {
        take_middle(steps.values, n_steps, steps.n, (steps.n + 1) / 2, point, error);
        point->slowest_rank = most_frequent(steps.slowest, steps.n);
    }
    free(text);
    free(steps.values);
    free(steps.slowest);
    return error->status;
}

/* ---- Running */

static Status run_child(ScalingRuns *runs, const ScalingPoint *point, const char *run, Error *error) {
    Arena *arena = &runs->launcher->arena;
    int n = 0;
    while (runs->arguments[n]) n++;
    const char **words = ARENA_ARRAY(arena, const char *, n + 20);
    int at = 0;
    words[at++] = "train";
    for (int i = 0; i < n; i++) words[at++] = runs->arguments[i];
    const char *set[] = {"--steps",         arena_printf(arena, "%" PRId64, runs->n_warm_up + runs->n_steps),
                         "--batch",         arena_printf(arena, "%" PRId64, point->batch),
                         "--threads",       arena_printf(arena, "%d", point->n_threads),
                         "--out",           run,
                         "--sample-tokens", "0",
                         "--eval-every",    "0",
                         "--eval-batches",  "1",
                         "--json",          "--quiet"};
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) words[at++] = set[i];
    words[at] = launcher_no_save(runs->arguments); /* or the end */
    const char *const *command = launcher_words(runs->launcher, point->n_ranks, words);
    ChildResult result;
    TRY(child_run(&(ChildSetup){.words = command, .timeout_s = runs->timeout_s}, &result, error));
    child_check(&result, command, error);
    child_free(&result);
    return error->status;
}

Status scaling_run(ScalingRuns *runs, ScalingPoint *point, Error *error) {
    if (runs->n_steps < 1 || runs->n_steps > MAX_STEPS)
        return error_failed(error, "%" PRId64 " steps cannot be read", runs->n_steps);
    RunFolder folder;
    TRY(run_folder_make(&folder, runs->folder, error)); /* ours alone; the run's own is in it */
    const char *run = arena_printf(&runs->launcher->arena, "%s/run", folder.path);
    if (run_child(runs, point, run, error) == STATUS_OK)
        scaling_read(run, runs->n_warm_up + 1, runs->n_steps, point, error);
    run_folder_remove(&folder);
    runs->n_started++;
    return error->status;
}

Status scaling_middle(const ScalingPoint *points, int n, ScalingPoint *result, Error *error) {
    enum { MOST = 256 };
    double values[N_FIGURES * MOST];
    int slowest[MOST];
    *result = points[0];
    if (n > MOST) n = MOST;
    for (int i = 0; i < n; i++) {
        ScalingPoint copy = points[i];
        for (int figure = 0; figure < N_FIGURES; figure++)
            values[figure * MOST + i] = *figure_of(&copy, figure);
        slowest[i] = points[i].slowest_rank;
    }
    result->slowest_rank = most_frequent(slowest, n);
    return take_middle(values, MOST, n, n % 2 ? 1 : 2, result, error);
}

/* ---- What it means */

static double cores(const ScalingPoint *point) {
    return (double)point->n_ranks * point->n_threads;
}

double scaling_efficiency(const ScalingPoint *one, const ScalingPoint *many) {
    double speed_one = (double)one->batch / (one->step_ms * cores(one));
    double speed_many = (double)many->batch / (many->step_ms * cores(many));
    return speed_many / speed_one;
}

/* Of very many buckets only a few are replayed; the others are like these. */
Status scaling_expected_comm(const Machine *machine, const CommAlgorithm *algorithm, int64_t n_bytes,
                             int64_t bucket_bytes, double *milliseconds, Error *error) {
    enum { MOST = 8 };
    int64_t buckets[MOST + 1], rest;
    if (bucket_bytes < 4) bucket_bytes = 4;
    int64_t n_full = n_bytes / bucket_bytes, n_replayed = n_full < MOST ? n_full : MOST;
    double full = 0, all = 0;
    for (int64_t i = 0; i < n_replayed; i++) buckets[i] = bucket_bytes;
    rest = (n_bytes - n_full * bucket_bytes) / 4 * 4;
    if (n_full > n_replayed) TRY(replay_step(machine, algorithm, buckets, (int)n_replayed, &full, error));
    if (rest > 0) buckets[n_replayed++] = rest;
    TRY(replay_step(machine, algorithm, buckets, (int)n_replayed, &all, error));
    *milliseconds = 1e3 * (all + full * (double)(n_full > MOST ? n_full - MOST : 0) / MOST);
    return STATUS_OK;
}
