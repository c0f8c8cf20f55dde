/* sample.cu's rows, dealt out to warps: what each knows of its part, and how all find the token from that.
 *
 * A warp keeps up to SPAN logits in registers, 16 a thread, and their weights in shared memory, relative to
 * its own largest one. What a part weighs beside the others is known when all have told all (SampleParts):
 * each thread of a warp then looks at LANE_PARTS of the parts. */
#ifndef PGPT_BACKEND_CUDA_SAMPLE_SAMPLE_PARTS_CUH
#define PGPT_BACKEND_CUDA_SAMPLE_SAMPLE_PARTS_CUH

#include "backend/cuda/sample/sample_cut.cuh"

/* Thread blocks of a row, logits that a thread reads at the same time. */
enum { MOST_RANKS = 8, AT_ONCE = 16 };
enum { MOST_PARTS = MOST_RANKS * CUT_WARPS, LANE_PARTS = MOST_PARTS / WARP };
enum { SPAN = AT_ONCE * WARP, LANE_TOKENS = SPAN / WARP }; /* tokens of a warp, and of a thread */

/* What a row's warps know of their parts of it, in the order of the tokens. */
typedef struct {
    alignas(16) float largest[MOST_PARTS];
    alignas(16) int is_bad[MOST_PARTS]; /* has a logit that is not finite */
    alignas(16) double sum[MOST_PARTS],
        weight[MOST_PARTS]; /* of exponentials, as they are and by temperature */
} SampleParts;

/* A warp's part of the row, of which it has SPAN logits: all of them, if they are few. */
typedef struct {
    int number, begin, end;
    bool is_held;
    float v[AT_ONCE];
} Part;

/* Behind the end of a part, or where it is empty: nothing weighs less. */
#define NO_LOGIT (-3e38f)

/* ---- the cluster ---- */

DEVICE int n_ranks(void) {
    return (int)gridDim.x; /* a cluster is a row of the grid */
}
DEVICE void meet(void) {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#else
    __syncthreads();
#endif
}
/* The same place in another block's shared memory. */
DEVICE SampleParts *parts_of(SampleParts *here, int rank) {
#if __CUDA_ARCH__ >= 900
    SampleParts *there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(rank));
    return there;
#else
    (void)rank;
    return here;
#endif
}

/* ---- a part ---- */

DEVICE int lane_of(void) {
    return (int)threadIdx.x % WARP;
}

DEVICE void read_logits(const float *logits, int base, Part &part) {
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
        int i = base + k * WARP + lane_of();
        part.v[k] = i < part.end ? logits[i] : NO_LOGIT;
    }
}

/* Numbers in the order of floats; both zeros are one. */
DEVICE unsigned order_of(float x) {
    unsigned bits = __float_as_uint(x == 0.0f ? 0.0f : x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
/* The greatest of a warp's. */
DEVICE float warp_largest(float x) {
    unsigned most = __reduce_max_sync(0xFFFFFFFFu, order_of(x));
    return __uint_as_float(most & 0x80000000u ? most & 0x7FFFFFFFu : ~most);
}

DEVICE float find_largest(const float *logits, Part &part, bool *is_bad) {
    float largest = NO_LOGIT, nothing = 0.0f;
    for (int base = part.begin; base < part.end; base += SPAN) {
        read_logits(logits, base, part);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            largest = fmaxf(largest, part.v[k]);
            nothing = fmaf(part.v[k], 0.0f, nothing); /* unless it is not finite */
        }
    }
    *is_bad = __any_sync(0xFFFFFFFFu, nothing != 0.0f);
    return warp_largest(largest);
}

DEVICE double warp_sum(double x) {
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

/* Where the weight of token i of SPAN is: a thread will have LANE_TOKENS side by side, no two threads in the
 * same bank. */
DEVICE int place_of(int i) {
    return i + i / LANE_TOKENS;
}

/* Weights of the SPAN tokens that the warp has, relative to its largest logit; their sums in this thread.
 * Divisions by a temperature are many instructions: what is not run had better not stand in between. */
DEVICE void weigh(const Part &part, const CutRow &mine, float *weights, double *sum, double *weight) {
    float sums = 0.0f, weighed = 0.0f;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
        float e = expf(part.v[k] - mine.largest);
        sums += e;
        weights[place_of(k * WARP + lane_of())] = e;
    }
    *sum += (double)sums;
    if (mine.temperature != 1.0 && mine.temperature > 0.0) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            float w = weight_of(mine, part.v[k]);
            weighed += w;
            weights[place_of(k * WARP + lane_of())] = w;
        }
        *weight += (double)weighed;
    }
}

/* What this warp knows, to all blocks of the row. mine: what its weights are relative to. */
DEVICE void tell(const CutRow &mine, Part &part, bool is_bad, float *weights, SampleParts *parts) {
    double sum = 0.0, weight = 0.0;
    for (int base = part.begin; base < part.end; base += SPAN) {
        if (!part.is_held) read_logits(mine.logits, base, part);
        weigh(part, mine, weights, &sum, &weight);
    }
    sum = warp_sum(sum);
    weight = mine.temperature == 1.0 ? sum : warp_sum(weight);
    if (lane_of() >= n_ranks()) return;
    SampleParts *there = parts_of(parts, lane_of());
    there->largest[part.number] = mine.largest;
    there->is_bad[part.number] = is_bad;
    there->sum[part.number] = sum;
    there->weight[part.number] = weight;
}

/* The first token of the part whose logit is the given one; or, with NAN, is not finite. */
static __device__ __noinline__ int find_token(const float *logits, int begin, int end, float logit) {
    unsigned first = INT32_MAX;
#pragma unroll 1
    for (int i = begin + lane_of(); i < end; i += WARP) {
        bool is_it = isnan(logit) ? !isfinite(logits[i]) : logits[i] == logit;
        if (is_it && (unsigned)i < first) first = (unsigned)i;
    }
    return (int)__reduce_min_sync(0xFFFFFFFFu, first);
}

/* The same of a logit that the warp has in its registers, with all others. */
DEVICE int find_held(const Part &part, float logit) {
    unsigned first = INT32_MAX;
#pragma unroll
    for (int k = AT_ONCE - 1; k >= 0; k--)
        if (part.v[k] == logit) first = (unsigned)(part.begin + k * WARP + lane_of());
    return (int)__reduce_min_sync(0xFFFFFFFFu, first);
}

/* The i-th of them, for all threads. */
DEVICE float held_logit(const Part &part, int i) {
    float v = part.v[0];
#pragma unroll
    for (int k = 1; k < AT_ONCE; k++) v = i / WARP == k ? part.v[k] : v;
    return __shfl_sync(0xFFFFFFFFu, v, i % WARP);
}

/* ---- the row: each thread of a warp has LANE_PARTS parts of it ---- */

/* The first part for which it holds. */
DEVICE int first_part(const bool (&holds)[LANE_PARTS]) {
    unsigned first = INT32_MAX;
#pragma unroll
    for (int i = LANE_PARTS - 1; i >= 0; i--)
        if (holds[i]) first = (unsigned)(lane_of() * LANE_PARTS + i);
    return (int)__reduce_min_sync(0xFFFFFFFFu, first);
}

/* Sums up to each thread's, in the order of the threads. */
DEVICE double sum_up_to(double x) {
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        double other = __shfl_up_sync(0xFFFFFFFFu, x, step);
        if (lane_of() >= step) x += other;
    }
    return x;
}

/* The first thread that has enough; the last possible one, should a sum have been rounded. */
DEVICE int first_with(bool has_enough, bool is_possible) {
    unsigned enough = __ballot_sync(0xFFFFFFFFu, has_enough), any = __ballot_sync(0xFFFFFFFFu, is_possible);
    return enough ? __ffs((int)enough) - 1 : any ? 31 - __clz((int)any) : 0;
}

/* Numbers that weigh something each: the first with which the sum, from `before` on, is more than `wanted`,
 * or the last possible one; *sum: without it. */
template <int N> DEVICE int walk(const double (&weight)[N], double before, double wanted, double *sum) {
    int found = 0;
    bool is_found = false;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (is_found || !(weight[i] > 0.0)) continue;
        found = i;
        *sum = before;
        before += weight[i];
        is_found = before > wanted;
    }
    return found;
}

/* Whose the token is that `uniform` falls on, and how far into that part, in its own measure. */
DEVICE int find_part(const SampleParts &parts, const float (&largest)[LANE_PARTS], const CutRow &row,
                     double uniform, double *target) {
    double weight[LANE_PARTS], mine = 0.0, before = 0.0;
    float scale[LANE_PARTS], distance[LANE_PARTS];
#pragma unroll
    for (int i = 0; i < LANE_PARTS; i++) distance[i] = largest[i] - row.largest;
    if (row.temperature != 1.0) {
#pragma unroll
        for (int i = 0; i < LANE_PARTS; i++) distance[i] = (float)((double)distance[i] / row.temperature);
    }
#pragma unroll
    for (int i = 0; i < LANE_PARTS; i++) {
        scale[i] = largest[i] > NO_LOGIT ? expf(distance[i]) : 0.0f;
        weight[i] = scale[i] > 0.0f ? parts.weight[lane_of() * LANE_PARTS + i] * (double)scale[i] : 0.0;
        mine += weight[i];
    }
    double up_to = sum_up_to(mine), wanted = uniform * __shfl_sync(0xFFFFFFFFu, up_to, WARP - 1);
    int lane = first_with(mine > 0.0 && up_to > wanted, mine > 0.0);
    int i = walk(weight, up_to - mine, wanted, &before);
    float its_scale = scale[0];
#pragma unroll
    for (int k = 1; k < LANE_PARTS; k++) its_scale = i == k ? scale[k] : its_scale;
    *target = __shfl_sync(0xFFFFFFFFu, (wanted - before) / (double)its_scale, lane);
    return __shfl_sync(0xFFFFFFFFu, lane_of() * LANE_PARTS + i, lane);
}

/* The token of this warp's part at which its weights reach the target. mine: what they are relative to. */
DEVICE int count_part(const CutRow &mine, Part &part, double target, float *weights) {
    int token = part.begin;
    for (int base = part.begin; base < part.end; base += SPAN) {
        double weight[LANE_TOKENS], sum = 0.0, ignored = 0.0;
        if (!part.is_held) {
            read_logits(mine.logits, base, part);
            weigh(part, mine, weights, &ignored, &ignored);
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < LANE_TOKENS; k++) {
            weight[k] = (double)weights[place_of(lane_of() * LANE_TOKENS + k)];
            sum += weight[k];
        }
        __syncwarp();
        double up_to = sum_up_to(sum), all = __shfl_sync(0xFFFFFFFFu, up_to, WARP - 1);
        if (!(all > 0.0)) continue;
        int lane = first_with(sum > 0.0 && up_to > target, sum > 0.0);
        int i = walk(weight, up_to - sum, target, &ignored);
        token = base + __shfl_sync(0xFFFFFFFFu, lane_of() * LANE_TOKENS + i, lane);
        if (all > target) break;
        target -= all;
    }
    return token;
}

#endif
