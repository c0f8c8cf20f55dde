/* What the files of `pgpt lab offload` share: the study, and what is said of it (lab_offload_report.c). */
#ifndef PGPT_CLI_LAB_LAB_OFFLOAD_H
#define PGPT_CLI_LAB_LAB_OFFLOAD_H

#include "bench/step.h"
#include "cli/lab/lab.h"
#include "lab/offload/largest.h"

enum { OFFLOAD_MOST_CHOICES = 16, OFFLOAD_MOST_MEMORIES = 12 };

typedef struct {
    BenchSetup setup; /* but for what is offloaded */
    const char *choices, *folder, *memory, *host_memory;
    bool quick;
} OffloadCall;

typedef struct {
    OffloadCall call;
    LabOptions lab;
} OffloadCommand;

/* What is offloaded together, and what came of it. */
typedef struct {
    char name[64];                                             /* "optimizer+activations" */
    char words[sizeof((Offload *)NULL)->folder * N_OFFLOADED]; /* of --offload */
    Offload offload;                                           /* the same */
    char why_not[sizeof((Error *)NULL)->text];                 /* it was not timed; "": it was */
    BenchStepReport report;
    size_t place[N_PLACES]; /* bytes; where each is: */
    MemoryKind kind[N_PLACES];
    uint64_t here, pinned, file; /* bytes: taken where kernels work, and beside */
    double bound_ms, stall_ms;   /* the most of what must be done, and what a step takes beyond that */
    LargestModel largest[OFFLOAD_MOST_MEMORIES];
} OffloadChoice;

typedef struct {
    const OffloadCall *call;
    const OffloadCommand *values;
    const Options *options;
    LabOutput output;
    OffloadChoice choice[OFFLOAD_MOST_CHOICES];
    int n_choices;
    LabList memory;       /* bytes of the device */
    uint64_t host_memory; /* bytes that may be pinned; UINT64_MAX: not limited */
    bool is_timed;        /* there is a device; else models are only planned */
    bool has_own_memory;
    char device[200];
    int n_threads;
    int64_t sequence, micro_batch;
} OffloadStudy;

void offload_study_print(const OffloadStudy *study);
Status offload_study_draw(const OffloadStudy *study, Error *error);
json_t *offload_study_json(const OffloadStudy *study); /* a new reference */

#endif
