/* Every algorithm of the catalog against the plain result, computed here: any number of elements (none, fewer than ranks,
 * more than the scratch memory holds), slices of any length, every root, sums, maxima and minima.
 *
 * Ranks: 1 2 3 4 5 6 7 8 9 */
#include "comm_support.h"

#include "comm/algo/catalog.h"

enum { MAX_RANKS = 9 };

typedef struct {
    const CollectiveAlgorithm *algorithm;
    CommType type;
    CommReduction reduction;
    int root;
    const int64_t *border; /* of the slices; its last is the length of the vector */
} Case;

static char what[160]; /* is checked */

static void name_case(const Case *one) {
    snprintf(what, sizeof what, "%s by %s, %lld elements, root %d",
             collective_kind_name(one->algorithm->kind), one->algorithm->name,
             (long long)one->border[world.size], one->root);
}

static void run(const Case *one, CommOperation operation) {
    Error error = {0};
    operation.kind = (CommKind)one->algorithm->kind;
    operation.type = one->type;
    operation.reduction = one->reduction;
    operation.root = one->root;
    operation.border = one->border;
    OK(collective_algorithm_run(&world, one->algorithm, &operation, &error));
}

/* Elements begin .. end-1 are those of rank r. */
static void check_of(const void *data, int64_t begin, int64_t end, CommType type, int r, int64_t first) {
    for (int64_t i = begin; i < end; i++) check_element(data, i, type, value_of(r, i + first, type), what);
}

static void check_reduced(const Case *one, const void *data, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        check_element(data, i, one->type, reduced(world.size, i, one->type, one->reduction), what);
}

/* ---- Each kind */

static void check_vectors(const Case *one) {
    int64_t n = one->border[world.size];
    int kind = one->algorithm->kind;
    void *data = make(n, one->type, kind == COMM_BROADCAST && world.rank != one->root ? -1 : world.rank);
    run(one, (CommOperation){.data = data, .n = n});
    if (kind == COMM_BROADCAST) check_of(data, 0, n, one->type, one->root, 0);
    else if (kind == COMM_REDUCE && world.rank != one->root) check_of(data, 0, n, one->type, world.rank, 0);
    else check_reduced(one, data, 0, n);
    release(data, n, one->type);
}

static void check_scatter(const Case *one) {
    int64_t n = one->border[world.size], first = one->border[world.rank],
            own = one->border[world.rank + 1] - first;
    bool is_root = world.rank == one->root;
    void *all = make(n, one->type, one->root), *mine = make(own, one->type, -1);
    run(one, (CommOperation){.data = is_root ? all : NULL, .other = mine, .n = own});
    check_of(mine, 0, own, one->type, one->root, first);
    check_of(all, 0, n, one->type, one->root, 0);
    release(all, n, one->type);
    release(mine, own, one->type);
}

static void check_gather(const Case *one) {
    int64_t n = one->border[world.size], own = one->border[world.rank + 1] - one->border[world.rank];
    bool is_root = world.rank == one->root;
    void *all = make(n, one->type, -1), *mine = make(own, one->type, world.rank);
    run(one, (CommOperation){.data = is_root ? all : NULL, .other = mine, .n = own});
    for (int r = 0; is_root && r < world.size; r++)
        check_of(all, one->border[r], one->border[r + 1], one->type, r, -one->border[r]);
    check_of(mine, 0, own, one->type, world.rank, 0);
    release(all, n, one->type);
    release(mine, own, one->type);
}

static void check_all_gather(const Case *one) {
    int64_t n = one->border[world.size];
    void *all = make(n, one->type, -1);
    for (int64_t i = one->border[world.rank]; i < one->border[world.rank + 1]; i++)
        put(all, i, one->type, value_of(world.rank, i, one->type));
    run(one, (CommOperation){.data = all});
    for (int r = 0; r < world.size; r++) check_of(all, one->border[r], one->border[r + 1], one->type, r, 0);
    release(all, n, one->type);
}

/* Elements that are 0 on all ranks stay 0: the last of each slice is. */
static void check_reduce_scatter(const Case *one) {
    int64_t n = one->border[world.size];
    void *all = make(n, one->type, world.rank);
    for (int r = 0; r < world.size; r++)
        if (one->border[r + 1] > one->border[r]) put(all, one->border[r + 1] - 1, one->type, 0);
    run(one, (CommOperation){.data = all});
    int64_t begin = one->border[world.rank], end = one->border[world.rank + 1];
    check_reduced(one, all, begin, end > begin ? end - 1 : end);
    for (int r = 0; r < world.size; r++)
        if (one->border[r + 1] > one->border[r])
            check_element(all, one->border[r + 1] - 1, one->type, 0, what);
    release(all, n, one->type);
}

static void check_all_to_all(const Case *one) {
    int64_t n = one->border[world.size], first = one->border[world.rank],
            own = one->border[world.rank + 1] - first;
    int64_t in_border[MAX_RANKS + 1];
    for (int r = 0; r <= world.size; r++) in_border[r] = r * own;
    void *out = make(n, one->type, world.rank), *in = make(in_border[world.size], one->type, -1);
    run(one, (CommOperation){.data = out, .other = in, .other_border = in_border});
    for (int r = 0; r < world.size; r++)
        check_of(in, in_border[r], in_border[r + 1], one->type, r, first - in_border[r]);
    check_of(out, 0, n, one->type, world.rank, 0);
    release(out, n, one->type);
    release(in, in_border[world.size], one->type);
}

static void check_send_receive(const Case *one) {
    int64_t n = one->border[world.size];
    int before = (world.rank + world.size - 1) % world.size;
    bool is_shift = strcmp(one->algorithm->name, "shift") == 0;
    bool receives = !is_shift && world.size > 1 && before == one->root;
    void *data = make(n, one->type, receives ? -1 : world.rank), *other = make(n, one->type, -1);
    run(one, (CommOperation){.data = data, .other = other, .n = n});
    check_of(data, 0, n, one->type, receives ? before : world.rank, 0);
    if (is_shift && world.size > 1) check_of(other, 0, n, one->type, before, 0);
    release(data, n, one->type);
    release(other, n, one->type);
}

static void check(const Case *one) {
    name_case(one);
    switch (one->algorithm->kind) {
    case COMM_BROADCAST:
    case COMM_REDUCE:
    case COMM_ALL_REDUCE: check_vectors(one); break;
    case COMM_SCATTER: check_scatter(one); break;
    case COMM_GATHER: check_gather(one); break;
    case COMM_ALL_GATHER: check_all_gather(one); break;
    case COMM_REDUCE_SCATTER: check_reduce_scatter(one); break;
    case COMM_ALL_TO_ALL: check_all_to_all(one); break;
    default: check_send_receive(one);
    }
}

/* ---- All of them */

static void check_everything(CommType type, CommReduction reduction, const int64_t *border) {
    const CollectiveAlgorithm *all[COLLECTIVE_MAX_ALGORITHMS];
    for (int kind = 0; kind < COLLECTIVE_N_KINDS; kind++) {
        int n_algorithms = collective_algorithms(kind, all);
        for (int i = 0; i < n_algorithms; i++)
            for (int root = 0; root < world.size; root += 1 + world.size / 4)
                check(&(Case){all[i], type, reduction, root, border});
    }
}

static void even_slices(void **state) {
    (void)state;
    static const int64_t LENGTHS[] = {0, 1, 2, 5, 8, 9, 1000, 70001};
    int64_t border[MAX_RANKS + 1];
    for (size_t i = 0; i < sizeof LENGTHS / sizeof LENGTHS[0]; i++) {
        comm_even_borders(LENGTHS[i], world.size, 1, border);
        check_everything(COMM_F32, COMM_SUM, border);
    }
}

/* More than the scratch memory: several rounds, blocks and pieces. */
static void long_vectors(void **state) {
    (void)state;
    int64_t border[MAX_RANKS + 1];
    comm_even_borders(1200007, world.size, 1, border);
    check_everything(COMM_F32, COMM_SUM, border);
}

static void uneven_slices(void **state) {
    (void)state;
    int64_t border[MAX_RANKS + 1] = {0};
    for (int r = 0; r < world.size; r++) border[r + 1] = border[r] + (r % 3 == 1 ? 0 : r % 3 ? 17 : 3001);
    check_everything(COMM_I32, COMM_SUM, border);
}

static void other_types(void **state) {
    (void)state;
    int64_t border[MAX_RANKS + 1];
    comm_even_borders(1003, world.size, 1, border);
    for (CommType type = 0; type < N_COMM_TYPES; type++) check_everything(type, COMM_MAX, border);
    check_everything(COMM_F64, COMM_MIN, border);
    check_everything(COMM_BF16, COMM_SUM, border);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_slices),
        cmocka_unit_test(long_vectors),
        cmocka_unit_test(uneven_slices),
        cmocka_unit_test(other_types),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
