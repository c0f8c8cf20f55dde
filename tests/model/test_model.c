/* The whole model: against recorded PyTorch values, and against itself computed in other ways.
 *
 * A layout never changes the result: micro-batches, recomputation, chunks of the loss, threads and the eager update are
 * rearrangements of one computation, so their losses are compared with the plain run's. */
#include "backend/cpu/cpu.h"
#include "golden_file.h"
#include "graph/passes/recompute.h"
#include "harness.h"
#include "model_fixture.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* All the weights of a model, malloc'ed. */
typedef struct {
    float *flat; /* (n) */
    size_t n;
} Weights;

static Weights copy_weights(const Fixture *f) {
    Weights weights = {.n = (size_t)f->table.n_flat_elements};
    weights.flat = malloc(weights.n * sizeof(float));
    memcpy(weights.flat, f->memory.base[PLACE_PARAMETER], weights.n * sizeof(float));
    return weights;
}

/* The same bits in every one; `got` is given up. */
static void assert_same_weights(Weights got, const Weights *want) {
    assert_int_equal(got.n, want->n);
    assert_memory_equal(got.flat, want->flat, want->n * sizeof(float));
    free(got.flat);
}

/* The losses of STEPS steps, and the weights after them if wanted. */
static void run_losses(ModelConfig config, StepOptions options, OptimizerOptions optimizer, int n_threads,
                       double losses[STEPS], Weights *weights) {
    Fixture *f = open_fixture(config, options, optimizer, n_threads);
    for (int i = 0; i < STEPS; i++) losses[i] = run_step(f, i).loss;
    if (weights) *weights = copy_weights(f);
    close_fixture(f);
}

static void assert_losses(const double *got, const double *want, double tolerance, const char *what) {
    for (int i = 0; i < STEPS; i++) {
        if (!(fabs(got[i] - want[i]) <= tolerance * fabs(want[i]))) {
            fail_msg("%s: loss of step %d is %.9g, should be %.9g", what, i, got[i], want[i]);
        }
    }
}

static const GoldenEntry *golden(const GoldenFile *file, const char *label, const char *tensor) {
    for (int i = 0; i < file->n_entries; i++) {
        if (!strcmp(file->entry[i].label, label) && !strcmp(file->entry[i].tensor, tensor))
            return &file->entry[i];
    }
    fail_msg("no recorded values for %s %s", label, tensor);
    return NULL;
}

static void loss_gradients_and_training_follow_pytorch(void **state) {
    (void)state;
    GoldenFile file = golden_open("tests/golden/gpt2.txt");
    Fixture *f = open_fixture(small_config(), small_step(), small_optimizer(), 2);
    const GoldenEntry *losses = golden(&file, "training", "losses"),
                      *norms = golden(&file, "training", "norms");
    assert_int_equal(losses->count, STEPS);
    for (int i = 0; i < STEPS; i++) {
        StepResult result = run_step(f, i);
        float loss = (float)result.loss, norm = (float)result.gradient_norm;
        test_assert_close(&loss, &losses->value[i], 1, 1e-4, 0, "loss of step %d", i);
        test_assert_close(&norm, &norms->value[i], 1, 1e-4, 0, "gradient norm of step %d", i);
        for (int k = 0; i == 0 && k < f->table.n_parameters; k++) {
            const GoldenEntry *want = golden(&file, "gradient", f->table.parameter[k].name);
            const Tensor *gradient = f->step.loss.parameters.tensor[k]->gradient;
            const float *values = executor_address(&f->step.executor, gradient);
            assert_int_equal(shape_count(f->table.parameter[k].shape), want->count);
            test_assert_close(values, want->value, want->count, 1e-4, 1e-6, "gradient of %s",
                              f->table.parameter[k].name);
            for (int64_t rest = want->count; rest < tensor_count(gradient); rest++) /* what pads it */
                assert_true(values[rest] == 0.0f);
        }
    }
    close_fixture(f);
    golden_close(&file);
}

static void logits_follow_pytorch(void **state) {
    (void)state;
    GoldenFile file = golden_open("tests/golden/gpt2.txt");
    const GoldenEntry *want = golden(&file, "first", "logits"); /* (B,T,V) */
    Error error = {0};
    ModelConfig config = small_config();
    ParameterTable table;
    Backend backend;
    Wiring wiring = {.graph = graph_new()};
    Executor *executor = &wiring.executor;
    assert_int_equal(config_complete(&config, V, &error), STATUS_OK);
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    assert_int_equal(backend_cpu_open(&backend, 2, &error), STATUS_OK);
    GptDecode decode =
        gpt_record_decode(&config, &table, wiring.graph, &(GptDecodeOptions){.B = B, .T = T, .capacity = T});
    assert_int_equal(wiring_plan_alone(&wiring, "decode", &backend, &error), STATUS_OK);
    assert_int_equal(wiring_open_alone(&wiring, &backend, &error), STATUS_OK);
    golden_weights(&table, wiring.memory.base[PLACE_PARAMETER]);
    int32_t tokens[B * T], targets[B * T], start[B] = {0}, rows[B];
    fill_golden(NULL, 0, B, T, tokens, targets);
    executor_upload(executor, decode.tokens, tokens, &error);
    executor_upload(executor, decode.start, start, &error);
    for (int t = 0; t < T; t++) {
        for (int b = 0; b < B; b++) rows[b] = b * T + t;
        executor_upload(executor, decode.rows, rows, &error);
        assert_int_equal(executor_run(executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error), STATUS_OK);
        const float *logits = executor_address(executor, decode.logits); /* (B,V) */
        for (int b = 0; b < B; b++) {
            test_assert_close(&logits[b * V], &want->value[(b * T + t) * V], V, 1e-4, 0,
                              "logits of row %d, %d", b, t);
        }
    }
    wiring_close_alone(&wiring);
    parameters_free(&table);
    backend.close(backend.context);
    golden_close(&file);
}

static void micro_batches_do_not_change_the_result(void **state) {
    (void)state;
    double plain[STEPS], split[STEPS];
    for (int with_dropout = 0; with_dropout < 2; with_dropout++) {
        ModelConfig config = small_config();
        config.dropout = with_dropout ? 0.3 : 0.0;
        run_losses(config, small_step(), small_optimizer(), 2, plain, NULL);
        for (int64_t micro = 1; micro < B; micro *= 2) {
            StepOptions options = small_step();
            options.micro_batch = micro;
            run_losses(config, options, small_optimizer(), 2, split, NULL);
            assert_losses(split, plain, 1e-5, "micro-batches");
        }
    }
}

static void recomputation_does_not_change_a_bit(void **state) {
    (void)state;
    ModelConfig config = small_config();
    config.n_layers = 5;
    config.dropout = 0.2;
    double plain[STEPS], again[STEPS];
    Weights weights, weights_again;
    run_losses(config, small_step(), small_optimizer(), 2, plain, &weights);
    for (int64_t blocks = RECOMPUTE_SELECTIVE; blocks <= 6; blocks++) {
        StepOptions options = small_step();
        options.recompute = blocks;
        run_losses(config, options, small_optimizer(), 2, again, &weights_again);
        assert_memory_equal(again, plain, sizeof plain);
        assert_same_weights(weights_again, &weights);
    }
    free(weights.flat);
}

static int count_op(const Fixture *f, const Op *op) {
    int n = 0;
    for (int i = 0; i < f->step.graph->n_nodes; i++)
        n += f->step.graph->node[i]->op == op && !f->step.graph->node[i]->is_recomputed;
    return n;
}

/* Gradients of biases that are left to the products of the weights'. */
static int count_biases(const Fixture *f) {
    int n = 0;
    for (int i = 0; i < f->step.graph->n_nodes; i++) {
        const Node *node = f->step.graph->node[i];
        n += node->op == &OP_LINEAR_WEIGHT_GRADIENT && node->output[1];
    }
    return n;
}

/* One operation for dropout, addition and norm: after each of the 2·5 branches, but where what crosses a border between
 * recomputed segments has to be a single tensor. Without dropout there is nothing to do for it. */
static void dropout_and_addition_are_part_of_the_norm(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        ModelConfig config = small_config();
        config.n_layers = 5;
        config.dropout = variant ? 0.2 : 0.0;
        StepOptions options = small_step();
        options.recompute = variant == 2 ? 1 : variant == 3 ? 2 : 0;
        int n_borders = variant == 2 ? 4 : variant == 3 ? 2 : 0, n_fused = variant ? 10 - n_borders : 0;
        Fixture *f = open_fixture(config, options, small_optimizer(), 1);
        assert_int_equal(count_op(f, &OP_RESIDUAL_NORM), n_fused);
        assert_int_equal(count_op(f, &OP_RESIDUAL_NORM_BACKWARD), n_fused);
        assert_int_equal(count_op(f, &OP_LAYERNORM), 11 - n_fused);
        assert_int_equal(count_op(f, &OP_ADD), n_borders);
        /* The embedding's and the borders', and their gradients. */
        assert_int_equal(count_op(f, &OP_DROPOUT), variant ? 2 * (1 + n_borders) : 0);
        assert_int_equal(count_op(f, &OP_COPY), 0); /* gradients are shared, never copied */
        /* Those of biases are summed by who makes dy; not where that is the stream's, or behind a dropout of its own. */
        assert_int_equal(count_biases(f), 10 - n_fused);
        close_fixture(f);
    }
}

static void recomputation_saves_activations(void **state) {
    (void)state;
    ModelConfig config = small_config();
    config.n_layers = 12;
    StepOptions options = small_step();
    Fixture *plain = open_fixture(config, options, small_optimizer(), 1);
    options.recompute = 3;
    Fixture *saved = open_fixture(config, options, small_optimizer(), 1);
    size_t before = plain->step.program.plan.bytes[PLACE_ACTIVATION];
    size_t after = saved->step.program.plan.bytes[PLACE_ACTIVATION];
    assert_true(after < before * 6 / 10);
    assert_true(saved->step.program.n_recomputed > 0);
    close_fixture(plain);
    close_fixture(saved);
}

static void chunks_of_the_loss_do_not_change_the_result(void **state) {
    (void)state;
    double plain[STEPS], chunked[STEPS];
    run_losses(small_config(), small_step(), small_optimizer(), 2, plain, NULL);
    static const int64_t chunks[] = {1, 7, 43, 44, 1000};
    for (int i = 0; i < 5; i++) {
        StepOptions options = small_step();
        options.loss_chunk = chunks[i];
        options.micro_batch = i % 2 ? B : B / 2;
        run_losses(small_config(), options, small_optimizer(), 2, chunked, NULL);
        assert_losses(chunked, plain, 1e-5, "loss chunks");
    }
}

static void eager_update_does_not_change_the_result(void **state) {
    (void)state;
    double plain[STEPS], eager[STEPS];
    for (int variant = 0; variant < 4;
         variant++) { /* tied or not; a large batch, and one that makes gradients lazy */
        ModelConfig config = small_config();
        config.tied = variant % 2;
        OptimizerOptions optimizer = small_optimizer();
        optimizer.clip = 0.0;
        StepOptions options = small_step();
        options.batch = options.micro_batch = variant / 2 ? 1 : B;
        run_losses(config, options, optimizer, 2, plain, NULL);
        optimizer.eager = true;
        options.recompute = 1;
        run_losses(config, options, optimizer, 2, eager, NULL);
        assert_losses(eager, plain, 1e-6, "eager update");
    }
}

static void threads_agree_and_runs_repeat(void **state) {
    (void)state;
    ModelConfig config = small_config();
    config.dropout = 0.1;
    double one[STEPS], other[STEPS];
    Weights weights, weights_again;
    run_losses(config, small_step(), small_optimizer(), 2, one, &weights);
    run_losses(config, small_step(), small_optimizer(), 2, other, &weights_again);
    assert_memory_equal(one, other, sizeof one);
    assert_same_weights(weights_again, &weights);
    free(weights.flat);
    for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
        run_losses(config, small_step(), small_optimizer(), n_threads, other, NULL);
        assert_losses(other, one, 1e-5, "threads");
    }
}

enum { LARGE_V = 600, LARGE_B = 8, LARGE_T = 64, LARGE_C = 128, LARGE_STEPS = 3 };

static void fill_large(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions,
                       int32_t *tokens, int32_t *targets) {
    (void)context;
    for (int64_t i = 0; i < n * n_positions; i++) {
        uint64_t index = first_sequence * (uint64_t)n_positions + (uint64_t)i;
        tokens[i] = (int32_t)(test_hash("large", index) % LARGE_V);
        targets[i] = (int32_t)(test_hash("large", index + 1) % LARGE_V);
    }
}

/* A model so large that its products and its loops are really shared between threads: (B·T,C) alone is several times
 * what is left to one (CPU_SERIAL_BELOW). Every kernel promises the same bits on any number of them. */
static void a_large_model_has_the_same_bits_on_any_threads(void **state) {
    (void)state;
    const BatchSource batches = {fill_large, NULL};
    for (int variant = 0; variant < 2; variant++) {
        ModelConfig config = {.n_layers = 2,
                              .n_heads = 4,
                              .n_channels = LARGE_C,
                              .context = LARGE_T,
                              .vocabulary = LARGE_V,
                              .tied = !variant,
                              .bias = !variant,
                              .dropout = 0.1,
                              .rotary_theta = 10000.0};
        if (variant) {
            config.norm = NORM_RMSNORM;
            config.mlp = MLP_SWIGLU;
            config.position = POSITION_ROTARY;
            config.n_kv_heads = 2;
        }
        StepOptions options = {
            .batch = LARGE_B, .micro_batch = LARGE_B, .T = LARGE_T, .seed = 7, .loss_chunk = 200};
        double one[LARGE_STEPS];
        Weights weights = {0};
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            Fixture *f = open_fixture(config, options, small_optimizer(), n_threads);
            for (int i = 0; i < LARGE_STEPS; i++) {
                double loss = run_step_on(f, &batches, i).loss;
                assert_true(isfinite(loss));
                if (n_threads == 1) one[i] = loss;
                else assert_memory_equal(&loss, &one[i], sizeof loss);
            }
            if (n_threads == 1) weights = copy_weights(f);
            else assert_same_weights(copy_weights(f), &weights);
            close_fixture(f);
        }
        assert_true(one[LARGE_STEPS - 1] != one[0]);
        free(weights.flat);
    }
}

/* A device that runs behind the host: here it is quick, but has the results of two steps on their way. */
static char sent[BACKEND_RESULTS][BACKEND_RESULT_BYTES];

static Status send_result(void *context, const void *device, size_t n_bytes, int place, Error *error) {
    (void)context, (void)error;
    memcpy(sent[place], device, n_bytes);
    return STATUS_OK;
}

static Status receive_result(void *context, void *host, size_t n_bytes, int place, Error *error) {
    (void)context, (void)error;
    memcpy(host, sent[place], n_bytes);
    return STATUS_OK;
}

static void steps_may_begin_before_the_last_has_ended(void **state) {
    (void)state;
    Fixture *plain = open_fixture(small_config(), small_step(), small_optimizer(), 1);
    Fixture *ahead = open_fixture(small_config(), small_step(), small_optimizer(), 1);
    ahead->backend.send_result = send_result;
    ahead->backend.receive_result = receive_result;
    assert_false(train_step_runs_ahead(&plain->step));
    assert_true(train_step_runs_ahead(&ahead->step));
    double rate = small_optimizer().rate, last = 0.0;
    Error error = {0};
    assert_int_equal(train_step_begin(&ahead->step, &golden_batches, 0, rate, &error), STATUS_OK);
    for (int64_t i = 0; i < STEPS; i++) {
        StepResult want = run_step(plain, i), got;
        if (i + 1 < STEPS)
            assert_int_equal(train_step_begin(&ahead->step, &golden_batches, i + 1, rate, &error), STATUS_OK);
        assert_int_equal(train_step_end(&ahead->step, &got, &error), STATUS_OK);
        assert_true(got.loss == want.loss && got.gradient_norm == want.gradient_norm);
        assert_true(want.loss != last);
        last = want.loss;
    }
    assert_memory_equal(ahead->memory.base[PLACE_PARAMETER], plain->memory.base[PLACE_PARAMETER],
                        plain->memory.bytes[PLACE_PARAMETER]);
    close_fixture(plain);
    close_fixture(ahead);
}

/* The losses of batches that overlap, of which the last is not whole, add up to the same. */
static void evaluations_may_have_a_batch_ahead(void **state) {
    (void)state;
    Fixture *plain = open_fixture(small_config(), small_step(), small_optimizer(), 1);
    Fixture *ahead = open_fixture(small_config(), small_step(), small_optimizer(), 1);
    ahead->backend.send_result = send_result;
    ahead->backend.receive_result = receive_result;
    const int64_t counts[] = {1, B, B + 1, 3 * B - 1, 4 * B};
    double last = 0.0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        double want, got;
        Error error = {0};
        assert_int_equal(evaluate_step_run(&plain->step, &golden_batches, 5, counts[i], &want, &error),
                         STATUS_OK);
        memset(sent, 0, sizeof sent);
        assert_int_equal(evaluate_step_run(&ahead->step, &golden_batches, 5, counts[i], &got, &error),
                         STATUS_OK);
        assert_true(got == want && want != last);
        last = want;
    }
    close_fixture(plain);
    close_fixture(ahead);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_follow_pytorch),
        cmocka_unit_test(loss_gradients_and_training_follow_pytorch),
        cmocka_unit_test(micro_batches_do_not_change_the_result),
        cmocka_unit_test(recomputation_does_not_change_a_bit),
        cmocka_unit_test(dropout_and_addition_are_part_of_the_norm),
        cmocka_unit_test(recomputation_saves_activations),
        cmocka_unit_test(chunks_of_the_loss_do_not_change_the_result),
        cmocka_unit_test(eager_update_does_not_change_the_result),
        cmocka_unit_test(steps_may_begin_before_the_last_has_ended),
        cmocka_unit_test(evaluations_may_have_a_batch_ahead),
        cmocka_unit_test(threads_agree_and_runs_repeat),
        cmocka_unit_test(a_large_model_has_the_same_bits_on_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
