/* Inside pgpt lab collectives: what it found, shown (lab_collectives_report.c). */
#ifndef PGPT_CLI_LAB_LAB_COLLECTIVES_H
#define PGPT_CLI_LAB_LAB_COLLECTIVES_H

#include "cli/lab/lab.h"
#include "lab/collectives/collectives.h"

/* What lectures show, for so many ranks and vectors of so many bytes: steps, bytes of the busiest rank and of
 * all, and of a step, each counted message by message beside its formula. Of these kinds. */
Status collectives_print_costs(const int *kinds, int n_kinds, int n_ranks, int64_t n_bytes, Error *error);

/* Measured beside expected, and what the links cost. */
void collectives_print_result(const CollectivesResult *result);

/* A picture for every kind: "collectives-4" of all-reduce, "collectives-4-broadcast" of others. */
Status collectives_draw(const LabOutput *output, const CollectivesResult *result, Error *error);

/* A new reference. */
Status collectives_result_json(const CollectivesResult *result, json_t **object, Error *error);

#endif
