/* What decoding does on a device that can do more than one operation after the other: the whole step as one operation, and
 * tokens that the device draws by itself. Here the device is the CPU, with the references of those operations as kernels:
 * the texts must be those of the plain CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "harness.h"
#include "infer/generator.h"
#include "model/gpt_fuse.h"
#include "ops/decode_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 150, CONTEXT = 40, MOST_TOKENS = 128, N_PROMPTS = 5 };

static const ModelConfig gpt_config = {.preset = "",
                                       .n_layers = 3,
                                       .n_heads = 4,
                                       .n_channels = 32,
                                       .context = CONTEXT,
                                       .vocabulary = V,
                                       .tied = true,
                                       .bias = true,
                                       .rotary_theta = 10000.0};

static const ModelConfig llama_config = {.preset = "",
                                         .n_layers = 2,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .n_channels = 32,
                                         .context = CONTEXT,
                                         .vocabulary = V,
                                         .norm = NORM_RMSNORM,
                                         .mlp = MLP_SWIGLU,
                                         .position = POSITION_ROTARY,
                                         .rotary_theta = 100.0};

/* ---- a CPU that has more kernels */

static Backend cpu, device;

static Kernel device_kernel(void *context, const Node *node) {
    if (node->op == &OP_DECODE_STEP || node->op == &OP_SAMPLE) return node->op->reference;
    return cpu.kernel(context, node);
}

static bool device_has_kernel(const BackendTraits *traits, const Node *node) {
    (void)traits;
    return device_kernel(NULL, node) != NULL;
}

static size_t device_scratch(const BackendTraits *traits, const Node *node) {
    bool is_extra = node->op == &OP_DECODE_STEP || node->op == &OP_SAMPLE;
    (void)traits;
    return is_extra ? 0 : traits_scratch_bytes(&cpu.traits, node);
}

static int open_backends(void **state) {
    (void)state;
    Error error = {0};
    if (backend_cpu_open(&cpu, 1, &error) != STATUS_OK) return -1;
    device = cpu;
    device.kernel = device_kernel;
    device.traits.has_kernel = device_has_kernel;
    device.traits.scratch_bytes = device_scratch;
    return 0;
}

static int close_backends(void **state) {
    (void)state;
    cpu.close(cpu.context);
    return 0;
}

/* ---- models */

typedef struct {
    ModelConfig config;
    ParameterTable table;
    float *flat;
} TestModel;

static TestModel open_model(const ModelConfig *config) {
    TestModel model = {.config = *config};
    Error error = {0};
    assert_int_equal(config_complete(&model.config, config->vocabulary, &error), STATUS_OK);
    assert_int_equal(parameters_build(&model.table, &model.config, &error), STATUS_OK);
    model.flat = calloc((size_t)model.table.n_flat_elements, sizeof(float));
    assert_non_null(model.flat);
    parameters_initialise(&model.table, 5, model.flat, 1);
    for (int i = 0; i < model.table.n_parameters; i++) { /* larger than a fresh model's: tokens matter */
        const Parameter *parameter = &model.table.parameter[i];
        int64_t count = parameter->init == INIT_NORMAL ? shape_count(parameter->shape) : 0;
        for (int64_t k = 0; k < count; k++) model.flat[parameter->flat_offset + k] *= 8.0f;
    }
    return model;
}

static void close_model(TestModel *model) {
    parameters_free(&model->table);
    free(model->flat);
}

/* ---- the step as one */

/* Logits and caches of three tokens, one after the other. */
static void run_steps(const TestModel *model, bool fuses, float *logits, float *caches, int64_t n_cached) {
    Graph *graph = graph_new();
    GptDecode decode =
        gpt_record_decode(&model->config, &model->table, graph,
                          &(GptDecodeOptions){.B = 1, .T = 1, .capacity = model->config.context});
    int n_before = graph->n_nodes;
    if (fuses) {
        assert_true(gpt_fuse_decode(graph, &device));
        assert_int_equal(graph->n_nodes, 1);
        char text[96];
        OP_DECODE_STEP.describe(graph->node[0], text, sizeof text);
        assert_non_null(strstr(text, "4 heads"));
        assert_ptr_equal(graph->node[0]->output[DECODE_LOGITS], decode.logits);
    } else {
        assert_false(gpt_fuse_decode(graph, &cpu)); /* which has no kernel for it: nothing changes */
        assert_int_equal(graph->n_nodes, n_before);
    }
    const Node *last = graph->node[graph->n_nodes - 1];
    Tensor *cache = NULL;
    for (int i = 0; i < graph->n_tensors; i++)
        if (graph->tensor[i]->place == PLACE_STATE && !graph->tensor[i]->base) cache = graph->tensor[i];
    assert_int_equal(tensor_count(cache), n_cached);
    TestMemory memory = test_memory_open(graph);
    memcpy(test_memory_at(&memory, decode.parameters.flat), model->flat,
           sizeof(float) * (size_t)model->table.n_flat_elements);
    memset(test_memory_at(&memory, cache), 0, tensor_bytes(cache));
    for (int32_t t = 0; t < 3; t++) {
        *(int32_t *)test_memory_at(&memory, decode.tokens) = 17 * t + 3;
        *(int32_t *)test_memory_at(&memory, decode.start) = t;
        test_memory_run(&memory, SECTION_FORWARD);
        memcpy(logits + t * V, test_memory_at(&memory, last->output[0]), sizeof(float) * V);
    }
    memcpy(caches, test_memory_at(&memory, cache), tensor_bytes(cache));
    test_memory_close(&memory);
    graph_free(graph);
}

static void check_fused(const ModelConfig *config) {
    TestModel model = open_model(config);
    float want[3 * V], got[3 * V];
    int64_t n =
        2 * model.config.n_layers * model.config.n_kv_heads * CONTEXT * config_head_size(&model.config);
    float *want_caches = calloc((size_t)n, sizeof(float)), *got_caches = calloc((size_t)n, sizeof(float));
    run_steps(&model, false, want, want_caches, n);
    run_steps(&model, true, got, got_caches, n);
    assert_memory_equal(got, want, sizeof want);
    assert_memory_equal(got_caches, want_caches, sizeof(float) * (size_t)n);
    free(want_caches);
    free(got_caches);
    close_model(&model);
}

static void test_fused_gpt(void **state) {
    (void)state;
    check_fused(&gpt_config);
}

static void test_fused_llama(void **state) {
    (void)state;
    check_fused(&llama_config);
}

/* Several sequences, several tokens: left as they are. */
static void test_not_fused(void **state) {
    (void)state;
    TestModel model = open_model(&gpt_config);
    for (int64_t k = 0; k < 2; k++) {
        Graph *graph = graph_new();
        gpt_record_decode(&model.config, &model.table, graph,
                          &(GptDecodeOptions){.B = k ? 1 : 2, .T = k ? 2 : 1, .capacity = CONTEXT});
        int n_before = graph->n_nodes;
        assert_false(gpt_fuse_decode(graph, &device));
        assert_int_equal(graph->n_nodes, n_before);
        graph_free(graph);
    }
    close_model(&model);
    ModelConfig depths = gpt_config; /* a block that tokens may go by is no part of such a step */
    depths.depth_capacity = 0.5;
    depths.depth_every = 2;
    model = open_model(&depths);
    Graph *graph = graph_new();
    gpt_record_decode(&model.config, &model.table, graph,
                      &(GptDecodeOptions){.B = 1, .T = 1, .capacity = CONTEXT});
    int n_before = graph->n_nodes;
    assert_false(gpt_fuse_decode(graph, &device));
    assert_int_equal(graph->n_nodes, n_before);
    graph_free(graph);
    close_model(&model);
}

/* ---- drawing */

static const SamplerOptions kinds[] = {
    {.temperature = 0.0, .top_p = 1.0, .seed = 1},
    {.temperature = 1.0, .top_p = 1.0, .seed = 2},
    {.temperature = 0.7, .top_p = 1.0, .top_k = 12, .seed = 3},
    {.temperature = 1.3, .top_p = 0.8, .seed = 4},
    {.temperature = 0.9, .top_p = 0.9, .top_k = 30, .seed = 5},
    {.temperature = 1e-30, .top_p = 1.0, .seed = 6},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* One node on rows of logits of which some rest, against the host's sampler. */
static void check_draws(const SamplerOptions *options) {
    enum { B = 3, N = 4, STRIDE = V + 10, N_STEPS = 9 };
    Graph *graph = graph_new();
    Error error = {0};
    Tensor *logits = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(B, STRIDE), "logits");
    Tensor *settings = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(N_SAMPLE_SETTINGS), "settings");
    Tensor *tokens = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, 1), "tokens");
    Tensor *start = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B), "start");
    Tensor *rows = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, N_SAMPLE_ROW), "rows");
    Tensor *picks = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(N, B, N_SAMPLE_PICK), "picks");
    op_sample(graph, logits, settings, tokens, start, rows, picks);
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    TestMemory memory = test_memory_open(graph);
    SampleSettings *set = test_memory_at(&memory, settings);
    *set = (SampleSettings){options->temperature, options->top_p, options->seed, options->top_k, V};
    SampleRow *row = test_memory_at(&memory, rows);
    int32_t *token = test_memory_at(&memory, tokens), *at = test_memory_at(&memory, start);
    for (int b = 0; b < B; b++) {
        row[b] = (SampleRow){.sample = (uint64_t)b, .position = 100, .is_drawing = b != 1};
        token[b] = -7, at[b] = 5;
    }
    Sampler sampler;
    assert_int_equal(sampler_open(&sampler, options, V, &error), STATUS_OK);
    for (int step = 0; step < N_STEPS; step++) {
        float *values = test_memory_at(&memory, logits);
        for (int i = 0; i < B * STRIDE; i++) {
            uint64_t index = (uint64_t)step * B * STRIDE + (uint64_t)i;
            /* rounded, so that some are equal; those of no token are large */
            values[i] = i % STRIDE < V ? roundf(64.0f * test_value("logits", index)) / 8.0f : 1e6f;
        }
        test_memory_run(&memory, SECTION_FORWARD);
        for (int b = 0; b < B; b++) {
            SampledToken want;
            assert_int_equal(row[b].n_picks, b == 1 ? 0 : step + 1);
            assert_int_equal(at[b], b == 1 ? 5 : 6 + step);
            if (b == 1) {
                assert_int_equal(token[b], -7);
                continue;
            }
            assert_int_equal(sampler_pick(&sampler, values + b * STRIDE, NULL, (uint64_t)b,
                                          100u + (uint64_t)step, &want, &error),
                             STATUS_OK);
            SamplePick got = ((SamplePick *)test_memory_at(&memory, picks))[step % N * B + b];
            assert_int_equal(got.token, want.token);
            assert_int_equal(token[b], want.token);
            assert_true(fabsf(got.log_probability - want.log_probability) < 1e-4f);
        }
    }
    ((float *)test_memory_at(&memory, logits))[7] = NAN;
    test_memory_run(&memory, SECTION_FORWARD);
    assert_int_equal(((SamplePick *)test_memory_at(&memory, picks))[N_STEPS % N * B].token, -8);
    assert_int_equal(row[0].is_drawing, 0);
    sampler_close(&sampler);
    test_memory_close(&memory);
    graph_free(graph);
}

static void test_draws(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) check_draws(&kinds[i]);
}

/* ---- texts */

typedef struct {
    int32_t tokens[N_PROMPTS][MOST_TOKENS];
    int64_t n[N_PROMPTS];
    int32_t end_text_token; /* -1 for none */
    int64_t n_all, end_all_after;
} Record;

static GeneratorVerdict record_token(void *context, const GeneratedToken *token) {
    Record *record = context;
    record->tokens[token->prompt][record->n[token->prompt]++] = token->token;
    if (record->end_all_after && ++record->n_all >= record->end_all_after) return GENERATOR_END_ALL;
    return token->token == record->end_text_token ? GENERATOR_END_TEXT : GENERATOR_GO_ON;
}

static Record run(const TestModel *model, const Backend *backend, int64_t n_rows,
                  const SamplerOptions *sampler, int32_t end_text_token, int64_t end_all_after, int n_runs) {
    Generator generator;
    Error error = {0};
    GeneratorOptions options = {.n_rows = n_rows, .chunk = 8};
    Status status = generator_plan(&generator, &model->config, &model->table, backend, &options, &error);
    if (status == STATUS_OK) status = generator_open(&generator, NULL, &error);
    for (int i = 0; i < model->table.n_parameters && status == STATUS_OK; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        status = generator_upload(&generator, parameter, model->flat + parameter->flat_offset, &error);
    }
    int32_t text[MOST_TOKENS];
    for (int i = 0; i < MOST_TOKENS; i++) text[i] = (int32_t)(test_hash("text", (uint64_t)i) % V);
    const GeneratorPrompt prompts[N_PROMPTS] = {
        {text, 3, 0}, {text, 3, 1}, {text + 5, 50, 0}, {text + 9, 1, 2}, {text, CONTEXT, 0}};
    Record record = {0};
    for (int i = 0; i < n_runs && status == STATUS_OK; i++) { /* the same again, on the same generator */
        record = (Record){.end_text_token = end_text_token, .end_all_after = end_all_after};
        GeneratorRequest request = {.prompts = prompts,
                                    .n_prompts = N_PROMPTS,
                                    .n_new_tokens = 100,
                                    .n_vocabulary = V - 2,
                                    .end_token = 7,
                                    .sampler = *sampler,
                                    .callback = record_token,
                                    .context = &record};
        status = generator_run(&generator, &request, &error);
    }
    assert_int_equal(generator.drawing.is_there, backend == &device);
    generator_close(&generator);
    if (status != STATUS_OK) fail_msg("%s", error.text);
    return record;
}

static void check_texts(const ModelConfig *config, const SamplerOptions *options, int32_t end_text_token) {
    TestModel model = open_model(config);
    for (int64_t n_rows = 1; n_rows <= 4; n_rows += n_rows) {
        Record want = run(&model, &cpu, n_rows, options, end_text_token, 0, 1);
        Record got = run(&model, &device, n_rows, options, end_text_token, 0, 2);
        assert_memory_equal(got.n, want.n, sizeof want.n);
        assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
        Record few = run(&model, &device, n_rows, options, end_text_token, 23, 1);
        assert_int_equal(few.n_all, 23);
        for (int i = 0; i < N_PROMPTS; i++)
            assert_memory_equal(few.tokens[i], want.tokens[i], sizeof(int32_t) * (size_t)few.n[i]);
    }
    close_model(&model);
}

static void test_texts(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) check_texts(&gpt_config, &kinds[i], -1);
    check_texts(&gpt_config, &kinds[1], 11); /* texts that their listener ends */
    check_texts(&llama_config, &kinds[4], -1);
}

/* What is not a number is said to be, wherever it is found. */
static void test_diverged(void **state) {
    (void)state;
    TestModel model = open_model(&gpt_config);
    const Parameter *final = parameter_find(&model.table, ROLE_FINAL_NORM_WEIGHT, NO_BLOCK);
    model.flat[final->flat_offset] = NAN;
    const Backend *backends[] = {&cpu, &device};
    char text[2][sizeof(((Error *)0)->text)];
    for (int i = 0; i < 2; i++) {
        Generator generator;
        Error error = {0};
        GeneratorOptions options = {.n_rows = 1};
        assert_int_equal(
            generator_plan(&generator, &model.config, &model.table, backends[i], &options, &error),
            STATUS_OK);
        assert_int_equal(generator_open(&generator, NULL, &error), STATUS_OK);
        for (int k = 0; k < model.table.n_parameters; k++) {
            const Parameter *parameter = &model.table.parameter[k];
            assert_int_equal(
                generator_upload(&generator, parameter, model.flat + parameter->flat_offset, &error),
                STATUS_OK);
        }
        const int32_t token = 1;
        const GeneratorPrompt prompt = {&token, 1, 0};
        GeneratorRequest request = {
            .prompts = &prompt, .n_prompts = 1, .n_new_tokens = 5, .end_token = -1, .sampler = kinds[1]};
        assert_int_equal(generator_run(&generator, &request, &error), STATUS_FAILED);
        memcpy(text[i], error.text, sizeof text[i]);
        generator_close(&generator);
    }
    assert_non_null(strstr(text[0], "diverged"));
    assert_string_equal(text[0], text[1]);
    close_model(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused_gpt), cmocka_unit_test(test_fused_llama),
        cmocka_unit_test(test_not_fused), cmocka_unit_test(test_draws),
        cmocka_unit_test(test_texts),     cmocka_unit_test(test_diverged),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
