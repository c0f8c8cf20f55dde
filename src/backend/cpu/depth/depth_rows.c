/* depth_gather, depth_scatter and their backward: rows are moved and added up. What goes by is not touched
 * wherever the stream stays in its place, so that most of these cost what the chosen rows do. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/reduce.h"
#include "ops/depth/depth.h"

typedef struct {
    int64_t first_row, N, B, T, K, C;
} Sizes;

static Sizes sizes_of(const Node *node, const Tensor *x, const Tensor *rows, const Tensor *slot) {
    return (Sizes){.first_row = ((const DepthRowsAttributes *)node->attributes)->first_row,
                   .N = shape_rows(x->shape),
                   .B = rows->shape.dim[0],
                   .T = slot->shape.dim[1],
                   .K = rows->shape.dim[1],
                   .C = shape_columns(x->shape)};
}

/* The row of x behind chosen row i; -1: another rank's. And the chosen row that row n of x is; -1: none. */
static int64_t row_of(const Sizes *s, const int32_t *rows, int64_t i) {
    return depth_row_here(s->first_row, s->N, s->T, i / s->K, rows[i]);
}

static int64_t chosen_of(const Sizes *s, const int32_t *slot, int64_t n) {
    int64_t at = s->first_row + n;
    return slot[at] < 0 ? -1 : at / s->T * s->K + slot[at];
}

CPU_INLINE void axpy_step(const float *x, float factor, const float *y, float *out, bool add, int lanes) {
    vec sum = vec_set(factor) * lanes_load(x, lanes);
    if (y) sum = vec_fma(vec_set(factor), lanes_load(x, lanes), lanes_load(y, lanes));
    lanes_write(out, sum, add, lanes);
}

/* out = or += factor·x + [y]; out may be y. */
static void axpy_row(const float *x, float factor, const float *y, int64_t C, float *out, bool add) {
    int64_t i = 0;
    for (; i + VEC_LANES <= C; i += VEC_LANES)
        axpy_step(x + i, factor, y ? y + i : NULL, out + i, add, VEC_LANES);
    if (i < C) axpy_step(x + i, factor, y ? y + i : NULL, out + i, add, (int)(C - i));
}

/* out = or += x. */
static void copy_row(const float *x, int64_t C, float *out, bool add) {
    for (int64_t i = 0; add && i < C; i++) out[i] += x[i];
    if (!add) memcpy(out, x, (size_t)C * sizeof(float));
}

CPU_INLINE vec dot_step(vec sum, const float *x, const float *y, int lanes) {
    return vec_fma(lanes_load(x, lanes), lanes_load(y, lanes), sum);
}

static float dot_row(const float *x, const float *y, int64_t C) {
    vec sum[2] = {{0}};
    int64_t i = 0;
    for (; i + 2 * VEC_LANES <= C; i += 2 * VEC_LANES) {
        sum[0] = dot_step(sum[0], x + i, y + i, VEC_LANES);
        sum[1] = dot_step(sum[1], x + i + VEC_LANES, y + i + VEC_LANES, VEC_LANES);
    }
    for (; i + VEC_LANES <= C; i += VEC_LANES) sum[0] = dot_step(sum[0], x + i, y + i, VEC_LANES);
    if (i < C) sum[1] = dot_step(sum[1], x + i, y + i, (int)(C - i));
    return vec_sum(sum[0] + sum[1]);
}

static void clear_row(float *out, int64_t C, bool add) {
    if (!add) memset(out, 0, (size_t)C * sizeof(float));
}

Status cpu_depth_gather(const KernelCall *call, Error *error) {
    (void)error;
    const Node *node = call->node;
    Sizes s = sizes_of(node, node->input[0], node->input[2], node->input[3]);
    const float *x = call->in[0], *score = call->in[1]; /* (N,C), (B,T) */
    const int32_t *rows = call->in[2];                  /* (B,K) */
    float *chosen = call->out[0], *gate = call->out[1]; /* (B,K,C), (B,K) */
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, s.B *s.K *s.C))
    for (int64_t i = 0; i < s.B * s.K; i++) {
        int64_t row = row_of(&s, rows, i);
        float r = score[i / s.K * s.T + rows[i]];
        if (row < 0) clear_row(chosen + i * s.C, s.C, call->add[0]);
        else copy_row(x + row * s.C, s.C, chosen + i * s.C, call->add[0]);
        gate[i] = call->add[1] ? gate[i] + r : r;
    }
    return STATUS_OK;
}

Status cpu_depth_gather_backward(const KernelCall *call, Error *error) {
    (void)error;
    const Node *node = call->node;
    Sizes s = sizes_of(node, node->output[0], node->input[3], node->input[4]);
    const float *dchosen = call->in[0], *dgate = call->in[1], *router = call->in[2]; /* (B,K,C), (B,K), (C) */
    const int32_t *slot = call->in[4];                                               /* (B,T) */
    float *dx = call->out[0];                                                        /* (N,C) */
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, s.N *s.C))
    for (int64_t n = 0; n < s.N; n++) {
        int64_t j = chosen_of(&s, slot, n);
        const float *own = j >= 0 && dchosen ? dchosen + j * s.C : NULL;
        if (j < 0) clear_row(dx + n * s.C, s.C, call->add[0]);
        else if (dgate) axpy_row(router, dgate[j], own, s.C, dx + n * s.C, call->add[0]);
        else copy_row(own, s.C, dx + n * s.C, call->add[0]);
    }
    return STATUS_OK;
}

/* ---- Σ over rows of weight · row, by blocks of rows ---- */

Status cpu_depth_router_gradient(const KernelCall *call, Error *error) {
    (void)error;
    const float *dgate = call->in[0], *chosen = call->in[1]; /* (N), (N,C) */
    int64_t N = shape_rows(call->node->input[1]->shape), C = shape_columns(call->node->input[1]->shape);
    RowBlocks blocks = reduce_blocks(N);
    float *partials = call->scratch; /* (n_blocks, C) */
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *C))
    for (int block = 0; block < blocks.n_blocks; block++) {
        float *sum = partials + block * C;
        memset(sum, 0, (size_t)C * sizeof(float));
        for (int64_t n = reduce_first(&blocks, block); n < reduce_end(&blocks, block); n++)
            axpy_row(chosen + n * C, dgate[n], sum, C, sum, false);
    }
    reduce_partials(partials, blocks.n_blocks, C, C, call->out[0], call->add[0], call->n_threads);
    return STATUS_OK;
}

size_t cpu_depth_router_gradient_scratch(const Node *node, int n_threads) {
    (void)n_threads;
    Shape shape = node->input[1]->shape;
    return (size_t)(reduce_blocks(shape_rows(shape)).n_blocks * shape_columns(shape)) * sizeof(float);
}

/* ---- scatter ---- */

Status cpu_depth_scatter(const KernelCall *call, Error *error) {
    (void)error;
    const Node *node = call->node;
    Sizes s = sizes_of(node, node->input[0], node->input[3], node->input[4]);
    const float *x = call->in[0], *made = call->in[1], *gate = call->in[2]; /* (N,C), (B,K,C), (B,K) */
    const int32_t *slot = call->in[4];                                      /* (B,T) */
    float *y = call->out[0];                                                /* (N,C) */
    bool is_there = x == y && !call->add[0];
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, s.N *s.C))
    for (int64_t n = 0; n < s.N; n++) {
        int64_t j = chosen_of(&s, slot, n);
        if (j >= 0) axpy_row(made + j * s.C, gate[j], x + n * s.C, s.C, y + n * s.C, call->add[0]);
        else if (!is_there) copy_row(x + n * s.C, s.C, y + n * s.C, call->add[0]);
    }
    return STATUS_OK;
}

Status cpu_depth_scatter_backward(const KernelCall *call, Error *error) {
    (void)error;
    const Node *node = call->node;
    Sizes s = sizes_of(node, node->input[0], node->input[3], node->input[4]);
    const float *dy = call->in[0], *made = call->in[1], *gate = call->in[2]; /* (N,C), (B,K,C), (B,K) */
    const int32_t *rows = call->in[3];                                       /* (B,K) */
    float *dmade = call->out[0], *dgate = call->out[1];                      /* (B,K,C), (B,K) */
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, s.B *s.K *s.C))
    for (int64_t i = 0; i < s.B * s.K; i++) {
        int64_t row = row_of(&s, rows, i);
        float d = row < 0 ? 0.0f : dot_row(dy + row * s.C, made + i * s.C, s.C);
        if (dgate) dgate[i] = call->add[1] ? dgate[i] + d : d;
        if (!dmade) continue;
        if (row < 0) clear_row(dmade + i * s.C, s.C, call->add[0]);
        else axpy_row(dy + row * s.C, gate[i], NULL, s.C, dmade + i * s.C, call->add[0]);
    }
    return STATUS_OK;
}
