/* When a kernel may be launched by programmatic dependent launch: before the one in front of it has ended. */
#include "backend/cuda/runtime/pdl.cuh"

static __global__ void probe_kernel(void) {}

extern "C" bool cuda_code_is_for_9(void) {
    enum Answer { UNKNOWN, NO, YES };
    static enum Answer answer; /* a process works with one GPU */
    struct cudaFuncAttributes attributes = {};
    if (answer == UNKNOWN && cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess)
        cudaGetLastError(); /* it has been noticed */
    if (answer == UNKNOWN) answer = attributes.ptxVersion >= 90 ? YES : NO;
    return answer == YES;
}

/* Captures know such launches from CUDA 12.3 on. */
static bool captures_can(void) {
    int driver = 0;
    return CUDART_VERSION >= 12030 && cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030;
}

extern "C" bool cuda_may_use_pdl(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *before = NULL;
    size_t n_before = 0;
    if (!cuda_code_is_for_9()) return false;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges = NULL;
    cudaError_t code = cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &before, &edges, &n_before);
#else
    cudaError_t code = cudaStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &before, &n_before);
#endif
    if (code != cudaSuccess) return cudaGetLastError(), false; /* it has been noticed */
    if (status == cudaStreamCaptureStatusNone) return true;
    cudaGraphNodeType type;
    return captures_can() && n_before == 1 && cudaGraphNodeGetType(before[0], &type) == cudaSuccess &&
           type == cudaGraphNodeTypeKernel;
}
