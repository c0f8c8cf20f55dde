/* The expected largest of k draws from n sorted samples is the sum of x_i ((i/n)^k - ((i-1)/n)^k), exactly.
 * It can be trusted while k is well below n: further out the largest sample is all there is. There the law
 * goes on. Its one assumption is that processes are disturbed independently; what disturbs a whole machine at
 * once costs less than it says.
 *
 * A sample of half as much again as the median was interrupted. The others' spread is fitted by least squares
 * to their own expectation of the slowest of 2, 4, 8, ...; of one process the law gives the mean of all
 * samples, interrupted or not. */
#include "lab/linear/slowest.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double harmonic(int n) {
    double sum = 0.0;
    for (int i = 1; i <= n; i++) sum += 1.0 / i;
    return sum;
}

double slowest_drawn(const double *sorted, int n, int k) {
    double sum = 0.0, below = 0.0;
    for (int i = 0; i < n; i++) {
        double up_to = pow((double)(i + 1) / n, k);
        sum += sorted[i] * (up_to - below);
        below = up_to;
    }
    return sum;
}

static double mean(const double *values, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += values[i];
    return n ? sum / n : 0.0;
}

/* A line through the mean, at H = 1: it never falls, and it does not begin below zero. */
static double fit_spread(const double *sorted, int n) {
    enum { TRUSTED = 8 }; /* samples for each that is drawn */
    double middle = mean(sorted, n), xx = 0.0, xy = 0.0;
    for (int k = 2; k <= n / TRUSTED; k *= 2) {
        double x = harmonic(k) - 1.0;
        xx += x * x;
        xy += x * (slowest_drawn(sorted, n, k) - middle);
    }
    return xx > 0.0 ? fmin(fmax(xy / xx, 0.0), middle) : 0.0;
}

SlowestLaw slowest_fit(double *seconds, int n) {
    const double interrupted = 1.5; /* times the median */
    SlowestLaw law = {.n_samples = n};
    if (n < 1) return law;
    qsort(seconds, (size_t)n, sizeof *seconds, compare);
    int n_quiet = n;
    while (seconds[n_quiet - 1] > interrupted * seconds[n / 2]) n_quiet--;
    double quiet = mean(seconds, n_quiet);
    law.spread = fit_spread(seconds, n_quiet);
    law.base = quiet - law.spread;
    law.chance = (double)(n - n_quiet) / n;
    law.delay = n_quiet < n ? mean(seconds + n_quiet, n - n_quiet) - quiet : 0.0;
    return law;
}

double slowest_of(const SlowestLaw *law, int n) {
    double hit = 0.0;
    for (int k = 1; k <= n; k++) hit += (1.0 - pow(1.0 - law->chance, k)) / k;
    return law->base + law->spread * harmonic(n) + law->delay * hit;
}
