/* Events of several ranks on one clock, and collectives that know their counterparts.
 *
 * Where two ranks run under one kernel they read one clock, and nothing is corrected: no measurement is as
 * good. Elsewhere a rank's clock was compared with rank 0's before and after; in between it is taken to drift
 * evenly.
 *
 * A collective has its communicator's name and its number there, the same on all of its ranks. One that not
 * all of its ranks have recorded, because it was under way when recording began or ended, is left out: what
 * remains is matched without exception. So is everything after the time at which the first rank had no more
 * room. */
#include "trace/trace_part.h"

#include <stdlib.h>
#include <string.h>

/* ---- Clocks */

int64_t trace_clock_offset(const TraceMerge *merge, int rank, uint64_t at_ns) {
    const CommClock *begin = &merge->clock_begin[rank], *end = &merge->clock_end[rank];
    if (merge->is_shared[rank]) return 0;
    if (end->at_ns <= begin->at_ns) return begin->offset_ns;
    double share = ((double)at_ns - (double)begin->at_ns) / ((double)end->at_ns - (double)begin->at_ns);
    return begin->offset_ns + (int64_t)(share * (double)(end->offset_ns - begin->offset_ns));
}

int64_t trace_clock_uncertainty(const TraceMerge *merge, int rank) {
    int64_t begin = merge->clock_begin[rank].uncertainty_ns, end = merge->clock_end[rank].uncertainty_ns;
    if (merge->is_shared[rank]) return 0;
    return begin > end ? begin : end;
}

static uint64_t on_root_clock(const TraceMerge *merge, int rank, uint64_t at_ns) {
    return at_ns - (uint64_t)trace_clock_offset(merge, rank, at_ns);
}

static void find_shared_clocks(TraceMerge *merge) {
    for (int rank = 0; rank < merge->n_ranks; rank++) {
        const char *clock = merge->part[rank].header.clock;
        merge->is_shared[rank] = rank == 0 || (*clock && strcmp(clock, merge->part[0].header.clock) == 0);
        double uncertainty_us = (double)trace_clock_uncertainty(merge, rank) * 1e-3;
        if (uncertainty_us > merge->summary.uncertainty_us) merge->summary.uncertainty_us = uncertainty_us;
    }
}

/* ---- One beginning, one end */

static void move_to_one_clock(TraceMerge *merge) {
    uint64_t first = UINT64_MAX, cut = UINT64_MAX;
    for (int rank = 0; rank < merge->n_ranks; rank++) {
        TracePart *part = &merge->part[rank];
        uint64_t cut_here = part->header.cut_ns;
        if (cut_here != UINT64_MAX) cut_here = on_root_clock(merge, rank, cut_here);
        if (cut_here < cut) cut = cut_here;
        merge->summary.n_lost += part->header.n_lost;
        merge->summary.was_full |= part->header.is_full || part->header.n_lost;
        for (size_t i = 0; i < part->header.n_events; i++) {
            TraceEvent *event = &part->event[i];
            event->begin_ns = on_root_clock(merge, rank, event->begin_ns);
            event->end_ns = on_root_clock(merge, rank, event->end_ns);
            if (event->end_ns < event->begin_ns) event->end_ns = event->begin_ns;
            if (event->begin_ns < first) first = event->begin_ns;
        }
    }
    for (int rank = 0; rank < merge->n_ranks; rank++) {
        TracePart *part = &merge->part[rank];
        for (size_t i = 0; i < part->header.n_events; i++) {
            TraceEvent *event = &part->event[i];
            event->is_left_out = event->end_ns > cut;
            merge->summary.n_lost += event->is_left_out;
            event->begin_ns -= first;
            event->end_ns -= first;
        }
    }
}

/* ---- Collectives */

static const char *text_of(const TraceMerge *merge, const TraceEvent *event, uint32_t place) {
    return place == TRACE_NO_TEXT ? "" : merge->part[event->rank].text + place;
}

/* The communicator has to be compared by its name: addresses differ from rank to rank. qsort hands over no
 * context, so the names are found first. */
typedef struct {
    const char *communicator;
    TraceEvent *event;
} Entered;

static int by_collective(const void *a, const void *b) {
    const Entered *x = a, *y = b;
    int names = strcmp(x->communicator, y->communicator);
    if (names) return names;
    if (x->event->number != y->event->number) return x->event->number < y->event->number ? -1 : 1;
    if (x->event->begin_ns != y->event->begin_ns) return x->event->begin_ns < y->event->begin_ns ? -1 : 1;
    return x->event->rank - y->event->rank;
}

static bool is_same(const TraceMerge *merge, const TraceEvent *a, const TraceEvent *b) {
    return a->number == b->number && strcmp(text_of(merge, a, a->place), text_of(merge, b, b->place)) == 0;
}

static size_t group_at(const TraceMerge *merge, TraceEvent *const *events, size_t n, size_t first) {
    size_t end = first + 1;
    while (end < n && is_same(merge, events[first], events[end])) end++;
    return end - first;
}

size_t trace_merge_group(const TraceMerge *merge, size_t first) {
    return group_at(merge, merge->collective, merge->n_collective_events, first);
}

/* All ranks of the communicator once, and in the same operation? */
static bool is_complete(const TraceMerge *merge, TraceEvent *const *events, size_t n) {
    if ((size_t)events[0]->peers != n) return false;
    for (size_t i = 1; i < n; i++) {
        if (strcmp(text_of(merge, events[i], events[i]->name), text_of(merge, events[0], events[0]->name)) !=
            0)
            return false;
        for (size_t k = 0; n <= 64 && k < i; k++)
            if (events[k]->rank == events[i]->rank) return false;
    }
    return true;
}

/* Of a scatter or a gather only the root sees all; its size is the collective's. */
static void share_size(TraceEvent *const *events, size_t n) {
    uint64_t most = 0;
    for (size_t i = 0; i < n; i++)
        if (events[i]->n_bytes > most) most = events[i]->n_bytes;
    for (size_t i = 0; i < n; i++) events[i]->n_bytes = most;
}

static void match(TraceMerge *merge, TraceEvent **events, size_t n) {
    size_t n_kept = 0;
    for (size_t first = 0, size; first < n; first += size) {
        size = group_at(merge, events, n, first);
        bool is_kept = is_complete(merge, events + first, size);
        for (size_t i = 0; i < size; i++) {
            events[first + i]->is_left_out = !is_kept;
            if (is_kept) merge->collective[n_kept + i] = events[first + i];
        }
        if (is_kept) {
            share_size(&merge->collective[n_kept], size);
            n_kept += size;
        }
        merge->summary.n_collectives += is_kept;
        merge->summary.n_unmatched += !is_kept;
    }
    merge->n_collective_events = n_kept;
}

static Status match_collectives(TraceMerge *merge, size_t n_all, Error *error) {
    Entered *entered = malloc((n_all + 1) * sizeof *entered);
    merge->collective = malloc((n_all + 1) * sizeof(TraceEvent *));
    if (!entered || !merge->collective) {
        free(entered);
        return error_failed(error, "no memory to match the collectives of a trace");
    }
    size_t n = 0;
    for (int rank = 0; rank < merge->n_ranks; rank++) {
        TracePart *part = &merge->part[rank];
        for (size_t i = 0; i < part->header.n_events; i++) {
            TraceEvent *event = &part->event[i];
            if (event->kind != ACTIVITY_COLLECTIVE || event->is_left_out) continue;
            entered[n++] = (Entered){text_of(merge, event, event->place), event};
        }
    }
    qsort(entered, n, sizeof *entered, by_collective);
    for (size_t i = 0; i < n; i++) merge->collective[i] = entered[i].event;
    free(entered);
    match(merge, merge->collective, n);
    return STATUS_OK;
}

/* ---- All together */

static int by_time(const void *a, const void *b) {
    const TraceEvent *x = *(TraceEvent *const *)a, *y = *(TraceEvent *const *)b;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->rank != y->rank) return x->rank - y->rank;
    if (x->track != y->track) return x->track - y->track;
    if (x->depth != y->depth) return x->depth - y->depth;
    return x->end_ns < y->end_ns ? -1 : x->end_ns > y->end_ns;
}

Status trace_merge(TraceMerge *merge, Error *error) {
    size_t n_all = 0;
    merge->is_shared = calloc((size_t)merge->n_ranks, sizeof *merge->is_shared);
    for (int rank = 0; rank < merge->n_ranks; rank++) n_all += merge->part[rank].header.n_events;
    merge->event = malloc((n_all + 1) * sizeof(TraceEvent *));
    if (!merge->is_shared || !merge->event)
        return error_failed(error, "no memory to merge %zu events of a trace", n_all);
    find_shared_clocks(merge);
    move_to_one_clock(merge);
    TRY(match_collectives(merge, n_all, error));
    for (int rank = 0; rank < merge->n_ranks; rank++) {
        TracePart *part = &merge->part[rank];
        for (size_t i = 0; i < part->header.n_events; i++)
            if (!part->event[i].is_left_out) merge->event[merge->n_events++] = &part->event[i];
    }
    qsort(merge->event, merge->n_events, sizeof *merge->event, by_time);
    merge->summary.n_events = merge->n_events;
    return STATUS_OK;
}

void trace_merge_free(TraceMerge *merge) {
    free(merge->is_shared);
    free(merge->event);
    free(merge->collective);
    merge->is_shared = NULL;
    merge->event = merge->collective = NULL;
}
