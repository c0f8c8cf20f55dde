/* Training steps of a few shapes are run, and every instruction's time is a sample: of GEMMs by their
 * smallest dimension, of attention, of all else by arithmetic or by bytes. On a CPU by one thread, since
 * rates in a machine file are those of one core, and once more by all, to see what threads lose to each
 * other. */
#include "bench/machine.h"

#include "base/options/options_text.h"
#include "base/system/cores.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "bench/kernels.h"
#include "bench/limits.h"
#include "plan/speed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Samples */

enum { N_CLASSES = 16, SMALL_BYTES = 16384, N_STEPS = 6 /* that count: of an instruction, the best */ };

typedef struct {
    double work, seconds; /* sums */
} RateSum;

typedef struct {
    RateSum gemm[N_CLASSES]; /* by the logarithm of the smallest dimension */
    double gemm_log[N_CLASSES];
    RateSum attention[2], vector, memory, cache;
    double launch, launch_n;
    double cache_bytes;
    int n;
} Samples;

static double rate(const RateSum *sum) {
    return sum->seconds > 0.0 ? sum->work / sum->seconds : 0.0;
}

static void add(RateSum *sum, double work, double seconds) {
    sum->work += work;
    sum->seconds += seconds;
}

static void take_node(Samples *samples, const Node *node, double seconds) {
    Cost cost = op_cost(node);
    double M, N, K;
    if (node->op->is_portable || seconds <= 0.0) return;
    samples->n++;
    if (node_gemm(node, &M, &N, &K)) {
        double smallest = fmin(M, fmin(N, K));
        int class = (int)log2(fmax(smallest, 1.0));
        if (class >= N_CLASSES) class = N_CLASSES - 1;
        add(&samples->gemm[class], cost.flops, seconds);
        samples->gemm_log[class] += seconds * log(fmax(smallest, 1.0));
    } else if (strncmp(node->op->name, "attention", 9) == 0 && cost.flops > 0.0) {
        add(&samples->attention[strstr(node->op->name, "_backward") != NULL], cost.flops, seconds);
    } else if (cost.bytes < SMALL_BYTES) {
        samples->launch += seconds;
        samples->launch_n += 1.0;
    } else if (cost.flops > 0.8 * cost.bytes) add(&samples->vector, cost.flops, seconds);
    else add(cost.bytes > samples->cache_bytes ? &samples->memory : &samples->cache, cost.bytes, seconds);
}

/* ---- Steps */

typedef struct {
    int64_t layers, heads, channels, T, B, vocabulary;
} StepShape;

static Status run_shape(const BenchSetup *from, const StepShape *shape, int64_t n_threads, Samples *samples,
                        double *step_seconds, Error *error) {
    BenchSetup setup = *from;
    BenchTraining training;
    setup.model.n_layers = shape->layers;
    setup.model.n_heads = setup.model.n_kv_heads = shape->heads;
    setup.model.n_channels = shape->channels;
    setup.model.n_hidden = 4 * shape->channels;
    setup.model.context = shape->T;
    setup.model.vocabulary = shape->vocabulary;
    setup.bench.batch = shape->B;
    setup.bench.micro_batch = setup.bench.sequence = setup.bench.recompute = setup.bench.loss_chunk = 0;
    setup.bench.n_threads = n_threads;
    *step_seconds = INFINITY;
    Arena arena = {0};
    TRY_GOTO(bench_training_plan(&training, &setup, error), done);
    TRY_GOTO(bench_training_open(&training, error), done);
    Executor *executor = &training.step.executor;
    int n_nodes = training.step.graph->n_nodes;
    double *best = ARENA_ARRAY(&arena, double, n_nodes);
    for (int k = 0; k <= N_STEPS; k++) {
        StepResult result;
        executor_reset_times(executor);
        executor->times_instructions = training.backend.traits.is_asynchronous && k == N_STEPS;
        uint64_t start = timer_now_ns();
        TRY_GOTO(train_step_run(&training.step, &training.source, k, 3e-4, &result, error), done);
        if (k > 0 && !executor->times_instructions)
            *step_seconds = fmin(*step_seconds, timer_seconds_since(start));
        for (int i = 0; i < n_nodes && k > 0; i++) {
            const Instruction *instruction = &executor->instruction[i];
            double seconds = (double)instruction->elapsed_ns * 1e-9 / fmax(1.0, (double)instruction->n_runs);
            if (seconds > 0.0 && (best[i] <= 0.0 || seconds < best[i])) best[i] = seconds;
        }
    }
    for (int i = 0; i < n_nodes && samples; i++) take_node(samples, training.step.graph->node[i], best[i]);
done:
    bench_training_close(&training);
    arena_free(&arena);
    return error->status;
}

static const StepShape cpu_shapes[] = {
    {2, 4, 128, 128, 8, 512}, {1, 6, 384, 256, 4, 1024}, {1, 12, 768, 256, 2, 8192}, {1, 5, 40, 64, 16, 64}};
static const StepShape gpu_shapes[] = {{2, 6, 384, 256, 64, 1024},
                                       {2, 12, 768, 1024, 32, 50304},
                                       {1, 25, 1600, 1024, 16, 50304},
                                       {1, 32, 4096, 2048, 4, 50304}};

static Status run_shapes(MachineMeasure *measure, const BenchSetup *setup, bool is_gpu, Samples *samples,
                         Error *error) {
    double one = 0.0, all = 0.0, ignored;
    int n_cores = (int)measure->machine.host.n_cores;
    for (int i = 0; i < 4; i++) {
        const StepShape *shape = is_gpu ? &gpu_shapes[i] : &cpu_shapes[i];
        TRY(run_shape(setup, shape, is_gpu ? 0 : 1, samples, i == 1 ? &one : &ignored, error));
    }
    if (is_gpu || n_cores < 2) return STATUS_OK;
    TRY(run_shape(setup, &cpu_shapes[1], n_cores, NULL, &all, error));
    measure->machine.device.thread_efficiency = fmin(1.0, fmax(0.1, one / all / n_cores));
    return STATUS_OK;
}

/* ---- From samples to rates */

static void set_rates(MachineMeasure *measure, const Samples *samples, bool is_16) {
    MachineDevice *device = &measure->machine.device;
    double most = 0.0;
    size_t n = 0;
    for (int i = 0; i < N_CLASSES; i++) most = fmax(most, rate(&samples->gemm[i]));
    for (int i = 0; i < N_CLASSES; i++) {
        if (samples->gemm[i].seconds <= 0.0) continue;
        double smallest = exp(samples->gemm_log[i] / samples->gemm[i].seconds);
        n += (size_t)snprintf(measure->classes + n, sizeof measure->classes - n, "%s%.0f:%.3f", n ? " " : "",
                              smallest, rate(&samples->gemm[i]) / most);
    }
    device->gemm_classes = measure->classes;
    *(is_16 ? &device->tflops_16 : &device->tflops_32) = most * 1e-12;
    device->gemm_efficiency = device->memory_efficiency = 1.0;
    device->attention_forward = rate(&samples->attention[0]) / most;
    device->attention_backward = rate(&samples->attention[1]) / most;
    device->vector_tflops = rate(&samples->vector) * 1e-12;
    device->memory_gbs = rate(&samples->memory) * 1e-9;
    device->cache_gbs = rate(&samples->cache) * 1e-9;
    if (device->memory_gbs <= 0.0) device->memory_gbs = device->cache_gbs;
    device->launch_us = samples->launch_n > 0.0 ? samples->launch / samples->launch_n * 1e6 : 0.0;
}

/* ---- Links, bus, disk */

static double time_all_reduce(Comm *world, void *data, int64_t n, Error *error) {
    double best = INFINITY;
    for (int i = 0; i < 8 && error->status == STATUS_OK; i++) {
        comm_barrier(world, error);
        uint64_t start = timer_now_ns();
        comm_all_reduce(world, data, n, COMM_F32, COMM_SUM, error);
        best = fmin(best, timer_seconds_since(start));
    }
    return best;
}

/* Ranks of one host, all at once: each has its part of what carries them. */
static Status measure_links(MachineMeasure *measure, Comm *world, Error *error) {
    enum { LARGE = 4 << 20 };
    MachineHost *host = &measure->machine.host;
    size_t n_bytes = LARGE * sizeof(float);
    void *data;
    if (world->size == 1) {
        double bytes_per_s;
        TRY(bench_copy_bandwidth((size_t)64 << 20, 1, &bytes_per_s, error));
        host->inside_gbs = bytes_per_s * 0.25e-9; /* into a buffer and out of it, and added */
        host->inside_us = 10.0;
        host->inside_is_shared = measure->machine.host.n_cores > 0;
        return STATUS_OK;
    }
    TRY(memory_alloc(&data, n_bytes, "measuring messages", error));
    memset(data, 0, n_bytes);
    double small = time_all_reduce(world, data, 1, error), large = time_all_reduce(world, data, LARGE, error);
    memory_free(data, n_bytes);
    double N = world->size, part = 2.0 * (N - 1.0) / N * (double)n_bytes / fmax(large - small, 1e-9);
    host->inside_is_shared = true;
    host->inside_gbs = part * N * 1e-9;
    host->inside_us = small / (2.0 * (N - 1.0)) * 1e6;
    measure->has_links = true;
    return error->status;
}

static Status measure_bus(MachineMeasure *measure, const Backend *backend, Error *error) {
    size_t n_bytes = (size_t)256 << 20;
    void *host, *device = NULL;
    TRY(memory_alloc(&host, n_bytes, "measuring the bus", error));
    memset(host, 0, n_bytes);
    double best = INFINITY;
    if (backend->allocate(backend->context, n_bytes, "measuring the bus", &device, error) == STATUS_OK) {
        for (int i = 0; i < 4 && error->status == STATUS_OK; i++) {
            uint64_t start = timer_now_ns();
            backend->upload(backend->context, device, host, n_bytes, error);
            if (backend->synchronize) backend->synchronize(backend->context, error);
            best = fmin(best, timer_seconds_since(start));
        }
        backend->release(backend->context, device, n_bytes);
    }
    memory_free(host, n_bytes);
    measure->machine.host.bus_gbs = (double)n_bytes / best * 1e-9;
    return error->status;
}

static void measure_disk(MachineMeasure *measure, const char *folder) {
    enum { N_BYTES = 32 << 20 };
    char path[4096];
    snprintf(path, sizeof path, "%s/.pgpt-disk-XXXXXX", *folder ? folder : ".");
    int file = mkstemp(path);
    char *bytes = file >= 0 ? calloc(1, N_BYTES) : NULL;
    if (bytes) {
        uint64_t start = timer_now_ns();
        bool is_written = write(file, bytes, N_BYTES) == N_BYTES && fsync(file) == 0;
        if (is_written) measure->machine.host.disk_gbs = N_BYTES / timer_seconds_since(start) * 1e-9;
    }
    free(bytes);
    if (file >= 0) {
        close(file);
        unlink(path);
    }
}

/* ---- All of it */

static double cache_bytes(bool is_gpu) {
    long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (is_gpu) return (double)(32 << 20);
    return found > 0 ? (double)found / 2.0 : (double)(8 << 20);
}

static Status describe(MachineMeasure *measure, const BenchSetup *setup, Error *error) {
    Backend backend;
    Machine *machine = &measure->machine;
    TRY(bench_backend_open(&backend, &setup->bench, error));
    bool is_gpu = backend_has_own_memory(&backend);
    CoreSet cores = cores_possible(); /* a launcher may have bound this rank to one */
    char words[96];
    snprintf(measure->name, sizeof measure->name, "%s%s", is_gpu ? "" : "CPU, ",
             device_describe(&backend, words, sizeof words));
    const char *kind = strstr(backend.traits.kind, "H100")   ? "cuda:h100"
                       : strstr(backend.traits.kind, "A100") ? "cuda:a100"
                                                             : "cuda:h200";
    snprintf(measure->device, sizeof measure->device, "%s", is_gpu ? kind : "cpu");
    int n_cores = cores_count(&cores) > 0 ? cores_count(&cores) : backend.n_threads;
    double usable = (double)device_usable_bytes(&backend) / 1073741824.0;
    machine->host.n_cores = is_gpu ? 0 : n_cores;
    machine->host.n_devices = is_gpu ? 1 : n_cores;
    machine->device.memory_gib = is_gpu ? usable : usable / n_cores;
    if (is_gpu) measure_bus(measure, &backend, error);
    backend.close(backend.context);
    return error->status;
}

Status bench_machine_measure(MachineMeasure *measure, const BenchSetup *setup, Comm *world,
                             const char *folder, Error *error) {
    *measure = (MachineMeasure){0};
    Machine *machine = &measure->machine;
    machine->network = (MachineNetwork){.n_links = 1, .link_efficiency = 1.0, .n_hosts = 1, .step_us = 300.0};
    machine->device.thread_efficiency = 1.0;
    if (world->rank == 0) {
        TRY(describe(measure, setup, error));
        bool is_gpu = machine->host.n_cores == 0;
        Samples samples = {.cache_bytes = cache_bytes(is_gpu)};
        TRY(run_shapes(measure, setup, is_gpu, &samples, error));
        bool is_16 = precision_of((PrecisionKind)setup->bench.precision).weight != DTYPE_F32;
        set_rates(measure, &samples, is_16);
        measure->n_samples = samples.n;
        machine->device.cache_mib = samples.cache_bytes / 1048576.0;
        machine->device.name = measure->name;
        machine->device.source = "measured";
        machine->device.device = measure->device;
        machine->device.dtype = precision_names[setup->bench.precision];
        double bytes_per_s;
        if (!is_gpu) {
            TRY(bench_copy_bandwidth((size_t)256 << 20, (int)machine->host.n_cores, &bytes_per_s, error));
            machine->host.host_memory_gbs = bytes_per_s * 1e-9;
        }
        measure_disk(measure, folder);
    }
    TRY(comm_barrier(world, error));
    return measure_links(measure, world, error);
}

Status bench_machine_write(const MachineMeasure *measure, const char *path, Error *error) {
    char comment[200];
    snprintf(comment, sizeof comment, "Measured by 'pgpt bench machine': %d instructions%s.",
             measure->n_samples,
             measure->has_links
                 ? " and messages between ranks"
                 : "; what ranks of a host send each other is guessed, start it by mpirun to measure it");
    return machine_write(&measure->machine, comment, path, error);
}
