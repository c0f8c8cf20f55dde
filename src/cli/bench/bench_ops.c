/* pgpt bench ops: what was measured of every kernel (bench/ops.h), as a table. */
#include "bench/ops.h"

#include "base/text/format.h"
#include "cli/bench/bench.h"

#include <stdio.h>

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

static void print_limits(const BenchOpLimits *limits, int n_threads, const char *dtype) {
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
    for (int i = 0; i < BENCH_N_COPIES; i++) {
        printf("%s %s: %s", i ? "," : "", format_bytes((size_t)BENCH_SMALLEST_COPY << (2 * i)).text,
               format_rate(limits->copy_bytes_per_s[i], "B/s").text);
    }
    printf("\nfloor = max(FLOPs / FLOP/s, bytes / B/s of the nearest copy); of floor: floor / best time\n\n");
}

static void print_times(const BenchOps *ops) {
    int n_decimals = ops->limits.is_gpu ? 4 : 3;
    printf("%-28s %-30s %6s %12s %7s %14s %11s %10s %9s\n", "operation", "first input > first output",
           "a step", "time", "share", "arithmetic", "traffic", "floor by", "of floor");
    for (int i = 0; i < ops->n_times; i++) {
        const BenchOpTime *time = &ops->time[i];
        char shapes[168];
        printf("%-28s %-30s %6.0f %9.*f ms %5.1f %% %14s %11s %10s %7.1f %%\n", time->node->op->name,
               shapes_of(time->node, shapes, sizeof shapes), time->runs_per_step, n_decimals,
               time->seconds * 1e3, 100.0 * bench_op_step_seconds(time) / ops->seconds,
               format_rate(time->cost.flops / time->seconds, "FLOP/s").text,
               format_rate(time->cost.bytes / time->seconds, "B/s").text,
               time->is_arithmetic ? "arithmetic" : "memory", 100.0 * time->floor / time->seconds);
    }
    printf(
        "\nWhat has 0 runs a step is not part of this one, and is measured at the sizes it would have here.\n");
    printf("A step of these: %.2f ms, its floor %.2f ms: %.1f %%\n", ops->seconds * 1e3, ops->floor * 1e3,
           100.0 * ops->floor / ops->seconds);
}

static json_t *times_json(const BenchOps *ops) {
    json_t *array = json_array();
    for (int i = 0; i < ops->n_times; i++) {
        const BenchOpTime *time = &ops->time[i];
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

static json_t *report_json(const BenchOps *ops, const BenchSetup *setup) {
    const BenchTraining *training = &ops->training;
    json_t *object = bench_json("ops", setup, &training->table, training->backend.n_threads);
    json_object_set_new(object, "device", json_string(training->backend.name));
    json_object_set_new(object, "dtype", json_string(precision_names[setup->bench.precision]));
    json_object_set_new(object, "batch", json_integer(setup->bench.batch));
    json_object_set_new(object, "micro_batch", json_integer(setup->bench.micro_batch));
    json_object_set_new(object, "sequence", json_integer(setup->bench.sequence));
    json_object_set_new(object, "step_ms", json_make_number(ops->seconds * 1e3));
    json_object_set_new(object, "floor_ms", json_make_number(ops->floor * 1e3));
    json_object_set_new(object, "of_floor", json_make_number(ops->floor / ops->seconds));
    json_object_set_new(object, "limit_flops_per_s", json_make_number(ops->limits.flops_per_s));
    json_object_set_new(object, "limit_bytes_per_s",
                        json_make_number(bench_op_copy_limit(&ops->limits, (double)SIZE_MAX)));
    json_object_set_new(object, "peak_bytes",
                        json_integer((json_int_t)device_required_bytes(&training->memory)));
    json_object_set_new(object, "operations", times_json(ops));
    return object;
}

Status bench_ops(BenchCall *call, Error *error) {
    const BenchSetup *setup = &call->setup;
    BenchOps ops;
    TRY_GOTO(bench_ops_measure(&ops, &call->setup, error), done);
    const Backend *backend = &ops.training.backend;
    bench_print_model(setup, &ops.training.table, backend);
    print_limits(&ops.limits, backend->n_threads, precision_names[setup->bench.precision]);
    print_times(&ops);
    if (call->json) json_print(stdout, report_json(&ops, setup), error);
done:
    bench_ops_close(&ops);
    return error->status;
}
