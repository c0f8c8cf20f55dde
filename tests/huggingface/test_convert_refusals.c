/* What `pgpt convert` must not accept: every message names the file and the field or tensor, and nothing is left of a
 * conversion that failed. */
#include "base/file/staged_folder.h"
#include "folder_support.h"
#include "hf_folder.h"
#include "huggingface/convert.h"

#include <dirent.h>
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

static void run_command(const char *command) {
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
}

static void put_text(const char *name, const char *text) {
    char path[256];
    put_file(in_folder(path, name), text);
}

static int count_entries(void) {
    int n = 0;
    DIR *stream = opendir(folder);
    assert_non_null(stream);
    while (readdir(stream)) n++;
    closedir(stream);
    return n;
}

/* From the folder "from" to "to/below"; the message must hold all the words, which are separated by '|'. */
static void refuse(bool to_huggingface, SafetensorsType type, const char *words) {
    static const Log silent = {.stream = NULL};
    char path[256];
    Error error = {0};
    ModelSource source;
    ConvertResult result;
    ConvertOptions options = {
        .to_huggingface = to_huggingface, .type = type, .shard_bytes = 1 << 30, .log = &silent};
    int n_before = count_entries();
    if (model_source_open(&source, in_folder(path, "from"), CHECKPOINT_NEWEST, &error) == STATUS_OK)
        convert_model(&source, in_folder(path, "to/below"), &options, &result, &error);
    model_source_close(&source);
    if (error.status != STATUS_USER)
        fail_msg("status %d, not a user's mistake: %s", error.status, error.text);
    char copy[512];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, "|"); word; word = strtok(NULL, "|")) {
        if (!strstr(error.text, word)) fail_msg("\"%s\" is not in: %s", word, error.text);
    }
    assert_int_equal(count_entries(), n_before);
}

static void refuse_folder(const HfFolder *options, const char *words) {
    char path[256], command[128];
    hf_folder_write(in_folder(path, "from"), options);
    refuse(false, SAFETENSORS_F32, words);
    snprintf(command, sizeof command, "rm -rf '%s/from'", folder);
    run_command(command);
}

static void refuse_config(const char *change, const char *words) {
    HfFolder options = {0};
    char *config = hf_config(&options, change);
    options.config = config;
    refuse_folder(&options, words);
    free(config);
}

static void configs_that_are_not_ours_are_refused(void **state) {
    (void)state;
    refuse_config("\"model_type\": \"bloom\"",
                  "config.json|bloom is not supported yet; supported: gpt2, llama");
    refuse_config("\"model_type\": null", "config.json|model_type");
    refuse_config("\"model_type\": 5", "config.json|model_type");
    refuse_config("\"activation_function\": \"relu\"", "config.json|activation_function|relu|gelu_new");
    refuse_config("\"layer_norm_epsilon\": 1e-6", "config.json|layer_norm_epsilon|1e-06");
    refuse_config("\"scale_attn_by_inverse_layer_idx\": true", "config.json|scale_attn_by_inverse_layer_idx");
    refuse_config("\"reorder_and_upcast_attn\": true", "config.json|reorder_and_upcast_attn");
    refuse_config("\"scale_attn_weights\": false", "config.json|scale_attn_weights");
    refuse_config("\"scale_attn_weights\": 1", "config.json|scale_attn_weights|true or false");
    refuse_config("\"add_cross_attention\": true", "config.json|add_cross_attention");
    refuse_config("\"resid_pdrop\": 1.0", "config.json|resid_pdrop");
    refuse_config("\"embd_pdrop\": -0.5", "config.json|embd_pdrop");
}

/* A whole config.json of Mixtral with one field more, which says otherwise. */
static void refuse_mixtral(const char *change, const char *words) {
    static const char fields[] =
        "\"model_type\": \"mixtral\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"hidden_size\": 24, \"intermediate_size\": 40, "
        "\"max_position_embeddings\": 16, \"vocab_size\": 61, \"rms_norm_eps\": 1e-5, "
        "\"num_local_experts\": 4, \"num_experts_per_tok\": 2";
    char whole[640], other[128];
    snprintf(whole, sizeof whole, "{%s}", fields);
    snprintf(other, sizeof other, "{%s}", change);
    json_t *object = json_loads(whole, 0, NULL), *changed = json_loads(other, 0, NULL);
    assert_true(object && changed);
    json_object_update(object, changed);
    char *text = json_dumps(object, 0);
    HfFolder options = {.config = text};
    refuse_folder(&options, words);
    free(text);
    json_decref(object);
    json_decref(changed);
}

static void mixtrals_that_are_not_ours_are_refused(void **state) {
    (void)state;
    refuse_mixtral("\"use_cache\": true", "from|model.embed_tokens.weight"); /* the tensors are GPT-2's */
    refuse_mixtral("\"rms_norm_eps\": 1e-6", "config.json|rms_norm_eps|1e-06");
    refuse_mixtral("\"hidden_act\": \"gelu\"", "config.json|hidden_act|silu");
    refuse_mixtral("\"attention_bias\": true", "config.json|attention_bias");
    refuse_mixtral("\"rope_scaling\": {\"rope_type\": \"yarn\"}", "config.json|rope_scaling");
    refuse_mixtral("\"rope_parameters\": {\"rope_type\": \"llama3\"}", "config.json|rope_parameters|llama3");
    refuse_mixtral("\"head_dim\": 8", "config.json|head_dim|8|6");
    refuse_mixtral("\"sliding_window\": 0", "config.json|sliding_window");
    refuse_mixtral("\"sliding_window\": 8.5", "config.json|sliding_window");
    refuse_mixtral("\"num_experts_per_tok\": 5", "config.json|num_experts_per_tok");
    refuse_mixtral("\"num_experts_per_tok\": 0", "config.json|num_experts_per_tok");
    refuse_mixtral("\"num_experts_per_tok\": 1", "config.json|num_experts_per_tok|probability");
    refuse_mixtral("\"num_local_experts\": 80, \"num_experts_per_tok\": 70",
                   "config.json|num_experts_per_tok|64");
    refuse_mixtral("\"num_local_experts\": 1025", "config.json|num_local_experts|1024");
    refuse_mixtral("\"num_local_experts\": null", "config.json|num_local_experts");
    refuse_mixtral("\"router_jitter_noise\": 0.1", "config.json|router_jitter_noise");
    refuse_mixtral("\"num_attention_heads\": 5", "config.json|num_attention_heads|5|24");
    refuse_mixtral("\"num_key_value_heads\": 5", "config.json|num_key_value_heads");
}

static void sizes_that_cannot_be_are_refused(void **state) {
    (void)state;
    refuse_config("\"n_layer\": null", "config.json|n_layer");
    refuse_config("\"n_layer\": 0", "config.json|n_layer");
    refuse_config("\"n_layer\": -1", "config.json|n_layer");
    refuse_config("\"n_layer\": 100000000", "config.json|n_layer");
    refuse_config("\"n_layer\": 1.5", "config.json|n_layer");
    refuse_config("\"n_layer\": \"2\"", "config.json|n_layer");
    refuse_config("\"n_head\": 5", "config.json|n_head|5|24");
    refuse_config("\"n_head\": 48", "config.json|n_head");
    refuse_config("\"n_embd\": 999999999", "config.json|n_embd");
    refuse_config("\"n_embd\": 268435455", "from|parameters");
    refuse_config("\"n_embd\": 48", "wte.weight|(61,24)|(61,48)");
    refuse_config("\"n_inner\": 0", "config.json|n_inner");
    refuse_config("\"n_inner\": 100", "mlp.c_fc.weight|(24,96)|(24,100)");
    refuse_config("\"n_positions\": 12", "wpe.weight|(11,24)|(12,24)");
    refuse_config("\"vocab_size\": 62", "wte.weight|(61,24)|(62,24)");
    refuse_config("\"n_layer\": 3", "from|h.2.ln_1.weight|config.json");
    refuse_config("\"n_layer\": 1", "h.1.|no part of the GPT-2");
    refuse_config("\"tie_word_embeddings\": false", "lm_head.weight");
    HfFolder not_json = {.config = "{\"model_type\": \"gpt2\""};
    refuse_folder(&not_json, "config.json|JSON");
    HfFolder list = {.config = "[1, 2]"};
    refuse_folder(&list, "config.json|object");
    HfFolder empty = {.config = ""};
    refuse_folder(&empty, "config.json|JSON");
}

static void nested_json_is_refused(void **state) {
    (void)state;
    char *deep = malloc((2 << 20) + 1);
    memset(deep, '[', 100000);
    deep[100000] = 0;
    HfFolder options = {.config = deep};
    refuse_folder(&options, "config.json|JSON");
    memset(deep, ' ', 2 << 20);
    deep[2 << 20] = 0;
    refuse_folder(&options, "config.json|too large");
    free(deep);
}

static void tensors_that_do_not_fit_are_refused(void **state) {
    (void)state;
    refuse_folder(&(HfFolder){.leave_out = "h.1.mlp.c_proj.bias"}, "from|h.1.mlp.c_proj.bias");
    refuse_folder(&(HfFolder){.turn = "h.0.mlp.c_fc.weight"}, "h.0.mlp.c_fc.weight|(96,24)|(24,96)");
    refuse_folder(&(HfFolder){.integer = "h.0.ln_1.bias"}, "model.safetensors|h.0.ln_1.bias|I32");
    refuse_folder(&(HfFolder){.extra = "score.weight"}, "model.safetensors|score.weight");
    refuse_folder(&(HfFolder){.extra = "wte.weight"}, "wte.weight|twice|transformer.wte.weight");
    refuse_folder(&(HfFolder){.extra = "transformer.h.0.attn.biases"}, "attn.biases");
    refuse_folder(&(HfFolder){.extra = "transformer.h.x.attn.bias"}, "h.x.attn.bias");
}

/* A head beside a tied table must be the table. */
static void a_tied_head_that_differs_is_refused(void **state) {
    (void)state;
    HfFolder options = {.is_untied = true};
    char *config = hf_config(&options, "\"tie_word_embeddings\": true");
    options.config = config;
    refuse_folder(&options, "lm_head.weight|transformer.wte.weight|tie_word_embeddings");
    free(config);
}

/* ---- files */

static void broken_files_are_refused(void **state) {
    (void)state;
    char path[256];
    hf_folder_write(in_folder(path, "from"), &(HfFolder){0});
    assert_int_equal(truncate(in_folder(path, "from/model.safetensors"), 1000), 0);
    refuse(false, SAFETENSORS_F32, "model.safetensors");
    assert_int_equal(truncate(path, 0), 0);
    refuse(false, SAFETENSORS_F32, "model.safetensors|too short");
    unlink(path);
    refuse(false, SAFETENSORS_F32, "from|model.safetensors|model.safetensors.index.json");
    put_text("from/pytorch_model.bin", "pickle");
    refuse(false, SAFETENSORS_F32, "from|pytorch_model.bin|safetensors");
}

static void refuse_index(const char *text, const char *words) {
    put_text("from/model.safetensors.index.json", text);
    refuse(false, SAFETENSORS_F32, words);
}

static void indexes_that_lie_are_refused(void **state) {
    (void)state;
    char path[256], other[256];
    hf_folder_write(in_folder(path, "from"), &(HfFolder){.n_files = 2});
    refuse_index("{}", "index.json|weight_map");
    refuse_index("{\"weight_map\": {}}", "index.json|weight_map|empty");
    refuse_index("{\"weight_map\": []}", "index.json|weight_map");
    refuse_index("{\"weight_map\": {\"a\": 5}}", "index.json|weight_map|'a'");
    refuse_index("{\"weight_map\": {\"a\": \"../secret\"}}", "index.json|weight_map|../secret");
    refuse_index("{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "index.json|weight_map|/etc/passwd");
    refuse_index("{\"weight_map\": {\"a\": \"\"}}", "index.json|weight_map");
    refuse_index("{\"weight_map\": {\"a\": \"missing.safetensors\"}}", "index.json|missing.safetensors");
    refuse_index("{\"weight_map\": {\"a\": \"config.json\"}}", "index.json|config.json|safetensors");
    refuse_index("{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}",
                 "index.json|'a'|model-00001-of-00002.safetensors");
    refuse_index("{\"weight_map\": {\"transformer.wte.weight\": \"model-00001-of-00002.safetensors\"}}",
                 "from|has no tensor");
    assert_int_equal(link(in_folder(path, "from/model-00001-of-00002.safetensors"),
                          in_folder(other, "from/copy.safetensors")),
                     0);
    refuse_index("{\"weight_map\": {\"transformer.wte.weight\": \"model-00001-of-00002.safetensors\","
                 "\"transformer.wpe.weight\": \"copy.safetensors\"}}",
                 "twice|copy.safetensors");
}

/* ---- from here */

static void refuse_export(ModelConfig config, const char *words) {
    char path[256], command[128];
    Error error = {0};
    ParameterTable table;
    CheckpointState state = {.optimizer = "none"};
    assert_ok(config_complete(&config, HF_V, &error), error);
    assert_ok(parameters_build(&table, &config, &error), error);
    float *flat = calloc((size_t)table.n_flat_elements, sizeof *flat);
    CheckpointSource source = {.config = &config, .table = &table, .parameters = flat, .state = &state};
    assert_ok(checkpoint_save(in_folder(path, "from"), &source, &error), error);
    refuse(true, SAFETENSORS_F32, words);
    free(flat);
    parameters_free(&table);
    snprintf(command, sizeof command, "rm -rf '%s/from'", folder);
    run_command(command);
}

static void models_that_gpt2_cannot_express_are_refused(void **state) {
    (void)state;
    ModelConfig plain = hf_model_config(&(HfFolder){0});
    plain.n_kv_heads = plain.n_hidden = 0;
    ModelConfig config = plain;
    config.position = POSITION_ROTARY;
    refuse_export(config, "--position rotary|GPT-2");
    config = plain;
    config.norm = NORM_RMSNORM;
    refuse_export(config, "--norm rmsnorm");
    config = plain;
    config.mlp = MLP_SWIGLU;
    refuse_export(config, "--mlp swiglu");
    config = plain;
    config.n_kv_heads = 1;
    refuse_export(config, "--kv-heads 1");
    config = plain;
    config.bias = false;
    refuse_export(config, "--no-bias");
}

static void numbers_that_a_type_cannot_hold_are_refused(void **state) {
    (void)state;
    char path[256];
    hf_folder_write(in_folder(path, "from"), &(HfFolder){.first = 70000.0f});
    refuse(true, SAFETENSORS_F16, "wte.weight|70000|f16|bf16");
}

static void a_folder_that_is_not_empty_stays(void **state) {
    (void)state;
    char path[256];
    Error error = {0};
    StagedFolder staged;
    assert_int_equal(mkdir(in_folder(path, "full"), 0777), 0);
    put_text("full/precious", "yes");
    assert_int_equal(staged_folder_open(&staged, path, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "not empty"));
    staged_folder_abort(&staged);
    error = (Error){0};
    assert_int_equal(staged_folder_open(&staged, in_folder(path, "full/precious"), &error), STATUS_USER);
    assert_non_null(strstr(error.text, "is a file"));
    error = (Error){0};
    /* One that is empty when it is opened and full when it is committed. */
    assert_int_equal(mkdir(in_folder(path, "late"), 0777), 0);
    int n_before = count_entries();
    assert_ok(staged_folder_open(&staged, path, &error), error);
    put_text("late/precious", "yes");
    assert_int_equal(staged_folder_commit(&staged, &error), STATUS_USER);
    staged_folder_abort(&staged);
    assert_int_equal(count_entries(), n_before);
    assert_true(file_exists(in_folder(path, "late/precious")));
    /* And one that appears with the folders above it. */
    error = (Error){0};
    assert_ok(staged_folder_open(&staged, in_folder(path, "new/and/deep/"), &error), error);
    assert_ok(staged_folder_commit(&staged, &error), error);
    staged_folder_abort(&staged);
    assert_true(file_exists(in_folder(path, "new/and/deep")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(configs_that_are_not_ours_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(mixtrals_that_are_not_ours_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(sizes_that_cannot_be_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(nested_json_is_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(tensors_that_do_not_fit_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_tied_head_that_differs_is_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(broken_files_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(indexes_that_lie_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(models_that_gpt2_cannot_express_are_refused, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(numbers_that_a_type_cannot_hold_are_refused, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_folder_that_is_not_empty_stays, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
