/* Programmatic dependent launch (PDL, compute capability 9): a kernel is launched before the one in front of
 * it in the stream has ended. Its launch, and what it does before wait_for_predecessor() (device.cuh), take
 * no time of their own.
 *
 *     code = launch_pdl(kernel, grid, block, shared_bytes, stream, arguments...);
 *
 * Such a kernel waits in all threads. Before that it reads only what no kernel writes that may still be at
 * work (weights while nothing is trained, what the host has sent), and writes nothing. */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_PDL_CUH
#define PGPT_BACKEND_CUDA_RUNTIME_PDL_CUH

#include "backend/cuda/runtime/device.cuh"

/* Was this program compiled for it? Code for an older GPU, which the driver translates, has no instruction
 * that waits. */
extern "C" bool cuda_code_is_for_9(void);

/* Can the next kernel of this stream be launched so? While the stream is captured, it must be behind one
 * kernel and nothing else. */
extern "C" bool cuda_may_use_pdl(cudaStream_t stream);

/* The attribute for a launch in this stream; how many it is, 0 or 1. */
static inline unsigned pdl_attribute(cudaLaunchAttribute *attribute, cudaStream_t stream) {
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
    return cuda_may_use_pdl(stream) ? 1 : 0;
}

template <typename... Parameters, typename... Arguments>
static cudaError_t launch_pdl(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                              cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute pdl = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &pdl;
    config.numAttrs = pdl_attribute(&pdl, stream);
    return cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...);
}

#endif
