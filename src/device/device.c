/* The one place that knows which backends there are, so that no command has to. */
#include "device/device.h"

#include "backend/cpu/cpu.h"
#include "backend/cuda/plan/plan.h"
#include "backend/null/null.h"
#include "base/system/memory.h"
#include "base/text/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const device_names[] = {"auto", "cpu", "cuda", NULL};
const char *const device_plan_names[] = {"auto", "cpu", "cuda", "cuda:h200", "cuda:h100", "cuda:a100", NULL};

/* Before CUDA is first asked for anything, which is when it reads this. Each stream should have a queue of
 * its own to the device: with two lanes, uploads and a stream for every communicator there are more than the
 * 8 that are the default, and what shares a queue waits behind a message that waits for another rank. */
static void prepare_queues(void) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* the most; the user's own choice stands */
}

/* 0 where the CPU is asked for, whatever there is. */
static int count_gpus(int kind) {
    char reason[256];
    if (kind == DEVICE_CPU) return 0;
    prepare_queues();
    return backend_cuda_devices(reason, sizeof reason);
}

bool device_takes_gpu(int kind) {
    return kind >= DEVICE_CUDA || count_gpus(kind) > 0;
}

static Status check_precision(const DeviceOptions *options, Error *error) {
    if (options->precision != PRECISION_TF32 || device_takes_gpu(options->kind)) return STATUS_OK;
    return error_user(error, "--dtype tf32 is of GPUs; use --dtype f32 here, or --device cuda");
}

static CudaSettings settings_of(const DeviceOptions *options) {
    return (CudaSettings){.tf32 = options->precision == PRECISION_TF32,
                          .any_order = options->any_order,
                          .default_gemm = options->first_gemm,
                          .two_streams = options->n_streams > 1};
}

/* What a GPU leaves to the host is done by the CPU's kernels, on as many threads as a run on the CPU has.
 * They need nothing that would have to be closed. */
static Status host_kernels(const DeviceOptions *options, HostKernels *host, Error *error) {
    Backend cpu;
    TRY(backend_cpu_open(&cpu, options->n_threads, error));
    *host = (HostKernels){cpu.traits, cpu.kernel, cpu.context, cpu.n_threads};
    return STATUS_OK;
}

Status device_backend_open(Backend *backend, const DeviceOptions *options, Error *error) {
    int n_gpus = count_gpus(options->kind);
    TRY(check_precision(options, error));
    if (options->kind > DEVICE_CUDA) {
        return error_user(
            error,
            "--device %s names a kind of GPU that a run can be planned for; add --print-program "
            "for that, or use --device cuda",
            device_plan_names[options->kind]);
    }
    if (!device_takes_gpu(options->kind)) return backend_cpu_open(backend, options->n_threads, error);
    HostKernels host;
    TRY(host_kernels(options, &host, error));
    TRY(backend_cuda_open(backend, n_gpus ? options->index % n_gpus : 0, error));
    backend->host = host;
    if (backend_cuda_configure(backend, settings_of(options), error) != STATUS_OK)
        backend->close(backend->context);
    return error->status;
}

/* ---- planning */

/* The GPU that is meant: the kind that is named, or the one that this rank would take here, or, where there
 * is none, an H200. */
static CudaTraits planned_gpu(const DeviceOptions *options) {
    CudaSettings settings = settings_of(options);
    int n_gpus = count_gpus(options->kind);
    CudaTraits gpu = {0};
    if (options->kind > DEVICE_CUDA)
        cuda_traits_named(strchr(device_plan_names[options->kind], ':') + 1, settings, &gpu);
    else if (!n_gpus || !cuda_traits_of_device(options->index % n_gpus, settings, &gpu))
        cuda_traits_named("h200", settings, &gpu);
    return gpu;
}

Status device_plan_open(Backend *backend, const DeviceOptions *options, Error *error) {
    BackendTraits traits;
    TRY(check_precision(options, error));
    if (!device_takes_gpu(options->kind)) {
        TRY(backend_cpu_traits(&traits, options->n_threads, error));
        return backend_null_open_as(backend, &traits, error);
    }
    CudaTraits gpu = planned_gpu(options);
    HostKernels host;
    traits = cuda_traits(&gpu);
    TRY(host_kernels(options, &host, error));
    TRY(backend_null_open_as(backend, &traits, error));
    backend->host = host;
    return STATUS_OK;
}

/* ---- ranks that share a device */

typedef struct {
    uint8_t is_gpu;
    uint8_t id[BACKEND_ID_BYTES];
} Site;

static Status count_neighbours(Backend *backend, const Site *sites, int n, int rank, Error *error) {
    int n_sharing = 0;
    for (int r = 0; r < n; r++) {
        if (sites[r].is_gpu != sites[0].is_gpu) {
            return error_user(
                error,
                "rank %d computes on %s and rank 0 on %s; use --device cpu, or --device cuda, which says why there is no GPU",
                r, sites[r].is_gpu ? "a GPU" : "its CPU", sites[0].is_gpu ? "a GPU" : "its CPU");
        }
        n_sharing += !memcmp(&sites[r], &sites[rank], sizeof *sites);
    }
    backend->n_sharing = n_sharing;
    return STATUS_OK;
}

Status device_meet(Backend *backend, Comm *world, int host_size, Error *error) {
    size_t n = (size_t)world->size;
    Site *sites = calloc(n, sizeof *sites);
    int64_t *border = malloc((n + 1) * sizeof *border);
    if (!sites || !border) {
        error_failed(error, "no memory for the devices of %d ranks", world->size);
        goto done;
    }
    sites[world->rank].is_gpu = backend_has_own_memory(backend);
    memcpy(sites[world->rank].id, backend->device_id, BACKEND_ID_BYTES);
    comm_even_borders((int64_t)(n * sizeof *sites), world->size, sizeof *sites, border);
    TRY_GOTO(comm_all_gather(world, sites, border, COMM_U8, error), done);
    TRY_GOTO(count_neighbours(backend, sites, world->size, world->rank, error), done);
    if (!backend_has_own_memory(backend)) backend->n_sharing = host_size;
    backend->n_on_host = host_size;
done:
    free(sites);
    free(border);
    return error->status;
}

/* ---- memory */

uint64_t device_usable_bytes(const Backend *backend) {
    uint64_t available = backend->free_bytes(backend->context);
    uint64_t share = available / (uint64_t)(backend->n_sharing > 1 ? backend->n_sharing : 1);
    uint64_t reserve =
        backend_has_own_memory(backend) ? DEVICE_RESERVE_BYTES : 0; /* a process has libraries */
    return share > reserve ? share - reserve : 0;
}

Status device_check_memory(const Backend *backend, size_t n_bytes, const char *what, const char *advice,
                           Error *error) {
    if (!backend_has_own_memory(backend)) return memory_check(n_bytes, what, advice, error);
    uint64_t usable = device_usable_bytes(backend);
    if (n_bytes <= usable) return STATUS_OK;
    return error_user(error, "%s needs %s of the GPU's memory, %s are free beside %s for its libraries; %s",
                      what, format_bytes(n_bytes).text, format_bytes(usable).text,
                      format_bytes(DEVICE_RESERVE_BYTES).text, advice);
}

const char *device_describe(const Backend *backend, char *text, size_t n_bytes) {
    if (!backend_has_own_memory(backend))
        snprintf(text, n_bytes, "%d thread%s", backend->n_threads, backend->n_threads == 1 ? "" : "s");
    else backend_cuda_describe(backend, text, n_bytes);
    return text;
}
