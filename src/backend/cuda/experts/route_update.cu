/* route_bias and route_summary: what a step makes of its routers' reports.
 *
 * Floor: a launch. A warp has a report. Choices are whole numbers, so that doubles add them up exactly in any
 * order. */
#include "backend/cuda/runtime/device.cuh"

DEVICE double warp_total(double x) {
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

/* The choices of all experts, by a warp. */
DEVICE double n_choices(const float *report, int n_experts) {
    double sum = 0.0;
    for (int e = (int)threadIdx.x; e < n_experts; e += WARP) sum += (double)report[e];
    return warp_total(sum);
}

/* Block r has report r: experts that got less than the mean are wished for more. */
static __global__ void __launch_bounds__(WARP)
    route_bias_kernel(const float *reports, const float *factor, float *bias, RouteUpdateAttributes a,
                      bool add) {
    int E = a.n_experts;
    const float *report = reports + (int64_t)blockIdx.x * (E + N_ROUTE_COUNTS);
    double sum = n_choices(report, E);
    bool is_skipped = factor && !isfinite(*factor);
    for (int e = (int)threadIdx.x; e < E; e += WARP) {
        double less = sum - (double)report[e] * (double)E; /* than the mean, times E */
        float move = less > 0.0 ? a.rate : less < 0.0 ? -a.rate : 0.0f;
        write_element(bias + (int64_t)blockIdx.x * E + e, is_skipped ? 0.0f : move, add);
    }
}

static __global__ void __launch_bounds__(WARP)
    route_summary_kernel(const float *reports, int64_t n_reports, float *summary, int n_experts, bool add) {
    double counts = 0.0, busiest = 0.0, n_empty = 0.0; /* counts: lane i has number i */
    int lane = (int)threadIdx.x;
    for (int64_t r = 0; r < n_reports; r++) {
        const float *report = reports + r * (n_experts + N_ROUTE_COUNTS);
        double sum = n_choices(report, n_experts);
        float most = 0.0f;
        for (int e = lane; e < n_experts; e += WARP) {
            most = fmaxf(most, report[e]);
            n_empty += report[e] == 0.0f;
        }
        most = warp_max(most);
        if (sum > 0.0) busiest = fmax(busiest, (double)most * (double)n_experts / sum);
        if (lane < N_ROUTE_COUNTS) counts += (double)report[n_experts + lane];
    }
    n_empty = warp_total(n_empty);
    double value = lane == SUMMARY_BUSIEST  ? busiest
                   : lane == SUMMARY_EMPTY  ? n_empty
                   : lane == SUMMARY_BLOCKS ? (double)n_reports
                                            : counts;
    if (lane < N_ROUTE_SUMMARY) write_element(summary + lane, (float)value, add);
}
static_assert((int)N_ROUTE_SUMMARY <= (int)WARP, "a number a lane");

extern "C" Status cuda_route_bias(const KernelCall *call, Error *error) {
    const RouteUpdateAttributes *a = (const RouteUpdateAttributes *)call->node->attributes;
    unsigned n_reports = (unsigned)shape_rows(call->node->input[0]->shape);
    if (!n_reports) return STATUS_OK;
    route_bias_kernel<<<n_reports, WARP, 0, cuda_context(call)->stream>>>(
        (const float *)call->in[0], (const float *)call->in[1], (float *)call->out[0], *a, call->add[0]);
    return cuda_launched("route bias", error);
}

extern "C" Status cuda_route_summary(const KernelCall *call, Error *error) {
    const RouteUpdateAttributes *a = (const RouteUpdateAttributes *)call->node->attributes;
    route_summary_kernel<<<1, WARP, 0, cuda_context(call)->stream>>>(
        (const float *)call->in[0], shape_rows(call->node->input[0]->shape), (float *)call->out[0],
        a->n_experts, call->add[0]);
    return cuda_launched("route summary", error);
}
