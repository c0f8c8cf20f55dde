/* What one step more costs is the difference of a longer run and a shorter one: how the pipeline fills and
 * empties is in both. It is the simulator's question to schedules without a flush (schedule_simulate.c), and
 * an answer for the others, too, whose stages need not end a step together.
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
#include "train/unflushed.h"

#include <math.h>

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
        return unflushed_run(&run->step, &source, first, n, rates, results, error);
    }
    for (int i = 0; i < n; i++) TRY(train_step_begin(&run->step, &source, first + i, rate, error));
    return STATUS_OK;
}

typedef struct {
    double wall_ms, busy_ms; /* the latter of this rank */
} Timed;

/* From when all are there until all are through. */
static Status time_steps(PipelineRun *run, int n, Timed *timed, Error *error) {
    Comm *world = &run->launch->world;
    uint64_t before[N_PHASES], after[N_PHASES];
    Executor *executor = &run->step.executor;
    TRY(comm_barrier(world, error));
    uint64_t start = timer_now_ns();
    TRY(executor_phases(executor, executor->n_started, before, error));
    TRY(run_steps(run, n, error));
    TRY(executor_phases(executor, executor->n_started, after, error));
    TRY(comm_barrier(world, error));
    *timed = (Timed){.wall_ms = 1e3 * timer_seconds_since(start)};
    for (int phase = 0; phase < N_PHASES; phase++)
        if (phase != PHASE_COMMUNICATION) timed->busy_ms += 1e-6 * (double)(after[phase] - before[phase]);
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

Status pipeline_run_measure(PipelineRun *run, PipelineMeasured *measured, Error *error) {
    enum { N_FEW = 2 }; /* in which a pipeline without a flush is filled */
    Timed few, many;
    Comm *world = &run->launch->world;
    int n = run->trial.n_steps, n_few = N_FEW + run->trial.shape.n_stages / run->trial.shape.n_micro_batches;
    TRY(run_steps(run, 1, error)); /* touches the memory for the first time */
    TRY(time_steps(run, n_few, &few, error));
    TRY(time_steps(run, n_few + n, &many, error));
    double sums[2] = {many.wall_ms - few.wall_ms, many.busy_ms - few.busy_ms};
    TRY(comm_all_reduce(world, sums, 2, COMM_F64, COMM_SUM, error));
    measured->step_ms = sums[0] / n / world->size;
    measured->busy_ms = sums[1] / n / world->size;
    measured->bubble_share = measured->step_ms > 0.0 ? 1.0 - measured->busy_ms / measured->step_ms : NAN;
    return most_of_all(run, measured, error);
}

/* ---- trace */

Status pipeline_run_trace(PipelineRun *run, int n_steps, const char *path, Error *error) {
    Trace trace = {0};
    TraceSummary summary;
    activity_open(&run->activity);
    run->is_watched = true;
    TraceSetup setup = {.activity = &run->activity,
                        .world = &run->launch->world,
                        .host = run->launch->host,
                        .steps = "",
                        .next_step = 1,
                        .n_steps = n_steps};
    train_step_watch(&run->step, &run->activity);
    pipeline_watch(&run->pipeline, &run->activity);
    if (trace_open(&trace, &setup, error) == STATUS_OK && comm_barrier(setup.world, error) == STATUS_OK) {
        trace_before_step(&trace, 1);
        run_steps(run, n_steps, error);
    }
    if (launch_agree(run->launch, error) == STATUS_OK) trace_write(&trace, path, &summary, error);
    trace_close(&trace);
    return launch_agree(run->launch, error);
}
