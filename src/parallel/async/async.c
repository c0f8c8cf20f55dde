/* The schemes without a server: what a rank does with the others after its own step.
 *
 * They have in common that the ranks' weights differ between two averages, so whoever looks at the model (an
 * evaluation, a sample, a checkpoint) calls for an average first. Moments belong to a rank in push and groups
 * and are averaged only then; local averages them whenever it averages the weights: the gradients that they
 * remember are all ranks', and a rank that took steps with its own moments from averaged weights would be
 * pulled back to where it came from.
 *
 * Since all of it is sums of the same numbers in an order that does not depend on time, each of these runs
 * can be repeated bit by bit, and after an average nothing is left that a checkpoint does not hold. */
#include "parallel/async/async.h"

#include "base/random.h"
#include "parallel/async/async_push.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

const char *const sync_names[] = {"exact", "server", "push", "groups", "local", NULL};

enum { MANY = 1 << 20, MOST_STALE = 1 << 16 };

const OptionSpec async_option_specs[] = {
    OPTION_CHOICE(
        "sync", AsyncOptions, sync, SYNC_EXACT, sync_names,
        "how the ranks of dp keep together; exact: synchronous SGD, gradients are summed in every step; server: "
        "asynchronous SGD, rank 0 is a parameter server and updates by each gradient as it comes; push: gossip, half "
        "of the weights to another rank each step; groups: weights are averaged in groups that change each step; "
        "local: local SGD, weights are averaged every --sync-every steps"),
    OPTION_INT(
        "staleness", AsyncOptions, staleness, -1, -1, MOST_STALE,
        "bounded staleness; server: updates that may come between a gradient's weights and its own update, at most; "
        "push: steps that "
        "a message is under way; -1: twice the ranks that compute (server), 1 (push)"),
    OPTION_INT("group-size", AsyncOptions, group_size, 2, 2, MANY,
               "groups: ranks that average their weights with each other in a step"),
    OPTION_INT("sync-every", AsyncOptions, every, 8, 1, MANY,
               "local: steps between averages of all ranks; push and groups: between meetings, in which "
               "losses are collected and signals heard"),
    OPTION_INT(
        "delay-rank", AsyncOptions, delay_rank, -1, -1, MANY,
        "for experiments: the rank that sleeps --delay-ms before each of its steps; -1: another one in each step",
        .flags = OPTION_TRANSIENT),
    OPTION_FLOAT("delay-ms", AsyncOptions, delay_ms, 0.0, 0.0, 3600e3,
                 "for experiments: milliseconds that one rank sleeps in each step; 0: none does",
                 .flags = OPTION_TRANSIENT),
    OPTION_END,
};

int async_n_shares(SyncKind sync, int n_ranks) {
    return sync == SYNC_SERVER ? n_ranks - 1 : n_ranks;
}

Status async_complete(AsyncOptions *options, int n_ranks, Error *error) {
    if (options->delay_ms > 0.0 && options->delay_rank >= n_ranks) {
        return error_user(error, "--delay-rank %lld: there are ranks 0 to %d; choose one of them, or -1",
                          (long long)options->delay_rank, n_ranks - 1);
    }
    if (options->delay_ms > 0.0 && options->sync == SYNC_SERVER && options->delay_rank == 0) {
        return error_user(
            error, "--delay-rank 0 is the server of --sync server, which takes no steps; delay another "
                   "rank, or -1");
    }
    if (options->sync == SYNC_GROUPS && options->group_size > n_ranks) {
        return error_user(error, "--group-size %lld is more than the %d ranks of this run; make it smaller",
                          (long long)options->group_size, n_ranks);
    }
    if (options->staleness < 0) {
        options->staleness = options->sync == SYNC_SERVER ? 2 * async_n_shares(SYNC_SERVER, n_ranks)
                             : options->sync == SYNC_PUSH ? 1
                                                          : 0;
    }
    return STATUS_OK;
}

/* ---- the straggler */

void async_delay(const AsyncOptions *options, int rank, int64_t step, int share, int n_shares) {
    if (options->delay_ms <= 0.0) return;
    RandomBlock draw = random_block(random_key(0, RANDOM_TEST, 0), 0, (uint64_t)step);
    bool is_late = options->delay_rank < 0 ? (int)(draw.word[0] % (uint32_t)n_shares) == share
                                           : options->delay_rank == rank;
    if (!is_late) return;
    double seconds = options->delay_ms * 1e-3;
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&time, &time) != 0 && errno == EINTR) {} /* a signal does not make it faster */
}

/* ---- open and close */

size_t async_bytes(const AsyncOptions *options, int64_t n) {
    return options->sync == SYNC_PUSH ? push_bytes(n, options->staleness) : 0;
}

static Status open_groups(Async *async, Error *error) {
    int size = (int)async->options.group_size, n_ranks = async->ranks.size, rank = async->ranks.rank;
    async->n_patterns = async_n_patterns(n_ranks, size);
    async->group = calloc((size_t)async->n_patterns, sizeof *async->group);
    if (!async->group) return error_failed(error, "no memory for %d groups", async->n_patterns);
    for (int i = 0; i < async->n_patterns; i++) {
        int place, group = async_group(rank, n_ranks, size, i, &place);
        TRY(comm_split(&async->ranks, group, place, &async->group[i], error));
    }
    return STATUS_OK;
}

Status async_open(Async *async, const AsyncOptions *options, Comm *ranks, const AsyncState *state,
                  Error *error) {
    *async = (Async){.kind = (SyncKind)options->sync, .options = *options, .state = *state, .is_same = true};
    TRY(comm_split(ranks, 0, ranks->rank, &async->ranks, error));
    if (async->kind == SYNC_GROUPS) return open_groups(async, error);
    if (async->kind == SYNC_PUSH)
        return push_open(&async->push, &async->ranks, state->weights, state->n, options->staleness, error);
    return STATUS_OK;
}

void async_close(Async *async) {
    push_close(async->push);
    for (int i = 0; async->group && i < async->n_patterns; i++) comm_close(&async->group[i]);
    free(async->group);
    comm_close(&async->ranks);
    *async = (Async){0};
}

void async_restart(Async *async) {
    if (async->push) push_restart(async->push);
    async->is_same = true;
}

/* ---- averages */

/* values becomes its sum over the ranks, divided. */
static Status average(Comm *comm, float *values, int64_t n, double divisor, Error *error) {
    TRY(comm_all_reduce(comm, values, n, COMM_F32, COMM_SUM, error));
    float factor = (float)(1.0 / divisor);
    for (int64_t i = 0; i < n; i++) values[i] *= factor;
    return STATUS_OK;
}

/* What was pushed has all to be there again: a run that lost a message would go on with the wrong average. */
static Status finish_push(Async *async, double *total, Error *error) {
    TRY(push_finish(async->push, total, error));
    TRY(comm_all_reduce(&async->ranks, total, 1, COMM_F64, COMM_SUM, error));
    int n_ranks = async->ranks.size;
    if (fabs(*total - n_ranks) <= 1e-9 * n_ranks) return STATUS_OK;
    return error_failed(error, "the masses of %d ranks add up to %.12g: a message of --sync push was lost",
                        n_ranks, *total);
}

Status async_average(Async *async, Error *error) {
    if (async->is_same) return STATUS_OK;
    double divisor = async->ranks.size;
    AsyncState *state = &async->state;
    if (async->push) TRY(finish_push(async, &divisor, error));
    TRY(average(&async->ranks, state->weights, state->n, divisor, error));
    for (int i = 0; i < state->n_moments; i++)
        TRY(average(&async->ranks, state->moment[i], state->n, async->ranks.size, error));
    async_restart(async);
    return STATUS_OK;
}

Status async_step(Async *async, int64_t step, Error *error) {
    async->is_same = false;
    if (async->push) return push_step(async->push, step, error);
    if (async->kind == SYNC_GROUPS) {
        Comm *group = &async->group[step % async->n_patterns];
        return average(group, async->state.weights, async->state.n, group->size, error);
    }
    bool is_due = async->kind == SYNC_LOCAL && (step + 1) % async->options.every == 0;
    return is_due ? async_average(async, error) : STATUS_OK;
}

/* ---- words */

void async_print(const AsyncOptions *options, int n_ranks, FILE *stream) {
    int size = (int)options->group_size, n_patterns = async_n_patterns(n_ranks, size);
    switch ((SyncKind)options->sync) {
    case SYNC_SERVER:
        fprintf(stream, "  ranks 1 to %d run forward and backward and send their gradients to rank 0\n",
                n_ranks - 1);
        fprintf(
            stream,
            "  rank 0 runs the update for each gradient that comes, at most %lld updates after the weights that "
            "it was computed with\n",
            (long long)options->staleness);
        break;
    case SYNC_PUSH:
        for (int i = 0; i == 0 || async_push_to(0, n_ranks, i) != async_push_to(0, n_ranks, 0); i++)
            fprintf(stream, "  step %d, and so on in turn: half of the weights to rank + %d\n", i,
                    async_push_to(0, n_ranks, i));
        fprintf(stream, "  what is sent in a step is added %lld later\n", (long long)options->staleness);
        break;
    case SYNC_GROUPS:
        for (int i = 0; i < n_patterns; i++) {
            fprintf(stream, "  step %d, and so on in turn: average the weights of rank(group)", i);
            for (int rank = 0, place; rank < n_ranks; rank++)
                fprintf(stream, " %d(%d)", rank, async_group(rank, n_ranks, size, i, &place));
            fputc('\n', stream);
        }
        break;
    case SYNC_LOCAL:
        fprintf(stream, "  every %lld steps: average weights and moments of all ranks\n",
                (long long)options->every);
        break;
    case SYNC_EXACT:
    case N_SYNCS: break;
    }
}
