/* sparse_attention in tiles, backward: the queries' gradients by rows of the list, the keys' and values' by
 * its columns (attention/attention_walk_queries.cuh, attention_walk_keys.cuh). Each gradient is summed by one
 * warp in one order: the same bits every time. */
#include "backend/cuda/attention/attention_walk_keys.cuh"
#include "backend/cuda/attention/attention_walk_queries.cuh"
#include "backend/cuda/sparse/sparse_walk.cuh"

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_queries(const AttentionShape *shape, const AttentionMemory *m,
                                  const SparseLists *lists, cudaStream_t stream) {
    int64_t blocks = blocks_for(shape->n_positions, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    return launch_walk_queries<T, HS, CUT, DROPS>((const T *)m->dy, (const T *)m->qkv, (const T *)m->qkv,
                                                  (const float *)m->scratch, (T *)m->dqkv,
                                                  sparse_walk(shape, m, lists), blocks, stream);
}

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_keys(const AttentionShape *shape, const AttentionMemory *m,
                               const SparseLists *lists, cudaStream_t stream) {
    int64_t blocks = blocks_for(shape->n_positions, CUT::ROWS) * shape->n_sequences * shape->n_kv_heads;
    return launch_walk_keys<T, HS, CUT, DROPS>((const T *)m->dy, (const T *)m->qkv, (const T *)m->qkv,
                                               (const float *)m->scratch, (T *)m->dqkv,
                                               sparse_walk(shape, m, lists), blocks, stream);
}

template <typename T, int HS, typename QUERIES, typename KEYS, typename DROPPING>
static cudaError_t launch_both(const AttentionShape *shape, const AttentionMemory *m,
                               const SparseLists *lists, cudaStream_t stream) {
    cudaError_t code = shape->threshold ? launch_queries<T, HS, QUERIES, true>(shape, m, lists, stream)
                                        : launch_queries<T, HS, QUERIES, false>(shape, m, lists, stream);
    if (code != cudaSuccess) return code;
    return shape->threshold ? launch_keys<T, HS, DROPPING, true>(shape, m, lists, stream)
                            : launch_keys<T, HS, KEYS, false>(shape, m, lists, stream);
}

/* Cut as the kernels of dense attention are. */
Status sparse_tiled_backward(const AttentionShape *shape, const AttentionMemory *memory,
                             const SparseLists *lists, cudaStream_t stream, Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        typedef Cut<1, 8, 4, 4, HS <= 64 ? 4 : 2> Queries;
        typedef Cut<HS <= 64 ? 2 : 1, 8, HS == 96 ? 4 : 2, 4, 2> Keys;
        typedef Cut<1, 8, 2, 4, HS <= 64 ? 3 : 2> Dropping;
        typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> NarrowQueries;
        typedef Cut<1, 4, 2, 4, HS <= 64 ? 3 : 2> NarrowKeys;
        if (shape->dtype == DTYPE_BF16)
            code = launch_both<bf16, HS, Queries, Keys, Dropping>(shape, memory, lists, stream);
        else if (shape->dtype == DTYPE_F16)
            code = launch_both<f16, HS, Queries, Keys, Dropping>(shape, memory, lists, stream);
        else
            code =
                launch_both<float, HS, NarrowQueries, NarrowKeys, NarrowKeys>(shape, memory, lists, stream);
    });
    return cuda_check(code, "sparse_attention_backward (tiled)", error);
}
