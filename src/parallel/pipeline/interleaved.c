/* Interleaved 1f1b: every stage has v chunks, so that a micro-batch passes all stages v times, and filling
 * and draining take v times less.
 *
 * Micro-batches go in groups of p: a group passes chunk 0 of the stage, then chunk 1, and so on, before the
 * next group begins; backwards do the same from the last chunk on. The group comes back to the first stage,
 * for the next chunk, just when its last one has left it.
 *
 * Where p does not divide the micro-batches, the last group is counted as if it were whole, and what is
 * missing is left out of the lists: nobody then waits longer than with the whole group. A short group that is
 * counted as such makes stages wait for each other in a circle (the checker shows it: p = 4, m = 5, v = 3),
 * and so do larger groups, since what comes back too early finds no buffer (p = 4, m = 11 as 6 and 5). */
#include "parallel/pipeline/family.h"

/* The index-th of the whole groups; a backward begins with the last chunk. */
static void put(ActionWriter *writer, ActionKind kind, int index) {
    int p = writer->shape->n_stages, v = writer->shape->n_chunks, group = index / (p * v);
    int chunk = index % (p * v) / p;
    family_put(writer, kind, group * p + index % p, kind == ACTION_BACKWARD ? v - 1 - chunk : chunk);
}

void family_interleaved(ActionWriter *writer) {
    int p = writer->shape->n_stages, v = writer->shape->n_chunks;
    int n_groups = (writer->shape->n_micro_batches + p - 1) / p;
    int n = n_groups * p * v, n_ahead = 2 * (p - 1 - writer->stage) + (v - 1) * p;
    for (int index = -n_ahead; index < n; index++) {
        if (index + n_ahead < n) put(writer, ACTION_FORWARD, index + n_ahead);
        if (index >= 0) put(writer, ACTION_BACKWARD, index);
    }
}
