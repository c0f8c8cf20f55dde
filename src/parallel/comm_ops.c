/* One kernel for all of them: the attributes hold the operation as the communicator wants it, but for the address of
 * the data. The ticket is the one thing that changes from step to step; it lies in the graph's arena. */
#include "parallel/comm_ops.h"

#include "base/format.h"

#include <stdio.h>

typedef struct {
    Comm *comm;
    CommOperation operation; /* without data */
    CommTicket *ticket;
} CommAttributes;

static CommType comm_type(DType dtype) {
    switch (dtype) {
    case DTYPE_BF16: return COMM_BF16;
    case DTYPE_F16: return COMM_F16;
    case DTYPE_I32: return COMM_I32;
    default: return COMM_F32;
    }
}

static Node *record(Graph *graph, const Op *op, Comm *comm, Tensor *data, CommOperation operation) {
    operation.type = comm_type(data->dtype);
    operation.n = tensor_count(data);
    CommAttributes attributes = {
        .comm = comm, .operation = operation, .ticket = ARENA_NEW(&graph->arena, CommTicket)};
    Node *node = graph_record(graph, op, &attributes, sizeof attributes, 1, TENSORS(data), 1, TENSORS(data));
    node->phase = PHASE_COMMUNICATION;
    return node;
}

Node *op_all_reduce(Graph *graph, Comm *comm, Tensor *data) {
    return record(graph, &OP_ALL_REDUCE, comm, data, (CommOperation){.kind = COMM_ALL_REDUCE});
}

Node *op_reduce_scatter(Graph *graph, Comm *comm, Tensor *data, const int64_t *border) {
    CommOperation operation = {.kind = COMM_REDUCE_SCATTER, .border = border};
    return record(graph, &OP_REDUCE_SCATTER, comm, data, operation);
}

Node *op_all_gather(Graph *graph, Comm *comm, Tensor *data, const int64_t *border) {
    CommOperation operation = {.kind = COMM_ALL_GATHER, .border = border};
    return record(graph, &OP_ALL_GATHER, comm, data, operation);
}

Node *op_comm_wait(Graph *graph, const Node *start) {
    Node *node = graph_record(graph, &OP_COMM_WAIT, start->attributes, sizeof(CommAttributes), 1,
                              start->output, 1, start->output);
    node->phase = PHASE_COMMUNICATION;
    node->is_last_only = start->is_last_only;
    return node;
}

Node *op_scalar_sum(Graph *graph, Comm *comm, Tensor *scalar) {
    return record(graph, &OP_SCALAR_SUM, comm, scalar, (CommOperation){.kind = COMM_ALL_REDUCE});
}

static CommOperation operation_on(const KernelCall *call) {
    CommOperation operation = ((const CommAttributes *)call->node->attributes)->operation;
    operation.data = call->out[0];
    return operation;
}

static Status start_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    CommOperation operation = operation_on(call);
    return comm_start(attributes->comm, &operation, attributes->ticket, error);
}

static Status wait_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    return comm_wait(attributes->comm, attributes->ticket, error);
}

static Status run_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    CommOperation operation = operation_on(call);
    return comm_run(attributes->comm, &operation, error);
}

/* The fewest bytes that a rank must send and receive: its share of the vector once for a half, twice for both. */
static double comm_bytes(const Node *node) {
    const CommAttributes *attributes = node->attributes;
    double n_ranks = attributes->comm->size, n_bytes = (double)tensor_bytes(node->output[0]);
    double halves = attributes->operation.kind == COMM_ALL_REDUCE ? 2.0 : 1.0;
    return 2.0 * halves * n_bytes * (n_ranks - 1.0) / n_ranks;
}

/* A device that replays a capture does not ask the host again. */
static bool is_capturable(const Node *node) {
    return ((const CommAttributes *)node->attributes)->comm->table->only_enqueues;
}

static double no_bytes(const Node *node) {
    (void)node;
    return 0.0;
}

static void comm_describe(const Node *node, char *text, size_t n_bytes) {
    const CommAttributes *attributes = node->attributes;
    snprintf(text, n_bytes, "%s over %d ranks", comm_kind_name(attributes->operation.kind),
             attributes->comm->size);
}

const Op OP_ALL_REDUCE = {.name = "all_reduce_start",
                          .bytes = comm_bytes,
                          .describe = comm_describe,
                          .reference = start_kernel,
                          .is_portable = true,
                          .is_capturable = is_capturable};
const Op OP_REDUCE_SCATTER = {.name = "reduce_scatter_start",
                              .bytes = comm_bytes,
                              .describe = comm_describe,
                              .reference = start_kernel,
                              .is_portable = true,
                              .is_capturable = is_capturable};
const Op OP_ALL_GATHER = {.name = "all_gather_start",
                          .bytes = comm_bytes,
                          .describe = comm_describe,
                          .reference = start_kernel,
                          .is_portable = true,
                          .is_capturable = is_capturable};
const Op OP_COMM_WAIT = {.name = "wait",
                         .bytes = no_bytes,
                         .describe = comm_describe,
                         .reference = wait_kernel,
                         .is_portable = true,
                         .is_capturable = is_capturable};
const Op OP_SCALAR_SUM = {.name = "scalar_sum",
                          .bytes = comm_bytes,
                          .describe = comm_describe,
                          .reference = run_kernel,
                          .is_portable = true,
                          .is_capturable = is_capturable};
