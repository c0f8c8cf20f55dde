/* What `pgpt lab experts` says: the table, what one sees in it, the pictures and the JSON. */
#include "cli/lab/lab_experts.h"

#include "base/text/format.h"
#include "base/text/plain.h"
#include "lab/picture/machine_note.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- The table */

/* Over the last quarter of the evaluations: one alone is a single batch's. */
static double late_load(const ExpertRun *run) {
    double sum = 0.0;
    int64_t first = run->n_times - (run->n_times + 3) / 4;
    for (int64_t i = first; i < run->n_times; i++) sum += expert_run_busiest(run, i);
    return run->n_times ? sum / (double)(run->n_times - first) : NAN;
}

static void print_row(const ExpertsStudy *study, int i) {
    const ExpertRun *run = &study->run[i];
    int64_t last = run->n_times - 1;
    printf("%-14s %11s %7.0f %9s %10.4f %+9.4f %8.1f s", run->name, format_count(run->n_parameters).text,
           run->curve.x[CURVE_X_STEP][run->curve.n - 1], format_count(expert_run_flops(run)).text,
           expert_run_loss(run), expert_run_loss(run) - expert_run_loss(&study->run[0]),
           expert_run_seconds(run));
    if (run->n_times)
        printf(" %7.2f %6.0f%% %7.1f%% %8.2f", late_load(run), 100.0 * expert_run_empty(run, last),
               100.0 * run->dropped, run->entropy);
    printf("\n");
}

static void print_table(const ExpertsStudy *study) {
    printf("%" PRId64 " experts in the place of an MLP of %" PRId64 " channels (%s); all runs have the same "
           "FLOPs\n\n",
           study->call->n_experts, study->n_hidden, plain(study->preset).text);
    printf("%-14s %11s %7s %9s %10s %9s %10s %7s %7s %8s %8s\n", "", "parameters", "steps", "FLOPs",
           "val loss", "to first", "time", "load", "empty", "dropped", "entropy");
    for (int i = 0; i < study->n_ways; i++) print_row(study, i);
    printf("\nload: the busiest expert of any block, in units of its share, late in the run; empty: experts "
           "without a token in the last step\n");
}

/* ---- What one sees */

static int best_of(const ExpertsStudy *study) {
    int best = 0;
    for (int i = 1; i < study->n_ways; i++)
        if (expert_run_loss(&study->run[i]) < expert_run_loss(&study->run[best])) best = i;
    return best;
}

static void say_losses(const ExpertsStudy *study) {
    const ExpertRun *first = &study->run[0], *best = &study->run[best_of(study)];
    double target = expert_run_loss(first);
    const char *flops = format_count(expert_run_flops(first)).text;
    if (best == first) {
        printf("At %s FLOPs none has learned more than %s (%.4f): give more --steps, or another --lr behind "
               "'--'.\n",
               flops, first->name, target);
        return;
    }
    printf("At %s FLOPs %s has learned most: %.4f, which is %.4f below %s.\n", flops, best->name,
           expert_run_loss(best), target - expert_run_loss(best), first->name);
    printf("In time: %s came to its %.4f in %.1f s, %s to the same in %.1f s of its %.1f s.\n", first->name,
           target, expert_run_seconds(first), best->name, expert_run_seconds_to(best, target),
           expert_run_seconds(best));
}

/* A loss that is not that of a model that writes. */
static void say_peeking(const ExpertsStudy *study) {
    for (int i = 0; i < study->n_ways; i++)
        if (strcmp(study->run[i].name, "expert-choice") == 0)
            printf(
                "The loss of expert-choice is not one of writing: experts choose from later tokens too.\n");
}

static void say_loads(const ExpertsStudy *study) {
    int even = -1, uneven = -1;
    for (int i = 0; i < study->n_ways; i++) {
        if (!study->run[i].n_times) continue;
        double load = late_load(&study->run[i]);
        if (even < 0 || load < late_load(&study->run[even])) even = i;
        if (uneven < 0 || load > late_load(&study->run[uneven])) uneven = i;
    }
    if (even < 0 || even == uneven) return;
    printf("Load: the busiest expert has %.2f times its share with %s, and %.2f times with %s.\n",
           late_load(&study->run[even]), study->run[even].name, late_load(&study->run[uneven]),
           study->run[uneven].name);
}

void experts_print(const ExpertsStudy *study) {
    print_table(study);
    printf("\n");
    if (study->n_ways > 1) say_losses(study);
    say_peeking(study);
    say_loads(study);
}

/* ---- Pictures */

/* A unit in which so many FLOPs are a number that can be read. */
static double unit_of(double flops, const char **name) {
    static const struct {
        double size;
        const char *name;
    } units[] = {{1e18, "EFLOP"}, {1e15, "PFLOP"}, {1e12, "TFLOP"}, {1e9, "GFLOP"}};
    int i = 0;
    while (i < 3 && flops < units[i].size) i++;
    *name = units[i].name;
    return units[i].size;
}

/* The points of a curve that were measured. */
static PlotSeries curve_of(const ExpertRun *run, CurveX kind, double factor, Arena *arena) {
    double *x = ARENA_ARRAY(arena, double, run->curve.n), *y = ARENA_ARRAY(arena, double, run->curve.n);
    int n = 0;
    for (int64_t i = 0; i < run->curve.n; i++) {
        if (isnan(run->curve.y[CURVE_VALIDATION][i])) continue;
        x[n] = run->curve.x[kind][i] * factor;
        y[n++] = run->curve.y[CURVE_VALIDATION][i];
    }
    return (PlotSeries){run->name, PLOT_LINES, x, y, n};
}

static Status draw_losses(const ExpertsStudy *study, const char *note, Arena *arena, Error *error) {
    PlotSeries by_flops[EXPERTS_MOST_WAYS], by_time[EXPERTS_MOST_WAYS];
    char title[160];
    const char *unit;
    double size = unit_of(expert_run_flops(&study->run[0]), &unit);
    for (int i = 0; i < study->n_ways; i++) {
        by_flops[i] = curve_of(&study->run[i], CURVE_X_STEP, study->run[i].flops_per_step / size, arena);
        by_time[i] = curve_of(&study->run[i], CURVE_X_TIME, 1.0, arena);
    }
    snprintf(title, sizeof title, "%" PRId64 " experts against an MLP of %" PRId64 " channels",
             study->call->n_experts, study->n_hidden);
    Plot plot = {.title = title,
                 .x_label = unit,
                 .y_label = "validation loss",
                 .y_log = true, /* what differs at the end is small beside the way there */
                 .series = by_flops,
                 .n_series = study->n_ways,
                 .note = note};
    TRY(lab_draw(&study->output, &plot, "experts-loss", error));
    plot.x_label = "time of the steps (s)";
    plot.series = by_time;
    return lab_draw(&study->output, &plot, "experts-time", error);
}

Status experts_draw(const ExpertsStudy *study, Error *error) {
    Arena arena = {0};
    const char *machine = study->run[0].curve.machine;
    const char *note = machine_sentence(&arena, study->output.note, machine ? machine : "");
    if (draw_losses(study, note, &arena, error) == STATUS_OK)
        expert_loads_draw(study->run, study->n_ways, note, study->output.caption, study->output.folder,
                          "experts-load", error);
    if (error->status == STATUS_OK)
        log_note(&study->output.log, "drawn: %s/experts-load.svg", study->output.folder);
    arena_free(&arena);
    return error->status;
}

/* ---- JSON */

static json_t *curve_json(const ExpertRun *run) {
    json_t *points = json_array();
    for (int64_t i = 0; i < run->curve.n; i++) {
        if (isnan(run->curve.y[CURVE_VALIDATION][i])) continue;
        json_t *point = json_object();
        json_object_set_new(point, "step", json_make_number(run->curve.x[CURVE_X_STEP][i]));
        json_object_set_new(point, "flops",
                            json_make_number(run->curve.x[CURVE_X_STEP][i] * run->flops_per_step));
        json_object_set_new(point, "seconds", json_make_number(run->curve.x[CURVE_X_TIME][i]));
        json_object_set_new(point, "val_loss", json_make_number(run->curve.y[CURVE_VALIDATION][i]));
        json_array_append_new(points, point);
    }
    return points;
}

/* Time by time, block by block. */
static json_t *loads_json(const ExpertRun *run) {
    json_t *times = json_array();
    for (int64_t t = 0; t < run->n_times; t++) {
        json_t *blocks = json_array();
        for (int64_t block = 0; block < run->n_blocks; block++) {
            json_t *loads = json_array();
            const double *of = run->loads + (t * run->n_blocks + block) * run->n_experts;
            for (int64_t e = 0; e < run->n_experts; e++)
                json_array_append_new(loads, json_make_number(of[e]));
            json_array_append_new(blocks, loads);
        }
        json_array_append_new(times, blocks);
    }
    return times;
}

static json_t *way_json(const ExpertRun *run) {
    json_t *object = json_object();
    json_object_set_new(object, "way", json_string(run->name));
    json_object_set_new(object, "parameters", json_make_number(run->n_parameters));
    json_object_set_new(object, "flops_per_step", json_make_number(run->flops_per_step));
    json_object_set_new(object, "flops", json_make_number(expert_run_flops(run)));
    json_object_set_new(object, "seconds", json_make_number(expert_run_seconds(run)));
    json_object_set_new(object, "val_loss", json_make_number(expert_run_loss(run)));
    json_object_set_new(object, "load", json_make_number(late_load(run)));
    json_object_set_new(object, "dropped", json_make_number(run->dropped));
    json_object_set_new(object, "entropy", json_make_number(run->entropy));
    json_object_set_new(object, "curve", curve_json(run));
    json_object_set_new(object, "expert_loads", loads_json(run));
    return object;
}

Status experts_print_json(const ExpertsStudy *study, Error *error) {
    json_t *object = json_object(), *list = json_array();
    for (int i = 0; i < study->n_ways; i++) json_array_append_new(list, way_json(&study->run[i]));
    json_object_set_new(object, "command", json_string("lab experts"));
    json_object_set_new(object, "model", json_make_text(study->preset));
    json_object_set_new(object, "experts", json_integer(study->call->n_experts));
    json_object_set_new(object, "hidden", json_integer(study->n_hidden));
    json_object_set_new(object, "ways", list);
    json_object_set_new(object, "out", json_make_text(study->output.folder));
    return lab_print_json(object, error);
}
