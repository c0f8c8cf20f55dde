/* dropout: y = x · mask / (1-p).
 *
 * The mask is a pure function of (seed, site, step, global sequence, element), so it is never stored: the
 * backward is the same operation on dy, and any split of the batch over devices draws the same mask. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <stdio.h>

/* A probability of 0 records nothing: y is x. */
Tensor *op_dropout(Graph *graph, Tensor *x, Tensor *random, float probability, int site) {
    DropoutAttributes attributes = {probability, site, {0}};
    return op_dropout_split(graph, x, random, &attributes);
}

Tensor *op_dropout_split(Graph *graph, Tensor *x, Tensor *random, const DropoutAttributes *attributes) {
    float probability = attributes->probability;
    if (!graph_check(graph, reference_can_drop(probability), "dropout: probability %g of %s is not in [0,1)",
                     (double)probability, x->name)) {
        return graph->nothing;
    }
    if (probability == 0.0f) return x;
    if (!graph_check(graph, random && random->dtype == DTYPE_I32 && tensor_count(random) == N_RANDOM_WORDS,
                     "dropout: random input of %s must be %d i32 words", x->name, N_RANDOM_WORDS) ||
        !graph_check(graph, x->shape.n_dims >= 1, "dropout: %s has no dim of sequences", x->name)) {
        return graph->nothing;
    }
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, x->shape, "%s.dropout", x->name);
    graph_record(graph, &OP_DROPOUT, attributes, sizeof *attributes, 2, TENSORS(x, random), 1, TENSORS(y));
    return y;
}

static void dropout_gradient(Autograd *autograd, const Node *node) {
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_record(autograd, &OP_DROPOUT, node->attributes, sizeof(DropoutAttributes), 2,
                    TENSORS(dy, node->input[1]), 1, TENSORS(node->input[0]));
}

/* One product an element; the integer work of the random numbers is not counted. */
static double dropout_flops(const Node *node) {
    return (double)tensor_count(node->output[0]);
}

static void dropout_describe(const Node *node, char *text, size_t n_bytes) {
    const DropoutAttributes *a = node->attributes;
    snprintf(text, n_bytes, "p %g, site %d", (double)a->probability, a->site);
}

static int dropout_in_place(const Node *node, int output) {
    (void)node, (void)output;
    return 0;
}

static Status dropout_reference(const KernelCall *call, Error *error) {
    (void)error;
    const DropoutAttributes *a = call->node->attributes;
    const float *x = call->in[0]; /* (B,...) */
    const int32_t *random = call->in[1];
    float *y = call->out[0]; /* (B,...) */
    Shape shape = call->node->input[0]->shape;
    bool is_split = a->rows.length > 0; /* then a run is a row; otherwise a sequence */
    int64_t n_runs = is_split ? shape_rows(shape) : shape.dim[0];
    int64_t length = n_runs ? shape_count(shape) / n_runs : 0;
    RandomKey key = reference_dropout_key(random, a->site);
    uint32_t threshold = random_dropout_threshold(a->probability);
    float scale = random_dropout_scale(threshold);
    for (int64_t b = 0; b < n_runs; b++) {
        RowPosition at = is_split ? row_position(&a->rows, b) : (RowPosition){.sequence = b};
        uint64_t sequence = reference_first_sequence(random) + (uint64_t)at.sequence;
        for (int64_t i = 0; i < length; i++) {
            uint64_t index = (uint64_t)(at.position * length + i);
            float factor = random_keep(key, sequence, index, threshold) ? scale : 0.0f;
            reference_write(&y[b * length + i], x[b * length + i] * factor, call->add[0]);
        }
    }
    return STATUS_OK;
}

const Op OP_DROPOUT = {
    .name = "dropout",
    .gradient = dropout_gradient,
    .flops = dropout_flops,
    .in_place = dropout_in_place,
    .describe = dropout_describe,
    .reference = dropout_reference,
    .again = op_repeat,
};
