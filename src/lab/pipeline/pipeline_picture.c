/* A prediction becomes the events that a traced run has: an action around its instructions, here a single
 * one. What draws traces then needs to know nothing of predictions. */
#include "lab/pipeline/pipeline_picture.h"

#include "lab/launch/launch_child.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- In a terminal */

enum { NAME_COLUMNS = 11 };

/* The action of a stage at a moment; NULL: none. */
static const StepAction *action_at(const SchedulePrediction *prediction, int stage, double time, int *from) {
    const SimulatedAction *times = prediction->simulation.stage[stage].action;
    int n = prediction->lists.n_actions[stage];
    while (*from < n && times[*from].end <= time) (*from)++;
    return *from < n && times[*from].begin <= time ? &prediction->lists.actions[stage][*from] : NULL;
}

static char letter_of(const StepAction *action) {
    static const char letters[N_ACTION_KINDS + 1] = "FBUW";
    char letter = action ? letters[action->kind] : '.';
    return action && action->chunk ? (char)tolower(letter) : letter;
}

static char digit_of(const ScheduleLists *lists, const StepAction *action) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    if (!action || action->micro < 0) return ' ';
    return digits[lists_micro(lists, action) % (int)(sizeof digits - 1)];
}

/* The shortest action but updates: the length of a column, if they are not too many. */
static double unit_of(const SchedulePrediction *prediction) {
    double unit = INFINITY;
    for (int stage = 0; stage < prediction->lists.shape.n_stages; stage++) {
        for (int i = 0; i < prediction->lists.n_actions[stage]; i++) {
            const SimulatedAction *action = &prediction->simulation.stage[stage].action[i];
            bool is_update = prediction->lists.actions[stage][i].kind == ACTION_UPDATE;
            if (action->end > action->begin && !is_update) unit = fmin(unit, action->end - action->begin);
        }
    }
    return unit;
}

void pipeline_print(const SchedulePrediction *prediction, int n_columns, FILE *stream) {
    double length = prediction->simulation.makespan, unit = unit_of(prediction);
    int n_most = n_columns > NAME_COLUMNS + 20 ? n_columns - NAME_COLUMNS : 20;
    bool fits = length / unit <= n_most + 1e-6;
    bool is_cut = !fits && (prediction->lists.n_steps > 1 || length / unit > 1.5 * n_most);
    int n = fits ? (int)ceil(length / unit - 1e-6) : is_cut ? n_most - 4 : n_most;
    if (!fits && !is_cut) unit = length / n;
    for (int stage = 0; stage < prediction->lists.shape.n_stages; stage++) {
        for (int line = 0; line < 2; line++) {
            char name[NAME_COLUMNS + 16] = "";
            if (line == 0) snprintf(name, sizeof name, "stage %d", stage);
            fprintf(stream, "%-*s", NAME_COLUMNS, name);
            for (int column = 0, from = 0; column < n; column++) {
                const StepAction *action = action_at(prediction, stage, (column + 0.5) * unit, &from);
                fputc(line == 0 ? letter_of(action) : digit_of(&prediction->lists, action), stream);
            }
            fputs(is_cut ? " ...\n" : "\n", stream);
        }
    }
}

/* ---- As a timeline */

static TimelineKind kind_of(ActionKind kind) {
    static const TimelineKind kinds[N_ACTION_KINDS] = {
        [ACTION_FORWARD] = TIMELINE_FORWARD,
        [ACTION_BACKWARD] = TIMELINE_BACKWARD,
        [ACTION_UPDATE] = TIMELINE_UPDATE,
        [ACTION_WEIGHT_GRADIENT] = TIMELINE_WEIGHT_GRADIENT,
    };
    return kinds[kind];
}

static void add_stage(const SchedulePrediction *prediction, int stage, Timeline *timeline) {
    const ScheduleLists *lists = &prediction->lists;
    TimelineTrack *track = &timeline->track[stage];
    const char *name = arena_printf(&timeline->arena, "stage %d", stage);
    timeline->rank[stage] = (TimelineRank){.process = stage, .name = name};
    *track = (TimelineTrack){.process = stage, .name = name, .rank = stage, .first = timeline->n_events};
    for (int i = 0; i < lists->n_actions[stage]; i++) {
        const StepAction *action = &lists->actions[stage][i];
        const SimulatedAction *times = &prediction->simulation.stage[stage].action[i];
        if (!(times->end > times->begin)) continue;
        TimelineEvent event = {.begin_us = times->begin * 1e3,
                               .end_us = times->end * 1e3,
                               .name = action_name(action->kind),
                               .number = action->micro < 0 ? 0 : lists_micro(lists, action),
                               .track = stage,
                               .chunk = action->chunk,
                               .stage = stage,
                               .kind = TIMELINE_STEP};
        timeline->event[timeline->n_events++] = event;
        event.kind = kind_of(action->kind);
        timeline->event[timeline->n_events++] = event;
    }
    track->n = timeline->n_events - track->first;
}

Status pipeline_timeline(const SchedulePrediction *prediction, Timeline *timeline, Error *error) {
    int p = prediction->lists.shape.n_stages;
    size_t n = 0;
    double length_us = prediction->simulation.makespan * 1e3;
    *timeline = (Timeline){.uncertainty_us = NAN,
                           .n_tracks = p,
                           .n_ranks = p,
                           .length_us = length_us,
                           .to_us = length_us,
                           .axis = prediction->lists.n_steps > 1 ? "first step" : "step"};
    for (int stage = 0; stage < p; stage++) n += 2 * (size_t)prediction->lists.n_actions[stage];
    timeline->event = malloc((n + 1) * sizeof *timeline->event);
    if (!timeline->event) return error_failed(error, "no memory for a timeline of %zu events", n);
    timeline->track = ARENA_ARRAY(&timeline->arena, TimelineTrack, p);
    timeline->rank = ARENA_ARRAY(&timeline->arena, TimelineRank, p);
    for (int stage = 0; stage < p; stage++) add_stage(prediction, stage, timeline);
    return STATUS_OK;
}

/* ---- As a PNG */

Status pipeline_png(const char *svg_path, const char *png_path, bool *made, Error *error) {
    enum { SECONDS = 60 };
    Arena arena = {0};
    const char *temporary = arena_printf(&arena, "%s.tmp.%d", png_path, (int)getpid());
    const char *words[] = {"rsvg-convert", "-o", temporary, svg_path, NULL};
    ChildResult result = {0};
    Error trouble = {0}; /* there is the SVG */
    *made = child_exists(words[0]) &&
            child_run(&(ChildSetup){.words = words, .timeout_s = SECONDS}, &result, &trouble) == STATUS_OK &&
            result.exit_code == 0;
    child_free(&result);
    if (*made && rename(temporary, png_path) != 0) error_failed(error, "cannot rename %s", temporary);
    if (!*made || error->status != STATUS_OK) unlink(temporary);
    if (!*made) unlink(png_path);
    arena_free(&arena);
    return error->status;
}
