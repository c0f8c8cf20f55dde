/* A machine that does something else takes a core away for milliseconds, and then a latency of a microsecond
 * is measured as hundreds. Curves of that say nothing about collectives, so whoever draws asks here first.
 *
 * What is looked at: the latency within a host, which is memory's and some code's; and how far what was
 * measured is from what the links that were measured just before let expect. Ranks that share cores wait for
 * each other's turns: they are allowed more of both, and a few times beyond that, since a turn that comes
 * late now and then is how they work on a quiet machine too (8 of 240 there, up to 18 times what was
 * expected). Very short vectors take a few messages' handling, of
 * which the model knows little, and are left out. Times far below what is expected are as bad a sign: then it
 * was the links that were measured at a bad moment. */
#include "lab/collectives/collectives.h"

#include <math.h>
#include <stdio.h>

typedef struct {
    double latency_s, ratio, least; /* measured by expected is to lie between these two */
    double share;                   /* of all that may lie beyond */
} Limits;

static Limits limits_of(const Machine *machine) {
    int n_most = (machine->n_ranks + machine->n_hosts - 1) / machine->n_hosts; /* ranks of a host */
    return n_most > machine->n_cores ? (Limits){200e-6, 12.0, 0.04, 0.1} : (Limits){50e-6, 5.0, 0.04, 0.0};
}

bool collectives_disturbed(const CollectivesResult *result, char *why, size_t n_bytes) {
    enum { SHORT_BYTES = 4096 };
    const Machine *machine = &result->machine;
    Limits limits = limits_of(machine);
    double latency = machine->within.border > 0 ? machine->within.eager.alpha : machine->within.asking.alpha;
    if (machine->n_ranks > machine->n_hosts && latency > limits.latency_s) {
        snprintf(why, n_bytes, "a message within the host takes %.0f us, and up to %.0f could be believed",
                 1e6 * latency, 1e6 * limits.latency_s);
        return true;
    }
    double worst = 1;
    int n_compared = 0, n_beyond = 0;
    for (int i = 0; i < result->n_rows; i++) {
        const CollectivesRow *row = &result->rows[i];
        for (int way = 0; way < collectives_n_algorithms(row->kind); way++) {
            double ratio = row->seconds[way] / row->model[way];
            bool is_good = ratio <= limits.ratio && ratio >= limits.least;
            double distance = ratio > 1 ? ratio : 1 / ratio;
            if (row->n_bytes < SHORT_BYTES || !isfinite(ratio)) continue;
            n_compared++;
            n_beyond += !is_good;
            if (is_good || distance <= worst) continue;
            worst = distance;
            snprintf(
                why, n_bytes,
                "%s by %s of %lld bytes takes %.2g times what its messages should, and %.2g to %.2g could "
                "be believed",
                collective_kind_name(row->kind), collectives_name(row->kind, way), (long long)row->n_bytes,
                ratio, limits.least, limits.ratio);
        }
    }
    return n_beyond > limits.share * n_compared;
}
