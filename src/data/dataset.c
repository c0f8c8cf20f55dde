/* Each split is a list of segments, runs of tokens of one width wherever they lie (our own blocks, or mapped
 * shards: the same to a reader), numbered through. Windows are ranges of those numbers, so nothing below
 * knows where a segment ends except the one function that copies. dataset_text.c, dataset_shards.c and
 * dataset_mix.c make them.
 *
 * Training order. With n tokens and windows of T there are W = (n - T) / T windows in an epoch, one fewer
 * than fit at best: the remainder is the room that lets every epoch shift its windows by its own offset in
 * [0, T) and still have exactly W of them, so that an epoch's length is a constant and epoch and place come
 * from the sequence number by division. Where a text is too short for that (n < 2T), W is 1 and the offset
 * takes what room there is. The order within an epoch is random_permute: no array, any element on its own, on
 * any rank.
 *
 * A mixture finds the part that serves a sequence and the part's own number for it, and is no further concern
 * here. */
#include "data/dataset.h"

#include "base/random.h"
#include "data/dataset_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Streams of the data's random numbers, two for each part of a mixture. */
enum { STREAM_ORDER, STREAM_OFFSET, N_STREAMS };

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
    uint64_t n_windows = 0;
    for (size_t i = 0; i < dataset->n_parts; i++) n_windows += dataset_n_windows(dataset->parts[i], split, T);
    if (dataset->n_parts) return n_windows;
    uint64_t n = dataset->splits[split].n_tokens;
    if (split == DATASET_TRAIN) return n_training_windows(n, (uint64_t)T);
    return n ? (n - 1) / (uint64_t)T : 0;
}

/* Where the window of a training sequence starts: a pure function of (seed, sequence). */
static uint64_t training_start(const Dataset *dataset, uint64_t n_windows, uint64_t sequence, uint64_t T) {
    uint64_t n_tokens = dataset->splits[DATASET_TRAIN].n_tokens, seed = dataset->seed;
    uint64_t stream = RANDOM_DATA + N_STREAMS * dataset->stream;
    uint64_t epoch = sequence / n_windows;
    uint64_t n_offsets = n_tokens - n_windows * T; /* starts that leave the last window its last target */
    if (n_offsets > T) n_offsets = T;
    RandomKey order = random_key(seed, stream + STREAM_ORDER, epoch);
    RandomKey shift = random_key(seed, stream + STREAM_OFFSET, epoch);
    uint64_t offset = (uint64_t)random_block(shift, 0, 0).word[0] * n_offsets >> 32;
    return offset + random_permute(order, sequence % n_windows, n_windows) * T;
}

static void fill_row(const Dataset *dataset, DatasetSplit split, uint64_t sequence, uint64_t T,
                     int32_t *row /* (T) */, int32_t *target_row /* (T) */) {
    while (dataset->n_parts) dataset = dataset_mixed_part(dataset, split, sequence, &sequence);
    const TokenList *list = &dataset->splits[split];
    uint64_t n_windows = dataset_n_windows(dataset, split, (int)T), start;
    if (n_windows == 0) {
        fprintf(stderr, "pgpt: a split of %llu tokens has no window of %llu\n",
                (unsigned long long)list->n_tokens, (unsigned long long)T);
        abort(); /* the caller broke the contract */
    }
    if (split == DATASET_TRAIN) start = training_start(dataset, n_windows, sequence, T);
    else start = sequence % n_windows * T;
    copy_tokens(list, start, T, row);
    memcpy(target_row, row + 1, (T - 1) * sizeof *row);
    copy_tokens(list, start + T, 1, target_row + T - 1);
}

void dataset_fill(const Dataset *dataset, DatasetSplit split, uint64_t first_sequence, int B, int T,
                  int32_t *tokens /* (B,T) */, int32_t *targets /* (B,T) */) {
    uint64_t length = (uint64_t)T;
    for (uint64_t b = 0; b < (uint64_t)B; b++) {
        fill_row(dataset, split, first_sequence + b, length, tokens + b * length, targets + b * length);
    }
}

void dataset_read(const Dataset *dataset, DatasetSplit split, uint64_t first, uint64_t n, int32_t *tokens) {
    for (size_t i = 0; i < dataset->n_parts && n > 0; i++) {
        uint64_t n_part = dataset_n_tokens(dataset->parts[i], split);
        uint64_t n_here = first >= n_part ? 0 : n_part - first < n ? n_part - first : n;
        dataset_read(dataset->parts[i], split, first, n_here, tokens);
        first = first >= n_part ? first - n_part : 0;
        tokens += n_here;
        n -= n_here;
    }
    if (!dataset->n_parts) copy_tokens(&dataset->splits[split], first, n, tokens);
}

uint64_t dataset_n_tokens(const Dataset *dataset, DatasetSplit split) {
    uint64_t n_tokens = dataset->splits[split].n_tokens;
    for (size_t i = 0; i < dataset->n_parts; i++) n_tokens += dataset_n_tokens(dataset->parts[i], split);
    return n_tokens;
}

double dataset_bytes_per_token(const Dataset *dataset) {
    return dataset->bytes_per_token;
}

uint64_t dataset_hash(const Dataset *dataset) {
    return dataset->hash;
}

/* ---- Making one ---- */

Status dataset_new(const DatasetOptions *options, Dataset **dataset, Error *error) {
    *dataset = NULL;
    double fraction = options->validation_fraction;
    if (!(fraction >= 0 && fraction < 1)) {
        return error_user(error, "the validation fraction must be at least 0 and below 1, not %g", fraction);
    }
    if (options->T < 1) return error_user(error, "the context must be at least 1, not %d", options->T);
    *dataset = calloc(1, sizeof **dataset);
    if (!*dataset) return error_failed(error, "out of memory: no room for a dataset");
    (*dataset)->seed = options->seed;
    return STATUS_OK;
}

Status dataset_check_lengths(uint64_t n_train, uint64_t n_validation, const DatasetOptions *options,
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

void dataset_free(Dataset *dataset) {
    if (!dataset) return;
    for (int split = 0; split < DATASET_N_SPLITS; split++) {
        free(dataset->splits[split].segments);
        free(dataset->mixtures[split].share);
    }
    for (size_t i = 0; i < dataset->n_blocks; i++) free(dataset->blocks[i]);
    free(dataset->blocks);
    shard_set_close(&dataset->shards);
    for (size_t i = 0; i < dataset->n_parts; i++) dataset_free(dataset->parts[i]);
    free(dataset->parts);
    free(dataset);
}
