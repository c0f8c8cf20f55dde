/* The options of a training run beyond model, data and optimizer. */
#ifndef PGPT_TRAIN_OPTIONS_H
#define PGPT_TRAIN_OPTIONS_H

#include "base/options/options.h"

/* --hang-timeout, where nobody says otherwise. */
#define TRAIN_HANG_SECONDS 1800.0

/* --save-minutes: likewise. */
#define TRAIN_SAVE_MINUTES 10.0

typedef struct {
    int64_t batch, micro_batch, sequence, n_steps;
    double n_epochs;
    int64_t seed;
    int64_t recompute, recompute_blocks, loss_chunk;
    int64_t n_threads;
    int precision; /* PrecisionKind */
    int device;    /* DeviceKind */
    bool any_order;
    int64_t n_streams;
    int64_t eval_every, eval_batches;
    int64_t sample_every, sample_tokens;
    int64_t save_every, keep;
    double save_minutes;
    double clock_minutes; /* what that comes to beside the other options; 0: the clock saves nothing */
    bool clock_is_asked;  /* and not only the default */
    bool background_save;
    bool saves; /* at all */
    int64_t log_every;
    double hang_timeout; /* seconds */
    const char *prompt;
    const char *out;
    const char *resume;
    const char *init;
} TrainOptions;

extern const OptionSpec train_option_specs[];

/* The names that --recompute has for some of its numbers (RECOMPUTE_SELECTIVE), and a number as that option
 * takes it. */
extern const OptionWord recompute_words[];
const char *recompute_text(int64_t recompute, char *text, size_t n_bytes);

#endif
