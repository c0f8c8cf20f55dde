/* Whatever is removed here was written by a save: folders that are called as checkpoints are, with files in
 * them that are called as theirs are. Where something else lies among them the whole checkpoint is left as it
 * is, and said so.
 *
 * RUN/checkpoints must be a folder itself: through a link, the names in it could be anybody's. */
#define _GNU_SOURCE /* renameat2 */
#include "checkpoint/checkpoint_folder.h"

#include "base/file/file.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/checkpoint_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Names */

const char *checkpoint_name(int64_t step, Arena *arena) {
    return arena_printf(arena, "step-%08lld", (long long)step);
}

const char *checkpoint_temporary_name(int64_t step, int64_t process, Arena *arena) {
    return arena_printf(arena, "step-%08lld.tmp.%lld", (long long)step, (long long)process);
}

/* How many bytes at the beginning of a name are "step-00000120"; 0: it begins otherwise. */
static size_t step_bytes(const char *name) {
    enum { FEWEST_DIGITS = 8, MOST_DIGITS = 18 };
    if (strncmp(name, "step-", 5) != 0) return 0;
    size_t n_digits = strspn(name + 5, "0123456789");
    return n_digits >= FEWEST_DIGITS && n_digits <= MOST_DIGITS ? 5 + n_digits : 0;
}

int64_t checkpoint_name_step(const char *name) {
    size_t n = step_bytes(name);
    return n && !name[n] ? strtoll(name + 5, NULL, 10) : -1;
}

/* "step-00000120.tmp.4711", or with ".old" before it, of one that was being removed. */
static bool is_temporary(const char *name) {
    size_t n = step_bytes(name);
    return n && (path_is_temporary(name + n, "") || path_is_temporary(name + n, ".old"));
}

/* model.safetensors, or of rank 1 of 4: model-00002-of-00004.safetensors; with ".tmp.4711" while it is
 * written. */
static bool is_tensor_file(const char *name, const char *stem) {
    size_t n_stem = strlen(stem);
    if (strncmp(name, stem, n_stem) != 0) return false;
    const char *rest = name + n_stem, *ending = ".safetensors";
    if (*rest == '-') {
        size_t n_rank = strspn(rest + 1, "0123456789");
        if (!n_rank || strncmp(rest + 1 + n_rank, "-of-", 4) != 0) return false;
        rest += 1 + n_rank + 4;
        size_t n_ranks = strspn(rest, "0123456789");
        if (!n_ranks) return false;
        rest += n_ranks;
    }
    return strcmp(rest, ending) == 0 || path_is_temporary(rest, ending);
}

static bool is_checkpoint_file(const char *name) {
    for (int i = 0; i < CHECKPOINT_PART_FILES; i++)
        if (is_tensor_file(name, checkpoint_part_names[i])) return true;
    return strcmp(name, "manifest.json") == 0 || path_is_temporary(name, "manifest.json");
}

/* ---- Making */

Status checkpoint_begin(const char *folder, const char *temporary, Error *error) {
    Folder checkpoints;
    TRY(folder_open(&checkpoints, folder, error));
    if (folder_remove(&checkpoints, temporary, is_checkpoint_file, error) == STATUS_OK)
        folder_make(&checkpoints, temporary, error);
    folder_close(&checkpoints);
    return error->status;
}

/* A checkpoint first loses its name, then its files, so that no half of one has it. */
static Status remove_checkpoint(const Folder *checkpoints, const char *name, Error *error) {
    Arena arena = {0};
    int at = checkpoints->descriptor;
    const char *temporary = arena_printf(&arena, "%s.old.tmp.%ld", name, (long)getpid());
    TRY_GOTO(folder_check(checkpoints, name, is_checkpoint_file, error), done);
    if (renameat(at, name, at, temporary) == 0)
        folder_remove(checkpoints, temporary, is_checkpoint_file, error);
    else error_user(error, "cannot remove %s/%s: %s", checkpoints->path, name, strerror(errno));
done:
    arena_free(&arena);
    return error->status;
}

static Status publish(const Folder *checkpoints, const char *temporary, const char *name, Error *error) {
    int at = checkpoints->descriptor;
    if (renameat(at, temporary, at, name) == 0) return STATUS_OK;
    /* The same step again. Where folders cannot be exchanged, there is a moment without either. */
    if (folder_look(checkpoints, name) != ENTRY_NONE) {
        if (renameat2(at, temporary, at, name, RENAME_EXCHANGE) == 0) {
            Error left = {0}; /* by a next prune, if it cannot be removed now */
            folder_remove(checkpoints, temporary, is_checkpoint_file, &left);
            return STATUS_OK;
        }
        TRY(remove_checkpoint(checkpoints, name, error));
        if (renameat(at, temporary, at, name) == 0) return STATUS_OK;
    }
    return error_failed(error, "cannot rename %s/%s to %s: %s", checkpoints->path, temporary, name,
                        strerror(errno));
}

Status checkpoint_publish(const char *folder, const char *temporary, const char *name, Error *error) {
    Folder checkpoints;
    TRY(folder_open(&checkpoints, folder, error));
    if (publish(&checkpoints, temporary, name, error) == STATUS_OK) folder_sync(&checkpoints, error);
    folder_close(&checkpoints);
    return error->status;
}

void checkpoint_abandon(const char *folder, const char *temporary) {
    Folder checkpoints;
    Error ignored = {0};
    if (folder_open(&checkpoints, folder, &ignored) != STATUS_OK) return;
    folder_remove(&checkpoints, temporary, is_checkpoint_file, &ignored);
    folder_close(&checkpoints);
}

/* ---- Pruning */

/* The first that cannot be removed is told; the others still go. */
static void note(Error *first, const Error *trouble) {
    if (first->status == STATUS_OK) *first = *trouble;
}

static void remove_temporaries(const Folder *checkpoints, Arena *arena, Error *error) {
    FolderEntry *entries;
    size_t n_entries;
    folder_list(checkpoints, arena, &entries, &n_entries, error);
    for (size_t i = 0; i < n_entries; i++) {
        Error trouble = {0};
        if (!is_temporary(entries[i].name)) continue;
        folder_remove(checkpoints, entries[i].name, is_checkpoint_file, &trouble);
        note(error, &trouble);
    }
}

static void remove_old(const Folder *checkpoints, int64_t written, int64_t keep_last, bool keep_best,
                       Arena *arena, Error *error) {
    CheckpointEntry *entries;
    int n_entries;
    checkpoint_list(checkpoints->path, arena, &entries, &n_entries, error);
    for (int i = 0; i < n_entries; i++) checkpoint_inspect(&entries[i]);
    int best = keep_best ? checkpoint_best(entries, n_entries) : -1;
    for (int i = 0, n_kept = 0; i < n_entries; i++) {
        bool is_kept =
            entries[i].step >= written || i == best || (entries[i].is_complete && n_kept < keep_last);
        /* The best does not count unless it is among the last anyway. */
        n_kept += entries[i].step <= written && entries[i].is_complete;
        Error trouble = {0};
        if (!is_kept) remove_checkpoint(checkpoints, entries[i].name, &trouble);
        note(error, &trouble);
    }
}

Status checkpoint_prune(const char *run, int64_t written, int64_t keep_last, bool keep_best, Error *error) {
    Folder folder, checkpoints;
    Arena arena = {0};
    if (!file_exists(run)) return STATUS_OK; /* nothing was ever saved */
    TRY(folder_open(&folder, run, error));
    if (folder_look(&folder, "checkpoints") == ENTRY_NONE) {
        folder_close(&folder);
        return STATUS_OK;
    }
    if (folder_open_inside(&checkpoints, &folder, "checkpoints", error) == STATUS_OK) {
        remove_temporaries(&checkpoints, &arena, error);
        if (keep_last > 0) remove_old(&checkpoints, written, keep_last, keep_best, &arena, error);
        Error trouble = {0};
        folder_sync(&checkpoints, &trouble);
        note(error, &trouble);
    }
    folder_close(&checkpoints);
    folder_close(&folder);
    arena_free(&arena);
    return error->status;
}
