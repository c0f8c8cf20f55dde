/* pgpt convert: models from and to Hugging Face. What it does is huggingface/convert.h; here are its options
 * and what it says. */
#include "cli/commands.h"

#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/json.h"
#include "data/tokenizer/tokenizer.h"
#include "huggingface/convert.h"
#include "run/interrupt.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum { TO_AUTO, TO_HUGGINGFACE, TO_PGPT } Direction;
typedef enum { DTYPE_AUTO, DTYPE_IS_F32, DTYPE_IS_BF16, DTYPE_IS_F16 } DtypeChoice;

typedef struct {
    int to;     /* Direction */
    int dtype;  /* DtypeChoice */
    int choice; /* CheckpointChoice */
    const char *shard_size;
    bool json, quiet;
} CallOptions;

typedef struct {
    CallOptions call;
} ConvertCommand;

static const char *const direction_names[] = {"auto", "hf", "pgpt", NULL};
static const char *const dtype_names[] = {"auto", "f32", "bf16", "f16", NULL};
static const char *const choice_names[] = {"newest", "best", NULL};

static const OptionSpec convert_option_specs[] = {
    OPTION_CHOICE("to", CallOptions, to, TO_AUTO, direction_names,
                  "what to make: a folder for Hugging Face (hf) or one of pgpt; auto: what SOURCE is not"),
    OPTION_CHOICE(
        "dtype", CallOptions, dtype, DTYPE_AUTO, dtype_names,
        "numbers in a folder for Hugging Face: f32 (4 bytes), bf16 or f16 (2 bytes, rounded to the nearest); "
        "auto: what the model came with, f32 if it was trained here. A folder of pgpt always has f32"),
    OPTION_STRING("max-shard-size", CallOptions, shard_size, "50GB", "SIZE",
                  "most bytes of one file of weights, with KB, MB, GB, KiB, MiB or GiB; a larger model is "
                  "written in several, with an index"),
    OPTION_CHOICE("checkpoint", CallOptions, choice, CHECKPOINT_NEWEST, choice_names,
                  "which checkpoint of a run: the newest, or the one with the lowest validation loss"),
    OPTION_JSON(CallOptions, json, .flags = OPTION_TRANSIENT),
    OPTION_BOOL("quiet", CallOptions, quiet, false, "say only what went wrong", .flags = OPTION_TRANSIENT),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Conversion", ConvertCommand, call, convert_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "SOURCE",
     .help =
         "a folder of Hugging Face (GPT-2, Llama, Mistral or Mixtral: config.json, model.safetensors), a run's folder, or one "
         "checkpoint's"},
    {.name = "DEST", .help = "the folder to make; it must not be there yet, or be empty"},
    {.name = NULL},
};

static const char *const examples[] = {
    "take a model of Hugging Face and let it write",
    "pgpt convert downloads/gpt2 models/gpt2 && pgpt generate models/gpt2 --prompt 'Once'",
    "train it further on your own text",
    "pgpt train --init models/gpt2 --data book.txt --out runs/book",
    "give a model that was trained here to Hugging Face's tools, in half the size",
    "pgpt convert runs/book book-for-transformers --dtype bf16",
    NULL,
};

const OptionCommand convert_command = {
    .name = "convert",
    .summary = "exchange models with Hugging Face",
    .description =
        "Turns a model of Hugging Face (GPT-2, Llama, Mistral, Mixtral) into a folder that pgpt generates from and trains further, or a model of pgpt "
        "into a folder that transformers loads. Nothing is lost on the way: a model that goes there and back has the "
        "same bytes. The tokenizer's files go along.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

/* "5GB": decimal units unless there is an i in it, as Hugging Face counts. */
static Status parse_size(const char *text, uint64_t *size, Error *error) {
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end = (char *)text;
    errno = 0;
    double number = isdigit((unsigned char)text[0]) ? strtod(text, &end) : 0.0;
    while (*end == ' ') end++;
    for (size_t i = 0; end > text && errno == 0 && i < sizeof units / sizeof units[0]; i++) {
        double n_bytes = number * units[i].factor;
        if (strcasecmp(end, units[i].unit) != 0 || !(n_bytes >= 1.0) || n_bytes > 1e18) continue;
        *size = (uint64_t)n_bytes;
        return STATUS_OK;
    }
    return error_user(
        error, "--max-shard-size wants a size of at least one byte like 500MB or 5GB, got '%.40s'", text);
}

typedef struct {
    Options options;
    ConvertCommand values;
    Log log;
    ModelSource source;
    ConvertOptions convert;
} Call;

static Status choose(Call *call, Error *error) {
    static const SafetensorsType types[] = {SAFETENSORS_F32, SAFETENSORS_F32, SAFETENSORS_BF16,
                                            SAFETENSORS_F16};
    const CallOptions *values = &call->values.call;
    bool from_huggingface = call->source.kind == MODEL_SOURCE_HUGGINGFACE;
    ConvertOptions *convert = &call->convert;
    *convert = (ConvertOptions){.log = &call->log, .should_stop = interrupt_was_signalled, .end_token = -1};
    convert->to_huggingface = values->to == TO_AUTO ? !from_huggingface : values->to == TO_HUGGINGFACE;
    convert->type = values->dtype == DTYPE_AUTO ? call->source.type : types[values->dtype];
    TRY(parse_size(values->shard_size, &convert->shard_bytes, error));
    if (!convert->to_huggingface && values->dtype > DTYPE_IS_F32) {
        return error_user(error,
                          "--dtype %s is for folders of Hugging Face; a folder of pgpt has f32, leave it out",
                          dtype_names[values->dtype]);
    }
    return STATUS_OK;
}

/* The token that ends a text belongs into config.json; a tokenizer that cannot be read has none to tell. */
static int32_t find_end_token(const ModelSource *source) {
    Tokenizer *tokenizer = NULL;
    Error ignored = {0};
    if (!source->tokenizer || source->kind == MODEL_SOURCE_HUGGINGFACE ||
        tokenizer_open(source->tokenizer, &tokenizer, &ignored) != STATUS_OK)
        return -1;
    int32_t end = tokenizer_end_of_text(tokenizer);
    tokenizer_free(tokenizer);
    return end;
}

static void say_source(const Call *call) {
    const ModelSource *source = &call->source;
    const HuggingFaceModel *model = &source->huggingface;
    if (source->warning[0]) log_warning(&call->log, "%s", source->warning);
    if (source->kind != MODEL_SOURCE_HUGGINGFACE) return;
    SafetensorsType stated = huggingface_config_type(source->origin);
    if (model->has_other_types) {
        log_warning(&call->log, "%s has tensors of several types; all are written as one", source->path);
    } else if (stated != source->type && !call->convert.to_huggingface) {
        log_note(&call->log,
                 "the tensors are %s and config.json does not say so; to get them back in that type, "
                 "convert with --dtype",
                 safetensors_type_name(source->type));
    }
}

static Status print_json(const Call *call, const ConvertResult *result, double seconds, Error *error) {
    bool to_huggingface = call->convert.to_huggingface;
    SafetensorsType type = to_huggingface ? call->convert.type : SAFETENSORS_F32;
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("convert"));
    json_object_set_new(object, "source", json_make_text(call->source.path));
    json_object_set_new(object, "destination", json_make_text(call->options.arguments[1]));
    json_object_set_new(object, "to", json_string(to_huggingface ? "hf" : "pgpt"));
    json_object_set_new(object, "dtype", json_string(safetensors_type_name(type)));
    json_object_set_new(object, "parameters", json_integer(result->n_parameters));
    json_object_set_new(object, "tensors", json_integer(result->n_tensors));
    json_object_set_new(object, "files", json_integer(result->n_files));
    json_object_set_new(object, "bytes", json_integer((json_int_t)result->n_bytes));
    json_object_set_new(object, "seconds", json_make_number(seconds));
    return json_print(stdout, object, error);
}

static Status convert(Call *call, Error *error) {
    const char *dest = call->options.arguments[1];
    uint64_t start = timer_now_ns();
    ConvertResult result;
    Progress progress;
    call->convert.end_token = find_end_token(&call->source);
    if (!call->values.call.quiet) call->log.progress = call->convert.progress = &progress;
    interrupt_watch();
    progress_begin(&progress, stderr, 0.0);
    convert_model(&call->source, dest, &call->convert, &result, error);
    progress_end(&progress);
    interrupt_ignore();
    call->log.progress = NULL;
    TRY(error->status);
    log_note(&call->log, "%s: %s parameters in %d tensors, %s", dest,
             format_count((double)result.n_parameters).text, result.n_tensors,
             format_bytes(result.n_bytes).text);
    return call->values.call.json ? print_json(call, &result, timer_seconds_since(start), error) : STATUS_OK;
}

Status command_convert(int n_words, char *const *words, Error *error) {
    Call call = {0};
    TRY_GOTO(options_init(&call.options, &convert_command, &call.values, error), done);
    TRY_GOTO(options_parse(&call.options, n_words, words, error), done);
    if (call.options.help_wanted) {
        command_show_help(&convert_command);
        goto done;
    }
    call.log = log_make(call.values.call.quiet);
    TRY_GOTO(model_source_open(&call.source, call.options.arguments[0],
                               (CheckpointChoice)call.values.call.choice, error),
             done);
    TRY_GOTO(choose(&call, error), done);
    say_source(&call);
    convert(&call, error);
done:
    model_source_close(&call.source);
    options_free(&call.options);
    return error->status;
}
