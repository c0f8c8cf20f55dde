/* Of a planned run of many ranks one of each kind is built: all together must have what they have when every
 * one is built. And the critical path of a pipeline is as long as its step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/plan.h"
#include "job/plan_run.h"

#include <math.h>
#include <string.h>

enum { MOST_WORDS = 40 };

static int split(char *text, char **words) {
    int n = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[n++] = word;
    assert_true(n <= MOST_WORDS);
    return n;
}

typedef struct {
    double place[N_PLACES], total, flops;
} Whole;

static Status add_rank(void *context, const Trainer *trainer, Error *error) {
    (void)error;
    Whole *whole = context;
    const Program *program = &trainer->step.program;
    for (int place = 0; place < N_PLACES; place++)
        whole->place[place] += (double)plan_place_bytes(&program->plan, (Place)place);
    whole->total += (double)trainer_planned_bytes(trainer);
    whole->flops += program_cost(program).flops;
    return STATUS_OK;
}

typedef void (*Check)(PlanRun *plan, const PlanFigures *figures);

static void check_plan(const char *options, Check check) {
    Launch launch = launch_alone();
    PlanRun plan = {.train = {.launch = &launch}};
    PlanFigures figures;
    Error error = {0};
    char text[512], *words[MOST_WORDS];
    snprintf(text, sizeof text, "--machine a100 --sample-tokens 4 %s", options);
    int n = split(text, words);
    if (plan_run_open(&plan, n, words, &error) != STATUS_OK) fail_msg("%s: %s", options, error.text);
    if (plan_figures(&plan, &figures, &error) != STATUS_OK) fail_msg("%s: %s", options, error.text);
    check(&plan, &figures);
    plan_figures_free(&figures);
    plan_run_close(&plan, &error);
}

static void check_sums_within(PlanRun *plan, const PlanFigures *figures, double apart) {
    Whole whole = {0};
    Error error = {0};
    int n_ranks = mesh_n_ranks(&plan->train.shape), n_alike = 0;
    for (int i = 0; i < figures->n_ranks_built; i++) n_alike += figures->rank[i].n_alike;
    assert_int_equal(n_alike, n_ranks);
    assert_true(figures->n_ranks_built < n_ranks);
    for (int rank = 0; rank < n_ranks; rank++)
        if (plan_visit_rank(plan, rank, false, add_rank, &whole, &error) != STATUS_OK)
            fail_msg("%s", error.text);
    for (int place = 0; place < N_PLACES; place++)
        if (fabs(figures->sums.place[place] - whole.place[place]) > apart * whole.place[place])
            fail_msg("%s: %.0f bytes, and all ranks' are %.0f", place_name((Place)place),
                     figures->sums.place[place], whole.place[place]);
    assert_true(fabs(figures->sums.total - whole.total) <= apart * whole.total);
    assert_true(fabs(figures->sums.flops / whole.flops - 1.0) < apart + 1e-9);
    assert_true(figures->counted_flops == figures->sums.flops);
}

static void check_sums(PlanRun *plan, const PlanFigures *figures) {
    check_sums_within(plan, figures, 0.0);
}

static void check_sums_nearly(PlanRun *plan, const PlanFigures *figures) {
    check_sums_within(plan, figures, 0.005);
}

/* Heads, experts, sequences and shards that do not divide; ZeRO-3, where the first rank samples with all weights.
 * Where two axes share one array, as data ranks and those of experts do under ZeRO, shards are odd by a few elements. */
static void one_of_each_kind_stands_for_all(void **state) {
    (void)state;
#define SMALL "--layers 4 --heads 5 --channels 40 --context 32 "
    check_plan(SMALL "--gpus 24 --tp 3 --batch 24", check_sums);
    check_plan(SMALL "--gpus 24 --zero 3 --batch 25 --micro-batch 25", check_sums);
    check_plan(SMALL "--gpus 36 --tp 4 --pp 3 --zero 1 --batch 9 --micro-batch 9", check_sums);
    check_plan(SMALL "--gpus 20 --experts 7 --ep 5 --zero 2 --batch 20", check_sums_nearly);
    check_plan(SMALL "--gpus 32 --cp 2 --batch 37 --micro-batch 37 --recompute 1", check_sums);
}

/* What is received and sent between stages, and what collectives have under way. */
static void check_messages(PlanRun *plan, const PlanFigures *figures) {
    (void)plan;
    for (int i = 0; i < figures->n_ranks_built; i++) {
        const RankFigures *rank = &figures->rank[i];
        int stage = rank->coordinate[AXIS_PP], ways = stage == 1 ? 4 : 2; /* in and out, on each side */
        size_t wanted = (size_t)ways * 2 * 32 * 40 * 4;
        assert_true(rank->messages >= wanted &&
                    rank->messages <= wanted + 64); /* the norm's, of every stage */
        assert_true(rank->place[PLACE_STATE] >= rank->messages);
        assert_int_equal(rank->n_frames, stage == 2 ? 0 : 3 - stage);
    }
}

static void buffers_of_messages_are_told(void **state) {
    (void)state;
    check_plan(SMALL "--gpus 3 --pp 3 --batch 8 --micro-batch 2 --dtype f32", check_messages);
}

static void check_path(PlanRun *plan, const PlanFigures *figures) {
    const CriticalPath *path = &figures->times.path;
    double sum = path->forward + path->backward + path->update + path->messages;
    double host = plan->machine.machine.network.step_us * 1e-6;
    assert_true(fabs(sum + host - figures->times.seconds) < 1e-9 * figures->times.seconds);
    assert_true(path->forward > 0.0 && path->backward > 0.0 && path->update > 0.0);
    assert_true(path->stage_seconds <= sum * (1.0 + 1e-9));
}

/* Of one micro-batch everything is on it: all forwards, all backwards, the messages between them. */
static void check_one_way(PlanRun *plan, const PlanFigures *figures) {
    check_path(plan, figures);
    assert_int_equal(figures->times.path.n_actions, 2 * 4 + 1);
    assert_true(figures->times.path.messages > 0.0);
}

static void the_critical_path_is_as_long_as_the_step(void **state) {
    (void)state;
    check_plan(SMALL "--gpus 4 --pp 4 --batch 1 --micro-batch 1", check_one_way);
    check_plan(SMALL "--gpus 4 --pp 4 --batch 8 --micro-batch 1", check_path);
    check_plan(SMALL "--gpus 2 --pp 2 --batch 8 --micro-batch 1 --schedule interleaved --chunks 2",
               check_path);
    check_plan(SMALL "--gpus 2 --pp 2 --batch 8 --micro-batch 1 --schedule zb-v --clip 0", check_path);
    check_plan(SMALL "--gpus 2 --pp 2 --batch 8 --micro-batch 1 --schedule pipedream --clip 0", check_path);
    check_plan(SMALL "--gpus 2 --batch 8 --micro-batch 1", check_path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_of_each_kind_stands_for_all),
                                       cmocka_unit_test(buffers_of_messages_are_told),
                                       cmocka_unit_test(the_critical_path_is_as_long_as_the_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
