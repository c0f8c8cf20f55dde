/* The trainer: plans a run, owns its programs and memory, and drives the loop.
 *
 *     trainer_plan    records and plans every program of the run; nothing is allocated yet
 *     trainer_open    allocates exactly what was planned and sets the weights
 *     trainer_resume  takes weights, moments and position from a checkpoint
 *     trainer_take_weights  takes weights only, from any model
 *     trainer_run     the loop: steps, evaluations, samples, checkpoints, until done or asked to stop
 *
 * With several ranks, each has a trainer, and all call the same functions. What happens beside the steps
 * (metrics, samples, checkpoints) is done by observers (observers/observer.h). */
#ifndef PGPT_TRAIN_TRAINER_H
#define PGPT_TRAIN_TRAINER_H

#include "base/text/log.h"
#include "checkpoint/saver.h"
#include "data/dataset.h"
#include "huggingface/model_source.h"
#include "infer/generator.h"
#include "parallel/launch/launch.h"
#include "parallel/options.h"
#include "run/fault.h"
#include "trace/trace.h"
#include "train/loop/async_run.h"
#include "train/metrics.h"
#include "train/observers/observer.h"
#include "train/options.h"

typedef struct {
    const ModelConfig *config; /* complete */
    const OptimizerOptions *optimizer;
    const TrainOptions *options; /* complete: micro-batch, sequence and steps are set */
    const Dataset *dataset;
    const Tokenizer *tokenizer;
    const Backend *backend;
    Log *log;
    Launch *launch;            /* NULL: one process */
    const Mesh *mesh;          /* of all ranks, with what reaches the device's memory; NULL: alone */
    const Pipeline *pipeline;  /* NULL: every rank has all blocks */
    const ParameterPart *part; /* what of the model this rank has; NULL: all of it */
    Comm *saving; /* of all ranks, used by nobody else: checkpoints are written beside the training */
    const ParallelOptions *parallel;
    int64_t recompute;              /* as in the options, of this rank's stage */
    const AsyncOptions *async;      /* complete; NULL: exact */
    const Offload *offload;         /* NULL: nothing is offloaded */
    const Compression *compression; /* complete; NULL: none */
    Activity *activity;             /* that is told what the trainer does; NULL: nobody */
    const Fault *fault;             /* on purpose; NULL: none */
    Trace *trace;                   /* that records it; NULL: nobody */
    const TrainObserver *observers; /* that are told of it, n_observers of them */
    int n_observers;
} TrainerSetup;

typedef struct {
    TrainerSetup setup;
    ParameterTable table;
    TrainStep step, evaluation;
    Generator generator;
    DeviceMemory memory;
    Saver saver;
    AsyncRun async; /* of SYNC_EXACT where there is one process */
    bool has_evaluation, has_generator;
    double
        model_flops; /* of the rows of a step that this rank computes with others; 0 before they have met */
    int64_t n_done;  /* steps, those before a resume included */
    struct {         /* what was done by then, with another batch or other sequences perhaps */
        int64_t step, n_sequences, n_tokens;
    } resumed;
    FolderIdentity folder;  /* of the run */
    bool has_other_data;    /* than the resumed checkpoint */
    double validation_loss; /* of the last evaluation, NAN before it */
    int64_t validated_step; /* when that was */
    StepMetrics last;       /* of the last step */
    double step_seconds;    /* spent in steps by this process */
    StepResult sum;         /* of the times of those steps */
    int64_t n_steps_timed;
    float *router_bias[2]; /* what checkpoints hold of them: of the last one, and of the one before */
    int64_t n_router_bias_saves;
    float *coefficients[2]; /* likewise */
    int64_t n_coefficient_saves;
    CheckpointState resumed_from; /* what it said of compression, for processes that do not compress */
    double *loads;                /* of all experts, when they were last asked for */
    int64_t n_bad_routes;         /* steps in a row whose router had collapsed */
    bool was_interrupted;
    int64_t bad_step;     /* whose loss or gradient was not a finite number; 0: none */
    bool error_is_common; /* what went wrong is known to every rank */
} Trainer;

Status trainer_plan(Trainer *trainer, const TrainerSetup *setup, Error *error);

/* The training step alone: to look at its program. Needs no dataset, tokenizer or log. */
Status trainer_plan_step(Trainer *trainer, const TrainerSetup *setup, Error *error);

/* What all ranks have planned, counted together: after trainer_plan has gone well on all of them.
 * Collective. */
Status trainer_meet(Trainer *trainer, Error *error);
void trainer_close(Trainer *trainer); /* after any of the others, failed or not */

/* What trainer_open will allocate, and what it has allocated. */
size_t trainer_planned_bytes(const Trainer *trainer);
size_t trainer_allocated_bytes(const Trainer *trainer);

/* Weights, gradients and moments on this rank: as planned. */
size_t trainer_state_bytes(const Trainer *trainer);

/* What samples take of the memory beside that: caches, activations, and weights of their own under ZeRO-3. */
size_t trainer_sampling_bytes(const Trainer *trainer);

/* The disk space that a checkpoint of the run takes. */
uint64_t trainer_checkpoint_bytes(const Trainer *trainer);

/* Is what it has come to in a checkpoint? */
bool trainer_is_saved(const Trainer *trainer);

/* FLOPs of a step, of all ranks together. */
double trainer_flops(const Trainer *trainer);

/* The same by the formula of papers (model_flops_standard), with recomputation where the run recomputes. */
double trainer_standard_flops(const Trainer *trainer);

bool trainer_is_root(const Trainer *trainer);
bool trainer_is_sampler(const Trainer *trainer);

/* Does a rank make samples without others? Where it does not, they end together. */
bool trainer_samples_alone(const Trainer *trainer);
int trainer_n_ranks(const Trainer *trainer);

/* All instructions of a step, and the memory of the whole run. */
void trainer_print_program(const Trainer *trainer, FILE *stream);

Status trainer_open(Trainer *trainer, Error *error);
Status trainer_resume(Trainer *trainer, const char *folder, Error *error); /* n_done may be n_steps or more */

/* What all steps up to this one, of the present process or behind it, have learned from. */
int64_t trainer_n_sequences(const Trainer *trainer, int64_t step);
int64_t trainer_n_tokens(const Trainer *trainer, int64_t step);

/* The biases of all routers that have some, as a checkpoint holds them (NULL: there are none), good until the
 * next but one is asked for; and this rank's from there. The first is collective. */
Status trainer_gather_router_bias(Trainer *trainer, const float **whole, int64_t *n_whole, Error *error);
Status trainer_take_router_bias(Trainer *trainer, const float *whole, Error *error);

/* The load of every expert in the last step, to trainer->last, while no other has begun. Collective. */
Status trainer_gather_loads(Trainer *trainer, Error *error);

/* The optimizer's arrays that checkpoints hold: its moments, and behind them the variance of 1-bit LAMB that
 * goes on. */
int trainer_n_moments(const Trainer *trainer);
const Tensor *trainer_moment(const Trainer *trainer, int index);

/* What a way to compress goes by, all ranks' (trainer_compression.c): to what a checkpoint says, where it is
 * good until the next but one is asked for; and from there, with the arrays that belong to it. The first is
 * collective. `host` has room for what this rank has of a moment. */
Status trainer_say_compression(Trainer *trainer, CheckpointState *state, Error *error);
Status trainer_take_compression(Trainer *trainer, const Checkpoint *checkpoint, float *host, Error *error);

/* Of updates that are a step late; the gradient whose update is to come (trainer_late.c). */
Status trainer_say_late(Trainer *trainer, CheckpointState *state, Error *error);
Status trainer_take_late(Trainer *trainer, const Checkpoint *checkpoint, float *host, Error *error);

/* What ranks that compress have left over (trainer_errors.c): what a checkpoint says of it, and this rank's
 * from there, whatever the number of ranks that saved it. `room` has 2 · n_flat elements. */
void trainer_say_errors(const Trainer *trainer, CheckpointState *state);
Status trainer_take_errors(Trainer *trainer, const Checkpoint *checkpoint, float *room, Error *error);

/* Begin with the weights of another model, which must have this one's parameters. */
Status trainer_take_weights(Trainer *trainer, const ModelSource *source, Error *error);

/* What the board says this rank does. Where something fails in between, it stays: that is where the run has
 * ended. */
void trainer_begin(const Trainer *trainer, ActivityKind kind, const char *name, int64_t number);
void trainer_end(const Trainer *trainer);

/* Runs in (and writes to) the folder `run`. */
Status trainer_run(Trainer *trainer, const char *run, Error *error);

/* Text by the model as it is now, to `stream`; the root writes. */
Status trainer_sample(Trainer *trainer, FILE *stream, Error *error);

#endif
