/* What the files that record GPT share: the state of a recording, and the layers that branches are made of.
 * Private to gpt*.c. */
#ifndef PGPT_MODEL_GPT_WRITER_H
#define PGPT_MODEL_GPT_WRITER_H

#include "model/gpt.h"
#include "ops/attention/sparse_attention.h"
#include "ops/experts/experts.h"
#include "parallel/conjugate.h"
#include "parallel/expert_exchange.h"

/* What sparse attention goes by; {0}: all blocks are dense. */
typedef struct {
    Documents documents; /* of the rows here; NULL: there is no document mask */
    Tensor *whole;       /* (B,n_positions): starts of all rows of the sequences, where lists need them */
    Tensor *blocks[CONFIG_MAX_PATTERNS]; /* lists, one a pattern; NULL: not needed */
} GptMasks;

/* What blocks that some positions go by (gpt_depth.c) share. */
typedef struct {
    Tensor *report;    /* GptLoss's */
    int *n_recorded;   /* blocks so far that add to it */
    Tensor *counts;    /* GptDecode's */
    int64_t n_counted; /* blocks before this one that have counts there */
} GptDepth;

/* What the pieces of one recording share. */
typedef struct {
    const ModelConfig *config;
    Graph *graph;
    ParameterTensors parameters;
    Tensor *random;          /* NULL: no dropout */
    Tensor *words;           /* the same for routers, which also read how many sequences there are */
    Tensor *scale, *reports; /* GptLoss's */
    double loss_scale;
    bool is_training;
    Tensor *start;    /* NULL: sequences start at position 0 */
    Tensor *places;   /* (B,T) positions of rows that need not follow each other; NULL: they do */
    Tensor *caches;   /* of all blocks, keys before values; NULL: attention within the batch */
    int64_t n_cached; /* positions of keys and values of the blocks before this one */
    Tensor *key_cache, *value_cache; /* of the block being recorded */
    int64_t B, capacity, most_new;   /* most_new: see GptDecodeOptions */
    GptMasks masks;
    int64_t first_sequence; /* of the micro-batch: those before it are other parts' */
    int64_t T;              /* positions of a sequence that are here */
    int64_t n_positions;    /* of n_positions that there are */
    RowPositions positions; /* which they are */
    GptSplit split;
    ShardHeads heads; /* of this rank */
    RowSplit rows;    /* of the residual stream that are here; {0}: all */
    GptDepth depth;
    bool adds_apart; /* what the branches of a block add is summed beside the stream, too (GptPart.made) */
    int64_t n_alone; /* the first blocks of a chunk, each of which is a segment of its own; of the others: */
    int64_t segment; /* blocks whose activations are forgotten and made again together; 0: all are kept */
    DType dtype;
} GptWriter;

/* The residual stream: the sum of everything so far, but for a branch that dropout and its addition are still
 * due for. */
typedef struct {
    Tensor *sum;
    Tensor *branch; /* NULL: none */
    int site;       /* of the branch's dropout */
} GptStream;

/* Tokens on their way to the experts of a block that ranks divide among them, and back. */
typedef struct {
    bool is_under_way;
    Tensor *entered, *shared; /* (B,T,C), and what the experts make of it so far that all tokens pass */
    Routes routes;
    ExpertOrder order;
    ExpertExchange exchange;
    ParallelFlight going, coming;
} GptExperts;

/* Some of a micro-batch's sequences. Where there are several such parts, the messages of one travel while
 * another is computed. */
typedef struct {
    GptWriter r;
    GptStream x;
    ParallelFlight entering, leaving; /* under way */
    Tensor *entered, *branch;         /* what came in, and what the branch has made of it so far */
    GptExperts experts;
    Tensor *made; /* where r.adds_apart: what the branches so far have added */
} GptPart;

/* Where dropout happens; together with the block it names a random stream. */
enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_MLP_OUT, SITES_PER_BLOCK };

static inline int layer_dropout_site(int block, int site) {
    return (block + 1) * SITES_PER_BLOCK + site;
}

/* ---- gpt_layers.c: what every branch is made of */

/* NULL if the model has none, or this rank. */
Tensor *layer_parameter(const GptWriter *r, ParameterRole role, int block);
bool writer_is_split(const GptWriter *r); /* by tensor parallelism */
/* Every linear layer for itself, by its inputs: all else is whole on every rank. */
bool writer_is_split_by_inputs(const GptWriter *r);
bool writer_is_shared(const GptWriter *r); /* the sequences, by context parallelism */
/* Is the residual addition part of the linear layer? */
bool writer_is_fused(const GptWriter *r);
/* What this rank has of the model, and of the n_positions of its sequences. */
void writer_set_split(GptWriter *r, const GptSplit *split);
/* The tokens of the vocabulary that this rank has rows of, in either table. */
ShardSpan writer_token_span(const GptWriter *r);

/* In front of layers that the ranks share: all rows of x, on every rank. */
ParallelFlight layer_enter(GptWriter *r, Tensor *x);
/* Behind them: the sum of what the ranks have made of x; all of it, or this rank's rows. */
ParallelFlight layer_leave(GptWriter *r, Tensor *x);
/* The same in front of a branch, and behind it: where layers are split by inputs, each sees to itself. */
ParallelFlight layer_enter_branch(GptWriter *r, Tensor *x);
ParallelFlight layer_leave_branch(GptWriter *r, Tensor *x);

Tensor *layer_dropout(GptWriter *r, Tensor *x, int site);
Tensor *layer_norm(GptWriter *r, GptStream *x, ParameterRole weight, ParameterRole bias, int block);
/* The first layer of a pair, from what this rank has of it. */
Tensor *layer_linear(GptWriter *r, Tensor *x, ParameterRole weight, ParameterRole bias, Activation activation,
                     int block);
/* The second, of `branch`, from what this rank has of both; NULL: nothing, of what it has entered. */
Tensor *layer_projection(GptWriter *r, Tensor *branch, Tensor *entered, ParameterRole weight,
                         ParameterRole bias, Tensor *residual, int block);
/* x + dropout(y), y being what a branch has made. */
void layer_residual(GptWriter *r, GptStream *x, Tensor *y, int block, int site);
/* What is forgotten block by block is made again from what crosses the border between blocks: that is to be
 * one tensor. */
void layer_border(GptWriter *r, GptStream *x);

/* ---- gpt_attention.c */

/* Attention of this rank's heads of h (B,T,C); NULL: it has none. */
Tensor *layer_attention(GptWriter *r, Tensor *h, int block);
/* Keys and values of this block: views of one tensor, as parameters are, so that an operation that works on
 * many of them can name them all. */
void layer_caches(GptWriter *r, int block);

/* ---- gpt_depth.c */

/* A block that some positions of a sequence pass, and the others go by. */
void gpt_record_depth(GptPart *part, int block);
/* Behind a branch, where it is summed apart: y is what it has made, dropout not done. */
void depth_residual(GptPart *part, Tensor *y, int block, int site);

/* ---- gpt_experts.c */

/* What the experts of this block make of h (B,T,C), or this rank's channels of them; NULL: it is under way,
 * and comes with layer_experts_end. */
Tensor *layer_experts(GptWriter *r, GptExperts *experts, Tensor *h, int block);
Tensor *layer_experts_end(GptWriter *r, GptExperts *experts, int block);
/* Do rows of this block go to other ranks? Then they may set out early, before layer_experts. */
bool layer_exchanges_experts(const GptWriter *r, int block);
void layer_experts_begin(GptWriter *r, GptExperts *experts, Tensor *h, int block);
/* Room for what the routers of a rank report; NULL: there are none. */
Tensor *gpt_record_reports(const ModelConfig *config, const ParameterTable *table, Graph *graph);

/* ---- gpt_masks.c: what sparse attention goes by */

/* From the tokens of the writer's sequences, (B,n_positions), for blocks first .. end - 1. */
void writer_record_masks(GptWriter *r, Tensor *sequences, int first, int end);
/* Of a block; false: its attention is dense. */
bool writer_mask(const GptWriter *r, int block, AttentionMask *mask);
/* Where rows are, for whoever knows positions: NULL, or as op_embedding and op_rotary take it. */
Tensor *writer_start(const GptWriter *r);
/* Rows of a block's cache. */
int64_t writer_capacity(const GptWriter *r, int block);

/* ---- gpt_head.c */

Tensor *writer_head_weight(const GptWriter *r);
/* The final norm, the head and the losses of all parts. */
void gpt_record_heads(GptPart *parts, int n_parts, const GptLossOptions *options, GptLoss *loss);

/* ---- gpt.c */

/* This rank's hidden channels of h (B,T,C), of a block's MLP or shared experts; NULL: it has none. */
Tensor *layer_mlp(GptWriter *r, Tensor *h, int block);
/* (B,T) tokens to where the streams of all parts begin. */
void gpt_record_embeddings(GptPart *parts, int n_parts, Tensor *tokens);
/* Halves first .. end - 1 of blocks of all parts; block i has halves 2·i and 2·i+1. */
void gpt_record_halves(GptPart *parts, int n_parts, int first, int end);
/* Blocks first .. end - 1 of all parts. */
void gpt_record_blocks(GptPart *parts, int n_parts, int first, int end);

#endif
