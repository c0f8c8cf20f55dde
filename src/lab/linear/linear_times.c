/* Every moment is the end of one phase and the begin of the next, so nothing is lost between them. What a
 * rank spends in the all-reduce is two things: until the last rank has come it waits, and whatever it does
 * then is communication. Ranks of one host read the same clock, so when the last one came is the largest of
 * their moments; between hosts the clocks are compared first, and what is left of the difference may move
 * some microseconds from one of the two to the other.
 *
 * A round begins behind a barrier that ranks leave one after the other, and they are not done at the same
 * moment. The time by the clock has both ends in it, so they count as waiting.
 *
 * A machine does other things as well, which make a time longer and never shorter, and where ranks wait for
 * each other in every epoch, whoever disturbs one of them disturbs all. The median round is what a user's
 * clock shows. The epochs' fastest rounds, added up, are what the machine could do if nothing disturbed it:
 * the best case, and no training ever took so little. */
#include "lab/linear/linear_times.h"

#include "base/system/timer.h"
#include "comm/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SAMPLES = 200000 };

static Status compare_clocks(LinearTimes *times, Error *error) {
    Comm *comm = times->comm;
    size_t n = (size_t)comm->size;
    CommClock *apart = calloc(n, sizeof *apart);
    int64_t *offsets = calloc(n, sizeof *offsets);
    if (!apart || !offsets) error_failed(error, "no memory for the clocks of %d ranks", comm->size);
    else if (comm_clock_compare(comm, timer_now_ns, apart, error) == STATUS_OK) {
        for (size_t i = 0; i < n; i++) offsets[i] = apart[i].offset_ns;
        comm_broadcast(comm, offsets, comm->size, COMM_I64, 0, error);
        times->offset_ns = (double)offsets[comm->rank];
    }
    free(apart);
    free(offsets);
    return error->status;
}

Status linear_times_open(LinearTimes *times, Comm *comm, int n_hosts, int64_t n_epochs, int64_t n_rounds,
                         Error *error) {
    size_t n = (size_t)n_epochs;
    int64_t n_samples = n_epochs * n_rounds * comm->size;
    *times = (LinearTimes){.comm = comm, .n_epochs = n_epochs, .most_rounds = n_rounds};
    times->most_samples = n_samples < MOST_SAMPLES ? n_samples : MOST_SAMPLES;
    times->stamps = calloc(n, sizeof *times->stamps);
    times->last = calloc(n * (size_t)(comm->rank == 0 ? comm->size : 1), sizeof *times->last);
    times->now = calloc(n, sizeof *times->now);
    times->fastest = calloc(n, sizeof *times->fastest);
    times->rounds = calloc((size_t)n_rounds, sizeof *times->rounds);
    times->samples = calloc((size_t)times->most_samples, sizeof *times->samples);
    if (!times->stamps || !times->last || !times->now || !times->fastest || !times->rounds || !times->samples)
        return error_failed(error, "no memory for the times of %lld epochs", (long long)n_epochs);
    return comm->size > 1 && n_hosts > 1 ? compare_clocks(times, error) : STATUS_OK;
}

void linear_times_close(LinearTimes *times) {
    free(times->stamps);
    free(times->last);
    free(times->now);
    free(times->fastest);
    free(times->rounds);
    free(times->samples);
    *times = (LinearTimes){0};
}

/* ---- In a round */

static double now(const LinearTimes *times) {
    return (double)timer_now_ns() - times->offset_ns;
}

void linear_times_begin(LinearTimes *times) {
    times->begin = now(times);
}

void linear_times_arrived(LinearTimes *times, int64_t epoch, double forward) {
    times->stamps[epoch].forward = forward;
    times->stamps[epoch].arrived = now(times);
}

void linear_times_left(LinearTimes *times, int64_t epoch) {
    times->stamps[epoch].left = now(times);
}

void linear_times_end(LinearTimes *times, int64_t epoch) {
    times->stamps[epoch].end = now(times);
}

/* ---- Behind it */

static double sum_of(const LinearPhases *phases) {
    double sum = 0.0;
    for (int i = 0; i < N_LINEAR_PHASES; i++) sum += phases->phase_ns[i];
    return sum;
}

static double begin_of(const LinearTimes *times, int64_t epoch) {
    return epoch ? times->stamps[epoch - 1].end : times->begin;
}

/* What this rank did in each epoch; times->last is known. */
static void divide_epochs(LinearTimes *times) {
    for (int64_t i = 0; i < times->n_epochs; i++) {
        const LinearStamps *stamps = &times->stamps[i];
        double computing = stamps->arrived - begin_of(times, i), meeting = stamps->left - stamps->arrived;
        double waiting = fmin(fmax(times->last[i] - stamps->arrived, 0.0), meeting);
        times->now[i] = (LinearPhases){{[LINEAR_FORWARD] = computing * stamps->forward,
                                        [LINEAR_BACKWARD] = computing * (1.0 - stamps->forward),
                                        [LINEAR_UPDATE] = stamps->end - stamps->left,
                                        [LINEAR_COMM] = meeting - waiting,
                                        [LINEAR_WAITING] = waiting}};
    }
}

/* Of all ranks, to rank 0, as long as there is room. `last` is free for it by now. */
static Status gather_samples(LinearTimes *times, Error *error) {
    Comm *comm = times->comm;
    int64_t n = times->n_epochs, n_all = n * comm->size;
    double *mine = malloc((size_t)n * sizeof *mine);
    int64_t *border = malloc(((size_t)comm->size + 1) * sizeof *border);
    if (!mine || !border) error_failed(error, "no memory for %lld times", (long long)n);
    if (mine && border) {
        for (int64_t i = 0; i < n; i++) mine[i] = (times->stamps[i].arrived - begin_of(times, i)) * 1e-9;
        for (int i = 0; i <= comm->size; i++) border[i] = i * n;
        comm_gather(comm, times->last, border, mine, n, COMM_F64, 0, error);
    }
    if (error->status == STATUS_OK && comm->rank == 0) {
        int64_t room = times->most_samples - times->n_samples, taken = n_all < room ? n_all : room;
        memcpy(times->samples + times->n_samples, times->last, (size_t)taken * sizeof *times->samples);
        times->n_samples += taken;
    }
    free(mine);
    free(border);
    return error->status;
}

Status linear_times_finish(LinearTimes *times, Error *error) {
    Comm *comm = times->comm;
    int64_t n = times->n_epochs;
    double end = times->stamps[n - 1].end, ends[] = {-times->begin, end};
    for (int64_t i = 0; i < n; i++) times->last[i] = times->stamps[i].arrived;
    TRY(comm_all_reduce(comm, times->last, n, COMM_F64, COMM_MAX, error));
    TRY(comm_all_reduce(comm, ends, 2, COMM_F64, COMM_MAX, error));
    divide_epochs(times);
    LinearPhases *round = &times->rounds[times->n_rounds];
    for (int64_t i = 0; i < n; i++)
        for (int p = 0; p < N_LINEAR_PHASES; p++) round->phase_ns[p] += times->now[i].phase_ns[p];
    round->phase_ns[LINEAR_WAITING] += times->begin + ends[0] + ends[1] - end;
    TRY(comm_all_reduce(comm, round, N_LINEAR_PHASES, COMM_F64, COMM_SUM, error));
    TRY(comm_all_reduce(comm, times->now, n * N_LINEAR_PHASES, COMM_F64, COMM_SUM, error));
    for (int p = 0; p < N_LINEAR_PHASES; p++) round->phase_ns[p] /= (double)comm->size;
    for (int64_t i = 0; i < n; i++) {
        for (int p = 0; p < N_LINEAR_PHASES; p++) times->now[i].phase_ns[p] /= (double)comm->size;
        if (times->n_rounds == 0 || sum_of(&times->now[i]) < sum_of(&times->fastest[i]))
            times->fastest[i] = times->now[i];
    }
    times->n_rounds++;
    return gather_samples(times, error);
}

/* ---- What came of it */

double linear_times_median(const LinearTimes *times, double *phase_ms) {
    const LinearPhases *median = &times->rounds[0];
    for (int64_t i = 0; i < times->n_rounds; i++) {
        int64_t n_below = 0, n_same = 0; /* rounds are few */
        for (int64_t k = 0; k < times->n_rounds; k++) {
            n_below += sum_of(&times->rounds[k]) < sum_of(&times->rounds[i]);
            n_same += sum_of(&times->rounds[k]) == sum_of(&times->rounds[i]);
        }
        int64_t wanted = (times->n_rounds - 1) / 2;
        if (n_below <= wanted && wanted < n_below + n_same) median = &times->rounds[i];
    }
    for (int p = 0; p < N_LINEAR_PHASES; p++) phase_ms[p] = median->phase_ns[p] * 1e-6;
    return sum_of(median) * 1e-9;
}

double linear_times_best(const LinearTimes *times) {
    double sum = 0.0;
    for (int64_t i = 0; i < times->n_epochs; i++) sum += sum_of(&times->fastest[i]);
    return sum * 1e-9;
}

SlowestLaw linear_times_law(LinearTimes *times) {
    return slowest_fit(times->samples, (int)times->n_samples);
}
