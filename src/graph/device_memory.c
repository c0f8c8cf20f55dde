/* Plans are announced first and the memory is taken once, so that programs which never run at the same time
 * share what each of them needs. */
#include "graph/device_memory.h"

void device_require(DeviceMemory *memory, const MemoryPlan *plan) {
    for (int place = 0; place < N_PLACES; place++) {
        size_t n_bytes = plan_place_bytes(plan, (Place)place);
        if (memory->bytes[place] < n_bytes) memory->bytes[place] = n_bytes;
        memory->kind[place] = plan->kind[place];
    }
}

size_t device_required_bytes(const DeviceMemory *memory) {
    size_t total = 0;
    for (int place = 0; place < N_PLACES; place++)
        total += memory->is_borrowed[place] ? 0 : memory->bytes[place];
    return total;
}

Status device_open(DeviceMemory *memory, const Backend *backend, Error *error) {
    memory->backend = backend;
    for (int place = 0; place < N_PLACES; place++) {
        if (!memory->bytes[place] || memory->is_borrowed[place]) continue;
        if (memory->kind[place] != backend->traits.memory) {
            device_close(memory);
            return error_failed(error, "%s was planned in %s memory, and the %s backend takes %s memory only",
                                place_name((Place)place), memory_kind_name(memory->kind[place]),
                                backend->name, memory_kind_name(backend->traits.memory));
        }
        Status status = backend->allocate(backend->context, memory->bytes[place], place_name((Place)place),
                                          &memory->base[place], error);
        if (status != STATUS_OK) {
            device_close(memory);
            return status;
        }
        memory->allocated_bytes += memory->bytes[place];
    }
    return STATUS_OK;
}

void device_close(DeviceMemory *memory) {
    for (int place = 0; place < N_PLACES && memory->backend; place++) {
        if (memory->base[place] && !memory->is_borrowed[place]) {
            memory->backend->release(memory->backend->context, memory->base[place], memory->bytes[place]);
        }
        memory->base[place] = NULL;
    }
    memory->allocated_bytes = 0;
}

Status device_borrow(DeviceMemory *memory, Place place, const DeviceMemory *owner, Error *error) {
    if (owner->bytes[place] < memory->bytes[place]) {
        return error_failed(error, "%zu bytes of %s were borrowed where there are %zu", memory->bytes[place],
                            place_name(place), owner->bytes[place]);
    }
    memory->bytes[place] = owner->bytes[place];
    memory->base[place] = owner->base[place];
    memory->is_borrowed[place] = true;
    return STATUS_OK;
}
