/* lowrank_project, lowrank_orthonormal, lowrank_return and lowrank_expand: matrices times a few columns.
 *
 * Floor: what is read and written of the matrix over the copy bandwidth, 12, 4 and 12 bytes an element; four
 * columns are taken at a time, so that a rank beyond 4 reads it again. A launch a matrix, but for columns,
 * which a block a matrix makes orthonormal. Sums over rows go by a fixed number of parts, so that a run
 * repeats itself to the bit. Whether the step is skipped is known on the device alone, so every kernel
 * asks. */
#include "backend/cuda/runtime/device.cuh"

extern "C" {
#include "ops/compress/lowrank.h"
}

enum { THREADS = 256, FEW = 4, WARP_ROWS = 4, BLOCK_ROWS = THREADS / WARP * WARP_ROWS };

DEVICE bool is_skipped(const float *factor) {
    return factor && !isfinite(*factor);
}

/* ---- project ---- */

typedef struct {
    LowRankMatrix matrix;
    int rank;
    const float *gradient, *factor;
    float *errors, *basis, *message;
} ProjectCall;

/* A block a column of Q. */
static __global__ void __launch_bounds__(THREADS) draw_kernel(const ProjectCall a) {
    int64_t n = a.matrix.columns;
    float *column = a.basis + a.matrix.right + blockIdx.x * n;
    if (is_skipped(a.factor)) return;
    int is_drawn = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) is_drawn |= column[i] != 0.0f;
    if (__syncthreads_or(is_drawn)) return;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        column[i] = lowrank_start(a.matrix.seed, (int64_t)blockIdx.x * n + i);
}

/* A warp has four rows, and takes columns first .. first + FEW - 1 of Q. */
static __global__ void __launch_bounds__(THREADS) project_kernel(const ProjectCall a, int first) {
    int lane = (int)(threadIdx.x % WARP);
    int64_t n = a.matrix.columns, rows = a.matrix.rows;
    int64_t row = (int64_t)blockIdx.x * BLOCK_ROWS + threadIdx.x / WARP * WARP_ROWS;
    float scale = a.factor ? *a.factor : 1.0f, sum[WARP_ROWS][FEW] = {};
    bool is_off = !isfinite(scale);
    for (int64_t k = lane; k < n && !is_off; k += WARP) {
        float q[FEW];
#pragma unroll
        for (int r = 0; r < FEW; r++)
            q[r] = first + r < a.rank ? a.basis[a.matrix.right + (first + r) * n + k] : 0.0f;
#pragma unroll
        for (int i = 0; i < WARP_ROWS; i++) {
            if (row + i >= rows) break;
            int64_t at = a.matrix.first + (row + i) * n + k;
            float m = a.errors[at];
            if (first == 0) a.errors[at] = m = fmaf(scale, a.gradient[at], m);
#pragma unroll
            for (int r = 0; r < FEW; r++) sum[i][r] = fmaf(m, q[r], sum[i][r]);
        }
    }
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
#pragma unroll
        for (int r = 0; r < FEW; r++) {
            float all = warp_sum(sum[i][r]);
            if (lane == 0 && row + i < rows && first + r < a.rank)
                a.message[a.matrix.left + (first + r) * rows + row + i] = all;
        }
    }
}

/* Of a run: out, or back. */
static __global__ void __launch_bounds__(THREADS)
    send_kernel(LowRankRun run, const float *gradient, const float *factor, float *errors, float *message) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float scale = factor ? *factor : 1.0f;
    if (i >= run.n) return;
    message[run.at + i] =
        isfinite(scale) ? fmaf(scale, gradient[run.first + i], errors[run.first + i]) : 0.0f;
    if (isfinite(scale)) errors[run.first + i] = 0.0f;
}

static __global__ void __launch_bounds__(THREADS)
    copy_kernel(float *to, const float *from, const float *factor, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n && !is_skipped(factor)) to[i] = from[i];
}

extern "C" Status cuda_lowrank_project(const KernelCall *call, Error *error) {
    const LowRankAttributes *a = (const LowRankAttributes *)call->node->attributes;
    cudaStream_t stream = cuda_context(call)->stream;
    ProjectCall arguments = {};
    arguments.rank = a->rank;
    arguments.gradient = (const float *)call->in[0];
    arguments.factor = (const float *)call->in[1];
    arguments.message = (float *)call->out[0];
    arguments.errors = (float *)call->out[1];
    arguments.basis = (float *)call->out[2];
    for (int i = 0; i < a->n_matrices; i++) {
        arguments.matrix = a->matrix[i];
        draw_kernel<<<(unsigned)a->rank, THREADS, 0, stream>>>(arguments);
        for (int first = 0; first < a->rank; first += FEW)
            project_kernel<<<blocks_for(arguments.matrix.rows, BLOCK_ROWS), THREADS, 0, stream>>>(arguments,
                                                                                                  first);
        TRY(cuda_launched("lowrank_project", error));
    }
    for (int i = 0; i < a->n_runs; i++)
        send_kernel<<<blocks_for(a->run[i].n, THREADS), THREADS, 0, stream>>>(
            a->run[i], arguments.gradient, arguments.factor, arguments.errors, arguments.message);
    return cuda_launched("lowrank_project", error);
}

/* ---- orthonormal: as lowrank_orthonormalise ---- */

enum { WIDE = 1024, MOST_MATRICES = 128 };

typedef struct {
    int n, rank;
    struct {
        int64_t left, rows;
    } matrix[MOST_MATRICES];
} ColumnTable;

/* The same on all threads of the block. */
DEVICE double inner_all(const float *a, const float *b, int64_t n, double *shared) {
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += WIDE) sum = fma((double)a[i], (double)b[i], sum);
    for (int width = WARP / 2; width; width /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, width);
    __syncthreads(); /* the last one's sums have been read */
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0.0;
    for (int i = 0; i < WIDE / WARP; i++) sum += shared[i];
    return sum;
}

DEVICE void make_free(float *columns, int index, int64_t rows, double *shared) {
    float *column = columns + index * rows;
    for (int s = 0; s < index; s++) {
        const float *other = columns + s * rows;
        double along = inner_all(other, column, rows, shared);
        for (int64_t i = threadIdx.x; i < rows; i += WIDE)
            column[i] = (float)fma(-along, (double)other[i], (double)column[i]);
    }
}

static __global__ void __launch_bounds__(WIDE)
    orthonormal_kernel(float *message, const __grid_constant__ ColumnTable table) {
    __shared__ double shared[WIDE / WARP];
    int64_t rows = table.matrix[blockIdx.x].rows;
    float *columns = message + table.matrix[blockIdx.x].left;
    for (int r = 0; r < table.rank; r++) {
        float *column = columns + r * rows;
        double before = inner_all(column, column, rows, shared);
        make_free(columns, r, rows, shared);
        double left = inner_all(column, column, rows, shared), length = 1.0;
        bool is_gone = left <= LOWRANK_LEAST * before;
        if (!is_gone) {
            make_free(columns, r, rows, shared);
            length = sqrt(inner_all(column, column, rows, shared));
        }
        for (int64_t i = threadIdx.x; i < rows; i += WIDE)
            column[i] = is_gone ? 0.0f : (float)((double)column[i] / length);
    }
}

extern "C" Status cuda_lowrank_orthonormal(const KernelCall *call, Error *error) {
    const LowRankAttributes *a = (const LowRankAttributes *)call->node->attributes;
    if (call->in[0] != call->out[0])
        copy_kernel<<<blocks_for(a->n_message, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
            (float *)call->out[0], (const float *)call->in[0], NULL, a->n_message);
    TRY(cuda_launched("lowrank_orthonormal", error));
    for (int first = 0; first < a->n_matrices; first += MOST_MATRICES) {
        ColumnTable table = {};
        table.rank = a->rank;
        table.n = a->n_matrices - first < MOST_MATRICES ? a->n_matrices - first : (int)MOST_MATRICES;
        for (int i = 0; i < table.n; i++) {
            table.matrix[i].left = a->matrix[first + i].left;
            table.matrix[i].rows = a->matrix[first + i].rows;
        }
        orthonormal_kernel<<<(unsigned)table.n, WIDE, 0, cuda_context(call)->stream>>>((float *)call->out[0],
                                                                                       table);
        TRY(cuda_launched("lowrank_orthonormal", error));
    }
    return STATUS_OK;
}

/* ---- return ---- */

typedef struct {
    LowRankMatrix matrix;
    int rank;
    int64_t part_rows;
    const float *errors, *message;
    float *parts; /* (n_parts, rank, columns) */
} ReturnCall;

/* Of rows y · part_rows .. and columns first .. first + FEW - 1 of Q: a thread a number of each. */
static __global__ void __launch_bounds__(THREADS) return_kernel(const ReturnCall a, int first) {
    int64_t n = a.matrix.columns, rows = a.matrix.rows, k = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t row = blockIdx.y * a.part_rows, end = row + a.part_rows < rows ? row + a.part_rows : rows;
    float sum[FEW] = {};
    if (k >= n) return;
    for (; row < end; row++) {
        float m = a.errors[a.matrix.first + row * n + k];
#pragma unroll
        for (int r = 0; r < FEW; r++)
            if (first + r < a.rank)
                sum[r] = fmaf(a.message[a.matrix.left + (first + r) * rows + row], m, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < FEW; r++)
        if (first + r < a.rank) a.parts[(blockIdx.y * (int64_t)a.rank + first + r) * n + k] = sum[r];
}

static __global__ void __launch_bounds__(THREADS)
    join_kernel(const float *parts, int64_t n_parts, float *returned, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0.0f;
    if (i >= n) return;
    for (int64_t part = 0; part < n_parts; part++) sum += parts[part * n + i];
    returned[i] = sum;
}

extern "C" Status cuda_lowrank_return(const KernelCall *call, Error *error) {
    const LowRankAttributes *a = (const LowRankAttributes *)call->node->attributes;
    cudaStream_t stream = cuda_context(call)->stream;
    ReturnCall arguments = {};
    arguments.rank = a->rank;
    arguments.errors = (const float *)call->in[0];
    arguments.message = (const float *)call->in[1];
    arguments.parts = (float *)call->scratch;
    for (int i = 0; i < a->n_matrices; i++) {
        const LowRankMatrix *matrix = &a->matrix[i];
        int64_t n_parts = cuda_lowrank_parts(matrix->rows), n = a->rank * matrix->columns;
        arguments.matrix = *matrix;
        arguments.part_rows = (matrix->rows + n_parts - 1) / n_parts;
        dim3 grid(blocks_for(matrix->columns, THREADS), (unsigned)n_parts);
        for (int first = 0; first < a->rank; first += FEW)
            return_kernel<<<grid, THREADS, 0, stream>>>(arguments, first);
        join_kernel<<<blocks_for(n, THREADS), THREADS, 0, stream>>>(arguments.parts, n_parts,
                                                                    (float *)call->out[0] + matrix->right, n);
        TRY(cuda_launched("lowrank_return", error));
    }
    return STATUS_OK;
}

/* ---- expand ---- */

enum { EXPAND_ROWS = 8 };

typedef struct {
    LowRankMatrix matrix;
    int rank;
    float share;
    const float *message, *returned, *factor;
    float *gradient, *errors;
} ExpandCall;

/* A thread a column, of eight rows. */
static __global__ void __launch_bounds__(THREADS) expand_kernel(const ExpandCall a) {
    int64_t n = a.matrix.columns, rows = a.matrix.rows, k = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    int64_t row = (int64_t)blockIdx.x * EXPAND_ROWS;
    float sum[EXPAND_ROWS] = {};
    if (k >= n || is_skipped(a.factor)) return;
    for (int r = 0; r < a.rank; r++) {
        float q = a.returned[a.matrix.right + r * n + k];
        const float *p = a.message + a.matrix.left + r * rows + row;
#pragma unroll
        for (int i = 0; i < EXPAND_ROWS; i++)
            if (row + i < rows) sum[i] = fmaf(p[i], q, sum[i]);
    }
#pragma unroll
    for (int i = 0; i < EXPAND_ROWS; i++) {
        if (row + i >= rows) break;
        int64_t at = a.matrix.first + (row + i) * n + k;
        a.gradient[at] = sum[i];
        a.errors[at] = fmaf(-a.share, sum[i], a.errors[at]);
    }
}

extern "C" Status cuda_lowrank_expand(const KernelCall *call, Error *error) {
    const LowRankAttributes *a = (const LowRankAttributes *)call->node->attributes;
    cudaStream_t stream = cuda_context(call)->stream;
    ExpandCall arguments = {};
    arguments.rank = a->rank;
    arguments.share = a->share;
    arguments.message = (const float *)call->in[0];
    arguments.returned = (const float *)call->in[1];
    arguments.factor = (const float *)call->in[2];
    arguments.gradient = (float *)call->out[0];
    arguments.errors = (float *)call->out[1];
    for (int i = 0; i < a->n_matrices; i++) {
        arguments.matrix = a->matrix[i];
        dim3 grid(blocks_for(arguments.matrix.rows, EXPAND_ROWS),
                  blocks_for(arguments.matrix.columns, THREADS));
        expand_kernel<<<grid, THREADS, 0, stream>>>(arguments);
        TRY(cuda_launched("lowrank_expand", error));
    }
    for (int i = 0; i < a->n_runs; i++)
        copy_kernel<<<blocks_for(a->run[i].n, THREADS), THREADS, 0, stream>>>(
            arguments.gradient + a->run[i].first, arguments.message + a->run[i].at, arguments.factor,
            a->run[i].n);
    if (a->n_basis)
        copy_kernel<<<blocks_for(a->n_basis, THREADS), THREADS, 0, stream>>>(
            (float *)call->out[2], arguments.returned, arguments.factor, a->n_basis);
    return cuda_launched("lowrank_expand", error);
}

/* ---- rescale ---- */

static __global__ void __launch_bounds__(THREADS)
    rescale_kernel(float *numbers, const float *factor, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) numbers[i] = __fdiv_rn(numbers[i], *factor);
}

extern "C" Status cuda_rescale(const KernelCall *call, Error *error) {
    int64_t n = tensor_count(call->node->output[0]);
    if (n)
        rescale_kernel<<<blocks_for(n, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
            (float *)call->out[0], (const float *)call->in[0], n);
    return cuda_launched("rescale", error);
}
