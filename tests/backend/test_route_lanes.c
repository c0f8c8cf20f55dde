/* A router's arithmetic in vectors beside the plain one: the same choices for every number of experts and wishes, with
 * ties, infinities and what is no number among the scores; softmax, sigmoids and sums to the last digits. */
#include "backend/cpu/experts/route_lanes.h"
#include "harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 300 };

/* Every fifth or so is one of a few, so that there are ties. */
static void fill(float *x, int n, uint64_t seed) {
    static const float few[] = {0.0f, -0.0f, 1.5f, -2.25f, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < n; i++) {
        uint64_t draw = test_hash("route", seed * MOST + (uint64_t)i);
        x[i] = draw % 5 ? 6.0f * test_value("route", seed * MOST + (uint64_t)i) : few[draw / 5 % 7];
    }
}

static void choices(void **state) {
    (void)state;
    float score[MOST];
    int got[MOST], want[MOST];
    for (int E = 1; E <= MOST; E += E < 70 ? 1 : 23)
        for (int K = 1; K <= E && K <= ROUTE_MAX_CHOSEN; K += K < 4 ? 1 : 7) {
            fill(score, E, (uint64_t)E * 100 + (uint64_t)K);
            cpu_route_math.largest(score, E, K, got);
            route_math.largest(score, E, K, want);
            for (int s = 0; s < K; s++)
                if (got[s] != want[s])
                    fail_msg("wish %d of %d of %d: %d, plain %d", s, K, E, got[s], want[s]);
        }
}

static void check(const char *what, int E, int i, float got, float want) {
    bool is_same = isnan(want) ? isnan(got) : fabsf(got - want) <= 2e-6f * (fabsf(want) + 1e-30f);
    if (!is_same && got != want)
        fail_msg("%s of %d, %d: %.9g, plain %.9g", what, E, i, (double)got, (double)want);
}

/* Of numbers, and of some that are infinite or none. */
static void values(void **state) {
    (void)state;
    static float x[MOST], got[ROUTE_MAX_EXPERTS], want[ROUTE_MAX_EXPERTS];
    for (int E = 1; E <= MOST; E++)
        for (int kind = 0; kind < 4; kind++) {
            for (int i = 0; i < E; i++) x[i] = 20.0f * test_value("values", (uint64_t)E * 1000 + (uint64_t)i);
            if (kind == 1) x[E / 2] = -INFINITY;
            if (kind == 2) x[E / 2] = NAN;
            if (kind == 3) x[E - 1] = INFINITY;
            check("log sum", E, kind, cpu_route_math.softmax(x, E, got), route_math.softmax(x, E, want));
            for (int i = 0; i < E; i++) check("softmax", E, i, got[i], want[i]);
            cpu_route_math.sigmoids(x, E, got);
            route_math.sigmoids(x, E, want);
            for (int i = 0; i < E; i++) check("sigmoid", E, i, got[i], want[i]);
            for (int i = 0; i < E; i++) want[i] = fabsf(x[i]);
            if (kind) continue;
            float sum = 0.0f;
            for (int i = 0; i < E; i++) sum += want[i] * want[i];
            check("dot", E, 0, cpu_route_math.dot(want, want, E), sum);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(choices), cmocka_unit_test(values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
