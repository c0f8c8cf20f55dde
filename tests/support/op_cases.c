/* What all cases are made of: inputs, results, the loss, and how a case is opened and filled. The builders are in
 * op_cases_layers.c, op_cases_update.c and those beside them; they mirror the list in tests/golden/ops.py by the
 * names of the inputs: the name decides the data. */
#include "op_cases.h"
#include "op_case_inputs.h"

#include "graph/passes/sums.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* ---- the loss ---- */

static void loss_gradient(Autograd *autograd, const Node *node) {
    autograd_record(autograd, &OP_COPY, NULL, 0, 1, TENSORS(node->input[1]), 1, TENSORS(node->input[0]));
}

static Status loss_reference(const KernelCall *call, Error *error) {
    (void)call, (void)error;
    return STATUS_OK;
}

const Op OP_TEST_LOSS = {.name = "test_loss", .gradient = loss_gradient, .reference = loss_reference};

double case_loss(const OpCase *test, const TestMemory *memory) {
    const float *y = test_memory_at(memory, test->y), *dy = test_memory_at(memory, test->dy);
    double sum = 0.0;
    for (int64_t i = 0; i < tensor_count(test->y); i++)
        sum += (double)y[i] * (dy ? (double)dy[i] : test->loss_scale);
    return sum;
}

/* ---- inputs ---- */

CaseFill *case_add_fill(OpCase *test, Place place, DType dtype, Shape shape, const char *name) {
    assert_true(test->n_fills < CASE_MAX_FILLS);
    CaseFill *fill = &test->fill[test->n_fills++];
    *fill = (CaseFill){.tensor = graph_tensor(test->graph, place, dtype, shape, "%s", name)};
    return fill;
}

Tensor *case_floats(OpCase *test, Place place, Shape shape, const char *name, float scale, float offset) {
    CaseFill *fill = case_add_fill(test, place, DTYPE_F32, shape, name);
    fill->scale = scale;
    fill->offset = offset;
    return fill->tensor;
}

/* An activation that comes from elsewhere, in need of a gradient unless the case says not. */
Tensor *case_activation(OpCase *test, Shape shape, const char *name) {
    float scale = test->spec->flags & CASE_LARGE ? 30.0f : 1.0f;
    Tensor *x = case_floats(test, PLACE_ACTIVATION, shape, name, scale, 0.0f);
    x->needs_gradient = !(test->spec->flags & CASE_FIXED_X);
    return x;
}

Tensor *case_parameter(OpCase *test, Shape shape, const char *name, float offset) {
    Tensor *w = case_floats(test, PLACE_PARAMETER, shape, name, 0.5f, offset);
    w->needs_gradient = !(test->spec->flags & CASE_FIXED_W);
    return w;
}

Tensor *case_integers(OpCase *test, Shape shape, const char *name, int64_t below) {
    CaseFill *fill = case_add_fill(test, PLACE_INPUT, DTYPE_I32, shape, name);
    fill->below = (int32_t)below;
    return fill->tensor;
}

Tensor *case_literal(OpCase *test, DType dtype, int64_t count, const char *name, const void *values) {
    CaseFill *fill = case_add_fill(test, PLACE_INPUT, dtype, SHAPE(count), name);
    fill->literal = arena_copy(&test->graph->arena, values, (size_t)count * 4);
    return fill->tensor;
}

Tensor *case_random(OpCase *test) {
    static const int32_t words[N_RANDOM_WORDS] = {0x12345678, -0x6543210, 7, 11, 1};
    return case_literal(test, DTYPE_I32, N_RANDOM_WORDS, "random", words);
}

Tensor *case_state(OpCase *test, Shape shape, const char *name) {
    return graph_tensor(test->graph, PLACE_STATE, DTYPE_F32, shape, "%s", name);
}

/* From 0 or CASE_FIRST_POSITION on, or two runs. */
RowPositions case_positions(const OpCase *test, int64_t n_rows) {
    RowPositions positions = {.start = test->spec->flags & CASE_SHIFT ? CASE_FIRST_POSITION : 0};
    if (test->spec->flags & CASE_ZIGZAG) {
        positions.head = n_rows / 2;
        positions.skip = 4;
    }
    return positions;
}

/* What comes into an operation: given, or made of something given by a layer whose bias needs a gradient. */
Tensor *case_incoming(OpCase *test, Shape shape, const char *name) {
    enum { N_INPUTS = 3 };
    if (!(test->spec->flags & CASE_LAYER)) return case_activation(test, shape, name);
    Tensor *x = case_activation(test, shape_with_columns(shape, N_INPUTS), "layer.x");
    int64_t columns = shape_columns(shape);
    return op_linear(test->graph, x, case_parameter(test, SHAPE(columns, N_INPUTS), "layer.weight", 0.0f),
                     case_parameter(test, SHAPE(columns), "layer.bias", 0.0f), NULL, ACTIVATION_NONE);
}

void case_result(OpCase *test, const char *name, Tensor *tensor) {
    assert_true(test->n_results < CASE_MAX_RESULTS);
    test->result[test->n_results].name = name;
    test->result[test->n_results++].tensor = tensor;
}

/* y is a result, and the loss weighs it. */
void case_finish(OpCase *test, Tensor *y) {
    case_result(test, "y", y);
    Error error = {0};
    if (graph_status(test->graph, &error) != STATUS_OK || !y->needs_gradient) return;
    test->y = y;
    test->dy = case_floats(test, PLACE_INPUT, y->shape, "dy", 1.0f, 0.0f);
    graph_record(test->graph, &OP_TEST_LOSS, NULL, 0, 2, TENSORS(test->y, test->dy), 0, NULL);
}

const Node *case_last_node(const OpCase *test) {
    return test->graph->node[test->graph->n_nodes - 1];
}

void case_open(OpCase *test, const OpSpec *spec) {
    *test = (OpCase){.spec = spec, .graph = graph_new(), .loss_scale = 1.0};
    spec->build(test);
    Error error = {0};
    if (graph_status(test->graph, &error) != STATUS_OK) fail_msg("%s: %s", spec->label, error.text);
    AutogradOptions options = {.copy = &OP_COPY, .gradient_place = PLACE_GRADIENT};
    if (test->y && autograd_run(test->graph, &options, &error) != STATUS_OK)
        fail_msg("%s: %s", spec->label, error.text);
    move_column_sums(test->graph, NULL);
}

void case_close(OpCase *test) {
    graph_free(test->graph);
}

void case_fill(const OpCase *test, TestMemory *memory) {
    for (int k = 0; k < test->n_fills; k++) {
        const CaseFill *fill = &test->fill[k];
        const char *name = fill->tensor->name;
        int64_t count = tensor_count(fill->tensor);
        void *data = test_memory_at(memory, fill->tensor);
        if (fill->literal) memcpy(data, fill->literal, (size_t)count * 4);
        for (int64_t i = 0; !fill->literal && i < count; i++) {
            if (fill->tensor->dtype == DTYPE_F32) {
                ((float *)data)[i] = fill->offset + fill->scale * test_value(name, (uint64_t)i);
            } else {
                int32_t value = (int32_t)(test_hash(name, (uint64_t)i) % (uint32_t)fill->below);
                ((int32_t *)data)[i] = fill->some_negative && i % 3 == 1 ? -1 : value;
            }
        }
    }
}

bool case_is_filled(const OpCase *test, const Tensor *tensor) {
    for (int k = 0; k < test->n_fills; k++) {
        if (test->fill[k].tensor == tensor) return true;
    }
    return false;
}

Tensor *case_find(const OpCase *test, const char *name) {
    for (int k = 0; k < test->n_results; k++) {
        if (strcmp(test->result[k].name, name) == 0) return test->result[k].tensor;
    }
    for (int k = 0; k < test->n_fills; k++) {
        Tensor *tensor = test->fill[k].tensor;
        if (strcmp(tensor->name, name) == 0) return tensor;
        if (name[0] == 'd' && strcmp(tensor->name, name + 1) == 0) return tensor->gradient;
    }
    return NULL;
}
