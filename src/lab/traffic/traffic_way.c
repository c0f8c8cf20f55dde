#include "lab/traffic/traffic_way.h"

#include <math.h>
#include <stdlib.h>

/* Of a step that leads to point i of the curve. */
static TrafficStep kind_of(const TrafficWay *way, int64_t step, int64_t i) {
    const CurveRun *curve = &way->curve;
    Compression compression = way->compression;
    if (compression_is_exact(&compression, step - 1)) return TRAFFIC_EXACT;
    if (!compression_is_local(&compression)) return TRAFFIC_OWN;
    bool is_point = step == (int64_t)curve->x[CURVE_X_STEP][i];
    bool is_followed = is_point && (i == curve->n - 1 || !isnan(curve->y[CURVE_VALIDATION][i]));
    for (int64_t k = 0; k < curve->n; k++)
        compression.highest_rate = fmax(compression.highest_rate, curve->y[CURVE_RATE][k]);
    bool joins = compression_joins(&compression, step - 1, curve->y[CURVE_RATE][i]);
    return is_followed || joins ? TRAFFIC_OWN : TRAFFIC_LOCAL;
}

void traffic_way_costs(const TrafficWay *way, const double cost[N_TRAFFIC_STEPS], double *x) {
    double sum = 0.0;
    int64_t step = 0;
    for (int64_t i = 0; i < way->curve.n; i++) {
        for (int64_t end = (int64_t)way->curve.x[CURVE_X_STEP][i]; step < end;) {
            step++;
            sum += cost[kind_of(way, step, i)];
        }
        x[i] = sum;
    }
}

double traffic_way_cost(const TrafficWay *way, const double cost[N_TRAFFIC_STEPS]) {
    double *x = calloc((size_t)way->curve.n + 1, sizeof *x), sum = NAN;
    if (x && way->curve.n) {
        traffic_way_costs(way, cost, x);
        sum = x[way->curve.n - 1];
    }
    free(x);
    return sum;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double traffic_way_median_ms(const TrafficWay *way, TrafficStep kind) {
    const CurveRun *curve = &way->curve;
    double *times = calloc((size_t)curve->n + 1, sizeof *times), median = NAN;
    int64_t n = 0;
    for (int64_t i = 1; times && i < curve->n; i++) {
        double n_steps = curve->x[CURVE_X_STEP][i] - curve->x[CURVE_X_STEP][i - 1];
        if (kind_of(way, (int64_t)curve->x[CURVE_X_STEP][i], i) != kind || n_steps <= 0.0) continue;
        times[n++] = 1e3 * (curve->x[CURVE_X_TIME][i] - curve->x[CURVE_X_TIME][i - 1]) / n_steps;
    }
    if (n) {
        qsort(times, (size_t)n, sizeof *times, compare);
        median = n % 2 ? times[n / 2] : 0.5 * (times[n / 2 - 1] + times[n / 2]);
    }
    free(times);
    return median;
}

double traffic_way_link_ms(double n_bytes, double n_messages, double rate, double latency_s) {
    return 1e3 * (8.0 * n_bytes / rate + latency_s * n_messages);
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
