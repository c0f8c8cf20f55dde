/* What the thread blocks of decode_cluster have in shared memory, and how they send to each other.
 *
 * A cluster is a head of attention, and as much of the hidden layer. Its blocks, the ranks, write into each
 * other's shared memory: a store goes with a barrier of the receiver's, which counts its bytes and completes
 * when all have come. So nothing is polled, and numbers are on their way for 0.3 us. Every kind of message
 * has one place. It is free again when the next of its kind is sent: between two of a kind there are others,
 * each of which everybody needs from everybody before he goes on.
 *
 * Between clusters there is the L2 cache (decode_sums.cuh), which takes three times as long. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_CUH

#include "backend/cuda/decode/decode_ring.cuh"
#include "backend/cuda/decode/decode_step.h"
#include "backend/cuda/decode/decode_sums.cuh"
#include "backend/cuda/runtime/mbarrier.cuh"
#include "backend/cuda/runtime/mma16.cuh"

#include <cuda.h>

enum {
    RANKS = 8, /* blocks of a cluster */
    COMPUTING_WARPS = 8,
    CLUSTER_THREADS = (COMPUTING_WARPS + 1) * WARP, /* the last warp issues copies */
    HEAD_SIZE = 64,
    CLUSTER_HIDDEN = 256, /* of the hidden layer, of a cluster */
    RANK_HIDDEN = CLUSTER_HIDDEN / RANKS,
    WARP_ROWS = 4,  /* of a GEMV over all channels, of a warp */
    TILE_ROWS = 16, /* of a GEMV that is added to x, of a warp */
    RANK_KEYS = 128,
    KEYS_AT_ONCE = COMPUTING_WARPS * WARP * VECTOR / HEAD_SIZE,
    KEY_TURNS = RANK_KEYS / KEYS_AT_ONCE,
    HEAD_ROWS = COMPUTING_WARPS * WARP_ROWS, /* of a tile of the head */
    HEAD_SLOTS = 3,
    PIECE_ROWS = 4,    /* of all channels, loaded at once */
    BOXES_OF_RANK = 2, /* above each other: a piece each */
    PACE = 300,        /* clocks from a piece to the next: 24 are a block's */
    KEPT_TILES = 4,    /* of so many tiles of the head, one stays in the L2 cache: 16 MB */
    BOX_TERMS = 64,    /* of a row of a box: 128 bytes */
};

/* Messages within a cluster. */
enum {
    X_BEFORE_ATTENTION,
    X_BEFORE_HIDDEN,
    MOMENTS,
    MOMENTS_END = MOMENTS + 2,
    QKV = MOMENTS_END,
    PARTS,
    HIDDEN,
    N_MESSAGES
};

/* Rows of weights over all channels, with the norm that x goes through before, and their biases. */
template <int C, int ROWS> struct WideTile {
    alignas(16) uint16_t row[ROWS][C];
    uint16_t norm_weight[C], norm_bias[C];
    uint16_t bias[ROWS];
};
/* Rows of weights over a part of the terms, in boxes of 64 terms; their biases, and the weights of the norm
 * that x goes through next. In row r of a box, 16-byte vector v is at place v ^ (r % 8): so TMA copies it
 * (128-byte swizzle), and so no two rows are in the same banks that are four apart. */
template <int ROWS, int TERMS> struct Boxes {
    alignas(1024) uint4 row[TERMS / BOX_TERMS][ROWS][BOX_TERMS / VECTOR];
};
template <int ROWS> struct RowVectors { alignas(16) uint16_t bias[ROWS], next_norm[ROWS]; };

/* Four channels of x: 16-bit numbers, and what rounding took off them. Of every 8 channels, the first quad
 * has pairs 0 and 2, the second 1 and 3. */
struct alignas(16) Quad {
    uint2 rounded, rest;
};

/* The call, and TMA descriptors of the two matrices of which a cluster has columns: (block, row, column). */
typedef struct {
    DecodeCall call;
    CUtensorMap out, proj;
} ClusterCall;

/* Heads, channels and what follows from them. */
template <int HEADS> struct ClusterSizes {
    enum {
        C = HEADS * HEAD_SIZE,
        F = HEADS * CLUSTER_HIDDEN,
        RANK_ROWS = C / RANKS, /* of x */
        ROW_WARPS = RANK_ROWS / TILE_ROWS,
        STEPS = C / 64, /* of a GEMV over all channels */
    };
};

template <int HEADS> struct ClusterShared {
    typedef ClusterSizes<HEADS> S;
    Boxes<S::RANK_ROWS, CLUSTER_HIDDEN> proj;
    Boxes<S::RANK_ROWS, HEAD_SIZE> out;
    WideTile<S::C, 3 * HEAD_SIZE / RANKS> qkv; /* 8 rows each of queries, keys and values */
    WideTile<S::C, RANK_HIDDEN> fc;
    RowVectors<S::RANK_ROWS> out_vectors, proj_vectors;
    uint16_t keys[2][RANK_KEYS][HEAD_SIZE]; /* and values */
    uint16_t final_weight[S::C], final_bias[S::C];
    /* messages */
    Quad x[2][S::C / 4];
    float2 moments[2][RANKS * S::ROW_WARPS];
    float4 new_token[HEAD_SIZE]; /* query, key, value of channel c at (c % 8) · 8 + c / 8 */
    float part[RANKS][HEAD_SIZE];
    float2 part_weight[RANKS];                   /* greatest score, sum of exponentials */
    alignas(16) uint16_t hidden[CLUSTER_HIDDEN]; /* of every 8: pairs 0, 2, 1, 3 */
    /* within the block; the first two in turns: who still reads the last one's is not disturbed */
    float warp_part[2][COMPUTING_WARPS][HEAD_SIZE];
    float2 warp_weight[2][COMPUTING_WARPS];
    unsigned joined[COMPUTING_WARPS][2][HEAD_SIZE / 2]; /* the head's output, rounded and the rest */
    Quad y[S::C / 4];                                   /* what the head is multiplied with */
    uint64_t full[HEAD], empty[HEAD], keys_full, keys_empty, final_full, head_full[HEAD_SLOTS],
        head_empty[HEAD_SLOTS], arrived[N_MESSAGES];
    int head_tile[HEAD_SLOTS]; /* what is in the slot; -1: no more will come */
};

#if __CUDA_ARCH__ >= 900

extern __shared__ __align__(1024) char cluster_shared[];

template <int HEADS> DEVICE ClusterShared<HEADS> &shared_of(void) {
    return *(ClusterShared<HEADS> *)cluster_shared;
}

/* ---- copies ---- */

DEVICE void copy_in(void *to, const void *from, unsigned n_bytes, uint64_t *barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(n_bytes), "r"(shared_address(barrier)), "l"(policy)
                 : "memory");
}
/* A box of BOX_TERMS columns, as many rows as the descriptor says, of a block's matrix. */
DEVICE void tma_load_box(void *to, const CUtensorMap *map, int column, int row, int block, uint64_t *barrier,
                         uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(block), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}

/* ---- the cluster ---- */

DEVICE int cluster_rank(void) {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
DEVICE void cluster_barrier(void) {
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}
/* The same place in another's shared memory: an instruction, cheaper than an address that is kept. */
DEVICE unsigned address_at(const void *here, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
    return there;
}
/* By those threads that do: without a branch, after which the warp would have to find together again. */
DEVICE void send(bool does, int rank, void *to, uint2 v, uint64_t *barrier) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.u32 p, %4, 0;\n\t"
                 "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];\n\t"
                 "}" ::"r"(address_at(to, rank)),
                 "r"(v.x), "r"(v.y), "r"(address_at(barrier, rank)), "r"((unsigned)does)
                 : "memory");
}
DEVICE void send(bool does, int rank, void *to, uint4 v, uint64_t *barrier) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.u32 p, %6, 0;\n\t"
                 "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
                 "[%5];\n\t"
                 "}" ::"r"(address_at(to, rank)),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(address_at(barrier, rank)), "r"((unsigned)does)
                 : "memory");
}

#endif

#endif
