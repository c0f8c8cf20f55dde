/* A configuration file for the options of training: what is accepted must come back the same from the file that is
 * written of it. */
#include "fuzz.h"

#include "base/options_text.h"
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

/* Every option as text. */
static char *written(const Options *options, size_t *n_bytes) {
    char *text = NULL;
    FILE *stream = open_memstream(&text, n_bytes);
    FUZZ_CHECK(stream);
    options_write_config(stream, options);
    FUZZ_CHECK(fclose(stream) == 0);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    Values values, again;
    Options options, options_again;
    Error error = {0};
    FUZZ_CHECK(options_init(&options, &command, &values, &error) == STATUS_OK);
    FUZZ_CHECK(options_init(&options_again, &command, &again, &error) == STATUS_OK);
    if (options_read_config(&options, fuzz_file(0, bytes, n_bytes), &error) == STATUS_OK) {
        size_t n_first, n_second;
        char *first = written(&options, &n_first);
        if (options_read_config(&options_again, fuzz_file(1, first, n_first), &error) != STATUS_OK) {
            fprintf(stderr, "%s\nin:\n%s\n", error.text, first);
            abort();
        }
        for (int i = 0; i < options.n_options; i++) {
            const OptionSpec *spec = options_spec(&command, i, NULL);
            if (spec->flags & OPTION_TRANSIENT) continue;
            const char *was = option_value_text(spec, options_value(&options, i), &options.arena);
            const char *is = option_value_text(spec, options_value(&options_again, i), &options.arena);
            if (strcmp(was, is) == 0) continue;
            fprintf(stderr, "--%s was '%s' and is '%s'\n", spec->name, was, is);
            abort();
        }
        char *second = written(&options_again, &n_second);
        free(first);
        free(second);
    } else {
        FUZZ_CHECK(error.status == STATUS_USER && error.text[0]);
    }
    options_free(&options);
    options_free(&options_again);
    return 0;
}
