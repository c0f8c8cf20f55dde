/* pgpt lab attention: how patterns of sparse attention look, what they cost, and what a model learns with
 * them.
 *
 * Time is that of the operation alone, beside the number of tiles that are left: what is skipped should cost
 * nothing. Losses are those of runs of pgpt train, one a pattern, that differ in nothing else. */
#include "cli/lab/lab.h"

#include "base/text/format.h"
#include "base/text/plain.h"
#include "device/device.h"
#include "job/train_run.h"
#include "lab/attention_study.h"
#include "lab/curves/curves.h"
#include "lab/launch/launch_child.h"
#include "lab/picture/machine_note.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PATTERNS = 16, MOST_WORDS = 64 };

typedef struct {
    const char *patterns, *sequences, *train_patterns;
    int64_t n_heads, head_size, n_repeats, drawn, n_steps, n_threads;
    int device;
} AttentionCall;

typedef struct {
    AttentionCall call;
    LabRunOptions runs;
    LabOptions lab;
} AttentionCommand;

static const OptionSpec specs[] = {
    OPTION_STRING("patterns", AttentionCall, patterns,
                  "dense,window:1024,window:256,strided:128,fixed:128:16,bigbird:64:3:1:2", "LIST",
                  "patterns (of pgpt train's --attention) that are drawn and timed; the first is what others "
                  "are compared with"),
    OPTION_STRING("sequences", AttentionCall, sequences, "1024,2048,4096,8192,16384", "LIST",
                  "tokens of a sequence, of which each is timed"),
    OPTION_INT("heads", AttentionCall, n_heads, 8, 1, 1 << 16, "heads that are timed, of one sequence"),
    OPTION_INT("head-size", AttentionCall, head_size, 64, 1, 1 << 16, "channels of a head"),
    OPTION_INT("repeats", AttentionCall, n_repeats, 5, 1, 99,
               "of each; the fastest counts, which was disturbed least"),
    OPTION_INT("drawn", AttentionCall, drawn, 2048, 1, 8192, "tokens of the sequence that is drawn"),
    OPTION_STRING("train-patterns", AttentionCall, train_patterns,
                  "dense,window:32,strided:16,fixed:32:8,bigbird:16:2:1:1", "LIST",
                  "patterns that a small model is trained with; none: nothing is trained"),
    OPTION_INT("steps", AttentionCall, n_steps, 300, 1, 1 << 30, "steps of these runs"),
    OPTION_CHOICE("device", AttentionCall, device, DEVICE_AUTO, device_names,
                  "where to time and train; auto: on a GPU if there is one"),
    OPTION_THREADS(AttentionCall, n_threads),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", AttentionCommand, call, specs),
    OPTION_GROUP("Runs", AttentionCommand, runs, lab_run_specs),
    OPTION_GROUP("Output", AttentionCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {LAB_TRAIN_WORDS(", as --model mini"), {.name = NULL}};

static const char *const examples[] = {
    "patterns, their time and their loss",
    "pgpt lab attention",
    "bands of three widths on a GPU, and no training",
    "pgpt lab attention --patterns dense,window:256,window:1024 --device cuda --train-patterns none",
    NULL,
};

const OptionCommand lab_attention_command = {
    .name = "lab attention",
    .summary = "patterns of sparse attention: drawn, timed by the tiles that are left, and trained with",
    .description =
        "Draws which tiles of 64 queries and 64 keys each pattern leaves, times forward and backward of attention beside their number, "
        "and trains a small model with each of some patterns. A time in proportion to the tiles says that what is masked costs nothing.",
    .positionals = positionals,
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

typedef struct {
    AttentionPattern pattern[MOST_PATTERNS];
    char name[MOST_PATTERNS][PATTERN_TEXT_BYTES];
    int n;
} Patterns;

typedef struct {
    const AttentionCall *call;
    const AttentionCommand *values;
    const Options *options;
    LabOutput output;
    Patterns timed, trained;
    LabList sequences;
    AttentionTime time[LAB_LIST_MAX][MOST_PATTERNS];
    double loss[MOST_PATTERNS], seconds[MOST_PATTERNS];
    char device[200];
} Study;

/* ---- What is asked for */

static Status read_patterns(const char *option, const char *text, Patterns *patterns, Error *error) {
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        if (patterns->n == MOST_PATTERNS)
            return error_user(error, "%s has more than %d patterns", option, MOST_PATTERNS);
        AttentionPattern *pattern = &patterns->pattern[patterns->n];
        if (pattern_parse(at, n, pattern, error) != STATUS_OK) return error_prefix(error, "%s: ", option);
        pattern_print(pattern, patterns->name[patterns->n], PATTERN_TEXT_BYTES);
        patterns->n++;
        at += n;
        if (!*at) return STATUS_OK;
    }
}

static Status read_call(Study *study, Error *error) {
    static const char *const ours[] = {"out",    "steps",   "attention", "attention-pattern",
                                       "seed",   "threads", "log-every", "device",
                                       "resume", NULL};
    const AttentionCall *call = study->call;
    TrainCommand values;
    Options train;
    TRY(read_patterns("--patterns", call->patterns, &study->timed, error));
    TRY(lab_read_list("--sequences", call->sequences, 1, 1 << 20, false, &study->sequences, error));
    if (strcmp(call->train_patterns, "none") != 0)
        TRY(read_patterns("--train-patterns", call->train_patterns, &study->trained, error));
    TRY(options_init(&train, &train_command, &values, error));
    lab_read_train_words(&lab_attention_command, study->options->arguments, study->options->n_arguments, ours,
                         &train, error);
    options_free(&train);
    return error->status;
}

/* ---- Time */

static Status measure(Study *study, Error *error) {
    DeviceOptions options = {.kind = study->call->device, .n_threads = (int)study->call->n_threads};
    Backend backend;
    TRY(device_backend_open(&backend, &options, error));
    device_describe(&backend, study->device, sizeof study->device);
    for (int k = 0; k < study->sequences.n && error->status == STATUS_OK; k++) {
        for (int i = 0; i < study->timed.n && error->status == STATUS_OK; i++) {
            AttentionTiming timing = {.n_sequences = 1,
                                      .T = study->sequences.values[k],
                                      .n_heads = (int)study->call->n_heads,
                                      .head_size = (int)study->call->head_size,
                                      .n_repeats = study->call->n_repeats};
            log_note(&study->output.log, "timing %s over %" PRId64 " tokens", study->timed.name[i], timing.T);
            attention_time(&backend, &study->timed.pattern[i], &timing, &study->time[k][i], error);
        }
    }
    backend.close(backend.context);
    return error->status;
}

/* Of the first pattern's: tiles, or time by tile. */
static double share(double value, double first) {
    return first > 0.0 ? value / first : NAN;
}

static void print_times(const Study *study) {
    printf("Attention of 1 x %" PRId64 " heads of %" PRId64
           " on %s: time, and beside it that of a tile, by %s's\n",
           study->call->n_heads, study->call->head_size, plain(study->device).text, study->timed.name[0]);
    for (int k = 0; k < study->sequences.n; k++) {
        const AttentionTime *first = &study->time[k][0];
        printf("\n%-24s %8s %7s %12s %8s %12s %8s %9s\n",
               format_things(study->sequences.values[k], "token").text, "tiles", "left", "forward", "a tile",
               "backward", "a tile", "lists");
        for (int i = 0; i < study->timed.n; i++) {
            const AttentionTime *time = &study->time[k][i];
            double tiles = share((double)time->n_blocks, (double)first->n_blocks);
            printf("%-24s %8" PRId64 " %6.1f%% %9.2f ms %7.2fx %9.2f ms %7.2fx %6.3f ms\n",
                   study->timed.name[i], time->n_blocks, 100.0 * tiles, time->forward_ms,
                   share(time->forward_ms, first->forward_ms) / tiles, time->backward_ms,
                   share(time->backward_ms, first->backward_ms) / tiles, time->lists_ms);
        }
    }
}

/* ---- Loss */

static Status train(Study *study, Launcher *launcher, const char *folder, int i, Error *error) {
    char steps[24], threads[24], out[4096];
    const char *words[MOST_WORDS] = {"train",
                                     "--quiet",
                                     "--no-save",
                                     "--sample-tokens",
                                     "0",
                                     "--seed",
                                     "1",
                                     "--attention",
                                     study->trained.name[i],
                                     "--device",
                                     device_names[study->call->device],
                                     "--steps",
                                     steps,
                                     "--threads",
                                     threads,
                                     "--out",
                                     out};
    int n = 17;
    snprintf(steps, sizeof steps, "%" PRId64, study->call->n_steps);
    snprintf(threads, sizeof threads, "%" PRId64, study->call->n_threads);
    snprintf(out, sizeof out, "%.4000s/%d", folder, i);
    for (int k = 0; k < study->options->n_arguments && n + 1 < MOST_WORDS; k++)
        words[n++] = study->options->arguments[k];
    log_note(&study->output.log, "training with %s", study->trained.name[i]);
    const char *const *command = launcher_words(launcher, 1, words);
    ChildResult result = {0};
    CurveRun run = {0};
    TRY(child_run(&(ChildSetup){.words = command, .timeout_s = study->values->runs.timeout}, &result, error));
    if (child_check(&result, command, error) == STATUS_OK && curve_run_read(&run, out, error) == STATUS_OK) {
        study->loss[i] = NAN;
        for (int64_t k = 0; k < run.n; k++)
            if (!isnan(run.y[CURVE_VALIDATION][k])) study->loss[i] = run.y[CURVE_VALIDATION][k];
        study->seconds[i] = run.n ? run.x[CURVE_X_TIME][run.n - 1] : NAN;
    }
    curve_run_free(&run);
    child_free(&result);
    return error->status;
}

static Status train_all(Study *study, Error *error) {
    Launcher launcher = {0};
    RunFolder folder = {0};
    if (!study->trained.n) return STATUS_OK;
    TRY(launcher_open_alone(&launcher, error));
    interrupt_watch();
    run_folder_make(&folder, study->output.folder, error);
    for (int i = 0; i < study->trained.n && error->status == STATUS_OK; i++)
        train(study, &launcher, folder.path, i, error);
    interrupt_ignore();
    run_folder_remove(&folder);
    launcher_close(&launcher);
    return error->status;
}

static void print_losses(const Study *study) {
    if (!study->trained.n) return;
    printf("\n%-24s %15s %9s\n", format_things(study->call->n_steps, "step").text, "validation loss", "time");
    for (int i = 0; i < study->trained.n; i++)
        printf("%-24s %15.4f %7.1f s\n", study->trained.name[i], study->loss[i], study->seconds[i]);
}

/* ---- Pictures */

static Status draw_patterns(const Study *study, Error *error) {
    bool has_png;
    TRY(attention_patterns_draw(study->timed.pattern, study->timed.n, study->call->drawn,
                                study->output.caption, study->output.folder, "attention-patterns", &has_png,
                                error));
    log_note(&study->output.log, "drawn: %s/attention-patterns.svg", study->output.folder);
    return STATUS_OK;
}

/* Time by tiles, of the longest sequence, and the line of what is in proportion to the first pattern. */
static Status draw_times(const Study *study, Error *error) {
    int k = study->sequences.n - 1;
    const AttentionTime *times = study->time[k];
    double x[MOST_PATTERNS] = {0}, y[2][MOST_PATTERNS] = {{0}}, line_x[2] = {0}, line_y[2][2] = {{0}};
    char title[160];
    Arena arena = {0};
    for (int i = 0; i < study->timed.n; i++) {
        x[i] = (double)times[i].n_blocks;
        y[0][i] = times[i].forward_ms;
        y[1][i] = times[i].backward_ms;
    }
    line_x[1] = x[0];
    line_y[0][1] = y[0][0];
    line_y[1][1] = y[1][0];
    PlotSeries series[] = {{"forward", PLOT_POINTS, x, y[0], study->timed.n},
                           {"backward", PLOT_POINTS, x, y[1], study->timed.n},
                           {"in proportion, forward", PLOT_LINES, line_x, line_y[0], 2},
                           {"in proportion, backward", PLOT_LINES, line_x, line_y[1], 2}};
    snprintf(title, sizeof title, "Time of sparse attention by its tiles: %" PRId64 " tokens",
             study->sequences.values[k]);
    Plot plot = {.title = title,
                 .x_label = "tiles of 64 x 64 that are left",
                 .y_label = "milliseconds",
                 .series = series,
                 .n_series = 4,
                 .note =
                     machine_note(&arena, study->device, (int)study->call->n_threads, study->output.note)};
    lab_draw(&study->output, &plot, "attention-time", error);
    arena_free(&arena);
    return error->status;
}

static Status draw_losses(const Study *study, Error *error) {
    const char *names[MOST_PATTERNS];
    double x[MOST_PATTERNS];
    Arena arena = {0};
    if (!study->trained.n) return STATUS_OK;
    for (int i = 0; i < study->trained.n; i++) {
        names[i] = study->trained.name[i];
        x[i] = i;
    }
    PlotSeries series[] = {{"validation loss", PLOT_POINTS, x, study->loss, study->trained.n}};
    Plot plot = {.title = "What a small model learns with each pattern",
                 .x_label = "",
                 .y_label = "validation loss",
                 .series = series,
                 .n_series = 1,
                 .x_names = names,
                 .shows_values = true,
                 .note =
                     machine_note(&arena, study->device, (int)study->call->n_threads, study->output.note)};
    lab_draw(&study->output, &plot, "attention-loss", error);
    arena_free(&arena);
    return error->status;
}

/* ---- JSON */

static json_t *time_json(const char *name, int64_t T, const AttentionTime *time) {
    json_t *object = json_object();
    json_object_set_new(object, "pattern", json_string(name));
    json_object_set_new(object, "sequence", json_integer(T));
    json_object_set_new(object, "tiles", json_integer(time->n_blocks));
    json_object_set_new(object, "pairs", json_make_number(time->pairs));
    json_object_set_new(object, "forward_ms", json_make_number(time->forward_ms));
    json_object_set_new(object, "backward_ms", json_make_number(time->backward_ms));
    json_object_set_new(object, "lists_ms", json_make_number(time->lists_ms));
    return object;
}

static Status print_json(const Study *study, Error *error) {
    json_t *object = json_object(), *times = json_array(), *losses = json_array();
    for (int k = 0; k < study->sequences.n; k++)
        for (int i = 0; i < study->timed.n; i++)
            json_array_append_new(
                times, time_json(study->timed.name[i], study->sequences.values[k], &study->time[k][i]));
    for (int i = 0; i < study->trained.n; i++) {
        json_t *loss = json_object();
        json_object_set_new(loss, "pattern", json_string(study->trained.name[i]));
        json_object_set_new(loss, "val_loss", json_make_number(study->loss[i]));
        json_object_set_new(loss, "seconds", json_make_number(study->seconds[i]));
        json_array_append_new(losses, loss);
    }
    json_object_set_new(object, "command", json_string("lab attention"));
    json_object_set_new(object, "device", json_make_text(study->device));
    json_object_set_new(object, "times", times);
    json_object_set_new(object, "losses", losses);
    json_object_set_new(object, "out", json_make_text(study->output.folder));
    return lab_print_json(object, error);
}

/* ---- All of it */

static Status run_study(Study *study, Error *error) {
    TRY(read_call(study, error));
    TRY(measure(study, error));
    print_times(study);
    fflush(stdout);
    TRY(train_all(study, error));
    print_losses(study);
    fflush(stdout);
    TRY(draw_times(study, error)); /* which makes the folder */
    TRY(draw_patterns(study, error));
    TRY(draw_losses(study, error));
    return study->values->lab.json ? print_json(study, error) : STATUS_OK;
}

Status lab_attention(Launch *launch, int n_words, char *const *words, Error *error) {
    static const LabDefault quick[] = {
        {"sequences", "1024,2048"},
        {"patterns", "dense,window:256,strided:128,bigbird:64:3:1:2"},
        {"heads", "4"},
        {"repeats", "3"},
        {"train-patterns", "dense,window:16"},
        {"steps", "40"},
        {NULL, NULL},
    };
    AttentionCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options_alone(launch, &options, &lab_attention_command,
                               "measures in one process; run it without mpirun", &values, n_words, words,
                               &goes_on, error));
    if (goes_on && lab_apply_quick(&options, &values.runs, quick, error) == STATUS_OK) {
        Study study = {.call = &values.call,
                       .values = &values,
                       .options = &options,
                       .output = lab_output(launch, &options, &values.lab, n_words, words)};
        if (lab_check_folder(launch, &study.output, error) == STATUS_OK) run_study(&study, error);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
