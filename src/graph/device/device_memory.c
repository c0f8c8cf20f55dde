/* Plans are announced first and the memory is taken once, so that programs which never run at the same time
 * share what each of them needs. */
#include "graph/device/device_memory.h"

#include "base/text/format.h"

#include <sys/mman.h>

void device_require(DeviceMemory *memory, const MemoryPlan *plan) {
    for (int place = 0; place < N_PLACES; place++) {
        size_t n_bytes = plan_place_bytes(plan, (Place)place);
        if (memory->bytes[place] < n_bytes) memory->bytes[place] = n_bytes;
        memory->kind[place] = plan->kind[place];
    }
    memory->is_paged |= plan->is_paged;
    if (plan->folder) {
        memory->folder = plan->folder;
        memory->file_queue = plan->file_queue;
    }
}

size_t device_bytes_of(const DeviceMemory *memory, MemoryKind kind) {
    size_t total = 0;
    for (int place = 0; place < N_PLACES; place++) {
        bool is_meant = memory->kind[place] == kind && !memory->is_borrowed[place];
        total += is_meant ? memory->bytes[place] : 0;
    }
    return total;
}

size_t device_required_bytes(const DeviceMemory *memory) {
    return device_bytes_of(memory, memory->kind[PLACE_PARAMETER]);
}

/* Bytes of a file are named by addresses that nothing lies at: so they are told apart like others are. */
static Status reserve_addresses(size_t n_bytes, void **base, Error *error) {
    void *reserved = mmap(NULL, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return error_failed(error, "the system refused addresses for %s of a file (see 'ulimit -v')",
                            format_bytes(n_bytes).text);
    *base = reserved;
    return STATUS_OK;
}

/* What a disk reads and writes begins at a page: large blocks do (base/system/memory.h), and what is not
 * touched of one takes no memory. */
static size_t asked_bytes(const DeviceMemory *memory, int place) {
    enum { LARGE = 4 << 20 };
    size_t n_bytes = memory->bytes[place];
    bool begins_at_page = place_is_beside((Place)place) || (place == PLACE_ACTIVATION && memory->is_paged);
    return begins_at_page && n_bytes < LARGE ? LARGE : n_bytes;
}

static Status take_place(DeviceMemory *memory, int place, Error *error) {
    const Backend *backend = memory->backend;
    const char *name = place_is_beside((Place)place) ? "what is offloaded" : place_name((Place)place);
    size_t n_bytes = memory->bytes[place];
    if (memory->kind[place] == backend->traits.memory) {
        TRY(backend->allocate(backend->context, asked_bytes(memory, place), name, &memory->base[place],
                              error));
        memory->allocated_bytes += n_bytes;
        return STATUS_OK;
    }
    if (backend->only_plans) return STATUS_OK;
    if (memory->kind[place] == MEMORY_FILE) return reserve_addresses(n_bytes, &memory->base[place], error);
    if (memory->kind[place] == MEMORY_PINNED && backend->allocate_pinned)
        return backend->allocate_pinned(backend->context, asked_bytes(memory, place), name,
                                        &memory->base[place], error);
    return error_failed(error, "%s was planned in %s memory, and the %s backend takes %s memory only", name,
                        memory_kind_name(memory->kind[place]), backend->name,
                        memory_kind_name(backend->traits.memory));
}

static Status open_mover(DeviceMemory *memory, Error *error) {
    MoverOptions options = {.backend = memory->backend,
                            .folder = memory->folder,
                            .queue = memory->file_queue,
                            .times = memory->times};
    bool is_wanted = false;
    for (int place = 0; place < N_PLACES; place++) {
        is_wanted |= place_is_beside((Place)place) && memory->bytes[place];
        if (memory->kind[place] != MEMORY_FILE || !memory->bytes[place]) continue;
        options.file[options.n_files++] = (MoverFile){memory->base[place], memory->bytes[place]};
    }
    if (!is_wanted || memory->backend->only_plans) return STATUS_OK;
    return mover_open(&memory->mover, &options, error);
}

Status device_open(DeviceMemory *memory, const Backend *backend, Error *error) {
    memory->backend = backend;
    for (int place = 0; place < N_PLACES; place++) {
        if (!memory->bytes[place] || memory->is_borrowed[place]) continue;
        if (take_place(memory, place, error) != STATUS_OK) {
            device_close(memory);
            return error->status;
        }
    }
    if (device_times_open(&memory->times, backend, error) != STATUS_OK ||
        open_mover(memory, error) != STATUS_OK)
        device_close(memory);
    return error->status;
}

static void give_back(DeviceMemory *memory, int place) {
    const Backend *backend = memory->backend;
    void *base = memory->base[place];
    if (memory->kind[place] == backend->traits.memory)
        backend->release(backend->context, base, asked_bytes(memory, place));
    else if (memory->kind[place] == MEMORY_FILE) munmap(base, memory->bytes[place]);
    else backend->release_pinned(backend->context, base, asked_bytes(memory, place));
}

void device_close(DeviceMemory *memory) {
    mover_close(&memory->mover);
    device_times_close(&memory->times);
    for (int place = 0; place < N_PLACES && memory->backend; place++) {
        if (memory->base[place] && !memory->is_borrowed[place]) give_back(memory, place);
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
