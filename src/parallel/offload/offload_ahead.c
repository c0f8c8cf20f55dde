/* Copies are found by memory alone: from weights to what the optimizer calls "before". */
#include "parallel/offload/offload_ahead.h"

#include "graph/plan.h"
#include "ops/ops.h"

#include <string.h>

bool offload_ahead_is_copy(const Node *node) {
    return node->op == &OP_COPY && node->section == SECTION_UPDATE &&
           tensor_root(node->input[0])->place != PLACE_OPTIMIZER &&
           tensor_root(node->output[0])->place == PLACE_STATE;
}

static bool has_section(const Graph *graph, Section section) {
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->section == section) return true;
    return false;
}

OffloadAhead offload_ahead_find(Graph *graph, bool may_hide) {
    OffloadAhead ahead = {.graph = graph, .is_checked = has_section(graph, SECTION_CHECK)};
    if (!ahead.is_checked) return ahead;
    ahead.hides = may_hide;
    ahead.copy = ARENA_ARRAY(&graph->arena, const Node *, graph->n_nodes);
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (!offload_ahead_is_copy(node)) continue;
        ahead.copy[ahead.n_copies++] = node;
        ahead.hides &= !place_is_beside(tensor_root(node->input[0])->place);
    }
    return ahead;
}

/* ---- homes */

void offload_ahead_pair(OffloadAhead *ahead, const OffloadArrays *arrays) {
    if (!ahead->is_checked) return;
    for (int i = 0; i < arrays->n; i++) {
        const OffloadArray *array = &arrays->array[i];
        if (array->kept_as < 0) continue;
        const OffloadArray *kept = &arrays->array[array->kept_as];
        for (int k = 0; k < array->n_homes; k++) {
            Tensor *home = array->homes[k].home, *other = kept->homes[k].home;
            if (!place_is_beside(home->place)) continue;
            home->twin = other;
            other->twin = home;
        }
    }
    ahead->n_ids = ahead->graph->n_tensors;
    ahead->written_in = ARENA_ARRAY(&ahead->graph->arena, Section, ahead->n_ids + 1);
}

Tensor *offload_ahead_source(const OffloadAhead *ahead, Tensor *home, Section section) {
    bool is_new = home->twin && home->id < ahead->n_ids && ahead->written_in[home->id] == section;
    return is_new ? home->twin : home;
}

Tensor *offload_ahead_target(OffloadAhead *ahead, Tensor *home, Section section) {
    if (!home->twin || home->id >= ahead->n_ids) return home;
    ahead->written_in[home->id] = section;
    return home->twin;
}

/* ---- weights */

static void add_kept(OffloadAhead *ahead, KeptElements kept) {
    if (ahead->n_kept == ahead->capacity) {
        int capacity = ahead->capacity ? 2 * ahead->capacity : 64;
        KeptElements *larger = ARENA_ARRAY(&ahead->graph->arena, KeptElements, capacity);
        if (ahead->n_kept) memcpy(larger, ahead->kept, (size_t)ahead->n_kept * sizeof *larger);
        ahead->kept = larger;
        ahead->capacity = capacity;
    }
    ahead->kept[ahead->n_kept++] = kept;
}

static void copy_elements(const OffloadAhead *ahead, const Node *copy, int64_t first, int64_t end) {
    Graph *graph = ahead->graph;
    Tensor *from = copy->input[0], *to = copy->output[0];
    op_copy_into(graph, graph_view(graph, from, SHAPE(end - first), first, from->name),
                 graph_view(graph, to, SHAPE(end - first), first, to->name), WRITE_FRESH);
}

void offload_ahead_keep(OffloadAhead *ahead, const Tensor *weights, int64_t first, int64_t n) {
    int64_t begin = tensor_root_element(weights) + first;
    for (int i = 0; i < ahead->n_copies; i++) {
        const Tensor *from = ahead->copy[i]->input[0];
        if (tensor_root((Tensor *)from) != tensor_root((Tensor *)weights)) continue;
        int64_t at = tensor_root_element(from), end = at + tensor_count(from);
        KeptElements kept = {ahead->copy[i], begin > at ? begin - at : 0,
                             (begin + n < end ? begin + n : end) - at};
        if (kept.first >= kept.end) continue;
        copy_elements(ahead, kept.copy, kept.first, kept.end);
        add_kept(ahead, kept);
    }
}

/* Of this copy, from element `at` on: the end of what was kept there; else where such begins, or the end. */
static int64_t next_border(const OffloadAhead *ahead, const Node *copy, int64_t at, bool *was_kept) {
    int64_t border = tensor_count(copy->input[0]);
    *was_kept = false;
    for (int i = 0; i < ahead->n_kept; i++) {
        const KeptElements *kept = &ahead->kept[i];
        if (kept->copy != copy) continue;
        if (kept->first <= at && at < kept->end) {
            *was_kept = true;
            return kept->end;
        }
        if (kept->first > at && kept->first < border) border = kept->first;
    }
    return border;
}

bool offload_ahead_take(OffloadAhead *ahead, const Node *node) {
    bool is_one = false, was_kept;
    for (int i = 0; i < ahead->n_kept; i++) is_one |= ahead->kept[i].copy == node;
    if (!is_one) return false;
    int64_t count = tensor_count(node->input[0]);
    for (int64_t at = 0, end; at < count; at = end) {
        end = next_border(ahead, node, at, &was_kept);
        if (!was_kept) copy_elements(ahead, node, at, end);
    }
    return true;
}
