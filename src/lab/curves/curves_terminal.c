/* Curves in characters. Where the terminal shows UTF-8, and colours or there is one run only, each character
 * is a grid of two by four dots (Braille's patterns), which gives a curve eight times the places. Otherwise
 * every run has a digit for its curve, and a letter for its validation.
 *
 * All panels have the same range of x, and stand below each other, so that what happened at the same time
 * stands in the same column. */
#include "lab/curves/curves.h"

#include "base/text/format.h"
#include "base/text/plain.h"
#include "base/text/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL_COLUMNS = 9, TALL_ROWS = 14, LOW_ROWS = 6, LEAST_COLUMNS = 30, MOST_COLUMNS = 160 };

static const int COLOURS[] = {36, 33, 32, 35, 31, 34};
enum { N_COLOURS = sizeof COLOURS / sizeof COLOURS[0] };

typedef struct {
    bool has_dots, has_colour;
    int columns, rows;   /* of the drawing, in characters */
    int wide, high;      /* places in each: 2 x 4 dots, or 1 */
    unsigned char *dots; /* (rows,columns) which of the eight are set */
    char *mark;          /* (rows,columns) or a mark in their place; 0: none */
    int *owner;          /* (rows,columns) the run that drew there last */
    double x[2], y[2];   /* ranges, after the logarithm */
    const CurveView *view;
    FILE *stream;
} Canvas;

static double axis(double value, bool is_log) {
    return is_log ? log10(value) : value;
}

static void widen(double *range, double value) {
    if (value < range[0]) range[0] = value;
    if (value > range[1]) range[1] = value;
}

/* A range without an extent gets one around it. */
static void settle(double *range) {
    if (range[1] > range[0]) return;
    double margin = range[0] != 0 ? 0.05 * fabs(range[0]) : 1;
    range[0] -= margin;
    range[1] += margin;
}

/* ---- Points */

static void set_place(Canvas *canvas, int column, int row, int run, char mark) {
    static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int cell = row / canvas->high * canvas->columns + column / canvas->wide;
    if (canvas->has_dots && !mark) canvas->dots[cell] |= bits[row % canvas->high][column % canvas->wide];
    if (mark) canvas->mark[cell] = mark;
    canvas->owner[cell] = run;
}

static int place_of(double value, const double *range, int n_places) {
    int place = (int)lround((value - range[0]) / (range[1] - range[0]) * (n_places - 1));
    return place < 0 ? 0 : place >= n_places ? n_places - 1 : place;
}

/* A run's own character; dots have none but for validation. */
static char mark_of(const Canvas *canvas, int run, bool is_validation) {
    static const char curves[] = "123456789abcdefghijklmnopq", validations[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if (canvas->has_dots) return is_validation ? 'o' : '\0';
    return is_validation ? validations[run % 26] : curves[run % 26];
}

/* Points are joined by a straight line, place by place; those of validation are marks by themselves. */
static void draw_line(Canvas *canvas, const CurveLine *line, int run) {
    int n_columns = canvas->columns * canvas->wide, n_rows = canvas->rows * canvas->high, x0 = 0, y0 = 0;
    bool is_validation = line->curve == CURVE_VALIDATION;
    char mark = mark_of(canvas, run, is_validation);
    for (int64_t i = 0; i < line->n; i++) {
        int x = place_of(axis(line->x[i], canvas->view->log_x), canvas->x, n_columns);
        int y = n_rows - 1 - place_of(axis(line->y[i], canvas->view->log_y), canvas->y, n_rows);
        int n_between = i && !is_validation ? (abs(x - x0) > abs(y - y0) ? abs(x - x0) : abs(y - y0)) : 0;
        for (int k = 1; k < n_between; k++)
            set_place(canvas, x0 + (x - x0) * k / n_between, y0 + (y - y0) * k / n_between, run, mark);
        set_place(canvas, x, y, run, mark);
        x0 = x;
        y0 = y;
    }
}

/* ---- Printing */

static void print_cell(const Canvas *canvas, int cell) {
    int run = canvas->owner[cell];
    bool is_empty = !canvas->mark[cell] && !canvas->dots[cell];
    if (is_empty) {
        fputc(' ', canvas->stream);
        return;
    }
    if (canvas->has_colour) fprintf(canvas->stream, "\033[%dm", COLOURS[run % N_COLOURS]);
    if (canvas->mark[cell]) fputc(canvas->mark[cell], canvas->stream);
    else /* U+2800 and the dots, in UTF-8 */
        fprintf(canvas->stream, "\xe2%c%c", 0xa0 + (canvas->dots[cell] >> 6),
                0x80 + (canvas->dots[cell] & 63));
    if (canvas->has_colour) fprintf(canvas->stream, "\033[0m");
}

static double axis_value(const double *range, double part, bool is_log) {
    double value = range[0] + part * (range[1] - range[0]);
    return is_log ? pow(10, value) : value;
}

static void print_rows(const Canvas *canvas) {
    for (int row = 0; row < canvas->rows; row++) {
        bool has_label = row == 0 || row == canvas->rows - 1 || row == (canvas->rows - 1) / 2;
        double part = 1.0 - (double)row / (canvas->rows - 1);
        if (has_label)
            fprintf(canvas->stream, "%*.*g |", LABEL_COLUMNS, fabs(canvas->y[1]) >= 1e4 ? 6 : 4,
                    axis_value(canvas->y, part, canvas->view->log_y));
        else fprintf(canvas->stream, "%*s |", LABEL_COLUMNS, "");
        int end = canvas->columns; /* no blanks at the end of a line */
        while (end > 0 && !canvas->mark[row * canvas->columns + end - 1] &&
               !canvas->dots[row * canvas->columns + end - 1])
            end--;
        for (int column = 0; column < end; column++) print_cell(canvas, row * canvas->columns + column);
        fputc('\n', canvas->stream);
    }
}

/* Below the last panel: the ends and the middle of the axis, and what it is. */
static void print_x_axis(const Canvas *canvas) {
    char left[32], middle[32], right[32];
    const CurveView *view = canvas->view;
    fprintf(canvas->stream, "%*s +", LABEL_COLUMNS, "");
    for (int i = 0; i < canvas->columns; i++) fputc('-', canvas->stream);
    snprintf(left, sizeof left, "%.5g", axis_value(canvas->x, 0, view->log_x));
    snprintf(middle, sizeof middle, "%.5g", axis_value(canvas->x, 0.5, view->log_x));
    snprintf(right, sizeof right, "%.5g", axis_value(canvas->x, 1, view->log_x));
    int n_first = canvas->columns / 2 - (int)strlen(middle) / 2;
    int n_second = canvas->columns - n_first - (int)strlen(middle);
    fprintf(canvas->stream, "\n%*s%-*s%s%*s\n", LABEL_COLUMNS + 2, "", n_first, left, middle, n_second,
            right);
    const char *label = curve_x_labels[view->x];
    int n_before = LABEL_COLUMNS + 2 + (canvas->columns - (int)strlen(label)) / 2;
    fprintf(canvas->stream, "%*s%s%s\n", n_before, "", label, view->log_x ? ", logarithmic" : "");
}

/* Which run is which. */
static void print_legend(const CurveRun *runs, int n_runs, const Canvas *canvas) {
    for (int i = 0; i < n_runs; i++) {
        bool validates = canvas->view->panels[PANEL_LOSS] && curve_has(&runs[i], CURVE_VALIDATION);
        if (canvas->has_colour) fprintf(canvas->stream, "\033[%dm", COLOURS[i % N_COLOURS]);
        if (canvas->has_dots)
            fprintf(canvas->stream, "\xe2\xa0\xa4\xe2\xa0\xa4 %s%s", plain(runs[i].name).text,
                    validates ? " (o validation)" : "");
        else fprintf(canvas->stream, "%c %s", mark_of(canvas, i, false), plain(runs[i].name).text);
        if (!canvas->has_dots && validates)
            fprintf(canvas->stream, " (%c validation)", mark_of(canvas, i, true));
        if (canvas->has_colour) fprintf(canvas->stream, "\033[0m");
        fputc('\n', canvas->stream);
    }
}

/* ---- A panel */

static void measure_lines(Canvas *canvas, const CurveLine *lines, int n_lines, double *range, bool is_x) {
    range[0] = INFINITY;
    range[1] = -INFINITY;
    for (int k = 0; k < n_lines; k++)
        for (int64_t i = 0; i < lines[k].n; i++)
            widen(range,
                  is_x ? axis(lines[k].x[i], canvas->view->log_x) : axis(lines[k].y[i], canvas->view->log_y));
    if (range[0] <= range[1]) settle(range);
}

static int panel_lines(const CurveRun *runs, int n_runs, Panel panel, const CurveView *view, CurveLine *lines,
                       Arena *arena) {
    Curve curves[2];
    int n_curves = panel_curves(panel, curves), n = 0;
    for (int k = 0; k < n_curves; k++)
        for (int i = 0; i < n_runs; i++) lines[n++] = curve_line(&runs[i], curves[k], view, arena);
    return n;
}

static void draw_panel(Canvas *canvas, const CurveRun *runs, int n_runs, Panel panel) {
    Arena arena = {0};
    CurveLine *lines = ARENA_ARRAY(&arena, CurveLine, 2 * n_runs);
    int n_lines = panel_lines(runs, n_runs, panel, canvas->view, lines, &arena);
    measure_lines(canvas, lines, n_lines, canvas->y, false);
    if (canvas->y[0] <= canvas->y[1]) {
        size_t n_cells = (size_t)canvas->rows * (size_t)canvas->columns;
        canvas->dots = ARENA_ARRAY(&arena, unsigned char, n_cells);
        canvas->mark = ARENA_ARRAY(&arena, char, n_cells);
        canvas->owner = ARENA_ARRAY(&arena, int, n_cells);
        memset(canvas->dots, 0, n_cells);
        memset(canvas->mark, 0, n_cells);
        memset(canvas->owner, 0, n_cells * sizeof *canvas->owner);
        for (int k = 0; k < n_lines; k++) draw_line(canvas, &lines[k], k % n_runs);
        bool is_smooth = canvas->view->smooth > 1 && panel != PANEL_RATE;
        fprintf(canvas->stream, "%s%s", panel_labels[panel], canvas->view->log_y ? ", logarithmic" : "");
        if (is_smooth) fprintf(canvas->stream, ", mean over %lld steps", (long long)canvas->view->smooth);
        fputc('\n', canvas->stream);
        print_rows(canvas);
    }
    arena_free(&arena);
}

void curves_draw_terminal(const CurveRun *runs, int n_runs, const CurveView *view, FILE *stream) {
    Terminal terminal = terminal_of(stream);
    int columns = terminal_columns(stream) - LABEL_COLUMNS - 3;
    Canvas canvas = {.view = view, .stream = stream, .has_colour = terminal.colour};
    canvas.has_dots = terminal.utf8 && (n_runs == 1 || terminal.colour);
    canvas.wide = canvas.has_dots ? 2 : 1;
    canvas.high = canvas.has_dots ? 4 : 1;
    canvas.columns = columns < LEAST_COLUMNS  ? LEAST_COLUMNS
                     : columns > MOST_COLUMNS ? MOST_COLUMNS
                                              : columns;
    Arena arena = {0};
    CurveLine *lines = ARENA_ARRAY(&arena, CurveLine, 2 * n_runs * N_PANELS);
    int n_lines = 0;
    for (int panel = 0; panel < N_PANELS; panel++)
        if (view->panels[panel])
            n_lines += panel_lines(runs, n_runs, (Panel)panel, view, lines + n_lines, &arena);
    measure_lines(&canvas, lines, n_lines, canvas.x, true);
    arena_free(&arena);
    print_legend(runs, n_runs, &canvas);
    for (int panel = 0; panel < N_PANELS; panel++) {
        if (!view->panels[panel] || !panel_has(runs, n_runs, (Panel)panel)) continue;
        canvas.rows = panel == PANEL_LOSS ? TALL_ROWS : LOW_ROWS;
        draw_panel(&canvas, runs, n_runs, (Panel)panel);
    }
    if (canvas.x[0] <= canvas.x[1]) print_x_axis(&canvas);
}
