/* What the tests of byte-pair encoding share. */
#ifndef PGPT_TESTS_BPE_SUPPORT_H
#define PGPT_TESTS_BPE_SUPPORT_H

#include "base/random.h"
#include "base/text/utf8.h"
#include "data/corpus.h"
#include "data/tokenizer/bpe_train.h"
#include "data_support.h"

typedef struct {
    char *bytes;
    size_t n;
} Sample;

static inline uint32_t draw(uint64_t seed, uint64_t index, uint32_t n) {
    return (uint32_t)((uint64_t)random_block(random_key(seed, RANDOM_TEST, 0), 0, index).word[0] * n >> 32);
}

/* Every byte alike. */
static inline Sample random_bytes(uint64_t seed, size_t n) {
    Sample sample = {malloc(n + 1), n};
    for (size_t i = 0; i < n; i++) sample.bytes[i] = (char)draw(seed, i, 256);
    return sample;
}

/* Text that is hard to split: white space, apostrophes, letters and numbers of
 * many scripts, emoji, every plane, and bytes that are no UTF-8. */
static inline Sample random_text(uint64_t seed, size_t n_parts) {
    static const char *const parts[] = {
        " ",
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "\xC2\xA0",
        "\xE3\x80\x80",
        "\xE2\x80\xA8",
        "\xC2\x85",
        "\xE1\xA0\x8E" /* U+180E */,
        "\xEF\xBB\xBF",
        "a",
        "bc",
        "The",
        "\xC3\xA9",
        "\xD0\x96",
        "\xE4\xB8\xAD\xE6\x96\x87",
        "\xF0\x9D\x94\xB8",
        "1",
        "23",
        "\xD9\xA3",
        "\xE2\x85\xA7",
        "'s",
        "'t",
        "'re",
        "'ve",
        "'m",
        "'ll",
        "'d",
        "'S",
        "'",
        ".",
        "!?",
        "<|",
        "|>",
        "endoftext",
        "\xE2\x82\xAC",
        "\xF0\x9F\x90\xA6",
        "e\xCC\x81",
        "\xFF",
        "\x80",
        "\xC3",
        "\xE2\x82",
        "\xF0\x9F\x90",
        "\xED\xA0\x80",
        "\xC0\x80",
    };
    Sample sample = {malloc(16 * n_parts + 1), 0};
    for (size_t i = 0; i < n_parts; i++) {
        uint32_t number = draw(seed, 2 * i, sizeof parts / sizeof *parts + 4);
        if (number < sizeof parts / sizeof *parts) {
            memcpy(sample.bytes + sample.n, parts[number], strlen(parts[number]));
            sample.n += strlen(parts[number]);
        } else {
            uint32_t code = draw(seed, 2 * i + 1, UTF8_N_UNICODE);
            if (code < 0xD800 || code > 0xDFFF) sample.n += utf8_encode(code, sample.bytes + sample.n);
        }
    }
    return sample;
}

static inline Sample corpus(size_t n_bytes) {
    Error error = {0};
    Sample sample;
    assert_ok(corpus_generate(1, n_bytes, &sample.bytes, &sample.n, &error), &error);
    return sample;
}

/* A vocabulary of the stories with some oddities in between. */
static inline Tokenizer *train(int n_vocabulary, int n_threads) {
    static const char *const specials[] = {"<|endoftext|>", "<|pad|>"};
    Error error = {0};
    Tokenizer *tokenizer;
    Sample stories = corpus(60000), odd = random_text(7, 4000);
    stories.bytes = realloc(stories.bytes, stories.n + odd.n);
    memcpy(stories.bytes + stories.n, odd.bytes, odd.n);
    BpeTrainOptions options = {
        .n_vocabulary = n_vocabulary, .specials = specials, .n_specials = 2, .n_threads = n_threads};
    assert_ok(bpe_train_text(&options, stories.bytes, stories.n + odd.n, &tokenizer, &error), &error);
    free(stories.bytes);
    free(odd.bytes);
    return tokenizer;
}

static inline void assert_same_ids(TokenArray a, TokenArray b) {
    assert_int_equal(a.n, b.n);
    if (a.n) assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
}

#endif
