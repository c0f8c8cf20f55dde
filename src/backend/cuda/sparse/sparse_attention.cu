/* sparse_attention and its backward: which of the ways of sparse_attention.h computes a node. Items if there
 * are instructions for them; else tiles if the head size allows and the memory is aligned; else plain,
 * which asks the pattern for every pair and reads no lists. A context may force plain kernels or tiles, for
 * tests. */
#include "backend/cuda/sparse/sparse_attention.h"

#include "backend/cuda/attention/attention_facts.h"
#include "backend/cuda/attention_items/attention_items.h"
#include "backend/cuda/runtime/device.cuh"

static const SparseAttentionAttributes *attributes_of(const KernelCall *call) {
    return (const SparseAttentionAttributes *)call->node->attributes;
}

static AttentionLists lists_of(const KernelCall *call, int input) {
    AttentionLists lists = {(const int32_t *)call->in[input], attributes_of(call)->most,
                            call->in[input + 1] != NULL};
    return lists;
}

static bool is_tiled(const CudaContext *context, const AttentionShape *shape, const AttentionMemory *memory) {
    return context->traits.attention_way != ATTENTION_PLAIN && attention_aligned(shape, memory) &&
           attention_tiled_takes(shape);
}

extern "C" Status cuda_sparse_attention(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const Tensor *qkv = node->input[SPARSE_IN_QKV];
    const CudaContext *context = cuda_context(call);
    if (!same_types(qkv, node->output[0])) return cuda_unsupported(call, node->output[0], error);
    AttentionShape shape = cuda_attention_shape(node, qkv);
    AttentionLists lists = lists_of(call, SPARSE_IN_BLOCKS);
    AttentionMemory memory = {};
    memory.qkv = call->in[SPARSE_IN_QKV];
    memory.starts = (const int32_t *)call->in[SPARSE_IN_STARTS];
    memory.random = (const int32_t *)call->in[SPARSE_IN_RANDOM];
    memory.pattern = attributes_of(call)->pattern;
    memory.y = call->out[0];
    memory.lse = (float *)call->out[1];
    if (!shape.n_sequences || !shape.n_positions) return STATUS_OK;
    if (is_tiled(context, &shape, &memory)) {
        if (cuda_attention_by_items(&context->traits, &shape))
            return attention_items_forward(context, &shape, &memory, &lists, error);
        return sparse_tiled_forward(&shape, &memory, &lists, context->stream, error);
    }
    if (!attention_plain_takes(&shape)) return cuda_unsupported(call, qkv, error);
    return attention_plain_forward(&shape, &memory, context->stream, error);
}

static Status listed_backward(const CudaContext *context, const AttentionShape *shape,
                              const AttentionMemory *memory, const AttentionLists *lists, Error *error) {
    if (memory->add || !cuda_attention_by_items(&context->traits, shape)) {
        TRY(attention_facts(shape, memory, context->stream, error));
        return sparse_tiled_backward(shape, memory, lists, context->stream, error);
    }
    SparseSplit split = sparse_split(&memory->pattern, shape->n_positions);
    TRY(attention_items_backward(context, shape, memory, lists, split.n_columns, error));
    return sparse_tiled_long_columns(shape, memory, lists, context->stream, error);
}

extern "C" Status cuda_sparse_attention_backward(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const Tensor *qkv = node->input[SPARSE_BACK_QKV];
    const CudaContext *context = cuda_context(call);
    if (!same_types(qkv, node->input[SPARSE_BACK_DY]) || !same_types(qkv, node->input[SPARSE_BACK_Y]) ||
        !same_types(qkv, node->output[0]))
        return cuda_unsupported(call, node->output[0], error);
    AttentionShape shape = cuda_attention_shape(node, qkv);
    AttentionLists lists = lists_of(call, SPARSE_BACK_BLOCKS);
    AttentionMemory memory = {};
    memory.dy = call->in[SPARSE_BACK_DY];
    memory.qkv = call->in[SPARSE_BACK_QKV];
    memory.y = call->in[SPARSE_BACK_Y];
    memory.lse = (float *)call->in[SPARSE_BACK_LSE];
    memory.starts = (const int32_t *)call->in[SPARSE_BACK_STARTS];
    memory.random = (const int32_t *)call->in[SPARSE_BACK_RANDOM];
    memory.pattern = attributes_of(call)->pattern;
    memory.dqkv = call->out[0];
    memory.add = call->add[0];
    memory.scratch = call->scratch;
    if (shape.n_sequences && shape.n_positions) {
        if (is_tiled(context, &shape, &memory)) TRY(listed_backward(context, &shape, &memory, &lists, error));
        else if (attention_plain_takes(&shape))
            TRY(attention_plain_backward(&shape, &memory, context->stream, error));
        else return cuda_unsupported(call, qkv, error);
    }
    if (!call->out[1]) return STATUS_OK;
    return cuda_reduce_columns(context, call->out[0], qkv->dtype, shape.n_sequences * shape.n_positions,
                               shape.width, call->out[1], node->output[1]->dtype, call->add[1], call->scratch,
                               error);
}
