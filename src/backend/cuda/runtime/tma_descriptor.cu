/* TMA descriptors: the driver makes them. The library of the driver itself is not linked: its function is
 * asked for when a descriptor is wanted. */
#include "backend/cuda/runtime/tma_descriptor.h"

#include <cuda_runtime_api.h>

static void *find_encoder(void) {
    static const char name[] = "cuTensorMapEncodeTiled";
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t code = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
#else
    cudaError_t code = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
    return code == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : NULL;
}

extern "C" bool cuda_tma_exists(void) {
    return find_encoder() != NULL;
}

extern "C" bool cuda_tma_descriptor(CUtensorMap *map, const void *data, int n_dimensions,
                                    const uint64_t *size, const uint64_t *stride, const uint32_t *box) {
    static const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    void *entry = find_encoder();
    if (!entry) return false;
    typedef CUresult Encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                            const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    return ((Encode *)entry)(
               map, CU_TENSOR_MAP_DATA_TYPE_UINT16, (cuuint32_t)n_dimensions, (void *)data,
               (const cuuint64_t *)size, (const cuuint64_t *)stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
               box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
