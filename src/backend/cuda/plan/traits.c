/* The kinds of GPU that are known by name, and the traits of a backend for one of them or for the one that
 * is here. */
#include "backend/cuda/plan/plan.h"

#include "ops/attention/sparse_attention.h"
#include "ops/decode_step.h"
#include "ops/experts/expert_ranks.h"
#include "ops/sample.h"

#include <stdio.h>
#include <string.h>

/* ---- kinds ---- */

static const struct {
    const char *word; /* behind "cuda:" */
    CudaTraits gpu;
} KINDS[] = {
    {"h200",
     {.name = "NVIDIA H200",
      .major = 9,
      .n_processors = 132,
      .max_shared_bytes = 227 << 10,
      .memory_bytes = (uint64_t)(139.7 * 0x1p30)}},
    {"h100",
     {.name = "NVIDIA H100",
      .major = 9,
      .n_processors = 132,
      .max_shared_bytes = 227 << 10,
      .memory_bytes = (uint64_t)(79.2 * 0x1p30)}},
    {"a100",
     {.name = "NVIDIA A100",
      .major = 8,
      .n_processors = 108,
      .max_shared_bytes = 163 << 10,
      .memory_bytes = (uint64_t)(79.2 * 0x1p30)}},
};

bool cuda_traits_named(const char *word, CudaSettings settings, CudaTraits *gpu) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        if (strcmp(KINDS[i].word, word) != 0) continue;
        *gpu = KINDS[i].gpu;
        gpu->has_code_90 = gpu->major >= 9;
        gpu->has_code_90a = gpu->major == 9 && gpu->minor == 0;
        gpu->has_cudnn = true;
        gpu->settings = settings;
        return true;
    }
    return false;
}

/* ---- what planning asks ---- */

typedef size_t (*Scratch)(const CudaTraits *gpu, const Node *node);

static const struct {
    const Op *op;
    Scratch scratch; /* NULL: none */
} KERNELS[] = {
#define PLAIN(op, kernel)        {&op, NULL},
#define WITH_SCRATCH(op, kernel) {&op, kernel##_scratch},
    CUDA_KERNELS(PLAIN, WITH_SCRATCH)
#undef PLAIN
#undef WITH_SCRATCH
};

static const CudaTraits *gpu_of(const BackendTraits *traits) {
    return traits->about;
}

static int find_kernel(const Op *op) {
    for (int i = 0; i < (int)(sizeof KERNELS / sizeof KERNELS[0]); i++) {
        if (KERNELS[i].op == op) return i;
    }
    return -1;
}

/* Whose attributes begin with those of heads. */
static bool is_attention(const Op *op) {
    static const Op *const KINDS_OF_IT[] = {
        &OP_ATTENTION,
        &OP_ATTENTION_BACKWARD,
        &OP_ATTENTION_CACHED,
        &OP_ATTENTION_PART,
        &OP_ATTENTION_PART_BACKWARD,
        &OP_SPARSE_ATTENTION,
        &OP_SPARSE_ATTENTION_BACKWARD,
        &OP_SPARSE_ATTENTION_CACHED,
        &OP_SPARSE_ATTENTION_PART,
        &OP_SPARSE_ATTENTION_PART_BACKWARD,
    };
    for (size_t i = 0; i < sizeof KINDS_OF_IT / sizeof KINDS_OF_IT[0]; i++) {
        if (op == KINDS_OF_IT[i]) return true;
    }
    return false;
}

static bool has_kernel(const BackendTraits *traits, const Node *node) {
    if (node->op == &OP_DECODE_STEP && !cuda_decode_step_fits(gpu_of(traits), node)) return false;
    if (is_attention(node->op) && !cuda_attention_fits(node)) return false;
    return find_kernel(node->op) >= 0;
}

_Static_assert(ATTENTION_MOST_CHANNELS == 256, "the user is told so");
static const char *why_not(const BackendTraits *traits, const Node *node) {
    (void)traits;
    if (!is_attention(node->op)) return NULL;
    return "attention on a GPU has heads of at most 256 channels; use a model with more --heads, or --device cpu";
}

static size_t scratch_bytes(const BackendTraits *traits, const Node *node) {
    int found = find_kernel(node->op);
    return found >= 0 && KERNELS[found].scratch ? KERNELS[found].scratch(gpu_of(traits), node) : 0;
}

static bool sums_columns(const BackendTraits *traits, const Node *node) {
    const CudaTraits *gpu = gpu_of(traits);
    if (node->op == &OP_RESIDUAL_NORM_BACKWARD) return cuda_residual_norm_sums(gpu, node);
    if (node->op == &OP_LINEAR_INPUT_GRADIENT) return cuda_linear_input_gradient_sums(gpu, node);
    return node->op == &OP_ATTENTION_BACKWARD && cuda_attention_sums(gpu, node);
}

BackendTraits cuda_traits(const CudaTraits *gpu) {
    BackendTraits traits = TRAITS_DEVICE;
    traits.name = "cuda";
    snprintf(traits.kind, sizeof traits.kind, "%s", gpu->name);
    traits.has_kernel = has_kernel;
    traits.why_not = why_not;
    traits.scratch_bytes = scratch_bytes;
    traits.sums_columns = sums_columns;
    traits.n_lanes = gpu->settings.two_streams ? 2 : 1;
    traits.about = gpu;
    traits.about_bytes = sizeof *gpu;
    return traits;
}

const char *backend_cuda_describe(const Backend *backend, char *text, size_t n_bytes) {
    const CudaTraits *gpu = gpu_of(&backend->traits);
    snprintf(text, n_bytes, "%s, %d multiprocessors, compute capability %d.%d, %.1f GiB", gpu->name,
             gpu->n_processors, gpu->major, gpu->minor, (double)gpu->memory_bytes / 0x1p30);
    return text;
}
