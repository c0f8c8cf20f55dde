/* A process that hangs cannot be asked what it is doing, so it says so beforehand, all the time, in a place
 * that another thread can read. That has to be cheap, since an instruction may take a microsecond, and it may
 * not take a lock, since the one who reads is wanted just when the other is stuck.
 *
 * Every thread has a track, a small stack of what it is in. A track has a number that is odd while the stack
 * is being changed and even otherwise; a reader copies the stack between two looks at the number and keeps
 * the copy if the number was even and the same. All fields are atomics. The fields are written with release
 * and read with acquire: a reader that got a field of a newer change also gets the odd number that was
 * written before it, at its second look. So there is no fence, and no data race even while the copy that will
 * be thrown away is made.
 *
 * The recorder is an array that was allocated beforehand. Whoever ends an entry takes the next place by one
 * atomic addition, so tracks need no share of their own; what finds no place is counted. A flag in each event
 * says that it is complete. */
#include "base/system/activity.h"

#include "base/system/activity_board.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "base/text/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ActivityName {
    ActivityName *next;
    char text[];
};

static const char *const kind_names[N_ACTIVITY_KINDS] = {
    [ACTIVITY_STEP] = "step",
    [ACTIVITY_WORK] = "work",
    [ACTIVITY_INSTRUCTION] = "instruction",
    [ACTIVITY_COLLECTIVE] = "collective",
    [ACTIVITY_WAIT] = "wait",
    [ACTIVITY_MESSAGE] = "message",
    [ACTIVITY_FILE] = "file",
};

const char *activity_kind_name(ActivityKind kind) {
    return (unsigned)kind < N_ACTIVITY_KINDS ? kind_names[kind] : "unknown";
}

/* ---- Open and close */

void activity_open(Activity *activity) {
    memset(activity, 0, sizeof *activity);
    pthread_mutex_init(&activity->mutex, NULL);
    atomic_store(&activity->track[ACTIVITY_HOST].name, "host");
    atomic_store(&activity->n_tracks, 1);
}

void activity_close(Activity *activity) {
    if (!activity || !atomic_load(&activity->n_tracks)) return;
    memory_free(activity->event, activity_recorder_bytes(activity));
    while (activity->names) {
        ActivityName *next = activity->names->next;
        free(activity->names);
        activity->names = next;
    }
    pthread_mutex_destroy(&activity->mutex);
    memset(activity, 0, sizeof *activity);
}

int activity_add_track(Activity *activity, const char *name) {
    if (!activity) return -1;
    pthread_mutex_lock(&activity->mutex);
    int n = atomic_load(&activity->n_tracks), track = 0;
    while (track < n && strcmp(atomic_load(&activity->track[track].name), name) != 0) track++;
    if (track == n && n < ACTIVITY_MAX_TRACKS) {
        atomic_store(&activity->track[n].name, name);
        atomic_store(&activity->n_tracks, n + 1);
    }
    pthread_mutex_unlock(&activity->mutex);
    return track < ACTIVITY_MAX_TRACKS ? track : -1;
}

const char *activity_keep(Activity *activity, const char *text) {
    if (!activity || !text) return text;
    pthread_mutex_lock(&activity->mutex);
    ActivityName *name = activity->names;
    while (name && strcmp(name->text, text) != 0) name = name->next;
    if (!name) {
        size_t n_bytes = strlen(text) + 1;
        name = malloc(sizeof *name + n_bytes);
        if (name) {
            memcpy(name->text, text, n_bytes);
            name->next = activity->names;
            activity->names = name;
        }
    }
    pthread_mutex_unlock(&activity->mutex);
    return name ? name->text : text;
}

/* ---- The thread that acts */

#define LOAD(field)         atomic_load_explicit(&(field), memory_order_relaxed)
#define LOOK(field)         atomic_load_explicit(&(field), memory_order_acquire)
#define STORE(field, value) atomic_store_explicit(&(field), value, memory_order_release)

void activity_begin(Activity *activity, int track, const ActivityEntry *entry) {
    if (!activity || track < 0) return;
    ActivityTrack *at = &activity->track[track];
    int32_t depth = LOAD(at->depth);
    uint64_t sequence = LOAD(at->sequence);
    uint64_t now = timer_now_ns();
    STORE(at->sequence, sequence + 1);
    if (depth < ACTIVITY_MAX_DEPTH) {
        ActivitySlot *slot = &at->slot[depth];
        STORE(slot->kind, (int32_t)entry->kind);
        STORE(slot->name, entry->name);
        STORE(slot->place, entry->place);
        STORE(slot->number, entry->number);
        STORE(slot->n_bytes, entry->n_bytes);
        STORE(slot->peers, entry->peers);
        STORE(slot->since_ns, now);
    }
    STORE(at->depth, depth + 1);
    STORE(at->sequence, sequence + 2);
    activity_board_begin(LOAD(activity->board), track, LOAD(at->name), depth, entry, now);
}

static ActivityEntry entry_of(const ActivitySlot *slot) {
    return (ActivityEntry){.kind = (ActivityKind)LOOK(slot->kind),
                           .name = LOOK(slot->name),
                           .place = LOOK(slot->place),
                           .number = LOOK(slot->number),
                           .n_bytes = LOOK(slot->n_bytes),
                           .peers = LOOK(slot->peers)};
}

/* NULL: there is no room. */
static ActivityEvent *take_event(Activity *activity) {
    size_t place = atomic_fetch_add(&activity->n_events, 1);
    if (place < activity->max_events) return &activity->event[place];
    atomic_fetch_add(&activity->n_lost, 1);
    return NULL;
}

static void keep_event(Activity *activity, int track, int32_t depth) {
    if (depth >= ACTIVITY_MAX_DEPTH) { /* of what lies too deep nothing is known */
        atomic_fetch_add(&activity->n_lost, 1);
        return;
    }
    const ActivitySlot *slot = &activity->track[track].slot[depth];
    if (LOAD(slot->since_ns) < LOAD(activity->recording_since_ns)) return;
    ActivityEvent *event = take_event(activity);
    if (!event) return;
    event->entry = entry_of(slot);
    event->begin_ns = LOAD(slot->since_ns);
    event->end_ns = timer_now_ns();
    event->track = (uint8_t)track;
    event->depth = (uint8_t)depth;
    STORE(event->is_complete, true);
}

void activity_end(Activity *activity, int track) {
    if (!activity || track < 0) return;
    ActivityTrack *at = &activity->track[track];
    int32_t depth = LOAD(at->depth) - 1;
    if (depth < 0) return; /* nothing was begun */
    if (LOAD(activity->is_recording)) keep_event(activity, track, depth);
    uint64_t sequence = LOAD(at->sequence);
    STORE(at->sequence, sequence + 1);
    STORE(at->depth, depth);
    STORE(at->sequence, sequence + 2);
    activity_board_end(LOAD(activity->board), track, depth);
}

void activity_set_board(Activity *activity, ActivityBoard *board) {
    for (int track = 0; board && track < activity_n_tracks(activity); track++) {
        ActivityView view;
        activity_look(activity, track, &view);
        for (int i = 0; i < view.n; i++)
            activity_board_begin(board, track, view.track, i, &view.current[i].entry,
                                 view.current[i].since_ns);
    }
    STORE(activity->board, board);
}

/* ---- Whoever looks on */

int activity_n_tracks(const Activity *activity) {
    return activity ? LOOK(activity->n_tracks) : 0;
}

static bool copy_track(const ActivityTrack *track, ActivityView *view) {
    view->sequence = LOOK(track->sequence);
    view->n = LOOK(track->depth);
    if (view->n > ACTIVITY_MAX_DEPTH) view->n = ACTIVITY_MAX_DEPTH;
    for (int i = 0; i < view->n; i++) {
        view->current[i] =
            (ActivityCurrent){.entry = entry_of(&track->slot[i]), .since_ns = LOOK(track->slot[i].since_ns)};
    }
    return view->sequence % 2 == 0 && LOOK(track->sequence) == view->sequence;
}

bool activity_look(const Activity *activity, int track, ActivityView *view) {
    enum { MANY = 1000 };
    *view = (ActivityView){.track = ""};
    if (track < 0 || track >= activity_n_tracks(activity)) return false;
    for (int i = 0; i < MANY; i++) {
        if (!copy_track(&activity->track[track], view)) continue;
        view->track = LOOK(activity->track[track].name);
        return true;
    }
    *view = (ActivityView){.track = LOOK(activity->track[track].name), .sequence = view->sequence};
    return false;
}

uint64_t activity_progress(const Activity *activity) {
    uint64_t sum = 0;
    for (int i = 0; i < activity_n_tracks(activity); i++) sum += LOOK(activity->track[i].sequence);
    return sum;
}

const char *activity_entry_text(const ActivityEntry *entry, char *text, size_t n_bytes) {
    char number[32] = "", size[64] = "";
    const char *name = entry->name ? entry->name : "something", *place = entry->place;
    if (entry->number >= 0) snprintf(number, sizeof number, " %lld", (long long)entry->number);
    if (entry->n_bytes) snprintf(size, sizeof size, " (%s)", format_bytes(entry->n_bytes).text);
    switch (entry->kind) {
    case ACTIVITY_INSTRUCTION:
        snprintf(text, n_bytes, "instruction%s (%s%s%s)", number, name, place ? ", " : "",
                 place ? place : "");
        break;
    case ACTIVITY_MESSAGE:
        snprintf(text, n_bytes, "%s rank %d of '%s'%s", name, (int)entry->peers, place ? place : "", size);
        break;
    case ACTIVITY_COLLECTIVE:
    case ACTIVITY_WAIT:
        snprintf(text, n_bytes, "%s%s%s%s%s%s", name, number, place ? " of '" : "", place ? place : "",
                 place ? "'" : "", size);
        break;
    default:
        snprintf(text, n_bytes, "%s%s%s%s%s", name, number, place ? " of " : "", place ? place : "", size);
    }
    return text;
}

/* Append, and stay inside: the end of a long text is cut off. */
static void append(char *text, size_t n_bytes, const char *words) {
    size_t n = strlen(text);
    if (n + 1 < n_bytes) snprintf(text + n, n_bytes - n, "%s", words);
}

const char *activity_describe(const Activity *activity, char *text, size_t n_bytes) {
    if (!n_bytes) return text;
    text[0] = '\0';
    for (int track = 0; track < activity_n_tracks(activity); track++) {
        ActivityView view;
        char words[256];
        bool is_steady = activity_look(activity, track, &view);
        if (is_steady && !view.n) continue;
        if (text[0]) append(text, n_bytes, "; ");
        if (track != ACTIVITY_HOST) {
            append(text, n_bytes, view.track);
            append(text, n_bytes, ": ");
        }
        if (!is_steady) append(text, n_bytes, "busy");
        for (int i = 0; i < view.n; i++) {
            if (i) append(text, n_bytes, ", ");
            append(text, n_bytes, activity_entry_text(&view.current[i].entry, words, sizeof words));
        }
        if (!view.n) continue;
        append(text, n_bytes, " for ");
        append(text, n_bytes, format_duration(timer_seconds_since(view.current[view.n - 1].since_ns)).text);
    }
    if (!text[0]) append(text, n_bytes, "idle");
    return text;
}

/* ---- The recorder */

Status activity_prepare_recorder(Activity *activity, size_t max_events, Error *error) {
    void *memory;
    TRY(memory_alloc(&memory, max_events * sizeof(ActivityEvent), "the recorder of a trace", error));
    memset(memory, 0, max_events * sizeof(ActivityEvent)); /* pages are not to be found while it is timed */
    activity->event = memory;
    activity->max_events = max_events;
    return STATUS_OK;
}

void activity_record(Activity *activity, bool is_recording) {
    if (!activity || !activity->event) return;
    if (is_recording) STORE(activity->recording_since_ns, timer_now_ns());
    else if (LOAD(activity->is_recording)) STORE(activity->recording_until_ns, timer_now_ns());
    STORE(activity->is_recording, is_recording);
}

bool activity_is_recording(const Activity *activity) {
    return activity && LOOK(activity->is_recording);
}

void activity_put(Activity *activity, int track, const ActivityEntry *entry, uint64_t begin_ns,
                  uint64_t end_ns) {
    if (!activity || begin_ns < LOOK(activity->recording_since_ns)) return;
    if (!LOOK(activity->is_recording) && begin_ns >= LOOK(activity->recording_until_ns)) return;
    if (track < 0) {
        atomic_fetch_add(&activity->n_lost, 1);
        return;
    }
    ActivityEvent *event = take_event(activity);
    if (!event) return;
    event->entry = *entry;
    event->begin_ns = begin_ns;
    event->end_ns = end_ns;
    event->track = (uint8_t)track;
    event->depth = 0;
    STORE(event->is_complete, true);
}

size_t activity_n_recorded(const Activity *activity) {
    if (!activity || !activity->event) return 0;
    size_t n = LOOK(activity->n_events);
    return n < activity->max_events ? n : activity->max_events;
}

size_t activity_n_lost(const Activity *activity) {
    return activity ? LOOK(activity->n_lost) : 0;
}

size_t activity_recorder_bytes(const Activity *activity) {
    return activity && activity->event ? activity->max_events * sizeof(ActivityEvent) : 0;
}

const ActivityEvent *activity_recorded(const Activity *activity, size_t i) {
    const ActivityEvent *event = &activity->event[i];
    return i < activity_n_recorded(activity) && LOOK(event->is_complete) ? event : NULL;
}
