/* What a study of traffic makes of a run: which steps cost what, and which are timed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "lab/traffic/traffic_way.h"

enum { N = 12 };

static void assert_close(double value, double wanted) {
    if (!(fabs(value - wanted) <= 1e-9 * fabs(wanted))) fail_msg("%.9g is not %.9g", value, wanted);
}

/* A run of N steps of 10 ms, of which exact ones take 30; evaluated every third. */
typedef struct {
    double step[N], time[N], tokens[N], loss[N], validation[N], rate[N];
} Arrays;

static TrafficWay make_way(const char *text, int64_t n_warmup, Arrays *arrays) {
    TrafficWay way = {.n_bytes = 1e6, .n_messages = 4};
    Error error = {0};
    double time = 0.0;
    assert_int_equal(compression_parse(text, &way.compression, &error), STATUS_OK);
    way.compression.n_warmup = n_warmup;
    for (int i = 0; i < N; i++) {
        time += compression_is_exact(&way.compression, i) ? 0.03 : 0.01;
        arrays->step[i] = i + 1;
        arrays->rate[i] = i < 5 ? 1.0 : 0.1;
        arrays->time[i] = time;
        arrays->validation[i] = i % 3 == 2 ? 5.0 - 0.1 * i : NAN;
    }
    way.curve.n = N;
    way.curve.x[CURVE_X_STEP] = arrays->step;
    way.curve.x[CURVE_X_TIME] = arrays->time;
    way.curve.y[CURVE_VALIDATION] = arrays->validation;
    way.curve.y[CURVE_RATE] = arrays->rate;
    return way;
}

static void test_costs(void **state) {
    (void)state;
    Arrays arrays;
    double x[N];
    TrafficWay way = make_way("0/1-adam", 2, &arrays); /* exact: steps 1, 2 and, eight behind, 10 */
    traffic_way_costs(&way, (const double[]){100.0, 1.0, 0.0}, x);
    assert_close(x[0], 100.0);
    assert_close(x[1], 200.0);
    assert_close(x[8], 207.0);
    assert_close(x[9], 307.0);
    assert_close(x[11], 309.0);
    assert_close(traffic_way_median_ms(&way, TRAFFIC_OWN), 10.0);
    assert_close(traffic_way_median_ms(&way, TRAFFIC_EXACT), 30.0);
    arrays.step[1] = 4; /* not every step is in the file: those between count all the same */
    traffic_way_costs(&way, (const double[]){100.0, 1.0, 0.0}, x);
    assert_close(x[1], 202.0);
}

/* Eight steps may pass from step 6 on; all ranks evaluate behind steps 6, 9 and 12, and agree before the exact
 * step 10. */
static void test_local(void **state) {
    (void)state;
    Arrays arrays;
    double x[N];
    TrafficWay way = make_way("0/1-adam:8", 2, &arrays);
    traffic_way_costs(&way, (const double[]){100.0, 1.0, 0.0}, x);
    const double wanted[N] = {100, 200, 201, 202, 203, 204, 204, 204, 205, 305, 305, 306};
    for (int i = 0; i < N; i++) assert_close(x[i], wanted[i]);
    assert_close(traffic_way_cost(&way, (const double[]){0.0, 0.0, 1.0}), 3.0);
    assert_close(traffic_way_median_ms(&way, TRAFFIC_LOCAL), 10.0);
}

static void test_losses(void **state) {
    (void)state;
    Arrays arrays;
    TrafficWay way = make_way("none", 0, &arrays);
    assert_close(traffic_way_loss(&way), 3.9);
    assert_int_equal(traffic_way_reaches(&way, 4.55), 5);
    assert_int_equal(traffic_way_reaches(&way, 1.0), -1);
    assert_true(isnan(traffic_way_median_ms(&way, TRAFFIC_OWN))); /* all are exact */
    /* 8 Mbit by 100 Mbit/s, and four messages. */
    assert_close(traffic_way_link_ms(way.n_bytes, way.n_messages, 1e8, 1e-3), 84.0);
}

/* The study finds the ways by these: each must be one of its kind. */
static void test_examples(void **state) {
    (void)state;
    for (int kind = 0; kind < N_COMPRESS_KINDS; kind++) {
        const char *text = compression_example((CompressKind)kind);
        Compression compression;
        Error error = {0};
        char name[32];
        if (compression_parse(text, &compression, &error) != STATUS_OK) fail_msg("%s: %s", text, error.text);
        assert_int_equal(compression.kind, kind);
        assert_string_equal(compression_name(&compression, name, sizeof name), text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_costs), cmocka_unit_test(test_local),
                                       cmocka_unit_test(test_losses), cmocka_unit_test(test_examples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
