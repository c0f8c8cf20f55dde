/* attention and sparse_attention, backward, the queries' gradients, over items of two blocks of queries
 * (attention_items.cuh). attention/attention_walk_queries.cuh says what is computed, and computes it
 * elsewhere.
 *
 * Floor: a tile of 64 queries and 64 keys of heads of 64 takes a multiprocessor 384 cycles to multiply.
 *
 * Scores and dweights are two GEMMs at once, whose results become dscores in registers, the first factor of
 * the third. While a group computes those, the other one has its GEMMs. */
#include "backend/cuda/attention/attention_walk_queries.cuh"
#include "backend/cuda/attention_items/attention_items.cuh"

enum { STEPS = 4 /* that there is room for; half as many of heads of 128 */ };

template <int HS> struct QueriesShared {
    enum { N_STEPS = STEPS * SIZE / HS };
    alignas(1024) Boxes<HS> queries[ITEMS][ITEM_GROUPS], slopes[ITEMS][ITEM_GROUPS];
    Boxes<HS> keys[N_STEPS], values[N_STEPS];
    ItemPlace place[ITEMS];
    ItemStep step[N_STEPS];
    uint64_t rows_full[ITEMS], rows_empty[ITEMS], full[N_STEPS], empty[N_STEPS];
};
static_assert(sizeof(QueriesShared<64>) <= 227 * 1024 && sizeof(QueriesShared<128>) <= 227 * 1024,
              "what a block may have");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int HS>
DEVICE int produce_item(const BackwardCall &c, QueriesShared<HS> &shared, const ItemPlace &place, int turn,
                        int n) {
    return produce_keys<HS, QueriesShared<HS>::N_STEPS>(
        c, shared, place, turn, n, 2 * ITEM_GROUPS * sizeof shared.queries[0][0],
        [&](int g, int block) {
            produce_boxes(shared.queries[turn][g], &c.qkv, place.h * HS, block * SPAN, place.b,
                          &shared.rows_full[turn]);
            produce_boxes(shared.slopes[turn][g], &c.dy, place.h * HS, block * SPAN, place.b,
                          &shared.rows_full[turn]);
        },
        [](int, const ItemStep &) {});
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

/* The gradient of a group's queries, without the factor. first_row is the thread's own. */
template <typename T, int HS, bool DROPS>
DEVICE int gradient_steps(float dq[HS / 8][4], const BackwardCall &c, QueriesShared<HS> &shared,
                          const Self &me, int turn, const ItemPlace &place, const RowFacts facts[1][2],
                          const Dropout &dropout, int first_row, int n) {
    enum { N_STEPS = QueriesShared<HS>::N_STEPS };
    const Boxes<HS> &queries = shared.queries[turn][me.group], &slopes = shared.slopes[turn][me.group];
    float scale_log2 = c.walk.rows.queries.scale_log2;
    bool is_last = false;
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
            if (kind == STEP_SOME) find_seen<1>(seen, c.walk.rows, place.b, first_row, first);
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
                        const ItemPlace &place, int turn, int n) {
    const WalkRows &r = c.walk.rows;
    const TiledShape &s = r.queries;
    int block = 0, first = (place.block + me.group * c.items.apart) * SPAN,
        first_row = first + me.warp * 16 + me.lane / 4;
    Dropout dropout = {};
    if (DROPS) dropout = walk_dropout(r, place.b, place.h, &block);
    RowFacts facts[1][2];
#    pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first_row + i * 8;
        facts[0][i] = row < s.n_positions ? c.facts[walk_lse_at(r, place.b, place.h) + row]
                                          : make_float2(INFINITY, 0.0f);
    }
    float dq[1][HS / 8][4];
    const float factor[2] = {s.scale, s.scale};
    clear<1, HS / 8>(dq);
    n = gradient_steps<T, HS, DROPS>(dq[0], c, shared, me, turn, place, facts, dropout, first_row, n);
    group_sync(me);
    store_boxes<T, HS>(shared.queries[turn][me.group], dq[0], factor,
                       (T *)c.dqkv + walk_query_at(r, place.b, place.h), s.width, first, s.n_positions, me);
    return n;
}

#endif

/* Registers go from the producer's group to the others. */
template <typename T, int HS, bool DROPS>
static __global__ void __launch_bounds__(ITEM_THREADS, 1)
    items_queries_kernel(const __grid_constant__ BackwardCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    QueriesShared<HS> &shared = *(QueriesShared<HS> *)warpgroup_shared;
    run_items<216, 72>(
        c.items, shared, 1,
        [&](const Self &me, const ItemPlace &place, int turn, int n) {
            return compute_item<T, HS, DROPS>(c, shared, me, place, turn, n);
        },
        [&](const ItemPlace &place, int turn, int n) { return produce_item<HS>(c, shared, place, turn, n); });
#endif
}

/* ---- on the host's side ---- */

template <typename T, int HS>
static cudaError_t launch(const CudaContext *context, const BackwardCall &c, bool drops) {
    return drops ? launch_items(items_queries_kernel<T, HS, true>, context, 1, sizeof(QueriesShared<HS>), c)
                 : launch_items(items_queries_kernel<T, HS, false>, context, 1, sizeof(QueriesShared<HS>), c);
}

Status attention_items_queries(const CudaContext *context, const AttentionShape *s, const AttentionMemory *m,
                               const AttentionLists *lists, Error *error) {
    BackwardCall c;
    cudaError_t code = cudaErrorNotSupported;
    if (backward_call(&c, context, s, m, lists, s->n_heads, 0, true)) {
        FOR_SHORT_TYPE(s, T, {
            code = s->head_size == SIZE ? launch<T, SIZE>(context, c, s->threshold != 0)
                                        : launch<T, 2 * SIZE>(context, c, s->threshold != 0);
        });
    }
    return cuda_check(code, "attention_backward (items, queries)", error);
}
