/* The tables, pictures and JSON of pgpt lab network. */
#include "cli/lab/lab_network.h"

#include "base/text/format.h"
#include "lab/picture/machine_note.h"

#include <math.h>
#include <stdio.h>

static double efficiency(const NetworkStudy *study, double seconds) {
    return network_compute(&study->step) / seconds;
}

/* Where the crossover lies, in words. */
static void print_crossover(double rate) {
    if (isnan(rate)) printf("messages take longer than computation at any bandwidth: latency alone does\n");
    else if (rate <= 0) printf("messages take as long as computation below 1 Mbit/s a link\n");
    else printf("messages take as long as computation at %s a link\n", format_rate(rate, "bit/s").text);
}

/* ---- Tables */

static void print_step(const NetworkStudy *study) {
    const NetworkStep *step = &study->step;
    printf("A step: %.2f ms of computation (forward %.2f, backward %.2f, update %.2f), %s of gradients in %s"
           "%s\nSummed by %s on %s\n",
           1e3 * network_compute(step), 1e3 * step->forward_s, 1e3 * step->backward_s, 1e3 * step->update_s,
           format_bytes((uint64_t)step->gradient_bytes).text,
           format_things(network_n_buckets(step), "bucket").text,
           study->step_is_given ? ", as given" : ", measured here on one core", study->algorithm->name,
           format_things(study->call->n_hosts, "host").text);
}

static void print_times(const NetworkTimes *times, const NetworkStudy *study) {
    printf(" %12.2f %12.2f %10.3f %12.2f %10.3f\n", 1e3 * times->comm_s, 1e3 * times->blocking_s,
           efficiency(study, times->blocking_s), 1e3 * times->overlapped_s,
           efficiency(study, times->overlapped_s));
}

static void print_head(const char *first) {
    printf("\n%-12s %14s %12s %12s %10s %12s %10s\n", first, "link", "messages ms", "blocking ms",
           "efficiency", "overlap ms", "efficiency");
}

static void print_model(const NetworkStudy *study) {
    print_head("links");
    for (int links = 0; links < study->call->n_links; links++) {
        for (int i = 0; i < study->rates.n; i++) {
            printf("%-12d %14s", links + 1, format_rate(1e6 * (double)study->rates.values[i], "bit/s").text);
            print_times(&study->times[links][i], study);
        }
        printf("%-12d ", links + 1);
        print_crossover(study->crossover[links]);
    }
    print_head("latency us");
    for (int k = 0; k < study->latencies.n; k++) {
        for (int i = 0; i < study->rates.n; i++) {
            printf("%-12lld %14s", (long long)study->latencies.values[k],
                   format_rate(1e6 * (double)study->rates.values[i], "bit/s").text);
            print_times(&study->late[k][i], study);
        }
        printf("%-12lld ", (long long)study->latencies.values[k]);
        print_crossover(study->late_crossover[k]);
    }
}

/* The model of what was measured: two hosts, the latency that was found. */
static Network found_network(const NetworkStudy *study, const NamespacesResult *measured) {
    Network network = network_of(study, 1, 1e6 * measured->latency_s, 1e-6 * measured->rate);
    network.n_hosts = 2;
    return network;
}

static void print_measured(const NetworkStudy *study) {
    if (study->n_measured == 0) {
        printf("\nMeasured: nothing%s%s\n", *study->why_not ? "; " : "", study->why_not);
        return;
    }
    printf("\nMeasured between two network namespaces (computation is a pause of its length)\n"
           "%14s %12s %14s %12s %10s %12s %10s\n",
           "link", "latency us", "found", "blocking ms", "efficiency", "overlap ms", "efficiency");
    for (int i = 0; i < study->n_measured; i++) {
        const NamespacesResult *result = &study->measured[i];
        printf("%14s %12.1f %14s", format_rate(result->rate, "bit/s").text, 1e6 * result->latency_s,
               format_rate(result->found_rate, "bit/s").text);
        if (isnan(result->blocking_s)) printf("   (a step would take too long)\n");
        else
            printf(" %12.2f %10.3f %12.2f %10.3f\n", 1e3 * result->blocking_s,
                   efficiency(study, result->blocking_s), 1e3 * result->overlapped_s,
                   efficiency(study, result->overlapped_s));
    }
}

static void print_messages(const NetworkStudy *study) {
    Network network = network_of(study, 1, study->call->latency_us, 1000);
    const NamespacesResult *result = study->n_measured ? &study->measured[study->n_measured - 1] : NULL;
    if (result) network = found_network(study, result);
    double n_bytes = NAMESPACES_MESSAGE_BYTES;
    printf("\n%s in so many messages, at %s and %.0f us (ms)\n%10s %12s %14s %14s", "1 MiB",
           format_rate(network.rate, "bit/s").text, 1e6 * network.latency_s, "messages", "of bytes",
           "one by one", "all at once");
    printf(result ? " %20s %20s\n" : "\n", "one by one measured", "at once measured");
    for (int i = 0; i < NAMESPACES_N_COUNTS; i++) {
        int n = namespaces_counts[i];
        printf("%10d %12s %14.3f %14.3f", n, format_bytes((uint64_t)(NAMESPACES_MESSAGE_BYTES / n)).text,
               1e3 * network_blocking(&network, n_bytes, n), 1e3 * network_at_once(&network, n_bytes, n));
        if (result) printf(" %20.3f %20.3f", 1e3 * result->one_by_one_s[i], 1e3 * result->at_once_s[i]);
        printf("\n");
    }
    printf("\nFew large messages, and none that is waited for: each one that is costs two latencies.\n");
}

void network_print(const NetworkStudy *study) {
    print_step(study);
    print_model(study);
    print_measured(study);
    print_messages(study);
}

/* ---- Pictures */

enum { MAX_SERIES = 2 * NETWORK_MAX_LINKS + 4 };

typedef struct {
    double x[LAB_LIST_MAX], y[2][LAB_LIST_MAX][LAB_LIST_MAX], compute[LAB_LIST_MAX];
    double measured_x[NETWORK_MAX_MEASURED], measured_y[2][NETWORK_MAX_MEASURED];
} Curves;

static const char *note_of(const NetworkStudy *study, bool has_marks, Arena *arena) {
    const char *what = study->step_is_given ? arena_printf(arena, "modelled: %s",
                                                           format_things(study->call->n_hosts, "host").text)
                                            : arena_printf(arena, "1 rank measured, %s modelled",
                                                           format_things(study->call->n_hosts, "host").text);
    if (has_marks) what = arena_printf(arena, "%s, marks: 2 namespaces", what);
    return machine_note(arena, what, 1, study->output.note);
}

static Plot efficiency_plot(const PlotSeries *series, int n_series) {
    return (Plot){.x_label = "bandwidth of a link (Mbit/s)",
                  .y_label = "efficiency",
                  .x_log = true,
                  .series = series,
                  .n_series = n_series};
}

/* Steps above, efficiency below: messages hidden behind the backward pass, and for one link also not. */
static Status draw_steps(const NetworkStudy *study, Curves *curves, Arena *arena, Error *error) {
    PlotSeries above[MAX_SERIES], below[MAX_SERIES];
    int n_links = (int)study->call->n_links, n_rates = study->rates.n, n = 0, n_measured = 0;
    bool has_measured = study->call->n_hosts == 2;
    for (int i = 0; i < n_rates; i++) {
        curves->x[i] = (double)study->rates.values[i];
        curves->compute[i] = 1e3 * network_compute(&study->step);
        for (int links = 0; links <= n_links; links++) { /* the last one: blocking */
            const NetworkTimes *times = &study->times[links < n_links ? links : 0][i];
            double seconds = links < n_links ? times->overlapped_s : times->blocking_s;
            curves->y[0][links][i] = 1e3 * seconds;
            curves->y[1][links][i] = efficiency(study, seconds);
        }
    }
    for (int links = 0; links <= n_links; links++, n++) {
        const char *name = links == n_links ? "1 link: blocking" : format_things(links + 1, "link").text;
        PlotStyle style = links == n_links ? PLOT_DASHED : PLOT_LINES;
        name = arena_strdup(arena, name);
        above[n] = (PlotSeries){name, style, curves->x, curves->y[0][links], n_rates};
        below[n] = (PlotSeries){name, style, curves->x, curves->y[1][links], n_rates};
    }
    for (int i = 0; i < study->n_measured && has_measured; i++) {
        const NamespacesResult *result = &study->measured[i];
        if (isnan(result->overlapped_s)) continue;
        curves->measured_x[n_measured] = 1e-6 * result->rate;
        curves->measured_y[0][n_measured] = 1e3 * result->overlapped_s;
        curves->measured_y[1][n_measured++] = efficiency(study, result->overlapped_s);
    }
    above[n] = (PlotSeries){"measured", PLOT_POINTS, curves->measured_x, curves->measured_y[0], n_measured};
    below[n] = (PlotSeries){"measured", PLOT_POINTS, curves->measured_x, curves->measured_y[1], n_measured};
    n += n_measured > 0;
    above[n] = (PlotSeries){"computation", PLOT_DASHED, curves->x, curves->compute, n_rates};
    Plot lower = efficiency_plot(below, n);
    Plot plot = {.title = arena_printf(
                     arena, "A step with %s of gradients on %d hosts, messages behind backward",
                     format_bytes((uint64_t)study->step.gradient_bytes).text, (int)study->call->n_hosts),
                 .x_label = lower.x_label,
                 .y_label = "step (ms)",
                 .x_log = true,
                 .y_log = true,
                 .note = note_of(study, n_measured > 0, arena),
                 .series = above,
                 .n_series = n + 1,
                 .below = &lower};
    return lab_draw(&study->output, &plot, "network-step", error);
}

static Status draw_latencies(const NetworkStudy *study, Curves *curves, Arena *arena, Error *error) {
    PlotSeries series[LAB_LIST_MAX];
    int n = study->latencies.n < 8 ? study->latencies.n : 8; /* colours */
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < study->rates.n; i++)
            curves->y[0][k][i] = efficiency(study, study->late[k][i].overlapped_s);
        series[k] = (PlotSeries){arena_printf(arena, "%lld µs", (long long)study->latencies.values[k]),
                                 PLOT_LINES, curves->x, curves->y[0][k], study->rates.n};
    }
    Plot plot = efficiency_plot(series, n);
    plot.title = arena_printf(arena, "Efficiency of %d hosts by the latency of a message, one link",
                              (int)study->call->n_hosts);
    plot.note = note_of(study, false, arena);
    return lab_draw(&study->output, &plot, "network-latency", error);
}

static Status draw_messages(const NetworkStudy *study, Arena *arena, Error *error) {
    double x[NAMESPACES_N_COUNTS], y[4][NAMESPACES_N_COUNTS];
    const NamespacesResult *result = study->n_measured ? &study->measured[study->n_measured - 1] : NULL;
    Network network =
        result ? found_network(study, result) : network_of(study, 1, study->call->latency_us, 1000);
    for (int i = 0; i < NAMESPACES_N_COUNTS; i++) {
        x[i] = namespaces_counts[i];
        y[0][i] = 1e3 * network_blocking(&network, NAMESPACES_MESSAGE_BYTES, x[i]);
        y[1][i] = 1e3 * network_at_once(&network, NAMESPACES_MESSAGE_BYTES, x[i]);
        y[2][i] = result ? 1e3 * result->one_by_one_s[i] : NAN;
        y[3][i] = result ? 1e3 * result->at_once_s[i] : NAN;
    }
    int n = NAMESPACES_N_COUNTS;
    PlotSeries series[] = {{"one by one", PLOT_POINTS, x, y[2], n},
                           {"all at once", PLOT_POINTS, x, y[3], n},
                           {"one by one: model", PLOT_DASHED, x, y[0], n},
                           {"all at once: model", PLOT_DASHED, x, y[1], n}};
    Plot plot = {.title = arena_printf(arena, "1 MiB in so many messages, %s and %.0f µs",
                                       format_rate(network.rate, "bit/s").text, 1e6 * network.latency_s),
                 .x_label = "messages",
                 .y_label = "time (ms)",
                 .x_log = true,
                 .y_log = true,
                 .note = machine_note(arena, result ? "2 namespaces of this machine" : "modelled", 2,
                                      study->output.note),
                 .series = result ? series : series + 2,
                 .n_series = result ? 4 : 2};
    return lab_draw(&study->output, &plot, "network-messages", error);
}

Status network_draw(const NetworkStudy *study, Error *error) {
    Arena arena = {0};
    Curves *curves = ARENA_NEW(&arena, Curves);
    if (draw_steps(study, curves, &arena, error) == STATUS_OK &&
        draw_latencies(study, curves, &arena, error) == STATUS_OK)
        draw_messages(study, &arena, error);
    arena_free(&arena);
    return error->status;
}

/* ---- JSON */

static json_t *times_json(const NetworkStudy *study, int n_links, double latency_us, int64_t rate_mbit,
                          const NetworkTimes *times) {
    json_t *object = json_object();
    json_object_set_new(object, "links", json_integer(n_links));
    json_object_set_new(object, "latency_us", json_make_number(latency_us));
    json_object_set_new(object, "rate_mbit", json_integer(rate_mbit));
    json_object_set_new(object, "messages_ms", json_make_number(1e3 * times->comm_s));
    json_object_set_new(object, "blocking_ms", json_make_number(1e3 * times->blocking_s));
    json_object_set_new(object, "overlapped_ms", json_make_number(1e3 * times->overlapped_s));
    json_object_set_new(object, "blocking_efficiency",
                        json_make_number(efficiency(study, times->blocking_s)));
    json_object_set_new(object, "overlapped_efficiency",
                        json_make_number(efficiency(study, times->overlapped_s)));
    return object;
}

static json_t *measured_json(const NetworkStudy *study, const NamespacesResult *result) {
    json_t *object = json_object(), *messages = json_array();
    json_object_set_new(object, "rate_mbit", json_make_number(1e-6 * result->rate));
    json_object_set_new(object, "found_rate_mbit", json_make_number(1e-6 * result->found_rate));
    json_object_set_new(object, "latency_us", json_make_number(1e6 * result->latency_s));
    json_object_set_new(object, "blocking_ms", json_make_number(1e3 * result->blocking_s));
    json_object_set_new(object, "overlapped_ms", json_make_number(1e3 * result->overlapped_s));
    json_object_set_new(object, "blocking_efficiency",
                        json_make_number(efficiency(study, result->blocking_s)));
    json_object_set_new(object, "overlapped_efficiency",
                        json_make_number(efficiency(study, result->overlapped_s)));
    for (int i = 0; i < NAMESPACES_N_COUNTS; i++) {
        json_t *entry = json_object();
        json_object_set_new(entry, "messages", json_integer(namespaces_counts[i]));
        json_object_set_new(entry, "one_by_one_ms", json_make_number(1e3 * result->one_by_one_s[i]));
        json_object_set_new(entry, "at_once_ms", json_make_number(1e3 * result->at_once_s[i]));
        json_array_append_new(messages, entry);
    }
    json_object_set_new(object, "messages", messages);
    return object;
}

json_t *network_json(const NetworkStudy *study) {
    const NetworkStep *step = &study->step;
    json_t *object = json_object(), *model = json_array(), *late = json_array(), *measured = json_array(),
           *crossover = json_array();
    for (int links = 0; links < study->call->n_links; links++) {
        for (int i = 0; i < study->rates.n; i++)
            json_array_append_new(model, times_json(study, links + 1, study->call->latency_us,
                                                    study->rates.values[i], &study->times[links][i]));
        json_array_append_new(crossover, json_make_number(1e-6 * study->crossover[links]));
    }
    for (int k = 0; k < study->latencies.n; k++)
        for (int i = 0; i < study->rates.n; i++)
            json_array_append_new(late, times_json(study, 1, (double)study->latencies.values[k],
                                                   study->rates.values[i], &study->late[k][i]));
    for (int i = 0; i < study->n_measured; i++)
        json_array_append_new(measured, measured_json(study, &study->measured[i]));
    json_object_set_new(object, "command", json_string("lab network"));
    json_object_set_new(object, "hosts", json_integer(study->call->n_hosts));
    json_object_set_new(object, "algorithm", json_string(study->algorithm->name));
    json_object_set_new(object, "compute_ms", json_make_number(1e3 * network_compute(step)));
    json_object_set_new(object, "gradient_bytes", json_integer(step->gradient_bytes));
    json_object_set_new(object, "buckets", json_integer(network_n_buckets(step)));
    json_object_set_new(object, "bandwidth", model);
    json_object_set_new(object, "crossover_mbit", crossover); /* of 1, 2, ... links; null: never */
    json_object_set_new(object, "latency", late);
    json_object_set_new(object, "measured", measured);
    json_object_set_new(object, "not_measured",
                        *study->why_not ? json_make_text(study->why_not) : json_null());
    json_object_set_new(object, "out", json_make_text(study->output.folder));
    return object;
}
