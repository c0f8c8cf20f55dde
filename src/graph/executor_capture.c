/* What of a part is captured: all runs of nodes that the host need not come between.
 *
 * What is started in a run is waited for in the same run: a capture is replayed as one, and what it leaves
 * under way nobody outside could name. So a start whose wait is elsewhere is refused, and cuts its run in
 * two; which may tear others apart, so that it is looked at again until nothing is torn. */
#include "graph/executor_capture.h"

/* What the host has to do itself cannot be part of a capture, nor can what has other addresses each time, nor
 * what one and the same kind of micro-batch has at times and at times not (MicroBatch.goes_on, regimes). */
static bool is_capturable(const Executor *executor, int number) {
    const Node *node = executor->program->graph->node[number];
    if (executor->is_made_late && executor->is_made_late[number]) return false;
    if (node->is_not_last || node->is_on_host || node->regimes) return false;
    return !node->op->is_portable || (node->op->is_capturable && node->op->is_capturable(node));
}

/* May a node be run in this kind of micro-batch? One that is left out of the last may if more follow. */
static bool may_run(const Node *node, bool is_last) {
    return node_runs_in(node, is_last) || node->is_not_last;
}

/* Does the node wait outside of the run for what was started in it, or the other way round? */
static bool is_torn(const Executor *executor, ProgramPart run, int number) {
    const Graph *graph = executor->program->graph;
    const Node *node = graph->node[number];
    const void *flight = node->op->flight ? node->op->flight(node) : NULL;
    for (int i = 0; i < graph->n_nodes && flight; i++) {
        const Node *other = graph->node[i];
        bool is_inside = i >= run.first && i < run.first + run.count;
        if (!is_inside && other->op->flight && other->op->flight(other) == flight) return true;
    }
    return false;
}

/* What is looked at. */
typedef struct {
    const Executor *executor;
    ProgramPart nodes;
    bool is_last;
    bool *is_refused; /* (nodes.count) */
} Choice;

static bool runs(const Choice *choice, int number) {
    return may_run(choice->executor->program->graph->node[number], choice->is_last);
}

static bool is_border(const Choice *choice, int number) {
    return runs(choice, number) && choice->is_refused[number - choice->nodes.first];
}

/* The first run from node `from` on; nodes that are left out in this micro-batch are in the way of none. Of
 * no nodes: there is none. */
static ProgramPart next_run(const Choice *choice, int from) {
    int end = choice->nodes.first + choice->nodes.count, first = from;
    while (first < end && is_border(choice, first)) first++;
    int behind = first;
    while (behind < end && !is_border(choice, behind)) behind++;
    return (ProgramPart){first, behind - first};
}

static bool refuse_torn(Choice *choice, ProgramPart run) {
    bool is_sound = true;
    for (int i = run.first; i < run.first + run.count; i++) {
        if (!runs(choice, i) || !is_torn(choice->executor, run, i)) continue;
        choice->is_refused[i - choice->nodes.first] = true;
        is_sound = false;
    }
    return is_sound;
}

/* A single one need not be replayed, unless it is all there is. */
static bool pays(const Choice *choice, ProgramPart run) {
    int n = 0;
    for (int i = run.first; i < run.first + run.count; i++) n += runs(choice, i);
    return n > 1 || run.count == choice->nodes.count;
}

CapturedRuns capture_choose(Executor *executor, ProgramPart nodes, bool is_last) {
    Choice choice = {executor, nodes, is_last, ARENA_ARRAY(&executor->arena, bool, nodes.count + 1)};
    CapturedRuns captured = {.run = ARENA_ARRAY(&executor->arena, ProgramPart, nodes.count / 2 + 1)};
    for (int i = 0; i < nodes.count; i++) choice.is_refused[i] = !is_capturable(executor, nodes.first + i);
    for (bool is_sound = false; !is_sound;) {
        is_sound = true;
        for (ProgramPart run = next_run(&choice, nodes.first); run.count;
             run = next_run(&choice, run.first + run.count))
            is_sound = refuse_torn(&choice, run) && is_sound;
    }
    for (ProgramPart run = next_run(&choice, nodes.first); run.count;
         run = next_run(&choice, run.first + run.count)) {
        if (pays(&choice, run)) captured.run[captured.n++] = run;
    }
    return captured;
}
