/* Which numbers a model is trained in.
 *
 *     f32        everything in f32
 *     tf32       the same, with products on a GPU's matrix units: 10 bits of each factor, sums in f32
 *     bf16, f16  mixed: weights and activations in 16 bits; master weights, gradients of weights, moments
 *                and sums in f32
 *     pure-...   weights, gradients and moments in 16 bits too: 6 bytes a parameter beside its gradient,
 *                stochastic rounding where they change
 *
 * Operations give their outputs the type of their inputs, so that the type of the weights decides that of
 * everything that is computed from them; statistics, losses and norms are f32 in all of them. */
#ifndef PGPT_GRAPH_PRECISION_H
#define PGPT_GRAPH_PRECISION_H

#include "graph/dtype.h"

typedef enum {
    PRECISION_F32,
    PRECISION_TF32,
    PRECISION_BF16,
    PRECISION_F16,
    PRECISION_PURE_BF16,
    PRECISION_PURE_F16,
    N_PRECISIONS,
} PrecisionKind;

extern const char *const precision_names[]; /* NULL-terminated, as --dtype takes them */

typedef struct {
    DType weight;            /* of weights and activations */
    DType gradient;          /* of weights */
    DType moment;            /* of the optimizer, */
    bool has_packed_moments; /* but for these: in 8 bits (base/block8.h) */
    bool has_master;         /* f32 weights beside the 16-bit ones */
    bool scales_loss;        /* gradients of activations would vanish in f16 */
} Precision;

/* {0} is f32. */
Precision precision_of(PrecisionKind kind);

#endif
