/* GEMMs of tiles in shared memory by warpgroups (4 warps): what kernels with wgmma share (compute capability
 * 9.0 alone).
 *
 *     wgmma_fence();                    what the sums are now is known
 *     ...                               wgmma, which go on by themselves
 *     wgmma_commit();                   these are a group
 *     wgmma_wait<1>();                  all groups but the last one are done
 *
 * Boxes have rows of 128 bytes. In row r of a box, 16-byte vector v is at place v ^ (r % 8), which is the
 * 128-byte swizzle: so TMA copies it in and out, so the tensor cores read it, and so 8 rows of one vector are
 * in different banks. */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_WGMMA_CUH
#define PGPT_BACKEND_CUDA_RUNTIME_WGMMA_CUH

#include "backend/cuda/runtime/mbarrier.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* What this thread has written to shared memory is seen by the copies and wgmma that are issued after the
 * next barrier. */
DEVICE void fence_async_proxy(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The tensor cores want a matrix descriptor of 64 bits. The upper ones are always the same: how vectors are
 * swapped, and that it is 1024 bytes from 8 rows to the next. The lower ones say where it begins and, where a
 * box has terms for rows, how far it is from a box to the next. */
enum { ROWS_OF_128 = 1 << 30 | 1024 >> 4 };

DEVICE unsigned describe(const void *box, unsigned next_box) {
    return (next_box >> 4) << 16 | (shared_address(box) & 0x3FFFF) >> 4;
}

DEVICE void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> DEVICE void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#endif

#endif
