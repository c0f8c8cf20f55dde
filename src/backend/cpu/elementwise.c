/* add, copy and zero: nothing to compute, so all that counts is that memory is read and written once, by all
 * threads. */
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

CPU_INLINE void add_step(const float *a, const float *b, float *y, bool add, int lanes) {
    lanes_write(y, lanes_load(a, lanes) + lanes_load(b, lanes), add, lanes);
}

Status cpu_add(const KernelCall *call, Error *error) {
    (void)error;
    const float *a = call->in[0], *b = call->in[1]; /* (N) */
    float *y = call->out[0];                        /* (N) */
    int64_t count = tensor_count(call->node->output[0]);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        int64_t i = range.first;
        for (; i + VEC_LANES <= range.end; i += VEC_LANES)
            add_step(a + i, b + i, y + i, call->add[0], VEC_LANES);
        if (i < range.end) add_step(a + i, b + i, y + i, call->add[0], (int)(range.end - i));
    }
    return STATUS_OK;
}

CPU_INLINE void copy_add_step(const float *x, float *y, int lanes) {
    lanes_write(y, lanes_load(x, lanes), true, lanes);
}

Status cpu_copy(const KernelCall *call, Error *error) {
    (void)error;
    const Tensor *output = call->node->output[0];
    int64_t count = tensor_count(output);
    size_t n_bytes = cpu_is_plain_copy(call->node) ? dtype_info(output->dtype)->n_bytes : sizeof(float);
    const char *from = call->in[0];
    char *to = call->out[0];
    if (!count) return STATUS_OK; /* there need not be any memory */
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        if (!call->add[0]) {
            size_t first = (size_t)range.first * n_bytes;
            if (to != from) memcpy(to + first, from + first, (size_t)(range.end - range.first) * n_bytes);
            continue;
        }
        const float *x = call->in[0]; /* (N): only floats are ever summed */
        float *y = call->out[0];      /* (N) */
        int64_t i = range.first;
        for (; i + VEC_LANES <= range.end; i += VEC_LANES) copy_add_step(x + i, y + i, VEC_LANES);
        if (i < range.end) copy_add_step(x + i, y + i, (int)(range.end - i));
    }
    return STATUS_OK;
}

Status cpu_zero(const KernelCall *call, Error *error) {
    (void)error;
    float *y = call->out[0]; /* (N) */
    int64_t count = call->add[0] ? 0 : tensor_count(call->node->output[0]);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        memset(y + range.first, 0, (size_t)(range.end - range.first) * sizeof *y);
    }
    return STATUS_OK;
}
