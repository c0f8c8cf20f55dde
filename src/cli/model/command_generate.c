/* pgpt generate: a run's model continues prompts.
 *
 * Text goes to stdout, and nothing else does; what the user should know goes to stderr. One sample is shown
 * as it grows, several are decoded in batches and shown when all are done. This file has the options and
 * opens the model; generate_prompts.c reads, generate_samples.c makes, and generate_report.c tells. */
#include "cli/commands.h"

#include "base/system/timer.h"
#include "cli/model/generate.h"
#include "cli/model/model_ranks.h"

#include <string.h>
#include <unistd.h>

enum { CHOSEN_ROWS = 32 };

typedef struct {
    GenerateOptions generate;
    MeshOptions mesh;
} GenerateCommand;

static const OptionGroup groups[] = {
    OPTION_GROUP("Generation", GenerateCommand, generate, generate_option_specs),
    OPTION_GROUP("Parallel", GenerateCommand, mesh, mesh_option_specs),
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
    "a model that is divided among four processes, by layers and within them",
    "mpirun -n 4 pgpt generate runs/first --tp 2 --pp 2 --prompt 'Once upon a time'",
    NULL,
};

const OptionCommand generate_command = {
    .name = "generate",
    .summary = "make text with a trained model",
    .description =
        "Loads the newest checkpoint of a run, or a model of Hugging Face, and lets the model continue a prompt: the "
        "prompt is read at once (prefill), then token after token is decoded over a KV cache. A text may grow beyond "
        "the model's context: whenever that is full, the model goes on from the last half of it.\n\n"
        "Under mpirun, ranks divide the model (--tp, --pp) and share out the samples (--dp), and the first one writes "
        "what one process would write to a terminal; --output and --json have every byte. Standard input is then read "
        "only where '-' asks for it.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
};

/* ---- what a call needs, opened one after the other and closed together */

typedef struct {
    Launch *launch;
    Options options;
    GenerateCommand values;
    Log log;
    ModelRanks ranks;
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
    model_ranks_close(&call->ranks, &call->model);
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

/* This rank's part of it. */
static Status load_model(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    const GivenModel *model = &call->model;
    int64_t n_own = generate_samples_own(&call->samples);
    GeneratorOptions rows = {.n_rows = options->n_rows ? options->n_rows : CHOSEN_ROWS,
                             .dtype = precision_of((PrecisionKind)options->precision).weight,
                             .part = model_ranks_part(&call->ranks)};
    if (rows.n_rows > n_own) rows.n_rows = n_own > 0 ? n_own : 1;
    call->has_generator = true;
    TRY(generator_plan(&call->generator, &model->source.config, &model->table, &model->backend, &rows,
                       error));
    TRY(model_ranks_check_memory(&call->ranks, model, device_required_bytes(&call->generator.memory),
                                 "generation", "choose fewer --rows or a smaller model", error));
    TRY(generator_open(&call->generator, NULL, error));
    return given_model_load(model, upload, &call->generator, error);
}

static Status open_model(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    DeviceOptions device = {.kind = options->device,
                            .n_threads = (int)options->n_threads,
                            .precision = (PrecisionKind)options->precision};
    TRY(model_ranks_open(&call->ranks, &call->model, &device, error));
    load_model(call, error);
    return launch_agree(call->launch, error);
}

/* ---- the call */

/* Where there are several ranks, nobody knows what is on the other side of the launcher's pipe. */
static bool takes_stdin(const Call *call) {
    if (is_given(call, "prompt")) return strcmp(call->values.generate.prompt, "-") == 0;
    return call->launch->world.size == 1 && !isatty(STDIN_FILENO);
}

static Status read_prompts(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    const char *given = options->prompt;
    if (*options->prompts) {
        TRY(generate_prompts_add_file(&call->prompts, call->model.tokenizer, options->prompts, error));
    } else if (takes_stdin(call)) {
        TRY(generate_prompts_add_stdin(&call->prompts, call->model.tokenizer, error));
    } else {
        TRY(generate_prompts_add(&call->prompts, call->model.tokenizer, "--prompt", given, strlen(given),
                                 error));
    }
    generate_prompts_warn(&call->prompts, options->prompts, call->model.source.config.context, &call->log);
    return STATUS_OK;
}

/* One rank reads them, and all have them. */
static Status share_prompts(Call *call, Error *error) {
    Launch *launch = call->launch;
    if (launch->is_root) read_prompts(call, error);
    TRY(launch_agree_with_root(launch, error));
    generate_prompts_share(&call->prompts, &launch->world, error);
    return launch_agree(launch, error);
}

static bool is_interrupted(void *context, Error *error) {
    return model_ranks_interrupted(context, error);
}

static Status open_samples(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    Launch *launch = call->launch;
    GenerateShare share = {.share = model_ranks_share(&call->ranks),
                           .n_shares = model_ranks_n_shares(&call->ranks),
                           .is_root = launch->is_root,
                           .is_launched = launch->world.size > 1,
                           .interrupted = is_interrupted,
                           .context = &call->ranks};
    generate_samples_open(&call->samples, options, &call->options, call->model.tokenizer, &call->prompts,
                          &share, error);
    TRY(launch_agree(launch, error));
    if (*options->output && launch->is_root) file_writer_open(&call->output, options->output, error);
    TRY(launch_agree_with_root(launch, error));
    model_ranks_say_idle(&call->ranks, call->samples.n_samples, "samples", &call->log);
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

static Status make_samples(Call *call, Error *error) {
    TRY(generate_samples_run(&call->samples, &call->generator, error));
    if (model_ranks_speaks(&call->ranks))
        TRY(generate_samples_gather(&call->samples, &call->ranks.mesh.axis[AXIS_DP], error));
    call->samples.seconds = timer_seconds_since(call->samples.started_ns);
    return STATUS_OK;
}

static Status generate(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    Launch *launch = call->launch;
    check_options(call, error);
    TRY(launch_agree(launch, error));
    TRY(launch_check_same(launch, "--log-probs", options->log_probs ? "yes" : "no", error));
    TRY(model_ranks_begin(&call->ranks, launch, &call->options, &call->values.mesh, error));
    given_model_find(&call->model, &call->options, (CheckpointChoice)options->choice, "pgpt generate RUN",
                     &launch->world, &call->log, error);
    TRY(launch_agree(launch, error));
    TRY(share_prompts(call, error));
    TRY(open_samples(call, error));
    TRY(open_model(call, error));
    TRY(make_samples(call, error));
    if (launch->is_root) report(call, error);
    return launch_agree_with_root(launch, error);
}

static Status read_options(Call *call, int n_words, char *const *words, Error *error) {
    TRY(options_init(&call->options, &generate_command, &call->values, error));
    return options_parse(&call->options, n_words, words, error);
}

Status command_generate(Launch *launch, int n_words, char *const *words, Error *error) {
    Call call = {.launch = launch, .output = {.descriptor = -1}};
    read_options(&call, n_words, words, error);
    if (launch_agree(launch, error) == STATUS_OK && call.options.help_wanted) {
        command_show_help(&generate_command);
    } else if (error->status == STATUS_OK) {
        call.log = launch_log(launch, call.values.generate.quiet);
        generate(&call, error);
    }
    launch_fail(launch, error); /* before anything is given back that others may use */
    close_call(&call);
    return error->status;
}
