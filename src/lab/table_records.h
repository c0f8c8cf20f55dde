/* Figures of `pgpt lab table` that were recorded on other machines, to stand in rows that a machine has no
 * hardware for.
 *
 * To record: on a machine with an NVIDIA GPU and nothing else to do, `pgpt lab table --record` measures all
 * rows and prints a line of this table for each; put them in the place of those below. Only figures of the
 * whole (50 steps, 30 tokens, the study's own text) are printed. */
#ifndef PGPT_LAB_TABLE_RECORDS_H
#define PGPT_LAB_TABLE_RECORDS_H

typedef struct {
    const char *name;    /* of the row */
    const char *date;    /* "2026-11-18"; NULL: nothing is recorded yet */
    const char *machine; /* "NVIDIA H200, ..." */
    int n_ranks;
    double train_s;    /* 50 steps of 4,096 tokens */
    double generate_s; /* 30 tokens without a cache */
    double cached_s;   /* and with it */
} TableRecord;

static const TableRecord TABLE_RECORDS[] = {
    {"CUDA", "2026-11-18", "NVIDIA H200, 132 multiprocessors, compute capability 9.0, 139.8 GiB", 1, 0.8081,
     0.2354, 0.1319},
    {"MPI + CUDA", "2026-11-18",
     "NVIDIA H200, 132 multiprocessors, compute capability 9.0, 139.8 GiB; 4 ranks on 1 GPU", 4, 3.198,
     0.1844, 0.1153},
};
enum { N_TABLE_RECORDS = sizeof TABLE_RECORDS / sizeof TABLE_RECORDS[0] };

#endif
