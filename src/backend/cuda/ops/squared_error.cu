/* squared_error: the loss of every prediction, and its gradient in the same visit.
 *
 * Floor: predictions, targets and gradient once each in their own type and the losses in f32, over the copy
 * bandwidth. A thread reads its 8 elements before it writes them, so the gradient may lie on the
 * predictions. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256 };

template <typename T>
static __global__ void squared_error_kernel(const T *predictions, const T *targets, float *losses,
                                            T *gradient, float slope, int64_t count, bool aligned) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (i >= count) return;
    float difference[VECTOR], target[VECTOR];
    load8(predictions + i, count - i, aligned, difference);
    load8(targets + i, count - i, aligned, target);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        difference[k] -= target[k];
        target[k] = difference[k] * difference[k];
        difference[k] *= slope;
    }
    store8(losses + i, count - i, aligned, target);
    if (gradient) store8(gradient + i, count - i, aligned, difference);
}

extern "C" Status cuda_squared_error(const KernelCall *call, Error *error) {
    const SquaredErrorAttributes *a = (const SquaredErrorAttributes *)call->node->attributes;
    const Tensor *predictions = call->node->input[0], *gradient = call->node->output[1];
    if (!same_types(predictions, call->node->input[1]) || (gradient && !same_types(predictions, gradient))) {
        return cuda_unsupported(call, predictions, error);
    }
    int64_t count = tensor_count(predictions);
    if (!count) return STATUS_OK;
    bool aligned = is_aligned(call->in[0]) && is_aligned(call->in[1]) && is_aligned(call->out[0]) &&
                   is_aligned(call->out[1]);
    FOR_TYPE(predictions, T,
             squared_error_kernel<T>
             <<<blocks_for(count, THREADS * VECTOR), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const T *)call->in[1], (float *)call->out[0], (T *)call->out[1],
                 2.0f * a->gradient_scale, count, aligned));
    return cuda_launched("squared_error", error);
}
