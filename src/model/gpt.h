/* GPT, recorded: one description of the model for training, evaluation and generation, on every device. */
#ifndef PGPT_MODEL_GPT_H
#define PGPT_MODEL_GPT_H

#include "model/parameters.h"

typedef struct {
    int64_t B, T;      /* of one micro-batch */
    double loss_scale; /* the loss and its gradient are summed with this factor: 1 / tokens of a whole step */
    int64_t loss_chunk_tokens; /* rows of logits in memory at a time; 0: chosen by size */
    bool has_wide_device;      /* whose products want more rows at a time than a CPU's */
    bool is_training;          /* with dropout, and room for gradients in the loss */
    DType dtype;               /* of weights and activations */
    int64_t recompute;         /* blocks that recompute_run will take together; 0: it will not run */
    bool scales_loss;          /* the gradient is multiplied by a number that the host writes: see GptLoss */
} GptLossOptions;

/* Inputs and outputs of a recorded forward pass with its loss. */
typedef struct {
    ParameterTensors parameters;
    Tensor *tokens,
        *targets;   /* (B,T) and (B·T) i32 in PLACE_INPUT; a negative target is left out of the loss */
    Tensor *random; /* see ops.h; NULL without dropout */
    Tensor *scale;  /* (1) in PLACE_INPUT: what gradients are multiplied by; NULL unless scales_loss */
    Tensor *losses; /* (B·T) cross-entropy of every token */
    Tensor *loss;   /* scalar in PLACE_STATE: the sum over a step's micro-batches, scaled */
} GptLoss;

GptLoss gpt_record_loss(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                        const GptLossOptions *options);

/* A step of generation: T new tokens for each of B sequences, whose earlier keys and values are cached. */
typedef struct {
    ParameterTensors parameters;
    Tensor *tokens; /* (B,T) i32 */
    Tensor *start;  /* (B) i32: how many tokens of each sequence are cached already */
    Tensor *rows;   /* (B) i32: which of the B·T rows to predict from, one a sequence */
    Tensor *logits; /* (B,V) of those rows, f32 */
} GptDecode;

/* `capacity` positions are cached for every sequence; rows past the real ones may be padding, whose entries
 * later tokens overwrite. */
GptDecode gpt_record_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph, DType dtype,
                            int64_t B, int64_t T, int64_t capacity);

#endif
