/* dropout: y = x · mask / (1-p), the mask being the same pure function of (seed, site, step, sequence,
 * element) that the CPU draws from.
 *
 * Floor: one tensor read and one written over the copy bandwidth. One block of random numbers serves 8
 * elements of a sequence, so a thread draws one for each of its vectors. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256, EACH = 4 }; /* vectors of a thread, so that the key is worked out for 32 elements */

/* Block (x, y): part x of sequence y, y + gridDim.y, ... */
template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    dropout_kernel(const T *x, const int32_t *random, T *y, int64_t n_sequences, int64_t length, int site,
                   uint32_t threshold, bool add) {
    RandomKey key = dropout_key(random, site);
    uint64_t first = first_sequence(random);
    float scale = random_dropout_scale(threshold);
    for (int64_t sequence = blockIdx.y; sequence < n_sequences; sequence += gridDim.y) {
        const T *from = x + sequence * length;
        T *to = y + sequence * length;
        int64_t block = (int64_t)blockIdx.x * THREADS * EACH + threadIdx.x;
        Raw<T> raw[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int64_t at = (block + j * THREADS) * VECTOR;
            raw[j] = load_raw<T, ALIGNED>(from + at, length - at);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int64_t at = (block + j * THREADS) * VECTOR;
            if (at >= length) break;
            RandomBlock draw = random_block(key, first + (uint64_t)sequence, (uint64_t)(block + j * THREADS));
            float v[VECTOR];
            unpack(raw[j], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] *= random_half(draw, k) >= threshold ? scale : 0.0f;
            write8(to + at, length - at, ALIGNED, v, add);
        }
    }
}

/* ---- rows that are split among ranks: a warp a row ---- */

enum { ROWS = THREADS / WARP };

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    split_dropout_kernel(const T *x, const int32_t *random, T *y, int64_t n_rows, int64_t channels, int site,
                         uint32_t threshold, bool add, RowSplit split) {
    int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
    if (row >= n_rows) return;
    RandomKey key = dropout_key(random, site);
    float scale = random_dropout_scale(threshold);
    int64_t at = split.first + row, t = at % split.length;
    int64_t position = t < split.head ? split.start[0] + t : split.start[1] + t - split.head;
    uint64_t sequence = first_sequence(random) + (uint64_t)(at / split.length);
    for (int64_t c = threadIdx.x % WARP; c < channels; c += WARP) {
        float kept =
            random_keep(key, sequence, (uint64_t)(position * channels + c), threshold) ? scale : 0.0f;
        write_element(y + row * channels + c, as_float(x[row * channels + c]) * kept, add);
    }
}

static Status split_dropout(const KernelCall *call, Error *error) {
    const DropoutAttributes *a = (const DropoutAttributes *)call->node->attributes;
    const Tensor *x = call->node->input[0];
    int64_t n_rows = shape_rows(x->shape), channels = shape_columns(x->shape);
    FOR_TYPE(x, T,
             split_dropout_kernel<T><<<blocks_for(n_rows, ROWS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], (T *)call->out[0], n_rows, channels,
                 a->site, random_dropout_threshold(a->probability), call->add[0], a->rows));
    return cuda_launched("dropout (of split rows)", error);
}

extern "C" Status cuda_dropout(const KernelCall *call, Error *error) {
    const DropoutAttributes *a = (const DropoutAttributes *)call->node->attributes;
    const Tensor *x = call->node->input[0];
    if (!same_types(x, call->node->output[0])) return cuda_unsupported(call, call->node->output[0], error);
    int64_t n_sequences = x->shape.dim[0], count = tensor_count(x);
    if (!count) return STATUS_OK;
    if (a->rows.length) return split_dropout(call, error);
    int64_t length = count / n_sequences;
    bool aligned = rows_aligned(call->in[0], length) && is_aligned(call->out[0]);
    dim3 grid(blocks_for(vectors_for(length), THREADS * EACH),
              (unsigned)(n_sequences < 65535 ? n_sequences : 65535));
#define DROPOUT(ALIGNED)                                                                                     \
    dropout_kernel<T, ALIGNED><<<grid, THREADS, 0, cuda_context(call)->stream>>>(                            \
        (const T *)call->in[0], (const int32_t *)call->in[1], (T *)call->out[0], n_sequences, length,        \
        a->site, random_dropout_threshold(a->probability), call->add[0])
    FOR_TYPE(x, T, {
        if (aligned) DROPOUT(true);
        else DROPOUT(false);
    });
    return cuda_launched("dropout", error);
}
