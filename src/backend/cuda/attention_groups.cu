/* attention of short sequences with heads of 64, backward, by groups of 4 warps that multiply 64 rows at a time (compute
 * capability 9.0). attention_short_backward.cu says what is computed, and computes it elsewhere.
 *
 * Floor: 23 us as there, for 64 sequences of 256 and 6 heads: 12,600 cycles a head and multiprocessor. The products, each
 * computed once, take 6,400 of a head's cycles, 10 tiles of 64 queries and 64 keys; the exponentials 2,600, random numbers
 * about 3,500. None of that has to wait for the rest, so different warps do it at the same time.
 *
 * A block has as many threads as there may be, and takes one head after the other. Its rows come in spans of 64.
 *
 *   Two groups have keys: one the spans 3 and 0, the other 2 and 1, five tiles each of a head with 256 positions. Scores and
 *   dweights have keys for rows: then weights and dscores lie in registers as the products for dvalue and dkey want them.
 *   Dscores are also left in shared memory.
 *   One group makes the queries' gradients of them, span by span from the last one: the sums have an order.
 *   The last one has a warp that orders the spans; others find what is to be known of each query, and draw the next head's
 *   mask, as does the queries' group while nothing is there for it.
 *
 * The last queries come first. They alone see the last keys, so these four spans are done with after the first tiles, and
 * the next head's come in their place; and so on, so that a head's memory is that of the next before it is done.
 *
 * Who waits for whom: barriers in pairs for each span, tile and mask (GroupsShared). All count heads from the block's first. */
#include "backend/cuda/attention_groups_feed.cuh"

#include "backend/cuda/tensor_map.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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
                        const float *products, const unsigned char *mask, const Self &me) {
    mask += me.warp * MASK_STRIP + me.lane % 4 * MASK_COLUMN;
#    pragma unroll
    for (int k = 0; k < 4; k++) {
        float4 fact = load_facts(products, me.lane, k);
        uint2 bits = {};
        if (DROPS) bits = *(const uint2 *)(mask + 8 * k);
#    pragma unroll
        for (int j = 0; j < 4; j++) { /* the pair of rows j % 2 of the 8 columns 2·k + j / 2 */
            int n = 2 * k + j / 2, i = j % 2 * 2;
            unsigned own = (j / 2 ? bits.y : bits.x) >> (me.lane / 4);
            float w[2], d[2];
#    pragma unroll
            for (int e = 0; e < 2; e++) {
                bool stays = !DROPS || (own & 1u << (e * 16 + j % 2 * 8));
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
    show_to_copies();
}

/* dkey and dvalue of a span, without the factors: over its tiles, the last queries first. The other group's products go on
 * while this one is between its own. The group's last span of keys is the last to need a span of queries. */
template <typename T, bool DROPS>
DEVICE void gradients_of_span(float dk[8][4], float dv[8][4], const GroupsCall &c, GroupsShared &shared,
                              const Self &me, int keys) {
    int place = keys_place(me, keys);
    barrier_pass(&shared.keys_full[place], keys_turn(me, keys) & 1);
#    pragma unroll 1
    for (int i = c.n_spans - 1; i >= keys; i--) {
        unsigned kept[4][4], slope[4][4];
        float p[8][4], dp[8][4];
        barrier_pass(&shared.queries_full[i], me.n & 1);
        hold(p);
        hold(dp);
        products_begin();
        multiply_spans<T>(p, shared.keys[place], shared.queries[i]);
        products_end();
        multiply_spans<T>(dp, shared.values[place], shared.slopes[i]);
        products_end();
        barrier_pass(&shared.facts_full[i], me.n & 1);
        products_arrive<1>();
        hold(p);
        soften(p, shared.relative[i], i == keys, me, c.shape.scale_log2);
        products_arrive<0>();
        hold(dp);
        if (i == keys) warp_arrive(&shared.keys_empty[place]);
        find_slopes<T, DROPS>(kept, slope, p, dp, shared.products[i],
                              shared.mask[me.n & 1][tile_index(i, keys)], me);
        int tile = tile_number(c, me.n, me.group, i, keys), slot = tile % RING;
        barrier_pass(&shared.dscores_empty[me.group][slot], ~(tile / RING) & 1);
        leave_slopes(shared.dscores[me.group][slot], slope, me);
        warp_arrive(&shared.dscores_full[me.group][slot]);
        hold(kept);
        hold(slope);
        hold(dk);
        hold(dv);
        products_begin();
        multiply_rows<T>(dv, kept, shared.slopes[i], i < c.n_spans - 1);
        multiply_rows<T>(dk, slope, shared.queries[i], i < c.n_spans - 1);
        products_end();
        products_arrive<0>();
        hold(dk);
        hold(dv);
        hold(kept);
        hold(slope);
        if (keys == me.group) warp_arrive(&shared.queries_empty[i]);
    }
}

template <typename T>
DEVICE void store_span(float sums[2], const GroupsCall &c, const Self &me, int which, int span, float factor,
                       float d[8][4]) {
    const TiledShape &s = c.shape;
    const float factors[2] = {factor, factor};
    int first = span * SPAN + me.warp * 16;
    T *to = (T *)c.dqkv + short_place(head_of(me.n), s).at_query + (int64_t)which * s.n_heads * SIZE;
    if (c.sums) {
        float own[2];
        sum_rows<T, SIZE>(own, d, factor, first, s);
        sums[0] += own[0], sums[1] += own[1];
        hold(d); /* one after the other: fewer registers */
    }
    store_results<T, SIZE>(to, s.width, d, factors, first, s, false);
}

DEVICE void put_sums(float *to, const float sums[2]) {
#    pragma unroll
    for (int k = 0; k < 2; k++) to[summed_column<SIZE>(k)] = sums[k];
}

template <typename T, bool DROPS>
DEVICE void compute_keys(const GroupsCall &c, GroupsShared &shared, Self me) {
    int warp = me.group * GROUP_WARPS + me.warp;
    do {
        float sums[2][2] = {};
        if (DROPS) barrier_pass(&shared.mask_full[me.n & 1], me.n >> 1 & 1);
#    pragma unroll 1
        for (int part = 0; part < 2; part++) {
            int keys = part ? me.group : 3 - me.group;
            float dk[8][4], dv[8][4];
            if (keys >= c.n_spans) continue;
            gradients_of_span<T, DROPS>(dk, dv, c, shared, me, keys);
            store_span<T>(sums[0], c, me, 1, keys, c.shape.scale * c.keep, dk);
            store_span<T>(sums[1], c, me, 2, keys, c.keep, dv);
        }
        if (DROPS) warp_arrive(&shared.mask_empty[me.n & 1]);
        for (int i = 0; i < me.group; i++) { /* queries that see none of the group's keys */
            barrier_pass(&shared.queries_full[i], me.n & 1);
            warp_arrive(&shared.queries_empty[i]);
        }
        if (c.sums) {
            barrier_pass(&shared.sums_empty, ~me.n & 1);
            for (int k = 0; k < 2; k++) put_sums(shared.key_sums[warp][k], sums[k]);
            warp_arrive(&shared.sums_full);
        }
    } while (next_head(c, me));
}

/* ---- queries ---- */

/* The gradient of a span, without the factor: of what the groups with keys have left. The order is that in which the first
 * of four spans comes. */
template <typename T>
DEVICE void gradient_of_span(float dq[8][4], const GroupsCall &c, GroupsShared &shared, const Self &me,
                             int queries) {
    bool add = false;
#    pragma unroll 1
    for (int k = 0; k < SPANS; k++) {
        int keys = k < 2 ? 3 - k : k - 2, group = keys == 1 || keys == 2;
        if (keys > queries) continue;
        int tile = tile_number(c, me.n, group, queries, keys), slot = tile % RING;
        int place = keys_place(me, keys);
        barrier_pass(&shared.keys_full[place], keys_turn(me, keys) & 1);
        barrier_pass(&shared.dscores_full[group][slot], tile / RING & 1);
        hold(dq);
        products_begin();
        multiply_rows<T>(dq, shared.dscores[group][slot], shared.keys[place], add);
        products_end();
        products_arrive<0>();
        hold(dq);
        warp_arrive(&shared.dscores_empty[group][slot]);
        if (keys == queries) warp_arrive(&shared.keys_empty[place]);
        add = true;
    }
}

/* What the warps have of queries, keys and values, added up in their order. */
DEVICE void store_sums(const GroupsCall &c, const GroupsShared &shared, const Self &me) {
    ShortPlace place = short_place(head_of(me.n), c.shape);
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
DEVICE void compute_queries(const GroupsCall &c, GroupsShared &shared, Self me, const ShortDropout &dropout) {
    do {
        float sums[2] = {};
        Self next = me;
        if (DROPS && next_head(c, next))
            draw_share(shared, dropout, next, me.warp, queries_share(c.shape), GROUP_WARPS, c.shape);
#    pragma unroll 1
        for (int i = c.n_spans - 1; i >= 0; i--) {
            float dq[8][4];
            gradient_of_span<T>(dq, c, shared, me, i);
            store_span<T>(sums, c, me, 0, i, c.shape.scale * c.keep, dq);
        }
        if (c.sums) {
            barrier_pass(&shared.sums_empty, ~me.n & 1);
            put_sums(shared.query_sums[me.warp], sums);
            warp_arrive(&shared.sums_full);
            barrier_pass(&shared.sums_full, me.n & 1);
            store_sums(c, shared, me);
            warp_arrive(&shared.sums_empty);
        }
    } while (next_head(c, me));
}

#endif

template <typename T, bool DROPS>
static __global__ void __launch_bounds__(GROUPS_THREADS, 1)
    groups_kernel(const __grid_constant__ GroupsCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    GroupsShared &shared = *(GroupsShared *)groups_shared;
    int warp = (int)threadIdx.x / WARP;
    Self me = {};
    me.lane = (int)threadIdx.x % WARP, me.warp = warp % GROUP_WARPS, me.group = warp / GROUP_WARPS;
    if (warp == ORDERING_WARP && me.lane == 0) {
        groups_barriers_init(shared);
        order_head(c, shared, me);
    }
    ShortDropout dropout = {};
    if (DROPS) { /* the first mask is everybody's */
        dropout = short_dropout_of(c.shape, 0, 0);
        draw_units(shared, dropout, me, warp, n_units(c.shape), GROUPS * GROUP_WARPS, c.shape);
    }
    __syncthreads();
    if (DROPS && me.group >= QUERY_GROUP && warp != ORDERING_WARP) warp_arrive(&shared.mask_full[0]);
    /* registers go to the groups with keys */
    if (me.group < KEY_GROUPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
        compute_keys<T, DROPS>(c, shared, me);
    } else if (me.group == QUERY_GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
        compute_queries<T, DROPS>(c, shared, me, dropout);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        if (warp == ORDERING_WARP) order_all<T>(c, shared, me);
        else feed_all<T, DROPS>(c, shared, me, dropout);
    }
#endif
}

/* ---- on the host's side ---- */

/* Rows of a head of all sequences, in boxes that end with the sequence. */
static bool map_heads(CUtensorMap *map, const void *data, const AttentionShape *s, int64_t width) {
    uint64_t size[3] = {(uint64_t)width, (uint64_t)s->n_positions, (uint64_t)s->n_sequences},
             stride[2] = {(uint64_t)width * 2, (uint64_t)(width * s->n_positions) * 2};
    uint32_t box[3] = {SIZE, SPAN, 1};
    return cuda_tensor_map(map, data, 3, size, stride, box);
}

template <typename T, bool DROPS>
static cudaError_t launch(const GroupsCall *c, int n_processors, cudaStream_t stream) {
    auto kernel = groups_kernel<T, DROPS>;
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(GroupsShared));
    if (code != cudaSuccess) return code;
    int rounds = (c->n_heads_in_all + n_processors - 1) / n_processors,
        blocks = (c->n_heads_in_all + rounds - 1) / rounds;
    kernel<<<(unsigned)blocks, GROUPS_THREADS, sizeof(GroupsShared), stream>>>(*c);
    return cudaGetLastError();
}

Status attention_groups_backward(const AttentionShape *s, const AttentionMemory *m, cudaStream_t stream,
                                 Error *error) {
    GroupsCall c = {};
    int device = 0, n_processors = 0;
    c.y = m->y, c.lse = m->lse, c.dqkv = m->dqkv, c.sums = m->sums;
    c.n_heads_in_all = (int)(s->n_sequences * s->n_heads);
    c.shape = tiled_shape(s, m);
    c.keep = random_dropout_scale(s->threshold), c.inverse = 1.0f / c.keep;
    c.n_spans = (c.shape.n_positions + SPAN - 1) / SPAN;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, device);
    if (code == cudaSuccess &&
        !(map_heads(&c.qkv, m->qkv, s, s->width) && map_heads(&c.dy, m->dy, s, s->y_width)))
        code = cudaErrorNotSupported;
    if (code == cudaSuccess) {
        FOR_SHORT_TYPE(s, T, {
            code = s->threshold ? launch<T, true>(&c, n_processors, stream)
                                : launch<T, false>(&c, n_processors, stream);
        });
    }
    return cuda_check(code, "attention_backward (groups)", error);
}

/* With fewer positions two blocks of the other kernel are on a multiprocessor, and groups here have nothing to do. */
bool attention_groups_takes(const AttentionShape *s, bool adds, int capability) {
#ifdef PGPT_HAVE_SM90A
    static const bool is_built = true;
#else
    static const bool is_built = false;
#endif
    return is_built && capability == 90 && !adds && s->head_size == SIZE && s->n_positions > 128;
}
