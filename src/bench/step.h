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

#include "bench/move_rates.h"
#include "bench/training.h"

/* Of a step that offloads: what is moved, how fast that can be, and what a step therefore takes at least.
 * Moves, the host's update and everything else may run beside each other, so the slowest of them bounds
 * it. */
typedef struct {
    double bus_bytes[N_MOVE_LANES], file_bytes[N_MOVE_LANES]; /* of a step */
    MoveRates bus, disk;    /* measured in this run; {0}: nothing goes there */
    double copy_rate;       /* bytes/s of the host's memory, read and written; 0: the host updates nothing */
    double host_bytes;      /* that its update of a step reads and writes */
    double bus_ms, disk_ms; /* these bytes at these rates */
    double host_ms;         /* likewise */
    double compute_ms;      /* all other instructions, one by one */
    double bound_ms;        /* the most of the four */
    double wait_ms;         /* that the host has waited for moves, of a step */
} BenchBound;

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
    BenchBound bound;
} BenchStepReport;

Status bench_step_measure(BenchTraining *training, const BenchSetup *setup, BenchStepReport *report,
                          Error *error);

#endif
