/* Random action lists carried out by real ranks, with MPI_Issend and MPI_Irecv by the rules of parallel/pipeline/schedule.h: they
 * hang exactly where the checker says so.
 *
 * That a run hangs is not a matter of time: ranks go on asking for their messages and agree, round by round, on how far all of
 * them have come. When nobody has moved for many rounds, in each of which everybody has asked MPI for progress, nobody will.
 *
 * Ranks: 4 */
#include "comm_support.h"

#include "parallel/pipeline/schedule_check.h"
#include "random_lists.h"

#include <mpi.h>
#include <sched.h>

enum { N_LISTS = 120, MOST_CHANNELS = 2 * RANDOM_STAGES * RANDOM_CHUNKS, ROUNDS = 40 };

typedef struct {
    const ScheduleLists *lists;
    int rank, at;
    bool has_begun;
    long n_moves;
    /* Of every channel, of which this rank has one end or none. */
    MPI_Request send[MOST_CHANNELS], receive[MOST_CHANNELS];
    int sent[MOST_CHANNELS], received[MOST_CHANNELS];
    int from[MOST_CHANNELS], to[MOST_CHANNELS]; /* ranks; -1: no message */
    bool has_arrived[MOST_CHANNELS];
} Run;

static int channel_of(const ScheduleLists *lists, int k, ActionKind kind, bool is_in) {
    bool is_forward = kind == ACTION_FORWARD;
    int lower = is_forward == is_in ? k - 1 : k;
    if (kind != ACTION_FORWARD && kind != ACTION_BACKWARD) return -1;
    if (lower < 0 || lower + 1 >= lists->shape.n_stages * lists->shape.n_chunks) return -1;
    return 2 * lower + !is_forward;
}

static void post_receive(Run *run, int channel) {
    run->has_arrived[channel] = false;
    MPI_Irecv(&run->received[channel], 1, MPI_INT, run->from[channel], channel, MPI_COMM_WORLD,
              &run->receive[channel]);
}

static void open_channels(Run *run) {
    const ScheduleLists *lists = run->lists;
    int n = lists->shape.n_stages * lists->shape.n_chunks;
    for (int channel = 0; channel < MOST_CHANNELS; channel++) {
        int lower = channel / 2;
        run->send[channel] = run->receive[channel] = MPI_REQUEST_NULL;
        run->from[channel] = run->to[channel] = -1;
        if (lower + 1 >= n) continue;
        int below = placement_stage(lists->placement, &lists->shape, lower);
        int above = placement_stage(lists->placement, &lists->shape, lower + 1);
        if (below == above) continue;
        run->from[channel] = channel % 2 ? above : below;
        run->to[channel] = channel % 2 ? below : above;
        if (run->to[channel] == run->rank) post_receive(run, channel);
    }
}

static bool is_complete(MPI_Request *request) {
    int flag;
    MPI_Test(request, &flag, MPI_STATUS_IGNORE);
    return flag;
}

/* One thing more, if it can be done. */
static bool move(Run *run) {
    const ScheduleLists *lists = run->lists;
    for (int channel = 0; channel < MOST_CHANNELS; channel++) {
        if (run->receive[channel] != MPI_REQUEST_NULL && is_complete(&run->receive[channel]))
            run->has_arrived[channel] = true;
        if (run->send[channel] != MPI_REQUEST_NULL) is_complete(&run->send[channel]);
    }
    if (run->at == lists->n_actions[run->rank]) return false;
    const StepAction *action = &lists->actions[run->rank][run->at];
    int k = placement_virtual(lists->placement, &lists->shape, run->rank, action->chunk);
    int in = channel_of(lists, k, action->kind, true), out = channel_of(lists, k, action->kind, false);
    if (in >= 0 && run->from[in] < 0) in = -1;
    if (out >= 0 && run->from[out] < 0) out = -1;
    if (!run->has_begun) {
        if (in >= 0 && !run->has_arrived[in]) return false;
        if (in >= 0 && run->received[in] != action->micro)
            fail_msg("rank %d: %d came where %d was awaited", run->rank, run->received[in], action->micro);
        if (in >= 0) post_receive(run, in);
        run->has_begun = true;
        return true;
    }
    if (out >= 0 && run->send[out] != MPI_REQUEST_NULL) return false;
    if (out >= 0) {
        run->sent[out] = action->micro;
        MPI_Issend(&run->sent[out], 1, MPI_INT, run->to[out], out, MPI_COMM_WORLD, &run->send[out]);
    }
    run->has_begun = false;
    run->at++;
    return true;
}

/* Until all are through, or nobody has moved for long; true: they are. */
static bool carry_out(Run *run) {
    long before = -1;
    int n_same = 0, n_left = 1;
    while (n_left && n_same < ROUNDS) {
        MPI_Request round;
        int is_over = 0;
        bool is_left = run->at < run->lists->n_actions[run->rank];
        for (int channel = 0; channel < MOST_CHANNELS; channel++)
            is_left = is_left || run->send[channel] != MPI_REQUEST_NULL;
        long mine[2] = {run->n_moves, is_left}, all[2];
        MPI_Iallreduce(mine, all, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &round);
        do {
            while (move(run)) run->n_moves++;
            MPI_Test(&round, &is_over, MPI_STATUS_IGNORE);
            if (!is_over) sched_yield(); /* to ranks that have no core */
        } while (!is_over);
        n_same = all[0] == before ? n_same + 1 : 0;
        before = all[0];
        n_left = (int)all[1];
    }
    return n_left == 0;
}

/* What is still posted: a receive is taken back, a send is taken by the other side. */
static void clean_up(Run *run) {
    int mine[MOST_CHANNELS], all[MOST_CHANNELS], unwanted;
    for (int channel = 0; channel < MOST_CHANNELS; channel++) {
        mine[channel] = run->send[channel] != MPI_REQUEST_NULL;
        if (run->receive[channel] == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&run->receive[channel]);
        MPI_Wait(&run->receive[channel], MPI_STATUS_IGNORE);
    }
    MPI_Allreduce(mine, all, MOST_CHANNELS, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int channel = 0; channel < MOST_CHANNELS; channel++) {
        if (all[channel] && run->to[channel] == run->rank)
            MPI_Recv(&unwanted, 1, MPI_INT, run->from[channel], channel, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (mine[channel]) MPI_Wait(&run->send[channel], MPI_STATUS_IGNORE);
    }
}

static void lists_hang_as_the_checker_says(void **state) {
    (void)state;
    static RandomLists made;
    Lot lot = {7};
    int n_good = 0, n_hang = 0, n_sends = 0;
    while (n_good + n_hang < N_LISTS) {
        Error error = {0};
        draw_lists(&made, world.size, &lot); /* the same on all ranks */
        bool is_good = schedule_check(&made.lists, &error) == STATUS_OK;
        bool by_send = strstr(error.text, "cannot send") != NULL;
        if (!is_good && !strstr(error.text, "wait for each other"))
            continue; /* nonsense: nobody would run it */
        if (!is_good && !by_send && n_hang - n_sends >= N_LISTS / 3) continue;
        if (is_good && n_good >= N_LISTS / 3) continue;
        Run run = {.lists = &made.lists, .rank = world.rank};
        open_channels(&run);
        bool is_through = carry_out(&run);
        clean_up(&run);
        if (is_through != is_good)
            fail_msg("rank %d: the checker says '%s', and the run %s", world.rank, error.text,
                     is_through ? "comes to its end" : "hangs");
        n_good += is_good;
        n_hang += !is_good;
        n_sends += by_send;
    }
    assert_int_equal(n_sends, N_LISTS / 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_hang_as_the_checker_says)};
    return cmocka_run_group_tests(tests, open_world, close_world);
}
