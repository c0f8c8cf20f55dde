/* The operations that the step at hand has no use for: other norms and activations, the other update,
 * clipping, what generation needs. A program of single nodes measures them at the sizes that they would have
 * in a step like this one, so that `bench ops` has a line for every kernel of a backend. (But for those that
 * are a whole step of generation, or end one: `bench generate` measures these.)
 *
 * All tensors that a node reads are inputs: kernels are timed one by one, and none waits for another's
 * result. */
#include "bench/rest.h"

#include "ops/ops.h"

#include <string.h>

typedef struct {
    Graph *graph;
    const ModelConfig *model;
    Precision precision;
    int64_t B, T, n_parameters;
} Rest;

/* ---- tensors */

static Tensor *input(const Rest *rest, DType dtype, Shape shape, const char *name) {
    return graph_tensor(rest->graph, PLACE_INPUT, dtype, shape, "%s", name);
}

static Tensor *output(const Rest *rest, DType dtype, Shape shape, const char *name) {
    return graph_tensor(rest->graph, PLACE_ACTIVATION, dtype, shape, "%s", name);
}

/* Inputs of the same name are the same. */
static Tensor *shared(const Rest *rest, DType dtype, Shape shape, const char *name) {
    for (int i = 0; i < rest->graph->n_tensors; i++) {
        Tensor *tensor = rest->graph->tensor[i];
        if (tensor->dtype == dtype && shape_equal(tensor->shape, shape) && strcmp(tensor->name, name) == 0)
            return tensor;
    }
    return input(rest, dtype, shape, name);
}

/* Activations of so many channels, and the gradient of such. */
static Tensor *rows(const Rest *rest, int64_t channels, const char *name) {
    return shared(rest, rest->precision.weight, SHAPE(rest->B, rest->T, channels), name);
}

static Tensor *channels(const Rest *rest, const char *name) {
    return shared(rest, rest->precision.weight, SHAPE(rest->model->n_channels), name);
}

static Tensor *statistic(const Rest *rest, const char *name) {
    return shared(rest, DTYPE_F32, SHAPE(rest->B * rest->T), name);
}

static Tensor *qkv(const Rest *rest, int64_t T) {
    const ModelConfig *model = rest->model;
    int64_t width = (model->n_heads + 2 * model->n_kv_heads) * config_head_size(model);
    return shared(rest, rest->precision.weight, SHAPE(rest->B, T, width), "qkv");
}

/* All parameters, or something of each of them, in a row. */
static Tensor *flat(const Rest *rest, Place place, DType dtype, const char *name) {
    return graph_tensor(rest->graph, place, dtype, SHAPE(rest->n_parameters), "%s", name);
}

/* ---- the operations */

static void record_layernorm(const Rest *rest) {
    op_layernorm(rest->graph, rows(rest, rest->model->n_channels, "x"), channels(rest, "weight"),
                 channels(rest, "bias"), NORM_EPSILON);
}

static void record_rmsnorm(const Rest *rest) {
    op_rmsnorm(rest->graph, rows(rest, rest->model->n_channels, "x"), channels(rest, "weight"), NORM_EPSILON);
}

static void record_norm_backward(const Rest *rest, const Op *op, bool has_mean) {
    int64_t C = rest->model->n_channels;
    NormAttributes attributes = {NORM_EPSILON};
    Tensor *dy = rows(rest, C, "dy"), *x = rows(rest, C, "x"), *weight = channels(rest, "weight");
    Tensor *rstd = statistic(rest, "rstd");
    Tensor *dx = output(rest, dy->dtype, dy->shape, "dx");
    Tensor *dweight = output(rest, rest->precision.gradient, SHAPE(C), "dweight");
    if (!has_mean) {
        graph_record(rest->graph, op, &attributes, sizeof attributes, 4, TENSORS(dy, x, weight, rstd), 2,
                     TENSORS(dx, dweight));
        return;
    }
    graph_record(rest->graph, op, &attributes, sizeof attributes, 5,
                 TENSORS(dy, x, weight, statistic(rest, "mean"), rstd), 3,
                 TENSORS(dx, dweight, output(rest, rest->precision.gradient, SHAPE(C), "dbias")));
}

static void record_layernorm_backward(const Rest *rest) {
    record_norm_backward(rest, &OP_LAYERNORM_BACKWARD, true);
}

static void record_rmsnorm_backward(const Rest *rest) {
    record_norm_backward(rest, &OP_RMSNORM_BACKWARD, false);
}

static Tensor *random_words(const Rest *rest) {
    return shared(rest, DTYPE_I32, SHAPE(N_RANDOM_WORDS), "random");
}

static const ResidualNormAttributes residual_norm = {
    .epsilon = NORM_EPSILON, .has_mean = true, .probability = 0.1f};

static void record_residual_norm(const Rest *rest) {
    int64_t C = rest->model->n_channels;
    op_residual_norm(rest->graph, rows(rest, C, "x"), rows(rest, C, "dy"), channels(rest, "weight"),
                     channels(rest, "bias"), random_words(rest), &residual_norm);
}

static void record_residual_norm_backward(const Rest *rest) {
    int64_t C = rest->model->n_channels;
    Tensor *dy = rows(rest, C, "dy"), *sum = rows(rest, C, "x"), *weight = channels(rest, "weight");
    Tensor *dsum = output(rest, dy->dtype, dy->shape, "dsum");
    Tensor *dbranch = output(rest, dy->dtype, dy->shape, "dbranch");
    Tensor *dweight = output(rest, rest->precision.gradient, SHAPE(C), "dweight");
    Tensor *dbias = output(rest, rest->precision.gradient, SHAPE(C), "dbias");
    Node *node = graph_record(
        rest->graph, &OP_RESIDUAL_NORM_BACKWARD, &residual_norm, sizeof residual_norm, 6,
        TENSORS(dy, sum, weight, statistic(rest, "mean"), statistic(rest, "rstd"), random_words(rest)), 4,
        TENSORS(dsum, dweight, dbias, dbranch));
    node->write[0] = WRITE_ADD; /* as where the stream goes on */
}

static void record_gelu(const Rest *rest) {
    op_gelu(rest->graph, rows(rest, rest->model->n_hidden, "hidden"), ACTIVATION_GELU_TANH);
}

static void record_gelu_backward(const Rest *rest) {
    LinearAttributes attributes = {ACTIVATION_GELU_TANH};
    Tensor *x = rows(rest, rest->model->n_hidden, "hidden"),
           *dy = rows(rest, rest->model->n_hidden, "dhidden");
    graph_record(rest->graph, &OP_GELU_BACKWARD, &attributes, sizeof attributes, 2, TENSORS(dy, x), 1,
                 TENSORS(output(rest, x->dtype, x->shape, "dx")));
}

static void record_swiglu(const Rest *rest) {
    op_swiglu(rest->graph, rows(rest, 2 * rest->model->n_hidden, "gated"));
}

static void record_swiglu_backward(const Rest *rest) {
    Tensor *x = rows(rest, 2 * rest->model->n_hidden, "gated"),
           *dy = rows(rest, rest->model->n_hidden, "dhidden");
    graph_record(rest->graph, &OP_SWIGLU_BACKWARD, NULL, 0, 2, TENSORS(dy, x), 1,
                 TENSORS(output(rest, x->dtype, x->shape, "dx")));
}

static void record_rotary(const Rest *rest) {
    const ModelConfig *model = rest->model;
    RotaryAttributes attributes = {.n_heads = (int)model->n_heads,
                                   .n_kv_heads = (int)model->n_kv_heads,
                                   .head_size = (int)config_head_size(model),
                                   .theta = (float)model->rotary_theta};
    if (attributes.head_size % 2 == 0) op_rotary(rest->graph, qkv(rest, rest->T), NULL, &attributes);
}

/* One new token of every sequence, its whole context in the cache. */
static void record_attention_cached(const Rest *rest) {
    const ModelConfig *model = rest->model;
    int head_size = (int)config_head_size(model);
    AttentionAttributes attributes = {.n_heads = (int)model->n_heads,
                                      .n_kv_heads = (int)model->n_kv_heads,
                                      .head_size = head_size,
                                      .scale = 0.125f};
    Shape shape = SHAPE(rest->B, model->n_kv_heads, model->context, head_size);
    Tensor *keys = graph_tensor(rest->graph, PLACE_STATE, rest->precision.weight, shape, "keys");
    Tensor *values = graph_tensor(rest->graph, PLACE_STATE, rest->precision.weight, shape, "values");
    op_attention_cached(rest->graph, qkv(rest, 1), input(rest, DTYPE_I32, SHAPE(rest->B), "start"), keys,
                        values, &attributes);
}

static void record_position_gradient(const Rest *rest) {
    EmbeddingAttributes attributes = {0};
    Shape table = SHAPE(rest->model->context, rest->model->n_channels);
    graph_record(rest->graph, &OP_EMBEDDING_POSITION_GRADIENT, &attributes, sizeof attributes, 2,
                 TENSORS(rows(rest, rest->model->n_channels, "dy"), NULL), 1,
                 TENSORS(output(rest, rest->precision.gradient, table, "dtable")));
}

static void record_add(const Rest *rest) {
    op_add(rest->graph, rows(rest, rest->model->n_channels, "x"), rows(rest, rest->model->n_channels, "dy"));
}

static void record_copy(const Rest *rest) {
    op_copy(rest->graph, rows(rest, rest->model->n_channels, "x"));
}

static void record_zero(const Rest *rest) {
    Shape shape = SHAPE(rest->B, rest->T, rest->model->n_channels);
    op_zero(rest->graph, output(rest, DTYPE_F32, shape, "cleared"));
}

static void record_dropout(const Rest *rest) {
    op_dropout(rest->graph, rows(rest, rest->model->n_channels, "x"), random_words(rest), 0.1f, 0);
}

static void record_gather(const Rest *rest) {
    op_gather(rest->graph, rows(rest, rest->model->n_channels, "x"),
              input(rest, DTYPE_I32, SHAPE(rest->B), "last"));
}

/* Channels cut in four, as for four ranks. */
static void record_pack(const Rest *rest) {
    int64_t C = rest->model->n_channels, border[] = {0, C / 4, C / 2, C / 2 + C / 4, C};
    op_pack(rest->graph, rows(rest, C, "x"), 2, 4, border);
}

static void record_squared_error(const Rest *rest) {
    op_squared_error(rest->graph, statistic(rest, "predictions"), statistic(rest, "truth"), 1.0f);
}

static void record_squared_norm(const Rest *rest) {
    Tensor *total = graph_tensor(rest->graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "total");
    op_squared_norm(rest->graph,
                    shared(rest, rest->precision.gradient, SHAPE(rest->n_parameters), "gradient"), total,
                    false);
}

static void record_clip(const Rest *rest) {
    op_clip(rest->graph, shared(rest, DTYPE_F32, SHAPE(1), "squares"),
            output(rest, DTYPE_F32, SHAPE(1), "factor"), output(rest, DTYPE_F32, SHAPE(1), "norm"), 1.0f);
}

/* In mixed precision the weights are f32 and a 16-bit copy is left for the next step. */
static void record_update(const Rest *rest, OptimizerKind kind) {
    static const char *const names[UPDATE_MAX_MOMENTS] = {"moment", "moment2"};
    const Precision *precision = &rest->precision;
    const OptimizerOptions options = optimizer_defaults(kind);
    const Optimizer *optimizer = optimizer_of(&options);
    UpdateTensors tensors = {
        .gradient = shared(rest, precision->gradient, SHAPE(rest->n_parameters), "gradient"),
        .hyper = shared(rest, DTYPE_F32, SHAPE(N_HYPER), "hyper"),
        .parameter =
            flat(rest, PLACE_PARAMETER, precision->has_master ? DTYPE_F32 : precision->weight, "parameter")};
    for (int i = 0; i < optimizer->n_moments(&options) && i < UPDATE_MAX_MOMENTS; i++)
        tensors.moment[i] = flat(rest, PLACE_OPTIMIZER, precision->moment, names[i]);
    if (precision->has_master) tensors.copy = flat(rest, PLACE_PARAMETER, precision->weight, "copy");
    DecayRun run = {rest->n_parameters, true};
    UpdateElements all = {.n_runs = 1, .runs = arena_copy(&rest->graph->arena, &run, sizeof run)};
    optimizer_record_alone(optimizer, &options, &tensors, &all, rest->graph);
}

/* Those that are in every step (embedding, linear, attention, cross_entropy, sum) need no line here. */
static const struct {
    const Op *op;
    void (*record)(const Rest *rest);
} operations[] = {
    {&OP_EMBEDDING_POSITION_GRADIENT, record_position_gradient},
    {&OP_LAYERNORM, record_layernorm},
    {&OP_LAYERNORM_BACKWARD, record_layernorm_backward},
    {&OP_RMSNORM, record_rmsnorm},
    {&OP_RMSNORM_BACKWARD, record_rmsnorm_backward},
    {&OP_RESIDUAL_NORM, record_residual_norm},
    {&OP_RESIDUAL_NORM_BACKWARD, record_residual_norm_backward},
    {&OP_GELU, record_gelu},
    {&OP_GELU_BACKWARD, record_gelu_backward},
    {&OP_SWIGLU, record_swiglu},
    {&OP_SWIGLU_BACKWARD, record_swiglu_backward},
    {&OP_ROTARY, record_rotary},
    {&OP_ATTENTION_CACHED, record_attention_cached},
    {&OP_ADD, record_add},
    {&OP_COPY, record_copy},
    {&OP_ZERO, record_zero},
    {&OP_DROPOUT, record_dropout},
    {&OP_GATHER, record_gather},
    {&OP_PACK, record_pack},
    {&OP_SQUARED_ERROR, record_squared_error},
    {&OP_SQUARED_NORM, record_squared_norm},
    {&OP_CLIP, record_clip},
};

static bool has_op(const Graph *graph, const Op *op) {
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->node[i]->op == op) return true;
    }
    return false;
}

void bench_record_rest(Graph *graph, const BenchSetup *setup, int64_t n_parameters, const Graph *step) {
    Rest rest = {.graph = graph,
                 .model = &setup->model,
                 .precision = precision_of((PrecisionKind)setup->bench.precision),
                 .B = setup->bench.micro_batch,
                 .T = setup->bench.sequence,
                 .n_parameters = n_parameters};
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        if (!has_op(step, operations[i].op)) operations[i].record(&rest);
    }
    for (int kind = N_OPTIMIZERS - 1; kind >= 0; kind--) {
        const OptimizerOptions options = {.kind = kind};
        if (!has_op(step, optimizer_of(&options)->op)) record_update(&rest, (OptimizerKind)kind);
    }
}

Status bench_fill_rest(Wiring *program, const BenchSetup *setup, Error *error) {
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        if (node->op != &OP_ATTENTION_CACHED) continue;
        int64_t count = tensor_count(node->input[1]);
        int32_t *start = ARENA_ARRAY(&program->graph->arena, int32_t, count);
        for (int64_t k = 0; k < count; k++) start[k] = (int32_t)setup->model.context - 1;
        TRY(executor_upload(&program->executor, node->input[1], start, error));
    }
    return STATUS_OK;
}
