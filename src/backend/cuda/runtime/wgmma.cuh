/* Products of matrices in shared memory by groups of 4 warps: what kernels with such instructions share (compute
 * capability 9.0 alone).
 *
 *     products_begin();                 what the sums are now is known
 *     ...                               wgmma, which go on by themselves
 *     products_end();                   these are a batch
 *     products_arrive<1>();             all batches but the last one are done
 *
 * Boxes have rows of 128 bytes. In row r of a box, 16-byte vector v is at place v ^ (r % 8): so the hardware copies it in
 * and out, so the tensor cores read it, and so 8 rows of one vector are in different banks. */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_WGMMA_CUH
#define PGPT_BACKEND_CUDA_RUNTIME_WGMMA_CUH

#include "backend/cuda/runtime/mbarrier.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* What this thread has written to shared memory is seen by the copies and products that are ordered after the next barrier. */
DEVICE void show_to_copies(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The tensor cores want a matrix in boxes described in 64 bits. The upper ones are always the same: how vectors are
 * swapped, and that it is 1024 bytes from 8 rows to the next. The lower ones say where it begins and, where a box has terms
 * for rows, how far it is from a box to the next. */
enum { ROWS_OF_128 = 1 << 30 | 1024 >> 4 };

DEVICE unsigned describe(const void *box, unsigned next_box) {
    return (next_box >> 4) << 16 | (shared_address(box) & 0x3FFFF) >> 4;
}

DEVICE void products_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void products_end(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> DEVICE void products_arrive(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#endif

#endif
