/* decode_step: a whole step of decoding, one token of one sequence from its number to the logits, as one
 * operation.
 *
 * It stands for a program that says the same in many, on devices on which the time of so little work is that
 * of starting it. Who knows the model makes it from such a program (model/gpt_fuse.h).
 *
 * Its meaning is that of its parts, run one after the other; what is between them is never stored. */
#ifndef PGPT_OPS_DECODE_STEP_H
#define PGPT_OPS_DECODE_STEP_H

#include "ops/ops.h"

/* The parameters of one block, and its caches (1,NKV,capacity,HS). What the model does not have is NULL. */
typedef struct {
    const Tensor *norm1_weight, *norm1_bias, *qkv_weight, *qkv_bias, *out_weight, *out_bias;
    const Tensor *norm2_weight, *norm2_bias, *fc_weight, *fc_bias, *proj_weight, *proj_bias;
    const Tensor *keys, *values;
} DecodeBlock;

typedef struct {
    int n_parts;
    const Node *const *parts; /* what was recorded, in order */
    int n_blocks;
    const DecodeBlock *blocks;
    const Tensor *token_table, *position_table, *final_weight, *final_bias, *head_weight;
    bool has_mean; /* layernorm; else rmsnorm */
    float epsilon;
    AttentionAttributes attention;
    bool is_rotary;
    RotaryAttributes rotary;
    Activation activation; /* of the hidden layer */
    bool is_gated;         /* swiglu */
} DecodeStepAttributes;

/* tokens (1,1), start (1), all parameters as one flat tensor -> logits (1,V) f32, all caches as one
 * tensor. */
enum { DECODE_TOKENS, DECODE_START, DECODE_PARAMETERS, N_DECODE_INPUTS };
enum { DECODE_LOGITS, DECODE_CACHES, N_DECODE_OUTPUTS };
extern const Op OP_DECODE_STEP;

#endif
