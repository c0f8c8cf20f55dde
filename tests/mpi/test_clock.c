/* Clocks that are apart are found to be apart by as much, give or take what the comparison says of itself.
 *
 * Ranks: 1 2 4 */
#include "comm_support.h"

#include "base/system/timer.h"
#include "comm/clock.h"

/* Rank r's clock is r seconds ahead, less a little, and all ranks of a host really have one. */
static uint64_t shifted_ns(void) {
    return timer_now_ns() + (uint64_t)world.rank * 1000000000u - (world.rank % 2 ? 123456u : 0u);
}

static int64_t shift_of(int rank) {
    return (int64_t)rank * 1000000000 - (rank % 2 ? 123456 : 0);
}

static void differences_are_found(void **state) {
    (void)state;
    Error error = {0};
    CommClock apart[4] = {{0}};
    for (int round = 0; round < 3; round++) {
        OK(comm_clock_compare(&world, shifted_ns, world.rank == 0 ? apart : NULL, &error));
        for (int rank = 0; rank < world.size && world.rank == 0; rank++) {
            int64_t miss = apart[rank].offset_ns - shift_of(rank);
            assert_true(apart[rank].uncertainty_ns >= 0 && apart[rank].uncertainty_ns < 1000000000);
            assert_true(miss <= apart[rank].uncertainty_ns && -miss <= apart[rank].uncertainty_ns);
            assert_true(rank == 0 ? apart[rank].uncertainty_ns == 0 : apart[rank].uncertainty_ns > 0);
            assert_true(apart[rank].at_ns > 0);
        }
    }
    OK(comm_barrier(&world, &error)); /* no message is left over */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(differences_are_found)};
    return cmocka_run_group_tests(tests, open_world, close_world);
}
