/* Tokenizer files of every format: one that is accepted encodes and decodes without reaching beyond its tables.
 *
 * A BPE vocabulary must have all 256 bytes, which no fuzzer writes and no small seed holds. So the first '@' of an
 * input stands for them, as entries of a JSON object or as lines of a rank file. The first byte says what the input
 * is:
 *
 *     {   tokenizer.json, ours or Hugging Face's
 *     v   then vocab.json, a zero byte, merges.txt
 *     r   then a .tiktoken file
 *     and anything else is a file of its own */
#include "fuzz_folder.h"

#include "data/tokenizer/tokenizer.h"

#include <string.h>

enum { SINGLE, VOCABULARY, MERGES };
enum { N_BYTES_OF_ALL = 8192 };

/* The byte with this id: those that can be seen come first. */
static int byte_of_id(int id) {
    int n = 0;
    for (int visible = 1; visible >= 0; visible--) {
        for (int byte = 0; byte < 256; byte++) {
            bool is_visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
            if (is_visible == visible && n++ == id) return byte;
        }
    }
    return 0;
}

/* "\u0121":33, ... for JSON, or lines "IQ== 33". */
static size_t all_bytes(char *text, bool as_ranks) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { N_VISIBLE = 188 };
    size_t n = 0;
    for (int id = 0; id < 256; id++) {
        int byte = byte_of_id(id), symbol = id < N_VISIBLE ? byte : 256 + id - N_VISIBLE;
        if (as_ranks) {
            n += (size_t)snprintf(text + n, N_BYTES_OF_ALL - n, "%c%c== %d\n", digits[byte >> 2],
                                  digits[(byte & 3) << 4], id);
        } else {
            n += (size_t)snprintf(text + n, N_BYTES_OF_ALL - n, "%s\"\\u%04x\":%d", id ? "," : "",
                                  (unsigned)symbol, id);
        }
    }
    FUZZ_CHECK(n < N_BYTES_OF_ALL);
    return n;
}

/* Write a file with its '@' replaced. */
static void put_file(int which, const char *bytes, size_t n_bytes, bool as_ranks) {
    static char all[2][N_BYTES_OF_ALL];
    static size_t n_all[2];
    if (!n_all[as_ranks]) n_all[as_ranks] = all_bytes(all[as_ranks], as_ranks);
    const char *at = n_bytes ? memchr(bytes, '@', n_bytes) : NULL;
    if (!at) {
        fuzz_file(which, bytes, n_bytes);
        return;
    }
    size_t n_before = (size_t)(at - bytes), n_after = n_bytes - n_before - 1;
    char *text = malloc(n_bytes + N_BYTES_OF_ALL);
    FUZZ_CHECK(text);
    memcpy(text, bytes, n_before);
    memcpy(text + n_before, all[as_ranks], n_all[as_ranks]);
    memcpy(text + n_before + n_all[as_ranks], at + 1, n_after);
    fuzz_file(which, text, n_before + n_all[as_ranks] + n_after);
    free(text);
}

static void use(const Tokenizer *tokenizer) {
    static const char *const texts[] = {"", "a", "The cat sat.\n\nA \"dog\", too.",
                                        "caf\xc3\xa9 \xf0\x9f\x90\x88 <|endoftext|>", "\xff\xc3 \x80z"};
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

static const char *put_input(const char *bytes, size_t n_bytes) {
    static char single[320], vocabulary[320];
    if (!single[0]) {
        snprintf(single, sizeof single, "%s/single", fuzz_folder("single", SINGLE));
        snprintf(vocabulary, sizeof vocabulary, "%s/vocab.json", fuzz_folder("vocab.json", VOCABULARY));
        fuzz_folder("merges.txt", MERGES);
    }
    if (n_bytes && bytes[0] == 'v') {
        const char *rest = bytes + 1, *zero = memchr(rest, 0, n_bytes - 1);
        size_t n_rest = n_bytes - 1, n_vocabulary = zero ? (size_t)(zero - rest) : n_rest;
        put_file(VOCABULARY, rest, n_vocabulary, false);
        if (zero) fuzz_file(MERGES, zero + 1, n_rest - n_vocabulary - 1);
        else fuzz_file(MERGES, "", 0);
        return vocabulary;
    }
    bool is_ranks = n_bytes && bytes[0] == 'r';
    put_file(SINGLE, bytes + is_ranks, n_bytes - is_ranks, is_ranks);
    return single;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    Tokenizer *tokenizer;
    Error error = {0};
    if (tokenizer_open(put_input((const char *)bytes, n_bytes), &tokenizer, &error) == STATUS_OK) {
        use(tokenizer);
        tokenizer_free(tokenizer);
    } else {
        FUZZ_CHECK(error.status == STATUS_USER && error.text[0]);
    }
    return 0;
}
