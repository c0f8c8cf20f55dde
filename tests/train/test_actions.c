/* A step as a list of actions: the serial one, and lists with several micro-batches in flight, each in a frame of its own,
 * which must compute the same. And the model by stages, which must give the bits of the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "model/gpt.h"
#include "ops/ops.h"
#include "train_small.h"

/* All forwards, then all backwards, as GPipe does: as many frames as micro-batches. */
static int all_forwards_first(int n, StepAction *actions) {
    int count = 0;
    for (int kind = ACTION_FORWARD; kind <= ACTION_BACKWARD; kind++) {
        for (int micro = 0; micro < n; micro++)
            actions[count++] = (StepAction){.kind = (ActionKind)kind,
                                            .micro = micro,
                                            .frame = micro,
                                            .is_first = micro == 0,
                                            .is_last = micro == n - 1};
    }
    actions[count++] = (StepAction){.kind = ACTION_UPDATE, .micro = -1, .is_first = true, .is_last = true};
    return count;
}

/* One forward ahead: F0 F1 B0 F2 B1 ... with two frames in turn. */
static int one_ahead(int n, StepAction *actions) {
    int count = 0;
    for (int i = 0; i <= n; i++) {
        for (int kind = ACTION_FORWARD; kind <= ACTION_BACKWARD; kind++) {
            int micro = kind == ACTION_FORWARD ? i : i - 1;
            if (micro < 0 || micro >= n) continue;
            actions[count++] = (StepAction){.kind = (ActionKind)kind,
                                            .micro = micro,
                                            .frame = micro % 2,
                                            .is_first = micro == 0,
                                            .is_last = micro == n - 1};
        }
    }
    actions[count++] = (StepAction){.kind = ACTION_UPDATE, .micro = -1, .is_first = true, .is_last = true};
    return count;
}

static void test_serial(void **state) {
    (void)state;
    StepAction actions[7];
    static const ActionKind kinds[] = {ACTION_FORWARD, ACTION_BACKWARD, ACTION_FORWARD, ACTION_BACKWARD,
                                       ACTION_FORWARD, ACTION_BACKWARD, ACTION_UPDATE};
    assert_int_equal(actions_serial(3, actions), 7);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(actions[i].kind, kinds[i]);
        assert_int_equal(actions[i].micro, i < 6 ? i / 2 : -1);
        assert_int_equal(actions[i].frame, 0);
        assert_int_equal(actions[i].is_first, i / 2 == 0 || i == 6);
        assert_int_equal(actions[i].is_last, i / 2 >= 2);
    }
    assert_int_equal(actions_n_frames(actions, 7), 1);
}

/* What the runner relies on, of every list: each micro-batch goes forward and then back in the same frame, nobody else is
 * in that frame meanwhile, first and last are said, and the update comes at the end. */
static void check_list(const char *name, ActionList list, int n) {
    enum { MOST = 8 };
    StepAction actions[ACTIONS_PER_MICRO_BATCH * MOST + 1];
    int n_actions = list(n, actions), frame_of[MOST], in_frame[MOST], n_done[2] = {0, 0};
    if (n_actions != 2 * n + 1 || actions[n_actions - 1].kind != ACTION_UPDATE)
        fail_msg("%s: not a forward and a backward of each micro-batch, then the update", name);
    for (int i = 0; i < MOST; i++) frame_of[i] = in_frame[i] = -1;
    for (int i = 0; i < n_actions - 1; i++) {
        StepAction a = actions[i];
        bool is_forward = a.kind == ACTION_FORWARD;
        assert_in_range(a.micro, 0, n - 1);
        assert_in_range(a.frame, 0, MOST - 1);
        if (in_frame[a.frame] != (is_forward ? -1 : a.micro))
            fail_msg("%s: %s %d finds micro-batch %d in frame %d", name, action_name(a.kind), a.micro,
                     in_frame[a.frame], a.frame);
        if (is_forward && frame_of[a.micro] != -1)
            fail_msg("%s: micro-batch %d goes forward twice", name, a.micro);
        if (is_forward) frame_of[a.micro] = a.frame;
        in_frame[a.frame] = is_forward ? a.micro : -1;
        assert_int_equal(a.is_first, n_done[!is_forward] == 0);
        assert_int_equal(a.is_last, ++n_done[!is_forward] == n);
    }
}

static void test_lists(void **state) {
    (void)state;
    static const struct {
        const char *name;
        ActionList list;
    } lists[] = {
#define LIST(name) {#name, actions_##name},
        ACTION_LISTS(LIST)
#undef LIST
    };
    for (int n = 1; n <= 5; n++) {
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
            check_list(lists[i].name, lists[i].list, n);
        check_list("all_forwards_first", all_forwards_first, n);
        check_list("one_ahead", one_ahead, n);
    }
}

static void assert_close(const float *a, const float *b, size_t n, float tolerance) {
    float largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(a[i]));
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(a[i] - b[i]) <= tolerance * largest))
            fail_msg("element %zu: %g and %g", i, (double)a[i], (double)b[i]);
    }
}

/* Gradients add up in the same order unless the head's, which is made in the forward, is the tied table's too. */
static void test_frames(void **state) {
    (void)state;
#define LIST(name) actions_##name,
    static const ActionList lists[] = {ACTION_LISTS(LIST) all_forwards_first, one_ahead};
#undef LIST
    Backend backend;
    Error error = {0};
    assert_int_equal(backend_cpu_open(&backend, 2, &error), STATUS_OK);
    for (int number = 0; number < N_SMALL_TRAININGS; number++) {
        size_t n_bytes, n_other;
        float *serial = train_small(&backend, number, PRECISION_F32, &n_bytes);
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
            float *other = train_small_by(&backend, number, PRECISION_F32, lists[i], &n_other);
            assert_int_equal(n_bytes, n_other);
            bool is_same =
                lists[i] == actions_serial || number == 0 || number == 3; /* one micro-batch; untied */
            if (is_same) assert_memory_equal(serial, other, n_bytes);
            else assert_close(serial, other, n_bytes / sizeof(float), 1e-4f);
            free(other);
        }
        free(serial);
    }
    backend.close(backend.context);
}

/* ---- stages */

enum { B = 2, T = 8, C = 16, V = 11, L = 3 };

typedef struct {
    Wiring wiring;
    GptStageTensors tensors;
} Stage;

static void open_stage(Stage *stage, const Backend *backend, const ModelConfig *config,
                       const ParameterTable *table, GptStage part, const float *weights) {
    Error error = {0};
    GptLossOptions options = {.B = B, .T = T, .loss_scale = 1.0 / (B * T), .is_training = true};
    *stage = (Stage){.wiring = {.graph = graph_new()}};
    stage->tensors = gpt_record_stage(config, table, stage->wiring.graph, &options, &part, NULL);
    assert_int_equal(wiring_plan_alone(&stage->wiring, "stage", backend, &error), STATUS_OK);
    assert_int_equal(wiring_open_alone(&stage->wiring, backend, &error), STATUS_OK);
    assert_int_equal(
        executor_upload(&stage->wiring.executor, stage->tensors.loss.parameters.flat, weights, &error),
        STATUS_OK);
}

/* From the stream that goes in (NULL: tokens) to the one that comes out, or to the loss. */
static void run_stage(Stage *stage, const float *in, float *out) {
    Error error = {0};
    const GptLoss *loss = &stage->tensors.loss;
    int32_t tokens[B * T], random[N_RANDOM_WORDS] = {[RANDOM_SEED_LOW] = 7, [RANDOM_STEP] = 3};
    for (int i = 0; i < B * T; i++) tokens[i] = (i * 5 + 3) % V;
    if (loss->tokens)
        assert_int_equal(executor_upload(&stage->wiring.executor, loss->tokens, tokens, &error), STATUS_OK);
    if (loss->targets)
        assert_int_equal(executor_upload(&stage->wiring.executor, loss->targets, tokens, &error), STATUS_OK);
    if (loss->random)
        assert_int_equal(executor_upload(&stage->wiring.executor, loss->random, random, &error), STATUS_OK);
    if (stage->tensors.input)
        assert_int_equal(executor_upload(&stage->wiring.executor, stage->tensors.input, in, &error),
                         STATUS_OK);
    assert_int_equal(executor_run(&stage->wiring.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error),
                     STATUS_OK);
    const Tensor *result = stage->tensors.output ? stage->tensors.output : loss->loss;
    assert_int_equal(executor_download(&stage->wiring.executor, result, out, &error), STATUS_OK);
}

static void close_stage(Stage *stage) {
    wiring_close_alone(&stage->wiring);
}

static void test_stages(void **state) {
    (void)state;
    static const double dropouts[] = {0.0, 0.3};
    for (int d = 0; d < 2; d++) {
        Error error = {0};
        Backend backend;
        ModelConfig config = {.n_layers = L,
                              .n_heads = 2,
                              .n_channels = C,
                              .context = T,
                              .vocabulary = V,
                              .tied = true,
                              .bias = true,
                              .rotary_theta = 1e4,
                              .dropout = dropouts[d]};
        ParameterTable table;
        assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
        assert_int_equal(config_complete(&config, V, &error), STATUS_OK);
        assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
        float *weights = calloc((size_t)table.n_flat_elements, sizeof *weights), whole, parts,
              stream[B * T * C];
        assert_non_null(weights);
        parameters_initialise(&table, 1, weights, 1);
        Stage stage;
        open_stage(&stage, &backend, &config, &table, gpt_whole(&config), weights);
        assert_null(stage.tensors.input);
        run_stage(&stage, NULL, &whole);
        close_stage(&stage);
        for (int block = 0; block <= L; block++) { /* a border before each block, and before the head */
            open_stage(&stage, &backend, &config, &table,
                       (GptStage){.end_block = block, .has_embedding = true}, weights);
            run_stage(&stage, NULL, stream);
            close_stage(&stage);
            open_stage(&stage, &backend, &config, &table,
                       (GptStage){.first_block = block, .end_block = L, .has_head = true}, weights);
            run_stage(&stage, stream, &parts);
            close_stage(&stage);
            assert_memory_equal(&whole, &parts, sizeof whole);
        }
        free(weights);
        parameters_free(&table);
        backend.close(backend.context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_serial), cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_frames), cmocka_unit_test(test_stages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
