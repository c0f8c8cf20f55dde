/* Experts that ranks divide among them (parallel/expert_exchange.h): small operations on the numbers that say
 * which rows are whose. */
#ifndef PGPT_OPS_EXPERTS_EXPERT_RANKS_H
#define PGPT_OPS_EXPERTS_EXPERT_RANKS_H

#include "ops/ops.h"

/* ---- expert_ranks.c ---------------------------------------------------------------------------------------
 * arrivals (R,E+1) i32: of each of R ranks where its rows of the E experts here begin, and where the last
 * end; the first need not be 0. -> offsets (E+1) i32 of the rows of all ranks together, as expert_sort makes
 * them: offsets[e] = Σ over r of arrivals[r,e] - arrivals[r,0]. n_rows is the room for them, n_expected how
 * many come where all experts are wanted alike: what operations on these rows are counted by. */
typedef struct {
    int64_t n_rows, n_expected;
} ExpertArrivalsAttributes;
extern const Op OP_EXPERT_ARRIVALS;
Tensor *op_expert_arrivals(Graph *graph, Tensor *arrivals, int64_t n_rows, int64_t n_expected);

/* The part of the rows with these offsets that is expected to be there: 1, but of what comes from ranks. */
double expert_rows_filled(const Tensor *offsets);

/* choice (N,S) i32 -> the same of experts first .. first + n - 1 alone, counted from the first; others are -1
 * as if the token had none there. */
typedef struct {
    int first, n;
} ExpertsHereAttributes;
extern const Op OP_EXPERTS_HERE;
Tensor *op_experts_here(Graph *graph, Tensor *choice, int first, int n);

#endif
