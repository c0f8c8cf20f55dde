/* Asynchronous copies from global to shared memory (cp.async, compute capability 8 on): they go on by
 * themselves while a thread does something else.
 *
 *     cp_async16(to, from), ...;       as many as there are
 *     cp_async_commit();               these are a group
 *     cp_async_wait<1>();              all groups of this thread but the last one are there
 *
 * What other threads have copied is there after a barrier. */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_CP_ASYNC_CUH
#define PGPT_BACKEND_CUDA_RUNTIME_CP_ASYNC_CUH

#include "backend/cuda/runtime/device.cuh"

DEVICE unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

/* 16 bytes; or 16 or 8, zeros if there is nothing there. */
DEVICE void cp_async16(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global));
}
DEVICE void cp_async16(unsigned shared, const void *global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(there ? 16 : 0));
}
DEVICE void cp_async8(unsigned shared, const void *global, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global),
                 "r"(there ? 8 : 0));
}

DEVICE void cp_async_commit(void) {
    asm volatile("cp.async.commit_group;");
}

/* At most N groups of this thread are still under way; what is read afterwards is read afterwards. */
template <int N> DEVICE void cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
