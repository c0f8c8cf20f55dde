/* Curves: what is smoothed, thinned out and left out, and how runs are named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/curves/curves.h"

static void assert_close(double value, double wanted) {
    if (!(fabs(value - wanted) <= 1e-9 * fmax(1.0, fabs(wanted))))
        fail_msg("%.12g is not %.12g", value, wanted);
}

/* A run of n steps whose loss is `step` and whose validation is measured every tenth. */
static CurveRun read_steps(int n) {
    char path[] = "/tmp/pgpt-test-curves.XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    FILE *file = fdopen(descriptor, "w");
    assert_non_null(file);
    for (int i = 1; i <= n; i++) {
        fprintf(file, "{\"step\":%d,\"tokens\":%d,\"loss\":%d,\"step_ms\":500", i, 64 * i, i);
        fprintf(file, i % 10 == 0 ? ",\"val_loss\":%d}\n" : "}\n", 2 * i);
    }
    assert_int_equal(fclose(file), 0);
    CurveRun run;
    Error error = {0};
    if (curve_run_read(&run, path, &error) != STATUS_OK) fail_msg("%s", error.text);
    unlink(path);
    return run;
}

static void test_lines(void **state) {
    (void)state;
    Arena arena = {0};
    CurveRun run = read_steps(40);
    CurveView view = {.x = CURVE_X_TIME, .smooth = 1};
    CurveLine line = curve_line(&run, CURVE_LOSS, &view, &arena);
    assert_int_equal(line.n, 40);
    assert_close(line.x[39], 20.0); /* 40 steps of half a second */
    line = curve_line(&run, CURVE_VALIDATION, &view, &arena);
    assert_int_equal(line.n, 4);
    assert_close(line.x[0], 5.0);
    assert_close(line.y[3], 80.0);
    assert_int_equal(curve_line(&run, CURVE_NORM, &view, &arena).n, 0);
    assert_false(curve_has(&run, CURVE_NORM));
    assert_true(panel_has(&run, 1, PANEL_LOSS));
    assert_false(panel_has(&run, 1, PANEL_SPEED));
    arena_free(&arena);
    curve_run_free(&run);
    curve_run_free(&run);
}

/* A straight line stays one, to its ends; a single peak becomes a mean. Validation is left alone. */
static void test_smoothing(void **state) {
    (void)state;
    Arena arena = {0};
    CurveRun run = read_steps(40);
    CurveView view = {.x = CURVE_X_STEP, .smooth = 5};
    CurveLine line = curve_line(&run, CURVE_LOSS, &view, &arena);
    for (int64_t i = 0; i < 40; i++) assert_close(line.y[i], (double)(i + 1));
    run.y[CURVE_LOSS][19] += 50;
    line = curve_line(&run, CURVE_LOSS, &view, &arena);
    assert_close(line.y[16], 17);
    for (int64_t i = 17; i <= 21; i++) assert_close(line.y[i], (double)(i + 1) + 10);
    assert_close(line.y[22], 23);
    assert_close(curve_line(&run, CURVE_VALIDATION, &view, &arena).y[1], 40.0);
    arena_free(&arena);
    curve_run_free(&run);
}

/* Very many steps become few points, of which the mean is the same; a logarithmic axis leaves out what it has no
 * place for. */
static void test_many_steps(void **state) {
    (void)state;
    Arena arena = {0};
    CurveRun run = read_steps(5000);
    CurveView view = {.x = CURVE_X_STEP, .smooth = 1};
    CurveLine line = curve_line(&run, CURVE_LOSS, &view, &arena);
    assert_int_equal(line.n, CURVE_MOST_POINTS);
    for (int64_t i = 0; i < line.n; i++) assert_close(line.y[i], line.x[i]);
    assert_true(line.x[0] < 3 && line.x[line.n - 1] > 4997);
    run.y[CURVE_LOSS][0] = -1;
    run.y[CURVE_LOSS][1] = NAN;
    run.n = 10;
    view.log_y = true;
    assert_int_equal(curve_line(&run, CURVE_LOSS, &view, &arena).n, 8);
    arena_free(&arena);
    curve_run_free(&run);
}

static void test_names(void **state) {
    (void)state;
    static char *const paths[] = {"runs/a/x", "runs/b/x/", "other", "/deep/b/x"};
    static const char *const wanted[] = {"a/x", "runs/b/x", "other", "deep/b/x"};
    CurveRun runs[4] = {{.n = 0}};
    Error error = {0};
    for (int i = 0; i < 4; i++) runs[i].path = paths[i];
    assert_int_equal(curve_runs_name(runs, 4, &error), STATUS_OK);
    assert_string_equal(runs[0].name, wanted[0]);
    assert_string_equal(runs[1].name, wanted[1]);
    assert_string_equal(runs[2].name, wanted[2]);
    assert_string_equal(runs[3].name, wanted[3]);
    runs[1].path = paths[0];
    assert_int_equal(curve_runs_name(runs, 4, &error), STATUS_USER);
    for (int i = 0; i < 4; i++) free(runs[i].name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_smoothing),
        cmocka_unit_test(test_many_steps),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
