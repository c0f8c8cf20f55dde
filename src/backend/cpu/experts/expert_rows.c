/* Rows to experts and back: sorted by counting, then moved row by row. A thread has tokens (or rows) of its
 * own. */
#include "backend/cpu/kernels.h"
#include "ops/experts/experts.h"

Status cpu_expert_sort(const KernelCall *call, Error *error) {
    const ExpertSortAttributes *a = call->node->attributes;
    const int32_t *choice = call->in[0]; /* (N,S) */
    int32_t *slot = call->out[0] /* (N,S) */, *source = call->out[1] /* (M) */, *offsets = call->out[2];
    int64_t count = tensor_count(call->node->input[0]);
    int E = a->n_experts;
    int32_t next[ROUTE_MAX_EXPERTS];
    memset(offsets, 0, (size_t)(E + 1) * sizeof *offsets);
    for (int64_t i = 0; i < count; i++)
        if (choice[i] >= 0) offsets[choice[i] + 1]++;
    for (int e = 0; e < E; e++) offsets[e + 1] += offsets[e];
    if (offsets[E] > a->n_rows)
        return error_failed(error, "expert_sort: %d choices where there is room for %lld", offsets[E],
                            (long long)a->n_rows);
    memcpy(next, offsets, (size_t)E * sizeof *next);
    for (int64_t i = 0; i < count; i++) {
        slot[i] = choice[i] < 0 ? -1 : next[choice[i]]++;
        if (slot[i] >= 0) source[slot[i]] = (int32_t)i;
    }
    for (int64_t m = offsets[E]; m < a->n_rows; m++) source[m] = -1;
    return STATUS_OK;
}

CPU_INLINE void add_scaled_step(float *to, const float *from, float factor, bool is_first, int lanes) {
    vec product = vec_set(factor) * lanes_load(from, lanes);
    lanes_store(to, is_first ? product : lanes_load(to, lanes) + product, lanes);
}

/* to (C) = or += factor · from. */
static void add_scaled(float *to, const float *from, float factor, bool is_first, int64_t C) {
    int64_t c = 0;
    for (; c + VEC_LANES <= C; c += VEC_LANES) add_scaled_step(to + c, from + c, factor, is_first, VEC_LANES);
    if (c < C) add_scaled_step(to + c, from + c, factor, is_first, (int)(C - c));
}

static float dot(const float *a, const float *b, int64_t C) {
    vec sums[2] = {{0}, {0}};
    int64_t c = 0;
    for (; c + 2 * VEC_LANES <= C; c += 2 * VEC_LANES)
        for (int i = 0; i < 2; i++)
            sums[i] = vec_fma(vec_load(a + c + i * VEC_LANES), vec_load(b + c + i * VEC_LANES), sums[i]);
    float sum = vec_sum(sums[0] + sums[1]);
    for (; c < C; c++) sum += a[c] * b[c];
    return sum;
}

/* A token's choices that are there: their rows and factors. */
typedef struct {
    const float *row[ROUTE_MAX_EXPERTS];
    float factor[ROUTE_MAX_EXPERTS];
    int n;
} Addends;

CPU_INLINE void sum_step(const Addends *of, int64_t c, float *y, bool add, int lanes) {
    vec sum = vec_set(of->factor[0]) * lanes_load(of->row[0] + c, lanes);
    if (add)
        sum = vec_fma(vec_set(of->factor[0]), lanes_load(of->row[0] + c, lanes), lanes_load(y + c, lanes));
    for (int i = 1; i < of->n; i++)
        sum = vec_fma(vec_set(of->factor[i]), lanes_load(of->row[i] + c, lanes), sum);
    lanes_store(y + c, sum, lanes);
}

/* y (C) = or += Σ factor · row, in the order of the choices; y is written once. */
static void sum_addends(const Addends *of, float *y, bool add, int64_t C) {
    int64_t c = 0;
    for (; c + VEC_LANES <= C; c += VEC_LANES) sum_step(of, c, y, add, VEC_LANES);
    if (c < C) sum_step(of, c, y, add, (int)(C - c));
}

/* y[n] = Σ_s factor · rows[slot[n,s]], 0 where there is none. gates NULL: factors of 1. */
static void sum_choices(const KernelCall *call, const float *rows, const float *gates, const int32_t *slot,
                        int64_t N, int64_t S, int64_t C, float *y) {
    int n_threads = cpu_threads(call, N * S * C);
    (void)n_threads; /* nobody reads it in a build without OpenMP */
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t n = 0; n < N; n++) {
        Addends of;
        of.n = 0;
        for (int64_t s = 0; s < S; s++) {
            int64_t m = slot[n * S + s];
            if (m < 0) continue;
            of.row[of.n] = rows + m * C;
            of.factor[of.n++] = gates ? gates[n * S + s] : 1.0f;
        }
        if (of.n) sum_addends(&of, y + n * C, call->add[0], C);
        else if (!call->add[0]) memset(y + n * C, 0, (size_t)C * sizeof *y);
    }
}

Status cpu_expert_gather(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0];                                          /* (N,C) */
    const int32_t *source = call->in[2] /* (M) */, *offsets = call->in[3]; /* (E+1) */
    float *rows = call->out[0];                                            /* (M,C) */
    int64_t C = shape_columns(call->node->input[0]->shape), S = shape_columns(call->node->input[1]->shape);
    int64_t n_there = offsets[tensor_count(call->node->input[3]) - 1];
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, n_there *C))
    for (int64_t m = 0; m < n_there; m++) {
        const float *from = x + source[m] / S * C;
        if (call->add[0]) add_scaled(rows + m * C, from, 1.0f, false, C);
        else memcpy(rows + m * C, from, (size_t)C * sizeof *rows);
    }
    return STATUS_OK;
}

Status cpu_expert_gather_backward(const KernelCall *call, Error *error) {
    (void)error;
    Shape slots = call->node->input[1]->shape;
    sum_choices(call, call->in[0], NULL, call->in[1], shape_rows(slots), shape_columns(slots),
                shape_columns(call->node->input[0]->shape), call->out[0]);
    return STATUS_OK;
}

Status cpu_expert_scatter(const KernelCall *call, Error *error) {
    (void)error;
    Shape slots = call->node->input[2]->shape;
    sum_choices(call, call->in[0], call->in[1], call->in[2], shape_rows(slots), shape_columns(slots),
                shape_columns(call->node->input[0]->shape), call->out[0]);
    return STATUS_OK;
}

Status cpu_expert_scatter_backward(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0] /* (N,C) */, *made = call->in[1] /* (M,C) */, *gates = call->in[2];
    const int32_t *slot = call->in[3];                               /* (N,S) */
    float *dmade = call->out[0] /* (M,C) */, *dgates = call->out[1]; /* (N,S) */
    int64_t C = shape_columns(call->node->input[1]->shape), S = shape_columns(call->node->input[2]->shape);
    int64_t count = tensor_count(call->node->input[2]);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, count *C))
    for (int64_t i = 0; i < count; i++) {
        const float *row = dy + i / S * C;
        int64_t m = slot[i];
        if (m >= 0 && dmade) add_scaled(dmade + m * C, row, gates[i], !call->add[0], C);
        if (!dgates) continue;
        float value = m < 0 ? 0.0f : dot(row, made + m * C, C);
        dgates[i] = call->add[1] ? dgates[i] + value : value;
    }
    return STATUS_OK;
}

/* ---- rows of whole sequences, 4 bytes an element ---- */

static void write_row(const KernelCall *call, int64_t to, const float *from, int64_t S) {
    float *row = (float *)call->out[0] + to * S;
    if (call->add[0]) {
        for (int64_t i = 0; from && i < S; i++) row[i] += from[i];
    } else if (from) {
        memcpy(row, from, (size_t)S * sizeof *row);
    } else {
        memset(row, 0, (size_t)S * sizeof *row);
    }
}

Status cpu_sequence_rows(const KernelCall *call, Error *error) {
    (void)error;
    const SequenceRowsAttributes *a = call->node->attributes;
    const float *x = call->in[0];
    int64_t S = shape_columns(call->node->input[0]->shape);
    int64_t n_to = a->inverse ? a->n_rows : a->n_positions, n_from = a->inverse ? a->n_positions : a->n_rows;
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, a->n_sequences * a->n_positions * S))
    for (int64_t i = 0; i < a->n_sequences * n_to; i++) {
        int64_t t = i % n_to;
        int64_t at = a->inverse ? row_place(&a->positions, t) : row_at_place(&a->positions, a->n_rows, t);
        write_row(call, i, at < 0 ? NULL : x + (i / n_to * n_from + at) * S, S);
    }
    return STATUS_OK;
}
