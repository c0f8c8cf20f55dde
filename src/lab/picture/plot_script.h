/* Inside plot.c: the picture being made, and its gnuplot script. */
#ifndef PGPT_LAB_PICTURE_PLOT_SCRIPT_H
#define PGPT_LAB_PICTURE_PLOT_SCRIPT_H

#include "base/arena.h"
#include "base/file/file.h"
#include "lab/picture/plot.h"

typedef struct {
    const Plot *plot;
    const char *folder, *name;
    int n_rows;    /* of the longest series */
    bool has_bars; /* or points over names: rows are names, not numbers */
    Arena arena;
    int first_series; /* of a second panel: how many series the data file has before its own */
} Picture;

/* The script reads NAME.dat of its own folder. It writes to what the variables svg_file and png_file say, or
 * else to NAME.svg and NAME.png. */
Status plot_script_write(FileWriter *writer, Picture *picture, Error *error);

/* Parts of it, for a picture of two panels (plot_panels.c): what every script begins with, and where it turns
 * from the .svg to the .png, which has half as many pixels again each way. */
Status plot_script_begin(FileWriter *writer, const char *name, int width, int height, Error *error);
Status plot_script_begin_png(FileWriter *writer, int width, int height, Error *error);
Status plot_script_words(FileWriter *writer, Picture *picture, Error *error); /* title, legend, caption */
Status plot_script_axes(FileWriter *writer, Picture *picture, Error *error);
Status plot_script_curves(FileWriter *writer, Picture *picture, Error *error);
Status plot_panels_write(FileWriter *writer, Picture *picture, Error *error);

#endif
