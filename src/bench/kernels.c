/* Small programs that exist to be timed, and the clock for kernels of any backend.
 *
 * A kernel of the CPU returns when it is done, so that the host's clock tells its time. A GPU runs behind the
 * host: enqueuing a kernel takes the host a few microseconds, longer than many kernels last. So several runs
 * of the kernel are captured as one, as the executor captures sections, and the capture is replayed between
 * two events on the device itself. What is left of a launch is what a training step pays for it too.
 *
 * Numbers are drawn, not zeros: a GPU's matrix units are faster on zeros, since they need less power. */
#include "bench/kernels.h"

#include "base/half.h"
#include "base/random.h"
#include "base/system/timer.h"
#include "device/device.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

enum { LEAST_RUNS = 3, MOST_RUNS = 20 };     /* on the host's clock */
enum { MOST_RECORDED = 400, N_TRIES = 6 };   /* on the device's */
static const double time_budget = 0.1;       /* seconds for all runs by the host's clock */
static const double capture_seconds = 0.006; /* that a replay shall last */

/* ---- a clock for kernels */

static Status time_by_host(Kernel kernel, const KernelCall *call, BenchTime *time, Error *error) {
    double spent = 0.0;
    time->seconds = INFINITY;
    while (time->n_runs < LEAST_RUNS || (time->n_runs < MOST_RUNS && spent < time_budget)) {
        uint64_t start = timer_now_ns();
        TRY(kernel(call, error));
        double seconds = timer_seconds_since(start);
        spent += seconds;
        time->seconds = fmin(time->seconds, seconds);
        time->n_runs++;
    }
    return STATUS_OK;
}

typedef struct {
    const Backend *backend;
    Kernel kernel;
    const KernelCall *call;
    void *begin, *end; /* events */
    void *capture;     /* of n_runs; NULL: they are enqueued one by one */
    int n_runs;
} DeviceClock;

static Status run_once(const DeviceClock *clock, Error *error) {
    const Backend *backend = clock->backend;
    if (clock->capture) return backend->replay(backend->context, clock->capture, error);
    for (int i = 0; i < clock->n_runs; i++) TRY(clock->kernel(clock->call, error));
    return STATUS_OK;
}

/* Seconds of one run. */
static Status read_clock(const DeviceClock *clock, double *seconds, Error *error) {
    const Backend *backend = clock->backend;
    float milliseconds;
    TRY(backend->event_record(backend->context, clock->begin, error));
    TRY(run_once(clock, error));
    TRY(backend->event_record(backend->context, clock->end, error));
    TRY(backend->elapsed_ms(backend->context, clock->begin, clock->end, &milliseconds, error));
    *seconds = (double)milliseconds * 1e-3 / clock->n_runs;
    return STATUS_OK;
}

static Status capture_runs(DeviceClock *clock, Error *error) {
    const Backend *backend = clock->backend;
    if (!backend->capture_begin || backend->is_blocking) return STATUS_OK;
    TRY(backend->capture_begin(backend->context, error));
    if (run_once(clock, error) != STATUS_OK) {
        backend->capture_abandon(backend->context);
        return error->status;
    }
    return backend->capture_end(backend->context, &clock->capture, error);
}

static Status time_on_device(DeviceClock *clock, BenchTime *time, Error *error) {
    const Backend *backend = clock->backend;
    double seconds;
    TRY(backend->event_new(backend->context, &clock->begin, error));
    TRY(backend->event_new(backend->context, &clock->end, error));
    clock->n_runs = 1;
    TRY(read_clock(clock, &seconds, error)); /* loads the kernel, chooses an algorithm */
    TRY(read_clock(clock, &seconds, error));
    double n_runs = capture_seconds / fmax(seconds, 1e-6);
    clock->n_runs = n_runs < 1.0 ? 1 : n_runs > MOST_RECORDED ? MOST_RECORDED : (int)n_runs;
    TRY(capture_runs(clock, error));
    time->seconds = INFINITY;
    for (int i = 0; i < N_TRIES; i++) {
        TRY(read_clock(clock, &seconds, error));
        if (i > 0) time->seconds = fmin(time->seconds, seconds); /* the first wakes the device up */
        time->n_runs += clock->n_runs;
    }
    return backend->synchronize(backend->context, error); /* has a kernel complained? */
}

Status bench_time_kernel(const Backend *backend, Kernel kernel, const KernelCall *call, BenchTime *time,
                         Error *error) {
    *time = (BenchTime){0};
    if (!backend->event_new) return time_by_host(kernel, call, time, error);
    DeviceClock clock = {.backend = backend, .kernel = kernel, .call = call};
    time_on_device(&clock, time, error);
    backend->capture_free(backend->context, clock.capture);
    backend->event_free(backend->context, clock.begin);
    backend->event_free(backend->context, clock.end);
    return error->status;
}

Status bench_time_round(const Backend *backend, Kernel kernel, const KernelCall *call, BenchTime *time,
                        Error *error) {
    if (backend->event_new) return bench_time_kernel(backend, kernel, call, time, error);
    uint64_t start = timer_now_ns();
    TRY(kernel(call, error));
    *time = (BenchTime){timer_seconds_since(start), 1};
    return STATUS_OK;
}

/* ---- programs */

/* Numbers between -1 and 1 in the tensor's type, the same again and again: what matters is that neighbours
 * differ. */
static Status fill_tensor(Wiring *program, const Tensor *tensor, Error *error) {
    enum { N_DRAWN = 1 << 17 };
    size_t size = dtype_info(tensor->dtype)->n_bytes, n_bytes = tensor_bytes(tensor);
    char *drawn = arena_alloc(&program->graph->arena, N_DRAWN * sizeof(float));
    RandomKey key = random_key(1, RANDOM_TEST, (uint64_t)tensor->id);
    for (int i = 0; i < N_DRAWN; i++) {
        RandomBlock block = random_block(key, 0, (uint64_t)i);
        float value = 2.0f * random_unit(block.word[0]) - 1.0f;
        uint16_t half = tensor->dtype == DTYPE_BF16 ? half_bf16_from_f32(value) : half_f16_from_f32(value);
        memcpy(drawn + (size_t)i * size, size == sizeof half ? (void *)&half : (void *)&value, size);
    }
    for (size_t first = 0; first < n_bytes; first += N_DRAWN * size) {
        size_t n = n_bytes - first < N_DRAWN * size ? n_bytes - first : N_DRAWN * size;
        TRY(executor_upload_part(&program->executor, tensor, first, n, drawn, error));
    }
    return STATUS_OK;
}

static Status fill_program(Wiring *program, Error *error) {
    for (int i = 0; i < program->graph->n_tensors; i++) {
        const Tensor *tensor = program->graph->tensor[i];
        bool is_given = tensor->place != PLACE_ACTIVATION && !tensor->base && tensor->dtype != DTYPE_I32;
        if (is_given) TRY(fill_tensor(program, tensor, error));
    }
    return STATUS_OK;
}

Status bench_program_open(Wiring *program, const Backend *backend, Error *error) {
    TRY(wiring_plan_alone(program, "bench", backend, error));
    TRY(device_check_memory(backend, device_required_bytes(&program->memory), "measuring kernels",
                            "use a smaller --batch", error));
    TRY(wiring_open_alone(program, backend, error));
    return fill_program(program, error);
}

/* ---- limits of a device */

/* Times the one instruction of the program and closes it. */
static Status time_and_close(Wiring *program, const Backend *backend, Cost *cost, double *seconds,
                             Error *error) {
    BenchTime time = {.seconds = INFINITY};
    if (bench_program_open(program, backend, error) == STATUS_OK) {
        const Instruction *instruction = &program->executor.instruction[0];
        const KernelCall *call = executor_call(&program->executor, 0);
        bench_time_kernel(backend, instruction->kernel, call, &time, error);
        *cost = op_cost(call->node);
    }
    wiring_close_alone(program);
    *seconds = time.seconds;
    return error->status;
}

/* By a kernel, and by whatever the backend has for bytes as they are: the better one is the limit. */
Status bench_device_copy(const Backend *backend, double *bytes_per_s, Error *error) {
    static const DType dtypes[] = {DTYPE_BF16, DTYPE_I32};
    const uint64_t usual = (uint64_t)512 << 20; /* bytes read, and as many written: far beyond the caches */
    uint64_t usable = device_usable_bytes(backend), n_bytes = usable / 8 < usual ? usable / 8 : usual;
    *bytes_per_s = 0.0;
    for (int i = 0; i < 2; i++) {
        Wiring program = {.graph = graph_new()};
        Cost cost = {0};
        double seconds;
        int64_t count = (int64_t)(n_bytes / dtype_info(dtypes[i])->n_bytes);
        op_copy(program.graph, graph_tensor(program.graph, PLACE_INPUT, dtypes[i], SHAPE(count), "x"));
        TRY(time_and_close(&program, backend, &cost, &seconds, error));
        *bytes_per_s = fmax(*bytes_per_s, cost.bytes / seconds);
    }
    return STATUS_OK;
}

static Status time_product(const Backend *backend, DType dtype, int64_t size, double *flops_per_s,
                           Error *error) {
    Wiring program = {.graph = graph_new()};
    Graph *graph = program.graph;
    Cost cost = {0};
    double seconds;
    Tensor *x = graph_tensor(graph, PLACE_INPUT, dtype, SHAPE(size, size), "x");
    op_linear(graph, x, graph_tensor(graph, PLACE_PARAMETER, dtype, SHAPE(size, size), "weight"), NULL, NULL,
              ACTIVATION_NONE);
    TRY(time_and_close(&program, backend, &cost, &seconds, error));
    *flops_per_s = cost.flops / seconds;
    return STATUS_OK;
}

/* The largest of them is not always the fastest: it may draw more power than there is. */
Status bench_device_product(const Backend *backend, PrecisionKind precision, double *flops_per_s,
                            Error *error) {
    DType dtype = precision_of(precision).weight;
    int64_t size = 8192;
    uint64_t usable = device_usable_bytes(backend);
    while (size > 256 && 8 * (uint64_t)(size * size) * dtype_info(dtype)->n_bytes > usable) size /= 2;
    *flops_per_s = 0.0;
    for (int i = 0; i < 2; i++, size /= 2) {
        double rate;
        TRY(time_product(backend, dtype, size, &rate, error));
        *flops_per_s = fmax(*flops_per_s, rate);
    }
    return STATUS_OK;
}
