/* Times of a device behind the host: what a recorder is told of them, in order and at the right time, however long it
 * goes on; and nothing while nothing is recorded. The device is a clock that is set by hand. */
#include "base/system/timer.h"
#include "graph/device/device_times.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    double now_ms; /* of the device */
    bool fails;
    int n_events, n_waits;
} Device;

typedef struct {
    double at_ms;
} Event;

static Status new_event(void *context, void **event, Error *error) {
    (void)error;
    ((Device *)context)->n_events++;
    *event = calloc(1, sizeof(Event));
    return STATUS_OK;
}

static void free_event(void *context, void *event) {
    ((Device *)context)->n_events -= event != NULL;
    free(event);
}

static Status record_event(void *context, void *event, Error *error) {
    (void)error;
    ((Event *)event)->at_ms = ((Device *)context)->now_ms;
    return STATUS_OK;
}

/* As on a GPU: of 24 bits. */
static Status elapsed(void *context, void *first, void *second, float *milliseconds, Error *error) {
    if (((Device *)context)->fails) return error_failed(error, "the device has failed");
    *milliseconds = (float)(((Event *)second)->at_ms - ((Event *)first)->at_ms);
    return STATUS_OK;
}

static Status wait_for_all(void *context, Error *error) {
    (void)error;
    ((Device *)context)->n_waits++;
    return STATUS_OK;
}

static Backend backend_of(Device *device) {
    return (Backend){.name = "clock",
                     .event_new = new_event,
                     .event_free = free_event,
                     .event_record = record_event,
                     .elapsed_ms = elapsed,
                     .synchronize = wait_for_all,
                     .context = device};
}

/* Something that takes so long, on a track. */
static void give(DeviceTimes *times, const Backend *backend, DeviceTrack track, int64_t number, double ms) {
    Device *device = backend->context;
    Error error = {0};
    ActivityEntry entry = {.kind = ACTIVITY_INSTRUCTION, .name = "work", .number = number};
    const BackendSpan *span = device_times_next(times, track, &entry);
    if (span) assert_int_equal(backend->event_record(device, span->begin, &error), STATUS_OK);
    device->now_ms += ms;
    if (span) assert_int_equal(backend->event_record(device, span->end, &error), STATUS_OK);
    device_times_end(times, span);
}

typedef struct {
    Activity activity;
    Device device;
    Backend backend;
    DeviceTimes *times;
} Case;

static void open_case(Case *c, size_t n_events) {
    Error error = {0};
    *c = (Case){.device = {.now_ms = 1234.5}};
    c->backend = backend_of(&c->device);
    activity_open(&c->activity);
    assert_int_equal(activity_prepare_recorder(&c->activity, n_events, &error), STATUS_OK);
    assert_int_equal(device_times_open(&c->times, &c->backend, &error), STATUS_OK);
    assert_non_null(c->times);
    device_times_watch(c->times, &c->activity);
}

static void close_case(Case *c) {
    device_times_close(&c->times);
    assert_null(c->times);
    assert_int_equal(c->device.n_events, 0);
    activity_close(&c->activity);
}

/* A minute and more of the device's time; every span a microsecond and as long as it was, one behind the other. */
static void spans_keep_their_times(void **state) {
    (void)state;
    enum { N = 5000 };
    Case c;
    open_case(&c, N + 10);
    activity_record(&c.activity, true);
    uint64_t began_ns = timer_now_ns();
    for (int i = 0; i < N; i++) {
        give(c.times, &c.backend, (DeviceTrack)(i % 3), i, 0.25);
        c.device.now_ms += 17.75; /* nothing to do */
    }
    device_times_show(c.times);
    assert_int_equal(activity_n_recorded(&c.activity), N);
    const ActivityEvent *first = activity_recorded(&c.activity, 0);
    assert_true(first->begin_ns >= began_ns);
    for (int i = 0; i < N; i++) {
        const ActivityEvent *event = activity_recorded(&c.activity, (size_t)i);
        assert_int_equal(event->entry.number, i);
        assert_string_equal(atomic_load(&c.activity.track[event->track].name), i % 3 == 0   ? "device"
                                                                               : i % 3 == 1 ? "bus out"
                                                                                            : "bus in");
        double begin_us = (double)(event->begin_ns - first->begin_ns) * 1e-3;
        double length_us = (double)(event->end_ns - event->begin_ns) * 1e-3;
        assert_true(begin_us > 18e3 * i - 30.0 &&
                    begin_us < 18e3 * i + 30.0); /* the clocks' seconds are not the same */
        assert_true(length_us > 249.0 && length_us < 251.0);
    }
    assert_int_equal(c.device.n_waits, 2); /* for the first event whose time is known, and never again */
    close_case(&c);
}

/* What was given while nothing was recorded is not shown; what began before it was switched off is, though it is told
 * later. */
static void only_what_is_recorded(void **state) {
    (void)state;
    Case c;
    open_case(&c, 100);
    give(c.times, &c.backend, DEVICE_TRACK_COMPUTE, 1, 1.0);
    assert_int_equal(c.device.n_events, 0);
    activity_record(&c.activity, true);
    give(c.times, &c.backend, DEVICE_TRACK_COMPUTE, 2, 0.0);
    activity_record(&c.activity, false);
    give(c.times, &c.backend, DEVICE_TRACK_COMPUTE, 3, 1.0);
    device_times_show(c.times);
    device_times_show(c.times);
    assert_int_equal(activity_n_recorded(&c.activity), 1);
    assert_int_equal(activity_recorded(&c.activity, 0)->entry.number, 2);
    close_case(&c);
}

/* A span that others lie in, more than are kept: what finds no place is lost, and said so; the rest has its times. */
static void one_around_many(void **state) {
    (void)state;
    enum { N = 3000 };
    Case c;
    Error error = {0};
    open_case(&c, N + 10);
    activity_record(&c.activity, true);
    ActivityEntry entry = {.kind = ACTIVITY_INSTRUCTION, .name = "outer", .number = -1};
    const BackendSpan *outer = device_times_next(c.times, DEVICE_TRACK_COMPUTE, &entry);
    assert_non_null(outer);
    assert_int_equal(c.backend.event_record(&c.device, outer->begin, &error), STATUS_OK);
    for (int i = 0; i < N; i++) give(c.times, &c.backend, DEVICE_TRACK_IN, i, 0.25);
    assert_int_equal(c.backend.event_record(&c.device, outer->end, &error), STATUS_OK);
    device_times_show(c.times); /* not yet: it has not been said that it ended */
    assert_int_equal(activity_n_recorded(&c.activity), 0);
    device_times_end(c.times, outer);
    device_times_show(c.times);
    size_t n = activity_n_recorded(&c.activity);
    assert_true(n > 1000 && n + activity_n_lost(&c.activity) == N + 1);
    const ActivityEvent *first = activity_recorded(&c.activity, 0);
    assert_string_equal(first->entry.name, "outer");
    double length_ms = (double)(first->end_ns - first->begin_ns) * 1e-6;
    assert_true(length_ms > 0.25 * N - 0.1 && length_ms < 0.25 * N + 0.1);
    give(c.times, &c.backend, DEVICE_TRACK_COMPUTE, 1, 1.0); /* and it goes on */
    device_times_show(c.times);
    assert_int_equal(activity_n_recorded(&c.activity), n + 1);
    close_case(&c);
}

/* A device that has failed is not asked again. */
static void a_device_that_failed(void **state) {
    (void)state;
    Case c;
    open_case(&c, 100);
    activity_record(&c.activity, true);
    give(c.times, &c.backend, DEVICE_TRACK_COMPUTE, 1, 1.0);
    c.device.fails = true;
    device_times_show(c.times);
    c.device.fails = false;
    ActivityEntry entry = {.name = "work"};
    assert_null(device_times_next(c.times, DEVICE_TRACK_COMPUTE, &entry));
    assert_int_equal(activity_n_recorded(&c.activity), 0);
    close_case(&c);
}

/* Where the host waits for every kernel there is nothing to ask. */
static void no_events_no_times(void **state) {
    (void)state;
    Error error = {0};
    Backend backend = {.name = "host"};
    DeviceTimes *times;
    assert_int_equal(device_times_open(&times, &backend, &error), STATUS_OK);
    assert_null(times);
    device_times_watch(times, NULL);
    device_times_show(times);
    assert_null(device_times_next(times, DEVICE_TRACK_COMPUTE, &(ActivityEntry){.name = "work"}));
    device_times_close(&times);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_keep_their_times), cmocka_unit_test(only_what_is_recorded),
        cmocka_unit_test(one_around_many),        cmocka_unit_test(a_device_that_failed),
        cmocka_unit_test(no_events_no_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
