/* Two stages, because the model's vocabulary comes from the tokenizer and the length of its sequences from the model:
 * the text is read and its symbols are known before it is cut into windows.
 *
 * --data names one corpus or several. A name that exists is taken as it stands, commas, colons and all; only what does
 * not is read as a list, NAME:WEIGHT,NAME:WEIGHT. A folder of shards brings its tokenizer along. A text of some size,
 * and any in JSON lines, goes through the cache; smaller ones stay in memory, where they are ready sooner. */
#include "data/source.h"

#include "base/file.h"
#include "data/cache.h"
#include "data/prepare.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MEMORY_BYTES = 16 << 20, VERIFY_BYTES = 64 << 20, MOST_CORPORA = 1000 };

const OptionSpec data_option_specs[] = {
    OPTION_STRING(
        "data", DataOptions, data, "builtin", "FILE",
        "what to learn: a text, a .jsonl file (the \"text\" of each line), a folder of either, a folder made by 'pgpt "
        "data prepare', - for standard input, or builtin (short stories). Several with commas between, each with "
        ":WEIGHT behind it for its share (1 if left out): book.txt:0.7,shards:0.3"),
    OPTION_STRING(
        "tokenizer", DataOptions, tokenizer, "auto", "KIND",
        "byte (256 symbols), char (the characters of the text), word (words and punctuation), a file "
        "or folder of a tokenizer, or auto: that of prepared data, word for the built-in stories, char otherwise"),
    OPTION_INT("max-vocab", DataOptions, max_vocabulary, 0, 0, INT32_MAX,
               "word tokenizer: keep only the most frequent words; 0: all", .flags = OPTION_FIXED),
    OPTION_FLOAT(
        "validation", DataOptions, validation_fraction, DATASET_DEFAULT_VALIDATION_FRACTION, 0.0, 1.0,
        "part of the text, from its end, that is held out for evaluation; prepared data with a split of its "
        "own keeps that; 0: none",
        .flags = OPTION_BELOW_MAX),
    OPTION_END,
};

/* ---- What --data names */

static bool is_name(const char *text) {
    return strcmp(text, "-") == 0 || strcmp(text, "builtin") == 0 || file_exists(text);
}

static Status add_corpus(DataSource *source, char *name, double weight, Error *error) {
    size_t n = source->n_corpora + 1;
    DataCorpus *corpora = n > MOST_CORPORA ? NULL : realloc(source->corpora, n * sizeof *corpora);
    if (corpora) source->corpora = corpora;
    if (!name || !corpora) {
        free(name);
        return error_failed(error, "out of memory: no room for %zu corpora", n);
    }
    corpora[source->n_corpora++] = (DataCorpus){.name = name, .weight = weight};
    return STATUS_OK;
}

/* NAME or NAME:WEIGHT, where a name that exists with its colon goes before. */
static Status add_item(DataSource *source, const char *item, size_t n_bytes, Error *error) {
    char *name = strndup(item, n_bytes), *colon = name ? strrchr(name, ':') : NULL, *end = NULL;
    double weight = 1;
    if (colon && !is_name(name)) {
        double number = strtod(colon + 1, &end);
        if (end > colon + 1 && !*end) {
            weight = number;
            *colon = 0;
        }
    }
    if (name && !*name)
        error_user(error, "--data has an empty name in its list; write NAME:WEIGHT,NAME:WEIGHT");
    else if (!isfinite(weight) || weight <= 0)
        error_user(error, "--data: the weight of '%s' is %g, but must be above 0", name, weight);
    if (error->status == STATUS_OK) return add_corpus(source, name, weight, error);
    free(name);
    return error->status;
}

static Status list_corpora(DataSource *source, const char *data, Error *error) {
    if (is_name(data) || !strpbrk(data, ":,")) return add_corpus(source, strdup(data), 1, error);
    int n_stdin = 0;
    for (const char *item = data;; item++) {
        size_t n = strcspn(item, ",");
        TRY(add_item(source, item, n, error));
        n_stdin += strcmp(source->corpora[source->n_corpora - 1].name, "-") == 0;
        item += n;
        if (!*item) break;
    }
    if (n_stdin > 1)
        return error_user(error, "--data names standard input (-) twice; it can be read once only");
    return STATUS_OK;
}

const char *data_source_tokenizer(const DataOptions *options) {
    DataSource source = {0};
    Error ignored = {0};
    bool prepared = false;
    if (strcmp(options->tokenizer, "auto") != 0) return options->tokenizer;
    if (strcmp(options->data, "builtin") == 0) return "word";
    list_corpora(&source, options->data, &ignored);
    for (size_t i = 0; i < source.n_corpora; i++) prepared |= shard_set_is_folder(source.corpora[i].name);
    data_source_close(&source);
    return prepared ? "auto" : "char";
}

/* ---- Opening */

/* How a corpus is to be had. */
typedef enum { IN_MEMORY, IN_CACHE } Place;

/* Large, or in lines: then `list` is open. What cannot be listed is left to text_load, which says why. */
static Place place_of(const DataCorpus *corpus, InputList *list) {
    Error ignored = {0};
    *list = (InputList){0};
    if (strcmp(corpus->name, "-") == 0 || strcmp(corpus->name, "builtin") == 0) return IN_MEMORY;
    const char *name = corpus->name;
    if (input_list_open(&name, 1, list, &ignored) != STATUS_OK) return IN_MEMORY;
    bool large = list->n_bytes >= MEMORY_BYTES, lines = false, regular = true;
    for (size_t i = 0; i < list->n_files; i++) {
        lines |= list->files[i].json_lines;
        regular &= list->files[i].regular;
    }
    if (regular && (large || lines)) return IN_CACHE;
    input_list_close(list);
    return IN_MEMORY;
}

static ShardTokenizer describe_shards(const DataCorpus *corpus) {
    return (ShardTokenizer){corpus->name, corpus->shards.tokenizer_kind, corpus->shards.tokenizer_hash,
                            (int)corpus->shards.n_vocabulary};
}

static ShardTokenizer describe(const Tokenizer *tokenizer, const char *where) {
    return (ShardTokenizer){where, tokenizer_kind(tokenizer), tokenizer_hash(tokenizer),
                            tokenizer_n_vocabulary(tokenizer)};
}

/* Those that are prepared already. Small ones are read to see that they are whole; large ones are taken at their
 * headers' word, for reading them could take longer than the training. */
static Status open_prepared(DataSource *source, Error *error) {
    for (size_t i = 0; i < source->n_corpora; i++) {
        DataCorpus *corpus = &source->corpora[i];
        if (!shard_set_is_folder(corpus->name)) continue;
        TRY(shard_set_open(corpus->name, &corpus->shards, error));
        corpus->is_shards = true;
        if (shard_set_bytes(&corpus->shards) <= VERIFY_BYTES) {
            TRY(shard_set_verify(&corpus->shards, NULL, NULL, error));
        }
    }
    return STATUS_OK;
}

/* A run's own tokenizer goes before everything; what was asked for must agree with it. */
static Status load_saved(DataSource *source, const DataOptions *options, const char *saved, Error *error) {
    const char *wanted = options->tokenizer;
    TRY(prepare_open_tokenizer(saved, &source->tokenizer, error));
    if (strcmp(wanted, "auto") == 0 || strcmp(wanted, tokenizer_kind(source->tokenizer)) == 0)
        return STATUS_OK;
    Tokenizer *other = NULL;
    bool same = !prepare_is_kind(wanted) && prepare_open_tokenizer(wanted, &other, error) == STATUS_OK &&
                tokenizer_hash(other) == tokenizer_hash(source->tokenizer);
    tokenizer_free(other);
    TRY(error->status);
    if (same) return STATUS_OK;
    return error_user(error, "the run has the tokenizer '%s'; leave out --tokenizer %s when resuming it",
                      tokenizer_kind(source->tokenizer), wanted);
}

/* That of the prepared data, if any is. */
static Status take_prepared(DataSource *source, Error *error) {
    for (size_t i = 0; i < source->n_corpora && !source->tokenizer; i++) {
        const DataCorpus *corpus = &source->corpora[i];
        if (corpus->is_shards) TRY(shard_set_tokenizer(&corpus->shards, &source->tokenizer, error));
    }
    return STATUS_OK;
}

/* A kind that learns from all the texts together. */
static Status learn_from_all(DataSource *source, const char *kind, int max_vocabulary, Error *error) {
    const char **names = calloc(source->n_corpora, sizeof *names);
    InputList list = {0};
    if (!names) return error_failed(error, "out of memory: no room for a list of names");
    for (size_t i = 0; i < source->n_corpora; i++) {
        names[i] = source->corpora[i].name;
        if (strcmp(names[i], "-") != 0) continue;
        error_user(error,
                   "a %s tokenizer cannot learn from standard input among other data; give --tokenizer byte "
                   "or a tokenizer's file, or put the text in a file",
                   kind);
    }
    if (error->status == STATUS_OK && input_list_open(names, source->n_corpora, &list, error) == STATUS_OK) {
        prepare_tokenizer(kind, max_vocabulary, &list, &source->tokenizer, error);
    }
    input_list_close(&list);
    free(names);
    return error->status;
}

static Status open_cached(DataCorpus *corpus, const InputList *list, const CacheKey *key, const Log *log,
                          Error *error) {
    TRY(cache_open(list, key, log, &corpus->shards, error));
    corpus->is_shards = true;
    return STATUS_OK;
}

/* A text: into memory, or through the cache. `kind` is learned from it if there is no tokenizer yet. */
static Status open_text(DataSource *source, DataCorpus *corpus, const DataOptions *options, const char *kind,
                        Error *error) {
    InputList list;
    const char *name = corpus->name;
    CacheKey key = {source->tokenizer, kind, (int)options->max_vocabulary};
    if (place_of(corpus, &list) == IN_CACHE) {
        open_cached(corpus, &list, &key, options->log, error);
        input_list_close(&list);
        TRY(error->status);
        return source->tokenizer ? STATUS_OK
                                 : shard_set_tokenizer(&corpus->shards, &source->tokenizer, error);
    }
    TRY(text_load(&name, 1, &corpus->text, error));
    if (source->tokenizer) return STATUS_OK;
    return tokenizer_build(kind, corpus->text.bytes, corpus->text.n_bytes, (int)options->max_vocabulary,
                           &source->tokenizer, error);
}

static Status open_all(DataSource *source, const DataOptions *options, const char *saved, Error *error) {
    const char *wanted = data_source_tokenizer(options), *where = saved ? saved : wanted;
    TRY(list_corpora(source, options->data, error));
    TRY(open_prepared(source, error));
    bool automatic = strcmp(wanted, "auto") == 0;
    if (saved) TRY(load_saved(source, options, saved, error));
    else if (automatic || prepare_is_kind(wanted)) TRY(take_prepared(source, error));
    else TRY(prepare_open_tokenizer(wanted, &source->tokenizer, error));
    if (!saved && !automatic && source->tokenizer && prepare_is_kind(wanted) &&
        strcmp(wanted, tokenizer_kind(source->tokenizer)) != 0) {
        return error_user(error, "the prepared data has the tokenizer '%s'; leave out --tokenizer %s",
                          tokenizer_kind(source->tokenizer), wanted);
    }
    const char *kind = wanted; /* not "auto": then there is a tokenizer by now */
    if (!source->tokenizer && source->n_corpora > 1) {
        TRY(learn_from_all(source, kind, (int)options->max_vocabulary, error));
    }
    for (size_t i = 0; i < source->n_corpora; i++) {
        DataCorpus *corpus = &source->corpora[i];
        if (!corpus->is_shards) TRY(open_text(source, corpus, options, kind, error));
        if (!corpus->is_shards) continue;
        bool from_data = !saved && (automatic || prepare_is_kind(wanted));
        ShardTokenizer found = describe_shards(corpus);
        ShardTokenizer own = describe(source->tokenizer, from_data ? source->corpora[0].name : where);
        TRY(shard_tokenizers_match(&own, &found, error));
    }
    return STATUS_OK;
}

Status data_source_open(DataSource *source, const DataOptions *options, const char *saved_tokenizer,
                        Error *error) {
    *source = (DataSource){0};
    if (open_all(source, options, saved_tokenizer, error) != STATUS_OK) data_source_close(source);
    return error->status;
}

/* ---- Encoding */

static Status encode_corpus(const DataSource *source, DataCorpus *corpus, const DatasetOptions *split,
                            Dataset **dataset, Error *error) {
    if (corpus->is_shards) return dataset_from_shards(&corpus->shards, split, dataset, error);
    TRY(dataset_from_text(&corpus->text, source->tokenizer, split, dataset, error));
    text_free(&corpus->text);
    return STATUS_OK;
}

Status data_source_encode(DataSource *source, const DataOptions *options, uint64_t seed, int64_t T,
                          Error *error) {
    if (T > INT_MAX) return error_user(error, "a context of %lld is too long", (long long)T);
    DatasetOptions split = {.seed = seed, .validation_fraction = options->validation_fraction, .T = (int)T};
    size_t n = source->n_corpora, n_made = 0;
    if (n == 1) return encode_corpus(source, source->corpora, &split, &source->dataset, error);
    Dataset **parts = calloc(n, sizeof(Dataset *));
    double *weights = calloc(n, sizeof *weights);
    if (!parts || !weights) {
        free(parts);
        free(weights);
        return error_failed(error, "out of memory: no room for %zu corpora", n);
    }
    for (; n_made < n && error->status == STATUS_OK; n_made++) {
        DataCorpus *corpus = &source->corpora[n_made];
        weights[n_made] = corpus->weight;
        if (encode_corpus(source, corpus, &split, &parts[n_made], error) != STATUS_OK && !corpus->is_shards) {
            error_prefix(error, "%s: ", corpus->name);
        }
    }
    if (error->status == STATUS_OK) dataset_mix(parts, weights, n, &source->dataset, error);
    else
        for (size_t i = 0; i < n_made; i++) dataset_free(parts[i]);
    free(parts);
    free(weights);
    return error->status;
}

void data_source_close(DataSource *source) {
    for (size_t i = 0; i < source->n_corpora; i++) {
        free(source->corpora[i].name);
        text_free(&source->corpora[i].text);
        shard_set_close(&source->corpora[i].shards);
    }
    free(source->corpora);
    tokenizer_free(source->tokenizer);
    dataset_free(source->dataset);
    *source = (DataSource){0};
}
