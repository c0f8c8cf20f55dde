/* How decode_cluster.cu's thread blocks load what they need (the producer warp): one thread of each, in the
 * order in which it is taken.
 *
 * Memory is read no faster than it has to be: messages go through the same cache, and wait behind weights
 * that come in a burst. So weights are loaded in pieces, a certain time apart, which is a little less than
 * what a block takes.
 *
 * Clusters are not equally fast in reading, since some share their way to the cache. So the tiles of the head
 * are dealt out as they are asked for, by a counter; all but the first, which wait for nothing. A part of the
 * head, as much as the cache holds on to, stays there from a token to the next, while everything else passes
 * through. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_PRODUCER_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_PRODUCER_CUH

#include "backend/cuda/decode/decode_cluster_parts.cuh"

#if __CUDA_ARCH__ >= 900

template <int HEADS> struct Producer {
    const ClusterCall &call;
    const DecodeCall &c;
    ClusterShared<HEADS> &shared;
    int rank, cluster;
    uint64_t policy;
    int pace;       /* clocks from a piece to the next */
    long long next; /* when the next piece may be loaded */
};

/* Until it is time. */
template <int HEADS> DEVICE void keep_pace(Producer<HEADS> &o) {
    long long now = clock64();
    for (; now < o.next; now = clock64()) __nanosleep(20);
    o.next = now + o.pace;
}

/* A part of a tile, unless the model has none. */
template <typename T>
DEVICE void bulk_load(void *to, const void *from, int64_t at, int n_elements, uint64_t *barrier,
                      uint64_t policy) {
    if (from) copy_in(to, (const T *)from + at, (unsigned)n_elements * 2u, barrier, policy);
}
DEVICE unsigned bytes_if(const void *p, int n_elements) {
    return p ? (unsigned)n_elements * 2u : 0u;
}

/* n rows of all channels, from `at` on. */
template <typename T, int HEADS>
DEVICE void produce_rows(Producer<HEADS> &o, uint16_t *to, const void *from, int64_t at, int n,
                         uint64_t *barrier) {
    enum { C = ClusterSizes<HEADS>::C };
#    pragma unroll 1
    for (int row = 0; row < n; row += PIECE_ROWS) {
        keep_pace(o);
        bulk_load<T>(to + row * C, from, at + row * C, (n - row < PIECE_ROWS ? n - row : PIECE_ROWS) * C,
                     barrier, o.policy);
    }
}

/* GEMV k of a block, which is `rows` rows of a matrix from row `first` on; of queries, keys and values in
 * three. */
template <typename T, int HEADS, typename Tile>
DEVICE void produce_wide(Producer<HEADS> &o, int k, int block, Tile &tile, int n_ranges, int first,
                         int rows) {
    enum { C = ClusterSizes<HEADS>::C };
    const DecodeGemv &p = o.c.gemv[k];
    uint64_t *full = &o.shared.full[k];
    int64_t at = block * p.stride;
    if (block > 0) mbarrier_wait(&o.shared.empty[k], (block - 1) & 1);
    mbarrier_expect(full, (unsigned)(n_ranges * rows * C) * 2u + bytes_if(p.bias, n_ranges * rows) +
                              bytes_if(p.norm_weight, C) + bytes_if(p.norm_bias, C));
    bulk_load<T>(tile.norm_weight, p.norm_weight, at, C, full, o.policy);
    bulk_load<T>(tile.norm_bias, p.norm_bias, at, C, full, o.policy);
#    pragma unroll 1
    for (int i = 0; i < n_ranges; i++) {
        int64_t row = first + (int64_t)i * C;
        bulk_load<T>(tile.bias + i * rows, p.bias, at + row, rows, full, o.policy);
        produce_rows<T>(o, tile.row[i * rows], p.weight, at + row * C, rows, full);
    }
}

/* GEMV k of a block: this rank's rows, this cluster's terms. next: the weights of the norm that follows. */
template <typename T, int HEADS, int ROWS, int TERMS>
DEVICE void produce_narrow(Producer<HEADS> &o, int k, int block, Boxes<ROWS, TERMS> &boxes,
                           RowVectors<ROWS> &vectors, const CUtensorMap *map, const T *next) {
    enum { HALF = ROWS / BOXES_OF_RANK };
    const DecodeGemv &p = o.c.gemv[k];
    uint64_t *full = &o.shared.full[k];
    int row = o.rank * ROWS;
    if (block > 0) mbarrier_wait(&o.shared.empty[k], (block - 1) & 1);
    mbarrier_expect(full, (unsigned)sizeof boxes + bytes_if(next, ROWS) + bytes_if(p.bias, ROWS));
    bulk_load<T>(vectors.bias, p.bias, block * p.stride + row, ROWS, full, o.policy);
    bulk_load<T>(vectors.next_norm, next, row, ROWS, full, o.policy);
#    pragma unroll 1
    for (int i = 0; i < TERMS / BOX_TERMS * BOXES_OF_RANK; i++) {
        int column = i / BOXES_OF_RANK, first = i % BOXES_OF_RANK * HALF;
        keep_pace(o);
        tma_load_box(boxes.row[column][first], map, o.cluster * TERMS + column * BOX_TERMS, row + first,
                     block, full, o.policy);
    }
}

template <typename T, int HEADS> DEVICE void produce_block(Producer<HEADS> &o, int block, int k) {
    const DecodeGemv *p = o.c.gemv;
    const T *norm2 = (const T *)p[HIDDEN_IN].norm_weight + block * p[HIDDEN_IN].stride;
    const T *norm1 = block + 1 < o.c.n_blocks
                         ? (const T *)p[ATTENTION_IN].norm_weight + (block + 1) * p[ATTENTION_IN].stride
                         : (const T *)p[HEAD].norm_weight;
    if (k == ATTENTION_IN)
        produce_wide<T>(o, k, block, o.shared.qkv, 3, o.cluster * HEAD_SIZE + o.rank * (HEAD_SIZE / RANKS),
                        HEAD_SIZE / RANKS);
    else if (k == ATTENTION_OUT)
        produce_narrow<T>(o, k, block, o.shared.out, o.shared.out_vectors, &o.call.out, norm2);
    else if (k == HIDDEN_IN)
        produce_wide<T>(o, k, block, o.shared.fc, 1, o.cluster * CLUSTER_HIDDEN + o.rank * RANK_HIDDEN,
                        RANK_HIDDEN);
    else produce_narrow<T>(o, k, block, o.shared.proj, o.shared.proj_vectors, &o.call.proj, norm1);
}

/* This rank's share of the cached keys and values of the cluster's head. */
template <typename T, int HEADS> DEVICE void produce_keys(Producer<HEADS> &o, const Self &me, int block) {
    ClusterShared<HEADS> &shared = o.shared;
    if (block > 0) mbarrier_wait(&shared.keys_empty, (block - 1) & 1);
    int n = me.n_old * HEAD_SIZE;
    int64_t at = block * o.c.cache_stride + ((int64_t)o.cluster * o.c.capacity + me.first_key) * HEAD_SIZE;
    uint64_t policy = keep_policy(KEEP_NORMAL);
    mbarrier_expect(&shared.keys_full, (unsigned)n * 4u);
    if (n == 0) return;
    bulk_load<T>(shared.keys[0], o.c.keys, at, n, &shared.keys_full, policy);
    bulk_load<T>(shared.keys[1], o.c.values, at, n, &shared.keys_full, policy);
}

/* ---- the head ---- */

template <int HEADS> DEVICE uint16_t *head_slot(ClusterShared<HEADS> &shared, int slot) {
    enum { BYTES = HEAD_ROWS * sizeof shared.fc.row[0] };
    static_assert(sizeof shared.out + sizeof shared.qkv >= BYTES && sizeof shared.proj >= BYTES,
                  "room for a slot");
    return slot == 1 ? shared.fc.row[0] : (uint16_t *)(slot == 0 ? shared.out.row : shared.proj.row);
}

/* Until the slot is free for the n-th tile of this thread block; the last block's weights have been there
 * before. */
template <int HEADS> DEVICE void wait_for_slot(Producer<HEADS> &o, int n) {
    ClusterShared<HEADS> &shared = o.shared;
    int slot = n % HEAD_SLOTS, last = (o.c.n_blocks - 1) & 1;
    if (n >= HEAD_SLOTS) {
        mbarrier_wait(&shared.head_empty[slot], (n / HEAD_SLOTS - 1) & 1);
    } else if (slot == 0) {
        mbarrier_wait(&shared.empty[ATTENTION_IN], last);
        mbarrier_wait(&shared.empty[ATTENTION_OUT], last);
    } else {
        mbarrier_wait(&shared.empty[slot == 1 ? HIDDEN_IN : HIDDEN_OUT], last);
    }
}

/* first: what the counter was when the step began. */
template <typename T, int HEADS> DEVICE void produce_head(Producer<HEADS> &o, unsigned first) {
    enum { C = ClusterSizes<HEADS>::C };
    ClusterShared<HEADS> &shared = o.shared;
    int n_tiles = (o.c.n_logits + HEAD_ROWS - 1) / HEAD_ROWS, n_blocks = (int)gridDim.x, tile, asked = 0;
    uint64_t kept = keep_policy(KEEP_LONG);
#    pragma unroll 1
    for (int n = 0;; n++) {
        tile = n < HEAD_SLOTS ? n * n_blocks + (int)blockIdx.x : asked;
        if (n + 1 >= HEAD_SLOTS) /* the next one's number is on its way meanwhile */
            asked = HEAD_SLOTS * n_blocks + (int)(atomicAdd(o.c.tiles, 1u) - first);
        int slot = n % HEAD_SLOTS, row = tile * HEAD_ROWS, left = o.c.n_logits - row;
        int count = tile >= n_tiles ? 0 : left < HEAD_ROWS ? left : HEAD_ROWS;
        uint64_t *full = &shared.head_full[slot];
        wait_for_slot(o, n);
        shared.head_tile[slot] = count > 0 ? tile : -1;
        mbarrier_expect(full, (unsigned)(count * C) * 2u);
        if (count == 0) return;
        if (n < HEAD_SLOTS)
            produce_rows<T>(o, head_slot(shared, slot), o.c.gemv[HEAD].weight, (int64_t)row * C, count, full);
        else
            bulk_load<T>(head_slot(shared, slot), o.c.gemv[HEAD].weight, (int64_t)row * C, count * C, full,
                         tile % KEPT_TILES == 0 ? kept : o.policy);
    }
}

/* The first block's weights do not wait for the kernel before. */
template <typename T, int HEADS> DEVICE void produce_all(const ClusterCall &call, Self &me) {
    enum { C = ClusterSizes<HEADS>::C };
    const DecodeCall &c = call.call;
    Producer<HEADS> o = {call, c, shared_of<HEADS>(), me.rank, me.cluster, keep_policy(KEEP_SHORT), 0, 0};
    const DecodeGemv &head = c.gemv[HEAD];
#    pragma unroll 1
    for (int k = 0; k < HEAD; k++) produce_block<T>(o, 0, k);
    mbarrier_expect(&o.shared.final_full, bytes_if(head.norm_weight, C) + bytes_if(head.norm_bias, C));
    bulk_load<T>(o.shared.final_weight, head.norm_weight, 0, C, &o.shared.final_full, o.policy);
    bulk_load<T>(o.shared.final_bias, head.norm_bias, 0, C, &o.shared.final_full, o.policy);
    wait_for_predecessor(); /* so far, nobody is disturbed */
    o.pace = PACE;
    unsigned first = *(volatile unsigned *)c.tiles;
    __threadfence(); /* before anybody asks for a tile: he needs what this block makes of its keys first */
    find_keys(c, me, *(const volatile int32_t *)c.start);
    produce_keys<T>(o, me, 0);
#    pragma unroll 1
    for (int l = 1; l < c.n_blocks; l++) {
        produce_block<T>(o, l, ATTENTION_IN);
        produce_keys<T>(o, me, l);
#    pragma unroll 1
        for (int k = ATTENTION_OUT; k < HEAD; k++) produce_block<T>(o, l, k);
    }
    produce_head<T>(o, first);
}

#endif

#endif
