/* Numbers that are rounded stochastically are drawn for by their place in the whole model, so that ranks
 * which hold the same weights keep them the same. What a rank holds of a parameter lies there as it does
 * here, but for key/value heads that ranks of tp share: each has queries of its own in front of them, and
 * they may be more or fewer. So boxes of such a parameter are updated one by one. In 8 bits that takes boxes
 * of whole records; others lie alike on all that share them, or are refused before. */
#include "optim/updates.h"

#include "base/block8.h"
#include "ops/update/update.h"

static bool is_by_box(const Updates *updates, const Parameter *parameter) {
    const OptimizerTensors *tensors = updates->tensors;
    bool is_packed = tensors->n_moments > 0 && update_is_packed(tensors->moment[0]);
    return parameter->rule == SHARD_QKV_ROWS && parameter_has_shared_boxes(parameter) &&
           (!is_packed || parameter->head_elements % BLOCK8_RECORD == 0);
}

/* Where in the whole tensor a box of rows begins. */
static int64_t box_begin(const Parameter *parameter, const Box *box) {
    return box->offset[0] * (shape_count(parameter->whole) / parameter->whole.dim[0]);
}

static void record_run(const Updates *updates, UpdatePass pass, Tensor *factor, const UpdateSlice *slice,
                       int64_t first, int64_t end, int64_t first_draw, Tensor *array) {
    Graph *graph = updates->graph;
    int64_t skip = first - slice->flat_first, n = end - first;
    UpdateSlice part = {.gradient = graph_view(graph, slice->gradient, SHAPE(n), skip, slice->gradient->name),
                        .parameter =
                            graph_view(graph, slice->parameter, SHAPE(n), skip, slice->parameter->name),
                        .flat_first = first,
                        .n = n,
                        .local_first = slice->local_first + skip};
    updates_record_slice(updates, pass, factor, &part, first_draw, array);
}

static Tensor *part_of(Graph *graph, Tensor *array, int64_t first, int64_t n) {
    return array ? graph_view(graph, array, SHAPE(n), first, array->name) : NULL;
}

void updates_record_elements(const Updates *updates, UpdatePass pass, Tensor *factor,
                             const UpdateSlice *slice, const Parameter *parameter, int64_t first, int64_t end,
                             Tensor *array) {
    Graph *graph = updates->graph;
    int64_t at = parameter->flat_offset;
    if (!is_by_box(updates, parameter)) {
        record_run(updates, pass, factor, slice, first, end, parameter->whole_offset + first - at,
                   part_of(graph, array, first - at, end - first));
        return;
    }
    for (int i = 0; i < parameter->shard.n_boxes; i++) {
        const Box *box = &parameter->shard.box[i].box;
        bool is_last = i + 1 == parameter->shard.n_boxes; /* padding goes with it */
        int64_t next = at + shape_count(box->shape);
        int64_t from = first > at ? first : at, to = is_last || end < next ? end : next;
        int64_t draw = parameter->whole_offset + box_begin(parameter, box) + from - at;
        if (from < to)
            record_run(updates, pass, factor, slice, from, to, draw,
                       part_of(graph, array, from - parameter->flat_offset, to - from));
        at = next;
    }
}
