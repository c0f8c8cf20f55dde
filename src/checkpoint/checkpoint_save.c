/* Saving checkpoints, so that a crash between any two system calls leaves only complete ones under final
 * names.
 *
 * A save writes its folder under "step-00000120.tmp.<pid>": each file is synced as it is finished, the
 * manifest comes last, then one rename makes the folder a checkpoint. Where the step was saved before, the
 * two folders are exchanged in one system call. Removal goes the other way: a folder first loses its name,
 * then its files (checkpoint_folder.c).
 *
 * Several ranks do it in three steps, each ended by a word with the others, so that nobody goes on with what
 * failed elsewhere: rank 0 makes the folder and tells its name; all write their own files; rank 0 collects
 * their sizes and checksums, writes the manifest and gives the folder its name. Only rank 0 makes, renames
 * and removes folders, and removes one only when nobody writes there any more. Alone, the same steps have
 * nobody to talk to. */
#include "checkpoint/checkpoint_manifest.h"

#include "base/text/format.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_part.h"
#include "checkpoint/checkpoint_together.h"

#include <stdio.h>
#include <unistd.h>

/* ---- saving */

uint64_t checkpoint_bytes(const ParameterTable *table, const DType *types, int n_moments) {
    enum { HEADER_BYTES_A_TENSOR = 160, OTHER_BYTES = 16384 };
    uint64_t n_bytes = OTHER_BYTES;
    for (int i = 0; i <= n_moments; i++)
        n_bytes += dtype_info(types[i])->n_bytes * (uint64_t)table->n_whole_elements +
                   HEADER_BYTES_A_TENSOR * (uint64_t)table->n_whole_parameters;
    return n_bytes;
}

uint64_t checkpoint_error_bytes(const ParameterTable *table, const CheckpointState *state) {
    DType f32[1] = {DTYPE_F32};
    return ((uint64_t)state->n_errors + state->has_owner_error) * checkpoint_bytes(table, f32, 0);
}

static Status check_source(const char *run, const CheckpointSource *source, Error *error) {
    enum { BYTES_A_RANK = 16384 }; /* of headers and names of pieces */
    const CheckpointState *state = source->state;
    if (state->step < 0 || state->n_moments < 0 || state->n_moments > CHECKPOINT_MAX_MOMENTS) {
        return error_failed(error, "a checkpoint of step %lld with %d moments cannot be saved",
                            (long long)state->step, state->n_moments);
    }
    for (int i = 0; i <= state->n_moments; i++) {
        if (!dtype_info(source->type[i])->is_float)
            return error_failed(error, "a checkpoint of numbers of type %s cannot be saved",
                                dtype_info(source->type[i])->name);
    }
    if (!folder_is_same(run, source->folder))
        return error_user(
            error,
            "the folder %s is not the one that the run began in: it was moved, removed or replaced "
            "meanwhile; move it back, and what is saved goes there again",
            run);
    uint64_t needed = checkpoint_bytes(source->table, source->type, state->n_moments) +
                      checkpoint_error_bytes(source->table, state);
    uint64_t room = file_free_bytes(run);
    needed += (uint64_t)BYTES_A_RANK * (uint64_t)(checkpoint_n_ranks(source->comm) - 1);
    if (needed <= room) return STATUS_OK;
    return error_user(
        error,
        "no room for a checkpoint in %s: it needs %s and %s are free; make room or choose another disk", run,
        format_bytes(needed).text, format_bytes(room).text);
}

/* Where a save goes. */
typedef struct {
    const char *folder;         /* of the run's checkpoints */
    const char *name;           /* of this one, in it */
    const char *temporary_name; /* until it is complete */
    const char *temporary;      /* the path of that */
} Places;

static Places places_of(const char *run, int64_t step, int64_t process, Arena *arena) {
    Places places = {.folder = arena_printf(arena, "%s/checkpoints", run),
                     .name = checkpoint_name(step, arena),
                     .temporary_name = checkpoint_temporary_name(step, process, arena)};
    places.temporary = arena_printf(arena, "%s/%s", places.folder, places.temporary_name);
    return places;
}

/* Rank 0's first step: what it tells the others. */
typedef struct {
    Error error;
    int64_t step, process; /* which name the folder */
} Start;

static void prepare(const char *run, const CheckpointSource *source, Start *start) {
    *start = (Start){.step = source->state->step, .process = getpid()};
    Arena arena = {0};
    Places places = places_of(run, start->step, start->process, &arena);
    TRY_GOTO(check_source(run, source, &start->error), done);
    TRY_GOTO(file_make_folders(places.folder, &start->error), done);
    checkpoint_begin(places.folder, places.temporary_name, &start->error);
done:
    arena_free(&arena);
}

/* Every rank's step: its own files. */
static Status write_part(const char *temporary, const CheckpointSource *source, const Start *start,
                         CheckpointPart *part, Error *error) {
    *part = (CheckpointPart){0};
    if (source->state->step != start->step) {
        return error_failed(error, "it saves step %lld while rank 0 saves step %lld",
                            (long long)source->state->step, (long long)start->step);
    }
    if (!file_exists(temporary)) {
        return error_user(error,
                          "cannot see %s, which rank 0 has made; put the run's folder on a file system that "
                          "all ranks share",
                          temporary);
    }
    return checkpoint_part_write(temporary, source, checkpoint_rank(source->comm),
                                 checkpoint_n_ranks(source->comm), part, error);
}

/* Every rank's part, on rank 0; from the arena. */
static Status collect_parts(Comm *comm, const CheckpointPart *part, CheckpointPart **parts, Arena *arena,
                            Error *error) {
    enum { N_WORDS = sizeof *part / sizeof(int64_t) };
    int n_ranks = checkpoint_n_ranks(comm);
    *parts = ARENA_ARRAY(arena, CheckpointPart, n_ranks);
    **parts = *part;
    if (n_ranks == 1) return STATUS_OK;
    int64_t *border = ARENA_ARRAY(arena, int64_t, n_ranks + 1);
    for (int i = 0; i <= n_ranks; i++) border[i] = (int64_t)N_WORDS * i;
    return comm_gather(comm, *parts, border, part, N_WORDS, COMM_I64, 0, error);
}

/* Rank 0's last step. */
static Status complete(const Places *places, const CheckpointSource *source, const CheckpointPart *parts,
                       Error *error) {
    TRY(checkpoint_parts_seal(places->temporary, source, parts, checkpoint_n_ranks(source->comm), error));
    return checkpoint_publish(places->folder, places->temporary_name, places->name, error);
}

Status checkpoint_save(const char *run, const CheckpointSource *source, Error *error) {
    Comm *comm = source->comm;
    bool is_first = checkpoint_rank(comm) == 0;
    Arena arena = {0};
    Start start = {0};
    if (is_first) prepare(run, source, &start);
    TRY(checkpoint_part(comm, &start, sizeof start, error));
    if (start.error.status != STATUS_OK) {
        *error = start.error;
        return error->status;
    }
    Places places = places_of(run, start.step, start.process, &arena);
    CheckpointPart part, *parts = NULL;
    write_part(places.temporary, source, &start, &part, error);
    if (checkpoint_agree(comm, error) == STATUS_OK) collect_parts(comm, &part, &parts, &arena, error);
    if (is_first && error->status == STATUS_OK) complete(&places, source, parts, error);
    if (is_first && error->status != STATUS_OK) checkpoint_abandon(places.folder, places.temporary_name);
    checkpoint_part_outcome(comm, error); /* and nobody returns before rank 0 has cleared up */
    arena_free(&arena);
    return error->status;
}
