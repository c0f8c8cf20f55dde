/* A picture is three things: a data file for eyes and other programs, a gnuplot script that draws it
 * (plot_script.c), and what gnuplot makes of both.
 *
 * gnuplot runs in the folder and writes to temporary names, which it is told by variables that the script
 * looks for: the same script, run by hand, writes to the real ones. Only what is whole is renamed. */
#include "lab/picture/plot_script.h"

#include "base/file/file.h"
#include "base/text/format.h"
#include "lab/launch/launch_child.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DRAW_SECONDS = 120 };

/* ---- The data file */

/* A comment stays one: no line breaks. */
static Status write_comment(FileWriter *writer, const char *words, const char *text, Error *error) {
    TRY(file_writer_printf(writer, error, "# %s", words));
    for (; *text; text++)
        TRY(file_writer_printf(writer, error, "%c", (unsigned char)*text < ' ' ? ' ' : *text));
    return file_writer_printf(writer, error, "\n");
}

static double row_x(const Picture *picture, int row) {
    for (int i = 0; i < picture->plot->n_series; i++)
        if (row < picture->plot->series[i].n) return picture->plot->series[i].x[row];
    return NAN;
}

static const char *row_name(Picture *picture, int row) {
    if (picture->plot->x_names) return picture->plot->x_names[row];
    double x = row_x(picture, row);
    return isnan(x) ? "" : arena_strdup(&picture->arena, format_double(x).text);
}

/* Bars: a line a name, a column a series. */
static Status write_rows(FileWriter *writer, Picture *picture, Error *error) {
    const Plot *plot = picture->plot;
    TRY(file_writer_printf(writer, error, "# name"));
    for (int i = 0; i < plot->n_series; i++)
        TRY(file_writer_printf(writer, error, " | %s", plot->series[i].name));
    TRY(file_writer_printf(writer, error, "%s\n", plot->whole ? " | whole" : ""));
    for (int row = 0; row < picture->n_rows; row++) {
        TRY(file_writer_printf(writer, error, "\""));
        for (const char *next = row_name(picture, row); *next; next++)
            TRY(file_writer_printf(writer, error, "%c", *next == '"' || *next == '\n' ? ' ' : *next));
        TRY(file_writer_printf(writer, error, "\""));
        for (int i = 0; i < plot->n_series; i++) {
            const PlotSeries *series = &plot->series[i];
            bool is_there = row < series->n && isfinite(series->y[row]);
            TRY(file_writer_printf(writer, error, " %s",
                                   is_there ? format_double(series->y[row]).text : "?"));
        }
        if (plot->whole) TRY(file_writer_printf(writer, error, " %s", format_double(plot->whole[row]).text));
        TRY(file_writer_printf(writer, error, "\n"));
    }
    return STATUS_OK;
}

/* Curves: a block a series, two empty lines between them. One empty line breaks a curve. */
static Status write_curves(FileWriter *writer, const Plot *plot, Error *error) {
    for (int i = 0; i < plot->n_series; i++) {
        const PlotSeries *series = &plot->series[i];
        if (i) TRY(file_writer_printf(writer, error, "\n\n"));
        TRY(write_comment(writer, "series: ", series->name, error));
        bool is_broken = true;
        for (int row = 0; row < series->n; row++) {
            double x = series->x[row], y = series->y[row];
            bool is_there =
                isfinite(x) && isfinite(y) && !(plot->x_log && x <= 0) && !(plot->y_log && y <= 0);
            if (is_there)
                TRY(file_writer_printf(writer, error, "%s %s\n", format_double(x).text,
                                       format_double(y).text));
            else if (!is_broken) TRY(file_writer_printf(writer, error, "\n"));
            is_broken = !is_there;
        }
        /* Without a line, later blocks would move up. */
        if (series->n == 0) TRY(file_writer_printf(writer, error, "NaN NaN\n"));
    }
    return STATUS_OK;
}

static Status write_data(FileWriter *writer, Picture *picture, Error *error) {
    const Plot *plot = picture->plot;
    TRY(write_comment(writer, "", plot->title, error));
    TRY(write_comment(writer, "made by: ", plot->caption ? plot->caption : "", error));
    if (plot->note && *plot->note) TRY(write_comment(writer, "note: ", plot->note, error));
    TRY(write_comment(writer, "x: ", plot->x_label, error));
    TRY(write_comment(writer, "y: ", plot->y_label, error));
    if (plot->is_stacked) TRY(write_comment(writer, "stacked: ", "parts, and the whole they make", error));
    TRY(picture->has_bars ? write_rows(writer, picture, error) : write_curves(writer, plot, error));
    if (!plot->below) return STATUS_OK;
    TRY(file_writer_printf(writer, error, "\n\n"));
    TRY(write_comment(writer, "below, x: ", plot->below->x_label, error));
    TRY(write_comment(writer, "below, y: ", plot->below->y_label, error));
    return write_curves(writer, plot->below, error);
}

/* ---- Drawing */

static Status check_name(const char *name, Error *error) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t n = strlen(name);
    if (n == 0 || n > 200 || strspn(name, allowed) != n)
        return error_failed(error, "'%s' cannot be the name of a picture", name);
    return STATUS_OK;
}

static const char *path_of(Picture *picture, const char *ending) {
    return arena_printf(&picture->arena, "%s/%s%s", picture->folder, picture->name, ending);
}

static bool has_bytes(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0;
}

/* Both or none. */
static Status draw(Picture *picture, bool *drawn, Error *error) {
    Arena *arena = &picture->arena;
    const char *final[2] = {path_of(picture, ".svg"), path_of(picture, ".png")};
    const char *made[2] = {path_of(picture, arena_printf(arena, ".svg.tmp.%d", (int)getpid())),
                           path_of(picture, arena_printf(arena, ".png.tmp.%d", (int)getpid()))};
    const char *names = arena_printf(arena, "svg_file = '%s'; png_file = '%s'", strrchr(made[0], '/') + 1,
                                     strrchr(made[1], '/') + 1);
    const char *words[] = {"gnuplot", "-e", names, arena_printf(arena, "%s.gp", picture->name), NULL};
    ChildResult result = {0};
    *drawn = false;
    if (plot_has_gnuplot()) {
        ChildSetup setup = {.words = words, .folder = picture->folder, .timeout_s = DRAW_SECONDS};
        Error trouble = {0}; /* a picture that cannot be drawn is no reason to lose the study */
        *drawn = child_run(&setup, &result, &trouble) == STATUS_OK && result.exit_code == 0 &&
                 has_bytes(made[0]) && has_bytes(made[1]);
        child_free(&result);
    }
    for (int i = 0; i < 2; i++) {
        if (*drawn && rename(made[i], final[i]) != 0)
            error_failed(error, "cannot rename %s: %s", made[i], strerror(errno));
        if (!*drawn || error->status != STATUS_OK) unlink(made[i]);
        if (!*drawn) unlink(final[i]);
    }
    return error->status;
}

bool plot_has_gnuplot(void) {
    return child_exists("gnuplot");
}

static Status write_file(Picture *picture, const char *ending,
                         Status (*write)(FileWriter *writer, Picture *picture, Error *error), Error *error) {
    FileWriter writer;
    TRY(file_writer_open(&writer, path_of(picture, ending), error));
    if (write(&writer, picture, error) == STATUS_OK) file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return error->status;
}

Status plot_write(const Plot *plot, const char *folder, const char *name, bool *drawn, Error *error) {
    Picture picture = {.plot = plot, .folder = folder, .name = name};
    *drawn = false;
    TRY(check_name(name, error));
    TRY(file_make_folders(picture.folder, error));
    for (int i = 0; i < plot->n_series; i++) {
        if (plot->series[i].style == PLOT_BARS) picture.has_bars = true;
        if (plot->series[i].style == PLOT_POINTS && plot->x_names) picture.has_bars = true;
        if (plot->series[i].n > picture.n_rows) picture.n_rows = plot->series[i].n;
    }
    if (write_file(&picture, ".dat", write_data, error) == STATUS_OK &&
        write_file(&picture, ".gp", plot_script_write, error) == STATUS_OK)
        draw(&picture, drawn, error);
    arena_free(&picture.arena);
    return error->status;
}
