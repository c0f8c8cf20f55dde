/* What stands in for the CUDA backend in a pgpt that was built without it: the same entrance, with a sign on
 * it. */
#include "backend/cuda/plan/plan.h"

#include <stdio.h>

static const char REASON[] = "this pgpt was built without CUDA";

int backend_cuda_devices(char *reason, size_t n_bytes) {
    snprintf(reason, n_bytes, "%s", REASON);
    return 0;
}

Status backend_cuda_open(Backend *backend, int device, Error *error) {
    (void)backend, (void)device;
    return error_user(
        error,
        "--device cuda: %s; build it where NVIDIA's CUDA toolkit is installed (cmake -DPGPT_CUDA=on "
        "names what is missing), or use --device cpu",
        REASON);
}

bool cuda_traits_of_device(int device, CudaSettings settings, CudaTraits *gpu) {
    (void)device, (void)settings, (void)gpu;
    return false;
}

Status backend_cuda_configure(Backend *backend, CudaSettings settings, Error *error) {
    (void)backend, (void)settings, (void)error;
    return STATUS_OK;
}

int backend_cuda_device(const Backend *backend) {
    (void)backend;
    return 0;
}

void *backend_cuda_stream(const Backend *backend) {
    (void)backend;
    return NULL;
}

Status backend_cuda_take_pinned(void *context, size_t n_bytes, void **memory, Error *error) {
    (void)context, (void)n_bytes, (void)memory;
    return error_failed(error, "%s", REASON);
}

void backend_cuda_give_pinned_back(void *context, void *memory) {
    (void)context, (void)memory;
}

Status backend_cuda_watch(const Backend *backend, WatcherCheck check, void *context, Error *error) {
    (void)backend, (void)check, (void)context;
    return error_failed(error, "%s", REASON);
}

void backend_cuda_unwatch(const Backend *backend, const void *context) {
    (void)backend, (void)context;
}

const char *backend_cuda_note(const Backend *backend) {
    (void)backend;
    return "";
}

const char *backend_cuda_decode_way(const Backend *backend) {
    (void)backend;
    return "";
}
