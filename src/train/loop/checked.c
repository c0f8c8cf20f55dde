#include "train/loop/checked.h"

#include "train/step/step_inside.h"

#include "ops/experts/experts.h"

bool step_is_checked_later(const TrainStep *step) {
    const ModelConfig *config = &step->config;
    bool moves_bias = config->n_experts && config->router == ROUTER_BALANCE_FREE; /* which cannot be undone */
    return step->options.pipeline && step->optimizer.assumed && !step->loss.scale && !moves_bias;
}

typedef struct {
    TrainStep *step;
    const StretchSteps *steps;
    double losses[CHECKED_MOST_STEPS], norms[CHECKED_MOST_STEPS];
    double summary[CHECKED_MOST_STEPS][N_ROUTE_SUMMARY];
    double depth[CHECKED_MOST_STEPS][N_DEPTH_NUMBERS];
} Stretch;

static Status download(TrainStep *step, const Tensor *tensor, double *number, Error *error) {
    float value = 0.0F;
    if (tensor) TRY(executor_download(&step->executor, tensor, &value, error));
    *number = (double)value;
    return STATUS_OK;
}

static Status download_summary(TrainStep *step, double *numbers, Error *error) {
    float summary[N_ROUTE_SUMMARY];
    TRY(executor_download(&step->executor, step->routes.summary, summary, error));
    for (int i = 0; i < N_ROUTE_SUMMARY; i++) numbers[i] = (double)summary[i];
    return STATUS_OK;
}

/* Everything of step `at` but the update. */
static Status run_gradient(Stretch *stretch, int at, Error *error) {
    TrainStep *step = stretch->step;
    StepRun run = {.index = stretch->steps->index + at};
    for (int i = 0; i < step->n_actions; i++) {
        if (step->actions[i].kind == ACTION_UPDATE) continue;
        TRY(train_step_run_action(step, stretch->steps->source, &run, &step->actions[i], error));
    }
    for (int i = 0; i < N_DEPTH_NUMBERS; i++) stretch->depth[at][i] = 0.0;
    for (int chunk = 0; chunk < step->n_chunks; chunk++)
        TRY(step_add_depth(step, chunk, stretch->depth[at], error));
    return download(step, step->loss.loss, &stretch->losses[at], error);
}

static Status run_update(Stretch *stretch, int at, bool checks_later, Error *error) {
    TrainStep *step = stretch->step;
    StepRun run = {.index = stretch->steps->index + at, .checks_later = checks_later};
    float hyper[N_HYPER];
    optimizer_hyper(&step->optimizer_options, stretch->steps->rates[at], run.index - step->scale.n_skipped,
                    step->options.seed, hyper);
    TRY(executor_upload(&step->executor, step->optimizer.hyper, hyper, error));
    TRY(train_step_run_action(step, stretch->steps->source, &run, &step->actions[step->n_actions - 1],
                              error));
    if (step->routes.summary) TRY(download_summary(step, stretch->summary[at], error));
    return checks_later ? STATUS_OK : download(step, step->optimizer.norm, &stretch->norms[at], error);
}

/* A step whose update was found right, or clipped. All ranks have the same norm. */
static void count(TrainStep *step, double norm) {
    step->n_unclipped = norm <= step->optimizer_options.clip ? step->n_unclipped + 1 : 0;
}

/* The update of the step before `at`, whose gradients are there already. */
static Status check_last(Stretch *stretch, int at, Error *error) {
    TrainStep *step = stretch->step;
    bool was_right;
    TRY(train_step_check(step, &was_right, error));
    TRY(download(step, step->optimizer.norm, &stretch->norms[at - 1], error));
    count(step, stretch->norms[at - 1]);
    if (was_right) return STATUS_OK;
    step->n_unclipped = 0;
    step->n_undone++;
    TRY(train_step_undo(step, error));
    TRY(run_gradient(stretch, at - 1, error));
    TRY(run_update(stretch, at - 1, false, error));
    return run_gradient(stretch, at, error);
}

static Status run_steps(Stretch *stretch, Error *error) {
    TrainStep *step = stretch->step;
    bool is_open = false; /* the last update was not checked */
    int n_steps = stretch->steps->n_steps;
    for (int at = 0; at < n_steps; at++) {
        TRY(stretch_start(stretch->steps, at, error));
        TRY(run_gradient(stretch, at, error));
        if (is_open) TRY(check_last(stretch, at, error));
        is_open = step->n_unclipped >= STEP_UNCLIPPED_BEFORE && at + 1 < n_steps;
        TRY(run_update(stretch, at, is_open, error));
        if (!is_open) count(step, stretch->norms[at]);
    }
    return STATUS_OK;
}

Status checked_run(TrainStep *step, const StretchSteps *steps, StepResult *results, Error *error) {
    Stretch stretch = {.step = step, .steps = steps};
    int n_steps = steps->n_steps;
    StepClock before, after;
    TRY(train_step_clock(step, &before, error));
    TRY(run_steps(&stretch, error));
    TRY(stretch_sum_losses(step, stretch.losses, n_steps, error));
    TRY(train_step_clock(step, &after, error));
    for (int i = 0; i < n_steps; i++) {
        results[i] = (StepResult){.loss = stretch.losses[i], .gradient_norm = stretch.norms[i]};
        TRY(train_step_routes(step, stretch.summary[i], &results[i].routes, error));
        TRY(step_exchange_depth(step, stretch.depth[i], &results[i], error));
        train_step_times(step, &before, &after, n_steps, &results[i]); /* steps overlap: each has the mean */
    }
    return STATUS_OK;
}
