/* attention, forward and backward, one query or key at a time: plain, for every head size up to 256.
 *
 * FLOPs decide here, not bytes: 4·HS a pair of a query and a key it may see forward, 10·HS backward. These
 * kernels do them on the ordinary cores, from the L2 cache; the tensor cores' kernels are elsewhere.
 *
 * Forward: a block a query, groups of threads take its keys in turn (attend.cuh). Backward, with p = e^(score
 * - lse), m the dropout factor and D = Σ dy·y of the query's row: dscore = p·(m·(dy·value) - D)·scale. One
 * kernel gives each query a block that sums dscore·key; another gives each key a block that sums dscore·query
 * and p·m·dy over all queries that see it, of all heads that share it. Every element of dqkv is written by
 * one thread, in a fixed order.
 */
#include "backend/cuda/attention/attend.cuh"
#include "backend/cuda/attention/attention.h"

/* What the kernels are told. */
typedef struct {
    int64_t n_positions, width, y_width; /* T, elements of a row of qkv and of y */
    int n_heads, n_kv_heads, head_size, share;
    float scale;
    bool aligned, add;
    /* dropout */
    const int32_t *random; /* NULL: none */
    uint32_t threshold;
    int site, first_head;
    /* what is seen: see AttentionMemory */
    AttentionPattern pattern;
    const int32_t *starts;
} PlainShape;

static PlainShape plain_shape(const AttentionShape *a, const AttentionMemory *m) {
    PlainShape s = {};
    s.n_positions = a->n_positions;
    s.width = a->width;
    s.y_width = a->y_width;
    s.n_heads = a->n_heads;
    s.n_kv_heads = a->n_kv_heads;
    s.head_size = a->head_size;
    s.share = a->n_heads / a->n_kv_heads;
    s.scale = a->scale;
    s.add = m->add;
    s.aligned = attention_aligned(a, m);
    s.random = a->threshold ? m->random : NULL;
    s.threshold = a->threshold;
    s.site = a->site;
    s.first_head = a->first_head;
    s.pattern = m->pattern;
    s.starts = m->starts;
    return s;
}

DEVICE float keep_factor(const PlainShape &s, RandomKey key, int64_t b, int64_t h, int64_t q, int64_t k) {
    if (!s.random) return 1.0f;
    uint64_t length = (uint64_t)(s.n_positions + 7) / 8 * 8;
    uint64_t index =
        ((uint64_t)(s.first_head + h) * (uint64_t)s.n_positions + (uint64_t)q) * length + (uint64_t)k;
    bool keep = random_keep(key, first_sequence(s.random) + (uint64_t)b, index, s.threshold);
    return keep ? random_dropout_scale(s.threshold) : 0.0f;
}

/* Of the keys up to its own, does query t see key k? */
DEVICE bool is_seen(const PlainShape &s, int64_t b, int64_t t, int64_t k) {
    if (s.starts && k < s.starts[b * s.n_positions + t]) return false;
    return s.pattern.kind == PATTERN_DENSE || pattern_sees(&s.pattern, (int32_t)t, (int32_t)k);
}

/* The first key that it could see. */
DEVICE int64_t first_key_of(const PlainShape &s, int64_t b, int64_t t) {
    int64_t start = s.starts ? s.starts[b * s.n_positions + t] : 0, reach = pattern_reach(&s.pattern);
    return reach && t - reach + 1 > start ? t - reach + 1 : start;
}

DEVICE RandomKey key_of(const PlainShape &s) {
    RandomKey none = {{0, 0}};
    return s.random ? dropout_key(s.random, s.site) : none;
}

template <typename T, int LANES>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    forward_kernel(const T *qkv, T *y, float *lse, PlainShape s) {
    __shared__ Attention shared[ATTEND_WARPS * LANES];
    enum { GROUPS = ATTEND_THREADS / LANES };
    int64_t row = blockIdx.x, n = row / s.n_heads, b = n / s.n_positions, t = n - b * s.n_positions;
    int h = (int)(row - n * s.n_heads), kv = h / s.share;
    const T *keys = qkv + b * s.n_positions * s.width + (int64_t)(s.n_heads + kv) * s.head_size;
    const T *values = keys + (int64_t)s.n_kv_heads * s.head_size;
    int c = (int)threadIdx.x % LANES * VECTOR, left = s.head_size - c;
    RandomKey random = key_of(s);
    float q[VECTOR];
    load8(qkv + n * s.width + (int64_t)h * s.head_size + c, left, s.aligned, q);
    Attention mine = attention_none();
    for (int64_t base = first_key_of(s, b, t); base <= t; base += GROUPS) {
        int64_t k = base + threadIdx.x / LANES;
        bool is_there = k <= t && is_seen(s, b, t, k);
        float key[VECTOR], value[VECTOR];
        load8(keys + k * s.width + c, is_there ? left : 0, s.aligned, key);
        load8(values + k * s.width + c, is_there ? left : 0, s.aligned, value);
        float score = group_sum<LANES>(dot8(q, key)) * s.scale;
        if (!is_there) continue;
        float max = fmaxf(mine.max, score), keep = __expf(mine.max - max), p = __expf(score - max);
        float weight = p * keep_factor(s, random, b, h, t, k);
        mine.max = max;
        mine.sum = mine.sum * keep + p;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) mine.value[i] = mine.value[i] * keep + weight * value[i];
    }
    __syncwarp();
    mine = block_join<LANES>(mine, shared);
    if ((int)threadIdx.x >= LANES) return;
    if (threadIdx.x == 0) lse[(b * s.n_heads + h) * s.n_positions + t] = mine.max + logf(mine.sum);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) mine.value[i] /= mine.sum;
    store8(y + n * s.y_width + (int64_t)h * s.head_size + c, left, s.aligned, mine.value);
}

Status attention_plain_forward(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream,
                               Error *error) {
    PlainShape s = plain_shape(shape, m);
    int64_t rows = shape->n_sequences * s.n_positions * s.n_heads;
    FOR_ELEMENTS(shape->dtype, T,
                 FOR_LANES(s.head_size, LANES,
                           forward_kernel<T, LANES><<<(unsigned)rows, ATTEND_THREADS, 0, stream>>>(
                               (const T *)m->qkv, (T *)m->y, m->lse, s)));
    return cuda_launched("attention", error);
}

/* ---- backward ---- */

template <typename T, int LANES>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    query_kernel(const T *dy, const T *qkv, const T *y, const float *lse, T *dqkv, PlainShape s) {
    __shared__ float shared[ATTEND_WARPS * LANES * VECTOR];
    enum { GROUPS = ATTEND_THREADS / LANES };
    int64_t row = blockIdx.x, n = row / s.n_heads, b = n / s.n_positions, t = n - b * s.n_positions;
    int h = (int)(row - n * s.n_heads), kv = h / s.share;
    const T *keys = qkv + b * s.n_positions * s.width + (int64_t)(s.n_heads + kv) * s.head_size;
    const T *values = keys + (int64_t)s.n_kv_heads * s.head_size;
    int c = (int)threadIdx.x % LANES * VECTOR, left = s.head_size - c;
    int64_t at_query = n * s.width + (int64_t)h * s.head_size + c,
            at_y = n * s.y_width + (int64_t)h * s.head_size + c;
    RandomKey random = key_of(s);
    float q[VECTOR], g[VECTOR], out[VECTOR], dq[VECTOR] = {0};
    load8(qkv + at_query, left, s.aligned, q);
    load8(dy + at_y, left, s.aligned, g);
    load8(y + at_y, left, s.aligned, out);
    float row_sum = group_sum<LANES>(dot8(g, out)), row_lse = lse[(b * s.n_heads + h) * s.n_positions + t];
    for (int64_t base = first_key_of(s, b, t); base <= t; base += GROUPS) {
        int64_t k = base + threadIdx.x / LANES;
        bool is_there = k <= t && is_seen(s, b, t, k);
        float key[VECTOR], value[VECTOR];
        load8(keys + k * s.width + c, is_there ? left : 0, s.aligned, key);
        load8(values + k * s.width + c, is_there ? left : 0, s.aligned, value);
        float score = group_sum<LANES>(dot8(q, key)) * s.scale, dp = group_sum<LANES>(dot8(g, value));
        if (!is_there) continue;
        float p = __expf(score - row_lse),
              dscore = p * (keep_factor(s, random, b, h, t, k) * dp - row_sum) * s.scale;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) dq[i] = fmaf(dscore, key[i], dq[i]);
    }
    __syncwarp();
    block_sum8<LANES>(dq, shared);
    if ((int)threadIdx.x < LANES) write8(dqkv + at_query, left, s.aligned, dq, s.add);
}

template <typename T, int LANES>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    key_kernel(const T *dy, const T *qkv, const T *y, const float *lse, T *dqkv, PlainShape s) {
    __shared__ float shared[ATTEND_WARPS * LANES * VECTOR];
    enum { GROUPS = ATTEND_THREADS / LANES };
    int64_t row = blockIdx.x, n = row / s.n_kv_heads, b = n / s.n_positions, k = n - b * s.n_positions;
    int kv = (int)(row - n * s.n_kv_heads), c = (int)threadIdx.x % LANES * VECTOR, left = s.head_size - c;
    int64_t at_key = n * s.width + (int64_t)(s.n_heads + kv) * s.head_size + c;
    int64_t at_value = at_key + (int64_t)s.n_kv_heads * s.head_size;
    RandomKey random = key_of(s);
    float key[VECTOR], value[VECTOR], dkey[VECTOR] = {0}, dvalue[VECTOR] = {0};
    load8(qkv + at_key, left, s.aligned, key);
    load8(qkv + at_value, left, s.aligned, value);
    int64_t reach = pattern_reach(&s.pattern), left_over = s.n_positions - k;
    /* that may see the key, over all heads that share it */
    int64_t queries = (reach && reach < left_over ? reach : left_over) * s.share;
    for (int64_t base = 0; base < queries; base += GROUPS) {
        int64_t i = base + threadIdx.x / LANES;
        bool is_there = i < queries;
        int64_t h = (int64_t)kv * s.share + (is_there ? i % s.share : 0),
                t = k + (is_there ? i / s.share : 0);
        int64_t at = b * s.n_positions + t;
        is_there = is_there && is_seen(s, b, t, k);
        float q[VECTOR], g[VECTOR], out[VECTOR];
        load8(qkv + at * s.width + h * s.head_size + c, is_there ? left : 0, s.aligned, q);
        load8(dy + at * s.y_width + h * s.head_size + c, is_there ? left : 0, s.aligned, g);
        load8(y + at * s.y_width + h * s.head_size + c, is_there ? left : 0, s.aligned, out);
        float score = group_sum<LANES>(dot8(q, key)) * s.scale, dp = group_sum<LANES>(dot8(g, value));
        float row_sum = group_sum<LANES>(dot8(g, out));
        if (!is_there) continue;
        float p = __expf(score - lse[(b * s.n_heads + h) * s.n_positions + t]);
        float factor = keep_factor(s, random, b, h, t, k), dscore = p * (factor * dp - row_sum) * s.scale;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            dkey[j] = fmaf(dscore, q[j], dkey[j]);
            dvalue[j] = fmaf(p * factor, g[j], dvalue[j]);
        }
    }
    __syncwarp();
    block_sum8<LANES>(dkey, shared);
    block_sum8<LANES>(dvalue, shared);
    if ((int)threadIdx.x >= LANES) return;
    write8(dqkv + at_key, left, s.aligned, dkey, s.add);
    write8(dqkv + at_value, left, s.aligned, dvalue, s.add);
}

Status attention_plain_backward(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream,
                                Error *error) {
    PlainShape s = plain_shape(shape, m);
    int64_t rows = shape->n_sequences * s.n_positions;
    FOR_ELEMENTS(shape->dtype, T, {
        const T *dy = (const T *)m->dy, *from = (const T *)m->qkv, *y = (const T *)m->y;
        T *dqkv = (T *)m->dqkv;
        FOR_LANES(s.head_size, LANES, {
            query_kernel<T, LANES>
                <<<(unsigned)(rows * s.n_heads), ATTEND_THREADS, 0, stream>>>(dy, from, y, m->lse, dqkv, s);
            key_kernel<T, LANES><<<(unsigned)(rows * s.n_kv_heads), ATTEND_THREADS, 0, stream>>>(
                dy, from, y, m->lse, dqkv, s);
        });
    });
    return cuda_launched("attention_backward", error);
}
