/* Attention that computes only what its pattern and its documents leave to be seen.
 *
 *     starts, positions = document_starts(tokens)              where documents are; only with a document mask
 *     blocks = attention_blocks(pattern, [starts])             which tiles of 64 x 64 there are: lists
 *     y = sparse_attention(qkv, blocks, [starts])              skips tiles that are absent
 *
 * Query q of sequence b sees key k exactly if pattern_sees(pattern, q, k) and, where there are documents,
 * k >= starts[b,q]. A query always sees itself. With the pattern `dense` and no documents the result is that
 * of `attention`.
 *
 * The lists are made once for all layers with the same pattern. Without documents there is one for all
 * sequences. They are made by a node of the program, since documents are known on the device alone; their
 * size is known when the program is planned: documents only take tiles away. */
#ifndef PGPT_OPS_ATTENTION_SPARSE_ATTENTION_H
#define PGPT_OPS_ATTENTION_SPARSE_ATTENTION_H

#include "ops/attention/attention_pattern.h"
#include "ops/ops.h"

/* ---- document_starts.c ------------------------------------------------------------------------------------
 * document_starts: tokens (B,T) i32 -> starts (B,T) i32, the position at which the document of each token
 * begins, and positions (B,T) i32, how far behind it the token is: row_place(t) - start. A document ends with
 * the token end_token, which is still a part of it. With [tokens of whole sequences, (B,n_positions)], of
 * which this rank has the rows `rows` (context parallelism): starts and positions are of the T rows here.
 *
 * document_starts_cached, for generation: the new tokens (B,T) stand at start[b] .. start[b]+T-1; what is
 * known of earlier ones is in `next` (B,capacity) i32: where the document of the token behind each begins.
 * (tokens, start) -> starts, positions, next, which changes in place; entries start[b].. are written. */
typedef struct {
    int32_t end_token;
    RowPositions rows; /* of the outputs, in a sequence of tokens */
} DocumentAttributes;
typedef struct {
    Tensor *starts, *positions; /* (B,T) i32 */
} Documents;
extern const Op OP_DOCUMENT_STARTS, OP_DOCUMENT_STARTS_CACHED;
/* n_rows: T of the outputs; as many as there are tokens, unless ranks share the sequences. */
Documents op_document_starts(Graph *graph, Tensor *tokens, int64_t n_rows,
                             const DocumentAttributes *attributes);
Documents op_document_starts_cached(Graph *graph, Tensor *tokens, Tensor *start, Tensor *next,
                                    int32_t end_token);

/* ---- attention_blocks.c -----------------------------------------------------------------------------------
 * attention_blocks: ([starts (B,T)]) -> blocks (n_lists,words) i32, n_lists = B with documents, else 1. A
 * list has, one behind the other, Q being the blocks of a sequence and `most` the room for entries:
 *
 *     row_begin    (Q+1)    entries of query block i: row_begin[i] .. row_begin[i+1]-1 of
 *     row          (most)   key blocks that it sees, ascending: forward, and gradients of queries (CSR)
 *     column_begin (Q+1)    entries of key block j
 *     column       (most)   query blocks that see it, ascending: gradients of keys and values (CSC)
 *
 * An entry is 2·block + 1 if the tile is partial: elements have to be masked; 2·block if all of it is seen
 * (as far as there are rows: the last block of a sequence may be short). A block that is partial may turn out
 * to have no visible element where documents begin within it. Row and column entries behind the last are 0.
 * Every query block has its own key block, always, as the last entry of its row and the first of its column,
 * and as a partial one: so a full tile never has keys behind the end of the sequence. */
enum { ATTENTION_BLOCK = 64 };

typedef struct {
    AttentionPattern pattern;
    int64_t n_positions; /* T */
    int64_t most;        /* entries of a list: those of the pattern without documents */
} AttentionBlocksAttributes;

PATTERN_INLINE int64_t attention_n_blocks(int64_t n_positions) {
    return (n_positions + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
}

/* Of a list. */
PATTERN_INLINE int64_t attention_block_words(int64_t n_positions, int64_t most) {
    return 2 * (attention_n_blocks(n_positions) + 1 + most);
}

/* Where the parts of list `list` are; `blocks` as the node writes it. */
typedef struct {
    const int32_t *row_begin, *row, *column_begin, *column;
} AttentionBlockList;

PATTERN_INLINE AttentionBlockList attention_block_list(const int32_t *blocks, int64_t list,
                                                       int64_t n_positions, int64_t most) {
    int64_t n = attention_n_blocks(n_positions) + 1;
    const int32_t *at = blocks + list * attention_block_words(n_positions, most);
    AttentionBlockList parts = {at, at + n, at + n + most, at + 2 * n + most};
    return parts;
}

PATTERN_INLINE int32_t attention_entry(int32_t block, BlockState state) {
    return 2 * block + (state == BLOCK_PARTIAL ? 1 : 0);
}

/* The state of a tile. starts: (T) of the sequence, or NULL. */
PATTERN_INLINE BlockState attention_block_state(const AttentionPattern *pattern, int64_t n_positions,
                                                int32_t q_block, int32_t k_block, const int32_t *starts) {
    int32_t last = (int32_t)n_positions - 1, q_first = q_block * ATTENTION_BLOCK,
            k_first = k_block * ATTENTION_BLOCK;
    int32_t q_last = q_first + ATTENTION_BLOCK - 1 < last ? q_first + ATTENTION_BLOCK - 1 : last,
            k_last = k_first + ATTENTION_BLOCK - 1 < last ? k_first + ATTENTION_BLOCK - 1 : last;
    BlockState state = pattern_state(pattern, q_first, q_last, k_first, k_last);
    if (q_block == k_block) return BLOCK_PARTIAL;
    if (!starts || state == BLOCK_ABSENT) return state;
    return pattern_state_in_documents(state, k_first, k_last, starts[q_first], starts[q_last]);
}

/* Tiles that are not absent, without documents. */
int64_t attention_blocks_of(const AttentionPattern *pattern, int64_t n_positions);

extern const Op OP_ATTENTION_BLOCKS;
Tensor *op_attention_blocks(Graph *graph, Tensor *starts /* or NULL */, const AttentionPattern *pattern,
                            int64_t n_positions);

/* ---- sparse_attention.c -----------------------------------------------------------------------------------
 * sparse_attention: (qkv, blocks, [starts], [random]) -> y (B,T,NH·HS), lse (B,NH,T), laid out and drawn as
 * those of `attention` are. Backward: (dy, qkv, y, lse, blocks, [starts], [random]) -> dqkv, [Σdqkv]. */
typedef struct {
    AttentionAttributes heads;
    AttentionPattern pattern;
    int64_t most; /* entries of a list of blocks */
} SparseAttentionAttributes;
enum { SPARSE_IN_QKV, SPARSE_IN_BLOCKS, SPARSE_IN_STARTS, SPARSE_IN_RANDOM, N_SPARSE_INPUTS };
enum {
    SPARSE_BACK_DY,
    SPARSE_BACK_QKV,
    SPARSE_BACK_Y,
    SPARSE_BACK_LSE,
    SPARSE_BACK_BLOCKS,
    SPARSE_BACK_STARTS,
    SPARSE_BACK_RANDOM,
    N_SPARSE_BACK_INPUTS
};
extern const Op OP_SPARSE_ATTENTION, OP_SPARSE_ATTENTION_BACKWARD;
/* What is seen of a sequence: the lists and what they were made from. */
typedef struct {
    AttentionPattern pattern;
    Tensor *blocks; /* by op_attention_blocks, of the same pattern */
    Tensor *starts; /* or NULL */
} AttentionMask;
Tensor *op_sparse_attention(Graph *graph, Tensor *qkv, Tensor *random, const AttentionMask *mask,
                            const AttentionAttributes *attributes);

/* ---- attention_cached.c -----------------------------------------------------------------------------------
 * As attention_cached, with a pattern and [starts (B,T): where the documents of the new rows begin]. The
 * cache is a ring: position p is in row p % capacity of (B,NKV,capacity,HS), so that a window needs no room
 * for more than it sees. New rows are stored first, at start[b] .., then attend to what they see up to
 * themselves; capacity is n_positions, the most that a text has, or at least reach + T - 1 (pattern_reach),
 * so that no row that is stored takes the place of one that is seen. (qkv, start, [starts]) -> y, and the two
 * caches, which change in place. */
typedef struct {
    AttentionAttributes heads;
    AttentionPattern pattern;
    int64_t n_positions; /* start[b] + T is at most this */
} SparseCachedAttributes;
enum { SPARSE_CACHED_QKV, SPARSE_CACHED_START, SPARSE_CACHED_STARTS, N_SPARSE_CACHED_INPUTS };
extern const Op OP_SPARSE_ATTENTION_CACHED;
Tensor *op_sparse_attention_cached(Graph *graph, Tensor *qkv, Tensor *start, Tensor *starts /* or NULL */,
                                   Tensor *key_cache, Tensor *value_cache,
                                   const SparseCachedAttributes *attributes);
/* Rows that the cache of a pattern needs, where n_new are stored at a time. */
int64_t sparse_cache_capacity(const AttentionPattern *pattern, int64_t n_positions, int64_t n_new);

/* ---- attention_part.c -------------------------------------------------------------------------------------
 * As attention_part, over those of the keys that are seen: (q, kv, [random], [y], [lse], [starts (B,Tq)]) ->
 * y, lse; backward (dy, q, kv, y, lse, [random], [starts]) -> dq, dkv. Pattern and starts are by positions of
 * the whole sequence. There are no lists: a kernel asks pattern_state for the positions of a tile's rows. */
typedef struct {
    AttentionPartAttributes part;
    AttentionPattern pattern;
} SparsePartAttributes;
extern const Op OP_SPARSE_ATTENTION_PART, OP_SPARSE_ATTENTION_PART_BACKWARD;
AttentionPart op_sparse_attention_part(Graph *graph, Tensor *q, Tensor *kv, Tensor *random,
                                       Tensor *starts /* or NULL */, const AttentionPart *before,
                                       const SparsePartAttributes *attributes);
/* Does any of the n_queries rows see any of the n_keys, documents aside? If not, there is no need for it. */
bool sparse_part_sees(const SparsePartAttributes *attributes, int64_t n_queries, int64_t n_keys);

#endif
