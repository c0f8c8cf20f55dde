/* pgpt generate: a run's model continues a prompt.
 *
 * Text goes to stdout, and nothing else does; what the user should know goes to stderr. One sample is shown as it
 * grows, several are decoded as one batch and shown when all are done. */
#include "cli/commands.h"

#include "backend/cpu/cpu.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/timer.h"
#include "data/tokenizer.h"
#include "infer/generator.h"
#include "train/checkpoint.h"
#include "train/interrupt.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_RUN "runs/latest"
enum { MOST_ROWS = 32, PROMPT_LIMIT_BYTES = 64 << 20, MANY = 1 << 30 };

typedef struct {
    const char *prompt;
    int64_t n_tokens, n_samples, top_k, seed, n_threads;
    double temperature, top_p;
    int choice; /* CheckpointChoice */
    bool stop_at_end, stream, json, quiet;
} GenerateOptions;

typedef struct {
    GenerateOptions generate;
} GenerateCommand;

static const char *const choice_names[] = {"newest", "best", NULL};

static const OptionSpec generate_option_specs[] = {
    OPTION_STRING(
        "prompt", GenerateOptions, prompt, "", "TEXT",
        "the text to go on from; '-' reads it from standard input, as does leaving it out when standard "
        "input is not a terminal; without one the model begins a text of its own"),
    OPTION_INT("tokens", GenerateOptions, n_tokens, 256, 1, MANY, "tokens to add, of each sample"),
    OPTION_INT("samples", GenerateOptions, n_samples, 1, 1, 1 << 20,
               "texts to make from the prompt, all at once"),
    OPTION_FLOAT(
        "temperature", GenerateOptions, temperature, 0.8, 0.0, 1e6,
        "how freely to choose: 0 always takes the likeliest token, 1 follows the model's probabilities"),
    OPTION_INT("top-k", GenerateOptions, top_k, 200, 0, MANY,
               "choose among the k likeliest tokens only; 0: all"),
    OPTION_FLOAT("top-p", GenerateOptions, top_p, 1.0, 0.0, 1.0,
                 "of those, choose among the likeliest that together have this probability; 1: all",
                 .flags = OPTION_ABOVE_MIN),
    OPTION_INT("seed", GenerateOptions, seed, 1, 0, INT64_MAX,
               "fixes what is chosen: the same seed gives the same text, another one another text"),
    OPTION_BOOL("stop-at-end", GenerateOptions, stop_at_end, false,
                "end a sample where the model ends its text, if its tokenizer has a token for that"),
    OPTION_CHOICE("checkpoint", GenerateOptions, choice, CHECKPOINT_NEWEST, choice_names,
                  "which checkpoint of the run: the newest, or the one with the lowest validation loss"),
    OPTION_INT("threads", GenerateOptions, n_threads, 0, 0, 4096, "CPU threads; 0: all cores"),
    OPTION_BOOL("stream", GenerateOptions, stream, true, "show a single sample token by token as it is made",
                .flags = OPTION_TRANSIENT),
    OPTION_BOOL("json", GenerateOptions, json, false, "make the last line of the output one JSON object",
                .flags = OPTION_TRANSIENT),
    OPTION_BOOL("quiet", GenerateOptions, quiet, false, "say only what went wrong",
                .flags = OPTION_TRANSIENT),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Generation", GenerateCommand, generate, generate_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "RUN",
     .help = "a run's folder, or one checkpoint's; default: " DEFAULT_RUN ", the last run in this folder",
     .optional = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "let the last model that was trained here tell something",
    "pgpt generate",
    "go on from a prompt",
    "pgpt generate runs/first --prompt 'Once upon a time'",
    "three different texts from a file's, without surprises",
    "pgpt generate --samples 3 --temperature 0.5 --prompt - < beginning.txt",
    "always the likeliest token, with the figures as JSON",
    "pgpt generate --temperature 0 --tokens 100 --json",
    NULL,
};

const OptionCommand generate_command = {
    .name = "generate",
    .summary = "make text with a trained model",
    .description =
        "Loads the newest checkpoint of a run and lets its model continue a prompt. A text may grow beyond the model's "
        "context: whenever that is full, the model goes on from the last half of it.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
};

/* ---- what a call needs, opened one after the other and closed together */

typedef struct {
    TokenDecoder decoder;
    FILE *stream; /* writes to text */
    char *text;
    size_t n_bytes;
    int64_t n_tokens;
    double log_probability;
    const char *end; /* why it ended */
} Sample;

typedef struct {
    Options options;
    GenerateCommand values;
    Log log;
    Checkpoint checkpoint;
    Tokenizer *tokenizer;
    ParameterTable table;
    Backend backend;
    Generator generator;
    TokenArray prompt;
    Sample *samples;
    Progress progress;
    uint64_t started_ns;
    int64_t n_made; /* tokens, of all samples */
    bool has_backend, has_generator;
    bool shows_prompt; /* not when it only says "begin" */
    bool streams;      /* the sample goes to stdout as it grows */
    bool shows_progress, was_interrupted;
} Call;

static void close_call(Call *call) {
    for (int64_t i = 0; call->samples && i < call->values.generate.n_samples; i++) {
        if (call->samples[i].stream) fclose(call->samples[i].stream);
        free(call->samples[i].text);
    }
    free(call->samples);
    if (call->has_generator) generator_close(&call->generator);
    if (call->has_backend) call->backend.close(call->backend.context);
    token_array_free(&call->prompt);
    parameters_free(&call->table);
    tokenizer_free(call->tokenizer);
    checkpoint_close(&call->checkpoint);
    options_free(&call->options);
}

/* ---- the model */

static Status open_run(Call *call, Error *error) {
    const char *run = call->options.n_arguments ? call->options.arguments[0] : DEFAULT_RUN;
    if (!call->options.n_arguments && !file_exists(run)) {
        return error_user(error, "there is no " DEFAULT_RUN
                                 " here; train a model first (pgpt train), or name a run: pgpt generate RUN");
    }
    TRY(checkpoint_open(&call->checkpoint, run, (CheckpointChoice)call->values.generate.choice, false,
                        error));
    if (call->checkpoint.warning[0]) log_warning(&call->log, "%s", call->checkpoint.warning);
    const char *path = arena_printf(&call->options.arena, "%s/tokenizer.json", call->checkpoint.run);
    TRY(tokenizer_load(path, &call->tokenizer, error));
    if (tokenizer_hash(call->tokenizer) != call->checkpoint.state.tokenizer_hash ||
        tokenizer_n_vocabulary(call->tokenizer) > call->checkpoint.config.vocabulary) {
        return error_user(error, "%s is not the tokenizer that %s was trained with; put the right one there",
                          path, call->checkpoint.path);
    }
    return STATUS_OK;
}

/* One parameter after the other, so that the model is in memory once. */
static Status load_weights(Call *call, Error *error) {
    int64_t most = 0;
    for (int i = 0; i < call->table.n_parameters; i++) {
        int64_t count = shape_count(call->table.parameter[i].shape);
        if (count > most) most = count;
    }
    void *values;
    size_t n_bytes = sizeof(float) * (size_t)most;
    TRY(memory_alloc(&values, n_bytes, "one of the model's tensors", error));
    for (int i = 0; i < call->table.n_parameters; i++) {
        const Parameter *parameter = &call->table.parameter[i];
        TRY_GOTO(checkpoint_read_part(&call->checkpoint, parameter, -1, 0, shape_count(parameter->shape),
                                      values, error),
                 done);
        TRY_GOTO(generator_upload(&call->generator, parameter, values, error), done);
    }
done:
    memory_free(values, n_bytes);
    return error->status;
}

static Status open_model(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    TRY(parameters_build(&call->table, &call->checkpoint.config, error));
    TRY(checkpoint_check(&call->checkpoint, &call->table, error));
    TRY(backend_cpu_open(&call->backend, (int)options->n_threads, error));
    call->has_backend = true;
    GeneratorOptions rows = {.n_rows = options->n_samples < MOST_ROWS ? options->n_samples : MOST_ROWS};
    call->has_generator = true;
    TRY(generator_plan(&call->generator, &call->checkpoint.config, &call->table, &call->backend, &rows,
                       error));
    TRY(memory_check(device_required_bytes(&call->generator.memory), "generation",
                     "choose fewer --samples or a smaller model", error));
    TRY(generator_open(&call->generator, NULL, error));
    return load_weights(call, error);
}

/* ---- the prompt */

static Status read_stdin(char **text, size_t *n_bytes, Error *error) {
    char piece[4096];
    FILE *stream = open_memstream(text, n_bytes);
    if (!stream) return error_failed(error, "no memory for the prompt");
    for (size_t n, total = 0; (n = fread(piece, 1, sizeof piece, stdin)) > 0;) {
        fwrite(piece, 1, n, stream);
        if ((total += n) <= PROMPT_LIMIT_BYTES) continue;
        error_user(error, "the prompt on standard input is longer than %d bytes; give its end only",
                   PROMPT_LIMIT_BYTES);
        break;
    }
    if (ferror(stdin)) error_failed(error, "cannot read the prompt from standard input");
    if (fclose(stream) != 0) error_failed(error, "no memory for the prompt");
    /* The line end that echo and editors put behind a text is not meant as part of it. */
    if (error->status == STATUS_OK && *n_bytes > 0 && (*text)[*n_bytes - 1] == '\n') --*n_bytes;
    return error->status;
}

/* Without a prompt, a text begins where texts do: after an end of text, or a line end. */
static Status begin_text(Call *call, Error *error) {
    int32_t end = tokenizer_end_of_text(call->tokenizer);
    Error ignored = {0};
    TRY(token_array_reserve(&call->prompt, 1, error));
    if (end >= 0) call->prompt.ids[call->prompt.n++] = end;
    else if (tokenizer_encode(call->tokenizer, "\n", 1, &call->prompt, &ignored) != STATUS_OK ||
             !call->prompt.n)
        call->prompt.ids[call->prompt.n++] = 0;
    return STATUS_OK;
}

static Status encode_prompt(Call *call, Error *error) {
    const char *given = call->values.generate.prompt;
    bool is_given = options_source(&call->options, "prompt") != OPTION_FROM_DEFAULT;
    bool from_stdin = is_given ? strcmp(given, "-") == 0 : !isatty(STDIN_FILENO);
    char *text = NULL;
    size_t n_bytes = strlen(given);
    if (from_stdin) read_stdin(&text, &n_bytes, error);
    if (error->status == STATUS_OK &&
        tokenizer_encode(call->tokenizer, text ? text : given, n_bytes, &call->prompt, error) != STATUS_OK) {
        error_prefix(error, from_stdin ? "the prompt on standard input: " : "--prompt: ");
    }
    free(text);
    call->shows_prompt = call->prompt.n > 0;
    if (error->status == STATUS_OK && !call->prompt.n) begin_text(call, error);
    return error->status;
}

/* ---- samples */

static void write_piece(Call *call, Sample *sample, TokenBytes piece) {
    if (call->streams) fwrite(piece.bytes, 1, piece.n, stdout);
    fwrite(piece.bytes, 1, piece.n, sample->stream);
}

/* The prompt's own text, made from its tokens as the rest will be. Not part of sample->text. */
static void write_prompt(const Call *call, TokenDecoder *decoder, FILE *stream) {
    for (size_t i = 0; i < call->prompt.n; i++) {
        TokenBytes piece = token_decode(decoder, call->prompt.ids[i]);
        if (stream && call->shows_prompt) fwrite(piece.bytes, 1, piece.n, stream);
    }
}

static void show_progress(Call *call) {
    const GenerateOptions *options = &call->values.generate;
    double seconds = timer_seconds_since(call->started_ns);
    if (!call->shows_progress || seconds < 1.0 || !progress_due(&call->progress)) return;
    char status[PROGRESS_STATUS_BYTES];
    double total = (double)options->n_tokens * (double)options->n_samples;
    snprintf(status, sizeof status, "%lld tokens  %.0f tokens/s", (long long)call->n_made,
             (double)call->n_made / seconds);
    progress_update(&call->progress, (double)call->n_made / total, status);
}

static GeneratorVerdict take_token(void *context, const GeneratedToken *token) {
    Call *call = context;
    Sample *sample = &call->samples[token->prompt];
    write_piece(call, sample, token_decode(&sample->decoder, token->token));
    if (call->streams) fflush(stdout);
    sample->n_tokens++;
    sample->log_probability += (double)token->log_probability;
    if (token->is_last)
        sample->end = sample->n_tokens < call->values.generate.n_tokens ? "end-of-text" : "length";
    call->n_made++;
    show_progress(call);
    call->was_interrupted = interrupt_was_signalled();
    return call->was_interrupted ? GENERATOR_END_ALL : GENERATOR_GO_ON;
}

static Status open_samples(Call *call, Error *error) {
    int64_t n_samples = call->values.generate.n_samples;
    call->samples = calloc((size_t)n_samples, sizeof *call->samples);
    for (int64_t i = 0; call->samples && i < n_samples; i++) {
        Sample *sample = &call->samples[i];
        sample->decoder = token_decoder(call->tokenizer);
        sample->stream = open_memstream(&sample->text, &sample->n_bytes);
        sample->end = "interrupted";
        if (!sample->stream) return error_failed(error, "no memory for %lld samples", (long long)n_samples);
        write_prompt(call, &sample->decoder, call->streams ? stdout : NULL);
    }
    return call->samples ? STATUS_OK
                         : error_failed(error, "no memory for %lld samples", (long long)n_samples);
}

static Status run_samples(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    GeneratorPrompt *prompts = calloc((size_t)options->n_samples, sizeof *prompts);
    if (!prompts) return error_failed(error, "no memory for %lld samples", (long long)options->n_samples);
    for (int64_t i = 0; i < options->n_samples; i++) {
        prompts[i] = (GeneratorPrompt){call->prompt.ids, (int64_t)call->prompt.n, (uint64_t)i};
    }
    GeneratorRequest request = {
        .prompts = prompts,
        .n_prompts = options->n_samples,
        .n_new_tokens = options->n_tokens,
        .n_vocabulary = tokenizer_n_vocabulary(call->tokenizer),
        .end_token = options->stop_at_end ? tokenizer_end_of_text(call->tokenizer) : -1,
        .sampler = {options->temperature, options->top_k, options->top_p, (uint64_t)options->seed},
        .callback = take_token,
        .context = call};
    interrupt_watch();
    progress_begin(&call->progress, stderr, 0.0);
    generator_run(&call->generator, &request, error);
    progress_end(&call->progress);
    interrupt_ignore();
    free(prompts);
    return error->status;
}

/* ---- results */

static void print_samples(const Call *call) {
    int64_t n_samples = call->values.generate.n_samples;
    for (int64_t i = 0; i < n_samples; i++) {
        const Sample *sample = &call->samples[i];
        if (n_samples > 1) printf("--- sample %lld of %lld ---\n", (long long)i + 1, (long long)n_samples);
        if (!call->streams) {
            TokenDecoder decoder = token_decoder(call->tokenizer);
            write_prompt(call, &decoder, stdout);
            fwrite(sample->text, 1, sample->n_bytes, stdout);
        }
        if (!sample->n_bytes || sample->text[sample->n_bytes - 1] != '\n') putchar('\n');
    }
}

/* Bytes as a JSON text: zeros stay where the rest is UTF-8, and become blanks where it is not. */
static json_t *text_json(char *text, size_t n_bytes) {
    json_t *value = json_stringn(text, n_bytes);
    if (value) return value;
    for (size_t i = 0; i < n_bytes; i++) text[i] = text[i] ? text[i] : ' ';
    return json_make_text(text);
}

static Status print_json(const Call *call, double seconds, Error *error) {
    json_t *samples = json_array();
    for (int64_t i = 0; i < call->values.generate.n_samples; i++) {
        Sample *sample = &call->samples[i];
        json_t *object = json_object();
        json_object_set_new(object, "text", text_json(sample->text, sample->n_bytes));
        json_object_set_new(object, "tokens", json_integer(sample->n_tokens));
        json_object_set_new(object, "log_probability", json_make_number(sample->log_probability));
        json_object_set_new(object, "end", json_make_text(sample->end));
        json_array_append_new(samples, object);
    }
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("generate"));
    json_object_set_new(object, "checkpoint", json_make_text(call->checkpoint.path));
    json_object_set_new(object, "step", json_integer(call->checkpoint.state.step));
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)call->prompt.n));
    json_object_set_new(object, "samples", samples);
    json_object_set_new(object, "tokens", json_integer(call->n_made));
    json_object_set_new(object, "seconds", json_make_number(seconds));
    json_object_set_new(object, "tokens_per_s", json_make_number((double)call->n_made / seconds));
    json_object_set_new(object, "peak_bytes",
                        json_integer((json_int_t)call->generator.memory.allocated_bytes));
    json_object_set_new(object, "interrupted", json_boolean(call->was_interrupted));
    json_line_write(stdout, object, JSON_DIGITS_FLOAT, error);
    json_decref(object);
    return error->status;
}

static Status generate(Call *call, Error *error) {
    const GenerateOptions *options = &call->values.generate;
    call->streams = options->stream && options->n_samples == 1;
    call->shows_progress = !options->quiet && !(call->streams && isatty(STDOUT_FILENO));
    TRY(open_samples(call, error));
    call->started_ns = timer_now_ns();
    Status status = run_samples(call, error);
    double seconds = timer_seconds_since(call->started_ns);
    for (int64_t i = 0; i < options->n_samples; i++) {
        bool is_whole = fclose(call->samples[i].stream) == 0; /* its text is complete now */
        call->samples[i].stream = NULL;
        if (!is_whole) status = error_failed(error, "no memory for the text of a sample");
    }
    if (status != STATUS_OK && call->streams) putchar('\n');
    TRY(status);
    print_samples(call);
    return options->json ? print_json(call, seconds, error) : STATUS_OK;
}

Status command_generate(int n_words, char *const *words, Error *error) {
    Call call = {0};
    TRY_GOTO(options_init(&call.options, &generate_command, &call.values, error), done);
    TRY_GOTO(options_parse(&call.options, n_words, words, error), done);
    if (call.options.help_wanted) {
        command_show_help(&generate_command);
        goto done;
    }
    call.log = log_make(call.values.generate.quiet);
    TRY_GOTO(open_run(&call, error), done);
    TRY_GOTO(encode_prompt(&call, error), done);
    TRY_GOTO(open_model(&call, error), done);
    generate(&call, error);
done:
    close_call(&call);
    return error->status;
}
