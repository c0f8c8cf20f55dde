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

extern "C" Status cuda_dropout(const KernelCall *call, Error *error) {
    const DropoutAttributes *a = (const DropoutAttributes *)call->node->attributes;
    const Tensor *x = call->node->input[0];
    if (!same_types(x, call->node->output[0])) return cuda_unsupported(call, call->node->output[0], error);
    int64_t n_sequences = x->shape.dim[0], count = tensor_count(x);
    if (!count) return STATUS_OK;
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
