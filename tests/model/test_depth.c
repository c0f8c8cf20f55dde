/* A mixture of depths: a block with a router is the ordinary one over the positions that pass, its gradients are those of
 * the loss, and what is said of the predictors does not depend on how a step is cut up. */
#include "harness.h"
#include "model_fixture.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ModelConfig depth_config(double capacity, int64_t every) {
    ModelConfig config = small_config();
    config.depth_capacity = capacity;
    config.depth_every = every;
    Error error = {0};
    assert_int_equal(config_complete(&config, V, &error), STATUS_OK);
    return config;
}

/* ---- how many pass, and where */

static void capacity_is_rounded(void **state) {
    (void)state;
    ModelConfig config = depth_config(0.125, 2);
    assert_int_equal(config_depth_rows(&config, 1024), 128);
    assert_int_equal(config_depth_rows(&config, 11), 1);
    assert_int_equal(config_depth_rows(&config, 12), 2);
    assert_int_equal(config_depth_rows(&config, 1), 1);
    config.depth_capacity = 1.0;
    assert_int_equal(config_depth_rows(&config, 7), 7);
    config.depth_every = 3;
    const bool has_router[] = {false, false, true, false, false, true, false};
    for (int block = 0; block < 7; block++)
        assert_int_equal(config_is_depth_block(&config, block), has_router[block]);
    assert_int_equal(config_n_depth_blocks(&config, 1, 6), 2);
    config.depth_capacity = 0.0;
    assert_int_equal(config_n_depth_blocks(&config, 0, 7), 0);
}

/* ---- the block */

/* One block of a model over (n,positions,C), by the references; weights by name. */
static void run_block(ModelConfig config, int64_t n, int64_t n_positions, const float *input, float *output) {
    Error error = {0};
    config.n_layers = 1;
    ParameterTable table;
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    Graph *graph = graph_new();
    GptLossOptions options = {.B = n, .T = n_positions, .loss_scale = 1.0, .is_training = true};
    GptStageTensors stage =
        gpt_record_stage(&config, &table, graph, &options, &(GptStage){.end_block = 1}, NULL);
    if (graph_status(graph, &error) != STATUS_OK) fail_msg("%s", error.text);
    TestMemory memory = test_memory_open(graph);
    golden_weights(&table, test_memory_at(&memory, stage.loss.parameters.flat));
    memcpy(test_memory_at(&memory, stage.input), input, tensor_bytes(stage.input));
    if (stage.loss.random) {
        int32_t words[N_RANDOM_WORDS] = {0};
        words[RANDOM_N_SEQUENCES] = (int32_t)n;
        memcpy(test_memory_at(&memory, stage.loss.random), words, sizeof words);
    }
    test_memory_run(&memory, SECTION_FORWARD);
    memcpy(output, test_memory_at(&memory, stage.output), tensor_bytes(stage.output));
    test_memory_close(&memory);
    graph_free(graph);
    parameters_free(&table);
}

static double score_of(const float *x) {
    double score = 0.0;
    for (int c = 0; c < C; c++)
        score += (double)x[c] * 0.25 * (double)test_value("h.0.depth.router.weight", (uint64_t)c);
    return score;
}

/* Is position t among the best n of the sequence? */
static bool is_among(const float *x, int t, int n) {
    int n_better = 0;
    for (int u = 0; u < T; u++) n_better += score_of(x + u * C) > score_of(x + t * C);
    return n_better < n;
}

static void check_block(double capacity, int position) {
    enum { N = 3 };
    static float input[N * T * C], chosen[N * T * C], made[N * T * C], want[N * T * C], got[N * T * C];
    ModelConfig config = depth_config(capacity, 1);
    config.position = position;
    int n_chosen = (int)config_depth_rows(&config, T), rows[N][T];
    for (int i = 0; i < N * T * C; i++) input[i] = test_value("stream", (uint64_t)i);
    for (int b = 0; b < N; b++) {
        int n = 0;
        for (int t = 0; t < T; t++) {
            if (!is_among(input + b * T * C, t, n_chosen)) continue;
            memcpy(chosen + (b * n_chosen + n) * C, input + (b * T + t) * C, C * sizeof(float));
            rows[b][n++] = t;
        }
        assert_int_equal(n, n_chosen);
    }
    ModelConfig dense = config;
    dense.depth_capacity = 0.0;
    run_block(dense, N, n_chosen, chosen, made);
    memcpy(want, input, sizeof want);
    for (int b = 0; b < N; b++) {
        for (int j = 0; j < n_chosen; j++) {
            float *x = want + (b * T + rows[b][j]) * C;
            double score = score_of(input + (b * T + rows[b][j]) * C);
            for (int c = 0; c < C; c++) {
                int at = (b * n_chosen + j) * C + c;
                x[c] += (float)(score * ((double)made[at] - (double)chosen[at]));
            }
        }
    }
    run_block(config, N, T, input, got);
    test_assert_close(got, want, (int64_t)N * T * C, 1e-6, 1e-6, "capacity %g", capacity);
}

static void block_is_the_dense_one_over_what_passes(void **state) {
    (void)state;
    check_block(0.3, POSITION_LEARNED);
    check_block(0.01, POSITION_LEARNED);
    check_block(1.0, POSITION_LEARNED);
    check_block(1.0, POSITION_ROTARY);  /* of fewer, positions would be others */
    check_block(0.01, POSITION_ROTARY); /* of one, they do not show */
}

/* ---- gradients */

static double loss_with(Fixture *f, float *weight, float value) {
    float kept = *weight;
    *weight = value;
    double loss = run_step(f, 0).loss;
    *weight = kept;
    return loss;
}

/* The elements with the largest gradients of every parameter but the predictors', against difference quotients of the
 * loss of a step that changes nothing. */
static void check_gradients(ModelConfig config) {
    OptimizerOptions optimizer = small_optimizer();
    optimizer.rate = optimizer.weight_decay = 0.0;
    Fixture *f = open_fixture(config, small_step(), optimizer, 2);
    float *flat = f->memory.base[PLACE_PARAMETER];
    const float h = 1e-3f;
    run_step(f, 0);
    for (int i = 0; i < f->table.n_parameters; i++) {
        const Parameter *parameter = &f->table.parameter[i];
        const float *gradient =
            executor_address(&f->step.executor, f->step.loss.parameters.tensor[i]->gradient);
        if (parameter->role == ROLE_DEPTH_PREDICTOR || parameter->role == ROLE_DEPTH_PREDICTOR_BIAS) continue;
        int64_t largest = 0;
        for (int64_t k = 0; k < shape_count(parameter->shape); k++)
            if (fabsf(gradient[k]) > fabsf(gradient[largest])) largest = k;
        float *weight = &flat[parameter->flat_offset + largest];
        double wanted = (double)gradient[largest];
        double before = loss_with(f, weight, *weight - h), here = loss_with(f, weight, *weight),
               after = loss_with(f, weight, *weight + h);
        const double slopes[] = {(after - before) / (2.0 * (double)h), (after - here) / (double)h,
                                 (here - before) /
                                     (double)h}; /* a side on which others are chosen has a jump */
        bool is_right = false;
        for (int k = 0; k < 3; k++)
            is_right |= fabs(slopes[k]) > 2e-3 &&
                        fabs(slopes[k] - wanted) <= 5e-4 + (k ? 5e-2 : 1e-2) * fabs(slopes[k]);
        if (!is_right)
            fail_msg("%s[%lld]: gradient %g, difference quotients %g, %g, %g", parameter->name,
                     (long long)largest, wanted, slopes[0], slopes[1], slopes[2]);
    }
    close_fixture(f);
}

static void gradients_are_those_of_the_loss(void **state) {
    (void)state;
    check_gradients(depth_config(0.4, 1));
    ModelConfig llama = depth_config(0.3, 2);
    llama.norm = NORM_RMSNORM;
    llama.mlp = MLP_SWIGLU;
    llama.position = POSITION_ROTARY;
    llama.bias = llama.tied = false;
    llama.n_kv_heads = 1;
    llama.n_hidden = 0;
    check_gradients(llama);
}

/* Whatever the predictors say, the model's loss and gradients are the same bits. */
static void predictors_move_nothing_else(void **state) {
    (void)state;
    Fixture *f = open_fixture(depth_config(0.4, 1), small_step(), small_optimizer(), 2);
    const Parameter *tokens = parameter_find(&f->table, ROLE_TOKEN_TABLE, NO_BLOCK);
    const Parameter *predictor = parameter_find(&f->table, ROLE_DEPTH_PREDICTOR, 0);
    float *flat = f->memory.base[PLACE_PARAMETER];
    size_t n_bytes = sizeof(float) * (size_t)shape_count(tokens->shape);
    f->step.optimizer_options.rate = 0.0;
    StepResult first = run_step(f, 0);
    const float *gradient = executor_address(
        &f->step.executor, parameter_tensor(&f->step.loss.parameters, ROLE_TOKEN_TABLE, NO_BLOCK)->gradient);
    float *kept = malloc(n_bytes);
    memcpy(kept, gradient, n_bytes);
    for (int c = 0; c < C; c++) flat[predictor->flat_offset + c] += 1.0f;
    StepResult second = run_step(f, 0);
    assert_true(first.loss == second.loss);
    assert_memory_equal(gradient, kept, n_bytes);
    assert_true(first.has_depth && first.depth_loss != second.depth_loss);
    free(kept);
    close_fixture(f);
}

/* ---- what is said of the predictors */

static StepResult result_of(ModelConfig config, int64_t batch, int64_t micro_batch, int64_t recompute) {
    StepOptions options = small_step();
    options.batch = batch;
    options.micro_batch = micro_batch;
    options.recompute = recompute;
    Fixture *f = open_fixture(config, options, small_optimizer(), 2);
    StepResult result = run_step(f, 0);
    close_fixture(f);
    return result;
}

static void report_does_not_depend_on_the_cut(void **state) {
    (void)state;
    ModelConfig config = depth_config(0.4, 1);
    StepResult whole = result_of(config, B, B, 0);
    assert_true(whole.has_depth && whole.depth_loss > 0.0 && whole.depth_accuracy > 0.0 &&
                whole.depth_accuracy < 1.0);
    const int64_t ways[][2] = {{1, 0}, {2, 0}, {B, 1}, {1, 1}, {2, 2}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        StepResult other = result_of(config, B, ways[i][0], ways[i][1]);
        assert_true(fabs(other.depth_loss - whole.depth_loss) < 1e-6);
        assert_true(fabs(other.depth_accuracy - whole.depth_accuracy) < 1e-6);
        assert_true(fabs(other.gradient_norm - whole.gradient_norm) < 1e-5 * whole.gradient_norm);
    }
    config.depth_capacity = 0.0;
    assert_false(result_of(config, B, B, 0).has_depth);
}

/* Rows without a sequence, of the last micro-batch, teach nobody anything. */
static void empty_rows_do_not_count(void **state) {
    (void)state;
    ModelConfig config = depth_config(0.4, 1);
    StepOptions options = small_step();
    Fixture *f = open_fixture(config, options, small_optimizer(), 1);
    Error error = {0};
    f->step.optimizer_options.rate = 0.0;
    StepResult all = run_step(f, 0);
    StepRows rows = {.first = 0, .n = 1};
    StepRun run = {.rows = &rows};
    for (int i = 0; i < f->step.n_actions - 1; i++)
        assert_int_equal(train_step_run_action(&f->step, &golden_batches, &run, &f->step.actions[i], &error),
                         STATUS_OK);
    float report[N_DEPTH_NUMBERS];
    assert_int_equal(executor_download(&f->step.executor, f->step.chunk[0].loss.depth, report, &error),
                     STATUS_OK);
    assert_true((double)report[DEPTH_HITS] > 0.0 && (double)report[DEPTH_HITS] <= 1.0 / B + 1e-6);
    assert_true((double)report[DEPTH_LOSS] < all.depth_loss);
    close_fixture(f);
}

static void predictors_learn(void **state) {
    (void)state;
    OptimizerOptions optimizer = small_optimizer();
    optimizer.rate = 3e-3;
    Fixture *f = open_fixture(depth_config(0.3, 1), small_step(), optimizer, 2);
    double first = run_step(f, 0).depth_loss, last = 0.0;
    for (int i = 0; i < 60; i++) last = run_step(f, 0).depth_loss;
    assert_true(last < 0.8 * first);
    close_fixture(f);
}

/* ---- what it costs */

/* Attention and layers are counted over the rows that pass. */
static void flops_are_those_of_what_passes(void **state) {
    (void)state;
    double flops[3];
    const double capacities[] = {0.0, 1.0, 3.0 / 11.0};
    for (int i = 0; i < 3; i++) {
        ModelConfig config = depth_config(capacities[i], 1);
        config.vocabulary = 8;
        Fixture *f = open_fixture(config, small_step(), small_optimizer(), 1);
        flops[i] = train_step_flops(&f->step);
        close_fixture(f);
    }
    assert_true(flops[1] > flops[0] && flops[1] < 1.1 * flops[0]);
    assert_true(flops[2] < 0.5 * flops[0] && flops[2] > 0.2 * flops[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capacity_is_rounded),
        cmocka_unit_test(block_is_the_dense_one_over_what_passes),
        cmocka_unit_test(gradients_are_those_of_the_loss),
        cmocka_unit_test(predictors_move_nothing_else),
        cmocka_unit_test(report_does_not_depend_on_the_cut),
        cmocka_unit_test(empty_rows_do_not_count),
        cmocka_unit_test(predictors_learn),
        cmocka_unit_test(flops_are_those_of_what_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
