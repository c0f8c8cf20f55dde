/* Every operation, type and reduction, over MPI's own collectives, over our algorithms and over messages alone; blocking
 * and started; short, odd, long and empty vectors, even and uneven slices. Results are compared with values computed here.
 *
 * Ranks: 1 2 3 4 8 */
#include "comm_support.h"

#include "comm/algo/algo.h"

/* ---- The ways there are */

static void close_nothing(void *context) {
    (void)context;
}

/* The same transport three times; all of them are closed with the world. */
typedef struct {
    const char *name;
    CommTable table;
    Comm comm;
} Way;

enum { N_WAYS = 3 };
static Way ways[N_WAYS];

static int open_ways(void **state) {
    static const char *const names[N_WAYS] = {"library", "ring", "messages"};
    if (open_world(state) != 0) return -1;
    for (int w = 0; w < N_WAYS; w++) {
        ways[w] = (Way){.name = names[w], .table = *world.table, .comm = world};
        ways[w].table.close = close_nothing;
        ways[w].comm.table = &ways[w].table;
    }
    ways[1].comm.all_reduce = &ALGORITHM_RING;
    ways[2].table.collective = NULL;
    return 0;
}

static int close_ways(void **state) {
    for (int w = 0; w < N_WAYS; w++) comm_close(&ways[w].comm);
    return close_world(state);
}

static bool is_started; /* operations are started and waited for, not blocking */

static void run(Comm *comm, const CommOperation *operation) {
    Error error = {0};
    CommTicket ticket;
    if (!is_started) {
        OK(comm_run(comm, operation, &error));
        return;
    }
    OK(comm_start(comm, operation, &ticket, &error));
    OK(comm_wait(comm, &ticket, &error));
}

/* ---- One operation, checked */

static void check_broadcast(Comm *comm, int64_t n, CommType type, int root) {
    void *data = make(n, type, comm->rank);
    run(comm, &(CommOperation){.kind = COMM_BROADCAST, .type = type, .root = root, .data = data, .n = n});
    for (int64_t i = 0; i < n; i++) check_element(data, i, type, value_of(root, i, type), "broadcast");
    release(data, n, type);
}

static void check_reduce(Comm *comm, int64_t n, CommType type, CommReduction reduction, int root) {
    void *data = make(n, type, comm->rank);
    run(comm,
        &(CommOperation){
            .kind = COMM_REDUCE, .type = type, .reduction = reduction, .root = root, .data = data, .n = n});
    for (int64_t i = 0; i < n; i++) {
        double want =
            comm->rank == root ? reduced(comm->size, i, type, reduction) : value_of(comm->rank, i, type);
        check_element(data, i, type, want, "reduce");
    }
    release(data, n, type);
}

static void check_all_reduce(Comm *comm, int64_t n, CommType type, CommReduction reduction) {
    void *data = make(n, type, comm->rank);
    run(comm, &(CommOperation){
                  .kind = COMM_ALL_REDUCE, .type = type, .reduction = reduction, .data = data, .n = n});
    for (int64_t i = 0; i < n; i++)
        check_element(data, i, type, reduced(comm->size, i, type, reduction), "all-reduce");
    release(data, n, type);
}

static void check_reduce_scatter(Comm *comm, const int64_t *border, CommType type, CommReduction reduction) {
    int64_t n = border[comm->size];
    void *data = make(n, type, comm->rank);
    run(comm, &(CommOperation){.kind = COMM_REDUCE_SCATTER,
                               .type = type,
                               .reduction = reduction,
                               .data = data,
                               .border = border});
    for (int64_t i = border[comm->rank]; i < border[comm->rank + 1]; i++)
        check_element(data, i, type, reduced(comm->size, i, type, reduction), "reduce-scatter");
    release(data, n, type);
}

static int owner_of(const int64_t *border, int64_t i) {
    int r = 0;
    while (i >= border[r + 1]) r++;
    return r;
}

static void check_all_gather(Comm *comm, const int64_t *border, CommType type) {
    int64_t n = border[comm->size];
    void *data = make(n, type, -1);
    for (int64_t i = border[comm->rank]; i < border[comm->rank + 1]; i++)
        put(data, i, type, value_of(comm->rank, i, type));
    run(comm, &(CommOperation){.kind = COMM_ALL_GATHER, .type = type, .data = data, .border = border});
    for (int64_t i = 0; i < n; i++)
        check_element(data, i, type, value_of(owner_of(border, i), i, type), "all-gather");
    release(data, n, type);
}

static void check_scatter(Comm *comm, const int64_t *border, CommType type, int root) {
    bool is_root = comm->rank == root;
    int64_t n = border[comm->size], first = border[comm->rank], n_mine = border[comm->rank + 1] - first;
    void *all = make(is_root ? n : 0, type, root), *mine = make(n_mine, type, -1);
    run(comm, &(CommOperation){.kind = COMM_SCATTER,
                               .type = type,
                               .root = root,
                               .data = is_root ? all : NULL,
                               .n = n_mine,
                               .border = is_root ? border : NULL,
                               .other = mine});
    for (int64_t i = 0; i < n_mine; i++)
        check_element(mine, i, type, value_of(root, first + i, type), "scatter");
    release(all, is_root ? n : 0, type);
    release(mine, n_mine, type);
}

static void check_gather(Comm *comm, const int64_t *border, CommType type, int root) {
    bool is_root = comm->rank == root;
    int64_t n = border[comm->size], n_mine = border[comm->rank + 1] - border[comm->rank];
    void *all = make(is_root ? n : 0, type, -1), *mine = make(n_mine, type, comm->rank);
    run(comm, &(CommOperation){.kind = COMM_GATHER,
                               .type = type,
                               .root = root,
                               .data = is_root ? all : NULL,
                               .n = n_mine,
                               .border = is_root ? border : NULL,
                               .other = mine});
    for (int64_t i = 0; is_root && i < n; i++) {
        int r = owner_of(border, i);
        check_element(all, i, type, value_of(r, i - border[r], type), "gather");
    }
    release(all, is_root ? n : 0, type);
    release(mine, n_mine, type);
}

/* Rank a sends n + (3a + 5b) mod 7 elements to rank b, or nothing to some. */
static int64_t n_between(int a, int b, int64_t n) {
    return (a + 2 * b) % 5 == 4 ? 0 : n + (3 * a + 5 * b) % 7;
}

static void check_all_to_all(Comm *comm, int64_t n, CommType type) {
    int64_t out_border[16] = {0}, in_border[16] = {0};
    for (int r = 0; r < comm->size; r++) {
        out_border[r + 1] = out_border[r] + n_between(comm->rank, r, n);
        in_border[r + 1] = in_border[r] + n_between(r, comm->rank, n);
    }
    int64_t n_out = out_border[comm->size], n_in = in_border[comm->size];
    void *out = make(n_out, type, comm->rank), *in = make(n_in, type, -1);
    run(comm, &(CommOperation){.kind = COMM_ALL_TO_ALL,
                               .type = type,
                               .data = out,
                               .border = out_border,
                               .other = in,
                               .other_border = in_border});
    for (int r = 0; r < comm->size; r++) {
        int64_t place = 0; /* in rank r's vector */
        for (int before = 0; before < comm->rank; before++) place += n_between(r, before, n);
        for (int64_t i = in_border[r]; i < in_border[r + 1]; i++)
            check_element(in, i, type, value_of(r, place + i - in_border[r], type), "all-to-all");
    }
    release(out, n_out, type);
    release(in, n_in, type);
}

/* ---- All of them */

/* Slices of very different lengths, among them empty ones. */
static void uneven_borders(int64_t n, int size, int64_t *border) {
    border[0] = 0;
    for (int r = 1; r < size; r++) {
        int64_t left = n - border[r - 1];
        border[r] = border[r - 1] + (r % 3 == 2 ? 0 : left / 2 + left % 2);
    }
    border[size] = n;
}

static void check_everything(Comm *comm, int64_t n, CommType type) {
    int64_t border[16];
    for (int reduction = COMM_SUM; reduction <= COMM_MIN; reduction++) {
        check_all_reduce(comm, n, type, (CommReduction)reduction);
        check_reduce(comm, n, type, (CommReduction)reduction, (reduction + 1) % comm->size);
        comm_even_borders(n, comm->size, 1, border);
        check_reduce_scatter(comm, border, type, (CommReduction)reduction);
        uneven_borders(n, comm->size, border);
        check_reduce_scatter(comm, border, type, (CommReduction)reduction);
    }
    for (int is_uneven = 0; is_uneven < 2; is_uneven++) {
        if (is_uneven) uneven_borders(n, comm->size, border);
        else comm_even_borders(n, comm->size, 1, border);
        check_all_gather(comm, border, type);
        check_scatter(comm, border, type, comm->size - 1);
        check_gather(comm, border, type, comm->size / 2);
    }
    check_broadcast(comm, n, type, 0);
    check_broadcast(comm, n, type, comm->size - 1);
    check_all_to_all(comm, n / comm->size, type);
    run(comm, &(CommOperation){.kind = COMM_BARRIER});
}

static void check_short(void) {
    static const int64_t lengths[] = {0, 1, 2, 7, 1000};
    for (int w = 0; w < N_WAYS; w++)
        for (int type = 0; type < N_COMM_TYPES; type++)
            for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
                check_everything(&ways[w].comm, lengths[i], (CommType)type);
}

static void check_long(int64_t n, CommType type) {
    for (int w = 0; w < N_WAYS; w++) check_everything(&ways[w].comm, n, type);
}

static void short_vectors_blocking(void **state) {
    (void)state;
    is_started = false;
    check_short();
}

static void short_vectors_started(void **state) {
    (void)state;
    is_started = true;
    check_short();
}

static void long_vectors_blocking(void **state) {
    (void)state;
    is_started = false;
    check_long(300007, COMM_F32);
    check_long(100003, COMM_I64);
    check_long(100003, COMM_F16);
}

static void long_vectors_started(void **state) {
    (void)state;
    is_started = true;
    check_long(300007, COMM_F32);
    check_long(100003, COMM_U8);
}

/* Longer than what is made wide at a time, and than the scratch memory. */
static void very_long_vectors(void **state) {
    (void)state;
    is_started = false;
    int64_t n = (1 << 20) + 77777, border[16];
    for (int w = 0; w < N_WAYS; w++) {
        Comm *comm = &ways[w].comm;
        check_all_reduce(comm, n, COMM_BF16, COMM_SUM);
        check_reduce(comm, n, COMM_F32, COMM_SUM, comm->size - 1);
        uneven_borders(n, comm->size, border);
        check_reduce_scatter(comm, border, COMM_BF16, COMM_SUM);
        check_reduce_scatter(comm, border, COMM_F32, COMM_SUM);
    }
}

/* What is 0 on all ranks is so after a reduce-scatter in every slice: ZeRO's sums of squares count the gaps between
 * gradients. */
static void zeros_stay(void **state) {
    (void)state;
    enum { N = 1000 };
    int64_t borders[2][16];
    comm_even_borders(N, world.size, 1, borders[0]);
    uneven_borders(N, world.size, borders[1]);
    for (int w = 0; w < N_WAYS; w++) {
        for (int b = 0; b < 2; b++) {
            Error error = {0};
            float data[N];
            for (int i = 0; i < N; i++) data[i] = i % 3 ? 1.0f : 0.0f;
            OK(comm_reduce_scatter(&ways[w].comm, data, borders[b], COMM_F32, COMM_SUM, &error));
            for (int i = 0; i < N; i += 3) check_element(data, i, COMM_F32, 0, "reduce-scatter");
        }
    }
}

/* ---- Arithmetic */

/* 256 + 1 is 256 again in bf16, and 2048 + 1 is 2048 in f16: whoever rounds on the way loses all the ones. At the end
 * both types hold every second number there, and ties go to multiples of 4. */
static void sixteen_bits_are_rounded_once(void **state) {
    (void)state;
    enum { N = 33 };
    int n_ones = world.size - 1;
    double rounded = 2 * nearbyint(n_ones / 2.0);
    int64_t border[16];
    comm_even_borders(N, world.size, 1, border);
    for (int w = 0; w < N_WAYS; w++) {
        Error error = {0};
        Comm *comm = &ways[w].comm;
        uint16_t bf16[N], f16[N], slices[N];
        for (int i = 0; i < N; i++) {
            put(bf16, i, COMM_BF16, comm->rank == 0 ? 256 : 1);
            put(f16, i, COMM_F16, comm->rank == 0 ? 2048 : 1);
            put(slices, i, COMM_BF16, comm->rank == 0 ? 256 : 1);
        }
        OK(comm_all_reduce(comm, bf16, N, COMM_BF16, COMM_SUM, &error));
        OK(comm_reduce(comm, f16, N, COMM_F16, COMM_SUM, 0, &error));
        OK(comm_reduce_scatter(comm, slices, border, COMM_BF16, COMM_SUM, &error));
        for (int i = 0; i < N; i++) {
            check_element(bf16, i, COMM_BF16, 256 + rounded, "all-reduce");
            check_element(f16, i, COMM_F16, comm->rank == 0 ? 2048 + rounded : 1, "reduce");
            if (owner_of(border, i) == comm->rank)
                check_element(slices, i, COMM_BF16, 256 + rounded, "reduce-scatter");
        }
    }
}

static void nan_wins(void **state) {
    (void)state;
    for (int w = 0; w < N_WAYS; w++)
        for (int r = 0; r < world.size; r++) {
            Error error = {0};
            Comm *comm = &ways[w].comm;
            float single[2] = {(float)comm->rank, comm->rank == r ? NAN : 1.0f};
            double wide[2] = {(double)comm->rank, comm->rank == r ? (double)NAN : 1.0};
            OK(comm_all_reduce(comm, single, 2, COMM_F32, COMM_MAX, &error));
            OK(comm_all_reduce(comm, wide, 2, COMM_F64, COMM_MIN, &error));
            assert_true(single[0] == (float)(comm->size - 1) && isnan(single[1]));
            assert_true(wide[0] == 0 && isnan(wide[1]));
        }
}

/* Every rank has the same bits, whatever order the terms were added in. */
static void sums_are_the_same_everywhere(void **state) {
    (void)state;
    enum { N = 5003 };
    float sum[N], of_root[N];
    for (int w = 0; w < N_WAYS; w++) {
        Error error = {0};
        Comm *comm = &ways[w].comm;
        for (int i = 0; i < N; i++) sum[i] = sinf((float)(i * 3 + comm->rank)) * 1e3f / (float)(1 + i % 17);
        OK(comm_all_reduce(comm, sum, N, COMM_F32, COMM_SUM, &error));
        memcpy(of_root, sum, sizeof sum);
        OK(comm_broadcast(comm, of_root, N, COMM_F32, 0, &error));
        assert_memory_equal(sum, of_root, sizeof sum);
        for (int i = 0; i < N; i++) {
            double want = 0;
            for (int r = 0; r < comm->size; r++)
                want += (double)(sinf((float)(i * 3 + r)) * 1e3f / (float)(1 + i % 17));
            assert_true(fabs((double)sum[i] - want) < 1e-2);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_vectors_blocking),
        cmocka_unit_test(short_vectors_started),
        cmocka_unit_test(long_vectors_blocking),
        cmocka_unit_test(long_vectors_started),
        cmocka_unit_test(very_long_vectors),
        cmocka_unit_test(zeros_stay),
        cmocka_unit_test(nan_wins),
        cmocka_unit_test(sixteen_bits_are_rounded_once),
        cmocka_unit_test(sums_are_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, open_ways, close_ways);
}
