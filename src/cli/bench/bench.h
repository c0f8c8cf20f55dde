/* What the benchmarks of `pgpt bench` share as commands: their options and the beginning of their output.
 * What they measure is in src/bench. */
#ifndef PGPT_CLI_BENCH_BENCH_H
#define PGPT_CLI_BENCH_BENCH_H

#include "base/text/json.h"
#include "bench/training.h"
#include "parallel/launch/launch.h"

typedef struct {
    BenchSetup setup;
    const char *patterns; /* of attention */
    int64_t document_length;
    const char *out; /* of machine: the file */
    bool json;
    Launch *launch;
} BenchCall;

/* The benchmarks. With --json the last line of stdout is an object. */
Status bench_step(BenchCall *call, Error *error);
Status bench_ops(BenchCall *call, Error *error);
Status bench_generate(BenchCall *call, Error *error);
Status bench_experts(BenchCall *call, Error *error);
Status bench_attention(BenchCall *call, Error *error);
Status bench_machine(BenchCall *call, Error *error);

/* One line about the model; the fields that every benchmark's object begins with (a new reference). */
void bench_print_model(const BenchSetup *setup, const ParameterTable *table, const Backend *backend);
json_t *bench_json(const char *which, const BenchSetup *setup, const ParameterTable *table, int n_threads);

#endif
