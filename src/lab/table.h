/* One row of a table of machines: the same model, trained and asked for text, by one core, by several ranks,
 * by a GPU, by several.
 *
 *     TableRow row = {.name = "MPI", .n_ranks = 4, .n_threads = 1, .n_text_threads = 2, .device = "cpu"};
 *     TRY(table_measure(&setup, &row, error));       // row.train_s, row.generate_s, row.cached_s */
#ifndef PGPT_LAB_TABLE_H
#define PGPT_LAB_TABLE_H

#include "lab/launch/launcher.h"
#include "lab/table_records.h"

#include <stdint.h>

typedef struct {
    Launcher *launcher;
    const char *folder;           /* where runs go while they are needed */
    const char *const *arguments; /* of pgpt train: model, data, batch; NULL at the end */
    int64_t n_steps, n_tokens;
    double timeout_s;
} TableSetup;

/* What was trained, by its own account. */
typedef struct {
    int64_t n_parameters, n_layers, n_heads, n_channels, n_vocabulary;
    int64_t n_step_tokens; /* of all ranks together */
} TableModel;

typedef struct {
    const char *name;
    int n_ranks, n_threads;    /* of training, threads of each rank */
    int n_text_threads;        /* of the one process that makes the text */
    const char *device;        /* "cpu", "cuda" */
    const char *machine;       /* in words */
    char missing[240];         /* why it cannot be measured here; "": it can */
    const TableRecord *record; /* what stands in its place then; NULL: nothing */
    double train_s;            /* all steps, the first included; NAN: not measured */
    double later_step_s;       /* a step behind the first one; NAN: there was one only */
    double generate_s; /* the tokens without a KV cache: each reads the whole text again; no loading */
    double cached_s;   /* and with the cache */
    double loss;       /* of the last step */
    TableModel model;
} TableRow;

/* Starts a training run, then two generations from what it saved. Nothing is left behind. */
Status table_measure(const TableSetup *setup, TableRow *row, Error *error);

/* What n_wanted steps take, by n_measured that were measured: the first is taken once, since it is longer. */
double table_steps_s(const TableRow *row, int64_t n_measured, int64_t n_wanted);

/* The record of a row by its name; NULL where nothing is recorded. */
const TableRecord *table_record(const char *name);

#endif
