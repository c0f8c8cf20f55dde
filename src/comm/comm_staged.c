/* Down, across, up: the vector is copied to the host, the host's communicator does its work, and the result is copied back.
 * All of it happens in start; there is nothing left to finish. The buffer grows to the largest vector in the first step
 * and stays. */
#include "comm/comm_device.h"

#include <stdlib.h>

typedef struct {
    Comm *host;
    CommStaging staging;
    void *buffer;
    size_t buffer_bytes;
} Staged;

static Status reserve(Staged *staged, size_t n_bytes, Error *error) {
    if (n_bytes <= staged->buffer_bytes) return STATUS_OK;
    void *larger = realloc(staged->buffer, n_bytes);
    if (!larger) return error_failed(error, "no memory to pass %zu bytes through the host", n_bytes);
    staged->buffer = larger;
    staged->buffer_bytes = n_bytes;
    return STATUS_OK;
}

static Status run(Staged *staged, const CommOperation *operation, Error *error) {
    CommOperation here = *operation;
    bool has_slices = operation->kind == COMM_ALL_GATHER || operation->kind == COMM_REDUCE_SCATTER;
    int64_t n = has_slices ? operation->border[staged->host->size] : operation->n;
    size_t n_bytes = (size_t)n * comm_type_bytes(operation->type);
    TRY(reserve(staged, n_bytes, error));
    TRY(staged->staging.download(staged->staging.context, staged->buffer, operation->data, n_bytes, error));
    here.data = staged->buffer;
    TRY(comm_run(staged->host, &here, error));
    return staged->staging.upload(staged->staging.context, operation->data, staged->buffer, n_bytes, error);
}

static Status start(void *context, const CommOperation *operation, CommTicket *ticket, Error *error) {
    ticket->number = 0;
    switch (operation->kind) {
    case COMM_BARRIER: return comm_run(((Staged *)context)->host, operation, error);
    case COMM_BROADCAST:
    case COMM_REDUCE:
    case COMM_ALL_REDUCE:
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER: return run(context, operation, error);
    default:
        return error_failed(error, "%s of a device's memory is not done through the host",
                            comm_kind_name(operation->kind));
    }
}

static Status finish(void *context, const CommTicket *ticket, Error *error) {
    (void)context, (void)ticket, (void)error;
    return STATUS_OK;
}

static Status no_message(Error *error) {
    return error_failed(error, "messages of a device's memory are not sent through the host");
}

static Status start_send(void *context, const void *data, size_t n_bytes, int to, int tag,
                         CommRequest *request, Error *error) {
    (void)context, (void)data, (void)n_bytes, (void)to, (void)tag, (void)request;
    return no_message(error);
}

static Status start_receive(void *context, void *data, size_t n_bytes, int from, int tag,
                            CommRequest *request, Error *error) {
    (void)context, (void)data, (void)n_bytes, (void)from, (void)tag, (void)request;
    return no_message(error);
}

static Status wait_all(void *context, CommRequest *requests, int n_requests, Error *error) {
    (void)context, (void)requests, (void)n_requests;
    return no_message(error);
}

static Status split(void *context, int color, int key, Comm *child, Error *error) {
    (void)context, (void)color, (void)key, (void)child;
    return error_failed(error, "split the host's communicator instead");
}

static bool is_threaded(void *context) {
    (void)context;
    return false;
}

static void abort_job(void *context, int exit_code) {
    comm_abort(((Staged *)context)->host, exit_code);
}

static void close_staged(void *context) {
    Staged *staged = context;
    free(staged->buffer);
    free(staged);
}

static const CommTable staged_table = {
    .name = "staged",
    .start_send = start_send,
    .start_receive = start_receive,
    .wait = wait_all,
    .start = start,
    .finish = finish,
    .split = split,
    .is_threaded = is_threaded,
    .abort = abort_job,
    .close = close_staged,
};

Status comm_staged_open(Comm *comm, Comm *host, const CommStaging *staging, Error *error) {
    Staged *staged = calloc(1, sizeof *staged);
    if (!staged) return error_failed(error, "no memory for a communicator");
    staged->host = host;
    staged->staging = *staging;
    *comm = (Comm){.table = &staged_table, .context = staged, .rank = host->rank, .size = host->size};
    return STATUS_OK;
}
