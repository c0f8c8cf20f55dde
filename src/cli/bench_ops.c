/* pgpt bench ops: every kernel of a training step at the shapes it has there, against its floor.
 *
 * The step's own program is walked in order, so that a kernel finds its inputs as training would leave them; where an
 * operation with these shapes and attributes comes for the first time, it is repeated and the best run counts. An
 * output that adds to what is there, or takes over an input's memory, holds something else after that; numbers stay of
 * an ordinary size because the repetitions are few, and nobody reads them but later kernels that are only timed.
 *
 * The floor is the time below which nothing can fall: the larger of FLOPs / (multiply-adds a second between registers)
 * and bytes / (bytes a second of a copy), counting the fewest bytes that must move. Repeated runs leave small tensors
 * in the caches, so the copy is measured at several sizes and the one nearest to the kernel's tensors together is its
 * limit. Limits are measured before and after the kernels, and the higher one counts. */
#include "cli/bench.h"

#include "base/format.h"
#include "base/timer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SIZES = 6, LEAST_RUNS = 3, MOST_RUNS = 20 };
static const size_t smallest_bytes = (size_t)256 << 10; /* each size is four times the one before */
static const double time_budget = 0.1;                  /* seconds for a kernel's repetitions */

typedef struct {
    double flops_per_s;
    double copy_bytes_per_s[N_SIZES];
} Limits;

/* Nodes that differ only in where their tensors lie. */
typedef struct {
    const Node *node;
    Cost cost;
    int n_nodes, n_timed;
    double runs_per_step;
    double seconds, floor; /* of one run */
    bool is_arithmetic;    /* what the floor comes from */
} OpTime;

typedef struct {
    Limits limits;
    OpTime *time;
    int n_times;
} OpTimes;

/* Keeps the better of what is there and what is measured now. */
static Status measure_limits(Limits *limits, int n_threads, Error *error) {
    limits->flops_per_s = fmax(limits->flops_per_s, bench_peak_flops(n_threads));
    for (int i = 0; i < N_SIZES; i++) {
        double rate;
        TRY(bench_copy_bandwidth(smallest_bytes << (2 * i), n_threads, &rate, error));
        limits->copy_bytes_per_s[i] = fmax(limits->copy_bytes_per_s[i], rate);
    }
    return STATUS_OK;
}

static double copy_limit(const Limits *limits, double n_bytes) {
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

static void set_floor(const Limits *limits, OpTime *time) {
    double arithmetic = time->cost.flops / limits->flops_per_s;
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

static Status time_instruction(const Instruction *instruction, OpTime *time, Error *error) {
    double spent = 0.0;
    time->seconds = INFINITY;
    while (time->n_timed < LEAST_RUNS || (time->n_timed < MOST_RUNS && spent < time_budget)) {
        uint64_t start = timer_now_ns();
        TRY(instruction->kernel(&instruction->first, error));
        double seconds = timer_seconds_since(start);
        spent += seconds;
        time->seconds = fmin(time->seconds, seconds);
        time->n_timed++;
    }
    return STATUS_OK;
}

static Status time_program(BenchTraining *training, OpTimes *times, Error *error) {
    const Program *program = &training->step.program;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Instruction *instruction = &training->step.executor.instruction[i];
        const Node *node = instruction->first.node;
        bool is_new;
        OpTime *time = find_time(times, node, &is_new);
        time->n_nodes++;
        time->runs_per_step += node->section == SECTION_UPDATE ? 1.0 : (double)program->n_forward_runs;
        Status status = is_new ? time_instruction(instruction, time, error)
                               : instruction->kernel(&instruction->first, error);
        if (status != STATUS_OK) return error_prefix(error, "instruction %d (%s): ", i, node->op->name);
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

static void print_limits(const Limits *limits, int n_threads) {
    printf("limits on %d thread%s, measured in this run: %s (multiply-adds between registers);\n"
           "copies (bytes read and written) within",
           n_threads, n_threads == 1 ? "" : "s", format_rate(limits->flops_per_s, "FLOP/s").text);
    for (int i = 0; i < N_SIZES; i++) {
        printf("%s %s: %s", i ? "," : "", format_bytes(smallest_bytes << (2 * i)).text,
               format_rate(limits->copy_bytes_per_s[i], "B/s").text);
    }
    printf(
        "\nfloor = max(FLOPs / FLOP/s, bytes / B/s of the nearest copy); of a floor: floor / best time\n\n");
}

static void print_times(const OpTimes *times, double total, double total_floor) {
    printf("%-28s %-30s %6s %12s %7s %14s %11s %10s %9s\n", "operation", "first input > first output",
           "a step", "time", "share", "arithmetic", "traffic", "floor by", "of floor");
    for (int i = 0; i < times->n_times; i++) {
        const OpTime *time = &times->time[i];
        char shapes[168];
        printf("%-28s %-30s %6.0f %9.3f ms %5.1f %% %14s %11s %10s %7.1f %%\n", time->node->op->name,
               shapes_of(time->node, shapes, sizeof shapes), time->runs_per_step, time->seconds * 1e3,
               100.0 * step_seconds(time) / total,
               format_rate(time->cost.flops / time->seconds, "FLOP/s").text,
               format_rate(time->cost.bytes / time->seconds, "B/s").text,
               time->is_arithmetic ? "arithmetic" : "memory", 100.0 * time->floor / time->seconds);
    }
    printf("\na step of these: %.2f ms, its floor %.2f ms: %.1f %%\n", total * 1e3, total_floor * 1e3,
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
    int n_threads = training->backend.n_threads;
    bench_print_model(values, &training->table, n_threads);
    print_limits(&times->limits, n_threads);
    print_times(times, total, total_floor);
    if (!values->bench.json) return STATUS_OK;
    json_t *object = bench_json("ops", values, &training->table, n_threads);
    json_object_set_new(object, "batch", json_integer(values->bench.batch));
    json_object_set_new(object, "micro_batch", json_integer(values->bench.micro_batch));
    json_object_set_new(object, "sequence", json_integer(values->bench.sequence));
    json_object_set_new(object, "step_ms", json_make_number(total * 1e3));
    json_object_set_new(object, "floor_ms", json_make_number(total_floor * 1e3));
    json_object_set_new(object, "of_floor", json_make_number(total_floor / total));
    json_object_set_new(object, "limit_flops_per_s", json_make_number(times->limits.flops_per_s));
    json_object_set_new(object, "limit_bytes_per_s",
                        json_make_number(times->limits.copy_bytes_per_s[N_SIZES - 1]));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)training->memory.allocated_bytes));
    json_object_set_new(object, "operations", times_json(times));
    return bench_print_json(object, error);
}

static Status measure(BenchTraining *training, const BenchValues *values, Arena *arena, Error *error) {
    OpTimes times = {.time = ARENA_ARRAY(arena, OpTime, training->step.graph->n_nodes + 1)};
    TRY(measure_limits(&times.limits, training->backend.n_threads, error));
    /* One ordinary step uploads a batch and leaves every tensor with real numbers. */
    StepResult result;
    TRY(train_step_run(&training->step, &training->source, 0, 3e-4, &result, error));
    TRY(time_program(training, &times, error));
    TRY(measure_limits(&times.limits, training->backend.n_threads, error));
    return report(training, values, &times, error);
}

Status bench_ops(BenchValues *values, Error *error) {
    BenchTraining training;
    Arena arena = {0};
    bench_training_open(&training, values, error);
    if (error->status == STATUS_OK && !training.backend.uses_host_memory) {
        error_user(error,
                   "bench ops measures the CPU so far; add --device cpu, or use bench step, which prints the "
                   "GPU's times too");
    }
    if (error->status == STATUS_OK) {
        measure(&training, values, &arena, error);
    }
    arena_free(&arena);
    bench_training_close(&training);
    return error->status;
}
