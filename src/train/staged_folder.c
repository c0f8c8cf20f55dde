/* A rename replaces an empty folder and refuses any other, so the check at the beginning is for the message and the
 * rename itself is what protects a folder that somebody filled meanwhile. */
#define _GNU_SOURCE /* nftw */
#include "train/staged_folder.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Status staged_folder_check(const char *path, Error *error) {
    if (!*path) return error_user(error, "the folder to write needs a name; give a path");
    DIR *stream = opendir(path);
    if (!stream && errno == ENOENT) return STATUS_OK;
    if (!stream && errno == ENOTDIR && file_exists(path))
        return error_user(error, "%s is a file; name a new folder", path);
    if (!stream) return error_user(error, "cannot write %s: %s; name a new folder", path, strerror(errno));
    bool is_empty = true;
    for (struct dirent *item; is_empty && (item = readdir(stream));) {
        is_empty = strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0;
    }
    closedir(stream);
    return is_empty
               ? STATUS_OK
               : error_user(error, "%s is there already and not empty; name a new folder, or remove it first",
                            path);
}

/* The last part of a path goes; "" when nothing is left. */
static void cut_last(char *path) {
    char *slash = strrchr(path, '/');
    *(slash ? slash : path) = 0;
}

/* How many bytes of the path name what is there already. */
static size_t existing_bytes(const char *path, Arena *arena) {
    char *part = arena_strdup(arena, path);
    while (*part && !file_exists(part)) cut_last(part);
    return strlen(part);
}

Status staged_folder_open(StagedFolder *folder, const char *path, Error *error) {
    *folder = (StagedFolder){0};
    TRY(staged_folder_check(path, error));
    char *real = realpath(path, NULL); /* an empty folder behind a link is filled where it lies */
    folder->path = arena_strdup(&folder->arena, real ? real : path);
    free(real);
    for (size_t n = strlen(folder->path); n > 1 && folder->path[n - 1] == '/'; n--) folder->path[n - 1] = 0;
    folder->n_existing = existing_bytes(folder->path, &folder->arena);
    folder->temporary = arena_printf(&folder->arena, "%s.tmp.%ld", folder->path, (long)getpid());
    if (file_make_folders(folder->temporary, error) != STATUS_OK) staged_folder_abort(folder);
    return error->status;
}

static Status sync_parent(const char *path, Arena *arena, Error *error) {
    char *parent = arena_strdup(arena, path);
    cut_last(parent);
    const char *name = *parent ? parent : path[0] == '/' ? "/" : ".";
    int descriptor = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return STATUS_OK; /* may be written but not read: nothing to be done */
    int result = fsync(descriptor), code = errno;
    close(descriptor);
    if (result == 0 || code == EINVAL || code == ENOTSUP || code == EROFS) return STATUS_OK;
    return error_failed(error, "cannot sync %s: %s", name, strerror(code));
}

Status staged_folder_commit(StagedFolder *folder, Error *error) {
    if (rename(folder->temporary, folder->path) != 0) {
        int code = errno;
        if (code == EEXIST || code == ENOTEMPTY) TRY(staged_folder_check(folder->path, error));
        return error_user(error, "cannot rename %s to %s: %s; name another folder", folder->temporary,
                          folder->path, strerror(code));
    }
    folder->temporary = NULL;
    return sync_parent(folder->path, &folder->arena, error);
}

static int remove_entry(const char *path, const struct stat *facts, int kind, struct FTW *where) {
    (void)facts;
    (void)kind;
    (void)where;
    remove(path); /* what cannot be removed stays; the rest still goes */
    return 0;
}

void staged_folder_abort(StagedFolder *folder) {
    enum { DESCRIPTORS = 8 };
    if (folder->temporary) {
        nftw(folder->temporary, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
        char *part = arena_strdup(&folder->arena, folder->path);
        for (cut_last(part); strlen(part) > folder->n_existing; cut_last(part)) rmdir(part);
    }
    arena_free(&folder->arena);
    *folder = (StagedFolder){0};
}
