/* Patterns: their words, and everything that is derived from pattern_sees against asking it pair by pair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "harness.h"
#include "ops/attention/sparse_attention.h"

#include <stdlib.h>
#include <string.h>

static const char *const PATTERNS[] = {
    "dense",
    "window:1",
    "window:7",
    "window:64",
    "window:100",
    "strided:1",
    "strided:2",
    "strided:9",
    "strided:64",
    "strided:128",
    "fixed:1:1",
    "fixed:16:3",
    "fixed:16:16",
    "fixed:100:7",
    "fixed:128:8",
    "bigbird:16:1:0:0",
    "bigbird:16:2:1:1",
    "bigbird:24:1:2:3",
    "bigbird:64:1:1:2",
    "bigbird:64:3:1:1",
};
enum { N_PATTERNS = sizeof PATTERNS / sizeof PATTERNS[0] };

static AttentionPattern parse(const char *text) {
    AttentionPattern pattern;
    Error error = {0};
    if (pattern_parse(text, strlen(text), &pattern, &error) != STATUS_OK) fail_msg("%s", error.text);
    return pattern;
}

static void test_words(void **unused) {
    (void)unused;
    char text[PATTERN_TEXT_BYTES];
    for (int i = 0; i < N_PATTERNS; i++) {
        AttentionPattern pattern = parse(PATTERNS[i]), again;
        pattern_print(&pattern, text, sizeof text);
        assert_string_equal(text, PATTERNS[i]);
        again = parse(text);
        assert_true(pattern_equal(&pattern, &again));
    }
    AttentionPattern a = parse("window:7"), b = parse("window:8");
    assert_false(pattern_equal(&a, &b));
    Error error = {0};
    assert_int_equal(pattern_parse("window:7,dense", 8, &a, &error), STATUS_OK); /* as many bytes as said */
    assert_int_equal(a.number[0], 7);
}

static void test_bad_words(void **unused) {
    (void)unused;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "is not known; choose one of dense, window:W"},
        {"windw:3", "is not known"},
        {"window", "is not of the form window:W"},
        {"window:", "is not of the form window:W"},
        {"window:x", "is not of the form"},
        {"window:3:4", "is not of the form"},
        {"window:-3", "is not of the form"},
        {"window:0", "choose its number 1 from 1 to 16777216"},
        {"window:99999999", "choose its number 1 from"},
        {"window:9999999999999999999", "choose its number 1 from 1 to 16777216"},
        {"dense:1", "is not of the form dense"},
        {"strided:0", "number 1"},
        {"fixed:16", "is not of the form fixed:L:C"},
        {"fixed:16:17", "a block of 16 has no 17 last positions"},
        {"fixed:16:0", "choose its number 2 from 1 to 16777216"},
        {"bigbird:64:1:1", "is not of the form bigbird:BLOCK:WINDOW:GLOBAL:RANDOM"},
        {"bigbird:8:1:1:1", "blocks of 8 are too small; choose at least 16"},
        {"bigbird:64:0:1:1", "choose its number 2 from 1 to 16777216"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        AttentionPattern pattern;
        Error error = {0};
        assert_int_equal(pattern_parse(bad[i].text, strlen(bad[i].text), &pattern, &error), STATUS_USER);
        if (!strstr(error.text, bad[i].says)) fail_msg("'%s': %s", bad[i].text, error.text);
    }
}

/* What the words mean, from the papers' definitions. */
static void test_definitions(void **unused) {
    (void)unused;
    AttentionPattern window = parse("window:4"), strided = parse("strided:5"), fixed = parse("fixed:8:2"),
                     bigbird = parse("bigbird:16:2:1:2");
    for (int32_t q = 0; q < 300; q++) {
        int n_drawn = 0, n_left = q / 16 - 2; /* blocks between the first and the window */
        for (int32_t k = 0; k < 300; k++) {
            bool before = k <= q;
            assert_int_equal(pattern_sees(&window, q, k), before && k + 4 > q);
            assert_int_equal(pattern_sees(&strided, q, k), before && (k + 5 > q || (q - k) % 5 == 0));
            assert_int_equal(pattern_sees(&fixed, q, k), before && (q / 8 == k / 8 || k % 8 >= 6));
            bool is_near = q / 16 - k / 16 < 2, is_first = k < 16, sees = pattern_sees(&bigbird, q, k);
            if (before && (is_near || is_first)) assert_true(sees);
            else if (before && k % 16 == 0) n_drawn += sees;
            else if (!before) assert_false(sees);
            assert_int_equal(sees, before && pattern_sees(&bigbird, q / 16 * 16 + 15, k)); /* by blocks */
        }
        assert_int_equal(n_drawn, n_left < 0 ? 0 : n_left < 2 ? n_left : 2);
    }
}

static void test_pairs(void **unused) {
    (void)unused;
    for (int i = 0; i < N_PATTERNS; i++) {
        AttentionPattern pattern = parse(PATTERNS[i]);
        for (int32_t T = 1; T < 300; T += 37) {
            double n = 0.0;
            for (int32_t q = 0; q < T; q++)
                for (int32_t k = 0; k < T; k++) n += pattern_sees(&pattern, q, k);
            assert_true(pattern_pairs(&pattern, T) == n);
        }
    }
}

/* Rectangles anywhere, of any size. */
static void test_states(void **unused) {
    (void)unused;
    for (int i = 0; i < N_PATTERNS; i++) {
        AttentionPattern pattern = parse(PATTERNS[i]);
        for (uint64_t n = 0; n < 4000; n++) {
            int32_t q = (int32_t)(test_hash("q", n) % 400), k = (int32_t)(test_hash("k", n) % 400);
            int32_t q_last = q + (int32_t)(test_hash("queries", n) % 70),
                    k_last = k + (int32_t)(test_hash("keys", n) % 70);
            int64_t n_seen = 0, n_all = (int64_t)(q_last - q + 1) * (k_last - k + 1);
            for (int32_t a = q; a <= q_last; a++)
                for (int32_t b = k; b <= k_last; b++) n_seen += pattern_sees(&pattern, a, b);
            BlockState want = !n_seen ? BLOCK_ABSENT : n_seen == n_all ? BLOCK_FULL : BLOCK_PARTIAL;
            BlockState got = pattern_state(&pattern, q, q_last, k, k_last);
            if (got != want)
                fail_msg("%s, queries %d-%d, keys %d-%d: state %d, not %d", PATTERNS[i], q, q_last, k, k_last,
                         got, want);
        }
    }
}

/* ---- lists */

/* Documents of about `mean` tokens; 0: none. */
static void make_starts(int64_t T, int64_t mean, int64_t sequence, int32_t *starts) {
    int32_t start = 0;
    for (int64_t t = 0; t < T; t++) {
        starts[t] = start;
        if (mean && test_hash("end", (uint64_t)(1000 * sequence + t)) % (uint64_t)mean == 0)
            start = (int32_t)t + 1;
    }
}

/* What the list says of a tile: -1 absent, 0 full, 1 partial. */
static int entry_of(const int32_t *begin, const int32_t *entry, int32_t row, int32_t other) {
    for (int32_t i = begin[row]; i < begin[row + 1]; i++) {
        if (i > begin[row]) assert_true(entry[i] >> 1 > entry[i - 1] >> 1); /* ascending */
        if (entry[i] >> 1 == other) return entry[i] & 1;
    }
    return -1;
}

/* A tile of the list against all of its pairs. */
static void check_tile(const AttentionPattern *pattern, const int32_t *starts, int64_t T, int32_t q_block,
                       int32_t k_block, int kind) {
    int64_t n_seen = 0, n_all = 0;
    for (int32_t q = q_block * 64; q < q_block * 64 + 64 && q < T; q++)
        for (int32_t k = k_block * 64; k < k_block * 64 + 64 && k < T; k++, n_all++)
            n_seen += pattern_sees(pattern, q, k) && (!starts || k >= starts[q]);
    if (kind == 0) assert_int_equal(n_seen, n_all);
    if (kind < 0) assert_int_equal(n_seen, 0);
    if (kind > 0 && !starts) assert_true(n_seen > 0 && (n_seen < n_all || q_block == k_block));
}

static void check_lists(const AttentionPattern *pattern, int64_t T, int64_t mean) {
    enum { B = 2 };
    Graph *graph = graph_new();
    Tensor *starts = mean ? graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, T), "starts") : NULL;
    Tensor *blocks = op_attention_blocks(graph, starts, pattern, T);
    TestMemory memory = test_memory_open(graph);
    for (int64_t b = 0; b < (mean ? B : 0); b++)
        make_starts(T, mean, b, (int32_t *)test_memory_at(&memory, starts) + b * T);
    test_memory_run(&memory, SECTION_FORWARD);
    const AttentionBlocksAttributes *a = graph->node[0]->attributes;
    int32_t n_blocks = (int32_t)attention_n_blocks(T);
    assert_int_equal(n_blocks, (T + 63) / 64);
    for (int64_t b = 0; b < (mean ? B : 1); b++) {
        AttentionBlockList list = attention_block_list(test_memory_at(&memory, blocks), b, T, a->most);
        const int32_t *own = starts ? (const int32_t *)test_memory_at(&memory, starts) + b * T : NULL;
        assert_true(list.row_begin[n_blocks] <= a->most);
        assert_int_equal(list.row_begin[n_blocks], list.column_begin[n_blocks]);
        if (!mean) assert_int_equal(list.row_begin[n_blocks], a->most);
        for (int32_t q = 0; q < n_blocks; q++) {
            for (int32_t k = 0; k < n_blocks; k++) {
                int kind = entry_of(list.row_begin, list.row, q, k);
                assert_int_equal(kind, entry_of(list.column_begin, list.column, k, q));
                check_tile(pattern, own, T, q, k, kind);
            }
            assert_int_equal(list.row[list.row_begin[q + 1] - 1], 2 * q + 1);
            assert_int_equal(list.column[list.column_begin[q]], 2 * q + 1);
        }
    }
    test_memory_close(&memory);
    graph_free(graph);
}

static void test_lists(void **unused) {
    (void)unused;
    static const int64_t lengths[] = {1, 63, 64, 65, 130, 1000};
    for (int i = 0; i < N_PATTERNS; i++) {
        AttentionPattern pattern = parse(PATTERNS[i]);
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            check_lists(&pattern, lengths[k], 0);
            check_lists(&pattern, lengths[k], 20);
            check_lists(&pattern, lengths[k], 200);
        }
    }
}

/* Documents make lists shorter. */
static void test_documents_cost_less(void **unused) {
    (void)unused;
    AttentionPattern dense = parse("dense");
    int32_t starts[1024];
    for (int32_t t = 0; t < 1024; t++) starts[t] = t / 128 * 128;
    int64_t n = 0;
    for (int32_t q = 0; q < 16; q++)
        for (int32_t k = 0; k <= q; k++)
            n += attention_block_state(&dense, 1024, q, k, starts) != BLOCK_ABSENT;
    assert_int_equal(n, 8 * 3); /* of 136 */
}

/* ---- documents */

static void test_starts(void **unused) {
    (void)unused;
    static const int32_t tokens[2 * 8] = {5, 9, 1, 9, 9, 2, 3, 4, 9, 1, 2, 3, 4, 5, 6, 9};
    static const int32_t starts[2 * 8] = {0, 0, 2, 2, 4, 5, 5, 5, 0, 1, 1, 1, 1, 1, 1, 1};
    for (int part = 0; part < 2; part++) { /* all rows; those that a rank of a ring has */
        RowPositions rows = part ? (RowPositions){.start = 1, .head = 2, .skip = 3} : (RowPositions){0};
        int64_t n_rows = part ? 4 : 8;
        Graph *graph = graph_new();
        Tensor *input = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(2, 8), "tokens");
        DocumentAttributes attributes = {.end_token = 9, .rows = rows};
        Documents documents = op_document_starts(graph, input, n_rows, &attributes);
        TestMemory memory = test_memory_open(graph);
        memcpy(test_memory_at(&memory, input), tokens, sizeof tokens);
        test_memory_run(&memory, SECTION_FORWARD);
        const int32_t *got = test_memory_at(&memory, documents.starts),
                      *positions = test_memory_at(&memory, documents.positions);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t t = 0; t < n_rows; t++) {
                int64_t p = row_place(&rows, t);
                assert_int_equal(got[b * n_rows + t], starts[b * 8 + p]);
                assert_int_equal(positions[b * n_rows + t], p - starts[b * 8 + p]);
            }
        test_memory_close(&memory);
        graph_free(graph);
    }
}

/* ---- the full pattern is dense attention */

/* Output k of a node by the CPU's kernel, on what `memory` holds. */
static void run_kernel(const Backend *cpu, const TestMemory *memory, const Node *node) {
    Error error = {0};
    KernelCall call = test_memory_call(memory, node);
    size_t n_bytes = traits_scratch_bytes(&cpu->traits, node);
    call.scratch = calloc(n_bytes + 64, 1);
    call.n_threads = cpu->n_threads;
    call.context = cpu->context;
    assert_int_equal(cpu->kernel(cpu->context, node)(&call, &error), STATUS_OK);
    free(call.scratch);
}

static void check_full(const Backend *cpu, int64_t T, float dropout) {
    enum { B = 2, NH = 4, NKV = 2, HS = 24, W = (NH + 2 * NKV) * HS };
    AttentionPattern pattern = T > 500 ? parse("window:16777216") : parse("dense");
    AttentionAttributes a = {NH, NKV, HS, 0.2f, dropout, 3, 1};
    Graph *graph = graph_new();
    Tensor *qkv = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(B, T, W), "qkv"), *random = NULL;
    qkv->needs_gradient = true;
    if (dropout > 0.0f) random = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(N_RANDOM_WORDS), "random");
    AttentionMask mask = {.pattern = pattern, .blocks = op_attention_blocks(graph, NULL, &pattern, T)};
    op_attention(graph, qkv, random, &a);
    op_sparse_attention(graph, qkv, random, &mask, &a);
    const Node *dense = graph->node[1], *sparse = graph->node[2];
    Tensor *dy = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, dense->output[0]->shape, "dy");
    Tensor *gradient[2];
    for (int i = 0; i < 2; i++)
        gradient[i] = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, qkv->shape, "gradient");
    const Node *dense_back = graph_record(graph, &OP_ATTENTION_BACKWARD, &a, sizeof a, 5,
                                          TENSORS(dy, qkv, dense->output[0], dense->output[1], random), 2,
                                          TENSORS(gradient[0], NULL));
    const Node *sparse_back =
        graph_record(graph, &OP_SPARSE_ATTENTION_BACKWARD, sparse->attributes, sparse->attributes_bytes, 7,
                     TENSORS(dy, qkv, sparse->output[0], sparse->output[1], mask.blocks, NULL, random), 2,
                     TENSORS(gradient[1], NULL));
    TestMemory memory = test_memory_open(graph);
    float *x = test_memory_at(&memory, qkv), *d = test_memory_at(&memory, dy);
    for (int64_t i = 0; i < tensor_count(qkv); i++) x[i] = test_value("qkv", (uint64_t)i);
    for (int64_t i = 0; i < tensor_count(dy); i++) d[i] = test_value("dy", (uint64_t)i);
    if (random) memcpy(test_memory_at(&memory, random), (int32_t[N_RANDOM_WORDS]){1, 2, 3, 4}, 16);
    const Node *order[] = {graph->node[0], dense, sparse, dense_back, sparse_back};
    for (int i = 0; i < 5; i++) run_kernel(cpu, &memory, order[i]);
    for (int k = 0; k < 2; k++)
        assert_memory_equal(test_memory_at(&memory, sparse->output[k]),
                            test_memory_at(&memory, dense->output[k]), tensor_bytes(dense->output[k]));
    assert_memory_equal(test_memory_at(&memory, gradient[1]), test_memory_at(&memory, gradient[0]),
                        tensor_bytes(gradient[0]));
    test_memory_close(&memory);
    graph_free(graph);
}

static void test_full_is_dense(void **unused) {
    (void)unused;
    Backend cpu;
    Error error = {0};
    assert_int_equal(backend_cpu_open(&cpu, 2, &error), STATUS_OK);
    static const int64_t lengths[] = {1, 63, 64, 65, 131, 700};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        check_full(&cpu, lengths[i], 0.0f);
        check_full(&cpu, lengths[i], 0.3f);
    }
    cpu.close(cpu.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_definitions),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_documents_cost_less),
        cmocka_unit_test(test_starts),
        cmocka_unit_test(test_full_is_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
