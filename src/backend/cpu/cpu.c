/* The table that makes these kernels a backend: which function runs which operation, and where memory comes
 * from.
 *
 * Memory is the host's own, so uploads and downloads are copies. Kernels return when they are done. */
#include "backend/cpu/cpu.h"

#include "backend/cpu/kernels.h"
#include "base/cores.h"
#include "base/memory.h"
#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const Op *op;
    Kernel kernel;
    size_t (*scratch_bytes)(const Node *node, int n_threads); /* NULL: none */
} CpuKernel;

static const CpuKernel KERNELS[] = {
    {&OP_EMBEDDING, cpu_embedding, NULL},
    {&OP_EMBEDDING_TOKEN_GRADIENT, cpu_embedding_token_gradient, cpu_embedding_token_gradient_scratch},
    {&OP_EMBEDDING_POSITION_GRADIENT, cpu_embedding_position_gradient, NULL},
    {&OP_LAYERNORM, cpu_layernorm, NULL},
    {&OP_LAYERNORM_BACKWARD, cpu_layernorm_backward, cpu_layernorm_backward_scratch},
    {&OP_RMSNORM, cpu_rmsnorm, NULL},
    {&OP_RMSNORM_BACKWARD, cpu_rmsnorm_backward, cpu_rmsnorm_backward_scratch},
    {&OP_RESIDUAL_NORM, cpu_residual_norm, NULL},
    {&OP_RESIDUAL_NORM_BACKWARD, cpu_residual_norm_backward, cpu_residual_norm_backward_scratch},
    {&OP_LINEAR, cpu_linear, cpu_linear_scratch},
    {&OP_LINEAR_INPUT_GRADIENT, cpu_linear_input_gradient, cpu_linear_input_gradient_scratch},
    {&OP_LINEAR_WEIGHT_GRADIENT, cpu_linear_weight_gradient, cpu_linear_weight_gradient_scratch},
    {&OP_GELU, cpu_gelu, NULL},
    {&OP_GELU_BACKWARD, cpu_gelu_backward, NULL},
    {&OP_SWIGLU, cpu_swiglu, NULL},
    {&OP_SWIGLU_BACKWARD, cpu_swiglu_backward, NULL},
    {&OP_ATTENTION, cpu_attention, cpu_attention_scratch},
    {&OP_ATTENTION_BACKWARD, cpu_attention_backward, cpu_attention_backward_scratch},
    {&OP_ATTENTION_CACHED, cpu_attention_cached, cpu_attention_cached_scratch},
    {&OP_ROTARY, cpu_rotary, cpu_rotary_scratch},
    {&OP_ADD, cpu_add, NULL},
    {&OP_COPY, cpu_copy, NULL},
    {&OP_ZERO, cpu_zero, NULL},
    {&OP_DROPOUT, cpu_dropout, NULL},
    {&OP_GATHER, cpu_gather, NULL},
    {&OP_SUM, cpu_sum, cpu_sum_scratch},
    {&OP_CROSS_ENTROPY, cpu_cross_entropy, NULL},
    {&OP_SQUARED_ERROR, cpu_squared_error, NULL},
    {&OP_SQUARED_NORM, cpu_squared_norm, cpu_squared_norm_scratch},
    {&OP_CLIP, cpu_clip, NULL},
    {&OP_ADAMW, cpu_adamw, NULL},
    {&OP_SGD, cpu_sgd, NULL},
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

static Kernel cpu_kernel(void *context, const Node *node) {
    (void)context;
    if (node->op->is_shortcut && !find_kernel(node->op)) return NULL;
    return cpu_needs_widening(node) ? cpu_widened : cpu_plain_kernel(node->op);
}

typedef struct {
    int n_threads;
} CpuContext;

static size_t cpu_scratch_bytes(void *context, const Node *node) {
    const CpuKernel *found = find_kernel(node->op);
    size_t plain =
        found && found->scratch_bytes ? found->scratch_bytes(node, ((CpuContext *)context)->n_threads) : 0;
    return plain + (cpu_needs_widening(node) ? cpu_widening_bytes(node) : 0);
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
    free(context);
}

/* ---- how many threads ---- */

enum { MAX_THREADS = 4096 };

static int default_threads(void) {
    const char *wish = getenv("OMP_NUM_THREADS"); /* a list for nested regions begins with ours */
    long threads = wish ? strtol(wish, NULL, 10) : 0;
    if (threads <= 0) threads = cores_usable();
    return threads < MAX_THREADS ? (int)threads : MAX_THREADS;
}

Status backend_cpu_open(Backend *backend, int n_threads, Error *error) {
    if (n_threads < 0 || n_threads > MAX_THREADS) {
        return error_user(error, "%d threads cannot be had; ask for 1 to %d, or 0 for all cores", n_threads,
                          MAX_THREADS);
    }
    CpuContext *context = malloc(sizeof *context);
    if (!context) return error_failed(error, "no memory for the CPU backend");
#ifdef _OPENMP
    context->n_threads = n_threads ? n_threads : default_threads();
#else
    context->n_threads = 1;
    (void)default_threads;
#endif
    *backend = (Backend){
        .name = "cpu",
        .allocate = cpu_allocate,
        .release = cpu_release,
        .free_bytes = cpu_free_bytes,
        .uses_host_memory = true,
        .upload = cpu_upload,
        .download = cpu_download,
        .kernel = cpu_kernel,
        .scratch_bytes = cpu_scratch_bytes,
        .close = cpu_close,
        .context = context,
        .n_threads = context->n_threads,
    };
    return STATUS_OK;
}
