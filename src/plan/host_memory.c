#include "plan/host_memory.h"

#include "base/system/memory.h"
#include "base/text/format.h"

#include <stdio.h>

Status host_memory_check(uint64_t n_pinned, const Backend *backend, Error *error) {
    uint64_t available = memory_available_bytes();
    int n_ranks = backend->n_on_host > 1 ? backend->n_on_host : 1;
    char who[64] = "";
    if (backend->only_plans || n_pinned <= available / (uint64_t)n_ranks) return STATUS_OK;
    if (n_ranks > 1) snprintf(who, sizeof who, " for the %d ranks on this host", n_ranks);
    return error_user(
        error,
        "--offload keeps %s%s in the host's memory, %s are free%s; keep a part on the device "
        "(--offload-share), offload less or to a file (:file=DIR), or let --offload auto choose",
        format_bytes(n_pinned).text, n_ranks > 1 ? " of each rank" : "", format_bytes(available).text, who);
}
