/* The memory of a device that programs run on: announced by plans, then taken once.
 *
 *     DeviceMemory memory = {0};
 *     device_require(&memory, &program.plan);             // for every program that shares the memory
 *     ... device_required_bytes(&memory) ...
 *     TRY(device_open(&memory, backend, error));
 *     device_close(&memory);                              // also after a failure, and twice
 *
 * wiring.h does it together with the program.
 *
 * What a plan keeps beside it (PLACE_HOST, PLACE_FILE) is taken with the rest: memory of the host, pinned
 * where the device has its own, and a file without a name in `folder`, which is gone with the process. */
#ifndef PGPT_GRAPH_DEVICE_DEVICE_MEMORY_H
#define PGPT_GRAPH_DEVICE_DEVICE_MEMORY_H

#include "graph/backend.h"
#include "graph/device/mover.h"
#include "graph/plan.h"

/* One block per place, large enough for every program that was announced. Parameters of programs recorded
 * from the same table lie at the same offsets, so training, evaluation and decoding work on the same
 * weights. */
typedef struct {
    const Backend *backend;
    size_t bytes[N_PLACES];
    MemoryKind kind[N_PLACES]; /* where each is */
    void *base[N_PLACES];      /* of a file: an address that stands for its bytes, and cannot be read */
    bool is_borrowed[N_PLACES];
    size_t allocated_bytes;   /* what the backend was really asked for */
    uint64_t n_input_writes;  /* by the host: inputs written ahead are still there if nothing came since */
    const char *folder;       /* of what is kept in a file; NULL: nothing is */
    FileQueueKind file_queue; /* and how it is read and written */
    bool is_paged;            /* it is read into activations, too */
    DeviceTimes *times;       /* of a device behind the host; NULL: it is not */
    Mover *mover;             /* between the kinds of memory; NULL: there is one */
} DeviceMemory;

void device_require(DeviceMemory *memory, const MemoryPlan *plan);
size_t device_required_bytes(const DeviceMemory *memory);            /* of what kernels work on */
size_t device_bytes_of(const DeviceMemory *memory, MemoryKind kind); /* and of another kind */
Status device_open(DeviceMemory *memory, const Backend *backend, Error *error);
void device_close(DeviceMemory *memory);

/* Use another memory's block for one place instead of allocating it: between the last device_require and
 * device_open. The owner must be open, hold enough there, and stay open for as long as this memory. */
Status device_borrow(DeviceMemory *memory, Place place, const DeviceMemory *owner, Error *error);

#endif
