#include "train/loop/stretch.h"

#include "base/system/timer.h"

typedef struct {
    Loop *loop;
    int n_started;
} Starts;

/* What a rank is in is the newest step that it has come to. */
static Status start_step(void *context, int64_t step, Error *error) {
    Starts *starts = context;
    const Trainer *trainer = starts->loop->trainer;
    if (starts->n_started++) trainer_end(trainer);
    trainer_begin(trainer, ACTIVITY_STEP, "step", step);
    return observers_start(&starts->loop->observers, step, error);
}

Status stretch_run_steps(Loop *loop, StretchRun run, int most, Error *error) {
    Trainer *trainer = loop->trainer;
    BatchSource source = loop_batches(trainer);
    int64_t first = trainer->n_done, n = loop_next_due(loop, first) - first;
    if (n > most) n = most;
    double rates[STRETCH_MOST_STEPS];
    StepResult results[STRETCH_MOST_STEPS];
    Starts starts = {.loop = loop};
    StretchSteps steps = {.source = &source,
                          .index = first,
                          .n_steps = (int)n,
                          .rates = rates,
                          .start = start_step,
                          .context = &starts};
    for (int64_t i = 0; i < n; i++) {
        rates[i] = learning_rate_at(&loop->schedule, first + i);
        observers_before_step(&loop->observers, first + i + 1);
    }
    uint64_t start = timer_now_ns();
    TRY(run(&trainer->step, &steps, results, error));
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
