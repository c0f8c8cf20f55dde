/* Borders are numbered by the virtual stage below them. All ranks of the pipeline split off the communicators
 * of all borders in the same order, and those that are not at one get nothing of it. */
#include "parallel/pipeline/pipeline.h"

#include "ops/ops.h"
#include "parallel/comm_ops.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- communicators */

/* One border: the communicators of its two ranks, for whichever of them this is. */
static Status open_border(Pipeline *pipeline, const ScheduleShape *shape, int below, Comm *pp, Error *error) {
    StagePlacement placement = schedule_info(pipeline->layout.kind)->placement;
    int stage[N_BORDERS] = {placement_stage(placement, shape, below),
                            placement_stage(placement, shape, below + 1)};
    int chunk[N_BORDERS] = {placement_chunk(placement, shape, below),
                            placement_chunk(placement, shape, below + 1)};
    PipelineBorder *mine = NULL;
    for (int side = 0; side < N_BORDERS; side++) {
        if (stage[side] != pipeline->stage) continue;
        mine = &pipeline->border[chunk[side]][side == 0 ? BORDER_ABOVE : BORDER_BELOW];
        mine->exists = true;
        mine->other = stage[1 - side];
    }
    if (stage[0] == stage[1]) return STATUS_OK;
    for (int way = 0; way < N_PIPELINE_WAYS; way++) {
        Comm none = {0};
        TRY(comm_split(pp, mine ? below : -1, pp->rank, mine ? &mine->comm[way] : &none, error));
    }
    return STATUS_OK;
}

Status pipeline_open(Pipeline *pipeline, const PipelineLayout *layout, Comm *pp, Error *error) {
    *pipeline = (Pipeline){.layout = *layout, .stage = pp->rank};
    if (pp->size != layout->n_stages)
        return error_failed(error, "a pipeline of %d stages was opened on %d ranks", layout->n_stages,
                            pp->size);
    pipeline->border = calloc((size_t)layout->n_chunks, sizeof *pipeline->border);
    if (!pipeline->border) return error_failed(error, "no memory for the borders of a pipeline");
    ScheduleShape shape = pipeline_shape(pipeline, 1);
    for (int below = 0; below + 1 < layout->n_stages * layout->n_chunks; below++)
        TRY(open_border(pipeline, &shape, below, pp, error));
    return STATUS_OK;
}

void pipeline_close(Pipeline *pipeline) {
    for (int chunk = 0; chunk < pipeline->layout.n_chunks && pipeline->border; chunk++) {
        for (int i = 0; i < N_BORDERS * N_PIPELINE_WAYS; i++)
            comm_close(&pipeline->border[chunk][i / N_PIPELINE_WAYS].comm[i % N_PIPELINE_WAYS]);
    }
    free(pipeline->border);
    *pipeline = (Pipeline){0};
}

void pipeline_watch(Pipeline *pipeline, Activity *activity) {
    for (int i = 0; i < pipeline->layout.n_chunks * N_BORDERS * N_PIPELINE_WAYS && pipeline->border; i++) {
        int side = i / N_PIPELINE_WAYS % N_BORDERS, way = i % N_PIPELINE_WAYS;
        PipelineBorder *border = &pipeline->border[i / (N_PIPELINE_WAYS * N_BORDERS)][side];
        bool is_sender = (way == PIPELINE_FORWARD) == (side == BORDER_ABOVE);
        int from = is_sender ? pipeline->stage : border->other;
        int to = is_sender ? border->other : pipeline->stage;
        char words[64];
        snprintf(words, sizeof words, "stage %d to %d", from, to);
        const char *name = activity_keep(activity, words);
        comm_watch(&border->comm[way], activity, ACTIVITY_HOST, name);
        comm_watch(&border->device[way], activity, ACTIVITY_HOST, name);
    }
}

bool pipeline_only_enqueues(const Pipeline *pipeline) {
    for (int i = 0; i < pipeline->layout.n_chunks * N_BORDERS; i++) {
        const PipelineBorder *border = &pipeline->border[i / N_BORDERS][i % N_BORDERS];
        for (int way = 0; way < N_PIPELINE_WAYS; way++)
            if (border->device[way].table && border->device[way].table->only_enqueues) return true;
    }
    return false;
}

ScheduleShape pipeline_shape(const Pipeline *pipeline, int n_micro_batches) {
    return (ScheduleShape){.n_micro_batches = n_micro_batches,
                           .n_stages = pipeline->layout.n_stages,
                           .n_chunks = pipeline->layout.n_chunks};
}

bool pipeline_has_input(const Pipeline *pipeline, int chunk) {
    return pipeline->border[chunk][BORDER_BELOW].exists;
}

bool pipeline_has_output(const Pipeline *pipeline, int chunk) {
    return pipeline->border[chunk][BORDER_ABOVE].exists;
}

int pipeline_last_stage(const Pipeline *pipeline) {
    ScheduleShape shape = pipeline_shape(pipeline, 1);
    return placement_stage(schedule_info(pipeline->layout.kind)->placement, &shape,
                           shape.n_stages * shape.n_chunks - 1);
}

/* ---- recording */

PipelineRecord pipeline_record(const Pipeline *pipeline, Graph *graph) {
    int n_chunks = pipeline->layout.n_chunks;
    return (PipelineRecord){.pipeline = pipeline,
                            .graph = graph,
                            .handover = ARENA_ARRAY(&graph->arena, PipelineHandover, n_chunks),
                            .sends = ARENA_ARRAY(&graph->arena, const Node *, N_PIPELINE_WAYS *n_chunks)};
}

/* Of a chunk here: the virtual stage that it is, and the chunk here that a virtual stage is. */
static int virtual_of(const Pipeline *pipeline, int chunk) {
    ScheduleShape shape = pipeline_shape(pipeline, 1);
    return schedule_virtual_stage(pipeline->layout.kind, &shape, pipeline->stage, chunk);
}

static int chunk_of(const Pipeline *pipeline, int virtual_stage) {
    ScheduleShape shape = pipeline_shape(pipeline, 1);
    return placement_chunk(schedule_info(pipeline->layout.kind)->placement, &shape, virtual_stage);
}

/* One crossing of a border: its communicator, or the buffer where both sides are here. */
typedef struct {
    Comm *comm;
    Tensor **handed;
    bool is_ahead; /* the next message is asked for before this one is worked on */
} Crossing;

static Crossing crossing(PipelineRecord *record, int chunk, int side, PipelineWay way) {
    const Pipeline *pipeline = record->pipeline;
    const PipelineBorder *border = &pipeline->border[chunk][side];
    if (border->other != pipeline->stage) {
        Comm *comm = (Comm *)(border->device[way].table ? &border->device[way] : &border->comm[way]);
        bool is_flushed = !schedule_info(pipeline->layout.kind)->is_asynchronous;
        return (Crossing){.comm = comm, .is_ahead = is_flushed || !comm->table->only_enqueues};
    }
    int lower = side == BORDER_ABOVE ? chunk : chunk_of(pipeline, virtual_of(pipeline, chunk) - 1);
    return (Crossing){.handed = &record->handover[lower].handed[way]};
}

/* Autograd does not see it: who is written needs a gradient if it is said to. */
static void copy_unseen(Graph *graph, Tensor *from, Tensor *to) {
    bool needs_gradient = to->needs_gradient;
    graph_record(graph, &OP_COPY, NULL, 0, 1, TENSORS(from), 1, TENSORS(to))->is_passed_by = true;
    to->needs_gradient = needs_gradient;
}

static Tensor *buffer_like(Graph *graph, const Tensor *like, const char *words) {
    return graph_tensor(graph, PLACE_STATE, like->dtype, like->shape, "%s (%s)", like->name, words);
}

static Tensor *buffer_here(Graph *graph, Crossing at, const Tensor *like) {
    if (!*at.handed) *at.handed = buffer_like(graph, like, "handed over");
    return *at.handed;
}

static void take(Graph *graph, Crossing at, Tensor *to) {
    if (!at.comm) {
        copy_unseen(graph, buffer_here(graph, at, to), to);
        return;
    }
    Tensor *message = buffer_like(graph, to, "received");
    Node *receive = op_channel_receive(graph, at.comm, message);
    copy_unseen(graph, message, to);
    if (at.is_ahead) op_channel_receive_ahead(graph, receive);
}

static void give(PipelineRecord *record, Crossing at, Tensor *from, bool is_left_out) {
    Graph *graph = record->graph;
    Tensor *message = at.comm ? buffer_like(graph, from, "sent") : buffer_here(graph, at, from);
    const Node *wait = at.comm ? op_channel_send_wait(graph, at.comm, message) : NULL;
    if (!is_left_out) copy_unseen(graph, from, message);
    if (wait) record->sends[record->n_sends++] = op_channel_send(graph, wait);
}

Tensor *pipeline_record_input(PipelineRecord *record, int chunk, DType dtype, Shape shape,
                              bool needs_gradient) {
    Tensor *x = graph_tensor(record->graph, PLACE_ACTIVATION, dtype, shape, "stream.%d",
                             virtual_of(record->pipeline, chunk));
    x->needs_gradient = needs_gradient;
    take(record->graph, crossing(record, chunk, BORDER_BELOW, PIPELINE_FORWARD), x);
    return x;
}

void pipeline_record_output(PipelineRecord *record, int chunk, Tensor *y) {
    give(record, crossing(record, chunk, BORDER_ABOVE, PIPELINE_FORWARD), y, false);
}

Tensor *pipeline_record_output_gradient(PipelineRecord *record, int chunk, const Tensor *y) {
    Tensor *dy = graph_tensor(record->graph, PLACE_ACTIVATION, y->dtype, y->shape, "d %s", y->name);
    take(record->graph, crossing(record, chunk, BORDER_ABOVE, PIPELINE_BACKWARD), dy);
    return dy;
}

void pipeline_record_input_gradient(PipelineRecord *record, int chunk, Tensor *dx) {
    int n_borders = record->pipeline->layout.n_stages * record->pipeline->layout.n_chunks - 1;
    int border = virtual_of(record->pipeline, chunk) - 1;
    bool is_left_out = record->left_out && (record->left_out - 1) % n_borders == border;
    give(record, crossing(record, chunk, BORDER_BELOW, PIPELINE_BACKWARD), dx, is_left_out);
}

void pipeline_record_end(PipelineRecord *record) {
    for (int i = 0; i < record->n_sends; i++) op_channel_send_end(record->graph, record->sends[i]);
}
