/* muon: what is not a product of matrices. Each is one pass over what it reads and writes. */
#include "ops/update/muon.h"
#include "backend/cpu/update/moments.h"

/* ---- momentum and direction ---- */

typedef struct {
    float scale, momentum;
    bool nesterov;
} MomentumConstants;

CPU_INLINE void momentum_step(const MomentumConstants *c, const float *gradient, float *moment,
                              float *direction, int lanes) {
    vec g = vec_set(c->scale) * lanes_load(gradient, lanes);
    vec u = vec_fma(vec_set(c->momentum), lanes_load(moment, lanes), g);
    lanes_store(moment, u, lanes);
    lanes_store(direction, c->nesterov ? vec_fma(vec_set(c->momentum), u, g) : u, lanes);
}

static void direct(const KernelCall *call, const void *constants, int64_t first, int64_t end, float *moment,
                   float *unused) {
    const MomentumConstants c = *(const MomentumConstants *)constants;
    const float *gradient = (const float *)call->in[0] + first;
    float *direction = (float *)call->out[0] + first;
    int64_t i = 0, n = end - first;
    (void)unused;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        momentum_step(&c, gradient + i, moment + i, direction + i, VEC_LANES);
    if (i < n) momentum_step(&c, gradient + i, moment + i, direction + i, (int)(n - i));
}

Status cpu_muon_momentum(const KernelCall *call, Error *error) {
    (void)error;
    const MuonAttributes *a = call->node->attributes;
    const float *factor = call->in[2];
    if (factor && !isfinite(*factor)) return STATUS_OK;
    const MomentumConstants c = {factor ? *factor : 1.0f, a->momentum, a->nesterov};
    const CpuMoments moments = {.data = {call->out[1]},
                                .is_packed = update_is_packed(call->node->output[1]),
                                .is_written = true,
                                .count = tensor_count(call->node->input[0])};
    int n_parts = cpu_threads(call, moments.count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(moments.count, part, n_parts);
        cpu_with_moments(call, &moments, range.first, range.end, direct, &c);
    }
    return STATUS_OK;
}

/* ---- the step ---- */

CPU_INLINE void muon_step(const float *step, float *parameter, float keep, float rate, int lanes) {
    vec p = lanes_load(parameter, lanes) * vec_set(keep);
    lanes_store(parameter, vec_fma(vec_set(-rate), lanes_load(step, lanes), p), lanes);
}

Status cpu_muon(const KernelCall *call, Error *error) {
    (void)error;
    const MuonAttributes *a = call->node->attributes;
    const float *step = call->in[0], *hyper = call->in[1], *factor = call->in[2];
    float *parameter = call->out[0];
    if (factor && !isfinite(*factor)) return STATUS_OK;
    double rate = (double)hyper[HYPER_RATE] * (double)a->rate_factor;
    float keep = (float)(1.0 - rate * (double)a->weight_decay);
    int64_t count = tensor_count(call->node->output[0]);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        int64_t i = range.first;
        for (; i + VEC_LANES <= range.end; i += VEC_LANES)
            muon_step(step + i, parameter + i, keep, (float)rate, VEC_LANES);
        if (i < range.end) muon_step(step + i, parameter + i, keep, (float)rate, (int)(range.end - i));
        if (call->out[1])
            cpu_narrow(call->node->output[1]->dtype, parameter, call->out[1], range.first, range.end);
    }
    return STATUS_OK;
}

/* ---- between the products ---- */

Status cpu_muon_normalise(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0], *squares = call->in[1];
    float *y = call->out[0];
    int64_t count = tensor_count(call->node->input[0]);
    float factor = (float)(1.0 / (sqrt((double)*squares) + 1e-7));
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, count))
    for (int64_t i = 0; i < count; i++) y[i] = factor * x[i];
    return STATUS_OK;
}

Status cpu_muon_polynomial(const KernelCall *call, Error *error) {
    (void)error;
    const MuonPolynomial *p = call->node->attributes;
    const float *matrix = call->in[0], *square = call->in[1];
    float *y = call->out[0];
    int64_t n = call->node->output[0]->shape.dim[0];
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, n *n))
    for (int64_t row = 0; row < n; row++) {
        for (int64_t i = row * n; i < (row + 1) * n; i++) y[i] = p->b * matrix[i] + p->c * square[i];
        y[row * n + row] += p->a;
    }
    return STATUS_OK;
}

/* Runs of elements that are neighbours in both. */
Status cpu_box(const KernelCall *call, Error *error) {
    (void)error;
    const BoxAttributes *a = call->node->attributes;
    const Box all = box_whole(a->whole);
    const float *x = call->in[0];
    float *y = call->out[0];
    int64_t count = shape_count(a->box.shape), run = box_run(&a->box, &all);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, count))
    for (int64_t i = 0; i < count / run; i++) {
        int64_t at = box_element(&a->box, &all, i * run);
        if (a->takes) memcpy(y + i * run, x + at, (size_t)run * sizeof *y);
        else memcpy(y + at, x + i * run, (size_t)run * sizeof *y);
    }
    return STATUS_OK;
}
