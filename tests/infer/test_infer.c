/* Generation: a cached, chunked, batched and sliding decode sees the same model as one plain pass over the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "harness.h"
#include "infer/generator.h"
#include "ops/depth/depth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- generator */

typedef struct {
    ModelConfig config;
    ParameterTable table;
    float *flat;
    Backend backend;
} TestModel;

static const ModelConfig gpt_config = {.preset = "",
                                       .n_layers = 2,
                                       .n_heads = 4,
                                       .n_channels = 32,
                                       .context = 24,
                                       .vocabulary = 19,
                                       .tied = true,
                                       .bias = true,
                                       .rotary_theta = 10000.0};

static const ModelConfig llama_config = {.preset = "",
                                         .n_layers = 2,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .n_channels = 32,
                                         .context = 24,
                                         .vocabulary = 19,
                                         .norm = NORM_RMSNORM,
                                         .mlp = MLP_SWIGLU,
                                         .position = POSITION_ROTARY,
                                         .rotary_theta = 100.0};

/* What a fresh predictor says of nobody: that some pass, and others do not. */
static void set_predictor(const Parameter *parameter, float *values) {
    bool is_bias = parameter->role == ROLE_DEPTH_PREDICTOR_BIAS;
    if (parameter->role != ROLE_DEPTH_PREDICTOR && !is_bias) return;
    for (int64_t k = 0; k < shape_count(parameter->shape); k++)
        values[k] = is_bias ? 0.05f : test_value(parameter->name, (uint64_t)k);
}

static TestModel open_model(const ModelConfig *config) {
    TestModel model = {.config = *config};
    Error error = {0};
    assert_int_equal(config_complete(&model.config, config->vocabulary, &error), STATUS_OK);
    assert_int_equal(parameters_build(&model.table, &model.config, &error), STATUS_OK);
    model.flat = calloc((size_t)model.table.n_flat_elements, sizeof(float));
    parameters_initialise(&model.table, 5, model.flat, 1);
    /* Matrices larger than a fresh model's, so that positions and tokens matter to the logits. */
    for (int i = 0; i < model.table.n_parameters; i++) {
        const Parameter *parameter = &model.table.parameter[i];
        int64_t count = parameter->init == INIT_NORMAL ? shape_count(parameter->shape) : 0;
        for (int64_t k = 0; k < count; k++) model.flat[parameter->flat_offset + k] *= 8.0f;
        set_predictor(parameter, model.flat + parameter->flat_offset);
    }
    assert_int_equal(backend_cpu_open(&model.backend, 2, &error), STATUS_OK);
    return model;
}

static void close_model(TestModel *model) {
    model->backend.close(model->backend.context);
    parameters_free(&model->table);
    free(model->flat);
}

static void open_generator(Generator *generator, const TestModel *model, int64_t n_rows, int64_t chunk) {
    Error error = {0};
    GeneratorOptions options = {.n_rows = n_rows, .chunk = chunk};
    Status status =
        generator_plan(generator, &model->config, &model->table, &model->backend, &options, &error);
    if (status == STATUS_OK) status = generator_open(generator, NULL, &error);
    for (int i = 0; i < model->table.n_parameters && status == STATUS_OK; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        status = generator_upload(generator, parameter, model->flat + parameter->flat_offset, &error);
    }
    if (status != STATUS_OK) fail_msg("%s", error.text);
}

/* Of nodes that let tokens pass a block: how many passed, and how many went by. */
static int64_t n_passed, n_gone_by;

static void count_passed(const Graph *graph, const TestMemory *memory) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (node->op != &OP_DEPTH_ADMIT) continue;
        const int32_t *slot = test_memory_at(memory, node->output[1]);
        for (int64_t k = 0; k < tensor_count(node->output[1]); k++)
            *(slot[k] >= 0 ? &n_passed : &n_gone_by) += 1;
    }
}

/* Logits after n tokens, by one pass of the plain reference kernels from position 0; with depths, without caches. */
static void reference_logits(const TestModel *model, const int32_t *tokens, int64_t n, float *logits) {
    Graph *graph = graph_new();
    Error error = {0};
    int64_t capacity = model->config.depth_capacity > 0.0 ? 0 : n;
    GptDecode decode = gpt_record_decode(&model->config, &model->table, graph,
                                         &(GptDecodeOptions){.B = 1, .T = n, .capacity = capacity});
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    TestMemory memory = test_memory_open(graph);
    memcpy(test_memory_at(&memory, decode.parameters.flat), model->flat,
           sizeof(float) * (size_t)model->table.n_flat_elements);
    memcpy(test_memory_at(&memory, decode.tokens), tokens, sizeof *tokens * (size_t)n);
    *(int32_t *)test_memory_at(&memory, decode.start) = 0;
    *(int32_t *)test_memory_at(&memory, decode.rows) = (int32_t)(n - 1);
    test_memory_run(&memory, SECTION_FORWARD);
    memcpy(logits, test_memory_at(&memory, decode.logits), sizeof(float) * (size_t)model->config.vocabulary);
    count_passed(graph, &memory);
    test_memory_close(&memory);
    graph_free(graph);
}

enum { MOST_TOKENS = 128, V = 19 };

static void make_tokens(const char *name, int64_t n, int32_t *tokens) {
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)(test_hash(name, (uint64_t)i) % V);
}

/* What a row should see after n tokens of a text whose first `prompt` were given at once. */
static int64_t window_start(int64_t context, int64_t prompt, int64_t n) {
    int64_t first = prompt > context ? prompt - context : 0;
    for (int64_t length = prompt + 1; length <= n; length++) {
        if (length - first > context) first = length - (context / 2 > 0 ? context / 2 : 1);
    }
    return first;
}

static void check_row(const TestModel *model, Generator *generator, int64_t row, const int32_t *tokens,
                      int64_t prompt, int64_t n) {
    float want[V];
    int64_t first = window_start(model->config.context, prompt, n);
    reference_logits(model, tokens + first, n - first, want);
    test_assert_close(generator_logits(generator, row), want, V, 1e-5, 0.0,
                      "row %lld, prompt %lld, after %lld tokens", (long long)row, (long long)prompt,
                      (long long)n);
}

/* Prompts shorter and longer than a chunk and than the context, then token by token past several slides. */
static void check_decode(const ModelConfig *config) {
    TestModel model = open_model(config);
    Generator generator;
    open_generator(&generator, &model, 1, 8);
    const int64_t prompts[] = {1, 2, 7, 8, 9, 23, 24, 25, 60};
    int32_t tokens[MOST_TOKENS];
    Error error = {0};
    for (size_t k = 0; k < sizeof prompts / sizeof prompts[0]; k++) {
        int64_t prompt = prompts[k], n = prompt;
        make_tokens("text", MOST_TOKENS, tokens);
        assert_int_equal(generator_start(&generator, 0, tokens, prompt, &error), STATUS_OK);
        for (; n < prompt + 40; n++) {
            assert_int_equal(generator_step(&generator, &error), STATUS_OK);
            check_row(&model, &generator, 0, tokens, prompt, n);
            assert_int_equal(generator_append(&generator, 0, tokens[n], &error), STATUS_OK);
        }
    }
    generator_close(&generator);
    generator_close(&generator);
    close_model(&model);
}

static void test_decode_gpt(void **state) {
    (void)state;
    check_decode(&gpt_config);
}

static void test_decode_llama(void **state) {
    (void)state;
    check_decode(&llama_config);
}

/* The smallest contexts: a slide with nearly every token. */
static void test_short_contexts(void **state) {
    (void)state;
    for (int64_t context = 1; context <= 5; context++) {
        ModelConfig config = gpt_config;
        config.context = context;
        TestModel model = open_model(&config);
        Generator generator;
        open_generator(&generator, &model, 2, 0);
        int32_t tokens[MOST_TOKENS];
        Error error = {0};
        make_tokens("short", MOST_TOKENS, tokens);
        assert_int_equal(generator_start(&generator, 0, tokens, 1, &error), STATUS_OK);
        assert_int_equal(generator_start(&generator, 1, tokens, 3, &error), STATUS_OK);
        for (int64_t n = 0; n < 12; n++) {
            assert_int_equal(generator_step(&generator, &error), STATUS_OK);
            check_row(&model, &generator, 0, tokens, 1, 1 + n);
            check_row(&model, &generator, 1, tokens, 3, 3 + n);
            assert_int_equal(generator_append(&generator, 0, tokens[1 + n], &error), STATUS_OK);
            assert_int_equal(generator_append(&generator, 1, tokens[3 + n], &error), STATUS_OK);
        }
        generator_close(&generator);
        close_model(&model);
    }
}

/* Rows that start, grow, slide, rest and are replaced at different times do not see each other. */
static void check_rows(const ModelConfig *config) {
    TestModel model = open_model(config);
    enum { B = 3 };
    Generator generator;
    open_generator(&generator, &model, B, 8);
    int32_t tokens[B][MOST_TOKENS];
    int64_t prompt[B] = {2, 17, 30}, n[B];
    Error error = {0};
    for (int b = 0; b < B; b++) {
        char name[8] = {'r', (char)('0' + b), 0};
        make_tokens(name, MOST_TOKENS, tokens[b]);
        assert_int_equal(generator_start(&generator, b, tokens[b], prompt[b], &error), STATUS_OK);
        n[b] = prompt[b];
    }
    for (int step = 0; step < 50; step++) {
        if (step == 20) { /* row 1 gets another text while the others go on */
            prompt[1] = n[1] = 21;
            make_tokens("late", MOST_TOKENS, tokens[1]);
            assert_int_equal(generator_start(&generator, 1, tokens[1], prompt[1], &error), STATUS_OK);
        }
        assert_int_equal(generator_step(&generator, &error), STATUS_OK);
        for (int b = 0; b < B; b++) check_row(&model, &generator, b, tokens[b], prompt[b], n[b]);
        for (int b = 0; b < B; b++) {
            if (b == 0 && step % 3 != 0) continue; /* row 0 rests most of the time */
            assert_int_equal(generator_append(&generator, b, tokens[b][n[b]], &error), STATUS_OK);
            n[b]++;
        }
    }
    generator_close(&generator);
    close_model(&model);
}

static void test_rows_are_independent(void **state) {
    (void)state;
    check_rows(&gpt_config);
}

/* Blocks that some tokens go by: each has a cache of those that passed, and a count of its own. */
static void test_decode_depths(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        ModelConfig config = i == 1 ? llama_config : gpt_config;
        config.n_layers = 3;
        config.depth_capacity = 0.5;
        config.depth_every = i == 1 ? 1 : 2;
        config.n_experts = i == 2 ? 3 : 0; /* inside such a block, too */
        config.n_chosen = 2;
        config.expert_every = 1;
        n_passed = n_gone_by = 0;
        check_decode(&config);
        check_rows(&config);
        assert_true(n_passed > (n_passed + n_gone_by) / 8 && n_gone_by > (n_passed + n_gone_by) / 8);
    }
}

/* ---- runs */

typedef struct {
    int32_t tokens[8][MOST_TOKENS];
    int64_t n[8];
    int64_t n_all;
    int64_t end_all_after;  /* tokens of all prompts, 0 for never */
    int32_t end_text_token; /* -1 for none */
    int n_last;
} Record;

static GeneratorVerdict record_token(void *context, const GeneratedToken *token) {
    Record *record = context;
    record->tokens[token->prompt][record->n[token->prompt]++] = token->token;
    record->n_last += token->is_last;
    assert_true(token->log_probability <= 0.0f && token->log_probability > -30.0f);
    if (record->end_all_after && ++record->n_all >= record->end_all_after) return GENERATOR_END_ALL;
    return token->token == record->end_text_token ? GENERATOR_END_TEXT : GENERATOR_GO_ON;
}

static Record run(Generator *generator, const GeneratorPrompt *prompts, int64_t n_prompts,
                  int64_t n_new_tokens, int32_t end_token, int32_t end_text_token, int64_t end_all_after) {
    Record record = {.end_text_token = end_text_token, .end_all_after = end_all_after};
    GeneratorRequest request = {.prompts = prompts,
                                .n_prompts = n_prompts,
                                .n_new_tokens = n_new_tokens,
                                .n_vocabulary = V - 2,
                                .end_token = end_token,
                                .sampler = {.temperature = 1.0, .top_k = 12, .top_p = 0.97, .seed = 9},
                                .callback = record_token,
                                .context = &record};
    Error error = {0};
    if (generator_run(generator, &request, &error) != STATUS_OK) fail_msg("%s", error.text);
    return record;
}

/* Five prompts give the same texts one by one, in a batch that holds them all, and in one that queues them. */
static void test_batches(void **state) {
    (void)state;
    TestModel model = open_model(&gpt_config);
    int32_t text[MOST_TOKENS];
    make_tokens("prompts", MOST_TOKENS, text);
    GeneratorPrompt prompts[5] = {
        {text, 3, 0}, {text, 3, 1}, {text + 5, 30, 0}, {text + 9, 1, 2}, {text, 24, 0}};
    Record alone[5];
    Generator generator;
    open_generator(&generator, &model, 1, 8);
    for (int i = 0; i < 5; i++) alone[i] = run(&generator, &prompts[i], 1, 40, -1, -1, 0);
    generator_close(&generator);
    assert_memory_not_equal(alone[0].tokens[0], alone[1].tokens[0], sizeof(int32_t) * 40);
    for (int64_t n_rows = 1; n_rows <= 6; n_rows++) {
        open_generator(&generator, &model, n_rows, n_rows == 3 ? 0 : 8);
        Record all = run(&generator, prompts, 5, 40, -1, -1, 0);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(all.n[i], 40);
            assert_memory_equal(all.tokens[i], alone[i].tokens[0], sizeof(int32_t) * 40);
            for (int k = 0; k < 40; k++) assert_in_range(all.tokens[i][k], 0, V - 3);
        }
        assert_int_equal(all.n_last, 5);
        generator_close(&generator);
    }
    close_model(&model);
}

/* The likeliest token of a row once those that stand in its last `window` tokens (0: in all) are penalised. */
static int32_t best_penalised(const float *logits, const int32_t *text, int64_t n, int64_t window,
                              float penalty) {
    float changed[V];
    memcpy(changed, logits, sizeof changed);
    for (int64_t i = window && n > window ? n - window : 0; i < n; i++) {
        float logit = logits[text[i]];
        changed[text[i]] = logit > 0.0f ? logit / penalty : logit * penalty;
    }
    int32_t best = 0;
    for (int32_t i = 1; i < V - 2; i++) best = changed[i] > changed[best] ? i : best;
    return best;
}

/* Prompts that take turns in two rows, one of them longer than the context, each followed token by token. */
static void test_repetition(void **state) {
    (void)state;
    enum { N_NEW = 40, N_PROMPTS = 3 };
    TestModel model = open_model(&gpt_config);
    Generator generator, alone;
    open_generator(&generator, &model, 2, 8);
    open_generator(&alone, &model, 1, 8);
    int32_t text[MOST_TOKENS];
    make_tokens("repeated", MOST_TOKENS, text);
    for (int64_t i = 0; i < MOST_TOKENS; i++) text[i] %= V - 2;
    GeneratorPrompt prompts[N_PROMPTS] = {{text, 3, 0}, {text + 5, 40, 0}, {text + 9, 1, 0}};
    const int64_t windows[] = {0, 1, 5, 30, 1000};
    for (int k = 0; k < 5; k++) {
        Record record = {.end_text_token = -1};
        GeneratorRequest request = {
            .prompts = prompts,
            .n_prompts = N_PROMPTS,
            .n_new_tokens = N_NEW,
            .n_vocabulary = V - 2,
            .end_token = -1,
            .sampler = {.top_p = 1.0, .repetition_penalty = 1.5, .repetition_window = windows[k]},
            .callback = record_token,
            .context = &record};
        Error error = {0};
        if (generator_run(&generator, &request, &error) != STATUS_OK) fail_msg("%s", error.text);
        for (int p = 0; p < N_PROMPTS; p++) {
            int32_t whole[MOST_TOKENS];
            int64_t n = prompts[p].n_tokens;
            memcpy(whole, prompts[p].tokens, sizeof *whole * (size_t)n);
            assert_int_equal(record.n[p], N_NEW);
            assert_int_equal(generator_start(&alone, 0, whole, n, &error), STATUS_OK);
            for (int i = 0; i < N_NEW; i++) {
                assert_int_equal(generator_step(&alone, &error), STATUS_OK);
                whole[n] = best_penalised(generator_logits(&alone, 0), whole, n, windows[k], 1.5f);
                assert_int_equal(record.tokens[p][i], whole[n]);
                assert_int_equal(generator_append(&alone, 0, whole[n++], &error), STATUS_OK);
            }
        }
    }
    generator_close(&generator);
    generator_close(&alone);
    close_model(&model);
}

static void test_ends(void **state) {
    (void)state;
    TestModel model = open_model(&gpt_config);
    Generator generator;
    open_generator(&generator, &model, 2, 0);
    int32_t text[MOST_TOKENS];
    make_tokens("ends", MOST_TOKENS, text);
    GeneratorPrompt prompts[3] = {{text, 3, 0}, {text, 3, 1}, {text, 3, 2}};
    Record whole = run(&generator, prompts, 3, 50, -1, -1, 0);
    int32_t end = whole.tokens[0][10];
    for (int by_callback = 0; by_callback < 2; by_callback++) {
        Record cut = run(&generator, prompts, 3, 50, by_callback ? -1 : end, by_callback ? end : -1, 0);
        for (int i = 0; i < 3; i++) {
            int64_t n = 0;
            while (n < 50 && whole.tokens[i][n++] != end) continue;
            assert_int_equal(cut.n[i], n); /* the end token is handed over, and nothing after it */
            assert_memory_equal(cut.tokens[i], whole.tokens[i], sizeof(int32_t) * (size_t)n);
        }
    }
    Record few = run(&generator, prompts, 3, 50, -1, -1, 7);
    assert_int_equal(few.n[0] + few.n[1] + few.n[2], 7);
    assert_int_equal(run(&generator, prompts, 3, 0, -1, -1, 0).n[0], 0);
    assert_int_equal(run(&generator, NULL, 0, 5, -1, -1, 0).n[0], 0);
    assert_int_equal(run(&generator, prompts, 1, 1, -1, -1, 0).n[0], 1);
    generator_close(&generator);
    close_model(&model);
}

/* Two generators on one set of parameters: a change of the owner's weights shows in the borrower. */
static void test_borrowed_parameters(void **state) {
    (void)state;
    TestModel model = open_model(&gpt_config);
    Generator owner, borrower;
    open_generator(&owner, &model, 1, 0);
    Error error = {0};
    GeneratorOptions options = {.n_rows = 2, .chunk = 4};
    assert_int_equal(generator_plan(&borrower, &model.config, &model.table, &model.backend, &options, &error),
                     STATUS_OK);
    size_t required = generator_required_bytes(&borrower);
    assert_int_equal(generator_open(&borrower, &owner.memory, &error), STATUS_OK);
    assert_int_equal(borrower.memory.allocated_bytes, required);
    assert_ptr_equal(borrower.memory.base[PLACE_PARAMETER], owner.memory.base[PLACE_PARAMETER]);
    int32_t tokens[6] = {1, 2, 3, 4, 5, 6};
    for (int round = 0; round < 2; round++) {
        assert_int_equal(generator_start(&borrower, 1, tokens, 6, &error), STATUS_OK);
        assert_int_equal(generator_step(&borrower, &error), STATUS_OK);
        check_row(&model, &borrower, 1, tokens, 6, 6);
        const Parameter *head = parameter_find(&model.table, ROLE_TOKEN_TABLE, NO_BLOCK);
        for (int64_t i = 0; i < shape_count(head->shape); i++) model.flat[head->flat_offset + i] *= -0.7f;
        assert_int_equal(generator_upload(&owner, head, model.flat + head->flat_offset, &error), STATUS_OK);
    }
    generator_close(&borrower);
    generator_close(&owner);
    close_model(&model);
}

static void test_bad_calls(void **state) {
    (void)state;
    TestModel model = open_model(&gpt_config);
    Generator generator;
    Error error = {0};
    GeneratorOptions none = {.n_rows = 0};
    assert_int_equal(generator_plan(&generator, &model.config, &model.table, &model.backend, &none, &error),
                     STATUS_USER);
    generator_close(&generator);
    open_generator(&generator, &model, 1, 0);
    const int32_t wrong[] = {1, V}, negative[] = {-1};
    error = (Error){0};
    assert_int_equal(generator_start(&generator, 0, wrong, 2, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "token 19"));
    error = (Error){0};
    assert_int_equal(generator_start(&generator, 0, negative, 1, &error), STATUS_FAILED);
    error = (Error){0};
    assert_int_equal(generator_start(&generator, 0, wrong, 0, &error), STATUS_FAILED);
    error = (Error){0};
    assert_int_equal(generator_start(&generator, 1, wrong, 1, &error), STATUS_FAILED);
    /* Weights that are not numbers: an error that says so, not a crash and not a token. */
    const Parameter *final = parameter_find(&model.table, ROLE_FINAL_NORM_WEIGHT, NO_BLOCK);
    model.flat[final->flat_offset] = NAN;
    error = (Error){0};
    assert_int_equal(generator_upload(&generator, final, model.flat + final->flat_offset, &error), STATUS_OK);
    GeneratorPrompt prompt = {wrong, 1, 0};
    GeneratorRequest request = {
        .prompts = &prompt, .n_prompts = 1, .n_new_tokens = 3, .end_token = -1, .sampler = SAMPLER_DEFAULTS};
    assert_int_equal(generator_run(&generator, &request, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "diverged"));
    generator_close(&generator);
    close_model(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_gpt),          cmocka_unit_test(test_decode_llama),
        cmocka_unit_test(test_short_contexts),      cmocka_unit_test(test_rows_are_independent),
        cmocka_unit_test(test_decode_depths),       cmocka_unit_test(test_batches),
        cmocka_unit_test(test_repetition),          cmocka_unit_test(test_ends),
        cmocka_unit_test(test_borrowed_parameters), cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
