/* Communicators that are dear to open, kept for the next who wants one of the same ranks: for a process that
 * opens one layout after the other.
 *
 *     TRY(kept_comms_find(&kept, host, use, &comm, error));
 *     if (!comm.table) {                                       // none is free
 *         ... open one ...
 *         TRY(kept_comms_add(&kept, host, use, &comm, error));
 *     }
 *     ...
 *     kept_comms_give_back(&kept, &comm);
 *
 * They are told apart by their ranks in order, and by what they are for. All ranks of a group ask for the
 * same, in the same order. */
#ifndef PGPT_COMM_KEPT_H
#define PGPT_COMM_KEPT_H

#include "comm/comm.h"

typedef struct KeptComm KeptComm;

typedef struct {
    int rank; /* of this process in the world, by which all know it */
    KeptComm *first;
} KeptComms;

/* One that is free on all ranks of `host`; {0}: there is none. Collective over `host`. */
Status kept_comms_find(KeptComms *kept, Comm *host, int use, Comm *comm, Error *error);

/* Opened since then over the same ranks, and in use. Collective over `host`. */
Status kept_comms_add(KeptComms *kept, Comm *host, int use, const Comm *comm, Error *error);

/* True: it is free for the next, and *comm is {0}. False: it is not kept, or is broken, and the caller closes
 * it. */
bool kept_comms_give_back(KeptComms *kept, Comm *comm);

/* The first that is free, which is then kept no longer; {0}: none. For whoever closes them all. */
Comm kept_comms_take_out(KeptComms *kept);

#endif
