/* Barriers in shared memory (mbarrier, compute capability 9): what warps and the TMA unit's copies tell each
 * other.
 *
 *     mbarrier_init(&full, 1);             one thread, before a barrier of the whole block
 *     mbarrier_expect(&full, n_bytes);     who issues copies of as many bytes
 *     mbarrier_wait(&full, 0);             who needs them; next time with 1, and so on in alternation */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_MBARRIER_CUH
#define PGPT_BACKEND_CUDA_RUNTIME_MBARRIER_CUH

#include "backend/cuda/runtime/cp_async.cuh"

#if __CUDA_ARCH__ >= 900

DEVICE void mbarrier_init(uint64_t *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}
/* For all threads of so many warps. (One of a warp could speak for the others, who would have told it by
 * __syncwarp; it is no faster, and compute-sanitizer does not see that what they have done comes before.) */
DEVICE void mbarrier_init_warps(uint64_t *barrier, int n_warps) {
    mbarrier_init(barrier, n_warps * WARP);
}
DEVICE void mbarrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/* Once this thread's copies (cp_async) so far have come; init counts it. */
DEVICE void mbarrier_arrive_copied(uint64_t *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
DEVICE void mbarrier_expect(uint64_t *barrier, unsigned n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(n_bytes)
                 : "memory");
}
/* Until the turn is over: 0 is the first, then 1 and 0 in alternation. Then what this block's threads have
 * written before is seen, and what came with the barrier, by copies or from other blocks of a cluster; a wait
 * for all of the cluster's stores would empty the L1 cache each time. */
DEVICE void mbarrier_wait(uint64_t *barrier, int turn) {
    unsigned done = 0;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(turn)
                     : "memory");
    } while (!done);
}

#endif

#endif
