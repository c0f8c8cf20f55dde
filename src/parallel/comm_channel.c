/* Messages between the parts of a program: a channel of two ranks and one way (comm_ops.h). What a run of a
 * part posts, a later run of it waits for. */
#include "parallel/comm_ops.h"

#include "parallel/comm_attributes.h"

/* Between the two ranks of a communicator, one way. */
static Node *record_channel(Graph *graph, const Op *op, Comm *comm, Tensor *buffer, bool is_sent) {
    int other = 1 - comm->rank;
    CommPeers peers = {.to = is_sent ? other : -1, .from = is_sent ? -1 : other};
    CommAttributes attributes = {.comm = comm, .operation = {.kind = COMM_BARRIER}, .peers = peers};
    graph_check(graph, comm->size == 2, "%s: a communicator of %d ranks, not 2", op->name, comm->size);
    Node *node = comm_record(graph, op, attributes, is_sent, TENSORS(buffer), !is_sent, TENSORS(buffer));
    node->is_passed_by = true;
    return node;
}

/* The other node of the same messages. */
static Node *record_other(Graph *graph, const Op *op, const Node *node) {
    Node *other = graph_record(graph, op, node->attributes, sizeof(CommAttributes), node->n_inputs,
                               node->input, node->n_outputs, node->output);
    other->phase = PHASE_COMMUNICATION;
    other->is_passed_by = true;
    return other;
}

Node *op_channel_receive(Graph *graph, Comm *comm, Tensor *buffer) {
    return record_channel(graph, &OP_CHANNEL_RECEIVE, comm, buffer, false);
}

Node *op_channel_receive_ahead(Graph *graph, const Node *receive) {
    Node *node = record_other(graph, &OP_CHANNEL_RECEIVE_AHEAD, receive);
    node->is_not_last = true;
    return node;
}

Node *op_channel_send_wait(Graph *graph, Comm *comm, Tensor *buffer) {
    return record_channel(graph, &OP_CHANNEL_SEND_WAIT, comm, buffer, true);
}

Node *op_channel_send(Graph *graph, const Node *wait) {
    return record_other(graph, &OP_CHANNEL_SEND, wait);
}

Node *op_channel_send_end(Graph *graph, const Node *send) {
    return record_other(graph, &OP_CHANNEL_SEND_WAIT, send);
}

/* ---- running */

static Status receive_kernel(const KernelCall *call, Error *error) {
    const CommFlights *flights = ((const CommAttributes *)call->node->attributes)->flights;
    if (flights->n_waited == flights->n_started) TRY(comm_exchange_kernel(call, error));
    return comm_wait_kernel(call, error);
}

/* A receive that only enqueues is a kernel that turns until the message is there. Whatever waits for the
 * whole device meanwhile would wait for it: memory that is taken or given back, kernels that are loaded,
 * captures that are made, all in the first runs of a part. What the other side sends may depend on that very
 * part. So nothing is asked for ahead before the program says that all of that is behind it.
 *
 * (Sends turn likewise. Without receives ahead and with such waits, which make each send one that is waited
 * for, interleaved, zb-h2 and zb-v come to a standstill; with either alone none does.) */
static Status receive_ahead_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    bool may_turn = attributes->comm->table->only_enqueues && !attributes->flights->may_wait_ahead;
    return may_turn ? STATUS_OK : comm_exchange_kernel(call, error);
}

void comm_allow_ahead(const Program *program) {
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        if (node->op == &OP_CHANNEL_RECEIVE_AHEAD)
            ((const CommAttributes *)node->attributes)->flights->may_wait_ahead = true;
    }
}

/* What is waited for in another run of a part, or in another part. */
static bool is_never_capturable(const Node *node) {
    (void)node;
    return false;
}

const Op OP_CHANNEL_RECEIVE = {.name = "receive",
                               .bytes = comm_exchange_bytes,
                               .describe = comm_describe,
                               .reference = receive_kernel,
                               .is_portable = true,
                               .is_capturable = is_never_capturable};
const Op OP_CHANNEL_RECEIVE_AHEAD = {.name = "receive_start",
                                     .bytes = comm_no_bytes,
                                     .describe = comm_describe,
                                     .reference = receive_ahead_kernel,
                                     .is_portable = true,
                                     .is_capturable = is_never_capturable};
const Op OP_CHANNEL_SEND = {.name = "send_start",
                            .bytes = comm_exchange_bytes,
                            .describe = comm_describe,
                            .reference = comm_exchange_kernel,
                            .is_portable = true,
                            .is_capturable = is_never_capturable};
const Op OP_CHANNEL_SEND_WAIT = {.name = "send_wait",
                                 .bytes = comm_no_bytes,
                                 .describe = comm_describe,
                                 .reference = comm_wait_kernel,
                                 .is_portable = true,
                                 .is_capturable = is_never_capturable};
