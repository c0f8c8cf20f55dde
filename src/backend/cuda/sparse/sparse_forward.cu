/* sparse_attention in tiles (FlashAttention), forward: a block of the list at a time
 * (attention/attention_walk_forward.cuh). */
#include "backend/cuda/attention/attention_walk_forward.cuh"
#include "backend/cuda/sparse/sparse_attention.h"

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch(const AttentionShape *shape, const AttentionMemory *m, const AttentionLists *lists,
                          cudaStream_t stream) {
    int64_t blocks = blocks_for(shape->n_positions, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    return launch_walk_forward<T, HS, CUT, DROPS>((const T *)m->qkv, (const T *)m->qkv, (T *)m->y, m->lse,
                                                  list_walk(shape, m, lists), blocks, stream);
}

/* Cut as the kernels of dense attention are. */
template <typename T, int HS>
static cudaError_t launch_for(const AttentionShape *shape, const AttentionMemory *m,
                              const AttentionLists *lists, cudaStream_t stream) {
    if (shape->threshold)
        return launch<T, HS, Cut<1, 4, 4, 4, HS <= 64 ? 4 : 2>, true>(shape, m, lists, stream);
    return launch<T, HS, Cut<HS <= 64 ? 2 : 1, 8, 8, 4, 2>, false>(shape, m, lists, stream);
}

template <int HS>
static cudaError_t launch_f32(const AttentionShape *shape, const AttentionMemory *m,
                              const AttentionLists *lists, cudaStream_t stream) {
    typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> Small;
    if (shape->threshold) return launch<float, HS, Small, true>(shape, m, lists, stream);
    return launch<float, HS, Small, false>(shape, m, lists, stream);
}

Status sparse_tiled_forward(const AttentionShape *shape, const AttentionMemory *memory,
                            const AttentionLists *lists, cudaStream_t stream, Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        if (shape->dtype == DTYPE_BF16) code = launch_for<bf16, HS>(shape, memory, lists, stream);
        else if (shape->dtype == DTYPE_F16) code = launch_for<f16, HS>(shape, memory, lists, stream);
        else code = launch_f32<HS>(shape, memory, lists, stream);
    });
    return cuda_check(code, "sparse_attention (tiled)", error);
}
