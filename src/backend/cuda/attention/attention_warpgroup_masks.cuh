/* Which weights of a head are kept, in bits in shared memory, ahead of those who need them: for
 * attention_warpgroup_backward_sm90.cu and attention_warpgroup_forward_sm90.cu. A tile of 64 queries and 64
 * keys takes MASK_TILE bytes. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WARPGROUP_MASKS_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WARPGROUP_MASKS_CUH

#include "backend/cuda/attention/attention_warpgroup_spans.cuh"

enum {
    UNIT = 32,        /* queries and keys that a warp draws for at a time */
    UNIT_BLOCKS = 4,  /* of random numbers, 8 keys each */
    MASK_TILE = 512,  /* bytes */
    MASK_STRIP = 128, /* of 16 keys: see put_for_keys */
    MASK_COLUMN = 32, /* of it */
    MASK_QUERY = 8    /* see put_for_queries */
};

/* Who reads it, in products whose rows are keys or queries. */
typedef enum { MASK_FOR_KEYS, MASK_FOR_QUERIES } MaskUse;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Units of UNIT queries and keys, on and under the diagonal, that are to be drawn: of the last queries
 * first. */
DEVICE int n_units(int positions) {
    int rows = (positions + UNIT - 1) / UNIT;
    return rows * (rows + 1) / 2;
}

/* Which of two numbers of 16 bits are kept, in the highest bits of both halves. They are compared at the same
 * time: of 15 bits, one is no less than the limit where their difference leaves the bit above, and the 16th
 * bits decide before that. */
enum : unsigned { HIGHEST = 0x80008000u };
DEVICE unsigned kept_of_two(unsigned x, unsigned limits) {
    unsigned rest = (x | HIGHEST) - (limits & ~HIGHEST);
    return (x & ~limits) | (rest & ~(x ^ limits));
}

/* Of a block's 8 numbers, in bits of both halves from number `first` on, counted from the top. */
DEVICE unsigned kept_bits(unsigned bits, const RandomBlock &block, unsigned limits, int first) {
#    pragma unroll
    for (int k = 0; k < 4; k++) {
        unsigned at = HIGHEST >> (first + k);
        bits = (bits & ~at) | (kept_of_two(block.word[k], limits) >> (first + k) & at);
    }
    return bits;
}

/* Of 16 keys, the even ones are the bits of a byte, the first one highest, and the odd ones those of the
 * next; the two bytes of query 8·n + 2·c + e are at MASK_COLUMN·c + 4·n + 2·e of the strip, so that a thread
 * that has two queries of every 8 reads what it needs in vectors. See mask_shift. */
DEVICE void put_for_keys(unsigned char *tile, const RandomBlock block[UNIT_BLOCKS], unsigned limits, int row,
                         int column) {
    int lane = (int)threadIdx.x % WARP;
    unsigned char *to = tile + column % 2 * 2 * MASK_STRIP + lane % 8 / 2 * MASK_COLUMN +
                        (row % 2 * 4 + lane / 8) * 4 + lane % 2 * 2;
#    pragma unroll
    for (int j = 0; j < 2; j++) {
        unsigned bits = kept_bits(kept_bits(0, block[2 * j], limits, 0), block[2 * j + 1], limits, 4);
        *(unsigned short *)(to + j * MASK_STRIP) =
            (unsigned short)((bits >> 8 & 0xFF) | (bits >> 16 & 0xFF00));
    }
}
/* A thread that has keys lane/4 and lane/4 + 8 of a strip finds them, of two queries, in bits 4, 0, 20 and
 * 16. */
DEVICE int mask_shift(int lane) {
    return lane / 4 % 2 * 8 + 3 - lane / 8;
}

/* Of a query's 32 keys a word, two words a tile. The bytes are for the even keys of two blocks of 8, then the
 * odd ones; in each, the highest bits are for pairs 0 of the first two blocks and of the last two, then for
 * pairs 1, and so on. */
DEVICE void put_for_queries(unsigned char *tile, const RandomBlock block[UNIT_BLOCKS], unsigned limits,
                            int row, int column) {
    int lane = (int)threadIdx.x % WARP;
    unsigned bits[8];
#    pragma unroll
    for (int k = 0; k < 8; k++) {
        int b = k % 2 * 2;
        bits[k] = __byte_perm(kept_of_two(block[b].word[k / 2], limits),
                              kept_of_two(block[b + 1].word[k / 2], limits), 0x7351);
    }
#    pragma unroll
    for (int step = 1; step < 8; step *= 2) {
        unsigned upper = 0x01010101u * (0xFF00u >> step & 0xFF);
#    pragma unroll
        for (int k = 0; k < 8; k += 2 * step) bits[k] = (bits[k] & upper) | (bits[k + step] >> step & ~upper);
    }
    *(unsigned *)(tile + (row % 2 * UNIT + lane) * MASK_QUERY + column % 2 * 4) = bits[0];
}
/* Pair c of block n, twice c having been shifted out before: all bits of the halves that are kept, and none
 * of the others. */
DEVICE unsigned kept_halves(unsigned bits, int n) {
    unsigned halves;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(halves) : "r"(bits << n / 2), "r"(n % 2 ? 0xBB99 : 0xAA88));
    return halves;
}

/* A lane draws for UNIT keys of one query, all of its blocks at the same time. */
template <MaskUse USE>
DEVICE void draw_unit(unsigned char *mask, const ShortDropout &dropout, unsigned limits, int row,
                      int column) {
    int lane = (int)threadIdx.x % WARP, query = row * UNIT + lane;
    unsigned first =
        (dropout.first_row + (unsigned)query) * dropout.blocks + (unsigned)(column * UNIT_BLOCKS);
    RandomKey key = dropout.key;
    RandomBlock block[UNIT_BLOCKS];
#    pragma unroll
    for (int k = 0; k < UNIT_BLOCKS; k++) block[k] = random_position(dropout.sequence, first + (unsigned)k);
#    pragma unroll
    for (int round = 0; round < RANDOM_ROUNDS; round++, key = random_next_key(key)) {
#    pragma unroll
        for (int k = 0; k < UNIT_BLOCKS; k++) block[k] = random_round(key, block[k]);
    }
    unsigned char *tile = mask + tile_index(row / 2, column / 2) * MASK_TILE;
    if (USE == MASK_FOR_KEYS) put_for_keys(tile, block, limits, row, column);
    else put_for_queries(tile, block, limits, row, column);
}

/* A warp's share of the mask of a head: some units from the first on. */
template <MaskUse USE>
DEVICE void draw_units(unsigned char *mask, const TiledShape &s, ShortDropout own, int first, int end,
                       int step) {
    unsigned limits = own.limit | own.limit >> 16;
    int row = (s.n_positions + UNIT - 1) / UNIT - 1, column = first;
#    pragma unroll 1
    for (int unit = first; unit < end; unit += step, column += step) {
        for (; column > row; row--) column -= row + 1;
        /* else the keys of all rounds are found beforehand, for which there are not registers enough */
        asm volatile("" : "+r"(own.key.word[0]), "+r"(own.key.word[1]));
        draw_unit<USE>(mask, own, limits, row, column);
    }
}
template <MaskUse USE>
DEVICE void draw_units(unsigned char *mask, const TiledShape &s, int head, int first, int end, int step) {
    ShortSlot place = short_slot(head, s);
    draw_units<USE>(mask, s, short_dropout_of(s, place.b, place.h), first, end, step);
}

#endif

#endif
