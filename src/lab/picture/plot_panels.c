/* The gnuplot script of a picture with two panels, one below the other: the same words and axes as every
 * other picture has (plot_script.c), in places that are given here. The legend stands once, on the right; the
 * panel below has the colours of the one above.
 *
 * gnuplot's multiplot cannot be drawn again by `replot`, so the commands stand twice, once for each
 * format. */
#include "lab/picture/plot_script.h"

#include <string.h>

enum { WIDTH = 860, HEIGHT = 760, LEGEND_COLUMNS = 9 };

/* Where the panels end on the right: room for the legend's longest name. */
static double right_end(const Plot *plot) {
    size_t longest = LEGEND_COLUMNS;
    for (int i = 0; i < plot->n_series; i++) {
        size_t n = 0;
        for (const char *c = plot->series[i].name; *c; c++) n += ((unsigned char)*c & 0xC0) != 0x80;
        if (n > longest) longest = n;
    }
    return 1.0 - (55.0 + 8.8 * (double)longest) / WIDTH;
}

/* How far the lower panel reaches down: axis and label, and the lines below everything. */
static double lower_end(const Plot *plot) {
    enum { NOTE_COLUMNS = 108, CAPTION_COLUMNS = 118 };
    size_t n_lines = 0;
    if (plot->note) n_lines += (strlen(plot->note) + NOTE_COLUMNS - 1) / NOTE_COLUMNS;
    if (plot->caption) n_lines += (strlen(plot->caption) + CAPTION_COLUMNS - 1) / CAPTION_COLUMNS;
    double end = 0.105 + 0.033 * (double)n_lines;
    return end < 0.4 ? end : 0.4;
}

typedef struct {
    double right, top, bottom;
} Place;

/* The upper one shares the lower one's words on x. */
static Status write_panel(FileWriter *writer, Picture *picture, Place place, bool has_x_label, Error *error) {
    TRY(file_writer_printf(writer, error,
                           "set lmargin screen 0.145\nset rmargin screen %.3f\n" /* room for 10000000 */
                           "set tmargin screen %.3f\nset bmargin screen %.3f\n",
                           place.right, place.top, place.bottom));
    TRY(plot_script_axes(writer, picture, error));
    if (!has_x_label) TRY(file_writer_printf(writer, error, "set xlabel ''\n"));
    return plot_script_curves(writer, picture, error);
}

/* With picture->plot that of each panel in turn. */
static Status write_both(FileWriter *writer, Picture *picture, Error *error) {
    const double top = 0.90, gap = 0.06;
    const Plot *plot = picture->plot;
    const char *forget = "unset logscale\nset autoscale xy\nset format '%h'\nset xtics autofreq\n"
                         "set ytics autofreq\nset offsets 0, 0, 0, 0\n";
    double right = right_end(plot), bottom = lower_end(plot), middle = 0.5 * (top + bottom);
    TRY(file_writer_printf(writer, error, "set multiplot\n"));
    TRY(plot_script_words(writer, picture, error));
    TRY(file_writer_printf(writer, error,
                           "set key at screen %.3f, %.3f left top vertical Left reverse samplen 2\n",
                           right + 0.01, top));
    TRY(write_panel(writer, picture, (Place){right, top, middle + gap / 2}, false, error));
    picture->plot = plot->below;
    picture->first_series = plot->n_series;
    TRY(file_writer_printf(writer, error, "unset label\nset key off\n%s", forget));
    TRY(write_panel(writer, picture, (Place){right, middle - gap / 2, bottom}, true, error));
    return file_writer_printf(writer, error, "unset multiplot\n%s", forget);
}

static Status write_panels(FileWriter *writer, Picture *picture, Error *error) {
    const Plot *plot = picture->plot;
    write_both(writer, picture, error);
    picture->plot = plot;
    picture->first_series = 0;
    return error->status;
}

Status plot_panels_write(FileWriter *writer, Picture *picture, Error *error) {
    TRY(plot_script_begin(writer, picture->name, WIDTH, HEIGHT, error));
    TRY(write_panels(writer, picture, error));
    TRY(plot_script_begin_png(writer, WIDTH, HEIGHT, error));
    TRY(write_panels(writer, picture, error));
    return file_writer_printf(writer, error, "unset output\n");
}
