/* Communicators for a device's memory: NCCL's where it can be, else through the host's.
 *
 * NCCL takes tenths of a second to open one, and more where ranks share a GPU; a pipeline of four stages in
 * two chunks has a dozen. Whoever opens one layout after the other therefore keeps them (comm/kept.h). */
#include "device/device.h"

#include "backend/cuda/plan/plan.h"
#include "comm/kept.h"

#include <stdio.h>
#include <stdlib.h>

struct DeviceComms {
    KeptComms comms;
};

Status device_keep_comms(Backend *backend, const Comm *world, Error *error) {
    backend->kept = calloc(1, sizeof *backend->kept);
    if (!backend->kept) return error_failed(error, "no memory to keep communicators");
    backend->kept->comms.rank = world->rank;
    return STATUS_OK;
}

static void close_comm(Comm *comm, const Backend *backend) {
    if (comm->table && backend_has_own_memory(backend) && !backend->only_plans)
        backend_cuda_unwatch(backend, comm->context);
    comm_close(comm);
}

void device_drop_comms(Backend *backend) {
    if (!backend->kept) return;
    for (;;) {
        Comm comm = kept_comms_take_out(&backend->kept->comms);
        if (!comm.table) break;
        close_comm(&comm, backend);
    }
    free(backend->kept);
    backend->kept = NULL;
}

/* NCCL refuses ranks that share a GPU, unless they pretend to be hosts of their own. */
static bool can_use_nccl(const Backend *backend, char *reason, size_t n_bytes) {
    if (!comm_nccl_is_available(reason, n_bytes)) return false;
    if (backend->n_sharing <= 1 || getenv("NCCL_HOSTID")) return true;
    snprintf(reason, n_bytes, "%d ranks share this GPU, which NCCL does not let them; start one for each GPU",
             backend->n_sharing);
    return false;
}

static Status open_nccl(Comm *comm, Comm *host, CommUse use, const Backend *backend, Error *error) {
    if (backend->kept) TRY(kept_comms_find(&backend->kept->comms, host, (int)use, comm, error));
    if (comm->table) {
        comm_nccl_set_control(comm, host);
        return STATUS_OK;
    }
    TRY(comm_nccl_open(comm, host, use, backend_cuda_device(backend), backend_cuda_stream(backend), error));
    TRY(backend_cuda_watch(backend, comm->table->check, comm->context, error));
    return backend->kept ? kept_comms_add(&backend->kept->comms, host, (int)use, comm, error) : STATUS_OK;
}

Status device_comm_open(Comm *comm, Comm *host, CommUse use, const Backend *backend, Error *error) {
    *comm = (Comm){0};
    if (!backend_has_own_memory(backend) || backend->only_plans || host->size == 1) return STATUS_OK;
    char reason[512];
    int32_t everywhere = can_use_nccl(backend, reason, sizeof reason);
    TRY(comm_all_reduce(host, &everywhere, 1, COMM_I32, COMM_MIN, error));
    if (everywhere) return open_nccl(comm, host, use, backend, error);
    CommStaging staging = {.upload = backend->upload,
                           .download = backend->download,
                           .take = backend_cuda_take_pinned,
                           .give_back = backend_cuda_give_pinned_back,
                           .context = backend->context};
    return comm_staged_open(comm, host, &staging, error);
}

void device_comm_close(Comm *comm, const Backend *backend) {
    if (comm->table && backend->kept && kept_comms_give_back(&backend->kept->comms, comm)) return;
    close_comm(comm, backend);
}

void device_say(const Log *log, const Backend *backend, const Comm *comm) {
    char text[512];
    if (!backend_has_own_memory(backend) || backend->only_plans) return;
    log_note(log, "device %s", device_describe(backend, text, sizeof text));
    if (*backend_cuda_note(backend)) log_note(log, "%s", backend_cuda_note(backend));
    if (!comm->table || comm_is_nccl(comm)) return;
    if (can_use_nccl(backend, text, sizeof text))
        snprintf(text, sizeof text, "another rank has no NCCL, or shares its GPU");
    log_warning(log, "GPUs exchange their memory through the host, which is slow: %s", text);
}
