/* route: which experts a token goes to, and how much of each.
 *
 * Floor: the logits read once and what is chosen written once over the copy bandwidth: 4·E + 8·S bytes a
 * token, which for 8 experts is less than a launch. A warp has a token (route_token.cuh).
 *
 * Two things are not a token's own. With a capacity, a block has a group: its warps have runs of the wishes
 * in the order in which these are granted, first wishes before second ones, and each learns from the counts
 * of the others how many of an expert come before its own (expert_places.cuh). With expert-choice, a block
 * has an expert and a group: it finds the least probability that it takes, digit by digit, and gives what is
 * left to the first tokens that have just that. */
#include "backend/cuda/experts/expert_places.cuh"
#include "backend/cuda/experts/route_token.cuh"

template <int EACH>
static __global__ void __launch_bounds__(ROUTE_THREADS)
    route_kernel(const RouteCall c, float *gates, int32_t *choice) {
    int64_t n = token_of_warp();
    if (n >= c.n_tokens) return;
    bool is_there = n < n_there(c);
    Wishes w = {{-1, -1}, {0.0f, 0.0f}};
    if (is_there) w = wishes_of<EACH>(c, n);
#pragma unroll
    for (int j = 0; j < WISHES; j++) {
        int s = lane_of_warp() + j * WARP;
        if (s >= c.n_slots) break;
        bool is_kept = is_there && !is_given_up(c, n, s, w.gate[j]);
        choice[n * c.n_slots + s] = is_kept ? w.wish[j] : -1;
        gates[n * c.n_slots + s] = is_kept ? w.gate[j] : 0.0f;
    }
}

/* ---- capacity ---- */

extern __shared__ int32_t fill_shared[];

/* Wish i of a group, in the order in which they are granted: where it is. */
DEVICE int64_t wish_place(const RouteCall &c, int64_t i) {
    return ((int64_t)blockIdx.x * c.T + i % c.T) * c.n_slots + i / c.T;
}

static __global__ void __launch_bounds__(PLACE_THREADS)
    fill_kernel(const RouteCall c, float *gates, int32_t *choice) {
    int lane = lane_of_warp(), warp = (int)threadIdx.x / WARP, E = c.a.n_experts;
    int32_t *next = fill_shared + warp * E; /* of (PLACE_WARPS, E) */
    int64_t n = c.T * c.n_slots, each = (n + PLACE_THREADS - 1) / PLACE_THREADS * WARP, begin = warp * each,
            end = begin + each < n ? begin + each : n;
    for (int e = lane; e < E; e += WARP) next[e] = 0;
    __syncwarp();
    for (int64_t i = begin + lane; i < end; i += WARP) {
        int expert = choice[wish_place(c, i)];
        if (expert >= 0) atomicAdd(&next[expert], 1);
    }
    start_places(fill_shared, E, [](int) { return 0; });
    for (int64_t i = begin; i < end; i += WARP) {
        int64_t at = i + lane < end ? wish_place(c, i + lane) : -1;
        int place = take_place(next, at >= 0 ? choice[at] : -1);
        if (place < c.a.capacity) continue;
        choice[at] = -1;
        gates[at] = 0.0f;
    }
}

/* ---- expert-choice ---- */

/* p of all experts, which tokens take it as it is, is in `gates`. */
template <int EACH>
static __global__ void __launch_bounds__(ROUTE_THREADS)
    probability_kernel(const RouteCall c, float *gates, int32_t *choice) {
    int64_t n = token_of_warp();
    int E = c.a.n_experts;
    if (n >= c.n_tokens) return;
    bool is_there = n < n_there(c);
    float x[EACH], p[EACH];
    load_experts<EACH>(x, c.logits + n * E, E, -INFINITY);
    softmax<EACH>(x, p);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = lane_of_warp() + i * WARP;
        if (e >= E) break;
        gates[n * E + e] = is_there ? p[i] : 0.0f;
        choice[n * E + e] = -1;
    }
}

enum { TAKE_THREADS = 256, DIGIT = 256 };

/* The bits of a probability: they order as it does. One that is no number is the least. */
DEVICE int bits_of(float p) {
    return p >= 0.0f ? __float_as_int(p) : -1;
}

typedef struct {
    int counts[DIGIT];
    int border, n_more; /* digits that are known; how many have greater ones */
    int n_equal[TAKE_THREADS / WARP];
} TakeShared;

/* The digit of the least one that is taken, of those whose digits before it are known. By one warp: lane L
 * has 8 of the counts, the greatest digits first. */
DEVICE void find_digit(TakeShared &shared, int room, int shift) {
    int lane = lane_of_warp(), own = 0, before = shared.n_more;
    for (int k = 0; k < DIGIT / WARP; k++) own += shared.counts[DIGIT - 1 - lane * (DIGIT / WARP) - k];
    int sum = own;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        if (lane >= step) sum += other;
    }
    unsigned reached = __ballot_sync(0xFFFFFFFFu, before + sum >= room);
    int last = reached ? __ffs((int)reached) - 1 : WARP - 1; /* too few: the least digit of all */
    if (lane != last) return;
    int n = before + sum - own, digit = DIGIT - 1 - lane * (DIGIT / WARP), least = digit - DIGIT / WARP + 1;
    while (digit > least && n + shared.counts[digit] < room) n += shared.counts[digit--];
    shared.border |= digit << shift;
    shared.n_more = n;
}

/* Block (group, expert). */
static __global__ void __launch_bounds__(TAKE_THREADS)
    take_kernel(const RouteCall c, float *gates, int32_t *choice) {
    __shared__ TakeShared shared;
    int64_t E = c.a.n_experts, group = blockIdx.x / E, first = group * c.T;
    int expert = (int)(blockIdx.x % E), warp = (int)threadIdx.x / WARP, lane = lane_of_warp();
    int room = (int)(c.a.capacity < c.T ? c.a.capacity : c.T);
    if (first >= n_there(c)) return;
    if (threadIdx.x == 0) shared.border = 0, shared.n_more = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        shared.counts[threadIdx.x] = 0;
        __syncthreads();
        int known = shared.border;
        for (int64_t t = threadIdx.x; t < c.T; t += TAKE_THREADS) {
            int bits = bits_of(gates[(first + t) * E + expert]);
            bool is_alike = bits >= 0 && (shift == 24 || bits >> (shift + 8) == known >> (shift + 8));
            if (is_alike) atomicAdd(&shared.counts[bits >> shift & (DIGIT - 1)], 1);
        }
        __syncthreads();
        if (warp == 0) find_digit(shared, room, shift);
        __syncthreads();
    }
    int border = shared.border, left = room - shared.n_more;
    for (int64_t base = 0; base < c.T; base += TAKE_THREADS) {
        int64_t t = base + threadIdx.x, at = (first + t) * E + expert;
        int bits = t < c.T ? bits_of(gates[at]) : -1;
        unsigned equal = __ballot_sync(0xFFFFFFFFu, bits == border);
        if (lane == 0) shared.n_equal[warp] = __popc(equal);
        __syncthreads();
        int before = __popc(equal & ((1u << lane) - 1)), all = 0;
        for (int w = 0; w < TAKE_THREADS / WARP; w++) {
            if (w < warp) before += shared.n_equal[w];
            all += shared.n_equal[w];
        }
        bool is_taken = bits > border || (bits == border && before < left);
        if (t < c.T) {
            choice[at] = is_taken ? expert : -1;
            if (!is_taken) gates[at] = 0.0f;
        }
        left -= all < left ? all : left;
        __syncthreads();
    }
}
static_assert((int)TAKE_THREADS == (int)DIGIT, "a thread a count");

/* ---- on the host's side ---- */

extern "C" Status cuda_route(const KernelCall *call, Error *error) {
    RouteCall c = route_call(call, 0, 3);
    cudaStream_t stream = cuda_context(call)->stream;
    float *gates = (float *)call->out[0];
    int32_t *choice = (int32_t *)call->out[1];
    unsigned blocks = blocks_for(c.n_tokens, ROUTE_WARPS), n_groups = (unsigned)c.a.n_groups;
    if (!blocks) return STATUS_OK;
    if (c.a.kind == ROUTER_EXPERT_CHOICE) {
        FOR_EXPERTS(c.a.n_experts, EACH,
                    probability_kernel<EACH><<<blocks, ROUTE_THREADS, 0, stream>>>(c, gates, choice));
        take_kernel<<<n_groups *(unsigned)c.a.n_experts, TAKE_THREADS, 0, stream>>>(c, gates, choice);
        return cuda_launched("route", error);
    }
    FOR_EXPERTS(c.a.n_experts, EACH,
                route_kernel<EACH><<<blocks, ROUTE_THREADS, 0, stream>>>(c, gates, choice));
    if (c.a.capacity) {
        size_t bytes = (size_t)(PLACE_WARPS * c.a.n_experts) * sizeof(int32_t);
        fill_kernel<<<n_groups, PLACE_THREADS, bytes, stream>>>(c, gates, choice);
    }
    return cuda_launched("route", error);
}
