/* Loads of experts as a picture: a small map for each run, an expert a row, block under block, time to the
 * right. Colours are few, and neighbours of one colour are one rectangle, so that the file stays small. */
#include "lab/experts/expert_run.h"
#include "lab/picture/canvas.h"

#include <math.h>
#include <stdio.h>

enum { MAP_WIDTH = 300, ROW = 7, BLOCK_GAP = 5, LEFT = 70, GAP = 40, TOP = 92, COLUMNS = 3 };

/* From nothing over the mean to three times as much and more. */
static const struct {
    double below;
    const char *colour, *words;
} shades[] = {
    {0.0005, "#1a1a1a", "nothing"},
    {0.25, "#0b559f", NULL},
    {0.5, "#4b98c9", "under half"},
    {0.8, "#a6cee4", NULL},
    {1.25, "#f2f2f2", "its share"},
    {1.6, "#fdc38d", NULL},
    {2.2, "#fb8c3c", "twice"},
    {3.0, "#de5005", NULL},
    {INFINITY, "#8f2d04", "three times and more"},
};
enum { N_SHADES = sizeof shades / sizeof shades[0] };

static int shade_of(double load) {
    int i = 0;
    while (i + 1 < N_SHADES && !(load < shades[i].below)) i++;
    return i;
}

static double map_height(const ExpertRun *run) {
    return (double)(run->n_blocks * (run->n_experts * ROW + BLOCK_GAP));
}

static void draw_row(Canvas *canvas, const ExpertRun *run, int64_t expert, double x, double y) {
    int64_t n = run->n_blocks * run->n_experts;
    double width = (double)MAP_WIDTH / (double)run->n_times;
    for (int64_t first = 0, end; first < run->n_times; first = end) {
        int shade = shade_of(run->loads[first * n + expert]);
        end = first + 1;
        while (end < run->n_times && shade_of(run->loads[end * n + expert]) == shade) end++;
        canvas_rectangle(canvas, x + (double)first * width, y, (double)(end - first) * width, ROW - 0.5,
                         shades[shade].colour);
    }
}

static void draw_map(Canvas *canvas, const ExpertRun *run, double x, double y) {
    char text[160];
    int64_t last = run->n_times - 1;
    snprintf(text, sizeof text, "%s: at the end %.2f times its share at most", run->name,
             expert_run_busiest(run, last));
    canvas_text(canvas, CANVAS_TICK, x + MAP_WIDTH / 2.0, y - 8, NULL, text);
    for (int64_t block = 0; block < run->n_blocks; block++) {
        double top = y + (double)block * (double)(run->n_experts * ROW + BLOCK_GAP);
        snprintf(text, sizeof text, "router %lld", (long long)block + 1);
        canvas_text(canvas, CANVAS_SMALL_NAME, x - 6, top + (double)(run->n_experts * ROW) / 2 + 4, NULL,
                    text);
        for (int64_t e = 0; e < run->n_experts; e++)
            draw_row(canvas, run, block * run->n_experts + e, x, top + (double)(e * ROW));
    }
    double bottom = y + map_height(run) + 10;
    snprintf(text, sizeof text, "step %.0f", run->curve.x[CURVE_X_STEP][run->curve.n - 1]);
    canvas_text(canvas, CANVAS_TICK, x + MAP_WIDTH - 10, bottom, NULL, text);
    canvas_text(canvas, CANVAS_TICK, x + 2, bottom, NULL, "0");
}

static void draw_key(Canvas *canvas, double middle, double y) {
    double x = middle - N_SHADES * 36.0;
    for (int i = 0; i < N_SHADES; i++, x += 72) {
        canvas_rectangle(canvas, x, y, 70, 12, shades[i].colour);
        if (shades[i].words) canvas_text(canvas, CANVAS_TICK, x + 35, y + 26, NULL, shades[i].words);
    }
}

Status expert_loads_draw(const ExpertRun *runs, int n_runs, const char *note, const char *caption,
                         const char *folder, const char *name, Error *error) {
    int n_maps = 0;
    double tallest = 0.0;
    for (int i = 0; i < n_runs; i++) {
        n_maps += runs[i].n_times > 0;
        tallest = fmax(tallest, map_height(&runs[i]));
    }
    if (!n_maps) return STATUS_OK;
    int n_columns = n_maps < COLUMNS ? n_maps : COLUMNS, n_rows = (n_maps + COLUMNS - 1) / COLUMNS;
    double width = fmax(n_columns * (MAP_WIDTH + LEFT) + GAP, 760.0), step = tallest + 55.0;
    double left = (width - n_columns * (MAP_WIDTH + LEFT)) / 2 + LEFT / 2.0,
           height = TOP + n_rows * step + GAP;
    bool has_png;
    Canvas canvas;
    TRY(canvas_open(&canvas, folder, name, (int)width, (int)height, error));
    canvas_text(&canvas, CANVAS_TITLE, width / 2, 24, NULL,
                "Load of every expert (a row) over time (to the right)");
    draw_key(&canvas, width / 2, 38);
    for (int i = 0, map = 0; i < n_runs; i++) {
        if (!runs[i].n_times) continue;
        int column = map % COLUMNS, row = map / COLUMNS;
        draw_map(&canvas, &runs[i], left + LEFT / 2.0 + column * (MAP_WIDTH + LEFT), TOP + row * step + 10);
        map++;
    }
    if (note) canvas_text(&canvas, CANVAS_CAPTION, width / 2, height - GAP, NULL, note);
    canvas_text(&canvas, CANVAS_CAPTION, width / 2, height - GAP / 2.0, NULL, caption);
    return canvas_close(&canvas, &has_png, error);
}
