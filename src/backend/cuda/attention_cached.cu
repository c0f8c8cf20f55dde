/* attention_cached: new queries against the key/value cache, for generation.
 *
 * Floor over the copy bandwidth: the keys and values in use, 4·NKV·HS bytes a position and sequence in 16 bits. With one
 * new position a sequence there are only B·NH queries, too few blocks for a GPU, so the context is split: each block
 * takes a part of the keys of one query and leaves its unfinished softmax in scratch, and a second kernel joins the
 * parts. How many parts there are is fixed when the program is built; how long they are follows from start[b].
 *
 * Storing the new keys and values is done on the way: a query takes positions below start[b] from the cache and the new
 * ones from qkv, so nobody reads what is being stored. */
#include "backend/cuda/attend.cuh"

typedef struct {
    int64_t n_positions, width, capacity; /* T, elements of a row of qkv, positions of the cache */
    int n_heads, n_kv_heads, head_size, n_parts;
    float scale;
    bool aligned;
} CachedShape;

static int parts_of(const CudaContext *context, const Node *node) {
    const AttentionAttributes *a = (const AttentionAttributes *)node->attributes;
    int64_t queries = node->input[0]->shape.dim[0] * node->input[0]->shape.dim[1] * a->n_heads;
    int64_t capacity = node->output[1]->shape.dim[2], most = (capacity + 63) / 64;
    int64_t wanted = queries ? (4 * context->n_processors + queries - 1) / queries : 1;
    wanted = wanted < most ? wanted : most;
    return (int)(wanted > 1 ? wanted : 1);
}

/* New keys and values of position t into the cache. */
template <typename T>
DEVICE void store_row(const T *key, const T *value, T *key_cache, T *value_cache, int64_t at,
                      const CachedShape &s) {
    for (int c = (int)threadIdx.x * VECTOR; c < s.head_size; c += ATTEND_THREADS * VECTOR) {
        float v[VECTOR];
        load8(key + c, s.head_size - c, s.aligned, v);
        store8(key_cache + at + c, s.head_size - c, s.aligned, v);
        load8(value + c, s.head_size - c, s.aligned, v);
        store8(value_cache + at + c, s.head_size - c, s.aligned, v);
    }
}

template <typename T, int LANES>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    cached_kernel(const T *qkv, const int32_t *start, T *y, T *key_cache, T *value_cache, float *parts,
                  CachedShape s, CudaFault *fault) {
    __shared__ Attention shared[ATTEND_WARPS * LANES];
    int64_t query = blockIdx.x, n = query / s.n_heads, b = n / s.n_positions, t = n - b * s.n_positions;
    int h = (int)(query - n * s.n_heads), share = s.n_heads / s.n_kv_heads, kv = h / share,
        part = (int)blockIdx.y;
    int64_t first_new = start[b];
    if (first_new < 0 || first_new + s.n_positions > s.capacity) {
        if (threadIdx.x == 0) report(fault, FAULT_CACHE, first_new + s.n_positions - 1, s.capacity);
        return;
    }
    int64_t cache = (b * s.n_kv_heads + kv) * s.capacity * s.head_size,
            values_at = (int64_t)s.n_kv_heads * s.head_size;
    const T *new_keys = qkv + b * s.n_positions * s.width + (int64_t)(s.n_heads + kv) * s.head_size;
    if (part == 0 && h % share == 0) {
        store_row(new_keys + t * s.width, new_keys + t * s.width + values_at, key_cache, value_cache,
                  cache + (first_new + t) * s.head_size, s);
    }
    int64_t n_keys = first_new + t + 1, each = (n_keys + s.n_parts - 1) / s.n_parts;
    int64_t first = part * each, end = first + each < n_keys ? first + each : n_keys;
    enum { GROUPS = ATTEND_THREADS / LANES };
    int c = (int)threadIdx.x % LANES * VECTOR, left = s.head_size - c;
    float q[VECTOR];
    load8(qkv + n * s.width + (int64_t)h * s.head_size + c, left, s.aligned, q);
    Attention mine = attention_none();
    for (int64_t base = first; base < end;
         base += 2 * GROUPS) { /* all threads together: groups sum by shuffles */
        float key[2][VECTOR], value[2][VECTOR], score[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int64_t k = base + j * GROUPS + threadIdx.x / LANES;
            bool is_there = k < end, is_new = k >= first_new;
            const T *from =
                is_new ? new_keys + (k - first_new) * s.width + c : key_cache + cache + k * s.head_size + c;
            load8(from, is_there ? left : 0, s.aligned, key[j]);
            from = is_new ? from + values_at : value_cache + cache + k * s.head_size + c;
            load8(from, is_there ? left : 0, s.aligned, value[j]);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            bool is_there = base + j * GROUPS + threadIdx.x / LANES < end;
            score[j] = group_sum<LANES>(dot8(q, key[j])) * s.scale;
            if (!is_there) score[j] = -INFINITY;
        }
        float max = fmaxf(mine.max, fmaxf(score[0], score[1])), reference = max == -INFINITY ? 0.0f : max;
        float keep = __expf(mine.max - reference), p0 = __expf(score[0] - reference),
              p1 = __expf(score[1] - reference);
        mine.max = max;
        mine.sum = mine.sum * keep + p0 + p1;
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            mine.value[k] = mine.value[k] * keep + p0 * value[0][k] + p1 * value[1][k];
    }
    mine = block_join<LANES>(mine, shared);
    if ((int)threadIdx.x >= LANES || left <= 0) return;
    if (s.n_parts == 1) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) mine.value[k] /= mine.sum;
        store8(y + query * s.head_size + c, left, s.aligned, mine.value);
        return;
    }
    float *out = parts + (query * s.n_parts + part) * (s.head_size + 2); /* maximum, sum, values */
    if (threadIdx.x == 0) out[0] = mine.max, out[1] = mine.sum;
    store8(out + 2 + c, left, false, mine.value);
}

/* One warp a query: every thread has its channels and walks over the parts. */
template <typename T>
static __global__ void join_kernel(const float *parts, T *y, int64_t n_queries, CachedShape s) {
    int64_t query = (int64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (query >= n_queries) return;
    int stride = s.head_size + 2;
    const float *mine = parts + query * s.n_parts * stride;
    float max = -INFINITY, sum = 0.0f;
    for (int p = 0; p < s.n_parts; p++) max = fmaxf(max, mine[p * stride]);
    float reference = max == -INFINITY ? 0.0f : max;
    for (int p = 0; p < s.n_parts; p++) sum += mine[p * stride + 1] * __expf(mine[p * stride] - reference);
    for (int c = (int)threadIdx.x % WARP; c < s.head_size; c += WARP) {
        float value = 0.0f;
        for (int p = 0; p < s.n_parts; p++)
            value += mine[p * stride + 2 + c] * __expf(mine[p * stride] - reference);
        set_element(y + query * s.head_size + c, value / sum);
    }
}

extern "C" size_t cuda_attention_cached_scratch(CudaContext *context, const Node *node) {
    const AttentionAttributes *a = (const AttentionAttributes *)node->attributes;
    int64_t queries = node->input[0]->shape.dim[0] * node->input[0]->shape.dim[1] * a->n_heads;
    int n_parts = parts_of(context, node);
    return n_parts > 1 ? (size_t)(queries * n_parts * (a->head_size + 2)) * sizeof(float) : 0;
}

extern "C" Status cuda_attention_cached(const KernelCall *call, Error *error) {
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
                     a->n_heads,
                     a->n_kv_heads,
                     a->head_size,
                     parts_of(context, node),
                     a->scale,
                     a->head_size % VECTOR == 0 && is_aligned(call->in[0]) && is_aligned(call->out[0]) &&
                         is_aligned(call->out[1]) && is_aligned(call->out[2])};
    int64_t queries = qkv->shape.dim[0] * qkv->shape.dim[1] * a->n_heads;
    if (!queries) return STATUS_OK;
    dim3 grid((unsigned)queries, (unsigned)s.n_parts);
    FOR_TYPE(qkv, T,
             FOR_LANES(a->head_size, LANES,
                       cached_kernel<T, LANES><<<grid, ATTEND_THREADS, 0, context->stream>>>(
                           (const T *)call->in[0], (const int32_t *)call->in[1], (T *)call->out[0],
                           (T *)call->out[1], (T *)call->out[2], (float *)call->scratch, s,
                           context->device_fault)));
    TRY(cuda_launched("attention_cached", error));
    if (s.n_parts == 1) return STATUS_OK;
    FOR_TYPE(qkv, T,
             join_kernel<T><<<blocks_for(queries, ATTEND_WARPS), ATTEND_THREADS, 0, context->stream>>>(
                 (const float *)call->scratch, (T *)call->out[0], queries, s));
    return cuda_launched("attention_cached (join)", error);
}
