/* Nothing here is made slow on purpose. A node is one malloc of 56 bytes, without a reference count, a name
 * or a closure, which other such engines have beside; the search keeps its own stack in an array, so it needs
 * no recursion; and a node is freed without looking at others. What is left is what the
 * form costs: the allocator, which threads share, memory that is touched for the first time in every epoch,
 * and a walk along pointers. */
#include "lab/linear/objects.h"

#include "lab/linear/scalar_rules.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 1024 };

static ObjectNode *new_node(ObjectGraph *graph) {
    ObjectNode *node = graph->has_failed ? NULL : malloc(sizeof *node);
    graph->has_failed = !node;
    if (!node) return NULL;
    node->before = graph->last;
    graph->last = node;
    graph->n_nodes++;
    return node;
}

ObjectNode *object_leaf(ObjectGraph *graph, double value) {
    ObjectNode *node = new_node(graph);
    if (node) *node = (ObjectNode){.value = value, .is_leaf = true, .before = node->before};
    return node;
}

ObjectNode *object_operation(ObjectGraph *graph, ScalarOperation operation, ObjectNode *left,
                             ObjectNode *right) {
    ObjectNode *node = left && right ? new_node(graph) : NULL;
    if (node)
        *node = (ObjectNode){.value = scalar_rule_value(operation, left->value, right->value),
                             .operation = operation,
                             .left = left,
                             .right = right,
                             .before = node->before};
    return node;
}

/* ---- The order */

static bool make_room(ObjectGraph *graph, int64_t n) {
    if (n <= graph->capacity) return true;
    int64_t capacity = graph->capacity ? graph->capacity : FIRST_CAPACITY;
    while (capacity < n) capacity *= 2;
    ObjectNode **order = realloc(graph->order, (size_t)capacity * sizeof *order);
    graph->has_failed = !order;
    if (!order) return false;
    graph->order = order;
    graph->capacity = capacity;
    return true;
}

/* One array holds both: nodes that are done grow from its front, and those that wait from its end. A node
 * waits until its operands are done, so it is looked at again after they were put above it. */
static bool find_order(ObjectGraph *graph, ObjectNode *root) {
    if (!make_room(graph, 3 * graph->n_nodes + 1)) return false;
    ObjectNode **end = graph->order + graph->capacity, **top = end;
    graph->n_order = 0;
    *--top = root;
    while (top < end) {
        ObjectNode *node = *top;
        bool has_left = !node->is_leaf && !node->left->is_visited,
             has_right = !node->is_leaf && !node->right->is_visited && node->right != node->left;
        if (!node->is_visited && !has_left && !has_right) {
            node->is_visited = true;
            graph->order[graph->n_order++] = node;
        }
        if (node->is_visited) {
            top++;
            continue;
        }
        if (has_right) *--top = node->right;
        if (has_left) *--top = node->left;
    }
    return true;
}

void object_backward(ObjectGraph *graph, ObjectNode *root) {
    if (!root || graph->has_failed || !find_order(graph, root)) return;
    root->gradient = 1.0;
    for (int64_t i = graph->n_order; i-- > 0;) {
        ObjectNode *node = graph->order[i];
        if (node->is_leaf) continue;
        ScalarSlopes slopes = scalar_rule_slopes(node->operation, node->left->value, node->right->value,
                                                 node->value, node->gradient);
        node->left->gradient += slopes.left;
        node->right->gradient += slopes.right;
    }
}

Status object_status(const ObjectGraph *graph, Error *error) {
    if (!graph->has_failed) return STATUS_OK;
    return error_failed(error, "no memory for more than %lld numbers allocated one by one",
                        (long long)graph->n_nodes);
}

void object_free(ObjectGraph *graph) {
    for (ObjectNode *node = graph->last; node;) {
        ObjectNode *before = node->before;
        free(node);
        node = before;
    }
    free(graph->order);
    *graph = (ObjectGraph){0};
}
