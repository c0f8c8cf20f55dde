/* pgpt lab timeline: a trace as a picture and as two tables, of the ranks and of the collectives. */
#include "cli/lab/lab.h"

#include "base/file/file.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "lab/picture/machine_note.h"
#include "lab/picture/timeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef struct {
    double from_ms, to_ms;
} TimelineOptions;

typedef struct {
    TimelineOptions window;
    LabOptions lab;
} TimelineCommand;

static const OptionSpec window_specs[] = {
    OPTION_FLOAT("from", TimelineOptions, from_ms, 0.0, 0.0, 1e12,
                 "milliseconds from the beginning of the trace to that of the picture"),
    OPTION_FLOAT("to", TimelineOptions, to_ms, 0.0, 0.0, 1e12, "and to its end; 0: the trace's"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Window", TimelineCommand, window, window_specs),
    OPTION_GROUP("Output", TimelineCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "FILE", .help = "a trace that 'pgpt train --trace' has written"},
    {.name = NULL},
};

static const char *const examples[] = {
    "trace a run of four ranks, and look at it",
    "mpirun -n 4 pgpt train --model nano --steps 10 --trace trace.json && pgpt lab timeline trace.json",
    "only a part of it",
    "pgpt lab timeline trace.json --from 100 --to 250",
    NULL,
};

const OptionCommand lab_timeline_command = {
    .name = "lab timeline",
    .summary = "what every rank did, and when: a trace of 'pgpt train --trace' as a picture",
    .description =
        "Draws a band for every thread of every rank into timeline.svg, and prints how long each rank computed, communicated and "
        "waited, and which rank the others waited for in their collectives; timeline.dat has every collective. Only the PNG beside "
        "the SVG needs gnuplot.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

/* ---- Tables */

/* Milliseconds to three digits: 0.055 ms, 9.24 ms, 1000 ms. */
static FormatText in_ms(double time_us) {
    FormatText text;
    double ms = time_us * 1e-3;
    int n_decimals = ms >= 99.95 ? 0 : ms >= 9.995 ? 1 : ms >= 0.9995 ? 2 : 3;
    snprintf(text.text, sizeof text.text, "%.*f ms", n_decimals, ms);
    return text;
}

static void print_share(double part_us, double whole_us) {
    printf(" %9s %3.0f %%", in_ms(part_us).text, whole_us > 0.0 ? 100.0 * part_us / whole_us : 0.0);
}

/* A text of the file as a column and a data file may have it. */
static const char *plain_name(const char *text, char *out, size_t n_bytes) {
    size_t n = 0;
    for (; *text && n + 1 < n_bytes; text++) {
        unsigned char c = (unsigned char)*text;
        out[n++] = c < 0x20 || c >= 0x7f || c == '"' ? '?' : (char)c;
    }
    out[n] = '\0';
    return out;
}

static void print_ranks(const Timeline *timeline) {
    double window_us = timeline->to_us - timeline->from_us;
    char name[24];
    printf("%s, %s", format_things(timeline->n_ranks, "rank").text, in_ms(window_us).text);
    if (timeline->uncertainty_us > 0.0) printf(", clocks known to %.3g us", timeline->uncertainty_us);
    printf("\n\n%-23s %15s %15s %15s %15s %15s\n", "", "compute", "communication", "overlapped", "waiting",
           "other");
    for (int i = 0; i < timeline->n_ranks; i++) {
        const TimelineTime *time = &timeline->rank[i].time;
        printf("%-23s", plain_name(timeline->rank[i].name, name, sizeof name));
        print_share(time->compute_us, window_us);
        print_share(time->comm_us, window_us);
        print_share(time->overlapped_us, time->comm_us); /* of the communication, not of the window */
        print_share(time->wait_us, window_us);
        print_share(time->other_us, window_us);
        printf("\n");
    }
    printf(
        "\nShares are of the time shown; those of what overlapped (communication while the rank computed) of the "
        "communication.\n");
}

/* All collectives of one kind on one communicator. */
typedef struct {
    const char *communicator, *kind;
    size_t n, n_matched;
    uint64_t n_bytes;
    double duration_us, spread_us, worst_us; /* sums, and the largest spread */
    int slowest, n_slowest;                  /* who came last most often, and how often */
} Group;

static int by_group(const void *a, const void *b) {
    const TimelineCollective *x = *(const TimelineCollective *const *)a,
                             *y = *(const TimelineCollective *const *)b;
    int order = strcmp(x->communicator, y->communicator);
    if (!order) order = strcmp(x->kind, y->kind);
    return order ? order : x->number < y->number ? -1 : x->number > y->number;
}

static Group sum_group(const TimelineCollective *const *collectives, size_t n, int *n_last, int n_ranks) {
    Group group = {.communicator = collectives[0]->communicator, .kind = collectives[0]->kind, .n = n};
    memset(n_last, 0, (size_t)n_ranks * sizeof *n_last);
    for (size_t i = 0; i < n; i++) {
        const TimelineCollective *one = collectives[i];
        group.n_bytes += one->n_bytes;
        if (one->n_ranks < 2) continue;
        group.n_matched++;
        group.duration_us += one->duration_us;
        group.spread_us += one->spread_us;
        group.worst_us = fmax(group.worst_us, one->spread_us);
        if (++n_last[one->slowest] > group.n_slowest) {
            group.n_slowest = n_last[one->slowest];
            group.slowest = one->slowest;
        }
    }
    return group;
}

static void print_group(const Timeline *timeline, const Group *group) {
    char communicator[24], kind[16], name[24];
    double n = (double)(group->n_matched ? group->n_matched : 1);
    printf("%-23s %-15s %6zu %10s %9s %9s %9s",
           plain_name(group->communicator, communicator, sizeof communicator),
           plain_name(group->kind, kind, sizeof kind), group->n, format_bytes(group->n_bytes / group->n).text,
           in_ms(group->duration_us / n).text, in_ms(group->spread_us / n).text, in_ms(group->worst_us).text);
    if (group->n_matched)
        printf("  %s (%d of %zu)", plain_name(timeline->rank[group->slowest].name, name, sizeof name),
               group->n_slowest, group->n_matched);
    printf("\n");
}

static json_t *group_json(const Timeline *timeline, const Group *group) {
    json_t *object = json_object();
    double n = (double)group->n_matched;
    json_object_set_new(object, "communicator", json_make_text(group->communicator));
    json_object_set_new(object, "kind", json_make_text(group->kind));
    json_object_set_new(object, "count", json_integer((json_int_t)group->n));
    json_object_set_new(object, "bytes", json_integer((json_int_t)(group->n_bytes / group->n)));
    json_object_set_new(object, "ms", json_make_number(group->duration_us / n * 1e-3));
    json_object_set_new(object, "spread_ms", json_make_number(group->spread_us / n * 1e-3));
    json_object_set_new(object, "slowest_rank",
                        group->n_matched ? json_integer(timeline->rank[group->slowest].process)
                                         : json_null());
    return object;
}

/* Groups in the order of their names; as many as anybody reads. */
static void print_groups(const Timeline *timeline, const TimelineCollective **order, int *n_last,
                         json_t *list) {
    enum { MOST_ROWS = 40 };
    size_t n = timeline->n_collectives, n_groups = 0;
    for (size_t i = 0; i < n; i++) order[i] = &timeline->collective[i];
    qsort(order, n, sizeof *order, by_group);
    printf("\n%-23s %-15s %6s %10s %9s %9s %9s  %s\n", "communicator", "collective", "number", "bytes",
           "time", "spread", "at most", "came last most often");
    for (size_t first = 0, size; first < n; first += size) {
        for (size = 1; first + size < n &&
                       strcmp(order[first]->communicator, order[first + size]->communicator) == 0 &&
                       strcmp(order[first]->kind, order[first + size]->kind) == 0;)
            size++;
        if (++n_groups > MOST_ROWS) continue;
        Group group = sum_group(order + first, size, n_last, timeline->n_ranks);
        print_group(timeline, &group);
        json_array_append_new(list, group_json(timeline, &group));
    }
    if (n_groups > MOST_ROWS) printf("... and %zu more\n", n_groups - MOST_ROWS);
    printf(
        "\nSpread is from the first rank's coming to the last one's: time in which the first can only wait.\n");
}

static Status print_collectives(const Timeline *timeline, json_t *list, Error *error) {
    if (!timeline->n_collectives) return STATUS_OK;
    const TimelineCollective **order = calloc(timeline->n_collectives, sizeof *order);
    int *n_last = calloc((size_t)timeline->n_ranks, sizeof *n_last);
    if (order && n_last) print_groups(timeline, order, n_last, list);
    else error_failed(error, "no memory for a table of %zu collectives", timeline->n_collectives);
    free(order);
    free(n_last);
    return error->status;
}

/* ---- Files */

static Status write_data(const Timeline *timeline, const char *path, const char *note, const char *command,
                         Error *error) {
    FileWriter writer;
    char communicator[80], kind[80], words[1024], origin[1024];
    TRY(file_writer_open(&writer, path, error));
    file_writer_printf(
        &writer, error,
        "# made by: %s\n# note: %s\n"
        "# communicator kind number bytes ranks begin_ms spread_us duration_us together_us slowest_rank\n",
        plain_name(command, words, sizeof words), plain_name(note, origin, sizeof origin));
    for (size_t i = 0; i < timeline->n_collectives && error->status == STATUS_OK; i++) {
        const TimelineCollective *one = &timeline->collective[i];
        file_writer_printf(&writer, error,
                           "\"%s\" \"%s\" %" PRId64 " %" PRIu64 " %d %.6f %.3f %.3f %.3f %" PRId64 "\n",
                           plain_name(one->communicator, communicator, sizeof communicator),
                           plain_name(one->kind, kind, sizeof kind), one->number, one->n_bytes, one->n_ranks,
                           one->begin_us * 1e-3, one->spread_us, one->duration_us, one->together_us,
                           timeline->rank[one->slowest].process);
    }
    if (error->status == STATUS_OK) file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return error->status;
}

static const char *date_of_file(const char *path, Arena *arena) {
    struct stat facts;
    struct tm utc;
    char date[16] = "";
    if (stat(path, &facts) != 0 || !gmtime_r(&facts.st_mtime, &utc)) return "";
    strftime(date, sizeof date, "%Y-%m-%d", &utc);
    return arena_strdup(arena, date);
}

/* Where and when the trace was recorded, as below the pictures of other studies. Where it does not say, the
 * day is that of the file, and the machine is left to --note; the names of the ranks have their hosts. */
static const char *origin_of(const Timeline *timeline, const char *path, Arena *arena) {
    const char *date = timeline->date ? timeline->date : date_of_file(path, arena);
    return arena_printf(arena, "%s%s%s%s%s%s", timeline->machine ? timeline->machine : "",
                        timeline->machine ? "; " : "", format_things(timeline->n_ranks, "rank").text,
                        timeline->is_shared ? ", more than there are cores" : "", *date ? "; " : "", date);
}

static Status write_files(const Timeline *timeline, const LabOutput *output, const char *trace, Arena *arena,
                          bool *has_png, Error *error) {
    const char *data = arena_printf(arena, "%s/timeline.dat", output->folder);
    const char *title =
        arena_printf(arena, "What %s did: %s of training", format_things(timeline->n_ranks, "rank").text,
                     in_ms(timeline->to_us - timeline->from_us).text);
    TRY(file_make_folders(output->folder, error));
    const char *note = machine_sentence(arena, output->note, origin_of(timeline, trace, arena));
    TRY(write_data(timeline, data, note, output->caption, error));
    const char *caption = arena_printf(arena, "%s\n%s", note, output->caption);
    return timeline_draw(timeline, title, caption, output->folder, "timeline", has_png, error);
}

/* ---- All of it */

static json_t *rank_json(const TimelineRank *rank) {
    json_t *object = json_object();
    json_object_set_new(object, "rank", json_integer(rank->process));
    json_object_set_new(object, "name", json_make_text(rank->name));
    json_object_set_new(object, "compute_ms", json_make_number(rank->time.compute_us * 1e-3));
    json_object_set_new(object, "comm_ms", json_make_number(rank->time.comm_us * 1e-3));
    json_object_set_new(object, "comm_hidden_ms", json_make_number(rank->time.overlapped_us * 1e-3));
    json_object_set_new(object, "comm_wait_ms", json_make_number(rank->time.wait_us * 1e-3));
    json_object_set_new(object, "other_ms", json_make_number(rank->time.other_us * 1e-3));
    json_object_set_new(object, "came_last", json_integer(rank->n_last));
    return object;
}

static size_t n_incomplete(const Timeline *timeline) {
    size_t n = 0;
    for (size_t i = 0; i < timeline->n_collectives; i++) n += !timeline->collective[i].is_complete;
    return n;
}

static Status print_json(const Timeline *timeline, const LabOutput *output, json_t *collectives,
                         Error *error) {
    json_t *object = json_object(), *ranks = json_array();
    for (int i = 0; i < timeline->n_ranks; i++) json_array_append_new(ranks, rank_json(&timeline->rank[i]));
    json_object_set_new(object, "command", json_string("lab timeline"));
    json_object_set_new(object, "ranks", json_integer(timeline->n_ranks));
    json_object_set_new(object, "events", json_integer((json_int_t)timeline->n_events));
    json_object_set_new(object, "from_ms", json_make_number(timeline->from_us * 1e-3));
    json_object_set_new(object, "to_ms", json_make_number(timeline->to_us * 1e-3));
    json_object_set_new(object, "collectives", json_integer((json_int_t)timeline->n_collectives));
    json_object_set_new(object, "incomplete_collectives", json_integer((json_int_t)n_incomplete(timeline)));
    json_object_set_new(object, "clipped_events", json_integer((json_int_t)timeline->n_clipped));
    json_object_set_new(object, "clock_uncertainty_us", json_make_number(timeline->uncertainty_us));
    json_object_set_new(object, "machine",
                        timeline->machine ? json_make_text(timeline->machine) : json_null());
    json_object_set_new(object, "date", timeline->date ? json_make_text(timeline->date) : json_null());
    json_object_set_new(object, "per_rank", ranks);
    json_object_set(object, "per_collective", collectives);
    json_object_set_new(object, "out", json_make_text(output->folder));
    return lab_print_json(object, error);
}

static Status show(const Timeline *timeline, const LabOutput *output, const char *trace,
                   const LabOptions *lab, Arena *arena, Error *error) {
    bool has_png;
    TRY(write_files(timeline, output, trace, arena, &has_png, error));
    json_t *collectives = json_array();
    print_ranks(timeline);
    print_collectives(timeline, collectives, error);
    fflush(stdout);
    size_t n_missing = n_incomplete(timeline);
    if (n_missing)
        log_warning(&output->log, "%zu of the collectives are not there on all of their ranks", n_missing);
    if (timeline->n_clipped)
        log_warning(&output->log,
                    "%zu of the events overlap others of their thread and were cut to fit into them",
                    timeline->n_clipped);
    log_note(&output->log, "picture: %s/timeline.svg%s; data: %s/timeline.dat", output->folder,
             has_png ? " and .png" : "", output->folder);
    if (!has_png)
        log_note(&output->log, "no PNG: gnuplot %s. To draw it later: (cd %s && gnuplot timeline.gp)",
                 plot_has_gnuplot() ? "failed" : "is not installed", shell_path(output->folder).text);
    if (error->status == STATUS_OK && lab->json) print_json(timeline, output, collectives, error);
    json_decref(collectives);
    return error->status;
}

Status lab_timeline(Launch *launch, int n_words, char *const *words, Error *error) {
    TimelineCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options(launch, &options, &lab_timeline_command, &values, n_words, words, &goes_on, error));
    if (goes_on && launch->is_root) { /* one process is enough to draw */
        LabOutput output = lab_output(launch, &options, &values.lab, n_words, words);
        Timeline timeline;
        timeline_read(&timeline, options.arguments[0], error);
        lab_check_folder(launch, &output, error);
        if (error->status == STATUS_OK)
            timeline_set_window(&timeline, values.window.from_ms, values.window.to_ms, error);
        if (error->status == STATUS_OK) timeline_measure(&timeline, error);
        if (error->status == STATUS_OK)
            show(&timeline, &output, options.arguments[0], &values.lab, &options.arena, error);
        timeline_free(&timeline);
    }
    options_free(&options);
    return launch_agree(launch, error);
}
