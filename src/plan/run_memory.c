/* A run that does not fit is planned again with other choices until some do, so that the advice is a plan's,
 * not a guess. */
#include "plan/run_memory.h"

#include "base/system/memory.h"
#include "base/text/format.h"
#include "device/device.h"
#include "plan/advice.h"
#include "plan/host_memory.h"

#include <stdio.h>

/* On the backend. Checkpoints are copied to the host. */
static uint64_t needed_bytes(const Trainer *trainer) {
    uint64_t copies = saver_planned_bytes(&trainer->saver);
    return trainer_planned_bytes(trainer) - (backend_has_own_memory(trainer->setup.backend) ? copies : 0);
}

/* The same run with another choice. */
static Status plan_choice(void *context, const MemoryChoice *choice, uint64_t *n_bytes, Error *error) {
    const Trainer *present = context;
    TrainOptions options = *present->setup.options;
    ParallelOptions parallel = {0};
    TrainerSetup setup = present->setup;
    options.batch = choice->batch;
    if (choice->micro_batch != present->step.B) options.micro_batch = choice->micro_batch;
    options.recompute = setup.recompute = choice->recompute;
    options.precision = choice->precision;
    setup.options = &options;
    Offload offload = present->step.options.offload;
    if (choice->offloads && !offload_has(&offload, OFFLOAD_OPTIMIZER))
        offload.to[OFFLOAD_OPTIMIZER] =
            backend_has_own_memory(present->setup.backend) ? OFFLOAD_HOST : OFFLOAD_FILE;
    setup.offload = &offload;
    if (setup.parallel) {
        parallel = *setup.parallel;
        parallel.zero = choice->zero;
        setup.parallel = &parallel;
    }
    Trainer other;
    if (trainer_plan(&other, &setup, error) == STATUS_OK) *n_bytes = needed_bytes(&other);
    trainer_close(&other);
    return error->status;
}

static uint64_t state_of_choice(void *context, const MemoryChoice *choice) {
    const Trainer *trainer = context;
    return memory_state_bytes(&trainer->step.options.sync, choice, trainer->setup.optimizer, &trainer->table);
}

typedef struct {
    char text[64];
} ShareText;

static ShareText share_text(int n_sharing, bool is_gpu) {
    ShareText share = {{0}};
    if (n_sharing > 1)
        snprintf(share.text, sizeof share.text, " for each of the %d on this %s", n_sharing,
                 is_gpu ? "GPU" : "host");
    return share;
}

static bool keeps_state(const Trainer *trainer) {
    return trainer->step.optimizer.n_moments > 0 || trainer->step.optimizer.master;
}

static bool may_offload(const Trainer *trainer) {
    return keeps_state(trainer) && !trainer->step.options.sync.is_async;
}

/* Of a step: the state comes and goes. Over a device's bus it does both at once, so one way is what takes the
 * time; a disk has one queue for both. */
static double offload_bytes(const Trainer *trainer) {
    const OptimizerTensors *optimizer = &trainer->step.optimizer;
    double state = 0.0;
    for (int i = 0; i < optimizer->n_moments; i++) state += (double)tensor_bytes(optimizer->moment[i]);
    if (optimizer->master) state += (double)tensor_bytes(optimizer->master);
    return backend_has_own_memory(trainer->setup.backend) ? state : 2.0 * state;
}

static Status refuse(const Trainer *trainer, uint64_t needed, uint64_t usable, int n_sharing, Error *error) {
    const TrainerSetup *setup = &trainer->setup;
    bool is_gpu = backend_has_own_memory(setup->backend);
    int n_ranks = trainer_n_ranks(trainer);
    MemoryQuestion question = {
        .present = {.batch = trainer->step.options.batch,
                    .micro_batch = trainer->step.B,
                    .recompute = trainer->step.options.recompute,
                    .recompute_blocks = trainer->step.options.recompute_blocks,
                    .precision = setup->options->precision,
                    .zero = trainer->step.options.sync.zero,
                    .offloads = offload_has(&trainer->step.options.offload, OFFLOAD_OPTIMIZER)},
        .needed = needed,
        .usable = usable,
        .n_ranks = n_ranks,
        .is_gpu = is_gpu,
        .has_one_micro_batch = trainer->step.optimizer_options.eager,
        .may_offload = may_offload(trainer),
        .offload_bytes = offload_bytes(trainer),
        .plan = plan_choice,
        .state = state_of_choice,
        .context = (void *)trainer,
    };
    MemoryAdvice advice = memory_advise(&question);
    char text[512];
    return error_user(error, "this run needs %s%s%s (%s of it activations), %s are free%s%s; %s",
                      format_bytes(needed).text, is_gpu ? " of the GPU's memory" : "",
                      n_ranks > 1 ? " for each rank" : "",
                      format_bytes(trainer->memory.bytes[PLACE_ACTIVATION]).text, format_bytes(usable).text,
                      share_text(n_sharing, is_gpu).text, is_gpu ? " beside what its libraries take" : "",
                      memory_advice_text(&question, &advice, text, sizeof text));
}

/* What a run can do without is left out first: it need not learn otherwise then. Says nothing where that is
 * not enough. */
static Status refuse_extras(const Trainer *trainer, uint64_t needed, uint64_t usable, int n_sharing,
                            Error *error) {
    bool is_gpu = backend_has_own_memory(trainer->setup.backend);
    uint64_t copies = is_gpu ? 0 : saver_planned_bytes(&trainer->saver),
             samples = trainer_sampling_bytes(trainer);
    const struct {
        uint64_t n_bytes;
        const char *purpose, *options;
    } extra[] = {
        {copies, "write checkpoints while training goes on", "--no-background-save"},
        {samples, "write samples", "--sample-tokens 0"},
        {copies + samples, "write samples, and checkpoints while training goes on",
         "--sample-tokens 0 --no-background-save"},
    };
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        if (needed - extra[i].n_bytes > usable) continue;
        return error_user(error, "this run needs %s%s%s (%s of it to %s), %s are free%s%s; use %s",
                          format_bytes(needed).text, is_gpu ? " of the GPU's memory" : "",
                          trainer_n_ranks(trainer) > 1 ? " for this rank" : "",
                          format_bytes(extra[i].n_bytes).text, extra[i].purpose, format_bytes(usable).text,
                          share_text(n_sharing, is_gpu).text, is_gpu ? " beside what its libraries take" : "",
                          extra[i].options);
    }
    return STATUS_OK;
}

/* Ranks with memory from the same place are about to ask for as much each, so a rank counts on its share
 * only; with n_sharing = 1 on all. */
static Status check_memory(const Trainer *trainer, int n_sharing, Error *error) {
    uint64_t needed = needed_bytes(trainer);
    Backend backend = *trainer->setup.backend;
    backend.n_sharing = n_sharing;
    uint64_t usable = device_usable_bytes(&backend);
    if (backend_has_own_memory(&backend))
        TRY(memory_check(saver_planned_bytes(&trainer->saver), "the copies that checkpoints are written from",
                         "use --no-background-save", error));
    if (needed <= usable)
        return host_memory_check(device_bytes_of(&trainer->memory, MEMORY_PINNED), &backend, error);
    TRY(refuse_extras(trainer, needed, usable, n_sharing, error));
    return refuse(trainer, needed, usable, n_sharing, error);
}

Status run_memory_check(const Trainer *trainer, Error *error) {
    return check_memory(trainer, trainer->setup.backend->n_sharing, error);
}

/* ---- --offload auto */

/* For whom, and what is free for it: NULL: what is here. */
typedef struct {
    const TrainerSetup *setup;
    const MemoryRoom *room;
} Choosing;

/* Does it fit, with this offload? */
typedef struct {
    bool fits, keeps_state;
} OffloadTrial;

static bool fits_here(const Trainer *trainer, size_t n_host) {
    const Backend *backend = trainer->setup.backend;
    int n_ranks = backend->n_on_host > 1 ? backend->n_on_host : 1;
    return needed_bytes(trainer) <= device_usable_bytes(backend) &&
           n_host <= memory_available_bytes() / (uint64_t)n_ranks;
}

static Status try_offload(const Choosing *choosing, const Offload *offload, OffloadTrial *trial,
                          Error *error) {
    const MemoryRoom *room = choosing->room;
    TrainerSetup other = *choosing->setup;
    Trainer trainer;
    other.offload = offload;
    if (trainer_plan(&trainer, &other, error) == STATUS_OK) {
        size_t n_host = device_bytes_of(&trainer.memory, MEMORY_PINNED);
        trial->fits = room ? trainer_planned_bytes(&trainer) <= room->device && n_host <= room->host
                           : fits_here(&trainer, n_host);
        trial->keeps_state = keeps_state(&trainer);
    }
    trainer_close(&trainer);
    return error->status;
}

/* The largest share that may stay, in SHARES-ths, of those from which on it fits. */
static Status find_share(const Choosing *choosing, Offload *offload, OffloadTrial *trial, Error *error) {
    enum { SHARES = 32 };
    int low = 0, high = SHARES; /* fits with low, if with any */
    offload->share = 0.0;
    TRY(try_offload(choosing, offload, trial, error));
    while (trial->fits && high - low > 1) {
        int middle = (low + high) / 2;
        OffloadTrial with = {0};
        offload->share = (double)middle / SHARES;
        TRY(try_offload(choosing, offload, &with, error));
        if (with.fits) low = middle;
        else high = middle;
    }
    offload->share = (double)low / SHARES;
    return STATUS_OK;
}

/* A sampler reads the weights, and so do several versions of a pipeline's; a GPU takes the norm of the
 * gradient of all of it at once, and a late update keeps a second one. */
static bool may_go(const TrainerSetup *setup, Offloaded what, OffloadTo to) {
    const Pipeline *pipeline = setup->pipeline;
    bool is_unflushed = pipeline && schedule_info(pipeline->layout.kind)->is_asynchronous;
    if (what == OFFLOAD_WEIGHTS) return setup->options->sample_tokens == 0 && !is_unflushed;
    if (to == OFFLOAD_HOST) return !setup->optimizer->eager;
    return !setup->optimizer->eager && !setup->optimizer->n_prompt && !backend_has_own_memory(setup->backend);
}

/* Where the host has no room for all of what the device has none for, a share in between may have. */
static Status offload_optimizer(const Choosing *choosing, Offload *offload, OffloadTrial *trial,
                                Error *error) {
    OffloadTo to = offload->to[OFFLOAD_OPTIMIZER];
    TRY(find_share(choosing, offload, trial, error));
    for (int i = 3; i > 0 && !trial->fits && to == OFFLOAD_HOST; i--) { /* too much for the host */
        offload->share = i / 4.0;
        TRY(try_offload(choosing, offload, trial, error));
    }
    return STATUS_OK;
}

/* Optimizer state first, where there is any: it crosses the bus once a step, activations once a
 * micro-batch. */
static Status choose_offload(const Choosing *choosing, Offload *offload, Error *error) {
    OffloadTo to = offload->automatic;
    OffloadTrial trial = {0};
    if (to == OFFLOAD_NOWHERE) return STATUS_OK;
    offload->automatic = OFFLOAD_NOWHERE;
    TRY(try_offload(choosing, offload, &trial, error));
    if (trial.fits) return STATUS_OK;
    if (trial.keeps_state) {
        offload->to[OFFLOAD_OPTIMIZER] = to;
        TRY(offload_optimizer(choosing, offload, &trial, error));
        if (trial.fits) return STATUS_OK;
    }
    offload->share = 0.0;
    offload->to[OFFLOAD_ACTIVATIONS] = to;
    TRY(find_share(choosing, offload, &trial, error));
    for (int i = 0; i < 2 && !trial.fits; i++) { /* what moves in every micro-batch comes last */
        static const Offloaded last[] = {OFFLOAD_GRADIENTS, OFFLOAD_WEIGHTS};
        if (!may_go(choosing->setup, last[i], to)) continue;
        offload->to[last[i]] = to;
        TRY(try_offload(choosing, offload, &trial, error));
    }
    return STATUS_OK;
}

Status run_memory_choose_offload(const TrainerSetup *setup, Offload *offload, Error *error) {
    if (setup->backend->only_plans) return STATUS_OK;
    return choose_offload(&(Choosing){setup, NULL}, offload, error);
}

Status run_memory_plan_offload(const TrainerSetup *setup, const MemoryRoom *room, Offload *offload,
                               Error *error) {
    return choose_offload(&(Choosing){setup, room}, offload, error);
}

/* Where somebody else has taken memory since it was checked, what was said then is said now. Those who share
 * it may have theirs. */
Status run_memory_open(Trainer *trainer, Error *error) {
    if (trainer_open(trainer, error) == STATUS_OK || trainer->memory.allocated_bytes) return error->status;
    Error shortage = {0};
    if (check_memory(trainer, 1, &shortage) != STATUS_OK) *error = shortage;
    return error->status;
}
