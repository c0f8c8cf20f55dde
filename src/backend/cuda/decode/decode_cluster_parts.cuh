/* What the warps of decode_cluster.cu do with weights and with x. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_PARTS_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_PARTS_CUH

#include "backend/cuda/decode/decode_cluster.cuh"
#include "backend/cuda/ops/gelu.cuh"

#if __CUDA_ARCH__ >= 900

/* What a thread knows. */
typedef struct {
    int thread, lane, warp;
    int group, member; /* of four threads, as the tensor cores count */
    int rank, cluster;
    int position;                 /* of the new token */
    int first_key, n_keys, n_old; /* of this rank; n_old: that are in the cache */
    Word *sum_to;                 /* where this thread's summand goes, in the first set */
    const Word *sum_from;         /* and the sums of its two channels are */
    unsigned turn;                /* blocks before this step */
    float origin;                 /* moments are taken from here: the mean at the last norm */
    float2 kept;                  /* channels of x, with three others */
} Self;

/* For the warps that compute. */
DEVICE void computing_barrier(void) {
    asm volatile("barrier.sync 1, %0;" ::"n"(COMPUTING_WARPS * WARP) : "memory");
}

/* ---- the beginning ---- */

template <int HEADS> DEVICE unsigned message_bytes(int message) {
    typedef ClusterSizes<HEADS> S;
    return message < MOMENTS       ? S::C * 4
           : message < MOMENTS_END ? RANKS * S::ROW_WARPS * sizeof(float2)
           : message == QKV        ? HEAD_SIZE * sizeof(float4)
           : message == PARTS      ? RANKS * (HEAD_SIZE * sizeof(float) + sizeof(float2))
                                   : CLUSTER_HIDDEN * 2;
}

/* By one thread. */
template <int HEADS> DEVICE void init_barriers(void) {
    typedef ClusterSizes<HEADS> S;
    ClusterShared<HEADS> &shared = shared_of<HEADS>();
    for (int k = 0; k < HEAD; k++) {
        mbarrier_init(&shared.full[k], 1);
        mbarrier_init_warps(&shared.empty[k], is_wide(k) ? COMPUTING_WARPS : S::ROW_WARPS);
    }
    mbarrier_init(&shared.keys_full, 1);
    mbarrier_init_warps(&shared.keys_empty, COMPUTING_WARPS);
    mbarrier_init(&shared.final_full, 1);
    for (int i = 0; i < HEAD_SLOTS; i++) {
        mbarrier_init(&shared.head_full[i], 1);
        mbarrier_init_warps(&shared.head_empty[i], COMPUTING_WARPS);
    }
    for (int i = 0; i < N_MESSAGES; i++) mbarrier_init(&shared.arrived[i], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int i = 0; i < N_MESSAGES; i++) mbarrier_expect(&shared.arrived[i], message_bytes<HEADS>(i));
}

DEVICE void clear(uint16_t *p, int n, const void *there) {
    for (int i = (int)threadIdx.x; i < n && !there; i += CLUSTER_THREADS) p[i] = 0;
}
/* Biases that the model does not have. */
template <int HEADS> DEVICE void clear_missing(const DecodeCall &c) {
    typedef ClusterSizes<HEADS> S;
    ClusterShared<HEADS> &shared = shared_of<HEADS>();
    const DecodeGemv *p = c.gemv;
    clear(shared.qkv.bias, 3 * HEAD_SIZE / RANKS, p[ATTENTION_IN].bias);
    clear(shared.qkv.norm_bias, S::C, p[ATTENTION_IN].norm_bias);
    clear(shared.out_vectors.bias, S::RANK_ROWS, p[ATTENTION_OUT].bias);
    clear(shared.fc.bias, RANK_HIDDEN, p[HIDDEN_IN].bias);
    clear(shared.fc.norm_bias, S::C, p[HIDDEN_IN].norm_bias);
    clear(shared.proj_vectors.bias, S::RANK_ROWS, p[HIDDEN_OUT].bias);
    clear(shared.final_bias, S::C, p[HEAD].norm_bias);
}

/* Which keys this rank has, the new one included. */
DEVICE void find_keys(const DecodeCall &c, Self &me, int position) {
    if (position < 0 || position >= c.capacity) { /* reported; the cache's last place is as good as any */
        if (blockIdx.x == 0 && me.thread == 0) report(c.fault, FAULT_CACHE, position, c.capacity);
        position = c.capacity - 1;
    }
    int each = (position + RANKS) / RANKS, first = me.rank * each, end = first + each;
    me.position = position;
    me.first_key = first;
    me.n_keys = (end < position + 1 ? end : position + 1) - first;
    me.n_old = (end < position ? end : position) - first;
    me.n_keys = me.n_keys < 0 ? 0 : me.n_keys;
    me.n_old = me.n_old < 0 ? 0 : me.n_old;
}

/* Two channels of a row of a table; 0 where there is no such row. */
template <typename T, int HEADS>
DEVICE float2 table_pair(const void *table, int row, int n_rows, int channel) {
    const T *from = (const T *)table + (int64_t)row * ClusterSizes<HEADS>::C + channel;
    return pair_as_floats(row >= 0 && row < n_rows ? *(const unsigned *)from : 0u, T());
}

/* This thread's channels of the embedding; says what the first norm multiplies them with. */
template <typename T, int HEADS> DEVICE unsigned wait_and_embed(const DecodeCall &c, Self &me) {
    enum { ROWS = ClusterSizes<HEADS>::RANK_ROWS };
    int channel = me.rank * ROWS + me.thread / 4 * 2;
    bool has_rows = me.thread < 2 * ROWS;
    unsigned norm =
        has_rows ? *(const unsigned *)((const T *)c.gemv[ATTENTION_IN].norm_weight + channel) : 0u;
    wait_for_predecessor();
    int position = *(const volatile int32_t *)c.start, token = *(const volatile int32_t *)c.tokens;
    me.turn = *(volatile unsigned *)c.turn;
    find_keys(c, me, position);
    if (blockIdx.x == 0 && me.thread == 0) {
        if (token < 0 || token >= c.vocabulary) report(c.fault, FAULT_TOKEN, token, c.vocabulary);
        if (me.position >= c.n_places) report(c.fault, FAULT_POSITION, me.position, c.n_places);
    }
    if (!has_rows) return norm;
    float2 a = table_pair<T, HEADS>(c.token_table, token, c.vocabulary, channel);
    float2 b = table_pair<T, HEADS>(c.position_table, me.position, c.n_places, channel);
    me.kept = make_float2(a.x + b.x, a.y + b.y);
    return norm;
}

/* ---- taking weights, receiving ---- */

/* The barrier of a message that has come stands for the next one. Nobody waits for this: it is done when what
 * follows from the message has been sent. */
template <int HEADS> DEVICE void expect_next(ClusterShared<HEADS> &shared, const Self &me, int message) {
    if (me.thread == 0) mbarrier_expect(&shared.arrived[message], message_bytes<HEADS>(message));
}

/* ---- GEMVs over all channels ---- */

/* Rows 0 .. 7 of what the tensor cores multiply are rows 0 .. 3 of the warp's, twice: with one half of every
 * 64 terms, and with the other. Rows of odd number have the halves the other way round, so that no two are in
 * the same banks. Rows 8 .. 15 are the same once more: a thread's 8 terms are 4 of the one and 4 of the
 * other, pairs in turns, as they lie in its registers. */
DEVICE int half_of(const Self &me) {
    return me.group / WARP_ROWS ^ (me.group & 1);
}

/* row: the one of group % 4. */
template <int STEPS> DEVICE void take_wide(const Self &me, const uint16_t *row, uint4 (&w)[STEPS]) {
    const uint4 *from = (const uint4 *)row + half_of(me) * 4 + me.member;
#    pragma unroll
    for (int i = 0; i < STEPS; i++) w[i] = from[8 * i];
}

/* Which pair of channels a quad begins with; its other one is two further on. */
DEVICE int first_pair(int quad) {
    return quad / 2 * 4 + quad % 2;
}
/* This thread's factors of the first 64 terms: 4 of one of two kinds. */
DEVICE int factor_place(const Self &me) {
    return (me.group / 4 * 4 + me.member) * 2 + me.group / 2 % 2;
}
DEVICE const char *quads_of(const Self &me, const Quad *quads) {
    return (const char *)(quads + factor_place(me)) + me.group % 2 * sizeof(uint2);
}

/* This warp's rows by factors of two kinds. */
typedef struct {
    float sum[4];
} Accumulators;
template <typename T, int STEPS>
DEVICE Accumulators multiply_wide(const uint4 (&w)[STEPS], const uint2 (&x)[STEPS]) {
    enum { CHAINS = 3 };
    float sum[CHAINS][4] = {{0}};
    Accumulators gemv;
#    pragma unroll
    for (int i = 0; i < STEPS; i++)
        mma16(sum[i % CHAINS], w[i].x, w[i].y, w[i].z, w[i].w, x[i].x, x[i].y, T());
#    pragma unroll
    for (int k = 0; k < 4; k++) gemv.sum[k] = sum[0][k] + sum[1][k] + sum[2][k];
    return gemv;
}

/* Both sums of row group % 4, in the threads where member / 2 is the half. */
DEVICE float2 sums_of(const Self &me, const Accumulators &gemv) {
    float2 low = make_float2(gemv.sum[0], gemv.sum[1]), high = make_float2(gemv.sum[2], gemv.sum[3]);
    float2 mine = me.member % 2 == 0 ? low : high; /* chosen from registers: an index would need memory */
    return me.member / 2 == half_of(me) ? mine : make_float2(0.0f, 0.0f);
}
DEVICE float whole_sum(float mine) {
    mine += __shfl_xor_sync(0xFFFFFFFFu, mine, 1);
    return mine + __shfl_xor_sync(0xFFFFFFFFu, mine, 18);
}
/* The two kinds together. */
DEVICE float one_sum(const Self &me, const Accumulators &gemv) {
    float2 mine = sums_of(me, gemv);
    return whole_sum(mine.x + mine.y);
}
/* The thread of row i that has its sums, one of them. */
DEVICE int holder_of(int i) {
    return 4 * i + 2 * (i & 1);
}

/* Rows of a GEMV before x comes. */
template <int STEPS> struct Wide {
    uint4 w[STEPS];
    float of_norm, constant; /* W·g; W·b and the bias */
};

/* stride: from a row of a warp's to the next; 1: two warps have 8 side by side. */
template <typename T, int HEADS, typename Tile, int STEPS>
DEVICE void prepare_wide(ClusterShared<HEADS> &shared, const Self &me, int k, const Tile &tile, int stride,
                         int turn, Wide<STEPS> &wide) {
    int i = me.group % WARP_ROWS,
        row = stride == 1 ? me.warp / 2 * 8 + me.warp % 2 * 2 + i / 2 * 4 + i % 2 /* pairs of 8, in turns */
                          : me.warp + (i < 3 ? i : 2) * stride;
    const unsigned *factors =
        (const unsigned *)(me.group % 2 ? tile.norm_bias : tile.norm_weight) + first_pair(factor_place(me));
    uint2 x[STEPS];
    mbarrier_wait(&shared.full[k], turn);
    take_wide(me, tile.row[row], wide.w);
#    pragma unroll
    for (int s = 0; s < STEPS; s++) x[s] = make_uint2(factors[32 * s], factors[32 * s + 2]);
    float bias = as_float(*(const T *)&tile.bias[row]);
    mbarrier_arrive(&shared.empty[k]);
    float2 sums = sums_of(me, multiply_wide<T>(wide.w, x));
    wide.of_norm = whole_sum(sums.x);
    wide.constant = whole_sum(sums.y) + bias;
}

/* Mean (from the origin) and 1 / deviation of x; the origin moves to the mean. */
template <int HEADS>
DEVICE float2 receive_moments(const DecodeCall &c, ClusterShared<HEADS> &shared, Self &me, int which,
                              int turn) {
    typedef ClusterSizes<HEADS> S;
    mbarrier_wait(&shared.arrived[MOMENTS + which], turn);
    float2 sum = make_float2(0.0f, 0.0f);
#    pragma unroll
    for (int i = 0; i < S::ROW_WARPS; i++) { /* a rank's; four threads have the same */
        float2 other = shared.moments[which][i * RANKS + me.lane % RANKS];
        sum.x += other.x, sum.y += other.y;
    }
#    pragma unroll
    for (int step = 1; step < RANKS; step *= 2) {
        sum.x += __shfl_xor_sync(0xFFFFFFFFu, sum.x, step);
        sum.y += __shfl_xor_sync(0xFFFFFFFFu, sum.y, step);
    }
    const float part = 1.0f / S::C;
    float mean = sum.x * part, variance = fmaxf(fmaf(sum.y, part, -mean * mean), 0.0f);
    me.origin += mean;
    return make_float2(mean, rsqrtf(variance + c.epsilon));
}

/* W·norm(x) and the bias, in the holders of the rows. */
template <typename T, int HEADS, int STEPS>
DEVICE float multiply_norm(const DecodeCall &c, ClusterShared<HEADS> &shared, Self &me, int which, int turn,
                           const Wide<STEPS> &wide) {
    uint2 x[STEPS];
    const char *factors = quads_of(me, shared.x[which]);
    mbarrier_wait(&shared.arrived[which], turn);
#    pragma unroll
    for (int i = 0; i < STEPS; i++) x[i] = *(const uint2 *)(factors + 16 * sizeof(Quad) * i);
    Accumulators gemv = multiply_wide<T>(wide.w, x);
    float2 norm = receive_moments(c, shared, me, which, turn); /* while the tensor cores work */
    return fmaf(norm.y, fmaf(-norm.x, wide.of_norm, one_sum(me, gemv)), wide.constant);
}

/* The head's factors, by a thread a quad: x = norm.y · (g·x - norm.x · g) + b, of which g·x has been sent. */
template <typename T, int HEADS> DEVICE void end_norm(ClusterShared<HEADS> &shared, int quad, float2 norm) {
    Quad x = shared.x[0][quad], y;
    const unsigned *weight = (const unsigned *)shared.final_weight + first_pair(quad),
                   *bias = (const unsigned *)shared.final_bias + first_pair(quad);
    const unsigned from[2][4] = {{x.rounded.x, x.rest.x, weight[0], bias[0]},
                                 {x.rounded.y, x.rest.y, weight[2], bias[2]}};
    unsigned rounded[2], rest[2];
#    pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 a = pair_as_floats(from[i][0], T()), b = pair_as_floats(from[i][1], T());
        float2 g = pair_as_floats(from[i][2], T()), d = pair_as_floats(from[i][3], T());
        float low = fmaf(norm.y, fmaf(-norm.x, g.x, a.x + b.x), d.x);
        float high = fmaf(norm.y, fmaf(-norm.x, g.y, a.y + b.y), d.y);
        rounded[i] = pair_of_floats(low, high, T());
        float2 back = pair_as_floats(rounded[i], T());
        rest[i] = pair_of_floats(low - back.x, high - back.y, T());
    }
    y.rounded = make_uint2(rounded[0], rounded[1]), y.rest = make_uint2(rest[0], rest[1]);
    shared.y[quad] = y;
}

/* ---- what comes out of them ---- */

/* Query, key and value of channel rank · 8 + warp, to all ranks. */
template <int HEADS> DEVICE void send_new(ClusterShared<HEADS> &shared, const Self &me, float value) {
    float query = __shfl_sync(0xFFFFFFFFu, value, holder_of(0));
    float key = __shfl_sync(0xFFFFFFFFu, value, holder_of(1));
    float val = __shfl_sync(0xFFFFFFFFu, value, holder_of(2));
    uint4 word = make_uint4(__float_as_uint(query), __float_as_uint(key), __float_as_uint(val), 0u);
    send(me.lane < RANKS, me.lane % RANKS, &shared.new_token[me.warp * RANKS + me.rank], word,
         &shared.arrived[QKV]);
}

/* Four numbers of the hidden layer, to all ranks, rounded as they will be multiplied: two pairs, two
 * apart. */
template <typename T, int HEADS>
DEVICE void send_hidden(const DecodeCall &c, ClusterShared<HEADS> &shared, const Self &me, float value) {
    float v[WARP_ROWS];
    value = activate(c.activation, value);
#    pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) v[i] = __shfl_sync(0xFFFFFFFFu, value, holder_of(i));
    uint2 word = make_uint2(pair_of_floats(v[0], v[1], T()), pair_of_floats(v[2], v[3], T()));
    send(me.lane < RANKS, me.lane % RANKS, &shared.hidden[me.rank * RANK_HIDDEN + me.warp * WARP_ROWS], word,
         &shared.arrived[HIDDEN]);
}

/* ---- GEMVs that are added to x ---- */

/* A warp's 16 rows: two of them a thread, and of them 8 of every 32 terms; and what the channels need that it
 * will add up. */
template <int TERMS> struct Narrow {
    uint4 low[TERMS / 32], high[TERMS / 32];
    unsigned bias, next_norm;
};

/* Which of the first 8 rows of its warp's a group of four has: those that read at the same time are four
 * apart. */
DEVICE int row_of_group(const Self &me) {
    return me.group / 2 + me.group % 2 * 4;
}

template <int HEADS, int ROWS, int TERMS>
DEVICE void take_narrow(ClusterShared<HEADS> &shared, const Self &me, int k, const Boxes<ROWS, TERMS> &boxes,
                        const RowVectors<ROWS> &vectors, int turn, Narrow<TERMS> &narrow) {
    int row = me.warp * TILE_ROWS + row_of_group(me);
    mbarrier_wait(&shared.full[k], turn);
#    pragma unroll
    for (int i = 0; i < TERMS / 32; i++) {
        int vector = (i % 2 * 4 + me.member) ^ row_of_group(me);
        narrow.low[i] = boxes.row[i / 2][row][vector];
        narrow.high[i] = boxes.row[i / 2][row + 8][vector];
    }
    narrow.bias = ((const unsigned *)vectors.bias)[me.thread / 4];
    narrow.next_norm = ((const unsigned *)vectors.next_norm)[me.thread / 4];
    mbarrier_arrive(&shared.empty[k]);
}

/* Sums of this thread's two rows. factors: pairs, and behind them what rounding took off. */
template <typename T, int TERMS>
DEVICE float2 multiply_head(const Self &me, const Narrow<TERMS> &narrow, const unsigned *factors) {
    const uint4 *from = (const uint4 *)(factors + me.group % 2 * (TERMS / 2)) + me.member;
    float sum[4][4] = {{0}};
#    pragma unroll
    for (int i = 0; i < TERMS / 32; i++) {
        uint4 x = from[4 * i], a = narrow.low[i], b = narrow.high[i];
        mma16(sum[2 * i % 4], a.x, b.x, a.y, b.y, x.x, x.y, T());
        mma16(sum[2 * i % 4 + 1], a.z, b.z, a.w, b.w, x.z, x.w, T());
    }
#    pragma unroll
    for (int k = 0; k < 4; k++) sum[0][k] = (sum[0][k] + sum[1][k]) + (sum[2][k] + sum[3][k]);
    return make_float2(sum[0][0] + sum[0][1], sum[0][2] + sum[0][3]);
}

/* The same of one kind of factors, of every 8 the pairs 0, 2, 1, 3. The tensor cores have the lower row
 * twice, in rows 0 .. 7 with half of the pairs and in rows 8 .. 15 with the others; then the higher one. */
template <typename T, int TERMS>
DEVICE float2 multiply_hidden(const Self &me, const Narrow<TERMS> &narrow, const uint16_t *factors) {
    const uint2 *from = (const uint2 *)factors + me.member * 2 + me.group % 2;
    float low[2][4] = {{0}}, high[2][4] = {{0}};
#    pragma unroll
    for (int i = 0; i < TERMS / 32; i++) {
        uint2 x = from[8 * i];
        uint4 a = narrow.low[i], b = narrow.high[i];
        mma16(low[i % 2], a.x, a.y, a.z, a.w, x.x, x.y, T());
        mma16(high[i % 2], b.x, b.y, b.z, b.w, x.x, x.y, T());
    }
    return make_float2((low[0][0] + low[1][0]) + (low[0][3] + low[1][3]),
                       (high[0][0] + high[1][0]) + (high[0][3] + high[1][3]));
}

/* ---- x ---- */

template <int HEADS> DEVICE void find_sums(const DecodeCall &c, Self &me) {
    Word *rows = c.sums + me.rank * ClusterSizes<HEADS>::RANK_ROWS;
    me.sum_to = rows + me.warp * TILE_ROWS + row_of_group(me) + (me.member < 2 ? 8 * me.member : 0);
    me.sum_from = rows + me.thread / 4 * 2;
}

/* Summands of 16 channels. which: behind attention, behind the block. */
template <int HEADS> DEVICE void send_rows(const Self &me, int which, int block, float2 sums) {
    int set = sum_set(me.turn + (unsigned)block, which);
    if (me.member < 2) sum_add(me.sum_to + set * ClusterSizes<HEADS>::C, me.member ? sums.y : sums.x);
}

/* This thread's two channels, as three others have them. */
template <typename T, int HEADS> DEVICE void receive_rows(Self &me, int which, int block, unsigned bias) {
    const Word *from = me.sum_from + sum_set(me.turn + (unsigned)block, which) * ClusterSizes<HEADS>::C;
    float2 constant = pair_as_floats(bias, T());
    Word sum[2];
    int looks = 0;
    while (!sum_look(from, HEADS, sum)) mail_patience(&looks);
    me.kept.x += sum_value(sum[0]) + constant.x;
    me.kept.y += sum_value(sum[1]) + constant.y;
}

/* The sums of the block before, by a warp that has no rows: this cluster's share of the rank's. What this
 * warp sends next is behind it. */
template <int HEADS> DEVICE void clear_rows(const DecodeCall &c, const Self &me, int which, int block) {
    typedef ClusterSizes<HEADS> S;
    enum { SHARE = S::RANK_ROWS / HEADS };
    static_assert(S::RANK_ROWS % HEADS == 0 && SHARE <= WARP && S::ROW_WARPS < COMPUTING_WARPS, "shares");
    if (me.warp != COMPUTING_WARPS - 1) return;
    int set = sum_set(me.turn + (unsigned)block + 1, which);
    if (me.lane < SHARE)
        sum_clear(c.sums + set * S::C + me.rank * S::RANK_ROWS + me.cluster * SHARE + me.lane);
    __threadfence();
}

/* This rank's channels of x, times the weights of the norm that follows, and their moments: to all ranks.
 * Four threads each send the warp's four quads, side by side, to one of the ranks. */
template <typename T, int HEADS>
DEVICE void send_x(ClusterShared<HEADS> &shared, const Self &me, int which, unsigned norm) {
    typedef ClusterSizes<HEADS> S;
    float2 g = pair_as_floats(norm, T()), x = make_float2(me.kept.x - me.origin, me.kept.y - me.origin);
    unsigned rounded = pair_of_floats(x.x * g.x, x.y * g.y, T());
    float2 back = pair_as_floats(rounded, T());
    unsigned rest = pair_of_floats(x.x * g.x - back.x, x.y * g.y - back.y, T());
    int from = 4 * first_pair(me.member); /* the first of the four threads that have it */
    uint4 quad;
    quad.x = __shfl_sync(0xFFFFFFFFu, rounded, from), quad.y = __shfl_sync(0xFFFFFFFFu, rounded, from + 8);
    quad.z = __shfl_sync(0xFFFFFFFFu, rest, from), quad.w = __shfl_sync(0xFFFFFFFFu, rest, from + 8);
    int to = me.rank * (S::RANK_ROWS / 4) + me.warp * (TILE_ROWS / 4) + me.member;
    send(true, me.group, &shared.x[which][to], quad, &shared.arrived[which]);
    float sum = x.x + x.y, squares = fmaf(x.x, x.x, x.y * x.y);
#    pragma unroll
    for (int step = 4; step < WARP; step *= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
        squares += __shfl_xor_sync(0xFFFFFFFFu, squares, step);
    }
    send(me.lane < RANKS, me.lane % RANKS, &shared.moments[which][me.warp * RANKS + me.rank],
         make_uint2(__float_as_uint(sum), __float_as_uint(squares)), &shared.arrived[MOMENTS + which]);
}

#endif

#endif
