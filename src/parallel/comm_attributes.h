/* What communication nodes carry: for comm_ops.c and comm_channel.c, which run them, and conjugate.c, which
 * knows their gradients. */
#ifndef PGPT_PARALLEL_COMM_ATTRIBUTES_H
#define PGPT_PARALLEL_COMM_ATTRIBUTES_H

#include "comm/comm.h"
#include "graph/passes/autograd.h"

/* Messages to and from two ranks, which may be the same; -1: none. */
typedef struct {
    int to, from;
    int send_tag, receive_tag;
} CommPeers;

enum { COMM_MOST_FLIGHTS = 32 };

/* One run of a start node that has not been waited for. */
typedef struct {
    CommTicket ticket;      /* of a collective */
    CommRequest request[2]; /* of messages */
    int n_requests;
} CommFlight;

/* The one thing of a node that changes from step to step; its start and its wait share it. Several
 * micro-batches may be under way at once: their waits come in the order of their starts. */
typedef struct {
    uint64_t n_started, n_waited;
    bool may_wait_ahead; /* of messages that are received: comm_allow_ahead was called */
    CommFlight flight[COMM_MOST_FLIGHTS];
} CommFlights;

typedef enum {
    CONJUGATE_COPY,           /* identity; all-reduce */
    CONJUGATE_SUM,            /* all-reduce; identity */
    CONJUGATE_ALL_GATHER,     /* all-gather; reduce-scatter */
    CONJUGATE_JOIN,           /* all-gather; slice */
    CONJUGATE_SPLIT,          /* slice; all-gather */
    CONJUGATE_REDUCE_SCATTER, /* reduce-scatter; all-gather */
    CONJUGATE_ALL_TO_ALL,     /* all-to-all; all-to-all the other way */
    CONJUGATE_EXCHANGE,       /* messages; messages the other way */
    CONJUGATE_EXPERTS,        /* rows to their experts; back, and the other way round */
} ConjugateKind;

/* What a pair of nodes of the forward makes of x, so that their rules can do the conjugate. */
typedef struct {
    ConjugateKind kind;
    Tensor *x, *y;     /* NULL where an exchange has none */
    const Node *start; /* of the conjugate, from the rule of the wait to that of the start */
    Tensor *brought;   /* by it */
} Conjugate;

/* Rows between tokens and experts (expert_exchange.c): what says how many, and room for one run's answer. */
typedef struct ExpertRoutes ExpertRoutes;

typedef struct {
    Comm *comm;
    CommOperation operation; /* without data; COMM_BARRIER where it is messages */
    CommPeers peers;
    CommFlights *flights;
    Conjugate *conjugate; /* NULL: nothing that autograd should know of */
    ExpertRoutes *routes; /* NULL: it is known when the program is planned */
} CommAttributes;

/* Recorded as PHASE_COMMUNICATION, with flights of its own. */
Node *comm_record(Graph *graph, const Op *op, CommAttributes attributes, int n_inputs, Tensor *const *inputs,
                  int n_outputs, Tensor *const *outputs);

CommType comm_type_of(DType dtype);

/* What nodes with messages run, count and say of themselves, those of channels (comm_channel.c) too. */
Status comm_exchange_kernel(const KernelCall *call, Error *error);
Status comm_wait_kernel(const KernelCall *call, Error *error);
double comm_exchange_bytes(const Node *node);
double comm_no_bytes(const Node *node);
void comm_describe(const Node *node, char *text, size_t n_bytes);

/* For comm_ops.h's own kind of nodes in other files: where a run of the start node may note what is under
 * way, and what they share. */
Status comm_start_flight(const CommAttributes *attributes, CommFlight **flight, Error *error);
const void *comm_flight_of(const Node *node);

/* What the conjugate of an exchange of experts' rows begins with dy; as conjugate->brought says. */
void expert_exchange_back(Autograd *autograd, const CommAttributes *attributes, Tensor *dy);

/* The rules: that of a wait begins the conjugate, that of a start ends it; so they enclose in the backward
 * what start and wait have enclosed in the forward. */
void conjugate_begin(Autograd *autograd, const Node *wait);
void conjugate_end(Autograd *autograd, const Node *start);
void conjugate_both(Autograd *autograd, const Node *node);

#endif
