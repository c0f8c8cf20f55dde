/* The layouts of `verify --all`: every legal combination of axes, ZeRO, schedule, chunks, accumulation and recomputation is there
 * once for a model like GPT-2 and one like Llama, tied and untied; and whatever two choices can go together, do in one of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "comm/algo/algo.h"
#include "parallel/sync/gradient_sync.h"
#include "train/verify/cases.h"

enum { N_MODELS = 4, BATCH = 17, N_TRAITS = 18, N_VALUES = 16, MOST_OF_A_MESH = 2000 };

static const int rank_counts[] = {1, 2, 3, 4, 6, 8};
enum { N_COUNTS = sizeof rank_counts / sizeof rank_counts[0] };

/* As verify_options.c makes them, as far as layouts depend on it. */
static void make_models(VerifyModel *models) {
    models[0] = (VerifyModel){
        .name = "gpt-2",
        .config = {
            .n_layers = 3, .n_heads = 6, .n_kv_heads = 6, .context = 9, .vocabulary = 37, .tied = true}};
    models[1] = (VerifyModel){
        .name = "llama",
        .config = {.n_layers = 3, .n_heads = 6, .n_kv_heads = 2, .context = 9, .vocabulary = 37}};
    models[2] = models[0];
    models[2].name = "experts";
    models[2].config.n_experts = 5;
    models[2].is_special = true;
    models[3] = models[0];
    models[3].name = "depths";
    models[3].is_special = true;
}

static VerifyChoice choose(const VerifyModel *models, int n_models, int n_ranks) {
    return (VerifyChoice){.n_ranks = n_ranks,
                          .model = models,
                          .n_models = n_models,
                          .varies_tied = true,
                          .varies_layers = true,
                          .batch = BATCH,
                          .has_algorithms = true,
                          .is_f32 = true};
}

/* What a user would name in a call, and nothing that is beside it. */
typedef struct {
    int model, tied, zero, schedule, n_chunks, accumulates, recompute, size[N_AXES];
} Combination;

static Combination combination_of(const VerifyCase *layout) {
    Combination made = {layout->model,
                        layout->tied,
                        layout->zero,
                        (int)layout->schedule,
                        layout->n_chunks,
                        layout->accumulates,
                        layout->recompute || layout->recompute_blocks,
                        {0}};
    memcpy(made.size, layout->shape.size, sizeof made.size);
    return made;
}

static int ring_algorithm(void) {
    int i = 0;
    while (comm_algorithm(i) != &ALGORITHM_RING) i++;
    return i;
}

/* The way in which a combination is tried where nothing else is chosen. */
static bool is_plain(const VerifyCase *layout) {
    bool is_split = layout->shape.size[AXIS_TP] > 1, has_stages = layout->shape.size[AXIS_PP] > 1;
    bool rings = layout->context == CONTEXT_RING || layout->shape.size[AXIS_CP] > 4; /* of 9 positions */
    return rings && layout->by_sequence == is_split && layout->tensor_chunks == 1 &&
           layout->style == TENSOR_COLUMN && layout->overlaps && !layout->checks_later &&
           layout->all_reduce == ring_algorithm() && !(has_stages && layout->n_micro_batches == 1);
}

/* Those of a mesh, into `made`; returns how many. */
static int list_plain(const VerifyCase *cases, int n_cases, const int *size, Combination *made) {
    int n = 0;
    for (int i = 0; i < n_cases; i++) {
        if (memcmp(cases[i].shape.size, size, sizeof cases[i].shape.size) != 0 || !is_plain(&cases[i]))
            continue;
        assert_true(n < MOST_OF_A_MESH);
        made[n++] = combination_of(&cases[i]);
    }
    return n;
}

/* Can it be? By the rules that users are told (docs/PARALLEL.md). */
static bool is_possible(const VerifyModel *models, const Combination *c) {
    int dp = c->size[AXIS_DP], cp = c->size[AXIS_CP], tp = c->size[AXIS_TP], pp = c->size[AXIS_PP];
    int64_t n_heads = models[c->model].config.n_kv_heads / tp;
    if (cp > 4 && cp > n_heads) return false; /* a ring has two positions a rank, all-to-all a head */
    if (c->zero && dp * cp == 1) return false;
    if (pp == 1) return c->schedule == SCHEDULE_1F1B && c->n_chunks == 1;
    bool has_chunks = c->schedule == SCHEDULE_INTERLEAVED || c->schedule == SCHEDULE_ZB_V;
    if (!has_chunks) return c->n_chunks == 1;
    return c->n_chunks == 2 || (c->schedule == SCHEDULE_INTERLEAVED && c->n_chunks == 3 && pp <= 4);
}

/* Of the i-th combination; false: there are no more. */
static bool nth_combination(int i, const int *size, Combination *c) {
    *c = (Combination){.model = i % 2, .tied = i / 2 % 2, .recompute = i / 4 % 2, .accumulates = i / 8 % 2};
    memcpy(c->size, size, sizeof c->size);
    c->zero = i / 16 % (ZERO_STAGES + 1);
    i /= 16 * (ZERO_STAGES + 1);
    c->n_chunks = 1 + i % 3;
    c->schedule = i / 3;
    return c->schedule < N_SCHEDULES;
}

static int check_mesh(const VerifyModel *models, const VerifyCase *cases, int n_cases, const int *size) {
    static Combination made[MOST_OF_A_MESH];
    Combination wanted;
    int n_possible = 0, n_made = list_plain(cases, n_cases, size, made);
    for (int i = 0; nth_combination(i, size, &wanted); i++) {
        bool is_wanted = is_possible(models, &wanted);
        int n = 0;
        for (int k = 0; k < n_made; k++) n += memcmp(&made[k], &wanted, sizeof wanted) == 0;
        if (n != is_wanted)
            fail_msg(
                "%d times, not %d: model %d, tied %d, zero %d, schedule %d, %d chunks, accumulation %d, recompute %d; "
                "dp %d, tp %d, cp %d, pp %d",
                n, is_wanted, wanted.model, wanted.tied, wanted.zero, wanted.schedule, wanted.n_chunks,
                wanted.accumulates, wanted.recompute, size[AXIS_DP], size[AXIS_TP], size[AXIS_CP],
                size[AXIS_PP]);
        n_possible += is_wanted;
    }
    return n_possible;
}

static void every_combination_is_there(void **state) {
    (void)state;
    VerifyModel models[N_MODELS];
    make_models(models);
    for (int k = 0; k < N_COUNTS; k++) {
        Arena arena = {0};
        int n_cases, n_ranks = rank_counts[k], n_meshes = 0, n_possible = 0;
        VerifyChoice choice = choose(models, N_MODELS, n_ranks);
        const VerifyCase *cases = verify_cases(&choice, &arena, &n_cases);
        for (int i = 0; i < n_ranks * n_ranks * n_ranks; i++) {
            int size[N_AXES];
            for (int axis = 0; axis < N_AXES; axis++) size[axis] = 1;
            size[AXIS_DP] = 1 + i % n_ranks;
            size[AXIS_TP] = 1 + i / n_ranks % n_ranks;
            size[AXIS_CP] = 1 + i / n_ranks / n_ranks;
            if (n_ranks % (size[AXIS_DP] * size[AXIS_TP] * size[AXIS_CP])) continue;
            size[AXIS_PP] = n_ranks / (size[AXIS_DP] * size[AXIS_TP] * size[AXIS_CP]);
            n_possible += check_mesh(models, cases, n_cases, size);
            n_meshes++;
        }
        assert_true(n_meshes > 0 && n_possible <= n_cases);
        arena_free(&arena);
    }
}

/* Every choice of a layout, as small numbers. */
static void list_traits(const VerifyCase *layout, int first_model, int *trait /* (N_TRAITS) */) {
    const int *size = layout->shape.size;
    int numbers[N_TRAITS] = {layout->model + first_model,
                             layout->tied,
                             layout->zero,
                             layout->all_reduce,
                             layout->accumulates,
                             size[AXIS_PP] > 1 && layout->n_micro_batches == 1,
                             layout->recompute_blocks ? 3 : 1 + (int)layout->recompute,
                             layout->overlaps,
                             layout->by_sequence,
                             size[AXIS_PP] > 1 ? 1 + (int)layout->schedule : 0,
                             layout->n_chunks,
                             layout->tensor_chunks > 1 ? 2 : (int)layout->style,
                             2 * (int)layout->context + layout->checks_later,
                             size[AXIS_DP],
                             size[AXIS_TP],
                             size[AXIS_CP],
                             size[AXIS_EP],
                             size[AXIS_PP]};
    for (int i = 0; i < N_TRAITS; i++) {
        assert_in_range(numbers[i], 0, N_VALUES - 1);
        trait[i] = i * N_VALUES + numbers[i];
    }
}

typedef bool Pairs[N_TRAITS * N_VALUES][N_TRAITS * N_VALUES];

static int mark_pairs(const VerifyChoice *choice, int first_model, Pairs met) {
    Arena arena = {0};
    int n_cases, trait[N_TRAITS];
    const VerifyCase *cases = verify_cases(choice, &arena, &n_cases);
    for (int i = 0; i < n_cases; i++) {
        list_traits(&cases[i], first_model, trait);
        for (int a = 0; a < N_TRAITS; a++) {
            for (int b = 0; b < N_TRAITS; b++) met[trait[a]][trait[b]] = true;
        }
    }
    arena_free(&arena);
    return n_cases;
}

/* A model that is alone is tried in everything. */
static void any_two_choices_meet(void **state) {
    (void)state;
    static Pairs possible, met;
    VerifyModel models[N_MODELS];
    int n_possible = 0, n_met = 0;
    make_models(models);
    for (int k = 0; k < N_COUNTS; k++) {
        VerifyChoice both = choose(models, N_MODELS, rank_counts[k]);
        n_met += mark_pairs(&both, 0, met);
        for (int i = 0; i < N_MODELS; i++) {
            VerifyChoice alone = choose(&models[i], 1, rank_counts[k]);
            n_possible += mark_pairs(&alone, i, possible);
        }
    }
    for (int a = 0; a < N_TRAITS * N_VALUES; a++) {
        for (int b = 0; b < N_TRAITS * N_VALUES; b++) {
            if (possible[a][b] && !met[a][b])
                fail_msg("trait %d = %d never meets trait %d = %d", a / N_VALUES, a % N_VALUES, b / N_VALUES,
                         b % N_VALUES);
        }
    }
    print_message("%d layouts, of %d that there are\n", n_met, n_possible);
    assert_in_range(n_met, n_possible / 4, n_possible / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_combination_is_there),
                                       cmocka_unit_test(any_two_choices_meet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
