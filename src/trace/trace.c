/* The recorder fills while the run goes on, into memory that was taken before it; everything else happens
 * before the first and after the last step: the clocks are compared twice, since they may drift apart, and
 * rank 0 gathers, merges and writes.
 *
 * A trace that covers a long run is of no use to anybody and fills a disk. So the number of events of all
 * ranks together is bounded, and a rank stops at the beginning of a step that would not fit, going by the
 * longest one before it. What then has no room all the same is counted, and said. */
#include "trace/trace.h"

#include "base/file/file.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "trace/trace_part.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_EVENTS = 250000, /* of all ranks: with names and arrows, some 160 bytes each in the file */
    FEWEST_EVENTS = 256,  /* of a rank, however many there are */
    DEFAULT_STEPS = 20,
};

const OptionSpec trace_option_specs[] = {
    OPTION_STRING(
        "trace", TraceOptions, file, "", "[FILE]",
        "write what every rank does and when, for Chrome's tracing page, Perfetto and 'pgpt lab timeline'; without FILE, "
        "trace.json in the run's folder",
        .text_alone = "auto", .flags = OPTION_TRANSIENT),
    OPTION_STRING("trace-steps", TraceOptions, steps, "", "FIRST:LAST",
                  "the steps to trace, as far as there is room; default: the first 20 of this call",
                  .flags = OPTION_TRANSIENT),
    OPTION_END,
};

/* ---- Which steps */

static bool read_step(const char **next, int64_t *step) {
    char *end;
    errno = 0;
    long long value = strtoll(*next, &end, 10);
    if (end == *next || errno || value < 1 || (**next < '0' || **next > '9')) return false;
    *step = value;
    *next = end;
    return true;
}

Status trace_read_steps(const char *text, int64_t *first, int64_t *last, Error *error) {
    const char *next = text;
    *first = 1;
    *last = INT64_MAX;
    bool is_good = *next == ':' || read_step(&next, first);
    if (is_good && !*next) *last = *first; /* a single one */
    else if (is_good) is_good = *next++ == ':' && (!*next || read_step(&next, last)) && !*next;
    if (is_good && *text != '\0' && strcmp(text, ":") != 0 && *first <= *last) return STATUS_OK;
    return error_user(
        error,
        "--trace-steps '%.60s' is not FIRST:LAST; write two numbers of steps, the first one first, as in "
        "10:20, or leave one out",
        text);
}

static Status choose_steps(Trace *trace, Error *error) {
    const TraceSetup *setup = &trace->setup;
    trace->first_step = setup->next_step;
    trace->last_step = setup->next_step + DEFAULT_STEPS - 1;
    if (!*setup->steps) return STATUS_OK;
    TRY(trace_read_steps(setup->steps, &trace->first_step, &trace->last_step, error));
    if (trace->last_step >= setup->next_step && trace->first_step <= setup->n_steps) return STATUS_OK;
    return error_user(
        error,
        "--trace-steps %s has none of the steps of this call, which are %lld to %lld; choose some of them",
        setup->steps, (long long)setup->next_step, (long long)setup->n_steps);
}

/* ---- Before, during and after */

Status trace_open(Trace *trace, const TraceSetup *setup, Error *error) {
    *trace = (Trace){.setup = *setup};
    TRY(choose_steps(trace, error));
    size_t n_ranks = (size_t)setup->world->size, room = MOST_EVENTS / n_ranks;
    activity_prepare_recorder(setup->activity, room > FEWEST_EVENTS ? room : FEWEST_EVENTS, error);
    if (setup->world->rank == 0) {
        trace->clock_begin = calloc(n_ranks, sizeof *trace->clock_begin);
        trace->clock_end = calloc(n_ranks, sizeof *trace->clock_end);
        if (!trace->clock_begin || !trace->clock_end) error_failed(error, "no memory for a trace");
    }
    TRY(comm_agree(setup->world, error));
    return comm_clock_compare(setup->world, timer_now_ns, trace->clock_begin, error);
}

void trace_close(Trace *trace) {
    free(trace->clock_begin);
    free(trace->clock_end);
    json_decref(trace->setup.machine);
    *trace = (Trace){0};
}

static void switch_to(Trace *trace, bool is_on) {
    if (trace->is_on == is_on) return;
    trace->is_on = is_on;
    activity_record(trace->setup.activity, is_on);
    trace->stopped_ns = is_on ? 0 : timer_now_ns();
}

bool trace_wants(const Trace *trace, int64_t step) {
    return trace && trace->setup.activity && step >= trace->first_step && step <= trace->last_step;
}

void trace_before_step(Trace *trace, int64_t step) {
    if (!trace || !trace->setup.activity) return;
    const Activity *activity = trace->setup.activity;
    size_t n = activity_n_recorded(activity), used = n - trace->n_before;
    if (used > trace->most_of_a_step) trace->most_of_a_step = used;
    trace->n_before = n;
    bool is_wanted = trace_wants(trace, step);
    if (is_wanted && activity->max_events - n < trace->most_of_a_step) trace->is_full = true;
    switch_to(trace, is_wanted && !trace->is_full);
    trace->n_steps += trace->is_on;
}

Status trace_check_path(const char *path, Error *error) {
    return file_check_place(path, error) == STATUS_OK ? STATUS_OK : error_prefix(error, "--trace: ");
}

static Status merge_and_write(Trace *trace, TracePart *parts, const char *path, TraceSummary *summary,
                              Error *error) {
    TraceMerge merge = {.n_ranks = trace->setup.world->size,
                        .part = parts,
                        .clock_begin = trace->clock_begin,
                        .clock_end = trace->clock_end};
    uint64_t n_bytes = 0;
    if (trace_merge(&merge, error) == STATUS_OK) trace_write_json(&merge, trace, path, &n_bytes, error);
    *summary = merge.summary;
    summary->n_bytes = n_bytes;
    trace_merge_free(&merge);
    return error->status;
}

Status trace_write(Trace *trace, const char *path, TraceSummary *summary, Error *error) {
    *summary = (TraceSummary){0};
    switch_to(trace, false);
    Comm *world = trace->setup.world;
    TRY(comm_clock_compare(world, timer_now_ns, trace->clock_end, error));
    TracePart mine = {0}, *parts = NULL;
    bool is_root = world->rank == 0;
    if (is_root) parts = calloc((size_t)world->size, sizeof *parts);
    if (is_root && !parts) error_failed(error, "no memory for the traces of %d ranks", world->size);
    trace_part_make(trace, &mine, error);
    if (comm_agree(world, error) == STATUS_OK) {
        trace_gather(world, &mine, parts, error);
        if (is_root && error->status == STATUS_OK) merge_and_write(trace, parts, path, summary, error);
        comm_agree(world, error);
    }
    for (int rank = 0; is_root && parts && rank < world->size; rank++) trace_part_free(&parts[rank]);
    free(parts);
    trace_part_free(&mine);
    return error->status;
}
