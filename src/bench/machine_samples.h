/* Rates of instructions in training steps of several shapes, for a machine file (plan/samples.h).
 *
 *     MachineSamples samples = {0};
 *     TRY(machine_samples_take(&samples, &setup, n_threads, error));
 *     ... machine_samples_text(&samples, factor, &arena) ...
 *     machine_samples_free(&samples); */
#ifndef PGPT_BENCH_MACHINE_SAMPLES_H
#define PGPT_BENCH_MACHINE_SAMPLES_H

#include "bench/training.h"
#include "comm/comm.h"
#include "plan/samples.h"

typedef struct {
    SampleKey key;
    double seconds, n; /* sum of those that are alike */
    double bytes, flops;
} MachineSample;

typedef struct {
    Arena arena;
    MachineSample *sample;
    int n, room;
    double step, instructions; /* seconds of a step, and of its instructions, of all shapes together */
    double host;               /* seconds of a step of the smallest shape beside its instructions */
    int n_shapes, n_left_out;  /* for lack of memory or time */
} MachineSamples;

/* All shapes, by so many threads (of a GPU: 0). `together`: not NULL: the ranks of it do the same at the same
 * time. */
Status machine_samples_take(MachineSamples *samples, const BenchSetup *setup, int64_t n_threads,
                            Comm *together, Error *error);

/* Of rounds that did the same, in the same order, what each instruction takes in the middle ones: a round in
 * which something else slowed the machine down does not count. `samples` is {0}. */
void machine_samples_middle(const MachineSamples *rounds, int n_rounds, MachineSamples *samples);

/* Seconds of steps of a few shapes, one of each, by one thread a rank, until all ranks of `together` have
 * taken theirs: they do the same at the same time. */
Status machine_steps_take(const BenchSetup *setup, Comm *together, double *seconds, Error *error);

void machine_samples_free(MachineSamples *samples); /* safe on {0} */

/* As a machine file has them, with every rate times a factor. */
const char *machine_samples_text(const MachineSamples *samples, double factor, Arena *arena);

#endif
