/* A step that does not fit is planned again with other choices until some do. */
#include "plan/step_memory.h"

#include "device/device.h"
#include "plan/advice.h"
#include "plan/host_memory.h"

static Status plan_choice(void *context, const MemoryChoice *choice, uint64_t *n_bytes, Error *error) {
    const StepMemory *memory = context;
    StepOptions options = memory->step->options;
    options.batch = choice->batch;
    options.micro_batch = choice->micro_batch;
    options.recompute = choice->recompute;
    options.precision = precision_of((PrecisionKind)choice->precision);
    TrainStep step;
    TRY(train_step_plan(&step, memory->model, memory->table, &options, &memory->step->optimizer_options,
                        memory->backend, error));
    *n_bytes = plan_total_bytes(&step.program.plan);
    train_step_close(&step);
    return STATUS_OK;
}

static uint64_t state_of_choice(void *context, const MemoryChoice *choice) {
    const StepMemory *memory = context;
    return memory_state_bytes(&memory->step->options.sync, choice, &memory->step->optimizer_options,
                              memory->table);
}

Status step_memory_check(const StepMemory *memory, Error *error) {
    const StepOptions *options = &memory->step->options;
    const Backend *backend = memory->backend;
    MemoryQuestion question = {.present = {.batch = options->batch,
                                           .micro_batch = options->micro_batch,
                                           .recompute = options->recompute,
                                           .recompute_blocks = options->recompute_blocks,
                                           .precision = (int)memory->precision},
                               .needed = plan_total_bytes(&memory->step->program.plan),
                               .usable = device_usable_bytes(backend),
                               .is_gpu = backend_has_own_memory(backend),
                               .has_one_micro_batch = memory->step->optimizer_options.eager,
                               .plan = plan_choice,
                               .state = state_of_choice,
                               .context = (void *)memory};
    if (question.needed <= question.usable)
        return host_memory_check(plan_bytes_of(&memory->step->program.plan, MEMORY_PINNED), backend, error);
    MemoryAdvice advice = memory_advise(&question);
    char text[512];
    return device_check_memory(backend, question.needed, "this training step",
                               memory_advice_text(&question, &advice, text, sizeof text), error);
}
