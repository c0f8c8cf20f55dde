/* What --ranks and --sweep of lab linear share: how they start their launches. */
#ifndef PGPT_CLI_LAB_LINEAR_LAB_LINEAR_STARTS_H
#define PGPT_CLI_LAB_LINEAR_LAB_LINEAR_STARTS_H

#include "cli/lab/linear/lab_linear.h"
#include "lab/linear/linear_start.h"

/* What differs from launch to launch. */
typedef struct {
    int64_t n_points, n_epochs;
    double lr;
    const char *weights; /* as --weights takes it */
    bool is_strong;
} LinearChildWords;

/* The options of `pgpt lab linear` for it, NULL at the end. */
const char *const *lab_linear_child_words(const Linear *study, const LinearChildWords *child, Arena *arena);

/* For these numbers of ranks; a message if this pgpt can start one only. */
Status lab_linear_open_launcher(Launcher *launcher, const LinearOptions *options, const LabList *ranks,
                                Error *error);

#endif
