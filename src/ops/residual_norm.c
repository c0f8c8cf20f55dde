/* residual_norm: what stands between two branches of a transformer, in one pass over the residual stream:
 *     sum = stream + dropout(branch),   normed = layernorm(sum) or rmsnorm(sum).
 *
 * As three operations this reads or writes (N,C) seven times, as one four times. It means exactly what
 * dropout, add and the norm mean one after the other, and gives their bits in every type: what they would
 * store between them is rounded here too. So a program may use either, and the reference is the three of them
 * in a row.
 *
 * Backward, the gradient of the sum is what later additions have left there plus what comes through the norm.
 * With dropout that of the branch is all of it under the same mask, made in the same pass; without, branch
 * and stream share it. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <stdio.h>

static bool is_sound(Graph *graph, const Tensor *stream, const Tensor *branch, const Tensor *weight,
                     const Tensor *bias, const Tensor *random, const ResidualNormAttributes *a) {
    int64_t channels = stream->shape.n_dims ? shape_columns(stream->shape) : 0;
    return graph_check(graph, stream->shape.n_dims >= 2, "residual_norm: %s has no rows of channels",
                       stream->name) &&
           graph_check(graph, shape_equal(stream->shape, branch->shape) && stream->dtype == branch->dtype,
                       "residual_norm: %s and %s have different shapes or types", stream->name,
                       branch->name) &&
           graph_check(graph, tensor_count(weight) == channels,
                       "residual_norm: weight %s is not one per channel of %s", weight->name, stream->name) &&
           graph_check(graph, !bias || (a->has_mean && tensor_count(bias) == channels),
                       "residual_norm: bias of %s is not one per channel of %s, or of an rmsnorm",
                       weight->name, stream->name) &&
           graph_check(graph, a->epsilon >= 0.0f, "residual_norm: epsilon of %s is negative", weight->name) &&
           graph_check(graph, reference_can_drop(a->probability),
                       "residual_norm: probability %g of %s is not in [0,1)", (double)a->probability,
                       branch->name) &&
           graph_check(graph,
                       a->probability == 0.0f ||
                           (random && random->dtype == DTYPE_I32 && tensor_count(random) == N_RANDOM_WORDS),
                       "residual_norm: random input of %s must be %d i32 words", branch->name,
                       N_RANDOM_WORDS);
}

ResidualNorm op_residual_norm(Graph *graph, Tensor *stream, Tensor *branch, Tensor *weight, Tensor *bias,
                              Tensor *random, const ResidualNormAttributes *attributes) {
    if (!is_sound(graph, stream, branch, weight, bias, random, attributes))
        return (ResidualNorm){graph->nothing, graph->nothing};
    const char *layer = tensor_layer_name(graph, weight);
    Tensor *sum = graph_tensor(graph, PLACE_ACTIVATION, stream->dtype, stream->shape, "%s.in", layer);
    Tensor *normed = graph_tensor(graph, PLACE_ACTIVATION, stream->dtype, stream->shape, "%s.out", layer);
    Shape rows = SHAPE(shape_rows(stream->shape));
    Tensor *mean = NULL;
    if (attributes->has_mean) mean = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, rows, "%s.mean", layer);
    Tensor *rstd = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, rows, "%s.rstd", layer);
    if (attributes->probability == 0.0f) random = NULL;
    graph_record(graph, &OP_RESIDUAL_NORM, attributes, sizeof *attributes, 5,
                 TENSORS(stream, branch, weight, bias, random), 4, TENSORS(sum, normed, mean, rstd));
    sum->needs_gradient &= stream->needs_gradient || branch->needs_gradient; /* the weights come after it */
    if (mean) mean->needs_gradient = false;
    rstd->needs_gradient = false;
    return (ResidualNorm){sum, normed};
}

static void residual_norm_gradient(Autograd *autograd, const Node *node) {
    const ResidualNormAttributes *a = node->attributes;
    Tensor *stream = node->input[0], *branch = node->input[1], *weight = node->input[2],
           *bias = node->input[3], *random = node->input[4];
    Tensor *sum = node->output[0], *dnormed = autograd_gradient(autograd, node->output[1]);
    if (dnormed) {
        autograd_record(autograd, &OP_RESIDUAL_NORM_BACKWARD, a, sizeof *a, 6,
                        TENSORS(dnormed, sum, weight, node->output[2], node->output[3], random), 5,
                        TENSORS(sum, weight, bias, random ? branch : NULL, NULL));
    }
    Tensor *dsum = autograd_gradient(autograd, sum);
    if (!dsum) return;
    autograd_share(autograd, stream, dsum);
    if (!random) {
        autograd_share(autograd, branch, dsum);
    } else if (!dnormed) {
        DropoutAttributes dropout = {a->probability, a->site, a->rows};
        autograd_record(autograd, &OP_DROPOUT, &dropout, sizeof dropout, 2, TENSORS(dsum, random), 1,
                        TENSORS(branch));
    }
}

/* An element: 1 for the addition, 1 for dropout, and the norm's (layernorm.c, rmsnorm.c). */
static double residual_norm_flops(const Node *node) {
    const ResidualNormAttributes *a = node->attributes;
    double norm = !a->has_mean ? 4.0 : node->input[3] ? 8.0 : 7.0;
    return (norm + (node->input[4] ? 2.0 : 1.0)) * (double)tensor_count(node->input[0]);
}

static void residual_norm_describe(const Node *node, char *text, size_t n_bytes) {
    const ResidualNormAttributes *a = node->attributes;
    int n =
        snprintf(text, n_bytes, "%s, epsilon %g", a->has_mean ? "layernorm" : "rmsnorm", (double)a->epsilon);
    if (a->probability > 0.0f && n >= 0 && (size_t)n < n_bytes)
        snprintf(text + n, n_bytes - (size_t)n, ", dropout %g", (double)a->probability);
}

/* A row of stream and branch is read before it is replaced. The branch is nobody else's: the sum takes its
 * memory, and the normed rows that of the stream, where it ends here. */
static int residual_norm_in_place(const Node *node, int output) {
    (void)node;
    return output == 0 ? 1 : output == 1 ? 0 : -1;
}

/* The norm alone, of the sum, which is kept for its slope. */
static bool residual_norm_again(Graph *graph, Node *again, int output) {
    const ResidualNormAttributes *a = again->attributes;
    NormAttributes attributes = {a->epsilon};
    Tensor *sum = again->output[0], *weight = again->input[2], *bias = again->input[3];
    if (output != 1) return false;
    again->op = a->has_mean ? &OP_LAYERNORM : &OP_RMSNORM;
    again->attributes = arena_copy(&graph->arena, &attributes, sizeof attributes);
    again->attributes_bytes = sizeof attributes;
    again->n_inputs = a->has_mean ? 3 : 2;
    again->input[0] = sum;
    again->input[1] = weight;
    again->input[2] = a->has_mean ? bias : NULL;
    again->output[0] = again->output[1];
    again->output[1] = a->has_mean ? again->output[2] : again->output[3];
    again->output[2] = a->has_mean ? again->output[3] : NULL;
    again->n_outputs = a->has_mean ? 3 : 2;
    return true;
}

static Status residual_norm_reference(const KernelCall *call, Error *error) {
    const ResidualNormAttributes *a = call->node->attributes;
    Tensor *const *in = call->node->input, *const *out = call->node->output;
    const float *stream = call->in[0] /* (N,C) */, *branch = call->in[1] /* (N,C) */;
    float *sum = call->out[0]; /* (N,C) */
    int64_t count = tensor_count(in[0]);
    const float *dropped = branch;
    if (in[4]) {
        DropoutAttributes attributes = {a->probability, a->site, a->rows};
        Node dropout = {.attributes = &attributes, .input = {in[1], in[4]}, .output = {out[0]}};
        KernelCall drop = {.node = &dropout, .in = {call->in[1], call->in[4]}, .out = {sum}};
        TRY(OP_DROPOUT.reference(&drop, error));
        dropped = sum;
    }
    for (int64_t i = 0; i < count; i++) sum[i] = stream[i] + dropped[i];
    NormAttributes attributes = {a->epsilon};
    Node norm = {.attributes = &attributes, .input = {out[0]}};
    KernelCall layernorm = {.node = &norm,
                            .in = {sum, call->in[2], call->in[3]},
                            .out = {call->out[1], call->out[2], call->out[3]}};
    KernelCall rmsnorm = {.node = &norm, .in = {sum, call->in[2]}, .out = {call->out[1], call->out[3]}};
    return a->has_mean ? OP_LAYERNORM.reference(&layernorm, error) : OP_RMSNORM.reference(&rmsnorm, error);
}

const Op OP_RESIDUAL_NORM = {
    .name = "residual_norm",
    .gradient = residual_norm_gradient,
    .flops = residual_norm_flops,
    .in_place = residual_norm_in_place,
    .describe = residual_norm_describe,
    .reference = residual_norm_reference,
    .again = residual_norm_again,
};

/* An element of dsum: 10 (rmsnorm 7), see there; dweight 2; dbias 1; dbranch 1, and 1 for its sums. */
static double backward_flops(const Node *node) {
    const ResidualNormAttributes *a = node->attributes;
    double each = node->output[0] ? (a->has_mean ? 10.0 : 7.0) : (a->has_mean ? 2.0 : 1.0);
    each += node->output[1] ? 2.0 : 0.0;
    for (int k = 2; k < 5; k++) each += node->output[k] ? 1.0 : 0.0;
    return each * (double)tensor_count(node->input[0]);
}

/* The gradient of the branch may lie where that of the normed rows did: an element of it is read before. Not
 * if that is the sum's as well, as autograd may share it. */
static int backward_in_place(const Node *node, int output) {
    Tensor *dnormed = node->input[0], *dsum = node->output[0];
    return output == 3 && dsum && tensor_root(dnormed) != tensor_root(dsum) ? 0 : -1;
}

static int backward_sums_output(const Node *node, int output) {
    (void)node;
    return output == 3 ? 4 : -1;
}

static Status backward_reference(const KernelCall *call, Error *error) {
    const ResidualNormAttributes *a = call->node->attributes;
    Tensor *const *in = call->node->input;
    void *const *data = call->in, *const *out = call->out; /* as in ops.h */
    Node norm = {.input = {in[0], in[1]}};
    KernelCall layernorm = {.node = &norm,
                            .in = {data[0], data[1], data[2], data[3], data[4]},
                            .out = {out[0], out[1], out[2]},
                            .add = {call->add[0], call->add[1], call->add[2]}};
    KernelCall rmsnorm = {.node = &norm,
                          .in = {data[0], data[1], data[2], data[4]},
                          .out = {out[0], out[1]},
                          .add = {call->add[0], call->add[1]}};
    TRY(a->has_mean ? OP_LAYERNORM_BACKWARD.reference(&layernorm, error)
                    : OP_RMSNORM_BACKWARD.reference(&rmsnorm, error));
    if (!out[3]) return STATUS_OK;
    DropoutAttributes attributes = {a->probability, a->site, a->rows};
    Node dropout = {.attributes = &attributes, .input = {in[1], in[5]}};
    KernelCall drop = {.node = &dropout, .in = {out[0], data[5]}, .out = {out[3]}, .add = {call->add[3]}};
    TRY(OP_DROPOUT.reference(&drop, error));
    Shape shape = in[1]->shape;
    if (out[4]) reference_column_sums(out[3], shape_rows(shape), shape_columns(shape), out[4], call->add[4]);
    return STATUS_OK;
}

const Op OP_RESIDUAL_NORM_BACKWARD = {
    .name = "residual_norm_backward",
    .flops = backward_flops,
    .in_place = backward_in_place,
    .sums_output = backward_sums_output,
    .describe = residual_norm_describe,
    .reference = backward_reference,
};
