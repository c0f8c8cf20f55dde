/* attention_part, sparse_attention_part and their backwards: rows are cut into rectangles of one run of
 * positions each, and each goes the way that takes it (attention_part.h). What a query has from the
 * rectangles before is merged with what the next one gives; gradients are added up, from zero on. */
#include "backend/cuda/attention/attention_facts.h"
#include "backend/cuda/attention/attention_part.h"
#include "backend/cuda/runtime/device.cuh"

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

/* pattern NULL: dense. */
static PartShape part_shape(const AttentionPartAttributes *a, const AttentionPattern *pattern,
                            const Tensor *q, const Tensor *kv) {
    PartShape s = {};
    if (pattern) s.pattern = *pattern;
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
    int64_t reach = pattern_reach(&s->pattern);   /* of the first query, from which keys are the nearest */
    bool is_far = reach && queries->position - (keys->position + keys->n - 1) >= reach;
    return s->offset + queries->n > 0 && !is_far;
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

static Status run_forward(const KernelCall *call, const AttentionPattern *pattern, const int32_t *starts,
                          Error *error) {
    enum { BLANK_THREADS = 256 };
    const Node *node = call->node;
    const AttentionPartAttributes *a = (const AttentionPartAttributes *)node->attributes;
    const Tensor *q = node->input[0], *kv = node->input[1];
    CudaContext *context = cuda_context(call);
    if (!same_types(q, kv) || node->output[0]->dtype != DTYPE_F32)
        return cuda_unsupported(call, node->output[0], error);
    PartShape s = part_shape(a, pattern, q, kv);
    PartMemory m = {};
    m.starts = starts;
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

/* Attributes of the sparse kind begin with those of the other. */
static const AttentionPattern *pattern_of(const KernelCall *call) {
    return &((const SparsePartAttributes *)call->node->attributes)->pattern;
}

extern "C" Status cuda_attention_part(const KernelCall *call, Error *error) {
    return run_forward(call, NULL, NULL, error);
}

extern "C" Status cuda_sparse_attention_part(const KernelCall *call, Error *error) {
    return run_forward(call, pattern_of(call), (const int32_t *)call->in[5], error);
}

/* ---- backward */

/* dy is of the queries' type; y too, or f32. */
static Status find_facts(const KernelCall *call, const PartShape *s, cudaStream_t stream, Error *error) {
    const FactRows rows = {
        s->dtype,    call->node->input[3]->dtype, s->n_sequences, s->n_heads, s->query_rows, s->q_width,
        s->head_size};
    return attention_row_facts(&rows, call->in[0], call->in[3], (const float *)call->in[4],
                               (float *)call->scratch, stream, error);
}

static Status run_backward(const KernelCall *call, const AttentionPattern *pattern, const int32_t *starts,
                           Error *error) {
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
    PartShape s = part_shape(a, pattern, q, kv);
    PartMemory m = {};
    m.starts = starts;
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

extern "C" Status cuda_attention_part_backward(const KernelCall *call, Error *error) {
    return run_backward(call, NULL, NULL, error);
}

extern "C" Status cuda_sparse_attention_part_backward(const KernelCall *call, Error *error) {
    return run_backward(call, pattern_of(call), (const int32_t *)call->in[6], error);
}
