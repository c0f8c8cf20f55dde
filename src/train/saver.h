/* The saver: checkpoints written in the background, while training goes on.
 *
 *     saver_plan(&saver, &table, n_moments, true);      // nothing is allocated yet
 *     TRY(saver_open(&saver, error));
 *     ... a step ...
 *     TRY(saver_poll(&saver, error));                   // has a save gone wrong meanwhile?
 *     TRY(saver_save(&saver, &request, error));         // waits for a memory copy
 *     ... the last step ...
 *     TRY(saver_save_now(&saver, &request, error));     // waits for the disk
 * done:
 *     saver_finish(&saver, error);                      // after errors too: a save under way is completed
 *     saver_close(&saver);
 *
 * At most one save is under way; the next one waits for it. What goes wrong in the background is reported by the next
 * call that takes an error. In the foreground the same calls need no memory and return when the checkpoint is
 * on the disk. */
#ifndef PGPT_TRAIN_SAVER_H
#define PGPT_TRAIN_SAVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "graph/executor.h"
#include "train/checkpoint.h"

enum { SAVER_MAX_ARRAYS = 1 + CHECKPOINT_MAX_MOMENTS };

/* What to save, where to, and what to keep. Pointers must stay good until the save is done; the tensors' contents are
 * free again when saver_save returns. */
typedef struct {
    const char *run;
    const ModelConfig *config;
    const ParameterTable *table;
    Executor *executor;
    const Tensor
        *array[SAVER_MAX_ARRAYS]; /* the parameters, then state.n_moments moments, all flat by the table */
    CheckpointState state;
    int64_t keep_last; /* see checkpoint_prune */
    bool keep_best;
} SaveRequest;

typedef struct {
    bool in_background;
    int n_arrays;
    size_t array_bytes;
    void *copy[SAVER_MAX_ARRAYS]; /* what the thread writes; NULL in the foreground */
    int64_t saved_step;           /* of the last checkpoint known to be on the disk, -1 if there is none */
    SaveRequest request;          /* of the save under way, or the last one */
    Error result;                 /* its outcome: what went wrong, */
    bool is_written;              /* and whether the checkpoint is there all the same */
    pthread_t thread;
    bool is_under_way;   /* the thread has not been joined */
    atomic_bool is_done; /* it will not touch anything any more */
} Saver;

void saver_plan(Saver *saver, const ParameterTable *table, int n_moments, bool in_background);

/* What saver_open allocates, and what it has allocated: the copies. */
size_t saver_planned_bytes(const Saver *saver);
size_t saver_allocated_bytes(const Saver *saver);

Status saver_open(Saver *saver, Error *error);
void saver_close(Saver *saver); /* completes a save under way; safe after a failed open, and twice */

/* Save and prune. A step that was saved already is not saved again. */
Status saver_save(Saver *saver, const SaveRequest *request, Error *error);

/* The same, returning when it is on the disk; takes no copy. */
Status saver_save_now(Saver *saver, const SaveRequest *request, Error *error);

/* The error of a save that has ended since, without waiting. */
Status saver_poll(Saver *saver, Error *error);

/* Wait for the save under way, if there is one. */
Status saver_finish(Saver *saver, Error *error);

#endif
