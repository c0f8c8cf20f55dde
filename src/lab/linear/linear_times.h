/* The times of a training, round by round: what each epoch was spent on, and who waited for whom.
 *
 *     LinearTimes times;
 *     // collective, as are all
 *     TRY(linear_times_open(&times, comm, n_hosts, n_epochs, n_rounds, error));
 *     linear_times_begin(&times);                                                     // a round
 *     ... for each epoch, after the gradient, the all-reduce and the update:
 *     linear_times_arrived(&times, epoch, forward); linear_times_left(&times, epoch); linear_times_end(...);
 *     TRY(linear_times_finish(&times, error));                                        // the round is over
 *     double seconds = linear_times_median(&times, phase_ms);
 *     linear_times_close(&times);
 *
 * The phases of a round add up to its time by the clock: from the moment at which the first rank began to
 * that at which the last one was done. */
#ifndef PGPT_LAB_LINEAR_LINEAR_TIMES_H
#define PGPT_LAB_LINEAR_LINEAR_TIMES_H

#include "lab/linear/linear.h"

typedef struct {
    double phase_ns[N_LINEAR_PHASES];
} LinearPhases;

/* Moments of an epoch, on the clock that all ranks share. */
typedef struct {
    double arrived, left, end; /* at the all-reduce, behind it, at the next epoch */
    double forward;            /* the share of the forward in the time before the all-reduce */
} LinearStamps;

typedef struct {
    Comm *comm;
    double offset_ns; /* this rank's clock less that of rank 0 */
    int64_t n_epochs, n_rounds, most_rounds;
    double begin;
    LinearStamps *stamps;  /* (n_epochs), of this round and rank */
    double *last;          /* (n_epochs): when the last rank arrived */
    LinearPhases *now;     /* (n_epochs): of this round; means over the ranks */
    LinearPhases *fastest; /* (n_epochs): each in its fastest round */
    LinearPhases *rounds;  /* (most_rounds): of each as a whole; means over the ranks */
    double *samples;       /* (most_samples): seconds of computing, of any rank and epoch; rank 0's */
    int64_t n_samples, most_samples;
} LinearTimes;

Status linear_times_open(LinearTimes *times, Comm *comm, int n_hosts, int64_t n_epochs, int64_t n_rounds,
                         Error *error);
void linear_times_close(LinearTimes *times); /* safe on {0} */

void linear_times_begin(LinearTimes *times);
void linear_times_arrived(LinearTimes *times, int64_t epoch, double forward);
void linear_times_left(LinearTimes *times, int64_t epoch);
void linear_times_end(LinearTimes *times, int64_t epoch);
Status linear_times_finish(LinearTimes *times, Error *error);

/* Seconds of the median round, of an even number the faster of the two, and its phases (N_LINEAR_PHASES). */
double linear_times_median(const LinearTimes *times, double *phase_ms);
/* The sum over the epochs, each in its fastest round. */
double linear_times_best(const LinearTimes *times);
/* Of computing, on rank 0. */
SlowestLaw linear_times_law(LinearTimes *times);

#endif
