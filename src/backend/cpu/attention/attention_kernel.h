/* Causal multi-head attention in f32 on the CPU: forward, backward, over a part of the keys, and with a
 * key/value cache.
 *
 * y[b,q,h] = sum over k <= q of softmax_k(scale · query[b,q,h] · key[b,k,g]) · value[b,k,g], where query head
 * h uses key/value head g = h / (n_heads / n_kv_heads). The scores exist only as tiles of a few thousand
 * elements; what the forward pass keeps for the backward pass is one number per query, the logarithm of its
 * softmax's denominator.
 *
 * Results are the same bits for every number of threads. The functions allocate nothing: they work in
 * `scratch`, of at least as many bytes as the function's scratch size says for the same shape and number of
 * threads (any alignment, contents irrelevant before and after). Tensors must not overlap.
 *
 * A score of minus infinity gets weight 0; a query whose scores are all minus infinity has y = 0 and lse =
 * -inf. NaNs travel to the outputs that depend on them. */
#ifndef PGPT_BACKEND_CPU_ATTENTION_ATTENTION_KERNEL_H
#define PGPT_BACKEND_CPU_ATTENTION_ATTENTION_KERNEL_H

#include "base/random.h"
#include "ops/attention/attention_pattern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows first .. first + n - 1 of a sequence have the positions from `position` on. */
typedef struct {
    int64_t first, n, position;
} AttentionRun;

enum { ATTENTION_MAX_RUNS = 2 };

/* What is visible, where that is not simply all keys up to the query (ops/attention/sparse_attention.h).
 * Either `blocks`, lists of tiles, is there: then queries and keys are whole sequences; or tiles are asked
 * for by position. */
typedef struct {
    AttentionPattern pattern;
    const int32_t *starts; /* (B,T), of the rows of queries; NULL: there are no documents */
    const int32_t *blocks; /* n_lists of them: one for all sequences, or one each */
    int64_t n_lists, most;
} AttentionVisible;

typedef struct {
    int64_t B, T;        /* sequences, rows of queries in each */
    int64_t n_keys;      /* rows of keys and values in each */
    int64_t n_positions; /* of a whole sequence, by which dropout draws */
    AttentionRun queries[ATTENTION_MAX_RUNS], keys[ATTENTION_MAX_RUNS]; /* ascending, over all rows */
    int n_query_runs, n_key_runs;
    int n_heads;             /* NH, query heads */
    int n_kv_heads;          /* NKV, key/value heads; divides NH */
    int head_size;           /* HS, any value >= 1 */
    float scale;             /* of the scores, usually 1/sqrt(HS) */
    float dropout;           /* probability that an attention weight is dropped; 0 for none */
    RandomKey dropout_key;   /* the stream of the masks; the backward pass needs that of the forward pass */
    uint64_t first_sequence; /* global index of sequence 0: a mask depends on the place in the whole batch */
    uint64_t first_head;     /* global index of query head 0 */
    const AttentionVisible *visible; /* NULL: keys up to the query */
} AttentionShape;

/* Weight (b, h, q, k), q and k positions, is kept when random_keep(dropout_key, first_sequence + b, index,
 * threshold) holds, with index = ((first_head + h)·P + q)·(P rounded up to a multiple of 8) + k, P positions
 * in a sequence, so that a random block stays in its row. */

/* Where a sequence's queries, keys and values lie: head h of row t at q[t·q_step + h·HS], of keys likewise.
 * The sequences follow each other. */
typedef struct {
    const float *q;             /* (B,T,...) */
    const float *keys, *values; /* (B,n_keys,...) */
    int64_t q_step, kv_step;
} AttentionInputs;

/* y (B,T,NH·HS). lse (B,NH,T): log of the sum of exp of the scaled scores. y_before and lse_before, if there
 * are: what other keys gave, to be merged with; they may be y and lse. */
typedef struct {
    float *y, *lse;
    const float *y_before, *lse_before;
} AttentionOutputs;

size_t attention_forward_scratch_bytes(const AttentionShape *shape, int n_threads);
void attention_forward(const AttentionShape *shape, const AttentionInputs *in, const AttentionOutputs *out,
                       void *scratch, int n_threads);

/* dy (B,T,NH·HS); y and lse of all keys, where these come in parts. dq and dkeys, dvalues are laid out as q
 * and keys, values are, and written or added to. */
typedef struct {
    const float *dy, *y, *lse;
    float *dq, *dkeys, *dvalues;
    bool adds_dq, adds_dkv;
} AttentionGradients;

size_t attention_backward_scratch_bytes(const AttentionShape *shape, int n_threads);
void attention_backward(const AttentionShape *shape, const AttentionInputs *in,
                        const AttentionGradients *gradients, void *scratch, int n_threads);

/* Generation: shape->T new rows per sequence, of which the first stands at position[b]. Their keys and values
 * are stored into the caches (B,NKV,capacity,HS), then every new query attends to all cached positions up to
 * its own. position[b] + T must not exceed capacity. No dropout. */
size_t attention_cached_scratch_bytes(const AttentionShape *shape, int64_t capacity, int n_threads);
void attention_cached(const AttentionShape *shape, const float *qkv /* (B,T,(NH+2·NKV)·HS) */,
                      const int32_t *position /* (B) */, float *key_cache, float *value_cache,
                      int64_t capacity, float *y /* (B,T,NH·HS) */, void *scratch, int n_threads);

/* The same of what shape->visible says (its `starts` are those of the new rows), in caches that are rings:
 * position p is in row p % capacity, and no new row may take the place of one that is seen. */
size_t attention_cached_sparse_scratch_bytes(const AttentionShape *shape, int64_t capacity, int n_threads);
void attention_cached_sparse(const AttentionShape *shape, const float *qkv, const int32_t *position,
                             float *key_cache, float *value_cache, int64_t capacity, float *y, void *scratch,
                             int n_threads);

#endif
