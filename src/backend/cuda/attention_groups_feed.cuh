/* What the groups of attention_groups.cu are fed with: spans of rows, facts of queries, and masks. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_GROUPS_FEED_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_GROUPS_FEED_CUH

#include "backend/cuda/attention_groups_parts.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* What a thread knows about itself and where its block is: `n` is the number of the head among the block's. */
typedef struct {
    int lane, warp, group; /* the warp of its group */
    int n;
} Self;

DEVICE int head_of(int n) {
    return (int)blockIdx.x + n * (int)gridDim.x;
}
DEVICE bool next_head(const GroupsCall &c, Self &me) {
    return head_of(++me.n) < c.n_heads_in_all;
}

DEVICE int tile_index(int queries, int keys) {
    return queries * (queries + 1) / 2 + keys;
}

/* The tiles of a group come in the order of its spans of keys, the last queries first: which one is it of its head? */
DEVICE int tile_of_group(const GroupsCall &c, int queries, int keys) {
    int before = keys < KEY_GROUPS && 3 - keys < c.n_spans ? c.n_spans - (3 - keys) : 0;
    return before + c.n_spans - 1 - queries;
}
/* And which of all that the group has had? */
DEVICE int tile_number(const GroupsCall &c, int n, int group, int queries, int keys) {
    int each = group < c.n_spans ? tile_of_group(c, group, group) + 1 : 0;
    return n * each + tile_of_group(c, queries, keys);
}

/* ---- spans ---- */

/* Where a span of keys and values lies, and how often there was one before. The first one is the last that is done with, and
 * among the first that are needed: it has two places, for every other head. */
DEVICE int keys_place(const Self &me, int span) {
    return span ? span : (me.n & 1) * SPANS;
}
DEVICE int keys_turn(const Self &me, int span) {
    return span ? me.n : me.n >> 1;
}

/* By one thread. */
DEVICE void order_keys(const GroupsCall &c, GroupsShared &shared, const Self &me, int span) {
    ShortPlace place = short_place(head_of(me.n), c.shape);
    int next = c.shape.n_heads * SIZE, column = place.h * SIZE + next, at = keys_place(me, span);
    uint64_t *full = &shared.keys_full[at];
    barrier_pass(&shared.keys_empty[at], ~keys_turn(me, span) & 1);
    barrier_expect(full, 2 * SPAN_BYTES);
    order_span(shared.keys[at], &c.qkv, column, span * SPAN, place.b, full);
    order_span(shared.values[at], &c.qkv, column + next, span * SPAN, place.b, full);
}
DEVICE void order_queries(const GroupsCall &c, GroupsShared &shared, const Self &me, int span) {
    ShortPlace place = short_place(head_of(me.n), c.shape);
    uint64_t *full = &shared.queries_full[span];
    barrier_pass(&shared.queries_empty[span], ~me.n & 1);
    barrier_expect(full, 2 * SPAN_BYTES);
    order_span(shared.queries[span], &c.qkv, place.h * SIZE, span * SPAN, place.b, full);
    order_span(shared.slopes[span], &c.dy, place.h * SIZE, span * SPAN, place.b, full);
}
/* In the order in which there is room. */
DEVICE void order_head(const GroupsCall &c, GroupsShared &shared, const Self &me) {
    if (me.n) order_keys(c, shared, me, 0);
    for (int i = c.n_spans - 1; i >= 0; i--) {
        if (i || !me.n) order_keys(c, shared, me, i);
        order_queries(c, shared, me, i);
    }
}

/* All of a head into the cache, by a warp. */
template <typename T> DEVICE void fetch_head(const GroupsCall &c, const Self &me) {
    ShortPlace place = short_place(head_of(me.n), c.shape);
    int span = me.lane / 4, which = me.lane % 4, next = c.shape.n_heads * SIZE;
    if (span < c.n_spans)
        fetch_span(which == 3 ? &c.dy : &c.qkv, place.h * SIZE + which % 3 * next, span * SPAN, place.b);
    for (int row = me.lane; row < c.shape.n_positions; row += WARP)
        fetch((const T *)c.y + place.at_y + row * c.shape.y_width);
}

/* All heads but the first, which is ordered before anything else is done. */
template <typename T> DEVICE void order_all(const GroupsCall &c, GroupsShared &shared, Self me) {
    bool more;
    do {
        if (me.lane == 0) {
            if (me.n) order_head(c, shared, me);
            barrier_pass(&shared.queries_full[0], me.n & 1); /* what is needed first comes first */
        }
        __syncwarp();
        more = next_head(c, me);
        if (more) fetch_head<T>(c, me);
    } while (more);
}

/* ---- facts of queries ---- */

/* A thread that has columns 2·c and 2·c+1 of every 8 reads its facts four at a time, from banks that the other three leave
 * alone. */
DEVICE int fact_place(int query) {
    return query % 8 / 2 * FACT_COLUMN + query / 8 * 2 + query % 2;
}

/* Of the span's queries, 4 a time: 8 threads each. Rows of y are read while others are on their way. */
template <typename T>
DEVICE void find_facts(const GroupsCall &c, GroupsShared &shared, const Self &me, int span) {
    enum { STEP = 4 * FEEDERS, TIMES = 3 };
    const TiledShape &s = c.shape;
    int part = me.lane % 8, position = span * SPAN;
    const T *y = (const T *)c.y + short_place(head_of(me.n), s).at_y + position * s.y_width + part * 8;
    const float *lse = c.lse + (int64_t)head_of(me.n) * s.n_positions + position;
#    pragma unroll 1
    for (int row = (me.warp - 1) * 4 + me.lane / 8; row < SPAN; row += TIMES * STEP) {
        Raw<T> own_y[TIMES];
        float own_lse[TIMES];
#    pragma unroll
        for (int i = 0; i < TIMES; i++) {
            int at = row + i * STEP;
            bool there = at < SPAN && position + at < s.n_positions;
            own_y[i] = load_raw<T, true>(y + at * s.y_width, there ? VECTOR : 0);
            own_lse[i] = there ? lse[at] : INFINITY;
        }
        barrier_pass(&shared.queries_full[span], me.n & 1);
#    pragma unroll
        for (int i = 0; i < TIMES; i++) {
            int at = row + i * STEP;
            if (at >= SPAN) break; /* the whole warp */
            float a[VECTOR], b[VECTOR], sum = 0.0f;
            load8((const T *)(shared.slopes[span] + at * 128 + (part ^ at % 8) * 16), a);
            unpack(own_y[i], b);
#    pragma unroll
            for (int k = 0; k < VECTOR; k++) sum += a[k] * b[k];
#    pragma unroll
            for (int step = 4; step; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
            if (part == 0) {
                shared.relative[span][fact_place(at)] = -own_lse[i] * LOG2_E;
                shared.products[span][fact_place(at)] = -sum * c.inverse;
            }
        }
    }
    warp_arrive(&shared.facts_full[span]);
    if (me.lane == 0) barrier_arrive(&shared.queries_empty[span]);
}

/* ---- masks ---- */

/* Units of 32 queries and 16 keys, on and under the diagonal, that are to be drawn. */
DEVICE int n_units(const TiledShape &s) {
    int rows = (s.n_positions + 31) / 32;
    return rows * (rows + 1);
}

/* A lane draws for 16 keys of one query. Bit i of byte j is key 8·j + i; the two bytes of query 8·n + 2·c + e are at
 * MASK_COLUMN·c + 4·n + 2·e of the strip, so that a thread that has two queries of every 8 reads what it needs in vectors. */
DEVICE void draw_unit(unsigned char *mask, const ShortDropout &dropout, int unit) {
    int lane = (int)threadIdx.x % WARP, row = (int)((sqrtf(4.0f * (float)unit + 1.0f) - 1.0f) * 0.5f);
    if (row * (row + 1) > unit) row--;
    if ((row + 1) * (row + 2) <= unit) row++;
    int query = row * 32 + lane, strip = unit - row * (row + 1), q = query % SPAN;
    unsigned bits = 0;
#    pragma unroll
    for (int j = 0; j < 2; j++) {
        RandomBlock block = draw(dropout, query, strip * 2 + j);
#    pragma unroll
        for (int k = 0; k < 8; k++)
            bits |= keeps(block.word[k / 2], k & 1, dropout.limit) ? 1u << (8 * j + k) : 0;
    }
    unsigned char *at = mask + tile_index(query / SPAN, strip / 4) * MASK_TILE + strip % 4 * MASK_STRIP;
    *(unsigned short *)(at + q % 8 / 2 * MASK_COLUMN + q / 8 * 4 + q % 2 * 2) = (unsigned short)bits;
}

/* A warp's share of a head's mask: some units from the first on. */
DEVICE void draw_units(GroupsShared &shared, const ShortDropout &dropout, const Self &me, int first, int end,
                       int step, const TiledShape &s) {
    ShortDropout own = of_head(dropout, short_place(head_of(me.n), s), s);
#    pragma unroll 1
    for (int unit = first; unit < end; unit += step) {
        /* else the keys of all rounds are found beforehand, for which there are not registers enough */
        asm volatile("" : "+r"(own.key.word[0]), "+r"(own.key.word[1]));
        draw_unit(shared.mask[me.n & 1][0], own, unit);
    }
}
DEVICE void draw_share(GroupsShared &shared, const ShortDropout &dropout, const Self &me, int first, int end,
                       int step, const TiledShape &s) {
    barrier_pass(&shared.mask_empty[me.n & 1], ~(me.n >> 1) & 1);
    draw_units(shared, dropout, me, first, end, step, s);
    warp_arrive(&shared.mask_full[me.n & 1]);
}
/* How many of the units the queries' group draws. */
DEVICE int queries_share(const TiledShape &s) {
    return n_units(s) * 5 / 18;
}

template <typename T, bool DROPS>
DEVICE void feed_all(const GroupsCall &c, GroupsShared &shared, Self me, const ShortDropout &dropout) {
    bool more = true;
    while (more) {
        for (int i = c.n_spans - 1; i >= 0; i--) find_facts<T>(c, shared, me, i);
        more = next_head(c, me);
        if (DROPS && more)
            draw_share(shared, dropout, me, queries_share(c.shape) + me.warp - 1, n_units(c.shape), FEEDERS,
                       c.shape);
    }
}

#endif

#endif
