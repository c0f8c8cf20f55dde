/* An evaluation pass: forwards alone, each rank its share, in a pipeline one batch behind the other. */
#include "train/step/step_inside.h"

#include <math.h>

/* A batch whose loss comes to this place, or stays where it is on a device that sends none. */
static Status begin_evaluation(TrainStep *step, const BatchSource *source, uint64_t first_sequence,
                               int64_t n_rows, int place, Error *error) {
    Executor *executor = &step->executor;
    BatchPart part = {.first_sequence = first_sequence, .n = n_rows};
    TRY(step_upload_batch(step, source, &part, error));
    TRY(executor_run(executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error));
    return executor_sends(executor) ? executor_send(executor, step->loss.loss, place, error) : STATUS_OK;
}

/* However many batches there are: each chunk in those before the last and in the last, without rows. */
static Status rehearse(TrainStep *step, Error *error) {
    for (int i = 0; i < 2 * step->n_chunks; i++) {
        MicroBatch position = {.is_first = true, .is_last = i % 2, .chunk = i / 2};
        TRY(step_upload_batch(step, NULL, &(BatchPart){.chunk = i / 2}, error));
        TRY(executor_rehearse(&step->executor, SECTION_FORWARD, position, error));
    }
    return step_end_rehearsal(step, error);
}

/* Batches go through the stages one behind the other. The number of them is one that the schedule can do;
 * those that are too many have no rows. */
static Status evaluate_stages(TrainStep *step, const BatchSource *source, uint64_t first_sequence,
                              int64_t first, int64_t end, int64_t n_batches, double *sum, Error *error) {
    const Pipeline *pipeline = step->options.pipeline;
    ScheduleShape shape = pipeline_shape(pipeline, (int)n_batches);
    Error none = {0};
    while (schedule_check_shape(pipeline->layout.kind, &shape, &none) != STATUS_OK) {
        none = (Error){0};
        shape.n_micro_batches++;
    }
    Arena arena = {0};
    StepAction *actions = ARENA_ARRAY(&arena, StepAction, schedule_bound(&shape));
    int n = schedule_forward_actions(pipeline->layout.kind, &shape, pipeline->stage, actions);
    if (step_rehearsal_is_due(step)) rehearse(step, error);
    for (int i = 0; i < n && error->status == STATUS_OK; i++) {
        int64_t at = first + actions[i].micro * step->B, n_rows = end - at < step->B ? end - at : step->B;
        BatchPart part = {
            .first_sequence = first_sequence + (uint64_t)at, .n = n_rows, .chunk = actions[i].chunk};
        MicroBatch position = {.is_first = true, .is_last = actions[i].is_last, .chunk = actions[i].chunk};
        double mean = 0.0;
        if (step_upload_batch(step, source, &part, error) != STATUS_OK) break;
        if (executor_run(&step->executor, SECTION_FORWARD, position, error) != STATUS_OK) break;
        const Tensor *loss = step->chunk[actions[i].chunk].loss.loss;
        if (!loss) continue;
        float value = 0.0F;
        executor_download(&step->executor, loss, &value, error);
        mean = (double)value;
        *sum += mean * (double)step->options.batch;
    }
    if (error->status == STATUS_OK) executor_run(&step->executor, SECTION_UPDATE, MICRO_BATCH_ONLY, error);
    arena_free(&arena);
    return error->status;
}

/* A device that runs behind the host has the next batch before its last loss is asked for. */
Status evaluate_step_run(TrainStep *step, const BatchSource *source, uint64_t first_sequence, int64_t n,
                         double *loss, Error *error) {
    const StepOptions *options = &step->options;
    int64_t n_shares = sync_n_shares(&options->sync), largest = (n + n_shares - 1) / n_shares, first, end;
    sync_share(&options->sync, n, &first, &end);
    int64_t n_batches = (largest + step->B - 1) / step->B; /* as many as the others */
    int64_t n_ahead = executor_sends(&step->executor) ? 1 : 0;
    bool may_stop = options->should_stop && step_is_alone(&options->sync), was_cut = false;
    double sum = 0.0, mean; /* over options->batch rows, by the loss's scale */
    if (options->pipeline) {
        TRY(evaluate_stages(step, source, first_sequence, first, end, n_batches, &sum, error));
        n_batches = n_ahead = 0;
    }
    for (int64_t i = 0; i < n_batches + n_ahead; i++) {
        if (i < n_batches && may_stop && options->should_stop()) {
            was_cut = true;
            n_batches = i--; /* what has begun is still received */
            continue;
        }
        int64_t at = first + i * step->B, n_rows = end - at < step->B ? end - at : step->B;
        if (i < n_batches)
            TRY(begin_evaluation(step, source, first_sequence + (uint64_t)at, n_rows, (int)(i % 2), error));
        if (i < n_ahead) continue;
        TRY(step_receive(step, step->loss.loss, (int)((i - n_ahead) % 2), &mean, error));
        sum += mean * (double)options->batch;
    }
    TRY(train_step_sum_number(step, &sum, error));
    *loss = was_cut ? NAN : sum / (double)n;
    return STATUS_OK;
}
