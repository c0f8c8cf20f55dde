/* Asynchronous and local SGD: ranks that divide the batch and do not agree on every step.
 *
 * In all of these the step's program has no sum over ranks: a rank computes the gradient of its share of the
 * batch and updates by it alone. What keeps the ranks together comes after the step, on the flat arrays of
 * weights and moments:
 *
 *     push     every rank sends half of its weights to another one, a different one each step (stochastic
 *              gradient push, a gossip)
 *     groups   small groups average their weights; who is in a group with whom changes every step
 *     local    local SGD: nothing, but every few steps all ranks average weights and moments
 *
 * and one has ranks of two kinds (see parallel/async/parameter_server.h):
 *
 *     server   asynchronous SGD: rank 0 has the weights and updates them by whatever gradient comes next; the
 *              others compute gradients
 *
 *     Async async;
 *     TRY(async_open(&async, &options, ranks, &state, error));        // collective
 *     for (step ...) {
 *         ... the rank's own step changes state.weights ...
 *         TRY(async_step(&async, step, error));
 *     }
 *     // before anybody evaluates or saves: all are the same
 *     TRY(async_average(&async, error));
 *     async_close(&async);
 *
 * docs/ASYNC.md says what each of them gives up. */
#ifndef PGPT_PARALLEL_ASYNC_ASYNC_H
#define PGPT_PARALLEL_ASYNC_ASYNC_H

#include "base/options/options.h"
#include "comm/comm.h"

#include <stdio.h>

typedef enum { SYNC_EXACT, SYNC_SERVER, SYNC_PUSH, SYNC_GROUPS, SYNC_LOCAL, N_SYNCS } SyncKind;

extern const char *const sync_names[]; /* NULL-terminated, as --sync takes them */

typedef struct {
    int sync; /* SyncKind */
    int64_t
        /* server: updates that a gradient may be late; push: steps that a message may; -1: see below */
        staleness;
    int64_t group_size; /* groups: ranks that average with each other */
    int64_t every;      /* local: steps between averages; push and groups: between meetings of all ranks */
    int64_t delay_rank; /* who is slow, to see what it does to the others; -1: another one each step */
    double delay_ms;    /* and how much; 0: nobody is */
} AsyncOptions;

extern const OptionSpec async_option_specs[];

/* What goes together, on so many ranks; a mistake names the options. Chooses the staleness where it is -1:
 * twice the workers of a server, one step of a push. */
Status async_complete(AsyncOptions *options, int n_ranks, Error *error);

/* Shares that a batch is cut into: one for every rank that computes gradients. */
int async_n_shares(SyncKind sync, int n_ranks);

/* Is it share `share` of step `step`, on this rank, that the straggler sleeps before? Does so. */
void async_delay(const AsyncOptions *options, int rank, int64_t step, int share, int n_shares);

/* ---- Who talks to whom */

/* push: whom a rank sends to in this step. The distances are powers of two in turn, so that after
 * log2(n_ranks) steps, rounded up, everybody has something of everybody. */
int async_push_to(int rank, int n_ranks, int64_t step);
int async_push_from(int rank, int n_ranks, int64_t step);

/* groups: how many ways there are to group the ranks, used in turn; and the group of a rank in one of them,
 * and its place there. Where n_ranks is a power of size, the ranks of group have all digits but one in
 * common, and after as many steps as there are digits every rank has the average of all. */
int async_n_patterns(int n_ranks, int size);
int async_group(int rank, int n_ranks, int size, int pattern, int *place);

/* ---- The ranks' weights */

enum { ASYNC_MAX_MOMENTS = 2 };

/* This rank's arrays, on the host. They stay where they are. */
typedef struct {
    float *weights;
    float *moment[ASYNC_MAX_MOMENTS]; /* of the optimizer, n_moments of them */
    int n_moments;
    int64_t n; /* elements of each */
} AsyncState;

typedef struct AsyncPush AsyncPush;

typedef struct {
    SyncKind kind; /* SYNC_PUSH, SYNC_GROUPS or SYNC_LOCAL */
    AsyncOptions options;
    AsyncState state;
    Comm ranks;  /* all of them; this object's own */
    Comm *group; /* one for every pattern */
    int n_patterns;
    AsyncPush *push;
    bool is_same; /* all ranks have the same, bit by bit */
} Async;

/* Bytes beside the state, on each rank. */
size_t async_bytes(const AsyncOptions *options, int64_t n);

/* Collective over `ranks`. */
Status async_open(Async *async, const AsyncOptions *options, Comm *ranks, const AsyncState *state,
                  Error *error);
void async_close(Async *async); /* safe on {0}, after a failed open, and twice */

/* The state was set anew, and is the same on all ranks; as after async_open. Nothing may be under way. */
void async_restart(Async *async);

/* After the rank's own update in this step, counted over the whole run. All ranks call it for the same steps,
 * each at its own time. */
Status async_step(Async *async, int64_t step, Error *error);

/* The average over all ranks, of weights and moments, becomes every rank's. Collective. */
Status async_average(Async *async, Error *error);

/* What follows a step, in words: for whoever prints the program. */
void async_print(const AsyncOptions *options, int n_ranks, FILE *stream);

#endif
