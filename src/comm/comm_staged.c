/* Down, across, up: what is sent is copied to the host, the host's communicator does its work, and what has
 * come is copied back.
 *
 * Collectives do all of it in start; there is nothing left to finish. Their buffer grows to the largest
 * vector in the first step and stays. A message has a buffer of its own, from its start to the wait for it,
 * which then waits for the next message. */
#include "comm/comm_device.h"

#include <stdlib.h>

/* One under way, or the buffer of one that was. */
typedef struct Message {
    struct Message *next; /* of those that were */
    CommRequest request;  /* of the host's communicator */
    void *buffer;
    size_t buffer_bytes, n_bytes;
    void *device; /* where what comes goes; NULL: this one is sent */
} Message;

typedef struct {
    Comm *host;
    CommStaging staging;
    void *buffer;
    size_t buffer_bytes;
    Message *idle;
} Staged;

/* ---- memory of the host */

static Status take(const Staged *staged, size_t n_bytes, void **memory, Error *error) {
    const CommStaging *staging = &staged->staging;
    if (staging->take) return staging->take(staging->context, n_bytes, memory, error);
    *memory = malloc(n_bytes ? n_bytes : 1);
    return *memory ? STATUS_OK : error_failed(error, "no memory to pass %zu bytes through the host", n_bytes);
}

static void give_back(const Staged *staged, void *memory) {
    if (staged->staging.give_back) staged->staging.give_back(staged->staging.context, memory);
    else free(memory);
}

static Status reserve(Staged *staged, size_t n_bytes, Error *error) {
    if (n_bytes <= staged->buffer_bytes) return STATUS_OK;
    void *larger;
    TRY(take(staged, n_bytes, &larger, error));
    if (staged->buffer) give_back(staged, staged->buffer);
    staged->buffer = larger;
    staged->buffer_bytes = n_bytes;
    return STATUS_OK;
}

/* ---- collectives */

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

/* What goes out and what comes in, side by side in the buffer. Slices that lie anywhere are without gaps. */
static Status run_all_to_all(Staged *staged, const CommOperation *operation, Error *error) {
    const CommStaging *staging = &staged->staging;
    CommOperation here = *operation;
    bool has_places = operation->out_places != NULL;
    size_t element_bytes = comm_type_bytes(operation->type);
    int64_t n_out = has_places ? operation->out_places->n_elements : operation->border[staged->host->size];
    int64_t n_in =
        has_places ? operation->in_places->n_elements : operation->other_border[staged->host->size];
    size_t out_bytes = (size_t)n_out * element_bytes, in_bytes = (size_t)n_in * element_bytes;
    TRY(reserve(staged, out_bytes + in_bytes, error));
    here.data = staged->buffer;
    here.other = (char *)staged->buffer + out_bytes;
    TRY(staging->download(staging->context, here.data, operation->data, out_bytes, error));
    TRY(comm_run(staged->host, &here, error));
    return staging->upload(staging->context, operation->other, here.other, in_bytes, error);
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
    case COMM_ALL_TO_ALL: return run_all_to_all(context, operation, error);
    default:
        return error_failed(error, "%s of a device's memory is not done through the host",
                            comm_kind_name(operation->kind));
    }
}

static Status finish(void *context, const CommTicket *ticket, Error *error) {
    (void)context, (void)ticket, (void)error;
    return STATUS_OK;
}

/* ---- messages */

static Message *message_new(const Staged *staged, size_t n_bytes, Error *error) {
    Message *message = calloc(1, sizeof *message);
    if (!message) {
        error_failed(error, "no memory for a message");
        return NULL;
    }
    message->buffer_bytes = n_bytes;
    if (take(staged, n_bytes, &message->buffer, error) == STATUS_OK) return message;
    free(message);
    return NULL;
}

/* An idle one that is large enough, or a new one; NULL with an error. */
static Message *message_take(Staged *staged, size_t n_bytes, Error *error) {
    Message **at = &staged->idle;
    while (*at && (*at)->buffer_bytes < n_bytes) at = &(*at)->next;
    Message *message = *at;
    if (message) *at = message->next;
    else message = message_new(staged, n_bytes, error);
    if (!message) return NULL;
    message->n_bytes = n_bytes;
    message->device = NULL;
    return message;
}

static void message_end(Staged *staged, Message *message) {
    message->next = staged->idle;
    staged->idle = message;
}

/* It is under way, or forgotten. */
static Status started(Staged *staged, Message *message, CommRequest *request, Status status) {
    request->handle[0] = status == STATUS_OK ? message : NULL;
    if (status != STATUS_OK) message_end(staged, message);
    return status;
}

static Status send_down(const Staged *staged, Message *message, const void *data, int to, int tag,
                        Error *error) {
    const CommStaging *staging = &staged->staging;
    TRY(staging->download(staging->context, message->buffer, data, message->n_bytes, error));
    return comm_post_send(staged->host, message->buffer, message->n_bytes, to, tag, &message->request, error);
}

static Status start_send(void *context, const void *data, size_t n_bytes, int to, int tag,
                         CommRequest *request, Error *error) {
    Message *message = message_take(context, n_bytes, error);
    if (!message) return error->status;
    return started(context, message, request, send_down(context, message, data, to, tag, error));
}

static Status start_receive(void *context, void *data, size_t n_bytes, int from, int tag,
                            CommRequest *request, Error *error) {
    Staged *staged = context;
    Message *message = message_take(staged, n_bytes, error);
    if (!message) return error->status;
    message->device = data;
    return started(
        staged, message, request,
        comm_post_receive(staged->host, message->buffer, n_bytes, from, tag, &message->request, error));
}

/* One after the other: all of them are under way. */
static Status wait_all(void *context, CommRequest *requests, int n_requests, Error *error) {
    Staged *staged = context;
    const CommStaging *staging = &staged->staging;
    for (int i = 0; i < n_requests; i++) {
        Message *message = requests[i].handle[0];
        if (!message) continue;
        TRY(comm_wait_posted(staged->host, &message->request, 1, error));
        if (message->device)
            TRY(staging->upload(staging->context, message->device, message->buffer, message->n_bytes, error));
        message_end(staged, message);
        requests[i].handle[0] = NULL;
    }
    return STATUS_OK;
}

/* ---- the table */

static Status split(void *context, int color, int key, Comm *child, Error *error) {
    (void)context, (void)color, (void)key, (void)child;
    return error_failed(error, "split the host's communicator instead");
}

static Status read_numbers(void *context, void *host, const void *data, size_t n_bytes, Error *error) {
    const CommStaging *staging = &((Staged *)context)->staging;
    return staging->download(staging->context, host, data, n_bytes, error);
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
    if (staged->buffer) give_back(staged, staged->buffer);
    while (staged->idle) {
        Message *message = staged->idle;
        staged->idle = message->next;
        give_back(staged, message->buffer);
        free(message);
    }
    free(staged);
}

static const CommTable staged_table = {
    .name = "staged",
    .start_send = start_send,
    .start_receive = start_receive,
    .wait = wait_all,
    .start = start,
    .finish = finish,
    .read = read_numbers,
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
