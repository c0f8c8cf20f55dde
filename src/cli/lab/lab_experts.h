/* What the two files of `pgpt lab experts` share: the study, and what is said of it. */
#ifndef PGPT_CLI_LAB_LAB_EXPERTS_H
#define PGPT_CLI_LAB_LAB_EXPERTS_H

#include "cli/lab/lab.h"
#include "lab/experts/expert_run.h"

enum { EXPERTS_MOST_WAYS = 8 };

typedef struct {
    const char *ways;
    int64_t n_experts, n_chosen, n_steps, n_points, n_threads;
    int device;
} ExpertsCall;

typedef struct {
    ExpertsCall call;
    LabRunOptions runs;
    LabOptions lab;
} ExpertsCommand;

/* What the place of the MLP is taken by: nothing, or experts of one router. */
typedef struct {
    const char *name;
    int64_t n_chosen; /* experts of a token; 0: there are none; -1: as many as --experts-per-token */
    int router;       /* RouterKind */
} ExpertWay;

typedef struct {
    const ExpertsCall *call;
    const ExpertsCommand *values;
    const Options *options;
    LabOutput output;
    ExpertWay way[EXPERTS_MOST_WAYS];
    int n_ways;
    int64_t n_hidden;   /* of the MLP */
    const char *preset; /* of the model */
    ExpertRun run[EXPERTS_MOST_WAYS];
} ExpertsStudy;

void experts_print(const ExpertsStudy *study);
Status experts_draw(const ExpertsStudy *study, Error *error);
Status experts_print_json(const ExpertsStudy *study, Error *error);

#endif
