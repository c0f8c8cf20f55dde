/* A ring of tiles on their way from global to shared memory: one thread issues copies as far ahead as there
 * is room, and warps take the tiles in the same order.
 *
 * A slot has two barriers in shared memory: `full`, which the copy's bytes complete, and `empty`, which all
 * threads complete that have taken their parts of the tile into registers. Both are used in turns: the turn
 * of tile number n is the parity of n / n_slots. Copies are the TMA unit's bulk copies (compute capability
 * 9): they need no registers and no threads. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_RING_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_RING_CUH

#include "backend/cuda/runtime/mbarrier.cuh"

/* Every thread that uses a ring has one of these. Places are bytes from the beginning of the block's shared
 * memory. */
typedef struct {
    int full, empty; /* barriers, a 64-bit word each (n_slots) */
    int slots;       /* (n_slots, slot_bytes) */
    int slot_bytes, n_slots;
    int slot, turn; /* of the next tile */
} Ring;

/* How long what was read stays in the L2 cache. */
typedef enum { KEEP_NORMAL, KEEP_SHORT, KEEP_LONG } Keep;

#if __CUDA_ARCH__ >= 900

extern __shared__ __align__(128) char ring_shared[];

DEVICE uint64_t *ring_barrier(int barriers, int slot) {
    return (uint64_t *)(ring_shared + barriers) + slot;
}

/* By one thread, before a block-wide barrier. */
DEVICE void ring_init(const Ring &ring, int n_warps) {
    for (int i = 0; i < ring.n_slots; i++) {
        mbarrier_init(ring_barrier(ring.full, i), 1);
        mbarrier_init_warps(ring_barrier(ring.empty, i), n_warps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void ring_advance(Ring &ring) {
    if (++ring.slot < ring.n_slots) return;
    ring.slot = 0;
    ring.turn ^= 1;
}

DEVICE uint64_t keep_policy(Keep keep) {
    uint64_t policy;
    if (keep == KEEP_SHORT) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else if (keep == KEEP_LONG) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    else asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* ---- the one that fills ---- */

/* Waits until the slot is free and says how many bytes will come; then copies that add up to them. */
DEVICE void ring_expect(Ring &ring, unsigned n_bytes) {
    mbarrier_wait(ring_barrier(ring.empty, ring.slot), ring.turn ^ 1);
    mbarrier_expect(ring_barrier(ring.full, ring.slot), n_bytes);
}

/* n_bytes and both addresses are multiples of 16. */
DEVICE void ring_copy(const Ring &ring, int at, const void *from, unsigned n_bytes, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                     shared_address(ring_shared + ring.slots + ring.slot * ring.slot_bytes + at)),
                 "l"(from), "r"(n_bytes), "r"(shared_address(ring_barrier(ring.full, ring.slot))), "l"(policy)
                 : "memory");
}

/* ---- those that take ---- */

DEVICE const char *ring_wait(const Ring &ring) {
    mbarrier_wait(ring_barrier(ring.full, ring.slot), ring.turn);
    return ring_shared + ring.slots + ring.slot * ring.slot_bytes;
}

/* By every thread, when it has read its part. */
DEVICE void ring_release(Ring &ring) {
    mbarrier_arrive(ring_barrier(ring.empty, ring.slot));
    ring_advance(ring);
}

#endif

#endif
