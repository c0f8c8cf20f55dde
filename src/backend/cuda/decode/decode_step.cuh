/* What the threads of decode_step do with a tile of weights and with x; decode_attend.cuh has what is special
 * to attention.
 *
 * Each warp has its own terms of every sum, in slices of 64: two channels a thread where it is x. It takes
 * the weights that they meet from a tile and leaves its sums in shared memory, where they are added up over
 * the warps in a fixed order by as many threads as there are rows.
 *
 * The sums of a warp are the tensor cores': 16 rows by 16 terms by 8 columns of factors at once. There is
 * only one x, but that room can be used. The 16 rows are 8 of the tile, twice: once with terms 0, 1, 4 and 5
 * of every 8, once with the others, which are then multiplied with factors in columns of their own, and the
 * rest of what comes out is not looked at. A thread's 8 weights, 16 bytes, are thus exactly what the hardware
 * wants from it. And there are four columns for each half:
 *
 *     0, 4   x, rounded to 16 bits
 *     1, 5   what rounding took off
 *     2, 6   g, the norm's weights
 *     3, 7   b, its biases
 *
 * where x goes through a norm first. W·norm(x) is a sum of matrix-vector products with W,
 *
 *     W·((x - mean) · rstd · g + b) = rstd · (W·(g·x) - mean · W·g) + W·b
 *
 * so the first two have g·x, and mean and rstd may come later: nobody waits for them before the GEMV.
 *
 * Instructions are what costs here: few warps, each waiting for itself. So loops stay loops, the same code
 * serves all GEMVs, and what is known early is done before x comes. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_STEP_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_STEP_CUH

#include "backend/cuda/decode/decode_ring.cuh"
#include "backend/cuda/decode/decode_step.h"
#include "backend/cuda/runtime/mma16.cuh"

#if __CUDA_ARCH__ >= 900

extern __shared__ __align__(128) char decode_shared[];

/* What a computing thread knows. */
typedef struct {
    int thread, lane, warp;
    int turn;               /* of the sums and moments */
    unsigned tag;           /* of the block at hand */
    int set;                /* of mail: where its words begin */
    int position;           /* of the new token */
    int n_parts, part_keys; /* of the keys, the new one included */
    float origin;           /* moments are taken from here: the mean at the last norm */
    float kept;             /* the element of x that this thread keeps, if any */
} Me;

/* Said again at the beginning of every phase, so that the compiler does not keep in registers whatever
 * follows from these and is the same for every block. */
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
template <typename Call> DEVICE void computing_barrier(const Call &c) {
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

template <typename T> DEVICE const T *of_block(const void *p, int block, int64_t stride) {
    return p ? (const T *)p + block * stride : NULL;
}
template <typename T> DEVICE float element_of(const T *vector, int i, bool exists) {
    return vector && exists ? as_float(vector[i]) : 0.0f;
}

/* ---- tiles of weights ---- */

/* Vectors of a thread: 3 times 8 rows by 4 times 32 terms, or 8 rows by 16 times 32. */
enum { HELD = 16 };

/* Terms of GEMV k, and slices of them that a warp has. */
template <typename Call> DEVICE int inner_of(const Call &c, int k) {
    return k == HIDDEN_OUT ? c.hidden : c.channels;
}
template <typename Call> DEVICE int slices_of(const Call &c, int k) {
    return k == HIDDEN_OUT ? c.hidden_slices : c.channel_slices;
}

/* How many times 32 terms this warp has. */
template <typename Call> DEVICE int own_blocks(const Me &me, const Call &c, int k) {
    int left = inner_of(c, k) / SLICE - me.warp * slices_of(c, k);
    return left < 0 ? 0 : 2 * least(left, slices_of(c, k));
}

/* This thread's part of the next tile of the ring, which has so many rows: sums of others are never looked
 * at, so any numbers will do. */
template <typename T, typename Call>
DEVICE void take_tile(Ring &ring, const Me &me, const Call &c, int k, int rows, uint4 (&w)[HELD]) {
    int n = own_blocks(me, c, k);
    const T *tile = (const T *)ring_wait(ring) + me.lane / 4 * inner_of(c, k) +
                    me.warp * slices_of(c, k) * SLICE + me.lane % 4 * VECTOR;
    if (is_wide(k)) {
#    pragma unroll
        for (int i = 0; i < WIDE_ROWS / 8 * 4; i++)
            if (i % 4 < n && me.lane / 4 + i / 4 * 8 < rows)
                w[i] = *(const uint4 *)(tile + i / 4 * 8 * c.channels + i % 4 * 32);
    } else {
#    pragma unroll
        for (int q = 0; q < HELD; q += 4) {
            if (q >= n || me.lane / 4 >= rows) continue;
#    pragma unroll
            for (int b = q; b < q + 4; b++)
                if (b < n) w[b] = *(const uint4 *)(tile + b * 32);
        }
    }
    ring_release(ring);
}

/* Factors of this warp: four kinds, factor_step words apart, pairs of 16-bit numbers. Of every 16 pairs the
 * even ones come first, so that a thread finds what it wants side by side. */
template <typename Call> DEVICE unsigned *factors_of(const Me &me, const Call &c) {
    return (unsigned *)(decode_shared + c.shared.factors) + me.warp * c.factor_words;
}
/* Where pair i of this warp's is. */
DEVICE int pair_place(int i) {
    return i / 16 * 16 + i % 2 * 8 + i % 16 / 2;
}

/* Of a row: x = W·x, y = W·what rounding took off it, z = W·g, w = W·b. */
template <typename Call> DEVICE float4 *sums_of(const Me &me, const Call &c) {
    return (float4 *)(decode_shared + c.shared.sums) + me.turn * c.n_warps * c.most_rows;
}

/* 32 terms: 8 rows of weights by factors. */
template <typename T> DEVICE void multiply32(float (&sum)[4], uint4 w, uint2 x) {
    mma16(sum, w.x, w.y, w.z, w.w, x.x, x.y, T());
}

/* The two halves of the sums of 8 rows come together, two kinds a thread. */
DEVICE void put_sums(const Me &me, float4 *sums, int rows, const float (&a)[4], const float (&b)[4]) {
    bool is_first = me.lane % 4 < 2;
    float even = is_first ? a[0] + b[0] : a[2] + b[2], odd = is_first ? a[1] + b[1] : a[3] + b[3];
    even += __shfl_xor_sync(0xFFFFFFFFu, even, 2);
    odd += __shfl_xor_sync(0xFFFFFFFFu, odd, 2);
    if (is_first && me.lane / 4 < rows) ((float2 *)&sums[me.lane / 4])[me.lane % 4] = make_float2(even, odd);
}

/* The moments of this warp's channels, for end_norm. */
template <typename Call> DEVICE void put_moments(const Me &me, const Call &c, float sum, float squares) {
#    pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
        squares += __shfl_xor_sync(0xFFFFFFFFu, squares, step);
    }
    float2 *moments = (float2 *)(decode_shared + c.shared.moments) + me.turn * c.n_warps;
    if (me.lane == 0) moments[me.warp] = make_float2(sum, squares);
}

/* A tile by this warp's factors: its sums of the rows. With moments, those too: while the tensor cores
 * work. */
template <typename T, typename Call>
DEVICE void multiply_tile(const Me &me, const Call &c, int k, const uint4 (&w)[HELD], int rows, int first_row,
                          const float *moments) {
    int n = own_blocks(me, c, k), column = me.lane / 4;
    const unsigned *factors =
        factors_of(me, c) + column % 4 * c.factor_step + column / 4 * 8 + me.lane % 4 * 2;
    float4 *sums = sums_of(me, c) + me.warp * c.most_rows + first_row;
    float sum[WIDE_ROWS / 8][2][4] = {{{0}}};
    if (is_wide(k)) {
#    pragma unroll
        for (int b = 0; b < 4; b++) {
            if (b >= n) continue;
            uint2 x = *(const uint2 *)(factors + 16 * b);
#    pragma unroll
            for (int e = 0; e < WIDE_ROWS / 8; e++) multiply32<T>(sum[e][b % 2], w[4 * e + b], x);
        }
    } else {
#    pragma unroll
        for (int q = 0; q < HELD; q += 4) {
            if (q >= n) continue;
#    pragma unroll
            for (int b = q; b < q + 4; b++) {
                if (b < n) multiply32<T>(sum[b / 2 % 2][b % 2], w[b], *(const uint2 *)(factors + 16 * b));
            }
        }
#    pragma unroll
        for (int i = 0; i < 8; i++) sum[0][i / 4][i % 4] += sum[1][i / 4][i % 4];
    }
    if (moments) put_moments(me, c, moments[0], moments[1]);
    put_sums(me, sums, rows, sum[0][0], sum[0][1]);
    if (!is_wide(k)) return;
    put_sums(me, sums + 8, rows - 8, sum[1][0], sum[1][1]);
    put_sums(me, sums + 16, rows - 16, sum[2][0], sum[2][1]);
}

/* The sums of a row over the warps, in a fixed order. */
template <typename Call> DEVICE float4 row_sum(const Me &me, const Call &c, int row) {
    const float4 *sums = sums_of(me, c) + row;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#    pragma unroll
    for (int w = 0; w < Call::MOST_WARPS; w++) {
        if (w >= c.n_warps) continue;
        float4 other = sums[w * c.most_rows];
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    return sum;
}

/* ---- x: two channels a thread of every slice of its warp ---- */

/* Slices of x that this warp has. */
template <typename Call> DEVICE int own_slices(const Me &me, const Call &c) {
    return own_blocks(me, c, HEAD) / 2;
}

/* This thread's first channel of slice s. */
template <typename Call> DEVICE int channel_of(const Me &me, const Call &c, int s) {
    return (me.warp * c.channel_slices + s) * SLICE + 2 * me.lane;
}

/* x becomes the factors of a GEMV. */
template <typename T, typename Call>
DEVICE void set_factors(const Me &me, const Call &c, const float (&x)[MOST_SLICES][2]) {
    unsigned *factors = factors_of(me, c) + pair_place(me.lane);
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) {
        unsigned high = pair_of_floats(x[s][0], x[s][1], T());
        float2 rounded = pair_as_floats(high, T());
        factors[s * (SLICE / 2)] = high;
        factors[s * (SLICE / 2) + c.factor_step] =
            pair_of_floats(x[s][0] - rounded.x, x[s][1] - rounded.y, T());
    }
    __syncwarp();
}

/* This thread's channels of a vector of parameters. */
template <typename T, typename Call>
DEVICE void load_channels(const Me &me, const Call &c, const T *p, unsigned (&raw)[MOST_SLICES]) {
    int n_slices = own_slices(me, c);
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++)
        raw[s] = p && s < n_slices ? __ldg((const unsigned *)(p + channel_of(me, c, s))) : 0u;
}

/* The norm's weights, which go with x, and the factors that they are themselves: before x comes. */
template <typename T, typename Call>
DEVICE void prepare_norm(const Me &me, const Call &c, const DecodeGemv &p, int block,
                         unsigned (&weight)[MOST_SLICES]) {
    unsigned bias[MOST_SLICES];
    unsigned *factors = factors_of(me, c) + 2 * c.factor_step + pair_place(me.lane);
    load_channels<T>(me, c, of_block<T>(p.norm_weight, block, p.stride), weight);
    load_channels<T>(me, c, of_block<T>(p.norm_bias, block, p.stride), bias);
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) {
        factors[s * (SLICE / 2)] = weight[s];
        factors[s * (SLICE / 2) + c.factor_step] = bias[s];
    }
}

/* x times the norm's weights becomes factors. moments: the sums of x and of its squares over this thread's
 * channels. */
template <typename T, typename Call>
DEVICE void begin_norm(const Me &me, const Call &c, const unsigned (&weight)[MOST_SLICES],
                       const float (&x)[MOST_SLICES][2], float (&moments)[2]) {
    float scaled[MOST_SLICES][2], sum = 0.0f, squares = 0.0f;
    int n_slices = own_slices(me, c);
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) {
        float2 g = pair_as_floats(weight[s], T());
        float a = s < n_slices ? x[s][0] - me.origin : 0.0f, b = s < n_slices ? x[s][1] - me.origin : 0.0f;
        scaled[s][0] = a * g.x, scaled[s][1] = b * g.y;
        sum += a + b;
        squares = fmaf(a, a, fmaf(b, b, squares));
    }
    set_factors<T>(me, c, scaled);
    moments[0] = sum, moments[1] = squares;
}

/* Mean (from the origin) and 1 / deviation of x, behind the barrier; the origin moves to the mean. */
template <typename Call> DEVICE float2 end_norm(Me &me, const Call &c) {
    const float2 *moments = (const float2 *)(decode_shared + c.shared.moments) + me.turn * c.n_warps;
    float sum = 0.0f, squares = 0.0f, part = __fdividef(1.0f, (float)c.channels);
#    pragma unroll
    for (int w = 0; w < Call::MOST_WARPS; w++) {
        if (w >= c.n_warps) continue;
        float2 other = moments[w];
        sum += other.x, squares += other.y;
    }
    float mean = c.has_mean ? sum * part : 0.0f;
    float variance = fmaxf(fmaf(squares, part, -mean * mean), 0.0f);
    me.origin += mean;
    return make_float2(mean, rsqrtf(variance + c.epsilon));
}

/* ---- mail ---- */

template <typename Call>
DEVICE void receive_x(const Me &me, const Call &c, int at, unsigned tag, float (&x)[MOST_SLICES][2]) {
    const Word *from = mail_box(c.mail) + at + channel_of(me, c, 0);
    int n_slices = own_slices(me, c), looks = 0;
    unsigned payload[MOST_SLICES][2] = {{0}};
    bool complete;
    do {
        complete = true;
#    pragma unroll
        for (int s = 0; s < MOST_SLICES; s++)
            if (s < n_slices) complete &= mail_look(from + s * SLICE, tag, payload[s]);
        mail_patience(&looks);
    } while (!complete);
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) {
        x[s][0] = __uint_as_float(payload[s][0]);
        x[s][1] = __uint_as_float(payload[s][1]);
    }
}

/* The hidden layer comes as it is multiplied. */
template <typename Call> DEVICE void receive_hidden(const Me &me, const Call &c) {
    enum { N = MOST_HIDDEN / 2 };
    int slices = c.hidden_slices, first = me.warp * slices * (SLICE / 2) + 2 * me.lane;
    int end = least(c.hidden / 2, me.warp * slices * (SLICE / 2) + slices * (SLICE / 2)), looks = 0;
    const Word *from = mail_box(c.mail) + me.set + c.at.hidden + first;
    unsigned payload[N][2] = {{0}}, *factors = factors_of(me, c) + pair_place(2 * me.lane);
    bool complete;
    do {
        complete = true;
#    pragma unroll
        for (int i = 0; i < N; i++)
            if (first + SLICE * i < end) complete &= mail_look(from + SLICE * i, me.tag, payload[i]);
        mail_patience(&looks);
    } while (!complete);
#    pragma unroll
    for (int i = 0; i < N; i++) factors[SLICE * i] = payload[i][0], factors[SLICE * i + 8] = payload[i][1];
    __syncwarp();
}

#endif

#endif
