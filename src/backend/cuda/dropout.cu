/* dropout: y = x · mask / (1-p), the mask being the same pure function of (seed, site, step, sequence, element) that
 * the CPU draws from.
 *
 * Floor: one tensor read and one written over the copy bandwidth. One block of random numbers serves 8 elements of a
 * sequence, so a thread draws one and takes those 8. */
#include "backend/cuda/device.cuh"

enum { THREADS = 256 };

template <typename T>
static __global__ void dropout_kernel(const T *x, const int32_t *random, T *y, int64_t n_sequences,
                                      int64_t length, int64_t vectors, int site, uint32_t threshold,
                                      bool aligned, bool add) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, sequence = i / vectors,
            block = i - sequence * vectors;
    if (sequence >= n_sequences) return;
    int64_t n = length - block * VECTOR, at = sequence * length + block * VECTOR;
    float v[VECTOR], scale = random_dropout_scale(threshold);
    load8(x + at, n, aligned, v);
    RandomBlock draw =
        random_block(dropout_key(random, site), first_sequence(random) + (uint64_t)sequence, (uint64_t)block);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = random_half(draw, k) >= threshold ? v[k] * scale : v[k] * 0.0f;
    write8(y + at, n, aligned, v, add);
}

extern "C" Status cuda_dropout(const KernelCall *call, Error *error) {
    const DropoutAttributes *a = (const DropoutAttributes *)call->node->attributes;
    const Tensor *x = call->node->input[0];
    if (!same_types(x, call->node->output[0])) return cuda_unsupported(call, call->node->output[0], error);
    int64_t n_sequences = x->shape.dim[0], count = tensor_count(x);
    if (!count) return STATUS_OK;
    int64_t length = count / n_sequences, vectors = vectors_for(length);
    bool aligned = rows_aligned(call->in[0], length) && is_aligned(call->out[0]);
    FOR_TYPE(x, T,
             dropout_kernel<T>
             <<<blocks_for(n_sequences * vectors, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], (T *)call->out[0], n_sequences, length,
                 vectors, a->site, random_dropout_threshold(a->probability), aligned, call->add[0]));
    return cuda_launched("dropout", error);
}
