/* What planning asks of a device, answered without one.
 *
 * Everything that a plan depends on is here: a program planned by the traits of a kind of device has the
 * instructions and the bytes that it has on such a device. So each answer is a pure function of the traits
 * and the node. Whoever runs a program has a Backend (backend.h), which begins with its traits. */
#ifndef PGPT_GRAPH_TRAITS_H
#define PGPT_GRAPH_TRAITS_H

#include "graph/op.h"

/* Where memory is. */
typedef enum {
    MEMORY_HOST,
    MEMORY_PINNED, /* the host's, which a device copies to and from by itself */
    MEMORY_DEVICE, /* a device's own */
    MEMORY_FILE,   /* on a disk, mapped */
    N_MEMORY_KINDS
} MemoryKind;

const char *memory_kind_name(MemoryKind kind); /* "host" */

typedef struct BackendTraits BackendTraits;
struct BackendTraits {
    const char *name; /* of the backend: what --device calls it */
    char kind[64];    /* of the device, in words: "NVIDIA H200"; "" where there is nothing to say */

    /* Has it a kernel for this node? NULL: for all. */
    bool (*has_kernel)(const BackendTraits *traits, const Node *node);
    /* Why it has none for this one, and what the user may do about it; NULL where nothing he chose is to
     * blame. Optional. */
    const char *(*why_not)(const BackendTraits *traits, const Node *node);
    /* Working memory that the kernel wants, in bytes; it becomes a tensor of the memory plan. Optional. */
    size_t (*scratch_bytes)(const BackendTraits *traits, const Node *node);
    /* Does the kernel of `node` sum the columns of its outputs as it makes them, if it is asked to
     * (sums.h)? Else that is a pass of its own, which may as well stay with whoever reads them. Optional:
     * NULL where it makes no difference. */
    bool (*sums_columns)(const BackendTraits *traits, const Node *node);

    MemoryKind memory;    /* what kernels work on */
    size_t alignment;     /* of tensors, in bytes, that kernels want; at most PLAN_ALIGNMENT */
    bool is_asynchronous; /* kernels run behind the host, which need not wait for them */
    int n_lanes;          /* that run beside each other (lanes.h); 0 is 1 */
    int n_threads;        /* host threads that kernels may use */

    /* The logits of the loss are made a chunk of rows at a time, of so many bytes: enough that GEMMs are
     * efficient. A number of them has so many bytes at least, whatever its type: where kernels work on f32
     * copies, 4. */
    size_t loss_chunk_bytes, loss_number_bytes;

    /* The backend's own description of the kind of device, plain data of so many bytes that may be copied.
     * Lives as long as the traits. NULL: none. */
    const void *about;
    size_t about_bytes;
};

/* The host: its memory, kernels that return when they are done, one lane. What a CPU's traits begin with. */
extern const BackendTraits TRAITS_HOST;

/* A device with memory of its own and kernels behind the host, wide: what a GPU's begin with. */
extern const BackendTraits TRAITS_DEVICE;

bool traits_has_own_memory(const BackendTraits *traits); /* it is not the host's */
int traits_n_lanes(const BackendTraits *traits);         /* 1 or more */

/* Has it a kernel for this node, or is the op's own portable? */
bool traits_has_kernel(const BackendTraits *traits, const Node *node);

/* The number of nodes of `graph` without one; the first of them in *missing. */
int traits_missing_kernels(const BackendTraits *traits, const Graph *graph, const Node **missing);

/* Working memory that the kernel wants; 0 for none. */
size_t traits_scratch_bytes(const BackendTraits *traits, const Node *node);

#endif
