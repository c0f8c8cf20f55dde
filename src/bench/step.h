/* Whole training steps, as `pgpt train` runs them, on random tokens.
 *
 *     BenchTraining training;
 *     if (bench_training_plan(&training, &setup, error) == STATUS_OK)
 *         bench_step_measure(&training, &setup, &report, error);
 *     bench_training_close(&training);
 *
 * The executor of training.step has the times of its instructions. */
#ifndef PGPT_BENCH_STEP_H
#define PGPT_BENCH_STEP_H

#include "bench/training.h"

typedef struct {
    double loss;          /* of the last step */
    double total_seconds; /* of all timed ones */
    double step_ms, best_ms, forward_ms, backward_ms, update_ms;
    double tokens_per_s, best_tokens_per_s, flops, flops_per_s, peak_flops;
    double blocks_ms;      /* forward and backward of the blocks, without embedding and head; a step's mean */
    double standard_flops; /* of a step, by the formula of papers */
    double utilisation;    /* of the peak, by arithmetic that is not done twice */
    uint64_t resident_bytes;
    uint64_t beside_bytes; /* of a GPU's memory, taken since the plan was made and not part of it */
} BenchStepReport;

Status bench_step_measure(BenchTraining *training, const BenchSetup *setup, BenchStepReport *report,
                          Error *error);

#endif
