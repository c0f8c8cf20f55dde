/* pgpt data: reads the options, finds what is to be done by the first word, refuses options that it would
 * ignore. */
#include "cli/commands.h"

#include "base/options/options_refuse.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "cli/data/data.h"
#include "data/dataset.h"
#include "data/names.h"
#include "data/shards/prepare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const OptionSpec data_specs[] = {
    OPTION_STRING(
        "tokenizer", DataValues, tokenizer, "", "KIND",
        "a file or folder of a tokenizer, or a kind: byte; 'prepare' also takes char and word, which learn "
        "their symbols from the text"),
    OPTION_STRING("out", DataValues, out, "", "FOLDER", "where to put what is made; must not exist yet"),
    OPTION_FLOAT(
        "validation", DataValues, validation_fraction, DATASET_DEFAULT_VALIDATION_FRACTION, 0.0, 1.0,
        "part of the tokens to hold out for evaluation: the last documents, from the document border that is "
        "nearest to it; where there is none near it, from the end of a paragraph or line",
        .flags = OPTION_BELOW_MAX),
    OPTION_INT("shard-tokens", DataValues, shard_tokens, (int64_t)PREPARE_SHARD_TOKENS, 1, INT64_C(1) << 40,
               "tokens in a file"),
    OPTION_INT("max-vocab", DataValues, max_vocabulary, 0, 0, INT32_MAX,
               "word tokenizer: keep only the most frequent words; 0: all"),
    OPTION_INT("vocab-size", DataValues, vocabulary_size, 0, 0, 1 << 24,
               "symbols to learn, the 256 bytes and <|endoftext|> among them ('train-tokenizer')"),
    OPTION_INT("excerpts", DataValues, n_excerpts, 3, 0, 1000, "places of the text to show"),
    OPTION_THREADS(DataValues, n_threads),
    OPTION_JSON(DataValues, json),
    OPTION_BOOL("quiet", DataValues, quiet, false, "say only what went wrong"),
    OPTION_END,
};

/* The values are the subject: one table, one struct. */
typedef struct {
    DataValues values;
} DataCommand;

static const OptionGroup groups[] = {
    OPTION_GROUP("Options", DataCommand, values, data_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "WHAT", .help = "prepare, encode, decode, inspect, verify or train-tokenizer"},
    {.name = "FILE",
     .help =
         "a text, a .jsonl file (a document a line: its \"text\"), a folder of either, - for standard input, or builtin; "
         "several as words of their own or with commas between. For 'inspect' and 'verify', and for 'encode' too, the "
         "folder that 'prepare' made",
     .optional = true,
     .repeated = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "turn a folder of texts into shards, and learn from them",
    "pgpt data prepare texts --tokenizer char --out shards && pgpt train --data shards",
    "with the tokenizer of another model",
    "pgpt data prepare corpus.jsonl --tokenizer downloads/gpt2 --out shards",
    "learn a tokenizer of one's own first",
    "pgpt data train-tokenizer texts --vocab-size 16384 --out bpe && pgpt data prepare texts --tokenizer bpe --out shards",
    "see what is in them, and whether they are whole",
    "pgpt data inspect shards && pgpt data verify shards",
    "a text as ids, and back",
    "pgpt data encode book.txt --tokenizer shards/tokenizer.json | pgpt data decode --tokenizer shards/tokenizer.json",
    NULL,
};

const OptionCommand data_command = {
    .name = "data",
    .summary = "prepare text for training, look at it, encode and decode",
    .description =
        "'prepare' encodes texts of any size into a folder of token files that 'pgpt train --data' maps into memory. "
        "'encode' prints the ids of texts, separated by blanks, with an end of text between documents where the tokenizer "
        "has one; 'decode' turns ids back into bytes. 'inspect' shows "
        "what a prepared folder holds, 'verify' reads all of it and compares checksums. 'train-tokenizer' learns a byte-level "
        "BPE vocabulary from texts and writes a tokenizer.json that other programs read too.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

enum { FOR_PREPARE = 1, FOR_ENCODE = 2, FOR_DECODE = 4, FOR_INSPECT = 8, FOR_VERIFY = 16, FOR_TRAIN = 32 };

typedef struct {
    const char *name;
    unsigned mask;
    size_t min_words, max_words;
    const char *wants; /* said when there are too few or too many */
    Status (*run)(DataCall *call, Error *error);
} Action;

static const Action actions[] = {
    {"prepare", FOR_PREPARE, 1, SIZE_MAX, "one text or more", data_prepare},
    {"encode", FOR_ENCODE, 1, SIZE_MAX, "one text or more", data_encode},
    {"decode", FOR_DECODE, 0, 1, "one file of ids, or none for standard input", data_decode},
    {"inspect", FOR_INSPECT, 1, 1, "one folder of prepared data", data_inspect},
    {"verify", FOR_VERIFY, 1, 1, "one folder of prepared data", data_verify},
    {"train-tokenizer", FOR_TRAIN, 1, SIZE_MAX, "one text or more", data_train_tokenizer},
};
enum { N_ACTIONS = sizeof actions / sizeof actions[0] };

/* Which actions obey an option; what is not here is for all. */
static const OptionUse limited_options[] = {
    {"tokenizer", FOR_PREPARE | FOR_ENCODE | FOR_DECODE},
    {"out", FOR_PREPARE | FOR_TRAIN},
    {"validation", FOR_PREPARE},
    {"shard-tokens", FOR_PREPARE},
    {"max-vocab", FOR_PREPARE},
    {"vocab-size", FOR_TRAIN},
    {"excerpts", FOR_INSPECT},
    {"threads", FOR_PREPARE | FOR_ENCODE | FOR_TRAIN},
    {"json", FOR_PREPARE | FOR_ENCODE | FOR_INSPECT | FOR_VERIFY | FOR_TRAIN},
};

Progress *data_progress(DataCall *call) {
    if (call->log.quiet) return NULL;
    progress_begin(&call->progress, stderr, 0.0);
    call->log.progress = &call->progress;
    return &call->progress;
}

void data_progress_end(DataCall *call) {
    if (call->log.progress) progress_end(&call->progress);
    call->log.progress = NULL;
}

Status data_open_inputs(const DataCall *call, InputList *list, Error *error) {
    DataNames names = {0};
    const char **sources = NULL;
    *list = (InputList){0};
    for (size_t i = 0; i < call->n_words; i++)
        TRY_GOTO(data_names_add_plain(&names, call->words[i], "'data'", error), done);
    sources = calloc(names.n + 1, sizeof *sources);
    if (!sources) error_failed(error, "out of memory: no room for %zu names", names.n);
    for (size_t i = 0; sources && i < names.n; i++) sources[i] = names.names[i].name;
    if (sources) input_list_open(sources, names.n, list, error);
done:
    free(sources);
    data_names_free(&names);
    return error->status;
}

Status data_open_tokenizer(const DataCall *call, Tokenizer **tokenizer, Error *error) {
    const char *name = call->values->tokenizer;
    if (!*name)
        return error_user(error, "--tokenizer is missing; give byte, or a tokenizer's file or folder");
    if (prepare_learns(name)) {
        return error_user(
            error,
            "a %s tokenizer learns its symbols from a text, and the ids would mean nothing elsewhere; "
            "give a tokenizer's file or folder, or byte",
            name);
    }
    return prepare_tokenizer(name, 0, NULL, tokenizer, error);
}

static Status find_action(const char *word, const Action **found, Error *error) {
    const char *names[N_ACTIONS + 1] = {NULL};
    for (int i = 0; i < N_ACTIONS; i++) {
        names[i] = actions[i].name;
        *found = &actions[i];
        if (strcmp(word, names[i]) == 0) return STATUS_OK;
    }
    return error_user(
        error, "'data' cannot '%s'; %schoose prepare, encode, decode, inspect, verify or train-tokenizer",
        plain_value(word).text, format_did_you_mean(word, names).text);
}

static Status refuse_ignored(const Options *options, const Action *action, Error *error) {
    char name[40];
    snprintf(name, sizeof name, "'data %s'", action->name);
    return options_refuse_unused(options, limited_options, sizeof limited_options / sizeof limited_options[0],
                                 action->mask, name, OPTION_FROM_COMMAND, error);
}

static Status run_data(const Options *options, const DataValues *values, Error *error) {
    const Action *action;
    TRY(find_action(options->arguments[0], &action, error));
    TRY(refuse_ignored(options, action, error));
    DataCall call = {.values = values,
                     .words = options->arguments + 1,
                     .n_words = (size_t)options->n_arguments - 1,
                     .log = log_make(values->quiet)};
    if (call.n_words < action->min_words || call.n_words > action->max_words) {
        return error_user(error, "'data %s' wants %s, got %zu; see 'pgpt data --help'", action->name,
                          action->wants, call.n_words);
    }
    return action->run(&call, error);
}

Status command_data(int n_words, char *const *words, Error *error) {
    DataCommand command;
    Options options;
    TRY(options_init(&options, &data_command, &command, error));
    TRY_GOTO(options_parse(&options, n_words, words, error), done);
    if (options.help_wanted) command_show_help(&data_command);
    else run_data(&options, &command.values, error);
done:
    options_free(&options);
    return error->status;
}
