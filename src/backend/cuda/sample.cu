/* sample: the next token of every row of logits (ops/sample.h).
 *
 * Floor: 4·V bytes a row, which the head has just left in the second-level cache; in practice the launch, and passes of one
 * multiprocessor over 200 kB where the distribution is cut. A row's logits are dealt out to the warps of a cluster of thread
 * blocks, which keep theirs in registers. Each has its greatest logit and its sums of exponentials, and writes them into the
 * shared memory of all blocks; when all have, every warp knows the likeliest token, or whose the drawn one is. That one
 * counts it out. A GPU without clusters has one thread block a row.
 *
 * The weights are those of the host's sampler: exponentials in f32, relative to the row's largest logit. */
#include "backend/cuda/sample_cut.cuh"

extern "C" {
#include "ops/sample.h"
}

/* Thread blocks of a row, logits that a thread reads at the same time, rows. */
enum { MOST_RANKS = 8, AT_ONCE = 16, MOST_ROWS = 65535 };
enum { MOST_PARTS = MOST_RANKS * CUT_WARPS, LANE_PARTS = MOST_PARTS / WARP };
enum { SPAN = AT_ONCE * WARP, LANE_TOKENS = SPAN / WARP }; /* tokens of a warp, and of a thread */

typedef struct {
    const float *logits;
    const SampleSettings *settings;
    int32_t *tokens, *start;
    SampleRow *rows;
    SamplePick *picks;
    int64_t stride; /* logits of a row */
    int n_rows;
    unsigned n_picks; /* places */
} SampleCall;

/* What a row's warps know of their parts of it, in the order of the tokens. */
typedef struct {
    alignas(16) float largest[MOST_PARTS];
    alignas(16) int is_bad[MOST_PARTS]; /* has a logit that is not finite */
    alignas(16) double sum[MOST_PARTS],
        weight[MOST_PARTS]; /* of exponentials, as they are and by temperature */
} SampleParts;

typedef struct {
    SampleParts parts;
    double weight[CUT_WARPS], target; /* of a search in a cut distribution */
    int first, end, token_found;
    union {
        float weights[CUT_WARPS][SPAN + SPAN / LANE_TOKENS]; /* of a warp's tokens: see place_of */
        CutShared cut;
    };
} SampleShared;

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

/* Where the weight of token i of SPAN is: a thread will have LANE_TOKENS side by side, no two threads in the same bank. */
DEVICE int place_of(int i) {
    return i + i / LANE_TOKENS;
}

/* Weights of the SPAN tokens that the warp has, relative to its largest logit; their sums in this thread. Divisions by a
 * temperature are many instructions: what is not run had better not stand in between. */
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

/* Numbers that weigh something each: the first with which the sum, from `before` on, is more than `wanted`, or the last
 * possible one; *sum: without it. */
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

/* ---- a distribution that is cut, by one block ---- */

/* What the tokens first .. end - 1 weigh that are kept, over the threads of a warp. */
DEVICE double warp_weight(const CutRow &row, Key cut, int first, int end) {
    double sum = 0.0;
    for (int i = first + (int)threadIdx.x % WARP; i < end; i += WARP) {
        if (key_of(row.logits[i], i) >= cut) sum += (double)weight_of(row, row.logits[i]);
    }
    return warp_sum(sum);
}

/* The range becomes that of its 16 parts in which the target is reached. With `uniform`, the target is yet to be made. */
DEVICE void narrow(const CutRow &row, Key cut, double uniform, SampleShared *shared) {
    int first = shared->first, end = shared->end, each = (end - first + CUT_WARPS - 1) / CUT_WARPS;
    int warp = (int)threadIdx.x / WARP, begin = first + warp * each;
    int part_end = begin + each < end ? begin + each : end;
    double weight = warp_weight(row, cut, begin, part_end);
    if (threadIdx.x % WARP == 0) shared->weight[warp] = weight;
    __syncthreads();
    if (warp == 0) {
        int lane = (int)threadIdx.x;
        double here = lane < CUT_WARPS ? shared->weight[lane] : 0.0, up_to = here;
#pragma unroll
        for (int step = 1; step < CUT_WARPS; step *= 2) {
            double other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
            if (lane >= step) up_to += other;
        }
        double total = __shfl_sync(0xFFFFFFFFu, up_to, CUT_WARPS - 1);
        double target = uniform >= 0.0 ? uniform * total : shared->target;
        unsigned enough = __ballot_sync(0xFFFFFFFFu, here > 0.0 && up_to > target);
        unsigned any = __ballot_sync(0xFFFFFFFFu, here > 0.0);
        /* the last possible one, should a sum have been rounded */
        int chosen = enough ? __ffs((int)enough) - 1 : any ? 31 - __clz((int)any) : 0;
        if (lane == chosen) {
            shared->target = target - (up_to - here);
            shared->first = first + chosen * each;
            shared->end = first + (chosen + 1) * each < end ? first + (chosen + 1) * each : end;
        }
    }
    __syncthreads();
}

/* The token in a range of at most a warp's threads. */
DEVICE void count_out(const CutRow &row, Key cut, SampleShared *shared) {
    if (threadIdx.x >= WARP) return;
    int lane = (int)threadIdx.x, token = shared->first + lane;
    bool is_kept = token < shared->end && key_of(row.logits[token], token) >= cut;
    double weight = is_kept ? (double)weight_of(row, row.logits[token]) : 0.0, up_to = weight;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        double other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
        if (lane >= step) up_to += other;
    }
    unsigned enough = __ballot_sync(0xFFFFFFFFu, weight > 0.0 && up_to > shared->target);
    unsigned any = __ballot_sync(0xFFFFFFFFu, weight > 0.0);
    int chosen = enough ? __ffs((int)enough) - 1 : any ? 31 - __clz((int)any) : 0;
    if (lane == 0) shared->token_found = shared->first + chosen;
}

/* The least key that top-k and top-p keep; 0: all are. */
static __device__ Key cut_row(const CutRow &row, const SampleSettings &settings, CutShared *shared) {
    Key cut = 0;
    if (settings.top_k > 0 && settings.top_k < row.n)
        cut = find_cut(row, 0, true, (Weight)settings.top_k, shared);
    if (settings.top_p >= 1.0) return cut;
    Weight total = 0;
    for (int i = (int)threadIdx.x; i < row.n; i += CUT_THREADS) {
        if (key_of(row.logits[i], i) >= cut) total += whole_weight(row, row.logits[i], false);
    }
    total = block_weight(total, shared);
    return find_cut(row, cut, false, (Weight)ceil(settings.top_p * (double)total), shared);
}

/* In shared->token_found, for the first warp. */
static __device__ __noinline__ void draw_cut(const CutRow &row, const SampleSettings &settings,
                                             double uniform, SampleShared *shared) {
    Key cut = cut_row(row, settings, &shared->cut);
    __syncthreads();
    if (threadIdx.x == 0) shared->first = 0, shared->end = row.n;
    __syncthreads();
    narrow(row, cut, uniform, shared);
    while (shared->end - shared->first > WARP) narrow(row, cut, -1.0, shared);
    count_out(row, cut, shared);
}

/* ---- what comes of it ---- */

typedef struct {
    SampleRow row;
    int start; /* before this token */
} RowState;

/* By one thread. is_bad: the token's logit is none. */
DEVICE void hand_over(const SampleCall &c, int b, RowState state, bool is_bad, int token,
                      float log_probability) {
    SamplePick pick = {is_bad ? -1 - token : token, log_probability};
    SampleRow row = state.row;
    unsigned place = row.n_picks++ % c.n_picks;
    if (is_bad) {
        row.is_drawing = 0;
    } else {
        c.tokens[b] = token;
        c.start[b] = state.start + 1;
        row.position++;
    }
    c.rows[b] = row;
    c.picks[(int64_t)place * c.n_rows + b] = pick;
}

/* The row's sum of exponentials. */
DEVICE float sum_of_row(const SampleParts &parts, const float (&largest)[LANE_PARTS], float whole) {
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < LANE_PARTS; i++)
        if (largest[i] > NO_LOGIT)
            sum += parts.sum[lane_of() * LANE_PARTS + i] * (double)expf(largest[i] - whole);
    return (float)warp_sum(sum);
}

/* The next token, by the warp that knows it. mine: what its own weights are relative to. */
DEVICE void pick_token(const SampleCall &c, const SampleSettings &settings, RowState state, double uniform,
                       CutRow mine, Part &part, float *weights, SampleShared *shared) {
    CutRow row = mine;
    int b = (int)blockIdx.y, number = 0, token = -1, first = lane_of() * LANE_PARTS;
    float largest[LANE_PARTS], most = NO_LOGIT;
    bool is_bad[LANE_PARTS], is_likeliest[LANE_PARTS];
#pragma unroll
    for (int i = 0; i < LANE_PARTS; i++) {
        bool is_there = first + i < n_ranks() * CUT_WARPS;
        largest[i] = is_there ? shared->parts.largest[first + i] : NO_LOGIT;
        is_bad[i] = is_there && shared->parts.is_bad[first + i];
        most = fmaxf(most, largest[i]);
    }
    row.largest = warp_largest(most);
#pragma unroll
    for (int i = 0; i < LANE_PARTS; i++) is_likeliest[i] = largest[i] == row.largest;
    bool is_cut = (settings.top_k > 0 && settings.top_k < row.n) || settings.top_p < 1.0;
    bool is_any_bad = first_part(is_bad) != INT32_MAX;
    if (is_any_bad) {
        number = first_part(is_bad);
    } else if (settings.temperature == 0.0) {
        number = first_part(is_likeliest);
        if (number == part.number && part.is_held) token = find_held(part, row.largest);
    } else if (is_cut) {
        if (blockIdx.x > 0) return; /* as the whole block does */
        __syncthreads();            /* what has been weighed is not needed any more */
        draw_cut(row, settings, uniform, shared);
        __syncwarp();
        token = shared->token_found; /* for the first warp */
    } else {
        double target;
        number = find_part(shared->parts, largest, row, uniform, &target);
        if (number == part.number) token = count_part(mine, part, target, weights);
    }
    if (number != part.number) return;
    if (token < 0) token = find_token(row.logits, part.begin, part.end, is_any_bad ? NAN : row.largest);
    float logit = row.logits[token], sum = sum_of_row(shared->parts, largest, row.largest);
    if (lane_of() == 0)
        hand_over(c, b, state, is_any_bad, token, is_any_bad ? logit : logit - row.largest - logf(sum));
}

static __global__ void __launch_bounds__(CUT_THREADS, 1) sample_kernel(const __grid_constant__ SampleCall c) {
    __shared__ SampleShared shared;
    SampleSettings settings = *c.settings; /* the host's: no kernel writes them */
    int b = (int)blockIdx.y, n_parts = n_ranks() * CUT_WARPS;
    int n = (int)(settings.n_vocabulary < c.stride ? settings.n_vocabulary : c.stride);
    int each = (n + n_parts - 1) / n_parts;
    float *weights = shared.weights[threadIdx.x / WARP];
    Part part;
    part.number = (int)blockIdx.x * CUT_WARPS + (int)threadIdx.x / WARP;
    part.begin = part.number * each < n ? part.number * each : n;
    part.end = part.begin + each < n ? part.begin + each : n;
    part.is_held = each <= SPAN;
    let_successor_start();
    meet(); /* nobody writes to a block that is not there yet */
    wait_for_predecessor();
    RowState state = {c.rows[b], c.start[b]};
    CutRow mine = {c.logits + b * c.stride, n, NO_LOGIT, settings.temperature};
    bool is_bad;
    mine.largest = find_largest(mine.logits, part, &is_bad);
    if (!state.row.is_drawing) return; /* as all blocks of the row do */
    tell(mine, part, is_bad, weights, &shared.parts);
    RandomBlock block =
        random_block(random_key(settings.seed, RANDOM_SAMPLE, 0), state.row.sample, state.row.position);
    double uniform = (double)(((uint64_t)block.word[0] << 32 | block.word[1]) >> 11) * 0x1p-53;
    meet();
    pick_token(c, settings, state, uniform, mine, part, weights, &shared);
}

/* ---- on the host's side ---- */

extern "C" Status cuda_sample(const KernelCall *call, Error *error) {
    CudaContext *context = cuda_context(call);
    const Tensor *logits = call->node->input[0];
    SampleCall c = {};
    c.logits = (const float *)call->in[0];
    c.settings = (const SampleSettings *)call->in[1];
    c.tokens = (int32_t *)call->out[0];
    c.start = (int32_t *)call->out[1];
    c.rows = (SampleRow *)call->out[2];
    c.picks = (SamplePick *)call->out[3];
    c.stride = shape_columns(logits->shape);
    c.n_rows = (int)shape_rows(logits->shape);
    c.n_picks = (unsigned)call->node->output[3]->shape.dim[0];
    if (c.n_rows > MOST_ROWS || c.stride > INT32_MAX) return cuda_unsupported(call, logits, error);
    bool has_clusters = context->properties.major >= 9;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = MOST_RANKS;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(has_clusters ? MOST_RANKS : 1, (unsigned)c.n_rows);
    config.blockDim = dim3(CUT_THREADS);
    config.stream = context->stream;
    config.attrs = attributes;
    config.numAttrs = has_clusters ? 2 : 0;
    return cuda_check(cudaLaunchKernelEx(&config, sample_kernel, c), "sample", error);
}
