/* GPT whose sequences are shared among ranks (context parallelism): loss and gradients against the whole model on
 * one rank, by the ring and by all-to-all; GPT-2-like and Llama-like, grouped heads, dropout, sequences that do not
 * divide, recomputation, sparse patterns, with tensor and sequence parallelism where the ranks allow.
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

#include <math.h>
#include <stdlib.h>

enum { B = 3, V = 29, MOST_T = 66 };

typedef struct {
    bool is_llama;
    int n_heads, n_kv_heads;
    double dropout;
    int64_t T;
    ContextStyle style;
    int recompute;
    const char *attention;
} Case;

typedef struct {
    ModelConfig config;
    ParameterTable table;
    Backend backend;
    Graph *graph;
    GptLoss loss;
    Program program;
    DeviceMemory memory;
    Executor executor;
    Comm heads;
    float *gradient;
    float value;
} Model;

static ModelConfig config_of(const Case *test) {
    ModelConfig config = {.n_layers = 2,
                          .n_heads = test->n_heads,
                          .n_kv_heads = test->n_kv_heads,
                          .n_channels = 8 * test->n_heads,
                          .context = test->T + 2,
                          .vocabulary = V,
                          .tied = !test->is_llama,
                          .bias = !test->is_llama,
                          .rotary_theta = 1e4,
                          .dropout = test->dropout,
                          .attention = test->attention};
    if (test->is_llama) {
        config.norm = NORM_RMSNORM;
        config.position = POSITION_ROTARY;
        config.mlp = MLP_SWIGLU;
    }
    return config;
}

/* This rank's positions of the batch. */
static void upload(Model *model, const GptSplit *split, int64_t T) {
    Error error = {0};
    int32_t tokens[B * MOST_T], targets[B * MOST_T],
        random[N_RANDOM_WORDS] = {[RANDOM_SEED_LOW] = 7, [RANDOM_STEP] = 3, [RANDOM_FIRST_SEQUENCE] = 5};
    ContextRows rows = gpt_rows(split, T);
    for (int64_t b = 0; b < B; b++) {
        for (int64_t t = 0; t < rows.n; t++) {
            int64_t i = b * T + row_place(&rows.positions, t);
            tokens[b * rows.n + t] = (int32_t)((i * 5 + i / 3) % V);
            targets[b * rows.n + t] = (int32_t)(i % 6 ? (i * 11 + 2) % V : -1);
        }
    }
    float *weights = calloc((size_t)model->table.n_flat_elements, sizeof *weights);
    parameters_initialise(&model->table, 1, weights, 1);
    OK(executor_upload(&model->executor, model->loss.parameters.flat, weights, &error));
    OK(executor_upload(&model->executor, model->loss.tokens, tokens, &error));
    OK(executor_upload(&model->executor, model->loss.targets, targets, &error));
    if (model->loss.random) OK(executor_upload(&model->executor, model->loss.random, random, &error));
    free(weights);
}

static void sum_replicas(Model *model, const GptSplit *split) {
    Error error = {0};
    Comm *tp = split->tp;
    if (!tp || tp->size == 1) return;
    GradientReplica *replicas = calloc((size_t)model->table.n_parameters * SHARD_MAX_BOXES, sizeof *replicas);
    OK(comm_split(tp, shard_heads_group(&model->config, tp->size, tp->rank), tp->rank, &model->heads,
                  &error));
    int n = parameters_replicas(&model->loss.parameters, tp, &model->heads, split->by_sequence, replicas);
    gradient_replicas_sum(model->graph, replicas, n);
    free(replicas);
}

static void run(Model *model, const Case *test, const GptSplit *split) {
    Error error = {0};
    *model = (Model){.config = config_of(test), .graph = graph_new()};
    OK(backend_cpu_open(&model->backend, 1, &error));
    OK(config_complete(&model->config, V, &error));
    ParameterPart part = parameter_part_whole(&model->config);
    if (split->tp) part.n_ranks = split->tp->size, part.rank = split->tp->rank;
    OK(parameters_build_part(&model->table, &model->config, &part, &error));
    GptLossOptions options = {.B = B,
                              .T = test->T,
                              .loss_scale = 1.0 / (double)(B * test->T),
                              .loss_chunk_tokens = 8,
                              .is_training = true,
                              .recompute = test->recompute,
                              .split = *split};
    model->loss = gpt_record_loss(&model->config, &model->table, model->graph, &options);
    AutogradOptions autograd = {.copy = &OP_COPY, .gradient_place = PLACE_GRADIENT};
    OK(autograd_run(model->graph, &autograd, &error));
    eager_gradients(model->graph);
    lazy_gradients(model->graph);
    move_column_sums(model->graph, &model->backend);
    recompute_run(model->graph, test->recompute);
    sum_replicas(model, split);
    OK(program_build(&model->program, "model", model->graph, &model->backend, 1, &error));
    device_require(&model->memory, &model->program.plan);
    OK(device_open(&model->memory, &model->backend, &error));
    OK(executor_open(&model->executor, &model->program, &model->memory, &error));
    upload(model, split, test->T);
    OK(executor_run(&model->executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error));
    OK(executor_run(&model->executor, SECTION_BACKWARD, MICRO_BATCH_ONLY, &error));
    OK(executor_download(&model->executor, model->loss.loss, &model->value, &error));
    model->gradient = calloc((size_t)model->table.n_flat_elements, sizeof(float));
    OK(executor_download(&model->executor, model->loss.parameters.flat->gradient, model->gradient, &error));
    if (!split->cp) return; /* each rank has a part of loss and gradients */
    OK(comm_all_reduce(split->cp, &model->value, 1, COMM_F32, COMM_SUM, &error));
    OK(comm_all_reduce(split->cp, model->gradient, model->table.n_flat_elements, COMM_F32, COMM_SUM, &error));
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

static void compare(const Model *part, const Model *whole, const char *what) {
    if (!(fabs((double)part->value - (double)whole->value) <= 1e-5))
        fail_msg("%s: loss %.8g, not %.8g", what, (double)part->value, (double)whole->value);
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

static void check(const Case *test, const GptSplit *split) {
    Model part, whole;
    char what[160];
    snprintf(what, sizeof what,
             "%s, %s, %d/%d heads, dropout %g, %lld positions, %s, recompute %d, cp %d, tp %d",
             test->is_llama ? "llama" : "gpt2", context_style_names[test->style], test->n_heads,
             test->n_kv_heads, test->dropout, (long long)test->T, test->attention ? test->attention : "dense",
             test->recompute, split->cp ? split->cp->size : 1, split->tp ? split->tp->size : 1);
    run(&whole, test, &(GptSplit){0});
    run(&part, test, split);
    compare(&part, &whole, what);
    close_model(&part);
    close_model(&whole);
}

static const Case cases[] = {
    {false, 4, 4, 0.0, 16, CONTEXT_RING, 0, NULL},
    {false, 3, 3, 0.2, 13, CONTEXT_RING, 0, NULL},
    {true, 4, 2, 0.0, 33, CONTEXT_RING, 1, NULL},
    {true, 6, 1, 0.1, 8, CONTEXT_RING, 0, NULL},
    {false, 4, 4, 0.0, 16, CONTEXT_ALL_TO_ALL, 0, NULL},
    {false, 5, 5, 0.2, 13, CONTEXT_ALL_TO_ALL, 1, NULL},
    {true, 8, 4, 0.1, 33, CONTEXT_ALL_TO_ALL, 0, NULL},
    /* Of four ranks, or two, some see no key of others: they repeat the ring as often as those that do. */
    {true, 4, 2, 0.1, 16, CONTEXT_RING, 1, "window:2"},
    {false, 4, 4, 0.0, 66, CONTEXT_RING, 1, "bigbird:16:1:0:0"},
};

enum { N_CASES = sizeof cases / sizeof cases[0] };

static void test_context(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) check(&cases[i], &(GptSplit){.cp = &world, .context = cases[i].style});
}

/* Pairs of ranks share the layers, and what they have of a sequence is shared by pairs: of four. */
static void test_with_tensor(void **state) {
    (void)state;
    Error error = {0};
    Comm tp = {0}, cp = {0};
    if (world.size != 4) return;
    OK(comm_split(&world, world.rank / 2, world.rank, &tp, &error));
    OK(comm_split(&world, world.rank % 2, world.rank, &cp, &error));
    for (int i = 0; i < 2 * N_CASES; i++) {
        const Case *test = &cases[i / 2];
        if (test->style == CONTEXT_ALL_TO_ALL && test->n_kv_heads < 4) continue;
        GptSplit split = {.tp = &tp, .by_sequence = i % 2, .cp = &cp, .context = test->style};
        check(test, &split);
    }
    comm_close(&tp);
    comm_close(&cp);
}

/* Every position is somebody's, once, and no rank has two more than another. */
static void test_rows(void **state) {
    (void)state;
    for (int style = 0; style < N_CONTEXT_STYLES; style++) {
        for (int64_t n = 2; n <= MOST_T; n++) {
            for (int n_ranks = 1; n_ranks <= context_most_ranks((ContextStyle)style, n); n_ranks++) {
                int owners[MOST_T] = {0};
                int64_t least = n, most = 0;
                for (int rank = 0; rank < n_ranks; rank++) {
                    ContextRows rows = context_rows((ContextStyle)style, n, n_ranks, rank);
                    for (int64_t t = 0; t < rows.n; t++) {
                        int64_t place = row_place(&rows.positions, t);
                        assert_true(place >= 0 && place < n &&
                                    row_at_place(&rows.positions, rows.n, place) == t);
                        owners[place]++;
                    }
                    least = rows.n < least ? rows.n : least;
                    most = rows.n > most ? rows.n : most;
                }
                for (int64_t place = 0; place < n; place++) assert_int_equal(owners[place], 1);
                assert_true(least > 0 && most - least <= (style == CONTEXT_RING ? 2 : 1));
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_context),
                                       cmocka_unit_test(test_with_tensor)};
    return cmocka_run_group_tests(tests, open_world, close_world);
}
