/* Reading a trace: an object with the list "traceEvents", or the bare list, as Chrome's tracing page takes
 * them.
 *
 * A tree of all events would take some twenty times the file's size in memory, and files of this kind are
 * large. So the file is cut into its elements by a walk over the bytes that knows of strings and brackets
 * only, and each element is given to the JSON parser by itself; what is kept of it is a small record.
 *
 * Nothing in the file is trusted: sizes, counts, types and numbers are checked as they come, texts are cut to
 * what can be shown, and tables that the file could make long are not searched by walking. Elements of kinds
 * that we do not draw (arrows, marks, counters) only have to be JSON. */
#include "lab/picture/timeline.h"

#include "base/file/file.h"
#include "base/system/cores.h"
#include "base/system/memory.h"
#include "base/text/json.h"
#include "graph/actions.h"
#include "lab/picture/machine_note.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ELEMENT_BYTES = 1 << 20, N_SLOTS = 4096, NAME_BYTES = 64 };
static const double largest_us = 1e15; /* 30 years */

static const char *const kind_names[N_TIMELINE_KINDS] = {
    [TIMELINE_STEP] = "step",
    [TIMELINE_FORWARD] = "forward",
    [TIMELINE_BACKWARD] = "backward",
    [TIMELINE_WEIGHT_GRADIENT] = "weight gradient",
    [TIMELINE_UPDATE] = "update",
    [TIMELINE_COLLECTIVE] = "collective",
    [TIMELINE_WAIT] = "wait",
    [TIMELINE_MESSAGE] = "message",
    [TIMELINE_WORK] = "other work of the host",
    [TIMELINE_FILE] = "file",
    [TIMELINE_OTHER] = "of another program",
};

const char *timeline_kind_name(TimelineKind kind) {
    return kind_names[kind];
}

/* Names of processes and threads come in events of their own, before or after the others. */
typedef struct {
    int64_t process, thread;
    bool is_thread;
    const char *name;
} Label;

typedef struct {
    Timeline *timeline;
    const char *path;
    const char *at, *end; /* what is left of the file */
    const char *bytes;
    int slot[N_SLOTS]; /* tracks by a hash of process and thread; -1: empty */
    Label *label;
    int n_labels;
    size_t index; /* of the element, for messages */
    bool has_list;
} Reader;

/* ---- Elements */

static Status broken(const Reader *reader, const char *what, Error *error) {
    return error_user(error,
                      "%s: byte %zu: %s; it is not a trace that 'pgpt train --trace' has written whole",
                      reader->path, (size_t)(reader->at - reader->bytes), what);
}

static void skip_space(Reader *reader) {
    while (reader->at < reader->end && strchr(" \t\r\n", *reader->at) && *reader->at) reader->at++;
}

static bool take(Reader *reader, char wanted) {
    skip_space(reader);
    if (reader->at == reader->end || *reader->at != wanted) return false;
    reader->at++;
    return true;
}

static const char *end_of_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\') at++;
    return at < end ? at + 1 : NULL;
}

/* The end of the value that begins here, or NULL if the file ends first. Whether it is JSON is the parser's
 * matter. */
static const char *end_of_value(const char *at, const char *end) {
    long depth = 0;
    while (at < end) {
        if (*at == '"') {
            at = end_of_string(at, end);
            if (!at || depth == 0) return at;
            continue;
        }
        bool opens = *at == '{' || *at == '[', closes = *at == '}' || *at == ']';
        if (depth == 0 && !opens && (closes || *at == ',' || *at == ':'))
            return at; /* behind a number or word */
        depth += opens - closes;
        at++;
        if (depth == 0 && closes) return at;
    }
    return depth == 0 ? at : NULL;
}

/* The next value, parsed if it is wanted. */
static Status next_value(Reader *reader, json_t **value, Error *error) {
    skip_space(reader);
    const char *begin = reader->at, *end = end_of_value(begin, reader->end);
    *value = NULL;
    if (!end || end == begin) return broken(reader, "a value is missing or has no end", error);
    if (end - begin > MOST_ELEMENT_BYTES) return broken(reader, "a value is longer than 1 MiB", error);
    json_error_t trouble;
    *value = json_loadb(begin, (size_t)(end - begin), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &trouble);
    if (!*value) {
        return error_user(
            error, "%s: byte %zu: %.100s; it is not a trace that 'pgpt train --trace' has written whole",
            reader->path, (size_t)(begin - reader->bytes), trouble.text);
    }
    reader->at = end;
    return STATUS_OK;
}

/* ---- Fields of an event */

static Status wrong(const Reader *reader, const char *field, const char *wants, Error *error) {
    return error_user(error, "%s: event %zu: \"%s\" is not %s", reader->path, reader->index, field, wants);
}

static Status read_id(const Reader *reader, const json_t *object, const char *field, int64_t *value,
                      Error *error) {
    const json_t *item = json_object_get(object, field);
    if (!item && strcmp(field, "tid") == 0) {
        *value = 0;
        return STATUS_OK;
    }
    *value = json_is_integer(item) ? json_integer_value(item) : -1;
    if (json_is_integer(item) && *value >= 0 && *value <= INT32_MAX) return STATUS_OK;
    return wrong(reader, field, "a whole number between 0 and 2147483647", error);
}

static Status read_time(const Reader *reader, const json_t *object, const char *field, double min,
                        double *value, Error *error) {
    const json_t *item = json_object_get(object, field);
    *value = json_is_number(item) ? json_number_value(item) : NAN;
    if (*value >= min && *value <= largest_us) return STATUS_OK;
    return wrong(reader, field,
                 min < 0.0 ? "a time in microseconds" : "a duration in microseconds, 0 or more", error);
}

/* A copy, cut at a character's border. */
static const char *short_text(Arena *arena, const char *text) {
    size_t n = strlen(text);
    if (n < NAME_BYTES) return arena_strdup(arena, text);
    n = NAME_BYTES - 1;
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    return arena_printf(arena, "%.*s...", (int)n, text);
}

static const char *text_field(const json_t *object, const char *field) {
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

static TimelineKind kind_of(const json_t *event) {
    const char *category = text_field(event, "cat"),
               *section = text_field(json_object_get(event, "args"), "section");
    if (strcmp(category, "instruction") == 0) {
        if (strcmp(section, "backward") == 0) return TIMELINE_BACKWARD;
        if (strncmp(section, "weight", 6) == 0) return TIMELINE_WEIGHT_GRADIENT;
        return strcmp(section, "update") == 0 ? TIMELINE_UPDATE : TIMELINE_FORWARD;
    }
    static const struct {
        const char *name;
        TimelineKind kind;
    } categories[] = {{"step", TIMELINE_STEP}, {"collective", TIMELINE_COLLECTIVE},
                      {"wait", TIMELINE_WAIT}, {"message", TIMELINE_MESSAGE},
                      {"work", TIMELINE_WORK}, {"file", TIMELINE_FILE}};
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++)
        if (strcmp(category, categories[i].name) == 0) return categories[i].kind;
    return TIMELINE_OTHER;
}

/* ---- Tracks */

static Status find_track(Reader *reader, int64_t process, int64_t thread, int32_t *index, Error *error) {
    Timeline *timeline = reader->timeline;
    uint64_t hash = ((uint64_t)process * 1000003u + (uint64_t)thread) * 0x9e3779b97f4a7c15u;
    for (uint64_t slot = hash >> 52;; slot = (slot + 1) % N_SLOTS) { /* N_SLOTS is 2^12, and never full */
        int track = reader->slot[slot];
        if (track >= 0 &&
            (timeline->track[track].process != process || timeline->track[track].thread != thread))
            continue;
        if (track < 0) {
            if (timeline->n_tracks == TIMELINE_MAX_TRACKS)
                return error_user(error, "%s has more than %d threads; that is more than can be shown",
                                  reader->path, TIMELINE_MAX_TRACKS);
            reader->slot[slot] = track = timeline->n_tracks++;
            timeline->track[track] = (TimelineTrack){.process = process, .thread = thread};
        }
        *index = track;
        return STATUS_OK;
    }
}

/* ---- Events */

static Status make_room(Reader *reader, Error *error) {
    Timeline *timeline = reader->timeline;
    if (timeline->n_events < timeline->room) return STATUS_OK;
    if (timeline->n_events == TIMELINE_MAX_EVENTS)
        return error_user(error, "%s has more than %d events; trace fewer steps (--trace-steps)",
                          reader->path, TIMELINE_MAX_EVENTS);
    size_t room = timeline->room ? 2 * timeline->room : 4096;
    if (room > TIMELINE_MAX_EVENTS) room = TIMELINE_MAX_EVENTS;
    TimelineEvent *events = realloc(timeline->event, room * sizeof *events);
    if (!events) return error_failed(error, "no memory for the events of %s", reader->path);
    timeline->event = events;
    timeline->room = room;
    return STATUS_OK;
}

static int64_t whole_field(const json_t *object, const char *field, int64_t missing) {
    const json_t *item = json_object_get(object, field);
    return json_is_integer(item) && json_integer_value(item) >= 0 ? json_integer_value(item) : missing;
}

/* "forward 3" with the number 3 is the action "forward" of micro-batch 3. */
static void read_action(TimelineEvent *event, const json_t *args) {
    int64_t stage = whole_field(args, "stage", -1);
    event->stage = -1;
    if (event->kind != TIMELINE_STEP || stage < 0 || stage > INT16_MAX) return;
    event->stage = (int32_t)stage;
    for (int kind = 0; kind < N_ACTION_KINDS; kind++) {
        const char *name = action_name((ActionKind)kind);
        size_t n = strlen(name);
        bool ends = strncmp(event->name, name, n) == 0 && (event->name[n] == ' ' || !event->name[n]);
        if (ends) event->name = name;
    }
    if (event->number < 0) event->number = 0; /* an update is of no micro-batch */
}

static Status read_interval(Reader *reader, const json_t *object, Error *error) {
    Timeline *timeline = reader->timeline;
    int64_t process, thread;
    double begin, duration;
    TRY(read_id(reader, object, "pid", &process, error));
    TRY(read_id(reader, object, "tid", &thread, error));
    TRY(read_time(reader, object, "ts", -largest_us, &begin, error));
    TRY(read_time(reader, object, "dur", 0.0, &duration, error));
    if (!json_is_string(json_object_get(object, "name"))) return wrong(reader, "name", "a text", error);
    TRY(make_room(reader, error));
    const json_t *args = json_object_get(object, "args");
    TimelineEvent event = {.begin_us = begin,
                           .end_us = begin + duration,
                           .kind = kind_of(object),
                           .name = short_text(&timeline->arena, text_field(object, "name")),
                           .number = whole_field(args, "number", -1),
                           .n_bytes = (uint64_t)whole_field(args, "bytes", 0)};
    if (event.kind == TIMELINE_COLLECTIVE) {
        int64_t peers = whole_field(args, "ranks", 0);
        event.communicator = short_text(&timeline->arena, text_field(args, "communicator"));
        event.peers = peers <= INT32_MAX ? (int32_t)peers : 0;
    }
    int64_t chunk = whole_field(args, "chunk", 0);
    event.chunk = chunk < INT16_MAX ? (int32_t)chunk : INT16_MAX;
    read_action(&event, args);
    TRY(find_track(reader, process, thread, &event.track, error));
    timeline->event[timeline->n_events++] = event;
    return STATUS_OK;
}

static Status read_label(Reader *reader, const json_t *object, Error *error) {
    const char *what = text_field(object, "name");
    bool is_thread = strcmp(what, "thread_name") == 0;
    if (!is_thread && strcmp(what, "process_name") != 0) return STATUS_OK;
    Label label = {.is_thread = is_thread};
    TRY(read_id(reader, object, "pid", &label.process, error));
    TRY(read_id(reader, object, "tid", &label.thread, error));
    if (reader->n_labels == 2 * TIMELINE_MAX_TRACKS) return STATUS_OK; /* the rest go by their numbers */
    label.name = short_text(&reader->timeline->arena, text_field(json_object_get(object, "args"), "name"));
    reader->label[reader->n_labels++] = label;
    return STATUS_OK;
}

static Status read_element(Reader *reader, Error *error) {
    json_t *object;
    TRY(next_value(reader, &object, error));
    const char *phase = text_field(object, "ph");
    if (!json_is_object(object)) wrong(reader, "traceEvents", "a list of objects only", error);
    else if (!*phase) wrong(reader, "ph", "a text", error);
    else if (strcmp(phase, "X") == 0) read_interval(reader, object, error);
    else if (strcmp(phase, "M") == 0) read_label(reader, object, error);
    json_decref(object);
    return error->status;
}

static Status read_list(Reader *reader, Error *error) {
    reader->has_list = true;
    if (!take(reader, '[')) return broken(reader, "\"traceEvents\" is not a list", error);
    if (take(reader, ']')) return STATUS_OK;
    do {
        TRY(read_element(reader, error));
        reader->index++;
    } while (take(reader, ','));
    return take(reader, ']') ? STATUS_OK : broken(reader, "the list of events has no end", error);
}

/* ---- The file */

/* What is known of the whole. Whatever is not as expected is left out. */
static void read_facts(Timeline *timeline, const json_t *facts) {
    const json_t *uncertainty = json_object_get(facts, "clock_uncertainty_us"),
                 *machine = json_object_get(facts, "machine");
    const char *date = text_field(facts, "date"), *gpu = text_field(machine, "gpu");
    int64_t n_cores = whole_field(machine, "cores", 0);
    if (json_is_number(uncertainty)) timeline->uncertainty_us = json_number_value(uncertainty);
    if (*date) timeline->date = short_text(&timeline->arena, date);
    if (n_cores < 1 || n_cores > CORES_MAX) return;
    timeline->machine = machine_words(
        &timeline->arena, short_text(&timeline->arena, text_field(machine, "processor")), n_cores);
    if (*gpu)
        timeline->machine =
            arena_printf(&timeline->arena, "%s, %s", timeline->machine, short_text(&timeline->arena, gpu));
    timeline->is_shared = !*gpu && whole_field(facts, "ranks_of_machine", 0) > n_cores;
}

static Status read_field(Reader *reader, Error *error) {
    json_t *key, *value;
    skip_space(reader);
    if (reader->at == reader->end || *reader->at != '"') return broken(reader, "a key is missing", error);
    TRY(next_value(reader, &key, error));
    bool is_list = strcmp(json_string_value(key), "traceEvents") == 0;
    bool is_data = strcmp(json_string_value(key), "otherData") == 0;
    json_decref(key);
    if (!take(reader, ':')) return broken(reader, "a ':' is missing", error);
    if (is_list && reader->has_list) return broken(reader, "a second list of events", error);
    if (is_list) return read_list(reader, error);
    TRY(next_value(reader, &value, error));
    if (is_data) read_facts(reader->timeline, value);
    json_decref(value);
    return STATUS_OK;
}

static Status read_all(Reader *reader, Error *error) {
    skip_space(reader);
    if (reader->at < reader->end && *reader->at == '[') {
        TRY(read_list(reader, error));
    } else {
        if (!take(reader, '{')) return broken(reader, "neither an object nor a list", error);
        bool is_empty = take(reader, '}');
        if (!is_empty) {
            do TRY(read_field(reader, error));
            while (take(reader, ','));
            if (!take(reader, '}')) return broken(reader, "the object has no end", error);
        }
    }
    skip_space(reader);
    if (reader->at != reader->end) return broken(reader, "something follows the end", error);
    if (!reader->has_list)
        return error_user(error,
                          "%s has no \"traceEvents\"; give a trace that 'pgpt train --trace' has written",
                          reader->path);
    if (reader->timeline->n_events) return STATUS_OK;
    return error_user(error, "%s has no events with a duration; there is nothing to draw", reader->path);
}

/* ---- Order */

static int by_track_and_time(const void *a, const void *b) {
    const TimelineEvent *x = a, *y = b;
    if (x->track != y->track) return x->track < y->track ? -1 : 1;
    if (x->begin_us != y->begin_us) return x->begin_us < y->begin_us ? -1 : 1;
    return x->end_us > y->end_us ? -1 : x->end_us < y->end_us; /* outer ones first */
}

static int by_process(const void *a, const void *b) {
    const TimelineTrack *x = a, *y = b;
    if (x->process != y->process) return x->process < y->process ? -1 : 1;
    return x->thread < y->thread ? -1 : x->thread > y->thread;
}

static const char *label_of(const Reader *reader, int64_t process, int64_t thread, bool is_thread) {
    for (int i = 0; i < reader->n_labels; i++) {
        const Label *label = &reader->label[i];
        if (label->is_thread == is_thread && label->process == process &&
            (!is_thread || label->thread == thread))
            return label->name;
    }
    return arena_printf(&reader->timeline->arena, "%s %lld", is_thread ? "thread" : "rank",
                        (long long)(is_thread ? thread : process));
}

/* Ranks of a pipeline go by their stages, as in a prediction's picture. */
static void name_stages(Timeline *timeline) {
    int32_t last = -1;
    for (size_t i = 0; i < timeline->n_events; i++) {
        const TimelineEvent *event = &timeline->event[i];
        int rank = timeline->track[event->track].rank;
        if (event->stage < 0 || rank == last) continue;
        last = rank;
        timeline->rank[rank].name = arena_printf(&timeline->arena, "stage %d, rank %lld", (int)event->stage,
                                                 (long long)timeline->rank[rank].process);
    }
}

/* Tracks by process and thread; their events side by side; a rank is what the tracks of a process are of. */
static Status put_in_order(Reader *reader, Error *error) {
    Timeline *timeline = reader->timeline;
    int *place = ARENA_ARRAY(&timeline->arena, int, timeline->n_tracks);
    for (int i = 0; i < timeline->n_tracks; i++) timeline->track[i].first = (size_t)i; /* its number so far */
    qsort(timeline->track, (size_t)timeline->n_tracks, sizeof *timeline->track, by_process);
    for (int i = 0; i < timeline->n_tracks; i++) place[timeline->track[i].first] = i;
    double begin = INFINITY, end = -INFINITY;
    for (size_t i = 0; i < timeline->n_events; i++) {
        TimelineEvent *event = &timeline->event[i];
        event->track = place[event->track];
        begin = fmin(begin, event->begin_us);
        end = fmax(end, event->end_us);
    }
    qsort(timeline->event, timeline->n_events, sizeof *timeline->event, by_track_and_time);
    timeline->rank = ARENA_ARRAY(&timeline->arena, TimelineRank, timeline->n_tracks);
    size_t next = 0;
    for (int i = 0; i < timeline->n_tracks; i++) {
        TimelineTrack *track = &timeline->track[i];
        if (i == 0 || track->process != track[-1].process) {
            timeline->rank[timeline->n_ranks++] =
                (TimelineRank){.process = track->process, .name = label_of(reader, track->process, 0, false)};
        }
        track->rank = timeline->n_ranks - 1;
        track->name = label_of(reader, track->process, track->thread, true);
        track->first = next;
        while (next < timeline->n_events && timeline->event[next].track == i) next++;
        track->n = next - track->first;
    }
    for (size_t i = 0; i < timeline->n_events; i++) {
        timeline->event[i].begin_us -= begin;
        timeline->event[i].end_us -= begin;
    }
    name_stages(timeline);
    timeline->length_us = timeline->to_us = end - begin;
    if (timeline->length_us > 0.0) return STATUS_OK;
    return error_user(error, "%s: all of its events take no time; there is nothing to draw", reader->path);
}

Status timeline_read(Timeline *timeline, const char *path, Error *error) {
    *timeline = (Timeline){.uncertainty_us = NAN};
    char *bytes = NULL;
    size_t n_bytes = 0;
    TRY(file_read(path, TIMELINE_MAX_BYTES, &bytes, &n_bytes, error));
    Reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        free(bytes);
        return error_failed(error, "no memory to read %s", path);
    }
    *reader = (Reader){.timeline = timeline, .path = path, .bytes = bytes, .end = bytes + n_bytes};
    reader->at = bytes + json_mark_bytes(bytes, n_bytes);
    for (int i = 0; i < N_SLOTS; i++) reader->slot[i] = -1;
    reader->label = ARENA_ARRAY(&timeline->arena, Label, 2 * TIMELINE_MAX_TRACKS);
    timeline->track = ARENA_ARRAY(&timeline->arena, TimelineTrack, TIMELINE_MAX_TRACKS);
    if (read_all(reader, error) == STATUS_OK) put_in_order(reader, error);
    free(reader);
    free(bytes);
    return error->status;
}

void timeline_free(Timeline *timeline) {
    free(timeline->event);
    free(timeline->collective);
    arena_free(&timeline->arena);
    *timeline = (Timeline){0};
}
