/* Everything that could be decided before the first step was: a run is a walk over an array of function
 * pointers with ready-made arguments. The clock is read once an instruction, about 25 ns, so timing is always
 * on. */
#include "graph/executor.h"

#include "base/system/timer.h"
#include "graph/executor_calls.h"

#include <string.h>

static Status open_lanes(Executor *executor, Error *error) {
    const Program *program = executor->program;
    const Backend *backend = executor->memory->backend;
    if (!program->lane || !backend->set_lane) return STATUS_OK;
    executor->events = ARENA_ARRAY(&executor->arena, BackendSpan, program->graph->n_nodes + 1);
    for (int i = 0; i < program->graph->n_nodes; i++) {
        if (!program->lane[i].lane) continue;
        TRY(backend->event_new(backend->context, &executor->events[i].begin, error));
        TRY(backend->event_new(backend->context, &executor->events[i].end, error));
    }
    return STATUS_OK;
}

static void close_lanes(Executor *executor) {
    const Backend *backend = executor->memory->backend;
    if (!executor->events || !backend->event_free) return;
    for (int i = 0; i < executor->program->graph->n_nodes; i++) {
        backend->event_free(backend->context, executor->events[i].begin);
        backend->event_free(backend->context, executor->events[i].end);
    }
}

Status executor_open(Executor *executor, const Program *program, DeviceMemory *memory, Error *error) {
    const Backend *backend = memory->backend;
    *executor = (Executor){.program = program, .memory = memory, .times_instructions = backend->is_blocking};
    for (int place = 0; place < N_PLACES; place++) {
        if (memory->bytes[place] < plan_place_bytes(&program->plan, (Place)place)) {
            return error_failed(error, "program '%s' was not announced to its memory", program->name);
        }
    }
    executor_make_parts(executor);
    return open_lanes(executor, error);
}

void executor_close(Executor *executor) {
    const Backend *backend = executor->memory ? executor->memory->backend : NULL;
    bool captures = backend && backend->capture_free && executor->part;
    int n_parts = captures ? N_SECTIONS * executor->program->plan.n_chunks : 0;
    for (int p = 0; p < n_parts; p++) {
        const ExecutorPart *part = &executor->part[p];
        for (int i = 0; i < part->n_versions * part->n_frames * 4; i++) {
            for (int run = 0; run < part->captured[i / 2 % 2].n; run++)
                backend->capture_free(backend->context, part->capture[i].run[run]);
        }
        backend->capture_free(backend->context, part->repeated);
    }
    for (int i = 0; backend && backend->event_free && i < EXECUTOR_MAX_PENDING; i++) {
        backend->event_free(backend->context, executor->pending[i].begin);
        backend->event_free(backend->context, executor->pending[i].end);
    }
    if (backend) close_lanes(executor);
    arena_free(&executor->arena);
    *executor = (Executor){0};
}

/* ---- running */

/* One instruction, with its name on the board while the host is in it. Behind a device that is the time to
 * enqueue it. */
static Status run_one(Executor *executor, int number, const KernelCall *call, bool waits, Error *error) {
    const Backend *backend = executor->memory->backend;
    Section section = call->node->section;
    ActivityEntry entry = {.kind = ACTIVITY_INSTRUCTION,
                           .name = call->node->op->name,
                           .place = section_name(section),
                           .number = number};
    activity_begin(executor->activity, ACTIVITY_HOST, &entry);
    Status status = executor->instruction[number].kernel(call, error);
    if (status == STATUS_OK && waits) status = backend->synchronize(backend->context, error);
    activity_end(executor->activity, ACTIVITY_HOST);
    if (status == STATUS_OK) return STATUS_OK;
    return error_prefix(error, "instruction %d (%s, %s): ", number, entry.name, entry.place);
}

/* Let the lane that is set wait for nodes of others; joined: the last that lane 0 has waited for on each,
 * from the beginning those before this run of nodes, whose end has waited for all. */
static Status join_lanes(Executor *executor, const LaneStep *step, int *joined, Error *error) {
    const Backend *backend = executor->memory->backend;
    for (int lane = 1; lane < LANES_MOST; lane++) {
        int node = step->joins[lane];
        if (node < 0 || node <= joined[0]) continue;
        TRY(backend->event_wait(backend->context, executor->events[node].end, error));
        if (!step->lane && joined[lane] < node) joined[lane] = node;
    }
    return STATUS_OK;
}

/* The instruction on its lane, from where the first one is now. */
static Status run_beside(Executor *executor, int number, const KernelCall *call, int *joined, Error *error) {
    const Backend *backend = executor->memory->backend;
    const BackendSpan *events = &executor->events[number];
    const LaneStep *step = &executor->program->lane[number];
    TRY(backend->event_record(backend->context, events->begin, error));
    backend->set_lane(backend->context, step->lane);
    if (backend->event_wait(backend->context, events->begin, error) == STATUS_OK &&
        join_lanes(executor, step, joined, error) == STATUS_OK &&
        run_one(executor, number, call, false, error) == STATUS_OK)
        backend->event_record(backend->context, events->end, error);
    backend->set_lane(backend->context, 0);
    return error->status;
}

/* Nodes on several lanes: nothing is waited for but what has to be, and in the end everything. */
static Status run_on_lanes(Executor *executor, const ExecutorPart *part, ProgramPart nodes, MicroBatch micro,
                           Error *error) {
    const Program *program = executor->program;
    const Backend *backend = executor->memory->backend;
    /* Of those beside, on each lane: the last that was begun, and the last that was waited for. Lane 0's
     * stands for all that was before. */
    int last[LANES_MOST], joined[LANES_MOST];
    for (int lane = 0; lane < LANES_MOST; lane++) last[lane] = joined[lane] = -1;
    joined[0] = nodes.first - 1;
    for (int i = nodes.first; i < nodes.first + nodes.count; i++) {
        const LaneStep *step = &program->lane[i];
        if (!executor_runs_in(program->graph->node[i], micro)) continue;
        const KernelCall *call = executor_call_of(executor, part, i, micro);
        if (step->lane) {
            TRY(run_beside(executor, i, call, joined, error));
            last[step->lane] = i;
            continue;
        }
        TRY(join_lanes(executor, step, joined, error));
        TRY(run_one(executor, i, call, false, error));
    }
    for (int lane = 1; lane < LANES_MOST; lane++) {
        if (last[lane] > joined[lane])
            TRY(backend->event_wait(backend->context, executor->events[last[lane]].end, error));
    }
    return STATUS_OK;
}

/* The host's clock tells an instruction's time where the kernel returns when it is done, or is waited for. */
static Status run_instructions(Executor *executor, const ExecutorPart *part, ProgramPart nodes,
                               MicroBatch micro, bool is_timed, bool is_waited_for, Error *error) {
    const Program *program = executor->program;
    const Backend *backend = executor->memory->backend;
    bool waits = is_waited_for && backend->synchronize;
    if (executor->events && !is_timed && !waits) return run_on_lanes(executor, part, nodes, micro, error);
    uint64_t before = timer_now_ns();
    for (int i = nodes.first; i < nodes.first + nodes.count; i++) {
        Instruction *instruction = &executor->instruction[i];
        const Node *node = program->graph->node[i];
        if (!executor_runs_in(node, micro)) continue;
        TRY(run_one(executor, i, executor_call_of(executor, part, i, micro), waits, error));
        if (!is_timed) continue;
        uint64_t after = timer_now_ns();
        instruction->n_runs++;
        instruction->elapsed_ns += after - before;
        executor->phase_ns[node->phase] += after - before;
        before = after;
    }
    return STATUS_OK;
}

/* Nodes so many times as one capture. */
static Status capture_runs(Executor *executor, const ExecutorPart *part, ProgramPart nodes, MicroBatch micro,
                           int n_times, void **capture, Error *error) {
    const Backend *backend = executor->memory->backend;
    TRY(backend->capture_begin(backend->context, error));
    for (int i = 0; i < n_times; i++) {
        if (run_instructions(executor, part, nodes, micro, false, false, error) != STATUS_OK) {
            backend->capture_abandon(backend->context);
            return error->status;
        }
    }
    return backend->capture_end(backend->context, capture, error);
}

/* What a device behind the host is given between two events of its own, for a trace; give does it. */
typedef struct {
    Executor *executor;
    const ExecutorPart *part;
    ProgramPart nodes;
    MicroBatch micro;
    void *capture;
    bool is_waited_for;
} Given;

static Status with_times(const Given *given, const ActivityEntry *entry,
                         Status (*give)(const Given *given, Error *error), Error *error) {
    const DeviceMemory *memory = given->executor->memory;
    const Backend *backend = memory->backend;
    const BackendSpan *span = device_times_next(memory->times, DEVICE_TRACK_COMPUTE, entry);
    if (span) TRY(backend->event_record(backend->context, span->begin, error));
    TRY(give(given, error));
    if (span) TRY(backend->event_record(backend->context, span->end, error));
    device_times_end(memory->times, span);
    return STATUS_OK;
}

static Status give_capture(const Given *given, Error *error) {
    const Backend *backend = given->executor->memory->backend;
    return backend->replay(backend->context, given->capture, error);
}

static Status replay(Executor *executor, Section section, void *capture, Error *error) {
    Given given = {.executor = executor, .capture = capture};
    ActivityEntry entry = {
        .kind = ACTIVITY_INSTRUCTION, .name = "replay", .place = section_name(section), .number = -1};
    activity_begin(executor->activity, ACTIVITY_HOST, &entry);
    Status status = with_times(&given, &entry, give_capture, error);
    activity_end(executor->activity, ACTIVITY_HOST);
    return status;
}

static Status give_instructions(const Given *given, Error *error) {
    return run_instructions(given->executor, given->part, given->nodes, given->micro, false,
                            given->is_waited_for, error);
}

/* Does one of the nodes run beside the others? */
static bool has_lanes(const Executor *executor, ProgramPart nodes) {
    for (int i = nodes.first; executor->events && i < nodes.first + nodes.count; i++)
        if (executor->program->lane[i].lane) return true;
    return false;
}

/* One by one while somebody wants their times; starts of moves, and waits for what is there, are next to
 * nothing. Nodes on several lanes are one. */
static Status run_between(Executor *executor, const ExecutorPart *part, ProgramPart nodes, MicroBatch micro,
                          bool is_waited_for, Error *error) {
    Given given = {executor, part, nodes, micro, NULL, is_waited_for};
    bool is_watched = device_times_are_wanted(executor->memory->times);
    if (!is_watched) return give_instructions(&given, error);
    bool are_apart = is_waited_for || !has_lanes(executor, nodes);
    for (int i = nodes.first; i < nodes.first + nodes.count; i++) {
        const Node *node = executor->program->graph->node[i];
        if (are_apart && !executor_runs_in(node, micro)) continue;
        ActivityEntry entry = {.kind = node->op->is_portable && node->is_passed_by ? ACTIVITY_WAIT
                                                                                   : ACTIVITY_INSTRUCTION,
                               .name = are_apart ? node->op->name : "instructions",
                               .place = section_name(node->section),
                               .number = are_apart ? i : -1};
        if (are_apart) given.nodes = (ProgramPart){i, 1};
        TRY(with_times(&given, &entry, give_instructions, error));
        if (!are_apart) break;
    }
    return STATUS_OK;
}

/* The first time: waited for, so that a mistake has a name from the beginning. Micro-batches in other frames
 * run the same kernels. */
static bool is_first_run(ExecutorPart *part, MicroBatch micro) {
    bool is_first = !part->was_run[micro.is_last];
    part->was_run[micro.is_last] = true;
    executor_capture_of(part, micro)->was_run = true;
    return is_first;
}

/* Run number i of those that are captured, if it is not there yet. */
static Status make_capture(Executor *executor, const ExecutorPart *part, MicroBatch micro, int i,
                           Error *error) {
    void **capture = &executor_capture_of(part, micro)->run[i];
    if (*capture) return STATUS_OK;
    return capture_runs(executor, part, part->captured[micro.is_last].run[i], micro, 1, capture, error);
}

/* What is captured, and one by one what is not, before it, between and behind. */
static Status run_captured(Executor *executor, Section section, MicroBatch micro, Error *error) {
    ExecutorPart *part = executor_part_of(executor, section, micro.chunk);
    const SectionCapture *slot = executor_capture_of(part, micro);
    const CapturedRuns *captured = &part->captured[micro.is_last];
    int at = part->nodes.first, end = at + part->nodes.count;
    if (!slot->was_run || !captured->n)
        return run_between(executor, part, part->nodes, micro, is_first_run(part, micro), error);
    for (int i = 0; i < captured->n; i++) {
        ProgramPart run = captured->run[i], before = {at, run.first - at};
        if (before.count) TRY(run_between(executor, part, before, micro, false, error));
        TRY(make_capture(executor, part, micro, i, error));
        TRY(replay(executor, section, slot->run[i], error));
        at = run.first + run.count;
    }
    ProgramPart behind = {at, end - at};
    return behind.count ? run_between(executor, part, behind, micro, false, error) : STATUS_OK;
}

/* Several at a time, once it was run; the rest one by one. */
static Status run_often(Executor *executor, Section section, MicroBatch micro, int n_times, Error *error) {
    ExecutorPart *part = executor_part_of(executor, section, micro.chunk);
    const CapturedRuns *captured = &part->captured[micro.is_last];
    bool is_whole = captured->n && captured->run[0].count == part->nodes.count;
    for (int n; n_times > 0; n_times -= n) {
        n = 1;
        if (n_times < EXECUTOR_REPEATS || !is_whole || !executor_capture_of(part, micro)->was_run) {
            TRY(run_captured(executor, section, micro, error));
            continue;
        }
        n = EXECUTOR_REPEATS;
        if (!part->repeated)
            TRY(capture_runs(executor, part, captured->run[0], micro, n, &part->repeated, error));
        TRY(replay(executor, section, part->repeated, error));
    }
    return STATUS_OK;
}

/* ---- a device that runs behind the host */

Status executor_found_late(const Executor *executor, Status status, Error *error) {
    const Backend *backend = executor->memory->backend;
    if (status == STATUS_OK || !backend->blocking_wish || backend->is_blocking) return status;
    return error_prefix(error,
                        "an instruction of program '%s' (%s and it is named): ", executor->program->name,
                        backend->blocking_wish);
}

/* Adds up the times of the first `n` sections under way, which are waited for. */
static Status collect_pending(Executor *executor, int n, Error *error) {
    const Backend *backend = executor->memory->backend;
    SectionTime *pending = executor->pending;
    for (int i = 0; i < n; i++) {
        float milliseconds;
        TRY(executor_found_late(
            executor,
            backend->elapsed_ms(backend->context, pending[i].begin, pending[i].end, &milliseconds, error),
            error));
        executor->phase_ns[section_phase(pending[i].section)] += (uint64_t)((double)milliseconds * 1e6);
    }
    executor->n_pending -= n;
    for (int i = 0; i < executor->n_pending && n; i++) { /* the others move up; no event is lost */
        SectionTime done = pending[i];
        pending[i] = pending[i + n];
        pending[i + n] = done;
    }
    return STATUS_OK;
}

static Status run_behind(Executor *executor, Section section, MicroBatch micro, int n_times, Error *error) {
    const Backend *backend = executor->memory->backend;
    if (executor->n_pending == EXECUTOR_MAX_PENDING) TRY(collect_pending(executor, 1, error));
    SectionTime *time = &executor->pending[executor->n_pending];
    time->section = section;
    if (!time->begin) TRY(backend->event_new(backend->context, &time->begin, error));
    if (!time->end) TRY(backend->event_new(backend->context, &time->end, error));
    TRY(backend->event_record(backend->context, time->begin, error));
    TRY(n_times == 1 ? run_captured(executor, section, micro, error)
                     : run_often(executor, section, micro, n_times, error));
    TRY(backend->event_record(backend->context, time->end, error));
    executor->n_pending++;
    executor->n_started++;
    return STATUS_OK;
}

static Status check_frame(const Executor *executor, int chunk, int frame, Error *error) {
    const MemoryPlan *plan = &executor->program->plan;
    bool is_there = chunk >= 0 && chunk < plan->n_chunks && frame >= 0 && frame < plan->chunk[chunk].n_frames;
    if (is_there) return STATUS_OK;
    return error_failed(error, "program '%s' has no frame %d of chunk %d", executor->program->name, frame,
                        chunk);
}

/* Those of lower chunks are in use: they wait for their backward. */
static Status check_frames(const Executor *executor, Section section, MicroBatch micro, Error *error) {
    TRY(check_frame(executor, micro.chunk, micro.frame, error));
    if (!executor_part_of(executor, section, micro.chunk)->is_across) return STATUS_OK;
    if (!micro.frames)
        return error_failed(error,
                            "chunk %d of program '%s' shares memory with another, and its frame is not said",
                            micro.chunk, executor->program->name);
    for (int chunk = 0; chunk < micro.chunk; chunk++)
        TRY(check_frame(executor, chunk, micro.frames[chunk], error));
    return STATUS_OK;
}

Status executor_run(Executor *executor, Section section, MicroBatch micro, Error *error) {
    const Backend *backend = executor->memory->backend;
    if (section_is_of_step(section)) micro.chunk = micro.frame = 0;
    TRY(check_frames(executor, section, micro, error));
    if (backend->event_new && !executor->times_instructions)
        return run_behind(executor, section, micro, 1, error);
    const ExecutorPart *part = executor_part_of(executor, section, micro.chunk);
    TRY(run_instructions(executor, part, part->nodes, micro, true, true, error));
    return backend->synchronize ? backend->synchronize(backend->context, error) : STATUS_OK;
}

/* A node that talks to other ranks by itself, out of step with them: a message. Collectives that a device
 * runs are what every rank of theirs does at the same place. */
static bool is_message(const Node *node) {
    return node->op->is_portable && !(node->op->is_capturable && node->op->is_capturable(node));
}

Status executor_rehearse(Executor *executor, Section section, MicroBatch micro, Error *error) {
    const Backend *backend = executor->memory->backend;
    if (!backend->capture_begin || executor->times_instructions) return STATUS_OK;
    if (section_is_of_step(section)) micro.chunk = micro.frame = 0;
    TRY(check_frames(executor, section, micro, error));
    ExecutorPart *part = executor_part_of(executor, section, micro.chunk);
    if (executor_capture_of(part, micro)->was_run) return STATUS_OK;
    bool waits = is_first_run(part, micro) && backend->synchronize;
    for (int i = part->nodes.first; i < part->nodes.first + part->nodes.count; i++) {
        const Node *node = executor->program->graph->node[i];
        if (!executor_runs_in(node, micro) || is_message(node)) continue;
        TRY(run_one(executor, i, executor_call_of(executor, part, i, micro), waits, error));
    }
    for (int i = 0; i < part->captured[micro.is_last].n; i++)
        TRY(make_capture(executor, part, micro, i, error));
    return backend->synchronize ? backend->synchronize(backend->context, error) : STATUS_OK;
}

Status executor_move_version(Executor *executor, const Node *copy, int from, int to, Error *error) {
    const Backend *backend = executor->memory->backend;
    KernelCall call = executor_make_call(executor, copy, (MicroBatch){.version = to});
    for (int i = 0; i < copy->n_inputs; i++)
        call.in[i] = executor_address_for(executor, copy->input[i], 0, (MicroBatch){.version = from});
    return backend_kernel(backend, copy)(&call, error);
}

Status executor_repeat(Executor *executor, Section section, int n_times, Error *error) {
    const Backend *backend = executor->memory->backend;
    if (backend->event_new && !executor->times_instructions)
        return run_behind(executor, section, MICRO_BATCH_ONLY, n_times, error);
    for (int i = 0; i < n_times; i++) TRY(executor_run(executor, section, MICRO_BATCH_ONLY, error));
    return STATUS_OK;
}

Status executor_phases(Executor *executor, int64_t n_started, uint64_t *phase_ns, Error *error) {
    int64_t n = n_started - (executor->n_started - executor->n_pending); /* of those that are under way */
    if (n > 0) TRY(collect_pending(executor, n < executor->n_pending ? (int)n : executor->n_pending, error));
    memcpy(phase_ns, executor->phase_ns, sizeof executor->phase_ns);
    return STATUS_OK;
}

const KernelCall *executor_call(const Executor *executor, int number) {
    const Node *node = executor->program->graph->node[number];
    return executor_prepared_call(executor_part_of(executor, node->section, node->chunk), number,
                                  MICRO_BATCH_ONLY);
}

void *executor_address(const Executor *executor, const Tensor *tensor) {
    return executor_address_in(executor, tensor, 0);
}
