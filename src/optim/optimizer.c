/* Parameters, gradients and moments are flat arrays with the same offsets, so one node updates everything;
 * which runs of elements decay comes from the parameter table (matrices do, vectors do not). What differs
 * from optimizer to optimizer is its table's business. */
#include "optim/optimizer_inside.h"

#include "base/random.h"
#include "graph/passes/insert.h"
#include "ops/ops.h"
#include "optim/late.h"
#include "optim/updates.h"

#include <string.h>

#define OPTIMIZER(NAME, name, Options) #name,
const char *const optimizer_names[] = {OPTIMIZERS(OPTIMIZER) NULL};
#undef OPTIMIZER

#define OPTIMIZER(NAME, name, Options) &optimizer_##name,
static const Optimizer *const optimizers[] = {OPTIMIZERS(OPTIMIZER)};
#undef OPTIMIZER

const char *const moments_names[] = {"auto", "f32", "bf16", "8bit", NULL};

const char *const clip_style_names[] = {"wait", "check", NULL};

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
#define OPTIMIZER(NAME, name, Options) NAME##_OPTION_SPECS
    OPTIMIZERS(OPTIMIZER)
#undef OPTIMIZER
        OPTION_FLOAT(
            "clip", OptimizerOptions, clip, 1.0, 0.0, 1e30,
            "gradient clipping: scale the gradient down to this norm if it is longer; 0: neither measured nor clipped",
            .flags = OPTION_F32),
    OPTION_CHOICE(
        "clip-style", OptimizerOptions, clip_style, CLIP_WAIT, clip_style_names,
        "when to clip: wait for the norm over all ranks, or update first, check the norm later and restore "
        "the old state where it was too large: the same bits; check keeps a second copy of weights and "
        "optimizer state, and pays in a pipeline, or with --offload optimizer, where steps are rarely clipped"),
    OPTION_CHOICE(
        "moments", OptimizerOptions, moments, MOMENTS_AUTO, moments_names,
        "what the optimizer's moments are stored in; auto: f32, in pure 16 bits bf16; 8bit: with a scale for "
        "every 16, about 1.06 bytes each; bf16 and 8bit are rounded stochastically"),
    OPTION_INT(
        "delayed-update", OptimizerOptions, n_prompt, 0, 0, INT64_MAX / 2,
        "after so many steps, updates are one step late (inexact): each is made beside the next step's backward, so that what "
        "--offload optimizer moves is hidden there; the run's last step leaves none to come; 0: every update is made in its step"),
    OPTION_BOOL(
        "eager-update", OptimizerOptions, eager, false,
        "update each parameter as soon as its gradient is known and reuse the gradient's memory; needs --clip 0, one micro-batch a step and no f16"),
    OPTION_END,
};

#define OPTIMIZER(NAME, name, Options)                                                                       \
    static const OptionSpec name##_option_specs[] = {NAME##_OPTION_SPECS OPTION_END};
OPTIMIZERS(OPTIMIZER)
#undef OPTIMIZER

const OptionSpec *optimizer_own_specs(OptimizerKind kind) {
#define OPTIMIZER(NAME, name, Options) name##_option_specs,
    static const OptionSpec *const specs[] = {OPTIMIZERS(OPTIMIZER)};
#undef OPTIMIZER
    return specs[kind];
}

OptimizerOptions optimizer_defaults(OptimizerKind kind) {
    OptimizerOptions options = {0};
    for (const OptionSpec *spec = optimizer_option_specs; spec->name; spec++) {
        void *field = (char *)&options + spec->offset;
        switch (spec->type) {
        case OPTION_TYPE_BOOL: *(bool *)field = spec->bool_default; break;
        case OPTION_TYPE_INT: *(int64_t *)field = spec->int_default; break;
        case OPTION_TYPE_FLOAT: *(double *)field = spec->float_default; break;
        case OPTION_TYPE_STRING: *(const char **)field = spec->text_default; break;
        case OPTION_TYPE_CHOICE: *(int *)field = (int)spec->int_default; break;
        }
    }
    options.kind = (int)kind;
    return options;
}

const Optimizer *optimizer_of(const OptimizerOptions *options) {
    return optimizers[options->kind];
}

const char *optimizer_name(OptimizerKind kind) {
    return optimizer_names[kind];
}

Status optimizer_check(const OptimizerOptions *options, Precision precision, int64_t n_micro_batches,
                       Error *error) {
    if (options->lowest_rate > options->rate) {
        return error_user(error, "--lr-min %g is above --lr %g; swap them or leave --lr-min out",
                          options->lowest_rate, options->rate);
    }
    const Optimizer *optimizer = optimizer_of(options);
    if (optimizer->check) TRY(optimizer->check(options, error));
    if (options->clip_style == CLIP_CHECK && options->clip <= 0.0 && !precision.scales_loss) {
        return error_user(
            error, "--clip-style check has nothing to check with --clip 0; give --clip, or leave it out");
    }
    if (options->n_prompt && options->clip_style == CLIP_CHECK)
        return error_user(
            error, "--delayed-update knows the norm before it updates, and --clip-style check does not wait "
                   "for it; leave one out");
    if (options->n_prompt && options->eager)
        return error_user(
            error, "--delayed-update keeps a gradient over a step, and --eager-update leaves none; leave one "
                   "out");
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

Precision optimizer_precision(const OptimizerOptions *options, Precision precision) {
    if (options->moments == MOMENTS_F32 || options->moments == MOMENTS_8BIT) precision.moment = DTYPE_F32;
    if (options->moments == MOMENTS_BF16) precision.moment = DTYPE_BF16;
    precision.has_packed_moments = options->moments == MOMENTS_8BIT;
    return precision;
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
    return optimizer_of(options)->n_moments(options);
}

Place optimizer_gradient_place(const OptimizerOptions *options) {
    return options->eager ? PLACE_ACTIVATION : PLACE_GRADIENT;
}

void optimizer_hyper(const OptimizerOptions *options, double rate, int64_t step, uint64_t seed,
                     float *hyper) {
    const Optimizer *optimizer = optimizer_of(options);
    hyper[HYPER_RATE] = (float)rate;
    hyper[HYPER_OWN1] = hyper[HYPER_OWN2] = hyper[HYPER_OWN3] = 0.0f;
    if (optimizer->hyper) optimizer->hyper(options, step, hyper);
    RandomKey key = random_key(seed, RANDOM_ROUNDING, (uint64_t)step);
    memcpy(&hyper[HYPER_DRAW], &key.word[0], sizeof(float));
}

/* Which of elements first .. first + n - 1 decay. A parameter's padding goes with it: it is 0 everywhere and
 * stays so. */
UpdateElements optimizer_elements(const ParameterTable *table, int64_t first, int64_t n, Graph *graph) {
    DecayRun *runs = ARENA_ARRAY(&graph->arena, DecayRun, table->n_parameters);
    int n_runs = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        int64_t begin = table->parameter[i].flat_offset;
        int64_t end =
            i + 1 < table->n_parameters ? table->parameter[i + 1].flat_offset : table->n_flat_elements;
        if (begin < first) begin = first;
        if (end > first + n) end = first + n;
        if (begin < end) runs[n_runs++] = (DecayRun){end - begin, table->parameter[i].decays};
    }
    return (UpdateElements){.n_runs = n_runs, .runs = runs, .first_element = first};
}

/* Elements first .. first + n - 1 of a moment; in 8 bits, `first` is where a record begins. */
static Tensor *moment_view(Graph *graph, Tensor *moment, int64_t first, int64_t n, const char *name) {
    if (update_is_packed(moment))
        return graph_view(graph, moment, SHAPE(block8_words(n)), block8_words(first), name);
    return graph_view(graph, moment, SHAPE(n), first, name);
}

static Tensor *new_moment(Graph *graph, Precision precision, int64_t n, int number) {
    bool packed = precision.has_packed_moments;
    return graph_tensor(graph, PLACE_OPTIMIZER, packed ? DTYPE_I32 : precision.moment,
                        SHAPE(packed ? block8_words(n) : n), "moment%d", number);
}

void updates_record_slice(const Updates *updates, UpdatePass pass, Tensor *factor, const UpdateSlice *slice,
                          int64_t first_draw, Tensor *array) {
    const OptimizerTensors *tensors = updates->tensors;
    Graph *graph = updates->graph;
    UpdateTensors update = {.gradient = slice->gradient,
                            .hyper = tensors->hyper,
                            .factor = factor,
                            .parameter = slice->parameter,
                            .sums = updates->sums};
    if (tensors->master) {
        update.copy = slice->parameter;
        update.parameter =
            graph_view(graph, tensors->master, SHAPE(slice->n), slice->local_first, tensors->master->name);
    }
    UpdateElements elements = optimizer_elements(updates->table, slice->flat_first, slice->n, graph);
    elements.first_element = first_draw;
    for (int i = 0; i < tensors->n_moments; i++) {
        update.moment[i] =
            moment_view(graph, tensors->moment[i], slice->local_first, slice->n, tensors->moment[i]->name);
    }
    if (updates->sums)
        update.spans = tensor_spans(updates->table, &updates->numbers, slice->flat_first, slice->n,
                                    first_draw, &graph->arena);
    const Optimizer *optimizer = updates->optimizer;
    switch (pass) {
    case PASS_MEASURE: optimizer->measure(updates->options, &update, &elements, graph); break;
    case PASS_UPDATE: optimizer->record(updates->options, &update, &elements, graph); break;
    case PASS_DIRECT: optimizer->matrices->direct(updates->options, &update, &elements, array, graph); break;
    case PASS_MOVE: optimizer->matrices->move(updates->options, &update, &elements, array, graph); break;
    }
}

/* Where the array here is laid out otherwise than that of the whole model, numbers that are rounded
 * stochastically take a node a parameter (draws.c); so it is where some are updated as matrices, which are
 * left out. */
static void record_parts(const Updates *updates, UpdatePass pass, Tensor *factor, const UpdateSlice *slice) {
    const ParameterTable *table = updates->table;
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        int64_t first = parameter->flat_offset, end = slice->flat_first + slice->n;
        int64_t next = i + 1 < table->n_parameters ? parameter[1].flat_offset : table->n_flat_elements;
        if (first < slice->flat_first) first = slice->flat_first;
        if (next < end) end = next;
        if (first >= end || matrices_include(updates->optimizer, parameter)) continue;
        updates_record_elements(updates, pass, factor, slice, parameter, first, end, NULL);
    }
}

static bool is_laid_out_whole(const ParameterTable *table) {
    for (int i = 0; i < table->n_parameters; i++)
        if (table->parameter[i].flat_offset != table->parameter[i].whole_offset) return false;
    return true;
}

/* A 16-bit parameter or moment is. */
static bool rounds_stochastically(const UpdateSlices *slices, const OptimizerTensors *tensors) {
    bool draws = !tensors->master && slices->n_slices && slices->slice[0].parameter->dtype != DTYPE_F32;
    for (int i = 0; i < tensors->n_moments; i++)
        draws |= tensors->moment[i]->dtype != DTYPE_F32; /* packed too */
    return draws;
}

static void record_pass(const Updates *updates, UpdatePass pass, Tensor *factor) {
    const UpdateSlices *slices = updates->slices;
    bool draws = rounds_stochastically(slices, updates->tensors);
    for (int i = 0; i < slices->n_slices; i++) {
        const UpdateSlice *slice = &slices->slice[i];
        if (updates->optimizer->matrices || (draws && !is_laid_out_whole(updates->table)))
            record_parts(updates, pass, factor, slice);
        else updates_record_slice(updates, pass, factor, slice, slice->flat_first, NULL);
        if (slices->record_updated && pass == PASS_UPDATE)
            slices->record_updated(slices->context, updates->graph, i);
    }
}

void updates_record_all(const Updates *updates, Tensor *factor) {
    const UpdateSlices *slices = updates->slices;
    if (updates->sums) {
        op_zero(updates->graph, updates->sums);
        record_pass(updates, PASS_MEASURE, factor);
        if (slices->record_tensor_sums)
            slices->record_tensor_sums(slices->context, updates->graph, updates->sums,
                                       updates->numbers.n_shared);
    }
    if (updates->optimizer->matrices) matrices_record(updates, factor);
    record_pass(updates, PASS_UPDATE, factor);
}

static Tensor *sums_of(int n_tensors, Graph *graph) {
    return graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n_tensors, UPDATE_SUMS), "sums of tensors");
}

void optimizer_record_alone(const Optimizer *optimizer, const OptimizerOptions *options,
                            const UpdateTensors *tensors, const UpdateElements *elements, Graph *graph) {
    UpdateTensors update = *tensors;
    if (optimizer->measure) {
        TensorSpan *spans = ARENA_ARRAY(&graph->arena, TensorSpan, elements->n_runs + 1);
        int64_t at = elements->first_element;
        for (int i = 0; i < elements->n_runs && !tensors->spans.span; i++) {
            int64_t n = elements->runs[i].n_elements;
            if (elements->runs[i].decays && n) {
                spans[update.spans.n_spans] = (TensorSpan){at, at + n, update.spans.n_spans, true};
                update.spans.n_spans++;
            }
            at += n;
        }
        if (!tensors->spans.span) update.spans.span = spans;
        int n_tensors = 1;
        for (int i = 0; i < update.spans.n_spans; i++)
            if (update.spans.span[i].tensor >= n_tensors) n_tensors = update.spans.span[i].tensor + 1;
        update.sums = sums_of(n_tensors, graph);
        op_zero(graph, update.sums);
        optimizer->measure(options, &update, elements, graph);
    }
    optimizer->record(options, &update, elements, graph);
}

static Tensor *scalar(Graph *graph, const char *name) {
    return graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "%s", name);
}

/* What an update changes, and where it is kept: moments, master weights and the slices of the weights. */
typedef struct {
    Tensor **changed, **kept;
    int n;
} KeptState;

static void keep(KeptState *state, Graph *graph, Tensor *changed) {
    Tensor *kept =
        graph_tensor(graph, PLACE_STATE, changed->dtype, changed->shape, "%s (before)", changed->name);
    op_copy_into(graph, changed, kept, WRITE_FRESH);
    state->changed[state->n] = changed;
    state->kept[state->n++] = kept;
}

static KeptState keep_state(const Updates *updates) {
    Graph *graph = updates->graph;
    const UpdateSlices *slices = updates->slices;
    const OptimizerTensors *tensors = updates->tensors;
    int most = slices->n_slices + OPTIMIZER_MAX_MOMENTS + 1;
    KeptState state = {.changed = ARENA_ARRAY(&graph->arena, Tensor *, most),
                       .kept = ARENA_ARRAY(&graph->arena, Tensor *, most)};
    for (int i = 0; i < tensors->n_moments; i++) keep(&state, graph, tensors->moment[i]);
    if (tensors->master) keep(&state, graph, tensors->master);
    for (int i = 0; i < slices->n_slices; i++) keep(&state, graph, slices->slice[i].parameter);
    return state;
}

/* The update as if the gradient were short enough; then the norm; then what is to be done where it is not. */
static void record_checked(const Updates *updates, Tensor *total) {
    Graph *graph = updates->graph;
    const UpdateSlices *slices = updates->slices;
    float clip = (float)updates->options->clip;
    Tensor *nothing = scalar(graph, "no norm"), *norm = scalar(graph, "norm without clipping");
    const Node *sum = NULL;
    updates->tensors->assumed = scalar(graph, "factor without clipping");
    if (slices->record_near_sum) slices->record_near_sum(slices->context, graph, total);
    if (slices->record_far_sum) sum = slices->record_far_sum(slices->context, graph, total);
    op_zero(graph, nothing);
    op_clip_scaled(graph, nothing, updates->loss_scale, updates->tensors->assumed, norm, clip);
    KeptState state = keep_state(updates);
    updates_record_all(updates, updates->loss_scale ? updates->tensors->assumed : NULL); /* else it is 1 */
    if (slices->record_end) slices->record_end(slices->context, graph);

    graph->section = SECTION_CHECK;
    if (slices->record_far_wait) slices->record_far_wait(slices->context, graph, sum, total);
    op_clip_scaled(graph, total, updates->loss_scale, updates->tensors->factor, updates->tensors->norm, clip);

    graph->section = SECTION_REDO;
    for (int i = 0; i < state.n; i++) op_copy_into(graph, state.kept[i], state.changed[i], WRITE_FRESH);
    updates_record_all(updates, updates->tensors->factor);
}

/* After the backward: the norm of everything, then the update of every slice. */
static void record_slices(const Updates *updates) {
    const OptimizerOptions *options = updates->options;
    const UpdateSlices *slices = updates->slices;
    OptimizerTensors *tensors = updates->tensors;
    Graph *graph = updates->graph;
    if (options->clip > 0.0 || updates->loss_scale) {
        Tensor *total = scalar(graph, "squared norm");
        tensors->factor = scalar(graph, "clip factor");
        tensors->norm = scalar(graph, "gradient norm");
        optimizer_squares(updates->table, slices, total, graph);
        if (options->clip_style == CLIP_CHECK) {
            record_checked(updates, total);
            return;
        }
        if (options->n_prompt) {
            late_record(updates, total);
            return;
        }
        if (slices->record_sum) slices->record_sum(slices->context, graph, total);
        op_clip_scaled(graph, total, updates->loss_scale, tensors->factor, tensors->norm,
                       (float)options->clip);
    }
    if (options->n_prompt) late_record(updates, NULL);
    else updates_record_all(updates, tensors->factor);
}

/* One node a parameter, right behind the last one that touches it or its gradient. */
static void record_eager(const Optimizer *optimizer, const OptimizerOptions *options,
                         const OptimizerTensors *tensors, const ParameterTensors *parameters, Graph *graph) {
    Insertion insertion = insertion_begin(graph);
    TensorNumbers numbers = tensor_numbers(parameters->table, &graph->arena);
    int n_before = graph->n_nodes;
    for (int i = 0; i < parameters->table->n_parameters; i++) {
        const Parameter *parameter = &parameters->table->parameter[i];
        Tensor *tensor = parameters->tensor[i];
        if (!tensor->gradient) continue;
        DecayRun run = {tensor_count(tensor), parameter->decays};
        UpdateTensors update = {.gradient = tensor->gradient, .hyper = tensors->hyper, .parameter = tensor};
        UpdateElements elements = {.n_runs = 1,
                                   .runs = arena_copy(&graph->arena, &run, sizeof run),
                                   .first_element = parameter->flat_offset};
        for (int k = 0; k < tensors->n_moments; k++) {
            const char *name = arena_printf(&graph->arena, "%s.moment%d", parameter->name, k + 1);
            update.moment[k] =
                moment_view(graph, tensors->moment[k], parameter->flat_offset, tensor_count(tensor), name);
        }
        if (tensors->master) {
            update.copy = tensor;
            update.parameter = graph_view(graph, tensors->master, tensor->shape, parameter->flat_offset,
                                          arena_printf(&graph->arena, "%s.master", parameter->name));
        }
        if (optimizer->measure)
            update.spans = tensor_spans(parameters->table, &numbers, parameter->flat_offset,
                                        tensor_count(tensor), parameter->flat_offset, &graph->arena);
        int last = 0;
        for (int k = 0; k < n_before; k++) {
            if (node_touches(graph->node[k], tensor) || node_touches(graph->node[k], tensor->gradient))
                last = k;
        }
        optimizer_record_alone(optimizer, options, &update, &elements, graph);
        insertion_behind(&insertion, last);
    }
    insertion_end(&insertion);
}

/* For an update that needs whole tensors. */
static const UpdateSlice *slices_by_parameter(const ParameterTensors *parameters, Graph *graph, int *n) {
    const ParameterTable *table = parameters->table;
    UpdateSlice *slices = ARENA_ARRAY(&graph->arena, UpdateSlice, table->n_parameters);
    *n = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        Tensor *tensor = parameters->tensor[i];
        int64_t first = table->parameter[i].flat_offset;
        if (tensor->gradient)
            slices[(*n)++] = (UpdateSlice){tensor->gradient, tensor, first, tensor_count(tensor), first};
    }
    return slices;
}

OptimizerTensors optimizer_record_by(const Optimizer *optimizer, const OptimizerOptions *options,
                                     Precision precision, const ParameterTensors *parameters,
                                     const UpdateSlices *slices, Tensor *loss_scale, Graph *graph) {
    OptimizerTensors tensors = {.n_moments = optimizer->n_moments(options)};
    const ParameterTable *table = parameters->table;
    UpdateSlice all = {parameters->flat->gradient, parameters->flat, .n = table->n_flat_elements};
    UpdateSlices everything = {.n_slices = 1, .slice = &all, .n_local = table->n_flat_elements};
    if (slices) {
        everything = *slices;
        everything.slice = &all;
        everything.n_slices = 1;
        everything.n_local = table->n_flat_elements;
        everything.context = slices->context;
    }
    if (optimizer->op->update == UPDATE_OF_TENSORS) {
        graph_check(graph, !slices || !slices->slice,
                    "--optimizer %s needs whole tensors, and --zero cuts them; leave it out",
                    optimizer_name((OptimizerKind)options->kind));
        everything.slice = slices_by_parameter(parameters, graph, &everything.n_slices);
    }
    if (!slices || !slices->slice) slices = &everything;
    graph->section = SECTION_UPDATE;
    graph->block = NO_BLOCK;
    tensors.hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper");
    for (int i = 0; i < tensors.n_moments; i++)
        tensors.moment[i] = new_moment(graph, precision, slices->n_local, i + 1);
    if (precision.has_master)
        tensors.master = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(slices->n_local), "master");
    if (options->eager) record_eager(optimizer, options, &tensors, parameters, graph);
    else {
        Updates updates = {.optimizer = optimizer,
                           .options = options,
                           .tensors = &tensors,
                           .table = table,
                           .slices = slices,
                           .loss_scale = loss_scale,
                           .graph = graph};
        if (optimizer->matrices)
            updates.room = matrices_room(table, optimizer, precision, slices->record_join != NULL, graph);
        if (optimizer->measure) {
            updates.numbers = tensor_numbers(table, &graph->arena);
            updates.sums = tensors.sums = sums_of(updates.numbers.n_tensors, graph);
        }
        record_slices(&updates);
    }
    return tensors;
}

OptimizerTensors optimizer_record(const OptimizerOptions *options, Precision precision,
                                  const ParameterTensors *parameters, const UpdateSlices *slices,
                                  Tensor *loss_scale, Graph *graph) {
    return optimizer_record_by(optimizer_of(options), options, precision, parameters, slices, loss_scale,
                               graph);
}
