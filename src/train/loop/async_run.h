/* What a trainer has beside an exact one in asynchronous and local SGD (docs/ASYNC.md). */
#ifndef PGPT_TRAIN_LOOP_ASYNC_RUN_H
#define PGPT_TRAIN_LOOP_ASYNC_RUN_H

#include "parallel/async/async.h"
#include "parallel/async/parameter_server.h"
#include "train/step/step.h"

/* A step that not all ranks know of yet. */
typedef struct {
    StepResult result;
    double rate;
} AsyncPending;

typedef struct {
    AsyncOptions options; /* SYNC_EXACT: nothing below is used */
    Async async;
    AsyncPending *pending; /* steps since the last meeting */
    double *numbers;       /* their losses and norms, summed over the ranks */
    int64_t n_pending, max_pending;
    uint64_t began_ns;      /* the first of them */
    double waited_ms;       /* of a worker: for the weights that it has now */
    Comm served;            /* server and workers */
    ParameterServer server; /* on rank 0 */
    void *ahead;            /* what it sends its workers */
    size_t ahead_bytes;
    StepResult tally;  /* of the gradients since the last step */
    double rate;       /* of the last of them */
    int64_t staleness; /* the largest of them */
    bool is_open;
} AsyncRun;

/* Bytes that it takes beside the step's own, of n weights; those of a server on rank 0. */
size_t async_run_bytes(const AsyncOptions *options, int64_t n);

void async_run_close(AsyncRun *run); /* safe on {0}, after a failed open, and twice */

/* Can these be trained with another --sync than exact? Says what to do instead. */
Status async_run_check(const AsyncOptions *options, int zero, Precision precision, const Backend *backend,
                       Error *error);

#endif
