/* Not a test: rewrites the newest checkpoint of a run, named first, in f32, as checkpoints of 16-bit runs were written once. */
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

static Status widen(const char *run, Error *error) {
    Checkpoint checkpoint;
    CheckpointSource source = {0};
    float *array[CHECKPOINT_MAX_ARRAYS] = {0};
    TRY(checkpoint_open(&checkpoint, run, CHECKPOINT_NEWEST, true, error));
    size_t n_elements = (size_t)checkpoint.table.n_flat_elements;
    for (int i = 0; i < checkpoint.n_arrays; i++) {
        array[i] = calloc(n_elements, sizeof(float));
        if (!array[i]) abort();
        if (i > 0) source.moment[i - 1] = array[i];
        TRY_GOTO(i == 0 ? checkpoint_read_parameters(&checkpoint, &checkpoint.table, array[i], error)
                        : checkpoint_read_moment(&checkpoint, &checkpoint.table, i - 1, array[i], error),
                 done);
    }
    source.parameters = array[0];
    source.config = &checkpoint.config;
    source.table = &checkpoint.table;
    source.state = &checkpoint.state;
    checkpoint_save(run, &source, error);
done:
    for (int i = 0; i < checkpoint.n_arrays; i++) free(array[i]);
    checkpoint_close(&checkpoint);
    return error->status;
}

int main(int n_words, char **words) {
    Error error = {0};
    if (n_words == 2 && widen(words[1], &error) == STATUS_OK) return 0;
    fprintf(stderr, "widen_checkpoint RUN: %s\n", error.text);
    return 1;
}
