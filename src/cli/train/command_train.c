/* pgpt train: what a person sees of a training run (job/train_run.h), and what is printed when it has ended.
 *
 * With several ranks every one of them comes here; the root speaks. */
#include "cli/commands.h"
#include "cli/train/train_report.h"
#include "train/observers/progress_observer.h"

#include <stdio.h>

/* What is left to do where all went well. */
static Status tell(TrainRun *run, Error *error) {
    switch (run->outcome) {
    case TRAIN_RUN_HELP:
        if (run->launch->is_root) command_show_help(&train_command);
        return STATUS_OK;
    case TRAIN_RUN_MESH: return train_report_mesh(run, error);
    case TRAIN_RUN_PROGRAM: return train_report_program(run, error);
    case TRAIN_RUN_NOTHING: train_report_json(run, error); return launch_agree(run->launch, error);
    case TRAIN_RUN_DONE: TRY(trainer_sample(&run->trainer, stdout, error)); break;
    case TRAIN_RUN_STOPPED: break;
    }
    return train_report_json(run, error);
}

Status command_train(Launch *launch, int n_words, char *const *words, Error *error) {
    TrainRun run = {.launch = launch, .owns_process = true, .n_observers = 1};
    ProgressObserver shown = {.log = &run.log};
    TrainObserver observer = progress_observer(&shown);
    run.observers = &observer;
    shown.log_every = &run.values.train.log_every;
    if (train_run(&run, n_words, words, error) == STATUS_OK) tell(&run, error);
    train_run_close(&run, error);
    return error->status;
}
