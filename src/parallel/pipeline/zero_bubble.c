/* Zero-bubble schedules split the backward: the stage before waits for input gradients only, so those go
 * first, and weight gradients fill the time in which a stage would wait.
 *
 * zb-h1 keeps at most p micro-batches on every stage, which is what 1f1b keeps on the first: stage i begins
 * with p - i forwards and holds its weight gradients back until p micro-batches are in flight; what it has
 * held back fills the end of the step.
 *
 * zb-h2 keeps up to 2p - 1 and begins with so many forwards that the first gradient arrives just when they
 * end, on every stage. With F = B = W no stage waits between its first and its last action. Stage i begins
 * and ends i forwards late: a parallelogram, so that steps follow each other without a gap, provided that no
 * stage waits for the others before its update.
 *
 * zb-v does as well in the memory of 1f1b. Two chunks a stage, placed as a V, so that the last virtual stage
 * lies where the first one does; its gradients come back to the stages that have begun first, soon after the
 * forwards have gone out. Its phases are counted for 2p - 1 micro-batches at least; of fewer, what is missing
 * is left out. */
#include "parallel/pipeline/family.h"

/* n_first forwards, then a backward and a forward in turn. A weight gradient comes between them where
 * n_most micro-batches are in flight, and behind every backward when there are no more forwards. */
static void write_h(ActionWriter *writer, int n_first, int n_most) {
    int n = writer->shape->n_micro_batches, forward = 0, weight = 0;
    while (forward < n_first && forward < n) family_put(writer, ACTION_FORWARD, forward++, 0);
    for (int backward = 0; backward < n; backward++) {
        family_put(writer, ACTION_BACKWARD, backward, 0);
        if (forward == n || forward - weight == n_most)
            family_put(writer, ACTION_WEIGHT_GRADIENT, weight++, 0);
        if (forward < n) family_put(writer, ACTION_FORWARD, forward++, 0);
    }
    while (weight < n) family_put(writer, ACTION_WEIGHT_GRADIENT, weight++, 0);
}

void family_zb_h1(ActionWriter *writer) {
    int n_stages = writer->shape->n_stages;
    write_h(writer, n_stages - writer->stage, n_stages);
}

void family_zb_h2(ActionWriter *writer) {
    int n_stages = writer->shape->n_stages;
    write_h(writer, 2 * (n_stages - writer->stage) - 1, 2 * n_stages - 1);
}

/* ---- V */

/* What comes next, of each chunk. */
typedef struct {
    ActionWriter *writer;
    int forward[2], backward[2], weight[2];
} Counters;

static void forward(Counters *at, int chunk) {
    family_put(at->writer, ACTION_FORWARD, at->forward[chunk]++, chunk);
}

static void backward(Counters *at, int chunk) {
    family_put(at->writer, ACTION_BACKWARD, at->backward[chunk]++, chunk);
}

static void weight(Counters *at, int chunk) {
    family_put(at->writer, ACTION_WEIGHT_GRADIENT, at->weight[chunk]++, chunk);
}

static void whole_backward(Counters *at, int chunk) {
    backward(at, chunk);
    weight(at, chunk);
}

void family_zb_v(ActionWriter *writer) {
    int p = writer->shape->n_stages, stage = writer->stage, n = writer->shape->n_micro_batches;
    if (n < 2 * p - 1) n = 2 * p - 1;
    Counters at = {.writer = writer};
    for (int i = 0; i < 2 * (p - stage) - 1; i++) forward(&at, 0); /* until the first comes back on chunk 1 */
    for (int i = 0; i < stage; i++) {                              /* until the first gradient comes */
        forward(&at, 1);
        forward(&at, 0);
    }
    for (int i = 0; i < p - stage; i++) { /* until the first gradient comes back on chunk 0 */
        forward(&at, 1);
        whole_backward(&at, 1);
    }
    while (at.forward[1] < n) { /* one of each */
        if (at.forward[0] < n) forward(&at, 0);
        whole_backward(&at, 0);
        forward(&at, 1);
        whole_backward(&at, 1);
    }
    for (int i = 0; i < stage; i++) { /* only input gradients are waited for now */
        backward(&at, 0);
        backward(&at, 1);
    }
    for (int i = 0; i < p - stage; i++) whole_backward(&at, 0);
    for (int chunk = 1; chunk >= 0; chunk--)
        while (at.weight[chunk] < n) weight(&at, chunk);
}
