/* Sums of columns on the way: what kernels share that walk down a matrix. A block has COLUMNS columns, a
 * thread 8 of them, and its warps take turns with the rows that are the block's; what they have is added up
 * at the end, and leaves the block as a row of partial sums for cuda_reduce_partials. How many rows a block
 * has depends on the shape and the GPU alone, so the bits do too. */
#ifndef PGPT_BACKEND_CUDA_OPS_COLUMNS_CUH
#define PGPT_BACKEND_CUDA_OPS_COLUMNS_CUH

#include "backend/cuda/runtime/device.cuh"

enum { COLUMN_WARPS = 8 };
static_assert((int)COLUMN_WARPS == (int)VECTOR, "every warp adds up one column of each vector");

/* Blocks are (WARP, COLUMN_WARPS) threads, grids (strips of COLUMNS columns, parts of the rows). */
typedef struct {
    int64_t columns, c, n; /* the thread's first column, and how many are left from there */
    int64_t first, end;    /* rows of the block */
} ColumnPart;

DEVICE ColumnPart column_part(int64_t rows, int64_t columns, int64_t rows_each) {
    ColumnPart part;
    part.columns = columns;
    part.c = ((int64_t)blockIdx.x * WARP + threadIdx.x) * VECTOR;
    part.n = columns - part.c;
    part.first = blockIdx.y * rows_each;
    part.end = part.first + rows_each < rows ? part.first + rows_each : rows;
    return part;
}

/* partial: (parts, columns). Column lane·8 + k of the strip lies at k·32 + lane: every warp adds up one k. */
DEVICE void store_column_sums(const ColumnPart &part, const float sum[VECTOR], float *partial) {
    __shared__ float sums[COLUMN_WARPS][COLUMNS];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sums[threadIdx.y][k * WARP + threadIdx.x] = sum[k];
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < COLUMN_WARPS; w++) total += sums[w][threadIdx.y * WARP + threadIdx.x];
    int64_t at = part.c + threadIdx.y;
    if (at < part.columns) partial[blockIdx.y * part.columns + at] = total;
}

#endif
