/* What a model is made of as cases: embedding, norms, layers, activations, what moves rows, losses. */
#include "op_case_inputs.h"

void build_embedding(OpCase *test) {
    const int64_t *size = test->spec->size;
    unsigned flags = test->spec->flags;
    bool is_split = flags & CASE_SPLIT;
    EmbeddingAttributes part = {
        .positions = case_positions(test, size[1]), .n_tokens = size[3], .n_all = size[3]};
    if (is_split) { /* the last row is padding, though there is a token of that number */
        part.n_tokens -= size[3] > 1;
        part.n_all = part.n_tokens + 5;
        part.first_token = 2;
    }
    Tensor *tokens = case_integers(test, SHAPE(size[0], size[1]), "tokens", part.n_all);
    Tensor *table = case_parameter(test, SHAPE(size[3], size[2]), "table", 0.0f), *positions = NULL,
           *start = NULL;
    if (flags & CASE_POSITIONS) positions = case_parameter(test, SHAPE(size[4], size[2]), "positions", 0.0f);
    if (flags & CASE_START)
        start =
            case_integers(test, SHAPE(size[0]), "start", size[4] - row_place(&part.positions, size[1] - 1));
    if (flags & CASE_DOCUMENTS) start = case_integers(test, SHAPE(size[0], size[1]), "start", size[4]);
    case_finish(test, op_embedding_part(test->graph, tokens, table, positions, start, &part));
}

void build_layernorm(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x");
    Tensor *weight = case_parameter(test, SHAPE(size[1]), "weight", 1.0f), *bias = NULL;
    if (test->spec->flags & CASE_BIAS) bias = case_parameter(test, SHAPE(size[1]), "bias", 0.0f);
    Tensor *y = op_layernorm(test->graph, x, weight, bias, 1e-5f);
    case_result(test, "mean", case_last_node(test)->output[1]);
    case_result(test, "rstd", case_last_node(test)->output[2]);
    case_finish(test, y);
}

void build_rmsnorm(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x");
    Tensor *y = op_rmsnorm(test->graph, x, case_parameter(test, SHAPE(size[1]), "weight", 1.0f), 1e-5f);
    case_result(test, "rstd", case_last_node(test)->output[1]);
    case_finish(test, y);
}

/* Rows from the middle of a sequence to that of another, which has two pieces here. */
static RowSplit split_rows(const OpCase *test) {
    if (!(test->spec->flags & CASE_SPLIT)) return (RowSplit){0};
    return (RowSplit){.first = 3, .length = 7, .head = 4, .start = {5, 40}};
}

void build_residual_norm(OpCase *test) {
    const int64_t *size = test->spec->size;
    unsigned flags = test->spec->flags;
    Shape shape = SHAPE(size[0], size[1], size[2]);
    Tensor *x = case_activation(test, shape, "x");
    Tensor *branch = flags & CASE_SAME ? x : case_incoming(test, shape, "branch"), *bias = NULL;
    Tensor *weight = case_parameter(test, SHAPE(size[2]), "weight", 1.0f);
    if (flags & CASE_BIAS) bias = case_parameter(test, SHAPE(size[2]), "bias", 0.0f);
    ResidualNormAttributes attributes = {1e-5f, !(flags & CASE_RMS), test->spec->number, 5, split_rows(test)};
    Tensor *random = attributes.probability > 0.0f ? case_random(test) : NULL;
    ResidualNorm both = op_residual_norm(test->graph, x, branch, weight, bias, random, &attributes);
    const Node *node = case_last_node(test);
    case_result(test, "sum", both.sum);
    if (node->output[2]) case_result(test, "mean", node->output[2]);
    case_result(test, "rstd", node->output[3]);
    Tensor *y = both.normed;
    if (flags & CASE_SUM_ONLY) y = both.sum;
    else if (flags & CASE_RESIDUAL)
        y = op_add(test->graph, op_gelu(test->graph, both.sum, ACTIVATION_GELU_TANH), both.normed);
    case_finish(test, y);
}

static Activation activation_of(const OpCase *test) {
    if (test->spec->flags & CASE_TANH) return ACTIVATION_GELU_TANH;
    return test->spec->flags & CASE_ERF ? ACTIVATION_GELU_ERF : ACTIVATION_NONE;
}

void build_linear(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x"), *bias = NULL, *residual = NULL;
    Tensor *weight = case_parameter(test, SHAPE(size[2], size[1]), "weight", 0.0f);
    if (test->spec->flags & CASE_BIAS) bias = case_parameter(test, SHAPE(size[2]), "bias", 0.0f);
    if (test->spec->flags & CASE_RESIDUAL)
        residual = case_activation(test, SHAPE(size[0], size[2]), "residual");
    case_finish(test, op_linear(test->graph, x, weight, bias, residual, activation_of(test)));
}

void build_mlp(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x");
    Tensor *up = case_parameter(test, SHAPE(size[2], size[1]), "up", 0.0f),
           *down = case_parameter(test, SHAPE(size[1], size[2]), "down", 0.0f),
           *bias = case_parameter(test, SHAPE(size[2]), "bias", 0.0f);
    Tensor *hidden = op_linear(test->graph, x, up, bias, NULL, activation_of(test));
    Tensor *y = op_linear(test->graph, hidden, down, NULL, NULL, ACTIVATION_NONE);
    if (test->spec->flags & CASE_RESIDUAL) /* a second reader of what is hidden */
        y = op_add(test->graph, y, op_linear(test->graph, hidden, down, NULL, NULL, ACTIVATION_NONE));
    case_finish(test, y);
}

void build_gelu(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0], test->spec->size[1]), "x");
    case_finish(test, op_gelu(test->graph, x, activation_of(test)));
}

void build_swiglu(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0], 2 * test->spec->size[1]), "x");
    case_finish(test, op_swiglu(test->graph, x));
}

void build_add(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0], test->spec->size[1]);
    Tensor *x = case_activation(test, shape, "x");
    case_finish(test, op_add(test->graph, x,
                             test->spec->flags & CASE_SAME ? x : case_activation(test, shape, "other")));
}

void build_copy(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0], test->spec->size[1]), "x");
    case_finish(test, op_copy(test->graph, x));
}

void build_zero(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0], test->spec->size[1]);
    if (test->spec->flags & CASE_SPLIT) { /* zeros in the place of what other ranks make of x */
        Tensor *x = case_activation(test, SHAPE(2, test->spec->size[1]), "x");
        case_finish(test, op_blank(test->graph, x, shape));
        return;
    }
    Tensor *y = graph_tensor(test->graph, PLACE_ACTIVATION, DTYPE_F32, shape, "y");
    op_zero(test->graph, y);
    case_result(test, "y", y);
}

void build_dropout(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1], size[2]), "x");
    DropoutAttributes attributes = {test->spec->number, 5, split_rows(test)};
    case_finish(test, op_dropout_split(test->graph, x, case_random(test), &attributes));
}

void build_gather(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *x = case_activation(test, SHAPE(size[0], size[1]), "x");
    case_finish(test, op_gather(test->graph, x, case_integers(test, SHAPE(size[2]), "rows", size[0])));
}

void build_pack(OpCase *test) {
    const int64_t *size = test->spec->size;
    int n_parts = (int)size[3];
    int64_t border[PACK_MAX_PARTS + 1] = {0};
    for (int p = 1; p < n_parts; p++) border[p] = p == 1 ? 0 : size[1] * (p + 1) / (n_parts + 1);
    border[n_parts] = size[1];
    Shape shape = SHAPE(size[0], size[1], size[2]);
    Tensor *packed = op_pack(test->graph, case_activation(test, shape, "x"), 1, n_parts, border);
    case_finish(test, op_unpack(test->graph, packed, shape, 1, 1, (int64_t[]){0, size[1]}));
}

void build_pack_pieces(OpCase *test) {
    const int64_t *size = test->spec->size;
    int n_parts = (int)size[3], n_runs = 3 * n_parts;
    int64_t border[PACK_MAX_PARTS * PACK_MAX_PIECES + 1] = {0};
    for (int i = 1; i < n_runs; i++) border[i] = size[1] * (i + i % 2) / (n_runs + 1);
    border[n_runs] = size[1];
    Tensor *x = case_activation(test, SHAPE(size[0], size[1], size[2]), "x");
    case_finish(test, op_pack_pieces(test->graph, x, 1, n_parts, 3, border));
}

void build_sum(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0], test->spec->size[1]), "x");
    Tensor *total = case_state(test, SHAPE_SCALAR, "total");
    op_sum(test->graph, x, total, 0.125f);
    case_result(test, "total", total);
}

void build_cross_entropy(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *logits = case_activation(test, SHAPE(size[0], size[1]), "logits");
    int64_t n_classes = size[2] ? size[2] : size[1];
    Tensor *targets = case_integers(test, SHAPE(size[0]), "targets", n_classes);
    test->fill[test->n_fills - 1].some_negative = test->spec->flags & CASE_IGNORE;
    Tensor *losses = graph_tensor(test->graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(size[0]), "losses");
    CrossEntropyAttributes attributes = {0.25f, n_classes};
    const float factor = 0.375f;
    bool is_scaled = test->spec->flags & CASE_FACTOR;
    Tensor *scale = is_scaled ? case_literal(test, DTYPE_F32, 1, "loss scale", &factor) : NULL;
    op_cross_entropy_scaled(test->graph, logits, targets, scale, losses, &attributes);
    case_result(test, "losses", losses);
    if (!logits->needs_gradient) return;
    test->y = losses;
    test->loss_scale = is_scaled ? 0.25 * 0.375 : 0.25;
}

void build_split_entropy(OpCase *test) {
    const int64_t *size = test->spec->size;
    Tensor *logits = case_activation(test, SHAPE(size[0], size[1]), "logits");
    SplitEntropyAttributes attributes = {0.25f, 3, size[2], size[2] + 7};
    Tensor *targets = case_integers(test, SHAPE(size[0]), "targets", attributes.n_all);
    test->fill[test->n_fills - 1].some_negative = test->spec->flags & CASE_IGNORE;
    Tensor *losses = graph_tensor(test->graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(size[0]), "losses");
    Tensor *part = op_split_entropy_part(test->graph, logits, targets, &attributes);
    Tensor *parts = graph_view(test->graph, part, SHAPE(1, size[0], ENTROPY_PARTS), 0, "parts");
    op_split_entropy(test->graph, logits, targets, parts, NULL, losses, &attributes);
    case_result(test, "part", part);
    case_result(test, "losses", losses);
    if (!logits->needs_gradient) return;
    test->y = losses;
    test->loss_scale = 0.25;
}

void build_squared_error(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0], test->spec->size[1]);
    Tensor *predictions = case_activation(test, shape, "predictions");
    Tensor *targets = case_floats(test, PLACE_INPUT, shape, "targets", 1.0f, 0.0f);
    Tensor *losses = op_squared_error(test->graph, predictions, targets, 0.25f);
    case_result(test, "losses", losses);
    if (!predictions->needs_gradient) return;
    test->y = losses;
    test->loss_scale = 0.25;
}

/* x is read three times and its gradient shared twice. */
void build_block(OpCase *test) {
    int64_t rows = test->spec->size[0], channels = test->spec->size[1];
    Tensor *x = case_activation(test, SHAPE(rows, channels), "x");
    Tensor *weight = case_parameter(test, SHAPE(channels, channels), "weight", 0.0f);
    Tensor *bias = case_parameter(test, SHAPE(channels), "bias", 0.0f);
    Tensor *scale = case_parameter(test, SHAPE(channels), "scale", 1.0f);
    Tensor *normal = op_layernorm(test->graph, x, scale, NULL, 1e-5f);
    Tensor *hidden = op_linear(test->graph, normal, weight, bias, x, ACTIVATION_GELU_TANH);
    Tensor *sum = op_add(test->graph, hidden, x);
    case_finish(test, op_linear(test->graph, sum, weight, NULL, hidden, ACTIVATION_NONE));
}
