/* A ring of tiles on their way from global to shared memory: one thread orders copies as far ahead as there is room,
 * and warps take the tiles in the same order.
 *
 * A slot has two barriers in shared memory: `full`, which the copy's bytes complete, and `empty`, which every warp
 * completes that has taken its part of the tile into registers. Both are used in turns: the turn of tile number n is
 * the parity of n / n_slots. Copies are the hardware's (compute capability 9): they need no registers and no threads. */
#ifndef PGPT_BACKEND_CUDA_DECODE_RING_CUH
#define PGPT_BACKEND_CUDA_DECODE_RING_CUH

#include "backend/cuda/device.cuh"

/* Every thread that uses a ring has one of these. Places are bytes from the beginning of the block's shared memory. */
typedef struct {
    int full, empty; /* barriers, a 64-bit word each (n_slots) */
    int slots;       /* (n_slots, slot_bytes) */
    int slot_bytes, n_slots;
    int slot, turn; /* of the next tile */
} Ring;

/* How long what was read stays in the second-level cache. */
typedef enum { KEEP_NORMAL, KEEP_SHORT, KEEP_LONG } Keep;

#if __CUDA_ARCH__ >= 900

extern __shared__ __align__(128) char ring_shared[];

/* As the hardware counts it. */
DEVICE unsigned shared_address(int place) {
    return (unsigned)__cvta_generic_to_shared(ring_shared) + (unsigned)place;
}
DEVICE unsigned barrier_address(int barriers, int slot) {
    return shared_address(barriers + slot * (int)sizeof(uint64_t));
}

/* By one thread, before a block-wide barrier. */
DEVICE void ring_init(const Ring &ring, int n_warps) {
    for (int i = 0; i < ring.n_slots; i++) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier_address(ring.full, i)), "r"(1));
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier_address(ring.empty, i)),
                     "r"(n_warps));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void ring_advance(Ring &ring) {
    if (++ring.slot < ring.n_slots) return;
    ring.slot = 0;
    ring.turn ^= 1;
}

/* Until the barrier has completed the given turn. */
DEVICE void barrier_wait(unsigned barrier, int turn) {
    unsigned done = 0;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(barrier), "r"(turn)
                     : "memory");
    } while (!done);
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
    barrier_wait(barrier_address(ring.empty, ring.slot), ring.turn ^ 1);
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_address(ring.full, ring.slot)),
        "r"(n_bytes)
        : "memory");
}

/* n_bytes and both addresses are multiples of 16. */
DEVICE void ring_copy(const Ring &ring, int at, const void *from, unsigned n_bytes, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                     shared_address(ring.slots + ring.slot * ring.slot_bytes + at)),
                 "l"(from), "r"(n_bytes), "r"(barrier_address(ring.full, ring.slot)), "l"(policy)
                 : "memory");
}

/* ---- those that take ---- */

DEVICE const char *ring_wait(const Ring &ring) {
    barrier_wait(barrier_address(ring.full, ring.slot), ring.turn);
    return ring_shared + ring.slots + ring.slot * ring.slot_bytes;
}

/* By a whole warp, when it has read its part. */
DEVICE void ring_release(Ring &ring) {
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier_address(ring.empty, ring.slot))
                     : "memory");
    ring_advance(ring);
}

#endif

#endif
