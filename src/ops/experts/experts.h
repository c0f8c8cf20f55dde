/* Mixture of experts: a router sends each token to a few of E small networks, and what they make of it comes
 * back to the token's row, weighted.
 *
 *     logits (N,E)   router_logits(x, router weight)          f32, whatever x is
 *     gates, choice  route(logits)                            which experts, how much of each
 *     slot, source, offsets   expert_sort(choice)             a counting sort by expert
 *     rows (M,C)     expert_gather(x)                         expert by expert, tokens ascending within one
 *     h (M,F)        grouped_linear(rows, W1 (E,F,C))         each expert's rows by its own weight
 *     made (M,C)     grouped_linear(h, W2 (E,C,F))
 *     y (N,C)        expert_scatter(made, gates)              y[n] = Σ_s gates[n,s] · made[slot[n,s]]
 *
 * N tokens, S choices a token (K; with expert-choice E), M rows at most: N·S, less where capacity or
 * expert-choice bounds it. All sizes are known when the program is planned; how many rows an expert has is
 * known to `offsets` alone, and never leaves the device. Rows behind offsets[E] are not there: nobody reads
 * what is in them, and gradients of them are not made.
 *
 * Nothing here depends on how tokens are laid out over ranks and micro-batches: what a token gets depends on
 * its own sequence (its *group*) alone, and ties go to the lower expert, and to the earlier token. */
#ifndef PGPT_OPS_EXPERTS_EXPERTS_H
#define PGPT_OPS_EXPERTS_EXPERTS_H

#include "base/random.h"
#include "ops/ops.h"

#include <math.h>

typedef enum {
    ROUTER_TOPK,       /* the K largest gates; of K > 1 they are normalised to a sum of 1 (Mixtral) */
    ROUTER_SWITCH,     /* the largest, by its probability (Switch Transformer) */
    ROUTER_GSHARD,     /* two; the second is kept by chance, with probability min(1, 2·gate) (GShard) */
    ROUTER_NOISY_TOPK, /* of logits + N(0,1)·softplus(noise), the K largest; softmax over those (Shazeer) */
    ROUTER_BALANCE_FREE,  /* the K largest of gate + bias; weighed by the gate alone (DeepSeek-V3) */
    ROUTER_EXPERT_CHOICE, /* each expert takes the tokens of a group that want it most (Zhou et al.) */
    N_ROUTERS
} RouterKind;

typedef enum { GATE_SOFTMAX, GATE_SIGMOID } GateKind;

typedef struct {
    int kind, gate; /* RouterKind, GateKind */
    int n_experts;  /* E, at most ROUTE_MAX_EXPERTS */
    int n_chosen;   /* K; of expert-choice: the mean */
    /* Of an expert and a group: later tokens (and second choices behind all first ones) are dropped. 0: none
     * is, ever (dropless). Expert-choice takes exactly so many. */
    int64_t capacity;
    int64_t n_groups;    /* sequences, always whole ones; N is a multiple of it */
    bool is_training;    /* with noise and chance; else the mean router */
    float balance_scale; /* of the balance loss E·Σ f·P, a group's mean over its tokens, in the gradient */
    float z_scale;       /* of the z loss, (log Σ e^logit)² */
    int site;            /* of the random stream: see route_block */
} RouteAttributes;

enum { ROUTE_MAX_EXPERTS = 1024, ROUTE_MAX_CHOSEN = 64 };

/* What is drawn for token t of a group, and expert e: by its sequence and place, wherever it is computed. The
 * chance of a second wish is route_draw of expert 0. */
RANDOM_INLINE RandomBlock route_block(const int32_t *random, int site, int64_t group, int64_t t,
                                      int n_experts, int expert) {
    uint64_t seed = (uint64_t)(uint32_t)random[RANDOM_SEED_HIGH] << 32 | (uint32_t)random[RANDOM_SEED_LOW];
    RandomKey key = random_key(seed, RANDOM_ROUTER + (unsigned)site, (uint32_t)random[RANDOM_STEP]);
    return random_block(key, (uint64_t)(uint32_t)random[RANDOM_FIRST_SEQUENCE] + (uint64_t)group,
                        (uint64_t)t * (uint64_t)n_experts + (uint64_t)expert);
}

/* Uniform in [0,1), and N(0,1). */
RANDOM_INLINE float route_draw(RandomBlock block) {
    return random_unit(block.word[0]);
}

RANDOM_INLINE float route_normal(RandomBlock block) {
    return sqrtf(-2.0f * logf(1.0f - random_unit(block.word[0]))) *
           cosf(6.28318530718f * random_unit(block.word[1]));
}

/* ---- router_logits.c --------------------------------------------------------------------------------------
 * logits (N,E) f32 = x (N,C) · weight (E,C)ᵀ, products and sums in f32. Gradients: (dlogits, weight) -> dx;
 * (dlogits, x) -> dweight. */
extern const Op OP_ROUTER_LOGITS, OP_ROUTER_INPUT_GRADIENT, OP_ROUTER_WEIGHT_GRADIENT;
Tensor *op_router_logits(Graph *graph, Tensor *x, Tensor *weight);

/* ---- route.c ----------------------------------------------------------------------------------------------
 * (logits (N,E), [noise (N,E)], [bias (E) f32], [random]) -> gates (N,S) f32, choice (N,S) i32: the expert,
 * or -1 where the token has none there (dropped, or not taken); its gate is then 0. Slot s is a token's s-th
 * wish, the largest first; with expert-choice slot s is expert s. Of the groups the first
 * random[RANDOM_N_SEQUENCES] are there (without random: all); tokens of the others go nowhere and count
 * nowhere: all their choices are -1, their gates and gradients 0.
 *
 * Backward ([dgates], logits, [noise], [bias], choice, [random], [scale (1)]) -> dlogits, [dnoise]: of the
 * gates (those of choice -1 are constants), and of the balance and z losses, whose gradient is multiplied by
 * [scale] as that of the cross-entropy is. What a token wished for is worked out again.
 *
 * With p = softmax(logits), σ = the gate function of the kind, w = the K wishes:
 *     topk           w: largest logits; gates: K = 1: σ(w); K > 1: σ(w) / Σ over w of σ
 *     switch         w: the largest logit; gate p(w)
 *     gshard         w: the two largest logits; gates p(w) / Σ over w of p; in training the second is given
 *                    up (before capacity is looked at) unless route_draw < 2·gate
 *     noisy-topk     h = logits + z·softplus(noise), z = route_normal in training, else 0; w: largest h;
 *                    gates: softmax of h over w
 *     balance-free   w: largest σ + bias; gates as topk's
 *     expert-choice  expert e takes the `capacity` tokens of a group with the largest p(e); gates p(e)
 * Capacity: first wishes of all tokens of a group in order, then second ones, and so on.
 * Losses of a group of T tokens: E·Σ f(e)·P(e), f the share of expert e of the T·K wishes (before chance and
 * capacity; of expert-choice 1/E), a constant in the gradient; P the mean of p over the T tokens. The z loss
 * adds up over tokens. */
typedef struct {
    Tensor *gates, *choice;
} Routes;
extern const Op OP_ROUTE, OP_ROUTE_BACKWARD;
Routes op_route(Graph *graph, Tensor *logits, Tensor *noise, Tensor *bias, Tensor *random, Tensor *scale,
                const RouteAttributes *attributes);
int route_n_slots(const RouteAttributes *attributes);                      /* S */
int64_t route_n_rows(const RouteAttributes *attributes, int64_t n_tokens); /* M */

/* What a step says of a router, added up over micro-batches: (logits, [noise], [bias], choice, [random]) ->
 * report (E + N_ROUTE_COUNTS) f32 in PLACE_STATE: choices that each expert got, then these. Nothing depends
 * on it, so recomputation never repeats it. */
enum {
    ROUTE_TOKENS,  /* all, */
    ROUTE_DROPPED, /* wishes that found no room, of K·tokens (what chance gave up is none); of expert-choice:
                      tokens that no expert took */
    ROUTE_ENTROPY, /* Σ over tokens of -Σ p·log p, p = softmax(logits) */
    ROUTE_BALANCE, /* Σ over groups of E·Σ f·P: 1 a group where all are used alike */
    ROUTE_Z,       /* Σ over tokens of (log Σ e^logit)² */
    N_ROUTE_COUNTS
};
extern const Op OP_ROUTE_REPORT;
/* The nodes of one step that write the same report: the first overwrites in the first micro-batch, the others
 * (is_first false) add. */
void op_route_report(Graph *graph, Tensor *logits, Tensor *noise, Tensor *bias, Tensor *random,
                     const Routes *routes, Tensor *report, bool is_first, const RouteAttributes *attributes);

/* ---- route_update.c ---------------------------------------------------------------------------------------
 * Once a step, of the reports (R,E + N_ROUTE_COUNTS) of R blocks, summed over all ranks. route_bias: bias
 * (R,E) += rate · sign(mean - choices) of each expert of a block, unless [factor (1)], which the gradient is
 * multiplied by, is no finite number: then the step changes nothing. (reports, [factor]) -> bias.
 * route_summary: (reports) -> summary (N_ROUTE_SUMMARY) f32: the counts, summed over blocks, and these. */
enum {
    SUMMARY_BUSIEST = N_ROUTE_COUNTS, /* choices of the busiest expert of any block, in units of the mean */
    SUMMARY_EMPTY,                    /* experts that got nothing, of all blocks */
    SUMMARY_BLOCKS,                   /* R */
    N_ROUTE_SUMMARY
};
typedef struct {
    int n_experts;
    float rate;
} RouteUpdateAttributes;
extern const Op OP_ROUTE_BIAS, OP_ROUTE_SUMMARY;

/* The same on the host. */
void route_summarise(const float *reports, int64_t n_blocks, int n_experts, double *summary);
void op_route_bias(Graph *graph, Tensor *reports, Tensor *factor, Tensor *bias, float rate);
void op_route_summary(Graph *graph, Tensor *reports, Tensor *summary, int n_experts);

/* ---- expert_sort.c ----------------------------------------------------------------------------------------
 * choice (N,S) i32 -> slot (N,S) i32: the row of each choice, -1: none; source (M) i32: n·S + s of each row,
 * -1 behind the last; offsets (E+1) i32: expert e has rows offsets[e] .. offsets[e+1]-1. Stable. */
typedef struct {
    Tensor *slot, *source, *offsets;
} ExpertOrder;
typedef struct {
    int n_experts;
    int64_t n_rows; /* M */
} ExpertSortAttributes;
extern const Op OP_EXPERT_SORT;
ExpertOrder op_expert_sort(Graph *graph, Tensor *choice, int n_experts, int64_t n_rows);

/* ---- expert_rows.c ----------------------------------------------------------------------------------------
 * gather: (x (N,C), slot, source, offsets) -> rows (M,C), rows[m] = x[source[m] / S]; its backward (drows,
 * slot) -> dx[n] = Σ_s drows[slot[n,s]], s ascending. scatter: (made (M,C), gates (N,S) f32, slot, source) ->
 * y (N,C); its backward (dy, made, gates, slot, source, offsets) -> dmade[m] = gate · dy[n], dgates[n,s] =
 * dy[n] · made[slot]. */
extern const Op OP_EXPERT_GATHER, OP_EXPERT_GATHER_BACKWARD, OP_EXPERT_SCATTER, OP_EXPERT_SCATTER_BACKWARD;
Tensor *op_expert_gather(Graph *graph, Tensor *x, const ExpertOrder *order);
Tensor *op_expert_scatter(Graph *graph, Tensor *made, Tensor *gates, const ExpertOrder *order, Shape shape);

/* ---- grouped_linear.c -------------------------------------------------------------------------------------
 * y (M,Co) = activation(x (M,Ci) · weight[e]ᵀ + [bias[e]]) for the rows of expert e; weight (E,Co,Ci), bias
 * (E,Co), offsets (E+1) i32. As op_linear: with an activation a second output is the value before it, and the
 * attributes are LinearAttributes. Gradients: OP_GROUPED_INPUT_GRADIENT (dy, weight, offsets, [before]) ->
 * dx; OP_GROUPED_WEIGHT_GRADIENT (dy, x, offsets) -> dweight, [dbias], where an expert without rows gets 0
 * (or nothing is added). */
extern const Op OP_GROUPED_LINEAR, OP_GROUPED_INPUT_GRADIENT, OP_GROUPED_WEIGHT_GRADIENT;
Tensor *op_grouped_linear(Graph *graph, Tensor *x, Tensor *weight, Tensor *bias, Tensor *offsets,
                          Activation activation);

/* ---- sequence_rows.c --------------------------------------------------------------------------------------
 * Where ranks share sequences (cp), a token's group is the whole one. place: x (B·n,S) of this rank's rows ->
 * y (B·T,S), at their places in the sequences of T, 0 elsewhere. take: back. Each is the other's backward. Of
 * f32 or i32, n = rows / B; row t of a sequence has place row_place(positions, t). */
typedef struct {
    int64_t n_sequences, n_rows, n_positions; /* B, n, T */
    RowPositions positions;
    bool inverse; /* take */
} SequenceRowsAttributes;
extern const Op OP_SEQUENCE_ROWS;
Tensor *op_place_rows(Graph *graph, Tensor *x, int64_t n_sequences, int64_t n_positions,
                      RowPositions positions);
Tensor *op_take_rows(Graph *graph, Tensor *x, int64_t n_sequences, int64_t n_rows, RowPositions positions);

#endif
