/* The coefficients of 1-bit LAMB. lamb_freshen goes over flat arrays tile by tile, as lamb does: 20 bytes an
 * element. A tile has one largest ratio, and meets those of the tensor's other tiles by atomicMax: ratios are
 * not below 0, so their bits are ordered as they are, and a largest number does not depend on who came first.
 * The other two are of a number a tensor. */
#include "backend/cuda/ops/lamb_table.cuh"
#include "backend/cuda/runtime/device.cuh"

extern "C" {
#include "ops/update/lamb_coefficient.h"
}

typedef struct {
    const float *before, *momentum, *variance, *hyper, *factor;
    float *ratios, *fresh;
    float beta1, per_new1, beta2, new2, epsilon;
} FreshenCall;

DEVICE bool is_skipped(const float *factor) {
    return factor && !isfinite(*factor);
}

static __global__ void __launch_bounds__(THREADS)
    freshen_kernel(FreshenCall a, const __grid_constant__ LambTable table) {
    __shared__ float shared[THREADS / WARP];
    if (is_skipped(a.factor)) return;
    int index = segment_of(table, (int)blockIdx.x), tensor = table.segment[index].tensor;
    int first_tile = index ? table.segment[index - 1].end_tile : 0;
    int64_t tile = table.segment[index].first + (int64_t)((int)blockIdx.x - first_tile) * LAMB_TILE,
            end = table.segment[index].end;
    float root = sqrtf(a.hyper[HYPER_CORRECTION2]), fresh_root = sqrtf(a.hyper[HYPER_FRESH]), most = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        int64_t i = tile + k * THREADS + threadIdx.x;
        if (i >= end) break;
        float g = fmaf(-a.beta1, a.before[i], a.momentum[i]) * a.per_new1;
        float fresh = fmaf(a.beta2, a.fresh[i], a.new2 * g * g);
        a.fresh[i] = fresh;
        float frozen = fmaf(sqrtf(a.variance[i]), root, a.epsilon);
        most = fmaxf(most, frozen / fmaf(sqrtf(fresh), fresh_root, a.epsilon));
    }
    for (int width = WARP / 2; width; width /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, width));
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x || tensor < 0) return;
    for (int warp = 1; warp < THREADS / WARP; warp++) most = fmaxf(most, shared[warp]);
    atomicMax((int *)a.ratios + tensor, __float_as_int(most));
}

extern "C" Status cuda_lamb_freshen(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const LambFreshenAttributes *a = (const LambFreshenAttributes *)node->attributes;
    FreshenCall arguments = {};
    arguments.before = (const float *)call->in[0];
    arguments.momentum = (const float *)call->in[1];
    arguments.variance = (const float *)call->in[2];
    arguments.hyper = (const float *)call->in[3];
    arguments.factor = (const float *)call->in[4];
    arguments.ratios = (float *)call->out[0];
    arguments.fresh = (float *)call->out[1];
    arguments.beta1 = a->beta1;
    arguments.per_new1 = (float)(1.0 / (1.0 - (double)a->beta1));
    arguments.beta2 = a->beta2;
    arguments.new2 = (float)(1.0 - (double)a->beta2);
    arguments.epsilon = a->epsilon;
    if (!call->add[0])
        TRY(cuda_check(
            cudaMemsetAsync(call->out[0], 0, tensor_bytes(node->output[0]), cuda_context(call)->stream),
            "lamb_freshen", error));
    LambTable table;
    LambWalk walk = {};
    UpdateElements elements = {};
    elements.first_element = a->first_element;
    while (next_table(&a->spans, &elements, tensor_count(node->output[1]), &walk, &table)) {
        freshen_kernel<<<(unsigned)table.n_tiles, THREADS, 0, cuda_context(call)->stream>>>(arguments, table);
        TRY(cuda_launched("lamb_freshen", error));
    }
    return STATUS_OK;
}

/* ---- a number a tensor */

/* lamb_ratio, lamb_average and lamb_adapt, on the device. */
static __global__ void __launch_bounds__(THREADS)
    average_kernel(LambAverageAttributes a, const float *sums, const float *factor, float *coefficients,
                   int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n || is_skipped(factor)) return;
    double weight = sqrt((double)sums[i * UPDATE_SUMS + LAMB_WEIGHT]),
           step = sqrt((double)sums[i * UPDATE_SUMS + LAMB_STEP]), ratio = 1.0, most = (double)a.max_ratio;
    if (weight > 0.0 && step > 0.0) ratio = most > 0.0 && weight / step > most ? most : weight / step;
    float part = (float)(1.0 - (double)a.beta), *own = coefficients + i * N_COEFFICIENTS;
    own[COEFFICIENT_SUM] = fmaf(a.beta, own[COEFFICIENT_SUM], __fmul_rn(part, (float)ratio));
    own[COEFFICIENT_WEIGHT] = fmaf(a.beta, own[COEFFICIENT_WEIGHT], part);
    own[COEFFICIENT_FACTOR] = 1.0f;
}

DEVICE float within(float value, float lowest, float highest) {
    return value < lowest ? lowest : value > highest ? highest : value;
}

static __global__ void __launch_bounds__(THREADS)
    adapt_kernel(LambAdaptAttributes a, const float *ratios, const float *factor, float *coefficients,
                 float *sums, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n || is_skipped(factor)) return;
    float *own = coefficients + i * N_COEFFICIENTS, last = own[COEFFICIENT_FACTOR],
          weight = own[COEFFICIENT_WEIGHT];
    float now = ratios[i] > 0.0f ? within(ratios[i], a.lowest, a.highest) : last;
    now = within(now, __fmul_rn(last, 1.0f - a.change), __fmul_rn(last, 1.0f + a.change));
    own[COEFFICIENT_FACTOR] = now;
    float coefficient = weight > 0.0f ? __fmul_rn(__fdiv_rn(own[COEFFICIENT_SUM], weight), now) : now;
    sums[i * UPDATE_SUMS + LAMB_WEIGHT] = __fmul_rn(coefficient, coefficient);
    sums[i * UPDATE_SUMS + LAMB_STEP] = 1.0f;
}

extern "C" Status cuda_lamb_average(const KernelCall *call, Error *error) {
    int64_t n = tensor_count(call->node->output[0]) / N_COEFFICIENTS;
    if (!n) return STATUS_OK;
    average_kernel<<<blocks_for(n, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
        *(const LambAverageAttributes *)call->node->attributes, (const float *)call->in[0],
        (const float *)call->in[1], (float *)call->out[0], n);
    return cuda_launched("lamb_average", error);
}

extern "C" Status cuda_lamb_adapt(const KernelCall *call, Error *error) {
    int64_t n = tensor_count(call->node->input[0]);
    if (!n) return STATUS_OK;
    adapt_kernel<<<blocks_for(n, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
        *(const LambAdaptAttributes *)call->node->attributes, (const float *)call->in[0],
        (const float *)call->in[1], (float *)call->out[0], (float *)call->out[1], n);
    return cuda_launched("lamb_adapt", error);
}
