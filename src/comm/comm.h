/* A communicator: a group of processes ("ranks") that exchange data, whatever carries it.
 *
 *     // returns when it is done
 *     TRY(comm_all_reduce(&comm, gradient, n, COMM_F32, COMM_SUM, error));
 *
 *     CommOperation sum = {.kind = COMM_ALL_REDUCE, .data = gradient, .n = n, .type = COMM_F32};
 *     // goes on beside the caller
 *     TRY(comm_start(&comm, &sum, &ticket, error));
 *     ... compute ...
 *     TRY(comm_wait(&comm, &ticket, error));
 *
 * Every rank of a communicator calls the same collective operations in the same order. Operations that were
 * started run in that order too; a blocking call on the same communicator waits for them first. Different
 * communicators are independent.
 *
 * What carries the data is a table of functions (CommTable): comm_self.h has the group of one, comm_mpi.h
 * MPI, comm_null.h a group that only counts. All-reduce is done by the library or by one of the algorithms of
 * algo/, which are written over send and receive alone. */
#ifndef PGPT_COMM_COMM_H
#define PGPT_COMM_COMM_H

#include "base/error.h"
#include "base/system/activity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { COMM_F32, COMM_F64, COMM_BF16, COMM_F16, COMM_I32, COMM_I64, COMM_U8, N_COMM_TYPES } CommType;

size_t comm_type_bytes(CommType type);
const char *comm_type_name(CommType type);

/* 16-bit numbers are added in f32 and rounded once, when the sum is complete. */
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN } CommReduction;

typedef enum {
    COMM_BARRIER,
    COMM_BROADCAST,
    COMM_REDUCE,
    COMM_SCATTER,
    COMM_GATHER,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,
    COMM_ALL_TO_ALL,
    N_COMM_KINDS,
} CommKind;

const char *comm_kind_name(CommKind kind);

/* Elements first .. first + n - 1. */
typedef struct {
    int64_t first, n;
} CommSlice;

/* Slices that lie anywhere: those of rank r are slice[begin[r]] .. slice[begin[r+1]-1], in this order. */
typedef struct {
    const int *begin; /* (size+1), begins with 0 */
    const CommSlice *slice;
    int64_t n_elements; /* of the memory, as far as they reach */
} CommPlaces;

/* One collective operation, described. Slices of a vector lie side by side: that of rank r is elements
 * border[r] .. border[r+1]-1, and may be empty; `border` has size+1 entries, begins with 0 and must stay good
 * until the end. */
typedef struct {
    CommKind kind;
    CommType type;
    CommReduction reduction; /* of reduce, reduce-scatter, all-reduce */
    int root;                /* of broadcast, reduce, scatter, gather */
    /* broadcast, reduce, all-reduce: the vector of n elements; reduce's result is the root's, others keep
     * theirs. all-gather: all slices; the rank's own is there before, all of them after. reduce-scatter: the
     * whole vector before; after it the rank's own slice is the sum, the rest is undefined, but for elements
     * that were 0 on all ranks and stay 0: the gaps between gradients are cleared once and never again.
     * scatter, gather: all slices, at the root (others may pass NULL). all-to-all: what goes to each rank, by
     * `border`. */
    void *data;
    int64_t n;
    const int64_t *border;
    /* scatter, gather: this rank's slice, of `n` elements. all-to-all: what came from each rank, by
     * `other_border`. */
    void *other;
    const int64_t *other_border;
    /* all-to-all, in the place of both borders: where what goes to each rank lies, and where what comes goes.
     * Both sides have as many slices of the same lengths in the same order. */
    const CommPlaces *out_places, *in_places;
} CommOperation;

typedef struct Comm Comm;
typedef struct CommAlgorithm CommAlgorithm; /* algo/algo.h */
typedef struct CommWorker CommWorker;       /* runs what was started, in a thread of its own */

/* Something started: which of the communicator's operations it is. */
typedef struct {
    uint64_t number;
    uint64_t collective; /* its number among the collectives of the communicator */
} CommTicket;

/* A message under way; the transport's own. */
typedef struct {
    void *handle[2];
} CommRequest;

/* What carries the data. Ranks are those of the communicator whose context this is. Slots marked optional may
 * be NULL: comm.c then does it by messages. */
typedef struct CommTable {
    const char *name;
    bool counts_only;   /* moves nothing: data may be NULL and is not touched; needs no cutting into pieces */
    bool only_enqueues; /* start and finish leave all to a device's queues: they can be recorded there */

    /* Point to point. Messages between two ranks with the same tag arrive in order; a receive's size is its
     * message's. */
    Status (*start_send)(void *context, const void *data, size_t n_bytes, int to, int tag,
                         CommRequest *request, Error *error);
    Status (*start_receive)(void *context, void *data, size_t n_bytes, int from, int tag,
                            CommRequest *request, Error *error);
    Status (*wait)(void *context, CommRequest *requests, int n_requests, Error *error); /* for all of them */

    /* Of a communicator whose messages all go one way: each sets out when it is posted, and those posted
     * later come later. Before the first. Optional, where they do so anyway. */
    void (*set_one_way)(void *context);

    /* Wait for one of them and say which; the others stay under way. Optional. */
    Status (*wait_any)(void *context, CommRequest *requests, int n_requests, int *index, Error *error);

    /* A collective operation by the transport's own means, done on return. Optional, and may decline by *done
     * = false. */
    Status (*collective)(void *context, const CommOperation *operation, bool *done, Error *error);

    /* Begin one that proceeds without the host, and wait for it. Optional, both or none: without them a
     * worker thread runs what is started. */
    Status (*start)(void *context, const CommOperation *operation, CommTicket *ticket, Error *error);
    Status (*finish)(void *context, const CommTicket *ticket, Error *error);

    /* Bytes of the memory that this reaches, when all that was enqueued before is done. NULL: it is the
     * host's. */
    Status (*read)(void *context, void *host, const void *data, size_t n_bytes, Error *error);

    /* Has anything failed behind the host's back? Asked by whoever waits for the device. Optional. */
    Status (*check)(void *context, Error *error);

    /* The group of all ranks that pass the same color, ordered by key; a copy of itself if all do. */
    Status (*split)(void *context, int color, int key, Comm *child, Error *error);

    /* May several threads use the transport at once? If not, what is started is done at once. */
    bool (*is_threaded)(void *context);

    /* Does whoever needs the results compute meanwhile (true), or wait for them (false, as at first)? Tells
     * how much of a core waiting for other ranks may cost; may be called while the transport is in use.
     * Optional. */
    void (*be_patient)(void *context, bool is_patient);

    /* End every process of the job, now. */
    void (*abort)(void *context, int exit_code);
    void (*close)(void *context);
} CommTable;

/* What went through, since the communicator was opened. */
typedef struct {
    uint64_t n_operations[N_COMM_KINDS];
    uint64_t n_messages; /* point to point, sent and received */
    uint64_t n_bytes;    /* of vectors handed over, whatever the algorithm makes of them */
    uint64_t busy_ns;    /* operations under way, in the worker or in blocking calls */
    uint64_t waited_ns;  /* the caller's time, in blocking calls and in comm_wait */
} CommCounts;

struct Comm {
    const CommTable *table;
    void *context;
    int rank, size;
    const CommAlgorithm *all_reduce; /* NULL: the transport's own */
    CommWorker *worker;              /* made when something is first started */
    void *scratch;                   /* of the algorithms, COMM_SCRATCH_BYTES, made before one is called */
    void *wide;                      /* 16-bit numbers made f32 for a reduction, made when first needed */
    CommCounts counts;
    uint64_t
        /* begun so far, by running or starting: the same on every rank, so a number names one */
        n_collectives;
    const char *name;        /* "data"; NULL before comm_watch */
    Activity *activity;      /* that is told of everything; NULL: nobody */
    int track, worker_track; /* of the thread that calls, and of the one that runs what is started */
    bool is_broken; /* an operation has failed: the ranks need not have the same idea of what has happened */
};

enum { COMM_SCRATCH_BYTES = 4 << 20 };

/* ---- Blocking */

/* Tags are 0 .. COMM_N_TAGS-1; those above are for the messages that collective operations are made of. */
enum { COMM_N_TAGS = 1 << 14 };

Status comm_send(Comm *comm, const void *data, size_t n_bytes, int to, int tag, Error *error);
Status comm_receive(Comm *comm, void *data, size_t n_bytes, int from, int tag, Error *error);

Status comm_barrier(Comm *comm, Error *error);
Status comm_broadcast(Comm *comm, void *data, int64_t n, CommType type, int root, Error *error);
Status comm_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction, int root,
                   Error *error);
Status comm_all_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction,
                       Error *error);
Status comm_scatter(Comm *comm, const void *all, const int64_t *border, void *mine, int64_t n, CommType type,
                    int root, Error *error);
Status comm_gather(Comm *comm, void *all, const int64_t *border, const void *mine, int64_t n, CommType type,
                   int root, Error *error);
Status comm_all_gather(Comm *comm, void *all, const int64_t *border, CommType type, Error *error);
Status comm_reduce_scatter(Comm *comm, void *all, const int64_t *border, CommType type,
                           CommReduction reduction, Error *error);
Status comm_all_to_all(Comm *comm, const void *out, const int64_t *out_border, void *in,
                       const int64_t *in_border, CommType type, Error *error);

/* Numbers of the memory that the communicator reaches, for the host: those by which a device has decided how
 * much to send. Waits for the device. */
Status comm_read(Comm *comm, void *host, const void *data, size_t n_bytes, Error *error);

/* Any of them, described. */
Status comm_run(Comm *comm, const CommOperation *operation, Error *error);

/* ---- Messages that go on beside the caller (post.c)
 *
 *     TRY(comm_post_receive(&comm, in, n_bytes, from, 0, &request[0], error));
 *     TRY(comm_post_send(&comm, out, n_bytes, to, 0, &request[1], error));
 *     ... compute ...
 *     TRY(comm_wait_posted(&comm, request, 2, error));
 *
 * For ranks that need not keep in step. Not on a communicator with started collectives under way. */

Status comm_post_send(Comm *comm, const void *data, size_t n_bytes, int to, int tag, CommRequest *request,
                      Error *error);
Status comm_post_receive(Comm *comm, void *data, size_t n_bytes, int from, int tag, CommRequest *request,
                         Error *error);

/* For all of them; and for any one, which must be one of at least one and is then no longer to be waited
 * for. */
Status comm_wait_posted(Comm *comm, CommRequest *requests, int n_requests, Error *error);
Status comm_wait_any_posted(Comm *comm, CommRequest *requests, int n_requests, int *index, Error *error);

/* ---- Started and waited for */

/* Make ready for comm_start, so that the first one need not allocate. */
Status comm_prepare(Comm *comm, Error *error);

/* The operation's data must not be touched until it was waited for. */
Status comm_start(Comm *comm, const CommOperation *operation, CommTicket *ticket, Error *error);

/* What was started up to this ticket is done; the error of the first that failed. */
Status comm_wait(Comm *comm, const CommTicket *ticket, Error *error);

/* ---- Seen from outside */

/* Tell an activity of every collective, wait and message, under this name (copied) and in this track, which
 * is that of the thread that will call. Groups split off later are watched like their parent, as "NAME/1:0":
 * first split, color 0. While nothing is under way; an activity of NULL ends it. */
void comm_watch(Comm *comm, Activity *activity, int track, const char *name);

/* How an operation, number `number` of its communicator, is told of. */
ActivityEntry comm_entry(const Comm *comm, const CommOperation *operation, uint64_t number);

/* ---- Groups */

/* Collective. A rank that passes a negative color gets a closed communicator ({0}). */
Status comm_split(Comm *comm, int color, int key, Comm *child, Error *error);

/* Safe on {0}, and twice. */
void comm_close(Comm *comm);

/* End every process of the job: for a rank that cannot go on while others wait for it. Does not return where
 * there are others. */
void comm_abort(Comm *comm, int exit_code);

/* ---- Agreement */

/* Did it go wrong on any rank? Then all of them get the error of the lowest such rank, which is named in the
 * message ("rank 3 on node7: ...") unless every rank says the same. Collective. */
Status comm_agree(Comm *comm, Error *error);

/* Slices as equal as they can be, of whole `grain`s but for the last; border has size+1 entries. */
void comm_even_borders(int64_t n, int size, int64_t grain, int64_t *border);

#endif
