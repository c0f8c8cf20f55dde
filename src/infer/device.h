/* Where a command computes: --device. */
#ifndef PGPT_INFER_DEVICE_H
#define PGPT_INFER_DEVICE_H

#include "comm/comm.h"
#include "graph/backend.h"
#include "model/precision.h"

typedef enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } DeviceKind;

extern const char *const device_names[]; /* NULL-terminated: auto cpu cuda */

typedef struct {
    int kind;                /* DeviceKind; auto takes a GPU if there is one */
    int index;               /* of the rank on its host: ranks take GPUs in turn */
    int n_threads;           /* of the CPU; 0: chosen */
    PrecisionKind precision; /* tf32 is a setting of the device */
} DeviceOptions;

/* backend->close gives it back. */
Status device_backend_open(Backend *backend, const DeviceOptions *options, Error *error);

/* Can the device give so much? The message says what it is for and what to do instead (see memory_check). */
Status device_check_memory(const Backend *backend, size_t n_bytes, const char *what, const char *advice,
                           Error *error);

/* A communicator for the device's memory over the same ranks as `host`, which must stay open: by NCCL where the build has it,
 * else through the host. On the CPU it is {0}: `host` itself is the one to use. Collective. */
Status device_comm_open(Comm *comm, Comm *host, const Backend *backend, Error *error);

/* "NVIDIA H200, ..." or "8 threads". */
const char *device_describe(const Backend *backend, char *text, size_t n_bytes);

#endif
