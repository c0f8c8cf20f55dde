/* gelu: x·Φ(x), forward where no GEMM comes before it to fuse it into, and backward.
 *
 * The tanh form is the cheaper one when written by the logistic function: (1 + tanh u)/2 = s(2u), so that
 *     y = x·s,   dy/dx = s + x·s·(1-s)·2u',   u = √(2/π)·(x + 0.044715·x³),
 * with one exponential and one division. The erf form has dy/dx = Φ(x) + x·φ(x). Every element is read before
 * it is written, so the output may replace either input. */
#include "backend/cpu/gelu_value.h"
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

#define TWO_SQRT_2_OVER_PI 1.5957691216057308f  /* 2u = x·(this + CUBIC·x²) */
#define CUBIC              0.07135481282553953f /* 0.044715 · 2√(2/π) */
#define SQRT_1_OVER_2      0.7071067811865476f
#define ONE_OVER_SQRT_2_PI 0.3989422804014327f

CPU_INLINE vec value(vec x, Activation activation) {
    return activation == ACTIVATION_GELU_ERF ? gelu_erf(x) : gelu_tanh(x);
}

CPU_INLINE vec slope(vec x, Activation activation) {
    vec square = x * x;
    if (activation == ACTIVATION_GELU_ERF) {
        vec half = vec_set(0.5f);
        vec density = vec_set(ONE_OVER_SQRT_2_PI) * vec_exp(square * vec_set(-0.5f));
        return vec_fma(x, density, vec_fma(half, vec_erf(x * vec_set(SQRT_1_OVER_2)), half));
    }
    vec rest, s = vec_sigmoid(x * vec_fma(vec_set(CUBIC), square, vec_set(TWO_SQRT_2_OVER_PI)), &rest);
    vec inner = x * vec_fma(vec_set(3.0f * CUBIC), square, vec_set(TWO_SQRT_2_OVER_PI));
    return vec_fma(inner * s, rest, s);
}

CPU_INLINE void forward_step(const float *x, float *y, Activation activation, bool add, int lanes) {
    lanes_write(y, value(lanes_load(x, lanes), activation), add, lanes);
}

CPU_INLINE void forward_range(const float *x, float *y, CpuRange range, Activation activation, bool add) {
    int64_t i = range.first;
    for (; i + VEC_LANES <= range.end; i += VEC_LANES) forward_step(x + i, y + i, activation, add, VEC_LANES);
    if (i < range.end) forward_step(x + i, y + i, activation, add, (int)(range.end - i));
}

static void forward(const LinearAttributes *a, const float *x, float *y, CpuRange range, bool add) {
    if (a->activation == ACTIVATION_GELU_ERF) forward_range(x, y, range, ACTIVATION_GELU_ERF, add);
    else forward_range(x, y, range, ACTIVATION_GELU_TANH, add);
}

Status cpu_gelu(const KernelCall *call, Error *error) {
    (void)error;
    int64_t count = tensor_count(call->node->input[0]);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++)
        forward(call->node->attributes, call->in[0], call->out[0], cpu_part(count, part, n_parts),
                call->add[0]);
    return STATUS_OK;
}

void cpu_gelu_of_stored(const KernelCall *call, int64_t count, float *before, float *y) {
    DType dtype = call->node->output[0]->dtype;
    const LinearAttributes *a = call->node->attributes;
    if (dtype == DTYPE_F32 || a->activation == ACTIVATION_NONE) return;
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        cpu_round(dtype, before + range.first, range.end - range.first);
        forward(a, before, y, range, false);
    }
}

CPU_INLINE void backward_step(const float *dy, const float *x, float *dx, Activation activation, bool add,
                              int lanes) {
    lanes_write(dx, lanes_load(dy, lanes) * slope(lanes_load(x, lanes), activation), add, lanes);
}

CPU_INLINE void backward_range(const float *dy, const float *x, float *dx, CpuRange range,
                               Activation activation, bool add) {
    int64_t i = range.first;
    for (; i + VEC_LANES <= range.end; i += VEC_LANES) {
        backward_step(dy + i, x + i, dx + i, activation, add, VEC_LANES);
    }
    if (i < range.end) backward_step(dy + i, x + i, dx + i, activation, add, (int)(range.end - i));
}

void cpu_gelu_slope(const KernelCall *call, int64_t count, const float *dy, const float *x, float *dx,
                    bool add) {
    const LinearAttributes *a = call->node->attributes;
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        if (a->activation == ACTIVATION_GELU_ERF) {
            backward_range(dy, x, dx, range, ACTIVATION_GELU_ERF, add);
        } else {
            backward_range(dy, x, dx, range, ACTIVATION_GELU_TANH, add);
        }
    }
}

Status cpu_gelu_backward(const KernelCall *call, Error *error) {
    (void)error;
    cpu_gelu_slope(call, tensor_count(call->node->output[0]), call->in[0], call->in[1], call->out[0],
                   call->add[0]);
    return STATUS_OK;
}
