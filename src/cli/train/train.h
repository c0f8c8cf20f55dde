/* pgpt train: what its files share. */
#ifndef PGPT_CLI_TRAIN_TRAIN_H
#define PGPT_CLI_TRAIN_TRAIN_H

#include "cli/commands.h"
#include "data/source.h"
#include "run/fault.h"
#include "run/run_folder.h"
#include "run/watchdog.h"
#include "train/trainer.h"

typedef struct {
    bool print_program, print_mesh, json, quiet;
    const char *fault;
} CallOptions;

typedef struct {
    ModelConfig model;
    DataOptions data;
    OptimizerOptions optimizer;
    TrainOptions train;
    ParallelOptions parallel;
    LooseOptions loose;
    TraceOptions trace;
    CallOptions call;
} TrainCommand;

/* What a run needs, opened one after the other and closed together. */
typedef struct {
    Launch *launch;
    Options options;
    TrainCommand values;
    DataSource source;
    Backend backend;
    MeshShape shape;
    Mesh mesh;
    Comm data;          /* of a GPU's memory along dp; {0} on the CPU */
    Comm saving;        /* of all ranks, for checkpoints */
    LooseOptions loose; /* complete: what values.loose comes to on these ranks */
    Trainer trainer;
    Log log;
    bool has_backend, has_trainer;
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
    ModelSource init; /* what it begins with */
    bool has_init;
    Activity activity; /* what this process is doing */
    Fault fault;       /* on purpose */
    Watchdog *watchdog;
    bool is_in_phase;
    Trace trace;
    const char *trace_path; /* where it is written; NULL: there is none */
} TrainRun;

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

/* What begins now, in words that live as long as the program; ends what was entered before. NULL: the trainer
 * goes on. */
void train_enter(TrainRun *run, const char *phase);

/* Is --trace well written, and the same on every rank? Collective. */
Status train_trace_check(TrainRun *run, Error *error);

/* Begin recording, and write it down, if that is wanted. Collective. */
Status train_trace_open(TrainRun *run, Error *error);
Status train_trace_write(TrainRun *run, Error *error);

/* When nothing is left that could be doing anything. */
void train_unwatch(TrainRun *run);

/* ---- Asynchronous and local SGD (train_loose.c) */

/* Fills in run->loose when the mesh is known, and checks it against the rest when the device is. */
Status train_loose_complete(TrainRun *run, Error *error);
Status train_loose_check(const TrainRun *run, Error *error);

void train_loose_say(const TrainRun *run);
void train_loose_json(const TrainRun *run, json_t *object);

/* ---- What is said of it (train_report.c). Collective where there are several ranks; the root prints. */

/* What is about to happen: model, data, memory, ranks. */
void train_report_plan(const TrainRun *run);

/* How long a step took, and how much of its communication was hidden behind computation; nothing on one
 * rank. */
void train_report_communication(const TrainRun *run);

/* The closing line of --json, if it is wanted. */
Status train_report_json(const TrainRun *run, double seconds, Error *error);

Status train_report_program(const TrainRun *run, Error *error);
Status train_report_mesh(TrainRun *run, Error *error);

#endif
