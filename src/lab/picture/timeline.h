/* A trace (`pgpt train --trace`) read back, measured and drawn.
 *
 *     Timeline timeline;
 *     TRY(timeline_read(&timeline, "run/trace.json", error));
 *     TRY_GOTO(timeline_set_window(&timeline, from_ms, to_ms, error), done);
 *     // timeline.rank[r].time, timeline.collective[i]
 *     TRY_GOTO(timeline_measure(&timeline, error), done);
 *     bool has_png;
 *     TRY_GOTO(timeline_draw(&timeline, title, caption, "runs/lab", "timeline", &has_png, error), done);
 * done:
 *     timeline_free(&timeline);
 *
 * The file may be anybody's: whatever is in it, the answer is a message or a picture. */
#ifndef PGPT_LAB_PICTURE_TIMELINE_H
#define PGPT_LAB_PICTURE_TIMELINE_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    TIMELINE_STEP, /* what the others lie in; not counted as time of its own */
    TIMELINE_FORWARD,
    TIMELINE_BACKWARD,
    TIMELINE_WEIGHT_GRADIENT, /* of a pipeline that splits the backward */
    TIMELINE_UPDATE,
    TIMELINE_COLLECTIVE,
    TIMELINE_WAIT,
    TIMELINE_MESSAGE,
    TIMELINE_WORK,
    TIMELINE_FILE,
    TIMELINE_OTHER, /* of other programs */
    N_TIMELINE_KINDS,
} TimelineKind;

const char *timeline_kind_name(TimelineKind kind);

enum { TIMELINE_MAX_TRACKS = 1024, TIMELINE_MAX_EVENTS = 2000000, TIMELINE_MAX_BYTES = 256 << 20 };

typedef struct {
    double begin_us, end_us;  /* from the first event on */
    const char *name;         /* cut to a length that can be shown */
    const char *communicator; /* of a collective; else NULL */
    int64_t number;           /* -1: none */
    uint64_t n_bytes;
    int32_t track;
    int32_t peers; /* of a collective: how many ranks it should have; 0: not said */
    int32_t chunk; /* of a pipeline's stage, that an action is of */
    int32_t stage; /* of an action, where it is said; else -1 */
    TimelineKind kind;
} TimelineEvent;

typedef struct {
    int64_t process, thread; /* as in the file */
    const char *name;        /* never NULL */
    int rank;                /* index of */
    size_t first, n;         /* of its events, which lie side by side, by time, outer ones first */
} TimelineTrack;

/* How long, within the window, by the track that computes: the rank's first, which is the host's; of a device
 * that runs behind the host, its own. */
typedef struct {
    double compute_us;    /* in an instruction that does not wait or communicate */
    double comm_us;       /* collectives and messages under way, in any track */
    double overlapped_us; /* both at once */
    double wait_us;       /* in a wait, a collective or a message */
    double other_us;      /* in anything else, or in nothing */
} TimelineTime;

typedef struct {
    int64_t process;
    const char *name;
    TimelineTime time;
    int n_last; /* collectives to which it came last */
} TimelineRank;

/* One operation of a group of ranks. */
typedef struct {
    const char *communicator, *kind;
    int64_t number;
    uint64_t n_bytes;
    double begin_us;    /* when the first rank came */
    double spread_us;   /* until the last one did */
    double duration_us; /* until all were through */
    double together_us; /* in which all of its ranks were in it; below 0: never all at once */
    int slowest;        /* index of the rank that came last */
    int n_ranks;
    bool is_complete;    /* all of its ranks are there */
    const size_t *event; /* numbers of its n_ranks events, by when they began */
} TimelineCollective;

typedef struct {
    Arena arena;
    TimelineEvent *event; /* by track */
    size_t n_events;
    TimelineTrack *track; /* by rank */
    int n_tracks;
    TimelineRank *rank; /* by process */
    int n_ranks;
    double length_us; /* of the whole trace */
    double from_us, to_us;
    TimelineCollective *collective; /* in the window, by time */
    size_t n_collectives;
    size_t n_clipped;      /* events of one track that overlap without lying in each other: bent to fit */
    double uncertainty_us; /* of the clocks; NAN: not said */
    const char *machine;   /* where it was recorded, in words: "Intel Xeon, 2 cores, NVIDIA H200"; NULL: not
                              said, as in traces of other programs */
    const char *date;      /* when, "2026-11-18"; NULL: not said */
    bool is_shared;        /* by more ranks than it has cores, without a GPU */
    const char *axis;      /* what time is counted from; NULL: the beginning of the trace */
    size_t room;
} Timeline;

Status timeline_read(Timeline *timeline, const char *path, Error *error);
void timeline_free(Timeline *timeline); /* also after a failed read, and twice */

/* In milliseconds from the beginning; to_ms 0: to the end. Without this call the window is all of it. */
Status timeline_set_window(Timeline *timeline, double from_ms, double to_ms, Error *error);

Status timeline_measure(Timeline *timeline, Error *error);

/* What a track was in, innermost only: visited in order of time, disjoint, within the window. */
typedef struct {
    double begin_us, end_us;
    const TimelineEvent *event;
} TimelineSegment;

typedef void (*TimelineVisit)(void *context, const TimelineSegment *segment);
Status timeline_visit(const Timeline *timeline, int track, TimelineVisit visit, void *context,
                      size_t *n_clipped, Error *error);

/* An action of a pipeline (graph/actions.h): an event of TIMELINE_STEP with the action's name and the
 * micro-batch as its number, in which the instructions lie. */
bool timeline_is_action(const TimelineEvent *event);

/* The part of action `event` in which it computes: behind what it has waited for first, and before what it
 * waited for when it was done. */
void timeline_action_span(const Timeline *timeline, size_t event, double *begin_us, double *end_us);

/* The caption may have several lines, the last of which is the command.
 *
 * FOLDER/NAME.svg, and with gnuplot NAME.png by NAME.gp (canvas.h). Actions are set apart and labelled, "F3",
 * where they are wide enough; those of later chunks are darker. */
Status timeline_draw(const Timeline *timeline, const char *title, const char *caption, const char *folder,
                     const char *name, bool *has_png, Error *error);

#endif
