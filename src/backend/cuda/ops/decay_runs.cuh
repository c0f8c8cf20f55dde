/* Which elements of a flat array decay, for the kernels of the optimizers.
 *
 * The runs travel as an argument of the kernel, in constant memory: nothing to upload, and the neighbouring
 * threads of a warp, which ask for nearly the same place, read the same words. Neighbouring runs that agree
 * are made one first, so that decaying and other runs alternate and their ends say everything. More runs than
 * fit are cut into several launches. */
#ifndef PGPT_BACKEND_CUDA_OPS_DECAY_RUNS_CUH
#define PGPT_BACKEND_CUDA_OPS_DECAY_RUNS_CUH

#include "backend/cuda/runtime/device.cuh"

extern "C" {
#include "ops/update/update.h"
}

enum { MAX_RUNS = 384 }; /* of a launch: GPT-2 XL has 385 in all, and arguments may take 4 kB */

typedef struct {
    int64_t first, count; /* elements of this launch: first .. first + count - 1 */
    int n_runs;
    bool first_decays;
    int64_t end[MAX_RUNS]; /* of each run, counted from the array's beginning */
} DecayTable;

/* The next launch: false when there is none. *run and *element say how far the earlier ones got; begin with
 * 0, 0. */
static inline bool decay_table_next(DecayTable *table, const DecayRun *runs, int n_runs, int *run,
                                    int64_t *element) {
    table->first = *element;
    table->n_runs = 0;
    for (; *run < n_runs; (*run)++) {
        bool decays = runs[*run].decays;
        if (!runs[*run].n_elements) continue;
        bool goes_on = table->n_runs && decays == (table->first_decays == (table->n_runs % 2 == 1));
        if (!goes_on && table->n_runs == MAX_RUNS) break;
        if (!table->n_runs) table->first_decays = decays;
        *element += runs[*run].n_elements;
        table->end[goes_on ? table->n_runs - 1 : table->n_runs++] = *element;
    }
    table->count = *element - table->first;
    return table->count > 0;
}

/* Whether 8 elements lie on a 16-byte boundary depends on where a launch begins. */
static inline Memory part_of(void *data, const Tensor *tensor, int64_t first) {
    Memory m = {data, tensor ? tensor->dtype : DTYPE_F32, false};
    m.aligned = is_aligned((const char *)data + (size_t)first * dtype_info(m.dtype)->n_bytes);
    return m;
}

/* The run that element i is in. */
DEVICE int find_run(const DecayTable &table, int64_t i) {
    int low = 0, high = table.n_runs - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (i < table.end[middle]) high = middle;
        else low = middle + 1;
    }
    return low;
}

DEVICE bool run_decays(const DecayTable &table, int run) {
    return table.first_decays == (run % 2 == 0);
}

/* For 8 elements from i on: bit k says whether element i + k decays. Nearly always they are all in one
 * run. */
DEVICE unsigned decay_bits(const DecayTable &table, int64_t i) {
    int run = find_run(table, i);
    if (i + VECTOR <= table.end[run]) return run_decays(table, run) ? 0xFFu : 0u;
    unsigned bits = 0;
    for (int k = 0; k < VECTOR; k++) {
        while (run < table.n_runs - 1 && i + k >= table.end[run]) run++;
        bits |= (unsigned)run_decays(table, run) << k;
    }
    return bits;
}

#endif
