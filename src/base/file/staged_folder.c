/* A rename replaces an empty folder and refuses any other, so the check at the beginning is for the message
 * and the rename itself is what protects a folder that somebody filled meanwhile.
 *
 * The folder that is written is made by exclusive creation and locked by its handle. So what a process that
 * was killed has left is told from what another one is still writing: the former has no lock. */
#define _GNU_SOURCE /* realpath */
#include "base/file/staged_folder.h"

#include "base/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

Status staged_folder_check(const char *path, Error *error) {
    if (!*path) return error_user(error, "the folder to write needs a name; give a path");
    struct stat facts;
    if (stat(path, &facts) != 0 && errno == ENOENT) return STATUS_OK;
    if (stat(path, &facts) == 0 && !S_ISDIR(facts.st_mode))
        return error_user(error, "%s is a file; name a new folder", path);
    Folder folder;
    Arena arena = {0};
    FolderEntry *entries;
    size_t n_entries = 0;
    if (folder_open(&folder, path, error) != STATUS_OK) return error->status;
    folder_list(&folder, &arena, &entries, &n_entries, error);
    folder_close(&folder);
    arena_free(&arena);
    if (error->status != STATUS_OK || n_entries == 0) return error->status;
    return error_user(error, "%s is there already and not empty; name a new folder, or remove it first",
                      path);
}

static bool is_locked_by_us(const Folder *folder) {
    return flock(folder->descriptor, LOCK_EX | LOCK_NB) == 0;
}

/* "NAME.tmp.4711", of any name where that is NULL. */
static bool is_staged(const char *entry, const char *name) {
    if (name) return path_is_temporary(entry, name);
    const char *mark = strstr(entry, ".tmp.");
    return mark && mark > entry && path_is_temporary(mark, "");
}

static void remove_abandoned(const Folder *parent, const char *name) {
    FolderEntry *entries;
    size_t n_entries;
    Error ignored = {0};
    Arena arena = {0};
    folder_list(parent, &arena, &entries, &n_entries, &ignored);
    for (size_t i = 0; i < n_entries; i++) {
        Folder other;
        if (!is_staged(entries[i].name, name)) continue;
        Error trouble = {0};
        if (entries[i].kind == ENTRY_LINK) folder_remove_file(parent, entries[i].name, &trouble);
        if (entries[i].kind != ENTRY_FOLDER) continue;
        if (folder_open_inside(&other, parent, entries[i].name, &trouble) != STATUS_OK) continue;
        if (is_locked_by_us(&other)) folder_remove_all(parent, entries[i].name);
        folder_close(&other);
    }
    arena_free(&arena);
}

void staged_folder_clear(const char *parent, const char *name) {
    Folder folder;
    Error ignored = {0};
    if (folder_open(&folder, parent, &ignored) != STATUS_OK) return;
    remove_abandoned(&folder, name);
    folder_close(&folder);
}

/* Is the folder that was made, and is open now, still there? Before it is locked, another process may take it
 * for abandoned. */
static bool is_still_there(const StagedFolder *folder) {
    struct stat made, named;
    return fstat(folder->lock.descriptor, &made) == 0 &&
           fstatat(folder->parent.descriptor, folder->temporary_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           made.st_ino == named.st_ino && made.st_dev == named.st_dev;
}

/* A name that was not there; it counts up where a process of our number has left one that could not be
 * removed, or ours was removed before it was locked. */
static Status make_temporary(StagedFolder *folder, Error *error) {
    enum { MOST_TRIES = 100 };
    for (int i = 0; i < MOST_TRIES; i++) {
        const char *number = i ? arena_printf(&folder->arena, "%ld%03d", (long)getpid(), i)
                               : arena_printf(&folder->arena, "%ld", (long)getpid());
        folder->temporary_name = arena_printf(&folder->arena, "%s.tmp.%s", folder->name, number);
        if (mkdirat(folder->parent.descriptor, folder->temporary_name, 0777) != 0) {
            if (errno == EEXIST) continue;
            return file_problem(error, "make the folder", folder->path, errno);
        }
        Error gone = {0};
        if (folder_open_inside(&folder->lock, &folder->parent, folder->temporary_name, &gone) != STATUS_OK)
            continue;
        /* Where there are no locks, nothing abandoned is removed; where another has ours, it is about to
         * go. */
        bool is_ours = is_locked_by_us(&folder->lock) || errno != EWOULDBLOCK;
        if (is_ours && is_still_there(folder)) {
            folder->temporary = arena_printf(&folder->arena, "%s.tmp.%s", folder->path, number);
            return STATUS_OK;
        }
        folder_close(&folder->lock);
    }
    return error_user(error,
                      "cannot make a folder beside %s: %d names are taken; remove what is called %s.tmp.*",
                      folder->path, MOST_TRIES, folder->name);
}

Status staged_folder_open(StagedFolder *folder, const char *path, Error *error) {
    *folder = (StagedFolder){0};
    TRY(staged_folder_check(path, error));
    char *real = realpath(path, NULL); /* an empty folder behind a link is filled where it lies */
    folder->path = arena_strdup(&folder->arena, real ? real : path);
    free(real);
    for (size_t n = strlen(folder->path); n > 1 && folder->path[n - 1] == '/'; n--) folder->path[n - 1] = 0;
    folder->n_existing = path_n_existing(folder->path, &folder->arena);
    const char *above;
    path_split(folder->path, &folder->arena, &above, &folder->name);
    TRY_GOTO(file_make_folders(above, error), failed);
    TRY_GOTO(folder_open(&folder->parent, above, error), failed);
    remove_abandoned(&folder->parent, folder->name);
    TRY_GOTO(make_temporary(folder, error), failed);
    return STATUS_OK;
failed:
    staged_folder_abort(folder);
    return error->status;
}

Status staged_folder_commit(StagedFolder *folder, Error *error) {
    int at = folder->parent.descriptor;
    if (renameat(at, folder->temporary_name, at, folder->name) != 0) {
        int code = errno;
        if (code == EEXIST || code == ENOTEMPTY) TRY(staged_folder_check(folder->path, error));
        return error_user(error, "cannot rename %s to %s: %s; name another folder", folder->temporary,
                          folder->path, strerror(code));
    }
    folder->temporary = NULL;
    return folder_sync(&folder->parent, error);
}

void staged_folder_abort(StagedFolder *folder) {
    if (folder->temporary) folder_remove_all(&folder->parent, folder->temporary_name);
    bool is_committed = folder->path && !folder->temporary && folder->lock.path;
    folder_close(&folder->lock);
    folder_close(&folder->parent);
    if (folder->path && !is_committed) {
        const char *above, *name; /* the folder itself is not there, or somebody else's */
        path_split(folder->path, &folder->arena, &above, &name);
        path_remove_made(above, folder->n_existing, &folder->arena);
    }
    arena_free(&folder->arena);
    *folder = (StagedFolder){0};
}
