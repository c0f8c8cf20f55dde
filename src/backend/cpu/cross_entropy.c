/* cross_entropy: the loss of every row of logits, and, when asked, its gradient in the same visit.
 *
 * A row is read from memory once, in chunks that fit the first-level cache: a chunk's greatest logit raises
 * the row's, the chunk's exponentials relative to it are summed and, if a gradient is wanted, left in its
 * place. The second pass only multiplies: by one factor per chunk, which corrects for a maximum that rose
 * later and carries the softmax's denominator. The row then still lies in the second-level cache (200 kB for
 * GPT-2's vocabulary). dlogits may be the memory of the logits. Padding columns behind the classes are not
 * read, and get a gradient of 0.
 *
 * vec_exp and vec_max swallow NaN, so the first pass looks for it; a row with a NaN, or whose greatest logit
 * is infinite, has a NaN loss and gradient, as plain arithmetic would give. */
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

enum { MAX_CHUNKS = 256, MIN_CHUNK = 1024 };

static int64_t chunk_size(int64_t V) {
    int64_t size = (V + MAX_CHUNKS - 1) / MAX_CHUNKS;
    return size < MIN_CHUNK ? MIN_CHUNK : (size + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
}

static float chunk_max(const float *x, int64_t n) {
    enum { ACCUMULATORS = 4, STRIDE = ACCUMULATORS * VEC_LANES };
    vec greatest[ACCUMULATORS];
    veci unordered = {0};
    for (int a = 0; a < ACCUMULATORS; a++) greatest[a] = vec_set(-INFINITY);
    int64_t i = 0;
    for (; i + STRIDE <= n; i += STRIDE) {
        for (int a = 0; a < ACCUMULATORS; a++) {
            vec v = vec_load(x + i + a * VEC_LANES);
            unordered |= v != v;
            greatest[a] = vec_max(greatest[a], v);
        }
    }
    for (; i < n; i += VEC_LANES) {
        vec v = n - i >= VEC_LANES ? vec_load(x + i) : vec_load_part(x + i, (int)(n - i), -INFINITY);
        unordered |= v != v;
        greatest[0] = vec_max(greatest[0], v);
    }
    for (int lane = 0; lane < VEC_LANES; lane++) {
        if (unordered[lane]) return NAN;
    }
    return vec_max_lane(vec_max(vec_max(greatest[0], greatest[1]), vec_max(greatest[2], greatest[3])));
}

/* Σ e^(x-max) over a chunk; `exponentials`, if not NULL, takes the terms. */
CPU_INLINE double chunk_sum(const float *x, int64_t n, float max, float *exponentials) {
    vec sum[2] = {{0}}, shift = vec_set(max);
    int64_t i = 0;
    for (; i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        vec first = vec_exp(vec_load(x + i) - shift), second = vec_exp(vec_load(x + i + VEC_LANES) - shift);
        sum[0] += first;
        sum[1] += second;
        if (exponentials) vec_store(exponentials + i, first);
        if (exponentials) vec_store(exponentials + i + VEC_LANES, second);
    }
    for (; i < n; i += VEC_LANES) {
        int lanes = n - i < VEC_LANES ? (int)(n - i) : VEC_LANES;
        vec v = lanes == VEC_LANES ? vec_load(x + i) : vec_load_part(x + i, lanes, -INFINITY);
        vec term = vec_exp(v - shift);
        sum[0] += term;
        if (exponentials) lanes_store(exponentials + i, term, lanes);
    }
    return (double)vec_sum(sum[0] + sum[1]);
}

CPU_INLINE void scale_step(float *x, float factor, int lanes) {
    lanes_store(x, lanes_load(x, lanes) * vec_set(factor), lanes);
}

static void scale_chunk(float *x, int64_t n, float factor) {
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) scale_step(x + i, factor, VEC_LANES);
    if (i < n) scale_step(x + i, factor, (int)(n - i));
}

/* The loss of one row; gradient (V), if not NULL, becomes gradient_scale · (softmax - onehot). */
static float row_loss(const float *logits, int64_t V, int64_t target, float *gradient, float gradient_scale) {
    float chunk_maximum[MAX_CHUNKS] = {0}, max = -INFINITY;
    double sum = 0.0, target_logit = (double)logits[target];
    int64_t size = chunk_size(V);
    bool broken = false;
    for (int64_t c = 0; c * size < V; c++) {
        int64_t first = c * size, n = V - first < size ? V - first : size;
        float greatest = chunk_max(logits + first, n);
        broken |= isnan(greatest) || greatest == INFINITY;
        if (greatest > max) {
            sum *= exp((double)max - (double)greatest);
            max = greatest;
        }
        /* Before the first finite logit there is nothing to measure against; every term is zero then. */
        chunk_maximum[c] = isfinite(max) ? max : 0.0f;
        sum += gradient ? chunk_sum(logits + first, n, chunk_maximum[c], gradient + first)
                        : chunk_sum(logits + first, n, chunk_maximum[c], NULL);
    }
    if (broken || !isfinite(max)) sum = (double)NAN;
    for (int64_t c = 0; gradient && c * size < V; c++) {
        int64_t first = c * size, n = V - first < size ? V - first : size;
        double factor = exp((double)chunk_maximum[c] - (double)max) / sum * (double)gradient_scale;
        scale_chunk(gradient + first, n, (float)factor);
    }
    if (gradient) gradient[target] -= gradient_scale;
    return (float)(log(sum) + (double)max - target_logit);
}

static Status check_targets(const int32_t *targets, int64_t N, int64_t n_all, Error *error) {
    for (int64_t n = 0; n < N; n++) {
        if (targets[n] < n_all) continue;
        return error_failed(error, "cross_entropy: target %lld is not one of %lld classes",
                            (long long)targets[n], (long long)n_all);
    }
    return STATUS_OK;
}

Status cpu_cross_entropy(const KernelCall *call, Error *error) {
    const CrossEntropyAttributes *a = call->node->attributes;
    const float *logits = call->in[0];                     /* (N,V) */
    const int32_t *targets = call->in[1];                  /* (N) */
    float *losses = call->out[0], *dlogits = call->out[1]; /* (N), [(N,V)] */
    const float *scale = call->in[2];                      /* [(1)] */
    float gradient_scale = a->gradient_scale * (scale ? *scale : 1.0f);
    int64_t N = shape_rows(call->node->input[0]->shape), V = a->n_classes;
    int64_t width = shape_columns(call->node->input[0]->shape);
    TRY(check_targets(targets, N, V, error));
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *V))
    for (int64_t n = 0; n < N; n++) {
        float *gradient = dlogits ? dlogits + n * width : NULL, loss = 0.0f;
        bool counts = targets[n] >= 0;
        if (counts) loss = row_loss(logits + n * width, V, targets[n], gradient, gradient_scale);
        int64_t first_zero = counts ? V : 0;
        if (gradient) memset(gradient + first_zero, 0, (size_t)(width - first_zero) * sizeof(float));
        losses[n] = loss;
    }
    return STATUS_OK;
}

/* ---- of a vocabulary that is split among ranks ---- */

/* The greatest of a row's logits and Σ e^(logit - greatest); a row that has no finite greatest has a sum that
 * is no number, but where all are -inf: those of other ranks may count. */
static void row_part(const float *logits, int64_t V, float *max, float *sum) {
    int64_t size = chunk_size(V);
    double total = 0.0;
    bool broken = false;
    *max = -INFINITY;
    for (int64_t first = 0; first < V; first += size) {
        int64_t n = V - first < size ? V - first : size;
        float greatest = chunk_max(logits + first, n);
        broken |= isnan(greatest) || greatest == INFINITY;
        if (greatest > *max) {
            total *= exp((double)*max - (double)greatest);
            *max = greatest;
        }
        if (isfinite(*max)) total += chunk_sum(logits + first, n, *max, NULL);
    }
    *sum = broken ? NAN : (float)total;
}

Status cpu_split_entropy_part(const KernelCall *call, Error *error) {
    const SplitEntropyAttributes *a = call->node->attributes;
    const float *logits = call->in[0];    /* (N,V/n) */
    const int32_t *targets = call->in[1]; /* (N) */
    float *parts = call->out[0];          /* (N,3) */
    int64_t N = shape_rows(call->node->input[0]->shape), V = a->n_classes;
    int64_t width = shape_columns(call->node->input[0]->shape);
    TRY(check_targets(targets, N, a->n_all, error));
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *V))
    for (int64_t n = 0; n < N; n++) {
        float *part = parts + n * ENTROPY_PARTS;
        int64_t target = targets[n] - a->first_class;
        row_part(logits + n * width, V, &part[0], &part[1]);
        part[2] = target >= 0 && target < V ? logits[n * width + target] : 0.0f;
    }
    return STATUS_OK;
}

/* The parts of one row, put together. */
typedef struct {
    double max, sum, target_logit;
} RowParts;

static RowParts join_parts(const float *parts, int64_t n_parts, int64_t N, int64_t n) {
    RowParts all = {.max = -INFINITY};
    for (int64_t r = 0; r < n_parts; r++) all.max = fmax(all.max, (double)parts[(r * N + n) * ENTROPY_PARTS]);
    for (int64_t r = 0; r < n_parts; r++) {
        const float *part = parts + (r * N + n) * ENTROPY_PARTS;
        all.sum += part[1] > 0.0f ? (double)part[1] * exp((double)part[0] - all.max) : (double)part[1];
        all.target_logit += (double)part[2];
    }
    if (!isfinite(all.max)) all.sum = (double)NAN;
    return all;
}

Status cpu_split_entropy(const KernelCall *call, Error *error) {
    const SplitEntropyAttributes *a = call->node->attributes;
    const float *logits = call->in[0], *parts = call->in[2], *scale = call->in[3]; /* (N,V/n) (n,N,3) [(1)] */
    const int32_t *targets = call->in[1];                                          /* (N) */
    float *losses = call->out[0], *dlogits = call->out[1];                         /* (N), [(N,V/n)] */
    float gradient_scale = a->gradient_scale * (scale ? *scale : 1.0f);
    int64_t N = shape_rows(call->node->input[0]->shape), V = a->n_classes;
    int64_t width = shape_columns(call->node->input[0]->shape), n_parts = call->node->input[2]->shape.dim[0];
    TRY(check_targets(targets, N, a->n_all, error));
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *V))
    for (int64_t n = 0; n < N; n++) {
        RowParts row = join_parts(parts, n_parts, N, n);
        bool counts = targets[n] >= 0;
        losses[n] = counts ? (float)(log(row.sum) + row.max - row.target_logit) : 0.0f;
        if (!dlogits) continue;
        float *gradient = dlogits + n * width;
        int64_t target = targets[n] - a->first_class, first_zero = counts ? V : 0;
        if (counts && V) {
            chunk_sum(logits + n * width, V, isfinite(row.max) ? (float)row.max : 0.0f, gradient);
            scale_chunk(gradient, V, (float)((double)gradient_scale / row.sum));
        }
        memset(gradient + first_zero, 0, (size_t)(width - first_zero) * sizeof(float));
        if (counts && target >= 0 && target < V) gradient[target] -= gradient_scale;
    }
    return STATUS_OK;
}
