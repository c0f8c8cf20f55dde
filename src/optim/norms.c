/* Sums over all elements of the model, of which several ranks may hold the same: each is counted by one. */
#include "optim/optimizer_inside.h"

#include "ops/ops.h"

/* Elements first .. end - 1 of the flat array. */
typedef struct {
    int64_t first, end;
} FlatRun;

/* What this rank holds and another one counts, in order; *n of them. */
static const FlatRun *foreign_runs(const ParameterTable *table, bool only_experts_count, Graph *graph,
                                   int *n) {
    FlatRun *runs = ARENA_ARRAY(&graph->arena, FlatRun, table->n_parameters * SHARD_MAX_BOXES + 1);
    *n = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        const ParameterShard *shard = &table->parameter[i].shard;
        int64_t at = table->parameter[i].flat_offset;
        for (int k = 0; k < shard->n_boxes; k++) {
            int64_t end = at + shape_count(shard->box[k].box.shape);
            bool is_counted = !only_experts_count || table->parameter[i].group == FLAT_EXPERTS;
            if (!shard->box[k].is_owner || !is_counted) runs[(*n)++] = (FlatRun){at, end};
            at = end;
        }
    }
    return runs;
}

/* Adds numbers up into `total`, or their squares. */
typedef struct {
    Tensor *total;
    bool squares, adds;
} AddingUp;

static void record_addition(const UpdateSlice *slice, FlatRun run, AddingUp *sum, Graph *graph) {
    if (run.first >= run.end) return;
    Tensor *gradient = slice->gradient;
    if (run.end - run.first < slice->n)
        gradient = graph_view(graph, gradient, SHAPE(run.end - run.first), run.first - slice->flat_first,
                              gradient->name);
    if (sum->squares) op_squared_norm(graph, gradient, sum->total, sum->adds);
    else {
        SumAttributes attributes = {1.0f};
        Node *node = graph_record(graph, &OP_SUM, &attributes, sizeof attributes, 1, TENSORS(gradient), 1,
                                  TENSORS(sum->total));
        if (node && sum->adds) node->write[0] = WRITE_ADD;
    }
    sum->adds = true;
}

/* Of what several ranks hold its owner counts it. */
static void add_up(const ParameterTable *table, const UpdateSlices *slices, AddingUp sum, Graph *graph) {
    int n_foreign;
    const FlatRun *foreign = foreign_runs(table, slices->only_experts_count, graph, &n_foreign);
    for (int i = 0; i < slices->n_slices; i++) {
        const UpdateSlice *slice = &slices->slice[i];
        int64_t from = slice->flat_first, end = from + slice->n;
        for (int k = 0; k < n_foreign; k++) {
            int64_t until = foreign[k].first < end ? foreign[k].first : end;
            record_addition(slice, (FlatRun){from, until}, &sum, graph);
            if (from < foreign[k].end) from = foreign[k].end;
        }
        record_addition(slice, (FlatRun){from, end}, &sum, graph);
    }
    if (!sum.adds) op_zero(graph, sum.total); /* more processes than there is to share */
}

void optimizer_squares(const ParameterTable *table, const UpdateSlices *slices, Tensor *total, Graph *graph) {
    add_up(table, slices, (AddingUp){.total = total, .squares = true}, graph);
}

void optimizer_sum(const ParameterTable *table, const UpdateSlices *slices, Tensor *total, Graph *graph) {
    add_up(table, slices, (AddingUp){.total = total}, graph);
}
