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
 * At most one save is under way; the next one waits for it. What goes wrong in the background is reported by
 * the next call that takes an error. In the foreground the same calls need no memory and return when the
 * checkpoint is on the disk.
 *
 * Several ranks save together, each its own part (saver_plan_parts, SaveRequest.comm): all of them call
 * saver_save, saver_save_now and saver_finish after the same steps. Every rank then learns of an error from
 * the same call; so as not to part them, saver_poll says nothing. */
#ifndef PGPT_CHECKPOINT_SAVER_H
#define PGPT_CHECKPOINT_SAVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/text/log.h"
#include "checkpoint/checkpoint.h"
#include "graph/executor.h"

enum { SAVER_MAX_ARRAYS = CHECKPOINT_MAX_ARRAYS };

/* What to save, where to, and what to keep. Pointers must stay good until the save is done; the tensors'
 * contents are free again when saver_save returns. */
typedef struct {
    const char *run;
    const ModelConfig *config;
    const ParameterTable *table;
    Executor *executor;
    const Tensor *array[SAVER_MAX_ARRAYS]; /* this rank's: the parameters, then state.n_moments moments */
    const ShardMap *parameters_saved, *moments_saved; /* as in CheckpointSource */
    const ShardMap *owner_error_saved, *error_saved;  /* likewise, of the arrays behind the moments */
    int error_rank;
    int64_t n_basis; /* of the array behind the errors, as in CheckpointSource */
    uint64_t basis_identity;
    CheckpointState state;
    int64_t keep_last; /* see checkpoint_prune */
    bool keep_best;
    /* Of all ranks, and used by nobody else as long as the saver lives; NULL: this process is alone. */
    Comm *comm;
    Activity *activity; /* that is told, in this track; NULL: nobody */
    int track;
    const Log *log;        /* for what is no error; NULL: nobody */
    FolderIdentity folder; /* as in CheckpointSource */
} SaveRequest;

typedef struct {
    bool in_background;
    int n_arrays;
    DType type[SAVER_MAX_ARRAYS];      /* of each, here, in the copies and in the file */
    int n_errors;                      /* of the last arrays: two are errors, a third is a basis */
    bool packs;                        /* the copies hold what is saved, and nothing else */
    int most_runs[SAVER_MAX_ARRAYS];   /* of the maps of what is packed */
    ShardRun *runs[SAVER_MAX_ARRAYS];  /* room for them, as they lie in the copy, */
    ShardMap packed[SAVER_MAX_ARRAYS]; /* and the maps */
    Arena arena;
    size_t copy_bytes[SAVER_MAX_ARRAYS];
    void *copy[SAVER_MAX_ARRAYS]; /* what the thread writes; NULL in the foreground */
    int64_t saved_step;           /* of the last checkpoint known to be on the disk, -1 if there is none */
    SaveRequest request;          /* of the save under way, or the last one */
    Error result;                 /* its outcome: what went wrong, */
    bool is_written;              /* whether the checkpoint is there, */
    Error not_removed;            /* and which of the old ones could not be removed */
    char warning[sizeof((Error *)0)->text]; /* the last that was said of it */
    pthread_t thread;
    bool is_under_way;   /* the thread has not been joined */
    atomic_bool is_done; /* it will not touch anything any more */
} Saver;

/* For whole arrays of these 1 + n_moments types: copies are taken of all of them. */
void saver_plan(Saver *saver, const ParameterTable *table, const DType *types, int n_moments,
                bool in_background);

/* For what a rank saves of its arrays by these maps, and others with no more runs and elements: copies are
 * taken of that only. The maps need not stay. */
void saver_plan_parts(Saver *saver, const ShardMap *parameters, const ShardMap *moments, const DType *types,
                      int n_moments, bool in_background);

/* Two more arrays, of errors in f32, by these maps (the first may be NULL); behind saver_plan_parts. */
void saver_plan_errors(Saver *saver, const ShardMap *owner_error, const ShardMap *error);

/* And a basis of so many numbers in f32, where there is one on other ranks too; behind saver_plan_errors. */
void saver_plan_basis(Saver *saver, int64_t n_basis);

/* What saver_open allocates, and what it has allocated: the copies. */
size_t saver_planned_bytes(const Saver *saver);
size_t saver_allocated_bytes(const Saver *saver);

Status saver_open(Saver *saver, Error *error);
void saver_close(Saver *saver); /* completes a save under way; safe after a failed open, and twice */

/* Save and prune. A step that was saved already is not saved again. */
Status saver_save(Saver *saver, const SaveRequest *request, Error *error);

/* The same, returning when it is on the disk; takes no copy. */
Status saver_save_now(Saver *saver, const SaveRequest *request, Error *error);

/* The error of a save that has ended since, without waiting. Of several ranks none: they might learn of it
 * after different steps. */
Status saver_poll(Saver *saver, Error *error);

/* Wait for the save under way, if there is one. */
Status saver_finish(Saver *saver, Error *error);

#endif
