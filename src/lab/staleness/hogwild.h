/* Hogwild: threads of one process that train the same weights, each by itself, without locks.
 *
 * After "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent" (Niu, Recht, Ré,
 * Wright, 2011). A thread takes a point, reads the weights that it uses, and writes to each of them what it
 * has read and its own change. Nothing keeps another thread from writing in between, and then that thread's
 * update is lost. On sparse problems two threads seldom meet at a weight.
 *
 *     HogwildRun run = {.points = &points, .way = HOGWILD_FREE, .n_threads = 2, .n_epochs = 10, .lr = 1.0f};
 *     HogwildResult result;
 *     TRY(hogwild_run(&run, &result, error));
 *     ... result.loss[e], result.seconds[e], result.n_updates, result.n_lost ...
 *     hogwild_free(&result);
 *
 * **How lost updates are counted.** A weight is one 64-bit word: the f32 number and, beside it, how many
 * updates it holds. Reading and writing the word are single relaxed atomic accesses (defined in C11, and on
 * common processors plain moves), so number and count always belong together. Who writes, writes the number
 * that it has read plus its change, and the count that it has read plus one. So the word at the end comes
 * from a chain of words back to the first, one update each, and its count is the length of that chain: the
 * updates that are in the weight, exactly. Threads count the writes that they make. What they wrote less what
 * is in the weights has been lost, exactly and without looking while they run; a thread that was held up
 * between reading and writing undoes all that others did to the weight meanwhile, and all of that is counted.
 *
 * The ways differ in this step alone, over the same words and points, so that their times compare:
 * - serial: one thread;
 * - locked: a mutex around every step, from its first read to its last write;
 * - atomic: no lock; a write that finds the word changed is tried again (compare and exchange). No update is
 *   lost, but it may have been computed from weights that are not the newest;
 * - hogwild: as above. */
#ifndef PGPT_LAB_STALENESS_HOGWILD_H
#define PGPT_LAB_STALENESS_HOGWILD_H

#include "lab/staleness/logistic.h"

#include <stdatomic.h>
#include <string.h>

/* ---- A weight that knows how many updates it holds */

typedef _Atomic(uint64_t) HogwildWord; /* the count above, the bits of the number below */

typedef struct {
    float value;
    uint32_t n_updates;
} HogwildWeight;

static inline HogwildWeight hogwild_unpack(uint64_t word) {
    HogwildWeight weight = {.n_updates = (uint32_t)(word >> 32)};
    uint32_t bits = (uint32_t)word;
    memcpy(&weight.value, &bits, sizeof bits);
    return weight;
}

static inline uint64_t hogwild_pack(HogwildWeight weight) {
    uint32_t bits;
    memcpy(&bits, &weight.value, sizeof bits);
    return (uint64_t)weight.n_updates << 32 | bits;
}

static inline HogwildWeight hogwild_read(const HogwildWord *word) {
    return hogwild_unpack(atomic_load_explicit(word, memory_order_relaxed));
}

/* Writes what was read, and a change to it, over whatever is there by now. */
static inline void hogwild_write(HogwildWord *word, HogwildWeight was, float change) {
    HogwildWeight is = {was.value + change, was.n_updates + 1};
    atomic_store_explicit(word, hogwild_pack(is), memory_order_relaxed);
}

/* ---- Training */

typedef enum { HOGWILD_SERIAL, HOGWILD_LOCKED, HOGWILD_ATOMIC, HOGWILD_FREE, N_HOGWILD_WAYS } HogwildWay;
extern const char *const hogwild_way_names[]; /* serial locked atomic hogwild, NULL */

enum { HOGWILD_MAX_THREADS = 256 };

typedef struct {
    const LogisticPoints *points;
    HogwildWay way;
    int n_threads; /* each has the same part of the points in every epoch, in their order */
    int64_t n_epochs;
    float lr;
    /* Called by a thread of HOGWILD_FREE between reading a weight and writing it; NULL: nothing. Tests make
     * threads meet there. */
    void (*between)(void *context);
    void *context;
} HogwildRun;

typedef struct {
    double *seconds; /* (n_epochs + 1) spent training up to here; 0 first */
    double *loss;    /* (n_epochs + 1), held-out, before the first epoch and after each */
    int64_t n_epochs;
    double steps_per_s; /* points a second, of all threads */
    double
        cores_busy; /* processor time of all threads by the time: how many of them ran at once, on average */
    uint64_t n_updates, n_lost; /* writes to a weight; those of them that are in none at the end */
} HogwildResult;

/* Points times epochs must be below 2^32, which is as far as a weight counts. */
Status hogwild_run(const HogwildRun *run, HogwildResult *result, Error *error);
void hogwild_free(HogwildResult *result); /* safe on {0} */

#endif
