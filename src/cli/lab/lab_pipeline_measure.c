/* pgpt lab pipeline --measure: every schedule carried out by real ranks on stages that sleep, beside what the
 * simulator and the formulas say of it. */
#include "cli/lab/lab_pipeline.h"

#include "base/file/file.h"
#include "lab/launch/launch_child.h"
#include "lab/launch/launcher.h"
#include "lab/picture/timeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Ranks */

Status pipeline_start_ranks(const PipelineCall *call, int n_words, char *const *words, Error *error) {
    Launcher launcher = {0};
    ChildResult child = {0};
    TRY_GOTO(launcher_open(&launcher, call->launcher, error), done);
    const char **all = ARENA_ARRAY(&launcher.arena, const char *, n_words + 3);
    int n = 0;
    all[n++] = "lab";
    all[n++] = "pipeline";
    for (int i = 0; i < n_words; i++) {
        bool is_ours = strcmp(words[i], "--launcher") == 0; /* there are ranks by then */
        if (is_ours) i++;
        else if (strncmp(words[i], "--launcher=", 11) != 0) all[n++] = words[i];
    }
    const char *const *command = launcher_words(&launcher, (int)call->n_stages, all);
    TRY_GOTO(child_run(&(ChildSetup){.words = command, .timeout_s = call->timeout}, &child, error), done);
    if (child.output) fputs(child.output, stdout);
    if (child.complaint && child.exit_code == 0) fputs(child.complaint, stderr);
    child_check(&child, command, error);
done:
    child_free(&child);
    launcher_close(&launcher);
    return error->status;
}

/* ---- Runs */

static Status draw_trace(const PipelineStudy *study, const PipelineRow *row, const char *trace, Arena *arena,
                         Error *error) {
    Timeline timeline;
    bool has_png;
    const char *name = arena_printf(arena, "pipeline-%s-measured", schedule_names[row->kind]);
    const char *title =
        arena_printf(arena, "%s as it was run: bubble %.1f %%, predicted %.1f %%", schedule_names[row->kind],
                     100.0 * row->measured.bubble_share, 100.0 * fmax(0.0, row->prediction.bubble_share));
    if (timeline_read(&timeline, trace, error) == STATUS_OK) {
        timeline.to_us = fmin(1e3 * pipeline_length_ms(study, row), timeline.length_us);
        if (row->prediction.lists.n_steps == 1)
            timeline.to_us = fmax(1e3 * pipeline_length_ms(study, row), timeline.length_us);
        timeline.axis = "run";
        timeline_draw(&timeline, title, study->output->caption, study->output->folder, name, &has_png, error);
    }
    timeline_free(&timeline);
    return error->status;
}

static Status trace_row(PipelineStudy *study, const PipelineRow *row, PipelineRun *run, Launch *launch,
                        Error *error) {
    RunFolder folder = {0};
    Arena arena = {0};
    const char *path = "";
    if (launch->is_root && run_folder_make(&folder, study->output->folder, error) == STATUS_OK)
        path = arena_printf(&arena, "%s/trace.json", folder.path);
    if (launch_agree(launch, error) == STATUS_OK)
        pipeline_run_trace(run, row->prediction.lists.n_steps, path, error);
    if (launch->is_root && error->status == STATUS_OK) draw_trace(study, row, path, &arena, error);
    run_folder_remove(&folder);
    arena_free(&arena);
    return launch_agree(launch, error);
}

Status pipeline_measure_rows(PipelineStudy *study, Launch *launch, Error *error) {
    for (int i = 0; i < study->n_rows; i++) {
        PipelineRow *row = &study->row[i];
        PipelineRun run = {0};
        PipelineTrial trial = {row->kind, row->shape, study->times, (int)study->call->n_steps};
        pipeline_run_open(&run, &trial, launch, error);
        if (launch_agree(launch, error) == STATUS_OK &&
            pipeline_run_measure(&run, &row->measured, error) == STATUS_OK)
            trace_row(study, row, &run, launch, error);
        pipeline_run_close(&run);
        TRY(error->status);
        log_note(&study->output->log, "%s: %.4g ms a step", schedule_names[row->kind], row->measured.step_ms);
    }
    return STATUS_OK;
}

/* ---- What they say */

static const double tolerance = 0.15;    /* of the formula's share */
static const double next_to_none = 0.03; /* of a step, where it has none */

/* The share that is wanted; NAN: nothing is known of this shape. */
static double wanted_share(const PipelineStudy *study, const PipelineRow *row) {
    double bubble = schedule_bubble(row->kind, &row->shape, study->times);
    double busy = row->shape.n_micro_batches *
                  (study->times.forward + study->times.input_gradient + study->times.weight_gradient);
    return bubble / (bubble + busy);
}

static const char *trouble_with(const PipelineStudy *study, const PipelineRow *row) {
    double wanted = wanted_share(study, row), share = row->measured.bubble_share;
    if (isnan(wanted)) wanted = row->prediction.bubble_share;
    if (!(fabs(share - wanted) <= fmax(tolerance * wanted, wanted < 0.01 ? next_to_none : 0.0)))
        return "another bubble";
    double more = row->measured.held - pipeline_held(row); /* each chunk has frames of its own */
    if (more < 0.0 || more > (row->shape.n_chunks > 1 ? 1.0 : 0.0)) return "other frames";
    if (row->measured.n_versions != row->prediction.n_versions) return "other versions";
    return NULL;
}

void pipeline_print_measured(const PipelineStudy *study) {
    printf("\nmeasured on %d ranks that sleep; %s\n\n", (int)study->call->n_stages,
           study->call->n_steps == 1 ? "one step" : "the median step of several");
    printf("%-14s %6s  %21s %7s  %26s  %11s %11s\n", "", "", "step ms", "", "bubble", "held", "versions");
    printf("%-14s %6s  %10s %10s %7s  %8s %8s %8s  %5s %5s %5s %5s  %s\n", "schedule", "chunks", "predicted",
           "measured", "ratio", "formula", "pred.", "measured", "pred.", "plan", "pred.", "plan", "");
    for (int i = 0; i < study->n_rows; i++) {
        const PipelineRow *row = &study->row[i];
        double wanted = wanted_share(study, row);
        const char *trouble = trouble_with(study, row);
        char formula[16] = "-";
        if (!isnan(wanted)) snprintf(formula, sizeof formula, "%.1f %%", 100.0 * wanted);
        printf("%-14s %6d  %10.1f %10.1f %7.3f  %8s %6.1f %% %6.1f %%  %5.4g %5.4g %5d %5d  %s\n",
               schedule_names[row->kind], row->shape.n_chunks, row->prediction.period, row->measured.step_ms,
               row->measured.step_ms / row->prediction.period, formula,
               100.0 * fmax(0.0, row->prediction.bubble_share), 100.0 * row->measured.bubble_share,
               pipeline_held(row), row->measured.held, row->prediction.n_versions, row->measured.n_versions,
               trouble ? trouble : "ok");
    }
    printf(
        "\nok: the measured share of the bubble is within %.0f %% of the formula's (of the simulator's, where no formula "
        "holds), or\nbelow %.0f %% of a step where it is to have none; frames and versions are those predicted\n(with "
        "several chunks, each has frames of its own: as many as it ever needs).\n",
        100.0 * tolerance, 100.0 * next_to_none);
}

static const PipelineRow *find_row(const PipelineStudy *study, ScheduleKind kind) {
    for (int i = 0; i < study->n_rows; i++)
        if (study->row[i].kind == kind) return &study->row[i];
    return NULL;
}

Status pipeline_check_measured(const PipelineStudy *study, Error *error) {
    const PipelineRow *plain = find_row(study, SCHEDULE_1F1B);
    static const ScheduleKind less[] = {SCHEDULE_ZB_H1, SCHEDULE_ZB_V};
    for (int i = 0; i < study->n_rows; i++) {
        const PipelineRow *row = &study->row[i];
        const char *trouble = trouble_with(study, row);
        if (trouble)
            return error_failed(
                error, "--check: %s has %s than predicted: a share of %.1f %%, %.4g held, %d versions",
                schedule_names[row->kind], trouble, 100.0 * row->measured.bubble_share, row->measured.held,
                row->measured.n_versions);
    }
    for (size_t i = 0; plain && i < sizeof less / sizeof less[0]; i++) {
        const PipelineRow *row = find_row(study, less[i]);
        if (row && row->measured.bubble_share >= plain->measured.bubble_share)
            return error_failed(error,
                                "--check: %s has no smaller bubble than 1f1b: %.1f %%, not below %.1f %%",
                                schedule_names[less[i]], 100.0 * row->measured.bubble_share,
                                100.0 * plain->measured.bubble_share);
    }
    return STATUS_OK;
}
