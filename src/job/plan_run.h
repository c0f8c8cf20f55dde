/* A run in advance: what `pgpt plan` says of the run that `pgpt train` would make of the same options.
 *
 *     PlanRun plan = {.train = {.launch = &launch}};
 *     TRY_GOTO(plan_run_open(&plan, n_words, words, error), done);        // options, model, mesh: as train
 *     if (plan.train.outcome == TRAIN_RUN_MESH)
 *         TRY_GOTO(plan_figures(&plan, &figures, error), done);           // programs, bytes, times
 *     ... figures.times.seconds, figures.rank[i].bytes ...
 * done:
 *     plan_run_close(&plan, error);                                       // always
 *
 * Everything that `pgpt train` finds wrong before it opens a device is found here, with the same words. */
#ifndef PGPT_JOB_PLAN_RUN_H
#define PGPT_JOB_PLAN_RUN_H

#include "job/plan_budget.h"
#include "job/train_run.h"
#include "plan/simulate.h"

typedef struct {
    const char *machine; /* a name or a file; "": by --device */
    int64_t n_gpus;      /* ranks; 0: as the axes multiply */
    double n_tokens;     /* of the whole run; 0: what --steps come to */
    const char *draw;    /* a picture of the step, FILE.svg; "": none */
    bool tune;
    int64_t n_measured; /* of the tuner's best, that are run here */
    const char *out;    /* folder of the tuner's picture */
    int table;          /* PlanTable */
    const char *budget; /* "8 H200, 3 days"; "": none */
    bool print_machine;
} PlanOptions;

typedef enum { TABLE_NONE, TABLE_MEMORY, TABLE_LADDER, TABLE_LINKS } PlanTable;

extern const OptionSpec plan_option_specs[];
extern const OptionCommand plan_command;

typedef struct {
    TrainRun train; /* first: its options and PlanOptions are read by one table */
    PlanOptions options;
    MachineFile machine;
    PlanBudget budget; /* of --budget */
    int n_ranks;       /* that there are to be, whatever the mesh at hand */
    bool is_brief;     /* figures of time and of the most memory are enough: sums may be off */
} PlanRun;

Status plan_run_open(PlanRun *plan, int n_words, char *const *words, Error *error);
void plan_run_close(PlanRun *plan, Error *error);

/* What a rank needs and does. */
typedef struct {
    int rank, coordinate[N_AXES];
    int n_alike;            /* ranks that this one stands for */
    size_t place[N_PLACES]; /* bytes of the training step, all frames */
    int n_frames;           /* micro-batches in flight that PLACE_FRAME has room for */
    size_t workspace;       /* of its activations: the largest scratch of an instruction */
    size_t messages;        /* of state and activations: buffers of messages and collectives */
    size_t host, file;      /* beside the device's: what --offload keeps there */
    Offload offload;        /* what that is; of --offload auto, as it was chosen */
    size_t evaluation, samples, checkpoint; /* beyond that */
    size_t total;                           /* what `pgpt train` allocates: its peak_bytes */
    double flops, useful_flops, moved;      /* counted, of a step */
    int n_instructions;
    SentTraffic sent;
} RankFigures;

/* The same of all ranks together. */
typedef struct {
    double place[N_PLACES], workspace, messages, host, file, evaluation, samples, checkpoint, total;
    double flops, useful_flops, moved;
    SentCount link[N_LINKS];
} PlanSums;

typedef struct {
    Arena arena;
    RankFigures *rank; /* one of each kind */
    int n_ranks_built;
    int most; /* the one that needs most memory */
    bool fits;
    uint64_t usable;                   /* bytes of a device */
    uint64_t host_needed, host_usable; /* of a host, where --offload keeps anything there; else 0 */
    StepTimes times;
    StepSchedule schedule;
    PlanSums sums;
    Links links;
    RankSpeed speed;
    int64_t n_parameters;
    double model_flops;    /* by the standard formula, of a step, nothing computed twice */
    double standard_flops; /* likewise, with the forward that activation checkpointing repeats */
    double counted_flops;  /* by the programs of all ranks */
    double useful_flops;   /* of these, what is not computed again */
    double tokens_per_s;
    double n_run_tokens, run_seconds;
    double mfu, hfu; /* of the devices' peak: model FLOPs and counted ones */
    double joules;   /* of the run; 0: watts are not known */
} PlanFigures;

/* Plans a rank of each kind and simulates a step. */
Status plan_figures(PlanRun *plan, PlanFigures *figures, Error *error);
void plan_figures_free(PlanFigures *figures);                    /* safe on {0} */
uint64_t plan_bytes_without_samples(const PlanFigures *figures); /* of the rank that needs most then */

/* The trainer of one rank of the mesh, planned: visited while its programs are there. */
typedef Status (*PlanVisit)(void *context, const Trainer *trainer, Error *error);
Status plan_visit_rank(PlanRun *plan, int rank, bool step_only, PlanVisit visit, void *context, Error *error);

#endif
