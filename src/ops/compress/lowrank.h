/* The sum of matrices over ranks in rank R (PowerSGD), as operations between which the communicator works:
 *
 *     rank    lowrank_project      M = e + factor·g, kept as e; P = M·Q of every matrix, a message
 *             all-reduce           the message
 *     rank    lowrank_orthonormal  P's columns become orthonormal, on all ranks the same
 *             lowrank_return       Q = Mᵀ·P, another message
 *             all-reduce           that message
 *     rank    lowrank_expand       g = P·Qᵀ, the sum over ranks; e = M - share·P·Qᵀ; Q is kept
 *
 * A batch of matrices goes together, and with it runs of elements that are sent as they are. g, e and Q
 * persist; what differs from rank to rank is g and e. Q begins where the last step's ended. A column of it
 * that is all zeros (the first step, a gradient without so many dimensions) is drawn anew.
 *
 * A factor that is no finite number leaves e and Q as they are; what g is then is undefined. */
#ifndef PGPT_OPS_COMPRESS_LOWRANK_H
#define PGPT_OPS_COMPRESS_LOWRANK_H

#include "base/random.h"
#include "graph/op.h"

/* A matrix: rows · columns elements of g and e from `first` on. Its P is (R, rows) from `left` on in the
 * message, its Q (R, columns) from `right` on: columns of P and Q are rows here. */
typedef struct {
    int64_t first, rows, columns, left, right;
    uint64_t seed; /* what columns are drawn by */
} LowRankMatrix;

/* Elements first .. first + n - 1 are numbers `at` .. of the message. */
typedef struct {
    int64_t first, n, at;
} LowRankRun;

typedef struct {
    int rank; /* R */
    int n_matrices, n_runs;
    const LowRankMatrix *matrix; /* both live as long as the graph */
    const LowRankRun *run;
    int64_t n_message, n_basis; /* numbers of the two messages */
    float share;                /* of the sum that each rank has said */
} LowRankAttributes;

/* Inputs gradient, [factor]; outputs message, error, Q. */
extern const Op OP_LOWRANK_PROJECT;
/* Input message; output the same with orthonormal columns. */
extern const Op OP_LOWRANK_ORTHONORMAL;
/* Inputs error, message; output Q's message. */
extern const Op OP_LOWRANK_RETURN;
/* Inputs message, Q's message, [factor]; outputs gradient, error, Q. */
extern const Op OP_LOWRANK_EXPAND;
/* Input factor; output numbers, in place: numbers / factor, which is not finite where the factor is not. */
extern const Op OP_RESCALE;

typedef struct {
    Tensor *gradient, *error; /* flat, whole */
    Tensor *basis;            /* (n_basis) */
    Tensor *factor;           /* or NULL */
} LowRankTensors;

/* Returns the message. */
Tensor *op_lowrank_project(Graph *graph, const LowRankTensors *tensors, const LowRankAttributes *attributes);
Tensor *op_lowrank_orthonormal(Graph *graph, Tensor *message, const LowRankAttributes *attributes);
Tensor *op_lowrank_return(Graph *graph, Tensor *message, const LowRankTensors *tensors,
                          const LowRankAttributes *attributes);
void op_lowrank_expand(Graph *graph, Tensor *message, Tensor *returned, const LowRankTensors *tensors,
                       const LowRankAttributes *attributes);
void op_rescale(Graph *graph, Tensor *numbers, Tensor *factor);

/* Does it send less than the matrix has? */
static inline bool lowrank_pays(int64_t rank, int64_t rows, int64_t columns) {
    return rank * (rows + columns) < rows * columns;
}

/* What a column of Q is drawn from: number `index` of a matrix's Q, from -1 to 1. */
RANDOM_INLINE float lowrank_start(uint64_t seed, int64_t index) {
    return (float)(int32_t)(random_mix(seed + 0x9E3779B97F4A7C15u * (uint64_t)(index + 1)) >> 32) *
           4.656612873077393e-10f; /* 2^-31 */
}

/* Of what is left of a column of P when the columns before it are taken away: less than this share of its
 * squared length is rounding, and the column becomes 0. */
#define LOWRANK_LEAST 1e-8

/* Columns of P (rank, rows), orthonormal: the one way to do it that all backends follow. Sums are in
 * double. */
void lowrank_orthonormalise(float *columns, int rank, int64_t rows);

#endif
