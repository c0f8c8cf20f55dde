/* Checkpoints that all ranks write and read together: every cut comes back in every other, an error of one rank is the
 * error of all and leaves nothing behind, and everybody ends with the same checkpoint.
 *
 * Ranks: 1 2 3 4 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "checkpoint/saver.h"
#include "checkpoint_support.h"
#include "comm/comm_mpi.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static Comm world, saving;
static TestMaps parameter_maps, moment_maps, second_maps, others;

static bool is_last_rank(void) {
    return world.rank == world.size - 1;
}

static void meet(void) {
    Error error = {0};
    assert_ok(comm_barrier(&world, &error), error);
}

static int open_all(void **state) {
    Error error = {0};
    if (comm_mpi_open(&world, &error) != STATUS_OK ||
        comm_split(&world, 0, world.rank, &saving, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit is an error, as on a full disk */
    if (world.rank == 0 && make_folder(state) != 0) return -1;
    return comm_broadcast(&world, folder, sizeof folder, COMM_U8, 0, &error) == STATUS_OK ? 0 : -1;
}

static int close_all(void **state) {
    Error error = {0};
    comm_barrier(&world, &error);
    int result = world.rank == 0 ? remove_folder(state) : 0;
    comm_close(&saving);
    comm_close(&world);
    return result;
}

static void assert_same_everywhere(const char *text) {
    char first[2048];
    Error error = {0};
    snprintf(first, sizeof first, "%s", text);
    assert_ok(comm_broadcast(&world, first, sizeof first, COMM_U8, 0, &error), error);
    assert_string_equal(first, text);
}

/* All ranks have the error, in the same words, and the last rank is named in it. */
static void assert_agreed(const Error *error, Status status, const char *part) {
    char name[32];
    assert_error(error, status, part);
    assert_same_everywhere(error->text);
    snprintf(name, sizeof name, "rank %d on ", world.size - 1);
    if (world.size > 1) assert_non_null(strstr(error->text, name));
}

static int count_entries(const char *path) {
    DIR *stream = opendir(path);
    int n = 0;
    for (struct dirent *item; stream && (item = readdir(stream));) n += item->d_name[0] != '.';
    if (stream) closedir(stream);
    return n;
}

/* ---- a run of all ranks */

static void deal(const TestRun *run, unsigned seed) {
    draw_maps(&parameter_maps, run->table.n_flat_elements, world.size, seed);
    draw_maps(&moment_maps, run->table.n_flat_elements, world.size, seed + 1000);
    draw_maps(&second_maps, run->table.n_flat_elements, world.size, seed + 1000);
    spread_values(&parameter_maps, world.size, run->array[0]);
    spread_values(&moment_maps, world.size, run->array[1]);
    spread_values(&second_maps, world.size, run->array[2]);
}

static void take_back(void) {
    free_values(&parameter_maps, world.size);
    free_values(&moment_maps, world.size);
    free_values(&second_maps, world.size);
}

static Status save(TestRun *run, const char *path, int64_t step, Error *error) {
    run->state.step = step;
    CheckpointSource source = source_of(run);
    source.parameters = parameter_maps.local[world.rank];
    source.moment[0] = moment_maps.local[world.rank];
    source.moment[1] = second_maps.local[world.rank];
    source.parameters_saved = &parameter_maps.map[world.rank];
    source.moments_saved = &moment_maps.map[world.rank];
    source.comm = &world;
    return checkpoint_save(path, &source, error);
}

static void assert_loads(const TestRun *run, const char *path, int64_t step, unsigned seed) {
    Checkpoint checkpoint;
    Error error = {0};
    assert_ok(checkpoint_open_together(&checkpoint, &world, path, CHECKPOINT_NEWEST, true, &error), error);
    assert_int_equal(checkpoint.state.step, step);
    assert_string_equal(checkpoint.warning, "");
    assert_same_everywhere(checkpoint.path);
    assert_same_everywhere(checkpoint.run);
    draw_maps(&others, run->table.n_flat_elements, world.size, seed);
    for (int moment = -1; moment < 2; moment++)
        assert_map_is_read(run, &checkpoint, moment, &others.map[world.rank]);
    checkpoint_close(&checkpoint);
}

static void test_every_cut(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256], name[512];
    Error error = {0};
    in_folder(path, "cut/deep");
    for (unsigned seed = 0; seed < 8; seed++) {
        deal(&run, seed);
        assert_ok(save(&run, path, seed, &error), error);
        assert_loads(&run, path, seed, seed + 77);
        if (seed == 3) assert_ok(save(&run, path, seed, &error), error); /* the same step again */
        int n_files = 1;
        for (int r = 0; r < world.size; r++)
            n_files += (parameter_maps.map[r].n_runs > 0) + (moment_maps.map[r].n_runs > 0);
        snprintf(name, sizeof name, "%s/checkpoints/step-%08u", path, seed);
        assert_true(count_entries(name) <= n_files);
        snprintf(name, sizeof name, "%s/checkpoints", path);
        assert_int_equal(count_entries(name), seed + 1);
        take_back();
        meet();
    }
    close_test_run(&run);
}

/* What one process has written, many read; and the other way round. */
static void test_alone_and_together(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256];
    Error error = {0};
    in_folder(path, "alone");
    if (world.rank == 0) save_step(&run, path, 5, NAN);
    meet();
    assert_loads(&run, path, 5, 1);
    deal(&run, 9);
    assert_ok(save(&run, path, 6, &error), error);
    Checkpoint checkpoint;
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    assert_int_equal(checkpoint.state.step, 6);
    float *flat = calloc((size_t)run.table.n_flat_elements, sizeof(float));
    assert_ok(checkpoint_read_moment(&checkpoint, &run.table, 1, flat, &error), error);
    assert_same_values(&run, flat, run.array[2]);
    free(flat);
    checkpoint_close(&checkpoint);
    take_back();
    close_test_run(&run);
}

/* ---- what goes wrong */

static void limit_files(rlim_t n_bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = n_bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Every rank writes something, so that each can fail. */
static void deal_evenly(const TestRun *run) {
    TestMaps *const maps[] = {&parameter_maps, &moment_maps, &second_maps};
    int64_t n = run->table.n_flat_elements;
    for (int i = 0; i < 3; i++) {
        memset(maps[i], 0, sizeof *maps[i]);
        for (int r = 0; r < world.size; r++) {
            int64_t first = n * r / world.size, end = n * (r + 1) / world.size;
            maps[i]->run[r][0] = (ShardRun){first, end - first, 0};
            maps[i]->map[r] = (ShardMap){.n_runs = 1, .run = maps[i]->run[r], .n_local = end - first};
        }
        spread_values(maps[i], world.size, run->array[i]);
    }
}

static void test_full_disk(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256], name[512];
    in_folder(path, "full");
    snprintf(name, sizeof name, "%s/checkpoints", path);
    deal_evenly(&run);
    Error error = {0};
    assert_ok(save(&run, path, 1, &error), error);
    meet();
    if (is_last_rank()) limit_files(64);
    save(&run, path, 2, &error);
    if (is_last_rank()) limit_files(RLIM_INFINITY);
    assert_agreed(&error, STATUS_USER, "the file would be larger than allowed");
    assert_int_equal(count_entries(name), 1);
    meet();
    error = (Error){0};
    assert_ok(save(&run, path, 2, &error), error);
    assert_loads(&run, path, 2, 5);
    take_back();
    close_test_run(&run);
}

static void test_unusable_folder(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256];
    Error error = {0};
    in_folder(path, "plain file");
    if (world.rank == 0) put_bytes(path, "x", 1);
    meet();
    deal_evenly(&run);
    assert_int_equal(save(&run, path, 1, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "plain file");
    assert_null(strstr(error.text, "rank ")); /* it is not that rank's own */
    assert_same_everywhere(error.text);
    take_back();
    close_test_run(&run);
}

/* The last rank is on another disk, or at another step. */
static void test_ranks_apart(void **state) {
    (void)state;
    if (world.size == 1) skip();
    TestRun run = open_test_run(&cut_config);
    char path[256], name[512];
    Error error = {0};
    deal_evenly(&run);
    in_folder(path, is_last_rank() ? "apart/theirs" : "apart/ours");
    save(&run, path, 1, &error);
    assert_agreed(&error, STATUS_USER, "put the run's folder on a file system that all ranks share");
    snprintf(name, sizeof name, "%s/checkpoints", path);
    assert_int_equal(count_entries(name), 0);
    meet();
    in_folder(path, "apart/step");
    error = (Error){0};
    save(&run, path, is_last_rank() ? 2 : 1, &error);
    assert_agreed(&error, STATUS_FAILED, "it saves step 2 while rank 0 saves step 1");
    take_back();
    close_test_run(&run);
}

static void test_damage(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256], name[512];
    Checkpoint checkpoint;
    Error error = {0};
    in_folder(path, "damage");
    assert_int_equal(checkpoint_open_together(&checkpoint, &world, path, CHECKPOINT_NEWEST, true, &error),
                     STATUS_USER);
    assert_error(&error, STATUS_USER, "there is no folder");
    assert_null(strstr(error.text, "rank "));
    assert_same_everywhere(error.text);
    deal_evenly(&run);
    error = (Error){0};
    for (int step = 1; step <= 4; step++) assert_ok(save(&run, path, step, &error), error);
    /* From the newest on: a file cut short, a byte changed, a manifest that is gone. */
    const char *const numbers[] = {"", "", "-00001-of-00002", "-00002-of-00003", "-00003-of-00004"};
    if (world.rank == 0) {
        snprintf(name, sizeof name, "%s/checkpoints/step-00000004/model%s.safetensors", path,
                 numbers[world.size]);
        put_bytes(name, "x", 1);
        snprintf(name, sizeof name, "%s/checkpoints/step-00000003/optimizer%s.safetensors", path,
                 numbers[world.size]);
        put_byte(name, 100, 0x55);
    }
    meet();
    assert_ok(checkpoint_open_together(&checkpoint, &world, path, CHECKPOINT_NEWEST, true, &error), error);
    assert_int_equal(checkpoint.state.step, 2);
    assert_non_null(
        strstr(checkpoint.warning, "using step-00000002 instead, 2 checkpoints were passed over"));
    assert_same_everywhere(checkpoint.warning);
    checkpoint_close(&checkpoint);
    assert_ok(checkpoint_open_together(&checkpoint, &world, path, CHECKPOINT_NEWEST, false, &error), error);
    assert_int_equal(checkpoint.state.step, 3); /* its model is sound */
    checkpoint_close(&checkpoint);
    snprintf(name, sizeof name, "%s/checkpoints/step-00000003", path);
    checkpoint_open_together(&checkpoint, &world, name, CHECKPOINT_NEWEST, true, &error);
    assert_error(&error, STATUS_USER, "does not have the checksum");
    assert_same_everywhere(error.text);
    meet();
    for (int step = 1; world.rank == 0 && step <= 2; step++) {
        snprintf(name, sizeof name, "%s/checkpoints/step-%08d/manifest.json", path, step);
        assert_int_equal(unlink(name), 0);
    }
    meet();
    error = (Error){0};
    checkpoint_open_together(&checkpoint, &world, path, CHECKPOINT_NEWEST, true, &error);
    assert_error(&error, STATUS_USER, "can be used; the newest:");
    assert_same_everywhere(error.text);
    take_back();
    close_test_run(&run);
}

/* A rank that looks elsewhere: another working folder stands for another disk. */
static void test_rank_without_access(void **state) {
    (void)state;
    if (world.size == 1) skip();
    TestRun run = open_test_run(&cut_config);
    char path[256], before[1024];
    Checkpoint checkpoint;
    Error error = {0};
    assert_non_null(getcwd(before, sizeof before));
    if (world.rank == 0) {
        in_folder(path, "here/run");
        save_step(&run, path, 1, NAN);
        save_step(&run, path, 2, NAN);
        assert_int_equal(mkdir(in_folder(path, "there"), 0777), 0);
    }
    meet();
    in_folder(path, is_last_rank() ? "there" : "here");
    assert_int_equal(chdir(path), 0);
    checkpoint_open_together(&checkpoint, &world, "run", CHECKPOINT_NEWEST, true, &error);
    assert_int_equal(chdir(before), 0);
    assert_agreed(&error, STATUS_USER, "must be on a file system that all ranks share");
    close_test_run(&run);
}

/* ---- the saver */

/* Of the parameters and the two moments. */
static DType types[3];

static uint16_t narrowed(float value, DType type) {
    return type == DTYPE_BF16 ? half_bf16_from_f32(value) : half_f16_from_f32(value);
}

/* What the run has becomes what these types can hold. */
static void choose_types(TestRun *run, DType parameters, DType first, DType second) {
    const DType chosen[] = {parameters, first, second};
    memcpy(types, chosen, sizeof types);
    for (int i = 0; i < 3; i++) {
        for (int64_t k = 0; types[i] != DTYPE_F32 && k < run->table.n_flat_elements; k++) {
            uint16_t half = narrowed(run->array[i][k], types[i]);
            run->array[i][k] = types[i] == DTYPE_BF16 ? half_bf16_to_f32(half) : half_f16_to_f32(half);
        }
    }
}

/* In place: the first half of the memory. */
static void narrow(float *array, int64_t n, DType type) {
    uint16_t *halves = malloc((size_t)n * sizeof *halves + 1);
    assert_non_null(halves);
    for (int64_t i = 0; i < n; i++) halves[i] = narrowed(array[i], type);
    memcpy(array, halves, (size_t)n * sizeof *halves);
    free(halves);
}

typedef struct {
    bool fails;
    int n_downloads;
} TestDevice;

static Status download(void *context, void *host, const void *device, size_t n_bytes, Error *error) {
    TestDevice *test = context;
    test->n_downloads++;
    if (test->fails) return error_failed(error, "the device has fallen off");
    memcpy(host, device, n_bytes);
    return STATUS_OK;
}

typedef struct {
    TestDevice device;
    Backend backend;
    DeviceMemory memory;
    Executor executor;
    Tensor tensor[3];
} TestExecutor;

static void open_executor(TestExecutor *test) {
    memset(test, 0, sizeof *test);
    test->backend = (Backend){.name = "test", .download = download, .context = &test->device};
    test->memory.backend = &test->backend;
    test->executor.memory = &test->memory;
    float *const arrays[] = {parameter_maps.local[world.rank], moment_maps.local[world.rank],
                             second_maps.local[world.rank]};
    const ShardMap *const maps[] = {&parameter_maps.map[world.rank], &moment_maps.map[world.rank],
                                    &second_maps.map[world.rank]};
    const Place places[] = {PLACE_PARAMETER, PLACE_OPTIMIZER, PLACE_STATE};
    for (int i = 0; i < 3; i++) {
        test->memory.base[places[i]] = arrays[i];
        test->tensor[i] = (Tensor){.place = places[i], .dtype = types[i], .shape = SHAPE(maps[i]->n_local)};
        if (types[i] != DTYPE_F32) narrow(arrays[i], maps[i]->n_local, types[i]);
    }
}

static SaveRequest request_of(TestRun *run, TestExecutor *test, const char *path, int64_t step) {
    run->state.step = step;
    return (SaveRequest){.run = path,
                         .config = &run->config,
                         .table = &run->table,
                         .executor = &test->executor,
                         .array = {&test->tensor[0], &test->tensor[1], &test->tensor[2]},
                         .parameters_saved = &parameter_maps.map[world.rank],
                         .moments_saved = &moment_maps.map[world.rank],
                         .state = run->state,
                         .keep_last = 2,
                         .comm = &saving};
}

/* What training does meanwhile. */
static void train(int n_steps) {
    Error error = {0};
    for (int i = 0; i < n_steps; i++) {
        float loss = 1.0f;
        assert_ok(comm_all_reduce(&world, &loss, 1, COMM_F32, COMM_SUM, &error), error);
        assert_true(loss == (float)world.size);
    }
}

static void run_saver(TestRun *run, const char *path, bool packs, bool in_background, int64_t first_step) {
    TestExecutor test;
    Saver saver;
    Error error = {0};
    SaveRequest request;
    open_executor(&test);
    if (packs) {
        saver_plan_parts(&saver, &parameter_maps.map[world.rank], &moment_maps.map[world.rank], types, 2,
                         in_background);
    } else {
        saver_plan(&saver, &run->table, types, 2, in_background);
        for (int i = 0; i < 3; i++)
            saver.copy_bytes[i] += 64 * sizeof(float); /* the maps of this test have gaps */
    }
    assert_ok(saver_open(&saver, &error), error);
    assert_int_equal(saver_allocated_bytes(&saver), saver_planned_bytes(&saver));
    for (int i = 0; i < 3; i++) {
        request = request_of(run, &test, path, first_step + i);
        assert_ok(saver_save(&saver, &request, &error), error);
        train(20);
        assert_ok(saver_poll(&saver, &error), error);
    }
    assert_ok(saver_finish(&saver, &error), error);
    assert_int_equal(saver.saved_step, first_step + 2);
    meet();
    assert_loads(run, path, first_step + 2, 3);
    meet();

    /* One rank cannot take its copy, then cannot write it: all learn of it, at the same call. */
    for (int fault = 0; fault < 2; fault++) {
        int64_t step = first_step + 10;
        request = request_of(run, &test, path, step);
        test.device.fails = fault == 0 && is_last_rank();
        if (fault == 1 && is_last_rank()) limit_files(64);
        saver_save(&saver, &request, &error);
        train(20);
        if (in_background && world.size > 1) assert_ok(saver_poll(&saver, &error), error);
        saver_finish(&saver, &error);
        if (fault == 1 && is_last_rank()) limit_files(RLIM_INFINITY);
        assert_agreed(&error, fault == 0 ? STATUS_FAILED : STATUS_USER,
                      fault == 0 ? "fallen off" : "larger than allowed");
        assert_int_equal(saver.saved_step, first_step + 2);
        test.device.fails = false;
        error = (Error){0};
        meet();
    }
    request = request_of(run, &test, path, first_step + 10);
    assert_ok(saver_save_now(&saver, &request, &error), error);
    saver_close(&saver);
    saver_close(&saver);
    assert_loads(run, path, first_step + 10, 4);
    char name[512];
    snprintf(name, sizeof name, "%s/checkpoints", path);
    assert_int_equal(count_entries(name), 2);
    meet();
}

static void test_saver(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256];
    for (int way = 0; way < 8; way++) {
        if (way == 4) choose_types(&run, DTYPE_F16, DTYPE_BF16, DTYPE_F32); /* each its own */
        deal_evenly(&run);
        in_folder(path, "saver");
        run_saver(&run, path, way & 1, way & 2, 100 * way);
        take_back();
    }
    choose_types(&run, DTYPE_F32, DTYPE_F32, DTYPE_F32);
    close_test_run(&run);
}

/* Copies are taken of what is saved, whatever else the arrays hold. */
static void test_saver_packs(void **state) {
    (void)state;
    TestRun run = open_test_run(&cut_config);
    char path[256];
    TestExecutor test;
    Saver saver;
    Error error = {0};
    in_folder(path, "packs");
    for (unsigned seed = 20; seed < 26; seed++) {
        deal(&run, seed);
        open_executor(&test);
        saver_plan_parts(&saver, &parameter_maps.map[world.rank], &moment_maps.map[world.rank], types, 2,
                         true);
        size_t n_bytes = 0; /* exactly what is saved, in its types */
        for (int i = 0; i < 3; i++) {
            const ShardMap *map = i == 0 ? &parameter_maps.map[world.rank] : &moment_maps.map[world.rank];
            for (int k = 0; k < map->n_runs; k++)
                n_bytes += (size_t)map->run[k].n * (types[i] == DTYPE_F32 ? 4 : 2);
        }
        assert_int_equal(saver_planned_bytes(&saver), n_bytes);
        assert_ok(saver_open(&saver, &error), error);
        SaveRequest request = request_of(&run, &test, path, seed);
        assert_ok(saver_save(&saver, &request, &error), error);
        for (int i = 0; i < 3; i++) { /* the arrays are free again */
            const ShardMap *map = i == 0 ? &parameter_maps.map[world.rank] : &moment_maps.map[world.rank];
            if (map->n_local)
                memset(test.memory.base[test.tensor[i].place], 0x11, sizeof(float) * (size_t)map->n_local);
        }
        assert_ok(saver_finish(&saver, &error), error);
        saver_close(&saver);
        assert_loads(&run, path, seed, seed + 1);
        take_back();
        meet();
        choose_types(&run, DTYPE_BF16, DTYPE_BF16,
                     seed % 2 ? DTYPE_F16 : DTYPE_BF16); /* from the second on */
    }
    choose_types(&run, DTYPE_F32, DTYPE_F32, DTYPE_F32);
    close_test_run(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut),           cmocka_unit_test(test_alone_and_together),
        cmocka_unit_test(test_full_disk),           cmocka_unit_test(test_unusable_folder),
        cmocka_unit_test(test_ranks_apart),         cmocka_unit_test(test_damage),
        cmocka_unit_test(test_rank_without_access), cmocka_unit_test(test_saver),
        cmocka_unit_test(test_saver_packs),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
