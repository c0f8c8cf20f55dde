/* What moves data between the kinds of memory that a program has: what kernels work on, the host's and a
 * file.
 *
 *     uint64_t ticket;
 *     MoveEnd from = {weights, MEMORY_HOST}, to = {place, MEMORY_FILE};
 *     TRY(mover_start(mover, MOVE_OUT, from, to, n_bytes, &ticket, error));
 *     ... anything that leaves both alone ...
 *     TRY(mover_wait(mover, ticket, true, error));
 *
 * Moves run beside the program, out and in; files are read and written with many moves in flight, copies to
 * and from a device are the device's own, those within the host's memory a thread's. A move waits by itself
 * for earlier ones that touch the same bytes; others may overtake it. What a node touches is the
 * program's business: it waits before it reads what a move brings, or writes what one takes away. */
#ifndef PGPT_GRAPH_DEVICE_MOVER_H
#define PGPT_GRAPH_DEVICE_MOVER_H

#include "base/file/file_queue.h"
#include "base/system/activity.h"
#include "graph/backend.h"
#include "graph/device/device_times.h"

typedef struct Mover Mover;

typedef enum { MOVE_OUT, MOVE_IN, N_MOVE_LANES } MoveLane;

/* Under way at a time; who starts more waits for the earliest. */
enum { MOVER_MOST_MOVES = 256 };

typedef struct {
    void *address; /* in a file: one of those that stand for its bytes */
    MemoryKind kind;
} MoveEnd;

/* Addresses base .. base + n_bytes - 1 are the bytes of a file. */
typedef struct {
    const void *base;
    size_t n_bytes;
} MoverFile;

enum { MOVER_MOST_FILES = 2 };

typedef struct {
    const Backend *backend;
    const char *folder;  /* where files are; NULL: there are none */
    FileQueueKind queue; /* how they are read and written */
    MoverFile file[MOVER_MOST_FILES];
    int n_files;
    DeviceTimes *times; /* of copies to and from a device; NULL: nobody wants to know */
} MoverOptions;

Status mover_open(Mover **opened, const MoverOptions *options, Error *error);
void mover_close(Mover **opened); /* what is under way is waited for; also NULL */

/* From now on moves of files, and within the host's memory, are shown on a track for each lane, "moves out"
 * and "moves in"; copies to and from a device have times of the device's (device_times.h). NULL: no more.
 * While nothing is moved. */
void mover_watch(Mover *mover, Activity *activity);

/* Of a tensor that lies at this address. */
MoveEnd mover_end(const Mover *mover, const Tensor *tensor, void *address);

/* To and from a file, the memory begins where in a page the file does, with room for whole pages at both
 * ends. */
Status mover_start(Mover *mover, MoveLane lane, MoveEnd from, MoveEnd to, size_t n_bytes, uint64_t *ticket,
                   Error *error);

/* By the host; or, of a copy to or from a device, by the device: the host goes on. */
Status mover_wait(Mover *mover, uint64_t ticket, bool by_host, Error *error);

/* Bytes from here to there, anywhere, behind everything that was started: for the host, between programs. */
Status mover_copy(Mover *mover, MoveEnd from, MoveEnd to, size_t n_bytes, Error *error);

/* Seconds that the host has waited in mover_wait since it was opened, and bytes that were moved; of these,
 * to and from a device over its bus, and to and from a file. */
typedef struct {
    double wait_seconds;
    uint64_t bytes[N_MOVE_LANES], bus_bytes[N_MOVE_LANES], file_bytes[N_MOVE_LANES];
} MoverCounts;

MoverCounts mover_counts(const Mover *mover);

/* How files are read and written, in words; "" where there are none. */
const char *mover_way(const Mover *mover, char *text, size_t n_bytes);

#endif
