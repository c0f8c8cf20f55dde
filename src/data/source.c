/* Two stages, because the model's vocabulary comes from the tokenizer and the length of its sequences from the model:
 * the text is read and its symbols are known before it is cut into windows. */
#include "data/source.h"

#include <limits.h>

const OptionSpec data_option_specs[] = {
    OPTION_STRING(
        "data", DataOptions, data, "builtin", "FILE",
        "text to learn: a file, a folder of .txt files, - for standard input, or builtin (short stories)"),
    OPTION_STRING("tokenizer", DataOptions, tokenizer, "char", "KIND",
                  "byte (256 symbols), char (the characters of the text) or word (words and punctuation)"),
    OPTION_INT("max-vocab", DataOptions, max_vocabulary, 0, 0, INT32_MAX,
               "word tokenizer: keep only the most frequent words; 0: all"),
    OPTION_FLOAT("validation", DataOptions, validation_fraction, DATASET_DEFAULT_VALIDATION_FRACTION, 0.0,
                 1.0, "part of the text, from its end, that is held out for evaluation",
                 .flags = OPTION_BELOW_MAX),
    OPTION_END,
};

Status data_source_open(DataSource *source, const DataOptions *options, const char *saved_tokenizer,
                        Error *error) {
    *source = (DataSource){0};
    TRY(text_load(&options->data, 1, &source->text, error));
    Status status = saved_tokenizer
                        ? tokenizer_load(saved_tokenizer, &source->tokenizer, error)
                        : tokenizer_build(options->tokenizer, source->text.bytes, source->text.n_bytes,
                                          (int)options->max_vocabulary, &source->tokenizer, error);
    if (status != STATUS_OK) data_source_close(source);
    return status;
}

Status data_source_encode(DataSource *source, const DataOptions *options, uint64_t seed, int64_t T,
                          Error *error) {
    if (T > INT_MAX) return error_user(error, "a context of %lld is too long", (long long)T);
    DatasetOptions split = {.seed = seed, .validation_fraction = options->validation_fraction, .T = (int)T};
    TRY(dataset_from_text(&source->text, source->tokenizer, &split, &source->dataset, error));
    text_free(&source->text);
    return STATUS_OK;
}

void data_source_close(DataSource *source) {
    text_free(&source->text);
    tokenizer_free(source->tokenizer);
    dataset_free(source->dataset);
    *source = (DataSource){0};
}
