/* The producer side of attention_warpgroup_backward_sm90.cu (warp specialization): what the other warpgroups
 * are fed with, spans of rows, facts of queries, and masks. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WARPGROUP_PRODUCER_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WARPGROUP_PRODUCER_CUH

#include "backend/cuda/attention/attention_warpgroup_parts.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The tiles of a group come in the order of its spans of keys, the last queries first: which one is it of its
 * head? */
DEVICE int tile_of_group(const WarpgroupCall &c, int queries, int keys) {
    int before = keys < KEY_GROUPS && 3 - keys < c.n_spans ? c.n_spans - (3 - keys) : 0;
    return before + c.n_spans - 1 - queries;
}
/* And which of all that the group has had? */
DEVICE int tile_number(const WarpgroupCall &c, int n, int group, int queries, int keys) {
    int each = group < c.n_spans ? tile_of_group(c, group, group) + 1 : 0;
    return n * each + tile_of_group(c, queries, keys);
}

/* ---- spans ---- */

/* Where a span of keys and values lies, and how often there was one before. The first one is the last that is
 * done with, and among the first that are needed: it has two places, for every other head. */
DEVICE int keys_place(const Self &me, int span) {
    return span ? span : (me.n & 1) * SPANS;
}
DEVICE int keys_turn(const Self &me, int span) {
    return span ? me.n : me.n >> 1;
}

/* Spans of y are needed for a short while, one after the other. */
DEVICE int outputs_number(const WarpgroupCall &c, const Self &me, int span) {
    return (me.n + 1) * c.n_spans - 1 - span;
}

/* By one thread. */
DEVICE void produce_keys(const WarpgroupCall &c, WarpgroupShared &shared, const Self &me, int span) {
    ShortSlot place = short_slot(head_of(me.n), c.shape);
    int next = c.shape.n_heads * SIZE, column = place.h * SIZE + next, at = keys_place(me, span);
    uint64_t *full = &shared.keys_full[at];
    mbarrier_wait(&shared.keys_empty[at], ~keys_turn(me, span) & 1);
    mbarrier_expect(full, 2 * SPAN_BYTES);
    produce_span(shared.keys[at], &c.qkv, column, span * SPAN, place.b, full);
    produce_span(shared.values[at], &c.qkv, column + next, span * SPAN, place.b, full);
}
DEVICE void produce_queries(const WarpgroupCall &c, WarpgroupShared &shared, const Self &me, int span) {
    ShortSlot place = short_slot(head_of(me.n), c.shape);
    uint64_t *full = &shared.queries_full[span];
    int number = outputs_number(c, me, span), at = number % OUTPUTS;
    mbarrier_wait(&shared.queries_empty[span], ~me.n & 1);
    mbarrier_wait(&shared.outputs_empty[at], ~(number / OUTPUTS) & 1);
    mbarrier_expect(full, 3 * SPAN_BYTES);
    produce_span(shared.outputs[at], &c.y, place.h * SIZE, span * SPAN, place.b, full);
    produce_span(shared.queries[span], &c.qkv, place.h * SIZE, span * SPAN, place.b, full);
    produce_span(shared.slopes[span], &c.dy, place.h * SIZE, span * SPAN, place.b, full);
}

/* Spans down to the end, in the order in which there is room and, of the first head, in which they are
 * needed. */
DEVICE void produce_spans(const WarpgroupCall &c, WarpgroupShared &shared, const Self &me, int first,
                          int end) {
    int last = c.n_spans - 1, before = me.n || !last ? last : last - 1;
    for (int i = first; i >= end; i--) {
        if (i) produce_keys(c, shared, me, i);
        if (i == before) produce_keys(c, shared, me, 0);
        produce_queries(c, shared, me, i);
    }
}
/* From the last span of the first head to this one nobody is waited for: they are loaded before anything
 * else is done. */
DEVICE int first_produced(const WarpgroupCall &c) {
    return max(c.n_spans - OUTPUTS, 0);
}

/* All heads, by one thread; of the first one, the rest. */
DEVICE void produce_all(const WarpgroupCall &c, WarpgroupShared &shared, Self me) {
    do {
        produce_spans(c, shared, me, (me.n ? c.n_spans : first_produced(c)) - 1, 0);
    } while (next_head(c.n_heads_in_all, me));
}

/* ---- facts of queries ---- */

/* A thread that has columns 2·c and 2·c+1 of every 8 reads its facts four at a time, from banks that the
 * other three leave alone. */
DEVICE int fact_place(int query) {
    return query % 8 / 2 * FACT_COLUMN + query / 8 * 2 + query % 2;
}

/* Of the span's queries, 4 a time: 8 threads each have a part of a row, and then one of the rows. */
template <typename T>
DEVICE void find_facts(const WarpgroupCall &c, WarpgroupShared &shared, const Self &me, int span) {
    enum { STEP = 4 * PRODUCERS, TIMES = (SPAN + STEP - 1) / STEP };
    const TiledShape &s = c.shape;
    int part = me.lane % 8, row = (me.warp - 1) * 4 + me.lane / 8, own = row + part * STEP;
    int position = span * SPAN, output = outputs_number(c, me, span) % OUTPUTS;
    const float *lse = c.lse + (int64_t)head_of(me.n) * s.n_positions + position;
    bool there = own < SPAN && position + own < s.n_positions;
    float relative = there ? -lse[own] * LOG2_E : -INFINITY, sum[8] = {};
    mbarrier_wait(&shared.queries_empty[span], ~me.n & 1); /* nobody needs the facts of the head before */
    mbarrier_wait(&shared.queries_full[span], me.n & 1);
#    pragma unroll
    for (int i = 0; i < TIMES; i++) {
        int at = min(row + i * STEP, SPAN - 1), offset = at * 128 + (part ^ at % 8) * 16;
        float a[VECTOR], b[VECTOR];
        load8((const T *)(shared.slopes[span] + offset), a);
        load8((const T *)(shared.outputs[output] + offset), b);
#    pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[i] += a[k] * b[k];
    }
    give_half<4>(sum, 4);
    give_half<2>(sum, 2);
    give_half<1>(sum, 1);
    if (part < TIMES && own < SPAN) {
        shared.relative[span][fact_place(own)] = relative;
        shared.dots[span][fact_place(own)] = -sum[0] * c.inverse;
    }
    mbarrier_arrive(&shared.facts_full[span]);
    mbarrier_arrive(&shared.queries_empty[span]);
    mbarrier_arrive(&shared.outputs_empty[output]);
}

/* ---- masks ---- */

/* How many units of the mask are of the last span of queries. */
DEVICE int first_units(const WarpgroupCall &c) {
    return n_units(c.shape.n_positions) - n_units((c.n_spans - 1) * SPAN);
}

DEVICE void draw_share(const WarpgroupCall &c, WarpgroupShared &shared, const Self &me, int first, int end,
                       int step) {
    mbarrier_wait(&shared.mask_empty[me.n & 1], ~(me.n >> 1) & 1);
    draw_units<MASK_FOR_KEYS>(shared.mask[me.n & 1][0], c.shape, head_of(me.n), first, end, step);
    mbarrier_arrive(&shared.mask_full[me.n & 1]);
}
/* How many of the units the queries' group draws. */
DEVICE int queries_share(const TiledShape &s) {
    return n_units(s.n_positions) / 4;
}

/* The first mask is others' (warpgroup_backward_kernel, compute_queries). */
template <typename T, bool DROPS>
DEVICE void feed_all(const WarpgroupCall &c, WarpgroupShared &shared, Self me) {
    bool more = true;
    if (DROPS) mbarrier_arrive(&shared.mask_full[0]);
    while (more) {
        for (int i = c.n_spans - 1; i >= 0; i--) find_facts<T>(c, shared, me, i);
        more = next_head(c.n_heads_in_all, me);
        if (DROPS && more)
            draw_share(c, shared, me, queries_share(c.shape) + me.warp - 1, n_units(c.shape.n_positions),
                       PRODUCERS);
    }
}

#endif

#endif
