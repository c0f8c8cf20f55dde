/* Tokens go straight from the encoder into shards, each of which gets its name when it is complete. The split
 * needs to know how many tokens there are, so it is made at the end, and costs nothing: it is a number in the
 * manifest, the first token that is held out. Taking the end of the corpus keeps the training part one run of
 * text, and is what a text that is not prepared is split like.
 *
 * All of it is written beside the folder that it is to be, which appears when it is complete: two that
 * prepare into the same one do not meet, and one that is killed leaves nothing in it
 * (base/file/staged_folder.h). */
#include "data/shards/prepare.h"

#include "base/file/staged_folder.h"
#include "data/shards/prepare_encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const PrepareOptions *options;
    const char *folder; /* that is written */
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
    char *path = shard_set_path(preparation->folder, preparation->n_shards);
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

/* A place near a token where it does no harm to cut: behind a blank line or the end of a text, else behind a
 * line end, else right there. Looks forward only. */
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
    ShardManifest manifest = {.folder = preparation->folder,
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

/* tokens-00003.bin and its kin, and what they are called while they are written. */
static bool is_ours(const char *name) {
    static const char *const known[] = {"manifest.json", "tokenizer.json"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i]) == 0 || path_is_temporary(name, known[i])) return true;
    }
    size_t n_digits = strncmp(name, "tokens-", 7) == 0 ? strspn(name + 7, "0123456789") : 0;
    const char *ending = name + 7 + n_digits;
    return n_digits >= 5 && (strcmp(ending, ".bin") == 0 || path_is_temporary(ending, ".bin"));
}

void prepare_remove(const char *path) {
    const char *above, *name;
    Arena arena = {0};
    Folder folder;
    Error ignored = {0};
    path_split(path, &arena, &above, &name);
    if (folder_open(&folder, above, &ignored) == STATUS_OK) {
        folder_remove(&folder, name, is_ours, &ignored);
        folder_close(&folder);
    }
    arena_free(&arena);
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
    StagedFolder staged;
    if (shard_set_is_folder(options->folder))
        return error_user(error, "%s already holds prepared data; remove it, or choose another folder",
                          options->folder);
    TRY(staged_folder_open(&staged, options->folder, error));
    preparation.folder = staged.temporary;
    TRY_GOTO(write_shards(&preparation, list, tokenizer, error), done);
    TRY_GOTO(save_tokenizer(staged.temporary, tokenizer, error), done);
    TRY_GOTO(write_manifest(&preparation, list, tokenizer, error), done);
    staged_folder_commit(&staged, error);
done:
    shard_writer_abort(&preparation.writer);
    free(preparation.headers);
    staged_folder_abort(&staged);
    return error->status;
}
