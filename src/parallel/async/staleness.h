/* The bound on staleness, as a book that the server of parallel/async/parameter_server.h keeps.
 *
 * Weights have a version: the number of updates made to them. A worker pulls the weights at one version and
 * brings a gradient that is applied at a later one; the difference is the gradient's staleness. The book
 * decides what may be done so that no gradient, whoever is slow and however slow, is ever applied with a
 * staleness above the bound:
 *
 *     // hand out the weights
 *     if (staleness_may_pull(&book)) staleness_pull(&book, worker);
 *     // update by its gradient
 *     if (staleness_may_apply(&book, worker)) TRY(staleness_apply(&book, worker, &late, error));
 *
 * It also counts what happened. */
#ifndef PGPT_PARALLEL_ASYNC_STALENESS_H
#define PGPT_PARALLEL_ASYNC_STALENESS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t bound;
    int n_workers;
    int64_t version;  /* updates made */
    int64_t n_pulled; /* gradients that have been asked for; those that are out are n_pulled - version */
    int64_t *pulled;  /* (n_workers) the version that a worker is computing with, -1: none */
    int n_out;
    int64_t max;        /* the largest staleness that was applied; -1 before the first */
    double sum;         /* of all of them, for the mean */
    int64_t *histogram; /* (bound + 1) how many were applied with each */
    int64_t n_applied;  /* of this process: without what was done before a resume */
} StalenessBook;

/* `version` is where it begins. */
Status staleness_open(StalenessBook *book, int n_workers, int64_t bound, int64_t version, Error *error);
void staleness_close(StalenessBook *book); /* safe on {0}, and twice */

/* May one more worker have the weights as they are now? */
bool staleness_may_pull(const StalenessBook *book);
void staleness_pull(StalenessBook *book, int worker);

/* May this worker's gradient be applied now, before those of the others that are out? */
bool staleness_may_apply(const StalenessBook *book, int worker);

/* It is applied. Fails if it is later than the bound, which is a mistake in the program. */
Status staleness_apply(StalenessBook *book, int worker, int64_t *staleness, Error *error);

#endif
