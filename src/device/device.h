/* Where a command computes: --device. */
#ifndef PGPT_DEVICE_DEVICE_H
#define PGPT_DEVICE_DEVICE_H

#include "base/text/log.h"
#include "comm/comm_device.h"
#include "graph/backend.h"
#include "graph/precision.h"

/* Those behind DEVICE_CUDA are kinds of GPU that need not be here: programs can be planned for them. */
typedef enum {
    DEVICE_AUTO,
    DEVICE_CPU,
    DEVICE_CUDA,
    DEVICE_CUDA_H200,
    DEVICE_CUDA_H100,
    DEVICE_CUDA_A100
} DeviceKind;

extern const char *const device_names[]; /* NULL-terminated: auto cpu cuda */
extern const char
    *const device_plan_names[]; /* the same with cuda:h200 and so on, for commands that can plan */

typedef struct {
    int kind;                /* DeviceKind; auto takes a GPU if there is one */
    int index;               /* of the rank on its host: ranks take GPUs in turn */
    int n_threads;           /* of the CPU; 0: chosen */
    PrecisionKind precision; /* tf32 is a setting of the device */
    bool any_order;          /* a GPU may add in an order that varies from run to run, where that is faster */
    /* GEMMs by a GPU library's first proposal, none timed: the same bits, for programs that do not run long
     * enough for the time that it takes to choose. */
    bool first_gemm;
    int n_streams; /* of a GPU: 2 run gradients of weights beside the rest; 0 is 1 */
} DeviceOptions;

/* Does this kind mean a GPU here? */
bool device_takes_gpu(int kind);

/* --device, of commands that compute here. */
#define OPTION_DEVICE(Struct, field)                                                                         \
    OPTION_CHOICE("device", Struct, field, DEVICE_AUTO, device_names,                                        \
                  "where to compute; auto: on a GPU if there is one")

/* What --any-order says of itself in every command that has it. */
#define DEVICE_ANY_ORDER_HELP                                                                                               \
    "let a GPU add in an order that varies from run to run (split-K GEMMs, atomic adds), where that is faster; the result " \
    "is then no longer the same bit by bit"

enum { DEVICE_STREAMS = 2 }; /* where nothing else is said */
#define DEVICE_STREAMS_HELP                                                                                              \
    "CUDA streams: 1, or 2, which run gradients of weights beside what follows them, with the same result and a little " \
    "more memory"

/* backend->close gives it back. */
Status device_backend_open(Backend *backend, const DeviceOptions *options, Error *error);

/* In the place of device_backend_open where a program is only planned and printed: opens no device, and plans
 * as the one that is meant would, for --device cuda the GPU that is here or, where there is none, an H200.
 * The backend computes nothing. */
Status device_plan_open(Backend *backend, const DeviceOptions *options, Error *error);

/* Where several ranks compute: counts those with memory from the same place (backend->n_sharing), which is
 * the host's with its `host_size` ranks, or a GPU's. Some on GPUs and some on CPUs are refused. Collective
 * over `world`. */
Status device_meet(Backend *backend, Comm *world, int host_size, Error *error);

/* Bytes that programs may ask the device for: this rank's share of what is free now, less, on a GPU,
 * DEVICE_RESERVE_BYTES. Those are for what CUDA and its libraries take when kernels are first loaded and
 * sections are recorded, which no plan knows of. (What `bench step` says was taken beside the plan: 10 MiB on
 * an H200. NCCL takes more.) */
#define DEVICE_RESERVE_BYTES ((uint64_t)256 << 20)
uint64_t device_usable_bytes(const Backend *backend);

/* Can the device give so much? The message says what it is for and what to do instead (see memory_check). */
Status device_check_memory(const Backend *backend, size_t n_bytes, const char *what, const char *advice,
                           Error *error);

/* A communicator for the device's memory over the same ranks as `host`, which must stay open: by NCCL where
 * all ranks have it and a GPU each (or pretend to be hosts of their own, by NCCL_HOSTID), else through the
 * host. On the CPU it is {0}: `host` itself is the one to use. Collective; after device_meet. */
Status device_comm_open(Comm *comm, Comm *host, CommUse use, const Backend *backend, Error *error);
void device_comm_close(Comm *comm, const Backend *backend); /* before the backend; safe on {0} */

/* For those who open many, one layout after the other: from now on NCCL's stay open when they are closed, for
 * the next over the same ranks, which are known by their numbers in `world`. Until they are dropped, before
 * the backend is closed. */
Status device_keep_comms(Backend *backend, const Comm *world, Error *error);
void device_drop_comms(Backend *backend); /* safe where none are kept */

/* Which GPU it is, and what on it is done another way than the best that pgpt knows, and why. Nothing of the
 * CPU. `comm` is what device_comm_open made; programs should have been planned by then. */
void device_say(const Log *log, const Backend *backend, const Comm *comm);

/* "NVIDIA H200, ..." or "8 threads". */
const char *device_describe(const Backend *backend, char *text, size_t n_bytes);

#endif
