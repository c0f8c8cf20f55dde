/* A ring of spans. The oldest one is shown when its place is wanted, or all are in the end; by then the
 * device is long past it, so that nobody waits. Where it has not ended, since the others lie in it, what
 * finds no place is counted as lost.
 *
 * An event knows how long after another one it was, not what time it was. So there is one whose time is
 * known, because the host has waited for it. Such a difference has 24 bits, though: seconds later it is no
 * longer good to a microsecond. Another event then takes the first one's place, at its time by the first. */
#include "graph/device/device_times.h"

#include "base/system/timer.h"

#include <stdlib.h>

enum { RING = 1024 };
static const float keeps_ms = 4000.0F;

static const char *const track_names[N_DEVICE_TRACKS] = {"device", "bus out", "bus in"};

typedef struct {
    BackendSpan events;
    ActivityEntry entry;
    DeviceTrack track;
    bool has_ended;
} Span;

struct DeviceTimes {
    const Backend *backend;
    Activity *activity; /* NULL: nobody's */
    Span ring[RING];
    uint64_t n_given, n_shown;
    void *base; /* the event whose time is known */
    uint64_t base_ns;
    void *next; /* the one to take its place, recorded in front of span number n_before_next */
    uint64_t n_before_next;
    bool has_base, has_next;
    bool is_broken; /* the device has failed: who waits for its work finds it too, and says so */
};

Status device_times_open(DeviceTimes **opened, const Backend *backend, Error *error) {
    *opened = NULL;
    if (!backend->event_new || backend->only_plans) return STATUS_OK;
    DeviceTimes *times = calloc(1, sizeof *times);
    if (!times) return error_failed(error, "no memory for the times of a device");
    times->backend = backend;
    *opened = times;
    return STATUS_OK;
}

void device_times_close(DeviceTimes **opened) {
    DeviceTimes *times = *opened;
    if (!times) return;
    const Backend *backend = times->backend;
    for (int i = 0; i < RING; i++) {
        backend->event_free(backend->context, times->ring[i].events.begin);
        backend->event_free(backend->context, times->ring[i].events.end);
    }
    backend->event_free(backend->context, times->base);
    backend->event_free(backend->context, times->next);
    free(times);
    *opened = NULL;
}

void device_times_watch(DeviceTimes *times, Activity *activity) {
    if (!times || times->activity == activity) return;
    device_times_show(times);
    times->activity = activity;
}

static Status record(const Backend *backend, void **event, Error *error) {
    if (!*event) TRY(backend->event_new(backend->context, event, error));
    return backend->event_record(backend->context, *event, error);
}

/* The host comes back a little later than the event was; with nothing else to wait for that is microseconds,
 * on both sides of it. */
static Status find_base(DeviceTimes *times, Error *error) {
    const Backend *backend = times->backend;
    if (backend->synchronize) TRY(backend->synchronize(backend->context, error));
    uint64_t before = timer_now_ns();
    TRY(record(backend, &times->base, error));
    if (backend->synchronize) TRY(backend->synchronize(backend->context, error));
    times->base_ns = before + (timer_now_ns() - before) / 2;
    times->has_base = true;
    times->has_next = false;
    return STATUS_OK;
}

static Status time_of(const DeviceTimes *times, void *event, float *milliseconds, uint64_t *ns,
                      Error *error) {
    const Backend *backend = times->backend;
    TRY(backend->elapsed_ms(backend->context, times->base, event, milliseconds, error));
    *ns = times->base_ns + (uint64_t)(*milliseconds > 0.0F ? 1e6 * (double)*milliseconds : 0.0);
    return STATUS_OK;
}

static Status move_base(DeviceTimes *times, Error *error) {
    float milliseconds;
    void *base = times->base;
    TRY(time_of(times, times->next, &milliseconds, &times->base_ns, error));
    times->base = times->next;
    times->next = base;
    times->has_next = false;
    return STATUS_OK;
}

/* The oldest one. */
static Status show(DeviceTimes *times, Error *error) {
    uint64_t number = times->n_shown++, begin_ns, end_ns;
    const Span *span = &times->ring[number % RING];
    float begin_ms, end_ms;
    if (times->has_next && number >= times->n_before_next) TRY(move_base(times, error));
    TRY(time_of(times, span->events.begin, &begin_ms, &begin_ns, error));
    TRY(time_of(times, span->events.end, &end_ms, &end_ns, error));
    int track = activity_add_track(times->activity, track_names[span->track]);
    activity_put(times->activity, track, &span->entry, begin_ns, end_ns);
    if (begin_ms < keeps_ms || times->has_next) return STATUS_OK;
    TRY(record(times->backend, &times->next, error));
    times->has_next = true;
    times->n_before_next = times->n_given;
    return STATUS_OK;
}

static Status show_all(DeviceTimes *times, Error *error) {
    while (times->n_shown < times->n_given && times->ring[times->n_shown % RING].has_ended)
        TRY(show(times, error));
    return STATUS_OK;
}

void device_times_show(DeviceTimes *times) {
    Error error = {0};
    if (times && !times->is_broken) times->is_broken = show_all(times, &error) != STATUS_OK;
}

static Status make_next(DeviceTimes *times, Error *error) {
    const Backend *backend = times->backend;
    if (times->n_given - times->n_shown == RING) TRY(show(times, error));
    BackendSpan *events = &times->ring[times->n_given % RING].events;
    if (!times->has_base) TRY(find_base(times, error));
    if (!events->begin) TRY(backend->event_new(backend->context, &events->begin, error));
    if (!events->end) TRY(backend->event_new(backend->context, &events->end, error));
    return STATUS_OK;
}

bool device_times_are_wanted(const DeviceTimes *times) {
    return times && !times->is_broken && activity_is_recording(times->activity);
}

const BackendSpan *device_times_next(DeviceTimes *times, DeviceTrack track, const ActivityEntry *entry) {
    Error error = {0};
    if (!device_times_are_wanted(times)) return NULL;
    if (times->n_given - times->n_shown == RING && !times->ring[times->n_shown % RING].has_ended) {
        uint64_t now = timer_now_ns();
        activity_put(times->activity, -1, entry, now, now);
        return NULL;
    }
    times->is_broken = make_next(times, &error) != STATUS_OK;
    if (times->is_broken) return NULL;
    Span *span = &times->ring[times->n_given++ % RING];
    span->entry = *entry;
    span->track = track;
    span->has_ended = false;
    return &span->events;
}

void device_times_end(DeviceTimes *times, const BackendSpan *span) {
    if (times && span) ((Span *)(uintptr_t)span)->has_ended = true; /* its first member */
}
