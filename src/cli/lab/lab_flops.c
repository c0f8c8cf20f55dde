/* pgpt lab flops: where the arithmetic of a training step goes, by size and by sequence length, beside the
 * formula that papers count with, and where the time goes on a model that runs here.
 *
 * Counts are those of the program that would train the model, planned on the null backend: nothing is
 * estimated, and no memory is needed. */
#include "cli/lab/lab.h"

#include "base/system/cores.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "job/train_run.h"
#include "lab/flops.h"
#include "lab/picture/machine_note.h"
#include "model/model_flops.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_SIZES = 16, MOST_CURVES = 8, USUAL_VOCABULARY = 512 };
#define ALL_SIZES "125M,350M,760M,1.3B,2.7B,6.7B,13B,30B,66B,175B"

typedef struct {
    const char *sizes, *sequences, *measure;
    int64_t sequence, batch, measure_batch, n_steps, n_threads;
    int device;
    bool is_quick;
} FlopsCall;

typedef struct {
    FlopsCall call;
    LabOptions lab;
} FlopsCommand;

static const OptionSpec specs[] = {
    OPTION_STRING("sizes", FlopsCall, sizes, ALL_SIZES, "LIST", "sizes of the ladder of GPT-3 and OPT"),
    OPTION_INT("sequence", FlopsCall, sequence, 2048, 1, 1 << 20, "tokens of a sequence, of the first table"),
    OPTION_STRING("sequences", FlopsCall, sequences, "512,1024,2048,4096,8192,16384,32768", "LIST",
                  "and those of the second"),
    OPTION_INT("batch", FlopsCall, batch, 1, 1, 1 << 20, "sequences of a step that is counted"),
    OPTION_STRING(
        "measure", FlopsCall, measure, "mini", "PRESET",
        "model (of pgpt train's --model) whose steps are also timed here, part by part; none: nothing is"),
    OPTION_INT("measure-batch", FlopsCall, measure_batch, 4, 1, 1 << 20, "sequences of a step that is timed"),
    OPTION_INT("steps", FlopsCall, n_steps, 4, 1, 100000, "steps that are timed, behind one that is not"),
    OPTION_CHOICE("device", FlopsCall, device, DEVICE_AUTO, device_names,
                  "where to time; auto: on a GPU if there is one"),
    OPTION_THREADS(FlopsCall, n_threads),
    OPTION_BOOL("quick", FlopsCall, is_quick, false,
                "four sizes, three lengths, and two steps of nano: a few seconds"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", FlopsCommand, call, specs),
    OPTION_GROUP("Output", FlopsCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "the whole ladder",
    "pgpt lab flops",
    "long sequences, and the time of GPT-2's smallest",
    "pgpt lab flops --sizes 1.3B,13B --sequences 2048,16384,131072 --measure gpt2 --measure-batch 1",
    NULL,
};

const OptionCommand lab_flops_command = {
    .name = "lab flops",
    .summary = "where a model's FLOPs go, by size and sequence, beside the formula of papers",
    .description =
        "Counts the arithmetic of a training step over the program that would run, for the sizes of GPT-3 and OPT: attention's projections, "
        "its scores, MLP, logits and the rest. Beside stands the formula with which papers publish TFLOP/s, 72 (with recomputation 96) "
        "x B s l h^2 (1 + s/6h + V/12lh, with recomputation V/16lh), which counts all s^2 scores where a causal model needs half. A small model is "
        "also run here, and its time divided likewise.",
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

typedef struct {
    FlopsCall call; /* with what --quick changes */
    const FlopsCommand *values;
    LabOutput output;
    int sizes[MOST_SIZES], n_sizes;
    LabList sequences;
    FlopsCount plain[MOST_SIZES], recomputed[MOST_SIZES]; /* at --sequence */
    double standard[MOST_SIZES], standard_again[MOST_SIZES];
    double scores[MOST_SIZES][LAB_LIST_MAX], ratio[MOST_SIZES][LAB_LIST_MAX]; /* share; count by formula */
    ModelConfig measured_model;
    FlopsCount measured;
    bool is_measured;
    char device[200];
} Study;

/* ---- What is asked for */

static Status read_sizes(Study *study, Error *error) {
    const char *next = study->call.sizes;
    for (;; next++) {
        size_t n = strcspn(next, ",");
        int index = flops_ladder_find(next, n);
        if (index < 0)
            return error_user(error, "--sizes '%s': '%s' is no size of the ladder; choose among " ALL_SIZES,
                              plain_value(study->call.sizes).text, plain_value_of(next, n).text);
        for (int i = 0; i < study->n_sizes; i++)
            if (study->sizes[i] == index)
                return error_user(error, "--sizes '%s' has %s twice; leave one out",
                                  plain_value(study->call.sizes).text, flops_ladder_name(index));
        study->sizes[study->n_sizes++] = index;
        next += n;
        if (!*next) return STATUS_OK;
    }
}

static Status read_measured(Study *study, Error *error) {
    TrainCommand train;
    Options options;
    if (strcmp(study->call.measure, "none") == 0) return STATUS_OK;
    TRY(options_init(&options, &train_command, &train, error));
    if (config_apply_preset(&options, study->call.measure, error) != STATUS_OK) {
        *error = (Error){0};
        error_user(
            error,
            "--measure '%s' is no preset; choose nano, mini, gpt2 or another of pgpt train's --model, or none",
            plain_value(study->call.measure).text);
    }
    ModelConfig *model = &study->measured_model;
    *model = train.model;
    if (!model->vocabulary) model->vocabulary = USUAL_VOCABULARY;
    if (error->status == STATUS_OK) config_complete(model, model->vocabulary, error);
    options_free(&options); /* and with them the words that the configuration came from */
    model->preset = study->call.measure;
    model->attention = model->attention_pattern = NULL;
    study->is_measured = error->status == STATUS_OK;
    return error->status;
}

static Status read_call(Study *study, const Options *options, Error *error) {
    FlopsCall *call = &study->call;
    if (call->is_quick) {
        if (options_source(options, "sizes") == OPTION_FROM_DEFAULT) call->sizes = "125M,1.3B,13B,175B";
        if (options_source(options, "sequences") == OPTION_FROM_DEFAULT) call->sequences = "2048,8192,32768";
        if (options_source(options, "measure") == OPTION_FROM_DEFAULT) call->measure = "nano";
        if (options_source(options, "steps") == OPTION_FROM_DEFAULT) call->n_steps = 2;
    }
    TRY(read_sizes(study, error));
    TRY(lab_read_list("--sequences", call->sequences, 1, 1 << 20, false, &study->sequences, error));
    return read_measured(study, error);
}

/* ---- Counting */

static Status count_size(Study *study, int i, Error *error) {
    int64_t B = study->call.batch, T = study->call.sequence;
    ModelConfig config;
    TRY(flops_ladder_config(study->sizes[i], T, &config, error));
    TRY(flops_count(&config, B, T, 0, &study->plain[i], error));
    TRY(flops_count(&config, B, T, 1, &study->recomputed[i], error));
    study->standard[i] = model_flops_standard(&config, B, T, 0.0);
    study->standard_again[i] = model_flops_standard(&config, B, T, 1.0);
    for (int k = 0; k < study->sequences.n; k++) {
        FlopsCount count;
        int64_t length = study->sequences.values[k];
        TRY(flops_ladder_config(study->sizes[i], length, &config, error));
        TRY(flops_count(&config, B, length, 0, &count, error));
        study->scores[i][k] = count.flops[FLOPS_SCORES] / count.total;
        study->ratio[i][k] = count.total / model_flops_standard(&config, B, length, 0.0);
    }
    return STATUS_OK;
}

static Status measure(Study *study, Error *error) {
    DeviceOptions options = {.kind = study->call.device, .n_threads = (int)study->call.n_threads};
    Backend backend;
    TRY(device_backend_open(&backend, &options, error));
    device_describe(&backend, study->device, sizeof study->device);
    backend.close(backend.context);
    log_note(&study->output.log, "timing %s of %s", format_things(study->call.n_steps, "step").text,
             study->measured_model.preset);
    return flops_measure(&study->measured_model, &options, study->call.measure_batch,
                         study->measured_model.context, study->call.n_steps, &study->measured, error);
}

/* ---- The tables */

static void print_sizes(const Study *study) {
    printf("A training step of %" PRId64 " x %" PRId64
           " tokens: FLOPs a token, and per cent of them by part\n\n",
           study->call.batch, study->call.sequence);
    printf("%5s %7s | %9s |", "model", "weights", "counted");
    for (int part = 0; part < N_FLOPS_PARTS; part++) printf(" %11s", flops_part_names[part]);
    printf(" | %9s %7s | %12s %9s %7s\n", "formula", "counted", "recomputing:", "formula", "counted");
    double n_tokens = (double)study->call.batch * (double)study->call.sequence;
    for (int i = 0; i < study->n_sizes; i++) {
        const FlopsCount *count = &study->plain[i], *again = &study->recomputed[i];
        printf("%5s %7s | %9s |", flops_ladder_name(study->sizes[i]),
               format_count((double)count->n_parameters).text, format_count(count->total / n_tokens).text);
        for (int part = 0; part < N_FLOPS_PARTS; part++)
            printf(" %9.2f %%", 100 * count->flops[part] / count->total);
        printf(" | %9s %6.1f%% |", format_count(study->standard[i] / n_tokens).text,
               100 * count->total / study->standard[i]);
        printf(" %12s %9s %6.1f%%\n", format_count(again->total / n_tokens).text,
               format_count(study->standard_again[i] / n_tokens).text,
               100 * again->total / study->standard_again[i]);
    }
}

static void print_sequences(const Study *study) {
    printf(
        "\nScores, per cent of all FLOPs (and all that is counted, per cent of the formula), by tokens of a sequence\n\n%5s",
        "model");
    for (int k = 0; k < study->sequences.n; k++) printf(" %15" PRId64, study->sequences.values[k]);
    printf("\n");
    for (int i = 0; i < study->n_sizes; i++) {
        printf("%5s", flops_ladder_name(study->sizes[i]));
        for (int k = 0; k < study->sequences.n; k++)
            printf("  %5.1f %% (%3.0f %%)", 100 * study->scores[i][k], 100 * study->ratio[i][k]);
        printf("\n");
    }
}

static void print_measured(const Study *study) {
    const FlopsCount *measured = &study->measured;
    double n_tokens = (double)study->call.measure_batch * (double)study->measured_model.context;
    double standard = model_flops_standard(&study->measured_model, study->call.measure_batch,
                                           study->measured_model.context, 0.0);
    printf("\nTimed here: %s (%s weights), steps of %.0f tokens, %.1f ms each on %s\n\n",
           study->measured_model.preset, format_count((double)measured->n_parameters).text, n_tokens,
           1e3 * measured->step_s, plain(study->device).text);
    printf("%-12s %10s %10s %10s %14s\n", "", "FLOPs", "time", "ms", "FLOP/s");
    for (int part = 0; part < N_FLOPS_PARTS; part++)
        printf("%-12s %8.2f %% %8.2f %% %10.2f %14s\n", flops_part_names[part],
               100 * measured->flops[part] / measured->total,
               100 * measured->seconds[part] / measured->total_s, 1e3 * measured->seconds[part],
               format_rate(measured->flops[part] / measured->seconds[part], "FLOP/s").text);
    printf("%-12s %8.2f %% %8.2f %% %10.2f %14s\n", "all", 100.0, 100.0, 1e3 * measured->total_s,
           format_rate(measured->total / measured->total_s, "FLOP/s").text);
    printf("a step: %s counted, %s by the formula; %s and %s\n", format_rate(measured->total, "FLOP").text,
           format_rate(standard, "FLOP").text, format_rate(measured->total / measured->step_s, "FLOP/s").text,
           format_rate(standard / measured->step_s, "FLOP/s").text);
}

static void print_notes(void) {
    printf(
        "\ncounted: over the program that would run; scores are those of earlier tokens only (causal), half of the formula's.\n"
        "formula: 72 B s l h^2 (1 + s/6h + V/12lh); where every block is recomputed, 96 B s l h^2 (1 + s/6h + V/16lh).\n"
        "recomputing: pgpt repeats of a block what its backward reads, which the MLP's second GEMM is not.\n"
        "rest: embedding, norms, residuals, update; the formula leaves it out, with biases, softmax and GELU.\n");
}

/* ---- Pictures */

static Status draw_sizes(const Study *study, Error *error) {
    const char *names[MOST_SIZES];
    double x[MOST_SIZES], y[N_FLOPS_PARTS][MOST_SIZES], whole[MOST_SIZES];
    PlotSeries series[N_FLOPS_PARTS];
    char title[160];
    Arena arena = {0};
    for (int part = 0; part < N_FLOPS_PARTS; part++) {
        for (int i = 0; i < study->n_sizes; i++) {
            names[i] = flops_ladder_name(study->sizes[i]);
            x[i] = i;
            whole[i] = 100;
            y[part][i] = 100 * study->plain[i].flops[part] / study->plain[i].total;
        }
        series[part] = (PlotSeries){flops_part_names[part], PLOT_BARS, x, y[part], study->n_sizes};
    }
    snprintf(title, sizeof title, "Where the FLOPs of a training step go: sequences of %" PRId64 " tokens",
             study->call.sequence);
    Plot plot = {.title = title,
                 .x_label = "weights",
                 .y_label = "per cent of all FLOPs",
                 .series = series,
                 .n_series = N_FLOPS_PARTS,
                 .x_names = names,
                 .is_stacked = true,
                 .whole = whole,
                 .note = machine_note(&arena, "counted, not run: 1 rank", 1, study->output.note)};
    lab_draw(&study->output, &plot, "flops", error);
    arena_free(&arena);
    return error->status;
}

static Status draw_sequences(const Study *study, Error *error) {
    double x[LAB_LIST_MAX], y[MOST_SIZES][LAB_LIST_MAX];
    PlotSeries series[MOST_SIZES];
    Arena arena = {0};
    int n = 0;
    for (int k = 0; k < study->sequences.n; k++) x[k] = (double)study->sequences.values[k];
    for (int i = 0; i < study->n_sizes; i++) {
        bool is_between = study->n_sizes > MOST_CURVES && i % 2 && i + 1 < study->n_sizes;
        if (is_between) continue; /* there are not so many colours */
        for (int k = 0; k < study->sequences.n; k++) y[n][k] = 100 * study->scores[i][k];
        series[n] = (PlotSeries){flops_ladder_name(study->sizes[i]), PLOT_LINES, x, y[n], study->sequences.n};
        n++;
    }
    Plot plot = {.title = "Attention's scores among all FLOPs of a training step",
                 .x_label = "tokens of a sequence, logarithmic",
                 .y_label = "per cent of all FLOPs",
                 .x_log = true,
                 .series = series,
                 .n_series = n,
                 .note = machine_note(&arena, "counted, not run: 1 rank", 1, study->output.note)};
    lab_draw(&study->output, &plot, "flops-sequence", error);
    arena_free(&arena);
    return error->status;
}

static Status draw_measured(const Study *study, Error *error) {
    const FlopsCount *measured = &study->measured;
    static const char *const names[] = {"FLOPs", "time"};
    static const double x[] = {0, 1}, whole[] = {100, 100};
    double y[N_FLOPS_PARTS][2];
    PlotSeries series[N_FLOPS_PARTS];
    char title[200], who[120];
    Arena arena = {0};
    for (int part = 0; part < N_FLOPS_PARTS; part++) {
        y[part][0] = 100 * measured->flops[part] / measured->total;
        y[part][1] = 100 * measured->seconds[part] / measured->total_s;
        series[part] = (PlotSeries){flops_part_names[part], PLOT_BARS, x, y[part], 2};
    }
    snprintf(title, sizeof title,
             "%s, %" PRId64 " x %" PRId64 " tokens a step: FLOPs, and the time they take",
             study->measured_model.preset, study->call.measure_batch, study->measured_model.context);
    snprintf(who, sizeof who, "1 rank on %.100s", study->device);
    Plot plot = {.title = title,
                 .x_label = "",
                 .y_label = "per cent",
                 .series = series,
                 .n_series = N_FLOPS_PARTS,
                 .x_names = names,
                 .is_stacked = true,
                 .whole = whole,
                 .note = machine_note(&arena, who, (int)study->call.n_threads, study->output.note)};
    lab_draw(&study->output, &plot, "flops-time", error);
    arena_free(&arena);
    return error->status;
}

/* ---- JSON */

static json_t *parts_json(const double *values) {
    json_t *object = json_object();
    for (int part = 0; part < N_FLOPS_PARTS; part++)
        json_object_set_new(object, flops_part_names[part], json_make_number(values[part]));
    return object;
}

static json_t *size_json(const Study *study, int i) {
    json_t *object = json_object(), *lengths = json_array();
    json_object_set_new(object, "name", json_string(flops_ladder_name(study->sizes[i])));
    json_object_set_new(object, "parameters", json_integer(study->plain[i].n_parameters));
    json_object_set_new(object, "flops", json_make_number(study->plain[i].total));
    json_object_set_new(object, "parts", parts_json(study->plain[i].flops));
    json_object_set_new(object, "standard_flops", json_make_number(study->standard[i]));
    json_object_set_new(object, "recompute_flops", json_make_number(study->recomputed[i].total));
    json_object_set_new(object, "recompute_again_flops", json_make_number(study->recomputed[i].again));
    json_object_set_new(object, "recompute_standard_flops", json_make_number(study->standard_again[i]));
    for (int k = 0; k < study->sequences.n; k++) {
        json_t *length = json_object();
        json_object_set_new(length, "sequence", json_integer(study->sequences.values[k]));
        json_object_set_new(length, "scores_share", json_make_number(study->scores[i][k]));
        json_object_set_new(length, "by_standard", json_make_number(study->ratio[i][k]));
        json_array_append_new(lengths, length);
    }
    json_object_set_new(object, "sequences", lengths);
    return object;
}

static json_t *measured_json(const Study *study) {
    const FlopsCount *measured = &study->measured;
    json_t *object = json_object();
    json_object_set_new(object, "model", json_make_text(study->measured_model.preset));
    json_object_set_new(object, "device", json_make_text(study->device));
    json_object_set_new(object, "batch", json_integer(study->call.measure_batch));
    json_object_set_new(object, "sequence", json_integer(study->measured_model.context));
    json_object_set_new(object, "flops", json_make_number(measured->total));
    json_object_set_new(object, "parts", parts_json(measured->flops));
    json_object_set_new(object, "seconds", parts_json(measured->seconds));
    json_object_set_new(object, "instructions_s", json_make_number(measured->total_s));
    json_object_set_new(object, "step_s", json_make_number(measured->step_s));
    return object;
}

static Status print_json(const Study *study, Error *error) {
    json_t *object = json_object(), *sizes = json_array();
    for (int i = 0; i < study->n_sizes; i++) json_array_append_new(sizes, size_json(study, i));
    json_object_set_new(object, "command", json_string("lab flops"));
    json_object_set_new(object, "batch", json_integer(study->call.batch));
    json_object_set_new(object, "sequence", json_integer(study->call.sequence));
    json_object_set_new(object, "sizes", sizes);
    json_object_set_new(object, "measured", study->is_measured ? measured_json(study) : json_null());
    json_object_set_new(object, "out", json_make_text(study->output.folder));
    return lab_print_json(object, error);
}

/* ---- All of it */

static Status run_study(Study *study, const Options *options, Error *error) {
    TRY(read_call(study, options, error));
    for (int i = 0; i < study->n_sizes; i++) {
        log_note(&study->output.log, "counting %s", flops_ladder_name(study->sizes[i]));
        TRY(count_size(study, i, error));
    }
    if (study->is_measured) TRY(measure(study, error));
    print_sizes(study);
    print_sequences(study);
    if (study->is_measured) print_measured(study);
    print_notes();
    fflush(stdout);
    TRY(draw_sizes(study, error));
    TRY(draw_sequences(study, error));
    if (study->is_measured) TRY(draw_measured(study, error));
    return study->values->lab.json ? print_json(study, error) : STATUS_OK;
}

Status lab_flops(Launch *launch, int n_words, char *const *words, Error *error) {
    FlopsCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options_alone(launch, &options, &lab_flops_command,
                               "counts in one process; run it without mpirun", &values, n_words, words,
                               &goes_on, error));
    if (goes_on) {
        Study study = {.values = &values,
                       .call = values.call,
                       .output = lab_output(launch, &options, &values.lab, n_words, words)};
        if (lab_check_folder(launch, &study.output, error) == STATUS_OK) run_study(&study, &options, error);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
