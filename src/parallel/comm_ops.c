/* Two kernels for all of them: the attributes hold the operation as the communicator wants it, but for the
 * addresses of the data. What changes from step to step, the tickets of what is under way, lies in the
 * graph's arena. */
#include "parallel/comm_ops.h"

#include "ops/ops.h"
#include "parallel/comm_attributes.h"
#include "parallel/expert_exchange.h"

#include <stdio.h>

CommType comm_type_of(DType dtype) {
    switch (dtype) {
    case DTYPE_BF16: return COMM_BF16;
    case DTYPE_F16: return COMM_F16;
    case DTYPE_I32: return COMM_I32;
    default: return COMM_F32;
    }
}

Node *comm_record(Graph *graph, const Op *op, CommAttributes attributes, int n_inputs, Tensor *const *inputs,
                  int n_outputs, Tensor *const *outputs) {
    attributes.flights = ARENA_NEW(&graph->arena, CommFlights);
    Node *node =
        graph_record(graph, op, &attributes, sizeof attributes, n_inputs, inputs, n_outputs, outputs);
    node->phase = PHASE_COMMUNICATION;
    return node;
}

static Node *record(Graph *graph, const Op *op, Comm *comm, Tensor *data, CommOperation operation) {
    operation.type = comm_type_of(data->dtype);
    operation.n = tensor_count(data);
    return comm_record(graph, op, (CommAttributes){.comm = comm, .operation = operation}, 1, TENSORS(data), 1,
                       TENSORS(data));
}

Node *op_all_reduce(Graph *graph, Comm *comm, Tensor *data) {
    return record(graph, &OP_ALL_REDUCE, comm, data, (CommOperation){.kind = COMM_ALL_REDUCE});
}

Node *op_all_reduce_max(Graph *graph, Comm *comm, Tensor *data) {
    CommOperation operation = {.kind = COMM_ALL_REDUCE, .reduction = COMM_MAX};
    return record(graph, &OP_ALL_REDUCE, comm, data, operation);
}

Node *op_reduce_scatter(Graph *graph, Comm *comm, Tensor *data, const int64_t *border) {
    CommOperation operation = {.kind = COMM_REDUCE_SCATTER, .border = border};
    return record(graph, &OP_REDUCE_SCATTER, comm, data, operation);
}

Node *op_all_gather(Graph *graph, Comm *comm, Tensor *data, const int64_t *border) {
    CommOperation operation = {.kind = COMM_ALL_GATHER, .border = border};
    return record(graph, &OP_ALL_GATHER, comm, data, operation);
}

Node *op_all_to_all(Graph *graph, Comm *comm, Tensor *out, const int64_t *border, Tensor *in,
                    const int64_t *other_border) {
    CommOperation operation = {.kind = COMM_ALL_TO_ALL,
                               .type = comm_type_of(out->dtype),
                               .n = tensor_count(out),
                               .border = border,
                               .other_border = other_border};
    return comm_record(graph, &OP_ALL_TO_ALL, (CommAttributes){.comm = comm, .operation = operation}, 1,
                       TENSORS(out), 1, TENSORS(in));
}

Node *op_all_to_all_places(Graph *graph, Comm *comm, Tensor *out, const CommPlaces *out_places, Tensor *in,
                           const CommPlaces *in_places) {
    CommOperation operation = {.kind = COMM_ALL_TO_ALL,
                               .type = comm_type_of(out->dtype),
                               .n = tensor_count(out),
                               .out_places = out_places,
                               .in_places = in_places};
    return comm_record(graph, &OP_ALL_TO_ALL, (CommAttributes){.comm = comm, .operation = operation}, 1,
                       TENSORS(out), 1, TENSORS(in));
}

/* An all-to-all in which each rank has something for one other only. */
Node *op_shift(Graph *graph, Comm *comm, Tensor *out, Tensor *in, int distance) {
    int n = comm->size, to = ((comm->rank + distance) % n + n) % n,
        from = ((comm->rank - distance) % n + n) % n;
    int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, n + 1),
            *other = ARENA_ARRAY(&graph->arena, int64_t, n + 1);
    for (int r = 0; r < n; r++) {
        border[r + 1] = r >= to ? tensor_count(out) : 0;
        other[r + 1] = r >= from ? tensor_count(in) : 0;
    }
    CommOperation operation = {.kind = COMM_ALL_TO_ALL,
                               .type = comm_type_of(out->dtype),
                               .n = tensor_count(out),
                               .border = border,
                               .other_border = other};
    CommAttributes attributes = {.comm = comm, .operation = operation, .peers = {.to = to, .from = from}};
    return comm_record(graph, &OP_SHIFT, attributes, 1, TENSORS(out), 1, TENSORS(in));
}

Node *op_comm_wait(Graph *graph, const Node *start) {
    Node *node = graph_record(graph, &OP_COMM_WAIT, start->attributes, sizeof(CommAttributes),
                              start->n_inputs, start->input, start->n_outputs, start->output);
    node->phase = PHASE_COMMUNICATION;
    node->is_last_only = start->is_last_only;
    node->is_not_last = start->is_not_last;
    return node;
}

static bool is_sum(const Node *node, const Comm *comm) {
    return node->op == &OP_ALL_REDUCE && node->section == SECTION_BACKWARD &&
           ((const CommAttributes *)node->attributes)->comm == comm;
}

void comm_leave_out(Graph *graph, const Comm *comm, int number) {
    int n_sums = 0, n_kept = 0, at = 0;
    for (int i = 0; i < graph->n_nodes; i++) n_sums += is_sum(graph->node[i], comm);
    if (!n_sums) return;
    const CommFlights *left_out = NULL;
    for (int i = 0; i < graph->n_nodes; i++) {
        Node *node = graph->node[i];
        if (is_sum(node, comm) && at++ == number % n_sums)
            left_out = ((const CommAttributes *)node->attributes)->flights;
        bool is_pair =
            node->op == &OP_ALL_REDUCE || node->op == &OP_COMM_WAIT; /* start and wait share them */
        if (left_out && is_pair && ((const CommAttributes *)node->attributes)->flights == left_out) continue;
        graph->node[n_kept++] = node;
    }
    graph->n_nodes = n_kept;
}

/* A library that chooses how to sum may choose otherwise for another group of ranks, and round three numbers
 * in another order: data-parallel replicas would clip by norms that differ in their last bit, and part. So
 * there every rank collects the numbers and adds them up in the order of ranks. Two numbers have one sum. */
static void sum_in_order(Graph *graph, Comm *comm, Tensor *scalar) {
    Tensor *all =
        graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(comm->size), "%s of all ranks", scalar->name);
    int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, comm->size + 1);
    for (int r = 0; r <= comm->size; r++) border[r] = r;
    op_copy_into(graph, scalar, graph_view(graph, all, SHAPE(1), comm->rank, scalar->name), WRITE_FRESH);
    op_comm_wait(graph, op_all_gather(graph, comm, all, border));
    SumAttributes attributes = {1.0F};
    graph_record(graph, &OP_SUM, &attributes, sizeof attributes, 1, TENSORS(all), 1, TENSORS(scalar));
}

void op_scalar_sum(Graph *graph, Comm *comm, Tensor *scalar) {
    if (comm->table->only_enqueues && comm->size > 2) sum_in_order(graph, comm, scalar);
    else record(graph, &OP_SCALAR_SUM, comm, scalar, (CommOperation){.kind = COMM_ALL_REDUCE});
}

void op_ordered_sum(Graph *graph, Comm *comm, Tensor *numbers) {
    int64_t n = tensor_count(numbers);
    if (comm->size <= 2) {
        op_comm_wait(graph, op_all_reduce(graph, comm, numbers));
        return;
    }
    Tensor *all =
        graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(comm->size, n), "%s of all ranks", numbers->name);
    int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, comm->size + 1);
    for (int r = 0; r <= comm->size; r++) border[r] = r * n;
    op_copy_into(graph, numbers, graph_view(graph, all, numbers->shape, comm->rank * n, numbers->name),
                 WRITE_FRESH);
    op_comm_wait(graph, op_all_gather(graph, comm, all, border));
    for (int r = 0; r < comm->size; r++)
        op_copy_into(graph, graph_view(graph, all, numbers->shape, r * n, numbers->name), numbers,
                     r ? WRITE_ADD : WRITE_FRESH);
}

/* The root reads it, the others are written to. */
Node *op_broadcast(Graph *graph, Comm *comm, Tensor *data, int root) {
    CommOperation operation = {
        .kind = COMM_BROADCAST, .type = comm_type_of(data->dtype), .n = tensor_count(data), .root = root};
    bool is_root = comm->rank == root;
    return comm_record(graph, &OP_BROADCAST, (CommAttributes){.comm = comm, .operation = operation}, is_root,
                       TENSORS(data), !is_root, TENSORS(data));
}

/* ---- running */

static CommOperation operation_on(const KernelCall *call) {
    CommOperation operation = ((const CommAttributes *)call->node->attributes)->operation;
    bool is_apart = operation.kind == COMM_ALL_TO_ALL;
    operation.data = is_apart || !call->node->n_outputs ? call->in[0] : call->out[0];
    operation.other = is_apart ? call->out[0] : NULL;
    return operation;
}

Status comm_start_flight(const CommAttributes *attributes, CommFlight **flight, Error *error) {
    CommFlights *flights = attributes->flights;
    if (flights->n_started - flights->n_waited >= COMM_MOST_FLIGHTS)
        return error_failed(error, "it was started %d times and never waited for", COMM_MOST_FLIGHTS);
    *flight = &flights->flight[flights->n_started++ % COMM_MOST_FLIGHTS];
    return STATUS_OK;
}

static Status start_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    CommOperation operation = operation_on(call);
    CommFlight *flight = NULL;
    TRY(comm_start_flight(attributes, &flight, error));
    return comm_start(attributes->comm, &operation, &flight->ticket, error);
}

/* The receive first: a message that is expected need not be kept anywhere. */
Status comm_exchange_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    const CommPeers *peers = &attributes->peers;
    const Node *node = call->node;
    CommFlight *flight = NULL;
    TRY(comm_start_flight(attributes, &flight, error));
    flight->n_requests = 0;
    if (peers->from >= 0) {
        TRY(comm_post_receive(attributes->comm, call->out[0], tensor_bytes(node->output[0]), peers->from,
                              peers->receive_tag, &flight->request[flight->n_requests], error));
        flight->n_requests++;
    }
    if (peers->to < 0) return STATUS_OK;
    TRY(comm_post_send(attributes->comm, call->in[0], tensor_bytes(node->input[0]), peers->to,
                       peers->send_tag, &flight->request[flight->n_requests], error));
    flight->n_requests++;
    return STATUS_OK;
}

Status comm_wait_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    CommFlights *flights = attributes->flights;
    if (flights->n_waited == flights->n_started) return STATUS_OK;
    CommFlight *flight = &flights->flight[flights->n_waited++ % COMM_MOST_FLIGHTS];
    if (attributes->operation.kind == COMM_BARRIER)
        return comm_wait_posted(attributes->comm, flight->request, flight->n_requests, error);
    return comm_wait(attributes->comm, &flight->ticket, error);
}

Status comm_drain(const Program *program, Error *error) {
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        if (node->op != &OP_COMM_WAIT) continue;
        const CommFlights *flights = ((const CommAttributes *)node->attributes)->flights;
        while (flights->n_waited < flights->n_started)
            TRY(comm_wait_kernel(&(KernelCall){.node = node}, error));
    }
    return STATUS_OK;
}

/* Starts and waits of the same messages. */
const void *comm_flight_of(const Node *node) {
    return ((const CommAttributes *)node->attributes)->flights;
}

static Status run_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    CommOperation operation = operation_on(call);
    return comm_run(attributes->comm, &operation, error);
}

static Status no_kernel(const KernelCall *call, Error *error) {
    (void)call, (void)error;
    return STATUS_OK;
}

/* ---- counting and printing */

static double apart_bytes(const CommAttributes *attributes, const int64_t *border) {
    int rank = attributes->comm->rank;
    int64_t n = border[attributes->comm->size] - (border[rank + 1] - border[rank]);
    return (double)n * (double)comm_type_bytes(attributes->operation.type);
}

/* Of slices that lie anywhere, those of other ranks. */
static double places_bytes(const CommAttributes *attributes, const CommPlaces *places) {
    int rank = attributes->comm->rank;
    double n = 0.0;
    for (int i = 0; i < places->begin[attributes->comm->size]; i++)
        if (i < places->begin[rank] || i >= places->begin[rank + 1]) n += (double)places->slice[i].n;
    return n * (double)comm_type_bytes(attributes->operation.type);
}

/* The fewest bytes that a rank must send and receive: its share of the vector once for a half, twice for
 * both. */
static double comm_bytes(const Node *node) {
    const CommAttributes *attributes = node->attributes;
    const CommOperation *operation = &attributes->operation;
    if (operation->out_places)
        return places_bytes(attributes, operation->out_places) +
               places_bytes(attributes, operation->in_places);
    if (operation->kind == COMM_ALL_TO_ALL)
        return apart_bytes(attributes, operation->border) + apart_bytes(attributes, operation->other_border);
    double n_ranks = attributes->comm->size, n_bytes = (double)tensor_bytes(node->output[0]);
    double halves = operation->kind == COMM_ALL_REDUCE ? 2.0 : 1.0;
    return 2.0 * halves * n_bytes * (n_ranks - 1.0) / n_ranks;
}

double comm_exchange_bytes(const Node *node) {
    double n_bytes = node->n_inputs ? (double)tensor_bytes(node->input[0]) : 0.0;
    return n_bytes + (node->n_outputs ? (double)tensor_bytes(node->output[0]) : 0.0);
}

/* Once to every rank: the root sends, the others receive. */
static double broadcast_bytes(const Node *node) {
    return (double)tensor_bytes(node->n_inputs ? node->input[0] : node->output[0]);
}

double comm_no_bytes(const Node *node) {
    (void)node;
    return 0.0;
}

CommTraffic comm_traffic(const Program *program, const Comm *comm) {
    CommTraffic traffic = {0};
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        bool is_comm = node->op->bytes == comm_bytes || node->op->bytes == comm_exchange_bytes ||
                       node->op->bytes == broadcast_bytes || node->op == &OP_EXPERT_EXCHANGE;
        if (!is_comm || ((const CommAttributes *)node->attributes)->comm != comm) continue;
        int64_t n_runs = program_node_runs(program, node);
        bool is_exchange = node->op->bytes == comm_exchange_bytes;
        traffic.n_collectives += is_exchange ? 0 : n_runs;
        traffic.n_messages += is_exchange ? n_runs * (node->n_inputs + node->n_outputs) : 0;
        traffic.n_bytes += (double)n_runs * node->op->bytes(node);
    }
    return traffic;
}

/* A device that replays a capture does not ask the host again. */
static bool is_capturable(const Node *node) {
    return ((const CommAttributes *)node->attributes)->comm->table->only_enqueues;
}

static bool is_always_capturable(const Node *node) {
    (void)node;
    return true;
}

static void describe_peers(const CommPeers *peers, char *text, size_t n_bytes) {
    char to[32] = "", from[32] = "";
    if (peers->to >= 0) snprintf(to, sizeof to, "to rank %d", peers->to);
    if (peers->from >= 0) snprintf(from, sizeof from, "from rank %d", peers->from);
    snprintf(text, n_bytes, "%s%s%s", to, *to && *from ? ", " : "", from);
}

void comm_describe(const Node *node, char *text, size_t n_bytes) {
    const CommAttributes *attributes = node->attributes;
    if (attributes->operation.kind == COMM_BARRIER) {
        describe_peers(&attributes->peers, text, n_bytes);
        return;
    }
    snprintf(text, n_bytes, "%s over %d ranks", comm_kind_name(attributes->operation.kind),
             attributes->comm->size);
}

static void shift_describe(const Node *node, char *text, size_t n_bytes) {
    describe_peers(&((const CommAttributes *)node->attributes)->peers, text, n_bytes);
}

/* Nothing to do now: these stand where the backward has something to do. */
static void conjugate_describe(const Node *node, char *text, size_t n_bytes) {
    const CommAttributes *attributes = node->attributes;
    snprintf(text, n_bytes, "%s over %d ranks in the backward", comm_kind_name(attributes->operation.kind),
             attributes->comm->size);
}

const Op OP_ALL_REDUCE = {.name = "all_reduce_start",
                          .gradient = conjugate_end,
                          .bytes = comm_bytes,
                          .describe = comm_describe,
                          .reference = start_kernel,
                          .is_portable = true,
                          .is_capturable = is_capturable,
                          .flight = comm_flight_of};
const Op OP_REDUCE_SCATTER = {.name = "reduce_scatter_start",
                              .gradient = conjugate_end,
                              .bytes = comm_bytes,
                              .describe = comm_describe,
                              .reference = start_kernel,
                              .is_portable = true,
                              .is_capturable = is_capturable,
                              .flight = comm_flight_of};
const Op OP_ALL_GATHER = {.name = "all_gather_start",
                          .gradient = conjugate_end,
                          .bytes = comm_bytes,
                          .describe = comm_describe,
                          .reference = start_kernel,
                          .is_portable = true,
                          .is_repeatable = true,
                          .is_capturable = is_capturable,
                          .flight = comm_flight_of};
const Op OP_ALL_TO_ALL = {.name = "all_to_all_start",
                          .gradient = conjugate_end,
                          .bytes = comm_bytes,
                          .describe = comm_describe,
                          .reference = start_kernel,
                          .is_portable = true,
                          .is_capturable = is_capturable,
                          .flight = comm_flight_of};
const Op OP_EXCHANGE = {.name = "exchange_start",
                        .gradient = conjugate_end,
                        .bytes = comm_exchange_bytes,
                        .describe = comm_describe,
                        .reference = comm_exchange_kernel,
                        .is_portable = true,
                        .is_capturable = is_capturable,
                        .flight = comm_flight_of};
const Op OP_SHIFT = {.name = "shift_start",
                     .bytes = comm_bytes,
                     .describe = shift_describe,
                     .reference = start_kernel,
                     .is_portable = true,
                     .is_repeatable = true,
                     .is_capturable = is_capturable,
                     .flight = comm_flight_of};
const Op OP_COMM_WAIT = {.name = "wait",
                         .gradient = conjugate_begin,
                         .bytes = comm_no_bytes,
                         .describe = comm_describe,
                         .reference = comm_wait_kernel,
                         .is_portable = true,
                         .is_repeatable = true, /* as what it waits for is */
                         .is_capturable = is_capturable,
                         .flight = comm_flight_of};
const Op OP_SCALAR_SUM = {.name = "scalar_sum",
                          .bytes = comm_bytes,
                          .describe = comm_describe,
                          .reference = run_kernel,
                          .is_portable = true,
                          .is_capturable = is_capturable};
const Op OP_PARALLEL_COPY_START = {.name = "parallel_copy_start",
                                   .gradient = conjugate_end,
                                   .bytes = comm_no_bytes,
                                   .describe = conjugate_describe,
                                   .reference = no_kernel,
                                   .is_portable = true,
                                   .is_repeatable = true,
                                   .is_capturable = is_always_capturable};
const Op OP_PARALLEL_COPY_END = {.name = "parallel_copy_end",
                                 .gradient = conjugate_begin,
                                 .bytes = comm_no_bytes,
                                 .describe = conjugate_describe,
                                 .reference = no_kernel,
                                 .is_portable = true,
                                 .is_repeatable = true,
                                 .is_capturable = is_always_capturable};
const Op OP_BROADCAST = {.name = "broadcast",
                         .bytes = broadcast_bytes,
                         .describe = comm_describe,
                         .reference = run_kernel,
                         .is_portable = true,
                         .is_capturable = is_capturable};
const Op OP_PARALLEL_COPY = {.name = "parallel_copy",
                             .gradient = conjugate_both,
                             .bytes = comm_no_bytes,
                             .describe = conjugate_describe,
                             .reference = no_kernel,
                             .is_portable = true,
                             .is_repeatable = true,
                             .is_capturable = is_always_capturable};
const Op OP_PARALLEL_SPLIT = {.name = "parallel_split",
                              .gradient = conjugate_both,
                              .bytes = comm_no_bytes,
                              .describe = conjugate_describe,
                              .reference = no_kernel,
                              .is_portable = true,
                              .is_repeatable = true,
                              .is_capturable = is_always_capturable};
