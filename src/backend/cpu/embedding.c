/* embedding: rows of the two tables added up, and the two gradients, which are sums of rows of dy.
 *
 * The token gradient adds each row of dy to the table row of its token, and several tokens are the same. To
 * stay deterministic without locks, the tokens' places are sorted by token (a stable radix sort, whose cost
 * does not depend on the size of the vocabulary); every distinct token is then summed by one thread, in the
 * order of the places. When one token dominates, columns still share the work. The position gradient asks for
 * every row of its table which sequence has a token there; where positions are given one by one, it is the
 * token gradient. Long sums are taken in blocks, which keeps their
 * error near rounding. */
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

static Status check_rows(const char *what, const int32_t *row, int64_t count, int64_t n_rows, Error *error) {
    for (int64_t n = 0; n < count; n++) {
        if (row[n] >= 0 && row[n] < n_rows) continue;
        return error_failed(error, "embedding: %s %lld is not one of the table's %lld rows", what,
                            (long long)row[n], (long long)n_rows);
    }
    return STATUS_OK;
}

/* The first and the last position of every sequence lie in the table; or all that are given. */
static Status check_positions(const Tensor *tensor, const int32_t *start /* (B), (B,T) or NULL */, int64_t B,
                              int64_t T, const RowPositions *positions, int64_t n_rows, Error *error) {
    if (start_is_by_row(tensor)) return check_rows("position", start, B * T, n_rows, error);
    for (int64_t b = 0; b < (start ? B : 1) && T > 0; b++) {
        int64_t skip = start ? start[b] : 0, first = row_place(positions, 0) + skip,
                last = row_place(positions, T - 1) + skip;
        if (first >= 0 && last < n_rows) continue;
        return error_failed(error, "embedding: positions %lld to %lld are not all in the table's %lld rows",
                            (long long)first, (long long)last, (long long)n_rows);
    }
    return STATUS_OK;
}

/* A token that is not here counts as zeros. */
CPU_INLINE void forward_step(const float *token, const float *position, float *y, bool add, int lanes) {
    vec v = token ? lanes_load(token, lanes) : vec_set(0.0f);
    if (position) v += lanes_load(position, lanes);
    lanes_write(y, v, add, lanes);
}

Status cpu_embedding(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const EmbeddingAttributes *a = node->attributes;
    const int32_t *tokens = call->in[0], *start = call->in[3];             /* (B,T), [(B)] */
    const float *token_table = call->in[1], *position_table = call->in[2]; /* (V,C), [(P,C)] */
    float *y = call->out[0];                                               /* (B,T,C) */
    int64_t B = node->input[0]->shape.dim[0], T = node->input[0]->shape.dim[1],
            C = node->input[1]->shape.dim[1];
    TRY(check_rows("token", tokens, B * T, a->n_all, error));
    if (position_table) {
        TRY(check_positions(node->input[3], start, B, T, &a->positions, node->input[2]->shape.dim[0], error));
    }
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, B *T *C))
    for (int64_t n = 0; n < B * T; n++) {
        int64_t place = start_place(&a->positions, node->input[3], start, n / T, n % T);
        int64_t row = tokens[n] - a->first_token;
        const float *token = row >= 0 && row < a->n_tokens ? token_table + row * C : NULL,
                    *position = position_table ? position_table + place * C : NULL;
        float *out = y + n * C;
        for (int64_t i = 0; i < C; i += VEC_LANES) {
            int lanes = C - i < VEC_LANES ? (int)(C - i) : VEC_LANES;
            const float *t = token ? token + i : NULL, *p = position ? position + i : NULL;
            if (lanes == VEC_LANES) forward_step(t, p, out + i, call->add[0], VEC_LANES);
            else forward_step(t, p, out + i, call->add[0], lanes);
        }
    }
    return STATUS_OK;
}

/* ---- sums of chosen rows ---- */

enum { ROWS_AT_ONCE = 64 };

CPU_INLINE void sum_step(const float *dy, const int32_t *row, int n_rows, int64_t C, float *out, bool add,
                         int lanes) {
    vec sum = lanes_load(dy + row[0] * C, lanes);
    for (int r = 1; r < n_rows; r++) sum += lanes_load(dy + row[r] * C, lanes);
    lanes_write(out, sum, add, lanes);
}

/* out[range] = or += the sum of up to ROWS_AT_ONCE rows of dy (N,C). */
static void sum_rows(const float *dy, const int32_t *row, int n_rows, int64_t C, CpuRange range, float *out,
                     bool add) {
    int64_t i = range.first;
    if (n_rows == 1) {
        for (; i + VEC_LANES <= range.end; i += VEC_LANES)
            sum_step(dy + i, row, 1, C, out + i, add, VEC_LANES);
    }
    for (; i + VEC_LANES <= range.end; i += VEC_LANES)
        sum_step(dy + i, row, n_rows, C, out + i, add, VEC_LANES);
    if (i < range.end) sum_step(dy + i, row, n_rows, C, out + i, add, (int)(range.end - i));
}

/* ---- token gradient ---- */

/* Stable sort of the places 0..n-1 by tokens[place], one byte of the token at a time; `order` and `spare`
 * take turns, and the one that holds the result is returned. */
static int32_t *sort_places(const int32_t *tokens, int64_t n, int64_t n_rows, int32_t *order,
                            int32_t *spare) {
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int shift = 0; shift < 31 && (n_rows - 1) >> shift; shift += 8) {
        int64_t next[256] = {0}, first = 0;
        for (int64_t i = 0; i < n; i++) next[tokens[i] >> shift & 255]++;
        for (int digit = 0; digit < 256; digit++) {
            int64_t count = next[digit];
            next[digit] = first;
            first += count;
        }
        for (int64_t i = 0; i < n; i++) spare[next[tokens[order[i]] >> shift & 255]++] = order[i];
        int32_t *swap = order;
        order = spare;
        spare = swap;
    }
    return order;
}

/* Sum the tokens whose run of equal ones begins in first..end-1 of the sorted places. */
static void sum_tokens(const float *dy, const int32_t *tokens, const int32_t *order, int64_t n, int64_t first,
                       int64_t end, int64_t C, CpuRange columns, const EmbeddingAttributes *a, float *table) {
    int64_t i = first;
    while (i > 0 && i < end && tokens[order[i]] == tokens[order[i - 1]]) i++; /* the part before has these */
    while (i < end) {
        int64_t token = tokens[order[i]], row = token - a->first_token, last = i + 1;
        while (last < n && tokens[order[last]] == token) last++;
        for (; i < last && row >= 0 && row < a->n_tokens; i += ROWS_AT_ONCE) {
            int rows = last - i < ROWS_AT_ONCE ? (int)(last - i) : ROWS_AT_ONCE;
            sum_rows(dy, order + i, rows, C, columns, table + row * C, true);
        }
        i = last;
    }
}

static void clear(float *memory, int64_t count, int n_threads) {
    int n_parts = count < CPU_SERIAL_BELOW ? 1 : n_threads;
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        memset(memory + range.first, 0, (size_t)(range.end - range.first) * sizeof(float));
    }
}

/* table (V,C) = or += the rows of dy (N,C), each in the row that `rows` (N) names. */
static void sum_by_row(const KernelCall *call, const int32_t *rows, int64_t N, const EmbeddingAttributes *a) {
    const float *dy = call->in[0];
    float *table = call->out[0];
    const Tensor *output = call->node->output[0];
    int64_t V = output->shape.dim[0], C = output->shape.dim[1];
    int32_t *order = call->scratch;
    order = sort_places(rows, N, a->n_all, order, order + N);
    if (!call->add[0]) clear(table, V * C, call->n_threads);

    enum { STRIP = 256 }; /* columns of a task */
    int n_threads = cpu_threads(call, N * C), n_parts = 4 * n_threads;
    int n_strips = (int)((C + STRIP - 1) / STRIP);
#pragma omp parallel for schedule(static, 1) num_threads(n_threads)
    for (int task = 0; task < n_parts * n_strips; task++) {
        int64_t part = task / n_strips, strip = task % n_strips;
        int64_t end = (strip + 1) * STRIP;
        CpuRange columns = {strip * STRIP, end < C ? end : C};
        sum_tokens(dy, rows, order, N, part * N / n_parts, (part + 1) * N / n_parts, C, columns, a, table);
    }
}

Status cpu_embedding_token_gradient(const KernelCall *call, Error *error) {
    const EmbeddingAttributes *a = call->node->attributes;
    const int32_t *tokens = call->in[1]; /* (B,T) */
    int64_t N = tensor_count(call->node->input[1]);
    TRY(check_rows("token", tokens, N, a->n_all, error));
    sum_by_row(call, tokens, N, a);
    return STATUS_OK;
}

size_t cpu_embedding_token_gradient_scratch(const Node *node, int n_threads) {
    (void)n_threads;
    return (size_t)tensor_count(node->input[1]) * 2 * sizeof(int32_t);
}

/* ---- position gradient ---- */

size_t cpu_embedding_position_gradient_scratch(const Node *node, int n_threads) {
    return start_is_by_row(node->input[1]) ? cpu_embedding_token_gradient_scratch(node, n_threads) : 0;
}

Status cpu_embedding_position_gradient(const KernelCall *call, Error *error) {
    const EmbeddingAttributes *a = call->node->attributes;
    const float *dy = call->in[0];      /* (B,T,C) */
    const int32_t *start = call->in[1]; /* [(B) or (B,T)] */
    float *table = call->out[0];        /* (P,C) */
    int64_t B = call->node->input[0]->shape.dim[0], T = call->node->input[0]->shape.dim[1];
    int64_t P = call->node->output[0]->shape.dim[0], C = call->node->output[0]->shape.dim[1];
    TRY(check_positions(call->node->input[1], start, B, T, &a->positions, P, error));
    if (start_is_by_row(call->node->input[1])) {
        sum_by_row(call, start, B * T, &(EmbeddingAttributes){.n_tokens = P, .n_all = P});
        return STATUS_OK;
    }
#pragma omp parallel for schedule(static, 1) num_threads(cpu_threads(call, B *T *C))
    for (int64_t p = 0; p < P; p++) {
        int32_t row[ROWS_AT_ONCE];
        int n_rows = 0;
        bool add = call->add[0];
        for (int64_t b = 0; b < B; b++) {
            int64_t t = row_at_place(&a->positions, T, p - (start ? start[b] : 0));
            if (t >= 0) row[n_rows++] = (int32_t)(b * T + t);
            if (n_rows && (n_rows == ROWS_AT_ONCE || b == B - 1)) {
                sum_rows(dy, row, n_rows, C, (CpuRange){0, C}, table + p * C, add);
                n_rows = 0;
                add = true;
            }
        }
        if (!add) memset(table + p * C, 0, (size_t)C * sizeof(float));
    }
    return STATUS_OK;
}
