/* A tokenizer's file: one that is accepted encodes and decodes without reaching beyond its tables. */
#include "fuzz.h"

#include "data/tokenizer.h"

#include <string.h>

static void use(const Tokenizer *tokenizer) {
    static const char *const texts[] = {"", "a", "The cat sat.\n\nA \"dog\", too.",
                                        "caf\xc3\xa9 \xf0\x9f\x90\x88", "\xff\xc3 \x80z"};
    int n_vocabulary = tokenizer_n_vocabulary(tokenizer);
    FUZZ_CHECK(n_vocabulary > 0 && tokenizer_end_of_text(tokenizer) < n_vocabulary);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        TokenArray tokens = {0};
        Error error = {0};
        size_t n = strlen(texts[i]);
        FUZZ_CHECK(tokenizer_cut(tokenizer, texts[i], n) <= n);
        if (tokenizer_encode(tokenizer, texts[i], n, &tokens, &error) == STATUS_OK) {
            char *text;
            size_t n_bytes;
            for (size_t k = 0; k < tokens.n; k++)
                FUZZ_CHECK(tokens.ids[k] >= 0 && tokens.ids[k] < n_vocabulary);
            FUZZ_CHECK(tokenizer_decode(tokenizer, tokens.ids, tokens.n, &text, &n_bytes, &error) ==
                       STATUS_OK);
            if (strcmp(tokenizer_kind(tokenizer), "word") != 0)
                FUZZ_CHECK(n_bytes == n && memcmp(text, texts[i], n) == 0);
            free(text);
        }
        token_array_free(&tokens);
    }
    TokenDecoder decoder = token_decoder(tokenizer);
    for (int32_t id = -1; id <= n_vocabulary && id < 2000; id++) token_decode(&decoder, id);
    token_decode(&decoder, INT32_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    Tokenizer *tokenizer;
    Error error = {0};
    if (tokenizer_load(fuzz_file(0, bytes, n_bytes), &tokenizer, &error) == STATUS_OK) {
        use(tokenizer);
        tokenizer_free(tokenizer);
    } else {
        FUZZ_CHECK(error.status == STATUS_USER && error.text[0]);
    }
    return 0;
}
