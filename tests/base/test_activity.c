/* The board that says what a process is doing: what is put on it can be read, whole, while another thread writes; what is
 * recorded is complete or counted as lost. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/system/activity.h"
#include "base/system/activity_board.h"
#include "base/system/timer.h"
#include "comm/comm_self.h"

static ActivityEntry instruction(int64_t number) {
    return (ActivityEntry){
        .kind = ACTIVITY_INSTRUCTION, .name = "matmul", .place = "forward", .number = number};
}

static void entries_are_seen_from_the_outermost_on(void **state) {
    (void)state;
    Activity activity;
    ActivityView view;
    activity_open(&activity);
    ActivityEntry outer = instruction(57);
    ActivityEntry inner = {.kind = ACTIVITY_COLLECTIVE,
                           .name = "all-reduce",
                           .place = "data",
                           .number = 812,
                           .n_bytes = 4 << 20,
                           .peers = 4};
    uint64_t before = timer_now_ns();
    activity_begin(&activity, ACTIVITY_HOST, &outer);
    activity_begin(&activity, ACTIVITY_HOST, &inner);
    assert_true(activity_look(&activity, ACTIVITY_HOST, &view));
    assert_string_equal(view.track, "host");
    assert_int_equal(view.n, 2);
    assert_int_equal(view.current[0].entry.number, 57);
    assert_string_equal(view.current[1].entry.place, "data");
    assert_int_equal(view.current[1].entry.n_bytes, 4 << 20);
    assert_int_equal(view.current[1].entry.peers, 4);
    assert_true(view.current[0].since_ns >= before && view.current[0].since_ns <= view.current[1].since_ns);
    uint64_t progress = activity_progress(&activity);
    activity_end(&activity, ACTIVITY_HOST);
    assert_true(activity_progress(&activity) > progress);
    assert_true(activity_look(&activity, ACTIVITY_HOST, &view));
    assert_int_equal(view.n, 1);
    activity_end(&activity, ACTIVITY_HOST);
    activity_end(&activity, ACTIVITY_HOST); /* one too many does no harm */
    assert_true(activity_look(&activity, ACTIVITY_HOST, &view));
    assert_int_equal(view.n, 0);
    activity_close(&activity);
    activity_close(&activity);
}

static void words_name_track_place_and_size(void **state) {
    (void)state;
    Activity activity;
    char text[512], small[8];
    activity_open(&activity);
    assert_string_equal(activity_describe(&activity, text, sizeof text), "idle");
    int worker = activity_add_track(&activity, "worker of data");
    ActivityEntry first = instruction(57);
    ActivityEntry second = {.kind = ACTIVITY_COLLECTIVE,
                            .name = "all-reduce",
                            .place = "data",
                            .number = 812,
                            .n_bytes = 4 << 20};
    ActivityEntry third = {
        .kind = ACTIVITY_MESSAGE, .name = "receive from", .place = "world", .peers = 3, .number = 5};
    activity_begin(&activity, ACTIVITY_HOST, &first);
    activity_begin(&activity, worker, &second);
    activity_begin(&activity, worker, &third);
    activity_describe(&activity, text, sizeof text);
    assert_non_null(strstr(text, "instruction 57 (matmul, forward) for "));
    assert_non_null(strstr(
        text, "; worker of data: all-reduce 812 of 'data' (4.00 MiB), receive from rank 3 of 'world'"));
    activity_describe(&activity, small, sizeof small);
    assert_string_equal(small, "instruc");
    activity_close(&activity);
}

static void a_missing_activity_is_nothing(void **state) {
    (void)state;
    ActivityView view;
    char text[16];
    ActivityEntry entry = instruction(1);
    activity_begin(NULL, ACTIVITY_HOST, &entry);
    activity_end(NULL, ACTIVITY_HOST);
    activity_record(NULL, true);
    assert_int_equal(activity_add_track(NULL, "saver"), -1);
    assert_int_equal(activity_n_recorded(NULL), 0);
    assert_int_equal(activity_progress(NULL), 0);
    assert_false(activity_look(NULL, 0, &view));
    assert_string_equal(activity_describe(NULL, text, sizeof text), "idle");
    activity_close(NULL);
}

static void tracks_are_found_by_name_and_end(void **state) {
    (void)state;
    static const char *const names[ACTIVITY_MAX_TRACKS - 1] = {"a", "b", "c", "d", "e", "f",
                                                               "g", "h", "i", "j", "k"};
    Activity activity;
    activity_open(&activity);
    for (int i = 0; i < ACTIVITY_MAX_TRACKS - 1; i++)
        assert_int_equal(activity_add_track(&activity, names[i]), i + 1);
    assert_int_equal(activity_add_track(&activity, "c"), 3);
    int none = activity_add_track(&activity, "one too many");
    assert_int_equal(none, -1);
    ActivityEntry entry = instruction(1);
    activity_begin(&activity, none, &entry);
    activity_end(&activity, none);
    assert_int_equal(activity_progress(&activity), 0);
    char name[] = "kept";
    const char *kept = activity_keep(&activity, name);
    name[0] = 'X';
    assert_string_equal(kept, "kept");
    assert_ptr_equal(activity_keep(&activity, "kept"), kept);
    activity_close(&activity);
}

static void deep_entries_are_counted_not_kept(void **state) {
    (void)state;
    Activity activity;
    ActivityView view;
    Error error = {0};
    enum { DEEP = ACTIVITY_MAX_DEPTH + 3 };
    activity_open(&activity);
    assert_int_equal(activity_prepare_recorder(&activity, 100, &error), STATUS_OK);
    activity_record(&activity, true);
    for (int i = 0; i < DEEP; i++) {
        ActivityEntry entry = instruction(i);
        activity_begin(&activity, ACTIVITY_HOST, &entry);
    }
    assert_true(activity_look(&activity, ACTIVITY_HOST, &view));
    assert_int_equal(view.n, ACTIVITY_MAX_DEPTH);
    for (int i = 0; i < DEEP; i++) activity_end(&activity, ACTIVITY_HOST);
    assert_int_equal(activity_n_recorded(&activity), ACTIVITY_MAX_DEPTH);
    assert_int_equal(activity_n_lost(&activity), DEEP - ACTIVITY_MAX_DEPTH);
    assert_int_equal(activity_recorded(&activity, 0)->entry.number, ACTIVITY_MAX_DEPTH - 1);
    activity_close(&activity);
}

static void the_recorder_is_bounded_and_counts(void **state) {
    (void)state;
    Activity activity;
    Error error = {0};
    activity_open(&activity);
    assert_int_equal(activity_prepare_recorder(&activity, 10, &error), STATUS_OK);
    ActivityEntry before = instruction(100), inside = instruction(200);
    activity_begin(&activity, ACTIVITY_HOST, &inside);
    activity_end(&activity, ACTIVITY_HOST); /* not switched on yet */
    activity_begin(&activity, ACTIVITY_HOST, &before);
    activity_record(&activity, true);
    for (int i = 0; i < 25; i++) {
        ActivityEntry entry = instruction(i);
        activity_begin(&activity, ACTIVITY_HOST, &entry);
        activity_end(&activity, ACTIVITY_HOST);
    }
    activity_end(&activity, ACTIVITY_HOST); /* began before it was switched on: not recorded, and not lost */
    assert_int_equal(activity_n_recorded(&activity), 10);
    assert_int_equal(activity_n_lost(&activity), 15);
    for (size_t i = 0; i < 10; i++) {
        const ActivityEvent *event = activity_recorded(&activity, i);
        assert_non_null(event);
        assert_int_equal(event->entry.number, i);
        assert_int_equal(event->depth, 1);
        assert_true(event->end_ns >= event->begin_ns);
    }
    assert_int_equal(activity_recorder_bytes(&activity), 10 * sizeof(ActivityEvent));
    activity_close(&activity);
}

/* ---- two threads */

typedef struct {
    Activity *activity;
    int track;
} Writer;

enum { N_WRITES = 200000 };

/* All fields of an entry say the same number, so that a mixture of two is found. */
static void *write_entries(void *context) {
    Writer *writer = context;
    static const char *const names[2] = {"even", "odd"};
    for (int i = 0; i < N_WRITES; i++) {
        ActivityEntry entry = {.kind = i % 2 ? ACTIVITY_WAIT : ACTIVITY_MESSAGE,
                               .name = names[i % 2],
                               .place = names[i % 2],
                               .number = i,
                               .n_bytes = (uint64_t)i,
                               .peers = i};
        activity_begin(writer->activity, writer->track, &entry);
        if (i % 7 == 0) {
            activity_begin(writer->activity, writer->track, &entry);
            activity_end(writer->activity, writer->track);
        }
        activity_end(writer->activity, writer->track);
    }
    return NULL;
}

static void a_reader_never_sees_a_mixture(void **state) {
    (void)state;
    Activity activity;
    Error error = {0};
    activity_open(&activity);
    assert_int_equal(activity_prepare_recorder(&activity, 3 * N_WRITES, &error), STATUS_OK);
    activity_record(&activity, true);
    Writer writer[2] = {{&activity, ACTIVITY_HOST}, {&activity, activity_add_track(&activity, "second")}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, write_entries, &writer[i]), 0);
    int64_t last[2] = {0, 0};
    while (last[0] < N_WRITES - 1 && activity_n_recorded(&activity) < 2 * (N_WRITES + N_WRITES / 7)) {
        for (int track = 0; track < 2; track++) {
            ActivityView view;
            if (!activity_look(&activity, track, &view)) continue;
            for (int i = 0; i < view.n; i++) {
                const ActivityEntry *entry = &view.current[i].entry;
                assert_int_equal(entry->n_bytes, entry->number);
                assert_int_equal(entry->peers, entry->number);
                assert_ptr_equal(entry->name, entry->place);
                assert_int_equal(entry->kind, entry->number % 2 ? ACTIVITY_WAIT : ACTIVITY_MESSAGE);
                assert_true(entry->number >= last[track]);
                last[track] = entry->number;
            }
        }
    }
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    int64_t n_of_track[2] = {0, 0};
    for (size_t i = 0; i < activity_n_recorded(&activity); i++) {
        const ActivityEvent *event = activity_recorded(&activity, i);
        assert_non_null(event);
        assert_int_equal(event->entry.n_bytes, event->entry.number);
        n_of_track[event->track]++;
    }
    assert_int_equal(n_of_track[0], N_WRITES + (N_WRITES + 6) / 7);
    assert_int_equal(n_of_track[1], n_of_track[0]);
    assert_int_equal(activity_n_lost(&activity), 0);
    activity_close(&activity);
}

/* ---- a communicator that is watched */

static void collectives_have_running_numbers(void **state) {
    (void)state;
    Activity activity;
    Error error = {0};
    activity_open(&activity);
    assert_int_equal(activity_prepare_recorder(&activity, 100, &error), STATUS_OK);
    Comm comm = comm_self(), child;
    float values[3] = {1, 2, 3};
    comm_watch(&comm, &activity, ACTIVITY_HOST, "all");
    activity_record(&activity, true);
    assert_int_equal(comm_all_reduce(&comm, values, 3, COMM_F32, COMM_SUM, &error), STATUS_OK);
    assert_int_equal(comm_barrier(&comm, &error), STATUS_OK);
    assert_int_equal(comm_split(&comm, 7, 0, &child, &error), STATUS_OK);
    assert_int_equal(comm_barrier(&child, &error), STATUS_OK);
    assert_int_equal(activity_n_recorded(&activity), 4);
    const ActivityEntry *first = &activity_recorded(&activity, 0)->entry;
    assert_string_equal(first->name, "all-reduce");
    assert_string_equal(first->place, "all");
    assert_int_equal(first->number, 1);
    assert_int_equal(first->n_bytes, 12);
    assert_int_equal(first->peers, 1);
    assert_int_equal(activity_recorded(&activity, 1)->entry.number, 2);
    assert_string_equal(activity_recorded(&activity, 2)->entry.name, "split");
    assert_string_equal(activity_recorded(&activity, 3)->entry.place, "all/3:7");
    assert_int_equal(activity_recorded(&activity, 3)->entry.number, 1);
    comm_close(&child);
    comm_close(&comm);
    activity_close(&activity);
}

/* What a process was doing when it was killed. It is in a collective since before there was a board, and in an instruction with
 * a name that is longer than a board has room for. */
static void do_something_until_killed(int report) {
    Activity activity;
    int descriptor;
    ActivityEntry outer = {.kind = ACTIVITY_STEP, .name = "step", .number = 7}, inner = instruction(57),
                  over = instruction(56);
    activity_open(&activity);
    int track = activity_add_track(&activity, "a worker");
    activity_begin(&activity, ACTIVITY_HOST, &outer);
    activity_set_board(&activity, activity_board_open(&descriptor));
    activity_begin(&activity, ACTIVITY_HOST, &over);
    activity_end(&activity, ACTIVITY_HOST);
    inner.name = "an instruction with a name of more than forty letters";
    activity_begin(&activity, ACTIVITY_HOST, &inner);
    activity_begin(
        &activity, track,
        &(ActivityEntry){.kind = ACTIVITY_COLLECTIVE, .name = "split", .number = 3, .place = "all"});
    ssize_t n = write(report, &descriptor, sizeof descriptor);
    if (n > 0) {
        for (;;) pause();
    }
    _exit(1);
}

static void a_board_outlives_its_process(void **state) {
    (void)state;
    int report[2], descriptor = -1;
    char text[256], wanted[] = "step 7, instruction 57 (an instruction with a name of more tha, forward) for";
    assert_int_equal(pipe(report), 0);
    pid_t child = fork();
    if (child == 0) do_something_until_killed(report[1]);
    assert_int_equal(read(report[0], &descriptor, sizeof descriptor), sizeof descriptor);
    ActivityBoard *board = activity_board_join(child, descriptor);
    assert_non_null(board);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_ptr_equal(activity_board_describe(board, text, sizeof text), text);
    assert_int_equal(strncmp(text, wanted, sizeof wanted - 1), 0);
    assert_non_null(strstr(text, "; a worker: split 3 of 'all' for "));
    activity_board_close(board);
    assert_null(activity_board_join(child, descriptor)); /* it is gone now */
    close(report[0]);
    close(report[1]);
}

static void a_board_can_be_empty_or_missing(void **state) {
    (void)state;
    char text[64];
    int descriptor;
    ActivityBoard *board = activity_board_open(&descriptor);
    assert_non_null(board);
    assert_null(activity_board_describe(board, text, sizeof text));
    assert_null(activity_board_describe(NULL, text, sizeof text));
    assert_null(activity_board_join(getpid(), -1));
    assert_null(activity_board_join(getpid(), STDERR_FILENO)); /* something else */
    activity_board_close(board);
    activity_board_close(NULL);
    close(descriptor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_seen_from_the_outermost_on),
        cmocka_unit_test(words_name_track_place_and_size),
        cmocka_unit_test(a_missing_activity_is_nothing),
        cmocka_unit_test(tracks_are_found_by_name_and_end),
        cmocka_unit_test(deep_entries_are_counted_not_kept),
        cmocka_unit_test(the_recorder_is_bounded_and_counts),
        cmocka_unit_test(a_reader_never_sees_a_mixture),
        cmocka_unit_test(collectives_have_running_numbers),
        cmocka_unit_test(a_board_outlives_its_process),
        cmocka_unit_test(a_board_can_be_empty_or_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
