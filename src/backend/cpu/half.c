/* 16-bit storage on a processor that computes in f32: a node's 16-bit tensors are widened into working
 * memory, the f32 kernel runs on them, and what it wrote is rounded back. It costs a pass over each tensor,
 * so it saves memory and not time; it is here so that what a GPU does with 16-bit numbers can be done,
 * checked and continued anywhere. What goes over all parameters at once, the update and the norm before it,
 * does so in pieces: widened as a whole they would take more memory than 16 bits save.
 *
 * The update rounds 16-bit parameters and moments stochastically, as its operation says; everything else is
 * rounded to the nearest. A copy in 16 bits that an update makes beside its f32 parameters is the update
 * kernel's own business. */
#include "base/half.h"
#include "backend/cpu/kernels.h"
#include "base/random.h"
#include "ops/ops.h"
#include "ops/update/update.h"

#include <stddef.h>
#include <string.h>
#ifdef __F16C__
#    include <immintrin.h>
#endif

static bool is_half(const Tensor *tensor) {
    return tensor && (tensor->dtype == DTYPE_BF16 || tensor->dtype == DTYPE_F16);
}

static bool is_update(const Op *op) {
    return op->update != UPDATE_NONE;
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

enum { PIECE_ELEMENTS = 1 << 20 };

static bool goes_in_pieces(const Op *op) {
    return op->update == UPDATE_OF_ELEMENTS || op == &OP_SQUARED_NORM;
}

/* What an update knows of its elements; of anything else, nothing. */
static UpdateElements elements_of(const Node *node) {
    return is_update(node->op) ? *(const UpdateElements *)node->attributes : (UpdateElements){0};
}

static size_t aligned(size_t n_bytes) {
    enum { ALIGNMENT = 64 };
    return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t wide_bytes(const Node *node, const Tensor *tensor) {
    int64_t count = tensor_count(tensor);
    if (goes_in_pieces(node->op) && count > PIECE_ELEMENTS) count = PIECE_ELEMENTS;
    return aligned((size_t)count * sizeof(float));
}

static size_t runs_bytes(const Node *node) {
    return aligned((size_t)elements_of(node).n_runs * sizeof(DecayRun));
}

size_t cpu_widening_bytes(const Node *node) {
    size_t n_bytes = runs_bytes(node);
    for (int k = 0; k < node->n_inputs; k++)
        n_bytes += is_half(node->input[k]) ? wide_bytes(node, node->input[k]) : 0;
    for (int k = 0; k < node->n_outputs; k++)
        n_bytes += is_half(node->output[k]) && !is_copy(node, k) ? wide_bytes(node, node->output[k]) : 0;
    return n_bytes;
}

/* f16 is what processors convert by themselves; bf16 the compiler makes vectors of. */
static void widen_f16(const uint16_t *from, float *to, int64_t first, int64_t end) {
#ifdef __F16C__
    for (; first + 8 <= end; first += 8)
        _mm256_storeu_ps(to + first, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + first))));
#endif
    for (; first < end; first++) to[first] = half_f16_to_f32(from[first]);
}

static void narrow_f16(const float *from, uint16_t *to, int64_t first, int64_t end) {
#ifdef __F16C__
    for (; first + 8 <= end; first += 8)
        _mm_storeu_si128((void *)(to + first),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + first), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; first < end; first++) to[first] = half_f16_from_f32(from[first]);
}

static void widen(const KernelCall *call, const Tensor *tensor, const uint16_t *from, float *to) {
    int64_t count = tensor_count(tensor);
    int n_parts = cpu_threads(call, count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        if (tensor->dtype == DTYPE_F16) widen_f16(from, to, range.first, range.end);
        else
            for (int64_t i = range.first; i < range.end; i++) to[i] = half_bf16_to_f32(from[i]);
    }
}

void cpu_narrow(DType dtype, const float *from, void *to, int64_t first, int64_t end) {
    uint16_t *half = to;
    if (dtype == DTYPE_F32) {
        memcpy((float *)to + first, from + first, (size_t)(end - first) * sizeof(float));
    } else if (dtype == DTYPE_BF16) {
        for (int64_t i = first; i < end; i++) half[i] = half_bf16_from_f32(from[i]);
    } else narrow_f16(from, half, first, end);
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

static void narrow_stochastically(const KernelCall *call, int k, const float *from, uint16_t *to) {
    const Node *node = call->node;
    int64_t first = elements_of(node).first_element, count = tensor_count(node->output[k]);
    bool is_brain = node->output[k]->dtype == DTYPE_BF16;
    uint32_t draw;
    memcpy(&draw, (const float *)call->in[1] + HYPER_DRAW, sizeof draw);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, count))
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = random_rounding(draw, (unsigned)k, (uint64_t)(first + i));
        to[i] = is_brain ? half_bf16_stochastic(from[i], bits) : half_f16_stochastic(from[i], bits);
    }
}

static Status run_widened(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    KernelCall wide = *call;
    char *room = call->scratch;
    for (int k = 0; k < node->n_inputs; k++) {
        if (!is_half(node->input[k])) continue;
        widen(call, node->input[k], call->in[k], (float *)(void *)room);
        wide.in[k] = room;
        room += wide_bytes(node, node->input[k]);
    }
    for (int k = 0; k < node->n_outputs; k++) {
        if (!is_half(node->output[k]) || is_copy(node, k)) continue;
        bool is_read = call->add[k] || is_update(node->op) || node->op == &OP_ATTENTION_CACHED;
        if (is_read) widen(call, node->output[k], call->out[k], (float *)(void *)room);
        wide.out[k] = room;
        room += wide_bytes(node, node->output[k]);
    }
    wide.scratch = room;
    TRY(cpu_plain_kernel(node->op)(&wide, error));
    for (int k = 0; k < node->n_outputs; k++) {
        if (!is_half(node->output[k]) || is_copy(node, k)) continue;
        if (is_update(node->op)) narrow_stochastically(call, k, wide.out[k], call->out[k]);
        else narrow(call, node->output[k], wide.out[k], call->out[k]);
    }
    return STATUS_OK;
}

/* ---- in pieces ---- */

typedef struct {
    KernelCall call;
    Node node;
    Tensor input[NODE_MAX_INPUTS], output[NODE_MAX_OUTPUTS];
    _Alignas(max_align_t) char attributes[UPDATE_MAX_ATTRIBUTES];
} Piece;

/* The runs of elements first .. first + n - 1; how many there are. */
static int cut_runs(const UpdateElements *whole, int64_t first, int64_t n, DecayRun *cut) {
    int n_cut = 0;
    int64_t at = 0;
    for (int i = 0; i < whole->n_runs && at < first + n; at += whole->runs[i++].n_elements) {
        int64_t from = at > first ? at : first, end = at + whole->runs[i].n_elements;
        if (end > first + n) end = first + n;
        if (end > from) cut[n_cut++] = (DecayRun){end - from, whole->runs[i].decays};
    }
    return n_cut;
}

/* Attributes begin with the elements. */
static void set_elements(Piece *piece, UpdateElements elements) {
    memcpy(piece->attributes, piece->node.attributes, piece->node.attributes_bytes);
    memcpy(piece->attributes, &elements, sizeof elements);
    piece->node.attributes = piece->attributes;
}

/* Of an array of all elements; a scalar, or the sums of tensors, stay whole. */
static void cut_tensor(Tensor **tensor, void **data, Tensor *cut, int64_t count, int64_t first, int64_t n) {
    if (!*tensor || !update_moment_fits(*tensor, count)) return;
    bool is_packed = update_is_packed(*tensor);
    *cut = **tensor;
    cut->shape = SHAPE(is_packed ? block8_words(n) : n);
    *data =
        (char *)*data + (size_t)(is_packed ? block8_words(first) : first) * dtype_info(cut->dtype)->n_bytes;
    *tensor = cut;
}

static void cut(const KernelCall *call, int64_t first, int64_t n, DecayRun *runs, Piece *piece) {
    Node *node = &piece->node;
    int64_t count = update_n_elements(call->node);
    piece->call = *call;
    *node = *call->node;
    piece->call.node = node;
    for (int k = 0; k < node->n_inputs; k++) {
        void *data = call->in[k];
        cut_tensor(&node->input[k], &data, &piece->input[k], count, first, n);
        piece->call.in[k] = data;
    }
    for (int k = 0; k < node->n_outputs; k++) /* what all pieces add to */
        piece->call.add[k] = call->add[k] || first > 0;
    if (node->op == &OP_SQUARED_NORM) return;
    for (int k = 0; k < node->n_outputs; k++)
        cut_tensor(&node->output[k], &piece->call.out[k], &piece->output[k], count, first, n);
    UpdateElements whole = elements_of(call->node);
    set_elements(piece, (UpdateElements){cut_runs(&whole, first, n, runs), runs, whole.first_element + first,
                                         whole.n_before + first});
}

Status cpu_widened(const KernelCall *call, Error *error) {
    if (!goes_in_pieces(call->node->op)) return run_widened(call, error);
    int64_t count = update_n_elements(call->node);
    DecayRun *runs = call->scratch;
    for (int64_t first = 0; first < count; first += PIECE_ELEMENTS) {
        Piece piece;
        cut(call, first, count - first < PIECE_ELEMENTS ? count - first : PIECE_ELEMENTS, runs, &piece);
        piece.call.scratch = (char *)call->scratch + runs_bytes(call->node);
        TRY(run_widened(&piece.call, error));
    }
    return STATUS_OK;
}
