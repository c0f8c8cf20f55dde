/* Everything is f32, since a token's few numbers are; sums over tokens are in double. A token is looked at by
 * itself but for three things: room in an expert, an expert's own choice, and the shares of the balance
 * loss. */
#include "ops/experts/route_rules.h"

#include <string.h>

RouteInputs route_inputs(const RouteAttributes *attributes, int64_t n_tokens, const float *logits,
                         const float *noise, const float *bias, const int32_t *random) {
    int64_t n_groups = attributes->n_groups, T = n_groups ? n_tokens / n_groups : 0;
    int64_t there = random && random[RANDOM_N_SEQUENCES] < n_groups ? random[RANDOM_N_SEQUENCES] : n_groups;
    return (RouteInputs){.a = attributes,
                         .math = &route_math,
                         .logits = logits,
                         .noise = noise,
                         .bias = bias,
                         .random = random,
                         .n_tokens = n_tokens,
                         .T = T,
                         .n_there = there * T};
}

static bool draws(const RouteInputs *in) {
    return in->a->is_training && in->random;
}

static RandomBlock block_of(const RouteInputs *in, int64_t n, int expert) {
    return route_block(in->random, in->a->site, n / in->T, n % in->T, in->a->n_experts, expert);
}

static float sigmoid(float x) {
    return x >= 0.0f ? 1.0f / (1.0f + expf(-x)) : expf(x) / (1.0f + expf(x));
}

static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

static float softmax_of(const float *x, int E, float *p) {
    float maximum = x[0], sum = 0.0f;
    for (int e = 1; e < E; e++) maximum = x[e] > maximum ? x[e] : maximum;
    for (int e = 0; e < E; e++) sum += p[e] = expf(x[e] - maximum);
    for (int e = 0; e < E; e++) p[e] /= sum;
    return maximum + logf(sum);
}

static void sigmoids_of(const float *x, int E, float *y) {
    for (int e = 0; e < E; e++) y[e] = sigmoid(x[e]);
}

static float dot_of(const float *a, const float *b, int E) {
    float sum = 0.0f;
    for (int e = 0; e < E; e++) sum += a[e] * b[e];
    return sum;
}

/* One that is no number is below all others. */
static bool is_above(float score, float other) {
    return score > other || (isnan(other) && !isnan(score));
}

/* Most are below the least that is kept so far. */
void route_largest(const float *score, int E, int n, int *which) {
    int n_kept = 0;
    for (int e = 0; e < E; e++) {
        if (n_kept == n && !is_above(score[e], score[which[n - 1]])) continue;
        int s = n_kept < n ? n_kept++ : n - 1;
        for (; s > 0 && is_above(score[e], score[which[s - 1]]); s--) which[s] = which[s - 1];
        which[s] = e;
    }
}

const RouteMath route_math = {softmax_of, sigmoids_of, route_largest, dot_of};

/* p (E) = softmax of a token's logits; returns log Σ e^logit. */
static float softmax(const RouteInputs *in, int64_t n, float *p) {
    return in->math->softmax(in->logits + n * in->a->n_experts, in->a->n_experts, p);
}

/* What a token's experts are chosen by: its logits, or what is made of them in `score`. */
static const float *token_scores(const RouteInputs *in, int64_t n, float *score) {
    const RouteAttributes *a = in->a;
    int E = a->n_experts;
    const float *logits = in->logits + n * E;
    if (a->kind == ROUTER_NOISY_TOPK && draws(in) && in->noise) {
        for (int e = 0; e < E; e++)
            score[e] = logits[e] + route_normal(block_of(in, n, e)) * softplus(in->noise[n * E + e]);
        return score;
    }
    if (a->kind != ROUTER_BALANCE_FREE) return logits;
    if (a->gate == GATE_SIGMOID) in->math->sigmoids(logits, E, score);
    else softmax(in, n, score);
    for (int e = 0; e < E; e++) score[e] += in->bias[e];
    return score;
}

/* How gates follow from what they weigh: by a softmax over the wishes, over all experts, or by sigmoids. */
typedef enum { OVER_WISHES, OVER_ALL, BY_SIGMOID } GateRule;

static GateRule gate_rule(const RouteAttributes *a) {
    switch (a->kind) {
    case ROUTER_SWITCH:
    case ROUTER_EXPERT_CHOICE: return OVER_ALL;
    case ROUTER_GSHARD:
    case ROUTER_NOISY_TOPK: return OVER_WISHES;
    default: break;
    }
    if (a->gate == GATE_SIGMOID) return BY_SIGMOID;
    return a->n_chosen > 1 ? OVER_WISHES : OVER_ALL;
}

/* The gate of each of a token's wishes, which were chosen by `score`. scratch: (E). */
static void gates_of(const RouteInputs *in, int64_t n, const float *score, const int *wish, float *gate,
                     float *scratch) {
    const RouteAttributes *a = in->a;
    int K = a->n_chosen;
    const float *logits = in->logits + n * a->n_experts;
    GateRule rule = gate_rule(a);
    const float *weighed = a->kind == ROUTER_NOISY_TOPK ? score : logits;
    if (rule == OVER_ALL) {
        softmax(in, n, scratch);
        gate[0] = scratch[wish[0]];
        return;
    }
    float maximum = weighed[wish[0]], sum = 0.0f;
    for (int s = 1; s < K; s++) maximum = weighed[wish[s]] > maximum ? weighed[wish[s]] : maximum;
    for (int s = 0; s < K; s++)
        sum += gate[s] = rule == BY_SIGMOID ? sigmoid(weighed[wish[s]]) : expf(weighed[wish[s]] - maximum);
    if (rule == BY_SIGMOID && K == 1) return;
    if (sum < 1e-20f) sum = 1e-20f; /* sigmoids of nothing but very negative numbers */
    for (int s = 0; s < K; s++) gate[s] /= sum;
}

/* A token's wishes, and the gate of each. scratch: (E). */
static void wishes_of(const RouteInputs *in, int64_t n, float *scratch, int *wish, float *gate) {
    const float *score = token_scores(in, n, scratch);
    in->math->largest(score, in->a->n_experts, in->a->n_chosen, wish);
    gates_of(in, n, score, wish, gate, scratch);
}

/* The same, where it is known what came of the wishes: all of them, in most tokens. */
static void wishes_again(const RouteInputs *in, int64_t n, const int32_t *choice, float *scratch, int *wish,
                         float *gate) {
    bool all_came_true = true, is_noisy = in->a->kind == ROUTER_NOISY_TOPK;
    for (int s = 0; s < in->a->n_chosen; s++) {
        wish[s] = choice[s];
        all_came_true &= choice[s] >= 0;
    }
    if (!all_came_true) {
        wishes_of(in, n, scratch, wish, gate);
        return;
    }
    gates_of(in, n, is_noisy ? token_scores(in, n, scratch) : NULL, wish, gate, scratch);
}

/* GShard's second wish is given up by chance, more often where its gate is small. */
static bool is_given_up(const RouteInputs *in, int64_t n, int s, float gate) {
    return in->a->kind == ROUTER_GSHARD && s == 1 && draws(in) &&
           route_draw(block_of(in, n, 0)) >= 2.0f * gate;
}

void route_token(const RouteInputs *in, int64_t n, float *gates, int32_t *choice) {
    const RouteAttributes *a = in->a;
    float score[ROUTE_MAX_EXPERTS];
    int wish[ROUTE_MAX_CHOSEN] = {0};
    bool is_there = n < in->n_there, by_expert = a->kind == ROUTER_EXPERT_CHOICE;
    int S = route_n_slots(a);
    if (is_there && by_expert) {
        softmax(in, n, score);
        memcpy(gates, score, (size_t)S * sizeof *gates);
    } else if (is_there) {
        wishes_of(in, n, score, wish, gates);
    }
    for (int s = 0; s < S; s++) {
        bool is_kept = is_there && !by_expert && !is_given_up(in, n, s, gates[s]);
        choice[s] = is_kept ? wish[s] : -1;
        if (!is_kept && !(is_there && by_expert)) gates[s] = 0.0f;
    }
}

void route_fill(const RouteInputs *in, int64_t group, float *gates, int32_t *choice, int32_t *counts) {
    const RouteAttributes *a = in->a;
    int S = a->n_chosen;
    memset(counts, 0, (size_t)a->n_experts * sizeof *counts);
    for (int s = 0; s < S; s++) {
        for (int64_t n = group * in->T; n < (group + 1) * in->T; n++) {
            int32_t *chosen = &choice[n * S + s];
            if (*chosen < 0 || counts[*chosen]++ < a->capacity) continue;
            *chosen = -1;
            gates[n * S + s] = 0.0f;
        }
    }
}

/* The bits of a probability: they order as it does. One that is no number is the least. */
static int32_t bits_of(float p) {
    int32_t bits;
    memcpy(&bits, &p, sizeof bits);
    return p >= 0.0f ? bits : -1;
}

void route_take(const RouteInputs *in, int64_t group, int expert, float *gates, int32_t *choice) {
    int E = in->a->n_experts;
    int64_t T = in->T, first = group * T, room = in->a->capacity < T ? in->a->capacity : T, n_more = 0;
    if (first >= in->n_there) return; /* with gates of 0 and no choice */
    int32_t border = 0;               /* the greatest that `room` of them reach */
    for (int bit = 29; bit >= 0; bit--) {
        int32_t higher = border | (int32_t)(1u << bit);
        int64_t n_reach = 0;
        for (int64_t t = 0; t < T; t++) n_reach += bits_of(gates[(first + t) * E + expert]) >= higher;
        if (n_reach >= room) border = higher;
    }
    for (int64_t t = 0; t < T; t++) n_more += bits_of(gates[(first + t) * E + expert]) > border;
    int64_t n_equal = room - n_more;
    for (int64_t t = 0; t < T; t++) {
        int64_t at = (first + t) * E + expert;
        int32_t bits = bits_of(gates[at]);
        bool is_taken = bits > border || (bits == border && n_equal-- > 0);
        choice[at] = is_taken ? expert : -1;
        if (!is_taken) gates[at] = 0.0f;
    }
}

void route_shares(const RouteInputs *in, int64_t group, const int32_t *choice, float *shares) {
    const RouteAttributes *a = in->a;
    float scratch[ROUTE_MAX_EXPERTS];
    int wish[ROUTE_MAX_CHOSEN] = {0}, E = a->n_experts, K = a->n_chosen;
    bool is_known = !a->capacity && a->kind != ROUTER_GSHARD; /* every wish came true */
    for (int e = 0; e < E; e++) shares[e] = a->kind == ROUTER_EXPERT_CHOICE ? 1.0f / (float)E : 0.0f;
    if (a->kind == ROUTER_EXPERT_CHOICE) return;
    for (int64_t n = group * in->T; n < (group + 1) * in->T; n++) {
        for (int s = 0; s < K && is_known; s++) shares[choice[n * K + s]] += 1.0f;
        if (is_known) continue;
        in->math->largest(token_scores(in, n, scratch), E, K, wish);
        for (int s = 0; s < K; s++) shares[wish[s]] += 1.0f;
    }
    for (int e = 0; e < E; e++) shares[e] /= (float)(in->T * K);
}

/* dlogits (E) of what p, the softmax over all experts, weighs: by dp (E), which it takes the place of. */
static void softmax_backward(const RouteMath *math, int E, const float *p, float *dp) {
    float dot = math->dot(p, dp, E);
    for (int e = 0; e < E; e++) dp[e] = p[e] * (dp[e] - dot);
}

/* Are gates p of all experts? */
static bool weighs_by_all(const RouteAttributes *a) {
    return a->kind == ROUTER_EXPERT_CHOICE || gate_rule(a) == OVER_ALL;
}

/* Of the gates of a token's wishes. Those that are constants, of choice -1, are still in the others' sum. p:
 * the softmax over all experts, where gates are that. */
static void gates_backward(const RouteInputs *in, int64_t n, const float *dgates, const int32_t *choice,
                           const float *p, float *dlogits, float *dnoise) {
    const RouteAttributes *a = in->a;
    float score[ROUTE_MAX_EXPERTS], gate[ROUTE_MAX_CHOSEN] = {0}, dot = 0.0f, sum = 0.0f;
    int wish[ROUTE_MAX_CHOSEN] = {0}, E = a->n_experts, K = a->n_chosen;
    GateRule rule = gate_rule(a);
    if (weighs_by_all(a)) {
        int S = route_n_slots(a);
        for (int s = 0; s < S; s++)
            if (choice[s] >= 0) dlogits[choice[s]] = dgates[s];
        softmax_backward(in->math, E, p, dlogits);
        return;
    }
    wishes_again(in, n, choice, score, wish, gate);
    for (int s = 0; s < K; s++) {
        dot += choice[s] < 0 ? 0.0f : gate[s] * dgates[s];
        if (rule == BY_SIGMOID) sum += sigmoid(in->logits[n * E + wish[s]]);
    }
    if (sum < 1e-20f) sum = 1e-20f;
    for (int s = 0; s < K; s++) {
        float dgate = choice[s] < 0 ? 0.0f : dgates[s], x = in->logits[n * E + wish[s]];
        if (rule == BY_SIGMOID)
            dlogits[wish[s]] = (K == 1 ? dgate : (dgate - dot) / sum) * (sigmoid(x) * sigmoid(-x));
        else dlogits[wish[s]] = gate[s] * (dgate - dot);
        if (dnoise && draws(in))
            dnoise[wish[s]] = dlogits[wish[s]] * route_normal(block_of(in, n, wish[s])) *
                              sigmoid(in->noise[n * E + wish[s]]);
    }
}

void route_token_backward(const RouteInputs *in, int64_t n, const float *dgates, const int32_t *choice,
                          const float *shares, float scale, float *dlogits, float *dnoise) {
    const RouteAttributes *a = in->a;
    int E = a->n_experts;
    memset(dlogits, 0, (size_t)E * sizeof *dlogits);
    if (dnoise) memset(dnoise, 0, (size_t)E * sizeof *dnoise);
    if (n >= in->n_there) return;
    float balance = shares ? scale * a->balance_scale * (float)E / (float)in->T : 0.0f,
          z = scale * a->z_scale;
    bool has_losses = balance != 0.0f || z != 0.0f;
    float p[ROUTE_MAX_EXPERTS], mean = 0.0f, log_sum = 0.0f;
    if (has_losses || (dgates && weighs_by_all(a))) log_sum = softmax(in, n, p);
    if (dgates) gates_backward(in, n, dgates, choice, p, dlogits, dnoise);
    if (!has_losses) return;
    if (shares) mean = in->math->dot(shares, p, E);
    for (int e = 0; e < E; e++) {
        float share = shares ? shares[e] : 0.0f;
        dlogits[e] += p[e] * (balance * (share - mean) + 2.0f * z * log_sum);
    }
}

/* Slots of a token that found no room. */
static int n_dropped(const RouteInputs *in, int64_t n, const int32_t *choice) {
    const RouteAttributes *a = in->a;
    int S = route_n_slots(a), n_empty = 0;
    for (int s = 0; s < S; s++) n_empty += choice[n * S + s] < 0;
    if (a->kind == ROUTER_EXPERT_CHOICE) return n_empty == S;
    if (!a->capacity) return 0;
    if (a->kind == ROUTER_GSHARD && choice[n * S + 1] < 0) {
        float score[ROUTE_MAX_EXPERTS], gate[ROUTE_MAX_CHOSEN] = {0};
        int wish[ROUTE_MAX_CHOSEN] = {0};
        wishes_of(in, n, score, wish, gate);
        n_empty -= is_given_up(in, n, 1, gate[1]);
    }
    return n_empty;
}

void route_count_group(const RouteInputs *in, int64_t group, const int32_t *choice, float *shares,
                       double *sums) {
    const RouteAttributes *a = in->a;
    int E = a->n_experts, S = route_n_slots(a);
    float p[ROUTE_MAX_EXPERTS];
    double *counts = sums + E, mean[ROUTE_MAX_EXPERTS] = {0}, entropy[ROUTE_MAX_EXPERTS] = {0};
    for (int i = 0; i < E + N_ROUTE_COUNTS; i++) sums[i] = 0.0;
    if (group * in->T >= in->n_there) return;
    route_shares(in, group, choice, shares);
    for (int64_t n = group * in->T; n < (group + 1) * in->T; n++) {
        float log_sum = softmax(in, n, p);
        const float *logits = in->logits + n * E;
        for (int s = 0; s < S; s++)
            if (choice[n * S + s] >= 0) sums[choice[n * S + s]] += 1.0;
        for (int e = 0; e < E; e++) { /* expert by expert, which vectors do; -log p = log_sum - logit */
            mean[e] += (double)p[e];
            entropy[e] += p[e] > 0.0f ? (double)(p[e] * (log_sum - logits[e])) : 0.0;
        }
        counts[ROUTE_DROPPED] += n_dropped(in, n, choice);
        counts[ROUTE_Z] += (double)log_sum * (double)log_sum;
    }
    for (int e = 0; e < E; e++) {
        counts[ROUTE_ENTROPY] += entropy[e];
        counts[ROUTE_BALANCE] += (double)shares[e] * mean[e] * (double)E / (double)in->T;
    }
    counts[ROUTE_TOKENS] = (double)in->T;
}
