/* The optimizer's own: what optimizer.c and compressed.c share. */
#ifndef PGPT_OPTIM_OPTIMIZER_INSIDE_H
#define PGPT_OPTIM_OPTIMIZER_INSIDE_H

#include "optim/optimizer.h"

/* Which of elements first .. first + n - 1 decay. */
UpdateElements optimizer_elements(const ParameterTable *table, int64_t first, int64_t n, Graph *graph);

/* Add up the squares of the slices' gradients. Of what several ranks hold its owner counts it. */
void optimizer_squares(const ParameterTable *table, const UpdateSlices *slices, Tensor *total, Graph *graph);

/* The numbers themselves, of whatever the slices have for a gradient. */
void optimizer_sum(const ParameterTable *table, const UpdateSlices *slices, Tensor *total, Graph *graph);

#endif
