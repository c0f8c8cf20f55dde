/* Names: what a user calls data by, the same for every command.
 *
 * A name is a file, a folder, "-" for standard input or "builtin". Several stand with commas between them,
 * each with a :WEIGHT behind it if its share is to be another than 1. A text that names something as it
 * stands, commas, colons and all, is that name. */
#ifndef PGPT_DATA_NAMES_H
#define PGPT_DATA_NAMES_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *name;
    double weight;
    bool has_weight; /* somebody wrote it */
} DataName;

typedef struct {
    DataName *names;
    size_t n;
} DataNames;

/* Add what a text names; `what` is said before a complaint ("--data"). {0} is an empty list. Standard input
 * may be named once. On failure the list is still to be freed. */
Status data_names_add(DataNames *names, const char *text, const char *what, Error *error);

/* The same for commands that take everything one after the other: a weight is a user's error. */
Status data_names_add_plain(DataNames *names, const char *text, const char *what, Error *error);

void data_names_free(DataNames *names);

#endif
