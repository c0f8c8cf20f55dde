/* pgpt bench ops: every kernel of a training step at the shapes it has there, against its floor.
 *
 * The step's own program is walked in order, so that a kernel finds its inputs as training would leave them;
 * where an operation with these shapes and attributes comes for the first time, it is repeated and the best
 * run counts (bench_program.c). What a kernel changes in place, or adds to, is put back afterwards: a GPU's
 * products are faster on numbers that have become zero. Operations that the step does not have follow in a
 * program of their own (bench_rest.c).
 *
 * The floor is the time below which nothing can fall: the larger of FLOPs / (the most FLOP/s) and bytes /
 * (bytes a second of a copy), counting the fewest bytes that must move. On the CPU the most FLOP/s are those
 * of multiply-adds between registers; on a GPU those of a large product in the same numbers, and they bound
 * products and attention only. Repeated runs leave small tensors in a CPU's caches, so there the copy is
 * measured at several sizes and the one nearest to the kernel's tensors together is its limit; a GPU is
 * measured with one of half a GiB. Limits are measured before and after the kernels, and the higher one
 * counts. */
#include "cli/bench/bench.h"

#include "base/system/memory.h"
#include "base/text/format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SIZES = 6 };
static const size_t smallest_bytes = (size_t)256 << 10; /* each size is four times the one before */

typedef struct {
    bool is_gpu;
    double flops_per_s;
    double copy_bytes_per_s[N_SIZES]; /* of a GPU the first only */
} Limits;

/* Nodes that differ only in where their tensors lie. */
typedef struct {
    const Node *node;
    Cost cost;
    int n_nodes;
    double runs_per_step;  /* 0: the step does not have it */
    double seconds, floor; /* of one run */
    bool is_arithmetic;    /* what the floor comes from */
} OpTime;

typedef struct {
    Limits limits;
    OpTime *time;
    int n_times;
} OpTimes;

/* Keeps the better of what is there and what is measured now. */
static Status measure_limits(Limits *limits, const Backend *backend, PrecisionKind precision, Error *error) {
    double rate;
    limits->is_gpu = backend_has_own_memory(backend);
    if (limits->is_gpu) {
        TRY(bench_device_product(backend, precision, &rate, error));
        limits->flops_per_s = fmax(limits->flops_per_s, rate);
        TRY(bench_device_copy(backend, &rate, error));
        limits->copy_bytes_per_s[0] = fmax(limits->copy_bytes_per_s[0], rate);
        return STATUS_OK;
    }
    limits->flops_per_s = fmax(limits->flops_per_s, bench_peak_flops(backend->n_threads));
    for (int i = 0; i < N_SIZES; i++) {
        TRY(bench_copy_bandwidth(smallest_bytes << (2 * i), backend->n_threads, &rate, error));
        limits->copy_bytes_per_s[i] = fmax(limits->copy_bytes_per_s[i], rate);
    }
    return STATUS_OK;
}

static double copy_limit(const Limits *limits, double n_bytes) {
    if (limits->is_gpu) return limits->copy_bytes_per_s[0];
    double size = n_bytes > 0.0 ? 0.5 * log2(n_bytes / (double)smallest_bytes) : 0.0;
    long nearest = lround(size);
    return limits->copy_bytes_per_s[nearest < 0 ? 0 : nearest >= N_SIZES ? N_SIZES - 1 : nearest];
}

/* Bytes of all tensors of a node, those in the same place counted once. */
static double working_set(const Node *node) {
    double total = 0.0;
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->input[i]) total += (double)tensor_bytes(node->input[i]);
    }
    for (int k = 0; k < node->n_outputs; k++) {
        const Tensor *output = node->output[k];
        bool is_input = false;
        for (int i = 0; i < node->n_inputs && output; i++) {
            const Tensor *input = node->input[i];
            is_input |= input && tensor_root(node->input[i])->place == tensor_root(node->output[k])->place &&
                        input->offset == output->offset;
        }
        if (output && !is_input) total += (double)tensor_bytes(output);
    }
    return total;
}

/* What a GPU's matrix units do; its other units are never what a kernel here waits for. */
static bool is_product(const Op *op) {
    static const Op *const products[] = {&OP_LINEAR,    &OP_LINEAR_INPUT_GRADIENT, &OP_LINEAR_WEIGHT_GRADIENT,
                                         &OP_ATTENTION, &OP_ATTENTION_BACKWARD,    &OP_ATTENTION_CACHED};
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        if (op == products[i]) return true;
    }
    return false;
}

static void set_floor(const Limits *limits, OpTime *time) {
    bool counts = !limits->is_gpu || is_product(time->node->op);
    double arithmetic = counts ? time->cost.flops / limits->flops_per_s : 0.0;
    double traffic = time->cost.bytes / copy_limit(limits, working_set(time->node));
    time->is_arithmetic = arithmetic > traffic;
    time->floor = fmax(arithmetic, traffic);
}

/* ---- which nodes are alike */

static bool same_tensor(const Tensor *a, const Tensor *b) {
    if (!a || !b) return a == b;
    return a->dtype == b->dtype && shape_equal(a->shape, b->shape);
}

static bool is_alike(const Node *a, const Node *b) {
    if (a->op != b->op || a->n_inputs != b->n_inputs || a->n_outputs != b->n_outputs) return false;
    for (int i = 0; i < a->n_inputs; i++) {
        if (!same_tensor(a->input[i], b->input[i])) return false;
    }
    for (int i = 0; i < a->n_outputs; i++) {
        if (!same_tensor(a->output[i], b->output[i]) || a->write[i] != b->write[i]) return false;
    }
    char text_a[96] = "", text_b[96] = "";
    if (a->op->describe) a->op->describe(a, text_a, sizeof text_a);
    if (b->op->describe) b->op->describe(b, text_b, sizeof text_b);
    return strcmp(text_a, text_b) == 0;
}

/* The entry of nodes like this one; *is_new if it is the first. */
static OpTime *find_time(OpTimes *times, const Node *node, bool *is_new) {
    for (int i = 0; i < times->n_times; i++) {
        *is_new = false;
        if (is_alike(times->time[i].node, node)) return &times->time[i];
    }
    *is_new = true;
    OpTime *time = &times->time[times->n_times++];
    *time = (OpTime){.node = node, .cost = op_cost(node)};
    return time;
}

/* ---- timing */

/* An output that holds something else after every run. */
static bool changes_in_place(const KernelCall *call, int output) {
    bool changes = call->out[output] && call->add[output];
    for (int i = 0; i < call->node->n_inputs; i++)
        changes |= call->out[output] && call->in[i] == call->out[output];
    return changes;
}

/* Copies of what a kernel changes in place, to put back. Nobody reads what an update leaves. */
typedef struct {
    void *copy[NODE_MAX_OUTPUTS];
} Kept;

static Status keep_outputs(const Backend *backend, const KernelCall *call, Kept *kept, Error *error) {
    for (int k = 0; k < call->node->n_outputs && call->node->section != SECTION_UPDATE; k++) {
        if (!changes_in_place(call, k)) continue;
        size_t n_bytes = tensor_bytes(call->node->output[k]);
        TRY(memory_alloc(&kept->copy[k], n_bytes, "what a kernel changes", error));
        TRY(backend->download(backend->context, kept->copy[k], call->out[k], n_bytes, error));
    }
    return STATUS_OK;
}

static Status put_back(const Backend *backend, const KernelCall *call, Kept *kept, Error *error) {
    for (int k = 0; k < call->node->n_outputs; k++) {
        size_t n_bytes = kept->copy[k] ? tensor_bytes(call->node->output[k]) : 0;
        if (kept->copy[k] && error->status == STATUS_OK)
            backend->upload(backend->context, call->out[k], kept->copy[k], n_bytes, error);
        memory_free(kept->copy[k], n_bytes);
    }
    return error->status;
}

static Status time_instruction(const Executor *executor, int number, OpTime *time, Error *error) {
    const Backend *backend = executor->memory->backend;
    const KernelCall *call = executor_call(executor, number);
    Kernel kernel = executor->instruction[number].kernel;
    Kept kept = {{NULL}};
    BenchTime measured = {0};
    if (keep_outputs(backend, call, &kept, error) == STATUS_OK)
        bench_time_kernel(backend, kernel, call, &measured, error);
    time->seconds = measured.seconds;
    return put_back(backend, call, &kept, error);
}

/* Times what is new of a program and runs each instruction once, as the next ones want it. */
static Status time_program(const Executor *executor, bool is_step, OpTimes *times, Error *error) {
    const Program *program = executor->program;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        bool is_new;
        OpTime *time = find_time(times, node, &is_new);
        time->n_nodes++;
        if (is_step)
            time->runs_per_step += node->section == SECTION_UPDATE ? 1.0 : (double)program->n_forward_runs;
        if ((is_new && time_instruction(executor, i, time, error) != STATUS_OK) ||
            executor->instruction[i].kernel(executor_call(executor, i), error) != STATUS_OK)
            return error_prefix(error, "instruction %d (%s): ", i, node->op->name);
    }
    return STATUS_OK;
}

/* ---- output */

/* What a person would call the operation's size: its first input and first output. */
static const char *shapes_of(const Node *node, char *text, size_t n_bytes) {
    char from[80] = "", to[80] = "";
    for (int i = node->n_inputs - 1; i >= 0; i--) {
        if (node->input[i]) shape_format(node->input[i]->shape, from, sizeof from);
    }
    for (int i = node->n_outputs - 1; i >= 0; i--) {
        if (node->output[i]) shape_format(node->output[i]->shape, to, sizeof to);
    }
    snprintf(text, n_bytes, "%s > %s", from, to);
    return text;
}

static double step_seconds(const OpTime *time) {
    return time->seconds * time->runs_per_step;
}

static int by_share(const void *a, const void *b) {
    double x = step_seconds(a), y = step_seconds(b);
    return x < y ? 1 : x > y ? -1 : 0;
}

static void print_limits(const Limits *limits, int n_threads, const char *dtype) {
    if (limits->is_gpu) {
        printf(
            "limits, measured in this run: %s (a large product in %s), %s (a copy of half a GiB, bytes read and\n"
            "written). floor = max(bytes / B/s, for products and attention also FLOPs / FLOP/s); of floor: floor / best time.\n"
            "What only reads or only writes, or stays in the GPU's cache from run to run, may be faster than that\n\n",
            format_rate(limits->flops_per_s, "FLOP/s").text, dtype,
            format_rate(limits->copy_bytes_per_s[0], "B/s").text);
        return;
    }
    printf("limits on %d thread%s, measured in this run: %s (multiply-adds between registers);\n"
           "copies (bytes read and written) within",
           n_threads, n_threads == 1 ? "" : "s", format_rate(limits->flops_per_s, "FLOP/s").text);
    for (int i = 0; i < N_SIZES; i++) {
        printf("%s %s: %s", i ? "," : "", format_bytes(smallest_bytes << (2 * i)).text,
               format_rate(limits->copy_bytes_per_s[i], "B/s").text);
    }
    printf("\nfloor = max(FLOPs / FLOP/s, bytes / B/s of the nearest copy); of floor: floor / best time\n\n");
}

static void print_times(const OpTimes *times, double total, double total_floor) {
    int n_decimals = times->limits.is_gpu ? 4 : 3;
    printf("%-28s %-30s %6s %12s %7s %14s %11s %10s %9s\n", "operation", "first input > first output",
           "a step", "time", "share", "arithmetic", "traffic", "floor by", "of floor");
    for (int i = 0; i < times->n_times; i++) {
        const OpTime *time = &times->time[i];
        char shapes[168];
        printf("%-28s %-30s %6.0f %9.*f ms %5.1f %% %14s %11s %10s %7.1f %%\n", time->node->op->name,
               shapes_of(time->node, shapes, sizeof shapes), time->runs_per_step, n_decimals,
               time->seconds * 1e3, 100.0 * step_seconds(time) / total,
               format_rate(time->cost.flops / time->seconds, "FLOP/s").text,
               format_rate(time->cost.bytes / time->seconds, "B/s").text,
               time->is_arithmetic ? "arithmetic" : "memory", 100.0 * time->floor / time->seconds);
    }
    printf(
        "\nWhat has 0 runs a step is not part of this one, and is measured at the sizes it would have here.\n");
    printf("A step of these: %.2f ms, its floor %.2f ms: %.1f %%\n", total * 1e3, total_floor * 1e3,
           100.0 * total_floor / total);
}

static json_t *times_json(const OpTimes *times) {
    json_t *array = json_array();
    for (int i = 0; i < times->n_times; i++) {
        const OpTime *time = &times->time[i];
        char shapes[168];
        json_t *object = json_object();
        json_object_set_new(object, "operation", json_make_text(time->node->op->name));
        json_object_set_new(object, "shapes", json_make_text(shapes_of(time->node, shapes, sizeof shapes)));
        json_object_set_new(object, "runs_per_step", json_make_number(time->runs_per_step));
        json_object_set_new(object, "ms", json_make_number(time->seconds * 1e3));
        json_object_set_new(object, "floor_ms", json_make_number(time->floor * 1e3));
        json_object_set_new(object, "of_floor", json_make_number(time->floor / time->seconds));
        json_object_set_new(object, "floor_by", json_string(time->is_arithmetic ? "arithmetic" : "memory"));
        json_object_set_new(object, "flops_per_s", json_make_number(time->cost.flops / time->seconds));
        json_object_set_new(object, "bytes_per_s", json_make_number(time->cost.bytes / time->seconds));
        json_array_append_new(array, object);
    }
    return array;
}

static Status report(const BenchTraining *training, const BenchValues *values, OpTimes *times, Error *error) {
    double total = 0.0, total_floor = 0.0;
    for (int i = 0; i < times->n_times; i++) {
        set_floor(&times->limits, &times->time[i]);
        total += step_seconds(&times->time[i]);
        total_floor += times->time[i].floor * times->time[i].runs_per_step;
    }
    qsort(times->time, (size_t)times->n_times, sizeof *times->time, by_share);
    const Backend *backend = &training->backend;
    const char *dtype = precision_names[values->bench.precision];
    bench_print_model(values, &training->table, backend);
    print_limits(&times->limits, backend->n_threads, dtype);
    print_times(times, total, total_floor);
    if (!values->bench.json) return STATUS_OK;
    json_t *object = bench_json("ops", values, &training->table, backend->n_threads);
    json_object_set_new(object, "device", json_string(backend->name));
    json_object_set_new(object, "dtype", json_string(dtype));
    json_object_set_new(object, "batch", json_integer(values->bench.batch));
    json_object_set_new(object, "micro_batch", json_integer(values->bench.micro_batch));
    json_object_set_new(object, "sequence", json_integer(values->bench.sequence));
    json_object_set_new(object, "step_ms", json_make_number(total * 1e3));
    json_object_set_new(object, "floor_ms", json_make_number(total_floor * 1e3));
    json_object_set_new(object, "of_floor", json_make_number(total_floor / total));
    json_object_set_new(object, "limit_flops_per_s", json_make_number(times->limits.flops_per_s));
    json_object_set_new(object, "limit_bytes_per_s",
                        json_make_number(copy_limit(&times->limits, (double)SIZE_MAX)));
    json_object_set_new(object, "peak_bytes",
                        json_integer((json_int_t)device_required_bytes(&training->memory)));
    json_object_set_new(object, "operations", times_json(times));
    return bench_print_json(object, error);
}

/* ---- the benchmark */

/* The graph stays, for the report; the memory goes to the step. */
static Status measure_rest(const BenchTraining *training, const BenchValues *values, BenchProgram *rest,
                           OpTimes *times, Error *error) {
    bench_record_rest(rest->graph, values, training->table.n_flat_elements, training->step.graph);
    TRY(bench_program_open(rest, &training->backend, error));
    TRY(bench_fill_rest(rest, values, error));
    TRY(time_program(&rest->executor, false, times, error));
    bench_program_release(rest);
    return STATUS_OK;
}

static Status measure(BenchTraining *training, const BenchValues *values, BenchProgram *rest, Arena *arena,
                      Error *error) {
    const Backend *backend = &training->backend;
    PrecisionKind precision = (PrecisionKind)values->bench.precision;
    OpTimes times = {.time = ARENA_ARRAY(arena, OpTime, training->step.graph->n_nodes + BENCH_MOST_REST)};
    TRY(measure_limits(&times.limits, backend, precision, error));
    TRY(measure_rest(training, values, rest, &times, error));
    TRY(bench_training_open(training, error));
    /* One ordinary step uploads a batch and leaves every tensor with real numbers. */
    StepResult result;
    TRY(train_step_run(&training->step, &training->source, 0, 3e-4, &result, error));
    TRY(time_program(&training->step.executor, true, &times, error));
    if (backend->synchronize) TRY(backend->synchronize(backend->context, error));
    device_close(&training->memory); /* what is left of it is the plan */
    TRY(measure_limits(&times.limits, backend, precision, error));
    return report(training, values, &times, error);
}

Status bench_ops(BenchValues *values, Error *error) {
    BenchTraining training;
    BenchProgram rest = {.graph = graph_new()};
    Arena arena = {0};
    if (bench_training_plan(&training, values, error) == STATUS_OK)
        measure(&training, values, &rest, &arena, error);
    bench_program_close(&rest);
    arena_free(&arena);
    bench_training_close(&training);
    return error->status;
}
