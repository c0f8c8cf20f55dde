/* Communication as nodes of the graph.
 *
 * What goes on beside the computation is two nodes: one starts it, one waits for it. Both name the memory, so
 * that the plan keeps it until the wait; a pass may move them apart as far as others let the memory be. On a
 * communicator of one rank nothing is recorded: the callers see to that.
 *
 * These work in place and autograd passes them by: they are for what comes after it, the sums of gradients
 * and the collection of weights. What a model records in its forward is in conjugate.h. */
#ifndef PGPT_PARALLEL_COMM_OPS_H
#define PGPT_PARALLEL_COMM_OPS_H

#include "comm/comm.h"
#include "graph/program.h"

extern const Op OP_CHANNEL_RECEIVE, OP_CHANNEL_RECEIVE_AHEAD, OP_CHANNEL_SEND, OP_CHANNEL_SEND_WAIT;
extern const Op OP_ALL_REDUCE, OP_REDUCE_SCATTER, OP_ALL_GATHER, OP_ALL_TO_ALL, OP_SHIFT, OP_EXCHANGE,
    OP_COMM_WAIT, OP_SCALAR_SUM, OP_BROADCAST, OP_PARALLEL_COPY, OP_PARALLEL_COPY_START, OP_PARALLEL_COPY_END,
    OP_PARALLEL_SPLIT;

/* Start a sum over all ranks of `data`, in place. */
Node *op_all_reduce(Graph *graph, Comm *comm, Tensor *data);

/* The largest over all ranks of each number, likewise. */
Node *op_all_reduce_max(Graph *graph, Comm *comm, Tensor *data);

/* Start a sum of which each rank gets its slice, and a collection of every rank's slice: see CommOperation.
 * `border` must stay good for as long as the graph. */
Node *op_reduce_scatter(Graph *graph, Comm *comm, Tensor *data, const int64_t *border);
Node *op_all_gather(Graph *graph, Comm *comm, Tensor *data, const int64_t *border);

/* Start to send a slice of `out` to every rank and to receive one into `in` from each, by borders in elements
 * that must stay good likewise. */
Node *op_all_to_all(Graph *graph, Comm *comm, Tensor *out, const int64_t *border, Tensor *in,
                    const int64_t *other_border);

/* The same of slices that lie anywhere. */
Node *op_all_to_all_places(Graph *graph, Comm *comm, Tensor *out, const CommPlaces *out_places, Tensor *in,
                           const CommPlaces *in_places);

/* Start to send `out` to the rank `distance` after this one and to receive `in` from the one as far before
 * it: round a ring. */
Node *op_shift(Graph *graph, Comm *comm, Tensor *out, Tensor *in, int distance);

/* Wait for what `start` started. */
Node *op_comm_wait(Graph *graph, const Node *start);

/* Messages between the parts of a program (parallel/pipeline): what one run of a part posts, a later run of
 * it waits for. On a communicator of two ranks and for one direction alone, so that they come in order;
 * `buffer` is in a place that persists. Never captured: a capture waits for all that it starts.
 *
 * The receiver's: wait for a message, posting the receive if none is posted yet; and post the next one, which
 * does not run in the last micro-batch of a step (nor before comm_allow_ahead, where messages only
 * enqueue). The sender's: wait for the message before, if there is one;
 * and send. */
Node *op_channel_receive(Graph *graph, Comm *comm, Tensor *buffer);
Node *op_channel_receive_ahead(Graph *graph, const Node *receive);
Node *op_channel_send_wait(Graph *graph, Comm *comm, Tensor *buffer);
Node *op_channel_send(Graph *graph, const Node *wait);
Node *op_channel_send_end(Graph *graph, const Node *send); /* waits for the last one */

/* Sum over all ranks of one number (f32), done when the node is. Groups of ranks that sum the same numbers
 * get the same bits. */
void op_scalar_sum(Graph *graph, Comm *comm, Tensor *scalar);

/* The same of an array of numbers, a small one: of more than two ranks every one collects them all. */
void op_ordered_sum(Graph *graph, Comm *comm, Tensor *numbers);

/* Take all-reduce `number` (from 0, counted around) of the backward on this communicator out of the graph, to
 * show that it would be noticed. */
void comm_leave_out(Graph *graph, const Comm *comm, int number);

/* What rank `root` has in `data` to all others, done when the node is. */
Node *op_broadcast(Graph *graph, Comm *comm, Tensor *data, int root);

/* Wait for every collective that a part of the program has started and that another one, which will not be
 * run, would have waited for. */
Status comm_drain(const Program *program, Error *error);

/* On communicators that only enqueue, too, let receives be posted ahead: no part of the program waits for the
 * whole device from now on, since all were rehearsed (graph/executor.h). */
void comm_allow_ahead(const Program *program);

/* What a program has to do with one communicator in a step, recomputation included. */
typedef struct {
    int64_t n_collectives, n_messages; /* messages of exchanges, sent and received */
    double n_bytes;                    /* sent and received by this rank: the fewest that it takes */
} CommTraffic;

CommTraffic comm_traffic(const Program *program, const Comm *comm);

#endif
