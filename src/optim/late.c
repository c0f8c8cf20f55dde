#include "optim/late.h"

#include "ops/ops.h"

/* The slices with what was kept for a gradient. */
static UpdateSlices late_slices(const Updates *updates) {
    const UpdateSlices *slices = updates->slices;
    Graph *graph = updates->graph;
    UpdateSlices late = *slices;
    UpdateSlice *slice = ARENA_ARRAY(&graph->arena, UpdateSlice, slices->n_slices + 1);
    DType dtype = slices->n_slices ? slices->slice[0].gradient->dtype : DTYPE_F32;
    updates->tensors->late =
        graph_tensor(graph, PLACE_OPTIMIZER, dtype, SHAPE(slices->n_local), "late gradient");
    for (int i = 0; i < slices->n_slices; i++) {
        slice[i] = slices->slice[i];
        slice[i].gradient = graph_view(graph, updates->tensors->late, SHAPE(slice[i].n), slice[i].local_first,
                                       "late gradient");
    }
    late.slice = slice;
    return late;
}

static Tensor *scalar(Graph *graph, const char *name) {
    return graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "%s", name);
}

void late_record(const Updates *updates, Tensor *total) {
    Graph *graph = updates->graph;
    OptimizerTensors *tensors = updates->tensors;
    const UpdateSlices *slices = updates->slices;
    UpdateSlices late = late_slices(updates);
    Updates other = *updates;
    other.slices = &late;
    if (total) tensors->late_factor = scalar(graph, "late factor");

    graph->regimes = REGIME_LATE;
    updates_record_all(&other, tensors->late_factor);
    if (slices->record_end) slices->record_end(slices->context, graph);

    graph->regimes = 0;
    if (total && slices->record_sum) slices->record_sum(slices->context, graph, total);
    if (total)
        op_clip_scaled(graph, total, updates->loss_scale, tensors->factor, tensors->norm,
                       (float)updates->options->clip);
    for (int i = 0; i < slices->n_slices; i++)
        op_copy_into(graph, slices->slice[i].gradient, late.slice[i].gradient, WRITE_FRESH);
    if (total) op_copy_into(graph, tensors->factor, tensors->late_factor, WRITE_FRESH);

    graph->section = SECTION_REDO;
    updates_record_all(&other, tensors->late_factor);
}
