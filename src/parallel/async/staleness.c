/* A gradient pulled at version v has to be applied at version v + bound or before: that is a deadline,
 * counted in updates, and the server makes one update at a time. So the question is that of a timetable.
 * Order the gradients that are out by their deadlines, v1 <= v2 <= ...; from version V on, the earliest that
 * the j-th of them can be applied (j from 0) is V + j. The timetable holds if
 *
 *     V + j - vj <= bound     for every j
 *
 * and then applying in this order keeps it: V grows by one, every j falls by one. Two rules keep it at all
 * times:
 *
 *     a worker may pull only if the timetable holds with it at the end: if at most `bound` others are out;
 *     a gradient that is not the first may be applied out of turn only if the timetable of the rest holds
 *     after it.
 *
 * A gradient that comes too early by the second rule waits, and its worker with it, until the late one is
 * there. Nothing can stand still: the first of the order may always be applied, and if none is out, anybody
 * may pull. With a bound of 0 one worker computes at a time; below the number of workers less one, some
 * always wait; from there on nobody does before a rank is so slow that `bound` updates are made while it
 * computes one gradient. */
#include "parallel/async/staleness.h"

#include <stdlib.h>

enum { NOT_OUT = -1 };

Status staleness_open(StalenessBook *book, int n_workers, int64_t bound, int64_t version, Error *error) {
    *book = (StalenessBook){
        .bound = bound, .n_workers = n_workers, .version = version, .n_pulled = version, .max = -1};
    book->pulled = malloc((size_t)n_workers * sizeof *book->pulled);
    book->histogram = calloc((size_t)bound + 1, sizeof *book->histogram);
    if (!book->pulled || !book->histogram)
        return error_failed(error, "no memory for the staleness of %d workers", n_workers);
    for (int i = 0; i < n_workers; i++) book->pulled[i] = NOT_OUT;
    return STATUS_OK;
}

void staleness_close(StalenessBook *book) {
    free(book->pulled);
    free(book->histogram);
    *book = (StalenessBook){0};
}

bool staleness_may_pull(const StalenessBook *book) {
    return book->n_out <= book->bound;
}

void staleness_pull(StalenessBook *book, int worker) {
    book->pulled[worker] = book->version;
    book->n_pulled++;
    book->n_out++;
}

/* How many of those that are out, but for this one, come before version v or, of the same version, before
 * worker `end`: their place in the order, which among equals is any. */
static int64_t place(const StalenessBook *book, int left_out, int worker) {
    int64_t n = 0, v = book->pulled[worker];
    for (int i = 0; i < book->n_workers; i++) {
        if (i == left_out || i == worker || book->pulled[i] == NOT_OUT) continue;
        n += book->pulled[i] < v || (i < worker && book->pulled[i] == v);
    }
    return n;
}

bool staleness_may_apply(const StalenessBook *book, int worker) {
    for (int i = 0; i < book->n_workers; i++) {
        if (i == worker || book->pulled[i] == NOT_OUT) continue;
        if (book->version + 1 + place(book, worker, i) - book->pulled[i] > book->bound) return false;
    }
    return book->pulled[worker] != NOT_OUT;
}

Status staleness_apply(StalenessBook *book, int worker, int64_t *staleness, Error *error) {
    if (book->pulled[worker] == NOT_OUT)
        return error_failed(error, "worker %d brings a gradient that it was not asked for", worker);
    *staleness = book->version - book->pulled[worker];
    if (*staleness > book->bound) {
        return error_failed(error, "a gradient is %lld updates late, where %lld are allowed (--staleness)",
                            (long long)*staleness, (long long)book->bound);
    }
    book->pulled[worker] = NOT_OUT;
    book->n_out--;
    book->version++;
    book->n_applied++;
    book->histogram[*staleness]++;
    book->sum += (double)*staleness;
    if (book->max < *staleness) book->max = *staleness;
    return STATUS_OK;
}
