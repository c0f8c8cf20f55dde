/* pack: the parts of one dimension of x laid one after the other, so that what goes to another rank lies
 * together; unpack puts them back. x is (outer, size, inner); part p, which is border[p] .. border[p+1]-1 of
 * the dimension, becomes (outer, n of p, inner). Each is the other's gradient. Both are runs of memory that
 * are copied: one a part, piece and outer. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <stdio.h>

/* Where element `packed` of what is packed lies in what is not. */
static int64_t pack_place(const PackAttributes *a, int64_t packed) {
    int64_t size = a->part[a->n_parts];
    int part = 0, piece = 0;
    while (packed >= a->outer * a->part[part + 1] * a->inner) part++; /* not beyond the last */
    int64_t run = (a->part[part + 1] - a->part[part]) * a->inner;
    int64_t at = packed - a->outer * a->part[part] * a->inner, outer = at / run, column = at % run / a->inner;
    for (;; piece++) {
        const int64_t *border = &a->border[piece * a->n_parts + part];
        if (column < border[1] - border[0])
            return (outer * size + border[0] + column) * a->inner + at % a->inner;
        column -= border[1] - border[0];
    }
}

static bool describe_parts(Graph *graph, const Tensor *x, Shape shape, int dim, int n_parts, int n_pieces,
                           const int64_t *border, PackAttributes *a) {
    if (!graph_check(
            graph,
            dim >= 0 && dim < shape.n_dims && n_parts > 0 && n_parts <= PACK_MAX_PARTS && n_pieces > 0 &&
                n_pieces <= PACK_MAX_PIECES,
            "pack: dimension %d of %s cannot be cut into %d parts of %d pieces (of at most %d of %d)", dim,
            x->name, n_parts, n_pieces, PACK_MAX_PARTS, PACK_MAX_PIECES)) {
        return false;
    }
    *a = (PackAttributes){.outer = 1, .inner = 1, .n_parts = n_parts, .n_pieces = n_pieces};
    for (int i = 0; i < dim; i++) a->outer *= shape.dim[i];
    for (int i = dim + 1; i < shape.n_dims; i++) a->inner *= shape.dim[i];
    int n_runs = n_parts * n_pieces;
    bool is_ascending = border[0] == 0 && border[n_runs] == shape.dim[dim];
    for (int i = 0; i <= n_runs; i++) {
        is_ascending &= i == 0 || border[i] >= border[i - 1];
        a->border[i] = border[i];
    }
    for (int p = 0; p < n_parts; p++) {
        a->part[p + 1] = a->part[p];
        for (int i = p; i < n_runs; i += n_parts) a->part[p + 1] += border[i + 1] - border[i];
    }
    return graph_check(graph, is_ascending && tensor_count(x) == shape_count(shape),
                       "pack: the borders of %s do not ascend from 0 to the %lld of dimension %d", x->name,
                       (long long)shape.dim[dim], dim);
}

Tensor *op_pack_pieces(Graph *graph, Tensor *x, int dim, int n_parts, int n_pieces, const int64_t *border) {
    PackAttributes attributes;
    if (!describe_parts(graph, x, x->shape, dim, n_parts, n_pieces, border, &attributes))
        return graph->nothing;
    int64_t columns = dim + 1 == x->shape.n_dims ? 1 : shape_columns(x->shape);
    Shape shape = SHAPE(columns ? tensor_count(x) / columns : 0, columns);
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, shape, "%s.packed", x->name);
    graph_record(graph, &OP_PACK, &attributes, sizeof attributes, 1, TENSORS(x), 1, TENSORS(y));
    return y;
}

Tensor *op_pack(Graph *graph, Tensor *x, int dim, int n_parts, const int64_t *border) {
    return op_pack_pieces(graph, x, dim, n_parts, 1, border);
}

Tensor *op_unpack(Graph *graph, Tensor *x, Shape shape, int dim, int n_parts, const int64_t *border) {
    PackAttributes attributes;
    if (!describe_parts(graph, x, shape, dim, n_parts, 1, border, &attributes)) return graph->nothing;
    attributes.inverse = true;
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, shape, "%s.unpacked", x->name);
    graph_record(graph, &OP_PACK, &attributes, sizeof attributes, 1, TENSORS(x), 1, TENSORS(y));
    return y;
}

static void pack_gradient(Autograd *autograd, const Node *node) {
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    PackAttributes back = *(const PackAttributes *)node->attributes;
    if (!dy) return;
    back.inverse = !back.inverse;
    autograd_record(autograd, &OP_PACK, &back, sizeof back, 1, TENSORS(dy), 1, TENSORS(node->input[0]));
}

static void pack_describe(const Node *node, char *text, size_t n_bytes) {
    const PackAttributes *a = node->attributes;
    snprintf(text, n_bytes, "%s%d parts of (%lld,%lld,%lld)", a->inverse ? "back from " : "", a->n_parts,
             (long long)a->outer, (long long)a->part[a->n_parts], (long long)a->inner);
}

static Status pack_reference(const KernelCall *call, Error *error) {
    (void)error;
    const PackAttributes *a = call->node->attributes;
    const float *x = call->in[0]; /* (N) */
    float *y = call->out[0];      /* (N) */
    int64_t count = tensor_count(call->node->output[0]);
    for (int64_t i = 0; i < count; i++) {
        int64_t place = pack_place(a, i);
        reference_write(&y[a->inverse ? place : i], x[a->inverse ? i : place], call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_PACK = {
    .name = "pack",
    .gradient = pack_gradient,
    .describe = pack_describe,
    .reference = pack_reference,
    .again = op_repeat,
};
