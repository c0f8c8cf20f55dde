/* The arithmetic of a training step by formula: the one that papers publish their TFLOP/s with, so that
 * figures compare, and that of a model's parts, by which pipeline stages are balanced (model/stages.h) before
 * there is a program. The program's own count (train_step_flops) is what is really computed. */
#ifndef PGPT_MODEL_MODEL_FLOPS_H
#define PGPT_MODEL_MODEL_FLOPS_H

#include "model/config.h"

/* Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021):
 * with B sequences of s tokens, l layers of h channels and V symbols, 96·B·s·l·h²·(1 + s/6h + V/16lh) where
 * every block's forward is recomputed, else the same less that forward: 72·B·s·l·h²·(1 + s/6h + V/12lh);
 * `recomputed` is the part of the blocks. It
 * has the four GEMMs of a block, whose MLP is 4h wide, all s² scores (a causal model needs half of them) and
 * the logits; norms, biases, softmax, GELU and the update are left out. Where attention is sparse, its scores
 * count as much less as the patterns see less. Of experts those are counted that a token passes, and the
 * router. */
double model_flops_standard(const ModelConfig *config, int64_t n_sequences, int64_t T, double recomputed);

/* Forward and backward of one token, in sequences of T, on the rank with most of n_ranks of tensor
 * parallelism: within a few per cent of what the program counts. Visible scores only (of all blocks' patterns
 * the mean), GEMMs, logits, norms
 * and activation functions. */
typedef struct {
    double embedding, block, head; /* the head with the final norm and the loss */
} PartFlops;

PartFlops model_flops_parts(const ModelConfig *config, int64_t T, int n_ranks);

#endif
