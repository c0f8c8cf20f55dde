/* What people and programs get to see: JSON, the progress bar, the log. */
#define _GNU_SOURCE /* posix_openpt */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/system/timer.h"
#include "base/text/json.h"
#include "base/text/log.h"
#include "base/text/progress.h"
#include "folder_support.h"

/* ---- JSON */

static void test_json_print(void **state) {
    (void)state;
    Error error = {0};
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    json_t *kept = json_object(), *object = json_object();
    json_object_set_new(object, "loss", json_make_number(0.1f));
    json_object_set(object, "inner", kept);
    assert_int_equal(json_print(stream, object, &error), STATUS_OK);
    fclose(stream);
    assert_string_equal(text, "{\"loss\":0.100000001,\"inner\":{}}\n"); /* a float comes back */
    assert_int_equal(kept->refcount, 1);                                /* the outer one is gone */
    json_decref(kept);
    free(text);
    FILE *full = fopen("/dev/full", "w");
    if (!full) skip();
    assert_int_equal(json_print(full, json_object(), &error), STATUS_FAILED);
    fclose(full);
}

static void test_json_line(void **state) {
    (void)state;
    Error error = {0};
    char *line;
    json_t *object = json_object();
    json_object_set_new(object, "step", json_integer(3));
    json_object_set_new(object, "loss", json_make_number(0.1f));
    json_object_set_new(object, "a", json_make_number(NAN));
    json_object_set_new(object, "b", json_make_number(-INFINITY));
    json_object_set_new(object, "name", json_make_text("x\"\n\xC3\xA9"));
    json_object_set_new(object, "bad", json_make_text("\xFF\xC0\xAF\xED\xA0\x80\xE2\x82!"));
    assert_int_equal(json_line(object, JSON_DIGITS_FLOAT, &line, &error), STATUS_OK);
    const char *r = "\xEF\xBF\xBD";
    char wanted[256];
    snprintf(
        wanted, sizeof wanted,
        "{\"step\":3,\"loss\":0.100000001,\"a\":null,\"b\":null,\"name\":\"x\\\"\\n\xC3\xA9\",\"bad\":\"%s%s%s%s%s%s"
        "%s%s!\"}",
        r, r, r, r, r, r, r, r);
    assert_string_equal(line, wanted);
    free(line);
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        assert_int_equal(json_line_write(full, object, JSON_DIGITS_FLOAT, &error), STATUS_FAILED);
        fclose(full);
    }
    json_decref(object);
}

static void test_json_fields(void **state) {
    (void)state;
    char path[256];
    Error error = {0};
    json_t *object, *inner;
    put_file(in_folder(path, "x.json"),
             "{\"n\": 5, \"x\": 0.5, \"t\": \"word\", \"b\": true, \"o\": {}, \"l\": [1]}");
    assert_int_equal(json_read(path, 1000, &object, &error), STATUS_OK);
    int64_t n;
    double x;
    const char *text;
    bool truth = false;
    assert_int_equal(json_field_int(object, path, "n", 0, 5, &n, &error), STATUS_OK);
    assert_int_equal(n, 5);
    assert_int_equal(json_field_float(object, path, "x", 0, 1, &x, &error), STATUS_OK);
    assert_true(x == 0.5);
    assert_int_equal(json_field_float(object, path, "n", 0, 10, &x, &error), STATUS_OK);
    assert_true(x == 5);
    assert_int_equal(json_field_text(object, path, "t", &text, &error), STATUS_OK);
    assert_string_equal(text, "word");
    assert_int_equal(json_field_bool(object, path, "b", &truth, &error), STATUS_OK);
    assert_true(truth);
    assert_int_equal(json_field_object(object, path, "o", &inner, &error), STATUS_OK);
    assert_int_equal(json_field_array(object, path, "l", &inner, &error), STATUS_OK);
    assert_int_equal(json_array_size(inner), 1);

    assert_int_equal(json_field_int(object, "F", "n", 0, 4, &n, &error), STATUS_USER);
    assert_string_equal(error.text, "F: field 'n' wants a whole number between 0 and 4, got 5");
    error = (Error){0};
    assert_int_equal(json_field_int(object, "F", "x", 0, 4, &n, &error), STATUS_USER);
    assert_string_equal(error.text, "F: field 'x' wants a whole number, got a number with a fraction");
    error = (Error){0};
    assert_int_equal(json_field_float(object, "F", "x", 1, 2, &x, &error), STATUS_USER);
    assert_string_equal(error.text, "F: field 'x' wants a number between 1 and 2, got 0.5");
    error = (Error){0};
    assert_int_equal(json_field_text(object, "F", "gone", &text, &error), STATUS_USER);
    assert_string_equal(error.text, "F: field 'gone' is missing");
    error = (Error){0};
    assert_int_equal(json_field_bool(inner, "F", "b", &truth, &error), STATUS_USER);
    json_decref(object);
}

static void test_json_hostile(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",         "{",       "{\"a\":1}}", "{\"a\":1,\"a\":2}", "[1,]",
        "\"\xFF\"", "[1e999]", "{a: 1}",     "\"\\u0000\"",       "[99999999999999999999]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Error error = {0};
        json_t *value;
        assert_int_equal(json_parse(texts[i], strlen(texts[i]), "F", &value, &error), STATUS_USER);
        assert_error(&error, STATUS_USER, "F:1:");
        assert_null(value);
    }
    char deep[10001];
    memset(deep, '[', 10000);
    Error error = {0};
    json_t *value;
    assert_int_equal(json_parse(deep, 10000, "F", &value, &error), STATUS_USER);
}

/* ---- The progress bar */

static const Terminal plain = {.interactive = true};
static const Terminal rich = {.interactive = true, .colour = true, .utf8 = true};

/* The columns a line takes once its colour sequences are gone. */
static size_t visible_columns(const char *line) {
    size_t columns = 0;
    for (; *line; line++) {
        if (*line == '\033') {
            line = strchr(line, 'm');
            assert_non_null(line);
        } else {
            columns += ((unsigned char)*line & 0xC0) != 0x80;
        }
    }
    return columns;
}

static void test_progress_render(void **state) {
    (void)state;
    char line[PROGRESS_LINE_BYTES];
    const char *status = "step 400/2000  loss 2.3411  12.3 k tok/s  183 GFLOP/s";
    progress_render(line, plain, 79, 0.2, 185, status);
    assert_string_equal(line,
                        "[#>    ]  20%  step 400/2000  loss 2.3411  12.3 k tok/s  183 GFLOP/s  ETA 3m05s");
    progress_render(line, plain, 70, 0.2, 185, status); /* the last field goes */
    assert_string_equal(line, "[##>       ]  20%  step 400/2000  loss 2.3411  12.3 k tok/s  ETA 3m05s");
    progress_render(line, plain, 49, 0.2, 185, status); /* and the bar */
    assert_string_equal(line, " 20%  step 400/2000  loss 2.3411  ETA 3m05s");
    progress_render(line, plain, 12, 0.2, 185, "wide-word"); /* cut, as there is no shorter field */
    assert_string_equal(line, " 20%  wide-w");
}

static void test_progress_fits(void **state) {
    (void)state;
    char line[PROGRESS_LINE_BYTES];
    static const char *const statuses[] = {
        "", "step 400/2000  loss 2.3411  12.3 k tok/s  183 GFLOP/s", "ärger  überall",
        "one field only that is really much too long for a narrow little terminal"};
    for (int columns = -1; columns < 200; columns++) {
        for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
            for (int percent = -10; percent <= 110; percent += 5) {
                double left = percent % 2 ? NAN : percent * 100.0;
                progress_render(line, percent % 4 ? plain : rich, columns, percent / 100.0, left,
                                statuses[i]);
                assert_true(visible_columns(line) <= (size_t)(columns < 0 ? 0 : columns));
            }
        }
    }
    progress_render(line, rich, 60, 0.5, NAN, "x");
    assert_non_null(strstr(line, "█"));
    assert_non_null(strstr(line, " 50%  x"));
    assert_null(strstr(line, "ETA"));
    progress_render(line, plain, 60, 1.0, 0, "x");
    assert_non_null(strstr(line, "######]"));
    assert_non_null(strstr(line, "100%  x  ETA 0s"));
    progress_render(line, plain, 60, NAN, 1e9, "x");
    assert_non_null(strstr(line, "  0%  x  ETA over 999d"));
    progress_render(line, plain, 60, 0.29, NAN, ""); /* 0.29 * 100 is 28.999... */
    assert_non_null(strstr(line, " 29%"));
}

static void test_progress_rate(void **state) {
    (void)state;
    Progress progress;
    FILE *nowhere = fopen("/dev/null", "w");
    progress_begin(&progress, nowhere, 0.5); /* resumed half way */
    uint64_t now = progress.sampled_ns;
    assert_true(isnan(progress_seconds_left(&progress)));
    for (int i = 1; i <= 10; i++) progress_update_at(&progress, 0.5 + 0.01 * i, "", now += 1000000000);
    assert_true(fabs(progress_seconds_left(&progress) - 40) < 1e-6);
    /* Ten times slower from now on: after a few minutes it believes it. */
    for (int i = 1; i <= 30; i++) progress_update_at(&progress, 0.6 + 0.01 * i, "", now += 10000000000);
    double left = progress_seconds_left(&progress);
    assert_true(left > 90 && left < 101);
    progress_update_at(&progress, 0.9, "", now); /* no time has passed */
    assert_true(isfinite(progress_seconds_left(&progress)));
    progress_update_at(&progress, 1, "", now + 1);
    assert_true(progress_seconds_left(&progress) == 0);
    fclose(nowhere);
}

/* A pair of pseudo-terminal ends; false where the system has none. */
static bool open_terminal(int *master, FILE **slave, unsigned short columns) {
    *master = posix_openpt(O_RDWR | O_NOCTTY);
    if (*master < 0 || grantpt(*master) < 0 || unlockpt(*master) < 0) return false;
    *slave = fopen(ptsname(*master), "w");
    struct winsize size = {.ws_col = columns, .ws_row = 24};
    return *slave && ioctl(*master, TIOCSWINSZ, &size) == 0;
}

/* What has been written to the terminal since the last look. */
/* What has come to the screen since the last call. A terminal hands text on a moment after it was written: wait until
 * there has been nothing new for a while. */
static const char *screen(int master) {
    static char text[65536];
    size_t n_bytes = 0;
    struct pollfd ready = {.fd = master, .events = POLLIN};
    while (n_bytes < sizeof text - 1 && poll(&ready, 1, 200) == 1) {
        ssize_t n = read(master, text + n_bytes, sizeof text - 1 - n_bytes);
        if (n <= 0) break;
        n_bytes += (size_t)n;
    }
    text[n_bytes] = 0;
    return text;
}

static void test_progress_on_terminal(void **state) {
    (void)state;
    int master = -1;
    FILE *slave = NULL;
    if (!open_terminal(&master, &slave, 60)) skip();
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    unsetenv("NO_COLOR");
    Progress progress;
    progress_begin(&progress, slave, 0);
    assert_true(progress.terminal.colour && progress.terminal.utf8);
    assert_true(progress_due(&progress));
    uint64_t now = timer_now_ns();
    progress_update_at(&progress, 0.1, "step\n1", now);
    const char *shown = screen(master);
    assert_true(shown[0] == '\r' && strstr(shown, "\033[36m") && strstr(shown, "step\\n1") &&
                strstr(shown, "\033[K"));
    assert_null(strchr(shown, '\n'));
    progress_update_at(&progress, 0.2, "step 2", now + 50000000); /* too soon */
    assert_string_equal(screen(master), "");
    struct winsize size = {.ws_col = 20, .ws_row = 24};
    ioctl(master, TIOCSWINSZ, &size);
    progress_update_at(&progress, 0.3, "step 3", now + 150000000);
    shown = screen(master);
    assert_true(strstr(shown, " 30%  step 3") && !strstr(shown, "█")); /* no room for the bar any more */

    progress_print(&progress, "val_loss %.2f", 1.5);
    shown = screen(master);
    assert_int_equal(strncmp(shown, "\r\033[Kval_loss 1.50\r\n\r", 20), 0);
    assert_non_null(strstr(shown, " 30%  step 3")); /* the bar is back */
    Log logger = {.stream = slave, .progress = &progress};
    log_warning(&logger, "careful");
    assert_non_null(strstr(screen(master), "\r\033[Kpgpt: warning: careful\r\n"));
    progress_end(&progress);
    assert_string_equal(screen(master), "\r\033[K");
    progress_update(&progress, 1, "late");
    progress_print(&progress, "done");
    assert_string_equal(screen(master), "done\r\n");

    setenv("NO_COLOR", "1", 1);
    setenv("LC_ALL", "C", 1);
    Terminal terminal = terminal_of(slave);
    assert_true(terminal.interactive && !terminal.colour && !terminal.utf8);
    setenv("NO_COLOR", "", 1); /* empty does not count */
    assert_true(terminal_of(slave).colour);
    setenv("TERM", "dumb", 1);
    assert_false(terminal_of(slave).interactive);
    unsetenv("NO_COLOR");
    fclose(slave);
    close(master);
}

static void test_progress_and_log_elsewhere(void **state) {
    (void)state;
    char path[256];
    FILE *stream = fopen(in_folder(path, "log"), "w");
    setenv("TERM", "xterm", 1);
    Progress progress;
    progress_begin(&progress, stream, 0);
    assert_false(progress_due(&progress));
    progress_update(&progress, 0.5, "never seen");
    progress_print(&progress, "step %d", 1);
    progress_end(&progress);
    Log logger = {.stream = stream};
    Error error = {0};
    assert_int_equal(log_error(&logger, &error), STATUS_OK);
    log_note(&logger, "a note");
    logger.quiet = true;
    log_note(&logger, "another");
    log_warning(&logger, "100%% sure");
    error_user(&error, "wrong %%n");
    assert_int_equal(log_error(&logger, &error), STATUS_USER);
    fclose(stream);
    assert_text_of_file(path, "step 1\npgpt: a note\npgpt: warning: 100% sure\npgpt: wrong %n\n");
    logger.stream = NULL;
    log_warning(&logger, "into the void");
    assert_true(log_make(true).quiet && log_make(true).stream == stderr);
}

static void test_terminal_text(void **state) {
    (void)state;
    assert_int_equal(terminal_text_columns("äb"), 2);
    assert_int_equal(terminal_text_cut("äbc", 1), 2);
    assert_int_equal(terminal_text_cut("äbc", 9), 4);
    assert_int_equal(terminal_text_cut("äbc", 0), 0);
    FILE *nowhere = fopen("/dev/null", "w");
    setenv("COLUMNS", "123", 1);
    assert_int_equal(terminal_columns(nowhere), 123);
    setenv("COLUMNS", "rubbish", 1);
    assert_int_equal(terminal_columns(nowhere), 80);
    unsetenv("COLUMNS");
    fclose(nowhere);
}

static void test_timer(void **state) {
    (void)state;
    uint64_t start = timer_now_ns();
    while (timer_now_ns() == start) {}
    assert_true(timer_seconds_since(start) > 0 && timer_seconds_since(start) < 60);
    assert_true(timer_seconds(2000000000, 5000000000) == 3.0);
    assert_true(timer_seconds(5, 2) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_print),
        cmocka_unit_test(test_json_line),
        cmocka_unit_test(test_json_fields),
        cmocka_unit_test(test_json_hostile),
        cmocka_unit_test(test_progress_render),
        cmocka_unit_test(test_progress_fits),
        cmocka_unit_test(test_progress_rate),
        cmocka_unit_test(test_progress_on_terminal),
        cmocka_unit_test(test_progress_and_log_elsewhere),
        cmocka_unit_test(test_terminal_text),
        cmocka_unit_test(test_timer),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
