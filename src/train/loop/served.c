/* Steps of a parameter server and its workers.
 *
 * The step's program is cut between them: workers run its forward and backward, rank 0 runs its update, once
 * for each gradient that arrives. As many gradients as there are workers make a step: by then a batch has
 * been used up. The learning rate follows the server's version and is divided by the number of workers, so
 * that a step goes as far as an exact one.
 *
 * A late gradient is the gradient of a place that the weights have left. With momentum that is worse than it
 * sounds: it answers an oscillation when it is over, and so feeds it. The server therefore sends its workers
 * not the weights of now but those that it expects by the time they are done (optim/ahead.h).
 *
 * Between two meetings rank 0 serves and writes down a step whenever one is full, without anybody waiting for
 * it. What needs one model (an evaluation, a sample, a checkpoint, the end, a signal) is a meeting: no more
 * work is handed out than up to that step, all of it is waited for, and the workers are told to pause. Then
 * all ranks get the server's weights and go on as after an exact step. Rank 0 decides when that is, by the
 * steps at which something is due, by its clock, and by the signals that it or any worker was sent: nobody
 * else has to agree, so nobody waits for an agreement. */
#include "train/loop/loop.h"

#include "base/half.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "optim/ahead.h"
#include "run/interrupt.h"

#include <math.h>
#include <string.h>

enum { WORD_STEP, WORD_FLAGS };           /* of a pause */
enum { FLAG_STOP = 1, WANTED_SHIFT = 1 }; /* what observers want follows the flag */

static int n_workers(const Trainer *trainer) {
    return trainer->step.options.sync.n_shares;
}

/* ---- rank 0 */

static Status apply_gradient(void *context, const ParameterServerReport *report, int64_t staleness,
                             Error *error) {
    Loop *loop = context;
    Trainer *trainer = loop->trainer;
    AsyncRun *run = &trainer->async;
    int64_t n_updates = run->server.book.version - 1;
    double norm;
    uint64_t start_ns = timer_now_ns();
    run->rate = learning_rate_at(&loop->schedule, n_updates / n_workers(trainer)) / n_workers(trainer);
    TRY(train_step_update(&trainer->step, n_updates, run->rate, &norm, error));
    double weight = 1.0 / n_workers(trainer);
    if (run->staleness < staleness) run->staleness = staleness;
    run->tally.loss += weight * report->loss;
    run->tally.gradient_norm += weight * norm;
    run->tally.forward_ms += weight * report->forward_ms;
    run->tally.backward_ms += weight * report->backward_ms;
    run->tally.comm_ms += weight * report->wait_ms;
    run->tally.comm_wait_ms += weight * report->wait_ms;
    run->tally.update_ms += timer_seconds_since(start_ns) * 1e3;
    return STATUS_OK;
}

/* n numbers of 32 bits become n of 16, in place: a rounded number lies at or before the one it is made of. */
static void round_weights(char *bytes, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, bytes + i * (int64_t)sizeof value, sizeof value);
        uint16_t rounded = half_bf16_from_f32(value);
        memcpy(bytes + i * (int64_t)sizeof rounded, &rounded, sizeof rounded);
    }
}

/* To where the weights will be when the gradient comes: after the updates by those that are out, and with
 * them its own. A worker that is alone is never late, and gets the weights as they are. */
static const void *look_ahead(void *context, int n_out) {
    Loop *loop = context;
    Trainer *trainer = loop->trainer;
    AsyncRun *run = &trainer->async;
    const TrainStep *step = &trainer->step;
    const Executor *executor = &step->executor;
    const Tensor *weights = train_step_weights(step);
    const float *moment[OPTIMIZER_MAX_MOMENTS] = {NULL};
    int64_t n = tensor_count(weights);
    float *values = run->ahead;
    for (int i = 0; i < step->optimizer.n_moments; i++)
        moment[i] = executor_address(executor, step->optimizer.moment[i]);
    optimizer_ahead(trainer->setup.optimizer, run->server.book.version, run->rate, n_out ? n_out + 1 : 0,
                    executor_address(executor, weights), moment, n, values);
    if (step->optimizer.master) round_weights(run->ahead, n);
    return run->ahead;
}

Status served_open(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    AsyncRun *run = &trainer->async;
    Comm *ranks = mesh_comm(trainer->setup.mesh, AXIS_DP);
    run->is_open = true;
    TRY(comm_split(ranks, 0, ranks->rank, &run->served, error));
    if (ranks->rank > 0) return STATUS_OK;
    run->ahead_bytes = (size_t)tensor_count(train_step_weights(&trainer->step)) * sizeof(float);
    TRY(memory_alloc(&run->ahead, run->ahead_bytes, "the weights that --sync server sends", error));
    const Executor *executor = &trainer->step.executor;
    const Tensor *weights = trainer->step.sync.held, *gradients = train_step_gradients(&trainer->step);
    ParameterServerSetup setup = {.comm = &run->served,
                                  .bound = run->options.staleness,
                                  .version = trainer->n_done * n_workers(trainer),
                                  .weights = executor_address(executor, weights),
                                  .weights_bytes = tensor_bytes(weights),
                                  .gradient = executor_address(executor, gradients),
                                  .gradient_bytes = tensor_bytes(gradients),
                                  .apply = apply_gradient,
                                  .weights_for = look_ahead,
                                  .context = loop};
    return parameter_server_open(&run->server, &setup, error);
}

/* One step: as many gradients as there are workers. Work may be handed out up to step `target`. */
static Status serve_step(Loop *loop, int64_t target, Error *error) {
    Trainer *trainer = loop->trainer;
    AsyncRun *run = &trainer->async;
    int64_t step = trainer->n_done + 1, n = n_workers(trainer);
    ActivityEntry entry = {.kind = ACTIVITY_STEP, .name = "serving step", .number = step};
    activity_begin(trainer->setup.activity, ACTIVITY_HOST, &entry);
    observers_before_step(&loop->observers, step);
    uint64_t start_ns = timer_now_ns();
    run->tally = (StepResult){0};
    run->staleness = 0;
    TRY(observers_start(&loop->observers, step, error));
    TRY(parameter_server_serve(&run->server, step * n, target * n, error));
    if (!trainer->step.optimizer.norm) run->tally.gradient_norm = NAN;
    trainer->n_done = step;
    activity_end(trainer->setup.activity, ACTIVITY_HOST);
    loop_record(loop, step, &run->tally, run->rate, timer_seconds_since(start_ns), error);
    trainer->last.staleness = (double)run->staleness;
    trainer->error_is_common = false; /* the workers do not know */
    return error->status;
}

static Status serve(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    ParameterServer *server = &trainer->async.server;
    int64_t target = loop_next_due(loop, trainer->n_done), n = n_workers(trainer);
    int64_t words[PARAMETER_SERVER_WORDS] = {0};
    while (trainer->n_done < target) {
        TRY(serve_step(loop, target, error));
        if (server->stop_is_wanted || loop_must_stop(loop)) words[WORD_FLAGS] |= FLAG_STOP;
        words[WORD_FLAGS] |= observers_wanted(&loop->observers, trainer->n_done) << WANTED_SHIFT;
        if (words[WORD_FLAGS]) target = (server->book.n_pulled + n - 1) / n; /* what was begun is completed */
        if (trainer->n_done < target) loop_report(loop, false);
    }
    words[WORD_STEP] = trainer->n_done;
    TRY(parameter_server_pause(server, words, error));
    loop->wanted = words[WORD_FLAGS] >> WANTED_SHIFT;
    trainer->was_interrupted =
        words[WORD_FLAGS] & FLAG_STOP && trainer->n_done < trainer->setup.options->n_steps;
    return STATUS_OK;
}

/* ---- the others */

static Status compute(Loop *loop, int64_t ticket, ParameterServerReport *report, Error *error) {
    Trainer *trainer = loop->trainer;
    AsyncRun *run = &trainer->async;
    BatchSource source = loop_batches(trainer);
    int64_t step = ticket / n_workers(trainer);
    int share = (int)(ticket % n_workers(trainer));
    StepResult result;
    ActivityEntry entry = {.kind = ACTIVITY_STEP, .name = "gradient", .number = ticket};
    activity_begin(trainer->setup.activity, ACTIVITY_HOST, &entry);
    observers_before_step(&loop->observers, step + 1);
    TRY(observers_start(&loop->observers, step + 1, error));
    async_delay(&run->options, trainer->setup.mesh->coordinate[AXIS_DP], step, share, n_workers(trainer));
    trainer->step.options.sync.share = share;
    TRY(train_step_gradient(&trainer->step, &source, step, &result, error));
    activity_end(trainer->setup.activity, ACTIVITY_HOST);
    *report = (ParameterServerReport){.ticket = ticket,
                                      .loss = result.loss,
                                      .forward_ms = result.forward_ms,
                                      .backward_ms = result.backward_ms,
                                      .wait_ms = run->waited_ms,
                                      .stops = interrupt_was_signalled()};
    return STATUS_OK;
}

static Status work(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    const Executor *executor = &trainer->step.executor;
    const Tensor *weights = trainer->step.sync.held, *gradients = train_step_gradients(&trainer->step);
    ParameterServerReport report = {.ticket = -1, .stops = interrupt_was_signalled()};
    ParameterServerOrder order;
    for (;;) {
        uint64_t start_ns = timer_now_ns();
        TRY(parameter_server_ask(&trainer->async.served, &report, executor_address(executor, gradients),
                                 tensor_bytes(gradients), executor_address(executor, weights),
                                 tensor_bytes(weights), &order, error));
        trainer->async.waited_ms = timer_seconds_since(start_ns) * 1e3;
        if (order.pauses) break;
        TRY(compute(loop, order.ticket, &report, error));
    }
    trainer->n_done = order.words[WORD_STEP];
    loop->wanted = order.words[WORD_FLAGS] >> WANTED_SHIFT;
    trainer->was_interrupted =
        order.words[WORD_FLAGS] & FLAG_STOP && trainer->n_done < trainer->setup.options->n_steps;
    return STATUS_OK;
}

Status served_run_steps(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    if (trainer->setup.mesh->coordinate[AXIS_DP] == 0) TRY(serve(loop, error));
    else TRY(work(loop, error));
    const Tensor *weights = trainer->step.sync.held;
    return comm_broadcast(&trainer->async.served, executor_address(&trainer->step.executor, weights),
                          (int64_t)tensor_bytes(weights), COMM_U8, 0, error);
}
