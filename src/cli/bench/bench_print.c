/* How the output of every benchmark begins. */
#include "base/text/format.h"
#include "cli/bench/bench.h"

#include <stdio.h>

void bench_print_model(const BenchSetup *setup, const ParameterTable *table, const Backend *backend) {
    const ModelConfig *model = &setup->model;
    char device[128];
    printf("model %s: %lld layers, %lld heads, %lld channels, vocabulary %lld, %s parameters; %s\n",
           model->preset, (long long)model->n_layers, (long long)model->n_heads, (long long)model->n_channels,
           (long long)model->vocabulary, format_count((double)table->n_elements).text,
           device_describe(backend, device, sizeof device));
}

json_t *bench_json(const char *which, const BenchSetup *setup, const ParameterTable *table, int n_threads) {
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("bench"));
    json_object_set_new(object, "benchmark", json_string(which));
    json_object_set_new(object, "model", json_make_text(setup->model.preset));
    json_object_set_new(object, "parameters", json_integer(table->n_elements));
    json_object_set_new(object, "threads", json_integer(n_threads));
    return object;
}
