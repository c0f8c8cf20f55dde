/* Lines to tokens. All texts of a set lie in one array of tokens and all losses in one of floats, so that a
 * set of a million short texts is a handful of allocations; the texts' pointers are set when the arrays have
 * stopped growing. */
#define _GNU_SOURCE /* asprintf */
#include "infer/score_set.h"

#include "base/system/memory.h"
#include "base/text/json.h"
#include "data/dataset.h"
#include "data/names.h"
#include "data/shards/shard_set.h"
#include "data/text.h"
#include "infer/score_shards.h"

#include <stdlib.h>
#include <string.h>

void score_set_init(ScoreSet *set, ScoreKind kind, const Tokenizer *tokenizer) {
    *set = (ScoreSet){.kind = kind, .tokenizer = tokenizer};
}

void score_set_free(ScoreSet *set) {
    token_array_free(&set->tokens);
    free(set->texts);
    free(set->items);
    memory_free(set->losses, sizeof(float) * (size_t)set->n_scored);
    *set = (ScoreSet){0};
}

/* Room for one more element of an array that doubles. */
static Status grow(void **array, int64_t n, int64_t *capacity, size_t element_bytes, Error *error) {
    if (n < *capacity) return STATUS_OK;
    int64_t wanted = *capacity ? *capacity * 2 : 64;
    void *larger = realloc(*array, element_bytes * (size_t)wanted);
    if (!larger) return error_failed(error, "out of memory: no room for %lld texts", (long long)wanted);
    *array = larger;
    *capacity = wanted;
    return STATUS_OK;
}

Status score_set_add_text(ScoreSet *set, int64_t n_tokens, int64_t n_given, size_t n_bytes, Error *error) {
    void *texts = set->texts;
    TRY(grow(&texts, set->n_texts, &set->texts_capacity, sizeof *set->texts, error));
    set->texts = texts;
    set->texts[set->n_texts++] =
        (ScoreText){.n_tokens = n_tokens, .n_given = n_given, .n_bytes = (int64_t)n_bytes};
    return STATUS_OK;
}

Status score_set_add_item(ScoreSet *set, int64_t first_text, int64_t label, Error *error) {
    void *items = set->items;
    TRY(grow(&items, set->n_items, &set->items_capacity, sizeof *set->items, error));
    set->items = items;
    set->items[set->n_items++] =
        (ScoreItem){.first_text = first_text, .n_texts = set->n_texts - first_text, .label = label};
    return STATUS_OK;
}

static Status append_tokens(TokenArray *to, const int32_t *ids, size_t n, Error *error) {
    TRY(token_array_reserve(to, n, error));
    if (n) memcpy(to->ids + to->n, ids, sizeof *ids * n);
    to->n += n;
    return STATUS_OK;
}

/* ---- running text */

/* As much of the document as has the tokens that are wanted; not the rest of a huge file. */
static Status encode_start(ScoreSet *set, const char *bytes, size_t n_bytes, int64_t wanted, bool *is_whole,
                           Error *error) {
    enum { BYTES_PER_TOKEN = 16 };
    size_t n_before = set->tokens.n, n_tried = n_bytes;
    if (wanted && (uint64_t)wanted < n_bytes / BYTES_PER_TOKEN) n_tried = (size_t)wanted * BYTES_PER_TOKEN;
    for (;; n_tried *= 4) {
        if (n_tried > n_bytes) n_tried = n_bytes;
        size_t n_cut = n_tried < n_bytes ? tokenizer_cut(set->tokenizer, bytes, n_tried) : n_bytes;
        set->tokens.n = n_before;
        TRY(tokenizer_encode(set->tokenizer, bytes, n_cut, &set->tokens, error));
        *is_whole = n_cut == n_bytes;
        if (*is_whole || (int64_t)(set->tokens.n - n_before) >= wanted) break;
    }
    if (wanted && (int64_t)(set->tokens.n - n_before) > wanted) {
        set->tokens.n = n_before + (size_t)wanted;
        *is_whole = false;
    }
    return STATUS_OK;
}

size_t score_decoded_bytes(const Tokenizer *tokenizer, const int32_t *ids, size_t first, size_t n) {
    TokenDecoder decoder = token_decoder(tokenizer);
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        TokenBytes piece = token_decode(&decoder, ids[i]);
        if (i >= first) n_bytes += piece.n;
    }
    return n_bytes;
}

static Status add_document(ScoreSet *set, const char *name, const char *bytes, size_t n_bytes, int64_t wanted,
                           Error *error) {
    size_t first = set->tokens.n;
    bool is_whole;
    if (encode_start(set, bytes, n_bytes, wanted, &is_whole, error) != STATUS_OK)
        return error_prefix(error, "%s: ", name);
    size_t n_tokens = set->tokens.n - first;
    if (n_tokens < 2) { /* nothing follows anything */
        set->tokens.n = first;
        return STATUS_OK;
    }
    const int32_t *ids = set->tokens.ids + first;
    /* The file's own bytes where possible: a tokenizer that is not exact (word) would count its own
     * spelling. */
    size_t n_first = score_decoded_bytes(set->tokenizer, ids, 0, 1);
    size_t n_scored_bytes = is_whole ? n_bytes - (n_first < n_bytes ? n_first : n_bytes)
                                     : score_decoded_bytes(set->tokenizer, ids, 1, n_tokens);
    int64_t first_text = set->n_texts;
    TRY(score_set_add_text(set, (int64_t)n_tokens, 1, n_scored_bytes, error));
    return score_set_add_item(set, first_text, 0, error);
}

static Status read_documents(ScoreSet *set, const Text *text, const ScoreReadOptions *options, Error *error) {
    for (size_t i = 0; i < text->n_documents; i++) {
        const TextDocument *document = &text->documents[i];
        int64_t n_left = options->most_tokens ? options->most_tokens - (int64_t)set->tokens.n : 0;
        if (options->most_tokens && n_left <= 0) break;
        TRY(add_document(set, document->name, text->bytes + document->first, document->n_bytes, n_left,
                         error));
    }
    return STATUS_OK;
}

/* The built-in corpus is what most small models were trained on. Of its tokens only those are scored that
 * training holds out, counted as dataset_from_text does. */
static Status read_builtin(ScoreSet *set, const Text *text, const ScoreReadOptions *options, Error *error) {
    size_t first = set->tokens.n;
    int64_t n_left = options->most_tokens - (int64_t)first, first_text = set->n_texts;
    if (options->most_tokens && n_left <= 0) return STATUS_OK;
    TRY(tokenizer_encode(set->tokenizer, text->bytes, text->n_bytes, &set->tokens, error));
    size_t n_all = set->tokens.n - first;
    size_t n = (size_t)((double)n_all * DATASET_DEFAULT_VALIDATION_FRACTION);
    int32_t *ids = set->tokens.ids + first;
    if (n) memmove(ids, ids + n_all - n, n * sizeof *ids);
    if (options->most_tokens && n > (size_t)n_left) n = (size_t)n_left;
    set->tokens.n = n < 2 ? first : first + n;
    if (n < 2) return STATUS_OK; /* nothing follows anything */
    set->n_builtin = (int64_t)n_all;
    TRY(score_set_add_text(set, (int64_t)n, 1, score_decoded_bytes(set->tokenizer, ids, 1, n), error));
    return score_set_add_item(set, first_text, 0, error);
}

/* ---- beginnings and continuations */

typedef struct {
    const char *bytes;
    size_t n;
} Span;

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static Span trimmed_end(Span span) {
    while (span.n && is_blank(span.bytes[span.n - 1])) span.n--;
    return span;
}

/* What a line needs beside the set: where messages point to, and room that is used again for every line. */
typedef struct {
    ScoreSet *set;
    const ScoreReadOptions *options;
    char place[512];     /* "file:12" */
    TokenArray context;  /* of the line */
    bool has_context;    /* else those are only what a text begins with */
    TokenArray together; /* context and continuation */
    char *joined;
    size_t joined_capacity;
} LineReader;

static Status encode_context(LineReader *reader, Span context, const char *field, Error *error) {
    const Tokenizer *tokenizer = reader->set->tokenizer;
    reader->context.n = 0;
    if (tokenizer_encode(tokenizer, context.bytes, context.n, &reader->context, error) != STATUS_OK)
        return error_prefix(error, "%s: %s", reader->place, field);
    reader->has_context = reader->context.n > 0;
    if (reader->has_context) return STATUS_OK;
    int32_t end = tokenizer_end_of_text(tokenizer);
    if (end >= 0) return append_tokens(&reader->context, &end, 1, error);
    Error ignored = {0};
    if (tokenizer_encode(tokenizer, "\n", 1, &reader->context, &ignored) == STATUS_OK && reader->context.n)
        return STATUS_OK;
    return error_user(error,
                      "%s: %sit is empty, and the tokenizer has no token that a text can begin with; give a "
                      "context",
                      reader->place, field);
}

/* Are the tokens of both the context's, and then some more? False too if the two cannot be encoded. */
static bool encode_together(LineReader *reader, Span context, Span continuation) {
    size_t n_bytes = context.n + continuation.n;
    if (n_bytes > reader->joined_capacity) {
        char *larger = realloc(reader->joined, n_bytes);
        if (!larger) return false;
        reader->joined = larger;
        reader->joined_capacity = n_bytes;
    }
    if (!n_bytes) return false;
    memcpy(reader->joined, context.bytes, context.n);
    memcpy(reader->joined + context.n, continuation.bytes, continuation.n);
    Error ignored = {0};
    TokenArray *together = &reader->together;
    const TokenArray *given = &reader->context;
    together->n = 0;
    if (tokenizer_encode(reader->set->tokenizer, reader->joined, n_bytes, together, &ignored) != STATUS_OK)
        return false;
    return together->n > given->n && memcmp(together->ids, given->ids, sizeof *given->ids * given->n) == 0;
}

/* A text of the context that was encoded last and a continuation of it. */
static Status add_continuation(LineReader *reader, Span context, Span continuation, const char *field,
                               Error *error) {
    ScoreSet *set = reader->set;
    const TokenArray *given = &reader->context;
    size_t first = set->tokens.n;
    if (reader->has_context && encode_together(reader, context, continuation)) {
        TRY(append_tokens(&set->tokens, reader->together.ids, reader->together.n, error));
    } else {
        TRY(append_tokens(&set->tokens, given->ids, given->n, error));
        if (tokenizer_encode(set->tokenizer, continuation.bytes, continuation.n, &set->tokens, error) !=
            STATUS_OK)
            return error_prefix(error, "%s: %s", reader->place, field);
    }
    size_t n_tokens = set->tokens.n - first;
    if (n_tokens == given->n) {
        return error_user(error, "%s: %sit has no tokens, so there is nothing to score; give it some text",
                          reader->place, field);
    }
    return score_set_add_text(set, (int64_t)n_tokens, (int64_t)given->n, continuation.n, error);
}

/* ---- lines */

static Status parse_line(const LineReader *reader, Span line, json_t **object, Error *error) {
    json_error_t where;
    *object = json_loadb(line.bytes, line.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (*object) return STATUS_OK;
    return error_user(error, "%s: not valid JSON at byte %d: %s; each line must be one object", reader->place,
                      where.position, where.text);
}

static Status add_choices(LineReader *reader, const json_t *object, const json_t *choices, Error *error) {
    const char *text, *delimiter = reader->options->delimiter ? reader->options->delimiter : "";
    TRY(json_field_text(object, reader->place, "context", &text, error));
    Span whole = {text, strlen(text)}, context = trimmed_end(whole);
    if (!context.n) context = whole; /* blanks alone stay where they are */
    TRY(encode_context(reader, context, "field 'context': ", error));
    for (size_t i = 0; i < json_array_size(choices); i++) {
        char field[64];
        const json_t *choice = json_array_get(choices, i);
        snprintf(field, sizeof field, "field 'choices', number %zu: ", i);
        if (!json_is_string(choice)) return error_user(error, "%s: %sit wants a text", reader->place, field);
        if (!json_string_length(choice)) return error_user(error, "%s: %sit is empty", reader->place, field);
        char *both = NULL;
        int n = asprintf(&both, "%s%s%s", context.bytes + context.n, delimiter, json_string_value(choice));
        if (n < 0) return error_failed(error, "out of memory: no room for a choice");
        add_continuation(reader, context, (Span){both, (size_t)n}, field, error);
        free(both);
        TRY(error->status);
    }
    return STATUS_OK;
}

static Status read_choice_line(LineReader *reader, Span line, Error *error) {
    json_t *object, *choices;
    int64_t label, first_text = reader->set->n_texts;
    TRY(parse_line(reader, line, &object, error));
    TRY_GOTO(json_field_array(object, reader->place, "choices", &choices, error), done);
    if (json_array_size(choices) < 2) {
        error_user(error, "%s: field 'choices' has %zu of them; give at least two", reader->place,
                   json_array_size(choices));
        goto done;
    }
    TRY_GOTO(json_field_int(object, reader->place, "label", 0, (int64_t)json_array_size(choices) - 1, &label,
                            error),
             done);
    TRY_GOTO(add_choices(reader, object, choices, error), done);
    score_set_add_item(reader->set, first_text, label, error);
done:
    json_decref(object);
    return error->status;
}

static Status add_last_word(LineReader *reader, Span text, const char *field, Error *error) {
    int64_t first_text = reader->set->n_texts;
    text = trimmed_end(text);
    size_t at = text.n;
    while (at > 0 && !is_blank(text.bytes[at - 1])) at--;
    Span context = {text.bytes, at ? at - 1 : 0}, word = {text.bytes + context.n, text.n - context.n};
    if (!trimmed_end(context).n) {
        return error_user(
            error, "%s: %sit has %s, so there is nothing to predict the last word from; give a longer text",
            reader->place, field, text.n ? "only one word" : "no words");
    }
    TRY(encode_context(reader, context, field, error));
    TRY(add_continuation(reader, context, word, field, error));
    return score_set_add_item(reader->set, first_text, 0, error);
}

static Status read_last_word_line(LineReader *reader, Span line, bool is_json, Error *error) {
    if (!is_json) return add_last_word(reader, line, "", error);
    json_t *object;
    const char *text;
    TRY(parse_line(reader, line, &object, error));
    if (json_field_text(object, reader->place, "text", &text, error) == STATUS_OK)
        add_last_word(reader, (Span){text, strlen(text)}, "field 'text': ", error);
    json_decref(object);
    return error->status;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* By its name if that says so, else by how it begins. */
static bool holds_json(const TextDocument *document, const char *bytes, size_t at) {
    if (ends_with(document->name, ".jsonl") || ends_with(document->name, ".json")) return true;
    while (at < document->n_bytes && is_blank(bytes[at])) at++;
    return !ends_with(document->name, ".txt") && at < document->n_bytes && bytes[at] == '{';
}

static Status read_document_lines(LineReader *reader, const TextDocument *document, const char *bytes,
                                  Error *error) {
    const ScoreSet *set = reader->set;
    size_t n_mark = json_mark_bytes(bytes, document->n_bytes);
    bool is_json = set->kind == SCORE_CHOICE || holds_json(document, bytes, n_mark);
    int64_t n_line = 0;
    for (size_t at = is_json ? n_mark : 0; at < document->n_bytes;) {
        const char *end = memchr(bytes + at, '\n', document->n_bytes - at);
        Span line = {bytes + at, end ? (size_t)(end - (bytes + at)) : document->n_bytes - at};
        at += line.n + 1;
        n_line++;
        if (reader->options->most_items && set->n_items >= reader->options->most_items) break;
        if (!trimmed_end(line).n) continue;
        snprintf(reader->place, sizeof reader->place, "%.480s:%lld", document->name, (long long)n_line);
        TRY(set->kind == SCORE_CHOICE ? read_choice_line(reader, line, error)
                                      : read_last_word_line(reader, line, is_json, error));
    }
    return STATUS_OK;
}

static Status read_lines(ScoreSet *set, const Text *text, const ScoreReadOptions *options, Error *error) {
    LineReader reader = {.set = set, .options = options};
    for (size_t i = 0; i < text->n_documents && error->status == STATUS_OK; i++) {
        const TextDocument *document = &text->documents[i];
        read_document_lines(&reader, document, text->bytes + document->first, error);
    }
    token_array_free(&reader.context);
    token_array_free(&reader.together);
    free(reader.joined);
    return error->status;
}

/* ---- the whole */

Status score_set_place_texts(ScoreSet *set, Error *error) {
    const int32_t *tokens = set->tokens.ids;
    for (int64_t i = 0; i < set->n_texts; i++) {
        ScoreText *text = &set->texts[i];
        text->tokens = tokens;
        tokens += text->n_tokens;
        set->n_scored += text->n_tokens - text->n_given;
    }
    void *losses;
    if (memory_alloc(&losses, sizeof(float) * (size_t)set->n_scored, "the losses", error) != STATUS_OK) {
        set->n_scored = 0;
        return error->status;
    }
    set->losses = losses;
    float *next = losses;
    for (int64_t i = 0; i < set->n_texts; i++) {
        set->texts[i].losses = next;
        next += set->texts[i].n_tokens - set->texts[i].n_given;
    }
    return STATUS_OK;
}

static Status read_source(ScoreSet *set, const char *source, const ScoreReadOptions *options, Error *error) {
    Text text;
    if (set->kind == SCORE_TEXT && shard_set_is_folder(source))
        return score_shards_read(set, source, options, error);
    TRY(text_load(&source, 1, set->kind == SCORE_TEXT ? TEXT_DOCUMENTS : TEXT_FILES, &text, error));
    if (set->kind == SCORE_TEXT && strcmp(source, "builtin") == 0) read_builtin(set, &text, options, error);
    else if (set->kind == SCORE_TEXT) read_documents(set, &text, options, error);
    else read_lines(set, &text, options, error);
    text_free(&text);
    return error->status;
}

Status score_set_read(ScoreSet *set, const char *data, const ScoreReadOptions *options, Error *error) {
    DataNames names = {0};
    TRY_GOTO(data_names_add_plain(&names, data, "--data", error), done);
    for (size_t i = 0; i < names.n; i++)
        TRY_GOTO(read_source(set, names.names[i].name, options, error), done);
    if (set->kind == SCORE_TEXT && !set->n_texts) {
        error_user(error, "%s has fewer than two tokens: there is nothing to predict; give a longer text%s",
                   data, options->most_tokens == 1 ? " or a larger --tokens-limit" : "");
    } else if (!set->n_items) {
        error_user(error, "%s has only empty lines; there is nothing to evaluate", data);
    }
done:
    data_names_free(&names);
    return error->status == STATUS_OK ? score_set_place_texts(set, error) : error->status;
}
