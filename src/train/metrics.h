/* What a run reports: metrics.jsonl line by line, the text of the progress bar, the closing JSON object. */
#ifndef PGPT_TRAIN_METRICS_H
#define PGPT_TRAIN_METRICS_H

#include "base/file/file.h"
#include "base/text/json.h"
#include "train/step/step.h"

/* One step as it is reported. NAN means "not measured" and is left out (or null). */
typedef struct {
    int64_t step; /* counted from 1: steps done */
    int64_t n_tokens;
    double loss, validation_loss, rate, gradient_norm;
    double depth_loss, depth_accuracy; /* NAN without blocks that some positions go by */
    double tokens_per_s, step_ms, flops_per_s;
    double loss_scale; /* NAN where gradients are not scaled */
    int64_t n_skipped; /* steps whose gradient was not finite, since the run began */
    double forward_ms, backward_ms, update_ms, comm_ms, comm_wait_ms; /* the last two NAN on one rank */
    double stage_wait_ms; /* of the last: for messages of other stages; NAN without pipeline */
    double
        /* of the rank that worked longest, without its waits; NAN on one rank, or where ranks do not meet */
        slowest_ms;
    int slowest_rank;
    RouterReport routes;
    /* Where they were asked for: tokens of each expert, block by block, in units of the mean of its block;
     * NULL: not. */
    const double *loads;
    int64_t n_loads, n_experts; /* of all blocks; of one */
    /* With --compress-warmup auto, where the variance was looked at (0: it was not): the part of it that
     * stayed; and whether ranks compress from the next step on. */
    double variance_kept;
    bool begins_to_compress;
    double staleness; /* the largest of this step's gradients; NAN where none can be late */
} StepMetrics;

/* Opens RUN/metrics.jsonl; a new file gets a header line (version, machine, start, and `header`, which is
 * consumed). Of an old one, the steps after `n_done` go: a run that was killed after its last checkpoint
 * takes them again. */
Status metrics_open(LineWriter *writer, const char *run, json_t *header, int64_t n_done, Error *error);
Status metrics_write(LineWriter *writer, const StepMetrics *metrics, Error *error);

/* What the routers of a step did, to a line; nothing where there are none. */
void metrics_add_routes(json_t *line, const RouterReport *routes);

/* "step 40/600  loss 2.3411  val 2.1012  1.40 ktokens/s  183 GFLOP/s" */
void metrics_status(const StepMetrics *metrics, int64_t n_steps, char *text, size_t n_bytes);

/* The machine in words: processor, cores, memory, system. A new reference. */
json_t *metrics_machine(void);

#endif
