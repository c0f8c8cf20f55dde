/* GPT with its layers split among the ranks of tensor parallelism: loss and gradients against the whole model on
 * one rank. GPT-2-like and Llama-like, with and without dropout and sequence parallelism, sizes that do not divide,
 * fewer heads than ranks.
 *
 * Ranks: 1 2 3 4 */
#include "comm_support.h"

#include "backend/cpu/cpu.h"
#include "graph/executor.h"
#include "graph/passes/eager.h"
#include "graph/passes/lazy.h"
#include "graph/passes/recompute.h"
#include "graph/passes/sums.h"
#include "model/gpt.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/gather_again.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 3, T = 7, V = 29 };

typedef struct {
    ModelConfig config;
    ParameterTable table;
    Backend backend;
    Graph *graph;
    GptLoss loss;
    Program program;
    DeviceMemory memory;
    Executor executor;
    int n_parts;
    Comm heads; /* ranks with the same key/value heads */
    float *gradient;
    float value;
} Model;

static ModelConfig config_of(bool is_llama, int n_heads, int n_kv_heads, double dropout, bool tied) {
    ModelConfig config = {.n_layers = 2,
                          .n_heads = n_heads,
                          .n_kv_heads = n_kv_heads,
                          .n_channels = 8 * n_heads,
                          .context = T + 2,
                          .vocabulary = V,
                          .tied = tied,
                          .bias = !is_llama,
                          .rotary_theta = 1e4,
                          .dropout = dropout};
    if (is_llama) {
        config.norm = NORM_RMSNORM;
        config.position = POSITION_ROTARY;
        config.mlp = MLP_SWIGLU;
    }
    return config;
}

static void upload(Model *model) {
    Error error = {0};
    int32_t tokens[B * T], targets[B * T], random[B][N_RANDOM_WORDS];
    for (int i = 0; i < B * T; i++)
        tokens[i] = (i * 5 + i / 3) % V, targets[i] = i % 6 ? (i * 11 + 2) % V : -1;
    for (int i = 0; model->loss.random && i < model->n_parts; i++) {
        int first = (int)shard_span(B, model->n_parts, i).first;
        int32_t words[] = {[RANDOM_SEED_LOW] = 7,
                           [RANDOM_SEED_HIGH] = 0,
                           [RANDOM_STEP] = 3,
                           [RANDOM_FIRST_SEQUENCE] = first};
        memcpy(random[i], words, sizeof words);
    }
    float *weights = calloc((size_t)model->table.n_flat_elements, sizeof *weights);
    parameters_initialise(&model->table, 1, weights, 1);
    OK(executor_upload(&model->executor, model->loss.parameters.flat, weights, &error));
    OK(executor_upload(&model->executor, model->loss.tokens, tokens, &error));
    OK(executor_upload(&model->executor, model->loss.targets, targets, &error));
    if (model->loss.random) OK(executor_upload(&model->executor, model->loss.random, random, &error));
    free(weights);
}

static void run(Model *model, const ModelConfig *given, GptSplit split, int recompute) {
    Comm *tp = split.tp;
    Error error = {0};
    *model = (Model){.config = *given, .graph = graph_new()};
    OK(backend_cpu_open(&model->backend, 1, &error));
    OK(config_complete(&model->config, V, &error));
    ParameterPart part = parameter_part_whole(&model->config);
    if (tp) part.n_ranks = tp->size, part.rank = tp->rank;
    part.style = split.style;
    OK(parameters_build_part(&model->table, &model->config, &part, &error));
    GptLossOptions options = {.B = B,
                              .T = T,
                              .loss_scale = 1.0 / (B * T),
                              .loss_chunk_tokens = 8,
                              .is_training = true,
                              .recompute = recompute,
                              .split = split};
    model->n_parts = gpt_n_parts(&options);
    model->loss = gpt_record_loss(&model->config, &model->table, model->graph, &options);
    AutogradOptions autograd = {.copy = &OP_COPY, .gradient_place = PLACE_GRADIENT};
    OK(autograd_run(model->graph, &autograd, &error));
    eager_gradients(model->graph);
    lazy_gradients(model->graph);
    move_column_sums(model->graph, &model->backend);
    recompute_run(model->graph, recompute);
    if (split.by_sequence && !recompute) gather_again(model->graph, &(GatherAgain){.every = 2});
    if (tp && tp->size > 1) {
        GradientReplica *replicas =
            calloc((size_t)model->table.n_parameters * SHARD_MAX_BOXES, sizeof *replicas);
        OK(comm_split(tp, shard_heads_group(&model->config, tp->size, tp->rank), tp->rank, &model->heads,
                      &error));
        int n = parameters_replicas(&model->loss.parameters, tp, &model->heads, split.by_sequence, replicas);
        gradient_replicas_sum(model->graph, replicas, n);
        free(replicas);
    }
    OK(program_build(&model->program, "model", model->graph, &model->backend, 1, &error));
    device_require(&model->memory, &model->program.plan);
    OK(device_open(&model->memory, &model->backend, &error));
    OK(executor_open(&model->executor, &model->program, &model->memory, &error));
    upload(model);
    OK(executor_run(&model->executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error));
    OK(executor_run(&model->executor, SECTION_BACKWARD, MICRO_BATCH_ONLY, &error));
    OK(executor_download(&model->executor, model->loss.loss, &model->value, &error));
    model->gradient = calloc((size_t)model->table.n_flat_elements, sizeof(float));
    OK(executor_download(&model->executor, model->loss.parameters.flat->gradient, model->gradient, &error));
}

static void close_model(Model *model) {
    executor_close(&model->executor);
    device_close(&model->memory);
    graph_free(model->graph);
    parameters_free(&model->table);
    free(model->gradient);
    comm_close(&model->heads);
    model->backend.close(model->backend.context);
}

/* Every box of a rank's gradients is that of the whole. */
static void compare(const Model *part, const Model *whole, const char *what) {
    if (fabs((double)part->value - (double)whole->value) > 1e-5) {
        fail_msg("%s: loss %.8g, not %.8g", what, (double)part->value, (double)whole->value);
    }
    for (int i = 0; i < part->table.n_parameters; i++) {
        const Parameter *parameter = &part->table.parameter[i];
        const Parameter *of = parameter_find(&whole->table, parameter->role, parameter->block);
        const float *got = part->gradient + parameter->flat_offset, *want = whole->gradient + of->flat_offset;
        double largest = 0.0;
        for (int64_t k = 0; k < shape_count(of->shape); k++) largest = fmax(largest, fabs((double)want[k]));
        for (int b = 0; b < parameter->shard.n_boxes; b++) {
            const Box *box = &parameter->shard.box[b].box;
            const Box all = box_whole(of->shape);
            for (int64_t k = 0; k < shape_count(box->shape); k++, got++) {
                double wanted = (double)want[box_element(box, &all, k)], is = (double)*got;
                if (!(fabs(is - wanted) <= 2e-5 * largest + 1e-9))
                    fail_msg("%s: %s element %lld of box %d is %.8g, not %.8g", what, parameter->name,
                             (long long)k, b, is, wanted);
            }
        }
    }
}

static void check_config(const ModelConfig *config, const GptSplit *way, int recompute) {
    Model part, whole;
    GptSplit split = *way;
    char what[160];
    split.tp = &world;
    snprintf(
        what, sizeof what,
        "%s, %lld/%lld heads, %lld hidden, dropout %g, tied %d, %s style, sequence %d, %d parts, recompute %d",
        config->mlp == MLP_SWIGLU ? "llama" : "gpt2", (long long)config->n_heads,
        (long long)config->n_kv_heads, (long long)config->n_hidden, config->dropout, config->tied,
        tensor_style_names[split.style], split.by_sequence, split.n_parts, recompute);
    run(&whole, config, (GptSplit){0}, recompute);
    run(&part, config, split, recompute);
    compare(&part, &whole, what);
    close_model(&part);
    close_model(&whole);
}

static void check(bool is_llama, int n_heads, int n_kv_heads, double dropout, bool tied, const GptSplit *way,
                  int recompute) {
    ModelConfig config = config_of(is_llama, n_heads, n_kv_heads, dropout, tied);
    check_config(&config, way, recompute);
}

/* Of the hidden channels all ranks but one have none: they still talk as often as it does. */
static void check_narrow(bool is_llama, const GptSplit *way) {
    ModelConfig config = config_of(is_llama, 2, 1, 0.1, true);
    config.n_hidden = 1;
    check_config(&config, way, 0);
}

static void test_split(void **state) {
    (void)state;
    const GptSplit ways[] = {
        {0},
        {.by_sequence = true},
        {.style = TENSOR_ROW},
        {.n_parts = 2},
        {.by_sequence = true, .n_parts = 2},
        {.by_sequence = true, .n_parts = 9, .by_block = true}}; /* 3 sequences: 3 parts */
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const GptSplit *way = &ways[i];
        check(false, 4, 4, 0.0, true, way, 0);
        check(false, 3, 3, 0.2, true, way, 0);
        check(false, 2, 2, 0.2, false, way, 1);
        check(false, 1, 1, 0.0, true, way, 0);
        check(true, 4, 2, 0.0, false, way, 0);
        check(true, 6, 3, 0.1, true, way, 1);
        check(true, 4, 1, 0.0, false, way, 0);
        check(true, 3, 1, 0.0, true, way, 0); /* four ranks: one has no head, three share keys */
        check_narrow(false, way);
        check_narrow(true, way);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_split)};
    return cmocka_run_group_tests(tests, open_world, close_world);
}
