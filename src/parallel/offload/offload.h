/* Offload: what of a training step is kept beside the memory that kernels work on, in the host's memory or in
 * a file, and brought when it is needed. No bit of the result changes.
 *
 *     Offload offload;
 *     TRY(offload_parse(&options, &offload, error));        // --offload optimizer:file=/fast/disk
 *     TRY(offload_check(&offload, backend, error));
 *     ... record the step, with its update ...
 *     offload_update(graph, &offload, traits);              // moments and master weights
 *
 * Each is a pass over the recorded graph: moves are nodes (ops/move.h), planned like everything else. */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_H

#include "base/file/file_queue.h"
#include "base/options/options.h"
#include "graph/backend.h"

typedef enum {
    OFFLOAD_OPTIMIZER,
    OFFLOAD_GRADIENTS,
    OFFLOAD_WEIGHTS,
    OFFLOAD_ACTIVATIONS,
    N_OFFLOADED
} Offloaded;
typedef enum { OFFLOAD_NOWHERE, OFFLOAD_HOST, OFFLOAD_FILE } OffloadTo;

enum { OFFLOAD_FOLDER_BYTES = 512 };

/* {0}: everything stays where it is. */
typedef struct {
    OffloadTo to[N_OFFLOADED];
    char folder[OFFLOAD_FOLDER_BYTES]; /* of files; "": there are none */
    FileQueueKind file_queue;          /* how they are read and written */
    double share;                      /* of what is offloaded that stays, 0 .. 1 */
    int64_t bucket_bytes;              /* of f32, that are moved and updated at a time; 0: a default */
    bool host_updates;                 /* a device leaves the update of what is away to the host's cores */
    OffloadTo automatic;               /* --offload auto: as little as fits, to there; NOWHERE: as it says */
} Offload;

/* Who updates state that is in the host's memory. */
typedef enum { OFFLOAD_UPDATE_DEVICE, OFFLOAD_UPDATE_HOST } OffloadUpdater;

/* As the user says it. */
typedef struct {
    const char *what;
    double share, bucket_mb;
    int updater;    /* an OffloadUpdater */
    int file_queue; /* a FileQueueKind */
} OffloadOptions;

extern const OptionSpec offload_option_specs[];

Status offload_parse(const OffloadOptions *options, Offload *offload, Error *error);

/* Can it be, on this device? Where the device is the host, "host" is no other memory: it is refused unless
 * copies_are_fine, as to check all of this where there is no other. */
Status offload_check(const Offload *offload, const BackendTraits *traits, bool copies_are_fine, Error *error);

static inline bool offload_has(const Offload *offload, Offloaded what) {
    return offload->to[what] != OFFLOAD_NOWHERE;
}

/* Bytes of f32 in a piece. */
static inline int64_t offload_bucket_bytes(const Offload *offload) {
    enum { DEFAULT_BUCKET_BYTES = 16 << 20 };
    return offload->bucket_bytes ? offload->bucket_bytes : DEFAULT_BUCKET_BYTES;
}

/* Is anything? */
bool offload_is_on(const Offload *offload);

/* In words: "optimizer to the host", "optimizer to files in /fast/disk, activations to the host". */
const char *offload_text(const Offload *offload, char *text, size_t n_bytes);

/* Of a graph with its update: optimizer state (PLACE_OPTIMIZER) gets homes elsewhere, and every update is
 * made of pieces of it, which are brought ahead and taken back behind; by the device's kernels, or the
 * host's. Where nothing scales the gradient, pieces are updated in the backward as their gradients come;
 * where clipping does not wait, that is in steps of REGIME_AHEAD, with may_go_ahead: a step has its norm
 * before the next one begins. State that stays is copied in front of the update's place, so that its update
 * is not made earlier. */
void offload_update(Graph *graph, const Offload *offload, const BackendTraits *traits, bool may_go_ahead);

/* Of a graph with its backward: activations of blocks, but for the last, are taken out behind their last use
 * in the forward and brought again ahead of the backward. */
void offload_activations(Graph *graph, const Offload *offload);

/* Likewise: the sums of gradients (PLACE_GRADIENT) go to PLACE_HOST, and each is fetched where a part of the
 * program adds to it. accumulates: a step has several micro-batches. Before offload_update. */
void offload_gradients(Graph *graph, const Offload *offload, const BackendTraits *traits, bool accumulates);

/* The same of the weights (PLACE_PARAMETER), also of an evaluation: programs that share them have them at the
 * same place, since they lie first in it. */
void offload_weights(Graph *graph, const Offload *offload, const BackendTraits *traits);

#endif
