/* GPT, recorded: one description of the model for training, evaluation and generation, on every device. */
#ifndef PGPT_MODEL_GPT_H
#define PGPT_MODEL_GPT_H

#include "comm/comm.h"
#include "graph/traits.h"
#include "model/parameters.h"
#include "ops/attention/sparse_attention.h"
#include "parallel/ring_attention.h"

/* How the layers are split among ranks; {0}: they are not. The parameter table is then this rank's part
 * (parameters_build_part).
 *
 * With tensor parallelism (Megatron's) a rank has some heads, some hidden channels and some tokens of the
 * vocabulary. Each pair of linear layers is split by columns, then by rows: one all-reduce forward and one
 * backward. With sequence parallelism, what lies between the pairs (norms, dropout, residual stream) is split
 * by rows: each all-reduce becomes a reduce-scatter and an all-gather of the same bytes, and these
 * activations shrink by the number of ranks.
 *
 * With context parallelism a rank has some positions of every sequence (gpt_rows), and attention alone knows
 * of the others. With expert parallelism it has some of the experts of each block that has any. */
typedef struct {
    Comm *tp, *cp, *ep; /* NULL: alone */
    TensorStyle style;  /* TENSOR_ROW: each linear layer by its inputs, the rest whole on every rank */
    ContextStyle context;
    /* Parts of a micro-batch, by sequences, that take turns: the messages of one (of tp, and of ep) travel
     * while the next is computed. At most one a sequence; 0 is 1. Not with TENSOR_ROW, nor in a pipeline. */
    int n_parts;
    bool by_block;    /* the parts meet after every block */
    bool by_sequence; /* sequence parallelism, along tp; not with TENSOR_ROW */
    /* Of ep: every rank has the same rows, makes the part of their result that its experts are for, and the
     * parts are summed; else each has rows of its own, which go to where their experts are. */
    bool has_same_rows;
} GptSplit;

/* The positions that this rank has of a sequence of T. */
ContextRows gpt_rows(const GptSplit *split, int64_t T);

typedef struct {
    int64_t B, T;      /* of one micro-batch, of all ranks of cp together */
    double loss_scale; /* the loss and its gradient are summed with this factor: 1 / tokens of a whole step */
    int64_t loss_chunk_tokens;   /* rows of logits in memory at a time; 0: chosen by size */
    const BackendTraits *traits; /* of the device that it is recorded for; NULL: the host's */
    bool is_training;            /* with dropout, and room for gradients in the loss */
    DType dtype;                 /* of weights and activations */
    int64_t recompute;           /* blocks that recompute_run will take together; 0: it will not run */
    int64_t recompute_first;     /* or the first blocks that recompute_first will take, one by one */
    GptSplit split;
    bool scales_loss; /* the gradient is multiplied by a number that the host writes: see GptLoss */
    const ParameterTensors *parameters; /* recorded already, for another stage in the same graph; NULL: not */
    Tensor *sequences;                  /* likewise */
    Tensor *reports;                    /* likewise: GptLoss.reports */
} GptLossOptions;

/* Inputs and outputs of a recorded forward pass with its loss. */
typedef struct {
    ParameterTensors parameters;
    /* (B,T) and (B·T) i32 in PLACE_INPUT, of this rank's positions; a negative target is left out of the
     * loss */
    Tensor *tokens, *targets;
    /* (B,T) i32 in PLACE_INPUT: the tokens of all positions of the sequences, where a document mask needs
     * them and `tokens` is not that: without an embedding, or with context parallelism; else NULL */
    Tensor *sequences;
    Tensor *random; /* see ops.h, one behind the other for each part; NULL where nobody reads it, and where it
                     * is no training */
    Tensor *scale;  /* (1) in PLACE_INPUT: what gradients are multiplied by; NULL unless scales_loss */
    Tensor *losses; /* (B·T) cross-entropy of every token */
    Tensor *loss;   /* scalar in PLACE_STATE: the sum over a step's micro-batches, scaled */
    /* (blocks with experts here, E + N_ROUTE_COUNTS) in PLACE_STATE: what a step's routers report, by
     * parameter_router_row; see ops/experts/experts.h. NULL: there are none, or it is no training. */
    Tensor *reports;
    /* What a step says of the predictors of blocks that some positions go by, summed over micro-batches,
     * (N_DEPTH_NUMBERS) in PLACE_STATE: mean cross-entropy, and share of right guesses; of all ranks along dp
     * and pp together, and along tp where its ranks share out rows. NULL as above. */
    Tensor *depth;
} GptLoss;

enum { DEPTH_LOSS, DEPTH_HITS, N_DEPTH_NUMBERS };

/* How many there are; part i has sequences shard_span(B, n, i). */
int gpt_n_parts(const GptLossOptions *options);

GptLoss gpt_record_loss(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                        const GptLossOptions *options);

/* A stage: a run of blocks, with or without the embedding before them and the head with its loss behind
 * them. */
typedef struct {
    int first_block, end_block;
    bool has_embedding, has_head;
} GptStage;

GptStage gpt_whole(const ModelConfig *config);

/* What goes into a stage and comes out of it; those of the whole model have neither. */
typedef struct {
    GptLoss loss;     /* without a head: no loss, losses and targets; without an embedding: no tokens */
    Tensor *input;    /* (B,T,C) the residual stream; NULL with an embedding */
    Tensor *embedded; /* (B,T,C) what the blocks begin with: the embedding's output, or the input */
    Tensor *output;   /* (B,T,C) likewise; NULL with a head */
} GptStageTensors;

/* Stages of a model compute, one behind the other, what the whole does, to the bit: what crosses is one
 * tensor. `input`: where it comes from, of gpt_stream_shape; NULL: the stage has an embedding, or the host
 * writes it. */
GptStageTensors gpt_record_stage(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                                 const GptLossOptions *options, const GptStage *stage, Tensor *input);

/* Of what crosses from stage to stage: this rank's rows of the residual stream. */
Shape gpt_stream_shape(const ModelConfig *config, const GptLossOptions *options);

/* A step of generation: T new tokens for each of B sequences, whose earlier keys and values are cached. */
typedef struct {
    ParameterTensors parameters;
    Tensor *tokens;         /* (B,T) i32 */
    Tensor *start;          /* (B) i32: how many tokens of each sequence are cached already */
    Tensor *rows;           /* (B) i32: which of the B·T rows to predict from, one a sequence */
    Tensor *caches;         /* of this rank's heads and blocks, keys before values; NULL: it has none */
    Tensor *next_documents; /* (B,capacity) i32: see op_document_starts_cached; NULL: no document mask */
    Documents documents;    /* of the new tokens, once a stage has asked for them */
    int64_t n_cached;       /* positions of keys and values of the blocks that are recorded */
    Tensor *counts;         /* (blocks with a router,B,capacity+1) i32, see ops/depth/depth.h; NULL: none */
    int64_t n_counted;      /* such blocks that are recorded */
    Tensor *logits;         /* (B,V) of those rows, f32; NULL without a head */
} GptDecode;

typedef struct {
    int64_t B, T;
    int64_t capacity; /* positions that are cached for every sequence; less where a window sees no more */
    int64_t most_new; /* the greatest T of all programs that share the caches; 0: this one's */
    DType dtype;
    GptSplit
        split; /* along tp, never by sequence: every rank has all rows, its own heads' cache and all logits */
} GptDecodeOptions;

/* Rows past the real ones may be padding, whose entries later tokens overwrite. */
GptDecode gpt_record_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                            const GptDecodeOptions *options);

/* The same stage by stage, where a rank has one or more of them. First what they share: inputs, and caches of
 * the blocks of all stages here. Then each, in the order of the model: what it makes of `input`
 * (B,T,C), or with an embedding (input NULL) of the tokens. Returns (B,T,C), or NULL with a head, which has
 * the logits. */
GptDecode gpt_begin_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                           const GptDecodeOptions *options, const GptStage *stages, int n_stages);
Tensor *gpt_record_decode_stage(const ModelConfig *config, Graph *graph, const GptDecodeOptions *options,
                                const GptStage *stage, Tensor *input, GptDecode *decode);

#endif
