/* What the algorithms are made of: a step, in which a rank sends at most one message and receives at most
 * one.
 *
 * Everything is said in elements of one vector. A step with nothing to send or nothing to receive leaves that
 * half out: empty messages do not travel, and are not counted. */
#ifndef PGPT_COMM_ALGO_TRANSFER_H
#define PGPT_COMM_ALGO_TRANSFER_H

#include "comm/algo/algo.h"

/* What is reduced. */
typedef struct {
    char *data; /* (n) */
    int64_t n;
    CommType type;
    CommReduction reduction;
    int root; /* of algorithms that have one */
} Vector;

/* Elements begin .. end-1. */
typedef struct {
    int64_t begin, end;
} Span;

static inline int64_t span_length(Span span) {
    return span.end - span.begin;
}

typedef struct {
    Span out; /* sent, to this rank */
    int to;
    Span in; /* received, from this rank; must not overlap `out` unless it goes elsewhere */
    int from;
    bool combine; /* what arrives is put together with what is there (+, max, min); else it takes its place */
    void
        *elsewhere; /* it is left here, not in the vector; NULL: in the vector. Not together with `combine` */
} Transfer;

/* Take the step; when it returns, both messages have arrived or may be forgotten. A step that combines uses
 * the first TRANSFER_SCRATCH_BYTES of comm->scratch. */
Status transfer_run(Comm *comm, const Vector *vector, const Transfer *step, Error *error);

/* A long message travels in pieces of this size, and is received through two of them. */
enum { TRANSFER_PIECE_BYTES = 256 << 10, TRANSFER_SCRATCH_BYTES = 2 * TRANSFER_PIECE_BYTES };

/* The length of a message, in bytes, that keeps the pieces busy and stays in a core's second-level cache: an
 * algorithm that takes several steps takes all of them with so much before it goes on. */
enum { TRANSFER_ROUND_BYTES = 512 << 10 };

/* Take a long vector through an algorithm block by block; where messages are only counted, in one. */
Status transfer_in_blocks(Comm *comm, const Vector *vector, int64_t block_bytes,
                          Status (*all_reduce)(Comm *comm, const Vector *block, Error *error), Error *error);

/* So many elements of the vector's type as fit. */
int64_t transfer_elements(const Vector *vector, int64_t n_bytes);

#endif
