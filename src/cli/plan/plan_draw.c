/* Of a pipeline, the actions of every stage; of a run without one, every instruction of a rank on its lanes
 * and those of its communicators. Both become a Timeline, which is drawn as any trace is. */
#include "cli/plan/plan_draw.h"

#include "base/file/file.h"
#include "base/text/format.h"
#include "base/text/json.h"
#include "lab/pipeline/pipeline_picture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A rank's instructions */

enum { MOST_LANES = 2 * LANES_MOST + 16 };

typedef struct {
    PlanRun *plan;
    const PlanFigures *figures;
    Timeline *timeline;
} Instructions;

typedef struct {
    TimelineEvent *event;
    size_t n, room;
} EventList;

static Status add_event(EventList *list, const TimelineEvent *event, Error *error) {
    if (list->n == list->room) {
        size_t room = list->room ? 2 * list->room : 1024;
        TimelineEvent *grown = realloc(list->event, room * sizeof *grown);
        if (!grown) return error_failed(error, "no memory for the picture of a step");
        list->event = grown;
        list->room = room;
    }
    list->event[list->n++] = *event;
    return STATUS_OK;
}

static TimelineKind kind_of(const SimulatedNode *simulated) {
    static const TimelineKind kinds[N_PHASES] = {[PHASE_FORWARD] = TIMELINE_FORWARD,
                                                 [PHASE_BACKWARD] = TIMELINE_BACKWARD,
                                                 [PHASE_UPDATE] = TIMELINE_UPDATE,
                                                 [PHASE_COMMUNICATION] = TIMELINE_COLLECTIVE};
    return simulated->lane >= LANES_MOST ? TIMELINE_COLLECTIVE : kinds[simulated->node->phase];
}

/* One run of a part, from `begin` on. */
static Status add_part(const Instructions *all, const Program *program, Section section, bool is_last,
                       int64_t micro, double *begin, EventList *list, Error *error) {
    SimulatedNode *nodes = NULL;
    int n = 0;
    StepSimulator simulator = {&all->figures->speed, &all->figures->links};
    PartTime time = part_time(&simulator, program, section, 0, is_last, &nodes, &n, &all->timeline->arena);
    for (int i = 0; i < n; i++) {
        TimelineEvent event = {.begin_us = (*begin + nodes[i].begin) * 1e6,
                               .end_us = (*begin + nodes[i].end) * 1e6,
                               .name = nodes[i].node->op->name,
                               .number = micro,
                               .track = nodes[i].lane < MOST_LANES ? nodes[i].lane : MOST_LANES - 1,
                               .stage = -1,
                               .kind = kind_of(&nodes[i])};
        TRY(add_event(list, &event, error));
    }
    *begin += time.seconds;
    return STATUS_OK;
}

static Status add_step(const Instructions *all, const Program *program, EventList *list, double *length,
                       Error *error) {
    enum { MOST_SHOWN = 8 };
    int m = all->figures->schedule.shape.n_micro_batches, shown = m < MOST_SHOWN ? m : MOST_SHOWN;
    for (int i = 0; i < shown; i++) {
        TRY(add_part(all, program, SECTION_FORWARD, i == shown - 1, i, length, list, error));
        TRY(add_part(all, program, SECTION_BACKWARD, i == shown - 1, i, length, list, error));
    }
    return add_part(all, program, SECTION_UPDATE, true, 0, length, list, error);
}

/* A track for every lane that has anything. */
static void sort_lanes(const EventList *list, Timeline *timeline) {
    for (int lane = 0; lane < MOST_LANES; lane++) {
        size_t first = timeline->n_events;
        for (size_t i = 0; i < list->n; i++) {
            if (list->event[i].track != lane) continue;
            timeline->event[timeline->n_events] = list->event[i];
            timeline->event[timeline->n_events++].track = timeline->n_tracks;
        }
        if (timeline->n_events == first) continue;
        const char *name = lane == 0 ? "rank 0" : lane < LANES_MOST ? "beside" : "messages";
        timeline->track[timeline->n_tracks++] =
            (TimelineTrack){.thread = lane, .name = name, .first = first, .n = timeline->n_events - first};
    }
}

static Status take_instructions(void *context, const Trainer *trainer, Error *error) {
    const Instructions *all = context;
    Timeline *timeline = all->timeline;
    EventList list = {0};
    double length = 0.0;
    add_step(all, &trainer->step.program, &list, &length, error);
    timeline->event = malloc((list.n + 1) * sizeof *timeline->event);
    if (!timeline->event) error_failed(error, "no memory for the picture of a step");
    timeline->track = ARENA_ARRAY(&timeline->arena, TimelineTrack, MOST_LANES);
    timeline->rank = ARENA_ARRAY(&timeline->arena, TimelineRank, 1);
    timeline->rank[0] = (TimelineRank){.name = "rank 0"};
    timeline->n_ranks = 1;
    if (error->status == STATUS_OK) sort_lanes(&list, timeline);
    free(list.event);
    timeline->length_us = timeline->to_us = length * 1e6;
    return error->status;
}

static Status make_timeline(PlanRun *plan, const PlanFigures *figures, Timeline *timeline, Error *error) {
    if (plan->train.shape.size[AXIS_PP] > 1)
        return pipeline_timeline(&figures->times.prediction, timeline, error);
    *timeline = (Timeline){.uncertainty_us = NAN, .axis = "step"};
    Instructions all = {plan, figures, timeline};
    return plan_visit_rank(plan, 0, true, take_instructions, &all, error);
}

/* ---- As a file */

/* Chrome's trace events, as `pgpt train --trace` writes them and Perfetto opens. */
static Status write_trace(const Timeline *timeline, const char *path, Error *error) {
    json_t *events = json_array(), *root = json_object();
    for (int i = 0; i < timeline->n_tracks; i++) {
        const TimelineTrack *track = &timeline->track[i];
        json_array_append_new(events, json_pack("{s:s, s:s, s:I, s:I, s:{s:s}}", "name", "thread_name", "ph",
                                                "M", "pid", (json_int_t)track->process, "tid",
                                                (json_int_t)track->thread, "args", "name", track->name));
        for (size_t k = track->first; k < track->first + track->n; k++) {
            const TimelineEvent *event = &timeline->event[k];
            json_array_append_new(
                events, json_pack("{s:s, s:s, s:s, s:f, s:f, s:I, s:I, s:{s:I, s:i}}", "name", event->name,
                                  "cat", timeline_kind_name(event->kind), "ph", "X", "ts", event->begin_us,
                                  "dur", event->end_us - event->begin_us, "pid", (json_int_t)track->process,
                                  "tid", (json_int_t)track->thread, "args", "micro",
                                  (json_int_t)event->number, "chunk", event->chunk));
        }
    }
    json_object_set_new(root, "traceEvents", events);
    json_object_set_new(root, "displayTimeUnit", json_string("ms"));
    if (json_dump_file(root, path, JSON_COMPACT) != 0)
        error_user(error, "cannot write the trace %s; choose another place for --trace", path);
    json_decref(root);
    return error->status;
}

/* FOLDER and NAME of FOLDER/NAME.svg. */
static void split_path(const char *path, Arena *arena, const char **folder, const char **name) {
    char *copy = arena_strdup(arena, path), *slash = strrchr(copy, '/');
    size_t n = strlen(copy);
    if (n > 4 && strcmp(copy + n - 4, ".svg") == 0) copy[n - 4] = '\0';
    *name = slash ? slash + 1 : copy;
    *folder = slash ? copy : ".";
    if (slash) *slash = '\0';
}

static Status draw_timeline(const PlanRun *plan, const PlanFigures *figures, const Timeline *timeline,
                            const char *path, Error *error) {
    Arena arena = {0};
    const char *folder, *name;
    bool has_png;
    split_path(path, &arena, &folder, &name);
    const char *title =
        arena_printf(&arena, "A step of %s on %s, predicted: %s", plan->train.values.model.preset,
                     format_things(mesh_n_ranks(&plan->train.shape), "rank").text,
                     format_duration(figures->times.seconds).text);
    const char *caption = arena_printf(&arena, "machine %s\npgpt plan", plan->machine.machine.device.name);
    timeline_draw(timeline, title, caption, folder, name, &has_png, error);
    arena_free(&arena);
    return error->status;
}

Status plan_draw(PlanRun *plan, const PlanFigures *figures, Error *error) {
    const char *picture = plan->options.draw, *trace = plan->train.values.trace.file;
    if (!*picture && !*trace) return STATUS_OK;
    if (strcmp(trace, "auto") == 0) trace = "plan-trace.json";
    Timeline timeline = {0};
    make_timeline(plan, figures, &timeline, error);
    if (error->status == STATUS_OK && *trace) write_trace(&timeline, trace, error);
    if (error->status == STATUS_OK && *picture) draw_timeline(plan, figures, &timeline, picture, error);
    timeline_free(&timeline);
    return error->status;
}
