/* What `pgpt lab traffic` says: two tables, what one sees in them, the pictures and the JSON. */
#include "cli/lab/lab_traffic.h"

#include "base/text/format.h"
#include "lab/picture/machine_note.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const TrafficWay *exact_of(const TrafficStudy *study) {
    return &study->way[0];
}

static FormatText rate_text(const TrafficStudy *study, int r) {
    return format_rate(1e6 * (double)study->rates.values[r], "bit/s");
}

/* ---- Tables */

/* Steps of the run that sent words. */
static int64_t n_compressed(const TrafficWay *way) {
    return (int64_t)traffic_way_cost(way, (const double[N_TRAFFIC_STEPS]){[TRAFFIC_OWN] = 1.0});
}

/* And that sent nothing of a gradient. */
static int64_t n_local(const TrafficWay *way) {
    return (int64_t)traffic_way_cost(way, (const double[N_TRAFFIC_STEPS]){[TRAFFIC_LOCAL] = 1.0});
}

typedef struct {
    double of[N_TRAFFIC_STEPS];
} StepCosts;

static StepCosts bytes_of(const TrafficStudy *study, const TrafficWay *way, double unit) {
    return (StepCosts){{exact_of(study)->n_bytes / unit, way->n_bytes / unit, way->n_local_bytes / unit}};
}

static StepCosts seconds_of(const TrafficWay *way, int r) {
    return (StepCosts){{1e-3 * way->exact_step_ms[r], 1e-3 * way->step_ms[r], 1e-3 * way->local_ms[r]}};
}

/* All that the busiest rank has sent when the run ends. */
static double sent_in_all(const TrafficStudy *study, const TrafficWay *way) {
    return traffic_way_cost(way, bytes_of(study, way, 1.0).of);
}

/* "1/21.3" */
static FormatText share_text(double share) {
    FormatText text;
    if (share >= 1.0) snprintf(text.text, sizeof text.text, "%.3g", share);
    else snprintf(text.text, sizeof text.text, "1/%.3g", 1.0 / share);
    return text;
}

static void print_bytes(const TrafficStudy *study) {
    printf("%-14s %12s %8s %11s %7s %12s %10s %9s", "--compress", "a step sends", "of f32", "compressed",
           "local", "in all", "val loss", "to none");
    printf("%s\n", study->is_measured ? "  on the wire" : "");
    for (int i = 0; i < study->n_ways; i++) {
        const TrafficWay *way = &study->way[i];
        printf("%-14s %12s %8s %11" PRId64 " %7" PRId64 " %12s %10.4f %+9.4f", way->name,
               format_bytes((uint64_t)way->n_bytes).text,
               share_text(way->n_bytes / exact_of(study)->n_bytes).text, n_compressed(way), n_local(way),
               format_bytes((uint64_t)sent_in_all(study, way)).text, traffic_way_loss(way),
               traffic_way_loss(way) - traffic_way_loss(exact_of(study)));
        if (study->is_measured) printf(" %11.3fx", way->n_wire_bytes / way->n_all_bytes);
        printf("\n");
    }
}

/* The loss that every way comes to. */
static double common_loss(const TrafficStudy *study) {
    double loss = -INFINITY;
    for (int i = 0; i < study->n_ways; i++) {
        double least = INFINITY;
        for (int64_t k = 0; k < study->way[i].curve.n; k++)
            least = fmin(least, study->way[i].curve.y[CURVE_VALIDATION][k]); /* fmin passes over NAN */
        loss = fmax(loss, least);
    }
    return loss;
}

/* Seconds on links of rate r until the run is there. */
static double seconds_to(const TrafficWay *way, int r, double loss, Arena *arena) {
    int64_t at = traffic_way_reaches(way, loss);
    double *x = ARENA_ARRAY(arena, double, way->curve.n + 1);
    if (at < 0) return NAN;
    traffic_way_costs(way, seconds_of(way, r).of, x);
    return x[at];
}

static void print_times(const TrafficStudy *study, Arena *arena) {
    double loss = common_loss(study);
    printf("\n%-14s", "");
    for (int r = 0; r < study->rates.n; r++) printf(" | %-29s", rate_text(study, r).text);
    printf("\n%-14s", "--compress");
    for (int r = 0; r < study->rates.n; r++) printf(" | %9s %7s   to %6.4g", "ms a step", "faster", loss);
    printf("\n");
    for (int i = 0; i < study->n_ways; i++) {
        const TrafficWay *way = &study->way[i];
        printf("%-14s", way->name);
        for (int r = 0; r < study->rates.n; r++)
            printf(" | %9.1f %6.2fx %9.1f s", way->step_ms[r], way->exact_step_ms[r] / way->step_ms[r],
                   seconds_to(way, r, loss, arena));
        printf("\n");
    }
    printf(
        "\nms a step: of a compressed one; faster: than one of none; to %.4g: the time until the validation "
        "loss is that low,\nwith the exact steps of the warm-up.\n",
        loss);
}

static void say_links(const TrafficStudy *study) {
    if (study->is_measured)
        printf("Links: measured between %" PRId64 " network namespaces of this machine, a rank on each. On "
               "the wire: bytes that their\ncables carried for each that was counted in the program; the "
               "rest is headers and confirmations.\n",
               study->call->n_ranks);
    else
        printf("Links: by the model (%s): a step between ranks of this machine, and beside it the busiest "
               "rank's bytes\nby the rate, and %g us for each of its messages.\n",
               study->why_not, study->call->latency_us);
}

/* Which is first at that loss. */
static void say_first(const TrafficStudy *study, Arena *arena) {
    double loss = common_loss(study);
    for (int r = 0; r < study->rates.n; r++) {
        const TrafficWay *best = exact_of(study);
        for (int i = 1; i < study->n_ways; i++)
            if (seconds_to(&study->way[i], r, loss, arena) < seconds_to(best, r, loss, arena))
                best = &study->way[i];
        printf("At %s %s comes to a loss of %.4g first: in %.1f s, none in %.1f s.\n",
               rate_text(study, r).text, best->name, loss, seconds_to(best, r, loss, arena),
               seconds_to(exact_of(study), r, loss, arena));
    }
}

void traffic_print(const TrafficStudy *study) {
    Arena arena = {0};
    printf("%" PRId64 " ranks, each on a host; %" PRId64 " steps; bytes are those of the busiest rank\n\n",
           study->call->n_ranks, study->call->n_steps);
    print_bytes(study);
    print_times(study, &arena);
    say_links(study);
    say_first(study, &arena);
    arena_free(&arena);
}

/* ---- Pictures */

/* The points at which the loss was measured. */
static PlotSeries curve_of(const TrafficWay *way, StepCosts costs, Arena *arena) {
    int64_t n_points = way->curve.n;
    double *all = ARENA_ARRAY(arena, double, n_points), *x = ARENA_ARRAY(arena, double, n_points),
           *y = ARENA_ARRAY(arena, double, n_points);
    int n = 0;
    traffic_way_costs(way, costs.of, all);
    for (int64_t i = 0; i < n_points; i++) {
        if (isnan(way->curve.y[CURVE_VALIDATION][i])) continue;
        x[n] = all[i];
        y[n++] = way->curve.y[CURVE_VALIDATION][i];
    }
    return (PlotSeries){way->name, PLOT_LINES, x, y, n};
}

/* Below every picture: how the links came in, and the machine. */
static const char *note_of(const TrafficStudy *study, bool has_links, Arena *arena) {
    const char *links = study->is_measured ? arena_printf(arena, "steps timed on %d network namespaces",
                                                          (int)study->call->n_ranks)
                                           : "links modelled";
    const char *who = format_things(study->call->n_ranks, "rank").text;
    who = has_links ? arena_printf(arena, "%s, %s", who, links) : arena_strdup(arena, who);
    return machine_note(arena, who, (int)study->call->n_ranks, study->output.note);
}

static Status draw_bytes(const TrafficStudy *study, Arena *arena, Error *error) {
    PlotSeries series[TRAFFIC_MOST_WAYS];
    for (int i = 0; i < study->n_ways; i++)
        series[i] = curve_of(&study->way[i], bytes_of(study, &study->way[i], 1e6), arena);
    Plot plot = {.title = "Loss against bytes sent",
                 .x_label = "sent by the busiest rank (MB)",
                 .y_label = "validation loss",
                 .x_log = true,
                 .y_log = true,
                 .series = series,
                 .n_series = study->n_ways,
                 .note = note_of(study, false, arena)};
    return lab_draw(&study->output, &plot, "traffic-bytes", error);
}

static Status draw_time(const TrafficStudy *study, int r, Arena *arena, Error *error) {
    PlotSeries series[TRAFFIC_MOST_WAYS];
    char name[48];
    for (int i = 0; i < study->n_ways; i++)
        series[i] = curve_of(&study->way[i], seconds_of(&study->way[i], r), arena);
    Plot plot = {.title = arena_printf(arena, "Loss against time on links of %s", rate_text(study, r).text),
                 .x_label = "time of the steps (s)",
                 .y_label = "validation loss",
                 .y_log = true,
                 .series = series,
                 .n_series = study->n_ways,
                 .note = note_of(study, true, arena)};
    snprintf(name, sizeof name, "traffic-time-%" PRId64, study->rates.values[r]);
    return lab_draw(&study->output, &plot, name, error);
}

static Status draw_steps(const TrafficStudy *study, Arena *arena, Error *error) {
    PlotSeries series[TRAFFIC_MOST_RATES];
    const char *names[TRAFFIC_MOST_WAYS];
    double *x = ARENA_ARRAY(arena, double, study->n_ways);
    for (int i = 0; i < study->n_ways; i++) {
        names[i] = study->way[i].name;
        x[i] = i;
    }
    for (int r = 0; r < study->rates.n; r++) {
        double *y = ARENA_ARRAY(arena, double, study->n_ways);
        for (int i = 0; i < study->n_ways; i++) y[i] = study->way[i].step_ms[r];
        series[r] =
            (PlotSeries){arena_strdup(arena, rate_text(study, r).text), PLOT_POINTS, x, y, study->n_ways};
    }
    Plot plot = {.title = "A compressed step on links of several rates",
                 .x_label = "--compress",
                 .y_label = "step (ms)",
                 .y_log = true,
                 .series = series,
                 .n_series = study->rates.n,
                 .x_names = names,
                 .shows_values = true,
                 .note = note_of(study, true, arena)};
    return lab_draw(&study->output, &plot, "traffic-step", error);
}

Status traffic_draw(const TrafficStudy *study, Error *error) {
    Arena arena = {0};
    draw_bytes(study, &arena, error);
    for (int r = 0; r < study->rates.n && error->status == STATUS_OK; r++) draw_time(study, r, &arena, error);
    if (error->status == STATUS_OK) draw_steps(study, &arena, error);
    arena_free(&arena);
    return error->status;
}

/* ---- JSON */

static json_t *links_json(const TrafficStudy *study, const TrafficWay *way) {
    json_t *links = json_array();
    for (int r = 0; r < study->rates.n; r++)
        json_array_append_new(links,
                              json_pack("{s:I,s:o,s:o}", "mbit_per_s", (json_int_t)study->rates.values[r],
                                        "step_ms", json_make_number(way->step_ms[r]), "exact_step_ms",
                                        json_make_number(way->exact_step_ms[r])));
    return links;
}

static json_t *curve_json(const TrafficStudy *study, const TrafficWay *way, Arena *arena) {
    PlotSeries curve = curve_of(way, bytes_of(study, way, 1.0), arena);
    PlotSeries steps = curve_of(way, (StepCosts){{1.0, 1.0, 1.0}}, arena);
    json_t *points = json_array();
    for (int i = 0; i < curve.n; i++)
        json_array_append_new(points, json_pack("{s:o,s:o,s:o}", "step", json_make_number(steps.x[i]),
                                                "bytes", json_make_number(curve.x[i]), "val_loss",
                                                json_make_number(curve.y[i])));
    return points;
}

json_t *traffic_json(const TrafficStudy *study) {
    Arena arena = {0};
    json_t *ways = json_array();
    for (int i = 0; i < study->n_ways; i++) {
        const TrafficWay *way = &study->way[i];
        json_array_append_new(
            ways, json_pack("{s:s,s:o,s:o,s:o,s:o,s:I,s:I,s:o,s:o,s:o}", "compress", way->name, "bytes",
                            json_make_number(way->n_bytes), "messages", json_make_number(way->n_messages),
                            "all_bytes", json_make_number(way->n_all_bytes), "wire_bytes",
                            json_make_number(way->n_wire_bytes), "compressed_steps",
                            (json_int_t)n_compressed(way), "local_steps", (json_int_t)n_local(way),
                            "val_loss", json_make_number(traffic_way_loss(way)), "links",
                            links_json(study, way), "curve", curve_json(study, way, &arena)));
    }
    arena_free(&arena);
    return json_pack("{s:s,s:s,s:I,s:I,s:o}", "command", "lab traffic", "links",
                     study->is_measured ? "namespaces" : "model", "ranks", (json_int_t)study->call->n_ranks,
                     "steps", (json_int_t)study->call->n_steps, "ways", ways);
}
