/* Hugging Face's tokenizer.json, of the byte-level BPE kind:
 *
 *     {"added_tokens": [{"id": 50256, "content": "<|endoftext|>", ...}],
 *      "normalizer": null,
 *      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
 *      "model": {"type": "BPE", "vocab": {"!": 0, ...}, "merges": ["Ġ t", ...]}, ...}
 *
 * Another split pattern stands in a Sequence of Split and ByteLevel. What would give other ids than we do (a
 * normalizer, a blank put in front, tokens that swallow blanks, dropout) is refused by the field's name; what
 * adds tokens around a text (post_processor), and truncation and padding, is not our business and is passed
 * over. */
#include "data/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

/* ---- Reading ---- */

/* Optional fields that must be off: absent, null, false, 0, "" or empty. */
static bool is_off(const json_t *value) {
    if (!value || json_is_null(value) || json_is_false(value)) return true;
    if (json_is_string(value)) return json_string_length(value) == 0;
    return json_is_number(value) && json_number_value(value) == 0.0;
}

static Status require_off(const json_t *object, const char *path, const char *where, const char *field,
                          Error *error) {
    if (is_off(json_object_get(object, field))) return STATUS_OK;
    return error_user(error, "%s: field '%s%s' is set, which is not supported", path, where, field);
}

static const char *type_of(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "nothing";
}

/* A ByteLevel pre-tokenizer, with or without a pattern of its own. */
static Status read_byte_level(const json_t *object, const char *path, bool *use_regex, Error *error) {
    if (strcmp(type_of(object), "ByteLevel") != 0) {
        return error_user(
            error,
            "%s: field 'pre_tokenizer': %.40s is not supported; wants ByteLevel, alone or after one "
            "Split in a Sequence",
            path, type_of(object));
    }
    TRY(require_off(object, path, "pre_tokenizer.", "add_prefix_space", error));
    *use_regex = !json_is_false(json_object_get(object, "use_regex"));
    return STATUS_OK;
}

static Status read_split(const json_t *object, const char *path, const char **pattern, Error *error) {
    if (strcmp(type_of(object), "Split") != 0) {
        return error_user(error,
                          "%s: field 'pre_tokenizer': %.40s is not supported; wants one Split and ByteLevel",
                          path, type_of(object));
    }
    *pattern = json_string_value(json_object_get(json_object_get(object, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(object, "behavior"));
    if (!*pattern)
        return error_user(error, "%s: field 'pre_tokenizer.pattern' wants {\"Regex\": \"...\"}", path);
    if (!behavior || strcmp(behavior, "Isolated") != 0) {
        return error_user(error, "%s: field 'pre_tokenizer.behavior' wants \"Isolated\"", path);
    }
    return require_off(object, path, "pre_tokenizer.", "invert", error);
}

static Status read_pre_tokenizer(const json_t *object, const char *path, const char **pattern, Error *error) {
    bool use_regex = false;
    *pattern = pretokenizer_gpt2;
    if (strcmp(type_of(object), "Sequence") != 0) {
        TRY(read_byte_level(object, path, &use_regex, error));
        if (use_regex) return STATUS_OK;
        return error_user(error, "%s: field 'pre_tokenizer.use_regex': without a pattern is not supported",
                          path);
    }
    const json_t *steps = json_object_get(object, "pretokenizers");
    size_t n = json_array_size(steps);
    if (n < 1 || n > 2) {
        return error_user(
            error, "%s: field 'pre_tokenizer.pretokenizers' wants one Split and ByteLevel, has %zu steps",
            path, n);
    }
    TRY(read_byte_level(json_array_get(steps, n - 1), path, &use_regex, error));
    if (n == 2) TRY(read_split(json_array_get(steps, 0), path, pattern, error));
    if (use_regex == (n == 1)) return STATUS_OK;
    return error_user(error, "%s: field 'pre_tokenizer': wants exactly one pattern, in Split or in ByteLevel",
                      path);
}

/* One added token into the vocabulary. */
static Status put_added(BpeVocabulary *vocabulary, const json_t *token, const char *path, size_t index,
                        Error *error) {
    const char *content;
    int64_t id;
    char place[512];
    snprintf(place, sizeof place, "%s: added_tokens[%zu]", path, index);
    TRY(json_field_text(token, place, "content", &content, error));
    TRY(json_field_int(token, place, "id", 0, SYMBOLS_MAX, &id, error));
    static const char *const off[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        TRY(require_off(token, place, "", off[i], error));
    }
    if (bpe_vocabulary_put(vocabulary, id, content, strlen(content), true, error) != STATUS_OK) {
        return error_prefix(error, "%s: ", place);
    }
    return STATUS_OK;
}

/* One token of the model's own, unless it is an added one too. */
static Status put_token(BpeVocabulary *vocabulary, const char *text, const json_t *value, Error *error) {
    size_t n_text = strlen(text), n_bytes = 0;
    char bytes[2 * BPE_MAX_TOKEN_BYTES];
    if (!json_is_integer(value)) return error_user(error, "the id must be a whole number");
    int64_t id = json_integer_value(value);
    if (id >= 0 && (uint64_t)id < vocabulary->n && vocabulary->entries[id].special) {
        const BpeEntry *entry = &vocabulary->entries[id];
        if (entry->n_bytes == n_text && memcmp(vocabulary->pool + entry->start, text, n_text) == 0)
            return STATUS_OK;
    }
    if (n_text > sizeof bytes) return error_user(error, "has %zu bytes: too long", n_text);
    if (!bpe_bytes_of_text(text, n_text, bytes, &n_bytes)) {
        return error_user(error, "is not written in byte-level characters; only byte-level BPE is supported");
    }
    return bpe_vocabulary_put(vocabulary, id, bytes, n_bytes, false, error);
}

static Status read_tokens(const json_t *tokens, const json_t *added, const char *path, Tokenizer *tokenizer,
                          Error *error) {
    BpeVocabulary vocabulary = {0};
    size_t n = json_object_size(tokens), index;
    const char *text;
    json_t *value;
    json_array_foreach(added, index, value) {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (!content || !json_object_get(tokens, content)) n++;
    }
    TRY_GOTO(bpe_vocabulary_new(&vocabulary, n, error), done);
    json_array_foreach(added, index, value) {
        TRY_GOTO(put_added(&vocabulary, value, path, index, error), done);
    }
    json_object_foreach((json_t *)tokens, text, value) {
        if (put_token(&vocabulary, text, value, error) == STATUS_OK) continue;
        error_prefix(error, "%s: field 'model.vocab', token \"%.40s\": ", path, text);
        goto done;
    }
    if (bpe_vocabulary_fill(&vocabulary, tokenizer, error) != STATUS_OK) {
        error_prefix(error, "%s: field 'model.vocab': ", path);
    }
done:
    bpe_vocabulary_free(&vocabulary);
    return error->status;
}

static Status read_merges(const json_t *merges, const char *path, Tokenizer *tokenizer, Error *error) {
    size_t index;
    const json_t *merge;
    json_array_foreach(merges, index, merge) {
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
        if (json_is_string(merge)) {
            TRY_GOTO(
                bpe_add_merge_line(tokenizer, json_string_value(merge), json_string_length(merge), error),
                named);
        } else if (json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right)) {
            TRY_GOTO(bpe_add_text_merge(tokenizer, json_string_value(left), json_string_length(left),
                                        json_string_value(right), json_string_length(right), error),
                     named);
        } else {
            error_user(error, "must be \"left right\" or [\"left\", \"right\"]");
            goto named;
        }
    }
    return STATUS_OK;
named:
    return error_prefix(error, "%s: field 'model.merges', merge %zu: ", path, index + 1);
}

static Status read_all(const json_t *object, const char *path, Tokenizer *tokenizer, Error *error) {
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                      "byte_fallback"};
    const char *pattern;
    json_t *model, *tokens, *merges, *added = json_object_get(object, "added_tokens");
    TRY(json_field_object(object, path, "model", &model, error));
    const json_t *type = json_object_get(model, "type");
    if (type && strcmp(type_of(model), "BPE") != 0) {
        return error_user(error, "%s: field 'model.type' is %.40s; only BPE is supported", path,
                          type_of(model));
    }
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        TRY(require_off(model, path, "model.", off[i], error));
    TRY(require_off(object, path, "", "normalizer", error));
    TRY(read_pre_tokenizer(json_object_get(object, "pre_tokenizer"), path, &pattern, error));
    TRY(json_field_object(model, path, "vocab", &tokens, error));
    TRY(json_field_array(model, path, "merges", &merges, error));
    if (added && !json_is_null(added)) TRY(json_field_array(object, path, "added_tokens", &added, error));
    TRY(read_tokens(tokens, added, path, tokenizer, error));
    TRY(read_merges(merges, path, tokenizer, error));
    bpe_of(tokenizer)->whole_words = json_is_true(json_object_get(model, "ignore_merges"));
    bpe_of(tokenizer)->allow_special = true;
    if (bpe_tokenizer_finish(tokenizer, pattern, error) != STATUS_OK)
        return error_prefix(error, "%s: ", path);
    return STATUS_OK;
}

Status bpe_from_huggingface(const json_t *object, const char *path, Tokenizer **tokenizer, Error *error) {
    TRY(bpe_tokenizer_new(tokenizer, error));
    if (read_all(object, path, *tokenizer, error) == STATUS_OK) return STATUS_OK;
    tokenizer_free(*tokenizer);
    *tokenizer = NULL;
    return error->status;
}

/* ---- Writing ---- */

static json_t *pre_tokenizer_to_json(const char *pattern) {
    bool is_gpt2 = strcmp(pattern, pretokenizer_gpt2) == 0;
    json_t *byte_level = json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                                   "trim_offsets", 1, "use_regex", is_gpt2);
    if (is_gpt2 || !byte_level) return byte_level;
    return json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},o]}", "type", "Sequence", "pretokenizers", "type",
                     "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "invert", 0, byte_level);
}

static json_t *added_to_json(const Tokenizer *tokenizer) {
    const Bpe *bpe = bpe_of(tokenizer);
    json_t *added = json_array();
    int32_t previous = -1;
    for (size_t i = 0; added && i < bpe->n_specials; i++) { /* in the order of their ids */
        int32_t id = INT32_MAX;
        for (size_t k = 0; k < bpe->n_specials; k++) {
            if (bpe->specials[k] > previous && bpe->specials[k] < id) id = bpe->specials[k];
        }
        previous = id;
        json_array_append_new(added, json_pack("{s:i,s:s%,s:b,s:b,s:b,s:b,s:b}", "id", id, "content",
                                               symbols_bytes(&tokenizer->symbols, id),
                                               symbols_n_bytes(&tokenizer->symbols, id), "single_word", 0,
                                               "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    }
    return added;
}

/* The text of a token in the file; `text` has room for two tokens' characters, a blank and a zero. */
enum { TEXT_BYTES = 4 * BPE_MAX_TOKEN_BYTES + 2 };

static json_t *tokens_to_json(const Tokenizer *tokenizer) {
    const Bpe *bpe = bpe_of(tokenizer);
    const SymbolTable *symbols = &tokenizer->symbols;
    json_t *tokens = json_object();
    char text[TEXT_BYTES];
    bool *special = calloc((size_t)symbols->n, sizeof *special);
    for (size_t i = 0; special && i < bpe->n_specials; i++) special[bpe->specials[i]] = true;
    for (int32_t id = 0; tokens && special && id < symbols->n; id++) {
        const char *bytes = symbols_bytes(symbols, id);
        size_t n_bytes = symbols_n_bytes(symbols, id);
        bpe_text_of_bytes(bytes, special[id] ? 0 : n_bytes, text);
        if (special[id]) snprintf(text, sizeof text, "%.*s", (int)n_bytes, bytes);
        json_object_set_new(tokens, text, json_integer(id));
    }
    bool complete = tokens && special && json_object_size(tokens) == (size_t)symbols->n;
    free(special);
    if (complete) return tokens;
    json_decref(tokens);
    return NULL;
}

static json_t *merges_to_json(const Tokenizer *tokenizer) {
    const Bpe *bpe = bpe_of(tokenizer);
    const SymbolTable *symbols = &tokenizer->symbols;
    json_t *merges = json_array();
    char text[TEXT_BYTES];
    for (size_t i = 0; merges && i < bpe->n_merges; i++) {
        int32_t left = bpe->merges[i].left, right = bpe->merges[i].right;
        bpe_text_of_bytes(symbols_bytes(symbols, left), symbols_n_bytes(symbols, left), text);
        size_t n = strlen(text);
        text[n] = ' ';
        bpe_text_of_bytes(symbols_bytes(symbols, right), symbols_n_bytes(symbols, right), text + n + 1);
        json_array_append_new(merges, json_string(text));
    }
    if (json_array_size(merges) == bpe->n_merges) return merges;
    json_decref(merges);
    return NULL;
}

json_t *bpe_to_huggingface(const Tokenizer *tokenizer) {
    const Bpe *bpe = bpe_of(tokenizer);
    json_t *model = json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:o}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", bpe->whole_words, "vocab",
                              tokens_to_json(tokenizer), "merges", merges_to_json(tokenizer));
    if (!model) return NULL;
    return json_pack("{s:s,s:n,s:n,s:o,s:n,s:o,s:{s:s,s:b,s:b,s:b},s:{s:s,s:b,s:b,s:b},s:o}", "version",
                     "1.0", "truncation", "padding", "added_tokens", added_to_json(tokenizer), "normalizer",
                     "pre_tokenizer", pre_tokenizer_to_json(pretokenizer_pattern(bpe->pretokenizer)),
                     "post_processor", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 0,
                     "use_regex", 1, "decoder", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1,
                     "use_regex", 1, "model", model);
}
