/* Everything is written twice, into memory. SVG takes elements as they come. gnuplot would take minutes for
 * thousands of objects, and draws data quickly; so for it rectangles, each kind of lines and each kind of
 * texts are collected, and become a block of data and a plot of its own. Grid lines lie behind everything in
 * an SVG, being drawn first, and are thin rectangles for gnuplot, which keeps the order within a block.
 *
 * Texts are anybody's (names in a trace): in the SVG the characters that mean something in XML are written as
 * entities; in gnuplot's data they stand between double quotes, where nothing but that quote and the
 * backslash has a meaning, and those are replaced. */
#define _GNU_SOURCE /* asprintf, open_memstream */
#include "lab/picture/canvas.h"

#include "base/file/file.h"
#include "lab/launch/launch_child.h"
#include "lab/picture/plot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DRAW_SECONDS = 120 };

static const struct {
    const char *css, *anchor, *colour;
    int size;         /* points */
    double letter;    /* width of one, as a part of the size */
    const char *font; /* for gnuplot */
} texts[N_CANVAS_TEXTS] = {
    [CANVAS_TITLE] = {"font-weight:bold", "middle", "#222222", 17, 0.58, "sans:Bold"},
    [CANVAS_KEY] = {"", "start", "#222222", 12, 0.6, "sans"},
    [CANVAS_NAME] = {"", "end", "#222222", 12, 0.6, "sans"},
    [CANVAS_SMALL_NAME] = {"", "end", "#666666", 10, 0.6, "sans"},
    [CANVAS_MARK] = {"", "start", "#555555", 10, 0.6, "sans"},
    [CANVAS_TICK] = {"", "middle", "#222222", 11, 0.55, "sans"},
    [CANVAS_LABEL] = {"", "middle", "#222222", 10, 0.66, "sans"},
    [CANVAS_CAPTION] = {"font-family:monospace", "middle", "#555555", 11, 0.61, "monospace"},
};

static const struct {
    const char *colour, *dashes, *gnuplot;
    double width, opacity;
} lines[N_CANVAS_LINES] = {
    [CANVAS_GRID] = {"#cccccc", "", "", 0.5, 1.0},
    [CANVAS_AXIS] = {"#222222", "", "linewidth 1.5 linecolor rgb '#222222'", 1.0, 1.0},
    [CANVAS_DASHED] = {"#888888", "3 2", "linewidth 1 dashtype '-' linecolor rgb '#888888'", 0.7, 1.0},
    [CANVAS_THIN] = {"#000000", "", "linewidth 0.8 linecolor rgb '#73000000'", 0.6, 0.55},
};

double canvas_text_width(CanvasText kind, size_t n_letters) {
    return texts[kind].size * texts[kind].letter * (double)n_letters;
}

/* ---- Texts as each of the two can have them */

static void put_xml(FILE *stream, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '<') fputs("&lt;", stream);
        else if (c == '>') fputs("&gt;", stream);
        else if (c == '&') fputs("&amp;", stream);
        else if (c == '"') fputs("&quot;", stream);
        else fputc(c < 0x20 || c == 0x7f ? '?' : c, stream);
    }
}

static void put_quoted(FILE *stream, const char *text) {
    fputc('"', stream);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        fputc(c == '"' ? '\'' : c == '\\' ? '/' : c < 0x20 || c == 0x7f ? '?' : c, stream);
    }
    fputc('"', stream);
}

/* ---- Drawing */

static bool part_open(CanvasPart *part) {
    part->stream = open_memstream(&part->bytes, &part->n_bytes);
    return part->stream != NULL;
}

Status canvas_open(Canvas *canvas, const char *folder, const char *name, int width, int height,
                   Error *error) {
    *canvas = (Canvas){.folder = strdup(folder), .name = strdup(name), .width = width, .height = height};
    bool is_open = canvas->folder && canvas->name && part_open(&canvas->svg) && part_open(&canvas->boxes);
    for (int i = 0; i < N_CANVAS_LINES && is_open; i++) is_open = part_open(&canvas->lines[i]);
    for (int i = 0; i < N_CANVAS_TEXTS && is_open; i++) is_open = part_open(&canvas->texts[i]);
    if (!is_open) {
        canvas_drop(canvas);
        return error_failed(error, "no memory to draw");
    }
    FILE *svg = canvas->svg.stream;
    fprintf(svg,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
            "<style>\ntext{font-family:Helvetica,Arial,sans-serif}\n",
            width, height, width, height);
    for (int i = 0; i < N_CANVAS_TEXTS; i++)
        fprintf(svg, ".t%d{font-size:%dpx;text-anchor:%s;fill:%s;%s}\n", i, texts[i].size, texts[i].anchor,
                texts[i].colour, texts[i].css);
    for (int i = 0; i < N_CANVAS_LINES; i++)
        fprintf(svg, ".l%d{stroke:%s;stroke-width:%g;stroke-opacity:%g;stroke-dasharray:%s}\n", i,
                lines[i].colour, lines[i].width, lines[i].opacity,
                *lines[i].dashes ? lines[i].dashes : "none");
    fprintf(svg, "</style>\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", width, height);
    return STATUS_OK;
}

static void add_box(Canvas *canvas, double x, double y, double width, double height, const char *colour) {
    fprintf(canvas->boxes.stream, "%.2f %.2f %.2f %.2f %.2f %.2f 0x%s\n", x, y, x, x + width, y, y + height,
            colour + 1);
}

void canvas_rectangle(Canvas *canvas, double x, double y, double width, double height, const char *colour) {
    fprintf(canvas->svg.stream, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
            x, y, width, height, colour);
    add_box(canvas, x, y, width, height, colour);
}

void canvas_line(Canvas *canvas, CanvasLine kind, double x1, double y1, double x2, double y2) {
    fprintf(canvas->svg.stream, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"l%d\"/>\n", x1,
            y1, x2, y2, kind);
    if (kind == CANVAS_GRID) add_box(canvas, x1 - 0.3, y1, x2 - x1 + 0.6, y2 - y1, lines[kind].colour);
    else fprintf(canvas->lines[kind].stream, "%.2f %.2f %.2f %.2f\n", x1, y1, x2 - x1, y2 - y1);
}

void canvas_text(Canvas *canvas, CanvasText kind, double x, double y, const char *colour, const char *text) {
    FILE *svg = canvas->svg.stream, *data = canvas->texts[kind].stream;
    if (!colour) colour = texts[kind].colour;
    fprintf(svg, "<text x=\"%.1f\" y=\"%.1f\" class=\"t%d\"", x, y, kind);
    if (strcmp(colour, texts[kind].colour) != 0) fprintf(svg, " style=\"fill:%s\"", colour);
    fputc('>', svg);
    put_xml(svg, text);
    fputs("</text>\n", svg);
    fprintf(data, "%.2f %.2f ", x, y - 0.36 * texts[kind].size); /* gnuplot holds the middle */
    put_quoted(data, text);
    fprintf(data, " 0x%s\n", colour + 1);
}

/* ---- Files */

static Status put_block(FileWriter *writer, const char *name, int number, CanvasPart *part, Error *error) {
    if (!part->n_bytes) return STATUS_OK;
    TRY(file_writer_printf(writer, error, "$%s%d << END\n", name, number));
    TRY(file_writer_write(writer, part->bytes, part->n_bytes, error));
    return file_writer_printf(writer, error, "END\n");
}

/* The picture is half as large again as the SVG, as that of a plot is; a point of a font is 4/3 pixels. */
static Status put_script(FileWriter *writer, Canvas *canvas, Error *error) {
    const double scale = 1.5;
    TRY(file_writer_printf(
        writer, error,
        "# To draw %s.png: gnuplot %s.gp\nif (!exists('png_file')) png_file = '%s.png'\nset encoding utf8\n"
        "set terminal pngcairo size %d,%d background '#ffffff' noenhanced\nset output png_file\n"
        "set datafile commentschars ''\nset xrange [0:%d]\nset yrange [%d:0]\nunset border\nunset tics\nunset key\n"
        "set lmargin screen 0\nset rmargin screen 1\nset tmargin screen 1\nset bmargin screen 0\n"
        "set style fill solid 1 noborder\n",
        canvas->name, canvas->name, canvas->name, (int)(scale * canvas->width), (int)(scale * canvas->height),
        canvas->width, canvas->height));
    TRY(put_block(writer, "boxes", 0, &canvas->boxes, error));
    for (int i = 0; i < N_CANVAS_LINES; i++) TRY(put_block(writer, "lines", i, &canvas->lines[i], error));
    for (int i = 0; i < N_CANVAS_TEXTS; i++) TRY(put_block(writer, "texts", i, &canvas->texts[i], error));
    TRY(file_writer_printf(writer, error, "plot NaN notitle"));
    if (canvas->boxes.n_bytes)
        TRY(file_writer_printf(writer, error,
                               ", $boxes0 using 1:2:3:4:5:6:7 with boxxyerror linecolor rgb variable"));
    for (int i = 0; i < N_CANVAS_LINES; i++)
        if (canvas->lines[i].n_bytes)
            TRY(file_writer_printf(writer, error, ", \\\n $lines%d using 1:2:3:4 with vectors nohead %s", i,
                                   lines[i].gnuplot));
    for (int i = 0; i < N_CANVAS_TEXTS; i++) {
        const char *anchor = texts[i].anchor;
        if (!canvas->texts[i].n_bytes) continue;
        TRY(file_writer_printf(
            writer, error,
            ", \\\n $texts%d using 1:2:3:4 with labels %s font '%s,%.1f' textcolor rgb variable", i,
            *anchor == 'm'   ? "center"
            : *anchor == 'e' ? "right"
                             : "left",
            texts[i].font, scale * 0.75 * texts[i].size));
    }
    return file_writer_printf(writer, error, "\nunset output\n");
}

static Status put_svg(FileWriter *writer, Canvas *canvas, Error *error) {
    return file_writer_write(writer, canvas->svg.bytes, canvas->svg.n_bytes, error);
}

static char *path_of(const Canvas *canvas, const char *ending) {
    char *path = NULL;
    return asprintf(&path, "%s/%s%s", canvas->folder, canvas->name, ending) < 0 ? NULL : path;
}

static Status write_file(Canvas *canvas, const char *ending,
                         Status (*put)(FileWriter *writer, Canvas *canvas, Error *error), Error *error) {
    FileWriter writer;
    char *path = path_of(canvas, ending);
    if (!path) return error_failed(error, "no memory for a path");
    if (file_writer_open(&writer, path, error) == STATUS_OK) {
        if (put(&writer, canvas, error) == STATUS_OK) file_writer_commit(&writer, error);
        file_writer_abort(&writer);
    }
    free(path);
    return error->status;
}

/* A picture that cannot be drawn is no reason to lose the others. */
static bool run_gnuplot(const Canvas *canvas, const char *temporary) {
    char *script = NULL, *variable = NULL;
    struct stat facts;
    ChildResult result = {0};
    bool is_made = false;
    const char *file = strrchr(temporary, '/') + 1;
    if (asprintf(&script, "%s.gp", canvas->name) > 0 && asprintf(&variable, "png_file = '%s'", file) > 0) {
        const char *words[] = {"gnuplot", "-e", variable, script, NULL};
        ChildSetup setup = {.words = words, .folder = canvas->folder, .timeout_s = DRAW_SECONDS};
        is_made = child_run(&setup, &result, &(Error){0}) == STATUS_OK && result.exit_code == 0 &&
                  stat(temporary, &facts) == 0 && facts.st_size > 0;
        child_free(&result);
    }
    free(script);
    free(variable);
    return is_made;
}

static Status draw_png(Canvas *canvas, bool *has_png, Error *error) {
    char *final = path_of(canvas, ".png"), ending[32];
    snprintf(ending, sizeof ending, ".png.tmp.%d", (int)getpid());
    char *temporary = path_of(canvas, ending);
    if (final && temporary) {
        *has_png = plot_has_gnuplot() && run_gnuplot(canvas, temporary);
        if (*has_png && rename(temporary, final) != 0)
            error_failed(error, "cannot rename %s: %s", temporary, strerror(errno));
        if (!*has_png || error->status != STATUS_OK) unlink(temporary);
        if (!*has_png) unlink(final);
    } else {
        error_failed(error, "no memory for a path");
    }
    free(final);
    free(temporary);
    return error->status;
}

static bool part_end(CanvasPart *part) {
    bool is_good = part->stream && !ferror(part->stream);
    if (part->stream && fclose(part->stream) != 0) is_good = false;
    part->stream = NULL;
    return is_good;
}

Status canvas_close(Canvas *canvas, bool *has_png, Error *error) {
    *has_png = false;
    fputs("</svg>\n", canvas->svg.stream);
    bool is_good = part_end(&canvas->svg);
    is_good = part_end(&canvas->boxes) && is_good;
    for (int i = 0; i < N_CANVAS_LINES; i++) is_good = part_end(&canvas->lines[i]) && is_good;
    for (int i = 0; i < N_CANVAS_TEXTS; i++) is_good = part_end(&canvas->texts[i]) && is_good;
    if (!is_good) error_failed(error, "no memory to draw");
    if (error->status == STATUS_OK && write_file(canvas, ".svg", put_svg, error) == STATUS_OK &&
        write_file(canvas, ".gp", put_script, error) == STATUS_OK)
        draw_png(canvas, has_png, error);
    canvas_drop(canvas);
    return error->status;
}

static void part_free(CanvasPart *part) {
    if (part->stream) fclose(part->stream);
    free(part->bytes);
    *part = (CanvasPart){0};
}

void canvas_drop(Canvas *canvas) {
    part_free(&canvas->svg);
    part_free(&canvas->boxes);
    for (int i = 0; i < N_CANVAS_LINES; i++) part_free(&canvas->lines[i]);
    for (int i = 0; i < N_CANVAS_TEXTS; i++) part_free(&canvas->texts[i]);
    free(canvas->folder);
    free(canvas->name);
    *canvas = (Canvas){0};
}
