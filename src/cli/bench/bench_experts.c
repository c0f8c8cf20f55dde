/* pgpt bench experts: the grouped GEMMs of experts against the dense one (bench/experts.h), as a table. */
#include "bench/experts.h"

#include "base/text/format.h"
#include "cli/bench/bench.h"

#include <stdio.h>

static void print_times(const BenchExperts *e) {
    printf("%lld rows, %lld inputs, %lld outputs, %lld experts\n\n", (long long)e->rows, (long long)e->inputs,
           (long long)e->outputs, (long long)e->n_experts);
    printf("%-18s %-12s %12s %16s %9s\n", "GEMM", "rows", "time", "arithmetic", "of dense");
    for (int gemm = 0; gemm < BENCH_N_GEMMS; gemm++) {
        for (int load = 0; load < BENCH_N_LOADS; load++) {
            double seconds = e->seconds[gemm][load];
            printf("%-18s %-12s %9.4f ms %16s %7.1f %%\n", bench_gemm_names[gemm], bench_load_names[load],
                   seconds * 1e3, format_rate(e->flops / seconds, "FLOP/s").text,
                   100.0 * e->seconds[gemm][BENCH_DENSE] / seconds);
        }
    }
}

static json_t *times_json(const BenchExperts *e) {
    json_t *array = json_array();
    for (int i = 0; i < BENCH_N_GEMMS * BENCH_N_LOADS; i++) {
        int gemm = i / BENCH_N_LOADS, load = i % BENCH_N_LOADS;
        double seconds = e->seconds[gemm][load];
        json_t *object = json_object();
        json_object_set_new(object, "gemm", json_string(bench_gemm_names[gemm]));
        json_object_set_new(object, "load", json_string(bench_load_names[load]));
        json_object_set_new(object, "ms", json_make_number(seconds * 1e3));
        json_object_set_new(object, "flops_per_s", json_make_number(e->flops / seconds));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *report_json(const BenchExperts *e, const BenchSetup *setup, const Backend *backend) {
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("bench experts"));
    json_object_set_new(object, "device", json_string(backend->name));
    json_object_set_new(object, "dtype", json_string(precision_names[setup->bench.precision]));
    json_object_set_new(object, "rows", json_integer(e->rows));
    json_object_set_new(object, "inputs", json_integer(e->inputs));
    json_object_set_new(object, "outputs", json_integer(e->outputs));
    json_object_set_new(object, "experts", json_integer(e->n_experts));
    json_object_set_new(object, "times", times_json(e));
    return object;
}

Status bench_experts(BenchCall *call, Error *error) {
    BenchExperts experts;
    Backend backend;
    TRY(bench_backend_open(&backend, &call->setup.bench, error));
    if (bench_experts_measure(&experts, &backend, &call->setup, error) == STATUS_OK) {
        print_times(&experts);
        if (call->json) json_print(stdout, report_json(&experts, &call->setup, &backend), error);
    }
    backend.close(backend.context);
    return error->status;
}
