/* A backend: memory and kernels of one device, as a table of functions, and the traits that programs for it
 * are planned by (traits.h): planning asks those alone.
 *
 * The executor (executor.h) does everything else, so a new backend is this table and its kernels. Slots
 * marked optional may be NULL. */
#ifndef PGPT_GRAPH_BACKEND_H
#define PGPT_GRAPH_BACKEND_H

#include "graph/traits.h"

enum { BACKEND_RESULTS = 8, BACKEND_RESULT_BYTES = 64, BACKEND_ID_BYTES = 16 };

/* Two of a backend's events: where something began and where it ended. */
typedef struct {
    void *begin, *end;
} BackendSpan;

/* What the host brings beside a device with memory of its own. */
typedef struct {
    BackendTraits traits;
    Kernel (*kernel)(void *context, const Node *node);
    void *context;
    int n_threads;
} HostKernels;

typedef struct Backend {
    const char *name;
    BackendTraits traits;

    /* Device memory, zeroed, aligned to at least 64 bytes; `what` names it in the message when there is not
     * enough. A backend that computes nothing gives NULL. */
    Status (*allocate)(void *context, size_t n_bytes, const char *what, void **memory, Error *error);
    void (*release)(void *context, void *memory, size_t n_bytes);

    /* Bytes free for allocation now, as far as it is known. */
    size_t (*free_bytes)(void *context);

    /* Copies between host and device, complete on return. */
    Status (*upload)(void *context, void *device, const void *host, size_t n_bytes, Error *error);
    Status (*download)(void *context, void *host, const void *device, size_t n_bytes, Error *error);

    /* The kernel that runs `node`; NULL where its traits say that there is none. */
    Kernel (*kernel)(void *context, const Node *node);

    /* Wait until everything that was started has finished. Optional: NULL if kernels return when done. */
    Status (*synchronize)(void *context, Error *error);

    /* Capture and replay (CUDA graphs): between begin and end kernels are captured instead of run, and the
     * capture can be replayed as one. If anything fails in between, abandon ends it. Optional, all or
     * none. */
    Status (*capture_begin)(void *context, Error *error);
    Status (*capture_end)(void *context, void **capture, Error *error);
    void (*capture_abandon)(void *context);
    Status (*replay)(void *context, void *capture, Error *error);
    void (*capture_free)(void *context, void *capture);

    /* Times on a device that runs behind the host: events between the kernels, and the milliseconds from one
     * to another, for which this waits. Optional, all or none. */
    Status (*event_new)(void *context, void **event, Error *error);
    Status (*event_record)(void *context, void *event, Error *error);
    Status (*elapsed_ms)(void *context, void *first, void *second, float *milliseconds, Error *error);
    void (*event_free)(void *context, void *event);

    /* Results of a device that runs behind the host, while it goes on with what was started since: a copy of
     * at most BACKEND_RESULT_BYTES on its way to place 0 .. BACKEND_RESULTS - 1, and the wait until that one
     * has come. Optional, both or neither. */
    Status (*send_result)(void *context, const void *device, size_t n_bytes, int place, Error *error);
    Status (*receive_result)(void *context, void *host, size_t n_bytes, int place, Error *error);

    /* Lanes, where its traits have more than one: kernels, events and waits go to lane 0, or to lane i after
     * set_lane(context, i), and lanes run beside each other but for waits for events of another. Optional,
     * both or neither; needs events. */
    void (*set_lane)(void *context, int lane);
    Status (*event_wait)(void *context, void *event, Error *error);

    /* Copies to and from memory that the device reaches by itself, beside what it computes. Pinned memory is
     * taken and given back; a copy (is_out: to the host) begins behind everything that lane 0 was given so
     * far, and behind copy `after`, unless that is 0; then the host waits for it, or lane 0 of the device
     * does. The events of a span, unless it is NULL, are recorded where the copy itself begins and ends.
     * Tickets are never 0. Optional, all or none. */
    Status (*allocate_pinned)(void *context, size_t n_bytes, const char *what, void **memory, Error *error);
    void (*release_pinned)(void *context, void *memory, size_t n_bytes);
    Status (*copy_start)(void *context, void *to, const void *from, size_t n_bytes, bool is_out,
                         uint64_t after, const BackendSpan *span, uint64_t *ticket, Error *error);
    Status (*copy_wait)(void *context, uint64_t ticket, bool by_host, Error *error);

    void (*close)(void *context);

    void *context;
    int n_threads;                       /* host threads that kernels may use */
    uint8_t device_id[BACKEND_ID_BYTES]; /* of a device with memory of its own: no other device has it */
    int n_sharing;    /* ranks with memory from the same place, this one among them; 0: nobody has counted */
    int n_on_host;    /* ranks on this host, this one among them; 0: nobody has counted */
    bool only_plans;  /* it computes nothing: there is no device behind it */
    bool is_blocking; /* wait for every instruction, so that one that fails is known by name */
    HostKernels host; /* for nodes that are left to the host; {0}: the device is the host */
    struct DeviceComms *kept;  /* the device room's: communicators that stay open; NULL: none do */
    const char *blocking_wish; /* how the user asks for that; NULL where kernels return when they are done */
} Backend;

/* Does the host run the node beside this device? */
static inline bool backend_leaves_to_host(const Backend *backend, const Node *node) {
    return node->is_on_host && backend->host.kernel;
}

/* Threads for what the host computes by itself: initial weights, say. */
static inline int backend_host_threads(const Backend *backend) {
    return backend->host.n_threads ? backend->host.n_threads : backend->n_threads;
}

/* The kernel that runs `node`: the backend's, or the op's own where that is portable. NULL if there is
 * none. */
Kernel backend_kernel(const Backend *backend, const Node *node);

/* Is its memory another than that which the host's own buffers come from? */
bool backend_has_own_memory(const Backend *backend);

#endif
