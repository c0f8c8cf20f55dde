/* Steps of a few shapes, small and large, narrow and wide, with dropout and without: between them lies most
 * of what is trained. On a CPU instructions are timed where they are, in steps that follow each other, and
 * the middle one of several counts, since that is what a step is made of. A GPU's are repeated between two
 * events (bench/ops.h), and whole steps tell what that leaves out: how warm the device gets, gaps between
 * instructions. */
#include "bench/machine_samples.h"

#include "base/system/timer.h"
#include "bench/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_STEPS = 5, N_WARM = 1, N_ROUNDS = 4 };
static const double most_seconds = 120.0; /* of all shapes of a GPU: those that are left are left out */

typedef struct {
    int64_t layers, heads, channels, T, B, vocabulary;
    double dropout;
    int64_t n_experts, micro_batch; /* 0: the whole batch */
} StepShape;

/* Those of several micro-batches have few rows, and add their weights' gradients up. Narrow ones have several
 * layers: what a step touches is then more than caches hold, as in what is trained. With one layer tensors
 * stay there, and GEMMs come out 5 to 10 % fast. */
static const StepShape cpu_shapes[] = {
    {4, 4, 128, 128, 8, 512, 0.0, 0, 0},  {1, 6, 384, 256, 8, 1024, 0.0, 0, 0},
    {2, 6, 384, 256, 1, 64, 0.1, 0, 0},   {1, 12, 768, 256, 2, 8192, 0.0, 0, 0},
    {2, 4, 256, 512, 2, 256, 0.1, 0, 0},  {2, 5, 40, 64, 16, 64, 0.0, 0, 0},
    {2, 8, 512, 64, 4, 2048, 0.0, 0, 0},  {1, 12, 768, 128, 1, 50257, 0.0, 0, 0},
    {6, 4, 128, 64, 4, 64, 0.0, 0, 1},    {5, 4, 240, 128, 4, 512, 0.0, 0, 1},
    {2, 8, 512, 64, 4, 512, 0.1, 0, 1},   {3, 6, 288, 256, 3, 1024, 0.0, 0, 1},
    {1, 12, 768, 128, 4, 512, 0.0, 0, 1}, {4, 4, 200, 128, 4, 512, 0.0, 0, 0}};
/* The usual ones first. */
static const StepShape gpu_shapes[] = {
    {2, 12, 768, 1024, 32, 50304, 0.0, 0, 0}, {2, 6, 384, 256, 64, 1024, 0.0, 0, 0},
    {1, 25, 1600, 1024, 8, 50304, 0.0, 0, 0}, {1, 16, 2048, 2048, 4, 32000, 0.0, 0, 0},
    {1, 16, 1024, 512, 32, 50304, 0.0, 0, 0}, {1, 12, 768, 8192, 2, 50304, 0.0, 0, 0},
    {1, 32, 4096, 1024, 4, 50304, 0.0, 0, 0}, {1, 12, 768, 1024, 16, 50304, 0.1, 0, 0},
    {1, 10, 1280, 1024, 8, 50304, 0.0, 0, 0}, {1, 12, 768, 1024, 16, 50304, 0.0, 8, 0},
    {1, 12, 768, 256, 16, 8192, 0.0, 0, 0},   {1, 12, 768, 4096, 8, 50304, 0.0, 0, 0},
    {1, 16, 1024, 1024, 4, 50304, 0.0, 0, 0}};

static Status set_shape(BenchSetup *setup, const StepShape *shape, int64_t n_threads, Error *error) {
    ModelConfig *model = &setup->model;
    BenchOptions *bench = &setup->bench;
    model->n_layers = shape->layers;
    model->n_heads = model->n_kv_heads = shape->heads;
    model->n_channels = shape->channels;
    model->n_hidden = 4 * shape->channels;
    model->context = shape->T;
    model->vocabulary = shape->vocabulary;
    model->dropout = shape->dropout;
    model->n_experts = shape->n_experts;
    model->n_chosen = model->expert_hidden = 0; /* as usual */
    setup->optimizer.clip = 1.0; /* as training has it: the norm of the gradient is an instruction, too */
    bench->batch = shape->B;
    bench->micro_batch = shape->micro_batch;
    bench->sequence = bench->recompute = bench->recompute_blocks = bench->loss_chunk = 0;
    bench->n_threads = n_threads;
    return config_complete(model, model->vocabulary, error);
}

/* ---- Samples */

static bool is_same(const SampleKey *a, const SampleKey *b) {
    if (strcmp(a->name, b->name) != 0 || a->n_sizes != b->n_sizes) return false;
    for (int i = 0; i < a->n_sizes; i++)
        if (fabs(a->size[i] - b->size[i]) > 1e-6 * a->size[i]) return false;
    return true;
}

/* So many times so long; adds: to the gradients of micro-batches before. */
static void take_node(MachineSamples *samples, const Node *node, bool adds, double seconds, double n) {
    SampleKey key = sample_key(node, node_adds(node, adds));
    Cost cost = op_cost(node);
    if (node->op->is_portable || seconds <= 0.0 || key.work <= 0.0 || n <= 0.0) return;
    int i = 0;
    while (i < samples->n && !is_same(&samples->sample[i].key, &key)) i++;
    if (i == samples->n) {
        if (samples->n == samples->room) {
            int room = samples->room ? 2 * samples->room : 64;
            MachineSample *grown = ARENA_ARRAY(&samples->arena, MachineSample, room);
            if (samples->n) memcpy(grown, samples->sample, (size_t)samples->n * sizeof *grown);
            samples->sample = grown;
            samples->room = room;
        }
        key.name = arena_strdup(&samples->arena, key.name);
        samples->sample[samples->n++] = (MachineSample){.key = key, .bytes = cost.bytes, .flops = cost.flops};
    }
    samples->sample[i].seconds += n * seconds;
    samples->sample[i].n += n;
}

static void take_step(MachineSamples *samples, double step, double instructions) {
    samples->step += step;
    samples->instructions += instructions;
    samples->n_shapes++;
    double host = fmax(step - instructions, 0.0);
    samples->host = samples->n_shapes == 1 ? host : fmin(samples->host, host);
}

/* ---- Steps */

static Status on_device(MachineSamples *samples, BenchSetup *setup, Error *error) {
    BenchOps ops;
    double step = 0.0;
    if (bench_ops_measure_step(&ops, setup, N_STEPS, &step, error) == STATUS_OK) {
        for (int i = 0; i < ops.n_times; i++)
            take_node(samples, ops.time[i].node, false, ops.time[i].seconds, ops.time[i].runs_per_step);
        take_step(samples, step, ops.seconds);
    }
    bench_ops_close(&ops);
    return error->status;
}

static Status on_host(MachineSamples *samples, BenchSetup *setup, Comm *together, Error *error) {
    BenchTraining training = {0};
    Arena arena = {0};
    double steps[N_STEPS], instructions = 0.0;
    if (bench_training_plan(&training, setup, error) == STATUS_OK) bench_training_open(&training, error);
    if (together) comm_agree(together, error);
    TRY_GOTO(error->status, done);
    const Executor *executor = &training.step.executor;
    const Graph *graph = training.step.graph;
    double *seconds = ARENA_ARRAY(&arena, double, (graph->n_nodes + 1) * N_STEPS);
    for (int k = -N_WARM; k < N_STEPS; k++) {
        StepResult result;
        executor_reset_times(&training.step.executor);
        uint64_t start = timer_now_ns();
        TRY_GOTO(train_step_run(&training.step, &training.source, k + N_WARM, 3e-4, &result, error), done);
        if (k < 0) continue;
        steps[k] = timer_seconds_since(start);
        for (int i = 0; i < graph->n_nodes; i++)
            seconds[i * N_STEPS + k] = (double)executor->instruction[i].elapsed_ns * 1e-9;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        double median = bench_median(&seconds[i * N_STEPS], N_STEPS);
        double n_runs = (double)executor->instruction[i].n_runs; /* of the last step, as of each */
        if (n_runs > 0.0) take_node(samples, graph->node[i], n_runs > 1.0, median / n_runs, n_runs);
        instructions += median;
    }
    take_step(samples, bench_median(steps, N_STEPS), instructions);
done:
    arena_free(&arena);
    bench_training_close(&training);
    return error->status;
}

static Status once_on_host(MachineSamples *samples, const BenchSetup *setup, int64_t n_threads,
                           Comm *together, Error *error) {
    for (size_t i = 0; i < sizeof cpu_shapes / sizeof cpu_shapes[0]; i++) {
        BenchSetup one = *setup;
        TRY(set_shape(&one, &cpu_shapes[i], n_threads, error));
        TRY(on_host(samples, &one, together, error));
    }
    return STATUS_OK;
}

void machine_samples_middle(const MachineSamples *rounds, int n_rounds, MachineSamples *samples) {
    Arena *arena = &samples->arena;
    double *values = ARENA_ARRAY(arena, double, n_rounds + 1);
    samples->n_shapes = rounds[0].n_shapes;
    samples->host = rounds[0].host;
    for (int k = 0; k < n_rounds; k++) {
        values[k] = rounds[k].step;
        samples->host = fmin(samples->host, rounds[k].host);
    }
    samples->step = bench_median(values, n_rounds);
    samples->sample = ARENA_ARRAY(arena, MachineSample, rounds[0].n + 1);
    for (int i = 0; i < rounds[0].n; i++) {
        MachineSample sample = rounds[0].sample[i];
        int n = 0;
        for (int k = 0; k < n_rounds; k++) {
            const MachineSample *other = i < rounds[k].n ? &rounds[k].sample[i] : NULL;
            if (other && is_same(&other->key, &sample.key)) values[n++] = other->seconds / other->n;
        }
        sample.seconds = sample.n * bench_median(values, n);
        sample.key.name = arena_strdup(arena, sample.key.name);
        samples->instructions += sample.seconds;
        samples->sample[samples->n++] = sample;
    }
    samples->room = samples->n;
}

/* Again and again: what slows a machine down for a while is in one round of a shape, which does not count. */
static Status all_on_host(MachineSamples *samples, const BenchSetup *setup, int64_t n_threads, Comm *together,
                          Error *error) {
    MachineSamples rounds[N_ROUNDS] = {0};
    for (int k = 0; k < N_ROUNDS && error->status == STATUS_OK; k++)
        once_on_host(&rounds[k], setup, n_threads, together, error);
    if (error->status == STATUS_OK) machine_samples_middle(rounds, N_ROUNDS, samples);
    for (int k = 0; k < N_ROUNDS; k++) machine_samples_free(&rounds[k]);
    return error->status;
}

static Status all_on_device(MachineSamples *samples, const BenchSetup *setup, Error *error) {
    int n = sizeof gpu_shapes / sizeof gpu_shapes[0];
    uint64_t start = timer_now_ns();
    for (int i = 0; i < n; i++) {
        BenchSetup one = *setup;
        Error own = {0};
        TRY(set_shape(&one, &gpu_shapes[i], 0, error));
        if (samples->n_shapes && timer_seconds_since(start) > most_seconds) {
            samples->n_left_out += n - i;
            break;
        }
        if (on_device(samples, &one, &own) == STATUS_OK) continue;
        if (own.status != STATUS_USER || !samples->n_shapes) return *error = own, own.status;
        samples->n_left_out++; /* a device too small for it */
    }
    return STATUS_OK;
}

Status machine_samples_take(MachineSamples *samples, const BenchSetup *setup, int64_t n_threads,
                            Comm *together, Error *error) {
    if (n_threads == 0) return all_on_device(samples, setup, error);
    return all_on_host(samples, setup, n_threads, together, error);
}

static void run_steps(BenchTraining *training, int n, Error *error) {
    StepResult result;
    for (int k = 0; k < n && error->status == STATUS_OK; k++)
        train_step_run(&training->step, &training->source, k, 3e-4, &result, error);
}

/* Ranks that take turns do so in the middle of a step, so it is all of them that are timed, from where they
 * meet until they meet again. */
static Status time_steps(BenchTraining *training, Comm *together, double *seconds, Error *error) {
    enum { N_AT_ONCE = 4 };
    double tries[N_ROUNDS];
    for (int i = 0; i < N_ROUNDS; i++) {
        run_steps(training, 1, error);
        TRY(comm_agree(together, error));
        uint64_t start = timer_now_ns();
        run_steps(training, N_AT_ONCE, error);
        TRY(comm_agree(together, error));
        tries[i] = timer_seconds_since(start) / N_AT_ONCE;
    }
    *seconds += bench_median(tries, N_ROUNDS);
    return STATUS_OK;
}

/* Narrow and wide, of large micro-batches and of small ones. */
Status machine_steps_take(const BenchSetup *setup, Comm *together, double *seconds, Error *error) {
    static const int shapes[] = {0, 1, 9};
    *seconds = 0.0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        BenchSetup one = *setup;
        BenchTraining training = {0};
        TRY(set_shape(&one, &cpu_shapes[shapes[i]], 1, error));
        if (bench_training_plan(&training, &one, error) == STATUS_OK) bench_training_open(&training, error);
        comm_agree(together, error);
        if (error->status == STATUS_OK) time_steps(&training, together, seconds, error);
        bench_training_close(&training);
        TRY(error->status);
    }
    return STATUS_OK;
}

void machine_samples_free(MachineSamples *samples) {
    arena_free(&samples->arena);
    *samples = (MachineSamples){0};
}

const char *machine_samples_text(const MachineSamples *samples, double factor, Arena *arena) {
    const char *text = "";
    for (int i = 0; i < samples->n; i++) {
        const MachineSample *sample = &samples->sample[i];
        text = samples_add(text, &sample->key, sample->seconds / sample->n / factor, arena);
    }
    return text;
}
