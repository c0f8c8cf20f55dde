/* The public header, as a program uses it: models, texts, training with observers, and several threads at
 * once. Nothing of the library's inside is included here. */
#define _GNU_SOURCE /* mkdtemp, nftw */
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <pgpt.h>

enum { N_STEPS = 6, MOST_STEPS = 32, MOST_BYTES = 4096 };

static char folder[64]; /* everything is below it */
static char trained[MOST_BYTES];

/* ---- training, watched */

typedef struct {
    int64_t stop_at;
    double loss[MOST_STEPS + 1];
    int64_t n_steps, n_evaluations, n_samples, n_checkpoints, n_lines, last_step;
    char checkpoint[MOST_BYTES];
    bool has_handler;
} Seen;

static int see_step(void *context, const pgpt_step *step) {
    Seen *seen = context;
    struct sigaction action;
    assert_true(step->step >= 1 && step->step <= MOST_STEPS);
    assert_true(isfinite(step->loss) && step->learning_rate >= 0.0);
    seen->loss[step->step] = step->loss;
    seen->n_steps++;
    seen->last_step = step->step;
    sigaction(SIGINT, NULL, &action);
    seen->has_handler |= action.sa_handler != SIG_DFL;
    return step->step == seen->stop_at;
}

static int see_evaluation(void *context, int64_t step, double loss) {
    Seen *seen = context;
    assert_true(step == seen->last_step && isfinite(loss));
    seen->n_evaluations++;
    return 0;
}

static int see_sample(void *context, int64_t step, const char *text, size_t n_bytes) {
    Seen *seen = context;
    assert_true(step > 0 && n_bytes > 1);
    assert_int_equal(text[n_bytes - 1], '\n');
    seen->n_samples++;
    return 0;
}

static int see_checkpoint(void *context, int64_t step, const char *path) {
    Seen *seen = context;
    assert_true(step > 0);
    assert_int_equal(access(path, R_OK), 0);
    snprintf(seen->checkpoint, sizeof seen->checkpoint, "%s", path);
    seen->n_checkpoints++;
    return 0;
}

static void see_line(void *context, pgpt_log_kind kind, const char *line) {
    Seen *seen = context;
    assert_true(kind == PGPT_LOG_NOTE || kind == PGPT_LOG_WARNING);
    assert_null(strchr(line, '\n'));
    seen->n_lines++;
}

static pgpt_observer watching(Seen *seen) {
    return (pgpt_observer){.size = sizeof(pgpt_observer),
                           .context = seen,
                           .on_step = see_step,
                           .on_evaluation = see_evaluation,
                           .on_sample = see_sample,
                           .on_checkpoint = see_checkpoint,
                           .on_log = see_line};
}

/* A small model of few steps into NAME. */
static pgpt_training train(const char *name, Seen *seen) {
    char data[128], out[128], steps[32];
    snprintf(data, sizeof data, "data=%s/text", folder);
    snprintf(out, sizeof out, "out=%s/%s", folder, name);
    snprintf(steps, sizeof steps, "steps=%d", N_STEPS);
    const char *options[] = {data,
                             out,
                             steps,
                             "tokenizer=char",
                             "model=nano",
                             "layers=1",
                             "channels=16",
                             "heads=2",
                             "context=32",
                             "batch=2",
                             "seed=1",
                             "sample-tokens=8",
                             "sample-every=2",
                             "eval-every=3",
                             "threads=1",
                             "device=cpu",
                             "save-every=2",
                             "eval-batches=1",
                             NULL};
    pgpt_observer observer = watching(seen);
    pgpt_training result;
    pgpt_error error;
    pgpt_train(options, &observer, 1, &result, &error);
    if (error.status != PGPT_OK) print_error("%s\n", error.text);
    assert_int_equal(error.status, PGPT_OK);
    return result;
}

static void write_text(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/text", folder);
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    for (int i = 0; i < 100; i++)
        fputs("Once upon a time there was a fox. The fox was red. A bear was there too, and it was brown.\n",
              stream);
    assert_int_equal(fclose(stream), 0);
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/pgpt-api.XXXXXX");
    if (!mkdtemp(folder)) return -1;
    setenv("XDG_CACHE_HOME", folder, 1);
    write_text();
    Seen seen = {0};
    pgpt_training result = train("first", &seen);
    snprintf(trained, sizeof trained, "%s", result.folder);
    return 0;
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *place) {
    (void)facts, (void)kind, (void)place;
    return remove(path);
}

static int remove_folder(void **state) {
    (void)state;
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- a model */

static pgpt_model *open_model(void) {
    static const char *const options[] = {"threads=1", "device=cpu", NULL};
    pgpt_model *model;
    pgpt_error error;
    assert_int_equal(pgpt_open(trained, options, &model, &error), PGPT_OK);
    assert_int_equal(error.status, PGPT_OK);
    assert_string_equal(error.text, "");
    return model;
}

static void test_version(void **state) {
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", PGPT_VERSION_MAJOR, PGPT_VERSION_MINOR, PGPT_VERSION_PATCH);
    assert_int_equal(pgpt_version_number(), PGPT_VERSION_NUMBER);
    assert_memory_equal(pgpt_version(), text, strlen(text));
}

static void test_about(void **state) {
    (void)state;
    pgpt_model *model = open_model();
    const pgpt_model_info *info = pgpt_model_about(model);
    assert_int_equal(info->step, N_STEPS);
    assert_string_equal(info->device, "cpu");
    assert_string_equal(info->warning, "");
    assert_true(info->n_parameters > 1000 && info->n_layers > 0 && info->context > 0);
    assert_non_null(strstr(info->folder, trained));
    pgpt_close(model);
    pgpt_close(NULL);
}

static void refuse(pgpt_status got, const pgpt_error *error, const char *words) {
    assert_int_equal(got, PGPT_USER);
    assert_int_equal(error->status, PGPT_USER);
    if (!strstr(error->text, words)) print_error("\"%s\" is not in: %s\n", words, error->text);
    assert_non_null(strstr(error->text, words));
}

static void test_errors(void **state) {
    (void)state;
    const struct {
        const char *option, *words;
    } cases[] = {{"--tokens=3", "name=value"}, {"tokens", "name=value"},
                 {"tokens=many", "tokens"},    {"temprature=1", "temperature"},
                 {"json=true", "no option"},   {"threads=2", "no option"},
                 {"top-p=2", "top-p"}};
    pgpt_error error;
    pgpt_model *model = (pgpt_model *)&error;
    char *text = folder;
    refuse(pgpt_open("/nowhere/at/all", NULL, &model, &error), &error, "/nowhere/at/all");
    assert_null(model);
    assert_int_equal(pgpt_open("/nowhere/at/all", NULL, &model, NULL), PGPT_USER);
    model = open_model();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *options[] = {cases[i].option, NULL};
        refuse(pgpt_complete(model, "The", options, &text, &error), &error, cases[i].words);
        assert_null(text);
    }
    assert_int_equal(pgpt_complete(model, "The", NULL, &text, &error), PGPT_OK); /* and it works as before */
    assert_int_equal(error.status, PGPT_OK);
    pgpt_free(text);
    pgpt_close(model);
}

static void test_tokens(void **state) {
    (void)state;
    static const char words[] = "Once upon a time there was a fox.";
    pgpt_model *model = open_model();
    int32_t *tokens;
    size_t n_tokens, n_bytes;
    char *text;
    assert_int_equal(pgpt_tokenize(model, words, strlen(words), &tokens, &n_tokens, NULL), PGPT_OK);
    assert_true(n_tokens > 3);
    assert_int_equal(pgpt_detokenize(model, tokens, n_tokens, &text, &n_bytes, NULL), PGPT_OK);
    assert_int_equal(strlen(text), n_bytes);
    assert_string_equal(text, words);
    pgpt_free(text);
    pgpt_free(tokens);
    assert_int_equal(pgpt_tokenize(model, "", 0, &tokens, &n_tokens, NULL), PGPT_OK);
    assert_int_equal(n_tokens, 0);
    pgpt_free(tokens);
    pgpt_close(model);
}

/* ---- generation */

typedef struct {
    char text[MOST_BYTES];
    size_t n_bytes;
    int n_tokens, stop_after;
} Made;

static int take(void *context, const pgpt_token *token) {
    Made *made = context;
    assert_true(made->n_bytes + token->n_bytes < sizeof made->text);
    assert_true(token->log_probability <= 0.0f);
    memcpy(made->text + made->n_bytes, token->bytes, token->n_bytes);
    made->n_bytes += token->n_bytes;
    made->n_tokens++;
    return made->n_tokens == made->stop_after;
}

static Made generate(pgpt_model *model, const char *prompt, const char *const *options, int stop_after) {
    Made made = {.stop_after = stop_after};
    pgpt_error error;
    pgpt_generate(model, prompt, strlen(prompt), options, take, &made, &error);
    if (error.status != PGPT_OK) print_error("%s\n", error.text);
    assert_int_equal(error.status, PGPT_OK);
    return made;
}

static void test_generate(void **state) {
    (void)state;
    static const char *const options[] = {"tokens=40", "seed=3", NULL};
    pgpt_model *model = open_model();
    Made whole = generate(model, "The fox", options, 0), again = generate(model, "The fox", options, 0);
    assert_int_equal(whole.n_tokens, 40);
    assert_string_equal(whole.text, again.text);
    char *text;
    assert_int_equal(pgpt_complete(model, "The fox", options, &text, NULL), PGPT_OK);
    assert_string_equal(text, whole.text);
    pgpt_free(text);
    Made cut = generate(model, "The fox", options, 5);
    assert_int_equal(cut.n_tokens, 5);
    assert_memory_equal(cut.text, whole.text, cut.n_bytes);
    assert_int_equal(generate(model, "", options, 0).n_tokens, 40);
    pgpt_close(model);
}

static void test_stop_string(void **state) {
    (void)state;
    static const char *const options[] = {"tokens=40", "seed=3", NULL};
    pgpt_model *model = open_model();
    Made whole = generate(model, "The fox", options, 0);
    char stop[16], wanted[MOST_BYTES];
    snprintf(stop, sizeof stop, "stop=%.4s", whole.text + whole.n_bytes / 2);
    const char *with_stop[] = {"tokens=40", "seed=3", stop, NULL};
    snprintf(wanted, sizeof wanted, "%s", whole.text);
    *strstr(wanted, stop + 5) = 0;
    Made made = generate(model, "The fox", with_stop, 0);
    assert_string_equal(made.text, wanted);
    pgpt_close(model);
}

/* ---- scoring */

static int add_up(void *context, const pgpt_token *token) {
    *(double *)context -= (double)token->log_probability;
    return 0;
}

static void test_score(void **state) {
    (void)state;
    static const char text[] = "Once upon a time there was a fox. The fox was red.";
    pgpt_model *model = open_model();
    pgpt_score_result result, again;
    pgpt_error error;
    double sum = 0.0;
    assert_int_equal(pgpt_score(model, text, strlen(text), add_up, &sum, &result, &error), PGPT_OK);
    assert_true(result.n_tokens > 3);
    assert_true(fabs(sum / (double)result.n_tokens - result.loss) < 1e-6);
    assert_true(fabs(exp(result.loss) - result.perplexity) < 1e-6 * result.perplexity);
    assert_true(result.bits_per_byte > 0.0 && result.bits_per_byte < 20.0);
    generate(model, "The", (const char *const[]){"tokens=5", NULL}, 0); /* with the same weights in between */
    assert_int_equal(pgpt_score(model, text, strlen(text), NULL, NULL, &again, &error), PGPT_OK);
    assert_true(result.loss == again.loss);
    refuse(pgpt_score(model, "", 0, NULL, NULL, &again, &error), &error, "at least two");
    pgpt_close(model);
}

/* ---- training */

static void test_observers(void **state) {
    (void)state;
    Seen seen = {0};
    char said[128];
    snprintf(said, sizeof said, "%s/said", folder);
    fflush(NULL);
    int out = dup(1), err = dup(2);
    assert_non_null(freopen(said, "w", stdout));
    assert_true(dup2(1, 2) == 2);
    pgpt_training result = train("watched", &seen);
    fflush(NULL);
    dup2(out, 1), dup2(err, 2), close(out), close(err);
    struct stat facts;
    assert_int_equal(stat(said, &facts), 0);
    assert_int_equal(facts.st_size, 0); /* who embeds it has the screen */
    assert_int_equal(seen.n_steps, N_STEPS);
    assert_int_equal(seen.n_evaluations, 2);
    assert_int_equal(seen.n_samples, 3); /* after steps 2 and 4, and in the end */
    assert_true(seen.n_checkpoints >= 2);
    assert_true(seen.n_lines >= 4);
    assert_false(seen.has_handler);
    assert_int_equal(result.step, N_STEPS);
    assert_true(result.loss == seen.loss[N_STEPS]);
    assert_true(isfinite(result.validation_loss) && result.saved && !result.was_stopped);
    assert_memory_equal(seen.checkpoint, result.folder, strlen(result.folder));
    pgpt_model *model;
    assert_int_equal(pgpt_open(seen.checkpoint, NULL, &model, NULL), PGPT_OK);
    pgpt_close(model);
}

static void test_stop_and_go_on(void **state) {
    (void)state;
    Seen whole = {0}, first = {.stop_at = 3}, rest = {0};
    char resume[sizeof(pgpt_training) + 16];
    pgpt_training result = train("whole", &whole), stopped = train("stopped", &first);
    assert_true(stopped.was_stopped && stopped.saved);
    assert_int_equal(stopped.step, 3);
    assert_int_equal(first.n_steps, 3);
    snprintf(resume, sizeof resume, "resume=%s", stopped.folder);
    const char *options[] = {resume, NULL};
    pgpt_observer observer = watching(&rest);
    assert_int_equal(pgpt_train(options, &observer, 1, &stopped, NULL), PGPT_OK);
    assert_int_equal(rest.n_steps, N_STEPS - 3);
    assert_true(stopped.loss == result.loss);
    assert_memory_equal(rest.loss + 4, whole.loss + 4, sizeof *rest.loss * (N_STEPS - 3));
}

static void test_training_errors(void **state) {
    (void)state;
    pgpt_error error;
    pgpt_observer observer = {0};
    pgpt_training result;
    refuse(pgpt_train((const char *const[]){"modle=nano", NULL}, NULL, 0, &result, &error), &error, "model");
    refuse(pgpt_train((const char *const[]){"json=true", NULL}, NULL, 0, &result, &error), &error, "json");
    refuse(pgpt_train((const char *const[]){"--help", NULL}, NULL, 0, &result, &error), &error, "name=value");
    refuse(pgpt_train(NULL, &observer, 1, &result, &error), &error, "size");
    assert_int_equal(result.step, 0);
    assert_string_equal(result.folder, "");
}

/* ---- threads */

static void *generate_text(void *context) {
    Made *made = context;
    static const char *const options[] = {"tokens=60", "seed=5", NULL};
    pgpt_model *model = open_model();
    *made = generate(model, made->text, options, 0);
    pgpt_close(model);
    return NULL;
}

static void test_two_threads(void **state) {
    (void)state;
    Made alone[2] = {{.text = "The fox"}, {.text = "A bear"}}, together[2] = {alone[0], alone[1]};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) generate_text(&alone[i]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, generate_text, &together[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) assert_string_equal(alone[i].text, together[i].text);
    assert_string_not_equal(alone[0].text, alone[1].text);
}

typedef struct {
    const char *name;
    Seen seen;
} Lesson;

static void *learn(void *context) {
    Lesson *lesson = context;
    train(lesson->name, &lesson->seen);
    return NULL;
}

static void test_two_trainings(void **state) {
    (void)state;
    Lesson alone = {.name = "alone"}, together[2] = {{.name = "one"}, {.name = "two"}};
    pthread_t thread[2];
    learn(&alone);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&thread[i], NULL, learn, &together[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(together[i].seen.loss, alone.seen.loss, sizeof alone.seen.loss);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),        cmocka_unit_test(test_about),
        cmocka_unit_test(test_errors),         cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_generate),       cmocka_unit_test(test_stop_string),
        cmocka_unit_test(test_score),          cmocka_unit_test(test_observers),
        cmocka_unit_test(test_stop_and_go_on), cmocka_unit_test(test_training_errors),
        cmocka_unit_test(test_two_threads),    cmocka_unit_test(test_two_trainings),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
