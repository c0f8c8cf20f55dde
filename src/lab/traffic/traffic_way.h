/* A way to send gradients (--compress), as a study of traffic knows it: what a step of it sends and takes,
 * and the curve of a run.
 *
 *     TrafficWay way = {.compression = compression, .n_bytes = 251376, .n_messages = 10};
 *     TRY(curve_run_read(&way.curve, "runs/lab/way", error));
 *     const double bytes[] = {exact->n_bytes, way.n_bytes, way.n_local_bytes};
 *     traffic_way_costs(&way, bytes, x);       // bytes sent up to each step
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
    /* Of steps that send no gradient (0/1-adam:N): the busiest rank's, and the time of one. */
    double n_local_bytes, n_local_messages, local_ms[TRAFFIC_MOST_RATES];
    CurveRun curve;
} TrafficWay;

/* What a step is: one of none; one of this way; and one of a rank by itself, which the learning rate tells,
 * and whether all ranks evaluate behind it. */
typedef enum { TRAFFIC_EXACT, TRAFFIC_OWN, TRAFFIC_LOCAL, N_TRAFFIC_STEPS } TrafficStep;

/* x[i] = the sum over steps up to that of point i of the curve of what each costs. */
void traffic_way_costs(const TrafficWay *way, const double cost[N_TRAFFIC_STEPS], double *x /* (curve.n) */);

/* That of all steps. */
double traffic_way_cost(const TrafficWay *way, const double cost[N_TRAFFIC_STEPS]);

/* The median time of a step of the curve, of this kind; the first of all is left out. NAN: there is none. */
double traffic_way_median_ms(const TrafficWay *way, TrafficStep kind);

/* What the links add to a step, where nothing hides it: bytes by the rate (bits a second) and, for each
 * message, the latency. In milliseconds. */
double traffic_way_link_ms(double n_bytes, double n_messages, double rate, double latency_s);

/* The validation loss at the end; and the place of the first point at which it is as low as `loss`, -1 where
 * it never is. */
double traffic_way_loss(const TrafficWay *way);
int64_t traffic_way_reaches(const TrafficWay *way, double loss);

#endif
