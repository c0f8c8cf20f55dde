/* The pieces of grouped_sm90.cu: what a thread block has in shared memory, which tiles it takes, and the
 * instructions that bring them and multiply them. wgmma.cuh says how boxes lie in shared memory.
 *
 * A tile has 128 rows and 256 columns of c, and takes 64 terms at a time: 16 kB of the first factor, 32 kB of
 * the second. With clusters two neighbouring blocks have tiles one below the other, a unit: the second factor
 * is the same for both, each loads one half of it for both (multicast), and what the L2 cache has to deliver
 * is a third less. */
#ifndef PGPT_BACKEND_CUDA_EXPERTS_GROUPED_WARPGROUP_CUH
#define PGPT_BACKEND_CUDA_EXPERTS_GROUPED_WARPGROUP_CUH

#include "backend/cuda/experts/grouped_parts.cuh"
#include "backend/cuda/runtime/wgmma.cuh"

#include <cuda.h>

enum {
    TILE_ROWS = 128,
    PANEL = 256, /* columns of a tile */
    TERMS = 64,  /* of a step: 128 bytes */
    STAGES = 4,
    GROUPS = 2,      /* warpgroups that multiply, 64 rows each */
    GROUP_WARPS = 4, /* as the hardware has it */
    GROUP_THREADS = GROUP_WARPS * WARP,
    GROUP_ROWS = TILE_ROWS / GROUPS,
    GROUPED_THREADS = (GROUPS + 1) * GROUP_THREADS, /* the last group loads */
    SUMS = GROUP_ROWS * PANEL / GROUP_THREADS,      /* of a thread */
    BOX_BYTES = 64 * TERMS * 2,                     /* 64 lines of 128 bytes */
    FIRST_BYTES = TILE_ROWS * TERMS * 2,
    SECOND_BYTES = PANEL * TERMS * 2,
    AHEAD = 1, /* steps that the first group is ahead of the second */
};

typedef struct {
    CUtensorMap a, b;
    GroupedGemm g;
    int columns;       /* of c */
    int n_columns;     /* panels of them */
    int n_rows;        /* units of rows of an expert's c, for the gradient of weights */
    int unit_tiles;    /* tiles of a unit: blocks of a cluster */
    int n_steps;       /* of a tile, but for that */
    int piece_rows;    /* more of an expert's rows than so many are several pieces, for that */
    unsigned *tickets; /* one a tile and group: how many pieces of it are in c; 0 before and after */
    Memory bias;
} WarpgroupCall;

typedef struct {
    alignas(1024) char a[STAGES][FIRST_BYTES];
    char b[STAGES][SECOND_BYTES];
    uint64_t full[STAGES], empty[STAGES];
    uint64_t ahead;
    int32_t offsets[ROUTE_MAX_EXPERTS + 1];
    int32_t units[ROUTE_MAX_EXPERTS + 1]; /* of rows, or pieces, before each expert's */
} GroupedShared;
static_assert(sizeof(GroupedShared) <= 227 * 1024, "what a block may have");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char grouped_shared[];

typedef struct {
    int lane, warp, group; /* the warp of its group */
    int rank;              /* of the block in its cluster */
} Self;

/* A tile: rows row .. row_end-1 of c (as far as they are its own), which for the gradient of weights are the
 * expert's outputs; and the terms: the expert's rows first_term .. end_term-1, or all. */
typedef struct {
    int expert, row, row_end, column;
    int first_term, end_term, n_steps;
    int piece, n_pieces; /* of the terms, for the gradient of weights: this one's, and the tile's */
} Work;

/* Places in shared memory, which boxes take in turn. */
typedef struct {
    int index, turn;
} Stage;

DEVICE void advance(Stage &at) {
    if (++at.index == STAGES) at.index = 0, at.turn ^= 1;
}

/* ---- which tiles ---- */

/* Of an expert with so many rows: units of them, or pieces, one at least: c has to be written. */
template <GroupedKind KIND, int CLUSTER> DEVICE int n_units(const WarpgroupCall &c, int rows) {
    int each = KIND == GROUPED_WEIGHT ? c.piece_rows : TILE_ROWS * CLUSTER, n = (rows + each - 1) / each;
    return KIND == GROUPED_WEIGHT ? max(n, 1) : n;
}

/* By all threads of the block. A warp's lane sums up some neighbouring experts. */
template <GroupedKind KIND, int CLUSTER>
DEVICE void make_tables(const WarpgroupCall &c, GroupedShared &shared) {
    int E = c.g.n_experts, lane = (int)threadIdx.x % WARP, each = (E + WARP - 1) / WARP;
    for (int e = (int)threadIdx.x; e <= E; e += GROUPED_THREADS) shared.offsets[e] = c.g.offsets[e];
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    int first = min(lane * each, E), end = min(first + each, E), own = 0;
    for (int e = first; e < end; e++)
        own += n_units<KIND, CLUSTER>(c, shared.offsets[e + 1] - shared.offsets[e]);
    int sum = own;
#    pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == WARP - 1) shared.units[E] = sum;
    int before = sum - own;
    for (int e = first; e < end; e++) {
        shared.units[e] = before;
        before += n_units<KIND, CLUSTER>(c, shared.offsets[e + 1] - shared.offsets[e]);
    }
}

/* The expert whose units have number `at` of the rows of units: the last that begins there or before. */
DEVICE int find_expert(const int32_t *units, int n_experts, int at) {
    int low = 0, high = n_experts;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (units[middle] <= at) low = middle;
        else high = middle;
    }
    return low;
}

/* The terms of a piece: as many in each of an expert, in whole steps. */
DEVICE void take_piece(const GroupedShared &shared, int piece, Work &w) {
    int first = shared.offsets[w.expert], end = shared.offsets[w.expert + 1];
    w.n_pieces = shared.units[w.expert + 1] - shared.units[w.expert], w.piece = piece;
    int n_steps = (end - first + TERMS - 1) / TERMS, each = (n_steps + w.n_pieces - 1) / w.n_pieces * TERMS;
    w.first_term = min(first + piece * each, end), w.end_term = min(w.first_term + each, end);
    w.n_steps = (w.end_term - w.first_term + TERMS - 1) / TERMS;
}

/* This block's tile of unit `unit`; false: there are no more. Pieces of a tile are in order. */
template <GroupedKind KIND, int CLUSTER>
DEVICE bool find_work(const WarpgroupCall &c, const GroupedShared &shared, const Self &me, int unit,
                      Work &w) {
    enum { UNIT_ROWS = TILE_ROWS * CLUSTER };
    int E = c.g.n_experts, n_rows, first, local;
    int each = KIND == GROUPED_WEIGHT ? c.n_rows * c.n_columns : c.n_columns, index = unit / each;
    if (index >= shared.units[E]) return false;
    w.expert = find_expert(shared.units, E, index);
    if (KIND == GROUPED_WEIGHT) {
        local = unit - index * each;
        n_rows = c.n_rows, first = 0;
        w.row_end = (int)c.g.outputs;
        take_piece(shared, index - shared.units[w.expert], w);
    } else {
        local = unit - shared.units[w.expert] * c.n_columns;
        n_rows = shared.units[w.expert + 1] - shared.units[w.expert];
        first = shared.offsets[w.expert], w.row_end = shared.offsets[w.expert + 1];
        w.first_term = 0, w.end_term = c.n_steps * TERMS, w.n_steps = c.n_steps;
        w.piece = 0, w.n_pieces = 1;
    }
    TilePlace place = tile_place(local, n_rows, c.n_columns);
    w.row = first + place.row * UNIT_ROWS + me.rank * TILE_ROWS;
    w.column = place.column * PANEL;
    return true;
}

/* ---- copies ---- */

DEVICE void load_box(void *to, const CUtensorMap *map, int column, int row, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}
DEVICE void load_box(void *to, const CUtensorMap *map, int column, int row, int expert, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(expert), "r"(shared_address(barrier))
                 : "memory");
}
/* To the same places of both blocks of the cluster, and told to the barrier of each. */
DEVICE void load_box_for_both(void *to, const CUtensorMap *map, int column, int row, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"((uint16_t)3)
                 : "memory");
}
DEVICE void load_box_for_both(void *to, const CUtensorMap *map, int column, int row, int expert,
                              uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(expert), "r"(shared_address(barrier)), "h"((uint16_t)3)
                 : "memory");
}

/* ---- the cluster ---- */

/* This block has read what the barrier guards: nothing that it has written need be seen there. (A release to
 * the cluster would wait for all stores of the epilogue before.) */
DEVICE void arrive_at_rank(uint64_t *barrier, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"(shared_address(barrier)), "r"(rank));
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
/* All threads of both blocks, wherever each comes from. */
DEVICE void cluster_meets(void) {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}
DEVICE void group_meets(int group) { /* one that multiplies */
    asm volatile("barrier.sync %0, %1;" ::"r"(2 + group), "n"((int)GROUP_THREADS) : "memory");
}
DEVICE void loading_group_meets(void) {
    asm volatile("barrier.sync 1, %0;" ::"n"((int)GROUP_THREADS) : "memory");
}

/* ---- GEMMs ---- */

/* The sums are not touched before this point, or after it, as the compiler sees it. */
DEVICE void hold(float sum[SUMS]) {
#    pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(sum[i])::"memory");
}

#    define EIGHT(i)                                                                                         \
        "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]),                \
            "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#    define MULTIPLY_STEP(type, instruction)                                                                        \
        template <bool TURNED_A, bool TURNED_B>                                                                     \
        DEVICE void multiply_step(float sum[SUMS], unsigned a, unsigned b, int add, type) {                         \
            asm volatile(                                                                                           \
                "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %130, 0;\n"                                      \
                "mov.b64 a, {%128, %131};\nmov.b64 b, {%129, %131};\n"                                              \
                "wgmma.mma_async.sync.aligned.m64n256k16.f32." instruction " "                                      \
                "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
                "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
                "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
                "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
                "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
                "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
                "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
                "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
                "a, b, p, 1, 1, %132, %133;\n}\n"                                                                   \
                : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56),             \
                  EIGHT(64), EIGHT(72), EIGHT(80), EIGHT(88), EIGHT(96), EIGHT(104), EIGHT(112), EIGHT(120)         \
                : "r"(a), "r"(b), "r"(add), "n"((int)ROWS_OF_128), "n"(TURNED_A ? 1 : 0),                           \
                  "n"(TURNED_B ? 1 : 0));                                                                           \
        }
/* 64 rows by 16 terms by 256 columns; add 0: in place of the sums. Thread t of the group has of row t/32·16 +
 * t%32/4 and the one 8 below it columns t%4·2 and the next of every 8: sum[4j], sum[4j+1] and sum[4j+2],
 * sum[4j+3] of the j-th 8. */
MULTIPLY_STEP(bf16, "bf16.bf16")
MULTIPLY_STEP(f16, "f16.f16")
#    undef MULTIPLY_STEP
#    undef EIGHT

#endif

#endif
