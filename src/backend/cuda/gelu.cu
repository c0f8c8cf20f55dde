/* gelu and its backward.
 *
 * Floor: 2 tensors forward and 3 backward over the copy bandwidth: 4 and 6 bytes an element in 16 bits. The arithmetic
 * must hide behind that, so the tanh is taken as a sigmoid: (1 + tanh u)/2 = 1/(1 + e^-2u), one exponential and one
 * division, exact to a few units in the last place and without cancellation for large negative u. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/gelu.cuh"

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

extern "C" Status cuda_gelu(const KernelCall *call, Error *error) {
    const LinearAttributes *a = (const LinearAttributes *)call->node->attributes;
    const Tensor *x = call->node->input[0];
    if (!same_types(x, call->node->output[0])) return cuda_unsupported(call, call->node->output[0], error);
    int64_t count = tensor_count(x);
    if (!count) return STATUS_OK;
    bool aligned = is_aligned(call->in[0]) && is_aligned(call->out[0]);
    unsigned blocks = blocks_for(count, THREADS * VECTOR);
    cudaStream_t stream = cuda_context(call)->stream;
    FOR_TYPE(x, T, {
        const T *from = (const T *)call->in[0];
        T *to = (T *)call->out[0];
        if (a->activation == ACTIVATION_GELU_ERF)
            gelu_kernel<T, ACTIVATION_GELU_ERF><<<blocks, THREADS, 0, stream>>>(from, to, count, aligned);
        else gelu_kernel<T, ACTIVATION_GELU_TANH><<<blocks, THREADS, 0, stream>>>(from, to, count, aligned);
    });
    return cuda_launched("gelu", error);
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

extern "C" Status cuda_gelu_backward(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[1];
    if (!same_types(x, call->node->input[0]) || !same_types(x, call->node->output[0])) {
        return cuda_unsupported(call, call->node->output[0], error);
    }
    return cuda_gelu_slope(call, call->in[0], call->in[1], call->out[0], call->add[0], error);
}
