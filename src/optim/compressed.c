/* The update is AdamW's with both β 1: moments stay what they are, and the weights follow them. */
#include "optim/compressed.h"

#include "ops/ops.h"
#include "ops/update/adamw.h"
#include "optim/optimizer_inside.h"
#include "parallel/comm_ops.h"

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

static void record_local(void *context, Graph *graph, int64_t first, const LocalTensors *tensors,
                         const LocalAttributes *attributes, bool joins) {
    const FrozenUpdate *update = context;
    LocalAttributes all = *attributes;
    all.elements = optimizer_elements(update->parameters->table, first, tensor_count(tensors->buffer), graph);
    all.epsilon = (float)update->options->adamw.epsilon;
    if (joins) op_local_join(graph, tensors, &all);
    else op_local_step(graph, tensors, &all);
}

/* By the gradients of all ranks: their norm, and what they are to be multiplied by. */
static void record_norm(const ParameterTensors *parameters, CompressedSync *compressed, Tensor *loss_scale,
                        float clip, Tensor *factor, Tensor *norm, Graph *graph) {
    const ParameterTable *table = parameters->table;
    int n_units = compressed->inside ? compressed->sync->partition.n_units : 0;
    UpdateSlice *slice = ARENA_ARRAY(&graph->arena, UpdateSlice, n_units + 1);
    UpdateSlices slices = {.slice = slice, .n_local = table->n_flat_elements};
    UpdateSlice all = {parameters->flat->gradient, parameters->flat, .n = table->n_flat_elements};
    if (!compressed->inside) slice[slices.n_slices++] = all;
    for (int i = 0; i < n_units; i++) {
        int64_t first, n = compressed_sync_counted(compressed, i, &first);
        if (!n) continue;
        slice[slices.n_slices++] = (UpdateSlice){
            graph_view(graph, parameters->flat->gradient, SHAPE(n), first, "gradients"),
            graph_view(graph, parameters->flat, SHAPE(n), first, "parameters"), first, n, first};
    }
    Tensor *total = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "squared norm of all ranks");
    optimizer_squares(table, &slices, total, graph);
    gradient_sync_scalar(compressed->sync, graph, total);
    op_clip_scaled(graph, total, loss_scale, factor, norm, clip);
}

Tensor *optimizer_record_unscale(const ParameterTensors *parameters, CompressedSync *compressed,
                                 Tensor *loss_scale, Graph *graph) {
    Tensor *factor = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "scale taken away");
    Tensor *norm = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "norm of all ranks");
    record_norm(parameters, compressed, loss_scale, 0.0f, factor, norm, graph);
    return factor;
}

void optimizer_record_compressed(const OptimizerOptions *options, const OptimizerTensors *tensors,
                                 const ParameterTensors *parameters, CompressedSync *compressed,
                                 const CompressedLamb *lamb, Tensor *loss_scale, Graph *graph) {
    FrozenUpdate update = {options, tensors, parameters};
    compressed_sync_inside(compressed, graph, parameters->flat->gradient);
    if (tensors->factor)
        record_norm(parameters, compressed, loss_scale, (float)options->clip, tensors->factor, tensors->norm,
                    graph);
    CompressedMomentum momentum = {
        .gradient = parameters->flat->gradient,
        .factor = tensors->factor,
        .state = {tensors->moment[0], tensors->moment[1], tensors->master},
        .beta1 = (float)options->adamw.beta1,
        .beta2 = (float)options->adamw.beta2,
        .record_update = record_update,
        .weights = parameters->flat,
        .record_local = record_local,
        .context = &update,
    };
    if (compressed->local.buffer) {
        compressed_sync_local(compressed, graph, &momentum);
        return;
    }
    LambUpdate by_tensors = {.lamb = lamb,
                             .options = options,
                             .tensors = tensors,
                             .parameters = parameters,
                             .compressed = compressed};
    if (lamb->fresh) compressed_lamb_fill(&by_tensors, graph, &momentum);
    compressed_sync_momentum(compressed, graph, &momentum);
}

Tensor *optimizer_record_variance_norm(const OptimizerTensors *tensors, const ParameterTable *table,
                                       const CompressedSync *compressed, Graph *graph) {
    const Partition *partition = &compressed->sync->partition;
    const Mesh *mesh = compressed->sync->options->mesh;
    bool is_sliced = compressed_sync_is_sliced(compressed);
    UpdateSlice *slice = ARENA_ARRAY(&graph->arena, UpdateSlice, partition->n_units + 1);
    UpdateSlices slices = {.slice = slice};
    Tensor *variance = tensors->moment[1];
    if (!is_sliced)
        slice[slices.n_slices++] = (UpdateSlice){.gradient = variance, .n = tensor_count(variance)};
    for (int i = 0; i < partition->n_units && is_sliced; i++) {
        const PartitionUnit *unit = &partition->unit[i];
        int64_t n = partition_slice_count(partition, i);
        if (!n) continue;
        slice[slices.n_slices++] = (UpdateSlice){
            .gradient = graph_view(graph, variance, SHAPE(n), unit->local_first, variance->name),
            .flat_first = unit->first + partition_slice_first(partition, i),
            .n = n};
    }
    Tensor *norm = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "norm of the variance");
    optimizer_sum(table, &slices, norm, graph);
    if (is_sliced) op_scalar_sum(graph, compressed->comm, norm);
    if (mesh->shape.size[AXIS_TP] > 1) op_scalar_sum(graph, mesh_comm(mesh, AXIS_TP), norm);
    if (mesh->shape.size[AXIS_PP] > 1) op_scalar_sum(graph, mesh_comm(mesh, AXIS_PP), norm);
    return norm;
}
