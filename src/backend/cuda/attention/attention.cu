/* attention: which of the ways of attention.h computes a node.
 *
 * For short sequences a head at a time, if it fits into shared memory; for longer ones items, if the heads
 * are of 64 (and enough of them, forward); else cuDNN if it has a plan for the shape, since it is the fastest
 * there (its plans take a second to make); else items of heads of 128; else tiles if the head size allows and
 * the memory is aligned; else plain. cuDNN's backward either adds in an order that varies (faster, and only
 * if the user allows it), or stores all dscores: that takes memory that the others do without, so they are
 * preferred where it would be more than a few GiB. A context may force one way, for tests: what that way does
 * not take then fails.
 *
 * The choice is made when the memory is planned (plan/attention_plan.c), and again, the same way, when the
 * node runs. Only an output that is added to, or memory that is not aligned, is found out then: tiles do the
 * first, plain kernels the second, with scratch memory for either. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention_items/attention_items.h"
#include "backend/cuda/runtime/device.cuh"

#include <string.h>

#ifdef PGPT_HAVE_CUDNN
static void close_library(CudaContext *context) {
    attention_library_close((AttentionLibrary *)context->attention);
    context->attention = NULL;
}

/* cuDNN's plan for the shape, if that is the way to take. */
static const AttentionPlan *library_plan(CudaContext *context, const AttentionShape *shape, bool backward) {
    if (!cuda_attention_by_library(&context->traits, shape, backward)) return NULL;
    if (!context->attention) cudaSetDevice(context->device); /* the library opens on the calling thread's */
    context->close_attention = close_library;
    const AttentionPlan *plan = attention_library_plan((AttentionLibrary **)&context->attention, shape,
                                                       backward, context->traits.settings.any_order);
    const char *reason = attention_library_reason((const AttentionLibrary *)context->attention);
    if (!plan && *reason)
        cuda_add_note(context, "attention by pgpt's own kernels instead of cuDNN's", reason);
    return plan;
}
#else
typedef struct AttentionPlan AttentionPlan;

static const AttentionPlan *library_plan(CudaContext *context, const AttentionShape *shape, bool backward) {
    (void)context, (void)shape, (void)backward;
    return NULL;
}
static size_t attention_plan_scratch(const AttentionPlan *plan) {
    (void)plan;
    return 0;
}
static Status attention_plan_run(const AttentionPlan *plan, const AttentionMemory *memory,
                                 cudaStream_t stream, Error *error) {
    (void)plan, (void)memory, (void)stream;
    return error_failed(error, "this pgpt was built without cuDNN");
}
#endif

extern "C" bool cuda_attention_library_scratch(void *context, const AttentionShape *shape, bool backward,
                                               size_t *n_bytes) {
    const AttentionPlan *plan = library_plan((CudaContext *)context, shape, backward);
    if (plan) *n_bytes = attention_plan_scratch(plan);
    return plan != NULL;
}

/* A head at a time: cuDNN takes no sequences as short as these, unless it is forced. */
static bool is_short(const CudaContext *context, const AttentionShape *shape, const AttentionMemory *memory,
                     bool backward) {
    return context->traits.attention_way == ATTENTION_AUTO && attention_aligned(shape, memory) &&
           attention_short_takes(shape, backward, context->traits.max_shared_bytes);
}

static Status run(const KernelCall *call, const Tensor *qkv, const AttentionMemory *memory, bool backward,
                  Error *error) {
    CudaContext *context = cuda_context(call);
    AttentionShape shape = cuda_attention_shape(call->node, qkv);
    AttentionWay way = context->traits.attention_way;
    cudaStream_t stream = context->stream;
    bool any = way == ATTENTION_AUTO, aligned = attention_aligned(&shape, memory);
    if (!shape.n_sequences || !shape.n_positions) return STATUS_OK;
    if (aligned && !memory->add) {
        const AttentionPlan *plan = library_plan(context, &shape, backward);
        if (plan) return attention_plan_run(plan, memory, stream, error);
    }
    if (is_short(context, &shape, memory, backward)) {
        if (attention_warpgroup_takes(&shape, memory->add, cuda_capability(&context->traits))) {
            return backward ? attention_warpgroup_backward(&shape, memory, stream, error)
                            : attention_warpgroup_forward(&shape, memory, stream, error);
        }
        return backward ? attention_short_backward(&shape, memory, stream, error)
                        : attention_short_forward(&shape, memory, stream, error);
    }
    if (aligned && !memory->add && cuda_attention_by_items(&context->traits, &shape)) {
        const AttentionLists none = {};
        return backward ? attention_items_backward(context, &shape, memory, &none, 0, error)
                        : attention_items_forward(context, &shape, memory, &none, error);
    }
    if ((any || way == ATTENTION_TILED) && aligned && attention_tiled_takes(&shape)) {
        if (!backward) return attention_tiled_forward(&shape, memory, stream, error);
        TRY(attention_tiled_queries(&shape, memory, stream, error));
        return attention_tiled_keys(&shape, memory, stream, error);
    }
    if ((any || way == ATTENTION_PLAIN) && attention_plain_takes(&shape)) {
        return backward ? attention_plain_backward(&shape, memory, stream, error)
                        : attention_plain_forward(&shape, memory, stream, error);
    }
    return cuda_unsupported(call, qkv, error);
}

extern "C" Status cuda_attention(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    if (!same_types(node->input[0], node->output[0])) return cuda_unsupported(call, node->output[0], error);
    AttentionMemory memory = {};
    memory.qkv = call->in[0];
    memory.random = (const int32_t *)call->in[1];
    memory.y = call->out[0];
    memory.lse = (float *)call->out[1];
    memory.scratch = call->scratch;
    return run(call, node->input[0], &memory, false, error);
}

extern "C" Status cuda_attention_backward(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const Tensor *qkv = node->input[1];
    if (!same_types(qkv, node->input[0]) || !same_types(qkv, node->input[2]) ||
        !same_types(qkv, node->output[0])) {
        return cuda_unsupported(call, node->output[0], error);
    }
    AttentionMemory memory = {};
    memory.dy = call->in[0];
    memory.qkv = call->in[1];
    memory.y = call->in[2];
    memory.lse = (float *)call->in[3];
    memory.random = (const int32_t *)call->in[4];
    memory.dqkv = call->out[0];
    memory.add = call->add[0];
    memory.scratch = call->scratch;
    AttentionShape shape = cuda_attention_shape(node, qkv);
    CudaContext *context = cuda_context(call);
    if (call->out[1] && !memory.add && is_short(context, &shape, &memory, true))
        memory.sums = (float *)call->scratch;
    TRY(run(call, qkv, &memory, true, error));
    if (!call->out[1]) return STATUS_OK;
    const SumOutput sums = {call->out[1], node->output[1]->dtype, call->add[1]};
    if (memory.sums)
        return cuda_reduce_partials(context, memory.sums, shape.n_sequences, shape.width, 1, &sums, error);
    return cuda_reduce_columns(context, call->out[0], qkv->dtype, shape.n_sequences * shape.n_positions,
                               shape.width, sums.data, sums.dtype, sums.add, call->scratch, error);
}
