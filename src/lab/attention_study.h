/* What sparse attention costs: one operation, timed by itself, and how its patterns look.
 *
 *     AttentionTiming timing = {.n_sequences = 1, .T = 4096, .n_heads = 8, .head_size = 64, .n_repeats = 5};
 *     AttentionTime time;
 *     TRY(attention_time(&backend, &pattern, &timing, &time, error));
 *     ... time.n_blocks, time.forward_ms, time.backward_ms ... */
#ifndef PGPT_LAB_ATTENTION_STUDY_H
#define PGPT_LAB_ATTENTION_STUDY_H

#include "graph/backend.h"
#include "ops/attention/attention_pattern.h"

typedef struct {
    int64_t n_sequences, T;
    int n_heads, head_size;
    int64_t n_repeats; /* of each direction; the fastest counts */
} AttentionTiming;

typedef struct {
    int64_t n_blocks; /* tiles of 64 x 64 that are not absent, of a sequence */
    double pairs;     /* queries and keys that see each other, of a sequence */
    double forward_ms, backward_ms;
    double lists_ms; /* making the lists, which the forward needs first */
} AttentionTime;

/* 16-bit numbers where the backend is a GPU, else f32. */
Status attention_time(const Backend *backend, const AttentionPattern *pattern, const AttentionTiming *timing,
                      AttentionTime *time, Error *error);

/* Tiles of patterns in a sequence of T: FOLDER/NAME.svg, and a PNG with gnuplot. */
Status attention_patterns_draw(const AttentionPattern *patterns, int n_patterns, int64_t T,
                               const char *caption, const char *folder, const char *name, bool *has_png,
                               Error *error);

#endif
