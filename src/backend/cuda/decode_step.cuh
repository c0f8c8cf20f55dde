/* What the threads of decode_step do with a tile of weights and with x; decode_attend.cuh has what is special to attention.
 *
 * Each warp has its own terms of every sum, in slices of 64: two channels a thread where it is x. It takes the weights that
 * they meet from a tile and leaves its sums in shared memory, where they are added up over the warps in a fixed order by as
 * many threads as there are rows.
 *
 * The sums of a warp are the tensor cores': 16 rows by 16 terms at once. In which order terms are taken does not matter as
 * long as weights and factors have the same: thread t of four has terms 8t .. 8t+7 of every 32. There are 8 columns for
 * factors, which are used in turns of four:
 *
 *     0   x, rounded to 16 bits          where x goes through a norm first, W·norm(x) is a sum of products with W:
 *     1   what rounding took off               W·((x - mean) · rstd · g + b) = rstd · (W·(g·x) - mean · W·g) + W·b
 *     2   g, the norm's weights          so columns 0 and 1 have g·x, and mean and rstd may come later: nobody waits
 *     3   b, its biases                  for them before the product.
 *
 * Instructions are what costs here: few warps, each waiting for itself. So loops stay loops, the same code serves all
 * products, and what is known early is done before x comes. */
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
    int turn;               /* of the sums and moments */
    unsigned tag;           /* of the block at hand */
    int set;                /* of mail: where its words begin */
    int position;           /* of the new token */
    int n_parts, part_keys; /* of the keys, the new one included */
    float origin;           /* moments are taken from here: the mean at the last norm */
    float kept;             /* the element of x that this thread keeps, if any */
} Me;

/* Said again at the beginning of every phase, so that the compiler does not keep in registers whatever follows from these
 * and is the same for every block. */
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

template <typename T> DEVICE const T *of_block(const void *p, int block, int64_t stride) {
    return p ? (const T *)p + block * stride : NULL;
}
template <typename T> DEVICE float element_of(const T *vector, int i, bool exists) {
    return vector && exists ? as_float(vector[i]) : 0.0f;
}

/* ---- tiles of weights ---- */

enum { HELD = 16 }; /* vectors of a thread: 3 times 8 rows by 4 times 32 terms, or 8 rows by 16 times 32 */

/* How many times 32 terms this warp has of a product's sums. */
DEVICE int own_blocks(const Me &me, const DecodeProduct &p) {
    int left = p.inner / SLICE - me.warp * p.slices;
    return left < 0 ? 0 : 2 * least(left, p.slices);
}

/* This thread's part of the next tile of the ring. Rows that do not exist are never looked at: any numbers will do. */
template <typename T>
DEVICE void take_tile(Ring &ring, const Me &me, const DecodeProduct &p, uint4 (&w)[HELD]) {
    int n = own_blocks(me, p), step = p.is_wide ? 8 * p.inner : 4 * 32;
    const T *tile = (const T *)ring_wait(ring) + me.lane / 4 * p.inner + me.warp * p.slices * SLICE +
                    me.lane % 4 * VECTOR;
#    pragma unroll
    for (int q = 0; q < HELD / 4; q++) {
        int here = !p.is_wide ? n - 4 * q : q < WIDE_ROWS / 8 ? n : 0;
#    pragma unroll
        for (int b = 0; b < 4; b++)
            if (b < here) w[4 * q + b] = *(const uint4 *)(tile + q * step + 32 * b);
    }
    ring_release(ring);
}

/* Columns of factors of this warp. */
DEVICE unsigned *factors_of(const Me &me, const DecodeCall &c) {
    return (unsigned *)(decode_shared + c.shared.factors) + me.warp * c.factor_words;
}

DEVICE float4 *sums_of(const Me &me, const DecodeCall &c) {
    return (float4 *)(decode_shared + c.shared.sums) + me.turn * c.n_warps * c.most_rows;
}

DEVICE void add4(float (&a)[4], const float (&b)[4]) {
#    pragma unroll
    for (int i = 0; i < 4; i++) a[i] += b[i];
}

/* A tile by this warp's factors, of which there are 1, 2 or 4 columns: its sums of the rows. */
template <typename T>
DEVICE void multiply_tile(const Me &me, const DecodeCall &c, const DecodeProduct &p, const uint4 (&w)[HELD],
                          int columns, int rows, int first_row) {
    float sum[4][4] = {{0}};
    int row = me.lane / 4, t = me.lane % 4, n = own_blocks(me, p);
    const unsigned *factors = factors_of(me, c) + (row & (columns - 1)) * c.factor_step + 4 * t;
    if (p.is_wide) {
#    pragma unroll
        for (int b = 0; b < 4; b++) {
            if (b >= n) continue;
            uint4 x = *(const uint4 *)(factors + 16 * b), low = w[b], high = w[4 + b], last = w[8 + b];
            float(&first)[4] = sum[b % 2], (&second)[4] = sum[2 + b % 2];
            multiply16(first, low.x, high.x, low.y, high.y, x.x, x.y, T());
            multiply16(second, last.x, 0u, last.y, 0u, x.x, x.y, T());
            multiply16(first, low.z, high.z, low.w, high.w, x.z, x.w, T());
            multiply16(second, last.z, 0u, last.w, 0u, x.z, x.w, T());
        }
    } else {
#    pragma unroll
        for (int b = 0; b < HELD; b++) {
            if (b >= n) continue;
            uint4 x = *(const uint4 *)(factors + 16 * b);
            multiply16(sum[b % 4], w[b].x, 0u, w[b].y, 0u, x.x, x.y, T());
            multiply16(sum[b % 4], w[b].z, 0u, w[b].w, 0u, x.z, x.w, T());
        }
    }
    add4(sum[0], sum[1]);
    add4(sum[2], sum[3]);
    if (!p.is_wide) add4(sum[0], sum[2]);
    if (t >= 2) return;
    float2 *sums = (float2 *)(sums_of(me, c) + me.warp * c.most_rows + first_row + row) + t;
    if (row < rows) sums[0] = make_float2(sum[0][0], sum[0][1]);
    if (row + 8 < rows) sums[2 * 8] = make_float2(sum[0][2], sum[0][3]);
    if (row + 16 < rows) sums[2 * 16] = make_float2(sum[2][0], sum[2][1]);
}

/* The sum of a row over the warps, in a fixed order; by column. */
template <int WARPS> DEVICE float4 row_sum(const Me &me, const DecodeCall &c, int row) {
    const float4 *sums = sums_of(me, c) + row;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#    pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w >= c.n_warps) continue;
        float4 other = sums[w * c.most_rows];
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    return sum;
}

/* ---- x: two channels a thread of every slice of its warp ---- */

/* Slices of x that this warp has. */
DEVICE int own_slices(const Me &me, const DecodeCall &c) {
    int left = c.channels / SLICE - me.warp * c.product[HEAD].slices;
    return left < 0 ? 0 : least(left, c.product[HEAD].slices);
}

/* This thread's first channel of slice s. */
DEVICE int channel_of(const Me &me, const DecodeCall &c, int s) {
    return (me.warp * c.product[HEAD].slices + s) * SLICE + 2 * me.lane;
}

/* x becomes the first two columns of factors. */
template <typename T>
DEVICE void set_factors(const Me &me, const DecodeCall &c, const float (&x)[MOST_SLICES][2]) {
    unsigned *factors = factors_of(me, c) + me.lane;
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
template <typename T>
DEVICE void load_channels(const Me &me, const DecodeCall &c, const T *p, unsigned (&raw)[MOST_SLICES]) {
    int n_slices = own_slices(me, c);
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++)
        raw[s] = p && s < n_slices ? __ldg((const unsigned *)(p + channel_of(me, c, s))) : 0u;
}

/* The norm's weights, which go with x, and its columns of factors: before x comes. */
template <typename T>
DEVICE void prepare_norm(const Me &me, const DecodeCall &c, const DecodeProduct &p, int block,
                         unsigned (&weight)[MOST_SLICES]) {
    unsigned bias[MOST_SLICES], *factors = factors_of(me, c) + 2 * c.factor_step + me.lane;
    load_channels<T>(me, c, of_block<T>(p.norm_weight, block, p.stride), weight);
    load_channels<T>(me, c, of_block<T>(p.norm_bias, block, p.stride), bias);
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) {
        factors[s * (SLICE / 2)] = weight[s];
        factors[s * (SLICE / 2) + c.factor_step] = bias[s];
    }
}

/* x times the norm's weights becomes factors, and its moments are left for normalise. */
template <typename T>
DEVICE void begin_norm(const Me &me, const DecodeCall &c, const unsigned (&weight)[MOST_SLICES],
                       const float (&x)[MOST_SLICES][2]) {
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
#    pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
        squares += __shfl_xor_sync(0xFFFFFFFFu, squares, step);
    }
    float2 *moments = (float2 *)(decode_shared + c.shared.moments) + me.turn * c.n_warps;
    if (me.lane == 0) moments[me.warp] = make_float2(sum, squares);
}

/* Mean (from the origin) and 1 / deviation of x, behind the barrier; the origin moves to the mean. */
template <int WARPS> DEVICE float2 end_norm(Me &me, const DecodeCall &c) {
    const float2 *moments = (const float2 *)(decode_shared + c.shared.moments) + me.turn * c.n_warps;
    float sum = 0.0f, squares = 0.0f, part = __fdividef(1.0f, (float)c.channels);
#    pragma unroll
    for (int w = 0; w < WARPS; w++) {
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

DEVICE void receive_x(const Me &me, const DecodeCall &c, int at, unsigned tag, float (&x)[MOST_SLICES][2]) {
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
DEVICE void receive_hidden(const Me &me, const DecodeCall &c) {
    enum { N = MOST_HIDDEN / 2 };
    int slices = c.product[HIDDEN_OUT].slices, first = me.warp * slices * (SLICE / 2) + 2 * me.lane;
    int end = least(c.hidden / 2, me.warp * slices * (SLICE / 2) + slices * (SLICE / 2)), looks = 0;
    const Word *from = mail_box(c.mail) + me.set + c.at.hidden + first;
    unsigned payload[N][2] = {{0}}, *factors = factors_of(me, c) + 2 * me.lane;
    bool complete;
    do {
        complete = true;
#    pragma unroll
        for (int i = 0; i < N; i++)
            if (first + SLICE * i < end) complete &= mail_look(from + SLICE * i, me.tag, payload[i]);
        mail_patience(&looks);
    } while (!complete);
#    pragma unroll
    for (int i = 0; i < N; i++) *(uint2 *)(factors + SLICE * i) = make_uint2(payload[i][0], payload[i][1]);
    __syncwarp();
}

/* Values of this thread block's rows, two a word; by whole warps. */
template <typename T>
DEVICE void send_pairs(const Me &me, const DecodeCall &c, int at, Share rows, float value) {
    float next = __shfl_down_sync(0xFFFFFFFFu, value, 1);
    if (me.thread < rows.count && me.thread % 2 == 0)
        mail_send(c.mail, me.set + at + (rows.first + me.thread) / 2, pair_of_floats(value, next, T()),
                  me.tag);
}

#endif

#endif
