/* embedding: rows of the two tables added up, and the gradients of the tables, which are sums of rows of dy.
 *
 * Floors over the copy bandwidth: forward 2·N·C elements (a row read, a row written; the position table is small and
 * stays in cache); both gradients N·C elements of dy plus what they write of the table.
 *
 * The token gradient must add up the rows of equal tokens without atomics, whose order would differ from run to run.
 *
 * Few tokens (bytes, characters): a block has a whole table of sums for a strip of channels in shared memory, one thread
 * a channel, and walks over a part of the rows in order; the tables of all parts are then added up (reduce.cu).
 *
 * Many tokens: the places of the tokens are sorted by token (a stable radix sort by one block: its tens of microseconds
 * vanish in a step that has so many tokens). The sorted list is cut into chunks of CHUNK places; a block sums one chunk
 * for a strip of channels and writes each run of equal tokens that begins and ends inside it straight to the table. A
 * run that crosses chunks leaves partial sums: what a chunk has of the run it begins with, and of the run it ends with.
 * The chunk where such a run begins then adds them up in order. */
#include "backend/cuda/device.cuh"

enum { THREADS = 256, ROWS = THREADS / WARP };

/* ---- forward: a warp a row ---- */

typedef struct {
    int64_t n_rows, n_positions, channels; /* B·T, T, C */
    int64_t vocabulary, n_places;          /* rows of the two tables */
    int64_t first_position;
    bool aligned;
} EmbeddingShape;

template <typename T>
static __global__ void embedding_kernel(const int32_t *tokens, const T *token_table, const T *position_table,
                                        const int32_t *start, T *y, EmbeddingShape s, CudaFault *fault) {
    int64_t n = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (n >= s.n_rows) return;
    int64_t token = tokens[n],
            place = s.first_position + n % s.n_positions + (start ? start[n / s.n_positions] : 0);
    bool has_token = token >= 0 && token < s.vocabulary;
    bool has_place = position_table && place >= 0 && place < s.n_places;
    if (lane == 0 && !has_token) report(fault, FAULT_TOKEN, token, s.vocabulary);
    if (lane == 0 && position_table && !has_place) report(fault, FAULT_POSITION, place, s.n_places);
    for (int64_t c = lane * VECTOR; c < s.channels; c += WARP * VECTOR) {
        float v[VECTOR] = {0}, p[VECTOR] = {0};
        if (has_token) load8(token_table + token * s.channels + c, s.channels - c, s.aligned, v);
        if (has_place) load8(position_table + place * s.channels + c, s.channels - c, s.aligned, p);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] += p[k];
        store8(y + n * s.channels + c, s.channels - c, s.aligned, v);
    }
}

extern "C" Status cuda_embedding(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const EmbeddingAttributes *a = (const EmbeddingAttributes *)node->attributes;
    const Tensor *tokens = node->input[0], *table = node->input[1], *positions = node->input[2],
                 *y = node->output[0];
    if (!same_types(table, positions) || !same_types(table, y)) return cuda_unsupported(call, y, error);
    EmbeddingShape s = {tensor_count(tokens),
                        tokens->shape.dim[1],
                        table->shape.dim[1],
                        table->shape.dim[0],
                        positions ? positions->shape.dim[0] : 0,
                        a->first_position,
                        rows_aligned(call->in[1], table->shape.dim[1]) && is_aligned(call->in[2]) &&
                            is_aligned(call->out[0])};
    if (!s.n_rows) return STATUS_OK;
    const CudaContext *context = cuda_context(call);
    FOR_TYPE(y, T,
             embedding_kernel<T><<<blocks_for(s.n_rows, ROWS), THREADS, 0, context->stream>>>(
                 (const int32_t *)call->in[0], (const T *)call->in[1], (const T *)call->in[2],
                 (const int32_t *)call->in[3], (T *)call->out[0], s, context->device_fault));
    return cuda_launched("embedding", error);
}

/* ---- gradient of the token table, few tokens ---- */

enum { FEW_TOKENS = 384, FEW_AT_ONCE = 8 }; /* 48 KB of sums for 32 channels */

static bool has_few_tokens(const Node *node) {
    return node->output[0]->shape.dim[0] <= FEW_TOKENS;
}

/* Parts of the rows: 6 blocks a multiprocessor, but no more sums than half the elements of dy. */
static int64_t few_parts(const CudaContext *context, const Node *node) {
    int64_t n = tensor_count(node->input[1]), vocabulary = node->output[0]->shape.dim[0];
    int64_t strips = blocks_for(node->output[0]->shape.dim[1], WARP);
    int64_t parts = (6 * context->n_processors + strips - 1) / (strips ? strips : 1);
    int64_t most = n / (2 * (vocabulary ? vocabulary : 1));
    parts = parts < most ? parts : most;
    return parts > 1 ? parts : 1;
}

template <typename T>
static __global__ void __launch_bounds__(WARP)
    few_tokens_kernel(const T *dy, const int32_t *tokens, float *partial, int64_t n, int vocabulary,
                      int64_t channels, int64_t rows_each, CudaFault *fault) {
    extern __shared__ float sums[]; /* (V, WARP) */
    int lane = (int)threadIdx.x;
    int64_t c = (int64_t)blockIdx.x * WARP + lane;
    int64_t first = blockIdx.y * rows_each, end = first + rows_each < n ? first + rows_each : n;
    for (int v = 0; v < vocabulary; v++) sums[v * WARP + lane] = 0.0f;
    for (int64_t i = first; i < end; i += FEW_AT_ONCE) {
        float value[FEW_AT_ONCE];
        int token[FEW_AT_ONCE];
#pragma unroll
        for (int j = 0; j < FEW_AT_ONCE; j++) {
            bool is_there = i + j < end;
            token[j] = is_there ? tokens[i + j] : 0;
            value[j] = is_there && c < channels ? as_float(dy[(i + j) * channels + c]) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < FEW_AT_ONCE; j++) {
            if ((unsigned)token[j] < (unsigned)vocabulary) sums[token[j] * WARP + lane] += value[j];
            else if (lane == 0) report(fault, FAULT_TOKEN, token[j], vocabulary);
        }
    }
    if (c >= channels) return;
    for (int v = 0; v < vocabulary; v++)
        partial[(blockIdx.y * (int64_t)vocabulary + v) * channels + c] = sums[v * WARP + lane];
}

static Status few_tokens_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *output = call->node->output[0];
    int64_t vocabulary = output->shape.dim[0], channels = output->shape.dim[1];
    int64_t n = tensor_count(call->node->input[1]);
    const CudaContext *context = cuda_context(call);
    int64_t parts = few_parts(context, call->node);
    if (!vocabulary || !channels) return STATUS_OK;
    dim3 grid(blocks_for(channels, WARP), (unsigned)parts);
    FOR_TYPE(dy, T,
             few_tokens_kernel<T><<<grid, WARP, (size_t)vocabulary * WARP * sizeof(float), context->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], (float *)call->scratch, n,
                 (int)vocabulary, channels, (n + parts - 1) / parts, context->device_fault));
    TRY(cuda_launched("embedding_token_gradient", error));
    SumOutput sum = {call->out[0], output->dtype, call->add[0]};
    return cuda_reduce_partials(context, (const float *)call->scratch, parts, vocabulary * channels, 1, &sum,
                                error);
}

/* ---- gradient of the token table, many tokens ---- */

enum {
    CHUNK = 32,          /* sorted places of a block */
    STRIP_THREADS = 128, /* of a block: each has 8 channels */
    SORT_THREADS = 1024,
    SORT_WARPS = SORT_THREADS / WARP,
    DIGIT_BITS = 8,
    N_DIGITS = 1 << DIGIT_BITS,
};

/* In scratch: places in the order of their tokens, the tokens in that order, spare copies for the sort, partial sums. */
typedef struct {
    int32_t *place, *token;             /* (N) each: sorted */
    int32_t *spare_place, *spare_token; /* (N) */
    float *partial;                     /* (n_chunks, 2, C): of the run a chunk begins with, and ends with */
    int64_t n, n_chunks;
} SortedTokens;

static SortedTokens sorted_tokens(const Node *node, void *scratch, size_t *n_bytes) {
    int64_t n = tensor_count(node->input[1]), channels = shape_columns(node->output[0]->shape);
    int64_t padded = (n + 15) / 16 * 16;
    SortedTokens s = {};
    s.n = n;
    s.n_chunks = (n + CHUNK - 1) / CHUNK;
    s.place = (int32_t *)scratch;
    s.token = s.place + padded;
    s.spare_place = s.token + padded;
    s.spare_token = s.spare_place + padded;
    s.partial = (float *)(s.spare_token + padded);
    *n_bytes = (size_t)(4 * padded) * sizeof(int32_t) + (size_t)(s.n_chunks * 2 * channels) * sizeof(float);
    return s;
}

extern "C" size_t cuda_embedding_token_gradient_scratch(CudaContext *context, const Node *node) {
    if (has_few_tokens(node))
        return (size_t)few_parts(context, node) * (size_t)tensor_count(node->output[0]) * sizeof(float);
    size_t n_bytes;
    sorted_tokens(node, NULL, &n_bytes);
    return n_bytes;
}

/* Counters of (digit, warp); the column more puts the digits of one warp into different banks. */
typedef int SortCounters[N_DIGITS][SORT_WARPS + 1];

/* Makes counts into the places where each begins: an exclusive sum over (digit, warp), in that order. A thread has 8
 * neighbours. */
DEVICE void sum_counters(SortCounters next, int *warp_total) {
    enum { EACH = N_DIGITS * SORT_WARPS / SORT_THREADS };
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, at = (int)threadIdx.x * EACH;
    int count[EACH], sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        count[k] = next[(at + k) / SORT_WARPS][(at + k) % SORT_WARPS];
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
    before -= sum;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        next[(at + k) / SORT_WARPS][(at + k) % SORT_WARPS] = before;
        before += count[k];
    }
    __syncthreads();
}

/* One pass of the sort, by the digit at `shift`. Warp w has the w-th part of the list. It counts its digits; the counts
 * are made into places; then it walks over its part again, 32 elements at a time, and lanes with equal digits find their
 * rank by asking who has the same. place NULL: the places are 0, 1, 2, ... */
DEVICE void sort_pass(const int32_t *place, const int32_t *token, int32_t *to_place, int32_t *to_token, int n,
                      int shift, SortCounters next, int *warp_total) {
    enum { AT_ONCE = 4 };
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int part = ((n + SORT_WARPS - 1) / SORT_WARPS + WARP - 1) / WARP * WARP;
    int first = warp * part, end = first + part < n ? first + part : n;
    for (int i = (int)threadIdx.x; i < N_DIGITS * (SORT_WARPS + 1); i += SORT_THREADS) (&next[0][0])[i] = 0;
    __syncthreads();
#pragma unroll 8
    for (int i = first + lane; i < end; i += WARP)
        atomicAdd(&next[token[i] >> shift & (N_DIGITS - 1)][warp], 1);
    __syncthreads();
    sum_counters(next, warp_total);
    for (int base = first; base < end; base += WARP * AT_ONCE) {
        int32_t key[AT_ONCE], from[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = base + j * WARP + lane;
            key[j] = i < end ? token[i] : -1;
            from[j] = i < end && place ? place[i] : i;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            bool is_there = key[j] >= 0;
            int digit = is_there ? key[j] >> shift & (N_DIGITS - 1) : N_DIGITS; /* one that nobody has */
            unsigned same = __match_any_sync(0xFFFFFFFFu, digit);
            int rank = __popc(same & ((1u << lane) - 1)), begin = is_there ? next[digit][warp] : 0;
            __syncwarp();
            if (is_there && rank == 0) next[digit][warp] = begin + __popc(same);
            __syncwarp();
            if (!is_there) continue;
            to_place[begin + rank] = from[j];
            to_token[begin + rank] = key[j];
        }
    }
    __syncthreads();
}

/* Tokens outside the vocabulary become `vocabulary` and so come last; nobody sums them. n_passes is even or odd; the
 * result always ends in s.place, s.token. */
static __global__ void __launch_bounds__(SORT_THREADS)
    sort_kernel(const int32_t *tokens, SortedTokens s, int64_t vocabulary, int n_passes, CudaFault *fault) {
    __shared__ SortCounters next;
    __shared__ int warp_total[SORT_WARPS];
    int32_t *place = n_passes % 2 ? s.spare_place : s.place, *token = n_passes % 2 ? s.spare_token : s.token;
    int32_t *to_place = n_passes % 2 ? s.place : s.spare_place,
            *to_token = n_passes % 2 ? s.token : s.spare_token;
    for (int64_t i = threadIdx.x; i < s.n; i += SORT_THREADS) {
        int32_t key = tokens[i];
        if (key < 0 || key >= vocabulary) {
            report(fault, FAULT_TOKEN, key, vocabulary);
            key = (int32_t)vocabulary;
        }
        token[i] = key;
    }
    __syncthreads();
    for (int pass = 0; pass < n_passes; pass++) {
        sort_pass(pass ? place : NULL, token, to_place, to_token, (int)s.n, pass * DIGIT_BITS, next,
                  warp_total);
        int32_t *swap_place = place, *swap_token = token;
        place = to_place, token = to_token;
        to_place = swap_place, to_token = swap_token;
    }
}

/* What one chunk knows about the runs that cross its borders. */
DEVICE bool begins_before(const SortedTokens &s, int64_t chunk) {
    return chunk > 0 && s.token[chunk * CHUNK - 1] == s.token[chunk * CHUNK];
}
DEVICE bool goes_on_after(const SortedTokens &s, int64_t chunk) {
    int64_t end = (chunk + 1) * CHUNK;
    return end < s.n && s.token[end - 1] == s.token[end];
}

template <typename T>
static __global__ void __launch_bounds__(STRIP_THREADS)
    token_gradient_kernel(const T *dy, SortedTokens s, Memory table, int64_t vocabulary, int64_t channels,
                          bool aligned, bool add) {
    int64_t chunk = blockIdx.x, c = ((int64_t)blockIdx.y * STRIP_THREADS + threadIdx.x) * VECTOR,
            n = channels - c;
    if (n <= 0) return;
    int64_t first = chunk * CHUNK, end = first + CHUNK < s.n ? first + CHUNK : s.n;
    bool crosses_begin = begins_before(s, chunk), crosses_end = goes_on_after(s, chunk);
    float sum[VECTOR] = {0};
    enum { AT_ONCE = 4 };
    bool is_first_run = true;
    for (int64_t i = first; i < end; i += AT_ONCE) {
        float v[AT_ONCE][VECTOR];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (i + j < end) load8(dy + (int64_t)s.place[i + j] * channels + c, n, aligned, v[j]);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (i + j >= end) break;
            int32_t token = s.token[i + j];
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] += v[j][k];
            bool is_last = i + j + 1 == end;
            if (!is_last && s.token[i + j + 1] == token) continue;
            bool before = is_first_run && crosses_begin, after = is_last && crosses_end;
            if (before || after) { /* slot 1 is where a run begins, slot 0 where it goes on */
                store8(s.partial + (chunk * 2 + (before ? 0 : 1)) * channels + c, n, aligned, sum);
            } else if (token < vocabulary) {
                write8(table, token * channels + c, n, sum, add);
            }
            is_first_run = false;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] = 0.0f;
        }
    }
}

/* A run that crosses chunks: the block of the chunk where it begins adds up what the later ones left. */
static __global__ void __launch_bounds__(STRIP_THREADS)
    join_kernel(SortedTokens s, Memory table, int64_t vocabulary, int64_t channels, bool aligned, bool add) {
    int64_t chunk = blockIdx.x, c = ((int64_t)blockIdx.y * STRIP_THREADS + threadIdx.x) * VECTOR,
            n = channels - c;
    if (n <= 0 || !goes_on_after(s, chunk)) return;
    int32_t token = s.token[(chunk + 1) * CHUNK - 1];
    bool is_whole_chunk = s.token[chunk * CHUNK] == token;
    if (token >= vocabulary || (is_whole_chunk && begins_before(s, chunk))) return;
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

extern "C" Status cuda_embedding_token_gradient(const KernelCall *call, Error *error) {
    if (has_few_tokens(call->node)) return few_tokens_gradient(call, error);
    const Tensor *dy = call->node->input[0], *output = call->node->output[0];
    int64_t vocabulary = output->shape.dim[0], channels = output->shape.dim[1];
    const CudaContext *context = cuda_context(call);
    size_t n_bytes;
    SortedTokens s = sorted_tokens(call->node, call->scratch, &n_bytes);
    if (!call->add[0]) {
        TRY(cuda_check(cudaMemsetAsync(call->out[0], 0, tensor_bytes(output), context->stream),
                       "embedding_token_gradient", error));
    }
    if (!s.n || !channels) return STATUS_OK;
    int n_passes = 1; /* the greatest key is `vocabulary` itself */
    while (vocabulary >> (n_passes * DIGIT_BITS)) n_passes++;
    sort_kernel<<<1, SORT_THREADS, 0, context->stream>>>((const int32_t *)call->in[1], s, vocabulary,
                                                         n_passes, context->device_fault);
    TRY(cuda_launched("embedding_token_gradient (sort)", error));
    Memory table = memory_of(call->out[0], output, channels);
    bool aligned = rows_aligned(call->in[0], channels) && is_aligned(s.partial);
    dim3 grid((unsigned)s.n_chunks, blocks_for(channels, STRIP_THREADS * VECTOR));
    FOR_TYPE(dy, T,
             token_gradient_kernel<T><<<grid, STRIP_THREADS, 0, context->stream>>>(
                 (const T *)call->in[0], s, table, vocabulary, channels, aligned, call->add[0]));
    TRY(cuda_launched("embedding_token_gradient", error));
    join_kernel<<<grid, STRIP_THREADS, 0, context->stream>>>(s, table, vocabulary, channels, aligned,
                                                             call->add[0]);
    return cuda_launched("embedding_token_gradient (join)", error);
}

/* ---- gradient of the position table ---- */

enum { PLACE_THREADS = 64, PLACE_PARTS = 4 };

/* The sum over sequences first .. end - 1 of the rows that lie at `place`; true if there are any. */
template <typename T>
DEVICE bool sum_place(const T *dy, const int32_t *start, int64_t place, int64_t first, int64_t end,
                      int64_t n_positions, int64_t channels, int64_t n, bool aligned, float sum[VECTOR]) {
    bool is_named = false;
#pragma unroll 8
    for (int64_t b = first; b < end; b++) {
        int64_t t = place - (start ? start[b] : 0);
        bool is_there = t >= 0 && t < n_positions;
        float v[VECTOR];
        load8(dy + (b * n_positions + t) * channels, is_there ? n : 0, aligned, v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
        is_named |= is_there;
    }
    return is_named;
}

/* A block has a row of the table for a strip of channels; PLACE_PARTS parts of the sequences are summed side by side
 * and then in order. */
template <typename T>
static __global__ void __launch_bounds__(PLACE_THREADS *PLACE_PARTS)
    position_gradient_kernel(const T *dy, const int32_t *start, Memory table, int64_t n_sequences,
                             int64_t n_positions, int64_t n_places, int64_t channels, int64_t first_position,
                             bool aligned, bool add, CudaFault *fault) {
    __shared__ float sums[PLACE_PARTS][VECTOR][PLACE_THREADS];
    int64_t place = blockIdx.x, c = ((int64_t)blockIdx.y * PLACE_THREADS + threadIdx.x) * VECTOR,
            n = channels - c;
    int64_t each = (n_sequences + PLACE_PARTS - 1) / PLACE_PARTS, first = threadIdx.y * each;
    int64_t end = first + each < n_sequences ? first + each : n_sequences;
    for (int64_t b = first; start && place == 0 && c == 0 && b < end; b++) {
        int64_t begin = first_position + start[b];
        if (begin < 0 || begin + n_positions > n_places)
            report(fault, FAULT_POSITION, begin < 0 ? begin : begin + n_positions - 1, n_places);
    }
    float sum[VECTOR] = {0};
    bool is_named =
        sum_place(dy + c, start, place - first_position, first, end, n_positions, channels, n, aligned, sum);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sums[threadIdx.y][k][threadIdx.x] = sum[k];
    is_named = __syncthreads_or(is_named);
    if (threadIdx.y || n <= 0 || (add && !is_named)) return;
    for (int part = 1; part < PLACE_PARTS; part++) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] += sums[part][k][threadIdx.x];
    }
    write8(table, place * channels + c, n, sum, add);
}

extern "C" Status cuda_embedding_position_gradient(const KernelCall *call, Error *error) {
    const EmbeddingAttributes *a = (const EmbeddingAttributes *)call->node->attributes;
    const Tensor *dy = call->node->input[0], *output = call->node->output[0];
    int64_t n_places = output->shape.dim[0], channels = output->shape.dim[1];
    if (!n_places || !channels) return STATUS_OK;
    const CudaContext *context = cuda_context(call);
    if (!call->in[1] && a->first_position + dy->shape.dim[1] > n_places)
        return error_failed(error, "embedding: position %lld is not one of the table's %lld rows",
                            (long long)(a->first_position + dy->shape.dim[1] - 1), (long long)n_places);
    dim3 grid((unsigned)n_places, blocks_for(channels, PLACE_THREADS * VECTOR)),
        block(PLACE_THREADS, PLACE_PARTS);
    FOR_TYPE(dy, T,
             position_gradient_kernel<T><<<grid, block, 0, context->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1],
                 memory_of(call->out[0], output, channels), dy->shape.dim[0], dy->shape.dim[1], n_places,
                 channels, a->first_position, rows_aligned(call->in[0], channels), call->add[0],
                 context->device_fault));
    return cuda_launched("embedding_position_gradient", error);
}
