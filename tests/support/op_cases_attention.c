/* Attention as cases: dense, in parts, cached; by patterns and documents; and the rotation of queries and keys. */
#include "op_case_inputs.h"

#include "ops/attention/sparse_attention.h"
#include "parallel/ring_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static AttentionAttributes heads_of(const OpCase *test) {
    const int64_t *size = test->spec->size;
    return (AttentionAttributes){
        .n_heads = (int)size[2],
        .n_kv_heads = (int)size[3],
        .head_size = (int)size[4],
        .scale = (float)(1.0 / sqrt((double)size[4])),
        .dropout = test->spec->number,
        .site = 5,
        .first_head = 2,
    };
}

static Tensor *qkv_of(OpCase *test) {
    const int64_t *size = test->spec->size;
    return case_incoming(test, SHAPE(size[0], size[1], (size[2] + 2 * size[3]) * size[4]), "qkv");
}

void build_attention(OpCase *test) {
    AttentionAttributes attributes = heads_of(test);
    Tensor *qkv = qkv_of(test), *random = attributes.dropout > 0.0f ? case_random(test) : NULL;
    Tensor *y = op_attention(test->graph, qkv, random, &attributes);
    case_result(test, "lse", case_last_node(test)->output[1]);
    case_finish(test, y);
}

/* The queries of one of the ranks of a ring, over the keys of all of them, its own first. */
void build_attention_part(OpCase *test) {
    const int64_t *size = test->spec->size;
    int n_ranks = (int)size[5], rank = n_ranks / 2;
    AttentionPartAttributes attributes = {.heads = heads_of(test), .n_positions = size[1]};
    Tensor *random = attributes.heads.dropout > 0.0f ? case_random(test) : NULL;
    ContextRows rows = context_rows(CONTEXT_RING, size[1], n_ranks, rank);
    Tensor *q = case_activation(test, SHAPE(size[0], rows.n, size[2] * size[4]), "q");
    attributes.queries = rows.positions;
    AttentionPart part = {0};
    for (int i = 0; i < n_ranks; i++) {
        static const char *const names[] = {"kv0", "kv1", "kv2"};
        ContextRows keys = context_rows(CONTEXT_RING, size[1], n_ranks, (rank + i) % n_ranks);
        Tensor *kv = case_activation(test, SHAPE(size[0], keys.n, 2 * size[3] * size[4]), names[i]);
        attributes.keys = keys.positions;
        part = op_attention_part(test->graph, q, kv, random, i ? &part : NULL, &attributes);
    }
    case_result(test, "lse", part.lse);
    case_finish(test, part.y);
}

void build_attention_cached(OpCase *test) {
    const int64_t *size = test->spec->size;
    AttentionAttributes attributes = heads_of(test);
    Tensor *qkv = qkv_of(test);
    qkv->needs_gradient = false;
    Tensor *start = case_integers(test, SHAPE(size[0]), "start", size[5] - size[1] + 1);
    Shape shape = SHAPE(size[0], size[3], size[5], size[4]);
    Tensor *keys = case_floats(test, PLACE_STATE, shape, "keys", 1.0f, 0.0f);
    Tensor *values = case_floats(test, PLACE_STATE, shape, "values", 1.0f, 0.0f);
    case_finish(test, op_attention_cached(test->graph, qkv, start, keys, values, &attributes));
}

/* ---- patterns and documents ---- */

const char *const case_patterns[N_CASE_PATTERNS] = {
    "dense",       "window:5",         "window:70",        "strided:9",   "strided:64",        "fixed:16:3",
    "fixed:100:7", "bigbird:16:2:1:1", "bigbird:64:1:1:2", "strided:128", "bigbird:128:1:2:1",
};

static AttentionPattern case_pattern(int64_t number) {
    AttentionPattern pattern;
    Error error = {0};
    const char *text = case_patterns[number];
    if (pattern_parse(text, strlen(text), &pattern, &error) != STATUS_OK) fail_msg("%s", error.text);
    return pattern;
}

enum { CASE_END_TOKEN = 3, CASE_TOKENS = 23 };

/* Documents of about CASE_TOKENS tokens in sequences of `length`, as the rows see them. */
static Documents documents_of(OpCase *test, int64_t length, int64_t n_rows, const RowPositions *rows) {
    Tensor *tokens = case_integers(test, SHAPE(test->spec->size[0], length), "tokens", CASE_TOKENS);
    DocumentAttributes attributes = {CASE_END_TOKEN, *rows};
    return op_document_starts(test->graph, tokens, n_rows, &attributes);
}

void build_sparse_attention(OpCase *test) {
    const int64_t *size = test->spec->size;
    AttentionAttributes attributes = heads_of(test);
    AttentionMask mask = {.pattern = case_pattern(size[5])};
    Tensor *qkv = qkv_of(test), *random = attributes.dropout > 0.0f ? case_random(test) : NULL;
    if (test->spec->flags & CASE_DOCUMENTS)
        mask.starts = documents_of(test, size[1], size[1], &(RowPositions){0}).starts;
    mask.blocks = op_attention_blocks(test->graph, mask.starts, &mask.pattern, size[1]);
    Tensor *y = op_sparse_attention(test->graph, qkv, random, &mask, &attributes);
    case_result(test, "lse", case_last_node(test)->output[1]);
    case_finish(test, y);
}

void build_document_starts_cached(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *tokens = case_integers(test, SHAPE(size[0], size[1]), "tokens", 5);
    Tensor *start = case_integers(test, SHAPE(size[0]), "start", size[2] - size[1] + 1);
    CaseFill *next = case_add_fill(test, PLACE_STATE, DTYPE_I32, SHAPE(size[0], size[2]), "next");
    next->below = 1;
    case_finish(test,
                op_document_starts_cached(test->graph, tokens, start, next->tensor, CASE_END_TOKEN).starts);
    case_result(test, "positions", case_last_node(test)->output[1]);
}

/* As build_attention_part. */
void build_sparse_attention_part(OpCase *test) {
    const int64_t *size = test->spec->size;
    int n_ranks = (int)size[5] % 10, rank = n_ranks / 2;
    SparsePartAttributes attributes = {.part = {.heads = heads_of(test), .n_positions = size[1]},
                                       .pattern = case_pattern(size[5] / 10)};
    Tensor *random = attributes.part.heads.dropout > 0.0f ? case_random(test) : NULL, *starts = NULL;
    ContextRows rows = context_rows(CONTEXT_RING, size[1], n_ranks, rank);
    Tensor *q = case_activation(test, SHAPE(size[0], rows.n, size[2] * size[4]), "q");
    attributes.part.queries = rows.positions;
    if (test->spec->flags & CASE_DOCUMENTS)
        starts = documents_of(test, size[1], rows.n, &rows.positions).starts;
    AttentionPart part = {0};
    for (int i = 0; i < n_ranks; i++) {
        static const char *const names[] = {"kv0", "kv1", "kv2"};
        ContextRows keys = context_rows(CONTEXT_RING, size[1], n_ranks, (rank + i) % n_ranks);
        Tensor *kv = case_activation(test, SHAPE(size[0], keys.n, 2 * size[3] * size[4]), names[i]);
        attributes.part.keys = keys.positions;
        part = op_sparse_attention_part(test->graph, q, kv, random, starts, i ? &part : NULL, &attributes);
    }
    case_result(test, "lse", part.lse);
    case_finish(test, part.y);
}

void build_sparse_attention_cached(OpCase *test) {
    const int64_t *size = test->spec->size;
    SparseCachedAttributes attributes = {.heads = heads_of(test),
                                         .pattern = case_pattern((int64_t)test->spec->number),
                                         .n_positions = size[5]};
    attributes.heads.dropout = 0.0f;
    Tensor *qkv = qkv_of(test), *starts = NULL;
    qkv->needs_gradient = false;
    Tensor *start = case_integers(test, SHAPE(size[0]), "start", size[5] - size[1] + 1);
    if (test->spec->flags & CASE_DOCUMENTS)
        starts = documents_of(test, size[1], size[1], &(RowPositions){0}).starts;
    int64_t capacity = sparse_cache_capacity(&attributes.pattern, size[5], size[1]);
    Shape shape = SHAPE(size[0], size[3], capacity, size[4]);
    Tensor *keys = case_floats(test, PLACE_STATE, shape, "keys", 1.0f, 0.0f);
    Tensor *values = case_floats(test, PLACE_STATE, shape, "values", 1.0f, 0.0f);
    case_finish(test, op_sparse_attention_cached(test->graph, qkv, start, starts, keys, values, &attributes));
}

void build_rotary(OpCase *test) {
    const int64_t *size = test->spec->size;
    RotaryAttributes attributes = {
        .n_heads = (int)size[2],
        .n_kv_heads = (int)size[3],
        .head_size = (int)size[4],
        .theta = 100.0f,
        .positions = case_positions(test, size[1]),
    };
    Tensor *qkv = qkv_of(test), *start = NULL;
    if (test->spec->flags & CASE_START) start = case_integers(test, SHAPE(size[0]), "start", 50);
    if (test->spec->flags & CASE_DOCUMENTS)
        start = documents_of(test, size[1], size[1], &(RowPositions){0}).positions;
    case_finish(test, op_rotary(test->graph, qkv, start, &attributes));
}
