/* cross_entropy: -log softmax(logits)[target] of every row, and its gradient in the same pass.
 *
 * The logits are the largest tensor of a step (N,V). Their gradient needs the same softmax that the loss
 * needs, so making both at once saves a pass over them, and since nobody reads logits afterwards, the
 * gradient may replace them: the second (N,V) tensor is never allocated. The loss is the end of the graph;
 * the gradient of its scaled sum is known here without a rule. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

Tensor *op_cross_entropy(Graph *graph, Tensor *logits, Tensor *targets, float gradient_scale) {
    Shape shape = SHAPE(shape_rows(logits->shape));
    Tensor *losses = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, shape, "losses");
    op_cross_entropy_into(graph, logits, targets, losses, gradient_scale);
    return graph->error.status == STATUS_OK ? losses : graph->nothing;
}

void op_cross_entropy_into(Graph *graph, Tensor *logits, Tensor *targets, Tensor *losses,
                           float gradient_scale) {
    CrossEntropyAttributes attributes = {gradient_scale, shape_columns(logits->shape)};
    op_cross_entropy_scaled(graph, logits, targets, NULL, losses, &attributes);
}

void op_cross_entropy_scaled(Graph *graph, Tensor *logits, Tensor *targets, Tensor *scale, Tensor *losses,
                             const CrossEntropyAttributes *attributes) {
    if (!graph_check(graph, logits->shape.n_dims >= 1 && shape_columns(logits->shape) > 0,
                     "cross_entropy: logits %s must have shape (N,V)", logits->name) ||
        !graph_check(graph,
                     attributes->n_classes >= 1 && attributes->n_classes <= shape_columns(logits->shape),
                     "cross_entropy: %lld classes in %s of %lld columns", (long long)attributes->n_classes,
                     logits->name, (long long)shape_columns(logits->shape)) ||
        !graph_check(graph, targets->dtype == DTYPE_I32 && tensor_count(targets) == shape_rows(logits->shape),
                     "cross_entropy: targets %s must be i32, one per row of %s", targets->name,
                     logits->name) ||
        !graph_check(graph, !scale || (scale->dtype == DTYPE_F32 && tensor_count(scale) == 1),
                     "cross_entropy: the scale for %s must be one f32 number", logits->name) ||
        !graph_check(graph, losses->dtype == DTYPE_F32 && tensor_count(losses) == tensor_count(targets),
                     "cross_entropy: %s must be f32, one per row of %s", losses->name, logits->name)) {
        return;
    }
    Tensor *dlogits = NULL;
    if (logits->needs_gradient) {
        dlogits = graph_tensor(graph, PLACE_ACTIVATION, logits->dtype, logits->shape, "d%s", logits->name);
    }
    graph_record(graph, &OP_CROSS_ENTROPY, attributes, sizeof *attributes, 3, TENSORS(logits, targets, scale),
                 2, TENSORS(losses, dlogits));
    losses->needs_gradient = false;
    if (dlogits) dlogits->needs_gradient = false;
}

static void cross_entropy_gradient(Autograd *autograd, const Node *node) {
    if (node->output[1]) autograd_share(autograd, node->input[0], node->output[1]);
}

/* A logit: maximum, subtract, e^, sum; for its gradient, divide and scale. */
static double cross_entropy_flops(const Node *node) {
    return (node->output[1] ? 6.0 : 4.0) * (double)tensor_count(node->input[0]);
}

static void cross_entropy_describe(const Node *node, char *text, size_t n_bytes) {
    const CrossEntropyAttributes *a = node->attributes;
    int64_t padding = shape_columns(node->input[0]->shape) - a->n_classes;
    int n = node->output[1] ? snprintf(text, n_bytes, "gradient scale %g", (double)a->gradient_scale) : 0;
    if (padding && n >= 0 && (size_t)n < n_bytes)
        snprintf(text + n, n_bytes - (size_t)n, "%s%lld columns of padding", n ? ", " : "",
                 (long long)padding);
}

/* A row's maximum and sum are known before its logits are replaced one by one. */
static int cross_entropy_in_place(const Node *node, int output) {
    (void)node;
    return output == 1 ? 0 : -1;
}

static Status cross_entropy_reference(const KernelCall *call, Error *error) {
    const CrossEntropyAttributes *a = call->node->attributes;
    const float *logits = call->in[0];    /* (N,V) */
    const int32_t *targets = call->in[1]; /* (N) */
    float *losses = call->out[0] /* (N) */, *dlogits = call->out[1] /* (N,V) */;
    const float *scale = call->in[2]; /* [(1)] */
    double gradient_scale = (double)a->gradient_scale * (scale ? (double)*scale : 1.0);
    int64_t rows = shape_rows(call->node->input[0]->shape), vocabulary = a->n_classes,
            width = shape_columns(call->node->input[0]->shape);
    for (int64_t n = 0; n < rows; n++) {
        const float *row = logits + n * width;
        int64_t target = targets[n];
        if (target >= vocabulary) {
            return error_failed(error, "cross_entropy: target %lld of a vocabulary of %lld",
                                (long long)target, (long long)vocabulary);
        }
        double maximum = -INFINITY, sum = 0.0;
        for (int64_t v = 0; v < vocabulary; v++) maximum = fmax(maximum, (double)row[v]);
        for (int64_t v = 0; v < vocabulary; v++) sum += exp((double)row[v] - maximum);
        losses[n] = target < 0 ? 0.0f : (float)(maximum + log(sum) - (double)row[target]);
        for (int64_t v = 0; dlogits && v < width; v++) {
            double gradient = exp((double)row[v] - maximum) / sum - (v == target ? 1.0 : 0.0);
            float value = target < 0 || v >= vocabulary ? 0.0f : (float)(gradient_scale * gradient);
            reference_write(&dlogits[n * width + v], value, call->add[1]);
        }
    }
    return STATUS_OK;
}

const Op OP_CROSS_ENTROPY = {
    .name = "cross_entropy",
    .gradient = cross_entropy_gradient,
    .flops = cross_entropy_flops,
    .in_place = cross_entropy_in_place,
    .describe = cross_entropy_describe,
    .reference = cross_entropy_reference,
};
