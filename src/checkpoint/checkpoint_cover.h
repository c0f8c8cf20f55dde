/* Do the parts of a tensor, some of which are boxes, have each of its elements once? */
#ifndef PGPT_CHECKPOINT_CHECKPOINT_COVER_H
#define PGPT_CHECKPOINT_CHECKPOINT_COVER_H

#include "base/arena.h"
#include "graph/box.h"

typedef enum {
    COVER_EXACT,
    COVER_GAP,     /* n_missing elements are in no part */
    COVER_OVERLAP, /* part `second` has an element that part `first` has too */
    COVER_CROWDED, /* more parts lie side by side than any run makes */
} CoverFlaw;

typedef struct {
    CoverFlaw flaw;
    int64_t n_missing;
    int first, second; /* of the ranges */
} Cover;

/* The ranges lie in `whole` and have at least one element each. */
Cover checkpoint_cover(const BoxRange *const *ranges, int n_ranges, Shape whole, Arena *arena);

#endif
