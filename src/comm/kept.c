/* A list: there are as many as a mesh has groups, times those that are open at once. */
#include "comm/kept.h"

#include <stdlib.h>
#include <string.h>

struct KeptComm {
    KeptComm *next;
    Comm comm; /* as it was when it was opened: what it has counted since is its user's */
    int use;
    bool is_taken;
    int32_t rank[]; /* (comm.size) in the world */
};

/* Into ranks (host->size). */
static Status gather_ranks(const KeptComms *kept, Comm *host, int32_t *ranks, Error *error) {
    int64_t *border = malloc(((size_t)host->size + 1) * sizeof *border);
    if (!border) return error_failed(error, "no memory for the ranks of a group");
    for (int r = 0; r <= host->size; r++) border[r] = r;
    ranks[host->rank] = kept->rank;
    comm_all_gather(host, ranks, border, COMM_I32, error);
    free(border);
    return error->status;
}

static KeptComm *find_free(const KeptComms *kept, const int32_t *ranks, int n_ranks, int use) {
    for (KeptComm *at = kept->first; at; at = at->next) {
        if (!at->is_taken && at->use == use && at->comm.size == n_ranks &&
            !memcmp(at->rank, ranks, (size_t)n_ranks * sizeof *ranks))
            return at;
    }
    return NULL;
}

Status kept_comms_find(KeptComms *kept, Comm *host, int use, Comm *comm, Error *error) {
    int32_t *ranks = malloc((size_t)host->size * sizeof *ranks);
    *comm = (Comm){0};
    if (!ranks) return error_failed(error, "no memory for the ranks of a group");
    if (gather_ranks(kept, host, ranks, error) == STATUS_OK) {
        KeptComm *found = find_free(kept, ranks, host->size, use);
        int32_t everywhere = found != NULL;
        if (comm_all_reduce(host, &everywhere, 1, COMM_I32, COMM_MIN, error) == STATUS_OK && everywhere &&
            found) {
            found->is_taken = true;
            *comm = found->comm;
        }
    }
    free(ranks);
    return error->status;
}

Status kept_comms_add(KeptComms *kept, Comm *host, int use, const Comm *comm, Error *error) {
    KeptComm *added = calloc(1, sizeof *added + (size_t)host->size * sizeof *added->rank);
    if (!added) return error_failed(error, "no memory to keep a communicator");
    *added = (KeptComm){.next = kept->first, .comm = *comm, .use = use, .is_taken = true};
    kept->first = added;
    return gather_ranks(kept, host, added->rank, error);
}

bool kept_comms_give_back(KeptComms *kept, Comm *comm) {
    for (KeptComm **at = &kept->first; *at; at = &(*at)->next) {
        KeptComm *found = *at;
        if (found->comm.context != comm->context) continue;
        if (comm->is_broken) {
            *at = found->next;
            free(found);
            return false;
        }
        found->is_taken = false;
        *comm = (Comm){0};
        return true;
    }
    return false;
}

Comm kept_comms_take_out(KeptComms *kept) {
    for (KeptComm **at = &kept->first; *at; at = &(*at)->next) {
        KeptComm *found = *at;
        if (found->is_taken) continue;
        Comm comm = found->comm;
        *at = found->next;
        free(found);
        return comm;
    }
    return (Comm){0};
}
