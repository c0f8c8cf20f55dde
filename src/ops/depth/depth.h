/* Mixture of depths (Raposo et al. 2024): a router lets some positions of a sequence pass a block, the others
 * go by it.
 *
 *     score (B,T), guess (B,T)   depth_score(x, router, predictor)    f32, whatever x is
 *     rows (B,K), slot (B,T)     depth_select(score)                  the K best of each sequence, ascending
 *     chosen (B,K,C), gate (B,K) depth_gather(x)                      their rows, and their scores
 *     made (B,K,C)               what the block adds to them
 *     y (B,T,C)                  depth_scatter(x, made, gate) y[t] = x[t] + gate[j]·made[j], t = rows[j]
 *     depth_predict(guess, slot)                                      trains the predictor
 *
 * The K best of a sequence are known when all of it is, so sampling cannot use them. A predictor says of each
 * token alone whether it will be among them, and depth_admit takes its word instead of depth_select's.
 *
 * Shapes are known when the program is planned. Ties go to the earlier position; a score that is no number
 * comes last. Where ranks share out the rows of x (sequence parallelism), x is (n,C), and its rows are those
 * from first_row on of the B·T of all sequences; rows, slot, score and gate are always of all of them. */
#ifndef PGPT_OPS_DEPTH_DEPTH_H
#define PGPT_OPS_DEPTH_DEPTH_H

#include "ops/ops.h"

/* ---- depth_score.c ----------------------------------------------------------------------------------------
 * score (N) f32 = x (N,C) · router (C); guess (N) f32 = x · predictor (C) + bias (1): above 0, the predictor
 * says yes. (x, router, predictor, bias) -> score, guess. Neither has a gradient here: the router's comes
 * through the gate (depth_gather), the predictor's is made where its loss is (depth_predict). */
typedef struct {
    Tensor *score, *guess;
} DepthScores;
extern const Op OP_DEPTH_SCORE;
DepthScores op_depth_score(Graph *graph, Tensor *x, Tensor *router, Tensor *predictor, Tensor *bias);

/* ---- depth_select.c ---------------------------------------------------------------------------------------
 * select: score (B,T) -> rows (B,K) i32: the positions of the K best, ascending; slot (B,T) i32: where in
 * rows a position is, -1: nowhere.
 *
 * admit: (guess (B,T), [start (B) i32], [counts (B,P+1) i32]) -> rows (B,T): the positions with guess > 0,
 * ascending, and behind them the others; slot (B,T) as above; places (B,T) i32 = start[b] + rows: for rotary;
 * [first (B) i32, counts]. counts[b][p] is how many of the tokens before position p have passed: so many
 * entries of the block's KV cache are theirs. Those at start[b] + 1 and so on are written, the one at
 * start[b] is read, and comes out as `first`: where the cache goes on. */
typedef struct {
    Tensor *rows, *slot;
    Tensor *places, *first; /* of admit; first NULL: there are no counts */
} DepthRows;
extern const Op OP_DEPTH_SELECT, OP_DEPTH_ADMIT;
DepthRows op_depth_select(Graph *graph, Tensor *score, int64_t n_chosen);
DepthRows op_depth_admit(Graph *graph, Tensor *guess, Tensor *start, Tensor *counts);

/* An order of floats as whole numbers: greater is better; equal for 0 and -0; 0 for what is no number. */
static inline uint32_t depth_order(float score) {
    union {
        float value;
        uint32_t bits;
    } u = {score + 0.0f};
    if (score != score) return 0;
    return u.bits & 0x80000000u ? ~u.bits : u.bits | 0x80000000u;
}

/* ---- depth_rows.c -----------------------------------------------------------------------------------------
 * gather: (x (N,C), score (B,T), rows (B,K), slot (B,T), router (C)) -> chosen (B,K,C): x[rows], or 0 where
 * another rank has the row; gate (B,K) f32 = score[rows]. The router is there for the gradients: since the
 * gate is x · router, (dchosen, dgate, router, rows, slot) -> dx[t] = dchosen[j] + dgate[j]·router, and
 * (dgate, chosen) -> drouter.
 *
 * scatter: (x (N,C), made (B,K,C), gate (B,K), rows, slot) -> y (N,C). Its backward: dx is dy; (dy, made,
 * gate, rows) -> dmade[j] = gate[j]·dy[t], dgate[j] = dy[t]·made[j], both 0 where another rank has the
 * row. */
typedef struct {
    int64_t first_row; /* of x */
} DepthRowsAttributes;
typedef struct {
    Tensor *chosen, *gate;
} DepthChosen;
extern const Op OP_DEPTH_GATHER, OP_DEPTH_GATHER_BACKWARD, OP_DEPTH_ROUTER_GRADIENT;
extern const Op OP_DEPTH_SCATTER, OP_DEPTH_SCATTER_BACKWARD;
DepthChosen op_depth_gather(Graph *graph, Tensor *x, Tensor *score, const DepthRows *rows, Tensor *router,
                            int64_t first_row);
Tensor *op_depth_scatter(Graph *graph, Tensor *x, Tensor *made, Tensor *gate, const DepthRows *rows,
                         int64_t first_row);

/* The row of x that is row t of sequence b of T; -1: another rank's. */
static inline int64_t depth_row_here(int64_t first_row, int64_t n_rows, int64_t T, int64_t b, int64_t t) {
    int64_t row = b * T + t - first_row;
    return row >= 0 && row < n_rows ? row : -1;
}

/* ---- depth_predict.c --------------------------------------------------------------------------------------
 * The predictor's binary cross-entropy, on whether a row was chosen: (guess (N), x (N,C), slot (B,T), random,
 * [scale (1)], predictor (C), bias (1)) -> dpredictor (C), dbias (1), loss (1), hits (1), all f32. Of the
 * random words only RANDOM_N_SEQUENCES is read: so many sequences count, the rest are empty rows. The
 * gradient rule hands dpredictor and dbias on; none reaches x. `loss` and `hits` (right guesses) are summed
 * with report_scale, into what is there. */
typedef struct {
    int64_t first_row; /* of x */
    float gradient_scale, report_scale;
} DepthPredictAttributes;
typedef struct {
    Tensor *guess, *x, *slot, *random, *scale, *predictor, *bias, *loss, *hits;
} DepthPredictTensors;
extern const Op OP_DEPTH_PREDICT;
/* `mode` is how loss and hits are written. */
void op_depth_predict(Graph *graph, const DepthPredictTensors *tensors, WriteMode mode,
                      const DepthPredictAttributes *attributes);

#endif
