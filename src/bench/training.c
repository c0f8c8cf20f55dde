/* The part that `bench step` and `bench ops` have in common: from checked options to a training step that is
 * ready to run, in the same order as a real run, so that memory and message are those of `pgpt train`. */
#include "bench/training.h"

#include "base/random.h"
#include "plan/step_memory.h"

#include <math.h>
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
                         .recompute_blocks = bench->recompute_blocks,
                         .loss_chunk = bench->loss_chunk,
                         .precision = precision_of((PrecisionKind)bench->precision),
                         .seed = BENCH_SEED};
}

static Status complete_sizes(BenchSetup *setup, Error *error) {
    BenchOptions *bench = &setup->bench;
    StepOptions step = step_options(bench);
    if (bench->recompute > 0 && bench->recompute_blocks)
        return error_user(
            error,
            "--recompute %lld recomputes all blocks, and --recompute-blocks %lld the first ones; leave "
            "one out",
            (long long)bench->recompute, (long long)bench->recompute_blocks);
    TRY(step_options_complete(&step, setup->model.context, error));
    bench->micro_batch = step.micro_batch;
    bench->sequence = step.T;
    return optimizer_check(&setup->optimizer, step.precision, bench->batch / bench->micro_batch, error);
}

static Status plan(BenchTraining *training, BenchSetup *setup, Error *error) {
    const OptimizerOptions *optimizer = &setup->optimizer;
    TRY(bench_backend_open(&training->backend, &setup->bench, error));
    training->has_backend = true;
    TRY(parameters_build(&training->table, &setup->model, error));
    StepOptions options = step_options(&setup->bench);
    TRY(offload_parse(&setup->offload, &options.offload, error));
    if (options.offload.automatic)
        return error_user(error,
                          "--offload auto is of pgpt train; say what to offload, and how much of it stays");
    TRY(offload_check(&options.offload, &training->backend.traits, false, error));
    TRY(train_step_plan(&training->step, &setup->model, &training->table, &options, optimizer,
                        &training->backend, error));
    training->has_step = true;
    device_require(&training->memory, &training->step.program.plan);
    StepMemory question = {.step = &training->step,
                           .model = &setup->model,
                           .table = &training->table,
                           .precision = (PrecisionKind)setup->bench.precision,
                           .backend = &training->backend};
    return step_memory_check(&question, error);
}

Status bench_training_plan(BenchTraining *training, BenchSetup *setup, Error *error) {
    *training = (BenchTraining){.vocabulary = setup->model.vocabulary,
                                .one_expert = setup->bench.one_expert ? setup->model.n_experts : 0};
    training->source = (BatchSource){fill_random, &training->vocabulary};
    TRY(complete_sizes(setup, error));
    return plan(training, setup, error);
}

/* Of routers whose choices go by a bias, too: one that nothing else outweighs. */
static Status prefer_one_expert(BenchTraining *training, Error *error) {
    const ParameterTable *table = &training->table;
    int64_t n = parameters_n_router_biases(table), n_experts = training->one_expert;
    Arena arena = {0};
    float *bias = ARENA_ARRAY(&arena, float, n);
    for (int64_t i = 0; i < n; i++) bias[i] = i % n_experts ? 0.0f : 1e3f;
    train_step_take(&training->step, &table->router_bias, bias, error);
    arena_free(&arena);
    return error->status;
}

Status bench_training_open(BenchTraining *training, Error *error) {
    TRY(device_open(&training->memory, &training->backend, error));
    TRY(train_step_open(&training->step, &training->memory, error));
    TRY(train_step_initialise(&training->step, &training->table, BENCH_SEED,
                              backend_host_threads(&training->backend), error));
    return training->one_expert ? prefer_one_expert(training, error) : STATUS_OK;
}

void bench_training_close(BenchTraining *training) {
    if (training->has_step) train_step_close(&training->step);
    device_close(&training->memory);
    parameters_free(&training->table);
    if (training->has_backend) training->backend.close(training->backend.context);
    *training = (BenchTraining){0};
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
