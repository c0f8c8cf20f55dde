/* Sums over rows and over everything, bit-identical for every number of threads.
 *
 * Column sums read the matrix once, in memory order: eight rows at a time are added up in registers and then
 * to the block's partial row, which stays in the first-level cache, so that most of the traffic is the matrix
 * itself. A block holds few enough rows, and there are few enough blocks, that plain float keeps the error
 * near rounding.
 *
 * Sums of everything (the gradient norm reads half a gigabyte for a small GPT-2) run eight vector
 * accumulators to keep up with memory and fold them into a double every few thousand elements. */
#include "backend/cpu/reduce.h"

#include "ops/ops.h"

RowBlocks reduce_blocks(int64_t n_rows) {
    int64_t rows = (n_rows + REDUCE_MAX_BLOCKS - 1) / REDUCE_MAX_BLOCKS;
    if (rows < REDUCE_MIN_ROWS) rows = REDUCE_MIN_ROWS;
    return (RowBlocks){n_rows, rows, (int)((n_rows + rows - 1) / rows)};
}

/* ---- partial rows ---- */

CPU_INLINE void combine_step(const float *partials, int n_partials, int64_t stride, float *out, bool add,
                             int lanes) {
    vec sum = {0};
    for (int block = 0; block < n_partials; block++) sum += lanes_load(partials + block * stride, lanes);
    lanes_write(out, sum, add, lanes);
}

void reduce_partials(const float *partials, int n_partials, int64_t stride, int64_t columns, float *out,
                     bool add, int n_threads) {
    int64_t whole = columns / VEC_LANES * VEC_LANES;
    if (n_partials * columns < 4 * CPU_SERIAL_BELOW) n_threads = 1;
    (void)n_threads; /* nobody reads it in a build without OpenMP */
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t i = 0; i < whole; i += VEC_LANES) {
        combine_step(partials + i, n_partials, stride, out + i, add, VEC_LANES);
    }
    if (whole < columns) {
        combine_step(partials + whole, n_partials, stride, out + whole, add, (int)(columns - whole));
    }
}

/* ---- columns ---- */

enum { ROWS_AT_ONCE = 8 };

CPU_INLINE void column_step(const float *x, int rows, int64_t columns, float *sum, bool add, int lanes) {
    vec total = lanes_load(x, lanes);
    for (int r = 1; r < rows; r++) total += lanes_load(x + r * columns, lanes);
    lanes_write(sum, total, add, lanes);
}

/* sum (columns) = or += the sum of up to ROWS_AT_ONCE rows. */
CPU_INLINE void add_rows(const float *x, int rows, int64_t columns, float *sum, bool add) {
    int64_t i = 0;
    for (; i + VEC_LANES <= columns; i += VEC_LANES)
        column_step(x + i, rows, columns, sum + i, add, VEC_LANES);
    if (i < columns) column_step(x + i, rows, columns, sum + i, add, (int)(columns - i));
}

void reduce_block(const float *x, int64_t rows, int64_t columns, float *sum, bool add) {
    int64_t n = 0;
    for (; n + ROWS_AT_ONCE <= rows; n += ROWS_AT_ONCE) {
        add_rows(x + n * columns, ROWS_AT_ONCE, columns, sum, add);
        add = true;
    }
    if (n < rows) add_rows(x + n * columns, (int)(rows - n), columns, sum, add);
}

void reduce_columns(const float *x, int64_t rows, int64_t columns, float *out, bool add, void *scratch,
                    int n_threads) {
    RowBlocks blocks = reduce_blocks(rows);
    float *partials = scratch; /* (n_blocks, columns) */
    if (rows * columns < CPU_SERIAL_BELOW) n_threads = 1;
    if (blocks.n_blocks == 1) {
        reduce_block(x, rows, columns, out, add);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int block = 0; block < blocks.n_blocks; block++) {
        int64_t first = reduce_first(&blocks, block);
        reduce_block(x + first * columns, reduce_end(&blocks, block) - first, columns,
                     partials + block * columns, false);
    }
    reduce_partials(partials, blocks.n_blocks, columns, columns, out, add, n_threads);
}

size_t reduce_columns_scratch(int64_t rows, int64_t columns) {
    RowBlocks blocks = reduce_blocks(rows);
    return blocks.n_blocks > 1 ? (size_t)(blocks.n_blocks * columns) * sizeof(float) : 0;
}

/* ---- columns of an output ---- */

void reduce_output(const KernelCall *call, int of, int sums, void *scratch) {
    const Tensor *tensor = call->node->output[of];
    float *x = call->out[of];
    int64_t count = tensor_count(tensor);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts) if (tensor->dtype != DTYPE_F32)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        cpu_round(tensor->dtype, x + range.first, range.end - range.first);
    }
    reduce_columns(x, shape_rows(tensor->shape), shape_columns(tensor->shape), call->out[sums],
                   call->add[sums], scratch, call->n_threads);
}

size_t reduce_output_scratch(const Node *node, int of, int sums) {
    if (node->n_outputs <= sums || !node->output[sums]) return 0;
    Shape shape = node->output[of]->shape;
    return reduce_columns_scratch(shape_rows(shape), shape_columns(shape));
}

/* ---- everything ---- */

enum {
    ALL_BLOCKS = SQUARED_NORM_BLOCKS, /* partial sums */
    ALL_CHUNK = 4096,                 /* floats between folds into double */
    ALL_ACCUMULATORS = 8,
};

CPU_INLINE vec all_step(vec sum, const float *x, ReduceKind kind, int lanes) {
    vec v = lanes_load(x, lanes);
    return kind == REDUCE_SQUARES ? vec_fma(v, v, sum) : sum + v;
}

CPU_INLINE double sum_chunk(const float *x, int64_t n, ReduceKind kind) {
    enum { STRIDE = ALL_ACCUMULATORS * VEC_LANES };
    vec sum[ALL_ACCUMULATORS] = {{0}};
    int64_t i = 0;
    for (; i + STRIDE <= n; i += STRIDE) {
        for (int a = 0; a < ALL_ACCUMULATORS; a++)
            sum[a] = all_step(sum[a], x + i + a * VEC_LANES, kind, VEC_LANES);
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) sum[0] = all_step(sum[0], x + i, kind, VEC_LANES);
    if (i < n) sum[0] = all_step(sum[0], x + i, kind, (int)(n - i));
    for (int width = ALL_ACCUMULATORS / 2; width; width /= 2)
        for (int a = 0; a < width; a++) sum[a] += sum[a + width];
    return (double)vec_sum(sum[0]);
}

static double sum_range(const float *x, int64_t n, ReduceKind kind) {
    double total = 0.0;
    for (int64_t i = 0; i < n; i += ALL_CHUNK) {
        int64_t count = n - i < ALL_CHUNK ? n - i : ALL_CHUNK;
        total += kind == REDUCE_SQUARES ? sum_chunk(x + i, count, REDUCE_SQUARES)
                                        : sum_chunk(x + i, count, REDUCE_SUM);
    }
    return total;
}

static void sum_blocks(const float *x, int64_t n, int64_t block_size, ReduceKind kind, double *partial,
                       int n_threads) {
    int n_blocks = (int)((n + block_size - 1) / block_size);
    if (n < CPU_SERIAL_BELOW) n_threads = 1;
    (void)n_threads;
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int block = 0; block < n_blocks; block++) {
        int64_t first = block * block_size, left = n - first;
        partial[block] = sum_range(x + first, left < block_size ? left : block_size, kind);
    }
}

double reduce_all(const float *x, int64_t n, ReduceKind kind, void *scratch, int n_threads) {
    sum_blocks(x, n, squared_norm_grain(DTYPE_F32, n), kind, scratch, n_threads);
    return reduce_end_all(scratch, n);
}

void reduce_some(const float *x, int64_t first, int64_t n, int64_t n_all, double *partial, int n_threads) {
    int64_t block_size = squared_norm_grain(DTYPE_F32, n_all);
    sum_blocks(x, n, block_size, REDUCE_SQUARES, partial + first / block_size, n_threads);
}

double reduce_end_all(const double *partial, int64_t n_all) {
    int64_t block_size = squared_norm_grain(DTYPE_F32, n_all);
    int n_blocks = (int)((n_all + block_size - 1) / block_size);
    double total = 0.0;
    for (int block = 0; block < n_blocks; block++) total += partial[block];
    return total;
}

size_t reduce_all_scratch(void) {
    return ALL_BLOCKS * sizeof(double);
}
