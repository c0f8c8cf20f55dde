/* swiglu: the first half of a row, through silu, gates the second half.
 *
 * With s = 1/(1+e^-a):  y = a·s·b,  da = dy·b·s·(1 + a·(1-s)),  db = dy·a·s. Both elements of a pair are read
 * before either is written, so dx may replace x. */
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

CPU_INLINE void forward_step(const float *gate, const float *value, float *y, bool add, int lanes) {
    vec a = lanes_load(gate, lanes), rest;
    lanes_write(y, a * vec_sigmoid(a, &rest) * lanes_load(value, lanes), add, lanes);
}

Status cpu_swiglu(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0]; /* (N,2F) */
    float *y = call->out[0];      /* (N,F) */
    int64_t N = shape_rows(call->node->output[0]->shape), F = shape_columns(call->node->output[0]->shape);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *F))
    for (int64_t n = 0; n < N; n++) {
        const float *gate = x + n * 2 * F, *value = gate + F;
        float *out = y + n * F;
        int64_t i = 0;
        for (; i + VEC_LANES <= F; i += VEC_LANES) {
            forward_step(gate + i, value + i, out + i, call->add[0], VEC_LANES);
        }
        if (i < F) forward_step(gate + i, value + i, out + i, call->add[0], (int)(F - i));
    }
    return STATUS_OK;
}

CPU_INLINE void backward_step(const float *dy, const float *gate, const float *value, float *dgate,
                              float *dvalue, bool add, int lanes) {
    vec g = lanes_load(dy, lanes), a = lanes_load(gate, lanes), b = lanes_load(value, lanes);
    vec rest, s = vec_sigmoid(a, &rest), scaled = g * s;
    lanes_write(dgate, scaled * b * vec_fma(a, rest, vec_set(1.0f)), add, lanes);
    lanes_write(dvalue, scaled * a, add, lanes);
}

Status cpu_swiglu_backward(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0], *x = call->in[1]; /* (N,F), (N,2F) */
    float *dx = call->out[0];                        /* (N,2F) */
    int64_t N = shape_rows(call->node->input[0]->shape), F = shape_columns(call->node->input[0]->shape);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *F))
    for (int64_t n = 0; n < N; n++) {
        const float *gradient = dy + n * F, *row = x + n * 2 * F;
        float *out = dx + n * 2 * F;
        int64_t i = 0;
        for (; i + VEC_LANES <= F; i += VEC_LANES) {
            backward_step(gradient + i, row + i, row + F + i, out + i, out + F + i, call->add[0], VEC_LANES);
        }
        if (i < F) {
            backward_step(gradient + i, row + i, row + F + i, out + i, out + F + i, call->add[0],
                          (int)(F - i));
        }
    }
    return STATUS_OK;
}
