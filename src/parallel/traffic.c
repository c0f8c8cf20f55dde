/* The kernels of communication run as they would in a step, once each: on a communicator that counts they
 * move nothing, and what they have sent is asked for behind each. A node that runs several times in a step
 * sends the same each time. */
#include "parallel/traffic.h"

#include "comm/comm_null.h"
#include "parallel/comm_attributes.h"
#include "parallel/comm_ops.h"

#include <stdio.h>
#include <string.h>

const char *traffic_kind_name(int kind) {
    if (kind == TRAFFIC_SCALARS) return "scalar sum";
    if (kind == TRAFFIC_SHIFTS) return "shift";
    return kind == TRAFFIC_MESSAGES ? "messages" : comm_kind_name((CommKind)kind);
}

const char *traffic_axes_name(int axes, char text[TRAFFIC_TEXT]) {
    size_t n = 0;
    snprintf(text, TRAFFIC_TEXT, "all");
    for (int axis = N_AXES - 1; axis >= 0; axis--) {
        if (!(axes & 1 << axis)) continue;
        n += (size_t)snprintf(text + n, TRAFFIC_TEXT - n, "%s%s", n ? "+" : "", axis_name((Axis)axis));
    }
    return text;
}

/* The axes along which the ranks of a communicator lie; found once for its group. */
static int axes_of(const Comm *comm, const MeshShape *shape) {
    enum { IS_KNOWN = 1 << N_AXES };
    int first[N_AXES], other[N_AXES], *note = comm_null_note(comm);
    if (*note) return *note & ~IS_KNOWN;
    mesh_coordinates(shape, comm_null_first_rank(comm, 0), first);
    for (int rank = 1; rank < comm->size; rank++) {
        mesh_coordinates(shape, comm_null_first_rank(comm, rank), other);
        for (int axis = 0; axis < N_AXES; axis++) *note |= (first[axis] != other[axis]) << axis;
    }
    *note |= IS_KNOWN;
    return *note & ~IS_KNOWN;
}

typedef struct {
    TrafficCount count;
    const char *const *hosts;
    int rank; /* that sends */
} Sent;

static void take_message(void *context, int to, size_t n_bytes, int64_t n_times) {
    Sent *sent = context;
    bool is_far = sent->hosts && strcmp(sent->hosts[sent->rank], sent->hosts[to]) != 0;
    sent->count.n_messages += n_times;
    sent->count.n_bytes += n_times * (int64_t)n_bytes;
    sent->count.n_far_messages += is_far ? n_times : 0;
    sent->count.n_far_bytes += is_far ? n_times * (int64_t)n_bytes : 0;
}

static void add_count(TrafficCount *sum, const TrafficCount *count, int64_t n_times) {
    sum->n_operations += n_times * count->n_operations;
    sum->n_messages += n_times * count->n_messages;
    sum->n_bytes += n_times * count->n_bytes;
    sum->n_far_messages += n_times * count->n_far_messages;
    sum->n_far_bytes += n_times * count->n_far_bytes;
}

/* What a communicator has sent since it was last asked, so many times over. */
static void count_sent(const Comm *comm, int kind, int64_t n_times, const MeshShape *shape,
                       const char *const *hosts, Traffic *traffic) {
    Sent sent = {.hosts = hosts, .rank = comm_null_first_rank(comm, comm->rank)};
    comm_null_visit_sent(comm, take_message, &sent);
    sent.count.n_operations = kind == TRAFFIC_MESSAGES ? sent.count.n_messages : 1;
    add_count(&traffic->count[axes_of(comm, shape)][kind], &sent.count, n_times);
    add_count(&traffic->count[0][0], &sent.count, n_times);
}

void traffic_count_sent(const Comm *comm, int kind, const MeshShape *shape, const char *const *hosts,
                        Traffic *traffic) {
    count_sent(comm, kind, 1, shape, hosts, traffic);
}

int traffic_kind(const Node *communication) {
    const CommAttributes *attributes = communication->attributes;
    if (communication->op == &OP_SCALAR_SUM) return TRAFFIC_SCALARS;
    if (communication->op == &OP_SHIFT) return TRAFFIC_SHIFTS;
    return attributes->operation.kind == COMM_BARRIER ? TRAFFIC_MESSAGES : (int)attributes->operation.kind;
}

/* -1: a wait, or whatever else sends nothing. */
static int kind_of(const Node *node) {
    if (node->phase != PHASE_COMMUNICATION || op_cost(node).bytes <= 0.0)
        return -1; /* or it moves to a host */
    return traffic_kind(node);
}

Status traffic_count(const Program *program, const MeshShape *shape, const char *const *hosts,
                     Traffic *traffic, Error *error) {
    const Graph *graph = program->graph;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        int kind = kind_of(node);
        if (kind < 0) continue;
        const Comm *comm = ((const CommAttributes *)node->attributes)->comm;
        if (!comm->table->counts_only)
            return error_failed(error, "'%s' is counted on a communicator that sends", node->op->name);
        TRY(node->op->reference(&(KernelCall){.node = node}, error));
        count_sent(comm, kind, program_node_runs(program, node), shape, hosts, traffic);
    }
    return STATUS_OK;
}

void traffic_add(Traffic *sum, const Traffic *traffic) {
    for (int axes = 0; axes < N_TRAFFIC_AXES; axes++)
        for (int kind = 0; kind < N_TRAFFIC_KINDS; kind++)
            add_count(&sum->count[axes][kind], &traffic->count[axes][kind], 1);
}

static void raise(int64_t *most, int64_t number) {
    if (*most < number) *most = number;
}

void traffic_raise(Traffic *most, const Traffic *traffic) {
    for (int axes = 0; axes < N_TRAFFIC_AXES; axes++) {
        for (int kind = 0; kind < N_TRAFFIC_KINDS; kind++) {
            TrafficCount *to = &most->count[axes][kind];
            const TrafficCount *from = &traffic->count[axes][kind];
            raise(&to->n_operations, from->n_operations);
            raise(&to->n_messages, from->n_messages);
            raise(&to->n_bytes, from->n_bytes);
            raise(&to->n_far_messages, from->n_far_messages);
            raise(&to->n_far_bytes, from->n_far_bytes);
        }
    }
}
