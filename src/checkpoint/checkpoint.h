/* Checkpoints: a run's model and optimizer at one step, in a folder of its own.
 *
 *     RUN/checkpoints/step-00000120/model.safetensors       parameters by name, as in the parameter table
 *                                   optimizer.safetensors   the same names behind "moment1.", "moment2."
 *                                   owner_errors..., errors..., basis...   where ranks compress
 *                                   manifest.json           what it is, and size and checksum of both
 *
 * Each array is stored in the type that the run keeps it in: F32, or BF16 or F16 in pure 16-bit training.
 * Reading gives f32 from all of them, exactly, so that a run may go on in another precision than it was
 * saved in.
 *
 * Several ranks write side by side, each what it holds: model-00002-of-00004.safetensors is that of rank 1
 * of 4. A tensor that one rank has whole is stored as before; of others each rank stores its parts: ranges
 * of the elements in the order of the rows, NAME[first:end], or boxes, NAME[0:64,128:256] (part_name.h).
 * Who loads sees whole tensors again and need not know how the run that saved them was spread over
 * machines; nor does it matter how its own is.
 *
 * The folder is written under a temporary name and renamed when all of it is on the disk, so whatever has
 * its final name is complete. What was left by a process that died is ignored, and removed by the next
 * prune. One run writes to a run's folder. */
#ifndef PGPT_CHECKPOINT_CHECKPOINT_H
#define PGPT_CHECKPOINT_CHECKPOINT_H

#include "base/file/folder.h"
#include "base/text/json.h"
#include "checkpoint/safetensors.h"
#include "comm/comm.h"
#include "model/parameters.h"
#include "parallel/sync/shard_map.h"

/* Where a run stands, besides its tensors. */
typedef struct {
    int64_t step;        /* optimizer steps done */
    int64_t n_sequences; /* consumed: the data position */
    int64_t n_tokens;    /* likewise in tokens */
    int64_t seed;
    uint64_t data_hash, tokenizer_hash;
    double validation_loss; /* NAN when it was not measured */
    /* What f16 gradients are multiplied by, how long it has been so, and steps that were skipped; 0 where
     * they are not. */
    double loss_scale;
    int64_t n_good_steps, n_skipped_steps;
    /* What routers without a balance loss choose by, of the whole model: (blocks with experts, E). NULL: it
     * has none, or all are 0. Where several ranks save, the first has it. */
    const float *router_bias;
    int64_t n_router_biases;
    /* What ranks that compress have left over (parallel/compress): arrays of errors, one a rank, and whether
     * owners have errors too; how many updates a variance that is frozen has had. */
    int n_errors;
    bool has_owner_error;
    int64_t n_variance_updates;
    bool is_frozen; /* and it is: behind the first compressed step */
    /* Of a run that was begun so and goes on as exact, without errors: the updates that the variance has
     * missed meanwhile. */
    int64_t n_frozen_steps;
    /* What else a way to compress goes by: exact steps, as the run itself has found them (0: it has not); the
     * variance's norm when it last looked (0: never); numbers of the tensors, by rows in the order of the
     * model's table (NULL: none). */
    int64_t n_exact_steps;
    double variance_norm;
    const float *coefficients;
    int64_t n_coefficients;
    /* Of updates that are a step late: is one to come, of the gradient that is the last of the moments, by
     * this factor and learning rate? */
    bool has_late;
    double late_factor, late_rate;
    const char *optimizer; /* "adamw"; a loaded one belongs to the Checkpoint */
    int n_moments;         /* flat arrays beside the parameters */
} CheckpointState;

/* A rank has up to three more arrays where it compresses: behind the moments, the errors of what it owns and
 * its own; and the basis of gradients in low rank. */
enum {
    CHECKPOINT_MAX_MOMENTS = 4,
    CHECKPOINT_MAX_ERRORS = 1 << 20,
    CHECKPOINT_MAX_ARRAYS = 1 + CHECKPOINT_MAX_MOMENTS + 3
};

/* ---- Saving */

/* What to save: flat arrays laid out by the table, on the host or where only `read` gets at them, each in
 * a type of its own (f32 or one of 16 bits), which is that of the file. Nothing of it may change until the
 * save returns; with a copy, the save may run in a thread of its own. */
typedef struct {
    const ModelConfig *config; /* complete */
    const ParameterTable *table;
    const void *parameters;
    const void *moment[CHECKPOINT_MAX_MOMENTS]; /* state->n_moments of them */
    const void *owner_error, *error;            /* where state->n_errors: in f32 */
    int error_rank;                             /* which of the state->n_errors arrays `error` is */
    /* What gradients in low rank begin with (parallel/compress/lowrank_sync.h), n_basis numbers in f32 that
     * are known by what they belong to; 0: this rank has none to save. No elements of parameters. */
    const void *basis;
    int64_t n_basis;
    uint64_t basis_identity;
    DType type[CHECKPOINT_MAX_ARRAYS]; /* of array 0, the parameters, and 1 + i, moment i; {0}: f32 */
    const CheckpointState *state;
    /* If set, instead of the arrays: elements first .. first + n - 1 of one of them, in its type. */
    Status (*read)(void *context, int array, int64_t first, int64_t n, void *values, Error *error);
    void *context;
    /* Several ranks (NULL: this process is alone): arrays are this rank's own, and it writes those
     * elements of them that its maps have (NULL: all), unless another rank owns them (ShardBox). A table
     * of a part has its own arrays and maps, and says which boxes of the tensors they are. What all ranks
     * write has every element of every tensor once; padding between parameters does not matter. Nothing
     * else may use the communicator meanwhile. */
    Comm *comm;
    const ShardMap *parameters_saved, *moments_saved;
    const ShardMap *owner_error_saved, *error_saved; /* of errors: together n_errors times everything */
    FolderIdentity folder; /* of the run, which must still have its name; {0}: any will do */
} CheckpointSource;

/* Write RUN/checkpoints/step-NNNNNNNN, making folders as needed and replacing one of the same step. After
 * an error (a full disk, say) nothing is left of it, and what was there before is untouched. Collective:
 * what goes wrong on one rank is every rank's error. */
Status checkpoint_save(const char *run, const CheckpointSource *source, Error *error);

/* Remove old checkpoints: all but the last `keep_last` (0 keeps all) up to step `written`, that one
 * included, and, if wanted, the one with the lowest validation loss. Incomplete ones do not count and go
 * too, as does whatever interrupted saves left behind. Later steps are left alone: they are not of this
 * run's past. A checkpoint with something in it that no save has written stays whole. The error is the
 * first of what could not be removed; it is no reason to end a run. Call it after a save, not during one,
 * and on one rank only. */
Status checkpoint_prune(const char *run, int64_t written, int64_t keep_last, bool keep_best, Error *error);

/* The disk space that one save takes: of the arrays exactly, by their 1 + n_moments types, and of the
 * headers nearly. */
uint64_t checkpoint_bytes(const ParameterTable *table, const DType *types, int n_moments);
uint64_t checkpoint_error_bytes(const ParameterTable *table, const CheckpointState *state); /* and these */

/* ---- Loading
 *
 *     Checkpoint checkpoint;
 *     TRY(checkpoint_open(&checkpoint, "runs/latest", CHECKPOINT_NEWEST, true, error));
 *     if (checkpoint.warning[0]) log_warning(&logger, "%s", checkpoint.warning);
 *     TRY_GOTO(parameters_build(&table, &checkpoint.config, error), done);
 *     TRY_GOTO(checkpoint_read_parameters(&checkpoint, &table, flat, error), done);
 * done:
 *     checkpoint_close(&checkpoint); */

typedef enum { CHECKPOINT_NEWEST, CHECKPOINT_BEST } CheckpointChoice;

typedef struct CheckpointTensor CheckpointTensor; /* checkpoint_index.h: where its elements are */

typedef struct {
    char *path;         /* the checkpoint's folder */
    char *run;          /* the run's folder, where tokenizer.json lies */
    char warning[1024]; /* "" unless newer checkpoints were damaged and passed over */
    CheckpointState state;
    ModelConfig config;   /* complete */
    const char *version;  /* of the pgpt that wrote it */
    ParameterTable table; /* of the configuration: every tensor that there is */
    SafetensorsFile *file;
    int n_files;
    const char **basis_path; /* of files with such, if the optimizer's tensors were wanted */
    int n_basis_files;
    const CheckpointTensor
        *tensor;  /* the table's parameters, then, if they were wanted, those of every moment */
    int n_arrays; /* 1, or with the moments */
    Arena arena;
} Checkpoint;

/* `path` is a run's folder (or its checkpoints/), of which the newest or best complete checkpoint is
 * taken; or a checkpoint's folder itself. Sizes and checksums are verified, the optimizer's only if it is
 * wanted, and that every element of every tensor is there once. A damaged checkpoint is passed over for
 * the one before it, with a warning; named itself, it is an error. */
Status checkpoint_open(Checkpoint *checkpoint, const char *path, CheckpointChoice choice, bool with_optimizer,
                       Error *error);

/* The same on several ranks (comm may be NULL): they share the work, and all have the same checkpoint with
 * the same warning, or the same error. Collective. */
Status checkpoint_open_together(Checkpoint *checkpoint, Comm *comm, const char *path, CheckpointChoice choice,
                                bool with_optimizer, Error *error);
void checkpoint_close(Checkpoint *checkpoint); /* safe after a failed open, and twice */

/* The tensors must be those of the table's model, all of them, in its shapes; a checkpoint of another
 * model is a user's error that names the first tensor that differs. The table may be that of a part of the
 * model. */
Status checkpoint_check(const Checkpoint *checkpoint, const ParameterTable *table, Error *error);

/* Into a flat array laid out by the table; `moment` counts from 0. */
Status checkpoint_read_parameters(const Checkpoint *checkpoint, const ParameterTable *table, float *flat,
                                  Error *error);
Status checkpoint_read_moment(const Checkpoint *checkpoint, const ParameterTable *table, int moment,
                              float *flat, Error *error);

/* The elements that a map has, of the parameters (moment -1) or a moment, into the array of map->n_local
 * elements that it describes: a rank's share, in whatever layout. What belongs to no parameter becomes 0. */
Status checkpoint_read_map(const Checkpoint *checkpoint, const ParameterTable *table, int moment,
                           const ShardMap *map, float *local, Error *error);

/* The same of errors: those of owners, or of rank `rank` of those that saved them. */
enum { CHECKPOINT_OWNER_ERROR = -1 };
Status checkpoint_read_error(const Checkpoint *checkpoint, const ParameterTable *table, int rank,
                             const ShardMap *map, float *local, Error *error);

/* The basis that is known as this, of n numbers; is_there false: it was not saved. */
Status checkpoint_read_basis(const Checkpoint *checkpoint, uint64_t identity, int64_t n, float *values,
                             bool *is_there, Error *error);

/* Elements first .. first + n - 1 of what the table holds of one parameter (moment -1) or of one of its
 * moments. */
Status checkpoint_read_part(const Checkpoint *checkpoint, const Parameter *parameter, int moment,
                            int64_t first, int64_t n, float *values, Error *error);

/* Any box of the whole tensor. */
Status checkpoint_read_box(const Checkpoint *checkpoint, const Parameter *parameter, int moment,
                           const Box *box, float *values, Error *error);

/* ---- The model's configuration as JSON, by the names of its options. A field that is missing has its
 * default; one that is unknown is an error. Texts go to the arena. */
json_t *checkpoint_config_json(const ModelConfig *config);
Status checkpoint_config_read(const json_t *object, const char *path, ModelConfig *config, Arena *arena,
                              Error *error);

/* A model that is trained further must be the one that was saved, in every option that makes its
 * architecture, also where the shapes would be the same (--heads, --mlp): a user's error names the first that
 * differs. */
Status checkpoint_check_config(const ModelConfig *saved, const ModelConfig *wanted, Error *error);

#endif
