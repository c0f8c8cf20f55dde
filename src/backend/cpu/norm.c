/* squared_norm and clip: the gradient's norm at the speed of reading it, and the factor that the norm asks
 * for. */
#include "backend/cpu/reduce.h"
#include "ops/ops.h"

/* Blocks of the whole, one behind the other; the last adds them up. */
static Status add_part(const KernelCall *call, int64_t count) {
    const SquaredNormPart *part = call->node->attributes;
    double *partial = call->out[1];
    float *total = call->out[0];
    reduce_some(call->in[0], part->first, count, part->n_all, partial, call->n_threads);
    if (part->first + count < part->n_all) return STATUS_OK;
    float value = (float)reduce_end_all(partial, part->n_all);
    *total = call->add[0] ? *total + value : value;
    return STATUS_OK;
}

Status cpu_squared_norm(const KernelCall *call, Error *error) {
    (void)error;
    float *total = call->out[0]; /* (1) */
    int64_t count = tensor_count(call->node->input[0]);
    if (call->node->attributes_bytes) return add_part(call, count);
    float value = (float)reduce_all(call->in[0], count, REDUCE_SQUARES, call->scratch, call->n_threads);
    *total = call->add[0] ? *total + value : value;
    return STATUS_OK;
}

size_t cpu_squared_norm_scratch(const Node *node, int n_threads) {
    (void)node, (void)n_threads;
    return reduce_all_scratch();
}

Status cpu_clip(const KernelCall *call, Error *error) {
    (void)error;
    const ClipAttributes *a = call->node->attributes;
    const float *total = call->in[0];                                       /* (1) */
    float *factor = call->out[0], *norm = call->out[1];                     /* (1), (1) */
    double scale = call->in[1] ? (double)*(const float *)call->in[1] : 1.0; /* [(1)] */
    double length = sqrt((double)*total) / scale, limit = (double)a->max_norm;
    double clipped = limit > 0.0 && length > limit ? limit / length : 1.0;
    if (factor) *factor = isfinite(length) ? (float)(clipped / scale) : NAN;
    if (norm) *norm = (float)length;
    return STATUS_OK;
}
