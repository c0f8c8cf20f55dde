/* Rows lie sorted by expert at home, so those for a rank lie together, expert by expert. Where they go they
 * lie by expert, then by rank. Both are found from two small tables of numbers, the offsets at home and what
 * the other ranks' offsets are of the experts here; a run of a start node reads them, writes down where each
 * run of rows lies on either side (CommPlaces), and hands that to the communicator as one all-to-all. The way
 * back, and the gradients of both, are the same with the two sides swapped. */
#include "parallel/expert_exchange.h"

#include "ops/experts/expert_ranks.h"
#include "parallel/comm_attributes.h"
#include "parallel/comm_ops.h"

#include "ops/ops.h"

#include <stdio.h>

struct ExpertRoutes {
    ExpertExchange exchange;
    bool is_back; /* from the experts to the tokens */
    /* Of the run under way: */
    int32_t *offsets, *arrivals; /* on the host */
    CommSlice *home, *here;      /* (E), (ranks · experts here): in rows, then in elements */
    int *home_begin, *here_begin;
    CommPlaces home_places, here_places;
};

/* ---- sizes */

ExpertSpan expert_span(int n_experts, int n_ranks, int rank) {
    int each = n_experts / n_ranks, left = n_experts % n_ranks;
    return (ExpertSpan){rank * each + (rank < left ? rank : left), each + (rank < left)};
}

int64_t expert_most_here(const ExpertRows *rows, int n_experts, int n_ranks, int rank) {
    int64_t n = expert_span(n_experts, n_ranks, rank).n;
    int64_t of_one = rows->n_tokens * (n < rows->n_slots ? n : rows->n_slots);
    return n_ranks * (of_one < rows->n_rows ? of_one : rows->n_rows);
}

/* ---- who has how many */

/* A rank's part of the offsets goes to it: those of its experts, and where the last ends. */
static CommPlaces *offset_places(Graph *graph, const Comm *comm, int n_experts, bool is_here) {
    CommPlaces *places = ARENA_NEW(&graph->arena, CommPlaces);
    CommSlice *slice = ARENA_ARRAY(&graph->arena, CommSlice, comm->size);
    int *begin = ARENA_ARRAY(&graph->arena, int, comm->size + 1);
    int64_t n_here = expert_span(n_experts, comm->size, comm->rank).n + 1;
    for (int r = 0; r < comm->size; r++) {
        ExpertSpan span = expert_span(n_experts, comm->size, r);
        slice[r] = is_here ? (CommSlice){r * n_here, n_here} : (CommSlice){span.first, span.n + 1};
        begin[r + 1] = r + 1;
    }
    *places = (CommPlaces){begin, slice, is_here ? comm->size * n_here : n_experts + 1};
    return places;
}

ExpertExchange op_expert_start_meeting(Graph *graph, Comm *comm, Tensor *offsets, int n_experts,
                                       const ExpertRows *rows) {
    ExpertExchange exchange = {.comm = comm, .n_experts = n_experts, .rows = *rows, .offsets = offsets};
    exchange.span = expert_span(n_experts, comm->size, comm->rank);
    exchange.n_here = expert_most_here(rows, n_experts, comm->size, comm->rank);
    graph_check(graph, comm->size > 1 && comm->size <= n_experts && tensor_count(offsets) == n_experts + 1,
                "expert exchange: %d ranks for %d experts", comm->size, n_experts);
    exchange.arrivals = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32,
                                     SHAPE(comm->size, exchange.span.n + 1), "%s.arrivals", offsets->name);
    exchange.start = op_all_to_all_places(graph, comm, offsets, offset_places(graph, comm, n_experts, false),
                                          exchange.arrivals, offset_places(graph, comm, n_experts, true));
    return exchange;
}

void op_expert_finish_meeting(Graph *graph, ExpertExchange *exchange) {
    int64_t n_expected =
        exchange->rows.n_expected * exchange->comm->size * exchange->span.n / exchange->n_experts;
    op_comm_wait(graph, exchange->start);
    exchange->here = op_expert_arrivals(graph, exchange->arrivals, exchange->n_here, n_expected);
}

/* ---- the rows */

static ExpertRoutes *routes_new(Graph *graph, const ExpertExchange *exchange, bool is_back) {
    ExpertRoutes *routes = ARENA_NEW(&graph->arena, ExpertRoutes);
    int n_ranks = exchange->comm->size, n_here = exchange->span.n;
    *routes = (ExpertRoutes){.exchange = *exchange, .is_back = is_back};
    routes->offsets = ARENA_ARRAY(&graph->arena, int32_t, exchange->n_experts + 1);
    routes->arrivals = ARENA_ARRAY(&graph->arena, int32_t, n_ranks * (n_here + 1));
    routes->home = ARENA_ARRAY(&graph->arena, CommSlice, exchange->n_experts);
    routes->here = ARENA_ARRAY(&graph->arena, CommSlice, n_ranks * n_here);
    routes->home_begin = ARENA_ARRAY(&graph->arena, int, n_ranks + 1);
    routes->here_begin = ARENA_ARRAY(&graph->arena, int, n_ranks + 1);
    for (int r = 0; r < n_ranks; r++) {
        ExpertSpan span = expert_span(exchange->n_experts, n_ranks, r);
        routes->home_begin[r + 1] = span.first + span.n;
        routes->here_begin[r + 1] = (r + 1) * n_here;
    }
    return routes;
}

static Node *start_exchange(Graph *graph, const ExpertExchange *exchange, bool is_back, Tensor *x,
                            Tensor *y) {
    CommAttributes attributes = {.comm = exchange->comm,
                                 .operation = {.kind = COMM_ALL_TO_ALL, .type = comm_type_of(x->dtype)},
                                 .routes = routes_new(graph, exchange, is_back)};
    return comm_record(graph, &OP_EXPERT_EXCHANGE, attributes, 3,
                       TENSORS(x, exchange->offsets, exchange->arrivals), 1, TENSORS(y));
}

static Tensor *rows_like(Graph *graph, const ExpertExchange *exchange, bool is_here, const Tensor *x,
                         const char *words) {
    int64_t n = is_here ? exchange->n_here : exchange->rows.n_rows;
    return graph_tensor(graph, PLACE_ACTIVATION, x->dtype, SHAPE(n, shape_columns(x->shape)), "%s.%s",
                        x->name, words);
}

static ParallelFlight start_rows(Graph *graph, const ExpertExchange *exchange, bool is_back, Tensor *x) {
    int64_t n = is_back ? exchange->n_here : exchange->rows.n_rows;
    if (!graph_check(graph, shape_rows(x->shape) == n, "expert exchange: %s has not %lld rows", x->name,
                     (long long)n))
        return (ParallelFlight){.y = graph->nothing};
    Tensor *y = rows_like(graph, exchange, !is_back, x, is_back ? "back" : "here");
    y->needs_gradient = x->needs_gradient;
    Node *start = start_exchange(graph, exchange, is_back, x, y);
    Conjugate *conjugate = ARENA_NEW(&graph->arena, Conjugate);
    *conjugate = (Conjugate){.kind = CONJUGATE_EXPERTS, .x = x, .y = y};
    ((CommAttributes *)start->attributes)->conjugate = conjugate;
    return (ParallelFlight){.y = y, .start = start};
}

ParallelFlight op_expert_start_dispatch(Graph *graph, const ExpertExchange *exchange, Tensor *x) {
    return start_rows(graph, exchange, false, x);
}

ParallelFlight op_expert_start_combine(Graph *graph, const ExpertExchange *exchange, Tensor *x) {
    return start_rows(graph, exchange, true, x);
}

void expert_exchange_back(Autograd *autograd, const CommAttributes *attributes, Tensor *dy) {
    Graph *graph = autograd_graph(autograd);
    const ExpertRoutes *routes = attributes->routes;
    Conjugate *conjugate = attributes->conjugate;
    conjugate->brought = rows_like(graph, &routes->exchange, routes->is_back, dy, "exchanged");
    conjugate->start = start_exchange(graph, &routes->exchange, !routes->is_back, dy, conjugate->brought);
}

/* ---- running */

/* All experts are wanted alike. */
static void count_even(ExpertRoutes *routes) {
    const ExpertExchange *exchange = &routes->exchange;
    int n_here = exchange->span.n;
    for (int e = 0; e <= exchange->n_experts; e++)
        routes->offsets[e] = (int32_t)(exchange->rows.n_expected * e / exchange->n_experts);
    for (int i = 0; i < exchange->comm->size * (n_here + 1); i++)
        routes->arrivals[i] = routes->offsets[exchange->span.first + i % (n_here + 1)];
}

static Status read_numbers(ExpertRoutes *routes, const KernelCall *call, Error *error) {
    const ExpertExchange *exchange = &routes->exchange;
    Comm *comm = exchange->comm;
    if (comm->table->counts_only) {
        count_even(routes);
        return STATUS_OK;
    }
    size_t n_here = (size_t)comm->size * (size_t)(exchange->span.n + 1);
    TRY(comm_read(comm, routes->offsets, call->in[1], (size_t)(exchange->n_experts + 1) * sizeof(int32_t),
                  error));
    return comm_read(comm, routes->arrivals, call->in[2], n_here * sizeof(int32_t), error);
}

/* By expert as they lie at home; returns how many rows there are. */
static int64_t place_home(ExpertRoutes *routes, int64_t n_columns) {
    int n_experts = routes->exchange.n_experts;
    for (int e = 0; e < n_experts; e++) {
        int64_t first = routes->offsets[e], n = routes->offsets[e + 1] - first;
        routes->home[e] = (CommSlice){first * n_columns, n * n_columns};
    }
    return routes->offsets[n_experts];
}

/* By expert, and by rank within each; but listed rank by rank. */
static int64_t place_here(ExpertRoutes *routes, int64_t n_columns) {
    int n_ranks = routes->exchange.comm->size, n_here = routes->exchange.span.n;
    int64_t at = 0;
    for (int e = 0; e < n_here; e++) {
        for (int r = 0; r < n_ranks; r++) {
            const int32_t *arrivals = routes->arrivals + r * (n_here + 1);
            int64_t n = arrivals[e + 1] - arrivals[e];
            routes->here[r * n_here + e] = (CommSlice){at * n_columns, n * n_columns};
            at += n;
        }
    }
    return at;
}

static Status start_kernel(const KernelCall *call, Error *error) {
    const CommAttributes *attributes = call->node->attributes;
    ExpertRoutes *routes = attributes->routes;
    const ExpertExchange *exchange = &routes->exchange;
    int64_t n_columns = shape_columns(call->node->input[0]->shape);
    CommFlight *flight = NULL;
    bool is_under_way = attributes->flights->n_started != attributes->flights->n_waited;
    if (is_under_way && !exchange->comm->table->counts_only) /* where nobody waits */
        return error_failed(error, "it was started again before it was waited for");
    TRY(comm_start_flight(attributes, &flight, error));
    TRY(read_numbers(routes, call, error));
    int64_t n_home = place_home(routes, n_columns), n_here = place_here(routes, n_columns);
    if (n_home < 0 || n_home > exchange->rows.n_rows || n_here < 0 || n_here > exchange->n_here)
        return error_failed(error, "%lld rows go and %lld come, and there is room for %lld and %lld",
                            (long long)n_home, (long long)n_here, (long long)exchange->rows.n_rows,
                            (long long)exchange->n_here);
    routes->home_places = (CommPlaces){routes->home_begin, routes->home, n_home * n_columns};
    routes->here_places = (CommPlaces){routes->here_begin, routes->here, n_here * n_columns};
    CommOperation operation = attributes->operation;
    operation.data = (void *)call->in[0]; /* only read */
    operation.other = call->out[0];
    operation.out_places = routes->is_back ? &routes->here_places : &routes->home_places;
    operation.in_places = routes->is_back ? &routes->home_places : &routes->here_places;
    return comm_start(exchange->comm, &operation, &flight->ticket, error);
}

/* ---- counting and printing */

/* Where all experts are wanted alike: sent and received. */
static double exchange_bytes(const Node *node) {
    const CommAttributes *attributes = node->attributes;
    const ExpertExchange *exchange = &attributes->routes->exchange;
    double n_experts = exchange->n_experts, n_here = exchange->span.n, n_ranks = exchange->comm->size;
    double row_bytes =
        (double)shape_columns(node->input[0]->shape) * (double)comm_type_bytes(attributes->operation.type);
    double going = (n_experts - n_here) / n_experts, coming = (n_ranks - 1.0) * n_here / n_experts;
    return (double)exchange->rows.n_expected * (going + coming) * row_bytes;
}

static void describe(const Node *node, char *text, size_t n_bytes) {
    const CommAttributes *attributes = node->attributes;
    const ExpertExchange *exchange = &attributes->routes->exchange;
    snprintf(text, n_bytes, "%s, %d of %d experts here, over %d ranks",
             attributes->routes->is_back ? "rows back from experts" : "rows to their experts",
             exchange->span.n, exchange->n_experts, exchange->comm->size);
}

/* The host reads how much there is. */
static bool is_never_capturable(const Node *node) {
    (void)node;
    return false;
}

/* Repeated by recomputation: what comes is planned for the worst case, and was made of what is kept. */
const Op OP_EXPERT_EXCHANGE = {.name = "expert_exchange_start",
                               .gradient = conjugate_end,
                               .bytes = exchange_bytes,
                               .describe = describe,
                               .reference = start_kernel,
                               .is_portable = true,
                               .is_repeatable = true,
                               .is_capturable = is_never_capturable,
                               .flight = comm_flight_of};
