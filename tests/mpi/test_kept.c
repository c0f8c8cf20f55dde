/* Communicators that are kept: the next over the same ranks in the same order and for the same use gets the one that was
 * given back, and nobody else does.
 *
 * Ranks: 4 */
#include "comm_support.h"

#include "comm/kept.h"

enum { SUMS, MESSAGES };

static int n_opened, n_closed;
static int contexts[16];

static void close_nothing(void *context) {
    (void)context;
    n_closed++;
}

static const CommTable dear = {.name = "dear", .close = close_nothing};

/* As device_comm_open does it. */
static Comm open_dear(KeptComms *kept, Comm *host, int use) {
    Error error = {0};
    Comm comm;
    OK(kept_comms_find(kept, host, use, &comm, &error));
    if (comm.table) return comm;
    comm = (Comm){.table = &dear, .context = &contexts[n_opened++], .rank = host->rank, .size = host->size};
    OK(kept_comms_add(kept, host, use, &comm, &error));
    return comm;
}

static void close_all(KeptComms *kept) {
    for (;;) {
        Comm comm = kept_comms_take_out(kept);
        if (!comm.table) break;
        comm_close(&comm);
    }
    assert_null(kept->first);
    assert_int_equal(n_closed, n_opened);
    n_closed = n_opened = 0;
}

static void test_kept(void **state) {
    (void)state;
    Error error = {0};
    KeptComms kept = {.rank = world.rank};
    Comm pair = {0}, turned = {0};
    OK(comm_split(&world, world.rank / 2, world.rank, &pair, &error));
    OK(comm_split(&world, world.rank / 2, -world.rank, &turned, &error));
    Comm first = open_dear(&kept, &world, SUMS), second = open_dear(&kept, &world, SUMS);
    void *contexts_of[2] = {first.context, second.context};
    assert_ptr_not_equal(contexts_of[0], contexts_of[1]); /* both are open at once */
    first.counts.n_messages = 7;
    assert_true(kept_comms_give_back(&kept, &first));
    assert_null(first.table);
    assert_int_equal(n_opened, 2);
    Comm smaller = open_dear(&kept, &pair, SUMS), other = open_dear(&kept, &world, MESSAGES);
    Comm another = open_dear(&kept, &turned, SUMS); /* the same ranks in another order */
    assert_int_equal(n_opened, 5);
    first = open_dear(&kept, &world, SUMS);
    assert_ptr_equal(first.context, contexts_of[0]);
    assert_int_equal(first.counts.n_messages, 0); /* as it was opened */
    assert_int_equal(n_opened, 5);
    Comm *all[] = {&first, &second, &smaller, &other, &another};
    for (int i = 0; i < 5; i++) assert_true(kept_comms_give_back(&kept, all[i]));
    close_all(&kept);
    comm_close(&pair);
    comm_close(&turned);
}

/* One that has failed is the caller's to close. Where one rank has none to give, all open a new one. */
static void test_broken(void **state) {
    (void)state;
    KeptComms kept = {.rank = world.rank};
    Comm comm = open_dear(&kept, &world, SUMS);
    void *context = comm.context;
    comm.is_broken = world.rank == 1;
    assert_int_equal(kept_comms_give_back(&kept, &comm), world.rank != 1);
    comm_close(&comm);
    comm = open_dear(&kept, &world, SUMS);
    assert_ptr_not_equal(comm.context, context);
    assert_true(kept_comms_give_back(&kept, &comm));
    Comm stranger = {.table = &dear, .context = &kept};
    assert_false(kept_comms_give_back(&kept, &stranger));
    close_all(&kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept), cmocka_unit_test(test_broken)};
    return cmocka_run_group_tests(tests, open_world, close_world);
}
