/* Launching a kernel that may be there before the one in front of it in the stream has ended (compute capability 9): its
 * launch, and what it does before wait_for_predecessor() (device.cuh), take no time of their own.
 *
 *     code = launch_early(kernel, grid, block, shared_bytes, stream, arguments...);
 *
 * Such a kernel waits in all threads before it touches memory that another one writes or reads. */
#ifndef PGPT_BACKEND_CUDA_EARLY_CUH
#define PGPT_BACKEND_CUDA_EARLY_CUH

#include "backend/cuda/device.cuh"

/* Can the next kernel of this stream begin so? While the stream is recorded, it must be behind one kernel and nothing else. */
extern "C" bool cuda_may_start_early(cudaStream_t stream);

template <typename... Parameters, typename... Arguments>
static cudaError_t launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = cuda_may_start_early(stream) ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...);
}

#endif
