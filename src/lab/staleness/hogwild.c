/* Threads are made for each epoch, wait at a gate until all are there, and then train; the time of an epoch
 * is from the first one's beginning to the last one's end, so that making them does not count. Between epochs
 * nobody writes, and the loss is taken. */
#include "lab/staleness/hogwild.h"

#include "base/system/timer.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

const char *const hogwild_way_names[] = {"serial", "locked", "atomic", "hogwild", NULL};

typedef enum { GATE_CLOSED, GATE_OPEN, GATE_GO_HOME } Gate;

typedef struct {
    const HogwildRun *run;
    HogwildWord *weights; /* (n_weights) */
    pthread_mutex_t lock; /* of the weights, where they have one */
    pthread_mutex_t gate_lock;
    pthread_cond_t gate_moved;
    Gate gate;
} Shared;

typedef struct {
    Shared *shared;
    pthread_t thread;
    int64_t first, end; /* its points */
    uint64_t begin_ns, end_ns, n_updates;
    double cpu_seconds; /* of all epochs */
} Worker;

/* ---- A step */

/* Tried again until nobody has come between. */
static void change_atomically(HogwildWord *word, float change) {
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed), wanted;
    do {
        HogwildWeight was = hogwild_unpack(seen);
        wanted = hogwild_pack((HogwildWeight){was.value + change, was.n_updates + 1});
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, wanted, memory_order_relaxed,
                                                    memory_order_relaxed));
}

static void train_point(Shared *shared, int64_t point) {
    const HogwildRun *run = shared->run;
    const LogisticPoints *points = run->points;
    int64_t n = points->setup.n_nonzeros;
    const uint32_t *index = points->index + point * n;
    const float *value = points->value + point * n;
    HogwildWord *weights = shared->weights;
    float margin = 0.0f;
    for (int64_t k = 0; k < n; k++) margin += hogwild_read(&weights[index[k]]).value * value[k];
    float step = -run->lr * logistic_slope(margin, points->label[point]);
    if (run->way == HOGWILD_ATOMIC) {
        for (int64_t k = 0; k < n; k++) change_atomically(&weights[index[k]], step * value[k]);
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        HogwildWeight was = hogwild_read(&weights[index[k]]);
        if (run->between) run->between(run->context);
        hogwild_write(&weights[index[k]], was, step * value[k]);
    }
}

/* ---- Threads */

static void move_gate(Shared *shared, Gate gate) {
    pthread_mutex_lock(&shared->gate_lock);
    shared->gate = gate;
    pthread_cond_broadcast(&shared->gate_moved);
    pthread_mutex_unlock(&shared->gate_lock);
}

static bool pass_gate(Shared *shared) {
    pthread_mutex_lock(&shared->gate_lock);
    while (shared->gate == GATE_CLOSED) pthread_cond_wait(&shared->gate_moved, &shared->gate_lock);
    bool is_open = shared->gate == GATE_OPEN;
    pthread_mutex_unlock(&shared->gate_lock);
    return is_open;
}

static double cpu_seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *work(void *argument) {
    Worker *worker = argument;
    Shared *shared = worker->shared;
    if (!shared || !shared->run) return NULL;
    bool is_locked = shared->run->way == HOGWILD_LOCKED;
    if (!pass_gate(shared)) return NULL;
    double cpu_begin = cpu_seconds_now();
    worker->begin_ns = timer_now_ns();
    for (int64_t point = worker->first; point < worker->end; point++) {
        if (is_locked) pthread_mutex_lock(&shared->lock);
        train_point(shared, point);
        if (is_locked) pthread_mutex_unlock(&shared->lock);
    }
    worker->end_ns = timer_now_ns();
    worker->cpu_seconds += cpu_seconds_now() - cpu_begin;
    worker->n_updates += (uint64_t)((worker->end - worker->first) * shared->run->points->setup.n_nonzeros);
    return NULL;
}

/* The calling thread is the last of them. */
static Status train_epoch(Shared *shared, Worker *workers, double *seconds, Error *error) {
    int n = shared->run->n_threads, n_made = 0, code = 0;
    uint64_t begin = UINT64_MAX, end = 0;
    move_gate(shared, GATE_CLOSED);
    while (n_made + 1 < n && !code) {
        code = pthread_create(&workers[n_made].thread, NULL, work, &workers[n_made]);
        if (!code) n_made++;
    }
    if (code) error_failed(error, "cannot make a thread beside %d others: %s", n_made + 1, strerror(code));
    move_gate(shared, code ? GATE_GO_HOME : GATE_OPEN);
    if (!code) work(&workers[n - 1]);
    for (int i = 0; i < n_made; i++) pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < n; i++) {
        if (workers[i].begin_ns < begin) begin = workers[i].begin_ns;
        if (workers[i].end_ns > end) end = workers[i].end_ns;
    }
    *seconds = timer_seconds(begin, end);
    return error->status;
}

/* ---- All of it */

static double loss_of(const Shared *shared, float *values) {
    for (int64_t i = 0; i < shared->run->points->setup.n_weights; i++)
        values[i] = hogwild_read(&shared->weights[i]).value;
    return logistic_loss(shared->run->points, values);
}

static void count(const Shared *shared, const Worker *workers, HogwildResult *result) {
    uint64_t n_held = 0;
    for (int64_t i = 0; i < shared->run->points->setup.n_weights; i++)
        n_held += hogwild_read(&shared->weights[i]).n_updates;
    for (int i = 0; i < shared->run->n_threads; i++) {
        result->n_updates += workers[i].n_updates;
        result->cores_busy += workers[i].cpu_seconds / result->seconds[result->n_epochs];
    }
    result->n_lost = result->n_updates - n_held;
}

static Status train(Shared *shared, Worker *workers, float *values, HogwildResult *result, Error *error) {
    const HogwildRun *run = shared->run;
    int64_t n_points = run->points->setup.n_points;
    for (int i = 0; i < run->n_threads; i++)
        workers[i] = (Worker){.shared = shared,
                              .first = n_points * i / run->n_threads,
                              .end = n_points * (i + 1) / run->n_threads};
    result->loss[0] = loss_of(shared, values);
    for (int64_t epoch = 0; epoch < run->n_epochs; epoch++) {
        double seconds;
        TRY(train_epoch(shared, workers, &seconds, error));
        result->seconds[epoch + 1] = result->seconds[epoch] + seconds;
        result->loss[epoch + 1] = loss_of(shared, values);
    }
    result->steps_per_s = (double)(n_points * run->n_epochs) / result->seconds[run->n_epochs];
    count(shared, workers, result);
    return STATUS_OK;
}

static Status check(const HogwildRun *run, Error *error) {
    if (run->n_threads < 1 || run->n_threads > HOGWILD_MAX_THREADS)
        return error_user(error, "%d threads; give 1 to %d", run->n_threads, HOGWILD_MAX_THREADS);
    if (run->way == HOGWILD_SERIAL && run->n_threads != 1)
        return error_user(error, "serial training has one thread, not %d", run->n_threads);
    if (run->points->setup.n_points > (int64_t)UINT32_MAX / run->n_epochs)
        return error_user(error,
                          "%" PRId64 " epochs of %" PRId64
                          " points are more updates of a weight than can be counted (2^32); take fewer",
                          run->n_epochs, run->points->setup.n_points);
    return STATUS_OK;
}

Status hogwild_run(const HogwildRun *run, HogwildResult *result, Error *error) {
    *result = (HogwildResult){.n_epochs = run->n_epochs};
    TRY(check(run, error));
    size_t n_weights = (size_t)run->points->setup.n_weights, n_rows = (size_t)run->n_epochs + 1;
    Shared shared = {.run = run, .weights = calloc(n_weights, sizeof *shared.weights)};
    Worker *workers = calloc((size_t)run->n_threads, sizeof *workers);
    float *values = calloc(n_weights, sizeof *values);
    result->seconds = calloc(2 * n_rows, sizeof *result->seconds);
    result->loss = result->seconds ? result->seconds + n_rows : NULL;
    pthread_mutex_init(&shared.lock, NULL);
    pthread_mutex_init(&shared.gate_lock, NULL);
    pthread_cond_init(&shared.gate_moved, NULL);
    if (shared.weights && workers && values && result->seconds)
        train(&shared, workers, values, result, error);
    else error_failed(error, "no memory for %zu weights", n_weights);
    pthread_mutex_destroy(&shared.lock);
    pthread_mutex_destroy(&shared.gate_lock);
    pthread_cond_destroy(&shared.gate_moved);
    free(shared.weights);
    free(workers);
    free(values);
    if (error->status != STATUS_OK) hogwild_free(result);
    return error->status;
}

void hogwild_free(HogwildResult *result) {
    free(result->seconds);
    *result = (HogwildResult){0};
}
