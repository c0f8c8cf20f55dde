/* What a point of lab scaling stands for: its figures are of the same steps, so that parts make a whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lab/scaling.h"

static void assert_close(double value, double wanted, double tolerance) {
    if (fabs(value - wanted) <= tolerance * fabs(wanted)) return;
    fail_msg("%.9g is not %.9g", value, wanted);
}

static void assert_adds_up(const ScalingPoint *point) {
    double parts = point->forward_ms + point->backward_ms + point->update_ms + point->other_ms +
                   (isnan(point->comm_wait_ms) ? 0 : point->comm_wait_ms);
    if (!(fabs(parts - point->step_ms) <= 1e-9 * point->step_ms))
        fail_msg("parts of %.17g make a step of %.17g", parts, point->step_ms);
}

/* Steps in which the time moves from one part to another, and one that was disturbed: by itself, each part's
 * median would be a step's that never was. */
static void test_parts_add_up(void **state) {
    (void)state;
    static const double forward[] = {90, 10, 20, 90, 30, 20, 900}, backward[] = {5, 90, 70, 8, 60, 75, 40};
    char folder[] = "/tmp/pgpt-test-scaling.XXXXXX", path[80];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"version\":\"1\",\"parameters\":77}\n");
    for (int i = 0; i < 7; i++)
        fprintf(file,
                "{\"step\":%d,\"step_ms\":%g,\"forward_ms\":%g,\"backward_ms\":%g,\"update_ms\":%d,"
                "\"comm_ms\":3,\"comm_wait_ms\":2,\"tokens_per_s\":1,\"slowest_ms\":9,\"slowest_rank\":1}\n",
                i + 1, forward[i] + backward[i] + i + 2 + 1.5, forward[i], backward[i], i);
    assert_int_equal(fclose(file), 0);
    ScalingPoint point = {.n_ranks = 2};
    Error error = {0};
    assert_int_equal(scaling_read(folder, 1, 7, &point, &error), STATUS_OK);
    assert_adds_up(&point);
    assert_true(point.step_ms > 90 && point.step_ms < 120); /* not the disturbed one */
    assert_int_equal(point.n_parameters, 77);
    assert_int_equal(point.slowest_rank, 1);
    assert_int_equal(scaling_read(folder, 3, 1, &point, &error), STATUS_OK);
    assert_close(point.forward_ms, 20, 1e-12);
    assert_int_equal(scaling_read(folder, 9, 1, &point, &error), STATUS_FAILED); /* no such step */
    unlink(path);
    rmdir(folder);
}

/* Of several runs one counts, with all its figures. */
static void test_a_run_in_the_middle(void **state) {
    (void)state;
    ScalingPoint points[4] = {{.step_ms = 30, .forward_ms = 9, .backward_ms = 21, .comm_ms = NAN},
                              {.step_ms = 10, .forward_ms = 8, .backward_ms = 2, .comm_ms = NAN},
                              {.step_ms = 20, .forward_ms = 1, .backward_ms = 19, .comm_ms = NAN},
                              {.step_ms = 26, .forward_ms = 20, .backward_ms = 6, .comm_ms = NAN}};
    for (int i = 0; i < 4; i++) points[i].comm_wait_ms = points[i].slowest_ms = NAN;
    ScalingPoint point;
    Error error = {0};
    assert_int_equal(scaling_middle(points, 3, &point, &error), STATUS_OK);
    assert_close(point.step_ms, 20, 1e-12);
    assert_close(point.forward_ms, 1, 1e-12);
    assert_true(isnan(point.comm_ms) && isnan(point.comm_wait_ms));
    assert_adds_up(&point);
    assert_int_equal(scaling_middle(points, 4, &point, &error), STATUS_OK); /* two of them */
    assert_close(point.step_ms, 23, 1e-12);
    assert_close(point.forward_ms, 10.5, 1e-12);
    assert_adds_up(&point);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_add_up),
        cmocka_unit_test(test_a_run_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
