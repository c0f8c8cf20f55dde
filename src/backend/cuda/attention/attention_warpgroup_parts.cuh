/* The pieces of attention_warpgroup_backward_sm90.cu: what it is told, and what a block has in shared
 * memory. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WARPGROUP_PARTS_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WARPGROUP_PARTS_CUH

#include "backend/cuda/attention/attention_warpgroup_masks.cuh"

enum {
    KEY_SPANS = SPANS + 1, /* see keys_place */
    KEY_GROUPS = 2,
    QUERY_GROUP = KEY_GROUPS,
    PRODUCER_GROUP,
    GROUPS,
    WARPGROUP_THREADS = GROUPS * GROUP_WARPS * WARP,
    KEY_WARPS = KEY_GROUPS * GROUP_WARPS,
    PRODUCER_WARP = PRODUCER_GROUP * GROUP_WARPS,
    PRODUCERS = GROUP_WARPS - 1, /* the other warps of that group */
    DRAWERS = PRODUCERS + GROUP_WARPS,
    RING = 3,        /* tiles of dscores that a group is ahead */
    OUTPUTS = 2,     /* spans of y that are there */
    FACT_COLUMN = 20 /* floats: see fact_place */
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
} WarpgroupCall;

typedef struct {
    alignas(1024) char keys[KEY_SPANS][SPAN_BYTES], values[KEY_SPANS][SPAN_BYTES];
    char queries[SPANS][SPAN_BYTES], slopes[SPANS][SPAN_BYTES];
    char outputs[OUTPUTS][SPAN_BYTES];
    char dscores[KEY_GROUPS][RING][SPAN_BYTES]; /* rows are queries */
    float relative[SPANS][4 * FACT_COLUMN];     /* -lse · log2 e of the queries */
    float dots[SPANS][4 * FACT_COLUMN];         /* -D/c */
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
} WarpgroupShared;
static_assert(sizeof(WarpgroupShared) <= 227 * 1024, "what a block may have");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

DEVICE void warpgroup_barriers_init(WarpgroupShared &shared) {
    for (int i = 0; i < KEY_SPANS; i++) {
        mbarrier_init(&shared.keys_full[i], 1);
        mbarrier_init_warps(&shared.keys_empty[i],
                            2 * GROUP_WARPS); /* who has the keys, and the queries' group */
    }
    for (int i = 0; i < SPANS; i++) {
        mbarrier_init(&shared.queries_full[i], 1);
        mbarrier_init_warps(&shared.queries_empty[i], KEY_WARPS + PRODUCERS);
        mbarrier_init_warps(&shared.facts_full[i], PRODUCERS);
    }
    for (int i = 0; i < 2; i++) {
        mbarrier_init_warps(&shared.mask_full[i], DRAWERS);
        mbarrier_init_warps(&shared.mask_empty[i], KEY_WARPS);
        mbarrier_init_warps(&shared.outputs_empty[i], PRODUCERS);
    }
    for (int i = 0; i < KEY_GROUPS * RING; i++) {
        mbarrier_init_warps(&shared.dscores_full[i / RING][i % RING], GROUP_WARPS);
        mbarrier_init_warps(&shared.dscores_empty[i / RING][i % RING], GROUP_WARPS);
    }
    mbarrier_init_warps(&shared.sums_full, KEY_WARPS + GROUP_WARPS);
    mbarrier_init_warps(&shared.sums_empty, GROUP_WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
}

#endif

#endif
