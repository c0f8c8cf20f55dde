/* What a router does with one token, by a warp: its wishes, and the gate of each. The formulas are
 * experts.h's.
 *
 * Lane L has experts L, L + 32, ...: EACH of them at most, all in registers. Of a token's wishes it has
 * number L and number L + 32. */
#ifndef PGPT_BACKEND_CUDA_EXPERTS_ROUTE_TOKEN_CUH
#define PGPT_BACKEND_CUDA_EXPERTS_ROUTE_TOKEN_CUH

#include "backend/cuda/runtime/device.cuh"

enum { ROUTE_THREADS = 256, ROUTE_WARPS = ROUTE_THREADS / WARP, WISHES = 2 };
static_assert((int)WISHES * (int)WARP >= (int)ROUTE_MAX_CHOSEN, "all of a token's");

typedef struct {
    RouteAttributes a;
    const float *logits, *noise, *bias; /* (N,E), [(N,E)], [(E)] */
    const int32_t *random;              /* or NULL */
    int64_t n_tokens, T;                /* of a group */
    int n_slots;
} RouteCall;

DEVICE int lane_of_warp(void) {
    return (int)threadIdx.x % WARP;
}
DEVICE int64_t token_of_warp(void) {
    return (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP;
}

/* Tokens of the groups that are there come first. */
DEVICE int64_t n_there(const RouteCall &c) {
    int64_t n = c.a.n_groups;
    if (c.random && c.random[RANDOM_N_SEQUENCES] < n) n = c.random[RANDOM_N_SEQUENCES];
    return n * c.T;
}

DEVICE bool draws(const RouteCall &c) {
    return c.a.is_training && c.random;
}
DEVICE RandomBlock block_of(const RouteCall &c, int64_t n, int expert) {
    return route_block(c.random, c.a.site, n / c.T, n % c.T, c.a.n_experts, expert);
}

DEVICE float gate_sigmoid(float x) {
    float e = expf(-fabsf(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}
DEVICE float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* How gates follow from what they weigh: by a softmax over the wishes, over all experts, or by sigmoids. */
enum GateRule { OVER_WISHES, OVER_ALL, BY_SIGMOID };

DEVICE GateRule gate_rule(const RouteAttributes &a) {
    if (a.kind == ROUTER_SWITCH || a.kind == ROUTER_EXPERT_CHOICE) return OVER_ALL;
    if (a.kind == ROUTER_GSHARD || a.kind == ROUTER_NOISY_TOPK) return OVER_WISHES;
    return a.gate == GATE_SIGMOID ? BY_SIGMOID : a.n_chosen > 1 ? OVER_WISHES : OVER_ALL;
}

/* ---- all experts of a token ---- */

template <int EACH> DEVICE void load_experts(float x[EACH], const float *row, int n_experts, float filler) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = lane_of_warp() + i * WARP;
        x[i] = e < n_experts ? row[e] : filler;
    }
}

/* p = softmax of x, of which fillers are -inf; returns log Σ e^x. */
template <int EACH> DEVICE float softmax(const float x[EACH], float p[EACH]) {
    float maximum = x[0], sum = 0.0f;
#pragma unroll
    for (int i = 1; i < EACH; i++) maximum = fmaxf(maximum, x[i]);
    maximum = warp_max(maximum);
#pragma unroll
    for (int i = 0; i < EACH; i++) sum += p[i] = expf(x[i] - maximum);
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < EACH; i++) p[i] /= sum;
    return maximum + logf(sum);
}

/* ---- wishes ---- */

/* Of this lane: number lane and lane + 32. Those that are not there have wish -1 and gate 0. */
typedef struct {
    int wish[WISHES];
    float gate[WISHES];
} Wishes;

/* What a token's experts are chosen by, in place of its logits. */
template <int EACH> DEVICE void make_scores(const RouteCall &c, int64_t n, float x[EACH]) {
    int E = c.a.n_experts;
    if (c.a.kind == ROUTER_NOISY_TOPK && draws(c) && c.noise) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int e = lane_of_warp() + i * WARP;
            if (e < E) x[i] += route_normal(block_of(c, n, e)) * softplus(c.noise[n * E + e]);
        }
    } else if (c.a.kind == ROUTER_BALANCE_FREE) {
        float p[EACH];
        softmax<EACH>(x, p);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int e = lane_of_warp() + i * WARP;
            if (e < E) x[i] = (c.a.gate == GATE_SIGMOID ? gate_sigmoid(x[i]) : p[i]) + c.bias[e];
        }
    }
}

/* The greatest over the warp, of equal ones the one with the lowest index. */
DEVICE void warp_greatest(float &value, int &index) {
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
        int other_index = __shfl_xor_sync(0xFFFFFFFFu, index, step);
        if (other > value || (other == value && other_index < index)) value = other, index = other_index;
    }
}

/* The n_wishes largest scores: wish, and the score in the place of its gate. A score that is no number is the
 * least. */
template <int EACH> DEVICE Wishes largest(const float score[EACH], int n_experts, int n_wishes) {
    const int none = INT32_MAX;
    Wishes w = {{-1, -1}, {0.0f, 0.0f}};
    unsigned taken = 0;
    for (int s = 0; s < n_wishes; s++) {
        float best = -INFINITY;
        int index = none;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int e = lane_of_warp() + i * WARP;
            if (e >= n_experts || (taken >> i & 1)) continue;
            if (index == none || score[i] > best)
                best = score[i] == score[i] ? score[i] : -INFINITY, index = e;
        }
        warp_greatest(best, index);
        if (index % WARP == lane_of_warp()) taken |= 1u << index / WARP;
        if (s % WARP != lane_of_warp()) continue;
        if (s < WARP) w.wish[0] = index, w.gate[0] = best;
        else w.wish[1] = index, w.gate[1] = best;
    }
    return w;
}

template <int EACH> DEVICE Wishes wishes_alone(const RouteCall &c, int64_t n) {
    float x[EACH];
    load_experts<EACH>(x, c.logits + n * c.a.n_experts, c.a.n_experts, -INFINITY);
    make_scores<EACH>(c, n, x);
    return largest<EACH>(x, c.a.n_experts, c.a.n_chosen);
}

/* The sum of what sigmoids of very negative numbers leave is no divisor. */
DEVICE float as_divisor(float sum) {
    return fmaxf(sum, 1e-20f);
}

/* p of the only wish, which lane 0 has. */
template <int EACH> DEVICE float probability_of_first(const RouteCall &c, int64_t n, const Wishes &w) {
    float x[EACH], p[EACH], own = 0.0f;
    int first = __shfl_sync(0xFFFFFFFFu, w.wish[0], 0);
    load_experts<EACH>(x, c.logits + n * c.a.n_experts, c.a.n_experts, -INFINITY);
    softmax<EACH>(x, p);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (lane_of_warp() + i * WARP == first) own = p[i];
    }
    return warp_sum(own);
}

template <int EACH> DEVICE Wishes wishes_of(const RouteCall &c, int64_t n) {
    const float *row = c.logits + n * c.a.n_experts;
    GateRule rule = gate_rule(c.a);
    Wishes w = wishes_alone<EACH>(c, n);
    if (rule == OVER_ALL) {
        w.gate[0] = probability_of_first<EACH>(c, n, w);
        return w;
    }
    float maximum = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int j = 0; j < WISHES; j++) {
        if (w.wish[j] >= 0 && c.a.kind != ROUTER_NOISY_TOPK) w.gate[j] = row[w.wish[j]];
        maximum = fmaxf(maximum, w.wish[j] >= 0 ? w.gate[j] : -INFINITY);
    }
    maximum = warp_max(maximum);
#pragma unroll
    for (int j = 0; j < WISHES; j++) {
        if (w.wish[j] < 0) continue;
        w.gate[j] = rule == BY_SIGMOID ? gate_sigmoid(w.gate[j]) : expf(w.gate[j] - maximum);
        sum += w.gate[j];
    }
    sum = as_divisor(warp_sum(sum));
    if (rule == BY_SIGMOID && c.a.n_chosen == 1) return w;
#pragma unroll
    for (int j = 0; j < WISHES; j++) w.gate[j] /= sum;
    return w;
}

/* GShard's second wish is given up by chance, more often where its gate is small. */
DEVICE bool is_given_up(const RouteCall &c, int64_t n, int s, float gate) {
    return c.a.kind == ROUTER_GSHARD && s == 1 && draws(c) && route_draw(block_of(c, n, 0)) >= 2.0f * gate;
}

/* ---- shares: wishes of a group's tokens for each expert ---- */

/* counts (n_groups,E), zeros before. Whole numbers: the same whoever comes first. */
template <int EACH>
static __global__ void __launch_bounds__(ROUTE_THREADS) shares_kernel(const RouteCall c, int32_t *counts) {
    int64_t n = token_of_warp();
    if (n >= n_there(c)) return;
    Wishes w = wishes_alone<EACH>(c, n);
#pragma unroll
    for (int j = 0; j < WISHES; j++) {
        if (w.wish[j] >= 0) atomicAdd(&counts[n / c.T * c.a.n_experts + w.wish[j]], 1);
    }
}

/* The shares of a token's group, with the same experts a lane. */
template <int EACH>
DEVICE void load_shares(float share[EACH], const RouteCall &c, int64_t n, const int32_t *counts) {
    int E = c.a.n_experts;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = lane_of_warp() + i * WARP;
        share[i] = 0.0f;
        if (e >= E) continue;
        share[i] = c.a.kind == ROUTER_EXPERT_CHOICE
                       ? 1.0f / (float)E
                       : (float)counts[n / c.T * E + e] / (float)(c.T * c.a.n_chosen);
    }
}

/* ---- on the host's side ---- */

static inline RouteCall route_call(const KernelCall *call, int first, int random) {
    RouteCall c = {};
    c.a = *(const RouteAttributes *)call->node->attributes;
    c.logits = (const float *)call->in[first];
    c.noise = (const float *)call->in[first + 1];
    c.bias = (const float *)call->in[first + 2];
    c.random = (const int32_t *)call->in[random];
    c.n_tokens = shape_rows(call->node->input[first]->shape);
    c.T = c.a.n_groups ? c.n_tokens / c.a.n_groups : 0;
    c.n_slots = route_n_slots(&c.a);
    return c;
}

/* Runs the statement with EACH being the experts of a lane. */
#define FOR_EXPERTS(n_experts, EACH, ...)                                                                    \
    do {                                                                                                     \
        if ((n_experts) <= WARP) {                                                                           \
            enum { EACH = 1 };                                                                               \
            __VA_ARGS__;                                                                                     \
        } else if ((n_experts) <= 8 * WARP) {                                                                \
            enum { EACH = 8 };                                                                               \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            enum { EACH = ROUTE_MAX_EXPERTS / WARP };                                                        \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

/* Makes the counts of the shares. */
static inline void count_shares(const RouteCall &c, int32_t *counts, cudaStream_t stream) {
    if (c.a.kind == ROUTER_EXPERT_CHOICE) return;
    cudaMemsetAsync(counts, 0, (size_t)(c.a.n_groups * c.a.n_experts) * sizeof(int32_t), stream);
    unsigned blocks = blocks_for(c.n_tokens, ROUTE_WARPS);
    FOR_EXPERTS(c.a.n_experts, EACH, shares_kernel<EACH><<<blocks, ROUTE_THREADS, 0, stream>>>(c, counts));
}

#endif
