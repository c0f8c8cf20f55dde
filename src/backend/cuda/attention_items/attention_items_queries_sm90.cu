/* attention and sparse_attention, backward, the queries' gradients, over items of two blocks of queries
 * (attention_items.cuh), and the facts of rows (attention_facts.h). attention/attention_walk_queries.cuh says
 * what is computed, and computes it elsewhere.
 *
 * Floor: a tile of 64 queries and 64 keys of heads of 64 takes a multiprocessor 384 cycles to multiply.
 *
 * Scores and dweights are two GEMMs at once, whose results become dscores in registers, the first factor of
 * the third. While a group computes those, the other one has its GEMMs. The facts of an item's rows are found
 * by two more warps of the producer's group, an item ahead as its rows are: y is read beside all that. */
#include "backend/cuda/attention/attention_walk_queries.cuh"
#include "backend/cuda/attention_items/attention_items.cuh"

template <int HS> struct QueriesShared {
    enum { N_STEPS = HS == SIZE ? 8 : 2 /* that there is room for */, FACT_WARPS = ITEM_GROUPS };
    alignas(1024) Boxes<HS> queries[ITEMS][ITEM_GROUPS], slopes[ITEMS][ITEM_GROUPS];
    Boxes<HS> keys[N_STEPS], values[N_STEPS], outputs[ITEM_GROUPS];
    Band band[N_STEPS][ITEM_GROUPS];
    RowFacts facts[ITEMS][ITEM_GROUPS][SPAN];
    ItemPlace place[ITEMS];
    ItemStep step[N_STEPS];
    uint64_t rows_full[ITEMS], rows_empty[ITEMS];
    uint64_t slopes_full[ITEMS], outputs_empty, facts_full[ITEMS]; /* dy and y; y; facts */
    uint64_t full[N_STEPS], empty[N_STEPS];
};
static_assert(sizeof(QueriesShared<64>) <= 227 * 1024 && sizeof(QueriesShared<128>) <= 227 * 1024,
              "what a block may have");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int HS>
DEVICE int produce_item(const BackwardCall &c, QueriesShared<HS> &shared, const ItemPlace &place, int turn,
                        int n, int &n_items) {
    mbarrier_wait(&shared.outputs_empty, ~n_items++ & 1);
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        mbarrier_expect(&shared.slopes_full[turn], 2 * ITEM_GROUPS * sizeof shared.outputs[0]);
    return produce_keys<HS, QueriesShared<HS>::N_STEPS>(
        c, shared, place, turn, n, ITEM_GROUPS * sizeof shared.queries[0][0], [&](int g, int block) {
            int column = place.h * HS, first = block * SPAN;
            uint64_t *slopes_full = &shared.slopes_full[turn];
            produce_boxes(shared.slopes[turn][g], &c.dy, column, first, place.b, slopes_full);
            produce_boxes(shared.outputs[g], &c.y, column, first, place.b, slopes_full);
            produce_boxes(shared.queries[turn][g], &c.qkv, column, first, place.b, &shared.rows_full[turn]);
        });
}

/* Of SPAN rows of a head, `first` on, by a warp; rows that are not there see nothing. 8 lanes have a row, 4
 * rows at a time; then each lane has the sums of two. */
template <typename T, int HS>
DEVICE void find_facts(RowFacts facts[SPAN], const BackwardCall &c, const Boxes<HS> &slopes,
                       const Boxes<HS> &outputs, const ItemPlace &place, int first) {
    enum { LANES = SIZE / VECTOR, ROWS = WARP / LANES, TIMES = SPAN / ROWS, OWN = TIMES / LANES };
    const WalkRows &r = c.walk.rows;
    int lane = (int)threadIdx.x % WARP, part = lane % LANES;
    int64_t at = walk_lse_at(r, place.b, place.h) + first;
    float lse[OWN], sum[TIMES] = {};
    int own[OWN]; /* rows */
#    pragma unroll
    for (int k = 0; k < OWN; k++) {
        own[k] = (part * OWN + k) * ROWS + lane / LANES;
        lse[k] = first + own[k] < r.queries.n_positions ? __ldg(c.lse + at + own[k]) : -INFINITY;
    }
#    pragma unroll
    for (int i = 0; i < TIMES; i++) {
        int row = i * ROWS + lane / LANES, offset = row * SIZE * 2 + (part ^ row % 8) * 16;
#    pragma unroll
        for (int box = 0; box < Boxes<HS>::N; box++) {
            float g[VECTOR], out[VECTOR];
            load8((const T *)(slopes.box[box] + offset), g);
            load8((const T *)(outputs.box[box] + offset), out);
#    pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[i] += g[k] * out[k];
        }
    }
    give_half<8>(sum, 4);
    give_half<4>(sum, 2);
    give_half<2>(sum, 1);
#    pragma unroll
    for (int k = 0; k < OWN; k++) {
        RowFacts found = {lse[k] == -INFINITY ? INFINITY : lse[k] * LOG2_E, sum[k]};
        facts[own[k]] = found;
        if (first + own[k] < r.queries.n_positions) c.facts[at + own[k]] = found;
    }
}

/* By a warp for a group, item by item. */
template <typename T, int HS>
DEVICE void find_all_facts(const BackwardCall &c, QueriesShared<HS> &shared, int g) {
#    pragma unroll 1
    for (int k = 0;; k++) {
        int turn = k % ITEMS;
        mbarrier_wait(&shared.slopes_full[turn], k / ITEMS & 1);
        const ItemPlace place = shared.place[turn];
        if (place.b < 0) return;
        find_facts<T, HS>(shared.facts[turn][g], c, shared.slopes[turn][g], shared.outputs[g], place,
                          (place.block + g * c.items.apart) * SPAN);
        fence_async_proxy(); /* copies write there again */
        mbarrier_arrive(&shared.outputs_empty);
        mbarrier_arrive(&shared.facts_full[turn]);
    }
}

/* Scores become dscores, half of a tile's keys at a time. seen, if MASKED: of the queries, from the thread's
 * first key on. */
template <bool DROPS, bool MASKED>
DEVICE void find_slopes(float p[8][4], const float dp[8][4], const RowFacts facts[1][2],
                        const uint64_t seen[1][2], float scale_log2, const Dropout &dropout, int block,
                        int first_row) {
#    pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned here[1][2] = {(unsigned)(seen[0][0] >> (32 * half)),
                                     (unsigned)(seen[0][1] >> (32 * half))};
        slopes_of_rows<1, 4, DROPS, MASKED>((float(*)[4][4])(p + 4 * half),
                                            (const float(*)[4][4])(dp + 4 * half), facts, here, scale_log2,
                                            dropout, block + 4 * half, first_row);
    }
}

/* The gradient of a group's queries of its k-th item, without the factor. first_row is the thread's own. */
template <typename T, int HS, bool DROPS>
DEVICE int gradient_steps(float dq[HS / 8][4], const BackwardCall &c, QueriesShared<HS> &shared,
                          const Self &me, int k, const ItemPlace &place, const Dropout &dropout,
                          int first_row, int n, int &stored) {
    enum { N_STEPS = QueriesShared<HS>::N_STEPS };
    int turn = k % ITEMS;
    const Boxes<HS> &queries = shared.queries[turn][me.group], &slopes = shared.slopes[turn][me.group];
    float scale_log2 = c.walk.rows.queries.scale_log2;
    RowFacts facts[1][2] = {};
    bool is_first = true, is_last = false;
#    pragma unroll 1
    for (; !is_last; n++) {
        int at = n % N_STEPS;
        mbarrier_wait(&shared.full[at], n / N_STEPS & 1);
        int first = shared.step[at].first, kind = shared.step[at].kind[me.group];
        is_last = shared.step[at].is_last;
        if (kind != STEP_NOTHING) {
            float p[8][4], dp[8][4];
            unsigned slope[4][4];
            uint64_t seen[1][2] = {};
            hold(p);
            hold(dp);
            wgmma_fence();
            multiply_channels<T>(p, queries, shared.keys[at]);
            multiply_channels<T>(dp, slopes, shared.values[at]);
            wgmma_commit();
            if (is_first) { /* what the GEMMs do not wait for */
                free_rows(shared, stored);
                mbarrier_wait(&shared.facts_full[turn], k / ITEMS & 1);
#    pragma unroll
                for (int i = 0; i < 2; i++)
                    facts[0][i] = shared.facts[turn][me.group][me.warp * 16 + me.lane / 4 + i * 8];
                is_first = false;
            }
            if (kind == STEP_SOME) {
                if (c.items.has_bands) load_band(seen, shared.band[at][me.group], me);
                else find_seen<1>(seen, c.walk.rows, place.b, first_row, first);
            }
            wgmma_wait<0>();
            hold(p);
            hold(dp);
            if (kind == STEP_SOME)
                find_slopes<DROPS, true>(p, dp, facts, seen, scale_log2, dropout, first / 8, first_row);
            else find_slopes<DROPS, false>(p, dp, facts, seen, scale_log2, dropout, first / 8, first_row);
            narrow<T>(slope, p);
            hold(slope);
            hold_sums<HS / 8>(dq);
            wgmma_fence();
            multiply_weights<T>(dq, slope, shared.keys[at]);
            wgmma_commit();
            wgmma_wait<0>();
            hold_sums<HS / 8>(dq);
            hold(slope);
        }
        mbarrier_arrive(&shared.empty[at]);
    }
    return n;
}

template <typename T, int HS, bool DROPS>
DEVICE int compute_item(const BackwardCall &c, QueriesShared<HS> &shared, const Self &me,
                        const ItemPlace &place, int k, int n, int &stored) {
    const WalkRows &r = c.walk.rows;
    const TiledShape &s = r.queries;
    int turn = k % ITEMS, block = 0, first = (place.block + me.group * c.items.apart) * SPAN,
        first_row = first + me.warp * 16 + me.lane / 4;
    Dropout dropout = {};
    if (DROPS) dropout = walk_dropout(r, place.b, place.h, &block);
    float dq[1][HS / 8][4];
    const float factor[2] = {s.scale, s.scale};
    clear<1, HS / 8>(dq);
    mbarrier_wait(&shared.slopes_full[turn], k / ITEMS & 1);
    n = gradient_steps<T, HS, DROPS>(dq[0], c, shared, me, k, place, dropout, first_row, n, stored);
    free_rows(shared, stored);
    group_sync(me);
    store_boxes<T, HS>(shared.queries[turn][me.group], dq[0], factor, &c.dqkv, place.h * HS, first, place.b,
                       me);
    return n;
}

#endif

/* Registers go from the producer's group to the others. */
template <typename T, int HS, bool DROPS>
static __global__ void __launch_bounds__(ITEM_THREADS, 1)
    items_queries_kernel(const __grid_constant__ BackwardCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    QueriesShared<HS> &shared = *(QueriesShared<HS> *)warpgroup_shared;
    int n_items = 0; /* that the producer has had */
    run_items<216, 72>(
        c.items, shared, STEP_ARRIVALS,
        [&](const Self &me, const ItemPlace &place, int k, int n, int &stored) {
            return compute_item<T, HS, DROPS>(c, shared, me, place, k, n, stored);
        },
        [&](const ItemPlace &place, int turn, int n) {
            return produce_item<HS>(c, shared, place, turn, n, n_items);
        },
        [&](int g) { find_all_facts<T, HS>(c, shared, g); });
#endif
}

/* ---- on the host's side ---- */

Status attention_items_queries(const CudaContext *context, const AttentionShape *s, const AttentionMemory *m,
                               const AttentionLists *lists, Error *error) {
    BackwardCall c;
    cudaError_t code = cudaErrorNotSupported;
    if (backward_call(&c, context, s, m, lists, s->n_heads, 0, true)) {
        FOR_ITEM_KIND(s, T, HS, DROPS, {
            code = launch_items(items_queries_kernel<T, HS, DROPS>, context, 1, sizeof(QueriesShared<HS>), c);
        });
    }
    return cuda_check(code, "attention_backward (items, queries)", error);
}
