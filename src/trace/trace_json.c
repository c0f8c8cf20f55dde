/* The file: an object with the list "traceEvents", as Chrome's tracing page and Perfetto read it, and
 * "otherData" with what is known of the trace as a whole. A process there is a rank, a thread one of its
 * tracks.
 *
 * Times are printed from whole nanoseconds, so that what is nested stays nested. Arrows (flow events) join
 * the ranks of a collective, from the one that came first to the one that came last: who was waited for
 * stands at the point. The events are written line by line, with no tree of them in memory. */
#include "base/file/file.h"
#include "base/text/json.h"
#include "base/version.h"
#include "trace/trace_part.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const TraceMerge *merge;
    FileWriter *writer;
    bool has_event;
    char name[128], place[128];
} Writer;

/* As the inside of a JSON string. All names are the program's own, in ASCII; what is not is shown as '?'. */
static const char *escape(const char *text, char *out, size_t n_bytes) {
    size_t n = 0;
    for (; *text && n + 3 < n_bytes; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') out[n++] = '\\';
        out[n++] = c < 0x20 || c > 0x7e ? '?' : (char)c;
    }
    out[n] = '\0';
    return out;
}

static const char *text_at(const Writer *writer, int rank, uint32_t place, char *out, size_t n_bytes) {
    const TracePart *part = &writer->merge->part[rank];
    return escape(place < part->header.n_text ? part->text + place : "", out, n_bytes);
}

static Status next_event(Writer *writer, Error *error) {
    const char *between = writer->has_event ? ",\n" : "\n";
    writer->has_event = true;
    return file_writer_write(writer->writer, between, strlen(between), error);
}

#define US(ns) (ns) / 1000, (ns) % 1000
#define PRIUS  "%" PRIu64 ".%03" PRIu64

/* ---- Who is who */

static Status write_name(Writer *writer, const char *what, int rank, int track, const char *name,
                         Error *error) {
    json_t *text = json_make_text(name);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    json_decref(text);
    if (!quoted) return error_failed(error, "no memory for a name in a trace");
    Status status = next_event(writer, error);
    if (status == STATUS_OK)
        status =
            file_writer_printf(writer->writer, error,
                               "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":%s}}",
                               what, rank, track, quoted);
    free(quoted);
    return status;
}

static Status write_order(Writer *writer, const char *what, int rank, int track, int order, Error *error) {
    TRY(next_event(writer, error));
    return file_writer_printf(
        writer->writer, error,
        "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}", what, rank,
        track, order);
}

static Status write_names(Writer *writer, Error *error) {
    for (int rank = 0; rank < writer->merge->n_ranks; rank++) {
        const TraceHeader *header = &writer->merge->part[rank].header;
        char name[300];
        snprintf(name, sizeof name, "rank %d (%s)", rank, header->host);
        TRY(write_name(writer, "process_name", rank, 0, name, error));
        TRY(write_order(writer, "process_sort_index", rank, 0, rank, error));
        for (int track = 0; track < header->n_tracks; track++) {
            text_at(writer, rank, header->track[track], writer->name, sizeof writer->name);
            TRY(write_name(writer, "thread_name", rank, track, writer->name, error));
            TRY(write_order(writer, "thread_sort_index", rank, track, track, error));
        }
    }
    return STATUS_OK;
}

/* ---- What happened */

/* An action of a pipeline says which stage and which chunk of it acts: its place is "stage 2 chunk 1", or
 * "stage 2". */
static Status write_step_args(const Writer *writer, const TraceEvent *event, Error *error) {
    int stage, chunk = 0;
    if (sscanf(writer->place, "stage %d chunk %d", &stage, &chunk) < 1)
        return file_writer_printf(writer->writer, error, "{\"number\":%" PRId64 "}", event->number);
    return file_writer_printf(writer->writer, error, "{\"number\":%" PRId64 ",\"stage\":%d,\"chunk\":%d}",
                              event->number, stage, chunk);
}

static Status write_args(Writer *writer, const TraceEvent *event, Error *error) {
    FileWriter *out = writer->writer;
    switch ((ActivityKind)event->kind) {
    case ACTIVITY_INSTRUCTION:
        return file_writer_printf(out, error, "{\"number\":%" PRId64 ",\"section\":\"%s\"}", event->number,
                                  writer->place);
    case ACTIVITY_COLLECTIVE:
        return file_writer_printf(out, error,
                                  "{\"communicator\":\"%s\",\"number\":%" PRId64
                                  ",\"kind\":\"%s\",\"bytes\":%" PRIu64 ",\"ranks\":%d}",
                                  writer->place, event->number, writer->name, event->n_bytes,
                                  (int)event->peers);
    case ACTIVITY_WAIT:
        return file_writer_printf(out, error, "{\"communicator\":\"%s\",\"number\":%" PRId64 "}",
                                  writer->place, event->number);
    case ACTIVITY_MESSAGE:
        return file_writer_printf(
            out, error, "{\"communicator\":\"%s\",\"peer\":%d,\"tag\":%" PRId64 ",\"bytes\":%" PRIu64 "}",
            writer->place, (int)event->peers, event->number, event->n_bytes);
    case ACTIVITY_STEP: return write_step_args(writer, event, error);
    default: return file_writer_printf(out, error, "{\"number\":%" PRId64 "}", event->number);
    }
}

static Status write_event(Writer *writer, const TraceEvent *event, Error *error) {
    text_at(writer, event->rank, event->name, writer->name, sizeof writer->name);
    text_at(writer, event->rank, event->place, writer->place, sizeof writer->place);
    bool is_counted = event->kind == ACTIVITY_STEP; /* "step 12": its number is part of its name */
    char number[24] = "";
    if (is_counted && event->number >= 0) snprintf(number, sizeof number, " %" PRId64, event->number);
    TRY(next_event(writer, error));
    TRY(file_writer_printf(
        writer->writer, error,
        "{\"ph\":\"X\",\"name\":\"%s%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":" PRIUS ",\"dur\":" PRIUS
        ",\"args\":",
        writer->name, number, activity_kind_name((ActivityKind)event->kind), (int)event->rank, event->track,
        US(event->begin_ns), US(event->end_ns - event->begin_ns)));
    TRY(write_args(writer, event, error));
    TRY(file_writer_write(writer->writer, "}", 1, error));
    /* A mark through all ranks where rank 0 begins a step. */
    if (!is_counted || event->rank != 0 || strcmp(writer->name, "step") != 0) return STATUS_OK;
    TRY(next_event(writer, error));
    return file_writer_printf(
        writer->writer, error,
        "{\"ph\":\"i\",\"s\":\"g\",\"name\":\"%s%s\",\"cat\":\"step\",\"pid\":0,\"tid\":%d,"
        "\"ts\":" PRIUS "}",
        writer->name, number, event->track, US(event->begin_ns));
}

/* An arrow from rank to rank in the order in which they came. */
static Status write_flow(Writer *writer, TraceEvent *const *events, size_t n, size_t id, Error *error) {
    for (size_t i = 0; n > 1 && i < n; i++) {
        const TraceEvent *event = events[i];
        text_at(writer, event->rank, event->name, writer->name, sizeof writer->name);
        text_at(writer, event->rank, event->place, writer->place, sizeof writer->place);
        TRY(next_event(writer, error));
        TRY(file_writer_printf(writer->writer, error,
                               "{\"ph\":\"%s\",%s\"id\":%zu,\"name\":\"%s %" PRId64
                               " of %s\",\"cat\":\"collective\",\"pid\":%d,\"tid\":%d,\"ts\":" PRIUS "}",
                               i == 0       ? "s"
                               : i == n - 1 ? "f"
                                            : "t",
                               i == 0 ? "" : "\"bp\":\"e\",", id, writer->name, event->number, writer->place,
                               (int)event->rank, event->track, US(event->begin_ns)));
    }
    return STATUS_OK;
}

static Status write_flows(Writer *writer, Error *error) {
    const TraceMerge *merge = writer->merge;
    size_t id = 1;
    for (size_t first = 0, n; first < merge->n_collective_events; first += n) {
        n = trace_merge_group(merge, first);
        TRY(write_flow(writer, merge->collective + first, n, id++, error));
    }
    return STATUS_OK;
}

/* ---- What is known of the whole */

static json_t *clock_of(const TraceMerge *merge, int rank) {
    const CommClock *begin = &merge->clock_begin[rank], *end = &merge->clock_end[rank];
    const TraceHeader *header = &merge->part[rank].header;
    json_t *object = json_object();
    json_object_set_new(object, "rank", json_integer(rank));
    json_object_set_new(object, "host", json_make_text(header->host));
    json_object_set_new(object, "clock", json_string(merge->is_shared[rank] ? "rank 0's own" : "aligned"));
    json_object_set_new(object, "offset_us",
                        json_make_number((double)trace_clock_offset(merge, rank, begin->at_ns) * 1e-3));
    json_object_set_new(object, "uncertainty_us",
                        json_make_number((double)trace_clock_uncertainty(merge, rank) * 1e-3));
    json_object_set_new(object, "measured_offset_us", json_make_number((double)begin->offset_ns * 1e-3));
    json_object_set_new(object, "measured_uncertainty_us",
                        json_make_number((double)begin->uncertainty_ns * 1e-3));
    json_object_set_new(object, "measured_drift_us",
                        json_make_number((double)(end->offset_ns - begin->offset_ns) * 1e-3));
    json_object_set_new(object, "events", json_integer((json_int_t)header->n_events));
    json_object_set_new(object, "lost_events", json_integer((json_int_t)header->n_lost));
    json_object_set_new(object, "recorder_bytes", json_integer((json_int_t)header->recorder_bytes));
    return object;
}

/* How many ranks share the machine of rank 0. */
static int ranks_of_host(const TraceMerge *merge) {
    int n = 0;
    for (int rank = 0; rank < merge->n_ranks; rank++)
        n += strcmp(merge->part[rank].header.host, merge->part[0].header.host) == 0;
    return n;
}

/* Where and when: a trace is looked at elsewhere and later. */
static void describe_place(json_t *object, const TraceMerge *merge, const Trace *trace) {
    char date[16] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%d", &utc);
    if (trace->setup.machine) json_object_set(object, "machine", trace->setup.machine);
    json_object_set_new(object, "ranks_of_machine", json_integer(ranks_of_host(merge)));
    json_object_set_new(object, "date", json_string(date));
}

static json_t *describe(const TraceMerge *merge, const Trace *trace) {
    const TraceSummary *summary = &merge->summary;
    json_t *object = json_object(), *ranks = json_array();
    json_object_set_new(object, "program", json_string("pgpt " PGPT_VERSION));
    json_object_set_new(object, "ranks", json_integer(merge->n_ranks));
    describe_place(object, merge, trace);
    json_object_set_new(object, "steps", json_integer(merge->part[0].header.n_steps));
    json_object_set_new(object, "first_step",
                        json_integer(trace->first_step > trace->setup.next_step ? trace->first_step
                                                                                : trace->setup.next_step));
    json_object_set_new(
        object, "instructions_are",
        json_string(trace->setup.runs_behind
                        ? "the host's time to tell the device, which runs behind it and has "
                          "tracks of its own: what it computes (device), copies (bus out, bus in)"
                        : "the time that they took"));
    json_object_set_new(object, "events", json_integer((json_int_t)summary->n_events));
    json_object_set_new(object, "lost_events", json_integer((json_int_t)summary->n_lost));
    json_object_set_new(object, "collectives", json_integer((json_int_t)summary->n_collectives));
    json_object_set_new(object, "unmatched_collectives", json_integer((json_int_t)summary->n_unmatched));
    json_object_set_new(object, "clock_uncertainty_us", json_make_number(summary->uncertainty_us));
    for (int rank = 0; rank < merge->n_ranks; rank++) json_array_append_new(ranks, clock_of(merge, rank));
    json_object_set_new(object, "clocks", ranks);
    return object;
}

static Status write_all(Writer *writer, const Trace *trace, Error *error) {
    static const char head[] = "{\"displayTimeUnit\":\"ms\",\"otherData\":",
                      middle[] = ",\n\"traceEvents\":[", tail[] = "\n]}\n";
    json_t *object = describe(writer->merge, trace);
    char *line = NULL;
    json_line(object, JSON_DIGITS_FLOAT, &line, error);
    json_decref(object);
    if (!line) return error->status;
    file_writer_write(writer->writer, head, sizeof head - 1, error);
    file_writer_write(writer->writer, line, strlen(line), error);
    free(line);
    TRY(file_writer_write(writer->writer, middle, sizeof middle - 1, error));
    TRY(write_names(writer, error));
    for (size_t i = 0; i < writer->merge->n_events; i++)
        TRY(write_event(writer, writer->merge->event[i], error));
    TRY(write_flows(writer, error));
    return file_writer_write(writer->writer, tail, sizeof tail - 1, error);
}

Status trace_write_json(const TraceMerge *merge, const Trace *trace, const char *path, uint64_t *n_bytes,
                        Error *error) {
    FileWriter file;
    Writer writer = {.merge = merge, .writer = &file};
    if (file_writer_open(&file, path, error) == STATUS_OK && write_all(&writer, trace, error) == STATUS_OK) {
        *n_bytes = file.n_bytes;
        file_writer_commit(&file, error);
    }
    file_writer_abort(&file);
    return error->status == STATUS_OK ? STATUS_OK : error_prefix(error, "the trace was not written: ");
}
