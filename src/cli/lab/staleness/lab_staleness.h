/* Inside pgpt lab staleness: its three parts, each in a file of its own.
 *
 * A part runs on all ranks there are, prints its table, draws its pictures, and adds what it found to the
 * JSON object of the study. It is called by all ranks; an error is that of all of them afterwards. */
#ifndef PGPT_CLI_LAB_STALENESS_LAB_STALENESS_H
#define PGPT_CLI_LAB_STALENESS_LAB_STALENESS_H

#include "cli/lab/lab.h"

typedef struct {
    const char *schemes;
    int64_t n_ranks, n_steps, staleness, group_size, every, delay_rank;
    double delay_ms;
} SchemesCall;

typedef struct {
    const char *threads;
    int64_t n_weights, n_features, n_dense, n_points, n_epochs, n_rounds;
    double lr;
} HogwildCall;

typedef struct {
    const char *overlaps;
    int64_t n_nodes, n_lost, n_steps, n_draws;
    double skew;
} OverlapCall;

typedef struct {
    const char *parts;
} StalenessCall;

typedef struct {
    StalenessCall call;
    SchemesCall schemes;
    HogwildCall hogwild;
    OverlapCall overlap;
    LabRunOptions runs;
    LabOptions lab;
} StalenessCommand;

extern const OptionSpec staleness_schemes_specs[], staleness_hogwild_specs[], staleness_overlap_specs[];

typedef struct {
    const StalenessCommand *values;
    const LabOutput *output;
    Launch *launch;
    const Options *options;
    Arena *arena;
    json_t *json; /* of the whole study */
} StalenessStudy;

/* How its ranks keep together: --sync of pgpt train. Check first, before anything is run. */
Status staleness_schemes_check(const StalenessStudy *study, Error *error);
Status staleness_schemes(const StalenessStudy *study, Error *error);

/* Threads without locks (lab/staleness/hogwild.h). */
Status staleness_hogwild_check(const StalenessStudy *study, Error *error);
Status staleness_hogwild(const StalenessStudy *whole, Error *error);

/* Shares of the data that overlap (lab/staleness/overlap.h). */
Status staleness_overlap_check(const StalenessStudy *study, Error *error);
Status staleness_overlap(const StalenessStudy *whole, Error *error);

#endif
