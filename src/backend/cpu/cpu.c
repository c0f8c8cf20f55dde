/* The table that makes these kernels a backend: which function runs which operation, and where memory comes
 * from.
 *
 * Memory is the host's own, so uploads and downloads are copies. Kernels return when they are done. */
#include "backend/cpu/cpu.h"

#include "backend/cpu/kernels.h"
#include "base/system/cores.h"
#include "base/system/memory.h"
#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const Op *op;
    Kernel kernel;
    size_t (*scratch_bytes)(const Node *node, int n_threads); /* NULL: none */
} CpuKernel;

static const CpuKernel KERNELS[] = {
#define PLAIN(op, kernel)        {&op, kernel, NULL},
#define WITH_SCRATCH(op, kernel) {&op, kernel, kernel##_scratch},
    CPU_KERNELS(PLAIN, WITH_SCRATCH)
#undef PLAIN
#undef WITH_SCRATCH
};

static const CpuKernel *find_kernel(const Op *op) {
    for (size_t i = 0; i < sizeof KERNELS / sizeof KERNELS[0]; i++) {
        if (KERNELS[i].op == op) return &KERNELS[i];
    }
    return NULL;
}

/* What has no fast kernel yet runs its reference: slow, but the program runs. */
Kernel cpu_plain_kernel(const Op *op) {
    const CpuKernel *found = find_kernel(op);
    return found ? found->kernel : op->reference;
}

/* ---- what planning asks ---- */

static bool cpu_has_kernel(const BackendTraits *traits, const Node *node) {
    (void)traits;
    return !node->op->is_shortcut || find_kernel(node->op);
}

static size_t cpu_scratch_bytes(const BackendTraits *traits, const Node *node) {
    const CpuKernel *found = find_kernel(node->op);
    size_t plain = found && found->scratch_bytes ? found->scratch_bytes(node, traits->n_threads) : 0;
    return plain + (cpu_needs_widening(node) ? cpu_widening_bytes(node) : 0);
}

/* ---- running ---- */

static Kernel cpu_kernel(void *context, const Node *node) {
    (void)context;
    if (!cpu_has_kernel(NULL, node)) return NULL;
    return cpu_needs_widening(node) ? cpu_widened : cpu_plain_kernel(node->op);
}

static Status cpu_allocate(void *context, size_t n_bytes, const char *what, void **memory, Error *error) {
    (void)context;
    return memory_alloc(memory, n_bytes, what, error);
}

static void cpu_release(void *context, void *memory, size_t n_bytes) {
    (void)context;
    memory_free(memory, n_bytes);
}

static size_t cpu_free_bytes(void *context) {
    (void)context;
    uint64_t available = memory_available_bytes();
    return available < SIZE_MAX ? (size_t)available : SIZE_MAX;
}

static Status cpu_upload(void *context, void *device, const void *host, size_t n_bytes, Error *error) {
    (void)context, (void)error;
    if (n_bytes) memcpy(device, host, n_bytes);
    return STATUS_OK;
}

static Status cpu_download(void *context, void *host, const void *device, size_t n_bytes, Error *error) {
    (void)context, (void)error;
    if (n_bytes) memcpy(host, device, n_bytes);
    return STATUS_OK;
}

static void cpu_close(void *context) {
    (void)context;
}

/* ---- how many threads ---- */

enum { MAX_THREADS = 4096 };

static int default_threads(void) {
    const char *wish = getenv("OMP_NUM_THREADS"); /* a list for nested regions begins with ours */
    long threads = wish ? strtol(wish, NULL, 10) : 0;
    if (threads <= 0) threads = cores_usable();
    return threads < MAX_THREADS ? (int)threads : MAX_THREADS;
}

Status backend_cpu_traits(BackendTraits *traits, int n_threads, Error *error) {
    if (n_threads < 0 || n_threads > MAX_THREADS) {
        return error_user(error, "%d threads cannot be had; ask for 1 to %d, or 0 for all cores", n_threads,
                          MAX_THREADS);
    }
    *traits = TRAITS_HOST;
    traits->name = "cpu";
    traits->has_kernel = cpu_has_kernel;
    traits->scratch_bytes = cpu_scratch_bytes;
#ifdef _OPENMP
    traits->n_threads = n_threads ? n_threads : default_threads();
#else
    (void)default_threads;
#endif
    return STATUS_OK;
}

Status backend_cpu_open(Backend *backend, int n_threads, Error *error) {
    BackendTraits traits;
    TRY(backend_cpu_traits(&traits, n_threads, error));
    *backend = (Backend){
        .name = traits.name,
        .traits = traits,
        .allocate = cpu_allocate,
        .release = cpu_release,
        .free_bytes = cpu_free_bytes,
        .upload = cpu_upload,
        .download = cpu_download,
        .kernel = cpu_kernel,
        .close = cpu_close,
        .n_threads = traits.n_threads,
    };
    return STATUS_OK;
}
