/* What sparse attention goes by: where documents begin, and the lists of tiles.
 *
 * A list's rows are found tile by tile; its columns are the rows turned round by counting. Sequences share
 * nothing, so threads take one each. */
#include "backend/cpu/kernels.h"
#include "ops/attention/sparse_attention.h"

/* Rows of a list; n_in_column (Q) counts what each column will have. */
static void make_rows(const AttentionBlocksAttributes *a, const int32_t *starts, int32_t *row_begin,
                      int32_t *row, int32_t *n_in_column) {
    int32_t n_blocks = (int32_t)attention_n_blocks(a->n_positions), n = 0;
    memset(n_in_column, 0, (size_t)n_blocks * sizeof *n_in_column);
    for (int32_t q = 0; q < n_blocks; q++) {
        /* nothing is seen before the document of the first query, nor before a window */
        int32_t first = starts ? starts[q * ATTENTION_BLOCK] / ATTENTION_BLOCK : 0;
        int32_t reach = pattern_reach(&a->pattern), far = q * ATTENTION_BLOCK - reach + 1;
        if (reach && far / ATTENTION_BLOCK > first) first = far / ATTENTION_BLOCK;
        row_begin[q] = n;
        for (int32_t k = first; k <= q; k++) {
            BlockState state = attention_block_state(&a->pattern, a->n_positions, q, k, starts);
            if (state == BLOCK_ABSENT) continue;
            row[n++] = attention_entry(k, state);
            n_in_column[k]++;
        }
    }
    row_begin[n_blocks] = n;
}

/* Columns from rows. */
static void turn_rows(int32_t n_blocks, const int32_t *row_begin, const int32_t *row, int32_t *column_begin,
                      int32_t *column) {
    int32_t n = 0;
    for (int32_t k = 0; k < n_blocks; k++) { /* from counts to where each begins */
        int32_t count = column_begin[k];
        column_begin[k] = n;
        n += count;
    }
    for (int32_t q = 0; q < n_blocks; q++)
        for (int32_t i = row_begin[q]; i < row_begin[q + 1]; i++)
            column[column_begin[row[i] >> 1]++] = 2 * q + (row[i] & 1);
    for (int32_t k = n_blocks; k > 0; k--)
        column_begin[k] = column_begin[k - 1]; /* each was moved to its end */
    column_begin[0] = 0;
}

static void make_list(const AttentionBlocksAttributes *a, const int32_t *starts, int32_t *list) {
    int32_t n_blocks = (int32_t)attention_n_blocks(a->n_positions);
    int32_t *row_begin = list, *row = row_begin + n_blocks + 1, *column_begin = row + a->most,
            *column = column_begin + n_blocks + 1;
    make_rows(a, starts, row_begin, row, column_begin);
    turn_rows(n_blocks, row_begin, row, column_begin, column);
    size_t n_free = (size_t)(a->most - row_begin[n_blocks]) * sizeof *row;
    memset(row + row_begin[n_blocks], 0, n_free);
    memset(column + row_begin[n_blocks], 0, n_free);
}

Status cpu_attention_blocks(const KernelCall *call, Error *error) {
    (void)error;
    const AttentionBlocksAttributes *a = call->node->attributes;
    const int32_t *starts = call->in[0]; /* (B,T) */
    int32_t *blocks = call->out[0];      /* (n_lists,words) */
    int64_t n_lists = call->node->output[0]->shape.dim[0],
            words = attention_block_words(a->n_positions, a->most);
#pragma omp parallel for schedule(static, 1) num_threads(cpu_threads(call, n_lists * a->most * 64))
    for (int64_t list = 0; list < n_lists; list++)
        make_list(a, starts ? starts + list * a->n_positions : NULL, blocks + list * words);
    return STATUS_OK;
}

/* The references are loops over tokens already. */
Status cpu_document_starts(const KernelCall *call, Error *error) {
    return OP_DOCUMENT_STARTS.reference(call, error);
}

Status cpu_document_starts_cached(const KernelCall *call, Error *error) {
    return OP_DOCUMENT_STARTS_CACHED.reference(call, error);
}
