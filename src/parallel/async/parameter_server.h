/* A parameter server: rank 0 has the weights and updates them by one gradient at a time, in the order in
 * which they come; the other ranks, its workers, pull the weights, compute a gradient and push it, each at
 * its own pace.
 *
 *     rank 0:   TRY(parameter_server_open(&server, &setup, error));
 *               // setup.apply is called for every gradient
 *               TRY(parameter_server_serve(&server, until, give_until, error));
 *               // all workers have been told, nothing is under way
 *               TRY(parameter_server_pause(&server, words, error));
 *
 *     others:   ParameterServerReport report = {.ticket = -1};                   // nothing to bring yet
 *               for (;;) {
 *                   TRY(parameter_server_ask(comm, &report, gradient, gradient_bytes, weights, weights_bytes,
 *                                            &order, error));
 *                   // evaluate, save, ... and ask again or leave
 *                   if (order.pauses) break;
 *                   ... compute the gradient of piece of work order.ticket into `gradient` ...
 *                   report = (ParameterServerReport){.ticket = order.ticket, .loss = loss};
 *               }
 *
 * Work is handed out by tickets 0, 1, 2, ...: a ticket is a share of a batch, so that all of the data is used
 * once and in order, whoever is fast. How late a gradient may be is bounded (parallel/async/staleness.h). */
#ifndef PGPT_PARALLEL_ASYNC_PARAMETER_SERVER_H
#define PGPT_PARALLEL_ASYNC_PARAMETER_SERVER_H

#include "comm/comm.h"
#include "parallel/async/staleness.h"

/* What a worker says when it asks for more. */
typedef struct {
    int64_t ticket; /* that its gradient is of; -1: it brings none */
    double loss;
    double forward_ms, backward_ms;
    double wait_ms; /* that it waited for the weights it used */
    int32_t stops;  /* it was told to stop */
    int32_t unused;
} ParameterServerReport;

enum { PARAMETER_SERVER_WORDS = 2 };

/* What it is told. */
typedef struct {
    int32_t pauses;
    int32_t unused;
    int64_t ticket;                        /* what to compute next; the weights follow */
    int64_t words[PARAMETER_SERVER_WORDS]; /* at a pause: of whoever called for it */
} ParameterServerOrder;

typedef struct {
    Comm *comm; /* of server and workers, used by nobody else; the server is rank 0 */
    int64_t bound;
    int64_t version; /* updates made before: of a run that goes on */
    const void *weights;
    size_t weights_bytes;
    void *gradient; /* where gradients arrive, one at a time */
    size_t gradient_bytes;
    /* Update the weights by `gradient`, which came with this report and is so late. */
    Status (*apply)(void *context, const ParameterServerReport *report, int64_t staleness, Error *error);
    /* What to send a worker instead of `weights`, as many bytes: those that it should compute with while the
     * gradients of n_out others are under way. Optional. */
    const void *(*weights_for)(void *context, int n_out);
    void *context;
} ParameterServerSetup;

typedef struct ParameterServerWorker ParameterServerWorker;

typedef struct {
    ParameterServerSetup setup;
    StalenessBook book;
    int n_workers;
    ParameterServerWorker *worker;
    CommRequest *request;
    int *asked;          /* whose request it is */
    int last_heard;      /* whose report was the last */
    int64_t n_arrivals;  /* of reports, to serve in their order */
    bool stop_is_wanted; /* by a worker */
} ParameterServer;

Status parameter_server_open(ParameterServer *server, const ParameterServerSetup *setup, Error *error);
void parameter_server_close(ParameterServer *server); /* safe on {0}, and twice */

/* Serve until so many updates have been made, counted over the run; tickets below give_until may be handed
 * out meanwhile, and must be enough. */
Status parameter_server_serve(ParameterServer *server, int64_t until, int64_t give_until, Error *error);

/* When as many updates are made as tickets were given: tell every worker. */
Status parameter_server_pause(ParameterServer *server, const int64_t *words /* (PARAMETER_SERVER_WORDS) */,
                              Error *error);

/* Of a worker. */
Status parameter_server_ask(Comm *comm, const ParameterServerReport *report, const void *gradient,
                            size_t gradient_bytes, void *weights, size_t weights_bytes,
                            ParameterServerOrder *order, Error *error);

#endif
