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
    double wanted =
        sync_state_bytes(sync, trainer->step.options.precision, parameters_count_groups(&trainer->table),
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
    if (!isnan(trainer->last.depth_loss)) {
        json_object_set_new(object, "depth_loss", json_make_number(trainer->last.depth_loss));
        json_object_set_new(object, "depth_accuracy", json_make_number(trainer->last.depth_accuracy));
    }
    if (trainer->step.loss.scale) {
        json_object_set_new(object, "loss_scale", json_make_number(trainer->step.scale.value));
        json_object_set_new(object, "skipped", json_integer(trainer->step.scale.n_skipped));
    }
    metrics_add_routes(object, &trainer->last.routes);
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

/* What every rank has allocated. Collective. */
static Status gather_peaks(const TrainRun *run, json_t *peaks, Error *error) {
    Comm *world = &run->launch->world;
    Arena arena = {0};
    int64_t *border = ARENA_ARRAY(&arena, int64_t, world->size + 1),
            *bytes = ARENA_ARRAY(&arena, int64_t, world->size);
    for (int i = 0; i <= world->size; i++) border[i] = i;
    bytes[world->rank] = (int64_t)trainer_allocated_bytes(&run->trainer);
    if (world->size > 1) comm_all_gather(world, bytes, border, COMM_I64, error);
    for (int i = 0; i < world->size; i++) json_array_append_new(peaks, json_integer(bytes[i]));
    arena_free(&arena);
    return error->status;
}

Status train_report_json(const TrainRun *run, Error *error) {
    json_t *peaks = json_array();
    gather_peaks(run, peaks, error);
    if (error->status != STATUS_OK || !run->values.call.json || !run->launch->is_root) {
        json_decref(peaks);
        return error->status;
    }
    json_t *object = summary(run);
    json_object_set_new(object, "rank_peak_bytes", peaks);
    return json_print(stdout, object, error);
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
    json_object_set_new(object, "command", json_string("train"));
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

static void print_count(const char *axes, const char *kind, const TrafficCount *sum, const TrafficCount *most,
                        bool has_hosts) {
    char far[32] = "-";
    if (has_hosts) snprintf(far, sizeof far, "%lld", (long long)sum->n_far_bytes);
    printf("%-8s %-14s %8lld %10lld %16lld %16lld %16s\n", axes, kind, (long long)most->n_operations,
           (long long)sum->n_messages, (long long)sum->n_bytes, (long long)most->n_bytes, far);
}

/* The lines that there are: axes by themselves, the innermost first, then groups along several. */
typedef void (*TrafficVisit)(void *context, int axes, int kind);

static void visit_lines(const Traffic *most, TrafficVisit visit, void *context) {
    for (int is_joint = 0; is_joint < 2; is_joint++) {
        for (int axes = N_TRAFFIC_AXES - 1; axes > 0; axes--) {
            if (((axes & (axes - 1)) != 0) != is_joint) continue;
            for (int kind = 0; kind < N_TRAFFIC_KINDS; kind++)
                if (most->count[axes][kind].n_operations) visit(context, axes, kind);
        }
    }
}

typedef struct {
    const Traffic *sum, *most;
    bool has_hosts;
    json_t *lines;
} TrafficReport;

static void print_line(void *context, int axes, int kind) {
    const TrafficReport *report = context;
    char text[TRAFFIC_TEXT];
    print_count(traffic_axes_name(axes, text), traffic_kind_name(kind), &report->sum->count[axes][kind],
                &report->most->count[axes][kind], report->has_hosts);
}

static void print_traffic(TrafficReport *report) {
    printf("\na step sends, counted from the program of every rank:\n");
    printf("%-8s %-14s %8s %10s %16s %16s %16s\n", "axis", "operation", "times", "messages", "bytes",
           "of busiest rank", "between hosts");
    visit_lines(report->most, print_line, report);
    print_count("all", "", &report->sum->count[0][0], &report->most->count[0][0], report->has_hosts);
    if (report->most->count[1 << AXIS_EP][COMM_ALL_TO_ALL].n_operations)
        printf("rows of tokens to experts and back: as many as where all experts are wanted alike\n");
}

static json_t *count_json(const TrafficCount *sum, const TrafficCount *most, bool has_hosts) {
    json_t *object = json_object();
    json_object_set_new(object, "times", json_integer(most->n_operations));
    json_object_set_new(object, "messages", json_integer(sum->n_messages));
    json_object_set_new(object, "bytes", json_integer(sum->n_bytes));
    json_object_set_new(object, "busiest_messages", json_integer(most->n_messages));
    json_object_set_new(object, "busiest_bytes", json_integer(most->n_bytes));
    json_object_set_new(object, "host_messages", has_hosts ? json_integer(sum->n_far_messages) : json_null());
    json_object_set_new(object, "host_bytes", has_hosts ? json_integer(sum->n_far_bytes) : json_null());
    return object;
}

static void add_line(void *context, int axes, int kind) {
    const TrafficReport *report = context;
    char text[TRAFFIC_TEXT];
    json_t *line =
        count_json(&report->sum->count[axes][kind], &report->most->count[axes][kind], report->has_hosts);
    json_object_set_new(line, "axis", json_string(traffic_axes_name(axes, text)));
    json_object_set_new(line, "operation", json_string(traffic_kind_name(kind)));
    json_array_append_new(report->lines, line);
}

/* Of a run that compresses: what kinds of steps it has, and what one sends in which a rank goes by itself. */
static Status report_steps(TrainRun *run, const char *const *hosts, json_t *object, Error *error) {
    CompressedSteps steps = train_compress_steps(run);
    Traffic sum, most;
    if (run->compression.kind == COMPRESS_NONE || !(steps.n_exact + steps.n_compressed)) return STATUS_OK;
    if (steps.n_local) TRY(train_count_traffic(run, hosts, true, &sum, &most, error));
    if (!run->launch->is_root) return STATUS_OK;
    const char *about = run->compression.n_warmup == COMPRESS_UNDECIDED ? " (exact ones not counted)" : "";
    printf("of %lld steps %lld are exact, and %lld such as this one%s", (long long)run->values.train.n_steps,
           (long long)steps.n_exact, (long long)steps.n_compressed, about);
    if (steps.n_local)
        printf("; in %lld no gradient is sent: %lld bytes, %lld of the busiest rank",
               (long long)steps.n_local, (long long)sum.count[0][0].n_bytes,
               (long long)most.count[0][0].n_bytes);
    printf("\n");
    json_object_set_new(object, "exact_steps", json_integer(steps.n_exact));
    json_object_set_new(object, "compressed_steps", json_integer(steps.n_compressed));
    json_object_set_new(object, "local_steps", json_integer(steps.n_local));
    if (steps.n_local)
        json_object_set_new(object, "local_all",
                            count_json(&sum.count[0][0], &most.count[0][0], hosts != NULL));
    return STATUS_OK;
}

Status train_report_mesh(TrainRun *run, Error *error) {
    const char *const *hosts;
    Traffic sum, most;
    TRY(train_host_names(run, &hosts, error));
    TRY(train_count_traffic(run, hosts, false, &sum, &most, error));
    int n_ranks = mesh_n_ranks(&run->shape);
    json_t *object = json_object();
    if (run->launch->is_root) mesh_print(&run->shape, hosts, stdout);
    TrafficReport report = {&sum, &most, hosts != NULL, NULL};
    if (n_ranks > 1 && run->launch->is_root) print_traffic(&report);
    if (n_ranks > 1) report_steps(run, hosts, object, error);
    if (error->status != STATUS_OK || !run->launch->is_root) {
        json_decref(object);
        return error->status;
    }
    if (n_ranks > 1 && run->async.sync != SYNC_EXACT)
        printf("and between steps what --sync %s exchanges, which is not part of a program\n",
               sync_names[run->async.sync]);
    if (!run->values.call.json) {
        json_decref(object);
        return STATUS_OK;
    }
    json_object_set_new(object, "command", json_string("train"));
    json_object_set_new(object, "ranks", json_integer(n_ranks));
    for (int axis = 0; axis < N_AXES; axis++)
        json_object_set_new(object, axis_name((Axis)axis), json_integer(run->shape.size[axis]));
    report.lines = json_array();
    visit_lines(&most, add_line, &report);
    json_object_set_new(object, "traffic", report.lines);
    json_object_set_new(object, "all", count_json(&sum.count[0][0], &most.count[0][0], hosts != NULL));
    return json_print(stdout, object, error);
}
