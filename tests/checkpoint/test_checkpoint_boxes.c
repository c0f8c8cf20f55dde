/* Checkpoints of tensor parallelism, pipeline stages and ZeRO together: ranks of one layout save their parts, and a reader
 * of any other layout gets every element; parts that are missing or there twice are found. The ranks are played here,
 * one after the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/checkpoint_part.h"
#include "checkpoint_support.h"
#include "parallel/sync/partition.h"
#include "shard_layouts.h"

/* How a model is spread: every stage has tp shards, each of which dp ranks hold. With ZeRO they hold slices of its
 * moments, or of its weights too; without, they share out what each of them saves. */
typedef struct {
    int tp, n_stages, dp, zero;
    int n_chunks; /* of a stage; 0 is 1 */
    StagePlacement placement;
    TensorStyle style; /* of tp */
} Layout;

enum { MOST_LAYOUT_RANKS = 64 };

static int layout_ranks(const Layout *layout) {
    return layout->tp * layout->n_stages * layout->dp;
}

/* One rank of a layout, with its arrays cut out of the run's. */
typedef struct {
    ParameterTable table;
    ShardMap map[2], saved[2]; /* of the parameters and of the moments: what it holds, and saves */
    float *local[3];
    Arena arena;
} Rank;

static void make_maps(Rank *rank, const Layout *layout, int dp) {
    Arena *arena = &rank->arena;
    const FlatPiece *pieces = parameters_pieces(&rank->table, arena);
    int n_pieces = rank->table.n_parameters;
    const PartitionPlace places[N_FLAT_GROUPS] = {{dp, layout->dp}, {dp, layout->dp}};
    Partition partition = partition_build(arena, pieces, n_pieces, places, 4096, layout->zero == 3);
    for (int i = 0; i < 2; i++) {
        bool is_sliced = layout->zero == 3 || (layout->zero > 0 && i == 1);
        rank->map[i] = is_sliced ? partition_map(&partition, arena)
                                 : shard_map_whole(rank->table.n_flat_elements, arena);
        rank->saved[i] = is_sliced ? rank->map[i] : shard_map_share(pieces, n_pieces, places, arena);
    }
}

/* The rank's own array of one of the run's. */
static float *cut_values(const TestRun *run, const Rank *rank, const ShardMap *map, int array) {
    float *flat = calloc((size_t)rank->table.n_flat_elements + 1, sizeof(float));
    float *local = calloc((size_t)map->n_local + 1, sizeof(float));
    assert_true(flat && local);
    for (int i = 0; i < rank->table.n_parameters; i++) {
        const Parameter *parameter = &rank->table.parameter[i];
        const Parameter *whole = parameter_find(&run->table, parameter->role, parameter->block);
        shard_take(parameter, run->array[array] + whole->flat_offset, flat + parameter->flat_offset);
    }
    for (int i = 0; i < map->n_runs; i++) {
        const ShardRun *part = &map->run[i];
        memcpy(local + part->local_first, flat + part->flat_first, sizeof(float) * (size_t)part->n);
    }
    free(flat);
    return local;
}

static Rank open_rank(const TestRun *run, const Layout *layout, int number) {
    Rank rank = {0};
    Error error = {0};
    int tp = number % layout->tp, dp = number / layout->tp % layout->dp;
    ParameterPart part = shard_chunks(layout->tp, tp, layout->n_stages, number / layout->tp / layout->dp,
                                      layout->n_chunks ? layout->n_chunks : 1, layout->placement);
    part.style = layout->style;
    assert_ok(parameters_build_part(&rank.table, &run->config, &part, &error), error);
    make_maps(&rank, layout, dp);
    for (int k = 0; k < 3; k++) rank.local[k] = cut_values(run, &rank, &rank.map[k > 0], k);
    return rank;
}

static void close_rank(Rank *rank) {
    for (int k = 0; k < 3; k++) free(rank->local[k]);
    parameters_free(&rank->table);
    arena_free(&rank->arena);
}

/* What each rank does, and rank 0 in the end. */
static void save_layout(TestRun *run, const char *path, const Layout *layout) {
    char name[512];
    Error error = {0};
    CheckpointPart parts[MOST_LAYOUT_RANKS];
    int n_ranks = layout_ranks(layout);
    assert_in_range(n_ranks, 1, MOST_LAYOUT_RANKS);
    CheckpointSource source = source_of(run);
    snprintf(name, sizeof name, "%s/checkpoints/step-%08lld", path, (long long)run->state.step);
    assert_ok(file_make_folders(name, &error), error);
    Rank first = open_rank(run, layout, 0);
    for (int number = 0; number < n_ranks; number++) {
        Rank rank = open_rank(run, layout, number);
        source.table = &rank.table;
        source.parameters = rank.local[0];
        source.moment[0] = rank.local[1];
        source.moment[1] = rank.local[2];
        source.parameters_saved = &rank.saved[0];
        source.moments_saved = &rank.saved[1];
        assert_ok(checkpoint_part_write(name, &source, number, n_ranks, &parts[number], &error), error);
        close_rank(&rank);
    }
    source.table = &first.table;
    assert_ok(checkpoint_parts_seal(name, &source, parts, n_ranks, &error), error);
    close_rank(&first);
}

/* ---- loading */

static void assert_reads_whole(const TestRun *run, const Checkpoint *checkpoint) {
    Error error = {0};
    float *flat = calloc((size_t)run->table.n_flat_elements, sizeof(float));
    assert_non_null(flat);
    assert_ok(checkpoint_read_parameters(checkpoint, &run->table, flat, &error), error);
    assert_same_values(run, flat, run->array[0]);
    for (int k = 0; k < 2; k++) {
        assert_ok(checkpoint_read_moment(checkpoint, &run->table, k, flat, &error), error);
        assert_same_values(run, flat, run->array[1 + k]);
    }
    free(flat);
}

/* What every rank of a layout reads is what it would have held. */
static void assert_reads_layout(const TestRun *run, const Checkpoint *checkpoint, const Layout *layout) {
    Error error = {0};
    for (int number = 0; number < layout_ranks(layout); number++) {
        Rank rank = open_rank(run, layout, number);
        for (int k = 0; k < 3; k++) {
            const ShardMap *map = &rank.map[k > 0];
            float *got = malloc(sizeof(float) * (size_t)map->n_local + 1);
            assert_non_null(got);
            assert_ok(checkpoint_read_map(checkpoint, &rank.table, k - 1, map, got, &error), error);
            assert_memory_equal(got, rank.local[k], sizeof(float) * (size_t)map->n_local);
            free(got);
        }
        close_rank(&rank);
    }
}

static void assert_reads_boxes(const TestRun *run, const Checkpoint *checkpoint) {
    Error error = {0};
    unsigned seed = 5;
    float *got = malloc(sizeof(float) * (size_t)parameters_largest(&run->table));
    assert_non_null(got);
    for (int i = 0; i < run->table.n_parameters; i++) {
        const Parameter *parameter = &run->table.parameter[i];
        const Box all = box_whole(parameter->whole);
        Box box = all;
        for (int k = 0; k < box.shape.n_dims; k++) {
            box.offset[k] = draw(&seed, (unsigned)all.shape.dim[k]);
            box.shape.dim[k] = draw(&seed, (unsigned)(all.shape.dim[k] - box.offset[k]) + 1);
        }
        assert_ok(checkpoint_read_box(checkpoint, parameter, i % 3 - 1, &box, got, &error), error);
        const float *want = run->array[i % 3] + parameter->flat_offset;
        for (int64_t e = 0; e < shape_count(box.shape); e++)
            assert_memory_equal(&got[e], &want[box_element(&box, &all, e)], sizeof(float));
        box.offset[0] = all.shape.dim[0] - box.shape.dim[0] + 1;
        assert_int_equal(checkpoint_read_box(checkpoint, parameter, -1, &box, got, &error), STATUS_FAILED);
        error = (Error){0};
    }
    free(got);
}

static const Layout layouts[] = {
    {1, 1, 1, 0, 0, 0, 0},
    {2, 1, 1, 0, 0, 0, 0},
    {3, 1, 1, 0, 0, 0, 0},
    {4, 1, 1, 0, 0, 0, 0},
    {8, 1, 1, 0, 0, 0, 0},
    {1, 5, 1, 0, 0, 0, 0},
    {1, 1, 3, 1, 0, 0, 0},
    {1, 1, 4, 3, 0, 0, 0},
    {2, 2, 2, 1, 0, 0, 0},
    {3, 2, 2, 3, 0, 0, 0},
    {2, 3, 3, 0, 0, 0, 0},
    {4, 5, 3, 3, 0, 0, 0},
    /* chunks, in a loop and in a V */
    {2, 2, 1, 0, 2, PLACEMENT_LOOP, 0},
    {2, 2, 2, 3, 2, PLACEMENT_LOOP, 0},
    {1, 2, 3, 1, 2, PLACEMENT_V, 0},
    {2, 2, 2, 3, 2, PLACEMENT_V, 0},
    {1, 1, 2, 2, 3, PLACEMENT_LOOP, 0},
    {3, 1, 2, 3, 0, 0, TENSOR_ROW},
    {4, 2, 1, 0, 0, 0, TENSOR_ROW},
};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

static int manifest_version(const char *path, int64_t step) {
    char name[512];
    Arena arena = {0};
    Manifest manifest;
    Error error = {0};
    snprintf(name, sizeof name, "%s/checkpoints/step-%08lld/manifest.json", path, (long long)step);
    assert_ok(manifest_read(name, &manifest, &arena, &error), error);
    arena_free(&arena);
    return manifest.has_boxes ? 3 : manifest.has_parts ? 2 : 1;
}

static void test_any_layout_to_any_other(void **state) {
    (void)state;
    for (int i = 0; i < N_SHARD_CONFIGS; i++) {
        TestRun run = open_test_run(&shard_configs[i]);
        char path[256], name[16];
        snprintf(name, sizeof name, "any-%d", i);
        in_folder(path, name);
        for (int from = 0; from < N_LAYOUTS; from++) {
            const Layout *layout = &layouts[from];
            run.state.step = 1 + from;
            save_layout(&run, path, layout);
            Checkpoint checkpoint;
            Error error = {0};
            assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
            assert_string_equal(checkpoint.warning, "");
            assert_reads_whole(&run, &checkpoint);
            assert_reads_boxes(&run, &checkpoint);
            for (int to = from % 2; to < N_LAYOUTS; to += 2)
                assert_reads_layout(&run, &checkpoint, &layouts[to]);
            checkpoint_close(&checkpoint);
            /* The fourth model has one head and so few channels that nothing but its MLP is cut by columns. */
            int version = layout->tp > 1 ? 3 : layout_ranks(layout) > 1 ? 2 : 1;
            assert_int_equal(manifest_version(path, run.state.step), version);
        }
        close_test_run(&run);
    }
}

/* ---- what was saved is not all, or too much */

/* The names of a file's tensors. */
static bool file_has(const char *path, const char *name) {
    SafetensorsFile file;
    Error error = {0};
    assert_ok(safetensors_open(&file, path, &error), error);
    bool is_there = safetensors_find(&file, name) != NULL;
    safetensors_close(&file);
    return is_there;
}

/* A column shard is one tensor of its own shape; slices of it are ranges of that box; rows are ranges of elements. */
static void test_names_in_files(void **state) {
    (void)state;
    TestRun run = open_test_run(&shard_configs[1]);
    char path[256], name[512];
    in_folder(path, "names");
    run.state.step = 1;
    save_layout(&run, path, &(Layout){2, 1, 1, 0, 0, 0, 0});
    snprintf(name, sizeof name, "%s/checkpoints/step-00000001/model-00002-of-00002.safetensors", path);
    assert_true(file_has(name, "h.3.mlp.c_proj.weight[0:30,22:43]"));
    assert_true(file_has(name, "h.3.attn.c_proj.weight[0:30,18:30]"));
    assert_true(file_has(
        name, "h.3.attn.c_attn.weight[540:900]")); /* rows 18 to 29; the key/value head is rank 0's */
    assert_true(file_has(name, "h.3.mlp.c_fc.weight[660:1290]"));
    assert_true(file_has(name, "h.3.mlp.c_fc.weight[1950:2580]"));
    assert_true(file_has(name, "wte.weight[3870:7710]"));
    assert_false(file_has(name, "h.3.ln_1.weight"));
    snprintf(name, sizeof name, "%s/checkpoints/step-00000001/model-00001-of-00002.safetensors", path);
    assert_true(file_has(name, "h.3.ln_1.weight"));
    assert_true(file_has(name, "h.3.attn.c_attn.weight[900:1260]"));
    run.state.step = 2;
    save_layout(&run, path, &(Layout){2, 1, 7, 3, 0, 0, 0});
    int n_slices = 0;
    for (int rank = 0; rank < 14; rank++) {
        SafetensorsFile file;
        Error error = {0};
        snprintf(name, sizeof name, "%s/checkpoints/step-00000002/model-%05d-of-00014.safetensors", path,
                 rank + 1);
        assert_ok(safetensors_open(&file, name, &error), error);
        for (int i = 0; i < file.n_tensors; i++) {
            const char *tensor = file.tensor[i].name;
            n_slices += strstr(tensor, "mlp.c_proj.weight[0:30,0:22][") || strstr(tensor, "[0:30,22:43][");
        }
        safetensors_close(&file);
    }
    assert_true(n_slices > 0);
    close_test_run(&run);
}

/* Parts of two layouts do not make up one model: rank 1's file is that of another split. */
static void test_mixed_parts(void **state) {
    (void)state;
    TestRun run = open_test_run(&shard_configs[0]);
    CheckpointSource source = source_of(&run);
    CheckpointPart parts[2];
    Error error = {0};
    const Layout two = {2, 1, 1, 0, 0, 0, 0}, three = {3, 1, 1, 0, 0, 0, 0};
    Rank first = open_rank(&run, &two, 0), other = open_rank(&run, &three, 1);
    const Rank *ranks[] = {&first, &other};
    for (int i = 0; i < 2; i++) {
        source.table = &ranks[i]->table;
        source.parameters = ranks[i]->local[0];
        for (int k = 0; k < 2; k++) source.moment[k] = ranks[i]->local[1 + k];
        assert_ok(checkpoint_part_write(folder, &source, i, 2, &parts[i], &error), error);
    }
    source.table = &first.table;
    assert_int_equal(checkpoint_parts_seal(folder, &source, parts, 2, &error), STATUS_FAILED);
    assert_error(&error, STATUS_FAILED, "of the model have");
    close_rank(&first);
    close_rank(&other);
    close_test_run(&run);
}

/* A manifest that names only some files of a step, or one of them twice under two names. */
static void test_missing_and_double_files(void **state) {
    (void)state;
    TestRun run = open_test_run(&shard_configs[1]);
    char path[256], manifest_path[512], name[512];
    in_folder(path, "files");
    run.state.step = 1;
    save_layout(&run, path, &(Layout){4, 1, 2, 3, 0, 0, 0});
    Arena arena = {0};
    Manifest manifest, changed;
    Error error = {0};
    snprintf(manifest_path, sizeof manifest_path, "%s/checkpoints/step-00000001/manifest.json", path);
    assert_ok(manifest_read(manifest_path, &manifest, &arena, &error), error);
    assert_int_equal(manifest.n_files, 16);
    for (int i = 0; i < manifest.n_files; i++) {
        for (int is_double = 0; is_double < 2; is_double++) {
            Checkpoint checkpoint;
            ManifestFile files[17];
            memcpy(files, manifest.file, sizeof files[0] * 16);
            changed = manifest;
            changed.file = files;
            if (is_double) {
                snprintf(name, sizeof name, "%s/checkpoints/step-00000001/again.safetensors", path);
                char from[512];
                snprintf(from, sizeof from, "%s/checkpoints/step-00000001/%s", path, files[i].name);
                unlink(name);
                assert_int_equal(link(from, name), 0);
                files[16] = files[i];
                files[changed.n_files++].name = "again.safetensors";
            } else {
                files[i] = files[--changed.n_files];
            }
            assert_ok(manifest_write(manifest_path, &changed, &error), error);
            assert_int_equal(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error),
                             STATUS_USER);
            if (!strstr(error.text, is_double ? " too; the checkpoint is damaged" : " lacks "))
                fail_msg("file %d, double %d: %s", i, is_double, error.text);
            error = (Error){0};
        }
    }
    arena_free(&arena);
    close_test_run(&run);
}

/* Who wants a part of another model is told so. */
static void test_other_model(void **state) {
    (void)state;
    TestRun run = open_test_run(&shard_configs[0]), other = open_test_run(&shard_configs[2]);
    char path[256];
    in_folder(path, "other");
    run.state.step = 1;
    save_layout(&run, path, &(Layout){2, 2, 1, 0, 0, 0, 0});
    Checkpoint checkpoint;
    Error error = {0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    Rank rank = open_rank(&other, &(Layout){2, 2, 1, 0, 0, 0, 0}, 2);
    assert_int_equal(checkpoint_check(&checkpoint, &rank.table, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "the checkpoint is of another model");
    close_rank(&rank);
    checkpoint_close(&checkpoint);
    close_test_run(&other);
    close_test_run(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_layout_to_any_other),
        cmocka_unit_test(test_names_in_files),
        cmocka_unit_test(test_mixed_parts),
        cmocka_unit_test(test_missing_and_double_files),
        cmocka_unit_test(test_other_model),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
