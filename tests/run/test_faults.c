/* Notices of ranks, faults on purpose, and the supervisor's decisions. What happens to whole jobs is tests/cli/mpi_faults.sh's. */
#include "harness.h"
#include "run/fault.h"
#include "run/notice.h"
#include "run/supervise.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Everything is written into a folder of its own, not where the test was started. */
static char folder[] = "/tmp/pgpt-test-faults-XXXXXX";

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

static void write_text(const char *path, const char *text) {
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    fputs(text, stream);
    fclose(stream);
}

static RankNotice example(int rank) {
    RankNotice notice = {.rank = rank,
                         .process = 4711 + rank,
                         .beat = 12,
                         .time = 1.7e9 + 0.25,
                         .idle_seconds = 1.5,
                         .waits = rank == 1,
                         .has_failed = rank == 2,
                         .hang_timeout = 2.5};
    snprintf(notice.host, sizeof notice.host, "node \"%d\"", rank);
    snprintf(notice.where, sizeof notice.where, "step 3, instruction 5 (wait, update)");
    return notice;
}

static void notices_come_back(void **state) {
    (void)state;
    Error error = {0};
    assert_int_equal(notices_begin("run", &error), STATUS_OK);
    for (int rank = 11; rank >= 0; rank--) {
        RankNotice notice = example(rank);
        assert_int_equal(notice_write("run", &notice, &error), STATUS_OK);
        notice.beat++;
        snprintf(notice.where, sizeof notice.where,
                 "idle"); /* shorter than before: nothing of that may stay */
        assert_int_equal(notice_write("run", &notice, &error), STATUS_OK);
    }
    RankNotice *notices;
    assert_int_equal(notices_read("run", &notices), 12);
    for (int rank = 0; rank < 12; rank++) {
        RankNotice want = example(rank);
        assert_int_equal(notices[rank].rank, rank);
        assert_int_equal(notices[rank].process, want.process);
        assert_int_equal(notices[rank].beat, 13);
        assert_true(notices[rank].time == want.time && notices[rank].idle_seconds == want.idle_seconds);
        assert_int_equal(notices[rank].waits, rank == 1);
        assert_int_equal(notices[rank].has_failed, rank == 2);
        assert_true(notices[rank].hang_timeout == 2.5);
        assert_string_equal(notices[rank].host, want.host);
        assert_string_equal(notices[rank].where, "idle");
    }
    free(notices);
    notices_end("run"); /* not while there are any */
    assert_int_equal(access("run/ranks", F_OK), 0);
    for (int rank = 0; rank < 12; rank++) notice_remove("run", rank);
    notices_end("run");
    assert_int_not_equal(access("run/ranks", F_OK), 0);
    notices_clear("run"); /* there are none */
    assert_int_equal(notices_begin("run", &error), STATUS_OK);
    RankNotice notice = example(3);
    assert_int_equal(notice_write("run", &notice, &error), STATUS_OK);
    notices_clear("run");
    assert_int_not_equal(access("run/ranks", F_OK), 0);
}

/* Half-written, other people's or hostile files are no notices. */
static void what_is_no_notice_is_not_read(void **state) {
    (void)state;
    Error error = {0};
    RankNotice notice, *notices;
    assert_int_equal(notices_begin("bad", &error), STATUS_OK);
    assert_false(notice_read("bad", 0, &notice));
    const char *const texts[] = {
        "",
        "{",
        "{}",
        "[]",
        "{\"rank\":0}",
        "\0",
        "{\"rank\":1,\"host\":\"a\",\"process\":1,\"beat\":1,\"time\":1,\"idle_seconds\":1,\"waits\":true,"
        "\"failed\":false,\"where\":\"another rank's\"}",
        "{\"rank\":0,\"host\":\"a\",\"process\":-1,\"beat\":1,\"time\":1,\"idle_seconds\":1,\"waits\":true,"
        "\"failed\":false,\"where\":\"no such process\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_text("bad/ranks/0", texts[i]);
        assert_false(notice_read("bad", 0, &notice));
    }
    write_text("bad/ranks/README", "not a rank's");
    assert_int_equal(notices_read("bad", &notices), 0);
    free(notices);
    assert_int_equal(notices_begin("bad", &error),
                     STATUS_OK); /* an old one is taken away, other files stay */
    assert_int_not_equal(access("bad/ranks/0", F_OK), 0);
    assert_int_equal(access("bad/ranks/README", F_OK), 0);
}

static void faults_are_parsed(void **state) {
    (void)state;
    Error error = {0};
    Fault fault;
    unsetenv(ATTEMPT_VARIABLE);
    assert_int_equal(fault_parse("", 4, &fault, &error), STATUS_OK);
    assert_int_equal(fault.kind, FAULT_NONE);
    assert_int_equal(fault_parse("stop:3:20", 4, &fault, &error), STATUS_OK);
    assert_int_equal(fault.kind, FAULT_STOP);
    assert_int_equal(fault.rank, 3);
    assert_int_equal(fault.step, 20);
    const char *const bad[] = {"stop",         "stop:1",    "stop:1:",   "stop:1:0",   "stop:1:2:3",
                               "stop:1:2x",    "sto:1:2",   "stop:x:2",  ":1:2",       "none:1:2",
                               "stop:4:2",     "stop:-1:2", "stop:1:-2", "stop: :1:2", "error:99:1",
                               "kill:0:1e400", "%s:1:2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        error = (Error){0};
        assert_int_equal(fault_parse(bad[i], 4, &fault, &error), STATUS_USER);
        assert_non_null(strstr(error.text, "--fault"));
    }
}

static void a_fault_strikes_once(void **state) {
    (void)state;
    Error error = {0};
    Fault fault;
    unsetenv(ATTEMPT_VARIABLE);
    assert_int_equal(fault_parse("error:1:5", 2, &fault, &error), STATUS_OK);
    assert_int_equal(fault_strike(&fault, 0, 5, &error), STATUS_OK);
    assert_int_equal(fault_strike(&fault, 1, 4, &error), STATUS_OK);
    assert_int_equal(fault_strike(&fault, 1, 5, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "step 5"));
    error = (Error){0};
    setenv(ATTEMPT_VARIABLE, "1", 1); /* the attempt after it */
    assert_int_equal(fault_parse("error:1:5", 2, &fault, &error), STATUS_OK);
    assert_int_equal(fault_strike(&fault, 1, 5, &error), STATUS_OK);
    unsetenv(ATTEMPT_VARIABLE);
}

static SuperviseResult run_job(const char *script, int most_restarts) {
    Error error = {0};
    Log log = {0};
    SuperviseResult result;
    char *words[] = {"/bin/sh", "-c", (char *)script, "job", "--out", "run"};
    SuperviseOptions options = {
        .command = words, .n_words = 6, .run = "run", .most_restarts = most_restarts, .log = &log};
    assert_int_equal(supervise(&options, &result, &error), STATUS_OK);
    return result;
}

static void jobs_are_started_again_while_it_helps(void **state) {
    (void)state;
    SuperviseResult result = run_job("exit 0", 3);
    assert_int_equal(result.exit_code, 0);
    assert_int_equal(result.n_restarts, 0);
    result = run_job("exit 7", 3);
    assert_int_equal(result.exit_code, 7);
    assert_int_equal(result.n_restarts, 3);
    result = run_job("test $PGPT_ATTEMPT = 2 || kill -KILL $$", 3);
    assert_int_equal(result.exit_code, 0);
    assert_int_equal(result.n_restarts, 2);
    result = run_job("kill -SEGV $$", 1);
    assert_int_equal(result.exit_code, 128 + 11);
    /* Only a later attempt is told to resume. */
    result = run_job("test \"$*\" = '--out run --resume auto'", 3);
    assert_int_equal(result.exit_code, 0);
    assert_int_equal(result.n_restarts, 1);
    /* A user's mistake before the run has begun would only be made again. */
    result = run_job("exit 2", 3);
    assert_int_equal(result.exit_code, 2);
    assert_int_equal(result.n_restarts, 0);
}

/* A step that is not a number once may be a flaw of the hardware; twice in a row it is the run's own. */
static void what_is_no_number_twice_is_not_tried_again(void **state) {
    (void)state;
    Error error = {0};
    RankNotice notice = example(0);
    notice.time = 4e9; /* of any attempt */
    const char *const step_of_attempt[] = {"0 7 7 8", "7 0 7 0", "3 3 3 3"};
    const int n_restarts[] = {2, 3, 1};
    assert_int_equal(notices_begin("steps", &error), STATUS_OK);
    for (int step = 0; step < 9; step++) {
        notice.rank = step;
        notice.bad_step = step;
        assert_int_equal(notice_write("steps", &notice, &error), STATUS_OK);
    }
    assert_int_equal(notices_begin("run", &error), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        char script[400];
        snprintf(script, sizeof script,
                 "set -- %s; shift $PGPT_ATTEMPT; rm -f run/ranks/*; "
                 "sed \"s/\\\"rank\\\":$1,/\\\"rank\\\":0,/\" steps/ranks/$1 >run/ranks/0; exit 1",
                 step_of_attempt[i]);
        SuperviseResult result = run_job(script, 3);
        assert_int_equal(result.exit_code, 1);
        assert_int_equal(result.n_restarts, n_restarts[i]);
    }
    notices_clear("run");
}

/* What nohup switched off does not count as a wish to stop; everything else does, and is passed on; the same again only after
 * a moment. */
static void jobs_are_stopped_by_signals(void **state) {
    (void)state;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGHUP, &ignore, &before);
    SuperviseResult result = run_job("test $PGPT_ATTEMPT = 1 || { kill -HUP $PPID; sleep 0.2; exit 7; }", 3);
    assert_int_equal(result.exit_code, 0);
    assert_int_equal(result.n_restarts, 1);
    assert_false(result.was_stopped);
    sigaction(SIGHUP, &before, NULL);
    result = run_job(
        "trap 'trap \"exit 8\" USR1; kill -USR1 $PPID; sleep 0.2; kill -USR1 $PPID' USR1; kill -USR1 $PPID; "
        "for i in 1 2 3 4; do sleep 0.2; done; exit 9",
        3);
    assert_int_equal(result.exit_code, 9); /* it heard of one */
    result = run_job("trap 'trap \"exit 8\" USR1; sleep 2.2; kill -USR1 $PPID' USR1; kill -USR1 $PPID; "
                     "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; done; exit 9",
                     3);
    assert_int_equal(result.exit_code, 8); /* by the second wish */
    assert_int_equal(result.n_restarts, 0);
    assert_true(result.was_stopped);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notices_come_back),
        cmocka_unit_test(what_is_no_notice_is_not_read),
        cmocka_unit_test(faults_are_parsed),
        cmocka_unit_test(a_fault_strikes_once),
        cmocka_unit_test(jobs_are_started_again_while_it_helps),
        cmocka_unit_test(what_is_no_number_twice_is_not_tried_again),
        cmocka_unit_test(jobs_are_stopped_by_signals),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
