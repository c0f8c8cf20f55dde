/* What pgpt train prints: the closing JSON object, the program, the mesh. One rank speaks. */
#include "cli/train/train_report.h"

#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- JSON */

static void add_ranks(json_t *object, const TrainRun *run) {
    const Trainer *trainer = &run->trainer;
    const GradientSyncOptions *sync = &trainer->step.options.sync;
    double wanted = sync_state_bytes(sync, trainer->step.options.precision, trainer->table.n_elements,
                                     trainer->step.optimizer.n_moments);
    json_object_set_new(object, "ranks", json_integer(trainer_n_ranks(trainer)));
    json_object_set_new(object, "zero", json_integer(trainer->step.sync.zero));
    json_object_set_new(object, "state_bytes", json_integer((json_int_t)trainer_state_bytes(trainer)));
    json_object_set_new(object, "state_formula_bytes", json_make_number(wanted));
}

static void add_async(json_t *object, const TrainRun *run) {
    const AsyncRun *async = &run->trainer.async;
    const StalenessBook *book = &async->server.book;
    json_object_set_new(object, "sync", json_string(sync_names[async->options.sync]));
    if (async->options.sync == SYNC_SERVER || async->options.sync == SYNC_PUSH)
        json_object_set_new(object, "staleness", json_integer(async->options.staleness));
    if (async->options.sync != SYNC_SERVER || !book->histogram) return;
    json_t *histogram = json_array();
    for (int64_t i = 0; i <= book->max; i++)
        json_array_append_new(histogram, json_integer(book->histogram[i]));
    json_object_set_new(object, "updates", json_integer(book->n_applied));
    json_object_set_new(object, "max_staleness", json_integer(book->max));
    json_object_set_new(object, "mean_staleness", json_make_number(book->sum / (double)book->n_applied));
    json_object_set_new(object, "staleness_histogram", histogram);
}

/* Means over the steps of this process. */
static void add_times(json_t *object, const TrainRun *run) {
    const StepResult *sum = &run->trainer.sum;
    double n_steps = run->trainer.n_steps_timed ? (double)run->trainer.n_steps_timed : NAN;
    json_object_set_new(object, "forward_ms", json_make_number(sum->forward_ms / n_steps));
    json_object_set_new(object, "backward_ms", json_make_number(sum->backward_ms / n_steps));
    json_object_set_new(object, "update_ms", json_make_number(sum->update_ms / n_steps));
    if (trainer_n_ranks(&run->trainer) == 1) return;
    json_object_set_new(object, "comm_ms", json_make_number(sum->comm_ms / n_steps));
    json_object_set_new(object, "comm_wait_ms", json_make_number(sum->comm_wait_ms / n_steps));
}

static json_t *summary(const TrainRun *run) {
    const Trainer *trainer = &run->trainer;
    const TrainOptions *train = &run->values.train;
    double per_step = trainer->n_steps_timed ? trainer->step_seconds / (double)trainer->n_steps_timed : NAN;
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("train"));
    json_object_set_new(object, "model", json_make_text(run->values.model.preset));
    json_object_set_new(object, "parameters", json_integer(trainer->table.n_whole_elements));
    json_object_set_new(object, "layers", json_integer(run->values.model.n_layers));
    json_object_set_new(object, "heads", json_integer(run->values.model.n_heads));
    json_object_set_new(object, "channels", json_integer(run->values.model.n_channels));
    json_object_set_new(object, "vocab", json_integer(run->values.model.vocabulary));
    json_object_set_new(object, "step", json_integer(trainer->n_done));
    json_object_set_new(object, "tokens", json_integer(trainer->last.n_tokens));
    json_object_set_new(object, "loss", json_make_number(trainer->last.loss));
    json_object_set_new(object, "val_loss", json_make_number(trainer->validation_loss));
    json_object_set_new(object, "lr", json_make_number(trainer->last.rate));
    json_object_set_new(object, "grad_norm", json_make_number(trainer->last.gradient_norm));
    if (trainer->step.loss.scale) {
        json_object_set_new(object, "loss_scale", json_make_number(trainer->step.scale.value));
        json_object_set_new(object, "skipped", json_integer(trainer->step.scale.n_skipped));
    }
    json_object_set_new(object, "seconds", json_make_number(run->seconds));
    json_object_set_new(object, "step_ms", json_make_number(per_step * 1e3));
    json_object_set_new(object, "tokens_per_s",
                        json_make_number((double)train->batch * (double)train->sequence / per_step));
    json_object_set_new(object, "flops_per_s", json_make_number(trainer_flops(trainer) / per_step));
    json_object_set_new(object, "standard_flops_per_s",
                        json_make_number(trainer_standard_flops(trainer) / per_step));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)trainer_allocated_bytes(trainer)));
    add_times(object, run);
    add_ranks(object, run);
    add_async(object, run);
    json_object_set_new(object, "interrupted", json_boolean(trainer->was_interrupted));
    json_object_set_new(object, "saved", json_boolean(trainer_is_saved(trainer)));
    json_object_set_new(object, "run", json_make_text(run->run));
    if (run->trace_path) json_object_set_new(object, "trace", json_make_text(run->trace_path));
    return object;
}

Status train_report_json(const TrainRun *run, Error *error) {
    if (!run->values.call.json || !run->launch->is_root) return STATUS_OK;
    return json_print(stdout, summary(run), error);
}

Status train_report_program(const TrainRun *run, Error *error) {
    if (!run->launch->is_root) return STATUS_OK;
    char device[256];
    if (backend_has_own_memory(&run->backend))
        printf("planned for %s, which was not opened\n",
               device_describe(&run->backend, device, sizeof device));
    trainer_print_program(&run->trainer, stdout);
    if (!run->values.call.json) return STATUS_OK;
    Cost cost = program_cost(&run->trainer.step.program);
    json_t *object = json_object();
    json_object_set_new(object, "device", json_string(run->backend.name));
    if (*run->backend.traits.kind)
        json_object_set_new(object, "device_kind", json_make_text(run->backend.traits.kind));
    json_object_set_new(object, "instructions", json_integer(run->trainer.step.graph->n_nodes));
    json_object_set_new(object, "flops_per_step", json_make_number(cost.flops));
    json_object_set_new(object, "standard_flops_per_step",
                        json_make_number(trainer_standard_flops(&run->trainer)));
    json_object_set_new(object, "bytes_per_step", json_make_number(cost.bytes));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)trainer_planned_bytes(&run->trainer)));
    add_ranks(object, run);
    return json_print(stdout, object, error);
}

/* ---- the mesh */

enum { HOST_BYTES = sizeof((Launch *)NULL)->host };

Status train_report_mesh(TrainRun *run, Error *error) {
    Comm *world = &run->launch->world;
    Arena *arena = &run->options.arena;
    int64_t *border = ARENA_ARRAY(arena, int64_t, world->size + 1);
    for (int i = 0; i <= world->size; i++) border[i] = (int64_t)i * HOST_BYTES;
    char *names = ARENA_ARRAY(arena, char, world->size *HOST_BYTES);
    const char **hosts = ARENA_ARRAY(arena, const char *, world->size);
    memcpy(names + border[world->rank], run->launch->host, HOST_BYTES);
    TRY(comm_all_gather(world, names, border, COMM_U8, error));
    for (int i = 0; i < world->size; i++) hosts[i] = names + border[i];
    if (!run->launch->is_root) return STATUS_OK;
    mesh_print(&run->shape, hosts, stdout);
    if (!run->values.call.json) return STATUS_OK;
    json_t *object = json_object();
    json_object_set_new(object, "ranks", json_integer(world->size));
    for (int axis = 0; axis < N_AXES; axis++)
        json_object_set_new(object, axis_name((Axis)axis), json_integer(run->shape.size[axis]));
    return json_print(stdout, object, error);
}
