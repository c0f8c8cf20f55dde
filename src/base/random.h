/* Counter-based random numbers (Philox 4x32-10): a pure function of a key and a counter.
 *
 * There is no generator state to save, to seed per thread or to keep in step between ranks: the number that
 * element i of tensor t needs in step s is random_block(key(seed, t, s), i), wherever and in whatever order
 * it is computed. This is what lets every layout, thread count and resumed run draw the same dropout masks
 * and initial weights. */
#ifndef PGPT_BASE_RANDOM_H
#define PGPT_BASE_RANDOM_H

#include <stdint.h>

/* A GPU draws the same numbers with the same code. */
#ifdef __CUDACC__
#    define RANDOM_INLINE static inline __host__ __device__
#else
#    define RANDOM_INLINE static inline
#endif

typedef struct {
    uint32_t word[4];
} RandomBlock;

/* A stream of blocks: what the numbers are for (seed and purpose), hashed into 64 bits. */
typedef struct {
    uint32_t word[2];
} RandomKey;

/* SplitMix64's finaliser: every input bit reaches every output bit. */
RANDOM_INLINE uint64_t random_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* A key from a seed and up to two further coordinates (a purpose or tensor id, a step). */
RANDOM_INLINE RandomKey random_key(uint64_t seed, uint64_t purpose, uint64_t step) {
    uint64_t key = random_mix(seed + 0x9E3779B97F4A7C15u);
    key = random_mix(key ^ (purpose + 0xD1B54A32D192ED03u));
    key = random_mix(key ^ (step + 0x8CB92BA72F3D8DD7u));
    return (RandomKey){{(uint32_t)key, (uint32_t)(key >> 32)}};
}

/* The purposes, so that no two uses share a stream; add the index of the thing within its purpose. */
#define RANDOM_INIT     (UINT64_C(1) << 32)
#define RANDOM_DATA     (UINT64_C(2) << 32)
#define RANDOM_DROPOUT  (UINT64_C(3) << 32)
#define RANDOM_SAMPLE   (UINT64_C(4) << 32)
#define RANDOM_TEST     (UINT64_C(5) << 32)
#define RANDOM_ROUNDING (UINT64_C(6) << 32)
#define RANDOM_ROUTER   (UINT64_C(7) << 32)

/* Both halves of a product. A GPU's compiler is told the instruction: left to itself it may take the halves
 * for 64-bit numbers, since keys come from such, and do every step twice. */
RANDOM_INLINE void random_multiply(uint32_t a, uint32_t b, uint32_t *high, uint32_t *low) {
#ifdef __CUDA_ARCH__
    asm("{\n\t.reg .b64 product;\n\tmul.wide.u32 product, %2, %3;\n\tmov.b64 {%1, %0}, product;\n\t}"
        : "=r"(*high), "=r"(*low)
        : "r"(a), "r"(b));
#else
    uint64_t product = (uint64_t)a * b;
    *high = (uint32_t)(product >> 32);
    *low = (uint32_t)product;
#endif
}

/* What a block is made of: where it is, in rounds with a key each. Who needs several blocks goes round by
 * round with all of them, where the steps of one would have to wait for each other. */
enum { RANDOM_ROUNDS = 10 };
RANDOM_INLINE RandomBlock random_position(uint64_t row, uint64_t column) {
    return (RandomBlock){{(uint32_t)column, (uint32_t)(column >> 32), (uint32_t)row, (uint32_t)(row >> 32)}};
}
RANDOM_INLINE RandomBlock random_round(RandomKey key, RandomBlock c) {
    uint32_t high0, low0, high1, low1;
    random_multiply(0xD2511F53u, c.word[0], &high0, &low0);
    random_multiply(0xCD9E8D57u, c.word[2], &high1, &low1);
    return (RandomBlock){{high1 ^ c.word[1] ^ key.word[0], low1, high0 ^ c.word[3] ^ key.word[1], low0}};
}
RANDOM_INLINE RandomKey random_next_key(RandomKey key) {
    return (RandomKey){{key.word[0] + 0x9E3779B9u, key.word[1] + 0xBB67AE85u}};
}

RANDOM_INLINE RandomBlock random_block(RandomKey key, uint64_t row, uint64_t column) {
    RandomBlock block = random_position(row, column);
    for (int round = 0; round < RANDOM_ROUNDS; round++, key = random_next_key(key))
        block = random_round(key, block);
    return block;
}

/* Word -> [0,1) with 24 bits. */
RANDOM_INLINE float random_unit(uint32_t word) {
    return (float)(word >> 8) * (1.0f / 16777216.0f);
}

/* Dropout. Element `index` of global sequence `row` is kept when its 16-bit draw is at least the threshold; a
 * block serves 8 elements in order. The scale is exact for the rounded threshold, so the expectation is
 * kept. */
RANDOM_INLINE uint32_t random_dropout_threshold(float probability) {
    return (uint32_t)(probability * 65536.0f + 0.5f);
}

RANDOM_INLINE float random_dropout_scale(uint32_t threshold) {
    return 65536.0f / (float)(65536 - threshold);
}

RANDOM_INLINE uint32_t random_half(RandomBlock block, unsigned which /* 0..7 */) {
    return which % 2 ? block.word[which / 2] >> 16 : block.word[which / 2] & 0xFFFFu;
}

RANDOM_INLINE int random_keep(RandomKey key, uint64_t row, uint64_t index, uint32_t threshold) {
    return random_half(random_block(key, row, index / 8), (unsigned)(index % 8)) >= threshold;
}

/* What a 16-bit number is rounded with (half.h): element `element` of array `array`, in the step of
 * `draw`. */
RANDOM_INLINE uint32_t random_rounding(uint32_t draw, unsigned array, uint64_t element) {
    RandomBlock block = random_block((RandomKey){{draw, array}}, 0, element / 4);
    return block.word[element % 4];
}

/* Uniform in [0,1) and standard normal for element `index` of a stream. */
float random_uniform(RandomKey key, uint64_t index);
float random_normal(RandomKey key, uint64_t index);

/* out[i] = deviation · random_normal(key, first + i), several times as fast as one by one. */
void random_normal_fill(RandomKey key, uint64_t first, uint64_t n, float deviation, float *out);

/* Element `index` of a seeded permutation of 0..n-1, computed without an array (a Feistel network that walks
 * until it lands inside). n must be at least 1 and index below n. */
uint64_t random_permute(RandomKey key, uint64_t index, uint64_t n);

#endif
