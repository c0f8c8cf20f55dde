/* A queue of fixed length between two threads: the owner of the communicator, which puts operations in, and
 * this one, which runs them. Numbers only grow: `n_started` and `n_done` count from the beginning, and an
 * operation's place in the queue is its number modulo the length. So a ticket is a number, waiting is a
 * comparison, and nothing is allocated after the thread was made.
 *
 * The thread runs an operation with the same function that a blocking call uses. What the two share beside
 * the queue is the communicator's own state (scratch memory, the transport's context), in turns: the owner
 * touches it only when the queue is empty (comm.c sees to that).
 *
 * Signals are for the thread that trains; all of them are blocked here. On Linux the timer slack is brought
 * down from 50 microseconds, since the transport's waiting sleeps for times of that order. */
#include "comm/worker.h"

#include "base/system/timer.h"
#include "comm/collective.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#    include <sys/prctl.h>
#endif

enum { QUEUE_LENGTH = 256 };

typedef struct {
    Comm *comm;
    CommOperation operation;
    uint64_t collective;
} Entry;

struct CommWorker {
    pthread_t thread;
    pthread_mutex_t mutex; /* over all below */
    pthread_cond_t something_started, something_done;
    Entry queue[QUEUE_LENGTH];
    uint64_t n_started, n_done;
    uint64_t busy_ns;
    bool is_closing;
    Error result; /* of the first operation that failed */
};

static void run_next(CommWorker *worker) {
    Entry entry = worker->queue[worker->n_done % QUEUE_LENGTH];
    bool is_broken = worker->result.status != STATUS_OK;
    pthread_mutex_unlock(&worker->mutex);

    Error error = {0};
    Comm *comm = entry.comm;
    ActivityEntry told = comm_entry(comm, &entry.operation, entry.collective);
    uint64_t start_ns = timer_now_ns();
    activity_begin(comm->activity, comm->worker_track, &told);
    if (!is_broken) collective_run(comm, &entry.operation, &error);
    activity_end(comm->activity, comm->worker_track);
    uint64_t end_ns = timer_now_ns();

    pthread_mutex_lock(&worker->mutex);
    if (!is_broken && error.status != STATUS_OK) worker->result = error;
    worker->busy_ns += end_ns - start_ns;
    worker->n_done++;
    pthread_cond_broadcast(&worker->something_done);
}

static void *work(void *context) {
    CommWorker *worker = context;
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
#endif
    pthread_mutex_lock(&worker->mutex);
    for (;;) {
        if (worker->n_done < worker->n_started) run_next(worker);
        else if (worker->is_closing) break;
        else pthread_cond_wait(&worker->something_started, &worker->mutex);
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

Status worker_open(CommWorker **out, Error *error) {
    CommWorker *worker = calloc(1, sizeof *worker);
    if (!worker) return error_failed(error, "no memory for a thread that communicates");
    pthread_mutex_init(&worker->mutex, NULL);
    pthread_cond_init(&worker->something_started, NULL);
    pthread_cond_init(&worker->something_done, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&worker->thread, NULL, work, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        free(worker);
        return error_failed(error, "cannot make a thread that communicates: %s", strerror(code));
    }
    *out = worker;
    return STATUS_OK;
}

void worker_close(CommWorker *worker) {
    if (!worker) return;
    pthread_mutex_lock(&worker->mutex);
    worker->is_closing = true;
    pthread_cond_signal(&worker->something_started);
    pthread_mutex_unlock(&worker->mutex);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->something_started);
    pthread_cond_destroy(&worker->something_done);
    pthread_mutex_destroy(&worker->mutex);
    free(worker);
}

static Status result_of(const CommWorker *worker, Error *error) {
    if (error->status == STATUS_OK) *error = worker->result;
    return worker->result.status;
}

Status worker_start(CommWorker *worker, Comm *comm, const CommOperation *operation, uint64_t collective,
                    uint64_t *number, Error *error) {
    pthread_mutex_lock(&worker->mutex);
    while (worker->n_started - worker->n_done == QUEUE_LENGTH)
        pthread_cond_wait(&worker->something_done, &worker->mutex);
    Status status = result_of(worker, error);
    if (status == STATUS_OK) {
        worker->queue[worker->n_started % QUEUE_LENGTH] =
            (Entry){.comm = comm, .operation = *operation, .collective = collective};
        *number = ++worker->n_started;
        pthread_cond_signal(&worker->something_started);
    }
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

Status worker_wait(CommWorker *worker, uint64_t number, Error *error) {
    pthread_mutex_lock(&worker->mutex);
    if (number > worker->n_started) number = worker->n_started;
    while (worker->n_done < number) pthread_cond_wait(&worker->something_done, &worker->mutex);
    Status status = result_of(worker, error);
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

uint64_t worker_take_busy_ns(CommWorker *worker) {
    pthread_mutex_lock(&worker->mutex);
    uint64_t busy_ns = worker->busy_ns;
    worker->busy_ns = 0;
    pthread_mutex_unlock(&worker->mutex);
    return busy_ns;
}
