/* The merges of a vocabulary, one after the other, without looking at the text again.
 *
 * The text is reduced to its distinct words and their counts (bpe_words.c). For every pair of neighbouring
 * tokens there is a record: how often it occurs (each word counted as often as the text has it) and a list of
 * the words that have it. Joining a pair visits only those words, and in them changes only the counts of the
 * pairs around each place. A heap has the most frequent pair on top. Its entries are not changed when counts
 * fall: an entry that comes up with an old count is put back with the right one. Lists may name words that
 * have lost the pair; visiting them does no harm.
 *
 * Each merge shortens words, so all the visits together are bounded by the size of the word list, however
 * large the vocabulary. */
#include "data/tokenizer/bpe_train.h"

#include "base/text/utf8.h"
#include "data/hash.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/bpe_words.h"

#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#    include <omp.h>
#endif

enum {
    MAX_TRAINED_TOKEN_BYTES = 256
}; /* a text of rulers and blanks shall not fill the vocabulary with them */

typedef struct {
    size_t first, n; /* its tokens */
    uint64_t count;
} Word;

typedef struct {
    int32_t left, right;
    uint64_t count;
    uint32_t *words; /* that have it, or had it */
    size_t n_words, capacity;
    size_t changed; /* the merge that last made occurrences of it */
    bool merged;
} Pair;

typedef struct {
    uint64_t count;
    uint32_t pair;
} Entry;

typedef struct {
    Word *words;
    size_t n_words;
    int32_t *tokens; /* of all words */
    Pair *pairs;
    size_t n_pairs, pairs_capacity;
    uint32_t *slots; /* pair number + 1 by hash; 0: free */
    size_t n_slots;
    Entry *heap;
    size_t n_heap, heap_capacity;
    uint32_t *changed; /* the pairs that the current merge made occurrences of */
    size_t n_changed, changed_capacity;
    size_t n_merges;
} Trainer;

/* ---- Growing arrays ---- */

/* Room for one more element. */
static Status grow(void **array, size_t *capacity, size_t n, size_t element_bytes, Error *error) {
    if (n < *capacity) return STATUS_OK;
    size_t larger = *capacity ? *capacity * 2 : 4;
    void *memory = realloc(*array, larger * element_bytes);
    if (!memory) return error_failed(error, "out of memory: no room to train a tokenizer");
    *array = memory;
    *capacity = larger;
    return STATUS_OK;
}

#define GROW(array, capacity, n, error) grow((void **)&(array), &(capacity), (n), sizeof *(array), error)

/* ---- Pairs ---- */

static size_t hash_pair(int32_t left, int32_t right) {
    return (size_t)hash_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

static Status grow_slots(Trainer *trainer, Error *error) {
    size_t n_slots = trainer->n_slots ? trainer->n_slots * 2 : 1 << 16;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return error_failed(error, "out of memory: no room for %zu pairs", n_slots);
    for (size_t i = 0; i < trainer->n_pairs; i++) {
        size_t at = hash_pair(trainer->pairs[i].left, trainer->pairs[i].right) & (n_slots - 1);
        while (slots[at]) at = (at + 1) & (n_slots - 1);
        slots[at] = (uint32_t)i + 1;
    }
    free(trainer->slots);
    trainer->slots = slots;
    trainer->n_slots = n_slots;
    return STATUS_OK;
}

/* The number of a pair, which is made if it is new. */
static Status find_pair(Trainer *trainer, int32_t left, int32_t right, uint32_t *number, Error *error) {
    if (trainer->n_pairs * 2 >= trainer->n_slots) TRY(grow_slots(trainer, error));
    size_t at = hash_pair(left, right) & (trainer->n_slots - 1);
    for (; trainer->slots[at]; at = (at + 1) & (trainer->n_slots - 1)) {
        *number = trainer->slots[at] - 1;
        if (trainer->pairs[*number].left == left && trainer->pairs[*number].right == right) return STATUS_OK;
    }
    TRY(GROW(trainer->pairs, trainer->pairs_capacity, trainer->n_pairs, error));
    trainer->pairs[trainer->n_pairs] = (Pair){.left = left, .right = right};
    *number = (uint32_t)trainer->n_pairs++;
    trainer->slots[at] = *number + 1;
    return STATUS_OK;
}

/* One more place in a word where the pair is. */
static Status add_place(Trainer *trainer, int32_t left, int32_t right, size_t word, Error *error) {
    uint32_t number;
    TRY(find_pair(trainer, left, right, &number, error));
    Pair *pair = &trainer->pairs[number];
    pair->count += trainer->words[word].count;
    if (pair->n_words == 0 || pair->words[pair->n_words - 1] != (uint32_t)word) {
        TRY(GROW(pair->words, pair->capacity, pair->n_words, error));
        pair->words[pair->n_words++] = (uint32_t)word;
    }
    if (pair->changed == trainer->n_merges) return STATUS_OK;
    pair->changed = trainer->n_merges;
    TRY(GROW(trainer->changed, trainer->changed_capacity, trainer->n_changed, error));
    trainer->changed[trainer->n_changed++] = number;
    return STATUS_OK;
}

/* One place less; the pair is known. */
static Status remove_place(Trainer *trainer, int32_t left, int32_t right, size_t word, Error *error) {
    uint32_t number;
    TRY(find_pair(trainer, left, right, &number, error));
    trainer->pairs[number].count -= trainer->words[word].count;
    return STATUS_OK;
}

/* ---- The heap ---- */

/* Whether a comes out before b. */
static bool before(const Trainer *trainer, Entry a, Entry b) {
    if (a.count != b.count) return a.count > b.count;
    const Pair *pair_a = &trainer->pairs[a.pair], *pair_b = &trainer->pairs[b.pair];
    return pair_a->left != pair_b->left ? pair_a->left < pair_b->left : pair_a->right < pair_b->right;
}

static Status push(Trainer *trainer, Entry entry, Error *error) {
    TRY(GROW(trainer->heap, trainer->heap_capacity, trainer->n_heap, error));
    size_t at = trainer->n_heap++;
    for (; at > 0 && before(trainer, entry, trainer->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        trainer->heap[at] = trainer->heap[(at - 1) / 2];
    }
    trainer->heap[at] = entry;
    return STATUS_OK;
}

static Entry pop(Trainer *trainer) {
    Entry top = trainer->heap[0], last = trainer->heap[--trainer->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= trainer->n_heap) break;
        if (child + 1 < trainer->n_heap && before(trainer, trainer->heap[child + 1], trainer->heap[child]))
            child++;
        if (!before(trainer, trainer->heap[child], last)) break;
        trainer->heap[at] = trainer->heap[child];
        at = child;
    }
    trainer->heap[at] = last;
    return top;
}

/* Entries for the pairs that have become more frequent. */
static Status push_changed(Trainer *trainer, Error *error) {
    for (size_t i = 0; i < trainer->n_changed; i++) {
        uint32_t number = trainer->changed[i];
        if (trainer->pairs[number].count == 0) continue;
        TRY(push(trainer, (Entry){trainer->pairs[number].count, number}, error));
    }
    trainer->n_changed = 0;
    return STATUS_OK;
}

/* ---- Merging ---- */

/* The words as tokens, and their pairs. */
static Status load_words(Trainer *trainer, const BpeWords *words, const Bpe *bpe, Error *error) {
    size_t n_tokens = 0;
    for (int32_t id = 0; id < words->words.n; id++) n_tokens += symbols_n_bytes(&words->words, id);
    trainer->words = malloc(((size_t)words->words.n + 1) * sizeof *trainer->words);
    trainer->tokens = malloc((n_tokens + 1) * sizeof *trainer->tokens);
    if (!trainer->words || !trainer->tokens) {
        return error_failed(error, "out of memory: no room for %d words", words->words.n);
    }
    trainer->n_merges = 1; /* what a new pair's `changed` is not */
    n_tokens = 0;
    for (int32_t id = 0; id < words->words.n; id++) {
        const char *bytes = symbols_bytes(&words->words, id);
        size_t n = symbols_n_bytes(&words->words, id), number = trainer->n_words;
        if (n < 2) continue;
        trainer->words[trainer->n_words++] = (Word){n_tokens, n, words->counts[id]};
        int32_t *tokens = trainer->tokens + n_tokens;
        for (size_t i = 0; i < n; i++) tokens[i] = bpe->byte_ids[(unsigned char)bytes[i]];
        for (size_t i = 0; i + 1 < n; i++) TRY(add_place(trainer, tokens[i], tokens[i + 1], number, error));
        n_tokens += n;
    }
    return push_changed(trainer, error);
}

/* Join a pair everywhere in a word. The pair that ends in its left token and the one that starts with its
 * right one give way to pairs with the new token. The left neighbour is read from what is already joined, so
 * that of equal tokens in a row each place is counted as it is at that moment. */
static Status merge_word(Trainer *trainer, size_t number, int32_t left, int32_t right, int32_t joined,
                         Error *error) {
    Word *word = &trainer->words[number];
    int32_t *tokens = trainer->tokens + word->first;
    size_t n = 0;
    for (size_t i = 0; i < word->n; i++) {
        if (tokens[i] != left || i + 1 == word->n || tokens[i + 1] != right) {
            tokens[n++] = tokens[i];
            continue;
        }
        TRY(remove_place(trainer, left, right, number, error));
        if (n > 0) {
            TRY(remove_place(trainer, tokens[n - 1], left, number, error));
            TRY(add_place(trainer, tokens[n - 1], joined, number, error));
        }
        if (i + 2 < word->n) {
            TRY(remove_place(trainer, right, tokens[i + 2], number, error));
            TRY(add_place(trainer, joined, tokens[i + 2], number, error));
        }
        tokens[n++] = joined;
        i++;
    }
    word->n = n;
    return STATUS_OK;
}

static bool is_special(const BpeTrainOptions *options, const char *bytes, size_t n_bytes) {
    for (size_t i = 0; i < options->n_specials; i++) {
        if (strlen(options->specials[i]) == n_bytes && memcmp(options->specials[i], bytes, n_bytes) == 0)
            return true;
    }
    return false;
}

/* The token that a pair makes; -1 if it shall not be made. Two pairs may make the same token ("a" + "aa",
 * "aa" + "a"): both are merges then. */
static Status join_tokens(Tokenizer *tokenizer, const BpeTrainOptions *options, const Pair *pair,
                          int32_t *joined, Error *error) {
    const SymbolTable *symbols = &tokenizer->symbols;
    char bytes[2 * MAX_TRAINED_TOKEN_BYTES];
    size_t n_left = symbols_n_bytes(symbols, pair->left), n_right = symbols_n_bytes(symbols, pair->right);
    memcpy(bytes, symbols_bytes(symbols, pair->left), n_left);
    memcpy(bytes + n_left, symbols_bytes(symbols, pair->right), n_right);
    *joined = -1;
    if (n_left + n_right > MAX_TRAINED_TOKEN_BYTES || is_special(options, bytes, n_left + n_right))
        return STATUS_OK;
    return symbols_intern(&tokenizer->symbols, bytes, n_left + n_right, joined, error);
}

static Status merge_pair(Trainer *trainer, uint32_t number, Tokenizer *tokenizer,
                         const BpeTrainOptions *options, Error *error) {
    int32_t joined = -1;
    Pair pair = trainer->pairs[number]; /* the array moves when pairs are added */
    TRY(join_tokens(tokenizer, options, &pair, &joined, error));
    if (joined < 0) return STATUS_OK;
    /* A pair can come up again, where one of its tokens has been made in another way meanwhile. */
    if (!pair.merged) TRY(bpe_add_merge(bpe_of(tokenizer), pair.left, pair.right, joined, error));
    trainer->n_merges++;
    trainer->pairs[number].merged = true;
    trainer->pairs[number].words = NULL; /* it has no place any more */
    trainer->pairs[number].n_words = trainer->pairs[number].capacity = 0;
    for (size_t i = 0; i < pair.n_words && error->status == STATUS_OK; i++) {
        merge_word(trainer, pair.words[i], pair.left, pair.right, joined, error);
    }
    free(pair.words);
    TRY(error->status);
    return push_changed(trainer, error);
}

static Status make_merges(Trainer *trainer, Tokenizer *tokenizer, const BpeTrainOptions *options,
                          Error *error) {
    uint64_t min_count = options->min_count ? options->min_count : 2;
    int32_t n_wanted = options->n_vocabulary - (int32_t)options->n_specials;
    BpeTrainProgress progress = {"merging", 0, (uint64_t)options->n_vocabulary, "tokens"};
    while (tokenizer->symbols.n < n_wanted && trainer->n_heap) {
        Entry top = pop(trainer);
        uint64_t count = trainer->pairs[top.pair].count;
        if (count < min_count) continue;
        if (count != top.count) {
            TRY(push(trainer, (Entry){count, top.pair}, error));
            continue;
        }
        TRY(merge_pair(trainer, top.pair, tokenizer, options, error));
        progress.done = (uint64_t)tokenizer->symbols.n;
        if (options->progress && trainer->n_merges % 64 == 0) {
            options->progress(options->progress_context, &progress);
        }
    }
    return STATUS_OK;
}

static void trainer_free(Trainer *trainer) {
    for (size_t i = 0; i < trainer->n_pairs; i++) free(trainer->pairs[i].words);
    free(trainer->words);
    free(trainer->tokens);
    free(trainer->pairs);
    free(trainer->slots);
    free(trainer->heap);
    free(trainer->changed);
}

/* ---- All of it ---- */

static Status check_options(const BpeTrainOptions *options, Error *error) {
    if (options->n_specials > BPE_MAX_SPECIALS) {
        return error_user(error, "%zu special tokens are too many; at most %d", options->n_specials,
                          BPE_MAX_SPECIALS);
    }
    int least = 256 + (int)options->n_specials;
    if (options->n_vocabulary < least || options->n_vocabulary > SYMBOLS_MAX) {
        return error_user(
            error, "a vocabulary of %d is out of range: wants %d (256 bytes and %zu special tokens) to %d",
            options->n_vocabulary, least, options->n_specials, SYMBOLS_MAX);
    }
    for (size_t i = 0; i < options->n_specials; i++) {
        const char *special = options->specials[i];
        size_t n = strlen(special), n_bytes;
        char bytes[BPE_MAX_TOKEN_BYTES];
        if (n < 2 || n > BPE_MAX_TOKEN_BYTES || !utf8_valid(special, n)) {
            return error_user(error, "special token %zu must have 2 to %d bytes of UTF-8", i + 1,
                              BPE_MAX_TOKEN_BYTES);
        }
        /* In the file a token's bytes are written as characters; nobody could tell these two apart. */
        if (bpe_bytes_of_text(special, n, bytes, &n_bytes) && n_bytes != n) {
            return error_user(error, "special token '%.40s' reads like a token of bytes; choose another",
                              special);
        }
        for (size_t k = 0; k < i; k++) {
            if (strcmp(options->specials[k], special) == 0) {
                return error_user(error, "special token '%.40s' is named twice", special);
            }
        }
    }
    return STATUS_OK;
}

/* The bytes, in the order of the characters that stand for them. */
static Status add_bytes(Tokenizer *tokenizer, Error *error) {
    for (uint32_t character = 0; character < 512; character++) {
        int byte = bpe_byte_of_character(character);
        int32_t id = 0;
        if (byte >= 0) TRY(symbols_intern(&tokenizer->symbols, &(char){(char)byte}, 1, &id, error));
    }
    return bpe_tokenizer_find_bytes(tokenizer, error);
}

static Status add_specials(Tokenizer *tokenizer, const BpeTrainOptions *options, Error *error) {
    for (size_t i = 0; i < options->n_specials; i++) {
        int32_t id = 0;
        const char *special = options->specials[i];
        TRY(symbols_intern(&tokenizer->symbols, special, strlen(special), &id, error));
        TRY(bpe_tokenizer_add_special(tokenizer, id, error));
    }
    return STATUS_OK;
}

static Status train(const BpeTrainOptions *options, const char *pattern, const BpeWords *words,
                    Tokenizer *tokenizer, Error *error) {
    Trainer trainer = {0};
    TRY_GOTO(add_bytes(tokenizer, error), done);
    TRY_GOTO(load_words(&trainer, words, bpe_of(tokenizer), error), done);
    TRY_GOTO(make_merges(&trainer, tokenizer, options, error), done);
    TRY_GOTO(add_specials(tokenizer, options, error), done);
    bpe_of(tokenizer)->allow_special = true;
    TRY_GOTO(bpe_tokenizer_finish(tokenizer, pattern, error), done);
done:
    trainer_free(&trainer);
    return error->status;
}

Status bpe_train(const BpeTrainOptions *options, const BpeTextSource *source, Tokenizer **tokenizer,
                 Error *error) {
    *tokenizer = NULL;
    TRY(check_options(options, error));
    const char *pattern = options->pattern ? options->pattern : pretokenizer_gpt2;
    Pretokenizer *pretokenizer = NULL;
    BpeWords words = {0};
    int n_threads = options->n_threads;
#ifdef _OPENMP
    if (n_threads <= 0) n_threads = omp_get_max_threads();
#else
    n_threads = 1;
#endif
    TRY_GOTO(pretokenizer_new(pattern, &pretokenizer, error), done);
    TRY_GOTO(bpe_words_count(&words, pretokenizer, source, options, n_threads, error), done);
    if (words.words.n == 0) {
        error_user(error, "the text is empty: a tokenizer has nothing to learn from it");
        goto done;
    }
    TRY_GOTO(bpe_tokenizer_new(tokenizer, error), done);
    TRY_GOTO(train(options, pattern, &words, *tokenizer, error), done);
done:
    if (error->status != STATUS_OK) {
        tokenizer_free(*tokenizer);
        *tokenizer = NULL;
    }
    bpe_words_free(&words);
    pretokenizer_free(pretokenizer);
    return error->status;
}

/* ---- One text ---- */

typedef struct {
    const char *text;
    size_t n_bytes;
} WholeText;

static Status next_of_text(void *context, const char **bytes, size_t *n_bytes, bool *document_ends,
                           Error *error) {
    (void)error;
    WholeText *whole = context;
    *bytes = whole->text;
    *n_bytes = whole->n_bytes;
    *document_ends = true;
    whole->n_bytes = 0;
    return STATUS_OK;
}

Status bpe_train_text(const BpeTrainOptions *options, const char *text, size_t n_bytes, Tokenizer **tokenizer,
                      Error *error) {
    WholeText whole = {text, n_bytes};
    return bpe_train(options, &(BpeTextSource){next_of_text, &whole}, tokenizer, error);
}
