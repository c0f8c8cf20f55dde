/* The schedules everybody begins with. All of them wait at the end of a step until the last gradient has come
 * back to the first stage: the flush.
 *
 * naive: a micro-batch goes through all stages and back before the next one begins. One stage works, p - 1
 * wait.
 *
 * gpipe: all forwards, then all backwards. The stages fill and drain once a step, and every micro-batch of it
 * is in memory. Backwards come in the order of the forwards, so that gradients add up as in a serial run.
 *
 * 1f1b: stage i runs p - 1 - i forwards ahead, which is how long the first gradient takes to come back from
 * the last stage, and from then on one forward and one backward in turn: as fast as gpipe, with at most p - i
 * micro-batches in memory. */
#include "parallel/pipeline/family.h"

void family_naive(ActionWriter *writer) {
    for (int micro = 0; micro < writer->shape->n_micro_batches; micro++) {
        family_put(writer, ACTION_FORWARD, micro, 0);
        family_put(writer, ACTION_BACKWARD, micro, 0);
    }
}

void family_gpipe(ActionWriter *writer) {
    int n = writer->shape->n_micro_batches;
    for (int micro = 0; micro < n; micro++) family_put(writer, ACTION_FORWARD, micro, 0);
    for (int micro = 0; micro < n; micro++) family_put(writer, ACTION_BACKWARD, micro, 0);
}

void family_1f1b(ActionWriter *writer) {
    int n = writer->shape->n_micro_batches, n_ahead = writer->shape->n_stages - 1 - writer->stage;
    for (int micro = -n_ahead; micro < n; micro++) {
        if (micro + n_ahead < n) family_put(writer, ACTION_FORWARD, micro + n_ahead, 0);
        if (micro >= 0) family_put(writer, ACTION_BACKWARD, micro, 0);
    }
}
