/* pgpt lab linear --ranks: weak and strong scaling, each number of ranks a launch of its own.
 *
 * Every launch measures its efficiency itself, against its own rank 0 alone, so that both times come from the
 * same minute. What the table and the pictures add is the comparison, and a model of more processes than
 * there are here, whose numbers are all measured here: links by `lab collectives`, the spread of computing by
 * the launches. */
#include "cli/lab/linear/lab_linear_starts.h"

#include "base/text/format.h"
#include "lab/collectives/collectives.h"
#include "lab/linear/linear_model.h"
#include "lab/picture/machine_note.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WEAK, STRONG, N_MODES };
static const char *const mode_names[N_MODES] = {"weak", "strong"};

typedef struct {
    Linear *linear;
    const LabOutput *output;
    LabList ranks, processes;
    Launcher launcher;
    LinearRun *runs; /* (mode, ranks) */
    CollectivesResult links;
    /* The model: times an epoch for every number of ranks, measured or not. */
    double n[2 * LAB_LIST_MAX];
    double *expected_s; /* (mode, engine, n) */
    int n_n;
    Arena arena;
} Study;

static LinearRun *run_of(const Study *study, int mode, int r) {
    return &study->runs[mode * study->ranks.n + r];
}

static double *expected_of(const Study *study, int mode, int e) {
    return study->expected_s + (mode * N_LINEAR_ENGINES + e) * study->n_n;
}

static double epoch_s(const LinearRun *run, int e) {
    return run->engine[e].result.seconds / (double)run->n_epochs;
}

/* One rank has nobody to be compared with. */
static double efficiency(const LinearRun *run, int e) {
    double own = run->engine[e].result.efficiency;
    return isnan(own) && run->n_ranks == 1 ? 1.0 : own;
}

/* ---- Running */

static Status run_launches(Study *study, Error *error) {
    for (int mode = 0; mode < N_MODES; mode++) {
        for (int r = 0; r < study->ranks.n; r++) {
            int n_ranks = (int)study->ranks.values[r];
            const LinearOptions *options = &study->linear->values.linear;
            LinearChildWords child = {.n_points = options->n_points,
                                      .n_epochs = options->n_epochs,
                                      .lr = options->lr,
                                      .weights = options->weights,
                                      .is_strong = mode == STRONG};
            log_note(&study->output->log, "%s scaling: %s", mode_names[mode],
                     format_things(n_ranks, "rank").text);
            TRY(linear_start(&study->launcher, n_ranks,
                             lab_linear_child_words(study->linear, &child, &study->arena), options->timeout,
                             run_of(study, mode, r), error));
        }
    }
    return STATUS_OK;
}

/* ---- The model */

/* Of the measured numbers of ranks, the largest of which each has a core; its spread is what the model goes
 * on with. */
static int best_count(const Study *study) {
    int best = 0;
    for (int r = 0; r < study->ranks.n; r++) {
        const LinearRun *run = run_of(study, WEAK, r), *so_far = run_of(study, WEAK, best);
        bool is_better = so_far->is_shared ? run->n_ranks < so_far->n_ranks : run->n_ranks > so_far->n_ranks;
        if (run->is_shared ? so_far->is_shared && is_better : so_far->is_shared || is_better) best = r;
    }
    return best;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void add_counts(Study *study, const LabList *list) {
    for (int i = 0; i < list->n; i++) {
        double n = (double)list->values[i];
        int known = 0;
        while (known < study->n_n && study->n[known] != n) known++;
        if (known == study->n_n) study->n[study->n_n++] = n;
    }
    qsort(study->n, (size_t)study->n_n, sizeof *study->n, compare);
}

static Status fit_links(Study *study, Error *error) {
    const LinearOptions *options = &study->linear->values.linear;
    CollectivesOptions fit = {.n_rounds = 2, .budget_s = 0};
    int n_ranks = run_of(study, WEAK, best_count(study))->n_ranks;
    log_note(&study->output->log, "fitting the links between %d ranks", n_ranks > 1 ? n_ranks : 2);
    return collectives_start(&study->launcher, n_ranks > 1 ? n_ranks : 2, "4K", &fit, options->timeout,
                             &study->links, error);
}

static Status expect(Study *study, Error *error) {
    const Linear *linear = study->linear;
    int best = best_count(study);
    add_counts(study, &study->ranks);
    add_counts(study, &study->processes);
    study->expected_s = ARENA_ARRAY(&study->arena, double, N_MODES *N_LINEAR_ENGINES * study->n_n);
    for (int mode = 0; mode < N_MODES; mode++) {
        const LinearRun *run = run_of(study, WEAK, best);
        for (int e = 0; e < run->n_engines; e++) {
            const LinearResult *result = &run->engine[e].result;
            LinearModel model = {.machine = &study->links.machine,
                                 .compute = result->compute,
                                 .update_s = result->phase_ms[LINEAR_UPDATE] * 1e-3 / (double)run->n_epochs,
                                 .n_weights = linear->problem.n_weights};
            for (int i = 0; i < study->n_n; i++) {
                model.all_reduce = lab_linear_algorithm(linear->values.linear.all_reduce, (int)study->n[i]);
                TRY(linear_model_epoch(&model, (int)study->n[i], mode == STRONG,
                                       &expected_of(study, mode, e)[i], error));
            }
        }
    }
    return STATUS_OK;
}

/* Against one process of the model itself. */
static double expected_efficiency(const Study *study, int mode, int e, int i) {
    const LinearRun *run = run_of(study, WEAK, best_count(study));
    const LinearResult *result = &run->engine[e].result;
    double one =
        slowest_of(&result->compute, 1) + result->phase_ms[LINEAR_UPDATE] * 1e-3 / (double)run->n_epochs;
    return one / expected_of(study, mode, e)[i] / (mode == STRONG ? study->n[i] : 1.0);
}

/* ---- Tables */

static void print_mode(const Study *study, int mode, int e) {
    const Linear *linear = study->linear;
    printf("\n%s engine, %s scaling: %s %s\n", linear_engine_name(linear->kind[e]), mode_names[mode],
           format_things(linear->problem.n_points,
                         linear->problem.task == LINEAR_ATTENTION ? "sequence" : "point")
               .text,
           mode == STRONG ? "in all" : "a rank");
    printf("%5s %11s %9s %9s %8s %14s %8s %11s %10s %11s\n", "ranks", "us an epoch", "forward %",
           "backward %", "update %", "communication %", "waiting %", "efficiency", "best case",
           "weights off");
    for (int r = 0; r < study->ranks.n; r++) {
        const LinearRun *run = run_of(study, mode, r);
        const LinearResult *result = &run->engine[e].result;
        double all_ms = result->seconds * 1e3;
        printf("%4d%s %11.2f %9.1f %10.1f %8.1f %15.1f %9.1f %11.3f", run->n_ranks,
               run->is_shared ? "*" : " ", epoch_s(run, e) * 1e6,
               100 * result->phase_ms[LINEAR_FORWARD] / all_ms,
               100 * result->phase_ms[LINEAR_BACKWARD] / all_ms,
               100 * result->phase_ms[LINEAR_UPDATE] / all_ms, 100 * result->phase_ms[LINEAR_COMM] / all_ms,
               100 * result->phase_ms[LINEAR_WAITING] / all_ms, efficiency(run, e));
        if (run->n_ranks == 1) printf(" %10.3f", 1.0);
        else printf(" %10.3f", result->best_efficiency);
        if (isnan(result->largest_error)) printf(" %11s\n", "-");
        else printf(" %11.1e\n", result->largest_error);
    }
}

static void print_model(const Study *study) {
    const LinearRun *run = run_of(study, WEAK, best_count(study));
    const Link *link = &study->links.machine.within;
    printf("\nmodel: a message takes %.2f us + %.2f ns a byte (fitted here)", link->eager.alpha * 1e6,
           link->eager.beta * 1e9);
    for (int e = 0; e < run->n_engines; e++) {
        const SlowestLaw *law = &run->engine[e].result.compute;
        printf(
            ";\n  %s: the slowest of n computes for %.2f us + %.3f us x (1 + 1/2 + ... + 1/n), and of 1000 "
            "gradients %.2g are interrupted, for %.3g us (from %s of %s)",
            linear_engine_name(run->engine[e].kind), law->base * 1e6, law->spread * 1e6, law->chance * 1e3,
            law->delay * 1e6, format_things(law->n_samples, "gradient").text,
            format_things(run->n_ranks, "rank").text);
    }
    printf("\n%9s", "processes");
    for (int mode = 0; mode < N_MODES; mode++)
        for (int e = 0; e < run->n_engines; e++)
            printf(" %14s %-6s", linear_engine_name(run->engine[e].kind), mode_names[mode]);
    printf("   (us an epoch, efficiency)\n");
    for (int i = 0; i < study->n_n; i++) {
        printf("%9.0f", study->n[i]);
        for (int mode = 0; mode < N_MODES; mode++)
            for (int e = 0; e < run->n_engines; e++)
                printf(" %14.2f %6.3f", expected_of(study, mode, e)[i] * 1e6,
                       expected_efficiency(study, mode, e, i));
        printf("\n");
    }
}

/* Did every launch find the weights? */
static void say_weights(const Study *study) {
    double worst = 0.0;
    bool has_weights = false;
    for (int i = 0; i < N_MODES * study->ranks.n; i++) {
        for (int e = 0; e < study->runs[i].n_engines; e++) {
            double off = study->runs[i].engine[e].result.largest_error;
            has_weights = has_weights || !isnan(off);
            worst = fmax(worst, off);
        }
    }
    if (!has_weights) return;
    if (worst <= LINEAR_RECOVERED_WITHIN)
        printf("\nweights: equal to the given ones on every number of ranks (largest error %.1e)\n", worst);
    else
        log_warning(
            &study->output->log,
            "a weight is %.2g off; more --epochs or a higher --lr bring it nearer, noise needs more --points",
            worst);
}

static void print_tables(const Study *study) {
    bool has_shared = false;
    for (int e = 0; e < study->runs[0].n_engines; e++)
        for (int mode = 0; mode < N_MODES; mode++) print_mode(study, mode, e);
    for (int r = 0; r < study->ranks.n; r++) has_shared = has_shared || run_of(study, WEAK, r)->is_shared;
    if (has_shared) printf("* more ranks than cores: they cannot all run at once\n");
    printf("times are those of median rounds by the clock; best case: every epoch in its fastest round\n");
    if (study->n_n) print_model(study);
    say_weights(study);
}

static void warn(const Study *study) {
    for (int i = 0; i < N_MODES * study->ranks.n; i++) {
        const LinearRun *run = &study->runs[i];
        for (int e = 0; e < run->n_engines; e++) {
            double whole = run->engine[e].result.efficiency, best = run->engine[e].result.best_efficiency;
            if (isnan(whole) || fabs(best - whole) <= LINEAR_DISTURBED_BY * whole) continue;
            log_warning(
                &study->output->log,
                "%s engine, %s scaling on %d ranks: efficiency is %.2f by the clock and %.2f at best: %s",
                linear_engine_name(run->engine[e].kind), mode_names[i / study->ranks.n], run->n_ranks, whole,
                best, run->is_shared ? "ranks share cores" : "something else ran beside; believe the first");
        }
    }
}

/* ---- Pictures */

static const char *place_of(Study *study) {
    Arena *arena = &study->arena;
    char *text = arena_printf(arena, "%" PRId64, study->ranks.values[0]);
    int64_t most_on_host = 0;
    for (int r = 0; r < study->ranks.n; r++) {
        const LinearRun *run = run_of(study, WEAK, r);
        if (r)
            text = arena_printf(arena, "%s%s%d", text, r + 1 < study->ranks.n ? ", " : " and ", run->n_ranks);
        int64_t on_host = run->is_shared ? (run->n_ranks + run->n_hosts - 1) / run->n_hosts : 0;
        if (on_host > most_on_host) most_on_host = on_host;
    }
    bool is_one = study->ranks.n == 1 && study->ranks.values[0] == 1;
    text = arena_printf(arena, "%s rank%s of %s", text, is_one ? "" : "s",
                        format_things(study->linear->problem.n_threads, "thread").text);
    return machine_note(arena, text, (int)most_on_host, study->output->note);
}

typedef double (*Measured)(const LinearRun *run, int e);

static double epoch_us(const LinearRun *run, int e) {
    return epoch_s(run, e) * 1e6;
}

/* Measured points with lines, and the model dashed behind: it is drawn first, but is named after them. */
static Status draw_curves(Study *study, const char *name, const Plot *words, bool is_time, Error *error) {
    Arena *arena = &study->arena;
    Measured measured = is_time ? epoch_us : efficiency;
    int n_engines = study->runs[0].n_engines, n = 0;
    PlotSeries series[2 * N_MODES * N_LINEAR_ENGINES];
    for (int e = 0; e < n_engines; e++) {
        for (int mode = 0; mode < N_MODES; mode++, n++) {
            double *x = ARENA_ARRAY(arena, double, study->ranks.n),
                   *y = ARENA_ARRAY(arena, double, study->ranks.n);
            for (int r = 0; r < study->ranks.n; r++) {
                x[r] = (double)study->ranks.values[r];
                y[r] = measured(run_of(study, mode, r), e);
            }
            series[n] = (PlotSeries){
                arena_printf(arena, "%s, %s", linear_engine_name(study->linear->kind[e]), mode_names[mode]),
                PLOT_LINES, x, y, study->ranks.n};
        }
    }
    for (int i = 0, n_measured = n; i < n_measured && study->n_n; i++, n++) {
        int e = i / N_MODES, mode = i % N_MODES;
        double *y = ARENA_ARRAY(arena, double, study->n_n);
        for (int k = 0; k < study->n_n; k++)
            y[k] = is_time ? expected_of(study, mode, e)[k] * 1e6 : expected_efficiency(study, mode, e, k);
        series[n] = (PlotSeries){arena_printf(arena, "%s: model", series[i].name), PLOT_DASHED, study->n, y,
                                 study->n_n};
    }
    Plot plot = *words;
    plot.x_label =
        study->n_n ? "ranks (log axis); beyond those measured: the model of a core each" : "ranks (log axis)";
    plot.x_log = true;
    plot.note = place_of(study);
    plot.series = series;
    plot.n_series = n;
    return lab_draw(study->output, &plot, name, error);
}

/* A bar a launch and engine, made of its phases in per cent. */
static Status draw_split(Study *study, Error *error) {
    Arena *arena = &study->arena;
    int n_engines = study->runs[0].n_engines, n = N_MODES * study->ranks.n * n_engines;
    const char **names = ARENA_ARRAY(arena, const char *, n);
    double *x = ARENA_ARRAY(arena, double, n), *whole = ARENA_ARRAY(arena, double, n);
    PlotSeries series[N_LINEAR_PHASES];
    for (int p = 0; p < N_LINEAR_PHASES; p++) {
        double *y = ARENA_ARRAY(arena, double, n);
        for (int i = 0; i < n; i++) {
            int e = i / (N_MODES * study->ranks.n), mode = i / study->ranks.n % N_MODES,
                r = i % study->ranks.n;
            const LinearRun *run = run_of(study, mode, r);
            const LinearResult *result = &run->engine[e].result;
            x[i] = i;
            whole[i] = 100; /* by the clock, over all phases */
            y[i] = 100.0 * result->phase_ms[p] / (result->seconds * 1e3);
            names[i] = arena_printf(arena, "%s, %s, %d%s", linear_engine_name(run->engine[e].kind),
                                    mode_names[mode], run->n_ranks, run->is_shared ? "*" : "");
        }
        series[p] = (PlotSeries){linear_phase_names[p], PLOT_BARS, x, y, n};
    }
    Plot plot = {.title = "What an epoch is spent on, in the mean over the ranks",
                 .x_label = "engine, scaling, ranks (*: more than cores)",
                 .y_label = "share of an epoch (%)",
                 .note = place_of(study),
                 .series = series,
                 .n_series = N_LINEAR_PHASES,
                 .x_names = names,
                 .is_stacked = true,
                 .whole = whole};
    return lab_draw(study->output, &plot, "linear-ranks-split", error);
}

static Status draw(Study *study, Error *error) {
    Plot times = {.title = "Time of an epoch against ranks",
                  .y_label = "time of an epoch (µs, log axis)",
                  .y_log = true};
    Plot efficiencies = {.title = "Efficiency against ranks: one rank alone by all together",
                         .y_label = "efficiency (1 = nothing lost)"};
    TRY(draw_curves(study, "linear-ranks-time", &times, true, error));
    TRY(draw_curves(study, "linear-ranks-efficiency", &efficiencies, false, error));
    return draw_split(study, error);
}

/* ---- JSON */

static json_t *run_json(const Study *study, int mode, int r, int e) {
    const LinearRun *run = run_of(study, mode, r);
    const LinearResult *result = &run->engine[e].result;
    json_t *object = json_object();
    json_object_set_new(object, "engine", json_string(linear_engine_name(run->engine[e].kind)));
    json_object_set_new(object, "scaling", json_string(mode_names[mode]));
    json_object_set_new(object, "ranks", json_integer(run->n_ranks));
    json_object_set_new(object, "ranks_share_cores", json_boolean(run->is_shared));
    json_object_set_new(object, "seconds", json_make_number(result->seconds));
    json_object_set_new(object, "epoch_ms", json_make_number(epoch_s(run, e) * 1e3));
    for (int p = 0; p < N_LINEAR_PHASES; p++)
        json_object_set_new(object, linear_phase_fields[p], json_make_number(result->phase_ms[p]));
    json_object_set_new(object, "efficiency", json_make_number(efficiency(run, e)));
    json_object_set_new(object, "best_efficiency",
                        json_make_number(run->n_ranks == 1 ? 1.0 : result->best_efficiency));
    json_object_set_new(object, "largest_error", json_make_number(result->largest_error));
    json_object_set_new(object, "recovered",
                        isnan(result->largest_error)
                            ? json_null()
                            : json_boolean(result->largest_error <= LINEAR_RECOVERED_WITHIN));
    return object;
}

static json_t *expected_json(const Study *study, int mode, int e, int i) {
    json_t *object = json_object();
    json_object_set_new(object, "engine", json_string(linear_engine_name(study->linear->kind[e])));
    json_object_set_new(object, "scaling", json_string(mode_names[mode]));
    json_object_set_new(object, "processes", json_integer((json_int_t)study->n[i]));
    json_object_set_new(object, "epoch_ms", json_make_number(expected_of(study, mode, e)[i] * 1e3));
    json_object_set_new(object, "efficiency", json_make_number(expected_efficiency(study, mode, e, i)));
    return object;
}

static Status print_json(const Study *study, Error *error) {
    json_t *object = json_object(), *runs = json_array(), *model = json_array();
    for (int e = 0; e < study->runs[0].n_engines; e++) {
        for (int mode = 0; mode < N_MODES; mode++) {
            for (int r = 0; r < study->ranks.n; r++) json_array_append_new(runs, run_json(study, mode, r, e));
            for (int i = 0; i < study->n_n; i++)
                json_array_append_new(model, expected_json(study, mode, e, i));
        }
    }
    json_object_set_new(object, "command", json_string("lab linear"));
    json_object_set_new(object, "runs", runs);
    json_object_set_new(object, "model", model);
    json_object_set_new(object, "machine",
                        study->links.machine.n_ranks ? collectives_machine_json(&study->links.machine)
                                                     : json_null());
    json_object_set_new(object, "out", json_make_text(study->output->folder));
    return lab_print_json(object, error);
}

/* ---- All of it */

static Status read_lists(Study *study, Error *error) {
    const LinearOptions *options = &study->linear->values.linear;
    TRY(lab_read_list("--ranks", options->ranks, 1, 4096, false, &study->ranks, error));
    if (*options->processes)
        TRY(lab_read_list("--model", options->processes, 1, 1024, false, &study->processes, error));
    for (int r = 0; r < study->ranks.n; r++)
        if (study->ranks.values[r] > options->n_points)
            return error_user(error,
                              "--points %" PRId64 " cannot be divided among %" PRId64 " ranks; give more",
                              options->n_points, study->ranks.values[r]);
    return lab_linear_open_launcher(&study->launcher, options, &study->ranks, error);
}

static Status run_study(Study *study, Error *error) {
    bool has_ranks = false;
    for (int r = 0; r < study->ranks.n; r++) has_ranks = has_ranks || study->ranks.values[r] > 1;
    study->runs = calloc((size_t)N_MODES * (size_t)study->ranks.n, sizeof *study->runs);
    if (!study->runs) return error_failed(error, "no memory for the launches");
    interrupt_watch();
    if (run_launches(study, error) == STATUS_OK && study->processes.n && has_ranks &&
        fit_links(study, error) == STATUS_OK)
        expect(study, error);
    interrupt_ignore();
    if (error->status != STATUS_OK) return error->status;
    print_tables(study);
    fflush(stdout);
    warn(study);
    if (study->linear->values.linear.draws) TRY(draw(study, error));
    return study->linear->values.lab.json ? print_json(study, error) : STATUS_OK;
}

Status lab_linear_ranks(Linear *linear, const LabOutput *output, Error *error) {
    Study study = {.linear = linear, .output = output};
    if (read_lists(&study, error) == STATUS_OK) run_study(&study, error);
    collectives_forget(&study.links.machine);
    free(study.runs);
    launcher_close(&study.launcher);
    arena_free(&study.arena);
    return error->status;
}
