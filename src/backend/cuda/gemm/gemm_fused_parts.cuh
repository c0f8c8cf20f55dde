/* The pieces of gemm_fused_sm90.cu: what a thread block has in shared memory, and the instructions of compute
 * capability 9.0 that copy boxes of matrices (TMA) and multiply them (wgmma).
 *
 * wgmma.cuh says how boxes lie in shared memory. */
#ifndef PGPT_BACKEND_CUDA_GEMM_GEMM_FUSED_PARTS_CUH
#define PGPT_BACKEND_CUDA_GEMM_GEMM_FUSED_PARTS_CUH

#include "backend/cuda/gemm/gemm_fused.h"
#include "backend/cuda/runtime/wgmma.cuh"

#include <cuda.h>

enum {
    TILE = 64,   /* rows of c that a warpgroup makes at a time */
    PANEL = 192, /* columns of c that a block has */
    SORTED = 32, /* columns among which the tensor cores' order is another than memory's */
    TERMS = 64,  /* of the sums, in a box: 128 bytes */
    MOST_STEPS = FUSED_MOST_INNER / TERMS,
    GROUPS = 2,                                        /* that multiply in turns */
    GROUP_WARPS = 4,                                   /* as the hardware has it */
    FUSED_THREADS = (GROUPS + 1) * GROUP_WARPS * WARP, /* two warps of the last group load by TMA */
    WARP_ROWS = TILE / GROUP_WARPS,
    SUMS = TILE * PANEL / (GROUP_WARPS * WARP), /* of a thread */
    VECTORS = SUMS / VECTOR,                    /* that a thread stores: two rows of every SORTED columns */
    BOX_BYTES = TILE * TERMS * 2,
    PANEL_BYTES = PANEL * TERMS * 2, /* of a step */
    CHUNK = 64,                      /* columns of `before` that come at a time, as boxes of SORTED columns */
    CHUNKS = PANEL / CHUNK,
    CHUNK_BYTES = TILE * CHUNK * 2,
};

/* The epilogue. */
enum Mode { MODE_PLAIN, MODE_GELU, MODE_SLOPE };

/* x (rows,inner), weight (columns,inner) or for the slope (inner,columns), before and y (rows,columns). */
typedef struct {
    CUtensorMap x, weight, before_map; /* the last one for the slope */
    void *before, *y;
    int rows, columns, n_steps;
    int n_panels, n_tiles, n_parts; /* a block has a panel, and of the tiles of rows every n_parts-th */
    Memory bias;
    float *partial; /* (n_parts,columns), or NULL */
} FusedCall;

/* With the slope there are fewer boxes of a, and chunks of `before` (rows of 64 bytes, see tma_descriptor.h)
 * in their stead; where they were, the sums of columns are added up in the end. */
template <int MODE> struct FusedShared {
    enum { STAGES = MODE == MODE_SLOPE ? 6 : 9, PLACES = MODE == MODE_SLOPE ? 4 : 1 };
    alignas(1024) char weight[MOST_STEPS][PANEL_BYTES];
    char x[STAGES][BOX_BYTES];
    union {
        char before[PLACES][CHUNK_BYTES];
        float total[GROUPS * GROUP_WARPS][PANEL];
        float bias[PANEL];
    };
    uint64_t weight_full[MOST_STEPS], weight_sorted[MOST_STEPS];
    uint64_t x_full[STAGES], x_empty[STAGES];
    uint64_t before_full[PLACES], before_empty[PLACES];
    uint64_t turn[GROUPS];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char fused_shared[];

/* ---- boxes ---- */

DEVICE void tma_load_box(void *to, const CUtensorMap *map, int column, int row, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}
/* Of a map whose dimensions are terms, the columns of a pair, the 8s and the pairs of an 8: 32 columns by 64
 * terms. */
DEVICE void tma_load_sorted_box(void *to, const CUtensorMap *map, int term, int column, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %5, %3, %5}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(term), "r"(column / VECTOR), "r"(shared_address(barrier)), "r"(0)
                 : "memory");
}
/* 16 bytes. There is no branch, so that arithmetic goes on around it. */
DEVICE void store_vector(void *to, const unsigned word[4], bool is_there) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(to),
        "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]), "r"((int)is_there));
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
#    define MULTIPLY_STEP(type, instruction)                                                                 \
        template <bool TURNED>                                                                               \
        DEVICE void multiply_step(float sum[SUMS], unsigned a, unsigned b, int add, type) {                  \
            asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %98, 0;\n"                       \
                         "mov.b64 a, {%96, %99};\nmov.b64 b, {%97, %99};\n"                                  \
                         "wgmma.mma_async.sync.aligned.m64n192k16.f32." instruction " "                      \
                         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
                         "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
                         "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
                         "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "  \
                         "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "  \
                         "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, " \
                         "a, b, p, 1, 1, 0, %100;\n}\n"                                                      \
                         : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48),        \
                           EIGHT(56), EIGHT(64), EIGHT(72), EIGHT(80), EIGHT(88)                             \
                         : "r"(a), "r"(b), "r"(add), "n"((int)ROWS_OF_128), "n"(TURNED ? 1 : 0));            \
        }
/* 64 rows by 16 terms by 192 columns; add 0: in place of the sums. Thread t of the group has of row t/32·16 +
 * t%32/4 and the one 8 below it columns t%4·2 and the next of every 8: sum[4j], sum[4j+1] and sum[4j+2],
 * sum[4j+3] of the j-th 8. */
MULTIPLY_STEP(bf16, "bf16.bf16")
MULTIPLY_STEP(f16, "f16.f16")
#    undef MULTIPLY_STEP
#    undef EIGHT

#endif

#endif
