/* Clipping that does not wait: an update that goes first and is made again where the gradient was too long leaves the bits of one
 * that waits for the norm, of every optimizer, in all kinds of numbers, with steps that are clipped, that are not, and that are
 * skipped; and it can be undone, to the bit, when the gradient is gone. */
#include "backend/cpu/cpu.h"
#include "train/step/step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 4, T = 8, V = 29, STEPS = 12, MOST_ARRAYS = 2 + OPTIMIZER_MAX_MOMENTS };

typedef struct {
    ModelConfig config;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory;
} Training;

static void fill(void *context, uint64_t first_sequence, int64_t n, int64_t length, int32_t *tokens,
                 int32_t *targets) {
    (void)context;
    for (int64_t i = 0; i < n * length; i++) {
        uint64_t at = first_sequence * (uint64_t)length + (uint64_t)i;
        tokens[i] = (int32_t)(at * at % 23 % V);
        targets[i] = (int32_t)((at * 5 + at / 7) % V);
    }
}

static const BatchSource source = {fill, NULL};

static void open_training_with(Training *training, const Backend *backend, OptimizerKind kind,
                               PrecisionKind precision, double clip, ClipStyle style, OffloadTo away) {
    Error error = {0};
    *training = (Training){.config = {.n_layers = 2,
                                      .n_heads = 2,
                                      .n_channels = 12,
                                      .context = T,
                                      .vocabulary = V,
                                      .tied = true,
                                      .bias = true,
                                      .dropout = 0.1}};
    OptimizerOptions optimizer = optimizer_defaults(kind);
    optimizer.clip = clip;
    optimizer.clip_style = (int)style;
    StepOptions options = {
        .batch = B, .micro_batch = 2, .T = T, .seed = 3, .precision = precision_of(precision)};
    options.offload.to[OFFLOAD_OPTIMIZER] = away;
    options.offload.bucket_bytes = 1024; /* a few pieces */
    assert_int_equal(config_complete(&training->config, V, &error), STATUS_OK);
    assert_int_equal(parameters_build(&training->table, &training->config, &error), STATUS_OK);
    assert_int_equal(train_step_plan(&training->step, &training->config, &training->table, &options,
                                     &optimizer, backend, &error),
                     STATUS_OK);
    device_require(&training->memory, &training->step.program.plan);
    assert_int_equal(device_open(&training->memory, backend, &error), STATUS_OK);
    assert_int_equal(train_step_open(&training->step, &training->memory, &error), STATUS_OK);
    assert_int_equal(train_step_initialise(&training->step, &training->table, 5, 1, &error), STATUS_OK);
}

static void open_training(Training *training, const Backend *backend, OptimizerKind kind,
                          PrecisionKind precision, double clip, ClipStyle style) {
    open_training_with(training, backend, kind, precision, clip, style, OFFLOAD_NOWHERE);
}

static void close_training(Training *training) {
    train_step_close(&training->step);
    device_close(&training->memory);
    parameters_free(&training->table);
}

/* Everything that an update changes. */
static unsigned char *state_of(Training *training, size_t *n_bytes) {
    Error error = {0};
    TrainStep *step = &training->step;
    const Tensor *arrays[MOST_ARRAYS] = {step->sync.held, step->optimizer.master, step->optimizer.moment[0],
                                         step->optimizer.moment[1]};
    *n_bytes = 0;
    for (int i = 0; i < MOST_ARRAYS; i++) *n_bytes += arrays[i] ? tensor_bytes(arrays[i]) : 0;
    unsigned char *bytes = malloc(*n_bytes), *at = bytes;
    assert_non_null(bytes);
    for (int i = 0; i < MOST_ARRAYS; i++) {
        if (!arrays[i]) continue;
        assert_int_equal(executor_download(&step->executor, arrays[i], at, &error), STATUS_OK);
        at += tensor_bytes(arrays[i]);
    }
    return bytes;
}

static void assert_same_state(Training *a, Training *b) {
    size_t n_a, n_b;
    unsigned char *of_a = state_of(a, &n_a), *of_b = state_of(b, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(of_a, of_b, n_a);
    free(of_a);
    free(of_b);
}

static StepResult run(Training *training, int64_t index) {
    Error error = {0};
    StepResult result;
    assert_int_equal(train_step_run(&training->step, &source, index, 0.02, &result, &error), STATUS_OK);
    return result;
}

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A norm that half of the steps are above. */
static double usual_norm(const Backend *backend, OptimizerKind kind, PrecisionKind precision) {
    Training training;
    double norms[STEPS];
    open_training(&training, backend, kind, precision, 1e6, CLIP_WAIT);
    for (int i = 0; i < STEPS; i++) norms[i] = run(&training, i).gradient_norm;
    close_training(&training);
    qsort(norms, STEPS, sizeof norms[0], compare_numbers);
    return norms[STEPS / 2];
}

static void both_styles_have_the_same_bits(void **state) {
    (void)state;
    static const PrecisionKind precisions[] = {PRECISION_F32, PRECISION_BF16, PRECISION_F16,
                                               PRECISION_PURE_BF16};
    Error error = {0};
    Backend backend;
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        for (int p = 0; p < 4; p++) {
            double clip = usual_norm(&backend, (OptimizerKind)kind, precisions[p]);
            Training waits, checks;
            int n_clipped = 0, n_skipped = 0;
            open_training(&waits, &backend, (OptimizerKind)kind, precisions[p], clip, CLIP_WAIT);
            open_training(&checks, &backend, (OptimizerKind)kind, precisions[p], clip, CLIP_CHECK);
            if (precisions[p] == PRECISION_F16) waits.step.scale.value = checks.step.scale.value = 1e38;
            for (int i = 0; i < STEPS; i++) {
                StepResult a = run(&waits, i), b = run(&checks, i);
                assert_memory_equal(&a.loss, &b.loss, sizeof a.loss);
                assert_true(a.gradient_norm == b.gradient_norm || a.was_skipped);
                assert_int_equal(a.was_skipped, b.was_skipped);
                assert_true(waits.step.scale.value == checks.step.scale.value);
                n_clipped += a.gradient_norm > clip;
                n_skipped += a.was_skipped;
                assert_same_state(&waits, &checks);
                if (a.was_skipped) waits.step.scale.value = checks.step.scale.value = 1024.0;
            }
            assert_true(n_clipped > 0 && n_clipped < STEPS);
            assert_int_equal(n_skipped > 0, precisions[p] == PRECISION_F16);
            assert_int_equal(checks.step.program.count[SECTION_CHECK] > 0, true);
            assert_int_equal(waits.step.program.count[SECTION_CHECK] + waits.step.program.count[SECTION_REDO],
                             0);
            close_training(&waits);
            close_training(&checks);
        }
    }
    backend.close(backend.context);
}

static double bytes_moved(const TrainStep *step) {
    double n = 0.0;
    for (int i = 0; i < step->graph->n_nodes; i++)
        n += (double)program_node_runs(&step->program, step->graph->node[i]) *
             (step->graph->node[i]->op->is_portable ? op_cost(step->graph->node[i]).bytes : 0.0);
    return n;
}

/* State is away. Its update begins in the backward, and is made again where the norm says so; or, in a step
 * that expects to be clipped, behind the norm. No more is moved than where nothing is kept. */
static void state_that_is_away_is_updated_ahead(void **state) {
    (void)state;
    static const PrecisionKind precisions[] = {PRECISION_F32, PRECISION_BF16, PRECISION_PURE_BF16};
    static const OptimizerKind kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_SGD};
    Error error = {0};
    Backend backend;
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    for (int k = 0; k < 6; k++) {
        PrecisionKind precision = precisions[k % 3];
        OptimizerKind kind = kinds[k / 3];
        double clip = usual_norm(&backend, kind, precision);
        Training waits, ahead, unclipped;
        int n_right = 0, n_behind = 0;
        open_training(&waits, &backend, kind, precision, clip, CLIP_WAIT);
        open_training_with(&ahead, &backend, kind, precision, clip, CLIP_CHECK, OFFLOAD_HOST);
        open_training_with(&unclipped, &backend, kind, precision, 0.0, CLIP_WAIT, OFFLOAD_HOST);
        bool has_state = ahead.step.optimizer.n_moments || ahead.step.optimizer.master;
        assert_int_equal(ahead.step.goes_ahead, has_state);
        assert_true(bytes_moved(&ahead.step) == bytes_moved(&unclipped.step));
        for (int i = 0; i < STEPS; i++) {
            if (i % 3 != 1) ahead.step.n_unclipped = STEP_UNCLIPPED_BEFORE;
            StepResult a = run(&waits, i), b = run(&ahead, i);
            assert_memory_equal(&a.loss, &b.loss, sizeof a.loss);
            assert_true(a.gradient_norm == b.gradient_norm);
            assert_same_state(&waits, &ahead);
            n_right += (ahead.step.regimes & REGIME_AHEAD) && a.gradient_norm <= clip;
            n_behind += !(ahead.step.regimes & REGIME_AHEAD);
        }
        assert_true(!has_state || (n_right > 0 && n_behind > 0 && ahead.step.n_undone > 0));
        close_training(&waits);
        close_training(&ahead);
        close_training(&unclipped);
    }
    backend.close(backend.context);
}

/* The update goes first; when the next gradient is there, it is undone. */
static void an_update_can_be_undone(void **state) {
    (void)state;
    Error error = {0};
    Backend backend;
    Training training;
    size_t n_bytes;
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    open_training(&training, &backend, OPTIMIZER_ADAMW, PRECISION_BF16, 1e-3, CLIP_CHECK);
    TrainStep *step = &training.step;
    for (int i = 0; i < 3; i++) run(&training, i);
    unsigned char *before = state_of(&training, &n_bytes);
    StepRun later = {.index = 3, .checks_later = true};
    for (int i = 0; i < step->n_actions; i++)
        assert_int_equal(train_step_run_action(step, &source, &later, &step->actions[i], &error), STATUS_OK);
    unsigned char *after = state_of(&training, &n_bytes);
    assert_memory_not_equal(before, after, n_bytes);
    later.index = 4;
    for (int i = 0; i < step->n_actions - 1; i++) /* another gradient where the first one was */
        assert_int_equal(train_step_run_action(step, &source, &later, &step->actions[i], &error), STATUS_OK);
    bool was_right = true;
    assert_int_equal(train_step_check(step, &was_right, &error), STATUS_OK);
    assert_false(was_right);
    assert_int_equal(train_step_undo(step, &error), STATUS_OK);
    free(after);
    after = state_of(&training, &n_bytes);
    assert_memory_equal(before, after, n_bytes);
    free(before);
    free(after);
    close_training(&training);
    backend.close(backend.context);
}

/* As much again as what the update changes, and no more than a few scalars beside. */
static void what_is_kept_takes_as_much_again(void **state) {
    (void)state;
    Error error = {0};
    Backend backend;
    Training waits, checks;
    size_t n_bytes;
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    open_training(&waits, &backend, OPTIMIZER_ADAMW, PRECISION_BF16, 1.0, CLIP_WAIT);
    open_training(&checks, &backend, OPTIMIZER_ADAMW, PRECISION_BF16, 1.0, CLIP_CHECK);
    free(state_of(&waits, &n_bytes));
    size_t more = plan_total_bytes(&checks.step.program.plan) - plan_total_bytes(&waits.step.program.plan);
    assert_true(more >= n_bytes && more <= n_bytes + 8 * PLAN_ALIGNMENT);
    assert_true(train_step_flops(&checks.step) <= train_step_flops(&waits.step) * 1.001); /* redo is rare */
    close_training(&waits);
    close_training(&checks);
    backend.close(backend.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_styles_have_the_same_bits),
                                       cmocka_unit_test(state_that_is_away_is_updated_ahead),
                                       cmocka_unit_test(an_update_can_be_undone),
                                       cmocka_unit_test(what_is_kept_takes_as_much_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
