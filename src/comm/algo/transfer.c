/* Why in pieces: a core that copies a message into memory and then adds it reads it from memory again. A
 * piece of a quarter of a megabyte is still in the cache when it is added, and while it is added the next
 * one, whose receive was posted before, may arrive. Smaller pieces lose more by the rendezvous of each
 * (measured: at 64 KiB a fifth), larger ones by the cache.
 *
 * Why in rounds and blocks: an element that was just added is what the next step sends. Taking all steps with
 * half a megabyte, and only then the next half, lets the neighbour read it from a cache instead of from
 * memory.
 *
 * Both ends cut a message by its length alone, so they agree without a word. The receives of pieces k+1 and
 * the sends of piece k+1 are posted before anybody waits for piece k, so a ring of ranks that all do the same
 * cannot stand still. */
#include "comm/algo/transfer.h"

#include "comm/combine.h"

enum {
    TAG = COMM_N_TAGS + 1, /* COMM_N_TAGS is that of the other collective operations */
    DEPTH = TRANSFER_SCRATCH_BYTES / TRANSFER_PIECE_BYTES,
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

int64_t transfer_elements(const Vector *vector, int64_t n_bytes) {
    return n_bytes / (int64_t)comm_type_bytes(vector->type);
}

/* One half of a step: a message, its pieces and the requests of those under way. */
typedef struct {
    Span span;
    int64_t piece, n_pieces, n_started; /* elements of a piece */
    size_t element_bytes;
    CommRequest request[DEPTH];
} Message;

static Message message_of(const Vector *vector, Span span) {
    int64_t piece = transfer_elements(vector, TRANSFER_PIECE_BYTES);
    return (Message){.span = span,
                     .piece = piece,
                     .n_pieces = (span_length(span) + piece - 1) / piece,
                     .element_bytes = comm_type_bytes(vector->type)};
}

static int64_t piece_length(const Message *message, int64_t index) {
    return least(message->piece, span_length(message->span) - index * message->piece);
}

static size_t piece_bytes(const Message *message, int64_t index) {
    return (size_t)piece_length(message, index) * message->element_bytes;
}

/* Where piece `index` lies in a buffer whose first element is element `first` of the vector. */
static char *piece_at(const Message *message, char *buffer, int64_t first, int64_t index) {
    return buffer + (size_t)(message->span.begin - first + index * message->piece) * message->element_bytes;
}

static char *slot_of(const Comm *comm, int64_t index) {
    return (char *)comm->scratch + (size_t)(index % DEPTH) * TRANSFER_PIECE_BYTES;
}

/* Where piece `index` of what is received arrives. */
static char *arrival(const Comm *comm, const Vector *vector, const Transfer *step, const Message *in,
                     int64_t index) {
    if (step->combine) return slot_of(comm, index);
    if (step->elsewhere) return piece_at(in, step->elsewhere, step->in.begin, index);
    return piece_at(in, vector->data, 0, index);
}

/* Post everything up to piece `end`, receives first. */
static Status start(Comm *comm, const Vector *vector, const Transfer *step, Message *in, Message *out,
                    int64_t end, Error *error) {
    const CommTable *table = comm->table;
    for (; in->n_started < least(end, in->n_pieces); in->n_started++) {
        int64_t k = in->n_started;
        TRY(table->start_receive(comm->context, arrival(comm, vector, step, in, k), piece_bytes(in, k),
                                 step->from, TAG, &in->request[k % DEPTH], error));
    }
    for (; out->n_started < least(end, out->n_pieces); out->n_started++) {
        int64_t k = out->n_started;
        TRY(table->start_send(comm->context, piece_at(out, vector->data, 0, k), piece_bytes(out, k), step->to,
                              TAG, &out->request[k % DEPTH], error));
    }
    return STATUS_OK;
}

/* The step as whoever only counts sees it: whole messages at no address. */
static Status count(Comm *comm, const Vector *vector, const Transfer *step, Error *error) {
    size_t element_bytes = comm_type_bytes(vector->type);
    size_t in_bytes = (size_t)span_length(step->in) * element_bytes;
    size_t out_bytes = (size_t)span_length(step->out) * element_bytes;
    CommRequest request[2];
    int n_requests = 0;
    if (in_bytes)
        TRY(comm->table->start_receive(comm->context, NULL, in_bytes, step->from, TAG, &request[n_requests++],
                                       error));
    if (out_bytes)
        TRY(comm->table->start_send(comm->context, NULL, out_bytes, step->to, TAG, &request[n_requests++],
                                    error));
    return comm->table->wait(comm->context, request, n_requests, error);
}

Status transfer_run(Comm *comm, const Vector *vector, const Transfer *step, Error *error) {
    if (comm->table->counts_only) return count(comm, vector, step, error);
    Message in = message_of(vector, step->in), out = message_of(vector, step->out);
    for (int64_t k = 0; k < in.n_pieces || k < out.n_pieces; k++) {
        TRY(start(comm, vector, step, &in, &out, k + DEPTH, error));
        if (k < in.n_pieces) {
            TRY(comm->table->wait(comm->context, &in.request[k % DEPTH], 1, error));
            if (step->combine)
                comm_combine(piece_at(&in, vector->data, 0, k), slot_of(comm, k), piece_length(&in, k),
                             vector->type, vector->reduction);
        }
        if (k < out.n_pieces) TRY(comm->table->wait(comm->context, &out.request[k % DEPTH], 1, error));
    }
    return STATUS_OK;
}

Status transfer_in_blocks(Comm *comm, const Vector *vector, int64_t block_bytes,
                          Status (*all_reduce)(Comm *comm, const Vector *block, Error *error), Error *error) {
    if (comm->table->counts_only) return all_reduce(comm, vector, error);
    int64_t most = transfer_elements(vector, block_bytes);
    for (int64_t first = 0; first < vector->n; first += most) {
        Vector block = *vector;
        block.data += (size_t)first * comm_type_bytes(vector->type);
        block.n = least(most, vector->n - first);
        TRY(all_reduce(comm, &block, error));
    }
    return STATUS_OK;
}
