/* The gnuplot script of a picture. It decides how pictures look, so all of them look alike: white ground,
 * colours that people who see few of them can tell apart, a legend where no curve is, marks on the axis where
 * the measurements are, three of them at least where a logarithmic axis lets choose, and axes that begin at
 * zero where that does not hide what there is to see.
 *
 * Title, legend, plot, note and caption have their places on the picture as a whole, counted in lines from
 * its edges: what gnuplot would put relative to each other leaves the picture when there is one line more.
 *
 * Words of the user (the caption is a command line) reach gnuplot as texts in single quotes, in which it
 * looks for nothing: in double quotes it would run what stands between backquotes. */
#include "lab/picture/plot_script.h"

#include "base/text/format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 860, /* of the picture */
    HEIGHT = 520,
    LETTER = 8, /* pixels of a letter on an axis, at most */
    CAPTION_COLUMNS = 118,
    NOTE_COLUMNS = 108,
    TITLE_COLUMNS = 84,
    MAX_TICS = 12,
    FEW_POINTS = 40,
    MAX_ABOVE = 4,
    ROW_COLUMNS = 96
};

/* After Okabe and Ito. */
static const char *const COLOURS[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#e69f00", "#56b4e9", "#000000", "#8c8c8c"};
enum { N_COLOURS = sizeof COLOURS / sizeof COLOURS[0] };

/* ---- Words */

/* The text between single quotes; one that is in it is put there by itself, between double ones:
 * 'it'."'".'s'. (Two in a row would stand for one too, but gnuplot loses count of four.) */
static const char *quote(Picture *picture, const char *text, size_t n) {
    static const char inner[] = "'.\"'\".'";
    char *result = ARENA_ARRAY(&picture->arena, char, sizeof inner *n + 3), *next = result;
    *next++ = '\'';
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\'') next = stpcpy(next, inner);
        else *next++ = (unsigned char)text[i] < ' ' ? ' ' : text[i];
    }
    *next = '\'';
    return result;
}

static const char *quote_all(Picture *picture, const char *text) {
    return quote(picture, text, strlen(text));
}

/* Bytes of the next line of a text of so many columns, broken at a blank where there is one. */
static size_t line_bytes(const char *text, size_t columns) {
    size_t n_columns = 0, blank = 0, n = 0;
    for (; text[n]; n++) {
        if (((unsigned char)text[n] & 0xC0) != 0x80 && n_columns++ == columns) return blank ? blank : n;
        if (text[n] == ' ') blank = n;
    }
    return n;
}

/* Few short names stand in a row above the plot, others beside it. */
typedef enum { NO_LEGEND, LEGEND_ABOVE, LEGEND_BESIDE } Legend;

static Legend legend_of(const Plot *plot) {
    size_t n_named = 0, n_columns = 0;
    for (int i = 0; i < plot->n_series; i++) {
        n_named += plot->series[i].name[0] != '\0';
        n_columns += strlen(plot->series[i].name) + 6;
    }
    if (n_named == 0) return NO_LEGEND;
    return n_named <= MAX_ABOVE && n_columns <= ROW_COLUMNS ? LEGEND_ABOVE : LEGEND_BESIDE;
}

/* Pixels between the left and the right end of the plot, about. */
static double plot_width(const Plot *plot) {
    enum { LEFT = 95, RIGHT = 20, SAMPLE = 60 };
    size_t n_columns = 0;
    for (int i = 0; i < plot->n_series; i++)
        if (strlen(plot->series[i].name) > n_columns) n_columns = strlen(plot->series[i].name);
    return WIDTH - LEFT - RIGHT -
           (legend_of(plot) == LEGEND_BESIDE ? SAMPLE + LETTER * (double)n_columns : 0.0);
}

/* By how many degrees the names of bars are turned: not at all if each has room beside its neighbour. */
static int names_angle(const Picture *picture) {
    enum { A_LITTLE = 20, UPRIGHT = 90, LINE = 45 }; /* lines that are turned a little need so much */
    const char *const *names = picture->plot->x_names;
    double slot = plot_width(picture->plot) / (picture->n_rows + 1);
    for (int row = 0; names && row + 1 < picture->n_rows; row++) {
        double n_columns = 0.5 * (double)(strlen(names[row]) + strlen(names[row + 1])) + 1.0;
        if (LETTER * n_columns > slot) return slot < LINE ? UPRIGHT : A_LITTLE;
    }
    return 0;
}

/* What turned names need below the plot, as a part of the picture. */
static double names_height(const Picture *picture) {
    const double degree = 0.017453292519943295;
    size_t longest = 0;
    for (int row = 0; picture->plot->x_names && row < picture->n_rows; row++)
        if (strlen(picture->plot->x_names[row]) > longest) longest = strlen(picture->plot->x_names[row]);
    return LETTER * (double)longest * sin(degree * names_angle(picture)) / HEIGHT;
}

/* From the top: the title, a row for the legend if it is there, the plot. */
static Status write_top(FileWriter *writer, Picture *picture, Error *error) {
    enum { FIRST_LABEL = 101 };
    const char *text = picture->plot->title;
    Legend legend = legend_of(picture->plot);
    int n_lines = 0;
    for (; *text; n_lines++) {
        size_t n = line_bytes(text, TITLE_COLUMNS);
        TRY(file_writer_printf(writer, error, "set label %d %s at screen 0.5, %.3f center font ',16'\n",
                               FIRST_LABEL + n_lines, quote(picture, text, n), 0.955 - 0.045 * n_lines));
        text += n + strspn(text + n, " ");
    }
    double top = 0.95 - 0.045 * n_lines;
    if (legend == LEGEND_ABOVE)
        TRY(file_writer_printf(
            writer, error, "set key at screen 0.5, %.3f center center horizontal samplen 2\n", top - 0.02));
    else
        TRY(file_writer_printf(writer, error, "set key %s\n",
                               legend == NO_LEGEND ? "off"
                                                   : "outside right top vertical Left reverse samplen 2"));
    return file_writer_printf(writer, error, "set tmargin screen %.3f\n",
                              legend == LEGEND_ABOVE ? top - 0.06 : top);
}

typedef struct {
    const char *text, *font; /* quoted; size and colour */
} GreyLine;

/* The lines of a text, as many as there is room for. */
static void add_lines(Picture *picture, const char *text, size_t columns, const char *font, GreyLine *lines,
                      int *n_lines, int most) {
    for (text = text ? text : ""; *text && *n_lines < most; (*n_lines)++) {
        size_t n = line_bytes(text, columns);
        lines[*n_lines] = (GreyLine){quote(picture, text, n), font};
        text += n + strspn(text + n, " ");
    }
}

/* Below everything, in grey: what is to be known about the picture, and what made it. */
static Status write_caption(FileWriter *writer, Picture *picture, Error *error) {
    enum { NOTE_LINES = 3, MAX_LINES = 8 };
    GreyLine lines[MAX_LINES];
    int n_lines = 0;
    add_lines(picture, picture->plot->note, NOTE_COLUMNS, "',12' textcolor rgb '#333333'", lines, &n_lines,
              NOTE_LINES);
    add_lines(picture, picture->plot->caption, CAPTION_COLUMNS, "',11' textcolor rgb '#555555'", lines,
              &n_lines, MAX_LINES);
    double bottom = 0.14 + 0.033 * n_lines + names_height(picture);
    TRY(file_writer_printf(writer, error, "set bmargin screen %.3f\n", bottom < 0.6 ? bottom : 0.6));
    for (int i = 0; i < n_lines; i++)
        TRY(file_writer_printf(writer, error, "set label %d %s at screen 0.5, %.3f center font %s\n", i + 1,
                               lines[i].text, 0.025 + 0.033 * (n_lines - 1 - i), lines[i].font));
    if (!names_angle(picture)) return STATUS_OK;
    /* gnuplot would put it below names that it takes to be longer than they are, and into these lines. */
    return file_writer_printf(writer, error, "set label %d %s at graph 0.5, screen %.3f center\n",
                              MAX_LINES + 1, quote_all(picture, picture->plot->x_label),
                              0.055 + 0.033 * n_lines);
}

/* ---- Axes */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The different x of all series, in order; -1 if there are more than MAX_TICS or they are not whole. */
static int few_values(const Plot *plot, double *values) {
    int n = 0;
    for (int i = 0; i < plot->n_series; i++) {
        for (int row = 0; row < plot->series[i].n; row++) {
            double x = plot->series[i].x[row];
            int known = 0;
            while (known < n && values[known] != x) known++;
            if (!isfinite(x) || known < n) continue;
            if (n == MAX_TICS || x != floor(x) || x < 0) return -1;
            values[n++] = x;
        }
    }
    qsort(values, (size_t)n, sizeof *values, compare);
    return n;
}

/* 4 KiB, not 4.00 KiB, if it is. */
static FormatText whole_bytes(double n_bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    double count = n_bytes;
    int unit = 0;
    for (; unit < 3 && count >= 1024; unit++) count /= 1024;
    if (count != floor(count) || count >= 1024) return format_bytes((uint64_t)n_bytes);
    FormatText text;
    snprintf(text.text, sizeof text.text, "%.0f %s", count, units[unit]);
    return text;
}

/* 2 ms, 1.5 s. */
static FormatText whole_seconds(double seconds) {
    static const char *const units[] = {"s", "ms", "µs", "ns"};
    int unit = 0;
    for (; unit < 3 && seconds < 0.9999; unit++) seconds *= 1e3;
    FormatText text;
    snprintf(text.text, sizeof text.text, "%.6g %s", seconds, units[unit]);
    return text;
}

static Status write_marks(FileWriter *writer, Picture *picture, const char *axis, const double *values, int n,
                          Error *error) {
    const char *label = *axis == 'x' ? picture->plot->x_label : picture->plot->y_label;
    bool is_bytes = strstr(label, "(bytes)") != NULL, is_seconds = strstr(label, "(s)") != NULL;
    for (int i = 0; i < n; i++) {
        FormatText text = is_bytes     ? whole_bytes(values[i])
                          : is_seconds ? whole_seconds(values[i])
                                       : format_double(values[i]);
        TRY(file_writer_printf(writer, error, "%s%s %s",
                               i ? ", " : arena_printf(&picture->arena, "set %stics (", axis),
                               quote_all(picture, text.text), format_double(values[i]).text));
    }
    return file_writer_printf(writer, error, ")\n");
}

/* Marks for a logarithmic axis: powers of ten, or 1, 2 and 5 of each, or more, until there are three. Returns
 * their number; 0: the range is so short that the axis can as well be linear. */
static int log_marks(double least, double most, double *marks) {
    enum { ENOUGH = 3 };
    static const double steps[][8] = {{1}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 7}};
    for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
        int n = 0;
        for (int decade = (int)floor(log10(least)); decade <= (int)floor(log10(most)); decade++) {
            for (const double *step = steps[k]; *step > 0 && n < MAX_TICS; step++) {
                /* Divided, so that 0.2 is 0.2 and not 0.1 x 2. */
                double mark = decade < 0 ? *step / pow(10, -decade) : *step * pow(10, decade);
                if (mark >= least && mark <= most) marks[n++] = mark;
            }
        }
        if (n >= ENOUGH) return n;
    }
    return 0;
}

/* One measurement, or two, are few marks: one between them, or on both sides, shows how the axis goes. Whole
 * numbers only. */
static int add_marks(double *values, int n) {
    double first = values[0];
    if (n == 1) {
        bool has_half = fmod(first, 2) == 0 && first > 0;
        if (has_half) values[0] = first / 2;
        values[has_half ? 1 : 0] = first;
        values[has_half ? 2 : 1] = 2 * first;
        return has_half ? 3 : 2;
    }
    double middle = first * pow(2, floor(0.5 * log2(values[1] / first) + 0.5));
    if (!(middle > first && middle < values[1])) return n;
    values[2] = values[1];
    values[1] = middle;
    return 3;
}

/* A mark for every measurement, if there are few; numbers of bytes as people say them. */
static Status write_tics(FileWriter *writer, Picture *picture, Error *error) {
    const Plot *plot = picture->plot;
    double values[MAX_TICS];
    int n = few_values(plot, values);
    if (n < 1) return STATUS_OK;
    if (!plot->x_log && (n < 3 || values[n - 1] > 4 * n)) return STATUS_OK; /* they would overlap */
    if (n < 3 && values[0] > 0) n = add_marks(values, n);
    return write_marks(writer, picture, "x", values, n, error);
}

/* Stacked bars are as high as their sum. */
static void y_range(const Picture *picture, double *least, double *most) {
    const Plot *plot = picture->plot;
    *least = INFINITY;
    *most = -INFINITY;
    for (int row = 0; row < picture->n_rows; row++) {
        double sum = 0;
        for (int i = 0; i < plot->n_series; i++) {
            const PlotSeries *series = &plot->series[i];
            if (row >= series->n || !isfinite(series->y[row])) continue;
            sum = (plot->is_stacked && series->style == PLOT_BARS ? sum : 0) + series->y[row];
            if (series->y[row] < *least) *least = series->y[row];
            if (sum > *most) *most = sum;
        }
    }
}

/* A little wider than the data, so that no mark lies on the axis. */
static Status write_log_range(FileWriter *writer, const Plot *plot, Error *error) {
    double least = INFINITY, most = 0;
    for (int i = 0; i < plot->n_series; i++) {
        for (int row = 0; row < plot->series[i].n; row++) {
            double x = plot->series[i].x[row];
            if (!isfinite(x) || x <= 0) continue;
            if (x < least) least = x;
            if (x > most) most = x;
        }
    }
    TRY(file_writer_printf(writer, error, "set logscale x\n"));
    if (!(most >= least)) return STATUS_OK;
    double margin = most > least ? pow(most / least, 0.03) : 2.2; /* with a mark on both sides */
    return file_writer_printf(writer, error, "set xrange [%.17g:%.17g]\n", least / margin, most * margin);
}

/* Over many decades gnuplot names every fifth, say, and puts its small marks between that and the next one,
 * where they mean nothing. Here every decade has one. */
static Status write_decades(FileWriter *writer, double least, double most, Error *error) {
    enum { MANY = 10, NAMED = 7 };
    if (!(least > 0) || !(most < INFINITY)) return STATUS_OK;
    int first = (int)floor(log10(least)), last = (int)ceil(log10(most));
    if (last - first < MANY) return STATUS_OK;
    int every = (last - first + NAMED - 1) / NAMED;
    for (int decade = first; decade <= last; decade++) {
        const char *before = decade == first ? "set ytics (" : ", ";
        if (decade % every) TRY(file_writer_printf(writer, error, "%s'' 1e%d 1", before, decade));
        else TRY(file_writer_printf(writer, error, "%s'%g' 1e%d 0", before, pow(10, decade), decade));
    }
    return file_writer_printf(writer, error, ")\n");
}

/* Where powers of ten would be fewer than three marks. For curves the axis is then as high as they are, since
 * whole decades would leave much of the picture empty; bars stand on something. *is_log is false if it is
 * better not to be. */
static Status write_log_y(FileWriter *writer, Picture *picture, double least, double most, bool *is_log,
                          Error *error) {
    bool is_short = least > 0 && most < 100 * least;
    double marks[MAX_TICS], from = least, to = most;
    *is_log = true;
    bool is_whole = least >= 1 && most < 1e8; /* 1000000, not 1e+06 beside 100000 */
    const char *format = strstr(picture->plot->y_label, "(s)") && most < 1000 ? "%.0s %cs"
                         : is_whole                                           ? "%.0f"
                                                                              : "%g";
    if (picture->has_bars && least > 0) {
        from = 0.99 * pow(10, floor(log10(least) - 0.1)); /* gnuplot may lose a mark on the very edge */
        to = pow(10, log10(most) + 0.2);
    } else if (is_short) {
        double margin = pow(most / least, 0.04);
        from = least / margin;
        to = most * margin;
    }
    int n_marks = is_short ? log_marks(from, to, marks) : 0;
    *is_log = n_marks > 0 || !is_short;
    if (!*is_log) return STATUS_OK;
    TRY(file_writer_printf(writer, error, "set logscale y\nset format y '%s'\n", format));
    if (is_short || (picture->has_bars && least > 0))
        TRY(file_writer_printf(writer, error, "set yrange [%.17g:%.17g]\n", from, to));
    return n_marks ? write_marks(writer, picture, "y", marks, n_marks, error)
                   : write_decades(writer, least, most, error);
}

static Status write_axes(FileWriter *writer, Picture *picture, Error *error) {
    const Plot *plot = picture->plot;
    double least, most;
    bool is_log = false;
    y_range(picture, &least, &most);
    TRY(file_writer_printf(writer, error, "set xlabel %s\n",
                           quote_all(picture, names_angle(picture) ? "" : plot->x_label)));
    TRY(file_writer_printf(writer, error, "set ylabel %s\n", quote_all(picture, plot->y_label)));
    if (plot->x_log && !picture->has_bars) TRY(write_log_range(writer, plot, error));
    if (!picture->has_bars) TRY(write_tics(writer, picture, error));
    if (plot->y_log && !(picture->has_bars && plot->is_stacked))
        TRY(write_log_y(writer, picture, least, most, &is_log, error));
    if (is_log && !strstr(plot->y_label, "log"))
        return file_writer_printf(
            writer, error, "set ylabel %s\n",
            quote_all(picture, arena_printf(&picture->arena, "%s, log axis", plot->y_label)));
    if (is_log) return STATUS_OK;
    bool from_zero = picture->has_bars || (least >= 0 && least < 0.5 * most);
    if (from_zero && least >= 0 && most > 0)
        return file_writer_printf(writer, error, "set yrange [0:%s]\n", format_double(1.08 * most).text);
    return file_writer_printf(writer, error, "set offsets 0, 0, graph 0.05, graph 0.05\n");
}

/* ---- Curves */

/* A colour of its own, or for a dashed curve that of the curve whose name its own begins with. */
static int colour_of(const Plot *plot, int index) {
    int colours[64] = {0}, n_used = 0;
    for (int i = 0; i <= index && i < 64; i++) {
        int like = -1;
        for (int other = 0; other < i && plot->series[i].style == PLOT_DASHED; other++) {
            size_t n = strlen(plot->series[other].name);
            bool is_like = n && strncmp(plot->series[i].name, plot->series[other].name, n) == 0;
            if (is_like && (like < 0 || n > strlen(plot->series[like].name))) like = other;
        }
        colours[i] = like >= 0 ? colours[like] : n_used++;
    }
    return colours[index < 64 ? index : 0] % N_COLOURS;
}

static Status write_curve(FileWriter *writer, Picture *picture, int index, Error *error) {
    const PlotSeries *series = &picture->plot->series[index];
    int colour = colour_of(picture->plot, index), mark = 5 + 2 * (colour % 6); /* filled marks are odd */
    TRY(file_writer_printf(writer, error, "%s", index ? ", \\\n     " : "plot "));
    if (picture->has_bars)
        TRY(file_writer_printf(writer, error, "%s using %s%d%s",
                               quote_all(picture, arena_printf(&picture->arena, "%s.dat", picture->name)),
                               series->style == PLOT_BARS ? "" : "0:", index + 2,
                               series->style == PLOT_BARS || index == 0 ? ":xtic(1)" : ""));
    else
        TRY(file_writer_printf(writer, error, "%s index %d using 1:2",
                               quote_all(picture, arena_printf(&picture->arena, "%s.dat", picture->name)),
                               picture->first_series + index));
    const char *rgb = *series->name ? COLOURS[colour] : "#444444"; /* without a name it is like the axes */
    switch (series->style) {
    case PLOT_BARS: TRY(file_writer_printf(writer, error, " with histograms linecolor rgb '%s'", rgb)); break;
    case PLOT_POINTS:
        TRY(file_writer_printf(writer, error, " with points pointtype %d pointsize %s linecolor rgb '%s'",
                               mark, picture->has_bars ? "1.6" : "1", rgb));
        break;
    case PLOT_DASHED:
        TRY(file_writer_printf(writer, error, " with lines dashtype 2 linewidth 1.5 linecolor rgb '%s'",
                               rgb));
        break;
    case PLOT_LINES:
        if (series->n <= FEW_POINTS)
            TRY(file_writer_printf(
                writer, error, " with linespoints pointtype %d pointsize 0.8 linewidth 2 linecolor rgb '%s'",
                mark, rgb));
        else TRY(file_writer_printf(writer, error, " with lines linewidth 2 linecolor rgb '%s'", rgb));
    }
    return *series->name ? file_writer_printf(writer, error, " title %s", quote_all(picture, series->name))
                         : file_writer_printf(writer, error, " notitle");
}

/* Numbers beside points over names. */
static Status write_values(FileWriter *writer, Picture *picture, int index, Error *error) {
    if (!picture->plot->shows_values || !picture->has_bars ||
        picture->plot->series[index].style != PLOT_POINTS)
        return STATUS_OK;
    const char *file = quote_all(picture, arena_printf(&picture->arena, "%s.dat", picture->name));
    return file_writer_printf(writer, error,
                              ", \\\n     %s using 0:%d:(sprintf(column(%d) < 1000 ? '%%.3g' : '%%.0f', "
                              "column(%d))) with labels left offset character 1.2, 0 font ',12' notitle",
                              file, index + 2, index + 2, index + 2);
}

Status plot_script_words(FileWriter *writer, Picture *picture, Error *error) {
    TRY(write_top(writer, picture, error));
    return write_caption(writer, picture, error);
}

Status plot_script_axes(FileWriter *writer, Picture *picture, Error *error) {
    return write_axes(writer, picture, error);
}

Status plot_script_curves(FileWriter *writer, Picture *picture, Error *error) {
    for (int i = 0; i < picture->plot->n_series; i++) TRY(write_curve(writer, picture, i, error));
    return file_writer_printf(writer, error, "\n");
}

Status plot_script_begin(FileWriter *writer, const char *name, int width, int height, Error *error) {
    return file_writer_printf(
        writer, error,
        "# To draw %s.svg and %s.png from %s.dat: gnuplot %s.gp\n"
        "if (!exists('svg_file')) svg_file = '%s.svg'\n"
        "if (!exists('png_file')) png_file = '%s.png'\n"
        "set encoding utf8\n"
        "set terminal svg size %d,%d dynamic font 'sans-serif,14' background '#ffffff' noenhanced\n"
        "set output svg_file\n"
        "set datafile missing '?'\n"
        "set border 3 linecolor rgb '#444444'\n"
        "set tics nomirror\n"
        "set grid linecolor rgb '#dddddd' linetype 1 linewidth 1\n",
        name, name, name, name, name, name, width, height);
}

Status plot_script_begin_png(FileWriter *writer, int width, int height, Error *error) {
    return file_writer_printf(
        writer, error,
        "\nif (strstrt(GPVAL_TERMINALS, 'pngcairo')) {\n"
        "    set terminal pngcairo size %d,%d font 'sans,15' background '#ffffff' noenhanced\n"
        "} else {\n"
        "    set terminal png size %d,%d background '#ffffff' noenhanced\n"
        "}\n"
        "set output png_file\n",
        width * 3 / 2, height * 3 / 2, width * 3 / 2, height * 3 / 2);
}

Status plot_script_write(FileWriter *writer, Picture *picture, Error *error) {
    const Plot *plot = picture->plot;
    if (plot->below) return plot_panels_write(writer, picture, error);
    TRY(plot_script_begin(writer, picture->name, WIDTH, HEIGHT, error));
    if (picture->has_bars)
        TRY(file_writer_printf(
            writer, error,
            "set style histogram %s\nset style fill solid 0.9 border rgb '#ffffff'\nset boxwidth %s\n"
            "unset xtics\nset xtics nomirror rotate by %d%s\nset xrange [-0.8:%.1f]\n",
            plot->is_stacked ? "rowstacked" : "clustered gap 1",
            plot->is_stacked ? "0.6 relative" : "1 relative", names_angle(picture),
            names_angle(picture) ? " right" : "", picture->n_rows - 0.2));
    TRY(write_top(writer, picture, error));
    TRY(write_caption(writer, picture, error));
    TRY(write_axes(writer, picture, error));
    for (int i = 0; i < plot->n_series; i++) {
        TRY(write_curve(writer, picture, i, error));
        TRY(write_values(writer, picture, i, error));
    }
    TRY(file_writer_printf(writer, error, "\n"));
    TRY(plot_script_begin_png(writer, WIDTH, HEIGHT, error));
    return file_writer_printf(writer, error, "replot\nunset output\n");
}
