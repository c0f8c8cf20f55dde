/* Threads of the scalar engine: the fixed graph against nodes that are allocated one by one, and the work of
 * each thread under OpenMP's schedules. All of it in this process, one training after another. */
#include "cli/lab/linear/lab_linear.h"

#include "base/text/format.h"
#include "lab/picture/machine_note.h"

#include <math.h>
#include <stdio.h>

static double epoch_us(const Linear *study, const LinearResult *result) {
    return result->seconds * 1e6 / (double)study->problem.n_epochs;
}

static const char *place_of(const Linear *study, const LabOutput *output, Arena *arena) {
    int n_threads = study->problem.n_threads;
    const char *ranks = arena_printf(arena, "1 rank, %s", format_things(n_threads, "thread").text);
    return machine_note(arena, ranks, (int)n_threads, output->note);
}

/* ---- The graph */

enum { FIXED, ALLOCATED, N_GRAPHS };
static const LinearEngineKind graph_kind[N_GRAPHS] = {LINEAR_SCALAR, LINEAR_OBJECTS};
static const char *const graph_name[N_GRAPHS] = {"fixed graph", "allocated node by node"};

typedef struct {
    int n_threads[2], n; /* one, and those that were asked for */
    double us[2][N_GRAPHS], forward_us[2][N_GRAPHS];
    double apart; /* the largest difference between weights that must be the same */
} Graphs;

static Status run_graphs(Linear *study, Graphs *graphs, Error *error) {
    LinearProblem problem = study->problem;
    for (int t = 0; t < graphs->n; t++) {
        problem.n_threads = graphs->n_threads[t];
        for (int g = 0; g < N_GRAPHS; g++) {
            LinearResult *result = &study->result[g];
            linear_result_close(result);
            TRY(linear_run(&problem, graph_kind[g], study->launch, result, error));
            graphs->us[t][g] = epoch_us(study, result);
            graphs->forward_us[t][g] = result->phase_ms[LINEAR_FORWARD] * 1e3 / (double)problem.n_epochs;
        }
        for (int k = 0; k < problem.n_weights; k++)
            graphs->apart = fmax(graphs->apart,
                                 fabs(study->result[FIXED].weights[k] - study->result[ALLOCATED].weights[k]));
    }
    return STATUS_OK;
}

static void print_graphs(const Linear *study, const Graphs *graphs) {
    double nodes = study->result[FIXED].evaluations / (2.0 * (double)study->problem.n_epochs);
    printf("the same computation in two forms: %s nodes an epoch, %s of %s\n\n", format_count(nodes).text,
           format_things(study->problem.n_epochs, "epoch").text,
           format_things(study->problem.n_points, "point").text);
    printf("%-24s %8s %14s %12s %13s %9s\n", "graph", "threads", "us an epoch", "forward us", "by the fixed",
           "speed-up");
    for (int g = 0; g < N_GRAPHS; g++)
        for (int t = 0; t < graphs->n; t++)
            printf("%-24s %8d %14.1f %12.1f %13.2f %9.2f\n", graph_name[g], graphs->n_threads[t],
                   graphs->us[t][g], graphs->forward_us[t][g], graphs->us[t][g] / graphs->us[t][FIXED],
                   graphs->us[0][g] / graphs->us[t][g]);
    int last = graphs->n - 1;
    printf(
        "\nwith %s, nodes that are allocated one by one take %.1f times as long as the fixed graph; weights are %s\n",
        format_things(graphs->n_threads[last], "thread").text,
        graphs->us[last][ALLOCATED] / graphs->us[last][FIXED],
        graphs->apart == 0.0 ? "the same to the last bit" : "not the same");
    printf(
        "the forward of the second allocates, its backward searches for the order, goes over it and frees\n");
}

static Status draw_graphs(const Linear *study, const Graphs *graphs, const LabOutput *output, Error *error) {
    Arena arena = {0};
    double x[2] = {0, 1}, y[N_GRAPHS][2];
    const char *names[2];
    PlotSeries series[N_GRAPHS];
    for (int g = 0; g < N_GRAPHS; g++) {
        for (int t = 0; t < graphs->n; t++) {
            y[g][t] = graphs->us[t][g];
            names[t] = arena_printf(&arena, "%s: %.1f times as long",
                                    format_things(graphs->n_threads[t], "thread").text,
                                    graphs->us[t][ALLOCATED] / graphs->us[t][FIXED]);
        }
        series[g] = (PlotSeries){graph_name[g], PLOT_BARS, x, y[g], graphs->n};
    }
    Plot plot = {.title = "The same scalar graph, fixed and allocated anew in every epoch",
                 .x_label = "threads",
                 .y_label = "time per epoch (µs)",
                 .note = place_of(study, output, &arena),
                 .series = series,
                 .n_series = N_GRAPHS,
                 .x_names = names};
    lab_draw(output, &plot, "linear-graph", error);
    arena_free(&arena);
    return error->status;
}

static Status graphs_json(const Linear *study, const Graphs *graphs, Error *error) {
    json_t *object = json_object(), *list = json_array();
    for (int g = 0; g < N_GRAPHS; g++) {
        for (int t = 0; t < graphs->n; t++) {
            json_t *entry = json_object();
            json_object_set_new(entry, "graph", json_string(g == FIXED ? "fixed" : "allocate"));
            json_object_set_new(entry, "threads", json_integer(graphs->n_threads[t]));
            json_object_set_new(entry, "epoch_ms", json_make_number(graphs->us[t][g] * 1e-3));
            json_object_set_new(entry, "by_the_fixed",
                                json_make_number(graphs->us[t][g] / graphs->us[t][FIXED]));
            json_object_set_new(entry, "speed_up", json_make_number(graphs->us[0][g] / graphs->us[t][g]));
            json_array_append_new(list, entry);
        }
    }
    json_object_set_new(object, "command", json_string("lab linear"));
    json_object_set_new(object, "largest_error", json_make_number(study->result[ALLOCATED].largest_error));
    json_object_set_new(object, "weights_apart", json_make_number(graphs->apart));
    json_object_set_new(object, "graphs", list);
    return lab_print_json(object, error);
}

Status lab_linear_graphs(Linear *study, const LabOutput *output, Error *error) {
    int n_threads = study->problem.n_threads;
    Graphs graphs = {.n_threads = {1, n_threads}, .n = n_threads > 1 ? 2 : 1};
    TRY(run_graphs(study, &graphs, error));
    print_graphs(study, &graphs);
    fflush(stdout);
    if (study->values.linear.draws) TRY(draw_graphs(study, &graphs, output, error));
    return study->values.lab.json ? graphs_json(study, &graphs, error) : STATUS_OK;
}

/* ---- Loop schedules */

static const int chunks[] = {0, 1, 4, 16};
enum { N_CHUNKS = sizeof chunks / sizeof chunks[0], N_SCHEDULES = 3 };

static const char *schedule_name(int schedule, int chunk, Arena *arena) {
    if (!chunk) return arena_printf(arena, "schedule(%s)", lab_linear_schedule_names[schedule]);
    return arena_printf(arena, "schedule(%s, %d)", lab_linear_schedule_names[schedule], chunk);
}

/* How much longer the busiest thread works than the mean of them. */
static double imbalance(const LinearResult *result) {
    double most = 0.0, sum = 0.0;
    for (int i = 0; i < result->n_threads; i++) {
        most = fmax(most, result->work[i].busy_s);
        sum += result->work[i].busy_s;
    }
    return sum > 0.0 ? most * result->n_threads / sum - 1.0 : 0.0;
}

static void print_schedule(const Linear *study, const char *name, const LinearResult *result) {
    enum { SHOWN = 8 };
    printf("%-22s %12.1f %9.1f %% ", name, epoch_us(study, result), 100.0 * imbalance(result));
    for (int i = 0; i < result->n_threads && i < SHOWN; i++)
        printf("  %7.0f %6.0f", result->work[i].n_points, result->work[i].busy_s * 1e6);
    printf("%s\n", result->n_threads > SHOWN ? "  ..." : "");
}

static json_t *schedule_json(const Linear *study, int schedule, int chunk, const LinearResult *result) {
    json_t *entry = json_object(), *points = json_array(), *busy = json_array();
    for (int i = 0; i < result->n_threads; i++) {
        json_array_append_new(points, json_make_number(result->work[i].n_points));
        json_array_append_new(busy, json_make_number(result->work[i].busy_s * 1e3));
    }
    json_object_set_new(entry, "schedule", json_string(lab_linear_schedule_names[schedule]));
    json_object_set_new(entry, "chunk", json_integer(chunk));
    json_object_set_new(entry, "epoch_ms", json_make_number(epoch_us(study, result) * 1e-3));
    json_object_set_new(entry, "imbalance", json_make_number(imbalance(result)));
    json_object_set_new(entry, "points", points);
    json_object_set_new(entry, "busy_ms", busy);
    return entry;
}

static Status draw_schedules(const Linear *study, const double *us, const LabOutput *output, Error *error) {
    Arena arena = {0};
    double x[N_CHUNKS];
    const char *names[N_CHUNKS];
    PlotSeries series[N_SCHEDULES];
    for (int c = 0; c < N_CHUNKS; c++) {
        x[c] = c;
        names[c] = chunks[c] ? arena_printf(&arena, "chunk %d", chunks[c]) : "OpenMP's default";
    }
    for (int s = 0; s < N_SCHEDULES; s++)
        series[s] = (PlotSeries){arena_printf(&arena, "schedule(%s)", lab_linear_schedule_names[s]),
                                 PLOT_BARS, x, us + s * N_CHUNKS, N_CHUNKS};
    Plot plot = {.title = arena_printf(&arena, "OpenMP's schedules on the scalar engine: %s",
                                       format_things(study->problem.n_threads, "thread").text),
                 .x_label = "pieces of points that are dealt at a time",
                 .y_label = "time per epoch (µs)",
                 .note = place_of(study, output, &arena),
                 .series = series,
                 .n_series = N_SCHEDULES,
                 .x_names = names};
    lab_draw(output, &plot, "linear-schedules", error);
    arena_free(&arena);
    return error->status;
}

Status lab_linear_schedules(Linear *study, const LabOutput *output, Error *error) {
    LinearProblem problem = study->problem;
    LinearResult *result = &study->result[0];
    double us[N_SCHEDULES * N_CHUNKS];
    json_t *list = json_array();
    printf("what each of %s does in an epoch of %s\n%-22s %12s %11s ",
           format_things(problem.n_threads, "thread").text, format_things(problem.n_points, "point").text, "",
           "us an epoch", "imbalance");
    for (int i = 0; i < problem.n_threads && i < 8; i++) printf("  points%d busy us", i);
    printf("\n");
    for (int i = 0; i < N_SCHEDULES * N_CHUNKS && error->status == STATUS_OK; i++) {
        problem.schedule = (LinearLoopSchedule)(i / N_CHUNKS);
        problem.chunk = chunks[i % N_CHUNKS];
        linear_result_close(result);
        if (linear_run(&problem, LINEAR_SCALAR, study->launch, result, error) != STATUS_OK) break;
        us[i] = epoch_us(study, result);
        print_schedule(study, schedule_name(i / N_CHUNKS, problem.chunk, &study->options.arena), result);
        json_array_append_new(list, schedule_json(study, i / N_CHUNKS, problem.chunk, result));
    }
    if (error->status == STATUS_OK)
        printf(
            "\na chunk is a number of pieces, of up to 256 points each; imbalance: how much longer the busiest thread "
            "works than the mean; times are those of the median of %s\n",
            format_things(problem.n_rounds, "round").text);
    fflush(stdout);
    if (error->status == STATUS_OK && study->values.linear.draws) draw_schedules(study, us, output, error);
    if (error->status == STATUS_OK && study->values.lab.json) {
        json_t *object = json_object();
        json_object_set_new(object, "command", json_string("lab linear"));
        json_object_set_new(object, "threads", json_integer(problem.n_threads));
        json_object_set_new(object, "points", json_integer(problem.n_points));
        json_object_set_new(object, "schedules", json_incref(list));
        lab_print_json(object, error);
    }
    json_decref(list);
    return error->status;
}
