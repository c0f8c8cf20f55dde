/* The memory of a device that programs run on: announced by plans, then taken once.
 *
 *     DeviceMemory memory = {0};
 *     device_require(&memory, &program.plan);             // for every program that shares the memory
 *     ... device_required_bytes(&memory) ...
 *     TRY(device_open(&memory, backend, error));
 *     device_close(&memory);                              // also after a failure, and twice
 *
 * wiring.h does it together with the program. */
#ifndef PGPT_GRAPH_DEVICE_MEMORY_H
#define PGPT_GRAPH_DEVICE_MEMORY_H

#include "graph/backend.h"
#include "graph/plan.h"

/* One block per place, large enough for every program that was announced. Parameters of programs recorded
 * from the same table lie at the same offsets, so training, evaluation and decoding work on the same
 * weights. */
typedef struct {
    const Backend *backend;
    size_t bytes[N_PLACES];
    MemoryKind kind[N_PLACES]; /* where each is; all of one memory have the same */
    void *base[N_PLACES];
    bool is_borrowed[N_PLACES];
    size_t allocated_bytes;  /* what the backend was really asked for */
    uint64_t n_input_writes; /* by the host: inputs written ahead are still there if nothing came since */
} DeviceMemory;

void device_require(DeviceMemory *memory, const MemoryPlan *plan);
size_t device_required_bytes(const DeviceMemory *memory);
Status device_open(DeviceMemory *memory, const Backend *backend, Error *error);
void device_close(DeviceMemory *memory);

/* Use another memory's block for one place instead of allocating it: between the last device_require and
 * device_open. The owner must be open, hold enough there, and stay open for as long as this memory. */
Status device_borrow(DeviceMemory *memory, Place place, const DeviceMemory *owner, Error *error);

#endif
