/* attention_part and its backward: rows are cut into rectangles of one run of positions each, and each goes
 * the way that takes it (attention_part.h). What a query has from the rectangles before is merged with what
 * the next one gives; gradients are added up, from zero on. */
#include "backend/cuda/attention/attention_part.h"
#include "backend/cuda/runtime/device.cuh"

#define LOG2_E 1.4426950408889634f

typedef struct {
    int64_t first, n, position;
} Run;

/* The runs of positions that n rows have; how many there are. */
static int runs_of(const RowPositions *rows, int64_t n, Run *runs) {
    int64_t head = rows->head < n ? rows->head : n;
    if (head <= 0 || head == n || !rows->skip) {
        runs[0] = {0, n, n ? row_place(rows, 0) : 0};
        return n > 0;
    }
    runs[0] = {0, head, row_place(rows, 0)};
    runs[1] = {head, n - head, row_place(rows, head)};
    return 2;
}

static PartShape part_shape(const AttentionPartAttributes *a, const Tensor *q, const Tensor *kv) {
    PartShape s = {};
    s.dtype = q->dtype;
    s.n_sequences = q->shape.dim[0];
    s.n_heads = a->heads.n_heads;
    s.n_kv_heads = a->heads.n_kv_heads;
    s.head_size = a->heads.head_size;
    s.scale = a->heads.scale;
    s.query_rows = q->shape.dim[1];
    s.key_rows = kv->shape.dim[1];
    s.q_width = q->shape.dim[2];
    s.kv_width = kv->shape.dim[2];
    s.threshold = random_dropout_threshold(a->heads.dropout);
    s.site = a->heads.site;
    s.first_head = a->heads.first_head;
    s.n_positions = a->n_positions;
    return s;
}

/* False: no query of the one sees a key of the other. */
static bool set_rectangle(PartShape *s, const Run *queries, const Run *keys) {
    s->first_query = queries->first;
    s->n_queries = queries->n;
    s->query_position = queries->position;
    s->first_key = keys->first;
    s->n_keys = keys->n;
    s->key_position = keys->position;
    s->offset = queries->position - keys->position;
    if (s->offset > keys->n) s->offset = keys->n; /* it sees them all */
    return s->offset + queries->n > 0;
}

static bool is_tiled(const CudaContext *context, const PartShape *s, const PartMemory *m) {
    AttentionWay way = context->traits.attention_way;
    uintptr_t all = (uintptr_t)m->q | (uintptr_t)m->kv | (uintptr_t)m->y | (uintptr_t)m->dy |
                    (uintptr_t)m->dq | (uintptr_t)m->dkv;
    return way != ATTENTION_PLAIN && all % 16 == 0 && attention_part_tiled_takes(s);
}

/* ---- forward */

/* Queries that see no key here at all have nothing. */
static __global__ void blank_kernel(float *y, float *lse, PartShape s) {
    int64_t row = blockIdx.x, b = row / s.n_queries, t = s.first_query + row % s.n_queries;
    float *out = y + (b * s.query_rows + t) * s.q_width;
    for (int64_t i = threadIdx.x; i < s.q_width; i += blockDim.x) out[i] = 0.0f;
    for (int h = (int)threadIdx.x; h < s.n_heads; h += (int)blockDim.x)
        lse[(b * s.n_heads + h) * s.query_rows + t] = -INFINITY;
}

static Status keep_before(const KernelCall *call, cudaStream_t stream, Error *error) {
    for (int k = 0; k < 2; k++) {
        if (!call->in[3 + k] || call->in[3 + k] == call->out[k]) continue;
        TRY(cuda_check(cudaMemcpyAsync(call->out[k], call->in[3 + k], tensor_bytes(call->node->output[k]),
                                       cudaMemcpyDeviceToDevice, stream),
                       "attention_part", error));
    }
    return STATUS_OK;
}

extern "C" Status cuda_attention_part(const KernelCall *call, Error *error) {
    enum { BLANK_THREADS = 256 };
    const Node *node = call->node;
    const AttentionPartAttributes *a = (const AttentionPartAttributes *)node->attributes;
    const Tensor *q = node->input[0], *kv = node->input[1];
    CudaContext *context = cuda_context(call);
    if (!same_types(q, kv) || node->output[0]->dtype != DTYPE_F32)
        return cuda_unsupported(call, node->output[0], error);
    PartShape s = part_shape(a, q, kv);
    PartMemory m = {};
    m.q = call->in[0], m.kv = call->in[1], m.random = (const int32_t *)call->in[2];
    m.y = (float *)call->out[0], m.lse = (float *)call->out[1];
    Run queries[2], keys[2];
    int n_query_runs = runs_of(&a->queries, s.query_rows, queries),
        n_key_runs = runs_of(&a->keys, s.key_rows, keys);
    if (!s.n_sequences || !s.query_rows) return STATUS_OK;
    TRY(keep_before(call, context->stream, error));
    for (int i = 0; i < n_query_runs; i++) {
        s.merges = call->in[3] != NULL;
        for (int k = 0; k < n_key_runs; k++) {
            if (!set_rectangle(&s, &queries[i], &keys[k])) continue;
            TRY(is_tiled(context, &s, &m) ? attention_part_tiled_forward(&s, &m, context->stream, error)
                                          : attention_part_plain_forward(&s, &m, context->stream, error));
            s.merges = true;
        }
        if (s.merges) continue;
        s.first_query = queries[i].first, s.n_queries = queries[i].n;
        blank_kernel<<<(unsigned)(s.n_sequences * s.n_queries), BLANK_THREADS, 0, context->stream>>>(
            m.y, m.lse, s);
    }
    return cuda_launched("attention_part", error);
}

/* ---- backward */

/* A warp a row and head: what scores are made relative to, and Σ dy·y. */
template <typename T, typename Y>
static __global__ void facts_kernel(const T *dy, const Y *y, const float *lse, float2 *facts, PartShape s) {
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= s.n_sequences * s.n_heads * s.query_rows) return;
    int64_t t = row % s.query_rows, head = row / s.query_rows, b = head / s.n_heads, h = head % s.n_heads;
    int64_t at = (b * s.query_rows + t) * s.q_width + h * s.head_size;
    float sum = 0.0f;
    for (int i = (int)threadIdx.x % WARP; i < s.head_size; i += WARP)
        sum = fmaf(as_float(dy[at + i]), as_float(y[at + i]), sum);
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (threadIdx.x % WARP == 0)
        facts[row] = make_float2(lse[row] == -INFINITY ? INFINITY : lse[row] * LOG2_E, sum);
}

/* dy is of the queries' type; y too, or f32. */
static Status find_facts(const KernelCall *call, const PartShape *s, cudaStream_t stream, Error *error) {
    enum { THREADS = 256 };
    const Tensor *q = call->node->input[1], *y = call->node->input[3];
    int64_t rows = s->n_sequences * s->n_heads * s->query_rows;
    FOR_TYPE(q, T, {
        const T *dy = (const T *)call->in[0];
        unsigned blocks = blocks_for(rows, THREADS / WARP);
        if (y->dtype == DTYPE_F32)
            facts_kernel<T, float><<<blocks, THREADS, 0, stream>>>(
                dy, (const float *)call->in[3], (const float *)call->in[4], (float2 *)call->scratch, *s);
        else
            facts_kernel<T, T><<<blocks, THREADS, 0, stream>>>(
                dy, (const T *)call->in[3], (const float *)call->in[4], (float2 *)call->scratch, *s);
    });
    return cuda_launched("attention_part_backward", error);
}

extern "C" Status cuda_attention_part_backward(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const AttentionPartAttributes *a = (const AttentionPartAttributes *)node->attributes;
    const Tensor *q = node->input[1], *kv = node->input[2], *y = node->input[3];
    CudaContext *context = cuda_context(call);
    for (int k = 0; k < 2; k++) {
        if (node->output[k] && node->output[k]->dtype != DTYPE_F32)
            return cuda_unsupported(call, node->output[k], error);
    }
    if (!same_types(q, node->input[0]) || !same_types(q, kv) || (y->dtype != DTYPE_F32 && !same_types(q, y)))
        return cuda_unsupported(call, node->input[0], error);
    PartShape s = part_shape(a, q, kv);
    PartMemory m = {};
    m.dy = call->in[0], m.q = call->in[1], m.kv = call->in[2], m.random = (const int32_t *)call->in[5];
    m.facts = (const float *)call->scratch;
    m.dq = (float *)call->out[0], m.dkv = (float *)call->out[1];
    Run queries[2], keys[2];
    int n_query_runs = runs_of(&a->queries, s.query_rows, queries),
        n_key_runs = runs_of(&a->keys, s.key_rows, keys);
    for (int k = 0; k < 2; k++) {
        if (call->out[k] && !call->add[k] && tensor_bytes(node->output[k]))
            TRY(cuda_check(cudaMemsetAsync(call->out[k], 0, tensor_bytes(node->output[k]), context->stream),
                           "attention_part_backward", error));
    }
    if (!s.n_sequences || !s.query_rows || !s.key_rows) return STATUS_OK;
    TRY(find_facts(call, &s, context->stream, error));
    for (int i = 0; i < n_query_runs * n_key_runs; i++) {
        if (!set_rectangle(&s, &queries[i / n_key_runs], &keys[i % n_key_runs])) continue;
        TRY(is_tiled(context, &s, &m) ? attention_part_tiled_backward(&s, &m, context->stream, error)
                                      : attention_part_plain_backward(&s, &m, context->stream, error));
    }
    return STATUS_OK;
}
