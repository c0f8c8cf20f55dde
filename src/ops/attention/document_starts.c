/* document_starts: where the documents of packed sequences begin, from the token that ends them.
 *
 * Positions only ever refer to the sequence; a document that began in an earlier sequence begins here at 0.
 * The end token belongs to the document that it ends: it is predicted from that document, and what it
 * predicts, the first token of the next one, is still asked for.
 *
 * In generation a token is read without those before it. What has to be known of them is one number a
 * position: where the document of the position behind it begins. Entries are written anew with their tokens,
 * so padding does no harm. */
#include "ops/attention/sparse_attention.h"

#include <stdio.h>

#include "ops/reference.h"

static Documents documents_record(Graph *graph, const Op *op, const DocumentAttributes *a, Tensor *tokens,
                                  Tensor *start, Tensor *next, int64_t n_rows) {
    Shape shape = SHAPE(tokens->shape.dim[0], n_rows);
    Documents documents = {graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, shape, "document starts"),
                           graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, shape, "document positions")};
    graph_record(graph, op, a, sizeof *a, start ? 2 : 1, TENSORS(tokens, start), next ? 3 : 2,
                 TENSORS(documents.starts, documents.positions, next));
    return documents;
}

Documents op_document_starts(Graph *graph, Tensor *tokens, int64_t n_rows, const DocumentAttributes *a) {
    if (!graph_check(graph, tokens->dtype == DTYPE_I32 && tokens->shape.n_dims == 2,
                     "document starts: tokens %s must be i32 of shape (B,T)", tokens->name) ||
        !graph_check(graph,
                     n_rows >= 0 && (n_rows == 0 || row_place(&a->rows, n_rows - 1) < tokens->shape.dim[1]),
                     "document starts: %s has no %lld such rows", tokens->name, (long long)n_rows))
        return (Documents){graph->nothing, graph->nothing};
    return documents_record(graph, &OP_DOCUMENT_STARTS, a, tokens, NULL, NULL, n_rows);
}

Documents op_document_starts_cached(Graph *graph, Tensor *tokens, Tensor *start, Tensor *next,
                                    int32_t end_token) {
    int64_t B = tokens->shape.dim[0];
    DocumentAttributes attributes = {.end_token = end_token};
    if (!graph_check(graph, tokens->dtype == DTYPE_I32 && tokens->shape.n_dims == 2,
                     "document starts: tokens %s must be i32 of shape (B,T)", tokens->name) ||
        !graph_check(graph, start->dtype == DTYPE_I32 && tensor_count(start) == B,
                     "document starts: start %s must be i32, one per sequence", start->name) ||
        !graph_check(graph,
                     next->dtype == DTYPE_I32 && next->shape.n_dims == 2 && next->shape.dim[0] == B &&
                         next->shape.dim[1] >= tokens->shape.dim[1],
                     "document starts: %s must be i32 of shape (B,capacity), capacity >= T", next->name))
        return (Documents){graph->nothing, graph->nothing};
    return documents_record(graph, &OP_DOCUMENT_STARTS_CACHED, &attributes, tokens, start, next,
                            tokens->shape.dim[1]);
}

static void documents_describe(const Node *node, char *text, size_t n_bytes) {
    const DocumentAttributes *a = node->attributes;
    snprintf(text, n_bytes, "documents end with token %d", a->end_token);
}

static Status documents_reference(const KernelCall *call, Error *error) {
    (void)error;
    const DocumentAttributes *a = call->node->attributes;
    const int32_t *tokens = call->in[0];                       /* (B,n_positions) */
    int32_t *starts = call->out[0], *positions = call->out[1]; /* (B,T) */
    int64_t n_sequences = call->node->input[0]->shape.dim[0],
            n_positions = call->node->input[0]->shape.dim[1];
    int64_t n_rows = call->node->output[0]->shape.dim[1];
    for (int64_t b = 0; b < n_sequences; b++) {
        int64_t start = 0;
        for (int64_t p = 0; p < n_positions; p++) {
            int64_t t = row_at_place(&a->rows, n_rows, p);
            if (t >= 0) {
                starts[b * n_rows + t] = (int32_t)start;
                positions[b * n_rows + t] = (int32_t)(p - start);
            }
            if (tokens[b * n_positions + p] == a->end_token) start = p + 1;
        }
    }
    return STATUS_OK;
}

const Op OP_DOCUMENT_STARTS = {
    .name = "document_starts",
    .describe = documents_describe,
    .reference = documents_reference,
};

static Status cached_reference(const KernelCall *call, Error *error) {
    const DocumentAttributes *a = call->node->attributes;
    const int32_t *tokens = call->in[0] /* (B,T) */, *start = call->in[1] /* (B) */;
    int32_t *starts = call->out[0], *positions = call->out[1]; /* (B,T) */
    int64_t n_sequences = call->node->input[0]->shape.dim[0], n_rows = call->node->input[0]->shape.dim[1];
    int64_t capacity = call->node->output[2]->shape.dim[1];
    for (int64_t b = 0; b < n_sequences; b++) {
        int32_t *next = (int32_t *)call->out[2] + b * capacity;
        if (start[b] < 0 || start[b] + n_rows > capacity)
            return error_failed(error, "document starts: %lld rows at position %d of %lld", (long long)n_rows,
                                start[b], (long long)capacity);
        int32_t begin = start[b] ? next[start[b] - 1] : 0;
        for (int64_t t = 0; t < n_rows; t++) {
            int32_t position = start[b] + (int32_t)t;
            starts[b * n_rows + t] = begin;
            positions[b * n_rows + t] = position - begin;
            if (tokens[b * n_rows + t] == a->end_token) begin = position + 1;
            next[position] = begin;
        }
    }
    return STATUS_OK;
}

const Op OP_DOCUMENT_STARTS_CACHED = {
    .name = "document_starts_cached",
    .describe = documents_describe,
    .reference = cached_reference,
};
