/* Signs with limits by a variance: numbers that never had a gradient have no sign and no part in the scale,
 * and what is cut is not said later. */
#include "ops/compress/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N = 3 * CODEC_BLOCK - 10 }; /* the last block is shorter */

typedef struct {
    float values[N], variance[N], said[N];
    uint32_t words[4 * CODEC_BLOCK];
} Fixture;

static const Codec signs = {.kind = CODEC_SIGN};

static void encode(Fixture *f, float bound) {
    CodecSlice slice = {f->words, f->values, f->variance, bound, N};
    codec_encode(&signs, &slice, 0, codec_blocks(N));
    slice.values = f->said;
    codec_decode(&signs, &slice, 0, codec_blocks(N), 1.0f, false);
}

/* The first block and half of the second had no gradient, though something was left over of them. */
static void no_gradient(void **state) {
    (void)state;
    static Fixture f;
    int n_masked = CODEC_BLOCK + CODEC_BLOCK / 2;
    for (int i = 0; i < N; i++) {
        f.values[i] = i % 2 ? 2.0f : -2.0f;
        f.variance[i] = i < n_masked ? 0.0f : 100.0f;
    }
    encode(&f, 1.0f);
    for (int i = 0; i < N; i++) {
        float wanted = i < n_masked ? 0.0f : i % 2 ? 2.0f : -2.0f; /* the scale is of those that count */
        assert_true(f.said[i] == wanted);
        assert_true(f.values[i] == 0.0f);
    }
}

/* Limits of 0.5 and 8 by bound 2: 3 says 0.5 where that is all that is allowed, and the rest is gone. */
static void limits(void **state) {
    (void)state;
    static Fixture f;
    for (int i = 0; i < N; i++) {
        f.values[i] = 3.0f;
        f.variance[i] = i % 2 ? 0.0625f : 16.0f;
    }
    encode(&f, 2.0f);
    float scale = sqrtf((9.0f + 0.25f) / 2.0f);
    for (int i = 0; i < N; i++) {
        assert_float_equal(f.said[i], (i % 2 ? 0.5f : scale), 1e-6);
        assert_float_equal(f.values[i], (i % 2 ? 0.0f : 3.0f - scale), 1e-6);
    }
}

/* Nothing is lost where there are no limits. */
static void left_over(void **state) {
    (void)state;
    static Fixture f;
    float before[N];
    CodecSlice slice = {f.words, f.values, NULL, 0.0f, N};
    for (int i = 0; i < N; i++) before[i] = f.values[i] = sinf((float)i);
    codec_encode(&signs, &slice, 0, codec_blocks(N));
    slice.values = f.said;
    codec_decode(&signs, &slice, 0, codec_blocks(N), 1.0f, false);
    for (int i = 0; i < N; i++) {
        assert_float_equal(f.values[i] + f.said[i], before[i], 1e-6);
        assert_true((f.said[i] < 0.0f) == (before[i] < 0.0f));
    }
}

/* Of the largest, those without a gradient are none, however large what was left over of them. */
static void largest_with_gradient(void **state) {
    (void)state;
    static Fixture f;
    Codec top = {.kind = CODEC_TOP, .n_kept = 3};
    CodecSlice slice = {f.words, f.values, f.variance, 1e30f, N};
    for (int i = 0; i < N; i++) {
        f.values[i] = i % 2 ? 100.0f : 1.0f + (float)(i % CODEC_BLOCK) / CODEC_BLOCK;
        f.variance[i] = i % 2 ? 0.0f : 4.0f;
    }
    codec_encode(&top, &slice, 0, codec_blocks(N));
    slice.values = f.said;
    codec_decode(&top, &slice, 0, codec_blocks(N), 1.0f, false);
    for (int i = 0; i < N; i++) {
        int end = i / CODEC_BLOCK * CODEC_BLOCK + CODEC_BLOCK < N ? CODEC_BLOCK : N % CODEC_BLOCK;
        if (!end) end = CODEC_BLOCK;
        int last_even = (end - 1) / 2 * 2, at = i % CODEC_BLOCK;
        bool is_sent = i % 2 == 0 && at > last_even - 6;
        float value = 1.0f + (float)at / CODEC_BLOCK;
        assert_true(f.said[i] == (is_sent ? value : 0.0f));
        assert_true(f.values[i] == (is_sent || i % 2 ? 0.0f : value));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_gradient), cmocka_unit_test(limits),
                                       cmocka_unit_test(left_over), cmocka_unit_test(largest_with_gradient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
