/* pgpt generate: a run's model continues prompts.
 *
 * Text goes to stdout, and nothing else does; what the user should know goes to stderr. One sample is shown
 * as it grows, several are decoded in batches and shown when all are done. This file has the options and
 * opens the model; generate_prompts.c reads, generate_samples.c makes, and generate_report.c tells. */
#include "cli/commands.h"

#include "cli/model/generate.h"
#include "infer/given_model.h"

#include <string.h>
#include <unistd.h>

enum { CHOSEN_ROWS = 32 };

typedef struct {
    GenerateOptions generate;
} GenerateCommand;

static const OptionGroup groups[] = {
    OPTION_GROUP("Generation", GenerateCommand, generate, generate_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "RUN", .help = GIVEN_MODEL_HELP, .optional = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "let the last model that was trained here tell something",
    "pgpt generate",
    "go on from a prompt",
    "pgpt generate runs/first --prompt 'Once upon a time'",
    "three different texts from a file's, without surprises",
    "pgpt generate --samples 3 --temperature 0.5 --prompt - < beginning.txt",
    "answers to a file of questions, one line each",
    "pgpt generate --prompts questions.txt --stop '\\n' --output answers.jsonl",
    "always the likeliest token, with the figures as JSON",
    "pgpt generate --temperature 0 --tokens 100 --json",
    NULL,
};

const OptionCommand generate_command = {
    .name = "generate",
    .summary = "make text with a trained model",
    .description =
        "Loads the newest checkpoint of a run, or a GPT-2 of Hugging Face, and lets the model continue a prompt: the "
        "prompt is read at once (prefill), then token after token is decoded over a KV cache. A text may grow beyond "
        "the model's context: whenever that is full, the model goes on from the last half of it.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
};

/* ---- what a call needs, opened one after the other and closed together */

typedef struct {
    Options options;
    GenerateCommand values;
    Log log;
    GivenModel model;
    Generator generator;
    GeneratePrompts prompts;
    GenerateSamples samples;
    FileWriter output;
    bool has_generator;
} Call;

static void close_call(Call *call) {
    file_writer_abort(&call->output);
    generate_samples_close(&call->samples);
    generate_prompts_free(&call->prompts);
    if (call->has_generator) generator_close(&call->generator);
    given_model_close(&call->model);
    options_free(&call->options);
}

static bool is_given(const Call *call, const char *option) {
    return options_source(&call->options, option) != OPTION_FROM_DEFAULT;
}

/* An option that would do nothing is a misunderstanding. */
static Status check_options(const Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    if (is_given(call, "prompts") && !*options->prompts)
        return error_user(error, "--prompts wants a file's name; '-' is standard input");
    if (is_given(call, "prompts") && is_given(call, "prompt"))
        return error_user(error, "--prompt and --prompts exclude each other; give one of them");
    if (is_given(call, "output") && !*options->output)
        return error_user(error, "--output wants a file's name");
    if (options->log_probs && !options->json && !*options->output)
        return error_user(error, "--log-probs shows in JSON only; add --json or --output FILE");
    if (is_given(call, "repetition-window") && options->repetition_penalty == 1.0)
        return error_user(error, "--repetition-window means nothing without --repetition-penalty; give both");
    return STATUS_OK;
}

/* ---- the model */

static Status upload(void *context, const Parameter *parameter, const float *values, Error *error) {
    return generator_upload(context, parameter, values, error);
}

static Status open_model(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    PrecisionKind precision = (PrecisionKind)options->precision;
    DeviceOptions device = {
        .kind = options->device, .n_threads = (int)options->n_threads, .precision = precision};
    TRY(given_model_open(&call->model, &device, error));
    GeneratorOptions rows = {.n_rows = options->n_rows ? options->n_rows : CHOSEN_ROWS,
                             .dtype = precision_of(precision).weight};
    if (rows.n_rows > call->samples.n_samples) rows.n_rows = call->samples.n_samples;
    call->has_generator = true;
    TRY(generator_plan(&call->generator, &call->model.source.config, &call->model.table, &call->model.backend,
                       &rows, error));
    TRY(device_check_memory(&call->model.backend, device_required_bytes(&call->generator.memory),
                            "generation", "choose fewer --rows or a smaller model", error));
    TRY(generator_open(&call->generator, NULL, error));
    return given_model_load(&call->model, upload, &call->generator, error);
}

/* ---- the call */

static Status read_prompts(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    const char *given = options->prompt;
    bool has_prompt = is_given(call, "prompt");
    if (*options->prompts) {
        TRY(generate_prompts_add_file(&call->prompts, call->model.tokenizer, options->prompts, error));
    } else if (has_prompt ? strcmp(given, "-") == 0 : !isatty(STDIN_FILENO)) {
        TRY(generate_prompts_add_stdin(&call->prompts, call->model.tokenizer, error));
    } else {
        TRY(generate_prompts_add(&call->prompts, call->model.tokenizer, "--prompt", given, strlen(given),
                                 error));
    }
    generate_prompts_warn(&call->prompts, options->prompts, call->model.source.config.context, &call->log);
    return STATUS_OK;
}

static Status report(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    const GenerateSamples *samples = &call->samples;
    if (*options->output) {
        TRY(generate_report_lines(samples, &call->output, error));
        log_note(&call->log, "wrote %lld samples to %s", (long long)samples->n_samples, options->output);
    } else {
        generate_report_print(samples, stdout);
    }
    if (!options->json) return STATUS_OK;
    return generate_report_json(samples, call->model.source.path, call->model.source.step,
                                call->generator.memory.allocated_bytes, stdout, error);
}

static Status generate(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    TRY(check_options(call, error));
    TRY(given_model_find(&call->model, &call->options, (CheckpointChoice)options->choice, "pgpt generate RUN",
                         &call->log, error));
    TRY(read_prompts(call, error));
    TRY(generate_samples_open(&call->samples, options, &call->options, call->model.tokenizer, &call->prompts,
                              error));
    if (*options->output) TRY(file_writer_open(&call->output, options->output, error));
    TRY(open_model(call, error));
    TRY(generate_samples_run(&call->samples, &call->generator, error));
    return report(call, error);
}

Status command_generate(int n_words, char *const *words, Error *error) {
    Call call = {.output = {.descriptor = -1}};
    TRY_GOTO(options_init(&call.options, &generate_command, &call.values, error), done);
    TRY_GOTO(options_parse(&call.options, n_words, words, error), done);
    if (call.options.help_wanted) {
        command_show_help(&generate_command);
        goto done;
    }
    call.log = log_make(call.values.generate.quiet);
    generate(&call, error);
done:
    close_call(&call);
    return error->status;
}
