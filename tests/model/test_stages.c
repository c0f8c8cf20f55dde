/* Stages of pipelines: the cut that is chosen against all that there are, what a user says, and what is wrong with it. */
#include "graph/op.h"
#include "graph/passes/autograd.h"
#include "model/gpt.h"
#include "model/model_flops.h"
#include "model/stages.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        Error ok_error = {0}, *error = &ok_error;                                                            \
        if ((call) != STATUS_OK) fail_msg("%s", ok_error.text);                                              \
    } while (0)

static ModelConfig config_of(int n_layers, int64_t channels, int64_t vocabulary, bool tied) {
    ModelConfig config = {.n_layers = n_layers,
                          .n_heads = 4,
                          .n_channels = channels,
                          .context = 64,
                          .vocabulary = vocabulary,
                          .tied = tied,
                          .bias = true,
                          .rotary_theta = 1e4};
    OK(config_complete(&config, vocabulary, error));
    return config;
}

static StagesOptions options_of(ScheduleKind schedule, int n_stages, int n_chunks) {
    return (StagesOptions){
        .schedule = schedule, .shape = {8, n_stages, n_chunks}, .n_tp = 1, .B = 2, .T = 64};
}

/* ---- the best of all cuts */

typedef struct {
    double flops, bytes; /* of the slowest, and of the largest stage */
} Worst;

static Worst worst_of(const Stages *stages) {
    Worst worst = {0};
    for (int stage = 0; stage < stages->shape.n_stages; stage++) {
        Worst sum = {0};
        for (int chunk = 0; chunk < stages->shape.n_chunks; chunk++) {
            sum.flops += stages_chunk(stages, stage, chunk)->flops;
            sum.bytes += stages_chunk(stages, stage, chunk)->bytes;
        }
        worst.flops = fmax(worst.flops, sum.flops);
        worst.bytes = fmax(worst.bytes, sum.bytes);
    }
    return worst;
}

static bool is_less(double a, double b) {
    return a < b * (1.0 - 1e-12);
}

/* Every cut of `left` blocks over the virtual stages from `at` on. */
static void try_cuts(const ModelConfig *config, const StagesOptions *options, char *text, int at, int left,
                     Worst *best) {
    int n_virtual = options->shape.n_stages * options->shape.n_chunks;
    size_t length = strlen(text);
    for (int n = at == n_virtual - 1 ? left : 1; n <= left - (n_virtual - 1 - at); n++) {
        sprintf(text + length, "%s%d", at ? "," : "", n);
        if (at < n_virtual - 1) {
            try_cuts(config, options, text, at + 1, left - n, best);
            continue;
        }
        Arena arena = {0};
        Stages stages;
        OK(stages_parse(&stages, text, config, options, &arena, error));
        Worst worst = worst_of(&stages);
        bool is_equal = !is_less(worst.flops, best->flops) && !is_less(best->flops, worst.flops);
        if (is_less(worst.flops, best->flops) || (is_equal && is_less(worst.bytes, best->bytes)))
            *best = worst;
        arena_free(&arena);
    }
    text[length] = '\0';
}

static void check_sound(const Stages *stages, const ModelConfig *config) {
    int first = 0, n_virtual = stages->n_virtual;
    assert_int_equal(n_virtual, stages->shape.n_stages * stages->shape.n_chunks);
    for (int i = 0; i < n_virtual; i++) {
        const VirtualStage *stage = &stages->virtual_stage[i];
        assert_int_equal(stage->part.first_block, first);
        assert_true(stage->part.end_block > first);
        assert_int_equal(stage->part.has_embedding, i == 0);
        assert_int_equal(stage->part.has_head, i == n_virtual - 1);
        assert_ptr_equal(stages_chunk(stages, stage->stage, stage->chunk), stage);
        first = stage->part.end_block;
    }
    assert_int_equal(first, config->n_layers);
}

static void check_best(const ModelConfig *config, const StagesOptions *options) {
    Arena arena = {0};
    Stages stages, again;
    Worst best = {INFINITY, INFINITY};
    char text[200] = "";
    OK(stages_balance(&stages, config, options, &arena, error));
    check_sound(&stages, config);
    try_cuts(config, options, text, 0, (int)config->n_layers, &best);
    Worst worst = worst_of(&stages);
    if (is_less(best.flops, worst.flops) || is_less(best.bytes, worst.bytes))
        fail_msg("%d blocks on %d stages of %d chunks, %s: %g FLOPs and %g bytes, not %g and %g",
                 (int)config->n_layers, options->shape.n_stages, options->shape.n_chunks,
                 stages_text(&stages, &arena), worst.flops, worst.bytes, best.flops, best.bytes);
    OK(stages_parse(&again, stages_text(&stages, &arena), config, options, &arena, error));
    assert_string_equal(stages_text(&again, &arena), stages_text(&stages, &arena));
    arena_free(&arena);
}

static void test_best_of_all(void **state) {
    (void)state;
    static const int64_t vocabularies[] = {50, 900,
                                           9000}; /* a head of a fraction of a block, of one, of many */
    for (int n_layers = 1; n_layers <= 8; n_layers++) {
        for (int i = 0; i < 6; i++) {
            ModelConfig config = config_of(n_layers, 48, vocabularies[i / 2], i % 2);
            for (int p = 1; p <= n_layers; p++) {
                StagesOptions options = options_of(p % 2 ? SCHEDULE_1F1B : SCHEDULE_GPIPE, p, 1);
                check_best(&config, &options);
                for (int v = 2; v * p <= n_layers && v <= 4; v++) {
                    options = options_of(SCHEDULE_INTERLEAVED, p, v);
                    check_best(&config, &options);
                }
                options = options_of(SCHEDULE_ZB_V, p, 2);
                options.n_tp = 3;
                if (2 * p <= n_layers) check_best(&config, &options);
            }
        }
    }
}

/* GPT-2 of 124 million parameters: its head computes as much as five blocks, so the last stage gets one, and none of the
 * others is slower; the table takes as much memory as five blocks, so the first stage gets one, too. Where it is small,
 * stages are equal, and so are the chunks of a stage. */
static void test_by_hand(void **state) {
    (void)state;
    Arena arena = {0};
    Stages stages;
    ModelConfig config = config_of(12, 768, 50257, true);
    StagesOptions options = options_of(SCHEDULE_1F1B, 4, 1);
    OK(stages_balance(&stages, &config, &options, &arena, error));
    assert_string_equal(stages_text(&stages, &arena), "1,5,5,1");
    assert_true(stages_imbalance(&stages) > 1.2 && stages_imbalance(&stages) < 1.6);
    config = config_of(12, 768, 65, true);
    OK(stages_balance(&stages, &config, &options, &arena, error));
    assert_string_equal(stages_text(&stages, &arena), "3,3,3,3");
    assert_true(stages_imbalance(&stages) < 1.01);
    options = options_of(SCHEDULE_INTERLEAVED, 2, 3);
    OK(stages_balance(&stages, &config, &options, &arena, error));
    assert_string_equal(stages_text(&stages, &arena), "2,2,2,2,2,2");
    arena_free(&arena);
}

/* ---- what it is counted by */

/* FLOPs of the recorded program: of a block's nodes, and of all others. */
static void count_program(const ModelConfig *config, int64_t T, double *block, double *rest) {
    Graph *graph = graph_new();
    ParameterTable table;
    enum { B = 2 };
    GptLossOptions options = {.B = B, .T = T, .loss_scale = 1.0, .is_training = true};
    AutogradOptions autograd = {.copy = &OP_COPY, .gradient_place = PLACE_GRADIENT};
    OK(parameters_build(&table, config, error));
    gpt_record_loss(config, &table, graph, &options);
    OK(autograd_run(graph, &autograd, error));
    *block = *rest = 0.0;
    for (int i = 0; i < graph->n_nodes; i++) {
        double flops = op_cost(graph->node[i]).flops / (double)(B * T);
        if (graph->node[i]->block == NO_BLOCK) *rest += flops;
        else *block += flops / (double)config->n_layers;
    }
    parameters_free(&table);
    graph_free(graph);
}

static void test_flops(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        ModelConfig config = config_of(3, i == 2 ? 256 : 128, 1000, i == 0);
        if (i == 1) {
            config.norm = NORM_RMSNORM;
            config.mlp = MLP_SWIGLU;
            config.position = POSITION_ROTARY;
            config.n_kv_heads = 2;
            config.n_hidden = 344;
        }
        int64_t T = i == 2 ? 16 : 64;
        double block, rest;
        count_program(&config, T, &block, &rest);
        PartFlops parts = model_flops_parts(&config, T, 1);
        if (fabs(parts.block / block - 1.0) > 0.03 ||
            fabs((parts.embedding + parts.head) / rest - 1.0) > 0.03)
            fail_msg("model %d: %g FLOPs a block, counted %g; %g of the rest, counted %g", i, parts.block,
                     block, parts.embedding + parts.head, rest);
        PartFlops half = model_flops_parts(&config, T, 2);
        assert_true(half.block < 0.56 * parts.block && half.head < 0.52 * parts.head);
    }
}

/* ---- parts */

static void test_parts(void **state) {
    (void)state;
    Arena arena = {0};
    Stages stages;
    ModelConfig config = config_of(7, 32, 50, true);
    StagesOptions options = options_of(SCHEDULE_ZB_V, 2, 2);
    OK(stages_parse(&stages, "1,3,2,1", &config, &options, &arena, error));
    ParameterPart part = stages_part(&stages, 0, 2, 1);
    assert_true(part.n_ranks == 2 && part.rank == 1 && part.n_chunks == 2);
    assert_true(part.chunk[0].first_block == 0 && part.chunk[0].end_block == 1);
    assert_true(part.chunk[0].has_embedding && !part.chunk[0].has_head);
    assert_true(part.chunk[1].first_block == 6 && part.chunk[1].end_block == 7);
    assert_true(!part.chunk[1].has_embedding && part.chunk[1].has_head);
    part = stages_part(&stages, 1, 2, 0);
    assert_true(part.chunk[0].first_block == 1 && part.chunk[0].end_block == 4);
    assert_true(part.chunk[1].first_block == 4 && part.chunk[1].end_block == 6);
    arena_free(&arena);
}

/* ---- mistakes */

static void assert_refused(Status status, const Error *error, const char *const *words) {
    assert_int_equal(status, STATUS_USER);
    for (; *words; words++) {
        if (!strstr(error->text, *words)) fail_msg("'%s' does not say '%s'", error->text, *words);
    }
}

#define REFUSED(call, ...)                                                                                   \
    do {                                                                                                     \
        Error refused = {0}, *error = &refused;                                                              \
        Status status = (call);                                                                              \
        assert_refused(status, error, (const char *const[]){__VA_ARGS__, NULL});                             \
    } while (0)

static void test_mistakes(void **state) {
    (void)state;
    Arena arena = {0};
    Stages stages;
    ModelConfig config = config_of(6, 32, 50, true);
    StagesOptions options = options_of(SCHEDULE_1F1B, 8, 1);
    REFUSED(stages_balance(&stages, &config, &options, &arena, error), "--pp 8", "6 blocks", "--pp 6",
            "--layers 8");
    options = options_of(SCHEDULE_INTERLEAVED, 2, 4);
    REFUSED(stages_balance(&stages, &config, &options, &arena, error), "8 parts",
            "choose --pp 2 --chunks 3, or --layers 8"); /* one stage has no chunks */
    options = options_of(SCHEDULE_ZB_V, 4, 2);
    REFUSED(stages_balance(&stages, &config, &options, &arena, error), "--pp 3 --chunks 2",
            "--pp 4 --schedule 1f1b");
    /* What the ranks can be divided into. */
    options = options_of(SCHEDULE_1F1B, 8, 1);
    options.n_ranks = 8;
    REFUSED(stages_balance(&stages, &config, &options, &arena, error), "choose --pp 4, or --layers 8");
    options = options_of(SCHEDULE_INTERLEAVED, 8, 2);
    options.n_ranks = 8;
    REFUSED(stages_balance(&stages, &config, &options, &arena, error),
            "choose --pp 2 --chunks 2 or --pp 4 --schedule 1f1b, or --layers 16");
    options = options_of(SCHEDULE_GPIPE, 7, 1);
    options.n_ranks = 7;
    REFUSED(stages_balance(&stages, &config, &options, &arena, error),
            "choose --pp 1 without --schedule, or");
    options = options_of(SCHEDULE_ZB_V, 2, 3); /* what the schedule has to say comes first */
    REFUSED(stages_balance(&stages, &config, &options, &arena, error), "--schedule zb-v");
    options = options_of(SCHEDULE_INTERLEAVED, 2, 2);
    static const char *const no_numbers[] = {"",        "1,2,3,",   ",1,2,3",   "1,2,x,1",
                                             "1,0,4,1", "1,-1,5,1", "1 ,2,2,1", "1,2,99999999999999999999,1",
                                             "1,,4,1"};
    for (size_t i = 0; i < sizeof no_numbers / sizeof no_numbers[0]; i++)
        REFUSED(stages_parse(&stages, no_numbers[i], &config, &options, &arena, error),
                "not a number of blocks", "4 stages");
    REFUSED(stages_parse(&stages, "1,2,3,", &config, &options, &arena, error),
            "number 4 is not a number of blocks");
    REFUSED(stages_parse(&stages, "2,2,2", &config, &options, &arena, error), "names 3 stages",
            "--pp 2 with 2 chunks each has 4");
    REFUSED(stages_parse(&stages, "1,1,1,1,2", &config, &options, &arena, error), "names 5 stages");
    REFUSED(stages_parse(&stages, "2,2,2,1", &config, &options, &arena, error),
            "has 7 blocks and the model 6");
    /* What a message proposes can be. */
    Error told = {0};
    stages_parse(&stages, "2,2,2,1", &config, &options, &arena, &told);
    char proposed[32];
    assert_int_equal(sscanf(strstr(told.text, "; as ") + 5, "%31[0-9,]", proposed), 1);
    if (proposed[strlen(proposed) - 1] == ',') proposed[strlen(proposed) - 1] = '\0';
    OK(stages_parse(&stages, proposed, &config, &options, &arena, error));
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_of_all), cmocka_unit_test(test_by_hand),  cmocka_unit_test(test_flops),
        cmocka_unit_test(test_parts),       cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
