/* Finding a checkpoint and verifying it.
 *
 * A checkpoint is verified whole before anything of it is used: the manifest by its own checksum, then size
 * and checksum of every file that it names, then each file's inner order by safetensors_open, then that all
 * of them together make up the model (checkpoint_index.c). What fails any of that is damaged; in a run's
 * folder the one before it is tried, and the caller is told in a warning, never silently.
 *
 * Several ranks must end with the same one. Rank 0 chooses: it looks for the next candidate whose manifest
 * and sizes are right and tells the others. They must find there what it has found; a rank that does not
 * looks at another disk, which is an error, not damage, since passing over a checkpoint would mend nothing.
 * The checksums, which mean reading everything, are shared out by files. Damage found by any rank sends all
 * of them back for the next candidate. Alone, the same goes without anybody to tell. */
#include "checkpoint/checkpoint_index.h"

#include "checkpoint/checkpoint_together.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The checkpoints that come into question, the preferred one first. Rank 0's. */
typedef struct {
    CheckpointEntry *entry;
    int n_entries, next;
    bool is_named; /* by the user: there is no other one to take */
    const char *folder;
    CheckpointChoice choice;
    int n_listed; /* how often */
    Error damage; /* of the first */
    Arena arena;
} Candidates;

/* What rank 0 has chosen. */
typedef struct {
    Error error; /* there is nothing to choose */
    uint64_t manifest_checksum;
    char path[PATH_MAX], run[PATH_MAX];
    char warning[sizeof((Checkpoint *)0)->warning];
} Choice;

void checkpoint_close(Checkpoint *checkpoint) {
    for (int i = 0; i < checkpoint->n_files; i++) safetensors_close(&checkpoint->file[i]);
    parameters_free(&checkpoint->table);
    arena_free(&checkpoint->arena);
    *checkpoint = (Checkpoint){0};
}

/* ---- finding */

static bool is_folder(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* The folder `levels` above a path, which must exist; from the arena. */
static char *folder_above(const char *path, int levels, Arena *arena) {
    char *real = realpath(path, NULL);
    char *above = arena_strdup(arena, real ? real : path);
    free(real);
    for (; levels > 0; levels--) {
        char *slash = strrchr(above, '/');
        if (slash) slash[slash == above] = 0;
    }
    return above;
}

/* Put the best in front of the others. */
static void prefer_best(CheckpointEntry *entries, int n_entries) {
    for (int i = 0; i < n_entries; i++) checkpoint_inspect(&entries[i]);
    int best = checkpoint_best(entries, n_entries);
    if (best <= 0) return;
    CheckpointEntry kept = entries[best];
    memmove(entries + 1, entries, sizeof *entries * (size_t)best);
    entries[0] = kept;
}

static Status list_candidates(Candidates *candidates, Error *error) {
    candidates->next = 0;
    candidates->n_listed++;
    TRY(checkpoint_list(candidates->folder, &candidates->arena, &candidates->entry, &candidates->n_entries,
                        error));
    if (candidates->n_entries == 0) {
        return error_user(error,
                          "there is no checkpoint in %s yet; train first (pgpt train), or name another run",
                          candidates->folder);
    }
    if (candidates->choice == CHECKPOINT_BEST) prefer_best(candidates->entry, candidates->n_entries);
    return STATUS_OK;
}

/* The run's folder, NULL after an error. */
static const char *find_candidates(Candidates *candidates, const char *path, Error *error) {
    Arena *arena = &candidates->arena;
    if (!is_folder(path)) {
        if (file_exists(path))
            error_user(error, "%s is a file; name a run's folder or one of its checkpoints", path);
        else error_user(error, "there is no folder %s; train first (pgpt train), or name a run", path);
        return NULL;
    }
    if (file_exists(arena_printf(arena, "%s/manifest.json", path))) {
        CheckpointEntry named = {.path = path, .name = path};
        candidates->entry = arena_copy(arena, &named, sizeof named);
        candidates->n_entries = 1;
        candidates->is_named = true;
        return folder_above(path, 2, arena);
    }
    const char *inner = arena_printf(arena, "%s/checkpoints", path);
    candidates->folder = is_folder(inner) ? inner : path;
    if (list_candidates(candidates, error) != STATUS_OK) return NULL;
    return candidates->folder == inner ? path : folder_above(path, 1, arena);
}

/* ---- verifying */

static bool is_wanted(const ManifestFile *file, bool with_optimizer) {
    return with_optimizer || !file->is_optimizer;
}

/* Known before gigabytes are read. */
static Status check_size(const char *path, const ManifestFile *file, Error *error) {
    struct stat facts;
    if (stat(path, &facts) != 0 || access(path, R_OK) != 0)
        return error_user(error, "%s cannot be read: %s", path, strerror(errno));
    if ((uint64_t)facts.st_size == file->n_bytes) return STATUS_OK;
    return error_user(error, "%s has %lld bytes where the manifest states %llu: it is damaged", path,
                      (long long)facts.st_size, (unsigned long long)file->n_bytes);
}

static Status check_checksum(const char *path, const ManifestFile *file, Error *error) {
    uint64_t checksum, n_bytes;
    TRY(checksum_file(path, &checksum, &n_bytes, error));
    if (checksum == file->checksum && n_bytes == file->n_bytes) return STATUS_OK;
    return error_user(error, "%s does not have the checksum that the manifest states: it is damaged", path);
}

/* Check the files that are wanted: all of them, or every n-th from a first one on. */
static Status check_files(const char *folder, const Manifest *manifest, bool with_optimizer,
                          Status (*check)(const char *, const ManifestFile *, Error *), int first, int every,
                          Error *error) {
    Arena arena = {0};
    for (int i = 0, n = 0; i < manifest->n_files && error->status == STATUS_OK; i++) {
        const ManifestFile *file = &manifest->file[i];
        if (!is_wanted(file, with_optimizer) || n++ % every != first) continue;
        check(arena_printf(&arena, "%s/%s", folder, file->name), file, error);
    }
    arena_free(&arena);
    return error->status;
}

static Status read_manifest(const char *folder, Manifest *manifest, Arena *arena, bool with_optimizer,
                            Error *error) {
    TRY(manifest_read(arena_printf(arena, "%s/manifest.json", folder), manifest, arena, error));
    return check_files(folder, manifest, with_optimizer, check_size, 0, 1, error);
}

/* ---- choosing, on rank 0 */

/* The run may be going on, and remove old checkpoints while we look at them: then there are newer ones to
 * look at. */
static bool has_moved_on(Candidates *candidates) {
    enum { MOST_TIMES = 1000 };
    if (!candidates->entry) return false;
    const CheckpointEntry *entry = &candidates->entry[candidates->next];
    struct stat facts;
    Error ignored = {0};
    if (candidates->is_named || candidates->n_listed >= MOST_TIMES || lstat(entry->path, &facts) == 0)
        return false;
    return list_candidates(candidates, &ignored) == STATUS_OK;
}

static void note_damage(Candidates *candidates, const Error *damage) {
    if (has_moved_on(candidates)) return;
    if (candidates->next++ == 0) candidates->damage = *damage;
}

static Status copy_path(char copy[PATH_MAX], const char *path, Error *error) {
    if (snprintf(copy, PATH_MAX, "%s", path) < PATH_MAX) return STATUS_OK;
    return error_user(error, "the path %.80s... is longer than %d bytes", path, PATH_MAX - 1);
}

/* The next candidate that looks right from outside. */
static void choose(Candidates *candidates, bool with_optimizer, Choice *choice) {
    while (candidates->next < candidates->n_entries) {
        const CheckpointEntry *entry = &candidates->entry[candidates->next];
        Arena arena = {0};
        Manifest manifest;
        Error damage = {0};
        if (read_manifest(entry->path, &manifest, &arena, with_optimizer, &damage) == STATUS_OK) {
            choice->manifest_checksum = manifest.checksum;
            copy_path(choice->path, entry->path, &choice->error);
            if (candidates->next > 0) {
                snprintf(choice->warning, sizeof choice->warning,
                         "%.700s; using %s instead, %d checkpoint%s passed over", candidates->damage.text,
                         entry->name, candidates->next, candidates->next == 1 ? " was" : "s were");
            }
        } else {
            note_damage(candidates, &damage);
        }
        arena_free(&arena);
        if (damage.status == STATUS_OK) return;
    }
    choice->error = candidates->damage;
    if (candidates->is_named) {
        error_suffix(
            &choice->error,
            "; name another checkpoint, or the run's folder, of which the newest that is whole is taken");
        return;
    }
    choice->error = (Error){0};
    error_user(&choice->error, "no checkpoint in %s can be used; the newest: %.700s; restore one from a copy",
               candidates->folder, candidates->damage.text);
}

/* ---- opening what was chosen, on every rank */

/* What rank 0 has found must be there for this rank too. */
static Status see(Checkpoint *checkpoint, const Choice *choice, bool with_optimizer, Manifest *manifest,
                  Error *error) {
    checkpoint->path = arena_strdup(&checkpoint->arena, choice->path);
    checkpoint->run = arena_strdup(&checkpoint->arena, choice->run);
    memcpy(checkpoint->warning, choice->warning, sizeof checkpoint->warning);
    if (read_manifest(choice->path, manifest, &checkpoint->arena, with_optimizer, error) == STATUS_OK &&
        manifest->checksum != choice->manifest_checksum)
        error_user(error, "%s/manifest.json is not the one that rank 0 has", choice->path);
    return error->status;
}

static Status open_files(Checkpoint *checkpoint, const Manifest *manifest, bool with_optimizer,
                         Error *error) {
    checkpoint->state = manifest->state;
    checkpoint->config = manifest->config;
    checkpoint->version = manifest->version;
    TRY(parameters_build(&checkpoint->table, &checkpoint->config, error));
    return checkpoint_index_open(checkpoint, manifest, with_optimizer, error);
}

/* False, with the damage, if another one must be tried; errors are those that no other one would mend. */
static bool open_chosen(Checkpoint *checkpoint, Comm *comm, const Choice *choice, bool with_optimizer,
                        Error *damage, Error *error) {
    Manifest manifest;
    int n_ranks = checkpoint_n_ranks(comm);
    if (see(checkpoint, choice, with_optimizer, &manifest, n_ranks > 1 ? error : damage) != STATUS_OK &&
        n_ranks > 1)
        error_suffix(error, "; a run's folder must be on a file system that all ranks share");
    if (checkpoint_agree(comm, error) != STATUS_OK) return true;
    if (damage->status == STATUS_OK)
        check_files(choice->path, &manifest, with_optimizer, check_checksum, checkpoint_rank(comm), n_ranks,
                    damage);
    if (checkpoint_agree(comm, damage) != STATUS_OK) return false;
    open_files(checkpoint, &manifest, with_optimizer, damage);
    return checkpoint_agree(comm, damage) == STATUS_OK;
}

Status checkpoint_open_together(Checkpoint *checkpoint, Comm *comm, const char *path, CheckpointChoice choice,
                                bool with_optimizer, Error *error) {
    *checkpoint = (Checkpoint){0};
    Candidates candidates = {.choice = choice};
    const char *run = NULL;
    Error found = {0};
    if (checkpoint_rank(comm) == 0) run = find_candidates(&candidates, path, &found);
    for (;;) {
        Choice chosen = {.error = found};
        Error damage = {0};
        if (run) copy_path(chosen.run, run, &chosen.error);
        if (run && chosen.error.status == STATUS_OK) choose(&candidates, with_optimizer, &chosen);
        TRY_GOTO(checkpoint_part(comm, &chosen, sizeof chosen, error), done);
        *error = chosen.error;
        if (error->status != STATUS_OK) break;
        if (open_chosen(checkpoint, comm, &chosen, with_optimizer, &damage, error)) break;
        checkpoint_close(checkpoint);
        if (checkpoint_rank(comm) == 0) note_damage(&candidates, &damage);
    }
done:
    if (error->status != STATUS_OK) checkpoint_close(checkpoint);
    arena_free(&candidates.arena);
    return error->status;
}

Status checkpoint_open(Checkpoint *checkpoint, const char *path, CheckpointChoice choice, bool with_optimizer,
                       Error *error) {
    return checkpoint_open_together(checkpoint, NULL, path, choice, with_optimizer, error);
}
