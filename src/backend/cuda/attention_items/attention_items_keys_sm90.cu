/* attention and sparse_attention, backward, the gradients of keys and values, over items of two blocks of
 * keys (attention_items.cuh). attention/attention_walk_keys.cuh says what is computed, and computes it
 * elsewhere.
 *
 * Floor: a tile of 64 queries and 64 keys of heads of 64 takes a multiprocessor 512 cycles to multiply.
 *
 * Rows are keys and columns queries: weights and dscores lie in registers as first factors of the GEMMs for
 * values and keys. What is to be known of each query comes beside it: facts, and, where not all of a tile is
 * seen, a word of the 64 keys for each group, which the producer's lanes make. Of several heads of queries
 * over one of keys, one comes after the other. */
#include "backend/cuda/attention/attention_walk_keys.cuh"
#include "backend/cuda/attention_items/attention_items.cuh"

enum { KEYS_ARRIVALS = STEP_ARRIVALS + WARP }; /* lanes have copies of their own, too */

template <int HS> struct KeysShared {
    enum { N_STEPS = HS == SIZE ? 8 : 2 /* that there is room for */, FACT_WARPS = 0 };
    alignas(1024) Boxes<HS> keys[ITEMS][ITEM_GROUPS], values[ITEMS][ITEM_GROUPS];
    Boxes<HS> queries[N_STEPS], slopes[N_STEPS];
    alignas(16) RowFacts facts[N_STEPS][SPAN];
    Band band[N_STEPS][ITEM_GROUPS];
    alignas(16) uint64_t seen[N_STEPS][ITEM_GROUPS][SPAN]; /* of a query: the group's keys; without bands */
    ItemPlace place[ITEMS];
    ItemStep step[N_STEPS];
    uint64_t rows_full[ITEMS], rows_empty[ITEMS], full[N_STEPS], empty[N_STEPS];
};
static_assert(sizeof(KeysShared<64>) <= 227 * 1024 && sizeof(KeysShared<128>) <= 227 * 1024,
              "what a block may have");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- the producer ---- */

/* By its warp: queries of a head, what is known of them, and what they see. first_key: of the groups. */
template <int HS>
DEVICE void produce_step(const BackwardCall &c, KeysShared<HS> &shared, const ItemStep &step, int b, int at,
                         const int first_key[ITEM_GROUPS]) {
    const WalkRows &r = c.walk.rows;
    int lane = (int)threadIdx.x % WARP;
    if (lane == 0) {
        shared.step[at] = step;
        mbarrier_expect(&shared.full[at], 2 * sizeof shared.queries[0]);
        produce_boxes(shared.queries[at], &c.qkv, step.h * HS, step.first, b, &shared.full[at]);
        produce_boxes(shared.slopes[at], &c.dy, step.h * HS, step.first, b, &shared.full[at]);
    }
    const RowFacts *facts = c.facts + walk_lse_at(r, b, step.h);
#    pragma unroll
    for (int i = lane; i < SPAN; i += WARP)
        cp_async8(shared_address(&shared.facts[at][i]), facts + step.first + i,
                  step.first + i < r.queries.n_positions);
    mbarrier_arrive_copied(&shared.full[at]);
    if (c.items.has_bands) {
        if (step.kind[0] == STEP_SOME || step.kind[1] == STEP_SOME)
            make_bands(shared.band[at], r, step.first - first_key[0], first_key[0] - first_key[1]);
    } else {
#    pragma unroll
        for (int g = 0; g < ITEM_GROUPS; g++) {
            if (step.kind[g] == STEP_SOME) make_seen(shared.seen[at][g], r, b, step.first, first_key[g]);
        }
    }
    mbarrier_arrive(&shared.full[at]);
}

/* Columns are those of a row of qkv. */
template <int HS>
DEVICE int produce_item(const BackwardCall &c, KeysShared<HS> &shared, const ItemPlace &place, int turn,
                        int n) {
    enum { N_STEPS = KeysShared<HS>::N_STEPS };
    const TiledShape &s = c.walk.rows.queries;
    AttentionBlockList list = list_of_item(c.walk, place.b);
    int key_column = (s.n_heads + place.h) * HS, value_column = key_column + s.n_kv_heads * HS,
        n_blocks = c.items.first_block + c.items.n_blocks, first_key[ITEM_GROUPS];
    bool is_first = threadIdx.x % WARP == 0;
    ItemRow row[ITEM_GROUPS];
    ItemStep step;
    if (is_first) mbarrier_expect(&shared.rows_full[turn], 2 * ITEM_GROUPS * sizeof shared.keys[0][0]);
#    pragma unroll
    for (int g = 0; g < ITEM_GROUPS; g++) { /* rows that are not there are zeros */
        int block = place.block + g * c.items.apart;
        first_key[g] = block * SPAN;
        if (is_first) {
            produce_boxes(shared.keys[turn][g], &c.qkv, key_column, first_key[g], place.b,
                          &shared.rows_full[turn]);
            produce_boxes(shared.values[turn][g], &c.qkv, value_column, first_key[g], place.b,
                          &shared.rows_full[turn]);
        }
        row[g] = item_column(c.walk, list, block, n_blocks);
    }
#    pragma unroll 1
    for (int i = 0; i < s.share; i++) {
        step.h = place.h * s.share + i;
#    pragma unroll
        for (int g = 0; g < ITEM_GROUPS; g++) row[g].left = row[g].n;
#    pragma unroll 1
        for (; next_step(row, s.n_positions, &step); n++) {
            int at = n % N_STEPS;
            step.is_last = step.is_last && i == s.share - 1;
            mbarrier_wait(&shared.empty[at], ~(n / N_STEPS) & 1);
            produce_step<HS>(c, shared, step, place.b, at, first_key);
        }
    }
    return n;
}

/* ---- keys ---- */

/* What slopes_of_columns asks of a tile with a band: of 66 bits, from that of the thread's first key and the
 * last query on. */
typedef struct BandOfColumns {
    unsigned bits[3];

    __device__ __forceinline__ void look(int) {}
    __device__ __forceinline__ bool sees(int, int n, int i) const {
        int bit = 57 + 8 * (i / 2 - n) - i % 2;
        return bits[bit / 32] >> bit % 32 & 1u;
    }
} BandOfColumns;
DEVICE BandOfColumns band_of_columns(const Band &band, int first_bit, const Self &me) {
    BandOfColumns seen;
    read_band<3>(seen.bits, band, 6 + first_bit - me.lane % 4 * 2);
    return seen;
}

/* The gradients of a group's keys and values, without the factors. */
template <typename T, int HS, bool DROPS>
DEVICE int gradient_steps(float dk[HS / 8][4], float dv[HS / 8][4], const BackwardCall &c,
                          KeysShared<HS> &shared, const Self &me, int turn, const ItemPlace &place, int n,
                          int &stored) {
    enum { N_STEPS = KeysShared<HS>::N_STEPS };
    const Boxes<HS> &keys = shared.keys[turn][me.group], &values = shared.values[turn][me.group];
    float scale_log2 = c.walk.rows.queries.scale_log2;
    int first_bit = me.warp * 16 + me.lane / 4,
        block = ((place.block + me.group * c.items.apart) * SPAN + me.warp * 16) / 8;
    bool is_last = false;
#    pragma unroll 1
    for (; !is_last; n++) {
        int at = n % N_STEPS;
        mbarrier_wait(&shared.full[at], n / N_STEPS & 1);
        int first = shared.step[at].first, kind = shared.step[at].kind[me.group];
        is_last = shared.step[at].is_last;
        if (kind != STEP_NOTHING) {
            float p[1][8][4], dp[1][8][4];
            unsigned kept[4][4], slope[4][4];
            Dropout dropout = {};
            int unused;
            hold(p[0]);
            hold(dp[0]);
            wgmma_fence();
            multiply_channels<T>(p[0], keys, shared.queries[at]);
            multiply_channels<T>(dp[0], values, shared.slopes[at]);
            wgmma_commit();
            free_rows(shared, stored);
            if (DROPS) dropout = walk_dropout(c.walk.rows, place.b, shared.step[at].h, &unused);
            wgmma_wait<0>();
            hold(p[0]);
            hold(dp[0]);
            if (kind == STEP_ALL)
                slopes_of_columns<1, 8, DROPS>(p, dp, shared.facts[at], SeenWhole(), scale_log2, dropout,
                                               block, first);
            else if (c.items.has_bands)
                slopes_of_columns<1, 8, DROPS>(p, dp, shared.facts[at],
                                               band_of_columns(shared.band[at][me.group], first_bit, me),
                                               scale_log2, dropout, block, first);
            else
                slopes_of_columns<1, 8, DROPS>(p, dp, shared.facts[at],
                                               SeenWords{shared.seen[at][me.group], first_bit}, scale_log2,
                                               dropout, block, first);
            narrow<T>(kept, p[0]);
            narrow<T>(slope, dp[0]);
            hold(kept);
            hold(slope);
            hold_sums<HS / 8>(dk);
            hold_sums<HS / 8>(dv);
            wgmma_fence();
            multiply_weights<T>(dv, kept, shared.slopes[at]);
            multiply_weights<T>(dk, slope, shared.queries[at]);
            wgmma_commit();
            wgmma_wait<0>();
            hold_sums<HS / 8>(dk);
            hold_sums<HS / 8>(dv);
            hold(kept);
            hold(slope);
        }
        mbarrier_arrive(&shared.empty[at]);
    }
    return n;
}

template <typename T, int HS, bool DROPS>
DEVICE int compute_item(const BackwardCall &c, KeysShared<HS> &shared, const Self &me, const ItemPlace &place,
                        int k, int n, int &stored) {
    const WalkRows &r = c.walk.rows;
    float dk[1][HS / 8][4], dv[1][HS / 8][4], keep = DROPS ? random_dropout_scale(r.queries.threshold) : 1.0f;
    const float key_factor[2] = {r.queries.scale, r.queries.scale}, value_factor[2] = {keep, keep};
    int turn = k % ITEMS, first = (place.block + me.group * c.items.apart) * SPAN;
    int key_column = (r.queries.n_heads + place.h) * HS;
    clear<1, HS / 8>(dk);
    clear<1, HS / 8>(dv);
    n = gradient_steps<T, HS, DROPS>(dk[0], dv[0], c, shared, me, turn, place, n, stored);
    free_rows(shared, stored);
    group_sync(me);
    put_in_boxes<T, HS>(shared.keys[turn][me.group], dk[0], key_factor, me);
    put_in_boxes<T, HS>(shared.values[turn][me.group], dv[0], value_factor, me);
    fence_async_proxy();
    __syncwarp();
    if (me.lane == 0) {
        copy_boxes<HS>(&c.dqkv, shared.keys[turn][me.group], key_column, first, place.b, me);
        copy_boxes<HS>(&c.dqkv, shared.values[turn][me.group], key_column + r.queries.n_kv_heads * HS, first,
                       place.b, me);
        commit_copies();
    }
    return n;
}

#endif

/* Registers go from the producer's group to the others. */
template <typename T, int HS, bool DROPS>
static __global__ void __launch_bounds__(ITEM_THREADS, 1)
    items_keys_kernel(const __grid_constant__ BackwardCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    KeysShared<HS> &shared = *(KeysShared<HS> *)warpgroup_shared;
    run_items<224, 56>(
        c.items, shared, KEYS_ARRIVALS,
        [&](const Self &me, const ItemPlace &place, int k, int n, int &stored) {
            return compute_item<T, HS, DROPS>(c, shared, me, place, k, n, stored);
        },
        [&](const ItemPlace &place, int turn, int n) { return produce_item<HS>(c, shared, place, turn, n); },
        [](int) {});
#endif
}

/* ---- on the host's side ---- */

Status attention_items_keys(const CudaContext *context, const AttentionShape *s, const AttentionMemory *m,
                            const AttentionLists *lists, int n_skipped, Error *error) {
    BackwardCall c;
    cudaError_t code = cudaErrorNotSupported;
    if (backward_call(&c, context, s, m, lists, s->n_kv_heads, n_skipped, false)) {
        FOR_ITEM_KIND(s, T, HS, DROPS, {
            code = launch_items(items_keys_kernel<T, HS, DROPS>, context, 1, sizeof(KeysShared<HS>), c);
        });
    }
    return cuda_check(code, "attention_backward (items, keys)", error);
}
