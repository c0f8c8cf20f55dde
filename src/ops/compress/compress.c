#include "ops/compress/compress.h"

#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

int64_t compress_words(const CompressAttributes *a) {
    int64_t n_words = 0;
    for (int i = 0; i < a->n_slices; i++) n_words += codec_words(&a->codec, a->border[i + 1] - a->border[i]);
    return n_words;
}

static bool fit(Graph *graph, const char *op, const Tensor *of, const Tensor *other) {
    return graph_check(graph,
                       !other || (tensor_count(other) == tensor_count(of) && other->dtype == DTYPE_F32),
                       "%s: %s must be as many f32 numbers as %s", op, other ? other->name : "", of->name);
}

static bool all_fit(Graph *graph, const char *op, const Tensor *of, const CompressTensors *tensors) {
    return fit(graph, op, of, tensors->gradient) && fit(graph, op, of, tensors->momentum) &&
           fit(graph, op, of, tensors->variance) && fit(graph, op, of, tensors->error);
}

Tensor *op_compress(Graph *graph, const CompressTensors *tensors, const CompressAttributes *a) {
    const Tensor *error = tensors->error;
    if (!all_fit(graph, "compress", error, tensors) ||
        !graph_check(graph, a->border[0] == 0 && a->border[a->n_slices] == tensor_count(error),
                     "compress: the slices of %s do not cover it", error->name))
        return graph->nothing;
    Tensor *words = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(compress_words(a)), "%s.words",
                                 tensors->gradient->name);
    graph_record(graph, &OP_COMPRESS, a, sizeof *a, 4,
                 TENSORS(tensors->gradient, tensors->momentum, tensors->variance, tensors->factor), 2,
                 TENSORS(words, tensors->error));
    return words;
}

void op_combine(Graph *graph, Tensor *words, const CompressTensors *tensors, Tensor *combined,
                const CompressAttributes *a) {
    int64_t n_words = codec_words(&a->codec, tensor_count(tensors->error));
    if (!all_fit(graph, "combine", tensors->error, tensors) ||
        !graph_check(graph, tensor_count(words) == a->n_slices * n_words && tensor_count(combined) == n_words,
                     "combine: %s has not the words of %d ranks", words->name, a->n_slices))
        return;
    graph_record(graph, &OP_COMBINE, a, sizeof *a, 3, TENSORS(words, tensors->variance, tensors->factor), 2,
                 TENSORS(combined, tensors->error));
}

void op_expand(Graph *graph, Tensor *words, const CompressTensors *tensors, Tensor *numbers,
               const CompressAttributes *a) {
    int64_t n_words =
        a->border ? compress_words(a) : a->n_slices * codec_words(&a->codec, tensor_count(numbers));
    if (!fit(graph, "expand", numbers, tensors->variance) ||
        !graph_check(graph, tensor_count(words) == n_words, "expand: %s has not the words of %s", words->name,
                     numbers->name))
        return;
    graph_record(graph, &OP_EXPAND, a, sizeof *a, 3, TENSORS(words, tensors->variance, tensors->factor), 1,
                 TENSORS(numbers));
}

static const char *const codec_names[N_CODECS] = {"signs", "int8", "f16", "largest"};

static void compress_describe(const Node *node, char *text, size_t n_bytes) {
    const CompressAttributes *a = node->attributes;
    snprintf(text, n_bytes, "%s, %g bits, %d %s", codec_names[a->codec.kind], codec_bits(&a->codec),
             a->n_slices, node->op == &OP_COMBINE ? "ranks" : "slices");
}

/* ---- what they mean */

static CodecSlice slice_at(const CompressAttributes *a, int index, uint32_t *words, float *values,
                           const float *variance) {
    int64_t first = a->border[index];
    return (CodecSlice){.words = words,
                        .values = values + first,
                        .variance = variance ? variance + first : NULL,
                        .bound = a->bound,
                        .n = a->border[index + 1] - first};
}

static Status compress_reference(const KernelCall *call, Error *error) {
    (void)error;
    const CompressAttributes *a = call->node->attributes;
    const float *gradient = call->in[0], *momentum = call->in[1], *variance = call->in[2], /* (N) each */
                                                                      *factor = call->in[3];
    uint32_t *words = call->out[0];
    float *errors = call->out[1]; /* (N) */
    float gain = a->gain * (factor ? *factor : 1.0f);
    if (!isfinite(gain)) return STATUS_OK;
    for (int64_t i = 0; i < a->border[a->n_slices]; i++) {
        errors[i] = fmaf(gain, gradient[i], errors[i]);
        if (momentum) errors[i] = fmaf(a->keep, momentum[i], errors[i]);
    }
    for (int i = 0; i < a->n_slices; i++) {
        CodecSlice slice = slice_at(a, i, words, errors, variance);
        codec_encode(&a->codec, &slice, 0, codec_blocks(slice.n));
        words += codec_words(&a->codec, slice.n);
    }
    return STATUS_OK;
}

static Status combine_reference(const KernelCall *call, Error *error) {
    (void)error;
    const CompressAttributes *a = call->node->attributes;
    uint32_t *words = call->in[0]; /* (n_slices, n of a slice) */
    const float *factor = call->in[2];
    if (factor && !isfinite(*factor)) return STATUS_OK;
    CodecSlice slice = {.values = call->out[1],
                        .variance = call->in[1],
                        .bound = a->bound,
                        .n = tensor_count(call->node->output[1])};
    int64_t n_blocks = codec_blocks(slice.n);
    for (int i = 0; i < a->n_slices; i++) {
        slice.words = words + i * codec_words(&a->codec, slice.n);
        codec_decode(&a->codec, &slice, 0, n_blocks, a->gain, true);
    }
    slice.words = call->out[0];
    codec_encode(&a->codec, &slice, 0, n_blocks);
    return STATUS_OK;
}

static Status expand_reference(const KernelCall *call, Error *error) {
    (void)error;
    const CompressAttributes *a = call->node->attributes;
    uint32_t *words = call->in[0];
    const float *variance = call->in[1], *factor = call->in[2];
    const int64_t n = tensor_count(call->node->output[0]), all[] = {0, n};
    CompressAttributes whole = *a;
    if (factor && !isfinite(*factor)) return STATUS_OK;
    if (!a->border) whole.border = all;
    for (int i = 0; i < a->n_slices; i++) {
        CodecSlice slice = slice_at(&whole, a->border ? i : 0, words, call->out[0], variance);
        bool adds = !a->border && i > 0;
        codec_decode(&a->codec, &slice, 0, codec_blocks(slice.n), a->gain, adds);
        words += codec_words(&a->codec, slice.n);
    }
    return STATUS_OK;
}

/* Values are read and written again, the rest is read or written. */
static double compress_bytes(const Node *node) {
    double bytes = (double)tensor_bytes(node->output[node->n_outputs - 1]);
    for (int i = 0; i < node->n_inputs; i++)
        bytes += node->input[i] ? (double)tensor_bytes(node->input[i]) : 0.0;
    for (int i = 0; i < node->n_outputs; i++) bytes += (double)tensor_bytes(node->output[i]);
    return bytes;
}

const Op OP_COMPRESS = {.name = "compress",
                        .bytes = compress_bytes,
                        .describe = compress_describe,
                        .reference = compress_reference};
const Op OP_COMBINE = {.name = "combine",
                       .bytes = compress_bytes,
                       .describe = compress_describe,
                       .reference = combine_reference};
const Op OP_EXPAND = {.name = "expand", .describe = compress_describe, .reference = expand_reference};
