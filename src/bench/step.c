/* Time is the median over the steps, because a step that something else disturbed says nothing about the
 * program; the best one is beside it. The limit is measured before and after the steps on the same threads,
 * and the higher one counts. */
#include "bench/step.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "bench/kernels.h"
#include "bench/limits.h"
#include "bench/step_bound.h"
#include "model/model_flops.h"

#include <math.h>

typedef struct {
    double *seconds, *forward_ms, *backward_ms, *update_ms; /* of every timed step */
    int64_t n_steps;
    double total_seconds, loss;
    MoverCounts before, behind; /* the timed steps */
} StepTimes;

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
        if (i == 0) {
            executor_reset_times(&training->step.executor);
            times->before = mover_counts(training->memory.mover);
        }
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
    times->behind = mover_counts(training->memory.mover);
    return STATUS_OK;
}

static BenchStepReport make_report(const BenchTraining *training, const ModelConfig *model,
                                   const BenchOptions *bench, StepTimes *times, double peak_flops,
                                   uint64_t beside_bytes) {
    double median = bench_median(times->seconds, times->n_steps), best = times->seconds[0]; /* now sorted */
    double n_tokens = (double)bench->batch * (double)bench->sequence;
    double flops = train_step_flops(&training->step);
    return (BenchStepReport){
        .loss = times->loss,
        .total_seconds = times->total_seconds,
        .step_ms = median * 1e3,
        .best_ms = best * 1e3,
        .forward_ms = bench_median(times->forward_ms, times->n_steps),
        .backward_ms = bench_median(times->backward_ms, times->n_steps),
        .update_ms = bench_median(times->update_ms, times->n_steps),
        .tokens_per_s = n_tokens / median,
        .best_tokens_per_s = n_tokens / best,
        .flops = flops,
        .flops_per_s = flops / median,
        .standard_flops = model_flops_standard(
            model, bench->batch, bench->sequence,
            step_recomputed_part(bench->recompute, bench->recompute_blocks, 1, model->n_layers)),
        .peak_flops = peak_flops,
        .utilisation = program_useful_flops(&training->step.program) / median / peak_flops,
        .resident_bytes = memory_resident_peak_bytes(),
        .beside_bytes = beside_bytes,
    };
}

static bool has_tensor(Tensor *const *tensors, int n, const Tensor *wanted) {
    for (int i = 0; i < n; i++)
        if (wanted && tensors[i] == wanted) return true;
    return false;
}

/* Not: what reads or learns a parameter that no block has (embedding, final norm, head), the loss, the
 * update. */
static bool is_of_blocks(const BenchTraining *training, const Node *node) {
    const ParameterTensors *parameters = &training->step.loss.parameters;
    if (node->section != SECTION_FORWARD && node->section != SECTION_BACKWARD) return false;
    if (node->op == &OP_CROSS_ENTROPY || node->op == &OP_SUM) return false;
    for (int i = 0; i < training->table.n_parameters; i++) {
        const Tensor *tensor = parameters->tensor[i];
        if (training->table.parameter[i].block != NO_BLOCK) continue;
        if (has_tensor(node->input, node->n_inputs, tensor)) return false;
        if (has_tensor(node->output, node->n_outputs, tensor->gradient)) return false;
    }
    return true;
}

/* A step's mean: of those since the times were reset. */
static double blocks_ms(const BenchTraining *training, int64_t n_steps) {
    const Executor *executor = &training->step.executor;
    double sum = 0.0;
    for (int i = 0; i < executor->program->graph->n_nodes; i++)
        if (is_of_blocks(training, executor->program->graph->node[i]))
            sum += 1e-6 * (double)executor->instruction[i].elapsed_ns;
    return sum / (double)n_steps;
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

static Status measure(BenchTraining *training, const BenchSetup *setup, Arena *arena, BenchStepReport *report,
                      Error *error) {
    const BenchOptions *bench = &setup->bench;
    StepTimes times = {0};
    const Backend *backend = &training->backend;
    uint64_t free_before = backend->free_bytes(backend->context);
    double peak = 0.0;
    BenchBound bound = {0};
    TRY(measure_peak(training, bench, &peak, error));
    TRY(bench_bound_rates(training, &bound, error));
    TRY(bench_training_open(training, error));
    TRY(run_steps(training, bench, &times, arena, error));
    uint64_t beside = backend_has_own_memory(backend) ? bytes_beside(training, free_before) : 0;
    if (!backend_has_own_memory(backend)) TRY(measure_peak(training, bench, &peak, error));
    int64_t n_steps = bench->n_steps + bench->n_warmup_steps;
    if (!isfinite(times.loss))
        return error_failed(error, "the loss is not a number after %lld steps", (long long)n_steps);
    *report = make_report(training, &setup->model, bench, &times, peak, beside);
    bool is_timed_apart = backend->traits.is_asynchronous;
    if (is_timed_apart) TRY(time_instructions(training, bench, error));
    report->blocks_ms = blocks_ms(training, is_timed_apart ? 1 : bench->n_steps);
    TRY(bench_bound_rates(training, &bound, error));
    bench_bound_make(training, &times.before, &times.behind, bench->n_steps,
                     is_timed_apart ? 1 : bench->n_steps, &bound);
    report->bound = bound;
    return STATUS_OK;
}

Status bench_step_measure(BenchTraining *training, const BenchSetup *setup, BenchStepReport *report,
                          Error *error) {
    Arena arena = {0};
    measure(training, setup, &arena, report, error);
    arena_free(&arena);
    return error->status;
}
