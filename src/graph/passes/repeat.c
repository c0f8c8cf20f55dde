/* A view is repeated as a view of what stands for its base. Where several nodes write one tensor, or one
 * changes it in place, they do so again in the one that was made for the first of them. */
#include "graph/passes/repeat.h"

Repeats repeats_begin(Graph *graph) {
    return (Repeats){graph, ARENA_ARRAY(&graph->arena, Tensor *, graph->n_tensors), graph->n_tensors};
}

Tensor *repeat_tensor(Repeats *repeats, Tensor *tensor) {
    if (!tensor || tensor->id < 0 || tensor->id >= repeats->n_old) return tensor;
    if (repeats->made[tensor->id]) return repeats->made[tensor->id];
    if (tensor->base && repeat_tensor(repeats, tensor->base) != tensor->base) {
        int64_t first = (int64_t)(tensor->base_offset / dtype_info(tensor->dtype)->n_bytes);
        repeats->made[tensor->id] = graph_view(repeats->graph, repeat_tensor(repeats, tensor->base),
                                               tensor->shape, first, tensor->name);
        return repeats->made[tensor->id];
    }
    return tensor;
}

static Tensor *copy_of(Repeats *repeats, const Node *again, const Tensor *old) {
    Tensor *copy =
        graph_tensor(repeats->graph, PLACE_ACTIVATION, old->dtype, old->shape, "%s again", old->name);
    copy->chunk = old->chunk;
    copy->producer = (Node *)again;
    return copy;
}

/* Where a repeated node writes: anew, or where another has written a part of it or what it changes in
 * place. */
static Tensor *output_again(Repeats *repeats, const Node *again, Tensor *old) {
    if (old->base) {
        output_again(repeats, again, old->base);
        return repeat_tensor(repeats, old);
    }
    if (!repeats->made[old->id]) repeats->made[old->id] = copy_of(repeats, again, old);
    return repeats->made[old->id];
}

Node *repeat_node(Repeats *repeats, const Node *node, const bool *is_wanted) {
    Node *again = arena_copy(&repeats->graph->arena, node, sizeof *node);
    again->section = SECTION_BACKWARD;
    if (node->phase != PHASE_COMMUNICATION) again->phase = PHASE_BACKWARD;
    again->is_recomputed = true;
    repeat_inputs(repeats, again);
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k]) continue;
        again->output[k] = !is_wanted || is_wanted[k] ? output_again(repeats, again, node->output[k])
                                                      : copy_of(repeats, again, node->output[k]);
    }
    return again;
}

void repeat_inputs(Repeats *repeats, Node *node) {
    for (int k = 0; k < node->n_inputs; k++) node->input[k] = repeat_tensor(repeats, node->input[k]);
}
