/* What the norms of norm_rows.cuh are made of: how large blocks are, 8 elements in words, rows of floats in
 * shared memory, sums over a team, and the dropout of a branch.
 *
 * Every instruction counts here: rows of a few hundred channels in 16 bits come from the L2 cache faster than
 * they can be dealt with one element at a time. So 16-bit elements stay two in a word until they must be
 * floats, the masks of a row are drawn together, which leaves the keys of Philox's rounds to be worked out
 * once, and the halves of vectors lie in shared memory so that a warp reads them without conflicts. */
#ifndef PGPT_BACKEND_CUDA_NORM_NORM_PARTS_CUH
#define PGPT_BACKEND_CUDA_NORM_NORM_PARTS_CUH

#include "backend/cuda/runtime/device.cuh"

typedef struct {
    int64_t rows;
    int channels;
    float epsilon;
} NormShape;

/* A branch's dropout. Row r here is row first + r of those that the ranks share, `rows` of every sequence; of
 * these the first `head` are at their place plus shift[0] in the sequence, the others at theirs plus shift[1]
 * (RowSplit). */
typedef struct {
    const int32_t *random; /* NULL: none */
    uint32_t threshold;
    int site;
    unsigned rows, first, head, shift[2];
} Draws;

/* What residual_norm has beside the norm. */
typedef struct {
    const void *branch; /* forward: x + dropout(branch) is what is normed, */
    void *sum;          /* and it is stored here */
    void *dbranch;      /* backward: dropout(dx), NULL: not wanted */
    bool add;           /* to dbranch */
    bool sums;          /* its columns, as they are stored, are the last of the partial sums */
    Draws draws;
} Branch;

/* The first channel of vector j of this thread. A block is (threads of a team, teams). LANES: threads of a
 * team that is in one warp, 0: a team is of whole warps. */
template <int LANES> DEVICE int channel_of(int j) {
    return (j * (LANES ? LANES : (int)blockDim.x) + (int)threadIdx.x) * VECTOR;
}

/* 8 elements as they lie in memory, in words: as elements of 16 bits, the compiler would take them apart in
 * registers. Where rows are aligned, a vector is there whole or not at all; what is not there is left as it
 * was. */
template <typename T> struct Words { uint4 part[sizeof(T) / 2]; };

template <typename T, bool ALIGNED> DEVICE void load_words(const T *p, int n, Words<T> *words) {
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++) {
        if (ALIGNED && n > 0) words->part[i] = ((const uint4 *)p)[i];
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (!ALIGNED && i < n) ((T *)words)[i] = p[i];
    }
}
template <typename T, bool ALIGNED> DEVICE void store_words(T *p, int n, const Words<T> &words) {
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++) {
        if (ALIGNED && n > 0) ((uint4 *)p)[i] = words.part[i];
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (!ALIGNED && i < n) p[i] = ((const T *)&words)[i];
    }
}
template <typename T> DEVICE void unpack(const Words<T> &words, float v[VECTOR]) {
    load8((const T *)&words, v);
}
template <typename T> DEVICE Words<T> pack(const float v[VECTOR]) {
    Words<T> words;
    store8((T *)&words, v);
    return words;
}

template <typename T, int VECTORS, int LANES, bool ALIGNED>
DEVICE void load_row(const T *row, int channels, Words<T> words[VECTORS]) {
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        int c = channel_of<LANES>(j);
        load_words<T, ALIGNED>(row + c, channels - c, &words[j]);
    }
}

/* Weights have the type of the activations, or are f32. */
template <typename T> DEVICE void load_weights(Memory m, int c, int n, float v[VECTOR]) {
    if (m.dtype == DTYPE_F32) load8((const float *)m.data + c, n, m.aligned, v);
    else load8((const T *)m.data + c, n, m.aligned, v);
}

/* Rows of floats in shared memory, as wide as the vectors of a team: the first halves of all vectors, then
 * the second ones, so that the threads of a warp read and write neighbours. */
template <int VECTORS, int LANES> DEVICE int width_of(void) {
    return channel_of<LANES>(VECTORS) - channel_of<LANES>(0);
}
DEVICE void load_halves(const float *shared, int width, int c, float v[VECTOR]) {
    float4 low = ((const float4 *)shared)[c / VECTOR], high = ((const float4 *)shared)[(width + c) / VECTOR];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}
DEVICE void store_halves(float *shared, int width, int c, const float v[VECTOR]) {
    ((float4 *)shared)[c / VECTOR] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)shared)[(width + c) / VECTOR] = make_float4(v[4], v[5], v[6], v[7]);
}

/* Blocks of NORM_SMALL threads keep the weights in f32 in shared memory, 0 where there are none; in the
 * others rows may be too long for it. */
template <typename T, int THREADS>
DEVICE void keep_weights(Memory m, int channels, float *shared, int width) {
    if (THREADS != NORM_SMALL) return;
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x), n_threads = (int)(blockDim.x * blockDim.y);
    for (int c = thread * VECTOR; c < width; c += n_threads * VECTOR) {
        float v[VECTOR];
        load_weights<T>(m, c, m.data ? channels - c : 0, v);
        store_halves(shared, width, c, v);
    }
}
template <typename T, int THREADS>
DEVICE void read_weights(Memory m, int channels, const float *shared, int width, int c, float v[VECTOR]) {
    if (THREADS != NORM_SMALL) load_weights<T>(m, c, m.data ? channels - c : 0, v);
    else load_halves(shared, width, c, v);
}

/* The sums over a team's threads, in all of them. shared has room for every warp of the block, and a barrier
 * must lie between two uses of it; a team in one warp needs neither. */
template <int LANES> DEVICE float2 team_sum(float a, float b, float2 *shared) {
#pragma unroll
    for (int step = (LANES ? LANES : WARP) / 2; step; step /= 2) {
        a += __shfl_xor_sync(0xFFFFFFFFu, a, step);
        b += __shfl_xor_sync(0xFFFFFFFFu, b, step);
    }
    int n_warps = (int)blockDim.x / WARP;
    if (LANES || n_warps == 1) return make_float2(a, b);
    float2 *mine = shared + threadIdx.y * n_warps;
    if (threadIdx.x % WARP == 0) mine[threadIdx.x / WARP] = make_float2(a, b);
    __syncthreads();
    a = b = 0.0f;
    for (int w = 0; w < n_warps; w++) a += mine[w].x, b += mine[w].y;
    return make_float2(a, b);
}

/* ---- dropout of a branch ---- */

/* The masks of a site, and where a team's row is: the place within its sequence. */
typedef struct {
    RandomKey key;
    uint32_t limit; /* a draw is kept that is above it as the upper half of a word, whatever the lower half */
    float scale;
    uint64_t sequence;
    unsigned place, sequences_on, places_on; /* from row to row of the team */
    unsigned head, shift[2];
} Masks;

DEVICE Masks masks_of(const Draws &draws, int64_t row, int64_t stride) {
    Masks masks = {};
    if (!draws.threshold) return masks;
    masks.key = dropout_key(draws.random, draws.site);
    masks.limit = (draws.threshold << 16) - 1;
    masks.scale = random_dropout_scale(draws.threshold);
    unsigned at = draws.first + (unsigned)row;
    masks.sequence = first_sequence(draws.random) + at / draws.rows;
    masks.place = at % draws.rows;
    masks.head = draws.head;
    masks.shift[0] = draws.shift[0];
    masks.shift[1] = draws.shift[1];
    masks.sequences_on = (unsigned)stride / draws.rows;
    masks.places_on = (unsigned)stride % draws.rows;
    return masks;
}
DEVICE void next_row(Masks *masks, const Draws &draws) {
    masks->sequence += masks->sequences_on;
    masks->place += masks->places_on;
    if (masks->place < draws.rows) return;
    masks->place -= draws.rows;
    masks->sequence++;
}

/* The first element of a row in its sequence. */
DEVICE uint64_t row_element(const Masks &masks, int channels) {
    unsigned position = masks.place + (masks.place < masks.head ? masks.shift[0] : masks.shift[1]);
    return (uint64_t)position * (unsigned)channels;
}

/* The draws of 8 elements of a sequence from `at` on: where rows are aligned, one block is theirs; else they
 * may begin within one and end in the next. */
template <bool ALIGNED> DEVICE RandomBlock draw8(const Masks &masks, uint64_t at) {
    RandomBlock draw[2] = {random_block(masks.key, masks.sequence, (uint32_t)(at / VECTOR))};
    if (ALIGNED) return draw[0];
    draw[1] = random_block(masks.key, masks.sequence, (uint32_t)(at / VECTOR) + 1);
    RandomBlock both;
#pragma unroll
    for (unsigned k = 0; k < VECTOR; k += 2) {
        unsigned low = (unsigned)(at % VECTOR) + k, high = low + 1;
        both.word[k / 2] = random_half(draw[low / VECTOR], low % VECTOR) |
                           random_half(draw[high / VECTOR], high % VECTOR) << 16;
    }
    return both;
}
/* Of a whole row, at once. */
template <int VECTORS, int LANES, bool ALIGNED>
DEVICE void draw_row(const Masks &masks, int channels, RandomBlock draw[VECTORS]) {
    uint64_t first = row_element(masks, channels);
#pragma unroll
    for (int j = 0; j < VECTORS; j++) draw[j] = draw8<ALIGNED>(masks, first + (unsigned)channel_of<LANES>(j));
}

/* The product is rounded as that of dropout.cu, and not part of whatever is added to it. */
DEVICE void drop8(const Masks &masks, const RandomBlock &draw, float v[VECTOR]) {
#pragma unroll
    for (int k = 0; k < VECTOR; k += 2) {
        uint32_t word = draw.word[k / 2];
        v[k] = __fmul_rn(v[k], word << 16 > masks.limit ? masks.scale : 0.0f);
        v[k + 1] = __fmul_rn(v[k + 1], word > masks.limit ? masks.scale : 0.0f);
    }
}

/* x + y as it is stored. In 16 bits that is two at a time, with the bits of a sum in f32 that is rounded: f32
 * has more than twice their digits. */
template <typename T> struct PairOf { typedef __nv_bfloat162 Type; };
template <> struct PairOf<f16> { typedef __half2 Type; };
template <typename T> DEVICE Words<T> add_words(const Words<T> &x, const Words<T> &y) {
    typedef typename PairOf<T>::Type Pair;
    Words<T> sum;
#pragma unroll
    for (int k = 0; k < VECTOR / 2; k++)
        ((Pair *)&sum)[k] = __hadd2_rn(((const Pair *)&x)[k], ((const Pair *)&y)[k]);
    return sum;
}
DEVICE Words<float> add_words(const Words<float> &x, const Words<float> &y) {
    Words<float> sum;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) ((float *)&sum)[k] = ((const float *)&x)[k] + ((const float *)&y)[k];
    return sum;
}

/* x = x + dropout(branch). Behind the row both are 0. */
template <typename T, int VECTORS, int LANES, bool ALIGNED>
DEVICE void add_branch(Words<T> x[VECTORS], const Words<T> branch[VECTORS], const Masks &masks,
                       int channels) {
    RandomBlock draw[VECTORS] = {};
    if (masks.limit) draw_row<VECTORS, LANES, ALIGNED>(masks, channels, draw);
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        if (masks.limit) {
            float b[VECTOR];
            unpack(branch[j], b);
            drop8(masks, draw[j], b);
            x[j] = add_words(x[j], pack<T>(b));
        } else {
            x[j] = add_words(x[j], branch[j]);
        }
    }
}

#endif
