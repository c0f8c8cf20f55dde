/* Conjugate operations: communication that a model records in its forward, and that autograd knows the
 * gradient of. A model that is split among ranks is recorded with these where the parts meet, and its
 * backward half makes itself.
 *
 *     forward              backward            where
 *     copy                 all-reduce          into a layer split by columns (Megatron's f)
 *     all-reduce           nothing             out of a layer split by rows (Megatron's g)
 *     all-gather           reduce-scatter f where the ranks share out the rows of x: sequence parallelism
 *     reduce-scatter       all-gather          g likewise
 *     slice                all-gather          out of what every rank has and computes whole
 *     all-gather           slice               into it
 *     all-to-all           all-to-all          experts; from positions to heads and back
 *     send, receive        receive, send       stages of a pipeline; keys and values that go round
 *
 * Each returns y. On a communicator of one rank (or NULL) they vanish: y is x. x may be of any float type;
 * sums of 16-bit numbers are made in f32 and rounded once. Every rank records the same collectives in the
 * same order, gradients included: where y needs a gradient, it does on all ranks.
 *
 * Communication is a start and a wait beside each other, which a pass can move apart; the conjugate of the
 * wait is a start and that of the start a wait, so what the forward hides behind computation the backward
 * does too.
 *
 * Rows are what all dimensions but the last make together: of a tensor (B,T,C) those of (B·T, C), since
 * norms, dropout and residual additions do not mind where a sequence ends. Rank r has rows border[r] ..
 * border[r+1]-1, of `border`'s size+1 entries, as in CommOperation, copied here; NULL: as even as can be.
 * Slices need not be equal, and may be empty. To split another dimension, put it first by op_pack (ops.h). */
#ifndef PGPT_PARALLEL_CONJUGATE_H
#define PGPT_PARALLEL_CONJUGATE_H

#include "comm/comm.h"
#include "graph/graph.h"

Tensor *op_parallel_copy(Graph *graph, Comm *comm, Tensor *x);
Tensor *op_parallel_sum(Graph *graph, Comm *comm, Tensor *x);

/* x: this rank's rows. y: all of them, in this shape. The first, where every rank computes a part of dy; the
 * second, where all compute the whole of it. */
Tensor *op_parallel_all_gather(Graph *graph, Comm *comm, Tensor *x, Shape shape, const int64_t *border);
Tensor *op_parallel_join(Graph *graph, Comm *comm, Tensor *x, Shape shape, const int64_t *border);

/* x: all rows. y (n,C): this rank's. The first adds up what the ranks have; the second, where all have the
 * same, does not. */
Tensor *op_parallel_reduce_scatter(Graph *graph, Comm *comm, Tensor *x, const int64_t *border);
Tensor *op_parallel_split(Graph *graph, Comm *comm, Tensor *x, const int64_t *border);

/* The first four of the table in two: what is recorded between start and finish runs while the message
 * travels, and so does its backward while the conjugate's does.
 *
 *     ParallelFlight flight = op_parallel_start_sum(graph, comm, x);
 *     ... record what does not need y ...
 *     Tensor *y = op_parallel_finish(graph, &flight); */
typedef struct {
    Tensor *y;
    const Node *start; /* NULL: there is nothing to wait for */
    Tensor *brought;   /* by the communicator, if it is not y */
} ParallelFlight;

ParallelFlight op_parallel_start_copy(Graph *graph, Comm *comm, Tensor *x);
ParallelFlight op_parallel_start_sum(Graph *graph, Comm *comm, Tensor *x);
ParallelFlight op_parallel_start_all_gather(Graph *graph, Comm *comm, Tensor *x, Shape shape,
                                            const int64_t *border);
ParallelFlight op_parallel_start_reduce_scatter(Graph *graph, Comm *comm, Tensor *x, const int64_t *border);
Tensor *op_parallel_finish(Graph *graph, const ParallelFlight *flight);

/* x: rows border[r] .. border[r+1]-1 go to rank r. y: rows in_border[r] .. in_border[r+1]-1 come from rank
 * r. */
Tensor *op_parallel_all_to_all(Graph *graph, Comm *comm, Tensor *x, const int64_t *border,
                               const int64_t *in_border);

/* Point to point. Both sides name the same number (0 .. COMM_N_TAGS/2 - 1) and mean tensors of the same size;
 * the receiver says whether the sender's x needs a gradient, which then comes back. The communicator is for
 * messages alone: collectives that were started on it would be in their way. */
void op_parallel_send(Graph *graph, Comm *comm, Tensor *x, int to, int number);
Tensor *op_parallel_receive(Graph *graph, Comm *comm, DType dtype, Shape shape, bool needs_gradient, int from,
                            int number);

/* Round the ring: x goes to the rank `distance` after this one, y (`shape`) comes from the one as far before
 * it. */
Tensor *op_parallel_shift(Graph *graph, Comm *comm, Tensor *x, Shape shape, int distance, int number);

#endif
