/* Has the host room for what a device's programs keep in its memory (--offload WHAT:host)?
 *
 *     TRY(host_memory_check(plan_bytes_of(&plan, MEMORY_PINNED), backend, error));
 *
 * Memory that is pinned cannot be given back for a while: a host that has too little of it ends processes,
 * this one or others. So it is asked before anything is taken. */
#ifndef PGPT_PLAN_HOST_MEMORY_H
#define PGPT_PLAN_HOST_MEMORY_H

#include "graph/backend.h"

/* n_pinned: of this rank; others on the host take as much. The error says what to do instead. */
Status host_memory_check(uint64_t n_pinned, const Backend *backend, Error *error);

#endif
