/* pack: runs of memory, of which each thread takes some. */
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

CPU_INLINE void pack_add_step(const float *x, float *y, int lanes) {
    lanes_write(y, lanes_load(x, lanes), true, lanes);
}

static void move_run(const float *x, float *y, int64_t n, bool add) {
    int64_t i = 0;
    if (!add) {
        memcpy(y, x, (size_t)n * sizeof(float));
        return;
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) pack_add_step(x + i, y + i, VEC_LANES);
    if (i < n) pack_add_step(x + i, y + i, (int)(n - i));
}

Status cpu_pack(const KernelCall *call, Error *error) {
    (void)error;
    const PackAttributes *a = call->node->attributes;
    const float *x = call->in[0]; /* (N) */
    float *y = call->out[0];      /* (N) */
    int64_t size = a->part[a->n_parts], count = tensor_count(call->node->output[0]);
    if (!count) return STATUS_OK;
#pragma omp parallel for collapse(2) schedule(static) num_threads(cpu_threads(call, count))
    for (int part = 0; part < a->n_parts; part++) {
        for (int64_t o = 0; o < a->outer; o++) {
            int64_t width = (a->part[part + 1] - a->part[part]) * a->inner;
            int64_t packed = a->outer * a->part[part] * a->inner + o * width;
            for (int i = part; i < a->n_parts * a->n_pieces; i += a->n_parts) {
                int64_t run = (a->border[i + 1] - a->border[i]) * a->inner;
                int64_t plain = (o * size + a->border[i]) * a->inner;
                move_run(x + (a->inverse ? packed : plain), y + (a->inverse ? plain : packed), run,
                         call->add[0]);
                packed += run;
            }
        }
    }
    return STATUS_OK;
}
