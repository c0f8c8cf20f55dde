/* Everything that could be decided before the first step was: a run is a walk over an array of function
 * pointers with ready-made arguments. The clock is read once an instruction, about 25 ns, so timing is always
 * on. */
#include "graph/executor.h"

#include "base/system/timer.h"

#include <string.h>

void *executor_address_in(const Executor *executor, const Tensor *tensor, int frame) {
    if (!tensor) return NULL;
    Place place = tensor_root((Tensor *)tensor)->place;
    char *base = executor->memory->base[place];
    return base ? base + (size_t)frame * executor->frame_bytes[place] + tensor->offset : NULL;
}

static KernelCall make_call(const Executor *executor, const Node *node, int frame, bool is_first) {
    const Backend *backend = executor->memory->backend;
    KernelCall call = {.node = node, .n_threads = backend->n_threads, .context = backend->context};
    for (int i = 0; i < node->n_inputs; i++)
        call.in[i] = executor_address_in(executor, node->input[i], frame);
    for (int i = 0; i < node->n_outputs; i++) {
        call.out[i] = executor_address_in(executor, node->output[i], frame);
        call.add[i] = node->write[i] == WRITE_ADD || (node->write[i] == WRITE_ADD_AFTER_FIRST && !is_first);
    }
    call.scratch = executor_address_in(executor, node->scratch, frame);
    return call;
}

/* Of node `number` as this micro-batch runs it. */
static KernelCall *call_of(const Executor *executor, int number, MicroBatch micro) {
    int n_nodes = executor->program->graph->n_nodes;
    return &executor->calls[((size_t)micro.frame * 2 + micro.is_first) * (size_t)n_nodes + (size_t)number];
}

static SectionCapture *capture_of(const Executor *executor, Section section, MicroBatch micro) {
    return &executor->capture[((size_t)micro.frame * N_SECTIONS + section) * 4 + micro.is_first +
                              2 * micro.is_last];
}

static void make_calls(Executor *executor) {
    const Program *program = executor->program;
    int n_nodes = program->graph->n_nodes, n_frames = program->plan.n_frames;
    executor->instruction = ARENA_ARRAY(&executor->arena, Instruction, n_nodes + 1);
    executor->calls = ARENA_ARRAY(&executor->arena, KernelCall, (int64_t)n_frames * 2 * n_nodes + 1);
    executor->capture = ARENA_ARRAY(&executor->arena, SectionCapture, n_frames * N_SECTIONS * 4);
    for (int place = 0; place < N_PLACES; place++)
        executor->frame_bytes[place] = place_is_framed((Place)place) ? program->plan.bytes[place] : 0;
    for (int i = 0; i < n_nodes; i++) {
        const Node *node = program->graph->node[i];
        executor->instruction[i].kernel = backend_kernel(executor->memory->backend, node);
        for (int frame = 0; frame < n_frames; frame++) {
            for (int is_first = 0; is_first < 2; is_first++)
                *call_of(executor, i, (MicroBatch){.is_first = is_first, .frame = frame}) =
                    make_call(executor, node, frame, is_first);
        }
    }
}

static Status open_lanes(Executor *executor, Error *error) {
    const Program *program = executor->program;
    const Backend *backend = executor->memory->backend;
    if (!program->lane || !backend->set_lane) return STATUS_OK;
    executor->events = ARENA_ARRAY(&executor->arena, LaneEvents, program->graph->n_nodes + 1);
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
    make_calls(executor);
    return open_lanes(executor, error);
}

void executor_close(Executor *executor) {
    const Backend *backend = executor->memory ? executor->memory->backend : NULL;
    bool captures = backend && backend->capture_free && executor->capture;
    int n_captures = captures ? executor->program->plan.n_frames * N_SECTIONS * 4 : 0;
    for (int i = 0; i < n_captures; i++)
        backend->capture_free(backend->context, executor->capture[i].capture);
    for (int section = 0; captures && section < N_SECTIONS; section++)
        backend->capture_free(backend->context, executor->repeated[section]);
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

/* Let the lane that is set wait for nodes of others; joined: the last that lane 0 has waited for on each. */
static Status join_lanes(Executor *executor, const LaneStep *step, int *joined, Error *error) {
    const Backend *backend = executor->memory->backend;
    for (int lane = 1; lane < LANES_MOST; lane++) {
        int node = step->joins[lane];
        if (node < 0) continue;
        TRY(backend->event_wait(backend->context, executor->events[node].end, error));
        if (!step->lane && joined[lane] < node) joined[lane] = node;
    }
    return STATUS_OK;
}

/* The instruction on its lane, from where the first one is now. */
static Status run_beside(Executor *executor, int number, const KernelCall *call, int *joined, Error *error) {
    const Backend *backend = executor->memory->backend;
    const LaneEvents *events = &executor->events[number];
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

/* A section on several lanes: nothing is waited for but what has to be, and in the end everything. */
static Status run_on_lanes(Executor *executor, Section section, MicroBatch micro, Error *error) {
    const Program *program = executor->program;
    const Backend *backend = executor->memory->backend;
    /* Of those beside, on each lane: the last that was begun, and the last that was waited for. */
    int last[LANES_MOST], joined[LANES_MOST];
    for (int lane = 0; lane < LANES_MOST; lane++) last[lane] = joined[lane] = -1;
    for (int i = program->first[section]; i < program->first[section] + program->count[section]; i++) {
        const KernelCall *call = call_of(executor, i, micro);
        const LaneStep *step = &program->lane[i];
        if (call->node->is_last_only && !micro.is_last) continue;
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
static Status run_instructions(Executor *executor, Section section, MicroBatch micro, bool is_timed,
                               bool is_waited_for, Error *error) {
    const Program *program = executor->program;
    const Backend *backend = executor->memory->backend;
    bool waits = is_waited_for && backend->synchronize;
    if (executor->events && !is_timed && !waits) return run_on_lanes(executor, section, micro, error);
    uint64_t before = timer_now_ns();
    for (int i = program->first[section]; i < program->first[section] + program->count[section]; i++) {
        Instruction *instruction = &executor->instruction[i];
        const KernelCall *call = call_of(executor, i, micro);
        if (call->node->is_last_only && !micro.is_last) continue;
        TRY(run_one(executor, i, call, waits, error));
        if (!is_timed) continue;
        uint64_t after = timer_now_ns();
        instruction->n_runs++;
        instruction->elapsed_ns += after - before;
        executor->phase_ns[call->node->phase] += after - before;
        before = after;
    }
    return STATUS_OK;
}

/* What the host has to do itself cannot be part of a capture. */
static bool can_capture(const Executor *executor, Section section) {
    const Program *program = executor->program;
    if (!executor->memory->backend->capture_begin) return false;
    for (int i = program->first[section]; i < program->first[section] + program->count[section]; i++) {
        const Node *node = program->graph->node[i];
        if (node->op->is_portable && !(node->op->is_capturable && node->op->is_capturable(node)))
            return false;
    }
    return true;
}

/* The section so many times as one capture. */
static Status capture_runs(Executor *executor, Section section, MicroBatch micro, int n_times, void **capture,
                           Error *error) {
    const Backend *backend = executor->memory->backend;
    TRY(backend->capture_begin(backend->context, error));
    for (int i = 0; i < n_times; i++) {
        if (run_instructions(executor, section, micro, false, false, error) != STATUS_OK) {
            backend->capture_abandon(backend->context);
            return error->status;
        }
    }
    return backend->capture_end(backend->context, capture, error);
}

static Status replay(Executor *executor, Section section, void *capture, Error *error) {
    const Backend *backend = executor->memory->backend;
    ActivityEntry entry = {
        .kind = ACTIVITY_INSTRUCTION, .name = "replay", .place = section_name(section), .number = -1};
    activity_begin(executor->activity, ACTIVITY_HOST, &entry);
    Status status = backend->replay(backend->context, capture, error);
    activity_end(executor->activity, ACTIVITY_HOST);
    return status;
}

static Status run_captured(Executor *executor, Section section, MicroBatch micro, Error *error) {
    SectionCapture *slot = capture_of(executor, section, micro);
    if (!slot->was_run || !can_capture(executor, section)) {
        bool is_first = !slot->was_run; /* waited for, so that a mistake has a name from the beginning */
        slot->was_run = true;
        return run_instructions(executor, section, micro, false, is_first, error);
    }
    if (!slot->capture) TRY(capture_runs(executor, section, micro, 1, &slot->capture, error));
    return replay(executor, section, slot->capture, error);
}

/* Several at a time, once it was run; the rest one by one. */
static Status run_often(Executor *executor, Section section, MicroBatch micro, int n_times, Error *error) {
    void **repeated = &executor->repeated[section];
    for (int n; n_times > 0; n_times -= n) {
        n = 1;
        if (n_times < EXECUTOR_REPEATS || !can_capture(executor, section) ||
            !capture_of(executor, section, micro)->was_run) {
            TRY(run_captured(executor, section, micro, error));
            continue;
        }
        n = EXECUTOR_REPEATS;
        if (!*repeated) TRY(capture_runs(executor, section, micro, n, repeated, error));
        TRY(replay(executor, section, *repeated, error));
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
        executor->phase_ns[pending[i].section] += (uint64_t)((double)milliseconds * 1e6);
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

Status executor_run(Executor *executor, Section section, MicroBatch micro, Error *error) {
    const Backend *backend = executor->memory->backend;
    if (backend->event_new && !executor->times_instructions)
        return run_behind(executor, section, micro, 1, error);
    TRY(run_instructions(executor, section, micro, true, true, error));
    return backend->synchronize ? backend->synchronize(backend->context, error) : STATUS_OK;
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
    return call_of(executor, number, MICRO_BATCH_ONLY);
}

void *executor_address(const Executor *executor, const Tensor *tensor) {
    return executor_address_in(executor, tensor, 0);
}
