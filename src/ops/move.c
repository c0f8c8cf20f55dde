/* offload, fetch, move_wait: what runs is the memory's mover, on any device. A start node may run several
 * times before the first of its runs is waited for (micro-batches in flight), so tickets are kept in order,
 * and a wait node counts how many it has waited for. */
#include "ops/move.h"

#include "graph/device/mover.h"

#include <stdio.h>

enum { MOST_FLIGHTS = 64 };

typedef struct {
    uint64_t n_started;
    uint64_t ticket[MOST_FLIGHTS];
} MoveFlights;

typedef struct {
    MoveFlights *flights;
    uint64_t *n_waited; /* of a wait node */
    bool by_host;
} MoveAttributes;

static Node *record_start(Graph *graph, const Op *op, Tensor *from, Tensor *to) {
    MoveAttributes attributes = {.flights = ARENA_NEW(&graph->arena, MoveFlights)};
    graph_check(graph, tensor_bytes(from) == tensor_bytes(to), "%s: %s and %s differ in size", op->name,
                from->name, to->name);
    Node *node = graph_record(graph, op, &attributes, sizeof attributes, 1, TENSORS(from), 1, TENSORS(to));
    node->is_passed_by = true;
    return node;
}

Node *op_offload(Graph *graph, Tensor *from, Tensor *to) {
    return record_start(graph, &OP_OFFLOAD, from, to);
}

Node *op_fetch(Graph *graph, Tensor *from, Tensor *to) {
    return record_start(graph, &OP_FETCH, from, to);
}

Node *op_move_wait(Graph *graph, const Node *start, bool by_host) {
    MoveAttributes attributes = *(const MoveAttributes *)start->attributes;
    attributes.by_host = by_host;
    attributes.n_waited = ARENA_NEW(&graph->arena, uint64_t);
    Node *node =
        graph_record(graph, &OP_MOVE_WAIT, &attributes, sizeof attributes, 1, start->input, 1, start->output);
    node->is_passed_by = true;
    return node;
}

bool move_is_waited_for_by_host(const Node *wait) {
    return ((const MoveAttributes *)wait->attributes)->by_host;
}

static Status start_kernel(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    MoveFlights *flights = ((const MoveAttributes *)node->attributes)->flights;
    if (!call->mover) return STATUS_OK; /* it is only planned */
    MoveEnd from = mover_end(call->mover, node->input[0], call->in[0]);
    MoveEnd to = mover_end(call->mover, node->output[0], call->out[0]);
    uint64_t *ticket = &flights->ticket[flights->n_started++ % MOST_FLIGHTS];
    return mover_start(call->mover, node->op == &OP_FETCH ? MOVE_IN : MOVE_OUT, from, to,
                       tensor_bytes(node->input[0]), ticket, error);
}

/* One that was not started is waited for by nobody: another part has not run. */
static Status wait_kernel(const KernelCall *call, Error *error) {
    const MoveAttributes *attributes = call->node->attributes;
    const MoveFlights *flights = attributes->flights;
    uint64_t *n_waited = attributes->n_waited;
    if (!call->mover || *n_waited == flights->n_started) return STATUS_OK;
    if (flights->n_started - *n_waited > MOST_FLIGHTS)
        return error_failed(error, "it was started %d times and never waited for", MOST_FLIGHTS);
    uint64_t ticket = flights->ticket[(*n_waited)++ % MOST_FLIGHTS];
    return mover_wait(call->mover, ticket, attributes->by_host, error);
}

static double move_bytes(const Node *node) {
    return (double)tensor_bytes(node->input[0]);
}

static double no_bytes(const Node *node) {
    (void)node;
    return 0.0;
}

static void describe_wait(const Node *node, char *text, size_t n_bytes) {
    const MoveAttributes *attributes = node->attributes;
    if (attributes->by_host) snprintf(text, n_bytes, "the host waits");
}

const Op OP_OFFLOAD = {
    .name = "offload", .bytes = move_bytes, .reference = start_kernel, .is_portable = true};
const Op OP_FETCH = {.name = "fetch", .bytes = move_bytes, .reference = start_kernel, .is_portable = true};
const Op OP_MOVE_WAIT = {.name = "move_wait",
                         .bytes = no_bytes,
                         .describe = describe_wait,
                         .reference = wait_kernel,
                         .is_portable = true};
