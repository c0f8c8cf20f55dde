/* pgpt plot: the curves of one run or of several, in the terminal or as a picture.
 *
 * What cannot be read of a run is said and left out, since a run that is under way, or was killed, is the one
 * that people look at. Only a run of which there is nothing to show is an error. */
#include "cli/commands.h"

#include "base/text/format.h"
#include "base/text/json.h"
#include "base/text/log.h"
#include "base/text/plain.h"
#include "base/text/terminal.h"
#include "infer/given_model.h"
#include "lab/curves/curves.h"
#include "lab/picture/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 24 }; /* letters and colours are no more */

typedef struct {
    const char *panels, *out, *title;
    int x; /* CurveX */
    int64_t smooth;
    bool log_x, log_y, terminal, json, quiet;
} PlotOptions;

typedef struct {
    PlotOptions plot;
} PlotCommand;

static const OptionSpec specs[] = {
    OPTION_CHOICE("x", PlotOptions, x, CURVE_X_STEP, curve_x_names,
                  "what curves are drawn against: steps, seconds spent in steps, or tokens"),
    OPTION_STRING(
        "curves", PlotOptions, panels, "loss,rate,norm,speed", "LIST",
        "which: loss (with validation), rate (learning rate), norm (of the gradient), speed (tokens/s)"),
    OPTION_INT("smooth", PlotOptions, smooth, 1, 1, 1 << 30,
               "draw means over so many steps; validation and learning rate are drawn as they are"),
    OPTION_BOOL("log-x", PlotOptions, log_x, false, "a logarithmic x axis"),
    OPTION_BOOL("log-y", PlotOptions, log_y, false, "logarithmic y axes"),
    OPTION_STRING(
        "out", PlotOptions, out, "", "FILE",
        "write a picture with gnuplot, FILE.svg or FILE.png, without ending both; its data and script "
        "stand beside it"),
    OPTION_STRING("title", PlotOptions, title, "", "TEXT", "of the picture; else the runs' names",
                  .flags = OPTION_MAY_BE_EMPTY),
    OPTION_BOOL("terminal", PlotOptions, terminal, false,
                "draw in the terminal also where --out is given; without --out it always does"),
    OPTION_BOOL("json", PlotOptions, json, false, "make the last line of the output one JSON object"),
    OPTION_BOOL("quiet", PlotOptions, quiet, false, "only the drawing, and what went wrong"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Drawing", PlotCommand, plot, specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "RUN",
     .help = "runs' folders, or metrics.jsonl files; default: " GIVEN_MODEL_DEFAULT
             ", the last run in this folder",
     .optional = true,
     .repeated = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "the last run, in the terminal",
    "pgpt plot",
    "two runs' losses against time, smoothed, as a picture",
    "pgpt plot runs/first runs/second --curves loss --x time --smooth 20 --out losses.svg",
    NULL,
};

const OptionCommand plot_command = {
    .name = "plot",
    .summary = "draw the training curves of runs: loss, validation, rate, norm, speed",
    .description =
        "Reads what runs have written to their metrics.jsonl, also of runs that are under way, and draws their loss with the validation "
        "loss, learning rate, gradient norm and speed, one below the other, several runs in one picture: in the terminal, or with --out "
        "as SVG and PNG by gnuplot. Steps that a resumed run has taken twice count once, as it took them last.",
    .usage = "[--key value]... [RUN]...",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

typedef struct {
    Options options;
    PlotCommand values;
    Log log;
    CurveRun runs[MOST_RUNS];
    int n_runs;
    CurveView view;
    char *folder, *name; /* of --out */
    bool wants_svg, wants_png, drawn;
} Call;

/* ---- What is asked for */

static Status read_panels(Call *call, Error *error) {
    const char *text = call->values.plot.panels;
    for (const char *next = text;; next++) {
        size_t n = strcspn(next, ",");
        int panel = 0;
        while (panel < N_PANELS &&
               (strlen(panel_names[panel]) != n || strncmp(panel_names[panel], next, n) != 0))
            panel++;
        if (panel == N_PANELS)
            return error_user(error,
                              "--curves '%s': '%s' is not known; choose among loss, rate, norm and speed",
                              plain_value(text).text, plain_value_of(next, n).text);
        call->view.panels[panel] = true;
        next += n;
        if (!*next) return STATUS_OK;
    }
}

/* FILE.svg, FILE.png or FILE into folder, name, and which are wanted. */
static Status read_out(Call *call, Error *error) {
    const char *out = call->values.plot.out, *slash = strrchr(out, '/'), *last = slash ? slash + 1 : out;
    Arena *arena = &call->options.arena;
    if (!*out) return STATUS_OK;
    call->folder = !slash ? arena_strdup(arena, ".") : slash == out ? arena_strdup(arena, "/") : NULL;
    if (!call->folder) call->folder = arena_printf(arena, "%.*s", (int)(slash - out), out);
    call->name = arena_strdup(arena, last);
    char *ending = strrchr(call->name, '.');
    call->wants_svg = !ending || strcmp(ending, ".svg") == 0;
    call->wants_png = !ending || strcmp(ending, ".png") == 0;
    if (!call->wants_svg && !call->wants_png)
        return error_user(error, "--out '%s': pictures are .svg or .png; without an ending both are written",
                          plain_value(out).text);
    if (ending) *ending = '\0';
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t n = strlen(call->name);
    if (n == 0 || n > 200 || strspn(call->name, allowed) != n)
        return error_user(error, "--out '%s': a picture's name is of letters, digits, '-' and '_'",
                          plain_value(out).text);
    return STATUS_OK;
}

static void say_troubles(const Call *call, const CurveRun *run) {
    if (run->n_broken)
        log_warning(&call->log,
                    "%s: %s of metrics.jsonl cannot be read and %s left out, the first is line %lld",
                    plain(run->path).text, format_things(run->n_broken, "line").text,
                    run->n_broken == 1 ? "is" : "are", (long long)run->first_broken);
    if (run->is_cut)
        log_note(&call->log,
                 "%s: the last line of metrics.jsonl has no end yet: the run is under way, or was killed",
                 plain(run->path).text);
    if (run->n_again)
        log_note(&call->log, "%s: %s in it twice, taken again after a resume; the later ones are drawn",
                 plain(run->path).text, format_things(run->n_again, "step").text);
}

static Status read_runs(Call *call, Error *error) {
    const Options *options = &call->options;
    int n_named = options->n_arguments;
    if (n_named > MOST_RUNS)
        return error_user(error, "%d runs are too many to tell apart; give %d at most", n_named, MOST_RUNS);
    for (int i = 0; i < (n_named ? n_named : 1); i++) {
        const char *path = n_named ? options->arguments[i] : GIVEN_MODEL_DEFAULT;
        TRY(curve_run_read(&call->runs[call->n_runs], path, error));
        call->n_runs++;
        say_troubles(call, &call->runs[call->n_runs - 1]);
    }
    return curve_runs_name(call->runs, call->n_runs, error);
}

/* Is there anything to draw? What was asked for by name and is not there is said. */
static Status check_panels(Call *call, Error *error) {
    bool is_given = options_source(&call->options, "curves") != OPTION_FROM_DEFAULT, is_any = false;
    bool is_there[N_PANELS];
    for (int panel = 0; panel < N_PANELS; panel++) {
        is_there[panel] = panel_has(call->runs, call->n_runs, (Panel)panel);
        is_any = is_any || (call->view.panels[panel] && is_there[panel]);
    }
    if (!is_any) return error_user(error, "none of --curves was measured in these runs; ask for others");
    for (int panel = 0; panel < N_PANELS && is_given; panel++)
        if (call->view.panels[panel] && !is_there[panel])
            log_warning(&call->log, "no run has a %s: it was not measured", panel_labels[panel]);
    return STATUS_OK;
}

/* ---- Results */

static const char *title_of(const Call *call, Arena *arena) {
    enum { FEW = 3 };
    const PlotOptions *plot = &call->values.plot;
    char *names = arena_strdup(arena, plot->title);
    for (int i = 0; i < call->n_runs && i < FEW && !*plot->title; i++)
        names = arena_printf(arena, "%s%s%s", names, i ? ", " : "", call->runs[i].name);
    if (call->n_runs > FEW && !*plot->title)
        names = arena_printf(arena, "%s and %d more", names, call->n_runs - FEW);
    if (plot->smooth > 1)
        names = arena_printf(arena, "%s (means over %lld steps)", names, (long long)plot->smooth);
    return names;
}

/* Where the runs ran, each machine once; whoever draws them may sit elsewhere. */
static const char *note_of(const Call *call, Arena *arena) {
    enum { FEW = 2 };
    char *text = arena_strdup(arena, "");
    int n = 0;
    for (int i = 0; i < call->n_runs; i++) {
        const char *machine = call->runs[i].machine;
        bool is_new = machine != NULL;
        for (int k = 0; k < i && is_new; k++)
            is_new = !call->runs[k].machine || strcmp(call->runs[k].machine, machine) != 0;
        if (is_new && n++ < FEW) text = arena_printf(arena, "%s%s%s", text, *text ? " | " : "", machine);
    }
    if (n > FEW) text = arena_printf(arena, "%s | %d others", text, n - FEW);
    return *text ? text : "where and when is not in metrics.jsonl";
}

static const char *caption_of(int n_words, char *const *words, Arena *arena) {
    char *text = arena_strdup(arena, "pgpt plot");
    for (int i = 0; i < n_words; i++) {
        char *quoted = ARENA_ARRAY(arena, char, shell_quote(NULL, 0, words[i]) + 1);
        shell_quote(quoted, shell_quote(NULL, 0, words[i]) + 1, words[i]);
        text = arena_printf(arena, "%s %s", text, quoted);
    }
    return text;
}

static Status draw_files(Call *call, int n_words, char *const *words, Error *error) {
    Arena *arena = &call->options.arena;
    const char *folder = call->folder, *name = call->name;
    call->view.title = title_of(call, arena);
    call->view.note = note_of(call, arena);
    call->view.caption = caption_of(n_words, words, arena);
    TRY(curves_draw_files(call->runs, call->n_runs, &call->view, folder, name, call->wants_svg,
                          call->wants_png, &call->drawn, error));
    if (call->drawn)
        log_note(&call->log, "picture: %s/%s%s; data: %s/%s.dat", folder, name,
                 call->wants_svg && call->wants_png ? ".svg and .png"
                 : call->wants_svg                  ? ".svg"
                                                    : ".png",
                 folder, name);
    else
        log_warning(
            &call->log,
            "no picture: gnuplot %s; the data is in %s/%s.dat. To draw it, %s: (cd %s && gnuplot %s.gp)",
            plot_has_gnuplot() ? "failed" : "is not installed", folder, name,
            plot_has_gnuplot() ? "and to see why" : "install gnuplot, then", shell_path(folder).text, name);
    return STATUS_OK;
}

static double last_of(const double *values, int64_t n) {
    while (n > 0 && !isfinite(values[n - 1])) n--;
    return n ? values[n - 1] : NAN;
}

static double best_of(const CurveRun *run, double *step) {
    double best = NAN;
    *step = NAN;
    for (int64_t i = 0; i < run->n; i++) {
        double value = run->y[CURVE_VALIDATION][i];
        if (!isfinite(value) || value >= best) continue;
        best = value;
        *step = run->x[CURVE_X_STEP][i];
    }
    return best;
}

static void print_summary(const Call *call) {
    for (int i = 0; i < call->n_runs; i++) {
        const CurveRun *run = &call->runs[i];
        double step, best = best_of(run, &step);
        printf("%s: steps %.0f to %.0f, loss %.4f", plain(run->name).text, run->x[CURVE_X_STEP][0],
               run->x[CURVE_X_STEP][run->n - 1], last_of(run->y[CURVE_LOSS], run->n));
        if (!isnan(best)) printf(", best validation loss %.4f (step %.0f)", best, step);
        printf(", %s in steps\n", format_duration(run->x[CURVE_X_TIME][run->n - 1]).text);
    }
}

static json_t *run_json(const CurveRun *run) {
    double step, best = best_of(run, &step);
    json_t *object = json_object();
    json_object_set_new(object, "run", json_make_text(run->path));
    json_object_set_new(object, "name", json_make_text(run->name));
    json_object_set_new(object, "points", json_integer(run->n));
    json_object_set_new(object, "first_step", json_integer((json_int_t)run->x[CURVE_X_STEP][0]));
    json_object_set_new(object, "last_step", json_integer((json_int_t)run->x[CURVE_X_STEP][run->n - 1]));
    json_object_set_new(object, "loss", json_make_number(last_of(run->y[CURVE_LOSS], run->n)));
    json_object_set_new(object, "val_loss", json_make_number(last_of(run->y[CURVE_VALIDATION], run->n)));
    json_object_set_new(object, "best_val_loss", json_make_number(best));
    json_object_set_new(object, "best_step", isnan(step) ? json_null() : json_integer((json_int_t)step));
    json_object_set_new(object, "tokens", json_make_number(last_of(run->x[CURVE_X_TOKENS], run->n)));
    json_object_set_new(object, "seconds", json_make_number(run->x[CURVE_X_TIME][run->n - 1]));
    json_object_set_new(object, "lines_left_out", json_integer(run->n_broken));
    json_object_set_new(object, "steps_again", json_integer(run->n_again));
    return object;
}

static Status print_json(const Call *call, Error *error) {
    json_t *object = json_object(), *runs = json_array();
    for (int i = 0; i < call->n_runs; i++) json_array_append_new(runs, run_json(&call->runs[i]));
    json_object_set_new(object, "command", json_string("plot"));
    json_object_set_new(object, "x", json_string(curve_x_names[call->view.x]));
    json_object_set_new(object, "runs", runs);
    json_object_set_new(object, "drawn", json_boolean(call->drawn));
    json_object_set_new(object, "out",
                        *call->values.plot.out ? json_make_text(call->values.plot.out) : json_null());
    json_line_write(stdout, object, JSON_DIGITS_FLOAT, error);
    json_decref(object);
    return error->status;
}

static Status plot(Call *call, int n_words, char *const *words, Error *error) {
    const PlotOptions *options = &call->values.plot;
    call->view = (CurveView){
        .x = (CurveX)options->x, .log_x = options->log_x, .log_y = options->log_y, .smooth = options->smooth};
    TRY(read_panels(call, error));
    TRY(read_out(call, error));
    TRY(read_runs(call, error));
    TRY(check_panels(call, error));
    if (call->folder) TRY(draw_files(call, n_words, words, error));
    if (!call->folder || options->terminal || !call->drawn)
        curves_draw_terminal(call->runs, call->n_runs, &call->view, stdout);
    if (!options->quiet) print_summary(call);
    return options->json ? print_json(call, error) : STATUS_OK;
}

Status command_plot(int n_words, char *const *words, Error *error) {
    Call call = {.n_runs = 0};
    TRY_GOTO(options_init(&call.options, &plot_command, &call.values, error), done);
    TRY_GOTO(options_parse(&call.options, n_words, words, error), done);
    call.log = log_make(call.values.plot.quiet);
    if (call.options.help_wanted) command_show_help(&plot_command);
    else plot(&call, n_words, words, error);
done:
    for (int i = 0; i < call.n_runs; i++) curve_run_free(&call.runs[i]);
    options_free(&call.options);
    return error->status;
}
