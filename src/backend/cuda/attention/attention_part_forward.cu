/* attention_part in tiles (FlashAttention), forward: one rectangle of queries and keys
 * (attention_walk_forward.cuh). */
#include "backend/cuda/attention/attention_part_walk.cuh"
#include "backend/cuda/attention/attention_walk_forward.cuh"

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    int64_t blocks = blocks_for(shape->n_queries, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    return launch_walk_forward<T, HS, CUT, DROPS>((const T *)m->q, (const T *)m->kv, m->y, m->lse,
                                                  part_walk(shape, m), blocks, stream);
}

/* Cut as the kernels of whole sequences are. */
template <typename T, int HS>
static cudaError_t launch_for(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    if (shape->threshold) return launch<T, HS, Cut<1, 4, 4, 4, HS <= 64 ? 4 : 2>, true>(shape, m, stream);
    return launch<T, HS, Cut<HS <= 64 ? 2 : 1, 8, 8, 4, 2>, false>(shape, m, stream);
}

template <int HS>
static cudaError_t launch_f32(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> Small;
    if (shape->threshold) return launch<float, HS, Small, true>(shape, m, stream);
    return launch<float, HS, Small, false>(shape, m, stream);
}

Status attention_part_tiled_forward(const PartShape *shape, const PartMemory *memory, cudaStream_t stream,
                                    Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        if (shape->dtype == DTYPE_BF16) code = launch_for<bf16, HS>(shape, memory, stream);
        else if (shape->dtype == DTYPE_F16) code = launch_for<f16, HS>(shape, memory, stream);
        else code = launch_f32<HS>(shape, memory, stream);
    });
    return cuda_check(code, "attention_part (tiled)", error);
}
