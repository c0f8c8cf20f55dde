/* Generation says what the evaluation's program says: with experts of every router, blocks that tokens go by, windows
 * and other patterns, and several of them together, the log-probabilities of every token behind every position, token
 * by token with caches, are those of one whole pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "harness.h"
#include "infer/generator.h"
#include "ops/experts/experts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 17, CONTEXT = 64, N = 56, ROWS = 3 };

typedef struct {
    ModelConfig config;
    ParameterTable table;
    float *flat, *bias;
    Backend backend;
} TestModel;

static ModelConfig base_config(void) {
    return (ModelConfig){.preset = "",
                         .n_layers = 3,
                         .n_heads = 4,
                         .n_kv_heads = 2,
                         .n_channels = 24,
                         .context = CONTEXT,
                         .vocabulary = V,
                         .tied = true,
                         .bias = true,
                         .rotary_theta = 100.0};
}

/* Matrices larger than a fresh model's, so that tokens, places and routers matter; predictors that let about half of
 * the tokens pass; biases that change who is chosen. */
static TestModel open_model(ModelConfig config) {
    TestModel model = {.config = config};
    Error error = {0};
    if (config_complete(&model.config, V, &error) != STATUS_OK) fail_msg("%s", error.text);
    assert_int_equal(parameters_build(&model.table, &model.config, &error), STATUS_OK);
    model.flat = calloc((size_t)model.table.n_flat_elements, sizeof(float));
    assert_non_null(model.flat);
    parameters_initialise(&model.table, 5, model.flat, 1);
    for (int i = 0; i < model.table.n_parameters; i++) {
        const Parameter *parameter = &model.table.parameter[i];
        int64_t count = parameter->init == INIT_NORMAL ? shape_count(parameter->shape) : 0;
        for (int64_t k = 0; k < count; k++) model.flat[parameter->flat_offset + k] *= 8.0f;
        if (parameter->role != ROLE_DEPTH_PREDICTOR) continue;
        for (int64_t k = 0; k < shape_count(parameter->shape); k++)
            model.flat[parameter->flat_offset + k] = test_value("predictor", (uint64_t)k);
    }
    int64_t n_biases = parameters_n_router_biases(&model.table);
    model.bias = calloc((size_t)n_biases + 1, sizeof(float));
    for (int64_t i = 0; i < n_biases; i++) model.bias[i] = 0.3f * test_value("bias", (uint64_t)i);
    assert_int_equal(backend_cpu_open(&model.backend, 2, &error), STATUS_OK);
    return model;
}

static void close_model(TestModel *model) {
    model->backend.close(model->backend.context);
    parameters_free(&model->table);
    free(model->flat);
    free(model->bias);
}

/* -log p (V,N): of every token behind every position of a text, by the program that evaluates, on the references. The
 * text is there V times, and each time another token is said to follow everywhere. */
static void whole_losses(const TestModel *model, const int32_t *tokens, float *losses) {
    Graph *graph = graph_new();
    Error error = {0};
    GptLossOptions options = {.B = V, .T = N, .loss_scale = 1.0};
    GptLoss loss = gpt_record_loss(&model->config, &model->table, graph, &options);
    if (graph_status(graph, &error) != STATUS_OK) fail_msg("%s", error.text);
    TestMemory memory = test_memory_open(graph);
    memcpy(test_memory_at(&memory, loss.parameters.flat), model->flat,
           sizeof(float) * (size_t)model->table.n_flat_elements);
    if (loss.parameters.router_bias)
        memcpy(test_memory_at(&memory, loss.parameters.router_bias), model->bias,
               tensor_bytes(loss.parameters.router_bias));
    int32_t *in = test_memory_at(&memory, loss.tokens), *targets = test_memory_at(&memory, loss.targets);
    for (int v = 0; v < V; v++)
        for (int t = 0; t < N; t++) {
            in[v * N + t] = tokens[t];
            targets[v * N + t] = v;
        }
    test_memory_run(&memory, SECTION_FORWARD);
    memcpy(losses, test_memory_at(&memory, loss.losses), sizeof(float) * V * N);
    test_memory_close(&memory);
    graph_free(graph);
}

static void open_generator(Generator *generator, const TestModel *model, int64_t chunk) {
    Error error = {0};
    GeneratorOptions options = {.n_rows = ROWS, .chunk = chunk};
    Status status =
        generator_plan(generator, &model->config, &model->table, &model->backend, &options, &error);
    if (status == STATUS_OK) status = generator_open(generator, NULL, &error);
    for (int i = 0; i < model->table.n_parameters && status == STATUS_OK; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        status = generator_upload(generator, parameter, model->flat + parameter->flat_offset, &error);
    }
    if (status == STATUS_OK && parameters_n_router_biases(&model->table))
        status = generator_upload(generator, &model->table.router_bias, model->bias, &error);
    if (status != STATUS_OK) fail_msg("%s", error.text);
}

/* Behind the first n tokens of row b's text. */
static void check_row(const char *name, Generator *generator, int b, int64_t given, int64_t n,
                      const float *want) {
    const float *logits = generator_logits(generator, b);
    double maximum = (double)logits[0], sum = 0.0;
    for (int v = 1; v < V; v++) maximum = fmax(maximum, (double)logits[v]);
    for (int v = 0; v < V; v++) sum += exp((double)logits[v] - maximum);
    for (int v = 0; v < V; v++) {
        double got = maximum + log(sum) - (double)logits[v], wanted = (double)want[v * N + n - 1];
        if (!(fabs(got - wanted) <= 1e-5 * (1.0 + fabs(wanted))))
            fail_msg("%s: row %d, %d given: token %d behind %d has %.8g, in a whole pass %.8g", name, b,
                     (int)given, v, (int)n, got, wanted);
    }
}

/* Three texts of other lengths at once, in chunks shorter and longer than prompts and windows. */
static void check_model(const char *name, ModelConfig config) {
    static float want[ROWS][V * N];
    static const int64_t given[][ROWS] = {{1, 40, 9}, {33, 2, 17}}, chunks[] = {8, 16};
    TestModel model = open_model(config);
    int32_t tokens[ROWS][N];
    Error error = {0};
    for (int b = 0; b < ROWS; b++) {
        for (int i = 0; i < N; i++)
            tokens[b][i] = (int32_t)(test_hash("text", (uint64_t)b * N + (uint64_t)i) % V);
        whole_losses(&model, tokens[b], want[b]);
    }
    for (int k = 0; k < 2; k++) {
        Generator generator;
        open_generator(&generator, &model, chunks[k]);
        for (int b = 0; b < ROWS; b++)
            assert_int_equal(generator_start(&generator, b, tokens[b], given[k][b], &error), STATUS_OK);
        for (int step = 0; step < 16; step++) {
            assert_int_equal(generator_step(&generator, &error), STATUS_OK);
            for (int b = 0; b < ROWS; b++) {
                int64_t n = given[k][b] + step;
                check_row(name, &generator, b, given[k][b], n, want[b]);
                assert_int_equal(generator_append(&generator, b, tokens[b][n], &error), STATUS_OK);
            }
        }
        generator_close(&generator);
    }
    close_model(&model);
}

static ModelConfig with_experts(ModelConfig config, int router) {
    config.n_experts = 5;
    config.router = router;
    config.expert_hidden = 20;
    return config;
}

static void every_router(void **state) {
    (void)state;
    for (int router = 0; router < N_ROUTERS; router++) {
        if (router == ROUTER_EXPERT_CHOICE) continue; /* which writes no text */
        char name[32];
        snprintf(name, sizeof name, "router %d", router);
        check_model(name, with_experts(base_config(), router));
    }
}

static void other_experts(void **state) {
    (void)state;
    ModelConfig llama = with_experts(base_config(), ROUTER_TOPK);
    llama.norm = NORM_RMSNORM;
    llama.mlp = MLP_SWIGLU;
    llama.position = POSITION_ROTARY;
    llama.bias = llama.tied = false;
    llama.n_shared_experts = 1;
    llama.expert_every = 2;
    check_model("like Mixtral, with a shared expert", llama);
    ModelConfig free = with_experts(base_config(), ROUTER_BALANCE_FREE);
    free.router_gate = GATE_SIGMOID;
    free.n_chosen = 3;
    check_model("sigmoids and biases", free);
    ModelConfig many = with_experts(base_config(), ROUTER_SWITCH);
    many.n_experts = 100;
    many.expert_hidden = 4;
    check_model("more experts than tokens", many);
}

static void every_pattern(void **state) {
    (void)state;
    static const char *const patterns[] = {"window:5",         "window:1,dense",
                                           "strided:7",        "fixed:16:3",
                                           "bigbird:16:1:1:1", "window:30,strided:9,bigbird:16:2:1:1"};
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        ModelConfig config = base_config();
        config.attention_pattern = patterns[i];
        config.position = i % 2 ? POSITION_ROTARY : POSITION_LEARNED;
        check_model(patterns[i], config);
    }
}

static void depths(void **state) {
    (void)state;
    for (int every = 1; every <= 2; every++) {
        ModelConfig config = base_config();
        config.depth_capacity = 0.5;
        config.depth_every = every;
        config.position = every == 1 ? POSITION_ROTARY : POSITION_LEARNED;
        check_model(every == 1 ? "depths in all blocks" : "depths", config);
    }
}

static void several_together(void **state) {
    (void)state;
    for (int router = ROUTER_TOPK; router <= ROUTER_BALANCE_FREE; router++) {
        ModelConfig config = with_experts(base_config(), router);
        config.depth_capacity = 0.5;
        config.depth_every = 2;
        char name[48];
        snprintf(name, sizeof name, "depths and router %d", router);
        check_model(name, config);
    }
    ModelConfig config = with_experts(base_config(), ROUTER_BALANCE_FREE);
    config.attention_pattern = "window:5,dense,strided:8";
    config.n_shared_experts = 1;
    check_model("experts and windows", config);
    config.attention_pattern = "window:5,dense";
    config.depth_capacity = 0.4; /* of the blocks without a window */
    config.depth_every = 2;
    check_model("experts, windows and depths", config);
}

/* Five heads of five channels, thirteen blocks, as many wishes as experts, more experts than a vector has lanes. */
static void odd_sizes(void **state) {
    (void)state;
    ModelConfig odd = base_config();
    odd.n_layers = 13;
    odd.n_heads = odd.n_kv_heads = 5;
    odd.n_channels = 25;
    ModelConfig all = with_experts(odd, ROUTER_TOPK);
    all.n_chosen = 5;
    all.expert_hidden = 7;
    check_model("all of five experts", all);
    ModelConfig many = with_experts(odd, ROUTER_BALANCE_FREE);
    many.n_experts = 37;
    many.n_chosen = 4;
    many.expert_hidden = 3;
    many.mlp = MLP_SWIGLU;
    many.attention_pattern = "window:7,fixed:16:3,dense";
    many.depth_capacity = 0.3;
    many.depth_every = 3;
    check_model("37 experts, windows, depths", many);
    ModelConfig one = with_experts(odd, ROUTER_SWITCH);
    one.n_experts = 1;
    one.n_layers = 2;
    check_model("one expert", one);
}

/* Room for a whole sequence's tokens is none for a text that is written: nothing is dropped there. */
static void capacity_is_not_for_texts(void **state) {
    (void)state;
    ModelConfig config = with_experts(base_config(), ROUTER_TOPK);
    TestModel model = open_model(config), tight;
    config.expert_capacity = 0.25;
    tight = open_model(config);
    Generator a, b;
    Error error = {0};
    int32_t tokens[N];
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)(test_hash("text", (uint64_t)i) % V);
    open_generator(&a, &model, 16);
    open_generator(&b, &tight, 16);
    assert_int_equal(generator_start(&a, 0, tokens, 30, &error), STATUS_OK);
    assert_int_equal(generator_start(&b, 0, tokens, 30, &error), STATUS_OK);
    for (int n = 30; n < 40; n++) {
        assert_int_equal(generator_step(&a, &error), STATUS_OK);
        assert_int_equal(generator_step(&b, &error), STATUS_OK);
        assert_memory_equal(generator_logits(&a, 0), generator_logits(&b, 0), sizeof(float) * V);
        assert_int_equal(generator_append(&a, 0, tokens[n], &error), STATUS_OK);
        assert_int_equal(generator_append(&b, 0, tokens[n], &error), STATUS_OK);
    }
    generator_close(&a);
    generator_close(&b);
    close_model(&model);
    close_model(&tight);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_router),
        cmocka_unit_test(other_experts),
        cmocka_unit_test(every_pattern),
        cmocka_unit_test(depths),
        cmocka_unit_test(several_together),
        cmocka_unit_test(odd_sizes),
        cmocka_unit_test(capacity_is_not_for_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
