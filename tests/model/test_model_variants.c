/* Every variant of the architecture has the gradients that its loss says, and vocabularies that are laid out with more rows
 * than they have tokens are what they were. */
#include "harness.h"
#include "model_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* The loss as a function of one weight, through an evaluation pass. */
static double loss_with(TrainStep *evaluation, float *weight, float value) {
    Error error = {0};
    float kept = *weight;
    double loss;
    *weight = value;
    assert_int_equal(
        evaluate_step_run(evaluation, &golden_batches, 0, evaluation->options.batch, &loss, &error),
        STATUS_OK);
    *weight = kept;
    return loss;
}

enum { N_CANDIDATES = 64, N_CHECKED = 4 };

/* Of N_CANDIDATES elements of a parameter those with the largest gradients: where a wrong one cannot hide behind the
 * rounding of the difference quotient. */
static void choose_elements(const Parameter *parameter, const float *gradient, int64_t chosen[N_CHECKED]) {
    int n_chosen = 0;
    for (uint64_t c = 0; c < N_CANDIDATES; c++) {
        int64_t k = (int64_t)(test_hash(parameter->name, c) % (uint64_t)shape_count(parameter->shape));
        bool known = false;
        for (int i = 0; i < n_chosen; i++) known |= chosen[i] == k;
        if (known) continue;
        int at = n_chosen < N_CHECKED ? n_chosen++ : N_CHECKED; /* sorted, largest first */
        for (; at > 0 && fabsf(gradient[chosen[at - 1]]) < fabsf(gradient[k]); at--) {
            if (at < N_CHECKED) chosen[at] = chosen[at - 1];
        }
        if (at < N_CHECKED) chosen[at] = k;
    }
    assert_int_equal(n_chosen, N_CHECKED);
}

/* Every variant of the architecture: gradients against central differences of the loss, on elements of each parameter. */
static void check_variant(ModelConfig config) {
    Error error = {0};
    OptimizerOptions optimizer = small_optimizer();
    optimizer.rate = 0.0;
    optimizer.weight_decay = 0.0;
    Fixture *f = open_fixture(config, small_step(), optimizer, 2);
    ModelConfig complete = config;
    assert_int_equal(config_complete(&complete, V, &error), STATUS_OK);
    StepOptions options = small_step();
    TrainStep evaluation;
    assert_int_equal(train_step_plan(&evaluation, &complete, &f->table, &options, NULL, &f->backend, &error),
                     STATUS_OK);
    device_require(&f->memory, &evaluation.program.plan);
    device_close(&f->memory);
    assert_int_equal(device_open(&f->memory, &f->backend, &error), STATUS_OK);
    executor_close(&f->step.executor);
    assert_int_equal(train_step_open(&f->step, &f->memory, &error), STATUS_OK);
    assert_int_equal(train_step_open(&evaluation, &f->memory, &error), STATUS_OK);
    golden_weights(&f->table, f->memory.base[PLACE_PARAMETER]);
    run_step(f, 0);
    float *flat = f->memory.base[PLACE_PARAMETER];
    const float h = 4e-3f;
    for (int i = 0; i < f->table.n_parameters; i++) {
        const Parameter *parameter = &f->table.parameter[i];
        const float *gradient =
            executor_address(&f->step.executor, f->step.loss.parameters.tensor[i]->gradient);
        int64_t chosen[N_CHECKED];
        choose_elements(parameter, gradient, chosen);
        for (int sample = 0; sample < N_CHECKED; sample++) {
            int64_t k = chosen[sample];
            float *weight = &flat[parameter->flat_offset + k];
            double difference =
                (loss_with(&evaluation, weight, *weight + h) - loss_with(&evaluation, weight, *weight - h)) /
                (2.0 * (double)h);
            if (!(fabs(difference) > 3e-3)) { /* so that even a gradient of zero would be noticed */
                fail_msg("%s[%lld]: a difference quotient of %g proves nothing", parameter->name,
                         (long long)k, difference);
            }
            if (!(fabs(difference - (double)gradient[k]) <= 3e-4 + 1e-2 * fabs(difference))) {
                fail_msg("%s[%lld]: gradient %g, difference quotient %g", parameter->name, (long long)k,
                         (double)gradient[k], difference);
            }
        }
    }
    train_step_close(&evaluation);
    close_fixture(f);
}

static void variants_have_right_gradients(void **state) {
    (void)state;
    ModelConfig config = small_config();
    config.tied = false;
    check_variant(config);
    config.bias = false;
    config.mlp = MLP_GELU_ERF;
    check_variant(config);
    config = small_config();
    config.norm = NORM_RMSNORM;
    config.mlp = MLP_SWIGLU;
    config.position = POSITION_ROTARY;
    config.bias = false;
    config.n_kv_heads = 1;
    check_variant(config);
}

/* One token is a row of the table that only pads it. */
static void fill_with_padding(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions,
                              int32_t *tokens, int32_t *targets) {
    fill_golden(context, first_sequence, n, n_positions, tokens, targets);
    tokens[1] = 70;
}

static void padding_is_no_token(void **state) {
    (void)state;
    static const BatchSource padded = {fill_with_padding, NULL};
    ModelConfig config = small_config();
    config.vocabulary = 65; /* laid out as 72 */
    Fixture *f = open_fixture(config, small_step(), small_optimizer(), 2);
    Error error = {0};
    StepResult result;
    assert_int_equal(train_step_run(&f->step, &padded, 0, 1e-2, &result, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "token 70 is not one of the table's 65 rows"));
    close_fixture(f);
}

/* Rows that fill up a large vocabulary have no part in the softmax, get no gradient and stay what they are: zeros. */
static void padding_of_the_vocabulary_has_no_effect(void **state) {
    (void)state;
    static const struct { int64_t vocabulary, rows; } sizes[] = {{4100, 4224}, {65, 72}};
    for (int i = 0; i < 4; i++) {
        const int64_t vocabulary = sizes[i / 2].vocabulary;
        const bool is_tied = i % 2;
        ModelConfig config = small_config();
        config.vocabulary = vocabulary;
        config.tied = is_tied;
        Fixture *f = open_fixture(config, small_step(), small_optimizer(), 2);
        const Parameter *table =
            parameter_find(&f->table, is_tied ? ROLE_TOKEN_TABLE : ROLE_HEAD_WEIGHT, NO_BLOCK);
        float *weights = (float *)f->memory.base[PLACE_PARAMETER] + table->flat_offset;
        const Tensor *gradient =
            f->step.loss.parameters.tensor[table - f->table.parameter]->gradient; /* (rows,C) */
        assert_int_equal(table->shape.dim[0], vocabulary);
        assert_int_equal(gradient->shape.dim[0], sizes[i / 2].rows);
        memset(weights, 0, (size_t)vocabulary * C * sizeof(float)); /* all classes alike */
        assert_true(fabs(run_step(f, 0).loss - log((double)vocabulary)) < 1e-5);
        run_step(f, 1);
        const float *values = executor_address(&f->step.executor, gradient);
        for (int64_t k = vocabulary * C; k < tensor_count(gradient); k++) {
            assert_true(values[k] == 0.0f);
            assert_true(weights[k] == 0.0f);
        }
        close_fixture(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_have_right_gradients),
        cmocka_unit_test(padding_of_the_vocabulary_has_no_effect),
        cmocka_unit_test(padding_is_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
