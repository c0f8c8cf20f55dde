#include "train/observers/metrics_observer.h"

static json_t *header(const Trainer *trainer) {
    const TrainOptions *options = trainer->setup.options;
    json_t *object = json_object();
    json_object_set_new(object, "model", json_make_text(trainer->setup.config->preset));
    json_object_set_new(object, "parameters", json_integer(trainer->table.n_whole_elements));
    json_object_set_new(object, "batch", json_integer(options->batch));
    json_object_set_new(object, "sequence", json_integer(options->sequence));
    json_object_set_new(object, "steps", json_integer(options->n_steps));
    json_object_set_new(object, "ranks", json_integer(trainer_n_ranks(trainer)));
    json_object_set_new(object, "zero", json_integer(trainer->step.sync.zero));
    json_object_set_new(object, "sync", json_string(sync_names[trainer->async.options.sync]));
    json_object_set_new(object, "threads", json_integer(trainer->setup.backend->n_threads));
    json_object_set_new(object, "flops_per_step", json_make_number(trainer_flops(trainer)));
    json_object_set_new(object, "standard_flops_per_step", json_make_number(trainer_standard_flops(trainer)));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)trainer_allocated_bytes(trainer)));
    return object;
}

static Status begin(void *context, const BeginEvent *event, Error *error) {
    MetricsObserver *written = context;
    return metrics_open(&written->writer, event->run, header(written->trainer), event->n_done, error);
}

static bool write_step(void *context, const StepEvent *event, Error *error) {
    MetricsObserver *written = context;
    metrics_write(&written->writer, event->metrics, error);
    return false;
}

static Status end(void *context, const EndEvent *event, Error *error) {
    (void)event;
    MetricsObserver *written = context;
    return line_writer_close(&written->writer, error);
}

TrainObserver metrics_observer(MetricsObserver *written) {
    return (TrainObserver){.context = written, .begin = begin, .step = write_step, .end = end};
}
