/* sample: the next token of every sequence, drawn from its logits where they are.
 *
 * A program that ends with it goes on by itself: the token that it draws is what the next run reads, at the
 * next position, so that a device can run many steps before the host looks at what came out.
 *
 *     op_sample(graph, logits, settings, tokens, start, rows, picks);
 *
 * The rules are those of infer/sampler.h, without the penalty on repetition: the same options, the same
 * random numbers by (seed, sample, position), the same order among equal logits. The likeliest token is the
 * same bit for bit. A drawn one may differ from the host's where a random number falls on the border between
 * two tokens to 6 digits, since exponentials and sums are the device's own. */
#ifndef PGPT_OPS_SAMPLE_H
#define PGPT_OPS_SAMPLE_H

#include "graph/op.h"

/* Tensors of i32 words hold these; the host writes them as they are. */
typedef struct {
    double temperature, top_p; /* see SamplerOptions */
    uint64_t seed;
    int64_t top_k;
    int64_t n_vocabulary; /* tokens below this are drawn; logits behind them are not looked at */
} SampleSettings;

typedef struct {
    uint64_t sample;    /* its number in the random stream */
    uint64_t position;  /* of the next token in its text */
    uint32_t n_picks;   /* made so far; pick n goes to place n % N */
    int32_t is_drawing; /* 0: the sequence rests, and everything about it stays as it is */
} SampleRow;

/* A logit that is not finite is no token: `token` is then -1 minus its number and log_probability its value,
 * and the sequence rests from there on. */
typedef struct {
    int32_t token;
    float log_probability; /* under the model's own distribution */
} SamplePick;

enum {
    N_SAMPLE_SETTINGS = sizeof(SampleSettings) / sizeof(int32_t), /* words */
    N_SAMPLE_ROW = sizeof(SampleRow) / sizeof(int32_t),
    N_SAMPLE_PICK = sizeof(SamplePick) / sizeof(int32_t),
};

/* logits (B,V) f32, settings (N_SAMPLE_SETTINGS) -> tokens (B,1), start (B), rows (B,N_SAMPLE_ROW), picks
 * (N,B,N_SAMPLE_PICK), all i32. What is drawn goes to tokens, start grows by 1. */
extern const Op OP_SAMPLE;
void op_sample(Graph *graph, Tensor *logits, Tensor *settings, Tensor *tokens, Tensor *start, Tensor *rows,
               Tensor *picks);

#endif
