/* Sums over the rows of a matrix and over everything, in a fixed order: no atomics, so the bits do not depend on which
 * block comes first.
 *
 * Floor: the bytes of x over the copy bandwidth. Each goes in two steps: blocks sum what they are given into partial
 * sums, and a second kernel sums those. How many partial sums there are depends on the shape and the GPU alone. */
#include "backend/cuda/device.cuh"

/* ---- partial sums of columns -> columns ---- */

enum { JOIN_ROWS = 32 };

/* A warp has 32 columns, JOIN_ROWS warps share the rows; then one warp adds theirs in order. */
static __global__ void __launch_bounds__(WARP *JOIN_ROWS)
    join_kernel(const float *partial, int64_t n_partials, int64_t columns, int64_t stride, Memory first,
                bool first_add, Memory second, bool second_add) {
    __shared__ float sums[JOIN_ROWS][WARP];
    int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0.0f;
    if (c < stride) {
#pragma unroll 8
        for (int64_t r = threadIdx.y; r < n_partials; r += JOIN_ROWS) sum += partial[r * stride + c];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= stride) return;
    sum = 0.0f;
#pragma unroll
    for (int r = 0; r < JOIN_ROWS; r++) sum += sums[r][threadIdx.x];
    Memory to = c < columns ? first : second;
    if (to.data) write_element(to, c < columns ? c : c - columns, sum, c < columns ? first_add : second_add);
}

extern "C" Status cuda_reduce_partials(const CudaContext *context, const float *partial, int64_t n_partials,
                                       int64_t columns, int n_outputs, const SumOutput *output,
                                       Error *error) {
    if (!columns) return STATUS_OK;
    Memory first = {output[0].data, output[0].dtype, false}, second = {NULL, DTYPE_F32, false};
    bool second_add = false;
    if (n_outputs > 1) {
        second.data = output[1].data;
        second.dtype = output[1].dtype;
        second_add = output[1].add;
    }
    int64_t stride = n_outputs * columns;
    join_kernel<<<blocks_for(stride, WARP), dim3(WARP, JOIN_ROWS), 0, context->stream>>>(
        partial, n_partials, columns, stride, first, output[0].add, second, second_add);
    return cuda_launched("sums of columns (second step)", error);
}

/* ---- columns ---- */

enum { COLUMN_WARPS = 8, COLUMNS = WARP * VECTOR };

/* How many parts the rows are cut into: enough blocks for the GPU, none with fewer than 64 rows if it can be helped. */
static int64_t row_parts(const CudaContext *context, int64_t rows, int64_t columns) {
    int64_t strips = (columns + COLUMNS - 1) / COLUMNS;
    int64_t parts = (4 * context->n_processors + strips - 1) / (strips ? strips : 1), most = (rows + 63) / 64;
    parts = parts < most ? parts : most;
    return parts > 0 ? parts : 1;
}

template <typename T>
static __global__ void __launch_bounds__(WARP *COLUMN_WARPS)
    columns_kernel(const T *x, int64_t rows, int64_t columns, int64_t rows_each, bool aligned,
                   float *partial) {
    __shared__ float sums[COLUMN_WARPS][COLUMNS];
    int64_t c = ((int64_t)blockIdx.x * WARP + threadIdx.x) * VECTOR, n = columns - c;
    int64_t first = blockIdx.y * rows_each, end = first + rows_each < rows ? first + rows_each : rows;
    float sum[VECTOR] = {0};
    if (n > 0) {
#pragma unroll 4
        for (int64_t r = first + threadIdx.y; r < end; r += COLUMN_WARPS) {
            float v[VECTOR];
            load8(x + r * columns + c, n, aligned, v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
        }
    }
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sums[threadIdx.y][k * WARP + threadIdx.x] = sum[k];
    __syncthreads();
    /* Column lane·8 + k of the strip lies at k·32 + lane: every warp adds up one k. */
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < COLUMN_WARPS; w++) total += sums[w][threadIdx.y * WARP + threadIdx.x];
    int64_t at = c + threadIdx.y;
    if (at < columns) partial[blockIdx.y * columns + at] = total;
}

extern "C" size_t cuda_reduce_columns_scratch(const CudaContext *context, int64_t rows, int64_t columns) {
    return (size_t)(row_parts(context, rows, columns) * columns) * sizeof(float);
}

static Status columns_partial(const CudaContext *context, const void *x, DType dtype, int64_t rows,
                              int64_t columns, int64_t parts, float *partial, Error *error) {
    dim3 grid(blocks_for(columns, COLUMNS), (unsigned)parts), block(WARP, COLUMN_WARPS);
    int64_t rows_each = (rows + parts - 1) / parts;
    bool aligned = rows_aligned(x, columns);
    if (dtype == DTYPE_F32)
        columns_kernel<<<grid, block, 0, context->stream>>>((const float *)x, rows, columns, rows_each,
                                                            aligned, partial);
    else if (dtype == DTYPE_BF16)
        columns_kernel<<<grid, block, 0, context->stream>>>((const bf16 *)x, rows, columns, rows_each,
                                                            aligned, partial);
    else
        columns_kernel<<<grid, block, 0, context->stream>>>((const f16 *)x, rows, columns, rows_each, aligned,
                                                            partial);
    return cuda_launched("sums of columns", error);
}

extern "C" Status cuda_reduce_columns(const CudaContext *context, const void *x, DType dtype, int64_t rows,
                                      int64_t columns, void *out, DType out_dtype, bool add, void *scratch,
                                      Error *error) {
    static_assert((int)COLUMN_WARPS == (int)VECTOR, "every warp adds up one column of each vector");
    if (!columns) return STATUS_OK;
    int64_t parts = row_parts(context, rows, columns);
    TRY(columns_partial(context, x, dtype, rows, columns, parts, (float *)scratch, error));
    SumOutput output = {out, out_dtype, add};
    return cuda_reduce_partials(context, (const float *)scratch, parts, columns, 1, &output, error);
}

/* ---- everything ---- */

enum { ALL_THREADS = 512, ALL_AT_ONCE = ALL_THREADS * VECTOR, SMALL = 16 * ALL_AT_ONCE };

/* Few elements are summed by one block, without a second step. */
static int64_t all_parts(const CudaContext *context, int64_t count) {
    if (count <= SMALL) return 1;
    int64_t most = 8 * context->n_processors, parts = (count + 2 * ALL_AT_ONCE - 1) / (2 * ALL_AT_ONCE);
    return parts < most ? parts : most;
}

/* The sum of a block, in double because a thread's share of a large array is a long sum already. */
DEVICE double block_sum_double(double x, double *shared) {
    int lane = (int)threadIdx.x % WARP, n_warps = (int)blockDim.x / WARP;
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    if (lane == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    x = lane < n_warps ? shared[lane] : 0.0;
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

DEVICE void finish(double sum, float scale, float *total, bool add) {
    float value = (float)(sum * (double)scale);
    *total = add ? *total + value : value;
}

/* partial NULL: this block is the only one, and its sum the total. */
template <typename T, bool SQUARED>
static __global__ void __launch_bounds__(ALL_THREADS)
    all_kernel(const T *x, int64_t count, bool aligned, double *partial, float scale, float *total,
               bool add) {
    __shared__ double shared[ALL_THREADS / WARP];
    float sum[VECTOR] = {0};
    int64_t stride = (int64_t)gridDim.x * ALL_AT_ONCE;
#pragma unroll 4
    for (int64_t i = ((int64_t)blockIdx.x * ALL_THREADS + threadIdx.x) * VECTOR; i < count; i += stride) {
        float v[VECTOR];
        load8(x + i, count - i, aligned, v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] = SQUARED ? fmaf(v[k], v[k], sum[k]) : sum[k] + v[k];
    }
    double all = 0.0;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) all += (double)sum[k];
    all = block_sum_double(all, shared);
    if (threadIdx.x) return;
    if (partial) partial[blockIdx.x] = all;
    else finish(all, scale, total, add);
}

static __global__ void __launch_bounds__(ALL_THREADS)
    all_join_kernel(const double *partial, int64_t parts, float scale, float *total, bool add) {
    __shared__ double shared[ALL_THREADS / WARP];
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < parts; i += ALL_THREADS) sum += partial[i];
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0) finish(sum, scale, total, add);
}

extern "C" size_t cuda_reduce_all_scratch(const CudaContext *context, int64_t count) {
    int64_t parts = all_parts(context, count);
    return parts > 1 ? (size_t)parts * sizeof(double) : 0;
}

template <typename T>
static void all_launch(const CudaContext *context, const T *x, int64_t count, bool squared, int64_t parts,
                       double *partial, float scale, float *total, bool add) {
    bool aligned = is_aligned(x);
    if (squared)
        all_kernel<T, true><<<(unsigned)parts, ALL_THREADS, 0, context->stream>>>(x, count, aligned, partial,
                                                                                  scale, total, add);
    else
        all_kernel<T, false><<<(unsigned)parts, ALL_THREADS, 0, context->stream>>>(x, count, aligned, partial,
                                                                                   scale, total, add);
}

extern "C" Status cuda_reduce_all(const CudaContext *context, const void *x, DType dtype, int64_t count,
                                  bool squared, float scale, float *total, bool add, void *scratch,
                                  Error *error) {
    int64_t parts = all_parts(context, count);
    double *partial = parts > 1 ? (double *)scratch : NULL;
    if (dtype == DTYPE_F32)
        all_launch(context, (const float *)x, count, squared, parts, partial, scale, total, add);
    else if (dtype == DTYPE_BF16)
        all_launch(context, (const bf16 *)x, count, squared, parts, partial, scale, total, add);
    else all_launch(context, (const f16 *)x, count, squared, parts, partial, scale, total, add);
    TRY(cuda_launched("sum", error));
    if (parts == 1) return STATUS_OK;
    all_join_kernel<<<1, ALL_THREADS, 0, context->stream>>>(partial, parts, scale, total, add);
    return cuda_launched("sum (second step)", error);
}
