/* Sums whose bits do not depend on the number of threads.
 *
 * The rows (or elements) are cut into blocks by their number alone, every block is summed by one thread, and
 * the partial sums are combined in the order of the blocks. */
#ifndef PGPT_BACKEND_CPU_REDUCE_H
#define PGPT_BACKEND_CPU_REDUCE_H

#include "backend/cpu/kernels.h"

typedef struct {
    int64_t n_rows, rows_per_block;
    int n_blocks;
} RowBlocks;

/* At most REDUCE_MAX_BLOCKS blocks of at least REDUCE_MIN_ROWS rows: enough to keep a large machine busy, few
 * enough that combining them is cheap. */
enum { REDUCE_MAX_BLOCKS = 64, REDUCE_MIN_ROWS = 16 };
RowBlocks reduce_blocks(int64_t n_rows);

static inline int64_t reduce_first(const RowBlocks *blocks, int block) {
    return block * blocks->rows_per_block;
}

static inline int64_t reduce_end(const RowBlocks *blocks, int block) {
    int64_t end = (block + 1) * blocks->rows_per_block;
    return end < blocks->n_rows ? end : blocks->n_rows;
}

/* out (columns) = or += the sum over partials (n_partials, stride), columns <= stride. */
void reduce_partials(const float *partials, int n_partials, int64_t stride, int64_t columns, float *out,
                     bool add, int n_threads);

/* out (columns) = or += the sum over the rows of x (rows, columns). */
void reduce_columns(const float *x, int64_t rows, int64_t columns, float *out, bool add, void *scratch,
                    int n_threads);
size_t reduce_columns_scratch(int64_t rows, int64_t columns);

/* The part of it that one block is: sum (columns) = or += the sum over the rows of x. */
void reduce_block(const float *x, int64_t rows, int64_t columns, float *sum, bool add);

/* Output `sums` of a call = or += the sums of the columns of its output `of`, which is rounded to what its
 * tensor will hold. */
void reduce_output(const KernelCall *call, int of, int sums, void *scratch);
size_t reduce_output_scratch(const Node *node, int of, int sums);

/* Σ x or Σ x² of n elements, in double between blocks of a few thousand floats. */
typedef enum { REDUCE_SUM, REDUCE_SQUARES } ReduceKind;
double reduce_all(const float *x, int64_t n, ReduceKind kind, void *scratch, int n_threads);
size_t reduce_all_scratch(void);

/* Of the squares of n_all elements, blocks of squared_norm_grain: those from element `first` on, n elements
 * of x; and the sum of all of them, as reduce_all has it. */
void reduce_some(const float *x, int64_t first, int64_t n, int64_t n_all, double *partial, int n_threads);
double reduce_end_all(const double *partial, int64_t n_all);

#endif
