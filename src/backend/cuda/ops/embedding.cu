/* embedding: rows of the two tables added up, and the gradient of the position table; the token table's is in
 * embedding_token.cu.
 *
 * Floors over the copy bandwidth: forward 2·N·C elements (a row read, a row written; the position table is
 * small and stays in cache); the gradient N·C elements of dy plus the table. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256, ROWS = THREADS / WARP };

/* ---- forward: a warp a row ---- */

typedef struct {
    int64_t n_rows, n_positions, channels; /* B·T, T, C */
    int64_t first_token, n_tokens, n_all;  /* of the token table, and of the whole vocabulary */
    int64_t n_places;                      /* rows of the position table */
    RowPositions positions;
    bool has_places; /* `start` has the position of each row */
    bool aligned;
} EmbeddingShape;

template <typename T>
static __global__ void embedding_kernel(const int32_t *tokens, const T *token_table, const T *position_table,
                                        const int32_t *start, T *y, EmbeddingShape s, CudaFault *fault) {
    int64_t n = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (n >= s.n_rows) return;
    int64_t token = tokens[n], place = 0;
    if (s.has_places) place = start[n];
    else place = place_of(s.positions, n % s.n_positions) + (start ? start[n / s.n_positions] : 0);
    bool is_token = token >= 0 && token < s.n_all;
    int64_t row = token - s.first_token;
    bool has_token = is_token && row >= 0 && row < s.n_tokens;
    bool has_place = position_table && place >= 0 && place < s.n_places;
    if (lane == 0 && !is_token) report(fault, FAULT_TOKEN, token, s.n_all);
    if (lane == 0 && position_table && !has_place) report(fault, FAULT_POSITION, place, s.n_places);
    for (int64_t c = lane * VECTOR; c < s.channels; c += WARP * VECTOR) {
        float v[VECTOR] = {0}, p[VECTOR] = {0};
        if (has_token) load8(token_table + row * s.channels + c, s.channels - c, s.aligned, v);
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
                        a->first_token,
                        a->n_tokens,
                        a->n_all,
                        positions ? positions->shape.dim[0] : 0,
                        a->positions,
                        node->input[3] && node->input[3]->shape.n_dims == 2,
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

/* ---- gradient of the position table ---- */

enum { PLACE_THREADS = 128, PLACE_PARTS = 4 }; /* of a block, at most: each thread has 8 channels */

/* The sum over sequences first .. end - 1 of the rows that lie at `place`; true if there are any. */
template <typename T, bool ALIGNED>
DEVICE bool sum_place(const T *dy, const int32_t *start, RowPositions positions, int64_t place, int64_t first,
                      int64_t end, int64_t n_positions, int64_t channels, int64_t n, float sum[VECTOR]) {
    enum { AT_ONCE = 4 };
    bool is_named = false;
    for (int64_t b = first; b < end; b += AT_ONCE) {
        Raw<T> raw[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int64_t t = place - (start && b + j < end ? start[b + j] : 0) - positions.start;
            bool is_behind = t >= positions.head + positions.skip;
            bool is_skipped = t >= positions.head && !is_behind;
            if (is_behind) t -= positions.skip;
            bool is_there = b + j < end && t >= 0 && t < n_positions && !is_skipped;
            raw[j] = load_raw<T, ALIGNED>(dy + ((b + j) * n_positions + t) * channels, is_there ? n : 0);
            is_named |= is_there;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float v[VECTOR];
            unpack(raw[j], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
        }
    }
    return is_named;
}

/* A block has a row of the table for a strip of channels; where rows are few, parts of the sequences are
 * summed side by side and then in order. */
template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(PLACE_THREADS *PLACE_PARTS)
    position_gradient_kernel(const T *dy, const int32_t *start, Memory table, int64_t n_sequences,
                             int64_t n_positions, int64_t n_places, int64_t channels, RowPositions positions,
                             bool add, CudaFault *fault) {
    __shared__ float sums[PLACE_PARTS][VECTOR][PLACE_THREADS];
    int64_t place = blockIdx.x, c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * VECTOR,
            n = channels - c;
    int64_t each = (n_sequences + blockDim.y - 1) / blockDim.y, first = threadIdx.y * each;
    int64_t end = first + each < n_sequences ? first + each : n_sequences;
    for (int64_t b = first; start && place == 0 && c == 0 && b < end; b++) {
        int64_t begin = place_of(positions, 0) + start[b],
                last = place_of(positions, n_positions - 1) + start[b];
        if (begin < 0 || last >= n_places) report(fault, FAULT_POSITION, begin < 0 ? begin : last, n_places);
    }
    float sum[VECTOR] = {0};
    bool is_named =
        sum_place<T, ALIGNED>(dy + c, start, positions, place, first, end, n_positions, channels, n, sum);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sums[threadIdx.y][k][threadIdx.x] = sum[k];
    is_named = __syncthreads_or(is_named);
    if (threadIdx.y || n <= 0 || (add && !is_named)) return;
    for (int part = 1; part < (int)blockDim.y; part++) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] += sums[part][k][threadIdx.x];
    }
    write8(table, place * channels + c, n, sum, add);
}

/* Where rows have positions of their own (documents), those at a block's place are looked for among all, so
 * many a thread at a time, and summed in their order. */
enum { SEARCHED = 8 };

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(PLACE_THREADS)
    found_gradient_kernel(const T *dy, const int32_t *places, Memory table, int64_t n_rows, int64_t n_places,
                          int64_t channels, bool add, CudaFault *fault) {
    __shared__ unsigned char found[PLACE_THREADS];
    int64_t place = blockIdx.x, c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * VECTOR,
            n = channels - c;
    bool reports = place == 0 && blockIdx.y == 0, is_named = false;
    float sum[VECTOR] = {0};
    for (int64_t base = 0; base < n_rows; base += (int64_t)blockDim.x * SEARCHED) {
        unsigned mine = 0;
        int64_t first = base + (int64_t)threadIdx.x * SEARCHED;
#pragma unroll
        for (int i = 0; i < SEARCHED; i++) {
            if (first + i >= n_rows) continue;
            int64_t at = places[first + i];
            mine |= (unsigned)(at == place) << i;
            if (reports && (at < 0 || at >= n_places)) report(fault, FAULT_POSITION, at, n_places);
        }
        __syncthreads(); /* all have read what was found before */
        found[threadIdx.x] = (unsigned char)mine;
        if (!__syncthreads_or((int)mine)) continue;
        is_named = true;
        for (int thread = 0; thread < (int)blockDim.x; thread++) {
            for (unsigned left = found[thread]; left; left &= left - 1) {
                int64_t row = base + thread * SEARCHED + __ffs((int)left) - 1;
                float v[VECTOR];
                unpack(load_raw<T, ALIGNED>(dy + row * channels + c, n), v);
#pragma unroll
                for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
            }
        }
    }
    if (n > 0 && (!add || is_named)) write8(table, place * channels + c, n, sum, add);
}

static Status find_gradient(const KernelCall *call, const Tensor *dy, const Tensor *output, Error *error) {
    const CudaContext *context = cuda_context(call);
    int64_t n_places = output->shape.dim[0], channels = output->shape.dim[1];
    unsigned threads = blocks_for(channels, WARP * VECTOR) * WARP;
    threads = threads < PLACE_THREADS ? threads : (unsigned)PLACE_THREADS;
    dim3 grid((unsigned)n_places, blocks_for(channels, threads * VECTOR));
#define FOUND(ALIGNED)                                                                                       \
    found_gradient_kernel<T, ALIGNED><<<grid, threads, 0, context->stream>>>(                                \
        (const T *)call->in[0], (const int32_t *)call->in[1], memory_of(call->out[0], output, channels),     \
        dy->shape.dim[0] * dy->shape.dim[1], n_places, channels, call->add[0], context->device_fault)
    FOR_TYPE(dy, T, {
        if (rows_aligned(call->in[0], channels)) FOUND(true);
        else FOUND(false);
    });
    return cuda_launched("embedding_position_gradient", error);
}

extern "C" Status cuda_embedding_position_gradient(const KernelCall *call, Error *error) {
    const EmbeddingAttributes *a = (const EmbeddingAttributes *)call->node->attributes;
    const Tensor *dy = call->node->input[0], *output = call->node->output[0];
    int64_t n_places = output->shape.dim[0], channels = output->shape.dim[1];
    if (!n_places || !channels) return STATUS_OK;
    if (call->node->input[1] && call->node->input[1]->shape.n_dims == 2)
        return find_gradient(call, dy, output, error);
    const CudaContext *context = cuda_context(call);
    int64_t last = dy->shape.dim[1] ? row_place(&a->positions, dy->shape.dim[1] - 1) : 0;
    if (!call->in[1] && last >= n_places)
        return error_failed(error, "embedding: position %lld is not one of the table's %lld rows",
                            (long long)last, (long long)n_places);
    unsigned threads = blocks_for(channels, WARP * VECTOR) * WARP;
    threads = threads < PLACE_THREADS ? threads : (unsigned)PLACE_THREADS;
    dim3 grid((unsigned)n_places, blocks_for(channels, threads * VECTOR));
    dim3 block(threads, (int64_t)grid.x * grid.y < 4 * context->traits.n_processors ? PLACE_PARTS : 1);
#define POSITIONS(ALIGNED)                                                                                   \
    position_gradient_kernel<T, ALIGNED><<<grid, block, 0, context->stream>>>(                               \
        (const T *)call->in[0], (const int32_t *)call->in[1], memory_of(call->out[0], output, channels),     \
        dy->shape.dim[0], dy->shape.dim[1], n_places, channels, a->positions, call->add[0],                  \
        context->device_fault)
    FOR_TYPE(dy, T, {
        if (rows_aligned(call->in[0], channels)) POSITIONS(true);
        else POSITIONS(false);
    });
    return cuda_launched("embedding_position_gradient", error);
}
