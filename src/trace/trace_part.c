/* A rank's events refer to names by address, which mean nothing elsewhere; as they travel, names lie behind
 * each other in one text and events refer to their places in it. There are some dozens of different names, so
 * they are found by walking. All ranks run the same program (the launch has checked that), so structs travel
 * as they are. */
#include "trace/trace_part.h"

#include "base/system/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG = 1 };

/* ---- Names */

typedef struct {
    const char **name;
    uint32_t *place;
    size_t n_names, n_room;
    char *text;
    size_t n_text;
    bool is_out_of_memory;
} NameTable;

static void add_name(NameTable *table, const char *name) {
    size_t n_bytes = strlen(name) + 1;
    char *text = realloc(table->text, table->n_text + n_bytes);
    if (text) table->text = text;
    if (table->n_names == table->n_room) {
        size_t room = table->n_room ? 2 * table->n_room : 64;
        const char **names = realloc(table->name, room * sizeof *names);
        if (names) table->name = names;
        uint32_t *places = realloc(table->place, room * sizeof *places);
        if (places) table->place = places;
        if (names && places) table->n_room = room;
    }
    table->is_out_of_memory = !text || table->n_names == table->n_room || table->n_text > UINT32_MAX / 2;
    if (table->is_out_of_memory) return;
    memcpy(text + table->n_text, name, n_bytes);
    table->name[table->n_names] = name;
    table->place[table->n_names++] = (uint32_t)table->n_text;
    table->n_text += n_bytes;
}

static uint32_t place_of(NameTable *table, const char *name) {
    if (!name || table->is_out_of_memory) return TRACE_NO_TEXT;
    for (size_t i = 0; i < table->n_names; i++)
        if (table->name[i] == name) return table->place[i];
    add_name(table, name);
    return table->is_out_of_memory ? TRACE_NO_TEXT : table->place[table->n_names - 1];
}

/* ---- One rank's part */

/* Processes under one kernel read one clock, unless they have been put into different time namespaces. */
static void identify_clock(char *text, size_t n_bytes) {
    char boot[64] = "", name[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    text[0] = '\0';
    if (!file) return;
    bool is_read = fgets(boot, sizeof boot, file) != NULL;
    fclose(file);
    if (!is_read) return;
    boot[strcspn(boot, "\n")] = '\0';
    if (readlink("/proc/self/ns/time", name, sizeof name - 1) < 0)
        name[0] = '\0'; /* older kernels have none */
    snprintf(text, n_bytes, "%s %s", boot, name);
}

static TraceEvent event_of(const ActivityEvent *event, NameTable *names, int rank) {
    return (TraceEvent){.begin_ns = event->begin_ns,
                        .end_ns = event->end_ns,
                        .n_bytes = event->entry.n_bytes,
                        .number = event->entry.number,
                        .peers = event->entry.peers,
                        .rank = rank,
                        .name = place_of(names, event->entry.name),
                        .place = place_of(names, event->entry.place),
                        .kind = (uint8_t)event->entry.kind,
                        .track = event->track,
                        .depth = event->depth};
}

static void fill_header(const Trace *trace, TraceHeader *header, NameTable *names) {
    const Activity *activity = trace->setup.activity;
    header->rank = trace->setup.world->rank;
    header->n_lost = activity_n_lost(activity);
    header->recorder_bytes = activity_recorder_bytes(activity);
    header->is_full = trace->is_full;
    header->n_steps = trace->n_steps;
    header->n_tracks = activity_n_tracks(activity);
    for (int i = 0; i < header->n_tracks; i++)
        header->track[i] = place_of(names, atomic_load(&activity->track[i].name));
    snprintf(header->host, sizeof header->host, "%s", trace->setup.host);
    identify_clock(header->clock, sizeof header->clock);
}

/* header | events | text */
static TraceHeader *header_in(char *bytes) {
    return (TraceHeader *)(void *)bytes;
}

static size_t event_bytes(size_t n) {
    return n * sizeof(TraceEvent);
}

static void open_part(TracePart *part, char *bytes) {
    part->bytes = bytes;
    part->header = *header_in(bytes);
    part->event = (TraceEvent *)(void *)(bytes + sizeof(TraceHeader));
    part->text = bytes + sizeof(TraceHeader) + event_bytes(part->header.n_events);
}

static size_t part_bytes(const TracePart *part) {
    return part->bytes ? sizeof(TraceHeader) + event_bytes(part->header.n_events) + part->header.n_text : 0;
}

Status trace_part_make(const Trace *trace, TracePart *part, Error *error) {
    const Activity *activity = trace->setup.activity;
    size_t n = activity_n_recorded(activity), n_kept = 0;
    TraceHeader header = {.cut_ns = trace->stopped_ns && trace->is_full ? trace->stopped_ns : UINT64_MAX};
    NameTable names = {0};
    char *bytes = malloc(sizeof header + event_bytes(n));
    TraceEvent *events = (TraceEvent *)(void *)(bytes + sizeof header);
    for (size_t i = 0; bytes && i < n; i++) {
        const ActivityEvent *event = activity_recorded(activity, i);
        if (event) events[n_kept++] = event_of(event, &names, trace->setup.world->rank);
    }
    if (atomic_load(&activity->n_events) > n && n_kept) header.cut_ns = events[n_kept - 1].end_ns;
    fill_header(trace, &header, &names);
    header.n_lost += n - n_kept; /* a thread was just writing it */
    header.n_events = n_kept;
    header.n_text = names.n_text;
    char *larger = bytes ? realloc(bytes, sizeof header + event_bytes(n_kept) + names.n_text) : NULL;
    bool is_good = larger && !names.is_out_of_memory;
    if (is_good) {
        memcpy(larger, &header, sizeof header);
        if (names.text) memcpy(larger + sizeof header + event_bytes(n_kept), names.text, names.n_text);
        open_part(part, larger);
    } else {
        free(larger ? larger : bytes);
    }
    free(names.name);
    free(names.place);
    free(names.text);
    return is_good ? STATUS_OK : error_failed(error, "no memory to pack %zu events of a trace", n);
}

void trace_part_free(TracePart *part) {
    free(part->bytes);
    *part = (TracePart){0};
}

/* ---- To rank 0 */

/* Is what has arrived as long as it says? */
static Status check_part(const TracePart *part, int rank, size_t n_bytes, Error *error) {
    const TraceHeader *header = &part->header;
    bool is_good = header->rank == rank && header->n_events <= n_bytes / sizeof(TraceEvent) &&
                   part_bytes(part) == n_bytes && header->n_tracks >= 1 &&
                   header->n_tracks <= ACTIVITY_MAX_TRACKS && header->n_text > 0 &&
                   part->text[header->n_text - 1] == '\0';
    return is_good ? STATUS_OK : error_failed(error, "the trace of rank %d has arrived damaged", rank);
}

/* Nothing is sent before rank 0 has room for all of it: nobody waits for a rank that has given up. */
static Status make_room(TracePart *part, uint64_t n_bytes, Error *error) {
    part->bytes = n_bytes >= sizeof(TraceHeader) ? malloc(n_bytes) : NULL;
    if (part->bytes) return STATUS_OK;
    return error_failed(error, "no memory for %llu bytes of a trace", (unsigned long long)n_bytes);
}

static Status receive_parts(Comm *world, TracePart *parts, const uint64_t *n_bytes, Error *error) {
    if (!n_bytes) return error_failed(error, "no sizes of the parts of a trace");
    for (int rank = 1; rank < world->size; rank++)
        TRY(comm_receive(world, parts[rank].bytes, n_bytes[rank], rank, TAG, error));
    for (int rank = 1; rank < world->size; rank++) {
        open_part(&parts[rank], parts[rank].bytes);
        TRY(check_part(&parts[rank], rank, n_bytes[rank], error));
    }
    return STATUS_OK;
}

Status trace_gather(Comm *world, TracePart *mine, TracePart *parts, Error *error) {
    uint64_t n_mine = part_bytes(mine);
    if (world->rank != 0) {
        TRY(comm_send(world, &n_mine, sizeof n_mine, 0, TAG, error));
        TRY(comm_agree(world, error));
        return comm_send(world, mine->bytes, n_mine, 0, TAG, error);
    }
    uint64_t *n_bytes = calloc((size_t)world->size, sizeof *n_bytes), ignored;
    if (!n_bytes) error_failed(error, "no memory for the sizes of %d traces", world->size);
    for (int rank = 1; rank < world->size; rank++) {
        uint64_t *n = n_bytes ? &n_bytes[rank] : &ignored;
        TRY_GOTO(comm_receive(world, n, sizeof *n, rank, TAG, error), done);
        if (n_bytes) make_room(&parts[rank], *n, error);
    }
    TRY_GOTO(comm_agree(world, error), done);
    TRY_GOTO(receive_parts(world, parts, n_bytes, error), done);
    parts[0] = *mine;
    *mine = (TracePart){0};
done:
    free(n_bytes);
    return error->status;
}
