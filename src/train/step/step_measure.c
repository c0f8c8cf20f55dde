/* What a step took: the executor counts what computes, the communicators what they carry. */
#include "train/step/step_inside.h"

#include <math.h>

/* Waited for at the borders of this rank's chunks. */
static uint64_t border_ns(const Pipeline *pipeline) {
    uint64_t sum = 0;
    for (int i = 0; pipeline && i < pipeline->layout.n_chunks * N_BORDERS * N_PIPELINE_WAYS; i++) {
        int way = i % N_PIPELINE_WAYS, side = i / N_PIPELINE_WAYS % N_BORDERS;
        const PipelineBorder *border = &pipeline->border[i / N_PIPELINE_WAYS / N_BORDERS][side];
        sum += border->comm[way].counts.waited_ns + border->device[way].counts.waited_ns;
    }
    return sum;
}

/* When the executor has done n_started sections. */
Status step_times_at(TrainStep *step, int64_t n_started, StepClock *times, Error *error) {
    const Mesh *mesh = step->options.sync.mesh;
    times->busy_ns = times->stage_ns = border_ns(step->options.pipeline);
    for (int axis = 0; mesh && axis < N_AXES; axis++)
        times->busy_ns += mesh_comm(mesh, (Axis)axis)->counts.busy_ns;
    if (mesh && mesh->sums.table) times->busy_ns += mesh_sums(mesh)->counts.busy_ns;
    if (mesh && mesh->expert_sums.table) times->busy_ns += mesh_expert_sums(mesh)->counts.busy_ns;
    if (mesh && mesh->heads.table) times->busy_ns += mesh_heads(mesh)->counts.busy_ns;
    if (mesh && mesh_ends(mesh)) times->busy_ns += mesh_ends(mesh)->counts.busy_ns;
    return executor_phases(&step->executor, n_started, times->phase_ns, error);
}

Status train_step_clock(TrainStep *step, StepClock *clock, Error *error) {
    return step_times_at(step, step->executor.n_started, clock, error);
}

/* A device's own communication runs behind the host, which then knows nothing of its times. */
static bool is_of_device(const Comm *comm) {
    return comm && comm->table && comm->table->start;
}

/* One communicator of that kind, along whichever axis, makes the sum of all meaningless. */
static bool times_communication(const StepOptions *options) {
    const Mesh *mesh = options->sync.mesh;
    if (!mesh) return true;
    for (int axis = 0; axis < N_AXES; axis++)
        if (is_of_device(mesh_comm(mesh, (Axis)axis))) return false;
    const Comm *others[] = {mesh_sums(mesh), mesh_expert_sums(mesh), mesh_heads(mesh), mesh_ends(mesh)};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (is_of_device(others[i])) return false;
    return !options->pipeline || !pipeline_only_enqueues(options->pipeline);
}

void train_step_times(const TrainStep *step, const StepClock *before, const StepClock *after, int64_t n_steps,
                      StepResult *result) {
    bool is_timed = times_communication(&step->options);
    double ms[N_PHASES], unit = 1e-6 / (double)n_steps;
    for (int i = 0; i < N_PHASES; i++) ms[i] = (double)(after->phase_ns[i] - before->phase_ns[i]) * unit;
    result->forward_ms = ms[PHASE_FORWARD];
    result->backward_ms = ms[PHASE_BACKWARD];
    result->update_ms = ms[PHASE_UPDATE];
    result->comm_wait_ms = is_timed ? ms[PHASE_COMMUNICATION] : NAN;
    result->comm_ms = is_timed ? (double)(after->busy_ns - before->busy_ns) * unit : NAN;
    result->stage_wait_ms = is_timed ? (double)(after->stage_ns - before->stage_ns) * unit : NAN;
}
