/* attention_cached and sparse_attention_cached: new queries against the key/value cache, for generation.
 *
 * Floor over the copy bandwidth: the keys and values in use, 4·NKV·HS bytes a position and sequence in 16
 * bits. With one new position a sequence there are only B·NH queries, too few blocks for a GPU, so the
 * context is split: each block takes a part of the keys of one query and leaves its unfinished softmax in
 * scratch; the block that comes last joins the parts, in their order. How many parts there are is fixed when
 * the program is built; how long they are follows from start[b].
 *
 * Storing the new keys and values is done on the way: a query takes positions below start[b] from the cache
 * and the new ones from qkv, so nobody reads what is being stored.
 *
 * A sparse one (SPARSE) reads the keys that its query sees and no others. Its cache is a ring: position k is
 * in row k % capacity; what new keys take the place of no new query sees. */
#include "backend/cuda/attention/attend.cuh"

extern "C" {
#include "ops/attention/sparse_attention.h"
}

typedef struct {
    int64_t n_positions, width, capacity; /* T, elements of a row of qkv, rows of the cache */
    int64_t most;                         /* positions of a text */
    int n_heads, n_kv_heads, head_size, n_parts;
    float scale;
    AttentionPattern pattern;
    const int32_t *starts; /* (B,T): where the queries' documents begin; NULL: there are none */
} CachedShape;

/* One query's part of the keys: where they lie, and this thread's channels of them. */
template <typename T> struct Keys {
    const T *new_keys, *new_values, *old_keys, *old_values; /* from this thread's first channel on */
    int64_t first_new, width, capacity;
    int head_size, left; /* left: channels from there on */
};

template <typename T, bool ALIGNED, bool SPARSE>
DEVICE void load_key(const Keys<T> &keys, int64_t k, bool is_there, Raw<T> *key, Raw<T> *value) {
    bool is_new = k >= keys.first_new;
    int64_t row = SPARSE && !is_new ? (int64_t)((unsigned)k % (unsigned)keys.capacity) : k;
    int64_t at = is_new ? (k - keys.first_new) * keys.width : row * keys.head_size;
    int n = is_there ? keys.left : 0;
    *key = load_raw<T, ALIGNED>((is_new ? keys.new_keys : keys.old_keys) + at, n);
    *value = load_raw<T, ALIGNED>((is_new ? keys.new_values : keys.old_values) + at, n);
}

/* The softmax over keys first .. end - 1, of which each group has every GROUPS-th, AT_ONCE on their way
 * together. */
template <typename T, int LANES, bool ALIGNED, bool SPARSE>
DEVICE Attention attend(const float q[VECTOR], const Keys<T> &keys, int64_t first, int64_t end,
                        const CachedShape &s, int32_t position) {
    enum { GROUPS = ATTEND_THREADS / LANES, AT_ONCE = 4 };
    Attention mine = attention_none();
    for (int64_t base = first + threadIdx.x / LANES; base - threadIdx.x / LANES < end;
         base += AT_ONCE * GROUPS) {
        Raw<T> key[AT_ONCE], value[AT_ONCE];
        float score[AT_ONCE], v[VECTOR], max = mine.max;
        bool is_there[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int64_t k = base + j * GROUPS;
            is_there[j] = k < end;
            if (SPARSE) is_there[j] = k < end && pattern_sees(&s.pattern, position, (int32_t)k);
            load_key<T, ALIGNED, SPARSE>(keys, k, is_there[j], &key[j], &value[j]);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            unpack(key[j], v);
            score[j] = group_sum<LANES>(dot8(q, v)) * s.scale;
            if (!is_there[j]) score[j] = -INFINITY;
            max = fmaxf(max, score[j]);
        }
        float reference = max == -INFINITY ? 0.0f : max, keep = __expf(mine.max - reference);
        mine.max = max;
        mine.sum *= keep;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) mine.value[i] *= keep;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float p = __expf(score[j] - reference);
            unpack(value[j], v);
            mine.sum += p;
#pragma unroll
            for (int i = 0; i < VECTOR; i++) mine.value[i] = fmaf(p, v[i], mine.value[i]);
        }
    }
    return mine;
}

/* Have all other blocks of this query left their parts? Says yes to one block only, and sets the ticket
 * back. */
DEVICE bool is_last_block(unsigned *ticket, int n_parts) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(ticket, 1u) == (unsigned)n_parts - 1;
        if (is_last) *ticket = 0;
    }
    __syncthreads();
    __threadfence();
    return is_last;
}

/* parts: (n_parts, 2 + HS) of this query: maximum, sum, values. */
template <typename T> DEVICE void join_parts(const float *parts, T *y, const CachedShape &s) {
    __shared__ float weight[CACHED_MOST_PARTS];
    int stride = s.head_size + 2, lane = (int)threadIdx.x;
    if (lane < WARP) {
        float max = -INFINITY, sum = 0.0f;
        for (int p = lane; p < s.n_parts; p += WARP) max = fmaxf(max, __ldcg(parts + p * stride));
        max = warp_max(max);
        for (int p = lane; p < s.n_parts; p += WARP) {
            weight[p] = __expf(__ldcg(parts + p * stride) - max);
            sum += weight[p] * __ldcg(parts + p * stride + 1);
        }
        sum = warp_sum(sum);
        for (int p = lane; p < s.n_parts; p += WARP) weight[p] /= sum;
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < s.head_size; c += ATTEND_THREADS) {
        float value = 0.0f;
#pragma unroll 8
        for (int p = 0; p < s.n_parts; p++)
            value = fmaf(weight[p], __ldcg(parts + p * stride + 2 + c), value);
        set_element(y + c, value);
    }
}

template <typename T, int LANES, bool ALIGNED, bool SPARSE>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    cached_kernel(const T *qkv, const int32_t *start, T *y, T *key_cache, T *value_cache, float *parts,
                  unsigned *tickets, CachedShape s, CudaFault *fault) {
    __shared__ Attention shared[ATTEND_WARPS * LANES];
    int64_t query = blockIdx.x, n = query / s.n_heads, b = n / s.n_positions, t = n - b * s.n_positions;
    int h = (int)(query - n * s.n_heads), share = s.n_heads / s.n_kv_heads, kv = h / share;
    int part = (int)blockIdx.y, c = (int)threadIdx.x % LANES * VECTOR, left = s.head_size - c;
    int64_t first_new = start[b];
    if (first_new < 0 || first_new + s.n_positions > s.most) {
        if (threadIdx.x == 0) report(fault, FAULT_CACHE, first_new + s.n_positions - 1, s.most);
        return; /* all blocks of the sequence do, so that no ticket is left over */
    }
    int64_t cache = (b * s.n_kv_heads + kv) * s.capacity * s.head_size;
    const T *new_keys = qkv + b * s.n_positions * s.width + (int64_t)(s.n_heads + kv) * s.head_size;
    const T *new_values = new_keys + (int64_t)s.n_kv_heads * s.head_size;
    if (part == 0 && h % share == 0) { /* position t goes into the cache */
        int64_t to = cache + (SPARSE ? (first_new + t) % s.capacity : first_new + t) * s.head_size;
        for (int i = (int)threadIdx.x; i < s.head_size; i += ATTEND_THREADS) {
            key_cache[to + i] = new_keys[t * s.width + i];
            value_cache[to + i] = new_values[t * s.width + i];
        }
    }
    Keys<T> keys = {new_keys + c,
                    new_values + c,
                    key_cache + cache + c,
                    value_cache + cache + c,
                    first_new,
                    s.width,
                    s.capacity,
                    s.head_size,
                    left};
    int64_t end_key = first_new + t + 1, first_key = 0;
    if (SPARSE) {
        int64_t reach = pattern_reach(&s.pattern), start = s.starts ? s.starts[n] : 0;
        first_key = reach && end_key - reach > start ? end_key - reach : start;
    }
    int64_t each = (end_key - first_key + s.n_parts - 1) / s.n_parts;
    int64_t first = first_key + part * each, end = first + each < end_key ? first + each : end_key;
    float q[VECTOR];
    unpack(load_raw<T, ALIGNED>(qkv + n * s.width + (int64_t)h * s.head_size + c, left), q);
    Attention mine = attend<T, LANES, ALIGNED, SPARSE>(q, keys, first, end, s, (int32_t)end_key - 1);
    mine = block_join<LANES>(mine, shared);
    if (s.n_parts == 1) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) mine.value[k] /= mine.sum;
        if ((int)threadIdx.x < LANES) store8(y + query * s.head_size + c, left, ALIGNED, mine.value);
        return;
    }
    float *all = parts + query * s.n_parts * (s.head_size + 2), *out = all + part * (s.head_size + 2);
    if (threadIdx.x == 0) out[0] = mine.max, out[1] = mine.sum;
    if ((int)threadIdx.x < LANES) store8(out + 2 + c, left, false, mine.value);
    if (is_last_block(&tickets[query], s.n_parts)) join_parts(all, y + query * s.head_size, s);
}

template <bool SPARSE>
static Status run(const KernelCall *call, const AttentionPattern *pattern, const int32_t *starts,
                  int64_t most, Error *error) {
    const Node *node = call->node;
    const AttentionAttributes *a = (const AttentionAttributes *)node->attributes;
    const Tensor *qkv = node->input[0], *cache = node->output[1];
    if (!same_types(qkv, node->output[0]) || !same_types(qkv, cache) || !same_types(cache, node->output[2])) {
        return cuda_unsupported(call, cache, error);
    }
    if (a->head_size > ATTEND_MOST_CHANNELS) return cuda_unsupported(call, qkv, error);
    const CudaContext *context = cuda_context(call);
    CachedShape s = {qkv->shape.dim[1],
                     qkv->shape.dim[2],
                     cache->shape.dim[2],
                     most,
                     a->n_heads,
                     a->n_kv_heads,
                     a->head_size,
                     cuda_attention_cached_parts(&context->traits, node),
                     a->scale,
                     *pattern,
                     starts};
    if (!cuda_attention_cached_queries(node)) return STATUS_OK;
    bool aligned = a->head_size % VECTOR == 0 && is_aligned(call->in[0]) && is_aligned(call->out[0]) &&
                   is_aligned(call->out[1]) && is_aligned(call->out[2]);
    dim3 grid((unsigned)cuda_attention_cached_queries(node), (unsigned)s.n_parts);
#define CACHED(LANES, ALIGNED)                                                                               \
    cached_kernel<T, LANES, ALIGNED, SPARSE><<<grid, ATTEND_THREADS, 0, context->stream>>>(                  \
        (const T *)call->in[0], (const int32_t *)call->in[1], (T *)call->out[0], (T *)call->out[1],          \
        (T *)call->out[2], (float *)call->scratch, context->tickets, s, context->device_fault)
    FOR_TYPE(qkv, T, {
        if (!aligned) CACHED(32, false);
        else if (a->head_size <= 8 * VECTOR) CACHED(8, true);
        else if (a->head_size <= 16 * VECTOR) CACHED(16, true);
        else CACHED(32, true);
    });
    return cuda_launched(node->op->name, error);
}

extern "C" Status cuda_attention_cached(const KernelCall *call, Error *error) {
    const AttentionPattern dense = {};
    return run<false>(call, &dense, NULL, call->node->output[1]->shape.dim[2], error);
}

extern "C" Status cuda_sparse_attention_cached(const KernelCall *call, Error *error) {
    const SparseCachedAttributes *a = (const SparseCachedAttributes *)call->node->attributes;
    return run<true>(call, &a->pattern, (const int32_t *)call->in[SPARSE_CACHED_STARTS], a->n_positions,
                     error);
}
