#include "train/loop/unflushed.h"

#include "train/step/step_inside.h"

#include <math.h>
#include <string.h>

bool step_is_unflushed(const TrainStep *step) {
    const Pipeline *pipeline = step->options.pipeline;
    return pipeline && schedule_info(pipeline->layout.kind)->is_asynchronous;
}

/* A run of steps between two flushes. */
typedef struct {
    TrainStep *step;
    const StretchSteps *steps;
    ScheduleShape shape;
    int n_updates; /* of a step */
    int n_versions;
    double depth[UNFLUSHED_MOST_STEPS][N_DEPTH_NUMBERS]; /* what this rank's predictors had to say */
    double *counts; /* (n_steps, n_counts) what this rank's routers counted in each step; of the arena */
    int64_t n_counts;
    Arena arena;
} Stretch;

static Status upload_hyper(const Stretch *stretch, const StepAction *action, Error *error) {
    TrainStep *step = stretch->step;
    float hyper[N_HYPER];
    int64_t n_done = stretch->steps->index * stretch->n_updates + action->version;
    double rate = stretch->steps->rates[action->version / stretch->n_updates];
    optimizer_hyper(&step->optimizer_options, rate, n_done, step->options.seed, hyper);
    return executor_upload(&step->executor, step->optimizer.hyper, hyper, error);
}

/* An action of step `at` of the stretch. */
static Status run_action(const Stretch *stretch, int at, const StepAction *action, Error *error) {
    bool updates = action->kind == ACTION_UPDATE;
    int64_t g = (int64_t)(at + action->step) * stretch->shape.n_micro_batches + action->micro;
    StepRun run = {.index = stretch->steps->index + at + action->step,
                   .version = (action->version + updates) % stretch->n_versions,
                   .goes_on = g + 1 < (int64_t)stretch->steps->n_steps * stretch->shape.n_micro_batches};
    if (updates) TRY(upload_hyper(stretch, action, error));
    return train_step_run_action(stretch->step, stretch->steps->source, &run, action, error);
}

/* The loss adds up from the first micro-batch of an update to the last. */
static Status collect_loss(const Stretch *stretch, const StepAction *action, double *loss, Error *error) {
    TrainStep *step = stretch->step;
    const Tensor *tensor = step->chunk[action->chunk].loss.loss;
    float value;
    if (action->kind != ACTION_FORWARD || !tensor || !action->is_last) return STATUS_OK;
    TRY(executor_download(&step->executor, tensor, &value, error));
    *loss += (double)value;
    return STATUS_OK;
}

static Status collect_depth(Stretch *stretch, const StepAction *action, int at, Error *error) {
    if (action->kind != ACTION_FORWARD || !action->is_last) return STATUS_OK;
    return step_add_depth(stretch->step, action->chunk, stretch->depth[at], error);
}

/* Routers' reports add up likewise, while other updates are under way: so the host takes them where they are
 * complete. */
static Status collect_counts(const Stretch *stretch, const StepAction *action, int at, Error *error) {
    TrainStep *step = stretch->step;
    double *counts = stretch->counts + at * stretch->n_counts;
    bool is_complete =
        action->kind == ACTION_FORWARD && action->is_last && action->chunk == step->n_chunks - 1;
    if (!is_complete || !stretch->n_counts) return STATUS_OK;
    TRY(executor_download(&step->executor, step->loss.reports, step->route_counts, error));
    for (int64_t i = 0; i < stretch->n_counts; i++) counts[i] += (double)step->route_counts[i];
    return STATUS_OK;
}

static Status collect_norm(TrainStep *step, double *norm, Error *error) {
    float value;
    *norm = 0.0;
    if (!step->optimizer.norm) return STATUS_OK;
    TRY(executor_download(&step->executor, step->optimizer.norm, &value, error));
    *norm = (double)value;
    return STATUS_OK;
}

/* Losses are the last stage's; the square of the norm is the sum of the stages', of which the ends have one
 * together where a table is tied. */
static Status exchange(const TrainStep *step, double *losses, double *norms, int n, Error *error) {
    const Mesh *mesh = step->options.sync.mesh;
    bool counts_norm = !mesh_ends(mesh) || mesh->coordinate[AXIS_PP] == 0;
    for (int i = 0; i < n; i++) norms[i] = counts_norm ? norms[i] * norms[i] : 0.0;
    TRY(stretch_sum_losses(step, losses, n, error));
    TRY(comm_all_reduce((Comm *)&mesh->axis[AXIS_PP], norms, n, COMM_F64, COMM_SUM, error));
    for (int i = 0; i < n; i++) norms[i] = step->optimizer.norm ? sqrt(norms[i]) : NAN;
    return STATUS_OK;
}

/* What the routers of step `at` did, by all ranks' counts. */
static Status exchange_counts(const Stretch *stretch, int at, RouterReport *report, Error *error) {
    TrainStep *step = stretch->step;
    double *counts = stretch->counts + at * stretch->n_counts, summary[N_ROUTE_SUMMARY] = {0};
    int E = (int)step->config.n_experts;
    if (stretch->n_counts) {
        Comm *sums = mesh_host_sums(step->options.sync.mesh);
        if (sums->size > 1) TRY(comm_all_reduce(sums, counts, stretch->n_counts, COMM_F64, COMM_SUM, error));
        for (int64_t i = 0; i < stretch->n_counts; i++) step->route_counts[i] = (float)counts[i];
        route_summarise(step->route_counts, stretch->n_counts / (E + N_ROUTE_COUNTS), E, summary);
    }
    return train_step_routes(step, summary, report, error);
}

static Status run_stretch(Stretch *stretch, double *losses, double *norms, Error *error) {
    TrainStep *step = stretch->step;
    const Pipeline *pipeline = step->options.pipeline;
    StepAction *actions =
        ARENA_ARRAY(&stretch->arena, StepAction, stretch->steps->n_steps * schedule_bound(&stretch->shape));
    int n_started = 0; /* forwards of the next steps go ahead */
    for (int at = 0; at < stretch->steps->n_steps && error->status == STATUS_OK; at++) {
        int n = schedule_step_actions(pipeline->layout.kind, &stretch->shape, pipeline->stage, at,
                                      stretch->steps->n_steps, actions);
        for (int i = 0; i < n && error->status == STATUS_OK; i++) {
            int of = at + actions[i].step;
            for (; n_started <= of; n_started++) TRY(stretch_start(stretch->steps, n_started, error));
            if (run_action(stretch, at, &actions[i], error) == STATUS_OK &&
                collect_counts(stretch, &actions[i], of, error) == STATUS_OK &&
                collect_depth(stretch, &actions[i], of, error) == STATUS_OK)
                collect_loss(stretch, &actions[i], &losses[of], error);
        }
        if (error->status == STATUS_OK) collect_norm(step, &norms[at], error);
    }
    return error->status;
}

/* Room for the counts of every step, and of the last one in the step itself. */
static void make_room(Stretch *stretch) {
    TrainStep *step = stretch->step;
    if (!step->loss.reports) return;
    stretch->n_counts = tensor_count(step->loss.reports);
    stretch->counts = ARENA_ARRAY(&stretch->arena, double, stretch->n_counts * stretch->steps->n_steps);
    memset(stretch->counts, 0,
           (size_t)(stretch->n_counts * stretch->steps->n_steps) * sizeof *stretch->counts);
    if (!step->route_counts) step->route_counts = ARENA_ARRAY(&step->graph->arena, float, stretch->n_counts);
}

/* The stretch, and what each of its steps has come to but for times. */
static Status run_and_exchange(Stretch *stretch, StepResult *results, Error *error) {
    TrainStep *step = stretch->step;
    double losses[UNFLUSHED_MOST_STEPS] = {0}, norms[UNFLUSHED_MOST_STEPS];
    TRY(run_stretch(stretch, losses, norms, error));
    int last = stretch->steps->n_steps * stretch->n_updates % stretch->n_versions;
    if (last) TRY(executor_move_version(&step->executor, step->version_copy, last, 0, error));
    TRY(exchange(step, losses, norms, stretch->steps->n_steps, error));
    for (int i = 0; i < stretch->steps->n_steps; i++) {
        results[i] = (StepResult){.loss = losses[i], .gradient_norm = norms[i]};
        TRY(exchange_counts(stretch, i, &results[i].routes, error));
        TRY(step_exchange_depth(step, stretch->depth[i], &results[i], error));
    }
    return STATUS_OK;
}

Status unflushed_run(TrainStep *step, const StretchSteps *steps, StepResult *results, Error *error) {
    const Pipeline *pipeline = step->options.pipeline;
    bool updates_each = schedule_info(pipeline->layout.kind)->updates_each;
    Stretch stretch = {.step = step,
                       .steps = steps,
                       .shape = pipeline_shape(pipeline, (int)step->n_micro_batches),
                       .n_updates = updates_each ? (int)step->n_micro_batches : 1,
                       .n_versions = step->program.plan.n_versions};
    StepClock before, after;
    TRY(train_step_clock(step, &before, error));
    make_room(&stretch);
    run_and_exchange(&stretch, results, error);
    arena_free(&stretch.arena);
    TRY(error->status);
    TRY(train_step_clock(step, &after, error));
    for (int i = 0; i < steps->n_steps; i++) /* steps overlap: each has the mean */
        train_step_times(step, &before, &after, steps->n_steps, &results[i]);
    return STATUS_OK;
}
