/* expert_arrivals: offsets (E+1) from those of R ranks (R,E+1). experts_here: choice (N,S) of some experts.
 *
 * Floor: a launch each; the numbers are a few thousand. One block makes all offsets, so that sums of ranks
 * are made in their order. */
#include "backend/cuda/runtime/device.cuh"
#include "ops/experts/expert_ranks.h"

enum { THREADS = 256 };

static __global__ void arrivals_kernel(const int32_t *arrivals, int32_t *offsets, int n_ranks, int n) {
    for (int e = (int)threadIdx.x; e < n; e += THREADS) {
        int32_t sum = 0;
        for (int r = 0; r < n_ranks; r++) sum += arrivals[r * n + e] - arrivals[r * n];
        offsets[e] = sum;
    }
}

extern "C" Status cuda_expert_arrivals(const KernelCall *call, Error *error) {
    const Tensor *arrivals = call->node->input[0];
    arrivals_kernel<<<1, THREADS, 0, cuda_context(call)->stream>>>(
        (const int32_t *)call->in[0], (int32_t *)call->out[0], (int)shape_rows(arrivals->shape),
        (int)shape_columns(arrivals->shape));
    return cuda_launched("expert_arrivals", error);
}

static __global__ void here_kernel(const int32_t *choice, int32_t *here, int64_t count, int first, int n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    int32_t expert = choice[i] - first;
    here[i] = expert >= 0 && expert < n ? expert : -1;
}

extern "C" Status cuda_experts_here(const KernelCall *call, Error *error) {
    const ExpertsHereAttributes *a = (const ExpertsHereAttributes *)call->node->attributes;
    int64_t count = tensor_count(call->node->input[0]);
    if (!count) return STATUS_OK;
    here_kernel<<<blocks_for(count, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
        (const int32_t *)call->in[0], (int32_t *)call->out[0], count, a->first, a->n);
    return cuda_launched("experts_here", error);
}
