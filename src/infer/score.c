/* One forward program with its losses, replayed over windows.
 *
 * A program has one length for all its windows, and answers to questions are often much shorter than the
 * context, so there is a program for the longest window, one for half of it, and so on, as far as there are
 * windows for them. They share one DeviceMemory: the same weights, and room for the largest. Windows are
 * ordered by program, otherwise as they came.
 *
 * What a window lacks to the length of its program, and a batch to its number of windows, is padding: token 0
 * with target -1, which the loss leaves out and, since attention looks back only, nobody sees. So the losses
 * do not depend on what else is in the batch. */
#include "infer/score.h"

#include "base/system/memory.h"

#include <math.h>
#include <string.h>

enum {
    CHOSEN_BATCH_TOKENS = 2048, /* enough rows to make the products efficient, few enough to stay small */
    SHORTEST_PASS = 16,
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

Status score_options_complete(ScoreOptions *options, const ModelConfig *config, Error *error) {
    if (!options->window) options->window = config->context;
    if (options->window < 1 || options->window > config->context) {
        return error_user(error, "--window %lld wants a number from 1 to the model's context, %lld",
                          (long long)options->window, (long long)config->context);
    }
    if (!options->stride) options->stride = most(options->window / 2, 1);
    if (options->stride < 1 || options->stride > options->window) {
        return error_user(
            error,
            "--stride %lld wants a number from 1 to the window, %lld: a longer one would leave out tokens",
            (long long)options->stride, (long long)options->window);
    }
    return STATUS_OK;
}

/* ---- windows */

/* The windows of one text, written to `windows` unless that is NULL. Returns how many. */
static int64_t cut_text(const ScoreText *text, int64_t index, const ScoreOptions *options,
                        ScoreWindow *windows) {
    int64_t T = options->window, n_windows = 0;
    int64_t n_scored = text->n_tokens - text->n_given, end = text->n_tokens - 1;
    int64_t begin = n_scored <= T ? end - T : text->n_given - 1 - (T - options->stride);
    if (begin < 0) begin = 0;
    for (int64_t next = text->n_given; next < text->n_tokens; begin += options->stride) {
        ScoreWindow window = {index, begin, least(T, end - begin), next - (begin + 1)};
        if (windows) windows[n_windows] = window;
        n_windows++;
        next = begin + window.n_inputs + 1;
    }
    return n_windows;
}

static Status check_text(const Scorer *scorer, int64_t index, Error *error) {
    const ScoreText *text = &scorer->texts[index];
    if (text->n_given < 1 || text->n_given > text->n_tokens) {
        return error_failed(error, "text %lld: %lld of %lld tokens are given", (long long)index,
                            (long long)text->n_given, (long long)text->n_tokens);
    }
    for (int64_t i = 0; i < text->n_tokens; i++) {
        if (text->tokens[i] >= 0 && text->tokens[i] < scorer->vocabulary) continue;
        return error_failed(error, "text %lld: token %d is not one of the model's %lld", (long long)index,
                            text->tokens[i], (long long)scorer->vocabulary);
    }
    return STATUS_OK;
}

static Status cut_windows(Scorer *scorer, Error *error) {
    for (int64_t i = 0; i < scorer->n_texts; i++) {
        TRY(check_text(scorer, i, error));
        scorer->n_windows += cut_text(&scorer->texts[i], i, &scorer->options, NULL);
    }
    void *windows;
    scorer->windows_bytes = sizeof *scorer->windows * (size_t)scorer->n_windows;
    TRY(memory_alloc(&windows, scorer->windows_bytes, "the windows of the text", error));
    scorer->windows = windows;
    ScoreWindow *next = scorer->windows;
    for (int64_t i = 0; i < scorer->n_texts; i++) {
        ScoreText *text = &scorer->texts[i];
        int64_t n = cut_text(text, i, &scorer->options, next);
        text->n_unseen = n ? next->begin : 0;
        for (int64_t k = 0; k < text->n_tokens - text->n_given; k++) text->losses[k] = NAN;
        next += n;
    }
    return STATUS_OK;
}

/* ---- passes */

/* Lengths halve from the longest window on. Returns how many there are. */
static int choose_lengths(const Scorer *scorer, int64_t length[SCORE_MAX_PASSES]) {
    int64_t longest = 1;
    for (int64_t i = 0; i < scorer->n_windows; i++) longest = most(longest, scorer->windows[i].n_inputs);
    int n = 0;
    for (length[n++] = longest; n < SCORE_MAX_PASSES; n++) {
        length[n] = (length[n - 1] + 1) / 2;
        if (length[n] < SHORTEST_PASS) break;
    }
    return n;
}

/* Sort the windows by the shortest length that holds them (by counting, so that their order stays), and make
 * a pass of each length that is needed. */
static Status sort_windows(Scorer *scorer, Error *error) {
    int64_t length[SCORE_MAX_PASSES], count[SCORE_MAX_PASSES] = {0}, place[SCORE_MAX_PASSES] = {0};
    int n_lengths = choose_lengths(scorer, length);
    void *sorted;
    TRY(memory_alloc(&sorted, scorer->windows_bytes, "the windows of the text", error));
    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < scorer->n_windows; i++) {
            int k = n_lengths - 1;
            while (k > 0 && length[k] < scorer->windows[i].n_inputs) k--;
            if (round == 0) count[k]++;
            else ((ScoreWindow *)sorted)[place[k]++] = scorer->windows[i];
        }
        for (int k = 1; round == 0 && k < n_lengths; k++) place[k] = place[k - 1] + count[k - 1];
        for (int k = 0; round == 0 && k < n_lengths; k++) {
            if (!count[k]) continue;
            scorer->pass[scorer->n_passes++] =
                (ScorePass){.T = length[k], .first = place[k], .n_windows = count[k]};
        }
    }
    memory_free(scorer->windows, scorer->windows_bytes);
    scorer->windows = sorted;
    return STATUS_OK;
}

/* The chunks of this rank, between the messages that bring their inputs and take their outputs. That the last
 * messages have left is waited for at the end of a pass, since the next one has other messages. */
static void record_stages(const Scorer *scorer, ScorePass *pass, const ModelConfig *config,
                          GptLossOptions options) {
    const ModelPart *part = &scorer->options.part;
    PipelineRecord record = pipeline_record(part->pipeline, pass->graph);
    for (int chunk = 0; chunk < model_part_n_chunks(part); chunk++) {
        GptStage stage = model_part_stage(part, config, chunk);
        Shape shape = gpt_stream_shape(config, &options);
        Tensor *input =
            stage.has_embedding ? NULL : pipeline_record_input(&record, chunk, options.dtype, shape, false);
        GptStageTensors made = gpt_record_stage(config, scorer->table, pass->graph, &options, &stage, input);
        if (made.output) pipeline_record_output(&record, chunk, made.output);
        pass->loss.parameters = made.loss.parameters;
        if (made.loss.tokens) pass->loss.tokens = made.loss.tokens;
        if (made.loss.sequences) pass->loss.sequences = options.sequences = made.loss.sequences;
        if (made.loss.targets) pass->loss.targets = made.loss.targets;
        if (made.loss.losses) pass->loss.losses = made.loss.losses;
        options.parameters = &pass->loss.parameters;
    }
    pass->graph->section = SECTION_UPDATE;
    pipeline_record_end(&record);
}

static Status plan_pass(Scorer *scorer, ScorePass *pass, const ModelConfig *config, Error *error) {
    int64_t chosen = most(CHOSEN_BATCH_TOKENS / pass->T, 1);
    int64_t share = (pass->n_windows + scorer->options.n_shares - 1) / scorer->options.n_shares;
    pass->B = least(scorer->options.batch ? scorer->options.batch : chosen, share);
    if (pass->B < 1 || pass->B > INT32_MAX / pass->T) {
        return error_user(error,
                          "%lld windows of %lld tokens cannot be scored at once; use a smaller --batch",
                          (long long)pass->B, (long long)pass->T);
    }
    pass->graph = graph_new();
    GptLossOptions options = {.B = pass->B,
                              .T = pass->T,
                              .loss_scale = 1.0,
                              .traits = &scorer->backend->traits,
                              .dtype = scorer->options.dtype,
                              .split = scorer->options.part.split};
    if (scorer->options.part.pipeline) record_stages(scorer, pass, config, options);
    else pass->loss = gpt_record_loss(config, scorer->table, pass->graph, &options);
    return wiring_plan(&pass->program, pass->graph, scorer->backend, &(WiringOptions){.name = "score"},
                       &scorer->memory, error);
}

/* Tokens to read for this rank's share of a pass. */
static void count_own(Scorer *scorer, const ScorePass *pass) {
    for (int64_t i = 0; i < pass->n_windows; i++) {
        if (i / pass->B % scorer->options.n_shares == scorer->options.share)
            scorer->n_inputs += scorer->windows[pass->first + i].n_inputs;
    }
}

Status scorer_plan(Scorer *scorer, const ModelConfig *config, const ParameterTable *table,
                   const Backend *backend, ScoreText *texts, int64_t n_texts, const ScoreOptions *options,
                   Error *error) {
    *scorer = (Scorer){.table = table,
                       .backend = backend,
                       .texts = texts,
                       .n_texts = n_texts,
                       .vocabulary = config->vocabulary,
                       .options = *options};
    if (scorer->options.n_shares < 1) scorer->options.n_shares = 1;
    TRY(score_options_complete(&scorer->options, config, error));
    TRY(cut_windows(scorer, error));
    TRY(sort_windows(scorer, error));
    for (int k = 0; k < scorer->n_passes; k++) {
        TRY(plan_pass(scorer, &scorer->pass[k], config, error));
        count_own(scorer, &scorer->pass[k]);
    }
    return STATUS_OK;
}

size_t scorer_required_bytes(const Scorer *scorer) {
    return wiring_bytes_beside_weights(&scorer->memory);
}

Status scorer_open(Scorer *scorer, const DeviceMemory *owner, Error *error) {
    TRY(wiring_open_memory(&scorer->memory, scorer->backend, owner, error));
    int64_t n_rows = 0;
    for (int k = 0; k < scorer->n_passes; k++) {
        ScorePass *pass = &scorer->pass[k];
        TRY(executor_open(&pass->executor, &pass->program, &scorer->memory, error));
        n_rows = most(n_rows, pass->B * pass->T);
    }
    void *rows;
    scorer->rows_bytes = (size_t)n_rows * (2 * sizeof(int32_t) + sizeof(float));
    TRY(memory_alloc(&rows, scorer->rows_bytes, "a batch of windows", error));
    scorer->tokens = rows;
    scorer->targets = scorer->tokens + n_rows;
    scorer->losses = (float *)(scorer->targets + n_rows);
    return STATUS_OK;
}

Status scorer_upload(Scorer *scorer, const Parameter *parameter, const float *values, Error *error) {
    if (!scorer->n_passes) return STATUS_OK; /* nothing to score, nobody to read it */
    ScorePass *pass = &scorer->pass[0];
    const Tensor *tensor = parameter_tensor_of(&pass->loss.parameters, parameter);
    return executor_upload_f32(&pass->executor, tensor, 0, shape_count(parameter->shape), values, error);
}

void scorer_close(Scorer *scorer) {
    for (int k = 0; k < scorer->n_passes; k++)
        wiring_close(&scorer->pass[k].graph, &scorer->pass[k].executor);
    device_close(&scorer->memory);
    memory_free(scorer->windows, scorer->windows_bytes);
    memory_free(scorer->tokens, scorer->rows_bytes);
    *scorer = (Scorer){0};
}

/* ---- running */

static void fill_row(const Scorer *scorer, const ScoreWindow *window, int64_t T, int32_t *tokens /* (T) */,
                     int32_t *targets /* (T) */) {
    int64_t n_inputs = window ? window->n_inputs : 0;
    const int32_t *text = window ? scorer->texts[window->text].tokens + window->begin : NULL;
    for (int64_t t = 0; t < T; t++) {
        tokens[t] = t < n_inputs ? text[t] : 0;
        targets[t] = t < n_inputs && t >= window->n_skipped ? text[t + 1] : -1;
    }
}

static Status take_row(Scorer *scorer, const ScoreWindow *window, const float *losses /* (T) */,
                       Error *error) {
    ScoreText *text = &scorer->texts[window->text];
    for (int64_t t = window->n_skipped; t < window->n_inputs; t++) {
        int64_t token = window->begin + t + 1;
        if (!isfinite(losses[t])) {
            return error_failed(error,
                                "the model gives token %lld of text %lld no probability: it has diverged",
                                (long long)token, (long long)window->text);
        }
        text->losses[token - text->n_given] = losses[t];
    }
    return STATUS_OK;
}

static Status run_batch(Scorer *scorer, ScorePass *pass, const ScoreWindow *windows, int64_t n_windows,
                        Error *error) {
    int64_t T = pass->T;
    for (int64_t b = 0; b < pass->B; b++) {
        fill_row(scorer, b < n_windows ? &windows[b] : NULL, T, scorer->tokens + b * T,
                 scorer->targets + b * T);
    }
    const GptLoss *loss = &pass->loss;
    if (loss->tokens) TRY(executor_upload(&pass->executor, loss->tokens, scorer->tokens, error));
    if (loss->sequences) TRY(executor_upload(&pass->executor, loss->sequences, scorer->tokens, error));
    if (loss->targets) TRY(executor_upload(&pass->executor, loss->targets, scorer->targets, error));
    TRY(executor_run(&pass->executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error));
    if (!loss->losses) return STATUS_OK;
    TRY(executor_download(&pass->executor, pass->loss.losses, scorer->losses, error));
    for (int64_t b = 0; b < n_windows; b++) TRY(take_row(scorer, &windows[b], scorer->losses + b * T, error));
    return STATUS_OK;
}

Status scorer_run(Scorer *scorer, ScoreProgress progress, void *context, Error *error) {
    const ScoreOptions *options = &scorer->options;
    int64_t n_done = 0;
    bool goes_on = true;
    for (int k = 0; k < scorer->n_passes && goes_on; k++) {
        ScorePass *pass = &scorer->pass[k];
        int64_t step = pass->B * options->n_shares;
        for (int64_t first = pass->B * options->share; first < pass->n_windows && goes_on; first += step) {
            const ScoreWindow *windows = scorer->windows + pass->first + first;
            int64_t n_windows = least(pass->B, pass->n_windows - first);
            TRY(run_batch(scorer, pass, windows, n_windows, error));
            for (int64_t i = 0; i < n_windows; i++) n_done += windows[i].n_inputs;
            goes_on = !progress || progress(context, n_done, scorer->n_inputs);
        }
        if (options->part.pipeline)
            TRY(executor_run(&pass->executor, SECTION_UPDATE, MICRO_BATCH_ONLY, error));
    }
    return STATUS_OK;
}
