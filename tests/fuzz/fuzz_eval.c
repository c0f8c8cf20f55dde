/* The files of an evaluation, as each of their kinds: what is accepted makes texts that lie within the tokens. */
#include "fuzz.h"

#include "infer/score_set.h"

static void read_set(ScoreKind kind, const Tokenizer *tokenizer, const char *path) {
    ScoreSet set;
    Error error = {0};
    score_set_init(&set, kind, tokenizer);
    if (score_set_read(&set, path, &(ScoreReadOptions){0}, &error) == STATUS_OK) {
        int64_t n_scored = 0;
        for (int64_t i = 0; i < set.n_texts; i++) {
            const ScoreText *text = &set.texts[i];
            FUZZ_CHECK(text->n_given >= 1 && text->n_given <= text->n_tokens);
            FUZZ_CHECK(text->tokens >= set.tokens.ids &&
                       text->tokens + text->n_tokens <= set.tokens.ids + set.tokens.n);
            n_scored += text->n_tokens - text->n_given;
        }
        FUZZ_CHECK(n_scored == set.n_scored);
        for (int64_t i = 0; i < set.n_items; i++) {
            const ScoreItem *item = &set.items[i];
            FUZZ_CHECK(item->first_text >= 0 && item->first_text + item->n_texts <= set.n_texts);
            FUZZ_CHECK(kind != SCORE_CHOICE || (item->label >= 0 && item->label < item->n_texts));
        }
    } else {
        FUZZ_CHECK(error.status == STATUS_USER && error.text[0]);
    }
    score_set_free(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static Tokenizer *byte_tokenizer, *word_tokenizer;
    if (!byte_tokenizer) {
        static const char words[] = "the cat sat on the mat .";
        Error error = {0};
        FUZZ_CHECK(tokenizer_build("byte", "", 0, 0, &byte_tokenizer, &error) == STATUS_OK);
        FUZZ_CHECK(tokenizer_build("word", words, sizeof words - 1, 0, &word_tokenizer, &error) == STATUS_OK);
    }
    const char *path = fuzz_file(0, bytes, n_bytes);
    for (int kind = SCORE_TEXT; kind <= SCORE_LAST_WORD; kind++) {
        read_set((ScoreKind)kind, byte_tokenizer, path);
        read_set((ScoreKind)kind, word_tokenizer, path);
    }
    return 0;
}
