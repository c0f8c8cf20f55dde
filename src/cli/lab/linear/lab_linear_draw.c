/* The two pictures of one launch of lab linear: the loss, and where an epoch's time goes. */
#include "cli/lab/linear/lab_linear.h"

#include "base/text/format.h"
#include "lab/picture/machine_note.h"

#include <math.h>
#include <stdio.h>

/* "2 ranks", and what the ranks of this host have to share. */
static const char *place_of(const Linear *study, const LabOutput *output, Arena *arena) {
    const Launch *launch = study->launch;
    const char *ranks = arena_printf(arena, "%s, %s", format_things(launch->world.size, "rank").text,
                                     format_things(study->problem.n_threads, "thread").text);
    return machine_note(arena, ranks, launch->is_shared ? launch->host_size : 0, output->note);
}

static const char *series_name(const Linear *study, int e, Arena *arena) {
    const char *format = study->kind[e] == LINEAR_TENSOR ? "%s engine (f32)" : "%s engine (f64)";
    return arena_printf(arena, format, linear_engine_name(study->kind[e]));
}

static Status draw_losses(const Linear *study, const LabOutput *output, Arena *arena, Error *error) {
    enum { MOST_SHOWN = 2000 };
    int64_t n_epochs = study->problem.n_epochs, stride = (n_epochs + MOST_SHOWN - 1) / MOST_SHOWN;
    int n = (int)((n_epochs + stride - 1) / stride);
    PlotSeries series[N_LINEAR_ENGINES];
    double *epochs = ARENA_ARRAY(arena, double, n);
    bool has_loss = false; /* weights of zero have none, and a logarithmic axis no place for that */
    bool is_attention = study->problem.task == LINEAR_ATTENTION;
    for (int i = 0; i < n; i++) epochs[i] = (double)(i * stride);
    for (int e = 0; e < study->n_engines; e++) {
        double *losses = ARENA_ARRAY(arena, double, n);
        for (int i = 0; i < n; i++) {
            losses[i] = study->result[e].losses[i * stride];
            has_loss |= losses[i] > 0.0;
        }
        series[e] = (PlotSeries){
            .name = series_name(study, e, arena), .style = PLOT_LINES, .x = epochs, .y = losses, .n = n};
    }
    Plot plot = {.title = is_attention ? "One attention block of single numbers, by gradient descent"
                                       : "Least squares by gradient descent",
                 .x_label = "epoch",
                 .y_label = is_attention ? "mean cross-entropy (log axis)" : "mean squared error (log axis)",
                 .y_log = has_loss,
                 .note = place_of(study, output, arena),
                 .series = series,
                 .n_series = study->n_engines};
    return lab_draw(output, &plot, "linear", error);
}

/* "forward: 214 / 16.5 µs", an engine each. */
static const char *phase_name(const Linear *study, int phase, Arena *arena) {
    char *text = arena_printf(arena, "%s:", phase == LINEAR_WAITING ? "waiting" : linear_phase_names[phase]);
    for (int e = 0; e < study->n_engines; e++) {
        double us = study->result[e].phase_ms[phase] * 1e3 / (double)study->problem.n_epochs;
        text = arena_printf(arena, us < 100.0 ? "%s%s %.2g" : "%s%s %.0f", text, e ? " /" : "", us);
    }
    return arena_printf(arena, "%s µs", text);
}

static Status draw_times(const Linear *study, const LabOutput *output, Arena *arena, Error *error) {
    double places[N_LINEAR_PHASES], share[N_LINEAR_ENGINES][N_LINEAR_PHASES];
    const char *names[N_LINEAR_PHASES];
    PlotSeries series[N_LINEAR_ENGINES];
    for (int p = 0; p < N_LINEAR_PHASES; p++) {
        names[p] = phase_name(study, p, arena);
        places[p] = p;
    }
    for (int e = 0; e < study->n_engines; e++) {
        const LinearResult *result = &study->result[e];
        for (int p = 0; p < N_LINEAR_PHASES; p++)
            share[e][p] = 100.0 * result->phase_ms[p] / (result->seconds * 1e3);
        series[e] = (PlotSeries){
            .name = arena_printf(arena, "%s engine: %.3g µs an epoch", linear_engine_name(study->kind[e]),
                                 result->seconds * 1e6 / (double)study->problem.n_epochs),
            .style = PLOT_BARS,
            .x = places,
            .y = share[e],
            .n = N_LINEAR_PHASES,
        };
    }
    Plot plot = {.title = arena_printf(arena, "Where an epoch's time goes: %s %s, %s",
                                       format_things(study->problem.n_points, "point").text,
                                       study->problem.is_divided ? "in all" : "a rank",
                                       format_things(study->launch->world.size, "rank").text),
                 .x_label = "phase: time in an epoch of the median round, an engine each",
                 .y_label = "share of an epoch (%)",
                 .note = place_of(study, output, arena),
                 .series = series,
                 .n_series = study->n_engines,
                 .x_names = names};
    return lab_draw(output, &plot, "linear_time", error);
}

Status lab_linear_draw(const Linear *study, const LabOutput *output, Error *error) {
    Arena arena = {0};
    if (draw_losses(study, output, &arena, error) == STATUS_OK) draw_times(study, output, &arena, error);
    arena_free(&arena);
    return error->status;
}
