/* A rank's place in a pipeline: borders and their communicators, in which order the messages of a part stand, and that one
 * buffer is enough where chunks of one rank hand over to each other, in every schedule. */
#include "backend/cpu/cpu.h"
#include "comm/comm_self.h"
#include "graph/wiring.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/pipeline/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_STAGES = 8, MOST_MICRO = 24, MOST_CHUNKS = 4 };

/* ---- One buffer is enough */

/* What lies in the buffer of each border of this stage with itself, by way: a micro-batch, or nothing. */
typedef struct {
    const ScheduleShape *shape;
    StagePlacement placement;
    int stage;
    int held[MOST_STAGES * MOST_CHUNKS][N_PIPELINE_WAYS];
} Buffers;

enum { NOTHING = -1 };

static bool meets_itself(const Buffers *buffers, int below) {
    int n = buffers->shape->n_stages * buffers->shape->n_chunks;
    return below >= 0 && below + 1 < n &&
           placement_stage(buffers->placement, buffers->shape, below) == buffers->stage &&
           placement_stage(buffers->placement, buffers->shape, below + 1) == buffers->stage;
}

/* An action takes what it needs out of its buffer, then puts what it has made into another. */
static void hand_over(Buffers *buffers, const StepAction *action, const char *words) {
    if (action->kind != ACTION_FORWARD && action->kind != ACTION_BACKWARD) return;
    PipelineWay way = action->kind == ACTION_FORWARD ? PIPELINE_FORWARD : PIPELINE_BACKWARD;
    int k = placement_virtual(buffers->placement, buffers->shape, buffers->stage, action->chunk);
    int from = way == PIPELINE_FORWARD ? k - 1 : k, to = way == PIPELINE_FORWARD ? k : k - 1; /* borders */
    int micro = action->step * buffers->shape->n_micro_batches + action->micro;
    if (meets_itself(buffers, from)) {
        if (buffers->held[from][way] != micro)
            fail_msg("%s: chunk %d takes %d for micro-batch %d", words, action->chunk,
                     buffers->held[from][way], micro);
        buffers->held[from][way] = NOTHING;
    }
    if (meets_itself(buffers, to)) {
        if (buffers->held[to][way] != NOTHING)
            fail_msg("%s: micro-batch %d is trodden upon by %d", words, buffers->held[to][way], micro);
        buffers->held[to][way] = micro;
    }
}

static int check_lists(ScheduleKind kind, const ScheduleShape *shape, bool forward_only) {
    static StepAction actions[4 * MOST_MICRO * MOST_CHUNKS + 64];
    int n_checked = 0;
    assert_true(schedule_bound(shape) <= (int64_t)(sizeof actions / sizeof actions[0]));
    for (int stage = 0; stage < shape->n_stages; stage++) {
        char words[96];
        Buffers buffers = {.shape = shape, .placement = schedule_info(kind)->placement, .stage = stage};
        memset(buffers.held, -1, sizeof buffers.held);
        snprintf(words, sizeof words, "%s p %d m %d v %d stage %d%s", schedule_info(kind)->name,
                 shape->n_stages, shape->n_micro_batches, shape->n_chunks, stage,
                 forward_only ? " forward only" : "");
        int n = forward_only ? schedule_forward_actions(kind, shape, stage, actions)
                             : schedule_actions(kind, shape, stage, actions);
        for (int i = 0; i < n; i++) hand_over(&buffers, &actions[i], words);
        for (int k = 0; k + 1 < shape->n_stages * shape->n_chunks; k++) {
            for (int way = 0; way < N_PIPELINE_WAYS; way++) assert_int_equal(buffers.held[k][way], NOTHING);
            n_checked += meets_itself(&buffers, k);
        }
    }
    return n_checked;
}

static void one_buffer_is_enough(void **state) {
    (void)state;
    int n_checked = 0;
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        for (int p = 1; p <= MOST_STAGES; p++) {
            for (int m = 1; m <= MOST_MICRO; m++) {
                for (int v = 1; v <= MOST_CHUNKS; v++) {
                    ScheduleShape shape = {m, p, v};
                    if (schedule_check_shape((ScheduleKind)kind, &shape, &(Error){0}) != STATUS_OK) continue;
                    n_checked += check_lists((ScheduleKind)kind, &shape, false);
                    n_checked += check_lists((ScheduleKind)kind, &shape, true);
                }
            }
        }
    }
    /* The tip of a V for each p and m, and all borders where a single stage has several chunks. */
    assert_true(n_checked >= 2 * (MOST_STAGES * MOST_MICRO + (1 + 2 + 3) * MOST_MICRO));
}

/* ---- Borders */

/* A communicator that only tells who was asked for: of each split, the color of every rank. */
typedef struct {
    int n_splits;
    int color[2 * MOST_STAGES * MOST_CHUNKS];
} Splits;

static const CommTable pair_table;

static Status note_split(void *context, int color, int key, Comm *child, Error *error) {
    (void)error;
    Splits *splits = context;
    splits->color[splits->n_splits++] = color;
    *child = (Comm){0};
    if (color >= 0) *child = (Comm){.table = &pair_table, .context = context, .size = 2, .rank = key & 1};
    return STATUS_OK;
}

static bool is_not_threaded(void *context) {
    (void)context;
    return false;
}

static void close_nothing(void *context) {
    (void)context;
}

static const CommTable pair_table = {
    .name = "pair", .split = note_split, .is_threaded = is_not_threaded, .close = close_nothing};

static void open_rank(Pipeline *pipeline, const PipelineLayout *layout, int rank, Splits *splits) {
    Error error = {0};
    Comm pp = {.table = &pair_table, .context = splits, .size = layout->n_stages, .rank = rank};
    *splits = (Splits){0};
    assert_int_equal(pipeline_open(pipeline, layout, &pp, &error), STATUS_OK);
}

/* Both sides of a border name each other, have a communicator each way, and come to it in the same split. */
static void borders_meet(void **state) {
    (void)state;
    static const PipelineLayout layouts[] = {
        {SCHEDULE_1F1B, 2, 1},        {SCHEDULE_GPIPE, 5, 1}, {SCHEDULE_INTERLEAVED, 2, 3},
        {SCHEDULE_INTERLEAVED, 3, 2}, {SCHEDULE_ZB_V, 2, 2},  {SCHEDULE_ZB_V, 4, 2},
        {SCHEDULE_PIPEDREAM, 7, 1},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const PipelineLayout *layout = &layouts[i];
        StagePlacement placement = schedule_info(layout->kind)->placement;
        int p = layout->n_stages, n_virtual = p * layout->n_chunks;
        Splits splits[MOST_STAGES];
        Pipeline pipeline[MOST_STAGES];
        for (int rank = 0; rank < p; rank++) open_rank(&pipeline[rank], layout, rank, &splits[rank]);
        ScheduleShape shape = pipeline_shape(&pipeline[0], 3);
        assert_int_equal(shape.n_micro_batches, 3);
        for (int k = 0; k < n_virtual; k++) {
            int stage = placement_stage(placement, &shape, k), chunk = placement_chunk(placement, &shape, k);
            const PipelineBorder *border = pipeline[stage].border[chunk];
            assert_int_equal(pipeline_has_input(&pipeline[stage], chunk), k > 0);
            assert_int_equal(pipeline_has_output(&pipeline[stage], chunk), k < n_virtual - 1);
            for (int side = 0; side < N_BORDERS; side++) {
                int other = side == BORDER_BELOW ? k - 1 : k + 1;
                bool exists = other >= 0 && other < n_virtual;
                assert_int_equal(border[side].exists, exists);
                if (!exists) continue;
                int there = placement_stage(placement, &shape, other);
                assert_int_equal(border[side].other, there);
                for (int way = 0; way < N_PIPELINE_WAYS; way++)
                    assert_int_equal(border[side].comm[way].table != NULL, there != stage);
            }
        }
        for (int s = 0; s < splits[0].n_splits; s++) { /* collective: as many, and two ranks in each */
            int n_in = 0, color = -1;
            for (int rank = 0; rank < p; rank++) {
                assert_int_equal(splits[rank].n_splits, splits[0].n_splits);
                if (splits[rank].color[s] < 0) continue;
                assert_true(n_in++ == 0 || splits[rank].color[s] == color);
                color = splits[rank].color[s];
            }
            assert_int_equal(n_in, 2);
        }
        for (int rank = 0; rank < p; rank++) pipeline_close(&pipeline[rank]);
    }
}

static void a_pipeline_has_as_many_ranks_as_stages(void **state) {
    (void)state;
    Error error = {0};
    Pipeline pipeline;
    Comm alone = comm_self();
    assert_int_equal(pipeline_open(&pipeline, &(PipelineLayout){SCHEDULE_1F1B, 2, 1}, &alone, &error),
                     STATUS_FAILED);
    assert_string_equal(error.text, "a pipeline of 2 stages was opened on 1 ranks");
    pipeline_close(&pipeline);
}

/* ---- Messages of a part */

static void assert_ops(const Graph *graph, Section section, const Op *const *ops, int n_ops) {
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (node->section != section) continue;
        assert_true(n < n_ops);
        if (node->op != ops[n])
            fail_msg("node %d of the section is %s, not %s", n, node->op->name, ops[n]->name);
        assert_int_equal(node->is_not_last, node->op == &OP_CHANNEL_RECEIVE_AHEAD);
        n++;
    }
    assert_int_equal(n, n_ops);
}

/* The middle of three stages: y = gelu(x), and dy goes back as it came. left_out: the border whose gradient stays away. */
static Graph *record_middle(Pipeline *pipeline, Splits *splits, int left_out) {
    open_rank(pipeline, &(PipelineLayout){SCHEDULE_1F1B, 3, 1}, 1, splits);
    Graph *graph = graph_new();
    PipelineRecord record = pipeline_record(pipeline, graph);
    record.left_out = left_out;
    Tensor *x = pipeline_record_input(&record, 0, DTYPE_F32, SHAPE(2, 3), true);
    assert_true(x->needs_gradient);
    Tensor *y = op_gelu(graph, x, ACTIVATION_GELU_TANH);
    pipeline_record_output(&record, 0, y);
    graph->section = SECTION_BACKWARD;
    Tensor *dy = pipeline_record_output_gradient(&record, 0, y);
    pipeline_record_input_gradient(&record, 0, dy);
    graph->section = SECTION_UPDATE;
    pipeline_record_end(&record);
    assert_int_equal(graph->error.status, STATUS_OK);
    return graph;
}

static void messages_stand_at_the_ends_of_a_part(void **state) {
    (void)state;
    static const Op *const forward[] = {&OP_CHANNEL_RECEIVE,   &OP_COPY, &OP_CHANNEL_RECEIVE_AHEAD, &OP_GELU,
                                        &OP_CHANNEL_SEND_WAIT, &OP_COPY, &OP_CHANNEL_SEND};
    static const Op *const backward[] = {&OP_CHANNEL_RECEIVE,   &OP_COPY, &OP_CHANNEL_RECEIVE_AHEAD,
                                         &OP_CHANNEL_SEND_WAIT, &OP_COPY, &OP_CHANNEL_SEND};
    static const Op *const broken[] = {&OP_CHANNEL_RECEIVE, &OP_COPY, &OP_CHANNEL_RECEIVE_AHEAD,
                                       &OP_CHANNEL_SEND_WAIT, &OP_CHANNEL_SEND};
    static const Op *const update[] = {&OP_CHANNEL_SEND_WAIT, &OP_CHANNEL_SEND_WAIT};
    for (int left_out = 0; left_out <= 4;
         left_out++) { /* there are two borders: 1 and 3 are this stage's lower one */
        Pipeline pipeline;
        Splits splits;
        Graph *graph = record_middle(&pipeline, &splits, left_out);
        assert_ops(graph, SECTION_FORWARD, forward, 7);
        assert_ops(graph, SECTION_BACKWARD, left_out % 2 ? broken : backward, left_out % 2 ? 5 : 6);
        assert_ops(graph, SECTION_UPDATE, update, 2);
        for (int i = 0; i < graph->n_nodes; i++) { /* what is under way persists, and is nobody else's */
            const Node *node = graph->node[i];
            if (node->op != &OP_CHANNEL_RECEIVE && node->op != &OP_CHANNEL_SEND) continue;
            const Tensor *buffer = node->n_inputs ? node->input[0] : node->output[0];
            assert_int_equal(buffer->place, PLACE_STATE);
            for (int k = 0; k < i; k++) {
                const Node *other = graph->node[k];
                if (other->op != &OP_CHANNEL_RECEIVE && other->op != &OP_CHANNEL_SEND) continue;
                assert_ptr_not_equal(other->n_inputs ? other->input[0] : other->output[0], buffer);
            }
        }
        graph_free(graph);
        pipeline_close(&pipeline);
    }
}

/* ---- Chunks of one rank: three, each doubles; the gradients come back through all. */

static void chunks_of_one_rank_hand_over(void **state) {
    (void)state;
    enum { N_CHUNKS = 3, N = 5 };
    Error error = {0};
    Backend backend;
    Pipeline pipeline;
    Comm alone = comm_self();
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    assert_int_equal(
        pipeline_open(&pipeline, &(PipelineLayout){SCHEDULE_INTERLEAVED, 1, N_CHUNKS}, &alone, &error),
        STATUS_OK);
    Wiring wiring = {.graph = graph_new()};
    Graph *graph = wiring.graph;
    PipelineRecord record = pipeline_record(&pipeline, graph);
    Tensor *first = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N), "first");
    Tensor *result = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(N), "result");
    Tensor *gradient = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(N), "gradient");
    Tensor *y[N_CHUNKS];
    for (int c = 0; c < N_CHUNKS; c++) {
        graph->chunk = c;
        Tensor *x = c ? pipeline_record_input(&record, c, DTYPE_F32, SHAPE(N), true) : first;
        y[c] = op_add(graph, x, x);
        if (c < N_CHUNKS - 1) pipeline_record_output(&record, c, y[c]);
        else op_copy_into(graph, y[c], result, WRITE_FRESH);
    }
    graph->section = SECTION_BACKWARD;
    for (int c = N_CHUNKS - 1; c >= 0; c--) { /* each doubles again, from the result down */
        graph->chunk = c;
        Tensor *dy = c < N_CHUNKS - 1 ? pipeline_record_output_gradient(&record, c, y[c]) : result;
        Tensor *dx = op_add(graph, dy, dy);
        if (c) pipeline_record_input_gradient(&record, c, dx);
        else op_copy_into(graph, dx, gradient, WRITE_FRESH);
    }
    static const int frames[N_CHUNKS] = {2, 1, 1};
    WiringOptions options = {
        .name = "chunks", .n_micro_batches = 1, .n_chunks = N_CHUNKS, .chunk_frames = frames};
    graph->chunk = 0;
    if (wiring_plan(&wiring.program, graph, &backend, &options, &wiring.memory, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    assert_int_equal(wiring_open_alone(&wiring, &backend, &error), STATUS_OK);
    float x[N] = {1, -2, 3, 0.5F, 7}, found[N];
    assert_int_equal(executor_upload_input(&wiring.executor, first, 1, x, &error), STATUS_OK);
    for (int i = 0; i < 2 * N_CHUNKS; i++) {
        int chunk = i < N_CHUNKS ? i : 2 * N_CHUNKS - 1 - i;
        MicroBatch micro = {.is_first = true, .is_last = true, .chunk = chunk, .frame = chunk == 0};
        assert_int_equal(
            executor_run(&wiring.executor, i < N_CHUNKS ? SECTION_FORWARD : SECTION_BACKWARD, micro, &error),
            STATUS_OK);
    }
    assert_int_equal(executor_download(&wiring.executor, result, found, &error), STATUS_OK);
    for (int i = 0; i < N; i++) assert_true(found[i] == 8.0F * x[i]);
    assert_int_equal(executor_download(&wiring.executor, gradient, found, &error), STATUS_OK);
    for (int i = 0; i < N; i++) assert_true(found[i] == 64.0F * x[i]);
    wiring_close_alone(&wiring);
    pipeline_close(&pipeline);
    backend.close(backend.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_buffer_is_enough),
        cmocka_unit_test(borders_meet),
        cmocka_unit_test(a_pipeline_has_as_many_ranks_as_stages),
        cmocka_unit_test(messages_stand_at_the_ends_of_a_part),
        cmocka_unit_test(chunks_of_one_rank_hand_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
