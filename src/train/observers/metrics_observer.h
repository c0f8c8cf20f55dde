/* RUN/metrics.jsonl: a line a step (train/metrics.h). If one cannot be written, none is written after it, so
 * that there is one gap at most, and the run saves and ends.
 *
 *     MetricsObserver written = {.trainer = &trainer};
 *     TrainObserver observer = metrics_observer(&written); */
#ifndef PGPT_TRAIN_OBSERVERS_METRICS_OBSERVER_H
#define PGPT_TRAIN_OBSERVERS_METRICS_OBSERVER_H

#include "train/trainer.h"

typedef struct {
    const Trainer *trainer; /* open */
    LineWriter writer;
} MetricsObserver;

TrainObserver metrics_observer(MetricsObserver *written);

#endif
