/* The backward of route: dlogits and dnoise of a token, of its gates, and of the balance and the z loss.
 *
 * Floor: the logits read and their gradient written over the copy bandwidth. A warp has a token, and works
 * out its wishes again. The balance loss wants the shares of the token's group, which a kernel before it
 * counts. */
#include "backend/cuda/experts/route_token.cuh"

typedef struct {
    const float *dgates;   /* (N,S), or NULL */
    const int32_t *choice; /* (N,S) */
    const float *scale;    /* (1), or NULL */
    const int32_t *counts; /* (n_groups,E), or NULL without a balance loss */
    float *dlogits, *dnoise;
    bool add_logits, add_noise;
} RouteGradients;

/* Of gates that are softmax over all experts: in d, which holds the gradient of p first. */
template <int EACH>
DEVICE void all_backward(const RouteCall &c, const RouteGradients &g, int64_t n, float d[EACH]) {
    int E = c.a.n_experts;
    float x[EACH], p[EACH], dot = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = lane_of_warp() + i * WARP;
        if (e >= E) continue;
        int64_t at = c.n_slots == 1 ? n : n * E + e; /* of one slot, or expert-choice's */
        if (g.choice[at] == e) d[i] = g.dgates[at];
    }
    load_experts<EACH>(x, c.logits + n * E, E, -INFINITY);
    softmax<EACH>(x, p);
#pragma unroll
    for (int i = 0; i < EACH; i++) dot += p[i] * d[i];
    dot = warp_sum(dot);
#pragma unroll
    for (int i = 0; i < EACH; i++) d[i] = p[i] * (d[i] - dot);
}

/* What lane s%32 has of wish s goes to the lane that has its expert. */
template <int EACH>
DEVICE void hand_out(const RouteCall &c, const Wishes &w, const float value[WISHES], float d[EACH]) {
    for (int s = 0; s < c.a.n_chosen; s++) {
        int expert = __shfl_sync(0xFFFFFFFFu, s < WARP ? w.wish[0] : w.wish[1], s % WARP);
        float own = __shfl_sync(0xFFFFFFFFu, s < WARP ? value[0] : value[1], s % WARP);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (lane_of_warp() + i * WARP == expert) d[i] = own;
        }
    }
}

/* Of the gates of a token's wishes. Those that are constants, of choice -1, are still in the others' sum. */
template <int EACH>
DEVICE void wishes_backward(const RouteCall &c, const RouteGradients &g, int64_t n, float d[EACH],
                            float noise[EACH]) {
    GateRule rule = gate_rule(c.a);
    Wishes w = wishes_of<EACH>(c, n);
    float dgate[WISHES] = {0.0f, 0.0f}, logit[WISHES] = {0.0f, 0.0f}, of_logit[WISHES], of_noise[WISHES];
    float dot = 0.0f, sum = 0.0f;
#pragma unroll
    for (int j = 0; j < WISHES; j++) {
        int64_t at = n * c.n_slots + lane_of_warp() + j * WARP;
        if (w.wish[j] < 0) continue;
        if (g.choice[at] >= 0) dgate[j] = g.dgates[at];
        logit[j] = c.logits[n * c.a.n_experts + w.wish[j]];
        dot += w.gate[j] * dgate[j];
        sum += gate_sigmoid(logit[j]);
    }
    dot = warp_sum(dot), sum = as_divisor(warp_sum(sum));
#pragma unroll
    for (int j = 0; j < WISHES; j++) {
        float slope = gate_sigmoid(logit[j]) * gate_sigmoid(-logit[j]);
        of_logit[j] = rule != BY_SIGMOID  ? w.gate[j] * (dgate[j] - dot)
                      : c.a.n_chosen == 1 ? dgate[j] * slope
                                          : (dgate[j] - dot) / sum * slope;
        of_noise[j] = 0.0f;
        if (w.wish[j] >= 0 && g.dnoise && draws(c))
            of_noise[j] = of_logit[j] * route_normal(block_of(c, n, w.wish[j])) *
                          gate_sigmoid(c.noise[n * c.a.n_experts + w.wish[j]]);
    }
    hand_out<EACH>(c, w, of_logit, d);
    if (g.dnoise) hand_out<EACH>(c, w, of_noise, noise);
}

template <int EACH>
DEVICE void losses_backward(const RouteCall &c, const RouteGradients &g, int64_t n, float d[EACH]) {
    int E = c.a.n_experts;
    float scale = g.scale ? *g.scale : 1.0f, z = scale * c.a.z_scale;
    float balance = scale * c.a.balance_scale * (float)E / (float)c.T;
    if (balance == 0.0f && z == 0.0f) return;
    float x[EACH], p[EACH], share[EACH] = {}, mean = 0.0f;
    load_experts<EACH>(x, c.logits + n * E, E, -INFINITY);
    float log_sum = softmax<EACH>(x, p);
    if (balance != 0.0f) load_shares<EACH>(share, c, n, g.counts);
#pragma unroll
    for (int i = 0; i < EACH; i++) mean += share[i] * p[i];
    mean = warp_sum(mean);
#pragma unroll
    for (int i = 0; i < EACH; i++) d[i] += p[i] * (balance * (share[i] - mean) + 2.0f * z * log_sum);
}

template <int EACH> DEVICE void write_experts(float *row, int n_experts, const float d[EACH], bool add) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = lane_of_warp() + i * WARP;
        if (e < n_experts) write_element(row + e, d[i], add);
    }
}

template <int EACH>
static __global__ void __launch_bounds__(ROUTE_THREADS)
    backward_kernel(const RouteCall c, const RouteGradients g) {
    int64_t n = token_of_warp();
    int E = c.a.n_experts;
    if (n >= c.n_tokens) return;
    float d[EACH] = {}, noise[EACH] = {};
    if (n < n_there(c)) {
        if (g.dgates && gate_rule(c.a) == OVER_ALL) all_backward<EACH>(c, g, n, d);
        else if (g.dgates) wishes_backward<EACH>(c, g, n, d, noise);
        losses_backward<EACH>(c, g, n, d);
    }
    if (g.dlogits) write_experts<EACH>(g.dlogits + n * E, E, d, g.add_logits);
    if (g.dnoise) write_experts<EACH>(g.dnoise + n * E, E, noise, g.add_noise);
}

extern "C" Status cuda_route_backward(const KernelCall *call, Error *error) {
    RouteCall c = route_call(call, 1, 5);
    cudaStream_t stream = cuda_context(call)->stream;
    RouteGradients g = {(const float *)call->in[0],
                        (const int32_t *)call->in[4],
                        (const float *)call->in[6],
                        NULL,
                        (float *)call->out[0],
                        (float *)call->out[1],
                        call->add[0],
                        call->add[1]};
    unsigned blocks = blocks_for(c.n_tokens, ROUTE_WARPS);
    if (!blocks) return STATUS_OK;
    if (c.a.balance_scale != 0.0f) {
        count_shares(c, (int32_t *)call->scratch, stream);
        g.counts = (const int32_t *)call->scratch;
    }
    FOR_EXPERTS(c.a.n_experts, EACH, backward_kernel<EACH><<<blocks, ROUTE_THREADS, 0, stream>>>(c, g));
    return cuda_launched("route, backward", error);
}
