/* A training step and an evaluation pass as programs: recorded, edited by the passes, planned, then replayed.
 *
 * This is the whole chain of the design in one place:
 *
 *     gpt_record_loss -> autograd_run -> eager_gradients -> lazy_gradients -> move_column_sums
 *         -> recompute_run -> gradient_sync_sum -> optimizer_record -> gradient_sync_gather -> offload_update
 *         -> wiring_plan
 *
 * Planning and opening are apart, so that several programs can share one DeviceMemory and so that a plan can
 * be printed without allocating anything. */
#ifndef PGPT_TRAIN_STEP_STEP_H
#define PGPT_TRAIN_STEP_STEP_H

#include "graph/actions.h"
#include "graph/wiring.h"
#include "model/gpt.h"
#include "optim/compressed.h"
#include "optim/optimizer.h"
#include "parallel/offload/offload.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/sync/gradient_sync.h"
#include "train/router_report.h"

/* Where batches come from: sequences first .. first + B - 1 of the run, in the order of the run. */
typedef void (*BatchFill)(void *context, uint64_t first_sequence, int64_t B, int64_t T,
                          int32_t *tokens /* (B,T) */, int32_t *targets /* (B,T) */);

typedef struct {
    BatchFill fill;
    void *context;
} BatchSource;

/* Records a chunk of the model between what comes in and what goes out: gpt_record_stage, or something that a
 * study puts around it. */
typedef GptStageTensors (*StageRecorder)(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                                         const GptLossOptions *options, const GptStage *stage, Tensor *input,
                                         const void *context);

typedef struct {
    int64_t batch;       /* sequences a step, of all ranks together */
    int64_t micro_batch; /* the most sequences at a time on a rank; divides batch */
    int64_t T;           /* tokens of a sequence */
    int64_t recompute;   /* as --recompute takes it: blocks a segment, RECOMPUTE_NONE, ..._SELECTIVE */
    int64_t
        recompute_blocks; /* the first of each chunk that are recomputed whole, whatever `recompute` says of
                               * the others; where that has whole blocks recomputed, it says of all */
    ActionList actions;   /* of a step; NULL: one micro-batch after the other, or the pipeline's schedule */
    /* Pipeline parallelism: this rank's place, and which chunks of the model it has; NULL: all of it. */
    const Pipeline *pipeline;
    const ParameterPart *part;
    bool by_sequence;     /* sequence parallelism, where layers are split (tp); not with TENSOR_ROW */
    int tensor_chunks;    /* of a micro-batch: see GptSplit.n_parts */
    ContextStyle context; /* how ranks share a sequence, where they do (cp) */
    int64_t loss_chunk;   /* tokens whose logits are in memory at a time, 0 for as many as seem good */
    uint64_t seed;
    int64_t n_steps;            /* of the run: its last step leaves no update to come; 0: nobody knows */
    GradientSyncOptions sync;   /* {0}: one process */
    Precision precision;        /* {0}: f32 */
    Offload offload;            /* {0}: everything is in the memory that kernels work on */
    bool (*should_stop)(void);  /* asked between micro-batches where there is one process; NULL: never */
    StageRecorder record_stage; /* NULL: gpt_record_stage */
    const void *stage_context;  /* of that */
} StepOptions;

/* Fill in what is 0 (micro_batch: all of the batch, T: the model's context) and check what must fit together;
 * a mistake names the options by which `pgpt` knows these fields. */
Status step_options_complete(StepOptions *options, int64_t context, Error *error);

/* The number that f16 gradients are multiplied by so that they do not vanish: doubled from time to time,
 * halved whenever a gradient was too large, down to 1. A step whose gradient is not finite is skipped: it
 * changes nothing. */
typedef struct {
    double value;
    int64_t n_good;    /* steps since it last changed */
    int64_t n_skipped; /* steps, since the run began */
} LossScale;

/* Of steps that ranks take apart (--compress 0/1-adam:16), since they last had the same weights: how far they
 * went by Adam's momentum, and what weight decay has left; and whether they are apart now. */
typedef struct {
    double distance, keep;
    bool is_apart;
} LocalPhase;

/* Of Adam with a frozen variance: how many updates the variance has had, which is what its bias is corrected
 * by, and in a run that was begun with one and goes on as exact, how many it has missed; whether every rank
 * has what it needs of the others' slices; and whether a compressed step has followed the last exact one, in
 * this process or before a resume. */
typedef struct {
    int64_t n_variance_updates, n_frozen;
    bool has_entered, is_frozen;
    int64_t index;        /* of the step that has begun */
    double variance_norm; /* corrected for its bias, when it was last looked at; 0: never */
    LocalPhase local;
} CompressedPhase;

/* Of a run whose updates are a step late: is the last step's to come, and its learning rate. */
typedef struct {
    bool is_pending;
    double rate;
} LateUpdate;

enum { STEP_MOST_BEGUN = 2 };

/* Of an update that goes before its norm is known: behind a clipped step so many others come first. */
enum { STEP_UNCLIPPED_BEFORE = 4 };

/* What the executor and the communicator have counted so far. */
typedef struct {
    uint64_t phase_ns[N_PHASES];
    uint64_t busy_ns;  /* of communication, that along all axes */
    uint64_t stage_ns; /* waited for messages of other stages */
} StepClock;

typedef struct {
    Graph *graph;
    GptLoss loss;           /* without a loss, tokens or targets where another stage has them */
    GptStageTensors *chunk; /* (n_chunks): what goes into each chunk of the model and comes out of it */
    int n_chunks;
    bool has_depth;             /* blocks that some positions go by, here or on another rank */
    int *frames;                /* (n_micro_batches, n_chunks) where each micro-batch is; NULL: one chunk */
    const char **chunk_name;    /* (n_chunks) "stage 1 of 4": for whoever looks on; NULL: there is one */
    const Node *version_copy;   /* from the last version of the weights to the next; NULL: there is one */
    OptimizerTensors optimizer; /* none in an evaluation pass */
    ModelConfig config;
    RouterTensors routes; /* none: the model, or this stage, has no experts */
    /* Of a pipeline that is not flushed, where the host adds up reports: those of the last step, as
     * routes.totals. */
    float *route_counts;
    Program program;
    Executor executor;
    StepOptions options;
    OptimizerOptions optimizer_options;
    GradientSync sync;
    CompressedSync compressed; /* of a run whose ranks compress; {0}: they do not */
    CompressedLamb lamb;       /* likewise, by 1-bit LAMB; */
    Tensor *variance_norm;     /* where it says when to compress, */
    CompressedPhase phase;     /* where it stands, */
    LateUpdate late;
    int regimes;     /* and which nodes the step that has begun runs */
    bool must_join;  /* all ranks shall have the same weights behind the step that begins next: said by the
                     * caller, on all ranks alike */
    LossScale scale; /* of value 1 where it is not needed */
    int64_t n_unclipped; /* steps in a row whose gradient was short enough, and updates that were undone, */
    int64_t n_undone;    /* where they are checked later (loop/checked.h) or begin in the backward */
    bool goes_ahead;     /* they do, where steps of REGIME_AHEAD have nodes of their own */
    int64_t B;           /* sequences of a micro-batch on this rank: at most micro_batch */
    int64_t n_micro_batches; /* the same on every rank */
    StepAction *actions;     /* of a training step; one forward in an evaluation */
    int n_actions;
    bool moves_hold_host;      /* it waits within a step for moves between kinds of memory */
    int32_t *tokens, *targets; /* (B,T) on the host; then this rank's positions */
    /* Step `index` begins with this sequence, and the later ones follow; 0, 0 for a run from its
     * beginning. */
    struct {
        int64_t index;
        uint64_t sequence;
    } start;
    /* The first micro-batch of the step to come, sent while the device was still at the one before. */
    struct {
        bool is_sent;
        BatchSource source;
        int64_t index;
        uint64_t n_input_writes; /* then: the device's inputs are shared with other programs */
    } ahead;
    /* Steps that have begun and not ended: number k is at k % STEP_MOST_BEGUN. */
    int64_t n_begun, n_ended;
    struct {
        bool was_abandoned;
        int64_t n_started; /* of the executor's sections, up to its end */
    } begun[STEP_MOST_BEGUN];
    StepClock clock;    /* when the last one ended, or the first began */
    bool was_rehearsed; /* or need not be: see step_rehearse */
} TrainStep;

typedef struct {
    double loss; /* of the whole batch, on every rank; of the rank's share where gradients are not summed */
    double gradient_norm; /* NAN when it is not measured */
    double forward_ms, backward_ms, update_ms;
    /* Communication under way, beside the rest or not, and the part of it that the rest had to wait for. Of
     * messages between stages, what is waited for is known alone, and in both: stage_wait_ms of them. All are
     * NAN where it is not timed. */
    double comm_ms, comm_wait_ms, stage_wait_ms;
    RouterReport routes; /* of a model with experts */
    /* Of the predictors of blocks that some positions go by: mean cross-entropy, and share of right
     * guesses. */
    double depth_loss, depth_accuracy;
    /* Of the variance, since it was last looked at (Compression.is_auto): what is left of it, or what was
     * there; 0: nobody has looked. From the next step on ranks compress. */
    double variance_kept;
    bool begins_to_compress;
    bool has_depth;     /* they are known */
    bool was_abandoned; /* stopped before the update: the weights are as they were */
    bool was_skipped;   /* the gradient was not finite, and a smaller scale of the loss may help: likewise */
} StepResult;

/* Record and plan. `optimizer` NULL makes an evaluation pass: forward only. */
Status train_step_plan(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
                       const StepOptions *options, const OptimizerOptions *optimizer, const Backend *backend,
                       Error *error);
Status train_step_open(TrainStep *step, DeviceMemory *memory, Error *error);
void train_step_close(TrainStep *step);

/* Tell an activity what the step does: micro-batch by micro-batch, in a pipeline action by action. */
void train_step_watch(TrainStep *step, Activity *activity);

/* What a device behind the host has done so far goes to the recorder: before that is read. */
void train_step_show_times(TrainStep *step);

/* The first sequence of a step: index·batch, or counted on from step->start. */
uint64_t train_step_sequence(const TrainStep *step, int64_t index);

/* One action of a step's list: which step's micro-batch it is, and of what else the action does not say. For
 * those who go through lists themselves (loop/unflushed.h). */
typedef struct {
    int64_t first, n;
} StepRows;

typedef struct {
    int64_t index;
    bool is_uploaded;
    int version; /* see MicroBatch */
    bool goes_on;
    bool checks_later; /* of an update: train_step_check is the caller's business, before the next update */
    const StepRows *rows; /* of the batch; NULL: the action's micro-batch of this rank's share */
} StepRun;

Status train_step_run_action(TrainStep *step, const BatchSource *source, const StepRun *run,
                             const StepAction *action, Error *error);

/* Of an update that went first (CLIP_CHECK): was it right? The norm is known then. If it was not it can be
 * made again while the gradient is there, or undone. Collective. */
Status train_step_check(TrainStep *step, bool *was_right, Error *error);
Status train_step_redo(TrainStep *step, Error *error);
Status train_step_undo(TrainStep *step, Error *error);

/* What the routers of a step did, from this rank's summary of it. Collective. */
Status train_step_routes(TrainStep *step, const double *summary, RouterReport *report, Error *error);

/* What each router and expert counted in the last step, of all ranks (see RouterTensors.totals), while no
 * other has begun; NULL where there is none here. Good until the next call or step. */
Status train_step_route_counts(TrainStep *step, const float **counts, Error *error);

/* Have the ranks weights of their own behind the step that has ended? */
static inline bool train_step_is_apart(const TrainStep *step) {
    return step->phase.local.is_apart;
}

/* What was counted up to now; and the times of n_steps steps from one to the other, each the mean. */
Status train_step_clock(TrainStep *step, StepClock *clock, Error *error);
void train_step_times(const TrainStep *step, const StepClock *before, const StepClock *after, int64_t n_steps,
                      StepResult *result);

/* One step on sequences train_step_sequence .. of the source. */
Status train_step_run(TrainStep *step, const BatchSource *source, int64_t index, double rate,
                      StepResult *result, Error *error);

/* The same in two: what there is to do, and what came of it. A device that runs behind the host computes from
 * the first to the second, while the host is free for other things; others have done it all in the first.
 * With train_step_runs_ahead the next one may begin before this one has ended, so that the device never
 * waits: steps end in the order in which they began. */
bool train_step_runs_ahead(const TrainStep *step);
Status train_step_begin(TrainStep *step, const BatchSource *source, int64_t index, double rate, Error *error);
Status train_step_end(TrainStep *step, StepResult *result, Error *error);

/* A step in two halves, for ranks that do one of them: the gradient of this rank's share, left where the
 * update reads it (train_step_gradients), and the update by whatever lies there, the n_updates-th of the run
 * from 0 on. The first leaves the loss of the share, the second the norm of the gradient. */
Status train_step_gradient(TrainStep *step, const BatchSource *source, int64_t index, StepResult *result,
                           Error *error);
Status train_step_update(TrainStep *step, int64_t n_updates, double rate, double *gradient_norm,
                         Error *error);
const Tensor *train_step_gradients(const TrainStep *step);

/* The mean loss over n sequences from the first on, forward only. Each rank does its share; all get the same.
 * NAN if it was to stop (should_stop) before all were done. */
Status evaluate_step_run(TrainStep *step, const BatchSource *source, uint64_t first_sequence, int64_t n,
                         double *loss, Error *error);

/* Weights flat_first .. flat_first + n - 1 of the flat array, as far as this process holds them, in whatever
 * types. */
Status train_step_upload(TrainStep *step, int64_t flat_first, int64_t n, const float *values, Error *error);

/* The same of a whole parameter, as a ParameterTaker of the step; and the initial values of all. */
Status train_step_take(void *context, const Parameter *parameter, const float *values, Error *error);
Status train_step_initialise(TrainStep *step, const ParameterTable *table, uint64_t seed, int n_threads,
                             Error *error);

/* What a checkpoint takes for the weights: the master weights where there are. By
 * step->sync.parameters_saved. */
const Tensor *train_step_weights(const TrainStep *step);

/* The sum over all ranks of a number that each has a part of, its loss say: what a step sends behind its
 * program. */
Status train_step_sum_number(const TrainStep *step, double *number, Error *error);

/* The part of the model's blocks that the options recompute whole, where ranks have so many chunks in all. */
double step_recomputed_part(int64_t recompute, int64_t recompute_blocks, int64_t n_chunks, int64_t n_layers);

/* FLOPs of a whole step as counted over the program, what is recomputed included. */
double train_step_flops(const TrainStep *step);

#endif
