/* What a person at the terminal sees of a run: the bar, or lines where there is no terminal, and samples.
 *
 *     ProgressObserver shown = {.log = &log, .log_every = &options.log_every};
 *     TrainObserver observer = progress_observer(&shown);
 *
 * The log's lines appear above the bar. A quiet log has no bar, but samples are shown. */
#ifndef PGPT_TRAIN_OBSERVERS_PROGRESS_OBSERVER_H
#define PGPT_TRAIN_OBSERVERS_PROGRESS_OBSERVER_H

#include "base/text/log.h"
#include "train/observers/observer.h"

typedef struct {
    Log *log;
    const int64_t *log_every; /* known when the options are read */
    Progress progress;
} ProgressObserver;

TrainObserver progress_observer(ProgressObserver *shown);

#endif
