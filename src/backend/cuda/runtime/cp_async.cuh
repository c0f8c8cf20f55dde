/* Copies from global to shared memory that go on by themselves while a thread does something else (compute capability 8 on).
 *
 *     copy16_later(to, from), ...;     as many as there are
 *     copies_end();                    these are a batch
 *     copies_arrive<1>();              all batches of this thread but the last one are there
 *
 * What other threads have copied is there after a barrier. */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_CP_ASYNC_CUH
#define PGPT_BACKEND_CUDA_RUNTIME_CP_ASYNC_CUH

#include "backend/cuda/runtime/device.cuh"

DEVICE unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

/* 16 bytes; or 16 or 8, zeros if there is nothing there. */
DEVICE void copy16_later(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global));
}
DEVICE void copy16_later(unsigned shared, const void *global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(there ? 16 : 0));
}
DEVICE void copy8_later(unsigned shared, const void *global, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global),
                 "r"(there ? 8 : 0));
}

DEVICE void copies_end(void) {
    asm volatile("cp.async.commit_group;");
}

/* At most N batches of this thread are still under way; what is read afterwards is read afterwards. */
template <int N> DEVICE void copies_arrive(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
