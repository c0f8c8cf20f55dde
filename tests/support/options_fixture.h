/* A table of options like a real one, and the ways the tests use it. */
#ifndef PGPT_TESTS_OPTIONS_FIXTURE_H
#define PGPT_TESTS_OPTIONS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/options/options.h"
#include "base/options/options_text.h"
#include "base/random.h"

typedef enum { CONSTANT, LINEAR, COSINE } Schedule;
static const char *const schedules[] = {"constant", "linear", "cosine", NULL};

typedef struct {
    const char *preset;
    int64_t n_layers;
    bool tied;
} ModelOptions;

typedef struct {
    int64_t n_steps, seed;
    double lr, dropout, decay;
    Schedule schedule;
    const char *data;
    bool json;
} TrainOptions;

typedef struct {
    char guard;
    ModelOptions model;
    TrainOptions train;
} Values;

static const OptionSpec model_specs[] = {
    OPTION_STRING("model", ModelOptions, preset, "nano", "NAME", "the preset to start from"),
    OPTION_INT("layers", ModelOptions, n_layers, 4, 1, 1000, "how many blocks"),
    OPTION_BOOL("tied", ModelOptions, tied, true, "share the embedding with the head"), OPTION_END};
static const OptionSpec train_specs[] = {
    OPTION_INT("steps", TrainOptions, n_steps, 1000, 1, 1000000000, "optimizer steps to take"),
    OPTION_INT("seed", TrainOptions, seed, 1337, INT64_MIN, INT64_MAX, "where all randomness comes from"),
    OPTION_FLOAT("lr", TrainOptions, lr, 3e-4, 0, 10, "the highest learning rate", .flags = OPTION_ABOVE_MIN),
    OPTION_FLOAT("dropout", TrainOptions, dropout, 0.1, 0, 1, "share of zeroed elements",
                 .flags = OPTION_BELOW_MAX),
    OPTION_FLOAT("weight-decay", TrainOptions, decay, 0.1, -INFINITY, INFINITY,
                 "pull of the weights to zero"),
    OPTION_CHOICE("lr-schedule", TrainOptions, schedule, COSINE, schedules, "course of the learning rate"),
    OPTION_STRING("data", TrainOptions, data, "", "FILE",
                  "the text to learn; without it, the built-in stories", .flags = OPTION_MAY_BE_EMPTY),
    OPTION_BOOL("json", TrainOptions, json, false, "end with one JSON object", .flags = OPTION_TRANSIENT),
    OPTION_END};
static const OptionGroup groups[] = {OPTION_GROUP("Model", Values, model, model_specs),
                                     OPTION_GROUP("Training", Values, train, train_specs), OPTION_GROUP_END};
static const char *const examples[] = {"train on a file", "pgpt train --data x.txt --steps 10",
                                       "the same, quietly", ".\\pgpt 'train' -- \"~^`\"", NULL};
static const OptionCommand command = {
    .name = "train", .summary = "train a model", .groups = groups, .examples = examples};

static const OptionPositional positionals[] = {
    {.name = "INPUT", .help = "what to read"},
    {.name = "OUTPUT", .help = "where to", .optional = true, .repeated = true},
    {.name = NULL}};
static const OptionCommand convert = {
    .name = "convert",
    .summary = "convert files",
    .description =
        "Convert files from one form to another. A line break\nis a blank.\n\n.Second paragraph with \\backslash and 'quotes'.",
    .groups = groups,
    .positionals = positionals};

/* ---- Help for the tests */

enum { MOST_WORDS = 16 };

/* Parse the words up to NULL. */
static inline Status parse(Options *options, const OptionCommand *which, Values *values, Error *error, ...) {
    char *words[MOST_WORDS];
    int n = 0;
    va_list arguments;
    va_start(arguments, error);
    for (char *word = va_arg(arguments, char *); word; word = va_arg(arguments, char *)) words[n++] = word;
    va_end(arguments);
    *error = (Error){0};
    memset(values, 0xEE, sizeof *values);
    assert_int_equal(options_init(options, which, values, error), STATUS_OK);
    return options_parse(options, n, words, error);
}

#define ASSERT_PARSES(options, values, ...)                                                                  \
    do {                                                                                                     \
        Error parse_error;                                                                                   \
        if (parse(&(options), &command, &(values), &parse_error, __VA_ARGS__, NULL))                         \
            fail_msg("%s", parse_error.text);                                                                \
    } while (0)

#define ASSERT_REFUSED(which, message, ...)                                                                  \
    do {                                                                                                     \
        Options refused_options;                                                                             \
        Values refused_values;                                                                               \
        Error refused;                                                                                       \
        assert_int_equal(parse(&refused_options, &(which), &refused_values, &refused, __VA_ARGS__, NULL),    \
                         STATUS_USER);                                                                       \
        assert_string_equal(refused.text, message);                                                          \
        options_free(&refused_options);                                                                      \
    } while (0)

static char file_name[] = "/tmp/pgpt-test-options-XXXXXX.ini";

static inline int make_file(void **state) {
    (void)state;
    int descriptor = mkstemps(file_name, 4);
    return descriptor < 0 ? -1 : close(descriptor);
}

static inline int remove_file(void **state) {
    (void)state;
    return unlink(file_name);
}

static inline void put(const char *text, size_t n_bytes) {
    FILE *file = fopen(file_name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n_bytes, file), n_bytes);
    fclose(file);
}

#endif
