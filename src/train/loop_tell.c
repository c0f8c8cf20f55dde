/* Telling the observers of a run, one after the other. Whoever asks to stop is heard after the others. */
#include "checkpoint/checkpoint_folder.h"
#include "train/loop.h"

void loop_tell_begin(const Trainer *trainer) {
    const TrainerSetup *setup = &trainer->setup;
    for (int i = 0; i < setup->n_observers; i++) {
        const TrainObserver *observer = &setup->observers[i];
        if (observer->begin) observer->begin(observer->context, trainer->n_done, setup->options->n_steps);
    }
}

void loop_tell_end(const Trainer *trainer) {
    for (int i = trainer->setup.n_observers - 1; i >= 0; i--) {
        const TrainObserver *observer = &trainer->setup.observers[i];
        if (observer->end) observer->end(observer->context);
    }
}

void loop_tell_step(Trainer *trainer, const StepMetrics *metrics, bool is_evaluated, bool is_stopping) {
    StepEvent event = {.metrics = metrics,
                       .n_steps = trainer->setup.options->n_steps,
                       .validation_loss = trainer->validation_loss,
                       .is_evaluated = is_evaluated,
                       .is_stopping = is_stopping};
    for (int i = 0; i < trainer->setup.n_observers; i++) {
        const TrainObserver *observer = &trainer->setup.observers[i];
        if (observer->step && observer->step(observer->context, &event)) trainer->stop_is_wanted = true;
    }
}

void loop_tell_sample(Trainer *trainer, const char *text, size_t n_bytes) {
    for (int i = 0; i < trainer->setup.n_observers; i++) {
        const TrainObserver *observer = &trainer->setup.observers[i];
        if (observer->sample && observer->sample(observer->context, trainer->n_done, text, n_bytes))
            trainer->stop_is_wanted = true;
    }
}

void loop_tell_saved(Loop *loop) {
    Trainer *trainer = loop->trainer;
    int64_t step = trainer->saver.saved_step;
    if (!trainer_is_root(trainer) || step == loop->told_step) return;
    loop->told_step = step;
    Arena arena = {0};
    const char *path = arena_printf(&arena, "%s/checkpoints/%s", loop->run, checkpoint_name(step, &arena));
    for (int i = 0; i < trainer->setup.n_observers; i++) {
        const TrainObserver *observer = &trainer->setup.observers[i];
        if (observer->saved && observer->saved(observer->context, step, path)) trainer->stop_is_wanted = true;
    }
    arena_free(&arena);
}
