/* What a message costs: a latency and a time for every byte, fitted to measurements.
 *
 *     Link link;
 *     TRY(link_fit(bytes, seconds, n, &link, error));          // a ping-pong's sizes and times one way
 *     double expected = link_seconds(&link, 4096);
 *
 * MPI libraries send short messages at once and long ones only when the receiver has said where to put them,
 * which takes further trips. So a link has two lines, one for each kind, and a length from which on messages
 * are of the second. */
#ifndef PGPT_LAB_COLLECTIVES_ALPHA_BETA_H
#define PGPT_LAB_COLLECTIVES_ALPHA_BETA_H

#include "base/error.h"

/* A message of n bytes takes alpha + n beta seconds. */
typedef struct {
    double alpha, beta;
} AlphaBeta;

typedef struct {
    AlphaBeta eager;  /* up to `border` bytes: the sender does not wait for the receiver */
    AlphaBeta asking; /* above: both have to be there */
    double border;    /* 0: all messages are of the second kind */
    double gap; /* seconds between short messages that follow each other: the part of alpha that is work */
} Link;

/* The line whose relative errors have the least sum of squares; neither of its numbers is negative. Needs two
 * points or more, not all of the same size, and times above 0. */
Status alpha_beta_fit(const double *bytes, const double *seconds, int n, AlphaBeta *fit, Error *error);

/* The root of the mean squared relative error of a line. */
double alpha_beta_error(const AlphaBeta *line, const double *bytes, const double *seconds, int n);

/* One line, or two if they fit clearly better; sizes are in rising order. `gap` is left at 0. */
Status link_fit(const double *bytes, const double *seconds, int n, Link *link, Error *error);

/* Of a message on an idle link. */
double link_seconds(const Link *link, double n_bytes);

#endif
