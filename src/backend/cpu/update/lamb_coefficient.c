/* lamb_freshen: one pass, 20 bytes an element. Largest ratios do not depend on the order in which they are
 * found, so every thread keeps one and they meet at the end of a tensor. */
#include "ops/update/lamb_coefficient.h"
#include "backend/cpu/kernels.h"

#include <math.h>

typedef struct {
    const float *before, *momentum, *variance; /* (N) */
    float *fresh;                              /* (N) */
    float beta1, per_new1, beta2, new2, root, fresh_root, epsilon;
} Freshening;

/* g·(1-β1) = m - β1·before; the largest ratio of the lanes that are there. */
CPU_INLINE vec freshen_step(const Freshening *f, int64_t i, int lanes) {
    vec g =
        vec_fma(vec_set(-f->beta1), lanes_load(f->before + i, lanes), lanes_load(f->momentum + i, lanes)) *
        vec_set(f->per_new1);
    vec fresh = vec_fma(vec_set(f->beta2), lanes_load(f->fresh + i, lanes), vec_set(f->new2) * g * g);
    lanes_store(f->fresh + i, fresh, lanes);
    vec frozen = vec_fma(vec_sqrt(lanes_load(f->variance + i, lanes)), vec_set(f->root), vec_set(f->epsilon));
    return frozen / vec_fma(vec_sqrt(fresh), vec_set(f->fresh_root), vec_set(f->epsilon));
}

static float freshen(const Freshening *f, int64_t first, int64_t end) {
    vec most = vec_set(0.0f);
    int64_t i = first;
    for (; i + VEC_LANES <= end; i += VEC_LANES) most = vec_max(most, freshen_step(f, i, VEC_LANES));
    float largest = vec_max_lane(most);
    if (i == end) return largest;
    vec last = freshen_step(f, i, (int)(end - i)); /* lanes that are not there have ε/ε */
    for (int lane = 0; lane < (int)(end - i); lane++) largest = last[lane] > largest ? last[lane] : largest;
    return largest;
}

/* Elements first .. end - 1, by all threads. */
static float freshen_together(const KernelCall *call, const Freshening *f, int64_t first, int64_t end) {
    int n_parts = cpu_threads(call, end - first);
    float largest = 0.0f;
#pragma omp parallel for schedule(static) num_threads(n_parts) reduction(max : largest)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(end - first, part, n_parts);
        float here = freshen(f, first + range.first, first + range.end);
        largest = here > largest ? here : largest;
    }
    return largest;
}

Status cpu_lamb_freshen(const KernelCall *call, Error *error) {
    (void)error;
    const LambFreshenAttributes *a = call->node->attributes;
    const float *hyper = call->in[3] /* (N_HYPER) */, *factor = call->in[4];
    float *ratios = call->out[0]; /* (tensors) */
    const Freshening f = {.before = call->in[0],
                          .momentum = call->in[1],
                          .variance = call->in[2],
                          .fresh = call->out[1],
                          .beta1 = a->beta1,
                          .per_new1 = (float)(1.0 / (1.0 - (double)a->beta1)),
                          .beta2 = a->beta2,
                          .new2 = (float)(1.0 - (double)a->beta2),
                          .root = (float)sqrt((double)hyper[HYPER_CORRECTION2]),
                          .fresh_root = (float)sqrt((double)hyper[HYPER_FRESH]),
                          .epsilon = a->epsilon};
    int64_t count = tensor_count(call->node->output[1]), at = 0;
    if (factor && !isfinite(*factor)) return STATUS_OK;
    if (!call->add[0]) memset(ratios, 0, tensor_bytes(call->node->output[0]));
    for (int k = 0; k < a->spans.n_spans && at < count; k++) {
        const TensorSpan *span = &a->spans.span[k];
        int64_t first = span->first - a->first_element, end = span->end - a->first_element;
        if (first < at) first = at;
        if (end > count) end = count;
        if (first >= end) continue;
        if (at < first) freshen_together(call, &f, at, first); /* of no tensor */
        float ratio = freshen_together(call, &f, first, end);
        if (ratio > ratios[span->tensor]) ratios[span->tensor] = ratio;
        at = end;
    }
    if (at < count) freshen_together(call, &f, at, count);
    return STATUS_OK;
}

/* ---- a number a tensor */

Status cpu_lamb_average(const KernelCall *call, Error *error) {
    (void)error;
    const float *sums = call->in[0] /* (tensors, UPDATE_SUMS) */, *factor = call->in[1];
    float *coefficients = call->out[0]; /* (tensors, N_COEFFICIENTS) */
    if (factor && !isfinite(*factor)) return STATUS_OK;
    for (int64_t i = 0; i < tensor_count(call->node->output[0]) / N_COEFFICIENTS; i++)
        lamb_average(call->node->attributes, sums + i * UPDATE_SUMS, coefficients + i * N_COEFFICIENTS);
    return STATUS_OK;
}

Status cpu_lamb_adapt(const KernelCall *call, Error *error) {
    (void)error;
    const float *ratios = call->in[0] /* (tensors) */, *factor = call->in[1];
    float *coefficients = call->out[0], *sums = call->out[1]; /* (tensors, N_COEFFICIENTS, UPDATE_SUMS) */
    if (factor && !isfinite(*factor)) return STATUS_OK;
    for (int64_t i = 0; i < tensor_count(call->node->input[0]); i++) {
        float c = lamb_adapt(call->node->attributes, ratios[i], coefficients + i * N_COEFFICIENTS);
        sums[i * UPDATE_SUMS + LAMB_WEIGHT] = c * c;
        sums[i * UPDATE_SUMS + LAMB_STEP] = 1.0f;
    }
    return STATUS_OK;
}
