/* The gradient of the token table: each row of dy is added to the row of the table that its token names.
 *
 * Floor over the copy bandwidth: N·C elements of dy read, plus the table written once, or, where it is added
 * to, what the tokens name of it read and written. Floats are not added by atomics, whose order would differ
 * from run to run, unless the user allows any order: then each row of dy is added to its row of an f32 table
 * as it comes, and nothing is sorted. (Not where there are few tokens: they would all wait for the same
 * rows.)
 *
 * Few tokens (bytes, characters): every warp has a whole table of sums for a strip of 32 channels in shared
 * memory, one channel a thread, and walks over a part of the rows in order. The tables of a block's warps are
 * added up, then those of all blocks (reduce.cu).
 *
 * Many tokens: the places of the tokens are sorted by token. They are counted and dealt into buckets by
 * integer atomics, in any order; then each finds its rank in its bucket by counting those before it, which
 * makes the order that of the places. (A bucket is short, unless nearly all tokens are the same.) The sorted
 * list is cut into chunks of CHUNK places; a block sums one chunk for a strip of channels and writes each run
 * of equal tokens that begins and ends inside it straight to the table. A run that crosses chunks leaves
 * partial sums: what a chunk has of the run it begins with, and of the run it ends with. The chunk where such
 * a run begins then adds them up in order. */
#include "backend/cuda/runtime/device.cuh"

/* The tokens that the table has rows of: n from `first` on; of n_all that there are. Others are another
 * rank's, and the rows behind the n are padding, which stays 0. */
typedef struct {
    int first, n, n_all;
} TokenRange;

static TokenRange range_of(const Node *node) {
    const EmbeddingAttributes *a = (const EmbeddingAttributes *)node->attributes;
    TokenRange range = {(int)a->first_token, (int)a->n_tokens, (int)a->n_all};
    return range;
}

DEVICE void check_token(int token, TokenRange range, CudaFault *fault) {
    if (token < 0 || token >= range.n_all) report(fault, FAULT_TOKEN, token, range.n_all);
}

/* ---- few tokens ---- */

enum {
    FEW_WARPS = 8, /* of a block, if their tables fit */
    FEW_AT_ONCE = 8,
};

static int few_warps(int64_t vocabulary) {
    int64_t fit = FEW_TOKENS / (vocabulary > 0 ? vocabulary : 1);
    return (int)(fit < FEW_WARPS ? fit : (int64_t)FEW_WARPS);
}

template <typename T>
static __global__ void __launch_bounds__(WARP *FEW_WARPS)
    few_tokens_kernel(const T *dy, const int32_t *tokens, float *partial, int64_t n, int vocabulary,
                      int64_t channels, int64_t rows_each, TokenRange range, CudaFault *fault) {
    extern __shared__ float sums[]; /* (warps, V, WARP) */
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, n_warps = (int)blockDim.x / WARP;
    int64_t c = (int64_t)blockIdx.x * WARP + lane;
    float *mine = sums + warp * vocabulary * WARP + lane;
    for (int v = 0; v < vocabulary; v++) mine[v * WARP] = 0.0f;
    int64_t first = (blockIdx.y * (int64_t)n_warps + warp) * rows_each;
    int64_t end = first + rows_each < n ? first + rows_each : n;
    for (int64_t i = first; i < end; i += FEW_AT_ONCE) {
        float value[FEW_AT_ONCE];
        int token[FEW_AT_ONCE];
#pragma unroll
        for (int j = 0; j < FEW_AT_ONCE; j++) {
            bool is_there = i + j < end;
            token[j] = (is_there ? tokens[i + j] : range.first) - range.first;
            value[j] = is_there && c < channels ? as_float(dy[(i + j) * channels + c]) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < FEW_AT_ONCE; j++) {
            if ((unsigned)token[j] < (unsigned)range.n) mine[token[j] * WARP] += value[j];
            else if (lane == 0) check_token(token[j] + range.first, range, fault);
        }
    }
    __syncthreads();
    if (c >= channels) return;
    for (int v = warp; v < vocabulary; v += n_warps) {
        float sum = 0.0f;
        for (int w = 0; w < n_warps; w++) sum += sums[(w * vocabulary + v) * WARP + lane];
        partial[(blockIdx.y * (int64_t)vocabulary + v) * channels + c] = sum;
    }
}

static Status few_tokens_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *output = call->node->output[0];
    int64_t vocabulary = output->shape.dim[0], channels = output->shape.dim[1];
    int64_t n = tensor_count(call->node->input[1]);
    const CudaContext *context = cuda_context(call);
    if (!vocabulary || !channels) return STATUS_OK;
    int64_t parts = cuda_few_tokens_parts(&context->traits, call->node), n_warps = few_warps(vocabulary);
    int64_t rows_each = (n + parts * n_warps - 1) / (parts * n_warps);
    dim3 grid(blocks_for(channels, WARP), (unsigned)parts);
    size_t shared = (size_t)(n_warps * vocabulary * WARP) * sizeof(float);
    FOR_TYPE(dy, T,
             few_tokens_kernel<T><<<grid, (unsigned)n_warps * WARP, shared, context->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], (float *)call->scratch, n,
                 (int)vocabulary, channels, rows_each, range_of(call->node), context->device_fault));
    TRY(cuda_launched("embedding_token_gradient", error));
    SumOutput sum = {call->out[0], output->dtype, call->add[0]};
    return cuda_reduce_partials(context, (const float *)call->scratch, parts, vocabulary * channels, 1, &sum,
                                error);
}

/* ---- many tokens: sorting ---- */

enum {
    CHUNK = SORTED_CHUNK,
    STRIP_THREADS = 128, /* of a block: each has 8 channels */
    SORT_THREADS = 256,
    SCAN_THREADS = 1024,
};

/* In scratch. Tokens that have no row here count as number V and come last; nobody sums them. */
typedef struct {
    int32_t *count,
        *first;      /* (V+2): tokens of each kind, then where the next one goes; where its bucket begins */
    int32_t *bucket; /* (N): places by token, in any order within one */
    int32_t *place, *token; /* (N): places by token and place, and the token there */
    float *partial;         /* (n_chunks, 2, C): of the run a chunk begins with, and ends with */
    int64_t n, n_chunks;
    int vocabulary;
    TokenRange range;
} SortedTokens;

static SortedTokens sorted_tokens(const Node *node, void *scratch) {
    SortedSizes sizes = cuda_sorted_sizes(node);
    SortedTokens s = {};
    s.n = sizes.n;
    s.n_chunks = sizes.n_chunks;
    s.vocabulary = (int)node->output[0]->shape.dim[0];
    s.range = range_of(node);
    s.count = (int32_t *)scratch;
    s.first = s.count + sizes.kinds;
    s.bucket = s.first + sizes.kinds;
    s.place = s.bucket + sizes.padded;
    s.token = s.place + sizes.padded;
    s.partial = (float *)(s.token + sizes.padded);
    return s;
}

DEVICE int kind_of(int token, int vocabulary, TokenRange range) {
    int row = token - range.first;
    return row >= 0 && row < range.n ? row : vocabulary;
}

static __global__ void __launch_bounds__(SORT_THREADS)
    count_kernel(const int32_t *tokens, SortedTokens s, CudaFault *fault) {
    int64_t i = (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x;
    if (i >= s.n) return;
    int kind = kind_of(tokens[i], s.vocabulary, s.range);
    if (kind == s.vocabulary) check_token(tokens[i], s.range, fault);
    atomicAdd(&s.count[kind], 1);
}

/* One block: the sum of all counts before each, SCAN_THREADS of them at a time. */
static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(SortedTokens s) {
    __shared__ int warp_total[SCAN_THREADS / WARP], carried;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, total = 0;
    enum { EACH = 8 };
    for (int base = 0; base < s.vocabulary + 2; base += SCAN_THREADS * EACH) {
        int at = base + (int)threadIdx.x * EACH, count[EACH], sum = 0;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            count[k] = at + k < s.vocabulary + 1 ? s.count[at + k] : 0;
            sum += count[k];
        }
        int before = sum;
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            int other = __shfl_up_sync(0xFFFFFFFFu, before, step);
            if (lane >= step) before += other;
        }
        if (lane == WARP - 1) warp_total[warp] = before;
        __syncthreads();
        for (int w = 0; w < warp; w++) before += warp_total[w];
        before += total - sum;
        if (threadIdx.x == SCAN_THREADS - 1) carried = before + sum;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            if (at + k < s.vocabulary + 2) s.first[at + k] = s.count[at + k] = before;
            before += count[k];
        }
        __syncthreads();
        total = carried;
    }
}

static __global__ void __launch_bounds__(SORT_THREADS) deal_kernel(const int32_t *tokens, SortedTokens s) {
    int64_t i = (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x;
    if (i < s.n) s.bucket[atomicAdd(&s.count[kind_of(tokens[i], s.vocabulary, s.range)], 1)] = (int32_t)i;
}

/* The neighbours of a warp are mostly in one bucket and read the same words. What nobody sums has no
 * order. */
static __global__ void __launch_bounds__(SORT_THREADS) rank_kernel(const int32_t *tokens, SortedTokens s) {
    int64_t i = (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x;
    if (i >= s.n) return;
    int place = s.bucket[i], kind = kind_of(tokens[place], s.vocabulary, s.range);
    int first = s.first[kind], end = s.first[kind + 1], rank = 0;
    if (kind == s.vocabulary) rank = (int)i - first;
    else {
#pragma unroll 4
        for (int j = first; j < end; j++) rank += s.bucket[j] < place;
    }
    s.place[first + rank] = place;
    s.token[first + rank] = kind;
}

static Status sort_tokens(const CudaContext *context, const int32_t *tokens, const SortedTokens *s,
                          Error *error) {
    unsigned blocks = blocks_for(s->n, SORT_THREADS);
    size_t n_bytes = (size_t)(s->vocabulary + 2) * sizeof(int32_t);
    TRY(cuda_check(cudaMemsetAsync(s->count, 0, n_bytes, context->stream), "embedding_token_gradient",
                   error));
    count_kernel<<<blocks, SORT_THREADS, 0, context->stream>>>(tokens, *s, context->device_fault);
    scan_kernel<<<1, SCAN_THREADS, 0, context->stream>>>(*s);
    deal_kernel<<<blocks, SORT_THREADS, 0, context->stream>>>(tokens, *s);
    rank_kernel<<<blocks, SORT_THREADS, 0, context->stream>>>(tokens, *s);
    return cuda_launched("embedding_token_gradient (sort)", error);
}

/* ---- many tokens: sums ---- */

/* Does the run that chunk `chunk` begins with begin before it; does the one it ends with go on after it? */
DEVICE bool begins_before(const SortedTokens &s, int64_t chunk) {
    return chunk > 0 && s.token[chunk * CHUNK - 1] == s.token[chunk * CHUNK];
}
DEVICE bool goes_on_after(const SortedTokens &s, int64_t chunk) {
    int64_t end = (chunk + 1) * CHUNK;
    return end < s.n && s.token[end - 1] == s.token[end];
}

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(STRIP_THREADS)
    token_gradient_kernel(const T *dy, SortedTokens s, Memory table, int64_t channels, bool add) {
    enum { AT_ONCE = 8 };
    __shared__ int32_t place[CHUNK], token[CHUNK];
    int64_t chunk = blockIdx.x, first = chunk * CHUNK;
    int64_t c = ((int64_t)blockIdx.y * STRIP_THREADS + threadIdx.x) * VECTOR, n = channels - c;
    int count = s.n - first < CHUNK ? (int)(s.n - first) : (int)CHUNK;
    if (threadIdx.x < CHUNK) {
        bool is_there = (int)threadIdx.x < count;
        place[threadIdx.x] = is_there ? s.place[first + threadIdx.x] : 0;
        token[threadIdx.x] = is_there ? s.token[first + threadIdx.x] : -1;
    }
    bool crosses_begin = begins_before(s, chunk), crosses_end = goes_on_after(s, chunk), is_first_run = true;
    __syncthreads();
    if (n <= 0) return;
    float sum[VECTOR] = {0};
    for (int i = 0; i < count; i += AT_ONCE) {
        Raw<T> raw[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            bool is_there = i + j < count;
            raw[j] = load_raw<T, ALIGNED>(dy + (int64_t)place[is_there ? i + j : 0] * channels + c,
                                          is_there ? n : 0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (i + j >= count) break;
            float v[VECTOR];
            unpack(raw[j], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
            bool is_last = i + j + 1 == count;
            if (!is_last && token[i + j + 1] == token[i + j]) continue;
            bool before = is_first_run && crosses_begin, after = is_last && crosses_end;
            if (before || after) { /* slot 1 is where a run begins, slot 0 where it goes on */
                store8(s.partial + (chunk * 2 + (before ? 0 : 1)) * channels + c, n, ALIGNED, sum);
            } else if (token[i + j] < s.vocabulary) {
                write8(table, token[i + j] * channels + c, n, sum, add);
            }
            is_first_run = false;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] = 0.0f;
        }
    }
}

/* A run that crosses chunks: the block of the chunk where it begins adds up what the later ones left. */
static __global__ void __launch_bounds__(STRIP_THREADS)
    join_kernel(SortedTokens s, Memory table, int64_t channels, bool aligned, bool add) {
    int64_t chunk = blockIdx.x, c = ((int64_t)blockIdx.y * STRIP_THREADS + threadIdx.x) * VECTOR,
            n = channels - c;
    if (n <= 0 || !goes_on_after(s, chunk)) return;
    int32_t token = s.token[(chunk + 1) * CHUNK - 1];
    bool is_whole_chunk = s.token[chunk * CHUNK] == token;
    if (token >= s.vocabulary || (is_whole_chunk && begins_before(s, chunk))) return;
    float sum[VECTOR];
    load8(s.partial + (chunk * 2 + 1) * channels + c, n, aligned, sum);
    for (int64_t next = chunk + 1; next < s.n_chunks && s.token[next * CHUNK] == token; next++) {
        float v[VECTOR];
        load8(s.partial + next * 2 * channels + c, n, aligned, v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
    }
    write8(table, token * channels + c, n, sum, add);
}

/* ---- many tokens, in any order ---- */

enum { ATOMIC = 4 }; /* channels of a thread: as many as one atomic can add, from compute capability 9.0 on */

DEVICE void add4(float *p, int64_t n, bool aligned, const float v[ATOMIC]) {
#if __CUDA_ARCH__ >= 900
    if (aligned && n >= ATOMIC) {
        atomicAdd((float4 *)p, make_float4(v[0], v[1], v[2], v[3]));
        return;
    }
#endif
    (void)aligned;
#pragma unroll
    for (int k = 0; k < ATOMIC; k++) {
        if (k < n) atomicAdd(p + k, v[k]);
    }
}

template <typename T>
static __global__ void __launch_bounds__(SORT_THREADS)
    any_order_kernel(const T *dy, const int32_t *tokens, Memory table, int64_t n_threads, int64_t channels,
                     int vocabulary, TokenRange range, bool aligned, CudaFault *fault) {
    struct alignas(ATOMIC * sizeof(T)) Four {
        T element[ATOMIC];
    };
    int64_t i = (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x, each = (channels + ATOMIC - 1) / ATOMIC;
    if (i >= n_threads) return;
    int64_t row = i / each, c = (i - row * each) * ATOMIC, n = channels - c;
    int token = kind_of(tokens[row], vocabulary, range);
    if (token == vocabulary) {
        check_token(tokens[row], range, fault);
        return;
    }
    const T *p = dy + row * channels + c;
    Four four = {};
    if (aligned) four = *(const Four *)p;
    float v[ATOMIC];
#pragma unroll
    for (int k = 0; k < ATOMIC; k++)
        v[k] = aligned ? as_float(four.element[k]) : k < n ? as_float(p[k]) : 0.0f;
    add4((float *)table.data + token * channels + c, n, table.aligned, v);
}

static Status any_order_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *output = call->node->output[0];
    int64_t channels = output->shape.dim[1], n = tensor_count(call->node->input[1]);
    int64_t n_threads = n * ((channels + ATOMIC - 1) / ATOMIC);
    const CudaContext *context = cuda_context(call);
    if (!n_threads) return STATUS_OK;
    Memory table = memory_of(call->out[0], output, channels);
    bool aligned = rows_aligned(call->in[0], channels);
    FOR_TYPE(dy, T,
             any_order_kernel<T><<<blocks_for(n_threads, SORT_THREADS), SORT_THREADS, 0, context->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], table, n_threads, channels,
                 (int)output->shape.dim[0], range_of(call->node), aligned, context->device_fault));
    return cuda_launched("embedding_token_gradient (in any order)", error);
}

extern "C" Status cuda_embedding_token_gradient(const KernelCall *call, Error *error) {
    if (cuda_has_few_tokens(call->node)) return few_tokens_gradient(call, error);
    const Tensor *dy = call->node->input[0], *output = call->node->output[0];
    int64_t channels = output->shape.dim[1];
    const CudaContext *context = cuda_context(call);
    if (!call->add[0]) {
        TRY(cuda_check(cudaMemsetAsync(call->out[0], 0, tensor_bytes(output), context->stream),
                       "embedding_token_gradient", error));
    }
    if (cuda_tokens_take_any_order(&context->traits, call->node)) return any_order_gradient(call, error);
    SortedTokens s = sorted_tokens(call->node, call->scratch);
    if (!s.n || !channels) return STATUS_OK;
    TRY(sort_tokens(context, (const int32_t *)call->in[1], &s, error));
    Memory table = memory_of(call->out[0], output, channels);
    bool aligned = rows_aligned(call->in[0], channels);
    dim3 grid((unsigned)s.n_chunks, blocks_for(channels, STRIP_THREADS * VECTOR));
#define TOKENS(ALIGNED)                                                                                      \
    token_gradient_kernel<T, ALIGNED><<<grid, STRIP_THREADS, 0, context->stream>>>(                          \
        (const T *)call->in[0], s, table, channels, call->add[0])
    FOR_TYPE(dy, T, {
        if (aligned) TOKENS(true);
        else TOKENS(false);
    });
    TRY(cuda_launched("embedding_token_gradient", error));
    join_kernel<<<grid, STRIP_THREADS, 0, context->stream>>>(s, table, channels, channels % VECTOR == 0,
                                                             call->add[0]);
    return cuda_launched("embedding_token_gradient (join)", error);
}
