/* Options: one typed table per subject, from which everything else is made: the command line's parser, the
 * config file's reader and writer, --help, the manual page, the run record.
 *
 * A subject (model, data, training) describes the fields of its own struct once:
 *
 *     typedef struct { int64_t n_steps; double lr; bool tied; const char *data; int schedule; } TrainOptions;
 *     const OptionSpec train_option_specs[] = {
 *         OPTION_INT("steps", TrainOptions, n_steps, 1000, 1, 1000000000, "optimizer steps to take"),
 *         OPTION_FLOAT("lr", TrainOptions, lr, 3e-4, 0, 10, "highest rate", .flags = OPTION_ABOVE_MIN),
 *         OPTION_BOOL("tied", TrainOptions, tied, true, "share the embedding with the head"),
 *         OPTION_STRING("data", TrainOptions, data, "", "FILE", "text to train on"),
 *         OPTION_CHOICE("schedule", TrainOptions, schedule, LEARNING_RATE_COSINE, names, "course of the lr"),
 *         OPTION_END};
 *
 * and a command puts the subjects together in a struct of its own:
 *
 *     typedef struct { ModelOptions model; TrainOptions train; } TrainCommand;
 *     static const OptionGroup groups[] = {OPTION_GROUP("Model", TrainCommand, model, model_option_specs),
 *                                          OPTION_GROUP("Training", TrainCommand, train, train_option_specs),
 *                                          OPTION_GROUP_END};
 *     const OptionCommand train_command = {.name = "train", .summary = "train a model", .groups = groups};
 *
 *     TrainCommand values;
 *     Options options;
 *     TRY(options_init(&options, &train_command, &values, error));
 *     TRY_GOTO(options_parse(&options, argc - 2, argv + 2, error), done);
 *     if (options.help_wanted) ...
 *     TRY_GOTO(options_set_int(&options, "layers", preset->n_layers, OPTION_FROM_PRESET, error), done);
 * done:
 *     options_free(&options);   // the texts in `values` go with it
 *
 * A value is only replaced by one whose source ranks as high or higher (default < preset < resumed run < file
 * < command line), so a preset may be applied after the command line has named it. A program may fill in its
 * fields further (0: chosen by size); what was asked for is remembered beside them, and is what the config
 * file records. */
#ifndef PGPT_BASE_OPTIONS_OPTIONS_H
#define PGPT_BASE_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"

typedef enum {
    OPTION_TYPE_BOOL,   /* bool */
    OPTION_TYPE_INT,    /* int64_t */
    OPTION_TYPE_FLOAT,  /* double */
    OPTION_TYPE_STRING, /* const char *, never NULL; "" stands for "not given" */
    OPTION_TYPE_CHOICE, /* int or enum: index into the choices */
} OptionType;

enum {
    OPTION_ABOVE_MIN = 1, /* the minimum itself is out of range (numbers) */
    OPTION_BELOW_MAX = 2, /* the maximum itself is out of range (numbers) */
    OPTION_TRANSIENT =
        4,            /* about this call, not the run (--json, --resume): not written to the config file */
    OPTION_FIXED = 8, /* stays what it is for a run's life: another one at a resume is a user's mistake */
    OPTION_MAY_BE_EMPTY = 16, /* of a string: --prompt "" means something, and no variable that was not set */
    OPTION_F32 =
        32, /* computed with as a 32-bit float: the value must be in range as one, and 0 only if it is 0 */
};

/* A name for a whole number, which may lie outside of the option's range: {"all", -1}. */
typedef struct {
    const char *name;
    int64_t value;
} OptionWord;

typedef struct {
    const char
        *name; /* "micro-batch"; --micro_batch is understood too. At most 40 bytes of a-z, 0-9 and '-' */
    OptionType type;
    unsigned flags;
    size_t offset; /* of the field in the subject's struct */
    bool bool_default;
    int64_t int_default, int_min, int_max; /* int_default is also a choice's */
    double float_default, float_min, float_max;
    const char *text_default;
    const char *text_alone;     /* of a string: its value where none follows; NULL: it wants one */
    const char *value_name;     /* what --help calls a string: FILE, TEXT, [FILE] */
    const char *const *choices; /* NULL-terminated, in the order of the enum */
    const OptionWord *words;    /* of a whole number, up to one without a name; NULL: none */
    const char *help;           /* one or more sentences without final full stop */
} OptionSpec;

/* The offset of a field, checked by the compiler to be of the type that the option writes. */
#define OPTION_FIELD(Struct, field, wanted, ...)                                                             \
    offsetof(Struct, field) + 0 * sizeof(struct {                                                            \
                                  _Static_assert(_Generic(((Struct *)0)->field, __VA_ARGS__, default : 0),   \
                                                 "this option's field must be " wanted);                     \
                                  int unused;                                                                \
                              })

/* Further members may follow the help: .flags = OPTION_TRANSIENT. */
#define OPTION_BOOL(option, Struct, field, initial, text, ...)                                               \
    {                                                                                                        \
        .name = option, .type = OPTION_TYPE_BOOL, .offset = OPTION_FIELD(Struct, field, "bool", bool : 1),   \
        .bool_default = initial, .help = text, __VA_ARGS__                                                   \
    }
#define OPTION_INT(option, Struct, field, initial, min, max, text, ...)                                      \
    {                                                                                                        \
        .name = option, .type = OPTION_TYPE_INT,                                                             \
        .offset = OPTION_FIELD(Struct, field, "int64_t", int64_t : 1), .int_default = initial,               \
        .int_min = min, .int_max = max, .help = text, __VA_ARGS__                                            \
    }
#define OPTION_FLOAT(option, Struct, field, initial, min, max, text, ...)                                    \
    {                                                                                                        \
        .name = option, .type = OPTION_TYPE_FLOAT,                                                           \
        .offset = OPTION_FIELD(Struct, field, "double", double : 1), .float_default = initial,               \
        .float_min = min, .float_max = max, .help = text, __VA_ARGS__                                        \
    }
#define OPTION_STRING(option, Struct, field, initial, called, text, ...)                                     \
    {                                                                                                        \
        .name = option, .type = OPTION_TYPE_STRING,                                                          \
        .offset = OPTION_FIELD(Struct, field, "const char *", const char * : 1), .text_default = initial,    \
        .value_name = called, .help = text, __VA_ARGS__                                                      \
    }
#define OPTION_CHOICE(option, Struct, field, initial, names, text, ...)                                      \
    {                                                                                                        \
        .name = option, .type = OPTION_TYPE_CHOICE,                                                          \
        .offset = OPTION_FIELD(Struct, field, "int or an enum", int : 1, unsigned : 1),                      \
        .int_default = initial, .choices = names, .help = text, __VA_ARGS__                                  \
    }
/* --json, which every command has: json_print (text/json.h) is what it asks for. */
#define OPTION_JSON(Struct, field, ...)                                                                      \
    OPTION_BOOL("json", Struct, field, false, "make the last line of the output one JSON object", __VA_ARGS__)
/* --threads, of whatever computes. */
#define OPTION_THREADS(Struct, field)                                                                        \
    OPTION_INT("threads", Struct, field, 0, 0, 4096, "CPU threads; 0: all cores")
#define OPTION_END                                                                                           \
    { .name = NULL }

/* A titled table, bound to the member of the command's struct that holds its subject. */
typedef struct {
    const char *title;
    size_t offset;
    const OptionSpec *specs;  /* up to OPTION_END */
    const char *former_title; /* which config files may still have as a section; may be NULL */
} OptionGroup;

/* Further members may follow the table: .former_title = "...". */
#define OPTION_GROUP(heading, Struct, member, table, ...)                                                    \
    { .title = heading, .offset = offsetof(Struct, member), .specs = table, __VA_ARGS__ }
#define OPTION_GROUP_END                                                                                     \
    { .title = NULL }

/* Words of the command line that are not options. */
typedef struct {
    const char *name; /* "FILE" */
    const char *help;
    bool optional;
    bool repeated;      /* the last one only: takes all that follow */
    bool behind_dashes; /* words of another command: they stand behind "--" */
} OptionPositional;

typedef struct {
    const char *name;                    /* "train" */
    const char *summary;                 /* one line, no full stop: "train a model" */
    const char *description;             /* paragraphs, separated by an empty line; may be NULL */
    const char *usage;                   /* what follows the command's name; NULL: made from the tables */
    const OptionGroup *groups;           /* up to OPTION_GROUP_END; may be NULL */
    const OptionPositional *positionals; /* up to one without name; may be NULL */
    const char *const *examples;         /* "what it does", "pgpt ...", ..., NULL; may be NULL */
    bool no_config;                      /* takes no FILE.ini */
    const char *listed_in;               /* the document that has all options; NULL: --help has */
} OptionCommand;

/* In rank order. From OPTION_FROM_RUN on somebody has given the value. */
typedef enum {
    OPTION_FROM_DEFAULT,
    OPTION_FROM_PRESET,
    OPTION_FROM_RUN_DEFAULT, /* of the resumed run, where nobody gave it: a default or preset of its day */
    OPTION_FROM_RUN,         /* given when the resumed run began, or at an earlier resume */
    OPTION_FROM_FILE,
    OPTION_FROM_COMMAND
} OptionSource;

typedef struct {
    const OptionCommand *command;
    void *values; /* the command's struct */
    int n_options;
    OptionSource *sources;  /* of every option, in table order */
    const char **asked;     /* likewise: the value as it was set, as text */
    const char **arguments; /* the positional words, n_arguments of them */
    int n_arguments;
    bool help_wanted; /* -h or --help was met; parsing ended there */
    Arena arena;      /* everything above, and the texts in *values */
} Options;

/* Write the defaults into *values. Fails (STATUS_FAILED) on a wrong table: a name twice, a default out of
 * range. */
Status options_init(Options *options, const OptionCommand *command, void *values, Error *error);

/* The words after the command's name: FILE.ini, --key value, --key=value, --flag, --no-flag, positional
 * words; "--" ends the options. A word that ends in .ini is a config file and is read. Of duplicates the last
 * wins. */
Status options_parse(Options *options, int n_words, char *const *words, Error *error);

/* Read a config file: "key = value" lines; [sections] are only for the eye, but must be titles of the
 * command's groups; '#' and ';' begin comments. */
Status options_read_config(Options *options, const char *path, Error *error);

/* Read the config file of a run that goes on: what was given then, and from the comments "#key = value" what
 * the rest came to, so that a program with other defaults goes on with the same run. */
Status options_read_record(Options *options, const char *path, Error *error);

/* Set one option from text, or a number; refused silently if a higher source has set it, loudly if it is
 * wrong. */
/* A whole number as options take them: 10k, 1_000, 1e6. For those that may be a word as well. False: it is
 * none. */
bool options_whole_number(const char *text, int64_t *value);

Status options_set(Options *options, const char *name, const char *text, OptionSource source, Error *error);
Status options_set_int(Options *options, const char *name, int64_t value, OptionSource source, Error *error);

/* Back to the default, as if nobody had said anything. */
void options_reset(Options *options, const char *name);

/* Where the value came from. An unknown name is from the default. */
OptionSource options_source(const Options *options, const char *name);
const char *option_source_name(OptionSource source);

void options_free(Options *options);

/* ---- For those that walk the table (text, config file, tests). */
int options_count(const OptionCommand *command);
const OptionSpec *options_spec(const OptionCommand *command, int index, const OptionGroup **group);
int options_find(const OptionCommand *command, const char *name); /* -1: unknown */
const void *options_value(const Options *options, int index);     /* the field */

/* Read a value from text into the field (left alone on error); `shown` is the option's name in the
 * message. */
Status option_parse(const OptionSpec *spec, const char *shown, const char *text, void *field, Arena *arena,
                    Error *error);

/* The value as text that options_set understands (a string as itself), from the arena. */
const char *option_value_text(const OptionSpec *spec, const void *field, Arena *arena);
const char *option_default_text(const OptionSpec *spec, Arena *arena);

/* The name of a value of an OPTION_INT that is no number to the user; NULL: it is one. */
const char *option_int_word(const OptionSpec *spec, int64_t value);

/* "a whole number between 1 and 100", as in the messages; and in short with the default,
 * "1 to 100; default 5", as in help and manual. */
const char *option_wants(const OptionSpec *spec, Arena *arena);
const char *option_facts(const OptionSpec *spec, Arena *arena);

/* A user error "unknown option --btach; did you mean --batch?" (dashes is "--" or "" as it was written). */
Status options_unknown(const OptionCommand *command, const char *dashes, const char *name, Error *error);

#endif
