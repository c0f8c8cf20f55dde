/* Least squares of relative errors: sizes go over six powers of ten and times over four, and a fit of
 * absolute errors would see the longest message only. With weights 1/t the line a + b n through points (n, t)
 * minimises the sum of ((a + b n - t) / t)^2, whose two normal equations are solved below. Times jitter
 * upwards, so whoever measures passes medians or minima.
 *
 * Where two lines are allowed, every border between two sizes is tried. They have to be clearly better than
 * one: more parameters always fit a little better, and a border that is not there would only confuse. */
#include "lab/collectives/alpha_beta.h"

#include <math.h>
#include <stdbool.h>

static void solve(const double *bytes, const double *seconds, int n, AlphaBeta *fit) {
    double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
    for (int i = 0; i < n; i++) {
        double weight = 1.0 / (seconds[i] * seconds[i]);
        w += weight;
        wx += weight * bytes[i];
        wxx += weight * bytes[i] * bytes[i];
        wy += weight * seconds[i];
        wxy += weight * bytes[i] * seconds[i];
    }
    double determinant = w * wxx - wx * wx;
    fit->alpha = (wxx * wy - wx * wxy) / determinant;
    fit->beta = (w * wxy - wx * wy) / determinant;
    /* A line that would begin below zero, or fall, is the best one that does not. */
    if (fit->alpha < 0) *fit = (AlphaBeta){0, wxy / wxx};
    if (fit->beta < 0) *fit = (AlphaBeta){wy / w, 0};
}

Status alpha_beta_fit(const double *bytes, const double *seconds, int n, AlphaBeta *fit, Error *error) {
    bool has_two = false;
    for (int i = 0; i < n; i++) {
        if (!isfinite(seconds[i]) || !isfinite(bytes[i]) || seconds[i] <= 0 || bytes[i] < 0)
            return error_failed(error, "a message of %g bytes in %g s cannot be fitted", bytes[i],
                                seconds[i]);
        has_two = has_two || bytes[i] != bytes[0];
    }
    if (!has_two) return error_failed(error, "a line needs messages of two sizes or more");
    solve(bytes, seconds, n, fit);
    return STATUS_OK;
}

double alpha_beta_error(const AlphaBeta *line, const double *bytes, const double *seconds, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double relative = (line->alpha + line->beta * bytes[i]) / seconds[i] - 1.0;
        sum += relative * relative;
    }
    return n ? sqrt(sum / n) : 0;
}

Status link_fit(const double *bytes, const double *seconds, int n, Link *link, Error *error) {
    enum { LEAST_POINTS = 3 };
    const double clearly = 0.6; /* of the error of one line */
    const double good = 0.01;   /* nobody needs better */
    AlphaBeta one, low, high;
    TRY(alpha_beta_fit(bytes, seconds, n, &one, error));
    *link = (Link){.eager = one, .asking = one};
    double best = clearly * alpha_beta_error(&one, bytes, seconds, n);
    if (best < good) return STATUS_OK;
    for (int split = LEAST_POINTS; split + LEAST_POINTS <= n; split++) {
        TRY(alpha_beta_fit(bytes, seconds, split, &low, error));
        TRY(alpha_beta_fit(bytes + split, seconds + split, n - split, &high, error));
        double e1 = alpha_beta_error(&low, bytes, seconds, split);
        double e2 = alpha_beta_error(&high, bytes + split, seconds + split, n - split);
        double both = sqrt((e1 * e1 * split + e2 * e2 * (n - split)) / n);
        if (both >= best) continue;
        best = both;
        *link = (Link){.eager = low, .asking = high, .border = bytes[split - 1]};
    }
    return STATUS_OK;
}

double link_seconds(const Link *link, double n_bytes) {
    const AlphaBeta *line = n_bytes <= link->border ? &link->eager : &link->asking;
    return line->alpha + line->beta * n_bytes;
}
