/* pgpt lab scaling --schedules: the same rows under OpenMP's three schedules, with memory that one thread has
 * touched first, or all of them, and with rows of unequal cost. */
#include "cli/lab/lab_scaling.h"

#include "base/system/cores.h"
#include "base/text/format.h"
#include "lab/linear/schedules.h"
#include "lab/picture/machine_note.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The kinds of work, in the order of the table. */
static const struct {
    const char *name;
    TouchKind touch;
    bool is_uneven;
} KINDS[] = {
    {"even rows, touched by one", SCHEDULES_BY_ONE, false},
    {"even rows, touched by all", SCHEDULES_BY_ALL, false},
    {"uneven rows, touched by all", SCHEDULES_BY_ALL, true},
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

typedef struct {
    const ScalingCommand *values;
    const LabOutput *output;
    LabList threads;
    SchedulesOptions options;
    SchedulesCell *cells; /* (threads, kind, schedule) */
    int n_cells;
} Study;

static SchedulesCell *cell_of(const Study *study, int thread, int kind, int schedule) {
    return &study->cells[(thread * N_KINDS + kind) * N_LOOP_SCHEDULES + schedule];
}

/* Against the first number of threads under the same conditions. */
static double speed_up(const Study *study, int thread, int kind, int schedule) {
    return cell_of(study, 0, kind, LOOP_STATIC)->seconds / cell_of(study, thread, kind, schedule)->seconds;
}

static Status measure(Study *study, Error *error) {
    for (int t = 0; t < study->threads.n; t++) {
        for (int kind = 0; kind < N_KINDS; kind++) {
            for (int schedule = 0; schedule < N_LOOP_SCHEDULES; schedule++) {
                SchedulesCell *cell = cell_of(study, t, kind, schedule);
                *cell = (SchedulesCell){.n_threads = (int)study->threads.values[t],
                                        .schedule = (LoopScheduleKind)schedule,
                                        .touch = KINDS[kind].touch,
                                        .is_uneven = KINDS[kind].is_uneven};
                TRY(schedules_measure(&study->options, cell, error));
                /* Another order of adding up, another rounding; nothing else may differ. */
                double first = cell_of(study, 0, kind, 0)->checksum;
                if (!(fabs(cell->checksum - first) <= 1e-6 * (1.0 + fabs(first))))
                    return error_failed(error, "the gradient under %s with %d threads is %.9g, not %.9g",
                                        schedules_names[schedule], cell->n_threads, cell->checksum, first);
            }
        }
    }
    return STATUS_OK;
}

static void print_table(const Study *study) {
    int n_nodes = schedules_memory_nodes();
    double n_bytes = (double)study->options.n_rows * (double)(study->options.n_weights + 1) * 8;
    printf("gradient of least squares over %s of %s (%s), %s\n",
           format_things(study->options.n_rows, "row").text,
           format_things(study->options.n_weights, "weight").text, format_bytes((uint64_t)n_bytes).text,
           study->options.chunk ? "dealt in chunks" : "dealt as OpenMP does by itself");
    printf("%7s  %-28s", "threads", "");
    for (int s = 0; s < N_LOOP_SCHEDULES; s++) printf(" %10s ms %8s", schedules_names[s], "speed-up");
    printf("\n");
    for (int t = 0; t < study->threads.n; t++) {
        for (int kind = 0; kind < N_KINDS; kind++) {
            printf("%7d  %-28s", (int)study->threads.values[t], KINDS[kind].name);
            for (int s = 0; s < N_LOOP_SCHEDULES; s++)
                printf(" %13.2f %8.2f", 1e3 * cell_of(study, t, kind, s)->seconds,
                       speed_up(study, t, kind, s));
            printf("\n");
        }
    }
    printf("\nspeed-up: against static on the first line of its kind. ");
    if (n_nodes > 1)
        printf(
            "This machine has %d nodes of memory: rows that one thread has touched first lie in one of them.\n",
            n_nodes);
    else if (n_nodes == 1)
        printf("This machine has one node of memory: who touches it first makes no difference.\n");
    else printf("This machine does not say how many nodes of memory it has.\n");
    if (!schedules_are_there()) printf("This pgpt was built without OpenMP: everything ran in one thread.\n");
}

/* As it would stand in the program; OpenMP's own chunk of dynamic is 1. */
static const char *clause_of(const Study *study, int schedule, Arena *arena) {
    int64_t chunk = study->options.chunk ? study->options.chunk : schedule == LOOP_DYNAMIC;
    if (!chunk) return arena_printf(arena, "schedule(%s)", schedules_names[schedule]);
    return arena_printf(arena, "schedule(%s, %lld)", schedules_names[schedule], (long long)chunk);
}

static Status draw(const Study *study, Error *error) {
    Arena arena = {0};
    int n = study->threads.n * N_KINDS;
    const char **names = ARENA_ARRAY(&arena, const char *, n);
    double *x = ARENA_ARRAY(&arena, double, n);
    PlotSeries series[N_LOOP_SCHEDULES];
    static const char *const short_names[N_KINDS] = {"serial touch", "parallel touch", "uneven rows"};
    int64_t most_threads = 0;
    for (int s = 0; s < N_LOOP_SCHEDULES; s++) {
        double *y = ARENA_ARRAY(&arena, double, n);
        for (int i = 0; i < n; i++) {
            int t = i / N_KINDS, kind = i % N_KINDS;
            y[i] = 1e3 * cell_of(study, t, kind, s)->seconds;
            x[i] = i;
            if (study->threads.values[t] > most_threads) most_threads = study->threads.values[t];
            names[i] = arena_printf(&arena, "%d: %s", (int)study->threads.values[t], short_names[kind]);
        }
        series[s] = (PlotSeries){clause_of(study, s, &arena), PLOT_BARS, x, y, n};
    }
    const char *threads =
        arena_printf(&arena, "1 rank, up to %s", format_things(most_threads, "thread").text);
    Plot plot = {.title = "OpenMP's loop schedules: a gradient of least squares",
                 .x_label =
                     "threads: first touch of the rows' memory, serial or parallel; uneven rows, parallel",
                 .y_label = "time (ms)",
                 .note = machine_note(&arena, threads, (int)most_threads, study->output->note),
                 .series = series,
                 .n_series = N_LOOP_SCHEDULES,
                 .x_names = names};
    lab_draw(study->output, &plot, "schedules", error);
    arena_free(&arena);
    return error->status;
}

static Status print_json(const Study *study, Error *error) {
    json_t *object = json_object(), *cells = json_array();
    for (int i = 0; i < study->n_cells; i++) {
        const SchedulesCell *cell = &study->cells[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "threads", json_integer(cell->n_threads));
        json_object_set_new(entry, "schedule", json_string(schedules_names[cell->schedule]));
        json_object_set_new(entry, "touched_by", json_string(schedules_touch_names[cell->touch]));
        json_object_set_new(entry, "uneven", json_boolean(cell->is_uneven));
        json_object_set_new(entry, "seconds", json_make_number(cell->seconds));
        json_array_append_new(cells, entry);
    }
    json_object_set_new(object, "command", json_string("lab scaling"));
    json_object_set_new(object, "memory_nodes", json_integer(schedules_memory_nodes()));
    json_object_set_new(object, "rows", json_integer(study->options.n_rows));
    json_object_set_new(object, "schedules", cells);
    json_object_set_new(object, "out", json_make_text(study->output->folder));
    return lab_print_json(object, error);
}

Status lab_run_schedules(const ScalingCommand *values, const Options *options, const LabOutput *output,
                         Error *error) {
    const ScalingCall *call = &values->call;
    Study study = {.values = values,
                   .output = output,
                   .options = {.n_rows = call->n_rows,
                               .n_weights = call->n_weights,
                               .chunk = call->chunk,
                               .n_rounds = (int)call->n_rounds}};
    if (options->n_arguments)
        return error_user(error, "--schedules trains nothing: leave out what stands behind '--'");
    TRY(lab_read_list("--threads", call->threads, 1, 4096, false, &study.threads, error));
    study.n_cells = study.threads.n * N_KINDS * N_LOOP_SCHEDULES;
    study.cells = calloc((size_t)study.n_cells, sizeof *study.cells);
    if (!study.cells) return error_failed(error, "no memory for the measurements");
    if (measure(&study, error) == STATUS_OK) {
        print_table(&study);
        fflush(stdout);
        draw(&study, error);
    }
    if (error->status == STATUS_OK && values->lab.json) print_json(&study, error);
    free(study.cells);
    return error->status;
}
