/* The tables, pictures and JSON of pgpt lab collectives. Times are in microseconds everywhere. */
#include "cli/lab/lab_collectives.h"

#include "base/text/format.h"
#include "lab/collectives/collective_case.h"
#include "lab/collectives/formula.h"
#include "lab/picture/machine_note.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* ---- Costs */

static FormatText number_of(int64_t value) {
    FormatText text;
    snprintf(text.text, sizeof text.text, "%lld", (long long)value);
    return text;
}

typedef struct {
    int n_ranks;
    double n_bytes;
} Case;

/* What was counted, and the formula in words: = where it says the same here, ~ where this N is too small or
 * no power of two for it. */
static void print_cell(const Case *one, int64_t counted, int64_t exact, bool is_bytes, const char *formula,
                       int width) {
    char text[96];
    bool holds = fabs(collective_formula(formula, one->n_bytes, one->n_ranks) - (double)counted) < 0.5;
    snprintf(text, sizeof text, "%s %s %s%s",
             is_bytes ? format_bytes((uint64_t)counted).text : number_of(counted).text, holds ? "=" : "~",
             formula, counted == exact ? "" : " (NOT WHAT IT SHOULD BE)");
    printf("  %-*s", width, text);
}

static void print_cost(const Case *one, const CollectiveAlgorithm *algorithm, bool is_first,
                       const CollectiveCost *counted, const CollectiveCost *exact) {
    const CommCost *is = &counted->cost, *wanted = &exact->cost;
    printf("%-14s %-18s", is_first ? collective_kind_name(algorithm->kind) : "", algorithm->name);
    print_cell(one, is->n_steps, wanted->n_steps, false, algorithm->steps, 17);
    print_cell(one, is->peak_bytes, wanted->peak_bytes, true, algorithm->peak, 31);
    print_cell(one, is->total_bytes, wanted->total_bytes, true, algorithm->total, 32);
    print_cell(one, counted->step_bytes, exact->step_bytes, true, algorithm->step, 1);
    printf("\n");
}

Status collectives_print_costs(const int *kinds, int n_kinds, int n_ranks, int64_t n_bytes, Error *error) {
    const CollectiveAlgorithm *algorithms[COLLECTIVE_MAX_ALGORITHMS];
    Case one = {n_ranks, (double)n_bytes};
    printf("What each costs on N = %d ranks with vectors of n = %s: counted message by message = the formula"
           "\n(as lectures write it, for N a power of two above 4; ~ where this N gives another number)\n\n",
           n_ranks, format_bytes((uint64_t)n_bytes).text);
    printf("%-14s %-18s  %-17s  %-31s  %-32s  %s\n", "collective", "algorithm", "steps",
           "bytes of the busiest rank", "total bytes", "peak bandwidth, bytes a step");
    for (int k = 0; k < n_kinds; k++) {
        int n_algorithms = collective_algorithms(kinds[k], algorithms);
        for (int i = 0; i < n_algorithms; i++) {
            CollectiveCost counted, formula;
            TRY(collective_case_count(algorithms[i], n_bytes, n_ranks, &counted, error));
            TRY(collective_algorithm_cost(algorithms[i], n_ranks, n_bytes / 4, 4, &formula, error));
            print_cost(&one, algorithms[i], i == 0, &counted, &formula);
        }
    }
    printf("\n");
    return STATUS_OK;
}

/* ---- Measured and expected */

static FormatText rate(double seconds_per_byte) {
    return seconds_per_byte > 0 ? format_rate(1.0 / seconds_per_byte, "B/s") : (FormatText){"any rate"};
}

static FormatText moment(double seconds) {
    FormatText text;
    snprintf(text.text, sizeof text.text, "%.2f us", 1e6 * seconds);
    return text;
}

static void print_link(const char *where, const Link *link) {
    printf("  messages %s: ", where);
    if (link->border > 0)
        printf("%s + bytes at %s up to %s; ", moment(link->eager.alpha).text, rate(link->eager.beta).text,
               format_bytes((uint64_t)link->border).text);
    printf("%s + bytes at %s%s; short ones every %s\n", moment(link->asking.alpha).text,
           rate(link->asking.beta).text, link->border > 0 ? " above" : "", moment(link->gap).text);
}

/* The ranks of the host that has most. */
static int ranks_of_a_host(const Machine *machine) {
    int most = 0;
    for (int host = 0; host < machine->n_hosts; host++) {
        int n = 0;
        for (int rank = 0; rank < machine->n_ranks; rank++) n += machine->host[rank] == host;
        if (n > most) most = n;
    }
    return most;
}

static bool shares_cores(const Machine *machine) {
    return ranks_of_a_host(machine) > machine->n_cores;
}

static void print_machine(const Machine *machine) {
    bool has_pairs = machine->n_ranks > machine->n_hosts;
    printf("%d ranks on %s, %s each%s; fitted to this machine:\n", machine->n_ranks,
           format_things(machine->n_hosts, "host").text, format_things(machine->n_cores, "core").text,
           shares_cores(machine) ? ", which they share" : "");
    if (has_pairs) print_link("within a host", &machine->within);
    if (machine->n_hosts > 1) print_link("between hosts", &machine->across);
    printf("  addition: bytes at %s; a vector above %s: %.3f ns a byte more\n", rate(machine->gamma).text,
           format_bytes((uint64_t)machine->cache_bytes).text, 1e9 * machine->delta);
}

void collectives_print_result(const CollectivesResult *result) {
    print_machine(&result->machine);
    printf("\n%-14s %10s  %-18s %14s %14s %15s %14s\n", "collective", "size", "algorithm", "measured us",
           "model us", "measured/model", "library us");
    for (int i = 0; i < result->n_rows; i++) {
        const CollectivesRow *row = &result->rows[i];
        int n_ways = collectives_n_ways(row->kind), library = collectives_n_algorithms(row->kind);
        for (int way = 0; way < n_ways; way++) {
            printf("%-14s %10s  %-18s %14.2f", collective_kind_name(row->kind),
                   format_bytes((uint64_t)row->n_bytes).text, collectives_name(row->kind, way),
                   1e6 * row->seconds[way]);
            if (isnan(row->model[way])) printf(" %14s %15s", "", "");
            else printf(" %14.2f %15.2f", 1e6 * row->model[way], row->seconds[way] / row->model[way]);
            if (library < n_ways) printf(" %14.2f\n", 1e6 * row->seconds[library]);
            else printf("\n");
        }
        printf("\n");
    }
}

/* ---- Pictures */

typedef struct {
    double x[COLLECTIVES_MAX_SIZES], time[COLLECTIVES_MAX_WAYS][COLLECTIVES_MAX_SIZES],
        ratio[COLLECTIVES_MAX_WAYS][COLLECTIVES_MAX_SIZES], one[COLLECTIVES_MAX_SIZES];
    int n;
} Curves;

static void collect(const CollectivesResult *result, int kind, Curves *curves) {
    curves->n = 0;
    for (int i = 0; i < result->n_rows && curves->n < COLLECTIVES_MAX_SIZES; i++) {
        const CollectivesRow *row = &result->rows[i];
        if (row->kind != kind) continue;
        int n = curves->n++;
        curves->x[n] = (double)row->n_bytes;
        curves->one[n] = 1;
        for (int way = 0; way < collectives_n_ways(kind); way++) {
            curves->time[way][n] = 1e6 * row->seconds[way];
            curves->ratio[way][n] = row->seconds[way] / row->model[way];
        }
    }
}

static const char *title_of(Arena *arena, int kind, const Machine *machine) {
    char name[32];
    snprintf(name, sizeof name, "%s", collective_kind_name(kind));
    name[0] = (char)toupper((unsigned char)name[0]);
    if (machine->n_hosts > 1)
        return arena_printf(arena, "%s on %d ranks of %d hosts", name, machine->n_ranks, machine->n_hosts);
    if (shares_cores(machine))
        return arena_printf(arena, "%s on %d ranks that share %s", name, machine->n_ranks,
                            format_things(machine->n_cores, "core").text);
    return arena_printf(arena, "%s on %d ranks", name, machine->n_ranks);
}

static const char *file_of(Arena *arena, int kind, int n_ranks) {
    if (kind == COMM_ALL_REDUCE) return arena_printf(arena, "collectives-%d", n_ranks);
    char *name = arena_printf(arena, "collectives-%d-%s", n_ranks, collective_kind_name(kind));
    for (char *c = name; *c; c++) *c = *c == '/' ? '-' : *c;
    return name;
}

static Status draw_kind(const LabOutput *output, const CollectivesResult *result, int kind, Arena *arena,
                        Error *error) {
    Curves curves;
    PlotSeries above[COLLECTIVES_MAX_WAYS], below[COLLECTIVES_MAX_WAYS + 1];
    const Machine *machine = &result->machine;
    int n_ways = collectives_n_ways(kind), n_algorithms = collectives_n_algorithms(kind);
    collect(result, kind, &curves);
    if (curves.n == 0) return STATUS_OK;
    for (int way = 0; way < n_ways; way++)
        above[way] =
            (PlotSeries){collectives_name(kind, way), PLOT_LINES, curves.x, curves.time[way], curves.n};
    for (int way = 0; way < n_algorithms; way++)
        below[way] =
            (PlotSeries){collectives_name(kind, way), PLOT_LINES, curves.x, curves.ratio[way], curves.n};
    below[n_algorithms] = (PlotSeries){"", PLOT_DASHED, curves.x, curves.one, curves.n};
    const char *who =
        arena_printf(arena, "%d ranks on %s", machine->n_ranks, format_things(machine->n_hosts, "host").text);
    Plot ratios = {.x_label = "vector (bytes)",
                   .y_label = "measured by model",
                   .x_log = true,
                   .y_log = true,
                   .series = below,
                   .n_series = n_algorithms + 1};
    Plot plot = {.title = title_of(arena, kind, machine),
                 .x_label = "vector (bytes)",
                 .y_label = "time (µs)",
                 .x_log = true,
                 .y_log = true,
                 .note = machine_note(arena, who, ranks_of_a_host(machine), output->note),
                 .series = above,
                 .n_series = n_ways,
                 .below = &ratios};
    return lab_draw(output, &plot, file_of(arena, kind, machine->n_ranks), error);
}

Status collectives_draw(const LabOutput *output, const CollectivesResult *result, Error *error) {
    Arena arena = {0};
    for (int i = 0; i < COLLECTIVES_N_KINDS && error->status == STATUS_OK; i++)
        draw_kind(output, result, collectives_kinds[i], &arena, error);
    arena_free(&arena);
    return error->status;
}

/* ---- JSON */

static json_t *cost_json(const CollectiveAlgorithm *algorithm, int64_t n_bytes, const CollectiveCost *cost,
                         const CollectiveCost *formula) {
    json_t *object = json_object();
    json_object_set_new(object, "collective", json_string(collective_kind_name(algorithm->kind)));
    json_object_set_new(object, "algorithm", json_string(algorithm->name));
    json_object_set_new(object, "bytes", json_integer(n_bytes));
    json_object_set_new(object, "steps", json_integer(cost->cost.n_steps));
    json_object_set_new(object, "busiest_bytes", json_integer(cost->cost.peak_bytes));
    json_object_set_new(object, "total_bytes", json_integer(cost->cost.total_bytes));
    json_object_set_new(object, "step_bytes", json_integer(cost->step_bytes));
    json_object_set_new(object, "steps_by_formula", json_integer(formula->cost.n_steps));
    json_object_set_new(object, "busiest_bytes_by_formula", json_integer(formula->cost.peak_bytes));
    json_object_set_new(object, "total_bytes_by_formula", json_integer(formula->cost.total_bytes));
    json_object_set_new(object, "step_bytes_by_formula", json_integer(formula->step_bytes));
    return object;
}

static Status costs_json(const CollectivesResult *result, json_t *costs, Error *error) {
    const CollectiveAlgorithm *algorithms[COLLECTIVE_MAX_ALGORITHMS];
    for (int k = 0; k < result->n_rows; k++) {
        const CollectivesRow *row = &result->rows[k];
        int n_algorithms = collective_algorithms(row->kind, algorithms);
        for (int i = 0; i < n_algorithms; i++) {
            CollectiveCost cost, formula;
            TRY(collective_case_count(algorithms[i], row->n_bytes, result->machine.n_ranks, &cost, error));
            TRY(collective_algorithm_cost(algorithms[i], result->machine.n_ranks, row->n_bytes / 4, 4,
                                          &formula, error));
            json_array_append_new(costs, cost_json(algorithms[i], row->n_bytes, &cost, &formula));
        }
    }
    return STATUS_OK;
}

Status collectives_result_json(const CollectivesResult *result, json_t **object, Error *error) {
    char why[200];
    json_t *run = json_object(), *sizes = json_array(), *costs = json_array();
    for (int k = 0; k < result->n_rows; k++)
        json_array_append_new(sizes, collectives_row_json(&result->rows[k]));
    json_object_set_new(run, "machine", collectives_machine_json(&result->machine));
    json_object_set_new(run, "sizes", sizes);
    costs_json(result, costs, error);
    json_object_set_new(run, "costs", costs);
    json_object_set_new(run, "disturbed",
                        collectives_disturbed(result, why, sizeof why) ? json_make_text(why) : json_null());
    *object = run;
    return error->status;
}
