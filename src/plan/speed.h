/* How long an instruction takes on a machine: the larger of its arithmetic at the rate of its kind and its
 * bytes at the rate of memory, and what it costs to begin.
 *
 *     RankSpeed speed = rank_speed(&machine, &(SpeedUse){.n_ranks = 4, .n_threads = 1, .precision = kind});
 *     NodeTime time = rank_node_time(&speed, node);        // time.seconds, time.bound
 *
 * Where the machine was measured, an instruction takes what its like took (plan/samples.h).
 *
 * On a CPU a rank has its threads' share of the cores: where ranks have more threads than there are cores,
 * all of them wait for each other, and nothing that a thread of its own would do is beside the rest. What
 * does not fit the caches of those who are at it takes its share of the memory's rate. */
#ifndef PGPT_PLAN_SPEED_H
#define PGPT_PLAN_SPEED_H

#include "graph/op.h"
#include "graph/precision.h"
#include "plan/machine.h"
#include "plan/samples.h"

typedef struct {
    int64_t n_ranks;
    int n_threads; /* of a rank, on a CPU; 0: its share of the cores */
    PrecisionKind precision;
} SpeedUse;

typedef struct {
    const Machine *machine;
    GemmClasses classes;
    double gemm_16, gemm_32, vector;   /* FLOP/s */
    double memory, cache;              /* bytes a second */
    double cache_bytes, launch, draws; /* draws: random numbers a second; 0: free */
    double host, bus, disk; /* bytes a second of a rank: of the host's kernels, to the host, to its disk */
    bool overlaps;          /* communication goes on beside computation */
    /* What was measured counts more than the rates above. Of a CPU: by one thread and by one on every core,
     * and how far between them a rank is; by one thread beside others on all other cores, and how many of
     * those are at it; of what all that says, the part that a rank has where others want the cores; and bytes
     * a second of the memory behind all caches, where all ranks are at it. */
    const Samples *one_thread, *all_threads, *busy;
    double all_threads_part, busy_part, busy_share, share, shared_memory;
    double threads; /* of a rank, in parts of one that is alone */
    double adds;    /* the part of a step's micro-batches behind the first */
    double uneven;  /* what instructions take more, in parts, where ranks that take turns meet again soon */
    double turns; /* 1: a rank's threads always have their cores; else the part of the time that they have */
} RankSpeed;

RankSpeed rank_speed(const Machine *machine, const SpeedUse *use);

/* How many a step has, 1 unless it is said: behind the first one gradients are added up. */
void rank_speed_set_micro_batches(RankSpeed *speed, int64_t n_micro_batches);

/* What holds an instruction up. */
typedef enum { BOUND_GEMM, BOUND_ATTENTION, BOUND_VECTOR, BOUND_MEMORY, BOUND_LAUNCH, N_BOUNDS } NodeBound;

const char *bound_name(NodeBound bound); /* "GEMMs" */

typedef struct {
    double seconds;
    NodeBound bound;
} NodeTime;

NodeTime rank_node_time(const RankSpeed *speed, const Node *node);

/* FLOP/s that a rank of so many has at best in this precision: what utilisation is of. */
double machine_peak_flops(const Machine *machine, PrecisionKind precision, int64_t n_ranks);

#endif
