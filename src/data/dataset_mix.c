/* A mixture by weight, without state. Sequences come in blocks of n_slots, and in every block part i has
 * `share[i]` slots, side by side: proportions are exact after every block. A seeded permutation, another one
 * for each block, says which slot a sequence takes. Slot s of block b, the j-th of its part, is the part's
 * own sequence b * share + j. So every part is asked for each of its sequences exactly once, and which one is
 * asked for follows from the global number alone: nothing to save but that number, and nothing to agree on
 * between ranks.
 *
 * The block is the shortest in which the weights come out exactly (0.7 and 0.3: ten sequences), or one of
 * MOST_SLOTS with the nearest shares. */
#include "data/dataset.h"

#include "base/random.h"
#include "data/dataset_tokens.h"
#include "data/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SLOTS = 10000 };

/* Beside the streams of the parts, which are numbered from 0. */
#define STREAM_MIX (RANDOM_DATA + (UINT64_C(1) << 31))

static bool exact_in(const double *weights, size_t n, double total, uint64_t n_slots) {
    for (size_t i = 0; i < n; i++) {
        double share = weights[i] / total * (double)n_slots;
        if (fabs(share - round(share)) > 1e-9 * (double)n_slots) return false;
        if (weights[i] > 0 && share < 0.5) return false;
    }
    return true;
}

/* The nearest whole shares that add up: round down, then one more where most was lost. Whoever has a weight
 * gets a slot, at the cost of the largest. */
static void round_shares(const double *weights, size_t n, double total, Mixture *mixture) {
    uint64_t n_given = 0;
    for (size_t i = 0; i < n; i++) {
        double share = weights[i] / total * (double)mixture->n_slots;
        mixture->share[i] = (uint64_t)(share + 1e-6);
        if (weights[i] > 0 && mixture->share[i] == 0) mixture->share[i] = 1;
        n_given += mixture->share[i];
    }
    while (n_given != mixture->n_slots) {
        bool add = n_given < mixture->n_slots;
        size_t best = n;
        double most = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            double lost = weights[i] / total * (double)mixture->n_slots - (double)mixture->share[i];
            if (weights[i] <= 0 || (!add && mixture->share[i] < 2)) continue;
            if ((add ? lost : -lost) <= most) continue;
            most = add ? lost : -lost;
            best = i;
        }
        mixture->share[best] += add ? 1 : UINT64_MAX; /* one more, or one fewer */
        n_given += add ? 1 : UINT64_MAX;
    }
}

/* From the weights of those that have something to serve (the others' are 0). */
static Status make_mixture(const double *weights, size_t n, Mixture *mixture, Error *error) {
    double total = 0;
    size_t n_serving = 0;
    for (size_t i = 0; i < n; i++) {
        total += weights[i];
        n_serving += weights[i] > 0;
    }
    if (n_serving == 0) return STATUS_OK;
    mixture->share = calloc(n, sizeof *mixture->share);
    if (!mixture->share) return error_failed(error, "out of memory: no room for a mixture");
    mixture->n_slots = n_serving;
    while (mixture->n_slots < MOST_SLOTS && !exact_in(weights, n, total, mixture->n_slots))
        mixture->n_slots++;
    round_shares(weights, n, total, mixture);
    return STATUS_OK;
}

static Status mix(Dataset *dataset, const double *weights, Error *error) {
    size_t n = dataset->n_parts;
    double *serving = calloc(n, sizeof *serving);
    if (!serving) return error_failed(error, "out of memory: no room for a mixture");
    for (int split = 0; split < DATASET_N_SPLITS; split++) {
        for (size_t i = 0; i < n; i++) {
            bool serves = dataset_n_tokens(dataset->parts[i], (DatasetSplit)split) > 0;
            serving[i] = serves ? weights[i] : 0;
        }
        TRY_GOTO(make_mixture(serving, n, &dataset->mixtures[split], error), done);
    }
    const Mixture *training = &dataset->mixtures[DATASET_TRAIN];
    for (size_t i = 0; i < n; i++) {
        Dataset *part = dataset->parts[i];
        part->stream = i;
        dataset->hash = hash_u64(hash_u64(dataset->hash, part->hash), training->share[i]);
        dataset->bytes_per_token +=
            part->bytes_per_token * (double)training->share[i] / (double)training->n_slots;
    }
done:
    free(serving);
    return error->status;
}

Status dataset_mix(Dataset *const *parts, const double *weights, size_t n_parts, Dataset **dataset,
                   Error *error) {
    *dataset = NULL;
    Dataset *new = calloc(1, sizeof *new);
    if (new) new->parts = calloc(n_parts, sizeof *new->parts);
    if (!new || !new->parts || n_parts < 1 || n_parts > MOST_SLOTS) {
        error_failed(error, "out of memory: no room for a mixture of %zu datasets", n_parts);
        for (size_t i = 0; i < n_parts; i++) dataset_free(parts[i]);
        dataset_free(new);
        return error->status;
    }
    memcpy(new->parts, parts, n_parts * sizeof *parts);
    new->n_parts = n_parts;
    new->seed = parts[0]->seed;
    for (size_t i = 0; i < n_parts; i++) {
        if (isfinite(weights[i]) && weights[i] > 0) continue;
        error_user(error, "a weight of the mixture is %g, but must be above 0", weights[i]);
        goto failed;
    }
    TRY_GOTO(mix(new, weights, error), failed);
    *dataset = new;
    return STATUS_OK;
failed:
    dataset_free(new);
    return error->status;
}

const Dataset *dataset_mixed_part(const Dataset *dataset, DatasetSplit split, uint64_t sequence,
                                  uint64_t *part_sequence) {
    const Mixture *mixture = &dataset->mixtures[split];
    uint64_t block = sequence / mixture->n_slots;
    RandomKey key = random_key(dataset->seed, STREAM_MIX + (uint64_t)split, block);
    uint64_t slot = random_permute(key, sequence % mixture->n_slots, mixture->n_slots);
    size_t part = 0;
    for (; slot >= mixture->share[part]; part++) slot -= mixture->share[part];
    *part_sequence = block * mixture->share[part] + slot;
    return dataset->parts[part];
}
