/* A script that a scheduler runs again and again cannot know whether it is the first time. "auto" lets it say the same
 * thing always: go on with what is there, and begin if nothing is. What counts is a checkpoint: a run that was killed
 * before its first one has nothing to go on with, and begins again in its folder.
 *
 * Whether the checkpoint is sound is not asked here. If none of a run's checkpoints can be used, that is an
 * error when it is opened: beginning anew would bury what may still be rescued. */
#include "train/resume.h"

#include "base/folder.h"
#include "train/checkpoint_manifest.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

const char *resume_folder(const char *path, Arena *arena) {
    char target[PATH_MAX];
    char *name = arena_strdup(arena, path);
    for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--)
        name[n - 1] = '\0'; /* it would follow the link */
    ssize_t n_target = readlink(name, target, sizeof target - 1);
    if (n_target <= 0) return name;
    target[n_target] = '\0';
    char *slash = strrchr(name, '/');
    if (target[0] == '/' || !slash) return arena_strdup(arena, target);
    return arena_printf(arena, "%.*s/%s", (int)(slash - name), name, target);
}

static Status has_checkpoint(const char *folder, Arena *arena, bool *found, Error *error) {
    CheckpointEntry *entries;
    int n_entries;
    TRY(checkpoint_list(arena_printf(arena, "%s/checkpoints", folder), arena, &entries, &n_entries, error));
    *found = n_entries > 0;
    return STATUS_OK;
}

Status resume_find(const char *out, Arena *arena, const char **folder, Error *error) {
    bool found;
    const char *candidate = resume_folder(*out ? out : "runs/latest", arena);
    TRY(has_checkpoint(candidate, arena, &found, error));
    *folder = found ? candidate : NULL;
    return STATUS_OK;
}

/* What a process leaves that dies while it writes one of the run's first files. */
static bool is_left_over(const char *name) {
    return path_is_temporary(name, "config.ini") || path_is_temporary(name, "tokenizer.json");
}

Status resume_restart(const char *path, Error *error) {
    Arena arena = {0};
    Folder folder;
    FolderEntry *entries;
    size_t n_entries;
    TRY(folder_open(&folder, path, error));
    folder_list(&folder, &arena, &entries, &n_entries, error);
    for (size_t i = 0; i < n_entries && error->status == STATUS_OK; i++)
        if (is_left_over(entries[i].name)) folder_remove_file(&folder, entries[i].name, error);
    if (error->status == STATUS_OK) folder_remove_file(&folder, "metrics.jsonl", error);
    if (error->status != STATUS_OK) error_prefix(error, "the run cannot begin anew: ");
    folder_close(&folder);
    arena_free(&arena);
    return error->status;
}
