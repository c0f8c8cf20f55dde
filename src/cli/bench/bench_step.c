/* pgpt bench step: what was measured of whole training steps (bench/step.h), in words. */
#include "bench/step.h"

#include "base/text/format.h"
#include "cli/bench/bench.h"

#include <stdio.h>

static void print_arithmetic(const BenchStepReport *report, const char *limit) {
    printf("arithmetic  %s, %.1f %% of %s", format_rate(report->flops_per_s, "FLOP/s").text,
           100.0 * report->flops_per_s / report->peak_flops, format_rate(report->peak_flops, "FLOP/s").text);
    if (report->utilisation * report->peak_flops < 0.999 * report->flops_per_s)
        printf("; %.1f %% without what is computed twice", 100.0 * report->utilisation);
    printf("\n            (%s a step, counted over the program; the limit is %s,\n"
           "            measured in this run)\n",
           format_rate(report->flops, "FLOP").text, limit);
    printf("            %s by the standard formula, which papers publish (%s a step)\n",
           format_rate(report->standard_flops / report->step_ms * 1e3, "FLOP/s").text,
           format_rate(report->standard_flops, "FLOP").text);
}

static void print_lane(const char *name, const double *bytes, const MoveRates *rates, double milliseconds) {
    if (bytes[MOVE_OUT] + bytes[MOVE_IN] <= 0.0) return;
    printf("            %s: %s out and %s in a step; %s out, %s in, %s both at once: %.1f ms at least\n",
           name, format_bytes((uint64_t)bytes[MOVE_OUT]).text, format_bytes((uint64_t)bytes[MOVE_IN]).text,
           format_rate(rates->out, "B/s").text, format_rate(rates->in, "B/s").text,
           format_rate(rates->both, "B/s").text, milliseconds);
}

/* What lies elsewhere, and what a step takes at least by what is moved. */
static void print_offload(const BenchTraining *training, const BenchStepReport *report) {
    const MemoryPlan *plan = &training->step.program.plan;
    const Mover *mover = training->memory.mover;
    const BenchBound *bound = &report->bound;
    char way[64];
    if (!mover) return;
    const char *how = mover_way(mover, way, sizeof way);
    printf("            %s pinned, %s on disk%s%s%s\n", format_bytes(plan_bytes_of(plan, MEMORY_PINNED)).text,
           format_bytes(plan_bytes_of(plan, MEMORY_FILE)).text, *how ? " (" : "", how, *how ? ")" : "");
    printf("offload     bound %.2f ms, %.0f %% of the step: computing %.2f, bus %.2f, disk %.2f, the host's "
           "update %.2f;\n            the host waited %.2f ms a step\n",
           bound->bound_ms, 100.0 * bound->bound_ms / report->step_ms, bound->compute_ms, bound->bus_ms,
           bound->disk_ms, bound->host_ms, bound->wait_ms);
    print_lane("bus", bound->bus_bytes, &bound->bus, bound->bus_ms);
    print_lane("disk", bound->file_bytes, &bound->disk, bound->disk_ms);
    if (bound->host_bytes > 0.0)
        printf("            the host's update: %s read and written, its memory copies %s: %.1f ms at least\n",
               format_bytes((uint64_t)bound->host_bytes).text, format_rate(bound->copy_rate, "B/s").text,
               bound->host_ms);
}

static void print_report(const BenchTraining *training, const BenchSetup *setup,
                         const BenchStepReport *report) {
    const BenchOptions *bench = &setup->bench;
    const MemoryPlan *plan = &training->step.program.plan;
    bench_print_model(setup, &training->table, &training->backend);
    printf("step: %lld x %lld tokens", (long long)bench->batch, (long long)bench->sequence);
    if (bench->micro_batch != bench->batch) {
        printf(" in micro-batches of %lld", (long long)bench->micro_batch);
    }
    printf(", %s%s, %s\n\n", optimizer_name((OptimizerKind)setup->optimizer.kind),
           setup->optimizer.eager ? " (eager)" : "", setup->optimizer.clip > 0.0 ? "clipped" : "not clipped");
    printf("tokens/s    %.1f median, %.1f best of %lld steps\n", report->tokens_per_s,
           report->best_tokens_per_s, (long long)bench->n_steps);
    printf("step        %.2f ms: forward %.2f, backward %.2f, update %.2f\n", report->step_ms,
           report->forward_ms, report->backward_ms, report->update_ms);
    printf("blocks      %.2f ms of it: forward and backward without embedding and head%s\n",
           report->blocks_ms,
           training->backend.traits.is_asynchronous ? " (instruction by instruction)" : "");
    print_arithmetic(report, backend_has_own_memory(&training->backend)
                                 ? "a large product in the same numbers"
                                 : "a loop of multiply-adds between registers on the same threads");
    printf("memory      %s planned and allocated, of which activations %s; resident peak of the process %s\n",
           format_bytes(plan_total_bytes(plan)).text, format_bytes(plan->bytes[PLACE_ACTIVATION]).text,
           format_bytes(report->resident_bytes).text);
    print_offload(training, report);
    if (backend_has_own_memory(&training->backend))
        printf("            the GPU's libraries and recordings took %s beside it\n",
               format_bytes(report->beside_bytes).text);
    printf("\n");
    executor_print_times(&training->step.executor, stdout);
}

static json_t *lane_json(const double *bytes, const MoveRates *rates, double milliseconds) {
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "out_bytes", json_make_number(bytes[MOVE_OUT]), "in_bytes",
                     json_make_number(bytes[MOVE_IN]), "out_per_s", json_make_number(rates->out), "in_per_s",
                     json_make_number(rates->in), "both_per_s", json_make_number(rates->both), "bound_ms",
                     json_make_number(milliseconds));
}

/* Bytes are those of a step. */
static json_t *bound_json(const BenchBound *bound) {
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "bound_ms", json_make_number(bound->bound_ms),
                     "compute_ms", json_make_number(bound->compute_ms), "wait_ms",
                     json_make_number(bound->wait_ms), "host_ms", json_make_number(bound->host_ms),
                     "host_bytes", json_make_number(bound->host_bytes), "host_copy_per_s",
                     json_make_number(bound->copy_rate), "bus",
                     lane_json(bound->bus_bytes, &bound->bus, bound->bus_ms), "disk",
                     lane_json(bound->file_bytes, &bound->disk, bound->disk_ms));
}

static json_t *report_json(const BenchTraining *training, const BenchSetup *setup,
                           const BenchStepReport *report) {
    const BenchOptions *bench = &setup->bench;
    json_t *object = bench_json("step", setup, &training->table, training->backend.n_threads);
    json_object_set_new(object, "device", json_string(training->backend.name));
    json_object_set_new(object, "dtype", json_string(precision_names[bench->precision]));
    json_object_set_new(object, "batch", json_integer(bench->batch));
    json_object_set_new(object, "micro_batch", json_integer(bench->micro_batch));
    json_object_set_new(object, "sequence", json_integer(bench->sequence));
    json_object_set_new(object, "eager_update", json_boolean(setup->optimizer.eager));
    json_object_set_new(object, "step", json_integer(bench->n_steps + bench->n_warmup_steps));
    json_object_set_new(object, "tokens", json_integer(bench->batch * bench->sequence));
    json_object_set_new(object, "loss", json_make_number(report->loss));
    json_object_set_new(object, "seconds", json_make_number(report->total_seconds));
    json_object_set_new(object, "tokens_per_s", json_make_number(report->tokens_per_s));
    json_object_set_new(object, "tokens_per_s_best", json_make_number(report->best_tokens_per_s));
    json_object_set_new(object, "step_ms", json_make_number(report->step_ms));
    json_object_set_new(object, "step_ms_best", json_make_number(report->best_ms));
    json_object_set_new(object, "forward_ms", json_make_number(report->forward_ms));
    json_object_set_new(object, "backward_ms", json_make_number(report->backward_ms));
    json_object_set_new(object, "update_ms", json_make_number(report->update_ms));
    json_object_set_new(object, "blocks_ms", json_make_number(report->blocks_ms));
    json_object_set_new(object, "flops_per_step", json_make_number(report->flops));
    json_object_set_new(object, "flops_per_s", json_make_number(report->flops_per_s));
    json_object_set_new(object, "standard_flops_per_step", json_make_number(report->standard_flops));
    json_object_set_new(object, "standard_flops_per_s",
                        json_make_number(report->standard_flops / report->step_ms * 1e3));
    json_object_set_new(object, "limit_flops_per_s", json_make_number(report->peak_flops));
    json_object_set_new(object, "mfu", json_make_number(report->utilisation));
    json_object_set_new(object, "activation_bytes",
                        json_integer((json_int_t)training->step.program.plan.bytes[PLACE_ACTIVATION]));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)training->memory.allocated_bytes));
    if (training->memory.mover) {
        MoverCounts counts = mover_counts(training->memory.mover);
        const MemoryPlan *plan = &training->step.program.plan;
        json_object_set_new(object, "pinned_bytes",
                            json_integer((json_int_t)plan_bytes_of(plan, MEMORY_PINNED)));
        json_object_set_new(object, "file_bytes", json_integer((json_int_t)plan_bytes_of(plan, MEMORY_FILE)));
        json_object_set_new(object, "moved_out_bytes", json_integer((json_int_t)counts.bytes[MOVE_OUT]));
        json_object_set_new(object, "moved_in_bytes", json_integer((json_int_t)counts.bytes[MOVE_IN]));
        json_object_set_new(object, "move_wait_seconds", json_make_number(counts.wait_seconds));
        json_object_set_new(object, "offload", bound_json(&report->bound));
    }
    json_object_set_new(object, "resident_bytes", json_integer((json_int_t)report->resident_bytes));
    if (backend_has_own_memory(&training->backend))
        json_object_set_new(object, "beside_bytes", json_integer((json_int_t)report->beside_bytes));
    return object;
}

Status bench_step(BenchCall *call, Error *error) {
    BenchSetup *setup = &call->setup;
    BenchTraining training;
    BenchStepReport report;
    TRY_GOTO(bench_training_plan(&training, setup, error), done);
    TRY_GOTO(bench_step_measure(&training, setup, &report, error), done);
    print_report(&training, setup, &report);
    if (call->json) json_print(stdout, report_json(&training, setup, &report), error);
done:
    bench_training_close(&training);
    return error->status;
}
