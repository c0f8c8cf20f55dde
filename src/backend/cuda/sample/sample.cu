/* sample: the next token of every row of logits (ops/sample.h).
 *
 * Floor: 4·V bytes a row, which the head has just left in the L2 cache; in practice the launch, and passes of
 * one multiprocessor over 200 kB where the distribution is cut. A row's logits are dealt out to the warps of
 * a thread-block cluster, which keep theirs in registers. Each has its greatest logit and its sums of
 * exponentials, and writes them into the shared memory of all blocks; when all have, every warp knows the
 * likeliest token, or whose the drawn one is. That one counts it out. A GPU without clusters has one thread
 * block a row.
 *
 * The weights are those of the host's sampler: exponentials in f32, relative to the row's largest logit. */
#include "backend/cuda/runtime/pdl.cuh"
#include "backend/cuda/sample/sample_parts.cuh"

extern "C" {
#include "ops/sample.h"
}

enum { MOST_ROWS = 65535 };

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

typedef struct {
    SampleParts parts;
    double weight[CUT_WARPS], target; /* of a search in a cut distribution */
    int first, end;
    union {
        float weights[CUT_WARPS][SPAN + SPAN / LANE_TOKENS]; /* of a warp's tokens: see place_of */
        CutShared cut;
    };
} SampleShared;

/* ---- a distribution that is cut, by one block ---- */

/* What the tokens first .. end - 1 weigh that are kept, over the threads of a warp. */
DEVICE double warp_weight(const CutRow &row, Key cut, int first, int end) {
    double sum = 0.0;
    for (int i = first + (int)threadIdx.x % WARP; i < end; i += WARP) {
        if (key_of(row.logits[i], i) >= cut) sum += (double)weight_of(row, row.logits[i]);
    }
    return warp_sum(sum);
}

/* The range becomes that of its 16 parts in which the target is reached. With `uniform`, the target is yet to
 * be made. */
DEVICE void narrow(const CutRow &row, Key cut, double uniform, SampleShared *shared) {
    int first = shared->first, end = shared->end, each = (end - first + CUT_WARPS - 1) / CUT_WARPS;
    int warp = (int)threadIdx.x / WARP, begin = first + warp * each;
    int part_end = begin + each < end ? begin + each : end;
    double weight = warp_weight(row, cut, begin, part_end);
    if (threadIdx.x % WARP == 0) shared->weight[warp] = weight;
    __syncthreads();
    if (warp == 0) {
        int lane = lane_of();
        double here = lane < CUT_WARPS ? shared->weight[lane] : 0.0, up_to = sum_up_to(here);
        double total = __shfl_sync(0xFFFFFFFFu, up_to, WARP - 1);
        double target = uniform >= 0.0 ? uniform * total : shared->target;
        int chosen = first_with(here > 0.0 && up_to > target, here > 0.0);
        __syncwarp(); /* the old target has been read */
        if (lane == chosen) {
            shared->target = target - (up_to - here);
            shared->first = first + chosen * each;
            shared->end = first + (chosen + 1) * each < end ? first + (chosen + 1) * each : end;
        }
    }
    __syncthreads();
}

/* The token in a range of at most a warp's threads. */
DEVICE int count_out(const CutRow &row, Key cut, const SampleShared *shared) {
    int lane = lane_of(), token = shared->first + lane;
    bool is_kept = token < shared->end && key_of(row.logits[token], token) >= cut;
    double weight = is_kept ? (double)weight_of(row, row.logits[token]) : 0.0, up_to = sum_up_to(weight);
    int chosen = first_with(weight > 0.0 && up_to > shared->target, weight > 0.0);
    return shared->first + chosen;
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

/* The token, for the first warp alone. */
static __device__ __noinline__ int draw_cut(const CutRow &row, const SampleSettings &settings, double uniform,
                                            SampleShared *shared) {
    Key cut = cut_row(row, settings, &shared->cut);
    __syncthreads();
    if (threadIdx.x == 0) shared->first = 0, shared->end = row.n;
    __syncthreads();
    narrow(row, cut, uniform, shared);
    while (shared->end - shared->first > WARP) narrow(row, cut, -1.0, shared);
    return threadIdx.x < WARP ? count_out(row, cut, shared) : -1;
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
    float sum = sum_of_row(shared->parts, largest, row.largest); /* beside what follows, not after it */
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
        token = draw_cut(row, settings, uniform, shared);
    } else {
        double target;
        number = find_part(shared->parts, largest, row, uniform, &target);
        if (number == part.number) token = count_part(mine, part, target, weights);
    }
    if (number != part.number) return;
    if (token < 0) token = find_token(row.logits, part.begin, part.end, is_any_bad ? NAN : row.largest);
    bool is_held = part.is_held && token >= part.begin && token < part.end;
    float logit = is_held ? held_logit(part, token - part.begin) : row.logits[token];
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
    bool has_clusters = context->traits.major >= 9 && context->traits.has_code_90;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = MOST_RANKS;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(has_clusters ? MOST_RANKS : 1, (unsigned)c.n_rows);
    config.blockDim = dim3(CUT_THREADS);
    config.stream = context->stream;
    config.attrs = attributes;
    config.numAttrs = has_clusters ? 1 + pdl_attribute(&attributes[1], context->stream) : 0;
    return cuda_check(cudaLaunchKernelEx(&config, sample_kernel, c), "sample", error);
}
