/* The front of a communicator: checks what it is asked for, keeps operations in their order, and measures.
 *
 * The order is kept by one rule. What was started runs in a thread (worker.c); whatever blocks first waits
 * until that thread has nothing left to do, and then uses the communicator itself. So at any time only one
 * thread does, the transport sees every rank's operations in the same order, and the two kinds of calls can
 * be mixed.
 *
 * Waiting for other ranks should cost little while the caller computes and react fast when it waits itself;
 * comm_start tells the transport the one, every blocking call the other.
 *
 * Operations that are described wrongly are mistakes in this program, not of its user: they are refused
 * before any message leaves, so that the rank which made one says so instead of waiting for ever. */
#include "comm/comm.h"

#include "base/system/timer.h"
#include "comm/collective.h"
#include "comm/worker.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t n_bytes;
} type_table[N_COMM_TYPES] = {
    [COMM_F32] = {"f32", 4}, [COMM_F64] = {"f64", 8}, [COMM_BF16] = {"bf16", 2}, [COMM_F16] = {"f16", 2},
    [COMM_I32] = {"i32", 4}, [COMM_I64] = {"i64", 8}, [COMM_U8] = {"u8", 1},
};

static const char *const kind_names[N_COMM_KINDS] = {
    [COMM_BARRIER] = "barrier",
    [COMM_BROADCAST] = "broadcast",
    [COMM_REDUCE] = "reduce",
    [COMM_SCATTER] = "scatter",
    [COMM_GATHER] = "gather",
    [COMM_ALL_GATHER] = "all-gather",
    [COMM_REDUCE_SCATTER] = "reduce-scatter",
    [COMM_ALL_REDUCE] = "all-reduce",
    [COMM_ALL_TO_ALL] = "all-to-all",
};

size_t comm_type_bytes(CommType type) {
    return type_table[type].n_bytes;
}

const char *comm_type_name(CommType type) {
    return type_table[type].name;
}

const char *comm_kind_name(CommKind kind) {
    return kind_names[kind];
}

/* ---- Is it well described? */

static bool has_root(CommKind kind) {
    return kind == COMM_BROADCAST || kind == COMM_REDUCE || kind == COMM_SCATTER || kind == COMM_GATHER;
}

static bool has_slices(CommKind kind) {
    return kind == COMM_SCATTER || kind == COMM_GATHER || kind == COMM_ALL_GATHER ||
           kind == COMM_REDUCE_SCATTER || kind == COMM_ALL_TO_ALL;
}

static Status refuse(const Comm *comm, const CommOperation *operation, const char *what, Error *error) {
    return error_failed(error, "%s on rank %d of %d: %s", comm_kind_name(operation->kind), comm->rank,
                        comm->size, what);
}

static bool is_border(const int64_t *border, int size) {
    if (!border || border[0] != 0) return false;
    for (int r = 0; r < size; r++)
        if (border[r + 1] < border[r]) return false;
    return true;
}

static int64_t slice(const int64_t *border, int rank) {
    return border[rank + 1] - border[rank];
}

static bool are_places(const CommPlaces *places, int size) {
    if (!places || places->begin[0] != 0) return false;
    for (int r = 0; r < size; r++)
        if (places->begin[r + 1] < places->begin[r]) return false;
    for (int i = 0; i < places->begin[size]; i++) {
        const CommSlice *one = &places->slice[i];
        if (one->first < 0 || one->n < 0 || one->first > places->n_elements - one->n) return false;
    }
    return true;
}

/* An all-to-all whose slices do not lie side by side. */
static Status check_places(const Comm *comm, const CommOperation *operation, Error *error) {
    const CommPlaces *out = operation->out_places, *in = operation->in_places;
    if (comm->size == 1) return refuse(comm, operation, "slices anywhere are for several ranks", error);
    if (!are_places(out, comm->size) || !are_places(in, comm->size))
        return refuse(comm, operation, "a slice does not lie in its memory", error);
    int out_first = out->begin[comm->rank], in_first = in->begin[comm->rank];
    int n = out->begin[comm->rank + 1] - out_first;
    bool is_same = n == in->begin[comm->rank + 1] - in_first;
    for (int i = 0; i < n && is_same; i++) is_same = out->slice[out_first + i].n == in->slice[in_first + i].n;
    if (!is_same) return refuse(comm, operation, "what a rank sends to itself is not what it expects", error);
    if (comm->table->counts_only) return STATUS_OK;
    if ((out->n_elements && !operation->data) || (in->n_elements && !operation->other))
        return refuse(comm, operation, "there is no memory for the slices", error);
    return STATUS_OK;
}

static Status check_slices(const Comm *comm, const CommOperation *operation, Error *error) {
    const int64_t *border = operation->border, *other_border = operation->other_border;
    bool is_by_root = has_root(operation->kind);
    if (is_by_root && comm->rank != operation->root) {
        if (operation->n && !operation->other && !comm->table->counts_only)
            return refuse(comm, operation, "there is no memory for the rank's slice", error);
        return STATUS_OK;
    }
    if (!is_border(border, comm->size))
        return refuse(comm, operation, "the borders of the slices must begin with 0 and ascend", error);
    if (is_by_root && slice(border, comm->rank) != operation->n)
        return refuse(comm, operation, "the root's slice is not as long as its borders say", error);
    bool is_double = is_by_root || operation->kind == COMM_ALL_TO_ALL;
    int64_t n_other = operation->n;
    if (operation->kind == COMM_ALL_TO_ALL) {
        if (!is_border(other_border, comm->size))
            return refuse(comm, operation, "the borders of what comes in must begin with 0 and ascend",
                          error);
        if (slice(border, comm->rank) != slice(other_border, comm->rank))
            return refuse(comm, operation, "what a rank sends to itself is not what it expects", error);
        n_other = other_border[comm->size];
    }
    if (comm->table->counts_only) return STATUS_OK;
    if ((border[comm->size] && !operation->data) || (is_double && n_other && !operation->other))
        return refuse(comm, operation, "there is no memory for the slices", error);
    return STATUS_OK;
}

static Status check(const Comm *comm, const CommOperation *operation, Error *error) {
    if (!comm->table) return error_failed(error, "a closed communicator cannot be used");
    if ((unsigned)operation->kind >= N_COMM_KINDS || (unsigned)operation->type >= N_COMM_TYPES ||
        (unsigned)operation->reduction > COMM_MIN) {
        return error_failed(error, "unknown collective operation, type or reduction (%d, %d, %d)",
                            (int)operation->kind, (int)operation->type, (int)operation->reduction);
    }
    if (operation->n < 0) return refuse(comm, operation, "a negative number of elements", error);
    if (has_root(operation->kind) && (operation->root < 0 || operation->root >= comm->size))
        return refuse(comm, operation, "the root is not one of the ranks", error);
    if (operation->kind == COMM_ALL_TO_ALL && operation->out_places)
        return check_places(comm, operation, error);
    if (has_slices(operation->kind)) return check_slices(comm, operation, error);
    if (operation->kind != COMM_BARRIER && operation->n && !operation->data && !comm->table->counts_only)
        return refuse(comm, operation, "there is no memory for the vector", error);
    return STATUS_OK;
}

/* ---- Seen from outside */

static int64_t n_elements(const Comm *comm, const CommOperation *operation) {
    if (operation->kind == COMM_BARRIER) return 0;
    if (operation->out_places) return operation->out_places->n_elements;
    bool is_all_here =
        has_slices(operation->kind) && (!has_root(operation->kind) || comm->rank == operation->root);
    return is_all_here ? operation->border[comm->size] : operation->n;
}

ActivityEntry comm_entry(const Comm *comm, const CommOperation *operation, uint64_t number) {
    return (ActivityEntry){.kind = ACTIVITY_COLLECTIVE,
                           .name = comm_kind_name(operation->kind),
                           .place = comm->name,
                           .number = (int64_t)number,
                           .n_bytes =
                               (uint64_t)n_elements(comm, operation) * comm_type_bytes(operation->type),
                           .peers = comm->size};
}

static void begin_wait(Comm *comm, uint64_t collective) {
    ActivityEntry entry = {.kind = ACTIVITY_WAIT,
                           .name = "wait for",
                           .place = comm->name,
                           .number = (int64_t)collective,
                           .peers = comm->size};
    activity_begin(comm->activity, comm->track, &entry);
}

static void watch_worker(Comm *comm) {
    char words[128];
    snprintf(words, sizeof words, "worker of %s", comm->name ? comm->name : "?");
    comm->worker_track = activity_add_track(comm->activity, activity_keep(comm->activity, words));
}

void comm_watch(Comm *comm, Activity *activity, int track, const char *name) {
    if (!comm->table) return;
    comm->activity = activity;
    comm->track = track;
    comm->name = activity ? activity_keep(activity, name) : NULL;
    if (comm->worker) watch_worker(comm);
}

static void watch_child(Comm *comm, int color, Comm *child) {
    char name[96];
    if (!comm->activity) return;
    snprintf(name, sizeof name, "%s/%llu:%d", comm->name, (unsigned long long)comm->n_collectives, color);
    comm_watch(child, comm->activity, comm->track, name);
}

/* ---- Order and measure */

static void be_patient(const Comm *comm, bool is_patient) {
    if (comm->table->be_patient) comm->table->be_patient(comm->context, is_patient);
}

/* What was started up to this number is done. */
static Status finish_started(Comm *comm, uint64_t number, uint64_t collective, Error *error) {
    if (!comm->worker) return STATUS_OK;
    begin_wait(comm, collective);
    Status status = worker_wait(comm->worker, number, error);
    activity_end(comm->activity, comm->track);
    comm->counts.busy_ns += worker_take_busy_ns(comm->worker);
    return status;
}

/* Before a call that blocks: the communicator is this thread's. */
static Status take(Comm *comm, Error *error) {
    be_patient(comm, false);
    return finish_started(comm, UINT64_MAX, comm->n_collectives, error);
}

static void count(Comm *comm, const CommOperation *operation) {
    comm->counts.n_operations[operation->kind]++;
    comm->counts.n_bytes += (uint64_t)n_elements(comm, operation) * comm_type_bytes(operation->type);
}

/* By a transport that proceeds on its own: what is seen of it is the host's part, to begin it. */
static Status start_by_transport(Comm *comm, const CommOperation *operation, CommTicket *ticket,
                                 Error *error) {
    count(comm, operation);
    ActivityEntry entry = comm_entry(comm, operation, ++comm->n_collectives);
    activity_begin(comm->activity, comm->track, &entry);
    Status status = comm->table->start(comm->context, operation, ticket, error);
    activity_end(comm->activity, comm->track);
    ticket->collective = comm->n_collectives;
    return status;
}

static Status finish_by_transport(Comm *comm, const CommTicket *ticket, Error *error) {
    begin_wait(comm, ticket->collective);
    Status status = comm->table->finish(comm->context, ticket, error);
    activity_end(comm->activity, comm->track);
    return status;
}

Status comm_run(Comm *comm, const CommOperation *operation, Error *error) {
    TRY(check(comm, operation, error));
    uint64_t start_ns = timer_now_ns();
    if (comm->table->start) { /* in the order of the device: done for whatever comes after it */
        CommTicket ticket;
        TRY(start_by_transport(comm, operation, &ticket, error));
        return finish_by_transport(comm, &ticket, error);
    }
    TRY(take(comm, error));
    uint64_t run_ns = timer_now_ns();
    ActivityEntry entry = comm_entry(comm, operation, ++comm->n_collectives);
    activity_begin(comm->activity, comm->track, &entry);
    Status status = collective_run(comm, operation, error);
    activity_end(comm->activity, comm->track);
    if (status != STATUS_OK) {
        comm->is_broken = true;
        return error->status;
    }
    uint64_t end_ns = timer_now_ns();
    count(comm, operation);
    comm->counts.busy_ns += end_ns - run_ns;
    comm->counts.waited_ns += end_ns - start_ns;
    return STATUS_OK;
}

/* ---- Blocking, by name */

static Status check_message(const Comm *comm, int peer, int tag, const char *verb, Error *error) {
    if (!comm->table) return error_failed(error, "a closed communicator cannot be used");
    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        return error_failed(error, "rank %d of %d cannot %s rank %d", comm->rank, comm->size, verb, peer);
    if (tag < 0 || tag >= COMM_N_TAGS)
        return error_failed(error, "tag %d of a message is not in 0..%d", tag, COMM_N_TAGS - 1);
    return STATUS_OK;
}

static Status finish_message(Comm *comm, CommRequest *request, size_t n_bytes, uint64_t start_ns,
                             Error *error) {
    TRY(comm->table->wait(comm->context, request, 1, error));
    uint64_t took_ns = timer_now_ns() - start_ns;
    comm->counts.n_messages++;
    comm->counts.n_bytes += n_bytes;
    comm->counts.busy_ns += took_ns;
    comm->counts.waited_ns += took_ns;
    return STATUS_OK;
}

static void begin_message(Comm *comm, const char *verb, int peer, int tag, size_t n_bytes) {
    ActivityEntry entry = {.kind = ACTIVITY_MESSAGE,
                           .name = verb,
                           .place = comm->name,
                           .number = tag,
                           .n_bytes = n_bytes,
                           .peers = peer};
    activity_begin(comm->activity, comm->track, &entry);
}

Status comm_send(Comm *comm, const void *data, size_t n_bytes, int to, int tag, Error *error) {
    TRY(check_message(comm, to, tag, "send to", error));
    CommRequest request;
    uint64_t start_ns = timer_now_ns();
    TRY(take(comm, error));
    begin_message(comm, "send to", to, tag, n_bytes);
    Status status = comm->table->start_send(comm->context, data, n_bytes, to, tag, &request, error);
    if (status == STATUS_OK) status = finish_message(comm, &request, n_bytes, start_ns, error);
    activity_end(comm->activity, comm->track);
    return status;
}

Status comm_receive(Comm *comm, void *data, size_t n_bytes, int from, int tag, Error *error) {
    TRY(check_message(comm, from, tag, "receive from", error));
    CommRequest request;
    uint64_t start_ns = timer_now_ns();
    TRY(take(comm, error));
    begin_message(comm, "receive from", from, tag, n_bytes);
    Status status = comm->table->start_receive(comm->context, data, n_bytes, from, tag, &request, error);
    if (status == STATUS_OK) status = finish_message(comm, &request, n_bytes, start_ns, error);
    activity_end(comm->activity, comm->track);
    return status;
}

Status comm_barrier(Comm *comm, Error *error) {
    return comm_run(comm, &(CommOperation){.kind = COMM_BARRIER}, error);
}

Status comm_broadcast(Comm *comm, void *data, int64_t n, CommType type, int root, Error *error) {
    CommOperation operation = {.kind = COMM_BROADCAST, .type = type, .root = root, .data = data, .n = n};
    return comm_run(comm, &operation, error);
}

Status comm_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction, int root,
                   Error *error) {
    CommOperation operation = {
        .kind = COMM_REDUCE, .type = type, .reduction = reduction, .root = root, .data = data, .n = n};
    return comm_run(comm, &operation, error);
}

Status comm_all_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction,
                       Error *error) {
    CommOperation operation = {
        .kind = COMM_ALL_REDUCE, .type = type, .reduction = reduction, .data = data, .n = n};
    return comm_run(comm, &operation, error);
}

Status comm_scatter(Comm *comm, const void *all, const int64_t *border, void *mine, int64_t n, CommType type,
                    int root, Error *error) {
    CommOperation operation = {.kind = COMM_SCATTER,
                               .type = type,
                               .root = root,
                               .data = (void *)all, /* only read */
                               .n = n,
                               .border = border,
                               .other = mine};
    return comm_run(comm, &operation, error);
}

Status comm_gather(Comm *comm, void *all, const int64_t *border, const void *mine, int64_t n, CommType type,
                   int root, Error *error) {
    CommOperation operation = {.kind = COMM_GATHER,
                               .type = type,
                               .root = root,
                               .data = all,
                               .n = n,
                               .border = border,
                               .other = (void *)mine}; /* only read */
    return comm_run(comm, &operation, error);
}

Status comm_all_gather(Comm *comm, void *all, const int64_t *border, CommType type, Error *error) {
    CommOperation operation = {.kind = COMM_ALL_GATHER, .type = type, .data = all, .border = border};
    return comm_run(comm, &operation, error);
}

Status comm_reduce_scatter(Comm *comm, void *all, const int64_t *border, CommType type,
                           CommReduction reduction, Error *error) {
    CommOperation operation = {
        .kind = COMM_REDUCE_SCATTER, .type = type, .reduction = reduction, .data = all, .border = border};
    return comm_run(comm, &operation, error);
}

Status comm_all_to_all(Comm *comm, const void *out, const int64_t *out_border, void *in,
                       const int64_t *in_border, CommType type, Error *error) {
    CommOperation operation = {.kind = COMM_ALL_TO_ALL,
                               .type = type,
                               .data = (void *)out, /* only read */
                               .border = out_border,
                               .other = in,
                               .other_border = in_border};
    return comm_run(comm, &operation, error);
}

Status comm_read(Comm *comm, void *host, const void *data, size_t n_bytes, Error *error) {
    if (comm->table->read) return comm->table->read(comm->context, host, data, n_bytes, error);
    if (n_bytes) memcpy(host, data, n_bytes);
    return STATUS_OK;
}

/* ---- Started and waited for */

/* Alone there is nothing to wait for, and a transport that wants one thread gets one. */
static bool starts_in_worker(const Comm *comm) {
    return !comm->table->start && comm->size > 1 && !comm->table->counts_only &&
           comm->table->is_threaded(comm->context);
}

Status comm_prepare(Comm *comm, Error *error) {
    if (!comm->table) return error_failed(error, "a closed communicator cannot be used");
    if (!starts_in_worker(comm)) return STATUS_OK;
    TRY(collective_prepare(comm, error));
    if (comm->worker) return STATUS_OK;
    if (comm->activity) watch_worker(comm);
    return worker_open(&comm->worker, error);
}

Status comm_start(Comm *comm, const CommOperation *operation, CommTicket *ticket, Error *error) {
    TRY(check(comm, operation, error));
    ticket->number = 0;
    if (comm->table->start) return start_by_transport(comm, operation, ticket, error);
    ticket->collective = comm->n_collectives + 1;
    if (!starts_in_worker(comm)) return comm_run(comm, operation, error);
    if (!comm->worker) TRY(comm_prepare(comm, error));
    count(comm, operation);
    be_patient(comm, true);
    return worker_start(comm->worker, comm, operation, ++comm->n_collectives, &ticket->number, error);
}

Status comm_wait(Comm *comm, const CommTicket *ticket, Error *error) {
    if (!comm->table) return error_failed(error, "a closed communicator cannot be used");
    uint64_t start_ns = timer_now_ns();
    Status status;
    if (comm->table->finish) {
        status = finish_by_transport(comm, ticket, error);
    } else {
        be_patient(comm, false);
        status = finish_started(comm, ticket->number, ticket->collective, error);
        be_patient(comm, true); /* for what was started after it */
    }
    comm->counts.waited_ns += timer_now_ns() - start_ns;
    comm->is_broken |= status != STATUS_OK;
    return status;
}

/* ---- Groups */

Status comm_split(Comm *comm, int color, int key, Comm *child, Error *error) {
    *child = (Comm){0};
    if (!comm->table) return error_failed(error, "a closed communicator cannot be split");
    TRY(take(comm, error));
    ActivityEntry entry = {.kind = ACTIVITY_COLLECTIVE,
                           .name = "split",
                           .place = comm->name,
                           .number = (int64_t)++comm->n_collectives,
                           .peers = comm->size};
    activity_begin(comm->activity, comm->track, &entry);
    Status status = comm->table->split(comm->context, color, key, child, error);
    activity_end(comm->activity, comm->track);
    if (status != STATUS_OK || !child->table) return status;
    child->all_reduce = comm->all_reduce;
    watch_child(comm, color, child);
    return STATUS_OK;
}

void comm_close(Comm *comm) {
    if (comm->table) {
        be_patient(comm, false);
        worker_close(comm->worker);
        collective_close(comm);
        comm->table->close(comm->context);
    }
    *comm = (Comm){0};
}

void comm_abort(Comm *comm, int exit_code) {
    if (comm->table) comm->table->abort(comm->context, exit_code);
}

void comm_even_borders(int64_t n, int size, int64_t grain, int64_t *border) {
    int64_t n_grains = n / grain + (n % grain != 0), each = n_grains / size, left = n_grains % size;
    for (int r = 0; r <= size; r++) {
        int64_t first =
            r * each + (r < left ? r : left); /* in grains; the first `left` ranks have one more */
        border[r] = first < n_grains ? first * grain : n;
    }
}
