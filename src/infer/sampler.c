/* Cutting the distribution (top-k, top-p) needs to know where in the order of the tokens the cut lies, not
 * the order itself: a selection in linear time finds it, by partitions as in quicksort that go on only in the
 * part that holds the cut. Both cuts are the same search: the shortest start of the order that weighs enough,
 * where a token weighs 1 for top-k and its probability for top-p.
 *
 * The draw then walks the tokens by number, not in the order that the selection left: how the partitions went
 * must not show in the result. Equal logits are ordered by token number, so that the cut never depends on
 * chance.
 *
 * The repetition penalty comes first of all and works on a copy of the logits, for the log-probability that
 * is reported is the model's own. Its products stay within the range of floats: a penalty must not make a
 * logit look like one of a model that has diverged. */
#include "infer/sampler.h"

#include "base/random.h"
#include "base/system/memory.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

typedef struct SamplerCandidate {
    float logit;
    int32_t token;
} Candidate;

Status sampler_check(const SamplerOptions *options, Error *error) {
    if (!(options->temperature >= 0.0) || isinf(options->temperature)) {
        return error_user(error, "--temperature wants a number of at least 0, got %g", options->temperature);
    }
    if (options->top_k < 0) {
        return error_user(error, "--top-k wants a number of at least 0 (0 keeps all), got %lld",
                          (long long)options->top_k);
    }
    if (!(options->top_p > 0.0 && options->top_p <= 1.0)) {
        return error_user(error, "--top-p wants a number above 0 and at most 1 (1 keeps all), got %g",
                          options->top_p);
    }
    if (!(options->repetition_penalty >= 0.0) || isinf(options->repetition_penalty)) {
        return error_user(error, "--repetition-penalty wants a number above 0 (1 is none), got %g",
                          options->repetition_penalty);
    }
    if (options->repetition_window < 0) {
        return error_user(error, "--repetition-window wants a number of at least 0 (0 is all), got %lld",
                          (long long)options->repetition_window);
    }
    return STATUS_OK;
}

bool sampler_penalises(const SamplerOptions *options) {
    return options->repetition_penalty != 0.0 && options->repetition_penalty != 1.0;
}

/* One block: the candidates, then the weights, then the penalised logits. */
static size_t room_bytes(int64_t n_vocabulary) {
    return (size_t)n_vocabulary * (sizeof(Candidate) + 2 * sizeof(float));
}

Status sampler_open(Sampler *sampler, const SamplerOptions *options, int64_t n_vocabulary, Error *error) {
    *sampler = (Sampler){.options = *options};
    TRY(sampler_check(options, error));
    if (n_vocabulary < 1 || n_vocabulary > INT32_MAX) {
        return error_failed(error, "a sampler of %lld tokens was asked for", (long long)n_vocabulary);
    }
    void *room;
    TRY(memory_alloc(&room, room_bytes(n_vocabulary), "the sampler", error));
    sampler->n_vocabulary = n_vocabulary;
    sampler->candidate = room;
    sampler->weight = (float *)(sampler->candidate + n_vocabulary);
    sampler->penalised = sampler->weight + n_vocabulary;
    return STATUS_OK;
}

void sampler_close(Sampler *sampler) {
    memory_free(sampler->candidate, room_bytes(sampler->n_vocabulary));
    *sampler = (Sampler){0};
}

static bool is_before(Candidate a, Candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void swap(Candidate *a, Candidate *b) {
    Candidate kept = *a;
    *a = *b;
    *b = kept;
}

/* Put the candidates of [first,end) that come before one of them in front of it; returns where it then is.
 * Which one is taken must follow no pattern that logits might have. */
static int64_t partition(Candidate *candidate, int64_t first, int64_t end) {
    uint64_t scattered = (uint64_t)(first + end) * 0x9E3779B97F4A7C15u >> 32;
    swap(&candidate[first + (int64_t)(scattered % (uint64_t)(end - first))], &candidate[end - 1]);
    Candidate pivot = candidate[end - 1];
    int64_t place = first;
    for (int64_t i = first; i < end - 1; i++) {
        if (is_before(candidate[i], pivot)) swap(&candidate[i], &candidate[place++]);
    }
    swap(&candidate[place], &candidate[end - 1]);
    return place;
}

/* What the candidates of [first,end) weigh; with weight NULL each weighs 1. */
static double weigh(const Candidate *candidate, const float *weight, int64_t first, int64_t end) {
    if (!weight) return (double)(end - first);
    double sum = 0.0;
    for (int64_t i = first; i < end; i++) sum += (double)weight[candidate[i].token];
    return sum;
}

/* Reorder n candidates so that the fewest of the best that weigh `wanted` together come first; returns how
 * many. */
static int64_t select_best(Candidate *candidate, const float *weight, int64_t n, double wanted) {
    int64_t first = 0, end = n; /* the cut lies in there */
    double before = 0.0;        /* weight of [0,first) */
    while (first < end) {
        int64_t place = partition(candidate, first, end);
        double upper = before + weigh(candidate, weight, first, place);
        if (upper >= wanted) {
            end = place;
            continue;
        }
        before = upper + weigh(candidate, weight, place, place + 1);
        first = place + 1;
        if (before >= wanted) break;
    }
    return first > 0 ? first : 1;
}

/* The last candidate that the options keep. */
static Candidate find_cut(Sampler *sampler, const float *logits, double total_weight) {
    Candidate *candidate = sampler->candidate;
    int64_t n = sampler->n_vocabulary;
    for (int64_t i = 0; i < n; i++) candidate[i] = (Candidate){logits[i], (int32_t)i};
    if (sampler->options.top_k > 0 && sampler->options.top_k < n) {
        n = select_best(candidate, NULL, n, (double)sampler->options.top_k);
        total_weight = weigh(candidate, sampler->weight, 0, n);
    }
    if (sampler->options.top_p < 1.0) {
        n = select_best(candidate, sampler->weight, n, sampler->options.top_p * total_weight);
    }
    Candidate last = candidate[0];
    for (int64_t i = 1; i < n; i++) {
        if (is_before(last, candidate[i])) last = candidate[i];
    }
    return last;
}

/* A uniform number in [0,1) with 53 bits. */
static double draw(uint64_t seed, uint64_t sample, uint64_t position) {
    RandomBlock block = random_block(random_key(seed, RANDOM_SAMPLE, 0), sample, position);
    uint64_t bits = (uint64_t)block.word[0] << 32 | block.word[1];
    return (double)(bits >> 11) * 0x1p-53;
}

/* Scale weights by temperature; returns their sum. */
static double weigh_logits(Sampler *sampler, const float *logits, float largest) {
    double sum = 0.0, temperature = sampler->options.temperature;
    for (int64_t i = 0; i < sampler->n_vocabulary; i++) {
        /* Divided, and in double: a tiny temperature then gives 0 / tiny = 0 for the largest, -inf for the
         * rest. */
        sampler->weight[i] = expf((float)((double)(logits[i] - largest) / temperature));
        sum += (double)sampler->weight[i];
    }
    return sum;
}

static int32_t draw_token(Sampler *sampler, const float *logits, float largest, double uniform) {
    int64_t n = sampler->n_vocabulary;
    double total = weigh_logits(sampler, logits, largest);
    bool is_cut = (sampler->options.top_k > 0 && sampler->options.top_k < n) || sampler->options.top_p < 1.0;
    if (is_cut) {
        Candidate last = find_cut(sampler, logits, total);
        total = 0.0;
        for (int64_t i = 0; i < n; i++) {
            if (is_before(last, (Candidate){logits[i], (int32_t)i})) sampler->weight[i] = 0.0f;
            total += (double)sampler->weight[i];
        }
    }
    double target = uniform * total, sum = 0.0;
    int32_t token = 0;
    for (int64_t i = 0; i < n; i++) {
        if (sampler->weight[i] <= 0.0f) continue;
        token = (int32_t)i; /* the last possible one, should the product have been rounded up to the total */
        sum += (double)sampler->weight[i];
        if (sum > target) break;
    }
    return token;
}

Status sampler_diverged(int64_t token, float logit, Error *error) {
    return error_failed(
        error,
        "the model's logit of token %lld is %f: its weights have diverged or are damaged; use an earlier checkpoint",
        (long long)token, (double)logit);
}

static Status find_largest(const float *logits, int64_t n, int32_t *largest, Error *error) {
    *largest = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return sampler_diverged(i, logits[i], error);
        if (logits[i] > logits[*largest]) *largest = (int32_t)i;
    }
    return STATUS_OK;
}

/* The logits with the penalty on those of repeated tokens. */
static const float *penalise(Sampler *sampler, const float *logits, const int32_t *counts) {
    double penalty = sampler->options.repetition_penalty;
    for (int64_t i = 0; i < sampler->n_vocabulary; i++) {
        double logit = (double)logits[i];
        if (counts[i] > 0) logit = logit < 0.0 ? logit * penalty : logit / penalty;
        sampler->penalised[i] = (float)fmax(fmin(logit, (double)FLT_MAX), (double)-FLT_MAX);
    }
    return sampler->penalised;
}

Status sampler_pick(Sampler *sampler, const float *logits, const int32_t *counts, uint64_t sample,
                    uint64_t position, SampledToken *picked, Error *error) {
    int32_t likeliest, best;
    TRY(find_largest(logits, sampler->n_vocabulary, &likeliest, error));
    const SamplerOptions *options = &sampler->options;
    const float *chosen_from = logits;
    best = likeliest;
    if (counts && sampler_penalises(options)) {
        chosen_from = penalise(sampler, logits, counts);
        TRY(find_largest(chosen_from, sampler->n_vocabulary, &best, error));
    }
    picked->token = options->temperature == 0.0 ? best
                                                : draw_token(sampler, chosen_from, chosen_from[best],
                                                             draw(options->seed, sample, position));
    double sum = 0.0;
    float largest = logits[likeliest];
    for (int64_t i = 0; i < sampler->n_vocabulary; i++) sum += (double)expf(logits[i] - largest);
    picked->log_probability = (float)((double)(logits[picked->token] - largest) - log(sum));
    return STATUS_OK;
}
