/* Routers of every kind where load is as lopsided as it can be: all tokens the same, one expert wanted by all, experts
 * that get nothing, more experts than tokens, room for one token. Loss, reports and gradients are those of the plain
 * references, which know nothing of sorting by threads or of tiles. */
#include "harness.h"
#include "model_fixture.h"
#include "ops/experts/experts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    const char *name;
    int64_t n_experts;
    double capacity; /* 1e-9: one token */
    bool is_same;    /* all tokens */
    float router;    /* factor of its weights; 0: all experts are alike, and ties go to the first */
    float favour;    /* added to the weights of expert 1 where channels have a mean: all want it */
    int64_t recompute, micro_batch;
} Extreme;

static const Extreme extremes[] = {
    {"all tokens the same", 6, 0.0, true, 1.0f, 0.0f, 0, B},
    {"all the same, one token's room", 6, 1e-9, true, 1.0f, 0.0f, 0, 1},
    {"the first are wanted by all", 6, 0.0, false, 0.0f, 0.0f, 1, B},
    {"one is wanted by all", 6, 0.0, false, 0.01f, 4.0f, 1, 2},
    {"one is wanted by all, with room", 6, 1.0, false, 0.01f, 4.0f, 0, B},
    {"more experts than tokens", 150, 0.0, false, 1.0f, 0.0f, 0, 1},
    {"more experts than tokens, one token's room", 150, 1e-9, true, 1.0f, 0.0f, 1, 1},
    {"one token's room", 6, 1e-9, false, 1.0f, 0.0f, 0, B},
};

static void fill_same(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions, int32_t *tokens,
                      int32_t *targets) {
    (void)context, (void)first_sequence;
    for (int64_t i = 0; i < n * n_positions; i++) tokens[i] = targets[i] = 3;
}

static ModelConfig config_of(const Extreme *extreme, int router) {
    ModelConfig config = small_config();
    config.n_experts = extreme->n_experts;
    config.router = router;
    config.expert_hidden = 5;
    config.expert_capacity = extreme->capacity;
    config.balance_loss = 0.01;
    config.z_loss = 0.001;
    config.position = extreme->is_same ? POSITION_ROTARY : POSITION_LEARNED;
    return config;
}

/* The stream behind a norm whose bias is 1 has a mean, so that a router's weights of 1 are a bias of their own. */
static void set_weights(const Extreme *extreme, const ParameterTable *table, float *flat) {
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        float *values = flat + parameter->flat_offset;
        int64_t count = shape_count(parameter->shape);
        if (parameter->role == ROLE_NORM2_BIAS && extreme->favour != 0.0f)
            for (int64_t k = 0; k < count; k++) values[k] += 1.0f;
        if (parameter->role != ROLE_ROUTER_WEIGHT) continue;
        for (int64_t k = 0; k < count; k++) values[k] *= extreme->router;
        for (int64_t k = C; k < 2 * C; k++) values[k] += extreme->favour / C;
    }
}

/* The report of the references for what the executor was given last, block by block; returns the loss. */
static double reference_step(const Fixture *f, const ModelConfig *config, int64_t n, float *reports) {
    Graph *graph = graph_new();
    Error error = {0};
    GptLossOptions options = {.B = n, .T = T, .loss_scale = 1.0 / (B * T), .is_training = true};
    GptLoss loss = gpt_record_loss(config, &f->table, graph, &options);
    if (graph_status(graph, &error) != STATUS_OK) fail_msg("%s", error.text);
    TestMemory memory = test_memory_open(graph);
    const GptLoss *own = &f->step.loss;
    memcpy(test_memory_at(&memory, loss.parameters.flat), f->memory.base[PLACE_PARAMETER],
           sizeof(float) * (size_t)f->table.n_flat_elements);
    if (loss.parameters.router_bias)
        memset(test_memory_at(&memory, loss.parameters.router_bias), 0,
               tensor_bytes(loss.parameters.router_bias));
    const Tensor *to[] = {loss.tokens, loss.targets, loss.random},
                 *from[] = {own->tokens, own->targets, own->random};
    for (int i = 0; i < 3; i++)
        if (to[i])
            memcpy(test_memory_at(&memory, to[i]), executor_address(&f->step.executor, from[i]),
                   tensor_bytes(to[i]));
    test_memory_run(&memory, SECTION_FORWARD);
    memcpy(reports, test_memory_at(&memory, loss.reports), tensor_bytes(loss.reports));
    double value = (double)*(float *)test_memory_at(&memory, loss.loss);
    test_memory_close(&memory);
    graph_free(graph);
    return value;
}

/* What an expert that got nothing learns is nothing. */
static void check_empty(const Fixture *f, const char *name, const float *counts, int64_t E) {
    for (int i = 0; i < f->table.n_parameters; i++) {
        const Parameter *parameter = &f->table.parameter[i];
        const Tensor *tensor = f->step.loss.parameters.tensor[i];
        bool is_expert = parameter->role == ROLE_EXPERT_FC_WEIGHT || parameter->role == ROLE_EXPERT_FC_BIAS ||
                         parameter->role == ROLE_EXPERT_PROJ_WEIGHT ||
                         parameter->role == ROLE_EXPERT_PROJ_BIAS;
        const float *gradient = executor_address(&f->step.executor, tensor->gradient);
        int64_t count = shape_count(parameter->shape);
        for (int64_t k = 0; k < count; k++) {
            if (!isfinite(gradient[k])) fail_msg("%s: %s has no finite gradient", name, parameter->name);
            const float *of_block = counts + parameter->block * (E + N_ROUTE_COUNTS);
            if (is_expert && of_block[k / (count / E)] == 0.0f && gradient[k] != 0.0f)
                fail_msg("%s: an expert of %s that got nothing has a gradient", name, parameter->name);
        }
    }
}

static void check_extreme(const Extreme *extreme, int router) {
    static const BatchSource same = {fill_same, NULL};
    ModelConfig config = config_of(extreme, router);
    OptimizerOptions still = small_optimizer();
    StepOptions options = small_step();
    Error error = {0};
    char name[96];
    snprintf(name, sizeof name, "%s, router %d", extreme->name, router);
    still.rate = still.weight_decay = still.clip = 0.0;
    config.bias_rate = 0.0;
    options.recompute = extreme->recompute;
    options.micro_batch = options.batch = B; /* the references see all of it at once */
    Fixture *f = open_fixture(config, options, still, 2);
    set_weights(extreme, &f->table, f->memory.base[PLACE_PARAMETER]);
    StepResult result = run_step_on(f, extreme->is_same ? &same : &golden_batches, 0);
    assert_int_equal(config_complete(&config, V, &error), STATUS_OK);
    int64_t E = config.n_experts, n = L * (E + N_ROUTE_COUNTS);
    float *want = malloc(sizeof(float) * (size_t)n);
    const float *counts;
    /* Of tokens that are all alike, an expert takes those that rounding makes larger. */
    bool is_tie = extreme->is_same && router == ROUTER_EXPERT_CHOICE;
    double loss = reference_step(f, &config, B, want);
    if (!(fabs(result.loss - loss) <= (is_tie ? 0.1 : 1e-5)))
        fail_msg("%s: loss %.8g, reference %.8g", name, result.loss, loss);
    assert_int_equal(train_step_route_counts(&f->step, &counts, &error), STATUS_OK);
    for (int64_t i = 0; i < n; i++) {
        bool is_whole = i % (E + N_ROUTE_COUNTS) < E + ROUTE_ENTROPY;
        double off = fabs((double)counts[i] - (double)want[i]);
        if (is_tie && i % (E + N_ROUTE_COUNTS) >= E) continue;
        if (!(off <= (is_whole ? 0.0 : 1e-4 * (1.0 + fabs((double)want[i])))))
            fail_msg("%s: number %d of the report is %g, reference %g", name, (int)i, (double)counts[i],
                     (double)want[i]);
    }
    check_empty(f, name, counts, E);

    /* Cut up, it is the same step. */
    options.micro_batch = extreme->micro_batch;
    Fixture *cut = open_fixture(config_of(extreme, router), options, still, 1);
    set_weights(extreme, &cut->table, cut->memory.base[PLACE_PARAMETER]);
    StepResult again = run_step_on(cut, extreme->is_same ? &same : &golden_batches, 0);
    assert_true(fabs(again.loss - result.loss) < (is_tie ? 0.1 : 1e-5));
    assert_true(again.routes.busiest == result.routes.busiest);
    assert_true(is_tie || again.routes.dropped == result.routes.dropped);
    assert_int_equal(again.routes.n_empty, result.routes.n_empty);
    close_fixture(cut);
    close_fixture(f);
    free(want);
}

static void every_router_in_every_extreme(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof extremes / sizeof extremes[0]; i++)
        for (int router = 0; router < N_ROUTERS; router++) check_extreme(&extremes[i], router);
}

/* They are what they are called. */
static void extremes_are_extreme(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof extremes / sizeof extremes[0]; i++) {
        const Extreme *extreme = &extremes[i];
        static const BatchSource same = {fill_same, NULL};
        Fixture *f = open_fixture(config_of(extreme, ROUTER_SWITCH), small_step(), small_optimizer(), 2);
        set_weights(extreme, &f->table, f->memory.base[PLACE_PARAMETER]);
        RouterReport routes = run_step_on(f, extreme->is_same ? &same : &golden_batches, 0).routes;
        double most = (double)extreme->n_experts;
        bool is_one = extreme->is_same || extreme->favour != 0.0f || extreme->router == 0.0f;
        if (is_one && routes.busiest != most)
            fail_msg("%s: the busiest expert has %g of %g", extreme->name, routes.busiest, most);
        if (is_one || extreme->n_experts > B * T) assert_true(routes.n_empty > 0);
        if (extreme->capacity > 0.0) assert_true(routes.dropped > 0.2);
        else assert_true(routes.dropped == 0.0);
        close_fixture(f);
    }
}

/* Room for one token of a sequence: the first that wants an expert has it, and no other. */
static void one_token_has_the_room(void **state) {
    (void)state;
    for (int router = ROUTER_TOPK; router <= ROUTER_BALANCE_FREE; router++) {
        Fixture *f = open_fixture(config_of(&extremes[1], router), small_step(), small_optimizer(), 2);
        static const BatchSource same = {fill_same, NULL};
        Error error = {0};
        const float *counts;
        RouterReport routes = run_step_on(f, &same, 0).routes;
        assert_int_equal(train_step_route_counts(&f->step, &counts, &error), STATUS_OK);
        for (int e = 0; e < 6; e++) assert_true(counts[e] == 0.0f || counts[e] <= (float)B);
        assert_true(routes.dropped > 0.4);
        close_fixture(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_router_in_every_extreme),
        cmocka_unit_test(extremes_are_extreme),
        cmocka_unit_test(one_token_has_the_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
