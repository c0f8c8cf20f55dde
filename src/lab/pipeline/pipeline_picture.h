/* A predicted pipeline, to look at: as letters in a terminal, and as a timeline that is drawn as a traced run
 * is (lab/picture/timeline.h). */
#ifndef PGPT_LAB_PIPELINE_PIPELINE_PICTURE_H
#define PGPT_LAB_PIPELINE_PIPELINE_PICTURE_H

#include "lab/picture/timeline.h"
#include "parallel/pipeline/schedule_simulate.h"

#include <stdio.h>

/* Two lines a stage, time from left to right in at most n_columns: what it does (F, B, W; small letters for
 * later chunks; '.' nothing), and with which micro-batch (0-9, then letters). What is much longer than that,
 * and what goes on without a flush, is cut. */
void pipeline_print(const SchedulePrediction *prediction, int n_columns, FILE *stream);

/* To be freed by timeline_free. Times are in milliseconds. */
Status pipeline_timeline(const SchedulePrediction *prediction, Timeline *timeline, Error *error);

/* An SVG as a PNG beside it, by rsvg-convert; *made is false where there is none, and a PNG from before is
 * then gone. */
Status pipeline_png(const char *svg_path, const char *png_path, bool *made, Error *error);

#endif
