/* Sums over the clusters of a grid, made where the L2 cache is: every cluster adds its summand to the same
 * word, and whoever needs the sum looks at one word instead of at one from everybody.
 *
 * Numbers are added up as whole ones, of 2^-32 each, so that it does not matter who comes first. The low bits
 * of a word count the summands, and those that were none (not finite, or beyond 2^19): of these the sum is
 * none either.
 *
 * A word begins at 0, so it is cleared between its uses. There are four sets: the two sums of a block (behind
 * attention, behind the block), for every other block. Those of a block have been read by everybody when the
 * sums of the block behind it come in; then they are cleared, which is long before anybody adds to them
 * again: he first needs what the one who has cleared them sends next. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_SUMS_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_SUMS_CUH

#include "backend/cuda/decode/decode_mail.cuh"

enum {
    SUM_SETS = 4,
    SUM_COUNT = 0xF, /* of a word: how many have been added */
    SUM_BAD = 0x10,  /* and from here on: how many of them are none */
    SUM_BAD_BITS = 0xF0,
    SUM_SHIFT = 8
};

/* Which set: `turn` counts blocks, in all steps; which: behind attention, behind the block. */
DEVICE int sum_set(unsigned turn, int which) {
    return (int)(turn & 1) * 2 + which;
}

DEVICE void sum_add(Word *to, float value) {
    bool is_good = fabsf(value) < 0x1p19f;
    Word whole = is_good ? (Word)__float2ll_rn(value * 0x1p32f) : 0;
    Word summand = (whole << SUM_SHIFT) + (is_good ? 1 : 1 + SUM_BAD);
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(summand) : "memory");
}

DEVICE float sum_value(Word word) {
    float value = (float)((long long)word >> SUM_SHIFT) * 0x1p-32f;
    return word & SUM_BAD_BITS ? NAN : value;
}

/* Two words at a 16-byte boundary; says whether all n summands are in. */
DEVICE bool sum_look(const Word *from, unsigned n, Word (&word)[2]) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(word[0]), "=l"(word[1])
                 : "l"(from)
                 : "memory");
    return ((unsigned)word[0] & SUM_COUNT) == n && ((unsigned)word[1] & SUM_COUNT) == n;
}

DEVICE void sum_clear(Word *word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"((Word)0) : "memory");
}

#endif
