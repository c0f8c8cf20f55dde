/* The part that `bench step` and `bench ops` have in common: from checked options to a training step that is
 * ready to run, in the same order as a real run, so that memory and message are those of `pgpt train`. */
#include "cli/bench/bench.h"

#include "base/random.h"
#include "base/system/memory.h"
#include "base/text/format.h"
#include "device/device.h"
#include "plan/advice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BENCH_SEED = 1 };

/* Every token is drawn by its place in the run: the next one is its target, as in a text. */
static void fill_random(void *context, uint64_t first_sequence, int64_t B, int64_t T,
                        int32_t *tokens /* (B,T) */, int32_t *targets /* (B,T) */) {
    uint64_t vocabulary = (uint64_t) * (const int64_t *)context;
    RandomKey key = random_key(BENCH_SEED, RANDOM_DATA, 0);
    for (int64_t b = 0; b < B; b++) {
        for (int64_t t = 0; t <= T; t++) {
            RandomBlock block = random_block(key, first_sequence + (uint64_t)b, (uint64_t)t);
            int32_t token = (int32_t)(block.word[0] % vocabulary);
            if (t < T) tokens[b * T + t] = token;
            if (t > 0) targets[b * T + t - 1] = token;
        }
    }
}

Status bench_backend_open(Backend *backend, const BenchOptions *bench, Error *error) {
    DeviceOptions device = {.kind = bench->device,
                            .n_threads = (int)bench->n_threads,
                            .precision = (PrecisionKind)bench->precision,
                            .any_order = bench->any_order,
                            .n_streams = (int)bench->n_streams};
    return device_backend_open(backend, &device, error);
}

static StepOptions step_options(const BenchOptions *bench) {
    return (StepOptions){.batch = bench->batch,
                         .micro_batch = bench->micro_batch,
                         .T = bench->sequence,
                         .recompute = bench->recompute,
                         .loss_chunk = bench->loss_chunk,
                         .precision = precision_of((PrecisionKind)bench->precision),
                         .seed = BENCH_SEED};
}

static Status complete_sizes(BenchValues *values, Error *error) {
    BenchOptions *bench = &values->bench;
    StepOptions step = step_options(bench);
    TRY(step_options_complete(&step, values->model.context, error));
    bench->micro_batch = step.micro_batch;
    bench->sequence = step.T;
    return optimizer_check(&values->optimizer, step.precision, bench->batch / bench->micro_batch, error);
}

/* ---- is there enough memory? */

typedef struct {
    const BenchTraining *training;
    const BenchValues *values;
} Planner;

static Status plan_choice(void *context, const MemoryChoice *choice, uint64_t *n_bytes, Error *error) {
    const Planner *planner = context;
    BenchOptions bench = planner->values->bench;
    bench.batch = choice->batch;
    bench.micro_batch = choice->micro_batch;
    bench.recompute = choice->recompute;
    bench.precision = choice->precision;
    StepOptions options = step_options(&bench);
    TrainStep step;
    TRY(train_step_plan(&step, &planner->values->model, &planner->training->table, &options,
                        &planner->values->optimizer, &planner->training->backend, error));
    *n_bytes = plan_total_bytes(&step.program.plan);
    train_step_close(&step);
    return STATUS_OK;
}

static uint64_t state_of_choice(void *context, const MemoryChoice *choice) {
    const Planner *planner = context;
    return memory_state_bytes(&(GradientSyncOptions){0}, choice, &planner->values->optimizer,
                              &planner->training->table);
}

static Status check_memory(const BenchTraining *training, const BenchValues *values, Error *error) {
    const BenchOptions *bench = &values->bench;
    const Backend *backend = &training->backend;
    MemoryQuestion question = {.present = {.batch = bench->batch,
                                           .micro_batch = bench->micro_batch,
                                           .recompute = bench->recompute,
                                           .precision = bench->precision},
                               .needed = device_required_bytes(&training->memory),
                               .usable = device_usable_bytes(backend),
                               .is_gpu = backend_has_own_memory(backend),
                               .has_one_micro_batch = values->optimizer.eager,
                               .plan = plan_choice,
                               .state = state_of_choice,
                               .context = &(Planner){training, values}};
    if (question.needed <= question.usable) return STATUS_OK;
    MemoryAdvice advice = memory_advise(&question);
    char text[512];
    return device_check_memory(backend, question.needed, "this training step",
                               memory_advice_text(&question, &advice, text, sizeof text), error);
}

static Status plan(BenchTraining *training, BenchValues *values, Error *error) {
    const OptimizerOptions *optimizer = &values->optimizer;
    TRY(bench_backend_open(&training->backend, &values->bench, error));
    training->has_backend = true;
    TRY(parameters_build(&training->table, &values->model, error));
    StepOptions options = step_options(&values->bench);
    TRY(train_step_plan(&training->step, &values->model, &training->table, &options, optimizer,
                        &training->backend, error));
    training->has_step = true;
    device_require(&training->memory, &training->step.program.plan);
    return check_memory(training, values, error);
}

static Status initialise(BenchTraining *training, Error *error) {
    size_t n_bytes = (size_t)training->table.n_flat_elements * sizeof(float);
    void *host;
    TRY(memory_alloc(&host, n_bytes, "initial weights", error));
    parameters_initialise(&training->table, BENCH_SEED, host, training->backend.n_threads);
    train_step_upload(&training->step, 0, training->table.n_flat_elements, host, error);
    memory_free(host, n_bytes);
    return error->status;
}

Status bench_training_plan(BenchTraining *training, BenchValues *values, Error *error) {
    *training = (BenchTraining){.vocabulary = values->model.vocabulary};
    training->source = (BatchSource){fill_random, &training->vocabulary};
    TRY(complete_sizes(values, error));
    return plan(training, values, error);
}

Status bench_training_open(BenchTraining *training, Error *error) {
    TRY(device_open(&training->memory, &training->backend, error));
    TRY(train_step_open(&training->step, &training->memory, error));
    return initialise(training, error);
}

void bench_training_close(BenchTraining *training) {
    if (training->has_step) train_step_close(&training->step);
    device_close(&training->memory);
    parameters_free(&training->table);
    if (training->has_backend) training->backend.close(training->backend.context);
    *training = (BenchTraining){0};
}

/* ---- what the outputs share */

void bench_print_model(const BenchValues *values, const ParameterTable *table, const Backend *backend) {
    const ModelConfig *model = &values->model;
    char device[128];
    printf("model %s: %lld layers, %lld heads, %lld channels, vocabulary %lld, %s parameters; %s\n",
           model->preset, (long long)model->n_layers, (long long)model->n_heads, (long long)model->n_channels,
           (long long)model->vocabulary, format_count((double)table->n_elements).text,
           device_describe(backend, device, sizeof device));
}

json_t *bench_json(const char *which, const BenchValues *values, const ParameterTable *table, int n_threads) {
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("bench"));
    json_object_set_new(object, "benchmark", json_string(which));
    json_object_set_new(object, "model", json_make_text(values->model.preset));
    json_object_set_new(object, "parameters", json_integer(table->n_elements));
    json_object_set_new(object, "threads", json_integer(n_threads));
    return object;
}

Status bench_print_json(json_t *object, Error *error) {
    json_line_write(stdout, object, JSON_DIGITS_FLOAT, error);
    json_decref(object);
    return error->status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_median(double *values, int64_t count) {
    if (count < 1) return NAN;
    qsort(values, (size_t)count, sizeof *values, by_value);
    return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}
