/* pgpt train --sync: which of the asynchronous schemes fits this run, and what is said of it in the end. */
#include "job/train_run.h"

#include "base/options/options_refuse.h"

/* Options that the others leave without effect; only those of the command line: a config file holds them
 * all. */
static Status refuse_ignored(const TrainRun *run, Error *error) {
    int sync = run->async.sync;
    const OptionCondition rules[] = {
        {"staleness", "--sync server or push", sync == SYNC_SERVER || sync == SYNC_PUSH},
        {"group-size", "--sync groups", sync == SYNC_GROUPS},
        {"sync-every", "--sync local, push or groups", sync >= SYNC_PUSH},
        {"bucket-mb", "--sync exact", sync == SYNC_EXACT},
        {"overlap", "--sync exact", sync == SYNC_EXACT},
        {"delay-rank", "--delay-ms", run->async.delay_ms > 0.0},
    };
    return options_refuse_idle(&run->options, rules, sizeof rules / sizeof rules[0], OPTION_FROM_COMMAND,
                               error);
}

/* A run that was begun on several ranks may be ended by one, which is in step with itself. */
static Status check_alone(TrainRun *run, Error *error) {
    if (run->async.sync == SYNC_EXACT || run->shape.size[AXIS_DP] > 1) return STATUS_OK;
    const char *name = sync_names[run->async.sync];
    if (run->is_any_layout) return STATUS_OK;
    bool is_given = options_source(&run->options, "sync") == OPTION_FROM_COMMAND;
    for (int axis = 0; axis < N_AXES && is_given; axis++) {
        if (run->shape.size[axis] == 1) continue;
        return error_user(error,
                          "--sync %s is of ranks that have a whole model each, and --%s %d divides one "
                          "among them; leave one out",
                          name, axis_name((Axis)axis), run->shape.size[axis]);
    }
    if (is_given) {
        return error_user(
            error, "--sync %s is for several ranks; start them with mpirun -n 4, or leave it out", name);
    }
    log_warning(&run->log, "the run was begun with --sync %s; with one process it goes on as exact", name);
    run->async.sync = SYNC_EXACT;
    return STATUS_OK;
}

Status train_async_complete(TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    run->async = values->async;
    TRY(check_alone(run, error));
    TRY(refuse_ignored(run, error));
    return async_complete(&run->async, run->shape.size[AXIS_DP], error);
}

Status train_async_check(const TrainRun *run, Error *error) {
    return async_run_check(
        &run->async, (int)run->values.parallel.zero,
        optimizer_precision(&run->values.optimizer, precision_of((PrecisionKind)run->values.train.precision)),
        &run->backend, error);
}

void train_async_say(const TrainRun *run) {
    const AsyncOptions *async = &run->async;
    int n_ranks = run->shape.size[AXIS_DP];
    if (async->delay_ms > 0.0) {
        if (async->delay_rank < 0)
            log_note(&run->log, "another rank sleeps %g ms in each step (--delay-ms)", async->delay_ms);
        else
            log_note(&run->log, "rank %lld sleeps %g ms before each of its steps (--delay-ms)",
                     (long long)async->delay_rank, async->delay_ms);
    }
    switch ((SyncKind)async->sync) {
    case SYNC_SERVER:
        log_note(
            &run->log,
            "--sync server: rank 0 updates by the gradients of %d others, each at most %lld updates late",
            n_ranks - 1, (long long)async->staleness);
        break;
    case SYNC_PUSH:
        log_note(
            &run->log,
            "--sync push: half of the weights goes to another rank in each step and is added %lld later; all "
            "meet every %lld steps",
            (long long)async->staleness, (long long)async->every);
        break;
    case SYNC_GROUPS:
        log_note(
            &run->log,
            "--sync groups: %lld ranks average their weights in each step, %d groupings in turn; all meet "
            "every %lld steps",
            (long long)async->group_size, async_n_patterns(n_ranks, (int)async->group_size),
            (long long)async->every);
        break;
    case SYNC_LOCAL:
        log_note(&run->log, "--sync local: all ranks average weights and moments every %lld steps",
                 (long long)async->every);
        break;
    case SYNC_EXACT:
    case N_SYNCS: break;
    }
}
