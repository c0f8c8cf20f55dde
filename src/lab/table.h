/* One row of a table of machines: the same model, trained and asked for text, by one core, by several ranks,
 * by a GPU, by several.
 *
 *     TableRow row = {.name = "MPI", .n_ranks = 2, .n_threads = 1, .device = "cpu"};
 *     TRY(table_measure(&setup, &row, error));       // row.train_s, row.generate_s */
#ifndef PGPT_LAB_TABLE_H
#define PGPT_LAB_TABLE_H

#include "lab/launch/launcher.h"

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
    int n_ranks,
        n_threads;      /* of training; text is made by one process, with as many threads as all ranks have */
    const char *device; /* "cpu", "cuda" */
    char missing[240];  /* why it cannot be measured here; "": it can */
    double train_s;     /* all steps, the first included; NAN: not measured */
    double generate_s;  /* the tokens, without loading */
    double loss;        /* of the last step */
    TableModel model;
} TableRow;

/* Starts a training run, then a generation from what it saved. Nothing is left behind. */
Status table_measure(const TableSetup *setup, TableRow *row, Error *error);

#endif
