/* What the threads of decode_step do with a tile of weights and with x; decode_attend.cuh has what is special to attention.
 *
 * Each warp has its own channels of x, whatever the row, in slices of 64: two a thread. It takes the weights that they meet
 * from a tile, 8 at a time, and leaves its sums in shared memory, where they are added up over the warps in a fixed order by
 * as many threads as there are rows. Norms are computed by every thread block for itself, from the moments of its warps.
 *
 * The sums of a warp are the tensor cores': 16 rows by 16 terms at once. There are 8 columns for x, which is one: so x goes
 * there in two parts, its 16-bit value and what rounding took off it, in every other column. In which order terms are taken
 * does not matter as long as weights and x have the same: thread t of four has terms 8t .. 8t+7 of every 32. */
#ifndef PGPT_BACKEND_CUDA_DECODE_STEP_CUH
#define PGPT_BACKEND_CUDA_DECODE_STEP_CUH

#include "backend/cuda/decode_ring.cuh"
#include "backend/cuda/decode_step.h"
#include "backend/cuda/multiply16.cuh"

#if __CUDA_ARCH__ >= 900

extern __shared__ __align__(128) char decode_shared[];

/* What a computing thread knows. */
typedef struct {
    int thread, lane, warp;
    int turn, norm_turn;    /* of the sums and of the moments */
    unsigned tag;           /* of the block at hand */
    int set;                /* of mail: where its words begin */
    int position;           /* of the new token */
    int n_parts, part_keys; /* of the keys, the new one included */
} Me;

/* At the beginning of every phase. Said again and again so that the compiler does not keep hundreds of numbers in registers
 * that follow from these and are the same for every block. */
DEVICE void find_place(Me &me) {
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(me.thread));
    asm volatile("" : "+r"(me.position), "+r"(me.n_parts), "+r"(me.part_keys));
    me.lane = me.thread % WARP;
    me.warp = me.thread / WARP;
}
DEVICE int block_number(void) {
    int i;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(i));
    return i;
}

/* A barrier for the warps that compute. */
DEVICE void computing_barrier(const DecodeCall &c) {
    asm volatile("barrier.sync 1, %0;" ::"r"(c.n_warps * WARP) : "memory");
}

typedef struct {
    int first, count;
} Share;
DEVICE Share share_of(const Deal &deal) {
    int i = block_number();
    Share share = {(i * deal.each + (i < deal.more ? i : deal.more)) * deal.unit,
                   (deal.each + (i < deal.more)) * deal.unit};
    return share;
}

DEVICE int least(int a, int b) {
    return a < b ? a : b;
}

template <typename T> DEVICE const T *of_block(const DecodeCall &c, const void *p, int block) {
    return p ? (const T *)p + block * c.block_stride : NULL;
}

DEVICE uint4 nothing4(void) {
    return make_uint4(0, 0, 0, 0);
}

/* ---- products ---- */

/* This thread's part of the next tile of the ring: of E times 8 rows, the terms of this warp's S slices. */
template <typename T, int E, int S>
DEVICE void take_tile(Ring &ring, const Me &me, int rows, int inner, int slices, uint4 (&w)[E][2 * S]) {
    int row = me.lane / 4, first = me.warp * slices * SLICE, end = least(inner, first + slices * SLICE);
    const T *tile = (const T *)ring_wait(ring) + row * inner;
    first += me.lane % 4 * VECTOR;
#pragma unroll
    for (int b = 0; b < 2 * S; b++) {
#pragma unroll
        for (int e = 0; e < E; e++) {
            bool exists = 8 * e + row < rows && first + 32 * b < end;
            w[e][b] = exists ? *(const uint4 *)(tile + 8 * e * inner + first + 32 * b) : nothing4();
        }
    }
    ring_release(ring);
}

/* What is multiplied, of this warp: pairs of 16-bit numbers, and behind them those that rounding took off. */
DEVICE unsigned *factors_of(const Me &me, const DecodeCall &c) {
    return (unsigned *)(decode_shared + c.shared.factors) + me.warp * c.factor_words;
}

DEVICE float *sums_of(const Me &me, const DecodeCall &c) {
    return (float *)(decode_shared + c.shared.sums) + me.turn * c.n_warps * c.most_rows;
}

/* A tile by this warp's factors: its sums of the rows. LOW: where the second part of the factors lies; 0: there is none. */
template <typename T, int E, int S, int LOW>
DEVICE void multiply_tile(const Me &me, const DecodeCall &c, const uint4 (&w)[E][2 * S], int rows, int first_row) {
    enum { PAIRS = (E + 1) / 2 };
    float sum[PAIRS][4] = {{0}};
    int row = me.lane / 4;
    const unsigned *factors = factors_of(me, c) + (row % 2 ? LOW : 0) + me.lane % 4 * 4;
#pragma unroll
    for (int b = 0; b < 2 * S; b++) {
        uint4 x = *(const uint4 *)(factors + 16 * b);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            uint4 upper = w[2 * p][b], lower = 2 * p + 1 < E ? w[2 * p + 1 < E ? 2 * p + 1 : 0][b] : nothing4();
            multiply16(sum[p], upper.x, lower.x, upper.y, lower.y, x.x, x.y, T());
            multiply16(sum[p], upper.z, lower.z, upper.w, lower.w, x.z, x.w, T());
        }
    }
    float *sums = sums_of(me, c) + me.warp * c.most_rows + first_row;
#pragma unroll
    for (int e = 0; e < E; e++) {
        float value = sum[e / 2][e % 2 * 2] + (LOW ? sum[e / 2][e % 2 * 2 + 1] : 0.0f);
        if (me.lane % 4 == 0 && 8 * e + row < rows) sums[8 * e + row] = value;
    }
}

template <typename T, int E, int S>
DEVICE void take_first(Ring &ring, const Me &me, const Deal &deal, int inner, int slices, uint4 (&w)[E][2 * S]) {
    take_tile<T, E, S>(ring, me, least(share_of(deal).count, deal.tile), inner, slices, w);
}

/* Ranges of rows, all with this thread block's share: the first tile is taken, the others come from the ring. */
template <typename T, int E, int S, int LOW>
DEVICE void multiply(Ring &ring, Me &me, const DecodeCall &c, const Deal &deal, int ranges, int inner, int slices,
                     uint4 (&w)[E][2 * S]) {
    int rows = share_of(deal).count;
    me.turn ^= 1;
    for (int range = 0; range < ranges; range++) {
        for (int first = 0; first < rows; first += deal.tile) {
            int here = least(rows - first, deal.tile);
            if (range || first) take_tile<T, E, S>(ring, me, here, inner, slices, w);
            multiply_tile<T, E, S, LOW>(me, c, w, here, range * rows + first);
        }
    }
    computing_barrier(c);
}

/* The sum of a row over the warps. */
DEVICE float row_sum(const Me &me, const DecodeCall &c, int row) {
    const float *sums = sums_of(me, c) + row;
    float even = 0.0f, odd = 0.0f;
#pragma unroll 6
    for (int w = 0; w < c.n_warps / 2; w++) {
        even += sums[2 * w * c.most_rows];
        odd += sums[(2 * w + 1) * c.most_rows];
    }
    if (c.n_warps % 2) even += sums[(c.n_warps - 1) * c.most_rows];
    return even + odd;
}

template <typename T> DEVICE float element_of(const T *vector, int i, bool exists) {
    return vector && exists ? as_float(vector[i]) : 0.0f;
}

/* ---- x: two channels a thread of every slice of its warp ---- */

/* Slices that a warp has of x. */
DEVICE int warp_slices(const DecodeCall &c, int warp) {
    int left = c.channels / SLICE - warp * c.channel_slices;
    return left < 0 ? 0 : least(left, c.channel_slices);
}

/* The first of them of slice s. */
DEVICE int channel_of(const Me &me, const DecodeCall &c, int s) {
    return (me.warp * c.channel_slices + s) * SLICE + 2 * me.lane;
}

template <int S> DEVICE void receive_x(const Me &me, const DecodeCall &c, int at, unsigned tag, float (&x)[S][2]) {
    const Word *from[S];
    bool wanted[S];
    unsigned payload[S][2];
    int n_slices = warp_slices(c, me.warp);
#pragma unroll
    for (int s = 0; s < S; s++) {
        wanted[s] = s < n_slices;
        from[s] = mail_box(c.mail) + at + channel_of(me, c, s);
    }
    mail_receive<S, 2>(from, wanted, tag, payload);
#pragma unroll
    for (int s = 0; s < S; s++) {
        x[s][0] = wanted[s] ? __uint_as_float(payload[s][0]) : 0.0f;
        x[s][1] = wanted[s] ? __uint_as_float(payload[s][1]) : 0.0f;
    }
}

/* The hidden layer comes as it is multiplied. */
template <int S> DEVICE void receive_hidden(const Me &me, const DecodeCall &c) {
    enum { N = S / 2 };
    const Word *from[N];
    bool wanted[N];
    unsigned payload[N][2];
    int first = me.warp * c.hidden_slices * (SLICE / 2), end = least(c.hidden / 2, first + c.hidden_slices * (SLICE / 2));
#pragma unroll
    for (int i = 0; i < N; i++) {
        int word = first + SLICE * i + 2 * me.lane;
        wanted[i] = word < end;
        from[i] = mail_box(c.mail) + me.set + c.at.hidden + word;
    }
    mail_receive<N, 2>(from, wanted, me.tag, payload);
    unsigned *factors = factors_of(me, c);
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint2 pairs = make_uint2(wanted[i] ? payload[i][0] : 0u, wanted[i] ? payload[i][1] : 0u);
        *(uint2 *)(factors + SLICE * i + 2 * me.lane) = pairs;
    }
    __syncwarp();
}

/* x becomes the factors of a product, in two parts. */
template <typename T, int S> DEVICE void set_factors(const Me &me, const DecodeCall &c, const float (&x)[S][2]) {
    unsigned *factors = factors_of(me, c);
#pragma unroll
    for (int s = 0; s < S; s++) {
        unsigned high = pair_of_floats(x[s][0], x[s][1], T());
        float2 rounded = pair_as_floats(high, T());
        factors[s * (SLICE / 2) + me.lane] = high;
        factors[(S + s) * (SLICE / 2) + me.lane] =
            pair_of_floats(x[s][0] - rounded.x, x[s][1] - rounded.y, T());
    }
    __syncwarp();
}

/* This thread's channels of a vector of parameters. */
template <typename T, int S>
DEVICE void load_channels(const Me &me, const DecodeCall &c, const T *p, unsigned (&raw)[S]) {
    int n_slices = warp_slices(c, me.warp);
#pragma unroll
    for (int s = 0; s < S; s++)
        raw[s] = p && s < n_slices ? __ldg((const unsigned *)(p + channel_of(me, c, s))) : 0u;
}

/* ---- norms ---- */

/* Mean and sum of squares around it, over this warp's channels. */
template <int S> DEVICE float2 warp_moments(const DecodeCall &c, int n_slices, const float (&x)[S][2]) {
    float mean = 0.0f, squares = 0.0f, count = (float)(2 * n_slices);
    if (c.has_mean) {
#pragma unroll
        for (int s = 0; s < S; s++) mean += x[s][0] + x[s][1];
        mean = __fdividef(mean, fmaxf(count, 1.0f));
    }
#pragma unroll
    for (int s = 0; s < S; s++) {
        float a = s < n_slices ? x[s][0] - mean : 0.0f, b = s < n_slices ? x[s][1] - mean : 0.0f;
        squares = fmaf(a, a, fmaf(b, b, squares));
    }
#pragma unroll
    for (int step = 1; step < WARP; step *= 2, count *= 2.0f) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, mean, step), between = other - mean;
        squares += __shfl_xor_sync(0xFFFFFFFFu, squares, step);
        squares = fmaf(between * between, 0.5f * count, squares);
        mean = 0.5f * (mean + other);
    }
    return make_float2(mean, squares);
}

/* The moments of the warps as those of x: its mean, and 1 over its deviation. Relative to the first warp's mean, so that no
 * digits are lost where the mean is large. */
DEVICE float2 join_moments(const DecodeCall &c, const float2 *moments) {
    float part = __fdividef(1.0f, (float)c.channels), origin = moments[0].x;
    float away = 0.0f, squares = 0.0f;
#pragma unroll 6
    for (int w = 0; w < c.n_warps; w++) {
        float2 other = moments[w];
        float distance = other.x - origin, weighted = distance * (float)(warp_slices(c, w) * SLICE);
        away += weighted;
        squares += fmaf(weighted, distance, other.y);
    }
    squares = fmaxf(fmaf(-away * part, away, squares), 0.0f);
    return make_float2(fmaf(away, part, origin), rsqrtf(fmaf(squares, part, c.epsilon)));
}

/* norm(x) becomes the factors of a product. */
template <typename T, int S>
DEVICE void normalise(Me &me, const DecodeCall &c, const unsigned (&weight)[S], const unsigned (&bias)[S],
                      float (&x)[S][2]) {
    float2 *moments = (float2 *)(decode_shared + c.shared.moments) + me.norm_turn * c.n_warps;
    me.norm_turn ^= 1;
    float2 mine = warp_moments<S>(c, warp_slices(c, me.warp), x);
    if (me.lane == 0) moments[me.warp] = mine;
    computing_barrier(c);
    float2 all = join_moments(c, moments);
#pragma unroll
    for (int s = 0; s < S; s++) {
        float2 g = pair_as_floats(weight[s], T()), b = pair_as_floats(bias[s], T());
        x[s][0] = fmaf((x[s][0] - all.x) * all.y, g.x, b.x);
        x[s][1] = fmaf((x[s][1] - all.x) * all.y, g.y, b.y);
    }
    set_factors<T, S>(me, c, x);
}

#endif

#endif
