/* Messages without a collective around them: posted, and waited for later, all of them or whichever comes
 * first.
 *
 * Collective operations keep ranks in step, which is what a rank that runs ahead of the others does not want.
 * These are the transport's own messages with what the front of a communicator adds: a check of what is asked
 * for, the time that it takes, and a word to whoever looks on. They use the transport from the calling
 * thread, so a communicator that has something started in its worker is refused rather than waited for:
 * whoever mixes the two has lost the order. */
#include "base/system/timer.h"
#include "comm/comm.h"

static Status check(const Comm *comm, int peer, int tag, Error *error) {
    if (!comm->table) return error_failed(error, "a closed communicator cannot be used");
    if (comm->worker) return error_failed(error, "messages cannot be posted beside started collectives");
    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        return error_failed(error, "rank %d of %d cannot exchange messages with rank %d", comm->rank,
                            comm->size, peer);
    if (tag < 0 || tag >= COMM_N_TAGS)
        return error_failed(error, "tag %d of a message is not in 0..%d", tag, COMM_N_TAGS - 1);
    return STATUS_OK;
}

Status comm_post_send(Comm *comm, const void *data, size_t n_bytes, int to, int tag, CommRequest *request,
                      Error *error) {
    TRY(check(comm, to, tag, error));
    comm->counts.n_messages++;
    comm->counts.n_bytes += n_bytes;
    return comm->table->start_send(comm->context, data, n_bytes, to, tag, request, error);
}

Status comm_post_receive(Comm *comm, void *data, size_t n_bytes, int from, int tag, CommRequest *request,
                         Error *error) {
    TRY(check(comm, from, tag, error));
    comm->counts.n_messages++;
    comm->counts.n_bytes += n_bytes;
    return comm->table->start_receive(comm->context, data, n_bytes, from, tag, request, error);
}

static uint64_t begin_wait(Comm *comm, const char *words) {
    ActivityEntry entry = {
        .kind = ACTIVITY_WAIT, .name = words, .place = comm->name, .number = -1, .peers = comm->size};
    activity_begin(comm->activity, comm->track, &entry);
    if (comm->table->be_patient) comm->table->be_patient(comm->context, false);
    return timer_now_ns();
}

static Status end_wait(Comm *comm, uint64_t start_ns, Status status) {
    uint64_t took_ns = timer_now_ns() - start_ns;
    comm->counts.busy_ns += took_ns;
    comm->counts.waited_ns += took_ns;
    comm->is_broken |= status != STATUS_OK;
    activity_end(comm->activity, comm->track);
    return status;
}

Status comm_wait_posted(Comm *comm, CommRequest *requests, int n_requests, Error *error) {
    if (!comm->table) return error_failed(error, "a closed communicator cannot be used");
    uint64_t start_ns = begin_wait(comm, "wait for posted messages");
    return end_wait(comm, start_ns, comm->table->wait(comm->context, requests, n_requests, error));
}

Status comm_wait_any_posted(Comm *comm, CommRequest *requests, int n_requests, int *index, Error *error) {
    if (!comm->table || !comm->table->wait_any)
        return error_failed(error, "a communicator that cannot wait for any of several messages");
    if (n_requests < 1) return error_failed(error, "any of no messages would be waited for for ever");
    uint64_t start_ns = begin_wait(comm, "wait for any message");
    return end_wait(comm, start_ns, comm->table->wait_any(comm->context, requests, n_requests, index, error));
}
