/* Instructions by their rates, one after the other, and moves of activations by their bytes: what a plan's
 * simulation comes to where neither blocks nor the order of moves matter. */
#include "plan/offload_bound.h"

#include "graph/plan.h"
#include "ops/move.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

static double bytes_out(const Node *node) {
    bool goes = node->op == &OP_OFFLOAD && node->output[0]->place == PLACE_HOST_FRAME;
    return goes ? (double)tensor_bytes(node->output[0]) : 0.0;
}

OffloadBound offload_bound(const Program *program, const RankSpeed *speed) {
    OffloadBound bound = {0};
    double n_bytes = 0.0;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        if (section_is_of_step(node->section)) continue;
        double *seconds = node->section == SECTION_FORWARD ? &bound.forward_seconds : &bound.backward_seconds;
        n_bytes += bytes_out(node);
        if (!node->op->is_portable) *seconds += rank_node_time(speed, node).seconds;
    }
    double forward = bound.forward_seconds, backward = bound.backward_seconds;
    double moves = speed->bus > 0.0 ? n_bytes / speed->bus : 0.0;
    bound.move_seconds = moves;
    bound.ratio = forward + backward > 0.0
                      ? (fmax(forward, moves) + fmax(backward, moves)) / (forward + backward)
                      : 1.0;
    bound.hidden = moves > 0.0 ? fmin(1.0, fmin(forward, backward) / moves) : 1.0;
    return bound;
}

/* Does the text have the name in it, in letters of any size? */
static bool has_name(const char *text, const char *name) {
    for (; *text; text++) {
        size_t n = 0;
        while (name[n] && tolower((unsigned char)text[n]) == name[n]) n++;
        if (!name[n]) return true;
    }
    return false;
}

const char *offload_bound_machine(const char *kind) {
    for (int i = 0; machine_names[i]; i++)
        if (has_name(kind, machine_names[i])) return machine_names[i];
    return NULL;
}
