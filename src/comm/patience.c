/* A rank that waits for a result it needs looks `spins` times as fast as it can, which is right where it has
 * a core of its own; then it gives the core to anybody who wants it, some hundred times; then it sleeps
 * between looks. Where ranks outnumber cores it sleeps earlier: those that give way to none but each other
 * take a core with nothing but looking. While the result is not needed yet, because the thread behind
 * comm_start waits and its owner computes, it sleeps at once: that thread must not take time from the
 * computation that it is meant to hide behind. Sleeps double up to a limit, so that short waits stay short
 * and long ones cost nothing.
 *
 * Looking is what makes a library like MPI move data. A look that took long has moved some, and there is
 * probably more: the next look follows at once, and the count begins anew.
 *
 * The sleep of the patient is one that can be ended: its owner, when it runs out of things to compute, does
 * not want to wait for the alarm. */
#include "comm/patience.h"

#include <limits.h>
#include <sched.h>

enum {
    YIELDS = 500,         /* looks with giving way between, before the first sleep */
    CROWDED_YIELDS = 200, /* where nobody spins, since ranks outnumber cores */
    SHORTEST_SLEEP_NS = 20000,
    DOUBLINGS = 4,         /* of that, where the result is needed */
    PATIENT_DOUBLINGS = 6, /* and where it is not */
    LOOK_MOVED_NS = 4000,  /* a look that finds nothing is done in a tenth of that */
    NS_PER_S = 1000000000,
};

void patience_open(Patience *patience, int spins) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&patience->is_needed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&patience->mutex, NULL);
    patience->spins = spins;
    atomic_init(&patience->is_patient, false);
}

void patience_close(Patience *patience) {
    pthread_cond_destroy(&patience->is_needed);
    pthread_mutex_destroy(&patience->mutex);
}

static bool is_patient_now(Patience *patience) {
    return atomic_load_explicit(&patience->is_patient, memory_order_relaxed);
}

void patience_set(Patience *patience, bool is_patient) {
    if (is_patient_now(patience) == is_patient) return; /* one thread sets it, the other only looks */
    pthread_mutex_lock(&patience->mutex);
    atomic_store_explicit(&patience->is_patient, is_patient, memory_order_relaxed);
    if (!is_patient) pthread_cond_signal(&patience->is_needed);
    pthread_mutex_unlock(&patience->mutex);
}

static long sleep_after(int n_sleeps, int doublings) {
    return (long)SHORTEST_SLEEP_NS << (n_sleeps < doublings ? n_sleeps : doublings);
}

static void sleep_until_needed(Patience *patience, long ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    if (until.tv_nsec >= NS_PER_S) {
        until.tv_nsec -= NS_PER_S;
        until.tv_sec++;
    }
    pthread_mutex_lock(&patience->mutex);
    if (is_patient_now(patience)) pthread_cond_timedwait(&patience->is_needed, &patience->mutex, &until);
    pthread_mutex_unlock(&patience->mutex);
}

void pause_after_look(Pause *pause) {
    Patience *patience = pause->patience;
    if (pause->start_ns && timer_now_ns() - pause->start_ns > LOOK_MOVED_NS) {
        pause->n_looks = 0;
        return;
    }
    int n_looks = pause->n_looks, n_awake = patience->spins ? patience->spins + YIELDS : CROWDED_YIELDS;
    if (pause->n_looks < INT_MAX) pause->n_looks++;
    if (is_patient_now(patience)) {
        sleep_until_needed(patience, sleep_after(n_looks, PATIENT_DOUBLINGS));
        if (!is_patient_now(patience)) pause->n_looks = 0;
    } else if (n_looks >= n_awake) {
        struct timespec time = {.tv_nsec = sleep_after(n_looks - n_awake, DOUBLINGS)};
        nanosleep(&time, NULL);
    } else if (n_looks >= patience->spins) {
        sched_yield();
    }
}
