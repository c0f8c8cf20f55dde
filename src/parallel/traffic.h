/* What ranks send in a step: counted from their programs, message by message.
 *
 *     Traffic traffic = {0};                          // of one rank
 *     TRY(traffic_count(&step.program, &shape, hosts, &traffic, error));
 *     traffic_add(&sum, &traffic);                    // of all
 *
 * The program is one that was planned on communicators which only count (comm/comm_null.h). Every node that
 * communicates is run on them, so collectives are the messages that their algorithm makes of them, and each
 * counts as often as the node runs in a step. Which axis a message belongs to is found from the ranks of its
 * communicator: those of which the coordinates differ. So a new axis or a new group needs nothing here. */
#ifndef PGPT_PARALLEL_TRAFFIC_H
#define PGPT_PARALLEL_TRAFFIC_H

#include "graph/program.h"
#include "parallel/mesh.h"

/* What sends: a collective (a CommKind), a sum of one number, messages between two ranks, or a step of
 * something round a ring, from each rank to one other. */
enum { TRAFFIC_SCALARS = N_COMM_KINDS, TRAFFIC_MESSAGES, TRAFFIC_SHIFTS, N_TRAFFIC_KINDS };

const char *traffic_kind_name(int kind);     /* "all-gather", "scalar sum", "messages", "shift" */
int traffic_kind(const Node *communication); /* of a node that sends */

/* Along a set of axes: bit `axis` is set where coordinates differ. */
enum { N_TRAFFIC_AXES = 1 << N_AXES, TRAFFIC_TEXT = 32 };

const char *traffic_axes_name(int axes, char text[TRAFFIC_TEXT]); /* "tp", "dp+tp"; "all" of those together */

typedef struct {
    int64_t n_operations;        /* collectives that a rank takes part in, or messages that it sends */
    int64_t n_messages, n_bytes; /* sent */
    int64_t n_far_messages, n_far_bytes; /* to other hosts */
} TrafficCount;

/* Index 0 of the axes is what goes along any of them, of all kinds together, in its kind 0. */
typedef struct {
    TrafficCount count[N_TRAFFIC_AXES][N_TRAFFIC_KINDS];
} Traffic;

enum { N_TRAFFIC_NUMBERS = sizeof(Traffic) / sizeof(int64_t) };

/* Adds what the rank sends whose program it is. `hosts` (one a rank of the mesh) are names; NULL: all are on
 * the same. */
Status traffic_count(const Program *program, const MeshShape *shape, const char *const *hosts,
                     Traffic *traffic, Error *error);

/* What was sent on a communicator beside the program, as messages of one operation of this kind. */
void traffic_count_sent(const Comm *comm, int kind, const MeshShape *shape, const char *const *hosts,
                        Traffic *traffic);

/* Over the ranks: the sum of all, and the most of any. */
void traffic_add(Traffic *sum, const Traffic *traffic);
void traffic_raise(Traffic *most, const Traffic *traffic);

#endif
