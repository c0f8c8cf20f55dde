/* sparse_attention in tiles, backward: the queries' gradients by rows of the list, the keys' and values' by
 * its columns (attention/attention_walk_queries.cuh, attention_walk_keys.cuh), the longest of which in pieces
 * (sparse_pieces.cuh). Each gradient is summed in one order: the same bits every time. */
#include "backend/cuda/attention/attention_walk_keys.cuh"
#include "backend/cuda/attention/attention_walk_queries.cuh"
#include "backend/cuda/sparse/sparse_attention.h"
#include "backend/cuda/sparse/sparse_pieces.cuh"

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_queries(const AttentionShape *shape, const AttentionMemory *m,
                                  const AttentionLists *lists, cudaStream_t stream) {
    int64_t blocks = blocks_for(shape->n_positions, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    return launch_walk_queries<T, HS, CUT, DROPS>((const T *)m->dy, (const T *)m->qkv, (const T *)m->qkv,
                                                  (const float *)m->scratch, (T *)m->dqkv,
                                                  list_walk(shape, m, lists), blocks, stream);
}

/* All columns but the first `n_skipped` of blocks of keys. */
template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_keys(const AttentionShape *shape, const AttentionMemory *m,
                               const AttentionLists *lists, int n_skipped, cudaStream_t stream) {
    ListWalk walk = list_walk(shape, m, lists);
    walk.n_skipped = n_skipped * ATTENTION_BLOCK;
    int64_t blocks =
        blocks_for(shape->n_positions - walk.n_skipped, CUT::ROWS) * shape->n_sequences * shape->n_kv_heads;
    return launch_walk_keys<T, HS, CUT, DROPS>((const T *)m->dy, (const T *)m->qkv, (const T *)m->qkv,
                                               (const float *)m->scratch, (T *)m->dqkv, walk, blocks, stream);
}

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_pieces(const AttentionShape *shape, const AttentionMemory *m,
                                 const AttentionLists *lists, const SparseSplit *split, cudaStream_t stream) {
    PieceWalk walk = {};
    (ListWalk &)walk = list_walk(shape, m, lists);
    walk.split = *split;
    float *pieces = (float *)((char *)m->scratch + sparse_split_begin(shape));
    int64_t n_heads = shape->n_sequences * shape->n_kv_heads;
    cudaError_t code = launch_walk_keys<T, HS, CUT, DROPS>(
        (const T *)m->dy, (const T *)m->qkv, (const T *)m->qkv, (const float *)m->scratch, pieces, walk,
        n_heads * split->n_columns * split->n_pieces, stream);
    if (code != cudaSuccess) return code;
    join_pieces_kernel<T>
        <<<(unsigned)(n_heads * split->n_columns * ATTENTION_BLOCK), JOIN_THREADS, 0, stream>>>(
            pieces, (T *)m->dqkv, walk);
    return cudaGetLastError();
}

/* What is left to these kernels: all of it, or the long columns. */
typedef enum { ALL_COLUMNS, LONG_COLUMNS } Part;

/* KEYS: two blocks at once; SINGLE: one. */
template <typename T, int HS, typename KEYS, typename SINGLE, bool DROPS>
static cudaError_t launch_columns(const AttentionShape *shape, const AttentionMemory *m,
                                  const AttentionLists *lists, Part part, cudaStream_t stream) {
    SparseSplit split = sparse_split(&m->pattern, shape->n_positions);
    if (split.n_columns) {
        cudaError_t code = launch_pieces<T, HS, SINGLE, DROPS>(shape, m, lists, &split, stream);
        if (code != cudaSuccess) return code;
    }
    if (part == LONG_COLUMNS) return cudaSuccess;
    return sparse_neighbours_differ(&m->pattern)
               ? launch_keys<T, HS, SINGLE, DROPS>(shape, m, lists, split.n_columns, stream)
               : launch_keys<T, HS, KEYS, DROPS>(shape, m, lists, split.n_columns, stream);
}

template <typename T, int HS, typename QUERIES, typename KEYS, typename SINGLE>
static cudaError_t launch_both(const AttentionShape *shape, const AttentionMemory *m,
                               const AttentionLists *lists, Part part, cudaStream_t stream) {
    if (part == ALL_COLUMNS) {
        cudaError_t code = shape->threshold ? launch_queries<T, HS, QUERIES, true>(shape, m, lists, stream)
                                            : launch_queries<T, HS, QUERIES, false>(shape, m, lists, stream);
        if (code != cudaSuccess) return code;
    }
    return shape->threshold ? launch_columns<T, HS, SINGLE, SINGLE, true>(shape, m, lists, part, stream)
                            : launch_columns<T, HS, KEYS, SINGLE, false>(shape, m, lists, part, stream);
}

/* Cut as the kernels of dense attention are. */
static Status launch_part(const AttentionShape *shape, const AttentionMemory *memory,
                          const AttentionLists *lists, Part part, cudaStream_t stream, Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        typedef Cut<1, 8, 4, 4, HS <= 64 ? 4 : 2> Queries;
        typedef Cut<HS <= 64 ? 2 : 1, 8, HS == 96 ? 4 : 2, 4, 2> Keys;
        typedef Cut<1, 8, 2, 4, HS <= 64 ? 3 : 2> Single;
        typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> NarrowQueries;
        typedef Cut<1, 4, 2, 4, HS <= 64 ? 3 : 2> NarrowKeys;
        if (shape->dtype == DTYPE_BF16)
            code = launch_both<bf16, HS, Queries, Keys, Single>(shape, memory, lists, part, stream);
        else if (shape->dtype == DTYPE_F16)
            code = launch_both<f16, HS, Queries, Keys, Single>(shape, memory, lists, part, stream);
        else
            code = launch_both<float, HS, NarrowQueries, NarrowKeys, NarrowKeys>(shape, memory, lists, part,
                                                                                 stream);
    });
    return cuda_check(code, "sparse_attention_backward (tiled)", error);
}

Status sparse_tiled_backward(const AttentionShape *shape, const AttentionMemory *memory,
                             const AttentionLists *lists, cudaStream_t stream, Error *error) {
    return launch_part(shape, memory, lists, ALL_COLUMNS, stream, error);
}

Status sparse_tiled_long_columns(const AttentionShape *shape, const AttentionMemory *memory,
                                 const AttentionLists *lists, cudaStream_t stream, Error *error) {
    return launch_part(shape, memory, lists, LONG_COLUMNS, stream, error);
}
