/* The async schemes on small vectors: what is conserved, what they tend to, and that no gradient is ever too late.
 *
 * Ranks: 2 3 4 */
#include "comm_support.h"

#include "parallel/async/async.h"
#include "parallel/async/parameter_server.h"

#include <time.h>

enum { N = 37 };

static void sleep_ms(int ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* What rank r begins with. */
static float first_value(int r, int i) {
    return (float)(1 + r * r) * 0.25f + (float)(i % 7) * (r % 2 ? 1.0f : -0.5f);
}

static double first_mean(int i) {
    double sum = 0.0;
    for (int r = 0; r < world.size; r++) sum += (double)first_value(r, i);
    return sum / world.size;
}

typedef struct {
    float weights[N], moment[N];
    Async async;
} Rank;

static void open_rank(Rank *rank, const AsyncOptions *options) {
    Error error = {0};
    for (int i = 0; i < N; i++) rank->weights[i] = first_value(world.rank, i);
    for (int i = 0; i < N; i++) rank->moment[i] = (float)world.rank;
    AsyncState arrays = {.weights = rank->weights, .moment = {rank->moment}, .n_moments = 1, .n = N};
    OK(async_open(&rank->async, options, &world, &arrays, &error));
}

/* The largest distance of any rank's weights to the average that they began with. */
static double distance(const Rank *rank) {
    Error error = {0};
    double largest = 0.0;
    for (int i = 0; i < N; i++) largest = fmax(largest, fabs((double)rank->weights[i] - first_mean(i)));
    OK(comm_all_reduce(&world, &largest, 1, COMM_F64, COMM_MAX, &error));
    return largest;
}

static void assert_averaged(const Rank *rank, double tolerance) {
    for (int i = 0; i < N; i++) {
        if (fabs((double)rank->weights[i] - first_mean(i)) > tolerance)
            fail_msg("rank %d: element %d is %g, not %g", world.rank, i, (double)rank->weights[i],
                     first_mean(i));
        assert_true(fabs((double)rank->moment[i] - 0.5 * (world.size - 1)) < 1e-5);
    }
}

/* All ranks have the same bits. */
static void assert_same(const float *values) {
    Error error = {0};
    int32_t bits[2 * N];
    for (int i = 0; i < N; i++) {
        memcpy(&bits[i], &values[i], sizeof bits[i]);
        bits[N + i] = -bits[i];
    }
    OK(comm_all_reduce(&world, bits, 2 * N, COMM_I32, COMM_MAX, &error));
    for (int i = 0; i < N; i++) assert_int_equal(bits[i], -bits[N + i]);
}

/* ---- Push */

/* Without updates the weights of every rank tend to the average of all, whatever the messages' delay; and the sum is kept, which
 * async_average checks by the masses and we by the values. */
static void push_tends_to_the_average(void **state) {
    (void)state;
    for (int64_t delay = 0; delay <= 3; delay++) {
        Rank rank;
        Error error = {0};
        open_rank(&rank, &(AsyncOptions){.sync = SYNC_PUSH, .staleness = delay});
        double before = distance(&rank);
        for (int64_t step = 0; step < 500; step++) OK(async_step(&rank.async, step, &error));
        assert_true(before > 0.1);
        double after = distance(&rank);
        if (after > 1e-4) fail_msg("delay %d: still %g away", (int)delay, after);
        OK(async_average(&rank.async, &error));
        assert_averaged(&rank, 1e-4);
        assert_same(rank.weights);
        async_close(&rank.async);
    }
}

/* After a few steps ranks differ; the average is that of all updates all the same, since none is lost or counted twice. */
static void push_keeps_the_sum(void **state) {
    (void)state;
    for (int64_t delay = 0; delay <= 3; delay++) {
        Rank rank;
        Error error = {0};
        open_rank(&rank, &(AsyncOptions){.sync = SYNC_PUSH, .staleness = delay});
        for (int64_t step = 0; step < 7; step++) {
            if (step % world.size == world.rank) sleep_ms(2); /* its message comes late */
            for (int i = 0; i < N; i++) rank.weights[i] += 0.125f * (float)(world.rank + 1);
            OK(async_step(&rank.async, step, &error));
        }
        assert_true(distance(&rank) > 0.01);
        OK(async_average(&rank.async, &error));
        double moved = 7 * 0.125 * (world.size + 1) / 2.0;
        for (int i = 0; i < N; i++) rank.weights[i] -= (float)moved;
        assert_averaged(&rank, 1e-5);
        async_close(&rank.async);
    }
}

/* ---- Groups */

static void groups_mix(void **state) {
    (void)state;
    for (int size = 2; size <= world.size; size++) {
        Rank rank;
        Error error = {0};
        open_rank(&rank, &(AsyncOptions){.sync = SYNC_GROUPS, .group_size = size});
        int n_patterns = async_n_patterns(world.size, size);
        OK(async_step(&rank.async, 0, &error));
        double once = distance(&rank);
        for (int64_t step = 1; step < 40 * n_patterns; step++) OK(async_step(&rank.async, step, &error));
        if (size < world.size) assert_true(once > 1e-3); /* one group does not know of the others */
        assert_true(distance(&rank) < 1e-4);
        OK(async_average(&rank.async, &error));
        assert_averaged(&rank, 1e-4);
        assert_same(rank.weights);
        async_close(&rank.async);
    }
}

/* ---- Local steps */

static void local_averages_when_due(void **state) {
    (void)state;
    Rank rank;
    Error error = {0};
    open_rank(&rank, &(AsyncOptions){.sync = SYNC_LOCAL, .every = 3});
    for (int64_t step = 0; step < 2; step++) {
        OK(async_step(&rank.async, step, &error));
        for (int i = 0; i < N; i++) assert_true(rank.weights[i] == first_value(world.rank, i));
    }
    OK(async_step(&rank.async, 2, &error));
    assert_averaged(&rank, 1e-5);
    assert_same(rank.weights);
    assert_same(rank.moment);
    float before[N];
    memcpy(before, rank.weights, sizeof before);
    OK(async_average(&rank.async, &error)); /* nothing to do: not a bit changes */
    assert_memory_equal(before, rank.weights, sizeof before);
    async_close(&rank.async);
}

/* A quadratic bowl with another centre on every rank. */
static float slope(const float *weights, int r, int i) {
    return 0.5f * (weights[i] - first_value(r, i));
}

/* SGD with momentum: with an average after every step it is, up to rounding, the run that sums gradients in every step. */
static void local_with_one_step_is_exact(void **state) {
    (void)state;
    Rank rank;
    Error error = {0};
    open_rank(&rank, &(AsyncOptions){.sync = SYNC_LOCAL, .every = 1});
    float exact[N], momentum[N];
    for (int i = 0; i < N; i++) exact[i] = rank.weights[i] = 3.0f;
    for (int i = 0; i < N; i++) momentum[i] = rank.moment[i] = 0.0f;
    async_restart(&rank.async);
    for (int64_t step = 0; step < 50; step++) {
        for (int i = 0; i < N; i++) {
            float sum = 0.0f;
            for (int r = 0; r < world.size; r++) sum += slope(exact, r, i) / (float)world.size;
            momentum[i] = 0.9f * momentum[i] + sum;
            exact[i] -= 0.05f * momentum[i];
        }
        for (int i = 0; i < N; i++) {
            rank.moment[i] = 0.9f * rank.moment[i] + slope(rank.weights, world.rank, i);
            rank.weights[i] -= 0.05f * rank.moment[i];
        }
        OK(async_step(&rank.async, step, &error));
        for (int i = 0; i < N; i++) assert_true(fabsf(rank.weights[i] - exact[i]) < 2e-5f);
    }
    async_close(&rank.async);
}

/* ---- The server */

typedef struct {
    float weights[N], gradient[N];
    int64_t n_applied;
    int64_t most_late;
    bool was_used[4096];
} Model;

/* A gradient says with which weights it was computed: element 0 is the number of updates made to them. */
static Status apply_gradient(void *context, const ParameterServerReport *report, int64_t staleness,
                             Error *error) {
    Model *model = context;
    if (model->was_used[report->ticket])
        return error_failed(error, "ticket %lld came twice", (long long)report->ticket);
    model->was_used[report->ticket] = true;
    if ((int64_t)(model->weights[0] - model->gradient[0]) != staleness)
        return error_failed(error, "a gradient of version %g is %lld late at %g", (double)model->gradient[0],
                            (long long)staleness, (double)model->weights[0]);
    if ((double)model->gradient[1] != report->loss)
        return error_failed(error, "not the gradient of the report");
    if (model->most_late < staleness) model->most_late = staleness;
    model->weights[0] += 1.0f;
    model->n_applied++;
    return STATUS_OK;
}

static void work(Comm *comm, int64_t n_phases, int straggler) {
    Error error = {0};
    Model model = {.n_applied = 0};
    for (int64_t phase = 0; phase < n_phases; phase++) {
        ParameterServerReport report = {.ticket = -1};
        for (;;) {
            ParameterServerOrder order;
            OK(parameter_server_ask(comm, &report, model.gradient, sizeof model.gradient, model.weights,
                                    sizeof model.weights, &order, &error));
            if (order.pauses) {
                assert_int_equal(order.words[0], phase);
                break;
            }
            if (comm->rank == straggler) sleep_ms(3);
            model.gradient[0] = model.weights[0];
            model.gradient[1] = (float)order.ticket;
            report = (ParameterServerReport){.ticket = order.ticket, .loss = (double)model.gradient[1]};
        }
        OK(comm_barrier(&world, &error)); /* what comes in a pause */
    }
}

/* One rank so slow that the others meet the bound: it holds, whatever it is, and every ticket is used once. */
static void staleness_stays_in_bounds(void **state) {
    (void)state;
    static const int64_t bounds[] = {0, 1, 2, 3, 7};
    enum { PHASES = 2, EACH = 30 };
    for (size_t k = 0; k < sizeof bounds / sizeof bounds[0]; k++) {
        Error error = {0};
        Comm comm;
        OK(comm_split(&world, 0, world.rank, &comm, &error));
        if (world.rank > 0) {
            work(&comm, PHASES, world.size - 1);
            comm_close(&comm);
            continue;
        }
        static Model model;
        model = (Model){.n_applied = 0};
        ParameterServer server;
        ParameterServerSetup setup = {.comm = &comm,
                                      .bound = bounds[k],
                                      .weights = model.weights,
                                      .weights_bytes = sizeof model.weights,
                                      .gradient = model.gradient,
                                      .gradient_bytes = sizeof model.gradient,
                                      .apply = apply_gradient,
                                      .context = &model};
        OK(parameter_server_open(&server, &setup, &error));
        for (int64_t phase = 0; phase < PHASES; phase++) {
            for (int64_t i = 1; i <= EACH; i += 13)
                OK(parameter_server_serve(&server, phase * EACH + i, (phase + 1) * EACH, &error));
            OK(parameter_server_serve(&server, (phase + 1) * EACH, (phase + 1) * EACH, &error));
            OK(parameter_server_pause(&server, (int64_t[PARAMETER_SERVER_WORDS]){phase}, &error));
            OK(comm_barrier(&world, &error));
        }
        assert_int_equal(model.n_applied, PHASES * EACH);
        for (int i = 0; i < PHASES * EACH; i++) assert_true(model.was_used[i]);
        assert_int_equal(model.most_late, server.book.max);
        assert_true(server.book.max <= bounds[k]);
        if (world.size == 2) assert_int_equal(server.book.max, 0); /* a single worker is never late */
        int64_t n = 0;
        for (int64_t i = 0; i <= bounds[k]; i++) n += server.book.histogram[i];
        assert_int_equal(n, PHASES * EACH);
        parameter_server_close(&server);
        comm_close(&comm);
    }
}

/* A stop that a worker was told of comes to the server with its next report. */
static void a_worker_can_stop(void **state) {
    (void)state;
    Error error = {0};
    Comm comm;
    OK(comm_split(&world, 0, world.rank, &comm, &error));
    Model model = {.n_applied = 0};
    if (world.rank == 0) {
        ParameterServer server;
        ParameterServerSetup setup = {.comm = &comm,
                                      .bound = 4,
                                      .weights = model.weights,
                                      .weights_bytes = sizeof model.weights,
                                      .gradient = model.gradient,
                                      .gradient_bytes = sizeof model.gradient,
                                      .apply = apply_gradient,
                                      .context = &model};
        OK(parameter_server_open(&server, &setup, &error));
        int64_t n = 0;
        while (!server.stop_is_wanted) {
            n++;
            OK(parameter_server_serve(&server, n, 4000, &error));
        }
        n = server.book.n_pulled;
        OK(parameter_server_serve(&server, n, n, &error));
        OK(parameter_server_pause(&server, (int64_t[PARAMETER_SERVER_WORDS]){0}, &error));
        parameter_server_close(&server);
    } else {
        ParameterServerReport report = {.ticket = -1};
        for (;;) {
            ParameterServerOrder order;
            OK(parameter_server_ask(&comm, &report, model.gradient, sizeof model.gradient, model.weights,
                                    sizeof model.weights, &order, &error));
            if (order.pauses) break;
            model.gradient[0] = model.weights[0];
            model.gradient[1] = (float)order.ticket;
            report = (ParameterServerReport){.ticket = order.ticket,
                                             .loss = (double)model.gradient[1],
                                             .stops = world.rank == world.size - 1 && order.ticket > 20};
        }
    }
    comm_close(&comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(push_tends_to_the_average),
        cmocka_unit_test(push_keeps_the_sum),
        cmocka_unit_test(groups_mix),
        cmocka_unit_test(local_averages_when_due),
        cmocka_unit_test(local_with_one_step_is_exact),
        cmocka_unit_test(staleness_stays_in_bounds),
        cmocka_unit_test(a_worker_can_stop),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
