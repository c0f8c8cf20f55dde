/* Steps of ranks that average their weights instead of summing gradients: push, groups and local.
 *
 * A rank takes its own step and then does what its scheme asks for. Nothing else ties the ranks together: not
 * even the loss is summed in each step, since whoever waits for a sum waits for the slowest. Losses and norms
 * of a few steps are kept until the next meeting, of which all ranks know the step in advance: every
 * --sync-every steps, and whenever something is due that needs one model. There the losses are averaged,
 * signals are heard, and the steps since the last meeting are written down, each with an equal part of the
 * time that all of them took together.
 *
 * Before an evaluation, a sample or a checkpoint the ranks average weights and moments, and go on from there.
 * So what is evaluated is what is saved and what a resumed run begins with; the price is that evaluating is
 * part of the run. */
#include "train/loop/loop.h"

#include "base/system/memory.h"
#include "base/system/timer.h"

#include <math.h>
#include <stdlib.h>

Status async_run_check(const AsyncOptions *options, int zero, Precision precision, const Backend *backend,
                       Error *error) {
    if (options->sync == SYNC_EXACT) return STATUS_OK;
    const char *name = sync_names[options->sync];
    if (zero) {
        return error_user(
            error, "--zero %d shares what every rank of --sync %s has to have whole; leave one of them out",
            zero, name);
    }
    if (precision.scales_loss || precision.moment != DTYPE_F32 || precision.has_packed_moments) {
        return error_user(
            error,
            "--sync %s averages f32 weights and moments; use --dtype f32, tf32 or bf16, and --moments f32",
            name);
    }
    if (backend_has_own_memory(backend)) {
        return error_user(error, "--sync %s works on weights in the host's memory; add --device cpu", name);
    }
    return STATUS_OK;
}

size_t async_run_bytes(const AsyncOptions *options, int64_t n) {
    if (options->sync == SYNC_SERVER) return (size_t)n * sizeof(float);
    return options->sync == SYNC_EXACT ? 0 : async_bytes(options, n);
}

/* The arrays of the step, where they lie. */
static AsyncState state_of(const TrainStep *step) {
    AsyncState state = {.weights = executor_address(&step->executor, train_step_weights(step)),
                        .n_moments = step->optimizer.n_moments,
                        .n = tensor_count(train_step_weights(step))};
    for (int i = 0; i < state.n_moments; i++)
        state.moment[i] = executor_address(&step->executor, step->optimizer.moment[i]);
    return state;
}

Status async_run_open(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    AsyncRun *run = &trainer->async;
    size_t n = (size_t)(run->max_pending = run->options.every);
    AsyncState state = state_of(&trainer->step);
    run->is_open = true;
    run->pending = calloc(n, sizeof *run->pending);
    run->numbers = calloc(2 * n, sizeof *run->numbers);
    if (!run->pending || !run->numbers)
        return error_failed(error, "no memory for the losses of %zu steps", n);
    return async_open(&run->async, &run->options, mesh_comm(trainer->setup.mesh, AXIS_DP), &state, error);
}

void async_run_close(AsyncRun *run) {
    async_close(&run->async);
    parameter_server_close(&run->server);
    if (run->ahead) memory_free(run->ahead, run->ahead_bytes);
    comm_close(&run->served);
    free(run->pending);
    free(run->numbers);
    *run = (AsyncRun){.options = run->options};
}

/* Where the weights that are computed with are 16-bit copies, those follow. */
static Status copy_weights(TrainStep *step, Error *error) {
    if (!step->optimizer.master) return STATUS_OK;
    const float *master = executor_address(&step->executor, step->optimizer.master);
    return executor_upload_f32(&step->executor, step->sync.held, 0, tensor_count(step->sync.held), master,
                               error);
}

/* The mean over all ranks of the losses and norms of the pending steps. */
static Status share_numbers(Loop *loop, Error *error) {
    AsyncRun *run = &loop->trainer->async;
    Comm *world = &loop->trainer->setup.launch->world;
    double *loss = run->numbers, *norm = run->numbers + run->n_pending;
    for (int64_t i = 0; i < run->n_pending; i++) {
        loss[i] = run->pending[i].result.loss;
        norm[i] = run->pending[i].result.gradient_norm;
    }
    TRY(comm_all_reduce(world, run->numbers, 2 * run->n_pending, COMM_F64, COMM_SUM, error));
    for (int64_t i = 0; i < run->n_pending; i++) {
        run->pending[i].result.loss = loss[i] / world->size;
        run->pending[i].result.gradient_norm = norm[i] / world->size;
    }
    return STATUS_OK;
}

/* All ranks are here: what happened since the last time, and what comes now. */
static Status meet(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    AsyncRun *run = &trainer->async;
    bool stops;
    TRY(share_numbers(loop, error));
    TRY(loop_agree(loop, &stops, error));
    double seconds = timer_seconds_since(run->began_ns) / (double)run->n_pending;
    int64_t n = run->n_pending, first = trainer->n_done - n + 1;
    run->n_pending = 0;
    for (int64_t i = 0; i < n; i++) {
        const AsyncPending *pending = &run->pending[i];
        TRY(loop_record(loop, first + i, &pending->result, pending->rate, seconds, error));
        if (i < n - 1) loop_report(loop, false); /* the last one is the caller's */
    }
    trainer->was_interrupted = stops && trainer->n_done < trainer->setup.options->n_steps;
    if (!stops && !loop->wanted && !loop_is_due(loop, trainer->n_done)) return STATUS_OK;
    TRY(async_average(&run->async, error));
    return copy_weights(&trainer->step, error);
}

Status async_run_step(Loop *loop, bool *is_meeting, Error *error) {
    Trainer *trainer = loop->trainer;
    AsyncRun *run = &trainer->async;
    BatchSource source = loop_batches(trainer);
    int64_t step = trainer->n_done;
    int rank = trainer->setup.mesh->coordinate[AXIS_DP], n_shares = trainer->step.options.sync.n_shares;
    AsyncPending *pending = &run->pending[run->n_pending++];
    pending->rate = learning_rate_at(&loop->schedule, step);
    observers_before_step(&loop->observers, step + 1);
    ActivityEntry entry = {.kind = ACTIVITY_STEP, .name = "step", .number = step + 1};
    activity_begin(trainer->setup.activity, ACTIVITY_HOST, &entry);
    if (run->n_pending == 1) run->began_ns = timer_now_ns();
    TRY(observers_start(&loop->observers, step + 1, error));
    async_delay(&run->options, rank, step, rank, n_shares);
    TRY(train_step_run(&trainer->step, &source, step, pending->rate, &pending->result, error));
    uint64_t start_ns = timer_now_ns();
    TRY(async_step(&run->async, step, error));
    TRY(copy_weights(&trainer->step, error));
    pending->result.comm_ms = pending->result.comm_wait_ms = timer_seconds_since(start_ns) * 1e3;
    trainer->n_done++;
    *is_meeting = run->n_pending == run->max_pending || trainer->n_done % run->options.every == 0 ||
                  loop_is_due(loop, trainer->n_done);
    if (*is_meeting) TRY(meet(loop, error));
    activity_end(trainer->setup.activity, ACTIVITY_HOST);
    return STATUS_OK;
}
