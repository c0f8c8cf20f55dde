/* Everything goes through openat and unlinkat with O_NOFOLLOW, so that a link which somebody puts in a folder
 * of ours, by mistake or to do harm, leads nowhere, even if it appears between a look and the act.
 *
 * A removal looks at the whole folder before it takes the first file away: half of a checkpoint is of no use
 * to the one who put a file of his own beside it. */
#define _GNU_SOURCE /* O_DIRECTORY, O_NOFOLLOW, fdopendir */
#include "base/file/folder.h"

#include "base/file/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_FLAGS = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

static Status take(Folder *folder, int descriptor, int code, char *path, Error *error) {
    *folder = (Folder){.descriptor = descriptor, .path = path};
    if (!path) {
        if (descriptor >= 0) close(descriptor);
        return error_failed(error, "out of memory: no room for a path");
    }
    if (descriptor >= 0) return STATUS_OK;
    if (code == ENOTDIR || code == ELOOP)
        error_user(error, "cannot open the folder %s: it is not a folder, or a link to one", path);
    else file_problem(error, "open the folder", path, code);
    folder_close(folder);
    return error->status;
}

Status folder_open(Folder *folder, const char *path, Error *error) {
    int descriptor = open(path, OPEN_FLAGS);
    return take(folder, descriptor, errno, strdup(path), error);
}

static char *join(const char *folder, const char *name) {
    if (!folder || !name) return NULL;
    size_t n_folder = strlen(folder), n_name = strlen(name);
    char *path = malloc(n_folder + n_name + 2);
    if (!path) return NULL;
    memcpy(path, folder, n_folder);
    path[n_folder] = '/';
    memcpy(path + n_folder + 1, name, n_name + 1);
    return path;
}

Status folder_open_inside(Folder *folder, const Folder *parent, const char *name, Error *error) {
    int descriptor = openat(parent->descriptor, name, OPEN_FLAGS | O_NOFOLLOW);
    return take(folder, descriptor, errno, join(parent->path, name), error);
}

void folder_close(Folder *folder) {
    if (folder->path && folder->descriptor >= 0) close(folder->descriptor);
    free(folder->path);
    *folder = (Folder){.descriptor = -1};
}

static EntryKind kind_of(int parent, const char *name) {
    struct stat facts;
    if (fstatat(parent, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) return ENTRY_NONE;
    if (S_ISREG(facts.st_mode)) return ENTRY_FILE;
    if (S_ISDIR(facts.st_mode)) return ENTRY_FOLDER;
    return S_ISLNK(facts.st_mode) ? ENTRY_LINK : ENTRY_OTHER;
}

EntryKind folder_look(const Folder *folder, const char *name) {
    return kind_of(folder->descriptor, name);
}

/* ---- Walking */

/* A stream of its own: reading it does not move the handle, and closing it leaves the handle open. */
static DIR *open_stream(int descriptor) {
    int own = openat(descriptor, ".", OPEN_FLAGS);
    DIR *stream = own < 0 ? NULL : fdopendir(own);
    if (!stream && own >= 0) close(own);
    return stream;
}

/* NULL at the end, and where it cannot be read any further: then errno is set. */
static struct dirent *next_entry(DIR *stream) {
    for (;;) {
        errno = 0;
        struct dirent *item = readdir(stream);
        if (!item || (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)) return item;
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const FolderEntry *)a)->name, ((const FolderEntry *)b)->name);
}

Status folder_list(const Folder *folder, Arena *arena, FolderEntry **entries, size_t *n_entries,
                   Error *error) {
    size_t capacity = 0;
    *entries = NULL;
    *n_entries = 0;
    DIR *stream = open_stream(folder->descriptor);
    if (!stream) return file_problem(error, "read the folder", folder->path, errno);
    for (struct dirent *item; (item = next_entry(stream));) {
        if (*n_entries == capacity) {
            FolderEntry *smaller = *entries;
            capacity = capacity ? 2 * capacity : 64;
            *entries = ARENA_ARRAY(arena, FolderEntry, capacity);
            if (smaller) memcpy(*entries, smaller, sizeof(FolderEntry) * *n_entries);
        }
        (*entries)[(*n_entries)++] = (FolderEntry){.name = arena_strdup(arena, item->d_name),
                                                   .kind = kind_of(folder->descriptor, item->d_name)};
    }
    int code = errno;
    closedir(stream);
    if (code) return file_problem(error, "read the folder", folder->path, code);
    if (*n_entries) qsort(*entries, *n_entries, sizeof **entries, by_name);
    return STATUS_OK;
}

/* ---- Making and removing */

static Status problem_inside(Error *error, const char *verb, const Folder *folder, const char *name,
                             int code) {
    char *path = join(folder->path, name);
    file_problem(error, verb, path ? path : name, code);
    free(path);
    return error->status;
}

Status folder_make(const Folder *folder, const char *name, Error *error) {
    if (mkdirat(folder->descriptor, name, 0777) == 0) return STATUS_OK;
    return problem_inside(error, "make the folder", folder, name, errno);
}

Status folder_remove_file(const Folder *folder, const char *name, Error *error) {
    if (unlinkat(folder->descriptor, name, 0) == 0 || errno == ENOENT) return STATUS_OK;
    return problem_inside(error, "remove", folder, name, errno);
}

static bool may_remove(const FolderEntry *entry, FolderKnows knows) {
    bool is_file = entry->kind == ENTRY_FILE || entry->kind == ENTRY_LINK;
    return entry->kind == ENTRY_NONE || (is_file && knows(entry->name));
}

/* The error names the first that may not be removed. */
static Status check_all(const Folder *folder, const FolderEntry *entries, size_t n_entries, FolderKnows knows,
                        Error *error) {
    for (size_t i = 0; i < n_entries; i++) {
        if (may_remove(&entries[i], knows)) continue;
        return error_user(error, "%s holds '%s', which is not of pgpt's making; move that away", folder->path,
                          entries[i].name);
    }
    return STATUS_OK;
}

/* Both look at all of it first; what is only checked is not touched. */
static Status handle_files(const Folder *folder, const char *name, FolderKnows knows, bool and_remove,
                           Error *error) {
    Arena arena = {0};
    Folder inner;
    FolderEntry *entries;
    size_t n_entries;
    TRY(folder_open_inside(&inner, folder, name, error));
    if (folder_list(&inner, &arena, &entries, &n_entries, error) == STATUS_OK)
        check_all(&inner, entries, n_entries, knows, error);
    for (size_t i = 0; and_remove && error->status == STATUS_OK && i < n_entries; i++)
        folder_remove_file(&inner, entries[i].name, error);
    folder_close(&inner);
    arena_free(&arena);
    return error->status;
}

Status folder_check(const Folder *folder, const char *name, FolderKnows knows, Error *error) {
    EntryKind kind = folder_look(folder, name);
    if (kind == ENTRY_NONE || kind == ENTRY_LINK) return STATUS_OK;
    return handle_files(folder, name, knows, false, error);
}

Status folder_remove(const Folder *folder, const char *name, FolderKnows knows, Error *error) {
    EntryKind kind = folder_look(folder, name);
    if (kind == ENTRY_NONE) return STATUS_OK;
    if (kind == ENTRY_LINK) return folder_remove_file(folder, name, error);
    TRY(handle_files(folder, name, knows, true, error));
    if (unlinkat(folder->descriptor, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return STATUS_OK;
    return problem_inside(error, "remove", folder, name, errno);
}

/* Handles are held one a level; a tree that is deeper than that was not made here. */
static void remove_tree(int parent, const char *name, int levels) {
    int descriptor = openat(parent, name, OPEN_FLAGS | O_NOFOLLOW);
    DIR *stream = descriptor < 0 || levels == 0 ? NULL : fdopendir(descriptor);
    if (!stream && descriptor >= 0) close(descriptor);
    for (struct dirent *item; stream && (item = next_entry(stream));) {
        if (kind_of(dirfd(stream), item->d_name) == ENTRY_FOLDER)
            remove_tree(dirfd(stream), item->d_name, levels - 1);
        else unlinkat(dirfd(stream), item->d_name, 0);
    }
    if (stream) closedir(stream);
    unlinkat(parent, name, AT_REMOVEDIR);
}

void folder_remove_all(const Folder *folder, const char *name) {
    enum { DEEPEST = 64 };
    if (folder_look(folder, name) == ENTRY_FOLDER) remove_tree(folder->descriptor, name, DEEPEST);
    else unlinkat(folder->descriptor, name, 0);
}

Status folder_sync(const Folder *folder, Error *error) {
    if (fsync(folder->descriptor) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS)
        return STATUS_OK;
    return error_failed(error, "cannot sync %s: %s", folder->path, strerror(errno));
}

FolderIdentity folder_identity(const char *path) {
    struct stat facts;
    if (stat(path, &facts) != 0) return (FolderIdentity){0};
    return (FolderIdentity){.device = (uint64_t)facts.st_dev, .inode = (uint64_t)facts.st_ino};
}

bool folder_is_same(const char *path, FolderIdentity identity) {
    FolderIdentity found = folder_identity(path);
    bool is_none = !identity.device && !identity.inode;
    return is_none || (found.device == identity.device && found.inode == identity.inode);
}

/* ---- Paths */

void path_split(const char *path, Arena *arena, const char **folder, const char **name) {
    char *whole = arena_strdup(arena, path);
    for (size_t n = strlen(whole); n > 1 && whole[n - 1] == '/'; n--) whole[n - 1] = '\0';
    char *slash = strrchr(whole, '/');
    *name = slash ? slash + 1 : whole;
    *folder = !slash ? "." : slash == whole ? "/" : whole;
    if (slash) *slash = '\0';
}

/* The last part of a path goes; "" when nothing is left. */
static void cut_last(char *path) {
    char *slash = strrchr(path, '/');
    *(slash ? slash : path) = '\0';
}

size_t path_n_existing(const char *path, Arena *arena) {
    char *part = arena_strdup(arena, path);
    while (*part && !file_exists(part)) cut_last(part);
    return strlen(part);
}

void path_remove_made(const char *path, size_t n_existing, Arena *arena) {
    char *part = arena_strdup(arena, path);
    for (; strlen(part) > n_existing; cut_last(part)) rmdir(part);
}

bool path_is_temporary(const char *name, const char *stem) {
    size_t n_stem = strlen(stem);
    if (strncmp(name, stem, n_stem) != 0 || strncmp(name + n_stem, ".tmp.", 5) != 0) return false;
    const char *digits = name + n_stem + 5;
    return *digits && strspn(digits, "0123456789") == strlen(digits);
}
