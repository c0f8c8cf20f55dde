/* What parallel training is made of, in one process: nodes put between others, the mesh, the cutting of flat arrays, the
 * shares of a batch. What the passes make of a recorded step is in test_parallel_step.c. */
#include "comm/comm_self.h"
#include "device/device.h"
#include "graph/passes/insert.h"
#include "harness.h"
#include "mesh_support.h"
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "plan/run_memory.h"
#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A number below `n`, different for each call. */
static int draw(int n) {
    static uint64_t counter;
    return (int)(test_hash("draw", counter++) % (uint32_t)n);
}

/* ---- insertion ---- */

static Node *record_node(Graph *graph, int number) {
    op_zero(graph, graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(1), "%d", number));
    return graph->node[graph->n_nodes - 1];
}

static int number_of(const Node *node) {
    return atoi(node->output[0]->name);
}

enum { MOST_OLD = 12, MOST_NEW = 64 };

typedef struct {
    int number, place;
} Placed;

/* What the list must be: by place, and within a place as recorded. Old node i stands between places 2i and 2i+1. */
static void assert_merged(const Graph *graph, int n_old, const Placed *placed, int n_placed) {
    int at = 0;
    for (int place = 0; place < 2 * n_old; place++) {
        if (place % 2 == 1) assert_int_equal(number_of(graph->node[at++]), place / 2);
        for (int k = 0; k < n_placed; k++) {
            if (placed[k].place != place) continue;
            assert_int_equal(number_of(graph->node[at]), placed[k].number);
            assert_int_equal(graph->node[at]->section, place / 2 % N_SECTIONS);
            at++;
        }
    }
    assert_int_equal(at, graph->n_nodes);
}

static void test_insertion(void **state) {
    (void)state;
    for (int round = 0; round < 300; round++) {
        Graph *graph = graph_new();
        Placed placed[MOST_NEW];
        int n_old = 1 + draw(MOST_OLD), n_placed = 0;
        for (int i = 0; i < n_old; i++) record_node(graph, i)->section = (Section)(i % N_SECTIONS);
        graph->section = SECTION_UPDATE; /* does not matter to what is placed */
        Insertion insertion = insertion_begin(graph);
        for (int calls = draw(16); calls > 0; calls--) {
            int index = draw(n_old), is_behind = draw(2), n_nodes = draw(4);
            for (int k = 0; k < n_nodes; k++) {
                placed[n_placed] = (Placed){100 + n_placed, 2 * index + is_behind};
                record_node(graph, placed[n_placed++].number);
            }
            if (is_behind) insertion_behind(&insertion, index);
            else insertion_before(&insertion, index);
        }
        insertion_end(&insertion);
        assert_merged(graph, n_old, placed, n_placed);
        Node *next = record_node(graph, 7); /* and it goes on */
        assert_ptr_equal(next, graph->node[n_old + n_placed]);
        graph_free(graph);
    }
}

/* Behind a node comes before what goes before the next. */
static void test_insertion_between_two(void **state) {
    (void)state;
    Graph *graph = graph_new();
    for (int i = 0; i < 2; i++) record_node(graph, i);
    Insertion insertion = insertion_begin(graph);
    record_node(graph, 11);
    insertion_before(&insertion, 1);
    record_node(graph, 12);
    insertion_behind(&insertion, 0);
    insertion_end(&insertion);
    static const int want[] = {0, 12, 11, 1};
    for (int i = 0; i < 4; i++) assert_int_equal(number_of(graph->node[i]), want[i]);
    graph_free(graph);
}

static void test_many_insertions(void **state) {
    (void)state;
    enum { N = 5000 };
    Graph *graph = graph_new();
    for (int i = 0; i < N; i++) record_node(graph, i);
    Insertion insertion = insertion_begin(graph);
    for (int i = N - 1; i >= 0; i--) {
        record_node(graph, N + i);
        insertion_behind(&insertion, i);
        record_node(graph, 2 * N + i);
        insertion_before(&insertion, i);
    }
    insertion_end(&insertion);
    assert_int_equal(graph->n_nodes, 3 * N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(number_of(graph->node[3 * i]), 2 * N + i);
        assert_int_equal(number_of(graph->node[3 * i + 1]), i);
        assert_int_equal(number_of(graph->node[3 * i + 2]), N + i);
    }
    graph_free(graph);
}

/* ---- zero: a part of a tensor, and nothing beside it ---- */

static void test_zero(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Tensor *whole = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(40), "whole");
    op_zero(graph, graph_view(graph, whole, SHAPE(13), 20, "part"));
    TestMemory memory = test_memory_open(graph);
    float *values = test_memory_at(&memory, whole);
    for (int i = 0; i < 40; i++) values[i] = 1.0f;
    test_memory_run(&memory, SECTION_FORWARD);
    for (int i = 0; i < 40; i++) assert_true(values[i] == (i < 20 || i >= 33 ? 1.0f : 0.0f));
    test_memory_close(&memory);
    graph_free(graph);
}

/* ---- the mesh ---- */

enum { MOST_RANKS = 24 };

typedef void (*MeshCheck)(const MeshShape *shape);

/* Every mesh of so many ranks, over all axes. */
static void for_each_mesh(MeshShape *shape, int axis, int n_left, MeshCheck check) {
    if (axis == N_AXES) {
        if (n_left == 1) check(shape);
        return;
    }
    for (int size = 1; size <= n_left; size++) {
        shape->size[axis] = size;
        if (n_left % size == 0) for_each_mesh(shape, axis + 1, n_left / size, check);
    }
}

static void check_all_meshes(MeshCheck check) {
    MeshShape shape;
    for (int n = 1; n <= MOST_RANKS; n++) for_each_mesh(&shape, 0, n, check);
}

static void check_coordinates(const MeshShape *shape) {
    int n_ranks = mesh_n_ranks(shape), before[N_AXES];
    for (int rank = 0; rank < n_ranks; rank++) {
        int at[N_AXES], by_hand = 0;
        mesh_coordinates(shape, rank, at);
        for (int axis = 0; axis < N_AXES; axis++) {
            assert_in_range(at[axis], 0, shape->size[axis] - 1);
            by_hand = by_hand * shape->size[axis] + at[axis];
        }
        assert_int_equal(by_hand, rank);
        assert_int_equal(mesh_rank(shape, at), rank);
        /* The first axis in which neighbours differ is the slowest that moves: it goes up by one. */
        int axis = 0;
        while (rank && axis < N_AXES - 1 && at[axis] == before[axis]) axis++;
        if (rank) assert_int_equal(at[axis], before[axis] + 1);
        memcpy(before, at, sizeof before);
    }
}

static void test_coordinates(void **state) {
    (void)state;
    check_all_meshes(check_coordinates);
}

/* A transport that notes how it is split, and makes groups of one. */
typedef struct {
    int n_splits, color[N_AXES + 1], key[N_AXES + 1];
} Splits;

static Status note_split(void *context, int color, int key, Comm *child, Error *error) {
    (void)error;
    Splits *splits = context;
    splits->color[splits->n_splits] = color;
    splits->key[splits->n_splits++] = key;
    *child = comm_self();
    return STATUS_OK;
}

static const CommTable splitting = {.name = "splitting", .split = note_split};

/* Ranks are in a group along an axis when they differ in that coordinate alone, and in its order. */
static void check_groups(const MeshShape *shape) {
    int n_ranks = mesh_n_ranks(shape), n_long = 0, at[MOST_RANKS][N_AXES];
    Splits splits[MOST_RANKS] = {{0}};
    for (int axis = 0; axis < N_AXES; axis++) n_long += shape->size[axis] > 1;
    for (int rank = 0; rank < n_ranks; rank++) {
        Comm world = {.table = &splitting, .context = &splits[rank], .rank = rank, .size = n_ranks};
        Mesh mesh;
        Error error = {0};
        assert_int_equal(mesh_open(&mesh, shape, &world, &error), STATUS_OK);
        mesh_coordinates(shape, rank, at[rank]);
        assert_memory_equal(mesh.coordinate, at[rank], sizeof at[rank]);
        bool has_contexts = shape->size[AXIS_CP] > 1, has_experts = shape->size[AXIS_EP] > 1;
        int n_sums = (has_contexts || has_experts) + (has_contexts && has_experts);
        assert_int_equal(splits[rank].n_splits, n_long + n_sums);
        mesh_close(&mesh);
        mesh_close(&mesh);
    }
    for (int axis = 0, split = 0; axis < N_AXES; axis++) {
        if (shape->size[axis] == 1) continue;
        for (int a = 0; a < n_ranks; a++) {
            assert_int_equal(splits[a].key[split], at[a][axis]);
            for (int b = 0; b < n_ranks; b++) {
                bool is_same = true;
                for (int k = 0; k < N_AXES; k++) is_same &= k == axis || at[a][k] == at[b][k];
                assert_int_equal(splits[a].color[split] == splits[b].color[split], is_same);
            }
        }
        split++;
    }
}

/* Group number `split` is of ranks that differ along these axes alone, in the order of the mesh. */
static void check_group_along(const MeshShape *shape, const Splits *splits, int split, const Axis *along,
                              int n_axes) {
    int n_ranks = mesh_n_ranks(shape), at[MOST_RANKS][N_AXES];
    for (int a = 0; a < n_ranks; a++) mesh_coordinates(shape, a, at[a]);
    for (int a = 0; a < n_ranks; a++) {
        int key = 0;
        for (int i = 0; i < n_axes; i++) key = key * shape->size[along[i]] + at[a][along[i]];
        assert_int_equal(splits[a].key[split], key);
        for (int b = 0; b < n_ranks; b++) {
            bool is_same = true;
            for (int k = 0; k < N_AXES; k++) {
                bool may_differ = false;
                for (int i = 0; i < n_axes; i++) may_differ |= k == (int)along[i];
                is_same &= may_differ || at[a][k] == at[b][k];
            }
            assert_int_equal(splits[a].color[split] == splits[b].color[split], is_same);
        }
    }
}

/* Those of dp, cp and ep together come behind the axes, and then those that hold the same experts. */
static void check_sums(const MeshShape *shape) {
    static const Axis along[] = {AXIS_DP, AXIS_CP, AXIS_EP};
    int n_ranks = mesh_n_ranks(shape);
    bool has_contexts = shape->size[AXIS_CP] > 1, has_experts = shape->size[AXIS_EP] > 1;
    Splits splits[MOST_RANKS] = {{0}};
    if (!has_contexts && !has_experts) return;
    for (int rank = 0; rank < n_ranks; rank++) {
        Comm world = {.table = &splitting, .context = &splits[rank], .rank = rank, .size = n_ranks};
        Mesh mesh;
        Error error = {0};
        assert_int_equal(mesh_open(&mesh, shape, &world, &error), STATUS_OK);
        assert_true(mesh_sums(&mesh) == &mesh.sums && mesh_host_sums(&mesh) == &mesh.sums);
        const Comm *experts = !has_experts    ? &mesh.sums
                              : !has_contexts ? &mesh.axis[AXIS_DP]
                                              : &mesh.expert_sums;
        assert_true(mesh_expert_sums(&mesh) == experts && mesh_host_expert_sums(&mesh) == experts);
        mesh_close(&mesh);
    }
    bool has_both = has_contexts && has_experts;
    check_group_along(shape, splits, splits[0].n_splits - 1 - has_both, along, 3);
    if (has_both) check_group_along(shape, splits, splits[0].n_splits - 1, along, 2);
}

static void test_groups(void **state) {
    (void)state;
    check_all_meshes(check_groups);
    check_all_meshes(check_sums);
    Comm world = comm_self();
    Mesh mesh;
    Error error = {0};
    MeshShape two = {{1, 2, 1, 1, 1}};
    assert_int_equal(mesh_open(&mesh, &two, &world, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "a mesh of 2 ranks was opened on 1"));
    mesh_close(&mesh);
}

/* In the printed table every rank has its line, and is once in the groups of every axis that has any. */
static void check_printed(const MeshShape *shape) {
    char *text = NULL;
    size_t n_bytes;
    FILE *stream = open_memstream(&text, &n_bytes);
    assert_non_null(stream);
    mesh_print(shape, NULL, stream);
    fclose(stream);
    int n_ranks = mesh_n_ranks(shape), n_lines = 0;
    for (const char *c = text; *c; c++) n_lines += *c == '\n';
    int n_long = 0;
    for (int axis = 0; axis < N_AXES; axis++) {
        char title[32];
        snprintf(title, sizeof title, "\n%s groups (", axis_name((Axis)axis));
        const char *line = strstr(text, title);
        assert_int_equal(line != NULL, shape->size[axis] > 1);
        n_long += line != NULL;
        if (!line) continue;
        int n_seen[MOST_RANKS] = {0}, n_groups = 0;
        const char *next = strchr(line, ')');
        assert_non_null(next);
        for (; *next != '\n'; next++) {
            n_groups += *next == '{';
            if (*next == '{' || *next == ',') n_seen[atoi(next + 1)]++;
        }
        assert_int_equal(n_groups, n_ranks / shape->size[axis]);
        for (int rank = 0; rank < n_ranks; rank++) assert_int_equal(n_seen[rank], 1);
    }
    assert_int_equal(n_lines, 2 + n_ranks + n_long);
    free(text);
}

static void test_printed(void **state) {
    (void)state;
    check_all_meshes(check_printed);
    static const char *const hosts[] = {"north", "south"};
    char *text = NULL;
    size_t n_bytes;
    FILE *stream = open_memstream(&text, &n_bytes);
    mesh_print(&(MeshShape){{1, 2, 1, 1, 1}}, hosts, stream);
    fclose(stream);
    assert_string_equal(text, "mesh of 2 ranks: pp 1, dp 2, cp 1, ep 1, tp 1\n"
                              "  rank    pp    dp    cp    ep    tp  host\n"
                              "     0     0     0     0     0     0  north\n"
                              "     1     0     1     0     0     0  south\n"
                              "dp groups (data: sequences): {0,1}\n");
    free(text);
}

/* What is asked for, and whether it can be: the sizes multiply to the ranks. */
static void check_asked(const int64_t *sizes, int n_ranks) {
    MeshShape shape;
    Error error = {0};
    int64_t others = 1;
    for (int axis = 0; axis < N_AXES; axis++)
        if (axis != AXIS_DP && others <= n_ranks) others *= sizes[axis];
    bool fits = sizes[AXIS_DP] ? others * sizes[AXIS_DP] == n_ranks : n_ranks % others == 0;
    Status status = mesh_shape(sizes, n_ranks, &shape, &error);
    if (fits) {
        assert_int_equal(status, STATUS_OK);
        assert_int_equal(mesh_n_ranks(&shape), n_ranks);
        for (int axis = 0; axis < N_AXES; axis++) {
            if (axis != AXIS_DP || sizes[axis]) assert_int_equal(shape.size[axis], sizes[axis]);
        }
        return;
    }
    assert_int_equal(status, STATUS_USER);
    assert_int_equal(error.text[0], '-'); /* begins with the option */
    /* How many ranks would do; --dp is named only where it was given, and to leave it out only where that would do. */
    bool is_alone = strstr(error.text, "leave it out") != NULL;
    assert_true(is_alone || strstr(error.text, "; start ") || strstr(error.text, ", or start "));
    bool would_do = sizes[AXIS_DP] && n_ranks % others == 0;
    if (!is_alone) assert_int_equal(strstr(error.text, "leave out --dp") != NULL, would_do);
}

static void test_asked(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++) {
        for (int which = 0; which < 81; which++) {
            int64_t sizes[N_AXES];
            for (int axis = 0, rest = which; axis < N_AXES; axis++) {
                sizes[axis] = 1 + rest % 3;
                if (axis != AXIS_DP) rest /= 3;
            }
            for (sizes[AXIS_DP] = 0; sizes[AXIS_DP] <= n_ranks + 2; sizes[AXIS_DP]++)
                check_asked(sizes, n_ranks);
        }
    }
    enum { LARGEST = 1 << 20 }; /* that the options take: the product must not overflow */
    check_asked((int64_t[N_AXES]){LARGEST, LARGEST, LARGEST, LARGEST, LARGEST}, 4);
    check_asked((int64_t[N_AXES]){1, LARGEST, 1, 1, 1}, 4);
}

static void assert_refused(const int64_t *sizes, int n_ranks, const char *words) {
    MeshShape shape;
    Error error = {0};
    assert_int_equal(mesh_shape(sizes, n_ranks, &shape, &error), STATUS_USER);
    if (strncmp(error.text, words, strlen(words)) != 0) fail_msg("'%s' is not '%s'", error.text, words);
}

/* Meshes of jobs that are only planned: the message says what was given. */
static void test_planned(void **state) {
    (void)state;
    MeshShape shape;
    Error error = {0};
    assert_int_equal(mesh_shape_planned((int64_t[N_AXES]){3, 0, 1, 1, 5}, 15, &shape, &error), STATUS_OK);
    assert_true(shape.size[AXIS_PP] == 3 && shape.size[AXIS_DP] == 1 && shape.size[AXIS_TP] == 5);
    assert_int_equal(mesh_shape_planned((int64_t[N_AXES]){4, 0, 1, 1, 4}, 15, &shape, &error), STATUS_USER);
    assert_string_equal(error.text,
                        "--pp 4 --tp 4 makes a mesh of 16 ranks, and one of up to 15 can be planned; "
                        "choose smaller sizes");
    enum { LARGEST = 1 << 20 };
    error = (Error){0};
    int64_t largest[N_AXES] = {LARGEST, LARGEST, LARGEST, LARGEST, LARGEST};
    assert_int_equal(mesh_shape_planned(largest, 1 << 16, &shape, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "more than"));
}

static void test_refusals(void **state) {
    (void)state;
    assert_refused((int64_t[N_AXES]){1, 3, 1, 1, 1}, 4,
                   "--dp 3 does not multiply to the 4 ranks of this run; ");
    assert_refused((int64_t[N_AXES]){1, 1, 1, 1, 1}, 4,
                   "--dp 1 does not multiply to the 4 ranks of this run; ");
    assert_refused((int64_t[N_AXES]){1, 8, 1, 1, 1}, 1,
                   "--dp 8 does not multiply to the 1 rank of this run; ");
    assert_refused((int64_t[N_AXES]){3, 2, 1, 1, 1}, 6 + 1,
                   "--pp 3 --dp 2 does not multiply to the 7 ranks of this run; start 6 ranks (mpirun -n), "
                   "or choose --pp 7 --dp 1");
    assert_refused(
        (int64_t[N_AXES]){3, 2, 1, 1, 2}, 4,
        "--pp 3 --dp 2 --tp 2 does not multiply to the 4 ranks of this run; start 12 ranks (mpirun -n), "
        "or choose --pp 1 --dp 2 --tp 2");
    assert_refused(
        (int64_t[N_AXES]){3, 0, 1, 1, 4}, 6,
        "--pp 3 --tp 4 does not divide the 6 ranks of this run; start 12 ranks (mpirun -n), or choose "
        "--pp 3 --tp 2");
    assert_refused(
        (int64_t[N_AXES]){3, 0, 1, 1, 1}, 8,
        "--pp 3 does not divide the 8 ranks of this run; start 6 or 9 ranks (mpirun -n), or choose --pp 2 or --pp 4");
    assert_refused(
        (int64_t[N_AXES]){9, 0, 1, 1, 1}, 8,
        "--pp 9 does not divide the 8 ranks of this run; start 9 ranks (mpirun -n), or choose --pp 8");
}

/* Of a model of few blocks: no more stages than those, however many ranks there are. */
static void test_few_blocks(void **state) {
    (void)state;
    static const struct {
        int64_t pp, dp, tp, n_blocks;
        int n_ranks;
        const char *words;
    } cases[] = {
        {3, 0, 1, 2, 4, "--pp 3 does not divide the 4 ranks of this run; choose --pp 2"},
        {3, 0, 1, 3, 4,
         "--pp 3 does not divide the 4 ranks of this run; start 3 or 6 ranks (mpirun -n), or choose --pp 2"},
        {16, 0, 1, 3, 8, "--pp 16 does not divide the 8 ranks of this run; choose --pp 2"},
        {4, 0, 2, 2, 6, "--pp 4 --tp 2 does not divide the 6 ranks of this run; choose --pp 2 --tp 3"},
        {4, 2, 1, 2, 6, "--pp 4 --dp 2 does not multiply to the 6 ranks of this run; choose --pp 2 --dp 3"},
        {4, 4, 1, 3, 7, "--pp 4 --dp 4 does not multiply to the 7 ranks of this run; choose --pp 1 --dp 7"},
        {3, 2, 1, 3, 4,
         "--pp 3 --dp 2 does not multiply to the 4 ranks of this run; start 6 ranks (mpirun -n), or choose --pp 2 --dp 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MeshShape shape;
        Error error = {0};
        const int64_t sizes[N_AXES] = {cases[i].pp, cases[i].dp, 1, 1, cases[i].tp};
        const int64_t most[N_AXES] = {[AXIS_PP] = cases[i].n_blocks};
        assert_int_equal(mesh_shape_within(sizes, most, cases[i].n_ranks, &shape, &error), STATUS_USER);
        assert_string_equal(error.text, cases[i].words);
    }
}

/* ---- shares of a batch ---- */

static void test_shares(void **state) {
    (void)state;
    static const int64_t large[] = {1000003, ((int64_t)1 << 40) + 5, (int64_t)1 << 62};
    for (int size = 1; size <= 33; size++) {
        for (int64_t i = 0; i < 203; i++) {
            int64_t n = i < 200 ? i : large[i - 200], end_before = 0;
            for (int rank = 0; rank < size; rank++) {
                Comm comm = {.rank = rank, .size = size};
                int64_t first, end;
                Mesh mesh = mesh_of(&comm, &comm);
                sync_share(&(GradientSyncOptions){.mesh = &mesh}, n, &first, &end);
                assert_true(first == end_before);
                assert_true(end - first == n / size || end - first == n / size + (n % size != 0));
                end_before = end;
            }
            assert_true(end_before == n);
        }
    }
    int64_t first, end;
    sync_share(&(GradientSyncOptions){0}, 7, &first, &end);
    assert_true(first == 0 && end == 7);
}

static void assert_formula(int zero, int n_moments, const char *words, double bytes) {
    Comm comm = {.size = 4};
    Mesh mesh = mesh_of(&comm, &comm);
    GradientSyncOptions options = {.mesh = &mesh, .zero = zero};
    char text[64];
    assert_string_equal(sync_state_formula(&options, (Precision){0}, n_moments, text, sizeof text), words);
    assert_true(sync_state_bytes(&options, (Precision){0}, (GroupCounts){{1000}}, n_moments) == bytes);
}

static void test_formulas(void **state) {
    (void)state;
    assert_formula(0, 2, "16Ψ", 16000.0);
    assert_formula(1, 2, "8Ψ + 8Ψ/4", 10000.0);
    assert_formula(2, 2, "4Ψ + 12Ψ/4", 7000.0);
    assert_formula(3, 2, "16Ψ/4", 4000.0);
    assert_formula(0, 0, "8Ψ", 8000.0);
    assert_formula(1, 0, "8Ψ", 8000.0);
    assert_formula(2, 1, "4Ψ + 8Ψ/4", 6000.0);
    assert_formula(3, 0, "8Ψ/4", 2000.0);
    char text[64];
    assert_string_equal(sync_state_formula(&(GradientSyncOptions){0}, (Precision){0}, 2, text, sizeof text),
                        "16Ψ");
}

/* ---- memory of a host ---- */

static size_t a_gigabyte_is_free(void *context) {
    (void)context;
    return (size_t)1 << 30;
}

/* Ranks of one host must not each count on all that is free there. */
static void test_memory_is_shared(void **state) {
    (void)state;
    Backend backend = {.free_bytes = a_gigabyte_is_free, .n_sharing = 4};
    Launch launch = {.world = {.size = 8}}; /* on two hosts */
    Trainer trainer = {.setup = {.backend = &backend, .launch = &launch, .options = &(TrainOptions){0}}};
    trainer.memory.bytes[PLACE_ACTIVATION] = (size_t)1 << 28;
    Error error = {0};
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_OK);
    trainer.memory.bytes[PLACE_ACTIVATION]++;
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "needs 256 MiB for each rank"));
    assert_non_null(strstr(error.text, "256 MiB are free for each of the 4 on this host; "));
    error = (Error){0};
    backend.n_sharing = 1; /* a host of its own */
    trainer.memory.bytes[PLACE_ACTIVATION] = (size_t)1 << 30;
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_OK);
    backend.traits.memory = MEMORY_DEVICE; /* two on a GPU, where each has libraries */
    backend.n_sharing = 2;
    trainer.memory.bytes[PLACE_ACTIVATION] = (size_t)1 << 28;
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_OK);
    trainer.memory.bytes[PLACE_ACTIVATION]++;
    assert_int_equal(run_memory_check(&trainer, &error), STATUS_USER);
    assert_non_null(
        strstr(error.text, "256 MiB are free for each of the 2 on this GPU beside what its libraries take"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_insertion),       cmocka_unit_test(test_insertion_between_two),
        cmocka_unit_test(test_many_insertions), cmocka_unit_test(test_zero),
        cmocka_unit_test(test_coordinates),     cmocka_unit_test(test_groups),
        cmocka_unit_test(test_printed),         cmocka_unit_test(test_asked),
        cmocka_unit_test(test_planned),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_few_blocks),      cmocka_unit_test(test_shares),
        cmocka_unit_test(test_formulas),        cmocka_unit_test(test_memory_is_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
