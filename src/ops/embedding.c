/* embedding: a token's row of one table plus its position's row of another.
 *
 * The two gradients are separate operations because they have nothing in common but dy: the token table's is
 * a scatter over the whole batch into few rows of a large table, the position table's a sum over sequences
 * into the first rows of a small one. Either must leave the whole table written when it is the first
 * contribution: rows that no token names have gradient zero, not whatever the memory held. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <stdio.h>
#include <stdlib.h>

Tensor *op_embedding(Graph *graph, Tensor *tokens, Tensor *token_table, Tensor *position_table,
                     Tensor *start) {
    return op_embedding_padded(graph, tokens, token_table, token_table->shape.dim[0], position_table, start);
}

Tensor *op_embedding_padded(Graph *graph, Tensor *tokens, Tensor *token_table, int64_t n_tokens,
                            Tensor *position_table, Tensor *start) {
    EmbeddingAttributes attributes = {.n_tokens = n_tokens, .n_all = n_tokens};
    return op_embedding_part(graph, tokens, token_table, position_table, start, &attributes);
}

static bool check_position_table(Graph *graph, const Tensor *table, const Tensor *token_table,
                                 int64_t n_positions) {
    int64_t channels = token_table->shape.dim[1];
    return graph_check(graph, table->shape.n_dims == 2 && table->shape.dim[1] == channels,
                       "embedding: position table %s must have %lld channels as %s has", table->name,
                       (long long)channels, token_table->name) &&
           graph_check(graph, table->shape.dim[0] >= n_positions,
                       "embedding: position table %s has %lld rows for sequences of %lld tokens", table->name,
                       (long long)table->shape.dim[0], (long long)n_positions);
}

Tensor *op_embedding_part(Graph *graph, Tensor *tokens, Tensor *token_table, Tensor *position_table,
                          Tensor *start, const EmbeddingAttributes *attributes) {
    const EmbeddingAttributes *a = attributes;
    if (!graph_check(graph, tokens->dtype == DTYPE_I32 && tokens->shape.n_dims == 2,
                     "embedding: tokens %s must be i32 of shape (B,T)", tokens->name) ||
        !graph_check(graph, token_table->shape.n_dims == 2 && a->n_tokens <= token_table->shape.dim[0],
                     "embedding: table %s must have shape (V,C)", token_table->name) ||
        !graph_check(graph, a->first_token >= 0 && a->first_token + a->n_tokens <= a->n_all,
                     "embedding: table %s has tokens beyond the last of %lld", token_table->name,
                     (long long)a->n_all) ||
        (position_table && !check_position_table(graph, position_table, token_table, tokens->shape.dim[1])) ||
        !graph_check(graph, !start || start_is_right(start, tokens->shape.dim[0], tokens->shape.dim[1]),
                     "embedding: start %s must be i32, one per sequence or token",
                     start ? start->name : "")) {
        return graph->nothing;
    }
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, token_table->dtype,
                             SHAPE(tokens->shape.dim[0], tokens->shape.dim[1], token_table->shape.dim[1]),
                             "%s.out", tensor_layer_name(graph, token_table));
    graph_record(graph, &OP_EMBEDDING, a, sizeof *a, 4, TENSORS(tokens, token_table, position_table, start),
                 1, TENSORS(y));
    return y;
}

static void embedding_gradient(Autograd *autograd, const Node *node) {
    const EmbeddingAttributes *a = node->attributes;
    Tensor *tokens = node->input[0], *start = node->input[3];
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_record(autograd, &OP_EMBEDDING_TOKEN_GRADIENT, a, sizeof *a, 2, TENSORS(dy, tokens), 1,
                    TENSORS(node->input[1]));
    autograd_record(autograd, &OP_EMBEDDING_POSITION_GRADIENT, a, sizeof *a, 2, TENSORS(dy, start), 1,
                    TENSORS(node->input[2]));
}

/* One addition an element when there are two tables; a look-up is none. */
static double embedding_flops(const Node *node) {
    return node->input[2] ? (double)tensor_count(node->output[0]) : 0.0;
}

/* One row of the token table a token (repeats hit a cache at best); each position's row once. */
static double embedding_bytes(const Node *node) {
    double bytes = (double)tensor_bytes(node->input[0]) + 2.0 * (double)tensor_bytes(node->output[0]);
    double row_bytes =
        (double)dtype_info(node->output[0]->dtype)->n_bytes * (double)shape_columns(node->output[0]->shape);
    if (node->input[2]) bytes += row_bytes * (double)node->input[0]->shape.dim[1];
    return node->input[3] ? bytes + (double)tensor_bytes(node->input[3]) : bytes;
}

static void embedding_describe(const Node *node, char *text, size_t n_bytes) {
    const EmbeddingAttributes *a = node->attributes;
    if (a->positions.start) snprintf(text, n_bytes, "from position %lld", (long long)a->positions.start);
    if (a->n_tokens < a->n_all)
        snprintf(text, n_bytes, "tokens %lld to %lld", (long long)a->first_token,
                 (long long)(a->first_token + a->n_tokens - 1));
}

static Status check_row(int64_t row, int64_t n_rows, const char *what, Error *error) {
    if (row >= 0 && row < n_rows) return STATUS_OK;
    return error_failed(error, "embedding: %s %lld is not one of the table's %lld rows", what, (long long)row,
                        (long long)n_rows);
}

static Status embedding_reference(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const EmbeddingAttributes *a = node->attributes;
    const int32_t *tokens = call->in[0] /* (B,T) */, *start = call->in[3] /* (B) */;
    const float *token_table = call->in[1] /* (V,C) */, *position_table = call->in[2] /* (P,C) */;
    float *y = call->out[0]; /* (B,T,C) */
    int64_t n_sequences = node->input[0]->shape.dim[0], n_positions = node->input[0]->shape.dim[1];
    int64_t channels = node->input[1]->shape.dim[1];
    for (int64_t b = 0; b < n_sequences; b++) {
        for (int64_t t = 0; t < n_positions; t++) {
            int64_t token = tokens[b * n_positions + t],
                    position = start_place(&a->positions, node->input[3], start, b, t);
            TRY(check_row(token, a->n_all, "token", error));
            bool is_here = token >= a->first_token && token < a->first_token + a->n_tokens;
            if (position_table) TRY(check_row(position, node->input[2]->shape.dim[0], "position", error));
            for (int64_t c = 0; c < channels; c++) {
                y[(b * n_positions + t) * channels + c] =
                    (is_here ? token_table[(token - a->first_token) * channels + c] : 0.0f) +
                    (position_table ? position_table[position * channels + c] : 0.0f);
            }
        }
    }
    return STATUS_OK;
}

const Op OP_EMBEDDING = {
    .name = "embedding",
    .gradient = embedding_gradient,
    .flops = embedding_flops,
    .bytes = embedding_bytes,
    .describe = embedding_describe,
    .reference = embedding_reference,
};

/* ---- gradients of the tables: each row of dy is added to the row that it was read from ---- */

/* One addition an element of dy. */
static double scatter_flops(const Node *node) {
    return (double)tensor_count(node->input[0]);
}

/* Written whole, or only the rows that dy names read and written when it adds. */
static double scatter_bytes(const Node *node) {
    double bytes = (double)tensor_bytes(node->input[0]), table = (double)tensor_bytes(node->output[0]);
    double rows = bytes < table ? bytes : table; /* what dy can touch at most */
    if (node->input[1]) bytes += (double)tensor_bytes(node->input[1]);
    return bytes + (node->write[0] == WRITE_ADD ? 2.0 * rows : table);
}

static void write_table(float *table, const double *sums, int64_t count, bool add) {
    for (int64_t i = 0; i < count; i++) reference_write(&table[i], (float)sums[i], add);
}

static Status token_gradient_reference(const KernelCall *call, Error *error) {
    const EmbeddingAttributes *a = call->node->attributes;
    const float *dy = call->in[0];       /* (B,T,C) */
    const int32_t *tokens = call->in[1]; /* (B,T) */
    const Tensor *table = call->node->output[0];
    int64_t channels = table->shape.dim[1], count = tensor_count(table),
            n_tokens = tensor_count(call->node->input[1]);
    double *sums = reference_sums(count, error);
    if (!sums) return error->status;
    Status status = STATUS_OK;
    for (int64_t n = 0; n < n_tokens && status == STATUS_OK; n++) {
        status = check_row(tokens[n], a->n_all, "token", error);
        int64_t row = tokens[n] - a->first_token;
        bool is_here = status == STATUS_OK && row >= 0 && row < a->n_tokens;
        for (int64_t c = 0; c < channels && is_here; c++) {
            sums[row * channels + c] += (double)dy[n * channels + c];
        }
    }
    if (status == STATUS_OK) write_table(call->out[0], sums, count, call->add[0]);
    free(sums);
    return status;
}

const Op OP_EMBEDDING_TOKEN_GRADIENT = {
    .name = "embedding_token_gradient",
    .flops = scatter_flops,
    .bytes = scatter_bytes,
    .reference = token_gradient_reference,
};

static Status position_gradient_reference(const KernelCall *call, Error *error) {
    const EmbeddingAttributes *a = call->node->attributes;
    const float *dy = call->in[0];      /* (B,T,C) */
    const int32_t *start = call->in[1]; /* (B) */
    const Tensor *table = call->node->output[0];
    int64_t n_sequences = call->node->input[0]->shape.dim[0],
            n_positions = call->node->input[0]->shape.dim[1];
    int64_t channels = table->shape.dim[1], count = tensor_count(table);
    double *sums = reference_sums(count, error);
    if (!sums) return error->status;
    Status status = STATUS_OK;
    for (int64_t n = 0; n < n_sequences * n_positions && status == STATUS_OK; n++) {
        int64_t position =
            start_place(&a->positions, call->node->input[1], start, n / n_positions, n % n_positions);
        status = check_row(position, table->shape.dim[0], "position", error);
        for (int64_t c = 0; c < channels && status == STATUS_OK; c++) {
            sums[position * channels + c] += (double)dy[n * channels + c];
        }
    }
    if (status == STATUS_OK) write_table(call->out[0], sums, count, call->add[0]);
    free(sums);
    return status;
}

const Op OP_EMBEDDING_POSITION_GRADIENT = {
    .name = "embedding_position_gradient",
    .flops = scatter_flops,
    .bytes = scatter_bytes,
    .describe = embedding_describe,
    .reference = position_gradient_reference,
};
