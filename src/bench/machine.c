/* Instructions are measured in training steps (machine_samples.h), and from their times come the samples that
 * a plan goes by, and the rates for what no sample is like. A CPU's are measured by one thread, by a thread
 * on every core, and, where there are several ranks, by all of them at the same time: what they lose is what
 * a busy machine costs. */
#include "bench/machine.h"

#include "base/system/cores.h"
#include "base/system/memory.h"
#include "bench/limits.h"
#include "bench/machine_links.h"
#include "bench/machine_samples.h"
#include "bench/message_samples.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Rates for what was not measured */

enum { N_CLASSES = 16, SMALL_BYTES = 16384 };

typedef struct {
    double work, seconds; /* sums */
} RateSum;

typedef struct {
    RateSum gemm[N_CLASSES]; /* by the logarithm of the smallest dimension */
    double gemm_log[N_CLASSES];
    RateSum attention[2], vector, memory, cache;
    double launch; /* seconds of the shortest instruction */
} Rates;

static double rate(const RateSum *sum) {
    return sum->seconds > 0.0 ? sum->work / sum->seconds : 0.0;
}

static void add(RateSum *sum, double work, double seconds) {
    sum->work += work;
    sum->seconds += seconds;
}

static void take_sample(Rates *rates, const MachineSample *sample, double cache_bytes) {
    const SampleKey *key = &sample->key;
    double seconds = sample->seconds, n = sample->n;
    bool is_attention = strncmp(key->name, "attention", 9) == 0;
    rates->launch = fmin(rates->launch, seconds / n);
    if (key->n_sizes == 3 && !is_attention) {
        double smallest = fmin(key->size[0], fmin(key->size[1], key->size[2]));
        int class = (int)log2(fmax(smallest, 1.0));
        if (class >= N_CLASSES) class = N_CLASSES - 1;
        add(&rates->gemm[class], n * sample->flops, seconds);
        rates->gemm_log[class] += seconds * log(fmax(smallest, 1.0));
    } else if (is_attention && key->n_sizes == 3)
        add(&rates->attention[strstr(key->name, "_backward") != NULL], n * sample->flops, seconds);
    else if (sample->bytes < SMALL_BYTES) return;
    else if (sample->flops > 0.8 * sample->bytes) add(&rates->vector, n * sample->flops, seconds);
    else add(sample->bytes > cache_bytes ? &rates->memory : &rates->cache, n * sample->bytes, seconds);
}

static void set_rates(MachineMeasure *measure, const MachineSamples *samples, bool is_16) {
    MachineDevice *device = &measure->machine.device;
    Rates rates = {.launch = INFINITY};
    double most = 0.0;
    size_t n = 0;
    for (int i = 0; i < samples->n; i++)
        take_sample(&rates, &samples->sample[i], device->cache_mib * 1048576.0);
    for (int i = 0; i < N_CLASSES; i++) most = fmax(most, rate(&rates.gemm[i]));
    for (int i = 0, n_classes = 0; i < N_CLASSES && n_classes < MACHINE_MOST_CLASSES; i++) {
        if (rates.gemm[i].seconds <= 0.0) continue;
        n_classes++;
        double smallest = exp(rates.gemm_log[i] / rates.gemm[i].seconds);
        n += (size_t)snprintf(measure->classes + n, sizeof measure->classes - n, "%s%.0f:%.3f", n ? " " : "",
                              smallest, rate(&rates.gemm[i]) / most);
    }
    device->gemm_classes = measure->classes;
    *(is_16 ? &device->tflops_16 : &device->tflops_32) = most * 1e-12;
    device->gemm_efficiency = device->memory_efficiency = 1.0;
    device->attention_forward = rate(&rates.attention[0]) / most;
    device->attention_backward = rate(&rates.attention[1]) / most;
    device->vector_tflops = rate(&rates.vector) * 1e-12;
    device->memory_gbs = rate(&rates.memory) * 1e-9;
    device->cache_gbs = rate(&rates.cache) * 1e-9;
    if (device->memory_gbs <= 0.0) device->memory_gbs = device->cache_gbs;
    device->launch_us = isfinite(rates.launch) ? rates.launch * 1e6 : 0.0;
}

/* ---- Instructions */

/* What steps take beyond the sum of their instructions; far from 1 it is not believed. */
static double beyond_instructions(const MachineSamples *samples) {
    double part = samples->instructions > 0.0 ? samples->step / samples->instructions : 1.0;
    return fmin(fmax(part, 0.7), 1.5);
}

static Status measure_gpu(MachineMeasure *measure, const BenchSetup *setup, Error *error) {
    MachineSamples samples = {0};
    bool is_16 = precision_of((PrecisionKind)setup->bench.precision).weight != DTYPE_F32;
    if (machine_samples_take(&samples, setup, 0, NULL, error) == STATUS_OK) {
        measure->beyond = beyond_instructions(&samples);
        measure->n_samples = samples.n;
        measure->n_left_out = samples.n_left_out;
        set_rates(measure, &samples, is_16);
        measure->machine.device.samples =
            machine_samples_text(&samples, 1.0 / measure->beyond, &measure->arena);
        measure->machine.network.step_us = fmin(fmax(samples.host * 1e6, 20.0), 2000.0);
    }
    machine_samples_free(&samples);
    return error->status;
}

static Status measure_cpu(MachineMeasure *measure, const BenchSetup *setup, MachineSamples *one,
                          Error *error) {
    Machine *machine = &measure->machine;
    int64_t n_cores = machine->host.n_cores;
    bool is_16 = precision_of((PrecisionKind)setup->bench.precision).weight != DTYPE_F32;
    MachineSamples all = {0};
    TRY(machine_samples_take(one, setup, 1, NULL, error));
    measure->beyond = beyond_instructions(one);
    measure->n_samples = one->n;
    set_rates(measure, one, is_16);
    machine->device.samples = machine_samples_text(one, 1.0, &measure->arena);
    machine->network.step_us = fmin(fmax(one->host * 1e6, 20.0), 2000.0);
    if (measure->is_bound)
        measure->machine.device.thread_efficiency = 0.9; /* a guess: threads cannot be tried */
    else if (n_cores > 1 && machine_samples_take(&all, setup, n_cores, NULL, error) == STATUS_OK) {
        machine->device.all_thread_samples = machine_samples_text(&all, 1.0, &measure->arena);
        double part = one->instructions / all.instructions / (double)n_cores;
        machine->device.thread_efficiency = fmin(1.0, fmax(0.1, part));
    }
    machine_samples_free(&all);
    if (error->status != STATUS_OK) return error->status;
    double bytes_per_s;
    TRY(bench_memory_bandwidth((int)n_cores, &bytes_per_s, error));
    machine->host.host_memory_gbs = bytes_per_s * 1e-9;
    return STATUS_OK;
}

/* How much slower is an instruction that is no matter of memory than alone, and what does memory carry for
 * all? The same instructions, in the same order. */
static void compare(MachineMeasure *measure, const MachineSamples *one, const MachineSamples *busy,
                    int n_ranks) {
    MachineDevice *device = &measure->machine.device;
    double alone = 0.0, together = 0.0, memory = 0.0, cache = device->cache_mib * 1048576.0 / n_ranks;
    for (int i = 0; i < busy->n && i < one->n; i++) {
        const MachineSample *sample = &busy->sample[i];
        bool is_memory = sample->key.n_sizes == 1 && sample->bytes > cache;
        if (is_memory) memory = fmax(memory, sample->n * sample->bytes / sample->seconds);
        if (is_memory) continue;
        together += sample->seconds / sample->n;
        alone += one->sample[i].seconds / one->sample[i].n;
    }
    if (together > 0.0) device->busy_efficiency = fmin(1.0, fmax(0.1, alone / together));
    if (memory > 0.0) measure->machine.host.host_memory_gbs = n_ranks * memory * 1e-9;
}

/* All ranks that have a core compute at the same time, each by one thread. */
static Status measure_together(MachineMeasure *measure, const BenchSetup *setup, const MachineSamples *one,
                               Comm *ranks, double *seconds, Error *error) {
    MachineSamples busy = {0};
    CoreSet all = cores_possible(), mine = cores_slice(&all, ranks->rank, ranks->size),
            before = cores_allowed();
    cores_bind(&mine);
    if (machine_samples_take(&busy, setup, 1, ranks, error) == STATUS_OK)
        machine_steps_take(setup, ranks, seconds, error);
    cores_bind(&before);
    if (ranks->rank == 0 && error->status == STATUS_OK) {
        compare(measure, one, &busy, ranks->size);
        if (ranks->size == measure->machine.host.n_cores)
            measure->machine.device.busy_samples = machine_samples_text(&busy, 1.0, &measure->arena);
    }
    machine_samples_free(&busy);
    return error->status;
}

/* More ranks than cores: how long do their steps take, all together, where `seconds` are those of ranks with
 * a core each? */
static Status measure_crowd(MachineMeasure *measure, const BenchSetup *setup, Comm *world, int n_cores,
                            double seconds, Error *error) {
    double crowded;
    TRY(machine_steps_take(setup, world, &crowded, error));
    double part = crowded > 0.0 ? seconds * world->size / n_cores / crowded : 1.0;
    measure->machine.device.crowd_efficiency = fmin(1.0, fmax(0.3, part));
    return STATUS_OK;
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
    MachineDevice *device = &machine->device;
    TRY(bench_backend_open(&backend, &setup->bench, error));
    bool is_gpu = backend_has_own_memory(&backend);
    CoreSet cores = cores_possible(); /* a launcher may have bound this rank to one */
    char words[96];
    const char *kind = backend.traits.kind;
    device->device = !is_gpu                ? "cpu"
                     : strstr(kind, "H100") ? "cuda:h100"
                     : strstr(kind, "A100") ? "cuda:a100"
                                            : "cuda:h200";
    int n_cores = cores_count(&cores) > 0 ? cores_count(&cores) : backend.n_threads;
    if (cores_quota() > 0 && cores_quota() < n_cores) n_cores = cores_quota();
    device->name =
        is_gpu ? arena_strdup(&measure->arena, device_describe(&backend, words, sizeof words))
               : arena_printf(&measure->arena, "CPU with %d core%s", n_cores, n_cores == 1 ? "" : "s");
    double usable = (double)device_usable_bytes(&backend) / 1073741824.0;
    machine->host.n_cores = is_gpu ? 0 : n_cores;
    machine->host.n_devices = is_gpu ? 1 : n_cores;
    uint64_t here = memory_available_bytes();
    machine->host.host_memory_gib = (double)here / 1073741824.0;
    device->memory_gib = is_gpu ? usable : usable / n_cores;
    device->cache_mib = cache_bytes(is_gpu) / 1048576.0;
    device->source = "measured";
    device->dtype = precision_names[setup->bench.precision];
    double bytes_per_s = 0.0;
    if (is_gpu && machine_measure_bus(&machine->host, &backend, error) == STATUS_OK &&
        bench_memory_bandwidth(n_cores, &bytes_per_s, error) == STATUS_OK)
        machine->host.host_memory_gbs = bytes_per_s * 1e-9;
    backend.close(backend.context);
    return error->status;
}

static Status measure_alone(MachineMeasure *measure, const BenchSetup *setup, const char *folder,
                            MachineSamples *one, Error *error) {
    CoreSet all = cores_possible(), before = cores_allowed();
    TRY(describe(measure, setup, error));
    bool is_gpu = measure->machine.host.n_cores == 0;
    /* OpenMP counts its cores when the process begins: with threads on others it would sleep between
     * loops. */
    measure->is_bound = cores_count(&before) < cores_count(&all);
    if (is_gpu) measure_gpu(measure, setup, error);
    else measure_cpu(measure, setup, one, error);
    machine_measure_disk(&measure->machine.host, folder);
    return error->status;
}

static void *let_sleep(void *opaque) {
    const Comm *world = opaque;
    const struct timespec begun = {.tv_nsec = 50000000};
    nanosleep(&begun, NULL);
    world->table->be_patient(world->context, true);
    return NULL;
}

/* The others sleep while the first ones measure: a rank that looks for messages takes time from its threads.
 * A call that blocks is impatient from its beginning, so it is another thread that tells it to sleep. */
static void wait_for_first(Comm *world, Error *error) {
    pthread_t thread;
    bool sleeps =
        world->rank > 0 && world->table->be_patient && pthread_create(&thread, NULL, let_sleep, world) == 0;
    comm_agree(world, error);
    if (sleeps) pthread_join(thread, NULL);
    if (sleeps) world->table->be_patient(world->context, false);
}

/* Ranks that have a core each, as a communicator of their own, do the same beside each other. */
static Status measure_ranks(MachineMeasure *measure, const BenchSetup *setup, const MachineSamples *one,
                            Comm *world, Error *error) {
    Comm some = {0};
    double seconds = 0.0; /* of steps beside each other */
    int64_t n_cores = measure->machine.host.n_cores, n_devices = measure->machine.host.n_devices;
    double shared[2] = {(double)n_cores, measure->machine.device.cache_mib};
    TRY(comm_broadcast(world, shared, 2, COMM_F64, 0, error));
    bool is_gpu = shared[0] == 0.0;
    measure->machine.device.cache_mib = shared[1];
    TRY(machine_measure_links(&measure->machine.host, setup, is_gpu, world, &measure->links, error));
    if (is_gpu) {
        measure->machine.host.n_devices = n_devices > world->size ? n_devices : world->size;
        return STATUS_OK;
    }
    int n_all = (int)shared[0];
    bool takes_part = world->rank < n_all;
    TRY(message_samples_take(world, n_all, &measure->arena, &measure->machine.host.message_samples, error));
    TRY(comm_split(world, takes_part ? 0 : -1, world->rank, &some, error));
    if (takes_part) {
        if (some.size > 1) measure_together(measure, setup, one, &some, &seconds, error);
        comm_close(&some);
    }
    wait_for_first(world, error);
    TRY(error->status);
    return n_all > 1 && world->size > n_all ? measure_crowd(measure, setup, world, n_all, seconds, error)
                                            : STATUS_OK;
}

Status bench_machine_measure(MachineMeasure *measure, const BenchSetup *setup, Comm *world,
                             const char *folder, Error *error) {
    *measure = (MachineMeasure){.beyond = 1.0};
    Machine *machine = &measure->machine;
    MachineSamples one = {0};
    machine->network = (MachineNetwork){.n_links = 1, .link_efficiency = 1.0, .n_hosts = 1, .step_us = 300.0};
    machine->device.thread_efficiency = machine->device.busy_efficiency = 1.0;
    machine->device.crowd_efficiency = 1.0;
    machine->device.samples = machine->device.all_thread_samples = machine->device.busy_samples = "";
    machine->host.message_samples = "";
    if (world->rank == 0) measure_alone(measure, setup, folder, &one, error);
    if (world->size == 1 && error->status == STATUS_OK)
        machine_guess_links(&machine->host, machine->host.n_cores == 0, error);
    wait_for_first(world, error);
    TRY_GOTO(error->status, done);
    if (world->size > 1) measure_ranks(measure, setup, &one, world, error);
done:
    machine_samples_free(&one);
    return error->status;
}

void bench_machine_free(MachineMeasure *measure) {
    arena_free(&measure->arena);
}

Status bench_machine_write(const MachineMeasure *measure, const char *path, Error *error) {
    char comment[240];
    snprintf(comment, sizeof comment, "Measured by 'pgpt bench machine': %d kinds of instructions%s%s%s.",
             measure->n_samples, measure->links ? " and messages between ranks by " : "",
             measure->links ? measure->links : "",
             measure->links
                 ? ""
                 : "; what ranks of a host send each other is guessed, start it by mpirun to measure it");
    return machine_write(&measure->machine, comment, path, error);
}
