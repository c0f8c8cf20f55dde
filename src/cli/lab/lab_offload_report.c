/* What `pgpt lab offload` says: tables of time, memory and largest models, the pictures and the JSON. */
#include "cli/lab/lab_offload.h"

#include "base/text/format.h"
#include "base/text/plain.h"
#include "lab/picture/machine_note.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool was_timed(const OffloadStudy *study, const OffloadChoice *choice) {
    return study->is_timed && !*choice->why_not;
}

static int n_timed(const OffloadStudy *study) {
    int n = 0;
    for (int i = 0; i < study->n_choices; i++) n += was_timed(study, &study->choice[i]);
    return n;
}

/* ---- What a kind of memory holds, where kernels work */

typedef enum { OF_WEIGHTS, OF_GRADIENTS, OF_OPTIMIZER, OF_ACTIVATIONS, OF_REST, N_MEMORY_PARTS } MemoryPart;
static const char *const part_names[N_MEMORY_PARTS] = {"weights", "gradients", "optimizer state",
                                                       "activations", "on the way, and the rest"};

static MemoryPart part_of(Place place) {
    switch (place) {
    case PLACE_PARAMETER: return OF_WEIGHTS;
    case PLACE_GRADIENT: return OF_GRADIENTS;
    case PLACE_OPTIMIZER: return OF_OPTIMIZER;
    case PLACE_ACTIVATION:
    case PLACE_FRAME: return OF_ACTIVATIONS;
    default: return OF_REST;
    }
}

static double part_bytes(const OffloadChoice *choice, MemoryPart part) {
    double n = 0.0;
    for (int place = 0; place < N_PLACES; place++)
        if (choice->kind[place] == choice->kind[PLACE_PARAMETER] && part_of((Place)place) == part)
            n += (double)choice->place[place];
    return n;
}

/* ---- Tables */

static int name_width(const OffloadStudy *study) {
    size_t width = 9;
    for (int i = 0; i < study->n_choices; i++)
        if (strlen(study->choice[i].name) > width) width = strlen(study->choice[i].name);
    return (int)width;
}

/* How much of a step the bus or the disk is busy at the least. */
static void print_lane(const char *name, const double *bytes, const MoveRates *rates, double bound_ms,
                       double step_ms) {
    if (bytes[MOVE_OUT] + bytes[MOVE_IN] <= 0.0) return;
    printf("  %s: %s out and %s in a step; %s out, %s in, %s both at once; busy for %.0f %% of the step\n",
           name, format_bytes((uint64_t)bytes[MOVE_OUT]).text, format_bytes((uint64_t)bytes[MOVE_IN]).text,
           format_rate(rates->out, "B/s").text, format_rate(rates->in, "B/s").text,
           format_rate(rates->both, "B/s").text, 100.0 * fmin(1.0, bound_ms / step_ms));
}

static void print_times(const OffloadStudy *study, int width) {
    printf("%-*s %9s | %9s %9s %9s %9s | %9s %8s\n", width, "offloaded", "ms a step", "computing", "bus",
           "disk", "host", "stall", "of bound");
    for (int i = 0; i < study->n_choices; i++) {
        const OffloadChoice *choice = &study->choice[i];
        const BenchBound *bound = &choice->report.bound;
        if (!was_timed(study, choice)) {
            printf("%-*s %s\n", width, choice->name, choice->why_not);
            continue;
        }
        printf("%-*s %9.1f | %9.1f %9.1f %9.1f %9.1f | %9.1f %7.1f%%\n", width, choice->name,
               choice->report.step_ms, bound->compute_ms, bound->bus_ms, bound->disk_ms, bound->host_ms,
               choice->stall_ms, 100.0 * choice->stall_ms / choice->bound_ms);
    }
    printf("\ncomputing: the step that offloads nothing, or where there is none, all instructions but moves; "
           "bus, disk: a step's bytes\nat the rates measured here; host: its update's bytes at the rate of "
           "copies in its memory. The largest is the bound,\nwhat a step takes beyond it is stall.\n");
    for (int i = 0; i < study->n_choices; i++) {
        const BenchBound *bound = &study->choice[i].report.bound;
        if (!was_timed(study, &study->choice[i])) continue;
        if (bound->bus_ms > 0.0 || bound->disk_ms > 0.0) printf("%s\n", study->choice[i].name);
        print_lane("bus", bound->bus_bytes, &bound->bus, bound->bus_ms, study->choice[i].report.step_ms);
        print_lane("disk", bound->file_bytes, &bound->disk, bound->disk_ms, study->choice[i].report.step_ms);
    }
}

static void print_memory(const OffloadStudy *study, int width) {
    printf("\n%-*s", width, "memory");
    for (int part = 0; part < N_MEMORY_PARTS; part++)
        printf(" %*s", (int)fmax(10, (double)strlen(part_names[part])), part_names[part]);
    printf(" | %10s %10s %10s\n", study->has_own_memory ? "device" : "memory", "pinned", "on disk");
    for (int i = 0; i < study->n_choices; i++) {
        const OffloadChoice *choice = &study->choice[i];
        if (!was_timed(study, choice)) continue;
        printf("%-*s", width, choice->name);
        for (int part = 0; part < N_MEMORY_PARTS; part++)
            printf(" %*s", (int)fmax(10, (double)strlen(part_names[part])),
                   format_bytes((uint64_t)part_bytes(choice, (MemoryPart)part)).text);
        printf(" | %10s %10s %10s\n", format_bytes(choice->here).text, format_bytes(choice->pinned).text,
               format_bytes(choice->file).text);
    }
}

static void print_largest(const OffloadStudy *study, int width) {
    const BenchOptions *bench = &study->call->setup.bench;
    printf("\nThe largest model whose step fits (%s, %" PRId64 " x %" PRId64 " tokens%s%s)\n",
           precision_names[bench->precision], study->micro_batch, study->sequence,
           study->host_memory == UINT64_MAX ? "" : "; pinned at most ",
           study->host_memory == UINT64_MAX ? "" : format_bytes(study->host_memory).text);
    for (int m = 0; m < study->memory.n; m++) {
        printf("\n%-*s %12s | %7s %8s | %10s %10s %10s\n", width, "offloaded",
               format_bytes((uint64_t)study->memory.values[m]).text, "layers", "channels",
               study->has_own_memory ? "device" : "memory", "pinned", "on disk");
        for (int i = 0; i < study->n_choices; i++) {
            const LargestModel *largest = &study->choice[i].largest[m];
            if (!largest->n_parameters) printf("%-*s %12s |\n", width, study->choice[i].name, "none");
            else
                printf("%-*s %12s | %7" PRId64 " %8" PRId64 " | %10s %10s %10s\n", width,
                       study->choice[i].name, format_count((double)largest->n_parameters).text,
                       largest->n_layers, largest->n_channels, format_bytes(largest->here).text,
                       format_bytes(largest->pinned).text, format_bytes(largest->file).text);
        }
    }
}

void offload_study_print(const OffloadStudy *study) {
    const BenchSetup *setup = &study->call->setup;
    int width = name_width(study);
    if (study->is_timed) {
        printf("Steps of %s, %" PRId64 " x %" PRId64 " tokens, %s, %s, on %s\n\n", setup->model.preset,
               setup->bench.batch, study->sequence, precision_names[setup->bench.precision],
               setup->optimizer.clip > 0.0 ? "clipped" : "not clipped", plain(study->device).text);
        print_times(study, width);
        if (n_timed(study)) print_memory(study, width);
    }
    print_largest(study, width);
}

/* ---- Pictures */

static const char *note_of(const OffloadStudy *study, Arena *arena) {
    return machine_note(arena, study->device, study->n_threads, study->output.note);
}

/* Of the choices that were timed. */
typedef struct {
    const char *names[OFFLOAD_MOST_CHOICES];
    double x[OFFLOAD_MOST_CHOICES];
    const OffloadChoice *choice[OFFLOAD_MOST_CHOICES];
    int n;
} Timed;

static Timed list_timed(const OffloadStudy *study) {
    Timed timed = {.n = 0};
    for (int i = 0; i < study->n_choices; i++) {
        if (!was_timed(study, &study->choice[i])) continue;
        timed.names[timed.n] = study->choice[i].name;
        timed.x[timed.n] = timed.n;
        timed.choice[timed.n++] = &study->choice[i];
    }
    return timed;
}

static Status draw_steps(const OffloadStudy *study, Error *error) {
    enum { STEP, COMPUTING, BUS, DISK, HOST, N_BARS };
    static const char *const names[N_BARS] = {"step", "computing", "bus", "disk", "host's update"};
    Timed timed = list_timed(study);
    double y[N_BARS][OFFLOAD_MOST_CHOICES];
    PlotSeries series[N_BARS];
    Arena arena = {0};
    int n = 0;
    for (int bar = 0; bar < N_BARS; bar++) {
        double most = 0.0;
        for (int i = 0; i < timed.n; i++) {
            const BenchStepReport *report = &timed.choice[i]->report;
            const double values[N_BARS] = {report->step_ms, report->bound.compute_ms, report->bound.bus_ms,
                                           report->bound.disk_ms, report->bound.host_ms};
            y[bar][i] = values[bar];
            most = fmax(most, values[bar]);
        }
        if (most > 0.0) series[n++] = (PlotSeries){names[bar], PLOT_BARS, timed.x, y[bar], timed.n};
    }
    Plot plot = {.title = arena_printf(&arena, "A step of %s by what is offloaded, and what bounds it",
                                       study->call->setup.model.preset),
                 .x_label = "offloaded",
                 .y_label = "time (ms)",
                 .series = series,
                 .n_series = n,
                 .x_names = timed.names,
                 .note = note_of(study, &arena)};
    lab_draw(&study->output, &plot, "offload-step", error);
    arena_free(&arena);
    return error->status;
}

static Status draw_memory(const OffloadStudy *study, Error *error) {
    Timed timed = list_timed(study);
    double y[N_MEMORY_PARTS][OFFLOAD_MOST_CHOICES], whole[OFFLOAD_MOST_CHOICES];
    PlotSeries series[N_MEMORY_PARTS];
    Arena arena = {0};
    const double gib = 1073741824.0;
    for (int part = 0; part < N_MEMORY_PARTS; part++) {
        for (int i = 0; i < timed.n; i++) y[part][i] = part_bytes(timed.choice[i], (MemoryPart)part) / gib;
        series[part] = (PlotSeries){part_names[part], PLOT_BARS, timed.x, y[part], timed.n};
    }
    for (int i = 0; i < timed.n; i++) whole[i] = (double)timed.choice[i]->here / gib;
    Plot plot = {.title = arena_printf(&arena, "Memory of a step of %s by what is offloaded",
                                       study->call->setup.model.preset),
                 .x_label = "offloaded",
                 .y_label = study->has_own_memory ? "the device's memory (GiB)" : "memory (GiB)",
                 .series = series,
                 .n_series = N_MEMORY_PARTS,
                 .x_names = timed.names,
                 .is_stacked = true,
                 .whole = whole,
                 .note = note_of(study, &arena)};
    lab_draw(&study->output, &plot, "offload-memory", error);
    arena_free(&arena);
    return error->status;
}

static Status draw_largest(const OffloadStudy *study, Error *error) {
    double x[OFFLOAD_MOST_MEMORIES], y[OFFLOAD_MOST_CHOICES][OFFLOAD_MOST_MEMORIES];
    PlotSeries series[OFFLOAD_MOST_CHOICES];
    Arena arena = {0};
    int n = 0;
    for (int m = 0; m < study->memory.n; m++) x[m] = (double)study->memory.values[m] / 1073741824.0;
    for (int i = 0; i < study->n_choices; i++) {
        bool has_any = false;
        for (int m = 0; m < study->memory.n; m++) {
            int64_t n_parameters = study->choice[i].largest[m].n_parameters;
            y[i][m] = n_parameters ? 1e-9 * (double)n_parameters : NAN;
            has_any |= n_parameters > 0;
        }
        if (has_any) series[n++] = (PlotSeries){study->choice[i].name, PLOT_LINES, x, y[i], study->memory.n};
    }
    if (!n) return STATUS_OK;
    Plot plot = {.title = "The largest model whose step fits, by what is offloaded",
                 .x_label = study->has_own_memory ? "the device's memory (GiB), logarithmic"
                                                  : "memory (GiB), logarithmic",
                 .y_label = "parameters (billions)",
                 .x_log = true,
                 .y_log = true,
                 .series = series,
                 .n_series = n,
                 .note = note_of(study, &arena)};
    lab_draw(&study->output, &plot, "offload-largest", error);
    arena_free(&arena);
    return error->status;
}

Status offload_study_draw(const OffloadStudy *study, Error *error) {
    if (n_timed(study)) {
        TRY(draw_steps(study, error));
        TRY(draw_memory(study, error));
    }
    return draw_largest(study, error);
}

/* ---- JSON */

static json_t *lane_json(const double *bytes, const MoveRates *rates) {
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "out_bytes", json_make_number(bytes[MOVE_OUT]), "in_bytes",
                     json_make_number(bytes[MOVE_IN]), "out_per_s", json_make_number(rates->out), "in_per_s",
                     json_make_number(rates->in), "both_per_s", json_make_number(rates->both));
}

static json_t *step_json(const OffloadChoice *choice) {
    const BenchBound *bound = &choice->report.bound;
    json_t *object = json_object(), *parts = json_object();
    json_object_set_new(object, "step_ms", json_make_number(choice->report.step_ms));
    json_object_set_new(object, "bound_ms", json_make_number(choice->bound_ms));
    json_object_set_new(object, "stall_ms", json_make_number(choice->stall_ms));
    json_object_set_new(object, "compute_ms", json_make_number(bound->compute_ms));
    json_object_set_new(object, "bus_ms", json_make_number(bound->bus_ms));
    json_object_set_new(object, "disk_ms", json_make_number(bound->disk_ms));
    json_object_set_new(object, "host_ms", json_make_number(bound->host_ms));
    json_object_set_new(object, "wait_ms", json_make_number(bound->wait_ms));
    json_object_set_new(object, "bus", lane_json(bound->bus_bytes, &bound->bus));
    json_object_set_new(object, "disk", lane_json(bound->file_bytes, &bound->disk));
    json_object_set_new(object, "loss", json_make_number(choice->report.loss));
    for (int part = 0; part < N_MEMORY_PARTS; part++)
        json_object_set_new(parts, part_names[part], json_make_number(part_bytes(choice, (MemoryPart)part)));
    json_object_set_new(object, "parts", parts);
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)choice->here));
    json_object_set_new(object, "pinned_bytes", json_integer((json_int_t)choice->pinned));
    json_object_set_new(object, "file_bytes", json_integer((json_int_t)choice->file));
    return object;
}

static json_t *largest_json(const OffloadStudy *study, const OffloadChoice *choice) {
    json_t *array = json_array();
    for (int m = 0; m < study->memory.n; m++) {
        const LargestModel *largest = &choice->largest[m];
        json_array_append_new(
            array,
            json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "memory_bytes", (json_int_t)study->memory.values[m],
                      "parameters", (json_int_t)largest->n_parameters, "layers",
                      (json_int_t)largest->n_layers, "channels", (json_int_t)largest->n_channels,
                      "peak_bytes", (json_int_t)largest->here, "pinned_bytes", (json_int_t)largest->pinned,
                      "file_bytes", (json_int_t)largest->file));
    }
    return array;
}

json_t *offload_study_json(const OffloadStudy *study) {
    json_t *choices = json_array();
    for (int i = 0; i < study->n_choices; i++) {
        const OffloadChoice *choice = &study->choice[i];
        json_t *object = json_object();
        json_object_set_new(object, "offload", json_make_text(choice->name));
        json_object_set_new(object, "why_not",
                            *choice->why_not ? json_make_text(choice->why_not) : json_null());
        json_object_set_new(object, "step", was_timed(study, choice) ? step_json(choice) : json_null());
        json_object_set_new(object, "largest", largest_json(study, choice));
        json_array_append_new(choices, object);
    }
    const BenchSetup *setup = &study->call->setup;
    return json_pack("{s:s,s:o,s:o,s:s,s:I,s:I,s:I,s:o}", "command", "lab offload", "device",
                     json_make_text(study->device), "model", json_make_text(setup->model.preset), "dtype",
                     precision_names[setup->bench.precision], "batch", (json_int_t)setup->bench.batch,
                     "micro_batch", (json_int_t)study->micro_batch, "sequence", (json_int_t)study->sequence,
                     "choices", choices);
}
