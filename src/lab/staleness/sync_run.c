/* A study of synchrony is a few runs of the real program that differ in --sync alone, read from what every
 * run writes: the time is the sum of the steps' times in metrics.jsonl, so evaluations, which cost all
 * schemes the same, do not count.
 *
 * A step's loss is that of its own batch and jumps from one batch to the next. All runs see the same batches
 * in the same order, so the jumps are the same in all; for the eye they are averaged over the steps around
 * each. */
#include "lab/staleness/sync_run.h"

#include "base/file/file.h"
#include "base/text/json.h"
#include "lab/launch/launch_child.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { METRICS_BYTES = 256 << 20, SMOOTHED_PART = 20 };

Status sync_run_start(const SyncRun *run, Launcher *launcher, double timeout_s, Error *error) {
    const char *const *command = launcher_words(launcher, run->n_ranks, run->words);
    ChildResult result;
    TRY(child_run(&(ChildSetup){.words = command, .timeout_s = timeout_s}, &result, error));
    child_check(&result, command, error);
    child_free(&result);
    return error->status;
}

/* ---- Reading */

static double number_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static Status read_line(SyncRun *run, const char *line, size_t length, int64_t *n, Error *error) {
    json_t *object = NULL;
    TRY(json_parse(line, length, "metrics.jsonl", &object, error));
    if (json_object_get(object, "step") && *n < run->n_steps) {
        double before = *n ? run->seconds[*n - 1] : 0.0;
        double staleness = number_of(object, "staleness"), validation = number_of(object, "val_loss");
        run->seconds[*n] = before + 1e-3 * number_of(object, "step_ms");
        run->loss[*n] = number_of(object, "loss");
        if (!isnan(validation)) run->val_loss = validation;
        if (!isnan(staleness) && run->max_staleness < (int64_t)staleness)
            run->max_staleness = (int64_t)staleness;
        (*n)++;
    }
    json_decref(object);
    return STATUS_OK;
}

static double mean(const double *values, int64_t first, int64_t end) {
    double sum = 0.0;
    for (int64_t i = first; i < end; i++) sum += values[i];
    return sum / (double)(end - first);
}

int64_t sync_run_smoothing(int64_t n_steps) {
    return n_steps / SMOOTHED_PART / 2 * 2 + 1;
}

static void summarise(SyncRun *run) {
    int64_t n = run->n_steps, half = sync_run_smoothing(n) / 2;
    for (int64_t i = 0; i < n; i++) {
        int64_t before = i < half ? i : half, after = before; /* as far to both sides where it falls fast, */
        if (after > n - 1 - i) after = n - 1 - i;             /* in the beginning; not where it ends */
        run->smooth[i] = mean(run->loss, i - before, i + after + 1);
    }
    run->final_loss = mean(run->loss, n - (n + 9) / 10, n);
    run->steps_per_s = (double)n / run->seconds[n - 1];
}

Status sync_run_read(SyncRun *run, Error *error) {
    char path[4096], *text = NULL;
    size_t n_bytes = 0;
    int64_t n = 0;
    run->seconds = calloc(3 * (size_t)run->n_steps, sizeof *run->seconds);
    if (!run->seconds) return error_failed(error, "no memory for %" PRId64 " steps", run->n_steps);
    run->loss = run->seconds + run->n_steps;
    run->smooth = run->loss + run->n_steps;
    run->max_staleness = -1;
    run->val_loss = NAN;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run->folder);
    file_read(path, METRICS_BYTES, &text, &n_bytes, error);
    for (char *line = text; line && *line && error->status == STATUS_OK;) {
        size_t length = strcspn(line, "\n");
        read_line(run, line, length, &n, error);
        line += length + (line[length] == '\n');
    }
    free(text);
    if (error->status != STATUS_OK) return error->status;
    if (n < run->n_steps)
        return error_failed(error, "the run was stopped after %" PRId64 " of %" PRId64 " steps", n,
                            run->n_steps);
    summarise(run);
    return STATUS_OK;
}

void sync_run_free(SyncRun *run) {
    free(run->seconds);
    *run = (SyncRun){0};
}

double sync_run_time_to(const SyncRun *run, double loss) {
    for (int64_t i = 0; i < run->n_steps; i++)
        if (run->smooth[i] <= loss) return run->seconds[i];
    return NAN;
}
