#include "train/loop/stretch.h"

#include "base/system/timer.h"

Status stretch_run_steps(Loop *loop, StretchRun run, int most, Error *error) {
    Trainer *trainer = loop->trainer;
    BatchSource source = loop_batches(trainer);
    int64_t first = trainer->n_done, n = loop_next_due(loop, first) - first;
    if (n > most) n = most;
    double rates[STRETCH_MOST_STEPS];
    StepResult results[STRETCH_MOST_STEPS];
    for (int64_t i = 0; i < n; i++) {
        rates[i] = learning_rate_at(&loop->schedule, first + i);
        observers_before_step(&loop->observers, first + i + 1);
        TRY(observers_start(&loop->observers, first + i + 1, error));
    }
    uint64_t start = timer_now_ns();
    trainer_begin(trainer, ACTIVITY_STEP, "step", first + 1);
    TRY(run(&trainer->step, &source, first, (int)n, rates, results, error));
    trainer_end(trainer);
    double seconds = timer_seconds_since(start) / (double)n;
    bool stops;
    TRY(loop_agree(loop, &stops, error));
    for (int64_t i = 0; i < n; i++) {
        trainer->n_done = first + i + 1;
        TRY(loop_record(loop, trainer->n_done, &results[i], rates[i], seconds, error));
        if (i < n - 1) loop_report(loop, false); /* the last one is the caller's */
    }
    trainer->was_interrupted = stops && trainer->n_done < trainer->setup.options->n_steps;
    return STATUS_OK;
}

/* One by one: a sum of several numbers may add in another order. */
Status stretch_sum_losses(const TrainStep *step, double *losses, int n_steps, Error *error) {
    const Mesh *mesh = step->options.sync.mesh;
    for (int i = 0; i < n_steps; i++) {
        if (mesh->coordinate[AXIS_TP] > 0) losses[i] = 0.0; /* ranks of cp have parts of it */
        TRY(comm_all_reduce(mesh->world, &losses[i], 1, COMM_F64, COMM_SUM, error));
    }
    return STATUS_OK;
}
