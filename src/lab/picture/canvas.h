/* A picture of rectangles, lines and texts, in points from the upper left corner: as an SVG, which needs no
 * other program, and as a gnuplot script, which makes the PNG beside it where there is gnuplot.
 *
 *     Canvas canvas;
 *     TRY(canvas_open(&canvas, "runs/lab", "timeline", 1200, 400, error));
 *     canvas_rectangle(&canvas, 10, 10, 100, 20, "#0072b2");
 *     canvas_line(&canvas, CANVAS_AXIS, 10, 40, 110, 40);
 *     canvas_text(&canvas, CANVAS_TICK, 60, 55, NULL, "time (ms)");
 *     bool has_png;
 *     TRY(canvas_close(&canvas, &has_png, error));        // timeline.svg, timeline.gp, timeline.png
 *
 * What goes wrong while drawing is said by canvas_close. */
#ifndef PGPT_LAB_PICTURE_CANVAS_H
#define PGPT_LAB_PICTURE_CANVAS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>

/* How texts look and where they are held: at their middle, but for those on the left of something (their end)
 * and notes beside something (their beginning). */
typedef enum {
    CANVAS_TITLE,
    CANVAS_KEY,        /* beginning */
    CANVAS_NAME,       /* end */
    CANVAS_SMALL_NAME, /* end */
    CANVAS_MARK,       /* beginning */
    CANVAS_TICK,
    CANVAS_LABEL,
    CANVAS_CAPTION,
    N_CANVAS_TEXTS
} CanvasText;

typedef enum { CANVAS_GRID, CANVAS_AXIS, CANVAS_DASHED, CANVAS_THIN, N_CANVAS_LINES } CanvasLine;

/* Points that a text of so many letters is wide, about. */
double canvas_text_width(CanvasText kind, size_t n_letters);

typedef struct {
    FILE *stream;
    char *bytes;
    size_t n_bytes;
} CanvasPart;

typedef struct {
    char *folder, *name;
    int width, height;
    CanvasPart svg, boxes, lines[N_CANVAS_LINES], texts[N_CANVAS_TEXTS];
} Canvas;

Status canvas_open(Canvas *canvas, const char *folder, const char *name, int width, int height, Error *error);
void canvas_rectangle(Canvas *canvas, double x, double y, double width, double height, const char *colour);
void canvas_line(Canvas *canvas, CanvasLine kind, double x1, double y1, double x2, double y2);

/* y is that of the line on which letters stand. `colour` may be NULL: the kind's own. */
void canvas_text(Canvas *canvas, CanvasText kind, double x, double y, const char *colour, const char *text);

/* Writes the files, each by a temporary name and a rename. Without gnuplot there is no PNG; one of an earlier
 * run is removed then, since it is not of this picture. */
Status canvas_close(Canvas *canvas, bool *has_png, Error *error);

void canvas_drop(Canvas *canvas); /* writes nothing; safe after canvas_close */

#endif
