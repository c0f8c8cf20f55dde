/* Memory that is not enough: what is advised fits, by the plan it names; what is milder would not have fitted; and the
 * search stays small. Plans are real ones, of a small model on a device that computes nothing; how much memory there is
 * is the test's choice. */
#include "backend/null/null.h"
#include "base/system/memory.h"
#include "comm/comm_null.h"
#include "device/device.h"
#include "graph/passes/recompute.h"
#include "mesh_support.h"
#include "plan/advice.h"
#include "plan/host_memory.h"
#include "plan/run_memory.h"
#include "train/step/step.h"
#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    Backend backend;
    ModelConfig config;
    ParameterTable table;
    OptimizerOptions optimizer;
    NullGroup *group;
    Comm comm;
    Mesh mesh;
    int64_t T;
} Step;

static GradientSyncOptions sync_of(const Step *step, int zero) {
    if (!step->group) return (GradientSyncOptions){0};
    return (GradientSyncOptions){.mesh = &step->mesh, .zero = zero, .bucket_bytes = 65536};
}

static Status plan(void *context, const MemoryChoice *choice, uint64_t *n_bytes, Error *error) {
    const Step *step = context;
    StepOptions options = {.batch = choice->batch,
                           .micro_batch = choice->micro_batch,
                           .T = step->T,
                           .recompute = choice->recompute,
                           .sync = sync_of(step, choice->zero),
                           .precision = precision_of((PrecisionKind)choice->precision)};
    TrainStep planned;
    TRY(train_step_plan(&planned, &step->config, &step->table, &options, &step->optimizer, &step->backend,
                        error));
    *n_bytes = plan_total_bytes(&planned.program.plan);
    train_step_close(&planned);
    return STATUS_OK;
}

static uint64_t state(void *context, const MemoryChoice *choice) {
    const Step *step = context;
    GradientSyncOptions sync = sync_of(step, 0);
    return memory_state_bytes(&sync, choice, &step->optimizer, &step->table);
}

static uint64_t bytes_of(Step *step, MemoryChoice choice) {
    Error error = {0};
    uint64_t n_bytes = 0;
    assert_int_equal(plan(step, &choice, &n_bytes, &error), STATUS_OK);
    return n_bytes;
}

static void open_step(Step *step, int n_ranks) {
    Error error = {0};
    *step = (Step){.config = {.n_layers = 6,
                              .n_heads = 4,
                              .n_channels = 64,
                              .context = 32,
                              .vocabulary = 97,
                              .tied = true,
                              .bias = true,
                              .rotary_theta = 1e4},
                   .optimizer = {.rate = 1e-3, .adamw = {0.9, 0.99, 1e-8}, .clip = 1.0},
                   .T = 32};
    assert_int_equal(backend_null_open(&step->backend, &error), STATUS_OK);
    assert_int_equal(config_complete(&step->config, 97, &error), STATUS_OK);
    assert_int_equal(parameters_build(&step->table, &step->config, &error), STATUS_OK);
    if (n_ranks == 1) return;
    assert_int_equal(comm_null_open(&step->group, n_ranks, &error), STATUS_OK);
    step->comm = comm_null_rank(step->group, 0);
    step->mesh = mesh_of(&step->comm, &step->comm);
}

static void close_step(Step *step) {
    if (step->group) comm_null_close(step->group);
    parameters_free(&step->table);
    step->backend.close(step->backend.context);
}

static MemoryQuestion ask(Step *step, MemoryChoice present, uint64_t usable) {
    return (MemoryQuestion){.present = present,
                            .needed = bytes_of(step, present),
                            .usable = usable,
                            .n_ranks = step->group ? step->comm.size : 1,
                            .has_one_micro_batch = step->optimizer.eager,
                            .plan = plan,
                            .state = state,
                            .context = step};
}

/* Every answer is what its plan says, and fits. */
static void assert_true_answers(Step *step, const MemoryQuestion *question, const MemoryAdvice *advice) {
    assert_true(advice->n_plans <= MEMORY_MOST_PLANS);
    for (int i = 0; i < advice->n_answers; i++) {
        assert_int_equal(advice->answer[i].n_bytes, bytes_of(step, advice->answer[i].choice));
        assert_true(advice->answer[i].n_bytes <= question->usable);
    }
}

static const char *text_of(const MemoryQuestion *question, const MemoryAdvice *advice, char *text) {
    return memory_advice_text(question, advice, text, 512);
}

/* For every amount of memory the micro-batch that is named is the largest of its kind that fits. */
static void test_largest_micro_batch(void **unused) {
    (void)unused;
    Step step;
    open_step(&step, 1);
    MemoryChoice present = {.batch = 48, .micro_batch = 48};
    static const int64_t levels[] = {48, 24, 12, 6, 3, 1};
    for (int i = 1; i < 6; i++) {
        MemoryChoice smaller = present;
        smaller.micro_batch = levels[i];
        uint64_t enough = bytes_of(&step, smaller);
        MemoryQuestion question = ask(&step, present, enough);
        MemoryAdvice advice = memory_advise(&question);
        assert_true_answers(&step, &question, &advice);
        assert_true(advice.n_answers >= 1);
        assert_int_equal(advice.answer[0].choice.micro_batch, levels[i]);
        assert_int_equal(advice.answer[0].choice.recompute, 0);
        if (levels[i] == 1) continue;
        question.usable = enough - 1; /* a byte less, and it is not that one any more */
        advice = memory_advise(&question);
        assert_true_answers(&step, &question, &advice);
        assert_int_equal(advice.answer[0].choice.micro_batch, levels[i + 1]);
    }
    close_step(&step);
}

/* Recomputation is named beside it only where it lets more sequences in at once: of what is cheap, and of
 * whole blocks where those let in more still. */
static void test_recompute(void **unused) {
    (void)unused;
    char text[512];
    Step step;
    open_step(&step, 1);
    MemoryChoice present = {.batch = 64, .micro_batch = 64}, again = present, cheap = present;
    again.recompute = 1;
    cheap.recompute = RECOMPUTE_SELECTIVE;
    MemoryQuestion question = ask(&step, present, bytes_of(&step, again));
    MemoryAdvice advice = memory_advise(&question);
    assert_true_answers(&step, &question, &advice);
    assert_true(bytes_of(&step, again) < bytes_of(&step, cheap));
    const MemoryAnswer *last = &advice.answer[advice.n_answers - 1];
    assert_true(advice.n_answers >= 2);
    assert_true(advice.answer[0].choice.micro_batch < 64);
    assert_int_equal(last->choice.micro_batch, 64);
    assert_int_equal(last->choice.recompute, 1);
    for (int i = 1; i < advice.n_answers; i++)
        assert_true(advice.answer[i].choice.micro_batch > advice.answer[i - 1].choice.micro_batch);
    text_of(&question, &advice, text);
    assert_non_null(strstr(text, "what would fit: --micro-batch "));
    assert_non_null(strstr(text, ", --recompute 1 ("));
    question.usable = bytes_of(&step, cheap); /* then that is enough */
    advice = memory_advise(&question);
    assert_true_answers(&step, &question, &advice);
    assert_int_equal(advice.n_answers, 2);
    assert_int_equal(advice.answer[1].choice.micro_batch, 64);
    assert_int_equal(advice.answer[1].choice.recompute, RECOMPUTE_SELECTIVE);
    assert_non_null(strstr(text_of(&question, &advice, text), ", --recompute selective ("));
    question.present.recompute = 1; /* it is there already: nothing to gain from it */
    question.usable = bytes_of(&step, (MemoryChoice){.batch = 64, .micro_batch = 16, .recompute = 1});
    advice = memory_advise(&question);
    assert_int_equal(advice.n_answers, 1);
    assert_int_equal(advice.answer[0].choice.micro_batch, 16);
    close_step(&step);
}

/* On a CPU 16 bits are not advised where something else will do. */
static void test_dtype(void **unused) {
    (void)unused;
    char text[512];
    Step step;
    open_step(&step, 1);
    MemoryChoice present = {.batch = 64, .micro_batch = 64}, half = present;
    half.precision = PRECISION_BF16;
    MemoryQuestion question = ask(&step, present, bytes_of(&step, half));
    MemoryAdvice advice = memory_advise(&question);
    assert_null(strstr(text_of(&question, &advice, text), "--dtype"));
    question.is_gpu = true;
    advice = memory_advise(&question);
    assert_true_answers(&step, &question, &advice);
    assert_non_null(strstr(text_of(&question, &advice, text), "--dtype bf16 ("));
    close_step(&step);
}

/* With ranks to share with, the first stage of ZeRO that is enough. */
static void test_zero(void **unused) {
    (void)unused;
    char text[512];
    Step step;
    open_step(&step, 4);
    MemoryChoice present = {.batch = 4, .micro_batch = 1};
    for (int stage = 1; stage <= 3; stage++) {
        MemoryChoice cut = present;
        cut.zero = stage;
        MemoryQuestion question = ask(&step, present, bytes_of(&step, cut));
        MemoryAdvice advice = memory_advise(&question);
        assert_true_answers(&step, &question, &advice);
        assert_true(advice.n_answers >= 1);
        const MemoryAnswer *last = &advice.answer[advice.n_answers - 1];
        assert_int_equal(last->choice.zero, stage);
        char wanted[32];
        snprintf(wanted, sizeof wanted, "--zero %d (", stage);
        assert_non_null(strstr(text_of(&question, &advice, text), wanted));
    }
    close_step(&step);
}

/* Where nothing helps it says so, and how much there would have to be; parameters that do not fit are not even
 * planned. */
static void test_nothing_fits(void **unused) {
    (void)unused;
    char text[512];
    Step step;
    open_step(&step, 1);
    MemoryChoice present = {.batch = 64, .micro_batch = 64},
                 least = {.batch = 64, .micro_batch = 1, .recompute = 1};
    MemoryQuestion question = ask(&step, present, bytes_of(&step, least) - 1);
    MemoryAdvice advice = memory_advise(&question);
    assert_true_answers(&step, &question, &advice); /* the last resort */
    assert_int_equal(advice.n_answers, 1);
    assert_non_null(strstr(text_of(&question, &advice, text), "--recompute 1 --dtype pure-bf16 ("));
    least.precision = PRECISION_PURE_BF16;
    question.usable = bytes_of(&step, least) - 1;
    advice = memory_advise(&question);
    assert_int_equal(advice.n_answers, 0);
    assert_int_equal(advice.least.n_bytes, question.usable + 1);
    assert_non_null(strstr(text_of(&question, &advice, text),
                           "even with --micro-batch 1 --recompute 1 --dtype pure-bf16 it would need "));
    question.usable = state(&step, &least) - 1;
    advice = memory_advise(&question);
    assert_int_equal(advice.n_plans, 0);
    assert_non_null(strstr(text_of(&question, &advice, text), "weights, gradients and moments alone take "));
    assert_non_null(strstr(text, "smaller --model"));
    close_step(&step);
}

/* An eager update has one micro-batch: the batch itself becomes smaller. */
static void test_eager(void **unused) {
    (void)unused;
    char text[512];
    Step step;
    open_step(&step, 1);
    step.optimizer.eager = true;
    step.optimizer.clip = 0.0;
    MemoryQuestion question = ask(&step, (MemoryChoice){.batch = 64, .micro_batch = 64},
                                  bytes_of(&step, (MemoryChoice){.batch = 16, .micro_batch = 16}));
    MemoryAdvice advice = memory_advise(&question);
    assert_true_answers(&step, &question, &advice);
    assert_int_equal(advice.answer[0].choice.batch, 16);
    assert_non_null(strstr(text_of(&question, &advice, text), "what would fit: --batch 16 ("));
    close_step(&step);
}

/* ---- a whole run ---- */

static size_t n_free;

static size_t some_are_free(void *context) {
    (void)context;
    return n_free;
}

/* Somebody was quicker. */
static Status allocate_nothing(void *context, size_t n_bytes, const char *what, void **memory, Error *error) {
    (void)context, (void)n_bytes;
    *memory = NULL;
    n_free /= 2;
    return error_failed(error, "no memory for %s", what);
}

static Dataset *some_text(Tokenizer **tokenizer) {
    static char bytes[4000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)('a' + i % 23);
    Error error = {0};
    Text text;
    Dataset *dataset = NULL;
    assert_int_equal(tokenizer_build("byte", bytes, sizeof bytes, 0, tokenizer, &error), STATUS_OK);
    assert_int_equal(text_from_bytes("letters", bytes, sizeof bytes, &text, &error), STATUS_OK);
    DatasetOptions options = {.validation_fraction = 0.1, .T = 32};
    assert_int_equal(dataset_from_text(&text, *tokenizer, &options, &dataset, &error), STATUS_OK);
    text_free(&text);
    return dataset;
}

/* Stays where it is: the setup names its parts. */
typedef struct {
    Step step;
    Tokenizer *tokenizer;
    Dataset *dataset;
    TrainOptions options;
    TrainerSetup setup;
} Run;

static void open_run(Run *run, int64_t batch) {
    *run =
        (Run){.options = {.batch = batch, .micro_batch = batch, .sequence = 32, .n_steps = 1, .saves = true}};
    open_step(&run->step, 1);
    run->step.config.vocabulary = 256;
    run->step.backend.free_bytes = some_are_free;
    run->step.backend.allocate = allocate_nothing;
    run->dataset = some_text(&run->tokenizer);
    run->setup = (TrainerSetup){.config = &run->step.config,
                                .optimizer = &run->step.optimizer,
                                .options = &run->options,
                                .dataset = run->dataset,
                                .tokenizer = run->tokenizer,
                                .backend = &run->step.backend};
}

static void close_run(Run *run) {
    dataset_free(run->dataset);
    tokenizer_free(run->tokenizer);
    close_step(&run->step);
}

/* What a run can do without is named first, by itself where that is enough. */
static void test_extras(void **unused) {
    (void)unused;
    enum { COPIES = 1, SAMPLES = 2, BOTH = COPIES | SAMPLES };
    Run run;
    Trainer trainer;
    Error error = {0};
    open_run(&run, 4);
    run.step.backend.traits.memory = MEMORY_HOST;
    size_t needed[BOTH + 1];
    for (int with = 0; with <= BOTH; with++) {
        run.options.save_every = run.options.background_save = (with & COPIES) != 0;
        run.options.sample_tokens = with & SAMPLES ? 8 : 0;
        assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
        needed[with] = trainer_planned_bytes(&trainer);
        if (with < BOTH) trainer_close(&trainer);
    }
    const struct {
        size_t n_free;
        bool is_gpu;
        const char *end; /* of what is said */
    } cases[] = {
        {needed[BOTH] - 1, false, "; use --no-background-save"},
        {needed[SAMPLES], false, "; use --no-background-save"},
        {needed[0], false, "; use --sample-tokens 0 --no-background-save"},
        {needed[SAMPLES] - 1 + DEVICE_RESERVE_BYTES, true,
         "; use --sample-tokens 0"}, /* copies are the host's */
        {needed[0] + DEVICE_RESERVE_BYTES, true, "; use --sample-tokens 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        n_free = cases[i].n_free;
        run.step.backend.traits.memory = cases[i].is_gpu ? MEMORY_DEVICE : MEMORY_HOST;
        error = (Error){0};
        assert_int_equal(run_memory_check(&trainer, &error), STATUS_USER);
        const char *end = strrchr(error.text, ';');
        if (!end || strcmp(end, cases[i].end) != 0) fail_msg("case %zu: %s", i, error.text);
    }
    run.step.backend.traits.memory = MEMORY_HOST;
    n_free = needed[0] - 1; /* they are not to blame alone */
    error = (Error){0};
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_USER);
    assert_null(strstr(error.text, "--sample-tokens"));
    trainer_close(&trainer);
    close_run(&run);
}

/* The copies that checkpoints are written from are in the run's own types, and there are none where nothing is saved. */
static void test_copies(void **unused) {
    (void)unused;
    static const struct {
        PrecisionKind precision;
        size_t n_bytes; /* of a parameter and its moments */
    } cases[] = {{PRECISION_F32, 12},
                 {PRECISION_BF16, 12}, /* the master weights */
                 {PRECISION_F16, 12},
                 {PRECISION_PURE_BF16, 6},
                 {PRECISION_PURE_F16, 6}};
    Run run;
    Trainer trainer;
    Error error = {0};
    open_run(&run, 4);
    run.options.background_save = true;
    run.options.save_every = 5;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run.options.precision = (int)cases[i].precision;
        assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
        size_t n_elements = (size_t)trainer.table.n_elements, n_bytes = saver_planned_bytes(&trainer.saver);
        size_t n_padding = (size_t)(trainer.table.n_flat_elements - trainer.table.n_elements);
        assert_in_range(n_bytes, cases[i].n_bytes * n_elements, cases[i].n_bytes * (n_elements + n_padding));
        assert_in_range(trainer_checkpoint_bytes(&trainer), cases[i].n_bytes * n_elements,
                        cases[i].n_bytes * n_elements + 65536);
        trainer_close(&trainer);
    }
    run.options.saves = false;
    assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
    assert_int_equal(saver_planned_bytes(&trainer.saver), 0);
    trainer_close(&trainer);
    close_run(&run);
}

/* What is said before memory is taken is said again if it is gone when it is wanted. */
static void test_run(void **unused) {
    (void)unused;
    Run run;
    Trainer trainer;
    Error error = {0};
    open_run(&run, 64);
    run.options.background_save = true;
    assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
    size_t needed = trainer_planned_bytes(&trainer);
    n_free = needed + DEVICE_RESERVE_BYTES; /* what a GPU's libraries will want is not for the plan */
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_OK);
    n_free--;
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "of the GPU's memory"));
    assert_non_null(strstr(error.text, "what would fit: --micro-batch 32 ("));
    error = (Error){0};
    trainer_close(&trainer);
    run.step.backend.traits.memory = MEMORY_HOST; /* no libraries there */
    assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
    n_free = needed;
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_OK);
    assert_int_equal(run_memory_open(&trainer, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "are free; "));
    assert_non_null(strstr(error.text, "--micro-batch"));
    trainer_close(&trainer);
    close_run(&run);
}

/* Optimizer state elsewhere is named with what it costs; --offload auto takes as little as fits. */
static void test_offload(void **unused) {
    (void)unused;
    enum { SHARES = 32 };
    Run run;
    Trainer trainer;
    Error error = {0};
    open_run(&run, 4);
    run.step.backend.only_plans = false;
    Offload none = {.bucket_bytes = 4096}, all = none;
    all.to[OFFLOAD_OPTIMIZER] = OFFLOAD_HOST;
    size_t needed[2];
    for (int i = 0; i < 2; i++) {
        run.setup.offload = i ? &all : &none;
        assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
        needed[i] = trainer_planned_bytes(&trainer);
        trainer_close(&trainer);
    }
    assert_true(needed[1] < needed[0]);
    run.setup.offload = &none;
    assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
    n_free = needed[1] + DEVICE_RESERVE_BYTES;
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "--offload optimizer, some "));
    assert_non_null(strstr(error.text, " s more a step ("));
    trainer_close(&trainer);
    for (int i = 0; i < 3; i++) {
        Offload chosen = none;
        error = (Error){0};
        chosen.automatic = OFFLOAD_HOST;
        n_free = DEVICE_RESERVE_BYTES + (i == 0   ? needed[0]
                                         : i == 1 ? (needed[0] + needed[1]) / 2
                                                  : needed[1]);
        assert_int_equal(run_memory_choose_offload(&run.setup, &chosen, &error), STATUS_OK);
        assert_int_equal(chosen.to[OFFLOAD_OPTIMIZER], i ? OFFLOAD_HOST : OFFLOAD_NOWHERE);
        assert_int_equal(chosen.to[OFFLOAD_ACTIVATIONS], OFFLOAD_NOWHERE);
        if (i == 1) assert_true(chosen.share > 0.3 && chosen.share < 0.7);
        for (int more = 0; i == 1 && more < 2; more++) { /* it fits, and with the next share it does not */
            Offload tried = chosen;
            tried.share += (double)more / SHARES;
            run.setup.offload = &tried;
            assert_int_equal(trainer_plan(&trainer, &run.setup, &error), STATUS_OK);
            assert_int_equal(trainer_planned_bytes(&trainer) + DEVICE_RESERVE_BYTES <= n_free, !more);
            trainer_close(&trainer);
        }
    }
    close_run(&run);
}

/* Pinned memory that the host does not have, for all of its ranks, is refused before any is taken. */
static void test_host_memory(void **unused) {
    (void)unused;
    Backend backend = {.n_on_host = 1};
    Error error = {0};
    uint64_t n_available = memory_available_bytes();
    assert_int_equal(host_memory_check(0, &backend, &error), STATUS_OK);
    assert_int_equal(host_memory_check(n_available / 2, &backend, &error), STATUS_OK);
    assert_int_equal(host_memory_check(4 * n_available, &backend, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "--offload-share"));
    assert_null(strstr(error.text, "ranks"));
    error = (Error){0};
    backend.n_on_host = 8;
    assert_int_equal(host_memory_check(n_available / 2, &backend, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "for the 8 ranks on this host"));
    error = (Error){0};
    backend.only_plans = true;
    assert_int_equal(host_memory_check(4 * n_available, &backend, &error), STATUS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_largest_micro_batch),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_dtype),
        cmocka_unit_test(test_zero),
        cmocka_unit_test(test_nothing_fits),
        cmocka_unit_test(test_eager),
        cmocka_unit_test(test_extras),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
