/* Recordings of what is enqueued, replayed as one, and marks in a stream: CUDA's graphs and events.
 *
 * A training step is some 170 kernels of 3 to 90 us: enqueued one by one, the host would not keep up with the smaller ones. */
#include "backend/cuda/kernels.h"

/* Only this thread's calls are held to the rules of a capture: others may allocate meanwhile. */
Status cuda_capture_begin(void *context, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    return cuda_check(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "recording",
                      error);
}

Status cuda_capture_end(void *context, void **recording, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    *recording = NULL;
    TRY(cuda_check(cudaStreamEndCapture(cuda->stream, &graph), "recording", error));
    cudaError_t code = cudaGraphInstantiate(&ready, graph, cudaGraphInstantiateFlagUseNodePriority);
    cudaGraphDestroy(graph);
    TRY(cuda_check(code, "making a recording ready", error));
    *recording = ready;
    return cuda_check(cudaGraphUpload(ready, cuda->stream), "making a recording ready", error);
}

void cuda_capture_abandon(void *context) {
    CudaContext *cuda = cuda_enter(context);
    cudaGraph_t graph = NULL;
    cudaStreamEndCapture(cuda->stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError(); /* a capture that broke says so again */
}

Status cuda_replay(void *context, void *recording, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    return cuda_check(cudaGraphLaunch((cudaGraphExec_t)recording, cuda->stream), "replaying a recording",
                      error);
}

void cuda_recording_free(void *context, void *recording) {
    cuda_enter(context);
    if (recording) cudaGraphExecDestroy((cudaGraphExec_t)recording);
}

Status cuda_mark_new(void *context, void **mark, Error *error) {
    cuda_enter(context);
    return cuda_check(cudaEventCreate((cudaEvent_t *)mark), "making a mark", error);
}

Status cuda_mark(void *context, void *mark, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    return cuda_check(cudaEventRecord((cudaEvent_t)mark, cuda->stream), "setting a mark", error);
}

Status cuda_elapsed_ms(void *context, void *first, void *second, float *milliseconds, Error *error) {
    TRY(cuda_wait_until(cuda_enter(context), (cudaEvent_t)second, error));
    return cuda_check(cudaEventElapsedTime(milliseconds, (cudaEvent_t)first, (cudaEvent_t)second),
                      "reading a mark", error);
}

void cuda_mark_free(void *context, void *mark) {
    cuda_enter(context);
    if (mark) cudaEventDestroy((cudaEvent_t)mark);
}
