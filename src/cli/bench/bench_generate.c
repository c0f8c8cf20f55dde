/* pgpt bench generate: what was measured of decoding (bench/generate.h), in words. */
#include "bench/generate.h"

#include "base/system/memory.h"
#include "base/text/format.h"
#include "cli/bench/bench.h"

#include <stdio.h>

/* How much slower the last quarter is than the first, attention left out. */
static double growth_without_attention(const BenchGenerateReport *report) {
    return (report->quarter_ms[BENCH_N_QUARTERS - 1] - report->attention_ms[BENCH_N_QUARTERS - 1]) /
           (report->quarter_ms[0] - report->attention_ms[0]);
}

static void print_report(const BenchGeneration *bench, const BenchSetup *setup,
                         const BenchGenerateReport *report) {
    const BenchOptions *options = &setup->bench;
    const int last = BENCH_N_QUARTERS - 1;
    bench_print_model(setup, &bench->table, &bench->backend);
    printf("%lld tokens after a prompt of one, %lld text%s at once, context %lld\n\n",
           (long long)options->n_tokens, (long long)options->n_samples, options->n_samples == 1 ? "" : "s",
           (long long)setup->model.context);
    printf("tokens/s      %.1f median, %.1f best of %lld runs\n", report->tokens_per_s,
           report->best_tokens_per_s, (long long)options->n_runs);
    if (bench->backend.traits.is_asynchronous) {
        printf("likeliest     %.1f tokens/s where it is always the likeliest token that is taken\n",
               report->greedy_tokens_per_s);
        printf("a position    %.4f ms in the first quarter, %.4f ms in the last\n", report->quarter_ms[0],
               report->quarter_ms[last]);
        printf("weights       %s read for a position: %s, %.1f %% of %s\n"
               "              (the limit is a copy of half a GiB, bytes read and written, in this run)\n",
               format_bytes((uint64_t)report->weight_bytes).text,
               format_rate(report->read_bytes_per_s, "B/s").text,
               100.0 * report->read_bytes_per_s / report->limit_bytes_per_s,
               format_rate(report->limit_bytes_per_s, "B/s").text);
        printf("memory        %s allocated\n", format_bytes(bench->generator.memory.allocated_bytes).text);
        return;
    }
    printf(
        "a position    %.3f ms in the first quarter (attention %.3f), %.3f ms in the last (attention %.3f)\n",
        report->quarter_ms[0], report->attention_ms[0], report->quarter_ms[last], report->attention_ms[last]);
    printf("              last / first: %.2f; without attention: %.2f\n",
           report->quarter_ms[last] / report->quarter_ms[0], growth_without_attention(report));
    printf("weights       %s read for a position: %s, %.1f %% of %s\n",
           format_bytes((uint64_t)report->weight_bytes).text,
           format_rate(report->read_bytes_per_s, "B/s").text,
           100.0 * report->read_bytes_per_s / report->limit_bytes_per_s,
           format_rate(report->limit_bytes_per_s, "B/s").text);
    printf(
        "              (the limit is a loop that only reads as many bytes on the same threads, in this run)\n");
    printf("memory        %s allocated; resident peak of the process %s\n",
           format_bytes(bench->generator.memory.allocated_bytes).text,
           format_bytes(memory_resident_peak_bytes()).text);
}

static json_t *report_json(const BenchGeneration *bench, const BenchSetup *setup,
                           const BenchGenerateReport *report) {
    json_t *object = bench_json("generate", setup, &bench->table, bench->backend.n_threads);
    const int last = BENCH_N_QUARTERS - 1;
    json_object_set_new(object, "samples", json_integer(setup->bench.n_samples));
    json_object_set_new(object, "tokens", json_integer(setup->bench.n_tokens));
    json_object_set_new(object, "seconds", json_make_number(report->seconds));
    json_object_set_new(object, "tokens_per_s", json_make_number(report->tokens_per_s));
    json_object_set_new(object, "tokens_per_s_best", json_make_number(report->best_tokens_per_s));
    json_object_set_new(object, "greedy_tokens_per_s", json_make_number(report->greedy_tokens_per_s));
    json_object_set_new(object, "first_quarter_ms", json_make_number(report->quarter_ms[0]));
    json_object_set_new(object, "last_quarter_ms", json_make_number(report->quarter_ms[last]));
    json_object_set_new(object, "first_quarter_attention_ms", json_make_number(report->attention_ms[0]));
    json_object_set_new(object, "last_quarter_attention_ms", json_make_number(report->attention_ms[last]));
    json_object_set_new(object, "growth_without_attention",
                        json_make_number(growth_without_attention(report)));
    json_object_set_new(object, "weight_bytes", json_make_number(report->weight_bytes));
    json_object_set_new(object, "bytes_per_s", json_make_number(report->read_bytes_per_s));
    json_object_set_new(object, "limit_bytes_per_s", json_make_number(report->limit_bytes_per_s));
    json_object_set_new(object, "peak_bytes",
                        json_integer((json_int_t)bench->generator.memory.allocated_bytes));
    json_object_set_new(object, "resident_bytes", json_integer((json_int_t)memory_resident_peak_bytes()));
    return object;
}

Status bench_generate(BenchCall *call, Error *error) {
    const BenchSetup *setup = &call->setup;
    BenchGeneration bench;
    BenchGenerateReport report = {0};
    TRY_GOTO(bench_generate_open(&bench, setup, error), done);
    TRY_GOTO(bench_generate_measure(&bench, &setup->bench, &report, error), done);
    print_report(&bench, setup, &report);
    if (call->json) json_print(stdout, report_json(&bench, setup, &report), error);
done:
    bench_generate_close(&bench);
    return error->status;
}
