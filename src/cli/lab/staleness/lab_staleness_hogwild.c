/* The second part of pgpt lab staleness: threads that update shared weights without locks, on a sparse and on
 * a dense problem, beside the same with a lock, with atomic updates, and by one thread.
 *
 * Ways take turns for a few rounds, so that what else the machine does hits all of them, and the fastest
 * round as a whole is shown, with its own loss and its own losses of updates; threads that race do not do the
 * same thing twice. How much the rounds differ in what they lose stands beside it. Hogwild with one thread
 * does what serial does: where their times differ, the machine is to blame, and that is said. */
#include "cli/lab/staleness/lab_staleness.h"

#include "base/system/cores.h"
#include "base/text/format.h"
#include "lab/picture/machine_note.h"
#include "lab/staleness/hogwild.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

const OptionSpec staleness_hogwild_specs[] = {
    OPTION_STRING("threads", HogwildCall, threads, "1,2,4", "LIST", "numbers of threads"),
    OPTION_INT("weights", HogwildCall, n_weights, 32768, 2, 1 << 28, "of the sparse problem"),
    OPTION_INT("features", HogwildCall, n_features, 8, 1, 4096, "that a point of the sparse problem has"),
    OPTION_INT("dense", HogwildCall, n_dense, 32, 1, 4096,
               "weights of the dense problem; a point has all of them"),
    OPTION_INT("points", HogwildCall, n_points, 200000, 100, 1 << 28, "to train on"),
    OPTION_INT("epochs", HogwildCall, n_epochs, 20, 1, 100000, "through these points"),
    OPTION_INT("rounds", HogwildCall, n_rounds, 5, 1, 1000, "of everything, in turns; the fastest is shown"),
    OPTION_FLOAT("lr", HogwildCall, lr, 0.3, 1e-6, 1e3, "learning rate"),
    OPTION_END,
};

enum { SPARSE, DENSE, N_PROBLEMS, MAX_CELLS = 1 + 3 * LAB_LIST_MAX };
static const char *const problem_names[] = {"sparse", "dense"};

typedef struct {
    HogwildWay way;
    int n_threads;
    HogwildResult shown;          /* the fastest round */
    double least_lost, most_lost; /* of the rounds: part of the updates */
} Cell;

typedef struct {
    const StalenessStudy *study;
    LabList threads;
    LogisticPoints points[N_PROBLEMS];
    Cell cells[N_PROBLEMS][MAX_CELLS]; /* serial first, then by threads and way */
    int n_cells;
} Study;

static double part_lost(const HogwildResult *result) {
    return result->n_updates ? (double)result->n_lost / (double)result->n_updates : 0.0;
}

/* ---- Running */

static LogisticSetup setup_of(const HogwildCall *call, int problem) {
    return (LogisticSetup){.n_weights = problem == SPARSE ? call->n_weights : call->n_dense,
                           .n_nonzeros = problem == SPARSE ? call->n_features : call->n_dense,
                           .n_points = call->n_points,
                           .n_held_out = 10000,
                           .seed = 1};
}

static int by_time(const void *a, const void *b) {
    const HogwildResult *x = a, *y = b;
    double seconds = x->seconds[x->n_epochs], other = y->seconds[y->n_epochs];
    return seconds < other ? -1 : seconds > other;
}

/* The results are sorted; the one that is kept is taken out. */
static void choose(Cell *cell, HogwildResult *rounds, int64_t n_rounds) {
    cell->least_lost = 1.0;
    for (int64_t i = 0; i < n_rounds; i++) {
        cell->least_lost = fmin(cell->least_lost, part_lost(&rounds[i]));
        cell->most_lost = fmax(cell->most_lost, part_lost(&rounds[i]));
    }
    qsort(rounds, (size_t)n_rounds, sizeof *rounds, by_time);
    cell->shown = rounds[0];
    rounds[0] = (HogwildResult){0};
}

static Status run_problem(Study *study, int problem, Error *error) {
    const HogwildCall *call = &study->study->values->hogwild;
    LogisticSetup setup = setup_of(call, problem);
    int64_t n_rounds = call->n_rounds;
    TRY(logistic_draw(&setup, &study->points[problem], error));
    HogwildResult *results = calloc((size_t)(study->n_cells * n_rounds), sizeof *results);
    if (!results) return error_failed(error, "no memory for the rounds");
    log_note(&study->study->output->log, "Hogwild, %s problem: %s of %s", problem_names[problem],
             format_things(n_rounds, "round").text, format_things(study->n_cells, "run").text);
    for (int64_t round = 0; round < n_rounds && error->status == STATUS_OK; round++) {
        for (int i = 0; i < study->n_cells && error->status == STATUS_OK; i++) {
            const Cell *cell = &study->cells[problem][i];
            HogwildRun run = {.points = &study->points[problem],
                              .way = cell->way,
                              .n_threads = cell->n_threads,
                              .n_epochs = call->n_epochs,
                              .lr = (float)call->lr};
            hogwild_run(&run, &results[i * n_rounds + round], error);
        }
    }
    for (int i = 0; i < study->n_cells && error->status == STATUS_OK; i++)
        choose(&study->cells[problem][i], results + i * n_rounds, n_rounds);
    for (int64_t i = 0; i < study->n_cells * n_rounds; i++) hogwild_free(&results[i]);
    free(results);
    return error->status;
}

static void plan(Study *study) {
    for (int problem = 0; problem < N_PROBLEMS; problem++) {
        Cell *cells = study->cells[problem];
        study->n_cells = 0;
        cells[study->n_cells++] = (Cell){.way = HOGWILD_SERIAL, .n_threads = 1};
        for (int i = 0; i < study->threads.n; i++)
            for (int way = HOGWILD_LOCKED; way < N_HOGWILD_WAYS; way++)
                cells[study->n_cells++] =
                    (Cell){.way = (HogwildWay)way, .n_threads = (int)study->threads.values[i]};
    }
}

/* ---- What came of it */

static double loss_of(const Cell *cell) {
    return cell->shown.loss[cell->shown.n_epochs];
}

static const char *words_of(const Study *study, int problem) {
    const LogisticSetup *setup = &study->points[problem].setup;
    if (problem == DENSE)
        return arena_printf(study->study->arena, "all %" PRId64 " weights in each point", setup->n_weights);
    return arena_printf(study->study->arena, "%" PRId64 " of %" PRId64 " weights in each point",
                        setup->n_nonzeros, setup->n_weights);
}

static void print_table(const Study *study, int problem) {
    const HogwildCall *call = &study->study->values->hogwild;
    const Cell *serial = &study->cells[problem][0];
    printf("\nHogwild, %s problem: %s; %" PRId64 " points, %s; the true weights have a loss of %.4f\n\n",
           problem_names[problem], words_of(study, problem), call->n_points,
           format_things(call->n_epochs, "epoch").text, study->points[problem].best);
    printf("%-8s %8s %6s %10s %9s %9s %9s %11s %11s %22s\n", "way", "threads", "busy", "Msteps/s", "speed-up",
           "loss", "- serial", "updates", "lost", "in the rounds");
    for (int i = 0; i < study->n_cells; i++) {
        const Cell *cell = &study->cells[problem][i];
        printf("%-8s %8d %6.2f %10.3f %9.2f %9.4f %+9.4f %11" PRIu64 " %11" PRIu64 "  %8.4f to %.4f %%\n",
               hogwild_way_names[cell->way], cell->n_threads, cell->shown.cores_busy,
               cell->shown.steps_per_s * 1e-6, cell->shown.steps_per_s / serial->shown.steps_per_s,
               loss_of(cell), loss_of(cell) - loss_of(serial), cell->shown.n_updates, cell->shown.n_lost,
               100.0 * cell->least_lost, 100.0 * cell->most_lost);
    }
}

static const char *note_of(const Study *study, const char *who, int n_threads, const char *more) {
    Arena *arena = study->study->arena;
    const char *note = study->study->output->note;
    return machine_note(arena, who, n_threads, arena_printf(arena, "%s%s%s", note, *note ? ". " : "", more));
}

/* Loss against time with the most threads. */
static Status draw_loss(const Study *study, int problem, Error *error) {
    Arena *arena = study->study->arena;
    PlotSeries series[N_HOGWILD_WAYS];
    int n_series = 0, last = study->n_cells - (N_HOGWILD_WAYS - 1);
    for (int i = 0; i < study->n_cells; i++) {
        const Cell *cell = &study->cells[problem][i];
        if (i > 0 && i < last) continue;
        series[n_series++] = (PlotSeries){hogwild_way_names[cell->way], PLOT_LINES, cell->shown.seconds,
                                          cell->shown.loss, (int)cell->shown.n_epochs + 1};
    }
    int n_threads = study->cells[problem][last].n_threads;
    Plot plot = {.title = arena_printf(arena, "Hogwild, %s problem: %s, %s", problem_names[problem],
                                       words_of(study, problem), format_things(n_threads, "thread").text),
                 .x_label = "time spent training (s); a mark an epoch",
                 .y_label = "loss of held-out points (nats)",
                 .note =
                     note_of(study, format_things(n_threads, "thread").text, n_threads, "serial: 1 thread"),
                 .series = series,
                 .n_series = n_series};
    return lab_draw(study->study->output, &plot, arena_printf(arena, "hogwild-%s", problem_names[problem]),
                    error);
}

/* A value of a way against the number of threads, for both problems. */
static PlotSeries against_threads(const Study *study, int problem, HogwildWay way, bool is_lost) {
    Arena *arena = study->study->arena;
    double *x = ARENA_ARRAY(arena, double, study->threads.n),
           *y = ARENA_ARRAY(arena, double, study->threads.n);
    int n = 0;
    for (int i = 1; i < study->n_cells; i++) {
        const Cell *cell = &study->cells[problem][i];
        if (cell->way != way) continue;
        x[n] = cell->n_threads;
        y[n++] = is_lost ? 100.0 * part_lost(&cell->shown)
                         : cell->shown.steps_per_s / study->cells[problem][0].shown.steps_per_s;
    }
    const char *name = is_lost
                           ? problem_names[problem]
                           : arena_printf(arena, "%s: %s", problem_names[problem], hogwild_way_names[way]);
    return (PlotSeries){name, PLOT_LINES, x, y, n};
}

static Status draw_threads(const Study *study, Error *error) {
    Arena *arena = study->study->arena;
    PlotSeries speed[N_PROBLEMS * N_HOGWILD_WAYS], lost[N_PROBLEMS];
    int n_speeds = 0, most = 0;
    bool has_lost = true;
    for (int i = 0; i < study->threads.n; i++)
        if (study->threads.values[i] > most) most = (int)study->threads.values[i];
    for (int problem = 0; problem < N_PROBLEMS; problem++) {
        for (int way = HOGWILD_LOCKED; way < N_HOGWILD_WAYS; way++)
            speed[n_speeds++] = against_threads(study, problem, (HogwildWay)way, false);
        lost[problem] = against_threads(study, problem, HOGWILD_FREE, true);
        double sum = 0.0;
        for (int i = 0; i < lost[problem].n; i++) sum += lost[problem].y[i];
        has_lost = has_lost && sum > 0.0;
    }
    const char *who = arena_printf(arena, "threads: %s", study->study->values->hogwild.threads);
    Plot plot = {.title = "Steps a second, compared with one thread without locks",
                 .x_label = "threads",
                 .y_label = "speed-up over serial",
                 .note = note_of(study, who, most, "The fastest round of each"),
                 .series = speed,
                 .n_series = n_speeds};
    TRY(lab_draw(study->study->output, &plot, "hogwild-speed", error));
    plot.title = "Hogwild: updates that are in no weight at the end";
    plot.y_label = "lost updates (%)";
    plot.y_log = has_lost;
    plot.note = note_of(study, who, most, has_lost ? "None (1 thread) is not on a log axis" : "");
    plot.series = lost;
    plot.n_series = N_PROBLEMS;
    return lab_draw(study->study->output, &plot, "hogwild-lost", error);
}

static void add_json(const Study *study) {
    json_t *list = json_array();
    for (int problem = 0; problem < N_PROBLEMS; problem++) {
        for (int i = 0; i < study->n_cells; i++) {
            const Cell *cell = &study->cells[problem][i];
            json_t *entry = json_object();
            json_object_set_new(entry, "problem", json_string(problem_names[problem]));
            json_object_set_new(entry, "way", json_string(hogwild_way_names[cell->way]));
            json_object_set_new(entry, "threads", json_integer(cell->n_threads));
            json_object_set_new(entry, "steps_per_s", json_make_number(cell->shown.steps_per_s));
            json_object_set_new(entry, "cores_busy", json_make_number(cell->shown.cores_busy));
            json_object_set_new(entry, "seconds",
                                json_make_number(cell->shown.seconds[cell->shown.n_epochs]));
            json_object_set_new(entry, "loss", json_make_number(loss_of(cell)));
            json_object_set_new(entry, "best_loss", json_make_number(study->points[problem].best));
            json_object_set_new(entry, "updates", json_integer((json_int_t)cell->shown.n_updates));
            json_object_set_new(entry, "lost_updates", json_integer((json_int_t)cell->shown.n_lost));
            json_object_set_new(entry, "least_lost", json_make_number(cell->least_lost));
            json_object_set_new(entry, "most_lost", json_make_number(cell->most_lost));
            json_array_append_new(list, entry);
        }
    }
    json_object_set_new(study->study->json, "hogwild", list);
}

/* Serial and Hogwild with one thread are the same work twice, and threads with a core each run at once. */
static void warn_if_disturbed(const Study *study) {
    const Log *log = &study->study->output->log;
    for (int problem = 0; problem < N_PROBLEMS; problem++) {
        const Cell *cells = study->cells[problem];
        for (int i = 1; i < study->n_cells; i++) {
            double ratio = cells[i].shown.steps_per_s / cells[0].shown.steps_per_s;
            int n = cells[i].n_threads;
            if (cells[i].way != HOGWILD_FREE || n > cores_usable()) continue;
            if (n == 1 && fabs(ratio - 1.0) > 0.1)
                log_warning(
                    log,
                    "%s problem: serial and hogwild with 1 thread do the same, and one took %.2f times "
                    "as long as the other: the machine has other work, and its times mean little",
                    problem_names[problem], fmax(ratio, 1.0 / ratio));
            if (n > 1 && cells[i].shown.cores_busy < 0.8 * n)
                log_warning(
                    log,
                    "%s problem: of %d threads %.2f ran at once: the machine has other work; with the "
                    "cores to themselves they lose more updates",
                    problem_names[problem], n, cells[i].shown.cores_busy);
        }
    }
}

static Status show(const Study *study, Error *error) {
    for (int problem = 0; problem < N_PROBLEMS; problem++) print_table(study, problem);
    printf(
        "\nA step is one point. busy: threads that ran at once, on average. loss: of held-out points, in nats. updates: writes to a\n"
        "weight; lost: those that are in no weight at the end, counted exactly (a weight counts the updates that it holds). atomic:\n"
        "compare and exchange, tried again until it fits. %s here; more threads than that take turns, and one that has to stop\n"
        "between reading a weight and writing it undoes what the others did to it meanwhile.\n",
        format_things(cores_usable(), "core").text);
    fflush(stdout);
    warn_if_disturbed(study);
    for (int problem = 0; problem < N_PROBLEMS; problem++) TRY(draw_loss(study, problem, error));
    TRY(draw_threads(study, error));
    add_json(study);
    return STATUS_OK;
}

Status staleness_hogwild_check(const StalenessStudy *study, Error *error) {
    const HogwildCall *call = &study->values->hogwild;
    LabList threads;
    TRY(lab_read_list("--threads", call->threads, 1, HOGWILD_MAX_THREADS, false, &threads, error));
    if (call->n_features > call->n_weights)
        return error_user(error,
                          "--features %" PRId64 " of --weights %" PRId64
                          ": a point cannot have more features than there are weights",
                          call->n_features, call->n_weights);
    if (call->n_points > (int64_t)UINT32_MAX / call->n_epochs)
        return error_user(error,
                          "%" PRId64 " epochs of %" PRId64
                          " points are more updates of a weight than can be counted (2^32); take fewer",
                          call->n_epochs, call->n_points);
    return STATUS_OK;
}

Status staleness_hogwild(const StalenessStudy *whole, Error *error) {
    if (!whole->launch->is_root) return STATUS_OK; /* threads of one process */
    Study *study = calloc(1, sizeof *study);
    if (!study) return error_failed(error, "no memory for the study");
    study->study = whole;
    lab_read_list("--threads", whole->values->hogwild.threads, 1, HOGWILD_MAX_THREADS, false, &study->threads,
                  error);
    plan(study);
    for (int problem = 0; problem < N_PROBLEMS && error->status == STATUS_OK; problem++)
        run_problem(study, problem, error);
    if (error->status == STATUS_OK) show(study, error);
    for (int problem = 0; problem < N_PROBLEMS; problem++) {
        logistic_free(&study->points[problem]);
        for (int i = 0; i < study->n_cells; i++) hogwild_free(&study->cells[problem][i].shown);
    }
    free(study);
    return error->status;
}
