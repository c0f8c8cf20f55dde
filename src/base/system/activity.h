/* What a process is doing, for whoever looks on: a watchdog in another thread, or a recorder that makes a
 * timeline.
 *
 *     Activity activity;
 *     activity_open(&activity);
 *     activity_begin(&activity, ACTIVITY_HOST,
 *                    &(ActivityEntry){.kind = ACTIVITY_FILE, .name = "checkpoint", .number = step});
 *     ...                                                    // entries may be nested
 *     activity_end(&activity, ACTIVITY_HOST);
 *     activity_close(&activity);
 *
 *     activity_describe(&activity, text, sizeof text);       // any thread, any time
 *
 * A track is one thread's: the computing thread has ACTIVITY_HOST, others get theirs by activity_add_track.
 * Begin and end of a track must not be called by two threads at once; everything that reads may be called by
 * any thread at any time. A NULL activity is allowed everywhere and does nothing; begin and end together cost
 * little more than a look at the clock. */
#ifndef PGPT_BASE_SYSTEM_ACTIVITY_H
#define PGPT_BASE_SYSTEM_ACTIVITY_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    ACTIVITY_STEP,        /* a step or a micro-batch: what the others lie in */
    ACTIVITY_WORK,        /* of the host: data, evaluation, sample */
    ACTIVITY_INSTRUCTION, /* of a program, or a section of it that the device replays as one */
    ACTIVITY_COLLECTIVE,
    ACTIVITY_WAIT, /* for something that was started */
    ACTIVITY_MESSAGE,
    ACTIVITY_FILE,
    N_ACTIVITY_KINDS,
} ActivityKind;

const char *activity_kind_name(ActivityKind kind);

typedef struct {
    ActivityKind kind;
    const char *name;  /* "matmul", "all-reduce"; must live as long as the activity (see activity_keep) */
    const char *place; /* where it belongs: section or communicator; NULL: nothing to say */
    int64_t number; /* of the instruction, of the collective on its communicator, of the step; -1: has none */
    uint64_t n_bytes; /* 0: nothing to say */
    int32_t peers;    /* of a collective and a wait for one: how many ranks; of a message: the other rank */
} ActivityEntry;

enum { ACTIVITY_MAX_TRACKS = 12, ACTIVITY_MAX_DEPTH = 8 };

/* The computing thread. */
#define ACTIVITY_HOST 0

/* ---- What is inside: written by one thread, read by any */

typedef struct {
    _Atomic(const char *) name, place;
    _Atomic int64_t number;
    _Atomic uint64_t n_bytes, since_ns;
    _Atomic int32_t peers;
    _Atomic int32_t kind;
} ActivitySlot;

typedef struct {
    _Atomic(const char *) name;
    _Atomic uint64_t sequence; /* odd while it is being changed */
    _Atomic int32_t depth;     /* may be more than there are slots */
    ActivitySlot slot[ACTIVITY_MAX_DEPTH];
    char padding[64]; /* two threads' tracks share no cache line */
} ActivityTrack;

/* Something that is over. */
typedef struct {
    ActivityEntry entry;
    uint64_t begin_ns, end_ns; /* by timer_now_ns */
    uint8_t track, depth;
    atomic_bool is_complete;
} ActivityEvent;

typedef struct ActivityName ActivityName;
typedef struct ActivityBoard ActivityBoard; /* activity_board.h */

typedef struct {
    ActivityTrack track[ACTIVITY_MAX_TRACKS];
    _Atomic int32_t n_tracks;
    pthread_mutex_t mutex; /* over names and tracks being added */
    ActivityName *names;
    _Atomic(ActivityBoard *) board; /* where other processes see it; NULL: nowhere */
    /* the recorder */
    ActivityEvent *event; /* NULL: there is none */
    size_t max_events;
    atomic_size_t n_events; /* that wanted to be recorded: more than max_events when some were lost */
    atomic_size_t n_lost;
    atomic_bool is_recording;
    _Atomic uint64_t recording_since_ns, recording_until_ns; /* the latter while it is switched off */
} Activity;

/* ---- Open and close */

void activity_open(Activity *activity);
void activity_close(Activity *activity); /* when no other thread uses it any more; safe on {0} and NULL */

/* A track for a thread that begins now, by a name that lives as long as the activity. The number to call
 * begin and end with, the same for the same name; -1 (allowed there, and nothing is published) where all are
 * taken. Any thread. */
int activity_add_track(Activity *activity, const char *name);

/* A copy of a text that lives as long as the activity; the same text gives the same pointer. `text` itself
 * where there is no activity or no memory. Any thread. */
const char *activity_keep(Activity *activity, const char *text);

/* From now on all of it is shown there too, what is being done at this moment included; NULL: no more. While
 * other tracks are idle. */
void activity_set_board(Activity *activity, ActivityBoard *board);

/* ---- The thread that acts */

void activity_begin(Activity *activity, int track, const ActivityEntry *entry);
void activity_end(Activity *activity, int track);

/* ---- Whoever looks on */

typedef struct {
    ActivityEntry entry;
    uint64_t since_ns;
} ActivityCurrent;

typedef struct {
    const char *track;
    uint64_t sequence; /* grows with every begin and end of this track */
    int n;             /* entries, outermost first; 0: idle */
    ActivityCurrent current[ACTIVITY_MAX_DEPTH];
} ActivityView;

int activity_n_tracks(const Activity *activity);

/* What a track is doing. False if it changed so fast that no consistent view was had, or there is no such
 * track: view is then empty but for its sequence. */
bool activity_look(const Activity *activity, int track, ActivityView *view);

/* A number that grows whenever anything begins or ends: a process whose number stands still is stuck, or in
 * one long thing. */
uint64_t activity_progress(const Activity *activity);

/* One entry in words: "instruction 57 (wait, update)", "all-reduce 812 of 'data' (4.20 MiB)". */
const char *activity_entry_text(const ActivityEntry *entry, char *text, size_t n_bytes);

/* All tracks in one line, for people: "step 12, instruction 57 (wait, update), wait for 812 of 'data' for
 * 12.3s; worker of data: all-reduce 812 of 'data' (4.20 MiB) for 12.4s"; "idle" if there is nothing. Returns
 * text. */
const char *activity_describe(const Activity *activity, char *text, size_t n_bytes);

/* ---- The recorder */

/* Make room for so many finished entries; nothing is recorded yet. Before other threads use the activity. */
Status activity_prepare_recorder(Activity *activity, size_t max_events, Error *error);

/* Entries that begin from now on are recorded as they end, until there is no more room or it is switched off;
 * the rest is counted as lost. */
void activity_record(Activity *activity, bool is_recording);

bool activity_is_recording(const Activity *activity);

/* Something that is over, and was not begun here: what a device did, say, which tells later. Recorded if it
 * began while the recorder was on; track -1: counted as lost. Any thread. */
void activity_put(Activity *activity, int track, const ActivityEntry *entry, uint64_t begin_ns,
                  uint64_t end_ns);

/* How many there are, and how many found no room or lay too deep. */
size_t activity_n_recorded(const Activity *activity);
size_t activity_n_lost(const Activity *activity);

/* Bytes that the recorder holds. */
size_t activity_recorder_bytes(const Activity *activity);

/* Event i < activity_n_recorded, in the order in which they ended (of one track); NULL if a thread is just
 * writing it. */
const ActivityEvent *activity_recorded(const Activity *activity, size_t i);

#endif
