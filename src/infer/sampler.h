/* The sampler: from the logits of one position to the next token.
 *
 * What it draws depends on the logits and on (seed, sample, position) alone: not on threads, on the other
 * samples of a batch, or on what was drawn before. Nothing is allocated after sampler_open. */
#ifndef PGPT_INFER_SAMPLER_H
#define PGPT_INFER_SAMPLER_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double temperature; /* 0 takes the likeliest token; 1 is the model's own distribution */
    int64_t top_k;      /* only the k likeliest tokens; 0: all */
    double top_p;       /* of those, only the likeliest that together have this probability; 1: all */
    uint64_t seed;
    double
        /* what logits of repeated tokens are made worse by, before all else; 0 or 1: not */
        repetition_penalty;
    int64_t repetition_window; /* repeated are those among the last so many of the text; 0: in all of it */
} SamplerOptions;

/* The model's own distribution: nothing cut, temperature 1. */
#define SAMPLER_DEFAULTS ((SamplerOptions){.temperature = 1.0, .top_p = 1.0})

typedef struct {
    SamplerOptions options;
    int64_t n_vocabulary;
    struct SamplerCandidate *candidate; /* (V) room to select in */
    float *weight;                      /* (V) exp((logit - largest) / temperature) */
    float *penalised;                   /* (V) logits */
} Sampler;

typedef struct {
    int32_t token;
    float
        /* under the model's own distribution, whatever the options are: comparable between runs */
        log_probability;
} SampledToken;

/* Tokens 0 .. n_vocabulary-1 are drawn. This may be fewer than the model has logits, whose table can be
 * padded. */
Status sampler_open(Sampler *sampler, const SamplerOptions *options, int64_t n_vocabulary, Error *error);
void sampler_close(Sampler *sampler);

/* Options out of their range are a user's error that names the option of the command line. */
Status sampler_check(const SamplerOptions *options, Error *error);

/* Do they ask for counts of the tokens that were there before? */
bool sampler_penalises(const SamplerOptions *options);

/* `counts` (V) says how often each token stands in the repetition window; NULL: nothing is penalised. A token
 * that stands there, however often, has its logit divided by the penalty if it is above 0, multiplied if
 * below: a penalty above 1 makes it less likely either way, one below 1 likelier.
 *
 * `sample` tells apart samples of one seed, `position` the tokens of one sample. A logit that is not finite
 * is an error: the model has diverged. */
Status sampler_pick(Sampler *sampler, const float *logits /* (V) */, const int32_t *counts, uint64_t sample,
                    uint64_t position, SampledToken *picked, Error *error);

/* That error. */
Status sampler_diverged(int64_t token, float logit, Error *error);

#endif
