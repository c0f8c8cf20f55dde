/* Formulas of steps and bytes (comm/algo) say what an algorithm costs in principle. What runs is cut into
 * rounds, blocks and pieces that overlap, and on a slow network that decides. So nothing is derived here: the
 * algorithms run as they are, over a transport that writes down what each rank posts and waits for, and the
 * log is replayed.
 *
 * What a rank does next never depends on what it has received, so ranks can be logged one after the other.
 * Which bytes are added cannot be seen in a log of messages, but the algorithms receive those, and only
 * those, in their scratch memory.
 *
 * The replay moves every rank on until it waits for a message that has no time of arrival, or has something
 * to add. Then, of all messages that could begin and all additions, the one that can begin first gets its
 * time. That is safe: whatever turns up later comes from a rank that waits for one of these, so it begins no
 * earlier.
 *
 * Between hosts a message stands in line twice: where it leaves its host and, a latency later, where it
 * enters the other. A long one goes back and forth before it is through: the question; the answer, once the
 * receiver wants the message; its bytes, which the sender hands over and goes on; and a seal, the word that
 * all of it is there. On an idle network that adds up to the line that was fitted. On a busy one bytes wait
 * for a line to be free, and the words for what goes between the same two ranks before them. That is why two
 * messages that are answered together arrive together, and why two ranks that exchange long messages and are
 * out of step may end up taking turns: the answer stands behind the bytes. */
#include "lab/collectives/replay.h"

#include "base/arena.h"
#include "base/system/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What goes from host to host: a message as a whole, or the four parts of one that asks. */
typedef enum { WHOLE, QUESTION, ANSWER, BYTES, SEAL } Leg;

typedef struct Message Message;
struct Message {
    int from, to;
    size_t n_bytes;
    bool is_added;
    Message *next;             /* of the same two ranks, which are paired in their order */
    double sent_at, wanted_at; /* when each side has posted it; NAN: not yet */
    double arrives_at;         /* NAN: not known yet */
    double handed_at;          /* when the sender of a long one goes on; NAN: not known yet */
    double asked_at;           /* when the question is there; NAN: not yet */
    Leg leg;
    Message *sealed;    /* by this one, which stands for the fourth part of that */
    bool is_under_way;  /* has left its host */
    double leg_at;      /* when the leg can begin: at the host that it leaves or, under way, at the other */
    Message *next_open; /* of those that could begin */
};

typedef enum { SEND, RECEIVE, WAIT_SENT, WAIT_RECEIVED, MARK } Kind;

typedef struct Event Event;
struct Event {
    Kind kind;
    Message *message;
    Event *next;
};

/* From one rank to another. */
typedef struct {
    Message *first;
    Message **next_sent, **next_wanted; /* where the next one of each side stands, or will */
    double left_at, arrived_at;         /* on a network: the last of them */
} Line;

typedef struct Replay Replay;

typedef struct {
    Replay *replay;
    int number;
    Event *first, **end;
    Event *now;        /* what the rank has not got past */
    double time;       /* how far it has come */
    double busy_until; /* with copying and adding */
    bool is_adding;    /* what has arrived, from `time` on */
    void *scratch;
} Rank;

struct Replay {
    const Machine *machine;
    Arena arena;
    Line *lines; /* (from, to) */
    Rank *ranks;
    Message *open;                      /* what could begin */
    double *host_sends, *host_receives; /* until when each host does */
    double *cores;                      /* until when each core of each host works */
    double marked_at[2];                /* the last two marks */
};

/* ---- Writing down */

static void add_event(Rank *rank, Kind kind, Message *message) {
    Event *event = ARENA_NEW(&rank->replay->arena, Event);
    *event = (Event){.kind = kind, .message = message};
    *rank->end = event;
    rank->end = &event->next;
}

/* A side of a message: the other one may have been here before. */
static Status post(Rank *rank, Kind kind, int peer, size_t n_bytes, Message **found, Error *error) {
    Replay *replay = rank->replay;
    int from = kind == SEND ? rank->number : peer, to = kind == SEND ? peer : rank->number;
    Line *line = &replay->lines[from * replay->machine->n_ranks + to];
    Message ***side = kind == SEND ? &line->next_sent : &line->next_wanted;
    if (!**side) {
        **side = ARENA_NEW(&replay->arena, Message);
        ***side = (Message){.from = from,
                            .to = to,
                            .n_bytes = n_bytes,
                            .sent_at = NAN,
                            .wanted_at = NAN,
                            .arrives_at = NAN,
                            .handed_at = NAN,
                            .asked_at = NAN};
    }
    Message *message = **side;
    if (message->n_bytes != n_bytes)
        return error_failed(error, "rank %d sends %zu bytes to rank %d, which expects another number", from,
                            message->n_bytes, to);
    *side = &message->next;
    add_event(rank, kind, message);
    *found = message;
    return STATUS_OK;
}

static Status start_send(void *context, const void *data, size_t n_bytes, int to, int tag,
                         CommRequest *request, Error *error) {
    (void)data, (void)tag;
    Message *message = NULL;
    TRY(post(context, SEND, to, n_bytes, &message, error));
    *request = (CommRequest){{message, NULL}};
    return STATUS_OK;
}

static Status start_receive(void *context, void *data, size_t n_bytes, int from, int tag,
                            CommRequest *request, Error *error) {
    (void)tag;
    Rank *rank = context;
    Message *message = NULL;
    TRY(post(rank, RECEIVE, from, n_bytes, &message, error));
    uintptr_t begin = (uintptr_t)rank->scratch, place = (uintptr_t)data;
    message->is_added = place >= begin && place < begin + COMM_SCRATCH_BYTES;
    *request = (CommRequest){{message, NULL}};
    return STATUS_OK;
}

static Status wait_for(void *context, CommRequest *requests, int n_requests, Error *error) {
    (void)error;
    Rank *rank = context;
    for (int i = 0; i < n_requests; i++) {
        Message *message = requests[i].handle[0];
        add_event(rank, message->to == rank->number ? WAIT_RECEIVED : WAIT_SENT, message);
    }
    return STATUS_OK;
}

static const CommTable table = {
    .name = "replay", .start_send = start_send, .start_receive = start_receive, .wait = wait_for};

/* ---- The clock */

static double later(double a, double b) {
    return a > b ? a : b;
}

/* So much work of a rank, as soon as it and a core of its host are free; when it is done. */
static double work(Replay *replay, Rank *rank, double earliest, double seconds) {
    int n_cores = replay->machine->n_cores, first = replay->machine->host[rank->number] * n_cores,
        core = first;
    for (int i = first; i < first + n_cores; i++)
        if (replay->cores[i] < replay->cores[core]) core = i;
    double begin = later(later(earliest, rank->busy_until), replay->cores[core]);
    replay->cores[core] = rank->busy_until = begin + seconds;
    return begin + seconds;
}

static const Link *link_of(const Machine *machine, const Message *message) {
    bool is_within = machine->host[message->from] == machine->host[message->to];
    return is_within ? &machine->within : &machine->across;
}

/* Does the sender go on without having asked? */
static bool is_eager(const Machine *machine, const Message *message) {
    return (double)message->n_bytes <= link_of(machine, message)->border;
}

/* When it can begin to travel; NAN: something is missing. */
static double ready_at(const Machine *machine, const Message *message) {
    if (isnan(message->sent_at) || is_eager(machine, message)) return message->sent_at;
    return isnan(message->wanted_at) ? NAN : later(message->sent_at, message->wanted_at);
}

/* What of it runs beside other things, and what keeps the line busy. */
static double latency_of(const Machine *machine, const Message *message) {
    const Link *link = link_of(machine, message);
    const AlphaBeta *line = is_eager(machine, message) ? &link->eager : &link->asking;
    return line->alpha > link->gap ? line->alpha - link->gap : 0;
}

static double busy_of(const Machine *machine, const Message *message) {
    const Link *link = link_of(machine, message);
    return link_seconds(link, (double)message->n_bytes) - latency_of(machine, message);
}

static bool is_within(const Machine *machine, const Message *message) {
    return machine->host[message->from] == machine->host[message->to];
}

static double begin_at(const Machine *machine, const Message *message) {
    if (is_within(machine, message)) return ready_at(machine, message) + latency_of(machine, message);
    return message->leg_at;
}

static void open_leg(Replay *replay, Message *message, Leg leg, double at) {
    message->leg = leg;
    message->leg_at = at;
    message->is_under_way = false;
    message->next_open = replay->open;
    replay->open = message;
}

/* ---- Between hosts */

/* Does it go there and back? Where one line fits all messages, nothing is seen of it. */
static bool asks(const Machine *machine, const Message *message) {
    return !is_within(machine, message) && !is_eager(machine, message) && machine->across.border > 0;
}

typedef struct {
    double latency; /* runs beside other things */
    double busy;    /* keeps the line busy, at either end */
} Trip;

/* A question takes as long as a short message, answer and bytes share what is left of the latency. */
static Trip trip_of(const Machine *machine, const Message *message) {
    const Link *link = &machine->across;
    const AlphaBeta *line = is_eager(machine, message) ? &link->eager : &link->asking;
    double question = link->eager.alpha < line->alpha ? link->eager.alpha : line->alpha;
    double rest = 0.5 * (line->alpha - question), n_bytes = (double)message->n_bytes;
    double alpha = message->leg == WHOLE ? line->alpha : message->leg == QUESTION ? question : rest;
    if (message->leg == SEAL) return (Trip){.latency = alpha};
    if (message->leg == QUESTION || message->leg == ANSWER) n_bytes = 0;
    double gap = link->gap < alpha ? link->gap : alpha;
    return (Trip){.latency = alpha - gap, .busy = gap + line->beta * n_bytes};
}

/* The leg is at the other host. */
static void finish_leg(Replay *replay, Message *message, double at) {
    switch (message->leg) {
    case QUESTION:
        message->asked_at = at;
        if (!isnan(message->wanted_at)) open_leg(replay, message, ANSWER, later(at, message->wanted_at));
        break;
    case ANSWER:
        message->handed_at = at;
        open_leg(replay, message, BYTES, at);
        break;
    case BYTES: break;
    case SEAL: message->sealed->arrives_at = at; break;
    case WHOLE: message->arrives_at = at;
    }
}

/* All has left, and that is said. */
static void open_seal(Replay *replay, Message *message, double at) {
    Message *seal = ARENA_NEW(&replay->arena, Message);
    *seal = *message;
    seal->sealed = message;
    open_leg(replay, seal, SEAL, at);
}

/* The bytes of a message wait until its host's line is free, at either end. What carries none waits for those
 * only that go between the same two ranks before it: messages to others share a line, and it passes between
 * them. */
static void move_leg(Replay *replay, Message *message) {
    const Machine *machine = replay->machine;
    bool is_back = message->leg == ANSWER, has_bytes = message->leg == WHOLE || message->leg == BYTES;
    int from = is_back ? message->to : message->from, to = is_back ? message->from : message->to;
    Line *line = &replay->lines[from * machine->n_ranks + to];
    Trip trip = trip_of(machine, message);
    if (message->is_under_way) {
        double *receives = &replay->host_receives[machine->host[to]];
        double end = later(message->leg_at, has_bytes ? *receives : line->arrived_at) + trip.busy;
        line->arrived_at = end;
        if (has_bytes) *receives = end;
        finish_leg(replay, message, end);
        return;
    }
    double *sends = &replay->host_sends[machine->host[from]];
    double begin = later(message->leg_at, has_bytes ? *sends : line->left_at);
    line->left_at = begin + trip.busy;
    if (has_bytes) *sends = begin + trip.busy;
    if (message->leg == BYTES) open_seal(replay, message, begin + trip.busy);
    open_leg(replay, message, message->leg, begin + trip.latency);
    message->is_under_way = true;
}

static void deliver(Replay *replay, Message *message) {
    const Machine *machine = replay->machine;
    if (is_within(machine, message))
        message->arrives_at =
            work(replay, &replay->ranks[message->to], begin_at(machine, message), busy_of(machine, message));
    else move_leg(replay, message);
}

/* Called when a side has posted it. It becomes ready once: when the second does, or for a short one when it
 * is sent; one that asks does so when it is sent, and is answered when it is wanted. */
static void open_message(Replay *replay, Message *message, bool is_send) {
    bool is_short = is_eager(replay->machine, message);
    if (asks(replay->machine, message)) {
        if (is_send) open_leg(replay, message, QUESTION, message->sent_at);
        else if (!isnan(message->asked_at))
            open_leg(replay, message, ANSWER, later(message->asked_at, message->wanted_at));
        return;
    }
    if (is_short ? is_send : !isnan(ready_at(replay->machine, message)))
        open_leg(replay, message, WHOLE, ready_at(replay->machine, message));
}

/* When the sender of a long message goes on; NAN: not known yet. */
static double let_go_at(const Machine *machine, const Message *message) {
    return asks(machine, message) ? message->handed_at : message->arrives_at;
}

/* Until the rank waits for what has no time yet, or has to add. */
static void advance(Replay *replay, Rank *rank) {
    for (; rank->now && !rank->is_adding; rank->now = rank->now->next) {
        Message *message = rank->now->message;
        switch (rank->now->kind) {
        case SEND:
            message->sent_at = rank->time;
            open_message(replay, message, true);
            break;
        case RECEIVE:
            message->wanted_at = rank->time;
            open_message(replay, message, false);
            break;
        case WAIT_SENT:
            if (is_eager(replay->machine, message)) break;
            if (isnan(let_go_at(replay->machine, message))) return;
            rank->time = later(rank->time, let_go_at(replay->machine, message));
            break;
        case WAIT_RECEIVED:
            if (isnan(message->arrives_at)) return;
            rank->time = later(rank->time, message->arrives_at);
            rank->is_adding = message->is_added;
            if (rank->is_adding) return; /* it goes on from here once that is done */
            break;
        case MARK: replay->marked_at[0] = replay->marked_at[1]; replay->marked_at[1] = rank->time;
        }
    }
}

/* What points to the message that can begin first; NULL: there is none. Of equals it is the one that was
 * opened first, which stands further back in the list: what has come first is answered first. */
static Message **first_message(Replay *replay) {
    Message **best = NULL;
    for (Message **next = &replay->open; *next; next = &(*next)->next_open)
        if (!best || begin_at(replay->machine, *next) <= begin_at(replay->machine, *best)) best = next;
    return best;
}

static Rank *first_addition(Replay *replay) {
    Rank *best = NULL;
    for (int i = 0; i < replay->machine->n_ranks; i++) {
        Rank *rank = &replay->ranks[i];
        if (rank->is_adding && (!best || rank->time < best->time)) best = rank;
    }
    return best;
}

/* What can begin first gets its time; false: there is nothing. */
static bool move_on(Replay *replay) {
    Message **link = first_message(replay);
    Rank *rank = first_addition(replay);
    if (rank && (!link || rank->time <= begin_at(replay->machine, *link))) {
        double n_bytes = (double)rank->now->message->n_bytes;
        rank->time = work(replay, rank, rank->time, replay->machine->gamma * n_bytes);
        rank->now = rank->now->next;
        rank->is_adding = false;
        return true;
    }
    if (!link) return false;
    Message *message = *link;
    *link = message->next_open;
    deliver(replay, message);
    return true;
}

static Status play(Replay *replay, double *seconds, Error *error) {
    int n_ranks = replay->machine->n_ranks;
    for (int i = 0; i < n_ranks; i++) replay->ranks[i].now = replay->ranks[i].first;
    do {
        for (int i = 0; i < n_ranks; i++) advance(replay, &replay->ranks[i]);
    } while (move_on(replay));
    *seconds = 0;
    for (int i = 0; i < n_ranks; i++) {
        if (replay->ranks[i].now) return error_failed(error, "rank %d would wait for ever", i);
        *seconds = later(*seconds, replay->ranks[i].time);
    }
    return STATUS_OK;
}

/* ---- All of it */

static void set_up(Replay *replay) {
    const Machine *machine = replay->machine;
    int n = machine->n_ranks;
    replay->lines = ARENA_ARRAY(&replay->arena, Line, (size_t)n * (size_t)n);
    for (int i = 0; i < n * n; i++) {
        Line *line = &replay->lines[i];
        line->next_sent = line->next_wanted = &line->first;
    }
    replay->ranks = ARENA_ARRAY(&replay->arena, Rank, n);
    replay->host_sends = ARENA_ARRAY(&replay->arena, double, machine->n_hosts);
    replay->host_receives = ARENA_ARRAY(&replay->arena, double, machine->n_hosts);
    replay->cores = ARENA_ARRAY(&replay->arena, double, machine->n_hosts * machine->n_cores);
}

/* What is to be replayed: vectors that are summed one after the other, so many times. */
typedef struct {
    const CommAlgorithm *algorithm;
    const int64_t *n_bytes; /* of each vector */
    int n_vectors, n_steps;
    bool meets;    /* between the steps */
    ReplayRun run; /* instead of vectors that are summed */
    void *argument;
} Plan;

/* A short sum of an MPI library: up a binomial tree to rank 0, and down again. */
static Status meet(Rank *rank, int n_ranks, Error *error) {
    const size_t n_bytes = 8;
    int number = rank->number, bit = 1;
    CommRequest request;
    for (; bit < n_ranks && !(number & bit); bit *= 2) {
        if (number + bit >= n_ranks) continue;
        TRY(start_receive(rank, NULL, n_bytes, number + bit, 0, &request, error));
        TRY(wait_for(rank, &request, 1, error));
    }
    if (number > 0) {
        TRY(start_send(rank, NULL, n_bytes, number - bit, 0, &request, error));
        TRY(start_receive(rank, NULL, n_bytes, number - bit, 0, &request, error));
        TRY(wait_for(rank, &request, 1, error));
    }
    while (bit /= 2) {
        if (number + bit < n_ranks) TRY(start_send(rank, NULL, n_bytes, number + bit, 0, &request, error));
    }
    return STATUS_OK;
}

/* What one rank does; the first one marks begin and end of the vectors. */
static Status record(Rank *rank, const Plan *plan, void *data, Error *error) {
    int n_ranks = rank->replay->machine->n_ranks;
    Comm comm = {
        .table = &table, .context = rank, .rank = rank->number, .size = n_ranks, .scratch = rank->scratch};
    rank->end = &rank->first;
    if (plan->run) return plan->run(&comm, plan->argument, error);
    for (int step = 0; step < plan->n_steps; step++) {
        if (rank->number == 0) add_event(rank, MARK, NULL);
        for (int i = 0; i < plan->n_vectors; i++)
            TRY(plan->algorithm->all_reduce(&comm, data, plan->n_bytes[i] / 4, COMM_F32, COMM_SUM, error));
        if (rank->number == 0) add_event(rank, MARK, NULL);
        for (int i = 0; plan->meets && i < 2; i++) TRY(meet(rank, n_ranks, error));
    }
    return STATUS_OK;
}

/* The time of everything and, of the last step, that of its vectors on rank 0. */
static Status run(const Machine *machine, const Plan *plan, double *all, double *last, Error *error) {
    Replay replay = {.machine = machine};
    void *data = NULL, *scratch = NULL;
    size_t longest = 4;
    for (int i = 0; i < plan->n_vectors; i++)
        if ((size_t)plan->n_bytes[i] > longest) longest = (size_t)plan->n_bytes[i];
    TRY(memory_alloc(&data, longest, "the vector of a replay", error));
    TRY_GOTO(memory_alloc(&scratch, COMM_SCRATCH_BYTES, "the scratch memory of a replay", error), done);
    set_up(&replay);
    for (int i = 0; i < machine->n_ranks; i++) {
        replay.ranks[i] = (Rank){.replay = &replay, .number = i, .scratch = scratch};
        TRY_GOTO(record(&replay.ranks[i], plan, data, error), done);
    }
    TRY_GOTO(play(&replay, all, error), done);
    *last = replay.marked_at[1] - replay.marked_at[0];
done:
    memory_free(scratch, COMM_SCRATCH_BYTES);
    memory_free(data, longest);
    arena_free(&replay.arena);
    return error->status;
}

static double memory_seconds(const Machine *machine, int64_t n_bytes) {
    return (double)n_bytes > machine->cache_bytes ? machine->delta * (double)n_bytes : 0;
}

Status replay_all_reduce(const Machine *machine, const CommAlgorithm *algorithm, int64_t n_bytes,
                         double *seconds, Error *error) {
    Plan plan = {.algorithm = algorithm, .n_bytes = &n_bytes, .n_vectors = 1, .n_steps = 1};
    double last;
    TRY(run(machine, &plan, seconds, &last, error));
    *seconds += memory_seconds(machine, n_bytes);
    return STATUS_OK;
}

Status replay_run(const Machine *machine, ReplayRun run_rank, void *argument, int64_t n_bytes,
                  double *seconds, Error *error) {
    Plan plan = {.run = run_rank, .argument = argument};
    double last;
    TRY(run(machine, &plan, seconds, &last, error));
    *seconds += memory_seconds(machine, n_bytes);
    return STATUS_OK;
}

Status replay_step(const Machine *machine, const CommAlgorithm *algorithm, const int64_t *n_bytes,
                   int n_vectors, double *seconds, Error *error) {
    enum { N_STEPS = 3 }; /* by then a step is like the one before */
    Plan plan = {.algorithm = algorithm,
                 .n_bytes = n_bytes,
                 .n_vectors = n_vectors,
                 .n_steps = N_STEPS,
                 .meets = true};
    double all;
    TRY(run(machine, &plan, &all, seconds, error));
    for (int i = 0; i < n_vectors; i++) *seconds += memory_seconds(machine, n_bytes[i]);
    return STATUS_OK;
}
