/* pgpt eval: how well a model knows a text, or answers questions.
 *
 * Everything that can be wrong with the data is found before the model's weights are read, and everything
 * else before the first window is scored. */
#include "cli/commands.h"

#include "base/options/options_refuse.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/log.h"
#include "cli/model/eval_report.h"
#include "cli/model/model_ranks.h"
#include "run/interrupt.h"

#include <string.h>

enum { CHOSEN_ROWS = 8, MANY = 1 << 30 };

typedef struct {
    const char *data, *delimiter, *per_token;
    int kind; /* ScoreKind */
    int64_t window, stride, tokens_limit, items_limit, batch, n_threads;
    int device, precision; /* DeviceKind, PrecisionKind */
    int choice;            /* CheckpointChoice */
    bool json, quiet;
} EvalOptions;

typedef struct {
    EvalOptions eval;
    MeshOptions mesh;
} EvalCommand;

static const char *const task_names[] = {"text", "choice", "last-word", NULL};

static const OptionSpec eval_option_specs[] = {
    OPTION_STRING(
        "data", EvalOptions, data, "", "FILE",
        "what to evaluate on, named as for training: a text, a .jsonl file (the \"text\" of each line), a folder "
        "of either, a folder made by 'pgpt data prepare' with the model's tokenizer (all of it), - for standard "
        "input, or builtin (the end of it that training holds out by default); several with commas between. For other tasks than text, files of lines"),
    OPTION_CHOICE(
        "task", EvalOptions, kind, SCORE_TEXT, task_names,
        "text: how well every token of a text is predicted; choice: which of several continuations is "
        "the likeliest; last-word: is the last word of each text predicted"),
    OPTION_INT("window", EvalOptions, window, 0, 0, MANY,
               "tokens that the model reads at a time; 0: its whole context"),
    OPTION_INT(
        "stride", EvalOptions, stride, 0, 0, MANY,
        "tokens from one window of a text to the next; equal to the window, windows do not overlap, and the "
        "smaller it is, the more every token has before it; 0: half of the window"),
    OPTION_INT("tokens-limit", EvalOptions, tokens_limit, 0, 0, INT64_MAX / 2,
               "of a text, evaluate on the first so many tokens; 0: all"),
    OPTION_INT("items-limit", EvalOptions, items_limit, 0, 0, INT64_MAX / 2,
               "of questions, evaluate on the first so many; 0: all"),
    OPTION_STRING("delimiter", EvalOptions, delimiter, "", "TEXT",
                  "put this between a context and its choices, ' ' for data whose choices begin with a word",
                  .flags = OPTION_MAY_BE_EMPTY),
    OPTION_INT("batch", EvalOptions, batch, 0, 0, 1 << 20,
               "windows at a time; more take more memory and change no result; 0: chosen"),
    OPTION_CHOICE("checkpoint", EvalOptions, choice, CHECKPOINT_NEWEST, given_model_choices,
                  GIVEN_MODEL_CHOICE_HELP),
    OPTION_DEVICE(EvalOptions, device),
    OPTION_CHOICE("dtype", EvalOptions, precision, PRECISION_F32, precision_names,
                  "precision to compute in; pure-... are the same here as without"),
    OPTION_THREADS(EvalOptions, n_threads),
    OPTION_STRING("per-token", EvalOptions, per_token, "", "FILE",
                  "write every scored token with its text and log-probability to this file, as JSON lines",
                  .flags = OPTION_TRANSIENT),
    OPTION_JSON(EvalOptions, json, .flags = OPTION_TRANSIENT),
    OPTION_BOOL("quiet", EvalOptions, quiet, false, "say only what went wrong, and the results",
                .flags = OPTION_TRANSIENT),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Evaluation", EvalCommand, eval, eval_option_specs),
    OPTION_GROUP("Parallel", EvalCommand, mesh, mesh_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "MODEL", .help = GIVEN_MODEL_HELP, .optional = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "loss, perplexity and bits per byte of a text",
    "pgpt eval runs/first --data book.txt",
    "the same, faster, and the log-probability of every token in a file",
    "pgpt eval --data book.txt --stride 1024 --per-token tokens.jsonl",
    "multiple choice",
    "pgpt eval models/gpt2 --task choice --data questions.jsonl",
    "last words, with the figures as JSON",
    "pgpt eval models/gpt2 --task last-word --data lambada.jsonl --json",
    "four processes: two share out the text, each with a partner that has the other half of the layers",
    "mpirun -n 4 pgpt eval runs/first --data book.txt --dp 2 --pp 2",
    NULL,
};

const OptionCommand eval_command = {
    .name = "eval",
    .summary = "measure how well a model predicts",
    .description =
        "Scores a text by the model's loss per token, its perplexity (e to the loss) and bits per byte, which compares "
        "models of different tokenizers. Windows slide over the text by --stride tokens; every token but the first "
        "counts exactly once, in the first window that holds it.\n\n"
        "--task choice reads lines {\"context\": TEXT, \"choices\": [TEXT, ...], \"label\": N}, N counted from 0. The "
        "model's answer is the choice of the highest log-likelihood per token; the accuracy by the plain sum is "
        "reported too. Context and choice are encoded together where the context's tokens stay the same, else apart; "
        "blanks at the end of a context count to the choices. The loss is that of the right choices.\n\n"
        "--task last-word reads lines {\"text\": TEXT} or plain lines. The last word, with the blank before it, must be "
        "what the model itself says when it always takes the likeliest token. The loss and perplexity are per word.\n\n"
        "A context that does not fit is cut at its beginning, and the result says how often.\n\n"
        "Under mpirun, ranks divide the model (--tp, --pp) and share out the windows or questions (--dp); the first one "
        "reads the data and writes the result.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
};

/* ---- what a call needs, opened one after the other and closed together */

typedef struct {
    Launch *launch;
    Options options;
    EvalCommand values;
    Log log;
    ModelRanks ranks;
    GivenModel model;
    ScoreSet set;
    ScoreOptions score;  /* complete */
    Scorer scorer;       /* of texts and choices */
    Generator generator; /* of last words */
    FileWriter per_token;
    Progress progress;
    uint64_t started_ns;
    int64_t n_read;
    bool has_scorer, has_generator, was_interrupted;
    Error *error; /* of the run, for what goes wrong while it tells its progress */
} Call;

static void close_call(Call *call) {
    file_writer_abort(&call->per_token);
    if (call->has_scorer) scorer_close(&call->scorer);
    if (call->has_generator) generator_close(&call->generator);
    score_set_free(&call->set);
    model_ranks_close(&call->ranks, &call->model);
    given_model_close(&call->model);
    options_free(&call->options);
}

/* An option that would do nothing for the task is a misunderstanding. */
static Status check_options(const Call *call, Error *error) {
    enum { FOR_TEXT = 1 << SCORE_TEXT, FOR_CHOICE = 1 << SCORE_CHOICE, FOR_LAST_WORD = 1 << SCORE_LAST_WORD };
    static const OptionUse specific[] = {
        {"stride", FOR_TEXT | FOR_CHOICE},
        {"tokens-limit", FOR_TEXT},
        {"items-limit", FOR_CHOICE | FOR_LAST_WORD},
        {"delimiter", FOR_CHOICE},
    };
    const EvalOptions *options = &call->values.eval;
    if (!*options->data) {
        return error_user(error, "--data is missing; say what to evaluate on: pgpt eval MODEL --data FILE");
    }
    char task[40];
    snprintf(task, sizeof task, "--task %s", task_names[options->kind]);
    return options_refuse_unused(&call->options, specific, sizeof specific / sizeof specific[0],
                                 1u << options->kind, task, OPTION_FROM_PRESET, error);
}

/* ---- the model */

static Status read_data(Call *call, Error *error) {
    const EvalOptions *options = &call->values.eval;
    ScoreReadOptions read = {.most_tokens = options->tokens_limit,
                             .most_items = options->items_limit,
                             .delimiter = options->delimiter};
    call->score = (ScoreOptions){.window = options->window,
                                 .stride = options->stride,
                                 .batch = options->batch,
                                 .dtype = precision_of((PrecisionKind)options->precision).weight,
                                 .share = model_ranks_share(&call->ranks),
                                 .n_shares = model_ranks_n_shares(&call->ranks)};
    TRY(score_options_complete(&call->score, &call->model.source.config, error));
    score_set_init(&call->set, (ScoreKind)options->kind, call->model.tokenizer);
    return call->launch->is_root ? score_set_read(&call->set, options->data, &read, error) : STATUS_OK;
}

/* One rank reads it, and all have it. */
static Status share_data(Call *call, Error *error) {
    Launch *launch = call->launch;
    read_data(call, error);
    TRY(launch_agree_with_root(launch, error));
    score_set_share(&call->set, &launch->world, error);
    return launch_agree(launch, error);
}

static Status upload(void *context, const Parameter *parameter, const float *values, Error *error) {
    Call *call = context;
    return call->has_scorer ? scorer_upload(&call->scorer, parameter, values, error)
                            : generator_upload(&call->generator, parameter, values, error);
}

static Status plan_scorer(Call *call, Error *error) {
    call->has_scorer = true;
    return scorer_plan(&call->scorer, &call->model.source.config, &call->model.table, &call->model.backend,
                       call->set.texts, call->set.n_texts, &call->score, error);
}

static Status plan_generator(Call *call, Error *error) {
    int64_t n_rows = call->score.batch ? call->score.batch : CHOSEN_ROWS;
    int64_t share = (call->set.n_texts + call->score.n_shares - 1) / call->score.n_shares;
    GeneratorOptions rows = {
        .n_rows = n_rows < share ? n_rows : share, .dtype = call->score.dtype, .part = call->score.part};
    call->has_generator = true;
    return generator_plan(&call->generator, &call->model.source.config, &call->model.table,
                          &call->model.backend, &rows, error);
}

static const DeviceMemory *device_memory(const Call *call) {
    return call->has_scorer ? &call->scorer.memory : &call->generator.memory;
}

/* This rank's part of it. */
static Status load_model(Call *call, Error *error) {
    call->score.part = model_ranks_part(&call->ranks);
    TRY(call->set.kind == SCORE_LAST_WORD ? plan_generator(call, error) : plan_scorer(call, error));
    TRY(model_ranks_check_memory(&call->ranks, &call->model, device_required_bytes(device_memory(call)),
                                 "the evaluation", "choose a smaller --batch or --window, or a smaller model",
                                 error));
    TRY(call->has_scorer ? scorer_open(&call->scorer, NULL, error)
                         : generator_open(&call->generator, NULL, error));
    return given_model_load(&call->model, upload, call, error);
}

static Status open_model(Call *call, Error *error) {
    const EvalOptions *options = &call->values.eval;
    DeviceOptions device = {.kind = options->device,
                            .n_threads = (int)options->n_threads,
                            .precision = (PrecisionKind)options->precision};
    TRY(model_ranks_open(&call->ranks, &call->model, &device, error));
    load_model(call, error);
    return launch_agree(call->launch, error);
}

/* ---- the run */

static bool show_progress(void *context, int64_t n_done, int64_t n_total) {
    Call *call = context;
    double seconds = timer_seconds_since(call->started_ns);
    call->n_read = n_done;
    bool is_shown = call->launch->is_root && !call->values.eval.quiet;
    if (is_shown && seconds >= 1.0 && progress_due(&call->progress)) {
        char status[PROGRESS_STATUS_BYTES];
        snprintf(status, sizeof status, "%s of %s tokens  %s", format_count((double)n_done).text,
                 format_count((double)n_total).text, format_rate((double)n_done / seconds, "tokens/s").text);
        progress_update(&call->progress, (double)n_done / (double)n_total, status);
    }
    bool is_told = model_ranks_interrupted(&call->ranks, call->error);
    call->was_interrupted = is_told && n_done < n_total;
    return !call->was_interrupted && call->error->status == STATUS_OK;
}

static Status score(Call *call, Error *error) {
    ScoreWordsOptions words = {
        .window = call->score.window, .share = call->score.share, .n_shares = call->score.n_shares};
    call->error = error;
    interrupt_watch();
    progress_begin(&call->progress, stderr, 0.0);
    if (call->has_scorer) scorer_run(&call->scorer, show_progress, call, error);
    else
        score_last_words(&call->generator, call->set.texts, call->set.n_texts, &words, show_progress, call,
                         error);
    progress_end(&call->progress);
    interrupt_ignore();
    return error->status;
}

/* What all ranks have found. */
static Status merge(Call *call, Error *error) {
    Comm *world = &call->launch->world;
    int64_t count[] = {model_ranks_speaks(&call->ranks) ? call->n_read : 0, call->was_interrupted};
    if (world->size == 1) return STATUS_OK;
    TRY(score_merge(call->set.texts, call->set.n_texts, world, error));
    TRY(comm_all_reduce(world, count, 2, COMM_I64, COMM_SUM, error));
    call->n_read = count[0];
    call->was_interrupted = count[1] > 0;
    return STATUS_OK;
}

static Status report(Call *call, EvalReport *report, Error *error) {
    const EvalOptions *options = &call->values.eval;
    TRY(score_summarise(&call->set, &report->summary, error));
    if (*options->per_token) TRY(eval_report_tokens(&call->set, &call->per_token, error));
    if (call->was_interrupted) log_warning(&call->log, "interrupted: these are the results of a part");
    eval_report_print(report, stdout);
    return options->json ? eval_report_json(report, stdout, error) : STATUS_OK;
}

static Status run(Call *call, Error *error) {
    const EvalOptions *options = &call->values.eval;
    EvalReport result = {.set = &call->set,
                         .task = task_names[options->kind],
                         .data = options->data,
                         .model = call->model.source.path,
                         .step = call->model.source.step,
                         .options = call->score,
                         .peak_bytes = device_memory(call)->allocated_bytes};
    call->started_ns = timer_now_ns();
    TRY(score(call, error));
    TRY(merge(call, error));
    result.seconds = timer_seconds_since(call->started_ns);
    result.n_read = call->n_read;
    result.was_interrupted = call->was_interrupted;
    if (call->launch->is_root) report(call, &result, error);
    return launch_agree_with_root(call->launch, error);
}

static Status evaluate(Call *call, Error *error) {
    const EvalOptions *options = &call->values.eval;
    Launch *launch = call->launch;
    check_options(call, error);
    TRY(launch_agree(launch, error));
    TRY(model_ranks_begin(&call->ranks, launch, &call->options, &call->values.mesh, error));
    given_model_find(&call->model, &call->options, (CheckpointChoice)options->choice, "pgpt eval MODEL",
                     &launch->world, &call->log, error);
    TRY(launch_agree(launch, error));
    TRY(share_data(call, error));
    TRY(open_model(call, error));
    if (*options->per_token && launch->is_root) file_writer_open(&call->per_token, options->per_token, error);
    TRY(launch_agree_with_root(launch, error));
    return run(call, error);
}

static Status read_options(Call *call, int n_words, char *const *words, Error *error) {
    TRY(options_init(&call->options, &eval_command, &call->values, error));
    return options_parse(&call->options, n_words, words, error);
}

Status command_eval(Launch *launch, int n_words, char *const *words, Error *error) {
    Call call = {.launch = launch, .per_token = {.descriptor = -1}};
    read_options(&call, n_words, words, error);
    if (launch_agree(launch, error) == STATUS_OK && call.options.help_wanted) {
        command_show_help(&eval_command);
    } else if (error->status == STATUS_OK) {
        call.log = launch_log(launch, call.values.eval.quiet);
        evaluate(&call, error);
    }
    launch_fail(launch, error); /* before anything is given back that others may use */
    close_call(&call);
    return error->status;
}
