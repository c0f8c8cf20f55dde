/* What a step makes of its routers' reports: biases that even out the load without a loss (Wang et al.,
 * DeepSeek-V3), and a few numbers for the host. Choices are whole numbers, so their sums over ranks are exact
 * in any order, and so are the biases. */
#include "ops/experts/experts.h"

#include "ops/reference.h"

#include <stdio.h>
#include <string.h>

void op_route_bias(Graph *graph, Tensor *reports, Tensor *factor, Tensor *bias, float rate) {
    int64_t E = shape_columns(bias->shape);
    if (!graph_check(graph,
                     shape_columns(reports->shape) == E + N_ROUTE_COUNTS &&
                         shape_rows(reports->shape) == shape_rows(bias->shape),
                     "route_bias: %s is not of the experts of %s", reports->name, bias->name))
        return;
    RouteUpdateAttributes attributes = {(int)E, rate};
    Node *node = graph_record(graph, &OP_ROUTE_BIAS, &attributes, sizeof attributes, 2,
                              TENSORS(reports, factor), 1, TENSORS(bias));
    if (node) node->write[0] = WRITE_ADD;
}

static void bias_describe(const Node *node, char *text, size_t n_bytes) {
    const RouteUpdateAttributes *a = node->attributes;
    snprintf(text, n_bytes, "by %g", (double)a->rate);
}

static Status bias_reference(const KernelCall *call, Error *error) {
    (void)error;
    const RouteUpdateAttributes *a = call->node->attributes;
    const float *reports = call->in[0], *factor = call->in[1];
    float *bias = call->out[0]; /* (R,E) */
    int E = a->n_experts;
    for (int64_t r = 0; r < shape_rows(call->node->input[0]->shape); r++) {
        const float *report = reports + r * (E + N_ROUTE_COUNTS);
        double sum = 0.0;
        for (int e = 0; e < E; e++) sum += (double)report[e];
        for (int e = 0; e < E; e++) {
            double less = sum - (double)report[e] * (double)E; /* than the mean, times E */
            float move = less > 0.0 ? a->rate : less < 0.0 ? -a->rate : 0.0f;
            if (factor && !isfinite(*factor)) move = 0.0f;
            reference_write(&bias[r * E + e], move, call->add[0]);
        }
    }
    return STATUS_OK;
}

const Op OP_ROUTE_BIAS = {
    .name = "route_bias",
    .describe = bias_describe,
    .reference = bias_reference,
};

void op_route_summary(Graph *graph, Tensor *reports, Tensor *summary, int n_experts) {
    if (!graph_check(graph,
                     shape_columns(reports->shape) == n_experts + N_ROUTE_COUNTS &&
                         tensor_count(summary) == N_ROUTE_SUMMARY,
                     "route_summary: %s is not of %d experts", reports->name, n_experts))
        return;
    RouteUpdateAttributes attributes = {.n_experts = n_experts};
    graph_record(graph, &OP_ROUTE_SUMMARY, &attributes, sizeof attributes, 1, TENSORS(reports), 1,
                 TENSORS(summary));
}

void route_summarise(const float *reports, int64_t n_blocks, int n_experts, double *summary) {
    int E = n_experts;
    memset(summary, 0, N_ROUTE_SUMMARY * sizeof *summary);
    summary[SUMMARY_BLOCKS] = (double)n_blocks;
    for (int64_t r = 0; r < n_blocks; r++) {
        const float *report = reports + r * (E + N_ROUTE_COUNTS);
        double sum = 0.0, most = 0.0;
        for (int e = 0; e < E; e++) {
            sum += (double)report[e];
            most = fmax(most, (double)report[e]);
            summary[SUMMARY_EMPTY] += report[e] == 0.0f;
        }
        double load = sum > 0.0 ? most * (double)E / sum : 0.0;
        summary[SUMMARY_BUSIEST] = fmax(summary[SUMMARY_BUSIEST], load);
        for (int i = 0; i < N_ROUTE_COUNTS; i++) summary[i] += (double)report[E + i];
    }
}

static Status summary_reference(const KernelCall *call, Error *error) {
    (void)error;
    const RouteUpdateAttributes *a = call->node->attributes;
    float *summary = call->out[0]; /* (N_ROUTE_SUMMARY) */
    double sums[N_ROUTE_SUMMARY];
    route_summarise(call->in[0], shape_rows(call->node->input[0]->shape), a->n_experts, sums);
    for (int i = 0; i < N_ROUTE_SUMMARY; i++) reference_write(&summary[i], (float)sums[i], call->add[0]);
    return STATUS_OK;
}

const Op OP_ROUTE_SUMMARY = {
    .name = "route_summary",
    .reference = summary_reference,
};
