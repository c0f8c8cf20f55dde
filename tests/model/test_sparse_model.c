/* A model with sparse attention and documents: decoding with its caches gives the whole forward's logits, documents in
 * one sequence are as they are alone, and a pattern that sees all is the dense model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "harness.h"
#include "infer/generator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 50, CONTEXT = 150, END = 7 };

static ModelConfig model_config(const char *patterns, bool has_documents, int position) {
    ModelConfig config = {.preset = "",
                          .n_layers = 3,
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .n_channels = 32,
                          .context = CONTEXT,
                          .vocabulary = V,
                          .tied = true,
                          .bias = true,
                          .position = position,
                          .rotary_theta = 100.0,
                          .attention_pattern = patterns,
                          .document_mask = has_documents,
                          .document_end = has_documents ? END : -1};
    Error error = {0};
    if (config_complete(&config, V, &error) != STATUS_OK) fail_msg("%s", error.text);
    return config;
}

typedef struct {
    ModelConfig config;
    ParameterTable table;
    float *flat;
} TestModel;

static TestModel open_model(ModelConfig config) {
    TestModel model = {.config = config};
    Error error = {0};
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

static void make_tokens(int64_t n, int32_t *tokens) {
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)(test_hash("tokens", (uint64_t)i) % V);
}

/* The losses of n tokens in one sequence, by the references; targets are the tokens that follow. */
static void losses_of(const TestModel *model, const int32_t *tokens, int64_t n, float *losses) {
    Graph *graph = graph_new();
    Error error = {0};
    GptLossOptions options = {.B = 1, .T = n, .loss_scale = 1.0};
    GptLoss loss = gpt_record_loss(&model->config, &model->table, graph, &options);
    if (graph_status(graph, &error) != STATUS_OK) fail_msg("%s", error.text);
    TestMemory memory = test_memory_open(graph);
    memcpy(test_memory_at(&memory, loss.parameters.flat), model->flat,
           sizeof(float) * (size_t)model->table.n_flat_elements);
    memcpy(test_memory_at(&memory, loss.tokens), tokens, sizeof *tokens * (size_t)n);
    memcpy(test_memory_at(&memory, loss.targets), tokens + 1, sizeof *tokens * (size_t)n);
    test_memory_run(&memory, SECTION_FORWARD);
    memcpy(losses, test_memory_at(&memory, loss.losses), sizeof(float) * (size_t)n);
    test_memory_close(&memory);
    graph_free(graph);
}

/* ---- documents */

static void check_documents(const char *patterns, int position) {
    enum { N = 140 };
    TestModel model = open_model(model_config(patterns, true, position)),
              plain = open_model(model_config(patterns, false, position));
    int32_t tokens[N + 1];
    float packed[N], alone[N];
    make_tokens(N + 1, tokens);
    losses_of(&model, tokens, N, packed);
    int n_documents = 0;
    bool by_position =
        !strstr(patterns, "fixed") && !strstr(patterns, "bigbird"); /* else the place matters */
    for (int64_t first = 0, end; first < N && by_position; first = end, n_documents++) {
        end = first;
        while (end < N && tokens[end] != END) end++;
        if (end < N) end++; /* the end token is the document's */
        losses_of(&plain, tokens + first, end - first, alone + first);
    }
    if (by_position) {
        assert_true(n_documents > 2);
        for (int64_t t = 0; t < N; t++)
            if (fabsf(packed[t] - alone[t]) > 1e-5f * (1.0f + fabsf(alone[t])))
                fail_msg("%s: token %d has %g, alone %g", patterns, (int)t, (double)packed[t],
                         (double)alone[t]);
    }
    /* a token of the first document changes nothing behind its end */
    float changed[N];
    int64_t end = 0;
    while (tokens[end] != END) end++;
    tokens[0] = tokens[0] == 1 ? 2 : 1;
    losses_of(&model, tokens, N, changed);
    assert_true(changed[0] != packed[0]);
    assert_memory_equal(changed + end + 1, packed + end + 1, sizeof(float) * (size_t)(N - end - 1));
    close_model(&model);
    close_model(&plain);
}

static void test_documents_apart(void **unused) {
    (void)unused;
    check_documents("dense", POSITION_LEARNED);
    check_documents("dense", POSITION_ROTARY);
    check_documents("window:9,dense", POSITION_LEARNED);
    check_documents("strided:8", POSITION_ROTARY);
    check_documents("fixed:16:2,dense", POSITION_LEARNED);
    check_documents("bigbird:16:1:1:1", POSITION_ROTARY);
}

/* ---- a pattern that sees all */

static void test_all_is_dense(void **unused) {
    (void)unused;
    enum { N = 100 };
    TestModel dense = open_model(model_config("dense", false, POSITION_LEARNED)),
              all = open_model(model_config("window:100,strided:1,fixed:10:10", false, POSITION_LEARNED));
    int32_t tokens[N + 1];
    float want[N], got[N];
    make_tokens(N + 1, tokens);
    losses_of(&dense, tokens, N, want);
    losses_of(&all, tokens, N, got);
    for (int64_t t = 0; t < N; t++) assert_true(fabsf(got[t] - want[t]) <= 1e-6f * (1.0f + fabsf(want[t])));
    close_model(&dense);
    close_model(&all);
}

/* ---- generation */

/* Logits behind each of n tokens, of the whole text at once. */
static float *whole_logits(const TestModel *model, const int32_t *tokens, int64_t n) {
    float *logits = malloc(sizeof(float) * (size_t)(n * V));
    assert_non_null(logits);
    for (int64_t t = 0; t < n; t++) {
        Graph *graph = graph_new();
        Error error = {0};
        GptDecode decode =
            gpt_record_decode(&model->config, &model->table, graph, &(GptDecodeOptions){.B = 1, .T = t + 1});
        if (graph_status(graph, &error) != STATUS_OK) fail_msg("%s", error.text);
        TestMemory memory = test_memory_open(graph);
        memcpy(test_memory_at(&memory, decode.parameters.flat), model->flat,
               sizeof(float) * (size_t)model->table.n_flat_elements);
        memcpy(test_memory_at(&memory, decode.tokens), tokens, sizeof *tokens * (size_t)(t + 1));
        *(int32_t *)test_memory_at(&memory, decode.start) = 0;
        *(int32_t *)test_memory_at(&memory, decode.rows) = (int32_t)t;
        test_memory_run(&memory, SECTION_FORWARD);
        memcpy(logits + t * V, test_memory_at(&memory, decode.logits), sizeof(float) * V);
        test_memory_close(&memory);
        graph_free(graph);
    }
    return logits;
}

/* A prompt of `given` tokens, then one by one, by a generator whose chunks are this long. */
static void check_generator(const TestModel *model, const Backend *cpu, const int32_t *tokens, int64_t n,
                            int64_t given, int64_t chunk, const float *want) {
    Generator generator;
    Error error = {0};
    GeneratorOptions options = {.n_rows = 2, .chunk = chunk};
    assert_int_equal(generator_plan(&generator, &model->config, &model->table, cpu, &options, &error),
                     STATUS_OK);
    assert_int_equal(generator_open(&generator, NULL, &error), STATUS_OK);
    for (int i = 0; i < model->table.n_parameters; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        assert_int_equal(
            generator_upload(&generator, parameter, model->flat + parameter->flat_offset, &error), STATUS_OK);
    }
    assert_int_equal(generator_start(&generator, 0, tokens, given, &error), STATUS_OK);
    assert_int_equal(generator_start(&generator, 1, tokens, 1, &error), STATUS_OK); /* of another length */
    for (int64_t t = given;; t++) {
        assert_int_equal(generator_step(&generator, &error), STATUS_OK);
        const float *got = generator_logits(&generator, 0);
        for (int i = 0; i < V; i++)
            if (fabsf(got[i] - want[(t - 1) * V + i]) > 1e-5f * (1.0f + fabsf(want[(t - 1) * V + i])))
                fail_msg("given %d, chunks of %d: logit %d behind token %d is %g, whole %g", (int)given,
                         (int)chunk, i, (int)t, (double)got[i], (double)want[(t - 1) * V + i]);
        if (t == n) break;
        assert_int_equal(generator_append(&generator, 0, tokens[t], &error), STATUS_OK);
        if (t % 3 == 0) /* row 1 grows more slowly: row 0 is read again meanwhile, as chunks have it */
            assert_int_equal(generator_append(&generator, 1, tokens[t], &error), STATUS_OK);
    }
    generator_close(&generator);
}

static void check_cached(const char *patterns, bool has_documents, int position) {
    enum { N = 100 };
    TestModel model = open_model(model_config(patterns, has_documents, position));
    Backend cpu;
    Error error = {0};
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    int32_t tokens[N];
    make_tokens(N, tokens);
    float *want = whole_logits(&model, tokens, N);
    check_generator(&model, &cpu, tokens, N, 1, 16, want);
    check_generator(&model, &cpu, tokens, N, 37, 16, want);
    check_generator(&model, &cpu, tokens, N, 90, 64, want);
    check_generator(&model, &cpu, tokens, N, 61, 3, want);
    free(want);
    cpu.close(cpu.context);
    close_model(&model);
}

static void test_cached(void **unused) {
    (void)unused;
    check_cached("dense", true, POSITION_LEARNED);
    check_cached("window:9,dense", false, POSITION_LEARNED);
    check_cached("window:1,window:30", false, POSITION_ROTARY);
    check_cached("window:9,dense", true, POSITION_ROTARY);
    check_cached("strided:8", false, POSITION_LEARNED);
    check_cached("fixed:16:2,window:70", true, POSITION_LEARNED);
    check_cached("bigbird:16:1:1:1", false, POSITION_ROTARY);
}

/* The cache of a window has the window and a chunk; that of other patterns everything. */
static void test_cache_is_a_ring(void **unused) {
    (void)unused;
    TestModel model = open_model(model_config("window:9,dense,strided:20", false, POSITION_LEARNED));
    Graph *graph = graph_new();
    GptDecodeOptions options = {.B = 2, .T = 1, .capacity = CONTEXT, .most_new = 16};
    GptDecode decode = gpt_record_decode(&model.config, &model.table, graph, &options);
    assert_int_equal(tensor_count(decode.caches), 2 * (9 + 15 + CONTEXT + CONTEXT) * 2 * 2 * 8);
    graph_free(graph);
    close_model(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_apart),
        cmocka_unit_test(test_all_is_dense),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_cache_is_a_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
