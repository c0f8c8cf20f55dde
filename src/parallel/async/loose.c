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
#include "parallel/async/loose.h"

#include "base/random.h"
#include "parallel/async/loose_push.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

const char *const sync_names[] = {"exact", "server", "push", "groups", "local", NULL};

enum { MANY = 1 << 20, MOST_STALE = 1 << 16 };

const OptionSpec loose_option_specs[] = {
    OPTION_CHOICE(
        "sync", LooseOptions, sync, SYNC_EXACT, sync_names,
        "how the ranks of dp keep together; exact: synchronous SGD, gradients are summed in every step; server: "
        "asynchronous SGD, rank 0 is a parameter server and updates by each gradient as it comes; push: gossip, half "
        "of the weights to another rank each step; groups: weights are averaged in groups that change each step; "
        "local: local SGD, weights are averaged every --sync-every steps"),
    OPTION_INT(
        "staleness", LooseOptions, staleness, -1, -1, MOST_STALE,
        "bounded staleness; server: updates that may come between a gradient's weights and its own update, at most; "
        "push: steps that "
        "a message is under way; -1: twice the ranks that compute (server), 1 (push)"),
    OPTION_INT("group-size", LooseOptions, group_size, 2, 2, MANY,
               "groups: ranks that average their weights with each other in a step"),
    OPTION_INT("sync-every", LooseOptions, every, 8, 1, MANY,
               "local: steps between averages of all ranks; push and groups: between meetings, in which "
               "losses are collected and signals heard"),
    OPTION_INT(
        "delay-rank", LooseOptions, delay_rank, -1, -1, MANY,
        "for experiments: the rank that sleeps --delay-ms before each of its steps; -1: another one in each step",
        .flags = OPTION_TRANSIENT),
    OPTION_FLOAT("delay-ms", LooseOptions, delay_ms, 0.0, 0.0, 3600e3,
                 "for experiments: milliseconds that one rank sleeps in each step; 0: none does",
                 .flags = OPTION_TRANSIENT),
    OPTION_END,
};

int loose_n_shares(SyncKind sync, int n_ranks) {
    return sync == SYNC_SERVER ? n_ranks - 1 : n_ranks;
}

Status loose_complete(LooseOptions *options, int n_ranks, Error *error) {
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
        options->staleness = options->sync == SYNC_SERVER ? 2 * loose_n_shares(SYNC_SERVER, n_ranks)
                             : options->sync == SYNC_PUSH ? 1
                                                          : 0;
    }
    return STATUS_OK;
}

/* ---- the straggler */

void loose_delay(const LooseOptions *options, int rank, int64_t step, int share, int n_shares) {
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

size_t loose_bytes(const LooseOptions *options, int64_t n) {
    return options->sync == SYNC_PUSH ? push_bytes(n, options->staleness) : 0;
}

static Status open_groups(Loose *loose, Error *error) {
    int size = (int)loose->options.group_size, n_ranks = loose->ranks.size, rank = loose->ranks.rank;
    loose->n_patterns = loose_n_patterns(n_ranks, size);
    loose->group = calloc((size_t)loose->n_patterns, sizeof *loose->group);
    if (!loose->group) return error_failed(error, "no memory for %d groups", loose->n_patterns);
    for (int i = 0; i < loose->n_patterns; i++) {
        int place, group = loose_group(rank, n_ranks, size, i, &place);
        TRY(comm_split(&loose->ranks, group, place, &loose->group[i], error));
    }
    return STATUS_OK;
}

Status loose_open(Loose *loose, const LooseOptions *options, Comm *ranks, const LooseState *state,
                  Error *error) {
    *loose = (Loose){.kind = (SyncKind)options->sync, .options = *options, .state = *state, .is_same = true};
    TRY(comm_split(ranks, 0, ranks->rank, &loose->ranks, error));
    if (loose->kind == SYNC_GROUPS) return open_groups(loose, error);
    if (loose->kind == SYNC_PUSH)
        return push_open(&loose->push, &loose->ranks, state->weights, state->n, options->staleness, error);
    return STATUS_OK;
}

void loose_close(Loose *loose) {
    push_close(loose->push);
    for (int i = 0; loose->group && i < loose->n_patterns; i++) comm_close(&loose->group[i]);
    free(loose->group);
    comm_close(&loose->ranks);
    *loose = (Loose){0};
}

void loose_restart(Loose *loose) {
    if (loose->push) push_restart(loose->push);
    loose->is_same = true;
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
static Status finish_push(Loose *loose, double *total, Error *error) {
    TRY(push_finish(loose->push, total, error));
    TRY(comm_all_reduce(&loose->ranks, total, 1, COMM_F64, COMM_SUM, error));
    int n_ranks = loose->ranks.size;
    if (fabs(*total - n_ranks) <= 1e-9 * n_ranks) return STATUS_OK;
    return error_failed(error, "the masses of %d ranks add up to %.12g: a message of --sync push was lost",
                        n_ranks, *total);
}

Status loose_average(Loose *loose, Error *error) {
    if (loose->is_same) return STATUS_OK;
    double divisor = loose->ranks.size;
    LooseState *state = &loose->state;
    if (loose->push) TRY(finish_push(loose, &divisor, error));
    TRY(average(&loose->ranks, state->weights, state->n, divisor, error));
    for (int i = 0; i < state->n_moments; i++)
        TRY(average(&loose->ranks, state->moment[i], state->n, loose->ranks.size, error));
    loose_restart(loose);
    return STATUS_OK;
}

Status loose_step(Loose *loose, int64_t step, Error *error) {
    loose->is_same = false;
    if (loose->push) return push_step(loose->push, step, error);
    if (loose->kind == SYNC_GROUPS) {
        Comm *group = &loose->group[step % loose->n_patterns];
        return average(group, loose->state.weights, loose->state.n, group->size, error);
    }
    bool is_due = loose->kind == SYNC_LOCAL && (step + 1) % loose->options.every == 0;
    return is_due ? loose_average(loose, error) : STATUS_OK;
}

/* ---- words */

void loose_print(const LooseOptions *options, int n_ranks, FILE *stream) {
    int size = (int)options->group_size, n_patterns = loose_n_patterns(n_ranks, size);
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
        for (int i = 0; i == 0 || loose_push_to(0, n_ranks, i) != loose_push_to(0, n_ranks, 0); i++)
            fprintf(stream, "  step %d, and so on in turn: half of the weights to rank + %d\n", i,
                    loose_push_to(0, n_ranks, i));
        fprintf(stream, "  what is sent in a step is added %lld later\n", (long long)options->staleness);
        break;
    case SYNC_GROUPS:
        for (int i = 0; i < n_patterns; i++) {
            fprintf(stream, "  step %d, and so on in turn: average the weights of rank(group)", i);
            for (int rank = 0, place; rank < n_ranks; rank++)
                fprintf(stream, " %d(%d)", rank, loose_group(rank, n_ranks, size, i, &place));
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
