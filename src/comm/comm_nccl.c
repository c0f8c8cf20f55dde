/* NCCL on a stream of its own, tied to the stream of the kernels by events:
 *
 *     start    event on the kernels' stream -> our stream waits for it -> the operation -> event on our
 *              stream
 *     finish   the kernels' stream waits for that event
 *
 * so the host only enqueues, and communication runs beside kernels that do not need it. Events are taken in
 * turn from a ring; there are far more of them than operations under way in a step.
 *
 * Messages are a group of NCCL's, since two ranks that each send before they receive would wait for each
 * other for ever: they are collected until the first of them is waited for, and then set out together, tied
 * to the kernels in the same way.
 *
 * NCCL's own reduce-scatter and all-gather want equal slices. Where ours are not, the same is done as a group
 * of reductions or broadcasts, one a slice, which NCCL runs together. All-to-all is a group of messages.
 *
 * The library is opened when it is first asked for (base/system/library.h), and its functions are called
 * through a table.
 *
 * A rank that dies leaves the others' kernels waiting. NCCL notices asynchronously; every wait asks, the
 * host's for the device too, and aborts the communicator, so that the error comes up as that of an
 * instruction. */
#include "comm/comm_device.h"

#ifdef PGPT_HAVE_NCCL

#    include <cuda_runtime_api.h>
#    include <nccl.h>
#    include <stddef.h>
#    include <stdio.h>
#    include <stdlib.h>
#    include <time.h>

#    include "base/system/library.h"

/* ---- the library ---- */

/* nccl... */
#    define NCCL_FUNCTIONS(_)                                                                                \
        _(AllGather)                                                                                         \
        _(AllReduce)                                                                                         \
        _(Broadcast)                                                                                         \
        _(CommAbort)                                                                                         \
        _(CommDestroy)                                                                                       \
        _(CommGetAsyncError)                                                                                 \
        _(CommInitRank)                                                                                      \
        _(CommInitRankConfig)                                                                                \
        _(GetErrorString)                                                                                    \
        _(GetLastError)                                                                                      \
        _(GetUniqueId)                                                                                       \
        _(GetVersion)                                                                                        \
        _(GroupEnd)                                                                                          \
        _(GroupStart)                                                                                        \
        _(Recv)                                                                                              \
        _(Reduce)                                                                                            \
        _(ReduceScatter)                                                                                     \
        _(Send)

typedef struct {
#    define NCCL_FIELD(name) __typeof__(nccl##name) *name;
    NCCL_FUNCTIONS(NCCL_FIELD)
} NcclFunctions;

static const LibrarySymbol SYMBOLS[] = {
#    define NCCL_SYMBOL(name) LIBRARY_SYMBOL(NcclFunctions, nccl, name),
    NCCL_FUNCTIONS(NCCL_SYMBOL){NULL, 0}};

static const Library NCCL = {
    .name = "nccl",
    .file = "libnccl.so." LIBRARY_TEXT(NCCL_MAJOR),
    .folders = library_cuda_folders,
    .symbols = SYMBOLS,
    .advice =
        "install NVIDIA's NCCL (libnccl" LIBRARY_TEXT(NCCL_MAJOR) "), or add its folder to LD_LIBRARY_PATH",
};

static Status load(NcclFunctions *call, Error *error) {
    int version = 0;
    TRY(library_load(&NCCL, call, error));
    ncclResult_t code = call->GetVersion(&version);
    if (code == ncclSuccess && version / 10000 == NCCL_MAJOR) return STATUS_OK; /* so counted from 2.9 on */
    return error_user(error, "%s says that it is version %d, and pgpt was built for %d: %s", NCCL.file,
                      version, NCCL_VERSION_CODE, NCCL.advice);
}

bool comm_nccl_is_available(char *reason, size_t n_bytes) {
    NcclFunctions call;
    Error error = {0};
    if (load(&call, &error) == STATUS_OK) return true;
    snprintf(reason, n_bytes, "%s", error.text);
    return false;
}

/* ---- the communicator ---- */

enum { N_EVENTS = 512 };

typedef struct {
    void *data;
    size_t n_bytes;
    int peer, tag;
    bool is_sent; /* else received */
} Message;

typedef struct {
    NcclFunctions call;
    Comm *control;
    ncclComm_t comm;
    CommUse use;
    int rank, size, device;
    cudaStream_t kernels, stream;
    cudaEvent_t ready[N_EVENTS], done[N_EVENTS];
    uint64_t n_started;
    Message *message; /* collected, and not yet on their way */
    int n_messages, messages_capacity;
    bool is_one_way; /* messages set out when they are posted */
} Nccl;

static Status check_nccl(ncclResult_t code, const char *what, const Nccl *nccl, Error *error) {
    if (code == ncclSuccess || code == ncclInProgress) return STATUS_OK;
    const char *details = nccl->call.GetLastError(nccl->comm); /* NULL will do */
    return error_failed(error, "NCCL: %s: %s%s%s", what, nccl->call.GetErrorString(code),
                        *details ? ": " : "", details);
}

static Status check_cuda(cudaError_t code, const char *what, Error *error) {
    if (code == cudaSuccess) return STATUS_OK;
    return error_failed(error, "NCCL: %s: %s (%s)", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

static ncclDataType_t nccl_type(CommType type) {
    static const ncclDataType_t types[N_COMM_TYPES] = {
        [COMM_F32] = ncclFloat32, [COMM_F64] = ncclFloat64, [COMM_BF16] = ncclBfloat16,
        [COMM_F16] = ncclFloat16, [COMM_I32] = ncclInt32,   [COMM_I64] = ncclInt64,
        [COMM_U8] = ncclUint8,
    };
    return types[type];
}

static ncclRedOp_t nccl_reduction(CommReduction reduction) {
    return reduction == COMM_SUM ? ncclSum : reduction == COMM_MAX ? ncclMax : ncclMin;
}

static bool is_even(const int64_t *border, int size) {
    for (int r = 1; r < size; r++) {
        if (border[r + 1] - border[r] != border[1] - border[0]) return false;
    }
    return true;
}

/* Every slice by a group of operations with a root each. */
static ncclResult_t run_slices(const Nccl *nccl, const CommOperation *operation) {
    size_t size = comm_type_bytes(operation->type);
    ncclResult_t code = nccl->call.GroupStart();
    for (int r = 0; r < nccl->size && code == ncclSuccess; r++) {
        char *slice = (char *)operation->data + (size_t)operation->border[r] * size;
        size_t n = (size_t)(operation->border[r + 1] - operation->border[r]);
        if (!n) continue;
        code = operation->kind == COMM_ALL_GATHER
                   ? nccl->call.Broadcast(slice, slice, n, nccl_type(operation->type), r, nccl->comm,
                                          nccl->stream)
                   : nccl->call.Reduce(slice, slice, n, nccl_type(operation->type),
                                       nccl_reduction(operation->reduction), r, nccl->comm, nccl->stream);
    }
    ncclResult_t ended = nccl->call.GroupEnd();
    return code == ncclSuccess ? ended : code;
}

static ncclResult_t run_even_slices(const Nccl *nccl, const CommOperation *operation) {
    size_t n = (size_t)(operation->border[1] - operation->border[0]);
    char *mine =
        (char *)operation->data + (size_t)operation->border[nccl->rank] * comm_type_bytes(operation->type);
    if (operation->kind == COMM_ALL_GATHER)
        return nccl->call.AllGather(mine, operation->data, n, nccl_type(operation->type), nccl->comm,
                                    nccl->stream);
    return nccl->call.ReduceScatter(operation->data, mine, n, nccl_type(operation->type),
                                    nccl_reduction(operation->reduction), nccl->comm, nccl->stream);
}

/* Slices that lie anywhere: those of two ranks set out and arrive in the same order. */
static ncclResult_t run_places(const Nccl *nccl, const CommOperation *operation) {
    const CommPlaces *out = operation->out_places, *in = operation->in_places;
    size_t size = comm_type_bytes(operation->type);
    ncclDataType_t type = nccl_type(operation->type);
    ncclResult_t code = nccl->call.GroupStart();
    for (int r = 0; r < nccl->size; r++) {
        for (int i = out->begin[r]; i < out->begin[r + 1] && code == ncclSuccess; i++) {
            const char *outgoing = (const char *)operation->data + (size_t)out->slice[i].first * size;
            if (out->slice[i].n)
                code = nccl->call.Send(outgoing, (size_t)out->slice[i].n, type, r, nccl->comm, nccl->stream);
        }
        for (int i = in->begin[r]; i < in->begin[r + 1] && code == ncclSuccess; i++) {
            char *incoming = (char *)operation->other + (size_t)in->slice[i].first * size;
            if (in->slice[i].n)
                code = nccl->call.Recv(incoming, (size_t)in->slice[i].n, type, r, nccl->comm, nccl->stream);
        }
    }
    ncclResult_t ended = nccl->call.GroupEnd();
    return code == ncclSuccess ? ended : code;
}

/* To and from every rank, this one included. */
static ncclResult_t run_all_to_all(const Nccl *nccl, const CommOperation *operation) {
    const int64_t *out = operation->border, *in = operation->other_border;
    size_t size = comm_type_bytes(operation->type);
    ncclDataType_t type = nccl_type(operation->type);
    ncclResult_t code = nccl->call.GroupStart();
    for (int r = 0; r < nccl->size && code == ncclSuccess; r++) {
        char *outgoing = (char *)operation->data + (size_t)out[r] * size;
        char *incoming = (char *)operation->other + (size_t)in[r] * size;
        if (out[r + 1] > out[r])
            code =
                nccl->call.Send(outgoing, (size_t)(out[r + 1] - out[r]), type, r, nccl->comm, nccl->stream);
        if (in[r + 1] > in[r] && code == ncclSuccess)
            code = nccl->call.Recv(incoming, (size_t)(in[r + 1] - in[r]), type, r, nccl->comm, nccl->stream);
    }
    ncclResult_t ended = nccl->call.GroupEnd();
    return code == ncclSuccess ? ended : code;
}

static ncclResult_t run(const Nccl *nccl, const CommOperation *operation) {
    void *data = operation->data;
    size_t n = (size_t)operation->n;
    ncclDataType_t type = nccl_type(operation->type);
    switch (operation->kind) {
    case COMM_ALL_REDUCE:
        return nccl->call.AllReduce(data, data, n, type, nccl_reduction(operation->reduction), nccl->comm,
                                    nccl->stream);
    case COMM_REDUCE:
        return nccl->call.Reduce(data, data, n, type, nccl_reduction(operation->reduction), operation->root,
                                 nccl->comm, nccl->stream);
    case COMM_BROADCAST:
        return nccl->call.Broadcast(data, data, n, type, operation->root, nccl->comm, nccl->stream);
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER:
        return is_even(operation->border, nccl->size) ? run_even_slices(nccl, operation)
                                                      : run_slices(nccl, operation);
    case COMM_ALL_TO_ALL:
        return operation->out_places ? run_places(nccl, operation) : run_all_to_all(nccl, operation);
    default: return ncclInvalidUsage;
    }
}

/* Our stream goes on when the kernels so far have ended. */
static Status follow_kernels(const Nccl *nccl, int turn, Error *error) {
    TRY(check_cuda(cudaEventRecord(nccl->ready[turn], nccl->kernels), "marking the kernels' stream", error));
    return check_cuda(cudaStreamWaitEvent(nccl->stream, nccl->ready[turn], 0), "waiting for kernels", error);
}

static Status start(void *context, const CommOperation *operation, CommTicket *ticket, Error *error) {
    Nccl *nccl = context;
    int turn = (int)(nccl->n_started % N_EVENTS);
    ticket->number = ++nccl->n_started;
    if (operation->kind == COMM_BARRIER) return comm_run(nccl->control, operation, error);
    TRY(follow_kernels(nccl, turn, error));
    TRY(check_nccl(run(nccl, operation), comm_kind_name(operation->kind), nccl, error));
    return check_cuda(cudaEventRecord(nccl->done[turn], nccl->stream), "marking the stream", error);
}

/* NCCL notices by itself that another rank is gone. The communicator is of no use then, and its kernels must
 * be told to end. */
static Status check(void *context, Error *error) {
    Nccl *nccl = context;
    if (!nccl->comm) return error_failed(error, "NCCL: the communicator has failed before");
    ncclResult_t state = ncclSuccess;
    TRY(check_nccl(nccl->call.CommGetAsyncError(nccl->comm, &state), "asking for errors", nccl, error));
    if (check_nccl(state, "another rank, or the way to it, has failed", nccl, error) == STATUS_OK)
        return STATUS_OK;
    nccl->call.CommAbort(nccl->comm);
    nccl->comm = NULL;
    return error->status;
}

/* And the kernels when ours has come to that mark. */
static Status lead_kernels(const Nccl *nccl, int turn, Error *error) {
    return check_cuda(cudaStreamWaitEvent(nccl->kernels, nccl->done[turn], 0), "waiting for communication",
                      error);
}

static Status finish(void *context, const CommTicket *ticket, Error *error) {
    Nccl *nccl = context;
    if (!ticket->number) return STATUS_OK;
    TRY(check(nccl, error));
    return lead_kernels(nccl, (int)((ticket->number - 1) % N_EVENTS), error);
}

/* ---- messages */

/* NCCL knows no tags: between two ranks messages arrive in the order in which they set out. So they do that
 * by their tags. */
static Status collect(Nccl *nccl, Message message, CommRequest *request, Error *error) {
    if (nccl->n_messages == nccl->messages_capacity) {
        int capacity = nccl->messages_capacity ? 2 * nccl->messages_capacity : 16;
        Message *larger = realloc(nccl->message, (size_t)capacity * sizeof *larger);
        if (!larger) return error_failed(error, "no memory for a message");
        nccl->message = larger;
        nccl->messages_capacity = capacity;
    }
    int place = nccl->n_messages++;
    for (; place > 0 && nccl->message[place - 1].tag > message.tag; place--)
        nccl->message[place] = nccl->message[place - 1];
    nccl->message[place] = message;
    request->handle[0] = nccl;
    return STATUS_OK;
}

static ncclResult_t run_message(const Nccl *nccl, const Message *m) {
    return m->is_sent ? nccl->call.Send(m->data, m->n_bytes, ncclUint8, m->peer, nccl->comm, nccl->stream)
                      : nccl->call.Recv(m->data, m->n_bytes, ncclUint8, m->peer, nccl->comm, nccl->stream);
}

/* At once; its request is the turn whose event follows it. */
static Status set_out(Nccl *nccl, const Message *message, CommRequest *request, Error *error) {
    int turn = (int)(nccl->n_started++ % N_EVENTS);
    TRY(follow_kernels(nccl, turn, error));
    TRY(check_nccl(run_message(nccl, message), "a message", nccl, error));
    request->handle[0] = nccl;
    request->handle[1] = nccl->done[turn];
    return check_cuda(cudaEventRecord(nccl->done[turn], nccl->stream), "marking the stream", error);
}

static Status post(Nccl *nccl, Message message, CommRequest *request, Error *error) {
    return nccl->is_one_way ? set_out(nccl, &message, request, error)
                            : collect(nccl, message, request, error);
}

static Status start_send(void *context, const void *data, size_t n_bytes, int to, int tag,
                         CommRequest *request, Error *error) {
    Message message = {.data = (void *)data, .n_bytes = n_bytes, .peer = to, .tag = tag, .is_sent = true};
    return post(context, message, request, error);
}

static Status start_receive(void *context, void *data, size_t n_bytes, int from, int tag,
                            CommRequest *request, Error *error) {
    Message message = {.data = data, .n_bytes = n_bytes, .peer = from, .tag = tag};
    return post(context, message, request, error);
}

static void set_one_way(void *context) {
    ((Nccl *)context)->is_one_way = true;
}

static ncclResult_t run_messages(const Nccl *nccl) {
    ncclResult_t code = nccl->call.GroupStart();
    for (int i = 0; i < nccl->n_messages && code == ncclSuccess; i++)
        code = run_message(nccl, &nccl->message[i]);
    ncclResult_t ended = nccl->call.GroupEnd();
    return code == ncclSuccess ? ended : code;
}

/* All that were collected set out, whichever are waited for. */
static Status wait_all(void *context, CommRequest *requests, int n_requests, Error *error) {
    Nccl *nccl = context;
    TRY(check(nccl, error));
    for (int i = 0; i < n_requests && nccl->is_one_way; i++)
        TRY(check_cuda(cudaStreamWaitEvent(nccl->kernels, requests[i].handle[1], 0), "waiting for a message",
                       error));
    if (!n_requests || !nccl->n_messages)
        return STATUS_OK; /* they have set out before, and the kernels wait */
    int turn = (int)(nccl->n_started++ % N_EVENTS);
    TRY(follow_kernels(nccl, turn, error));
    ncclResult_t code = run_messages(nccl);
    nccl->n_messages = 0;
    TRY(check_nccl(code, "messages", nccl, error));
    TRY(check_cuda(cudaEventRecord(nccl->done[turn], nccl->stream), "marking the stream", error));
    return lead_kernels(nccl, turn, error);
}

static Status split(void *context, int color, int key, Comm *child, Error *error) {
    (void)context, (void)color, (void)key, (void)child;
    return error_failed(error, "split the host's communicator, and open NCCL on its parts");
}

/* In the kernels' stream, behind what they have made so far. */
static Status read_numbers(void *context, void *host, const void *data, size_t n_bytes, Error *error) {
    const Nccl *nccl = context;
    TRY(check_cuda(cudaMemcpyAsync(host, data, n_bytes, cudaMemcpyDeviceToHost, nccl->kernels),
                   "reading how much to send", error));
    return check_cuda(cudaStreamSynchronize(nccl->kernels), "waiting for how much to send", error);
}

static bool is_threaded(void *context) {
    (void)context;
    return false;
}

static void abort_job(void *context, int exit_code) {
    Nccl *nccl = context;
    if (nccl->comm) nccl->call.CommAbort(nccl->comm);
    nccl->comm = NULL;
    comm_abort(nccl->control, exit_code);
}

/* What is under way ends, or, if another rank is gone, is made to. */
static void end_stream(Nccl *nccl) {
    const struct timespec pause = {.tv_nsec = 100000};
    Error ignored = {0};
    while (cudaStreamQuery(nccl->stream) == cudaErrorNotReady) {
        if (check(nccl, &ignored) != STATUS_OK) break; /* which has aborted it */
        nanosleep(&pause, NULL);
    }
    cudaStreamSynchronize(nccl->stream);
}

static void close_nccl(void *context) {
    Nccl *nccl = context;
    if (nccl->stream) end_stream(nccl);
    if (nccl->comm) nccl->call.CommDestroy(nccl->comm);
    for (int i = 0; i < N_EVENTS; i++) {
        if (nccl->ready[i]) cudaEventDestroy(nccl->ready[i]);
        if (nccl->done[i]) cudaEventDestroy(nccl->done[i]);
    }
    if (nccl->stream) cudaStreamDestroy(nccl->stream);
    free(nccl->message);
    free(nccl);
}

static const CommTable nccl_table = {
    .name = "nccl",
    .only_enqueues = true,
    .start_send = start_send,
    .start_receive = start_receive,
    .set_one_way = set_one_way,
    .wait = wait_all,
    .start = start,
    .finish = finish,
    .read = read_numbers,
    .check = check,
    .split = split,
    .is_threaded = is_threaded,
    .abort = abort_job,
    .close = close_nccl,
};

static Status open_streams(Nccl *nccl, Error *error) {
    TRY(check_cuda(cudaSetDevice(nccl->device), "choosing a GPU", error));
    int lowest = 0, highest = 0; /* communication first: what waits for it are the kernels */
    TRY(check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for priorities", error));
    TRY(check_cuda(cudaStreamCreateWithPriority(&nccl->stream, cudaStreamNonBlocking, highest),
                   "making a stream", error));
    for (int i = 0; i < N_EVENTS; i++) {
        TRY(check_cuda(cudaEventCreateWithFlags(&nccl->ready[i], cudaEventDisableTiming), "making an event",
                       error));
        TRY(check_cuda(cudaEventCreateWithFlags(&nccl->done[i], cudaEventDisableTiming), "making an event",
                       error));
    }
    return STATUS_OK;
}

/* A message that waits for the other side keeps its blocks on multiprocessors that would compute. A
 * pipeline's stage has one or two a border waiting at any time: a few blocks each carry tens of GB/s, and
 * leave it the rest. */
static ncclResult_t init_rank(Nccl *nccl, ncclUniqueId id) {
    enum { MESSAGE_BLOCKS = 4 };
    if (nccl->use == COMM_FOR_SUMS) return nccl->call.CommInitRank(&nccl->comm, nccl->size, id, nccl->rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = MESSAGE_BLOCKS;
    return nccl->call.CommInitRankConfig(&nccl->comm, nccl->size, id, nccl->rank, &config);
}

static Status join(Nccl *nccl, Error *error) {
    ncclUniqueId id = {{0}};
    load(&nccl->call, error);
    if (error->status == STATUS_OK && nccl->rank == 0)
        check_nccl(nccl->call.GetUniqueId(&id), "beginning", nccl, error);
    if (error->status == STATUS_OK) open_streams(nccl, error);
    TRY(comm_agree(nccl->control, error));
    TRY(comm_broadcast(nccl->control, &id, sizeof id, COMM_U8, 0, error));
    return check_nccl(init_rank(nccl, id), "joining the other ranks (PGPT_WITHOUT=nccl does without it)",
                      nccl, error);
}

bool comm_is_nccl(const Comm *comm) {
    return comm->table == &nccl_table;
}

void comm_nccl_set_control(Comm *comm, Comm *control) {
    ((Nccl *)comm->context)->control = control;
}

Status comm_nccl_open(Comm *comm, Comm *control, CommUse use, int device, void *stream, Error *error) {
    Nccl *nccl = calloc(1, sizeof *nccl);
    if (!nccl) return error_failed(error, "no memory for a communicator");
    nccl->control = control;
    nccl->use = use;
    nccl->rank = control->rank;
    nccl->size = control->size;
    nccl->device = device;
    nccl->kernels = stream;
    if (join(nccl, error) != STATUS_OK) {
        close_nccl(nccl);
        return error->status;
    }
    *comm = (Comm){.table = &nccl_table, .context = nccl, .rank = nccl->rank, .size = nccl->size};
    return STATUS_OK;
}

#else

#    include <stdio.h>

bool comm_nccl_is_available(char *reason, size_t n_bytes) {
    snprintf(reason, n_bytes, "this pgpt was built without NCCL");
    return false;
}

bool comm_is_nccl(const Comm *comm) {
    (void)comm;
    return false;
}

void comm_nccl_set_control(Comm *comm, Comm *control) {
    (void)comm, (void)control;
}

Status comm_nccl_open(Comm *comm, Comm *control, CommUse use, int device, void *stream, Error *error) {
    (void)comm, (void)control, (void)use, (void)device, (void)stream;
    return error_user(
        error, "this pgpt was built without NCCL; build it where NCCL is installed (cmake -DPGPT_NCCL=on)");
}

#endif
