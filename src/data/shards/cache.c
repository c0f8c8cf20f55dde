/* An entry appears whole or not at all (base/file/staged_folder.h), so that two runs that start at once do
 * not meet: the second finds it made, and takes what the first one made. What a run that was killed left
 * behind is removed by a later one.
 *
 * The name is a hash of the text, so a changed text is another entry, wherever the file lies and whatever its
 * date. Reading the text for that takes a fraction of what encoding it would; while at it, the entry is read
 * as well and compared with its checksums, so that nobody trains on a damaged one.
 *
 * Between hashing and encoding anybody may write to the text. The list of inputs notices that
 * (prepare_input.h): what is learned from and what is encoded is what was hashed, or there is an error and no
 * entry. An entry also says inside what it was made from, and that is compared with what is wanted: its name
 * alone proves nothing. */
#include "data/shards/cache.h"

#include "base/arena.h"
#include "base/file/file.h"
#include "base/file/staged_folder.h"
#include "base/text/format.h"
#include "data/hash.h"
#include "data/shards/prepare.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status cache_folder(char **folder, Error *error) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool has_base = base && base[0] == '/'; /* the standard says that others are to be ignored */
    *folder = NULL;
    if (!has_base && !(home && *home)) {
        return error_user(
            error, "there is no place to keep the prepared text: neither HOME nor XDG_CACHE_HOME is set; "
                   "set one, or prepare it with 'pgpt data prepare'");
    }
    size_t n = strlen(has_base ? base : home) + 40;
    *folder = malloc(n);
    if (!*folder) return error_failed(error, "out of memory: no room for a name");
    snprintf(*folder, n, has_base ? "%s/pgpt/data" : "%s/.cache/pgpt/data", has_base ? base : home);
    return STATUS_OK;
}

static const char *entry_name(Arena *arena, const char *folder, Content source, const CacheKey *key) {
    uint64_t content = hash_u64(hash_u64(source.hash, source.n_bytes), SHARD_VERSION);
    if (key->tokenizer) {
        return arena_printf(arena, "%s/%016" PRIx64 "-%016" PRIx64, folder, content,
                            tokenizer_hash(key->tokenizer));
    }
    return arena_printf(arena, "%s/%016" PRIx64 "-%s-%d", folder, content, key->kind, key->max_vocabulary);
}

/* A run that goes on knows its tokenizer, but not what it was learned as: look among the entries of the
 * text. */
static const char *find_entry(Arena *arena, const char *folder, const char *entry,
                              const Tokenizer *tokenizer) {
    enum { N_CONTENT = 17 }; /* the part of the name that the content makes */
    DIR *entries = file_exists(entry) ? NULL : opendir(folder);
    const char *name = entry + strlen(folder) + 1, *found = entry;
    if (!entries) return entry;
    for (struct dirent *other; found == entry && (other = readdir(entries));) {
        ShardSet set;
        Error ignored = {0};
        if (strncmp(other->d_name, name, N_CONTENT) != 0 || strstr(other->d_name, ".tmp.")) continue;
        const char *path = arena_printf(arena, "%s/%s", folder, other->d_name);
        if (shard_set_open(path, &set, &ignored) != STATUS_OK) continue;
        if (set.tokenizer_hash == tokenizer_hash(tokenizer)) found = path;
        shard_set_close(&set);
    }
    closedir(entries);
    return found;
}

/* Is it there, whole, made from this text, and of this tokenizer? */
static Status open_entry(const char *entry, const CacheKey *key, Content source, ShardSet *set,
                         Error *error) {
    Tokenizer *own = NULL;
    TRY(shard_set_open(entry, set, error));
    TRY_GOTO(shard_set_tokenizer(set, &own, error), failed);
    if (!set->has_source || !content_equal(set->source, source)) {
        error_user(error, "%s: field 'source' %s", entry,
                   set->has_source ? "is not the text of its name" : "is missing: an older pgpt made it");
        goto failed;
    }
    if (!key->tokenizer && strcmp(tokenizer_kind(own), key->kind) != 0) {
        error_user(error, "%s: field 'tokenizer' is not the one of its name", entry);
        goto failed;
    }
    if (key->tokenizer && tokenizer_hash(own) != tokenizer_hash(key->tokenizer)) {
        error_user(error, "%s: field 'tokenizer_hash' is not the one of its name", entry);
        goto failed;
    }
    TRY_GOTO(shard_set_verify(set, NULL, NULL, error), failed);
    tokenizer_free(own);
    return STATUS_OK;
failed:
    tokenizer_free(own);
    shard_set_close(set);
    return error->status;
}

static Status fill_entry(InputList *list, const CacheKey *key, const char *folder, Progress *progress,
                         Error *error) {
    Tokenizer *learned = NULL;
    if (!key->tokenizer) {
        TRY(prepare_tokenizer(key->kind, key->max_vocabulary, list, &learned, error));
    }
    PrepareOptions options = {.folder = folder, .progress = progress};
    prepare_shards(list, learned ? learned : key->tokenizer, &options, error);
    tokenizer_free(learned);
    return error->status;
}

static Status make_entry(InputList *list, const CacheKey *key, const char *entry, const Log *log,
                         Error *error) {
    bool shown = log && log->stream && !log->quiet;
    if (shown) {
        log_note(log, "preparing %s of text, for this run and later ones, in %s",
                 format_bytes(list->n_bytes).text, entry);
    }
    Progress progress;
    if (shown) progress_begin(&progress, log->stream, 0.0);
    fill_entry(list, key, entry, shown ? &progress : NULL, error);
    if (shown) progress_end(&progress);
    /* Somebody else was faster: what he has made is looked at as any other entry is. */
    if (error->status == STATUS_USER && shard_set_is_folder(entry)) *error = (Error){0};
    return error->status;
}

Status cache_open(InputList *list, const CacheKey *key, const Log *log, ShardSet *set, Error *error) {
    *set = (ShardSet){0};
    Arena arena = {0};
    char *folder = NULL;
    Content source;
    Error damage = {0};
    TRY_GOTO(cache_folder(&folder, error), done);
    TRY_GOTO(input_list_read(list, error), done);
    input_list_content(list, &source);
    const char *entry = entry_name(&arena, folder, source, key);
    if (key->tokenizer) entry = find_entry(&arena, folder, entry, key->tokenizer);
    if (file_exists(entry)) {
        if (open_entry(entry, key, source, set, &damage) == STATUS_OK) goto done;
        if (log) log_warning(log, "%s; making it again", damage.text);
        prepare_remove(entry);
    }
    if (file_make_folders(folder, error) == STATUS_OK) {
        staged_folder_clear(folder, NULL);
        if (make_entry(list, key, entry, log, error) == STATUS_OK) open_entry(entry, key, source, set, error);
    }
done:
    arena_free(&arena);
    free(folder);
    return error->status;
}
