/* The kernels of the CPU backend, one file per operation, and the few tools they share.
 *
 * A kernel is right when it agrees with the operation's reference, for every shape, and gives the same bits
 * with every number of threads: each element is computed by one thread in an order that does not depend on
 * how many there are, and sums over rows go through a fixed number of partial sums (reduce.h). */
#ifndef PGPT_BACKEND_CPU_KERNELS_H
#define PGPT_BACKEND_CPU_KERNELS_H

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/simd.h"
#include "graph/op.h"

/* The operations and kernels of kernel_list.h, and their scratch functions: bytes of working memory. */
#define PLAIN(op, kernel)                                                                                    \
    extern const Op op;                                                                                      \
    Status kernel(const KernelCall *call, Error *error);
#define WITH_SCRATCH(op, kernel)                                                                             \
    extern const Op op;                                                                                      \
    Status kernel(const KernelCall *call, Error *error);                                                     \
    size_t kernel##_scratch(const Node *node, int n_threads);
CPU_KERNELS(PLAIN, WITH_SCRATCH)
#undef PLAIN
#undef WITH_SCRATCH

/* dx = dy · slope at x of the node's activation, of so many; dx may be dy or x. */
void cpu_gelu_slope(const KernelCall *call, int64_t count, const float *dy, const float *x, float *dx,
                    bool add);

/* y = the node's activation of `before`, of so many, which is first rounded to the node's type as it will be
 * stored; nothing where that is f32. So it can be made again of what is stored. */
void cpu_gelu_of_stored(const KernelCall *call, int64_t count, float *before, float *y);

/* ---- 16-bit storage (half.c) ----
 * Kernels compute on f32. Where a node has 16-bit tensors, cpu_widened runs its f32 kernel on widened
 * copies. */
bool cpu_needs_widening(const Node *node);
Status cpu_widened(const KernelCall *call, Error *error);
size_t cpu_widening_bytes(const Node *node);

/* A copy of bytes, whatever they are. */
bool cpu_is_plain_copy(const Node *node);

/* The kernel of an operation on f32 (cpu.c). */
Kernel cpu_plain_kernel(const Op *op);

/* to[first..end-1] = from[first..end-1], rounded to the nearest. */
void cpu_narrow(DType dtype, const float *from, void *to, int64_t first, int64_t end);

/* What a tensor of this type would hold in place of x[0..n-1]. */
void cpu_round(DType dtype, float *x, int64_t n);

/* ---- threads ---- */

/* Starting and joining threads costs about as much as this many elements of simple work. */
enum { CPU_SERIAL_BELOW = 16384 };

/* All threads or one, never something between: an OpenMP runtime may end and recreate threads when the size
 * of teams changes, and that costs more than idling. */
static inline int cpu_threads(const KernelCall *call, int64_t n_elements) {
    return n_elements < CPU_SERIAL_BELOW ? 1 : call->n_threads;
}

/* Elements first .. end - 1: part `part` of `n_parts` nearly equal ones of n, cut where cache lines end. */
typedef struct {
    int64_t first, end;
} CpuRange;

static inline CpuRange cpu_part(int64_t n, int part, int n_parts) {
    enum { LINE = 64 };
    int64_t lines = (n + LINE - 1) / LINE;
    int64_t end = (part + 1) * lines / n_parts * LINE;
    return (CpuRange){part * lines / n_parts * LINE, end < n ? end : n};
}

/* ---- loops over vectors ----
 * The body of a loop is written once, as a function of the number of lanes it sees: the main loop passes the
 * constant VEC_LANES and is compiled without a trace of the tail. */
#define CPU_INLINE static inline __attribute__((always_inline))

CPU_INLINE vec lanes_load(const float *p, int lanes) {
    return lanes == VEC_LANES ? vec_load(p) : vec_load_part(p, lanes, 0.0f);
}

CPU_INLINE void lanes_store(float *p, vec v, int lanes) {
    if (lanes == VEC_LANES) vec_store(p, v);
    else vec_store_part(p, v, lanes);
}

/* Write an output as its node asks: in place of what is there, or added to it. */
CPU_INLINE void lanes_write(float *p, vec v, bool add, int lanes) {
    if (add) v += lanes_load(p, lanes);
    lanes_store(p, v, lanes);
}

/* 1/(1+e^-x) within a few units in the last place, near 0 below -88; *complement is 1 minus it, equally exact
 * where subtraction would leave nothing but rounding. */
CPU_INLINE vec vec_sigmoid(vec x, vec *complement) {
    vec e = vec_exp(-x), s = vec_set(1.0f) / (vec_set(1.0f) + e);
    *complement = e * s;
    return s;
}

#endif
