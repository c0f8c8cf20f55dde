/* Autograd: one walk over the forward nodes from the last to the first.
 *
 * When the walk reaches a node, everything that reads its outputs has been handled, so their gradients are
 * complete; the node's rule then contributes to the gradients of its inputs. Three cases need care:
 *
 * Several contributions. The first writer of a gradient overwrites, later ones add. A parameter's gradient
 * also sums over micro-batches, so its first writer overwrites only in the first of them.
 *
 * Sharing. x + y passes its gradient on unchanged to both, and it would be a waste to copy it: both gradients
 * are then the same tensor. If a later contribution wants to add to one of them while the other is still
 * unread, it gets a copy of its own first. The other is unread as long as its producer has not been visited.
 *
 * Views. The gradient of a part of a tensor is the same part of the tensor's gradient. Parts are written
 * fresh as long as they do not overlap; the walk checks that they cover the whole when it is read. Parameters
 * are parts of one flat tensor; when their gradients need not persist, each has a tensor of its own.
 *
 * Seeds are contributions from outside, made before the walk begins. */
#include "graph/passes/autograd.h"

#include <stdlib.h>

typedef struct {
    Tensor *gradient;
    bool is_written;       /* a node has written (or shared) all of it */
    bool has_parts;        /* nodes have written views of it: */
    int64_t written_parts; /* so many of its elements, 0 of an empty one */
    int position;          /* index of the producer in the forward order, -1 for inputs and parameters */
} Slot;

struct Autograd {
    Graph *graph;
    const AutogradOptions *options;
    Slot *slot; /* per tensor id of the forward half */
    int n_slots, n_forward;
    int visited; /* position of the node whose rule runs now */
};

static bool is_parameter(const Tensor *tensor) {
    return tensor->place == PLACE_PARAMETER;
}

/* The gradient tensor of a root, created when it is first asked for. */
static Tensor *root_gradient(Autograd *autograd, Tensor *root) {
    Slot *slot = &autograd->slot[root->id];
    if (!slot->gradient) {
        Place place = is_parameter(root) ? autograd->options->gradient_place : PLACE_ACTIVATION;
        DType dtype = is_parameter(root) ? autograd->options->parameter_dtype : root->dtype;
        slot->gradient = graph_tensor(autograd->graph, place, dtype, root->shape, "d %s", root->name);
        slot->gradient->chunk = root->chunk;
    }
    return slot->gradient;
}

/* A gradient that another tensor shares and that will still be read as it is must not be changed. */
static bool is_shared_with_unread(const Autograd *autograd, const Tensor *tensor) {
    const Tensor *gradient = autograd->slot[tensor->id].gradient;
    for (int i = 0; i < autograd->n_slots; i++) {
        const Slot *other = &autograd->slot[i];
        if (i != tensor->id && other->gradient == gradient && other->position >= 0 &&
            other->position < autograd->visited) {
            return true;
        }
    }
    return false;
}

static void unshare(Autograd *autograd, Tensor *tensor) {
    Slot *slot = &autograd->slot[tensor->id];
    Tensor *shared = slot->gradient;
    slot->gradient = graph_tensor(autograd->graph, PLACE_ACTIVATION, tensor->dtype, tensor->shape, "d %s own",
                                  tensor->name);
    slot->gradient->chunk = tensor->chunk;
    graph_record(autograd->graph, autograd->options->copy, NULL, 0, 1, TENSORS(shared), 1,
                 TENSORS(slot->gradient));
}

/* Has the gradient of this part of `root` been written already, through this view or an equal one? A view
 * that overlaps another without being equal would need its parts added and written separately: the model has
 * to cut at equal borders. */
static bool is_part_written(Autograd *autograd, const Tensor *target, Tensor *root) {
    int64_t first = tensor_root_element(target), end = first + tensor_count(target);
    bool is_written = autograd->slot[target->id].is_written;
    for (int i = 0; i < autograd->n_slots && !is_parameter(root); i++) {
        Tensor *other = autograd->graph->tensor[i];
        if (!other->base || !autograd->slot[i].is_written || tensor_root(other) != root) continue;
        int64_t other_first = tensor_root_element(other), other_end = other_first + tensor_count(other);
        if (other_end <= first || end <= other_first) continue;
        graph_check(autograd->graph, other_first == first && other_end == end,
                    "autograd: the views %s and %s overlap without being equal", other->name, target->name);
        is_written = true;
    }
    return is_written;
}

/* Where a contribution to dL/dtarget goes, and how. */
static Tensor *contribution(Autograd *autograd, Tensor *target, WriteMode *mode) {
    bool persists = autograd->options->gradient_place == PLACE_GRADIENT;
    Tensor *root = is_parameter(target) && !persists ? target : tensor_root(target);
    Slot *slot = &autograd->slot[root->id];
    Tensor *gradient = root_gradient(autograd, root);
    bool first;
    if (target == root) {
        first = !slot->is_written && !slot->has_parts;
        graph_check(autograd->graph,
                    slot->is_written || !slot->has_parts || slot->written_parts == tensor_count(root),
                    "autograd: the gradient of %s is added to while only parts of it are written",
                    root->name);
        if (!first && is_shared_with_unread(autograd, root)) {
            unshare(autograd, root);
            gradient = slot->gradient;
        }
        slot->is_written = true;
    } else {
        Slot *part = &autograd->slot[target->id];
        if (slot->is_written && is_shared_with_unread(autograd, root)) {
            unshare(autograd, root);
            gradient = slot->gradient;
            part->gradient = NULL;
        }
        first = !slot->is_written && !is_part_written(autograd, target, root);
        part->is_written = true;
        if (first) slot->written_parts += tensor_count(target);
        slot->has_parts = true;
        if (!part->gradient) {
            part->gradient = graph_view(autograd->graph, gradient, target->shape, tensor_root_element(target),
                                        arena_printf(&autograd->graph->arena, "d %s", target->name));
        }
        gradient = part->gradient;
    }
    *mode = !first ? WRITE_ADD : is_parameter(root) && persists ? WRITE_ADD_AFTER_FIRST : WRITE_FRESH;
    return gradient;
}

Graph *autograd_graph(const Autograd *autograd) {
    return autograd->graph;
}

Tensor *autograd_gradient(Autograd *autograd, Tensor *tensor) {
    Slot *slot = &autograd->slot[tensor->id];
    if (!tensor->base && slot->has_parts) {
        graph_check(autograd->graph, slot->is_written || slot->written_parts == tensor_count(tensor),
                    "autograd: only parts of the gradient of %s are computed", tensor->name);
    }
    return slot->is_written || slot->has_parts ? slot->gradient : NULL;
}

bool autograd_is_only_reader(const Autograd *autograd, const Node *node, Tensor *tensor) {
    int n_reads = 0;
    for (int i = 0; i < autograd->n_forward; i++) {
        const Node *reader = autograd->graph->node[i];
        for (int k = 0; k < reader->n_inputs; k++) {
            Tensor *input = reader->input[k];
            if (!input || tensor_root(input) != tensor_root(tensor)) continue;
            if (reader != node || input != tensor) return false;
            n_reads++;
        }
    }
    return n_reads == 1;
}

Node *autograd_record(Autograd *autograd, const Op *op, const void *attributes, size_t attributes_bytes,
                      int n_inputs, Tensor *const *inputs, int n_targets, Tensor *const *targets) {
    Tensor *output[NODE_MAX_OUTPUTS] = {NULL};
    WriteMode mode[NODE_MAX_OUTPUTS] = {WRITE_FRESH};
    int n_wanted = 0;
    for (int i = 0; i < n_targets; i++) {
        if (!targets[i] || !targets[i]->needs_gradient) continue;
        output[i] = contribution(autograd, targets[i], &mode[i]);
        n_wanted++;
    }
    if (!n_wanted) return NULL;
    Node *node =
        graph_record(autograd->graph, op, attributes, attributes_bytes, n_inputs, inputs, n_targets, output);
    for (int i = 0; i < n_targets; i++) node->write[i] = mode[i];
    return node;
}

void autograd_share(Autograd *autograd, Tensor *tensor, Tensor *gradient) {
    if (!tensor->needs_gradient) return;
    Slot *slot = &autograd->slot[tensor->id];
    if (tensor->base || is_parameter(tensor) || slot->is_written || slot->has_parts) {
        autograd_record(autograd, autograd->options->copy, NULL, 0, 1, TENSORS(gradient), 1, TENSORS(tensor));
        return;
    }
    slot->gradient = gradient;
    slot->is_written = true;
}

static void keep_gradients(Autograd *autograd) {
    for (int i = 0; i < autograd->n_slots; i++) {
        Tensor *tensor = autograd->graph->tensor[i];
        tensor->gradient = autograd->slot[i].gradient;
    }
}

/* Behind the last node: nobody has read it yet. */
static void plant_seeds(Autograd *autograd) {
    Graph *graph = autograd->graph;
    for (int i = 0; i < autograd->options->n_seeds; i++) {
        const AutogradSeed *seed = &autograd->options->seeds[i];
        if (!graph_check(graph,
                         shape_count(seed->tensor->shape) == shape_count(seed->gradient->shape) &&
                             seed->tensor->dtype == seed->gradient->dtype,
                         "autograd: the gradient given for %s is of another size or type",
                         seed->tensor->name))
            return;
        graph->chunk = seed->tensor->chunk;
        autograd_share(autograd, seed->tensor, seed->gradient);
    }
}

Status autograd_run(Graph *graph, const AutogradOptions *options, Error *error) {
    TRY(graph_status(graph, error));
    int n_forward = graph->n_nodes;
    Autograd autograd = {
        .graph = graph, .options = options, .n_slots = graph->n_tensors, .n_forward = n_forward};
    autograd.slot = ARENA_ARRAY(&graph->arena, Slot, autograd.n_slots);
    for (int i = 0; i < autograd.n_slots; i++) autograd.slot[i].position = -1;
    for (int i = 0; i < n_forward; i++) {
        for (int k = 0; k < graph->node[i]->n_outputs; k++) {
            const Tensor *output = graph->node[i]->output[k];
            if (output && output->producer == graph->node[i]) autograd.slot[output->id].position = i;
        }
    }
    /* Persistent gradients are created in the order of the parameters, so that both have the same offsets. */
    for (int i = 0; i < autograd.n_slots && options->gradient_place == PLACE_GRADIENT; i++) {
        Tensor *tensor = graph->tensor[i];
        if (is_parameter(tensor) && tensor->needs_gradient && !tensor->base) root_gradient(&autograd, tensor);
    }
    graph->section = SECTION_BACKWARD;
    autograd.visited = n_forward;
    plant_seeds(&autograd);
    for (int i = n_forward - 1; i >= 0; i--) {
        const Node *node = graph->node[i];
        autograd.visited = i;
        graph->block = node->block;
        graph->chunk = node->chunk;
        bool is_forward = node->section == SECTION_FORWARD;
        if (is_forward && node->op->gradient && !node->is_passed_by) node->op->gradient(&autograd, node);
    }
    graph->block = NO_BLOCK;
    graph->chunk = 0;
    keep_gradients(&autograd);
    return graph_status(graph, error);
}
