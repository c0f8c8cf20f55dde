/* gelu and its backward.
 *
 * Floor: 2 tensors forward and 3 backward over the copy bandwidth: 4 and 6 bytes an element in 16 bits. The
 * arithmetic must hide behind that, so the tanh is taken as a sigmoid: (1 + tanh u)/2 = 1/(1 + e^-2u), one
 * exponential and one division, exact to a few units in the last place and without cancellation for large
 * negative u. */
#include "backend/cuda/ops/columns.cuh"
#include "backend/cuda/ops/gelu.cuh"

enum { THREADS = 256 };

template <typename T, Activation KIND>
static __global__ void gelu_kernel(const T *x, T *y, int64_t count, bool aligned) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (i >= count) return;
    float v[VECTOR];
    load8(x + i, count - i, aligned, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = gelu_forward<KIND>(v[k]);
    store8(y + i, count - i, aligned, v);
}

extern "C" Status cuda_gelu_values(const KernelCall *call, const Tensor *like, const void *x, void *y,
                                   Error *error) {
    const LinearAttributes *a = (const LinearAttributes *)call->node->attributes;
    int64_t count = tensor_count(like);
    if (!count) return STATUS_OK;
    bool aligned = is_aligned(x) && is_aligned(y);
    unsigned blocks = blocks_for(count, THREADS * VECTOR);
    cudaStream_t stream = cuda_context(call)->stream;
    FOR_TYPE(like, T, {
        const T *from = (const T *)x;
        T *to = (T *)y;
        if (a->activation == ACTIVATION_GELU_ERF)
            gelu_kernel<T, ACTIVATION_GELU_ERF><<<blocks, THREADS, 0, stream>>>(from, to, count, aligned);
        else gelu_kernel<T, ACTIVATION_GELU_TANH><<<blocks, THREADS, 0, stream>>>(from, to, count, aligned);
    });
    return cuda_launched("gelu", error);
}

extern "C" Status cuda_gelu(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0];
    if (!same_types(x, call->node->output[0])) return cuda_unsupported(call, call->node->output[0], error);
    return cuda_gelu_values(call, x, call->in[0], call->out[0], error);
}

/* dx may lie on x, or on dy. */
template <typename T, Activation KIND>
static __global__ void backward_kernel(const T *dy, const T *x, T *dx, int64_t count, bool aligned,
                                       bool add) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (i >= count) return;
    float v[VECTOR], g[VECTOR];
    load8(x + i, count - i, aligned, v);
    load8(dy + i, count - i, aligned, g);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = g[k] * gelu_backward<KIND>(v[k]);
    write8(dx + i, count - i, aligned, v, add);
}

extern "C" Status cuda_gelu_slope(const KernelCall *call, const void *dy, const void *x, void *dx, bool add,
                                  Error *error) {
    const LinearAttributes *a = (const LinearAttributes *)call->node->attributes;
    const Tensor *type = call->node->output[0];
    int64_t count = tensor_count(type);
    if (!count) return STATUS_OK;
    bool aligned = is_aligned(dy) && is_aligned(x) && is_aligned(dx);
    unsigned blocks = blocks_for(count, THREADS * VECTOR);
    cudaStream_t stream = cuda_context(call)->stream;
    FOR_TYPE(type, T, {
        if (a->activation == ACTIVATION_GELU_ERF)
            backward_kernel<T, ACTIVATION_GELU_ERF>
                <<<blocks, THREADS, 0, stream>>>((const T *)dy, (const T *)x, (T *)dx, count, aligned, add);
        else
            backward_kernel<T, ACTIVATION_GELU_TANH>
                <<<blocks, THREADS, 0, stream>>>((const T *)dy, (const T *)x, (T *)dx, count, aligned, add);
    });
    return cuda_launched("gelu_backward", error);
}

/* Down the columns, which are summed as they are stored. As many loads are on their way as with a thread for
 * every vector: fewer threads have more of them each. */
template <typename T, Activation KIND>
static __global__ void __launch_bounds__(WARP *COLUMN_WARPS, 4)
    summed_kernel(const T *dy, const T *x, T *dx, int64_t rows, int64_t columns, int64_t rows_each, bool add,
                  float *partial) {
    const ColumnPart part = column_part(rows, columns, rows_each);
    float sum[VECTOR] = {0};
    enum { AT_ONCE = 2 };
    for (int64_t r = part.first + threadIdx.y; part.n > 0 && r < part.end; r += AT_ONCE * COLUMN_WARPS) {
        Raw<T> own_g[AT_ONCE], own_x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int64_t at = (r + j * COLUMN_WARPS) * columns + part.c;
            bool is_there = r + j * COLUMN_WARPS < part.end;
            own_g[j] = load_raw<T, true>(dy + at, is_there ? VECTOR : 0);
            own_x[j] = load_raw<T, true>(x + at, is_there ? VECTOR : 0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (r + j * COLUMN_WARPS >= part.end) continue;
            T *to = dx + (r + j * COLUMN_WARPS) * columns + part.c;
            float v[VECTOR], g[VECTOR];
            unpack(own_x[j], v), unpack(own_g[j], g);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] = g[k] * gelu_backward<KIND>(v[k]);
            if (add) {
                load8(to, g);
#pragma unroll
                for (int k = 0; k < VECTOR; k++) v[k] += g[k];
            }
            Raw<T> made;
            store8(made.element, v);
            store_raw(to, made);
            unpack(made, v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
        }
    }
    store_column_sums(part, sum, partial);
}

extern "C" Status cuda_gelu_slope_summed(const KernelCall *call, const void *dy, const void *x, void *dx,
                                         bool add, const SumOutput *sums, void *scratch, Error *error) {
    const LinearAttributes *a = (const LinearAttributes *)call->node->attributes;
    const CudaContext *context = cuda_context(call);
    const Tensor *type = call->node->output[0];
    int64_t rows = shape_rows(type->shape), columns = shape_columns(type->shape);
    if (!columns) return STATUS_OK;
    int64_t parts = cuda_reduce_columns_parts(&context->traits, rows, columns),
            rows_each = (rows + parts - 1) / parts;
    dim3 grid(blocks_for(columns, COLUMNS), (unsigned)parts), block(WARP, COLUMN_WARPS);
    float *partial = (float *)scratch;
#define SUMMED(KIND)                                                                                         \
    summed_kernel<T, KIND><<<grid, block, 0, context->stream>>>((const T *)dy, (const T *)x, (T *)dx, rows,  \
                                                                columns, rows_each, add, partial)
    FOR_TYPE(type, T, {
        if (a->activation == ACTIVATION_GELU_ERF) SUMMED(ACTIVATION_GELU_ERF);
        else SUMMED(ACTIVATION_GELU_TANH);
    });
    TRY(cuda_launched("gelu_backward and sums of columns", error));
    return cuda_reduce_partials(context, partial, parts, columns, 1, sums, error);
}

extern "C" Status cuda_gelu_backward(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[1];
    if (!same_types(x, call->node->input[0]) || !same_types(x, call->node->output[0])) {
        return cuda_unsupported(call, call->node->output[0], error);
    }
    return cuda_gelu_slope(call, call->in[0], call->in[1], call->out[0], call->add[0], error);
}
