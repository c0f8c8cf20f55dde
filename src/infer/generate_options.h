/* The options of generation: of `pgpt generate`, and, but for those that are about files and the screen, of
 * the library. */
#ifndef PGPT_INFER_GENERATE_OPTIONS_H
#define PGPT_INFER_GENERATE_OPTIONS_H

#include "base/options/options.h"

typedef struct {
    const char *prompt, *prompts, *stop, *output;
    int64_t n_tokens, n_samples, n_rows, top_k, seed, n_threads, repetition_window;
    int device, precision; /* DeviceKind, PrecisionKind */
    double temperature, top_p, repetition_penalty;
    int choice; /* CheckpointChoice */
    bool stop_at_end, cache, log_probs, stream, json, quiet;
} GenerateOptions;

extern const OptionSpec generate_option_specs[];

#endif
