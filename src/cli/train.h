/* pgpt train: what its files share. */
#ifndef PGPT_CLI_TRAIN_H
#define PGPT_CLI_TRAIN_H

#include "cli/commands.h"
#include "data/source.h"
#include "train/trainer.h"

typedef struct {
    bool print_program, print_mesh, json, quiet;
} CallOptions;

typedef struct {
    ModelConfig model;
    DataOptions data;
    OptimizerOptions optimizer;
    TrainOptions train;
    ParallelOptions parallel;
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
    Comm data;   /* of a GPU's memory along dp; {0} on the CPU */
    Comm saving; /* of all ranks, for checkpoints */
    Trainer trainer;
    Log log;
    bool has_backend, has_trainer;
    bool is_auto; /* --resume auto: whatever is there is fine */
    const char *run;
    ModelSource init; /* what it begins with */
    bool has_init;
} TrainRun;

/* ---- What is said of it (train_report.c). Collective where there are several ranks; the root prints. */

/* What is about to happen: model, data, memory, ranks. */
void train_report_plan(const TrainRun *run);

/* How long a step took, and how much of its communication was hidden behind computation; nothing on one rank. */
void train_report_communication(const TrainRun *run);

/* The closing line of --json, if it is wanted. */
Status train_report_json(const TrainRun *run, double seconds, Error *error);

Status train_report_program(const TrainRun *run, Error *error);
Status train_report_mesh(TrainRun *run, Error *error);

#endif
