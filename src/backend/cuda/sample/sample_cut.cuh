/* Where the options top-k and top-p cut the distribution: by one thread block over all tokens of a row.
 *
 * Tokens are ordered by keys, 64 bits that differ for any two of them: the logit, and behind it the token's
 * number, the lower the better. A cut is the least key that is kept: that of the shortest beginning of the
 * order that weighs enough, where a token weighs 1 for top-k and its probability for top-p. Weights are whole
 * numbers, so that sums are the same in whatever order they are taken.
 *
 * The search: a histogram of weights over the distance to the greatest logit says in which bin the cut lies.
 * A few tokens are in that bin, usually; they are put side by side and each is weighed against all others. As
 * long as there are too many, the bin is cut into bins by their keys. */
#ifndef PGPT_BACKEND_CUDA_SAMPLE_SAMPLE_CUT_CUH
#define PGPT_BACKEND_CUDA_SAMPLE_SAMPLE_CUT_CUH

#include "backend/cuda/runtime/device.cuh"

typedef unsigned long long Key;
typedef unsigned long long Weight; /* of 2^40 */

enum { CUT_THREADS = 512, CUT_WARPS = CUT_THREADS / WARP, CUT_BINS = 2048, CUT_LIST = 1024 };
#define CUT_BIN_WIDTH 64.0f /* bins a unit of logits: 32 of them; the last bin has the rest */
#define CUT_ONE       1099511627776.0f

/* One row, as a thread block sees it. */
typedef struct {
    const float *logits;
    int n;
    float largest;
    double temperature;
} CutRow;

typedef struct {
    Weight bins[CUT_BINS];
    Key key[CUT_LIST];
    Weight weight[CUT_LIST];
    Weight sums[CUT_WARPS];
    Key least[CUT_WARPS], most[CUT_WARPS];
    int n_listed, bin;
    Weight before;
    Key cut;
} CutShared;

/* The tokens among which the cut is looked for: those of a bin of the first histogram, between two keys. */
typedef struct {
    Key floor; /* nothing below it counts at all */
    int bin;
    Key first, last;
} CutRange;

DEVICE Key key_of(float logit, int token) {
    unsigned bits = __float_as_uint(logit == 0.0f ? 0.0f : logit); /* both zeros are one */
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)bits << 32 | (0xFFFFFFFFu - (unsigned)token);
}

DEVICE float weight_of(const CutRow &row, float logit) {
    float distance = logit - row.largest; /* a temperature of 1 changes nothing, and divisions take long */
    return expf(row.temperature == 1.0 ? distance : (float)((double)distance / row.temperature));
}

DEVICE Weight whole_weight(const CutRow &row, float logit, bool counts) {
    return counts ? 1 : (Weight)(weight_of(row, logit) * CUT_ONE);
}

DEVICE int bin_of(const CutRow &row, float logit) {
    float bin = (row.largest - logit) * CUT_BIN_WIDTH;
    return bin < (float)(CUT_BINS - 1) ? (int)bin : CUT_BINS - 1;
}

DEVICE Weight warp_sum(Weight x) {
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

/* The sum over the block, in all threads. */
DEVICE Weight block_weight(Weight x, CutShared *shared) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared->sums[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < CUT_WARPS; w++) x += shared->sums[w];
    return x;
}

DEVICE bool is_in_range(const CutRow &row, const CutRange &range, float logit, Key key) {
    return key >= range.floor && (range.bin < 0 || bin_of(row, logit) == range.bin) && key >= range.first &&
           key <= range.last;
}

/* The first bin, from 0 on, with which the sum is enough; range.before grows by the bins in front of it. */
DEVICE void find_bin(CutShared *shared, Weight wanted) {
    enum { EACH = CUT_BINS / CUT_THREADS };
    int thread = (int)threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    Weight mine = 0;
    for (int i = 0; i < EACH; i++) mine += shared->bins[thread * EACH + i];
    Weight up_to = mine; /* inclusive, within the warp */
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        Weight other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
        if (lane >= step) up_to += other;
    }
    if (lane == WARP - 1) shared->sums[warp] = up_to;
    __syncthreads();
    Weight sum = shared->before + up_to - mine;
    for (int w = 0; w < warp; w++) sum += shared->sums[w];
    __syncthreads();
    for (int i = 0; i < EACH; i++) {
        Weight next = sum + shared->bins[thread * EACH + i];
        if (sum < wanted && next >= wanted) {
            shared->bin = thread * EACH + i;
            shared->before = sum;
        }
        sum = next;
    }
    __syncthreads();
}

DEVICE void clear_bins(CutShared *shared) {
    __syncthreads();
    for (int i = (int)threadIdx.x; i < CUT_BINS; i += CUT_THREADS) shared->bins[i] = 0;
    __syncthreads();
}

/* How many tokens the range has; its bounds move to the least and the greatest of their keys. */
DEVICE int measure_range(const CutRow &row, CutRange *range, CutShared *shared) {
    Key least = ~0ull, most = 0;
    Weight count = 0;
    for (int i = (int)threadIdx.x; i < row.n; i += CUT_THREADS) {
        Key key = key_of(row.logits[i], i);
        if (!is_in_range(row, *range, row.logits[i], key)) continue;
        count++;
        least = least < key ? least : key;
        most = most > key ? most : key;
    }
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) {
        Key other = __shfl_xor_sync(0xFFFFFFFFu, least, step);
        least = least < other ? least : other;
        other = __shfl_xor_sync(0xFFFFFFFFu, most, step);
        most = most > other ? most : other;
    }
    count = block_weight(count, shared);
    if (threadIdx.x % WARP == 0) {
        shared->least[threadIdx.x / WARP] = least;
        shared->most[threadIdx.x / WARP] = most;
    }
    __syncthreads();
    for (int w = 0; w < CUT_WARPS; w++) {
        least = least < shared->least[w] ? least : shared->least[w];
        most = most > shared->most[w] ? most : shared->most[w];
    }
    range->first = least;
    range->last = most;
    return (int)count;
}

/* The range becomes one of CUT_BINS parts of it, by key. */
DEVICE void narrow_by_key(const CutRow &row, CutRange *range, CutShared *shared, bool counts, Weight wanted) {
    int shift = 0;
    while ((range->last - range->first) >> shift >= CUT_BINS) shift++;
    clear_bins(shared);
    for (int i = (int)threadIdx.x; i < row.n; i += CUT_THREADS) {
        Key key = key_of(row.logits[i], i);
        if (is_in_range(row, *range, row.logits[i], key))
            atomicAdd(&shared->bins[CUT_BINS - 1 - (int)((key - range->first) >> shift)],
                      whole_weight(row, row.logits[i], counts));
    }
    __syncthreads();
    find_bin(shared, wanted);
    Key part = (Key)(CUT_BINS - 1 - shared->bin);
    Key last = range->first + ((part + 1) << shift) - 1;
    range->first += part << shift;
    range->last = last < range->last ? last : range->last;
}

/* Each token of the range against all others: the greatest key with which the sum is enough. */
DEVICE Key choose_from_list(const CutRow &row, const CutRange &range, CutShared *shared, bool counts,
                            Weight wanted) {
    __syncthreads();
    if (threadIdx.x == 0) shared->n_listed = 0, shared->cut = range.first;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < row.n; i += CUT_THREADS) {
        Key key = key_of(row.logits[i], i);
        if (!is_in_range(row, range, row.logits[i], key)) continue;
        int at = atomicAdd(&shared->n_listed, 1);
        shared->key[at] = key;
        shared->weight[at] = whole_weight(row, row.logits[i], counts);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < shared->n_listed; i += CUT_THREADS) {
        Weight sum = shared->before;
        for (int j = 0; j < shared->n_listed; j++)
            if (shared->key[j] >= shared->key[i]) sum += shared->weight[j];
        if (sum >= wanted) atomicMax(&shared->cut, shared->key[i]);
    }
    __syncthreads();
    return shared->cut;
}

/* The least key that is kept of those from `floor` on, when the best that weigh `wanted` together are. */
static __device__ Key find_cut(const CutRow &row, Key floor, bool counts, Weight wanted, CutShared *shared) {
    CutRange range = {floor, -1, 0, ~0ull};
    wanted = wanted ? wanted : 1;
    clear_bins(shared);
    if (threadIdx.x == 0) shared->before = 0, shared->bin = CUT_BINS - 1;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < row.n; i += CUT_THREADS) {
        float logit = row.logits[i];
        if (key_of(logit, i) < floor) continue;
        if (counts)
            atomicAdd((unsigned *)&shared->bins[bin_of(row, logit)], 1u); /* little-endian, and quicker */
        else atomicAdd(&shared->bins[bin_of(row, logit)], whole_weight(row, logit, false));
    }
    __syncthreads();
    find_bin(shared, wanted);
    range.bin = shared->bin;
    while (measure_range(row, &range, shared) > CUT_LIST) narrow_by_key(row, &range, shared, counts, wanted);
    return choose_from_list(row, range, shared, counts, wanted);
}

#endif
