/* Pictures of a study: curves or bars with a title, units, a legend and the command that made them.
 *
 *     // NAN: no such point
 *     double ranks[] = {1, 2, 4}, seconds[] = {8.0, 4.1, NAN};
 *     PlotSeries series[] = {{"measured", PLOT_POINTS, ranks, seconds, 3}};
 *     Plot plot = {.title = "Time of 100 steps", .x_label = "ranks", .y_label = "time (s)", .x_log = true,
 *                  .caption = "pgpt lab scaling --ranks 1,2,4", .series = series, .n_series = 1};
 *     bool drawn;
 *     TRY(plot_write(&plot, "runs/lab", "scaling", &drawn, error));
 *
 * gnuplot draws them. It is not needed to have the numbers: the data file is written in any case, and so is
 * the script that draws it, for a machine that has gnuplot or for somebody who wants other colours. */
#ifndef PGPT_LAB_PICTURE_PLOT_H
#define PGPT_LAB_PICTURE_PLOT_H

#include "base/error.h"

#include <stdbool.h>

typedef enum { PLOT_LINES, PLOT_POINTS, PLOT_DASHED, PLOT_BARS } PlotStyle;

/* A curve, or bars of one colour. PLOT_LINES has a mark at every point as long as there are few of them. A
 * dashed curve whose name begins with that of another one, "ring: model" beside "ring", has its colour. */
typedef struct {      /* NOLINT(clang-analyzer-optin.performance.Padding): the order in which people say it */
    const char *name; /* in the legend; "": not there */
    PlotStyle style;
    const double *x, *y; /* NAN: no point */
    int n;
} PlotSeries;

typedef struct Plot {
    const char *title;
    const char *x_label, *y_label; /* with their units */
    /* Points that are not above 0 are left out; y_log is not for stacked bars. An axis y that is logarithmic
     * in the end (a short range is not) says so: ", log axis" behind its label. */
    bool x_log, y_log;
    const char *caption; /* the command that made it; stands below the picture */
    const char *note;    /* about how it was made; stands above the caption; NULL or "": nothing */
    const PlotSeries *series;
    int n_series;
    const char *const
        *x_names;        /* of bars or points, one for each of the longest series; NULL: the numbers of x */
    bool shows_values;   /* points over names have their numbers beside them */
    bool is_stacked;     /* bars of the same name stand on each other, not side by side */
    const double *whole; /* of stacked bars, one a name: what they add up to, found otherwise than by adding
                            them. It stands in the data file, for whoever wants to see that nothing is
                            missing; NULL: not said */
    const struct Plot
        *below; /* a second panel below this one, of curves only, with axes of its own; its series have the
                   colours of those in the same order above, its title, caption and note are not shown */
} Plot;

/* Writes FOLDER/NAME.dat (data, commented header), NAME.gp (the gnuplot script), and NAME.svg and NAME.png if
 * gnuplot is there; each by a temporary name and a rename. NAME is of letters, digits, '-' and '_'. The
 * folder is made. `*drawn` says whether there is a picture; if there is none, pictures of that name from an
 * earlier run are gone, since they would not be those of the data beside them. In a plot with bars, all
 * series have a value for each of the names, in their order; lines then go from bar to bar. */
Status plot_write(const Plot *plot, const char *folder, const char *name, bool *drawn, Error *error);

/* Can gnuplot be found? */
bool plot_has_gnuplot(void);

#endif
