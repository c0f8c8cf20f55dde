/* Numbers as nodes, in the form that a processor likes.
 *
 * The textbook's form of this engine is an object per number with a list of its parents, a depth-first search
 * for a topological order, and a function per node for its share of the chain rule. It spends its time on
 * allocating nodes one by one and on following pointers between them. Here a node is an index. A node's
 * operands exist before it does, so the order of recording is a topological order already, and the search
 * disappears: forward is a walk over the list of steps from the front, backward the same walk from the back,
 * without recursion, however deep the graph. Values and gradients are arrays beside the list, and all of it
 * is one piece of memory: an arena that is freed at once. Leaves are in no step, so a sweep does not touch
 * what there is nothing to compute for.
 *
 * A recorded graph can be run again with other leaves. Whoever has the same formula for many inputs records
 * it once. */
#include "lab/linear/scalar.h"

#include "base/system/memory.h"
#include "lab/linear/scalar_rules.h"

#include <string.h>

enum { FIRST_CAPACITY = 1024 };
#define MOST_NODES ((int64_t)UINT32_MAX)

/* Bytes that a graph of so many nodes takes: there are no more steps than nodes. */
static size_t bytes_for(int64_t capacity) {
    return (size_t)capacity * (2 * sizeof(double) + sizeof(ScalarStep));
}

Status scalar_reserve(ScalarGraph *graph, int64_t n_nodes, Error *error) {
    if (n_nodes <= graph->capacity) return STATUS_OK;
    if (n_nodes > MOST_NODES)
        return error_user(error, "a graph of %lld numbers is larger than the %lld that there can be",
                          (long long)n_nodes, (long long)MOST_NODES);
    void *memory;
    TRY(memory_alloc(&memory, bytes_for(n_nodes), "the graph of numbers", error));
    double *value = memory, *gradient = value + n_nodes;
    ScalarStep *step = (ScalarStep *)(void *)(gradient + n_nodes);
    if (graph->memory) {
        memcpy(value, graph->value, (size_t)graph->n_nodes * sizeof *value);
        memcpy(gradient, graph->gradient, (size_t)graph->n_nodes * sizeof *gradient);
        memcpy(step, graph->step, (size_t)graph->n_steps * sizeof *step);
        memory_free(graph->memory, graph->memory_bytes);
    }
    graph->value = value;
    graph->gradient = gradient;
    graph->step = step;
    graph->capacity = n_nodes;
    graph->memory = memory;
    graph->memory_bytes = bytes_for(n_nodes);
    return STATUS_OK;
}

void scalar_close(ScalarGraph *graph) {
    memory_free(graph->memory, graph->memory_bytes);
    *graph = (ScalarGraph){0};
}

Status scalar_status(const ScalarGraph *graph, Error *error) {
    if (graph->error.status != STATUS_OK) *error = graph->error;
    return graph->error.status;
}

/* ---- Recording */

/* A mistake leaves node 0, which no caller reads: it asks for the status first. */
Scalar scalar_leaf(ScalarGraph *graph, double value) {
    if (graph->error.status != STATUS_OK) return 0;
    if (graph->n_nodes == graph->capacity) {
        int64_t wanted = graph->capacity ? 2 * graph->capacity : FIRST_CAPACITY;
        if (wanted > MOST_NODES && graph->capacity < MOST_NODES) wanted = MOST_NODES;
        if (scalar_reserve(graph, wanted, &graph->error) != STATUS_OK) return 0;
    }
    graph->value[graph->n_nodes] = value;
    graph->gradient[graph->n_nodes] = 0.0;
    return (Scalar)graph->n_nodes++;
}

static double value_of(ScalarGraph *graph, Scalar node) {
    if (graph->error.status == STATUS_OK && node >= graph->n_nodes)
        error_failed(&graph->error, "node %u of a graph of %lld numbers does not exist", node,
                     (long long)graph->n_nodes);
    return graph->error.status == STATUS_OK ? graph->value[node] : 0.0;
}

static Scalar record(ScalarGraph *graph, ScalarOperation operation, Scalar left, Scalar right) {
    double value = scalar_rule_value(operation, value_of(graph, left), value_of(graph, right));
    Scalar result = scalar_leaf(graph, value);
    if (graph->error.status != STATUS_OK) return 0;
    graph->step[graph->n_steps++] = (ScalarStep){operation, left, right, result};
    return result;
}

Scalar scalar_add(ScalarGraph *graph, Scalar left, Scalar right) {
    return record(graph, SCALAR_ADD, left, right);
}

Scalar scalar_subtract(ScalarGraph *graph, Scalar left, Scalar right) {
    return record(graph, SCALAR_SUBTRACT, left, right);
}

Scalar scalar_multiply(ScalarGraph *graph, Scalar left, Scalar right) {
    return record(graph, SCALAR_MULTIPLY, left, right);
}

Scalar scalar_divide(ScalarGraph *graph, Scalar left, Scalar right) {
    return record(graph, SCALAR_DIVIDE, left, right);
}

Scalar scalar_power(ScalarGraph *graph, Scalar base, Scalar exponent) {
    return record(graph, SCALAR_POWER, base, exponent);
}

Scalar scalar_exp(ScalarGraph *graph, Scalar operand) {
    return record(graph, SCALAR_EXP, operand, operand);
}

Scalar scalar_log(ScalarGraph *graph, Scalar operand) {
    return record(graph, SCALAR_LOG, operand, operand);
}

Scalar scalar_tanh(ScalarGraph *graph, Scalar operand) {
    return record(graph, SCALAR_TANH, operand, operand);
}

Scalar scalar_relu(ScalarGraph *graph, Scalar operand) {
    return record(graph, SCALAR_RELU, operand, operand);
}

/* ---- Sweeps */

/* The four operations of arithmetic are written out where they are swept over: behind them stand calls of the
 * C library, and a loop that may call keeps its numbers in memory, which takes twice the time. */
__attribute__((noinline)) static void compute_step(double *value, const ScalarStep *step) {
    value[step->result] =
        scalar_rule_value((ScalarOperation)step->operation, value[step->left], value[step->right]);
}

__attribute__((noinline)) static void add_slopes(const double *value, double *gradient,
                                                 const ScalarStep *step) {
    ScalarSlopes slopes = scalar_rule_slopes((ScalarOperation)step->operation, value[step->left],
                                             value[step->right], value[step->result], gradient[step->result]);
    gradient[step->left] += slopes.left;
    gradient[step->right] += slopes.right;
}

void scalar_forward(ScalarGraph *graph) {
    double *value = graph->value;
    const ScalarStep *end = graph->step + graph->n_steps;
    for (const ScalarStep *step = graph->step; step < end; step++) {
        double left = value[step->left], right = value[step->right];
        switch ((ScalarOperation)step->operation) {
        case SCALAR_ADD: value[step->result] = left + right; break;
        case SCALAR_SUBTRACT: value[step->result] = left - right; break;
        case SCALAR_MULTIPLY: value[step->result] = left * right; break;
        case SCALAR_DIVIDE: value[step->result] = left / right; break;
        default: compute_step(value, step);
        }
    }
}

/* The steps up to the one that makes `root`: results rise along the list. */
static int64_t steps_up_to(const ScalarGraph *graph, Scalar root) {
    int64_t first = 0,
            end = graph->n_steps; /* in [first, end) is the first step whose result is beyond the root */
    while (first < end) {
        int64_t middle = first + (end - first) / 2;
        if (graph->step[middle].result <= root) first = middle + 1;
        else end = middle;
    }
    return first;
}

/* A node may be an operand twice of one step, and of many steps: everybody adds, one after the other. */
void scalar_backward(ScalarGraph *graph, Scalar root) {
    const double *value = graph->value;
    double *gradient = graph->gradient;
    if (root >= graph->n_nodes) return;
    memset(gradient, 0, (size_t)graph->n_nodes * sizeof *gradient);
    gradient[root] = 1.0;
    for (const ScalarStep *step = graph->step + steps_up_to(graph, root); step-- > graph->step;) {
        double slope = gradient[step->result];
        switch ((ScalarOperation)step->operation) {
        case SCALAR_ADD:
            gradient[step->left] += slope;
            gradient[step->right] += slope;
            break;
        case SCALAR_SUBTRACT:
            gradient[step->left] += slope;
            gradient[step->right] -= slope;
            break;
        case SCALAR_MULTIPLY:
            gradient[step->left] += slope * value[step->right];
            gradient[step->right] += slope * value[step->left];
            break;
        case SCALAR_DIVIDE: {
            double share = slope / value[step->right];
            gradient[step->left] += share;
            gradient[step->right] -= share * value[step->result];
            break;
        }
        default: add_slopes(value, gradient, step);
        }
    }
}
