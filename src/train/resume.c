/* A script that a scheduler runs again and again cannot know whether it is the first time. "auto" lets it say the same
 * thing always: go on with what is there, and begin if nothing is. What counts is a checkpoint: a run that was killed
 * before its first one has nothing to go on with, and begins again in its folder.
 *
 * Whether the checkpoint is sound is not asked here. If none of a run's checkpoints can be used, that is an
 * error when it is opened: beginning anew would bury what may still be rescued. */
#include "train/resume.h"

#include "train/checkpoint_manifest.h"

#include <dirent.h>
#include <errno.h>
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
static void remove_temporaries(const char *folder, Arena *arena) {
    DIR *stream = opendir(folder);
    for (struct dirent *item; stream && (item = readdir(stream));) {
        if (strncmp(item->d_name, "config.ini.tmp.", 15) != 0 &&
            strncmp(item->d_name, "tokenizer.json.tmp.", 19) != 0)
            continue;
        unlink(arena_printf(arena, "%s/%s", folder, item->d_name));
    }
    if (stream) closedir(stream);
}

Status resume_restart(const char *folder, Error *error) {
    Arena arena = {0};
    remove_temporaries(folder, &arena);
    const char *metrics = arena_printf(&arena, "%s/metrics.jsonl", folder);
    if (unlink(metrics) != 0 && errno != ENOENT && errno != ENOTDIR)
        error_user(error, "cannot remove %s to begin anew: %s", metrics, strerror(errno));
    arena_free(&arena);
    return error->status;
}
