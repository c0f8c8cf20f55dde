/* What a rank does is written down: messages posted, and waits for them. When the ranks are put together, the
 * sends and the receives between each two ranks are paired in their order, and then all ranks are played on
 * one clock.
 *
 * The rules of the game: a rank sends at most one message and receives at most one at a time, a message takes
 * one tick, and it begins when both sides have posted it and neither is busy in that direction. A rank posts
 * without delay until it waits for a message that has not ended. So the ticks that pass are the messages on
 * the longest chain of which each waits for the one before, and when nothing moves although somebody waits,
 * nothing ever will: a send that the other side has not asked for does not end either, as a long message
 * between real ranks does not. */
#include "comm/comm_null.h"

#include "base/arena.h"

#include <stdlib.h>

typedef struct Event Event;

/* A message as one of its two sides sees it, or a wait for one. */
struct Event {
    enum { SEND, RECEIVE, WAIT } kind;
    int rank, peer, tag;
    size_t n_bytes;
    int64_t n_times;  /* of a group that only tallies: so many like it, one after the other */
    int64_t number;   /* among the group's events: later ones have higher numbers */
    Event *next;      /* the rank's next one */
    Event *other;     /* of a message: its other side; of a wait: the message */
    Event *next_open; /* of a send that was posted and has not ended: the rank's next such one */
    bool is_posted, is_done;
};

typedef struct Rank Rank;
struct Rank {
    NullGroup *group;
    int number;
    Event *first, *last;
    Rank *next_speaking; /* of the group's ranks that have events */
    Event *visited;      /* the last one that comm_null_visit_sent has seen; NULL: none */
    int n_splits;        /* so far */
    /* While the game is played: */
    Event *now;              /* what the rank has not got past */
    Event *open, **open_end; /* sends under way */
    int64_t received_at;     /* the last tick in which it did; -1: never */
    int64_t tick_bytes;      /* sent and received in this tick */
};

/* What the ranks of a group pass to their n-th call of comm_split. */
typedef struct Split Split;
struct Split {
    int n_known; /* ranks whose color and key are */
    bool *is_known;
    int *color, *key;
    NullGroup **group; /* of each rank; NULL: none */
    int *place;        /* of each rank in it */
    bool is_resolved;
    Split *next;
};

struct NullGroup {
    int n_ranks;
    NullGroup *origin; /* that all were split off from; itself */
    bool has_learned;  /* of the origin: since it was last asked */
    Rank *speaking;    /* the ranks that have events, one leads to the next */
    NullGroup *heard;  /* of the origin: the groups that had some since all were forgotten, likewise */
    NullGroup *next_heard;
    bool is_heard;   /* is it one of these? */
    int *first_rank; /* (n_ranks) in the origin; NULL: this is it */
    int note;        /* of whoever counts */
    bool only_tallies;
    Split *splits;
    Arena split_arena;
    int64_t n_events;
    int64_t n_messages; /* sides of messages */
    Arena arena;        /* of the events */
    Rank rank[];
};

/* ---- Writing down */

/* Forgetting goes by these lists: it is done for every rank, of which only a few have anything to forget. */
static void hear(NullGroup *group) {
    NullGroup *origin = group->origin;
    if (group->is_heard) return;
    group->is_heard = true;
    group->next_heard = origin->heard;
    origin->heard = group;
}

static Event *add_event(Rank *rank, Event event) {
    NullGroup *group = rank->group;
    Event *added = ARENA_NEW(&group->arena, Event);
    *added = event;
    added->rank = rank->number;
    added->number = group->n_events++;
    if (rank->last) {
        rank->last->next = added;
    } else {
        rank->first = added;
        rank->next_speaking = group->speaking;
        group->speaking = rank;
        hear(group);
    }
    rank->last = added;
    return added;
}

static Status add_message(Rank *rank, Event message, CommRequest *request, Error *error) {
    if (message.peer < 0 || message.peer >= rank->group->n_ranks)
        return error_failed(error, "rank %d %s rank %d of %d", rank->number,
                            message.kind == SEND ? "sends to" : "receives from", message.peer,
                            rank->group->n_ranks);
    rank->group->n_messages++;
    request->handle[0] = add_event(rank, message);
    return STATUS_OK;
}

/* A send of a group that only tallies: one more of what was sent last, or something else. */
static Status tally(Rank *rank, int to, size_t n_bytes, Error *error) {
    Event *last = rank->last;
    if (last && last != rank->visited && last->peer == to && last->n_bytes == n_bytes) {
        last->n_times++;
        return STATUS_OK;
    }
    CommRequest none;
    return add_message(rank, (Event){.kind = SEND, .peer = to, .n_bytes = n_bytes, .n_times = 1}, &none,
                       error);
}

static Status null_start_send(void *context, const void *data, size_t n_bytes, int to, int tag,
                              CommRequest *request, Error *error) {
    (void)data;
    if (((Rank *)context)->group->only_tallies) return tally(context, to, n_bytes, error);
    return add_message(context, (Event){.kind = SEND, .peer = to, .tag = tag, .n_bytes = n_bytes}, request,
                       error);
}

static Status null_start_receive(void *context, void *data, size_t n_bytes, int from, int tag,
                                 CommRequest *request, Error *error) {
    (void)data;
    if (((Rank *)context)->group->only_tallies) return STATUS_OK;
    return add_message(context, (Event){.kind = RECEIVE, .peer = from, .tag = tag, .n_bytes = n_bytes},
                       request, error);
}

static Status null_wait(void *context, CommRequest *requests, int n_requests, Error *error) {
    (void)error;
    for (int i = 0; i < n_requests && !((Rank *)context)->group->only_tallies; i++)
        add_event(context, (Event){.kind = WAIT, .other = requests[i].handle[0]});
    return STATUS_OK;
}

/* ---- Groups within the group */

static Split *find_split(NullGroup *group, int number) {
    Split **link = &group->splits;
    for (; *link && number > 0; number--) link = &(*link)->next;
    Split *split = *link;
    if (split) return split;
    Arena *arena = &group->split_arena;
    split = ARENA_NEW(arena, Split);
    split->is_known = ARENA_ARRAY(arena, bool, group->n_ranks);
    split->color = ARENA_ARRAY(arena, int, group->n_ranks);
    split->key = ARENA_ARRAY(arena, int, group->n_ranks);
    split->place = ARENA_ARRAY(arena, int, group->n_ranks);
    split->group = ARENA_ARRAY(arena, NullGroup *, group->n_ranks);
    return *link = split;
}

void comm_null_tally(NullGroup *group) {
    group->only_tallies = true;
}

int *comm_null_note(const Comm *comm) {
    return &((const Rank *)comm->context)->group->note;
}

int comm_null_first_rank(const Comm *comm, int rank) {
    const NullGroup *group = ((const Rank *)comm->context)->group;
    return group->first_rank ? group->first_rank[rank] : rank;
}

/* A rank of a group that is being split. */
typedef struct {
    int color, key, rank;
} Member;

/* By color, within it by key, then as they were. */
static int compare_members(const void *a, const void *b) {
    const Member *x = a, *y = b;
    if (x->color != y->color) return x->color < y->color ? -1 : 1;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

/* The group of these ranks, which have one color, in this order. */
static Status resolve_color(NullGroup *group, Split *split, const Member *members, int n_members,
                            Error *error) {
    NullGroup *child;
    TRY(comm_null_open(&child, n_members, error));
    child->origin = group->origin;
    child->only_tallies = group->only_tallies;
    child->first_rank = ARENA_ARRAY(&child->split_arena, int, n_members);
    for (int place = 0; place < n_members; place++) {
        int r = members[place].rank;
        split->group[r] = child;
        split->place[r] = place;
        child->first_rank[place] = group->first_rank ? group->first_rank[r] : r;
    }
    return STATUS_OK;
}

static Status resolve(NullGroup *group, Split *split, Error *error) {
    size_t n_members = 0, n_ranks = (size_t)group->n_ranks;
    Member *members = malloc(n_ranks * sizeof *members);
    if (!members) return error_failed(error, "no memory to split %zu ranks", n_ranks);
    for (int r = 0; r < group->n_ranks; r++)
        if (split->color[r] >= 0) members[n_members++] = (Member){split->color[r], split->key[r], r};
    qsort(members, n_members, sizeof *members, compare_members);
    for (size_t first = 0, end; first < n_members && error->status == STATUS_OK; first = end) {
        for (end = first; end < n_members && members[end].color == members[first].color;) end++;
        resolve_color(group, split, members + first, (int)(end - first), error);
    }
    free(members);
    TRY(error->status);
    split->is_resolved = group->origin->has_learned = true;
    return STATUS_OK;
}

static Status null_split(void *context, int color, int key, Comm *child, Error *error) {
    Rank *rank = context;
    NullGroup *group = rank->group;
    Split *split = find_split(group, rank->n_splits++);
    int r = rank->number;
    *child = (Comm){0};
    if (!split->is_resolved) {
        split->n_known += !split->is_known[r];
        split->is_known[r] = true;
        split->color[r] = color;
        split->key[r] = key;
        if (split->n_known == group->n_ranks) TRY(resolve(group, split, error));
        return error_failed(error, "ranks that only count, one after the other, do not know each other's "
                                   "groups before they have learned them");
    }
    if (split->group[r]) *child = comm_null_rank(split->group[r], split->place[r]);
    return STATUS_OK;
}

bool comm_null_learn(NullGroup *group) {
    bool has_learned = group->has_learned;
    group->has_learned = false;
    return has_learned;
}

static bool null_is_threaded(void *context) {
    (void)context;
    return false;
}

/* There is no other process to end. */
static void null_abort(void *context, int exit_code) {
    (void)context, (void)exit_code;
}

static void null_close(void *context) {
    (void)context;
}

static const CommTable null_table = {
    .name = "null",
    .counts_only = true,
    .start_send = null_start_send,
    .start_receive = null_start_receive,
    .wait = null_wait,
    .split = null_split,
    .is_threaded = null_is_threaded,
    .abort = null_abort,
    .close = null_close,
};

/* ---- Pairing */

/* By sender, receiver and tag. */
static int compare_ways(const Event *x, const Event *y) {
    bool x_sends = x->kind == SEND, y_sends = y->kind == SEND;
    int x_key[] = {x_sends ? x->rank : x->peer, x_sends ? x->peer : x->rank, x->tag};
    int y_key[] = {y_sends ? y->rank : y->peer, y_sends ? y->peer : y->rank, y->tag};
    for (int i = 0; i < 3; i++)
        if (x_key[i] != y_key[i]) return x_key[i] < y_key[i] ? -1 : 1;
    return 0;
}

/* And among the same in the order in which they were posted. */
static int compare_messages(const void *a, const void *b) {
    const Event *x = *(const Event *const *)a, *y = *(const Event *const *)b;
    int order = compare_ways(x, y);
    return order ? order : x->number < y->number ? -1 : x->number > y->number;
}

static Status no_counterpart(const Event *message, Error *error) {
    if (message->kind == SEND)
        return error_failed(error, "rank %d sends %zu bytes to rank %d, which does not receive them",
                            message->rank, message->n_bytes, message->peer);
    return error_failed(error, "rank %d waits for %zu bytes from rank %d, which does not send them",
                        message->rank, message->n_bytes, message->peer);
}

static Status pair(Event **sends, int64_t n_sends, Event **receives, int64_t n_receives, Error *error) {
    for (int64_t i = 0; i < n_sends || i < n_receives; i++) {
        if (i >= n_receives) return no_counterpart(sends[i], error);
        if (i >= n_sends) return no_counterpart(receives[i], error);
        Event *send = sends[i], *receive = receives[i];
        int order = compare_ways(send, receive);
        if (order)
            return no_counterpart(order < 0 ? send : receive, error); /* the one that comes first is alone */
        if (send->n_bytes != receive->n_bytes)
            return error_failed(error, "rank %d sends %zu bytes to rank %d, which receives %zu", send->rank,
                                send->n_bytes, receive->rank, receive->n_bytes);
        send->other = receive;
        receive->other = send;
    }
    return STATUS_OK;
}

static Status pair_messages(NullGroup *group, Error *error) {
    if (group->n_messages == 0) return STATUS_OK;
    size_t n_entries = (size_t)group->n_messages;
    Event **entries = malloc(n_entries * sizeof(Event *));
    if (!entries) return error_failed(error, "no memory to put %zu messages together", n_entries);
    int64_t n_sends = 0, n_receives = 0; /* sends from the front, receives from the back */
    for (int r = 0; r < group->n_ranks; r++)
        for (Event *event = group->rank[r].first; event; event = event->next) {
            if (event->kind == SEND) entries[n_sends++] = event;
            if (event->kind == RECEIVE) entries[group->n_messages - ++n_receives] = event;
        }
    Event **receives = entries + n_sends;
    qsort(entries, (size_t)n_sends, sizeof *entries, compare_messages);
    qsort(receives, (size_t)n_receives, sizeof *receives, compare_messages);
    Status status = pair(entries, n_sends, receives, n_receives, error);
    free(entries);
    return status;
}

/* ---- Playing */

/* Everything a rank does before it has to wait. */
static void advance(Rank *rank) {
    while (rank->now && (rank->now->kind != WAIT || rank->now->other->is_done)) {
        Event *event = rank->now;
        event->is_posted = true;
        if (event->kind == SEND) {
            *rank->open_end = event;
            rank->open_end = &event->next_open;
        }
        rank->now = event->next;
    }
}

/* The first of the rank's sends whose other side is there takes this tick. */
static bool send_one(NullGroup *group, Rank *rank, int64_t tick) {
    for (Event **link = &rank->open; *link; link = &(*link)->next_open) {
        Event *send = *link;
        Rank *receiver = &group->rank[send->peer];
        if (!send->other->is_posted || receiver->received_at == tick) continue;
        receiver->received_at = tick;
        receiver->tick_bytes += (int64_t)send->n_bytes;
        rank->tick_bytes += (int64_t)send->n_bytes;
        send->is_done = send->other->is_done = true;
        *link = send->next_open;
        if (!*link) rank->open_end = link;
        return true;
    }
    return false;
}

static Status find_waiting(const NullGroup *group, Error *error) {
    for (int r = 0; r < group->n_ranks; r++) {
        const Event *event = group->rank[r].now;
        if (!event) continue;
        const Event *message = event->other;
        return error_failed(error, "rank %d waits for ever: it cannot %s %zu bytes %s rank %d", r,
                            message->kind == SEND ? "send" : "receive", message->n_bytes,
                            message->kind == SEND ? "to" : "from", message->peer);
    }
    return STATUS_OK;
}

static Status play(NullGroup *group, int64_t *n_ticks, int64_t *step_bytes, Error *error) {
    for (int r = 0; r < group->n_ranks; r++) {
        Rank *rank = &group->rank[r];
        rank->now = rank->first;
        rank->open = NULL;
        rank->open_end = &rank->open;
        rank->received_at = -1;
    }
    bool has_moved = true;
    for (*n_ticks = 0; has_moved; *n_ticks += has_moved) {
        has_moved = false;
        for (int r = 0; r < group->n_ranks; r++) advance(&group->rank[r]);
        for (int r = 0; r < group->n_ranks; r++) group->rank[r].tick_bytes = 0;
        for (int r = 0; r < group->n_ranks; r++) has_moved |= send_one(group, &group->rank[r], *n_ticks);
        for (int r = 0; r < group->n_ranks; r++)
            if (*step_bytes < group->rank[r].tick_bytes) *step_bytes = group->rank[r].tick_bytes;
    }
    return find_waiting(group, error);
}

/* ---- What is called */

Status comm_null_open(NullGroup **group, int n_ranks, Error *error) {
    *group = NULL;
    if (n_ranks < 1) return error_user(error, "a group of %d ranks: it takes at least one", n_ranks);
    NullGroup *opened = calloc(1, sizeof *opened + (size_t)n_ranks * sizeof opened->rank[0]);
    if (!opened) return error_failed(error, "no memory for %d ranks", n_ranks);
    opened->n_ranks = n_ranks;
    opened->origin = opened;
    for (int r = 0; r < n_ranks; r++) opened->rank[r] = (Rank){.group = opened, .number = r};
    *group = opened;
    return STATUS_OK;
}

static void forget(NullGroup *group) {
    arena_free(&group->arena);
    group->n_events = group->n_messages = 0;
    for (Rank *rank = group->speaking, *next; rank; rank = next) {
        next = rank->next_speaking;
        rank->first = rank->last = rank->visited = NULL;
        rank->next_speaking = NULL;
    }
    group->speaking = NULL;
}

/* With the groups within: each is met where its first rank comes by. */
void comm_null_close(NullGroup *group) {
    if (!group) return;
    for (const Split *split = group->splits; split; split = split->next) {
        for (int r = 0; r < group->n_ranks; r++)
            if (split->group[r] && split->place[r] == 0) comm_null_close(split->group[r]);
    }
    forget(group);
    arena_free(&group->split_arena);
    free(group);
}

void comm_null_forget(NullGroup *group) {
    for (NullGroup *heard = group->heard, *next; heard; heard = next) {
        next = heard->next_heard;
        forget(heard);
        heard->is_heard = false;
        heard->next_heard = NULL;
    }
    group->heard = NULL;
}

void comm_null_visit_sent(const Comm *comm, NullVisit visit, void *context) {
    Rank *rank = comm->context;
    for (Event *event = rank->visited ? rank->visited->next : rank->first; event; event = event->next) {
        rank->visited = event;
        if (event->kind != SEND) continue;
        int64_t n_times = event->n_times ? event->n_times : 1;
        visit(context, comm_null_first_rank(comm, event->peer), event->n_bytes, n_times);
    }
}

Comm comm_null_rank(NullGroup *group, int rank) {
    group->rank[rank].n_splits = 0;
    return (Comm){.table = &null_table, .context = &group->rank[rank], .rank = rank, .size = group->n_ranks};
}

Status comm_null_count(NullGroup *group, CommCost *cost, Error *error) {
    int64_t step_bytes;
    return comm_null_count_steps(group, cost, &step_bytes, error);
}

Status comm_null_count_steps(NullGroup *group, CommCost *cost, int64_t *step_bytes, Error *error) {
    *cost = (CommCost){0};
    *step_bytes = 0;
    Status status = pair_messages(group, error);
    if (status == STATUS_OK) status = play(group, &cost->n_steps, step_bytes, error);
    for (int r = 0; r < group->n_ranks; r++) {
        int64_t sent = 0, received = 0;
        for (const Event *event = group->rank[r].first; event; event = event->next) {
            if (event->kind == SEND) sent += (int64_t)event->n_bytes;
            if (event->kind == RECEIVE) received += (int64_t)event->n_bytes;
        }
        cost->total_bytes += sent;
        if (cost->peak_bytes < sent + received) cost->peak_bytes = sent + received;
    }
    forget(group);
    return status;
}
