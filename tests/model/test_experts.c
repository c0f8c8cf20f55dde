/* Mixtures of experts as a whole: one expert is the MLP, room without end drops nothing, routers' losses have their
 * gradients, and what a step reports is right, however lopsided the load. */
#include "harness.h"
#include "model_fixture.h"
#include "ops/experts/experts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { E = 6, K = 2 };

static ModelConfig expert_config(int router) {
    ModelConfig config = small_config();
    config.n_experts = E;
    config.router = router;
    config.expert_hidden = 2 * C;
    config.balance_loss = 0.01;
    config.z_loss = 0.001;
    config.bias_rate = 1e-3;
    return config;
}

static float *values_of(Fixture *f, ParameterRole role, int block) {
    const Parameter *parameter = parameter_find(&f->table, role, block);
    assert_non_null(parameter);
    return (float *)f->memory.base[PLACE_PARAMETER] + parameter->flat_offset;
}

static int64_t count_of(const Fixture *f, ParameterRole role, int block) {
    return shape_count(parameter_find(&f->table, role, block)->shape);
}

/* ---- one expert, whose gate is 1 */

static void one_expert_is_the_mlp(void **state) {
    (void)state;
    static const ParameterRole roles[][2] = {{ROLE_FC_WEIGHT, ROLE_EXPERT_FC_WEIGHT},
                                             {ROLE_FC_BIAS, ROLE_EXPERT_FC_BIAS},
                                             {ROLE_PROJ_WEIGHT, ROLE_EXPERT_PROJ_WEIGHT},
                                             {ROLE_PROJ_BIAS, ROLE_EXPERT_PROJ_BIAS}};
    static const int routers[] = {ROUTER_TOPK, ROUTER_SWITCH, ROUTER_NOISY_TOPK, ROUTER_BALANCE_FREE,
                                  ROUTER_EXPERT_CHOICE}; /* gshard has two */
    for (int i = 0; i < 3 + 4; i++) { /* each of three kinds of MLP, then the other routers */
        ModelConfig dense = small_config(), mixed = small_config();
        dense.mlp = mixed.mlp = i < 3 ? MLP_GELU_TANH + i : MLP_GELU_TANH;
        mixed.n_experts = 1;
        mixed.router = routers[i < 3 ? 0 : i - 2];
        Fixture *a = open_fixture(dense, small_step(), small_optimizer(), 2);
        Fixture *b = open_fixture(mixed, small_step(), small_optimizer(), 2);
        for (int block = 0; block < L; block++)
            for (int k = 0; k < 4; k++) {
                assert_int_equal(count_of(a, roles[k][0], block), count_of(b, roles[k][1], block));
                memcpy(values_of(b, roles[k][1], block), values_of(a, roles[k][0], block),
                       sizeof(float) * (size_t)count_of(a, roles[k][0], block));
            }
        for (int step = 0; step < 4; step++) {
            StepResult dense_result = run_step(a, step), mixed_result = run_step(b, step);
            /* The norm of the gradient adds up in another order, so later steps may round otherwise. */
            if (step == 0) assert_true(dense_result.loss == mixed_result.loss); /* bit for bit */
            assert_true(fabs(dense_result.loss - mixed_result.loss) < 2e-6);
            assert_true(mixed_result.routes.busiest == 1.0 && mixed_result.routes.n_empty == 0);
        }
        for (int block = 0; block < L; block++)
            for (int k = 0; k < 4; k++)
                test_assert_close(values_of(b, roles[k][1], block), values_of(a, roles[k][0], block),
                                  count_of(a, roles[k][0], block), 1e-4, 0.0, "weights of block %d", block);
        close_fixture(a);
        close_fixture(b);
    }
}

/* ---- room */

static void endless_room_drops_nothing(void **state) {
    (void)state;
    for (int router = ROUTER_TOPK; router <= ROUTER_BALANCE_FREE; router++) {
        ModelConfig dropless = expert_config(router), roomy = dropless;
        roomy.expert_capacity = 1000.0;
        Fixture *a = open_fixture(dropless, small_step(), small_optimizer(), 2);
        Fixture *b = open_fixture(roomy, small_step(), small_optimizer(), 1);
        for (int step = 0; step < 3; step++) {
            StepResult x = run_step(a, step), y = run_step(b, step);
            assert_true(x.loss == y.loss && x.gradient_norm == y.gradient_norm);
            assert_true(x.routes.dropped == 0.0 && y.routes.dropped == 0.0);
            assert_true(x.routes.busiest == y.routes.busiest);
        }
        close_fixture(a);
        close_fixture(b);
    }
}

/* ---- the report is of the step, however it is cut up */

static void assert_same_report(const RouterReport *a, const RouterReport *b) {
    assert_true(a->is_there && b->is_there);
    assert_true(a->busiest == b->busiest && a->dropped == b->dropped); /* of whole numbers */
    assert_int_equal(a->n_empty, b->n_empty);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_true(fabs(a->entropy - b->entropy) < 1e-5);
    assert_true(fabs(a->balance_loss - b->balance_loss) < 1e-6 && fabs(a->z_loss - b->z_loss) < 1e-6);
}

static void reports_count_each_token_once(void **state) {
    (void)state;
    for (int router = 0; router < N_ROUTERS; router++) {
        ModelConfig config = expert_config(router);
        config.expert_capacity = 1.0;
        StepOptions cut = small_step(), again = small_step();
        cut.micro_batch = 1;
        again.recompute = 1;
        Fixture *f[] = {open_fixture(config, small_step(), small_optimizer(), 2),
                        open_fixture(config, cut, small_optimizer(), 2),
                        open_fixture(config, again, small_optimizer(), 2)};
        for (int step = 0; step < 2; step++) {
            RouterReport whole = run_step(f[0], step).routes;
            assert_int_equal(whole.n_tokens, L * B * T);
            assert_int_equal(whole.n_all, L * E);
            for (int i = 1; i < 3; i++) {
                RouterReport other = run_step(f[i], step).routes;
                assert_same_report(&whole, &other);
            }
        }
        for (int i = 0; i < 3; i++) close_fixture(f[i]);
    }
}

/* ---- lopsided */

static void fill_same(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions, int32_t *tokens,
                      int32_t *targets) {
    (void)context, (void)first_sequence;
    for (int64_t i = 0; i < n * n_positions; i++) tokens[i] = targets[i] = 3;
}

/* A router of zeros likes all alike: ties go to the lower experts, so the first K have everything. */
static void all_want_the_same(void **state) {
    (void)state;
    static const BatchSource same = {fill_same, NULL};
    for (int round = 0; round < 2; round++) {
        ModelConfig config = expert_config(ROUTER_TOPK);
        config.position = POSITION_ROTARY;
        config.expert_capacity = round ? 1.0 : 0.0;
        Fixture *f = open_fixture(config, small_step(), small_optimizer(), 2);
        for (int block = 0; block < L; block++)
            memset(values_of(f, ROLE_ROUTER_WEIGHT, block), 0,
                   sizeof(float) * (size_t)count_of(f, ROLE_ROUTER_WEIGHT, block));
        StepResult result = run_step_on(f, &same, 0);
        int64_t room = (K * T + E - 1) / E; /* of an expert and sequence */
        assert_true(isfinite(result.loss) && isfinite(result.gradient_norm));
        assert_true(result.routes.busiest == (double)E / K);
        assert_int_equal(result.routes.n_empty, L * (E - K));
        double dropped = round ? 1.0 - (double)room / T : 0.0;
        assert_true(fabs(result.routes.dropped - dropped) < 1e-6);
        assert_true(fabs(result.routes.entropy - log(E)) < 1e-5);
        char text[512];
        assert_true(router_report_is_bad(&f->step.config, &result.routes, text, sizeof text));
        assert_non_null(strstr(text, "--balance-loss"));
        close_fixture(f);
    }
}

/* Of few experts, one that all tokens have is trouble where they have no other. */
static void few_experts_collapse(void **state) {
    (void)state;
    static const struct {
        int64_t n_experts, n_chosen;
        int router;
        double busiest;
        bool is_bad;
    } cases[] = {{2, 1, ROUTER_SWITCH, 2.0, true},    {2, 1, ROUTER_SWITCH, 1.5, false},
                 {3, 2, ROUTER_TOPK, 1.5, false},     {8, 2, ROUTER_TOPK, 3.9, true},
                 {1, 1, ROUTER_SWITCH, 1.0, false},   {8, 1, ROUTER_EXPERT_CHOICE, 7.9, true},
                 {8, 2, ROUTER_BALANCE_FREE, 4, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ModelConfig config = {
            .n_experts = cases[i].n_experts, .n_chosen = cases[i].n_chosen, .router = cases[i].router};
        RouterReport report = {
            .is_there = true, .busiest = cases[i].busiest, .n_all = cases[i].n_experts, .n_tokens = 100};
        char text[512] = "";
        assert_int_equal(router_report_is_bad(&config, &report, text, sizeof text), cases[i].is_bad);
        const char *own = cases[i].router == ROUTER_BALANCE_FREE    ? "--router balance-free"
                          : cases[i].router == ROUTER_EXPERT_CHOICE ? "--router expert-choice"
                                                                    : "--router switch";
        assert_null(strstr(text, own)); /* it is taken already */
    }
}

/* Where a step has fewer choices than there are experts, some get nothing: no fault of the router. */
static void few_tokens_are_no_collapse(void **state) {
    (void)state;
    static const struct {
        int64_t n_experts, n_chosen, n_tokens, n_empty; /* of two blocks together */
        double busiest;
        bool is_bad;
    } cases[] = {{4, 1, 2, 6, 4.0, false},    {8, 2, 2, 12, 4.0, false},   {8, 1, 8, 9, 4.0, false},
                 {61, 2, 20, 90, 9.0, false}, {61, 2, 20, 103, 9.0, true}, {8, 1, 8, 14, 8.0, true},
                 {8, 1, 64, 7, 4.0, false},   {8, 1, 64, 8, 4.0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ModelConfig config = {.n_experts = cases[i].n_experts, .n_chosen = cases[i].n_chosen};
        RouterReport report = {.is_there = true,
                               .busiest = cases[i].busiest,
                               .n_empty = cases[i].n_empty,
                               .n_all = 2 * cases[i].n_experts,
                               .n_tokens = cases[i].n_tokens};
        char text[512] = "";
        assert_int_equal(router_report_is_bad(&config, &report, text, sizeof text), cases[i].is_bad);
    }
}

static void more_experts_than_tokens(void **state) {
    (void)state;
    ModelConfig config = expert_config(ROUTER_TOPK);
    config.n_experts = 200;
    config.expert_hidden = 3;
    StepOptions options = small_step();
    options.batch = options.micro_batch = 1;
    Fixture *f = open_fixture(config, options, small_optimizer(), 2);
    for (int step = 0; step < 3; step++) {
        StepResult result = run_step(f, step);
        assert_true(isfinite(result.loss) && isfinite(result.gradient_norm));
        assert_in_range(result.routes.n_empty, L * (200 - K * T), L * 200 - K);
    }
    close_fixture(f);
}

/* ---- the routers' losses */

/* What they add to the gradient of the last router is the slope of what is reported. */
static void losses_have_their_gradients(void **state) {
    (void)state;
    OptimizerOptions still = small_optimizer();
    still.rate = still.weight_decay = still.clip = 0.0;
    for (int router = 0; router <= ROUTER_BALANCE_FREE; router++) {
        ModelConfig with = expert_config(router), without = with;
        with.balance_loss = 0.5;
        with.z_loss = 0.25;
        with.bias_rate = 0.0; /* each step is to be the same */
        without.balance_loss = without.z_loss = 0.0;
        Fixture *a = open_fixture(with, small_step(), still, 2),
                *b = open_fixture(without, small_step(), still, 2);
        int last = L - 1,
            index = (int)(parameter_find(&a->table, ROLE_ROUTER_WEIGHT, last) - a->table.parameter);
        run_step(a, 0);
        run_step(b, 0);
        float gradient[E * C], *weight = values_of(a, ROLE_ROUTER_WEIGHT, last);
        const float *da =
                        executor_address(&a->step.executor, a->step.loss.parameters.tensor[index]->gradient),
                    *db =
                        executor_address(&b->step.executor, b->step.loss.parameters.tensor[index]->gradient);
        for (int i = 0; i < E * C; i++) gradient[i] = da[i] - db[i];
        for (int i = 0; i < E * C; i += 17) {
            const float step = 1.0f / 1024;
            double sum[2];
            float kept = weight[i];
            for (int side = 0; side < 2; side++) {
                weight[i] = kept + (side ? step : -step);
                RouterReport routes = run_step(a, 0).routes;
                sum[side] = routes.balance_loss + routes.z_loss;
            }
            weight[i] = kept;
            double slope = (sum[1] - sum[0]) / (2.0 * (double)step);
            if (fabs(slope - (double)gradient[i]) > 2e-3 + 2e-2 * fabs(slope))
                fail_msg("router %d, element %d: gradient %g, slope %g", router, i, (double)gradient[i],
                         slope);
        }
        close_fixture(a);
        close_fixture(b);
    }
}

/* Without a loss: a bias moves against its expert's load, and evens it out. */
static void biases_even_out_the_load(void **state) {
    (void)state;
    OptimizerOptions still = small_optimizer();
    still.rate = still.weight_decay = 0.0;
    ModelConfig config = expert_config(ROUTER_BALANCE_FREE);
    config.balance_loss = config.z_loss = 0.0;
    config.router_gate = GATE_SIGMOID;
    config.bias_rate = 0.01;
    Fixture *f = open_fixture(config, small_step(), still, 2);
    for (int block = 0; block < L; block++) { /* all want the first, and then the second */
        float *router = values_of(f, ROLE_ROUTER_WEIGHT, block);
        for (int i = 0; i < E * C; i++) router[i] *= 0.2f;
    }
    double first = run_step(f, 0).routes.busiest, last = first;
    float bias[L * E];
    Error error = {0};
    assert_int_equal(executor_download(&f->step.executor, f->step.loss.parameters.router_bias, bias, &error),
                     STATUS_OK);
    for (int i = 0; i < L * E; i++) assert_true(fabsf(bias[i]) <= 0.01f * 1.001f);
    for (int step = 0; step < 60; step++) last = run_step(f, 0).routes.busiest;
    if (!(first > 1.5 && last < 0.8 * first)) fail_msg("the busiest expert has %g, at first %g", last, first);
    close_fixture(f);
}

static void wrong_sizes_are_refused(void **state) {
    (void)state;
    static const struct {
        int64_t n_experts, n_chosen;
        int router, gate;
        const char *words;
    } wrong[] = {{4, 5, ROUTER_TOPK, GATE_SOFTMAX, "--experts-per-token 5"},
                 {4, 2, ROUTER_SWITCH, GATE_SOFTMAX, "--router switch"},
                 {4, 1, ROUTER_GSHARD, GATE_SOFTMAX, "--router gshard"},
                 {4, 2, ROUTER_NOISY_TOPK, GATE_SIGMOID, "--router-gate sigmoid"},
                 {1, 0, ROUTER_GSHARD, GATE_SOFTMAX, "--router gshard sends a token to 2 experts"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ModelConfig config = small_config();
        config.n_experts = wrong[i].n_experts;
        config.n_chosen = wrong[i].n_chosen;
        config.router = wrong[i].router;
        config.router_gate = wrong[i].gate;
        Error error = {0};
        assert_int_equal(config_complete(&config, V, &error), STATUS_USER);
        if (!strstr(error.text, wrong[i].words))
            fail_msg("'%s' does not say '%s'", error.text, wrong[i].words);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_expert_is_the_mlp),         cmocka_unit_test(endless_room_drops_nothing),
        cmocka_unit_test(reports_count_each_token_once), cmocka_unit_test(all_want_the_same),
        cmocka_unit_test(more_experts_than_tokens),      cmocka_unit_test(losses_have_their_gradients),
        cmocka_unit_test(few_experts_collapse),          cmocka_unit_test(few_tokens_are_no_collapse),
        cmocka_unit_test(biases_even_out_the_load),      cmocka_unit_test(wrong_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
