/* adamw: one pass over gradient, parameter and both moments: 28 bytes an element, and nothing else moves.
 *
 * Everything that is the same for a run of elements (decay, step size, bias corrections) is folded into a
 * handful of constants, so the arithmetic hides behind memory:
 *     p = p·keep - step·m / (√v·root + ε),   keep = 1 - rate·decay, step = rate·c1, root = √c2.
 * Moments of parameters that get no gradient shrink for ever; below 1e-37 they become 0, because arithmetic
 * on the denormal numbers they would end in is a hundred times slower on some machines. */
#include "ops/update/adamw.h"
#include "backend/cpu/update/moments.h"

typedef struct {
    float beta1, beta2, new1, new2; /* m = beta1·m + new1·g, v = beta2·v + new2·g² */
    float scale, root, epsilon, step, keep;
} AdamwConstants;

/* Not a number is not small: it stays, and is seen. */
CPU_INLINE vec flush(vec moment, vec magnitude) {
    return (vec)(~(magnitude <= vec_set(1e-37f)) & (veci)moment);
}

CPU_INLINE void adamw_step(const AdamwConstants *c, const float *gradient, float *parameter, float *moment1,
                           float *moment2, int lanes) {
    vec g = lanes_load(gradient, lanes) * vec_set(c->scale);
    vec m = vec_fma(vec_set(c->beta1), lanes_load(moment1, lanes), vec_set(c->new1) * g);
    vec v = vec_fma(vec_set(c->beta2), lanes_load(moment2, lanes), vec_set(c->new2) * g * g);
    m = flush(m, vec_max(m, -m));
    v = flush(v, v);
    vec deviation = vec_fma(vec_sqrt(v), vec_set(c->root), vec_set(c->epsilon));
    vec p = vec_fma(lanes_load(parameter, lanes), vec_set(c->keep), -(vec_set(c->step) * m / deviation));
    lanes_store(parameter, p, lanes);
    lanes_store(moment1, m, lanes);
    lanes_store(moment2, v, lanes);
}

static void update(const KernelCall *call, const void *constants, int64_t first, int64_t end, float *moment1,
                   float *moment2) {
    int64_t i = 0, n = end - first;
    const AdamwConstants c = *(const AdamwConstants *)constants;
    const float *gradient = (const float *)call->in[0] + first; /* (N) */
    float *parameter = (float *)call->out[0] + first;           /* (N) */
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        adamw_step(&c, gradient + i, parameter + i, moment1 + i, moment2 + i, VEC_LANES);
    }
    if (i < n) adamw_step(&c, gradient + i, parameter + i, moment1 + i, moment2 + i, (int)(n - i));
    if (call->out[3]) cpu_narrow(call->node->output[3]->dtype, call->out[0], call->out[3], first, end);
}

Status cpu_adamw(const KernelCall *call, Error *error) {
    (void)error;
    const AdamwAttributes *a = call->node->attributes;
    const float *hyper = call->in[1], *factor = call->in[2]; /* (N_HYPER), [(1)] */
    if (factor && !isfinite(*factor)) return STATUS_OK;
    double rate = (double)hyper[HYPER_RATE];
    const AdamwConstants shared = {
        .beta1 = a->beta1,
        .beta2 = a->beta2,
        .new1 = (float)(1.0 - (double)a->beta1),
        .new2 = (float)(1.0 - (double)a->beta2),
        .scale = factor ? *factor : 1.0f,
        .root = (float)sqrt((double)hyper[HYPER_CORRECTION2]),
        .epsilon = a->epsilon,
        .step = (float)(rate * (double)hyper[HYPER_CORRECTION1]),
    };
    int64_t count = tensor_count(call->node->output[0]);
    const CpuMoments moments = {.data = {call->out[1], call->out[2]},
                                .is_packed = update_is_packed(call->node->output[1]),
                                .is_written = true,
                                .count = count};
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        AdamwConstants c = shared;
        int64_t first = 0;
        for (int run = 0; run < a->elements.n_runs && first < range.end; run++) {
            int64_t end = first + a->elements.runs[run].n_elements;
            c.keep = (float)(1.0 - (a->elements.runs[run].decays ? rate * (double)a->weight_decay : 0.0));
            cpu_update_moments(call, &moments, first > range.first ? first : range.first,
                               end < range.end ? end : range.end, update, &c);
            first = end;
        }
    }
    return STATUS_OK;
}
