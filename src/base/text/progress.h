/* A progress bar for long work, on the last line of a terminal.
 *
 *     Progress progress;
 *     progress_begin(&progress, stderr, 0.0);
 *     for (...) {
 *         work();
 *         if (progress_due(&progress)) progress_update(&progress, done / total, status_text);
 *         if (evaluated) progress_print(&progress, "step %d  val_loss %.4f", step, loss);
 *     }
 *     progress_end(&progress);
 *
 * On a terminal the bar is redrawn in place at most ten times a second, follows the window's width, and is
 * gone after progress_end. Elsewhere only progress_print shows anything: the caller decides which steps
 * deserve a line (and updates, if it wants progress_seconds_left for it).
 *
 * The status is one line of fields separated by two blanks ("step 40/100  loss 2.3411  1.4 k tokens/s").
 * Fields that do not fit are left out whole, the last ones first, so put what matters first. */
#ifndef PGPT_BASE_TEXT_PROGRESS_H
#define PGPT_BASE_TEXT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/text/terminal.h"

enum { PROGRESS_STATUS_BYTES = 256, PROGRESS_LINE_BYTES = 2048 };

typedef struct {
    FILE *stream;
    Terminal terminal;
    bool shown;          /* the bar is on the screen now */
    uint64_t drawn_ns;   /* when it was last drawn; 0 never */
    uint64_t sampled_ns; /* the last sample of the rate */
    double fraction;     /* at the last update */
    double sampled;      /* fraction at the last sample */
    double rate_sum;     /* weighted fraction done, and the weighted seconds it took: */
    double rate_seconds; /* their ratio is the smoothed rate */
    char status[PROGRESS_STATUS_BYTES];
} Progress;

/* Work starts, with this fraction done already (not 0 when a run is resumed). */
void progress_begin(Progress *progress, FILE *stream, double fraction);

/* Would an update be drawn now? Lets a hot loop skip the making of the status text. */
bool progress_due(const Progress *progress);

/* Fraction in [0,1]. Draws if the terminal is due for it; always learns from it. */
void progress_update(Progress *progress, double fraction, const char *status);

/* A line above the bar (or several, or simply a line), made plain (base/text/plain.h); the newline is
 * added. */
void progress_print(Progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Take the bar away so that somebody else can write to the terminal; the next update brings it back. */
void progress_hide(Progress *progress);

/* The work is over, well or not: the line is cleared and the cursor is at its start. */
void progress_end(Progress *progress);

/* Seconds still to go by the smoothed rate; NAN while nothing is known. */
double progress_seconds_left(const Progress *progress);

/* ---- The parts, with the clock and the screen passed in. */
void progress_update_at(Progress *progress, double fraction, const char *status, uint64_t now_ns);

/* One line of at most `columns` characters, without newline; colour sequences count for nothing. */
void progress_render(char text[PROGRESS_LINE_BYTES], Terminal terminal, int columns, double fraction,
                     double seconds_left, const char *status);

#endif
