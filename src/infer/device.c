/* The one place that knows which backends there are, so that no command has to. */
#include "infer/device.h"

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/format.h"
#include "base/memory.h"
#include "comm/comm_device.h"

#include <stdio.h>

const char *const device_names[] = {"auto", "cpu", "cuda", NULL};

Status device_backend_open(Backend *backend, const DeviceOptions *options, Error *error) {
    char reason[256];
    int n_gpus = options->kind == DEVICE_CPU ? 0 : backend_cuda_devices(reason, sizeof reason);
    bool takes_gpu = options->kind == DEVICE_CUDA || n_gpus > 0;
    if (!takes_gpu && options->precision == PRECISION_TF32) {
        return error_user(error, "--dtype tf32 is of GPUs; use --dtype f32 here, or --device cuda");
    }
    if (!takes_gpu) return backend_cpu_open(backend, options->n_threads, error);
    TRY(backend_cuda_open(backend, n_gpus ? options->index % n_gpus : 0, error));
    backend_cuda_configure(backend, (CudaSettings){.tf32 = options->precision == PRECISION_TF32});
    return STATUS_OK;
}

Status device_check_memory(const Backend *backend, size_t n_bytes, const char *what, const char *advice,
                           Error *error) {
    if (backend->uses_host_memory) return memory_check(n_bytes, what, advice, error);
    size_t available = backend->free_bytes(backend->context);
    if (n_bytes <= available) return STATUS_OK;
    return error_user(error, "%s needs %s of the GPU's memory, %s are free; %s", what,
                      format_bytes(n_bytes).text, format_bytes(available).text, advice);
}

Status device_comm_open(Comm *comm, Comm *host, const Backend *backend, Error *error) {
    *comm = (Comm){0};
    if (backend->uses_host_memory || host->size == 1) return STATUS_OK;
    if (comm_nccl_is_built())
        return comm_nccl_open(comm, host, backend_cuda_device(backend), backend_cuda_stream(backend), error);
    CommStaging staging = {backend->upload, backend->download, backend->context};
    return comm_staged_open(comm, host, &staging, error);
}

const char *device_describe(const Backend *backend, char *text, size_t n_bytes) {
    if (backend->uses_host_memory)
        snprintf(text, n_bytes, "%d thread%s", backend->n_threads, backend->n_threads == 1 ? "" : "s");
    else backend_cuda_describe(backend, text, n_bytes);
    return text;
}
