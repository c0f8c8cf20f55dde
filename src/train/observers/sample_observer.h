/* Samples: every --sample-every steps the model writes a text, of which all observers are told.
 *
 *     SampleObserver samples = {.trainer = &trainer, .told = &list};
 *     TrainObserver observer = sample_observer(&samples); */
#ifndef PGPT_TRAIN_OBSERVERS_SAMPLE_OBSERVER_H
#define PGPT_TRAIN_OBSERVERS_SAMPLE_OBSERVER_H

#include "train/trainer.h"

typedef struct {
    Trainer *trainer;
    ObserverList *told;
} SampleObserver;

TrainObserver sample_observer(SampleObserver *samples);

#endif
