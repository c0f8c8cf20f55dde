/* Layouts of the tuner by estimate: sums of what a probe has found (plan_probe.h), with the bubble by the
 * schedule's formula and collectives by theirs. An estimate is some arithmetic, so all layouts can have
 * one. */
#ifndef PGPT_JOB_PLAN_ESTIMATE_H
#define PGPT_JOB_PLAN_ESTIMATE_H

#include "job/plan_probe.h"

/* Blocks of the first stage, of the last, and of the one in between that has most (0: there is none): a large
 * vocabulary leaves the ends fewer. */
typedef struct {
    int first, last, middle;
} StageBlocks;

/* What is searched, as it is said at the start: read by all threads, written by none. */
typedef struct {
    PlanRun *plan;
    const TuneOptions *options;
    int n_ranks, n_threads;
    Links links;
    uint64_t usable; /* bytes of a device */
    bool offloads;   /* the host's memory may take what does not fit */
    /* What the call gives; of the sizes of axes, 0: nothing. */
    int size[N_AXES];
    const StageBlocks *stage_blocks; /* plan_list_stages */
    bool has_zero, has_schedule, has_chunks, has_recompute, has_micro_batch;
    bool has_own_sums; /* plan_has_own_sums: in the update of a probe */
} Search;

typedef struct {
    double seconds, waited, bubble, bytes;
    double optimizer, frames,
        a_frame;              /* bytes of these: state, activations held, and those of a micro-batch */
    double forward, backward; /* seconds of all micro-batches */
} Estimate;

/* Of pipelines of every length that divides the ranks, with any number of chunks: how blocks are given
 * out. */
const StageBlocks *plan_list_stages(const PlanRun *plan, int n_ranks, Arena *arena);

/* Micro-batches whose activations the first stage of a pipeline keeps, the last, and those in between, in
 * units of what a stage keeps of one: as many frames as the schedule's own lists take. Without a pipeline one
 * each. */
typedef struct {
    double first, last, middle;
} HeldFrames;

HeldFrames plan_held_frames(const Search *search, const PlanLayout *layout);

Estimate plan_estimate(const Search *search, const ProbeCost *probe, const PlanLayout *layout,
                       HeldFrames held);

/* The same with what the layout keeps at the host there; bytes INFINITY: it does not fit there either.
 * `share`: the part of it that there is room for on the device. */
Estimate plan_estimate_offloaded(const Search *search, const PlanLayout *layout, const Estimate *from,
                                 double *share);

/* Sequences of a rank's share of the batch, of dp and ep, and in how many micro-batches. */
int64_t plan_share_of(const Search *search, const PlanLayout *layout);
int64_t plan_micro_batches(const Search *search, const PlanLayout *layout);

int plan_blocks_of(const Search *search, const PlanLayout *layout); /* of the stage that has most */

enum { TUNE_MOST_CHUNKS = 4 };

/* Ranks of dp, cp and ep, who sum the gradients, as they lie on hosts. */
GroupPlace plan_sums_place(const Search *search, const PlanLayout *layout);

#endif
