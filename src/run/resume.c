/* A script that a scheduler runs again and again cannot know whether it is the first time. "auto" lets it say
 * the same thing always: go on with what is there, and begin if nothing is. What counts is a checkpoint: a
 * run that was killed before its first one has nothing to go on with, and begins again in its folder.
 *
 * Whether the checkpoint is sound is not asked here. If none of a run's checkpoints can be used, that is an
 * error when it is opened: beginning anew would bury what may still be rescued. */
#include "run/resume.h"

#include "base/file/file.h"
#include "base/file/folder.h"
#include "base/text/plain.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static bool has_file(const char *folder, const char *name, Arena *arena) {
    return file_exists(arena_printf(arena, "%s/%s", folder, name));
}

/* The folder that holds this one; from the arena. */
static const char *folder_above(const char *path, Arena *arena) {
    const char *folder, *name;
    path_split(path, arena, &folder, &name);
    return folder;
}

/* A checkpoint was named. If it is its run's newest, the run is meant; to go back to an earlier one would
 * leave the later ones in the way, which are not of the new run's past. */
static Status find_run_of(const char *checkpoint, Arena *arena, const char **run, Error *error) {
    char real[PATH_MAX];
    const char *path = strchr(checkpoint, '/') || !realpath(checkpoint, real) ? checkpoint : real;
    const char *folder = folder_above(path, arena), *name = strrchr(path, '/');
    if (!strchr(folder, '/') && realpath(folder, real)) folder = arena_strdup(arena, real);
    CheckpointEntry *entries;
    int n_entries;
    *run = folder_above(folder, arena);
    TRY(checkpoint_list(folder, arena, &entries, &n_entries, error));
    if (n_entries == 0 || !has_file(*run, "config.ini", arena))
        return error_user(error, "%s is a checkpoint without its run; begin a new run with --init %s",
                          checkpoint, shell_path(checkpoint).text);
    if (name && strcmp(entries[0].name, name + 1) == 0) return STATUS_OK;
    return error_user(
        error,
        "%s is not the newest checkpoint of its run; go on from that one with --resume %s, or begin a "
        "new run with the weights of this one: --init %s",
        checkpoint, shell_path(*run).text, shell_path(checkpoint).text);
}

Status resume_named(const char *path, Arena *arena, const char **run, Error *error) {
    struct stat facts;
    const char *folder = resume_folder(path, arena);
    *run = folder;
    if (stat(folder, &facts) != 0)
        return error_user(error, "there is no run to resume in %s: %s; check the path, or leave out --resume",
                          folder, strerror(errno));
    if (!S_ISDIR(facts.st_mode))
        return error_user(error, "--resume %s is a file; give a run's folder", folder);
    if (has_file(folder, "config.ini", arena)) return STATUS_OK;
    if (has_file(folder, "manifest.json", arena)) return find_run_of(folder, arena, run, error);
    *run = folder_above(folder, arena);
    const char *slash = strrchr(folder, '/');
    bool is_checkpoints = strcmp(slash ? slash + 1 : folder, "checkpoints") == 0;
    if (is_checkpoints && has_file(*run, "config.ini", arena)) return STATUS_OK;
    return error_user(error, "%s is not the folder of a run: there is no config.ini in it", folder);
}

Status resume_manifest(const char *run, Arena *arena, Manifest *manifest, bool *found, Error *error) {
    CheckpointEntry *entries;
    int n_entries;
    *found = false;
    TRY(checkpoint_list(arena_printf(arena, "%s/checkpoints", run), arena, &entries, &n_entries, error));
    for (int i = 0; i < n_entries && !*found; i++) {
        Error damage = {0}; /* said when the checkpoint is opened */
        const char *path = arena_printf(arena, "%s/manifest.json", entries[i].path);
        *found = manifest_read(path, manifest, arena, &damage) == STATUS_OK;
    }
    return STATUS_OK;
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

Status resume_restart(const char *path, Error *error) {
    Folder folder;
    TRY(folder_open(&folder, path, error));
    folder_remove_file(&folder, "metrics.jsonl", error);
    if (error->status != STATUS_OK) error_prefix(error, "the run cannot begin anew: ");
    folder_close(&folder);
    return error->status;
}
