/* local_step and local_join: one pass over memory, run by run of elements that decay or do not. */
#include "ops/compress/local_step.h"
#include "backend/cpu/kernels.h"

#include <math.h>

typedef struct {
    const float *gradient, *variance, *common; /* (N); common of the step */
    float *momentum, *buffer, *written;        /* (N); written: common, of the join */
    float *parameter;                          /* (N) or NULL */
    float beta1, gain, bound, epsilon;
    float step, keep, distance, root;
} LocalCall;

/* What is not a number stays so. */
CPU_INLINE vec cut(vec v, vec limit) {
    v = vec_select(v > limit, limit, v);
    return vec_select(v < -limit, -limit, v);
}

CPU_INLINE vec deviation_of(const LocalCall *c, vec root) {
    return vec_fma(root, vec_set(c->root), vec_set(c->epsilon));
}

CPU_INLINE void step_lanes(const LocalCall *c, int64_t i, int lanes) {
    vec root = vec_sqrt(lanes_load(c->variance + i, lanes));
    vec m = vec_fma(vec_set(c->beta1), lanes_load(c->momentum + i, lanes),
                    vec_set(c->gain) * lanes_load(c->gradient + i, lanes));
    m = cut(m, vec_set(c->bound) * root);
    vec u = vec_fma(vec_set(c->step), m, lanes_load(c->buffer + i, lanes));
    lanes_store(c->momentum + i, m, lanes);
    lanes_store(c->buffer + i, u, lanes);
    if (!c->parameter) return;
    vec w = vec_fma(vec_set(c->keep), lanes_load(c->common + i, lanes), -(u / deviation_of(c, root)));
    lanes_store(c->parameter + i, w, lanes);
}

CPU_INLINE void join_lanes(const LocalCall *c, int64_t i, int lanes) {
    vec root = vec_sqrt(lanes_load(c->variance + i, lanes));
    vec step = vec_set(c->distance) * lanes_load(c->momentum + i, lanes) / deviation_of(c, root);
    vec w = vec_fma(vec_set(c->keep), lanes_load(c->written + i, lanes), -step);
    lanes_store(c->written + i, w, lanes);
    lanes_store(c->parameter + i, w, lanes);
    lanes_store(c->buffer + i, vec_set(0.0f), lanes);
}

static void take_elements(const LocalCall *c, bool joins, int64_t first, int64_t end) {
    int64_t i = first;
    if (joins) {
        for (; i + VEC_LANES <= end; i += VEC_LANES) join_lanes(c, i, VEC_LANES);
        if (i < end) join_lanes(c, i, (int)(end - i));
        return;
    }
    for (; i + VEC_LANES <= end; i += VEC_LANES) step_lanes(c, i, VEC_LANES);
    if (i < end) step_lanes(c, i, (int)(end - i));
}

static void take_all(const KernelCall *call, const LocalCall *shared, const float *numbers, bool joins) {
    const LocalAttributes *a = call->node->attributes;
    int64_t count = tensor_count(call->node->output[1]);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        LocalCall c = *shared;
        int64_t first = 0;
        for (int run = 0; run < a->elements.n_runs && first < range.end; run++) {
            int64_t end = first + a->elements.runs[run].n_elements;
            c.keep = a->elements.runs[run].decays ? numbers[LOCAL_KEEP] : 1.0f;
            take_elements(&c, joins, first > range.first ? first : range.first,
                          end < range.end ? end : range.end);
            first = end;
        }
    }
}

static LocalCall call_of(const LocalAttributes *a, const float *numbers) {
    return (LocalCall){.beta1 = a->beta1,
                       .gain = a->gain,
                       .bound = a->bound,
                       .epsilon = a->epsilon,
                       .step = numbers[LOCAL_STEP],
                       .distance = numbers[LOCAL_DISTANCE],
                       .root = numbers[LOCAL_ROOT]};
}

Status cpu_local_step(const KernelCall *call, Error *error) {
    (void)error;
    const float *numbers = call->in[2], *factor = call->in[4];
    LocalCall c = call_of(call->node->attributes, numbers);
    if (factor && !isfinite(*factor)) return STATUS_OK;
    c.gain *= factor ? *factor : 1.0f;
    c.gradient = call->in[0];
    c.variance = call->in[1];
    c.common = call->in[3];
    c.momentum = call->out[0];
    c.buffer = call->out[1];
    c.parameter = call->out[2];
    take_all(call, &c, numbers, false);
    return STATUS_OK;
}

Status cpu_local_join(const KernelCall *call, Error *error) {
    (void)error;
    const float *numbers = call->in[2], *factor = call->in[3];
    LocalCall c = call_of(call->node->attributes, numbers);
    if (factor && !isfinite(*factor)) return STATUS_OK;
    c.momentum = call->in[0];
    c.variance = call->in[1];
    c.written = call->out[0];
    c.buffer = call->out[1];
    c.parameter = call->out[2];
    take_all(call, &c, numbers, true);
    return STATUS_OK;
}
