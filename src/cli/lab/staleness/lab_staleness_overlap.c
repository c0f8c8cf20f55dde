/* The third part of pgpt lab staleness: ranks are lost in the middle of a run, and their share of the data
 * with them, unless it lies also at their neighbours. Simulated in one process (lab/staleness/overlap.h);
 * which ranks are lost is drawn several times, since neighbours that are lost together are what overlap does
 * not help against. */
#include "cli/lab/staleness/lab_staleness.h"

#include "base/text/format.h"
#include "lab/picture/machine_note.h"
#include "lab/staleness/overlap.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

const OptionSpec staleness_overlap_specs[] = {
    OPTION_STRING("overlap", OverlapCall, overlaps, "0,1,2", "LIST",
                  "at how many neighbours each share of the data lies too"),
    OPTION_INT("nodes", OverlapCall, n_nodes, 8, 2, OVERLAP_MAX_RANKS, "ranks, simulated; each has a share"),
    OPTION_INT("lose", OverlapCall, n_lost, 2, 1, OVERLAP_MAX_RANKS - 1,
               "of the picture of loss against steps: ranks that are lost (the table has all numbers)"),
    OPTION_INT("overlap-steps", OverlapCall, n_steps, 1000, OVERLAP_MARKS, 10000000,
               "steps of each run; ranks are lost after the first tenth"),
    OPTION_INT("draws", OverlapCall, n_draws, 20, 1, 10000, "of which ranks are lost; means are shown"),
    OPTION_FLOAT("skew", OverlapCall, skew, 0.8, 0.0, 1.0,
                 "how much shares differ: part of a point's features that only its share has; 0: all alike"),
    OPTION_END,
};

enum {
    LOST_PART = 10,
    BATCH = 8,
    WEIGHTS_OF_SHARE = 256,
    POINTS_OF_SHARE = 4000,
    HELD_OUT = 4000,
    FEATURES = 16
};
static const float LR = 1.0f;

/* Means over the draws. */
typedef struct {
    double loss[OVERLAP_MARKS + 1], step[OVERLAP_MARKS + 1];
    double n_shares_lost, busiest;
} Cell;

typedef struct {
    const StalenessStudy *study;
    LabList overlaps;
    int n_nodes;
    LogisticPoints points;
    Cell *cells; /* (overlaps, ranks lost from 0 to n_nodes - 1) */
} Study;

static Cell *cell_of(const Study *study, int overlap, int n_lost) {
    return &study->cells[overlap * study->n_nodes + n_lost];
}

/* ---- Running */

static Status run_cell(Study *study, int overlap, int n_lost, Error *error) {
    const OverlapCall *call = &study->study->values->overlap;
    Cell *cell = cell_of(study, overlap, n_lost);
    int64_t n_draws = n_lost > 0 ? call->n_draws : 1;
    for (int64_t draw = 0; draw < n_draws; draw++) {
        OverlapRun run = {.points = &study->points,
                          .n_ranks = study->n_nodes,
                          .overlap = (int)study->overlaps.values[overlap],
                          .n_lost = n_lost,
                          .n_steps = call->n_steps,
                          .lose_at = call->n_steps / LOST_PART,
                          .batch = BATCH,
                          .lr = LR,
                          .draw = (uint64_t)draw};
        OverlapResult result;
        TRY(overlap_run(&run, &result, error));
        for (int i = 0; i <= OVERLAP_MARKS; i++) {
            cell->step[i] = result.step[i];
            cell->loss[i] += result.loss[i] / (double)n_draws;
        }
        cell->n_shares_lost += (double)result.n_shares_lost / (double)n_draws;
        cell->busiest += (double)result.busiest / (double)n_draws;
    }
    return STATUS_OK;
}

/* Of many nodes not every number is tried: up to 16 of them, evenly. */
static bool is_tried(const Study *study, int n_lost) {
    int every = (study->n_nodes + 15) / 16;
    return n_lost % every == 0 || n_lost == study->n_nodes - 1 ||
           n_lost == (int)study->study->values->overlap.n_lost;
}

static Status run_all(Study *study, Error *error) {
    const OverlapCall *call = &study->study->values->overlap;
    LogisticSetup setup = {.n_weights = (int64_t)WEIGHTS_OF_SHARE * study->n_nodes,
                           .n_nonzeros = FEATURES,
                           .n_points = (int64_t)POINTS_OF_SHARE * study->n_nodes,
                           .n_held_out = HELD_OUT,
                           .n_topics = study->n_nodes,
                           .own = call->skew,
                           .seed = 1};
    TRY(logistic_draw(&setup, &study->points, error));
    log_note(&study->study->output->log, "overlap: %d nodes, simulated; %s of which are lost", study->n_nodes,
             format_things(call->n_draws, "draw").text);
    for (int i = 0; i < study->overlaps.n; i++)
        for (int n_lost = 0; n_lost < study->n_nodes; n_lost++)
            if (is_tried(study, n_lost)) TRY(run_cell(study, i, n_lost, error));
    return STATUS_OK;
}

/* ---- What came of it */

static const char *name_of(const Study *study, int overlap) {
    int64_t k = study->overlaps.values[overlap];
    return k ? arena_printf(study->study->arena, "overlap %" PRId64, k) : "no overlap";
}

static void print_table(const Study *study) {
    const OverlapCall *call = &study->study->values->overlap;
    double whole = cell_of(study, 0, 0)->loss[OVERLAP_MARKS];
    printf("\nOverlap: %d nodes, simulated in one process; lost after step %" PRId64 " of %" PRId64
           "; skew %g; the true weights have a loss of %.4f\n\n",
           study->n_nodes, call->n_steps / LOST_PART, call->n_steps, call->skew, study->points.best);
    printf("%-10s %6s %6s %12s %10s %10s %12s %14s\n", "", "space", "lost", "shares lost", "expected", "loss",
           "- none lost", "busiest rank");
    for (int i = 0; i < study->overlaps.n; i++) {
        for (int n_lost = 0; n_lost < study->n_nodes; n_lost++) {
            const Cell *cell = cell_of(study, i, n_lost);
            int overlap = (int)study->overlaps.values[i];
            if (!is_tried(study, n_lost)) continue;
            printf("%-10s %5dx %6d %12.2f %10.2f %10.4f %+12.4f %13.2fx\n", name_of(study, i), overlap + 1,
                   n_lost, cell->n_shares_lost, overlap_expected(study->n_nodes, overlap, n_lost),
                   cell->loss[OVERLAP_MARKS], cell->loss[OVERLAP_MARKS] - whole, cell->busiest);
        }
    }
    printf(
        "\nspace: of the data on a node. shares lost: no node has them any more; mean of %s, and what is expected of all choices.\n"
        "loss: at the end, of held-out points of all shares. busiest rank: shares that it computes after the loss, where it had one.\n",
        format_things(call->n_draws, "draw").text);
}

static const char *note_of(const Study *study) {
    const OverlapCall *call = &study->study->values->overlap;
    Arena *arena = study->study->arena;
    const char *note = study->study->output->note;
    const char *who = arena_printf(arena, "%d nodes simulated by 1 thread", study->n_nodes);
    return machine_note(arena, who, 1,
                        arena_printf(arena, "%s%sMeans of %s of which ranks are lost; shares differ: skew %g",
                                     note, *note ? ". " : "", format_things(call->n_draws, "draw").text,
                                     call->skew));
}

static Status draw_lost(const Study *study, PlotSeries *series, Error *error) {
    Arena *arena = study->study->arena;
    for (int i = 0; i < study->overlaps.n; i++) {
        double *x = ARENA_ARRAY(arena, double, study->n_nodes),
               *y = ARENA_ARRAY(arena, double, study->n_nodes);
        int n = 0;
        for (int n_lost = 0; n_lost < study->n_nodes; n_lost++) {
            if (!is_tried(study, n_lost)) continue;
            x[n] = n_lost;
            y[n++] = cell_of(study, i, n_lost)->loss[OVERLAP_MARKS];
        }
        series[i] = (PlotSeries){name_of(study, i), PLOT_LINES, x, y, n};
    }
    Plot plot = {.title =
                     arena_printf(arena, "Loss after losing ranks of %d, and their data", study->n_nodes),
                 .x_label = "ranks lost after a tenth of the steps",
                 .y_label = "loss of held-out points at the end (nats)",
                 .note = note_of(study),
                 .series = series,
                 .n_series = study->overlaps.n};
    return lab_draw(study->study->output, &plot, "overlap", error);
}

static Status draw_steps(const Study *study, PlotSeries *series, Error *error) {
    Arena *arena = study->study->arena;
    int n_lost = (int)study->study->values->overlap.n_lost, n_series = 0;
    const Cell *whole = cell_of(study, 0, 0);
    for (int i = 0; i < study->overlaps.n; i++) {
        const Cell *cell = cell_of(study, i, n_lost);
        series[n_series++] =
            (PlotSeries){name_of(study, i), PLOT_LINES, cell->step, cell->loss, OVERLAP_MARKS + 1};
    }
    series[n_series++] = (PlotSeries){"none lost", PLOT_DASHED, whole->step, whole->loss, OVERLAP_MARKS + 1};
    Plot plot = {.title =
                     arena_printf(arena, "%d of %d ranks lost after step %" PRId64 ", with their data",
                                  n_lost, study->n_nodes, study->study->values->overlap.n_steps / LOST_PART),
                 .x_label = "step",
                 .y_label = "loss of held-out points (nats)",
                 .y_log = true, /* does not begin at zero */
                 .note = note_of(study),
                 .series = series,
                 .n_series = n_series};
    return lab_draw(study->study->output, &plot, "overlap-steps", error);
}

static void add_json(const Study *study) {
    json_t *list = json_array();
    for (int i = 0; i < study->overlaps.n; i++) {
        for (int n_lost = 0; n_lost < study->n_nodes; n_lost++) {
            const Cell *cell = cell_of(study, i, n_lost);
            int overlap = (int)study->overlaps.values[i];
            if (!is_tried(study, n_lost)) continue;
            json_t *entry = json_object();
            json_object_set_new(entry, "overlap", json_integer(overlap));
            json_object_set_new(entry, "lost_ranks", json_integer(n_lost));
            json_object_set_new(entry, "lost_shares", json_make_number(cell->n_shares_lost));
            json_object_set_new(entry, "expected_lost_shares",
                                json_make_number(overlap_expected(study->n_nodes, overlap, n_lost)));
            json_object_set_new(entry, "loss", json_make_number(cell->loss[OVERLAP_MARKS]));
            json_object_set_new(entry, "busiest", json_make_number(cell->busiest));
            json_array_append_new(list, entry);
        }
    }
    json_object_set_new(study->study->json, "nodes", json_integer(study->n_nodes));
    json_object_set_new(study->study->json, "overlap", list);
}

static Status show(const Study *study, Error *error) {
    PlotSeries series[LAB_LIST_MAX + 1];
    print_table(study);
    fflush(stdout);
    TRY(draw_lost(study, series, error));
    TRY(draw_steps(study, series, error));
    add_json(study);
    return STATUS_OK;
}

static Status read_overlaps(const StalenessStudy *study, LabList *list, Error *error) {
    const OverlapCall *call = &study->values->overlap;
    return lab_read_list("--overlap", call->overlaps, 0, call->n_nodes - 1, false, list, error);
}

Status staleness_overlap_check(const StalenessStudy *study, Error *error) {
    const OverlapCall *call = &study->values->overlap;
    LabList overlaps;
    TRY(read_overlaps(study, &overlaps, error));
    if (call->n_lost >= call->n_nodes)
        return error_user(error, "--lose %" PRId64 " of --nodes %" PRId64 " leaves nobody; lose fewer",
                          call->n_lost, call->n_nodes);
    return STATUS_OK;
}

Status staleness_overlap(const StalenessStudy *whole, Error *error) {
    if (!whole->launch->is_root) return STATUS_OK; /* one process is enough to simulate */
    Study study = {.study = whole, .n_nodes = (int)whole->values->overlap.n_nodes};
    TRY(read_overlaps(whole, &study.overlaps, error));
    study.cells = calloc((size_t)study.overlaps.n * (size_t)study.n_nodes, sizeof *study.cells);
    if (!study.cells) error_failed(error, "no memory for %d nodes", study.n_nodes);
    else if (run_all(&study, error) == STATUS_OK) show(&study, error);
    logistic_free(&study.points);
    free(study.cells);
    return error->status;
}
