/* What training reads from shards: datasets like those in memory, mixtures of several, and the cache that prepares a
 * text only once. */
#include "data/corpus.h"
#include "data/dataset.h"
#include "data/shards/cache.h"
#include "shard_support.h"

/* ---- Datasets ---- */

static Dataset *dataset_of(const char *bytes, size_t n_bytes, const Tokenizer *tokenizer,
                           const DatasetOptions *options) {
    Text text;
    Error error = {0};
    Dataset *dataset;
    assert_ok(text_from_bytes("text", bytes, n_bytes, &text, &error), &error);
    assert_ok(dataset_from_text(&text, tokenizer, options, &dataset, &error), &error);
    text_free(&text);
    return dataset;
}

static void test_shards_are_like_memory(void **state) {
    (void)state;
    enum { T = 24, B = 7 };
    Error error = {0};
    char *stories;
    size_t n;
    assert_ok(corpus_generate(3, 60000, &stories, &n, &error), &error);
    const char *source = in_folder("stories.txt");
    write_bytes(source, stories, n);
    Tokenizer *tokenizer = build("char", stories, n, 0);
    static const double fractions[] = {0.0, 0.1, 0.37};
    for (int f = 0; f < 3; f++) {
        DatasetOptions options = {.seed = 4, .validation_fraction = fractions[f], .T = T};
        Dataset *memory = dataset_of(stories, n, tokenizer, &options), *mapped;
        char name[16];
        snprintf(name, sizeof name, "sh%d", f);
        ShardSet set = prepare(&source, 1, tokenizer, 0, 10007, name);
        assert_ok(dataset_from_shards(&set, &options, &mapped, &error), &error);
        assert_null(set.shards);
        assert_true(dataset_bytes_per_token(memory) == dataset_bytes_per_token(mapped));
        for (int s = 0; s < DATASET_N_SPLITS; s++) {
            DatasetSplit split = (DatasetSplit)s;
            assert_int_equal(dataset_n_tokens(memory, split), dataset_n_tokens(mapped, split));
            uint64_t n_windows = dataset_n_windows(memory, split, T);
            assert_int_equal(n_windows, dataset_n_windows(mapped, split, T));
            for (uint64_t at = 0; n_windows && at < 3 * n_windows; at += B) {
                int32_t tokens[2][B * T], targets[2][B * T];
                dataset_fill(memory, split, at, B, T, tokens[0], targets[0]);
                dataset_fill(mapped, split, at, B, T, tokens[1], targets[1]);
                assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
                assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
            }
        }
        dataset_free(memory);
        dataset_free(mapped);
    }
    /* A split of their own is kept, or turned off; the hash knows the difference. */
    ShardSet set = prepare(&source, 1, tokenizer, 0.2, 5000, "split"), again;
    uint64_t n_validation = set.n_tokens - set.validation_start;
    DatasetOptions options = {.validation_fraction = 0.1, .T = T};
    Dataset *with, *without;
    assert_ok(shard_set_open(set.folder, &again, &error), &error);
    assert_ok(dataset_from_shards(&set, &options, &with, &error), &error);
    options.validation_fraction = 0;
    assert_ok(dataset_from_shards(&again, &options, &without, &error), &error);
    assert_int_equal(dataset_n_tokens(with, DATASET_VALIDATION), n_validation);
    assert_int_equal(dataset_n_tokens(without, DATASET_VALIDATION), 0);
    assert_true(dataset_hash(with) != dataset_hash(without));
    dataset_free(with);
    dataset_free(without);
    options.T = 1 << 20;
    assert_ok(shard_set_open(in_folder("split"), &set, &error), &error);
    assert_user_error(dataset_from_shards(&set, &options, &with, &error), &error,
                      "split: the data is too short");
    assert_null(set.shards);
    tokenizer_free(tokenizer);
    free(stories);
}

/* ---- Mixtures ---- */

enum { MIX_T = 4 };

/* Corpora of one letter each but for a counter, so that a window tells where it is from. */
static Dataset *mixture(const double *weights, size_t n_parts, size_t n_tokens, uint64_t seed,
                        double validation) {
    Tokenizer *bytes = build("byte", "", 0, 0);
    Dataset *parts[8], *mixed;
    Error error = {0};
    char *text = malloc(n_tokens);
    for (size_t i = 0; i < n_parts; i++) {
        for (size_t t = 0; t < n_tokens; t++) text[t] = (char)(i * 32 + t / MIX_T % 32);
        parts[i] = dataset_of(text, n_tokens, bytes,
                              &(DatasetOptions){.seed = seed, .validation_fraction = validation, .T = MIX_T});
    }
    assert_ok(dataset_mix(parts, weights, n_parts, &mixed, &error), &error);
    free(text);
    tokenizer_free(bytes);
    return mixed;
}

static size_t part_of(const Dataset *mixed, DatasetSplit split, uint64_t sequence, int32_t *tokens) {
    int32_t targets[MIX_T];
    dataset_fill(mixed, split, sequence, 1, MIX_T, tokens, targets);
    for (int t = 1; t < MIX_T; t++) {
        assert_int_equal(tokens[t] / 32, tokens[0] / 32);
        assert_int_equal(targets[t - 1], tokens[t]);
    }
    return (size_t)tokens[0] / 32;
}

static void test_mixture_proportions(void **state) {
    (void)state;
    static const struct {
        double weights[4];
        size_t n_parts;
        uint64_t block, shares[4];
    } cases[] = {
        {{0.7, 0.3}, 2, 10, {7, 3}},
        {{1, 1, 1}, 3, 3, {1, 1, 1}},
        {{5}, 1, 1, {1}},
        {{2, 1, 1}, 3, 4, {2, 1, 1}},
        {{0.125, 0.875}, 2, 8, {1, 7}},
        {{1, 1e-9}, 2, 10000, {9999, 1}},
        {{0.01, 0.99}, 2, 100, {1, 99}},
        {{0.333, 0.333, 0.334}, 3, 1000, {333, 333, 334}},
        {{3.14159265, 1}, 2, 10000, {7585, 2415}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Dataset *mixed = mixture(cases[c].weights, cases[c].n_parts, 500, 1, 0);
        bool shuffled = false;
        for (uint64_t block = 0; block < 3; block++) {
            uint64_t counts[4] = {0}, first = block * cases[c].block;
            for (uint64_t i = 0; i < cases[c].block; i++) {
                int32_t tokens[MIX_T];
                size_t part = part_of(mixed, DATASET_TRAIN, first + i, tokens);
                shuffled |= i < cases[c].shares[0] && part != 0;
                counts[part]++;
            }
            for (size_t i = 0; i < cases[c].n_parts; i++) assert_int_equal(counts[i], cases[c].shares[i]);
        }
        if (cases[c].block >= 8) assert_true(shuffled);
        dataset_free(mixed);
    }
    Dataset *part = mixture((double[]){1}, 1, 100, 1, 0), *mixed;
    Error error = {0};
    assert_user_error(dataset_mix(&part, (double[]){0}, 1, &mixed, &error), &error, "weight");
    assert_null(mixed);
}

/* Each corpus goes through its own windows, every one once an epoch, in an order of its own. */
static void test_mixture_epochs(void **state) {
    (void)state;
    enum { N_TOKENS = 30 * MIX_T + 1 };
    Dataset *mixed = mixture((double[]){3, 1}, 2, N_TOKENS, 9, 0),
            *again = mixture((double[]){3, 1}, 2, N_TOKENS, 9, 0);
    Dataset *other = mixture((double[]){3, 1}, 2, N_TOKENS, 10, 0);
    uint64_t n_windows = 29; /* of each: one fewer than fit */
    assert_int_equal(dataset_n_windows(mixed, DATASET_TRAIN, MIX_T), 2 * n_windows);
    assert_int_equal(dataset_n_tokens(mixed, DATASET_TRAIN), 2 * N_TOKENS);
    assert_true(dataset_hash(mixed) == dataset_hash(again));
    int seen[2][64] = {{0}}, n_different = 0;
    uint64_t n_served[2] = {0};
    for (uint64_t i = 0; i < 4 * 29; i++) {
        int32_t tokens[MIX_T], repeated[MIX_T], others[MIX_T];
        size_t part = part_of(mixed, DATASET_TRAIN, i, tokens);
        part_of(again, DATASET_TRAIN, i, repeated);
        n_different += part_of(other, DATASET_TRAIN, i, others) != part;
        assert_memory_equal(tokens, repeated, sizeof tokens);
        if (n_served[part]++ < n_windows) seen[part][tokens[0] % 32]++;
    }
    assert_int_equal(n_served[0], 87);
    assert_int_equal(n_served[1], 29);
    assert_true(n_different > 10);
    /* The first epoch of each: with any offset, window k begins in group k or k + 1 of letters. */
    for (int part = 0; part < 2; part++) {
        int total = 0;
        for (int i = 0; i < 32; i++) {
            assert_true(seen[part][i] <= 1);
            total += seen[part][i];
        }
        assert_int_equal(total, 29);
    }
    dataset_free(mixed);
    dataset_free(again);
    dataset_free(other);
}

static void test_mixture_validation(void **state) {
    (void)state;
    Dataset *mixed = mixture((double[]){1, 1}, 2, 40 * MIX_T, 2, 0.25);
    assert_int_equal(dataset_n_windows(mixed, DATASET_VALIDATION, MIX_T), 18);
    uint64_t counts[2] = {0};
    int32_t tokens[MIX_T], all[80 * MIX_T];
    for (uint64_t i = 0; i < 18; i++) counts[part_of(mixed, DATASET_VALIDATION, i, tokens)]++;
    assert_int_equal(counts[0], 9);
    assert_int_equal(counts[1], 9);
    assert_true(dataset_bytes_per_token(mixed) == 1.0);
    uint64_t n_train = dataset_n_tokens(mixed, DATASET_TRAIN);
    assert_int_equal(n_train, 60 * MIX_T);
    dataset_read(mixed, DATASET_TRAIN, 0, n_train, all);
    assert_int_equal(all[30 * MIX_T - 1], 29);
    assert_int_equal(all[30 * MIX_T], 32);
    dataset_read(mixed, DATASET_TRAIN, 30 * MIX_T - 1, 2, all);
    assert_int_equal(all[0], 29);
    assert_int_equal(all[1], 32);
    dataset_read(mixed, DATASET_TRAIN, 30 * MIX_T + 4, 1, all);
    assert_int_equal(all[0], 33);
    dataset_free(mixed);
}

/* ---- Cache ---- */

static ShardSet open_cached(const char *source, const Tokenizer *tokenizer, const char *kind) {
    Error error = {0};
    InputList list;
    ShardSet set;
    assert_ok(input_list_open(&source, 1, &list, &error), &error);
    assert_ok(cache_open(&list, &(CacheKey){tokenizer, kind, 0}, NULL, &set, &error), &error);
    input_list_close(&list);
    return set;
}

static ino_t number_of(const ShardSet *set) {
    struct stat facts;
    assert_int_equal(stat(set->shards[0].path, &facts), 0);
    return facts.st_ino;
}

static void test_cache(void **state) {
    (void)state;
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    const char *source = in_folder("t.txt"), *copy = in_folder("copy.txt");
    write_bytes(source, "the text of the cache", 21);
    write_bytes(copy, "the text of the cache", 21);
    ShardSet set = open_cached(source, NULL, "char");
    assert_int_equal(set.n_tokens, 21);
    assert_int_equal(set.validation_start, 21);
    ino_t number = number_of(&set);
    char path[256];
    snprintf(path, sizeof path, "%s", set.shards[0].path);
    shard_set_close(&set);
    set = open_cached(copy, NULL, "char"); /* by content, not by name */
    assert_int_equal(number_of(&set), number);
    shard_set_close(&set);

    size_t n_bytes;
    unsigned char *bytes = read_bytes(path, &n_bytes);
    bytes[130] ^= 1; /* a token: only reading it all shows that */
    write_bytes(path, bytes, n_bytes);
    set = open_cached(source, NULL, "char");
    bytes[130] ^= 1;
    size_t n_again;
    unsigned char *again = read_bytes(path, &n_again);
    assert_int_equal(n_again, n_bytes);
    assert_memory_equal(bytes, again, n_bytes); /* made anew */
    free(again);
    free(bytes);
    shard_set_close(&set);
    unlink(path); /* half an entry */
    set = open_cached(source, NULL, "char");
    shard_set_close(&set);

    Tokenizer *tokenizer = build("byte", "", 0, 0);
    set = open_cached(source, tokenizer, NULL);
    assert_string_not_equal(set.shards[0].path, path);
    assert_true(set.tokenizer_hash == tokenizer_hash(tokenizer));
    shard_set_close(&set);
    write_bytes(source, "the text of the cash!", 21); /* the same length */
    set = open_cached(source, NULL, "char");
    assert_string_not_equal(set.shards[0].path, path);
    shard_set_close(&set);
    tokenizer_free(tokenizer);

    /* Nowhere to put it. */
    Error error = {0};
    InputList list;
    setenv("XDG_CACHE_HOME", in_folder("t.txt"), 1);
    assert_ok(input_list_open(&copy, 1, &list, &error), &error);
    assert_user_error(cache_open(&list, &(CacheKey){NULL, "char", 0}, NULL, &set, &error), &error, "t.txt");
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL, *where;
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/somewhere", 1);
    error = (Error){0};
    assert_ok(cache_folder(&where, &error), &error);
    assert_string_equal(where, "/somewhere/.cache/pgpt/data");
    free(where);
    unsetenv("HOME");
    assert_user_error(cache_folder(&where, &error), &error, "XDG_CACHE_HOME");
    if (home) setenv("HOME", home, 1);
    free(home);
    input_list_close(&list);
    unsetenv("XDG_CACHE_HOME");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_shards_are_like_memory),
        TEST(test_mixture_proportions),
        TEST(test_mixture_epochs),
        TEST(test_mixture_validation),
        TEST(test_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
