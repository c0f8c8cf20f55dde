/* pgpt data encode and decode: a text as numbers, and numbers as a text, of any length. */
#include "cli/data/data.h"

#include "base/system/timer.h"
#include "base/text/plain.h"
#include "data/shards/prepare_encode.h"
#include "data/shards/shard_set.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- encode */

typedef struct {
    uint64_t n_tokens, n_bytes;
} Counts;

static Status write_ids(void *context, const int32_t *ids, size_t n, Error *error) {
    Counts *counts = context;
    for (size_t i = 0; i < n; i++) {
        char digits[16], *at = digits + sizeof digits;
        uint32_t id = (uint32_t)ids[i];
        do *--at = (char)('0' + id % 10);
        while (id /= 10);
        if (counts->n_tokens++) *--at = ' ';
        fwrite(at, 1, (size_t)(digits + sizeof digits - at), stdout);
    }
    return ferror(stdout) ? error_failed(error, "cannot write to standard output: %s", strerror(errno))
                          : STATUS_OK;
}

static Status count_bytes(void *context, uint64_t n_bytes, Error *error) {
    (void)error;
    ((Counts *)context)->n_bytes += n_bytes;
    return STATUS_OK;
}

static Status encode_texts(DataCall *call, const Tokenizer *tokenizer, Counts *counts, Error *error) {
    InputList list;
    TokenSink sink = {.tokens = write_ids, .text = count_bytes, .context = counts};
    TRY(data_open_inputs(call, &list, error));
    Progress *progress =
        call->values->json ? data_progress(call) : NULL; /* ids on a terminal are progress enough */
    encode_inputs(&list, tokenizer, (int)call->values->n_threads, progress, &sink, error);
    data_progress_end(call);
    input_list_close(&list);
    return error->status;
}

/* Prepared data has its ids already, if they are those of this tokenizer. */
static Status encode_shards(const char *folder, const Tokenizer *tokenizer, Counts *counts, Error *error) {
    enum { BLOCK = 1 << 16 };
    static int32_t ids[BLOCK];
    ShardSet set;
    TRY(shard_set_open(folder, &set, error));
    ShardTokenizer wanted = {"--tokenizer", tokenizer_kind(tokenizer), tokenizer_hash(tokenizer),
                             tokenizer_n_vocabulary(tokenizer)};
    ShardTokenizer found = {folder, set.tokenizer_kind, set.tokenizer_hash, (int)set.n_vocabulary};
    TRY_GOTO(shard_tokenizers_match(&wanted, &found, error), done);
    for (uint64_t at = 0; at < set.n_tokens; at += BLOCK) {
        uint64_t n = set.n_tokens - at < BLOCK ? set.n_tokens - at : BLOCK;
        shard_set_read(&set, at, n, ids);
        TRY_GOTO(write_ids(counts, ids, (size_t)n, error), done);
    }
    counts->n_bytes = set.n_text_bytes;
done:
    shard_set_close(&set);
    return error->status;
}

static Status encode(DataCall *call, const Tokenizer *tokenizer, Error *error) {
    uint64_t start = timer_now_ns();
    Counts counts = {0};
    if (call->n_words == 1 && shard_set_is_folder(call->words[0]))
        TRY(encode_shards(call->words[0], tokenizer, &counts, error));
    else TRY(encode_texts(call, tokenizer, &counts, error));
    putchar('\n');
    if (!call->values->json) return STATUS_OK;
    double seconds = timer_seconds_since(start);
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("data encode"));
    json_object_set_new(object, "tokens", json_integer((json_int_t)counts.n_tokens));
    json_object_set_new(object, "bytes", json_integer((json_int_t)counts.n_bytes));
    json_object_set_new(object, "tokenizer", json_make_text(tokenizer_kind(tokenizer)));
    json_object_set_new(object, "vocabulary", json_integer(tokenizer_n_vocabulary(tokenizer)));
    json_object_set_new(object, "seconds", json_make_number(seconds));
    return json_print(stdout, object, error);
}

Status data_encode(DataCall *call, Error *error) {
    Tokenizer *tokenizer = NULL;
    TRY(data_open_tokenizer(call, &tokenizer, error));
    encode(call, tokenizer, error);
    tokenizer_free(tokenizer);
    return error->status;
}

/* ---- decode */

typedef struct {
    const char *name;
    FILE *file;
    uint64_t at; /* bytes read */
} IdReader;

static Status refuse(const IdReader *reader, int c, Error *error) {
    char shown[8];
    snprintf(shown, sizeof shown, c > ' ' && c < 0x7F ? "'%c'" : "\\x%02X", c);
    return error_user(error, "%s: byte %" PRIu64 " is %s; give ids, whole numbers separated by blanks",
                      reader->name, reader->at, shown);
}

/* The next id; false in `*more` at the end. */
static Status read_id(IdReader *reader, const Tokenizer *tokenizer, int32_t *id, bool *more, Error *error) {
    int n_vocabulary = tokenizer_n_vocabulary(tokenizer), c, n_digits = 0;
    uint64_t value = 0, first = 0;
    while ((c = getc_unlocked(reader->file)) != EOF) {
        reader->at++;
        bool blank = c == ' ' || (c >= '\t' && c <= '\r');
        if (blank && n_digits) break;
        if (blank) continue;
        if (c < '0' || c > '9') return refuse(reader, c, error);
        if (n_digits++ == 0) first = reader->at;
        value = value * 10 + (uint64_t)(c - '0');
        if (value < (uint64_t)n_vocabulary) continue;
        return error_user(error,
                          "%s: the id that begins at byte %" PRIu64 " is too large: the vocabulary has %d",
                          reader->name, first, n_vocabulary);
    }
    if (c == EOF && ferror(reader->file)) {
        return error_user(error, "cannot read %s: %s", reader->name, strerror(errno));
    }
    *more = n_digits > 0;
    *id = (int32_t)value;
    return STATUS_OK;
}

/* A block is read before any of it is written, so that a mistake in a short input leaves no half of a
 * text. */
static Status decode(IdReader *reader, const Tokenizer *tokenizer, Error *error) {
    enum { BLOCK = 1 << 16 };
    static int32_t ids[BLOCK];
    TokenDecoder decoder = token_decoder(tokenizer);
    PlainWriter writer = plain_writer(stdout);
    for (bool more = true; more;) {
        size_t n = 0;
        while (n < BLOCK) {
            TRY(read_id(reader, tokenizer, &ids[n], &more, error));
            if (!more) break;
            n++;
        }
        for (size_t i = 0; i < n; i++) {
            TokenBytes piece = token_decode(&decoder, ids[i]);
            plain_write(&writer, piece.bytes, piece.n);
        }
    }
    plain_end(&writer);
    return STATUS_OK;
}

Status data_decode(DataCall *call, Error *error) {
    Tokenizer *tokenizer = NULL;
    bool from_stdin = call->n_words == 0 || strcmp(call->words[0], "-") == 0;
    TRY(data_open_tokenizer(call, &tokenizer, error));
    IdReader reader = {from_stdin ? "standard input" : call->words[0], stdin, 0};
    if (!from_stdin) reader.file = fopen(reader.name, "rb");
    if (!reader.file) error_user(error, "cannot read %s: %s", reader.name, strerror(errno));
    else decode(&reader, tokenizer, error);
    if (reader.file && !from_stdin) fclose(reader.file);
    tokenizer_free(tokenizer);
    return error->status;
}
