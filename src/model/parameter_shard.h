/* How a weight is cut over the ranks of tensor parallelism (tp): which boxes of the whole tensor a rank
 * holds.
 *
 * Ranks compute with what they hold, so the cuts of a block fit together: a rank has some attention heads
 * (rows of qkv, columns of the projection behind it) and some hidden channels (rows of fc, columns of the
 * projection behind it). Rows of qkv are three tensors on top of each other, and SwiGLU's fc two; each is
 * cut by itself, so a rank's rows are up to three boxes, which lie one behind the other in its own tensor.
 * Sizes that do not divide are cut unevenly; where there are fewer heads than ranks, some ranks have none. */
#ifndef PGPT_MODEL_PARAMETER_SHARD_H
#define PGPT_MODEL_PARAMETER_SHARD_H

#include "graph/box.h"
#include "model/config.h"
#include "parallel/tensor_style.h"

typedef enum {
    SHARD_NONE,           /* every rank has all of it */
    SHARD_FIRST,          /* the first rank has all of it: what is added once to a sum over the ranks */
    SHARD_TOKEN_ROWS,     /* the vocabulary's tables, by tokens */
    SHARD_QKV_ROWS,       /* by heads, within each of the query, key and value parts of the rows */
    SHARD_HEAD_COLUMNS,   /* inputs, by query heads */
    SHARD_HIDDEN_ROWS,    /* by hidden channels, SwiGLU's within each of its halves */
    SHARD_HIDDEN_COLUMNS, /* inputs, by hidden channels */
    SHARD_INPUT_COLUMNS,  /* inputs, whatever they are: see TENSOR_ROW */
    SHARD_ALIKE,          /* every rank has all of it, and makes a part of its gradient */
    SHARD_EXPERT_ROWS,    /* of experts (E,..): by hidden channels, the last dim but one */
    SHARD_EXPERT_COLUMNS, /* and the last */
} ShardRule;

/* The rule in another style (TENSOR_COLUMN is what rules are written for): weights of layers that are split
 * are cut by their inputs, and their biases are added once. */
ShardRule shard_rule_in(TensorStyle style, ShardRule rule, Shape whole);

/* Part `part` of n things cut evenly; the first ones are larger by one if it does not come out even. */
typedef struct {
    int64_t first, n;
} ShardSpan;
ShardSpan shard_span(int64_t n, int64_t n_parts, int64_t part);

/* The heads of a rank. Query heads that share a key/value head stay with it; where ranks are more than
 * key/value heads, several hold the same one and share out its query heads. So a rank's attention is
 * always a smaller one of its kind: query.n / key.n of its query heads use the same key/value head. */
typedef struct {
    ShardSpan query, key;
    int first_holder, n_holders; /* tp coordinates that hold the same key/value heads */
} ShardHeads;
ShardHeads shard_heads(const ModelConfig *config, int n_ranks, int rank);

/* The same number for ranks that hold the same key/value heads; of its own for one that has none. */
int shard_heads_group(const ModelConfig *config, int n_ranks, int rank);

/* Ranks that hold the same key/value heads have queries of their own in front of them. Are those heads whole
 * in blocks of n_block elements, which are then the same on all of them? And do they begin at the same
 * element? */
bool shard_heads_fill_blocks(const ModelConfig *config, int n_ranks, int64_t n_block);
bool shard_heads_begin_alike(const ModelConfig *config, int n_ranks);

typedef struct {
    Box box;                     /* of the whole tensor */
    int first_holder, n_holders; /* tp coordinates that hold the same box, this rank's among them */
    bool is_owner;               /* of those that hold it one counts it in norms and saves it: the first */
} ShardBox;

enum { SHARD_MAX_BOXES = 3 };
typedef struct {
    int n_boxes; /* none: there is nothing for this rank */
    ShardBox box[SHARD_MAX_BOXES];
} ParameterShard;

/* What rank `rank` of n_ranks holds of a tensor of a (complete) model. Boxes that touch and belong
 * together are one. */
ParameterShard parameter_shard_cut(const ModelConfig *config, ShardRule rule, Shape whole, int n_ranks,
                                   int rank);

/* The shape of the rank's own tensor: the boxes stacked along the first dim. */
Shape parameter_shard_shape(const ParameterShard *shard, ShardRule rule, Shape whole);

#endif
