/* attention of short sequences with heads of 64, backward, by warpgroups (4 warps) that multiply 64 rows at a
 * time (wgmma, compute capability 9.0). attention_short_backward.cu says what is computed, and computes it
 * elsewhere.
 *
 * Floor: 23 us as there, for 64 sequences of 256 and 6 heads: 12,600 cycles a head and multiprocessor. The
 * GEMMs, each computed once, take 6,400 of a head's cycles, 10 tiles of 64 queries and 64 keys; the
 * exponentials 2,600, random numbers about 3,500. None of that has to wait for the rest, so different warps
 * do it at the same time (warp specialization). On an H200 it takes 45 us with dropout and 38 without, where
 * the other kernel takes 86 and 73: a group's tile takes some 3,000 cycles, one step after the other, a
 * span's results 1,300, and 4 us pass before the first tile.
 *
 * The kernel is persistent: a block has as many threads as there may be, and takes one head after the other.
 * Its rows come in spans of 64.
 *
 *   Two groups have keys: one the spans 3 and 0, the other 2 and 1, five tiles each of a head with 256
 *   positions. Scores and dweights have keys for rows: then weights and dscores lie in registers as the GEMMs
 *   for dvalue and dkey want them. Dscores are also left in shared memory.
 *   One group makes the queries' gradients of them, span by span from the last one: the sums have an order.
 *   The last one is the producer: one of its warps loads the spans by TMA. Others find what is to be known of
 *   each query, and draw most of the next head's mask, four blocks of random numbers a time: one alone is a
 *   chain of steps that wait for each other. The queries' group, which has less to do than those with keys,
 *   draws the rest.
 *
 * The last queries come first. They alone see the last keys, so these four spans are done with after the
 * first tiles, and the next head's come in their place; and so on, so that a head's memory is that of the
 * next before it is done.
 *
 * Who waits for whom: barriers in pairs for each span, tile and mask (WarpgroupShared). All count heads from
 * the block's first. */
#include "backend/cuda/attention/attention_warpgroup_producer.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- results ---- */

/* 16 rows of a span to where they belong, and the sums of their columns as they are stored there: number k,
 * of two, is that of summed_column(k). The box also turns them into second factors. Row n of the first factor
 * of 8 columns, their n-th, is ones, and the others zeros. */
template <typename T>
DEVICE void store_span(float sums[2], char *box, const WarpgroupCall &c, const Self &me, int which, int span,
                       float factor, const float d[8][4]) {
    const TiledShape &s = c.shape;
    const float factors[2] = {factor, factor};
    T *to = (T *)c.dqkv + short_slot(head_of(me.n), s).at_query + (int64_t)which * s.n_heads * SIZE;
    unsigned at[4];
    store_through_box(at, box, to, s.width, span * SPAN + me.warp * 16, s.n_positions, me, factors, d);
    if (c.sums) {
        float part[4][4] = {}; /* products that do not wait for each other */
#    pragma unroll
        for (int k = 0; k < 4; k++) {
            unsigned word[4];
            load_matrices_turned(word, at[k]);
#    pragma unroll
            for (int j = 0; j < 2; j++) {
                unsigned one = me.lane / 4 == 2 * k + j ? pair_of_floats(1.0f, 1.0f, T()) : 0;
                const unsigned ones[4] = {one, 0, one, 0};
                multiply_add(part[k], ones, word[2 * j], word[2 * j + 1], T());
            }
        }
#    pragma unroll
        for (int k = 0; k < 2; k++) sums[k] += (part[0][k] + part[1][k]) + (part[2][k] + part[3][k]);
    }
    __syncwarp();
}

DEVICE void put_sums(float *to, const float sums[2]) {
#    pragma unroll
    for (int k = 0; k < 2; k++) to[summed_column<SIZE>(k)] = sums[k];
}

/* ---- keys ---- */

/* A thread's facts of 16 queries of a span, two of every 8. */
DEVICE float4 load_facts(const float *facts, int lane, int k) {
    return *(const float4 *)(facts + lane % 4 * FACT_COLUMN + 4 * k);
}
DEVICE float fact_of(const float4 &fact, int n, int i) {
    return n & 1 ? (i & 1 ? fact.w : fact.z) : (i & 1 ? fact.y : fact.x);
}

/* Scores become weights. Rows are keys, columns queries; on the diagonal some of them do not see the key. */
DEVICE void soften(float p[8][4], const float *relative, bool is_diagonal, const Self &me, float scale_log2) {
#    pragma unroll
    for (int n = 0; n < 8; n++) {
        float4 fact = load_facts(relative, me.lane, n / 2);
#    pragma unroll
        for (int i = 0; i < 4; i++) p[n][i] = exp2_fast(fmaf(p[n][i], scale_log2, fact_of(fact, n, i)));
    }
    if (!is_diagonal) return;
    int ahead = me.warp * 16 + me.lane / 4 - me.lane % 4 * 2;
#    pragma unroll
    for (int k = 0; k < 32; k++) {
        if (ahead + k % 4 / 2 * 8 > k / 4 * 8 + k % 2) p[k / 4][k % 4] = 0.0f;
    }
}

/* Weights, of which some are dropped, and dweights become first factors: those that are kept, and dscores. */
template <typename T, bool DROPS>
DEVICE void find_slopes(unsigned kept[4][4], unsigned slope[4][4], const float p[8][4], const float dp[8][4],
                        const float *dots, const unsigned char *mask, const Self &me) {
    int shift = mask_shift(me.lane);
    mask += me.warp * MASK_STRIP + me.lane % 4 * MASK_COLUMN;
#    pragma unroll
    for (int k = 0; k < 4; k++) {
        float4 fact = load_facts(dots, me.lane, k);
        uint2 bits = {};
        if (DROPS) bits = *(const uint2 *)(mask + 8 * k);
#    pragma unroll
        for (int j = 0; j < 4; j++) { /* the pair of rows j % 2 of the 8 columns 2·k + j / 2 */
            int n = 2 * k + j / 2, i = j % 2 * 2;
            unsigned own = (j / 2 ? bits.y : bits.x) >> shift;
            float w[2], d[2];
#    pragma unroll
            for (int e = 0; e < 2; e++) {
                bool stays = !DROPS || (own & 1u << (e * 16 + (j % 2 ? 0 : 4)));
                w[e] = stays ? p[n][i + e] : 0.0f;
                d[e] = fmaf(w[e], dp[n][i + e], p[n][i + e] * fact_of(fact, n, e));
            }
            kept[k][j] = pair_of_floats(w[0], w[1], T());
            slope[k][j] = pair_of_floats(d[0], d[1], T());
        }
    }
}

/* Dscores to shared memory, where they have queries for rows. */
DEVICE void leave_slopes(char *dscores, const unsigned slope[4][4], const Self &me) {
    int row = me.lane / 16 * 8 + me.lane % 8, vector = 2 * me.warp + me.lane / 8 % 2;
    unsigned at = shared_address(dscores) + (unsigned)(row * 128 + (vector ^ row % 8) * 16);
#    pragma unroll
    for (int k = 0; k < 4; k++) store_matrices_turned(at + (unsigned)(k * 16 * 128), slope[k]);
    fence_async_proxy();
}

/* dkey and dvalue of a span, without the factors: over its tiles, the last queries first. The other group's
 * products go on while this one is between its own. The group's last span of keys is the last to need a span
 * of queries. */
template <typename T, bool DROPS>
DEVICE void gradients_of_span(float dk[8][4], float dv[8][4], const WarpgroupCall &c, WarpgroupShared &shared,
                              const Self &me, int keys, int &tile) {
    int place = keys_place(me, keys);
    mbarrier_wait(&shared.keys_full[place], keys_turn(me, keys) & 1);
#    pragma unroll 1
    for (int i = c.n_spans - 1; i >= keys; i--) {
        unsigned kept[4][4], slope[4][4];
        float p[8][4], dp[8][4];
        mbarrier_wait(&shared.queries_full[i], me.n & 1);
        hold(p);
        hold(dp);
        wgmma_fence();
        multiply_spans<T>(p, shared.keys[place], shared.queries[i]);
        wgmma_commit();
        multiply_spans<T>(dp, shared.values[place], shared.slopes[i]);
        wgmma_commit();
        mbarrier_wait(&shared.facts_full[i], me.n & 1);
        if (DROPS && (me.n || i < c.n_spans - 1)) mbarrier_wait(&shared.mask_full[me.n & 1], me.n >> 1 & 1);
        wgmma_wait<1>();
        hold(p);
        soften(p, shared.relative[i], i == keys, me, c.shape.scale_log2);
        wgmma_wait<0>();
        hold(dp);
        find_slopes<T, DROPS>(kept, slope, p, dp, shared.dots[i], shared.mask[me.n & 1][tile_index(i, keys)],
                              me);
        int slot = tile % RING;
        mbarrier_wait(&shared.dscores_empty[me.group][slot], ~(tile / RING) & 1);
        tile++;
        leave_slopes(shared.dscores[me.group][slot], slope, me);
        mbarrier_arrive(&shared.dscores_full[me.group][slot]);
        hold(kept);
        hold(slope);
        hold(dk);
        hold(dv);
        wgmma_fence();
        multiply_rows<T>(dv, kept, shared.slopes[i], i < c.n_spans - 1);
        multiply_rows<T>(dk, slope, shared.queries[i], i < c.n_spans - 1);
        wgmma_commit();
        wgmma_wait<0>();
        hold(dk);
        hold(dv);
        hold(kept);
        hold(slope);
        if (keys == me.group) mbarrier_arrive(&shared.queries_empty[i]);
    }
}

template <typename T, bool DROPS>
DEVICE void compute_keys(const WarpgroupCall &c, WarpgroupShared &shared, Self me) {
    int warp = me.group * GROUP_WARPS + me.warp, tile = 0;
    do {
        float sums[2][2] = {};
#    pragma unroll 1
        for (int part = 0; part < 2; part++) {
            int keys = part ? me.group : 3 - me.group;
            float dk[8][4], dv[8][4];
            if (keys >= c.n_spans) continue;
            gradients_of_span<T, DROPS>(dk, dv, c, shared, me, keys, tile);
            int place = keys_place(me, keys);
            store_span<T>(sums[1], shared.values[place], c, me, 2, keys, c.keep, dv);
            store_span<T>(sums[0], shared.values[place], c, me, 1, keys, c.shape.scale * c.keep, dk);
            fence_async_proxy();
            mbarrier_arrive(&shared.keys_empty[place]);
        }
        if (DROPS) mbarrier_arrive(&shared.mask_empty[me.n & 1]);
        for (int i = 0; i < me.group; i++) { /* queries that see none of the group's keys */
            mbarrier_wait(&shared.queries_full[i], me.n & 1);
            mbarrier_arrive(&shared.queries_empty[i]);
        }
        if (c.sums) {
            mbarrier_wait(&shared.sums_empty, ~me.n & 1);
            for (int k = 0; k < 2; k++) put_sums(shared.key_sums[warp][k], sums[k]);
            mbarrier_arrive(&shared.sums_full);
        }
    } while (next_head(c.n_heads_in_all, me));
}

/* ---- queries ---- */

/* The keys whose dscores are the last that a span of queries gets; they are of the group with that number,
 * too. */
DEVICE int last_keys(int queries) {
    return queries ? 1 : 0;
}

/* The gradient of a span, without the factor: of what the groups with keys have left. The order is that in
 * which the first of four spans comes. The last box remains the group's. */
template <typename T>
DEVICE void gradient_of_span(float dq[8][4], const WarpgroupCall &c, WarpgroupShared &shared, const Self &me,
                             int queries) {
    bool add = false;
#    pragma unroll 1
    for (int k = 0; k < SPANS; k++) {
        int keys = k < 2 ? 3 - k : k - 2, group = keys == 1 || keys == 2;
        if (keys > queries) continue;
        int tile = tile_number(c, me.n, group, queries, keys), slot = tile % RING;
        int place = keys_place(me, keys);
        mbarrier_wait(&shared.keys_full[place], keys_turn(me, keys) & 1);
        mbarrier_wait(&shared.dscores_full[group][slot], tile / RING & 1);
        hold(dq);
        wgmma_fence();
        multiply_rows<T>(dq, shared.dscores[group][slot], shared.keys[place], add);
        wgmma_commit();
        wgmma_wait<0>();
        hold(dq);
        if (keys != last_keys(queries)) mbarrier_arrive(&shared.dscores_empty[group][slot]);
        if (keys == queries) mbarrier_arrive(&shared.keys_empty[place]);
        add = true;
    }
}

/* What the warps have of queries, keys and values, added up in their order. */
DEVICE void store_sums(const WarpgroupCall &c, const WarpgroupShared &shared, const Self &me) {
    ShortSlot place = short_slot(head_of(me.n), c.shape);
    float *to = c.sums + place.b * c.shape.width + place.h * SIZE;
    for (int k = me.warp * WARP + me.lane; k < 3 * SIZE; k += GROUP_WARPS * WARP) {
        int which = k / SIZE, column = k % SIZE;
        float sum = 0.0f;
        for (int w = 0; w < (which ? KEY_WARPS : GROUP_WARPS); w++)
            sum += which ? shared.key_sums[w][which - 1][column] : shared.query_sums[w][column];
        to[which * c.shape.n_heads * SIZE + column] = sum;
    }
}

template <typename T, bool DROPS>
DEVICE void compute_queries(const WarpgroupCall &c, WarpgroupShared &shared, Self me) {
    if (DROPS) draw_share(c, shared, me, first_units(c) + me.warp, n_units(c.shape.n_positions), GROUP_WARPS);
    do {
        float sums[2] = {};
#    pragma unroll 1
        for (int i = c.n_spans - 1; i >= 0; i--) {
            float dq[8][4];
            int last = last_keys(i), slot = tile_number(c, me.n, last, i, last) % RING;
            gradient_of_span<T>(dq, c, shared, me, i);
            store_span<T>(sums, shared.dscores[last][slot], c, me, 0, i, c.shape.scale * c.keep, dq);
            mbarrier_arrive(&shared.dscores_empty[last][slot]);
            Self next = me;
            if (DROPS && i == c.n_spans - 1 && next_head(c.n_heads_in_all, next))
                draw_share(c, shared, next, me.warp, queries_share(c.shape), GROUP_WARPS);
        }
        if (c.sums) {
            mbarrier_wait(&shared.sums_empty, ~me.n & 1);
            put_sums(shared.query_sums[me.warp], sums);
            mbarrier_arrive(&shared.sums_full);
            mbarrier_wait(&shared.sums_full, me.n & 1);
            store_sums(c, shared, me);
            mbarrier_arrive(&shared.sums_empty);
        }
    } while (next_head(c.n_heads_in_all, me));
}

#endif

template <typename T, bool DROPS>
static __global__ void __launch_bounds__(WARPGROUP_THREADS, 1)
    warpgroup_backward_kernel(const __grid_constant__ WarpgroupCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    WarpgroupShared &shared = *(WarpgroupShared *)warpgroup_shared;
    int warp = warp_of_block();
    Self me = self_of(warp);
    if (warp == PRODUCER_WARP) {
        if (me.lane == 0) {
            warpgroup_barriers_init(shared);
            wait_for_predecessor();
            produce_spans(c, shared, me, c.n_spans - 1, first_produced(c));
        }
    } else if (DROPS) {
        /* what is needed first of the first mask is everybody else's; its random words are the host's */
        draw_units<MASK_FOR_KEYS>(shared.mask[0][0], c.shape, head_of(0), warp - (warp > PRODUCER_WARP),
                                  first_units(c), GROUPS * GROUP_WARPS - 1);
    }
    wait_for_predecessor();
    __syncthreads();
    /* registers go to the groups with keys */
    if (me.group < KEY_GROUPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
        compute_keys<T, DROPS>(c, shared, me);
    } else if (me.group == QUERY_GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        compute_queries<T, DROPS>(c, shared, me);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        if (warp != PRODUCER_WARP) feed_all<T, DROPS>(c, shared, me);
        else if (me.lane == 0) produce_all(c, shared, me);
    }
#endif
}

/* ---- on the host's side ---- */

Status attention_warpgroup_backward(const AttentionShape *s, const AttentionMemory *m, cudaStream_t stream,
                                    Error *error) {
    WarpgroupCall c = {};
    c.lse = m->lse, c.dqkv = m->dqkv, c.sums = m->sums;
    c.n_heads_in_all = (int)(s->n_sequences * s->n_heads);
    c.shape = tiled_shape(s, m);
    c.keep = random_dropout_scale(s->threshold), c.inverse = 1.0f / c.keep;
    c.n_spans = (c.shape.n_positions + SPAN - 1) / SPAN;
    cudaError_t code = cudaErrorNotSupported;
    if (map_heads(&c.qkv, m->qkv, s, s->width) && map_heads(&c.y, m->y, s, s->y_width) &&
        map_heads(&c.dy, m->dy, s, s->y_width)) {
        FOR_SHORT_TYPE(s, T, {
            auto kernel =
                s->threshold ? warpgroup_backward_kernel<T, true> : warpgroup_backward_kernel<T, false>;
            code = launch_for_heads(kernel, WARPGROUP_THREADS, sizeof(WarpgroupShared), stream, c);
        });
    }
    return cuda_check(code, "attention_backward (groups)", error);
}

/* With less than a span there is too little for the groups: of 32 positions with dropout, the other kernel is
 * faster. */
bool attention_warpgroup_takes(const AttentionShape *s, bool adds, int capability) {
#ifdef PGPT_HAVE_SM90A
    static const bool is_built = true;
#else
    static const bool is_built = false;
#endif
    return is_built && capability == 90 && !adds && s->head_size == SIZE && s->n_positions >= SPAN;
}
