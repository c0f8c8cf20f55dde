/* Each split is a list of segments, runs of tokens of one width wherever they lie (our own blocks now; a mapped shard
 * is the same to a reader), numbered through. Windows are ranges of those numbers, so nothing below knows where a
 * segment ends except the one function that copies.
 *
 * Training order. With n tokens and windows of T there are W = (n - T) / T windows in an epoch, one fewer than fit at
 * best: the remainder is the room that lets every epoch shift its windows by its own offset in [0, T) and still have
 * exactly W of them, so that an epoch's length is a constant and epoch and place come from the sequence number by
 * division. Where a text is too short for that (n < 2T), W is 1 and the offset takes what room there is.
 * The order within an epoch is random_permute: no array, any element on its own, on any rank.
 *
 * Text is encoded in chunks cut where the tokenizer allows it, so that beside the text and the packed tokens only one
 * chunk's ids are in memory at a time. */
#include "data/dataset.h"

#include "base/random.h"
#include "data/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 20, BLOCK_TOKENS = 1 << 20 };

/* Streams of the data's random numbers. */
enum { STREAM_ORDER, STREAM_OFFSET };

typedef struct {
    const void *tokens;  /* uint16_t or uint32_t */
    int token_bytes;     /* 2 or 4 */
    uint64_t first, end; /* the numbers of its tokens within the split: [first, end) */
} Segment;

typedef struct {
    Segment *segments;
    size_t n_segments;
    uint64_t n_tokens;
} TokenList;

struct Dataset {
    TokenList splits[DATASET_N_SPLITS];
    uint64_t seed;
    uint64_t hash;
    double bytes_per_token;
    void **blocks; /* what the segments point into */
    size_t n_blocks;
};

/* ---- Reading ---- */

static const Segment *find_segment(const TokenList *list, uint64_t number) {
    size_t low = 0, high = list->n_segments - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (number < list->segments[middle].end) high = middle;
        else low = middle + 1;
    }
    return &list->segments[low];
}

/* Tokens [first, first + n) of a list, across the borders of segments. */
static void copy_tokens(const TokenList *list, uint64_t first, uint64_t n, int32_t *out) {
    if (n == 0) return;
    for (const Segment *segment = find_segment(list, first);; segment++) {
        uint64_t at = first - segment->first, n_here = segment->end - first;
        if (n_here > n) n_here = n;
        if (segment->token_bytes == 2) {
            const uint16_t *tokens = (const uint16_t *)segment->tokens + at;
            for (uint64_t i = 0; i < n_here; i++) out[i] = tokens[i];
        } else {
            const uint32_t *tokens = (const uint32_t *)segment->tokens + at;
            for (uint64_t i = 0; i < n_here; i++) out[i] = (int32_t)tokens[i];
        }
        out += n_here;
        first += n_here;
        n -= n_here;
        if (n == 0) return;
    }
}

static uint64_t n_training_windows(uint64_t n_tokens, uint64_t T) {
    if (n_tokens < T + 1) return 0;
    return n_tokens < 2 * T ? 1 : (n_tokens - T) / T;
}

uint64_t dataset_n_windows(const Dataset *dataset, DatasetSplit split, int T) {
    uint64_t n = dataset->splits[split].n_tokens;
    if (split == DATASET_TRAIN) return n_training_windows(n, (uint64_t)T);
    return n ? (n - 1) / (uint64_t)T : 0;
}

/* Where the window of a training sequence starts: a pure function of (seed, sequence). */
static uint64_t training_start(uint64_t seed, uint64_t n_tokens, uint64_t n_windows, uint64_t sequence,
                               uint64_t T) {
    uint64_t epoch = sequence / n_windows;
    uint64_t n_offsets = n_tokens - n_windows * T; /* starts that leave the last window its last target */
    if (n_offsets > T) n_offsets = T;
    RandomKey order = random_key(seed, RANDOM_DATA + STREAM_ORDER, epoch);
    RandomKey shift = random_key(seed, RANDOM_DATA + STREAM_OFFSET, epoch);
    uint64_t offset = (uint64_t)random_block(shift, 0, 0).word[0] * n_offsets >> 32;
    return offset + random_permute(order, sequence % n_windows, n_windows) * T;
}

void dataset_fill(const Dataset *dataset, DatasetSplit split, uint64_t first_sequence, int B, int T,
                  int32_t *tokens /* (B,T) */, int32_t *targets /* (B,T) */) {
    const TokenList *list = &dataset->splits[split];
    uint64_t length = (uint64_t)T;
    uint64_t n_windows = dataset_n_windows(dataset, split, T);
    if (n_windows == 0) {
        fprintf(stderr, "pgpt: a split of %llu tokens has no window of %d\n",
                (unsigned long long)list->n_tokens, T);
        abort(); /* the caller broke the contract */
    }
    for (uint64_t b = 0; b < (uint64_t)B; b++) {
        uint64_t sequence = first_sequence + b, start;
        if (split == DATASET_TRAIN)
            start = training_start(dataset->seed, list->n_tokens, n_windows, sequence, length);
        else start = sequence % n_windows * length;
        int32_t *row = tokens + b * length, *target_row = targets + b * length;
        copy_tokens(list, start, length, row);
        memcpy(target_row, row + 1, (length - 1) * sizeof *row);
        copy_tokens(list, start + length, 1, target_row + length - 1);
    }
}

void dataset_read(const Dataset *dataset, DatasetSplit split, uint64_t first, uint64_t n, int32_t *tokens) {
    copy_tokens(&dataset->splits[split], first, n, tokens);
}

uint64_t dataset_n_tokens(const Dataset *dataset, DatasetSplit split) {
    return dataset->splits[split].n_tokens;
}

double dataset_bytes_per_token(const Dataset *dataset) {
    return dataset->bytes_per_token;
}

uint64_t dataset_hash(const Dataset *dataset) {
    return dataset->hash;
}

/* ---- Making one from text ---- */

typedef struct {
    void **blocks; /* of BLOCK_TOKENS each, all but the last one full */
    size_t n_blocks;
    uint64_t n_tokens;
    int token_bytes;
    uint64_t hash;
} Packed;

static void packed_free(Packed *packed) {
    for (size_t i = 0; i < packed->n_blocks; i++) free(packed->blocks[i]);
    free(packed->blocks);
}

static Status add_block(Packed *packed, Error *error) {
    void **blocks = realloc(packed->blocks, (packed->n_blocks + 1) * sizeof *blocks);
    if (blocks) packed->blocks = blocks;
    void *block = blocks ? malloc((size_t)packed->token_bytes * BLOCK_TOKENS) : NULL;
    if (!block) {
        return error_failed(error, "out of memory: no room for more than %llu tokens",
                            (unsigned long long)packed->n_tokens);
    }
    blocks[packed->n_blocks++] = block;
    return STATUS_OK;
}

static Status pack(Packed *packed, const int32_t *ids, size_t n, Error *error) {
    uint64_t hash = packed->hash;
    while (n > 0) {
        size_t at = packed->n_tokens % BLOCK_TOKENS, n_here = BLOCK_TOKENS - at;
        if (at == 0) TRY(add_block(packed, error));
        if (n_here > n) n_here = n;
        void *block = packed->blocks[packed->n_blocks - 1];
        if (packed->token_bytes == 2) {
            uint16_t *out = (uint16_t *)block + at;
            for (size_t i = 0; i < n_here; i++) out[i] = (uint16_t)ids[i];
        } else {
            uint32_t *out = (uint32_t *)block + at;
            for (size_t i = 0; i < n_here; i++) out[i] = (uint32_t)ids[i];
        }
        for (size_t i = 0; i < n_here; i++) {
            hash = (hash ^ (uint32_t)ids[i]) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 32;
        }
        packed->n_tokens += n_here;
        ids += n_here;
        n -= n_here;
    }
    packed->hash = hash;
    return STATUS_OK;
}

/* Encode one document in chunks; `ids` is scratch. */
static Status encode_document(const Tokenizer *tokenizer, const char *bytes, size_t n_bytes, TokenArray *ids,
                              Packed *packed, Error *error) {
    const char *whole = bytes;
    for (size_t chunk = CHUNK_BYTES; n_bytes > 0;) {
        size_t n = n_bytes;
        if (n > chunk) {
            n = tokenizer_cut(tokenizer, bytes, chunk);
            if (n == 0) { /* no place to cut in sight: look further */
                chunk *= 2;
                continue;
            }
        }
        ids->n = 0;
        if (tokenizer_encode(tokenizer, bytes, n, ids, error) != STATUS_OK) {
            if (error->status == STATUS_USER &&
                bytes > whole) { /* say the place in the document, not the chunk */
                *error = (Error){0};
                tokenizer_encode(tokenizer, whole, (size_t)(bytes - whole) + n, ids, error);
            }
            return error->status;
        }
        TRY(pack(packed, ids->ids, ids->n, error));
        bytes += n;
        n_bytes -= n;
        chunk = CHUNK_BYTES;
    }
    return STATUS_OK;
}

static Status encode_text(const Tokenizer *tokenizer, const Text *text, Packed *packed, Error *error) {
    TokenArray ids = {0};
    int32_t end = tokenizer_end_of_text(tokenizer);
    for (size_t i = 0; i < text->n_documents; i++) {
        const TextDocument *document = &text->documents[i];
        if (document->n_bytes == 0) continue;
        if (end >= 0 && packed->n_tokens > 0 && ids.n > 0 && ids.ids[ids.n - 1] != end) {
            TRY_GOTO(pack(packed, &end, 1, error), done);
        }
        if (encode_document(tokenizer, text->bytes + document->first, document->n_bytes, &ids, packed,
                            error) != STATUS_OK) {
            error_prefix(error, "%s: ", document->name);
            goto done;
        }
    }
done:
    token_array_free(&ids);
    return error->status;
}

/* A split is tokens [begin, end) of the whole: one segment for each block they touch. */
static Status list_tokens(TokenList *list, const Packed *packed, uint64_t begin, uint64_t end, Error *error) {
    if (begin == end) return STATUS_OK;
    size_t first_block = begin / BLOCK_TOKENS, last_block = (end - 1) / BLOCK_TOKENS;
    list->segments = calloc(last_block - first_block + 1, sizeof *list->segments);
    if (!list->segments) return error_failed(error, "out of memory: no room for a list of tokens");
    while (begin < end) {
        uint64_t at = begin % BLOCK_TOKENS, n = BLOCK_TOKENS - at;
        if (n > end - begin) n = end - begin;
        const char *block = packed->blocks[begin / BLOCK_TOKENS];
        list->segments[list->n_segments++] =
            (Segment){block + at * (uint64_t)packed->token_bytes, packed->token_bytes, list->n_tokens,
                      list->n_tokens + n};
        list->n_tokens += n;
        begin += n;
    }
    return STATUS_OK;
}

/* Both splits must hold one window and its last target. Say what there is, what is needed, and what would help. */
static Status check_lengths(uint64_t n_train, uint64_t n_validation, const DatasetOptions *options,
                            Error *error) {
    uint64_t needed = (uint64_t)options->T + 1, n_tokens = n_train + n_validation;
    double fraction = options->validation_fraction;
    bool has_validation = fraction > 0;
    if (n_train >= needed && (n_validation >= needed || !has_validation)) return STATUS_OK;
    if (n_tokens < (has_validation ? 2 : 1) * needed) {
        return error_user(
            error,
            "the data is too short: %llu tokens, but a context of %d needs %llu for training%s; give "
            "more text or a shorter context",
            (unsigned long long)n_tokens, options->T, (unsigned long long)needed,
            has_validation ? " and as many for validation" : "");
    }
    double share = (double)needed / (double)n_tokens;
    bool is_train = n_train < needed;
    return error_user(
        error,
        "the %s part of the data is too short: %llu of %llu tokens (validation fraction %g), but a "
        "context of %d needs %llu; use a validation fraction %s %.3f (or 0 for no validation), more text, or a shorter context",
        is_train ? "training" : "validation", (unsigned long long)(is_train ? n_train : n_validation),
        (unsigned long long)n_tokens, fraction, options->T, (unsigned long long)needed,
        is_train ? "below" : "above", is_train ? 1 - share : share);
}

Status dataset_from_text(const Text *text, const Tokenizer *tokenizer, const DatasetOptions *options,
                         Dataset **dataset, Error *error) {
    *dataset = NULL;
    double fraction = options->validation_fraction;
    if (!(fraction >= 0 && fraction < 1)) {
        return error_user(error, "the validation fraction must be at least 0 and below 1, not %g", fraction);
    }
    if (options->T < 1) return error_user(error, "the context must be at least 1, not %d", options->T);
    Dataset *new = calloc(1, sizeof *new);
    if (!new) return error_failed(error, "out of memory: no room for a dataset");
    int token_bytes = tokenizer_n_vocabulary(tokenizer) <= 65536 ? 2 : 4;
    Packed packed = {.token_bytes = token_bytes, .hash = tokenizer_hash(tokenizer)};
    TRY_GOTO(encode_text(tokenizer, text, &packed, error), failed);
    uint64_t n_validation = (uint64_t)((double)packed.n_tokens * fraction);
    uint64_t n_train = packed.n_tokens - n_validation;
    TRY_GOTO(check_lengths(n_train, n_validation, options, error), failed);
    TRY_GOTO(list_tokens(&new->splits[DATASET_TRAIN], &packed, 0, n_train, error), failed);
    TRY_GOTO(list_tokens(&new->splits[DATASET_VALIDATION], &packed, n_train, packed.n_tokens, error), failed);
    new->seed = options->seed;
    new->hash = hash_u64(hash_u64(packed.hash, n_train), n_validation);
    new->bytes_per_token = (double)text->n_bytes / (double)packed.n_tokens;
    new->blocks = packed.blocks;
    new->n_blocks = packed.n_blocks;
    *dataset = new;
    return STATUS_OK;
failed:
    packed_free(&packed);
    dataset_free(new);
    return error->status;
}

void dataset_free(Dataset *dataset) {
    if (!dataset) return;
    for (int split = 0; split < DATASET_N_SPLITS; split++) free(dataset->splits[split].segments);
    for (size_t i = 0; i < dataset->n_blocks; i++) free(dataset->blocks[i]);
    free(dataset->blocks);
    free(dataset);
}
