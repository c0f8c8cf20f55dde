/* pgpt bench step: whole training steps, as `pgpt train` runs them, on random tokens.
 *
 * Time is the median over the steps, because a step that something else disturbed says nothing about the
 * program; the best one is printed beside it. The limit is measured before and after the steps on the same
 * threads, and the higher one counts. */
#include "cli/bench/bench.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "model/model_flops.h"

#include <math.h>
#include <stdio.h>

typedef struct {
    double *seconds, *forward_ms, *backward_ms, *update_ms; /* of every timed step */
    int64_t n_steps;
    double total_seconds, loss;
} StepTimes;

typedef struct {
    double step_ms, best_ms, forward_ms, backward_ms, update_ms;
    double tokens_per_s, best_tokens_per_s, flops, flops_per_s, peak_flops;
    double standard_flops; /* of a step, by the formula of papers */
    double utilisation;    /* of the peak, by arithmetic that is not done twice */
    uint64_t resident_bytes;
    uint64_t beside_bytes; /* of a GPU's memory, taken since the plan was made and not part of it */
} StepReport;

static const double learning_rate = 3e-4;

/* The next step; as in training, the one after it begins before it has ended where the device runs behind the
 * host. Its time is that since `since`, when it began or the last one ended. */
static Status run_step(BenchTraining *training, int64_t index, int64_t n_steps, uint64_t *since,
                       double *seconds, StepResult *result, Error *error) {
    TrainStep *step = &training->step;
    bool is_first = step->n_begun == step->n_ended;
    if (is_first) *since = timer_now_ns();
    for (int64_t next = is_first ? index : index + 1;
         next < n_steps && next <= index + train_step_runs_ahead(step); next++)
        TRY(train_step_begin(step, &training->source, next, learning_rate, error));
    TRY(train_step_end(step, result, error));
    uint64_t now = timer_now_ns();
    *seconds = (double)(now - *since) * 1e-9;
    *since = now;
    return STATUS_OK;
}

static Status run_steps(BenchTraining *training, const BenchOptions *bench, StepTimes *times, Arena *arena,
                        Error *error) {
    times->n_steps = bench->n_steps;
    times->seconds = ARENA_ARRAY(arena, double, bench->n_steps);
    times->forward_ms = ARENA_ARRAY(arena, double, bench->n_steps);
    times->backward_ms = ARENA_ARRAY(arena, double, bench->n_steps);
    times->update_ms = ARENA_ARRAY(arena, double, bench->n_steps);
    uint64_t since = 0;
    for (int64_t i = -bench->n_warmup_steps; i < bench->n_steps; i++) {
        int64_t n_all = i < 0 ? bench->n_warmup_steps : bench->n_warmup_steps + bench->n_steps;
        if (i == 0) executor_reset_times(&training->step.executor);
        StepResult result;
        double seconds;
        TRY(run_step(training, i + bench->n_warmup_steps, n_all, &since, &seconds, &result, error));
        times->loss = result.loss;
        if (i < 0) continue;
        times->seconds[i] = seconds;
        times->forward_ms[i] = result.forward_ms;
        times->backward_ms[i] = result.backward_ms;
        times->update_ms[i] = result.update_ms;
        times->total_seconds += seconds;
    }
    return STATUS_OK;
}

static StepReport make_report(const BenchTraining *training, const ModelConfig *model,
                              const BenchOptions *bench, StepTimes *times, double peak_flops,
                              uint64_t beside_bytes) {
    double median = bench_median(times->seconds, times->n_steps), best = times->seconds[0]; /* now sorted */
    double n_tokens = (double)bench->batch * (double)bench->sequence;
    double flops = train_step_flops(&training->step);
    return (StepReport){
        .step_ms = median * 1e3,
        .best_ms = best * 1e3,
        .forward_ms = bench_median(times->forward_ms, times->n_steps),
        .backward_ms = bench_median(times->backward_ms, times->n_steps),
        .update_ms = bench_median(times->update_ms, times->n_steps),
        .tokens_per_s = n_tokens / median,
        .best_tokens_per_s = n_tokens / best,
        .flops = flops,
        .flops_per_s = flops / median,
        .standard_flops = model_flops_standard(model, bench->batch, bench->sequence, bench->recompute > 0),
        .peak_flops = peak_flops,
        .utilisation = program_useful_flops(&training->step.program) / median / peak_flops,
        .resident_bytes = memory_resident_peak_bytes(),
        .beside_bytes = beside_bytes,
    };
}

static void print_arithmetic(const StepReport *report, const char *limit) {
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

static void print_report(const BenchTraining *training, const BenchValues *values, const StepReport *report) {
    const BenchOptions *bench = &values->bench;
    const MemoryPlan *plan = &training->step.program.plan;
    bench_print_model(values, &training->table, &training->backend);
    printf("step: %lld x %lld tokens", (long long)bench->batch, (long long)bench->sequence);
    if (bench->micro_batch != bench->batch) {
        printf(" in micro-batches of %lld", (long long)bench->micro_batch);
    }
    printf(", %s%s, %s\n\n", optimizer_name((OptimizerKind)values->optimizer.kind),
           values->optimizer.eager ? " (eager)" : "",
           values->optimizer.clip > 0.0 ? "clipped" : "not clipped");
    printf("tokens/s    %.1f median, %.1f best of %lld steps\n", report->tokens_per_s,
           report->best_tokens_per_s, (long long)bench->n_steps);
    printf("step        %.2f ms: forward %.2f, backward %.2f, update %.2f\n", report->step_ms,
           report->forward_ms, report->backward_ms, report->update_ms);
    print_arithmetic(report, backend_has_own_memory(&training->backend)
                                 ? "a large product in the same numbers"
                                 : "a loop of multiply-adds between registers on the same threads");
    printf("memory      %s planned and allocated, of which activations %s; resident peak of the process %s\n",
           format_bytes(plan_total_bytes(plan)).text, format_bytes(plan->bytes[PLACE_ACTIVATION]).text,
           format_bytes(report->resident_bytes).text);
    if (backend_has_own_memory(&training->backend))
        printf("            the GPU's libraries and recordings took %s beside it\n",
               format_bytes(report->beside_bytes).text);
    printf("\n");
    executor_print_times(&training->step.executor, stdout);
}

static json_t *report_json(const BenchTraining *training, const BenchValues *values, const StepTimes *times,
                           const StepReport *report) {
    const BenchOptions *bench = &values->bench;
    json_t *object = bench_json("step", values, &training->table, training->backend.n_threads);
    json_object_set_new(object, "device", json_string(training->backend.name));
    json_object_set_new(object, "dtype", json_string(precision_names[bench->precision]));
    json_object_set_new(object, "batch", json_integer(bench->batch));
    json_object_set_new(object, "micro_batch", json_integer(bench->micro_batch));
    json_object_set_new(object, "sequence", json_integer(bench->sequence));
    json_object_set_new(object, "eager_update", json_boolean(values->optimizer.eager));
    json_object_set_new(object, "step", json_integer(bench->n_steps + bench->n_warmup_steps));
    json_object_set_new(object, "tokens", json_integer(bench->batch * bench->sequence));
    json_object_set_new(object, "loss", json_make_number(times->loss));
    json_object_set_new(object, "seconds", json_make_number(times->total_seconds));
    json_object_set_new(object, "tokens_per_s", json_make_number(report->tokens_per_s));
    json_object_set_new(object, "tokens_per_s_best", json_make_number(report->best_tokens_per_s));
    json_object_set_new(object, "step_ms", json_make_number(report->step_ms));
    json_object_set_new(object, "step_ms_best", json_make_number(report->best_ms));
    json_object_set_new(object, "forward_ms", json_make_number(report->forward_ms));
    json_object_set_new(object, "backward_ms", json_make_number(report->backward_ms));
    json_object_set_new(object, "update_ms", json_make_number(report->update_ms));
    json_object_set_new(object, "flops_per_step", json_make_number(report->flops));
    json_object_set_new(object, "flops_per_s", json_make_number(report->flops_per_s));
    json_object_set_new(object, "standard_flops_per_step", json_make_number(report->standard_flops));
    json_object_set_new(object, "standard_flops_per_s",
                        json_make_number(report->standard_flops / report->step_ms * 1e3));
    json_object_set_new(object, "limit_flops_per_s", json_make_number(report->peak_flops));
    json_object_set_new(object, "mfu", json_make_number(report->utilisation));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)training->memory.allocated_bytes));
    json_object_set_new(object, "resident_bytes", json_integer((json_int_t)report->resident_bytes));
    if (backend_has_own_memory(&training->backend))
        json_object_set_new(object, "beside_bytes", json_integer((json_int_t)report->beside_bytes));
    return object;
}

/* A device that runs behind the host tells the time of an instruction only if it is waited for: in one
 * further step. */
static Status time_instructions(BenchTraining *training, const BenchOptions *bench, Error *error) {
    StepResult result;
    executor_reset_times(&training->step.executor);
    training->step.executor.times_instructions = true;
    return train_step_run(&training->step, &training->source, bench->n_steps + bench->n_warmup_steps, 3e-4,
                          &result, error);
}

/* The most FLOP/s: by multiply-adds on the CPU, by a product on a GPU. */
static Status measure_peak(const BenchTraining *training, const BenchOptions *bench, double *flops_per_s,
                           Error *error) {
    const Backend *backend = &training->backend;
    double rate;
    if (!backend_has_own_memory(backend)) rate = bench_peak_flops(backend->n_threads);
    else TRY(bench_device_product(backend, (PrecisionKind)bench->precision, &rate, error));
    *flops_per_s = fmax(*flops_per_s, rate);
    return STATUS_OK;
}

/* What a GPU had free before the memory was taken and has no more, the plan's own left out. */
static uint64_t bytes_beside(const BenchTraining *training, uint64_t free_before) {
    const Backend *backend = &training->backend;
    uint64_t taken = training->memory.allocated_bytes + backend->free_bytes(backend->context);
    return free_before > taken ? free_before - taken : 0;
}

static Status measure(BenchTraining *training, BenchValues *values, Arena *arena, Error *error) {
    StepTimes times = {0};
    const Backend *backend = &training->backend;
    uint64_t free_before = backend->free_bytes(backend->context);
    double peak = 0.0;
    TRY(measure_peak(training, &values->bench, &peak, error));
    TRY(bench_training_open(training, error));
    TRY(run_steps(training, &values->bench, &times, arena, error));
    uint64_t beside = backend_has_own_memory(backend) ? bytes_beside(training, free_before) : 0;
    if (!backend_has_own_memory(backend)) TRY(measure_peak(training, &values->bench, &peak, error));
    int64_t n_steps = values->bench.n_steps + values->bench.n_warmup_steps;
    if (!isfinite(times.loss))
        return error_failed(error, "the loss is not a number after %lld steps", (long long)n_steps);
    StepReport report = make_report(training, &values->model, &values->bench, &times, peak, beside);
    if (backend->traits.is_asynchronous) TRY(time_instructions(training, &values->bench, error));
    print_report(training, values, &report);
    if (!values->bench.json) return STATUS_OK;
    return bench_print_json(report_json(training, values, &times, &report), error);
}

Status bench_step(BenchValues *values, Error *error) {
    BenchTraining training;
    Arena arena = {0};
    if (bench_training_plan(&training, values, error) == STATUS_OK) measure(&training, values, &arena, error);
    arena_free(&arena);
    bench_training_close(&training);
    return error->status;
}
