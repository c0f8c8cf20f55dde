/* A way to send gradients (--compress), as a study of traffic knows it: what a step of it sends and takes,
 * and the curve of a run.
 *
 *     TrafficWay way = {.compression = compression, .n_bytes = 251376, .n_messages = 10};
 *     TRY(curve_run_read(&way.curve, "runs/lab/way", error));
 *     traffic_way_costs(&way, exact->n_bytes, way.n_bytes, x);       // bytes sent up to each step
 *
 * Some steps of such a run are exact: its warm-up, and those of 0/1 Adam. They cost what exact steps do. */
#ifndef PGPT_LAB_TRAFFIC_TRAFFIC_WAY_H
#define PGPT_LAB_TRAFFIC_TRAFFIC_WAY_H

#include "lab/curves/curves.h"
#include "parallel/compress/compression.h"

enum { TRAFFIC_MOST_RATES = 4 };

typedef struct {
    char name[32];
    Compression compression;                  /* with its warm-up */
    double n_bytes, n_messages;               /* that the busiest rank sends in a step of this way */
    double n_all_bytes;                       /* all ranks together */
    double n_wire_bytes;                      /* the same, counted on the cables; NAN: it was not */
    double here_ms;                           /* a step between ranks of this machine */
    double step_ms[TRAFFIC_MOST_RATES];       /* on links of each rate, */
    double exact_step_ms[TRAFFIC_MOST_RATES]; /* and an exact step */
    CurveRun curve;
} TrafficWay;

/* x[i] = the sum over steps up to that of point i of the curve: `exact` for each exact one, else `own`. */
void traffic_way_costs(const TrafficWay *way, double exact, double own, double *x /* (curve.n) */);

/* The median time of a step of the curve, of those that are not exact, or that are; the first of all is left
 * out. NAN: there is none. */
double traffic_way_median_ms(const TrafficWay *way, bool of_exact);

/* What the links add to a step, where nothing hides it: bytes by the rate (bits a second) and, for each
 * message, the latency. In milliseconds. */
double traffic_way_link_ms(const TrafficWay *way, double rate, double latency_s);

/* The validation loss at the end; and the place of the first point at which it is as low as `loss`, -1 where
 * it never is. */
double traffic_way_loss(const TrafficWay *way);
int64_t traffic_way_reaches(const TrafficWay *way, double loss);

#endif
