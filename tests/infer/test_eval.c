/* Evaluation: sets are read as documented, figures are what they should be, and a model that knows a pattern answers
 * everything right. */
#include "score_support.h"

#include "data/corpus.h"
#include "train/step/step.h"

#include <math.h>

/* cmocka's own compares floats. */
static void assert_near(double got, double want) {
    if (!(fabs(got - want) <= 1e-12)) fail_msg("%.17g is not %.17g", got, want);
}

/* ---- sets */

static Status read_set(ScoreSet *set, ScoreKind kind, const Tokenizer *tokenizer, const char *text,
                       const ScoreReadOptions *options, Error *error) {
    const char *path = temporary(text, strlen(text));
    score_set_init(set, kind, tokenizer);
    *error = (Error){0};
    Status status = score_set_read(set, path, options ? options : &(ScoreReadOptions){0}, error);
    unlink(path);
    return status;
}

/* The text's given and scored tokens, as bytes. */
static void assert_text(const ScoreSet *set, int64_t index, const char *given, const char *scored) {
    const ScoreText *text = &set->texts[index];
    const char *const want[2] = {given, scored};
    for (int k = 0; k < 2; k++) {
        char *bytes;
        size_t n_bytes;
        Error error = {0};
        int64_t first = k ? text->n_given : 0, end = k ? text->n_tokens : text->n_given;
        assert_ok(tokenizer_decode(set->tokenizer, text->tokens + first, (size_t)(end - first), &bytes,
                                   &n_bytes, &error),
                  &error);
        assert_string_equal(bytes, want[k]);
        free(bytes);
    }
}

static void test_read_text(void **state) {
    (void)state;
    Tokenizer *bytes = build("byte", "", 0, 0);
    const char *words_text = "The cat sat.\n\nThe  dog   ran, far.\n";
    Tokenizer *words = build("word", words_text, strlen(words_text), 0);
    ScoreSet set;
    Error error;
    assert_ok(read_set(&set, SCORE_TEXT, bytes, "hello", NULL, &error), &error);
    assert_int_equal(set.n_texts, 1);
    assert_int_equal(set.texts[0].n_bytes, 4);
    assert_int_equal(set.n_scored, 4);
    assert_text(&set, 0, "h", "ello");
    score_set_free(&set);
    score_set_free(&set);
    assert_ok(read_set(&set, SCORE_TEXT, bytes, "hello", &(ScoreReadOptions){.most_tokens = 3}, &error),
              &error);
    assert_text(&set, 0, "h", "el");
    assert_int_equal(set.texts[0].n_bytes, 2);
    score_set_free(&set);
    /* Not an exact tokenizer: the bytes are the file's, less the first word's. */
    assert_ok(read_set(&set, SCORE_TEXT, words, words_text, NULL, &error), &error);
    assert_int_equal(set.texts[0].n_bytes, strlen(words_text) - 3);
    score_set_free(&set);
    assert_ok(read_set(&set, SCORE_TEXT, words, words_text, &(ScoreReadOptions){.most_tokens = 3}, &error),
              &error);
    assert_int_equal(set.texts[0].n_bytes, strlen(" cat sat"));
    score_set_free(&set);
    /* A limit far from the end reads only the beginning, with the same tokens. */
    size_t n_long = 100000;
    char *text = malloc(n_long + 1);
    for (size_t i = 0; i < n_long; i++) text[i] = "ab cd\n"[i % 6];
    text[n_long] = 0;
    ScoreSet whole;
    Error ignored;
    assert_ok(read_set(&whole, SCORE_TEXT, words, text, NULL, &ignored), &ignored);
    assert_ok(read_set(&set, SCORE_TEXT, words, text, &(ScoreReadOptions){.most_tokens = 777}, &error),
              &error);
    assert_int_equal(set.texts[0].n_tokens, 777);
    assert_memory_equal(set.tokens.ids, whole.tokens.ids, 777 * sizeof(int32_t));
    score_set_free(&whole);
    score_set_free(&set);
    free(text);
    assert_user_error(read_set(&set, SCORE_TEXT, bytes, "", NULL, &error), &error, "empty");
    score_set_free(&set);
    assert_user_error(read_set(&set, SCORE_TEXT, bytes, "a", NULL, &error), &error, "fewer than two tokens");
    score_set_free(&set);
    assert_user_error(read_set(&set, SCORE_TEXT, words, "   ", NULL, &error), &error, "nothing to predict");
    score_set_free(&set);
    tokenizer_free(words);
    tokenizer_free(bytes);
}

static void test_read_items(void **state) {
    (void)state;
    Tokenizer *bytes = build("byte", "", 0, 0);
    const char *vocabulary = "red blue b lue green\n";
    Tokenizer *words = build("word", vocabulary, strlen(vocabulary), 0);
    ScoreSet set;
    Error error;
    const char *lines = "{\"context\": \"ab \", \"choices\": [\"c\", \" de\"], \"label\": 1, \"more\": 3}\n"
                        "\n \r\n"
                        "{\"context\": \"\", \"choices\": [\"\\nx\", \"y\"], \"label\": 0}\r\n"
                        "{\"context\": \" \", \"choices\": [\"x\", \"y\", \"z\"], \"label\": 2}";
    assert_ok(read_set(&set, SCORE_CHOICE, bytes, lines, NULL, &error), &error);
    assert_int_equal(set.n_items, 3);
    assert_int_equal(set.n_texts, 7);
    assert_int_equal(set.items[0].label, 1);
    assert_int_equal(set.items[2].first_text, 4);
    assert_int_equal(set.items[2].n_texts, 3);
    assert_text(&set, 0, "ab", " c");
    assert_text(&set, 1, "ab", "  de");
    assert_int_equal(set.texts[1].n_bytes, 4);
    assert_text(&set, 2, "\n", "\nx");
    assert_text(&set, 3, "\n", "y");
    assert_text(&set, 6, " ", "z");
    score_set_free(&set);
    ScoreReadOptions options = {.most_items = 1, .delimiter = "-"};
    assert_ok(read_set(&set, SCORE_CHOICE, bytes, lines, &options, &error), &error);
    assert_int_equal(set.n_items, 1);
    assert_text(&set, 0, "ab", " -c");
    score_set_free(&set);
    /* Words: a token over the border is cut there, an end of text stands for a missing context. */
    lines = "{\"context\": \"red b\", \"choices\": [\"lue\", \" green\"], \"label\": 0}\n"
            "{\"context\": \"\", \"choices\": [\"blue\", \"red\"], \"label\": 0}\n";
    assert_ok(read_set(&set, SCORE_CHOICE, words, lines, NULL, &error), &error);
    assert_text(&set, 0, "red b", "lue");
    assert_int_equal(set.texts[0].n_given, 2);
    assert_text(&set, 1, "red b", "green");
    assert_int_equal(set.texts[2].tokens[0], tokenizer_end_of_text(words));
    assert_int_equal(set.texts[2].n_given, 1);
    assert_int_equal(set.texts[2].n_tokens, 2);
    score_set_free(&set);
    /* Last words, as JSON (known by its beginning) and plain. */
    lines = "{\"text\": \"one two\\n\"}\n{\"text\": \"a b  c.\"}\n";
    assert_ok(read_set(&set, SCORE_LAST_WORD, bytes, lines, NULL, &error), &error);
    assert_int_equal(set.n_items, 2);
    assert_text(&set, 0, "one", " two");
    assert_text(&set, 1, "a b ", " c.");
    assert_int_equal(set.texts[1].n_bytes, 3);
    score_set_free(&set);
    assert_ok(read_set(&set, SCORE_LAST_WORD, bytes, " one two \n\n3\tfour\r\n", NULL, &error), &error);
    assert_int_equal(set.n_items, 2);
    assert_text(&set, 0, " one", " two");
    assert_text(&set, 1, "3", "\tfour");
    score_set_free(&set);
    tokenizer_free(words);
    tokenizer_free(bytes);
}

static void test_bad_items(void **state) {
    (void)state;
    Tokenizer *characters = build("char", "abc d", 5, 0);
    const char *vocabulary = "red blue\n";
    Tokenizer *words = build("word", vocabulary, strlen(vocabulary), 0);
    const struct {
        ScoreKind kind;
        const Tokenizer *tokenizer;
        const char *text, *words;
    } cases[] = {
        {SCORE_CHOICE, characters, "\n{\"context\": \"a\",\n", ":2: not valid JSON"},
        {SCORE_CHOICE, characters, "[1]\n", ":1: wants an object with a field 'choices'"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"label\": 0}", ":1: field 'choices' is missing"},
        {SCORE_CHOICE, characters, "{\"choices\": [\"a\", \"b\"], \"label\": 0}",
         ":1: field 'context' is missing"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": [\"a\", \"b\"]}",
         ":1: field 'label' is missing"},
        {SCORE_CHOICE, characters, "{\"context\": 3, \"choices\": [\"a\", \"b\"], \"label\": 0}",
         ":1: field 'context' wants a text"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": [], \"label\": 0}",
         ":1: field 'choices' has 0"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": \"b\", \"label\": 0}",
         ":1: field 'choices' wants an array"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": [\"a\", 7], \"label\": 0}",
         ":1: field 'choices', number 1: it wants a text"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": [\"a\", \"\"], \"label\": 0}",
         ":1: field 'choices', number 1: it is empty"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": [\"a\", \"b\"], \"label\": 2}",
         ":1: field 'label' wants a whole number between 0 and 1, got 2"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": [\"a\", \"b\"], \"label\": -1}",
         "got -1"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": [\"a\", \"b\"], \"label\": \"0\"}",
         "field 'label' wants a whole number, got a text"},
        {SCORE_CHOICE, characters,
         "{\"context\": \"a\", \"choices\": [\"a\", \"b\"], \"label\": 0, \"label\": 1}",
         ":1: not valid JSON"},
        {SCORE_CHOICE, characters, "{\"context\": \"ax\", \"choices\": [\"a\", \"b\"], \"label\": 0}",
         ":1: field 'context': unknown character 'x'"},
        {SCORE_CHOICE, characters, "{\"context\": \"a\", \"choices\": [\"a\", \"y\"], \"label\": 0}",
         ":1: field 'choices', number 1: unknown character 'y' (U+0079) at line 1, column 1"},
        {SCORE_CHOICE, characters, "{\"context\": \"\", \"choices\": [\"a\", \"b\"], \"label\": 0}",
         ":1: field 'context': it is empty"},
        {SCORE_CHOICE, words, "{\"context\": \"red\", \"choices\": [\"red\", \"  \"], \"label\": 0}",
         ":1: field 'choices', number 1: it has no tokens"},
        {SCORE_CHOICE, words, "\n\n", "only empty lines"},
        {SCORE_LAST_WORD, characters, "{\"txt\": \"a b\"}", ":1: field 'text' is missing"},
        {SCORE_LAST_WORD, characters, "{\"text\": \"ab\"}", ":1: field 'text': it has only one word"},
        {SCORE_LAST_WORD, characters, "{\"text\": \"  \"}", ":1: field 'text': it has no words"},
        {SCORE_LAST_WORD, characters, "a b\n ab \n", ":2: it has only one word"},
        {SCORE_LAST_WORD, characters, "a b\nax b\n", ":2: unknown character 'x'"},
        {SCORE_LAST_WORD, characters, "a bx\n", ":1: unknown character 'x'"},
        {SCORE_TEXT, characters, "abx", "unknown character 'x'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ScoreSet set;
        Error error;
        assert_user_error(read_set(&set, cases[i].kind, cases[i].tokenizer, cases[i].text, NULL, &error),
                          &error, cases[i].words);
        if (cases[i].words[0] == ':') assert_user_error(error.status, &error, "/tmp/pgpt-test-data-");
        score_set_free(&set);
    }
    ScoreSet set;
    Error error = {0};
    score_set_init(&set, SCORE_CHOICE, words);
    assert_user_error(score_set_read(&set, "/tmp/pgpt-no-such-file", &(ScoreReadOptions){0}, &error), &error,
                      "/tmp/pgpt-no-such-file");
    score_set_free(&set);
    tokenizer_free(words);
    tokenizer_free(characters);
}

/* ---- figures */

static void test_summary(void **state) {
    (void)state;
    float losses[] = {1.0f, 2.0f, 0.5f, 0.5f, 0.5f, 4.0f};
    /* Two choices of 2 and 3 tokens, of which the first has the lower sum in the second item only. */
    ScoreText texts[] = {
        {.n_tokens = 3, .n_given = 1, .losses = losses, .n_bytes = 8},     /* sum 3, mean 1.5 */
        {.n_tokens = 4, .n_given = 1, .losses = losses + 2, .n_bytes = 6}, /* sum 1.5, mean 0.5 */
        {.n_tokens = 4, .n_given = 1, .losses = losses + 1, .n_bytes = 5}, /* sum 3, mean 1 */
        {.n_tokens = 3, .n_given = 2, .losses = losses + 1, .n_bytes = 4, .n_unseen = 3}, /* sum 2, mean 2 */
    };
    ScoreItem items[] = {{0, 2, 1}, {2, 2, 0}};
    ScoreSet set = {.kind = SCORE_CHOICE, .texts = texts, .n_texts = 4, .items = items, .n_items = 2};
    ScoreSummary summary;
    Error error = {0};
    assert_ok(score_summarise(&set, &summary, &error), &error);
    assert_int_equal(summary.n_items, 2);
    assert_int_equal(summary.n_tokens, 6);
    assert_int_equal(summary.n_bytes, 11);
    assert_near(summary.accuracy, 1.0);
    assert_near(summary.accuracy_sum, 0.5);
    assert_near(summary.loss, 4.5 / 6);
    assert_near(summary.perplexity, exp(0.75));
    assert_near(summary.bits_per_byte, 4.5 / 11 / log(2.0));
    assert_int_equal(summary.n_cut_items, 1);
    assert_int_equal(summary.n_cut_tokens, 3);
    losses[5] = NAN; /* nobody's */
    losses[3] = NAN; /* the second choice of the first item, and the first of the second */
    assert_int_equal(score_summarise(&set, &summary, &error), STATUS_FAILED);
    losses[3] = 0.5f;
    error = (Error){0};
    ScoreItem last[] = {{0, 1, 0}, {1, 1, 0}};
    texts[1].is_predicted = true;
    set = (ScoreSet){.kind = SCORE_LAST_WORD, .texts = texts, .n_texts = 2, .items = last, .n_items = 2};
    assert_ok(score_summarise(&set, &summary, &error), &error);
    assert_near(summary.accuracy, 0.5);
    assert_true(isnan(summary.accuracy_sum));
    assert_near(summary.loss, 4.5 / 2); /* per word */
    assert_near(summary.bits_per_byte, 4.5 / 14 / log(2.0));
}

/* ---- a model that knows something */

static const char pattern[] = "red green blue black white ";

static void fill_pattern(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens,
                         int32_t *targets) {
    const TokenArray *text = context;
    for (int64_t b = 0; b < B; b++) {
        size_t first = (size_t)(first_sequence + (uint64_t)b) * 7;
        for (int64_t t = 0; t < T; t++) {
            tokens[b * T + t] = text->ids[(first + (size_t)t) % text->n];
            targets[b * T + t] = text->ids[(first + (size_t)t + 1) % text->n];
        }
    }
}

static void train(TestModel *model, TokenArray *text) {
    TrainStep step;
    DeviceMemory memory = {0};
    Error error = {0};
    StepOptions options = {.batch = 8, .micro_batch = 8, .T = model->config.context, .seed = 1};
    OptimizerOptions optimizer = {
        .kind = OPTIMIZER_ADAMW, .rate = 1e-2, .adamw = {0.9, 0.95, 1e-8}, .clip = 1.0};
    assert_ok(
        train_step_plan(&step, &model->config, &model->table, &options, &optimizer, &model->backend, &error),
        &error);
    device_require(&memory, &step.program.plan);
    assert_ok(device_open(&memory, &model->backend, &error), &error);
    assert_ok(train_step_open(&step, &memory, &error), &error);
    assert_ok(executor_upload(&step.executor, step.loss.parameters.flat, model->flat, &error), &error);
    BatchSource source = {fill_pattern, text};
    StepResult result = {0};
    enum { N_STEPS = 300 };
    for (int64_t i = 0; i < N_STEPS; i++) {
        double rate = optimizer.rate * (double)(N_STEPS - i) / N_STEPS;
        assert_ok(train_step_run(&step, &source, i, rate, &result, &error), &error);
    }
    assert_true(result.loss < 0.2);
    assert_ok(executor_download(&step.executor, step.loss.parameters.flat, model->flat, &error), &error);
    train_step_close(&step);
    device_close(&memory);
}

static void test_pattern(void **state) {
    (void)state;
    Tokenizer *tokenizer = build("char", pattern, sizeof pattern - 1, 0);
    TokenArray tokens = encode(tokenizer, pattern, sizeof pattern - 1);
    TestModel model = open_model(CONTEXT, tokenizer_n_vocabulary(tokenizer), 1.0f);
    train(&model, &tokens);
    ScoreSet set;
    ScoreSummary summary;
    Error error;

    const char *choices =
        "{\"context\": \"red green\", \"choices\": [\" white\", \" blue\", \" red\"], \"label\": 1}\n"
        "{\"context\": \"blue black \", \"choices\": [\"white\", \"blue\", \"green\"], \"label\": 0}\n"
        "{\"context\": \"white red\", \"choices\": [\" blue\", \" black\", \" red\", \" green\"], \"label\": 3}\n"
        "{\"context\": \"red green blue black white red green blue black\", \"choices\": [\" red\", \" white\"], "
        "\"label\": 1}\n";
    assert_ok(read_set(&set, SCORE_CHOICE, tokenizer, choices, NULL, &error), &error);
    for (int64_t batch = 1; batch <= 20; batch += 6) {
        score(&model, set.texts, set.n_texts, (ScoreOptions){.batch = batch});
        assert_ok(score_summarise(&set, &summary, &error), &error);
        assert_near(summary.accuracy, 1.0);
        assert_near(summary.accuracy_sum, 1.0);
        assert_true(summary.loss < 0.1);
        assert_int_equal(summary.n_items, 4);
        assert_int_equal(summary.n_cut_items, 1);
    }
    score_set_free(&set);

    const char *words =
        "{\"text\": \"blue black white\"}\n{\"text\": \"white red green \"}\n"
        "{\"text\": \"red green blue black white red green blue\"}\n{\"text\": \"red red green blue red\"}";
    assert_ok(read_set(&set, SCORE_LAST_WORD, tokenizer, words, NULL, &error), &error);
    for (int64_t n_rows = 1; n_rows <= 5; n_rows++) {
        score_words(&model, set.texts, set.n_texts, n_rows, CONTEXT);
        for (int i = 0; i < 4; i++) assert_int_equal(set.texts[i].is_predicted, i < 3);
    }
    set.n_items = 3;
    assert_ok(score_summarise(&set, &summary, &error), &error);
    assert_near(summary.accuracy, 1.0);
    assert_true(summary.perplexity > 1.0 && summary.perplexity < 1.5);
    assert_int_equal(summary.n_cut_items, 1);
    score_set_free(&set);

    /* The pattern itself: a byte is a token here, so bits per byte are the loss in another unit. */
    char text[10 * sizeof pattern] = "";
    for (int i = 0; i < 10; i++) strcat(text, pattern);
    assert_ok(read_set(&set, SCORE_TEXT, tokenizer, text, NULL, &error), &error);
    double without_overlap = INFINITY;
    for (int64_t stride = CONTEXT; stride >= 1; stride /= 4) {
        score(&model, set.texts, set.n_texts, (ScoreOptions){.stride = stride});
        assert_ok(score_summarise(&set, &summary, &error), &error);
        assert_int_equal(summary.n_tokens, strlen(text) - 1);
        assert_int_equal(summary.n_bytes, strlen(text) - 1);
        assert_near(summary.bits_per_byte, summary.loss / log(2.0));
        assert_near(summary.perplexity, exp(summary.loss));
        assert_true(summary.loss < without_overlap); /* more to go by, fewer mistakes */
        if (stride == CONTEXT) without_overlap = summary.loss;
    }
    score_set_free(&set);
    close_model(&model);
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
}

/* Of the built-in corpus, the last tenth: what training holds out. */
static void test_builtin_is_held_out(void **state) {
    (void)state;
    Tokenizer *bytes = build("byte", "", 0, 0);
    char *corpus;
    size_t n_bytes;
    ScoreSet set;
    Error error = {0};
    assert_ok(corpus_generate(CORPUS_DEFAULT_SEED, CORPUS_DEFAULT_BYTES, &corpus, &n_bytes, &error), &error);
    const char *end = corpus + n_bytes - n_bytes / 10;
    char first[2] = {end[0], '\0'};
    score_set_init(&set, SCORE_TEXT, bytes);
    assert_ok(score_set_read(&set, "builtin", &(ScoreReadOptions){0}, &error), &error);
    assert_int_equal(set.n_builtin, n_bytes);
    assert_int_equal(set.texts[0].n_bytes, n_bytes / 10 - 1);
    assert_text(&set, 0, first, end + 1);
    score_set_free(&set);
    corpus[n_bytes - n_bytes / 10 + 6] = '\0';
    score_set_init(&set, SCORE_TEXT, bytes);
    assert_ok(score_set_read(&set, "builtin", &(ScoreReadOptions){.most_tokens = 6}, &error), &error);
    assert_text(&set, 0, first, end + 1);
    score_set_free(&set);
    free(corpus);
    tokenizer_free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_text), cmocka_unit_test(test_read_items),
        cmocka_unit_test(test_bad_items), cmocka_unit_test(test_summary),
        cmocka_unit_test(test_pattern),   cmocka_unit_test(test_builtin_is_held_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
