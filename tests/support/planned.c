/* See planned.h. */
#include "planned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/options/options.h"

static const OptionGroup groups[] = {OPTION_GROUP("Model", Planned, config, model_option_specs),
                                     OPTION_GROUP_END};
static const OptionCommand command = {.name = "test", .summary = "", .groups = groups};

void planned_open(Planned *planned, const PlannedCase *c, const Backend *backend) {
    Error error = {0};
    Options options;
    *planned = (Planned){0};
    assert_int_equal(options_init(&options, &command, planned, &error), STATUS_OK);
    assert_int_equal(config_apply_preset(&options, c->model, &error), STATUS_OK);
    if (!planned->config.vocabulary) planned->config.vocabulary = c->vocabulary;
    assert_int_equal(config_complete(&planned->config, planned->config.vocabulary, &error), STATUS_OK);
    if (planned->config.context < c->sequence) planned->config.context = c->sequence;
    assert_int_equal(parameters_build(&planned->table, &planned->config, &error), STATUS_OK);
    StepOptions step = {.batch = c->batch,
                        .micro_batch = c->batch,
                        .T = c->sequence,
                        .recompute = c->recompute,
                        .precision = precision_of(c->precision),
                        .seed = 1};
    OptimizerOptions optimizer = {
        .kind = OPTIMIZER_ADAMW, .rate = 3e-4, .adamw = {0.9, 0.99, 1e-8}, .clip = c->clip};
    if (train_step_plan(&planned->step, &planned->config, &planned->table, &step, &optimizer, backend,
                        &error) != STATUS_OK)
        fail_msg("%s", error.text);
    options_free(&options);
}

void planned_close(Planned *planned) {
    train_step_close(&planned->step);
    parameters_free(&planned->table);
}

void assert_same_program(const Program *a, const Program *b) {
    assert_int_equal(a->graph->n_nodes, b->graph->n_nodes);
    for (int i = 0; i < a->graph->n_nodes; i++) {
        const Node *x = a->graph->node[i], *y = b->graph->node[i];
        assert_ptr_equal(x->op, y->op);
        size_t of_x = x->scratch ? tensor_bytes(x->scratch) : 0,
               of_y = y->scratch ? tensor_bytes(y->scratch) : 0;
        if (of_x != of_y) fail_msg("scratch of %s: %zu and %zu bytes", x->op->name, of_x, of_y);
        if (of_x) assert_int_equal(x->scratch->offset, y->scratch->offset);
        for (int k = 0; k < x->n_outputs; k++) {
            assert_int_equal(!x->output[k], !y->output[k]);
            if (x->output[k]) assert_int_equal(x->output[k]->offset, y->output[k]->offset);
        }
    }
    for (int place = 0; place < N_PLACES; place++)
        assert_int_equal(a->plan.bytes[place], b->plan.bytes[place]);
}
