/* add, copy and zero: what only moves memory.
 *
 * Floor: the bytes of all inputs and outputs over the copy bandwidth (an addition of bf16 tensors moves 6
 * bytes an element). A thread takes 8 elements; nothing is shared, so outputs may lie on inputs. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256 };

template <typename T>
static __global__ void add_kernel(const T *a, const T *b, T *y, int64_t count, bool aligned, bool add) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (i >= count) return;
    float u[VECTOR], v[VECTOR];
    load8(a + i, count - i, aligned, u);
    load8(b + i, count - i, aligned, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) u[k] += v[k];
    write8(y + i, count - i, aligned, u, add);
}

extern "C" Status cuda_add(const KernelCall *call, Error *error) {
    const Tensor *y = call->node->output[0];
    if (!same_types(y, call->node->input[0])) return cuda_unsupported(call, y, error);
    int64_t count = tensor_count(y);
    if (!count) return STATUS_OK;
    bool aligned = is_aligned(call->in[0]) && is_aligned(call->in[1]) && is_aligned(call->out[0]);
    FOR_TYPE(
        y, T,
        add_kernel<T><<<blocks_for(count, THREADS * VECTOR), THREADS, 0, cuda_context(call)->stream>>>(
            (const T *)call->in[0], (const T *)call->in[1], (T *)call->out[0], count, aligned, call->add[0]));
    return cuda_launched("add", error);
}

/* ---- copy: also from one type to another ---- */

template <typename T, typename U>
static __global__ void copy_kernel(const T *x, U *y, int64_t count, bool aligned, bool add) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (i >= count) return;
    float v[VECTOR];
    load8(x + i, count - i, aligned, v);
    write8(y + i, count - i, aligned, v, add);
}

extern "C" Status cuda_copy(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0], *y = call->node->output[0];
    int64_t count = tensor_count(y);
    cudaStream_t stream = cuda_context(call)->stream;
    if (!count || (call->in[0] == call->out[0] && same_types(x, y) && !call->add[0])) return STATUS_OK;
    if (x->dtype == DTYPE_I32 && y->dtype == DTYPE_I32 && !call->add[0]) {
        return cuda_check(
            cudaMemcpyAsync(call->out[0], call->in[0], tensor_bytes(y), cudaMemcpyDeviceToDevice, stream),
            "copy", error);
    }
    bool aligned = is_aligned(call->in[0]) && is_aligned(call->out[0]);
    FOR_TYPE(x, T,
             FOR_TYPE(y, U,
                      copy_kernel<T, U><<<blocks_for(count, THREADS * VECTOR), THREADS, 0, stream>>>(
                          (const T *)call->in[0], (U *)call->out[0], count, aligned, call->add[0])));
    return cuda_launched("copy", error);
}

/* ---- zero ---- */

extern "C" Status cuda_zero(const KernelCall *call, Error *error) {
    size_t n_bytes = tensor_bytes(call->node->output[0]);
    if (!n_bytes) return STATUS_OK;
    if (call->add[0]) return STATUS_OK;
    return cuda_check(cudaMemsetAsync(call->out[0], 0, n_bytes, cuda_context(call)->stream), "zero", error);
}
