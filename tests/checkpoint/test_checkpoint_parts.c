/* Checkpoints that several ranks have written: whoever loads gets every element, however it was cut. Which pieces make up
 * a model is test_checkpoint_pieces.c's. The ranks are played here, one after the other; tests/mpi has real ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checkpoint/checkpoint_part.h"
#include "checkpoint_support.h"

#include <math.h>
#include <sys/resource.h>

static TestMaps parameter_maps, moment_maps, others;

/* What each rank of several does, and rank 0 in the end. */
static void save_parts(TestRun *run, const char *path, int64_t step, int n_ranks) {
    char name[512];
    Error error = {0};
    CheckpointPart parts[MOST_RANKS];
    TestMaps second = moment_maps;
    run->state.step = step;
    CheckpointSource source = source_of(run);
    snprintf(name, sizeof name, "%s/checkpoints/step-%08lld", path, (long long)step);
    assert_ok(file_make_folders(name, &error), error);
    spread_values(&parameter_maps, n_ranks, run->array[0]);
    spread_values(&moment_maps, n_ranks, run->array[1]);
    spread_values(&second, n_ranks, run->array[2]);
    for (int rank = 0; rank < n_ranks; rank++) {
        source.parameters = parameter_maps.local[rank];
        source.moment[0] = moment_maps.local[rank];
        source.moment[1] = second.local[rank];
        source.parameters_saved = &parameter_maps.map[rank];
        source.moments_saved = &moment_maps.map[rank];
        assert_ok(checkpoint_part_write(name, &source, rank, n_ranks, &parts[rank], &error), error);
    }
    assert_ok(checkpoint_parts_seal(name, &source, parts, n_ranks, &error), error);
    free_values(&parameter_maps, n_ranks);
    free_values(&moment_maps, n_ranks);
    free_values(&second, n_ranks);
}

static void assert_loads(const TestRun *run, const char *path) {
    Checkpoint checkpoint;
    Error error = {0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    assert_string_equal(checkpoint.warning, "");
    float *flat = calloc((size_t)run->table.n_flat_elements, sizeof(float));
    assert_ok(checkpoint_read_parameters(&checkpoint, &run->table, flat, &error), error);
    assert_same_values(run, flat, run->array[0]);
    for (int k = 0; k < 2; k++) {
        assert_ok(checkpoint_read_moment(&checkpoint, &run->table, k, flat, &error), error);
        assert_same_values(run, flat, run->array[1 + k]);
    }
    free(flat);
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++) {
        draw_maps(&others, run->table.n_flat_elements, n_ranks, (unsigned)n_ranks);
        for (int moment = -1; moment < 2; moment++) {
            for (int rank = 0; rank < n_ranks; rank++)
                assert_map_is_read(run, &checkpoint, moment, &others.map[rank]);
        }
    }
    /* Every range of a tensor, through all its pieces. */
    const Parameter *parameter = parameter_find(&run->table, ROLE_TOKEN_TABLE, NO_BLOCK);
    float part[128];
    int64_t count = shape_count(parameter->shape);
    assert_in_range(count, 1, 128);
    for (int64_t first = 0; first <= count; first++) {
        for (int64_t n = 0; n <= count - first; n++) {
            assert_ok(checkpoint_read_part(&checkpoint, parameter, 1, first, n, part, &error), error);
            assert_memory_equal(part, run->array[2] + parameter->flat_offset + first,
                                sizeof(float) * (size_t)n);
        }
    }
    assert_int_equal(checkpoint_read_part(&checkpoint, parameter, 1, 1, count, part, &error), STATUS_FAILED);
    checkpoint_close(&checkpoint);
}

static void test_cut_anyhow(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256];
    in_folder(path, "cut");
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++) {
        for (unsigned seed = 0; seed < 12; seed++) {
            draw_maps(&parameter_maps, run.table.n_flat_elements, n_ranks, seed);
            draw_maps(&moment_maps, run.table.n_flat_elements, n_ranks, seed + 1000);
            save_parts(&run, path, 1 + n_ranks * 100 + (int)seed, n_ranks);
            assert_loads(&run, path);
        }
    }
    close_test_run(&run);
}

/* One rank with a map writes what a process without one does, to the byte. */
static void test_one_rank(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256], name[512];
    in_folder(path, "one");
    save_step(&run, path, 7, 0.5);
    draw_maps(&parameter_maps, run.table.n_flat_elements, 1, 3);
    draw_maps(&moment_maps, run.table.n_flat_elements, 1, 4);
    save_parts(&run, path, 8, 1);
    const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++) {
        char *bytes[2];
        size_t n_bytes[2];
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%s/checkpoints/step-0000000%d/%s", path, 7 + k, files[i]);
            bytes[k] = get_bytes(name, &n_bytes[k]);
        }
        assert_int_equal(n_bytes[0], n_bytes[1]);
        assert_memory_equal(bytes[0], bytes[1], n_bytes[0]);
        free(bytes[0]);
        free(bytes[1]);
    }
    close_test_run(&run);
}

/* Ranks that hold the same, or leave something out, are found before the manifest is written. */
static void test_parts_that_do_not_add_up(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    CheckpointSource source = source_of(&run);
    CheckpointPart parts[2];
    Error error = {0};
    for (int rank = 0; rank < 2; rank++)
        assert_ok(checkpoint_part_write(folder, &source, rank, 2, &parts[rank], &error), error);
    assert_int_equal(checkpoint_parts_seal(folder, &source, parts, 2, &error), STATUS_FAILED);
    assert_error(&error, STATUS_FAILED, "of the model have");
    parts[1].file[CHECKPOINT_MODEL_FILE].n_elements = 0;
    parts[0].file[CHECKPOINT_OPTIMIZER_FILE].n_elements = 0;
    parts[1].file[CHECKPOINT_OPTIMIZER_FILE].n_elements -= 1;
    error = (Error){0};
    assert_int_equal(checkpoint_parts_seal(folder, &source, parts, 2, &error), STATUS_FAILED);
    assert_error(&error, STATUS_FAILED, "of the optimizer have");
    char path[256];
    assert_false(file_exists(in_folder(path, "manifest.json")));
    close_test_run(&run);
}

/* ---- damage */

static void test_damage_at_every_byte(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256], name[512], damaged[300];
    in_folder(path, "damage");
    draw_maps(&parameter_maps, run.table.n_flat_elements, 2, 18);
    draw_maps(&moment_maps, run.table.n_flat_elements, 2, 18);
    save_parts(&run, path, 1, 2);
    save_parts(&run, path, 2, 2);
    snprintf(damaged, sizeof damaged, "%s/checkpoints/step-00000002", path);
    const char *const files[] = {"manifest.json", "model-00001-of-00002.safetensors",
                                 "model-00002-of-00002.safetensors", "optimizer-00001-of-00002.safetensors",
                                 "optimizer-00002-of-00002.safetensors"};
    for (int i = 0; i < 5; i++) {
        Checkpoint checkpoint;
        Error error = {0};
        snprintf(name, sizeof name, "%s/%s", damaged, files[i]);
        size_t n_bytes;
        char *bytes = get_bytes(name, &n_bytes);
        for (size_t at = 0; at < n_bytes; at++) {
            put_byte(name, at, (char)(bytes[at] ^ (char)(1 << at % 8)));
            error = (Error){0};
            if (checkpoint_open(&checkpoint, damaged, CHECKPOINT_NEWEST, true, &error) == STATUS_OK)
                fail_msg("a change of byte %zu of %s was not found", at, files[i]);
            put_byte(name, at, bytes[at]);
        }
        assert_int_equal(unlink(name), 0);
        error = (Error){0};
        assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
        assert_int_equal(checkpoint.state.step, 1);
        assert_non_null(strstr(checkpoint.warning, files[i]));
        checkpoint_close(&checkpoint);
        put_bytes(name, bytes, n_bytes);
        free(bytes);
    }
    assert_loads(&run, path);
    close_test_run(&run);
}

/* More files than a process may have open. */
static void test_many_files(void **state) {
    (void)state;
    enum { N_RANKS = 150, FEW = 48 };
    TestRun run = open_test_run(&cut_config);
    char path[256];
    memset(&parameter_maps, 0, sizeof parameter_maps);
    for (int r = 0; r < N_RANKS; r++) {
        int64_t first = run.table.n_flat_elements * r / N_RANKS;
        int64_t n = run.table.n_flat_elements * (r + 1) / N_RANKS - first;
        parameter_maps.run[r][0] = (ShardRun){first, n, 0};
        parameter_maps.map[r] = (ShardMap){.n_runs = 1, .run = parameter_maps.run[r], .n_local = n};
    }
    moment_maps = parameter_maps;
    for (int r = 0; r < N_RANKS; r++) moment_maps.map[r].run = moment_maps.run[r];
    in_folder(path, "many");
    save_parts(&run, path, 1, N_RANKS);
    struct rlimit before, few = {FEW, FEW};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_loads(&run, path);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    close_test_run(&run);
}

/* A map that is not one is a mistake of the caller's. */
static void test_wrong_maps(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    char path[256];
    in_folder(path, "maps");
    save_step(&run, path, 1, NAN);
    Checkpoint checkpoint;
    Error error = {0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    int64_t n = run.table.n_flat_elements;
    const ShardRun wrong[][2] = {
        {{0, 4, 0}, {3, 4, 4}},     {{0, 4, 0}, {4, 4, 3}},  {{4, 4, 0}, {0, 4, 4}},
        {{n - 3, 4, 0}, {n, 0, 4}}, {{0, 4, 0}, {4, 5, 4}},  {{-1, 4, 0}, {4, 4, 4}},
        {{0, -1, 0}, {4, 4, 4}},    {{0, 4, -1}, {4, 4, 4}}, {{0, 4, 0}, {INT64_MAX, 4, 4}}};
    float local[8];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ShardMap map = {.n_runs = 2, .run = wrong[i], .n_local = 8};
        error = (Error){0};
        assert_int_equal(checkpoint_read_map(&checkpoint, &run.table, -1, &map, local, &error),
                         STATUS_FAILED);
    }
    ShardMap nothing = {0};
    error = (Error){0};
    assert_ok(checkpoint_read_map(&checkpoint, &run.table, 0, &nothing, NULL, &error), error);
    assert_int_equal(checkpoint_read_map(&checkpoint, &run.table, 2, &nothing, NULL, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "has 2 moments of adamw; number 3");
    checkpoint_close(&checkpoint);
    /* Opened without its optimizer, it has no moments. */
    error = (Error){0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, false, &error), error);
    assert_int_equal(checkpoint_read_moment(&checkpoint, &run.table, 0, run.array[0], &error), STATUS_USER);
    checkpoint_close(&checkpoint);
    close_test_run(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anyhow),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_parts_that_do_not_add_up),
        cmocka_unit_test(test_damage_at_every_byte),
        cmocka_unit_test(test_many_files),
        cmocka_unit_test(test_wrong_maps),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
