/* layernorm: each row is brought to mean 0 and variance 1, then scaled and shifted per channel.
 *
 * A row fits the first- or second-level cache, so reading it three times (mean, variance about the mean,
 * output) costs memory one read; the variance is a sum of squared deviations and loses nothing to
 * cancellation. Backward is one pass over the rows for all three gradients: two sums per row give dx, and the
 * sums over rows that dweight and dbias are go into partial rows, one pair per block of rows. */
#include "backend/cpu/norm_rows.h"
#include "backend/cpu/reduce.h"
#include "ops/ops.h"

/* Four accumulators hide the latency of additions; a lane past the end counts as `fill`, which the caller
 * chooses so that it adds nothing. */
enum { ACCUMULATORS = 4, STRIDE = ACCUMULATORS * VEC_LANES };

static float row_mean(const float *x, int64_t C) {
    vec sum[ACCUMULATORS] = {{0}};
    int64_t i = 0;
    for (; i + STRIDE <= C; i += STRIDE) {
        for (int a = 0; a < ACCUMULATORS; a++) sum[a] += vec_load(x + i + a * VEC_LANES);
    }
    for (; i + VEC_LANES <= C; i += VEC_LANES) sum[0] += vec_load(x + i);
    if (i < C) sum[1] += vec_load_part(x + i, (int)(C - i), 0.0f);
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)C;
}

CPU_INLINE vec add_square(vec sum, vec deviation) {
    return vec_fma(deviation, deviation, sum);
}

static float row_variance(const float *x, int64_t C, float mean) {
    vec sum[ACCUMULATORS] = {{0}}, center = vec_set(mean);
    int64_t i = 0;
    for (; i + STRIDE <= C; i += STRIDE) {
        for (int a = 0; a < ACCUMULATORS; a++)
            sum[a] = add_square(sum[a], vec_load(x + i + a * VEC_LANES) - center);
    }
    for (; i + VEC_LANES <= C; i += VEC_LANES) sum[0] = add_square(sum[0], vec_load(x + i) - center);
    if (i < C) sum[1] = add_square(sum[1], vec_load_part(x + i, (int)(C - i), mean) - center);
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)C;
}

CPU_INLINE void forward_step(const float *x, const float *weight, const float *bias, float mean, float rstd,
                             float *y, bool add, int lanes) {
    vec normal = (lanes_load(x, lanes) - vec_set(mean)) * vec_set(rstd);
    vec value = normal * lanes_load(weight, lanes);
    if (bias) value = vec_fma(normal, lanes_load(weight, lanes), lanes_load(bias, lanes));
    lanes_write(y, value, add, lanes);
}

NormStatistics cpu_layernorm_row(const float *x, const float *weight, const float *bias, float epsilon,
                                 int64_t C, float *y, bool add) {
    float mean = row_mean(x, C);
    float rstd = 1.0f / sqrtf(row_variance(x, C, mean) + epsilon);
    int64_t i = 0;
    for (; i + VEC_LANES <= C; i += VEC_LANES) {
        forward_step(x + i, weight + i, bias ? bias + i : NULL, mean, rstd, y + i, add, VEC_LANES);
    }
    if (i < C) {
        forward_step(x + i, weight + i, bias ? bias + i : NULL, mean, rstd, y + i, add, (int)(C - i));
    }
    return (NormStatistics){mean, rstd};
}

Status cpu_layernorm(const KernelCall *call, Error *error) {
    (void)error;
    const NormAttributes *a = call->node->attributes;
    const float *x = call->in[0], *weight = call->in[1], *bias = call->in[2]; /* (N,C), (C), [(C)] */
    float *y = call->out[0], *means = call->out[1], *rstds = call->out[2];    /* (N,C), (N), (N) */
    int64_t N = shape_rows(call->node->input[0]->shape), C = shape_columns(call->node->input[0]->shape);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *C))
    for (int64_t n = 0; n < N; n++) {
        NormStatistics row =
            cpu_layernorm_row(x + n * C, weight, bias, a->epsilon, C, y + n * C, call->add[0]);
        if (means) means[n] = call->add[1] ? means[n] + row.mean : row.mean;
        if (rstds) rstds[n] = call->add[2] ? rstds[n] + row.rstd : row.rstd;
    }
    return STATUS_OK;
}

/* ---- backward: dx = rstd · (w·dy - mean(w·dy) - x̂ · mean(w·dy·x̂)), dw = Σ_n dy·x̂, db = Σ_n dy ---- */

typedef struct {
    vec plain, normal; /* sums of w·dy and of w·dy·x̂ */
} BackwardSums;

CPU_INLINE void sums_step(const NormBackwardRow *row, int64_t i, BackwardSums *sums, int lanes) {
    vec dy = lanes_load(row->dy + i, lanes);
    vec normal =
        (lanes_load(row->x + i, lanes) - vec_set(row->statistics.mean)) * vec_set(row->statistics.rstd);
    vec scaled = dy * lanes_load(row->weight + i, lanes);
    sums->plain += scaled;
    sums->normal = vec_fma(scaled, normal, sums->normal);
    if (row->dweight) {
        lanes_store(row->dweight + i, vec_fma(dy, normal, lanes_load(row->dweight + i, lanes)), lanes);
    }
    if (row->dbias) lanes_store(row->dbias + i, dy + lanes_load(row->dbias + i, lanes), lanes);
}

CPU_INLINE void dx_step(const NormBackwardRow *row, int64_t i, float plain, float normal_mean, int lanes) {
    vec normal =
        (lanes_load(row->x + i, lanes) - vec_set(row->statistics.mean)) * vec_set(row->statistics.rstd);
    vec rest = vec_fma(lanes_load(row->dy + i, lanes), lanes_load(row->weight + i, lanes), vec_set(-plain));
    vec dx = vec_fma(normal, vec_set(-normal_mean), rest) * vec_set(row->statistics.rstd);
    lanes_write(row->dx + i, dx, row->add, lanes);
}

void cpu_layernorm_backward_row(const NormBackwardRow *shared, int64_t C) {
    NormBackwardRow row = *shared;
    BackwardSums sums[2] = {0};
    int64_t i = 0;
    for (; i + 2 * VEC_LANES <= C; i += 2 * VEC_LANES) {
        sums_step(&row, i, &sums[0], VEC_LANES);
        sums_step(&row, i + VEC_LANES, &sums[1], VEC_LANES);
    }
    for (; i + VEC_LANES <= C; i += VEC_LANES) sums_step(&row, i, &sums[0], VEC_LANES);
    if (i < C) sums_step(&row, i, &sums[1], (int)(C - i));
    if (!row.dx) return;
    float plain = vec_sum(sums[0].plain + sums[1].plain) / (float)C;
    float normal = vec_sum(sums[0].normal + sums[1].normal) / (float)C;
    for (i = 0; i + VEC_LANES <= C; i += VEC_LANES) dx_step(&row, i, plain, normal, VEC_LANES);
    if (i < C) dx_step(&row, i, plain, normal, (int)(C - i));
}

Status cpu_layernorm_backward(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0], *x = call->in[1], *weight = call->in[2]; /* (N,C), (N,C), (C) */
    const float *means = call->in[3], *rstds = call->in[4];                 /* (N), (N) */
    float *dx = call->out[0], *dweight = call->out[1], *dbias = call->out[2];
    int64_t N = shape_rows(call->node->input[0]->shape), C = shape_columns(call->node->input[0]->shape);
    RowBlocks blocks = reduce_blocks(N);
    float *partials = call->scratch; /* (n_blocks, 2, C): dweight, dbias */
    int n_threads = cpu_threads(call, N * C);
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int block = 0; block < blocks.n_blocks; block++) {
        float *partial = partials + block * 2 * C;
        if (dweight || dbias) memset(partial, 0, (size_t)(2 * C) * sizeof(float));
        for (int64_t n = reduce_first(&blocks, block); n < reduce_end(&blocks, block); n++) {
            cpu_layernorm_backward_row(&(NormBackwardRow){.dy = dy + n * C,
                                                          .x = x + n * C,
                                                          .weight = weight,
                                                          .statistics = {means[n], rstds[n]},
                                                          .dx = dx ? dx + n * C : NULL,
                                                          .dweight = dweight ? partial : NULL,
                                                          .dbias = dbias ? partial + C : NULL,
                                                          .add = call->add[0]},
                                       C);
        }
    }
    if (dweight) reduce_partials(partials, blocks.n_blocks, 2 * C, C, dweight, call->add[1], n_threads);
    if (dbias) reduce_partials(partials + C, blocks.n_blocks, 2 * C, C, dbias, call->add[2], n_threads);
    return STATUS_OK;
}

size_t cpu_layernorm_backward_scratch(const Node *node, int n_threads) {
    (void)n_threads;
    RowBlocks blocks = reduce_blocks(shape_rows(node->input[0]->shape));
    return (size_t)(blocks.n_blocks * 2 * shape_columns(node->input[0]->shape)) * sizeof(float);
}
