/* What is around the operations: messages, many operations under way, groups, agreement, refusals, counts.
 *
 * Ranks: 1 2 3 4 8 */
#include "comm_support.h"

#include "comm/algo/algo.h"

#include <unistd.h>

/* ---- Messages */

static void messages_arrive(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 1, 4097, 1000003};
    int to = (world.rank + 1) % world.size, from = (world.rank + world.size - 1) % world.size;
    if (world.size == 1) return;
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        Error error = {0};
        int64_t n = lengths[k];
        size_t n_bytes = (size_t)n * sizeof(float);
        float *out = make(n, COMM_F32, world.rank), *in = make(n, COMM_F32, -1);
        bool is_first = world.rank % 2 == 0 && !(world.rank == world.size - 1 && world.size % 2);
        if (is_first) OK(comm_send(&world, out, n_bytes, to, (int)k, &error));
        OK(comm_receive(&world, in, n_bytes, from, (int)k, &error));
        if (!is_first) OK(comm_send(&world, out, n_bytes, to, (int)k, &error));
        for (int64_t i = 0; i < n; i++)
            check_element(in, i, COMM_F32, value_of(from, i, COMM_F32), "message");
        release(out, n, COMM_F32);
        release(in, n, COMM_F32);
    }
}

/* More than are looked at together, received in another order than sent, told apart by their tags. */
static void many_messages_at_once(void **state) {
    (void)state;
    enum { N = 100 };
    int to = (world.rank + 1) % world.size, from = (world.rank + world.size - 1) % world.size;
    Error error = {0};
    CommRequest request[2 * N];
    int out[N], in[N];
    if (world.size == 1) return;
    for (int i = 0; i < N; i++) {
        out[i] = world.rank * 1000 + i;
        OK(world.table->start_receive(world.context, &in[N - 1 - i], sizeof(int), from, N - 1 - i,
                                      &request[i], &error));
    }
    for (int i = 0; i < N; i++)
        OK(world.table->start_send(world.context, &out[i], sizeof(int), to, i, &request[N + i], &error));
    OK(world.table->wait(world.context, request, 2 * N, &error));
    for (int i = 0; i < N; i++) assert_int_equal(in[i], from * 1000 + i);
}

static void wrong_lengths_are_found(void **state) {
    (void)state;
    if (world.size == 1) return;
    Error error = {0};
    char data[64] = {0};
    for (int is_long = 0; is_long < 2; is_long++) {
        size_t n_bytes = is_long ? 64 : 8;
        if (world.rank == 0) OK(comm_send(&world, data, n_bytes, 1, 5, &error));
        if (world.rank == 1) {
            Error wrong = {0};
            assert_int_equal(comm_receive(&world, data, 16, 0, 5, &wrong), STATUS_FAILED);
            check_failed(&wrong, is_long ? "receive from rank 0" : "from rank 0 has 8 bytes where 16 were");
        }
        OK(comm_barrier(&world, &error)); /* and it can still be used */
    }
}

static void wrong_messages_are_refused(void **state) {
    (void)state;
    static const struct {
        int peer_from_rank, tag;
        const char *part;
    } cases[] = {{0, 1, "cannot send to"}, {-100, 1, "cannot send to"}, {100, 1, "cannot send to"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Error error = {0};
        int to = world.rank + cases[i].peer_from_rank;
        assert_int_equal(comm_send(&world, "x", 1, to, cases[i].tag, &error), STATUS_FAILED);
        check_failed(&error, cases[i].part);
    }
    for (int tag = -1; tag <= COMM_N_TAGS && world.size > 1; tag += COMM_N_TAGS + 1) {
        Error error = {0};
        char byte;
        assert_int_equal(comm_receive(&world, &byte, 1, (world.rank + 1) % world.size, tag, &error),
                         STATUS_FAILED);
        check_failed(&error, "tag");
    }
}

/* ---- Started */

/* More than the queue holds, waited for only at the end; then one after the other, with blocking calls between. */
static void started_run_in_order(void **state) {
    (void)state;
    enum { N = 700, LENGTH = 33 };
    static float vector[N][LENGTH];
    CommTicket ticket = {0};
    Error error = {0};
    for (int k = 0; k < N; k++) {
        for (int i = 0; i < LENGTH; i++) vector[k][i] = (float)(world.rank + k + i);
        CommOperation sum = {.kind = COMM_ALL_REDUCE, .type = COMM_F32, .data = vector[k], .n = LENGTH};
        if (k % 3 == 1)
            sum = (CommOperation){.kind = COMM_BROADCAST, .type = COMM_F32, .data = vector[k], .n = LENGTH};
        OK(comm_start(&world, &sum, &ticket, &error));
    }
    OK(comm_wait(&world, &ticket, &error));
    float of_ranks = 0;
    for (int r = 0; r < world.size; r++) of_ranks += (float)r;
    for (int k = 0; k < N; k++)
        for (int i = 0; i < LENGTH; i++) {
            float want = k % 3 == 1 ? (float)(k + i) : of_ranks + (float)(world.size * (k + i));
            assert_true(vector[k][i] == want);
        }
}

/* The second operation works on what the first one left. */
static void blocking_calls_wait_for_started_ones(void **state) {
    (void)state;
    enum { N = 200003 };
    Error error = {0};
    float *data = make(N, COMM_F32, -1);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) data[i] = 1;
        CommTicket first, second;
        CommOperation sum = {.kind = COMM_ALL_REDUCE, .type = COMM_F32, .data = data, .n = N};
        OK(comm_start(&world, &sum, &first, &error));
        OK(comm_start(&world, &sum, &second, &error));
        OK(comm_all_reduce(&world, data, N, COMM_F32, COMM_SUM, &error));
        float want = (float)(world.size * world.size * world.size);
        for (int i = 0; i < N; i++) assert_true(data[i] == want);
        OK(comm_wait(&world, &second, &error));
        OK(comm_wait(&world, &first, &error));
    }
    release(data, N, COMM_F32);
}

/* ---- Groups */

static void check_sum(Comm *comm, int color, int n_colors) {
    Error error = {0};
    int32_t sum = world.rank, want = 0;
    for (int r = 0; r < world.size; r++) want += r % n_colors == color ? r : 0;
    OK(comm_all_reduce(comm, &sum, 1, COMM_I32, COMM_SUM, &error));
    assert_int_equal(sum, want);
}

static void groups_by_color_and_key(void **state) {
    (void)state;
    Error error = {0};
    for (int n_colors = 1; n_colors <= 3; n_colors++) {
        Comm group;
        int color = world.rank % n_colors, n_members = (world.size - color + n_colors - 1) / n_colors;
        OK(comm_split(&world, color, -world.rank, &group, &error));
        assert_int_equal(group.size, n_members);
        assert_int_equal(group.rank,
                         n_members - 1 - world.rank / n_colors); /* the keys turn the order round */
        check_sum(&group, color, n_colors);
        Comm again;
        OK(comm_split(&group, 0, group.rank, &again, &error));
        assert_int_equal(again.rank, group.rank);
        check_sum(&again, color, n_colors);
        comm_close(&again);
        comm_close(&group);
        comm_close(&group);
        assert_null(group.table);
    }
}

static void negative_color_is_left_out(void **state) {
    (void)state;
    Error error = {0};
    Comm group;
    OK(comm_split(&world, world.rank == 0 ? -1 : 4, 0, &group, &error));
    if (world.rank == 0) {
        assert_null(group.table);
        assert_int_equal(comm_barrier(&group, &error), STATUS_FAILED);
        check_failed(&error, "closed");
    } else {
        assert_int_equal(group.size, world.size - 1);
        assert_int_equal(group.rank, world.rank - 1);
        OK(comm_barrier(&group, &error));
    }
    comm_close(&group);
}

static void hosts(void **state) {
    (void)state;
    Error error = {0};
    Comm host, self;
    OK(comm_mpi_split_host(&world, &host, &error));
    assert_int_equal(host.size, world.size); /* the tests run on one */
    assert_int_equal(host.rank, world.rank);
    comm_mpi_set_patience(&host, 100);
    OK(comm_barrier(&host, &error));
    comm_close(&host);
    OK(comm_split(&world, world.rank, 0, &self, &error));
    assert_int_equal(self.size, 1);
    OK(comm_barrier(&self, &error));
    comm_close(&self);
}

/* Two groups that cross each other, both with operations under way, and the algorithm handed down. */
static void groups_are_independent(void **state) {
    (void)state;
    enum { N = 100003, ROUNDS = 5 };
    Error error = {0};
    Comm rows, columns;
    Comm parent = world;
    parent.all_reduce = &ALGORITHM_RING;
    parent.worker = NULL;
    parent.scratch = parent.wide = NULL;
    OK(comm_split(&parent, world.rank / 2, 0, &rows, &error));
    OK(comm_split(&parent, world.rank % 2, 0, &columns, &error));
    assert_ptr_equal(rows.all_reduce, &ALGORITHM_RING);
    OK(comm_prepare(&rows, &error));
    OK(comm_prepare(&columns, &error));
    float *a = make(N, COMM_F32, -1), *b = make(N, COMM_F32, -1);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) a[i] = b[i] = (float)(world.rank + round);
        CommTicket of_rows, of_columns;
        CommOperation sum = {.kind = COMM_ALL_REDUCE, .type = COMM_F32, .data = a, .n = N};
        OK(comm_start(&rows, &sum, &of_rows, &error));
        sum.data = b;
        OK(comm_start(&columns, &sum, &of_columns, &error));
        OK(comm_barrier(&world, &error));
        OK(comm_wait(&columns, &of_columns, &error));
        OK(comm_wait(&rows, &of_rows, &error));
        float want_a = 0, want_b = 0;
        for (int r = 0; r < world.size; r++) {
            want_a += r / 2 == world.rank / 2 ? (float)(r + round) : 0;
            want_b += r % 2 == world.rank % 2 ? (float)(r + round) : 0;
        }
        for (int i = 0; i < N; i++) assert_true(a[i] == want_a && b[i] == want_b);
    }
    release(a, N, COMM_F32);
    release(b, N, COMM_F32);
    comm_close(&rows);
    comm_close(&columns);
}

/* ---- Agreement */

static void nothing_to_agree_on(void **state) {
    (void)state;
    Error error = {0};
    assert_int_equal(comm_agree(&world, &error), STATUS_OK);
    assert_int_equal(error.status, STATUS_OK);
}

static void one_fails(void **state) {
    (void)state;
    char host[64], want[128];
    assert_int_equal(gethostname(host, sizeof host), 0);
    for (int bad = 0; bad < world.size; bad++) {
        Error error = {0};
        if (world.rank == bad) error_user(&error, "no file x%d; check the path", bad);
        assert_int_equal(comm_agree(&world, &error), STATUS_USER);
        assert_int_equal(error.status, STATUS_USER);
        snprintf(want, sizeof want, "rank %d on %s: no file x%d; check the path", bad, host, bad);
        assert_string_equal(error.text, world.size == 1 ? strchr(want, ':') + 2 : want);
    }
}

static void several_fail(void **state) {
    (void)state;
    if (world.size == 1) return;
    Error error = {0};
    if (world.rank > 0) error_failed(&error, "trouble of %d", world.rank);
    if (world.rank == 1) error.status = STATUS_USER;
    assert_int_equal(comm_agree(&world, &error), STATUS_USER);
    check_failed(&error, "rank 1 on ");
    check_failed(&error, ": trouble of 1");
}

static void all_fail_alike(void **state) {
    (void)state;
    Error error = {0}, fresh = {0};
    error_user(&error, "--zero 4 is not in 0..3");
    assert_int_equal(comm_agree(&world, &error), STATUS_USER);
    assert_string_equal(error.text, "--zero 4 is not in 0..3");
    assert_int_equal(comm_agree(&world, &fresh), STATUS_OK);
}

/* ---- Refused */

static void check_refused(const CommOperation *operation, const char *part) {
    Error error = {0}, other = {0};
    CommTicket ticket;
    assert_int_equal(comm_run(&world, operation, &error), STATUS_FAILED);
    check_failed(&error, part);
    assert_int_equal(comm_start(&world, operation, &ticket, &other), STATUS_FAILED);
    check_failed(&other, part);
}

static void wrong_operations_are_refused(void **state) {
    (void)state;
    float data[64] = {0};
    int64_t even[16], falling[16], late[16];
    comm_even_borders(64, world.size, 1, even);
    for (int r = 0; r <= world.size; r++) falling[r] = -r, late[r] = r + 1;
    check_refused(&(CommOperation){.kind = COMM_BROADCAST, .root = world.size, .data = data, .n = 1}, "root");
    check_refused(&(CommOperation){.kind = COMM_REDUCE, .root = -1, .data = data, .n = 1}, "root");
    check_refused(&(CommOperation){.kind = COMM_ALL_REDUCE, .data = data, .n = -1}, "negative");
    check_refused(&(CommOperation){.kind = COMM_ALL_REDUCE, .data = NULL, .n = 1}, "no memory");
    check_refused(&(CommOperation){.kind = COMM_ALL_GATHER, .data = data}, "borders");
    check_refused(&(CommOperation){.kind = COMM_ALL_GATHER, .data = data, .border = falling}, "ascend");
    check_refused(&(CommOperation){.kind = COMM_REDUCE_SCATTER, .data = data, .border = late},
                  "begin with 0");
    check_refused(&(CommOperation){.kind = COMM_ALL_GATHER, .border = even}, "no memory");
    check_refused(
        &(CommOperation){
            .kind = COMM_SCATTER, .root = world.rank, .data = data, .other = data, .border = even, .n = 65},
        "not as long");
    check_refused(&(CommOperation){.kind = COMM_ALL_TO_ALL, .data = data, .border = even, .other = data},
                  "comes in");
    check_refused(&(CommOperation){.kind = N_COMM_KINDS}, "unknown");
    check_refused(&(CommOperation){.kind = COMM_BARRIER, .type = N_COMM_TYPES}, "unknown");
}

/* ---- The rest */

static void counts(void **state) {
    (void)state;
    Error error = {0};
    Comm group;
    OK(comm_split(&world, 0, 0, &group, &error));
    float data[100] = {0};
    int64_t border[16];
    CommTicket ticket;
    comm_even_borders(100, group.size, 1, border);
    CommOperation sum = {.kind = COMM_ALL_REDUCE, .data = data, .n = 100};
    for (int k = 0; k < 3; k++) {
        OK(comm_start(&group, &sum, &ticket, &error));
        OK(comm_wait(&group, &ticket, &error));
    }
    OK(comm_all_gather(&group, data, border, COMM_F32, &error));
    OK(comm_broadcast(&group, data, 10, COMM_U8, 0, &error));
    OK(comm_barrier(&group, &error));
    assert_int_equal(group.counts.n_operations[COMM_ALL_REDUCE], 3);
    assert_int_equal(group.counts.n_operations[COMM_ALL_GATHER], 1);
    assert_int_equal(group.counts.n_operations[COMM_BROADCAST], 1);
    assert_int_equal(group.counts.n_operations[COMM_BARRIER], 1);
    assert_int_equal(group.counts.n_operations[COMM_GATHER], 0);
    assert_int_equal(group.counts.n_bytes, 4 * 400 + 10);
    assert_true(group.counts.busy_ns > 0 && group.counts.waited_ns > 0);
    comm_close(&group);
}

static void the_library_says_what_it_is(void **state) {
    (void)state;
    const char *text = comm_mpi_library();
    assert_true(comm_mpi_is_built());
    assert_true(comm_mpi_is_launched());
    if (!strstr(text, "MPI") || !strstr(text, ", threads: ") || !strpbrk(text, "0123456789"))
        fail_msg("'%s'", text);
}

static void mpi_begins_once(void **state) {
    (void)state;
    Error error = {0};
    Comm second;
    assert_int_equal(comm_mpi_open(&second, &error), STATUS_FAILED);
    check_failed(&error, "once");
    comm_close(&second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive),
        cmocka_unit_test(many_messages_at_once),
        cmocka_unit_test(wrong_lengths_are_found),
        cmocka_unit_test(wrong_messages_are_refused),
        cmocka_unit_test(started_run_in_order),
        cmocka_unit_test(blocking_calls_wait_for_started_ones),
        cmocka_unit_test(groups_by_color_and_key),
        cmocka_unit_test(negative_color_is_left_out),
        cmocka_unit_test(hosts),
        cmocka_unit_test(groups_are_independent),
        cmocka_unit_test(nothing_to_agree_on),
        cmocka_unit_test(one_fails),
        cmocka_unit_test(several_fail),
        cmocka_unit_test(all_fail_alike),
        cmocka_unit_test(wrong_operations_are_refused),
        cmocka_unit_test(counts),
        cmocka_unit_test(the_library_says_what_it_is),
        cmocka_unit_test(mpi_begins_once),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
