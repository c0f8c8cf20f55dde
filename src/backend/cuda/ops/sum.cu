/* sum: total = or += scale · Σ x. The loss of a step; the work is in reduce.cu. */
#include "backend/cuda/kernels.h"

extern "C" Status cuda_sum(const KernelCall *call, Error *error) {
    const SumAttributes *a = (const SumAttributes *)call->node->attributes;
    const Tensor *x = call->node->input[0];
    if (!dtype_info(x->dtype)->is_float) return cuda_unsupported(call, x, error);
    return cuda_reduce_all(cuda_context(call), call->in[0], x->dtype, tensor_count(x), false, a->scale,
                           (float *)call->out[0], call->add[0], call->scratch, error);
}
