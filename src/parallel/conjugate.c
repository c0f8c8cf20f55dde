/* An operation is copies, a start and a wait. The copies put x where the communicator wants it, since it
 * works in place and x may have other readers; where it has none, the plan gives both the same memory and
 * nothing moves. Autograd passes the copies by. The rules of start and wait do the whole conjugate, from
 * dL/dy to dL/dx: the same pieces once more, on a copy of dL/dy for the same reason.
 *
 * The forward of the first of them, f, is a copy and nothing else. A node that does nothing stands behind it
 * to carry the rule, or two in the places of start and wait. */
#include "parallel/conjugate.h"

#include "ops/ops.h"
#include "parallel/comm_attributes.h"
#include "parallel/comm_ops.h"

/* ---- pieces */

static bool is_alone(const Comm *comm) {
    return !comm || comm->size == 1;
}

/* Autograd does not see it: whoever is written needs a gradient if it is said to. An empty one is recorded
 * too: passes put collectives in order by what stands around them, which has to be the same on every rank. */
static void copy_unseen(Graph *graph, Tensor *from, Tensor *to) {
    bool needs_gradient = to->needs_gradient;
    Node *node = graph_record(graph, &OP_COPY, NULL, 0, 1, TENSORS(from), 1, TENSORS(to));
    node->is_passed_by = true;
    to->needs_gradient = needs_gradient;
}

static Tensor *tensor_like(Graph *graph, const Tensor *like, Shape shape, const char *words) {
    Tensor *tensor = graph_tensor(graph, PLACE_ACTIVATION, like->dtype, shape, "%s.%s", like->name, words);
    tensor->needs_gradient = like->needs_gradient;
    return tensor;
}

static Tensor *copy_of(Graph *graph, Tensor *x, const char *words) {
    Tensor *copy = tensor_like(graph, x, x->shape, words);
    copy_unseen(graph, x, copy);
    return copy;
}

/* This rank's slice of all the rows, by borders in elements. */
static Tensor *slice_of(Graph *graph, const Comm *comm, Tensor *all, const int64_t *border) {
    int64_t first = border[comm->rank], n = border[comm->rank + 1] - first,
            columns = shape_columns(all->shape);
    return graph_view(graph, all, SHAPE(columns ? n / columns : 0, columns), first,
                      arena_printf(&graph->arena, "%s (slice)", all->name));
}

/* Borders in rows made borders in elements, in the graph's arena. NULL, with the mistake kept, if they do not
 * fit. */
static const int64_t *element_borders(Graph *graph, const Comm *comm, const Tensor *x, int64_t n_rows,
                                      const int64_t *row_border, const char *what) {
    int64_t columns = shape_columns(x->shape);
    int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, comm->size + 1);
    if (!row_border) comm_even_borders(n_rows, comm->size, 1, border);
    bool is_ascending = true;
    for (int r = 0; r <= comm->size; r++) {
        if (row_border) border[r] = row_border[r];
        is_ascending &= r ? border[r] * columns >= border[r - 1] : border[0] == 0;
        border[r] *= columns;
    }
    if (!graph_check(graph, is_ascending && border[comm->size] == n_rows * columns,
                     "%s: the borders of %s do not ascend from 0 to its %lld rows", what, x->name,
                     (long long)n_rows)) {
        return NULL;
    }
    return border;
}

static CommAttributes *attributes_of(const Node *node) {
    return (CommAttributes *)node->attributes; /* in the graph's arena */
}

static void set_conjugate(Graph *graph, Node *start, ConjugateKind kind, Tensor *x, Tensor *y) {
    Conjugate *conjugate = ARENA_NEW(&graph->arena, Conjugate);
    *conjugate = (Conjugate){.kind = kind, .x = x, .y = y};
    attributes_of(start)->conjugate = conjugate;
}

/* Behind a copy that is all that the forward has to do. */
static Node *record_mark(Graph *graph, const Op *op, CommAttributes attributes, ConjugateKind kind, Tensor *x,
                         Tensor *y) {
    Node *mark = comm_record(graph, op, attributes, 1, TENSORS(y), 1, TENSORS(y));
    set_conjugate(graph, mark, kind, x, y);
    return mark;
}

static bool is_recording(Graph *graph, const Tensor *x, const char *what) {
    return graph_check(graph, dtype_info(x->dtype)->is_float, "%s: %s is not of a float type", what, x->name);
}

/* ---- every rank has all of x */

static Node *record_copy(Graph *graph, Comm *comm, const Op *op, Tensor *x, Tensor *y) {
    CommAttributes attributes = {.comm = comm, .operation = {.kind = COMM_ALL_REDUCE}};
    return record_mark(graph, op, attributes, CONJUGATE_COPY, x, y);
}

Tensor *op_parallel_copy(Graph *graph, Comm *comm, Tensor *x) {
    if (is_alone(comm)) return x;
    if (!is_recording(graph, x, "parallel copy")) return graph->nothing;
    Tensor *y = copy_of(graph, x, "copied");
    record_copy(graph, comm, &OP_PARALLEL_COPY, x, y);
    return y;
}

ParallelFlight op_parallel_start_copy(Graph *graph, Comm *comm, Tensor *x) {
    if (is_alone(comm)) return (ParallelFlight){.y = x};
    if (!is_recording(graph, x, "parallel copy")) return (ParallelFlight){.y = graph->nothing};
    Tensor *y = copy_of(graph, x, "copied");
    return (ParallelFlight){.y = y, .start = record_copy(graph, comm, &OP_PARALLEL_COPY_START, x, y)};
}

/* Where the forward has nothing to wait for, and the backward begins. */
static void record_copy_end(Graph *graph, const Node *start) {
    Node *end = graph_record(graph, &OP_PARALLEL_COPY_END, start->attributes, sizeof(CommAttributes),
                             start->n_inputs, start->input, start->n_outputs, start->output);
    end->phase = PHASE_COMMUNICATION;
}

ParallelFlight op_parallel_start_sum(Graph *graph, Comm *comm, Tensor *x) {
    if (is_alone(comm)) return (ParallelFlight){.y = x};
    if (!is_recording(graph, x, "parallel sum")) return (ParallelFlight){.y = graph->nothing};
    Tensor *y = copy_of(graph, x, "summed");
    Node *start = op_all_reduce(graph, comm, y);
    set_conjugate(graph, start, CONJUGATE_SUM, x, y);
    return (ParallelFlight){.y = y, .start = start};
}

Tensor *op_parallel_sum(Graph *graph, Comm *comm, Tensor *x) {
    ParallelFlight flight = op_parallel_start_sum(graph, comm, x);
    return op_parallel_finish(graph, &flight);
}

Tensor *op_parallel_finish(Graph *graph, const ParallelFlight *flight) {
    if (!flight->start) return flight->y;
    if (flight->start->op == &OP_PARALLEL_COPY_START) record_copy_end(graph, flight->start);
    else op_comm_wait(graph, flight->start);
    if (flight->brought) copy_unseen(graph, flight->brought, flight->y);
    return flight->y;
}

/* ---- every rank has rows of it */

static Tensor *reshaped(Graph *graph, Tensor *x, Shape shape) {
    return shape_equal(x->shape, shape) ? x : graph_view(graph, x, shape, 0, x->name);
}

static ParallelFlight gather_rows(Graph *graph, Comm *comm, Tensor *x, Shape shape, const int64_t *row_border,
                                  ConjugateKind kind) {
    static const char what[] = "all-gather";
    const ParallelFlight nothing = {.y = graph->nothing};
    if (is_alone(comm)) return (ParallelFlight){.y = reshaped(graph, x, shape)};
    if (!is_recording(graph, x, what)) return nothing;
    const int64_t *border = element_borders(graph, comm, x, shape_rows(shape), row_border, what);
    if (!border) return nothing;
    int64_t n = border[comm->rank + 1] - border[comm->rank];
    if (!graph_check(graph, shape_columns(shape) == shape_columns(x->shape) && tensor_count(x) == n,
                     "%s: %s is not this rank's slice", what, x->name)) {
        return nothing;
    }
    Tensor *y = tensor_like(graph, x, shape, "gathered");
    copy_unseen(graph, x, slice_of(graph, comm, y, border));
    Node *start = op_all_gather(graph, comm, y, border);
    set_conjugate(graph, start, kind, x, y);
    return (ParallelFlight){.y = y, .start = start};
}

ParallelFlight op_parallel_start_all_gather(Graph *graph, Comm *comm, Tensor *x, Shape shape,
                                            const int64_t *border) {
    return gather_rows(graph, comm, x, shape, border, CONJUGATE_ALL_GATHER);
}

Tensor *op_parallel_all_gather(Graph *graph, Comm *comm, Tensor *x, Shape shape, const int64_t *border) {
    ParallelFlight flight = op_parallel_start_all_gather(graph, comm, x, shape, border);
    return op_parallel_finish(graph, &flight);
}

Tensor *op_parallel_join(Graph *graph, Comm *comm, Tensor *x, Shape shape, const int64_t *border) {
    ParallelFlight flight = gather_rows(graph, comm, x, shape, border, CONJUGATE_JOIN);
    return op_parallel_finish(graph, &flight);
}

ParallelFlight op_parallel_start_reduce_scatter(Graph *graph, Comm *comm, Tensor *x,
                                                const int64_t *row_border) {
    static const char what[] = "reduce-scatter";
    const ParallelFlight nothing = {.y = graph->nothing};
    Shape rows = SHAPE(shape_rows(x->shape), shape_columns(x->shape));
    if (is_alone(comm)) return (ParallelFlight){.y = reshaped(graph, x, rows)};
    if (!is_recording(graph, x, what)) return nothing;
    const int64_t *border = element_borders(graph, comm, x, shape_rows(x->shape), row_border, what);
    if (!border) return nothing;
    Tensor *all = copy_of(graph, x, "summed");
    Tensor *slice = slice_of(graph, comm, all, border);
    Tensor *y = tensor_like(graph, x, slice->shape, "slice");
    Node *start = op_reduce_scatter(graph, comm, all, border);
    set_conjugate(graph, start, CONJUGATE_REDUCE_SCATTER, x, y);
    return (ParallelFlight){.y = y, .start = start, .brought = slice};
}

Tensor *op_parallel_reduce_scatter(Graph *graph, Comm *comm, Tensor *x, const int64_t *row_border) {
    ParallelFlight flight = op_parallel_start_reduce_scatter(graph, comm, x, row_border);
    return op_parallel_finish(graph, &flight);
}

Tensor *op_parallel_split(Graph *graph, Comm *comm, Tensor *x, const int64_t *row_border) {
    static const char what[] = "parallel split";
    if (is_alone(comm)) return reshaped(graph, x, SHAPE(shape_rows(x->shape), shape_columns(x->shape)));
    if (!is_recording(graph, x, what)) return graph->nothing;
    const int64_t *border = element_borders(graph, comm, x, shape_rows(x->shape), row_border, what);
    if (!border) return graph->nothing;
    Tensor *slice = slice_of(graph, comm, x, border);
    Tensor *y = tensor_like(graph, x, slice->shape, "slice");
    copy_unseen(graph, slice, y);
    CommAttributes attributes = {.comm = comm, .operation = {.kind = COMM_ALL_GATHER, .border = border}};
    record_mark(graph, &OP_PARALLEL_SPLIT, attributes, CONJUGATE_SPLIT, x, y);
    return y;
}

/* ---- rows from everybody to everybody */

Tensor *op_parallel_all_to_all(Graph *graph, Comm *comm, Tensor *x, const int64_t *row_border,
                               const int64_t *row_in_border) {
    static const char what[] = "all-to-all";
    if (is_alone(comm)) return x;
    if (!is_recording(graph, x, what)) return graph->nothing;
    const int64_t *border = element_borders(graph, comm, x, shape_rows(x->shape), row_border, what);
    int64_t n_rows = row_in_border ? row_in_border[comm->size] : shape_rows(x->shape);
    const int64_t *in_border = border ? element_borders(graph, comm, x, n_rows, row_in_border, what) : NULL;
    if (!in_border) return graph->nothing;
    Tensor *y = tensor_like(graph, x, SHAPE(n_rows, shape_columns(x->shape)), "exchanged");
    Node *start = op_all_to_all(graph, comm, x, border, y, in_border);
    set_conjugate(graph, start, CONJUGATE_ALL_TO_ALL, x, y);
    op_comm_wait(graph, start);
    return y;
}

/* ---- messages */

static Node *start_exchange(Graph *graph, Comm *comm, CommPeers peers, Tensor *out, Tensor *in) {
    CommAttributes attributes = {.comm = comm, .operation = {.kind = COMM_BARRIER}, .peers = peers};
    return comm_record(graph, &OP_EXCHANGE, attributes, out != NULL, TENSORS(out), in != NULL, TENSORS(in));
}

static void exchange(Graph *graph, Comm *comm, CommPeers peers, Tensor *x, Tensor *y) {
    if (!graph_check(graph,
                     peers.send_tag >= 0 && peers.send_tag < COMM_N_TAGS && peers.to < comm->size &&
                         peers.from < comm->size && peers.to != comm->rank && peers.from != comm->rank,
                     "exchange: rank %d of %d cannot send to rank %d and receive from rank %d", comm->rank,
                     comm->size, peers.to, peers.from)) {
        return;
    }
    bool needs_gradient = y && y->needs_gradient;
    Node *start = start_exchange(graph, comm, peers, x, y);
    set_conjugate(graph, start, CONJUGATE_EXCHANGE, x, y);
    op_comm_wait(graph, start);
    if (y) y->needs_gradient = needs_gradient; /* that of the other rank's x */
}

/* Gradients have a tag of their own: with two ranks they go the way of other messages. */
static CommPeers peers_of(int to, int from, int number) {
    return (CommPeers){.to = to, .from = from, .send_tag = 2 * number, .receive_tag = 2 * number};
}

void op_parallel_send(Graph *graph, Comm *comm, Tensor *x, int to, int number) {
    if (!graph_check(graph, !is_alone(comm), "send: %s has nobody to go to", x->name)) return;
    exchange(graph, comm, peers_of(to, -1, number), x, NULL);
}

Tensor *op_parallel_receive(Graph *graph, Comm *comm, DType dtype, Shape shape, bool needs_gradient, int from,
                            int number) {
    if (!graph_check(graph, !is_alone(comm), "receive: there is nobody to receive from"))
        return graph->nothing;
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, dtype, shape, "received %d", number);
    y->needs_gradient = needs_gradient;
    exchange(graph, comm, peers_of(-1, from, number), NULL, y);
    return y;
}

Tensor *op_parallel_shift(Graph *graph, Comm *comm, Tensor *x, Shape shape, int distance, int number) {
    int to = is_alone(comm) ? 0 : ((comm->rank + distance) % comm->size + comm->size) % comm->size;
    if (is_alone(comm) || to == comm->rank) return x;
    if (!graph_check(graph, true, "shift")) return graph->nothing;
    int from = ((comm->rank - distance) % comm->size + comm->size) % comm->size;
    Tensor *y = tensor_like(graph, x, shape, "shifted");
    exchange(graph, comm, peers_of(to, from, number), x, y);
    return y;
}

/* ---- rules */

/* Who has sent x sends a gradient back, even one that is 0 since y does nothing for the loss: the other side
 * waits. */
static void begin_exchange_back(Autograd *autograd, const CommAttributes *a, Tensor *dy) {
    Graph *graph = autograd_graph(autograd);
    Conjugate *conjugate = a->conjugate;
    Tensor *x = conjugate->x, *y = conjugate->y, *out = NULL, *in = NULL;
    CommPeers back = {.to = -1, .from = -1, .send_tag = a->peers.receive_tag + 1};
    back.receive_tag = a->peers.send_tag + 1;
    if (y && y->needs_gradient) {
        out = dy ? copy_of(graph, dy, "sent") : tensor_like(graph, y, y->shape, "no gradient");
        if (!dy) op_zero(graph, out);
        back.to = a->peers.from;
    }
    if (x && x->needs_gradient) {
        in = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, x->shape, "d %s", x->name);
        back.from = a->peers.to;
    }
    if (!in && !out) return;
    conjugate->start = start_exchange(graph, a->comm, back, out, in);
    conjugate->brought = in;
}

void conjugate_begin(Autograd *autograd, const Node *wait) {
    const CommAttributes *a = wait->attributes;
    Conjugate *conjugate = a->conjugate;
    if (!conjugate) return;
    Graph *graph = autograd_graph(autograd);
    Tensor *x = conjugate->x, *y = conjugate->y;
    Tensor *dy = y ? autograd_gradient(autograd, y) : NULL;
    if (conjugate->kind == CONJUGATE_EXCHANGE) begin_exchange_back(autograd, a, dy);
    if (!dy || !x || !x->needs_gradient) return;
    if (conjugate->kind == CONJUGATE_EXPERTS) expert_exchange_back(autograd, a, dy);
    const int64_t *border = a->operation.border;
    switch (conjugate->kind) {
    case CONJUGATE_COPY:
        conjugate->brought = copy_of(graph, dy, "summed");
        conjugate->start = op_all_reduce(graph, a->comm, conjugate->brought);
        break;
    case CONJUGATE_ALL_GATHER:
        conjugate->brought = copy_of(graph, dy, "summed");
        conjugate->start = op_reduce_scatter(graph, a->comm, conjugate->brought, border);
        break;
    case CONJUGATE_SPLIT:
    case CONJUGATE_REDUCE_SCATTER:
        conjugate->brought = tensor_like(graph, dy, x->shape, "gathered");
        copy_unseen(graph, dy, slice_of(graph, a->comm, conjugate->brought, border));
        conjugate->start = op_all_gather(graph, a->comm, conjugate->brought, border);
        break;
    case CONJUGATE_ALL_TO_ALL:
        conjugate->brought = tensor_like(graph, dy, x->shape, "exchanged");
        conjugate->start = op_all_to_all(graph, a->comm, copy_of(graph, dy, "sent"),
                                         a->operation.other_border, conjugate->brought, border);
        break;
    case CONJUGATE_SUM:
    case CONJUGATE_JOIN: conjugate->brought = dy; break;
    case CONJUGATE_EXCHANGE:
    case CONJUGATE_EXPERTS: break;
    }
}

void conjugate_end(Autograd *autograd, const Node *start) {
    const CommAttributes *a = start->attributes;
    const Conjugate *conjugate = a->conjugate;
    if (!conjugate) return;
    if (conjugate->start) op_comm_wait(autograd_graph(autograd), conjugate->start);
    if (!conjugate->brought) return;
    if (conjugate->kind != CONJUGATE_ALL_GATHER && conjugate->kind != CONJUGATE_JOIN) {
        autograd_share(autograd, conjugate->x, conjugate->brought);
        return;
    }
    Tensor *slice = slice_of(autograd_graph(autograd), a->comm, conjugate->brought, a->operation.border);
    autograd_record(autograd, &OP_COPY, NULL, 0, 1, TENSORS(slice), 1, TENSORS(conjugate->x));
}

void conjugate_both(Autograd *autograd, const Node *node) {
    conjugate_begin(autograd, node);
    conjugate_end(autograd, node);
}
