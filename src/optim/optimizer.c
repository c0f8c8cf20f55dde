/* Parameters, gradients and moments are flat arrays with the same offsets, so one node updates everything;
 * which runs of elements decay comes from the parameter table (matrices do, vectors do not). */
#include "optim/optimizer.h"

#include "base/random.h"
#include "graph/passes/insert.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

static const char *const optimizer_names[] = {"adamw", "sgd", NULL};
static const char *const learning_rate_names[] = {"constant", "linear", "cosine", "wsd", NULL};

const OptionSpec optimizer_option_specs[] = {
    OPTION_CHOICE("optimizer", OptimizerOptions, kind, OPTIMIZER_ADAMW, optimizer_names, "update rule",
                  .flags = OPTION_FIXED),
    OPTION_FLOAT("lr", OptimizerOptions, rate, 1e-3, 0.0, 1000.0,
                 "highest learning rate; each --model brings one that suits its size", .flags = OPTION_F32),
    OPTION_CHOICE(
        "lr-schedule", OptimizerOptions, schedule, LEARNING_RATE_COSINE, learning_rate_names,
        "learning-rate schedule after the warm-up (wsd: warm-up, stable, decay in a straight line)"),
    OPTION_FLOAT("lr-min", OptimizerOptions, lowest_rate, 0.0, 0.0, 1000.0,
                 "learning rate at the end of the decay", .flags = OPTION_F32),
    OPTION_INT("warmup", OptimizerOptions, n_warmup_steps, -1, -1, INT64_MAX / 2,
               "steps of linear warm-up; -1: a twentieth of the steps, at most 2000"),
    OPTION_FLOAT("lr-decay", OptimizerOptions, decay_fraction, 0.2, 0.0, 1.0,
                 "part of the steps that wsd spends on its decay"),
    OPTION_FLOAT("weight-decay", OptimizerOptions, weight_decay, 0.1, 0.0, 100.0,
                 "decay of the matrices; biases and norms do not decay", .flags = OPTION_F32),
    OPTION_FLOAT("beta1", OptimizerOptions, beta1, 0.9, 0.0, 1.0,
                 "AdamW: decay rate of the first moment, the mean of the gradients",
                 .flags = OPTION_BELOW_MAX | OPTION_F32),
    OPTION_FLOAT("beta2", OptimizerOptions, beta2, 0.99, 0.0, 1.0,
                 "AdamW: decay rate of the second moment, the mean of their squares",
                 .flags = OPTION_BELOW_MAX | OPTION_F32),
    OPTION_FLOAT("epsilon", OptimizerOptions, epsilon, 1e-8, 0.0, 1.0, "AdamW: added to the divisor",
                 .flags = OPTION_ABOVE_MIN | OPTION_F32),
    OPTION_FLOAT("momentum", OptimizerOptions, momentum, 0.9, 0.0, 1.0,
                 "SGD: momentum, the decay rate of the mean gradient",
                 .flags = OPTION_BELOW_MAX | OPTION_F32),
    OPTION_BOOL("nesterov", OptimizerOptions, nesterov, false, "SGD: Nesterov momentum, which looks ahead"),
    OPTION_FLOAT(
        "clip", OptimizerOptions, clip, 1.0, 0.0, 1e30,
        "gradient clipping: scale the gradient down to this norm if it is longer; 0: neither measured nor clipped",
        .flags = OPTION_F32),
    OPTION_BOOL(
        "eager-update", OptimizerOptions, eager, false,
        "update each parameter as soon as its gradient is known and reuse the gradient's memory; needs --clip 0, one micro-batch a step and no f16"),
    OPTION_END,
};

const char *optimizer_name(OptimizerKind kind) {
    return optimizer_names[kind];
}

Status optimizer_check(const OptimizerOptions *options, Precision precision, int64_t n_micro_batches,
                       Error *error) {
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
    if (options->eager && precision.scales_loss) {
        return error_user(
            error,
            "--eager-update cannot leave out a step whose gradients overflow, as f16 must; take --dtype bf16 or pure-bf16, or leave it out");
    }
    return STATUS_OK;
}

LearningRateSchedule optimizer_learning_rate(const OptimizerOptions *options, int64_t n_steps) {
    int64_t n_warmup_steps = options->n_warmup_steps;
    if (n_warmup_steps < 0) n_warmup_steps = n_steps / 20 < 2000 ? n_steps / 20 : 2000;
    return (LearningRateSchedule){.kind = (LearningRateKind)options->schedule,
                                  .peak = options->rate,
                                  .lowest = options->lowest_rate,
                                  .n_warmup_steps = n_warmup_steps,
                                  .decay_fraction = options->decay_fraction,
                                  .n_steps = n_steps};
}

int optimizer_n_moments(const OptimizerOptions *options) {
    return options->kind == OPTIMIZER_ADAMW ? 2 : options->momentum > 0.0 ? 1 : 0;
}

Place optimizer_gradient_place(const OptimizerOptions *options) {
    return options->eager ? PLACE_ACTIVATION : PLACE_GRADIENT;
}

void optimizer_hyper(const OptimizerOptions *options, double rate, int64_t step, uint64_t seed,
                     float *hyper) {
    double t = (double)step + 1.0;
    hyper[HYPER_RATE] = (float)rate;
    hyper[HYPER_CORRECTION1] = (float)(1.0 / (1.0 - pow(options->beta1, t)));
    hyper[HYPER_CORRECTION2] = (float)(1.0 / (1.0 - pow(options->beta2, t)));
    RandomKey key = random_key(seed, RANDOM_ROUNDING, (uint64_t)step);
    memcpy(&hyper[HYPER_DRAW], &key.word[0], sizeof(float));
}

/* What one update node works on. */
typedef struct {
    Tensor *gradient, *parameter, *copy, *moment[OPTIMIZER_MAX_MOMENTS];
    int64_t first;
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
                                      .runs = range->runs,
                                      .first_element = range->first};
        op_adamw_copied(graph, range->gradient, tensors->hyper, factor, range->parameter, range->moment[0],
                        range->moment[1], range->copy, &attributes);
    } else {
        SgdAttributes attributes = {.momentum = (float)options->momentum,
                                    .weight_decay = (float)options->weight_decay,
                                    .nesterov = options->nesterov,
                                    .n_runs = range->n_runs,
                                    .runs = range->runs,
                                    .first_element = range->first};
        op_sgd_copied(graph, range->gradient, tensors->hyper, factor, range->parameter, range->moment[0],
                      range->copy, &attributes);
    }
}

/* Which of elements first .. first + n - 1 decay. A parameter's padding goes with it: it is 0 everywhere and
 * stays so. */
static const DecayRun *decay_runs(const ParameterTable *table, int64_t first, int64_t n, Graph *graph,
                                  int *n_runs) {
    DecayRun *runs = ARENA_ARRAY(&graph->arena, DecayRun, table->n_parameters);
    *n_runs = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        int64_t begin = table->parameter[i].flat_offset;
        int64_t end =
            i + 1 < table->n_parameters ? table->parameter[i + 1].flat_offset : table->n_flat_elements;
        if (begin < first) begin = first;
        if (end > first + n) end = first + n;
        if (begin < end) runs[(*n_runs)++] = (DecayRun){end - begin, table->parameter[i].decays};
    }
    return runs;
}

static void record_slice(const OptimizerOptions *options, const OptimizerTensors *tensors, Tensor *factor,
                         const UpdateSlice *slice, const ParameterTable *table, Graph *graph) {
    UpdateRange range = {
        .gradient = slice->gradient, .parameter = slice->parameter, .first = slice->flat_first};
    if (tensors->master) {
        range.copy = slice->parameter;
        range.parameter =
            graph_view(graph, tensors->master, SHAPE(slice->n), slice->local_first, tensors->master->name);
    }
    range.runs = decay_runs(table, slice->flat_first, slice->n, graph, &range.n_runs);
    for (int i = 0; i < tensors->n_moments; i++) {
        range.moment[i] = graph_view(graph, tensors->moment[i], SHAPE(slice->n), slice->local_first,
                                     tensors->moment[i]->name);
    }
    record_update(options, tensors, factor, &range, graph);
}

/* After the backward: the norm of everything, then the update of every slice. */
static void record_slices(const OptimizerOptions *options, OptimizerTensors *tensors,
                          const ParameterTable *table, const UpdateSlices *slices, Tensor *loss_scale,
                          Graph *graph) {
    Tensor *factor = NULL;
    if (options->clip > 0.0 || loss_scale) {
        Tensor *total = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "squared norm");
        factor = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "clip factor");
        tensors->norm = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "gradient norm");
        for (int i = 0; i < slices->n_slices; i++)
            op_squared_norm(graph, slices->slice[i].gradient, total, i > 0);
        if (!slices->n_slices) op_zero(graph, total); /* more processes than there is to share */
        if (slices->record_sum) slices->record_sum(slices->context, graph, total);
        op_clip_scaled(graph, total, loss_scale, factor, tensors->norm, (float)options->clip);
    }
    for (int i = 0; i < slices->n_slices; i++) {
        record_slice(options, tensors, factor, &slices->slice[i], table, graph);
        if (slices->record_updated) slices->record_updated(slices->context, graph, i);
    }
}

/* One node a parameter, right behind the last one that touches it or its gradient. */
static void record_eager(const OptimizerOptions *options, const OptimizerTensors *tensors,
                         const ParameterTensors *parameters, Graph *graph) {
    Insertion insertion = insertion_begin(graph);
    int n_before = graph->n_nodes;
    for (int i = 0; i < parameters->table->n_parameters; i++) {
        const Parameter *parameter = &parameters->table->parameter[i];
        Tensor *tensor = parameters->tensor[i];
        if (!tensor->gradient) continue;
        DecayRun run = {tensor_count(tensor), parameter->decays};
        UpdateRange range = {.gradient = tensor->gradient,
                             .parameter = tensor,
                             .first = parameter->flat_offset,
                             .n_runs = 1,
                             .runs = arena_copy(&graph->arena, &run, sizeof run)};
        for (int k = 0; k < tensors->n_moments; k++) {
            range.moment[k] = graph_view(graph, tensors->moment[k], tensor->shape, parameter->flat_offset,
                                         arena_printf(&graph->arena, "%s.moment%d", parameter->name, k + 1));
        }
        if (tensors->master) {
            range.copy = tensor;
            range.parameter = graph_view(graph, tensors->master, tensor->shape, parameter->flat_offset,
                                         arena_printf(&graph->arena, "%s.master", parameter->name));
        }
        int last = 0;
        for (int k = 0; k < n_before; k++) {
            if (node_touches(graph->node[k], tensor) || node_touches(graph->node[k], tensor->gradient))
                last = k;
        }
        record_update(options, tensors, NULL, &range, graph);
        insertion_behind(&insertion, last);
    }
    insertion_end(&insertion);
}

OptimizerTensors optimizer_record(const OptimizerOptions *options, Precision precision,
                                  const ParameterTensors *parameters, const UpdateSlices *slices,
                                  Tensor *loss_scale, Graph *graph) {
    OptimizerTensors tensors = {.n_moments = optimizer_n_moments(options)};
    const ParameterTable *table = parameters->table;
    UpdateSlice all = {parameters->flat->gradient, parameters->flat, .n = table->n_flat_elements};
    UpdateSlices everything = {.n_slices = 1, .slice = &all, .n_local = table->n_flat_elements};
    if (!slices) slices = &everything;
    graph->section = SECTION_UPDATE;
    graph->block = NO_BLOCK;
    tensors.hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper");
    for (int i = 0; i < tensors.n_moments; i++) {
        tensors.moment[i] =
            graph_tensor(graph, PLACE_OPTIMIZER, precision.moment, SHAPE(slices->n_local), "moment%d", i + 1);
    }
    if (precision.has_master)
        tensors.master = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(slices->n_local), "master");
    if (options->eager) record_eager(options, &tensors, parameters, graph);
    else record_slices(options, &tensors, table, slices, loss_scale, graph);
    return tensors;
}
