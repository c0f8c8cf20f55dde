/* pgpt lab pipeline: what the schedules of a pipeline come to, before anything is trained: each as a timeline
 * and as a line of a table. Nothing is computed but the times of a small model's block, unless they are
 * given; the rest is the simulator (parallel/pipeline/schedule_simulate.h). */
#include "cli/lab/lab_pipeline.h"

#include "base/file/file.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "base/text/terminal.h"
#include "lab/pipeline/pipeline_picture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_STAGES = 64,
    MOST_MICRO_BATCHES = 512,
    MOST_CHUNKS = 16,
    FEWEST_COLUMNS = 60,
    MOST_COLUMNS = 150,
    SLEEP_MS = 20, /* long enough that a busy machine does not matter much */
};

typedef struct {
    PipelineCall call;
    LabOptions lab;
} PipelineCommand;

static const OptionSpec specs[] = {
    OPTION_INT("pp", PipelineCall, n_stages, 4, 1, MOST_STAGES, "stages"),
    OPTION_INT("micro-batches", PipelineCall, n_micro_batches, 16, 1, MOST_MICRO_BATCHES,
               "micro-batches of a step"),
    OPTION_STRING("schedule", PipelineCall, schedules, "all", "LIST",
                  "naive, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, pipedream, pipedream-2bw, or all"),
    OPTION_INT("chunks", PipelineCall, n_chunks, 0, 0, MOST_CHUNKS,
               "parts of the model on a stage, of interleaved; 0: 2"),
    OPTION_FLOAT("forward-ms", PipelineCall, forward_ms, 0.0, 0.0, 1e6,
                 "milliseconds of a stage's forward; without these three they are measured"),
    OPTION_FLOAT("backward-ms", PipelineCall, backward_ms, 0.0, 0.0, 1e6, "of its input gradients"),
    OPTION_FLOAT("weight-ms", PipelineCall, weight_ms, 0.0, 0.0, 1e6, "of its weight gradients"),
    OPTION_FLOAT("update-ms", PipelineCall, update_ms, 0.0, 0.0, 1e6, "of its update"),
    OPTION_FLOAT("message-ms", PipelineCall, message_ms, 0.0, 0.0, 1e6,
                 "from when both sides of a message are ready to its arrival"),
    OPTION_BOOL("quick", PipelineCall, quick, false, "measure nothing: forward and both gradients take 1 ms"),
    OPTION_END,
};

static const OptionSpec measure_specs[] = {
    OPTION_BOOL(
        "measure", PipelineCall, measures, false,
        "run every schedule, a rank a stage, on stages that sleep for --forward-ms and so on (20 ms if not given)"),
    OPTION_BOOL("check", PipelineCall, checks, false,
                "with --measure: fail where a bubble is not within 15 % of its formula"),
    OPTION_INT("steps", PipelineCall, n_steps, 5, 1, PIPELINE_RUN_MOST_STEPS,
               "steps of each that are measured"),
    OPTION_STRING("launcher", PipelineCall, launcher, "", "COMMAND",
                  "what starts ranks, with its options, if not this MPI's mpirun; split at blanks"),
    OPTION_FLOAT("timeout", PipelineCall, timeout, 3600.0, 1.0, 1e7,
                 "seconds after which ranks that were started are ended"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Pipeline", PipelineCommand, call, specs),
    OPTION_GROUP("Measurement", PipelineCommand, call, measure_specs),
    OPTION_GROUP("Output", PipelineCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "every schedule, from times measured here",
    "pgpt lab pipeline --pp 4 --micro-batches 16",
    "two of them, on a model whose weight gradients are cheap",
    "pgpt lab pipeline --schedule 1f1b,zb-h1 --forward-ms 10 --backward-ms 12 --weight-ms 6",
    "what ranks make of them, messages and all",
    "pgpt lab pipeline --pp 4 --micro-batches 16 --measure --check",
    NULL,
};

const OptionCommand lab_pipeline_command = {
    .name = "lab pipeline",
    .summary = "pipeline schedules as timelines: bubble, activations held, versions of the weights",
    .description =
        "Prints every schedule as a timeline and all in a table, and draws pipeline-NAME.svg as 'pgpt lab timeline' draws a traced "
        "run (and a PNG, where gnuplot or rsvg-convert is installed); pipeline-NAME.dat has every action. Predicted by carrying the schedule "
        "out without computing anything: stages that are all alike, messages that wait for both sides. With --measure the schedules are "
        "also run, by the executor and the messages of training, and pipeline-NAME-measured.svg is the trace of that.",
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

/* ---- What is asked for */

static Status find_kind(const char *word, size_t n, ScheduleKind *kind, Error *error) {
    for (int i = 0; i < N_SCHEDULES; i++) {
        *kind = (ScheduleKind)i;
        if (strlen(schedule_names[i]) == n && strncmp(word, schedule_names[i], n) == 0) return STATUS_OK;
    }
    char copy[64];
    snprintf(copy, sizeof copy, "%.*s", (int)(n < 60 ? n : 60), word);
    if (strcmp(copy, "all") == 0)
        return error_user(error,
                          "--schedule all stands by itself; leave the other names out, or leave out all");
    const char *nearest = format_nearest(copy, schedule_names);
    return error_user(error,
                      "--schedule: there is no '%s'; %s%s%sthere are naive, gpipe, 1f1b, interleaved, "
                      "zb-h1, zb-h2, zb-v, pipedream, pipedream-2bw, and all",
                      plain_value(copy).text, nearest ? "did you mean '" : "", nearest ? nearest : "",
                      nearest ? "'? " : "");
}

/* --chunks is of interleaved where all are asked for; what was named has to take it. */
static Status add_row(PipelineStudy *study, ScheduleKind kind, bool is_named, Error *error) {
    const ScheduleInfo *info = schedule_info(kind);
    int n_chunks = (int)study->call->n_chunks;
    bool takes_chunks = is_named || kind == SCHEDULE_INTERLEAVED;
    PipelineRow row = {.kind = kind,
                       .shape = {.n_micro_batches = (int)study->call->n_micro_batches,
                                 .n_stages = (int)study->call->n_stages,
                                 .n_chunks = n_chunks && takes_chunks ? n_chunks : info->default_chunks}};
    Error why = {0};
    if (schedule_check_shape(kind, &row.shape, &why) != STATUS_OK) {
        if (is_named) return error_user(error, "%s", why.text);
        log_note(&study->output->log, "%s is left out: %s", info->name, why.text);
        return STATUS_OK;
    }
    for (int i = 0; i < study->n_rows; i++)
        if (study->row[i].kind == kind)
            return error_user(error, "--schedule '%s' has %s twice; leave one out",
                              plain_value(study->call->schedules).text, info->name);
    study->row[study->n_rows++] = row;
    return STATUS_OK;
}

static Status read_schedules(PipelineStudy *study, Error *error) {
    const char *text = study->call->schedules;
    if (strcmp(text, "all") == 0) {
        for (int kind = 0; kind < N_SCHEDULES; kind++) TRY(add_row(study, (ScheduleKind)kind, false, error));
        return STATUS_OK;
    }
    for (size_t n; *text; text += n + (text[n] == ',')) {
        ScheduleKind kind;
        n = strcspn(text, ",");
        TRY(find_kind(text, n, &kind, error));
        TRY(add_row(study, kind, true, error));
    }
    return STATUS_OK;
}

static Status set_times(PipelineStudy *study, Error *error) {
    const PipelineCall *call = study->call;
    int n_given = (call->forward_ms > 0) + (call->backward_ms > 0) + (call->weight_ms > 0);
    study->update_ms = call->update_ms;
    if (n_given && call->quick)
        return error_user(error, "--quick takes 1 ms for everything; leave it out where times are given");
    double ms = call->measures ? SLEEP_MS : 1.0;
    study->times = n_given ? (StageTimes){call->forward_ms, call->backward_ms, call->weight_ms}
                           : (StageTimes){ms, ms, ms};
    study->source = n_given ? "as given" : call->measures ? "as stages sleep" : "assumed (--quick)";
    if (n_given || call->quick || call->measures) return STATUS_OK;
    TRY(pipeline_measure(&study->block, error));
    study->times = (StageTimes){study->block.forward_ms, study->block.input_gradient_ms,
                                study->block.weight_gradient_ms};
    if (call->update_ms <= 0) study->update_ms = study->block.update_ms;
    study->source = arena_printf(&study->arena, "measured on this machine: a stage is %s", study->block.what);
    return STATUS_OK;
}

/* ---- Prediction */

static const double *fill(Arena *arena, int n, double value) {
    double *values = ARENA_ARRAY(arena, double, n);
    for (int i = 0; i < n; i++) values[i] = value;
    return values;
}

static Status predict(PipelineStudy *study, PipelineRow *row, Error *error) {
    Arena *arena = &study->arena;
    int v = row->shape.n_chunks, n = v * row->shape.n_stages;
    ScheduleTimes times = {.forward = fill(arena, n, study->times.forward / v),
                           .input_gradient = fill(arena, n, study->times.input_gradient / v),
                           .weight_gradient = fill(arena, n, study->times.weight_gradient / v),
                           .update = study->update_ms,
                           .message = study->call->message_ms};
    return schedule_predict(row->kind, &row->shape, &times, arena, &row->prediction, error);
}

/* Messages of all stages in a step: forwards and backwards over every border between two stages. */
static int64_t n_messages(const PipelineRow *row) {
    StagePlacement placement = schedule_info(row->kind)->placement;
    int n_borders = 0;
    for (int k = 0; k + 1 < row->shape.n_stages * row->shape.n_chunks; k++)
        n_borders +=
            placement_stage(placement, &row->shape, k) != placement_stage(placement, &row->shape, k + 1);
    return (int64_t)2 * row->shape.n_micro_batches * n_borders;
}

double pipeline_held(const PipelineRow *row) {
    return (double)row->prediction.in_flight / row->shape.n_chunks;
}

/* ---- Output */

static void print_timelines(const PipelineStudy *study) {
    int n_columns = terminal_columns(stdout);
    if (!terminal_of(stdout).interactive && n_columns < 125) n_columns = 125;
    if (n_columns > MOST_COLUMNS) n_columns = MOST_COLUMNS;
    if (n_columns < FEWEST_COLUMNS) n_columns = FEWEST_COLUMNS;
    for (int i = 0; i < study->n_rows; i++) {
        const PipelineRow *row = &study->row[i];
        printf("%s: %s\n", schedule_names[row->kind], schedule_info(row->kind)->words);
        pipeline_print(&row->prediction, n_columns, stdout);
        printf("\n");
    }
}

static FormatText in_micro_batches(int n) {
    FormatText text;
    snprintf(text.text, sizeof text.text, "%d micro-batch%s", n, n == 1 ? "" : "es");
    return text;
}

static void print_table(const PipelineStudy *study) {
    const PipelineCall *call = study->call;
    printf("%s, %s; F %.3g ms, B %.3g ms, W %.3g ms, update %.3g ms,\n%s\n\n",
           format_things(call->n_stages, "stage").text, in_micro_batches((int)call->n_micro_batches).text,
           study->times.forward, study->times.input_gradient, study->times.weight_gradient, study->update_ms,
           study->source);
    printf("%-14s %6s %10s %10s %7s  %-15s %10s %6s %8s %8s\n", "schedule", "chunks", "step ms", "bubble ms",
           "share", "formula", "by it ms", "held", "versions", "messages");
    for (int i = 0; i < study->n_rows; i++) {
        const PipelineRow *row = &study->row[i];
        double known = schedule_bubble(row->kind, &row->shape, study->times);
        printf("%-14s %6d %10.4g %10.4g %5.1f %%  %-15s ", schedule_names[row->kind], row->shape.n_chunks,
               row->prediction.period, fmax(0.0, row->prediction.bubble) + 0.0,
               100.0 * fmax(0.0, row->prediction.bubble_share), schedule_bubble_formula(row->kind));
        if (isnan(known)) printf("%10s", "-");
        else printf("%10.4g", known);
        printf(" %6.4g %8d %8" PRId64 "\n", pipeline_held(row), row->prediction.n_versions, n_messages(row));
    }
    printf(
        "\nbubble: time in which a stage waits in a step, when steps follow each other and no stage waits for all others between "
        "them;\nheld: micro-batches whose activations the fullest stage keeps; p stages, m micro-batches, v chunks.\n");
}

static Status write_data(const PipelineStudy *study, const PipelineRow *row, const char *path, Error *error) {
    FileWriter writer;
    const ScheduleLists *lists = &row->prediction.lists;
    TRY(file_writer_open(&writer, path, error));
    file_writer_printf(
        &writer, error,
        "# %s: %s\n# made by: %s\n# stage action micro-batch chunk frame version begin_ms end_ms\n",
        schedule_names[row->kind], schedule_info(row->kind)->words, study->output->caption);
    for (int stage = 0; stage < row->shape.n_stages; stage++) {
        for (int i = 0; i < lists->n_actions[stage]; i++) {
            const StepAction *action = &lists->actions[stage][i];
            const SimulatedAction *times = &row->prediction.simulation.stage[stage].action[i];
            file_writer_printf(&writer, error, "%d \"%s\" %d %d %d %d %.6g %.6g\n", stage,
                               action_name(action->kind), action->micro < 0 ? -1 : lists_micro(lists, action),
                               action->chunk, action->frame, action->version, times->begin, times->end);
        }
    }
    if (error->status == STATUS_OK) file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return error->status;
}

/* The same scale for all but naive, whose length is of another kind. */
double pipeline_length_ms(const PipelineStudy *study, const PipelineRow *row) {
    double length = row->prediction.simulation.makespan;
    for (int i = 0; i < study->n_rows && row->kind != SCHEDULE_NAIVE; i++)
        if (study->row[i].kind != SCHEDULE_NAIVE && !schedule_info(study->row[i].kind)->is_asynchronous)
            length = fmax(length, study->row[i].prediction.simulation.makespan);
    return length;
}

static Status draw(PipelineStudy *study, const PipelineRow *row, bool *has_png, Error *error) {
    Timeline timeline;
    Arena *arena = &study->arena;
    const char *folder = study->output->folder;
    const char *name = arena_printf(arena, "pipeline-%s", schedule_names[row->kind]);
    const char *base = arena_printf(arena, "%s/%s", folder, name), *svg = arena_printf(arena, "%s.svg", base);
    const char *title = arena_printf(
        arena, "%s: %s, %s%s; bubble %.1f %%, activations of %.3g held, %s of the weights",
        schedule_names[row->kind], format_things(row->shape.n_stages, "stage").text,
        in_micro_batches(row->shape.n_micro_batches).text, row->prediction.lists.n_steps > 1 ? " a step" : "",
        100.0 * fmax(0.0, row->prediction.bubble_share), pipeline_held(row),
        format_things(row->prediction.n_versions, "version").text);
    const char *caption = *study->output->note
                              ? arena_printf(arena, "%s   %s", study->output->note, study->output->caption)
                              : study->output->caption;
    if (pipeline_timeline(&row->prediction, &timeline, error) == STATUS_OK) {
        timeline.to_us = 1e3 * pipeline_length_ms(study, row);
        timeline_draw(&timeline, title, caption, folder, name, has_png, error);
    }
    timeline_free(&timeline);
    if (error->status == STATUS_OK && !*has_png)
        pipeline_png(svg, arena_printf(arena, "%s.png", base), has_png, error);
    if (error->status == STATUS_OK) write_data(study, row, arena_printf(arena, "%s.dat", base), error);
    return error->status;
}

static Status print_json(const PipelineStudy *study, Error *error) {
    json_t *object = json_object(), *rows = json_array();
    for (int i = 0; i < study->n_rows; i++) {
        const PipelineRow *row = &study->row[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "schedule", json_string(schedule_names[row->kind]));
        json_object_set_new(entry, "chunks", json_integer(row->shape.n_chunks));
        json_object_set_new(entry, "step_ms", json_make_number(row->prediction.period));
        json_object_set_new(entry, "makespan_ms", json_make_number(row->prediction.simulation.makespan));
        json_object_set_new(entry, "bubble_ms", json_make_number(row->prediction.bubble));
        json_object_set_new(entry, "bubble_share", json_make_number(row->prediction.bubble_share));
        json_object_set_new(entry, "formula", json_string(schedule_bubble_formula(row->kind)));
        json_object_set_new(entry, "formula_ms",
                            json_make_number(schedule_bubble(row->kind, &row->shape, study->times)));
        json_object_set_new(entry, "held", json_make_number(pipeline_held(row)));
        json_object_set_new(entry, "versions", json_integer(row->prediction.n_versions));
        json_object_set_new(entry, "messages", json_integer(n_messages(row)));
        if (study->call->measures) {
            json_object_set_new(entry, "measured_step_ms", json_make_number(row->measured.step_ms));
            json_object_set_new(entry, "measured_share", json_make_number(row->measured.bubble_share));
            json_object_set_new(entry, "planned_held", json_make_number(row->measured.held));
            json_object_set_new(entry, "planned_versions", json_integer(row->measured.n_versions));
        }
        json_array_append_new(rows, entry);
    }
    json_object_set_new(object, "command", json_string("lab pipeline"));
    json_object_set_new(object, "pp", json_integer(study->call->n_stages));
    json_object_set_new(object, "micro_batches", json_integer(study->call->n_micro_batches));
    json_object_set_new(object, "forward_ms", json_make_number(study->times.forward));
    json_object_set_new(object, "backward_ms", json_make_number(study->times.input_gradient));
    json_object_set_new(object, "weight_ms", json_make_number(study->times.weight_gradient));
    json_object_set_new(object, "update_ms", json_make_number(study->update_ms));
    json_object_set_new(object, "schedules", rows);
    json_object_set_new(object, "out", json_make_text(study->output->folder));
    return lab_print_json(object, error);
}

/* ---- All of it */

/* Some of the three are given, or one as 0. */
static Status check_times(const PipelineCall *call, const Options *options, Error *error) {
    static const char *const names[] = {"forward-ms", "backward-ms", "weight-ms"};
    const double ms[] = {call->forward_ms, call->backward_ms, call->weight_ms};
    int n_named = 0, n_times = 0;
    for (int i = 0; i < 3; i++) {
        n_named += options_source(options, names[i]) == OPTION_FROM_COMMAND;
        n_times += ms[i] > 0;
    }
    if (!n_named || n_times == 3) return STATUS_OK;
    return error_user(error,
                      "--forward-ms, --backward-ms and --weight-ms go together, each above 0; give all "
                      "three, or none");
}

/* What does not go together. */
static Status check_call(const PipelineCall *call, const Options *options, Error *error) {
    static const char *const of_ranks[] = {"check", "steps", "launcher", "timeout"};
    for (size_t i = 0; i < sizeof of_ranks / sizeof of_ranks[0]; i++)
        if (!call->measures && options_source(options, of_ranks[i]) == OPTION_FROM_COMMAND)
            return error_user(error, "--%s is of --measure; give that too, or leave it out", of_ranks[i]);
    TRY(check_times(call, options, error));
    if (!call->measures) return STATUS_OK;
    if (call->quick)
        return error_user(error, "--quick measures nothing, and --measure does; leave one of them out");
    if (call->update_ms > 0 || call->message_ms > 0)
        return error_user(error, "--%s-ms is predicted with, and --measure takes what there is; leave it out",
                          call->update_ms > 0 ? "update" : "message");
    if (call->n_stages < 2) return error_user(error, "--measure wants a pipeline; give --pp 2 or more");
    return STATUS_OK;
}

/* Under mpirun there are as many stages as ranks. */
static Status set_stages(PipelineCall *call, const Options *options, const Launch *launch, Error *error) {
    int n_ranks = launch->world.size;
    if (!call->measures || n_ranks == 1) return STATUS_OK;
    if (options_source(options, "launcher") == OPTION_FROM_COMMAND)
        return error_user(
            error, "--launcher starts ranks, and there are %d already; leave out one of the two", n_ranks);
    if (options_source(options, "pp") != OPTION_FROM_COMMAND) call->n_stages = n_ranks;
    if (call->n_stages == n_ranks) return STATUS_OK;
    return error_user(error, "--pp %d wants as many ranks, and there are %d; start so many, or give --pp %d",
                      (int)call->n_stages, n_ranks, n_ranks);
}

static Status predict_all(PipelineStudy *study, Error *error) {
    TRY(read_schedules(study, error));
    TRY(set_times(study, error));
    for (int i = 0; i < study->n_rows; i++) TRY(predict(study, &study->row[i], error));
    return STATUS_OK;
}

/* At the root. */
static Status show(PipelineStudy *study, bool is_json, Error *error) {
    bool has_png = false;
    print_timelines(study);
    print_table(study);
    if (study->call->measures) pipeline_print_measured(study);
    fflush(stdout);
    TRY(file_make_folders(study->output->folder, error));
    for (int i = 0; i < study->n_rows; i++) TRY(draw(study, &study->row[i], &has_png, error));
    log_note(&study->output->log, "pictures: %s/pipeline-NAME.svg%s%s; data: %s/pipeline-NAME.dat",
             study->output->folder, study->call->measures ? ", pipeline-NAME-measured.svg" : "",
             has_png ? " and .png" : " (no PNG: neither gnuplot nor rsvg-convert is installed)",
             study->output->folder);
    if (is_json) TRY(print_json(study, error));
    return study->call->checks ? pipeline_check_measured(study, error) : STATUS_OK;
}

/* One process is enough to predict many; all of them measure. */
static Status run(PipelineStudy *study, Launch *launch, bool is_json, Error *error) {
    bool measures = study->call->measures;
    if (launch->is_root) lab_check_folder(launch, study->output, error);
    if (error->status == STATUS_OK && (launch->is_root || measures)) predict_all(study, error);
    TRY(launch_agree(launch, error));
    if (measures) TRY(pipeline_measure_rows(study, launch, error));
    if (launch->is_root) show(study, is_json, error);
    return launch_agree(launch, error);
}

Status lab_pipeline(Launch *launch, int n_words, char *const *words, Error *error) {
    PipelineCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options(launch, &options, &lab_pipeline_command, &values, n_words, words, &goes_on, error));
    if (goes_on && check_call(&values.call, &options, error) == STATUS_OK)
        set_stages(&values.call, &options, launch, error);
    if (launch_agree(launch, error) == STATUS_OK && goes_on) {
        LabOutput output = lab_output(launch, &options, &values.lab, n_words, words);
        PipelineStudy study = {.call = &values.call, .output = &output};
        bool is_alone = launch->world.size == 1;
        if (values.call.measures && is_alone) pipeline_start_ranks(&values.call, n_words, words, error);
        else run(&study, launch, values.lab.json, error);
        arena_free(&study.arena);
    }
    options_free(&options);
    return error->status;
}
