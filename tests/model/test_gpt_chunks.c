/* A GPT cut into chunks that are run by themselves, each with micro-batches of its own in flight, its backward whole or in
 * two: every order that a pipeline may take leaves the gradients of the serial one, to the bit. Orders are drawn by lot.
 *
 * The chunks share memory where they meet (plan.h), so what one of them does to another's frames shows. Gradients begin as
 * NaN: whoever adds where he should overwrite leaves one. */
#include "backend/cpu/cpu.h"
#include "graph/actions.h"
#include "graph/passes/autograd.h"
#include "graph/passes/eager.h"
#include "graph/passes/recompute.h"
#include "graph/passes/split_backward.h"
#include "graph/passes/sums.h"
#include "graph/wiring.h"
#include "model/gpt.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "random_lists.h"

enum { B = 2, T = 8, C = 16, V = 37, L = 4, M = 4, MOST_CHUNKS = 3, MOST_ACTIONS = 3 * M * MOST_CHUNKS };

typedef struct {
    double dropout;
    int recompute, loss_chunk;
    bool is_llama_like, is_tied;
} Variant;

static const Variant variants[] = {
    {0},
    {.is_tied = true, .dropout = 0.2},
    {.recompute = 1, .dropout = 0.1},
    {.is_tied = true, .recompute = 2, .loss_chunk = 8},
    {.is_llama_like = true, .recompute = 2},
    {.is_llama_like = true, .loss_chunk = 4},
};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

typedef struct {
    int n_chunks, frames[MOST_CHUNKS];
    bool splits, is_eager;
} Layout;

typedef struct {
    ParameterTable table;
    Wiring wiring;
    GptLoss loss;
    int n_weight; /* nodes */
    bool is_tied;
} Model;

static ModelConfig config_of(const Variant *variant) {
    bool is_llama_like = variant->is_llama_like;
    return (ModelConfig){.n_layers = L,
                         .n_heads = 2,
                         .n_channels = C,
                         .context = T,
                         .vocabulary = V,
                         .tied = variant->is_tied,
                         .bias = !is_llama_like,
                         .norm = is_llama_like ? NORM_RMSNORM : NORM_LAYERNORM,
                         .mlp = is_llama_like ? MLP_SWIGLU : MLP_GELU_TANH,
                         .position = is_llama_like ? POSITION_ROTARY : POSITION_LEARNED,
                         .rotary_theta = 1e4,
                         .dropout = variant->dropout};
}

/* Whole blocks, one chunk after the other; embedding and head at the ends. */
static void cut_into_chunks(Graph *graph, int n_chunks) {
    int chunk = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        Node *node = graph->node[i];
        if (node->block != NO_BLOCK) chunk = node->block * n_chunks / L;
        node->chunk = chunk;
    }
    graph->node[graph->n_nodes - 1]->chunk = n_chunks - 1;
}

static void open_model(Model *model, const Backend *backend, const Variant *variant, const Layout *layout) {
    Error error = {0};
    ModelConfig config = config_of(variant);
    *model = (Model){.wiring = {.graph = graph_new()}, .is_tied = variant->is_tied};
    Graph *graph = model->wiring.graph;
    assert_int_equal(config_complete(&config, V, &error), STATUS_OK);
    assert_int_equal(parameters_build(&model->table, &config, &error), STATUS_OK);
    GptLossOptions options = {.B = B,
                              .T = T,
                              .loss_scale = 1.0 / (M * B * T),
                              .loss_chunk_tokens = variant->loss_chunk,
                              .is_training = true,
                              .recompute = variant->recompute};
    model->loss = gpt_record_loss(&config, &model->table, graph, &options);
    Tensor *embedded = graph->node[0]->output[0];
    cut_into_chunks(graph, layout->n_chunks);
    AutogradOptions autograd = {.copy = &OP_COPY, .gradient_place = PLACE_GRADIENT};
    assert_int_equal(autograd_run(graph, &autograd, &error), STATUS_OK);
    if (layout->is_eager) assert_true(eager_gradients(graph) > 0);
    move_column_sums(graph, NULL);
    recompute_chunks(graph, variant->recompute, layout->n_chunks, layout->frames);
    if (layout->splits) model->n_weight = split_backward(graph, TENSORS(embedded->gradient), 1, &OP_COPY);
    WiringOptions wiring = {
        .name = "chunks", .n_micro_batches = M, .n_chunks = layout->n_chunks, .chunk_frames = layout->frames};
    if (wiring_plan(&model->wiring.program, graph, backend, &wiring, &model->wiring.memory, &error) !=
        STATUS_OK)
        fail_msg("%s", error.text);
    assert_int_equal(wiring_open_alone(&model->wiring, backend, &error), STATUS_OK);
}

static void close_model(Model *model) {
    wiring_close_alone(&model->wiring);
    parameters_free(&model->table);
}

/* ---- running */

static void upload_micro_batch(Model *model, int micro, const int *frames) {
    Error error = {0};
    Executor *executor = &model->wiring.executor;
    int32_t tokens[B * T], targets[B * T];
    for (int i = 0; i < B * T; i++) {
        tokens[i] = (i * 5 + 3 * micro) % V;
        targets[i] = (i * 7 + 2 * micro + 1) % V;
    }
    int32_t random[N_RANDOM_WORDS] = {[RANDOM_SEED_LOW] = 7, [RANDOM_FIRST_SEQUENCE] = micro * B};
    const struct {
        const Tensor *tensor;
        const void *values;
    } inputs[] = {{model->loss.tokens, tokens}, {model->loss.targets, targets}, {model->loss.random, random}};
    for (int i = 0; i < 3; i++) {
        const Tensor *tensor = inputs[i].tensor;
        if (!tensor || frames[tensor->chunk] < 0) continue;
        assert_int_equal(
            executor_upload_input(executor, tensor, frames[tensor->chunk], inputs[i].values, &error),
            STATUS_OK);
    }
}

/* The frame of each micro-batch in each chunk, -1 where it has none, and what was done. */
typedef struct {
    int frame[M][MOST_CHUNKS];
    int n_done[N_SECTIONS][MOST_CHUNKS];
} Flight;

static int free_frame(const Flight *flight, const Layout *layout, int chunk) {
    for (int frame = 0; frame < layout->frames[chunk]; frame++) {
        bool is_free = true;
        for (int micro = 0; micro < M; micro++) is_free &= flight->frame[micro][chunk] != frame;
        if (is_free) return frame;
    }
    return -1;
}

/* May the next micro-batch of this chunk go through this section? Micro-batches go in order. */
static bool is_legal(const Flight *flight, const Layout *layout, Section section, int chunk) {
    int next = flight->n_done[section][chunk], last = layout->n_chunks - 1;
    if (next == M) return false;
    switch (section) {
    case SECTION_FORWARD:
        return free_frame(flight, layout, chunk) >= 0 &&
               (chunk == 0 || flight->n_done[SECTION_FORWARD][chunk - 1] > next);
    case SECTION_BACKWARD:
        return flight->n_done[SECTION_FORWARD][chunk] > next &&
               (chunk == last || flight->n_done[SECTION_BACKWARD][chunk + 1] > next);
    case SECTION_WEIGHT: return layout->splits && flight->n_done[SECTION_BACKWARD][chunk] > next;
    default: return false;
    }
}

static void run_action(Model *model, const Layout *layout, Flight *flight, Section section, int chunk) {
    Error error = {0};
    int micro = flight->n_done[section][chunk]++;
    int *frame = &flight->frame[micro][chunk];
    if (section == SECTION_FORWARD) {
        *frame = free_frame(flight, layout, chunk);
        upload_micro_batch(model, micro, flight->frame[micro]);
    }
    MicroBatch position = {.is_first = micro == 0,
                           .is_last = micro == M - 1,
                           .chunk = chunk,
                           .frame = *frame,
                           .frames = flight->frame[micro]};
    if (executor_run(&model->wiring.executor, section, position, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    if (section == (layout->splits ? SECTION_WEIGHT : SECTION_BACKWARD)) *frame = -1;
}

/* A step, always with the first of the legal actions in this order, or with one drawn by lot. Loss and gradients. */
typedef enum { FORWARD_FIRST, WEIGHT_LAST, BY_LOT } Order;

static float *run_step(Model *model, const Layout *layout, Order order, Lot *lot) {
    static const Section forward_first[] = {SECTION_FORWARD, SECTION_BACKWARD, SECTION_WEIGHT};
    static const Section weight_last[] = {SECTION_BACKWARD, SECTION_FORWARD, SECTION_WEIGHT};
    const Section *sections = order == WEIGHT_LAST ? weight_last : forward_first;
    Error error = {0};
    Executor *executor = &model->wiring.executor;
    const Tensor *gradient = model->loss.parameters.flat->gradient;
    size_t n = (size_t)tensor_count(gradient);
    float *result = malloc((n + 1) * sizeof *result);
    assert_non_null(result);
    for (size_t i = 0; i < n; i++) result[i] = NAN;
    assert_int_equal(executor_upload(executor, gradient, result, &error), STATUS_OK);
    assert_int_equal(executor_upload(executor, model->loss.loss, result, &error), STATUS_OK);
    Flight flight = {0};
    memset(flight.frame, -1, sizeof flight.frame);
    int n_actions = (layout->splits ? 3 : 2) * layout->n_chunks * M;
    for (int i = 0; i < n_actions; i++) {
        int legal[3 * MOST_CHUNKS], n_legal = 0;
        for (int k = 0; k < 3 * layout->n_chunks; k++) {
            if (is_legal(&flight, layout, sections[k / layout->n_chunks], k % layout->n_chunks))
                legal[n_legal++] = k;
        }
        assert_true(n_legal > 0);
        int k = legal[order == BY_LOT ? draw(lot, n_legal) : 0];
        run_action(model, layout, &flight, sections[k / layout->n_chunks], k % layout->n_chunks);
    }
    assert_int_equal(executor_download(executor, gradient, result, &error), STATUS_OK);
    assert_int_equal(executor_download(executor, model->loss.loss, result + n, &error), STATUS_OK);
    return result;
}

/* Bits, but for a table that head and embedding share: the sum of its two parts and all micro-batches has another order. */
static void assert_same(const Model *model, const float *expected, const float *found, const char *words) {
    const ParameterTable *table = &model->table;
    size_t n = (size_t)tensor_count(model->loss.parameters.flat);
    assert_memory_equal(&expected[n], &found[n], sizeof *expected);
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        size_t count = (size_t)shape_count(parameter->shape), at = (size_t)parameter->flat_offset;
        bool is_shared = parameter->role == ROLE_TOKEN_TABLE && model->is_tied;
        for (size_t k = at; k < at + count; k++) {
            float most = is_shared ? 1e-6f : 0.0f;
            if (!(fabsf(expected[k] - found[k]) <= most))
                fail_msg("%s: %s, element %zu: %g and %g", words, parameter->name, k - at,
                         (double)expected[k], (double)found[k]);
        }
    }
}

static void check_layout(const Backend *backend, const Variant *variant, const Layout *layout,
                         const float *weights, const float *expected, Lot *lot) {
    enum { N_LOTS = 3 };
    Error error = {0};
    Model model;
    open_model(&model, backend, variant, layout);
    assert_int_equal(model.n_weight > 0, layout->splits);
    assert_int_equal(executor_upload(&model.wiring.executor, model.loss.parameters.flat, weights, &error),
                     STATUS_OK);
    for (int i = 0; i < N_LOTS + 2; i++) {
        Order order = i < 2 ? (Order)i : BY_LOT;
        char words[128];
        snprintf(words, sizeof words, "variant %td, %d chunks, frames %d %d %d%s%s, order %d",
                 variant - variants, layout->n_chunks, layout->frames[0], layout->frames[1],
                 layout->frames[2], layout->splits ? ", split" : "", layout->is_eager ? ", eager" : "", i);
        float *found = run_step(&model, layout, order, lot);
        assert_same(&model, expected, found, words);
        free(found);
    }
    close_model(&model);
}

static void every_order_has_the_bits_of_the_serial_one(void **state) {
    (void)state;
    static const int frames[][MOST_CHUNKS] = {{1, 1, 1}, {2, 1, 1}, {3, 2, 1}, {4, 4, 4}, {1, 2, 3}};
    Error error = {0};
    Backend backend;
    Lot lot = {2024};
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    for (int v = 0; v < 2 * N_VARIANTS; v++) {
        const Variant *variant = &variants[v / 2];
        Layout one = {.n_chunks = 1, .frames = {1}, .is_eager = v % 2};
        Model serial;
        open_model(&serial, &backend, variant, &one);
        assert_int_equal(serial.wiring.program.plan.bytes[PLACE_FRAME], 0);
        float *weights = calloc((size_t)serial.table.n_flat_elements, sizeof *weights);
        assert_non_null(weights);
        parameters_initialise(&serial.table, 1, weights, 1);
        assert_int_equal(
            executor_upload(&serial.wiring.executor, serial.loss.parameters.flat, weights, &error),
            STATUS_OK);
        float *expected = run_step(&serial, &one, WEIGHT_LAST, NULL);
        for (int i = 0; i < 5 * MOST_CHUNKS * 2; i++) {
            Layout layout = {.n_chunks = i / 10 + 1, .splits = i % 2, .is_eager = one.is_eager};
            memcpy(layout.frames, frames[i / 2 % 5], sizeof layout.frames);
            check_layout(&backend, variant, &layout, weights, expected, &lot);
        }
        free(expected);
        free(weights);
        close_model(&serial);
    }
    backend.close(backend.context);
}

/* ---- what is where */

static bool writes_gradient(const Node *node, bool *writes_else) {
    bool writes = false;
    *writes_else = false;
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k]) continue;
        bool is_gradient = tensor_root(node->output[k])->place == PLACE_GRADIENT;
        writes |= is_gradient;
        *writes_else |= !is_gradient;
    }
    return writes;
}

/* What writes gradients of weights alone is what waits; nothing else of a backward without recomputation does. */
static void weights_wait_and_nothing_else(void **state) {
    (void)state;
    Error error = {0};
    Backend backend;
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    static const Layout layout = {.n_chunks = 1, .frames = {3}, .splits = true, .is_eager = true};
    for (int v = 0; v < N_VARIANTS; v++) {
        Model model;
        open_model(&model, &backend, &variants[v], &layout);
        const Graph *graph = model.wiring.graph;
        for (int i = 0; i < graph->n_nodes; i++) {
            const Node *node = graph->node[i];
            bool writes_else, writes = writes_gradient(node, &writes_else);
            bool waits = writes && !writes_else;
            if (node->section == SECTION_WEIGHT) assert_true(waits || node->is_recomputed);
            if (node->section == SECTION_BACKWARD && waits)
                fail_msg("variant %d: %s %s does not wait", v, node->op->name, node->output[0]->name);
            if (node->section == SECTION_WEIGHT) assert_int_equal(node->phase, PHASE_BACKWARD);
        }
        close_model(&model);
    }
    backend.close(backend.context);
}

/* Recomputation keeps the inputs of segments alone, in each frame. */
static void recompute_makes_frames_small(void **state) {
    (void)state;
    Error error = {0};
    Backend backend;
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    static const Layout layout = {.n_chunks = 2, .frames = {3, 2}, .is_eager = true};
    size_t bytes[2][2];
    for (int i = 0; i < 2; i++) {
        Model model;
        Variant variant = {.recompute = i};
        open_model(&model, &backend, &variant, &layout);
        for (int c = 0; c < 2; c++) {
            const ChunkPlan *chunk = &model.wiring.program.plan.chunk[c];
            bytes[i][c] = chunk->bytes[PLACE_FRAME];
            assert_true(chunk->live_bytes <= bytes[i][c] && bytes[i][c] <= chunk->unshared_bytes);
        }
        close_model(&model);
    }
    size_t stream = B * T * C * sizeof(float);
    assert_true(bytes[0][0] > 20 * stream);
    assert_int_equal(bytes[1][0],
                     4 * stream); /* the inputs of its blocks and of the next, and its gradient */
    assert_true(bytes[1][1] < 4 * stream);
    backend.close(backend.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_order_has_the_bits_of_the_serial_one),
                                       cmocka_unit_test(weights_wait_and_nothing_else),
                                       cmocka_unit_test(recompute_makes_frames_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
