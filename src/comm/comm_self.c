/* Collective operations among one rank are done by collective.c without asking the transport, and there is
 * nobody to send to; what is left is to say so, and to split into itself. */
#include "comm/comm_self.h"

static Status start_send(void *context, const void *data, size_t n_bytes, int to, int tag,
                         CommRequest *request, Error *error) {
    (void)context, (void)data, (void)n_bytes, (void)tag, (void)request;
    return error_failed(error, "the only rank there is cannot send to rank %d", to);
}

static Status start_receive(void *context, void *data, size_t n_bytes, int from, int tag,
                            CommRequest *request, Error *error) {
    (void)context, (void)data, (void)n_bytes, (void)tag, (void)request;
    return error_failed(error, "the only rank there is cannot receive from rank %d", from);
}

static Status wait(void *context, CommRequest *requests, int n_requests, Error *error) {
    (void)context, (void)requests, (void)n_requests, (void)error;
    return STATUS_OK;
}

static Status split(void *context, int color, int key, Comm *child, Error *error) {
    (void)context, (void)key, (void)error;
    if (color >= 0) *child = comm_self();
    return STATUS_OK;
}

static bool is_threaded(void *context) {
    (void)context;
    return true;
}

static void abort_job(void *context, int exit_code) {
    (void)context, (void)exit_code;
}

static void close_self(void *context) {
    (void)context;
}

static const CommTable self_table = {
    .name = "self",
    .start_send = start_send,
    .start_receive = start_receive,
    .wait = wait,
    .split = split,
    .is_threaded = is_threaded,
    .abort = abort_job,
    .close = close_self,
};

Comm comm_self(void) {
    return (Comm){.table = &self_table, .rank = 0, .size = 1};
}
