/* attention of short sequences with heads of 64, forward, by warpgroups (4 warps) that multiply 64 rows at a
 * time (wgmma, compute capability 9.0). attention_short_forward.cu says what is computed, and computes it
 * elsewhere.
 *
 * Floor: 11 us as there, for 64 sequences of 256 and 6 heads: 6,600 cycles a head and multiprocessor. Its 10
 * tiles of 64 queries and 64 keys take 2,600 of them to multiply, and as many for exponentials. Units for
 * whole numbers and logic, which have the rest of softmax and mask and most of the random numbers, need about
 * 5,000: it is these that are to be kept busy. On an H200 it takes 27 us with dropout, in a training step,
 * where the other kernel takes 31: a group's tile takes some 3,000 cycles, one step after the other, and a
 * span's results 1,600.
 *
 * The kernel is persistent and warp-specialized: a block has as many threads as there may be, and takes one
 * head after the other. In shared memory there is room for two, with their masks.
 *
 *   Three groups have queries: one the last span of a head, one the span before, and one the rest. From head
 *   to head they change places: of three heads, all have had as much, whatever the length. A group waits for
 *   each of its GEMMs, and the others compute meanwhile.
 *   The fourth one draws the next head's mask, and has a thread that loads its rows by TMA.
 *
 * A span of queries is a first factor until its results are there, which then go out by way of its box.
 *
 * Who waits for whom: queries_full and keys_full, for copies; mask_full, for those who draw; empty, for those
 * who have queries. All count heads from the block's first. */
#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/attention/attention_warpgroup_masks.cuh"

enum {
    QUERY_GROUPS = 3,
    FORWARD_WARPS = (QUERY_GROUPS + 1) * GROUP_WARPS,
    FORWARD_THREADS = FORWARD_WARPS * WARP,
    QUERY_WARPS = QUERY_GROUPS * GROUP_WARPS,
    PRODUCER_WARP = QUERY_WARPS,
    HEADS = 2 /* that there is room for */
};

/* qkv is read by the hardware's copies, in boxes of SPAN rows of a head. */
typedef struct {
    CUtensorMap qkv;
    void *y;
    float *lse;
    int n_heads_in_all, n_spans;
    float keep; /* what is kept is times this */
    TiledShape shape;
} ForwardCall;

/* "full": who has queries may read; "empty": others may write. */
typedef struct {
    alignas(1024) char queries[HEADS][SPANS][SPAN_BYTES];
    char keys[HEADS][SPANS][SPAN_BYTES], values[HEADS][SPANS][SPAN_BYTES];
    unsigned char mask[HEADS][TILES][MASK_TILE];
    uint64_t queries_full[HEADS], keys_full[HEADS][SPANS]; /* and values */
    uint64_t mask_full[HEADS], empty[HEADS];
} ForwardShared;
static_assert(sizeof(ForwardShared) <= 227 * 1024, "what a block may have");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

DEVICE void forward_barriers_init(ForwardShared &shared) {
    for (int i = 0; i < HEADS; i++) {
        mbarrier_init(&shared.queries_full[i], 1);
        for (int k = 0; k < SPANS; k++) mbarrier_init(&shared.keys_full[i][k], 1);
        mbarrier_init_warps(&shared.mask_full[i], GROUP_WARPS);
        mbarrier_init_warps(&shared.empty[i], QUERY_WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
}

/* Where a head lies in shared memory, and which turn it is there. */
DEVICE int place_of(const Self &me) {
    return me.n % HEADS;
}
DEVICE int turn_of(const Self &me) {
    return me.n / HEADS & 1;
}

/* ---- feeding ---- */

/* The column of a head's queries (0), keys (1) or values (2). */
DEVICE int column_of(const TiledShape &s, int h, int which) {
    return (which ? s.n_heads + (which - 1) * s.n_kv_heads + h / s.share : h) * SIZE;
}

/* All rows of a head, by one thread. Everybody can begin with the first keys. */
DEVICE void produce_head(const ForwardCall &c, ForwardShared &shared, const Self &me) {
    ShortSlot place = short_slot(head_of(me.n), c.shape);
    int at = place_of(me);
#    pragma unroll 1
    for (int i = 0; i < c.n_spans; i++) {
        uint64_t *full = &shared.keys_full[at][i];
        mbarrier_expect(full, 2 * SPAN_BYTES);
        produce_span(shared.keys[at][i], &c.qkv, column_of(c.shape, place.h, 1), i * SPAN, place.b, full);
        produce_span(shared.values[at][i], &c.qkv, column_of(c.shape, place.h, 2), i * SPAN, place.b, full);
        if (i) continue;
        full = &shared.queries_full[at];
        mbarrier_expect(full, (unsigned)(c.n_spans * SPAN_BYTES));
#    pragma unroll 1
        for (int k = c.n_spans - 1; k >= 0; k--)
            produce_span(shared.queries[at][k], &c.qkv, column_of(c.shape, place.h, 0), k * SPAN, place.b,
                         full);
    }
}

/* A warp's share of a head's mask. The dropout is the first head's of all. */
DEVICE void draw_share(const ForwardCall &c, ForwardShared &shared, const ShortDropout &dropout,
                       const Self &me, int first, int step) {
    ShortDropout own = of_head(dropout, short_slot(head_of(me.n), c.shape), c.shape);
    draw_units<MASK_FOR_QUERIES>(shared.mask[place_of(me)][0], c.shape, own, first,
                                 n_units(c.shape.n_positions), step);
}

/* The first head's mask is everybody's, and its rows are on their way (forward_kernel). Nobody waits for a
 * thread that neither draws nor loads, so it may not wait itself: it could miss a turn. */
template <bool DROPS>
DEVICE void feed_all(const ForwardCall &c, ForwardShared &shared, const ShortDropout &dropout, Self me) {
    if (!DROPS && (me.warp || me.lane)) return;
    if (DROPS) mbarrier_arrive(&shared.mask_full[0]);
    while (next_head(c.n_heads_in_all, me)) {
        int at = place_of(me);
        mbarrier_wait(&shared.empty[at], !turn_of(me));
        if (me.warp == 0 && me.lane == 0) produce_head(c, shared, me);
        if (DROPS) {
            __syncwarp();
            draw_share(c, shared, dropout, me, me.warp, GROUP_WARPS);
            mbarrier_arrive(&shared.mask_full[at]);
        }
    }
}

/* ---- queries ---- */

/* On the diagonal some keys follow the query. */
DEVICE void hide_later(float p[8][4], const Self &me) {
    int behind = me.warp * 16 + me.lane / 4 - me.lane % 4 * 2;
#    pragma unroll
    for (int k = 0; k < 32; k++) {
        if (k / 4 * 8 + k % 2 > behind + k % 4 / 2 * 8) p[k / 4][k % 4] = -INFINITY;
    }
}

/* Weights become first factors, of which some are dropped. */
template <typename T, bool DROPS>
DEVICE void keep_some(unsigned kept[4][4], const float p[8][4], const unsigned char *mask, const Self &me) {
    uint2 bits[2] = {};
#    pragma unroll
    for (int i = 0; i < 2 && DROPS; i++) {
        bits[i] = *(const uint2 *)(mask + (me.warp * 16 + me.lane / 4 + i * 8) * MASK_QUERY);
        bits[i].x <<= me.lane % 4 * 2, bits[i].y <<= me.lane % 4 * 2;
    }
#    pragma unroll
    for (int k = 0; k < 4; k++) {
#    pragma unroll
        for (int j = 0; j < 4; j++) { /* the pair of row j % 2 of the 8 columns 2·k + j / 2 */
            const float *pair = p[2 * k + j / 2] + j % 2 * 2;
            kept[k][j] = pair_of_floats(pair[0], pair[1], T());
            if (DROPS) kept[k][j] &= kept_halves(k < 2 ? bits[j % 2].x : bits[j % 2].y, 2 * (k % 2) + j / 2);
        }
    }
}

/* A span's weights and their sums, and y without the factors: over its tiles. */
template <typename T, bool DROPS>
DEVICE void attend_span(ForwardRows<SIZE, 1> &rows, const ForwardCall &c, ForwardShared &shared,
                        const Self &me, int span) {
    int at = place_of(me), turn = turn_of(me);
    unsigned kept[4][4];
    start_rows<SIZE, 1>(rows);
#    pragma unroll 1
    for (int i = 0; i <= span; i++) {
        float p[1][8][4];
        mbarrier_wait(&shared.keys_full[at][i], turn);
        hold(p[0]);
        wgmma_fence();
        multiply_spans<T>(p[0], shared.queries[at][span], shared.keys[at][i]);
        wgmma_commit();
        wgmma_wait<0>();
        hold(p[0]);
        hold(rows.y[0]);
        hold(kept);
        if (i == span) hide_later(p[0], me);
        soften<SIZE, 1, 8>(rows, p, c.shape.scale_log2);
        if (DROPS && i == 0) mbarrier_wait(&shared.mask_full[at], turn);
        keep_some<T, DROPS>(kept, p[0], shared.mask[at][tile_index(span, i)], me);
        hold(kept);
        hold(rows.y[0]);
        wgmma_fence();
        multiply_rows<T>(rows.y[0], kept, shared.values[at][i], true);
        wgmma_commit();
    }
    wgmma_wait<0>();
    hold(rows.y[0]);
    hold(kept);
}

template <typename T>
DEVICE void store_span(ForwardRows<SIZE, 1> &rows, const ForwardCall &c, ForwardShared &shared,
                       const Self &me, int span) {
    const TiledShape &s = c.shape;
    int first = span * SPAN + me.warp * 16, head = head_of(me.n);
    T *y = (T *)c.y + short_slot(head, s).at_y;
    float factor[2];
    unsigned unused[4];
#    pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first + me.lane / 4 + i * 8;
        float sum = row_sum(rows.sum[0][i]);
        factor[i] = c.keep / sum;
        if (me.lane % 4 == 0 && row < s.n_positions)
            c.lse[(int64_t)head * s.n_positions + row] = (rows.max[0][i] * s.scale_log2 + log2f(sum)) * LN_2;
    }
    store_through_box(unused, shared.queries[place_of(me)][span], y, s.y_width, first, s.n_positions, me,
                      factor, rows.y[0]);
}

template <typename T, bool DROPS>
DEVICE void compute_queries(const ForwardCall &c, ForwardShared &shared, Self me) {
    do {
        int which = (me.group + me.n) % QUERY_GROUPS, last = c.n_spans - 1 - which,
            end = which < QUERY_GROUPS - 1 ? max(last, 0) : 0;
        mbarrier_wait(&shared.queries_full[place_of(me)], turn_of(me)); /* also who has no queries: in turn */
#    pragma unroll 1
        for (int span = last; span >= end; span--) {
            ForwardRows<SIZE, 1> rows;
            attend_span<T, DROPS>(rows, c, shared, me, span);
            store_span<T>(rows, c, shared, me, span);
        }
        fence_async_proxy();
        mbarrier_arrive(&shared.empty[place_of(me)]);
    } while (next_head(c.n_heads_in_all, me));
}

#endif

template <typename T, bool DROPS>
static __global__ void __launch_bounds__(FORWARD_THREADS, 1)
    forward_kernel(const __grid_constant__ ForwardCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    ForwardShared &shared = *(ForwardShared *)warpgroup_shared;
    int warp = warp_of_block();
    Self me = self_of(warp);
    ShortDropout dropout = {}; /* of random words that are the host's: no kernel writes them */
    if (DROPS) dropout = short_dropout_of(c.shape, 0, 0);
    if (warp == PRODUCER_WARP) {
        if (me.lane == 0) {
            forward_barriers_init(shared);
            wait_for_predecessor();
            produce_head(c, shared, me); /* the next one's loads would keep the others waiting */
        }
    } else if (DROPS) {
        draw_share(c, shared, dropout, me, warp - (warp > PRODUCER_WARP), FORWARD_WARPS - 1);
    }
    wait_for_predecessor();
    __syncthreads();
    /* registers go to the groups with queries */
    if (me.group < QUERY_GROUPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 136;");
        compute_queries<T, DROPS>(c, shared, me);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
        feed_all<DROPS>(c, shared, dropout, me);
    }
#endif
}

/* ---- on the host's side ---- */

Status attention_warpgroup_forward(const AttentionShape *s, const AttentionMemory *m, cudaStream_t stream,
                                   Error *error) {
    ForwardCall c = {};
    c.y = m->y, c.lse = m->lse;
    c.n_heads_in_all = (int)(s->n_sequences * s->n_heads);
    c.shape = tiled_shape(s, m);
    c.keep = random_dropout_scale(s->threshold);
    c.n_spans = (c.shape.n_positions + SPAN - 1) / SPAN;
    cudaError_t code = cudaErrorNotSupported;
    if (map_heads(&c.qkv, m->qkv, s, s->width)) {
        FOR_SHORT_TYPE(s, T, {
            auto kernel = s->threshold ? forward_kernel<T, true> : forward_kernel<T, false>;
            code = launch_for_heads(kernel, FORWARD_THREADS, sizeof(ForwardShared), stream, c);
        });
    }
    return cuda_check(code, "attention (groups)", error);
}
