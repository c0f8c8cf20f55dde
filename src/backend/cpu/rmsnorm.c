/* rmsnorm: layernorm without the mean and the shift: y = x / rms(x) · weight.
 *
 * The same plan as layernorm.c: the row stays in cache between the pass that measures it and the pass that
 * writes, and one pass over the rows gives both gradients. */
#include "backend/cpu/norm_rows.h"
#include "backend/cpu/reduce.h"
#include "ops/ops.h"

enum { ACCUMULATORS = 4, STRIDE = ACCUMULATORS * VEC_LANES };

CPU_INLINE vec add_square(vec sum, vec x) {
    return vec_fma(x, x, sum);
}

static float mean_square(const float *x, int64_t C) {
    vec sum[ACCUMULATORS] = {{0}};
    int64_t i = 0;
    for (; i + STRIDE <= C; i += STRIDE) {
        for (int a = 0; a < ACCUMULATORS; a++) sum[a] = add_square(sum[a], vec_load(x + i + a * VEC_LANES));
    }
    for (; i + VEC_LANES <= C; i += VEC_LANES) sum[0] = add_square(sum[0], vec_load(x + i));
    if (i < C) sum[1] = add_square(sum[1], vec_load_part(x + i, (int)(C - i), 0.0f));
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)C;
}

CPU_INLINE void forward_step(const float *x, const float *weight, float rstd, float *y, bool add, int lanes) {
    lanes_write(y, lanes_load(x, lanes) * vec_set(rstd) * lanes_load(weight, lanes), add, lanes);
}

NormStatistics cpu_rmsnorm_row(const float *x, const float *weight, float epsilon, int64_t C, float *y,
                               bool add) {
    float rstd = 1.0f / sqrtf(mean_square(x, C) + epsilon);
    int64_t i = 0;
    for (; i + VEC_LANES <= C; i += VEC_LANES) forward_step(x + i, weight + i, rstd, y + i, add, VEC_LANES);
    if (i < C) forward_step(x + i, weight + i, rstd, y + i, add, (int)(C - i));
    return (NormStatistics){0.0f, rstd};
}

Status cpu_rmsnorm(const KernelCall *call, Error *error) {
    (void)error;
    const NormAttributes *a = call->node->attributes;
    const float *x = call->in[0], *weight = call->in[1]; /* (N,C), (C) */
    float *y = call->out[0], *rstds = call->out[1];      /* (N,C), (N) */
    int64_t N = shape_rows(call->node->input[0]->shape), C = shape_columns(call->node->input[0]->shape);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *C))
    for (int64_t n = 0; n < N; n++) {
        float rstd = cpu_rmsnorm_row(x + n * C, weight, a->epsilon, C, y + n * C, call->add[0]).rstd;
        if (rstds) rstds[n] = call->add[1] ? rstds[n] + rstd : rstd;
    }
    return STATUS_OK;
}

/* ---- backward: dx = rstd · (w·dy - x̂ · mean(w·dy·x̂)), dw = Σ_n dy·x̂, with x̂ = x·rstd ---- */

CPU_INLINE vec sum_step(const NormBackwardRow *row, int64_t i, vec sum, int lanes) {
    vec product =
        lanes_load(row->dy + i, lanes) * (lanes_load(row->x + i, lanes) * vec_set(row->statistics.rstd));
    if (row->dweight) lanes_store(row->dweight + i, product + lanes_load(row->dweight + i, lanes), lanes);
    return vec_fma(product, lanes_load(row->weight + i, lanes), sum);
}

CPU_INLINE void dx_step(const NormBackwardRow *row, int64_t i, float mean, int lanes) {
    vec scaled = lanes_load(row->dy + i, lanes) * lanes_load(row->weight + i, lanes);
    vec normal = lanes_load(row->x + i, lanes) * vec_set(row->statistics.rstd);
    lanes_write(row->dx + i, vec_fma(normal, vec_set(-mean), scaled) * vec_set(row->statistics.rstd),
                row->add, lanes);
}

void cpu_rmsnorm_backward_row(const NormBackwardRow *shared, int64_t C) {
    NormBackwardRow row = *shared;
    vec sum[2] = {{0}};
    int64_t i = 0;
    for (; i + 2 * VEC_LANES <= C; i += 2 * VEC_LANES) {
        sum[0] = sum_step(&row, i, sum[0], VEC_LANES);
        sum[1] = sum_step(&row, i + VEC_LANES, sum[1], VEC_LANES);
    }
    for (; i + VEC_LANES <= C; i += VEC_LANES) sum[0] = sum_step(&row, i, sum[0], VEC_LANES);
    if (i < C) sum[1] = sum_step(&row, i, sum[1], (int)(C - i));
    if (!row.dx) return;
    float mean = vec_sum(sum[0] + sum[1]) / (float)C;
    for (i = 0; i + VEC_LANES <= C; i += VEC_LANES) dx_step(&row, i, mean, VEC_LANES);
    if (i < C) dx_step(&row, i, mean, (int)(C - i));
}

Status cpu_rmsnorm_backward(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0], *x = call->in[1], *weight = call->in[2]; /* (N,C), (N,C), (C) */
    const float *rstds = call->in[3];                                       /* (N) */
    float *dx = call->out[0], *dweight = call->out[1];
    int64_t N = shape_rows(call->node->input[0]->shape), C = shape_columns(call->node->input[0]->shape);
    RowBlocks blocks = reduce_blocks(N);
    float *partials = call->scratch; /* (n_blocks, C) */
    int n_threads = cpu_threads(call, N * C);
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int block = 0; block < blocks.n_blocks; block++) {
        float *partial = dweight ? partials + block * C : NULL;
        if (partial) memset(partial, 0, (size_t)C * sizeof(float));
        for (int64_t n = reduce_first(&blocks, block); n < reduce_end(&blocks, block); n++) {
            cpu_rmsnorm_backward_row(&(NormBackwardRow){.dy = dy + n * C,
                                                        .x = x + n * C,
                                                        .weight = weight,
                                                        .statistics = {.rstd = rstds[n]},
                                                        .dx = dx ? dx + n * C : NULL,
                                                        .dweight = partial,
                                                        .add = call->add[0]},
                                     C);
        }
    }
    if (dweight) reduce_partials(partials, blocks.n_blocks, C, C, dweight, call->add[1], n_threads);
    return STATUS_OK;
}

size_t cpu_rmsnorm_backward_scratch(const Node *node, int n_threads) {
    (void)n_threads;
    RowBlocks blocks = reduce_blocks(shape_rows(node->input[0]->shape));
    return (size_t)(blocks.n_blocks * shape_columns(node->input[0]->shape)) * sizeof(float);
}
