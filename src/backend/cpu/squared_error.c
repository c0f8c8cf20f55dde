/* squared_error: one visit to predictions and targets. The gradient may be the memory of the predictions: an
 * element is read before it is written. */
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

CPU_INLINE void error_step(const float *predictions, const float *targets, float *losses, float *gradient,
                           float slope, int lanes) {
    vec difference = lanes_load(predictions, lanes) - lanes_load(targets, lanes);
    lanes_store(losses, difference * difference, lanes);
    if (gradient) lanes_store(gradient, vec_set(slope) * difference, lanes);
}

CPU_INLINE void error_range(const float *predictions, const float *targets, float *losses, float *gradient,
                            float slope, CpuRange range) {
    int64_t i = range.first;
    for (; i + VEC_LANES <= range.end; i += VEC_LANES)
        error_step(predictions + i, targets + i, losses + i, gradient ? gradient + i : NULL, slope,
                   VEC_LANES);
    if (i < range.end)
        error_step(predictions + i, targets + i, losses + i, gradient ? gradient + i : NULL, slope,
                   (int)(range.end - i));
}

Status cpu_squared_error(const KernelCall *call, Error *error) {
    (void)error;
    const SquaredErrorAttributes *a = call->node->attributes;
    float slope = 2.0f * a->gradient_scale;
    int64_t count = tensor_count(call->node->input[0]);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        if (call->out[1]) error_range(call->in[0], call->in[1], call->out[0], call->out[1], slope, range);
        else error_range(call->in[0], call->in[1], call->out[0], NULL, slope, range);
    }
    return STATUS_OK;
}
