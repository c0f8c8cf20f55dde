/* sgd: gradient descent with momentum, one pass over gradient, parameter and momentum. */
#include "ops/update/sgd.h"
#include "backend/cpu/update/moments.h"

typedef struct {
    float scale, decay, momentum, rate;
    bool nesterov;
} SgdConstants;

CPU_INLINE void sgd_step(const SgdConstants *c, const float *gradient, float *parameter, float *momentum,
                         int lanes) {
    vec p = lanes_load(parameter, lanes);
    vec g = vec_fma(vec_set(c->decay), p, vec_set(c->scale) * lanes_load(gradient, lanes)), step = g;
    if (momentum) {
        vec u = vec_fma(vec_set(c->momentum), lanes_load(momentum, lanes), g);
        step = c->nesterov ? vec_fma(vec_set(c->momentum), u, g) : u;
        lanes_store(momentum, u, lanes);
    }
    lanes_store(parameter, vec_fma(vec_set(-c->rate), step, p), lanes);
}

static void update(const KernelCall *call, const void *constants, int64_t first, int64_t end, float *momentum,
                   float *unused) {
    int64_t i = 0, n = end - first;
    const SgdConstants c = *(const SgdConstants *)constants;
    const float *gradient = (const float *)call->in[0] + first; /* (N) */
    float *parameter = (float *)call->out[0] + first;           /* (N) */
    (void)unused;
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        sgd_step(&c, gradient + i, parameter + i, momentum ? momentum + i : NULL, VEC_LANES);
    }
    if (i < n) sgd_step(&c, gradient + i, parameter + i, momentum ? momentum + i : NULL, (int)(n - i));
    if (call->out[2]) cpu_narrow(call->node->output[2]->dtype, call->out[0], call->out[2], first, end);
}

Status cpu_sgd(const KernelCall *call, Error *error) {
    (void)error;
    const SgdAttributes *a = call->node->attributes;
    const float *hyper = call->in[1], *factor = call->in[2]; /* (N_HYPER), [(1)] */
    if (factor && !isfinite(*factor)) return STATUS_OK;
    const SgdConstants shared = {
        .scale = factor ? *factor : 1.0f,
        .momentum = a->momentum,
        .rate = hyper[HYPER_RATE],
        .nesterov = a->nesterov,
    };
    int64_t count = tensor_count(call->node->output[0]);
    const CpuMoments moments = {.data = {call->out[1]},
                                .is_packed = update_is_packed(call->node->output[1]),
                                .is_written = true,
                                .count = count};
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        SgdConstants c = shared;
        int64_t first = 0;
        for (int run = 0; run < a->elements.n_runs && first < range.end; run++) {
            int64_t end = first + a->elements.runs[run].n_elements;
            c.decay = a->elements.runs[run].decays ? a->weight_decay : 0.0f;
            cpu_update_moments(call, &moments, first > range.first ? first : range.first,
                               end < range.end ? end : range.end, update, &c);
            first = end;
        }
    }
    return STATUS_OK;
}
