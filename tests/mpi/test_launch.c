/* Ranks that start together: what they may differ in and what not, and who says so. Under mpiexec with any number of
 * ranks; alone, too.
 *
 * Ranks: 1 2 3 4 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/cores.h"
#include "parallel/launch/launch.h"

/* MPI begins once in the life of a process, so all tests share one launch. */
static Launch launch;

static int rank(void) {
    return launch.world.rank;
}

static int size(void) {
    return launch.world.size;
}

/* All ranks have the same error, known to be the same. */
static void assert_agreed(const Error *error, const char *format, ...) {
    char want[sizeof error->text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(want, sizeof want, format, arguments);
    va_end(arguments);
    assert_string_equal(error->text, want);
    assert_int_equal(error->status, STATUS_USER);
    assert_true(launch.is_agreed);
    launch.is_agreed = false;
}

static void test_open(void **state) {
    (void)state;
    const char *promised = getenv("OMPI_COMM_WORLD_SIZE");
    if (!promised) promised = getenv("PMI_SIZE");
    assert_int_equal(size(), promised ? strtol(promised, NULL, 10) : 1);
    assert_int_equal(launch.n_hosts, 1);
    assert_int_equal(launch.host_size, size());
    assert_int_equal(launch.host_rank, rank());
    assert_int_equal(launch.is_root, rank() == 0);
    assert_true(launch.host[0]);
    assert_true(launch.n_cores >= 1 && launch.n_cores <= launch.n_host_cores);
    if (!launch.is_shared) assert_true(launch.n_cores * size() <= launch.n_host_cores);
    if (size() == 1) assert_int_equal(launch.n_cores, cores_usable());
    assert_int_equal(launch_threads(&launch, 3), 3);
    assert_null(rank() == 0 ? NULL : launch_log(&launch, false).stream);
}

static void test_agree(void **state) {
    (void)state;
    Error error = {0};
    assert_int_equal(launch_agree(&launch, &error), STATUS_OK);
    assert_false(launch.is_agreed);
    /* All make the same mistake: nobody is named. */
    error_user(&error, "a mistake");
    assert_int_equal(launch_agree(&launch, &error), STATUS_USER);
    assert_agreed(&error, "a mistake");
    /* The last one alone. */
    error = (Error){0};
    if (rank() == size() - 1) error_user(&error, "a mistake");
    launch_agree(&launch, &error);
    if (size() == 1) assert_agreed(&error, "a mistake");
    else assert_agreed(&error, "rank %d on %s: a mistake", size() - 1, launch.host);
}

static void test_check_same(void **state) {
    (void)state;
    Error error = {0};
    assert_int_equal(launch_check_same(&launch, "--data", "book.txt", &error), STATUS_OK);
    assert_int_equal(launch_check_same(&launch, "--data", "", &error), STATUS_OK);
    if (size() == 1) return;
    char value[32];
    snprintf(value, sizeof value, "book%d.txt", rank());
    launch_check_same(&launch, "--data", value, &error);
    assert_agreed(&error,
                  "rank 1 on %s has --data = book1.txt where rank 0 has --data = book0.txt; start every rank "
                  "with the same --data",
                  launch.host);
    /* Only the last differs, by having nothing. */
    error = (Error){0};
    launch_check_same(&launch, "command", rank() == size() - 1 ? "" : "train", &error);
    assert_agreed(
        &error,
        "rank %d on %s has command =  where rank 0 has command = train; start every rank with the same "
        "command",
        size() - 1, launch.host);
}

/* Of texts too long for a message: what is around the difference. */
static void test_long_values(void **state) {
    (void)state;
    if (size() == 1) return;
    Error error = {0};
    char *value = malloc(100001);
    assert_non_null(value);
    memset(value, 'x', 100000);
    value[100000] = 0;
    value[70000] = rank() == 0 ? '!' : '?';
    value[69999] = '\n';
    launch_check_same(&launch, "--prompt", value, &error);
    assert_int_equal(error.status, STATUS_USER);
    assert_non_null(strstr(error.text, "--prompt = ...xxx"));
    assert_non_null(strstr(error.text, " ?xxx"));
    assert_non_null(strstr(error.text, " !xxx"));
    assert_null(strchr(error.text, '\n'));
    assert_non_null(strstr(error.text, "start every rank with the same --prompt"));
    launch.is_agreed = false;
    free(value);
}

static void check_lines(const char *others, const char *first, const char *want) {
    Error error = {0};
    launch_check_lines(&launch, "options", rank() == 0 ? first : others, &error);
    if (!want) {
        assert_int_equal(error.status, STATUS_OK);
        return;
    }
    char text[512];
    snprintf(text, sizeof text, "rank 1 on %s has %s; start every rank with the same options", launch.host,
             want);
    assert_agreed(&error, "%s", text);
}

static void test_check_lines(void **state) {
    (void)state;
    const char *lines =
        "# a comment\n[Training]\nsteps = 5\n\nlr = 0.002 \n; another\nprompt = \"a \\x3b \"\n    "
        "\"b\"\nsample =\n";
    check_lines(lines, lines, NULL);
    if (size() == 1) return;
    check_lines("steps=5\nlr = 0.002\nprompt = \"a \\x3b \"\n    \"b\"\nsample = ", lines, NULL);
    check_lines("steps = 5\nlr = 0.001\nprompt = x\nsample =\n", lines,
                "lr = 0.001 where rank 0 has lr = 0.002");
    check_lines("steps = 5\nlr = 0.002\nprompt = \"a \\x3b \"\n    \"c\"\nsample =\n", lines,
                "prompt = \"a \\x3b \"     \"c\" where rank 0 has prompt = \"a \\x3b \"     \"b\"");
    check_lines("steps = 5\nprompt = x\n", lines, "no lr where rank 0 has lr = 0.002");
    check_lines("steps = 5\nwarmup = 3", "steps = 5\n", "warmup = 3 where rank 0 has no warmup");
    check_lines("", "steps = 5\n", "no steps where rank 0 has steps = 5");
    check_lines("", "", NULL);
    check_lines("# only\n", "[Words]\n", NULL);
}

static void test_program(void **state) {
    (void)state;
    Error error = {0};
    assert_true(launch_program_hash() != 0);
    assert_true(launch_program_hash() == launch_program_hash());
    assert_int_equal(launch_check_program(&launch, &error), STATUS_OK);
}

static void test_describe(void **state) {
    (void)state;
    Launch some = {.world = {.size = 8}, .n_hosts = 2, .is_pinned = true};
    char text[128];
    assert_string_equal(launch_describe(&some, 4, text, sizeof text),
                        "8 ranks on 2 hosts, 4 threads each, pinned to cores");
    some = (Launch){.world = {.size = 2}, .n_hosts = 1, .is_shared = true};
    assert_string_equal(launch_describe(&some, 1, text, sizeof text),
                        "2 ranks on 1 host, 1 thread each, more ranks than cores");
    some = (Launch){.world = {.size = 1}, .n_hosts = 1};
    assert_string_equal(launch_describe(&some, 2, text, sizeof text), "1 process, 2 threads");
}

/* The last test: it takes cores away. */
static void test_pin(void **state) {
    (void)state;
    Error error = {0};
    CoreSet before = cores_allowed();
    int n_parts = launch.n_parts;
    bool was_pinned = launch.is_pinned;
    assert_int_equal(launch_pin(&launch, &error), STATUS_OK);
    CoreSet after = cores_allowed();
    if (n_parts == 1) {
        assert_true(cores_equal(&before, &after));
        assert_int_equal(launch.is_pinned, was_pinned);
    } else {
        assert_true(launch.is_pinned);
        assert_true(cores_count(&after) >= launch.n_cores);
        assert_true(cores_count(&after) <= cores_count(&before) / n_parts + 1);
    }
    assert_int_equal(launch_pin(&launch, &error), STATUS_OK);
    CoreSet again = cores_allowed();
    assert_true(cores_equal(&after, &again));
    if (size() == 1 || !launch.is_pinned) return;
    /* Each its own: as many cores together as there are in the sum of all sets. */
    int64_t n[CORES_MAX / 64][64] = {{0}};
    for (int i = 0; i < CORES_MAX; i++) n[i / 64][i % 64] = cores_has(&after, i);
    assert_int_equal(comm_all_reduce(&launch.world, n, CORES_MAX, COMM_I64, COMM_SUM, &error), STATUS_OK);
    for (int i = 0; i < CORES_MAX; i++) assert_true(n[i / 64][i % 64] <= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),        cmocka_unit_test(test_agree),
        cmocka_unit_test(test_check_same),  cmocka_unit_test(test_long_values),
        cmocka_unit_test(test_check_lines), cmocka_unit_test(test_program),
        cmocka_unit_test(test_describe),    cmocka_unit_test(test_pin),
    };
    Error error = {0};
    if (launch_open(&launch, 0.0, &error) != STATUS_OK) {
        fprintf(stderr, "test_launch: %s\n", error.text);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) comm_abort(&launch.world, 1);
    launch_close(&launch);
    return failed;
}
