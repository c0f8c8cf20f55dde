/* What a timeline says in numbers.
 *
 * A track's events lie in each other; the time of a moment is the innermost one's. A walk with a stack cuts
 * the track into disjoint segments, each with one event, and everything else is sums over those: a rank's
 * first track is the one that computes, so what it is in is what the rank is in. Communication is under way
 * in any track; where it meets computing, it is hidden.
 *
 * In another program's trace events of a track may overlap without lying in each other. The later one then
 * ends with the earlier, and is counted. */
#include "lab/picture/timeline.h"

#include "graph/actions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Status timeline_set_window(Timeline *timeline, double from_ms, double to_ms, Error *error) {
    double length_ms = timeline->length_us * 1e-3;
    if (to_ms > 0.0 && from_ms >= to_ms)
        return error_user(error, "--from %g is not before --to %g; exchange them", from_ms, to_ms);
    if (from_ms >= length_ms)
        return error_user(error, "--from %g: the trace ends at %g ms; choose an earlier time", from_ms,
                          length_ms);
    timeline->from_us = from_ms * 1e3;
    timeline->to_us = to_ms > 0.0 && to_ms < length_ms ? to_ms * 1e3 : timeline->length_us;
    return STATUS_OK;
}

bool timeline_is_action(const TimelineEvent *event) {
    if (event->kind != TIMELINE_STEP || event->number < 0) return false;
    for (int kind = 0; kind < N_ACTION_KINDS; kind++)
        if (strcmp(event->name, action_name((ActionKind)kind)) == 0) return true;
    return false;
}

/* Does the next event lie in this one, and is it a wait? Then this one is the instruction that waits. */
static bool waits_inside(const Timeline *timeline, size_t i) {
    const TimelineEvent *event = &timeline->event[i], *next = event + 1;
    return i + 1 < timeline->n_events && next->track == event->track && next->kind == TIMELINE_WAIT &&
           next->end_us <= event->end_us;
}

void timeline_action_span(const Timeline *timeline, size_t event, double *begin_us, double *end_us) {
    const TimelineEvent *action = &timeline->event[event];
    bool has_computed = false;
    *begin_us = action->begin_us;
    *end_us = action->end_us;
    for (size_t i = event + 1; i < timeline->n_events; i++) {
        const TimelineEvent *inner = &timeline->event[i];
        if (inner->track != action->track || inner->begin_us >= action->end_us) break;
        if (inner->kind == TIMELINE_WORK || waits_inside(timeline, i)) continue;
        if (inner->kind != TIMELINE_WAIT) has_computed = true;
        else if (!has_computed) *begin_us = fmin(inner->end_us, action->end_us);
        /* What is left behind the last one is to hand over the result. */
        else if (action->end_us - inner->end_us < inner->begin_us - *begin_us) *end_us = inner->begin_us;
    }
}

/* ---- Segments */

typedef struct {
    const TimelineEvent *event;
    double end_us;
} Open;

typedef struct {
    const Timeline *timeline;
    Open *open;
    size_t n_open;
    double done_us; /* everything before was visited */
    TimelineVisit visit;
    void *context;
} Walk;

static void advance(Walk *walk, double to_us) {
    const Timeline *timeline = walk->timeline;
    if (to_us <= walk->done_us) return;
    TimelineSegment segment = {.begin_us = fmax(walk->done_us, timeline->from_us),
                               .end_us = fmin(to_us, timeline->to_us),
                               .event = walk->n_open ? walk->open[walk->n_open - 1].event : NULL};
    if (segment.event && segment.end_us > segment.begin_us) walk->visit(walk->context, &segment);
    walk->done_us = to_us;
}

static void close_until(Walk *walk, double time_us) {
    while (walk->n_open && walk->open[walk->n_open - 1].end_us <= time_us) {
        advance(walk, walk->open[walk->n_open - 1].end_us);
        walk->n_open--;
    }
}

Status timeline_visit(const Timeline *timeline, int track, TimelineVisit visit, void *context,
                      size_t *n_clipped, Error *error) {
    const double rounding_us = 0.01;
    size_t first = timeline->track[track].first, n = timeline->track[track].n;
    Walk walk = {.timeline = timeline, .visit = visit, .context = context, .done_us = -INFINITY};
    walk.open = malloc((n + 1) * sizeof *walk.open);
    if (!walk.open) return error_failed(error, "no memory to walk through %zu events", n);
    for (size_t i = first; i < first + n; i++) {
        const TimelineEvent *event = &timeline->event[i];
        Open open = {event, event->end_us};
        close_until(&walk, event->begin_us);
        advance(&walk, event->begin_us);
        if (walk.n_open && open.end_us > walk.open[walk.n_open - 1].end_us) {
            open.end_us = walk.open[walk.n_open - 1].end_us;
            *n_clipped += event->end_us > open.end_us + rounding_us;
        }
        walk.open[walk.n_open++] = open;
    }
    close_until(&walk, INFINITY);
    free(walk.open);
    return STATUS_OK;
}

/* ---- Times of a rank */

typedef struct {
    double begin_us, end_us;
} Interval;

typedef struct {
    Interval *interval;
    size_t n;
} Intervals;

static double length_of(const Intervals *set) {
    double sum = 0.0;
    for (size_t i = 0; i < set->n; i++) sum += set->interval[i].end_us - set->interval[i].begin_us;
    return sum;
}

/* Of two sets that are in order and disjoint in themselves. */
static double overlap_of(const Intervals *a, const Intervals *b) {
    double sum = 0.0;
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        double begin = fmax(a->interval[i].begin_us, b->interval[k].begin_us);
        double end = fmin(a->interval[i].end_us, b->interval[k].end_us);
        if (end > begin) sum += end - begin;
        if (a->interval[i].end_us < b->interval[k].end_us) i++;
        else k++;
    }
    return sum;
}

static int by_begin(const void *a, const void *b) {
    const Interval *x = a, *y = b;
    return x->begin_us < y->begin_us ? -1 : x->begin_us > y->begin_us;
}

/* In order, and those that meet made one. */
static void unite(Intervals *set) {
    size_t n = 0;
    if (!set->interval) return;
    qsort(set->interval, set->n, sizeof *set->interval, by_begin);
    for (size_t i = 0; i < set->n; i++) {
        Interval next = set->interval[i];
        if (n && next.begin_us <= set->interval[n - 1].end_us) {
            if (next.end_us > set->interval[n - 1].end_us) set->interval[n - 1].end_us = next.end_us;
        } else {
            set->interval[n++] = next;
        }
    }
    set->n = n;
}

static bool is_communication(TimelineKind kind) {
    return kind == TIMELINE_COLLECTIVE || kind == TIMELINE_MESSAGE;
}

typedef struct {
    Intervals compute;
    double wait_us;
} HostTime;

static void add_segment(void *context, const TimelineSegment *segment) {
    HostTime *host = context;
    TimelineKind kind = segment->event->kind;
    double length = segment->end_us - segment->begin_us;
    if (kind == TIMELINE_FORWARD || kind == TIMELINE_BACKWARD || kind == TIMELINE_UPDATE ||
        kind == TIMELINE_WEIGHT_GRADIENT)
        host->compute.interval[host->compute.n++] = (Interval){segment->begin_us, segment->end_us};
    else if (kind == TIMELINE_WAIT || is_communication(kind)) host->wait_us += length;
}

static void add_communication(const Timeline *timeline, const TimelineTrack *track, Intervals *set) {
    for (size_t i = track->first; set->interval && i < track->first + track->n; i++) {
        const TimelineEvent *event = &timeline->event[i];
        Interval part = {fmax(event->begin_us, timeline->from_us), fmin(event->end_us, timeline->to_us)};
        if (is_communication(event->kind) && part.end_us > part.begin_us) set->interval[set->n++] = part;
    }
}

/* Of tracks first .. end-1 the one that computes: of a device that runs behind the host its own, if it is
 * there. */
static int computing_track(const Timeline *timeline, int first, int end) {
    for (int i = first; i < end; i++)
        if (strcmp(timeline->track[i].name, "device") == 0 && timeline->track[i].n) return i;
    return first;
}

/* Tracks first .. end-1 are the rank's. */
static Status measure_rank(Timeline *timeline, int first, int end, Error *error) {
    TimelineRank *rank = &timeline->rank[timeline->track[first].rank];
    size_t n = 0;
    for (int i = first; i < end; i++) n += timeline->track[i].n;
    int computing = computing_track(timeline, first, end);
    HostTime host = {0};
    Intervals communication = {0};
    /* every event begins and ends once, and a segment lies between two such moments */
    host.compute.interval = malloc((2 * timeline->track[computing].n + 1) * sizeof(Interval));
    communication.interval = malloc((n + 1) * sizeof(Interval));
    if (!host.compute.interval || !communication.interval)
        error_failed(error, "no memory to measure %zu events", n);
    else timeline_visit(timeline, computing, add_segment, &host, &timeline->n_clipped, error);
    if (error->status == STATUS_OK) {
        for (int i = first; i < end; i++) add_communication(timeline, &timeline->track[i], &communication);
        unite(&communication);
        double compute_us = length_of(&host.compute), window_us = timeline->to_us - timeline->from_us;
        rank->time = (TimelineTime){.compute_us = compute_us,
                                    .comm_us = length_of(&communication),
                                    .overlapped_us = overlap_of(&host.compute, &communication),
                                    .wait_us = host.wait_us,
                                    .other_us = fmax(0.0, window_us - compute_us - host.wait_us)};
    }
    free(host.compute.interval);
    free(communication.interval);
    return error->status;
}

/* ---- Collectives */

typedef struct {
    const TimelineEvent *event;
    size_t number;
} Entered;

static int by_collective(const void *a, const void *b) {
    const TimelineEvent *x = ((const Entered *)a)->event, *y = ((const Entered *)b)->event;
    int names = strcmp(x->communicator, y->communicator);
    if (names) return names;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    if (x->begin_us != y->begin_us) return x->begin_us < y->begin_us ? -1 : 1;
    return x->track < y->track ? -1 : x->track > y->track;
}

static bool is_same(const TimelineEvent *a, const TimelineEvent *b) {
    return a->number == b->number && strcmp(a->communicator, b->communicator) == 0;
}

static int by_first_begin(const void *a, const void *b) {
    const TimelineCollective *x = a, *y = b;
    return x->begin_us < y->begin_us ? -1 : x->begin_us > y->begin_us;
}

static TimelineCollective collective_of(Timeline *timeline, const Entered *entered, size_t n) {
    const TimelineEvent *first = entered[0].event, *last = entered[n - 1].event;
    size_t *numbers = ARENA_ARRAY(&timeline->arena, size_t, n);
    TimelineCollective found = {.communicator = first->communicator,
                                .kind = first->name,
                                .number = first->number,
                                .begin_us = first->begin_us,
                                .spread_us = last->begin_us - first->begin_us,
                                .slowest = timeline->track[last->track].rank,
                                .n_ranks = (int)n,
                                .is_complete = !first->peers || (size_t)first->peers == n,
                                .event = numbers};
    found.together_us = INFINITY;
    for (size_t i = 0; i < n; i++) {
        const TimelineEvent *event = entered[i].event;
        numbers[i] = entered[i].number;
        found.together_us = fmin(found.together_us, event->end_us - last->begin_us);
        found.duration_us = fmax(found.duration_us, event->end_us - first->begin_us);
        if (event->n_bytes > found.n_bytes) found.n_bytes = event->n_bytes;
    }
    return found;
}

static Status find_collectives(Timeline *timeline, Error *error) {
    size_t n = 0, n_entered = 0;
    for (size_t i = 0; i < timeline->n_events; i++) n += timeline->event[i].kind == TIMELINE_COLLECTIVE;
    Entered *entered = malloc((n + 1) * sizeof *entered);
    free(timeline->collective);
    timeline->collective = malloc((n + 1) * sizeof *timeline->collective);
    timeline->n_collectives = 0;
    if (!entered || !timeline->collective) {
        free(entered);
        return error_failed(error, "no memory for %zu collectives", n);
    }
    for (size_t i = 0; i < timeline->n_events; i++) {
        const TimelineEvent *event = &timeline->event[i];
        if (event->kind == TIMELINE_COLLECTIVE) entered[n_entered++] = (Entered){event, i};
    }
    qsort(entered, n_entered, sizeof *entered, by_collective);
    for (size_t first = 0, size; first < n_entered; first += size) {
        for (size = 1;
             first + size < n_entered && is_same(entered[first].event, entered[first + size].event);)
            size++;
        TimelineCollective one = collective_of(timeline, entered + first, size);
        bool is_seen = one.begin_us <= timeline->to_us && one.begin_us + one.duration_us >= timeline->from_us;
        if (!is_seen) continue;
        timeline->collective[timeline->n_collectives++] = one;
        if (size > 1) timeline->rank[one.slowest].n_last++;
    }
    free(entered);
    qsort(timeline->collective, timeline->n_collectives, sizeof *timeline->collective, by_first_begin);
    return STATUS_OK;
}

Status timeline_measure(Timeline *timeline, Error *error) {
    timeline->n_clipped = 0;
    for (int first = 0, end; first < timeline->n_tracks; first = end) {
        for (end = first + 1;
             end < timeline->n_tracks && timeline->track[end].rank == timeline->track[first].rank;)
            end++;
        TRY(measure_rank(timeline, first, end, error));
    }
    for (int i = 0; i < timeline->n_ranks; i++) timeline->rank[i].n_last = 0;
    return find_collectives(timeline, error);
}
