/* Who observes a run is told in order, on the ranks and at the steps that it should be, and what an observer
 * fails of costs no training. Ranks are played here by lists that are not the root's; real ones, whose metrics
 * cannot be written, are tests/cli/mpi_ends.sh's. */
#include "tiny_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/pgpt-test-observers-XXXXXX";

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

/* ---- an observer that writes down what it is told, all of them in one text */

static char told[2000];

typedef struct {
    char name;
    int64_t fails_at, stops_at; /* step; 0: never */
    int64_t every, wants_at;    /* meetings */
    bool fails_to_begin, fails_to_end;
} Witness;

static void note(const Witness *witness, const char *what, long long number) {
    size_t n = strlen(told);
    snprintf(told + n, sizeof told - n, "%c:%s%lld ", witness->name, what, number);
}

static Status begin(void *context, const BeginEvent *event, Error *error) {
    const Witness *witness = context;
    note(witness, "begin", event->n_done);
    return witness->fails_to_begin ? error_failed(error, "%c cannot begin", witness->name) : STATUS_OK;
}

static Status start(void *context, int64_t step, Error *error) {
    const Witness *witness = context;
    note(witness, "start", step);
    return -step == witness->fails_at ? error_failed(error, "%c cannot start", witness->name) : STATUS_OK;
}

static void before_step(void *context, int64_t at) {
    note(context, "before", at);
}

static bool step(void *context, const StepEvent *event, Error *error) {
    const Witness *witness = context;
    note(witness, event->is_stopping ? "last" : "step", event->metrics->step);
    if (event->metrics->step == witness->fails_at) error_failed(error, "%c has failed", witness->name);
    return event->metrics->step == witness->stops_at;
}

static bool sample(void *context, int64_t at, const char *text, size_t n_bytes, Error *error) {
    (void)error;
    note(context, n_bytes == strlen(text) ? "sample" : "wrong", at);
    return false;
}

static bool saved(void *context, int64_t at, const char *path, Error *error) {
    (void)error;
    note(context, access(path, F_OK) == 0 ? "saved" : "missing", at);
    return false;
}

static Status meet(void *context, const MeetEvent *event, Error *error) {
    (void)error;
    const char *what = event->is_last ? "part" : "meet";
    note(context, event->is_wanted ? "wanted" : what, event->n_done);
    return STATUS_OK;
}

static Status end(void *context, const EndEvent *event, Error *error) {
    static const char *const how[] = {"done", "stopped", "failed"};
    const Witness *witness = context;
    note(witness, how[event->how], event->n_done);
    return witness->fails_to_end ? error_failed(error, "%c cannot end", witness->name) : STATUS_OK;
}

static int64_t next_due(const void *context, int64_t n_done) {
    return observer_next_multiple(((const Witness *)context)->every, n_done);
}

static bool wants(void *context, int64_t n_done) {
    return n_done == ((const Witness *)context)->wants_at;
}

static bool runs_alone(const void *context, int64_t at) {
    return at == ((const Witness *)context)->wants_at;
}

static TrainObserver on_root(Witness *witness) {
    return (TrainObserver){
        .context = witness, .begin = begin, .step = step, .sample = sample, .saved = saved, .end = end};
}

static TrainObserver on_all_ranks(Witness *witness) {
    TrainObserver observer = on_root(witness);
    observer.on_all_ranks = true;
    observer.before_step = before_step;
    observer.start = start;
    observer.meet = meet;
    observer.next_due = next_due;
    observer.wants = wants;
    observer.runs_alone = runs_alone;
    return observer;
}

static void assert_told(const char *expected) {
    char seen[sizeof told];
    memcpy(seen, told, sizeof told);
    *told = '\0';
    assert_string_equal(seen, expected);
}

/* ---- lists */

static void add(ObserverList *list, TrainObserver observer) {
    Error error = {0};
    assert_int_equal(observers_add(list, &observer, &error), STATUS_OK);
}

/* Everything that can be told, once. */
static void tell_all(ObserverList *list) {
    Error error = {0};
    StepMetrics metrics = {.step = 1};
    assert_int_equal(observers_begin(list, &(BeginEvent){.n_steps = 9}, &error), STATUS_OK);
    observers_before_step(list, 1);
    assert_int_equal(observers_start(list, 1, &error), STATUS_OK);
    observers_tell_step(list, &(StepEvent){.metrics = &metrics});
    assert_int_equal(observers_meet(list, 1, false, observers_wanted(list, 1), &error), STATUS_OK);
    observers_tell_sample(list, 1, "a\n", 2);
    observers_tell_saved(list, 1, "/");
    assert_int_equal(observers_end(list, &(EndEvent){.n_done = 1}, &error), STATUS_OK);
    assert_int_equal(observers_end(list, &(EndEvent){.n_done = 1}, &error), STATUS_OK); /* once only */
}

static void who_is_told_where(void **state) {
    (void)state;
    Witness a = {.name = 'a'}, b = {.name = 'b', .wants_at = 1};
    for (int is_root = 0; is_root < 2; is_root++) {
        ObserverList list = {.is_root = is_root};
        add(&list, on_root(&a));
        add(&list, on_all_ranks(&b));
        tell_all(&list);
        assert_told(
            is_root ? "a:begin0 b:begin0 b:before1 b:start1 a:step1 b:step1 b:wanted1 a:sample1 b:sample1 "
                      "a:saved1 b:saved1 b:done1 a:done1 "
                    : "b:begin0 b:before1 b:start1 b:meet1 b:done1 ");
        observers_free(&list);
    }
}

/* A wish finds back to whom it came from, on ranks that have not been asked. */
static void wishes_travel(void **state) {
    (void)state;
    Witness plain = {.name = 'p'},
            some[3] = {{.name = 'a', .wants_at = 5}, {.name = 'b'}, {.name = 'c', .wants_at = 5}};
    ObserverList root = {.is_root = true}, other = {0};
    Error error = {0};
    for (int i = 0; i < 3; i++) {
        add(&root, on_root(&plain));
        add(&other, on_root(&plain));
        add(&root, on_all_ranks(&some[i]));
        add(&other, on_all_ranks(&some[i]));
    }
    assert_int_equal(observers_wanted(&root, 4), 0);
    assert_int_equal(observers_wanted(&other, 5), 0);
    int64_t wanted = observers_wanted(&root, 5);
    assert_true(wanted > 0);
    assert_int_equal(observers_meet(&other, 5, false, wanted, &error), STATUS_OK);
    assert_told("a:wanted5 b:meet5 c:wanted5 ");
    assert_true(observers_run_alone(&other, 5) && !observers_run_alone(&other, 6));
    observers_free(&root);
    observers_free(&other);
}

static void the_next_that_is_due(void **state) {
    (void)state;
    Witness never = {.name = 'n'}, often = {.name = 'o', .every = 4}, seldom = {.name = 's', .every = 10};
    ObserverList list = {0};
    add(&list, on_all_ranks(&never));
    assert_true(observers_next_due(&list, 7) == INT64_MAX);
    add(&list, on_all_ranks(&seldom));
    add(&list, on_all_ranks(&often));
    assert_int_equal(observers_next_due(&list, 0), 4);
    assert_int_equal(observers_next_due(&list, 8), 10);
    assert_int_equal(observers_next_due(&list, 10), 12);
    assert_true(observer_next_multiple(INT64_MAX, 1) == INT64_MAX);
    observers_free(&list);
}

/* The first error is kept, and whoever has failed hears of nothing but the end. */
static void errors_are_kept(void **state) {
    (void)state;
    Witness a = {.name = 'a', .fails_at = 2}, b = {.name = 'b', .fails_at = 3};
    ObserverList list = {.is_root = true};
    Error error = {0};
    add(&list, on_root(&a));
    add(&list, on_root(&b));
    assert_int_equal(observers_begin(&list, &(BeginEvent){0}, &error), STATUS_OK);
    for (int64_t i = 1; i <= 4; i++)
        observers_tell_step(&list, &(StepEvent){.metrics = &(StepMetrics){.step = i}});
    observers_tell_sample(&list, 4, "", 0);
    observers_tell_saved(&list, 4, "/");
    assert_string_equal(list.trouble.text, "a has failed");
    assert_false(list.stop_is_wanted);
    assert_int_equal(observers_end(&list, &(EndEvent){.how = RUN_FAILED}, &error), STATUS_FAILED);
    assert_string_equal(error.text, "a has failed");
    assert_told("a:begin0 b:begin0 a:step1 b:step1 a:step2 b:step2 b:step3 b:failed0 a:failed0 ");
    observers_free(&list);
}

/* ---- runs */

/* The number of steps that are done when it ends. */
static int64_t train(const char *name, TinyRun *run, const TrainObserver *observers, int n, Error *error) {
    Trainer trainer;
    run->setup.observers = observers;
    run->setup.n_observers = n;
    assert_int_equal(mkdir(name, 0777), 0);
    assert_int_equal(trainer_plan(&trainer, &run->setup, error), STATUS_OK);
    assert_int_equal(trainer_open(&trainer, error), STATUS_OK);
    trainer_run(&trainer, name, error);
    int64_t n_done = trainer.n_done;
    trainer_close(&trainer);
    return n_done;
}

static int n_lines(const char *path) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int n = 0;
    for (int c; (c = getc(file)) != EOF;) n += c == '\n';
    fclose(file);
    return n;
}

static void a_run_from_begin_to_end(void **state) {
    (void)state;
    TinyRun run;
    Error error = {0};
    Witness a = {.name = 'a'}, b = {.name = 'b', .every = 4, .wants_at = 3};
    const TrainObserver observers[] = {on_root(&a), on_all_ranks(&b)};
    tiny_run_open(&run);
    run.options.save_every = 2;
    run.options.background_save = false;
    run.options.n_steps = 4;
    assert_int_equal(train("whole", &run, observers, 2, &error), 4);
    assert_int_equal(error.status, STATUS_OK);
    assert_told("a:begin0 b:begin0 b:before1 b:start1 a:step1 b:step1 b:meet1 "
                "b:before2 b:start2 a:step2 b:step2 b:meet2 a:saved2 b:saved2 "
                "b:before3 b:start3 a:step3 b:step3 b:wanted3 "
                "b:before4 b:start4 a:step4 b:step4 b:part4 a:saved4 b:saved4 b:done4 a:done4 ");
    assert_int_equal(n_lines("whole/metrics.jsonl"), 5);
    tiny_run_close(&run);
}

/* Where a device computes behind the host, a step begins before the one before it is told of, unless one of the
 * two is looked at by itself or all meet in between. */
static void a_device_runs_ahead(void **state) {
    (void)state;
    TinyRun run;
    Error error = {0};
    Witness a = {.name = 'a'}, alone = {.name = 'b', .wants_at = 3}, due = {.name = 'c', .every = 2};
    TrainObserver observer = {.context = &a, .on_all_ranks = true, .start = start, .step = step};
    tiny_run_open(&run);
    run.backend.traits.is_asynchronous = true;
    run.options.n_steps = 4;
    assert_int_equal(train("ahead", &run, &observer, 1, &error), 4);
    assert_told("a:start1 a:start2 a:step1 a:start3 a:step2 a:start4 a:step3 a:step4 ");
    observer.context = &alone;
    observer.runs_alone = runs_alone;
    assert_int_equal(train("alone", &run, &observer, 1, &error), 4);
    assert_told("b:start1 b:start2 b:step1 b:step2 b:start3 b:step3 b:start4 b:step4 ");
    observer.context = &due;
    observer.runs_alone = NULL;
    observer.next_due = next_due;
    assert_int_equal(train("due", &run, &observer, 1, &error), 4);
    assert_told("c:start1 c:start2 c:step1 c:step2 c:start3 c:start4 c:step3 c:step4 ");
    assert_int_equal(error.status, STATUS_OK);
    tiny_run_close(&run);
}

/* One more step, which all ranks need to agree; then everything is saved, and the error is said. */
static void a_failure_beside_the_training_saves(void **state) {
    (void)state;
    TinyRun run;
    Error error = {0};
    Witness a = {.name = 'a', .fails_at = 2}, b = {.name = 'b'};
    const TrainObserver observers[] = {on_root(&a), on_root(&b)};
    tiny_run_open(&run);
    assert_int_equal(train("fails", &run, observers, 2, &error), 3);
    assert_int_equal(error.status, STATUS_FAILED);
    assert_non_null(strstr(error.text, "stopped after step 3 and saved"));
    assert_non_null(strstr(error.text, "a has failed"));
    assert_told("a:begin0 b:begin0 a:step1 b:step1 a:step2 b:step2 b:last3 b:saved3 b:failed3 a:failed3 ");
    assert_int_equal(n_lines("fails/metrics.jsonl"), 4); /* others' troubles leave no gap */
    tiny_run_close(&run);
}

static void a_failure_at_the_end_is_said(void **state) {
    (void)state;
    TinyRun run;
    Error error = {0};
    Witness a = {.name = 'a', .fails_to_end = true};
    const TrainObserver observer = on_root(&a);
    tiny_run_open(&run);
    run.options.n_steps = 1;
    assert_int_equal(train("end", &run, &observer, 1, &error), 1);
    assert_string_equal(error.text, "all 1 steps are done and saved, but: a cannot end");
    assert_told("a:begin0 a:step1 a:saved1 a:done1 ");
    tiny_run_close(&run);
}

static void what_ends_a_run_at_once(void **state) {
    (void)state;
    TinyRun run;
    Error error = {0};
    Witness a = {.name = 'a'}, b = {.name = 'b', .fails_to_begin = true}, c = {.name = 'c', .fails_at = -2};
    const TrainObserver at_begin[] = {on_root(&a), on_root(&b), on_root(&c)}, at_start = on_all_ranks(&c);
    tiny_run_open(&run);
    assert_int_equal(train("begin", &run, at_begin, 3, &error), 0);
    assert_string_equal(error.text, "b cannot begin");
    assert_told("a:begin0 b:begin0 a:failed0 ");
    error = (Error){0};
    assert_int_equal(train("start", &run, &at_start, 1, &error), 1);
    assert_string_equal(error.text, "c cannot start");
    assert_told("c:begin0 c:before1 c:start1 c:step1 c:meet1 c:before2 c:start2 c:failed1 ");
    tiny_run_close(&run);
}

static void an_observer_may_stop_it(void **state) {
    (void)state;
    TinyRun run;
    Error error = {0};
    Witness a = {.name = 'a', .stops_at = 2};
    const TrainObserver observer = on_root(&a);
    tiny_run_open(&run);
    assert_int_equal(train("stops", &run, &observer, 1, &error), 2);
    assert_int_equal(error.status, STATUS_OK);
    assert_told("a:begin0 a:step1 a:step2 a:saved2 a:stopped2 ");
    tiny_run_close(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_told_where),
        cmocka_unit_test(wishes_travel),
        cmocka_unit_test(the_next_that_is_due),
        cmocka_unit_test(errors_are_kept),
        cmocka_unit_test(a_run_from_begin_to_end),
        cmocka_unit_test(a_device_runs_ahead),
        cmocka_unit_test(a_failure_beside_the_training_saves),
        cmocka_unit_test(a_failure_at_the_end_is_said),
        cmocka_unit_test(what_ends_a_run_at_once),
        cmocka_unit_test(an_observer_may_stop_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
