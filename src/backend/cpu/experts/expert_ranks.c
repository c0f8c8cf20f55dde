/* expert_arrivals and experts_here: a few thousand numbers that say which rows are whose. */
#include "ops/experts/expert_ranks.h"

#include "backend/cpu/kernels.h"

/* Rank by rank, so that memory is read as it lies. */
Status cpu_expert_arrivals(const KernelCall *call, Error *error) {
    (void)error;
    const int32_t *arrivals = call->in[0]; /* (R,E+1) */
    int32_t *offsets = call->out[0];       /* (E+1) */
    int64_t n_ranks = shape_rows(call->node->input[0]->shape), n = tensor_count(call->node->output[0]);
    for (int64_t e = 0; e < n; e++) offsets[e] = 0;
    for (int64_t r = 0; r < n_ranks; r++, arrivals += n) {
        for (int64_t e = 0; e < n; e++) offsets[e] += arrivals[e] - arrivals[0];
    }
    return STATUS_OK;
}

Status cpu_experts_here(const KernelCall *call, Error *error) {
    (void)error;
    const ExpertsHereAttributes *a = call->node->attributes;
    const int32_t *choice = call->in[0]; /* (N,S) */
    int32_t *here = call->out[0];        /* (N,S) */
    int64_t count = tensor_count(call->node->input[0]);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, count))
    for (int64_t i = 0; i < count; i++) {
        int32_t expert = choice[i] - a->first;
        here[i] = expert >= 0 && expert < a->n ? expert : -1;
    }
    return STATUS_OK;
}
