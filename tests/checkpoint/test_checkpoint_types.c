/* Checkpoints hold each array in its own type, bit by bit, and whoever loads them gets the same numbers; those in f32 are
 * what they always were, to the byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "checkpoint/checkpoint_part.h"
#include "checkpoint_support.h"

/* More elements than are read from a device at a time. */
static const ModelConfig wide_config = {.preset = "nano",
                                        .n_layers = 1,
                                        .n_heads = 2,
                                        .n_channels = 64,
                                        .context = 8,
                                        .vocabulary = 700,
                                        .tied = true,
                                        .bias = true,
                                        .rotary_theta = 10000.0};

/* Arrays of 16 bits: any bits at all, or numbers only. */
typedef struct {
    uint16_t *array[3];
    DType type[3];
} Halves;

static bool is_number(uint16_t half, DType type) {
    uint16_t exponent = type == DTYPE_BF16 ? 0x7F80 : 0x7C00;
    return (half & exponent) != exponent;
}

static float widened(uint16_t half, DType type) {
    return type == DTYPE_BF16 ? half_bf16_to_f32(half) : half_f16_to_f32(half);
}

static Halves open_halves(TestRun *run, DType parameters, DType moments) {
    Halves halves = {.type = {parameters, moments, moments}};
    unsigned seed = 7;
    for (int k = 0; k < 3; k++) {
        halves.array[k] = malloc((size_t)run->table.n_flat_elements * sizeof(uint16_t));
        assert_non_null(halves.array[k]);
        for (int64_t i = 0; i < run->table.n_flat_elements; i++) {
            do halves.array[k][i] = (uint16_t)draw(&seed, 65536);
            while (!is_number(halves.array[k][i], halves.type[k]));
            run->array[k][i] = widened(halves.array[k][i], halves.type[k]);
        }
    }
    return halves;
}

static void close_halves(Halves *halves) {
    for (int k = 0; k < 3; k++) free(halves->array[k]);
}

static CheckpointSource source_of_halves(const TestRun *run, const Halves *halves) {
    CheckpointSource source = source_of(run);
    source.parameters = halves->array[0];
    for (int k = 0; k < 2; k++) source.moment[k] = halves->array[1 + k];
    memcpy(source.type, halves->type, sizeof halves->type);
    return source;
}

static void assert_loads(const TestRun *run, const char *path) {
    Checkpoint checkpoint;
    Error error = {0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    float *flat = calloc((size_t)run->table.n_flat_elements, sizeof(float));
    assert_non_null(flat);
    assert_ok(checkpoint_read_parameters(&checkpoint, &run->table, flat, &error), error);
    assert_same_values(run, flat, run->array[0]);
    for (int k = 0; k < 2; k++) {
        assert_ok(checkpoint_read_moment(&checkpoint, &run->table, k, flat, &error), error);
        assert_same_values(run, flat, run->array[1 + k]);
    }
    free(flat);
    checkpoint_close(&checkpoint);
}

/* What the file says of each tensor, and its bytes. */
static void assert_file(const char *path, SafetensorsType type, const char *prefix, const TestRun *run,
                        const uint16_t *halves) {
    SafetensorsFile file;
    Error error = {0};
    char name[256];
    assert_ok(safetensors_open(&file, path, &error), error);
    for (int i = 0; i < run->table.n_parameters; i++) {
        const Parameter *parameter = &run->table.parameter[i];
        snprintf(name, sizeof name, "%s%s", prefix, parameter->name);
        const SafetensorsTensor *tensor = safetensors_find(&file, name);
        assert_non_null(tensor);
        assert_int_equal(tensor->type, type);
        uint16_t *bits = malloc((size_t)tensor->n_bytes + 1);
        assert_non_null(bits);
        assert_int_equal(tensor->n_bytes, 2 * shape_count(parameter->shape));
        assert_ok(safetensors_read(&file, tensor, 0, bits, (size_t)tensor->n_bytes, &error), error);
        assert_memory_equal(bits, halves + parameter->flat_offset, (size_t)tensor->n_bytes);
        free(bits);
    }
    safetensors_close(&file);
}

static uint64_t data_bytes(const char *path) {
    SafetensorsFile file;
    Error error = {0};
    uint64_t n_bytes = 0;
    assert_ok(safetensors_open(&file, path, &error), error);
    for (int i = 0; i < file.n_tensors; i++) n_bytes += file.tensor[i].n_bytes;
    safetensors_close(&file);
    return n_bytes;
}

static Status read_halves(void *context, int array, int64_t first, int64_t n, void *values, Error *error) {
    (void)error;
    const Halves *halves = context;
    memcpy(values, halves->array[array] + first, (size_t)n * sizeof(uint16_t));
    return STATUS_OK;
}

static uint64_t file_bytes(const char *path) {
    size_t n_bytes;
    free(get_bytes(path, &n_bytes));
    return n_bytes;
}

static void assert_same_file(const char *a, const char *b) {
    size_t n_a, n_b;
    char *x = get_bytes(a, &n_a), *y = get_bytes(b, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(x, y, n_a);
    free(x);
    free(y);
}

/* Half the bytes, the same bits, the same numbers; from arrays or read in pieces. */
static void test_halves(void **state) {
    (void)state;
    static const DType pairs[][2] = {{DTYPE_BF16, DTYPE_BF16}, {DTYPE_F16, DTYPE_BF16}};
    for (int way = 0; way < 2; way++) {
        TestRun run = open_test_run(&wide_config);
        Halves halves = open_halves(&run, pairs[way][0], pairs[way][1]);
        CheckpointSource source = source_of_halves(&run, &halves);
        char path[256], model[512], optimizer[512], other[512];
        Error error = {0};
        in_folder(path, way ? "f16" : "bf16");
        run.state.step = 1;
        assert_ok(checkpoint_save(path, &source, &error), error);
        assert_loads(&run, path);
        snprintf(model, sizeof model, "%s/checkpoints/step-00000001/model.safetensors", path);
        snprintf(optimizer, sizeof optimizer, "%s/checkpoints/step-00000001/optimizer.safetensors", path);
        assert_file(model, way ? SAFETENSORS_F16 : SAFETENSORS_BF16, "", &run, halves.array[0]);
        assert_file(optimizer, SAFETENSORS_BF16, "moment1.", &run, halves.array[1]);
        assert_file(optimizer, SAFETENSORS_BF16, "moment2.", &run, halves.array[2]);
        assert_int_equal(data_bytes(model), 2 * run.table.n_elements);
        assert_int_equal(data_bytes(optimizer), 4 * run.table.n_elements);

        source.parameters = source.moment[0] = source.moment[1] = NULL;
        source.read = read_halves;
        source.context = &halves;
        run.state.step = 2;
        assert_ok(checkpoint_save(path, &source, &error), error);
        snprintf(other, sizeof other, "%s/checkpoints/step-00000002/model.safetensors", path);
        assert_same_file(model, other);
        snprintf(other, sizeof other, "%s/checkpoints/step-00000002/optimizer.safetensors", path);
        assert_same_file(optimizer, other);
        close_halves(&halves);
        close_test_run(&run);
    }
}

/* What the disk is asked for before a save is what the save takes, and little more. */
static void test_bytes(void **state) {
    (void)state;
    static const DType types[][3] = {{DTYPE_F32, DTYPE_F32, DTYPE_F32},
                                     {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
                                     {DTYPE_F16, DTYPE_BF16, DTYPE_F32}};
    static const uint64_t sizes[] = {12, 6, 8}; /* of an element and its moments */
    TestRun run = open_test_run(&wide_config);
    uint64_t n_elements = (uint64_t)run.table.n_elements, n_rest = 3 * 160 * (uint64_t)run.table.n_parameters;
    for (int i = 0; i < 3; i++)
        assert_int_equal(checkpoint_bytes(&run.table, types[i], 2), sizes[i] * n_elements + n_rest + 16384);
    Halves halves = open_halves(&run, DTYPE_BF16, DTYPE_BF16);
    CheckpointSource source = source_of_halves(&run, &halves);
    char path[256], name[512];
    Error error = {0};
    in_folder(path, "counted");
    assert_ok(checkpoint_save(path, &source, &error), error);
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json"};
    uint64_t n_bytes = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s/checkpoints/step-00000120/%s", path, names[i]);
        n_bytes += file_bytes(name);
    }
    assert_in_range(n_bytes, 6 * n_elements, checkpoint_bytes(&run.table, halves.type, 2));
    close_halves(&halves);
    close_test_run(&run);
}

/* As before there were other types. */
static void test_f32_files_stay(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < run.table.n_flat_elements; i++) run.array[k][i] = (float)(i - 9 * k) * 0.25f;
    char path[256], name[512];
    uint64_t checksum, n_bytes;
    Error error = {0};
    in_folder(path, "plain");
    save_step(&run, path, 3, 0.5);
    snprintf(name, sizeof name, "%s/checkpoints/step-00000003/model.safetensors", path);
    assert_ok(checksum_file(name, &checksum, &n_bytes, &error), error);
    assert_int_equal(n_bytes, 1648);
    assert_int_equal(checksum, 0xa65870fdb3ae8736);
    snprintf(name, sizeof name, "%s/checkpoints/step-00000003/optimizer.safetensors", path);
    assert_ok(checksum_file(name, &checksum, &n_bytes, &error), error);
    assert_int_equal(n_bytes, 3424);
    assert_int_equal(checksum, 0xce18ac4dcab68af5);
    close_test_run(&run);
}

/* A file may be sound and still not hold numbers: that is damage, and the checkpoint before is taken. */
static void test_other_types(void **state) {
    (void)state;
    TestRun run = open_test_run(&tiny_config);
    CheckpointSource source = source_of(&run);
    CheckpointPart part;
    char path[256], name[512];
    Error error = {0};
    in_folder(path, "whole-numbers");
    save_step(&run, path, 1, 0.5);
    source.type[0] = DTYPE_I32;
    run.state.step = 2;
    assert_int_equal(checkpoint_save(path, &source, &error), STATUS_FAILED);
    assert_error(&error, STATUS_FAILED, "type");
    error = (Error){0};
    snprintf(name, sizeof name, "%s/checkpoints/step-00000002", path);
    assert_ok(file_make_folders(name, &error), error);
    assert_ok(checkpoint_part_write(name, &source, 0, 1, &part, &error), error);
    assert_ok(checkpoint_parts_seal(name, &source, &part, 1, &error), error);
    Checkpoint checkpoint;
    assert_int_equal(checkpoint_open(&checkpoint, name, CHECKPOINT_NEWEST, true, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "has a dtype that a model's numbers do not have");
    error = (Error){0};
    assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error), error);
    assert_int_equal(checkpoint.state.step, 1);
    assert_non_null(strstr(checkpoint.warning, "using step-00000001 instead"));
    checkpoint_close(&checkpoint);
    close_test_run(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_f32_files_stay),
        cmocka_unit_test(test_other_types),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
