/* layernorm: each row is moved to mean 0 and scaled to variance 1, then by a weight and a bias per channel.
 *
 * Mean and 1/deviation of every row are outputs: the backward needs them, they are C times smaller than x,
 * and with them the backward is one pass for the gradient of x. With x̂ = (x - mean)·rstd and g = dy·weight:
 *     dx = rstd · (g - Σg/C - x̂·Σ(g·x̂)/C),   dweight = Σ_n dy·x̂,   dbias = Σ_n dy. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

Tensor *op_layernorm(Graph *graph, Tensor *x, Tensor *weight, Tensor *bias, float epsilon) {
    if (!graph_check(graph, x->shape.n_dims >= 1, "layernorm: input %s has no channels", x->name)) {
        return graph->nothing;
    }
    int64_t channels = shape_columns(x->shape);
    if (!graph_check(graph, tensor_count(weight) == channels,
                     "layernorm: weight %s is not one per channel of %s", weight->name, x->name) ||
        !graph_check(graph, !bias || tensor_count(bias) == channels,
                     "layernorm: bias of %s is not one per channel of %s", weight->name, x->name) ||
        !graph_check(graph, epsilon >= 0.0f, "layernorm: epsilon of %s is negative", weight->name)) {
        return graph->nothing;
    }
    Tensor *y =
        graph_tensor(graph, PLACE_ACTIVATION, x->dtype, x->shape, "%s.out", tensor_layer_name(graph, weight));
    Shape rows = SHAPE(shape_rows(x->shape));
    Tensor *mean =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, rows, "%s.mean", tensor_layer_name(graph, weight));
    Tensor *rstd =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, rows, "%s.rstd", tensor_layer_name(graph, weight));
    NormAttributes attributes = {epsilon};
    graph_record(graph, &OP_LAYERNORM, &attributes, sizeof attributes, 3, TENSORS(x, weight, bias), 3,
                 TENSORS(y, mean, rstd));
    mean->needs_gradient = rstd->needs_gradient = false;
    return y;
}

static void layernorm_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->input[0], *weight = node->input[1], *bias = node->input[2];
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_record(autograd, &OP_LAYERNORM_BACKWARD, node->attributes, sizeof(NormAttributes), 5,
                    TENSORS(dy, x, weight, node->output[1], node->output[2]), 3, TENSORS(x, weight, bias));
}

/* An element: 1 for the mean, 3 for the variance, 2 to normalise, 1 for the weight, 1 for the bias. */
static double layernorm_flops(const Node *node) {
    return (node->input[2] ? 8.0 : 7.0) * (double)tensor_count(node->input[0]);
}

static void layernorm_describe(const Node *node, char *text, size_t n_bytes) {
    const NormAttributes *a = node->attributes;
    snprintf(text, n_bytes, "epsilon %g", (double)a->epsilon);
}

/* A row is read whole before its elements are replaced one by one. */
static int layernorm_in_place(const Node *node, int output) {
    (void)node;
    return output == 0 ? 0 : -1;
}

static Status layernorm_reference(const KernelCall *call, Error *error) {
    (void)error;
    const NormAttributes *a = call->node->attributes;
    const float *x = call->in[0] /* (N,C) */, *weight = call->in[1] /* (C) */, *bias = call->in[2] /* (C) */;
    float *y = call->out[0] /* (N,C) */, *means = call->out[1] /* (N) */, *rstds = call->out[2] /* (N) */;
    int64_t rows = shape_rows(call->node->input[0]->shape),
            channels = shape_columns(call->node->input[0]->shape);
    for (int64_t n = 0; n < rows; n++) {
        const float *row = x + n * channels;
        double mean = 0.0, variance = 0.0;
        for (int64_t c = 0; c < channels; c++) mean += (double)row[c];
        mean /= (double)channels;
        for (int64_t c = 0; c < channels; c++) variance += ((double)row[c] - mean) * ((double)row[c] - mean);
        variance /= (double)channels;
        double rstd = 1.0 / sqrt(variance + (double)a->epsilon);
        for (int64_t c = 0; c < channels; c++) {
            double value =
                ((double)row[c] - mean) * rstd * (double)weight[c] + (bias ? (double)bias[c] : 0.0);
            y[n * channels + c] = (float)value;
        }
        means[n] = (float)mean;
        rstds[n] = (float)rstd;
    }
    return STATUS_OK;
}

const Op OP_LAYERNORM = {
    .name = "layernorm",
    .gradient = layernorm_gradient,
    .flops = layernorm_flops,
    .in_place = layernorm_in_place,
    .describe = layernorm_describe,
    .reference = layernorm_reference,
    .again = op_repeat,
};

/* An element of dx: 2 for x̂, 1 for g, 1 and 2 for the sums, 4 to combine; dweight 2 with x̂ at hand; dbias
 * 1. */
static double backward_flops(const Node *node) {
    double each = (node->output[0] ? 10.0 : 2.0) + (node->output[1] ? 2.0 : 0.0) +
                  (node->n_outputs > 2 && node->output[2] ? 1.0 : 0.0);
    return each * (double)tensor_count(node->input[0]);
}

static Status backward_reference(const KernelCall *call, Error *error) {
    const float *dy = call->in[0] /* (N,C) */, *x = call->in[1] /* (N,C) */, *weight = call->in[2] /* (C) */;
    const float *mean = call->in[3] /* (N) */, *rstd = call->in[4] /* (N) */;
    float *dx = call->out[0] /* (N,C) */, *dweight = call->out[1] /* (C) */, *dbias = call->out[2] /* (C) */;
    int64_t rows = shape_rows(call->node->input[1]->shape),
            channels = shape_columns(call->node->input[1]->shape);
    double *sums = reference_sums(2 * channels, error); /* dweight, then dbias */
    if (!sums) return error->status;
    for (int64_t n = 0; n < rows; n++) {
        const float *dy_row = dy + n * channels, *x_row = x + n * channels;
        double m = (double)mean[n], r = (double)rstd[n], sum_g = 0.0, sum_g_xhat = 0.0;
        for (int64_t c = 0; c < channels; c++) {
            double xhat = ((double)x_row[c] - m) * r, g = (double)dy_row[c] * (double)weight[c];
            sum_g += g;
            sum_g_xhat += g * xhat;
            sums[c] += (double)dy_row[c] * xhat;
            sums[channels + c] += (double)dy_row[c];
        }
        sum_g /= (double)channels;
        sum_g_xhat /= (double)channels;
        for (int64_t c = 0; dx && c < channels; c++) {
            double xhat = ((double)x_row[c] - m) * r, g = (double)dy_row[c] * (double)weight[c];
            reference_write(&dx[n * channels + c], (float)((g - sum_g - xhat * sum_g_xhat) * r),
                            call->add[0]);
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        if (dweight) reference_write(&dweight[c], (float)sums[c], call->add[1]);
        if (dbias) reference_write(&dbias[c], (float)sums[channels + c], call->add[2]);
    }
    free(sums);
    return STATUS_OK;
}

const Op OP_LAYERNORM_BACKWARD = {
    .name = "layernorm_backward",
    .flops = backward_flops,
    .reference = backward_reference,
};
