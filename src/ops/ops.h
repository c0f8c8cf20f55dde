/* The operations: builders that model code calls, and the attributes that kernels read.
 *
 * A builder checks shapes, creates the outputs and records one node; the gradient rules record the *_BACKWARD
 * and *_GRADIENT ops. Shapes: B sequences, T positions, C channels, V vocabulary, NH heads, HS head size;
 * (N,C) means any number of leading dims that multiply to N rows. Inputs and outputs in brackets may be NULL.
 * An output Σname is the sums of the columns of another, as that is stored: the gradient of a bias, which
 * graph/passes/sums.h gives to whoever makes dy.
 *
 * Inputs that change from step to step (learning rate, dropout seed) are tensors in PLACE_INPUT, never
 * attributes: a recorded program is replayed as it is. */
#ifndef PGPT_OPS_OPS_H
#define PGPT_OPS_OPS_H

#include "graph/op.h"
#include "graph/passes/autograd.h"

/* Which rows of a batch x (n,C) has, where they are split among ranks; {0}: all of them, x being (B,...).
 * A group of ranks has `length` positions of every sequence: the first `head` of them are those from start[0]
 * on, the others those from start[1] on. Row i of x is row first + i of the group's. What is drawn for an
 * element depends on its sequence and position alone. */
typedef struct {
    int64_t first, length, head, start[2];
} RowSplit;

typedef struct {
    int64_t sequence, position; /* of the batch */
} RowPosition;

static inline RowPosition row_position(const RowSplit *split, int64_t row) {
    int64_t at = split->first + row, t = at % split->length;
    return (RowPosition){at / split->length,
                         t < split->head ? split->start[0] + t : split->start[1] + t - split->head};
}

/* Which positions the T rows of a sequence have: row t has start + t, and from row `head` on `skip` more.
 * {0}: 0, 1, 2, ... */
typedef struct {
    int64_t start, head, skip;
} RowPositions;

static inline int64_t row_place(const RowPositions *positions, int64_t t) {
    return positions->start + t + (t >= positions->head ? positions->skip : 0);
}

/* And the row that has this position; -1: none of the n_rows has. */
static inline int64_t row_at_place(const RowPositions *positions, int64_t n_rows, int64_t place) {
    int64_t t = place - positions->start;
    if (t >= positions->head) t -= positions->skip;
    bool is_here = t >= 0 && t < n_rows && row_place(positions, t) == place;
    return is_here ? t : -1;
}

/* The input `start` of the operations that know positions: (B), the position of each sequence's first row,
 * which is added to row_place; or (B,T), those of all rows, whatever row_place says; or none. */
static inline bool start_is_right(const Tensor *start, int64_t B, int64_t T) {
    return start->dtype == DTYPE_I32 &&
           (start->shape.n_dims == 2 ? start->shape.dim[0] == B && start->shape.dim[1] == T
                                     : tensor_count(start) == B);
}

static inline bool start_is_by_row(const Tensor *start) {
    return start && start->shape.n_dims == 2;
}

/* Where row t of sequence b is. */
static inline int64_t start_place(const RowPositions *positions, const Tensor *tensor, const int32_t *start,
                                  int64_t b, int64_t t) {
    if (start_is_by_row(tensor)) return start[b * tensor->shape.dim[1] + t];
    return row_place(positions, t) + (start ? start[b] : 0);
}

/* ---- embedding.c ------------------------------------------------------------------------------------------
 * y (B,T,C) = token[tokens] + [position[start_place(b,t)]]. tokens (B,T) i32, token table (V,C), [position
 * table (P,C)], [start (B) or (B,T) i32]. Gradients: (dy, tokens) -> dtoken table; (dy, [start]) -> dposition
 * table; rows that nobody read become 0. */
typedef struct {
    RowPositions positions;
    /* The table has rows of tokens first_token .. first_token + n_tokens - 1, of n_all that there are; rows
     * behind them pad it. A token that is not among them gets zeros: another rank has it. */
    int64_t first_token, n_tokens, n_all;
} EmbeddingAttributes;
extern const Op OP_EMBEDDING, OP_EMBEDDING_TOKEN_GRADIENT, OP_EMBEDDING_POSITION_GRADIENT;
Tensor *op_embedding(Graph *graph, Tensor *tokens, Tensor *token_table, Tensor *position_table,
                     Tensor *start);
Tensor *op_embedding_padded(Graph *graph, Tensor *tokens, Tensor *token_table, int64_t n_tokens,
                            Tensor *position_table, Tensor *start);
/* The same of a part of the vocabulary; the positions are taken from there too. */
Tensor *op_embedding_part(Graph *graph, Tensor *tokens, Tensor *token_table, Tensor *position_table,
                          Tensor *start, const EmbeddingAttributes *attributes);

/* ---- layernorm.c, rmsnorm.c -------------------------------------------------------------------------------
 * y (N,C); also outputs mean (N) and rstd (N) (rmsnorm: rstd only). Backward: (dy, x, weight, [mean,] rstd)
 * -> dx, dweight, [dbias]. */
typedef struct {
    float epsilon;
} NormAttributes;
extern const Op OP_LAYERNORM, OP_LAYERNORM_BACKWARD, OP_RMSNORM, OP_RMSNORM_BACKWARD;
Tensor *op_layernorm(Graph *graph, Tensor *x, Tensor *weight, Tensor *bias /* or NULL */, float epsilon);
Tensor *op_rmsnorm(Graph *graph, Tensor *x, Tensor *weight, float epsilon);

/* ---- residual_norm.c --------------------------------------------------------------------------------------
 * sum (N,C) = stream + dropout(branch) and normed (N,C), its layernorm or rmsnorm; also outputs [mean (N)]
 * and rstd (N). Bit for bit what op_dropout, op_add and the norm give; without dropout random is NULL.
 * Backward: (dnormed, sum, weight, [mean], rstd, [random]) -> dsum, dweight, [dbias], [dbranch], [Σdbranch],
 * where dbranch is the mask times all of dsum: what the node makes of it and, if it adds, what was there. No
 * dbranch without dsum. */
typedef struct {
    float epsilon;
    bool has_mean;     /* layernorm; else rmsnorm, which has no bias */
    float probability; /* of dropout; 0: none */
    int site;
    RowSplit rows;
} ResidualNormAttributes;
typedef struct {
    Tensor *sum, *normed;
} ResidualNorm;
extern const Op OP_RESIDUAL_NORM, OP_RESIDUAL_NORM_BACKWARD;
ResidualNorm op_residual_norm(Graph *graph, Tensor *stream, Tensor *branch, Tensor *weight,
                              Tensor *bias /* or NULL */, Tensor *random,
                              const ResidualNormAttributes *attributes);

/* ---- linear.c ---------------------------------------------------------------------------------------------
 * y (N,Co) = activation(x (N,Ci) · weightᵀ + [bias (Co)]) + [residual (N,Co)]; weight is (Co,Ci). With an
 * activation, a second output is the value before it, which the backward needs. OP_LINEAR_INPUT_GRADIENT:
 * (dy, weight, [before]) -> dx, [Σdx], times the activation's slope at `before` (N,Ci), which comes with an
 * activation and only then. OP_LINEAR_WEIGHT_GRADIENT: (dy, x) -> dweight, [dbias]. */
typedef enum { ACTIVATION_NONE, ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF } Activation;
typedef struct {
    Activation activation;
} LinearAttributes;
extern const Op OP_LINEAR, OP_LINEAR_INPUT_GRADIENT, OP_LINEAR_WEIGHT_GRADIENT;
Tensor *op_linear(Graph *graph, Tensor *x, Tensor *weight, Tensor *bias, Tensor *residual,
                  Activation activation);

/* ---- gelu.c, swiglu.c -------------------------------------------------------------------------------------
 * gelu: y = x·Φ(x), by tanh or erf; backward (dy, x) -> dx, attributes LinearAttributes. swiglu: x (N,2F) ->
 * y (N,F) = silu(x[:, :F]) · x[:, F:]; backward (dy, x) -> dx. */
extern const Op OP_GELU, OP_GELU_BACKWARD, OP_SWIGLU, OP_SWIGLU_BACKWARD;
Tensor *op_gelu(Graph *graph, Tensor *x, Activation activation);
Tensor *op_swiglu(Graph *graph, Tensor *x);
float gelu_value(float x, Activation activation);
float gelu_slope(float x, Activation activation);
double gelu_slope_flops(Activation activation); /* of the slope, times dy */

/* ---- attention/attention.c, attention/attention_cached.c, rotary.c
 * ----------------------------------------- qkv (B,T,(NH+2·NKV)·HS): a row holds all query heads, all key
 * heads, all value heads; query head h reads key/value head h / (NH/NKV). attention: y (B,T,NH·HS) and lse
 * (B,NH,T), causal. Backward (dy, qkv, y, lse, [random]) -> dqkv, [Σdqkv]. Dropout on the weights draws
 * element ((first_head+h)·T + q)·T8 + k, T8 = T rounded up to 8. attention_cached: new rows are stored in the
 * caches (B,NKV,capacity,HS) at start[b].., then attend to all up to themselves; outputs y and the two
 * caches, which change in place. rotary: rotates pairs (i, i+HS/2) of queries and keys by
 * position·theta^(-2i/HS); backward rotates back; [start] is as that of the embedding. */
typedef struct {
    int n_heads, n_kv_heads, head_size;
    float scale;
    float dropout; /* probability; 0: the random input is NULL */
    int site;      /* which dropout of the model this is: no two share a stream */
    int first_head;
} AttentionAttributes;
extern const Op OP_ATTENTION, OP_ATTENTION_BACKWARD, OP_ATTENTION_CACHED;
Tensor *op_attention(Graph *graph, Tensor *qkv, Tensor *random, const AttentionAttributes *attributes);
Tensor *op_attention_cached(Graph *graph, Tensor *qkv, Tensor *start, Tensor *key_cache, Tensor *value_cache,
                            const AttentionAttributes *attributes);

/* ---- attention/attention_part.c
 * ---------------------------------------------------------------------------- attention_part: attention of
 * queries q (B,Tq,NH·HS) over some of the keys and values that they may see, kv (B,Tk,2·NKV·HS): a row holds
 * all key heads, then all value heads. Either has its positions, and a query sees the keys up to its own.
 * What earlier parts have made of other keys, [y and lse], is merged with it by log-sum-exp: with all parts
 * of a sequence y (B,Tq,NH·HS) f32 and lse (B,NH,Tq) are those of `attention`. A query that has seen no key
 * yet has y = 0 and lse = -inf. (q, kv, [random], [y], [lse]) -> y, lse. Dropout draws as that of a sequence
 * of n_positions does. Backward of one part: (dy, q, kv, y, lse, [random]) -> dq, dkv, with y and lse of all
 * parts. */
typedef struct {
    AttentionAttributes heads;
    RowPositions queries, keys;
    int64_t n_positions; /* of the whole sequence */
} AttentionPartAttributes;
typedef struct {
    Tensor *y, *lse;
} AttentionPart;
extern const Op OP_ATTENTION_PART, OP_ATTENTION_PART_BACKWARD;
/* `before`: what this part goes on from; NULL: it is the first. */
AttentionPart op_attention_part(Graph *graph, Tensor *q, Tensor *kv, Tensor *random,
                                const AttentionPart *before, const AttentionPartAttributes *attributes);

typedef struct {
    int n_heads, n_kv_heads, head_size;
    float theta;
    RowPositions positions;
    bool inverse;
} RotaryAttributes;
extern const Op OP_ROTARY;
Tensor *op_rotary(Graph *graph, Tensor *qkv, Tensor *start /* or NULL */, const RotaryAttributes *attributes);

/* ---- add.c, copy.c, dropout.c, gather.c, sum.c, zero.c ----------------------------------------------------
 * add: y = a + b. copy: y = x. zero: y = 0. gather: y (M,C) = x[rows (M) i32] (inference only). sum: out +=
 * or = scale · Σ x. dropout: y = x · mask / (1-p); element i of sequence b draws index i of row
 * first_sequence + b; its backward is the same op on dy. x is (B, ...). */
typedef struct {
    float probability;
    int site;
    RowSplit rows;
} DropoutAttributes;
typedef struct {
    float scale;
} SumAttributes;
extern const Op OP_ADD, OP_COPY, OP_DROPOUT, OP_GATHER, OP_SUM, OP_ZERO;
Tensor *op_add(Graph *graph, Tensor *a, Tensor *b);
Tensor *op_copy(Graph *graph, Tensor *x);
void op_copy_into(Graph *graph, Tensor *x, Tensor *y, WriteMode mode);
void op_zero(Graph *graph, Tensor *y);
/* Zeros of x's type in this shape, whose gradient is zeros of x's: where a rank has no part of a layer. */
Tensor *op_blank(Graph *graph, Tensor *x, Shape shape);
Tensor *op_dropout(Graph *graph, Tensor *x, Tensor *random, float probability, int site);
Tensor *op_dropout_split(Graph *graph, Tensor *x, Tensor *random, const DropoutAttributes *attributes);
Tensor *op_gather(Graph *graph, Tensor *x, Tensor *rows);
/* Adds into `total` (a scalar in PLACE_STATE) over the micro-batches of a step. */
void op_sum(Graph *graph, Tensor *x, Tensor *total, float scale);

/* The random input of dropout: i32 words written by the host before every micro-batch. Of the sequences that
 * it has room for the first RANDOM_N_SEQUENCES are there, the others are empty. */
enum {
    RANDOM_SEED_LOW,
    RANDOM_SEED_HIGH,
    RANDOM_STEP,
    RANDOM_FIRST_SEQUENCE,
    RANDOM_N_SEQUENCES,
    N_RANDOM_WORDS
};

/* ---- pack.c -----------------------------------------------------------------------------------------------
 * pack: the parts of dimension `dim` of x, (outer, size, inner), laid one after the other, each (outer, n,
 * inner); part p is border[p] .. border[p+1]-1 and may be empty. y is (rows, columns of x), or (N,1) where
 * dim is the last. unpack: back to `shape`. What goes to one rank then lies together (parallel/conjugate.h).
 * Each is the other's backward. pack_pieces: a part is several pieces side by side, (outer, n, inner)
 * together: piece i of part p is border[i·n_parts + p] .. border[i·n_parts + p + 1]-1, of
 * n_pieces·n_parts. */
enum { PACK_MAX_PARTS = 64, PACK_MAX_PIECES = 3 };
typedef struct {
    int64_t outer, inner;
    int n_parts, n_pieces;
    bool inverse; /* unpack */
    int64_t border[PACK_MAX_PARTS * PACK_MAX_PIECES + 1];
    int64_t part[PACK_MAX_PARTS + 1]; /* where each begins, when all lie one after the other */
} PackAttributes;
extern const Op OP_PACK;
Tensor *op_pack_pieces(Graph *graph, Tensor *x, int dim, int n_parts, int n_pieces, const int64_t *border);
Tensor *op_pack(Graph *graph, Tensor *x, int dim, int n_parts, const int64_t *border);
Tensor *op_unpack(Graph *graph, Tensor *x, Shape shape, int dim, int n_parts, const int64_t *border);

/* ---- cross_entropy.c --------------------------------------------------------------------------------------
 * logits (N,V), targets (N) i32 (a negative target is ignored), [scale (1)] -> losses (N). When the logits
 * need a gradient, the same pass leaves dlogits = gradient_scale · (softmax - onehot), which may take over
 * the memory of the logits; the gradient rule only hands it on. Columns from n_classes on are padding: no
 * part of the softmax, and of gradient 0. */
typedef struct {
    float gradient_scale;
    int64_t n_classes; /* 1 .. V */
} CrossEntropyAttributes;
extern const Op OP_CROSS_ENTROPY;
Tensor *op_cross_entropy(Graph *graph, Tensor *logits, Tensor *targets, float gradient_scale);
/* The same into an existing tensor, a part of a longer one say. */
void op_cross_entropy_into(Graph *graph, Tensor *logits, Tensor *targets, Tensor *losses,
                           float gradient_scale);
/* And with the gradient times [scale (1)], which the host may change from step to step (16-bit gradients need
 * it), and of the first n_classes columns. */
void op_cross_entropy_scaled(Graph *graph, Tensor *logits, Tensor *targets, Tensor *scale, Tensor *losses,
                             const CrossEntropyAttributes *attributes);

/* Of a vocabulary that is split among ranks: logits (N,V/n) are of classes first_class .. first_class +
 * n_classes - 1. The first makes what a rank knows of each row, (N,3): greatest logit, Σ e^(logit -
 * greatest), the target's logit or 0. With that of all n ranks, (n,N,3), the second makes the losses, which
 * are the same on every rank, and this rank's dlogits. */
typedef struct {
    float gradient_scale;
    int64_t first_class, n_classes, n_all; /* here, and of the whole vocabulary */
} SplitEntropyAttributes;
enum { ENTROPY_PARTS = 3 };
extern const Op OP_SPLIT_ENTROPY_PART, OP_SPLIT_ENTROPY;
Tensor *op_split_entropy_part(Graph *graph, Tensor *logits, Tensor *targets,
                              const SplitEntropyAttributes *attributes);
void op_split_entropy(Graph *graph, Tensor *logits, Tensor *targets, Tensor *parts, Tensor *scale,
                      Tensor *losses, const SplitEntropyAttributes *attributes);

/* ---- squared_error.c --------------------------------------------------------------------------------------
 * predictions and targets of one type, N of each -> losses (N) = (prediction - target)². When the predictions
 * need a gradient, the same pass leaves dpredictions = gradient_scale · 2 · (prediction - target), which may
 * take over their memory; the gradient rule only hands it on. */
typedef struct {
    float gradient_scale;
} SquaredErrorAttributes;
extern const Op OP_SQUARED_ERROR;
Tensor *op_squared_error(Graph *graph, Tensor *predictions, Tensor *targets, float gradient_scale);

/* ---- norm.c -----------------------------------------------------------------------------------------------
 * squared_norm: total (1) += or = Σ x². clip: total, [scale] -> factor min(1, max_norm/norm)/scale (1), norm
 * (1), where the norm is √total/scale; a norm that is no finite number makes a factor that is none, and the
 * update then does nothing. The updates themselves are in update/, one an optimizer, with a header each. */
typedef struct {
    float max_norm; /* 0: measure only, the factor is 1 */
} ClipAttributes;

/* A squared_norm that is cut into several nodes, in order, where the whole may be: elements first .. of
 * n_all; what they leave each other is in a second output, SQUARED_NORM_ROOM numbers. Attributes NULL: one
 * node. The last gives the bits of the whole. On the CPU. */
typedef struct {
    int64_t first, n_all;
} SquaredNormPart;
enum { SQUARED_NORM_BLOCKS = 256, SQUARED_NORM_ROOM = 2 * SQUARED_NORM_BLOCKS /* doubles, as f32 */ };
int64_t squared_norm_grain(DType dtype, int64_t n); /* multiples of this many elements */
void op_squared_norm_part(Graph *graph, Tensor *x, Tensor *total, bool add, SquaredNormPart part,
                          Tensor *room);

extern const Op OP_SQUARED_NORM, OP_CLIP;
void op_squared_norm(Graph *graph, Tensor *x, Tensor *total, bool add);
void op_clip(Graph *graph, Tensor *total, Tensor *factor, Tensor *norm, float max_norm);
void op_clip_scaled(Graph *graph, Tensor *total, Tensor *scale, Tensor *factor, Tensor *norm, float max_norm);

#endif
