/* Traces of several ranks, made by hand: clocks that are apart and drift are brought together, collectives find their
 * counterparts, and what is not whole is left out and counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trace/trace_part.h"

/* "host", "all-reduce", "data" at 0, 5, 16; "gather" at 21. */
static const char text[] = "host\0all-reduce\0data\0gather";
enum { HOST = 0, ALL_REDUCE = 5, DATA = 16, GATHER = 21, MOST = 8 };

typedef struct {
    TracePart part[3];
    TraceEvent event[3][MOST];
    CommClock begin[3], end[3];
    TraceMerge merge;
} Fixture;

static void add(Fixture *fixture, int rank, TraceEvent event) {
    TracePart *part = &fixture->part[rank];
    event.rank = rank;
    part->event[part->header.n_events++] = event;
}

static TraceEvent collective(uint32_t name, int64_t number, uint64_t begin, uint64_t end, uint64_t n_bytes) {
    return (TraceEvent){.begin_ns = begin,
                        .end_ns = end,
                        .n_bytes = n_bytes,
                        .number = number,
                        .peers = 2,
                        .name = name,
                        .place = DATA,
                        .kind = ACTIVITY_COLLECTIVE};
}

static void prepare(Fixture *fixture, int n_ranks) {
    memset(fixture, 0, sizeof *fixture);
    for (int rank = 0; rank < n_ranks; rank++) {
        fixture->part[rank] =
            (TracePart){.header = {.rank = rank, .n_tracks = 1, .n_text = sizeof text, .cut_ns = UINT64_MAX},
                        .event = fixture->event[rank],
                        .text = text};
        snprintf(fixture->part[rank].header.clock, sizeof fixture->part[rank].header.clock, "host %d", rank);
    }
    fixture->merge = (TraceMerge){
        .n_ranks = n_ranks, .part = fixture->part, .clock_begin = fixture->begin, .clock_end = fixture->end};
}

static void clocks_are_brought_together(void **state) {
    (void)state;
    Fixture fixture;
    Error error = {0};
    prepare(&fixture, 2);
    /* Rank 1 is 5000 ahead at first and 5100 at the end, 10000 later on its clock: 1 in 100. */
    fixture.begin[1] = (CommClock){.at_ns = 105000, .offset_ns = 5000, .uncertainty_ns = 3};
    fixture.end[1] = (CommClock){.at_ns = 115000, .offset_ns = 5100, .uncertainty_ns = 7};
    add(&fixture, 0, collective(ALL_REDUCE, 1, 100000, 102000, 64));
    add(&fixture, 1,
        collective(ALL_REDUCE, 1, 105500, 107000, 64)); /* 500 and 2000 later: 5 and 20 too much */
    assert_int_equal(trace_merge(&fixture.merge, &error), STATUS_OK);
    const TraceEvent *first = &fixture.event[0][0], *second = &fixture.event[1][0];
    assert_int_equal(first->begin_ns, 0);
    assert_int_equal(first->end_ns, 2000);
    assert_int_equal(second->begin_ns, 500 - 5);
    assert_int_equal(second->end_ns, 2000 - 20);
    assert_int_equal(trace_clock_uncertainty(&fixture.merge, 1), 7);
    assert_true(fixture.merge.summary.uncertainty_us > 0.00699 &&
                fixture.merge.summary.uncertainty_us < 0.00701);
    assert_int_equal(fixture.merge.summary.n_collectives, 1);
    trace_merge_free(&fixture.merge);
}

static void one_clock_is_left_alone(void **state) {
    (void)state;
    Fixture fixture;
    Error error = {0};
    prepare(&fixture, 2);
    strcpy(fixture.part[1].header.clock, "host 0");
    fixture.begin[1] = fixture.end[1] = (CommClock){.at_ns = 1, .offset_ns = 40, .uncertainty_ns = 50};
    add(&fixture, 0, collective(ALL_REDUCE, 1, 1000, 2000, 64));
    add(&fixture, 1, collective(ALL_REDUCE, 1, 1500, 2100, 64));
    assert_int_equal(trace_merge(&fixture.merge, &error), STATUS_OK);
    assert_int_equal(fixture.event[1][0].begin_ns, 500);
    assert_int_equal(trace_clock_uncertainty(&fixture.merge, 1), 0);
    trace_merge_free(&fixture.merge);
}

static void collectives_are_matched_or_left_out(void **state) {
    (void)state;
    Fixture fixture;
    Error error = {0};
    prepare(&fixture, 2);
    add(&fixture, 0, collective(ALL_REDUCE, 1, 1000, 2000, 64));
    add(&fixture, 0, collective(GATHER, 2, 3000, 3500, 200));    /* the root's: all slices */
    add(&fixture, 0, collective(ALL_REDUCE, 3, 4000, 5000, 64)); /* alone */
    add(&fixture, 1, collective(GATHER, 2, 2900, 3100, 100));
    add(&fixture, 1, collective(ALL_REDUCE, 1, 900, 2000, 64));
    add(&fixture, 1, collective(ALL_REDUCE, 4, 6000, 7000, 64)); /* another operation on the other rank */
    add(&fixture, 0, collective(GATHER, 4, 6000, 7000, 64));
    assert_int_equal(trace_merge(&fixture.merge, &error), STATUS_OK);
    const TraceMerge *merge = &fixture.merge;
    assert_int_equal(merge->summary.n_collectives, 2);
    assert_int_equal(merge->summary.n_unmatched, 2);
    assert_int_equal(merge->n_events, 4);
    assert_int_equal(merge->n_collective_events, 4);
    assert_int_equal(trace_merge_group(merge, 0), 2);
    assert_int_equal(merge->collective[0]->rank, 1); /* came first */
    assert_int_equal(merge->collective[2]->number, 2);
    for (int i = 2; i < 4; i++) assert_int_equal(merge->collective[i]->n_bytes, 200);
    for (size_t i = 1; i < merge->n_events; i++)
        assert_true(merge->event[i - 1]->begin_ns <= merge->event[i]->begin_ns);
    trace_merge_free(&fixture.merge);
}

static void all_end_with_the_first_that_had_no_room(void **state) {
    (void)state;
    Fixture fixture;
    Error error = {0};
    prepare(&fixture, 2);
    fixture.part[1].header.cut_ns = 2500;
    fixture.part[1].header.n_lost = 7;
    for (int i = 0; i < 3; i++) {
        uint64_t at = 1000 * (uint64_t)(i + 1);
        add(&fixture, 0, collective(ALL_REDUCE, i, at, at + 400, 8));
        if (i < 2) add(&fixture, 1, collective(ALL_REDUCE, i, at, at + 400, 8));
    }
    assert_int_equal(trace_merge(&fixture.merge, &error), STATUS_OK);
    assert_int_equal(fixture.merge.summary.n_events, 4);
    assert_int_equal(fixture.merge.summary.n_lost, 8);
    assert_int_equal(fixture.merge.summary.n_unmatched, 0);
    assert_true(fixture.merge.summary.was_full);
    trace_merge_free(&fixture.merge);
}

static void steps_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t first, last;
    } good[] = {{"3:7", 3, 7}, {"4:4", 4, 4}, {"5", 5, 5}, {":9", 1, 9}, {"8:", 8, INT64_MAX}};
    static const char *const bad[] = {
        "", ":", "7:3", "0:3", "-1:3", "a", "1:b", "1 ", " 1", "1::2", "+1", "1:+2", "99999999999999999999"};
    int64_t first, last;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        Error error = {0};
        assert_int_equal(trace_read_steps(good[i].text, &first, &last, &error), STATUS_OK);
        assert_int_equal(first, good[i].first);
        assert_int_equal(last, good[i].last);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Error error = {0};
        if (trace_read_steps(bad[i], &first, &last, &error) != STATUS_USER) fail_msg("'%s' is taken", bad[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clocks_are_brought_together),
        cmocka_unit_test(one_clock_is_left_alone),
        cmocka_unit_test(collectives_are_matched_or_left_out),
        cmocka_unit_test(all_end_with_the_first_that_had_no_room),
        cmocka_unit_test(steps_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
