/* The update is AdamW's with both β 1: moments stay what they are, and the weights follow them. */
#include "optim/compressed.h"

#include "ops/ops.h"
#include "ops/update/adamw.h"
#include "optim/optimizer_inside.h"

typedef struct {
    const OptimizerOptions *options;
    const OptimizerTensors *tensors;
    const ParameterTensors *parameters;
} FrozenUpdate;

static void record_update(void *context, Graph *graph, int64_t first, int64_t n, const AdamState *state) {
    const FrozenUpdate *update = context;
    const OptimizerOptions *options = update->options;
    Tensor *weights = graph_view(graph, update->parameters->flat, SHAPE(n), first, "parameters");
    UpdateTensors tensors = {.gradient = state->momentum,
                             .hyper = update->tensors->hyper,
                             .factor = update->tensors->factor,
                             .parameter = state->master ? state->master : weights,
                             .moment = {state->momentum, state->variance},
                             .copy = state->master ? weights : NULL};
    AdamwAttributes attributes = {.elements = optimizer_elements(update->parameters->table, first, n, graph),
                                  .beta1 = 1.0f,
                                  .beta2 = 1.0f,
                                  .epsilon = (float)options->adamw.epsilon,
                                  .weight_decay = (float)options->weight_decay};
    op_adamw(graph, &tensors, &attributes);
}

static void record_norm(const FrozenUpdate *update, CompressedSync *compressed, Tensor *loss_scale,
                        Graph *graph) {
    const OptimizerTensors *tensors = update->tensors;
    const ParameterTable *table = update->parameters->table;
    UpdateSlice all = {update->parameters->flat->gradient, update->parameters->flat,
                       .n = table->n_flat_elements};
    UpdateSlices slices = {.n_slices = 1, .slice = &all, .n_local = table->n_flat_elements};
    Tensor *total = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "squared norm of all ranks");
    optimizer_squares(table, &slices, total, graph);
    gradient_sync_scalar(compressed->sync, graph, total);
    op_clip_scaled(graph, total, loss_scale, tensors->factor, tensors->norm, (float)update->options->clip);
}

void optimizer_record_compressed(const OptimizerOptions *options, const OptimizerTensors *tensors,
                                 const ParameterTensors *parameters, CompressedSync *compressed,
                                 Tensor *loss_scale, Graph *graph) {
    FrozenUpdate update = {options, tensors, parameters};
    if (tensors->factor) record_norm(&update, compressed, loss_scale, graph);
    CompressedMomentum momentum = {
        .gradient = parameters->flat->gradient,
        .factor = tensors->factor,
        .state = {tensors->moment[0], tensors->moment[1], tensors->master},
        .beta1 = (float)options->adamw.beta1,
        .beta2 = (float)options->adamw.beta2,
        .record_update = record_update,
        .context = &update,
    };
    compressed_sync_momentum(compressed, graph, &momentum);
}
