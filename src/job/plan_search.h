/* All layouts that can be, each by estimate.
 *
 *     FoundLayouts found = {0};
 *     TRY_GOTO(plan_search(&search, PRECISION_BF16, &found, error), done);
 *     ... found.all[i].seconds, .bytes, found.n of them ...
 * done:
 *     free(found.all);
 *
 * In the same order and with the same numbers whatever the number of threads. */
#ifndef PGPT_JOB_PLAN_SEARCH_H
#define PGPT_JOB_PLAN_SEARCH_H

#include "job/plan_estimate.h"

typedef struct {
    TunedLayout *all; /* grows */
    int64_t n, room;
    int64_t n_fit;      /* of these, by estimate */
    int64_t n_fit_away; /* and of those that are offloaded */
    int n_probed;
} FoundLayouts;

Status plan_search(const Search *search, PrecisionKind precision, FoundLayouts *found, Error *error);

#endif
