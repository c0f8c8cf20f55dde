/* Pictures: the data file, the script, and what happens where gnuplot is not; and children, which draw them. */
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

#include "base/file/file.h"
#include "base/system/timer.h"
#include "base/text/json.h"
#include "lab/launch/launch_child.h"
#include "lab/picture/plot.h"

static char folder[] = "/tmp/pgpt-test-plot.XXXXXX";
static char *old_path;

static int set_up(void **state) {
    (void)state;
    old_path = strdup(getenv("PATH") ? getenv("PATH") : "");
    return mkdtemp(folder) && old_path ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    char command[200];
    setenv("PATH", old_path, 1);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    free(old_path);
    return system(command) == 0 ? 0 : -1;
}

static char *text_of(const char *name) {
    char path[200], *bytes = NULL;
    size_t n_bytes;
    Error error = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_read(path, 1 << 20, &bytes, &n_bytes, &error) != STATUS_OK) fail_msg("%s", error.text);
    return bytes;
}

static bool is_there(const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return file_exists(path);
}

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is not in: %s", part, text);
}

static const double X[] = {1, 2, 4}, Y[] = {8.5, NAN, 2.25};

static Plot curves(const PlotSeries *series, int n_series) {
    return (Plot){.title = "Time of a step",
                  .x_label = "ranks",
                  .y_label = "time (s)",
                  .x_log = true,
                  .y_log = true,
                  .caption = "pgpt lab test --words 'a b'",
                  .series = series,
                  .n_series = n_series};
}

static void draw(const Plot *plot, const char *name, bool *drawn) {
    Error error = {0};
    if (plot_write(plot, folder, name, drawn, &error) != STATUS_OK) fail_msg("%s", error.text);
}

/* The data is all there without gnuplot, and pictures of other data are not. */
static void test_without_gnuplot(void **state) {
    (void)state;
    PlotSeries series[] = {{"measured", PLOT_POINTS, X, Y, 3}, {"measured: model", PLOT_DASHED, X, X, 3}};
    Plot plot = curves(series, 2);
    bool drawn = true;
    setenv("PATH", "/nonexistent", 1);
    Error error = {0};
    FileWriter writer;
    char path[200];
    snprintf(path, sizeof path, "%s/step.svg", folder);
    assert_int_equal(file_writer_open(&writer, path, &error), STATUS_OK);
    assert_int_equal(file_writer_printf(&writer, &error, "old"), STATUS_OK);
    assert_int_equal(file_writer_commit(&writer, &error), STATUS_OK);
    file_writer_abort(&writer);
    draw(&plot, "step", &drawn);
    setenv("PATH", old_path, 1);
    assert_false(drawn);
    assert_false(is_there("step.svg"));
    char *data = text_of("step.dat"), *script = text_of("step.gp");
    assert_has(data, "# Time of a step\n# made by: pgpt lab test --words 'a b'\n# x: ranks\n# y: time (s)\n");
    assert_has(data, "# series: measured\n1 8.5\n\n4 2.25\n\n\n# series: measured: model\n1 1\n2 2\n4 4\n");
    assert_has(script, "set label 101 'Time of a step' at screen 0.5, 0.955 center");
    assert_has(script, "set ylabel 'time (s)'");
    assert_has(script, "'pgpt lab test --words '.\"'\".'a b'.\"'\".''");
    free(data);
    free(script);
}

static void test_bars_are_a_table(void **state) {
    (void)state;
    static const char *const names[] = {"one", "t\"wo", "three"};
    PlotSeries series[] = {{"a", PLOT_BARS, X, X, 3}, {"b", PLOT_BARS, X, Y, 2}};
    Plot plot = {.title = "Bars",
                 .x_label = "",
                 .y_label = "time (ms)",
                 .series = series,
                 .n_series = 2,
                 .x_names = names};
    bool drawn;
    draw(&plot, "bars", &drawn);
    char *data = text_of("bars.dat");
    assert_has(data, "\"one\" 1 8.5\n\"t wo\" 2 ?\n\"three\" 4 ?\n");
    assert_null(strstr(data, "stacked"));
    free(data);
    const double whole[] = {9.5, 2, 4};
    plot.is_stacked = true;
    plot.whole = whole; /* in the data, not in the picture */
    draw(&plot, "bars", &drawn);
    data = text_of("bars.dat");
    char *script = text_of("bars.gp");
    assert_has(data, "# stacked: ");
    assert_has(data, "# name | a | b | whole\n\"one\" 1 8.5 9.5\n\"t wo\" 2 ? 2\n\"three\" 4 ? 4\n");
    assert_has(script, "using 3:xtic(1)");
    assert_null(strstr(script, "using 4"));
    free(data);
    free(script);
}

/* The script of a picture of one curve, or of bars that stand on names. */
static char *script_of(const double *x, const double *y, int n, const char *const *names) {
    PlotSeries series[] = {{"a", names ? PLOT_BARS : PLOT_LINES, x, y, n}};
    Plot plot = curves(series, 1);
    plot.x_names = names;
    bool drawn;
    draw(&plot, "one", &drawn);
    return text_of("one.gp");
}

static void assert_script(const double *x, const double *y, int n, const char *part) {
    char *script = script_of(x, y, n, NULL);
    assert_has(script, part);
    free(script);
}

/* Three marks at least, wherever the values lie; where a logarithmic axis has none, it is a linear one, which always has. */
static void test_axes_have_marks(void **state) {
    (void)state;
    const double far[] = {1.2, 11, 23}, near[] = {3e-3, 4.5e-3, 6.6e-3}, same[] = {5.1, 5.3, 5.5};
    assert_script(X, far, 3, "set ytics ('2 s' 2, '5 s' 5, '10 s' 10, '20 s' 20)\n");
    assert_script(X, near, 3, "set ytics ('3 ms' 0.003, '4 ms' 0.004, '5 ms' 0.005)\n");
    char *script = script_of(X, same, 3, NULL);
    assert_null(strstr(script, "set logscale y"));
    assert_null(strstr(script, "ytics"));
    free(script);
    assert_script(X, far, 3, "set xtics ('1' 1, '2' 2, '4' 4)\n");
    assert_script(X + 2, far, 1, "set xtics ('2' 2, '4' 4, '8' 8)\n"); /* one measurement: one to each side */
    const double wide[] = {2.5, 300, 2e6}, wider[] = {0.25, 300, 2e9};
    PlotSeries series[] = {{"a", PLOT_LINES, X, wide, 3}, {"b", PLOT_LINES, X, wider, 3}};
    for (int i = 0; i < 2; i++) { /* 1000000 like 1000, as long as there is room for it */
        Plot plot = curves(&series[i], 1);
        plot.y_label = "time (µs)";
        bool drawn;
        draw(&plot, "wide", &drawn);
        script = text_of("wide.gp");
        assert_has(script, i == 0 ? "set format y '%.0f'" : "set format y '%g'");
        free(script);
    }
    const double apart[] = {4, 64};
    assert_script(apart, far, 2, "set xtics ('4' 4, '16' 16, '64' 64)\n");
}

/* Names that have no room beside each other are turned, and end below their bars; what they are then has its own place. */
static void test_long_names_are_turned(void **state) {
    (void)state;
    static const char *const few[] = {"weak 1x1", "weak 2x1", "weak 4x1"};
    static const char *const wide[] = {"MPI + CUDA (not here)", "MPI + CUDA (not here, either)",
                                       "MPI + CUDA (nor here)"};
    char *script = script_of(X, X, 3, few);
    assert_has(script, "set xtics nomirror rotate by 0\n");
    assert_has(script, "set xlabel 'ranks'\n");
    free(script);
    script = script_of(X, X, 3, wide);
    assert_has(script, "set xtics nomirror rotate by 20 right\n");
    free(script);
    const char *many[40];
    double numbers[40];
    for (int i = 0; i < 40; i++) {
        many[i] = "weak 1x1";
        numbers[i] = i + 1;
    }
    script = script_of(numbers, numbers, 40, many);
    assert_has(script, "rotate by 90 right\n");
    assert_has(script, "'ranks' at graph 0.5, screen");
    assert_has(script, "set xlabel ''\n");
    free(script);
}

/* Where a text stands: what the last shift before it says. (Inlined, gcc 12 takes the file's text for a dead local.) */
__attribute__((noinline)) static double height_of(const char *svg, const char *text) {
    double x = NAN, y = NAN;
    const char *place = strstr(svg, text);
    if (!place) return NAN;
    for (const char *next = svg; (next = strstr(next, "translate(")) && next < place; next++)
        if (sscanf(next, "translate(%lf,%lf)", &x, &y) != 2) return NAN;
    return y;
}

/* A title, one of two lines too, lies within the picture: so far below its upper edge that its letters are. */
static void test_titles_are_whole(void **state) {
    (void)state;
    PlotSeries series[] = {{"a", PLOT_LINES, X, X, 3}, {"b", PLOT_LINES, X, X, 3}};
    Plot plot = curves(series, 2);
    plot.title =
        "A title that is so long that it has two lines, which is why nobody can be sure that the first of "
        "them is to be seen";
    plot.note = "four hosts: 100 Mbit/s, 10 ms";
    bool drawn;
    draw(&plot, "title", &drawn);
    char *data = text_of("title.dat"), *script = text_of("title.gp");
    assert_has(data, "\n# note: four hosts: 100 Mbit/s, 10 ms\n");
    assert_has(script, "set label 1 'four hosts: 100 Mbit/s, 10 ms' at screen 0.5, 0.058 center");
    assert_has(script, "set label 2 'pgpt lab test");
    assert_has(script, "set label 102 '");
    free(data);
    free(script);
    if (!drawn) skip();
    char *svg = text_of("title.svg");
    double y = height_of(svg, ">A title that is");
    if (!(y >= 16)) fail_msg("the title's letters stand at %g", y);
    free(svg);
}

/* A caption is what somebody typed: it is shown, and nothing in it is run. */
static void test_words_are_only_words(void **state) {
    (void)state;
    char caption[300];
    snprintf(caption, sizeof caption, "pgpt `touch %s/pwned1` \"`touch %s/pwned2`\" 'it''s' \\n <b> & %%s",
             folder, folder);
    PlotSeries series[] = {{"a`b\"c'd", PLOT_LINES, X, X, 3}};
    Plot plot = curves(series, 1);
    plot.caption = plot.note = caption;
    plot.title = "`touch pwned3`";
    bool drawn;
    draw(&plot, "words", &drawn);
    assert_false(is_there("pwned1") || is_there("pwned2") || is_there("pwned3"));
    assert_int_equal(drawn, plot_has_gnuplot());
    if (!drawn) skip();
    char *svg = text_of("words.svg");
    assert_has(svg, "pwned1");
    assert_has(svg, "&lt;b");
    assert_true(is_there("words.png"));
    free(svg);
}

static void test_names_are_checked(void **state) {
    (void)state;
    PlotSeries series[] = {{"a", PLOT_LINES, X, X, 3}};
    Plot plot = curves(series, 1);
    bool drawn;
    Error error = {0};
    assert_int_equal(plot_write(&plot, folder, "../x", &drawn, &error), STATUS_FAILED);
    error = (Error){0};
    assert_int_equal(plot_write(&plot, "/proc/nothing", "x", &drawn, &error), STATUS_USER);
}

/* ---- Children */

static Status run(const char *const *words, double timeout_s, ChildResult *result, Error *error) {
    return child_run(&(ChildSetup){.words = words, .folder = folder, .timeout_s = timeout_s}, result, error);
}

static void test_a_child_is_read(void **state) {
    (void)state;
    const char *words[] = {"sh", "-c", "echo first; echo wrong >&2; printf '{\"a\": 3}\\n'; pwd > here",
                           NULL};
    ChildResult result;
    Error error = {0};
    json_t *object = NULL;
    assert_int_equal(run(words, 20, &result, &error), STATUS_OK);
    assert_int_equal(result.exit_code, 0);
    assert_string_equal(result.complaint, "wrong\n");
    assert_int_equal(child_json(&result, words, &object, &error), STATUS_OK);
    assert_int_equal(json_integer_value(json_object_get(object, "a")), 3);
    assert_true(is_there("here"));
    json_decref(object);
    child_free(&result);
}

/* More than a pipe holds, on both of them at once. */
static void test_a_child_may_say_much(void **state) {
    (void)state;
    const char *words[] = {"sh", "-c", "seq 1 40000; seq 1 40000 >&2; echo end", NULL};
    ChildResult result;
    Error error = {0};
    assert_int_equal(run(words, 60, &result, &error), STATUS_OK);
    assert_int_equal(result.exit_code, 0);
    assert_string_equal(result.output + result.n_output - 10, "40000\nend\n");
    child_free(&result);
}

static void test_what_goes_wrong_is_said(void **state) {
    (void)state;
    const char *failing[] = {
        "sh", "-c", "echo '-----' >&2; echo 'pgpt: no such sea' >&2; echo '-----' >&2; exit 2", NULL};
    const char *killed[] = {"sh", "-c", "kill -9 $$", NULL}, *missing[] = {"no-such-program", NULL};
    const char *slow[] = {"sh", "-c", "sleep 100", NULL}, *chatty[] = {"sh", "-c", "echo no json", NULL};
    ChildResult result;
    Error error = {0};
    assert_int_equal(run(failing, 20, &result, &error), STATUS_OK);
    assert_int_equal(child_check(&result, failing, &error), STATUS_USER);
    assert_has(error.text, "exit code 2: no such sea");
    child_free(&result);
    error = (Error){0};
    assert_int_equal(run(killed, 20, &result, &error), STATUS_OK);
    assert_int_equal(child_check(&result, killed, &error), STATUS_FAILED);
    assert_has(error.text, "signal 9");
    child_free(&result);
    error = (Error){0};
    assert_int_equal(run(missing, 20, &result, &error), STATUS_USER);
    assert_has(error.text, "no-such-program");
    child_free(&result);
    error = (Error){0};
    uint64_t start = timer_now_ns();
    assert_int_equal(run(slow, 0.2, &result, &error), STATUS_OK);
    assert_true(timer_seconds_since(start) < 50);
    assert_int_equal(child_check(&result, slow, &error), STATUS_FAILED);
    assert_has(error.text, "without a result");
    child_free(&result);
    error = (Error){0};
    json_t *object = NULL;
    assert_int_equal(run(chatty, 20, &result, &error), STATUS_OK);
    assert_int_equal(child_json(&result, chatty, &object, &error), STATUS_FAILED);
    assert_has(error.text, "did not end with a JSON object");
    child_free(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_gnuplot),      cmocka_unit_test(test_bars_are_a_table),
        cmocka_unit_test(test_axes_have_marks),      cmocka_unit_test(test_long_names_are_turned),
        cmocka_unit_test(test_titles_are_whole),     cmocka_unit_test(test_words_are_only_words),
        cmocka_unit_test(test_names_are_checked),    cmocka_unit_test(test_a_child_is_read),
        cmocka_unit_test(test_a_child_may_say_much), cmocka_unit_test(test_what_goes_wrong_is_said),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
