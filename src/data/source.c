/* Two stages, because the model's vocabulary comes from the tokenizer and the length of its sequences from
 * the model: the text is read and its symbols are known before it is cut into windows.
 *
 * --data names one corpus or several (data/names.h). A folder of shards brings its tokenizer along. A text of
 * some size, and any in JSON lines, goes through the cache; smaller ones stay in memory, where they are ready
 * sooner.
 *
 * The files of a text are listed once, and the list sees to it that what a tokenizer learned from is what it
 * encodes. */
#include "data/source.h"

#include "base/file/file.h"
#include "data/names.h"
#include "data/shards/cache.h"
#include "data/shards/prepare.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_BYTES = 16 << 20, MOST_CORPORA = 1000 };

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

static Status list_corpora(DataSource *source, const char *data, Error *error) {
    DataNames names = {0};
    TRY_GOTO(data_names_add(&names, data, "--data", error), done);
    if (names.n > MOST_CORPORA) {
        error_user(error, "--data names %zu corpora, but at most %d can be mixed; put texts in a folder",
                   names.n, MOST_CORPORA);
        goto done;
    }
    source->corpora = calloc(names.n, sizeof *source->corpora);
    if (!source->corpora) {
        error_failed(error, "out of memory: no room for %zu corpora", names.n);
        goto done;
    }
    for (size_t i = 0; i < names.n; i++) {
        source->corpora[i] = (DataCorpus){.name = names.names[i].name, .weight = names.names[i].weight};
        names.names[i].name = NULL; /* handed over */
    }
    source->n_corpora = names.n;
done:
    data_names_free(&names);
    return error->status;
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

/* Large, or in lines. What can be read once only is not for the cache, which reads it twice. */
static bool is_for_cache(const InputList *list) {
    bool lines = false;
    for (size_t i = 0; i < list->n_files; i++) {
        if (!list->files[i].regular || list->files[i].memory) return false;
        lines |= list->files[i].json_lines;
    }
    return lines || list->n_bytes >= MEMORY_BYTES;
}

static ShardTokenizer describe_shards(const DataCorpus *corpus) {
    return (ShardTokenizer){corpus->name, corpus->shards.tokenizer_kind, corpus->shards.tokenizer_hash,
                            (int)corpus->shards.n_vocabulary};
}

static ShardTokenizer describe(const Tokenizer *tokenizer, const char *where) {
    return (ShardTokenizer){where, tokenizer_kind(tokenizer), tokenizer_hash(tokenizer),
                            tokenizer_n_vocabulary(tokenizer)};
}

/* Those that are prepared already; of the others, their files. */
static Status find_files(DataSource *source, Error *error) {
    for (size_t i = 0; i < source->n_corpora; i++) {
        DataCorpus *corpus = &source->corpora[i];
        const char *name = corpus->name;
        if (!shard_set_is_folder(name)) {
            TRY(input_list_open(&name, 1, &corpus->list, error));
            continue;
        }
        TRY(shard_set_open(corpus->name, &corpus->shards, error));
        corpus->is_shards = true;
        if (shard_set_bytes(&corpus->shards) <= SHARD_SET_SMALL_BYTES) {
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

/* A kind that learns from all the texts together: from one list of all their files, which are given back with
 * what was seen of them. */
static Status learn_from_all(DataSource *source, const char *kind, int max_vocabulary, Error *error) {
    InputList all = {.size_known = true};
    for (size_t i = 0; i < source->n_corpora; i++) all.n_files += source->corpora[i].list.n_files;
    all.files = calloc(all.n_files, sizeof *all.files);
    if (!all.files) return error_failed(error, "out of memory: no room for a list of files");
    size_t n = 0;
    for (size_t i = 0; i < source->n_corpora; i++) {
        const InputList *list = &source->corpora[i].list;
        for (size_t f = 0; f < list->n_files; f++) {
            all.files[n++] = list->files[f];
            if (list->files[f].regular) continue;
            error_user(
                error,
                "a %s tokenizer cannot learn from %s among other data, since it can be read once only; give "
                "--tokenizer byte or a tokenizer's file, or put the text in a file",
                kind, list->files[f].name);
        }
    }
    if (error->status == STATUS_OK) prepare_tokenizer(kind, max_vocabulary, &all, &source->tokenizer, error);
    n = 0;
    for (size_t i = 0; i < source->n_corpora; i++) {
        InputList *list = &source->corpora[i].list;
        for (size_t f = 0; f < list->n_files; f++) list->files[f] = all.files[n++];
    }
    free(all.files);
    return error->status;
}

/* A text: into memory, or through the cache. `kind` is learned from it if there is no tokenizer yet. */
static Status open_text(DataSource *source, DataCorpus *corpus, const DataOptions *options, const char *kind,
                        Error *error) {
    CacheKey key = {source->tokenizer, kind, (int)options->max_vocabulary};
    if (is_for_cache(&corpus->list)) {
        TRY(cache_open(&corpus->list, &key, options->log, &corpus->shards, error));
        corpus->is_shards = true;
        return source->tokenizer ? STATUS_OK
                                 : shard_set_tokenizer(&corpus->shards, &source->tokenizer, error);
    }
    text_read(&corpus->list, corpus->name, TEXT_DOCUMENTS, &corpus->text, error);
    if (error->status == STATUS_USER && options->is_later_rank && strcmp(corpus->name, "-") == 0) {
        *error = (Error){0};
        error_user(error,
                   "standard input (--data -) reaches rank 0 only; put the text in a file that all ranks "
                   "can read, or prepare it first: pgpt data prepare -");
    }
    TRY(error->status);
    if (source->tokenizer) return STATUS_OK;
    return tokenizer_build(kind, corpus->text.bytes, corpus->text.n_bytes, (int)options->max_vocabulary,
                           &source->tokenizer, error);
}

static Status open_all(DataSource *source, const DataOptions *options, const char *saved, Error *error) {
    const char *wanted = data_source_tokenizer(options), *where = saved ? saved : wanted;
    TRY(list_corpora(source, options->data, error));
    TRY(find_files(source, error));
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
        input_list_close(&source->corpora[i].list);
        text_free(&source->corpora[i].text);
        shard_set_close(&source->corpora[i].shards);
    }
    free(source->corpora);
    tokenizer_free(source->tokenizer);
    dataset_free(source->dataset);
    *source = (DataSource){0};
}
