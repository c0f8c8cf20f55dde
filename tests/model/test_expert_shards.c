/* Tables of ranks that divide the experts: together they have every element of every expert once and all else
 * alike, with the values of the whole model, whatever tp divides as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/parameters.h"
#include "ops/experts/experts.h"

#include <stdlib.h>
#include <string.h>

enum { SEED = 5, EXPERTS = 5 };

static ModelConfig config_of(bool is_gated) {
    ModelConfig config = {.n_layers = 3,
                          .n_heads = 2,
                          .n_channels = 12,
                          .context = 8,
                          .vocabulary = 19,
                          .tied = true,
                          .bias = true,
                          .mlp = is_gated ? MLP_SWIGLU : MLP_GELU_TANH,
                          .n_experts = EXPERTS,
                          .n_chosen = 2,
                          .expert_every = 2,
                          .n_shared_experts = 1,
                          .expert_hidden = 7};
    Error error = {0};
    if (config_complete(&config, config.vocabulary, &error) != STATUS_OK) fail_msg("%s", error.text);
    return config;
}

static float *values_of(const ParameterTable *table) {
    float *flat = calloc((size_t)table->n_flat_elements + 1, sizeof *flat);
    assert_non_null(flat);
    parameters_initialise(table, SEED, flat, 1);
    return flat;
}

/* Adds what this rank holds of each element of the whole model, if its values are those. */
static void count_rank(const ParameterTable *whole, const float *values, const ModelConfig *config, int n_tp,
                       int tp, int n_ep, int ep, unsigned char *n_holders) {
    ParameterPart part = parameter_part_whole(config);
    part.n_ranks = n_tp, part.rank = tp, part.n_expert_ranks = n_ep, part.expert_rank = ep;
    ParameterTable table;
    Error error = {0};
    if (parameters_build_part(&table, config, &part, &error) != STATUS_OK) fail_msg("%s", error.text);
    float *own = values_of(&table);
    assert_int_equal(table.n_parameters, whole->n_parameters);
    for (int i = 0; i < table.n_parameters; i++) {
        const Parameter *parameter = &table.parameter[i], *global = &whole->parameter[i];
        bool is_divided = n_ep > 1 && role_is_of_experts(parameter->role);
        const Box all = box_whole(parameter->whole);
        const float *at = own + parameter->flat_offset;
        assert_int_equal(parameter->group, is_divided ? FLAT_EXPERTS : FLAT_SHARED);
        for (int k = 0; k < parameter->shard.n_boxes; k++) {
            const Box *box = &parameter->shard.box[k].box;
            for (int64_t e = 0; e < shape_count(box->shape); e++, at++) {
                int64_t element = global->flat_offset + box_element(box, &all, e);
                assert_true(*at == values[element]);
                if (parameter->shard.box[k].is_owner) n_holders[element]++;
            }
        }
        assert_int_equal(at - own - parameter->flat_offset, shape_count(parameter->shape));
    }
    free(own);
    parameters_free(&table);
}

static void check_layout(const ModelConfig *config, int n_tp, int n_ep) {
    ParameterTable whole;
    Error error = {0};
    if (parameters_build(&whole, config, &error) != STATUS_OK) fail_msg("%s", error.text);
    float *values = values_of(&whole);
    unsigned char *n_holders = calloc((size_t)whole.n_flat_elements + 1, 1);
    assert_non_null(n_holders);
    for (int rank = 0; rank < n_tp * n_ep; rank++)
        count_rank(&whole, values, config, n_tp, rank % n_tp, n_ep, rank / n_tp, n_holders);
    for (int i = 0; i < whole.n_parameters; i++) {
        const Parameter *parameter = &whole.parameter[i];
        int wanted = role_is_of_experts(parameter->role) ? 1 : n_ep;
        for (int64_t k = 0; k < shape_count(parameter->shape); k++)
            if (n_holders[parameter->flat_offset + k] != wanted)
                fail_msg("tp %d, ep %d: element %lld of %s is on %d ranks of ep", n_tp, n_ep, (long long)k,
                         parameter->name, n_holders[parameter->flat_offset + k]);
    }
    free(values), free(n_holders);
    parameters_free(&whole);
}

static void test_layouts(void **state) {
    (void)state;
    for (int is_gated = 0; is_gated < 2; is_gated++) {
        ModelConfig config = config_of(is_gated);
        for (int n_ep = 1; n_ep <= EXPERTS; n_ep++)
            for (int n_tp = 1; n_tp <= 9; n_tp += 2)
                check_layout(&config, n_tp, n_ep); /* 9: more than channels */
    }
}

/* What is computed as one matrix an expert is laid out as one. */
static void test_laid_out(void **state) {
    (void)state;
    ModelConfig config = config_of(true);
    ParameterPart part = parameter_part_whole(&config);
    part.n_expert_ranks = 2, part.expert_rank = 1, part.n_ranks = 2;
    ParameterTable table;
    Error error = {0};
    assert_int_equal(parameters_build_part(&table, &config, &part, &error), STATUS_OK);
    const Parameter *fc = parameter_find(&table, ROLE_EXPERT_FC_WEIGHT, 1);
    assert_true(shape_equal(fc->shape, SHAPE(2, 2, 4, 12)));
    assert_true(shape_equal(fc->laid_out, SHAPE(2, 8, 12)));
    assert_true(shape_equal(parameter_find(&table, ROLE_EXPERT_PROJ_BIAS, 1)->shape, SHAPE(2, 12)));
    GroupCounts counts = parameters_count_groups(&table);
    assert_int_equal(counts.n[FLAT_EXPERTS], 2 * 2 * 4 * 12 + 2 * 2 * 4 + 2 * 12 * 4 + 2 * 12);
    assert_int_equal(counts.n[FLAT_SHARED] + counts.n[FLAT_EXPERTS], table.n_elements);
    parameters_free(&table);
}

static void test_refused(void **state) {
    (void)state;
    ModelConfig config = config_of(false);
    ParameterPart part = parameter_part_whole(&config);
    part.n_expert_ranks = EXPERTS + 1;
    ParameterTable table;
    Error error = {0};
    assert_int_equal(parameters_build_part(&table, &config, &part, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "has none of 5 experts"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_laid_out),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
