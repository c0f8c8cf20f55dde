/* Sums over the rows of a matrix and over everything, in a fixed order: no atomics, so the bits do not depend
 * on which block comes first.
 *
 * Floor: the bytes of x over the copy bandwidth. Each goes in two steps: blocks sum what they are given into
 * partial sums, and a second kernel sums those. How many partial sums there are depends on the shape and the
 * GPU alone. */
#include "backend/cuda/ops/columns.cuh"
#include "backend/cuda/runtime/pdl.cuh"

/* ---- partial sums of columns -> columns ---- */

enum { JOIN_ROWS = 32 };

typedef struct {
    Memory memory;
    bool add;
} JoinOutput;

/* A warp has 32 columns, JOIN_ROWS warps share the rows; then one warp adds theirs in order. It is there
 * before the kernel that makes the partial sums has ended: so little work would take less time than the
 * launch. */
static __global__ void __launch_bounds__(WARP *JOIN_ROWS)
    join_kernel(const float *partial, int64_t n_partials, int64_t columns, int64_t stride, JoinOutput first,
                JoinOutput second, JoinOutput third) {
    __shared__ float sums[JOIN_ROWS][WARP];
    int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0.0f;
    wait_for_predecessor();
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
    JoinOutput to = c < columns ? first : c < 2 * columns ? second : third;
    int64_t at = c < columns ? c : c < 2 * columns ? c - columns : c - 2 * columns;
    if (to.memory.data) write_element(to.memory, at, sum, to.add);
}

extern "C" Status cuda_reduce_partials(const CudaContext *context, const float *partial, int64_t n_partials,
                                       int64_t columns, int n_outputs, const SumOutput *output,
                                       Error *error) {
    if (!columns) return STATUS_OK;
    JoinOutput to[MOST_SUMS] = {};
    for (int i = 0; i < n_outputs; i++) {
        to[i].memory.data = output[i].data;
        to[i].memory.dtype = output[i].dtype;
        to[i].add = output[i].add;
    }
    int64_t stride = n_outputs * columns;
    cudaError_t code = launch_pdl(join_kernel, blocks_for(stride, WARP), dim3(WARP, JOIN_ROWS), 0,
                                  context->stream, partial, n_partials, columns, stride, to[0], to[1], to[2]);
    return cuda_check(code, "sums of columns (second step)", error);
}

/* ---- columns ---- */

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(WARP *COLUMN_WARPS)
    columns_kernel(const T *x, int64_t rows, int64_t columns, int64_t rows_each, float *partial) {
    const ColumnPart part = column_part(rows, columns, rows_each);
    float sum[VECTOR] = {0};
    enum { AT_ONCE = 4 };
    for (int64_t r = part.first + threadIdx.y; part.n > 0 && r < part.end; r += AT_ONCE * COLUMN_WARPS) {
        Raw<T> raw[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            bool is_there = r + j * COLUMN_WARPS < part.end;
            raw[j] =
                load_raw<T, ALIGNED>(x + (r + j * COLUMN_WARPS) * columns + part.c, is_there ? part.n : 0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float v[VECTOR];
            unpack(raw[j], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
        }
    }
    store_column_sums(part, sum, partial);
}

template <typename T>
static void columns_launch(const CudaContext *context, const T *x, int64_t rows, int64_t columns,
                           int64_t parts, float *partial) {
    dim3 grid(blocks_for(columns, COLUMNS), (unsigned)parts), block(WARP, COLUMN_WARPS);
    int64_t rows_each = (rows + parts - 1) / parts;
    if (rows_aligned(x, columns))
        columns_kernel<T, true><<<grid, block, 0, context->stream>>>(x, rows, columns, rows_each, partial);
    else columns_kernel<T, false><<<grid, block, 0, context->stream>>>(x, rows, columns, rows_each, partial);
}

extern "C" Status cuda_reduce_columns(const CudaContext *context, const void *x, DType dtype, int64_t rows,
                                      int64_t columns, void *out, DType out_dtype, bool add, void *scratch,
                                      Error *error) {
    if (!columns) return STATUS_OK;
    int64_t parts = cuda_reduce_columns_parts(&context->traits, rows, columns);
    float *partial = (float *)scratch;
    if (dtype == DTYPE_F32) columns_launch(context, (const float *)x, rows, columns, parts, partial);
    else if (dtype == DTYPE_BF16) columns_launch(context, (const bf16 *)x, rows, columns, parts, partial);
    else columns_launch(context, (const f16 *)x, rows, columns, parts, partial);
    TRY(cuda_launched("sums of columns", error));
    SumOutput output = {out, out_dtype, add};
    return cuda_reduce_partials(context, partial, parts, columns, 1, &output, error);
}

/* ---- everything ---- */

enum { ALL_THREADS = REDUCE_THREADS, ALL_AT_ONCE = REDUCE_AT_ONCE };

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
template <typename T, bool SQUARED, bool ALIGNED>
static __global__ void __launch_bounds__(ALL_THREADS, 2)
    all_kernel(const T *x, int64_t count, double *partial, float scale, float *total, bool add) {
    enum { AT_ONCE = 4 };
    __shared__ double shared[ALL_THREADS / WARP];
    float sum[VECTOR] = {0};
    int64_t stride = (int64_t)gridDim.x * ALL_AT_ONCE;
    for (int64_t i = ((int64_t)blockIdx.x * ALL_THREADS + threadIdx.x) * VECTOR; i < count;
         i += AT_ONCE * stride) {
        Raw<T> raw[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int64_t n = count - i - j * stride;
            raw[j] = load_raw<T, ALIGNED>(x + i + j * stride, !ALIGNED || n >= VECTOR ? n : 0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float v[VECTOR];
            unpack(raw[j], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] = SQUARED ? fmaf(v[k], v[k], sum[k]) : sum[k] + v[k];
        }
    }
    if (ALIGNED && blockIdx.x == 0 &&
        threadIdx.x < count % VECTOR) { /* what is left behind the last whole vector */
        float v = as_float(x[count - count % VECTOR + threadIdx.x]);
        sum[0] += SQUARED ? v * v : v;
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

template <typename T>
static void all_launch(const CudaContext *context, const T *x, int64_t count, bool squared, int64_t parts,
                       double *partial, float scale, float *total, bool add) {
#define ALL(SQUARED, ALIGNED)                                                                                \
    all_kernel<T, SQUARED, ALIGNED>                                                                          \
        <<<(unsigned)parts, ALL_THREADS, 0, context->stream>>>(x, count, partial, scale, total, add)
    if (squared && is_aligned(x)) ALL(true, true);
    else if (squared) ALL(true, false);
    else if (is_aligned(x)) ALL(false, true);
    else ALL(false, false);
#undef ALL
}

extern "C" Status cuda_reduce_all(const CudaContext *context, const void *x, DType dtype, int64_t count,
                                  bool squared, float scale, float *total, bool add, void *scratch,
                                  Error *error) {
    int64_t parts = cuda_reduce_all_parts(&context->traits, count);
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
