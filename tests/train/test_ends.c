/* How a run saves without being asked, and what signals that come in a row mean. Whole runs are tests/cli/train_ends.sh's and
 * train_trouble.sh's. */
#include "run/interrupt.h"
#include "tiny_run.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/pgpt-test-ends-XXXXXX";

static int set_up(void **state) {
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("/") == 0 && system(command) == 0 ? 0 : -1;
}

/* The number of steps that are done when it ends; *copies: the memory for saving. */
static int64_t train(TinyRun *run, const char *name, size_t *copies, Error *error) {
    Trainer trainer;
    assert_int_equal(mkdir(name, 0777), 0);
    assert_int_equal(trainer_plan(&trainer, &run->setup, error), STATUS_OK);
    assert_int_equal(trainer_open(&trainer, error), STATUS_OK);
    *copies = saver_allocated_bytes(&trainer.saver);
    trainer_run(&trainer, name, error);
    int64_t n_done = trainer.n_done;
    trainer_close(&trainer);
    return n_done;
}

static int n_checkpoints(const char *run) {
    char path[200];
    int n = 0;
    for (int step = 1; step <= 6; step++) {
        snprintf(path, sizeof path, "%s/checkpoints/step-%08d/manifest.json", run, step);
        n += access(path, F_OK) == 0;
    }
    return n;
}

static void the_clock_saves(void **state) {
    (void)state;
    TinyRun run;
    size_t copies;
    tiny_run_open(&run);
    for (int asked = 0; asked < 2; asked++) {
        Error error = {0};
        char name[20];
        snprintf(name, sizeof name, "clock-%d", asked);
        run.options.clock_minutes = 1e-9;
        run.options.clock_is_asked = asked;
        assert_int_equal(train(&run, name, &copies, &error), 6);
        assert_int_equal(error.status, STATUS_OK);
        assert_int_equal(n_checkpoints(name), 6);
        assert_int_equal(copies > 0, asked); /* nobody's memory is taken for what nobody asked for */
    }
    Error error = {0};
    run.options.clock_minutes = 0.0;
    run.options.clock_is_asked = false;
    assert_int_equal(train(&run, "never", &copies, &error), 6);
    assert_int_equal(n_checkpoints("never"), 1);
    tiny_run_close(&run);
}

/* What cannot be saved ends a run that wants to save; one that does not goes on, and fails when it must save. */
static void a_save_that_nobody_wants_may_fail(void **state) {
    (void)state;
    TinyRun run;
    tiny_run_open(&run);
    for (int asked = 0; asked < 2; asked++) {
        Error error = {0};
        char name[20], path[40];
        snprintf(name, sizeof name, "fails-%d", asked);
        snprintf(path, sizeof path, "%s/checkpoints", name);
        run.options.clock_minutes = 1e-9;
        run.options.clock_is_asked = asked;
        run.options.background_save = false;
        Trainer trainer;
        assert_int_equal(mkdir(name, 0777), 0);
        FILE *in_the_way = fopen(path, "w"); /* where the folder should be */
        assert_non_null(in_the_way);
        fclose(in_the_way);
        assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
        assert_int_equal(trainer_open(&trainer, &error), STATUS_OK);
        trainer_run(&trainer, name, &error);
        assert_int_not_equal(error.status, STATUS_OK);
        assert_int_equal(trainer.n_done, asked ? 1 : 6);
        trainer_close(&trainer);
    }
    tiny_run_close(&run);
}

/* ---- signals: each case in a process of its own, which says by its exit code how far it has come */

static int ending_of(void (*child)(void)) {
    fflush(NULL);
    pid_t process = fork();
    if (process == 0) {
        child();
        _exit(interrupt_was_signalled() ? 10 : 11);
    }
    int status = 0;
    assert_int_equal(waitpid(process, &status, 0), process);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void wait_a_moment(void) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)INTERRUPT_MOMENT_SECONDS, .tv_nsec = 20000000}, NULL);
}

static void in_a_row(void) {
    interrupt_watch();
    for (int i = 0; i < 20; i++) raise(SIGTERM);
    interrupt_ignore(); /* those behind it are still the same wish */
    raise(SIGTERM);
}

static void all_kinds(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    interrupt_watch();
    for (int i = 0; i < 8; i++) raise(numbers[i % 4]);
}

static void impatient(void) {
    interrupt_watch();
    raise(SIGTERM);
    wait_a_moment();
    raise(SIGTERM);
}

static void another_later(void) {
    interrupt_watch();
    raise(SIGUSR1);
    wait_a_moment();
    raise(SIGTERM);
}

static void tired(void) {
    interrupt_watch();
    raise(SIGXCPU);
    wait_a_moment();
    raise(SIGXCPU);
}

static void ignored_before(void) {
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    interrupt_watch();
    raise(SIGHUP);
    raise(SIGINT);
}

static void over(void) {
    interrupt_watch();
    interrupt_ignore();
    raise(SIGHUP);
}

static void signals_in_a_row_are_one(void **state) {
    (void)state;
    assert_int_equal(ending_of(in_a_row), 10);
    assert_int_equal(ending_of(all_kinds), 10);
    assert_int_equal(ending_of(impatient), 128 + SIGTERM);
    assert_int_equal(ending_of(another_later), 10);
    assert_int_equal(ending_of(tired), 10);
    assert_int_equal(ending_of(ignored_before), 11);
    assert_int_equal(ending_of(over), 128 + SIGHUP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_clock_saves),
        cmocka_unit_test(a_save_that_nobody_wants_may_fail),
        cmocka_unit_test(signals_in_a_row_are_one),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
