/* Sampling: what is drawn, how often, and what the cuts leave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"
#include "infer/repetition.h"
#include "infer/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t pick(const SamplerOptions *options, const float *logits, int64_t n, uint64_t sample,
                    uint64_t position, float *log_probability) {
    Sampler sampler;
    Error error = {0};
    SampledToken picked;
    assert_int_equal(sampler_open(&sampler, options, n, &error), STATUS_OK);
    assert_int_equal(sampler_pick(&sampler, logits, NULL, sample, position, &picked, &error), STATUS_OK);
    sampler_close(&sampler);
    if (log_probability) *log_probability = picked.log_probability;
    return picked.token;
}

static void test_greedy(void **state) {
    (void)state;
    const float logits[] = {0.5f, 2.0f, -1.0f, 2.0f};
    SamplerOptions greedy = SAMPLER_DEFAULTS;
    greedy.temperature = 0.0;
    float log_probability;
    assert_int_equal(pick(&greedy, logits, 4, 0, 0, &log_probability), 1); /* the first of equals */
    double sum = exp(0.5) + 2.0 * exp(2.0) + exp(-1.0);
    assert_true(fabs((double)log_probability - (2.0 - log(sum))) < 1e-6);
    assert_int_equal(pick(&greedy, logits, 1, 0, 0, &log_probability), 0);
    assert_true(log_probability == 0.0f);
}

/* Draw n times and count; the sample number changes half of the time, so that both coordinates are covered. */
static void count_draws(const SamplerOptions *options, const float *logits, int64_t n_vocabulary, int n_draws,
                        int *counts) {
    Sampler sampler;
    Error error = {0};
    assert_int_equal(sampler_open(&sampler, options, n_vocabulary, &error), STATUS_OK);
    memset(counts, 0, sizeof *counts * (size_t)n_vocabulary);
    for (int i = 0; i < n_draws; i++) {
        SampledToken picked;
        assert_int_equal(
            sampler_pick(&sampler, logits, NULL, (uint64_t)(i % 2), (uint64_t)(i / 2), &picked, &error),
            STATUS_OK);
        assert_in_range(picked.token, 0, n_vocabulary - 1);
        counts[picked.token]++;
    }
    sampler_close(&sampler);
}

static void test_distribution(void **state) {
    (void)state;
    enum { N = 5, N_DRAWS = 40000 };
    const float logits[N] = {1.0f, -2.0f, 0.0f, 3.0f, 2.5f};
    const double temperatures[] = {1.0, 0.5, 3.0};
    for (int k = 0; k < 3; k++) {
        SamplerOptions options = SAMPLER_DEFAULTS;
        options.temperature = temperatures[k];
        options.seed = 7;
        int counts[N];
        count_draws(&options, logits, N, N_DRAWS, counts);
        double sum = 0.0, chi = 0.0;
        for (int i = 0; i < N; i++) sum += exp((double)logits[i] / temperatures[k]);
        for (int i = 0; i < N; i++) {
            double expected = N_DRAWS * exp((double)logits[i] / temperatures[k]) / sum;
            chi += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
        }
        if (chi > 23.5)
            fail_msg("temperature %g: chi squared %g over 4 degrees of freedom", temperatures[k], chi);
    }
}

static int by_logit(const void *a, const void *b) {
    const float *const *x = a, *const *y = b;
    if (**x != **y) return **x < **y ? 1 : -1;
    return *x < *y ? -1 : 1; /* the lower token first */
}

/* Which tokens the options keep, by sorting. Returns how many. */
static int kept_by_sorting(const SamplerOptions *options, const float *logits, int n, bool *kept) {
    const float **order = malloc(sizeof *order * (size_t)n);
    double total = 0.0, sum = 0.0;
    for (int i = 0; i < n; i++) order[i] = &logits[i];
    qsort(order, (size_t)n, sizeof *order, by_logit);
    int n_top = options->top_k > 0 && options->top_k < n ? (int)options->top_k : n;
    for (int i = 0; i < n_top; i++) total += exp((double)(*order[i] - *order[0]) / options->temperature);
    for (int i = 0; i < n; i++) kept[i] = false;
    int n_kept = 0;
    while (n_kept < n_top && (n_kept == 0 || sum < options->top_p * total)) {
        kept[order[n_kept] - logits] = true;
        sum += exp((double)(*order[n_kept++] - *order[0]) / options->temperature);
    }
    free(order);
    return n_kept;
}

/* At a high temperature every token that is kept is soon drawn. */
static void test_cuts(void **state) {
    (void)state;
    enum { MOST = 100, N_DRAWS = 4000 };
    const int sizes[] = {1, 2, 17, MOST};
    const int64_t top_ks[] = {0, 1, 5, 16, 1000};
    const double top_ps[] = {1.0, 1e-9, 0.33, 0.9};
    float logits[MOST];
    bool kept[MOST];
    int counts[MOST];
    for (int trial = 0; trial < 4 * 5 * 4; trial++) {
        int n = sizes[trial % 4];
        SamplerOptions options = {
            .temperature = 50.0, .top_k = top_ks[trial / 4 % 5], .top_p = top_ps[trial / 20], .seed = 3};
        /* Few different values, so that there are ties at the cut. */
        for (int i = 0; i < n; i++)
            logits[i] = floorf(test_value("cuts", (uint64_t)trial * MOST + (uint64_t)i) * 8.0f);
        kept_by_sorting(&options, logits, n, kept);
        count_draws(&options, logits, n, N_DRAWS, counts);
        for (int i = 0; i < n; i++) {
            if (kept[i] == (counts[i] > 0)) continue;
            fail_msg("%d tokens, top-k %lld, top-p %g: token %d was drawn %d times and is %s", n,
                     (long long)options.top_k, options.top_p, i, counts[i], kept[i] ? "kept" : "cut");
        }
    }
}

/* ---- repetition */

/* The rule, written down once more: what the penalty makes of a logit. */
static double penalised(float logit, int32_t count, double penalty) {
    if (count == 0) return (double)logit;
    return logit > 0.0f ? (double)logit / penalty : (double)logit * penalty;
}

static void test_penalty(void **state) {
    (void)state;
    enum { N = 6, N_DRAWS = 40000 };
    const float logits[N] = {1.0f, -2.0f, 0.0f, 3.0f, 2.5f, -0.5f};
    const int32_t counts[N] = {0, 1, 7, 2, 0, 1}, none[N] = {0};
    const double penalties[] = {1.3, 4.0, 0.5}, temperatures[] = {1.0, 0.7, 2.0};
    for (int k = 0; k < 3; k++) {
        SamplerOptions options = SAMPLER_DEFAULTS;
        options.temperature = temperatures[k];
        options.repetition_penalty = penalties[k];
        Sampler sampler;
        Error error = {0};
        SampledToken picked, plain;
        assert_int_equal(sampler_open(&sampler, &options, N, &error), STATUS_OK);
        double total = 0.0, own_total = 0.0, chi = 0.0;
        int n_drawn[N] = {0};
        for (int i = 0; i < N; i++) {
            total += exp(penalised(logits[i], counts[i], penalties[k]) / temperatures[k]);
            own_total += exp((double)logits[i]);
        }
        for (uint64_t i = 0; i < N_DRAWS; i++) {
            assert_int_equal(sampler_pick(&sampler, logits, counts, 0, i, &picked, &error), STATUS_OK);
            n_drawn[picked.token]++;
            /* What is reported is the model's own, as if nothing had been penalised. */
            double own = (double)logits[picked.token] - log(own_total);
            assert_true(fabs((double)picked.log_probability - own) < 1e-6);
        }
        for (int i = 0; i < N; i++) {
            double expected =
                N_DRAWS * exp(penalised(logits[i], counts[i], penalties[k]) / temperatures[k]) / total;
            chi += ((double)n_drawn[i] - expected) * ((double)n_drawn[i] - expected) / expected;
        }
        if (chi > 25.7) fail_msg("penalty %g: chi squared %g over 5 degrees of freedom", penalties[k], chi);
        /* Nothing repeated, nothing changed. */
        for (uint64_t i = 0; i < 100; i++) {
            assert_int_equal(sampler_pick(&sampler, logits, none, 0, i, &picked, &error), STATUS_OK);
            assert_int_equal(sampler_pick(&sampler, logits, NULL, 0, i, &plain, &error), STATUS_OK);
            assert_int_equal(picked.token, plain.token);
        }
        sampler_close(&sampler);
    }
}

static void test_penalty_greedy(void **state) {
    (void)state;
    const float logits[] = {2.0f, 1.9f, -3.0f}, low[] = {-1.0f, -1.5f, -9.0f};
    const int32_t counts[] = {1, 0, 0};
    SamplerOptions options = {.temperature = 0.0, .top_p = 1.0, .repetition_penalty = 1.1};
    Sampler sampler;
    Error error = {0};
    SampledToken picked;
    assert_int_equal(sampler_open(&sampler, &options, 3, &error), STATUS_OK);
    assert_int_equal(sampler_pick(&sampler, logits, counts, 0, 0, &picked, &error), STATUS_OK);
    assert_int_equal(picked.token, 1); /* 2 / 1.1 < 1.9 */
    assert_int_equal(sampler_pick(&sampler, low, counts, 0, 0, &picked, &error), STATUS_OK);
    assert_int_equal(picked.token, 0); /* -1 · 1.1 > -1.5 */
    sampler.options.repetition_penalty = 2.0;
    assert_int_equal(sampler_pick(&sampler, low, counts, 0, 0, &picked, &error), STATUS_OK);
    assert_int_equal(picked.token, 1);
    /* Logits at the ends of their range stay in it. */
    const float far[] = {-3e38f, -3.2e38f, -3.3e38f};
    sampler.options.repetition_penalty = 1000.0;
    assert_int_equal(sampler_pick(&sampler, far, counts, 0, 0, &picked, &error), STATUS_OK);
    assert_int_equal(picked.token, 1);
    sampler_close(&sampler);
}

/* Windows that slide, of texts side by side, against a look back from every token. */
static void test_windows(void **state) {
    (void)state;
    enum { N_TEXTS = 2, N = 5, LENGTH = 60 };
    const int64_t sizes[] = {0, 1, 3, 17, 100}, prompts[] = {1, 2, 20};
    for (int trial = 0; trial < 15; trial++) {
        int64_t size = sizes[trial % 5], prompt = prompts[trial / 5];
        RepetitionWindows windows;
        Error error = {0};
        assert_int_equal(repetition_open(&windows, N_TEXTS, N, size, &error), STATUS_OK);
        for (int round = 0; round < 2; round++) {
            int32_t tokens[N_TEXTS][LENGTH];
            for (int64_t t = 0; t < N_TEXTS; t++) {
                for (int64_t i = 0; i < LENGTH; i++)
                    tokens[t][i] =
                        (int32_t)(test_hash("window", (uint64_t)(i + LENGTH * (t + 2 * round))) % N);
                repetition_start(&windows, t, tokens[t], prompt);
            }
            for (int64_t n = prompt; n < LENGTH; n++) {
                for (int64_t t = 0; t < N_TEXTS; t++) {
                    int32_t want[N] = {0};
                    for (int64_t i = size && n > size ? n - size : 0; i < n; i++) want[tokens[t][i]]++;
                    assert_memory_equal(repetition_counts(&windows, t), want, sizeof want);
                    repetition_add(&windows, t, tokens[t][n]);
                }
            }
        }
        repetition_close(&windows);
        repetition_close(&windows);
        assert_null(repetition_counts(&windows, 1));
    }
    RepetitionWindows windows;
    Error error = {0};
    assert_int_equal(repetition_open(&windows, 1 << 20, 50000, INT64_MAX / 2, &error), STATUS_USER);
}

static void test_determinism(void **state) {
    (void)state;
    enum { N = 64 };
    float logits[N];
    for (int i = 0; i < N; i++) logits[i] = test_value("logits", (uint64_t)i);
    SamplerOptions options = {.temperature = 1.0, .top_p = 0.95, .top_k = 60, .seed = 11}, other = options;
    other.seed = 12;
    int n_seed = 0, n_sample = 0, n_position = 0;
    for (uint64_t i = 0; i < 100; i++) {
        int32_t token = pick(&options, logits, N, 3, i, NULL);
        assert_int_equal(token, pick(&options, logits, N, 3, i, NULL));
        n_seed += token != pick(&other, logits, N, 3, i, NULL);
        n_sample += token != pick(&options, logits, N, 4, i, NULL);
        n_position += token != pick(&options, logits, N, 3, i + 1, NULL);
    }
    assert_true(n_seed > 80 && n_sample > 80 && n_position > 80);
}

static void test_extremes(void **state) {
    (void)state;
    const float steep[] = {-3e38f, 3e38f, 0.0f};
    SamplerOptions tiny = {.temperature = 1e-310, .top_p = 0.5};
    assert_int_equal(pick(&tiny, steep, 3, 0, 0, NULL), 1);
    float log_probability;
    const float lost[] = {-1000.0f, 0.0f};
    SamplerOptions plain = SAMPLER_DEFAULTS;
    assert_int_equal(pick(&plain, lost, 2, 0, 0, &log_probability), 1);
    assert_true(log_probability == 0.0f);
    const float wrong[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        float logits[] = {0.0f, wrong[i], 1.0f};
        Sampler sampler;
        SampledToken picked;
        Error error = {0};
        assert_int_equal(sampler_open(&sampler, &plain, 3, &error), STATUS_OK);
        assert_int_equal(sampler_pick(&sampler, logits, NULL, 0, 0, &picked, &error), STATUS_FAILED);
        assert_non_null(strstr(error.text, "token 1"));
        sampler_close(&sampler);
    }
}

static void test_bad_options(void **state) {
    (void)state;
    const SamplerOptions bad[] = {{.temperature = -1.0, .top_p = 1.0},
                                  {.temperature = NAN, .top_p = 1.0},
                                  {.temperature = 1.0, .top_p = 0.0},
                                  {.temperature = 1.0, .top_p = 1.5},
                                  {.temperature = 1.0, .top_p = 1.0, .top_k = -1},
                                  {.temperature = 1.0, .top_p = 1.0, .repetition_penalty = -1.0},
                                  {.temperature = 1.0, .top_p = 1.0, .repetition_penalty = NAN},
                                  {.temperature = 1.0, .top_p = 1.0, .repetition_penalty = INFINITY},
                                  {.temperature = 1.0, .top_p = 1.0, .repetition_window = -1}};
    const char *names[] = {"--temperature",
                           "--temperature",
                           "--top-p",
                           "--top-p",
                           "--top-k",
                           "--repetition-penalty",
                           "--repetition-penalty",
                           "--repetition-penalty",
                           "--repetition-window"};
    for (int i = 0; i < 9; i++) {
        Sampler sampler;
        Error error = {0};
        assert_int_equal(sampler_open(&sampler, &bad[i], 4, &error), STATUS_USER);
        assert_non_null(strstr(error.text, names[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),   cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_cuts),     cmocka_unit_test(test_determinism),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_penalty),  cmocka_unit_test(test_penalty_greedy),
        cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
