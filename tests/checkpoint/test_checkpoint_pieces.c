/* Which pieces make up a model: ranges and boxes of a tensor, each by the name that it has in the file. A set that leaves
 * something out, has it twice or does not belong is refused in words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint_support.h"

enum { MOST_PIECES = 4 };

typedef struct {
    const char *name;
    int64_t n;
    bool is_second; /* it is in the second file */
    int64_t rows;   /* of a matrix; 0: it has one dim */
} TestPiece;

#define FIRST(text, count)                                                                                   \
    { .name = (text), .n = (count) }
#define SECOND(text, count)                                                                                  \
    { .name = (text), .n = (count), .is_second = true }
#define MATRIX(text, n_rows, count)                                                                          \
    { .name = (text), .n = (count), .rows = (n_rows) }
#define SECOND_MATRIX(text, n_rows, count)                                                                   \
    { .name = (text), .n = (count), .rows = (n_rows), .is_second = true }

static void describe(SafetensorsTensor *tensor, const char *name, int64_t rows, int64_t n) {
    *tensor = (SafetensorsTensor){.name = name, .type = SAFETENSORS_F32, .n_dims = 1, .dim = {n}};
    if (!rows) return;
    tensor->n_dims = 2;
    tensor->dim[0] = rows;
    tensor->dim[1] = n / rows;
}

/* A model of which all is whole but the token table, (4,2), whose pieces are these. */
static void save_pieces(const TestRun *run, const char *path, const TestPiece *pieces, const char *prefix) {
    static const char *const names[] = {"a.safetensors", "b.safetensors"};
    bool is_optimizer = *prefix != 0;
    char name[512], text[64][64];
    Error error = {0};
    ManifestFile files[4] = {0};
    Manifest manifest = {.state = run->state, .config = run->config, .file = files, .has_parts = true};
    manifest.state.n_moments = is_optimizer;
    assert_ok(file_make_folders(path, &error), error);
    for (int i = 0; i < 2 + is_optimizer; i++) {
        SafetensorsTensor tensors[64];
        SafetensorsWriter writer;
        int n_tensors = 0;
        int64_t n_elements = 0;
        bool is_whole = is_optimizer && i == 2; /* the model itself, if these are of the optimizer */
        for (int k = 0; i != 1 && k < run->table.n_parameters; k++) {
            const Parameter *parameter = &run->table.parameter[k];
            if (parameter->role == ROLE_TOKEN_TABLE && !is_whole) continue;
            snprintf(text[n_tensors], 64, "%s%s", is_whole ? "" : prefix, parameter->name);
            describe(&tensors[n_tensors], text[n_tensors],
                     parameter->shape.n_dims == 2 ? parameter->shape.dim[0] : 0,
                     shape_count(parameter->shape));
            n_elements += shape_count(parameter->shape);
            n_tensors++;
        }
        for (int k = 0; !is_whole && k < MOST_PIECES && pieces[k].name; k++) {
            if (pieces[k].is_second != (i == 1)) continue;
            describe(&tensors[n_tensors++], pieces[k].name, pieces[k].rows, pieces[k].n);
            n_elements += pieces[k].n;
        }
        files[i].name = is_whole ? "model.safetensors" : names[i];
        files[i].is_optimizer = is_optimizer && !is_whole;
        snprintf(name, sizeof name, "%s/%s", path, files[i].name);
        assert_ok(safetensors_writer_open(&writer, name, tensors, n_tensors, NULL, &error), error);
        for (int64_t k = 0; k < n_elements; k++)
            assert_ok(safetensors_writer_write(&writer, &(float){0}, sizeof(float), &error), error);
        files[i].n_bytes = writer.checksum.n_bytes;
        files[i].checksum = checksum_value(&writer.checksum);
        assert_ok(safetensors_writer_commit(&writer, &error), error);
        safetensors_writer_abort(&writer);
        manifest.n_files++;
    }
    snprintf(name, sizeof name, "%s/manifest.json", path);
    assert_ok(manifest_write(name, &manifest, &error), error);
}

typedef struct {
    TestPiece pieces[MOST_PIECES];
    const char *part; /* of the message; NULL: nothing is wrong */
} PieceCase;

#define N_CASES (sizeof cases / sizeof cases[0])

/* Each model in a folder of its own, whose name begins so. */
static void assert_opened_or_refused(const char *folder_name, const PieceCase *cases, size_t n) {
    TestRun run = open_test_run(&tiny_config);
    char path[256], name[40];
    for (size_t i = 0; i < n; i++) {
        Checkpoint checkpoint;
        Error error = {0};
        snprintf(name, sizeof name, "%s-%zu", folder_name, i);
        in_folder(path, name);
        save_pieces(&run, path, cases[i].pieces, "");
        checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error);
        if (cases[i].part) {
            assert_error(&error, STATUS_USER, cases[i].part);
        } else {
            assert_ok(error.status, error);
            assert_ok(checkpoint_read_parameters(&checkpoint, &run.table, run.array[0], &error), error);
        }
        checkpoint_close(&checkpoint);
    }
    close_test_run(&run);
}

/* Whole, in ranges, in boxes, in ranges of boxes, and in both among ranges. */
static void test_pieces_that_make_it_up(void **state) {
    (void)state;
    static const PieceCase cases[] = {
        {{MATRIX("wte.weight", 4, 8)}, NULL},
        {{FIRST("wte.weight[0:8]", 8)}, NULL},
        {{FIRST("wte.weight[0:3]", 3), FIRST("wte.weight[3:8]", 5)}, NULL},
        {{FIRST("wte.weight[3:8]", 5), SECOND("wte.weight[0:3]", 3)}, NULL},
        {{FIRST("wte.weight[1:2]", 1), SECOND("wte.weight[0:1]", 1), SECOND("wte.weight[2:8]", 6)}, NULL},
        {{MATRIX("wte.weight[0:4,0:1]", 4, 4), SECOND_MATRIX("wte.weight[0:4,1:2]", 4, 4)}, NULL},
        {{MATRIX("wte.weight[0:2,0:2]", 2, 4), SECOND_MATRIX("wte.weight[2:4,0:2]", 2, 4)}, NULL},
        {{MATRIX("wte.weight[0:4,0:1]", 4, 4), FIRST("wte.weight[0:4,1:2][0:3]", 3),
          SECOND("wte.weight[0:4,1:2][3:4]", 1)},
         NULL},
        {{FIRST("wte.weight[0:2]", 2), MATRIX("wte.weight[1:4,0:1]", 3, 3),
          SECOND_MATRIX("wte.weight[1:3,1:2]", 2, 2), SECOND("wte.weight[7:8]", 1)},
         NULL},
    };
    assert_opened_or_refused("pieces-that-make-it-up", cases, N_CASES);
}

static void test_missing_pieces(void **state) {
    (void)state;
    static const PieceCase cases[] = {
        {{MATRIX("wte.weight[0:4,0:1]", 4, 4)}, "lacks 4 elements of tensor 'wte.weight'"},
        {{MATRIX("wte.weight[0:4,0:1]", 4, 4), SECOND_MATRIX("wte.weight[1:4,1:2]", 3, 3)},
         "lacks 1 elements"},
        {{MATRIX("wte.weight[0:4,0:1]", 4, 4), SECOND("wte.weight[0:4,1:2][1:3]", 2)}, "lacks 2 elements"},
        {{{0}}, "no tensor 'wte.weight'"},
        {{FIRST("wte.weight[0:3]", 3)}, "lacks elements 3 to 7 of tensor 'wte.weight'"},
        {{FIRST("wte.weight[3:8]", 5)}, "lacks elements 0 to 2"},
        {{FIRST("wte.weight[0:3]", 3), FIRST("wte.weight[4:8]", 4)}, "lacks elements 3 to 3"},
    };
    assert_opened_or_refused("missing-pieces", cases, N_CASES);
}

static void test_pieces_twice(void **state) {
    (void)state;
    static const PieceCase cases[] = {
        {{MATRIX("wte.weight[0:4,0:1]", 4, 4), SECOND_MATRIX("wte.weight[0:4,0:1]", 4, 4)},
         "'wte.weight[0:4,0:1]' are in"},
        {{MATRIX("wte.weight[0:4,0:1]", 4, 4), MATRIX("wte.weight[0:4,1:2]", 4, 4),
          SECOND("wte.weight[7:8]", 1)},
         "are in"},
        {{MATRIX("wte.weight", 4, 8), SECOND("wte.weight[0:4,1:2][3:4]", 1)}, "are in"},
        {{FIRST("wte.weight[0:4]", 4), FIRST("wte.weight[3:8]", 5)}, "'wte.weight[3:8]' are in"},
        {{FIRST("wte.weight[0:8]", 8), SECOND("wte.weight[0:8]", 8)}, "'wte.weight[0:8]' are in"},
        {{MATRIX("wte.weight", 4, 8), SECOND_MATRIX("wte.weight", 4, 8)}, "'wte.weight' are in"},
        {{MATRIX("wte.weight", 4, 8), SECOND("wte.weight[2:3]", 1)}, "'wte.weight[2:3]' are in"},
        {{FIRST("wte.weight[0:8]", 8), FIRST("wte.weight[7:8]", 1)}, "'wte.weight[7:8]' are in"},
    };
    assert_opened_or_refused("pieces-twice", cases, N_CASES);
}

static void test_pieces_too_large(void **state) {
    (void)state;
    static const PieceCase cases[] = {
        {{MATRIX("wte.weight[0:4,1:3]", 4, 8)}, "reaches beyond"},
        {{MATRIX("wte.weight[0:5,0:1]", 5, 5)}, "reaches beyond"},
        {{FIRST("wte.weight[0:4,0:1][0:5]", 5)}, "reaches beyond"},
        {{FIRST("wte.weight[0:9]", 9)}, "'wte.weight[0:9]' reaches beyond"},
        {{FIRST("wte.weight[0:8]", 8), FIRST("wte.weight[8:9]", 1)}, "reaches beyond"},
        {{FIRST("wte.weight[0:9223372036854775807]", 8)}, "reaches beyond"},
    };
    assert_opened_or_refused("pieces-too-large", cases, N_CASES);
}

static void test_names_of_pieces(void **state) {
    (void)state;
    static const PieceCase cases[] = {
        {{MATRIX("wte.weight[0:4,0:1,0:1]", 4, 4)}, "does not name a range"},
        {{FIRST("wte.weight[0:9223372036854775808]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[0:99999999999999999999999999]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[-1:7]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[+0:8]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[ 0:8]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[00:8]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[0:08]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[0x0:8]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[8:0]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[3:3]", 0), MATRIX("wte.weight", 4, 8)}, "does not name a range"},
        {{FIRST("wte.weight[0:8]x", 8)}, "does not name a range"},
        {{FIRST("wte.weight[0:8][0:8]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[0:8", 8)}, "does not name a range"},
        {{FIRST("wte.weight[:8]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[0:]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[0]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[]", 8)}, "does not name a range"},
        {{FIRST("wte.weight[", 8)}, "does not name a range"},
    };
    assert_opened_or_refused("names", cases, N_CASES);
}

static void test_shapes_of_pieces(void **state) {
    (void)state;
    static const PieceCase cases[] = {
        {{FIRST("wte.weight[0:4,0:1]", 4)}, "has shape (4) where its name and the manifest want (4,1)"},
        {{MATRIX("wte.weight[0:4,0:1][0:4]", 4, 4)},
         "has shape (4,1) where its name and the manifest want (4)"},
        {{FIRST("wpe.weight[0:1,0:1]", 1)}, "has shape (1) where"},
        {{FIRST("wte.weight[0:8]", 7)}, "has shape (7) where its name and the manifest want (8)"},
        {{MATRIX("wte.weight[0:8]", 4, 8)}, "has shape (4,2) where"},
        {{FIRST("wte.weight", 8)}, "has shape (8) where its name and the manifest want (4,2)"},
        {{MATRIX("wte.weight", 2, 8)}, "has shape (2,4) where"},
    };
    assert_opened_or_refused("shapes", cases, N_CASES);
}

static void test_strange_pieces(void **state) {
    (void)state;
    static const PieceCase cases[] = {
        {{MATRIX("wte.weight", 4, 8), FIRST("wtf.weight[0:1]", 1)}, "'wtf.weight[0:1]' is not part"},
        {{MATRIX("wte.weight", 4, 8), FIRST("wte", 1)}, "'wte' is not part"},
        {{MATRIX("wte.weight", 4, 8), FIRST("wte.weights", 1)}, "'wte.weights' is not part"},
        {{MATRIX("wte.weight", 4, 8), FIRST("[0:1]", 1)}, "'[0:1]' is not part"},
        {{MATRIX("wte.weight", 4, 8), FIRST("", 1)}, "'' is not part"},
        {{MATRIX("wte.weight", 4, 8), MATRIX("moment1.wte.weight", 4, 8)}, "is not part"},
        {{MATRIX("wte.weight", 4, 8), FIRST("h.1.ln_1.weight", 2)}, "is not part"},
    };
    assert_opened_or_refused("strange-pieces", cases, N_CASES);
}

static void test_wrong_moments(void **state) {
    (void)state;
    static const PieceCase cases[] = {
        {{FIRST("moment1.wte.weight[0:3]", 3), SECOND("moment1.wte.weight[3:8]", 5)}, NULL},
        {{FIRST("moment1.wte.weight[0:3]", 3)}, "lacks elements 3 to 7 of tensor 'moment1.wte.weight'"},
        {{{0}}, "no tensor 'moment1.wte.weight'"},
        {{MATRIX("moment2.wte.weight", 4, 8)}, "is not part"},
        {{MATRIX("moment0.wte.weight", 4, 8)}, "is not part"},
        {{MATRIX("moment.wte.weight", 4, 8)}, "is not part"},
        {{MATRIX("moment11.wte.weight", 4, 8)}, "is not part"},
        {{MATRIX("moment1wte.weight", 4, 8)}, "is not part"},
        {{MATRIX("moment1.", 4, 8)}, "is not part"},
        {{MATRIX("wte.weight", 4, 8)}, "is not part"},
    };
    TestRun run = open_test_run(&tiny_config);
    char path[256], name[16];
    for (size_t i = 0; i < N_CASES; i++) {
        Checkpoint checkpoint;
        Error error = {0};
        snprintf(name, sizeof name, "moment-%zu", i);
        in_folder(path, name);
        save_pieces(&run, path, cases[i].pieces, "moment1.");
        checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, true, &error);
        if (cases[i].part) assert_error(&error, STATUS_USER, cases[i].part);
        else assert_ok(error.status, error);
        checkpoint_close(&checkpoint);
        /* Who does not want the optimizer need not care. */
        error = (Error){0};
        assert_ok(checkpoint_open(&checkpoint, path, CHECKPOINT_NEWEST, false, &error), error);
        checkpoint_close(&checkpoint);
    }
    close_test_run(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_that_make_it_up), cmocka_unit_test(test_missing_pieces),
        cmocka_unit_test(test_pieces_twice),           cmocka_unit_test(test_pieces_too_large),
        cmocka_unit_test(test_names_of_pieces),        cmocka_unit_test(test_shapes_of_pieces),
        cmocka_unit_test(test_strange_pieces),         cmocka_unit_test(test_wrong_moments),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
