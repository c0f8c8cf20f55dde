/* route_report: what a step says of a router.
 *
 * Floor: logits and choices read once over the copy bandwidth. A warp has a token at a time; what it counts
 * is whole numbers, added up by atomics, by the block and then by all, and what it sums are doubles, which
 * leave each block as one partial sum. A last kernel adds those up in order. */
#include "backend/cuda/experts/route_token.cuh"

enum { REPORT_SUMS = 3 }; /* entropy, balance, z */

typedef struct {
    const int32_t *choice; /* (N,S) */
    int32_t *shares;       /* (n_groups,E) */
    int32_t *counts;       /* (E+1): choices that each expert got, dropped wishes */
    double *partial;       /* (blocks, REPORT_SUMS) */
    int64_t n_parts;       /* blocks */
    float *report;         /* (E + N_ROUTE_COUNTS) */
    bool add;
} ReportCall;

/* Slots of a token that found no room: all lanes get it. */
template <int EACH> DEVICE int n_dropped(const RouteCall &c, const ReportCall &r, int64_t n, int n_empty) {
    if (c.a.kind == ROUTER_EXPERT_CHOICE) return n_empty == c.n_slots;
    if (!c.a.capacity) return 0;
    if (c.a.kind != ROUTER_GSHARD || r.choice[n * c.n_slots + 1] >= 0) return n_empty;
    Wishes w = wishes_of<EACH>(c, n);
    float second = __shfl_sync(0xFFFFFFFFu, w.gate[0], 1);
    return n_empty - is_given_up(c, n, 1, second);
}

/* Counts a token's choices in the block's own; how many slots have none. */
DEVICE int count_choices(const RouteCall &c, const ReportCall &r, int64_t n, int32_t *counts) {
    int n_empty = 0;
    for (int s = lane_of_warp(); s < c.n_slots; s += WARP) {
        int expert = r.choice[n * c.n_slots + s];
        if (expert >= 0) atomicAdd(&counts[expert], 1);
        n_empty += expert < 0;
    }
    return __reduce_add_sync(0xFFFFFFFFu, n_empty);
}

template <int EACH>
DEVICE void add_token(const RouteCall &c, const ReportCall &r, int64_t n, int32_t *counts,
                      double sum[REPORT_SUMS]) {
    float x[EACH], p[EACH], share[EACH], entropy = 0.0f, balance = 0.0f;
    load_experts<EACH>(x, c.logits + n * c.a.n_experts, c.a.n_experts, -INFINITY);
    float log_sum = softmax<EACH>(x, p);
    load_shares<EACH>(share, c, n, r.shares);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (p[i] > 0.0f) entropy -= p[i] * logf(p[i]);
        balance += share[i] * p[i];
    }
    sum[0] += (double)warp_sum(entropy);
    sum[1] += (double)warp_sum(balance);
    sum[2] += (double)log_sum * (double)log_sum;
    int dropped = n_dropped<EACH>(c, r, n, count_choices(c, r, n, counts));
    if (dropped && lane_of_warp() == 0) atomicAdd(&counts[c.a.n_experts], dropped);
}

template <int EACH>
static __global__ void __launch_bounds__(ROUTE_THREADS) report_kernel(const RouteCall c, const ReportCall r) {
    __shared__ double sums[ROUTE_WARPS][REPORT_SUMS];
    __shared__ int32_t
        counts[EACH * WARP + 1]; /* few addresses that all tokens count in: the block's first */
    double sum[REPORT_SUMS] = {};
    int64_t end = n_there(c);
    for (int e = (int)threadIdx.x; e <= c.a.n_experts; e += ROUTE_THREADS) counts[e] = 0;
    __syncthreads();
    for (int64_t n = token_of_warp(); n < end; n += r.n_parts * ROUTE_WARPS)
        add_token<EACH>(c, r, n, counts, sum);
#pragma unroll
    for (int k = 0; k < REPORT_SUMS; k++) {
        if (lane_of_warp() == 0) sums[threadIdx.x / WARP][k] = sum[k];
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e <= c.a.n_experts; e += ROUTE_THREADS) {
        if (counts[e]) atomicAdd(&r.counts[e], counts[e]);
    }
    if (threadIdx.x >= REPORT_SUMS) return;
    double all = 0.0;
    for (int w = 0; w < ROUTE_WARPS; w++) all += sums[w][threadIdx.x];
    r.partial[blockIdx.x * REPORT_SUMS + threadIdx.x] = all;
}

/* A warp a sum; then every thread some of the numbers. */
static __global__ void __launch_bounds__(ROUTE_THREADS) end_kernel(const RouteCall c, const ReportCall r) {
    __shared__ double sums[REPORT_SUMS];
    int warp = (int)threadIdx.x / WARP, E = c.a.n_experts;
    if (warp < REPORT_SUMS) {
        double sum = 0.0;
        for (int64_t i = lane_of_warp(); i < r.n_parts; i += WARP) sum += r.partial[i * REPORT_SUMS + warp];
#pragma unroll
        for (int step = WARP / 2; step; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
        if (lane_of_warp() == 0) sums[warp] = sum;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < E + N_ROUTE_COUNTS; i += ROUTE_THREADS) {
        int which = i - E;
        double value = i < E                    ? (double)r.counts[i]
                       : which == ROUTE_TOKENS  ? (double)n_there(c)
                       : which == ROUTE_DROPPED ? (double)r.counts[E]
                       : which == ROUTE_ENTROPY ? sums[0]
                       : which == ROUTE_BALANCE ? sums[1] * (double)E / (double)(c.T ? c.T : 1)
                                                : sums[2];
        write_element(r.report + i, (float)value, r.add);
    }
}

extern "C" Status cuda_route_report(const KernelCall *call, Error *error) {
    RouteCall c = route_call(call, 0, 4);
    CudaContext *context = cuda_context(call);
    RouteReportSizes sizes = cuda_route_report_sizes(&context->traits, call->node);
    char *scratch = (char *)call->scratch;
    ReportCall r = {(const int32_t *)call->in[3],
                    (int32_t *)(scratch + sizes.shares),
                    (int32_t *)(scratch + sizes.counts),
                    (double *)scratch,
                    sizes.n_parts,
                    (float *)call->out[0],
                    call->add[0]};
    TRY(cuda_check(cudaMemsetAsync(scratch, 0, sizes.n_bytes, context->stream), "route report", error));
    if (c.n_tokens) {
        count_shares(c, r.shares, context->stream);
        FOR_EXPERTS(c.a.n_experts, EACH,
                    report_kernel<EACH><<<(unsigned)r.n_parts, ROUTE_THREADS, 0, context->stream>>>(c, r));
    }
    end_kernel<<<1, ROUTE_THREADS, 0, context->stream>>>(c, r);
    return cuda_launched("route report", error);
}
