/* The program is the lists, the operation, and its gradient: what a block of a model has of it. */
#include "lab/attention_study.h"

#include "base/random.h"
#include "base/system/memory.h"
#include "device/device.h"
#include "graph/wiring.h"
#include "lab/picture/canvas.h"
#include "ops/attention/sparse_attention.h"

#include <math.h>
#include <stdio.h>

typedef struct {
    Wiring wiring;
    Tensor *qkv, *dy;
} Timed;

static void record(Timed *program, const AttentionPattern *pattern, const AttentionTiming *timing,
                   DType dtype) {
    Graph *graph = program->wiring.graph;
    int64_t B = timing->n_sequences, T = timing->T, width = (int64_t)timing->n_heads * timing->head_size;
    AttentionAttributes heads = {.n_heads = timing->n_heads,
                                 .n_kv_heads = timing->n_heads,
                                 .head_size = timing->head_size,
                                 .scale = 1.0f / sqrtf((float)timing->head_size)};
    program->qkv = graph_tensor(graph, PLACE_INPUT, dtype, SHAPE(B, T, 3 * width), "qkv");
    program->dy = graph_tensor(graph, PLACE_INPUT, dtype, SHAPE(B, T, width), "dy");
    AttentionMask mask = {.pattern = *pattern, .blocks = op_attention_blocks(graph, NULL, pattern, T)};
    op_sparse_attention(graph, program->qkv, NULL, &mask, &heads);
    if (graph->error.status != STATUS_OK) return;
    const Node *forward = graph->node[graph->n_nodes - 1];
    Tensor *gradient = graph_tensor(graph, PLACE_ACTIVATION, dtype, program->qkv->shape, "dqkv");
    graph->section = SECTION_BACKWARD;
    graph_record(
        graph, &OP_SPARSE_ATTENTION_BACKWARD, forward->attributes, forward->attributes_bytes,
        N_SPARSE_BACK_INPUTS,
        TENSORS(program->dy, program->qkv, forward->output[0], forward->output[1], mask.blocks, NULL, NULL),
        2, TENSORS(gradient, NULL));
}

static Status fill(Executor *executor, const Tensor *tensor, uint64_t purpose, Error *error) {
    int64_t count = tensor_count(tensor);
    void *values;
    TRY(memory_alloc(&values, (size_t)count * sizeof(float), "queries, keys and values", error));
    random_normal_fill(random_key(1, RANDOM_TEST + purpose, 0), 0, (uint64_t)count, 1.0f, values);
    executor_upload_f32(executor, tensor, 0, count, values, error);
    memory_free(values, (size_t)count * sizeof(float));
    return error->status;
}

/* Milliseconds of instruction `node` in the fastest of the repeats of its section. */
static Status time_node(Executor *executor, Section section, int node, int64_t n_repeats, double *ms,
                        Error *error) {
    *ms = INFINITY;
    for (int64_t i = 0; i <= n_repeats; i++) { /* the first is not counted */
        executor_reset_times(executor);
        TRY(executor_run(executor, section, MICRO_BATCH_ONLY, error));
        if (i) *ms = fmin(*ms, 1e-6 * (double)executor->instruction[node].elapsed_ns);
    }
    return STATUS_OK;
}

Status attention_time(const Backend *backend, const AttentionPattern *pattern, const AttentionTiming *timing,
                      AttentionTime *time, Error *error) {
    Timed program = {.wiring = {.graph = graph_new()}};
    Executor *executor = &program.wiring.executor;
    *time = (AttentionTime){.n_blocks = attention_blocks_of(pattern, timing->T),
                            .pairs = pattern_pairs(pattern, timing->T)};
    record(&program, pattern, timing, backend_has_own_memory(backend) ? DTYPE_BF16 : DTYPE_F32);
    TRY_GOTO(wiring_plan_alone(&program.wiring, "attention", backend, error), done);
    TRY_GOTO(device_check_memory(backend, device_required_bytes(&program.wiring.memory), "attention",
                                 "choose shorter --sequences or fewer --heads", error),
             done);
    TRY_GOTO(wiring_open_alone(&program.wiring, backend, error), done);
    TRY_GOTO(fill(executor, program.qkv, 0, error), done);
    TRY_GOTO(fill(executor, program.dy, 1, error), done);
    executor->times_instructions = true;
    TRY_GOTO(time_node(executor, SECTION_FORWARD, 0, timing->n_repeats, &time->lists_ms, error), done);
    TRY_GOTO(time_node(executor, SECTION_FORWARD, 1, timing->n_repeats, &time->forward_ms, error), done);
    TRY_GOTO(time_node(executor, SECTION_BACKWARD, 2, timing->n_repeats, &time->backward_ms, error), done);
done:
    wiring_close_alone(&program.wiring);
    return error->status;
}

/* ---- The picture */

enum { LEAST_TILE = 5, LEAST_SIDE = 250, GAP = 40, TOP = 60, COLUMNS = 3 };

/* The side of a tile: names of patterns have room above, however few there are. */
static double tile_side(int64_t T) {
    double side = (double)LEAST_SIDE / (double)attention_n_blocks(T);
    return side > LEAST_TILE ? side : LEAST_TILE;
}

static void draw_pattern(Canvas *canvas, const AttentionPattern *pattern, int64_t T, double x, double y) {
    static const char *const colours[] = {
        [BLOCK_ABSENT] = "#e8e8e8", [BLOCK_PARTIAL] = "#56b4e9", [BLOCK_FULL] = "#0072b2"};
    int32_t n = (int32_t)attention_n_blocks(T);
    int64_t n_seen = attention_blocks_of(pattern, T);
    double tile = tile_side(T);
    char words[PATTERN_TEXT_BYTES], text[2 * PATTERN_TEXT_BYTES];
    pattern_print(pattern, words, sizeof words);
    snprintf(text, sizeof text, "%s: %.0f %% of %lld tiles", words,
             200.0 * (double)n_seen / ((double)n * (n + 1.0)), (long long)n * (n + 1) / 2);
    canvas_text(canvas, CANVAS_TICK, x + n * tile / 2.0, y - 8, NULL, text);
    for (int32_t q = 0; q < n; q++) {
        for (int32_t k = 0; k <= q; k++) {
            BlockState state = attention_block_state(pattern, T, q, k, NULL);
            canvas_rectangle(canvas, x + k * tile, y + q * tile, tile - 0.5, tile - 0.5, colours[state]);
        }
    }
}

Status attention_patterns_draw(const AttentionPattern *patterns, int n_patterns, int64_t T,
                               const char *caption, const char *folder, const char *name, bool *has_png,
                               Error *error) {
    double side = (double)attention_n_blocks(T) * tile_side(T);
    int n_columns = n_patterns < COLUMNS ? n_patterns : COLUMNS,
        n_rows = (n_patterns + COLUMNS - 1) / COLUMNS;
    double width = n_columns * (side + GAP) + GAP, height = TOP + n_rows * (side + GAP) + 2 * GAP;
    char title[160];
    Canvas canvas;
    if (width < 700) width = 700;
    TRY(canvas_open(&canvas, folder, name, (int)width, (int)height, error));
    snprintf(title, sizeof title, "What %lld queries (down) see of the keys (across), in tiles of 64 x 64",
             (long long)T);
    canvas_text(&canvas, CANVAS_TITLE, width / 2, 24, NULL, title);
    for (int i = 0; i < n_patterns; i++) {
        int row = i / COLUMNS, column = i % COLUMNS;
        draw_pattern(&canvas, &patterns[i], T, GAP + column * (side + GAP), TOP + row * (side + GAP));
    }
    canvas_text(&canvas, CANVAS_CAPTION, width / 2, height - GAP, NULL,
                "dark: seen whole; light: in part, masked element by element; grey: absent, not computed");
    canvas_text(&canvas, CANVAS_CAPTION, width / 2, height - GAP / 2.0, NULL, caption);
    return canvas_close(&canvas, has_png, error);
}
