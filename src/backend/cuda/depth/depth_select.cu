/* depth_select: the K best of T scores, sequence by sequence; depth_admit: those above 0.
 *
 * A block has a sequence. The K-th best score is found digit by digit (radix selection): scores become whole
 * numbers in their order, a histogram of the highest byte says which byte the K-th has, and so on, four
 * passes over scores that stay in the L1 or L2 cache. Lanes of a warp with the same digit count as one, since
 * most scores begin with the same byte. Then tiles of positions are walked in their order, and prefix sums
 * over the block say which place each chosen one gets. All of it are whole numbers, so no order of threads
 * shows.
 *
 * It is a few microseconds for up to some thousand positions; nothing of it grows faster than T. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 1024, WARPS = THREADS / WARP, DIGITS = 256, NO_DIGIT = DIGITS };

/* ops/depth/depth.h's depth_order. */
DEVICE unsigned order_of(float score) {
    unsigned bits = __float_as_uint(score + 0.0f);
    if (isnan(score)) return 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* ---- prefix sums over a block ---- */

typedef struct {
    unsigned before, all; /* of threads before this one, of all */
} Prefix;

/* Of two flags at once: that of the second is counted in the upper half. `totals` (WARPS) is free again after
 * the next barrier. */
DEVICE Prefix count_flags(bool first, bool second, unsigned *totals) {
    const unsigned EVERY = 0xFFFFFFFFu;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, n_warps = (int)blockDim.x / WARP;
    unsigned a = __ballot_sync(EVERY, first), b = __ballot_sync(EVERY, second);
    unsigned lower = (1u << lane) - 1u;
    if (lane == 0) totals[warp] = (unsigned)__popc(a) | (unsigned)__popc(b) << 16;
    __syncthreads();
    unsigned sum = lane < n_warps ? totals[lane] : 0u;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        unsigned other = __shfl_up_sync(EVERY, sum, step);
        if (lane >= step) sum += other;
    }
    Prefix prefix;
    unsigned of_warps = __shfl_sync(EVERY, sum, warp ? warp - 1 : 0);
    prefix.all = __shfl_sync(EVERY, sum, WARP - 1);
    prefix.before =
        (warp ? of_warps : 0u) + ((unsigned)__popc(a & lower) | (unsigned)__popc(b & lower) << 16);
    return prefix;
}

/* ---- the best ---- */

typedef struct {
    unsigned order; /* of the K-th best */
    int n_equal;    /* how many with it are taken */
} Threshold;

/* The digit that the left-th greatest has, by one warp: a lane has 8 digits, from the greatest down. */
DEVICE void find_digit(const unsigned *count, int shift, Threshold *found) {
    int lane = (int)threadIdx.x;
    unsigned left = (unsigned)found->n_equal, own = 0, sum;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < DIGITS / WARP; k++) own += count[DIGITS - 1 - lane * (DIGITS / WARP) - k];
    sum = own;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        unsigned other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        if (lane >= step) sum += other;
    }
    unsigned before = sum - own;
    if (before >= left || sum < left) return;
    for (int k = 0; k < DIGITS / WARP; k++) {
        int digit = DIGITS - 1 - lane * (DIGITS / WARP) - k;
        if (before + count[digit] >= left) {
            found->order |= (unsigned)digit << shift;
            found->n_equal = (int)(left - before);
            return;
        }
        before += count[digit];
    }
}

static __global__ void __launch_bounds__(THREADS)
    select_kernel(const float *scores, int32_t *all_rows, int32_t *all_slots, int64_t T, int64_t K) {
    __shared__ unsigned count[DIGITS], totals[2][WARPS];
    __shared__ Threshold threshold;
    const float *score = scores + blockIdx.x * T;
    int32_t *rows = all_rows + blockIdx.x * K, *slot = all_slots + blockIdx.x * T;
    int64_t end = (T + THREADS - 1) / THREADS * THREADS;
    if (threadIdx.x == 0) threshold.order = 0, threshold.n_equal = (int)K;
    unsigned mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < DIGITS) count[threadIdx.x] = 0;
        __syncthreads();
        unsigned prefix = threshold.order;
        for (int64_t t = threadIdx.x; t < end; t += THREADS) { /* whole warps */
            unsigned order = t < T ? order_of(score[t]) : 0u;
            bool counts = t < T && (order & mask) == prefix;
            unsigned digit = counts ? order >> shift & (DIGITS - 1) : (unsigned)NO_DIGIT;
            unsigned same = __match_any_sync(0xFFFFFFFFu, digit);
            if (counts && threadIdx.x % WARP == (unsigned)(__ffs((int)same) - 1))
                atomicAdd(&count[digit], (unsigned)__popc(same));
        }
        __syncthreads();
        if (threadIdx.x < WARP) find_digit(count, shift, &threshold);
        __syncthreads();
        mask |= (unsigned)(DIGITS - 1) << shift;
    }
    unsigned n_greater = 0, n_alike = 0, limit = threshold.order, n_equal = (unsigned)threshold.n_equal;
    int turn = 0;
    for (int64_t t = threadIdx.x; t < end; t += THREADS, turn ^= 1) {
        unsigned order = t < T ? order_of(score[t]) : 0u;
        bool is_greater = t < T && order > limit, is_alike = t < T && order == limit;
        Prefix prefix = count_flags(is_greater, is_alike, totals[turn]);
        unsigned greater = n_greater + (prefix.before & 0xFFFFu), alike = n_alike + (prefix.before >> 16);
        n_greater += prefix.all & 0xFFFFu;
        n_alike += prefix.all >> 16;
        if (t >= T) continue;
        bool is_chosen = is_greater || (is_alike && alike < n_equal);
        int32_t at = (int32_t)(greater + (alike < n_equal ? alike : n_equal));
        slot[t] = is_chosen ? at : -1;
        if (is_chosen) rows[at] = (int32_t)t;
    }
}

extern "C" Status cuda_depth_select(const KernelCall *call, Error *error) {
    const Tensor *score = call->node->input[0];
    int64_t B = score->shape.dim[0], T = score->shape.dim[1], K = call->node->output[0]->shape.dim[1];
    if (!B) return STATUS_OK;
    select_kernel<<<(unsigned)B, THREADS, 0, cuda_context(call)->stream>>>(
        (const float *)call->in[0], (int32_t *)call->out[0], (int32_t *)call->out[1], T, K);
    return cuda_launched("depth_select", error);
}

/* ---- those above 0 ---- */

typedef struct {
    int32_t *rows, *slot, *places; /* (B,T) */
    int32_t *first, *counts;       /* (B), (B,stride); NULL: there are none */
    int64_t T, stride;
} Admitted;

static __global__ void __launch_bounds__(THREADS)
    admit_kernel(const float *guesses, const int32_t *starts, Admitted a, CudaFault *fault) {
    __shared__ unsigned totals[2][WARPS];
    int64_t b = blockIdx.x, base = b * a.T, end = (a.T + blockDim.x - 1) / blockDim.x * blockDim.x;
    const float *guess = guesses + base;
    int start = starts ? starts[b] : 0, first = 0, turn = 0;
    int32_t *counts = a.counts ? a.counts + b * a.stride : NULL;
    if (counts && (start < 0 || start + a.T >= a.stride)) {
        if (threadIdx.x == 0) report(fault, FAULT_CACHE, start + a.T - 1, a.stride - 1);
        start = 0; /* and what follows is within bounds */
    }
    if (counts && start > 0) first = min(max(counts[start], 0), start);
    unsigned n_all = 0, n = 0;
    for (int64_t t = threadIdx.x; t < end; t += blockDim.x, turn ^= 1)
        n_all += count_flags(t < a.T && guess[t] > 0.0f, false, totals[turn]).all;
    for (int64_t t = threadIdx.x; t < end; t += blockDim.x, turn ^= 1) {
        bool passes = t < a.T && guess[t] > 0.0f;
        Prefix prefix = count_flags(passes, false, totals[turn]);
        unsigned before = n + prefix.before;
        n += prefix.all;
        if (t >= a.T) continue;
        int64_t at = passes ? (int64_t)before : (int64_t)n_all + t - (int64_t)before;
        a.rows[base + at] = (int32_t)t;
        a.places[base + at] = start + (int32_t)t;
        a.slot[base + t] = passes ? (int32_t)before : -1;
        if (counts) counts[start + t + 1] = first + (int32_t)before + (passes ? 1 : 0);
    }
    if (threadIdx.x == 0 && a.first) a.first[b] = first;
}

extern "C" Status cuda_depth_admit(const KernelCall *call, Error *error) {
    const Tensor *guess = call->node->input[0], *counts = call->node->output[4];
    int64_t B = guess->shape.dim[0], T = guess->shape.dim[1];
    const CudaContext *context = cuda_context(call);
    if (!B || !T) return STATUS_OK;
    Admitted admitted = {(int32_t *)call->out[0],          (int32_t *)call->out[1], (int32_t *)call->out[2],
                         (int32_t *)call->out[3],          (int32_t *)call->out[4], T,
                         counts ? counts->shape.dim[1] : 0};
    int64_t threads = T >= THREADS ? (int64_t)THREADS : (T + WARP - 1) / WARP * WARP;
    admit_kernel<<<(unsigned)B, (unsigned)threads, 0, context->stream>>>(
        (const float *)call->in[0], (const int32_t *)call->in[1], admitted, context->device_fault);
    return cuda_launched("depth_admit", error);
}
