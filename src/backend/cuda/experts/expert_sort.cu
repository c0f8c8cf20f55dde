/* expert_sort: the choices of all tokens, sorted by expert: a counting sort, stable, in three kernels.
 *
 * Floor: 12 bytes a choice over the copy bandwidth; for 131,072 choices that is less than a launch.
 *
 *   count   a block counts the choices of each expert in its part of them
 *   scan    one block: where each expert begins, and where in it each part's choices do
 *   place   a block gives its choices their rows
 *
 * Within a part a warp has a run of neighbours (expert_places.cuh); the warps count what they have first, so
 * that each knows how many come before it. */
#include "backend/cuda/experts/expert_places.cuh"

enum { SORT_WARPS = PLACE_WARPS, SORT_THREADS = PLACE_THREADS, SCAN_THREADS = 1024 };

typedef struct {
    const int32_t *choice;
    int64_t n_choices, n_rows;
    int n_experts, n_parts;
    int64_t each;           /* choices of a warp, a multiple of 32 */
    int32_t *counts;        /* (n_experts, n_parts): first how many, then how many before them */
    int32_t *slot, *source; /* (n_choices), (n_rows) */
    int32_t *offsets;       /* (n_experts+1) */
} SortCall;

DEVICE int expert_at(const SortCall &c, int64_t i, int64_t end) {
    int expert = i < end ? c.choice[i] : -1;
    return expert < c.n_experts ? expert : -1;
}

extern __shared__ int32_t sort_shared[];

static __global__ void __launch_bounds__(SORT_THREADS) count_kernel(const SortCall c) {
    int32_t *n = sort_shared; /* (n_experts) */
    int64_t begin = (int64_t)blockIdx.x * SORT_WARPS * c.each, end = begin + SORT_WARPS * c.each;
    end = end < c.n_choices ? end : c.n_choices;
    for (int e = (int)threadIdx.x; e < c.n_experts; e += SORT_THREADS) n[e] = 0;
    __syncthreads();
    for (int64_t i = begin + threadIdx.x; i < end; i += SORT_THREADS) {
        int expert = expert_at(c, i, end);
        if (expert >= 0) atomicAdd(&n[expert], 1);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < c.n_experts; e += SORT_THREADS)
        c.counts[(int64_t)e * c.n_parts + blockIdx.x] = n[e];
}

/* The sums of the lanes up to this one. */
DEVICE int sums_up_to(int x) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int other = __shfl_up_sync(0xFFFFFFFFu, x, step);
        if (lane >= step) x += other;
    }
    return x;
}

/* A warp an expert, then one warp for all of them. */
static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(const SortCall c) {
    __shared__ int32_t total[SCAN_THREADS];
    int lane = (int)threadIdx.x % WARP;
    for (int e = (int)threadIdx.x / WARP; e < c.n_experts; e += SCAN_THREADS / WARP) {
        int32_t *n = c.counts + (int64_t)e * c.n_parts;
        int before = 0;
        for (int base = 0; base < c.n_parts; base += WARP) {
            int i = base + lane, own = i < c.n_parts ? n[i] : 0, sum = sums_up_to(own);
            if (i < c.n_parts) n[i] = before + sum - own;
            before += __shfl_sync(0xFFFFFFFFu, sum, WARP - 1);
        }
        if (lane == 0) total[e] = before;
    }
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    int before = 0;
    for (int base = 0; base < c.n_experts; base += WARP) {
        int e = base + lane, own = e < c.n_experts ? total[e] : 0, sum = sums_up_to(own);
        if (e < c.n_experts) c.offsets[e] = before + sum - own;
        before += __shfl_sync(0xFFFFFFFFu, sum, WARP - 1);
    }
    if (lane == 0) c.offsets[c.n_experts] = before;
}

static __global__ void __launch_bounds__(SORT_THREADS) place_kernel(const SortCall c) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int32_t *next =
        sort_shared + warp * c.n_experts; /* of (SORT_WARPS, n_experts): the row of the next one */
    int64_t begin = ((int64_t)blockIdx.x * SORT_WARPS + warp) * c.each, end = begin + c.each;
    end = end < c.n_choices ? end : c.n_choices;
    for (int e = lane; e < c.n_experts; e += WARP) next[e] = 0;
    __syncwarp();
    for (int64_t i = begin; i < end; i += WARP) {
        int expert = expert_at(c, i + lane, end);
        if (expert >= 0) atomicAdd(&next[expert], 1);
    }
    start_places(sort_shared, c.n_experts,
                 [&c](int e) { return c.offsets[e] + c.counts[(int64_t)e * c.n_parts + blockIdx.x]; });
    for (int64_t i = begin; i < end; i += WARP) {
        int row = take_place(next, expert_at(c, i + lane, end));
        if (i + lane >= end) continue;
        if (row >= c.n_rows) row = -1; /* there is no room that it should need */
        c.slot[i + lane] = row;
        if (row >= 0) c.source[row] = (int32_t)(i + lane);
    }
    int64_t step = (int64_t)gridDim.x * SORT_THREADS;
    for (int64_t row = c.offsets[c.n_experts] + (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x;
         row < c.n_rows; row += step)
        c.source[row] = -1;
}

extern "C" Status cuda_expert_sort(const KernelCall *call, Error *error) {
    const ExpertSortAttributes *a = (const ExpertSortAttributes *)call->node->attributes;
    cudaStream_t stream = cuda_context(call)->stream;
    SortCall c = {};
    c.choice = (const int32_t *)call->in[0];
    c.n_choices = tensor_count(call->node->input[0]);
    c.n_rows = a->n_rows;
    c.n_experts = a->n_experts;
    c.n_parts = cuda_expert_sort_parts(c.n_choices);
    c.each =
        (c.n_choices + (int64_t)c.n_parts * SORT_THREADS - 1) / ((int64_t)c.n_parts * SORT_THREADS) * WARP;
    c.counts = (int32_t *)call->scratch;
    c.slot = (int32_t *)call->out[0];
    c.source = (int32_t *)call->out[1];
    c.offsets = (int32_t *)call->out[2];
    size_t bytes = (size_t)c.n_experts * sizeof(int32_t);
    count_kernel<<<(unsigned)c.n_parts, SORT_THREADS, bytes, stream>>>(c);
    scan_kernel<<<1, SCAN_THREADS, 0, stream>>>(c);
    place_kernel<<<(unsigned)c.n_parts, SORT_THREADS, SORT_WARPS * bytes, stream>>>(c);
    return cuda_launched("expert sort", error);
}
