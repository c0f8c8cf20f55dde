/* The best layout of a run on a machine: all that can be are estimated, and the best of them planned.
 *
 *     PlanTuning tuning;
 *     TRY(plan_tune(&plan, &(TuneOptions){.n_best = 10}, &tuning, error));
 *     for (int i = 0; i < tuning.n_best; i++) ... tuning.best[i].layout, .seconds, .bytes ...
 *     plan_layout_apply(&plan, &tuning.best[0].layout, error);
 *     plan_tuning_free(&tuning);
 *
 * What is searched: dp, tp, cp, ep, pp, chunks, schedule, ZeRO, micro-batch, recompute, offload for what does
 * not fit without, and dtype where nobody has said it. What the call gives is kept as it is. Batch, sequence
 * and model stay: no layout changes what is learned.
 *
 * **Estimates** are made of programs of a few blocks, one for every tp, cp, ep, micro-batch and recompute:
 * what a block adds to the time and the bytes of a stage, and what the ends of the model do. A layout is then
 * a sum, with the bubble by the schedule's formula and collectives by theirs. What needs too much memory by
 * its estimate is not planned. **Plans** are made of the best by estimate, in order, and those that fit are
 * compared by simulation. */
#ifndef PGPT_JOB_PLAN_TUNE_H
#define PGPT_JOB_PLAN_TUNE_H

#include "job/plan_run.h"

/* What a layout keeps in the host's memory. */
typedef enum {
    TUNE_AS_GIVEN, /* what the call says, which is nothing where it does not */
    TUNE_OFFLOAD_OPTIMIZER,
    TUNE_OFFLOAD_ACTIVATIONS, /* too */
    N_TUNE_OFFLOADS
} TuneOffload;

extern const char *const tune_offload_words[N_TUNE_OFFLOADS]; /* of --offload; NULL: none */

typedef struct {
    int size[N_AXES];
    ScheduleKind schedule;
    int n_chunks;
    int zero;
    int64_t micro_batch;
    int64_t recompute;
    PrecisionKind precision;
    TuneOffload offload;
    double share;        /* of what is offloaded that stays on the device */
    bool has_no_samples; /* --sample-tokens 0, which nobody gave: with samples on the way it would not fit */
} PlanLayout;

typedef struct {
    PlanLayout layout;
    double seconds,
        bytes; /* of a step, of the rank that needs most; estimated, or planned where is_planned */
    bool is_planned;
    double bubble, waited; /* parts of the step */
    double mfu, tokens_per_s;
} TunedLayout;

typedef struct {
    int n_best;    /* that are wanted */
    int n_plans;   /* at most; 0: as many as it takes, up to 60 */
    int n_threads; /* 0: one a core; the result is the same */
    /* The usual choices only: no cp, ZeRO 0, 1 and 3, recompute all, what is cheap, or nothing, 1f1b and
     * interleaved. */
    bool is_quick;
} TuneOptions;

typedef struct {
    Arena arena;
    TunedLayout *best; /* by seconds, planned, all of which fit */
    int n_best;
    TunedLayout *front; /* the Pareto front of bytes and seconds by estimate, by bytes */
    int n_front;
    int64_t n_layouts;       /* estimated */
    int64_t n_refused;       /* of these, that need more memory than there is */
    int n_planned, n_probed; /* programs' layouts */
    TunedLayout least;       /* the one that needs fewest bytes */
    double seconds;          /* that it took */
} PlanTuning;

/* A user's mistake, with what is missing and what would do, where nothing fits. */
Status plan_tune(PlanRun *plan, const TuneOptions *options, PlanTuning *tuning, Error *error);
void plan_tuning_free(PlanTuning *tuning); /* safe on {0} */

/* Makes it the plan's: what plan_figures then plans. */
Status plan_layout_apply(PlanRun *plan, const PlanLayout *layout, Error *error);

/* The words of `pgpt train` for a layout: what else the call has given, then the layout's options. From the
 * arena, NULL at the end; room for `n_more` at the end, NULL so far. */
const char **plan_train_words(const PlanRun *plan, const PlanLayout *layout, int n_more, Arena *arena);

/* The layout's options alone, as one writes them: "--tp 8 --pp 4 ...". */
const char *plan_layout_text(const PlanRun *plan, const PlanLayout *layout, Arena *arena);

/* Words as one writes them in a shell: quoted where they must be. */
const char *plan_words_text(const char *const *words, Arena *arena);

#endif
