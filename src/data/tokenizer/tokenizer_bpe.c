/* Byte-pair encoding as a kind of tokenizer: text is cut into special tokens and words (pretokenize.h), and
 * words are merged (bpe.h).
 *
 * Text repeats its words, so an encoding of more than a few kilobytes keeps a table of the ids of words it
 * has seen. A slot is one cache line that holds the word itself (up to 15 bytes) and its ids (up to 11); a
 * word hashes to one slot and takes it over from whoever was there. Rare words come and go; frequent ones are
 * back at once. The table is small enough to stay in the second-level cache, belongs to one call, and so
 * needs no lock. */
#include "data/hash.h"
#include "data/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

enum {
    CACHE_BITS = 13,
    CACHE_FROM_BYTES = 4096, /* shorter texts do without */
    CACHE_WORD_BYTES = 15,
    CACHE_IDS = 11,
};

/* All bytes count in a comparison, so the unused ones are 0; the last one is the word's length, 0 in a free
 * slot. */
typedef struct {
    uint64_t key[2];
    uint32_t n_ids;
    int32_t ids[CACHE_IDS];
} CacheSlot;

/* One call's state. */
typedef struct {
    const Bpe *bpe;
    const SymbolTable *symbols;
    TokenArray *tokens;
    CacheSlot *cache; /* NULL: none */
} Encoding;

/* ---- Words ---- */

/* A word of 1 to CACHE_WORD_BYTES bytes as a key. n_readable is how far the text goes on from the word's
 * start. */
static inline void make_key(const char *word, size_t n, size_t n_readable, uint64_t key[2]) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (n_readable >= 16) { /* read too much, then take it away: the length is not known to the compiler */
        memcpy(key, word, 16);
        uint64_t low_mask = n >= 8 ? UINT64_MAX : (UINT64_C(1) << (8 * n)) - 1;
        uint64_t high_mask = n > 8 ? (UINT64_C(1) << (8 * (n - 8))) - 1 : 0;
        key[0] &= low_mask;
        key[1] = (key[1] & high_mask) | (uint64_t)n << 56;
        return;
    }
#endif
    unsigned char bytes[16] = {0};
    memcpy(bytes, word, n);
    bytes[15] = (unsigned char)n;
    memcpy(key, bytes, 16);
    (void)n_readable;
}

static inline CacheSlot *cache_slot(const Encoding *encoding, const uint64_t key[2]) {
    uint64_t hash = (key[0] ^ key[1] * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
    return &encoding->cache[(hash ^ hash >> 29) * 0xA0761D6478BD642Fu >> (64 - CACHE_BITS)];
}

static bool is_special(const Bpe *bpe, int32_t id) {
    for (size_t i = 0; i < bpe->n_specials; i++) {
        if (bpe->specials[i] == id) return true;
    }
    return false;
}

/* Append the ids of a word without the cache. There is room for n. */
static Status encode_word(const Encoding *encoding, const char *word, size_t n, Error *error) {
    const Bpe *bpe = encoding->bpe;
    TokenArray *tokens = encoding->tokens;
    int32_t *ids = tokens->ids + tokens->n;
    if (bpe->whole_words) {
        int32_t id = symbols_find(encoding->symbols, word, n);
        if (id >= 0 && !is_special(bpe, id)) {
            tokens->ids[tokens->n++] = id;
            return STATUS_OK;
        }
    }
    for (size_t i = 0; i < n; i++) ids[i] = bpe->byte_ids[(unsigned char)word[i]];
    TRY(bpe_merge(bpe, ids, &n, error));
    tokens->n += n;
    return STATUS_OK;
}

/* Append the ids of a word. n_readable is how far the text goes on from the word's start. */
static inline Status encode_cached(const Encoding *encoding, const char *word, size_t n, size_t n_readable,
                                   Error *error) {
    TokenArray *tokens = encoding->tokens;
    if (tokens->capacity - tokens->n < n + CACHE_IDS) TRY(token_array_reserve(tokens, n + CACHE_IDS, error));
    if (!encoding->cache || n > CACHE_WORD_BYTES) return encode_word(encoding, word, n, error);
    uint64_t key[2];
    make_key(word, n, n_readable, key);
    CacheSlot *slot = cache_slot(encoding, key);
    if (slot->key[0] == key[0] && slot->key[1] == key[1]) {
        memcpy(tokens->ids + tokens->n, slot->ids, sizeof slot->ids); /* all: a constant length is faster */
        tokens->n += slot->n_ids;
        return STATUS_OK;
    }
    size_t n_before = tokens->n;
    TRY(encode_word(encoding, word, n, error));
    size_t n_ids = tokens->n - n_before;
    if (n_ids > CACHE_IDS) return STATUS_OK;
    memcpy(slot->ids, tokens->ids + n_before, n_ids * sizeof *slot->ids);
    slot->n_ids = (uint32_t)n_ids;
    slot->key[0] = key[0];
    slot->key[1] = key[1];
    return STATUS_OK;
}

static Status encode_words(const Encoding *encoding, const char *text, size_t n_bytes, Error *error) {
    PieceWalk walk;
    TRY(piece_walk_begin(&walk, encoding->bpe->pretokenizer, text, n_bytes, error));
    for (size_t first = 0; first < n_bytes; first = walk.at) {
        TRY_GOTO(piece_walk_next(&walk, error), done);
        TRY_GOTO(encode_cached(encoding, text + first, walk.at - first, n_bytes - first, error), done);
    }
done:
    piece_walk_end(&walk);
    return error->status;
}

/* ---- Special tokens ---- */

/* The longest special token that the text has at `at`, or -1. */
static int32_t special_at(const Tokenizer *tokenizer, const char *text, size_t n_bytes, size_t at) {
    const Bpe *bpe = bpe_of(tokenizer);
    unsigned char first = (unsigned char)text[at];
    for (uint32_t i = bpe->special_range[first]; i < bpe->special_range[first + 1]; i++) {
        size_t n = symbols_n_bytes(&tokenizer->symbols, bpe->specials[i]);
        if (n <= n_bytes - at &&
            memcmp(symbols_bytes(&tokenizer->symbols, bpe->specials[i]), text + at, n) == 0) {
            return bpe->specials[i];
        }
    }
    return -1;
}

/* Where the next special token starts, n_bytes if there is none, and which. */
static size_t next_special(const Tokenizer *tokenizer, const char *text, size_t n_bytes, size_t at,
                           int32_t *id) {
    const Bpe *bpe = bpe_of(tokenizer);
    *id = -1;
    for (; at < n_bytes; at++) {
        unsigned char first = (unsigned char)text[at];
        if (bpe->special_range[first] == bpe->special_range[first + 1]) continue;
        *id = special_at(tokenizer, text, n_bytes, at);
        if (*id >= 0) return at;
    }
    return n_bytes;
}

/* Whether a special token lies across the position, or may do so once more text is there. */
static bool in_special(const Tokenizer *tokenizer, const char *text, size_t n_bytes, size_t position) {
    const Bpe *bpe = bpe_of(tokenizer);
    size_t first = position > bpe->longest_special ? position - bpe->longest_special : 0;
    for (size_t i = 0; i < bpe->n_specials; i++) {
        const char *token = symbols_bytes(&tokenizer->symbols, bpe->specials[i]);
        size_t n = symbols_n_bytes(&tokenizer->symbols, bpe->specials[i]);
        for (size_t at = first; at < position; at++) {
            if (at + n <= position || text[at] != token[0]) continue;
            size_t n_seen = n_bytes - at < n ? n_bytes - at : n;
            if (memcmp(text + at, token, n_seen) == 0) return true;
        }
    }
    return false;
}

/* ---- The kind ---- */

static Status encode(const Tokenizer *tokenizer, const char *text, size_t n_bytes, TokenArray *tokens,
                     Error *error) {
    const Bpe *bpe = bpe_of(tokenizer);
    size_t n_before = tokens->n;
    bool find_special = bpe->allow_special && bpe->n_specials > 0;
    Encoding encoding = {.bpe = bpe, .symbols = &tokenizer->symbols, .tokens = tokens};
    if (n_bytes >= CACHE_FROM_BYTES) {
        encoding.cache = aligned_alloc(64, sizeof(CacheSlot) << CACHE_BITS);
        if (encoding.cache) memset(encoding.cache, 0, sizeof(CacheSlot) << CACHE_BITS);
    }
    for (size_t at = 0; at < n_bytes;) {
        int32_t special = -1;
        size_t end = find_special ? next_special(tokenizer, text, n_bytes, at, &special) : n_bytes;
        if (end > at) TRY_GOTO(encode_words(&encoding, text + at, end - at, error), done);
        at = end;
        if (special >= 0) {
            TRY_GOTO(token_array_push(tokens, special, error), done);
            at += symbols_n_bytes(&tokenizer->symbols, special);
        }
    }
done:
    free(encoding.cache);
    if (error->status != STATUS_OK) tokens->n = n_before;
    return error->status;
}

static size_t cut(const Tokenizer *tokenizer, const char *text, size_t n_bytes) {
    const Bpe *bpe = bpe_of(tokenizer);
    size_t n = pretokenizer_cut(bpe->pretokenizer, text, n_bytes);
    if (!bpe->allow_special) return n;
    while (n > 0 && in_special(tokenizer, text, n_bytes, n)) n = pretokenizer_cut(bpe->pretokenizer, text, n);
    return n;
}

static uint64_t hash_lookup(const Tokenizer *tokenizer, uint64_t hash) {
    const Bpe *bpe = bpe_of(tokenizer);
    const char *pattern = pretokenizer_pattern(bpe->pretokenizer);
    hash = hash_bytes(hash, pattern, strlen(pattern));
    hash = hash_u64(hash, bpe->whole_words);
    hash = hash_u64(hash, bpe->n_merges);
    for (size_t i = 0; i < bpe->n_merges; i++) {
        hash = hash_u64(hash, (uint64_t)(uint32_t)bpe->merges[i].left << 32 | (uint32_t)bpe->merges[i].right);
    }
    for (size_t i = 0; i < bpe->n_specials; i++) hash = hash_u64(hash, (uint64_t)bpe->specials[i]);
    return hash;
}

static void free_lookup(Tokenizer *tokenizer) {
    Bpe *bpe = bpe_of(tokenizer);
    if (!bpe) return;
    pretokenizer_free(bpe->pretokenizer);
    free(bpe->merges);
    free(bpe->slots);
    free(bpe->specials);
    free(bpe);
}

const TokenizerKind tokenizer_bpe = {
    .name = "bpe",
    .encode = encode,
    .cut = cut,
    .hash = hash_lookup,
    .free_lookup = free_lookup,
};

/* ---- Making one ---- */

Status bpe_tokenizer_new(Tokenizer **tokenizer, Error *error) {
    TRY(tokenizer_new(&tokenizer_bpe, tokenizer, error));
    (*tokenizer)->lookup = calloc(1, sizeof(Bpe));
    if ((*tokenizer)->lookup) return STATUS_OK;
    tokenizer_free(*tokenizer);
    *tokenizer = NULL;
    return error_failed(error, "out of memory: no room for a tokenizer");
}

/* By first byte, the longest first, and then by number: a total order, so that the hash has one. */
static bool special_before(const SymbolTable *symbols, int32_t a, int32_t b) {
    size_t n_a = symbols_n_bytes(symbols, a), n_b = symbols_n_bytes(symbols, b);
    unsigned char first_a = (unsigned char)symbols_bytes(symbols, a)[0];
    unsigned char first_b = (unsigned char)symbols_bytes(symbols, b)[0];
    if (first_a != first_b) return first_a < first_b;
    return n_a != n_b ? n_a > n_b : a < b;
}

Status bpe_tokenizer_add_special(Tokenizer *tokenizer, int32_t id, Error *error) {
    Bpe *bpe = bpe_of(tokenizer);
    size_t n = symbols_n_bytes(&tokenizer->symbols, id), at = bpe->n_specials;
    if (n == 0) return error_user(error, "a special token is empty: it needs a text");
    if (at == BPE_MAX_SPECIALS) return error_user(error, "more than %d special tokens", BPE_MAX_SPECIALS);
    int32_t *specials = realloc(bpe->specials, (bpe->n_specials + 1) * sizeof *specials);
    if (!specials) return error_failed(error, "out of memory: no room for special tokens");
    bpe->specials = specials;
    for (; at > 0 && special_before(&tokenizer->symbols, id, specials[at - 1]); at--) {
        specials[at] = specials[at - 1];
    }
    specials[at] = id;
    bpe->n_specials++;
    if (n > bpe->longest_special) bpe->longest_special = n;
    return STATUS_OK;
}

/* The names that vocabularies give to the end of a text, the likeliest first. */
static int32_t find_end_of_text(const Tokenizer *tokenizer) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]"};
    const Bpe *bpe = bpe_of(tokenizer);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int32_t id = symbols_find(&tokenizer->symbols, names[i], strlen(names[i]));
        if (id >= 0 && is_special(bpe, id)) return id;
    }
    return -1;
}

Status bpe_tokenizer_find_bytes(Tokenizer *tokenizer, Error *error) {
    Bpe *bpe = bpe_of(tokenizer);
    for (int byte = 0; byte < 256; byte++) {
        bpe->byte_ids[byte] = symbols_find(&tokenizer->symbols, &(char){(char)byte}, 1);
        if (bpe->byte_ids[byte] >= 0) continue;
        return error_user(
            error, "the vocabulary has no token for byte 0x%02X; byte-level vocabularies have all 256", byte);
    }
    return STATUS_OK;
}

Status bpe_tokenizer_finish(Tokenizer *tokenizer, const char *pattern, Error *error) {
    Bpe *bpe = bpe_of(tokenizer);
    TRY(bpe_tokenizer_find_bytes(tokenizer, error));
    for (size_t i = 0; i < bpe->n_specials; i++) {
        bpe->special_range[(unsigned char)symbols_bytes(&tokenizer->symbols, bpe->specials[i])[0] + 1]++;
    }
    for (int byte = 0; byte < 256; byte++) bpe->special_range[byte + 1] += bpe->special_range[byte];
    TRY(pretokenizer_new(pattern, &bpe->pretokenizer, error));
    tokenizer->end_of_text = find_end_of_text(tokenizer);
    return tokenizer_finish(tokenizer, error);
}

void tokenizer_allow_special(Tokenizer *tokenizer, bool allowed) {
    if (tokenizer->kind == &tokenizer_bpe) bpe_of(tokenizer)->allow_special = allowed;
}
