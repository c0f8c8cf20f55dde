/* Decoding on a GPU: the step that is one kernel against the CPU in f32 on the same rounded weights; tokens
 * that the GPU draws against the reference; texts in f32 that are the CPU's, token by token. Exit code 77
 * without a GPU. */
#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/half.h"
#include "harness.h"
#include "infer/generator.h"
#include "ops/decode_step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Backend gpu, cpu;
static bool is_brief;

static void assert_ok(Status status, const Error *error) {
    if (status != STATUS_OK) fail_msg("%s", error->text);
}

/* ---- models */

typedef struct {
    ModelConfig config;
    ParameterTable table;
    float *flat;
} TestModel;

/* Weights that 16 bits hold exactly, and matrices in which tokens matter. */
static TestModel open_model(ModelConfig config, DType dtype) {
    TestModel model = {.config = config};
    Error error = {0};
    model.config.preset = "";
    model.config.rotary_theta = 10000.0;
    assert_ok(config_complete(&model.config, config.vocabulary, &error), &error);
    assert_ok(parameters_build(&model.table, &model.config, &error), &error);
    model.flat = calloc((size_t)model.table.n_flat_elements, sizeof(float));
    assert_non_null(model.flat);
    parameters_initialise(&model.table, 11, model.flat, 2);
    for (int i = 0; i < model.table.n_parameters; i++) {
        const Parameter *parameter = &model.table.parameter[i];
        float *values = model.flat + parameter->flat_offset;
        for (int64_t k = 0; k < shape_count(parameter->shape); k++) {
            if (parameter->init == INIT_NORMAL) values[k] *= parameter->block == NO_BLOCK ? 10.0f : 3.0f;
            else
                values[k] +=
                    0.1f * test_value(parameter->name, (uint64_t)k); /* norms and biases: no two alike */
            if (dtype == DTYPE_BF16) values[k] = half_bf16_to_f32(half_bf16_from_f32(values[k]));
            if (dtype == DTYPE_F16) values[k] = half_f16_to_f32(half_f16_from_f32(values[k]));
        }
    }
    return model;
}

static void close_model(TestModel *model) {
    parameters_free(&model->table);
    free(model->flat);
}

static void open_generator(Generator *generator, const TestModel *model, const Backend *backend,
                           int64_t n_rows, DType dtype) {
    Error error = {0};
    GeneratorOptions options = {.n_rows = n_rows, .dtype = dtype};
    assert_ok(generator_plan(generator, &model->config, &model->table, backend, &options, &error), &error);
    assert_ok(generator_open(generator, NULL, &error), &error);
    for (int i = 0; i < model->table.n_parameters; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        assert_ok(generator_upload(generator, parameter, model->flat + parameter->flat_offset, &error),
                  &error);
    }
}

static bool is_fused(const Generator *generator) {
    return generator->decode.graph->node[0]->op == &OP_DECODE_STEP;
}

/* ---- the step as one kernel */

typedef struct {
    const char *name;
    ModelConfig config;
    DType dtype;
    int n_tokens;
    bool by_clusters; /* of thread blocks, on a GPU that has room for 12 */
} StepCase;

static const StepCase STEPS[] = {
    {"gpt2, two blocks",
     {.n_layers = 2,
      .n_heads = 12,
      .n_channels = 768,
      .context = 1024,
      .vocabulary = 1003,
      .tied = true,
      .bias = true},
     DTYPE_BF16,
     560,
     true},
    {"gpt2, one block: no clusters",
     {.n_layers = 1,
      .n_heads = 12,
      .n_channels = 768,
      .context = 128,
      .vocabulary = 1003,
      .tied = true,
      .bias = true},
     DTYPE_BF16,
     100,
     false},
    {"llama, grouped heads",
     {.n_layers = 3,
      .n_heads = 4,
      .n_kv_heads = 2,
      .n_channels = 256,
      .context = 300,
      .vocabulary = 500,
      .norm = NORM_RMSNORM,
      .mlp = MLP_SWIGLU,
      .position = POSITION_ROTARY},
     DTYPE_BF16,
     280,
     false},
    {"small heads, f16, no biases",
     {.n_layers = 1, .n_heads = 8, .n_channels = 128, .context = 64, .vocabulary = 70, .tied = true},
     DTYPE_F16,
     64,
     false},
    {"large heads, exact gelu",
     {.n_layers = 2,
      .n_heads = 3,
      .n_channels = 384,
      .context = 200,
      .vocabulary = 300,
      .mlp = MLP_GELU_ERF,
      .bias = true},
     DTYPE_BF16,
     150,
     false},
    {"1600 channels",
     {.n_layers = 1,
      .n_heads = 25,
      .n_channels = 1600,
      .context = 160,
      .vocabulary = 400,
      .tied = true,
      .bias = true},
     DTYPE_BF16,
     40,
     false},
    {"832 channels: one slice a warp",
     {.n_layers = 2,
      .n_heads = 13,
      .n_channels = 832,
      .context = 160,
      .vocabulary = 400,
      .tied = true,
      .bias = true},
     DTYPE_F16,
     150,
     false},
};
enum { N_STEPS = sizeof STEPS / sizeof STEPS[0] };

static void check_step(const StepCase *test) {
    TestModel model = open_model(test->config, test->dtype);
    Generator want, got;
    Error error = {0};
    open_generator(&want, &model, &cpu, 1, DTYPE_F32);
    open_generator(&got, &model, &gpu, 1, test->dtype);
    int64_t V = model.config.vocabulary;
    double worst = 0.0;
    int first = is_brief ? test->n_tokens - 3 : 0;
    int32_t *tokens = malloc((size_t)test->n_tokens * sizeof *tokens);
    assert_non_null(tokens);
    for (int n = 0; n < test->n_tokens; n++)
        tokens[n] = (int32_t)(test_hash(test->name, (uint64_t)n) % (uint64_t)V);
    for (int n = first; n < test->n_tokens; n++) {
        if (n == first) {
            assert_ok(generator_start(&want, 0, tokens, first + 1, &error), &error);
            assert_ok(generator_start(&got, 0, tokens, first + 1, &error), &error);
        } else {
            assert_ok(generator_append(&want, 0, tokens[n], &error), &error);
            assert_ok(generator_append(&got, 0, tokens[n], &error), &error);
        }
        assert_ok(generator_step(&want, &error), &error);
        assert_ok(generator_step(&got, &error), &error);
        const float *a = generator_logits(&got, 0), *b = generator_logits(&want, 0);
        double difference = 0.0, norm = 0.0;
        for (int64_t i = 0; i < V; i++) {
            difference += pow((double)a[i] - (double)b[i], 2.0);
            norm += pow((double)b[i], 2.0);
        }
        double error_here = sqrt(difference / norm);
        if (!(error_here < 2e-2)) fail_msg("%s: token %d is off by %g", test->name, n, error_here);
        worst = error_here > worst ? error_here : worst;
    }
    free(tokens);
    bool fused = is_fused(&got);
    const char *way = fused ? backend_cuda_decode_way(&gpu) : "many kernels";
    printf("%-32s %s, at most %.2g off\n", test->name, way, worst);
    int major = 0, n_processors = 0; /* of the GPU, as it describes itself */
    char text[128];
    const char *at = strstr(backend_cuda_describe(&gpu, text, sizeof text), "capability ");
    if (at) major = atoi(at + strlen("capability "));
    assert_int_equal(fused, major >= 9);
    if ((at = strstr(text, " multiprocessors")) != NULL) {
        while (at > text && at[-1] >= '0' && at[-1] <= '9') at--;
        n_processors = atoi(at);
    }
    if (fused && !test->by_clusters) assert_string_equal(way, "grid");
    if (fused && test->by_clusters && n_processors >= 132) assert_string_equal(way, "clusters");
    generator_close(&want);
    generator_close(&got);
    close_model(&model);
}

static void test_steps(void **state) {
    (void)state;
    for (int i = 0; i < N_STEPS; i++) check_step(&STEPS[i]);
}

/* ---- drawing */

static const SamplerOptions KINDS[] = {
    {.temperature = 0.0, .top_p = 1.0, .seed = 1},
    {.temperature = 1.0, .top_p = 1.0, .seed = 2},
    {.temperature = 0.8, .top_p = 1.0, .top_k = 200, .seed = 3},
    {.temperature = 1.2, .top_p = 0.9, .seed = 4},
    {.temperature = 0.9, .top_p = 0.7, .top_k = 50, .seed = 5},
    {.temperature = 1.0, .top_p = 1.0, .top_k = 1, .seed = 6},
    {.temperature = 3.0, .top_p = 0.999999, .top_k = 30000, .seed = 7},
    {.temperature = 1e-30, .top_p = 1.0, .seed = 8},
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

typedef struct {
    int64_t B, stride, n_vocabulary;
    float scale, step; /* logits are multiples of `step` */
} DrawCase;

static const DrawCase DRAWS[] = {
    {3, 50304, 50257, 8.0f, 0.0f},   {2, 1000, 990, 4.0f, 0.5f}, /* many are equal */
    {1, 40, 33, 20.0f, 0.0f},                                    /* fewer than a warp and a bit */
    {1, 20000, 20000, 0.0f, 1.0f},                               /* all are equal */
    {1, 30000, 30000, 300.0f, 0.0f},
};
enum { N_DRAWS = sizeof DRAWS / sizeof DRAWS[0] };

typedef struct {
    Graph *graph;
    Tensor *logits, *settings, *tokens, *start, *rows, *picks;
} DrawGraph;

static DrawGraph record_draw(const DrawCase *test, int64_t n_picks) {
    Graph *g = graph_new();
    DrawGraph draw = {.graph = g};
    int64_t B = test->B;
    draw.logits = graph_tensor(g, PLACE_INPUT, DTYPE_F32, SHAPE(B, test->stride), "logits");
    draw.settings = graph_tensor(g, PLACE_INPUT, DTYPE_I32, SHAPE(N_SAMPLE_SETTINGS), "settings");
    draw.tokens = graph_tensor(g, PLACE_INPUT, DTYPE_I32, SHAPE(B, 1), "tokens");
    draw.start = graph_tensor(g, PLACE_INPUT, DTYPE_I32, SHAPE(B), "start");
    draw.rows = graph_tensor(g, PLACE_INPUT, DTYPE_I32, SHAPE(B, N_SAMPLE_ROW), "rows");
    draw.picks = graph_tensor(g, PLACE_INPUT, DTYPE_I32, SHAPE(n_picks, B, N_SAMPLE_PICK), "picks");
    op_sample(g, draw.logits, draw.settings, draw.tokens, draw.start, draw.rows, draw.picks);
    return draw;
}

static float test_logit(const DrawCase *test, int64_t i) {
    if (i % test->stride >= test->n_vocabulary) return 1e6f; /* of no token */
    float x = test_value("logits", (uint64_t)i);
    x = test->scale * (x + x * x * x * x * x); /* a few are far above the others */
    return test->step > 0.0f ? test->step * roundf(x / test->step) : x;
}

/* The same steps by the kernel and by the reference; their tokens and whatever else they leave. */
static void check_draws(const DrawCase *test, const SamplerOptions *options) {
    enum { N_PICKS = 4 };
    int n_runs = is_brief ? 1 : 6;
    DrawGraph draw = record_draw(test, N_PICKS);
    Error error = {0};
    Program program;
    DeviceMemory device = {0};
    Executor executor;
    assert_ok(program_build(&program, "draw", draw.graph, &gpu, 1, &error), &error);
    device_require(&device, &program.plan);
    assert_ok(device_open(&device, &gpu, &error), &error);
    assert_ok(executor_open(&executor, &program, &device, &error), &error);
    TestMemory memory = test_memory_open(draw.graph);
    int64_t B = test->B, n = B * test->stride;
    *(SampleSettings *)test_memory_at(&memory, draw.settings) = (SampleSettings){
        options->temperature, options->top_p, options->seed, options->top_k, test->n_vocabulary};
    SampleRow *rows = test_memory_at(&memory, draw.rows);
    float *logits = test_memory_at(&memory, draw.logits);
    for (int64_t i = 0; i < n; i++) logits[i] = test_logit(test, i);
    for (int64_t b = 0; b < B; b++)
        rows[b] = (SampleRow){.sample = (uint64_t)b, .position = 7, .is_drawing = b != 1};
    Tensor *const all[] = {draw.logits, draw.settings, draw.tokens, draw.start, draw.rows, draw.picks};
    for (int i = 2; i < 6; i++)
        if (i != 4) memset(test_memory_at(&memory, all[i]), 0, tensor_bytes(all[i]));
    for (int i = 0; i < 6; i++)
        assert_ok(executor_upload(&executor, all[i], test_memory_at(&memory, all[i]), &error), &error);
    for (int run = 0; run < n_runs; run++) {
        test_memory_run(&memory, SECTION_FORWARD);
        assert_ok(executor_run(&executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error), &error);
        for (int i = 2; i < 5; i++) {
            int32_t *got = malloc(tensor_bytes(all[i])), *want = test_memory_at(&memory, all[i]);
            assert_ok(executor_download(&executor, all[i], got, &error), &error);
            if (memcmp(got, want, tensor_bytes(all[i])) != 0)
                fail_msg("%s, run %d: the first word is %d, the reference's %d (V %lld, T %g, k %lld, p %g)",
                         all[i]->name, run, got[0], want[0], (long long)test->n_vocabulary,
                         options->temperature, (long long)options->top_k, options->top_p);
            free(got);
        }
    }
    SamplePick *got = malloc(tensor_bytes(draw.picks)), *want = test_memory_at(&memory, draw.picks);
    assert_ok(executor_download(&executor, draw.picks, got, &error), &error);
    for (int64_t i = 0; i < N_PICKS * B; i++) {
        assert_int_equal(got[i].token, want[i].token);
        assert_true(fabsf(got[i].log_probability - want[i].log_probability) <
                    1e-5f * (10.0f + fabsf(want[i].log_probability)));
    }
    float bad = INFINITY; /* and a logit that is none */
    assert_ok(executor_upload_part(&executor, draw.logits, 20 * sizeof bad, sizeof bad, &bad, &error),
              &error);
    assert_ok(executor_run(&executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error), &error);
    assert_ok(executor_download(&executor, draw.picks, got, &error), &error);
    assert_int_equal(got[n_runs % N_PICKS * B].token, -21);
    free(got);
    test_memory_close(&memory);
    executor_close(&executor);
    device_close(&device);
    graph_free(draw.graph);
}

static void test_draws(void **state) {
    (void)state;
    for (int i = 0; i < N_DRAWS; i++) {
        for (int k = 0; k < N_KINDS; k++)
            if (!is_brief || (i + k) % 4 == 0) check_draws(&DRAWS[i], &KINDS[k]);
    }
}

/* ---- texts */

enum { N_PROMPTS = 4, N_NEW = 100, V = 160 };

typedef struct {
    int32_t tokens[N_PROMPTS][N_NEW];
    int64_t n[N_PROMPTS];
} Record;

static GeneratorVerdict record_token(void *context, const GeneratedToken *token) {
    Record *record = context;
    record->tokens[token->prompt][record->n[token->prompt]++] = token->token;
    return GENERATOR_GO_ON;
}

static Record run(const TestModel *model, const Backend *backend, int64_t n_rows, DType dtype, int n_new) {
    Generator generator;
    Error error = {0};
    int32_t text[64];
    for (int i = 0; i < 64; i++) text[i] = (int32_t)(test_hash("text", (uint64_t)i) % V);
    const GeneratorPrompt prompts[N_PROMPTS] = {{text, 1, 0}, {text, 5, 1}, {text + 7, 30, 2}, {text, 64, 3}};
    Record record = {0};
    GeneratorRequest request = {.prompts = prompts,
                                .n_prompts = N_PROMPTS,
                                .n_new_tokens = n_new,
                                .end_token = -1,
                                .sampler = KINDS[0],
                                .callback = record_token,
                                .context = &record};
    open_generator(&generator, model, backend, n_rows, dtype);
    assert_int_equal(generator.drawing.is_there, backend == &gpu);
    assert_ok(generator_run(&generator, &request, &error), &error);
    generator_close(&generator);
    return record;
}

/* In f32 both devices make the same text; a context that slides, rows that take turns, tokens drawn many at a
 * time. */
static void test_texts(void **state) {
    (void)state;
    const ModelConfig configs[] = {
        {.n_layers = 3,
         .n_heads = 4,
         .n_channels = 64,
         .context = 80,
         .vocabulary = V,
         .tied = true,
         .bias = true},
        {.n_layers = 2,
         .n_heads = 4,
         .n_kv_heads = 2,
         .n_channels = 128,
         .context = 80,
         .vocabulary = V,
         .norm = NORM_RMSNORM,
         .mlp = MLP_SWIGLU,
         .position = POSITION_ROTARY},
    };
    for (int c = 0; c < 2; c++) {
        TestModel model = open_model(configs[c], DTYPE_F32);
        for (int64_t n_rows = is_brief ? 3 : 1; n_rows <= 3; n_rows++) {
            int n_new = is_brief ? 20 : N_NEW; /* some texts become longer than the context */
            Record want = run(&model, &cpu, n_rows, DTYPE_F32, n_new);
            Record got = run(&model, &gpu, n_rows, DTYPE_F32, n_new);
            assert_memory_equal(got.n, want.n, sizeof want.n);
            assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
        }
        close_model(&model);
    }
}

/* In 16 bits the one kernel runs many times behind the host: the same text each time, and what step by step
 * would give. */
static void check_runs_repeat(const ModelConfig *config) {
    TestModel model = open_model(*config, DTYPE_BF16);
    int n_new = is_brief ? 1 : N_NEW;
    Record first = run(&model, &gpu, 1, DTYPE_BF16, n_new);
    Record second = run(&model, &gpu, 1, DTYPE_BF16, n_new);
    assert_memory_equal(first.tokens, second.tokens, sizeof first.tokens);
    Generator generator;
    Error error = {0};
    int32_t token = (int32_t)(test_hash("text", 0) % V);
    open_generator(&generator, &model, &gpu, 1, DTYPE_BF16);
    assert_ok(generator_start(&generator, 0, &token, 1, &error), &error);
    for (int i = 0; i < n_new; i++) {
        assert_ok(generator_step(&generator, &error), &error);
        const float *logits = generator_logits(&generator, 0);
        int32_t best = 0;
        for (int32_t k = 1; k < V; k++) best = logits[k] > logits[best] ? k : best;
        assert_int_equal(best, first.tokens[0][i]);
        assert_ok(generator_append(&generator, 0, best, &error), &error);
    }
    generator_close(&generator);
    close_model(&model);
}

/* As clusters take it, with blocks of an odd number: what they keep between steps is of every other one. */
static const ModelConfig LIKE_GPT2 = {.n_layers = 3,
                                      .n_heads = 12,
                                      .n_channels = 768,
                                      .context = 256,
                                      .vocabulary = V,
                                      .tied = true,
                                      .bias = true};

static void test_runs_repeat(void **state) {
    (void)state;
    ModelConfig small = LIKE_GPT2;
    small.n_layers = 4, small.n_heads = 4, small.n_channels = 256;
    check_runs_repeat(&small);
    if (!is_brief) check_runs_repeat(&LIKE_GPT2);
}

static bool is_first_logit_finite(Generator *generator) {
    Error error = {0};
    int32_t token = 1;
    assert_ok(generator_start(generator, 0, &token, 1, &error), &error);
    assert_ok(generator_step(generator, &error), &error);
    return isfinite(generator_logits(generator, 0)[0]);
}

/* Numbers beyond what clusters can add up are not hidden, whichever channel they are in; nor do they outlast
 * their step. */
static void test_numbers_too_large(void **state) {
    (void)state;
    TestModel model = open_model(LIKE_GPT2, DTYPE_BF16);
    Generator generator;
    Error error = {0};
    const Parameter *parameter = parameter_find(&model.table, ROLE_PROJ_WEIGHT, 1);
    assert_non_null(parameter);
    int64_t C = 768, F = 4 * C;
    float *values = model.flat + parameter->flat_offset;
    open_generator(&generator, &model, &gpu, 1, DTYPE_BF16);
    assert_true(is_first_logit_finite(&generator));
    bool by_clusters = is_fused(&generator) && !strcmp(backend_cuda_decode_way(&gpu), "clusters");
    for (int64_t channel = 0; by_clusters && channel < C; channel += is_brief ? C : 383) {
        float *value = &values[channel * F + 2 * channel], kept = *value;
        *value = 0x1p100f;
        assert_ok(generator_upload(&generator, parameter, values, &error), &error);
        assert_false(is_first_logit_finite(&generator));
        *value = kept;
        assert_ok(generator_upload(&generator, parameter, values, &error), &error);
        assert_true(is_first_logit_finite(&generator));
    }
    generator_close(&generator);
    close_model(&model);
    if (!by_clusters) skip(); /* in floats, there is room */
}

/* An argument names the only test to run. */
int main(int argc, char **argv) {
    Error error = {0};
    if (backend_cuda_open(&gpu, 0, &error) != STATUS_OK) {
        printf("skipped: %s\n", error.text);
        return 77;
    }
    if (backend_cpu_open(&cpu, 0, &error) != STATUS_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_runs_repeat),
        cmocka_unit_test(test_numbers_too_large),
    };
    is_brief = test_is_brief();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cpu.close(cpu.context);
    gpu.close(gpu.context);
    return failed;
}
