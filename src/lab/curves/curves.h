/* Training curves: what runs wrote to their metrics.jsonl, read back to be drawn.
 *
 *     CurveRun run;
 *     TRY(curve_run_read(&run, "runs/first", error));
 *     CurveView view = {.x = CURVE_X_STEP, .panels = {true, true, true, true}, .smooth = 20};
 *     curves_draw_terminal(&run, 1, &view, stdout);
 *     curve_run_free(&run); */
#ifndef PGPT_LAB_CURVES_CURVES_H
#define PGPT_LAB_CURVES_CURVES_H

#include "base/arena.h"
#include "base/error.h"

#include <stdint.h>
#include <stdio.h>

typedef enum { CURVE_LOSS, CURVE_VALIDATION, CURVE_RATE, CURVE_NORM, CURVE_SPEED, N_CURVES } Curve;
typedef enum { CURVE_X_STEP, CURVE_X_TIME, CURVE_X_TOKENS, N_CURVE_X } CurveX;

/* Pictures one below the other; validation is drawn into that of the loss. */
typedef enum { PANEL_LOSS, PANEL_RATE, PANEL_NORM, PANEL_SPEED, N_PANELS } Panel;

extern const char *const curve_x_names[];  /* step, time, tokens; NULL-terminated, for options */
extern const char *const curve_x_labels[]; /* with units */
extern const char *const panel_names[];    /* loss, rate, norm, speed; NULL-terminated */
extern const char *const panel_labels[N_PANELS];

/* ---- A run */

typedef struct {
    char *path;    /* as it was named */
    char *name;    /* what it is called in legends */
    char *machine; /* where, on how many ranks and when it began: "AMD EPYC, 2 cores; 1 rank; 2026-11-18" */
    int64_t n;     /* steps */
    double *x[N_CURVE_X];           /* (n) the step, seconds spent in steps so far, tokens so far */
    double *y[N_CURVES];            /* (n) NAN: not measured in this step */
    int64_t n_broken, first_broken; /* lines that are no object, and the first of them, from 1 */
    bool is_cut;                    /* the last line has no end: the run is under way, or was killed */
    int64_t n_again;                /* steps that were taken again after a resume; the later ones count */
    int64_t capacity;               /* of the arrays */
} CurveRun;

/* `path` is a run's folder or a metrics.jsonl itself. Lines that cannot be read are counted; a file without
 * any step is a user's error. On failure there is nothing to free. */
Status curve_run_read(CurveRun *run, const char *path, Error *error);
void curve_run_free(CurveRun *run); /* safe on {0}, and twice */

/* Legends: the last part of each path; where two would be the same, as much more of the paths as tells them
 * apart. The same run twice is a user's error. */
Status curve_runs_name(CurveRun *runs, int n_runs, Error *error);

bool curve_has(const CurveRun *run, Curve curve); /* is anything of it measured? */

/* ---- What to draw of them */

typedef struct {
    CurveX x;
    bool panels[N_PANELS];
    bool log_x, log_y;
    int64_t smooth; /* mean over so many steps, the same number before and behind; 1: as it is */
    const char *title, *note, *caption; /* of the file; NULL: none */
} CurveView;

/* A curve as it is drawn: without what is not measured, smoothed, and of very many steps means over equal
 * parts of them. Arrays are from the arena. */
typedef struct {
    const CurveRun *run;
    Curve curve;
    double *x, *y;
    int64_t n;
} CurveLine;

enum { CURVE_MOST_POINTS = 2000 };
CurveLine curve_line(const CurveRun *run, Curve curve, const CurveView *view, Arena *arena);

/* The curves of a panel: 1 or 2. */
int panel_curves(Panel panel, Curve *curves);

/* Has any run something to show there? */
bool panel_has(const CurveRun *runs, int n_runs, Panel panel);

/* ---- Drawing */

/* In characters, as wide as the terminal, or as COLUMNS or 80 where there is none. */
void curves_draw_terminal(const CurveRun *runs, int n_runs, const CurveView *view, FILE *stream);

/* With gnuplot: FOLDER/NAME.dat and NAME.gp always; NAME.svg and NAME.png as wanted. *drawn: they are there.
 * Without gnuplot, or where it fails, pictures of that name from an earlier call are gone. */
Status curves_draw_files(const CurveRun *runs, int n_runs, const CurveView *view, const char *folder,
                         const char *name, bool wants_svg, bool wants_png, bool *drawn, Error *error);

#endif
