/* Sparse attention beside dense attention in one run: time by the tiles that are left.
 *
 *     BenchAttention bench;
 *     if (bench_attention_measure(&bench, &setup, "window:1024,strided:128", 0, error) == STATUS_OK)
 *         ... bench.time[0] is `attention`, bench.time[1] the dense pattern by lists, then the patterns ...
 *     bench_attention_close(&bench);                     // also after a failure */
#ifndef PGPT_BENCH_ATTENTION_H
#define PGPT_BENCH_ATTENTION_H

#include "bench/training.h"
#include "ops/attention/attention_pattern.h"

enum { BENCH_MOST_PATTERNS = 16 };

typedef struct {
    char name[PATTERN_TEXT_BYTES];
    double n_tiles; /* of 64 x 64 that are not absent: of a head, in all sequences */
    double lists_seconds, forward_seconds, backward_seconds;
    double forward_flops, backward_flops; /* of those tiles, whole */
} BenchAttentionTime;

typedef struct {
    Backend backend;
    bool has_backend;
    int64_t batch, sequence;
    int head_size;
    BenchAttentionTime time[BENCH_MOST_PATTERNS + 2];
    int n_times;
} BenchAttention;

/* Patterns with commas between them. Documents are of `document_length` tokens; 0: there are none, else all
 * but `attention` see their own only. Heads are the model's; sequences may be longer than its context. */
Status bench_attention_measure(BenchAttention *bench, const BenchSetup *setup, const char *patterns,
                               int64_t document_length, Error *error);
void bench_attention_close(BenchAttention *bench);

#endif
