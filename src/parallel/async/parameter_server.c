/* One loop: apply what may be applied, hand out what may be handed out, and if neither can be done wait for
 * the next report.
 *
 * A worker's report and its gradient are two messages. The report is small and received ahead; the gradient
 * is taken off the wire only when it is applied, into the one place where the update reads it. A gradient
 * that the bound on staleness holds back therefore costs no memory here: it waits at its worker, which has
 * nothing better to do.
 *
 * Of several gradients that may be applied the one of the oldest weights is. Workers that wait for weights
 * get them in the order in which they asked.
 *
 * There is one thread, and it is the rank's own: an error ends the run like any other. Nothing is posted that
 * is not waited for: a report is expected only of a worker that has been given work or has just been let out
 * of a pause. */
#include "parallel/async/parameter_server.h"

#include <stdlib.h>
#include <string.h>

typedef enum {
    WORKER_PAUSED,    /* was told to; nothing is expected of it */
    WORKER_COMPUTING, /* its report is expected, and posted for */
    WORKER_HOLDING,   /* it has reported a gradient */
    WORKER_WAITING,   /* its gradient was applied, or it had none: it waits for weights */
} WorkerPhase;

struct ParameterServerWorker {
    WorkerPhase phase;
    CommRequest request;
    ParameterServerReport report;
    int64_t arrival;
};

enum { TAG_REPORT, TAG_GRADIENT, TAG_ORDER, TAG_WEIGHTS };

static int rank_of(int worker) {
    return worker + 1;
}

Status parameter_server_open(ParameterServer *server, const ParameterServerSetup *setup, Error *error) {
    *server = (ParameterServer){.setup = *setup, .n_workers = setup->comm->size - 1};
    size_t n = (size_t)server->n_workers;
    TRY(staleness_open(&server->book, server->n_workers, setup->bound, setup->version, error));
    server->worker = calloc(n, sizeof *server->worker);
    server->request = calloc(n, sizeof *server->request);
    server->asked = calloc(n, sizeof *server->asked);
    if (!server->worker || !server->request || !server->asked)
        return error_failed(error, "no memory for a server of %d workers", server->n_workers);
    return STATUS_OK;
}

void parameter_server_close(ParameterServer *server) {
    staleness_close(&server->book);
    free(server->worker);
    free(server->request);
    free(server->asked);
    *server = (ParameterServer){0};
}

/* ---- what a server does */

static Status expect_report(ParameterServer *server, int worker, Error *error) {
    ParameterServerWorker *state = &server->worker[worker];
    state->phase = WORKER_COMPUTING;
    return comm_post_receive(server->setup.comm, &state->report, sizeof state->report, rank_of(worker),
                             TAG_REPORT, &state->request, error);
}

static Status send_order(ParameterServer *server, int worker, const ParameterServerOrder *order,
                         Error *error) {
    return comm_send(server->setup.comm, order, sizeof *order, rank_of(worker), TAG_ORDER, error);
}

/* The next report of anybody who computes. Of several that are there, one behind the worker that was last
 * heard: whoever is so fast that its report is always there already must not keep the others from being
 * heard. */
static Status wait_for_report(ParameterServer *server, Error *error) {
    int n = 0, which = 0;
    for (int k = 1; k <= server->n_workers; k++) {
        int i = (server->last_heard + k) % server->n_workers;
        if (server->worker[i].phase != WORKER_COMPUTING) continue;
        server->request[n] = server->worker[i].request;
        server->asked[n++] = i;
    }
    TRY(comm_wait_any_posted(server->setup.comm, server->request, n, &which, error));
    server->last_heard = server->asked[which];
    ParameterServerWorker *state = &server->worker[server->last_heard];
    state->phase = state->report.ticket >= 0 ? WORKER_HOLDING : WORKER_WAITING;
    state->arrival = server->n_arrivals++;
    server->stop_is_wanted |= state->report.stops != 0;
    return STATUS_OK;
}

/* The worker whose gradient comes next, -1: none may. */
static int find_gradient(const ParameterServer *server) {
    int best = -1;
    const int64_t *pulled = server->book.pulled;
    for (int i = 0; i < server->n_workers; i++) {
        if (server->worker[i].phase != WORKER_HOLDING || !staleness_may_apply(&server->book, i)) continue;
        bool is_older =
            best < 0 || pulled[i] < pulled[best] ||
            (pulled[i] == pulled[best] && server->worker[i].arrival < server->worker[best].arrival);
        if (is_older) best = i;
    }
    return best;
}

static int find_waiting(const ParameterServer *server) {
    int best = -1;
    for (int i = 0; i < server->n_workers; i++) {
        if (server->worker[i].phase != WORKER_WAITING) continue;
        if (best < 0 || server->worker[i].arrival < server->worker[best].arrival) best = i;
    }
    return best;
}

static Status apply(ParameterServer *server, int worker, Error *error) {
    const ParameterServerSetup *setup = &server->setup;
    ParameterServerWorker *state = &server->worker[worker];
    int64_t staleness;
    TRY(comm_receive(setup->comm, setup->gradient, setup->gradient_bytes, rank_of(worker), TAG_GRADIENT,
                     error));
    TRY(staleness_apply(&server->book, worker, &staleness, error));
    state->phase = WORKER_WAITING;
    return setup->apply(setup->context, &state->report, staleness, error);
}

static Status give(ParameterServer *server, int worker, Error *error) {
    const ParameterServerSetup *setup = &server->setup;
    ParameterServerOrder order = {.ticket = server->book.n_pulled};
    const void *weights =
        setup->weights_for ? setup->weights_for(setup->context, server->book.n_out) : setup->weights;
    staleness_pull(&server->book, worker);
    TRY(send_order(server, worker, &order, error));
    TRY(comm_send(setup->comm, weights, setup->weights_bytes, rank_of(worker), TAG_WEIGHTS, error));
    return expect_report(server, worker, error);
}

/* Whoever was told to pause asks again. */
static Status end_pause(ParameterServer *server, Error *error) {
    for (int i = 0; i < server->n_workers; i++)
        if (server->worker[i].phase == WORKER_PAUSED) TRY(expect_report(server, i, error));
    return STATUS_OK;
}

Status parameter_server_serve(ParameterServer *server, int64_t until, int64_t give_until, Error *error) {
    StalenessBook *book = &server->book;
    if (give_until < until || give_until < book->n_pulled)
        return error_failed(error, "a server cannot make %lld updates of %lld gradients", (long long)until,
                            (long long)give_until);
    TRY(end_pause(server, error));
    while (book->version < until) {
        int holding = find_gradient(server);
        int waiting = book->n_pulled < give_until && staleness_may_pull(book) ? find_waiting(server) : -1;
        if (holding >= 0) TRY(apply(server, holding, error));
        else if (waiting >= 0) TRY(give(server, waiting, error));
        else TRY(wait_for_report(server, error));
    }
    return STATUS_OK;
}

static bool any_computes(const ParameterServer *server) {
    for (int i = 0; i < server->n_workers; i++)
        if (server->worker[i].phase == WORKER_COMPUTING) return true;
    return false;
}

Status parameter_server_pause(ParameterServer *server, const int64_t *words, Error *error) {
    if (server->book.n_out)
        return error_failed(error, "a server paused with %d gradients under way", server->book.n_out);
    while (any_computes(server)) TRY(wait_for_report(server, error)); /* those who have not asked yet */
    ParameterServerOrder order = {.pauses = 1};
    memcpy(order.words, words, sizeof order.words);
    for (int i = 0; i < server->n_workers; i++) {
        TRY(send_order(server, i, &order, error));
        server->worker[i].phase = WORKER_PAUSED;
    }
    return STATUS_OK;
}

/* ---- what a worker does */

Status parameter_server_ask(Comm *comm, const ParameterServerReport *report, const void *gradient,
                            size_t gradient_bytes, void *weights, size_t weights_bytes,
                            ParameterServerOrder *order, Error *error) {
    TRY(comm_send(comm, report, sizeof *report, 0, TAG_REPORT, error));
    if (report->ticket >= 0) TRY(comm_send(comm, gradient, gradient_bytes, 0, TAG_GRADIENT, error));
    TRY(comm_receive(comm, order, sizeof *order, 0, TAG_ORDER, error));
    if (order->pauses) return STATUS_OK;
    return comm_receive(comm, weights, weights_bytes, 0, TAG_WEIGHTS, error);
}
