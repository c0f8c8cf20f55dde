/* The backward by items: its two kernels. */
#include "backend/cuda/attention_items/attention_items.cuh"

Status attention_items_backward(const CudaContext *context, const AttentionShape *shape,
                                const AttentionMemory *memory, const AttentionLists *lists, int n_skipped,
                                Error *error) {
    TRY(attention_items_queries(context, shape, memory, lists, error));
    return attention_items_keys(context, shape, memory, lists, n_skipped, error);
}
