/* --layout auto: the tuner's best layout on the ranks that there are (job/plan_tune.h). Every rank finds it
 * for itself, from the same options and the same machine file: the same one. */
#include "job/plan_tune.h"

#include "device/device.h"

enum { USUAL_VOCABULARY = 50257 }; /* where the tokenizer, which is not read yet, decides */

static Status tune(const TrainRun *run, bool is_gpu, TunedLayout *best, Error *error) {
    PlanRun plan = {.train = *run, .n_ranks = run->launch->world.size};
    TrainCommand *values = &plan.train.values;
    PlanTuning tuning;
    DeviceOptions device = {.kind = is_gpu ? DEVICE_CUDA : DEVICE_CPU,
                            .n_threads = 1,
                            .precision = (PrecisionKind)values->train.precision,
                            .n_streams = (int)values->train.n_streams};
    values->train.prompt = "";
    if (!values->train.n_threads) values->train.n_threads = 1;
    TRY(config_complete(&values->model,
                        values->model.vocabulary ? values->model.vocabulary : USUAL_VOCABULARY, error));
    TRY(machine_open(&plan.machine, is_gpu ? "h200" : "cpu", error));
    TRY_GOTO(device_plan_open(&plan.train.backend, &device, error), done);
    TuneOptions options = {.n_best = 1, .n_plans = 8, .n_threads = 1, .is_quick = true}; /* all ranks do it */
    if (plan_tune(&plan, &options, &tuning, error) == STATUS_OK) {
        *best = tuning.best[0];
        plan_tuning_free(&tuning);
    }
    plan.train.backend.close(plan.train.backend.context);
done:
    machine_close(&plan.machine);
    return error->status;
}

Status train_layout_choose(TrainRun *run, Error *error) {
    TrainCommand *values = &run->values;
    TunedLayout best = {0};
    Arena arena = {0};
    if (values->parallel.layout != LAYOUT_AUTO || run->launch->world.size == 1) return STATUS_OK;
    bool is_gpu = device_takes_gpu(values->train.device);
    if (tune(run, is_gpu, &best, error) != STATUS_OK) return error_prefix(error, "--layout auto: ");
    for (int axis = 0; axis < N_AXES; axis++) values->parallel.size[axis] = best.layout.size[axis];
    values->parallel.schedule = (int)best.layout.schedule;
    values->parallel.n_chunks = best.layout.size[AXIS_PP] > 1 ? best.layout.n_chunks : 0;
    values->parallel.zero = best.layout.zero;
    values->train.micro_batch = best.layout.micro_batch;
    values->train.recompute = best.layout.recompute;
    if (best.layout.has_no_samples) values->train.sample_tokens = 0;
    PlanRun words = {.machine = {.machine = {.host = {.n_cores = !is_gpu}}}};
    log_note(&run->log, "--layout auto: %s", plan_layout_text(&words, &best.layout, &arena));
    arena_free(&arena);
    return STATUS_OK;
}
