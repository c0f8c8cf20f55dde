/* Steps are told apart in what every rank records of itself (base/system/activity.h): a step ends with its
 * last update. Those at the ends of a run do not count, in which a pipeline fills and empties. Of the others
 * the median does: a machine that does something else for a moment delays all stages in turn, and what is
 * waited for then is no bubble of the schedule.
 *
 * The model is as small as can be, but what crosses a border is too long to be sent without the other side's
 * word (the rendezvous of MPI libraries): 8 KiB. Its token table is not tied, and nothing is clipped, since
 * both ask stages to meet. */
#include "lab/pipeline/pipeline_run.h"

#include "base/system/timer.h"
#include "device/device.h"
#include "lab/pipeline/sleeping_stage.h"
#include "model/stages.h"
#include "trace/trace.h"
#include "train/loop/unflushed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 16, HEADS = 2, VOCABULARY = 64, POSITIONS = 128, SEED = 1 };
static const double rate = 1e-3;

static void fill(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens,
                 int32_t *targets) {
    (void)context;
    for (int64_t i = 0; i < B * T; i++) {
        tokens[i] = (int32_t)(((uint64_t)i * 7 + first_sequence) % VOCABULARY);
        targets[i] = (int32_t)(((uint64_t)i * 11 + first_sequence) % VOCABULARY);
    }
}

/* ---- open */

/* A block for every chunk of every stage. */
static Status build_part(PipelineRun *run, const ModelConfig *config, Error *error) {
    const PipelineTrial *trial = &run->trial;
    Arena arena = {0};
    Stages stages;
    StagesOptions options = {
        .schedule = trial->kind, .shape = trial->shape, .n_tp = 1, .B = 1, .T = POSITIONS};
    char text[2 * SCHEDULE_MAX_CHUNKS] = "1";
    for (int i = 1; i < config->n_layers; i++) snprintf(text + 2 * i - 1, sizeof text - 2 * (size_t)i, ",1");
    if (stages_parse(&stages, text, config, &options, &arena, error) == STATUS_OK)
        run->part = stages_part(&stages, run->mesh.coordinate[AXIS_PP], 1, 0);
    arena_free(&arena);
    TRY(error->status);
    return parameters_build_part(&run->table, config, &run->part, error);
}

static Status open_mesh(PipelineRun *run, const ModelConfig *config, Error *error) {
    const ScheduleShape *shape = &run->trial.shape;
    MeshShape mesh = {.size = {[AXIS_PP] = shape->n_stages, 1, 1, 1, 1}};
    PipelineLayout layout = {run->trial.kind, shape->n_stages, shape->n_chunks};
    DeviceOptions device = {.kind = DEVICE_CPU, .n_threads = 1, .n_streams = 1};
    TRY(model_mesh_open(&run->mesh, &mesh, config, &run->launch->world, error));
    TRY(device_backend_open(&run->backend, &device, error));
    run->has_backend = true;
    return model_pipeline_open(&run->pipeline, &run->mesh, &layout, error);
}

Status pipeline_run_open(PipelineRun *run, const PipelineTrial *trial, Launch *launch, Error *error) {
    int v = trial->shape.n_chunks;
    *run = (PipelineRun){.trial = *trial, .launch = launch};
    run->chunk_times = (StageTimes){trial->times.forward / v, trial->times.input_gradient / v,
                                    trial->times.weight_gradient / v};
    ModelConfig config = {.n_layers = v * trial->shape.n_stages,
                          .n_heads = HEADS,
                          .n_channels = CHANNELS,
                          .context = POSITIONS,
                          .bias = true};
    OptimizerOptions optimizer = {.rate = rate, .adamw = {0.9, 0.99, 1e-8}};
    TRY(config_complete(&config, VOCABULARY, error));
    TRY(open_mesh(run, &config, error));
    TRY(build_part(run, &config, error));
    StepOptions options = {.batch = trial->shape.n_micro_batches,
                           .micro_batch = 1,
                           .T = POSITIONS,
                           .seed = SEED,
                           .sync = {.mesh = &run->mesh, .bucket_bytes = 1 << 20, .overlaps = true},
                           .pipeline = &run->pipeline,
                           .part = &run->part,
                           .record_stage = sleeping_stage_record,
                           .stage_context = &run->chunk_times,
                           .precision = precision_of(PRECISION_F32)};
    TRY(train_step_plan(&run->step, &config, &run->table, &options, &optimizer, &run->backend, error));
    run->has_step = true;
    device_require(&run->memory, &run->step.program.plan);
    TRY(device_open(&run->memory, &run->backend, error));
    TRY(train_step_open(&run->step, &run->memory, error));
    return train_step_initialise(&run->step, &run->table, SEED, 1, error);
}

void pipeline_run_close(PipelineRun *run) {
    if (run->has_step) train_step_close(&run->step);
    device_close(&run->memory);
    parameters_free(&run->table);
    model_pipeline_close(&run->pipeline, NULL);
    if (run->launch) model_mesh_close(&run->mesh, NULL);
    if (run->is_watched) activity_close(&run->activity);
    if (run->has_backend) run->backend.close(run->backend.context);
    *run = (PipelineRun){0};
}

/* ---- measure */

/* Steps that follow each other without a meeting. What they found is of no interest. */
static Status run_steps(PipelineRun *run, int n, Error *error) {
    BatchSource source = {fill, NULL};
    int64_t first = run->n_done;
    run->n_done += n;
    if (step_is_unflushed(&run->step)) {
        double rates[UNFLUSHED_MOST_STEPS];
        StepResult results[UNFLUSHED_MOST_STEPS];
        for (int i = 0; i < n; i++) rates[i] = rate;
        StretchSteps steps = {.source = &source, .index = first, .n_steps = n, .rates = rates};
        return unflushed_run(&run->step, &steps, results, error);
    }
    for (int i = 0; i < n; i++) TRY(train_step_begin(&run->step, &source, first + i, rate, error));
    return STATUS_OK;
}

/* ---- what was recorded */

typedef struct {
    double period_ms, idle_ms;
} StepTime;

/* Of the steps behind the first on this rank; a step has n_updates. */
static Status read_steps(const Activity *activity, int n_updates, int n_steps, StepTime *times,
                         Error *error) {
    uint64_t end_ns = 0;
    double idle_ms = 0.0;
    int n_seen = 0, n_ended = 0;
    for (size_t i = 0; i < activity_n_recorded(activity) && n_ended <= n_steps; i++) {
        const ActivityEvent *event = activity_recorded(activity, i);
        if (event->entry.kind == ACTIVITY_WAIT) idle_ms += 1e-6 * (double)(event->end_ns - event->begin_ns);
        bool is_update =
            event->entry.kind == ACTIVITY_STEP && strcmp(event->entry.name, action_name(ACTION_UPDATE)) == 0;
        if (!is_update || ++n_seen % n_updates) continue;
        if (n_ended) times[n_ended - 1] = (StepTime){1e-6 * (double)(event->end_ns - end_ns), idle_ms};
        n_ended++;
        end_ns = event->end_ns;
        idle_ms = 0.0;
    }
    if (activity_n_lost(activity) == 0 && n_ended > n_steps) return STATUS_OK;
    return error_failed(error, "%d of %d steps were recorded; give fewer --micro-batches or --steps", n_ended,
                        n_steps + 1);
}

static int by_period(const void *a, const void *b) {
    const StepTime *x = a, *y = b;
    return x->period_ms < y->period_ms ? -1 : x->period_ms > y->period_ms;
}

/* The mean over the stages of each, then the median. */
static Status summarise(PipelineRun *run, StepTime *times, PipelineMeasured *measured, Error *error) {
    int n = run->trial.n_steps, n_ranks = run->launch->world.size;
    TRY(comm_all_reduce(&run->launch->world, times, 2 * n, COMM_F64, COMM_SUM, error));
    qsort(times, (size_t)n, sizeof *times, by_period);
    measured->step_ms = times[n / 2].period_ms / n_ranks;
    measured->bubble_share = times[n / 2].idle_ms / times[n / 2].period_ms;
    return STATUS_OK;
}

static Status most_of_all(PipelineRun *run, PipelineMeasured *measured, Error *error) {
    const MemoryPlan *plan = &run->step.program.plan;
    int64_t most[2] = {0, plan->n_versions};
    for (int chunk = 0; chunk < plan->n_chunks; chunk++) most[0] += plan->chunk[chunk].n_frames;
    TRY(comm_all_reduce(&run->launch->world, most, 2, COMM_I64, COMM_MAX, error));
    measured->held = (double)most[0] / run->trial.shape.n_chunks;
    measured->n_versions = (int)most[1];
    return STATUS_OK;
}

/* From now on it says what it does, in a recorder of its own. */
static void watch(PipelineRun *run) {
    if (run->is_watched) activity_close(&run->activity);
    activity_open(&run->activity);
    run->is_watched = true;
    train_step_watch(&run->step, &run->activity);
    pipeline_watch(&run->pipeline, &run->activity);
}

Status pipeline_run_measure(PipelineRun *run, PipelineMeasured *measured, Error *error) {
    enum { MOST_EVENTS = 1 << 19 };
    const ScheduleShape *shape = &run->trial.shape;
    StepTime times[PIPELINE_RUN_MOST_STEPS];
    bool is_unflushed = step_is_unflushed(&run->step);
    bool updates_each = schedule_info(run->trial.kind)->updates_each;
    int n_around = is_unflushed ? 2 + shape->n_stages / shape->n_micro_batches : 1;
    TRY(run_steps(run, 1, error)); /* touches the memory for the first time */
    watch(run);
    activity_prepare_recorder(&run->activity, MOST_EVENTS, error);
    TRY(launch_agree(run->launch, error));
    TRY(comm_barrier(&run->launch->world, error));
    activity_record(&run->activity, true);
    TRY(run_steps(run, run->trial.n_steps + n_around, error));
    activity_record(&run->activity, false);
    read_steps(&run->activity, updates_each ? shape->n_micro_batches : 1, run->trial.n_steps, times, error);
    TRY(launch_agree(run->launch, error));
    TRY(summarise(run, times, measured, error));
    return most_of_all(run, measured, error);
}

/* ---- trace */

Status pipeline_run_trace(PipelineRun *run, int n_steps, const char *path, Error *error) {
    Trace trace = {0};
    TraceSummary summary;
    watch(run);
    TraceSetup setup = {.activity = &run->activity,
                        .world = &run->launch->world,
                        .host = run->launch->host,
                        .steps = "",
                        .next_step = 1,
                        .n_steps = n_steps};
    if (trace_open(&trace, &setup, error) == STATUS_OK && comm_barrier(setup.world, error) == STATUS_OK) {
        trace_before_step(&trace, 1);
        run_steps(run, n_steps, error);
    }
    if (launch_agree(run->launch, error) == STATUS_OK) trace_write(&trace, path, &summary, error);
    trace_close(&trace);
    return launch_agree(run->launch, error);
}
