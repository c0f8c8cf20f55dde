/* Attention of a sequence that several ranks share (context parallelism), in two ways.
 *
 * **Ring.** Each rank has the queries, keys and values of some positions. Keys and values go round the ring
 * of ranks, and each rank attends to what is there (attention_part) while the next is on its way. For the
 * backward they go round once more, the other way, with their gradients.
 *
 * A sequence is cut into 2n chunks, of which rank i has i and 2n-1-i: a zig-zag. With plain chunks the last
 * rank would attend to everything and the first to nearly nothing; so each attends to its own rows causally,
 * to half of the keys of the ranks before it, and with half of its queries to all keys of those behind it: as
 * much work in every round, on every rank.
 *
 * **All-to-all** (Ulysses). Before attention each rank gives the others their heads of its positions and gets
 * its own heads of all positions; after it the other way round. It has one run of positions. */
#ifndef PGPT_PARALLEL_RING_ATTENTION_H
#define PGPT_PARALLEL_RING_ATTENTION_H

#include "comm/comm.h"
#include "ops/attention/sparse_attention.h"

typedef enum { CONTEXT_RING, CONTEXT_ALL_TO_ALL, N_CONTEXT_STYLES } ContextStyle;

extern const char *const context_style_names[]; /* "ring", "all-to-all", NULL */

/* Which of n_positions a rank has. */
typedef struct {
    int64_t n;              /* rows of a sequence */
    RowPositions positions; /* of the rows */
} ContextRows;

ContextRows context_rows(ContextStyle style, int64_t n_positions, int n_ranks, int rank);

/* The most ranks that a sequence can be shared among: each has a position, or two. */
int64_t context_most_ranks(ContextStyle style, int64_t n_positions);

/* qkv (B,T,(NH+2·NKV)·HS): this rank's positions of n_positions, by context_rows. y (B,T,NH·HS) as
 * `attention` gives it. On a communicator of one rank it is that.
 *
 * With a mask it is sparse. The ring wants no lists, and starts of this rank's rows: a round whose keys no
 * row sees computes nothing. All-to-all wants lists and starts of whole sequences. */
Tensor *op_ring_attention(Graph *graph, Comm *comm, Tensor *qkv, Tensor *random, int64_t n_positions,
                          const AttentionMask *mask /* or NULL */, const AttentionAttributes *attributes);
Tensor *op_exchanged_attention(Graph *graph, Comm *comm, Tensor *qkv, Tensor *random, int64_t n_positions,
                               const AttentionMask *mask /* or NULL */,
                               const AttentionAttributes *attributes);

/* Stands behind a ring and computes nothing: it carries the gradient rule. */
extern const Op OP_RING_ATTENTION;

#endif
