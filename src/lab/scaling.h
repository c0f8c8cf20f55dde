/* One training run among many of a study: started, read, forgotten.
 *
 *     ScalingRuns runs = {.launcher = &launcher, .folder = folder,
 *                         .arguments = {"--model", "nano", NULL}, .n_warm_up = 2, .n_steps = 8};
 *     ScalingPoint point = {.n_ranks = 2, .n_threads = 1, .batch = 16};
 *     // starts mpirun -n 2 pgpt train ..., reads its metrics.jsonl
 *     TRY(scaling_run(&runs, &point, error));
 *     ... point.step_ms, point.forward_ms ... */
#ifndef PGPT_LAB_SCALING_H
#define PGPT_LAB_SCALING_H

#include "lab/collectives/replay.h"
#include "lab/launch/launcher.h"

typedef struct {
    Launcher *launcher;
    const char *folder; /* where runs go; each is removed when it was read */
    const char *const
        *arguments; /* of pgpt train, NULL at the end; steps, threads, batch and folder are added */
    int64_t n_warm_up, n_steps; /* steps that do not count, and those that do */
    double timeout_s;
    int n_started;
} ScalingRuns;

/* Means over the middle half of the steps that count, by their time: all figures are of the same steps, so
 * forward, backward, update, waiting and the rest add up to the step. Times in milliseconds of rank 0; NAN:
 * not measured. */
typedef struct {
    int n_ranks, n_threads;
    int64_t batch;
    double step_ms, forward_ms, backward_ms, update_ms;
    double comm_ms, comm_wait_ms; /* messages under way; and the part that was waited for */
    double other_ms;              /* the rest of the step: data, agreement, samples of the clock */
    double tokens_per_s;
    double slowest_ms; /* of the rank that worked longest, without its waits */
    int slowest_rank;  /* the one that most often did; -1: not known */
    int64_t n_parameters;
} ScalingPoint;

/* What a figure of a run came to, in a run with n_ranks, n_threads and batch of the point. */
Status scaling_run(ScalingRuns *runs, ScalingPoint *point, Error *error);

/* Of several runs of the same, the one whose step has the median time, with all its figures; of an even
 * number, the means of two. */
Status scaling_middle(const ScalingPoint *points, int n, ScalingPoint *result, Error *error);

/* The figures of a finished run from its metrics.jsonl: steps `first` (from 1) and n_steps at most. */
Status scaling_read(const char *run, int64_t first, int64_t n_steps, ScalingPoint *point, Error *error);

/* How much of the speed of a core of `one` is left on a core of `many`: sequences a second and core,
 * compared. That is time by time where the batch grows with the cores (weak scaling), and speed-up by cores
 * where it does not (strong scaling). */
double scaling_efficiency(const ScalingPoint *one, const ScalingPoint *many);

/* What the messages of a step should take: gradients of so many bytes, summed by an algorithm in buckets. */
Status scaling_expected_comm(const Machine *machine, const CommAlgorithm *algorithm, int64_t n_bytes,
                             int64_t bucket_bytes, double *milliseconds, Error *error);

#endif
