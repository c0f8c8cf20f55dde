/* A product with a few rows on GPUs that copy in bulk: the weights stream through shared memory without a thread's help.
 *
 * A block per multiprocessor has a range of outputs, equal for all to within one, and takes them 8 at a time. Its 8 warps
 * share the terms of the sums: a warp has the same chunks of terms of every group of outputs. It has a ring of places in
 * shared memory of its own, orders what comes next into a place as soon as it is free, and so has tens of kilobytes under
 * way all the time; at the end of a group the warps add up what they have, while the weights of the next groups are
 * coming. The order of a sum depends on the number of its terms alone.
 *
 * The first weights are ordered before the predecessor in the stream has ended (few_rows.cuh): half of the shared memory
 * is left to it, so that two such kernels have room on a multiprocessor. */
#include "backend/cuda/few_rows.cuh"

enum {
    STREAM_WARPS = 8,
    MOST_STEPS = 8, /* a chunk is that many times 32 terms at most */
    MOST_PLACES = 8,
    RING_BYTES = 104 * 1024, /* of a block: two blocks and their other memory must fit */
    SUMS = 2 * STREAM_WARPS * FEW_ROWS * FEW_OUTPUTS, /* groups take turns between two sets */
};

typedef struct {
    FewRowsCall c;
    int n_steps;   /* of a chunk */
    int n_chunks;  /* of a row */
    int n_places;  /* of a ring */
    int row_bytes; /* from one output's part of a place to the next */
} StreamCall;

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

DEVICE unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

DEVICE void barrier_open(unsigned barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

/* One arrival, and that many bytes by copies, end the phase. */
DEVICE void barrier_expect(unsigned barrier, unsigned n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n_bytes)
                 : "memory");
}

DEVICE void barrier_wait(unsigned barrier, unsigned phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
}

DEVICE void copy_bulk(unsigned to, const void *from, unsigned n_bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(n_bytes), "r"(barrier)
        : "memory");
}

/* A warp's walk over its chunks: group by group, and within a group every STREAM_WARPS-th. */
typedef struct {
    int64_t output; /* first of the group */
    int chunk;
} Walk;

DEVICE void walk_on(Walk *walk, int warp, int n_chunks) {
    walk->chunk += STREAM_WARPS;
    if (walk->chunk < n_chunks) return;
    walk->chunk = warp;
    walk->output += FEW_OUTPUTS;
}

/* Orders the chunk into a place: a row each for the first 8 lanes. */
template <typename T>
DEVICE void order(const StreamCall &s, Walk walk, int64_t end, unsigned place, unsigned barrier, int lane) {
    int64_t k = (int64_t)walk.chunk * s.n_steps * 32, n_terms = s.c.inner - k;
    int n_rows = end - walk.output < FEW_OUTPUTS ? (int)(end - walk.output) : FEW_OUTPUTS;
    if (n_terms > s.n_steps * 32) n_terms = s.n_steps * 32;
    unsigned n_bytes = (unsigned)n_terms * (unsigned)sizeof(T);
    if (lane == 0) barrier_expect(barrier, n_bytes * (unsigned)n_rows);
    __syncwarp();
    if (lane < n_rows) {
        copy_bulk(place + (unsigned)(lane * s.row_bytes),
                  (const T *)s.c.weight + (walk.output + lane) * s.c.inner + k, n_bytes, barrier);
    }
}

template <typename T, bool MANY>
DEVICE void multiply_chunk(float sum[4], const StreamCall &s, const char *weights, int64_t k, int g,
                           const T *x, const T *x8) {
    bool has_row = g < s.c.rows, has_row8 = MANY && g + 8 < s.c.rows;
#    pragma unroll
    for (int step = 0; step < MOST_STEPS; step++, k += 32) {
        if (step < s.n_steps) {
            uint4 w = k < s.c.inner ? *(const uint4 *)(weights + step * 64) : no_vector();
            multiply32<T>(sum, x_at(x, k, s.c.inner, has_row), x_at(x8, k, s.c.inner, has_row8), w);
        }
    }
}

template <typename T, Activation KIND, bool MANY>
static __global__ void __launch_bounds__(STREAM_WARPS *WARP, 2)
    stream_kernel(const __grid_constant__ StreamCall s) {
    extern __shared__ __align__(128) char ring[];
    __shared__ float sums[SUMS];
    __shared__ uint64_t barriers[STREAM_WARPS][MOST_PLACES];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int64_t first = s.c.columns * blockIdx.x / gridDim.x, end = s.c.columns * (blockIdx.x + 1) / gridDim.x;
    int place_bytes = FEW_OUTPUTS * s.row_bytes;
    char *places = ring + warp * s.n_places * place_bytes;
    unsigned barrier = shared_address(barriers[warp]);
    let_successor_start();
    if (lane < s.n_places) barrier_open(barrier + 8 * (unsigned)lane);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    Walk next = {first, warp};
    bool has_chunks = warp < s.n_chunks;
    for (int i = 0; i < s.n_places && has_chunks && next.output < end; i++) {
        order<T>(s, next, end, shared_address(places + i * place_bytes), barrier + 8 * (unsigned)i, lane);
        walk_on(&next, warp, s.n_chunks);
    }
    wait_for_predecessor();
    const T *x = (const T *)s.c.x + (int64_t)g * s.c.inner, *x8 = x + 8 * s.c.inner;
    int place = 0, set = 0;
    unsigned phase = 0;
    for (int64_t output = first; output < end; output += FEW_OUTPUTS, set ^= 1) {
        float sum[4] = {0};
        for (int chunk = warp; chunk < s.n_chunks; chunk += STREAM_WARPS) {
            const char *weights = places + place * place_bytes + g * s.row_bytes + 16 * t;
            barrier_wait(barrier + 8 * (unsigned)place, phase);
            multiply_chunk<T, MANY>(sum, s, weights, (int64_t)chunk * s.n_steps * 32 + 8 * t, g, x, x8);
            if (next.output < end) {
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                order<T>(s, next, end, shared_address(places + place * place_bytes),
                         barrier + 8 * (unsigned)place, lane);
                walk_on(&next, warp, s.n_chunks);
            }
            if (++place == s.n_places) place = 0, phase ^= 1;
        }
        float *mine = sums + set * (SUMS / 2);
        leave_sums<MANY>(mine + warp * FEW_ROWS * FEW_OUTPUTS, sum, g, t);
        __syncthreads();
        if (threadIdx.x < FEW_ROWS * FEW_OUTPUTS)
            finish_element<T, KIND>(s.c, mine, STREAM_WARPS, output, end);
    }
}

#else /* never launched there */

template <typename T, Activation KIND, bool MANY>
static __global__ void stream_kernel(const __grid_constant__ StreamCall s) {
    (void)s;
}

#endif

/* Chunks such that every warp has the same number of them, or nearly; as many places as there is room for. Rows of a
 * place lie half the banks apart, so that the 8 threads of one access meet no bank twice. */
static StreamCall stream_call(const FewRows *p) {
    StreamCall s = {};
    int64_t each = MOST_STEPS * 32, rounds = (p->inner + STREAM_WARPS * each - 1) / (STREAM_WARPS * each);
    int64_t steps = (p->inner + STREAM_WARPS * rounds * 32 - 1) / (STREAM_WARPS * rounds * 32);
    s.c = few_rows_call(p);
    s.n_steps = (int)steps;
    s.n_chunks = (int)((p->inner + steps * 32 - 1) / (steps * 32));
    s.row_bytes = s.n_steps % 2 ? s.n_steps * 64 : s.n_steps * 64 + 64;
    int places = RING_BYTES / (STREAM_WARPS * FEW_OUTPUTS * s.row_bytes);
    s.n_places = places < MOST_PLACES ? places : MOST_PLACES;
    return s;
}

template <typename T, Activation KIND, bool MANY>
static cudaError_t start_stream(const cudaLaunchConfig_t *config, const StreamCall *call) {
    cudaError_t code = cudaFuncSetAttribute(stream_kernel<T, KIND, MANY>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, RING_BYTES);
    return code == cudaSuccess ? cudaLaunchKernelEx(config, stream_kernel<T, KIND, MANY>, *call) : code;
}

extern "C" Status cuda_few_rows_streamed(const CudaContext *context, const FewRows *p, Error *error) {
    StreamCall call = stream_call(p);
    cudaLaunchAttribute early;
    unsigned blocks =
        p->columns < context->n_processors ? (unsigned)p->columns : (unsigned)context->n_processors;
    cudaLaunchConfig_t config = few_rows_launch(context, p, blocks, STREAM_WARPS * WARP, &early);
    config.dynamicSmemBytes = (size_t)(STREAM_WARPS * call.n_places * FEW_OUTPUTS) * (size_t)call.row_bytes;
    return cuda_check(FEW_ROWS_START(start_stream, p, &config, &call), "linear (few rows)", error);
}
