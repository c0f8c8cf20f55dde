/* Everything that could be decided before the first step was: a run is a walk over an array of function
 * pointers with ready-made arguments. The clock is read once an instruction, about 25 ns, so timing is always
 * on. */
#include "graph/executor.h"

#include "base/half.h"
#include "base/system/timer.h"
#include "base/text/format.h"

#include <stdlib.h>
#include <string.h>

void device_require(DeviceMemory *memory, const MemoryPlan *plan) {
    for (int place = 0; place < N_PLACES; place++) {
        size_t n_bytes = plan_place_bytes(plan, (Place)place);
        if (memory->bytes[place] < n_bytes) memory->bytes[place] = n_bytes;
        memory->kind[place] = plan->kind[place];
    }
}

size_t device_required_bytes(const DeviceMemory *memory) {
    size_t total = 0;
    for (int place = 0; place < N_PLACES; place++)
        total += memory->is_borrowed[place] ? 0 : memory->bytes[place];
    return total;
}

Status device_open(DeviceMemory *memory, const Backend *backend, Error *error) {
    memory->backend = backend;
    for (int place = 0; place < N_PLACES; place++) {
        if (!memory->bytes[place] || memory->is_borrowed[place]) continue;
        if (memory->kind[place] != backend->traits.memory) {
            device_close(memory);
            return error_failed(error, "%s was planned in %s memory, and the %s backend takes %s memory only",
                                place_name((Place)place), memory_kind_name(memory->kind[place]),
                                backend->name, memory_kind_name(backend->traits.memory));
        }
        Status status = backend->allocate(backend->context, memory->bytes[place], place_name((Place)place),
                                          &memory->base[place], error);
        if (status != STATUS_OK) {
            device_close(memory);
            return status;
        }
        memory->allocated_bytes += memory->bytes[place];
    }
    return STATUS_OK;
}

void device_close(DeviceMemory *memory) {
    for (int place = 0; place < N_PLACES && memory->backend; place++) {
        if (memory->base[place] && !memory->is_borrowed[place]) {
            memory->backend->release(memory->backend->context, memory->base[place], memory->bytes[place]);
        }
        memory->base[place] = NULL;
    }
    memory->allocated_bytes = 0;
}

Status device_borrow(DeviceMemory *memory, Place place, const DeviceMemory *owner, Error *error) {
    if (owner->bytes[place] < memory->bytes[place]) {
        return error_failed(error, "%zu bytes of %s were borrowed where there are %zu", memory->bytes[place],
                            place_name(place), owner->bytes[place]);
    }
    memory->bytes[place] = owner->bytes[place];
    memory->base[place] = owner->base[place];
    memory->is_borrowed[place] = true;
    return STATUS_OK;
}

static void *address_in(const Executor *executor, Tensor *tensor, int frame) {
    if (!tensor) return NULL;
    Place place = tensor_root(tensor)->place;
    char *base = executor->memory->base[place];
    return base ? base + (size_t)frame * executor->frame_bytes[place] + tensor->offset : NULL;
}

static KernelCall make_call(const Executor *executor, const Node *node, int frame, bool is_first) {
    const Backend *backend = executor->memory->backend;
    KernelCall call = {.node = node, .n_threads = backend->n_threads, .context = backend->context};
    for (int i = 0; i < node->n_inputs; i++) call.in[i] = address_in(executor, node->input[i], frame);
    for (int i = 0; i < node->n_outputs; i++) {
        call.out[i] = address_in(executor, node->output[i], frame);
        call.add[i] = node->write[i] == WRITE_ADD || (node->write[i] == WRITE_ADD_AFTER_FIRST && !is_first);
    }
    call.scratch = address_in(executor, node->scratch, frame);
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
        if (!program->lane[i].is_beside) continue;
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

/* The instruction on the second lane, from where the first one is now. */
static Status run_beside(Executor *executor, int number, const KernelCall *call, Error *error) {
    const Backend *backend = executor->memory->backend;
    const LaneEvents *events = &executor->events[number];
    TRY(backend->event_record(backend->context, events->begin, error));
    backend->set_lane(backend->context, 1);
    if (backend->event_wait(backend->context, events->begin, error) == STATUS_OK &&
        run_one(executor, number, call, false, error) == STATUS_OK)
        backend->event_record(backend->context, events->end, error);
    backend->set_lane(backend->context, 0);
    return error->status;
}

/* A section on two lanes: nothing is waited for but what has to be, and in the end everything. */
static Status run_on_lanes(Executor *executor, Section section, MicroBatch micro, Error *error) {
    const Program *program = executor->program;
    const Backend *backend = executor->memory->backend;
    int last = -1,
        joined = -1; /* of those beside: the last that was begun, and the last that was waited for */
    for (int i = program->first[section]; i < program->first[section] + program->count[section]; i++) {
        const KernelCall *call = call_of(executor, i, micro);
        const LaneStep *step = &program->lane[i];
        if (call->node->is_last_only && !micro.is_last) continue;
        if (step->is_beside) {
            TRY(run_beside(executor, i, call, error));
            last = i;
            continue;
        }
        if (step->joins >= 0) {
            TRY(backend->event_wait(backend->context, executor->events[step->joins].end, error));
            if (joined < step->joins) joined = step->joins;
        }
        TRY(run_one(executor, i, call, false, error));
    }
    if (last <= joined) return STATUS_OK;
    return backend->event_wait(backend->context, executor->events[last].end, error);
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

/* What fails behind the host is found where the host waits; which instruction it was, the device does not
 * say. */
static Status found_late(const Executor *executor, Status status, Error *error) {
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
        TRY(found_late(
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
    return address_in(executor, (Tensor *)tensor, 0);
}

Status executor_upload_input(Executor *executor, const Tensor *tensor, int frame, const void *host,
                             Error *error) {
    const Backend *backend = executor->memory->backend;
    void *to = address_in(executor, (Tensor *)tensor, frame);
    executor->memory->n_input_writes++;
    return found_late(executor, backend->upload(backend->context, to, host, tensor_bytes(tensor), error),
                      error);
}

Status executor_upload(Executor *executor, const Tensor *tensor, const void *host, Error *error) {
    return executor_upload_part(executor, tensor, 0, tensor_bytes(tensor), host, error);
}

Status executor_download(Executor *executor, const Tensor *tensor, void *host, Error *error) {
    ActivityEntry entry = {.kind = ACTIVITY_WAIT, .name = "wait for the device", .number = -1};
    bool is_behind = executor->memory->backend->event_new; /* elsewhere it is a copy */
    Activity *activity = is_behind ? executor->activity : NULL;
    activity_begin(activity, ACTIVITY_HOST, &entry);
    Status status = executor_download_part(executor, tensor, 0, tensor_bytes(tensor), host, error);
    activity_end(activity, ACTIVITY_HOST);
    return status;
}

bool executor_sends(const Executor *executor) {
    return executor->memory->backend->send_result != NULL;
}

Status executor_send(Executor *executor, const Tensor *tensor, int place, Error *error) {
    const Backend *backend = executor->memory->backend;
    return backend->send_result(backend->context, executor_address(executor, tensor), tensor_bytes(tensor),
                                place, error);
}

Status executor_receive(Executor *executor, const Tensor *tensor, int place, void *host, Error *error) {
    const Backend *backend = executor->memory->backend;
    ActivityEntry entry = {.kind = ACTIVITY_WAIT, .name = "wait for the device", .number = -1};
    activity_begin(executor->activity, ACTIVITY_HOST, &entry);
    Status status = backend->receive_result(backend->context, host, tensor_bytes(tensor), place, error);
    activity_end(executor->activity, ACTIVITY_HOST);
    return found_late(executor, status, error);
}

Status executor_upload_part(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                            const void *host, Error *error) {
    const Backend *backend = executor->memory->backend;
    char *to = executor_address(executor, tensor);
    if (to) to += first_byte; /* there is none where nothing is computed */
    executor->memory->n_input_writes += tensor->place == PLACE_INPUT;
    return found_late(executor, backend->upload(backend->context, to, host, n_bytes, error), error);
}

Status executor_download_part(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                              void *host, Error *error) {
    const Backend *backend = executor->memory->backend;
    const char *from = executor_address(executor, tensor);
    if (from) from += first_byte; /* there is none where nothing is computed */
    return found_late(executor, backend->download(backend->context, host, from, n_bytes, error), error);
}

enum { PIECE = 1 << 15 }; /* elements that are converted at a time */

Status executor_upload_f32(Executor *executor, const Tensor *tensor, int64_t first, int64_t n,
                           const float *values, Error *error) {
    size_t size = dtype_info(tensor->dtype)->n_bytes;
    if (tensor->dtype == DTYPE_F32)
        return executor_upload_part(executor, tensor, (size_t)first * size, (size_t)n * size, values, error);
    uint16_t piece[PIECE];
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t count = n - done < PIECE ? n - done : PIECE;
        for (int64_t i = 0; i < count; i++)
            piece[i] = tensor->dtype == DTYPE_BF16 ? half_bf16_from_f32(values[done + i])
                                                   : half_f16_from_f32(values[done + i]);
        TRY(executor_upload_part(executor, tensor, (size_t)(first + done) * size, (size_t)count * size, piece,
                                 error));
    }
    return STATUS_OK;
}

Status executor_download_f32(Executor *executor, const Tensor *tensor, int64_t first, int64_t n,
                             float *values, Error *error) {
    size_t size = dtype_info(tensor->dtype)->n_bytes;
    if (tensor->dtype == DTYPE_F32)
        return executor_download_part(executor, tensor, (size_t)first * size, (size_t)n * size, values,
                                      error);
    uint16_t piece[PIECE];
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t count = n - done < PIECE ? n - done : PIECE;
        TRY(executor_download_part(executor, tensor, (size_t)(first + done) * size, (size_t)count * size,
                                   piece, error));
        for (int64_t i = 0; i < count; i++)
            values[done + i] =
                tensor->dtype == DTYPE_BF16 ? half_bf16_to_f32(piece[i]) : half_f16_to_f32(piece[i]);
    }
    return STATUS_OK;
}

void executor_reset_times(Executor *executor) {
    for (int i = 0; i < executor->program->graph->n_nodes; i++) {
        executor->instruction[i].n_runs = executor->instruction[i].elapsed_ns = 0;
    }
    memset(executor->phase_ns, 0, sizeof executor->phase_ns);
}

typedef struct {
    const Op *op;
    uint64_t n_runs, elapsed_ns;
    Cost cost;
} OpTime;

static int by_time(const void *a, const void *b) {
    const OpTime *x = a, *y = b;
    return x->elapsed_ns < y->elapsed_ns ? 1 : x->elapsed_ns > y->elapsed_ns ? -1 : 0;
}

static int collect_times(const Executor *executor, OpTime *times, uint64_t *total_ns) {
    int n_ops = 0;
    for (int i = 0; i < executor->program->graph->n_nodes; i++) {
        const Instruction *instruction = &executor->instruction[i];
        const Node *node = executor->program->graph->node[i];
        int k = 0;
        while (k < n_ops && times[k].op != node->op) k++;
        if (k == n_ops) times[n_ops++] = (OpTime){.op = node->op};
        Cost cost = op_cost(node);
        times[k].n_runs += instruction->n_runs;
        times[k].elapsed_ns += instruction->elapsed_ns;
        times[k].cost.flops += cost.flops * (double)instruction->n_runs;
        times[k].cost.bytes += cost.bytes * (double)instruction->n_runs;
        *total_ns += instruction->elapsed_ns;
    }
    qsort(times, (size_t)n_ops, sizeof *times, by_time);
    return n_ops;
}

void executor_print_times(const Executor *executor, FILE *stream) {
    Arena scratch = {0};
    OpTime *times = ARENA_ARRAY(&scratch, OpTime, executor->program->graph->n_nodes + 1);
    uint64_t total_ns = 0;
    int n_ops = collect_times(executor, times, &total_ns);
    fprintf(stream, "%-28s %8s %10s %7s %14s %12s\n", "operation", "runs", "time", "share", "arithmetic",
            "traffic");
    for (int i = 0; i < n_ops; i++) {
        double seconds = (double)times[i].elapsed_ns * 1e-9;
        if (!times[i].n_runs) continue;
        fprintf(stream, "%-28s %8llu %10s %5.1f %% %14s %12s\n", times[i].op->name,
                (unsigned long long)times[i].n_runs, format_duration(seconds).text,
                100.0 * (double)times[i].elapsed_ns / (double)(total_ns ? total_ns : 1),
                format_rate(times[i].cost.flops / seconds, "FLOP/s").text,
                format_rate(times[i].cost.bytes / seconds, "B/s").text);
    }
    arena_free(&scratch);
}
