/* rmsnorm: each row is divided by its root mean square, then scaled by a weight per channel.
 *
 * Layernorm without the mean: what Llama and most models after it use. 1/rms of every row is an output for
 * the backward. With x̂ = x·rstd and g = dy·weight:
 *     dx = rstd · (g - x̂·Σ(g·x̂)/C),   dweight = Σ_n dy·x̂. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

Tensor *op_rmsnorm(Graph *graph, Tensor *x, Tensor *weight, float epsilon) {
    if (!graph_check(graph, x->shape.n_dims >= 1, "rmsnorm: input %s has no channels", x->name) ||
        !graph_check(graph, tensor_count(weight) == shape_columns(x->shape),
                     "rmsnorm: weight %s is not one per channel of %s", weight->name, x->name) ||
        !graph_check(graph, epsilon >= 0.0f, "rmsnorm: epsilon of %s is negative", weight->name)) {
        return graph->nothing;
    }
    Tensor *y =
        graph_tensor(graph, PLACE_ACTIVATION, x->dtype, x->shape, "%s.out", tensor_layer_name(graph, weight));
    Tensor *rstd = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(shape_rows(x->shape)), "%s.rstd",
                                tensor_layer_name(graph, weight));
    NormAttributes attributes = {epsilon};
    graph_record(graph, &OP_RMSNORM, &attributes, sizeof attributes, 2, TENSORS(x, weight), 2,
                 TENSORS(y, rstd));
    rstd->needs_gradient = false;
    return y;
}

static void rmsnorm_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->input[0], *weight = node->input[1];
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_record(autograd, &OP_RMSNORM_BACKWARD, node->attributes, sizeof(NormAttributes), 4,
                    TENSORS(dy, x, weight, node->output[1]), 2, TENSORS(x, weight));
}

/* An element: 2 for the sum of squares, 1 to normalise, 1 for the weight. */
static double rmsnorm_flops(const Node *node) {
    return 4.0 * (double)tensor_count(node->input[0]);
}

static void rmsnorm_describe(const Node *node, char *text, size_t n_bytes) {
    const NormAttributes *a = node->attributes;
    snprintf(text, n_bytes, "epsilon %g", (double)a->epsilon);
}

/* A row is read whole before its elements are replaced one by one. */
static int rmsnorm_in_place(const Node *node, int output) {
    (void)node;
    return output == 0 ? 0 : -1;
}

static Status rmsnorm_reference(const KernelCall *call, Error *error) {
    (void)error;
    const NormAttributes *a = call->node->attributes;
    const float *x = call->in[0] /* (N,C) */, *weight = call->in[1] /* (C) */;
    float *y = call->out[0] /* (N,C) */, *rstds = call->out[1] /* (N) */;
    int64_t rows = shape_rows(call->node->input[0]->shape),
            channels = shape_columns(call->node->input[0]->shape);
    for (int64_t n = 0; n < rows; n++) {
        double sum = 0.0;
        for (int64_t c = 0; c < channels; c++)
            sum += (double)x[n * channels + c] * (double)x[n * channels + c];
        double rstd = 1.0 / sqrt(sum / (double)channels + (double)a->epsilon);
        for (int64_t c = 0; c < channels; c++) {
            y[n * channels + c] = (float)((double)x[n * channels + c] * rstd * (double)weight[c]);
        }
        rstds[n] = (float)rstd;
    }
    return STATUS_OK;
}

const Op OP_RMSNORM = {
    .name = "rmsnorm",
    .gradient = rmsnorm_gradient,
    .flops = rmsnorm_flops,
    .in_place = rmsnorm_in_place,
    .describe = rmsnorm_describe,
    .reference = rmsnorm_reference,
    .again = op_repeat,
};

/* An element of dx: 1 for x̂, 1 for g, 2 for the sum, 3 to combine; dweight 2 with x̂ at hand. */
static double backward_flops(const Node *node) {
    double each = (node->output[0] ? 7.0 : 1.0) + (node->output[1] ? 2.0 : 0.0);
    return each * (double)tensor_count(node->input[0]);
}

static Status backward_reference(const KernelCall *call, Error *error) {
    const float *dy = call->in[0] /* (N,C) */, *x = call->in[1] /* (N,C) */, *weight = call->in[2] /* (C) */;
    const float *rstd = call->in[3]; /* (N) */
    float *dx = call->out[0] /* (N,C) */, *dweight = call->out[1] /* (C) */;
    int64_t rows = shape_rows(call->node->input[1]->shape),
            channels = shape_columns(call->node->input[1]->shape);
    double *sums = reference_sums(channels, error);
    if (!sums) return error->status;
    for (int64_t n = 0; n < rows; n++) {
        const float *dy_row = dy + n * channels, *x_row = x + n * channels;
        double r = (double)rstd[n], sum = 0.0;
        for (int64_t c = 0; c < channels; c++) {
            double xhat = (double)x_row[c] * r;
            sum += (double)dy_row[c] * (double)weight[c] * xhat;
            sums[c] += (double)dy_row[c] * xhat;
        }
        sum /= (double)channels;
        for (int64_t c = 0; dx && c < channels; c++) {
            double xhat = (double)x_row[c] * r, g = (double)dy_row[c] * (double)weight[c];
            reference_write(&dx[n * channels + c], (float)((g - xhat * sum) * r), call->add[0]);
        }
    }
    for (int64_t c = 0; dweight && c < channels; c++)
        reference_write(&dweight[c], (float)sums[c], call->add[1]);
    free(sums);
    return STATUS_OK;
}

const Op OP_RMSNORM_BACKWARD = {
    .name = "rmsnorm_backward",
    .flops = backward_flops,
    .reference = backward_reference,
};
