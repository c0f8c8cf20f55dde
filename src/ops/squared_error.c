/* squared_error: (prediction - target)² of every element, and its gradient in the same pass.
 *
 * The loss of regression, made as cross_entropy.c makes that of classification: it is the end of the graph,
 * the gradient of its scaled sum needs the same difference that the loss needs, and nobody reads the
 * predictions afterwards, so the gradient may replace them. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <stdio.h>

Tensor *op_squared_error(Graph *graph, Tensor *predictions, Tensor *targets, float gradient_scale) {
    if (!graph_check(
            graph, targets->dtype == predictions->dtype && tensor_count(targets) == tensor_count(predictions),
            "squared_error: targets %s must be one for each of %s, in the same type", targets->name,
            predictions->name)) {
        return graph->nothing;
    }
    Tensor *losses =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(tensor_count(predictions)), "losses");
    Tensor *gradient = NULL;
    if (predictions->needs_gradient) {
        gradient = graph_tensor(graph, PLACE_ACTIVATION, predictions->dtype, predictions->shape, "d%s",
                                predictions->name);
    }
    SquaredErrorAttributes attributes = {gradient_scale};
    graph_record(graph, &OP_SQUARED_ERROR, &attributes, sizeof attributes, 2, TENSORS(predictions, targets),
                 2, TENSORS(losses, gradient));
    losses->needs_gradient = false;
    if (gradient) gradient->needs_gradient = false;
    return losses;
}

static void squared_error_gradient(Autograd *autograd, const Node *node) {
    if (node->output[1]) autograd_share(autograd, node->input[0], node->output[1]);
}

/* An element: subtract, multiply; for its gradient, multiply by a constant. */
static double squared_error_flops(const Node *node) {
    return (node->output[1] ? 3.0 : 2.0) * (double)tensor_count(node->input[0]);
}

static int squared_error_in_place(const Node *node, int output) {
    (void)node;
    return output == 1 ? 0 : -1;
}

static void squared_error_describe(const Node *node, char *text, size_t n_bytes) {
    const SquaredErrorAttributes *a = node->attributes;
    if (node->output[1]) snprintf(text, n_bytes, "gradient scale %g", (double)a->gradient_scale);
}

static Status squared_error_reference(const KernelCall *call, Error *error) {
    (void)error;
    const SquaredErrorAttributes *a = call->node->attributes;
    const float *predictions = call->in[0] /* (N) */, *targets = call->in[1] /* (N) */;
    float *losses = call->out[0] /* (N) */, *gradient = call->out[1] /* [(N)] */;
    int64_t count = tensor_count(call->node->input[0]);
    for (int64_t i = 0; i < count; i++) {
        double difference = (double)predictions[i] - (double)targets[i];
        losses[i] = (float)(difference * difference);
        if (gradient)
            reference_write(&gradient[i], (float)(2.0 * (double)a->gradient_scale * difference),
                            call->add[1]);
    }
    return STATUS_OK;
}

const Op OP_SQUARED_ERROR = {
    .name = "squared_error",
    .gradient = squared_error_gradient,
    .flops = squared_error_flops,
    .in_place = squared_error_in_place,
    .describe = squared_error_describe,
    .reference = squared_error_reference,
};
