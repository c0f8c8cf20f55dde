/* Recording: two growing arrays in execution order and a sticky error. Everything a graph owns lives in its
 * arena, so that passes can replace nodes and tensors without asking who frees them. */
#include "graph/graph.h"
#include "graph/op.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *place_name(Place place) {
    static const char *const names[N_PLACES] = {"parameters", "gradients",   "optimizer",  "state",
                                                "inputs",     "activations", "frames",     "host",
                                                "file",       "host frames", "file frames"};
    return names[place];
}

const char *regime_name(int regime) {
    switch (regime) {
    case REGIME_EXACT: return "exact";
    case REGIME_COMPRESSED: return "compressed";
    case REGIME_ENTRY: return "entry";
    case REGIME_LATER: return "later";
    case REGIME_LATE: return "late";
    case REGIME_LOCAL: return "local";
    case REGIME_AHEAD: return "ahead";
    default: return "freeze";
    }
}

const char *section_name(Section section) {
    static const char *const names[N_SECTIONS] = {"forward", "backward", "weight", "update", "check", "redo"};
    return names[section];
}

Phase section_phase(Section section) {
    static const Phase phases[N_SECTIONS] = {PHASE_FORWARD, PHASE_BACKWARD, PHASE_BACKWARD,
                                             PHASE_UPDATE,  PHASE_UPDATE,   PHASE_UPDATE};
    return phases[section];
}

Graph *graph_new(void) {
    Arena arena = {0};
    Graph *graph = ARENA_NEW(&arena, Graph);
    graph->arena = arena;
    graph->block = NO_BLOCK;
    Tensor *nothing = ARENA_NEW(&graph->arena, Tensor);
    *nothing = (Tensor){.name = "nothing", .id = -1, .shape = SHAPE(1, 1), .place = PLACE_ACTIVATION};
    graph->nothing = nothing;
    return graph;
}

void graph_free(Graph *graph) {
    if (!graph) return;
    Arena arena = graph->arena; /* the graph itself lies in it */
    arena_free(&arena);
}

Status graph_status(const Graph *graph, Error *error) {
    if (graph->error.status != STATUS_OK) *error = graph->error;
    return graph->error.status;
}

bool graph_check(Graph *graph, bool condition, const char *format, ...) {
    if (graph->error.status != STATUS_OK) return false;
    if (condition) return true;
    char text[sizeof graph->error.text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    error_user(&graph->error, "%s", text);
    return false;
}

/* Room for one more pointer; the old array stays in the arena, which costs as much again and keeps things
 * simple. */
static void *grow(Arena *arena, void *array, int count, int *capacity) {
    if (count < *capacity) return array;
    int larger = *capacity ? *capacity * 2 : 64;
    void **bigger = ARENA_ARRAY(arena, void *, larger);
    if (count) memcpy(bigger, array, (size_t)count * sizeof(void *));
    *capacity = larger;
    return bigger;
}

static Tensor *add_tensor(Graph *graph, Tensor tensor) {
    Tensor *added = ARENA_NEW(&graph->arena, Tensor);
    tensor.id = graph->n_tensors;
    *added = tensor;
    graph->tensor = grow(&graph->arena, graph->tensor, graph->n_tensors, &graph->tensor_capacity);
    graph->tensor[graph->n_tensors++] = added;
    return added;
}

Tensor *graph_tensor(Graph *graph, Place place, DType dtype, Shape shape, const char *name_format, ...) {
    char name[128];
    va_list arguments;
    va_start(arguments, name_format);
    vsnprintf(name, sizeof name, name_format, arguments);
    va_end(arguments);
    if (!graph_check(graph, shape_count(shape) >= 0, "tensor %s is too large to address", name)) {
        return graph->nothing;
    }
    return add_tensor(graph, (Tensor){.name = arena_strdup(&graph->arena, name),
                                      .dtype = dtype,
                                      .shape = shape,
                                      .place = place,
                                      .chunk = graph->chunk,
                                      .needs_gradient = place == PLACE_PARAMETER});
}

Tensor *graph_view(Graph *graph, Tensor *base, Shape shape, int64_t first, const char *name) {
    int64_t count = shape_count(shape);
    if (!graph_check(graph, count >= 0 && first >= 0 && first <= tensor_count(base) - count,
                     "view %s reaches past the end of %s", name, base->name)) {
        return graph->nothing;
    }
    return add_tensor(graph, (Tensor){.name = arena_strdup(&graph->arena, name),
                                      .dtype = base->dtype,
                                      .shape = shape,
                                      .place = base->place,
                                      .chunk = base->chunk,
                                      .base = base,
                                      .base_offset = (size_t)first * dtype_info(base->dtype)->n_bytes,
                                      .producer = base->producer,
                                      .needs_gradient = base->needs_gradient});
}

Node *graph_record(Graph *graph, const Op *op, const void *attributes, size_t attributes_bytes, int n_inputs,
                   Tensor *const *inputs, int n_outputs, Tensor *const *outputs) {
    Node *node = ARENA_NEW(&graph->arena, Node);
    node->op = op;
    node->attributes = attributes_bytes ? arena_copy(&graph->arena, attributes, attributes_bytes) : NULL;
    node->attributes_bytes = attributes_bytes;
    node->n_inputs = n_inputs;
    node->n_outputs = n_outputs;
    node->section = graph->section;
    node->phase = section_phase(graph->section);
    node->chunk = graph->chunk;
    node->block = graph->block;
    node->regimes = graph->regimes;
    bool needs_gradient = false;
    for (int i = 0; i < n_inputs; i++) {
        node->input[i] = inputs[i];
        needs_gradient |= inputs[i] && inputs[i]->needs_gradient;
    }
    for (int i = 0; i < n_outputs; i++) {
        node->output[i] = outputs[i];
        if (!outputs[i]) continue;
        if (!outputs[i]->producer) outputs[i]->producer = node;
        if (graph->section == SECTION_FORWARD && outputs[i]->place == PLACE_ACTIVATION) {
            outputs[i]->needs_gradient = needs_gradient && dtype_info(outputs[i]->dtype)->is_float;
        }
    }
    graph_append(graph, node);
    return node;
}

void graph_append(Graph *graph, Node *node) {
    graph->node = grow(&graph->arena, graph->node, graph->n_nodes, &graph->node_capacity);
    graph->node[graph->n_nodes++] = node;
}

int64_t tensor_root_element(const Tensor *tensor) {
    size_t n_bytes = 0;
    for (const Tensor *part = tensor; part->base; part = part->base) n_bytes += part->base_offset;
    return (int64_t)(n_bytes / dtype_info(tensor->dtype)->n_bytes);
}

bool node_touches(const Node *node, const Tensor *tensor) {
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->input[i] == tensor) return true;
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->output[i] == tensor) return true;
    }
    return false;
}

const char *tensor_layer_name(Graph *graph, const Tensor *weight) {
    static const char suffix[] = ".weight";
    size_t length = strlen(weight->name), n_suffix = sizeof suffix - 1;
    bool ends = length > n_suffix && strcmp(weight->name + length - n_suffix, suffix) == 0;
    return ends ? arena_printf(&graph->arena, "%.*s", (int)(length - n_suffix), weight->name) : weight->name;
}

int64_t tensor_count(const Tensor *tensor) {
    return shape_count(tensor->shape);
}

size_t tensor_bytes(const Tensor *tensor) {
    return (size_t)shape_count(tensor->shape) * dtype_info(tensor->dtype)->n_bytes;
}

Cost op_cost(const Node *node) {
    Cost cost = {.flops = node->op->flops ? node->op->flops(node) : 0.0};
    if (node->op->bytes) {
        cost.bytes = node->op->bytes(node);
        return cost;
    }
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->input[i]) cost.bytes += (double)tensor_bytes(node->input[i]);
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (!node->output[i]) continue;
        double passes = node->write[i] == WRITE_FRESH ? 1.0 : 2.0; /* adding reads what is there */
        cost.bytes += passes * (double)tensor_bytes(node->output[i]);
    }
    return cost;
}

bool op_repeat(Graph *graph, Node *again, int output) {
    (void)graph, (void)again, (void)output;
    return true;
}
