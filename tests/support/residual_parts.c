/* One program has both ways side by side on the same inputs. All its tensors persist, so that they can be compared after
 * it has run. */
#include "residual_parts.h"

#include "graph/wiring.h"
#include "harness.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_PAIRS = 8 };

typedef struct {
    Graph *graph;
    DType dtype;
    Shape shape;
    int n_pairs;
    Tensor *pair[MOST_PAIRS][2]; /* that are to be equal */
    Tensor *added[2];            /* dsum of either: something is there before */
} Parts;

static Tensor *given(const Parts *parts, DType dtype, Shape shape, const char *name) {
    return graph_tensor(parts->graph, PLACE_INPUT, dtype, shape, "%s", name);
}

static Tensor *made(const Parts *parts, DType dtype, Shape shape, const char *name) {
    return graph_tensor(parts->graph, PLACE_STATE, dtype, shape, "%s", name);
}

static void add_pair(Parts *parts, Tensor *one, Tensor *other) {
    assert_true(parts->n_pairs < MOST_PAIRS);
    parts->pair[parts->n_pairs][0] = one;
    parts->pair[parts->n_pairs++][1] = other;
}

/* The gradients of either way, in the order of residual_norm_backward's outputs. */
static void make_gradients(const Parts *parts, Tensor *gradient[4]) {
    Shape channels = SHAPE(shape_columns(parts->shape));
    gradient[0] = made(parts, parts->dtype, parts->shape, "dsum");
    gradient[1] = made(parts, DTYPE_F32, channels, "dweight");
    gradient[2] = made(parts, DTYPE_F32, channels, "dbias");
    gradient[3] = made(parts, parts->dtype, parts->shape, "dbranch");
}

static void record(Parts *parts, bool has_mean, float probability) {
    Graph *graph = parts->graph;
    Shape channels = SHAPE(shape_columns(parts->shape));
    Tensor *stream = given(parts, parts->dtype, parts->shape, "stream");
    Tensor *branch = given(parts, parts->dtype, parts->shape, "branch");
    Tensor *dnormed = given(parts, parts->dtype, parts->shape, "dnormed");
    Tensor *weight = given(parts, parts->dtype, channels, "weight");
    Tensor *bias = has_mean ? given(parts, parts->dtype, channels, "bias") : NULL;
    Tensor *random = given(parts, DTYPE_I32, SHAPE(N_RANDOM_WORDS), "random");
    ResidualNormAttributes a = {1e-5f, has_mean, probability, 3};
    ResidualNorm both = op_residual_norm(graph, stream, branch, weight, bias, random, &a);
    const Node *fused = graph->node[graph->n_nodes - 1];
    Tensor *sum = op_add(graph, stream, op_dropout(graph, branch, random, probability, a.site));
    Tensor *normed =
        has_mean ? op_layernorm(graph, sum, weight, bias, 1e-5f) : op_rmsnorm(graph, sum, weight, 1e-5f);
    const Node *norm = graph->node[graph->n_nodes - 1];
    Tensor *mean = has_mean ? norm->output[1] : NULL, *rstd = norm->output[has_mean ? 2 : 1];
    add_pair(parts, both.sum, sum);
    add_pair(parts, both.normed, normed);
    if (has_mean) add_pair(parts, fused->output[2], mean);
    add_pair(parts, fused->output[3], rstd);

    Tensor *one[4], *other[4];
    make_gradients(parts, one);
    make_gradients(parts, other);
    bool drops = probability > 0.0f;
    Node *node = graph_record(
        graph, &OP_RESIDUAL_NORM_BACKWARD, &a, sizeof a, 6,
        TENSORS(dnormed, both.sum, weight, fused->output[2], fused->output[3], drops ? random : NULL), 4,
        TENSORS(one[0], one[1], has_mean ? one[2] : NULL, drops ? one[3] : NULL));
    node->write[0] = WRITE_ADD;
    node = has_mean ? graph_record(graph, &OP_LAYERNORM_BACKWARD, NULL, 0, 5,
                                   TENSORS(dnormed, sum, weight, mean, rstd), 3, other)
                    : graph_record(graph, &OP_RMSNORM_BACKWARD, NULL, 0, 4,
                                   TENSORS(dnormed, sum, weight, rstd), 2, other);
    node->write[0] = WRITE_ADD;
    DropoutAttributes dropout = {probability, a.site};
    if (drops)
        graph_record(graph, &OP_DROPOUT, &dropout, sizeof dropout, 2, TENSORS(other[0], random), 1,
                     TENSORS(other[3]));
    for (int k = 0; k < 4; k++) {
        if ((k != 2 || has_mean) && (k != 3 || drops)) add_pair(parts, one[k], other[k]);
    }
    parts->added[0] = one[0];
    parts->added[1] = other[0];
}

static void fill(Executor *executor, const Tensor *tensor, const char *name) {
    int64_t n = tensor_count(tensor);
    float *values = malloc((size_t)(n + 1) * sizeof *values);
    assert_non_null(values);
    Error error = {0};
    for (int64_t i = 0; i < n; i++) values[i] = test_value(name, (uint64_t)i);
    if (executor_upload_f32(executor, tensor, 0, n, values, &error) != STATUS_OK) fail_msg("%s", error.text);
    free(values);
}

static void compare(Executor *executor, const Tensor *one, const Tensor *other, const char *label) {
    size_t n_bytes = tensor_bytes(one);
    char *a = malloc(n_bytes + 1), *b = malloc(n_bytes + 1);
    assert_non_null(a);
    assert_non_null(b);
    Error error = {0};
    if (executor_download(executor, one, a, &error) != STATUS_OK ||
        executor_download(executor, other, b, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    for (size_t i = 0; i < n_bytes; i++) {
        if (a[i] != b[i]) fail_msg("%s: byte %zu of %s is not that of %s", label, i, one->name, other->name);
    }
    free(a);
    free(b);
}

static void check(const Backend *backend, DType dtype, Shape shape, bool has_mean, float probability) {
    static const int32_t words[N_RANDOM_WORDS] = {0x12345678, -0x6543210, 7, 11};
    char label[128], size[80];
    snprintf(label, sizeof label, "%s, %s, %s, %s, dropout %g", backend->name, dtype_info(dtype)->name,
             shape_format(shape, size, sizeof size), has_mean ? "layernorm" : "rmsnorm", (double)probability);
    Parts parts = {.graph = graph_new(), .dtype = dtype, .shape = shape};
    record(&parts, has_mean, probability);
    for (int i = 0; i < parts.graph->n_tensors; i++) {
        Tensor *tensor = parts.graph->tensor[i];
        if (tensor->place == PLACE_ACTIVATION) tensor->place = PLACE_STATE;
    }
    Wiring wiring = {.graph = parts.graph};
    Executor *executor = &wiring.executor;
    Error error = {0};
    if (wiring_plan_alone(&wiring, "parts", backend, &error) != STATUS_OK ||
        wiring_open_alone(&wiring, backend, &error) != STATUS_OK)
        fail_msg("%s: %s", label, error.text);
    for (int i = 0; i < parts.graph->n_tensors; i++) {
        const Tensor *tensor = parts.graph->tensor[i];
        if (tensor->place != PLACE_INPUT) continue;
        if (tensor->dtype == DTYPE_I32) executor_upload(executor, tensor, words, &error);
        else fill(executor, tensor, tensor->name);
    }
    for (int i = 0; i < 2; i++) fill(executor, parts.added[i], "before");
    if (executor_run(executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error) != STATUS_OK)
        fail_msg("%s: %s", label, error.text);
    for (int i = 0; i < parts.n_pairs; i++) compare(executor, parts.pair[i][0], parts.pair[i][1], label);
    wiring_close_alone(&wiring);
}

void residual_norm_has_the_bits_of_its_parts(const Backend *backend) {
    static const DType dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const Shape shapes[] = {SHAPE(3, 50, 384), SHAPE(2, 37, 768), SHAPE(4, 9, 65), SHAPE(1, 3, 2504)};
    for (int i = 0; i < 3 * 4 * 2 * 2; i++)
        check(backend, dtypes[i % 3], shapes[i / 3 % 4], i / 12 % 2 == 0, i / 24 ? 0.2f : 0.0f);
}
