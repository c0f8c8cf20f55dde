/* 16-bit storage on a processor that computes in f32: a node's 16-bit tensors are widened into working memory, the f32
 * kernel runs on them, and what it wrote is rounded back. It costs a pass over each tensor, so it saves memory
 * and not time; it is here so that what a GPU does with 16-bit numbers can be done, checked and continued anywhere.
 *
 * The update rounds 16-bit parameters and moments by chance, as its operation says; everything else is rounded to the
 * nearest. A copy in 16 bits that an update makes beside its f32 parameters is the update kernel's own business. */
#include "base/half.h"
#include "backend/cpu/kernels.h"
#include "base/random.h"
#include "ops/ops.h"

#include <string.h>

static bool is_half(const Tensor *tensor) {
    return tensor && (tensor->dtype == DTYPE_BF16 || tensor->dtype == DTYPE_F16);
}

static bool is_update(const Op *op) {
    return op == &OP_ADAMW || op == &OP_SGD;
}

/* Does output k of an update hold a copy of the parameters? */
static bool is_copy(const Node *node, int k) {
    return is_update(node->op) && k == node->n_outputs - 1;
}

bool cpu_is_plain_copy(const Node *node) {
    return node->op == &OP_COPY && node->input[0]->dtype == node->output[0]->dtype &&
           node->write[0] == WRITE_FRESH;
}

bool cpu_needs_widening(const Node *node) {
    if (cpu_is_plain_copy(node)) return false;
    bool needs = false;
    for (int k = 0; k < node->n_inputs; k++) needs |= is_half(node->input[k]);
    for (int k = 0; k < node->n_outputs; k++) needs |= is_half(node->output[k]) && !is_copy(node, k);
    return needs;
}

static size_t wide_bytes(const Tensor *tensor) {
    enum { ALIGNMENT = 64 };
    size_t n_bytes = (size_t)tensor_count(tensor) * sizeof(float);
    return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t cpu_widening_bytes(const Node *node) {
    size_t n_bytes = 0;
    for (int k = 0; k < node->n_inputs; k++)
        n_bytes += is_half(node->input[k]) ? wide_bytes(node->input[k]) : 0;
    for (int k = 0; k < node->n_outputs; k++)
        n_bytes += is_half(node->output[k]) && !is_copy(node, k) ? wide_bytes(node->output[k]) : 0;
    return n_bytes;
}

static void widen(const KernelCall *call, const Tensor *tensor, const uint16_t *from, float *to) {
    int64_t count = tensor_count(tensor);
    bool is_brain = tensor->dtype == DTYPE_BF16;
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, count))
    for (int64_t i = 0; i < count; i++)
        to[i] = is_brain ? half_bf16_to_f32(from[i]) : half_f16_to_f32(from[i]);
}

void cpu_narrow(DType dtype, const float *from, void *to, int64_t first, int64_t end) {
    uint16_t *half = to;
    if (dtype == DTYPE_F32) {
        memcpy((float *)to + first, from + first, (size_t)(end - first) * sizeof(float));
    } else if (dtype == DTYPE_BF16) {
        for (int64_t i = first; i < end; i++) half[i] = half_bf16_from_f32(from[i]);
    } else {
        for (int64_t i = first; i < end; i++) half[i] = half_f16_from_f32(from[i]);
    }
}

void cpu_round(DType dtype, float *x, int64_t n) {
    if (dtype == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++) x[i] = half_bf16_to_f32(half_bf16_from_f32(x[i]));
    } else if (dtype == DTYPE_F16) {
        for (int64_t i = 0; i < n; i++) x[i] = half_f16_to_f32(half_f16_from_f32(x[i]));
    }
}

static void narrow(const KernelCall *call, const Tensor *tensor, const float *from, void *to) {
    int64_t count = tensor_count(tensor);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        cpu_narrow(tensor->dtype, from, to, range.first, range.end);
    }
}

static void narrow_by_chance(const KernelCall *call, int k, const float *from, uint16_t *to) {
    const Node *node = call->node;
    int64_t first = node->op == &OP_ADAMW ? ((const AdamwAttributes *)node->attributes)->first_element
                                          : ((const SgdAttributes *)node->attributes)->first_element;
    int64_t count = tensor_count(node->output[k]);
    bool is_brain = node->output[k]->dtype == DTYPE_BF16;
    uint32_t draw;
    memcpy(&draw, (const float *)call->in[1] + HYPER_DRAW, sizeof draw);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, count))
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = random_rounding(draw, (unsigned)k, (uint64_t)(first + i));
        to[i] = is_brain ? half_bf16_stochastic(from[i], bits) : half_f16_stochastic(from[i], bits);
    }
}

Status cpu_widened(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    KernelCall wide = *call;
    char *room = call->scratch;
    for (int k = 0; k < node->n_inputs; k++) {
        if (!is_half(node->input[k])) continue;
        widen(call, node->input[k], call->in[k], (float *)(void *)room);
        wide.in[k] = room;
        room += wide_bytes(node->input[k]);
    }
    for (int k = 0; k < node->n_outputs; k++) {
        if (!is_half(node->output[k]) || is_copy(node, k)) continue;
        bool is_read = call->add[k] || is_update(node->op) || node->op == &OP_ATTENTION_CACHED;
        if (is_read) widen(call, node->output[k], call->out[k], (float *)(void *)room);
        wide.out[k] = room;
        room += wide_bytes(node->output[k]);
    }
    wide.scratch = room;
    TRY(cpu_plain_kernel(node->op)(&wide, error));
    for (int k = 0; k < node->n_outputs; k++) {
        if (!is_half(node->output[k]) || is_copy(node, k)) continue;
        if (is_update(node->op)) narrow_by_chance(call, k, wide.out[k], call->out[k]);
        else narrow(call, node->output[k], wide.out[k], call->out[k]);
    }
    return STATUS_OK;
}
