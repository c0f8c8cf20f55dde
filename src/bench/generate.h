/* Tokens a second with the KV cache, from a prompt of one token and random weights.
 *
 *     BenchGeneration bench;
 *     if (bench_generate_open(&bench, &setup, error) == STATUS_OK)
 *         bench_generate_measure(&bench, &setup.bench, &report, error);
 *     bench_generate_close(&bench); */
#ifndef PGPT_BENCH_GENERATE_H
#define PGPT_BENCH_GENERATE_H

#include "bench/training.h"
#include "infer/generator.h"

enum { BENCH_N_QUARTERS = 4 };

typedef struct {
    Backend backend;
    ParameterTable table;
    Generator generator;
    GeneratorPrompt *prompts; /* one a sample, all of the same token */
    Arena arena;
    bool has_backend, has_generator;
    double *token_seconds;     /* (tokens) of one text: between the ends of two positions */
    double *attention_seconds; /* (tokens) of which in attention */
    SamplerOptions sampler;
} BenchGeneration;

typedef struct {
    double tokens_per_s, best_tokens_per_s, seconds;
    double quarter_ms[BENCH_N_QUARTERS],
        attention_ms[BENCH_N_QUARTERS]; /* a position, median over its quarter */
    double weight_bytes, read_bytes_per_s, limit_bytes_per_s;
    double greedy_tokens_per_s; /* NAN on the host */
} BenchGenerateReport;

Status bench_generate_open(BenchGeneration *bench, const BenchSetup *setup, Error *error);
Status bench_generate_measure(BenchGeneration *bench, const BenchOptions *options,
                              BenchGenerateReport *report, Error *error);
void bench_generate_close(BenchGeneration *bench);

#endif
