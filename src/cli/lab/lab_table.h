/* pgpt lab table's own: what was measured, and how it is shown. */
#ifndef PGPT_CLI_LAB_LAB_TABLE_H
#define PGPT_CLI_LAB_LAB_TABLE_H

#include "cli/lab/lab.h"
#include "job/train_run.h"
#include "lab/table.h"

/* What the older study did: 50 steps ("epochs") of one batch of 4,096 tokens, and 30 tokens of text. */
enum { TABLE_OLD_STEPS = 50, TABLE_OLD_TOKENS = 30, TABLE_OLD_STEP_TOKENS = 4096, TABLE_OLD_RANKS = 4 };

typedef enum { ROW_SERIAL, ROW_MPI, ROW_CUDA, ROW_BOTH, N_TABLE_ROWS } TableRowKind;

typedef struct {
    int64_t n_steps, n_tokens, n_ranks;
    const char *data, *launcher;
    bool is_quick, records;
    double timeout;
} TableCall;

typedef struct {
    TableCall call;
    LabOptions lab;
} TableCommand;

typedef struct {
    const TableCommand *values;
    LabOutput output;
    Launcher launcher;
    RunFolder folder;             /* has the text that was made */
    const char *const *arguments; /* of pgpt train */
    TrainCommand train;           /* what they say */
    int64_t sequence;             /* tokens of a sequence, as far as they say it; 0: the preset's */
    const char *data;             /* what was trained on, in words */
    int64_t n_steps;
    TableRow rows[N_TABLE_ROWS];
} TableStudy;

/* The table on standard output, the picture, the closing object, and the lines to be kept (--record). */
void lab_table_print(const TableStudy *study);
Status lab_table_draw(const TableStudy *study, Error *error);
Status lab_table_print_json(const TableStudy *study, Error *error);
void lab_table_print_records(const TableStudy *study);

#endif
