/* A run's pipeline: which schedule in how many chunks, which blocks each stage has, how many
 * micro-batches. */
#include "job/train_run.h"

#include "base/divisor.h"
#include "train/model_mesh.h"
#include "train/options.h"

#include <stdlib.h>

bool train_has_pipeline(const TrainRun *run) {
    return run->shape.size[AXIS_PP] > 1;
}

static int64_t micro_batches(const TrainRun *run, int64_t micro_batch) {
    int64_t n_shares = (int64_t)run->shape.size[AXIS_DP] * run->shape.size[AXIS_EP],
            batch = run->values.train.batch;
    int64_t share = (batch + n_shares - 1) / n_shares;
    return (share + micro_batch - 1) / micro_batch;
}

static ScheduleShape shape_of(const TrainRun *run, int64_t micro_batch) {
    int64_t most = SCHEDULE_MAX_MICRO_BATCHES, n = micro_batches(run, micro_batch);
    return (ScheduleShape){.n_micro_batches = (int)(n < most ? n : most + 1),
                           .n_stages = run->layout.n_stages,
                           .n_chunks = run->layout.n_chunks};
}

/* Where nobody says: enough of them to keep the stages busy (a bubble of a fifth or less for 1F1B), as large
 * as that allows. */
static int64_t chosen_micro_batch(const TrainRun *run) {
    enum { MICRO_BATCHES_A_STAGE = 4 };
    int64_t batch = run->values.train.batch, share = micro_batches(run, 1);
    int64_t wanted = (int64_t)MICRO_BATCHES_A_STAGE * run->layout.n_stages;
    if (wanted > share) wanted = share;
    for (int64_t size = divisor_at_most(batch, share); size > 1; size = divisor_at_most(batch, size - 1)) {
        Error none = {0};
        ScheduleShape shape = shape_of(run, size);
        if (shape.n_micro_batches >= wanted &&
            schedule_check_shape(run->layout.kind, &shape, &none) == STATUS_OK)
            return size;
    }
    return 1;
}

/* Where nobody says: as many chunks as the schedule is made for. An interleaved one takes any number, and
 * stages wait for each other where chunks differ: one more or two, if the blocks then divide evenly. */
static int chosen_chunks(const TrainRun *run, ScheduleKind kind) {
    int64_t n_blocks = run->values.model.n_layers, n_stages = run->shape.size[AXIS_PP];
    int n_usual = schedule_info(kind)->default_chunks;
    for (int n = n_usual; kind == SCHEDULE_INTERLEAVED && n <= n_usual + 2; n++)
        if (n_blocks % (n_stages * n) == 0) return n;
    return n_usual;
}

void train_pipeline_choose(TrainRun *run) {
    const ParallelOptions *parallel = &run->values.parallel;
    ScheduleKind kind = (ScheduleKind)parallel->schedule;
    int n_chunks = (int)parallel->n_chunks;
    run->layout = (PipelineLayout){.kind = kind,
                                   .n_stages = run->shape.size[AXIS_PP],
                                   .n_chunks = n_chunks ? n_chunks : chosen_chunks(run, kind)};
    if (train_has_pipeline(run) && !run->values.train.micro_batch)
        run->values.train.micro_batch = chosen_micro_batch(run);
}

/* What other options of the run a pipeline cannot do with. */
static Status check_others(const TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    const ScheduleInfo *info = schedule_info(run->layout.kind);
    if (info->is_asynchronous && precision_of((PrecisionKind)values->train.precision).scales_loss) {
        return error_user(error,
                          "--schedule %s is not flushed between steps, and the loss scale of f16 needs all "
                          "gradients of one; choose --dtype bf16, or a synchronous schedule (1f1b)",
                          info->name);
    }
    if (info->is_asynchronous && values->optimizer.clip_style == CLIP_CHECK) {
        return error_user(error,
                          "--schedule %s lets every stage clip by a norm of its own, and no update waits: "
                          "--clip-style check means nothing there; leave it out",
                          info->name);
    }
    if (info->is_asynchronous && values->model.n_experts && values->model.router == ROUTER_BALANCE_FREE) {
        return error_user(
            error,
            "--schedule %s is not flushed between steps, and --router balance-free moves its biases by the "
            "load of whole ones; choose a synchronous schedule (1f1b), or another router (topk)",
            info->name);
    }
    if (values->async.sync != SYNC_EXACT) {
        return error_user(error,
                          "--sync %s is of whole models, and --pp %d divides each among ranks; leave one out",
                          sync_names[values->async.sync], run->layout.n_stages);
    }
    if (values->optimizer.eager) {
        return error_user(error,
                          "--eager-update is for one process, and --pp %d divides the model among "
                          "ranks; give --no-eager-update",
                          run->layout.n_stages);
    }
    return STATUS_OK;
}

/* --recompute-stages: a number a stage. */
static Status parse_recompute(TrainRun *run, Error *error) {
    enum { MOST = 1000 };
    const char *text = run->values.parallel.recompute, *at = text;
    int n_stages = run->layout.n_stages, n = 0;
    char all[24];
    if (run->values.train.recompute)
        return error_user(error,
                          "--recompute-stages %s says of each stage what --recompute %s says of "
                          "all; give one of them",
                          text, recompute_text(run->values.train.recompute, all, sizeof all));
    run->recompute = ARENA_ARRAY(&run->options.arena, int64_t, n_stages);
    for (bool is_more = true; is_more; n++) {
        char *end;
        long long value = *at >= '0' && *at <= '9' ? strtoll(at, &end, 10) : -1;
        if (value < 0 || value > MOST || (*end && *end != ','))
            return error_user(error,
                              "--recompute-stages %s: number %d is not one from 0 to %d; give one for "
                              "each of %d stages, separated by commas",
                              text, n + 1, MOST, n_stages);
        if (n < n_stages) run->recompute[n] = value;
        is_more = *end == ',';
        at = end + is_more;
    }
    if (n != n_stages)
        return error_user(error, "--recompute-stages %s is of %d stage%s; --pp %d has %d", text, n,
                          n == 1 ? "" : "s", n_stages, n_stages);
    return STATUS_OK;
}

/* More than lists of actions may have: the smallest micro-batch that is large enough. */
static Status check_micro_batches(const TrainRun *run, Error *error) {
    const TrainOptions *train = &run->values.train;
    int64_t share = micro_batches(run, 1), most = SCHEDULE_MAX_MICRO_BATCHES / run->layout.n_chunks;
    if (micro_batches(run, train->micro_batch) <= most) return STATUS_OK;
    return error_user(
        error,
        "--micro-batch %lld cuts the %lld sequences of a rank into more than the %lld micro-batches that a "
        "pipeline%s can have; raise it to %lld, or lower --batch",
        (long long)train->micro_batch, (long long)share, (long long)most,
        run->layout.n_chunks > 1 ? " of so many chunks" : "",
        (long long)divisor_at_least(train->batch, (share + most - 1) / most));
}

Status train_pipeline_complete(TrainRun *run, Error *error) {
    const TrainOptions *train = &run->values.train;
    const char *text = run->values.parallel.stages;
    if (!train_has_pipeline(run)) return STATUS_OK;
    ScheduleShape shape = shape_of(run, train->micro_batch);
    TRY(check_others(run, error));
    TRY(check_micro_batches(run, error));
    if (*run->values.parallel.recompute) TRY(parse_recompute(run, error));
    TRY(schedule_check_shape(run->layout.kind, &shape, error));
    StagesOptions options = {.schedule = run->layout.kind,
                             .shape = shape,
                             .n_tp = run->shape.size[AXIS_TP],
                             .n_ranks = run->shape.size[AXIS_PP] * run->shape.size[AXIS_DP],
                             .B = train->micro_batch,
                             .T = train->sequence};
    return *text ? stages_parse(&run->stages, text, &run->values.model, &options, &run->options.arena, error)
                 : stages_balance(&run->stages, &run->values.model, &options, &run->options.arena, error);
}

void train_part_choose(TrainRun *run) {
    const Mesh *mesh = &run->mesh;
    run->part = parameter_part_whole(&run->values.model);
    if (train_has_pipeline(run))
        run->part = stages_part(&run->stages, mesh->coordinate[AXIS_PP], mesh->shape.size[AXIS_TP],
                                mesh->coordinate[AXIS_TP]);
    parameter_part_set_rank(&run->part, mesh);
    run->part.style = (TensorStyle)run->values.parallel.tensor_style;
}

Status train_pipeline_open(TrainRun *run, Error *error) {
    train_part_choose(run);
    if (!train_has_pipeline(run)) return STATUS_OK;
    return model_pipeline_open(&run->pipeline, &run->mesh, &run->layout, error);
}
