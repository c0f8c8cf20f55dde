/* Copies between the GPU's memory and pinned memory of the host, beside what is computed: a stream each way,
 * for the bus carries both at once. An event marks the end of each; there are more of them than the mover has
 * moves under way (graph/device/mover.c), so that none is recorded again before it has done its service.
 *
 * Pinned memory is taken as any large memory of the host, touched by all cores and then registered: it is
 * zero, and in huge pages. */
#include "backend/cuda/kernels.h"

extern "C" {
#include "base/system/memory.h"
}

/* Made when they are first needed: most runs move nothing. */
static Status open_copies(CudaContext *cuda, Error *error) {
    if (cuda->copy_stream[0]) return STATUS_OK;
    for (int i = 0; i < CUDA_COPIES; i++)
        TRY(cuda_check(cudaEventCreateWithFlags(&cuda->copy_done[i], cudaEventDisableTiming),
                       "making an event", error));
    TRY(cuda_check(cudaEventCreateWithFlags(&cuda->copy_begin, cudaEventDisableTiming), "making an event",
                   error));
    for (int i = 0; i < 2; i++)
        TRY(cuda_check(cudaStreamCreateWithFlags(&cuda->copy_stream[i], cudaStreamNonBlocking),
                       "making a stream", error));
    return STATUS_OK;
}

void cuda_close_copies(CudaContext *cuda) {
    for (int i = 0; i < 2; i++) {
        if (!cuda->copy_stream[i]) continue;
        cudaStreamSynchronize(cuda->copy_stream[i]);
        cudaStreamDestroy(cuda->copy_stream[i]);
    }
    if (cuda->copy_begin) cudaEventDestroy(cuda->copy_begin);
    for (int i = 0; i < CUDA_COPIES; i++) {
        if (cuda->copy_done[i]) cudaEventDestroy(cuda->copy_done[i]);
    }
}

Status cuda_allocate_pinned(void *context, size_t n_bytes, const char *what, void **memory, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    TRY(open_copies(cuda, error));
    TRY(memory_alloc(memory, n_bytes, what, error));
    memory_touch(*memory, n_bytes); /* pinning would touch it by one thread */
    cudaError_t code = cudaHostRegister(*memory, n_bytes, cudaHostRegisterMapped);
    if (code == cudaSuccess) return STATUS_OK;
    cudaGetLastError(); /* it is not sticky */
    memory_free(*memory, n_bytes);
    *memory = NULL;
    return error_user(error,
                      "%.2f GiB of the host's memory cannot be pinned for %s (%s); offload less, raise "
                      "--offload-share, or raise the limit of locked memory (ulimit -l)",
                      (double)n_bytes / 0x1p30, what, cudaGetErrorName(code));
}

void cuda_release_pinned(void *context, void *memory, size_t n_bytes) {
    CudaContext *cuda = cuda_enter(context);
    for (int i = 0; i < 2; i++) {
        if (cuda->copy_stream[i]) cudaStreamSynchronize(cuda->copy_stream[i]);
    }
    cudaHostUnregister(memory);
    memory_free(memory, n_bytes);
}

Status cuda_copy_start(void *context, void *to, const void *from, size_t n_bytes, bool is_out, uint64_t after,
                       const BackendSpan *span, uint64_t *ticket, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    cudaStream_t stream = cuda->copy_stream[is_out];
    uint64_t number = cuda->n_copies + 1;
    TRY(cuda_check(cudaEventRecord(cuda->copy_begin, cuda->lane_stream[0]), "a copy", error));
    TRY(cuda_check(cudaStreamWaitEvent(stream, cuda->copy_begin, 0), "a copy", error));
    if (after && after + CUDA_COPIES > number)
        TRY(cuda_check(cudaStreamWaitEvent(stream, cuda->copy_done[after % CUDA_COPIES], 0), "a copy",
                       error));
    if (span) TRY(cuda_check(cudaEventRecord((cudaEvent_t)span->begin, stream), "a copy", error));
    TRY(cuda_check(
        cudaMemcpyAsync(to, from, n_bytes, is_out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
        "a copy", error));
    if (span) TRY(cuda_check(cudaEventRecord((cudaEvent_t)span->end, stream), "a copy", error));
    TRY(cuda_check(cudaEventRecord(cuda->copy_done[number % CUDA_COPIES], stream), "a copy", error));
    *ticket = cuda->n_copies = number;
    return STATUS_OK;
}

Status cuda_copy_wait(void *context, uint64_t ticket, bool by_host, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    cudaEvent_t done = cuda->copy_done[ticket % CUDA_COPIES];
    if (by_host) return cuda_wait_until(cuda, done, error);
    return cuda_check(cudaStreamWaitEvent(cuda->lane_stream[0], done, 0), "waiting for a copy", error);
}
