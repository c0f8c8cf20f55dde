/* The pieces of attention_groups.cu: what a block has in shared memory, and the instructions that copy 64 rows of a head
 * and multiply them. warpgroups.cuh says how rows lie in shared memory. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_GROUPS_PARTS_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_GROUPS_PARTS_CUH

#include "backend/cuda/attention_short.cuh"
#include "backend/cuda/warpgroups.cuh"

#include <cuda.h>

enum {
    SIZE = 64,  /* of a head */
    SPAN = 64,  /* rows that are copied and multiplied at a time */
    SPANS = 4,  /* of a head at most */
    KEY_SPANS,  /* see keys_place */
    TILES = 10, /* of a span of queries and a span of keys, on and under the diagonal */
    GROUP_WARPS = 4,
    KEY_GROUPS = 2,
    QUERY_GROUP = KEY_GROUPS,
    FEEDING_GROUP,
    GROUPS,
    GROUPS_THREADS = GROUPS * GROUP_WARPS * WARP,
    KEY_WARPS = KEY_GROUPS * GROUP_WARPS,
    ORDERING_WARP = FEEDING_GROUP * GROUP_WARPS,
    FEEDERS = GROUP_WARPS - 1, /* the other warps of that group */
    DRAWERS = FEEDERS + GROUP_WARPS,
    SPAN_BYTES = SPAN * SIZE * 2,
    RING = 3,         /* tiles of dscores that a group is ahead */
    OUTPUTS = 2,      /* spans of y that are there */
    FACT_COLUMN = 20, /* floats: see fact_place */
    MASK_COLUMN = 32, /* bytes: see draw_unit */
    UNIT = 32,        /* queries and keys of it */
    MASK_STRIP = 128, /* of 16 keys */
    MASK_TILE = 4 * MASK_STRIP
};

/* qkv, y and dy are read by the hardware's copies, in boxes of SPAN rows of a head. */
typedef struct {
    CUtensorMap qkv, y, dy;
    const float *lse;
    void *dqkv;
    float *sums;
    int n_heads_in_all, n_spans;
    float keep, inverse; /* what is kept is times the first */
    TiledShape shape;
} GroupsCall;

typedef struct {
    alignas(1024) char keys[KEY_SPANS][SPAN_BYTES], values[KEY_SPANS][SPAN_BYTES];
    char queries[SPANS][SPAN_BYTES], slopes[SPANS][SPAN_BYTES];
    char outputs[OUTPUTS][SPAN_BYTES];
    char dscores[KEY_GROUPS][RING][SPAN_BYTES]; /* rows are queries */
    float relative[SPANS][4 * FACT_COLUMN];     /* -lse · log2 e of the queries */
    float products[SPANS][4 * FACT_COLUMN];     /* -D/c */
    unsigned char mask[2][TILES][MASK_TILE];    /* this head's and the next one's */
    float key_sums[KEY_WARPS][2][SIZE], query_sums[GROUP_WARPS][SIZE];
    /* "full": who comes next may read; "empty": may write */
    uint64_t keys_full[KEY_SPANS], keys_empty[KEY_SPANS]; /* and values */
    uint64_t queries_full[SPANS], queries_empty[SPANS];   /* and dy and, when full, y */
    uint64_t outputs_empty[OUTPUTS];
    uint64_t facts_full[SPANS];
    uint64_t mask_full[2], mask_empty[2];
    uint64_t dscores_full[KEY_GROUPS][RING], dscores_empty[KEY_GROUPS][RING];
    uint64_t sums_full, sums_empty;
} GroupsShared;
static_assert(sizeof(GroupsShared) <= 227 * 1024, "what a block may have");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char groups_shared[];

DEVICE void groups_barriers_init(GroupsShared &shared) {
    for (int i = 0; i < KEY_SPANS; i++) {
        barrier_init(&shared.keys_full[i], 1);
        barrier_init(&shared.keys_empty[i], 2 * GROUP_WARPS); /* who has the keys, and the queries' group */
    }
    for (int i = 0; i < SPANS; i++) {
        barrier_init(&shared.queries_full[i], 1);
        barrier_init(&shared.queries_empty[i], KEY_WARPS + FEEDERS);
        barrier_init(&shared.facts_full[i], FEEDERS);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(&shared.mask_full[i], DRAWERS);
        barrier_init(&shared.mask_empty[i], KEY_WARPS);
        barrier_init(&shared.outputs_empty[i], FEEDERS);
    }
    for (int i = 0; i < KEY_GROUPS * RING; i++) {
        barrier_init(&shared.dscores_full[i / RING][i % RING], GROUP_WARPS);
        barrier_init(&shared.dscores_empty[i / RING][i % RING], GROUP_WARPS);
    }
    barrier_init(&shared.sums_full, KEY_WARPS + GROUP_WARPS);
    barrier_init(&shared.sums_empty, GROUP_WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    show_to_copies();
}

/* The whole warp is past this point. */
DEVICE void warp_arrive(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(barrier);
    __syncwarp();
}

/* ---- boxes ---- */

/* Rows beyond the sequence are zeros. */
DEVICE void order_span(void *to, const CUtensorMap *map, int column, int row, int sequence,
                       uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(sequence), "r"(shared_address(barrier))
                 : "memory");
}
/* Into the cache. */
DEVICE void fetch_span(const CUtensorMap *map, int column, int row, int sequence) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map),
                 "r"(column), "r"(row), "r"(sequence)
                 : "memory");
}

/* Lane L gives the address of row L%8 of matrix L/8, which lies in memory as it is or with its rows for columns. */
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

/* Neither the sums nor a first factor in registers are touched before this point, or after it, as the compiler sees it. */
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
/* 64 rows by 16 terms by 64 columns; add 0: in place of the sums. The first factor comes from shared memory or, as results
 * lie, from registers; the second one has the terms for columns or, turned, for rows, and is turned beside registers. */
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
/* c (+)= a · b over the span's rows, a being in registers; or in shared memory with those rows for columns. */
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

#endif

#endif
