/* The machine that is here, measured, as a machine file has it (plan/machine.h).
 *
 *     MachineMeasure measure;
 *     TRY(bench_machine_measure(&measure, &setup, &world, folder, error));      // collective
 *     TRY(bench_machine_write(&measure, "mine.ini", error));
 *
 * Rates of instructions are those that training steps of a few shapes run at, so they are what kernels reach
 * and not what a datasheet says. With several ranks, links are measured by collectives between them. */
#ifndef PGPT_BENCH_MACHINE_H
#define PGPT_BENCH_MACHINE_H

#include "bench/training.h"
#include "comm/comm.h"
#include "plan/machine.h"

typedef struct {
    Machine machine;
    char classes[256], name[128], device[64];
    int n_samples;  /* instructions that were timed */
    bool has_links; /* measured, not guessed from memory */
} MachineMeasure;

/* `folder` is where the disk is measured. */
Status bench_machine_measure(MachineMeasure *measure, const BenchSetup *setup, Comm *world,
                             const char *folder, Error *error);

Status bench_machine_write(const MachineMeasure *measure, const char *path, Error *error);

#endif
