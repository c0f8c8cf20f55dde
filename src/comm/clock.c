/* Rank 0 sends a message, the other rank answers with the time on its clock. That was after the message was
 * sent and before the answer was back, both on rank 0's clock, so every round bounds the difference of the
 * two clocks from both sides:
 *
 *     answered - back  <=  difference  <=  answered - sent
 *
 * The bounds of all rounds together are closer than those of any one, since a round that was slow on its way
 * there need not be slow on its way back. The middle of what is left is the answer, half of its width the
 * uncertainty. It holds for clocks that do not drift while it is measured, a few milliseconds. The first
 * rounds are slow (connections are made) and do no harm. */
#include "comm/clock.h"

enum { N_ROUNDS = 40, TAG = 7 };

static Status ask(Comm *comm, int rank, uint64_t (*now_ns)(void), CommClock *apart, Error *error) {
    int64_t lowest = INT64_MIN, highest = INT64_MAX;
    for (int i = 0; i < N_ROUNDS; i++) {
        uint64_t answered, sent = now_ns();
        TRY(comm_send(comm, &sent, sizeof sent, rank, TAG, error));
        TRY(comm_receive(comm, &answered, sizeof answered, rank, TAG, error));
        int64_t low = (int64_t)(answered - now_ns()), high = (int64_t)(answered - sent);
        if (low > lowest) lowest = low;
        if (high < highest) highest = high;
        apart->at_ns = answered;
    }
    int64_t width = highest - lowest; /* below 0 only if a clock has drifted meanwhile */
    apart->offset_ns = lowest + width / 2;
    apart->uncertainty_ns = (width < 0 ? -width : width) / 2 + 1;
    return STATUS_OK;
}

static Status answer(Comm *comm, uint64_t (*now_ns)(void), Error *error) {
    for (int i = 0; i < N_ROUNDS; i++) {
        uint64_t sent;
        TRY(comm_receive(comm, &sent, sizeof sent, 0, TAG, error));
        uint64_t now = now_ns();
        TRY(comm_send(comm, &now, sizeof now, 0, TAG, error));
    }
    return STATUS_OK;
}

Status comm_clock_compare(Comm *comm, uint64_t (*now_ns)(void), CommClock *apart, Error *error) {
    if (comm->rank != 0) return answer(comm, now_ns, error);
    apart[0] = (CommClock){.at_ns = now_ns()};
    for (int rank = 1; rank < comm->size; rank++) TRY(ask(comm, rank, now_ns, &apart[rank], error));
    return STATUS_OK;
}
