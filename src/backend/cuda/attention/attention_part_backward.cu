/* attention_part in tiles, backward: one rectangle of queries and keys (attention_walk_queries.cuh,
 * attention_walk_keys.cuh). Results are added to f32 in memory, rectangle by rectangle, one warp an
 * element. */
#include "backend/cuda/attention/attention_part_walk.cuh"
#include "backend/cuda/attention/attention_walk_keys.cuh"
#include "backend/cuda/attention/attention_walk_queries.cuh"

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_queries(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    int64_t blocks = blocks_for(shape->n_queries, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    if (!m->dq) return cudaSuccess;
    return launch_walk_queries<T, HS, CUT, DROPS>((const T *)m->dy, (const T *)m->q, (const T *)m->kv,
                                                  m->facts, m->dq, part_walk(shape, m), blocks, stream);
}

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_keys(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    int64_t blocks = blocks_for(shape->n_keys, CUT::ROWS) * shape->n_sequences * shape->n_kv_heads;
    if (!m->dkv) return cudaSuccess;
    return launch_walk_keys<T, HS, CUT, DROPS>((const T *)m->dy, (const T *)m->q, (const T *)m->kv, m->facts,
                                               m->dkv, part_walk(shape, m), blocks, stream);
}

/* Cut as the kernels of whole sequences are. */
template <typename T, int HS>
static cudaError_t launch_for(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    typedef Cut<1, 8, 4, 4, HS <= 64 ? 4 : 2> Queries;
    typedef Cut<1, 8, 2, 4, HS <= 64 ? 3 : 2> Dropping;
    typedef Cut<HS <= 64 ? 2 : 1, 8, HS == 96 ? 4 : 2, 4, 2> Keys;
    cudaError_t code = shape->threshold ? launch_queries<T, HS, Queries, true>(shape, m, stream)
                                        : launch_queries<T, HS, Queries, false>(shape, m, stream);
    if (code != cudaSuccess) return code;
    return shape->threshold ? launch_keys<T, HS, Dropping, true>(shape, m, stream)
                            : launch_keys<T, HS, Keys, false>(shape, m, stream);
}

template <int HS>
static cudaError_t launch_f32(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> Queries;
    typedef Cut<1, 4, 2, 4, HS <= 64 ? 3 : 2> Keys;
    cudaError_t code = shape->threshold ? launch_queries<float, HS, Queries, true>(shape, m, stream)
                                        : launch_queries<float, HS, Queries, false>(shape, m, stream);
    if (code != cudaSuccess) return code;
    return shape->threshold ? launch_keys<float, HS, Keys, true>(shape, m, stream)
                            : launch_keys<float, HS, Keys, false>(shape, m, stream);
}

Status attention_part_tiled_backward(const PartShape *shape, const PartMemory *memory, cudaStream_t stream,
                                     Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        if (shape->dtype == DTYPE_BF16) code = launch_for<bf16, HS>(shape, memory, stream);
        else if (shape->dtype == DTYPE_F16) code = launch_for<f16, HS>(shape, memory, stream);
        else code = launch_f32<HS>(shape, memory, stream);
    });
    return cuda_check(code, "attention_part_backward (tiled)", error);
}
