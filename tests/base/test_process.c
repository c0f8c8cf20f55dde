/* Processes of this host, as others see them: going on, stopped, gone. */
#include "base/system/process.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* A child that does nothing, with a variable in its environment: it is there only after an exec. */
static pid_t start_child(void) {
    pid_t child = fork();
    if (child == 0) {
        setenv("PGPT_TEST_RANK", "7=x", 1);
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(127);
    }
    return child;
}

/* What becomes of it, within a few seconds. */
static bool comes_to(pid_t child, ProcessState state) {
    for (int i = 0; i < 500; i++) {
        if (process_state(child) == state) return true;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    return false;
}

static void states_are_seen(void **state) {
    (void)state;
    pid_t child = start_child();
    assert_true(child > 0);
    assert_int_equal(process_state(child), PROCESS_GOES_ON);
    kill(child, SIGSTOP);
    assert_true(comes_to(child, PROCESS_STOPPED));
    kill(child, SIGCONT);
    assert_true(comes_to(child, PROCESS_GOES_ON));
    kill(child, SIGKILL);
    assert_true(comes_to(child, PROCESS_GONE)); /* not yet asked for */
    waitpid(child, NULL, 0);
    assert_int_equal(process_state(child), PROCESS_GONE);
}

/* Asked by one child about another: both have this process as their parent. */
static void stopped_siblings_are_found(void **state) {
    (void)state;
    pid_t stopped = start_child();
    assert_true(stopped > 0);
    kill(stopped, SIGSTOP);
    assert_true(comes_to(stopped, PROCESS_STOPPED));
    pid_t asker = fork();
    if (asker == 0) _exit(process_stopped_sibling() == stopped ? 0 : 1);
    int code;
    waitpid(asker, &code, 0);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    kill(stopped, SIGKILL);
    waitpid(stopped, NULL, 0);
    asker = fork();
    if (asker == 0) _exit(process_stopped_sibling() == 0 ? 0 : 1);
    waitpid(asker, &code, 0);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
}

static void children_are_found(void **state) {
    (void)state;
    int64_t ids[2] = {0};
    assert_int_equal(process_children(ids, 2), 0);
    pid_t first = start_child(), second = start_child();
    assert_true(first > 0 && second > 0);
    assert_int_equal(process_children(ids, 1), 2);
    assert_int_equal(process_children(ids, 2), 2);
    assert_true((ids[0] == first && ids[1] == second) || (ids[0] == second && ids[1] == first));
    kill(first, SIGKILL);
    kill(second, SIGKILL);
    waitpid(first, NULL, 0);
    waitpid(second, NULL, 0);
    assert_int_equal(process_children(ids, 2), 0);
}

static void variables_are_read(void **state) {
    (void)state;
    char value[8] = "";
    pid_t child = start_child();
    assert_true(child > 0);
    for (int i = 0; i < 500 && !process_variable(child, "PGPT_TEST_RANK", value, sizeof value); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL); /* until the exec */
    assert_string_equal(value, "7=x");
    assert_false(process_variable(child, "PGPT_TEST", value, sizeof value));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_false(process_variable(child, "PGPT_TEST_RANK", value, sizeof value));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_seen),
        cmocka_unit_test(stopped_siblings_are_found),
        cmocka_unit_test(children_are_found),
        cmocka_unit_test(variables_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
