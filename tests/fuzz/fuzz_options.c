/* A configuration file for the options of training, given by a user or found in a run that goes on: what is
 * accepted must come back the same from the file that is written of it, values and who gave them. As a file
 * of a run, all of it must; given by a user, what was given. */
#include "fuzz.h"

#include "base/options/options_text.h"
#include "data/source.h"
#include "model/config.h"
#include "optim/optimizer.h"
#include "train/options.h"

#include <string.h>

typedef struct {
    ModelConfig model;
    DataOptions data;
    OptimizerOptions optimizer;
    TrainOptions train;
} Values;

static const OptionGroup groups[] = {
    OPTION_GROUP("Model", Values, model, model_option_specs),
    OPTION_GROUP("Data", Values, data, data_option_specs),
    OPTION_GROUP("Optimizer", Values, optimizer, optimizer_option_specs),
    OPTION_GROUP("Training", Values, train, train_option_specs),
    OPTION_GROUP_END,
};
static const OptionCommand command = {.name = "fuzz", .summary = "be fuzzed", .groups = groups};

typedef struct {
    Values values;
    Options options;
    Error error;
} Reading;

/* The first byte of the input says which of the two ways it is read. */
static Status read_in(Reading *reading, bool is_record, int which, const void *bytes, size_t n_bytes) {
    const char *path = fuzz_file(which, bytes, n_bytes);
    reading->error = (Error){0};
    FUZZ_CHECK(options_init(&reading->options, &command, &reading->values, &reading->error) == STATUS_OK);
    return is_record ? options_read_record(&reading->options, path, &reading->error)
                     : options_read_config(&reading->options, path, &reading->error);
}

static char *written(const Reading *reading, size_t *n_bytes) {
    char *text = NULL;
    FILE *stream = open_memstream(&text, n_bytes);
    FUZZ_CHECK(stream);
    options_write_config(stream, &reading->options);
    FUZZ_CHECK(fclose(stream) == 0);
    return text;
}

/* The same options given, or not, and the same values: of all, or of those that were given. */
static void check_same(Reading *was, Reading *is, bool with_rest) {
    for (int i = 0; i < was->options.n_options; i++) {
        const OptionSpec *spec = options_spec(&command, i, NULL);
        if (spec->flags & OPTION_TRANSIENT) continue;
        bool was_given = was->options.sources[i] >= OPTION_FROM_RUN;
        if (was_given != (is->options.sources[i] >= OPTION_FROM_RUN)) {
            fprintf(stderr, "--%s was %sgiven\n", spec->name, was_given ? "" : "not ");
            abort();
        }
        if (!was_given && !with_rest) continue;
        const char *before = option_value_text(spec, options_value(&was->options, i), &was->options.arena);
        const char *after = option_value_text(spec, options_value(&is->options, i), &was->options.arena);
        bool is_long = !was_given && strlen(before) > 25; /* a comment has one line, and leaves it out */
        if (is_long || strcmp(before, after) == 0) continue;
        fprintf(stderr, "--%s was '%s' and is '%s'\n", spec->name, before, after);
        abort();
    }
}

static void check_round_trip(Reading *was, bool with_rest, const char *text, size_t n_bytes) {
    Reading again;
    if (read_in(&again, with_rest, 1, text, n_bytes) != STATUS_OK) {
        fprintf(stderr, "%s\nin:\n%s\n", again.error.text, text);
        abort();
    }
    check_same(was, &again, with_rest);
    options_free(&again.options);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    Reading reading;
    bool is_record = n_bytes > 0 && bytes[0] == '@';
    if (read_in(&reading, is_record, 0, bytes + is_record, n_bytes - is_record) == STATUS_OK) {
        size_t n_text;
        char *text = written(&reading, &n_text);
        check_round_trip(&reading, true, text, n_text);
        check_round_trip(&reading, false, text, n_text);
        free(text);
    } else {
        FUZZ_CHECK(reading.error.status == STATUS_USER && reading.error.text[0]);
    }
    options_free(&reading.options);
    return 0;
}
