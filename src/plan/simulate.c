/* One walk over the nodes of a part with a clock a lane; then one over the actions of a schedule. */
#include "plan/simulate.h"

#include "graph/plan.h"
#include "ops/move.h"
#include "parallel/comm_attributes.h"
#include "parallel/comm_ops.h"
#include "parallel/pipeline/rendezvous.h"
#include "plan/repeat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Communication nodes */

typedef struct {
    int kind;               /* as traffic.h counts; -1: it sends nothing */
    bool is_between_stages; /* a pipeline's: what it takes is the schedule's business */
    bool is_blocking;
    const PlannedGroup *group;
    double n_bytes; /* of the vector, or of what is sent */
} CommWork;

static bool is_channel(const Node *node) {
    return node->op == &OP_CHANNEL_RECEIVE || node->op == &OP_CHANNEL_RECEIVE_AHEAD ||
           node->op == &OP_CHANNEL_SEND || node->op == &OP_CHANNEL_SEND_WAIT;
}

static CommWork work_of(const Node *node) {
    CommWork work = {.kind = -1};
    const CommAttributes *attributes = node->attributes;
    if (node->phase != PHASE_COMMUNICATION || node->op == &OP_COMM_WAIT) return work;
    if (is_channel(node)) {
        work.is_between_stages = true;
        if (node->op != &OP_CHANNEL_SEND) return work;
    } else if (op_cost(node).bytes <= 0.0) return work;
    work.group = planned_group(attributes->comm);
    work.is_blocking = node->op == &OP_SCALAR_SUM || node->op == &OP_BROADCAST;
    work.kind = traffic_kind(node);
    if (work.kind == TRAFFIC_MESSAGES)
        work.n_bytes = node->n_inputs ? (double)tensor_bytes(node->input[0]) : 0.0;
    else if (work.kind == COMM_ALL_TO_ALL || work.kind == TRAFFIC_SHIFTS)
        work.n_bytes = op_cost(node).bytes / 2.0;
    else if (node->n_outputs) work.n_bytes = (double)tensor_bytes(node->output[0]);
    else work.n_bytes = (double)tensor_bytes(node->input[0]);
    return work;
}

/* Until it is done; *of_core: what it takes of that from a core that computes beside it. */
static double work_seconds(const Links *links, const CommWork *work, double *of_core) {
    GroupPlace place = links_place(links, work->group);
    *of_core = 0.0;
    if (work->kind < 0 || work->is_between_stages) return 0.0;
    if (work->kind == TRAFFIC_MESSAGES || work->kind == TRAFFIC_SHIFTS)
        return *of_core = links_message_seconds(links, work->n_bytes, &place);
    CommKind kind = work->kind == TRAFFIC_SCALARS ? COMM_ALL_REDUCE : (CommKind)work->kind;
    *of_core = links_work_seconds(links, kind, work->n_bytes, &place);
    return links_seconds(links, kind, work->n_bytes, &place);
}

double simulate_comm_seconds(const Links *links, const Node *node) {
    CommWork work = work_of(node);
    double of_core;
    return work_seconds(links, &work, &of_core);
}

/* ---- A part */

/* Moves out and in have links of their own. */
enum { MOST_COMMS = 16, LINK_OUT = N_LINKS, LINK_IN, N_ALL_LINKS };

typedef struct {
    const StepSimulator *simulator;
    double lane[LANES_MOST];
    double link[N_ALL_LINKS]; /* when the link is free */
    const Comm *comm[MOST_COMMS];
    double comm_free[MOST_COMMS];
    int n_comms;
    const void **flight; /* under way in this part, by what start and wait share, and until when */
    double *flight_end;
    int n_flights, n_looked_at; /* behind these none was looked at to see whether it is over */
    double *node_end;           /* of nodes on other lanes */
    double computed;            /* since all ranks of the host have met */
    double sent_at;             /* the last message to another stage; below 0: there is none */
    PartTime time;
    SimulatedNode *events;
    int n_events;
} PartClock;

static void note(PartClock *clock, const Node *node, double begin, double end, int lane) {
    if (clock->events && end > begin)
        clock->events[clock->n_events++] = (SimulatedNode){begin, end, node, lane};
}

/* The lane of a communicator; those beyond the last share it. */
static int comm_lane(PartClock *clock, const Comm *comm) {
    for (int i = 0; i < clock->n_comms; i++)
        if (clock->comm[i] == comm) return i;
    if (clock->n_comms == MOST_COMMS) return MOST_COMMS - 1;
    clock->comm[clock->n_comms] = comm;
    return clock->n_comms++;
}

/* All ranks of a host wait for each other. Where they are no multiple of its cores, and what they come from
 * was over before the system would have moved one of them to another core, those of the emptier core have
 * waited for the rest. As 3 ranks of 2 cores took with 0.2 to 16 ms in between (docs/LOG.md). */
static void meet(PartClock *clock, const PlannedGroup *group) {
    const double moves_after = 4e-3; /* seconds of a core: a turn or two */
    const StepSimulator *simulator = clock->simulator;
    if (!group || group->size < simulator->links->ranks_a_host) return;
    double of_core = clock->computed * simulator->speed->turns / moves_after;
    double lost = clock->computed * simulator->speed->uneven / (1.0 + of_core * of_core * of_core);
    clock->lane[0] += lost;
    clock->time.waited += lost;
    clock->computed = 0.0;
}

static void communicate(PartClock *clock, const Node *node, const CommWork *work) {
    const StepSimulator *simulator = clock->simulator;
    const CommAttributes *attributes = node->attributes;
    double of_core, seconds = work_seconds(simulator->links, work, &of_core);
    if (seconds <= 0.0) return;
    if (work->is_blocking) meet(clock, work->group);
    double now = clock->lane[0];
    GroupPlace place = links_place(simulator->links, work->group);
    int lane = comm_lane(clock, attributes->comm);
    LinkKind link = place_link(&place);
    double begin = fmax(now, fmax(clock->comm_free[lane], clock->link[link])), end = begin + seconds;
    clock->comm_free[lane] = clock->link[link] = end;
    clock->time.sent += seconds;
    note(clock, node, begin, end, LANES_MOST + lane);
    if (work->is_blocking) {
        clock->time.waited += end - now;
        clock->lane[0] = end;
        return;
    }
    if (!simulator->speed->overlaps) { /* whoever carries it takes the core from who computes */
        clock->time.waited += of_core;
        clock->lane[0] = now + of_core;
    }
    clock->flight[clock->n_flights] = attributes->flights;
    clock->flight_end[clock->n_flights++] = end;
}

/* To the host's memory or its disk, or back. */
static void move(PartClock *clock, const Node *node) {
    const RankSpeed *speed = clock->simulator->speed;
    bool is_file = place_is_file(node->input[0]->place) || place_is_file(node->output[0]->place);
    int link = node->op == &OP_FETCH ? LINK_IN : LINK_OUT;
    double begin = fmax(clock->lane[0], clock->link[link]);
    double end = begin + op_cost(node).bytes / (is_file ? speed->disk : speed->bus);
    clock->link[link] = end;
    clock->time.sent += end - begin;
    note(clock, node, begin, end, LANES_MOST + MOST_COMMS - 1);
    clock->flight[clock->n_flights] = node->output[0];
    clock->flight_end[clock->n_flights++] = end;
}

/* What is over keeps nobody waiting. Looked at each time that as many again have begun, so that the list is
 * as long as what is under way, not as the program. */
static void forget_flights(PartClock *clock) {
    int n = 0;
    if (clock->n_flights < 2 * clock->n_looked_at + 64) return;
    for (int i = 0; i < clock->n_flights; i++) {
        if (clock->flight_end[i] <= clock->lane[0]) continue;
        clock->flight[n] = clock->flight[i];
        clock->flight_end[n++] = clock->flight_end[i];
    }
    clock->n_flights = clock->n_looked_at = n;
}

static void wait_for(PartClock *clock, const void *flights) {
    forget_flights(clock);
    for (int i = clock->n_flights - 1; i >= 0; i--) {
        if (clock->flight[i] != flights) continue;
        double busy = clock->lane[0]; /* or another lane is */
        for (int lane = 1; lane < LANES_MOST; lane++) busy = fmax(busy, clock->lane[lane]);
        clock->time.waited += fmax(clock->flight_end[i] - busy, 0.0);
        clock->lane[0] = fmax(clock->lane[0], clock->flight_end[i]);
        return;
    }
}

static void compute(PartClock *clock, const Program *program, int index) {
    const Node *node = program->graph->node[index];
    const LaneStep *step = program->lane ? &program->lane[index] : NULL;
    int lane = step ? step->lane : 0;
    NodeTime time = rank_node_time(clock->simulator->speed, node);
    double begin = lane ? fmax(clock->lane[0], clock->lane[lane]) : clock->lane[0];
    for (int l = 1; step && l < LANES_MOST; l++)
        if (step->joins[l] >= 0) begin = fmax(begin, clock->node_end[step->joins[l]]);
    /* Lanes share one device: what the other has under way is in the way. */
    for (int l = 0; step && l < LANES_MOST; l++)
        if (l != lane) begin = fmax(begin, clock->lane[l]);
    double end = begin + time.seconds;
    clock->lane[lane] = end;
    clock->node_end[index] = end;
    clock->computed += time.seconds;
    clock->time.bound[time.bound] += time.seconds;
    note(clock, node, begin, end, lane);
}

static void run_part(PartClock *clock, const Program *program, ProgramPart part, bool is_last) {
    for (int i = part.first; i < part.first + part.count; i++) {
        const Node *node = program->graph->node[i];
        if (!node_runs_in(node, is_last)) continue;
        if (node->op == &OP_COMM_WAIT) {
            const CommAttributes *attributes = node->attributes;
            meet(clock, planned_group(attributes->comm));
            wait_for(clock, attributes->flights);
        }
        if (node->op == &OP_MOVE_WAIT) wait_for(clock, node->output[0]);
        if (node->op == &OP_OFFLOAD || node->op == &OP_FETCH) move(clock, node);
        if (node->op == &OP_COMM_WAIT || node->op == &OP_MOVE_WAIT) continue;
        CommWork work = work_of(node);
        if (node->op == &OP_CHANNEL_SEND) clock->sent_at = clock->lane[0];
        if (work.kind >= 0) communicate(clock, node, &work);
        else if (!node->op->is_portable) compute(clock, program, i);
    }
    for (int lane = 0; lane < LANES_MOST; lane++)
        clock->time.seconds = fmax(clock->time.seconds, clock->lane[lane]);
    if (clock->sent_at >= 0.0) clock->time.tail = clock->time.seconds - clock->sent_at;
    for (int link = 0; link < N_ALL_LINKS; link++)
        clock->time.left = fmax(clock->time.left, clock->link[link] - clock->time.seconds);
    clock->time.out = fmax(clock->link[LINK_OUT] - clock->time.seconds, 0.0);
}

/* `out`: moves to the host that the part before has left under way; what it brings back waits for them. */
static PartTime part_after(const StepSimulator *simulator, const Program *program, Section section, int chunk,
                           bool is_last, double out, SimulatedNode **events, int *n_events, Arena *arena) {
    ProgramPart part = program_part(program, section, chunk);
    Arena own = {0};
    PartClock clock = {.simulator = simulator, .sent_at = -1.0};
    clock.link[LINK_OUT] = clock.link[LINK_IN] = out;
    if (!part.count) {
        if (events) *n_events = 0;
        return clock.time;
    }
    clock.flight = ARENA_ARRAY(&own, const void *, part.count);
    clock.flight_end = ARENA_ARRAY(&own, double, part.count);
    clock.node_end = ARENA_ARRAY(&own, double, part.first + part.count);
    if (events) clock.events = ARENA_ARRAY(arena, SimulatedNode, part.count);
    run_part(&clock, program, part, is_last);
    if (events) {
        *events = clock.events;
        *n_events = clock.n_events;
    }
    arena_free(&own);
    return clock.time;
}

PartTime part_time(const StepSimulator *simulator, const Program *program, Section section, int chunk,
                   bool is_last, SimulatedNode **events, int *n_events, Arena *arena) {
    double out = 0.0;
    if (section == SECTION_BACKWARD)
        out = part_after(simulator, program, SECTION_FORWARD, chunk, is_last, 0.0, NULL, NULL, arena).out;
    return part_after(simulator, program, section, chunk, is_last, out, events, n_events, arena);
}

/* ---- A rank */

static double longest_message(const StepSimulator *simulator, const Program *program) {
    double longest = 0.0;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        if (node->op != &OP_CHANNEL_SEND) continue;
        CommWork work = work_of(node);
        GroupPlace place = links_place(simulator->links, work.group);
        longest = fmax(longest, links_message_seconds(simulator->links, work.n_bytes, &place));
    }
    return longest;
}

void rank_times(const StepSimulator *simulator, const Program *program, Arena *arena, RankTimes *times) {
    int n_chunks = program->plan.n_chunks;
    *times = (RankTimes){.n_chunks = n_chunks, .message = longest_message(simulator, program)};
    times->part = arena_alloc(arena, (size_t)n_chunks * sizeof *times->part);
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        for (int section = 0; section < N_SECTIONS; section++) {
            if (section == SECTION_REDO || (section_is_of_step((Section)section) && chunk)) continue;
            for (int is_last = 0; is_last < 2; is_last++)
                times->part[chunk][section][is_last] = part_after(
                    simulator, program, (Section)section, chunk, is_last,
                    section == SECTION_BACKWARD ? times->part[chunk][SECTION_FORWARD][is_last].out : 0.0,
                    NULL, NULL, arena);
        }
        if (!simulator->speed->machine->device.repeats_whole) continue;
        double more = repeat_whole_seconds(simulator, program, chunk);
        for (int is_last = 0; is_last < 2; is_last++) {
            PartTime *backward = &times->part[chunk][SECTION_BACKWARD][is_last];
            backward->seconds += more;
            backward->bound[BOUND_GEMM] += more;
        }
    }
}

/* ---- A step */

static const PartTime *part_of(const RankTimes *times, Section section, int chunk, bool is_last) {
    return &times->part[chunk][section][is_last];
}

static const PartTime *action_part(const RankTimes *times, const StepAction *action) {
    static const Section sections[N_ACTION_KINDS] = {[ACTION_FORWARD] = SECTION_FORWARD,
                                                     [ACTION_BACKWARD] = SECTION_BACKWARD,
                                                     [ACTION_UPDATE] = SECTION_UPDATE,
                                                     [ACTION_WEIGHT_GRADIENT] = SECTION_WEIGHT};
    bool is_once = action->kind == ACTION_UPDATE;
    return part_of(times, sections[action->kind], is_once ? 0 : action->chunk, is_once || action->is_last);
}

/* What the last backwards have left under way. */
static double left_of(const RankTimes *times) {
    double left = 0.0;
    for (int chunk = 0; chunk < times->n_chunks; chunk++)
        left = fmax(left, fmax(part_of(times, SECTION_BACKWARD, chunk, true)->left,
                               part_of(times, SECTION_WEIGHT, chunk, true)->left));
    return left;
}

/* Of a pipeline: every stage's times, and by how much an action is slowed down; slow NULL: it is not. */
typedef struct {
    const RankTimes *stages;
    const ScheduleLists *lists;
    double **slow;
} PipelineTimes;

static double own_time(const RankTimes *times, const StepAction *action) {
    double seconds = action_part(times, action)->seconds;
    if (action->kind != ACTION_UPDATE) return seconds;
    return seconds + part_of(times, SECTION_CHECK, 0, true)->seconds + left_of(times);
}

static double slowness(const PipelineTimes *times, int stage, const StepAction *action) {
    return times->slow ? times->slow[stage][action - times->lists->actions[stage]] : 1.0;
}

static double action_time(const void *context, int stage, const StepAction *action) {
    const PipelineTimes *times = context;
    return own_time(&times->stages[stage], action) * slowness(times, stage, action);
}

static double action_tail(const void *context, int stage, const StepAction *action) {
    const PipelineTimes *times = context;
    return action_part(&times->stages[stage], action)->tail * slowness(times, stage, action);
}

static void add_part(PartTime *sum, const PartTime *part, double n_times) {
    sum->seconds += n_times * part->seconds;
    sum->waited += n_times * part->waited;
    sum->sent += n_times * part->sent;
    for (int i = 0; i < N_BOUNDS; i++) sum->bound[i] += n_times * part->bound[i];
}

/* All that a stage does in a step, by phase. */
static void sum_phases(const RankTimes *times, int n_micro_batches, PartTime *phase) {
    memset(phase, 0, N_PHASES * sizeof *phase);
    for (int chunk = 0; chunk < times->n_chunks; chunk++) {
        for (int section = 0; section < N_SECTIONS; section++) {
            PartTime *sum = &phase[section_phase((Section)section)];
            bool is_once = section_is_of_step((Section)section);
            if (is_once && chunk) continue;
            if (!is_once) add_part(sum, part_of(times, (Section)section, chunk, false), n_micro_batches - 1);
            add_part(sum, part_of(times, (Section)section, chunk, true), 1.0);
        }
    }
}

static double busy_of(const RankTimes *times, int n_micro_batches) {
    PartTime phase[N_PHASES];
    double busy = 0.0;
    sum_phases(times, n_micro_batches, phase);
    for (int i = 0; i < N_PHASES; i++) busy += phase[i].seconds;
    return busy;
}

/* Milliseconds, as pictures have them. */
static void fill_simulation(const Rendezvous *rendezvous, const ScheduleLists *lists, Arena *arena,
                            Simulation *simulation) {
    int p = lists->shape.n_stages;
    *simulation = (Simulation){.stage = ARENA_ARRAY(arena, SimulatedStage, p)};
    for (int i = 0; i < p; i++) {
        SimulatedStage *stage = &simulation->stage[i];
        int n = lists->n_actions[i];
        SimulatedAction *actions = ARENA_ARRAY(arena, SimulatedAction, n + 1);
        for (int k = 0; k < n; k++) {
            const RendezvousAction *from = &rendezvous->stage[i].action[k];
            actions[k] = (SimulatedAction){from->begin * 1e3, from->end * 1e3};
            stage->busy += actions[k].end - actions[k].begin;
        }
        stage->action = actions;
        if (n) stage->begin = actions[0].begin, stage->end = actions[n - 1].end;
        simulation->makespan = fmax(simulation->makespan, stage->end);
        simulation->span = fmax(simulation->span, stage->end - stage->begin);
    }
}

static Status run_lists(Rendezvous *rendezvous, const PipelineTimes *times, Arena *arena, Error *error) {
    double message = 0.0;
    for (int i = 0; i < times->lists->shape.n_stages; i++) message = fmax(message, times->stages[i].message);
    rendezvous_prepare(rendezvous, times->lists, arena);
    rendezvous->tail = action_tail;
    if (!rendezvous_run(rendezvous, action_time, times, message))
        return error_failed(error, "the simulated pipeline does not come to an end");
    return STATUS_OK;
}

/* Seconds in which `stage` computes beside the action that runs from begin to end. */
static double seconds_beside(const Rendezvous *rendezvous, int stage, double begin, double end) {
    double sum = 0.0;
    for (int i = 0; i < rendezvous->lists->n_actions[stage]; i++) {
        const RendezvousAction *action = &rendezvous->stage[stage].action[i];
        sum += fmax(fmin(action->end, end) - fmax(action->begin, begin), 0.0);
    }
    return sum;
}

/* Times are those of ranks that share the cores with all others. With a of p stages at work each has p/a of
 * it, but no more than a core: who is beside whom depends on how long actions take, and that on who is beside
 * whom, so the two are found in turn. */
static Status share_cores(const StepSchedule *schedule, PipelineTimes *times, Rendezvous *rendezvous,
                          Arena *arena, Error *error) {
    enum { N_ROUNDS = 24 };
    const ScheduleLists *lists = times->lists;
    int p = lists->shape.n_stages;
    times->slow = ARENA_ARRAY(arena, double *, p);
    for (int i = 0; i < p; i++) {
        times->slow[i] = ARENA_ARRAY(arena, double, lists->n_actions[i] + 1);
        for (int k = 0; k < lists->n_actions[i]; k++) times->slow[i][k] = 1.0;
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        TRY(run_lists(rendezvous, times, arena, error));
        for (int i = 0; i < p; i++) {
            for (int k = 0; k < lists->n_actions[i]; k++) {
                const RendezvousAction *action = &rendezvous->stage[i].action[k];
                double seconds = action->end - action->begin, at_work = 1.0;
                if (seconds <= 0.0) continue;
                for (int j = 0; j < p; j++)
                    if (j != i)
                        at_work += seconds_beside(rendezvous, j, action->begin, action->end) / seconds;
                double wanted = fmax(at_work / p, 1.0 / schedule->most_speed);
                times->slow[i][k] += 0.5 * (wanted - times->slow[i][k]);
            }
        }
    }
    return run_lists(rendezvous, times, arena, error);
}

static Status simulate_lists(const StepSchedule *schedule, const RankTimes *stages, int n_steps, Arena *arena,
                             ScheduleLists *lists, Rendezvous *rendezvous, Simulation *simulation,
                             Error *error) {
    *lists = schedule_lists(schedule->kind, &schedule->shape, n_steps, arena);
    PipelineTimes times = {.stages = stages, .lists = lists};
    if (schedule->most_speed > 1.0) TRY(share_cores(schedule, &times, rendezvous, arena, error));
    else TRY(run_lists(rendezvous, &times, arena, error));
    fill_simulation(rendezvous, lists, arena, simulation);
    return STATUS_OK;
}

/* A pipeline that is not flushed costs what one more step makes the whole longer. */
static Status simulate_pipeline(const StepSchedule *schedule, const RankTimes *stages, Arena *arena,
                                StepTimes *times, Error *error) {
    const ScheduleInfo *info = schedule_info(schedule->kind);
    int p = schedule->shape.n_stages,
        n_steps = info->is_asynchronous ? 2 + p / schedule->shape.n_micro_batches : 1;
    SchedulePrediction *prediction = &times->prediction;
    Simulation *simulation = &prediction->simulation, longer = {0};
    Rendezvous rendezvous, other;
    TRY(simulate_lists(schedule, stages, n_steps, arena, &prediction->lists, &rendezvous, simulation, error));
    prediction->period = schedule->stages_meet ? simulation->makespan : simulation->span;
    if (info->is_asynchronous) {
        ScheduleLists lists;
        TRY(simulate_lists(schedule, stages, n_steps + 1, arena, &lists, &other, &longer, error));
        prediction->period = longer.makespan - simulation->makespan;
    }
    double busy = 0.0;
    for (int i = 0; i < p; i++) busy += simulation->stage[i].busy / n_steps / p;
    prediction->bubble = fmax(prediction->period - busy, 0.0);
    prediction->bubble_share = prediction->period > 0.0 ? prediction->bubble / prediction->period : 0.0;
    times->seconds = prediction->period * 1e-3;
    bool all_wait = info->is_asynchronous || schedule->stages_meet;
    times->path = critical_path(&rendezvous, all_wait, times->seconds, arena);
    times->bubble = prediction->bubble * 1e-3;
    return STATUS_OK;
}

Status step_times(const StepSchedule *schedule, const RankTimes *stages, double host_seconds, Arena *arena,
                  StepTimes *times, Error *error) {
    int m = schedule->shape.n_micro_batches;
    double most = -1.0;
    *times = (StepTimes){0};
    for (int i = 0; i < schedule->shape.n_stages; i++) {
        double busy = busy_of(&stages[i], m);
        if (busy <= most) continue;
        most = busy;
        times->busiest = i;
    }
    sum_phases(&stages[times->busiest], m, times->phase);
    times->seconds = most;
    times->path = (CriticalPath){.forward = times->phase[PHASE_FORWARD].seconds,
                                 .backward = times->phase[PHASE_BACKWARD].seconds,
                                 .update = times->phase[PHASE_UPDATE].seconds,
                                 .stage_seconds = most};
    if (schedule->shape.n_stages > 1) TRY(simulate_pipeline(schedule, stages, arena, times, error));
    times->seconds += host_seconds;
    return STATUS_OK;
}

/* ---- What is sent */

static SentCount sent_by(const Node *node, const CommWork *work) {
    if (work->kind == TRAFFIC_MESSAGES || work->kind == TRAFFIC_SHIFTS)
        return (SentCount){work->n_bytes > 0.0 ? 1.0 : 0.0, work->n_bytes};
    const Comm *comm = ((const CommAttributes *)node->attributes)->comm;
    CommKind kind = work->kind == TRAFFIC_SCALARS ? COMM_ALL_REDUCE : (CommKind)work->kind;
    return links_sent(kind, work->n_bytes, work->group->size, comm->all_reduce);
}

static void add_sent(SentCount *sum, SentCount sent, double n_times) {
    sum->n_messages += n_times * sent.n_messages;
    sum->n_bytes += n_times * sent.n_bytes;
}

SentTraffic rank_sent(const Links *links, const Program *program) {
    SentTraffic traffic = {0};
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        CommWork work = work_of(node);
        if (work.kind < 0 || !work.group || work.group->size < 2) continue;
        GroupPlace place = links_place(links, work.group);
        double n_times = program_node_runs(program, node);
        SentCount sent = sent_by(node, &work);
        int axes = work.group->axes;
        traffic.n_operations[axes][work.kind] += n_times;
        add_sent(&traffic.axis[axes][work.kind], sent, n_times);
        add_sent(&traffic.link[place_link(&place)], sent, n_times);
    }
    return traffic;
}
