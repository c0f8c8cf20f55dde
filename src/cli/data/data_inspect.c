/* pgpt data inspect and verify: both read everything once. */
#include "cli/data/data.h"

#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "base/text/terminal.h"
#include "data/shards/shard_set.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- verify */

static Status open_folder(const DataCall *call, ShardSet *set, Tokenizer **tokenizer, Error *error) {
    const char *folder = call->words[0];
    if (!shard_set_is_folder(folder)) {
        return error_user(error, "%s is not a folder of prepared data; make one with 'pgpt data prepare'",
                          folder);
    }
    TRY(shard_set_open(folder, set, error));
    if (shard_set_tokenizer(set, tokenizer, error) != STATUS_OK) shard_set_close(set);
    return error->status;
}

static Status read_all(DataCall *call, const ShardSet *set, const ShardVisitor *visitor, Error *error) {
    shard_set_verify(set, data_progress(call), visitor, error);
    data_progress_end(call);
    return error->status;
}

Status data_verify(DataCall *call, Error *error) {
    uint64_t start = timer_now_ns();
    ShardSet set;
    Tokenizer *tokenizer;
    TRY(open_folder(call, &set, &tokenizer, error));
    TRY_GOTO(read_all(call, &set, NULL, error), done);
    double seconds = timer_seconds_since(start);
    log_note(&call->log, "%s: %zu files, %s, %s tokens: all checksums are right", set.folder, set.n_shards,
             format_bytes(shard_set_bytes(&set)).text, format_count((double)set.n_tokens).text);
    if (call->values->json) {
        json_t *object = json_object();
        json_object_set_new(object, "command", json_string("data verify"));
        json_object_set_new(object, "verified", json_true());
        json_object_set_new(object, "shards", json_integer((json_int_t)set.n_shards));
        json_object_set_new(object, "tokens", json_integer((json_int_t)set.n_tokens));
        json_object_set_new(object, "seconds", json_make_number(seconds));
        json_print(stdout, object, error);
    }
done:
    tokenizer_free(tokenizer);
    shard_set_close(&set);
    return error->status;
}

/* ---- inspect */

enum { MOST_LENGTHS = 17, EXCERPT_TOKENS = 64, EXCERPT_BYTES = 400, BAR_COLUMNS = 40 };

typedef struct {
    uint64_t *of_id;                  /* how often each id occurs */
    uint64_t of_length[MOST_LENGTHS]; /* tokens of 0, 1, 2 ... bytes; the last one: that many and more */
    uint64_t n_used;                  /* ids that occur */
} Counts;

static void count(void *context, const int32_t *ids, size_t n) {
    Counts *counts = context;
    for (size_t i = 0; i < n; i++) counts->of_id[ids[i]]++;
}

static void count_lengths(Counts *counts, const Tokenizer *tokenizer) {
    for (int32_t id = 0; id < tokenizer_n_vocabulary(tokenizer); id++) {
        TokenDecoder decoder = token_decoder(tokenizer);
        size_t length = token_decode(&decoder, id).n;
        if (length > MOST_LENGTHS - 1) length = MOST_LENGTHS - 1;
        counts->of_length[length] += counts->of_id[id];
        counts->n_used += counts->of_id[id] > 0;
    }
}

/* Some tokens as text on one line; a new string. Documents are shown from their beginning where one is
 * near. */
static char *excerpt(const ShardSet *set, const Tokenizer *tokenizer, uint64_t first) {
    int32_t ids[EXCERPT_TOKENS];
    uint64_t n = set->n_tokens - first < EXCERPT_TOKENS ? set->n_tokens - first : EXCERPT_TOKENS;
    char *text = malloc(4 * EXCERPT_BYTES + 8);
    if (!text) return NULL;
    shard_set_read(set, first, n, ids);
    char bytes[EXCERPT_BYTES];
    size_t n_bytes = 0;
    TokenDecoder decoder = token_decoder(tokenizer);
    for (uint64_t i = 0; i < n; i++) {
        TokenBytes piece = token_decode(&decoder, ids[i]);
        if (piece.n > sizeof bytes - n_bytes) break;
        memcpy(bytes + n_bytes, piece.bytes, piece.n);
        n_bytes += piece.n;
    }
    plain_text(text, 4 * EXCERPT_BYTES + 8, bytes, n_bytes, false);
    return text;
}

/* The places to show: evenly over the corpus, each moved to the document that begins nearest. */
static uint64_t place(const ShardSet *set, int64_t index, int64_t n) {
    uint64_t token = (uint64_t)((double)set->n_tokens * ((double)index / (double)n)), start;
    if (token >= set->n_tokens) token = set->n_tokens - 1;
    uint64_t near = set->n_tokens / (uint64_t)(2 * n);
    if (!shard_set_nearest_document(set, token, &start)) return token;
    return (start > token ? start - token : token - start) <= near ? start : token;
}

static void print_histogram(const ShardSet *set, const Counts *counts) {
    uint64_t most = 1;
    for (int i = 0; i < MOST_LENGTHS; i++) {
        if (counts->of_length[i] > most) most = counts->of_length[i];
    }
    bool utf8 = terminal_of(stdout).utf8;
    printf("\nbytes of a token\n");
    for (int i = 0; i < MOST_LENGTHS; i++) {
        if (!counts->of_length[i]) continue;
        int columns = (int)((double)counts->of_length[i] / (double)most * BAR_COLUMNS + 0.5);
        printf("  %3d%s %6.2f%%  ", i, i == MOST_LENGTHS - 1 ? "+" : " ",
               100.0 * (double)counts->of_length[i] / (double)set->n_tokens);
        for (int c = 0; c < columns; c++) fputs(utf8 ? "\u2588" : "#", stdout);
        putchar('\n');
    }
}

static void print_facts(const ShardSet *set, const Counts *counts) {
    uint64_t n_validation = set->n_tokens - set->validation_start;
    printf("%s\n", plain(set->folder).text);
    printf("  tokens      %" PRIu64 " (%s), unsigned %" PRIu32 " bit, in %s of %s\n", set->n_tokens,
           format_count((double)set->n_tokens).text, 8 * set->token_bytes,
           format_things((int64_t)set->n_shards, "file").text, format_bytes(shard_set_bytes(set)).text);
    printf("  training    %" PRIu64 "\n  validation  %" PRIu64 " (%.2f%%, from the end)\n",
           set->validation_start, n_validation, 100.0 * (double)n_validation / (double)set->n_tokens);
    printf("  documents   %" PRIu64 ", %s tokens each\n", set->n_documents,
           format_count((double)set->n_tokens / (double)(set->n_documents ? set->n_documents : 1)).text);
    printf("  text        %" PRIu64 " bytes (%s), %.3f bytes a token\n", set->n_text_bytes,
           format_bytes(set->n_text_bytes).text, (double)set->n_text_bytes / (double)set->n_tokens);
    printf("  tokenizer   %s, %" PRIu32 " symbols, of which %" PRIu64 " occur; hash %016" PRIx64 "\n",
           plain(set->tokenizer_kind).text, set->n_vocabulary, counts->n_used, set->tokenizer_hash);
    printf("  checksums   right\n");
}

static Status print_inspection_json(const ShardSet *set, const Counts *counts, json_t *excerpts,
                                    Error *error) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, set->tokenizer_hash);
    json_t *lengths = json_array(), *object = json_object();
    for (int i = 0; i < MOST_LENGTHS; i++) {
        json_array_append_new(lengths, json_integer((json_int_t)counts->of_length[i]));
    }
    json_object_set_new(object, "command", json_string("data inspect"));
    json_object_set_new(object, "tokens", json_integer((json_int_t)set->n_tokens));
    json_object_set_new(object, "validation_tokens",
                        json_integer((json_int_t)(set->n_tokens - set->validation_start)));
    json_object_set_new(object, "documents", json_integer((json_int_t)set->n_documents));
    json_object_set_new(object, "bytes", json_integer((json_int_t)set->n_text_bytes));
    json_object_set_new(object, "bytes_per_token",
                        json_make_number((double)set->n_text_bytes / (double)set->n_tokens));
    json_object_set_new(object, "shards", json_integer((json_int_t)set->n_shards));
    json_object_set_new(object, "token_bytes", json_integer((json_int_t)set->token_bytes));
    json_object_set_new(object, "tokenizer", json_make_text(set->tokenizer_kind));
    json_object_set_new(object, "tokenizer_hash", json_string(hash));
    json_object_set_new(object, "vocabulary", json_integer((json_int_t)set->n_vocabulary));
    json_object_set_new(object, "vocabulary_used", json_integer((json_int_t)counts->n_used));
    json_object_set_new(object, "token_lengths", lengths);
    json_object_set(object, "excerpts", excerpts);
    return json_print(stdout, object, error);
}

static Status print_inspection(const DataCall *call, const ShardSet *set, const Tokenizer *tokenizer,
                               const Counts *counts, Error *error) {
    int64_t n = call->values->n_excerpts;
    json_t *excerpts = json_array();
    print_facts(set, counts);
    print_histogram(set, counts);
    if (n) printf("\nexcerpts\n");
    uint64_t last = UINT64_MAX;
    for (int64_t i = 0; i < n; i++) {
        uint64_t first = place(set, i, n);
        char *text = first == last ? NULL : excerpt(set, tokenizer, first);
        last = first;
        if (!text) continue; /* a short text has fewer places than were asked for */
        printf("  %12" PRIu64 "  %s\n", first, text);
        json_array_append_new(excerpts, json_make_text(text));
        free(text);
    }
    if (call->values->json) print_inspection_json(set, counts, excerpts, error);
    json_decref(excerpts);
    return error->status;
}

Status data_inspect(DataCall *call, Error *error) {
    ShardSet set;
    Tokenizer *tokenizer;
    TRY(open_folder(call, &set, &tokenizer, error));
    Counts counts = {.of_id = calloc(set.n_vocabulary, sizeof *counts.of_id)};
    ShardVisitor visitor = {count, &counts};
    if (!counts.of_id) error_failed(error, "out of memory: no room to count the tokens of %s", set.folder);
    else if (read_all(call, &set, &visitor, error) == STATUS_OK) {
        count_lengths(&counts, tokenizer);
        print_inspection(call, &set, tokenizer, &counts, error);
    }
    free(counts.of_id);
    tokenizer_free(tokenizer);
    shard_set_close(&set);
    return error->status;
}
