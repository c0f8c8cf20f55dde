/* With ZeRO every rank learns from its own slices, so that the variance which goes on is sharded as the
 * frozen one is in exact steps; what the ranks have found of a tensor meets in a message of a number a
 * tensor. A largest number has no rounding: all ranks have the same bits of it, in whatever layout.
 *
 * The step is op_lamb's own, by sums of which its trust ratio is the coefficient. */
#include "optim/compressed_lamb.h"

#include "ops/ops.h"
#include "optim/optimizer_inside.h"
#include "parallel/comm_ops.h"

CompressedLamb compressed_lamb_plan(const ParameterTable *table, int64_t n_local, Graph *graph) {
    CompressedLamb lamb = {.numbers = tensor_numbers(table, &graph->arena)};
    lamb.fresh = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(n_local), "fresh variance");
    lamb.coefficients = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32,
                                     SHAPE(lamb.numbers.n_tensors, N_COEFFICIENTS), "coefficients");
    return lamb;
}

void compressed_lamb_record_average(const CompressedLamb *lamb, const OptimizerOptions *options,
                                    const OptimizerTensors *tensors, Graph *graph) {
    LambAverageAttributes attributes = {.beta = (float)options->lamb.scale_beta,
                                        .max_ratio = (float)options->lamb.max_ratio};
    if (lamb->numbers.n_tensors)
        op_lamb_average(graph, tensors->sums, tensors->factor, lamb->coefficients, &attributes);
}

/* ---- compressed steps */

static TensorSpans spans_of(const LambUpdate *update, Graph *graph, int64_t first, int64_t n) {
    return tensor_spans(update->parameters->table, &update->lamb->numbers, first, n, first, &graph->arena);
}

static void record_learning(void *context, Graph *graph, const MomentumChange *change) {
    const LambUpdate *update = context;
    const LambOptions *options = &update->options->lamb;
    Tensor *all = update->lamb->fresh,
           *fresh = graph_view(graph, all, SHAPE(change->n), change->local_first, all->name);
    int regimes = graph->regimes;
    graph->regimes = REGIME_FREEZE;
    op_copy_into(graph, change->variance, fresh, WRITE_FRESH);
    graph->regimes = regimes;
    LambFreshenTensors tensors = {.before = change->before,
                                  .momentum = change->momentum,
                                  .variance = change->variance,
                                  .hyper = update->tensors->hyper,
                                  .factor = update->tensors->factor,
                                  .ratios = update->ratios,
                                  .fresh = fresh};
    LambFreshenAttributes attributes = {.first_element = change->first,
                                        .spans = spans_of(update, graph, change->first, change->n),
                                        .beta1 = (float)options->beta1,
                                        .beta2 = (float)options->beta2,
                                        .epsilon = (float)options->epsilon};
    op_lamb_freshen(graph, &tensors, &attributes);
}

static void record_decision(void *context, Graph *graph) {
    const LambUpdate *update = context;
    const LambOptions *options = &update->options->lamb;
    const Mesh *mesh = update->compressed->sync->options->mesh;
    if (!update->lamb->numbers.n_tensors) return;
    if (compressed_sync_is_sliced(update->compressed))
        op_comm_wait(graph, op_all_reduce_max(graph, update->compressed->comm, update->ratios));
    if (mesh->shape.size[AXIS_TP] > 1)
        op_comm_wait(graph, op_all_reduce_max(graph, mesh_comm(mesh, AXIS_TP), update->ratios));
    LambAdaptAttributes attributes = {.lowest = (float)options->scale_min,
                                      .highest = (float)options->scale_max,
                                      .change = (float)options->scale_change};
    op_lamb_adapt(graph, update->ratios, update->tensors->factor, update->lamb->coefficients,
                  update->tensors->sums, &attributes);
}

static void record_update(void *context, Graph *graph, int64_t first, int64_t n, const AdamState *state) {
    const LambUpdate *update = context;
    const LambOptions *options = &update->options->lamb;
    Tensor *weights = graph_view(graph, update->parameters->flat, SHAPE(n), first, "parameters");
    UpdateTensors tensors = {.gradient = state->momentum,
                             .hyper = update->tensors->hyper,
                             .factor = update->tensors->factor,
                             .parameter = state->master ? state->master : weights,
                             .moment = {state->momentum, state->variance},
                             .copy = state->master ? weights : NULL,
                             .sums = update->tensors->sums};
    LambAttributes attributes = {.elements = optimizer_elements(update->parameters->table, first, n, graph),
                                 .spans = spans_of(update, graph, first, n),
                                 .beta1 = 1.0f,
                                 .beta2 = 1.0f,
                                 .epsilon = (float)options->epsilon,
                                 .weight_decay = (float)update->options->weight_decay};
    op_lamb(graph, &tensors, &attributes);
}

void compressed_lamb_fill(LambUpdate *update, Graph *graph, CompressedMomentum *momentum) {
    int n_tensors = update->lamb->numbers.n_tensors;
    update->ratios = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n_tensors), "ratios of tensors");
    op_zero(graph, update->ratios);
    momentum->beta1 = (float)update->options->lamb.beta1;
    momentum->beta2 = (float)update->options->lamb.beta2;
    momentum->record_update = record_update;
    momentum->record_learning = record_learning;
    momentum->record_decision = record_decision;
    momentum->context = update;
}
