/* The sleep stands between the chunk's border and its blocks, so that autograd makes it part of the way that
 * the gradient takes back, and it has a weight, so that there is a gradient which nobody waits for: of a
 * linear layer's, whose other gradient is a node of its own and may be put off, too. Which part of the
 * backward each then belongs to is found by split_backward, as for any operation. */
#include "lab/pipeline/sleeping_stage.h"

#include "base/system/timer.h"
#include "graph/passes/autograd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- the operation */

static double sleep_ms(const Node *node) {
    const StageTimes *times = node->attributes;
    if (node->op == &OP_SLEEP) return times->forward;
    return node->op == &OP_SLEEP_INPUT_GRADIENT ? times->input_gradient : times->weight_gradient;
}

/* Until a moment, not for a time: what wakes it early or what was copied before does not count twice. */
static void sleep_from(uint64_t begin_ns, double ms) {
    enum { NS_PER_S = 1000000000 };
    uint64_t end_ns = begin_ns + (uint64_t)(ms * 1e6);
    struct timespec end = {.tv_sec = (time_t)(end_ns / NS_PER_S), .tv_nsec = (long)(end_ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR) continue;
}

static Tensor *record_sleep(Graph *graph, Tensor *x, Tensor *weight, const StageTimes *times) {
    if (!graph_check(graph, x->dtype == DTYPE_F32, "sleep: stages that sleep are in f32"))
        return graph->nothing;
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, x->shape, "%s.slept", x->name);
    graph_record(graph, &OP_SLEEP, times, sizeof *times, 2, TENSORS(x, weight), 1, TENSORS(y));
    return y;
}

static void sleep_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->input[0], *weight = node->input[1], *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_record(autograd, &OP_SLEEP_INPUT_GRADIENT, node->attributes, sizeof(StageTimes), 1, TENSORS(dy),
                    1, TENSORS(x));
    autograd_record(autograd, &OP_SLEEP_WEIGHT_GRADIENT, node->attributes, sizeof(StageTimes), 1, TENSORS(dy),
                    1, TENSORS(weight));
}

static int sleep_in_place(const Node *node, int output) {
    (void)output;
    return node->write[0] == WRITE_FRESH ? 0 : -1;
}

static void sleep_describe(const Node *node, char *text, size_t n_bytes) {
    snprintf(text, n_bytes, "%g ms", sleep_ms(node));
}

/* y = x, dx = dy. */
static Status pass_on(const KernelCall *call, Error *error) {
    (void)error;
    uint64_t begin_ns = timer_now_ns();
    const float *x = call->in[0];
    float *y = call->out[0];
    for (int64_t i = 0; i < tensor_count(call->node->output[0]) && (x != y || call->add[0]); i++)
        y[i] = x[i] + (call->add[0] ? y[i] : 0.0f);
    sleep_from(begin_ns, sleep_ms(call->node));
    return STATUS_OK;
}

/* The weight's gradient is 0. */
static Status add_nothing(const KernelCall *call, Error *error) {
    (void)error;
    uint64_t begin_ns = timer_now_ns();
    if (!call->add[0]) memset(call->out[0], 0, tensor_bytes(call->node->output[0]));
    sleep_from(begin_ns, sleep_ms(call->node));
    return STATUS_OK;
}

const Op OP_SLEEP = {.name = "sleep",
                     .gradient = sleep_gradient,
                     .in_place = sleep_in_place,
                     .describe = sleep_describe,
                     .reference = pass_on};
const Op OP_SLEEP_INPUT_GRADIENT = {.name = "sleep_input_gradient",
                                    .in_place = sleep_in_place,
                                    .describe = sleep_describe,
                                    .reference = pass_on};
const Op OP_SLEEP_WEIGHT_GRADIENT = {
    .name = "sleep_weight_gradient", .describe = sleep_describe, .reference = add_nothing};

/* ---- the stage */

GptStageTensors sleeping_stage_record(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                                      const GptLossOptions *options, const GptStage *stage, Tensor *input,
                                      const void *context) {
    const StageTimes *times = context;
    GptLossOptions own = *options;
    ParameterTensors parameters;
    if (!own.parameters) {
        parameters = parameters_record(table, graph, own.dtype, own.is_training);
        own.parameters = &parameters;
    }
    Tensor *weight = parameter_tensor(own.parameters, ROLE_PROJ_WEIGHT, stage->first_block);
    Tensor *entered = input ? record_sleep(graph, input, weight, times) : NULL;
    GptStageTensors tensors = gpt_record_stage(config, table, graph, &own, stage, entered);
    if (input) tensors.input = tensors.embedded = input;
    else if (tensors.output) tensors.output = record_sleep(graph, tensors.output, weight, times);
    return tensors;
}
