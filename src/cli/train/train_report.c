/* What pgpt train says: the plan before the first step, the closing JSON object, the program, the mesh. One
 * rank speaks. */
#include "cli/train/train.h"

#include "base/text/format.h"
#include "comm/algo/algo.h"
#include "comm/comm_mpi.h"
#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Each rank's state against the formula of its stage: the padding between parameters is what it may differ
 * by. */
static void say_ranks(const TrainRun *run) {
    const Trainer *trainer = &run->trainer;
    const Layout *layout = &trainer->step.options.layout;
    Precision precision = trainer->step.options.precision;
    int n_moments = trainer->step.optimizer.n_moments;
    char text[256], formula[64];
    if (trainer_n_ranks(trainer) == 1) return;
    log_note(&run->log, "%s", launch_describe(run->launch, run->backend.n_threads, text, sizeof text));
    if (launch_advice(run->launch, text, sizeof text)) log_warning(&run->log, "%s", text);
    if (!run->launch->world.table->is_threaded(run->launch->world.context))
        log_warning(&run->log,
                    "this MPI lets one thread talk at a time (%s): nothing is hidden behind computation",
                    comm_mpi_library());
    double wanted = layout_formula_bytes(layout, precision, trainer->table.n_elements, n_moments);
    int64_t share = (run->values.train.batch - 1) / layout_n_shares(layout) + 1; /* the largest */
    train_loose_say(run);
    if (layout->is_loose) {
        log_note(
            &run->log,
            "%s has up to %lld of %lld sequences a step; every rank has %s of weights, gradients and moments",
            run->loose.sync == SYNC_SERVER ? "every rank but the first" : "each rank", (long long)share,
            (long long)run->values.train.batch, format_bytes(trainer_state_bytes(trainer)).text);
        return;
    }
    log_note(
        &run->log,
        "each rank has up to %lld of %lld sequences a step and %s of weights, gradients and moments (ZeRO %d: %s = %s); "
        "%d gradient buckets, all-reduce by %s",
        (long long)share, (long long)run->values.train.batch, format_bytes(trainer_state_bytes(trainer)).text,
        trainer->step.spread.zero, layout_formula(layout, precision, n_moments, formula, sizeof formula),
        format_bytes((uint64_t)wanted).text, trainer->step.spread.partition.n_units,
        run->data.table ? run->data.table->name : comm_algorithm_names[run->values.parallel.all_reduce]);
    if (trainer->step.spread.zero == 3 && trainer->has_generator)
        log_note(&run->log,
                 "rank 0 also keeps whole weights for its samples; --sample-tokens 0 does without");
}

void train_report_plan(const TrainRun *run) {
    const ModelConfig *model = &run->values.model;
    const TrainOptions *train = &run->values.train;
    const MemoryPlan *plan = &run->trainer.step.program.plan;
    log_note(&run->log, "model %s: %lld layers, %lld heads, %lld channels, context %lld, %s parameters",
             model->preset, (long long)model->n_layers, (long long)model->n_heads,
             (long long)model->n_channels, (long long)model->context,
             format_count((double)run->trainer.table.n_elements).text);
    log_note(&run->log, "data %s: %s tokens to learn, %s held out, %d symbols (%s)", run->values.data.data,
             format_count((double)dataset_n_tokens(run->source.dataset, DATASET_TRAIN)).text,
             format_count((double)dataset_n_tokens(run->source.dataset, DATASET_VALIDATION)).text,
             tokenizer_n_vocabulary(run->source.tokenizer), tokenizer_kind(run->source.tokenizer));
    log_note(&run->log, "memory %s: activations %s (sharing saved %s), %d threads; %s a step",
             format_bytes(trainer_planned_bytes(&run->trainer)).text,
             format_bytes(plan->bytes[PLACE_ACTIVATION]).text,
             format_bytes(plan->unshared_bytes - plan->bytes[PLACE_ACTIVATION]).text, run->backend.n_threads,
             format_rate(trainer_flops(&run->trainer), "FLOP").text);
    device_say(&run->log, &run->backend, &run->data);
    say_ranks(run);
    log_note(&run->log, "%lld steps of %lld x %lld tokens into %s", (long long)train->n_steps,
             (long long)train->batch, (long long)train->sequence, run->run);
    if (!train->saves && *train->resume)
        log_note(
            &run->log,
            "nothing will be saved (--no-save): the run in %s stays at step %lld, and its metrics from there on "
            "are written anew by the next --resume",
            run->run, (long long)run->trainer.n_done);
    else if (!train->saves) log_note(&run->log, "nothing will be saved but the metrics (--no-save)");
}

void train_report_communication(const TrainRun *run) {
    const Trainer *trainer = &run->trainer;
    if (trainer_n_ranks(trainer) == 1 || !trainer->n_steps_timed || isnan(trainer->sum.comm_ms)) return;
    double n_steps = (double)trainer->n_steps_timed, comm_ms = trainer->sum.comm_ms / n_steps;
    double wait_ms = trainer->sum.comm_wait_ms / n_steps, step_ms = trainer->step_seconds * 1e3 / n_steps;
    double hidden = comm_ms > wait_ms ? 1.0 - wait_ms / comm_ms : 0.0;
    log_note(
        &run->log,
        "a step took %.1f ms, communication %.1f ms of it beside the computation or not; %.1f ms were waited for "
        "(%.0f %% hidden)",
        step_ms, comm_ms, wait_ms, 100.0 * hidden);
}

/* ---- JSON */

static void add_ranks(json_t *object, const TrainRun *run) {
    const Trainer *trainer = &run->trainer;
    const Layout *layout = &trainer->step.options.layout;
    double wanted = layout_formula_bytes(layout, trainer->step.options.precision, trainer->table.n_elements,
                                         trainer->step.optimizer.n_moments);
    json_object_set_new(object, "ranks", json_integer(trainer_n_ranks(trainer)));
    json_object_set_new(object, "zero", json_integer(trainer->step.spread.zero));
    json_object_set_new(object, "state_bytes", json_integer((json_int_t)trainer_state_bytes(trainer)));
    json_object_set_new(object, "state_formula_bytes", json_make_number(wanted));
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

static json_t *summary(const TrainRun *run, double seconds) {
    const Trainer *trainer = &run->trainer;
    const TrainOptions *train = &run->values.train;
    double per_step = trainer->n_steps_timed ? trainer->step_seconds / (double)trainer->n_steps_timed : NAN;
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("train"));
    json_object_set_new(object, "model", json_make_text(run->values.model.preset));
    json_object_set_new(object, "parameters", json_integer(trainer->table.n_elements));
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
    json_object_set_new(object, "seconds", json_make_number(seconds));
    json_object_set_new(object, "step_ms", json_make_number(per_step * 1e3));
    json_object_set_new(object, "tokens_per_s",
                        json_make_number((double)train->batch * (double)train->sequence / per_step));
    json_object_set_new(object, "flops_per_s", json_make_number(trainer_flops(trainer) / per_step));
    json_object_set_new(object, "mfu", json_null()); /* the peak of this processor is not known */
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)trainer_allocated_bytes(trainer)));
    add_times(object, run);
    add_ranks(object, run);
    train_loose_json(run, object);
    json_object_set_new(object, "interrupted", json_boolean(trainer->was_interrupted));
    json_object_set_new(object, "saved", json_boolean(trainer_is_saved(trainer)));
    json_object_set_new(object, "run", json_make_text(run->run));
    if (run->trace_path) json_object_set_new(object, "trace", json_make_text(run->trace_path));
    return object;
}

static Status print_json(json_t *object, Error *error) {
    json_line_write(stdout, object, JSON_DIGITS_FLOAT, error);
    json_decref(object);
    return error->status;
}

Status train_report_json(const TrainRun *run, double seconds, Error *error) {
    if (!run->values.call.json || !run->launch->is_root) return STATUS_OK;
    return print_json(summary(run, seconds), error);
}

Status train_report_program(const TrainRun *run, Error *error) {
    if (!run->launch->is_root) return STATUS_OK;
    trainer_print_program(&run->trainer, stdout);
    if (!run->values.call.json) return STATUS_OK;
    Cost cost = program_cost(&run->trainer.step.program);
    json_t *object = json_object();
    json_object_set_new(object, "instructions", json_integer(run->trainer.step.graph->n_nodes));
    json_object_set_new(object, "flops_per_step", json_make_number(cost.flops));
    json_object_set_new(object, "bytes_per_step", json_make_number(cost.bytes));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)trainer_planned_bytes(&run->trainer)));
    add_ranks(object, run);
    return print_json(object, error);
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
    return print_json(object, error);
}
