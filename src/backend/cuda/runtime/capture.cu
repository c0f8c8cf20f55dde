/* Stream capture (CUDA graphs): what is enqueued is captured once and replayed as one. And events in a
 * stream.
 *
 * A training step is some 170 kernels of 3 to 90 us. Enqueued one by one, the host would not keep up with the
 * smaller ones. */
#include "backend/cuda/kernels.h"

/* Only this thread's calls are held to the rules of a capture: others may allocate meanwhile. */
Status cuda_capture_begin(void *context, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    return cuda_check(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "capturing",
                      error);
}

Status cuda_capture_end(void *context, void **capture, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    *capture = NULL;
    TRY(cuda_check(cudaStreamEndCapture(cuda->stream, &graph), "capturing", error));
    cudaError_t code = cudaGraphInstantiate(&ready, graph, cudaGraphInstantiateFlagUseNodePriority);
    cudaGraphDestroy(graph);
    TRY(cuda_check(code, "instantiating a CUDA graph", error));
    *capture = ready;
    return cuda_check(cudaGraphUpload(ready, cuda->stream), "instantiating a CUDA graph", error);
}

void cuda_capture_abandon(void *context) {
    CudaContext *cuda = cuda_enter(context);
    cudaGraph_t graph = NULL;
    cudaStreamEndCapture(cuda->stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError(); /* a capture that broke says so again */
}

Status cuda_replay(void *context, void *capture, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    return cuda_check(cudaGraphLaunch((cudaGraphExec_t)capture, cuda->stream), "replaying a CUDA graph",
                      error);
}

void cuda_capture_free(void *context, void *capture) {
    cuda_enter(context);
    if (capture) cudaGraphExecDestroy((cudaGraphExec_t)capture);
}

Status cuda_event_new(void *context, void **event, Error *error) {
    cuda_enter(context);
    return cuda_check(cudaEventCreate((cudaEvent_t *)event), "making an event", error);
}

Status cuda_event_record(void *context, void *event, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    return cuda_check(cudaEventRecord((cudaEvent_t)event, cuda->stream), "recording an event", error);
}

Status cuda_elapsed_ms(void *context, void *first, void *second, float *milliseconds, Error *error) {
    TRY(cuda_wait_until(cuda_enter(context), (cudaEvent_t)second, error));
    return cuda_check(cudaEventElapsedTime(milliseconds, (cudaEvent_t)first, (cudaEvent_t)second),
                      "reading an event", error);
}

void cuda_event_free(void *context, void *event) {
    cuda_enter(context);
    if (event) cudaEventDestroy((cudaEvent_t)event);
}
