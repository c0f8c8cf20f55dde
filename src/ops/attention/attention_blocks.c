/* attention_blocks: the lists of tiles that sparse attention goes by, of a pattern and of documents.
 *
 * A list is made by asking every tile for its state, which is a few comparisons; of T positions there are
 * (T/64)²/2 tiles, so that a list is made in a time that attention takes for a few of its tiles. */
#include "ops/attention/sparse_attention.h"

#include <stdio.h>

#include "ops/reference.h"

int64_t attention_blocks_of(const AttentionPattern *pattern, int64_t n_positions) {
    int32_t n_blocks = (int32_t)attention_n_blocks(n_positions);
    int64_t n = 0;
    for (int32_t q = 0; q < n_blocks; q++)
        for (int32_t k = 0; k <= q; k++)
            n += attention_block_state(pattern, n_positions, q, k, NULL) != BLOCK_ABSENT;
    return n;
}

Tensor *op_attention_blocks(Graph *graph, Tensor *starts, const AttentionPattern *pattern,
                            int64_t n_positions) {
    if (!graph_check(graph, n_positions > 0 && n_positions < INT32_MAX - ATTENTION_BLOCK,
                     "attention blocks: sequences of %lld positions cannot be", (long long)n_positions) ||
        !graph_check(graph,
                     !starts || (starts->dtype == DTYPE_I32 && starts->shape.n_dims == 2 &&
                                 starts->shape.dim[1] == n_positions),
                     "attention blocks: starts must be i32 of shape (B,%lld)", (long long)n_positions))
        return graph->nothing;
    AttentionBlocksAttributes attributes = {*pattern, n_positions, attention_blocks_of(pattern, n_positions)};
    char words[PATTERN_TEXT_BYTES];
    pattern_print(pattern, words, sizeof words);
    Shape shape =
        SHAPE(starts ? starts->shape.dim[0] : 1, attention_block_words(n_positions, attributes.most));
    Tensor *blocks = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, shape, "blocks of %s", words);
    graph_record(graph, &OP_ATTENTION_BLOCKS, &attributes, sizeof attributes, 1, TENSORS(starts), 1,
                 TENSORS(blocks));
    return blocks;
}

static void blocks_describe(const Node *node, char *text, size_t n_bytes) {
    const AttentionBlocksAttributes *a = node->attributes;
    double n = (double)attention_n_blocks(a->n_positions);
    char words[PATTERN_TEXT_BYTES];
    pattern_print(&a->pattern, words, sizeof words);
    snprintf(text, n_bytes, "%s%s: at most %lld of %.0f tiles", words, node->input[0] ? " in documents" : "",
             (long long)a->most, n * (n + 1.0) / 2.0);
}

/* A list: rows first, then columns, each tile asked twice. */
static void make_list(const AttentionBlocksAttributes *a, const int32_t *starts, int32_t *list) {
    int32_t n_blocks = (int32_t)attention_n_blocks(a->n_positions), n = 0;
    AttentionBlockList at = attention_block_list(list, 0, a->n_positions, a->most);
    int32_t *row_begin = list, *row = list + (at.row - list), *column_begin = list + (at.column_begin - list),
            *column = list + (at.column - list);
    for (int32_t q = 0; q < n_blocks; q++) {
        row_begin[q] = n;
        for (int32_t k = 0; k <= q; k++) {
            BlockState state = attention_block_state(&a->pattern, a->n_positions, q, k, starts);
            if (state == BLOCK_ABSENT) continue;
            row[n++] = attention_entry(k, state);
        }
    }
    row_begin[n_blocks] = n;
    for (int64_t i = n; i < a->most; i++) row[i] = column[i] = 0;
    n = 0;
    for (int32_t k = 0; k < n_blocks; k++) {
        column_begin[k] = n;
        for (int32_t q = k; q < n_blocks; q++) {
            BlockState state = attention_block_state(&a->pattern, a->n_positions, q, k, starts);
            if (state != BLOCK_ABSENT) column[n++] = attention_entry(q, state);
        }
    }
    column_begin[n_blocks] = n;
}

static Status blocks_reference(const KernelCall *call, Error *error) {
    (void)error;
    const AttentionBlocksAttributes *a = call->node->attributes;
    const int32_t *starts = call->in[0]; /* (B,T) */
    int32_t *blocks = call->out[0];      /* (n_lists,words) */
    for (int64_t list = 0; list < call->node->output[0]->shape.dim[0]; list++) {
        make_list(a, starts ? starts + list * a->n_positions : NULL,
                  blocks + list * attention_block_words(a->n_positions, a->most));
    }
    return STATUS_OK;
}

const Op OP_ATTENTION_BLOCKS = {
    .name = "attention_blocks",
    .describe = blocks_describe,
    .reference = blocks_reference,
};
