/* Launchers differ. Some bind every rank to cores of its own; some bind the ranks of a socket to all cores of
 * that socket; some bind nobody. All three are the same case: ranks fall into teams that were given the very
 * same cores, and teams do not overlap. A team's cores are divided among it.
 *
 * Anything else (a rank's cores are some of another's) was arranged by hand and is left as it is: then all
 * that is known is how many ranks and how many cores there are. */
#include "parallel/launch/affinity.h"

static int at_least_one(int n) {
    return n > 1 ? n : 1;
}

RankCores affinity_cores(const CoreSet *sets, int n_ranks, int rank, int quota) {
    const CoreSet *mine = &sets[rank];
    CoreSet all = {{0}};
    int part = 0, n_team = 1;
    bool is_team = cores_count(mine) > 0; /* nothing is known of an empty set */
    for (int i = 0; i < n_ranks; i++) {
        cores_join(&all, &sets[i]);
        if (i == rank) continue;
        if (cores_equal(&sets[i], mine)) {
            if (i < rank) part++;
            n_team++;
        } else if (cores_overlap(&sets[i], mine)) {
            is_team = false;
        }
    }
    int n_mine = cores_count(mine), n_all = cores_count(&all);
    RankCores share = {.n_parts = 1};
    if (is_team) {
        share.n_cores = at_least_one(n_mine / n_team);
        share.is_crowded = n_team > n_mine;
        share.is_own = n_team == 1;
        if (!share.is_crowded) share.part = part, share.n_parts = n_team;
    } else {
        share.n_cores = at_least_one(n_all / n_ranks);
        if (share.n_cores > n_mine) share.n_cores = at_least_one(n_mine);
        share.is_crowded = n_ranks > n_all;
    }
    if (quota > 0) { /* it is for all of them together */
        int n_quota = at_least_one(quota / n_ranks);
        if (n_quota < share.n_cores) share.n_cores = n_quota;
        if (n_ranks > quota) share.is_crowded = true;
    }
    return share;
}
