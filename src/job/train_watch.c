/* What is on the board of a run (base/system/activity.h), and the trace that is made of it (trace/trace.h).
 * On the board are the communicators by their names, and the phases before the first step, which may take
 * long too: reading data, making weights, loading a checkpoint. From the first step on the trainer says
 * what it does. */
#include "job/train_run.h"

#include "base/system/cores.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "train/metrics.h"

#include <stdio.h>
#include <string.h>

void train_watch(TrainRun *run) {
    activity_open(&run->activity);
    comm_watch(&run->launch->world, &run->activity, ACTIVITY_HOST, "world");
}

/* "tensor", or where there are several groups along these axes "tensor 2,3", "data 1..7": they must have
 * names of their own, since a collective is known by its communicator's name and its number there. */
static const char *group_name(TrainRun *run, const char *name, const bool *is_along) {
    const Mesh *mesh = &run->mesh;
    int first[N_AXES], last[N_AXES], n = 1;
    for (int axis = 0; axis < N_AXES; axis++) {
        int size = mesh->shape.size[axis];
        first[axis] = is_along[axis] ? 0 : mesh->coordinate[axis];
        last[axis] = is_along[axis] ? size - 1 : mesh->coordinate[axis];
        if (is_along[axis]) n *= size;
    }
    char words[64];
    if (n == 1 || n == run->launch->world.size) return activity_keep(&run->activity, name);
    snprintf(words, sizeof words, "%s %d%s%d", name, mesh_rank(&mesh->shape, first), n == 2 ? "," : "..",
             mesh_rank(&mesh->shape, last));
    return activity_keep(&run->activity, words);
}

static void watch_group(TrainRun *run, Comm *host, Comm *device, const char *name) {
    bool has_device = device->table != NULL;
    char words[80];
    snprintf(words, sizeof words, "%s (host)", name);
    comm_watch(host, &run->activity, ACTIVITY_HOST, has_device ? activity_keep(&run->activity, words) : name);
    comm_watch(device, &run->activity, ACTIVITY_HOST, name);
}

/* Messages between stages, and of those that hold a tied table; sums over several axes. */
static void watch_borders(TrainRun *run) {
    static const bool sums[N_AXES] = {[AXIS_DP] = true, [AXIS_CP] = true, [AXIS_EP] = true},
                      expert_sums[N_AXES] = {[AXIS_DP] = true, [AXIS_CP] = true},
                      ends[N_AXES] = {[AXIS_PP] = true};
    Mesh *mesh = &run->mesh;
    pipeline_watch(&run->pipeline, &run->activity);
    bool has_experts = mesh->shape.size[AXIS_EP] > 1, has_contexts = mesh->shape.size[AXIS_CP] > 1;
    const char *name = !has_experts ? "data and context" : "data and experts";
    if (has_experts && has_contexts) name = "data, context and experts";
    watch_group(run, &mesh->sums, &mesh->device_sums, group_name(run, name, sums));
    watch_group(run, &mesh->expert_sums, &mesh->device_expert_sums,
                group_name(run, "data and context", expert_sums));
    watch_group(run, &mesh->ends, &mesh->device_ends, group_name(run, "tied embedding", ends));
}

void train_watch_groups(TrainRun *run) {
    static const char *const names[N_AXES] = {[AXIS_PP] = "pipeline",
                                              [AXIS_DP] = "data",
                                              [AXIS_CP] = "context",
                                              [AXIS_EP] = "experts",
                                              [AXIS_TP] = "tensor"};
    for (int axis = 0; axis < N_AXES; axis++) {
        Comm *host = &run->mesh.axis[axis], *device = &run->mesh.device[axis];
        bool is_along[N_AXES] = {false};
        is_along[axis] = true;
        if (axis != AXIS_DP && host->size == 1) continue;
        const char *name = group_name(run, names[axis], is_along);
        watch_group(run, host, device, name);
        char words[80];
        snprintf(words, sizeof words, "worker of %s", name);
        if (host->size > 1) /* before the saver, in pictures too */
            activity_add_track(&run->activity, activity_keep(&run->activity, words));
    }
    watch_borders(run);
    comm_watch(&run->saving, &run->activity, activity_add_track(&run->activity, "saver"), "saving");
}

void train_enter(TrainRun *run, const char *phase) {
    if (run->is_in_phase) activity_end(&run->activity, ACTIVITY_HOST);
    run->is_in_phase = phase != NULL;
    if (!phase) return;
    ActivityEntry entry = {.kind = ACTIVITY_WORK, .name = phase, .number = -1};
    activity_begin(&run->activity, ACTIVITY_HOST, &entry);
}

/* ---- The trace */

Status train_trace_check(TrainRun *run, Error *error) {
    const TraceOptions *options = &run->values.trace;
    int64_t first, last;
    TRY(launch_check_same(run->launch, "--trace", options->file, error));
    TRY(launch_check_same(run->launch, "--trace-steps", options->steps, error));
    bool is_auto = strcmp(options->file, "auto") == 0;
    if (*options->steps && !*options->file)
        error_user(error, "--trace-steps means something only with --trace; leave it out, or give that too");
    else if (*options->steps) trace_read_steps(options->steps, &first, &last, error);
    if (*options->file && !is_auto && run->launch->world.rank == 0 && error->status == STATUS_OK)
        trace_check_path(options->file, error);
    return launch_agree(run->launch, error);
}

/* Processor and cores of this host, and the GPU of this rank where it trains on one. */
static json_t *machine_of(const TrainRun *run) {
    json_t *all = metrics_machine(), *machine = json_object();
    json_object_set(machine, "processor", json_object_get(all, "processor"));
    json_object_set_new(machine, "cores", json_integer(cores_of_host()));
    if (*run->backend.traits.kind)
        json_object_set_new(machine, "gpu", json_make_text(run->backend.traits.kind));
    json_decref(all);
    return machine;
}

Status train_trace_open(TrainRun *run, Error *error) {
    const TraceOptions *options = &run->values.trace;
    if (!*options->file) return STATUS_OK;
    bool is_auto = strcmp(options->file, "auto") == 0;
    run->trace_path = is_auto ? arena_printf(&run->options.arena, "%s/trace.json", run->run) : options->file;
    TraceSetup setup = {.activity = &run->activity,
                        .world = &run->launch->world,
                        .host = run->launch->host,
                        .steps = options->steps,
                        .next_step = run->trainer.n_done + 1,
                        .n_steps = run->values.train.n_steps,
                        .machine = machine_of(run),
                        .runs_behind = run->backend.event_new != NULL};
    trace_open(&run->trace, &setup, error);
    return launch_agree(run->launch, error);
}

Status train_trace_write(TrainRun *run, Error *error) {
    TraceSummary summary;
    if (!run->trace_path) return STATUS_OK;
    train_enter(run, "writing the trace");
    train_step_show_times(&run->trainer.step);
    trace_write(&run->trace, run->trace_path, &summary, error);
    train_enter(run, NULL);
    TRY(launch_agree(run->launch, error));
    char clocks[64] = "all on one clock";
    if (summary.uncertainty_us > 0.0)
        snprintf(clocks, sizeof clocks, "clocks aligned to %.3g us", summary.uncertainty_us);
    log_note(&run->log, "trace: %s events, %s collectives, %s: %s (%s); to see it: pgpt lab timeline %s",
             format_count((double)summary.n_events).text, format_count((double)summary.n_collectives).text,
             clocks, run->trace_path, format_bytes(summary.n_bytes).text, shell_path(run->trace_path).text);
    if (summary.was_full || summary.n_lost)
        log_warning(
            &run->log,
            "the trace does not hold all that was asked for: its room was full, and %s events were left out; "
            "choose fewer steps by --trace-steps",
            format_count((double)summary.n_lost).text);
    return STATUS_OK;
}

void train_unwatch(TrainRun *run) {
    trace_close(&run->trace);
    comm_watch(&run->launch->world, NULL, ACTIVITY_HOST, NULL); /* it lives longer */
    activity_close(&run->activity);
}
