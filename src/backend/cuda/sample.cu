/* sample: the next token of every row of logits (ops/sample.h).
 *
 * Floor: 4·V bytes a row, which the head has just left in the second-level cache; in practice the launch, and passes of one
 * multiprocessor over 200 kB where the distribution is cut. A row's logits are dealt out to many thread blocks, each
 * of which leaves its greatest logit and its sums of exponentials; the block that comes last has all it needs to take the
 * likeliest token, or to say in which segment the drawn one lies, and then looks for it there: sums of 16 parts say which
 * part it is in, again and again, until a warp can count it out.
 *
 * The weights are those of the host's sampler: exponentials in f32, relative to the row's largest logit. */
#include "backend/cuda/sample_cut.cuh"

extern "C" {
#include "ops/sample.h"
}

enum { MOST_EACH = 4 }; /* segments of a row that a thread joins: 128 in all */

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
    Segment *segments;      /* (B,n_segments) */
    unsigned *tickets;      /* (B) */
    int64_t stride;         /* logits of a row */
    int n_rows, n_segments; /* of a row: a multiple of a warp's threads */
    unsigned n_picks;       /* places */
} SampleCall;

/* ---- a segment ---- */

typedef struct {
    float largest[CUT_WARPS];
    int token[CUT_WARPS], bad[CUT_WARPS];
    double sum[CUT_WARPS], weight[CUT_WARPS];
    Segment whole;
    double target;
    int first, end, token_found;
    bool is_last;
} SampleShared;

DEVICE bool is_better(float a, int at, float b, int bt) {
    return a > b || (a == b && at < bt);
}

/* The segment's likeliest token and its first one that is not finite, in all threads. */
DEVICE void find_largest(const float *logits, int first, int end, SampleShared *shared, Segment *segment) {
    float largest = -INFINITY;
    int token = INT32_MAX, bad = INT32_MAX;
    for (int i = first + (int)threadIdx.x; i < end; i += CUT_THREADS) {
        float logit = logits[i];
        if (!isfinite(logit)) bad = i < bad ? i : bad;
        if (is_better(logit, i, largest, token)) largest = logit, token = i;
    }
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, largest, step);
        int other_token = __shfl_xor_sync(0xFFFFFFFFu, token, step);
        int other_bad = __shfl_xor_sync(0xFFFFFFFFu, bad, step);
        bad = bad < other_bad ? bad : other_bad;
        if (is_better(other, other_token, largest, token)) largest = other, token = other_token;
    }
    int warp = (int)threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0)
        shared->largest[warp] = largest, shared->token[warp] = token, shared->bad[warp] = bad;
    __syncthreads();
    for (int w = 0; w < CUT_WARPS; w++) {
        bad = bad < shared->bad[w] ? bad : shared->bad[w];
        if (is_better(shared->largest[w], shared->token[w], largest, token))
            largest = shared->largest[w], token = shared->token[w];
    }
    segment->largest = largest;
    segment->token = token;
    segment->first_bad = bad;
}

DEVICE double warp_sum(double x) {
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

DEVICE void sum_segment(const float *logits, int first, int end, double temperature, SampleShared *shared,
                        Segment *segment) {
    CutRow row = {logits, 0, segment->largest, temperature};
    double sum = 0.0, weight = 0.0;
    for (int i = first + (int)threadIdx.x; i < end; i += CUT_THREADS) {
        sum += (double)expf(logits[i] - segment->largest);
        if (temperature > 0.0) weight += (double)weight_of(row, logits[i]);
    }
    sum = warp_sum(sum), weight = warp_sum(weight);
    int warp = (int)threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0) shared->sum[warp] = sum, shared->weight[warp] = weight;
    __syncthreads();
    sum = weight = 0.0;
    for (int w = 0; w < CUT_WARPS; w++) sum += shared->sum[w], weight += shared->weight[w];
    segment->sum = sum;
    segment->weight = weight;
}

/* ---- the row, in the block that comes last ---- */

/* A segment as part of the row: what it weighs relative to the row's largest logit. */
DEVICE double weight_in_row(const Segment &segment, float largest, double temperature) {
    if (segment.largest == -INFINITY || temperature == 0.0) return 0.0;
    return segment.weight * (double)expf((float)((double)(segment.largest - largest) / temperature));
}

/* All segments as one, and the segment that `uniform` falls into: by the first warp, `each` segments a thread. */
DEVICE void join_segments(const Segment *segments, int each, int per, int n, double temperature,
                          double uniform, SampleShared *shared) {
    int lane = (int)threadIdx.x, token = INT32_MAX, bad = INT32_MAX;
    float largest = -INFINITY;
    Segment mine[MOST_EACH];
#pragma unroll
    for (int i = 0; i < MOST_EACH; i++) {
        mine[i].largest = -INFINITY;
        if (i >= each) continue;
        mine[i] = segments[lane * each + i];
        bad = bad < mine[i].first_bad ? bad : mine[i].first_bad;
        if (is_better(mine[i].largest, mine[i].token, largest, token))
            largest = mine[i].largest, token = mine[i].token;
    }
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, largest, step);
        int other_token = __shfl_xor_sync(0xFFFFFFFFu, token, step);
        int other_bad = __shfl_xor_sync(0xFFFFFFFFu, bad, step);
        bad = bad < other_bad ? bad : other_bad;
        if (is_better(other, other_token, largest, token)) largest = other, token = other_token;
    }
    double sum = 0.0, weight = 0.0;
#pragma unroll
    for (int i = 0; i < MOST_EACH; i++) {
        if (mine[i].largest == -INFINITY) continue;
        sum += mine[i].sum * (double)expf(mine[i].largest - largest);
        weight += weight_in_row(mine[i], largest, temperature);
    }
    double up_to = weight;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        double other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
        if (lane >= step) up_to += other;
    }
    double target = uniform * __shfl_sync(0xFFFFFFFFu, up_to, WARP - 1);
    unsigned enough = __ballot_sync(0xFFFFFFFFu, weight > 0.0 && up_to > target);
    unsigned any = __ballot_sync(0xFFFFFFFFu, weight > 0.0);
    int chosen = enough ? __ffs((int)enough) - 1 : any ? 31 - __clz((int)any) : 0;
    sum = warp_sum(sum);
    if (lane == chosen) {
        int last = 0;
        double before = up_to - weight, sum_here = before;
#pragma unroll
        for (int i = 0; i < MOST_EACH; i++) {
            double here = weight_in_row(mine[i], largest, temperature);
            if (here <= 0.0 || (last && sum_here > target)) continue;
            before = sum_here, last = i + 1;
            sum_here += here;
        }
        int segment = lane * each + (last ? last - 1 : 0);
        shared->first = segment * per;
        shared->end = (segment + 1) * per < n ? (segment + 1) * per : n;
        shared->target = target - before;
    }
    if (lane == 0) {
        Segment whole = {largest, token, bad, sum, 0.0};
        shared->whole = whole;
    }
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
    if (threadIdx.x == 0) {
        double total = 0.0, sum = 0.0;
        int last = 0;
        for (int w = 0; w < CUT_WARPS; w++) total += shared->weight[w];
        if (uniform >= 0.0) shared->target = uniform * total;
        double before = 0.0;
        for (int w = 0; w < CUT_WARPS; w++) {
            if (shared->weight[w] <= 0.0) continue;
            last = w, before = sum; /* the last possible one, should a sum have been rounded */
            sum += shared->weight[w];
            if (sum > shared->target) break;
        }
        shared->target -= before;
        shared->first = first + last * each;
        shared->end = first + (last + 1) * each < end ? first + (last + 1) * each : end;
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

DEVICE void draw(const CutRow &row, const SampleSettings &settings, double uniform, SampleShared *shared,
                 CutShared *cut_shared) {
    Key cut = 0;
    if ((settings.top_k > 0 && settings.top_k < row.n) || settings.top_p < 1.0) {
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
DEVICE void hand_over(const SampleCall &c, int b, const Segment &whole, int token, float logit) {
    SampleRow *row = &c.rows[b];
    SamplePick pick = {token, logit - whole.largest - logf((float)whole.sum)};
    if (whole.first_bad != INT32_MAX) {
        pick.token = -1 - whole.first_bad;
        pick.log_probability = c.logits[b * c.stride + whole.first_bad];
        row->is_drawing = 0;
    } else {
        c.tokens[b] = token;
        c.start[b]++;
        row->position++;
    }
    c.picks[(int64_t)(row->n_picks++ % c.n_picks) * c.n_rows + b] = pick;
}

DEVICE int least_of(int a, int b) {
    return a < b ? a : b;
}

static __global__ void __launch_bounds__(CUT_THREADS, 1) sample_kernel(const __grid_constant__ SampleCall c) {
    __shared__ SampleShared shared;
    __shared__ CutShared cut_shared;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    int b = (int)blockIdx.y;
    SampleRow row = c.rows[b];
    if (!row.is_drawing) return; /* as all blocks of the row do */
    SampleSettings settings = *c.settings;
    const float *logits = c.logits + b * c.stride;
    int n = (int)(settings.n_vocabulary < c.stride ? settings.n_vocabulary : c.stride);
    int per = (n + c.n_segments - 1) / c.n_segments, first = least_of((int)blockIdx.x * per, n);
    int end = first + per < n ? first + per : n;
    Segment segment;
    find_largest(logits, first, end, &shared, &segment);
    sum_segment(logits, first, end, settings.temperature, &shared, &segment);
    if (threadIdx.x == 0) {
        c.segments[b * c.n_segments + blockIdx.x] = segment;
        __threadfence();
        shared.is_last = atomicAdd(&c.tickets[b], 1u) == (unsigned)c.n_segments - 1;
        if (shared.is_last) c.tickets[b] = 0;
        __threadfence();
    }
    __syncthreads();
    if (!shared.is_last) return;
    RandomBlock block = random_block(random_key(settings.seed, RANDOM_SAMPLE, 0), row.sample, row.position);
    double uniform = (double)(((uint64_t)block.word[0] << 32 | block.word[1]) >> 11) * 0x1p-53;
    if (threadIdx.x < WARP)
        join_segments(c.segments + b * c.n_segments, c.n_segments / WARP, per, n, settings.temperature,
                      uniform, &shared);
    __syncthreads();
    Segment whole = shared.whole;
    int token = whole.token;
    if (settings.temperature > 0.0 && whole.first_bad == INT32_MAX) {
        CutRow cut_row = {logits, n, whole.largest, settings.temperature};
        draw(cut_row, settings, uniform, &shared, &cut_shared);
        token = shared.token_found; /* of the first warp, whose thread 0 goes on */
    }
    if (threadIdx.x == 0) hand_over(c, b, whole, token, logits[token]);
}

/* ---- on the host's side ---- */

/* A thread block a multiprocessor, about. */
static int segments_of(int64_t n_rows) {
    return n_rows <= 1 ? MOST_EACH * WARP : n_rows <= 2 ? 2 * WARP : WARP;
}

extern "C" size_t cuda_sample_scratch(CudaContext *context, const Node *node) {
    (void)context;
    int64_t n_rows = shape_rows(node->input[0]->shape);
    return sizeof(Segment) * (size_t)(segments_of(n_rows) * n_rows);
}

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
    c.segments = (Segment *)call->scratch;
    c.tickets = context->tickets;
    c.stride = shape_columns(logits->shape);
    c.n_rows = (int)shape_rows(logits->shape);
    c.n_segments = segments_of(c.n_rows);
    c.n_picks = (unsigned)call->node->output[3]->shape.dim[0];
    if (c.n_rows > N_TICKETS || c.stride > INT32_MAX) return cuda_unsupported(call, logits, error);
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)c.n_segments, (unsigned)c.n_rows);
    config.blockDim = dim3(CUT_THREADS);
    config.stream = context->stream;
    config.attrs = &early;
    config.numAttrs = context->properties.major >= 9 ? 1 : 0;
    return cuda_check(cudaLaunchKernelEx(&config, sample_kernel, c), "sample", error);
}
