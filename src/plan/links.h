/* What a collective or a message costs on a machine: messages, bytes and seconds, by formula.
 *
 *     Links links = links_of(&machine, n_ranks);
 *     GroupPlace place = links_place(&links, group);           // how the ranks of a group lie on hosts
 *     double s = links_seconds(&links, COMM_ALL_REDUCE, 4e9, &place);
 *
 * Ranks lie on hosts in their order. All ranks of a job do the same at the same time, each in a group of its
 * own, so what they share (the links of a host, a bus) is divided among all ranks of the host; this is what
 * contention is here. Within a rank, what goes over one kind of link goes one after the other (simulate.h).
 *
 * With n bytes on each of N = g·h ranks, g on each of h hosts, a on a host in all; in and out are a rank's
 * bytes a second inside and between hosts, i and o the seconds of a message:
 *
 *     ring           (N-1)/N·n / min(in, g·out) + (N-1)·o        a half of an all-reduce; o is i on one host
 *     hierarchical   (g-1)/g·n / in + (g-1)·i + (h-1)/h·n/g / out + ceil(log2 h)·o        likewise
 *     halving        the same bytes, ceil(log2 N) messages        likewise
 *     tree           n / min(in, g·out) + ceil(log2 g)·i + ceil(log2 h)·o     each way of an all-reduce
 *
 * Within a host, what was measured counts more: samples (samples.h) of a kind, "all-reduce:4,2,65536=1.2",
 * are of so many ranks on the host, all at it, so many to a group, and bytes of a vector. Between two sizes
 * logarithms of seconds are interpolated; below the least it takes as long as that, above the largest as many
 * bytes a second. Where the ranks or the group are others, the nearest are taken times the ratio of the
 * formulas. */
#ifndef PGPT_PLAN_LINKS_H
#define PGPT_PLAN_LINKS_H

#include "comm/algo/algo.h"
#include "plan/machine.h"
#include "plan/planned_mesh.h"

typedef enum { LINK_INSIDE, LINK_BETWEEN, N_LINKS } LinkKind;

const char *link_name(LinkKind kind); /* "inside a host" */

typedef struct {
    double inside, between;     /* bytes a second of a rank, each way, with all others at it, too */
    double inside_s, between_s; /* of a message */
    int ranks_a_host;
    bool is_shared; /* what is inside a host: `inside` falls with its ranks */
    CollectiveStyle style;
    const Samples *measured; /* NULL: none */
} Links;

/* The names of samples: of one rank that sends to another; of all else its kind's, and with this behind it
 * what it takes of a rank's core while that computes: ranks that wait for each other leave it alone. */
#define LINK_MESSAGE "message"
#define LINK_WORK    "-work"

Links links_of(const Machine *machine, int64_t n_ranks);

/* How a group lies. */
typedef struct {
    int size;
    int a_host;  /* of its ranks, on the host that has most */
    int n_hosts; /* that have any */
} GroupPlace;

GroupPlace links_place(const Links *links, const PlannedGroup *group);

static inline LinkKind place_link(const GroupPlace *place) {
    return place->n_hosts > 1 ? LINK_BETWEEN : LINK_INSIDE;
}

/* A collective of a vector of n_bytes: all-reduce, reduce-scatter, all-gather, broadcast and the like; of an
 * all-to-all, what a rank sends to others. Or a message to a rank of the group. */
double links_seconds(const Links *links, CommKind kind, double n_bytes, const GroupPlace *place);
/* Of the first, what it takes from the computation beside it where all cores are busy. */
double links_work_seconds(const Links *links, CommKind kind, double n_bytes, const GroupPlace *place);
double links_message_seconds(const Links *links, double n_bytes, const GroupPlace *place);

/* What a rank sends: messages and bytes, of the algorithm that training has for it (comm/collective.c);
 * all_reduce NULL: the library's, taken for a ring. */
typedef struct {
    double n_messages, n_bytes;
} SentCount;

SentCount links_sent(CommKind kind, double n_bytes, int n_ranks, const CommAlgorithm *all_reduce);

/* Of a machine file: names and sizes that a plan can look up. */
Status links_check_samples(const Samples *samples, Error *error);

#endif
