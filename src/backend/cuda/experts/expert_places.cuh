/* Who is the how many-th of its kind: the order of choices among those of the same expert, which sorting and
 * filling up to a capacity need.
 *
 * A warp has a run of neighbours and takes 32 at a time. Lanes that have the same expert find each other
 * (match), and are ordered by lane; `next` (n_experts), in shared memory, is the warp's own, and says what
 * the next one of each expert gets. All of it is integers: the result is the same whoever comes first. */
#ifndef PGPT_BACKEND_CUDA_EXPERTS_EXPERT_PLACES_CUH
#define PGPT_BACKEND_CUDA_EXPERTS_EXPERT_PLACES_CUH

#include "backend/cuda/runtime/device.cuh"

enum { PLACE_WARPS = 8, PLACE_THREADS = PLACE_WARPS * WARP };

/* By a whole warp, one choice a lane; expert -1: none, and the place is -1. */
DEVICE int take_place(int32_t *next, int expert) {
    int lane = (int)threadIdx.x % WARP;
    unsigned alike = __match_any_sync(0xFFFFFFFFu, expert), before = alike & ((1u << lane) - 1);
    int place = expert >= 0 ? next[expert] + __popc(before) : -1;
    __syncwarp();
    if (expert >= 0 && !before) next[expert] += __popc(alike);
    __syncwarp();
    return place;
}

/* By the whole block, when its warps have counted what they have, in counts (PLACE_WARPS, n_experts): each
 * count becomes how many the warps before it have, and first(e). */
template <typename First> DEVICE void start_places(int32_t *counts, int n_experts, First first) {
    __syncthreads();
    for (int e = (int)threadIdx.x; e < n_experts; e += PLACE_THREADS) {
        int place = first(e);
        for (int w = 0; w < PLACE_WARPS; w++) {
            int n = counts[w * n_experts + e];
            counts[w * n_experts + e] = place;
            place += n;
        }
    }
    __syncthreads();
}

#endif
