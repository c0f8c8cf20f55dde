/* sum: total = or += scale · Σ x. */
#include "backend/cpu/reduce.h"
#include "ops/ops.h"

Status cpu_sum(const KernelCall *call, Error *error) {
    (void)error;
    const SumAttributes *a = call->node->attributes;
    float *total = call->out[0]; /* (1) */
    double sum = reduce_all(call->in[0], tensor_count(call->node->input[0]), REDUCE_SUM, call->scratch,
                            call->n_threads);
    float value = (float)(sum * (double)a->scale);
    *total = call->add[0] ? *total + value : value;
    return STATUS_OK;
}

size_t cpu_sum_scratch(const Node *node, int n_threads) {
    (void)node, (void)n_threads;
    return reduce_all_scratch();
}
