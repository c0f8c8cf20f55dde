/* Checkpoints: every --save-every steps, after --save-minutes, and when the run ends. All ranks save together
 * (checkpoint/saver.h); of what is on the disk all observers are told.
 *
 *     SaveObserver saves = {.trainer = &trainer, .told = &list};
 *     TrainObserver observer = save_observer(&saves);
 *
 * It is registered as the last one: at the end it completes what is under way before others are told of the
 * end. A save that nobody has asked for may fail, and is a warning. */
#ifndef PGPT_TRAIN_OBSERVERS_SAVE_OBSERVER_H
#define PGPT_TRAIN_OBSERVERS_SAVE_OBSERVER_H

#include "train/trainer.h"

typedef struct {
    Trainer *trainer;
    ObserverList *told;
    const char *run;
    uint64_t saved_at; /* when the last checkpoint was taken, or the run began */
    int64_t told_step; /* of the last checkpoint that observers know of */
} SaveObserver;

TrainObserver save_observer(SaveObserver *saves);

#endif
