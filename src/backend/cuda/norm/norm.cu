/* squared_norm: total = or += Σ x² (the work is in reduce.cu). clip: what to scale the gradient with, from
 * that total; one thread, whose launch is its cost. */
#include "backend/cuda/kernels.h"

extern "C" Status cuda_squared_norm(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0];
    if (!dtype_info(x->dtype)->is_float) return cuda_unsupported(call, x, error);
    return cuda_reduce_all(cuda_context(call), call->in[0], x->dtype, tensor_count(x), true, 1.0f,
                           (float *)call->out[0], call->add[0], call->scratch, error);
}

static __global__ void clip_kernel(const float *total, const float *scale_of, float *factor, float *norm,
                                   float max_norm) {
    double scale = scale_of ? (double)*scale_of : 1.0, length = sqrt((double)*total) / scale;
    double limit = (double)max_norm, clipped = limit > 0.0 && length > limit ? limit / length : 1.0;
    if (factor) *factor = isfinite(length) ? (float)(clipped / scale) : NAN;
    if (norm) *norm = (float)length;
}

extern "C" Status cuda_clip(const KernelCall *call, Error *error) {
    const ClipAttributes *a = (const ClipAttributes *)call->node->attributes;
    clip_kernel<<<1, 1, 0, cuda_context(call)->stream>>>((const float *)call->in[0],
                                                         (const float *)call->in[1], (float *)call->out[0],
                                                         (float *)call->out[1], a->max_norm);
    return cuda_launched("clip", error);
}
