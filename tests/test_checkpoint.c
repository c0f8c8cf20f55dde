/* Checkpoints and the safetensors files in them: what goes in comes out, damage is found wherever it is, and nothing
 * hostile gets through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static const char *in_folder(char path[256], const char *name) {
    snprintf(path, 256, "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/pgpt-test-checkpoint-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? 0 : -1; /* NOLINT(cert-env33-c) */
}

static void put_bytes(const char *path, const void *bytes, size_t n_bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

/* Change one byte in place. */
static void put_byte(const char *path, size_t at, char byte) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_equal(fputc((unsigned char)byte, file), (unsigned char)byte);
    assert_int_equal(fclose(file), 0);
}

static char *get_bytes(const char *path, size_t *n_bytes) {
    char *bytes;
    Error error = {0};
    if (file_read(path, 1 << 26, &bytes, n_bytes, &error) != STATUS_OK) fail_msg("%s", error.text);
    return bytes;
}

static void assert_error(const Error *error, Status status, const char *part) {
    if (error->status != status || !strstr(error->text, part)) {
        fail_msg("wanted status %d and '...%s...', got %d '%s'", status, part, error->status, error->text);
    }
}

#define assert_ok(call, error)                                                                               \
    do {                                                                                                     \
        if ((call) != STATUS_OK) fail_msg("%s", (error).text);                                               \
    } while (0)

/* ---- checksum */

static void test_checksum_pieces(void **state) {
    (void)state;
    unsigned char bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 11);
    for (size_t n = 0; n < sizeof bytes; n++) {
        Checksum whole = checksum_start();
        checksum_add(&whole, bytes, n);
        for (size_t piece = 1; piece < 70; piece += 3) {
            Checksum parts = checksum_start();
            for (size_t at = 0; at < n; at += piece) {
                checksum_add(&parts, bytes + at, n - at < piece ? n - at : piece);
                checksum_value(&parts);
            }
            assert_true(checksum_value(&parts) == checksum_value(&whole));
        }
    }
    /* Lengths and every bit matter, zeros at the end too. */
    unsigned char zeros[64] = {0};
    uint64_t seen[65];
    for (size_t n = 0; n <= 64; n++) {
        Checksum checksum = checksum_start();
        checksum_add(&checksum, zeros, n);
        seen[n] = checksum_value(&checksum);
        for (size_t k = 0; k < n; k++) assert_true(seen[k] != seen[n]);
    }
    for (size_t bit = 0; bit < 8 * sizeof zeros; bit++) {
        zeros[bit / 8] ^= (unsigned char)(1u << bit % 8);
        Checksum checksum = checksum_start();
        checksum_add(&checksum, zeros, sizeof zeros);
        assert_true(checksum_value(&checksum) != seen[64]);
        zeros[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

/* ---- safetensors */

static void test_safetensors_round_trip(void **state) {
    (void)state;
    char path[256];
    in_folder(path, "round.safetensors");
    const float f32[6] = {1.0f, -2.5f, 3e-40f, 0.0f, 1e30f, -0.0f};
    const uint16_t f16[7] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0xFC00, 0x03FF};
    const uint16_t bf16[2] = {0x3F80, 0xC049};
    const double f64[2] = {0.1, -1e300};
    const int64_t i64[1] = {INT64_MIN};
    const int8_t i8[3] = {1, -2, 3};
    SafetensorsTensor tensors[] = {
        {.name = "f32", .type = SAFETENSORS_F32, .n_dims = 2, .dim = {2, 3}},
        {.name = "f16", .type = SAFETENSORS_F16, .n_dims = 1, .dim = {7}},
        {.name = "empty", .type = SAFETENSORS_F32, .n_dims = 3, .dim = {4, 0, 5}},
        {.name = "bf16 \"quoted\" \xC3\xA9\n", .type = SAFETENSORS_BF16, .n_dims = 1, .dim = {2}},
        {.name = "f64", .type = SAFETENSORS_F64, .n_dims = 1, .dim = {2}},
        {.name = "scalar", .type = SAFETENSORS_I64},
        {.name = "", .type = SAFETENSORS_I8, .n_dims = 1, .dim = {3}},
    };
    const void *data[] = {f32, f16, NULL, bf16, f64, i64, i8};
    const char *const metadata[] = {"format", "pgpt", "note", "two\nlines", NULL};
    enum { N = 7 };
    SafetensorsWriter writer;
    Error error = {0};
    assert_ok(safetensors_writer_open(&writer, path, tensors, N, metadata, &error), error);
    for (int i = 0; i < N; i++) {
        for (uint64_t at = 0; at < tensors[i].n_bytes; at++) { /* in the smallest pieces */
            assert_ok(safetensors_writer_write(&writer, (const char *)data[i] + at, 1, &error), error);
        }
    }
    assert_false(file_exists(path));
    assert_ok(safetensors_writer_commit(&writer, &error), error);
    safetensors_writer_abort(&writer);
    uint64_t checksum, n_bytes;
    assert_ok(checksum_file(path, &checksum, &n_bytes, &error), error);
    assert_true(checksum == checksum_value(&writer.checksum) && n_bytes == writer.checksum.n_bytes);

    SafetensorsFile file;
    assert_ok(safetensors_open(&file, path, &error), error);
    assert_int_equal(file.data_start % 64, 0);
    assert_int_equal(file.n_tensors, N);
    assert_string_equal(safetensors_metadata(&file, "note"), "two\nlines");
    assert_null(safetensors_metadata(&file, "other"));
    assert_null(safetensors_find(&file, "f"));
    for (int i = 0; i < N; i++) {
        const SafetensorsTensor *tensor = safetensors_find(&file, tensors[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->type, tensors[i].type);
        assert_int_equal(tensor->n_dims, tensors[i].n_dims);
        assert_memory_equal(tensor->dim, tensors[i].dim, sizeof tensor->dim);
        char bytes[64];
        assert_ok(safetensors_read(&file, tensor, 0, bytes, tensor->n_bytes, &error), error);
        if (tensor->n_bytes) assert_memory_equal(bytes, data[i], tensor->n_bytes);
    }
    float values[8];
    assert_ok(safetensors_read_f32(&file, safetensors_find(&file, "f32"), 1, 4, values, &error), error);
    assert_memory_equal(values, f32 + 1, 16);
    assert_ok(safetensors_read_f32(&file, safetensors_find(&file, "f16"), 0, 7, values, &error), error);
    const float halves[7] = {1.0f, -2.0f, 0x1p-24f, 65504.0f, INFINITY, -INFINITY, 0x1.ff8p-15f};
    assert_memory_equal(values, halves, sizeof halves);
    assert_ok(safetensors_read_f32(&file, safetensors_find(&file, tensors[3].name), 0, 2, values, &error),
              error);
    assert_true(values[0] == 1.0f && values[1] == -3.140625f);
    assert_ok(safetensors_read_f32(&file, safetensors_find(&file, "f64"), 0, 2, values, &error), error);
    assert_true(values[0] == 0.1f && values[1] == -INFINITY);
    assert_int_equal(safetensors_read_f32(&file, safetensors_find(&file, "scalar"), 0, 1, values, &error),
                     STATUS_USER);
    error = (Error){0};
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "f32"), 20, values, 5, &error),
                     STATUS_FAILED);
    safetensors_close(&file);
    safetensors_close(&file);
}

static void test_safetensors_writer_mistakes(void **state) {
    (void)state;
    char path[256];
    in_folder(path, "wrong.safetensors");
    SafetensorsTensor twice[] = {{.name = "a", .type = SAFETENSORS_F32, .n_dims = 1, .dim = {1}},
                                 {.name = "a", .n_dims = 1, .dim = {1}}};
    SafetensorsWriter writer;
    Error error = {0};
    assert_int_equal(safetensors_writer_open(&writer, path, twice, 2, NULL, &error), STATUS_FAILED);
    assert_error(&error, STATUS_FAILED, "twice");
    SafetensorsTensor huge = {.name = "huge", .n_dims = 2, .dim = {INT64_MAX, 2}};
    error = (Error){0};
    assert_int_equal(safetensors_writer_open(&writer, path, &huge, 1, NULL, &error), STATUS_FAILED);
    error = (Error){0};
    assert_ok(safetensors_writer_open(&writer, path, twice, 1, NULL, &error), error);
    double value = 1.0;
    assert_int_equal(safetensors_writer_commit(&writer, &error), STATUS_FAILED);
    assert_error(&error, STATUS_FAILED, "too little");
    error = (Error){0};
    assert_int_equal(safetensors_writer_write(&writer, &value, sizeof value, &error), STATUS_FAILED);
    safetensors_writer_abort(&writer);
    assert_false(file_exists(path));
}

/* A file with this header and n_data zero bytes. */
static Status open_header(const char *header, uint64_t n_claimed, size_t n_data, Error *error) {
    char path[256];
    in_folder(path, "hostile.safetensors");
    size_t n_header = strlen(header);
    char *bytes = calloc(8 + n_header + n_data, 1);
    for (int i = 0; i < 8; i++) bytes[i] = (char)(n_claimed >> (8 * i));
    memcpy(bytes + 8, header, n_header);
    put_bytes(path, bytes, 8 + n_header + n_data);
    free(bytes);
    SafetensorsFile file;
    *error = (Error){0};
    Status status = safetensors_open(&file, path, error);
    safetensors_close(&file);
    return status;
}

static void test_safetensors_hostile(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        const char *part; /* of the message; NULL: the file is fine */
    } cases[] = {
        {"{}", 0, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   ", 8, NULL},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,1],\"dtype\":\"U8\"}}", 1, NULL},
        {"{}", 1, "belong to no tensor"},
        {"", 0, "begin with"},
        {" {}", 0, "begin with"},
        {"[]", 0, "begin with"},
        {"{", 0, "not valid JSON"},
        {"{}{}", 0, "not valid JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 8, "not valid JSON"},
        {"{\"a\":1}", 0, "'a' is not described"},
        {"{\"a\":{}}", 0, "'a' must have"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'F33'"},
        {"{\"a\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "dim"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "dim"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, "dim"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "9 dims"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "do not fit"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4,
         "do not fit"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "do not fit"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", 8,
         "not valid JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "beyond the end"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "belong to no tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "make no range"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "make no range"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, "no data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":{}}}", 8, "no data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
         6, "overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         4, "overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, "not valid JSON"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"more\":1}}", 4, "nothing else"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "not valid JSON"},
    };
    Error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Status status = open_header(cases[i].header, strlen(cases[i].header), cases[i].n_data, &error);
        if (!cases[i].part) assert_ok(status, error);
        else assert_error(&error, STATUS_USER, cases[i].part);
        if (cases[i].part) assert_non_null(strstr(error.text, "hostile.safetensors"));
    }
    open_header("{}", 3, 0, &error);
    assert_error(&error, STATUS_USER, "more bytes than it has");
    open_header("{}", UINT64_MAX, 0, &error);
    assert_error(&error, STATUS_USER, "100 MB");
    open_header("{}", 100000001, 0, &error);
    assert_error(&error, STATUS_USER, "100 MB");
}

static void test_safetensors_bombs(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    char *header = malloc(N + 64);
    Error error;
    /* Numbers that would grow sixteenfold in memory, and nesting that would exhaust a stack. */
    int n = sprintf(header, "{\"a\":[");
    for (; n < N; n += 2) memcpy(header + n, "0,", 3);
    memcpy(header + n, "0]}", 4);
    open_header(header, strlen(header), 0, &error);
    assert_error(&error, STATUS_USER, "lists no tensors");
    memset(header, '[', N);
    memcpy(header, "{\"a\":", 5);
    header[N] = 0;
    open_header(header, strlen(header), 0, &error);
    assert_error(&error, STATUS_USER, "not valid JSON");
    free(header);

    char path[256];
    SafetensorsFile file;
    error = (Error){0};
    in_folder(path, "short");
    put_bytes(path, "1234567", 7);
    assert_int_equal(safetensors_open(&file, path, &error), STATUS_USER);
    error = (Error){0};
    assert_int_equal(safetensors_open(&file, folder, &error), STATUS_USER);
    error = (Error){0};
    assert_int_equal(safetensors_open(&file, in_folder(path, "none"), &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "none");
    in_folder(path, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    error = (Error){0};
    assert_int_equal(safetensors_open(&file, path, &error), STATUS_USER); /* and does not wait for a writer */
}

/* ---- checkpoints */

typedef struct {
    ModelConfig config;
    ParameterTable table;
    float *array[3]; /* parameters, two moments */
    CheckpointState state;
} TestRun;

static const ModelConfig tiny_config = {.preset = "nano",
                                        .n_layers = 1,
                                        .n_heads = 1,
                                        .n_channels = 2,
                                        .context = 3,
                                        .vocabulary = 4,
                                        .tied = true,
                                        .bias = true,
                                        .dropout = 0.1,
                                        .rotary_theta = 10000.0};

static TestRun open_test_run(const ModelConfig *config) {
    TestRun run = {.config = *config};
    Error error = {0};
    assert_ok(config_complete(&run.config, config->vocabulary, &error), error);
    assert_ok(parameters_build(&run.table, &run.config, &error), error);
    for (int k = 0; k < 3; k++) {
        run.array[k] = calloc((size_t)run.table.n_flat_elements, sizeof(float));
        parameters_initialise(&run.table, (uint64_t)k, run.array[k], 1);
    }
    run.state = (CheckpointState){.step = 120,
                                  .n_sequences = 1920,
                                  .n_tokens = 122880,
                                  .seed = INT64_MAX,
                                  .data_hash = UINT64_MAX - 5,
                                  .tokenizer_hash = 3,
                                  .validation_loss = 0.1 + 0.2,
                                  .optimizer = "adamw",
                                  .n_moments = 2};
    return run;
}

static void close_test_run(TestRun *run) {
    for (int k = 0; k < 3; k++) free(run->array[k]);
    parameters_free(&run->table);
}

static CheckpointSource source_of(const TestRun *run) {
    return (CheckpointSource){.config = &run->config,
                              .table = &run->table,
                              .parameters = run->array[0],
                              .moment = {run->array[1], run->array[2]},
                              .state = &run->state};
}

static void save_step(TestRun *run, const char *path, int64_t step, double validation_loss) {
    Error error = {0};
    run->state.step = step;
    run->state.validation_loss = validation_loss;
    CheckpointSource source = source_of(run);
    assert_ok(checkpoint_save(path, &source, &error), error);
}

static void assert_same_values(const TestRun *run, const float *got, const float *want) {
    for (int i = 0; i < run->table.n_parameters; i++) {
        const Parameter *parameter = &run->table.parameter[i];
        assert_memory_equal(got + parameter->flat_offset, want + parameter->flat_offset,
                            sizeof(float) * (size_t)shape_count(parameter->shape));
    }
}

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
                 {"dropout", "1.0", "out of range"},
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
        cmocka_unit_test(test_checksum_pieces),
        cmocka_unit_test(test_safetensors_round_trip),
        cmocka_unit_test(test_safetensors_writer_mistakes),
        cmocka_unit_test(test_safetensors_hostile),
        cmocka_unit_test(test_safetensors_bombs),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_saved_again),
        cmocka_unit_test(test_damage_at_every_byte),
        cmocka_unit_test(test_interrupted_saves),
        cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_prune),
        cmocka_unit_test(test_unusable_places),
        cmocka_unit_test(test_config_json),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
