/* Attention of short sequences with heads of 64 by warpgroups (4 warps) that multiply 64 rows at a time
 * (wgmma, compute capability 9.0): what attention_warpgroup_backward_sm90.cu and
 * attention_warpgroup_forward_sm90.cu share. The rows of a head come in spans of 64; blocks take one head
 * after the other. wgmma.cuh says how rows lie in shared memory. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WARPGROUP_SPANS_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WARPGROUP_SPANS_CUH

#include "backend/cuda/attention/attention_short.cuh"
#include "backend/cuda/runtime/pdl.cuh"
#include "backend/cuda/runtime/tma_descriptor.h"
#include "backend/cuda/runtime/wgmma.cuh"

enum {
    SIZE = 64,  /* of a head */
    SPAN = 64,  /* rows that are copied and multiplied at a time */
    SPANS = 4,  /* of a head at most */
    TILES = 10, /* of a span of queries and a span of keys, on and under the diagonal */
    GROUP_WARPS = 4,
    SPAN_BYTES = SPAN * SIZE * 2
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char warpgroup_shared[];

/* What a thread knows about itself and where its block is: `n` is the number of the head among the
 * block's. */
typedef struct {
    int lane, warp, group; /* the warp of its group */
    int n;
} Self;

/* Of this thread; the compiler, too, is to know that it is the same for the whole warp. */
DEVICE int warp_of_block(void) {
    return __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / WARP, 0);
}
DEVICE Self self_of(int warp) {
    Self me = {(int)threadIdx.x % WARP, warp % GROUP_WARPS, warp / GROUP_WARPS, 0};
    return me;
}

DEVICE int head_of(int n) {
    return (int)blockIdx.x + n * (int)gridDim.x;
}
/* To the next head, of so many in all. Is there one? */
DEVICE bool next_head(int n_heads, Self &me) {
    return head_of(++me.n) < n_heads;
}

DEVICE int tile_index(int queries, int keys) {
    return queries * (queries + 1) / 2 + keys;
}

/* ---- boxes ---- */

/* Rows beyond the sequence are zeros. */
DEVICE void produce_span(void *to, const CUtensorMap *map, int column, int row, int sequence,
                         uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(sequence), "r"(shared_address(barrier))
                 : "memory");
}

/* Lane L gives the address of row L%8 of matrix L/8, which lies in memory as it is or with its rows for
 * columns. */
DEVICE void store_matrices(unsigned shared, const unsigned r[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
DEVICE void store_matrices_turned(unsigned shared, const unsigned r[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---- products ---- */

/* Neither the sums nor a first factor in registers are touched before this point, or after it, as the
 * compiler sees it. */
DEVICE void hold(float c[SIZE / 8][4]) {
#    pragma unroll
    for (int i = 0; i < SIZE / 2; i++) asm volatile("" : "+f"(c[i / 4][i % 4])::"memory");
}
DEVICE void hold(unsigned a[SPAN / 16][4]) {
#    pragma unroll
    for (int i = 0; i < SPAN / 4; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

#    define FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#    define SUMS                                                                                             \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                            \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#    define MULTIPLY_STEPS(type, instruction)                                                                \
        template <bool TURNED>                                                                               \
        DEVICE void multiply_step(float c[8][4], unsigned a, unsigned b, int add, type) {                    \
            asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\n"                       \
                         "mov.b64 a, {%32, %35};\nmov.b64 b, {%33, %35};\n"                                  \
                         "wgmma.mma_async.sync.aligned.m64n64k16.f32." instruction " " SUMS                  \
                         "a, b, p, 1, 1, 0, %36;\n}\n"                                                       \
                         : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)            \
                         : "r"(a), "r"(b), "r"(add), "n"((int)ROWS_OF_128), "n"(TURNED ? 1 : 0));            \
        }                                                                                                    \
        DEVICE void multiply_step(float c[8][4], const unsigned a[4], unsigned b, int add, type) {           \
            asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %37, 0;\n"                          \
                         "mov.b64 b, {%36, %38};\n"                                                          \
                         "wgmma.mma_async.sync.aligned.m64n64k16.f32." instruction " " SUMS                  \
                         "{%32, %33, %34, %35}, b, p, 1, 1, 1;\n}\n"                                         \
                         : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)            \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add),                     \
                           "n"((int)ROWS_OF_128));                                                           \
        }
/* 64 rows by 16 terms by 64 columns; add 0: in place of the sums. The first factor comes from shared memory
 * or, as results lie, from registers; the second one has the terms for columns or, turned, for rows, and is
 * turned beside registers. */
MULTIPLY_STEPS(bf16, "bf16.bf16")
MULTIPLY_STEPS(f16, "f16.f16")
#    undef MULTIPLY_STEPS
#    undef SUMS
#    undef FOUR

/* From 16 terms to the next, in descriptions. */
enum { NEXT_COLUMNS = 32 >> 4, NEXT_ROWS = 2048 >> 4 };

/* c = a · bᵀ over the channels, of two spans. */
template <typename T> DEVICE void multiply_spans(float c[8][4], const void *a, const void *b) {
    unsigned first = describe(a, 16), second = describe(b, 16);
#    pragma unroll
    for (int k = 0; k < SIZE / 16; k++)
        multiply_step<false>(c, first + k * NEXT_COLUMNS, second + k * NEXT_COLUMNS, k, T());
}
/* c (+)= a · b over the span's rows, a being in registers; or in shared memory with those rows for
 * columns. */
template <typename T>
DEVICE void multiply_rows(float c[8][4], const unsigned a[SPAN / 16][4], const void *b, bool add) {
    unsigned second = describe(b, SPAN_BYTES);
#    pragma unroll
    for (int k = 0; k < SPAN / 16; k++) multiply_step(c, a[k], second + k * NEXT_ROWS, k ? 1 : (int)add, T());
}
template <typename T> DEVICE void multiply_rows(float c[8][4], const void *a, const void *b, bool add) {
    unsigned first = describe(a, 16), second = describe(b, SPAN_BYTES);
#    pragma unroll
    for (int k = 0; k < SPAN / 16; k++)
        multiply_step<true>(c, first + k * NEXT_COLUMNS, second + k * NEXT_ROWS, k ? 1 : (int)add, T());
}

/* ---- results ---- */

/* 16 rows of a span, times the factors of rows g and g + 8, into the warp's 16 rows of a box that the group
 * is done with. Where columns 16·k on are found by load_matrices, at[k], may be asked for. */
template <typename T>
DEVICE void put_in_box(char *box, const Self &me, const float factor[2], const float d[8][4],
                       unsigned *at = NULL) {
    int row = me.lane / 8 % 2 * 8 + me.lane % 8;
    box += me.warp * 16 * 128;
#    pragma unroll
    for (int k = 0; k < 4; k++) {
        unsigned word[4],
            here = shared_address(box) + (unsigned)(row * 128 + ((2 * k + me.lane / 16) ^ row % 8) * 16);
#    pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *pair = d[2 * k + j / 2] + j % 2 * 2;
            word[j] = pair_of_floats(pair[0] * factor[j % 2], pair[1] * factor[j % 2], T());
        }
        store_matrices(here, word);
        if (at) at[k] = here;
    }
}

/* And from there, turned into vectors, to rows `first` on of a head of so many. */
template <typename T>
DEVICE void store_through_box(unsigned at[4], char *box, T *head, int64_t stride, int first, int n_rows,
                              const Self &me, const float factor[2], const float d[8][4]) {
    put_in_box<T>(box, me, factor, d, at);
    box += me.warp * 16 * 128;
    __syncwarp();
#    pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = i * 4 + me.lane / 8, vector = me.lane % 8;
        uint4 whole = *(const uint4 *)(box + r * 128 + (vector ^ r % 8) * 16);
        if (first + r < n_rows) *(uint4 *)(head + (first + r) * stride + vector * 8) = whole;
    }
}

#endif

/* ---- on the host's side ---- */

/* Rows of a head of all sequences, in boxes that end with the sequence. */
static inline bool map_heads(CUtensorMap *map, const void *data, const AttentionShape *s, int64_t width) {
    uint64_t size[3] = {(uint64_t)width, (uint64_t)s->n_positions, (uint64_t)s->n_sequences},
             stride[2] = {(uint64_t)width * 2, (uint64_t)(width * s->n_positions) * 2};
    uint32_t box[3] = {SIZE, SPAN, 1};
    return cuda_tma_descriptor(map, data, 3, size, stride, box);
}

/* How many blocks, one a multiprocessor, take about as many heads each. */
static inline cudaError_t blocks_for_heads(int *n_blocks, int n_heads) {
    int device = 0, n_processors = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, device);
    if (code != cudaSuccess) return code;
    int rounds = (n_heads + n_processors - 1) / n_processors;
    *n_blocks = (n_heads + rounds - 1) / rounds;
    return cudaSuccess;
}

/* A kernel whose blocks have so much shared memory, for all heads of the call. */
template <typename Call>
static cudaError_t launch_for_heads(void (*kernel)(const Call), int n_threads, size_t shared_bytes,
                                    cudaStream_t stream, const Call &call) {
    int n_blocks = 0;
    cudaError_t code = blocks_for_heads(&n_blocks, call.n_heads_in_all);
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (code != cudaSuccess) return code;
    return launch_pdl(kernel, (unsigned)n_blocks, (unsigned)n_threads, shared_bytes, stream, call);
}

#endif
