/* Models from Hugging Face and back: the numbers of the golden model under their names and in their layout give the
 * golden model's weights and loss, and what goes there and back is the same to the byte. */
#include "backend/cpu/cpu.h"
#include "base/half.h"
#include "folder_support.h"
#include "golden_file.h"
#include "harness.h"
#include "hf_folder.h"
#include "huggingface/convert.h"
#include "train/step/step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define assert_ok(call, error)                                                                               \
    do {                                                                                                     \
        if ((call) != STATUS_OK) fail_msg("%s", (error).text);                                               \
    } while (0)

static const Log silent = {.stream = NULL};

static void convert(const char *from, const char *to, ConvertOptions options) {
    char source_path[256], path[256];
    Error error = {0};
    ModelSource source;
    ConvertResult result;
    options.log = &silent;
    assert_ok(model_source_open(&source, in_folder(source_path, from), CHECKPOINT_NEWEST, &error), error);
    if (!options.shard_bytes) options.shard_bytes = (uint64_t)1 << 40;
    if (!options.type) options.type = source.type;
    assert_ok(convert_model(&source, in_folder(path, to), &options, &result, &error), error);
    assert_int_equal(result.n_tensors, source.config.tied ? 4 + 12 * HF_L : 5 + 12 * HF_L);
    model_source_close(&source);
}

static void assert_same_file(const char *a_folder, const char *b_folder, const char *name) {
    char path[512];
    Error error = {0};
    char *a, *b;
    size_t n_a, n_b;
    snprintf(path, sizeof path, "%s/%s/%s", folder, a_folder, name);
    assert_ok(file_read(path, 1 << 24, &a, &n_a, &error), error);
    snprintf(path, sizeof path, "%s/%s/%s", folder, b_folder, name);
    assert_ok(file_read(path, 1 << 24, &b, &n_b, &error), error);
    if (n_a != n_b || memcmp(a, b, n_a) != 0) fail_msg("%s of %s and %s differ", name, a_folder, b_folder);
    free(a);
    free(b);
}

/* ---- 16 bits */

static float value_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* All 65,536 values of a type as f32, read by the reader of safetensors. */
static float *all_values(SafetensorsType type) {
    char path[256];
    Error error = {0};
    SafetensorsWriter writer;
    SafetensorsFile file;
    SafetensorsTensor tensor = {.name = "all", .type = type, .n_dims = 1, .dim = {65536}};
    in_folder(path, "all.safetensors");
    assert_ok(safetensors_writer_open(&writer, path, &tensor, 1, NULL, &error), error);
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t half = (uint16_t)i;
        assert_ok(safetensors_writer_write(&writer, &half, 2, &error), error);
    }
    assert_ok(safetensors_writer_commit(&writer, &error), error);
    safetensors_writer_abort(&writer);
    float *values = malloc(65536 * sizeof *values);
    assert_ok(safetensors_open(&file, path, &error), error);
    assert_ok(safetensors_read_f32(&file, &file.tensor[0], 0, 65536, values, &error), error);
    safetensors_close(&file);
    return values;
}

static void sixteen_bits_come_back_and_round_to_nearest_even(void **state) {
    (void)state;
    for (int is_f16 = 0; is_f16 < 2; is_f16++) {
        float *values = all_values(is_f16 ? SAFETENSORS_F16 : SAFETENSORS_BF16);
        uint16_t (*make)(float) = is_f16 ? half_f16_from_f32 : half_bf16_from_f32;
        uint32_t infinite = is_f16 ? 0x7C00 : 0x7F80;
        for (uint32_t i = 0; i < 65536; i++) assert_int_equal(make(values[i]), i);
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            for (uint32_t i = 0; i < infinite; i++) {
                /* The middle of two neighbours goes to the even one, all around it to the nearer one. The neighbour
                 * of the largest is where the next number would be. */
                double low = values[i], high = values[i + 1];
                if (i + 1 == infinite) high = 2.0 * low - values[i - 1];
                float middle = (float)(0.5 * (low + high));
                float s = sign ? -1.0f : 1.0f;
                assert_true((double)middle == 0.5 * (low + high) || !is_f16);
                if ((double)middle != 0.5 * (low + high)) continue; /* below f32's subnormals */
                assert_int_equal(make(s * middle), sign | (i % 2 ? i + 1 : i));
                assert_int_equal(make(s * nextafterf(middle, 0.0f)), sign | i);
                assert_int_equal(make(s * nextafterf(middle, INFINITY)), sign | (i + 1));
            }
        }
        free(values);
    }
    assert_int_equal(half_f16_from_f32(65519.0f), 0x7BFF);
    assert_int_equal(half_f16_from_f32(65520.0f), 0x7C00);
    assert_int_equal(half_f16_from_f32(-1e30f), 0xFC00);
    assert_int_equal(half_f16_from_f32(value_of(0x7F800001)), 0x7E00); /* a NaN whose payload does not fit */
    assert_int_equal(half_bf16_from_f32(value_of(0xFF800001)), 0xFFC0);
    assert_int_equal(half_bf16_from_f32(value_of(0x7F7FFFFF)), 0x7F80);
}

/* ---- reading */

static void assert_golden_weights(const char *name, const HfFolder *options) {
    char path[256];
    Error error = {0};
    ModelSource source;
    ParameterTable table;
    ModelConfig config = hf_model_config(options);
    assert_ok(model_source_open(&source, in_folder(path, name), CHECKPOINT_NEWEST, &error), error);
    json_t *got = checkpoint_config_json(&source.config), *want = checkpoint_config_json(&config);
    assert_true(json_equal(got, want));
    json_decref(got);
    json_decref(want);
    assert_ok(parameters_build(&table, &source.config, &error), error);
    assert_ok(model_source_check(&source, &table, &error), error);
    float *values = malloc((size_t)parameters_largest(&table) * sizeof *values);
    for (int i = 0; i < table.n_parameters; i++) {
        const Parameter *parameter = &table.parameter[i];
        assert_ok(model_source_read(&source, parameter, values, &error), error);
        for (int64_t k = 0; k < shape_count(parameter->shape); k++) {
            float weight = hf_weight(parameter, k);
            if (values[k] != weight) fail_msg("%s[%lld] of %s is wrong", parameter->name, (long long)k, name);
        }
    }
    free(values);
    parameters_free(&table);
    model_source_close(&source);
}

static void every_form_gives_the_golden_weights(void **state) {
    (void)state;
    const HfFolder forms[] = {{.type = SAFETENSORS_F32}, {.is_bare = true},
                              {.has_masks = true},       {.has_tied_head = true},
                              {.is_untied = true},       {.n_files = 5, .has_masks = true},
                              {.n_hidden = 40}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char name[32], path[256], ours[32];
        snprintf(name, sizeof name, "form%zu", i);
        snprintf(ours, sizeof ours, "form%zu-ours", i);
        hf_folder_write(in_folder(path, name), &forms[i]);
        assert_golden_weights(name, &forms[i]);
        convert(name, ours, (ConvertOptions){0});
        assert_golden_weights(ours, &forms[i]);
    }
}

static void fill_golden(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions,
                        int32_t *tokens, int32_t *targets) {
    (void)context;
    for (int64_t b = 0; b < n; b++) {
        for (int64_t t = 0; t < n_positions; t++) {
            uint64_t index = (first_sequence + (uint64_t)b) * (HF_T + 1) + (uint64_t)t;
            tokens[b * n_positions + t] = (int32_t)(test_hash("tokens 0", index) % HF_V);
            targets[b * n_positions + t] = (int32_t)(test_hash("tokens 0", index + 1) % HF_V);
        }
    }
}

static void the_model_has_the_loss_that_pytorch_recorded(void **state) {
    (void)state;
    char path[256];
    Error error = {0};
    ModelSource source;
    ParameterTable table;
    Backend backend;
    TrainStep *step = calloc(1, sizeof *step);
    DeviceMemory memory = {0};
    hf_folder_write(in_folder(path, "loss"), &(HfFolder){.n_files = 2});
    assert_ok(model_source_open(&source, path, CHECKPOINT_NEWEST, &error), error);
    assert_ok(parameters_build(&table, &source.config, &error), error);
    assert_ok(backend_cpu_open(&backend, 1, &error), error);
    StepOptions options = {.batch = 4, .micro_batch = 4, .T = HF_T};
    assert_ok(train_step_plan(step, &source.config, &table, &options, NULL, &backend, &error), error);
    device_require(&memory, &step->program.plan);
    assert_ok(device_open(&memory, &backend, &error), error);
    assert_ok(train_step_open(step, &memory, &error), error);
    float *values = malloc((size_t)parameters_largest(&table) * sizeof *values);
    for (int i = 0; i < table.n_parameters; i++) {
        assert_ok(model_source_read(&source, &table.parameter[i], values, &error), error);
        assert_ok(executor_upload(&step->executor, step->loss.parameters.tensor[i], values, &error), error);
    }
    double loss;
    BatchSource batches = {fill_golden, NULL};
    assert_ok(evaluate_step_run(step, &batches, 0, step->options.batch, &loss, &error), error);
    GoldenFile golden = golden_open("tests/golden/gpt2.txt");
    int n_found = 0;
    for (int i = 0; i < golden.n_entries; i++) {
        const GoldenEntry *entry = &golden.entry[i];
        if (strcmp(entry->label, "first") != 0 || strcmp(entry->tensor, "loss") != 0) continue;
        assert_true(fabs(loss - (double)entry->value[0]) < 1e-5);
        n_found++;
    }
    assert_int_equal(n_found, 1);
    golden_close(&golden);
    free(values);
    train_step_close(step);
    free(step);
    device_close(&memory);
    backend.close(backend.context);
    parameters_free(&table);
    model_source_close(&source);
}

/* ---- there and back */

static void what_goes_there_and_back_is_the_same(void **state) {
    (void)state;
    const HfFolder forms[] = {{.type = SAFETENSORS_F32},
                              {.type = SAFETENSORS_BF16},
                              {.type = SAFETENSORS_F16},
                              {.type = SAFETENSORS_BF16, .is_untied = true, .n_hidden = 40},
                              {.is_bare = true}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char name[32], path[256], ours[32], back[32];
        snprintf(name, sizeof name, "trip%zu", i);
        snprintf(ours, sizeof ours, "trip%zu-ours", i);
        snprintf(back, sizeof back, "trip%zu-back", i);
        hf_folder_write(in_folder(path, name), &forms[i]);
        convert(name, ours, (ConvertOptions){0});
        convert(ours, back, (ConvertOptions){.to_huggingface = true});
        assert_same_file(name, back, "config.json");
        assert_same_file(name, back, "model.safetensors");
    }
}

static void shards_hold_the_same_model(void **state) {
    (void)state;
    char path[256];
    hf_folder_write(in_folder(path, "whole"), &(HfFolder){.n_files = 1});
    convert("whole", "shards", (ConvertOptions){.to_huggingface = true, .shard_bytes = 10000});
    assert_false(file_exists(in_folder(path, "shards/model.safetensors")));
    assert_true(file_exists(in_folder(path, "shards/model-00007-of-00007.safetensors")));
    assert_golden_weights("shards", &(HfFolder){0});
    convert("shards", "together", (ConvertOptions){.to_huggingface = true});
    assert_same_file("whole", "together", "model.safetensors");
    convert("whole", "single",
            (ConvertOptions){.to_huggingface = true, .shard_bytes = 1}); /* a file a tensor */
    assert_golden_weights("single", &(HfFolder){0});
}

static void a_type_is_stated_where_it_changes(void **state) {
    (void)state;
    char path[256];
    hf_folder_write(in_folder(path, "typed"), &(HfFolder){.n_files = 1});
    convert("typed", "typed-16", (ConvertOptions){.to_huggingface = true, .type = SAFETENSORS_BF16});
    assert_int_equal(huggingface_config_type(in_folder(path, "typed-16/config.json")), SAFETENSORS_BF16);
    hf_folder_write(in_folder(path, "typed-written"), &(HfFolder){.type = SAFETENSORS_BF16});
    assert_same_file("typed-16", "typed-written", "model.safetensors");
}

/* A model of ours that never was Hugging Face's gets a config.json of its own, which reads back as the same model. */
static void a_model_trained_here_is_described(void **state) {
    (void)state;
    char path[256], note[200];
    HfFolder options = {.n_hidden = 40, .is_untied = true};
    hf_folder_write(in_folder(path, "theirs"), &options);
    convert("theirs", "here", (ConvertOptions){0});
    assert_int_equal(unlink(in_folder(path, "here/huggingface.json")), 0);
    convert("here", "described", (ConvertOptions){.to_huggingface = true, .end_token = 7});
    assert_same_file("theirs", "described", "model.safetensors");
    Arena arena = {0};
    Error error = {0};
    ModelConfig config, wanted = hf_model_config(&options);
    json_t *object;
    in_folder(path, "described/config.json");
    assert_ok(huggingface_config_read(path, &config, note, &arena, &error), error);
    json_t *got = checkpoint_config_json(&config), *want = checkpoint_config_json(&wanted);
    assert_true(json_equal(got, want));
    assert_ok(json_read(path, 1 << 20, &object, &error), error);
    assert_int_equal(json_integer_value(json_object_get(object, "eos_token_id")), 7);
    json_decref(object);
    json_decref(got);
    json_decref(want);
    arena_free(&arena);
}

/* The model of a config.json of that kind, with more fields behind its sizes. */
static ModelConfig read_kind(const char *model_type, const char *fields, Arena *arena) {
    static const char form[] =
        "{\"model_type\": \"%s\", \"num_hidden_layers\": 2, \"num_attention_heads\": 16, "
        "\"hidden_size\": 64, \"intermediate_size\": 40, \"max_position_embeddings\": 8192, "
        "\"vocab_size\": 61, \"num_local_experts\": 4, \"num_experts_per_tok\": 2%s}";
    char path[256], note[200];
    Error error = {0};
    ModelConfig config;
    FileWriter writer;
    assert_ok(file_writer_open(&writer, in_folder(path, "kind.json"), &error), error);
    assert_ok(file_writer_printf(&writer, &error, form, model_type, fields), error);
    assert_ok(file_writer_commit(&writer, &error), error);
    file_writer_abort(&writer);
    assert_ok(huggingface_config_read(path, &config, note, arena, &error), error);
    return config;
}

/* Where a file does not name a field, transformers has a value for each kind of model; null is as many
 * key/value heads as heads. */
static void what_is_not_named_is_as_in_transformers(void **state) {
    (void)state;
    static const struct {
        const char *model_type, *fields;
        int64_t kv_heads;
        double theta;
    } kinds[] = {
        {"mixtral", "", 8, 1e6},
        {"mixtral", ", \"num_key_value_heads\": null, \"rope_theta\": 10000", 16, 1e4},
        {"mixtral", ", \"num_key_value_heads\": 2, \"rope_parameters\": {\"rope_type\": \"default\"}", 2,
         1e6},
        {"mistral", ", \"rms_norm_eps\": 1e-5", 8, 1e4},
        {"llama", ", \"rms_norm_eps\": 1e-5", 16, 1e4},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        Arena arena = {0};
        ModelConfig config = read_kind(kinds[i].model_type, kinds[i].fields, &arena);
        assert_int_equal(config.n_kv_heads, kinds[i].kv_heads);
        assert_float_equal(config.rotary_theta, kinds[i].theta, 0.0);
        arena_free(&arena);
    }
}

/* What attention sees in the model of a config.json. */
static void check_window(const char *model_type, const char *more, const char *want) {
    char fields[160], words[PATTERN_TEXT_BYTES];
    Arena arena = {0};
    snprintf(fields, sizeof fields, ", \"rms_norm_eps\": 1e-5%s", more);
    ModelConfig config = read_kind(model_type, fields, &arena);
    for (int64_t block = 0; block < config.n_layers; block++) {
        AttentionPattern pattern = config_pattern(&config, block);
        pattern_print(&pattern, words, sizeof words);
        assert_string_equal(words, want);
    }
    arena_free(&arena);
}

/* As transformers takes them: the last W positions, the token's own included. */
static void windows_are_taken(void **state) {
    (void)state;
    check_window("mistral", ", \"sliding_window\": 100", "window:100");
    check_window("mistral", ", \"sliding_window\": 8192", "dense");
    check_window("mistral", ", \"sliding_window\": null", "dense");
    check_window("mistral", "", "window:4096");
    check_window("mistral", ", \"sliding_window\": 100, \"use_sliding_window\": false", "dense");
    check_window("mixtral", ", \"sliding_window\": 100", "window:100");
    check_window("mixtral", "", "dense");
    check_window("llama", ", \"sliding_window\": 100", "dense");
}

static void the_tokenizer_goes_along(void **state) {
    (void)state;
    static const char ours[] = "{\"pgpt_tokenizer\":1,\"kind\":\"byte\"}\n";
    char path[256];
    Error error = {0};
    hf_folder_write(in_folder(path, "words"), &(HfFolder){0});
    FileWriter writer;
    assert_ok(file_writer_open(&writer, in_folder(path, "words/tokenizer.json"), &error), error);
    assert_ok(file_writer_printf(&writer, &error, "{\"version\": \"1.0\"}"), error);
    assert_ok(file_writer_commit(&writer, &error), error);
    file_writer_abort(&writer);
    convert("words", "words-ours", (ConvertOptions){0});
    convert("words-ours", "words-back", (ConvertOptions){.to_huggingface = true});
    assert_same_file("words", "words-ours", "tokenizer.json");
    assert_same_file("words", "words-back", "tokenizer.json");
    assert_ok(file_writer_open(&writer, in_folder(path, "words-ours/tokenizer.json"), &error), error);
    assert_ok(file_writer_printf(&writer, &error, "%s", ours), error);
    assert_ok(file_writer_commit(&writer, &error), error);
    file_writer_abort(&writer);
    convert("words-ours", "words-other", (ConvertOptions){.to_huggingface = true});
    assert_false(file_exists(in_folder(path, "words-other/tokenizer.json")));
    convert("words-other", "words-again", (ConvertOptions){0});
    assert_same_file("words-ours", "words-again", "tokenizer.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_bits_come_back_and_round_to_nearest_even),
        cmocka_unit_test(every_form_gives_the_golden_weights),
        cmocka_unit_test(the_model_has_the_loss_that_pytorch_recorded),
        cmocka_unit_test(what_goes_there_and_back_is_the_same),
        cmocka_unit_test(shards_hold_the_same_model),
        cmocka_unit_test(a_type_is_stated_where_it_changes),
        cmocka_unit_test(a_model_trained_here_is_described),
        cmocka_unit_test(what_is_not_named_is_as_in_transformers),
        cmocka_unit_test(windows_are_taken),
        cmocka_unit_test(the_tokenizer_goes_along),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
