/* The ring as nodes of the graph. Of n ranks, in round r rank i has the keys and values of rank i-r:
 *
 *     forward, round r of n                      backward, step s of n
 *     start: mine to i+1, the next from i-1      start: keys and values to i-1, the next from i+1
 *     part of the queries over what is here      gradients of that part
 *     wait                                       wait for what came of these keys elsewhere; add; start it on
 *                                                its way to i-1
 *
 * The backward begins with what the forward ended with, the keys and values of rank i+1, which are kept, and
 * goes on to those of i+2, ...; so the last that a rank works on are its own, and their gradients have by
 * then come home: n-1 messages of gradients and n-2 of keys and values, and each of them is under way while a
 * part is computed. Gradients travel and are added up in f32.
 *
 * Autograd passes all these nodes by. A node that does nothing stands behind them to carry the rule. */
#include "parallel/ring_attention.h"

#include "parallel/comm_ops.h"
#include "parallel/conjugate.h"

const char *const context_style_names[] = {"ring", "all-to-all", NULL};

/* Where chunk `chunk` of n begins. */
static int64_t chunk_first(int64_t n_positions, int64_t n_chunks, int64_t chunk) {
    return n_positions / n_chunks * chunk + n_positions % n_chunks * chunk / n_chunks;
}

ContextRows context_rows(ContextStyle style, int64_t n_positions, int n_ranks, int rank) {
    if (style == CONTEXT_ALL_TO_ALL) {
        int64_t first = chunk_first(n_positions, n_ranks, rank);
        return (ContextRows){chunk_first(n_positions, n_ranks, rank + 1) - first, {.start = first}};
    }
    int64_t n_chunks = 2 * (int64_t)n_ranks, other = n_chunks - 1 - rank;
    int64_t first = chunk_first(n_positions, n_chunks, rank),
            end = chunk_first(n_positions, n_chunks, rank + 1),
            second = chunk_first(n_positions, n_chunks, other),
            second_end = chunk_first(n_positions, n_chunks, other + 1);
    RowPositions positions = {.start = first, .head = end - first, .skip = second - end};
    return (ContextRows){end - first + second_end - second, positions};
}

int64_t context_most_ranks(ContextStyle style, int64_t n_positions) {
    return style == CONTEXT_RING ? n_positions / 2 : n_positions;
}

/* Of whole sequences. */
static Tensor *attend_alone(Graph *graph, Tensor *qkv, Tensor *random, const AttentionMask *mask,
                            const AttentionAttributes *a) {
    return mask ? op_sparse_attention(graph, qkv, random, mask, a) : op_attention(graph, qkv, random, a);
}

/* ---- the ring */

/* What the rule of a ring needs to know of it. */
typedef struct {
    Comm *comm;
    SparsePartAttributes sparse; /* of this rank's own keys */
    bool is_sparse;              /* else the pattern is nobody's */
    Tensor *starts;              /* or NULL */
    Tensor *packed, *q, *kv;     /* q and kv: parts of the first */
    Tensor *last;                /* the keys and values that the forward ends with */
    Tensor *y, *lse, *random;
} Ring;

static int rank_at(const Comm *comm, int distance) {
    return ((comm->rank + distance) % comm->size + comm->size) % comm->size;
}

/* The rows of the rank `distance` behind this one. */
static ContextRows rows_of(const Ring *ring, int distance) {
    return context_rows(CONTEXT_RING, ring->sparse.part.n_positions, ring->comm->size,
                        rank_at(ring->comm, distance));
}

/* Of the keys of that rank. */
static SparsePartAttributes part_of(const Ring *ring, int distance) {
    SparsePartAttributes sparse = ring->sparse;
    sparse.part.keys = rows_of(ring, distance).positions;
    return sparse;
}

/* Does a row here see one of that rank's keys, documents aside? In a dense ring there always is one. */
static bool is_seen(const Ring *ring, int distance) {
    SparsePartAttributes sparse = part_of(ring, distance);
    return !ring->is_sparse || sparse_part_sees(&sparse, ring->q->shape.dim[1], rows_of(ring, distance).n);
}

/* Memory for the keys and values, or their gradients, of that rank. */
static Tensor *room_for(Graph *graph, const Ring *ring, int distance, DType dtype, const char *words) {
    int owner = rank_at(ring->comm, distance);
    int64_t n = rows_of(ring, distance).n;
    Tensor *tensor =
        graph_tensor(graph, PLACE_ACTIVATION, dtype, SHAPE(ring->kv->shape.dim[0], n, ring->kv->shape.dim[2]),
                     "%s%s of rank %d", ring->kv->name, words, owner);
    return tensor;
}

/* Autograd passes it by, and the wait for it. */
static Node *start_shift(Graph *graph, Comm *comm, Tensor *x, Tensor *y, int distance) {
    Node *start = op_shift(graph, comm, x, y, distance);
    start->is_passed_by = true;
    return start;
}

static void wait_for(Graph *graph, const Node *start) {
    op_comm_wait(graph, start)->is_passed_by = true;
}

static AttentionPart record_part(Graph *graph, const Ring *ring, Tensor *kv, int distance,
                                 const AttentionPart *before) {
    SparsePartAttributes sparse = part_of(ring, distance);
    AttentionPart part =
        ring->is_sparse
            ? op_sparse_attention_part(graph, ring->q, kv, ring->random, ring->starts, before, &sparse)
            : op_attention_part(graph, ring->q, kv, ring->random, before, &sparse.part);
    graph->node[graph->n_nodes - 1]->is_passed_by = true;
    return part;
}

/* Queries of this rank over all keys, those of its own first. */
static void record_rounds(Graph *graph, Ring *ring) {
    Comm *comm = ring->comm;
    Tensor *kv = ring->kv;
    AttentionPart result = {0};
    for (int round = 0; round < comm->size; round++) {
        Tensor *next = NULL;
        Node *start = NULL;
        if (round + 1 < comm->size) {
            next = room_for(graph, ring, -round - 1, kv->dtype, "");
            start = start_shift(graph, comm, kv, next, 1);
        }
        if (is_seen(ring, -round)) result = record_part(graph, ring, kv, -round, round ? &result : NULL);
        ring->last = kv;
        if (start) wait_for(graph, start);
        kv = next;
    }
    ring->y = result.y;
    ring->lse = result.lse;
}

Tensor *op_ring_attention(Graph *graph, Comm *comm, Tensor *qkv, Tensor *random, int64_t n_positions,
                          const AttentionMask *mask, const AttentionAttributes *a) {
    if (!comm || comm->size == 1) return attend_alone(graph, qkv, random, mask, a);
    ContextRows rows = context_rows(CONTEXT_RING, n_positions, comm->size, comm->rank);
    int64_t B = qkv->shape.dim[0], q_width = (int64_t)a->n_heads * a->head_size,
            kv_width = 2 * (int64_t)a->n_kv_heads * a->head_size;
    if (!graph_check(graph,
                     qkv->shape.n_dims == 3 && qkv->shape.dim[1] == rows.n &&
                         qkv->shape.dim[2] == q_width + kv_width,
                     "ring attention: %s is not this rank's rows of %lld positions", qkv->name,
                     (long long)n_positions) ||
        !graph_check(graph, comm->size <= context_most_ranks(CONTEXT_RING, n_positions),
                     "ring attention: %d ranks cannot share %lld positions", comm->size,
                     (long long)n_positions)) {
        return graph->nothing;
    }
    Ring ring = {.comm = comm,
                 .sparse = {.part = {.heads = *a, .queries = rows.positions, .n_positions = n_positions}},
                 .is_sparse = mask != NULL,
                 .random = random};
    if (mask) {
        ring.sparse.pattern = mask->pattern;
        ring.starts = mask->starts;
    }
    ring.packed = op_pack(graph, qkv, 2, 2, (const int64_t[]){0, q_width, q_width + kv_width});
    if (graph->error.status != STATUS_OK) return graph->nothing;
    const char *name = qkv->name;
    ring.q = graph_view(graph, ring.packed, SHAPE(B, rows.n, q_width), 0,
                        arena_printf(&graph->arena, "%s.queries", name));
    ring.kv = graph_view(graph, ring.packed, SHAPE(B, rows.n, kv_width), B * rows.n * q_width,
                         arena_printf(&graph->arena, "%s.keys", name));
    record_rounds(graph, &ring);
    if (!ring.y) return graph->nothing; /* there is a round for every rank */
    if (qkv->dtype != DTYPE_F32) {      /* parts are merged in f32 */
        Tensor *narrow =
            graph_tensor(graph, PLACE_ACTIVATION, qkv->dtype, ring.y->shape, "%s.attention", name);
        op_copy_into(graph, ring.y, narrow, WRITE_FRESH);
        graph->node[graph->n_nodes - 1]->is_passed_by = true;
        ring.y = narrow;
    }
    /* Names the last keys too: where a pattern leaves out parts, a rank that reads few of the keys repeats
     * the ring as the others do (recomputation). */
    graph_record(graph, &OP_RING_ATTENTION, &ring, sizeof ring, 2, TENSORS(ring.y, ring.last), 1,
                 TENSORS(ring.y));
    return ring.y;
}

/* What these keys add to dq, and the gradients of the keys and values themselves, in dkv. */
static void record_part_back(Graph *graph, const Ring *ring, Tensor *dy, Tensor *kv, int distance, Tensor *dq,
                             WriteMode mode, Tensor *dkv) {
    SparsePartAttributes sparse = part_of(ring, distance);
    Tensor **inputs = TENSORS(dy, ring->q, kv, ring->y, ring->lse, ring->random, ring->starts);
    Node *node = ring->is_sparse ? graph_record(graph, &OP_SPARSE_ATTENTION_PART_BACKWARD, &sparse,
                                                sizeof sparse, 7, inputs, 2, TENSORS(dq, dkv))
                                 : graph_record(graph, &OP_ATTENTION_PART_BACKWARD, &sparse.part,
                                                sizeof sparse.part, 6, inputs, 2, TENSORS(dq, dkv));
    node->write[0] = mode;
}

static void ring_gradient(Autograd *autograd, const Node *node) {
    const Ring *ring = node->attributes;
    Graph *graph = autograd_graph(autograd);
    Comm *comm = ring->comm;
    Tensor *dy = autograd_gradient(autograd, ring->y);
    if (!dy) return;
    Tensor *dpacked =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, ring->packed->shape, "d %s", ring->packed->name);
    Tensor *dq = graph_view(graph, dpacked, ring->q->shape, 0, "dq");
    Tensor *home = graph_view(graph, dpacked, ring->kv->shape, tensor_count(ring->q), "dkv");
    Tensor *kv = ring->last, *received = NULL;
    const Node *gradients = NULL; /* on their way */
    WriteMode mode = WRITE_FRESH;
    for (int step = 0; step < comm->size; step++) {
        bool is_last = step + 1 == comm->size, has_next = step + 2 < comm->size;
        Tensor *next = ring->kv;
        const Node *start = NULL;
        if (has_next) {
            next = room_for(graph, ring, step + 2, kv->dtype, "");
            start = start_shift(graph, comm, kv, next, -1);
        }
        bool has_part = is_seen(ring, step + 1); /* of its own keys each row sees one: the last is there */
        Tensor *sum = has_part || !step ? room_for(graph, ring, step + 1, DTYPE_F32, ".gradient") : received;
        if (has_part) {
            record_part_back(graph, ring, dy, kv, step + 1, dq, mode, sum);
            mode = WRITE_ADD;
        } else if (!step) {
            op_zero(graph, sum);
        }
        if (step && !has_part) { /* what came goes on as it is */
            wait_for(graph, gradients);
        } else if (step) {
            Tensor *own = sum;
            wait_for(graph, gradients);
            sum = is_last ? home : room_for(graph, ring, step + 1, DTYPE_F32, ".gradients");
            graph_record(graph, &OP_ADD, NULL, 0, 2, TENSORS(received, own), 1, TENSORS(sum));
        }
        if (!is_last) {
            received = room_for(graph, ring, step + 2, DTYPE_F32, ".gradients");
            gradients = start_shift(graph, comm, sum, received, -1);
        }
        if (start) wait_for(graph, start);
        kv = next;
    }
    if (ring->packed->dtype == DTYPE_F32) autograd_share(autograd, ring->packed, dpacked);
    else autograd_record(autograd, &OP_COPY, NULL, 0, 1, TENSORS(dpacked), 1, TENSORS(ring->packed));
}

static Status no_kernel(const KernelCall *call, Error *error) {
    (void)call, (void)error;
    return STATUS_OK;
}

static double no_bytes(const Node *node) {
    (void)node;
    return 0.0;
}

static bool is_always_capturable(const Node *node) {
    (void)node;
    return true;
}

const Op OP_RING_ATTENTION = {.name = "ring_attention",
                              .gradient = ring_gradient,
                              .bytes = no_bytes,
                              .reference = no_kernel,
                              .is_portable = true,
                              .is_capturable = is_always_capturable};

/* ---- all-to-all */

/* Where everything is cut: heads and positions by rank, and what is sent to and received from each. */
typedef struct {
    int n_ranks;
    int64_t width;                            /* of a key/value head with its queries */
    int64_t mine;                             /* key/value heads of this rank */
    int64_t *rows;                            /* of all positions */
    int64_t *qkv_columns, *y_columns;         /* of heads: each of q, k and v; of y */
    int64_t *qkv_out, *qkv_in, *y_out, *y_in; /* elements */
} Exchange;

static Exchange exchange_of(Graph *graph, const Comm *comm, const Tensor *qkv, int64_t n_positions,
                            const AttentionAttributes *a) {
    int n = comm->size;
    int64_t size = a->head_size, share = a->n_heads / a->n_kv_heads;
    int64_t n_rows = qkv->shape.dim[0] * qkv->shape.dim[1], B = qkv->shape.dim[0];
    Exchange e = {.n_ranks = n, .width = (share + 2) * size};
    int64_t **borders[] = {&e.rows, &e.y_columns, &e.qkv_out, &e.qkv_in, &e.y_out, &e.y_in};
    for (size_t i = 0; i < sizeof borders / sizeof borders[0]; i++)
        *borders[i] = ARENA_ARRAY(&graph->arena, int64_t, n + 1);
    e.qkv_columns = ARENA_ARRAY(&graph->arena, int64_t, 3 * n + 1);
    e.mine = chunk_first(a->n_kv_heads, n, comm->rank + 1) - chunk_first(a->n_kv_heads, n, comm->rank);
    for (int r = 0; r <= n; r++) {
        int64_t heads = chunk_first(a->n_kv_heads, n, r);
        e.rows[r] = chunk_first(n_positions, n, r);
        e.y_columns[r] = heads * share * size;
        e.qkv_columns[r] = heads * share * size;
        e.qkv_columns[n + r] = (a->n_heads + heads) * size;
        e.qkv_columns[2 * n + r] = (a->n_heads + a->n_kv_heads + heads) * size;
        e.qkv_out[r] = n_rows * heads * e.width;
        e.qkv_in[r] = B * e.rows[r] * e.mine * e.width;
        e.y_out[r] = B * e.rows[r] * e.mine * share * size;
        e.y_in[r] = n_rows * e.y_columns[r];
    }
    return e;
}

Tensor *op_exchanged_attention(Graph *graph, Comm *comm, Tensor *qkv, Tensor *random, int64_t n_positions,
                               const AttentionMask *mask, const AttentionAttributes *a) {
    if (!comm || comm->size == 1) return attend_alone(graph, qkv, random, mask, a);
    int n = comm->size;
    int64_t B = qkv->shape.dim[0], T = qkv->shape.dim[1], share = a->n_heads / a->n_kv_heads;
    if (!graph_check(graph, n <= a->n_kv_heads && n <= PACK_MAX_PARTS,
                     "all-to-all: %d ranks for %d key/value heads", n, a->n_kv_heads))
        return graph->nothing;
    Exchange e = exchange_of(graph, comm, qkv, n_positions, a);
    AttentionAttributes mine = *a;
    mine.n_heads = (int)(e.mine * share);
    mine.n_kv_heads = (int)e.mine;
    mine.first_head = a->first_head + (int)(e.y_columns[comm->rank] / a->head_size);
    Tensor *by_heads = op_pack_pieces(graph, qkv, 2, n, 3, e.qkv_columns); /* of these positions */
    Tensor *exchanged = op_parallel_all_to_all(graph, comm, by_heads, e.qkv_out, e.qkv_in);
    Tensor *all = op_unpack(graph, exchanged, SHAPE(B, n_positions, e.mine * e.width), 1, n, e.rows);
    Tensor *y = attend_alone(graph, all, random, mask, &mine); /* (B,n_positions,...) */
    Tensor *by_rows = op_pack(graph, y, 1, n, e.rows);
    Tensor *flat = graph_view(graph, by_rows, SHAPE(tensor_count(by_rows), 1), 0, by_rows->name);
    Tensor *back = op_parallel_all_to_all(graph, comm, flat, e.y_out, e.y_in);
    return op_unpack(graph, back, SHAPE(B, T, (int64_t)a->n_heads * a->head_size), 2, n, e.y_columns);
}
