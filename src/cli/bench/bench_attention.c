/* pgpt bench attention: sparse attention beside dense attention (bench/attention.h), as a table. */
#include "bench/attention.h"

#include "base/text/format.h"
#include "cli/bench/bench.h"

#include <stdio.h>

static void print_times(const BenchAttention *bench, int64_t n_rounds) {
    const BenchAttentionTime *dense = &bench->time[0];
    printf("%-20s %8s %10s %12s %14s %7s %6s %12s %14s %7s %6s\n", "pattern", "tiles", "lists", "forward",
           "arithmetic", "faster", "a tile", "backward", "arithmetic", "faster", "a tile");
    for (int i = 0; i < bench->n_times; i++) {
        const BenchAttentionTime *time = &bench->time[i];
        printf("%-20s %6.1f %% %7.4f ms %9.4f ms %14s %6.2fx %6.2f %9.4f ms %14s %6.2fx %6.2f\n", time->name,
               100.0 * time->n_tiles / dense->n_tiles, time->lists_seconds * 1e3, time->forward_seconds * 1e3,
               format_rate(time->forward_flops / time->forward_seconds, "FLOP/s").text,
               dense->forward_seconds / time->forward_seconds, bench_attention_tile(bench, i, false),
               time->backward_seconds * 1e3,
               format_rate(time->backward_flops / time->backward_seconds, "FLOP/s").text,
               dense->backward_seconds / time->backward_seconds, bench_attention_tile(bench, i, true));
    }
    printf(
        "\ntiles: of 64 x 64, those that kernels have to visit, seen whole or in part. faster: than "
        "attention, which the\nfirst line is. a tile: its time by that of a tile there: 1.00 is in proportion. "
        "arithmetic: of whole tiles, 4 and\n10 FLOPs a channel and pair. The best of %lld rounds in which "
        "all take turns (--runs)\n",
        (long long)n_rounds);
}

static json_t *report_json(const BenchCall *call, const BenchAttention *bench) {
    json_t *object = json_object(), *array = json_array();
    json_object_set_new(object, "command", json_string("bench"));
    json_object_set_new(object, "benchmark", json_string("attention"));
    json_object_set_new(object, "model", json_make_text(call->setup.model.preset));
    json_object_set_new(object, "device", json_string(bench->backend.name));
    json_object_set_new(object, "dtype", json_string(precision_names[call->setup.bench.precision]));
    json_object_set_new(object, "batch", json_integer(bench->batch));
    json_object_set_new(object, "sequence", json_integer(bench->sequence));
    for (int i = 0; i < bench->n_times; i++) {
        const BenchAttentionTime *time = &bench->time[i];
        json_array_append_new(
            array, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "pattern", time->name, "tiles",
                             time->n_tiles, "lists_ms", time->lists_seconds * 1e3, "forward_ms",
                             time->forward_seconds * 1e3, "backward_ms", time->backward_seconds * 1e3,
                             "forward_of_dense_tile", bench_attention_tile(bench, i, false),
                             "backward_of_dense_tile", bench_attention_tile(bench, i, true)));
    }
    json_object_set_new(object, "times", array);
    return object;
}

Status bench_attention(BenchCall *call, Error *error) {
    const BenchSetup *setup = &call->setup;
    BenchAttention bench;
    char device[128];
    TRY_GOTO(bench_attention_measure(&bench, setup, call->patterns, call->document_length, error), done);
    printf("%lld x %lld positions, %lld heads of %d over %lld, %s; %s\n", (long long)bench.batch,
           (long long)bench.sequence, (long long)setup->model.n_heads, bench.head_size,
           (long long)setup->model.n_kv_heads, precision_names[setup->bench.precision],
           device_describe(&bench.backend, device, sizeof device));
    if (call->document_length)
        printf("documents of %lld tokens, but for the first line\n", (long long)call->document_length);
    printf("\n");
    print_times(&bench, setup->bench.n_runs);
    if (call->json) json_print(stdout, report_json(call, &bench), error);
done:
    bench_attention_close(&bench);
    return error->status;
}
