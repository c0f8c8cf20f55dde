/* attention_part and its backward, one query or key at a time: plain, for every head size up to 256 and any
 * positions. As attention_plain.cu, whose words apply, on a rectangle of queries and keys. */
#include "backend/cuda/attention/attend.cuh"
#include "backend/cuda/attention/attention_part.h"

#define LN_2 0.6931471805599453f

/* What the kernels are told beside the shape. */
typedef struct {
    PartShape s;
    const int32_t *random; /* NULL: none */
    const int32_t *starts; /* of the queries' documents; NULL: none */
    bool aligned;
    int share;
} PlainPart;

static PlainPart plain_part(const PartShape *s, const PartMemory *m) {
    uintptr_t all = (uintptr_t)m->q | (uintptr_t)m->kv | (uintptr_t)m->y | (uintptr_t)m->dy |
                    (uintptr_t)m->dq | (uintptr_t)m->dkv;
    PlainPart p = {*s, s->threshold ? m->random : NULL, m->starts, s->head_size % 8 == 0 && all % 16 == 0,
                   s->n_heads / s->n_kv_heads};
    return p;
}

DEVICE float keep_factor(const PlainPart &p, RandomKey key, int64_t b, int64_t h, int64_t query, int64_t k) {
    if (!p.random) return 1.0f;
    uint64_t length = (uint64_t)(p.s.n_positions + 7) / 8 * 8;
    uint64_t row =
        (uint64_t)(p.s.first_head + h) * (uint64_t)p.s.n_positions + (uint64_t)(p.s.query_position + query);
    uint64_t index = row * length + (uint64_t)(p.s.key_position + k);
    bool keep = random_keep(key, first_sequence(p.random) + (uint64_t)b, index, p.s.threshold);
    return keep ? random_dropout_scale(p.s.threshold) : 0.0f;
}

DEVICE RandomKey key_of(const PlainPart &p) {
    RandomKey none = {{0, 0}};
    return p.random ? dropout_key(p.random, p.s.site) : none;
}

/* Keys that query i of the rectangle sees. */
DEVICE int64_t visible_to(const PartShape &s, int64_t i) {
    int64_t n = i + s.offset + 1;
    return n < 0 ? 0 : n < s.n_keys ? n : s.n_keys;
}

/* Of the keys up to its own, does query i see key k? */
DEVICE bool is_seen(const PlainPart &p, int64_t b, int64_t i, int64_t k) {
    const PartShape &s = p.s;
    int64_t position = s.key_position + k;
    if (p.starts && position < p.starts[b * s.query_rows + s.first_query + i]) return false;
    return s.pattern.kind == PATTERN_DENSE ||
           pattern_sees(&s.pattern, (int32_t)(s.query_position + i), (int32_t)position);
}

template <typename T, int LANES>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    part_forward_kernel(const T *q_rows, const T *kv_rows, float *y, float *lse, PlainPart p) {
    __shared__ Attention shared[ATTEND_WARPS * LANES];
    enum { GROUPS = ATTEND_THREADS / LANES };
    const PartShape &s = p.s;
    int64_t row = blockIdx.x, n = row / s.n_heads, b = n / s.n_queries, i = n - b * s.n_queries;
    int h = (int)(row - n * s.n_heads), kv = h / p.share;
    int64_t at = (b * s.query_rows + s.first_query + i) * s.q_width + (int64_t)h * s.head_size,
            at_lse = (b * s.n_heads + h) * s.query_rows + s.first_query + i, visible = visible_to(s, i);
    const T *keys = kv_rows + (b * s.key_rows + s.first_key) * s.kv_width + (int64_t)kv * s.head_size;
    const T *values = keys + (int64_t)s.n_kv_heads * s.head_size;
    int c = (int)threadIdx.x % LANES * VECTOR, left = s.head_size - c;
    RandomKey random = key_of(p);
    float q[VECTOR];
    load8(q_rows + at + c, left, p.aligned, q);
    Attention mine = attention_none();
    for (int64_t base = 0; base < visible; base += GROUPS) {
        int64_t k = base + threadIdx.x / LANES;
        bool is_there = k < visible && is_seen(p, b, i, k);
        float key[VECTOR], value[VECTOR];
        load8(keys + k * s.kv_width + c, is_there ? left : 0, p.aligned, key);
        load8(values + k * s.kv_width + c, is_there ? left : 0, p.aligned, value);
        float score = group_sum<LANES>(dot8(q, key)) * s.scale;
        if (!is_there) continue;
        float max = fmaxf(mine.max, score), keep = __expf(mine.max - max), weight = __expf(score - max);
        float used = weight * keep_factor(p, random, b, h, i, k);
        mine.max = max;
        mine.sum = mine.sum * keep + weight;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) mine.value[j] = mine.value[j] * keep + used * value[j];
    }
    __syncwarp();
    mine = block_join<LANES>(mine, shared);
    bool sees = mine.sum > 0.0f;
    if ((int)threadIdx.x >= LANES || (s.merges && !sees)) return;
    float my_lse = sees ? mine.max + logf(mine.sum) : -INFINITY, other = s.merges ? lse[at_lse] : -INFINITY;
    float most = fmaxf(my_lse, other), of_mine = sees ? __expf(my_lse - most) : 0.0f,
          of_other = other == -INFINITY ? 0.0f : __expf(other - most), both = of_mine + of_other;
    float before[VECTOR] = {0};
    if (s.merges) load8(y + at + c, left, p.aligned, before);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        float own = sees ? mine.value[j] / mine.sum * of_mine : 0.0f;
        mine.value[j] = both > 0.0f ? (own + (of_other > 0.0f ? before[j] * of_other : 0.0f)) / both : 0.0f;
    }
    store8(y + at + c, left, p.aligned, mine.value);
    __syncwarp((1ull << LANES) - 1);
    if (threadIdx.x == 0) lse[at_lse] = both > 0.0f ? most + logf(both) : -INFINITY;
}

Status attention_part_plain_forward(const PartShape *s, const PartMemory *m, cudaStream_t stream,
                                    Error *error) {
    PlainPart p = plain_part(s, m);
    int64_t rows = s->n_sequences * s->n_queries * s->n_heads;
    FOR_ELEMENTS(s->dtype, T,
                 FOR_LANES(s->head_size, LANES,
                           part_forward_kernel<T, LANES><<<(unsigned)rows, ATTEND_THREADS, 0, stream>>>(
                               (const T *)m->q, (const T *)m->kv, m->y, m->lse, p)));
    return cuda_launched("attention_part", error);
}

/* ---- backward ---- */

template <typename T, int LANES>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    part_query_kernel(const T *dy, const T *q_rows, const T *kv_rows, const float2 *facts, float *dq_rows,
                      PlainPart p) {
    __shared__ float shared[ATTEND_WARPS * LANES * VECTOR];
    enum { GROUPS = ATTEND_THREADS / LANES };
    const PartShape &s = p.s;
    int64_t row = blockIdx.x, n = row / s.n_heads, b = n / s.n_queries, i = n - b * s.n_queries;
    int h = (int)(row - n * s.n_heads), kv = h / p.share;
    int64_t at = (b * s.query_rows + s.first_query + i) * s.q_width + (int64_t)h * s.head_size;
    int64_t visible = visible_to(s, i);
    const T *keys = kv_rows + (b * s.key_rows + s.first_key) * s.kv_width + (int64_t)kv * s.head_size;
    const T *values = keys + (int64_t)s.n_kv_heads * s.head_size;
    int c = (int)threadIdx.x % LANES * VECTOR, left = s.head_size - c;
    RandomKey random = key_of(p);
    float q[VECTOR], g[VECTOR], dq[VECTOR] = {0};
    load8(q_rows + at + c, left, p.aligned, q);
    load8(dy + at + c, left, p.aligned, g);
    float2 row_facts = facts[(b * s.n_heads + h) * s.query_rows + s.first_query + i];
    for (int64_t base = 0; base < visible; base += GROUPS) {
        int64_t k = base + threadIdx.x / LANES;
        bool is_there = k < visible && is_seen(p, b, i, k);
        float key[VECTOR], value[VECTOR];
        load8(keys + k * s.kv_width + c, is_there ? left : 0, p.aligned, key);
        load8(values + k * s.kv_width + c, is_there ? left : 0, p.aligned, value);
        float score = group_sum<LANES>(dot8(q, key)) * s.scale, dp = group_sum<LANES>(dot8(g, value));
        if (!is_there) continue;
        float weight = __expf(score - row_facts.x * LN_2),
              dscore = weight * (keep_factor(p, random, b, h, i, k) * dp - row_facts.y) * s.scale;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) dq[j] = fmaf(dscore, key[j], dq[j]);
    }
    __syncwarp();
    block_sum8<LANES>(dq, shared);
    if ((int)threadIdx.x < LANES) write8(dq_rows + at + c, left, p.aligned, dq, true);
}

template <typename T, int LANES>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    part_key_kernel(const T *dy, const T *q_rows, const T *kv_rows, const float2 *facts, float *dkv_rows,
                    PlainPart p) {
    __shared__ float shared[ATTEND_WARPS * LANES * VECTOR];
    enum { GROUPS = ATTEND_THREADS / LANES };
    const PartShape &s = p.s;
    int64_t row = blockIdx.x, n = row / s.n_kv_heads, b = n / s.n_keys, k = n - b * s.n_keys;
    int kv = (int)(row - n * s.n_kv_heads), c = (int)threadIdx.x % LANES * VECTOR, left = s.head_size - c;
    int64_t at_key = (b * s.key_rows + s.first_key + k) * s.kv_width + (int64_t)kv * s.head_size + c;
    int64_t at_value = at_key + (int64_t)s.n_kv_heads * s.head_size;
    RandomKey random = key_of(p);
    float key[VECTOR], value[VECTOR], dkey[VECTOR] = {0}, dvalue[VECTOR] = {0};
    load8(kv_rows + at_key, left, p.aligned, key);
    load8(kv_rows + at_value, left, p.aligned, value);
    int64_t first = k > s.offset ? k - s.offset : 0; /* the first query that sees it */
    int64_t queries = first < s.n_queries ? (s.n_queries - first) * p.share : 0;
    for (int64_t base = 0; base < queries; base += GROUPS) {
        int64_t j = base + threadIdx.x / LANES;
        bool is_there = j < queries;
        int64_t h = (int64_t)kv * p.share + (is_there ? j % p.share : 0),
                i = first + (is_there ? j / p.share : 0);
        is_there = is_there && is_seen(p, b, i, k);
        int64_t at = (b * s.query_rows + s.first_query + i) * s.q_width + h * s.head_size + c;
        float q[VECTOR], g[VECTOR];
        load8(q_rows + at, is_there ? left : 0, p.aligned, q);
        load8(dy + at, is_there ? left : 0, p.aligned, g);
        float score = group_sum<LANES>(dot8(q, key)) * s.scale, dp = group_sum<LANES>(dot8(g, value));
        if (!is_there) continue;
        float2 row_facts = facts[(b * s.n_heads + h) * s.query_rows + s.first_query + i];
        float weight = __expf(score - row_facts.x * LN_2), factor = keep_factor(p, random, b, h, i, k);
        float dscore = weight * (factor * dp - row_facts.y) * s.scale;
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            dkey[e] = fmaf(dscore, q[e], dkey[e]);
            dvalue[e] = fmaf(weight * factor, g[e], dvalue[e]);
        }
    }
    __syncwarp();
    block_sum8<LANES>(dkey, shared);
    block_sum8<LANES>(dvalue, shared);
    if ((int)threadIdx.x >= LANES) return;
    write8(dkv_rows + at_key, left, p.aligned, dkey, true);
    write8(dkv_rows + at_value, left, p.aligned, dvalue, true);
}

Status attention_part_plain_backward(const PartShape *s, const PartMemory *m, cudaStream_t stream,
                                     Error *error) {
    PlainPart p = plain_part(s, m);
    const float2 *facts = (const float2 *)m->facts;
    FOR_ELEMENTS(s->dtype, T, {
        const T *dy = (const T *)m->dy, *q = (const T *)m->q, *kv = (const T *)m->kv;
        FOR_LANES(s->head_size, LANES, {
            unsigned queries = (unsigned)(s->n_sequences * s->n_queries * s->n_heads),
                     keys = (unsigned)(s->n_sequences * s->n_keys * s->n_kv_heads);
            if (m->dq)
                part_query_kernel<T, LANES>
                    <<<queries, ATTEND_THREADS, 0, stream>>>(dy, q, kv, facts, m->dq, p);
            if (m->dkv)
                part_key_kernel<T, LANES><<<keys, ATTEND_THREADS, 0, stream>>>(dy, q, kv, facts, m->dkv, p);
        });
    });
    return cuda_launched("attention_part_backward", error);
}
