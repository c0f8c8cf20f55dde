/* What --print-mesh counts, against the formulas of what every way to divide a model sends.
 *
 * Numbers come from the programs of all ranks; here are the totals that they have to come to, for sizes that do
 * not divide. A ring all-reduce of n elements over N ranks sends 2(N-1)n, each of its halves (N-1)n. */
#include "job/train_run.h"

#include "ops/experts/experts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 3, CHANNELS = 20, SEQUENCE = 11, BATCH = 12, F32 = 4, MOST_WORDS = 64 };

typedef struct {
    Traffic sum, most;
    int64_t n_flat;    /* elements of all parameters, as they lie in the flat array */
    int64_t n_table;   /* of the token table */
    int64_t n_experts; /* of experts, */
    int64_t n_thirds;  /* and of three parts of them, which are padded each */
} Counted;

/* The options beside the model, separated by blanks. */
static Counted count(const char *options, const char *const *hosts) {
    static const char model[] =
        "--print-mesh --quiet --model nano --layers 3 --heads 5 --channels 20 --context 16 "
        "--sequence 11 --batch 12 --device cpu --dropout 0 --loss-chunk 100000";
    char text[1024], *words[MOST_WORDS];
    int n_words = 0;
    snprintf(text, sizeof text, "%s %s", model, options);
    for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest));) words[n_words++] = word;
    Launch launch = launch_alone();
    Error error = {0};
    TrainRun run = {.launch = &launch};
    Counted counted;
    train_run(&run, n_words, words, &error);
    assert_string_equal(error.text, "");
    assert_int_equal(run.outcome, TRAIN_RUN_MESH);
    train_count_traffic(&run, hosts, false, &counted.sum, &counted.most, &error);
    assert_string_equal(error.text, "");
    ParameterTable table;
    parameters_build(&table, &run.values.model, &error);
    counted.n_flat = table.n_flat_elements;
    counted.n_experts = counted.n_thirds = 0;
    for (int i = 0; i < table.n_parameters; i++) {
        int64_t end = i + 1 < table.n_parameters ? table.parameter[i + 1].flat_offset : table.n_flat_elements;
        if (!role_is_of_experts(table.parameter[i].role)) continue;
        int64_t third = shape_count(table.parameter[i].shape) / 3;
        counted.n_experts += end - table.parameter[i].flat_offset;
        counted.n_thirds += 3 * ((third + PARTITION_GRAIN - 1) / PARTITION_GRAIN * PARTITION_GRAIN);
    }
    counted.n_table = shape_count(parameter_find(&table, ROLE_TOKEN_TABLE, NO_BLOCK)->laid_out);
    parameters_free(&table);
    train_run_close(&run, &error);
    return counted;
}

#define AT(counted, what, axis, kind) ((counted).what.count[1 << (axis)][kind])

static void check_bytes(const Counted *counted, Axis axis, int kind, int64_t n_bytes) {
    assert_int_equal(AT(*counted, sum, axis, kind).n_bytes, n_bytes);
}

static void check_times(const Counted *counted, Axis axis, int kind, int64_t n_times) {
    assert_int_equal(AT(*counted, most, axis, kind).n_operations, n_times);
}

/* Of the residual stream of a micro-batch, in bytes. */
static int64_t stream_bytes(int64_t n_sequences) {
    return n_sequences * SEQUENCE * CHANNELS * F32;
}

/* Every line adds up to the line of all. */
static void check_all(const Counted *counted) {
    TrafficCount all = {0};
    for (int axes = 1; axes < N_TRAFFIC_AXES; axes++) {
        for (int kind = 0; kind < N_TRAFFIC_KINDS; kind++) {
            all.n_messages += counted->sum.count[axes][kind].n_messages;
            all.n_bytes += counted->sum.count[axes][kind].n_bytes;
        }
    }
    assert_int_equal(all.n_messages, counted->sum.count[0][0].n_messages);
    assert_int_equal(all.n_bytes, counted->sum.count[0][0].n_bytes);
}

static void test_data(void **state) {
    (void)state;
    enum { N = 5, MICRO = 3 };
    static const char *const options[] = {
        "--dp 5 --micro-batch 1 --zero 0", "--dp 5 --micro-batch 1 --zero 1",
        "--dp 5 --micro-batch 1 --zero 2", "--dp 5 --micro-batch 1 --zero 3"};
    for (int zero = 0; zero <= 3; zero++) {
        Counted counted = count(options[zero], NULL);
        int64_t once = (N - 1) * counted.n_flat * F32;
        int64_t n_sums = zero < 2 ? 1 : MICRO; /* gradients are sharded at once */
        if (zero == 0) check_bytes(&counted, AXIS_DP, COMM_ALL_REDUCE, 2 * once);
        else check_bytes(&counted, AXIS_DP, COMM_REDUCE_SCATTER, n_sums * once);
        if (zero == 1 || zero == 2) check_bytes(&counted, AXIS_DP, COMM_ALL_GATHER, once);
        if (zero == 3) { /* in the forward, and again in the backward but for what is still there */
            int64_t gathered = AT(counted, sum, AXIS_DP, COMM_ALL_GATHER).n_bytes;
            assert_true(gathered > MICRO * once && gathered <= 2 * MICRO * once);
        }
        check_times(&counted, AXIS_DP, TRAFFIC_SCALARS, zero > 0 ? 2 : 1); /* the loss; a norm of slices */
        check_all(&counted);
    }
}

static void test_tensor(void **state) {
    (void)state;
    enum { N = 3, MICRO = 4, EACH = BATCH / MICRO, TIMES = (4 * LAYERS + 2) * MICRO };
    int64_t once = (N - 1) * stream_bytes(EACH), loss = (N - 1) * (int64_t)N * EACH * SEQUENCE * 3 * F32;
    Counted whole = count("--tp 3 --micro-batch 3 --no-sequence-parallel", NULL);
    check_times(&whole, AXIS_TP, COMM_ALL_REDUCE, TIMES);
    check_bytes(&whole, AXIS_TP, COMM_ALL_REDUCE, 2 * TIMES * once);
    check_times(&whole, AXIS_TP, COMM_ALL_GATHER, MICRO); /* three numbers a row for the loss */
    check_bytes(&whole, AXIS_TP, COMM_ALL_GATHER, MICRO * loss);
    check_all(&whole);
    Counted split = count("--tp 3 --micro-batch 3", NULL);
    enum { AGAIN = LAYERS * MICRO }; /* for the backward, of one of a block's two: gather_again.h */
    check_times(&split, AXIS_TP, COMM_ALL_GATHER, TIMES + AGAIN + MICRO);
    check_bytes(&split, AXIS_TP, COMM_ALL_GATHER, (TIMES + AGAIN) * once + MICRO * loss);
    check_times(&split, AXIS_TP, COMM_REDUCE_SCATTER, TIMES);
    check_bytes(&split, AXIS_TP, COMM_REDUCE_SCATTER, TIMES * once);
    check_times(&split, AXIS_TP, COMM_ALL_REDUCE, 2 * (2 * LAYERS + 1)); /* weights and biases of norms */
    check_bytes(&split, AXIS_TP, COMM_ALL_REDUCE, 2 * (2 * LAYERS + 1) * 2 * (N - 1) * CHANNELS * F32);
    check_all(&split);
}

/* A sum behind each of a block's four linear layers, of all that it makes; backward, what each takes is
 * gathered. Embedding and head are as in the other style. */
static void test_row_style(void **state) {
    (void)state;
    enum { N = 3, MICRO = 4, EACH = BATCH / MICRO };
    int64_t stream = (N - 1) * stream_bytes(EACH), loss = (N - 1) * (int64_t)N * EACH * SEQUENCE * 3 * F32;
    Counted row = count("--tp 3 --micro-batch 3 --tp-style row", NULL);
    check_times(&row, AXIS_TP, COMM_ALL_REDUCE, (4 * LAYERS + 2) * MICRO);
    check_bytes(&row, AXIS_TP, COMM_ALL_REDUCE, 2 * MICRO * (LAYERS * (3 + 1 + 4 + 1) + 2) * stream);
    check_times(&row, AXIS_TP, COMM_ALL_GATHER, (4 * LAYERS + 1) * MICRO);
    check_bytes(&row, AXIS_TP, COMM_ALL_GATHER, MICRO * (LAYERS * (1 + 1 + 1 + 4) * stream + loss));
    check_all(&row);
}

static void test_pipeline(void **state) {
    (void)state;
    enum { N = 3, MICRO = 6, EACH = BATCH / MICRO };
    Counted counted = count("--pp 3 --micro-batch 2 --zero 0", NULL);
    assert_int_equal(AT(counted, sum, AXIS_PP, TRAFFIC_MESSAGES).n_messages, 2 * (N - 1) * MICRO);
    check_bytes(&counted, AXIS_PP, TRAFFIC_MESSAGES, 2 * (N - 1) * MICRO * stream_bytes(EACH));
    check_times(&counted, AXIS_PP, TRAFFIC_MESSAGES, 2 * MICRO); /* the one in the middle, both ways */
    check_times(&counted, AXIS_PP, COMM_ALL_REDUCE, 1);          /* the tied table, between the ends */
    check_bytes(&counted, AXIS_PP, COMM_ALL_REDUCE, 2 * counted.n_table * F32);
    check_all(&counted);
    /* pipedream updates behind every micro-batch, and sums as often. */
    Counted each = count("--pp 3 --micro-batch 2 --schedule pipedream", NULL);
    check_bytes(&each, AXIS_PP, TRAFFIC_MESSAGES, 2 * (N - 1) * MICRO * stream_bytes(EACH));
    check_times(&each, AXIS_PP, COMM_ALL_REDUCE, MICRO);
    check_bytes(&each, AXIS_PP, COMM_ALL_REDUCE, MICRO * 2 * each.n_table * F32);
    Counted once = count("--pp 3 --dp 2 --micro-batch 2", NULL);
    Counted shared = count("--pp 3 --dp 2 --micro-batch 2 --schedule pipedream", NULL);
    check_times(&shared, AXIS_DP, COMM_ALL_REDUCE,
                MICRO / 2 * AT(once, most, AXIS_DP, COMM_ALL_REDUCE).n_operations);
    check_all(&shared);
}

/* Eleven positions and five heads over three ranks. Ring: in each round all keys and values move on, and behind
 * the first one of the backward their gradients with them. All-to-all: a rank has x positions of all heads in
 * front of attention, y heads of all positions in it, and sends what it does not have there. */
static void test_context(void **state) {
    (void)state;
    enum { N = 3, MICRO = 3, EACH = BATCH / MICRO, HEAD = CHANNELS / 5, TIMES = LAYERS * MICRO };
    Counted ring = count("--cp 3 --micro-batch 4", NULL);
    check_times(&ring, AXIS_CP, TRAFFIC_SHIFTS, (3 * N - 4) * TIMES);
    check_bytes(&ring, AXIS_CP, TRAFFIC_SHIFTS, (3 * N - 4) * TIMES * 2 * stream_bytes(EACH));
    check_times(&ring, AXIS_CP, COMM_ALL_TO_ALL, 0);
    check_bytes(&ring, AXIS_CP, COMM_ALL_REDUCE, 2 * (N - 1) * ring.n_flat * F32);
    check_all(&ring);
    static const int64_t x[N] = {4, 4, 3}, y[N] = {2, 2, 1};
    int64_t n_moved = 0; /* of one tensor of the stream's size, one way */
    for (int r = 0; r < N; r++) n_moved += EACH * x[r] * (5 - y[r]) * HEAD;
    Counted heads = count("--cp 3 --cp-style all-to-all --micro-batch 4", NULL);
    check_times(&heads, AXIS_CP, TRAFFIC_SHIFTS, 0);
    check_times(&heads, AXIS_CP, COMM_ALL_TO_ALL, 4 * TIMES);
    check_bytes(&heads, AXIS_CP, COMM_ALL_TO_ALL, 2 * (3 + 1) * TIMES * n_moved * F32);
    check_all(&heads);
}

/* Two experts a rank: rows go and come back, and so do their gradients; how many is known of even routing. The
 * first of three ranks is wanted by 14 of 44 rows, the others by 15. Experts' gradients stay where they are. */
static void test_experts(void **state) {
    (void)state;
    enum { N = 3, MICRO = 2, EACH = BATCH / N / MICRO, CHOSEN = 2, ROWS = EACH * SEQUENCE * CHOSEN };
    enum { SENT = (N - 1) * ROWS, TIMES = LAYERS * MICRO, OFFSETS = N * (N - 1) * (2 + 1) };
    Counted counted = count("--ep 3 --experts 6 --micro-batch 2", NULL);
    check_times(&counted, AXIS_EP, COMM_ALL_TO_ALL, (1 + 4) * TIMES);
    check_bytes(&counted, AXIS_EP, COMM_ALL_TO_ALL, TIMES * (OFFSETS + 4 * SENT * CHANNELS) * F32);
    int64_t n_shared = counted.n_flat - counted.n_experts, n_reports = LAYERS * (6 + N_ROUTE_COUNTS);
    check_bytes(&counted, AXIS_EP, COMM_ALL_REDUCE, 2 * (N - 1) * (n_shared + n_reports) * F32);
    check_all(&counted);
    /* Two of three blocks are recomputed, and send their rows to the experts and back once more. */
    Counted again = count("--ep 3 --experts 6 --micro-batch 2 --recompute 1", NULL);
    check_times(&again, AXIS_EP, COMM_ALL_TO_ALL, (1 + 4) * TIMES + 2 * 2 * MICRO);
    check_bytes(&again, AXIS_EP, COMM_ALL_TO_ALL,
                (TIMES * (OFFSETS + 4 * SENT * CHANNELS) + 2 * 2 * MICRO * SENT * CHANNELS) * F32);
    Counted both = count("--ep 3 --dp 2 --experts 6 --micro-batch 2", NULL);
    check_bytes(&both, AXIS_DP, COMM_ALL_REDUCE, 2 * both.n_thirds * F32);
    check_all(&both);
}

/* Hosts of as many ranks as tp has: what goes along it stays, all else leaves. */
static void test_hosts(void **state) {
    (void)state;
    const char *const hosts[] = {"a", "a", "b", "b", "c", "c", "d", "d"};
    Counted counted = count("--tp 2 --dp 2 --pp 2 --micro-batch 1 --zero 1", hosts);
    for (int axes = 1; axes < N_TRAFFIC_AXES; axes++) {
        for (int kind = 0; kind < N_TRAFFIC_KINDS; kind++) {
            const TrafficCount *line = &counted.sum.count[axes][kind];
            bool is_of_world = axes & (axes - 1);
            if (axes == 1 << AXIS_TP) assert_int_equal(line->n_far_bytes, 0);
            else if (!is_of_world) assert_int_equal(line->n_far_bytes, line->n_bytes);
        }
    }
    assert_true(AT(counted, sum, AXIS_TP, COMM_ALL_GATHER).n_bytes > 0);
    assert_true(AT(counted, sum, AXIS_DP, COMM_REDUCE_SCATTER).n_far_messages > 0);
    assert_true(AT(counted, sum, AXIS_PP, TRAFFIC_MESSAGES).n_far_bytes > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data),     cmocka_unit_test(test_tensor), cmocka_unit_test(test_row_style),
        cmocka_unit_test(test_pipeline), cmocka_unit_test(test_hosts),  cmocka_unit_test(test_experts),
        cmocka_unit_test(test_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
