/* The step's own program is walked in order, so that a kernel finds its inputs as training would leave them;
 * where an operation with these shapes and attributes comes for the first time, it is repeated and the best
 * run counts (kernels.c). What a kernel changes in place, or adds to, is put back afterwards: a GPU's
 * products are faster on numbers that have become zero. Operations that the step does not have follow in a
 * program of their own (rest.c).
 *
 * The floor is the time below which nothing can fall: the larger of FLOPs / (the most FLOP/s) and bytes /
 * (bytes a second of a copy), counting the fewest bytes that must move. On the CPU the most FLOP/s are those
 * of multiply-adds between registers; on a GPU those of a large product in the same numbers, and they bound
 * products and attention only. Repeated runs leave small tensors in a CPU's caches, so there the copy is
 * measured at several sizes and the one nearest to the kernel's tensors together is its limit; a GPU is
 * measured with one of half a GiB. Limits are measured before and after the kernels, and the higher one
 * counts. */
#include "bench/ops.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "bench/limits.h"
#include "ops/attention/sparse_attention.h"
#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Keeps the better of what is there and what is measured now. */
static Status measure_limits(BenchOpLimits *limits, const Backend *backend, PrecisionKind precision,
                             Error *error) {
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
    for (int i = 0; i < BENCH_N_COPIES; i++) {
        TRY(bench_copy_bandwidth((size_t)BENCH_SMALLEST_COPY << (2 * i), backend->n_threads, &rate, error));
        limits->copy_bytes_per_s[i] = fmax(limits->copy_bytes_per_s[i], rate);
    }
    return STATUS_OK;
}

double bench_op_copy_limit(const BenchOpLimits *limits, double n_bytes) {
    if (limits->is_gpu) return limits->copy_bytes_per_s[0];
    double size = n_bytes > 0.0 ? 0.5 * log2(n_bytes / (double)BENCH_SMALLEST_COPY) : 0.0;
    long nearest = lround(size);
    return limits->copy_bytes_per_s[nearest < 0                 ? 0
                                    : nearest >= BENCH_N_COPIES ? BENCH_N_COPIES - 1
                                                                : nearest];
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
    static const Op *const products[] = {
        &OP_LINEAR,           &OP_LINEAR_INPUT_GRADIENT,    &OP_LINEAR_WEIGHT_GRADIENT,
        &OP_ATTENTION,        &OP_ATTENTION_BACKWARD,       &OP_ATTENTION_CACHED,
        &OP_SPARSE_ATTENTION, &OP_SPARSE_ATTENTION_BACKWARD};
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        if (op == products[i]) return true;
    }
    return false;
}

static void set_floor(const BenchOpLimits *limits, BenchOpTime *time) {
    bool counts = !limits->is_gpu || is_product(time->node->op);
    double arithmetic = counts ? time->cost.flops / limits->flops_per_s : 0.0;
    double traffic = time->cost.bytes / bench_op_copy_limit(limits, working_set(time->node));
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
static BenchOpTime *find_time(BenchOps *ops, const Node *node, bool *is_new) {
    for (int i = 0; i < ops->n_times; i++) {
        *is_new = false;
        if (is_alike(ops->time[i].node, node)) return &ops->time[i];
    }
    *is_new = true;
    BenchOpTime *time = &ops->time[ops->n_times++];
    *time = (BenchOpTime){.node = node, .cost = op_cost(node)};
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
    for (int k = 0; k < call->node->n_outputs && !section_is_of_step(call->node->section); k++) {
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

static Status time_instruction(const Executor *executor, int number, BenchOpTime *time, Error *error) {
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
static Status time_program(const Executor *executor, bool is_step, BenchOps *ops, Error *error) {
    const Program *program = executor->program;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        bool is_new;
        BenchOpTime *time = find_time(ops, node, &is_new);
        time->n_nodes++;
        if (is_step) time->runs_per_step += (double)program_node_runs(program, node);
        if ((is_new && time_instruction(executor, i, time, error) != STATUS_OK) ||
            executor->instruction[i].kernel(executor_call(executor, i), error) != STATUS_OK)
            return error_prefix(error, "instruction %d (%s): ", i, node->op->name);
    }
    return STATUS_OK;
}

/* ---- the whole */

double bench_op_step_seconds(const BenchOpTime *time) {
    return time->seconds * time->runs_per_step;
}

static int by_share(const void *a, const void *b) {
    double x = bench_op_step_seconds(a), y = bench_op_step_seconds(b);
    return x < y ? 1 : x > y ? -1 : 0;
}

static void set_floors(BenchOps *ops) {
    for (int i = 0; i < ops->n_times; i++) {
        BenchOpTime *time = &ops->time[i];
        set_floor(&ops->limits, time);
        ops->seconds += bench_op_step_seconds(time);
        ops->floor += time->floor * time->runs_per_step;
    }
    qsort(ops->time, (size_t)ops->n_times, sizeof *ops->time, by_share);
}

/* The graph stays, for the report; the memory goes to the step. */
static Status measure_rest(BenchOps *ops, const BenchSetup *setup, Error *error) {
    const BenchTraining *training = &ops->training;
    bench_record_rest(ops->rest.graph, setup, training->table.n_flat_elements, training->step.graph);
    TRY(bench_program_open(&ops->rest, &training->backend, error));
    TRY(bench_fill_rest(&ops->rest, setup, error));
    TRY(time_program(&ops->rest.executor, false, ops, error));
    wiring_release_alone(&ops->rest);
    return STATUS_OK;
}

Status bench_ops_measure(BenchOps *ops, BenchSetup *setup, Error *error) {
    *ops = (BenchOps){.rest = {.graph = graph_new()}};
    BenchTraining *training = &ops->training;
    TRY(bench_training_plan(training, setup, error));
    const Backend *backend = &training->backend;
    PrecisionKind precision = (PrecisionKind)setup->bench.precision;
    ops->time = ARENA_ARRAY(&ops->arena, BenchOpTime, training->step.graph->n_nodes + BENCH_MOST_REST);
    TRY(measure_limits(&ops->limits, backend, precision, error));
    TRY(measure_rest(ops, setup, error));
    TRY(bench_training_open(training, error));
    /* One ordinary step uploads a batch and leaves every tensor with real numbers. */
    StepResult result;
    TRY(train_step_run(&training->step, &training->source, 0, 3e-4, &result, error));
    TRY(time_program(&training->step.executor, true, ops, error));
    if (backend->synchronize) TRY(backend->synchronize(backend->context, error));
    device_close(&training->memory); /* what is left of it is the plan */
    TRY(measure_limits(&ops->limits, backend, precision, error));
    set_floors(ops);
    return STATUS_OK;
}

Status bench_ops_measure_step(BenchOps *ops, BenchSetup *setup, int n_steps, double *step_seconds,
                              Error *error) {
    enum { N_WARM = 2 };
    *ops = (BenchOps){.rest = {.graph = graph_new()}};
    BenchTraining *training = &ops->training;
    TRY(bench_training_plan(training, setup, error));
    ops->time = ARENA_ARRAY(&ops->arena, BenchOpTime, training->step.graph->n_nodes);
    double *seconds = ARENA_ARRAY(&ops->arena, double, n_steps);
    TRY(bench_training_open(training, error));
    for (int k = -N_WARM; k < n_steps; k++) {
        StepResult result;
        uint64_t start = timer_now_ns();
        TRY(train_step_run(&training->step, &training->source, k + N_WARM, 3e-4, &result, error));
        if (k >= 0) seconds[k] = timer_seconds_since(start);
    }
    *step_seconds = bench_median(seconds, n_steps);
    TRY(time_program(&training->step.executor, true, ops, error));
    const Backend *backend = &training->backend;
    if (backend->synchronize) TRY(backend->synchronize(backend->context, error));
    device_close(&training->memory); /* what is left of it is the plan */
    for (int i = 0; i < ops->n_times; i++) ops->seconds += bench_op_step_seconds(&ops->time[i]);
    return STATUS_OK;
}

void bench_ops_close(BenchOps *ops) {
    wiring_close_alone(&ops->rest);
    arena_free(&ops->arena);
    bench_training_close(&ops->training);
}
