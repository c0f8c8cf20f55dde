#include "lab/traffic/traffic_way.h"

#include <math.h>
#include <stdlib.h>

static bool is_exact(const TrafficWay *way, int64_t step) {
    return compression_is_exact(&way->compression, step - 1);
}

void traffic_way_costs(const TrafficWay *way, double exact, double own, double *x) {
    double sum = 0.0;
    int64_t step = 0;
    for (int64_t i = 0; i < way->curve.n; i++) {
        while (step < (int64_t)way->curve.x[CURVE_X_STEP][i]) sum += is_exact(way, ++step) ? exact : own;
        x[i] = sum;
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double traffic_way_median_ms(const TrafficWay *way, bool of_exact) {
    const CurveRun *curve = &way->curve;
    double *times = calloc((size_t)curve->n + 1, sizeof *times), median = NAN;
    int64_t n = 0;
    for (int64_t i = 1; times && i < curve->n; i++) {
        double n_steps = curve->x[CURVE_X_STEP][i] - curve->x[CURVE_X_STEP][i - 1];
        if (is_exact(way, (int64_t)curve->x[CURVE_X_STEP][i]) != of_exact || n_steps <= 0.0) continue;
        times[n++] = 1e3 * (curve->x[CURVE_X_TIME][i] - curve->x[CURVE_X_TIME][i - 1]) / n_steps;
    }
    if (n) {
        qsort(times, (size_t)n, sizeof *times, compare);
        median = n % 2 ? times[n / 2] : 0.5 * (times[n / 2 - 1] + times[n / 2]);
    }
    free(times);
    return median;
}

double traffic_way_link_ms(const TrafficWay *way, double rate, double latency_s) {
    return 1e3 * (8.0 * way->n_bytes / rate + latency_s * way->n_messages);
}

double traffic_way_loss(const TrafficWay *way) {
    int64_t i = way->curve.n - 1;
    while (i >= 0 && isnan(way->curve.y[CURVE_VALIDATION][i])) i--;
    return i < 0 ? NAN : way->curve.y[CURVE_VALIDATION][i];
}

int64_t traffic_way_reaches(const TrafficWay *way, double loss) {
    for (int64_t i = 0; i < way->curve.n; i++)
        if (way->curve.y[CURVE_VALIDATION][i] <= loss) return i;
    return -1;
}
