/* A folder is claimed in three steps: it is made, or found to be empty; the lock in it is taken; and only
 * then is it looked at again. Two that claim the same one meet at the lock, whichever of them made it, and
 * the second look tells the later one that the earlier has been there.
 *
 * What is neither empty nor a run is somebody's: a tokenizer, prepared shards, a model, other people's files.
 * It is refused whole, since a run would write its own tokenizer.json over theirs. */
#include "run/run_folder.h"

#include "base/file/file.h"
#include "base/file/folder.h"
#include "base/options/options_text.h"
#include "base/text/plain.h"
#include "checkpoint/checkpoint_manifest.h"
#include "run/interrupt.h"
#include "run/resume.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RUNS           "runs/"
#define LOCK           "lock"
#define SUPERVISE_LOCK "supervise.lock"

/* How long to wait for a holder that is about to end: a job that was told to stop, and the one that follows
 * it. */
static const double patience_seconds = 2.0;

/* ---- What a folder is */

typedef enum { FOLDER_EMPTY, FOLDER_RUN, FOLDER_OTHER } FolderContent;

static bool is_lock(const char *name) {
    return strcmp(name, LOCK) == 0 || strcmp(name, SUPERVISE_LOCK) == 0;
}

/* What a process leaves that dies while it writes one of the run's own files. */
static bool is_left_over(const char *name) {
    return path_is_temporary(name, "config.ini") || path_is_temporary(name, "tokenizer.json");
}

/* Of a run that was begun: its config.ini, and something that is written beside it. */
static FolderContent content_of(const FolderEntry *entries, size_t n_entries) {
    static const char *const traces[] = {"metrics.jsonl", "checkpoints", "ranks", LOCK};
    bool is_empty = true, has_config = false, has_trace = false;
    for (size_t i = 0; i < n_entries; i++) {
        const char *name = entries[i].name;
        is_empty = is_empty && (is_lock(name) || is_left_over(name));
        has_config = has_config || strcmp(name, "config.ini") == 0;
        for (size_t j = 0; j < sizeof traces / sizeof traces[0]; j++)
            has_trace = has_trace || strcmp(name, traces[j]) == 0;
    }
    if (is_empty) return FOLDER_EMPTY;
    return has_config && has_trace ? FOLDER_RUN : FOLDER_OTHER;
}

static Status look_into(const char *path, FolderContent *content, Error *error) {
    Arena arena = {0};
    FolderEntry *entries;
    size_t n_entries;
    Folder folder;
    TRY(folder_open(&folder, path, error));
    if (folder_list(&folder, &arena, &entries, &n_entries, error) == STATUS_OK)
        *content = content_of(entries, n_entries);
    folder_close(&folder);
    arena_free(&arena);
    return error->status;
}

/* May a new run begin there? */
static Status check_content(const char *path, FolderContent content, bool may_restart, Error *error) {
    if (content == FOLDER_EMPTY || (content == FOLDER_RUN && may_restart)) return STATUS_OK;
    if (content == FOLDER_RUN)
        return error_user(error, "%s already holds a run; choose another --out, or go on with --resume %s",
                          path, shell_path(path).text);
    return error_user(error, "%s is not empty and not a run; choose another --out", path);
}

/* ---- Claiming */

/* Make a folder that was not there; tells whether it was. Those above it may be there. */
static Status make_folder(RunClaim *claim, const char *path, bool *was_there, Error *error) {
    const char *above, *name;
    struct stat facts;
    path_split(path, &claim->arena, &above, &name);
    if (!*name) return error_user(error, "the run's folder needs a name; give one with --out");
    claim->path = arena_strdup(&claim->arena, path);
    claim->n_existing = path_n_existing(path, &claim->arena);
    TRY(file_make_folders(above, error));
    *was_there = mkdir(path, 0777) != 0;
    if (!*was_there) return STATUS_OK;
    int code = errno;
    if (stat(path, &facts) == 0 && !S_ISDIR(facts.st_mode))
        return error_user(error, "%s is a file; choose another --out", path);
    if (code != EEXIST) return file_problem(error, "make the folder", path, code);
    claim->n_existing = strlen(path); /* by now */
    return STATUS_OK;
}

static Status take_lock(RunClaim *claim, const char *name, double patience, Error *error) {
    const char *path = arena_printf(&claim->arena, "%s/%s", claim->path, name);
    TRY(file_lock_take(&claim->lock, path, patience, error));
    if (claim->lock.state == FILE_LOCK_HELD) {
        return error_user(error,
                          "%s is being written by %s; wait until that has ended, or choose another folder",
                          claim->path, claim->lock.holder);
    }
    if (claim->lock.state == FILE_LOCK_UNKNOWN)
        snprintf(claim->warning, sizeof claim->warning,
                 "the file system of %.300s has no locks: nothing keeps a second run out of it", claim->path);
    return STATUS_OK;
}

/* Under the lock: whoever was writing them is gone. What cannot be removed is in nobody's way. */
static void remove_left_over(const char *path) {
    Arena arena = {0};
    FolderEntry *entries;
    size_t n_entries;
    Folder folder;
    Error ignored = {0};
    if (folder_open(&folder, path, &ignored) != STATUS_OK) return;
    folder_list(&folder, &arena, &entries, &n_entries, &ignored);
    for (size_t i = 0; i < n_entries; i++)
        if (is_left_over(entries[i].name)) folder_remove_file(&folder, entries[i].name, &ignored);
    folder_close(&folder);
    arena_free(&arena);
}

/* Of two that start in the same second, the second to make the folder takes the next name. */
static Status claim_dated(RunClaim *claim, const char *model, Error *error) {
    char date[32];
    time_t now = time(NULL);
    struct tm local;
    bool was_there = true;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    const char *name = arena_printf(&claim->arena, RUNS "%s-%s", date, model);
    TRY(make_folder(claim, name, &was_there, error));
    for (int i = 2; was_there; i++) {
        name = arena_printf(&claim->arena, RUNS "%s-%s-%d", date, model, i);
        TRY(make_folder(claim, name, &was_there, error));
    }
    return take_lock(claim, LOCK, patience_seconds, error);
}

/* A run that may begin anew had no checkpoint when that was decided. While we waited for the lock its holder
 * may have saved one, and would lose it. */
static Status check_nothing_saved(RunClaim *claim, Error *error) {
    CheckpointEntry *saved;
    int n_saved;
    const char *folder = arena_printf(&claim->arena, "%s/checkpoints", claim->path);
    TRY(checkpoint_list(folder, &claim->arena, &saved, &n_saved, error));
    if (n_saved == 0) return STATUS_OK;
    return error_failed(error, "another process has just saved %s; start this one again to go on from there",
                        saved[0].path);
}

/* The folder, with its lock. `is_final`: what there is in it, or who has it, speaks against it. */
static Status enter_folder(RunClaim *claim, const char *wanted, bool may_restart, bool *is_final,
                           Error *error) {
    bool was_there;
    FolderContent content = FOLDER_OTHER;
    TRY(make_folder(claim, wanted, &was_there, error));
    if (was_there) { /* before anything is put there */
        TRY(look_into(wanted, &content, error));
        *is_final = true;
        TRY(check_content(wanted, content, may_restart, error));
        *is_final = false;
    }
    take_lock(claim, LOCK, patience_seconds, error);
    *is_final = claim->lock.state == FILE_LOCK_HELD;
    return error->status;
}

/* A folder that another process has made, for a run that came to nothing, may go while it is entered. So what
 * seems not to work is tried again, and if it still does not, it is not that. */
static Status claim_wanted(RunClaim *claim, const char *wanted, bool may_restart, Error *error) {
    enum { MOST_TRIES = 100 };
    bool is_final = false;
    FolderContent content = FOLDER_OTHER;
    enter_folder(claim, wanted, may_restart, &is_final, error);
    size_t n_existing = claim->n_existing; /* what is above it may have been made by the first try */
    for (int i = 1; error->status != STATUS_OK && !is_final && i < MOST_TRIES; i++) {
        file_lock_release(&claim->lock);
        nanosleep(&(struct timespec){0, 1000 * 1000}, NULL);
        *error = (Error){0};
        enter_folder(claim, wanted, may_restart, &is_final, error);
        bool was_there = claim->n_existing == strlen(wanted);
        if (!was_there && n_existing < claim->n_existing) claim->n_existing = n_existing;
    }
    TRY(error->status);
    TRY(look_into(wanted, &content, error));
    TRY(check_content(wanted, content, may_restart, error));
    if (may_restart) TRY(check_nothing_saved(claim, error));
    remove_left_over(wanted);
    return STATUS_OK;
}

Status run_claim_new(RunClaim *claim, const char *wanted, const char *model, bool may_restart, Error *error) {
    *claim = (RunClaim){0};
    if (*wanted) claim_wanted(claim, wanted, may_restart, error);
    else claim_dated(claim, model, error);
    if (error->status != STATUS_OK) {
        run_claim_release(claim);
    } else if (claim->lock.state == FILE_LOCK_TAKEN) {
        bool was_there = claim->n_existing == strlen(claim->path);
        interrupt_remove(claim->lock.path, was_there ? NULL : claim->path);
    }
    return error->status;
}

Status run_claim_again(RunClaim *claim, const char *folder, Error *error) {
    *claim = (RunClaim){.is_begun = true};
    struct stat facts;
    if (stat(folder, &facts) != 0 || !S_ISDIR(facts.st_mode))
        return error_user(error, "there is no run %s; name the folder of one with --resume", folder);
    claim->path = arena_strdup(&claim->arena, folder);
    if (take_lock(claim, LOCK, patience_seconds, error) == STATUS_OK) remove_left_over(folder);
    else run_claim_release(claim);
    return error->status;
}

Status run_claim_supervise(RunClaim *claim, const char *folder, Error *error) {
    *claim = (RunClaim){0};
    bool was_there = false;
    RunClaim job = {0};
    TRY_GOTO(make_folder(claim, folder, &was_there, error), done);
    if (was_there) {
        FolderContent content = FOLDER_OTHER;
        TRY_GOTO(look_into(folder, &content, error), done);
        TRY_GOTO(check_content(folder, content, true, error), done);
    }
    TRY_GOTO(take_lock(claim, SUPERVISE_LOCK, 0.0, error), done);
    /* Nor may there be a job that was started without us, or that a dead supervisor has left behind. */
    job.path = arena_strdup(&job.arena, folder);
    take_lock(&job, LOCK, patience_seconds, error);
    file_lock_release(&job.lock);
    arena_free(&job.arena);
done:
    if (error->status != STATUS_OK) run_claim_release(claim);
    return error->status;
}

void run_claim_release(RunClaim *claim) {
    interrupt_keep();
    file_lock_release(&claim->lock);
    if (claim->path && !claim->is_begun) path_remove_made(claim->path, claim->n_existing, &claim->arena);
    arena_free(&claim->arena);
    *claim = (RunClaim){0};
}

/* ---- What is in it */

/* A symbolic link that is replaced in one step. It is a convenience: where links are not possible, there is
 * none. */
static void point_latest(const char *folder) {
    if (strncmp(folder, RUNS, strlen(RUNS)) != 0) return;
    const char *deeper = strchr(folder + strlen(RUNS), '/');
    if (deeper && deeper[1]) return; /* of a study, in a folder that is gone when it is over */
    Arena arena = {0};
    const char *temporary = arena_printf(&arena, RUNS ".latest.%ld", (long)getpid());
    unlink(temporary); /* left by a process that died with our number */
    if (symlink(folder + strlen(RUNS), temporary) == 0 && rename(temporary, RUNS "latest") != 0)
        unlink(temporary);
    arena_free(&arena);
}

Status run_folder_create(RunClaim *claim, const Options *options, const Tokenizer *tokenizer, Error *error) {
    const char *config = arena_printf(&claim->arena, "%s/config.ini", claim->path);
    const char *symbols = arena_printf(&claim->arena, "%s/tokenizer.json", claim->path);
    bool had_config = file_exists(config);
    TRY(options_save_config(options, config, error));
    if (tokenizer_save(tokenizer, symbols, error) != STATUS_OK) {
        if (!had_config) unlink(config);
        return error->status;
    }
    claim->is_begun = true;
    interrupt_keep();
    point_latest(claim->path);
    return STATUS_OK;
}
