#include "train/unflushed.h"

#include <math.h>

bool step_is_unflushed(const TrainStep *step) {
    const Pipeline *pipeline = step->options.pipeline;
    return pipeline && schedule_info(pipeline->layout.kind)->is_asynchronous;
}

/* A run of steps between two flushes. */
typedef struct {
    TrainStep *step;
    const BatchSource *source;
    int64_t index; /* of its first step */
    int n_steps;
    const double *rates;
    ScheduleShape shape;
    int n_updates; /* of a step */
    int n_versions;
} Stretch;

static Status upload_hyper(const Stretch *stretch, const StepAction *action, Error *error) {
    TrainStep *step = stretch->step;
    float hyper[N_HYPER];
    int64_t n_done = stretch->index * stretch->n_updates + action->version;
    double rate = stretch->rates[action->version / stretch->n_updates];
    optimizer_hyper(&step->optimizer_options, rate, n_done, step->options.seed, hyper);
    return executor_upload(&step->executor, step->optimizer.hyper, hyper, error);
}

/* An action of step `at` of the stretch. */
static Status run_action(const Stretch *stretch, int at, const StepAction *action, Error *error) {
    bool updates = action->kind == ACTION_UPDATE;
    int64_t g = (int64_t)(at + action->step) * stretch->shape.n_micro_batches + action->micro;
    StepRun run = {.index = stretch->index + at + action->step,
                   .version = (action->version + updates) % stretch->n_versions,
                   .goes_on = g + 1 < (int64_t)stretch->n_steps * stretch->shape.n_micro_batches};
    if (updates) TRY(upload_hyper(stretch, action, error));
    return train_step_run_action(stretch->step, stretch->source, &run, action, error);
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

static Status run_stretch(const Stretch *stretch, double *losses, double *norms, Error *error) {
    TrainStep *step = stretch->step;
    const Pipeline *pipeline = step->options.pipeline;
    Arena arena = {0};
    StepAction *actions = ARENA_ARRAY(&arena, StepAction, stretch->n_steps * schedule_bound(&stretch->shape));
    for (int at = 0; at < stretch->n_steps && error->status == STATUS_OK; at++) {
        int n = schedule_step_actions(pipeline->layout.kind, &stretch->shape, pipeline->stage, at,
                                      stretch->n_steps, actions);
        for (int i = 0; i < n && error->status == STATUS_OK; i++) {
            if (run_action(stretch, at, &actions[i], error) == STATUS_OK)
                collect_loss(stretch, &actions[i], &losses[at + actions[i].step], error);
        }
        if (error->status == STATUS_OK) collect_norm(step, &norms[at], error);
    }
    arena_free(&arena);
    return error->status;
}

Status unflushed_run(TrainStep *step, const BatchSource *source, int64_t index, int n_steps,
                     const double *rates, StepResult *results, Error *error) {
    const Pipeline *pipeline = step->options.pipeline;
    bool updates_each = schedule_info(pipeline->layout.kind)->updates_each;
    Stretch stretch = {.step = step,
                       .source = source,
                       .index = index,
                       .n_steps = n_steps,
                       .rates = rates,
                       .shape = pipeline_shape(pipeline, (int)step->n_micro_batches),
                       .n_updates = updates_each ? (int)step->n_micro_batches : 1,
                       .n_versions = step->program.plan.n_versions};
    double losses[UNFLUSHED_MOST_STEPS] = {0}, norms[UNFLUSHED_MOST_STEPS];
    StepClock before, after;
    TRY(train_step_clock(step, &before, error));
    TRY(run_stretch(&stretch, losses, norms, error));
    int last = n_steps * stretch.n_updates % stretch.n_versions;
    if (last) TRY(executor_move_version(&step->executor, step->version_copy, last, 0, error));
    TRY(exchange(step, losses, norms, n_steps, error));
    TRY(train_step_clock(step, &after, error));
    for (int i = 0; i < n_steps; i++) {
        results[i] = (StepResult){.loss = losses[i], .gradient_norm = norms[i]};
        train_step_times(step, &before, &after, n_steps, &results[i]); /* steps overlap: each has the mean */
    }
    return STATUS_OK;
}
