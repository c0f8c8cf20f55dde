/* Tokens go straight from the encoder into shards, each of which gets its name when it is complete. The split needs to
 * know how many tokens there are, so it is made at the end, and costs nothing: it is a number in the manifest, the first
 * token that is held out. Taking the end of the corpus keeps the training part one run of text, and is what a text that
 * is not prepared is split like.
 *
 * The manifest is written last. A folder without one was not finished; its shards are replaced by the next attempt. */
#include "data/prepare.h"

#include "base/file.h"
#include "data/prepare_encode.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const PrepareOptions *options;
    uint64_t shard_tokens;
    ShardHeader kind; /* what all shards share */
    ShardHeader *headers;
    size_t n_shards; /* complete ones */
    ShardWriter writer;
    bool open;
    uint64_t n_text_bytes; /* not yet counted for a shard */
} Preparation;

/* ---- Shards */

static Status finish_shard(Preparation *preparation, Error *error) {
    preparation->writer.header.n_text_bytes += preparation->n_text_bytes;
    preparation->n_text_bytes = 0;
    TRY(shard_writer_commit(&preparation->writer, error));
    preparation->headers[preparation->n_shards++] = preparation->writer.header;
    shard_writer_abort(&preparation->writer);
    preparation->open = false;
    return STATUS_OK;
}

static Status begin_shard(Preparation *preparation, Error *error) {
    size_t n = preparation->n_shards + 1;
    ShardHeader *headers = realloc(preparation->headers, n * sizeof *headers);
    if (headers) preparation->headers = headers;
    char *path = shard_set_path(preparation->options->folder, preparation->n_shards);
    if (headers && path) {
        preparation->open =
            shard_writer_open(&preparation->writer, path, &preparation->kind, error) == STATUS_OK;
    } else {
        error_failed(error, "out of memory: no room for a shard");
    }
    free(path);
    return error->status;
}

/* A shard to write to, with room for a token at least. */
static Status need_shard(Preparation *preparation, Error *error) {
    if (preparation->open && preparation->writer.header.n_tokens >= preparation->shard_tokens) {
        TRY(finish_shard(preparation, error));
    }
    return preparation->open ? STATUS_OK : begin_shard(preparation, error);
}

static Status take_document(void *context, Error *error) {
    Preparation *preparation = context;
    TRY(need_shard(preparation, error));
    return shard_writer_document(&preparation->writer, error);
}

static Status take_tokens(void *context, const int32_t *ids, size_t n, Error *error) {
    Preparation *preparation = context;
    while (n > 0) {
        TRY(need_shard(preparation, error));
        uint64_t room = preparation->shard_tokens - preparation->writer.header.n_tokens;
        size_t n_here = n < room ? n : (size_t)room;
        TRY(shard_writer_add(&preparation->writer, ids, n_here, error));
        ids += n_here;
        n -= n_here;
    }
    return STATUS_OK;
}

/* A piece of text may end up in two shards. It counts for one of them; only the sum is ever used. */
static Status take_text(void *context, uint64_t n_bytes, Error *error) {
    (void)error;
    ((Preparation *)context)->n_text_bytes += n_bytes;
    return STATUS_OK;
}

static Status write_shards(Preparation *preparation, InputList *list, const Tokenizer *tokenizer,
                           Error *error) {
    const PrepareOptions *options = preparation->options;
    TokenSink sink = {take_document, take_tokens, take_text, preparation};
    TRY(encode_inputs(list, tokenizer, options->n_threads, options->progress, &sink, error));
    if (preparation->open) return finish_shard(preparation, error);
    return error_user(error, "%s%s: there is no text to learn from; give a text that is not empty",
                      list->files[0].name, list->n_files > 1 ? " and the others are empty" : " is empty");
}

/* ---- The split */

enum { LOOK_TOKENS = 1 << 14 };

/* A place near a token where it does no harm to cut: behind a blank line or the end of a text, else behind a line end,
 * else right there. Looks forward only. */
static uint64_t cut_near(const ShardSet *set, const Tokenizer *tokenizer, uint64_t token) {
    static _Thread_local int32_t ids[LOOK_TOKENS];
    uint64_t n = set->n_tokens - token < LOOK_TOKENS ? set->n_tokens - token : LOOK_TOKENS, line = 0;
    shard_set_read(set, token, n, ids);
    TokenDecoder decoder = token_decoder(tokenizer);
    char before = 0, last = 0; /* the last two bytes of text */
    for (uint64_t i = 0; i + 1 < n; i++) {
        TokenBytes piece = token_decode(&decoder, ids[i]);
        if (piece.n > 1) before = piece.bytes[piece.n - 2];
        else if (piece.n) before = last;
        if (piece.n) last = piece.bytes[piece.n - 1];
        bool text_ends = tokenizer_end_of_text(tokenizer) >= 0 && ids[i] == tokenizer_end_of_text(tokenizer);
        if (text_ends || (last == '\n' && before == '\n')) return token + i + 1;
        if (last == '\n' && !line) line = token + i + 1;
    }
    return line ? line : token;
}

static uint64_t choose_split(const ShardSet *set, const Tokenizer *tokenizer, double fraction) {
    uint64_t n_validation = (uint64_t)((double)set->n_tokens * fraction), start = 0;
    if (n_validation == 0) return set->n_tokens;
    uint64_t wanted = set->n_tokens - n_validation, slack = n_validation / 2;
    bool found = shard_set_nearest_document(set, wanted, &start);
    uint64_t distance = start > wanted ? start - wanted : wanted - start;
    if (found && start > 0 && distance <= slack) return start;
    start = cut_near(set, tokenizer, wanted);
    return start - wanted <= slack ? start : wanted;
}

static Status write_manifest(const Preparation *preparation, const InputList *list,
                             const Tokenizer *tokenizer, Error *error) {
    ShardManifest manifest = {.folder = preparation->options->folder,
                              .tokenizer_kind = tokenizer_kind(tokenizer),
                              .headers = preparation->headers,
                              .n_shards = preparation->n_shards};
    manifest.has_source = input_list_content(list, &manifest.source);
    for (size_t i = 0; i < manifest.n_shards; i++) manifest.validation_start += manifest.headers[i].n_tokens;
    double fraction = preparation->options->validation_fraction;
    if (fraction > 0) {
        ShardSet set;
        TRY(shard_set_open_unfinished(&manifest, &set, error));
        manifest.validation_start = choose_split(&set, tokenizer, fraction);
        shard_set_close(&set);
    }
    return shard_set_save(&manifest, error);
}

/* ---- The folder */

enum { HOLDS_OTHERS = 1, HOLDS_SHARDS = 2, HOLDS_MANIFEST = 4, HOLDS_TOKENIZER = 8, HOLDS_LEFTOVERS = 16 };

/* Behind its first n bytes a name ends, or goes on as a temporary file's does. */
static bool is_ours(const char *name, size_t n, bool *temporary) {
    const char *end = name + n;
    *temporary = strncmp(end, ".tmp.", 5) == 0 && end[5] && !end[5 + strspn(end + 5, "0123456789")];
    return !*end || *temporary;
}

/* What a name says that a file is, as HOLDS_...; others are none of our business. */
static int kind_of(const char *name) {
    static const struct {
        const char *name;
        int kind;
    } known[] = {{"manifest.json", HOLDS_MANIFEST}, {"tokenizer.json", HOLDS_TOKENIZER}};
    bool temporary;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].name);
        if (strncmp(name, known[i].name, n) != 0 || !is_ours(name, n, &temporary)) continue;
        return temporary ? HOLDS_LEFTOVERS : known[i].kind;
    }
    size_t n_digits = strncmp(name, "tokens-", 7) == 0 ? strspn(name + 7, "0123456789") : 0;
    bool is_shard = n_digits >= 5 && strncmp(name + 7 + n_digits, ".bin", 4) == 0 &&
                    is_ours(name, 7 + n_digits + 4, &temporary);
    return is_shard ? HOLDS_SHARDS : HOLDS_OTHERS;
}

/* What a folder holds, and, if wanted, away with what a preparation makes, temporary files included. The descriptor is
 * taken over. */
static int look_into(int folder, bool and_remove) {
    DIR *entries = folder < 0 ? NULL : fdopendir(folder);
    int holds = 0;
    if (!entries && folder >= 0) close(folder);
    if (!entries) return 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        int kind = kind_of(name);
        holds |= kind;
        if (and_remove && kind != HOLDS_OTHERS) unlinkat(folder, name, 0);
    }
    closedir(entries);
    return holds;
}

/* One that the user named, which may be a link. */
static int open_folder(const char *folder) {
    return open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* A link is no folder of ours, wherever it leads: it goes, and what it leads to stays. */
void prepare_remove(const char *folder) {
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat facts;
    if (descriptor >= 0) {
        look_into(descriptor, true);
        rmdir(folder);
    } else if (lstat(folder, &facts) == 0 && S_ISLNK(facts.st_mode)) {
        unlink(folder);
    }
}

/* A folder is ours if it is new or empty, or has what an unfinished preparation left and nothing else. Its shards come
 * before its tokenizer, so a tokenizer alone is somebody's own. */
static Status claim_folder(const char *folder, bool *existed, Error *error) {
    *existed = file_exists(folder);
    if (!*existed) return file_make_folders(folder, error);
    int holds = look_into(open_folder(folder), false);
    if (holds & HOLDS_MANIFEST) {
        return error_user(error, "%s already holds prepared data; remove it, or choose another folder",
                          folder);
    }
    if (holds & HOLDS_OTHERS || (holds & HOLDS_TOKENIZER && !(holds & HOLDS_SHARDS))) {
        return error_user(error, "%s is not an empty folder; choose a new one", folder);
    }
    if (holds) look_into(open_folder(folder), true);
    return file_make_folders(folder, error);
}

static char *path_in(const char *folder, const char *name) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    if (path) snprintf(path, n, "%s/%s", folder, name);
    return path;
}

static Status save_tokenizer(const char *folder, const Tokenizer *tokenizer, Error *error) {
    char *path = path_in(folder, "tokenizer.json");
    if (!path) return error_failed(error, "out of memory: no room for a name");
    tokenizer_save(tokenizer, path, error);
    free(path);
    return error->status;
}

Status prepare_shards(InputList *list, const Tokenizer *tokenizer, const PrepareOptions *options,
                      Error *error) {
    int n_vocabulary = tokenizer_n_vocabulary(tokenizer);
    Preparation preparation = {
        .options = options,
        .shard_tokens = options->shard_tokens ? options->shard_tokens : PREPARE_SHARD_TOKENS,
        .kind = {.token_bytes = n_vocabulary <= 65536 ? 2 : 4,
                 .n_vocabulary = (uint32_t)n_vocabulary,
                 .tokenizer_hash = tokenizer_hash(tokenizer)},
        .writer = {.file = {.descriptor = -1}},
    };
    bool existed;
    TRY(claim_folder(options->folder, &existed, error));
    TRY_GOTO(write_shards(&preparation, list, tokenizer, error), done);
    TRY_GOTO(save_tokenizer(options->folder, tokenizer, error), done);
    write_manifest(&preparation, list, tokenizer, error);
done:
    shard_writer_abort(&preparation.writer);
    free(preparation.headers);
    if (error->status != STATUS_OK) {
        look_into(open_folder(options->folder), true);
        if (!existed) rmdir(options->folder);
    }
    return error->status;
}
