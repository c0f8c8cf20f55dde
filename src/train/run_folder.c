#include "train/run_folder.h"

#include "base/file.h"
#include "base/options_text.h"
#include "base/plain.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RUNS "runs/"

const char *run_folder_name(Arena *arena, const char *wanted, const char *model) {
    if (*wanted) return wanted;
    char date[32];
    time_t now = time(NULL);
    struct tm local;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    const char *name = arena_printf(arena, RUNS "%s-%s", date, model);
    for (int i = 2; file_exists(name); i++) name = arena_printf(arena, RUNS "%s-%s-%d", date, model, i);
    return name;
}

Status run_folder_check(const char *folder, Error *error) {
    static const char *const traces[] = {"metrics.jsonl", "checkpoints", "config.ini"};
    Arena arena = {0};
    for (int i = 0; i < 3; i++) {
        if (file_exists(arena_printf(&arena, "%s/%s", folder, traces[i]))) {
            error_user(error, "%s already holds a run; choose another --out, or go on with --resume %s",
                       folder, shell_path(folder).text);
            break;
        }
    }
    arena_free(&arena);
    return error->status;
}

/* A symbolic link that is replaced in one step. It is a convenience: where links are not possible, there is none. */
static void point_latest(Arena *arena, const char *folder) {
    if (strncmp(folder, RUNS, strlen(RUNS)) != 0) return;
    const char *deeper = strchr(folder + strlen(RUNS), '/');
    if (deeper && deeper[1]) return; /* of a study, in a folder that is gone when it is over */
    const char *temporary = arena_printf(arena, RUNS ".latest.%ld", (long)getpid());
    if (symlink(folder + strlen(RUNS), temporary) != 0) return;
    if (rename(temporary, RUNS "latest") != 0) unlink(temporary);
}

/* How much of the path is there already: the length of the longest part that exists. */
static size_t existing_part(const char *folder, Arena *arena) {
    char *part = arena_strdup(arena, folder);
    while (*part && !file_exists(part)) {
        char *slash = strrchr(part, '/');
        *(slash ? slash : part) = '\0';
    }
    return strlen(part);
}

/* Take back the folders that a failed run_folder_create made; those that were there before stay. */
static void remove_folders(const char *folder, size_t n_existing, Arena *arena) {
    char *part = arena_strdup(arena, folder);
    while (strlen(part) > n_existing) {
        rmdir(part); /* some may not have been made; one that is not empty stays */
        char *slash = strrchr(part, '/');
        *(slash ? slash : part) = '\0';
    }
}

Status run_folder_create(const char *folder, const Options *options, const Tokenizer *tokenizer,
                         Error *error) {
    Arena arena = {0};
    size_t n_existing = existing_part(folder, &arena);
    const char *config = arena_printf(&arena, "%s/config.ini", folder);
    bool had_config = file_exists(config);
    TRY_GOTO(file_make_folders(folder, error), done);
    TRY_GOTO(options_save_config(options, config, error), done);
    TRY_GOTO(tokenizer_save(tokenizer, arena_printf(&arena, "%s/tokenizer.json", folder), error), done);
    point_latest(&arena, folder);
done:
    if (error->status != STATUS_OK) {
        if (!had_config) unlink(config);
        remove_folders(folder, n_existing, &arena);
    }
    arena_free(&arena);
    return error->status;
}
