/* Parameters, gradients and moments are flat arrays with the same offsets, so one node updates everything; which runs
 * of elements decay comes from the parameter table (matrices do, vectors do not). */
#include "optim/optimizer.h"

#include "ops/ops.h"

#include <math.h>

static const char *const optimizer_names[] = {"adamw", "sgd", NULL};
static const char *const schedule_names[] = {"constant", "linear", "cosine", "wsd", NULL};

const OptionSpec optimizer_option_specs[] = {
    OPTION_CHOICE("optimizer", OptimizerOptions, kind, OPTIMIZER_ADAMW, optimizer_names, "update rule"),
    OPTION_FLOAT("lr", OptimizerOptions, rate, 1e-3, 0.0, 1000.0,
                 "highest learning rate; each --model brings one that suits its size"),
    OPTION_CHOICE("lr-schedule", OptimizerOptions, schedule, SCHEDULE_COSINE, schedule_names,
                  "course of the learning rate after the warm-up (wsd: stable, then straight down)"),
    OPTION_FLOAT("lr-min", OptimizerOptions, lowest_rate, 0.0, 0.0, 1000.0,
                 "learning rate at the end of the decay"),
    OPTION_INT("warmup", OptimizerOptions, n_warmup_steps, -1, -1, INT64_MAX / 2,
               "steps of linear warm-up; -1: a twentieth of the steps, at most 2000"),
    OPTION_FLOAT("lr-decay", OptimizerOptions, decay_fraction, 0.2, 0.0, 1.0,
                 "part of the steps that wsd spends on its decay"),
    OPTION_FLOAT("weight-decay", OptimizerOptions, weight_decay, 0.1, 0.0, 100.0,
                 "decay of the matrices; biases and norms do not decay"),
    OPTION_FLOAT("beta1", OptimizerOptions, beta1, 0.9, 0.0, 1.0, "AdamW: memory of the mean gradient",
                 .flags = OPTION_BELOW_MAX),
    OPTION_FLOAT("beta2", OptimizerOptions, beta2, 0.99, 0.0, 1.0, "AdamW: memory of the squared gradient",
                 .flags = OPTION_BELOW_MAX),
    OPTION_FLOAT("epsilon", OptimizerOptions, epsilon, 1e-8, 0.0, 1.0, "AdamW: added to the divisor",
                 .flags = OPTION_ABOVE_MIN),
    OPTION_FLOAT("momentum", OptimizerOptions, momentum, 0.9, 0.0, 1.0, "SGD: memory of the gradient",
                 .flags = OPTION_BELOW_MAX),
    OPTION_BOOL("nesterov", OptimizerOptions, nesterov, false, "SGD: look ahead along the momentum"),
    OPTION_FLOAT("clip", OptimizerOptions, clip, 1.0, 0.0, 1e30,
                 "scale the gradient down to this norm if it is longer; 0: neither measured nor clipped"),
    OPTION_BOOL(
        "eager-update", OptimizerOptions, eager, false,
        "update each parameter as soon as its gradient is known and reuse the gradient's memory; needs --clip 0 and one micro-batch a step"),
    OPTION_END,
};

const char *optimizer_name(OptimizerKind kind) {
    return optimizer_names[kind];
}

Status optimizer_check(const OptimizerOptions *options, int64_t n_micro_batches, Error *error) {
    if (options->lowest_rate > options->rate) {
        return error_user(error, "--lr-min %g is above --lr %g; swap them or leave --lr-min out",
                          options->lowest_rate, options->rate);
    }
    if (options->kind == OPTIMIZER_SGD && options->nesterov && options->momentum <= 0.0) {
        return error_user(error,
                          "--nesterov looks ahead along the momentum; give --momentum, or leave it out");
    }
    if (options->eager && options->clip > 0.0) {
        return error_user(
            error,
            "--eager-update cannot clip: the norm is known only when the last gradient is; add --clip 0");
    }
    if (options->eager && n_micro_batches > 1) {
        return error_user(
            error,
            "--eager-update needs the whole gradient at once, but a step has %lld micro-batches; make --micro-batch as large as --batch",
            (long long)n_micro_batches);
    }
    return STATUS_OK;
}

Schedule optimizer_schedule(const OptimizerOptions *options, int64_t n_steps) {
    int64_t n_warmup_steps = options->n_warmup_steps;
    if (n_warmup_steps < 0) n_warmup_steps = n_steps / 20 < 2000 ? n_steps / 20 : 2000;
    return (Schedule){.kind = (ScheduleKind)options->schedule,
                      .peak = options->rate,
                      .lowest = options->lowest_rate,
                      .n_warmup_steps = n_warmup_steps,
                      .decay_fraction = options->decay_fraction,
                      .n_steps = n_steps};
}

static int optimizer_n_moments(const OptimizerOptions *options) {
    return options->kind == OPTIMIZER_ADAMW ? 2 : options->momentum > 0.0 ? 1 : 0;
}

Place optimizer_gradient_place(const OptimizerOptions *options) {
    return options->eager ? PLACE_ACTIVATION : PLACE_GRADIENT;
}

void optimizer_hyper(const OptimizerOptions *options, double rate, int64_t step, float *hyper) {
    double t = (double)step + 1.0;
    hyper[HYPER_RATE] = (float)rate;
    hyper[HYPER_CORRECTION1] = (float)(1.0 / (1.0 - pow(options->beta1, t)));
    hyper[HYPER_CORRECTION2] = (float)(1.0 / (1.0 - pow(options->beta2, t)));
}

/* What one update node works on: all parameters, or one. */
typedef struct {
    Tensor *gradient, *parameter, *moment[OPTIMIZER_MAX_MOMENTS];
    int n_runs;
    const DecayRun *runs;
} UpdateRange;

static void record_update(const OptimizerOptions *options, const OptimizerTensors *tensors, Tensor *factor,
                          const UpdateRange *range, Graph *graph) {
    if (options->kind == OPTIMIZER_ADAMW) {
        AdamwAttributes attributes = {.beta1 = (float)options->beta1,
                                      .beta2 = (float)options->beta2,
                                      .epsilon = (float)options->epsilon,
                                      .weight_decay = (float)options->weight_decay,
                                      .n_runs = range->n_runs,
                                      .runs = range->runs};
        op_adamw(graph, range->gradient, tensors->hyper, factor, range->parameter, range->moment[0],
                 range->moment[1], &attributes);
    } else {
        SgdAttributes attributes = {.momentum = (float)options->momentum,
                                    .weight_decay = (float)options->weight_decay,
                                    .nesterov = options->nesterov,
                                    .n_runs = range->n_runs,
                                    .runs = range->runs};
        op_sgd(graph, range->gradient, tensors->hyper, factor, range->parameter, range->moment[0],
               &attributes);
    }
}

/* One run a parameter, its padding included: the padding is 0 everywhere and stays so. */
static const DecayRun *decay_runs(const ParameterTable *table, Graph *graph) {
    DecayRun *runs = ARENA_ARRAY(&graph->arena, DecayRun, table->n_parameters);
    for (int i = 0; i < table->n_parameters; i++) {
        int64_t end =
            i + 1 < table->n_parameters ? table->parameter[i + 1].flat_offset : table->n_flat_elements;
        runs[i] = (DecayRun){end - table->parameter[i].flat_offset, table->parameter[i].decays};
    }
    return runs;
}

static void record_whole(const OptimizerOptions *options, OptimizerTensors *tensors,
                         const ParameterTensors *parameters, Graph *graph) {
    Tensor *gradient = parameters->flat->gradient, *factor = NULL;
    if (options->clip > 0.0) {
        Tensor *total = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "squared norm");
        factor = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "clip factor");
        tensors->norm = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "gradient norm");
        op_squared_norm(graph, gradient, total, false);
        op_clip(graph, total, factor, tensors->norm, (float)options->clip);
    }
    UpdateRange range = {.gradient = gradient,
                         .parameter = parameters->flat,
                         .n_runs = parameters->table->n_parameters,
                         .runs = decay_runs(parameters->table, graph)};
    for (int i = 0; i < tensors->n_moments; i++) range.moment[i] = tensors->moment[i];
    record_update(options, tensors, factor, &range, graph);
}

/* Record one update node a parameter, then sort each behind the last node that touches the parameter or its gradient. */
static void record_eager(const OptimizerOptions *options, const OptimizerTensors *tensors,
                         const ParameterTensors *parameters, Graph *graph) {
    int n_before = graph->n_nodes;
    int *behind = ARENA_ARRAY(&graph->arena, int, n_before + parameters->table->n_parameters);
    for (int i = 0; i < parameters->table->n_parameters; i++) {
        const Parameter *parameter = &parameters->table->parameter[i];
        Tensor *tensor = parameters->tensor[i];
        if (!tensor->gradient) continue;
        DecayRun run = {tensor_count(tensor), parameter->decays};
        UpdateRange range = {.gradient = tensor->gradient,
                             .parameter = tensor,
                             .n_runs = 1,
                             .runs = arena_copy(&graph->arena, &run, sizeof run)};
        for (int k = 0; k < tensors->n_moments; k++) {
            range.moment[k] = graph_view(graph, tensors->moment[k], tensor->shape, parameter->flat_offset,
                                         arena_printf(&graph->arena, "%s.moment%d", parameter->name, k + 1));
        }
        int last = 0;
        for (int k = 0; k < n_before; k++) {
            if (node_touches(graph->node[k], tensor) || node_touches(graph->node[k], tensor->gradient))
                last = k;
        }
        record_update(options, tensors, NULL, &range, graph);
        behind[graph->n_nodes - 1] = last;
        graph->node[graph->n_nodes - 1]->section = graph->node[last]->section;
    }
    Node **sorted = ARENA_ARRAY(&graph->arena, Node *, graph->n_nodes);
    int n_sorted = 0;
    for (int i = 0; i < n_before; i++) {
        sorted[n_sorted++] = graph->node[i];
        for (int k = n_before; k < graph->n_nodes; k++) {
            if (behind[k] == i) sorted[n_sorted++] = graph->node[k];
        }
    }
    graph->node = sorted;
    graph->node_capacity = graph->n_nodes;
}

OptimizerTensors optimizer_record(const OptimizerOptions *options, const ParameterTensors *parameters,
                                  Graph *graph) {
    OptimizerTensors tensors = {.n_moments = optimizer_n_moments(options)};
    graph->section = SECTION_UPDATE;
    graph->block = NO_BLOCK;
    tensors.hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper");
    for (int i = 0; i < tensors.n_moments; i++) {
        tensors.moment[i] =
            graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, parameters->flat->shape, "moment%d", i + 1);
    }
    if (options->eager) {
        record_eager(options, &tensors, parameters, graph);
    } else {
        record_whole(options, &tensors, parameters, graph);
    }
    return tensors;
}
