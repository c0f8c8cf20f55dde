/* The builders mirror the list in tests/golden/ops.py by the names of the inputs: the name decides the data. */
#include "op_cases.h"
#include "op_case_inputs.h"

#include "graph/passes/sums.h"
#include "ops/compress/compress.h"
#include "ops/compress/local_step.h"
#include "ops/compress/lowrank.h"
#include "ops/update/adamw.h"
#include "ops/update/lamb_coefficient.h"
#include "ops/update/muon.h"
#include "ops/update/sgd.h"
#include "optim/optimizer.h"

#include <math.h>
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

/* ---- the operations ---- */

/* From 0 or CASE_FIRST_POSITION on, or two runs. */
RowPositions case_positions(const OpCase *test, int64_t n_rows) {
    RowPositions positions = {.start = test->spec->flags & CASE_SHIFT ? CASE_FIRST_POSITION : 0};
    if (test->spec->flags & CASE_ZIGZAG) {
        positions.head = n_rows / 2;
        positions.skip = 4;
    }
    return positions;
}

void build_embedding(OpCase *test) {
    const int64_t *size = test->spec->size;
    unsigned flags = test->spec->flags;
    bool is_split = flags & CASE_SPLIT;
    EmbeddingAttributes part = {
        .positions = case_positions(test, size[1]), .n_tokens = size[3], .n_all = size[3]};
    if (is_split) { /* the last row is padding, though there is a token of that number */
        part.n_tokens -= size[3] > 1;
        part.n_all = part.n_tokens + 5;
        part.first_token = 2;
    }
    Tensor *tokens = case_integers(test, SHAPE(size[0], size[1]), "tokens", part.n_all);
    Tensor *table = case_parameter(test, SHAPE(size[3], size[2]), "table", 0.0f), *positions = NULL,
           *start = NULL;
    if (flags & CASE_POSITIONS) positions = case_parameter(test, SHAPE(size[4], size[2]), "positions", 0.0f);
    if (flags & CASE_START)
        start =
            case_integers(test, SHAPE(size[0]), "start", size[4] - row_place(&part.positions, size[1] - 1));
    if (flags & CASE_DOCUMENTS) start = case_integers(test, SHAPE(size[0], size[1]), "start", size[4]);
    case_finish(test, op_embedding_part(test->graph, tokens, table, positions, start, &part));
}

void build_layernorm(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x");
    Tensor *weight = case_parameter(test, SHAPE(size[1]), "weight", 1.0f), *bias = NULL;
    if (test->spec->flags & CASE_BIAS) bias = case_parameter(test, SHAPE(size[1]), "bias", 0.0f);
    Tensor *y = op_layernorm(test->graph, x, weight, bias, 1e-5f);
    case_result(test, "mean", case_last_node(test)->output[1]);
    case_result(test, "rstd", case_last_node(test)->output[2]);
    case_finish(test, y);
}

void build_rmsnorm(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x");
    Tensor *y = op_rmsnorm(test->graph, x, case_parameter(test, SHAPE(size[1]), "weight", 1.0f), 1e-5f);
    case_result(test, "rstd", case_last_node(test)->output[1]);
    case_finish(test, y);
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

/* Rows from the middle of a sequence to that of another, which has two pieces here. */
static RowSplit split_rows(const OpCase *test) {
    if (!(test->spec->flags & CASE_SPLIT)) return (RowSplit){0};
    return (RowSplit){.first = 3, .length = 7, .head = 4, .start = {5, 40}};
}

void build_residual_norm(OpCase *test) {
    const int64_t *size = test->spec->size;
    unsigned flags = test->spec->flags;
    Shape shape = SHAPE(size[0], size[1], size[2]);
    Tensor *x = case_activation(test, shape, "x");
    Tensor *branch = flags & CASE_SAME ? x : case_incoming(test, shape, "branch"), *bias = NULL;
    Tensor *weight = case_parameter(test, SHAPE(size[2]), "weight", 1.0f);
    if (flags & CASE_BIAS) bias = case_parameter(test, SHAPE(size[2]), "bias", 0.0f);
    ResidualNormAttributes attributes = {1e-5f, !(flags & CASE_RMS), test->spec->number, 5, split_rows(test)};
    Tensor *random = attributes.probability > 0.0f ? case_random(test) : NULL;
    ResidualNorm both = op_residual_norm(test->graph, x, branch, weight, bias, random, &attributes);
    const Node *node = case_last_node(test);
    case_result(test, "sum", both.sum);
    if (node->output[2]) case_result(test, "mean", node->output[2]);
    case_result(test, "rstd", node->output[3]);
    Tensor *y = both.normed;
    if (flags & CASE_SUM_ONLY) y = both.sum;
    else if (flags & CASE_RESIDUAL)
        y = op_add(test->graph, op_gelu(test->graph, both.sum, ACTIVATION_GELU_TANH), both.normed);
    case_finish(test, y);
}

static Activation activation_of(const OpCase *test) {
    if (test->spec->flags & CASE_TANH) return ACTIVATION_GELU_TANH;
    return test->spec->flags & CASE_ERF ? ACTIVATION_GELU_ERF : ACTIVATION_NONE;
}

void build_linear(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x"), *bias = NULL, *residual = NULL;
    Tensor *weight = case_parameter(test, SHAPE(size[2], size[1]), "weight", 0.0f);
    if (test->spec->flags & CASE_BIAS) bias = case_parameter(test, SHAPE(size[2]), "bias", 0.0f);
    if (test->spec->flags & CASE_RESIDUAL)
        residual = case_activation(test, SHAPE(size[0], size[2]), "residual");
    case_finish(test, op_linear(test->graph, x, weight, bias, residual, activation_of(test)));
}

void build_mlp(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x");
    Tensor *up = case_parameter(test, SHAPE(size[2], size[1]), "up", 0.0f),
           *down = case_parameter(test, SHAPE(size[1], size[2]), "down", 0.0f),
           *bias = case_parameter(test, SHAPE(size[2]), "bias", 0.0f);
    Tensor *hidden = op_linear(test->graph, x, up, bias, NULL, activation_of(test));
    Tensor *y = op_linear(test->graph, hidden, down, NULL, NULL, ACTIVATION_NONE);
    if (test->spec->flags & CASE_RESIDUAL) /* a second reader of what is hidden */
        y = op_add(test->graph, y, op_linear(test->graph, hidden, down, NULL, NULL, ACTIVATION_NONE));
    case_finish(test, y);
}

void build_gelu(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0], test->spec->size[1]), "x");
    case_finish(test, op_gelu(test->graph, x, activation_of(test)));
}

void build_swiglu(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0], 2 * test->spec->size[1]), "x");
    case_finish(test, op_swiglu(test->graph, x));
}

void build_add(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0], test->spec->size[1]);
    Tensor *x = case_activation(test, shape, "x");
    case_finish(test, op_add(test->graph, x,
                             test->spec->flags & CASE_SAME ? x : case_activation(test, shape, "other")));
}

void build_copy(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0], test->spec->size[1]), "x");
    case_finish(test, op_copy(test->graph, x));
}

void build_zero(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0], test->spec->size[1]);
    if (test->spec->flags & CASE_SPLIT) { /* zeros in the place of what other ranks make of x */
        Tensor *x = case_activation(test, SHAPE(2, test->spec->size[1]), "x");
        case_finish(test, op_blank(test->graph, x, shape));
        return;
    }
    Tensor *y = graph_tensor(test->graph, PLACE_ACTIVATION, DTYPE_F32, shape, "y");
    op_zero(test->graph, y);
    case_result(test, "y", y);
}

void build_dropout(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1], size[2]), "x");
    DropoutAttributes attributes = {test->spec->number, 5, split_rows(test)};
    case_finish(test, op_dropout_split(test->graph, x, case_random(test), &attributes));
}

void build_gather(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x");
    case_finish(test, op_gather(test->graph, x, case_integers(test, SHAPE(size[2]), "rows", size[0])));
}

void build_pack(OpCase *test) {
    const int64_t *size = test->spec->size;
    int n_parts = (int)size[3];
    int64_t border[PACK_MAX_PARTS + 1] = {0};
    for (int p = 1; p < n_parts; p++) border[p] = p == 1 ? 0 : size[1] * (p + 1) / (n_parts + 1);
    border[n_parts] = size[1];
    Shape shape = SHAPE(size[0], size[1], size[2]);
    Tensor *packed = op_pack(test->graph, case_activation(test, shape, "x"), 1, n_parts, border);
    case_finish(test, op_unpack(test->graph, packed, shape, 1, 1, (int64_t[]){0, size[1]}));
}

void build_pack_pieces(OpCase *test) {
    const int64_t *size = test->spec->size;
    int n_parts = (int)size[3], n_runs = 3 * n_parts;
    int64_t border[PACK_MAX_PARTS * PACK_MAX_PIECES + 1] = {0};
    for (int i = 1; i < n_runs; i++) border[i] = size[1] * (i + i % 2) / (n_runs + 1);
    border[n_runs] = size[1];
    Tensor *x = case_activation(test, SHAPE(size[0], size[1], size[2]), "x");
    case_finish(test, op_pack_pieces(test->graph, x, 1, n_parts, 3, border));
}

void build_sum(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0], test->spec->size[1]), "x");
    Tensor *total = case_state(test, SHAPE_SCALAR, "total");
    op_sum(test->graph, x, total, 0.125f);
    case_result(test, "total", total);
}

void build_cross_entropy(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *logits = case_activation(test, SHAPE(size[0], size[1]), "logits");
    int64_t n_classes = size[2] ? size[2] : size[1];
    Tensor *targets = case_integers(test, SHAPE(size[0]), "targets", n_classes);
    test->fill[test->n_fills - 1].some_negative = test->spec->flags & CASE_IGNORE;
    Tensor *losses = graph_tensor(test->graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(size[0]), "losses");
    CrossEntropyAttributes attributes = {0.25f, n_classes};
    const float factor = 0.375f;
    bool is_scaled = test->spec->flags & CASE_FACTOR;
    Tensor *scale = is_scaled ? case_literal(test, DTYPE_F32, 1, "loss scale", &factor) : NULL;
    op_cross_entropy_scaled(test->graph, logits, targets, scale, losses, &attributes);
    case_result(test, "losses", losses);
    if (!logits->needs_gradient) return;
    test->y = losses;
    test->loss_scale = is_scaled ? 0.25 * 0.375 : 0.25;
}

void build_split_entropy(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *logits = case_activation(test, SHAPE(size[0], size[1]), "logits");
    SplitEntropyAttributes attributes = {0.25f, 3, size[2], size[2] + 7};
    Tensor *targets = case_integers(test, SHAPE(size[0]), "targets", attributes.n_all);
    test->fill[test->n_fills - 1].some_negative = test->spec->flags & CASE_IGNORE;
    Tensor *losses = graph_tensor(test->graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(size[0]), "losses");
    Tensor *part = op_split_entropy_part(test->graph, logits, targets, &attributes);
    Tensor *parts = graph_view(test->graph, part, SHAPE(1, size[0], ENTROPY_PARTS), 0, "parts");
    op_split_entropy(test->graph, logits, targets, parts, NULL, losses, &attributes);
    case_result(test, "part", part);
    case_result(test, "losses", losses);
    if (!logits->needs_gradient) return;
    test->y = losses;
    test->loss_scale = 0.25;
}

void build_squared_error(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0], test->spec->size[1]);
    Tensor *predictions = case_activation(test, shape, "predictions");
    Tensor *targets = case_floats(test, PLACE_INPUT, shape, "targets", 1.0f, 0.0f);
    Tensor *losses = op_squared_error(test->graph, predictions, targets, 0.25f);
    case_result(test, "losses", losses);
    if (!predictions->needs_gradient) return;
    test->y = losses;
    test->loss_scale = 0.25;
}

void build_squared_norm(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0]), "x");
    Tensor *total = case_floats(test, PLACE_STATE, SHAPE_SCALAR, "total", 1.0f, 3.0f);
    op_squared_norm(test->graph, x, total, test->spec->flags & CASE_ADD);
}

void build_clip(OpCase *test) {
    Tensor *total = case_floats(test, PLACE_STATE, SHAPE_SCALAR, "total", 1.0f, 3.0f);
    Tensor *factor = case_state(test, SHAPE_SCALAR, "clip_factor"),
           *norm = case_state(test, SHAPE_SCALAR, "norm");
    op_clip(test->graph, total, factor, norm, test->spec->number);
    case_result(test, "factor", factor);
    case_result(test, "norm", norm);
}

/* ---- optimizers: step 3, the first third and the last element decay ---- */

static UpdateElements elements_of(OpCase *test) {
    int64_t count = test->spec->size[0], third = count / 3;
    DecayRun runs[3] = {{third, true}, {count - third - 1, false}, {1, true}};
    return (UpdateElements){.n_runs = 3, .runs = arena_copy(&test->graph->arena, runs, sizeof runs)};
}

static Tensor *hyper_of(OpCase *test) {
    const float hyper[N_HYPER] = {0.02f, (float)(1.0 / (1.0 - pow((double)0.9f, 3.0))),
                                  (float)(1.0 / (1.0 - pow((double)0.95f, 3.0)))};
    return case_literal(test, DTYPE_F32, N_HYPER, "hyper", hyper);
}

static Tensor *factor_of(OpCase *test) {
    const float factor = 0.375f;
    return test->spec->flags & CASE_FACTOR ? case_literal(test, DTYPE_F32, 1, "factor", &factor) : NULL;
}

/* Gradient, parameter, and moments by their names; a second one is positive. */
static UpdateTensors update_of(OpCase *test, Tensor *hyper, int n_moments, const char *const *names) {
    Shape shape = SHAPE(test->spec->size[0]);
    test->graph->section = SECTION_UPDATE;
    UpdateTensors tensors = {.gradient = case_floats(test, PLACE_GRADIENT, shape, "gradient", 1.0f, 0.0f),
                             .hyper = hyper,
                             .factor = factor_of(test)};
    tensors.parameter = case_floats(test, PLACE_PARAMETER, shape, "parameter", 1.0f, 0.0f);
    for (int i = 0; i < n_moments; i++)
        tensors.moment[i] = case_floats(test, PLACE_OPTIMIZER, shape, names[i], 1.0f, i == 1 ? 1.5f : 0.0f);
    return tensors;
}

static const char *const moment_names[UPDATE_MAX_MOMENTS] = {"moment1", "moment2"};

/* From a gradient through all three operations, for as many ranks as there are slices, all of which send the
 * same of their first slice. */
void build_compress(OpCase *test) {
    Graph *graph = test->graph;
    const int64_t *size = test->spec->size, n = size[0];
    int n_slices = (int)size[2];
    bool is_momentum = size[3];
    int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, n_slices + 1);
    for (int i = 0; i < n_slices; i++)
        border[i + 1] = i + 1 == n_slices ? n : n / n_slices * (i + 1) / 64 * 64;
    CompressAttributes a = {.codec = {(CodecKind)size[1], 3},
                            .n_slices = n_slices,
                            .border = border,
                            .gain = 0.4f,
                            .keep = is_momentum ? 0.9f : 0.0f,
                            .bound = is_momentum ? 0.7f : 0.0f};
    Tensor *factor = test->spec->flags & CASE_FACTOR
                         ? case_literal(test, DTYPE_F32, 1, "factor", (const float[]){0.5f})
                         : NULL;
    CompressTensors tensors = {.gradient = case_activation(test, SHAPE(n), "gradient"),
                               .momentum = is_momentum ? case_activation(test, SHAPE(n), "momentum") : NULL,
                               .variance =
                                   is_momentum ? case_parameter(test, SHAPE(n), "variance", 4.0f) : NULL,
                               .factor = factor,
                               .error = case_activation(test, SHAPE(n), "error")};
    graph->section = SECTION_UPDATE;
    Tensor *words = op_compress(graph, &tensors, &a);
    CompressAttributes one = a;
    int64_t first = border[1], n_words = codec_words(&a.codec, first);
    one.n_slices = 1;
    one.gain = 0.25f;
    CompressTensors owner = {
        .variance = is_momentum ? graph_view(graph, tensors.variance, SHAPE(first), 0, "variance") : NULL,
        .factor = factor,
        .error = case_activation(test, SHAPE(first), "owner error")};
    Tensor *mine = graph_view(graph, words, SHAPE(n_words), 0, "words");
    Tensor *combined = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(n_words), "combined");
    op_combine(graph, mine, &owner, combined, &one);
    Tensor *numbers = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(n), "numbers");
    op_expand(graph, words, &(CompressTensors){.variance = tensors.variance}, numbers, &a);
}

/* Two matrices, the second of half as many rows, and a few elements between them; then all operations. */
void build_lowrank(OpCase *test) {
    Graph *graph = test->graph;
    const int64_t *size = test->spec->size, rows = size[0], columns = size[1];
    enum { BETWEEN = 5 };
    int rank = (int)size[2];
    LowRankMatrix *matrix = ARENA_ARRAY(&graph->arena, LowRankMatrix, 2);
    LowRankRun *run = ARENA_ARRAY(&graph->arena, LowRankRun, 1);
    int64_t few = rows / 2 + 1, n = (rows + few) * columns + BETWEEN;
    matrix[0] = (LowRankMatrix){.rows = rows, .columns = columns, .seed = 7};
    *run = (LowRankRun){rows * columns, BETWEEN, rank * rows};
    matrix[1] =
        (LowRankMatrix){rows * columns + BETWEEN, few, columns, rank * rows + BETWEEN, rank * columns, 8};
    LowRankAttributes a = {.rank = rank,
                           .n_matrices = 2,
                           .n_runs = 1,
                           .matrix = matrix,
                           .run = run,
                           .n_message = rank * (rows + few) + BETWEEN,
                           .n_basis = 2 * rank * columns,
                           .share = 0.25f};
    LowRankTensors tensors = {.gradient = case_activation(test, SHAPE(n), "gradient"),
                              .error = case_activation(test, SHAPE(n), "error"),
                              .basis = case_activation(test, SHAPE(a.n_basis), "basis")};
    if (test->spec->flags & CASE_FACTOR)
        tensors.factor = case_literal(test, DTYPE_F32, 1, "factor", (const float[]){0.5f});
    graph->section = SECTION_UPDATE;
    Tensor *message = op_lowrank_project(graph, &tensors, &a);
    message = op_lowrank_orthonormal(graph, message, &a);
    Tensor *returned = op_lowrank_return(graph, message, &tensors, &a);
    op_lowrank_expand(graph, message, returned, &tensors, &a);
    if (tensors.factor) op_rescale(graph, tensors.gradient, tensors.factor);
}

/* Two of a rank's own steps, of which the second leaves the weights alone, and one that joins the others. */
void build_local_step(OpCase *test) {
    Graph *graph = test->graph;
    Shape shape = SHAPE(test->spec->size[0]);
    const float numbers[N_LOCAL] = {[LOCAL_STEP] = 0.02f,
                                    [LOCAL_KEEP] = 0.875f,
                                    [LOCAL_DISTANCE] = 0.05f,
                                    [LOCAL_PER_DISTANCE] = 20.0f,
                                    [LOCAL_ROOT] = 1.5f};
    LocalAttributes attributes = {.elements = elements_of(test),
                                  .beta1 = 0.9f,
                                  .gain = 0.4f,
                                  .bound = 0.3f, /* cuts some */
                                  .epsilon = 1e-2f};
    LocalTensors tensors = {.gradient = case_floats(test, PLACE_GRADIENT, shape, "gradient", 1.0f, 0.0f),
                            .variance = case_floats(test, PLACE_OPTIMIZER, shape, "variance", 1.0f, 1.5f),
                            .numbers = case_literal(test, DTYPE_F32, N_LOCAL, "numbers", numbers),
                            .factor = factor_of(test),
                            .momentum = case_floats(test, PLACE_OPTIMIZER, shape, "momentum", 1.0f, 0.0f),
                            .buffer = case_floats(test, PLACE_OPTIMIZER, shape, "buffer", 0.1f, 0.0f),
                            .common = case_floats(test, PLACE_OPTIMIZER, shape, "common", 1.0f, 0.0f),
                            .parameter = case_floats(test, PLACE_PARAMETER, shape, "parameter", 1.0f, 0.0f)};
    graph->section = SECTION_UPDATE;
    op_local_step(graph, &tensors, &attributes);
    LocalTensors quiet = tensors;
    quiet.parameter = NULL;
    op_local_step(graph, &quiet, &attributes);
    op_local_join(graph, &tensors, &attributes);
}

void build_adamw(OpCase *test) {
    AdamwAttributes attributes = {.elements = elements_of(test),
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .epsilon = 1e-8f,
                                  .weight_decay = 0.25f};
    UpdateTensors tensors = update_of(test, hyper_of(test), 2, moment_names);
    op_adamw(test->graph, &tensors, &attributes);
}

void build_sgd(OpCase *test) {
    bool has_momentum = test->spec->flags & CASE_MOMENTUM;
    SgdAttributes attributes = {.elements = elements_of(test),
                                .momentum = has_momentum ? 0.75f : 0.0f,
                                .weight_decay = 0.25f,
                                .nesterov = test->spec->flags & CASE_NESTEROV};
    UpdateTensors tensors =
        update_of(test, hyper_of(test), has_momentum ? 1 : 0, (const char *const[]){"momentum"});
    op_sgd(test->graph, &tensors, &attributes);
}

/* The first third is two tensors, of which one has a part that somebody else counts; the last element is a
 * third. */
void build_lamb(OpCase *test) {
    int64_t count = test->spec->size[0], third = count / 3, first = 1000;
    TensorSpan spans[] = {{first, first + third / 2, 1, true},
                          {first + third / 2, first + third / 2 + third / 8, 0, true},
                          {first + third / 2 + third / 8, first + third, 0, false},
                          {first + count - 1, first + count, 2, true}};
    LambAttributes attributes = {
        .elements = elements_of(test),
        .spans = {4, arena_copy(&test->graph->arena, spans, sizeof spans)},
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-6f,
        .weight_decay = 0.25f,
        .max_ratio = test->spec->number,
    };
    attributes.elements.first_element = first;
    UpdateTensors tensors = update_of(test, hyper_of(test), 2, moment_names);
    tensors.sums = case_floats(test, PLACE_STATE, SHAPE(3, UPDATE_SUMS), "sums", 0.0f, 0.0f);
    op_lamb_measure(test->graph, &tensors, &attributes);
    op_lamb(test->graph, &tensors, &attributes);
}

/* Two averages, then a change of momentum, by the same tensors as LAMB's, and what is made of it. */
void build_lamb_coefficient(OpCase *test) {
    Graph *graph = test->graph;
    int64_t count = test->spec->size[0], third = count / 3, first = 1000;
    TensorSpan spans[] = {{first - 5, first + third / 2, 1, true}, /* begins in another array */
                          {first + third / 2, first + third, 0, false},
                          {first + count - 1, first + count + 3, 2, true}};
    LambAverageAttributes average = {.beta = 0.75f, .max_ratio = test->spec->number};
    LambFreshenAttributes freshen = {.first_element = first,
                                     .spans = {3, arena_copy(&graph->arena, spans, sizeof spans)},
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .epsilon = 1e-2f};
    LambAdaptAttributes adapt = {.lowest = 0.5f, .highest = 4.0f, .change = 0.25f};
    const float hyper[N_HYPER] = {
        [HYPER_CORRECTION2] = 7.0f, [HYPER_FRESH] = 3.0f, [HYPER_RATE] = 0.1f, [HYPER_CORRECTION1] = 2.0f};
    graph->section = SECTION_UPDATE;
    Shape shape = SHAPE(count);
    Tensor *factor = factor_of(test),
           *sums = case_floats(test, PLACE_STATE, SHAPE(3, UPDATE_SUMS), "sums", 1.0f, 2.0f),
           *coefficients =
               case_floats(test, PLACE_OPTIMIZER, SHAPE(3, N_COEFFICIENTS), "coefficients", 0.2f, 0.5f);
    LambFreshenTensors tensors = {.before = case_floats(test, PLACE_STATE, shape, "before", 1.0f, 0.0f),
                                  .momentum = case_floats(test, PLACE_STATE, shape, "momentum", 1.0f, 0.0f),
                                  .variance =
                                      case_floats(test, PLACE_OPTIMIZER, shape, "variance", 1.0f, 1.5f),
                                  .hyper = case_literal(test, DTYPE_F32, N_HYPER, "hyper", hyper),
                                  .factor = factor,
                                  .ratios = case_floats(test, PLACE_STATE, SHAPE(3), "ratios", 0.0f, 0.0f),
                                  .fresh = case_floats(test, PLACE_OPTIMIZER, shape, "fresh", 1.0f, 1.5f)};
    op_lamb_average(graph, sums, factor, coefficients, &average);
    op_lamb_average(graph, sums, factor, coefficients, &average);
    op_lamb_freshen(graph, &tensors, &freshen);
    op_lamb_adapt(graph, tensors.ratios, factor, coefficients, sums, &adapt);
}

static MuonAttributes muon_of(OpCase *test) {
    return (MuonAttributes){.elements = elements_of(test),
                            .momentum = 0.75f,
                            .weight_decay = 0.25f,
                            .rate_factor = 0.5f,
                            .nesterov = test->spec->flags & CASE_NESTEROV};
}

void build_muon_elements(OpCase *test) {
    MuonAttributes attributes = muon_of(test);
    Shape shape = SHAPE(test->spec->size[0]);
    UpdateTensors tensors = update_of(test, hyper_of(test), 1, (const char *const[]){"momentum"});
    Tensor *direction = case_state(test, shape, "direction"),
           *step = case_floats(test, PLACE_STATE, shape, "step", 1.0f, 0.0f);
    op_muon_momentum(test->graph, &tensors, direction, &attributes);
    op_muon(test->graph, &tensors, step, &attributes);
    case_result(test, "direction", direction);
}

/* All of it: momentum, five steps of Newton and Schulz, the step. */
void build_muon(OpCase *test) {
    MuonAttributes attributes = muon_of(test);
    int64_t rows = test->spec->size[1], columns = test->spec->size[2], side = rows < columns ? rows : columns;
    UpdateTensors tensors = update_of(test, hyper_of(test), 1, (const char *const[]){"momentum"});
    Tensor *direction = case_state(test, SHAPE(rows * columns), "direction"),
           *step = case_state(test, SHAPE(rows * columns), "step");
    MuonRoom room = {.x = case_state(test, SHAPE(rows * columns), "x"),
                     .y = case_state(test, SHAPE(rows * columns), "y"),
                     .square1 = case_state(test, SHAPE(side * side), "square1"),
                     .square2 = case_state(test, SHAPE(side * side), "square2"),
                     .total = case_state(test, SHAPE_SCALAR, "total")};
    op_muon_momentum(test->graph, &tensors, direction, &attributes);
    muon_orthogonalise(test->graph, direction, step, rows, columns, test->spec->number, &room);
    op_muon(test->graph, &tensors, step, &attributes);
    case_result(test, "step", step);
}

void build_muon_polynomial(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0], test->spec->size[0]);
    test->graph->section = SECTION_UPDATE;
    Tensor *y = case_state(test, shape, "y");
    op_muon_polynomial(test->graph, case_floats(test, PLACE_STATE, shape, "matrix", 1.0f, 0.0f),
                       case_floats(test, PLACE_STATE, shape, "square", 1.0f, 0.0f), y,
                       (MuonPolynomial){3.0f, -4.0f, 2.0f});
    case_result(test, "y", y);
}

void build_muon_normalise(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0]);
    test->graph->section = SECTION_UPDATE;
    Tensor *y = case_state(test, shape, "y");
    op_muon_normalise(test->graph, case_floats(test, PLACE_STATE, shape, "x", 1.0f, 0.0f),
                      case_floats(test, PLACE_STATE, SHAPE_SCALAR, "squares", 1.0f, 3.0f), y);
    case_result(test, "y", y);
}

/* The middle of every dim but the first, whose end is left out. */
void build_box(OpCase *test) {
    const int64_t *size = test->spec->size;
    BoxAttributes attributes = {
        .whole = SHAPE(size[0], size[1], size[2]),
        .box = {SHAPE(size[0] - 1, (size[1] + 1) / 2, (size[2] + 1) / 2), {0, size[1] / 4, size[2] / 4}},
        .takes = test->spec->flags & CASE_TAKES};
    test->graph->section = SECTION_UPDATE;
    Shape part = attributes.box.shape;
    Tensor *x = case_floats(test, PLACE_STATE, attributes.takes ? attributes.whole : part, "x", 1.0f, 0.0f);
    Tensor *y = case_floats(test, PLACE_STATE, attributes.takes ? part : attributes.whole, "y", 1.0f, 0.0f);
    op_box(test->graph, x, y, &attributes);
    case_result(test, "y", y);
}

void build_optimizer(OpCase *test) {
    enum { STEP = 2, SEED = 1 };
    OptimizerOptions options = optimizer_defaults((OptimizerKind)test->spec->size[1]);
    UpdateElements elements = elements_of(test);
    float numbers[N_HYPER];
    options.weight_decay = 0.25;
    optimizer_hyper(&options, 0.02, STEP, SEED, numbers);
    UpdateTensors tensors = update_of(test, case_literal(test, DTYPE_F32, N_HYPER, "hyper", numbers),
                                      optimizer_n_moments(&options), moment_names);
    optimizer_record_alone(optimizer_of(&options), &options, &tensors, &elements, test->graph);
}

/* x is read three times and its gradient shared twice. */
void build_block(OpCase *test) {
    int64_t rows = test->spec->size[0], channels = test->spec->size[1];
    Tensor *x = case_activation(test, SHAPE(rows, channels), "x");
    Tensor *weight = case_parameter(test, SHAPE(channels, channels), "weight", 0.0f);
    Tensor *bias = case_parameter(test, SHAPE(channels), "bias", 0.0f);
    Tensor *scale = case_parameter(test, SHAPE(channels), "scale", 1.0f);
    Tensor *normal = op_layernorm(test->graph, x, scale, NULL, 1e-5f);
    Tensor *hidden = op_linear(test->graph, normal, weight, bias, x, ACTIVATION_GELU_TANH);
    Tensor *sum = op_add(test->graph, hidden, x);
    case_finish(test, op_linear(test->graph, sum, weight, NULL, hidden, ACTIVATION_NONE));
}
