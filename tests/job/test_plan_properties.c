/* What must hold of plans on any machine: more of a resource never makes the best layout slower, one thread and
 * several find the same layouts, and what is counted is what the formulas of ring, ZeRO and 1F1B say. Machines
 * and models are drawn, more of them with LONG=1; a case that fails prints its seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "job/plan_tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 40 };

typedef struct {
    uint64_t state;
} Draw;

static double draw_part(Draw *draw) {
    draw->state = draw->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(draw->state >> 11) / 9007199254740992.0;
}

static int draw_below(Draw *draw, int n) {
    return (int)(draw_part(draw) * n);
}

/* Between the two, evenly by factors. */
static double draw_rate(Draw *draw, double least, double most) {
    return least * pow(most / least, draw_part(draw));
}

/* ---- Words */

typedef struct {
    char text[MOST_WORDS][24];
    char *word[MOST_WORDS];
    int n;
} Words;

static void add_word(Words *words, const char *text) {
    assert_true(words->n < MOST_WORDS && strlen(text) < sizeof words->text[0]);
    strcpy(words->text[words->n], text);
    words->word[words->n] = words->text[words->n];
    words->n++;
}

static void add_number(Words *words, const char *name, int value) {
    char text[24];
    snprintf(text, sizeof text, "%d", value);
    add_word(words, name);
    add_word(words, text);
}

static void add_model(Words *words, Draw *draw) {
    static const int layers[] = {4, 6, 8, 12}, channels[] = {128, 256, 512, 1024},
                     contexts[] = {128, 512, 1024};
    add_number(words, "--layers", layers[draw_below(draw, 4)]);
    add_number(words, "--channels", channels[draw_below(draw, 4)]);
    add_number(words, "--heads", 8);
    add_number(words, "--context", contexts[draw_below(draw, 3)]);
    if (draw_below(draw, 4) == 0) add_number(words, "--experts", 4);
}

static void open_plan(PlanRun *plan, Launch *launch, Words *words) {
    Error error = {0};
    *plan = (PlanRun){.train = {.launch = launch}};
    if (plan_run_open(plan, words->n, words->word, &error) != STATUS_OK) fail_msg("%s", error.text);
}

static void close_plan(PlanRun *plan) {
    Error error = {0};
    plan_run_close(plan, &error);
}

/* ---- The best layout */

static void draw_machine(Machine *machine, Draw *draw) {
    MachineDevice *device = &machine->device;
    device->tflops_16 = draw_rate(draw, 20.0, 1000.0);
    device->tflops_32 = draw_rate(draw, 0.5, 40.0);
    device->memory_gbs = draw_rate(draw, 100.0, 4000.0);
    device->memory_gib = draw_rate(draw, 0.5, 8.0);
    device->gemm_efficiency = draw_rate(draw, 0.3, 1.0);
    device->draws_g = draw_rate(draw, 10.0, 300.0);
    device->launch_us = draw_rate(draw, 0.5, 10.0);
    machine->host.n_devices = 1 << draw_below(draw, 4);
    machine->host.inside_gbs = draw_rate(draw, 2.0, 400.0);
    machine->host.inside_us = draw_rate(draw, 1.0, 30.0);
    machine->host.bus_gbs = draw_rate(draw, 2.0, 60.0);
    machine->host.host_memory_gib = draw_rate(draw, 4.0, 500.0);
    machine->host.host_memory_gbs = draw_rate(draw, 20.0, 400.0);
    machine->network.n_links = 1 << draw_below(draw, 3);
    machine->network.between_gbs = draw_rate(draw, 0.5, 50.0);
    machine->network.between_us = draw_rate(draw, 1.0, 100.0);
}

/* Seconds of the best; INFINITY: nothing fits. */
static double best_seconds(PlanRun *plan, int n_threads, PlanLayout *layout) {
    PlanTuning tuning;
    Error error = {0};
    TuneOptions options = {.n_best = 10, .n_threads = n_threads};
    if (plan_tune(plan, &options, &tuning, &error) != STATUS_OK) {
        assert_int_equal(error.status, STATUS_USER);
        return INFINITY;
    }
    double seconds = tuning.best[0].seconds;
    if (layout) *layout = tuning.best[0].layout;
    plan_tuning_free(&tuning);
    return seconds;
}

/* Of what there may be more: at `offset` in the machine, a double; less of what takes time. */
static const struct {
    const char *name;
    size_t offset;
    bool is_time;
} resources[] = {{"GEMM rate", offsetof(Machine, device.tflops_16), false},
                 {"memory rate", offsetof(Machine, device.memory_gbs), false},
                 {"capacity", offsetof(Machine, device.memory_gib), false},
                 {"random numbers", offsetof(Machine, device.draws_g), false},
                 {"launches", offsetof(Machine, device.launch_us), true},
                 {"links inside", offsetof(Machine, host.inside_gbs), false},
                 {"messages inside", offsetof(Machine, host.inside_us), true},
                 {"links between", offsetof(Machine, network.between_gbs), false},
                 {"messages between", offsetof(Machine, network.between_us), true},
                 {"bus", offsetof(Machine, host.bus_gbs), false},
                 {"host's memory", offsetof(Machine, host.host_memory_gib), false},
                 {"host's rate", offsetof(Machine, host.host_memory_gbs), false}};

static void more_is_never_slower(void **state) {
    (void)state;
    enum { N_RESOURCES = sizeof resources / sizeof resources[0] };
    Launch launch = launch_alone();
    int n_cases = getenv("LONG") ? 24 : 3;
    for (int seed = 1; seed <= n_cases; seed++) {
        static const int sizes[] = {1, 2, 3, 4, 6, 8};
        Draw draw = {.state = (uint64_t)seed * UINT64_C(0x9e3779b97f4a7c15)};
        int n_ranks = sizes[draw_below(&draw, 6)];
        Words words = {0};
        PlanRun plan;
        draw_part(&draw);
        add_word(&words, "--machine");
        add_word(&words, "a100");
        add_number(&words, "--gpus", n_ranks);
        add_model(&words, &draw);
        add_number(&words, "--batch", 24 * n_ranks);
        add_word(&words, "--tune");
        open_plan(&plan, &launch, &words);
        Machine *machine = &plan.machine.machine;
        draw_machine(machine, &draw);
        double before = best_seconds(&plan, 1, NULL);
        for (int i = 0; i < N_RESOURCES; i++) {
            double *value = (double *)(void *)((char *)machine + resources[i].offset), old = *value;
            double factor = draw_rate(&draw, 1.05, 4.0);
            *value = resources[i].is_time ? old / factor : old * factor;
            double after = best_seconds(&plan, 1, NULL);
            if (!(after <= before * (1.0 + 1e-9)))
                fail_msg("seed %d: %.3g times the %s: %.9g s, and %.9g s before", seed, factor,
                         resources[i].name, after, before);
            *value = old;
        }
        close_plan(&plan);
    }
}

static void threads_find_the_same(void **state) {
    (void)state;
    Launch launch = launch_alone();
    Words words = {0};
    PlanRun plan;
    PlanLayout one, several;
    add_word(&words, "--machine");
    add_word(&words, "h100");
    add_number(&words, "--gpus", 16);
    add_word(&words, "--model");
    add_word(&words, "gpt2");
    add_number(&words, "--batch", 64);
    open_plan(&plan, &launch, &words);
    memset(&one, 0, sizeof one);
    memset(&several, 0, sizeof several);
    double alone = best_seconds(&plan, 1, &one), together = best_seconds(&plan, 3, &several);
    assert_true(alone == together);
    assert_memory_equal(&one, &several, sizeof one);
    close_plan(&plan);
}

/* ---- What is counted */

static void near(double got, double wanted, double part) {
    if (!(fabs(got - wanted) <= part * fabs(wanted) + 1e-9))
        fail_msg("%.9g where %.9g is wanted", got, wanted);
}

/* Of n ranks with m micro-batches: a ring's halves carry (n-1)/n of what they sum or gather. */
static void check_zero(Launch *launch, int n, int m, int zero) {
    Words words = {0};
    PlanRun plan;
    PlanFigures figures;
    Error error = {0};
    add_word(&words, "--machine");
    add_word(&words, "a100");
    add_number(&words, "--gpus", n);
    add_number(&words, "--layers", 4);
    add_number(&words, "--channels", 128);
    add_number(&words, "--heads", 4);
    add_number(&words, "--context", 32);
    add_number(&words, "--batch", n * m);
    add_number(&words, "--micro-batch", 1);
    add_number(&words, "--zero", zero);
    add_word(&words, "--dtype");
    add_word(&words, "f32");
    open_plan(&plan, launch, &words);
    if (plan_figures(&plan, &figures, &error) != STATUS_OK) fail_msg("%s", error.text);
    const RankFigures *rank = &figures.rank[0];
    const SentCount *sent = rank->sent.axis[1 << AXIS_DP];
    double all = 4.0 * (double)figures.n_parameters, part = (n - 1.0) / n * all, rough = 0.03;
    near(sent[COMM_ALL_REDUCE].n_bytes, zero ? 0.0 : 2.0 * part, rough);
    near(sent[COMM_REDUCE_SCATTER].n_bytes, zero == 0 ? 0.0 : zero == 1 ? part : m * part, rough);
    if (zero < 3) near(sent[COMM_ALL_GATHER].n_bytes, zero ? part : 0.0, rough);
    else { /* for the forward, and again for the backward but what is there still */
        assert_true(sent[COMM_ALL_GATHER].n_bytes >= m * part * (1.0 - rough));
        assert_true(sent[COMM_ALL_GATHER].n_bytes <= 2.0 * m * part * (1.0 + rough));
    }
    near((double)rank->place[PLACE_PARAMETER], zero == 3 ? all / n : all, rough);
    near((double)rank->place[PLACE_GRADIENT], zero >= 2 ? all / n : all, rough);
    near((double)rank->place[PLACE_OPTIMIZER], 2.0 * (zero ? all / n : all), rough);
    plan_figures_free(&figures);
    close_plan(&plan);
}

static void sums_are_the_formulas(void **state) {
    (void)state;
    Launch launch = launch_alone();
    for (int zero = 0; zero <= 3; zero++) {
        check_zero(&launch, 2, 3, zero);
        check_zero(&launch, 5, 1, zero);
        check_zero(&launch, 8, 4, zero);
    }
}

/* 1F1B of p stages: stage i holds min(m, p - i) micro-batches and sends m activations one way and m gradients
 * the other; with equal stages (p - 1)(F + B) are nobody's. */
static void check_1f1b(Launch *launch, int p, int m) {
    Words words = {0};
    PlanRun plan;
    PlanFigures figures;
    Error error = {0};
    enum { C = 64, T = 32 };
    add_word(&words, "--machine");
    add_word(&words, "a100");
    add_number(&words, "--gpus", p);
    add_number(&words, "--pp", p);
    add_number(&words, "--layers", 2 * p);
    add_number(&words, "--channels", C);
    add_number(&words, "--heads", 4);
    add_number(&words, "--context", T);
    add_number(&words, "--batch", m);
    add_number(&words, "--micro-batch", 1);
    add_word(&words, "--dtype");
    add_word(&words, "f32");
    open_plan(&plan, launch, &words);
    if (plan_figures(&plan, &figures, &error) != STATUS_OK) fail_msg("%s", error.text);
    double frame = 0.0;
    for (int i = 0; i < figures.n_ranks_built; i++) {
        const RankFigures *rank = &figures.rank[i];
        int stage = rank->coordinate[AXIS_PP], ways = (stage > 0) + (stage < p - 1);
        double held = m < p - stage ? m : p - stage;
        const SentCount *sent = &rank->sent.axis[1 << AXIS_PP][TRAFFIC_MESSAGES];
        near(sent->n_messages, (double)ways * m, 0.0);
        near(sent->n_bytes, (double)ways * m * 4.0 * C * T, 0.0);
        if (stage == 1) frame = (double)rank->place[PLACE_FRAME] / held;
        if (stage > 1 && held > 1.0) near((double)rank->place[PLACE_FRAME], held * frame, 0.01);
    }
    plan_figures_free(&figures);
    close_plan(&plan);
}

static void pipelines_are_the_formulas(void **state) {
    (void)state;
    Launch launch = launch_alone();
    check_1f1b(&launch, 2, 1);
    check_1f1b(&launch, 4, 3);
    check_1f1b(&launch, 5, 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_is_never_slower), cmocka_unit_test(threads_find_the_same),
        cmocka_unit_test(sums_are_the_formulas), cmocka_unit_test(pipelines_are_the_formulas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
