/* What one rank has recorded, as it travels to rank 0: a header, names, events. */
#ifndef PGPT_TRACE_TRACE_PART_H
#define PGPT_TRACE_TRACE_PART_H

#include "trace/trace.h"

#define TRACE_NO_TEXT UINT32_MAX

typedef struct {
    uint64_t begin_ns,
        end_ns; /* on the rank's clock; once merged, on rank 0's, from the beginning of the trace */
    uint64_t n_bytes;
    int64_t number;
    int32_t peers;
    int32_t rank;
    uint32_t name, place; /* offsets in the text, or TRACE_NO_TEXT */
    uint8_t kind, track, depth;
    bool is_left_out;
} TraceEvent;

typedef struct {
    uint64_t n_events, n_text; /* events, bytes of text */
    uint64_t n_lost, recorder_bytes;
    uint64_t
        /* nothing is known from here on, on the rank's clock; UINT64_MAX: it was recorded to the end */
        cut_ns;
    int64_t n_steps;
    int32_t rank, n_tracks;
    uint32_t track[ACTIVITY_MAX_TRACKS]; /* their names */
    bool is_full;
    char host[256];
    char clock[128]; /* what ranks have in common whose clocks are one; "": not known */
} TraceHeader;

typedef struct {
    TraceHeader header;
    TraceEvent *event; /* in `bytes`, as the text is */
    const char *text;
    char *bytes;
} TracePart;

/* One rank's; from malloc. */
Status trace_part_make(const Trace *trace, TracePart *part, Error *error);
void trace_part_free(TracePart *part);

/* Rank 0 gets all parts, in `parts` (one for every rank), its own among them; the others give theirs.
 * Collective. */
Status trace_gather(Comm *world, TracePart *mine, TracePart *parts, Error *error);

/* Put the parts of all ranks on one clock and one beginning, match the collectives, and say what is left
 * out. */
typedef struct {
    int n_ranks;
    TracePart *part;
    TraceEvent **event; /* of all ranks, by time; outer ones first */
    size_t n_events;
    TraceEvent **collective; /* those of one operation side by side, by when they began */
    size_t n_collective_events;
    CommClock *clock_begin, *clock_end;
    bool *is_shared; /* the rank's clock is that of rank 0 */
    TraceSummary summary;
} TraceMerge;

Status trace_merge(TraceMerge *merge, Error *error);
void trace_merge_free(TraceMerge *merge); /* not the parts and clocks */

/* How many events from `first` on are of the same collective. */
size_t trace_merge_group(const TraceMerge *merge, size_t first);

/* The rank's clock less rank 0's, at a time on the rank's clock; and how uncertain it is. */
int64_t trace_clock_offset(const TraceMerge *merge, int rank, uint64_t at_ns);
int64_t trace_clock_uncertainty(const TraceMerge *merge, int rank);

/* Write the file. */
Status trace_write_json(const TraceMerge *merge, const Trace *trace, const char *path, uint64_t *n_bytes,
                        Error *error);

#endif
