/* sample: the next token of every row of logits (ops/sample.h).
 *
 * Floor: 4·V bytes a row, which the head has just left in the second-level cache; in practice the launch, and passes of one
 * multiprocessor over 200 kB where the distribution is cut. A row's logits are dealt out to the thread blocks of a cluster,
 * each of which has its greatest logit and its sums of exponentials; when they have read each other's, all know the likeliest
 * token, or in whose segment the drawn one lies. That one looks for it there: sums of 16 parts say which part it is in, again
 * and again, until a warp can count it out. A GPU without clusters has one thread block a row.
 *
 * The weights are those of the host's sampler: exponentials in f32, relative to the row's largest logit. */
#include "backend/cuda/sample_cut.cuh"

extern "C" {
#include "ops/sample.h"
}

/* Thread blocks of a row, logits that a thread reads at the same time, rows. */
enum { MOST_RANKS = 8, AT_ONCE = 16, MOST_ROWS = 65535 };

typedef struct {
    float largest;
    int token;          /* that has it: the first */
    int first_bad;      /* whose logit is not finite; INT_MAX: none */
    double sum, weight; /* of exponentials, as they are and by temperature */
} Segment;

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

/* ---- a segment ---- */

typedef struct {
    float largest[CUT_WARPS];
    int token[CUT_WARPS], bad[CUT_WARPS];
    double sum[CUT_WARPS], weight[CUT_WARPS];
    Segment segment; /* this block's */
    Segment whole;   /* the row's */
    double target;
    int first, end, token_found, rank; /* rank: whose segment it is */
} SampleShared;

DEVICE bool is_better(float a, int at, float b, int bt) {
    return a > b || (a == b && at < bt);
}

/* The better of this thread's and another's, `step` threads off. */
DEVICE void join_largest(float *largest, int *token, int *bad, int step) {
    float other = __shfl_xor_sync(0xFFFFFFFFu, *largest, step);
    int other_token = __shfl_xor_sync(0xFFFFFFFFu, *token, step);
    int other_bad = __shfl_xor_sync(0xFFFFFFFFu, *bad, step);
    *bad = *bad < other_bad ? *bad : other_bad;
    if (is_better(other, other_token, *largest, *token)) *largest = other, *token = other_token;
}

/* AT_ONCE logits of this thread from i on; -INFINITY behind the end. */
DEVICE void read_logits(const float *logits, int i, int end, float (&v)[AT_ONCE]) {
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
        v[k] = i + k * CUT_THREADS < end ? logits[i + k * CUT_THREADS] : -INFINITY;
}

/* The segment's likeliest token and its first one that is not finite, in all threads. */
DEVICE void find_largest(const float *logits, int first, int end, SampleShared *shared, Segment *segment) {
    float largest = -INFINITY, v[AT_ONCE];
    int token = INT32_MAX, bad = INT32_MAX, lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int i = first + (int)threadIdx.x; i < end; i += AT_ONCE * CUT_THREADS) {
        read_logits(logits, i, end, v);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int here = i + k * CUT_THREADS;
            if (!isfinite(v[k]) && here < end) bad = here < bad ? here : bad;
            if (is_better(v[k], here, largest, token) && here < end) largest = v[k], token = here;
        }
    }
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) join_largest(&largest, &token, &bad, step);
    if (lane == 0) shared->largest[warp] = largest, shared->token[warp] = token, shared->bad[warp] = bad;
    __syncthreads();
    static_assert(CUT_WARPS == WARP / 2, "two threads have a warp's");
    largest = shared->largest[lane % CUT_WARPS];
    token = shared->token[lane % CUT_WARPS];
    bad = shared->bad[lane % CUT_WARPS];
#pragma unroll
    for (int step = CUT_WARPS / 2; step; step /= 2) join_largest(&largest, &token, &bad, step);
    segment->largest = largest;
    segment->token = token;
    segment->first_bad = bad;
}

DEVICE double warp_sum(double x) {
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

/* The segment's sums, in the first warp. */
DEVICE void sum_segment(const float *logits, int first, int end, double temperature, SampleShared *shared,
                        Segment *segment) {
    CutRow row = {logits, 0, segment->largest, temperature};
    double sum = 0.0, weight = 0.0;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    float v[AT_ONCE];
    bool is_same = temperature == 1.0; /* a weight is the exponential, then */
    for (int i = first + (int)threadIdx.x; i < end; i += AT_ONCE * CUT_THREADS) {
        read_logits(logits, i, end, v);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (i + k * CUT_THREADS >= end) continue;
            sum += (double)expf(v[k] - segment->largest);
            if (temperature > 0.0 && !is_same) weight += (double)weight_of(row, v[k]);
        }
    }
    sum = warp_sum(sum);
    weight = is_same ? sum : warp_sum(weight);
    if (lane == 0) shared->sum[warp] = sum, shared->weight[warp] = weight;
    __syncthreads();
    if (warp) return;
    segment->sum = warp_sum(lane < CUT_WARPS ? shared->sum[lane] : 0.0);
    segment->weight = warp_sum(lane < CUT_WARPS ? shared->weight[lane] : 0.0);
}

/* ---- the cluster ---- */

DEVICE int n_ranks(void) {
    return (int)gridDim.x; /* a cluster is a row of the grid */
}
DEVICE void arrive(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
DEVICE void wait_for_others(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
DEVICE Segment segment_of(const SampleShared *shared, int rank) {
#if __CUDA_ARCH__ >= 900
    const Segment *there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&shared->segment), "r"(rank));
    return *there;
#else
    (void)rank;
    return shared->segment;
#endif
}

/* ---- the row ---- */

/* A segment as part of the row: what it weighs relative to the row's largest logit. */
DEVICE double weight_in_row(const Segment &segment, float largest, double temperature) {
    if (segment.largest == -INFINITY || temperature == 0.0) return 0.0;
    return segment.weight * (double)expf((float)((double)(segment.largest - largest) / temperature));
}

/* All segments as one, and the one that `uniform` falls into: by the first warp, a thread a segment. */
DEVICE void join_segments(int per, int n, double temperature, double uniform, SampleShared *shared) {
    int lane = (int)threadIdx.x;
    Segment mine = {-INFINITY, INT32_MAX, INT32_MAX, 0.0, 0.0};
    if (lane < n_ranks()) mine = segment_of(shared, lane);
    Segment whole = mine;
#pragma unroll
    for (int step = MOST_RANKS / 2; step; step /= 2)
        join_largest(&whole.largest, &whole.token, &whole.first_bad, step);
    double weight = 0.0, sum = 0.0;
    if (mine.largest != -INFINITY) {
        sum = mine.sum * (double)expf(mine.largest - whole.largest);
        weight = weight_in_row(mine, whole.largest, temperature);
    }
    double up_to = weight;
#pragma unroll
    for (int step = 1; step < MOST_RANKS; step *= 2) {
        double other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
        if (lane >= step) up_to += other;
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    }
    double target = uniform * __shfl_sync(0xFFFFFFFFu, up_to, MOST_RANKS - 1);
    unsigned enough = __ballot_sync(0xFFFFFFFFu, weight > 0.0 && up_to > target);
    unsigned any = __ballot_sync(0xFFFFFFFFu, weight > 0.0);
    int chosen = enough ? __ffs((int)enough) - 1 : any ? 31 - __clz((int)any) : 0;
    if (lane == chosen) {
        shared->rank = chosen;
        shared->first = chosen * per;
        shared->end = (chosen + 1) * per < n ? (chosen + 1) * per : n;
        shared->target = target - (up_to - weight);
    }
    whole.sum = sum;
    if (lane == 0) shared->whole = whole;
}

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

DEVICE void draw(const CutRow &row, const SampleSettings &settings, bool is_cut, double uniform,
                 SampleShared *shared, CutShared *cut_shared) {
    Key cut = 0;
    if (is_cut) {
        cut = cut_row(row, settings, cut_shared);
        __syncthreads();
        if (threadIdx.x == 0) shared->first = 0, shared->end = row.n;
        __syncthreads();
        narrow(row, cut, uniform, shared);
    }
    while (shared->end - shared->first > WARP) narrow(row, cut, -1.0, shared);
    count_out(row, cut, shared);
}

/* By one thread. */
DEVICE void hand_over(const SampleCall &c, int b, SampleRow row, const Segment &whole, int token) {
    const float *logits = c.logits + b * c.stride;
    SamplePick pick = {token, 0.0f};
    unsigned place = row.n_picks++ % c.n_picks;
    if (whole.first_bad != INT32_MAX) {
        pick.token = -1 - whole.first_bad;
        pick.log_probability = logits[whole.first_bad];
        row.is_drawing = 0;
    } else {
        c.tokens[b] = token;
        c.start[b]++;
        row.position++;
        pick.log_probability = logits[token] - whole.largest - logf((float)whole.sum);
    }
    c.rows[b] = row;
    c.picks[(int64_t)place * c.n_rows + b] = pick;
}

DEVICE int least_of(int a, int b) {
    return a < b ? a : b;
}

static __global__ void __launch_bounds__(CUT_THREADS, 1) sample_kernel(const __grid_constant__ SampleCall c) {
    __shared__ SampleShared shared;
    __shared__ CutShared cut_shared;
    SampleSettings settings = *c.settings; /* the host's: no kernel writes them */
    let_successor_start();
    wait_for_predecessor();
    int b = (int)blockIdx.y, rank = (int)blockIdx.x;
    SampleRow row = c.rows[b];
    const float *logits = c.logits + b * c.stride;
    int n = (int)(settings.n_vocabulary < c.stride ? settings.n_vocabulary : c.stride);
    int per = (n + n_ranks() - 1) / n_ranks(), first = least_of(rank * per, n),
        end = least_of(first + per, n);
    Segment segment;
    find_largest(logits, first, end, &shared, &segment);
    if (!row.is_drawing) return; /* as all blocks of the row do */
    sum_segment(logits, first, end, settings.temperature, &shared, &segment);
    if (threadIdx.x == 0) shared.segment = segment;
    arrive();
    RandomBlock block = random_block(random_key(settings.seed, RANDOM_SAMPLE, 0), row.sample, row.position);
    double uniform = (double)(((uint64_t)block.word[0] << 32 | block.word[1]) >> 11) * 0x1p-53;
    wait_for_others();
    if (threadIdx.x < WARP) join_segments(per, n, settings.temperature, uniform, &shared);
    __syncthreads();
    arrive(); /* the others' segments are not needed any more */
    Segment whole = shared.whole;
    int token = whole.token;
    bool is_drawn = settings.temperature > 0.0 && whole.first_bad == INT32_MAX;
    bool is_cut = (settings.top_k > 0 && settings.top_k < n) || settings.top_p < 1.0;
    if (rank == (is_drawn && !is_cut ? shared.rank : 0)) {
        if (is_drawn) {
            CutRow cut_row = {logits, n, whole.largest, settings.temperature};
            draw(cut_row, settings, is_cut, uniform, &shared, &cut_shared);
            token = shared.token_found; /* of the first warp, whose thread 0 goes on */
        }
        if (threadIdx.x == 0) hand_over(c, b, row, whole, token);
    }
    wait_for_others();
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
