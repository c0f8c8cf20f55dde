/* Checkpoints: what goes in comes out, damage is found wherever it is, and no crash leaves half of one behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checkpoint_support.h"

#include <math.h>

static void test_round_trip(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256], name[512];
    in_folder(path, "deep/run");
    save_step(&run, path, 120, 0.1 + 0.2);
    Checkpoint checkpoint;
    Error error = {0};
    const char *ways[] = {"", "/checkpoints", "/checkpoints/step-00000120"};
    for (int way = 0; way < 3; way++) {
        snprintf(name, sizeof name, "%s%s", path, ways[way]);
        assert_ok(checkpoint_open(&checkpoint, name, CHECKPOINT_NEWEST, true, &error), error);
        assert_string_equal(checkpoint.warning, "");
        struct stat given, found;
        assert_int_equal(stat(path, &given) + stat(checkpoint.run, &found), 0);
        assert_true(given.st_ino == found.st_ino);
        const CheckpointState *got = &checkpoint.state, *want = &run.state;
        assert_true(got->step == 120 && got->n_sequences == 1920 && got->n_tokens == 122880 &&
                    got->seed == want->seed);
        assert_true(got->data_hash == want->data_hash && got->tokenizer_hash == want->tokenizer_hash);
        assert_true(got->validation_loss == 0.1 + 0.2 && got->n_moments == 2);
        assert_string_equal(got->optimizer, "adamw");
        ParameterTable table;
        assert_ok(parameters_build(&table, &checkpoint.config, &error), error);
        assert_int_equal(table.n_flat_elements, run.table.n_flat_elements);
        float *flat = calloc((size_t)table.n_flat_elements, sizeof(float));
        assert_ok(checkpoint_read_parameters(&checkpoint, &table, flat, &error), error);
        assert_same_values(&run, flat, run.array[0]);
        for (int k = 0; k < 2; k++) {
            assert_ok(checkpoint_read_moment(&checkpoint, &table, k, flat, &error), error);
            assert_same_values(&run, flat, run.array[1 + k]);
        }
        assert_int_equal(checkpoint_read_moment(&checkpoint, &table, 2, flat, &error), STATUS_USER);
        error = (Error){0};
        float part[2];
        const Parameter *wte = parameter_find(&table, ROLE_TOKEN_TABLE, NO_BLOCK);
        assert_ok(checkpoint_read_part(&checkpoint, wte, 1, 3, 2, part, &error), error);
        assert_memory_equal(part, run.array[2] + wte->flat_offset + 3, sizeof part);
        free(flat);
        parameters_free(&table);
        checkpoint_close(&checkpoint);
        checkpoint_close(&checkpoint);
    }
    /* Without its optimizer, for generation; and none was ever measured. */
    save_step(&run, path, 121, NAN);
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, false, &error), error);
    assert_int_equal(checkpoint.state.step, 121);
    assert_int_equal(checkpoint.n_files, 1);
    assert_true(isnan(checkpoint.state.validation_loss));
    checkpoint_close(&checkpoint);
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_BEST, false, &error), error);
    assert_int_equal(checkpoint.state.step, 120);
    checkpoint_close(&checkpoint);
    close_test_run(&run);
}

/* A checkpoint of a plain optimizer without moments, and one that is saved again. */
static void test_saved_again(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256], name[512];
    in_folder(path, "again");
    save_step(&run, path, 7, 1.0);
    run.state.n_moments = 0;
    run.array[0][0] = 42.0f;
    save_step(&run, path, 7, 2.0);
    Checkpoint checkpoint;
    Error error = {0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    assert_true(checkpoint.state.validation_loss == 2.0 && checkpoint.n_files == 1);
    float value;
    assert_ok(checkpoint_read_part(&checkpoint, &run.table.parameter[0], -1, 0, 1, &value, &error), error);
    assert_true(value == 42.0f);
    checkpoint_close(&checkpoint);
    snprintf(name, sizeof name, "test $(ls -A '%s/checkpoints' | wc -l) = 1", path);
    assert_int_equal(system(name), 0); /* NOLINT(cert-env33-c): nothing else is left */
    close_test_run(&run);
}

/* Every byte of every file of a small checkpoint, changed one by one: never loaded, and never taken silently. */
static void test_damage_at_every_byte(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256], name[512], damaged[300];
    in_folder(path, "damage");
    save_step(&run, path, 1, 1.0);
    save_step(&run, path, 2, 1.0);
    snprintf(damaged, sizeof damaged, "%s/checkpoints/step-00000002", path);
    const char *files[] = {"manifest.json", "model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s/%s", damaged, files[i]);
        size_t n_bytes;
        char *bytes = get_bytes(name, &n_bytes);
        for (size_t at = 0; at < n_bytes; at++) {
            Checkpoint checkpoint;
            Error error = {0};
            put_byte(name, at, (char)(bytes[at] ^ (char)(1 << at % 8)));
            if (checkpoint_open(&checkpoint, damaged, CHECKPOINT_NEWEST, true, &error) == STATUS_OK) {
                fail_msg("a change of byte %zu of %s was not found", at, files[i]);
            }
            if (at % 101 == 0) { /* in its run, the one before it is taken instead */
                error = (Error){0};
                assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
                assert_int_equal(checkpoint.state.step, 1);
                assert_non_null(strstr(checkpoint.warning, files[i]));
                assert_non_null(strstr(checkpoint.warning, "using step-00000001"));
                checkpoint_close(&checkpoint);
            }
            put_byte(name, at, bytes[at]);
        }
        for (size_t n = 0; n < n_bytes; n += n_bytes / 7) { /* and cut short */
            Checkpoint checkpoint;
            Error error = {0};
            put_bytes(name, bytes, n);
            assert_int_equal(checkpoint_open(&checkpoint, damaged, CHECKPOINT_NEWEST, true, &error),
                             STATUS_USER);
        }
        put_bytes(name, bytes, n_bytes);
        free(bytes);
    }
    Checkpoint checkpoint;
    Error error = {0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    assert_true(checkpoint.state.step == 2 && !checkpoint.warning[0]);
    checkpoint_close(&checkpoint);
    close_test_run(&run);
}

static void touch(const char *path, const char *part) {
    char name[512];
    Error error = {0};
    snprintf(name, sizeof name, "%s/%s", path, part);
    char *slash = strrchr(name, '/');
    *slash = 0;
    assert_ok(file_make_folders(name, &error), error);
    *slash = '/';
    put_bytes(name, "half a file", 11);
}

/* What a killed process may leave: temporaries at any stage. They are passed over, and removed by the next prune. */
static void test_interrupted_saves(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256], name[512];
    in_folder(path, "interrupted");
    Checkpoint checkpoint;
    Error error = {0};
    touch(path, "checkpoints/step-00000001.tmp.99/model.safetensors.tmp.99");
    assert_int_equal(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "no checkpoint");
    save_step(&run, path, 5, 1.0);
    touch(path, "checkpoints/step-00000009.tmp.99/model.safetensors");
    touch(path, "checkpoints/step-00000009.tmp.99/manifest.json.tmp.99");
    touch(path, "checkpoints/step-00000004.old.tmp.99/manifest.json");
    touch(path, "checkpoints/notes.txt");
    touch(path, "checkpoints/step-12/manifest.json");
    snprintf(name, sizeof name, "checkpoints/step-00000006.tmp.%ld/model.safetensors", (long)getpid());
    touch(path, name); /* of a dead process with our number */
    error = (Error){0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    assert_true(checkpoint.state.step == 5 && !checkpoint.warning[0]);
    checkpoint_close(&checkpoint);
    save_step(&run, path, 6, 1.0);
    assert_ok(checkpoint_prune(path, 6, 0, false, &error), error);
    snprintf(
        name, sizeof name,
        "test \"$(ls -A '%s/checkpoints' | tr '\\n' ' ')\" = 'notes.txt step-00000005 step-00000006 step-12 '",
        path);
    assert_int_equal(system(name), 0); /* NOLINT(cert-env33-c) */
    close_test_run(&run);
}

static void test_other_model(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256];
    in_folder(path, "other");
    save_step(&run, path, 1, 1.0);
    Checkpoint checkpoint;
    Error error = {0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    static const struct {
        int64_t layers, channels, vocabulary;
        bool tied;
        const char *part;
    } others[] = {{1, 2, 5, true, "'wte.weight' has shape (4,2), this model wants (5,2)"},
                  {1, 4, 4, true, "'wte.weight' has shape (4,2), this model wants (4,4)"},
                  {2, 2, 4, true, "no tensor 'h.1.ln_1.weight'"},
                  {1, 2, 4, false, "no tensor 'lm_head.weight'"}};
    for (int i = 0; i < 4; i++) {
        ModelConfig config = tiny_config;
        config.n_layers = others[i].layers;
        config.n_channels = others[i].channels;
        config.vocabulary = others[i].vocabulary;
        config.tied = others[i].tied;
        TestRun other = open_test_run(&config);
        error = (Error){0};
        assert_int_equal(checkpoint_read_parameters(&checkpoint, &other.table, other.array[0], &error),
                         STATUS_USER);
        assert_error(&error, STATUS_USER, others[i].part);
        close_test_run(&other);
    }
    ModelConfig config = tiny_config;
    config.bias = false;
    TestRun other = open_test_run(&config);
    error = (Error){0};
    assert_int_equal(checkpoint_check(&checkpoint, &other.table, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "is not part of this model");
    close_test_run(&other);
    checkpoint_close(&checkpoint);
    close_test_run(&run);
}

static bool has_step(const char *path, int64_t step) {
    char name[512];
    snprintf(name, sizeof name, "%s/checkpoints/step-%08lld/manifest.json", path, (long long)step);
    return file_exists(name);
}

static void test_prune(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256], name[512];
    Error error = {0};
    in_folder(path, "prune");
    for (int64_t step = 10; step <= 70; step += 10) save_step(&run, path, step, step == 20 ? 0.5 : 1.0);
    /* Up to 50: the last two and the best stay; 60 and 70 are not of its past. */
    assert_ok(checkpoint_prune(path, 50, 2, true, &error), error);
    const bool want[] = {false, true, false, true, true, true, true};
    for (int i = 0; i < 7; i++) assert_int_equal(has_step(path, 10 * (i + 1)), want[i]);
    /* A damaged one does not count. */
    snprintf(name, sizeof name, "%s/checkpoints/step-00000060/model.safetensors", path);
    put_bytes(name, "x", 1);
    assert_ok(checkpoint_prune(path, 70, 2, false, &error), error);
    const bool after[] = {false, false, false, false, true, false, true};
    for (int i = 0; i < 7; i++) assert_int_equal(has_step(path, 10 * (i + 1)), after[i]);
    /* The one just written stays, even alone among later ones. */
    save_step(&run, path, 5, 3.0);
    assert_ok(checkpoint_prune(path, 5, 1, false, &error), error);
    assert_true(has_step(path, 5) && has_step(path, 50) && has_step(path, 70));
    assert_ok(checkpoint_prune(path, 123456789012, 1, true, &error), error);
    assert_false(has_step(path, 5));
    assert_ok(checkpoint_prune(in_folder(path, "not there"), 1, 1, true, &error), error);
    close_test_run(&run);
}

static void test_unusable_places(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256];
    Checkpoint checkpoint;
    Error error = {0};
    assert_int_equal(
        checkpoint_open(&checkpoint, in_folder(path, "nowhere"), CHECKPOINT_NEWEST, true, &error),
        STATUS_USER);
    assert_error(&error, STATUS_USER, "nowhere");
    in_folder(path, "plain file");
    put_bytes(path, "x", 1);
    error = (Error){0};
    assert_int_equal(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "is a file");
    CheckpointSource source = source_of(&run);
    error = (Error){0};
    assert_int_equal(checkpoint_save(path, &source, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "plain file");
    /* All of them damaged: the message says what is wrong with the newest. */
    in_folder(path, "all");
    save_step(&run, path, 1, 1.0);
    save_step(&run, path, 2, 1.0);
    touch(path, "checkpoints/step-00000001/manifest.json");
    touch(path, "checkpoints/step-00000002/model.safetensors");
    error = (Error){0};
    assert_int_equal(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "step-00000002/model.safetensors");
    close_test_run(&run);
}

/* ---- configuration */

static void test_config_json(void **state) {
    (void)state;
    ModelConfig config = {.preset = "mini",
                          .n_layers = 3,
                          .n_heads = 6,
                          .n_kv_heads = 2,
                          .n_channels = 48,
                          .n_hidden = 99,
                          .context = 17,
                          .vocabulary = 1000,
                          .norm = NORM_RMSNORM,
                          .mlp = MLP_SWIGLU,
                          .position = POSITION_ROTARY,
                          .tied = false,
                          .bias = false,
                          .dropout = 0.1,
                          .rotary_theta = 12345.678};
    Arena arena = {0};
    Error error = {0};
    assert_ok(config_complete(&config, config.vocabulary, &error), error); /* as it is when it is saved */
    json_t *object = checkpoint_config_json(&config);
    ModelConfig got;
    assert_ok(checkpoint_config_read(object, "m.json", &got, &arena, &error), error);
    assert_string_equal(got.preset, "mini");
    got.preset = config.preset;
    json_t *again = checkpoint_config_json(&got);
    assert_true(json_equal(object, again));
    assert_true(got.n_hidden == 99 && got.n_kv_heads == 2 && got.dropout == 0.1 &&
                got.rotary_theta == 12345.678);
    json_decref(again);
    static const struct {
        const char *field, *value, *part;
    } wrong[] = {{"layers", "0", "'layers'"},
                 {"layers", "\"3\"", "'layers'"},
                 {"norm", "\"batchnorm\"", "batchnorm"},
                 {"dropout", "1.0", "between 0 and 0.999"},
                 {"heads", "7", "--heads"},
                 {"tied", "1", "'tied'"},
                 {"n_experts", "8", "'n_experts'"},
                 {"channels", "1e3", "'channels'"},
                 {"context", "-1", "'context'"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        json_t *copy = json_copy(object);
        json_object_set_new(copy, wrong[i].field, json_loads(wrong[i].value, JSON_DECODE_ANY, NULL));
        error = (Error){0};
        assert_int_equal(checkpoint_config_read(copy, "m.json", &got, &arena, &error), STATUS_USER);
        assert_error(&error, STATUS_USER, wrong[i].part);
        assert_non_null(strstr(error.text, "m.json"));
        json_decref(copy);
    }
    /* An older file without a newer option. */
    json_object_del(object, "rotary-theta");
    error = (Error){0};
    assert_ok(checkpoint_config_read(object, "m.json", &got, &arena, &error), error);
    assert_true(got.rotary_theta == 10000.0);
    json_decref(object);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),           cmocka_unit_test(test_saved_again),
        cmocka_unit_test(test_damage_at_every_byte), cmocka_unit_test(test_interrupted_saves),
        cmocka_unit_test(test_other_model),          cmocka_unit_test(test_prune),
        cmocka_unit_test(test_unusable_places),      cmocka_unit_test(test_config_json),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
