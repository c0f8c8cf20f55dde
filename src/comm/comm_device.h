/* Communicators for memory that the host cannot touch: a GPU's.
 *
 * Their operations take addresses of the device and are ordered like its kernels: what was enqueued before an
 * operation is done before it begins, what is enqueued after the wait sees its result. Neither start nor wait
 * makes the host wait longer than it must. Messages that are under way together are waited for together:
 * NCCL's set out when the first is waited for, by tag. NCCL knows no tags itself, so two ranks that exchange
 * messages must wait at the same points, each for what the other waits for.
 *
 * comm_nccl_open: NCCL, on a stream of its own. comm_staged_open: any communicator of the host, by copies
 * through the host's memory; it waits for the device at every operation, and is for machines without NCCL. */
#ifndef PGPT_COMM_COMM_DEVICE_H
#define PGPT_COMM_COMM_DEVICE_H

#include "comm/comm.h"

/* Can NCCL be used here: was the build made with it, and is its library installed? Else `reason` (n_bytes)
 * says why not. Ranks may differ. */
bool comm_nccl_is_available(char *reason, size_t n_bytes);

/* What it is for: sums and other collectives, or messages between two ranks, which may be posted long before
 * the other side comes to them and take little of the device while they wait. */
typedef enum { COMM_FOR_SUMS, COMM_FOR_MESSAGES } CommUse;

/* `control` is a communicator of the host over the same ranks, which must stay open; `device` this rank's GPU
 * and `stream` the CUDA stream that its kernels run on. Collective. */
Status comm_nccl_open(Comm *comm, Comm *control, CommUse use, int device, void *stream, Error *error);

/* One that was kept (kept.h) goes on over another communicator of the host with the same ranks. */
void comm_nccl_set_control(Comm *comm, Comm *control);

/* Is it one of those? */
bool comm_is_nccl(const Comm *comm);

/* How to reach the device's memory, as the slots of a backend; and memory of the host that copies to and from
 * it are fast with (NULL, both: any will do). */
typedef struct {
    Status (*upload)(void *context, void *device, const void *host, size_t n_bytes, Error *error);
    Status (*download)(void *context, void *host, const void *device, size_t n_bytes, Error *error);
    Status (*take)(void *context, size_t n_bytes, void **memory, Error *error);
    void (*give_back)(void *context, void *memory);
    void *context;
} CommStaging;

/* `host` must stay open; its choice of all-reduce is kept. */
Status comm_staged_open(Comm *comm, Comm *host, const CommStaging *staging, Error *error);

#endif
