/* Scoring: every token is scored once, by the window that it should be, and as one plain pass over that window does. */
#include "score_support.h"

#include "harness.h"

#include <math.h>

enum { MOST_TOKENS = 256 };

/* The losses of tokens 1 .. n, by one pass of the plain reference kernels over tokens 0 .. n - 1. */
static void reference_losses(const TestModel *model, const int32_t *tokens, int64_t n, float *losses) {
    Graph *graph = graph_new();
    Error error = {0};
    GptLossOptions options = {.B = 1, .T = n, .loss_scale = 1.0};
    GptLoss loss = gpt_record_loss(&model->config, &model->table, graph, &options);
    assert_ok(graph_status(graph, &error), &error);
    TestMemory memory = test_memory_open(graph);
    memcpy(test_memory_at(&memory, loss.parameters.flat), model->flat,
           sizeof(float) * (size_t)model->table.n_flat_elements);
    memcpy(test_memory_at(&memory, loss.tokens), tokens, sizeof *tokens * (size_t)n);
    memcpy(test_memory_at(&memory, loss.targets), tokens + 1, sizeof *tokens * (size_t)n);
    test_memory_run(&memory, SECTION_FORWARD);
    memcpy(losses, test_memory_at(&memory, loss.losses), sizeof(float) * (size_t)n);
    test_memory_close(&memory);
    graph_free(graph);
}

static void make_tokens(const char *name, int64_t n, int64_t vocabulary, int32_t *tokens) {
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(test_hash(name, (uint64_t)i) % (uint64_t)vocabulary);
}

/* ---- windows */

/* Where the window that scores token j of a whole text begins: the earliest on the grid that has j among its
 * predictions. */
static int64_t window_of(int64_t j, int64_t window, int64_t stride) {
    return j <= window ? 0 : (j - window + stride - 1) / stride * stride;
}

static void test_windows(void **state) {
    (void)state;
    TestModel model = open_model(12, 7, 1.0f);
    int32_t tokens[64];
    float losses[64];
    make_tokens("windows", 64, 7, tokens);
    for (int64_t window = 1; window <= 12; window++) {
        for (int64_t stride = 1; stride <= window; stride++) {
            for (int64_t n = 1; n <= 40; n++) {
                ScoreText text = {.tokens = tokens, .n_tokens = n, .n_given = 1, .losses = losses};
                Scorer scorer;
                Error error = {0};
                assert_ok(scorer_plan(&scorer, &model.config, &model.table, &model.backend, &text, 1,
                                      &(ScoreOptions){.window = window, .stride = stride}, &error),
                          &error);
                int n_scored[64] = {0};
                int64_t n_inputs = 0;
                for (int64_t i = 0; i < scorer.n_windows; i++) {
                    const ScoreWindow *w = &scorer.windows[i];
                    assert_in_range(w->n_inputs, 1, window);
                    assert_in_range(w->n_skipped, 0, w->n_inputs - 1);
                    assert_true(w->begin % stride == 0 && w->begin + w->n_inputs < n);
                    n_inputs += w->n_inputs;
                    for (int64_t t = w->n_skipped; t < w->n_inputs; t++) {
                        int64_t j = w->begin + t + 1;
                        n_scored[j]++;
                        assert_int_equal(w->begin, window_of(j, window, stride));
                    }
                }
                for (int64_t j = 0; j < 64; j++) assert_int_equal(n_scored[j], j > 0 && j < n);
                assert_int_equal(n_inputs, scorer.n_inputs);
                assert_int_equal(text.n_unseen, 0);
                if (stride == window) assert_int_equal(n_inputs, n - 1); /* no overlap */
                scorer_close(&scorer);
            }
        }
    }
    close_model(&model);
}

/* Losses of a text in windows of every kind, in one batch or many, are those of plain passes over the windows. */
static void test_losses(void **state) {
    (void)state;
    enum { V = 19, N = 100 };
    TestModel model = open_model(CONTEXT, V, 8.0f);
    int32_t tokens[N];
    float losses[N - 1], want[N - 1], window_losses[N];
    make_tokens("losses", N, V, tokens);
    const struct {
        int64_t n, window, stride, batch;
    } cases[] = {{N, 0, 0, 0}, {N, 0, CONTEXT, 3}, {N, 0, 1, 7},           {N, 7, 3, 2},
                 {N, 1, 1, 0}, {CONTEXT, 0, 0, 0}, {CONTEXT + 1, 0, 0, 1}, {CONTEXT + 2, 0, 0, 1},
                 {2, 0, 0, 0}, {N - 1, 0, 5, 100}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        ScoreOptions options = {
            .window = cases[c].window, .stride = cases[c].stride, .batch = cases[c].batch};
        ScoreText text = {.tokens = tokens, .n_tokens = cases[c].n, .n_given = 1, .losses = losses};
        score(&model, &text, 1, options);
        Error error = {0};
        assert_ok(score_options_complete(&options, &model.config, &error), &error);
        int64_t begin = -1;
        for (int64_t j = 1; j < cases[c].n; j++) {
            int64_t wanted = window_of(j, options.window, options.stride);
            int64_t left = cases[c].n - 1 - wanted;
            if (wanted != begin)
                reference_losses(&model, tokens + wanted, left < options.window ? left : options.window,
                                 window_losses);
            begin = wanted;
            want[j - 1] = window_losses[j - 1 - begin];
        }
        test_assert_close(losses, want, cases[c].n - 1, 1e-5, 0.0, "case %zu", c);
    }
    close_model(&model);
}

/* Texts of all lengths with all lengths given, more than one pass: the same losses in every batch size; what does not
 * fit is cut from the beginning. */
static void test_given_and_batches(void **state) {
    (void)state;
    enum { V = 19, N_TEXTS = 40 };
    TestModel model = open_model(40, V, 8.0f);
    static int32_t tokens[N_TEXTS][MOST_TOKENS];
    static float losses[3][N_TEXTS][MOST_TOKENS], want[MOST_TOKENS];
    ScoreText texts[3][N_TEXTS];
    const int64_t batches[3] = {1, 6, 0};
    for (int i = 0; i < N_TEXTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "given %d", i);
        make_tokens(name, MOST_TOKENS, V, tokens[i]);
        int64_t n_tokens = 2 + test_hash(name, 1000) % 70, n_scored = 1 + test_hash(name, 1001) % 12;
        for (int k = 0; k < 3; k++) {
            texts[k][i] = (ScoreText){.tokens = tokens[i],
                                      .n_tokens = n_tokens,
                                      .n_given = n_scored < n_tokens ? n_tokens - n_scored : 1,
                                      .losses = losses[k][i]};
        }
    }
    for (int k = 0; k < 3; k++) score(&model, texts[k], N_TEXTS, (ScoreOptions){.batch = batches[k]});
    int n_cut = 0;
    for (int i = 0; i < N_TEXTS; i++) {
        const ScoreText *text = &texts[0][i];
        int64_t first = text->n_tokens > 41 ? text->n_tokens - 41 : 0, n = text->n_tokens - text->n_given;
        assert_int_equal(text->n_unseen, first);
        n_cut += first > 0;
        reference_losses(&model, tokens[i] + first, text->n_tokens - 1 - first, want);
        test_assert_close(losses[0][i], want + text->n_given - 1 - first, n, 1e-5, 0.0, "text %d", i);
        for (int k = 1; k < 3; k++) {
            test_assert_close(losses[k][i], losses[0][i], n, 1e-6, 1.0, "text %d in batch %d", i, k);
        }
    }
    assert_in_range(n_cut, 5, N_TEXTS - 5);
    /* More to score than a window holds, after a long beginning: every window has its share of what stands before. */
    ScoreText text = {.tokens = tokens[0], .n_tokens = 120, .n_given = 50, .losses = losses[0][0]};
    score(&model, &text, 1, (ScoreOptions){.stride = 10});
    assert_int_equal(text.n_unseen, 19);
    for (int64_t j = 50; j < 120; j++) {
        int64_t begin = 19 + (j <= 59 ? 0 : (j - 59 + 9) / 10 * 10);
        reference_losses(&model, tokens[0] + begin, j - begin, want);
        assert_float_equal(losses[0][0][j - 50], want[j - 1 - begin], 1e-4);
    }
    close_model(&model);
}

/* The generator's way to the losses of last words is the scorer's; a word is predicted if each of its tokens has the
 * largest logit. */
static void test_last_word_losses(void **state) {
    (void)state;
    enum { V = 19, N_TEXTS = 25 };
    TestModel model = open_model(CONTEXT, V, 8.0f);
    static int32_t tokens[N_TEXTS][MOST_TOKENS];
    static float by_scorer[N_TEXTS][MOST_TOKENS], by_words[2][N_TEXTS][MOST_TOKENS];
    ScoreText texts[N_TEXTS];
    for (int i = 0; i < N_TEXTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "word %d", i);
        make_tokens(name, MOST_TOKENS, V, tokens[i]);
        int64_t n_given = 1 + test_hash(name, 1000) % 50;
        texts[i] = (ScoreText){.tokens = tokens[i],
                               .n_tokens = n_given + 1 + test_hash(name, 1001) % 4,
                               .n_given = n_given,
                               .losses = by_scorer[i]};
    }
    score(&model, texts, N_TEXTS, (ScoreOptions){0});
    int64_t n_unseen[N_TEXTS];
    for (int i = 0; i < N_TEXTS; i++) n_unseen[i] = texts[i].n_unseen;
    int n_predicted[2] = {0};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < N_TEXTS; i++) texts[i].losses = by_words[k][i];
        score_words(&model, texts, N_TEXTS, k ? 7 : 1, CONTEXT);
        for (int i = 0; i < N_TEXTS; i++) {
            int64_t n = texts[i].n_tokens - texts[i].n_given;
            assert_int_equal(texts[i].n_unseen, n_unseen[i]);
            test_assert_close(by_words[k][i], by_scorer[i], n, 1e-5, 1.0, "text %d", i);
            n_predicted[k] += texts[i].is_predicted;
            for (int64_t j = 0; j < n && texts[i].is_predicted; j++)
                assert_true(by_words[k][i][j] <= logf((float)V));
        }
    }
    assert_int_equal(n_predicted[0], n_predicted[1]);
    close_model(&model);
}

/* ---- ends and mistakes */

static bool stop_at_once(void *context, int64_t n_done, int64_t n_total) {
    assert_true(n_done > 0 && n_done <= n_total);
    return --*(int *)context > 0;
}

static void test_stopped(void **state) {
    (void)state;
    enum { N = 100 };
    TestModel model = open_model(CONTEXT, 256, 8.0f);
    Tokenizer *tokenizer = build("byte", "", 0, 0);
    char text[N + 1];
    for (int i = 0; i < N; i++) text[i] = (char)('a' + i % 26);
    ScoreSet set;
    ScoreSummary summary;
    Error error = {0};
    const char *path = temporary(text, N);
    score_set_init(&set, SCORE_TEXT, tokenizer);
    assert_ok(score_set_read(&set, path, &(ScoreReadOptions){0}, &error), &error);
    Scorer scorer;
    open_scorer(&scorer, &model, set.texts, set.n_texts, (ScoreOptions){.stride = CONTEXT, .batch = 1});
    int n_calls = 2;
    assert_ok(scorer_run(&scorer, stop_at_once, &n_calls, &error), &error);
    assert_ok(score_summarise(&set, &summary, &error), &error);
    assert_int_equal(summary.n_tokens, 2 * CONTEXT);
    assert_int_equal(summary.n_bytes, 2 * CONTEXT);
    n_calls = 1000;
    assert_ok(scorer_run(&scorer, stop_at_once, &n_calls, &error), &error);
    assert_ok(score_summarise(&set, &summary, &error), &error);
    assert_int_equal(n_calls, 1000 - 5);
    assert_int_equal(summary.n_tokens, N - 1);
    /* Weights that are not numbers are noticed. */
    const Parameter *final = parameter_find(&model.table, ROLE_FINAL_NORM_WEIGHT, NO_BLOCK);
    model.flat[final->flat_offset] = NAN;
    assert_ok(scorer_upload(&scorer, final, model.flat + final->flat_offset, &error), &error);
    assert_int_equal(scorer_run(&scorer, NULL, NULL, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "diverged"));
    scorer_close(&scorer);
    score_set_free(&set);
    unlink(path);
    tokenizer_free(tokenizer);
    close_model(&model);
}

static void test_bad_calls(void **state) {
    (void)state;
    TestModel model = open_model(CONTEXT, 19, 1.0f);
    int32_t tokens[] = {1, 2, 19};
    float losses[3];
    ScoreText text = {.tokens = tokens, .n_tokens = 3, .n_given = 1, .losses = losses};
    const ScoreOptions options[] = {{.window = CONTEXT + 1},
                                    {.window = -1},
                                    {.stride = CONTEXT + 1},
                                    {.window = 4, .stride = 5},
                                    {.stride = -1},
                                    {.batch = -1},
                                    {0}};
    const char *const words[] = {"--window 25", "--window -1", "--stride 25", "--stride 5",
                                 "--stride -1", "--batch",     "token 19"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        Scorer scorer;
        Error error = {0};
        tokens[2] = i == 6 ? 19 : 3;
        assert_int_not_equal(
            scorer_plan(&scorer, &model.config, &model.table, &model.backend, &text, 1, &options[i], &error),
            STATUS_OK);
        if (!strstr(error.text, words[i])) fail_msg("\"%s\" is not in: %s", words[i], error.text);
        scorer_close(&scorer);
    }
    /* Nothing to score is no mistake. */
    text.n_tokens = 1;
    score(&model, &text, 1, (ScoreOptions){0});
    score(&model, NULL, 0, (ScoreOptions){0});
    close_model(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),           cmocka_unit_test(test_losses),
        cmocka_unit_test(test_given_and_batches), cmocka_unit_test(test_last_word_losses),
        cmocka_unit_test(test_stopped),           cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
