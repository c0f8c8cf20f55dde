/* sparse_attention: attention over the keys that a pattern and the documents let a query see.
 *
 * It is `attention` (see there for lse, dropout and the backward) with other sums: over the visible keys
 * instead of all up to the query. The reference is the same code (attention_rows.h); kernels go by the lists
 * of tiles (attention_blocks.c) and ask the definition only within tiles that are partly visible. */
#include "ops/attention/sparse_attention.h"

#include <stddef.h>
#include <stdio.h>

#include "ops/attention/attention_rows.h"

_Static_assert(offsetof(SparseAttentionAttributes, heads) == 0, "attributes begin with those of attention");

/* `most`: attention_blocks_of the pattern. */
static bool check_mask(Graph *graph, const Tensor *qkv, const AttentionMask *mask, int64_t most) {
    int64_t B = qkv->shape.dim[0], T = qkv->shape.dim[1];
    int64_t words = attention_block_words(T, most);
    return graph_check(graph,
                       mask->blocks->dtype == DTYPE_I32 && mask->blocks->shape.n_dims == 2 &&
                           mask->blocks->shape.dim[0] == (mask->starts ? B : 1) &&
                           mask->blocks->shape.dim[1] == words,
                       "sparse attention: the lists %s are not those of %s", mask->blocks->name, qkv->name) &&
           graph_check(graph,
                       !mask->starts || (mask->starts->dtype == DTYPE_I32 &&
                                         shape_equal(mask->starts->shape, SHAPE(B, T))),
                       "sparse attention: starts of %s must be i32 of shape (B,T)", qkv->name);
}

Tensor *op_sparse_attention(Graph *graph, Tensor *qkv, Tensor *random, const AttentionMask *mask,
                            const AttentionAttributes *a) {
    int64_t most = attention_blocks_of(&mask->pattern, qkv->shape.dim[1]);
    if (!reference_check_heads(graph, "sparse attention", qkv, a->n_heads, a->n_kv_heads, a->head_size) ||
        !attention_check_dropout(graph, "sparse attention", qkv, a, random) ||
        !check_mask(graph, qkv, mask, most))
        return graph->nothing;
    int64_t B = qkv->shape.dim[0], T = qkv->shape.dim[1];
    SparseAttentionAttributes attributes = {*a, mask->pattern, most};
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, qkv->dtype,
                             SHAPE(B, T, (int64_t)a->n_heads * a->head_size), "%s.attention", qkv->name);
    Tensor *lse =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(B, a->n_heads, T), "%s.lse", qkv->name);
    graph_record(graph, &OP_SPARSE_ATTENTION, &attributes, sizeof attributes, N_SPARSE_INPUTS,
                 TENSORS(qkv, mask->blocks, mask->starts, random), 2, TENSORS(y, lse));
    lse->needs_gradient = false;
    return y;
}

static void sparse_gradient(Autograd *autograd, const Node *node) {
    Tensor *qkv = node->input[SPARSE_IN_QKV], *y = node->output[0], *lse = node->output[1];
    Tensor *dy = autograd_gradient(autograd, y);
    if (!dy) return;
    autograd_record(autograd, &OP_SPARSE_ATTENTION_BACKWARD, node->attributes,
                    sizeof(SparseAttentionAttributes), N_SPARSE_BACK_INPUTS,
                    TENSORS(dy, qkv, y, lse, node->input[SPARSE_IN_BLOCKS], node->input[SPARSE_IN_STARTS],
                            node->input[SPARSE_IN_RANDOM]),
                    2, TENSORS(qkv, NULL));
}

/* Of the pattern: how many documents there are is not known when the program is made. */
static double visible_pairs(const Node *node, const Tensor *qkv) {
    const SparseAttentionAttributes *a = node->attributes;
    return (double)qkv->shape.dim[0] * a->heads.n_heads * pattern_pairs(&a->pattern, qkv->shape.dim[1]);
}

/* A pair costs what it does in `attention`. */
static double sparse_flops(const Node *node) {
    const SparseAttentionAttributes *a = node->attributes;
    return visible_pairs(node, node->input[SPARSE_IN_QKV]) * attention_pair_flops(&a->heads) +
           (double)tensor_count(node->output[0]);
}

static void sparse_describe(const Node *node, char *text, size_t n_bytes) {
    const SparseAttentionAttributes *a = node->attributes;
    bool has_documents = node->op == &OP_SPARSE_ATTENTION ? node->input[SPARSE_IN_STARTS] != NULL
                                                          : node->input[SPARSE_BACK_STARTS] != NULL;
    char words[PATTERN_TEXT_BYTES], heads[96];
    pattern_print(&a->pattern, words, sizeof words);
    attention_describe_heads(&a->heads, heads, sizeof heads);
    snprintf(text, n_bytes, "%s%s, %s", words, has_documents ? " in documents" : "", heads);
}

static Status sparse_reference(const KernelCall *call, Error *error) {
    const SparseAttentionAttributes *a = call->node->attributes;
    return attention_whole_forward(call, &a->pattern, call->in[SPARSE_IN_STARTS], call->in[SPARSE_IN_RANDOM],
                                   error);
}

const Op OP_SPARSE_ATTENTION = {
    .name = "sparse_attention",
    .gradient = sparse_gradient,
    .flops = sparse_flops,
    .describe = sparse_describe,
    .reference = sparse_reference,
};

/* ---- backward */

static double backward_flops(const Node *node) {
    const SparseAttentionAttributes *a = node->attributes;
    return visible_pairs(node, node->input[SPARSE_BACK_QKV]) * attention_pair_backward_flops(&a->heads) +
           2.0 * (double)tensor_count(node->input[SPARSE_BACK_DY]) +
           (node->output[1] ? (double)tensor_count(node->input[SPARSE_BACK_QKV]) : 0.0);
}

static int backward_sums_output(const Node *node, int output) {
    (void)node;
    return output == 0 ? 1 : -1;
}

static Status backward_reference(const KernelCall *call, Error *error) {
    const SparseAttentionAttributes *a = call->node->attributes;
    return attention_whole_backward(call, &a->pattern, call->in[SPARSE_BACK_STARTS],
                                    call->in[SPARSE_BACK_RANDOM], error);
}

const Op OP_SPARSE_ATTENTION_BACKWARD = {
    .name = "sparse_attention_backward",
    .flops = backward_flops,
    .sums_output = backward_sums_output,
    .describe = sparse_describe,
    .reference = backward_reference,
};
