/* Checksums and safetensors files: what goes in comes out, and nothing hostile gets through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"
#include "folder_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksum_pieces),
        cmocka_unit_test(test_safetensors_round_trip),
        cmocka_unit_test(test_safetensors_writer_mistakes),
        cmocka_unit_test(test_safetensors_hostile),
        cmocka_unit_test(test_safetensors_bombs),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
