/* How long the slowest of n processes takes, from how long one takes again and again.
 *
 *     SlowestLaw law = slowest_fit(seconds, n_samples);              // sorts them
 *     double last = slowest_of(&law, 200);                           // expected, of 200 that are alike
 *
 * Where processes meet after every step, a step takes as long as the slowest of them. The law has two terms
 * beside what everybody takes. Times differ a little, always: with an exponentially distributed part of mean
 * `spread` the slowest of n is expected spread·H(n) later, H(n) = 1 + 1/2 + ... + 1/n. And once in a while,
 * with probability `chance`, a process is interrupted, for a time of mean `delay`: the longest interruption
 * of n processes is expected to take delay·S(n), S(n) = sum over k = 1 .. n of (1 - (1 - chance)^k)/k. */
#ifndef PGPT_LAB_LINEAR_SLOWEST_H
#define PGPT_LAB_LINEAR_SLOWEST_H

typedef struct {
    double base, spread, delay; /* seconds */
    double chance;
    int n_samples; /* 0: nothing is known */
} SlowestLaw;

SlowestLaw slowest_fit(double *seconds, int n);
double slowest_of(const SlowestLaw *law, int n);

/* The expected largest of k that are drawn from these samples, which are sorted. */
double slowest_drawn(const double *sorted, int n, int k);

#endif
