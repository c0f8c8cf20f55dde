/* The CUDA backend: one NVIDIA GPU.
 *
 * Everything is enqueued on one stream, in the order of the program, but for what may run beside the rest
 * where two are wanted (graph/lanes.h). The host waits only where it asks for something (download,
 * synchronize). An upload is complete on return in the sense that the host's memory may be reused and
 * whatever is enqueued afterwards sees the new bytes. */
#ifndef PGPT_BACKEND_CUDA_CUDA_H
#define PGPT_BACKEND_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/system/watchers.h"
#include "graph/backend.h"

/* Takes GPU number `device` of those that are visible. Fails with a user's error that says why when there is
 * none or pgpt was built without CUDA. backend->close gives everything back. */
Status backend_cuda_open(Backend *backend, int device, Error *error);

/* How many GPUs are visible. 0: `reason` (n_bytes) says why there is none. */
int backend_cuda_devices(char *reason, size_t n_bytes);

/* What the user may choose; the default is all false. Call it before a program is built. */
typedef struct {
    bool tf32; /* GEMMs of f32 tensors keep 10 bits of their factors' mantissas, and are 8 times as fast */
    bool any_order;    /* sums may be taken in an order that varies from run to run, where that is faster */
    bool default_gemm; /* the library's first choice of algorithm for each GEMM, none timed */
    bool two_streams;  /* gradients of weights run beside what follows them */
} CudaSettings;

Status backend_cuda_configure(Backend *backend, CudaSettings settings, Error *error);

/* Its number, and the stream that everything is enqueued on (a cudaStream_t), for those who enqueue beside
 * it. */
int backend_cuda_device(const Backend *backend);
void *backend_cuda_stream(const Backend *backend);

/* Memory of the host that the GPU copies to and from by itself; `context` is the backend's. */
Status backend_cuda_take_pinned(void *context, size_t n_bytes, void **memory, Error *error);
void backend_cuda_give_pinned_back(void *context, void *memory);

/* What of it is done another way than it could be, and why: attention where cuDNN is missing, say. "" if
 * nothing is. Known once programs were built. */
const char *backend_cuda_note(const Backend *backend);

/* How the last decode_step was computed: "clusters" or "grid", which are two kernels; "" before there was
 * one. */
const char *backend_cuda_decode_way(const Backend *backend);

/* Whom to ask, one more, while the host waits for the device: an error of his ends the wait. And whom no
 * longer. */
Status backend_cuda_watch(const Backend *backend, WatcherCheck check, void *context, Error *error);
void backend_cuda_unwatch(const Backend *backend, const void *context);

/* The GPU in words, of a backend that only plans for one too: "NVIDIA H200, 132 multiprocessors, compute
 * capability 9.0, 139.7 GiB". */
const char *backend_cuda_describe(const Backend *backend, char *text, size_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif
