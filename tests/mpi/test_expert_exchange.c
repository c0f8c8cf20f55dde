/* Rows of tokens to the ranks that have their experts, and back: where each run of rows arrives, that it comes
 * back to where it was, and the same of gradients, for even, lopsided and empty counts; one program for all of
 * them. And the slices that all of it is made of.
 *
 * Ranks: 2 3 4 */
#include "conjugate_support.h"

#include "parallel/expert_exchange.h"

enum { C = 3, N_TOKENS = 12, N_SLOTS = 2, N_ROWS = N_TOKENS * N_SLOTS, MAX_EXPERTS = 16 };

/* ---- patterns: rows of an expert that a rank has, at most N_TOKENS each and N_ROWS in all */

enum { EVEN, NOTHING, FIRST_EXPERT, LAST_EXPERT, ONE_RANK_ONLY, ODD, N_PATTERNS };

static int rows_of(int pattern, int rank, int expert, int n_experts) {
    bool is_first = expert == 0, is_last = expert == n_experts - 1;
    switch (pattern) {
    case EVEN: return N_ROWS / n_experts;
    case FIRST_EXPERT: return is_first ? N_TOKENS : 0;
    case LAST_EXPERT: return is_last ? N_TOKENS - rank : 0;
    case ONE_RANK_ONLY: return rank == world.size - 1 ? N_ROWS / n_experts : 0;
    case ODD: return (rank * 5 + expert * 3) % 4 * N_ROWS / n_experts / 3;
    default: return 0;
    }
}

static void fill_offsets(int pattern, int rank, int n_experts, int32_t *offsets) {
    offsets[0] = 0;
    for (int e = 0; e < n_experts; e++) offsets[e + 1] = offsets[e] + rows_of(pattern, rank, e, n_experts);
    assert_true(offsets[n_experts] <= N_ROWS);
}

/* ---- a program */

typedef struct {
    Wiring wiring;
    Backend backend;
    ExpertExchange exchange;
    Tensor *x, *offsets, *seed; /* rows at home, sorted by expert; the gradient of what comes back */
    Tensor *here, *back;        /* copies that stay */
    int n_experts;
} Round;

static Tensor *kept(Graph *graph, Tensor *tensor) {
    Tensor *state = graph_tensor(graph, PLACE_STATE, tensor->dtype, tensor->shape, "kept %s", tensor->name);
    op_copy_into(graph, tensor, state, WRITE_FRESH);
    return state;
}

/* There, doubled, and back. */
static void open_round(Round *round, int n_experts) {
    Error error = {0};
    *round = (Round){.wiring = {.graph = graph_new()}, .n_experts = n_experts};
    Graph *graph = round->wiring.graph;
    OK(backend_cpu_open(&round->backend, 1, &error));
    round->x = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(N_ROWS, C), "x.weight");
    round->offsets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(n_experts + 1), "offsets");
    round->seed = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_ROWS, C), "seed");
    const ExpertRows rows = {
        .n_tokens = N_TOKENS, .n_slots = N_SLOTS, .n_rows = N_ROWS, .n_expected = N_ROWS};
    round->exchange = op_expert_start_meeting(graph, &world, round->offsets, n_experts, &rows);
    op_expert_finish_meeting(graph, &round->exchange);
    ParallelFlight going = op_expert_start_dispatch(graph, &round->exchange, round->x);
    Tensor *here = op_parallel_finish(graph, &going);
    round->here = kept(graph, here);
    Tensor *twice = op_add(graph, here, here);
    ParallelFlight coming = op_expert_start_combine(graph, &round->exchange, twice);
    Tensor *back = op_parallel_finish(graph, &coming);
    round->back = kept(graph, back);
    AutogradSeed seed = {back, round->seed};
    AutogradOptions options = {.copy = &OP_COPY,
                               .gradient_place = PLACE_GRADIENT,
                               .parameter_dtype = DTYPE_F32,
                               .seeds = &seed,
                               .n_seeds = 1};
    OK(autograd_run(graph, &options, &error));
    OK(wiring_plan_alone(&round->wiring, "experts", &round->backend, &error));
    OK(wiring_open_alone(&round->wiring, &round->backend, &error));
}

static void close_round(Round *round) {
    wiring_close_alone(&round->wiring);
    round->backend.close(round->backend.context);
}

/* Row `row` of a rank, and of its seed. */
static float x_at(int rank, int64_t row, int column) {
    return (float)(rank * 1000 + row * 10 + column);
}

static float seed_at(int rank, int64_t row, int column) {
    return (float)(rank * 100 - row * 7 - column);
}

static float *download(Round *round, const Tensor *tensor) {
    Error error = {0};
    float *values = calloc((size_t)tensor_count(tensor) + 1, sizeof *values);
    OK(executor_download(&round->wiring.executor, tensor, values, &error));
    return values;
}

static void run_pattern(Round *round, int pattern) {
    Error error = {0};
    Executor *executor = &round->wiring.executor;
    int32_t offsets[MAX_EXPERTS + 1];
    float x[N_ROWS * C], seed[N_ROWS * C];
    fill_offsets(pattern, world.rank, round->n_experts, offsets);
    for (int i = 0; i < N_ROWS * C; i++) {
        bool is_real = i / C < offsets[round->n_experts];
        x[i] = is_real ? x_at(world.rank, i / C, i % C) : NAN; /* nobody reads it */
        seed[i] = is_real ? seed_at(world.rank, i / C, i % C) : NAN;
    }
    OK(executor_upload(executor, round->x, x, &error));
    OK(executor_upload(executor, round->seed, seed, &error));
    OK(executor_upload(executor, round->offsets, offsets, &error));
    OK(executor_run(executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error));
    OK(executor_run(executor, SECTION_BACKWARD, MICRO_BATCH_ONLY, &error));
}

/* By expert, then by rank, then as they lay there; and nothing lies behind the last. */
static void check_here(Round *round, int pattern) {
    const ExpertSpan span = round->exchange.span;
    float *here = download(round, round->here);
    int64_t at = 0;
    for (int e = span.first; e < span.first + span.n; e++) {
        for (int rank = 0; rank < world.size; rank++) {
            int32_t offsets[MAX_EXPERTS + 1];
            fill_offsets(pattern, rank, round->n_experts, offsets);
            for (int64_t row = offsets[e]; row < offsets[e + 1]; row++, at++) {
                assert_true(at < round->exchange.n_here);
                for (int c = 0; c < C; c++)
                    check_within((double)here[at * C + c], (double)x_at(rank, row, c), 0.0, "here", at);
            }
        }
    }
    free(here);
}

static void check_round(Round *round, int pattern) {
    int32_t offsets[MAX_EXPERTS + 1];
    fill_offsets(pattern, world.rank, round->n_experts, offsets);
    float *back = download(round, round->back), *gradient = download(round, round->x->gradient);
    for (int64_t row = 0; row < offsets[round->n_experts]; row++) {
        for (int c = 0; c < C; c++) {
            double y = 2.0 * (double)x_at(world.rank, row, c), dx = 2.0 * (double)seed_at(world.rank, row, c);
            check_within((double)back[row * C + c], y, 0.0, "back", row);
            check_within((double)gradient[row * C + c], dx, 0.0, "gradient", row);
        }
    }
    free(back), free(gradient);
}

static void test_rounds(void **state) {
    (void)state;
    for (int n_experts = world.size; n_experts <= 2 * world.size + 1; n_experts++) {
        Round round;
        open_round(&round, n_experts);
        for (int i = 0; i < 2 * N_PATTERNS; i++) { /* each behind another */
            int pattern = i * 5 % N_PATTERNS;
            snprintf(doing, sizeof doing, "%d experts, pattern %d: ", n_experts, pattern);
            run_pattern(&round, pattern);
            check_here(&round, pattern);
            check_round(&round, pattern);
        }
        close_round(&round);
    }
    *doing = 0;
}

/* Rows that are more than there is room for are refused, not written behind the end. */
static void test_too_many(void **state) {
    (void)state;
    Round round;
    Error error = {0};
    open_round(&round, world.size);
    int32_t offsets[MAX_EXPERTS + 1];
    for (int e = 0; e <= world.size; e++) offsets[e] = e * N_ROWS;
    OK(executor_upload(&round.wiring.executor, round.offsets, offsets, &error));
    executor_run(&round.wiring.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error);
    check_failed(&error, "there is room for");
    close_round(&round);
}

/* Ranks have as many experts as can be alike, in order; and the most that can come is never too little. */
static void test_spans(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 9; n_ranks++) {
        for (int n_experts = n_ranks; n_experts <= 40; n_experts++) {
            int next = 0;
            for (int rank = 0; rank < n_ranks; rank++) {
                ExpertSpan span = expert_span(n_experts, n_ranks, rank);
                const ExpertRows rows = {.n_tokens = 10, .n_slots = 3, .n_rows = 30, .n_expected = 30};
                assert_int_equal(span.first, next);
                assert_in_range(span.n, n_experts / n_ranks, n_experts / n_ranks + 1);
                next += span.n;
                int most = n_ranks * 10 * (span.n < 3 ? span.n : 3);
                assert_int_equal(expert_most_here(&rows, n_experts, n_ranks, rank), most);
            }
            assert_int_equal(next, n_experts);
        }
    }
}

/* ---- slices that lie anywhere */

/* Many short ones to every rank, more than go at a time, some of them empty, backwards in memory. */
static void test_places(void **state) {
    (void)state;
    enum { N_SLICES = 100, LENGTH = 3 };
    Error error = {0};
    int begin[MAX_RANKS + 1];
    CommSlice out[MAX_RANKS * N_SLICES], in[MAX_RANKS * N_SLICES];
    int64_t n = (int64_t)world.size * N_SLICES * LENGTH;
    int32_t *data = calloc((size_t)n, sizeof *data), *other = calloc((size_t)n, sizeof *other);
    assert_true(data && other);
    for (int r = 0; r <= world.size; r++) begin[r] = r * N_SLICES;
    for (int i = 0; i < world.size * N_SLICES; i++) {
        int64_t length = i % N_SLICES % (LENGTH + 1);
        out[i] = (CommSlice){(int64_t)i * LENGTH, length};
        in[i] = (CommSlice){n - (int64_t)(i + 1) * LENGTH, length};
    }
    for (int64_t i = 0; i < n; i++) data[i] = (int32_t)(world.rank * 100000 + i);
    CommPlaces from = {begin, out, n}, to = {begin, in, n};
    CommOperation operation = {.kind = COMM_ALL_TO_ALL,
                               .type = COMM_I32,
                               .data = data,
                               .other = other,
                               .out_places = &from,
                               .in_places = &to};
    OK(comm_run(&world, &operation, &error));
    for (int r = 0; r < world.size; r++) {
        for (int k = 0; k < N_SLICES; k++) {
            const CommSlice *slice = &in[r * N_SLICES + k];
            for (int64_t i = 0; i < slice->n; i++) {
                int64_t want = r * 100000 + ((int64_t)world.rank * N_SLICES + k) * LENGTH + i;
                assert_int_equal(other[slice->first + i], want);
            }
        }
    }
    free(data), free(other);
}

static void test_bad_places(void **state) {
    (void)state;
    Error error = {0};
    int begin[MAX_RANKS + 1] = {0};
    for (int r = 0; r <= world.size; r++) begin[r] = r;
    CommSlice slice[MAX_RANKS] = {{0}};
    float data[4] = {0}, other[4] = {0};
    CommPlaces good = {begin, slice, 4}, bad = good;
    CommSlice behind[MAX_RANKS] = {{3, 2}};
    bad.slice = behind;
    CommOperation operation = {
        .kind = COMM_ALL_TO_ALL, .data = data, .other = other, .out_places = &bad, .in_places = &good};
    comm_run(&world, &operation, &error);
    check_failed(&error, "does not lie in its memory");
    error = (Error){0};
    CommSlice longer[MAX_RANKS] = {{0}};
    longer[world.rank].n = 2;
    bad.slice = longer;
    comm_run(&world, &operation, &error);
    check_failed(&error, "sends to itself");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans),  cmocka_unit_test(test_places),   cmocka_unit_test(test_bad_places),
        cmocka_unit_test(test_rounds), cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
