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
    double n_tiles; /* of 64 x 64 that kernels have to visit: of a head, in all sequences */
    double lists_seconds, forward_seconds, backward_seconds; /* the best of the rounds */
    double documents_seconds;                                /* a part of those of the lists */
    double forward_flops, backward_flops;                    /* of those tiles, whole */
} BenchAttentionTime;

typedef struct {
    Backend backend;
    bool has_backend;
    int64_t batch, sequence;
    int head_size;
    BenchAttentionTime time[BENCH_MOST_PATTERNS + 2];
    int n_times;
} BenchAttention;

/* The time of a tile by that of a tile of `attention`: 1 where time is in proportion to the tiles that are
 * left. `attention` has all up to the diagonal, Q(Q+1)/2 of Q blocks; a pattern has those of its lists. Tiles
 * that are partly seen count as whole ones. */
double bench_attention_tile(const BenchAttention *bench, int number, bool is_backward);

/* Patterns with commas between them, all timed in each of setup->bench.n_runs rounds. Documents are of
 * `document_length` tokens; 0: there are none, else all but `attention` see their own only. Heads are the
 * model's; sequences may be longer than its context. */
Status bench_attention_measure(BenchAttention *bench, const BenchSetup *setup, const char *patterns,
                               int64_t document_length, Error *error);
void bench_attention_close(BenchAttention *bench);

#endif
