/* A training run, from options to its end: what `pgpt train` and the library (api/) have in common.
 *
 *     TrainRun run = {.launch = &launch};
 *     train_run(&run, n_words, words, error);          // all phases up to run.outcome
 *     ... if that went well, what is said of the outcome, with everything still open ...
 *     train_run_close(&run, error);                    // always
 *
 * What the run says goes to its log; what is printed as a result (--json, --print-program, the last sample)
 * is the caller's. With several ranks every one of them calls these. */
#ifndef PGPT_JOB_TRAIN_RUN_H
#define PGPT_JOB_TRAIN_RUN_H

#include "base/file/scratch_rate.h"
#include "data/source.h"
#include "model/stages.h"
#include "parallel/traffic.h"
#include "run/fault.h"
#include "run/run_folder.h"
#include "run/watchdog.h"
#include "train/trainer.h"

typedef struct {
    bool print_program, print_mesh, json, quiet;
    int64_t host_ranks; /* ranks on a host; 0: as they are */
    const char *fault;
} CallOptions;

typedef struct {
    ModelConfig model;
    DataOptions data;
    OptimizerOptions optimizer;
    TrainOptions train;
    ParallelOptions parallel;
    AsyncOptions async;
    OffloadOptions offload;
    TraceOptions trace;
    CallOptions call;
} TrainCommand;

extern const OptionSpec call_option_specs[];

/* The tables of TrainCommand, for commands that take all of them. */
#define TRAIN_OPTION_GROUPS                                                                                  \
    OPTION_GROUP("Model", TrainCommand, model, model_option_specs),                                          \
        OPTION_GROUP("Data", TrainCommand, data, data_option_specs),                                         \
        OPTION_GROUP("Optimizer", TrainCommand, optimizer, optimizer_option_specs),                          \
        OPTION_GROUP("Training", TrainCommand, train, train_option_specs),                                   \
        OPTION_GROUP("Parallel", TrainCommand, parallel, parallel_option_specs),                             \
        OPTION_GROUP("Asynchronous and local SGD", TrainCommand, async, async_option_specs,                  \
                     .former_title = "Loose synchrony"),                                                     \
        OPTION_GROUP("Offload", TrainCommand, offload, offload_option_specs),                                \
        OPTION_GROUP("Timeline", TrainCommand, trace, trace_option_specs),                                   \
        OPTION_GROUP("This call", TrainCommand, call, call_option_specs)

extern const OptionCommand train_command;

/* How far a run has come when all went well, and what is left to do for the caller. */
typedef enum {
    TRAIN_RUN_HELP,    /* --help: nothing was begun */
    TRAIN_RUN_MESH,    /* --print-mesh: the mesh's shape and the model are known, and nothing is opened */
    TRAIN_RUN_PROGRAM, /* --print-program: everything is planned, and nothing allocated */
    TRAIN_RUN_NOTHING, /* --resume auto of a run that has its steps: the weights are loaded */
    TRAIN_RUN_STOPPED, /* it was told to stop, and has saved */
    TRAIN_RUN_DONE,
} TrainOutcome;

/* What a run needs, opened one after the other and closed together. */
typedef struct TrainRun TrainRun;
struct TrainRun {
    Launch *launch;
    LogSink sink; /* takes what is said; {0}: it goes to stderr */
    const TrainObserver *observers;
    int n_observers;
    bool owns_process; /* signals are the run's, and a watchdog may end the process */
    TrainOutcome outcome;
    double seconds; /* of the training, from its memory to its last checkpoint */
    Options options;
    TrainCommand values;
    DataSource source;
    Backend backend;
    MeshShape shape;
    Mesh mesh;
    PipelineLayout layout; /* of pp */
    Stages stages;         /* which blocks each has, where there are several */
    int64_t *recompute;    /* --recompute-stages, a number a stage; NULL: --recompute */
    Pipeline pipeline;
    ParameterPart part;            /* what of the model this rank has */
    Comm saving;                   /* of all ranks, for checkpoints */
    Offload offload;               /* what values.offload comes to */
    ScratchRates disk;             /* of its folder, as the root has measured it; 0: nobody has */
    AsyncOptions async;            /* complete: what values.async comes to on these ranks */
    Compression compression;       /* likewise, of --compress */
    const char *const *host_names; /* of --compress-across hosts: each rank's; NULL: nobody asks */
    int *hosts;                    /* and a number for that of each rank of the mesh */
    Trainer trainer;
    Log log;
    bool has_backend, has_trainer, has_init;
    bool is_in_phase;
    bool is_auto;   /* --resume auto: whatever is there is fine */
    RunClaim claim; /* on the run's folder; rank 0's */
    const char *run;
    struct {
        int64_t n_done,
            n_tokens;        /* by its newest manifest; the checkpoint that is taken may be an older one */
        bool is_changed;     /* config.ini is to be written again */
        bool cuts_otherwise; /* the text into sequences: its checksum says nothing then */
        const char *changes, *data_change; /* in words; NULL: none */
    } resumed;
    ModelSource init;  /* what it begins with */
    Activity activity; /* what this process is doing */
    Fault fault;       /* on purpose */
    Watchdog *watchdog;
    Trace trace;
    const char *trace_path; /* where it is written; NULL: there is none */
    /* Of a run that is only planned (job/plan_run.h): a command with further options, what is done when they
     * are read, and ranks that are not there. NULL and 0 otherwise. */
    const OptionCommand *command;
    Status (*prepare)(TrainRun *run, Error *error);
    int n_planned;
    bool is_any_layout; /* one is looked for: axes that nobody gave are of no size yet */
};

/* ---- The whole of it (train_run.c) */

/* Goes through all phases. Everything that can be wrong is found before the run's folder is made. */
Status train_run(TrainRun *run, int n_words, char *const *words, Error *error);

/* Of a run whose options are complete: the mesh with what a run has besides, its pipeline and its part of the
 * model; and what the trainer is told of all that. */
Status train_mesh_open(TrainRun *run, Error *error);
TrainerSetup train_setup(TrainRun *run);

/* Gives back what was opened. Of an error that only this rank knows of, the job ends here. */
void train_run_close(TrainRun *run, Error *error);

/* ---- Its options (train_options.c) */

/* Reads them, with those of the run that is resumed or of the model that it begins with, which is opened. */
Status train_options_read(TrainRun *run, int n_words, char *const *words, Error *error);

/* Fills in what depends on something else, and checks what must fit together: when data and ranks are
 * known. */
Status train_options_complete(TrainRun *run, Error *error);

/* ---- The options of a run that goes on (train_resume.c) */

/* Takes what was not given from the run in values.train.resume; what was given must not change what cannot
 * change. */
Status train_resume_options(TrainRun *run, Error *error);

/* Says what is changed from here on, and records it in the run's config.ini: when the checkpoint is loaded,
 * the root. */
Status train_resume_record(TrainRun *run, Error *error);

/* ---- What it is doing, for whoever looks on (train_watch.c) */

/* First of all; and when the communicators of the mesh are open. */
void train_watch(TrainRun *run);
void train_watch_groups(TrainRun *run);

/* What begins now, in words that live as long as the program; ends what was entered before. NULL: the
 * trainer goes on. */
void train_enter(TrainRun *run, const char *phase);

/* Is --trace well written, and the same on every rank? Collective. */
Status train_trace_check(TrainRun *run, Error *error);

/* Begin recording, and write it down, if that is wanted. Collective. */
Status train_trace_open(TrainRun *run, Error *error);
Status train_trace_write(TrainRun *run, Error *error);

/* When nothing is left that could be doing anything. */
void train_unwatch(TrainRun *run);

/* ---- The layout (train_layout.c) */

/* --layout auto: sets sizes of axes and what goes with them, before the mesh is known. */
Status train_layout_choose(TrainRun *run, Error *error);

/* ---- Pipelines (train_pipeline.c) */

bool train_has_pipeline(const TrainRun *run);

/* When the mesh is known: the layout, and the micro-batch where nobody has said. Then, when the model is: can
 * it be, and which blocks are whose? */
void train_pipeline_choose(TrainRun *run);
Status train_pipeline_complete(TrainRun *run, Error *error);

/* What of the model this rank has, by its place in the mesh. */
void train_part_choose(TrainRun *run);

/* Behind the mesh. Collective. */
Status train_pipeline_open(TrainRun *run, Error *error);

/* ---- Compressed sums (train_compress.c) */

/* How many steps of the run are which: exact ones; those with words; and local ones, which send nothing of a
 * gradient. Where the run finds its warm-up itself that is not known, and counted as none; all are 0 where
 * there are too many to count. */
typedef struct {
    int64_t n_exact, n_compressed, n_local;
} CompressedSteps;

CompressedSteps train_compress_steps(const TrainRun *run);

/* ---- What a step sends (train_traffic.c) */

/* Plans the program of every rank of the mesh, which may be larger than the job, and counts what they send:
 * all together, and the most that one does. `hosts` has a name for each; NULL: not known. Of a run that
 * compresses it is a step with messages, or a local one. Collective. */
Status train_count_traffic(TrainRun *run, const char *const *hosts, bool is_local, Traffic *sum,
                           Traffic *most, Error *error);

/* ---- Asynchronous and local SGD (train_async.c) */

/* Fills in run->async when the mesh is known, and checks it against the rest when the device is. */
Status train_async_complete(TrainRun *run, Error *error);
Status train_async_check(const TrainRun *run, Error *error);

void train_async_say(const TrainRun *run);

/* ---- Hosts (train_hosts.c) */

/* The name of each rank's host, or of its number; NULL where there are no such ranks and nobody has said.
 * Collective. */
Status train_host_names(TrainRun *run, const char *const **names, Error *error);

/* Fills in run->host_names, where somebody will ask, when the job's ranks are known. Collective. */
Status train_hosts_find(TrainRun *run, Error *error);

/* And run->hosts of the mesh. */
void train_hosts_number(TrainRun *run);

/* ---- Compressed sums (train_compress.c) */

/* Fills in run->compression when mesh and steps are known, and checks it against the rest. */
Status train_compress_complete(TrainRun *run, Error *error);

/* Behind it (train_heads.c): can ranks share key/value heads, with what is stored or sent in blocks? */
Status train_heads_check(const TrainRun *run, Error *error);

/* ---- What the log says of it (train_say.c). Collective where there are several ranks; the root speaks. */

/* What is about to happen: model, data, memory, ranks. */
void train_say_plan(const TrainRun *run);

/* How long a step took, and how much of its communication was hidden behind computation; nothing on one
 * rank. */
void train_say_communication(const TrainRun *run);

/* How it ended. */
void train_say_stopped(const TrainRun *run);
void train_say_done(const TrainRun *run);

#endif
