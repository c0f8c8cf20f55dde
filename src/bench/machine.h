/* The machine that is here, measured, as a machine file has it (plan/machine.h).
 *
 *     MachineMeasure measure;
 *     TRY(bench_machine_measure(&measure, &setup, &world, folder, error));      // collective
 *     TRY(bench_machine_write(&measure, "mine.ini", error));
 *
 *     bench_machine_free(&measure);
 *
 * Rates of instructions are those that training steps of several shapes run at, so they are what kernels
 * reach and not what a datasheet says. With several ranks, links are measured by collectives between them,
 * and on a CPU what ranks cost each other. */
#ifndef PGPT_BENCH_MACHINE_H
#define PGPT_BENCH_MACHINE_H

#include "bench/training.h"
#include "comm/comm.h"
#include "plan/machine.h"

typedef struct {
    Machine machine;
    Arena arena; /* has the machine's texts */
    char classes[256];
    int n_samples, n_left_out; /* instructions that differ; shapes that a device has no room or time for */
    double beyond;             /* what steps take, in parts of the sum of their instructions */
    bool is_bound;             /* by the launcher to fewer cores than there are: threads were not tried */
    const char *links;         /* what carried messages; NULL: guessed */
} MachineMeasure;

/* Collective. `folder` is where the disk is measured. */
Status bench_machine_measure(MachineMeasure *measure, const BenchSetup *setup, Comm *world,
                             const char *folder, Error *error);

void bench_machine_free(MachineMeasure *measure); /* also after a failure */

Status bench_machine_write(const MachineMeasure *measure, const char *path, Error *error);

#endif
