/* Curves with gnuplot: panels one below the other over the same x, each run in its colour, its validation
 * dashed. Data and script are written in any case; pictures get their names when they are whole.
 *
 * Names of runs are the user's words: they reach gnuplot in single quotes, in which it looks for nothing. */
#include "lab/curves/curves.h"

#include "base/file/file.h"
#include "base/text/format.h"
#include "lab/launch/launch_child.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DRAW_SECONDS = 120, WIDTH = 900, TALL = 300, LOW = 170, ABOVE = 60, BELOW = 110, GAP = 18 };

/* After Okabe and Ito, as in the pictures of the lab. */
static const char *const COLOURS[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#e69f00", "#56b4e9", "#000000", "#8c8c8c"};
enum { N_COLOURS = sizeof COLOURS / sizeof COLOURS[0] };

typedef struct {
    const CurveRun *runs;
    int n_runs;
    const CurveView *view;
    const char *folder, *name;
    Arena arena;
    Panel panel[N_PANELS]; /* those that are drawn */
    int n_panels;
    CurveLine *line; /* (n_lines), panel by panel, curve by curve, run by run */
    int n_lines;
    double x[2]; /* the range of all */
} Files;

static const char *quote(Files *files, const char *text) {
    static const char inner[] = "'.\"'\".'";
    char *result = ARENA_ARRAY(&files->arena, char, sizeof inner *strlen(text) + 3), *next = result;
    *next++ = '\'';
    for (; *text; text++) {
        if (*text == '\'') next = stpcpy(next, inner);
        else *next++ = (unsigned char)*text < ' ' ? ' ' : *text;
    }
    *next++ = '\'';
    *next = '\0';
    return result;
}

static void collect(Files *files) {
    files->line = ARENA_ARRAY(&files->arena, CurveLine, 2 * N_PANELS * files->n_runs);
    files->x[0] = INFINITY;
    files->x[1] = -INFINITY;
    for (int panel = 0; panel < N_PANELS; panel++) {
        Curve curves[2];
        int n_curves = panel_curves((Panel)panel, curves);
        if (!files->view->panels[panel] || !panel_has(files->runs, files->n_runs, (Panel)panel)) continue;
        files->panel[files->n_panels++] = (Panel)panel;
        for (int k = 0; k < n_curves; k++) {
            for (int i = 0; i < files->n_runs; i++) {
                CurveLine line = curve_line(&files->runs[i], curves[k], files->view, &files->arena);
                for (int64_t p = 0; p < line.n; p++) {
                    files->x[0] = fmin(files->x[0], line.x[p]);
                    files->x[1] = fmax(files->x[1], line.x[p]);
                }
                files->line[files->n_lines++] = line;
            }
        }
    }
}

/* ---- The data */

static Status write_data(FileWriter *writer, Files *files, Error *error) {
    static const char *const curves[N_CURVES] = {"loss", "validation loss", "learning rate", "gradient norm",
                                                 "tokens/s"};
    const CurveView *view = files->view;
    TRY(file_writer_printf(writer, error, "# %s\n# made by: %s\n# note: %s\n# x: %s\n", view->title,
                           view->caption, view->note, curve_x_labels[view->x]));
    for (int k = 0; k < files->n_lines; k++) {
        const CurveLine *line = &files->line[k];
        TRY(file_writer_printf(writer, error, "%s# series: %s: %s\n", k ? "\n\n" : "", line->run->name,
                               curves[line->curve]));
        for (int64_t i = 0; i < line->n; i++)
            TRY(file_writer_printf(writer, error, "%s %s\n", format_double(line->x[i]).text,
                                   format_double(line->y[i]).text));
        if (!line->n) TRY(file_writer_printf(writer, error, "NaN NaN\n")); /* or later blocks would move up */
    }
    return STATUS_OK;
}

/* ---- The script */

static int height_of(Panel panel) {
    return panel == PANEL_LOSS ? TALL : LOW;
}

static int total_height(const Files *files) {
    int height = ABOVE + BELOW;
    for (int i = 0; i < files->n_panels; i++) height += height_of(files->panel[i]) + (i ? GAP : 0);
    return height;
}

/* Names stand beside the panels; of one run, in the title. */
static double right_edge(const Files *files) {
    size_t longest = 10; /* "validation" */
    for (int i = 0; i < files->n_runs; i++)
        if (strlen(files->runs[i].name) > longest) longest = strlen(files->runs[i].name);
    double pixels = 62.0 + 7.5 * (double)(longest < 34 ? longest : 34);
    return 1.0 - pixels / WIDTH;
}

/* Long names lose their middle. */
static const char *legend_name(Files *files, const char *name) {
    enum { MOST = 34, HALF = 16 };
    size_t n = strlen(name);
    if (n <= MOST) return name;
    return arena_printf(&files->arena, "%.*s..%s", HALF, name, name + n - HALF);
}

static Status write_curve(FileWriter *writer, Files *files, int index, bool is_first, bool has_title,
                          Error *error) {
    const CurveLine *line = &files->line[index];
    int run = (int)(line->run - files->runs);
    bool is_validation = line->curve == CURVE_VALIDATION;
    const char *style = is_validation ? "linespoints dashtype 2 linewidth 1.5 pointtype 6 pointsize 0.5"
                                      : "lines linewidth 1.6";
    TRY(file_writer_printf(writer, error, "%s%s index %d using 1:2 with %s linecolor rgb '%s'",
                           is_first ? "plot " : ", \\\n     ",
                           quote(files, arena_printf(&files->arena, "%s.dat", files->name)), index, style,
                           COLOURS[run % N_COLOURS]));
    const char *title = is_validation ? "validation" : legend_name(files, line->run->name);
    return has_title ? file_writer_printf(writer, error, " title %s", quote(files, title))
                     : file_writer_printf(writer, error, " notitle");
}

static Status write_labels(FileWriter *writer, Files *files, Error *error) {
    const CurveView *view = files->view;
    double line = 20.0 / total_height(files);
    TRY(file_writer_printf(writer, error, "set label 1 %s at screen 0.5, %.4f center font ',16'\n",
                           quote(files, view->title), 1.0 - 28.0 / total_height(files)));
    TRY(file_writer_printf(writer, error,
                           "set label 2 %s at screen 0.5, %.4f center font ',12' textcolor rgb '#333333'\n",
                           quote(files, view->note), 0.5 * line + line));
    return file_writer_printf(
        writer, error, "set label 3 %s at screen 0.5, %.4f center font ',11' textcolor rgb '#555555'\n",
        quote(files, view->caption), 0.5 * line);
}

static Status write_panel(FileWriter *writer, Files *files, int k, int *first_line, int *pixels_down,
                          Error *error) {
    double height = total_height(files);
    Panel panel = files->panel[k];
    Curve curves[2];
    int n_curves = panel_curves(panel, curves);
    bool is_last = k + 1 == files->n_panels, is_drawn = false;
    double top = 1.0 - *pixels_down / height, bottom = top - height_of(panel) / height;
    *pixels_down += height_of(panel) + GAP;
    TRY(file_writer_printf(writer, error, "set tmargin at screen %.4f\nset bmargin at screen %.4f\n", top,
                           bottom));
    TRY(file_writer_printf(writer, error, "set ylabel %s offset 0,0\n", quote(files, panel_labels[panel])));
    TRY(file_writer_printf(
        writer, error, "set format x '%s'\nset xlabel %s\n", is_last ? "%g" : "",
        is_last ? quote(files, arena_printf(&files->arena, "%s%s", curve_x_labels[files->view->x],
                                            files->view->log_x ? ", logarithmic" : ""))
                : "''"));
    TRY(file_writer_printf(writer, error,
                           k == 0 ? "set key at screen %.4f, %.4f left top Left reverse samplen 2\n"
                                  : "set key off\n",
                           right_edge(files) + 0.01, top));
    for (int i = 0; i < n_curves * files->n_runs; i++) {
        if (!files->line[*first_line + i].n) continue;
        TRY(write_curve(writer, files, *first_line + i, !is_drawn, k == 0, error));
        is_drawn = true;
    }
    *first_line += n_curves * files->n_runs;
    if (k == 0) TRY(file_writer_printf(writer, error, "\nunset label"));
    return file_writer_printf(writer, error, "\n");
}

static Status write_panels(FileWriter *writer, Files *files, Error *error) {
    int first_line = 0, pixels_down = ABOVE;
    TRY(write_labels(writer, files, error));
    TRY(file_writer_printf(writer, error, "set multiplot\n"));
    for (int k = 0; k < files->n_panels; k++)
        TRY(write_panel(writer, files, k, &first_line, &pixels_down, error));
    return file_writer_printf(writer, error, "unset multiplot\nunset output\n");
}

static Status write_script(FileWriter *writer, Files *files, Error *error) {
    int height = total_height(files);
    TRY(file_writer_printf(
        writer, error,
        "# To draw %s.svg and %s.png from %s.dat: gnuplot %s.gp\n"
        "if (!exists('svg_file')) svg_file = '%s.svg'\nif (!exists('png_file')) png_file = '%s.png'\n"
        "set encoding utf8\nset border 3 linecolor rgb '#444444'\nset tics nomirror\n"
        "set grid linecolor rgb '#dddddd' linetype 1 linewidth 1\n"
        "set lmargin at screen 0.11\nset rmargin at screen %.4f\n",
        files->name, files->name, files->name, files->name, files->name, files->name, right_edge(files)));
    if (files->view->log_x) TRY(file_writer_printf(writer, error, "set logscale x\n"));
    if (files->view->log_y) TRY(file_writer_printf(writer, error, "set logscale y\n"));
    if (files->x[1] > files->x[0])
        TRY(file_writer_printf(writer, error, "set xrange [%s:%s]\n", format_double(files->x[0]).text,
                               format_double(files->x[1]).text));
    TRY(file_writer_printf(writer, error,
                           "set terminal svg size %d,%d dynamic font 'sans-serif,13' background '#ffffff' "
                           "noenhanced\nset output svg_file\n",
                           WIDTH, height));
    TRY(write_panels(writer, files, error));
    TRY(file_writer_printf(
        writer, error,
        "if (strstrt(GPVAL_TERMINALS, 'pngcairo')) {\n"
        "    set terminal pngcairo size %d,%d font 'sans,13' background '#ffffff' noenhanced\n"
        "} else {\n    set terminal png size %d,%d background '#ffffff' noenhanced\n}\n"
        "set output png_file\n",
        WIDTH * 3 / 2, height * 3 / 2, WIDTH * 3 / 2, height * 3 / 2));
    return write_panels(writer, files, error);
}

/* ---- Drawing */

static const char *path_of(Files *files, const char *ending) {
    return arena_printf(&files->arena, "%s/%s%s", files->folder, files->name, ending);
}

static Status write_file(Files *files, const char *ending,
                         Status (*write)(FileWriter *writer, Files *files, Error *error), Error *error) {
    FileWriter writer;
    TRY(file_writer_open(&writer, path_of(files, ending), error));
    if (write(&writer, files, error) == STATUS_OK) file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return error->status;
}

static bool has_bytes(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0;
}

static Status draw(Files *files, const bool *is_wanted, bool *drawn, Error *error) {
    static const char *const endings[2] = {".svg", ".png"};
    Arena *arena = &files->arena;
    const char *made[2];
    for (int i = 0; i < 2; i++)
        made[i] = path_of(files, arena_printf(arena, "%s.tmp.%d", endings[i], (int)getpid()));
    const char *names = arena_printf(arena, "svg_file = '%s.svg.tmp.%d'; png_file = '%s.png.tmp.%d'",
                                     files->name, (int)getpid(), files->name, (int)getpid());
    const char *words[] = {"gnuplot", "-e", names, arena_printf(arena, "%s.gp", files->name), NULL};
    ChildResult result = {0};
    *drawn = false;
    if (child_exists("gnuplot")) {
        ChildSetup setup = {.words = words, .folder = files->folder, .timeout_s = DRAW_SECONDS};
        *drawn = child_run(&setup, &result, &(Error){0}) == STATUS_OK && result.exit_code == 0 &&
                 has_bytes(made[0]) && has_bytes(made[1]);
        child_free(&result);
    }
    for (int i = 0; i < 2; i++) {
        const char *final = path_of(files, endings[i]);
        if (*drawn && is_wanted[i] && rename(made[i], final) != 0)
            error_failed(error, "cannot rename %s: %s", made[i], strerror(errno));
        if (!*drawn || !is_wanted[i] || error->status != STATUS_OK) unlink(made[i]);
        if (!*drawn && is_wanted[i]) unlink(final);
    }
    return error->status;
}

Status curves_draw_files(const CurveRun *runs, int n_runs, const CurveView *view, const char *folder,
                         const char *name, bool wants_svg, bool wants_png, bool *drawn, Error *error) {
    Files files = {.runs = runs, .n_runs = n_runs, .view = view, .folder = folder, .name = name};
    bool is_wanted[2] = {wants_svg, wants_png};
    *drawn = false;
    TRY(file_make_folders(folder, error));
    collect(&files);
    if (write_file(&files, ".dat", write_data, error) == STATUS_OK &&
        write_file(&files, ".gp", write_script, error) == STATUS_OK)
        draw(&files, is_wanted, drawn, error);
    arena_free(&files.arena);
    return error->status;
}
