/* attention and sparse_attention, forward, over items of two blocks of queries (attention_items.cuh).
 * attention_forward.cu and sparse_forward.cu compute it elsewhere.
 *
 * Floor: a tile of 64 queries and 64 keys of heads of 64 takes a multiprocessor 256 cycles to multiply, and
 * as many for its exponentials; both at once would be the peak of the tensor cores.
 *
 * A group waits for each of its GEMMs; meanwhile others compute. Scores and weights are not there at once, so
 * that registers suffice for four groups on a multiprocessor: two blocks. With heads of 128 the GEMMs take
 * twice as long, and two groups do.
 *
 * Every query's own block comes first, in which it sees a key: so rows have a maximum from the first tile
 * on. */
#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/attention_items/attention_items.cuh"

enum { STEPS = 4 /* that there is room for */ };

typedef struct {
    CUtensorMap qkv; /* in boxes of SPAN rows and SIZE channels */
    CUtensorMap y;   /* in boxes of 16 rows */
    float *lse;
    Items items;
    ListWalk walk;
} ForwardCall;

template <int HS> struct ForwardShared {
    enum { FACT_WARPS = 0 };
    alignas(1024) Boxes<HS> queries[ITEMS][ITEM_GROUPS], keys[STEPS], values[STEPS];
    Band band[STEPS][ITEM_GROUPS];
    ItemPlace place[ITEMS];
    ItemStep step[STEPS];
    uint64_t rows_full[ITEMS], rows_empty[ITEMS], full[STEPS], empty[STEPS];
};
static_assert(sizeof(ForwardShared<128>) <= 227 * 1024, "what a block may have");
static_assert(2 * (sizeof(ForwardShared<64>) + 1024) <= 228 * 1024, "two blocks on a multiprocessor");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int HS>
DEVICE int produce_item(const ForwardCall &c, ForwardShared<HS> &shared, const ItemPlace &place, int turn,
                        int n) {
    return produce_keys<HS, STEPS>(c, shared, place, turn, n, ITEM_GROUPS * sizeof shared.queries[0][0],
                                   [&](int g, int block) {
                                       produce_boxes(shared.queries[turn][g], &c.qkv, place.h * HS,
                                                     block * SPAN, place.b, &shared.rows_full[turn]);
                                   });
}

/* The weights of a group's queries, their sums, and y without the factors. first_row is the thread's own. */
template <typename T, int HS, bool DROPS>
DEVICE int attend_steps(ForwardRows<HS, 1> &rows, const ForwardCall &c, ForwardShared<HS> &shared,
                        const Self &me, const Boxes<HS> &queries, int b, const Dropout &dropout,
                        int first_row, int n, int &stored) {
    bool is_last = false;
#    pragma unroll 1
    for (; !is_last; n++) {
        int at = n % STEPS;
        mbarrier_wait(&shared.full[at], n / STEPS & 1);
        int first = shared.step[at].first, kind = shared.step[at].kind[me.group];
        is_last = shared.step[at].is_last;
        if (kind != STEP_NOTHING) {
            float p[1][8][4];
            unsigned kept[4][4];
            uint64_t seen[1][2] = {}; /* found while there are registers */
            if (kind == STEP_SOME && !c.items.has_bands) find_seen<1>(seen, c.walk.rows, b, first_row, first);
            hold(p[0]);
            wgmma_fence();
            multiply_channels<T>(p[0], queries, shared.keys[at]);
            wgmma_commit();
            free_rows(shared, stored);
            wgmma_wait<0>();
            hold(p[0]);
            if (kind == STEP_SOME) {
                if (c.items.has_bands) load_band(seen, shared.band[at][me.group], me);
                hide_scores<1, 8>(p, seen);
            }
            soften<HS, 1, 8>(rows, p, c.walk.rows.queries.scale_log2);
            if (DROPS) drop_weights<1, 8>(p, dropout, first_row, first / 8);
            narrow<T>(kept, p[0]);
            hold(kept);
            hold_sums<HS / 8>(rows.y[0]);
            wgmma_fence();
            multiply_weights<T>(rows.y[0], kept, shared.values[at]);
            wgmma_commit();
            wgmma_wait<0>();
            hold_sums<HS / 8>(rows.y[0]);
            hold(kept);
        }
        mbarrier_arrive(&shared.empty[at]);
    }
    return n;
}

/* The logarithm to base 2, by the hardware alone. */
DEVICE float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* `first` is the group's first row. */
template <typename T, int HS>
DEVICE void store_group(ForwardRows<HS, 1> &rows, const ForwardCall &c, Boxes<HS> &queries, const Self &me,
                        const ItemPlace &place, int first, float keep) {
    const WalkRows &r = c.walk.rows;
    float *lse = c.lse + walk_lse_at(r, place.b, place.h), factor[2];
#    pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first + me.warp * 16 + me.lane / 4 + i * 8;
        float sum = row_sum(rows.sum[0][i]);
        factor[i] = __fdividef(keep, sum);
        if (me.lane % 4 == 0 && row < r.queries.n_positions)
            lse[row] = (rows.max[0][i] * r.queries.scale_log2 + log2_fast(sum)) * LN_2;
    }
    group_sync(me);
    store_boxes<T, HS>(queries, rows.y[0], factor, &c.y, place.h * HS, first, place.b, me);
}

#endif

/* Two blocks on a multiprocessor are so many threads that each begins with 80 registers; the producer's group
 * gives most of its own to the others. */
template <int HS, bool DROPS> struct Resident {
    enum { N = HS == SIZE && !DROPS ? 2 : 1 };
};

template <typename T, int HS, bool DROPS>
static __global__ void __launch_bounds__(ITEM_THREADS, Resident<HS, DROPS>::N)
    items_forward_kernel(const __grid_constant__ ForwardCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    ForwardShared<HS> &shared = *(ForwardShared<HS> *)warpgroup_shared;
    run_items<Resident<HS, DROPS>::N == 2 ? 96 : 0, 48>(
        c.items, shared, STEP_ARRIVALS,
        [&](const Self &me, const ItemPlace &place, int k, int n, int &stored) {
            ForwardRows<HS, 1> rows;
            Dropout dropout = {};
            int turn = k % ITEMS, block = 0, first = (place.block + me.group * c.items.apart) * SPAN;
            if (DROPS) dropout = walk_dropout(c.walk.rows, place.b, place.h, &block);
            start_rows<HS, 1>(rows);
            n = attend_steps<T, HS, DROPS>(rows, c, shared, me, shared.queries[turn][me.group], place.b,
                                           dropout, first + me.warp * 16 + me.lane / 4, n, stored);
            free_rows(shared, stored);
            store_group<T, HS>(rows, c, shared.queries[turn][me.group], me, place, first,
                               DROPS ? dropout.scale : 1.0f);
            return n;
        },
        [&](const ItemPlace &place, int turn, int n) { return produce_item<HS>(c, shared, place, turn, n); },
        [](int) {});
#endif
}

/* ---- on the host's side ---- */

Status attention_items_forward(const CudaContext *context, const AttentionShape *s, const AttentionMemory *m,
                               const AttentionLists *lists, Error *error) {
    ForwardCall c = {};
    c.lse = m->lse;
    c.items = items_of(context, s, m, s->n_heads, 0, true);
    c.walk = list_walk(s, m, lists);
    cudaError_t code = cudaErrorNotSupported;
    if (map_heads(&c.qkv, m->qkv, s, s->width) && map_warp_rows(&c.y, m->y, s, s->y_width)) {
        FOR_ITEM_KIND(s, T, HS, DROPS, {
            code = launch_items(items_forward_kernel<T, HS, DROPS>, context, Resident<HS, DROPS>::N,
                                sizeof(ForwardShared<HS>), c);
        });
    }
    return cuda_check(code, "attention (items)", error);
}

bool cuda_code_is_for_90a(void) {
#ifdef PGPT_HAVE_SM90A
    return true;
#else
    return false;
#endif
}
